//! The contract of a path to a remote volume, over either protocol.
//!
//! Invariants:
//! - Every operation that a path accepted ends exactly once, by [`PathEvent::Done`] with its memory.
//! - [`PathEvent::Down`] follows the end of all operations in flight, at most [`Path::poll_timeout`]'s time after
//!   the loss.
//! - After [`PathEvent::Fenced`] nothing that was submitted before can reach the medium any more.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Payload};
use endpoint::OutboundSockets;
use nvme::{ControllerInstance, HostId, Nqn};
use volume::reservation::{Action, Key, ReservationType};
use volume::{Failure, Geometry, Identity, IoId, Op, Outcome, PathAccess, Uuid};

use crate::raw_command::{RawCommand, RawCompletion};

/// Most paths of a volume: a bit of a `u32` each.
pub const PATHS_MAX: usize = 32;

/// Which protocol a path speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// RFC 7143.
    Iscsi,
    /// NVMe/TCP.
    Nvme,
}

/// What a path found at its other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// The common name of the volume: paths are of one volume if these agree, and by nothing else.
    /// `None`: the target gives none, so the path stands alone.
    pub uuid: Option<Uuid>,
    /// What its blocks are like; `max_io` is what one operation of the path carries. `None`: the path is in a
    /// state in which the target does not tell, so nothing is known, and nothing may be submitted.
    pub geometry: Option<Geometry>,
    /// Whether the target lets us write.
    pub read_only: bool,
    /// The state of the path.
    pub access: PathAccess,
    /// Vendor, product and revision, or model and firmware, in the target's words.
    pub product: String,
    /// Serial number.
    pub serial: String,
    /// Commands that may be in work at once.
    pub depth: u32,
    /// Everything else worth telling: negotiated parameters, features, limits; name and value, in the
    /// words of the protocol's standard.
    pub terms: Vec<(String, String)>,
}

/// What became of an operation that did not succeed.
#[derive(Debug)]
pub enum IoError {
    /// The target refused it, or tried and failed: final, on whichever path.
    Failed(Failure),
    /// It has not been done and never will be, by this path: it may be submitted again, here or on
    /// another path, at the earliest after this time.
    NotDone(Duration),
    /// It may have been done, or be done later still, until the path is fenced.
    InDoubt,
}

/// What is asked about a volume's reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationOp {
    /// A change. What the protocol cannot say ends as [`volume::Refusal::Unsupported`].
    Change(Action),
    /// Who is registered, and what is held.
    Report,
}

/// A registration, as the target reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Whose.
    pub identity: Identity,
    /// Its key.
    pub key: Key,
    /// Whether it holds the reservation.
    pub holds: bool,
    /// Whether it is ours, by this path.
    pub ours: bool,
    /// Whether it is this host's, by whatever path; `None`: the target does not say so.
    pub kin: Option<bool>,
}

/// The reservations of a volume, as the target reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservations {
    /// Counts changes of registrations.
    pub generation: u32,
    /// Whether they survive power loss; `None`: the target does not say.
    pub persists: Option<bool>,
    /// What is held, if anything.
    pub held: Option<ReservationType>,
    /// Who is registered.
    pub registrations: Vec<Registration>,
    /// Whether the target has said whose each registration is; if not, none is marked as ours.
    pub named: bool,
    /// Whether that are all: what is missing in a report that is not whole may stand all the same.
    pub whole: bool,
}

/// Why a path is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// No connection: what the system said.
    Unreachable(buf::Errno),
    /// The target refused us, in its words and with our advice: trying again changes nothing until
    /// somebody changes something.
    Refused(String),
    /// There is no such target, unit or namespace, or not for us; else as `Refused`.
    Absent(String),
    /// The secrets do not match, or are missing; says whose.
    Unproven(String),
    /// The connection ended amid authentication: a refusal that did not reach us, or a mere loss. Tried again as
    /// after a loss.
    CutShort(String),
    /// There is a connection, but no answer in time. Tried again as after a loss.
    Silent(String),
    /// The connection was lost, or the target did what the protocol forbids.
    Lost(String),
    /// The target ended it in good order, or we did.
    Ended,
}

/// A controller that a path has lost, and that another one of its subsystem may reset for its host (Cross-Controller
/// Reset; NVMe Base 2.3 §8.3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostController {
    /// Its subsystem.
    pub subsystem: Nqn,
    /// Its host,
    pub host: Nqn,
    /// and that one's identifier.
    pub host_id: HostId,
    /// Which life of which controller it is.
    pub instance: ControllerInstance,
}

/// What a path tells.
#[derive(Debug)]
pub enum PathEvent {
    /// Operations may be submitted.
    Up(Arc<VolumeInfo>),
    /// Something of it has changed: size, access, protection.
    Changed(Arc<VolumeInfo>),
    /// Others have changed the volume's reservations, to our loss perhaps: a report tells what stands.
    ReservationsChanged,
    /// An operation has ended.
    Done {
        /// Its name.
        id: IoId,
        /// How.
        how: Result<Outcome, IoError>,
        /// Its memory.
        payload: Payload,
    },
    /// A [`ReservationOp`] has ended: with the report if one was asked for.
    ReservationReply {
        /// Its name.
        id: IoId,
        /// How.
        how: Result<Option<Reservations>, IoError>,
    },
    /// A raw command has ended.
    RawDone(RawCompletion),
    /// A command of an earlier connection can reach the medium no more (see [`Path::fence`]).
    Fenced,
    /// What [`Path::reset_controller`] began has ended.
    ControllerReset {
        /// Which.
        controller: LostController,
        /// Whether the controller is reset, so that nothing of it can reach the medium any more. If not, nothing is known.
        is_reset: bool,
    },
    /// There is no connection any more. The path stays down until [`Path::connect`].
    Down(DownReason),
}

/// One way to a remote volume.
pub trait Path: OutboundSockets {
    /// Which protocol it speaks.
    fn protocol(&self) -> Protocol;
    /// Connects, or connects again. [`PathEvent::Up`] or [`PathEvent::Down`] follows in bounded time. To be
    /// called while the path is down.
    fn connect(&mut self, cx: &mut Cx<'_>);
    /// Starts an operation ([`Op::Read`], `Write`, `Flush`, `WriteZeroes`, `Unmap`, `Compare`,
    /// `CompareAndWrite`, `Verify`, `Prefetch`, `Extents`; what the target cannot do ends as
    /// [`volume::Refusal::Unsupported`]); gives it back if the window is full or the path not up.
    fn submit(&mut self, cx: &mut Cx<'_>, id: IoId, op: Op, payload: Payload) -> Result<(), (Op, Payload)>;
    /// Asks something about reservations; it ends by [`PathEvent::ReservationReply`]. Gives it back as
    /// [`Path::submit`] does.
    fn submit_reservation_op(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        request: ReservationOp,
    ) -> Result<(), ReservationOp>;
    /// Sends a raw command; it ends by [`PathEvent::RawDone`]. Gives it back as [`Path::submit`] does.
    fn submit_raw(&mut self, cx: &mut Cx<'_>, id: IoId, command: RawCommand) -> Result<(), RawCommand>;
    /// Asks that an operation, or a raw command, end early. It still ends by [`PathEvent::Done`] or
    /// [`PathEvent::RawDone`].
    fn cancel(&mut self, cx: &mut Cx<'_>, id: IoId);
    /// After operations whose fate is unknown: makes sure that none of them can land any more (the
    /// session reinstated, the controller reset, or the time over after which the target must have
    /// given up), then says [`PathEvent::Fenced`]; in bounded time, whatever the target does. To be called
    /// whether the path is up or down, and not again before `Fenced`; [`Path::connect`] may be called
    /// meanwhile. It covers what was lost before the call.
    fn fence(&mut self, cx: &mut Cx<'_>);
    /// Where its target is reached, and by which name, if a login elsewhere in the same portal group would end
    /// what this path has lost.
    fn target_portals(&self) -> Option<(&str, &[SocketAddr])>;
    /// Portals by which other paths reach the same target: what this path loses is ended by them where its own
    /// are out of reach.
    fn set_fence_portals(&mut self, portals: Vec<SocketAddr>);
    /// Controllers that this path has lost, whose commands may land still, and that may be reset by another path; at most
    /// a few.
    fn lost_controllers(&self) -> Vec<LostController> {
        Vec::new()
    }
    /// Has the target reset a controller that a path, this one or another, has lost;
    /// [`PathEvent::ControllerReset`] follows, at the latest before [`PathEvent::Down`]. False: this path cannot, or has
    /// tried already since it came up.
    fn reset_controller(&mut self, _cx: &mut Cx<'_>, _controller: &LostController) -> bool {
        false
    }
    /// A controller is reset: if it is one that this path has lost, that is not waited for any more.
    fn handle_controller_reset(&mut self, _cx: &mut Cx<'_>, _controller: &LostController) {}
    /// How long after the loss of its connection commands of this path may still be carried out, as far as is
    /// known now: for who goes on after this process has died, and can fence nothing.
    fn lost_command_lifetime(&self) -> Duration;
    /// No path serves now: if this one did not, it looks at once whether it does by now, where nothing else
    /// would tell it. [`PathEvent::Changed`] follows if it does.
    fn recheck_access(&mut self);
    /// Ends the connection: politely within `grace`, then at once. [`PathEvent::Down`] follows.
    fn disconnect(&mut self, cx: &mut Cx<'_>, grace: Duration);
    /// What happened, oldest first.
    #[must_use]
    fn poll_event(&mut self) -> Option<PathEvent>;
}
