//! Setting up and ending a session: dialling, login, redirection, loss, fences.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use buf::{Cx, Time};
use endpoint::{CloseMode, LinkId};
use iscsi::initiator::{InitiatorSession, LinkFault, LoginFailure, Notice, Response};
use iscsi::name::TargetAddress;
use iscsi::wire::{Cid, LoginStatus};
use stream::{Connection, ConnectionClose, HostEvent, LinkNumber, earliest};

use super::disposition::FactsRefresh;
use super::lost_session::{LostSession, negotiated_task_retention};
use super::sessions::{OLD_SESSIONS_MAX, SessionWithSockets};
use super::{IscsiPath, RequestOwner, RequestOwners, login, tracing};
use crate::{DownReason, PathEvent};

/// How long a fence waits before it dials again.
const FENCE_REDIAL_DELAY: Duration = Duration::from_secs(1);
/// The most lost sessions that are told apart; beyond, only time fences.
const LOST_SESSIONS_MAX: usize = 8;

/// The life of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathPhase {
    /// Nothing is under way.
    Down,
    /// A connection is to be asked for then.
    Pausing(Time),
    /// One is asked for.
    Dialling,
    /// The leading login runs.
    LoggingIn,
    /// Logged in, by a fence: nobody has asked for more.
    Idle,
    /// The logical unit is asked what it is.
    Probing,
    /// Operations may be submitted.
    Up,
    /// A logout is under way.
    Leaving(DownReason),
    /// The session is over for this reason; memory is on its way back.
    Ending(DownReason),
}

/// An attempt to log in: where it is, and where else it may go.
#[derive(Debug, Default)]
pub(super) struct LoginAttempt {
    /// Addresses still to be tried.
    left: VecDeque<SocketAddr>,
    /// The one being tried.
    address: Option<SocketAddr>,
    /// Where redirections led from, since the last of our own addresses.
    hops: Vec<SocketAddr>,
    /// Portals of other paths, to be tried for a fence when all of ours have failed.
    elsewhere: VecDeque<SocketAddr>,
    /// The one being tried is such a portal; why ours failed.
    detour: Option<DownReason>,
}

impl IscsiPath {
    /// The owner wants the path up.
    pub(super) fn start_connect(&mut self, cx: &mut Cx<'_>) {
        if matches!(self.phase, PathPhase::Leaving(_) | PathPhase::Ending(_)) {
            self.wanted_next = true;
            return;
        }
        (self.wanted, self.owes_down) = (true, true);
        match self.phase {
            PathPhase::Down | PathPhase::Pausing(_) => self.start_login_attempt(cx),
            PathPhase::Idle => self.start_full_probe(cx),
            PathPhase::Dialling | PathPhase::LoggingIn | PathPhase::Probing | PathPhase::Up => {}
            PathPhase::Leaving(_) | PathPhase::Ending(_) => {}
        }
    }

    /// The owner wants what was lost to be ended.
    pub(super) fn start_fence(&mut self, cx: &mut Cx<'_>) {
        if self.unknown {
            self.abort_session(cx, DownReason::Ended);
        }
        let Some(last) = self.lost.iter().map(|lost| lost.fence_deadline(&self.settings)).max() else {
            if matches!(self.phase, PathPhase::Ending(_)) && self.unknown {
                // What is lost is noted when all memory is back.
                self.fencing = Some(cx.now + self.settings.timeouts.fence);
                return;
            }
            self.events.push_back(PathEvent::Fenced);
            return;
        };
        self.fencing = Some(last);
        self.touched = true;
        if self.phase == PathPhase::Down {
            self.start_login_attempt(cx);
        }
    }

    /// The owner wants no session any more.
    pub(super) fn start_disconnect(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        self.touched = true;
        (self.wanted, self.wanted_next, self.owes_down) = (false, false, true);
        match self.phase {
            PathPhase::Down | PathPhase::Pausing(_) | PathPhase::Dialling => {
                self.dial = None;
                self.report_down(cx, DownReason::Ended);
            }
            PathPhase::LoggingIn | PathPhase::Idle | PathPhase::Probing | PathPhase::Up => {
                self.start_logout(cx, grace, DownReason::Ended);
            }
            PathPhase::Leaving(_) => {
                if let Some(wired) = &mut self.sessions.current {
                    wired.session.close(cx, ConnectionClose::AfterLogout(cx.now + grace));
                }
            }
            PathPhase::Ending(_) => {}
        }
    }

    /// Ends the session in good order: what is in work is answered first.
    pub(super) fn start_logout(&mut self, cx: &mut Cx<'_>, grace: Duration, why: DownReason) {
        self.touched = true;
        let Some(wired) = &mut self.sessions.current else { return };
        wired.polite = true;
        wired.session.close(cx, ConnectionClose::AfterLogout(cx.now + grace));
        self.phase = PathPhase::Leaving(why);
        self.probe = None;
        self.operations.finish_unsent(&mut self.events);
        self.fail_unsent_reservation_ops();
    }

    /// Tries all addresses: for a fence first the one of the session that was lost.
    fn start_login_attempt(&mut self, cx: &mut Cx<'_>) {
        let lost = self.fencing.and(self.lost.first()).map(|lost| lost.address);
        let mut left: VecDeque<SocketAddr> = lost.into_iter().collect();
        for portal in &self.settings.portals {
            if !left.contains(portal) {
                left.push_back(*portal);
            }
        }
        let tried = left.clone();
        let elsewhere = self.elsewhere.iter().copied().filter(|portal| !tried.contains(portal)).collect();
        self.attempt = LoginAttempt { left, address: None, hops: Vec::new(), elsewhere, detour: None };
        self.dial_next_address(cx);
    }

    /// Goes by a portal of another path, only to end what was lost.
    fn dial_next_fence_portal(&mut self, cx: &mut Cx<'_>, why: &DownReason) -> bool {
        // Only the group tells that it is the same one, so it must have been told.
        let helps = self.fencing.is_some() && self.lost.iter().any(|lost| lost.group.is_some());
        let Some(address) = self.attempt.elsewhere.pop_front().filter(|_| helps) else { return false };
        self.attempt.detour.get_or_insert_with(|| why.clone());
        self.attempt.hops.clear();
        self.dial_address(cx, address);
        true
    }

    fn dial_next_address(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(address) = self.attempt.left.pop_front() else { return false };
        self.attempt.hops.clear();
        self.dial_address(cx, address);
        true
    }

    fn dial_address(&mut self, cx: &mut Cx<'_>, address: SocketAddr) {
        self.touched = true;
        self.attempt.address = Some(address);
        if self.sessions.old.len() >= OLD_SESSIONS_MAX {
            // The world still holds memory of so many sessions: not another one before it is back.
            self.attempt.left.push_front(address);
            self.phase = PathPhase::Pausing(cx.now + FENCE_REDIAL_DELAY);
            return;
        }
        self.phase = PathPhase::Dialling;
        self.dial = Some(self.sockets.request_dial(address, cx.now + self.settings.timeouts.dial));
        tracing::trace_dialling(&mut self.trace, cx.now, 0, address);
    }

    /// A connection stands: the leading login begins.
    pub(super) fn start_login(&mut self, cx: &mut Cx<'_>, socket: LinkId) {
        let Some(address) = self.attempt.address else { return };
        let cmd_sn = cx.entropy.next_u64() as u32;
        let limits = self.settings.session_limits(self.trace.is_enabled());
        match InitiatorSession::new(cx, self.settings.login_config(cmd_sn), limits) {
            Ok(session) => {
                self.sessions.current = Some(SessionWithSockets::new(session, socket, address));
                self.phase = PathPhase::LoggingIn;
                (self.links_complete, self.next_cid, self.unknown) = (false, 1, false);
                self.owners = RequestOwners::default();
            }
            Err(failure) => {
                self.sockets.request_close(socket, CloseMode::Abort);
                self.handle_attempt_failed(cx, DownReason::Refused(failure.to_string()), true);
            }
        }
    }

    /// An attempt came to nothing; `hopeless`: nor would it at another address.
    pub(super) fn handle_attempt_failed(&mut self, cx: &mut Cx<'_>, why: DownReason, hopeless: bool) {
        self.touched = true;
        if !hopeless && self.dial_next_address(cx) || self.dial_next_fence_portal(cx, &why) {
            return;
        }
        self.wanted = false;
        // What stands in the way is what is wrong with our own portals.
        let why = self.attempt.detour.take().unwrap_or(why);
        self.report_down(cx, why);
    }

    /// Nothing is under way; a fence dials again in a while.
    fn enter_idle_phase(&mut self, cx: &mut Cx<'_>) {
        self.phase = if self.fencing.is_some() {
            PathPhase::Pausing(cx.now + FENCE_REDIAL_DELAY)
        } else {
            PathPhase::Down
        };
    }

    /// The path is down.
    pub(super) fn report_down(&mut self, cx: &mut Cx<'_>, why: DownReason) {
        self.probe = None;
        if std::mem::take(&mut self.owes_down) {
            self.events.push_back(PathEvent::Down(why));
        }
        self.enter_idle_phase(cx);
    }

    /// The session that serves is to end at once.
    pub(super) fn abort_session(&mut self, cx: &mut Cx<'_>, why: DownReason) {
        self.touched = true;
        let Some(wired) = &mut self.sessions.current else { return };
        wired.polite = false;
        wired.session.close(cx, ConnectionClose::Now);
        if !matches!(self.phase, PathPhase::Ending(_)) {
            self.phase = PathPhase::Ending(why);
        }
    }

    /// The target broke the protocol; its session is over.
    pub(super) fn handle_protocol_violation(&mut self, violation: LinkFault) {
        if !matches!(self.phase, PathPhase::Ending(_)) {
            self.phase = PathPhase::Ending(DownReason::Lost(format!(
                "the target broke the protocol ({}); look into its log",
                violation.fault
            )));
        }
    }

    /// Takes what the sessions have to tell; true if they had anything. What was received and not parsed for
    /// want of room is parsed behind it, and what that tells is taken too: `handle_session_ends` sees nothing half told.
    pub(super) fn drain_session_events(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut any = false;
        loop {
            any |= self.take_session_events(cx);
            let Some(wired) = &mut self.sessions.current else { break };
            let broken = wired.session.resume_parsing(cx).err();
            // Each round takes PDUs out of what was received, so it ends.
            let more = wired.session.has_pending_events();
            if let Some(violation) = broken {
                any = true;
                self.handle_protocol_violation(violation);
            }
            if !more {
                break;
            }
        }
        for old in &mut self.sessions.old {
            // All but its end was taken before it was retired.
            while old.session.poll_event().is_some() {
                any = true;
            }
        }
        any
    }

    /// Takes what the session that serves has to tell; true if it had anything.
    fn take_session_events(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut any = false;
        while let Some(wired) = &mut self.sessions.current {
            if let Some(event) = wired.session.poll_event() {
                self.handle_session_event(cx, event);
            } else if let Some(notice) = wired.session.poll_notice() {
                self.handle_notice(cx, notice);
            } else if let Some(violation) = wired.session.poll_link_fault() {
                self.handle_protocol_violation(violation);
            } else if let Some(step) = wired.session.poll_login_step() {
                self.texts.trace_login_step(&mut self.trace, cx.now, &step);
            } else {
                break;
            }
            any = true;
        }
        any
    }

    fn handle_session_event(&mut self, cx: &mut Cx<'_>, event: HostEvent<Response>) {
        match event {
            HostEvent::Ready => self.handle_logged_in(cx),
            HostEvent::Completed { tag, response, payload } => match self.owners.take_owner(tag) {
                RequestOwner::Operation(operation) => {
                    self.handle_operation_ended(cx, operation, response, payload)
                }
                RequestOwner::Probe => self.handle_probe_answer(cx, response, payload),
                RequestOwner::ReservationOp(request) => {
                    self.handle_reservation_ended(cx, request, response, payload)
                }
                RequestOwner::Raw(command) => self.handle_raw_command_ended(command, response, payload),
                RequestOwner::Abort(operation) => self.handle_abort_response(cx, operation, &response),
                RequestOwner::AbortRaw(command) => self.handle_raw_abort_response(cx, command, &response),
                RequestOwner::Reset => self.handle_reset_response(cx, &response),
                RequestOwner::Nobody => {}
            },
            HostEvent::Closed => {}
        }
    }

    /// Tells what is kept of logins, before their end is told.
    fn trace_login_steps(&mut self, cx: &mut Cx<'_>) {
        let Some(wired) = &mut self.sessions.current else { return };
        while let Some(step) = wired.session.poll_login_step() {
            self.texts.trace_login_step(&mut self.trace, cx.now, &step);
        }
    }

    fn handle_logged_in(&mut self, cx: &mut Cx<'_>) {
        self.trace_login_steps(cx);
        self.trace.stage_succeeded(cx.now, 0, tracing::LOGIN_STAGE);
        let Some(wired) = &self.sessions.current else { return };
        let group = wired.session.portal_group_tag();
        self.retained = negotiated_task_retention(wired.session.params());
        // The tasks of what this login has reinstated are over.
        self.lost.retain(|lost| !lost.is_reinstated_in_group(group));
        if self.lost.is_empty() && self.fencing.take().is_some() {
            self.events.push_back(PathEvent::Fenced);
        }
        self.phase = PathPhase::Idle;
        if let Some(why) = self.attempt.detour.take() {
            // It has done what it was for. This path goes by its own portals, or not at all.
            let grace = self.settings.timeouts.abort;
            return self.start_logout(cx, grace, why);
        }
        if self.wanted {
            self.start_full_probe(cx);
        }
    }

    fn handle_notice(&mut self, cx: &mut Cx<'_>, notice: Notice) {
        match notice {
            Notice::LoginFailed(LinkNumber(0), failure) if self.phase == PathPhase::LoggingIn => {
                self.handle_login_failed(cx, &failure);
            }
            // The session does with fewer links.
            Notice::LoginFailed(..) => self.links_complete = true,
            Notice::LogoutRequested { .. } => {
                if let Some(wired) = &mut self.sessions.current {
                    wired.polite = true;
                }
                if matches!(self.phase, PathPhase::Idle | PathPhase::Probing | PathPhase::Up) {
                    self.phase =
                        PathPhase::Leaving(DownReason::Lost("the target asked us to log out".to_owned()));
                    self.probe = None;
                    self.operations.finish_unsent(&mut self.events);
                    self.fail_unsent_reservation_ops();
                }
            }
            Notice::Dropped { .. } => {
                self.phase = PathPhase::Ending(DownReason::Lost("the target dropped the session".to_owned()));
            }
            Notice::Scsi { lun, sense } if lun == self.lun => self.handle_async_event(&sense),
            Notice::LinkReady(_) | Notice::Scsi { .. } | Notice::Unknown(_) => {}
            Notice::Rejected(..) | Notice::LogoutRefused(_) => {}
        }
    }

    fn handle_login_failed(&mut self, cx: &mut Cx<'_>, failure: &LoginFailure) {
        self.trace_login_steps(cx);
        tracing::trace_login_failed(&mut self.trace, cx.now, 0, failure);
        self.retire_session();
        if let LoginFailure::Moved(status, address) = failure {
            return self.follow_redirect(cx, *status, address);
        }
        let (why, hopeless) = login::login_failure_reason(failure);
        self.handle_attempt_failed(cx, why, hopeless);
    }

    /// The target is elsewhere (RFC 7143 §11.13.5).
    fn follow_redirect(&mut self, cx: &mut Cx<'_>, status: LoginStatus, to: &TargetAddress) {
        let Some(from) = self.attempt.address else { return };
        match login::redirect_address(&mut self.attempt.hops, from, to) {
            Ok(address) => {
                if status == LoginStatus::MOVED_PERMANENTLY {
                    for portal in self.settings.portals.iter_mut().filter(|portal| **portal == from) {
                        *portal = address;
                    }
                }
                self.dial_address(cx, address);
            }
            Err(complaint) => self.handle_attempt_failed(cx, DownReason::Refused(complaint), false),
        }
    }

    /// The session that serves is over: it waits for its memory among the old ones.
    fn retire_session(&mut self) {
        if let Some(mut wired) = self.sessions.current.take() {
            wired.close_finished_sockets(&mut self.sockets);
            self.sessions.old.push(wired);
        }
        (self.dial, self.more) = (None, None);
        self.resetting = None;
    }

    /// Goes on where something has ended.
    pub(super) fn handle_session_ends(&mut self, cx: &mut Cx<'_>) {
        if let Some(wired) = &mut self.sessions.current {
            // What may still stand in a socket must not come after the end that was told of it.
            wired.polite &=
                !self.unknown && (wired.session.commands_in_work() == 0 || !wired.session.is_over());
            wired.close_finished_sockets(&mut self.sockets);
            if wired.session.has_pending_events() {
                // What it has to tell comes first, the ends of its requests among it.
                self.touched = true;
            } else if wired.session.is_over() {
                self.handle_session_over(cx);
            } else {
                self.dial_more_links(cx);
            }
        }
        for old in &mut self.sessions.old {
            old.close_finished_sockets(&mut self.sockets);
        }
        self.sessions.old.retain(|old| !old.session.is_fully_closed());
        self.advance_probe(cx);
    }

    /// The session that serves is over: when all its memory is back, so is the path down.
    fn handle_session_over(&mut self, cx: &mut Cx<'_>) {
        let why = match std::mem::replace(&mut self.phase, PathPhase::Down) {
            PathPhase::Leaving(why) | PathPhase::Ending(why) => why,
            PathPhase::LoggingIn => {
                self.retire_session();
                let text = "the target closed the connection during the login; look into its log";
                return self.handle_attempt_failed(cx, DownReason::Lost(text.to_owned()), false);
            }
            _ => DownReason::Lost("the connection was lost".to_owned()),
        };
        let Some(wired) = &self.sessions.current else { return };
        if wired.session.commands_in_work() > 0 {
            self.phase = PathPhase::Ending(why);
            return;
        }
        if std::mem::take(&mut self.unknown) {
            let (address, retained) = (wired.address, negotiated_task_retention(wired.session.params()));
            let lost =
                LostSession { address, group: wired.session.portal_group_tag(), since: cx.now, retained };
            let by_time = lost.fence_deadline(&self.settings);
            if self.lost.len() < LOST_SESSIONS_MAX {
                self.lost.push(lost);
            } else if let Some(last) = self.lost.last_mut() {
                // Address and group of none: only time fences.
                *last = LostSession { address: SocketAddr::from(([0; 4], 0)), group: None, ..lost };
            }
            self.fencing = self.fencing.map(|until| until.max(by_time));
        }
        self.operations.finish_unsent(&mut self.events);
        self.fail_unsent_reservation_ops();
        self.retire_session();
        self.wanted = false;
        self.report_down(cx, why);
        if std::mem::take(&mut self.wanted_next) {
            self.start_connect(cx);
        } else if self.fencing.is_some() {
            self.start_login_attempt(cx);
        }
    }

    /// Opens as many links as both sides want.
    fn dial_more_links(&mut self, cx: &mut Cx<'_>) {
        let Some(wired) = &self.sessions.current else { return };
        let ready = matches!(self.phase, PathPhase::Probing | PathPhase::Up);
        if !ready || self.links_complete || self.more.is_some() {
            return;
        }
        let most = wired.session.params().max_connections.min(u32::from(self.settings.links_max()));
        if wired.open_links() as u32 >= most {
            self.links_complete = true;
            return;
        }
        let address = wired.address;
        self.more = Some(self.sockets.request_dial(address, cx.now + self.settings.timeouts.dial));
    }

    /// One more connection stands.
    pub(super) fn add_session_link(&mut self, cx: &mut Cx<'_>, socket: LinkId) {
        let cid = Cid::new(self.next_cid);
        let added = self.sessions.current.as_mut().and_then(|wired| {
            let link = wired.session.add_link(cx, cid).ok()?;
            wired.attach_socket(link, socket);
            Some(())
        });
        match added {
            Some(()) => self.next_cid = self.next_cid.wrapping_add(1),
            None => {
                self.links_complete = true;
                self.sockets.request_close(socket, CloseMode::Abort);
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let pause = match self.phase {
            PathPhase::Pausing(until) => Some(until),
            _ => None,
        };
        let probe = self.probe.as_ref().map(|probe| earliest(probe.due, Some(probe.until)));
        let session = self.sessions.current.as_ref().and_then(|wired| wired.session.poll_timeout());
        [pause, probe.flatten(), session, self.fencing, self.operations.look_at, self.look_again]
            .into_iter()
            .fold(None, earliest)
    }

    pub(super) fn check_deadlines(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        if let Some(wired) = &mut self.sessions.current {
            wired.session.handle_timeout(cx);
        }
        if self.fencing.is_some_and(|until| until <= now) {
            // Long enough after the loss, with no session since that could have kept the tasks.
            self.fencing = None;
            self.lost.clear();
            self.events.push_back(PathEvent::Fenced);
        }
        match self.phase {
            PathPhase::Pausing(until) if until <= now => {
                if self.attempt.left.is_empty() && (self.wanted || self.fencing.is_some()) {
                    self.start_login_attempt(cx);
                } else if !self.dial_next_address(cx) {
                    self.phase = PathPhase::Down;
                }
            }
            PathPhase::Pausing(_) if !self.wanted && self.fencing.is_none() => self.phase = PathPhase::Down,
            _ => {}
        }
        if self.look_again.take_if(|at| *at <= now).is_some() && self.is_up() {
            self.request_refresh(FactsRefresh::Identity);
        }
        if self.operations.look_at.is_some_and(|at| at <= now) {
            self.check_operation_timeouts(cx);
        }
    }
}
