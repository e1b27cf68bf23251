//! What another configuration changes, and whom it disturbs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A key with another value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyReport {
    /// The key, as the configuration has it.
    pub key: String,
    /// Its value before; `None`: it is a secret, or long.
    pub before: Option<String>,
    /// Its value now.
    pub after: Option<String>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangeReport {
    /// `add`, `remove` or `change`.
    pub action: String,
    /// `volume`, `portal`, `target`, `subsystem`, `host` or `section`.
    pub item: String,
    /// Its name.
    pub name: String,
    /// Which keys, of what was there before.
    pub keys: Vec<KeyReport>,
    /// `none`, `later-connections` (those that stand keep what they have), `may-end-connections` (see what is
    /// disturbed), or `restart` (it cannot be applied while the daemon runs).
    pub effect: String,
    /// Why it needs a restart, or what else there is to know.
    pub note: Option<String>,
}

/// A session or controller that is disturbed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DisturbanceReport {
    /// Its number, as in `session list`.
    pub session: u64,
    /// `iscsi` or `nvme`.
    pub protocol: String,
    /// The initiator's name, or the host's.
    pub initiator: String,
    /// The configured host that it is by the old configuration.
    pub host: Option<String>,
    /// The target or subsystem; `None` for discovery.
    pub target: Option<String>,
    /// Its connections: queues, over NVMe.
    pub connections: usize,
    /// Whether it ends; else it stays, and loses what `why` says.
    pub ends: bool,
    /// Why it ends, or what it loses.
    pub why: String,
}

/// What a configuration comes to beside the one in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanReport {
    /// The file; `None`: the configuration before the last apply.
    pub file: Option<String>,
    /// Whether it is in force now.
    pub applied: bool,
    /// What changes.
    pub changes: Vec<ChangeReport>,
    /// Who is disturbed.
    pub disturbed: Vec<DisturbanceReport>,
    /// Why it cannot be applied while the daemon runs; empty: it can.
    pub refused: Vec<String>,
    /// What is no error, but probably a mistake.
    pub warnings: Vec<String>,
}
