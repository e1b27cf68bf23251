//! The serial number of a subsystem of several volumes, if the configuration gives none.
//!
//! Hosts recognize a subsystem by it, so it does not depend on which of its volumes can be served. It is made
//! once, from the identity of the first volume that the configuration names, or at random if that is not
//! known, and is then kept.

use std::collections::BTreeMap;

use super::{StateDir, StateError};

/// The record's name.
const RECORD_NAME: &str = "serials";

/// All that were ever given, by the subsystems' names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SerialNumbers {
    given: BTreeMap<String, String>,
}

impl SerialNumbers {
    /// Reads them.
    pub fn load(state: &StateDir) -> Result<Self, StateError> {
        Ok(SerialNumbers { given: state.read_json(RECORD_NAME)?.unwrap_or_default() })
    }

    /// Writes them; before a subsystem is served.
    pub fn save(&self, state: &StateDir) -> Result<(), StateError> {
        state.write_json(RECORD_NAME, &self.given)
    }

    /// Gives a subsystem a serial number if it has none. Says whether it had none.
    pub fn assign(&mut self, nqn: &str, serial: impl FnOnce() -> String) -> bool {
        let is_new = !self.given.contains_key(nqn);
        if is_new {
            self.given.insert(nqn.to_owned(), serial());
        }
        is_new
    }

    /// That of a subsystem, if it was given one.
    pub fn serial_of(&self, nqn: &str) -> Option<&str> {
        self.given.get(nqn).map(String::as_str)
    }
}
