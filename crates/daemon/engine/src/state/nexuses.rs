//! The numbers that identify the iSCSI sessions of each remote volume to its target: the random part of their
//! ISIDs.
//!
//! A login with the ISID of another session to the same target ends that session (RFC 7143 §6.3.5), so no two
//! volumes have one number. Each volume keeps its number over restarts, so that a new login ends the session
//! that a killed daemon left. A number is given once, and to no other volume when its volume is forgotten.

use std::{
    collections::{BTreeMap, HashSet},
    io,
};

use serde::{Deserialize, Serialize};

use super::{StateDir, StateError};
use config::name::VolumeName;
use process::random;

/// The record's name.
const RECORD_NAME: &str = "nexuses";
/// Numbers have 24 bits.
const NUMBERS_MAX: u32 = 1 << 24;

/// All numbers that are given.
#[derive(Clone, Debug, Default)]
pub struct NexusNumbers {
    /// The one that was given last; `None`: none was. Where they begin is drawn, since two daemons of one machine have
    /// one initiator name.
    last: Option<u32>,
    /// By the name of the volume and the number of the leg.
    given: BTreeMap<(String, usize), u32>,
    taken: HashSet<u32>,
}

/// As they are recorded.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NexusesRecord {
    last: Option<u32>,
    given: Vec<NexusRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
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
        let NexusesRecord { last, given } = state.read_json(RECORD_NAME)?.unwrap_or_default();
        let taken = given.iter().map(|one| one.number).collect();
        let given = given.into_iter().map(|one| ((one.volume, one.leg), one.number)).collect();
        Ok(NexusNumbers { last, given, taken })
    }

    /// Writes them.
    pub fn save(&self, state: &StateDir) -> Result<(), StateError> {
        let record = |((volume, leg), number): (&(String, usize), &u32)| NexusRecord {
            volume: volume.clone(),
            leg: *leg,
            number: *number,
        };
        let given = self.given.iter().map(record).collect();
        state.write_json(RECORD_NAME, &NexusesRecord { last: self.last, given })
    }

    /// The number of a volume, or of a leg of one; a new one if it has none, and whether it is new.
    pub fn number_for(&mut self, volume: &VolumeName, leg: usize) -> io::Result<([u8; 3], bool)> {
        let known = self.given.get(&(volume.to_string(), leg)).copied();
        let number = known.map_or_else(|| self.allocate(volume, leg), Ok)?;
        let [_, bytes @ ..] = number.to_be_bytes();
        Ok((bytes, known.is_none()))
    }

    fn allocate(&mut self, volume: &VolumeName, leg: usize) -> io::Result<u32> {
        let first = || random::random_bytes().map(u32::from_be_bytes);
        let mut number = self.last.map_or_else(first, Ok)?;
        // It ends: nobody has 16 million volumes of other machines.
        loop {
            number = number.wrapping_add(1) % NUMBERS_MAX;
            if self.taken.insert(number) {
                break;
            }
        }
        self.last = Some(number);
        self.given.insert((volume.to_string(), leg), number);
        Ok(number)
    }

    /// The volume was deleted: what comes by its name is another. Whether it had numbers.
    pub fn forget_volume(&mut self, volume: &VolumeName) -> bool {
        let NexusNumbers { given, taken, .. } = self;
        let before = given.len();
        given.retain(|(name, _), number| {
            let stays = name != volume.as_str();
            if !stays {
                taken.remove(number);
            }
            stays
        });
        given.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu_time::assert_grows_with_number;

    /// They would end each other's sessions at a target that has both, for ever.
    #[test]
    fn no_two_volumes_of_other_machines_have_one_number_and_each_keeps_its_own_over_restarts() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let name = |name: &str| VolumeName::parse(name).unwrap();
        let mut nexuses = NexusNumbers::load(&state).unwrap();
        let (a, b) =
            (nexuses.number_for(&name("a"), 0).unwrap().0, nexuses.number_for(&name("b"), 0).unwrap().0);
        let legs = [1, 2].map(|leg| nexuses.number_for(&name("striped"), leg).unwrap().0);
        nexuses.save(&state).unwrap();
        let mut nexuses = NexusNumbers::load(&state).unwrap();
        assert_eq!(
            (nexuses.number_for(&name("a"), 0).unwrap().0, nexuses.number_for(&name("b"), 0).unwrap().0),
            (a, b)
        );
        assert_eq!([1, 2].map(|leg| nexuses.number_for(&name("striped"), leg).unwrap().0), legs);
        // Sessions of a volume that was deleted may still be there.
        nexuses.forget_volume(&name("b"));
        let mut all = vec![
            a,
            b,
            legs[0],
            legs[1],
            nexuses.number_for(&name("b"), 0).unwrap().0,
            nexuses.number_for(&name("c"), 0).unwrap().0,
        ];
        all.sort_unstable();
        assert!(all.is_sorted_by(|one, next| one < next), "{all:?}");
        // Behind the last one the first that nobody has.
        nexuses.last = Some(NUMBERS_MAX - 1);
        nexuses.given = BTreeMap::from([(("d".to_owned(), 0), 0)]);
        nexuses.taken = HashSet::from([0]);
        assert_eq!(nexuses.number_for(&name("e"), 0).unwrap().0, [0, 0, 1]);
    }

    /// A start asks for each volume.
    #[test]
    fn numbers_of_many_volumes_take_time_in_proportion_to_their_number() {
        let names: Vec<VolumeName> =
            (0..8000).map(|at| VolumeName::parse(&format!("v{at}")).unwrap()).collect();
        assert_grows_with_number(names.len(), |count| {
            let mut nexuses = NexusNumbers::default();
            for volume in names.iter().take(count).chain(names.iter().take(count)) {
                nexuses.number_for(volume, 0).unwrap();
            }
        });
    }
}
