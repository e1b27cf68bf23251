//! Finding targets and their addresses: a discovery session from its dial to its logout (RFC 7143 §4.3,
//! Appendix C).

use std::net::SocketAddr;
use std::time::Duration;

use buf::{Cx, Errno, Payload, Time};
use endpoint::{CloseMode, DialId, Dialled, LinkId, Sockets};
use iscsi::discovery::SendTargets;
use iscsi::initiator::{
    Credentials, Failure, InitiatorSession, LoginConfig, NoAnswer, Notice, Request, Response, Targets,
};
use iscsi::name::IscsiName;
use iscsi::negotiate::Limits;
use iscsi::wire::{Cid, Isid, Sn, Tsih};
use stream::{Close, Connection, Host, HostEvent, Received, RecvOp, SendOp};

use super::login;
use super::sessions::{Sessions, SocketRequests, WiredSession, by_sessions};
use super::settings::{Settings, Timeouts};
use super::tracing::{self, Texts};
use crate::{DownReason, Trace};

/// How long the logout after the answer may take.
const GRACE: Duration = Duration::from_secs(2);

/// What is asked of whom.
#[derive(Clone, Debug)]
pub struct Question {
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
    question: Question,
    phase: DiscoveryPhase,
    sockets: SocketRequests,
    sessions: Sessions,
    dial: Option<DialId>,
    address: SocketAddr,
    hops: Vec<SocketAddr>,
    /// The answer, until the logout is over.
    targets: Option<Targets>,
    outcome: Option<Result<Targets, DownReason>>,
    trace: Trace,
    texts: Texts,
    touched: bool,
}

impl Discovery {
    /// One that has not begun.
    #[must_use]
    pub fn new(question: Question) -> Self {
        Discovery {
            phase: DiscoveryPhase::Over,
            sockets: SocketRequests::default(),
            sessions: Sessions::default(),
            dial: None,
            address: question.portal,
            hops: Vec::new(),
            targets: None,
            outcome: None,
            trace: Trace::off(),
            texts: Texts::default(),
            touched: false,
            question,
        }
    }

    /// Begins. An outcome follows in bounded time. To be called once, or after an outcome.
    pub fn start(&mut self, cx: &mut Cx<'_>) {
        self.hops.clear();
        self.dial_to(cx, self.question.portal);
    }

    /// The targets, or why there is no answer: once.
    #[must_use]
    pub fn poll_outcome(&mut self) -> Option<Result<Targets, DownReason>> {
        self.outcome.take()
    }

    /// What is said and heard; off unless turned on before the start.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }

    fn dial_to(&mut self, cx: &mut Cx<'_>, address: SocketAddr) {
        (self.phase, self.address, self.touched) = (DiscoveryPhase::Dialling, address, true);
        self.dial = Some(self.sockets.dial(address, cx.now + self.question.timeouts.dial));
        tracing::dialling(&mut self.trace, cx.now, 0, address);
    }

    fn log_in(&mut self, cx: &mut Cx<'_>, socket: LinkId) {
        let question = &self.question;
        let wanted = LoginConfig {
            initiator_name: question.initiator.clone(),
            alias: None,
            target_name: None,
            isid: question.isid,
            tsih: Tsih::NONE,
            cid: Cid::new(0),
            cmd_sn: Sn::new(cx.entropy.next_u64() as u32),
            limits: Limits { max_connections: 1, ..Limits::default() },
            credentials: question.credentials.clone(),
        };
        let timeouts = question.timeouts.clone();
        let settings = Settings {
            timeouts,
            ..Settings::new(Vec::new(), String::new(), 0, String::new(), question.isid)
        };
        match InitiatorSession::new(cx, wanted, settings.session_limits(self.trace.is_on())) {
            Ok(session) => {
                self.sessions.current = Some(WiredSession::new(session, socket, self.address));
                self.phase = DiscoveryPhase::LoggingIn;
            }
            Err(failure) => {
                self.sockets.leave(socket, CloseMode::Abort);
                self.fail(DownReason::Refused(failure.to_string()));
            }
        }
    }

    fn fail(&mut self, why: DownReason) {
        if self.phase != DiscoveryPhase::Over {
            self.phase = DiscoveryPhase::Over;
            self.outcome = Some(Err(why));
        }
    }

    fn drain(&mut self, cx: &mut Cx<'_>) {
        loop {
            self.take_session_events(cx);
            let Some(wired) = &mut self.sessions.current else { break };
            // A violation ends the session, which is seen below. What was received and not parsed for want of
            // room may hold the answer; each round takes PDUs out of it, so it ends.
            let _ = wired.session.resume(cx);
            if !wired.session.has_news() {
                break;
            }
        }
        if let Some(wired) = &mut self.sessions.current {
            wired.pass_leaves(&mut self.sockets);
            if wired.session.is_over() {
                self.over();
            }
        }
        for old in &mut self.sessions.old {
            old.pass_leaves(&mut self.sockets);
        }
        self.sessions.old.retain(|old| !old.session.is_gone());
    }

    fn take_session_events(&mut self, cx: &mut Cx<'_>) {
        while let Some(wired) = &mut self.sessions.current {
            if let Some(step) = wired.session.poll_login_step() {
                self.texts.take(&mut self.trace, cx.now, &step);
            } else if let Some(event) = wired.session.poll_event() {
                self.take_event(cx, event);
            } else if let Some(notice) = wired.session.poll_notice() {
                self.take_notice(cx, notice);
            } else {
                break;
            }
        }
    }

    /// The session has ended, as it was to, or not.
    fn over(&mut self) {
        self.sessions.old.extend(self.sessions.current.take());
        match (self.targets.take(), self.phase) {
            (_, DiscoveryPhase::Over | DiscoveryPhase::Dialling) => {}
            (Some(targets), _) => {
                self.phase = DiscoveryPhase::Over;
                self.outcome = Some(Ok(targets));
            }
            (None, _) => {
                self.fail(DownReason::Lost("the connection was lost; look into the target's log".to_owned()));
            }
        }
    }

    fn take_event(&mut self, cx: &mut Cx<'_>, event: HostEvent<Response>) {
        let Some(wired) = &mut self.sessions.current else { return };
        match event {
            HostEvent::Ready => {
                self.trace.ends(cx.now, 0, tracing::LOGIN);
                let question = self.question.target.clone().map_or(SendTargets::All, SendTargets::Named);
                self.phase = DiscoveryPhase::Asking;
                if wired.session.submit(cx, Request::SendTargets(question), Payload::None).is_err() {
                    wired.session.close(cx, Close::Now);
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
                wired.session.close(cx, Close::AfterLogout(cx.now + GRACE));
            }
            HostEvent::Closed => {}
        }
    }

    fn take_notice(&mut self, cx: &mut Cx<'_>, notice: Notice) {
        let Notice::LoginFailed(_, failure) = notice else { return };
        tracing::login_failed(&mut self.trace, cx.now, 0, &failure);
        if let Some(mut wired) = self.sessions.current.take() {
            wired.pass_leaves(&mut self.sockets);
            self.sessions.old.push(wired);
        }
        let Failure::Moved(_, to) = &failure else { return self.fail(login::why(&failure).0) };
        match login::redirect(&mut self.hops, self.address, to) {
            Ok(address) => self.dial_to(cx, address),
            Err(complaint) => self.fail(DownReason::Refused(complaint)),
        }
    }
}

impl Sockets for Discovery {
    by_sessions!();

    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        self.touched = true;
        match how {
            Ok(dialled) if self.dial.take_if(|dial| *dial == id).is_some() => {
                self.trace.ends(cx.now, 0, tracing::DIAL);
                self.log_in(cx, dialled.link);
            }
            Ok(dialled) => self.sockets.leave(dialled.link, CloseMode::Abort),
            Err(errno) => {
                tracing::unreachable(&mut self.trace, cx.now, 0, errno);
                self.dial = None;
                self.fail(DownReason::Unreachable(errno));
            }
        }
    }

    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        self.touched = true;
        // A violation ends the session, which is told by itself.
        let _ = self.sessions.received(cx, link, op, came);
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        self.sessions.poll_send(cx, link)
    }

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        if !std::mem::take(&mut self.touched) {
            return false;
        }
        self.drain(cx);
        self.sessions.list(&mut self.sockets);
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
