//! What an instance knows of its group, for the operator.

use group::{GroupId, InstanceId, MemberEntry, Ownership, PathState};
use volume::Uuid;

/// A group of gateways as one instance sees it.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// Who looks.
    pub instance: InstanceId,
    /// All instances that are or were members; none before this one has read them.
    pub members: Vec<MemberEntry>,
    /// The instances to which there is a link.
    pub linked: Vec<InstanceId>,
    /// The ANA groups.
    pub groups: Vec<GroupEntry>,
    /// What this instance has done since it was started.
    pub counters: GroupCounters,
}

/// An ANA group.
#[derive(Clone, Debug)]
pub struct GroupEntry {
    /// Which.
    pub group: GroupId,
    /// Its volumes.
    pub volumes: Vec<Uuid>,
    /// Who owns it, in which term.
    pub ownership: Ownership,
    /// How this gateway reaches it; `None`: that is not known yet.
    pub path: Option<PathState>,
}

/// Counts of one instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounters {
    /// Commands of own hosts that were not executed here at once.
    pub submitted: u64,
    /// Commands sent to owners, each time that they were.
    pub forwarded: u64,
    /// Commands executed here, for other gateways or after they were held.
    pub executed: u64,
    /// Commands of own hosts that were answered with an error of the path.
    pub path_errors: u64,
    /// Groups that this instance has begun to serve.
    pub opened: u64,
    /// Groups that it has ceased to serve in good order.
    pub closed: u64,
}
