//! Where connections are served.

use crate::{name::VolumeName, network::Network};

/// How a rule chooses one of its cores for a connection (`bind` in `[[placement]]`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoreChoice {
    /// The core of the network card's queue as long as the cores stay balanced, else the least loaded one.
    #[default]
    Balanced,
    /// Always the core of the network card's queue.
    Queue,
    /// The least loaded core.
    Cpu,
    /// A random core.
    Random,
}

impl CoreChoice {
    /// As the configuration has them.
    pub const WORDS: [(&'static str, CoreChoice); 3] =
        [("cpu", CoreChoice::Cpu), ("queue", CoreChoice::Queue), ("random", CoreChoice::Random)];
}

/// A `[[placement]]` rule; who fits all of it is served by its cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionPlacement {
    /// Places in the plan's portals; `None`: any.
    pub portals: Option<Vec<usize>>,
    /// Networks; empty: any.
    pub sources: Vec<Network>,
    /// The names of a `[[host]]`; `None`: any.
    pub peers: Option<Vec<String>>,
    /// A volume that is led to; `None`: any.
    pub volume: Option<VolumeName>,
    /// What else must hold of a connection.
    pub when: shard::Condition,
    /// Of all cores, the one of this number, counted from 0 and round them; `None`: those of `cores`.
    pub nth: Option<u16>,
    /// Cores; empty: all that the daemon has.
    pub cores: Vec<usize>,
    /// Which of them.
    pub bind: CoreChoice,
}
