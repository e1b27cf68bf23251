//! A path over iSCSI: one session with a target, and what it takes to read and write one of its logical
//! units.
//!
//! The path dials, logs in, follows redirections, asks the logical unit what it is, and then carries
//! operations as commands, straight from and into the caller's memory. What the target says is hostile
//! until it is checked; every wait has an end ([`Timeouts`]).
//!
//! Every login is a reinstatement: with the same ISID and a TSIH of 0 it ends the session before it, and the
//! Login Response comes after that session's tasks have ended (RFC 7143 §6.3.5). So a login to the same
//! target portal group is also a fence, by whichever portal of the group: where the path's own are out of reach,
//! it goes by those of other paths to the same target ([`Path::fence_by`]), and logs out again. If none helps,
//! time must ([`Timeouts::fence`]).

mod connecting;
mod discovery;
mod disposition;
mod escalation;
mod login;
mod operations;
mod plan;
mod probe;
mod probing;
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
use endpoint::{Dial, DialId, Dialled, Leave, LinkId, Sockets};
use scsi::lun::{Address, Lun};
use stream::{Received, RecvOp, SendOp, Slab, Tag, earliest};
use volume::{IoId, Op};

use crate::{DownReason, Event, Path, Protocol, ReservationRequest, Trace, VolumeInfo};
use connecting::{Attempt, ConnectionPhase, LostSession};
pub use discovery::{Discovery, Question};
use disposition::Refresh;
use operations::Operation;
use probe::Probe;
use reservation::{PendingRequest, REQUESTS_MAX};
use sessions::{Sessions, SocketRequests};
pub use settings::{COMMANDS_MAX, Settings, Timeouts};
use tracing::Texts;
use unit_facts::{Abilities, UnitFacts};

/// Whose a request of the session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    /// An operation's command.
    Operation(Tag),
    /// A question of the survey.
    Probe,
    /// A claim's command.
    ReservationRequest(Tag),
    /// ABORT TASK for an operation.
    Abort(Tag),
    /// LOGICAL UNIT RESET.
    Reset,
}

/// See the module.
#[derive(Debug)]
pub struct IscsiPath {
    settings: Settings,
    lun: [u8; 8],
    socket_requests: SocketRequests,
    sessions: Sessions,
    phase: ConnectionPhase,
    attempt: Attempt,
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
    operations: Slab<Operation>,
    requests: Slab<PendingRequest>,
    /// Whose each of the session's requests is, by its slot.
    owners: Vec<(Tag, Owner)>,
    /// Those whose slot was given away before their end was drained: at most one per command.
    ended: Vec<(Tag, Owner)>,
    /// When the operations' clocks are to be looked at.
    look_at: Option<Time>,
    /// A logical unit reset is under way, since then.
    resetting: Option<Time>,
    probe: Option<Probe>,
    /// The next one does not begin before this time.
    next_probe: Option<Time>,
    /// What the logical unit is, once known.
    facts: Option<UnitFacts>,
    /// What it can do, once that is known.
    can: Option<Abilities>,
    volume_info: Option<Arc<VolumeInfo>>,
    to_refresh: Refresh,
    /// When a path that does not serve is looked at again.
    look_again: Option<Time>,
    look_after: Duration,
    /// A write that had been answered was lost: the next flush tells.
    write_lost: bool,
    events: VecDeque<Event>,
    trace: Trace,
    texts: Texts,
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
        let (attempt, operations) = (Attempt::default(), Slab::new(usize::from(settings.commands())));
        Ok(IscsiPath {
            lun: Address::Unit(lun).encode(),
            socket_requests: SocketRequests::default(),
            sessions: Sessions::default(),
            phase: ConnectionPhase::Down,
            attempt,
            dial: None,
            more: None,
            links_complete: false,
            next_cid: 0,
            wanted: false,
            wanted_next: false,
            owes_down: false,
            lost: Vec::new(),
            retained: connecting::wished(&settings),
            elsewhere: Vec::new(),
            fencing: None,
            unknown: false,
            operations,
            requests: Slab::new(REQUESTS_MAX),
            owners: Vec::new(),
            ended: Vec::new(),
            look_at: None,
            resetting: None,
            probe: None,
            next_probe: None,
            facts: None,
            can: None,
            volume_info: None,
            to_refresh: Refresh::Nothing,
            look_again: None,
            look_after: probing::LOOK_AGAIN,
            write_lost: false,
            events: VecDeque::new(),
            trace: Trace::new(),
            texts: Texts::default(),
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
        matches!(self.phase, ConnectionPhase::Up)
    }

    /// Notes whose a request is. The session may give a request the slot of one that has ended, but whose
    /// end is still to be drained.
    fn own(&mut self, tag: Tag, owner: Owner) {
        if self.owners.len() <= tag.slot() {
            self.owners.resize(tag.slot() + 1, (tag, Owner::Nobody));
        }
        let Some(slot) = self.owners.get_mut(tag.slot()) else { return };
        let before = std::mem::replace(slot, (tag, owner));
        if before.1 != Owner::Nobody {
            self.ended.push(before);
        }
    }

    /// Takes the note.
    fn disown(&mut self, tag: Tag) -> Owner {
        if let Some((at, owner)) = self.owners.get_mut(tag.slot())
            && *at == tag
        {
            return std::mem::replace(owner, Owner::Nobody);
        }
        let ended = self.ended.iter().position(|(at, _)| *at == tag);
        ended.map_or(Owner::Nobody, |at| self.ended.swap_remove(at).1)
    }

    /// The clocks are to be looked at by then.
    fn note_clock(&mut self, at: Time) {
        self.look_at = earliest(self.look_at, Some(at));
    }
}

impl Path for IscsiPath {
    fn protocol(&self) -> Protocol {
        Protocol::Iscsi
    }

    fn connect(&mut self, cx: &mut Cx<'_>) {
        self.want(cx);
    }

    fn submit(&mut self, cx: &mut Cx<'_>, id: IoId, op: Op, payload: Payload) -> Result<(), (Op, Payload)> {
        self.begin(cx, id, op, payload)
    }

    fn request_reservation(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        request: ReservationRequest,
    ) -> Result<(), ReservationRequest> {
        self.begin_request(cx, id, request)
    }

    fn cancel(&mut self, cx: &mut Cx<'_>, id: IoId) {
        self.abandon(cx, id);
    }

    fn fence(&mut self, cx: &mut Cx<'_>) {
        self.begin_fence(cx);
    }

    fn portals(&self) -> Option<(&str, &[SocketAddr])> {
        Some((&self.settings.target, &self.settings.portals))
    }

    fn fence_by(&mut self, portals: Vec<SocketAddr>) {
        self.elsewhere = portals;
    }

    fn lands_for(&self) -> Duration {
        // As long as this path itself would wait before it took what it lost for over.
        self.settings.timeouts.fence.max(self.retained)
    }

    fn look_now(&mut self) {
        if self.look_again.take().is_some() && self.is_up() {
            self.look_after = probing::LOOK_AGAIN;
            self.refresh(Refresh::Identity);
            self.touched = true;
        }
    }

    fn disconnect(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        self.part(cx, grace);
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

impl Sockets for IscsiPath {
    fn poll_dial(&mut self) -> Option<Dial> {
        self.socket_requests.poll_dial()
    }

    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        self.touched = true;
        if self.dial == Some(id) {
            self.dial = None;
            match how {
                Ok(dialled) => {
                    self.trace.ends(cx.now, 0, tracing::DIAL);
                    self.log_in(cx, dialled.link);
                }
                Err(errno) => {
                    tracing::unreachable(&mut self.trace, cx.now, 0, errno);
                    self.attempt_failed(cx, DownReason::Unreachable(errno), false);
                }
            }
        } else if self.more == Some(id) {
            self.more = None;
            match how {
                Ok(dialled) => self.join(cx, dialled.link),
                Err(_) => self.links_complete = true,
            }
        } else if let Ok(dialled) = how {
            // Nobody waits for it any more.
            self.socket_requests.leave(dialled.link, Leave::Abort);
        }
    }

    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        self.touched = true;
        if let Err(violation) = self.sessions.received(cx, link, op, came) {
            self.violated(violation);
        }
    }

    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        self.touched = true;
        self.sessions.written(cx, link, how);
    }

    fn handle_sent(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp) {
        self.touched = true;
        self.sessions.sent(cx, link, op);
    }

    fn poll_ready(&mut self) -> Option<LinkId> {
        self.sessions.poll_ready(&mut self.socket_requests)
    }

    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        self.sessions.poll_recv(cx, link)
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        let op = self.sessions.poll_send(cx, link);
        self.stirred |= op.is_some();
        op
    }

    fn poll_leave(&mut self) -> Option<(LinkId, Leave)> {
        self.socket_requests.poll_leave()
    }

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        let (touched, stirred) = (std::mem::take(&mut self.touched), std::mem::take(&mut self.stirred));
        if !touched && !stirred {
            return false;
        }
        let drained = self.drain(cx);
        self.tidy(cx);
        let more = std::mem::take(&mut self.touched) || drained || touched;
        if more {
            self.sessions.list(&mut self.socket_requests);
        }
        more
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.next_deadline()
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.touched = true;
        self.look_at_clocks(cx);
    }
}
