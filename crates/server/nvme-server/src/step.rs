//! Requests of the server to its caller, as values.

use nvme::auth::{DhComputation, FailureExplanation};
use nvme::tls::GeneratedPsk;
use nvme::{Completion, ControllerInstance, Nqn};
use volume::{CommandStep, Refusal, Requester, ShardId, VolumeId};

pub use crate::key::{CommandKey, ComputeId, QueueKey};
use crate::queue_message::QueueMessage;
use crate::spec::HostIdentity;

/// Something for the caller to do.
pub type Step = CommandStep<CommandKey, Completion, ControllerStep>;

/// What is to be done for controllers and queues.
#[derive(Debug)]
pub enum ControllerStep {
    /// Ask every shard, this one too, which controllers it has ([`Server::controllers_here`](crate::Server::local_controllers)), and
    /// give each answer to [`Server::handle_controllers`](crate::Server::handle_shard_controllers). Void once the command has ended.
    ListControllers {
        /// The question's number.
        id: u64,
        /// Which controllers are asked for.
        of: ControllerListQuery,
    },
    /// Ask every shard, this one too, to reset this controller ([`Server::reset_controller`](crate::Server::reset_controller)).
    /// Void once the command has ended.
    ResetController {
        /// The question's number.
        id: u64,
        /// Which.
        request: ControllerResetRequest,
    },
    /// Carry this answer to the shard that asked; [`Server::handle_reset_answer`](crate::Server::handle_reset_answer)
    /// follows there.
    AnswerReset {
        /// Where.
        to: ShardId,
        /// The question's number.
        id: u64,
        /// The answer.
        answer: ControllerResetAnswer,
    },
    /// Format this volume: close it, make every block zero, open it again. It goes on whatever becomes of the command;
    /// [`Server::handle_format_end`](crate::Server::handle_format_end) follows.
    FormatVolume {
        /// The command's number.
        id: u64,
        /// Which.
        volume: VolumeId,
        /// For whom: what it may do was checked.
        who: Requester,
    },
    /// Carry this to a shard, perhaps this one; `Server::handle_queue_message` follows there. Messages for one
    /// shard stay in order.
    QueueMessage {
        /// Where.
        to: ShardId,
        /// What.
        message: QueueMessage,
    },
    /// Send what was queued for this queue, then close its link; `Server::close_queue` follows.
    EndQueue {
        /// Which.
        queue: QueueKey,
    },
    /// The host has proved to this queue who it is; again and again if it does so again.
    HostAuthenticated {
        /// Which.
        queue: QueueKey,
    },
    /// A host's reply on this admin queue has generated a PSK for TLS. It holds from now on: the host may come with it
    /// as soon as it has its answer. Void if [`ControllerStep::AuthenticationFailed`] follows.
    PskGenerated {
        /// Which queue.
        queue: QueueKey,
        /// Which PSK.
        psk: Box<GeneratedPsk>,
    },
    /// The host has failed to prove to this queue who it is, or has gone when something had been computed for
    /// it, and the queue ends.
    AuthenticationFailed {
        /// Which.
        queue: QueueKey,
    },
    /// Compute this where no data waits for it; `Server::computed` follows, or `Server::not_computed`.
    Compute {
        /// The queue that it is for.
        queue: QueueKey,
        /// Its name.
        id: ComputeId,
        /// What.
        work: DhComputation,
    },
    /// What was to be computed is of no use any more: its queue has closed.
    CancelCompute {
        /// Its name.
        id: ComputeId,
    },
    /// The controller is no more, with all its queues: its number may be given again.
    ControllerGone {
        /// Its number.
        cntlid: u16,
        /// What ended it.
        why: ControllerEnd,
    },
}

/// Which controllers are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerListQuery {
    /// Those of this subsystem,
    pub subsystem: Nqn,
    /// and of them those that this namespace is attached to.
    pub nsid: Option<u32>,
}

/// Which controller a host wants to be reset (Cross-Controller Reset).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerResetRequest {
    /// Which life of which controller.
    pub instance: ControllerInstance,
    /// The subsystem of the controller that was asked,
    pub subsystem: Nqn,
    /// and its host: only its own controllers there are reset.
    pub host: HostIdentity,
}

/// What a shard answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerResetAnswer {
    /// Nothing of this controller can run here any more, or ever did.
    Gone,
    /// It is another host's, or of another subsystem.
    NotPermitted,
    /// Too many wait for controllers of this shard to end.
    Busy,
    /// It is, or was, at another gateway, and nobody knows whether commands of it are executed still.
    Unknown,
}

/// Why a volume was not formatted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatFailure {
    /// It was not begun, or its end is not known everywhere.
    Refused(Refusal),
    /// It was begun and has failed: the volume stays closed until another one, or a sanitize, has ended well.
    Failed,
}

/// What ended a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerEnd {
    /// The connection of its admin queue was closed.
    Closed,
    /// Its host was silent for longer than the keep-alive timeout.
    Silent,
    /// The connection of an I/O queue was lost, and its host neither reset nor shut down.
    QueueLost,
    /// The host did not authenticate.
    Unauthenticated,
    /// The host requested authentication of the controller, for which no key is configured.
    NoControllerKey,
    /// The host did not accept the controller's response, or gave up for another reason.
    RefusedByHost(FailureExplanation),
    /// Too much waits to be computed for hosts that have still to authenticate.
    Overloaded,
    /// Its host had it reset by another controller.
    CrossControllerReset,
    /// We ended it: its subsystem, its host's leave or its port is gone.
    Removed,
}

impl ControllerEnd {
    /// Whether authentication failed.
    pub fn is_unauthenticated(self) -> bool {
        match self {
            ControllerEnd::Unauthenticated
            | ControllerEnd::NoControllerKey
            | ControllerEnd::RefusedByHost(_) => true,
            ControllerEnd::Closed
            | ControllerEnd::Silent
            | ControllerEnd::QueueLost
            | ControllerEnd::Overloaded
            | ControllerEnd::CrossControllerReset
            | ControllerEnd::Removed => false,
        }
    }
}

/// In words.
impl core::fmt::Display for ControllerEnd {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            ControllerEnd::Closed => "its host closed the connection",
            ControllerEnd::Silent => "its host was silent for longer than the keep-alive timeout",
            ControllerEnd::QueueLost => "the connection of an I/O queue was lost",
            ControllerEnd::Unauthenticated => "its host did not authenticate",
            ControllerEnd::NoControllerKey => {
                "its host requested authentication of the controller, for which no key is configured"
            }
            ControllerEnd::RefusedByHost(why) => {
                return write!(f, "its host refused the controller: {why}");
            }
            ControllerEnd::Overloaded => {
                "too much waits to be computed for hosts that have still to authenticate"
            }
            ControllerEnd::CrossControllerReset => "its host had it reset by another controller",
            ControllerEnd::Removed => "it may not be there any more, as things are configured",
        })
    }
}
