//! Where connections are served.

use crate::{name::VolumeName, network::Network};

/// How one of a rule's cores is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bind {
    /// That of the network card's queue as long as balance is kept, else the one with the least on it.
    #[default]
    Balanced,
    /// That of the network card's queue.
    Queue,
    /// The one with the least on it.
    Cpu,
    /// Any.
    Random,
}

impl Bind {
    /// As the configuration has them.
    pub const WORDS: [(&'static str, Bind); 3] =
        [("cpu", Bind::Cpu), ("queue", Bind::Queue), ("random", Bind::Random)];
}

/// A `[[placement]]` rule; who fits all of it is served by its cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
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
    pub bind: Bind,
}
