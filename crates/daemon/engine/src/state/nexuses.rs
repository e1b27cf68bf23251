//! The numbers that identify the iSCSI sessions of each remote volume to its target: the random part of their
//! ISIDs.
//!
//! A login with the ISID of another session to the same target ends that session (RFC 7143 §6.3.5), so no two
//! volumes have one number. Each volume keeps its number over restarts, so that a new login ends the session
//! that a killed daemon left. A number is given once, and to no other volume when its volume is forgotten.

use std::io;

use serde::{Deserialize, Serialize};

use super::{StateDir, StateError};
use config::name::VolumeName;
use process::random;

/// The record's name.
const RECORD_NAME: &str = "nexuses";
/// Numbers have 24 bits.
const NUMBERS_MAX: u32 = 1 << 24;

/// All numbers that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NexusNumbers {
    /// The one that was given last; `None`: none was. Where they begin is drawn, since two daemons of one machine have
    /// one initiator name.
    last: Option<u32>,
    given: Vec<NexusRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NexusRecord {
    volume: String,
    /// The leg's number, from 1; 0 for the whole volume.
    leg: usize,
    number: u32,
}

impl NexusNumbers {
    /// Reads them.
    pub fn load(state: &StateDir) -> Result<Self, StateError> {
        Ok(state.read_json(RECORD_NAME)?.unwrap_or_default())
    }

    /// Writes them.
    pub fn save(&self, state: &StateDir) -> Result<(), StateError> {
        state.write_json(RECORD_NAME, self)
    }

    /// The number of a volume, or of a leg of one; a new one if it has none.
    pub fn number_for(&mut self, volume: &VolumeName, leg: usize) -> io::Result<[u8; 3]> {
        let its = |one: &&NexusRecord| one.volume == volume.as_str() && one.leg == leg;
        let known = self.given.iter().find(its).map(|one| one.number);
        let number = known.map_or_else(|| self.allocate(volume, leg), Ok)?;
        let [_, number @ ..] = number.to_be_bytes();
        Ok(number)
    }

    fn allocate(&mut self, volume: &VolumeName, leg: usize) -> io::Result<u32> {
        let first = || random::random_bytes().map(u32::from_be_bytes);
        let mut number = self.last.map_or_else(first, Ok)?;
        // It ends: nobody has 16 million volumes of other machines.
        loop {
            number = number.wrapping_add(1) % NUMBERS_MAX;
            if !self.given.iter().any(|one| one.number == number) {
                break;
            }
        }
        self.last = Some(number);
        self.given.push(NexusRecord { volume: volume.to_string(), leg, number });
        Ok(number)
    }

    /// The volume was deleted: what comes by its name is another.
    pub fn forget_volume(&mut self, volume: &VolumeName) {
        self.given.retain(|one| one.volume != volume.as_str());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They would end each other's sessions at a target that has both, for ever.
    #[test]
    fn no_two_volumes_of_other_machines_have_one_number_and_each_keeps_its_own_over_restarts() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let name = |name: &str| VolumeName::parse(name).unwrap();
        let mut nexuses = NexusNumbers::load(&state).unwrap();
        let (a, b) = (nexuses.number_for(&name("a"), 0).unwrap(), nexuses.number_for(&name("b"), 0).unwrap());
        let legs = [1, 2].map(|leg| nexuses.number_for(&name("striped"), leg).unwrap());
        nexuses.save(&state).unwrap();
        let mut nexuses = NexusNumbers::load(&state).unwrap();
        assert_eq!(
            (nexuses.number_for(&name("a"), 0).unwrap(), nexuses.number_for(&name("b"), 0).unwrap()),
            (a, b)
        );
        assert_eq!([1, 2].map(|leg| nexuses.number_for(&name("striped"), leg).unwrap()), legs);
        // Sessions of a volume that was deleted may still be there.
        nexuses.forget_volume(&name("b"));
        let mut all = vec![
            a,
            b,
            legs[0],
            legs[1],
            nexuses.number_for(&name("b"), 0).unwrap(),
            nexuses.number_for(&name("c"), 0).unwrap(),
        ];
        all.sort_unstable();
        assert!(all.is_sorted_by(|one, next| one < next), "{all:?}");
        // Behind the last one the first that nobody has.
        nexuses.last = Some(NUMBERS_MAX - 1);
        nexuses.given = vec![NexusRecord { volume: "d".to_owned(), leg: 0, number: 0 }];
        assert_eq!(nexuses.number_for(&name("e"), 0).unwrap(), [0, 0, 1]);
    }
}
