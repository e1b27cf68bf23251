//! Who takes a group that has no owner, or a lost one: the member with the fewest groups at once, the others one after
//! another, so that they do not race where nothing is wrong. A race is decided by the owner object.

use std::time::Duration;

use buf::Time;

use super::Member;
use crate::ids::{GroupId, InstanceId};

impl<P: Clone> Member<P> {
    /// How long this member lets others go first.
    pub(super) fn claim_delay(&self, now: Time, group: GroupId, lost: Option<InstanceId>) -> Duration {
        let members = self.members.value();
        let mut able: Vec<(bool, usize, InstanceId)> = members
            .joined()
            .filter(|entry| Some(entry.instance) != lost)
            .filter(|entry| entry.instance == self.me || self.link_to(now, entry.instance).is_some())
            .map(|entry| (entry.draining, self.owned(entry.instance), entry.instance))
            .collect();
        able.sort_unstable();
        // The groups of one lost owner go to different members.
        let alike = self.groups.iter().filter(|(_, other)| other.owner.value().owner == lost);
        let ordinal = alike.take_while(|(id, _)| **id != group).count();
        let willing = able.iter().filter(|(draining, ..)| !draining).count();
        if let Some(turned) = able.get_mut(..willing)
            && willing > 0
        {
            turned.rotate_left(ordinal % willing);
        }
        let place = able.iter().position(|(.., instance)| *instance == self.me).unwrap_or(able.len());
        self.timing.stagger * u32::try_from(place).unwrap_or(u32::MAX)
    }
}
