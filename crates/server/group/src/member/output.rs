//! What a member wants done.

use std::fmt;
use std::sync::Arc;

use volume::{Notice, PortId, Requester, Uuid};

use crate::codec::Damage;
use crate::ids::{ExecutionId, GroupId, InstanceId, LinkId, RequestId, StoreTicket, Term};
use crate::link::{
    Answer, Command, LinkMessage, LostController, PathError, PathState, ResetAnswer, Snapshot,
};
use crate::member::numbers::{ApplyError, HostBindError, PortError};
use crate::store::{ObjectName, StoreRequest};

/// The record of a volume's owner object as it was read; `Ok(None)`: there is none yet.
pub type SavedRecord = Result<Option<Arc<[u8]>>, Damage>;

/// Something for the world, or for the target of this gateway, to do.
#[derive(Clone, Debug)]
pub enum Output<P> {
    /// Ask the store; the reply goes to [`Member::handle_reply`](crate::Member::handle_reply).
    Store {
        /// Names the request.
        ticket: StoreTicket,
        /// What.
        request: StoreRequest,
    },
    /// Connect to a member, unless there is a link. The world tells of the link, or that it was refused; or nothing.
    Connect {
        /// Which.
        instance: InstanceId,
        /// Where.
        address: Arc<str>,
    },
    /// Close a link. It is not told of again.
    CloseLink(LinkId),
    /// Send a message to another member.
    Send {
        /// By this link.
        link: LinkId,
        /// What.
        message: LinkMessage<P>,
    },
    /// Serve a group from now on: make the owner objects of its volumes from their records.
    Open {
        /// Which.
        group: GroupId,
        /// The term.
        term: Term,
        /// Of each volume its record. A volume whose record is damaged is not served.
        records: Vec<(Uuid, SavedRecord)>,
    },
    /// Begin no more commands of this gateway's own hosts without [`Member::submit`](crate::Member::submit), and tell by
    /// [`Member::handle_quiesced`](crate::Member::handle_quiesced) when those have ended that were begun. Until the group is
    /// [`PathState::Optimized`] again.
    Quiesce {
        /// Which group.
        group: GroupId,
        /// Counts these requests: an answer to an earlier one does not count.
        round: u64,
    },
    /// Serve it no longer: nothing is being executed. Dissolve the owner objects.
    Close(GroupId),
    /// Execute a command; [`Member::handle_executed`](crate::Member::handle_executed) takes its answer.
    Execute {
        /// Names the execution.
        execution: ExecutionId,
        /// The volume.
        volume: Uuid,
        /// Whose command it is.
        who: Requester,
        /// What.
        command: Command<P>,
    },
    /// An [`Output::Execute`] is not wanted any more: it may end early.
    Cancel {
        /// The execution.
        execution: ExecutionId,
        /// Its volume.
        volume: Uuid,
    },
    /// A command of a host of this gateway has ended.
    Answer {
        /// The command.
        id: RequestId,
        /// How.
        result: Result<Answer<P>, PathError>,
    },
    /// Tell hosts how this gateway reaches a group (ALUA and ANA).
    Path {
        /// Which.
        group: GroupId,
        /// How.
        state: PathState,
    },
    /// The state of a volume at its owner, which is another gateway.
    Snapshot {
        /// The volume.
        volume: Uuid,
        /// The owner's term. States of earlier terms do not come behind it.
        term: Term,
        /// Its state.
        snapshot: Snapshot,
    },
    /// Tell hosts what has changed at the owner.
    Notices {
        /// The volume.
        volume: Uuid,
        /// What happened, and who must hear.
        notices: Arc<[Notice]>,
    },
    /// Notices of this group may have been lost: tell hosts whatever they may have missed.
    NoticesLost(GroupId),
    /// A record is durable.
    RecordStored {
        /// The volume.
        volume: Uuid,
        /// The volume's number for the store.
        ticket: u64,
    },
    /// This gateway may give these controller identifiers, each once.
    ControllerIds {
        /// The first.
        first: u16,
        /// How many.
        count: u16,
    },
    /// All controller identifiers are given. New controllers are refused.
    NoControllerIds,
    /// Reset one of this gateway's own controllers, for a host that has lost it;
    /// [`Member::handle_controller_reset`](crate::Member::handle_controller_reset) tells when none of its commands can be
    /// executed any more.
    ResetController {
        /// Names the reset.
        number: u64,
        /// Which.
        controller: LostController,
    },
    /// The answer to [`Member::reset_controller`](crate::Member::reset_controller).
    ControllerReset {
        /// The request.
        id: RequestId,
        /// How it ended.
        answer: ResetAnswer,
    },
    /// The answer to [`Member::allocate_port`](crate::Member::allocate_port).
    Port {
        /// The request.
        id: RequestId,
        /// The port's number.
        result: Result<PortId, PortError>,
    },
    /// The answer to [`Member::bind_host`](crate::Member::bind_host).
    HostBound {
        /// The request.
        id: RequestId,
        /// Whether the host may connect.
        result: Result<(), HostBindError>,
    },
    /// The answer to [`Member::apply`](crate::Member::apply).
    Applied {
        /// The request.
        id: RequestId,
        /// The version that the configuration has become.
        result: Result<u64, ApplyError>,
    },
    /// The configuration has changed. Versions may be skipped.
    Configuration {
        /// Its version.
        version: u64,
        /// Its bytes.
        bytes: Arc<[u8]>,
    },
    /// A drain is over: this gateway owns no group.
    Drained,
    /// This group cannot be handed over now: no member can take it, or commands did not end in time. It is tried
    /// again.
    NotDrained(GroupId),
    /// An object cannot be used. What depends on it is not served; all else is.
    Damaged {
        /// Which.
        object: ObjectName,
        /// Why.
        damage: Damage,
    },
    /// Drop all sessions and connections at once, answer nothing more, and start again as another instance.
    Restart(RestartCause),
}

/// Why an instance must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartCause {
    /// The store has barred it.
    Blocklisted,
    /// Other members have found it lost.
    Expelled,
    /// A group that it served has another owner.
    TermLost(GroupId),
    /// The members object is full.
    NoMemberSpace,
    /// Another gateway takes part under this one's name.
    NameTaken,
    /// It can no longer be known whether a swap was carried out.
    Undecidable,
    /// An object that it cannot do without is damaged.
    Damaged(ObjectName, Damage),
}

impl fmt::Display for RestartCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestartCause::Blocklisted => write!(f, "the store has this instance on its blocklist"),
            RestartCause::Expelled => write!(f, "another member found this instance lost"),
            RestartCause::TermLost(group) => write!(f, "group {group} has another owner"),
            RestartCause::NoMemberSpace => {
                write!(
                    f,
                    "the group keeps {} instances: forget those of gateways that are gone",
                    crate::INSTANCES_MAX
                )
            }
            RestartCause::NameTaken => {
                write!(
                    f,
                    "another gateway of this name, with another state directory, is in the group: rename one"
                )
            }
            RestartCause::Undecidable => {
                write!(f, "too many changes by others followed one of this instance whose outcome is unknown")
            }
            RestartCause::Damaged(object, damage) => write!(f, "the object {object:?} is damaged: {damage}"),
        }
    }
}
