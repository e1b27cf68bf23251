//! Finding targets and their addresses: a discovery session from its dial to its logout (RFC 7143 §4.3,
//! Appendix C).

use std::net::SocketAddr;
use std::time::Duration;

use buf::{Cx, Errno, Payload, Time};
use endpoint::{CloseMode, DialId, DialSource, Dialled, LinkId, OutboundSockets};
use iscsi::discovery::SendTargets;
use iscsi::initiator::{
    Credentials, DiscoveredTargets, InitiatorSession, LoginConfig, LoginFailure, NoAnswer, Notice, Request,
    Response,
};
use iscsi::name::IscsiName;
use iscsi::negotiate::NegotiationLimits;
use iscsi::wire::{Cid, Isid, Sn, Tsih};
use stream::{Connection, ConnectionClose, HostConnection, HostEvent, Received, RecvOp, SendOp};

use super::login;
use super::sessions::{SessionWithSockets, Sessions, SocketRequests, by_sessions};
use super::settings::{Settings, Timeouts};
use super::tracing::{self, PartialLoginTexts};
use crate::{DownReason, Trace};

/// How long the logout after the answer may take.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(2);

/// What is asked of whom.
#[derive(Clone, Debug)]
pub struct DiscoverySettings {
    /// Where a target or a discovery service listens.
    pub portal: SocketAddr,
    /// Our name.
    pub initiator: String,
    /// Our part of the session's identity.
    pub isid: Isid,
    /// How we prove ourselves, and the target itself.
    pub credentials: Option<Credentials>,
    /// The one target that is looked for; `None`: all that we may see.
    pub target: Option<IscsiName>,
    /// How long to wait for what.
    pub timeouts: Timeouts,
    /// Where connections leave this machine, as far as that is not left to its routes.
    pub source: DialSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiscoveryPhase {
    Dialling,
    LoggingIn,
    Asking,
    LoggingOut,
    Over,
}

/// See the module. Begins with [`Discovery::start`], ends with [`Discovery::poll_outcome`].
#[derive(Debug)]
pub struct Discovery {
    question: DiscoverySettings,
    phase: DiscoveryPhase,
    sockets: SocketRequests,
    sessions: Sessions,
    dial: Option<DialId>,
    address: SocketAddr,
    hops: Vec<SocketAddr>,
    /// The answer, until the logout is over.
    targets: Option<DiscoveredTargets>,
    outcome: Option<Result<DiscoveredTargets, DownReason>>,
    trace: Trace,
    texts: PartialLoginTexts,
    touched: bool,
}

impl Discovery {
    /// One that has not begun.
    #[must_use]
    pub fn new(question: DiscoverySettings) -> Self {
        Discovery {
            phase: DiscoveryPhase::Over,
            sockets: SocketRequests::new(question.source),
            sessions: Sessions::default(),
            dial: None,
            address: question.portal,
            hops: Vec::new(),
            targets: None,
            outcome: None,
            trace: Trace::disabled(),
            texts: PartialLoginTexts::default(),
            touched: false,
            question,
        }
    }

    /// Begins. An outcome follows in bounded time. To be called once, or after an outcome.
    pub fn start(&mut self, cx: &mut Cx<'_>) {
        self.hops.clear();
        self.dial_address(cx, self.question.portal);
    }

    /// The targets, or why there is no answer: once.
    #[must_use]
    pub fn poll_outcome(&mut self) -> Option<Result<DiscoveredTargets, DownReason>> {
        self.outcome.take()
    }

    /// What is said and heard; off unless turned on before the start.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }

    fn dial_address(&mut self, cx: &mut Cx<'_>, address: SocketAddr) {
        (self.phase, self.address, self.touched) = (DiscoveryPhase::Dialling, address, true);
        self.dial = Some(self.sockets.request_dial(address, cx.now + self.question.timeouts.dial));
        tracing::trace_dialling(&mut self.trace, cx.now, 0, address);
    }

    fn start_login(&mut self, cx: &mut Cx<'_>, socket: LinkId) {
        let question = &self.question;
        let wanted = LoginConfig {
            initiator_name: question.initiator.clone(),
            alias: None,
            target_name: None,
            isid: question.isid,
            tsih: Tsih::NONE,
            cid: Cid::new(0),
            cmd_sn: Sn::new(cx.entropy.next_u64() as u32),
            limits: NegotiationLimits { max_connections: 1, ..NegotiationLimits::default() },
            credentials: question.credentials.clone(),
        };
        let timeouts = question.timeouts.clone();
        let settings = Settings {
            timeouts,
            ..Settings::new(Vec::new(), String::new(), 0, String::new(), question.isid)
        };
        match InitiatorSession::new(cx, wanted, settings.session_limits(self.trace.is_enabled())) {
            Ok(session) => {
                self.sessions.current = Some(SessionWithSockets::new(session, socket, self.address));
                self.phase = DiscoveryPhase::LoggingIn;
            }
            Err(failure) => {
                self.sockets.request_close(socket, CloseMode::Abort);
                self.finish_failed(DownReason::Refused(failure.to_string()));
            }
        }
    }

    fn finish_failed(&mut self, why: DownReason) {
        if self.phase != DiscoveryPhase::Over {
            self.phase = DiscoveryPhase::Over;
            self.outcome = Some(Err(why));
        }
    }

    fn drain_session_events(&mut self, cx: &mut Cx<'_>) {
        loop {
            self.take_session_events(cx);
            let Some(wired) = &mut self.sessions.current else { break };
            // A violation ends the session, which is seen below. What was received and not parsed for want of
            // room may hold the answer; each round takes PDUs out of it, so it ends.
            let _ = wired.session.resume_parsing(cx);
            if !wired.session.has_pending_events() {
                break;
            }
        }
        if let Some(wired) = &mut self.sessions.current {
            wired.close_finished_sockets(&mut self.sockets);
            if wired.session.is_over() {
                self.handle_session_over();
            }
        }
        for old in &mut self.sessions.old {
            old.close_finished_sockets(&mut self.sockets);
        }
        self.sessions.old.retain(|old| !old.session.is_fully_closed());
    }

    fn take_session_events(&mut self, cx: &mut Cx<'_>) {
        while let Some(wired) = &mut self.sessions.current {
            if let Some(step) = wired.session.poll_login_step() {
                self.texts.trace_login_step(&mut self.trace, cx.now, &step);
            } else if let Some(event) = wired.session.poll_event() {
                self.handle_session_event(cx, event);
            } else if let Some(notice) = wired.session.poll_notice() {
                self.handle_notice(cx, notice);
            } else {
                break;
            }
        }
    }

    /// The session has ended, as it was to, or not.
    fn handle_session_over(&mut self) {
        self.sessions.old.extend(self.sessions.current.take());
        match (self.targets.take(), self.phase) {
            (_, DiscoveryPhase::Over | DiscoveryPhase::Dialling) => {}
            (Some(targets), _) => {
                self.phase = DiscoveryPhase::Over;
                self.outcome = Some(Ok(targets));
            }
            (None, _) => {
                self.finish_failed(DownReason::Lost(
                    "the connection was lost; look into the target's log".to_owned(),
                ));
            }
        }
    }

    fn handle_session_event(&mut self, cx: &mut Cx<'_>, event: HostEvent<Response>) {
        let Some(wired) = &mut self.sessions.current else { return };
        match event {
            HostEvent::Ready => {
                self.trace.stage_succeeded(cx.now, 0, tracing::LOGIN_STAGE);
                let question = self.question.target.clone().map_or(SendTargets::All, SendTargets::Named);
                self.phase = DiscoveryPhase::Asking;
                if wired.session.submit(cx, Request::SendTargets(question), Payload::None).is_err() {
                    wired.session.close(cx, ConnectionClose::Now);
                }
            }
            HostEvent::Completed { response, .. } => {
                match response {
                    Response::Targets(targets) => {
                        (self.targets, self.phase) = (Some(targets), DiscoveryPhase::LoggingOut)
                    }
                    Response::Lost(NoAnswer::Rejected(_)) => {
                        self.phase = DiscoveryPhase::Over;
                        let text = "the target refuses to list targets; name the target instead";
                        self.outcome = Some(Err(DownReason::Refused(text.to_owned())));
                    }
                    // The session is over, which is told by itself.
                    Response::Lost(_) | Response::Scsi(_) | Response::TargetFailure | Response::Task(_) => {
                        return;
                    }
                }
                wired.polite = true;
                wired.session.close(cx, ConnectionClose::AfterLogout(cx.now + LOGOUT_TIMEOUT));
            }
            HostEvent::Closed => {}
        }
    }

    fn handle_notice(&mut self, cx: &mut Cx<'_>, notice: Notice) {
        let Notice::LoginFailed(_, failure) = notice else { return };
        tracing::trace_login_failed(&mut self.trace, cx.now, 0, &failure);
        if let Some(mut wired) = self.sessions.current.take() {
            wired.close_finished_sockets(&mut self.sockets);
            self.sessions.old.push(wired);
        }
        let LoginFailure::Moved(_, to) = &failure else {
            return self.finish_failed(login::login_failure_reason(&failure).0);
        };
        match login::redirect_address(&mut self.hops, self.address, to) {
            Ok(address) => self.dial_address(cx, address),
            Err(complaint) => self.finish_failed(DownReason::Refused(complaint)),
        }
    }
}

impl OutboundSockets for Discovery {
    by_sessions!();

    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        self.touched = true;
        match how {
            Ok(dialled) if self.dial.take_if(|dial| *dial == id).is_some() => {
                self.trace.stage_succeeded(cx.now, 0, tracing::DIAL_STAGE);
                self.start_login(cx, dialled.link);
            }
            Ok(dialled) => self.sockets.request_close(dialled.link, CloseMode::Abort),
            Err(errno) => {
                tracing::trace_unreachable(&mut self.trace, cx.now, 0, errno);
                self.dial = None;
                self.finish_failed(DownReason::Unreachable(errno));
            }
        }
    }

    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        self.touched = true;
        // A violation ends the session, which is told by itself.
        let _ = self.sessions.handle_recv(cx, link, op, came);
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        self.sessions.poll_send(cx, link)
    }

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        if !std::mem::take(&mut self.touched) {
            return false;
        }
        self.drain_session_events(cx);
        self.sessions.mark_sockets_ready(&mut self.sockets);
        true
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.sessions.current.as_ref().and_then(|wired| wired.session.poll_timeout())
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.touched = true;
        if let Some(wired) = &mut self.sessions.current {
            wired.session.handle_timeout(cx);
        }
    }
}
