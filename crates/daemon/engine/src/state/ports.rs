//! The number of each portal group's port: relative target port (SPC-6 §4.6.6) or PORTID (NVMe Base
//! §5.1.12.2). Targets that the configuration names have ports of their own ([`super::target_ports`]).
//!
//! Saved reservations and path states name ports by number. So a number is given once and stays with its
//! portal group, even while the configuration does not name that group: another group never gets it.

use serde::{Deserialize, Serialize};

use super::{StateDir, StateError};
use config::plan::Protocol;

/// The record's name.
const RECORD_NAME: &str = "ports";

/// Why no port gets a number any more.
pub(super) const PORTS_EXHAUSTED: &str = "all 65,535 port numbers were given: move the records `ports` and `target-ports` out of the state directory \
     when no saved reservation or path state is needed any more";

/// A portal group, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PortGroupRecord {
    /// The word of its protocol.
    protocol: String,
    /// Its tag.
    group: u16,
    /// Its port's number, from 1.
    port: u16,
}

/// The port numbers of all portal groups, including those that the configuration no longer names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortNumbers {
    entries: Vec<PortGroupRecord>,
}

impl PortNumbers {
    /// Reads them.
    pub fn load(state: &StateDir) -> Result<Self, StateError> {
        let entries: Vec<PortGroupRecord> = state.read_json(RECORD_NAME)?.unwrap_or_default();
        let damaged =
            |why: &str| StateError::Damaged { path: state.path().join(RECORD_NAME), why: why.to_owned() };
        for (at, one) in entries.iter().enumerate() {
            if one.port == 0 {
                return Err(damaged("a port has the number 0"));
            }
            let same = |other: &PortGroupRecord| {
                other.port == one.port || (&other.protocol, other.group) == (&one.protocol, one.group)
            };
            if entries.iter().skip(at + 1).any(same) {
                return Err(damaged("two ports have one number, or one has two"));
            }
        }
        Ok(PortNumbers { entries })
    }

    /// Writes them; before a port is served, so that no number is shown that the next start would not know.
    pub fn save(&self, state: &StateDir) -> Result<(), StateError> {
        state.write_json(RECORD_NAME, &self.entries)
    }

    /// Gives numbers to groups that have none, in their order, behind all that were given: to groups, and up to `last`
    /// to ports of targets. Says whether there were any; `Err`: all 65,535 are given.
    pub fn assign(&mut self, groups: &[(Protocol, u16)], last: u16) -> Result<bool, String> {
        let before = self.entries.len();
        for &(protocol, group) in groups {
            if self.number_of(protocol, group).is_some() {
                continue;
            }
            let port = self.highest().max(last).checked_add(1).ok_or(PORTS_EXHAUSTED)?;
            self.entries.push(PortGroupRecord { protocol: protocol.as_str().to_owned(), group, port });
        }
        Ok(self.entries.len() != before)
    }

    /// Numbers that another gives, such as a group of gateways, which remembers them.
    pub fn given<E>(
        groups: &[(Protocol, u16)],
        mut give: impl FnMut(&str) -> Result<u16, E>,
    ) -> Result<Self, E> {
        let entry = |&(protocol, group): &(Protocol, u16)| {
            let port = give(&format!("{} {group}", protocol.as_str()))?;
            Ok(PortGroupRecord { protocol: protocol.as_str().to_owned(), group, port })
        };
        Ok(PortNumbers { entries: groups.iter().map(entry).collect::<Result<_, E>>()? })
    }

    /// The number of a group's port, if it has one.
    pub fn number_of(&self, protocol: Protocol, group: u16) -> Option<u16> {
        let its = |one: &&PortGroupRecord| one.protocol == protocol.as_str() && one.group == group;
        self.entries.iter().find(its).map(|one| one.port)
    }

    /// The greatest number that was ever given; 0: none was.
    pub fn highest(&self) -> u16 {
        self.entries.iter().map(|one| one.port).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [(Protocol, u16); 3] = [(Protocol::Iscsi, 5), (Protocol::Iscsi, 7), (Protocol::Nvme, 1)];

    /// A group with a lower tag, or one that goes and comes again, moves nobody: saved path states and registrants
    /// name ports by number.
    #[test]
    fn a_new_portal_group_does_not_get_the_number_of_another() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let mut ports = PortNumbers::load(&state).unwrap();
        assert!(ports.assign(&OLD, 0).unwrap());
        assert!(!ports.assign(&OLD, 0).unwrap());
        ports.save(&state).unwrap();
        let mut ports = PortNumbers::load(&state).unwrap();
        assert!(
            ports
                .assign(&[(Protocol::Iscsi, 1), (Protocol::Iscsi, 7), (Protocol::NvmeDiscovery, 1)], 0)
                .unwrap()
        );
        ports.save(&state).unwrap();
        let ports = PortNumbers::load(&state).unwrap();
        assert_eq!(
            OLD.map(|(protocol, group)| ports.number_of(protocol, group)),
            [Some(1), Some(2), Some(3)]
        );
        assert_eq!(
            (ports.number_of(Protocol::Iscsi, 1), ports.number_of(Protocol::NvmeDiscovery, 1)),
            (Some(4), Some(5))
        );
        assert_eq!((ports.number_of(Protocol::Iscsi, 2), ports.highest()), (None, 5));
    }

    #[test]
    fn a_record_that_gives_a_number_twice_is_damaged() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        for (group, port) in [(5, 2), (6, 1), (6, 0)] {
            let entry = |group, port| PortGroupRecord { protocol: "iscsi".to_owned(), group, port };
            PortNumbers { entries: vec![entry(5, 1), entry(group, port)] }.save(&state).unwrap();
            assert!(matches!(PortNumbers::load(&state), Err(StateError::Damaged { .. })), "{group}, {port}");
        }
    }

    #[test]
    fn the_last_number_is_given_and_no_other_twice() {
        let last = PortGroupRecord { protocol: "iscsi".to_owned(), group: 1, port: u16::MAX - 1 };
        let mut ports = PortNumbers { entries: vec![last] };
        assert!(ports.assign(&[(Protocol::Iscsi, 2)], 0).unwrap());
        assert_eq!(ports.number_of(Protocol::Iscsi, 2), Some(u16::MAX));
        let why = ports.assign(&[(Protocol::Iscsi, 3)], 0).unwrap_err();
        assert!(why.contains("65,535") && ports.number_of(Protocol::Iscsi, 3).is_none(), "{why}");
    }
}
