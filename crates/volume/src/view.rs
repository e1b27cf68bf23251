//! One core's copy of the truth.

use crate::backend::Geometry;
use crate::io::Epoch;

/// The state of a path from a port to a volume (ALUA and ANA show the same one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// Best.
    Optimized,
    /// Works, at a price.
    NonOptimized,
    /// Not now; perhaps later.
    Inaccessible,
    /// Never again by this path.
    PersistentLoss,
    /// About to change.
    Transition,
}

/// What one core believes of a volume between two turns.
#[derive(Clone, Debug)]
pub struct View {
    /// Which view it is.
    pub epoch: Epoch,
    /// What the blocks are like.
    pub geometry: Geometry,
}
