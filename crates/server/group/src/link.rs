//! Commands of hosts, and the messages between members.
//!
//! Invariants that the world keeps: a link delivers messages in order, each at most once, until it is lost; then none.
//! Between two instances there is one link at a time; a new one replaces the old one at each end when that end learns of it.

use std::sync::Arc;
use std::time::Duration;

use volume::{Failure, Geometry, Notice, Op, Outcome, PathAccess, Refusal, Requester, Uuid, VolumeRequest};

use crate::ids::{GroupId, InstanceId, Term};

/// What a command brings, or a read gives, as it crosses between gateways. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPayload(pub Arc<[u8]>);

/// A volume's state at its owner, as the gateways that do not own it show it to their hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What its blocks are like.
    pub geometry: Geometry,
    /// Its record: reservations, protection and what else outlives the owner (see `volume::VolumeOwner`).
    pub record: Arc<[u8]>,
}

/// What a host asks of a volume. `P` is the payload: memory in production, a number in simulation.
#[derive(Clone, Debug)]
pub enum Command<P> {
    /// An operation on blocks, with what is to be written or compared.
    Io {
        /// Which.
        op: Op,
        /// Its payload, if it brings one.
        payload: Option<P>,
    },
    /// A request that the volume's owner object decides: reservations, resets, path states.
    Change(VolumeRequest),
}

impl<P> Command<P> {
    /// Whether it may be carried out again if it is not known whether it was: it changes nothing.
    pub fn is_repeatable(&self) -> bool {
        match self {
            Command::Io { op, .. } => !op.is_write(),
            Command::Change(request) => *request == VolumeRequest::Refresh,
        }
    }
}

/// How a command ended at the owner.
#[derive(Clone, Debug)]
pub enum Answer<P> {
    /// Of [`Command::Io`].
    Io {
        /// How it ended.
        result: Result<Outcome, Failure>,
        /// What was read.
        payload: Option<P>,
    },
    /// Of [`Command::Change`].
    Change(Result<(), Refusal>),
}

/// Why a host's command has no answer of the volume. All are reported as errors of the path, so that the host's
/// multipath driver decides (SCSI: NOT READY, ASYMMETRIC ACCESS STATE TRANSITION; NVMe: path related status 3h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// The group had no owner within the time limit. The command was not carried out.
    NoOwner,
    /// Too many commands wait. It was not carried out.
    Busy,
    /// The link to the owner was lost. The command was carried out once or not at all, and can no longer be.
    InDoubt,
}

/// A controller of an NVMe host that its host has lost, and wants to be reset (Cross-Controller Reset, NVMe Base 2.3
/// §8.3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostController {
    /// CNTLID.
    pub cntlid: u16,
    /// CIU, the Controller Instance Uniquifier, and
    pub uniquifier: u8,
    /// CIRN, the Controller Instance Random Number: which life of it.
    pub random_number: u64,
    /// The subsystem that it must be of,
    pub subsystem: Arc<str>,
    /// and the host: its name,
    pub host: Arc<str>,
    /// and its identifier.
    pub host_id: [u8; 16],
}

/// How a reset of a controller has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetAnswer {
    /// None of its commands can be executed any more.
    Gone,
    /// It is another host's, or of another subsystem. It was not reset.
    NotPermitted,
    /// Nobody knows whether commands of it are executed still.
    Unknown,
}

/// What is sent to another member.
#[derive(Clone, Debug)]
pub enum LinkMessage<P> {
    /// The sender runs.
    KeepAlive {
        /// For how long it has heard nothing of the store.
        store_silent: Duration,
    },
    /// Nothing that came by earlier links from the receiver is executed any more, and nothing of it will be.
    Settled,
    /// A command for the owner of this term.
    Forward {
        /// The sender's number; unique per sender.
        number: u64,
        /// The group.
        group: GroupId,
        /// The term in which it may be executed, and in no other.
        term: Term,
        /// The volume.
        volume: Uuid,
        /// Whose command it is.
        who: Requester,
        /// What.
        command: Command<P>,
    },
    /// The host does not want a forward any more. It is answered all the same: as ended early, or as it has ended.
    Cancel {
        /// Its number.
        number: u64,
    },
    /// A forward was executed.
    Answer {
        /// Its number.
        number: u64,
        /// How it ended.
        answer: Answer<P>,
    },
    /// A forward was not executed, and will not be: the receiver of it does not own the group in that term.
    NotOwner {
        /// Its number.
        number: u64,
    },
    /// A forward was not executed, and will not be: the receiver of it executes too many already. The host is told to
    /// try another path.
    Busy {
        /// Its number.
        number: u64,
    },
    /// Changes of a volume that hosts must hear of.
    Notices {
        /// The group.
        group: GroupId,
        /// Its term.
        term: Term,
        /// Counts the notices of the term, from 1.
        sequence: u64,
        /// The volume.
        volume: Uuid,
        /// What happened, and who must hear.
        notices: Arc<[Notice]>,
    },
    /// The state of a volume that the sender serves. Sent when it changes, before the notices of the change, and when a
    /// link begins.
    Snapshot {
        /// The group.
        group: GroupId,
        /// Its term.
        term: Term,
        /// The volume.
        volume: Uuid,
        /// Its state.
        snapshot: Snapshot,
    },
    /// A host of the sender wants this controller of the receiver to be reset.
    ResetController {
        /// The sender's number; unique per sender. The same by a later link asks again.
        number: u64,
        /// Which.
        controller: LostController,
    },
    /// The answer.
    ControllerReset {
        /// The number.
        number: u64,
        /// How it has ended.
        answer: ResetAnswer,
    },
    /// Tell when nothing of this instance, which was expelled, is executed any more.
    SettleInstance {
        /// Which.
        instance: InstanceId,
    },
    /// The sender executes nothing of this instance any more, and never will.
    InstanceSettled {
        /// Which.
        instance: InstanceId,
    },
    /// The sender serves the group, so nothing of an earlier term is carried out any more. Sent when it begins to serve,
    /// and when a link begins.
    NoticesSoFar {
        /// The group.
        group: GroupId,
        /// Its term.
        term: Term,
        /// The number of the last notice in this term.
        sequence: u64,
    },
}

/// How a gateway reaches the volumes of a group, as its hosts are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// This gateway owns the group.
    Optimized,
    /// Another one does, and this one forwards.
    NonOptimized,
    /// The owner changes. Commands wait.
    Transition,
}

impl From<PathState> for PathAccess {
    fn from(state: PathState) -> PathAccess {
        match state {
            PathState::Optimized => PathAccess::Optimized,
            PathState::NonOptimized => PathAccess::NonOptimized,
            PathState::Transition => PathAccess::Transition,
        }
    }
}
