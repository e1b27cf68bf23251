//! Which numbers the ports of targets have that the configuration names.
//!
//! An iSCSI target port is a target's name and a portal group's tag (RFC 7143 §3.4.1). Its number is kept with
//! registrations and path states, so it is given once. Invariant: no two ports that lead to one volume have one number.
//! The default target of a volume is the only one that leads there, so all of these have the numbers of the portal
//! groups ([`super::ports`]), and creating volumes uses no numbers up.
//!
//! A release before this one gave all targets the groups' numbers. Those that it served keep them; of several that lead
//! to one volume, the first. What was saved for the group's number is then said of the others' ports too
//! ([`TargetPorts::split`]).

use serde::{Deserialize, Serialize};
use volume::{PortId, PortRenumbering};

use super::{
    StateDir, StateError,
    ports::{ALL_GIVEN, Ports},
};
use config::{
    name::VolumeName,
    plan::{Protocol, Target},
};

/// The record's name.
const RECORD: &str = "target-ports";

/// A target's port, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    target: String,
    /// The portal group's tag.
    group: u16,
    /// Its number, from 1.
    port: u16,
    /// It had its group's number in a release that knew no other, and has another now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    split: bool,
}

/// All numbers that were ever given to ports of targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetPorts {
    entries: Vec<Entry>,
    /// The targets that come now were served by a release that gave them their groups' numbers.
    is_upgrade: bool,
}

impl TargetPorts {
    /// Reads them. `groups` is what stands in the record of portal groups.
    pub fn load(state: &StateDir, groups: &Ports) -> Result<Self, StateError> {
        let Some(entries) = state.read_json::<Vec<Entry>>(RECORD)? else {
            return Ok(TargetPorts { entries: Vec::new(), is_upgrade: groups.last() > 0 });
        };
        for (at, one) in entries.iter().enumerate() {
            let same = |other: &Entry| (&other.target, other.group) == (&one.target, one.group);
            if one.port == 0 || entries.iter().skip(at + 1).any(same) {
                let why = "a target's port has the number 0, or two numbers".to_owned();
                return Err(StateError::Damaged { path: state.path().join(RECORD), why });
            }
        }
        Ok(TargetPorts { entries, is_upgrade: false })
    }

    /// Gives numbers to ports that have none, and new ones where two ports of a volume would share one. They are
    /// written before a port is served, so that no number is shown that the next start would not know. Where that
    /// fails, the numbers are those of before.
    pub fn give_durably(
        &mut self,
        targets: &[Target],
        groups: &Ports,
        state: &StateDir,
    ) -> Result<(), String> {
        let mut given = self.clone();
        if given.give(targets, groups)? {
            given.save(state).map_err(|why| why.to_string())?;
            *self = given;
        }
        Ok(())
    }

    fn save(&self, state: &StateDir) -> Result<(), StateError> {
        state.write_json(RECORD, &self.entries)
    }

    /// Gives numbers to ports that have none, and new ones to those whose number another port has that leads to one of
    /// their volumes. Says whether there is anything to save; `Err`: all 65,535 are given.
    fn give(&mut self, targets: &[Target], groups: &Ports) -> Result<bool, String> {
        let mut changed = std::mem::take(&mut self.is_upgrade);
        let inherits = changed;
        let is_numbered = |target: &Target| !target.is_default && !target.luns.is_empty();
        for (at, target) in targets.iter().enumerate().filter(|(_, target)| is_numbered(target)) {
            for &group in &target.portals {
                // Who has a number that is his own keeps it from those behind him, and none is taken from default targets.
                let before = targets.iter().enumerate().filter(|(other, one)| *other < at || one.is_default);
                let others: Vec<u16> = before
                    .filter(|(_, other)| other.portals.contains(&group) && share_a_volume(other, target))
                    .filter_map(|(_, other)| self.of(other, group, groups))
                    .collect();
                let own = self.own(&target.name, group);
                if own.is_some_and(|own| !others.contains(&own)) {
                    continue;
                }
                let inherited = groups.of(Protocol::Iscsi, group).filter(|_| inherits && own.is_none());
                let port = match inherited {
                    Some(port) if !others.contains(&port) => port,
                    _ => self.last().max(groups.last()).checked_add(1).ok_or(ALL_GIVEN)?,
                };
                let split = inherited.is_some_and(|inherited| inherited != port);
                self.entries.retain(|one| one.group != group || one.target != target.name);
                self.entries.push(Entry { target: target.name.clone(), group, port, split });
                changed = true;
            }
        }
        Ok(changed)
    }

    /// The number of a target's port, if it has one.
    pub fn of(&self, target: &Target, group: u16, groups: &Ports) -> Option<u16> {
        let own = || self.own(&target.name, group);
        if target.is_default { groups.of(Protocol::Iscsi, group) } else { own() }
    }

    fn own(&self, target: &str, group: u16) -> Option<u16> {
        self.entries.iter().find(|one| one.group == group && one.target == target).map(|one| one.port)
    }

    /// The greatest number that was ever given; 0: none was.
    pub fn last(&self) -> u16 {
        self.entries.iter().map(|one| one.port).max().unwrap_or(0)
    }

    /// What has come of the numbers by which a volume was reached when an earlier release saved its record.
    pub fn split(&self, targets: &[Target], volume: &VolumeName, groups: &Ports) -> PortRenumbering {
        let mut splits = PortRenumbering::default();
        let leading: Vec<&Target> =
            targets.iter().filter(|target| target.leads_to(volume.as_str())).collect();
        for one in self.entries.iter().filter(|one| one.split) {
            let Some(before) = groups.of(Protocol::Iscsi, one.group) else { continue };
            if !leading.iter().any(|target| target.name == one.target) {
                continue;
            }
            splits.pairs.push((PortId(before), PortId(one.port)));
            let reaches = |target: &&Target| self.of(target, one.group, groups) == Some(before);
            if !leading.iter().any(reaches) && !splits.gone.contains(&PortId(before)) {
                splits.gone.push(PortId(before));
            }
        }
        splits
    }
}

fn share_a_volume(one: &Target, other: &Target) -> bool {
    one.luns.iter().any(|lun| other.leads_to(lun.volume.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{
        check::default_target,
        plan::{Lun, Origin, Volume},
        spec,
    };

    fn volume(name: &str) -> VolumeName {
        VolumeName::parse(name).unwrap()
    }

    /// Reached by portal groups 1 and 2; a default target if it has no name.
    fn target(name: Option<&str>, volumes: &[&str]) -> Target {
        let spec = spec::parse("null:1M").unwrap();
        let of = Volume { name: volume(volumes[0]), spec, origin: Origin::Configured };
        let mut target = default_target(None, &of, &[1, 2], true);
        if let Some(name) = name {
            (target.name, target.is_default) = (name.to_owned(), false);
        }
        let lun = |(lun, name): (u16, &&str)| Lun { lun, volume: volume(name), read_only: false };
        target.luns = (0..).zip(volumes).map(lun).collect();
        target
    }

    fn groups(state: &StateDir, recorded: bool) -> Ports {
        let mut groups = Ports::load(state).unwrap();
        groups.give(&[(Protocol::Iscsi, 1), (Protocol::Iscsi, 2), (Protocol::Nvme, 1)], 0).unwrap();
        if recorded {
            groups.save(state).unwrap();
        }
        groups
    }

    fn ports(target_ports: &TargetPorts, targets: &[Target], groups: &Ports) -> Vec<[u16; 2]> {
        let of = |target| [1, 2].map(|group| target_ports.of(target, group, groups).unwrap_or(0));
        targets.iter().map(of).collect()
    }

    #[test]
    fn no_two_ports_that_lead_to_one_volume_have_one_number_and_each_keeps_its_own() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let mut given = TargetPorts::load(&state, &Ports::default()).unwrap();
        let groups = groups(&state, true);
        let mut targets =
            vec![target(Some("iqn.x:a"), &["v"]), target(Some("iqn.x:b"), &["w", "v"]), target(None, &["u"])];
        assert!(given.give(&targets, &groups).unwrap() && !given.give(&targets, &groups).unwrap());
        assert_eq!(ports(&given, &targets, &groups), [[4, 5], [6, 7], [1, 2]]);
        given.save(&state).unwrap();
        // Others come before them, and one goes.
        targets.insert(0, target(Some("iqn.x:c"), &["v"]));
        targets.remove(1);
        let mut given = TargetPorts::load(&state, &groups).unwrap();
        assert!(given.give(&targets, &groups).unwrap());
        assert_eq!(ports(&given, &targets, &groups), [[8, 9], [6, 7], [1, 2]]);
        assert_eq!(given.split(&targets, &volume("v"), &groups), PortRenumbering::default());
        // A new portal group gets none of these.
        let mut more = groups.clone();
        more.give(&[(Protocol::Nvme, 9)], given.last()).unwrap();
        assert_eq!(more.of(Protocol::Nvme, 9), Some(10));
    }

    /// What was saved by number must not name another's port after an upgrade.
    #[test]
    fn targets_that_an_older_release_served_keep_their_groups_numbers_but_for_the_second_to_a_volume() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let groups = groups(&state, true);
        let mut given = TargetPorts::load(&state, &groups).unwrap();
        let mut targets = vec![
            target(Some("iqn.x:a"), &["v"]),
            target(Some("iqn.x:b"), &["w", "v"]),
            target(Some("iqn.x:c"), &["x"]),
        ];
        assert!(given.give(&targets, &groups).unwrap());
        assert_eq!(ports(&given, &targets, &groups), [[1, 2], [4, 5], [1, 2]]);
        given.save(&state).unwrap();
        let given = TargetPorts::load(&state, &groups).unwrap();
        // By the first `v` is still reached, and `w` was by the second alone.
        let pairs = vec![(PortId(1), PortId(4)), (PortId(2), PortId(5))];
        for (name, gone) in [("v", vec![]), ("w", vec![PortId(1), PortId(2)])] {
            let splits = PortRenumbering { pairs: pairs.clone(), gone };
            assert_eq!(given.split(&targets, &volume(name), &groups), splits, "{name}");
        }
        assert_eq!(given.split(&targets, &volume("x"), &groups), PortRenumbering::default());
        // Later ones have their own, also where a target comes to share a volume.
        let mut given = given;
        targets.push(target(Some("iqn.x:d"), &["x"]));
        let shared = targets[0].luns.clone();
        targets[2].luns.extend(shared);
        assert!(given.give(&targets, &groups).unwrap());
        assert_eq!(ports(&given, &targets, &groups), [[1, 2], [4, 5], [6, 7], [8, 9]]);
        assert_eq!(given.split(&targets, &volume("x"), &groups), PortRenumbering::default());
    }

    /// A number that could not be written was served after the next reload, and another's after the next start.
    #[test]
    fn numbers_that_were_not_written_are_not_served() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let groups = groups(&state, true);
        let mut given = TargetPorts::default();
        let targets = vec![target(Some("iqn.x:a"), &["v"])];
        let record = state.path().join(RECORD);
        std::fs::create_dir_all(record.join("in the way")).unwrap();
        assert!(given.give_durably(&targets, &groups, &state).is_err());
        assert_eq!(given, TargetPorts::default());
        std::fs::remove_dir_all(&record).unwrap();
        given.give_durably(&targets, &groups, &state).unwrap();
        let next = TargetPorts::load(&state, &groups).unwrap();
        assert_eq!(ports(&next, &targets, &groups), ports(&given, &targets, &groups));
    }

    #[test]
    fn a_record_that_gives_a_port_two_numbers_is_damaged() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        for (group, port) in [(1, 4), (2, 0)] {
            let entry = |group, port| Entry { target: "iqn.x:a".to_owned(), group, port, split: false };
            let entries = vec![entry(1, 3), entry(group, port)];
            TargetPorts { entries, is_upgrade: false }.save(&state).unwrap();
            let loaded = TargetPorts::load(&state, &Ports::default());
            assert!(matches!(loaded, Err(StateError::Damaged { .. })), "{group}, {port}");
        }
    }
}
