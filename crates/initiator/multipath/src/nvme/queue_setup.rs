//! Setting up one queue: TCP, ICReq, Connect, and authentication if either side requires it; the same for
//! admin queues, I/O queues and discovery.
//!
//! Powers modulo a large prime (one for our public value and one for the session key, tens of milliseconds
//! each for ffdhe8192, and the controller chooses) are not computed here. They are handed out as
//! [`endpoint::Remaining`], so that no other path waits for them. A queue that is closed cancels its
//! computation.
//!
//! Invariant: a queue is up only after its Connect succeeded, and after authentication if either side
//! requires it; each step has a deadline.

use buf::{Class, Cx, Errno, Payload, Time};
use endpoint::{NotComputed, PendingResult};
use nvme::auth::{self, Concatenation, Credentials, HostFault, HostProgress, MESSAGE_LEN_MAX};
use nvme::fabrics::{Connect, ConnectData, ConnectNames, Connected};
use nvme::tls::GeneratedPsk;
use nvme::{Completion, Cqe, FabricsType};
use nvme_tcp::QueueSize;
use stream::Tag;

use super::links::{LinkLoss, Links, QueueId};
use super::reasons;
use super::settings::Settings;
use crate::DownReason;
use crate::trace::{Side, Stage, Trace};

const IC_REQ: Stage = "ICReq";
const CONNECT: Stage = "Connect";
const AUTHENTICATION: Stage = "Authentication";
/// ECONNRESET: a controller that closes with bytes of ours unread.
const RESET: Errno = Errno(104);

/// What every queue of an association has in common.
pub(super) struct SetupContext<'a> {
    pub(super) settings: &'a Settings,
    pub(super) links: &'a mut Links,
    pub(super) trace: &'a mut Trace,
}

/// A queue on its way up.
#[derive(Debug)]
pub(super) struct QueueSetup {
    pub(super) who: QueueId,
    connect: Connect,
    /// The controller, with I/O queues; any, with an admin queue.
    cntlid: u16,
    /// Bytes of data that a capsule may hold.
    in_capsule_max: u32,
    /// When it must be up.
    pub(super) until: Time,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// TCP, then ICResp, is to come.
    Shaking,
    /// Memory for the next message is missing.
    Short(PendingMessage),
    /// Connect is in work.
    Connecting(Tag),
    /// A message of authentication is in work.
    Proving(Box<auth::Host>, Tag, Connected),
    /// Powers are being computed.
    Computing(Box<auth::Host>, Connected, PendingResult<auth::DhResult>),
    Over,
}

/// What is to be sent when there is memory.
#[derive(Debug)]
enum PendingMessage {
    Connect,
    Send(Box<auth::Host>, Connected, Vec<u8>),
    Receive(Box<auth::Host>, Connected),
}

/// How far it is.
#[derive(Debug)]
pub(super) enum Progress {
    /// It goes on.
    Going,
    /// It is up.
    Up(Connected),
    /// Both sides have authenticated, and have generated a key: the connection has done what it was for. Queues come by
    /// TLS with the key from now on.
    Generated(Box<GeneratedPsk>),
    /// It failed.
    Failed(DownReason),
}

impl QueueSetup {
    /// A queue that was dialled, to be up by `until`.
    pub(super) fn new(who: QueueId, connect: Connect, cntlid: u16, in_capsule_max: u32, until: Time) -> Self {
        QueueSetup { who, connect, cntlid, in_capsule_max, until, step: Step::Shaking }
    }

    /// Whether it waits for memory.
    pub(super) fn is_short(&self) -> bool {
        matches!(self.step, Step::Short(_))
    }

    /// Which step it stands in, and the name for it.
    fn stage(&self) -> Stage {
        match self.step {
            Step::Shaking => IC_REQ,
            Step::Short(PendingMessage::Connect) | Step::Connecting(_) => CONNECT,
            Step::Short(_) | Step::Proving(..) | Step::Computing(..) | Step::Over => AUTHENTICATION,
        }
    }

    /// TCP stands: what is offered goes by itself.
    pub(super) fn dialled(&self, cx: &Cx<'_>, context: SetupContext<'_>) {
        let (settings, trace, at) = (context.settings, context.trace, (self.who.qid, IC_REQ));
        trace.begins(cx.now, self.who.qid, IC_REQ);
        let digests = (settings.header_digest, settings.data_digest);
        trace.field(cx.now, at, Side::Us, "PFV", || "0".into());
        trace.field(cx.now, at, Side::Us, "HPDA", || settings.limits().hpda.to_string());
        trace.field(cx.now, at, Side::Us, "DGST", || reasons::digests(digests));
        trace.field(cx.now, at, Side::Us, "MAXR2T", || (settings.limits().r2ts - 1).to_string());
    }

    /// ICResp has come.
    pub(super) fn ready(&mut self, cx: &mut Cx<'_>, context: SetupContext<'_>) -> Progress {
        let Some(terms) = context.links.core(self.who).map(|core| *core.parameters()) else {
            return Progress::Going;
        };
        let at = (self.who.qid, IC_REQ);
        let digests = (terms.header_digest, terms.data_digest);
        let align = terms.controller_alignment;
        context.trace.field(cx.now, at, Side::Target, "CPDA", || (align / 4 - 1).to_string());
        context.trace.field(cx.now, at, Side::Target, "DGST", || reasons::digests(digests));
        context.trace.field(cx.now, at, Side::Target, "MAXH2CDATA", || terms.max_h2c_data.to_string());
        let settings = context.settings;
        if digests != (settings.header_digest, settings.data_digest) {
            return self.fail(cx, context.trace, reasons::digests_refused());
        }
        context.trace.ends(cx.now, self.who.qid, IC_REQ);
        self.step = Step::Short(PendingMessage::Connect);
        self.go(cx, context)
    }

    /// Sends what is next, if there is memory for it.
    pub(super) fn go(&mut self, cx: &mut Cx<'_>, context: SetupContext<'_>) -> Progress {
        let next = match std::mem::replace(&mut self.step, Step::Over) {
            Step::Short(next) => next,
            // It has nothing to send.
            other => {
                self.step = other;
                return Progress::Going;
            }
        };
        let (sqe, len) = match &next {
            PendingMessage::Connect => (self.connect.sqe(), ConnectData::LEN as usize),
            PendingMessage::Send(_, _, message) => {
                (auth::auth_command(FabricsType::AUTHENTICATION_SEND, message.len() as u32), message.len())
            }
            PendingMessage::Receive(..) => {
                let room = MESSAGE_LEN_MAX as u32;
                (auth::auth_command(FabricsType::AUTHENTICATION_RECEIVE, room), MESSAGE_LEN_MAX)
            }
        };
        let Some(mut memory) = cx.pool.take_sg(Class::Wire, len) else {
            self.step = Step::Short(next);
            return Progress::Going;
        };
        let payload = match &next {
            PendingMessage::Connect => {
                let names = self.names(context.settings);
                self.say_connect(cx, context.trace, &names);
                memory.copy_from(0, ConnectData::new(&names).bytes());
                Payload::Out(memory.freeze())
            }
            PendingMessage::Send(_, _, message) => {
                memory.copy_from(0, message);
                Payload::Out(memory.freeze())
            }
            PendingMessage::Receive(..) => Payload::In(memory),
        };
        let Ok(tag) = context.links.submit(cx, self.who, sqe, payload) else {
            // The queue is gone, and that is told by itself.
            return Progress::Going;
        };
        self.step = match next {
            PendingMessage::Connect => Step::Connecting(tag),
            PendingMessage::Send(side, connected, _) | PendingMessage::Receive(side, connected) => {
                Step::Proving(side, tag, connected)
            }
        };
        Progress::Going
    }

    fn names(&self, settings: &Settings) -> ConnectNames {
        ConnectNames {
            host_id: settings.host_id,
            cntlid: self.cntlid,
            subsystem: settings.subsystem.clone(),
            host: settings.host.clone(),
        }
    }

    fn say_connect(&self, cx: &Cx<'_>, trace: &mut Trace, names: &ConnectNames) {
        let (at, connect) = ((self.who.qid, CONNECT), self.connect);
        trace.begins(cx.now, self.who.qid, CONNECT);
        trace.field(cx.now, at, Side::Us, "SUBNQN", || names.subsystem.to_string());
        trace.field(cx.now, at, Side::Us, "HOSTNQN", || names.host.to_string());
        trace.field(cx.now, at, Side::Us, "HOSTID", || names.host_id.to_string());
        trace.field(cx.now, at, Side::Us, "CNTLID", || format!("{:#06x}", names.cntlid));
        trace.field(cx.now, at, Side::Us, "QID", || connect.qid.to_string());
        trace.field(cx.now, at, Side::Us, "SQSIZE", || (connect.entries - 1).to_string());
        let control = if connect.flow_control { "enabled" } else { "disabled" };
        trace.field(cx.now, at, Side::Us, "SQ flow control", || control.into());
        trace.field(cx.now, at, Side::Us, "KATO", || format!("{} ms", connect.kato_ms));
    }

    /// A command of this queue has ended.
    pub(super) fn completed(
        &mut self,
        cx: &mut Cx<'_>,
        context: SetupContext<'_>,
        (tag, cqe, payload): (Tag, Cqe, Payload),
    ) -> Progress {
        match std::mem::replace(&mut self.step, Step::Over) {
            Step::Connecting(sent) if sent == tag => self.connected(cx, context, cqe.completion()),
            Step::Proving(side, sent, connected) if sent == tag => {
                self.heard(cx, context, (side, connected), cqe.completion(), payload)
            }
            other => {
                self.step = other;
                Progress::Going
            }
        }
    }

    fn connected(&mut self, cx: &mut Cx<'_>, context: SetupContext<'_>, end: Completion) -> Progress {
        let (settings, at) = (context.settings, (self.who.qid, CONNECT));
        if !end.status.is_success() {
            self.step = Step::Short(PendingMessage::Connect);
            return self.fail(cx, context.trace, reasons::connect_refused(end, settings));
        }
        let connected = Connected::parse(end.result);
        context.trace.field(cx.now, at, Side::Target, "CNTLID", || format!("{:#06x}", connected.cntlid));
        let wants = connected.authenticate || connected.secure_channel;
        let requires = (connected.authenticate, connected.secure_channel);
        context.trace.field(cx.now, at, Side::Target, "ATR", || u8::from(requires.0).to_string());
        context.trace.field(cx.now, at, Side::Target, "ASCR", || u8::from(requires.1).to_string());
        let is_secured = context.links.generated.is_some();
        let concatenation = match settings.concatenation && self.who.is_admin() && !is_secured {
            true => Concatenation::NewPsk,
            false => Concatenation::None,
        };
        let named = self.cntlid == ConnectData::DYNAMIC || self.cntlid == connected.cntlid;
        // FFF0h and above are reserved: they name kinds of controllers, not one.
        if connected.cntlid >= 0xfff0 || !named {
            self.step = Step::Short(PendingMessage::Connect);
            let cntlid = connected.cntlid;
            return self.fail(
                cx,
                context.trace,
                reasons::lie(format!("Connect answers CNTLID {cntlid:#06x}")),
            );
        }
        if connected.secure_channel && !concatenation.generates_psk() {
            self.step = Step::Short(PendingMessage::Connect);
            return self.fail(cx, context.trace, reasons::tls_wanted());
        }
        context.trace.ends(cx.now, self.who.qid, CONNECT);
        let size = QueueSize {
            entries: u16::try_from(self.connect.entries).unwrap_or(u16::MAX),
            flow_control: self.connect.flow_control,
            in_capsule_max: self.in_capsule_max,
        };
        context.links.open(self.who, size);
        // By the key that was generated, both sides are known.
        let proves_controller = settings.controller_secret.is_some() && !is_secured;
        if !wants && !proves_controller && !concatenation.generates_psk() {
            return Progress::Up(connected);
        }
        let Some(secret) = &settings.secret else {
            self.step = Step::Over;
            context.trace.begins(cx.now, self.who.qid, AUTHENTICATION);
            return self.fail(cx, context.trace, reasons::secret_missing(wants));
        };
        context.trace.begins(cx.now, self.who.qid, AUTHENTICATION);
        let (host, subsystem) = (settings.host.as_str(), settings.subsystem.as_str());
        let credentials = Credentials {
            host_nqn: host.to_owned(),
            subsystem_nqn: subsystem.to_owned(),
            host: Some(secret.key(host)),
            controller: settings.controller_secret.as_ref().map(|secret| secret.key(subsystem)),
        };
        let offered = (self.who.qid, AUTHENTICATION);
        context.trace.field(cx.now, offered, Side::Us, "hashes", || reasons::hashes(&settings.policy));
        context.trace.field(cx.now, offered, Side::Us, "DH groups", || reasons::groups(&settings.policy));
        if concatenation.generates_psk() {
            context.trace.field(cx.now, offered, Side::Us, "SC_C", || "NEWTLSPSK".into());
        }
        // Every queue is a transaction of its own.
        let terms = (self.who.qid.wrapping_add(1), concatenation);
        let policy = settings.policy.clone();
        let (side, message) = auth::Host::start_concatenation(credentials, policy, terms, &mut |bytes| {
            cx.entropy.fill(bytes);
        });
        self.step = Step::Short(PendingMessage::Send(Box::new(side), connected, message));
        self.go(cx, context)
    }

    fn heard(
        &mut self,
        cx: &mut Cx<'_>,
        context: SetupContext<'_>,
        (mut side, connected): (Box<auth::Host>, Connected),
        end: Completion,
        payload: Payload,
    ) -> Progress {
        if !end.status.is_success() {
            let why = reasons::authentication_status(end.status);
            return self.fail(cx, context.trace, why);
        }
        let progress = match payload {
            Payload::In(message) => {
                let message = message.freeze();
                let mut bytes = vec![0; message.len().min(MESSAGE_LEN_MAX)];
                message.copy_to(0, &mut bytes);
                self.say_message(cx, context.trace, &bytes);
                side.receive(&bytes)
            }
            Payload::Out(_) | Payload::None => side.sent(),
        };
        self.proceed(cx, context, (side, connected), progress)
    }

    /// Whether what it awaits has been computed, or never will be.
    pub(super) fn is_answered(&self) -> bool {
        matches!(&self.step, Step::Computing(_, _, awaited) if awaited.get().is_some())
    }

    /// What it awaits has been computed, or never will be.
    pub(super) fn computed(&mut self, cx: &mut Cx<'_>, context: SetupContext<'_>) -> Progress {
        let (mut side, connected, answer) = match std::mem::replace(&mut self.step, Step::Over) {
            Step::Computing(side, connected, awaited) => match awaited.get() {
                Some(answer) => (side, connected, answer),
                None => {
                    self.step = Step::Computing(side, connected, awaited);
                    return Progress::Going;
                }
            },
            other => {
                self.step = other;
                return Progress::Going;
            }
        };
        match answer {
            Ok(outcome) => {
                let progress = side.computed(outcome);
                self.proceed(cx, context, (side, connected), progress)
            }
            Err(NotComputed) => self.fail(cx, context.trace, reasons::not_computed()),
        }
    }

    fn proceed(
        &mut self,
        cx: &mut Cx<'_>,
        context: SetupContext<'_>,
        (mut side, connected): (Box<auth::Host>, Connected),
        progress: HostProgress,
    ) -> Progress {
        self.step = match progress {
            HostProgress::Compute(work) => {
                // Where the queue is gone, that is told by itself.
                if let Some(awaited) = context.links.compute(self.who, work) {
                    self.step = Step::Computing(side, connected, awaited);
                }
                return Progress::Going;
            }
            HostProgress::Send(message) => Step::Short(PendingMessage::Send(side, connected, message)),
            HostProgress::Receive => Step::Short(PendingMessage::Receive(side, connected)),
            HostProgress::Authenticated => {
                context.trace.ends(cx.now, self.who.qid, AUTHENTICATION);
                return match side.take_psk() {
                    Some(psk) => Progress::Generated(Box::new(psk)),
                    None => Progress::Up(connected),
                };
            }
            HostProgress::Failed(fault) => return self.unproven(cx, context.trace, fault),
        };
        self.go(cx, context)
    }

    /// Says which message came, and of a challenge what it chose: nothing that helps to guess a secret.
    fn say_message(&self, cx: &Cx<'_>, trace: &mut Trace, message: &[u8]) {
        let at = (self.who.qid, AUTHENTICATION);
        trace.field(cx.now, at, Side::Target, "message", || reasons::message_name(message).into());
        if let Some((hash, group)) = reasons::challenge_parameters(message) {
            trace.field(cx.now, at, Side::Target, "hash", || hash);
            trace.field(cx.now, at, Side::Target, "DH group", || group);
        }
    }

    fn unproven(&mut self, cx: &Cx<'_>, trace: &mut Trace, fault: HostFault) -> Progress {
        self.step = Step::Over;
        self.fail(cx, trace, reasons::unproven(fault))
    }

    /// The connection ended by itself while the queue came up: amid authentication that may be a refusal.
    pub(super) fn cut(&self, cx: &Cx<'_>, trace: &mut Trace, how: LinkLoss) -> DownReason {
        let proving = matches!(
            self.step,
            Step::Proving(..)
                | Step::Computing(..)
                | Step::Short(PendingMessage::Send(..) | PendingMessage::Receive(..))
        );
        let closed = matches!(how, LinkLoss::Closed | LinkLoss::Socket(RESET));
        let why = match (&self.step, closed) {
            (Step::Shaking, true) => reasons::closed_at_once(),
            _ if proving && closed => reasons::cut_short(),
            _ => reasons::broken(how),
        };
        self.broke(cx, trace, why)
    }

    /// What came up failed, or its time is over.
    pub(super) fn broke(&self, cx: &Cx<'_>, trace: &mut Trace, why: DownReason) -> DownReason {
        let (text, advice) = reasons::split(&why);
        trace.fails(cx.now, (self.who.qid, self.stage()), text, advice);
        why
    }

    fn fail(&mut self, cx: &Cx<'_>, trace: &mut Trace, why: DownReason) -> Progress {
        let why = self.broke(cx, trace, why);
        self.step = Step::Over;
        Progress::Failed(why)
    }
}
