//! Sessions that were lost with commands in work, and for how long a target may keep those commands.
//!
//! Invariant: what a target did not tell is not known; only a login in the same portal group, or time, ends such a session.

use std::net::SocketAddr;
use std::time::Duration;

use buf::Time;

use super::Settings;

/// A session that was lost with commands whose fate nobody knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct LostSession {
    pub(super) address: SocketAddr,
    /// Its target portal group, where the target told it.
    pub(super) group: Option<u16>,
    pub(super) since: Time,
    /// Time2Wait and Time2Retain together: how long the target may keep its tasks.
    pub(super) retained: Duration,
}

impl LostSession {
    /// When it must be over, if no login ends it.
    pub(super) fn fence_deadline(&self, settings: &Settings) -> Time {
        self.since + settings.timeouts.fence.max(self.retained)
    }

    /// Whether a login in this portal group has reinstated it. What the target did not tell is not known: behind
    /// one address there may be several groups (a redirecting portal, a balanced address).
    pub(super) fn is_reinstated_in_group(&self, group: Option<u16>) -> bool {
        self.group.is_some() && self.group == group
    }
}

/// How long a target may keep the tasks of a session that it has lost.
pub(super) fn negotiated_task_retention(params: &iscsi::negotiate::Params) -> Duration {
    Duration::from_secs(u64::from(params.time2wait) + u64::from(params.time2retain))
}

/// The same, as it is asked for.
pub(super) fn requested_task_retention(settings: &Settings) -> Duration {
    let sockets = &settings.negotiation;
    Duration::from_secs(u64::from(sockets.time2wait) + u64::from(sockets.time2retain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_ends_what_was_lost_in_its_own_portal_group_and_not_where_the_group_is_unknown() {
        let address = SocketAddr::from(([127, 0, 0, 1], 3260));
        let lost = |group| LostSession { address, group, since: Time(0), retained: Duration::ZERO };
        assert!(lost(Some(1)).is_reinstated_in_group(Some(1)));
        assert!(!lost(Some(1)).is_reinstated_in_group(Some(2)));
        for (theirs, ours) in [(None, Some(1)), (Some(1), None), (None, None)] {
            assert!(
                !lost(theirs).is_reinstated_in_group(ours),
                "{theirs:?} {ours:?}: by the same address, and all the same"
            );
        }
    }
}
