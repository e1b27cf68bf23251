//! Groups and volumes change while the instance runs.
//!
//! Invariant: a volume is executed for only between the [`Output::Open`](super::Output::Open) that names it and the next
//! `Close`. A group that is served and gets other volumes is closed and opened again in the same term.

use std::collections::{BTreeMap, BTreeSet};

use buf::Time;
use volume::Uuid;

use super::{Group, Member, Role};
use crate::ids::GroupId;
use crate::register::Register;
use crate::store::ObjectName;

impl<P: Clone> Member<P> {
    /// The groups with their volumes from now on. A group that is missing has no volumes any more. Commands for a volume
    /// that is new wait until its group is open again.
    pub fn set_groups(&mut self, now: Time, groups: &BTreeMap<GroupId, Vec<Uuid>>) {
        if !self.called(now) {
            return;
        }
        for (id, volumes) in groups {
            if !self.groups.contains_key(id) {
                let mut group = Group::new(*id, volumes);
                group.owner.refresh(&mut self.store);
                self.groups.insert(*id, group);
            }
        }
        for (id, group) in &mut self.groups {
            let wanted: BTreeSet<Uuid> = groups.get(id).into_iter().flatten().copied().collect();
            group.wanted = (!group.records.keys().eq(wanted.iter())).then_some(wanted);
        }
        let named = groups.iter().flat_map(|(id, volumes)| volumes.iter().map(|volume| (*volume, *id)));
        self.group_of = named.collect();
        self.turn(now);
    }

    /// Takes other volumes at once if the group is not open, or closes it.
    pub(super) fn change_volumes(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.wanted.is_some()) else { return };
        match &group.role {
            Role::Following { .. } => {
                group.take_wanted();
            }
            Role::Taking(takeover) if !takeover.has_term() => {
                group.take_wanted();
            }
            Role::Serving if group.hand_over_from <= now => self.reopen(now, id),
            Role::Serving => {
                let at = group.hand_over_from;
                self.wake_at(at);
            }
            // It is open soon.
            Role::Taking(_) | Role::HandingOver(_) => {}
        }
    }
}

impl<P> Group<P> {
    /// Has the wanted volumes from now on; those that it has no longer.
    pub(super) fn take_wanted(&mut self) -> BTreeSet<Uuid> {
        let Some(wanted) = self.wanted.take() else { return BTreeSet::new() };
        let gone = self.records.keys().copied().filter(|volume| !wanted.contains(volume)).collect();
        self.records.retain(|volume, _| wanted.contains(volume));
        for volume in wanted {
            self.records.entry(volume).or_insert_with(|| Register::new(ObjectName::Record(volume)));
        }
        gone
    }
}
