//! Messages between cores about a volume: requests to its home core, view updates to every core,
//! acknowledgements back. All of it is plain data.

use std::sync::Arc;

use crate::backend::{Geometry, ShardId};
use crate::io::{IdSpace, Refusal, Span};
use crate::notice::Notice;
use crate::requester::{Identity, PathAccess, PortId, Requester};
use crate::reservation::Action;
use crate::view::View;

/// The number of a request until its answer; chosen by the requesting shard, unique there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl RequestId {
    /// The request of this number in an identifier space: below 1 << 62.
    pub const fn in_space(space: IdSpace, number: u64) -> RequestId {
        RequestId(space.make_id(number))
    }

    /// The part that sent the request and waits for the answer.
    pub const fn id_space(self) -> IdSpace {
        IdSpace::of_id(self.0)
    }
}

/// Counts the changes of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChangeId(pub u64);

/// Something that only the home core can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeRequest {
    /// A reservation action of a requester.
    Reserve {
        /// Who asks.
        who: Requester,
        /// For what.
        action: Action,
    },
    /// New states of the paths by these ports (one group's).
    SetAccess {
        /// The ports.
        ports: Vec<PortId>,
        /// Their state from now on.
        to: PathAccess,
        /// The requester, if it is a host; it gets no notice.
        by: Option<Arc<Identity>>,
    },
    /// Whether the operator prefers the paths by these ports.
    SetPreferred {
        /// The ports.
        ports: Vec<PortId>,
        /// Whether they are preferred from now on.
        on: bool,
    },
    /// The new geometry, above all the number of blocks. To grow: after the backend has grown;
    /// to shrink: before it shrinks.
    Resize(Geometry),
    /// Write protection by the operator.
    WriteProtect(bool),
    /// Whether the backend takes no writes, for a reason of its own.
    BackingReadOnly(bool),
    /// Software write protection by a host.
    WriteProtectByHost {
        /// The requester; it gets no notice.
        by: Arc<Identity>,
        /// Whether to protect.
        on: bool,
    },
    /// Settings that hosts share (see [`VolumeState::host_settings`](crate::VolumeState::host_settings)).
    HostSettings {
        /// The requester; it gets no notice.
        by: Arc<Identity>,
        /// The bits from now on.
        bits: u32,
    },
    /// A requester prevents removal of the medium, or allows it again.
    PreventRemoval {
        /// Which.
        by: Arc<Identity>,
        /// Whether it prevents.
        on: bool,
    },
    /// Ejects the medium. Refused while a requester prevents it; succeeds if it is ejected already.
    Eject {
        /// The requester; it gets no notice.
        by: Option<Arc<Identity>>,
    },
    /// Loads the medium. Refused while a requester prevents it; succeeds if it is loaded already.
    Load {
        /// The requester; it gets no notice.
        by: Option<Arc<Identity>>,
    },
    /// Stops serving blocks.
    Stop,
    /// Serves blocks again.
    Start,
    /// Logical unit reset: aborts every SCSI task; a SCSI-2 reservation and the prevention of
    /// removal end; persistent reservations stay.
    Reset,
    /// Aborts every SCSI task (CLEAR TASK SET); the other nexuses are notified.
    ClearTasks {
        /// Who asks.
        by: Arc<Identity>,
    },
    /// Waits until all operations of this requester on all cores have ended (ABORT TASK SET of a session
    /// whose tasks are spread).
    AbortTasks {
        /// Whose tasks.
        of: Arc<Identity>,
    },
    /// A nexus has ended: its SCSI-2 reservation and its prevention of removal end.
    NexusLost(Arc<Identity>),
    /// Fences the volume for a sanitize: from the answer on only [`Op::Sanitize`](crate::Op) is let
    /// through, which the asker then submits.
    SanitizeStart {
        /// Who asks: it must have the right to write when its turn has come.
        who: Requester,
    },
    /// The same for a format ([`VolumeRequest::SanitizeEnd`] ends it).
    FormatStart {
        /// Who asks, as for a sanitize.
        who: Requester,
    },
    /// The sanitize that was started ended.
    SanitizeEnd {
        /// Whether every block was made unreadable; else the volume stays closed.
        done: bool,
    },
    /// SCSI's SANITIZE with EXIT FAILURE MODE: opens a volume whose sanitize has failed.
    SanitizeForgive,
    /// Reads of these blocks fail from now on. A [`Gate`](crate::Gate) asks it, and keeps other
    /// writes of them out until it is answered.
    MarkBad {
        /// Who asks: it must have the right to write.
        who: Requester,
        /// Which blocks.
        span: Span,
    },
    /// These blocks have been written: they are bad no more. Asked as [`VolumeRequest::MarkBad`] is, before
    /// the write is answered; if `who` has lost its right to write meanwhile, it is refused, and
    /// what was written stays as unreadable as if it had not been.
    ClearBad {
        /// Who wrote.
        who: Requester,
        /// Which blocks.
        span: Span,
    },
    /// The shard wants its ask of the same number no more, since who asked was aborted: if its turn
    /// has not come, it is answered with [`Refusal::Busy`] and nothing comes of it. A shard sends it
    /// before it acknowledges the change that aborts, so nothing that a reset ends is carried out
    /// behind the reset. It has no answer of its own.
    Withdraw,
    /// The volume goes away: nothing is let through any more.
    Remove,
    /// Changes nothing, and is answered in its turn. A gateway that shows a volume of another one asks it before it
    /// answers from what it was told: every change that the owner has answered before was told by then.
    Refresh,
}

impl VolumeRequest {
    /// In whose name it is asked, if a requester did.
    pub(crate) fn requester(&self) -> Option<&Arc<Identity>> {
        match self {
            VolumeRequest::Reserve { who, .. }
            | VolumeRequest::MarkBad { who, .. }
            | VolumeRequest::ClearBad { who, .. } => Some(&who.identity),
            VolumeRequest::SanitizeStart { who } | VolumeRequest::FormatStart { who } => Some(&who.identity),
            VolumeRequest::SetAccess { by, .. }
            | VolumeRequest::Eject { by }
            | VolumeRequest::Load { by } => by.as_ref(),
            VolumeRequest::WriteProtectByHost { by, .. } | VolumeRequest::HostSettings { by, .. } => Some(by),
            VolumeRequest::PreventRemoval { by, .. } | VolumeRequest::ClearTasks { by } => Some(by),
            VolumeRequest::AbortTasks { of } => Some(of),
            VolumeRequest::NexusLost(who) => Some(who),
            VolumeRequest::Resize(_)
            | VolumeRequest::SetPreferred { .. }
            | VolumeRequest::WriteProtect(_)
            | VolumeRequest::BackingReadOnly(_)
            | VolumeRequest::Stop
            | VolumeRequest::Start => None,
            VolumeRequest::Reset | VolumeRequest::SanitizeEnd { .. } | VolumeRequest::SanitizeForgive => None,
            VolumeRequest::Withdraw | VolumeRequest::Remove | VolumeRequest::Refresh => None,
        }
    }

    /// Whether it may change what outlives power. Where the record's contents are not known, such an ask is
    /// answered when they are, even if it changes nothing.
    pub(crate) fn may_change_record(&self) -> bool {
        match self {
            VolumeRequest::Reserve { action: Action::LegacyReserve | Action::LegacyRelease, .. } => false,
            VolumeRequest::Reserve { .. }
            | VolumeRequest::SetAccess { .. }
            | VolumeRequest::SetPreferred { .. }
            | VolumeRequest::WriteProtect(_) => true,
            VolumeRequest::WriteProtectByHost { .. }
            | VolumeRequest::MarkBad { .. }
            | VolumeRequest::ClearBad { .. } => true,
            VolumeRequest::HostSettings { .. }
            | VolumeRequest::PreventRemoval { .. }
            | VolumeRequest::NexusLost(_) => false,
            VolumeRequest::Eject { .. }
            | VolumeRequest::Load { .. }
            | VolumeRequest::Stop
            | VolumeRequest::Start
            | VolumeRequest::Reset => false,
            VolumeRequest::ClearTasks { .. }
            | VolumeRequest::AbortTasks { .. }
            | VolumeRequest::Resize(_) => false,
            VolumeRequest::SanitizeStart { .. }
            | VolumeRequest::FormatStart { .. }
            | VolumeRequest::SanitizeForgive => true,
            // One that has failed is recorded as it was while it ran.
            VolumeRequest::SanitizeEnd { done } => *done,
            VolumeRequest::BackingReadOnly(_) | VolumeRequest::Withdraw | VolumeRequest::Remove => false,
            VolumeRequest::Refresh => false,
        }
    }

    /// Whether it tells what has happened already, so that it must never be refused for want of a place.
    pub(crate) fn must_be_queued(&self) -> bool {
        match self {
            VolumeRequest::NexusLost(_) | VolumeRequest::SanitizeEnd { .. } | VolumeRequest::Remove => true,
            VolumeRequest::Resize(_) | VolumeRequest::BackingReadOnly(_) => true,
            VolumeRequest::Reserve { .. }
            | VolumeRequest::SetAccess { .. }
            | VolumeRequest::SetPreferred { .. }
            | VolumeRequest::WriteProtect(_) => false,
            VolumeRequest::WriteProtectByHost { .. }
            | VolumeRequest::HostSettings { .. }
            | VolumeRequest::PreventRemoval { .. } => false,
            VolumeRequest::Eject { .. }
            | VolumeRequest::Load { .. }
            | VolumeRequest::Stop
            | VolumeRequest::Start
            | VolumeRequest::Reset => false,
            VolumeRequest::ClearTasks { .. } | VolumeRequest::AbortTasks { .. } => false,
            VolumeRequest::SanitizeStart { .. }
            | VolumeRequest::FormatStart { .. }
            | VolumeRequest::SanitizeForgive => false,
            VolumeRequest::MarkBad { .. } | VolumeRequest::ClearBad { .. } | VolumeRequest::Withdraw => false,
            VolumeRequest::Refresh => false,
        }
    }
}

/// How an ask ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeAnswer {
    /// The shard that asked.
    pub to: ShardId,
    /// Its number for the ask.
    pub id: RequestId,
    /// `Ok`: the change stands on every core, and what it forbids has ended.
    pub result: Result<(), Refusal>,
}

/// A change on its way to every core, the home core's own included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewUpdate {
    /// Which change.
    pub change: ChangeId,
    /// The truth from now on.
    pub view: View,
    /// Whether to acknowledge only when what was admitted under older views has ended.
    pub drain: bool,
    /// Whose tasks end without being carried out.
    pub abort: AbortScope,
    /// Who must hear of what.
    pub notices: Vec<Notice>,
    /// The ask behind it, whose own task is not aborted: the shard and its number.
    pub asked: Option<(ShardId, RequestId)>,
}

impl ViewUpdate {
    /// Whether the tasks of `who` are to be aborted.
    pub fn aborts_tasks_of(&self, who: &Identity) -> bool {
        match &self.abort {
            AbortScope::Nobody => false,
            AbortScope::Initiators => matches!(who, Identity::Initiator { .. }),
            AbortScope::These(these) => these.iter().any(|one| **one == *who),
        }
    }
}

/// Whose tasks a change aborts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbortScope {
    /// Nobody's.
    Nobody,
    /// All SCSI tasks; commands of NVMe controllers go on.
    Initiators,
    /// These nexuses'.
    These(Vec<Arc<Identity>>),
}

/// A shard has adopted a change and, if that was asked, drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Which shard.
    pub from: ShardId,
    /// Which change; earlier ones are acknowledged with it.
    pub change: ChangeId,
}

/// Something that the operator should hear of, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorNotice {
    /// A registration has changed whether reservations survive power loss, for all registrants.
    Persistence {
        /// Who did it.
        by: Arc<Identity>,
        /// From now on.
        persists: bool,
        /// How many registrants there are.
        registrants: usize,
    },
    /// A change could not be fenced in time: the volume is closed until what is stuck has ended.
    Closed,
    /// What was stuck has ended: the volume is open again.
    Opened,
    /// The record that the volume's owner left cannot be read, so that the volume is not served.
    RecordUnreadable,
    /// A sync has failed: what was written since the last good one is in doubt, and nothing more is written until
    /// the volume is opened again.
    SyncFailed,
    /// The flush of the stop has failed: what was written since the last good one may be lost.
    NotFlushed,
    /// What the volume lies on has no space for a write.
    NoSpace,
    /// A thin volume has so much allocated as its threshold says.
    ThinThreshold {
        /// Bytes.
        allocated: u64,
        /// Of so many.
        capacity: u64,
    },
    /// A host wanted more blocks marked bad than are kept.
    BadBlocksFull {
        /// Who.
        by: Arc<Identity>,
    },
    /// The volume lies on other machines, and a path there has been lost, or does not come up.
    PathDown {
        /// Which path, counted from 0 in the order of the volume's URLs; of a stripe, which leg before it.
        path: (Option<usize>, usize),
        /// Why, and what to do, in words.
        why: String,
    },
    /// Such a path is up again.
    PathUp {
        /// As in [`OperatorNotice::PathDown`].
        path: (Option<usize>, usize),
    },
}

/// State to be made durable: write it to a new file, sync it, rename it to `name`, sync the
/// directory, and only then say that it is done. A later one of the same name makes those needless that have not
/// been begun: nobody waits for them any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOp {
    /// Counts the stores of this volume. One that was not heard of is asked for again by the same ticket.
    pub ticket: u64,
    /// The file's name in the state directory.
    pub name: String,
    /// Its contents.
    pub bytes: Vec<u8>,
}
