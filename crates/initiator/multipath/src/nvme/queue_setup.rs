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

use buf::{Cx, Errno, MemoryClass, Payload, Time};
use endpoint::{NotComputed, PendingResult};
use nvme::auth::{self, Concatenation, Credentials, HostFault, HostProgress, MESSAGE_LEN_MAX};
use nvme::fabrics::{Connect, ConnectData, ConnectNames, ConnectResult};
use nvme::tls::GeneratedPsk;
use nvme::{Completion, Cqe, FabricsType};
use nvme_tcp::ConnectedQueueSize;
use stream::Tag;

use super::down_reasons;
use super::queue_links::{LinkLoss, QueueId, QueueLinks};
use super::settings::Settings;
use crate::DownReason;
use crate::trace::{Speaker, StageName, Trace};

const IC_REQ_STAGE: StageName = "ICReq";
const CONNECT_STAGE: StageName = "Connect";
const AUTHENTICATION_STAGE: StageName = "Authentication";
/// ECONNRESET: a controller that closes with bytes of ours unread.
const CONNECTION_RESET: Errno = Errno(104);

/// What every queue of an association has in common.
pub(super) struct SetupContext<'a> {
    pub(super) settings: &'a Settings,
    pub(super) links: &'a mut QueueLinks,
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
    step: SetupStep,
}

#[derive(Debug)]
enum SetupStep {
    /// TCP, then ICResp, is to come.
    Shaking,
    /// Memory for the next message is missing.
    Short(PendingMessage),
    /// Connect is in work.
    Connecting(Tag),
    /// A message of authentication is in work.
    Proving(Box<auth::HostAuthenticator>, Tag, ConnectResult),
    /// Powers are being computed.
    Computing(Box<auth::HostAuthenticator>, ConnectResult, PendingResult<auth::DhResult>),
    Over,
}

/// What is to be sent when there is memory.
#[derive(Debug)]
enum PendingMessage {
    Connect,
    Send(Box<auth::HostAuthenticator>, ConnectResult, Vec<u8>),
    Receive(Box<auth::HostAuthenticator>, ConnectResult),
}

/// How far it is.
#[derive(Debug)]
pub(super) enum SetupProgress {
    /// It goes on.
    Going,
    /// It is up.
    Up(ConnectResult),
    /// Both sides have authenticated, and have generated a key: the connection has done what it was for. Queues come by
    /// TLS with the key from now on.
    Generated(Box<GeneratedPsk>),
    /// It failed.
    Failed(DownReason),
}

impl QueueSetup {
    /// A queue that was dialled, to be up by `until`.
    pub(super) fn new(who: QueueId, connect: Connect, cntlid: u16, in_capsule_max: u32, until: Time) -> Self {
        QueueSetup { who, connect, cntlid, in_capsule_max, until, step: SetupStep::Shaking }
    }

    /// Whether it waits for memory.
    pub(super) fn waits_for_memory(&self) -> bool {
        matches!(self.step, SetupStep::Short(_))
    }

    /// Which step it stands in, and the name for it.
    fn stage_name(&self) -> StageName {
        match self.step {
            SetupStep::Shaking => IC_REQ_STAGE,
            SetupStep::Short(PendingMessage::Connect) | SetupStep::Connecting(_) => CONNECT_STAGE,
            SetupStep::Short(_) | SetupStep::Proving(..) | SetupStep::Computing(..) | SetupStep::Over => {
                AUTHENTICATION_STAGE
            }
        }
    }

    /// TCP stands: what is offered goes by itself.
    pub(super) fn handle_dialled(&self, cx: &Cx<'_>, context: SetupContext<'_>) {
        let (settings, trace, at) = (context.settings, context.trace, (self.who.qid, IC_REQ_STAGE));
        trace.stage_started(cx.now, self.who.qid, IC_REQ_STAGE);
        let digests = (settings.header_digest, settings.data_digest);
        trace.trace_field(cx.now, at, Speaker::Us, "PFV", || "0".into());
        trace
            .trace_field(cx.now, at, Speaker::Us, "HPDA", || settings.host_queue_settings().hpda.to_string());
        trace.trace_field(cx.now, at, Speaker::Us, "DGST", || down_reasons::digests_text(digests));
        trace.trace_field(cx.now, at, Speaker::Us, "MAXR2T", || {
            (settings.host_queue_settings().r2ts - 1).to_string()
        });
    }

    /// ICResp has come.
    pub(super) fn handle_transport_ready(
        &mut self,
        cx: &mut Cx<'_>,
        context: SetupContext<'_>,
    ) -> SetupProgress {
        let Some(terms) = context.links.host_queue(self.who).map(|core| *core.parameters()) else {
            return SetupProgress::Going;
        };
        let at = (self.who.qid, IC_REQ_STAGE);
        let digests = (terms.header_digest, terms.data_digest);
        let align = terms.controller_alignment;
        context.trace.trace_field(cx.now, at, Speaker::Target, "CPDA", || (align / 4 - 1).to_string());
        context
            .trace
            .trace_field(cx.now, at, Speaker::Target, "DGST", || down_reasons::digests_text(digests));
        context
            .trace
            .trace_field(cx.now, at, Speaker::Target, "MAXH2CDATA", || terms.max_h2c_data.to_string());
        let settings = context.settings;
        if digests != (settings.header_digest, settings.data_digest) {
            return self.fail_setup(cx, context.trace, down_reasons::digests_refused());
        }
        context.trace.stage_succeeded(cx.now, self.who.qid, IC_REQ_STAGE);
        self.step = SetupStep::Short(PendingMessage::Connect);
        self.send_pending(cx, context)
    }

    /// Sends what is next, if there is memory for it.
    pub(super) fn send_pending(&mut self, cx: &mut Cx<'_>, context: SetupContext<'_>) -> SetupProgress {
        let next = match std::mem::replace(&mut self.step, SetupStep::Over) {
            SetupStep::Short(next) => next,
            // It has nothing to send.
            other => {
                self.step = other;
                return SetupProgress::Going;
            }
        };
        let (sqe, len) = match &next {
            PendingMessage::Connect => (self.connect.to_sqe(), ConnectData::LEN as usize),
            PendingMessage::Send(_, _, message) => {
                (auth::auth_sqe(FabricsType::AUTHENTICATION_SEND, message.len() as u32), message.len())
            }
            PendingMessage::Receive(..) => {
                let room = MESSAGE_LEN_MAX as u32;
                (auth::auth_sqe(FabricsType::AUTHENTICATION_RECEIVE, room), MESSAGE_LEN_MAX)
            }
        };
        let Some(mut memory) = cx.pool.take_sg(MemoryClass::Wire, len) else {
            self.step = SetupStep::Short(next);
            return SetupProgress::Going;
        };
        let payload = match &next {
            PendingMessage::Connect => {
                let names = self.connect_names(context.settings);
                self.trace_connect(cx, context.trace, &names);
                memory.copy_from(0, ConnectData::new(&names).bytes());
                Payload::Out(memory.freeze())
            }
            PendingMessage::Send(_, _, message) => {
                memory.copy_from(0, message);
                Payload::Out(memory.freeze())
            }
            PendingMessage::Receive(..) => Payload::In(memory),
        };
        let Ok(tag) = context.links.submit_command(cx, self.who, sqe, payload) else {
            // The queue is gone, and that is told by itself.
            return SetupProgress::Going;
        };
        self.step = match next {
            PendingMessage::Connect => SetupStep::Connecting(tag),
            PendingMessage::Send(side, connected, _) | PendingMessage::Receive(side, connected) => {
                SetupStep::Proving(side, tag, connected)
            }
        };
        SetupProgress::Going
    }

    fn connect_names(&self, settings: &Settings) -> ConnectNames {
        ConnectNames {
            host_id: settings.host_id,
            cntlid: self.cntlid,
            subsystem: settings.subsystem.clone(),
            host: settings.host.clone(),
        }
    }

    fn trace_connect(&self, cx: &Cx<'_>, trace: &mut Trace, names: &ConnectNames) {
        let (at, connect) = ((self.who.qid, CONNECT_STAGE), self.connect);
        trace.stage_started(cx.now, self.who.qid, CONNECT_STAGE);
        trace.trace_field(cx.now, at, Speaker::Us, "SUBNQN", || names.subsystem.to_string());
        trace.trace_field(cx.now, at, Speaker::Us, "HOSTNQN", || names.host.to_string());
        trace.trace_field(cx.now, at, Speaker::Us, "HOSTID", || names.host_id.to_string());
        trace.trace_field(cx.now, at, Speaker::Us, "CNTLID", || format!("{:#06x}", names.cntlid));
        trace.trace_field(cx.now, at, Speaker::Us, "QID", || connect.qid.to_string());
        trace.trace_field(cx.now, at, Speaker::Us, "SQSIZE", || (connect.entries - 1).to_string());
        let control = if connect.flow_control { "enabled" } else { "disabled" };
        trace.trace_field(cx.now, at, Speaker::Us, "SQ flow control", || control.into());
        trace.trace_field(cx.now, at, Speaker::Us, "KATO", || format!("{} ms", connect.kato_ms));
    }

    /// A command of this queue has ended.
    pub(super) fn handle_completed(
        &mut self,
        cx: &mut Cx<'_>,
        context: SetupContext<'_>,
        (tag, cqe, payload): (Tag, Cqe, Payload),
    ) -> SetupProgress {
        match std::mem::replace(&mut self.step, SetupStep::Over) {
            SetupStep::Connecting(sent) if sent == tag => {
                self.handle_connect_response(cx, context, cqe.completion())
            }
            SetupStep::Proving(side, sent, connected) if sent == tag => {
                self.handle_auth_response(cx, context, (side, connected), cqe.completion(), payload)
            }
            other => {
                self.step = other;
                SetupProgress::Going
            }
        }
    }

    fn handle_connect_response(
        &mut self,
        cx: &mut Cx<'_>,
        context: SetupContext<'_>,
        end: Completion,
    ) -> SetupProgress {
        let (settings, at) = (context.settings, (self.who.qid, CONNECT_STAGE));
        if !end.status.is_success() {
            self.step = SetupStep::Short(PendingMessage::Connect);
            return self.fail_setup(cx, context.trace, down_reasons::connect_refusal(end, settings));
        }
        let connected = ConnectResult::parse(end.result);
        context
            .trace
            .trace_field(cx.now, at, Speaker::Target, "CNTLID", || format!("{:#06x}", connected.cntlid));
        let wants = connected.authenticate || connected.secure_channel;
        let requires = (connected.authenticate, connected.secure_channel);
        context.trace.trace_field(cx.now, at, Speaker::Target, "ATR", || u8::from(requires.0).to_string());
        context.trace.trace_field(cx.now, at, Speaker::Target, "ASCR", || u8::from(requires.1).to_string());
        let is_secured = context.links.generated.is_some();
        let concatenation = match settings.concatenation && self.who.is_admin() && !is_secured {
            true => Concatenation::NewPsk,
            false => Concatenation::None,
        };
        let named = self.cntlid == ConnectData::DYNAMIC || self.cntlid == connected.cntlid;
        // FFF0h and above are reserved: they name kinds of controllers, not one.
        if connected.cntlid >= 0xfff0 || !named {
            self.step = SetupStep::Short(PendingMessage::Connect);
            let cntlid = connected.cntlid;
            return self.fail_setup(
                cx,
                context.trace,
                down_reasons::standard_violated(format!("Connect answers CNTLID {cntlid:#06x}")),
            );
        }
        if connected.secure_channel && !concatenation.generates_psk() {
            self.step = SetupStep::Short(PendingMessage::Connect);
            return self.fail_setup(cx, context.trace, down_reasons::tls_required());
        }
        context.trace.stage_succeeded(cx.now, self.who.qid, CONNECT_STAGE);
        let size = ConnectedQueueSize {
            entries: u16::try_from(self.connect.entries).unwrap_or(u16::MAX),
            flow_control: self.connect.flow_control,
            in_capsule_max: self.in_capsule_max,
        };
        context.links.open_queue(self.who, size);
        // By the key that was generated, both sides are known.
        let proves_controller = settings.controller_secret.is_some() && !is_secured;
        if !wants && !proves_controller && !concatenation.generates_psk() {
            return SetupProgress::Up(connected);
        }
        let Some(secret) = &settings.secret else {
            self.step = SetupStep::Over;
            context.trace.stage_started(cx.now, self.who.qid, AUTHENTICATION_STAGE);
            return self.fail_setup(cx, context.trace, down_reasons::secret_missing(wants));
        };
        context.trace.stage_started(cx.now, self.who.qid, AUTHENTICATION_STAGE);
        let (host, subsystem) = (settings.host.as_str(), settings.subsystem.as_str());
        let credentials = Credentials {
            host_nqn: host.to_owned(),
            subsystem_nqn: subsystem.to_owned(),
            host: Some(secret.derive_key(host)),
            controller: settings.controller_secret.as_ref().map(|secret| secret.derive_key(subsystem)),
        };
        let offered = (self.who.qid, AUTHENTICATION_STAGE);
        context.trace.trace_field(cx.now, offered, Speaker::Us, "hashes", || {
            down_reasons::hash_names(&settings.policy)
        });
        context.trace.trace_field(cx.now, offered, Speaker::Us, "DH groups", || {
            down_reasons::dh_group_names(&settings.policy)
        });
        if concatenation.generates_psk() {
            context.trace.trace_field(cx.now, offered, Speaker::Us, "SC_C", || "NEWTLSPSK".into());
        }
        // Every queue is a transaction of its own.
        let terms = (self.who.qid.wrapping_add(1), concatenation);
        let policy = settings.policy.clone();
        let (side, message) =
            auth::HostAuthenticator::start_concatenation(credentials, policy, terms, &mut |bytes| {
                cx.entropy.fill(bytes);
            });
        self.step = SetupStep::Short(PendingMessage::Send(Box::new(side), connected, message));
        self.send_pending(cx, context)
    }

    fn handle_auth_response(
        &mut self,
        cx: &mut Cx<'_>,
        context: SetupContext<'_>,
        (mut side, connected): (Box<auth::HostAuthenticator>, ConnectResult),
        end: Completion,
        payload: Payload,
    ) -> SetupProgress {
        if !end.status.is_success() {
            let why = down_reasons::authentication_refused(end.status);
            return self.fail_setup(cx, context.trace, why);
        }
        let progress = match payload {
            Payload::In(message) => {
                let message = message.freeze();
                let mut bytes = vec![0; message.len().min(MESSAGE_LEN_MAX)];
                message.copy_to(0, &mut bytes);
                self.trace_auth_message(cx, context.trace, &bytes);
                side.handle_message(&bytes)
            }
            Payload::Out(_) | Payload::None => side.handle_sent(),
        };
        self.advance_authentication(cx, context, (side, connected), progress)
    }

    /// Whether what it awaits has been computed, or never will be.
    pub(super) fn is_computation_done(&self) -> bool {
        matches!(&self.step, SetupStep::Computing(_, _, awaited) if awaited.get().is_some())
    }

    /// What it awaits has been computed, or never will be.
    pub(super) fn handle_computed(&mut self, cx: &mut Cx<'_>, context: SetupContext<'_>) -> SetupProgress {
        let (mut side, connected, answer) = match std::mem::replace(&mut self.step, SetupStep::Over) {
            SetupStep::Computing(side, connected, awaited) => match awaited.get() {
                Some(answer) => (side, connected, answer),
                None => {
                    self.step = SetupStep::Computing(side, connected, awaited);
                    return SetupProgress::Going;
                }
            },
            other => {
                self.step = other;
                return SetupProgress::Going;
            }
        };
        match answer {
            Ok(outcome) => {
                let progress = side.handle_computed(outcome);
                self.advance_authentication(cx, context, (side, connected), progress)
            }
            Err(NotComputed) => self.fail_setup(cx, context.trace, down_reasons::too_many_computations()),
        }
    }

    fn advance_authentication(
        &mut self,
        cx: &mut Cx<'_>,
        context: SetupContext<'_>,
        (mut side, connected): (Box<auth::HostAuthenticator>, ConnectResult),
        progress: HostProgress,
    ) -> SetupProgress {
        self.step = match progress {
            HostProgress::Compute(work) => {
                // Where the queue is gone, that is told by itself.
                if let Some(awaited) = context.links.start_computation(self.who, work) {
                    self.step = SetupStep::Computing(side, connected, awaited);
                }
                return SetupProgress::Going;
            }
            HostProgress::Send(message) => SetupStep::Short(PendingMessage::Send(side, connected, message)),
            HostProgress::Receive => SetupStep::Short(PendingMessage::Receive(side, connected)),
            HostProgress::Authenticated => {
                context.trace.stage_succeeded(cx.now, self.who.qid, AUTHENTICATION_STAGE);
                return match side.take_psk() {
                    Some(psk) => SetupProgress::Generated(Box::new(psk)),
                    None => SetupProgress::Up(connected),
                };
            }
            HostProgress::Failed(fault) => return self.fail_authentication(cx, context.trace, fault),
        };
        self.send_pending(cx, context)
    }

    /// Says which message came, and of a challenge what it chose: nothing that helps to guess a secret.
    fn trace_auth_message(&self, cx: &Cx<'_>, trace: &mut Trace, message: &[u8]) {
        let at = (self.who.qid, AUTHENTICATION_STAGE);
        trace.trace_field(cx.now, at, Speaker::Target, "message", || {
            down_reasons::auth_message_name(message).into()
        });
        if let Some((hash, group)) = down_reasons::challenge_parameters(message) {
            trace.trace_field(cx.now, at, Speaker::Target, "hash", || hash);
            trace.trace_field(cx.now, at, Speaker::Target, "DH group", || group);
        }
    }

    fn fail_authentication(&mut self, cx: &Cx<'_>, trace: &mut Trace, fault: HostFault) -> SetupProgress {
        self.step = SetupStep::Over;
        self.fail_setup(cx, trace, down_reasons::authentication_failed(fault))
    }

    /// The connection ended by itself while the queue came up: amid authentication that may be a refusal.
    pub(super) fn trace_link_lost(&self, cx: &Cx<'_>, trace: &mut Trace, how: LinkLoss) -> DownReason {
        let proving = matches!(
            self.step,
            SetupStep::Proving(..)
                | SetupStep::Computing(..)
                | SetupStep::Short(PendingMessage::Send(..) | PendingMessage::Receive(..))
        );
        let closed = matches!(how, LinkLoss::Closed | LinkLoss::Socket(CONNECTION_RESET));
        let why = match (&self.step, closed) {
            (SetupStep::Shaking, true) => down_reasons::closed_before_ic_resp(),
            _ if proving && closed => down_reasons::closed_during_authentication(),
            _ => down_reasons::link_lost(how),
        };
        self.trace_failure(cx, trace, why)
    }

    /// What came up failed, or its time is over.
    pub(super) fn trace_failure(&self, cx: &Cx<'_>, trace: &mut Trace, why: DownReason) -> DownReason {
        let (text, advice) = down_reasons::text_and_advice(&why);
        trace.stage_failed(cx.now, (self.who.qid, self.stage_name()), text, advice);
        why
    }

    fn fail_setup(&mut self, cx: &Cx<'_>, trace: &mut Trace, why: DownReason) -> SetupProgress {
        let why = self.trace_failure(cx, trace, why);
        self.step = SetupStep::Over;
        SetupProgress::Failed(why)
    }
}
