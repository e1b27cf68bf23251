//! ANA groups as a controller reports them (NVMe Base §8.1): the volume's path states by its port.
//!
//! A volume is in one access group. One command changes a group, volume by volume. While its volumes differ,
//! a group is reported as usable only if all of them are.

use nvme::log::ana::{AnaGroup, AnaState};
use volume::{PathAccess, PortId, VolumeId};

use crate::context::ExecContext;
use crate::spec::NamespaceEntry;

/// How long the state Change may last, in seconds (ANATT): longer than commands are held for a group without an owner
/// (20 s). Linux resets a controller that shows it for longer.
pub(crate) const TRANSITION_SECONDS: u8 = 30;

/// The groups that a host sees, with the counts of their changes.
#[derive(Debug, Default)]
pub(crate) struct AnaGroups {
    pub(crate) changes: u64,
    pub(crate) groups: Vec<AnaGroup>,
}

impl AnaGroups {
    /// Takes the groups of now over. Whether anything has changed.
    pub(crate) fn update(&mut self, states: Vec<AnaGroup>) -> bool {
        let mut changed = self.groups.len() != states.len();
        let old = std::mem::take(&mut self.groups);
        let next = self.changes + 1;
        self.groups = states;
        for group in &mut self.groups {
            let known = old.iter().find(|known| known.id == group.id);
            let same = known.filter(|known| known.state == group.state && known.nsids == group.nsids);
            group.changes = same.map_or(next, |known| known.changes);
            changed |= same.is_none();
        }
        if changed {
            self.changes = next;
        }
        changed
    }

    /// The log page.
    pub(crate) fn log_page(&self, groups_only: bool) -> Vec<u8> {
        nvme::log::ana::encode_page(self.changes, &self.groups, groups_only)
    }
}

/// The state as NVMe names it.
fn ana_state(access: PathAccess) -> AnaState {
    match access {
        PathAccess::Optimized => AnaState::Optimized,
        PathAccess::NonOptimized => AnaState::NonOptimized,
        PathAccess::Inaccessible | PathAccess::Standby => AnaState::Inaccessible,
        PathAccess::PersistentLoss => AnaState::PersistentLoss,
        PathAccess::Transition => AnaState::Change,
    }
}

/// What a group shows of two volumes that differ.
fn merged_state(one: AnaState, other: AnaState) -> AnaState {
    let serves = |state| matches!(state, AnaState::Optimized | AnaState::NonOptimized);
    match (one, other) {
        _ if one == other => one,
        (AnaState::Change, _) | (_, AnaState::Change) => AnaState::Change,
        _ if serves(one) && serves(other) => AnaState::NonOptimized,
        _ => AnaState::Inaccessible,
    }
}

/// The groups of these namespaces as they are seen by a port, ascending.
pub(super) fn ana_groups(
    context: &ExecContext,
    namespaces: &[NamespaceEntry],
    port: PortId,
) -> Vec<AnaGroup> {
    let mut groups: Vec<AnaGroup> = Vec::new();
    for entry in namespaces {
        let state = match context.volumes.get(entry.volume) {
            Some(volume) => ana_state(volume.view.shown_path_access(port)),
            // The path is not to blame, nor are others of its group.
            None if entry.volume == VolumeId::UNAVAILABLE => AnaState::Optimized,
            None => continue,
        };
        match groups.binary_search_by_key(&entry.ana_group, |group| group.id) {
            Ok(at) => {
                if let Some(group) = groups.get_mut(at) {
                    group.state = merged_state(group.state, state);
                    group.nsids.push(entry.nsid);
                }
            }
            Err(at) => {
                let group = AnaGroup { id: entry.ana_group, changes: 0, state, nsids: vec![entry.nsid] };
                groups.insert(at, group);
            }
        }
    }
    groups
}
