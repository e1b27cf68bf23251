//! The port numbers of targets that the configuration names.
//!
//! An iSCSI target port is a target's name and a portal group's tag (RFC 7143 §3.4.1). Its number is kept
//! with registrations and path states, so it is given once. Invariant: no two ports that lead to one volume
//! have one number. The default target of a volume is the only one that leads there, so all default targets
//! use the numbers of the portal groups ([`super::ports`]), and creating volumes uses no numbers up.
//!
//! Earlier builds gave all targets the groups' numbers. State saved under a group's number applies to the
//! ports of all targets that lead to the volume ([`TargetPortNumbers::renumbering_for`]).

use std::collections::{BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use volume::{PortId, PortRenumbering};

use super::{
    StateDir, StateError,
    ports::{PORTS_EXHAUSTED, PortNumbers},
};
use config::plan::{Protocol, Target};

/// The record's name.
const RECORD_NAME: &str = "target-ports";

/// A target's port, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetPortRecord {
    target: String,
    /// The portal group's tag.
    group: u16,
    /// Its number, from 1.
    port: u16,
}

/// All numbers that were ever given to ports of targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetPortNumbers {
    /// In the order in which they were given.
    entries: Vec<TargetPortRecord>,
    /// Where those of a target are.
    by_target: HashMap<String, Vec<usize>>,
    /// The greatest number that was ever given; 0: none was.
    last: u16,
}

impl TargetPortNumbers {
    /// Reads them.
    pub fn load(state: &StateDir) -> Result<Self, StateError> {
        let entries = state.read_json::<Vec<TargetPortRecord>>(RECORD_NAME)?.unwrap_or_default();
        let mut numbers = TargetPortNumbers::default();
        let mut given = HashSet::new();
        for one in entries {
            let has_one = numbers.recorded_number(&one.target, one.group).is_some();
            if one.port == 0 || has_one || !given.insert(one.port) {
                let why = "a target's port has the number 0, two numbers, or that of another".to_owned();
                return Err(StateError::Damaged { path: state.path().join(RECORD_NAME), why });
            }
            numbers.push(one);
        }
        Ok(numbers)
    }

    fn push(&mut self, one: TargetPortRecord) {
        self.last = self.last.max(one.port);
        self.by_target.entry(one.target.clone()).or_default().push(self.entries.len());
        self.entries.push(one);
    }

    /// Gives numbers to ports that have none. They are written before a port is served, so that no number is shown that
    /// the next start would not know. Where that fails, the numbers are those of before.
    pub fn assign_durably(
        &mut self,
        targets: &[Target],
        groups: &PortNumbers,
        state: &StateDir,
    ) -> Result<(), String> {
        let mut given = self.clone();
        if given.assign(targets, groups)? {
            given.save(state).map_err(|why| why.to_string())?;
            *self = given;
        }
        Ok(())
    }

    fn save(&self, state: &StateDir) -> Result<(), StateError> {
        state.write_json(RECORD_NAME, &self.entries)
    }

    /// Gives numbers to ports that have none. Says whether there is anything to save; `Err`: all 65,535 are given.
    fn assign(&mut self, targets: &[Target], groups: &PortNumbers) -> Result<bool, String> {
        let mut changed = false;
        for target in targets.iter().filter(|target| !target.is_default && !target.luns.is_empty()) {
            for &group in &target.portals {
                if self.recorded_number(&target.name, group).is_none() {
                    let port = self.highest().max(groups.highest()).checked_add(1).ok_or(PORTS_EXHAUSTED)?;
                    self.push(TargetPortRecord { target: target.name.clone(), group, port });
                    changed = true;
                }
            }
        }
        Ok(changed)
    }

    /// Has another, which remembers them, give the numbers that are missing.
    pub fn take_given<E>(
        &mut self,
        targets: &[Target],
        mut give: impl FnMut(&str) -> Result<u16, E>,
    ) -> Result<(), E> {
        for target in targets.iter().filter(|target| !target.is_default && !target.luns.is_empty()) {
            for &group in &target.portals {
                if self.recorded_number(&target.name, group).is_none() {
                    let port = give(&format!("{} {group}", target.name))?;
                    self.push(TargetPortRecord { target: target.name.clone(), group, port });
                }
            }
        }
        Ok(())
    }

    /// The number of a target's port, if it has one.
    pub fn number_of(&self, target: &Target, group: u16, groups: &PortNumbers) -> Option<u16> {
        let own = || self.recorded_number(&target.name, group);
        if target.is_default { groups.number_of(Protocol::Iscsi, group) } else { own() }
    }

    fn recorded_number(&self, target: &str, group: u16) -> Option<u16> {
        let mut own = self.by_target.get(target)?.iter().filter_map(|at| self.entries.get(*at));
        own.find(|one| one.group == group).map(|one| one.port)
    }

    /// The greatest number that was ever given; 0: none was.
    pub fn highest(&self) -> u16 {
        self.last
    }

    /// What has come of the numbers by which a volume was reached when an earlier release saved its record.
    /// `leading`: the targets that lead to it now.
    pub fn renumbering_for(&self, leading: &[&Target], groups: &PortNumbers) -> PortRenumbering {
        let mut splits = PortRenumbering::default();
        let own = leading.iter().filter_map(|target| self.by_target.get(&target.name)).flatten();
        let own: BTreeSet<usize> = own.copied().collect();
        for one in own.into_iter().filter_map(|at| self.entries.get(at)) {
            let Some(before) = groups.number_of(Protocol::Iscsi, one.group) else { continue };
            splits.pairs.push((PortId(before), PortId(one.port)));
            let reaches = |target: &&Target| self.number_of(target, one.group, groups) == Some(before);
            if !leading.iter().any(reaches) && !splits.gone.contains(&PortId(before)) {
                splits.gone.push(PortId(before));
            }
        }
        splits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{
        check::default_target,
        name::VolumeName,
        plan::{Lun, Volume, VolumeOrigin},
        spec,
    };

    fn volume(name: &str) -> VolumeName {
        VolumeName::parse(name).unwrap()
    }

    /// Reached by portal groups 1 and 2; a default target if it has no name.
    fn target(name: Option<&str>, volumes: &[&str]) -> Target {
        let spec = spec::parse("null:1M").unwrap();
        let of = Volume { name: volume(volumes[0]), spec, origin: VolumeOrigin::Configured };
        let mut target = default_target(None, &of, &[1, 2], true);
        if let Some(name) = name {
            (target.name, target.is_default) = (name.to_owned(), false);
        }
        let lun = |(lun, name): (u16, &&str)| Lun { lun, volume: volume(name), read_only: false };
        target.luns = (0..).zip(volumes).map(lun).collect();
        target
    }

    fn leading<'a>(targets: &'a [Target], volume: &str) -> Vec<&'a Target> {
        targets.iter().filter(|target| target.exports_volume(volume)).collect()
    }

    fn groups(state: &StateDir, recorded: bool) -> PortNumbers {
        let mut groups = PortNumbers::load(state).unwrap();
        groups.assign(&[(Protocol::Iscsi, 1), (Protocol::Iscsi, 2), (Protocol::Nvme, 1)], 0).unwrap();
        if recorded {
            groups.save(state).unwrap();
        }
        groups
    }

    fn ports(target_ports: &TargetPortNumbers, targets: &[Target], groups: &PortNumbers) -> Vec<[u16; 2]> {
        let of = |target| [1, 2].map(|group| target_ports.number_of(target, group, groups).unwrap_or(0));
        targets.iter().map(of).collect()
    }

    #[test]
    fn no_two_ports_that_lead_to_one_volume_have_one_number_and_each_keeps_its_own() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let mut given = TargetPortNumbers::load(&state).unwrap();
        let groups = groups(&state, true);
        let mut targets =
            vec![target(Some("iqn.x:a"), &["v"]), target(Some("iqn.x:b"), &["w", "v"]), target(None, &["u"])];
        assert!(given.assign(&targets, &groups).unwrap() && !given.assign(&targets, &groups).unwrap());
        assert_eq!(ports(&given, &targets, &groups), [[4, 5], [6, 7], [1, 2]]);
        given.save(&state).unwrap();
        // Others come before them, and one goes.
        targets.insert(0, target(Some("iqn.x:c"), &["v"]));
        targets.remove(1);
        let mut given = TargetPortNumbers::load(&state).unwrap();
        assert!(given.assign(&targets, &groups).unwrap());
        assert_eq!(ports(&given, &targets, &groups), [[8, 9], [6, 7], [1, 2]]);
        // A new portal group gets none of these.
        let mut more = groups.clone();
        more.assign(&[(Protocol::Nvme, 9)], given.highest()).unwrap();
        assert_eq!(more.number_of(Protocol::Nvme, 9), Some(10));
    }

    /// What was saved for a group's number must neither be forgotten nor name another's port.
    #[test]
    fn what_an_earlier_build_saved_for_a_group_holds_for_all_its_targets_and_no_others() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let groups = groups(&state, true);
        let mut given = TargetPortNumbers::load(&state).unwrap();
        let mut targets =
            vec![target(Some("iqn.x:a"), &["v"]), target(Some("iqn.x:b"), &["w", "v"]), target(None, &["u"])];
        given.assign_durably(&targets, &groups, &state).unwrap();
        let given = TargetPortNumbers::load(&state).unwrap();
        assert_eq!(ports(&given, &targets, &groups), [[4, 5], [6, 7], [1, 2]]);
        let pair = |from, to| (PortId(from), PortId(to));
        let gone = vec![PortId(1), PortId(2)];
        let pairs = vec![pair(1, 4), pair(2, 5), pair(1, 6), pair(2, 7)];
        let both = PortRenumbering { pairs, gone: gone.clone() };
        assert_eq!(given.renumbering_for(&leading(&targets, "v"), &groups), both);
        let second = PortRenumbering { pairs: vec![pair(1, 6), pair(2, 7)], gone };
        assert_eq!(given.renumbering_for(&leading(&targets, "w"), &groups), second);
        assert_eq!(given.renumbering_for(&leading(&targets, "u"), &groups), PortRenumbering::default());
        // Who comes to share a volume keeps his number, and those of before keep theirs.
        let mut given = given;
        let shared = targets[0].luns.clone();
        targets[1].luns.extend(shared);
        targets.insert(0, target(Some("iqn.x:d"), &["v"]));
        assert!(given.assign(&targets, &groups).unwrap());
        assert_eq!(ports(&given, &targets, &groups), [[8, 9], [4, 5], [6, 7], [1, 2]]);
    }

    /// A number that could not be written was served after the next reload, and another's after the next start.
    #[test]
    fn numbers_that_were_not_written_are_not_served() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let groups = groups(&state, true);
        let mut given = TargetPortNumbers::default();
        let targets = vec![target(Some("iqn.x:a"), &["v"])];
        let record = state.path().join(RECORD_NAME);
        std::fs::create_dir_all(record.join("in the way")).unwrap();
        assert!(given.assign_durably(&targets, &groups, &state).is_err());
        assert_eq!(given, TargetPortNumbers::default());
        std::fs::remove_dir_all(&record).unwrap();
        given.assign_durably(&targets, &groups, &state).unwrap();
        let next = TargetPortNumbers::load(&state).unwrap();
        assert_eq!(ports(&next, &targets, &groups), ports(&given, &targets, &groups));
    }

    #[test]
    fn a_record_that_gives_a_port_two_numbers_is_damaged() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        for (target, group, port) in [("a", 1, 4), ("a", 2, 0), ("a", 2, 3), ("b", 1, 3)] {
            let entry =
                |target, group, port| TargetPortRecord { target: format!("iqn.x:{target}"), group, port };
            let entries = vec![entry("a", 1, 3), entry(target, group, port)];
            TargetPortNumbers { entries, ..TargetPortNumbers::default() }.save(&state).unwrap();
            let loaded = TargetPortNumbers::load(&state);
            assert!(matches!(loaded, Err(StateError::Damaged { .. })), "{group}, {port}");
        }
    }
}
