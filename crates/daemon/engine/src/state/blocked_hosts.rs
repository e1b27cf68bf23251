//! Hosts that the operator has blocked, by their names. They stay blocked over a restart.

use std::collections::BTreeSet;

use super::{StateDir, StateError};

/// The record's name.
const RECORD_NAME: &str = "blocked-hosts";

/// How many names may be blocked: each is looked at in every report.
pub const BLOCKED_MAX: usize = 4096;

/// iSCSI names, normalised, and NQNs.
pub type BlockedNames = BTreeSet<String>;

/// Reads them. A record that is damaged ends the start: it must not let in whom the operator shut out.
pub fn load(state: &StateDir) -> Result<BlockedNames, StateError> {
    Ok(state.read_json(RECORD_NAME)?.unwrap_or_default())
}

/// Writes them; before hosts are shut out or let in.
pub fn save(state: &StateDir, names: &BlockedNames) -> Result<(), StateError> {
    state.write_json(RECORD_NAME, names)
}
