//! A path over iSCSI: one session with a target, through which one of its logical units is read and written.
//!
//! The path dials, logs in, follows redirections, identifies the logical unit, and then sends operations as
//! commands, directly from and into the caller's memory. The target's data is not trusted until it is
//! checked; every wait is bounded ([`Timeouts`]).
//!
//! Every login is a reinstatement: with the same ISID and a TSIH of 0 it ends the previous session, and the
//! Login Response is sent after that session's tasks have ended (RFC 7143 §6.3.5). So a login to the same
//! target portal group is also a fence, through any portal of the group. If the path's own portals are out of
//! reach, it uses those of other paths to the same target ([`Path::set_fence_portals`]), and logs out again. If none
//! works, it waits ([`Timeouts::fence`]).

mod connecting;
mod discovery;
mod disposition;
mod escalation;
mod login;
mod lost_session;
mod operations;
mod path_probe;
mod plan;
mod probe;
mod raw_commands;
mod reservation;
mod sessions;
mod settings;
mod tracing;
mod unit_facts;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Errno, Payload, Time};
use endpoint::{CloseMode, DialId, Dialled, LinkId, OutboundSockets};
use scsi::lun::{Lun, LunAddress};
use stream::{Received, RecvOp, SendOp, Slab, Tag};
use volume::{IoId, Op};

use crate::{DownReason, Path, PathEvent, Protocol, RawCommand, ReservationOp, Trace, VolumeInfo};
use connecting::{LoginAttempt, PathPhase};
pub use discovery::{Discovery, DiscoverySettings};
use disposition::FactsRefresh;
use lost_session::LostSession;
use operations::Operations;
use probe::Probe;
use raw_commands::{PATH_RAW_COMMANDS_MAX, PendingRawCommand};
use reservation::{RESERVATION_REQUESTS_MAX, ReservationRequest};
use sessions::{Sessions, SocketRequests, by_sessions};
pub use settings::{PATH_COMMANDS_MAX, Settings, Timeouts};
use tracing::PartialLoginTexts;
use unit_facts::{UnitCapabilities, UnitFacts};

/// Whose a request of the session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestOwner {
    Nobody,
    /// An operation's command.
    Operation(Tag),
    /// A question of the probe.
    Probe,
    /// A request's command.
    ReservationOp(Tag),
    /// A raw command.
    Raw(Tag),
    /// ABORT TASK for an operation.
    Abort(Tag),
    /// ABORT TASK for a raw command.
    AbortRaw(Tag),
    /// LOGICAL UNIT RESET.
    Reset,
}

/// Whose the session's requests are.
#[derive(Debug, Default)]
struct RequestOwners {
    /// By the request's slot.
    slots: Vec<(Tag, RequestOwner)>,
    /// Those whose slot was given away before their end was drained: at most one per command.
    ended: Vec<(Tag, RequestOwner)>,
}

impl RequestOwners {
    /// Notes whose a request is. The session may give a request the slot of one that has ended, but whose
    /// end is still to be drained.
    fn insert_owner(&mut self, tag: Tag, owner: RequestOwner) {
        if self.slots.len() <= tag.slot() {
            self.slots.resize(tag.slot() + 1, (tag, RequestOwner::Nobody));
        }
        let Some(slot) = self.slots.get_mut(tag.slot()) else { return };
        let before = std::mem::replace(slot, (tag, owner));
        if before.1 != RequestOwner::Nobody {
            self.ended.push(before);
        }
    }

    /// Takes the note.
    fn take_owner(&mut self, tag: Tag) -> RequestOwner {
        if let Some((at, owner)) = self.slots.get_mut(tag.slot())
            && *at == tag
        {
            return std::mem::replace(owner, RequestOwner::Nobody);
        }
        let ended = self.ended.iter().position(|(at, _)| *at == tag);
        ended.map_or(RequestOwner::Nobody, |at| self.ended.swap_remove(at).1)
    }
}

/// See the module.
#[derive(Debug)]
pub struct IscsiPath {
    settings: Settings,
    lun: [u8; 8],
    sockets: SocketRequests,
    sessions: Sessions,
    phase: PathPhase,
    attempt: LoginAttempt,
    /// Connections that are asked for: the leading one, or one more.
    dial: Option<DialId>,
    more: Option<DialId>,
    /// Links are as many as they will be.
    links_complete: bool,
    next_cid: u16,
    /// The owner wants the path up.
    wanted: bool,
    /// It said so while the session before was ending.
    wanted_next: bool,
    /// The owner has not been told yet that the path is down.
    owes_down: bool,
    /// Sessions that were lost with commands whose fate nobody knows.
    lost: Vec<LostSession>,
    /// Time2Wait and Time2Retain of the last session; before the first, those that are asked for.
    retained: Duration,
    /// Portals by which others reach the same target: where a fence goes when ours are out of reach.
    elsewhere: Vec<SocketAddr>,
    /// The owner waits for their end: at the latest then.
    fencing: Option<Time>,
    /// The session that serves has left a command's fate open.
    unknown: bool,
    operations: Operations,
    requests: Slab<ReservationRequest>,
    raw_commands: Slab<PendingRawCommand>,
    owners: RequestOwners,
    /// A logical unit reset is under way, since then.
    resetting: Option<Time>,
    probe: Option<Probe>,
    /// The next one does not begin before this time.
    next_probe: Option<Time>,
    /// What the logical unit is, once known.
    facts: Option<UnitFacts>,
    /// What it can do, once that is known.
    can: Option<UnitCapabilities>,
    info: Option<Arc<VolumeInfo>>,
    to_refresh: FactsRefresh,
    /// When a path that does not serve is looked at again.
    look_again: Option<Time>,
    look_after: Duration,
    events: VecDeque<PathEvent>,
    trace: Trace,
    texts: PartialLoginTexts,
    /// The session may have something to tell, or to do.
    touched: bool,
    /// A batch was made, which can end a request too.
    stirred: bool,
}

impl IscsiPath {
    /// A path that is down.
    ///
    /// # Errors
    /// What cannot be in the settings.
    pub fn new(settings: Settings) -> Result<Self, &'static str> {
        if settings.portals.is_empty() {
            return Err("a path needs at least one portal address");
        }
        let lun = Lun::new(settings.lun).ok_or("a logical unit number is below 2^24")?;
        let (attempt, operations) =
            (LoginAttempt::default(), Operations::new(usize::from(settings.commands_max())));
        Ok(IscsiPath {
            lun: LunAddress::Unit(lun).encode(),
            sockets: SocketRequests::new(settings.source),
            sessions: Sessions::default(),
            phase: PathPhase::Down,
            attempt,
            dial: None,
            more: None,
            links_complete: false,
            next_cid: 0,
            wanted: false,
            wanted_next: false,
            owes_down: false,
            lost: Vec::new(),
            retained: lost_session::requested_task_retention(&settings),
            elsewhere: Vec::new(),
            fencing: None,
            unknown: false,
            operations,
            requests: Slab::new(RESERVATION_REQUESTS_MAX),
            raw_commands: Slab::new(PATH_RAW_COMMANDS_MAX),
            owners: RequestOwners::default(),
            resetting: None,
            probe: None,
            next_probe: None,
            facts: None,
            can: None,
            info: None,
            to_refresh: FactsRefresh::Nothing,
            look_again: None,
            look_after: path_probe::ACCESS_RECHECK_DELAY,
            events: VecDeque::new(),
            trace: Trace::disabled(),
            texts: PartialLoginTexts::default(),
            touched: false,
            stirred: false,
            settings,
        })
    }

    /// What is said and heard while the path comes up: dials, every key of a login, the commands after it.
    /// Off unless turned on; logins are told that begin after that.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }

    fn is_up(&self) -> bool {
        matches!(self.phase, PathPhase::Up)
    }
}

impl Path for IscsiPath {
    fn protocol(&self) -> Protocol {
        Protocol::Iscsi
    }

    fn connect(&mut self, cx: &mut Cx<'_>) {
        self.start_connect(cx);
    }

    fn submit(&mut self, cx: &mut Cx<'_>, id: IoId, op: Op, payload: Payload) -> Result<(), (Op, Payload)> {
        self.start_operation(cx, id, op, payload)
    }

    fn submit_reservation_op(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        request: ReservationOp,
    ) -> Result<(), ReservationOp> {
        self.start_reservation_op(cx, id, request)
    }

    fn submit_raw(&mut self, cx: &mut Cx<'_>, id: IoId, command: RawCommand) -> Result<(), RawCommand> {
        self.start_raw_command(cx, id, command)
    }

    fn cancel(&mut self, cx: &mut Cx<'_>, id: IoId) {
        self.cancel_operation(cx, id);
        self.cancel_raw_command(cx, id);
    }

    fn fence(&mut self, cx: &mut Cx<'_>) {
        self.start_fence(cx);
    }

    fn target_portals(&self) -> Option<(&str, &[SocketAddr])> {
        Some((&self.settings.target, &self.settings.portals))
    }

    fn set_fence_portals(&mut self, portals: Vec<SocketAddr>) {
        self.elsewhere = portals;
    }

    fn lost_command_lifetime(&self) -> Duration {
        // As long as this path itself would wait before it took what it lost for over.
        self.settings.timeouts.fence.max(self.retained)
    }

    fn recheck_access(&mut self) {
        if self.look_again.take().is_some() && self.is_up() {
            self.look_after = path_probe::ACCESS_RECHECK_DELAY;
            self.request_refresh(FactsRefresh::Identity);
            self.touched = true;
        }
    }

    fn disconnect(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        self.start_disconnect(cx, grace);
    }

    fn poll_event(&mut self) -> Option<PathEvent> {
        self.events.pop_front()
    }
}

impl OutboundSockets for IscsiPath {
    by_sessions!();

    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        self.touched = true;
        if self.dial == Some(id) {
            self.dial = None;
            match how {
                Ok(dialled) => {
                    self.trace.stage_succeeded(cx.now, 0, tracing::DIAL_STAGE);
                    self.start_login(cx, dialled.link);
                }
                Err(errno) => {
                    tracing::trace_unreachable(&mut self.trace, cx.now, 0, errno);
                    self.handle_attempt_failed(cx, DownReason::Unreachable(errno), false);
                }
            }
        } else if self.more == Some(id) {
            self.more = None;
            match how {
                Ok(dialled) => self.add_session_link(cx, dialled.link),
                Err(_) => self.links_complete = true,
            }
        } else if let Ok(dialled) = how {
            // Nobody waits for it any more.
            self.sockets.request_close(dialled.link, CloseMode::Abort);
        }
    }

    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        self.touched = true;
        if let Err(violation) = self.sessions.handle_recv(cx, link, op, came) {
            self.handle_protocol_violation(violation);
        }
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        let op = self.sessions.poll_send(cx, link);
        self.stirred |= op.is_some();
        op
    }

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        let (touched, stirred) = (std::mem::take(&mut self.touched), std::mem::take(&mut self.stirred));
        if !touched && !stirred {
            return false;
        }
        let drained = self.drain_session_events(cx);
        self.handle_session_ends(cx);
        let more = std::mem::take(&mut self.touched) || drained || touched;
        if more {
            self.sessions.mark_sockets_ready(&mut self.sockets);
        }
        more
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.next_deadline()
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.touched = true;
        self.check_deadlines(cx);
    }
}
