//! How an association comes up: the addresses in turn, the admin queue, the controller enabled and asked
//! what it is, the namespace likewise, then the I/O queues.
//!
//! Invariant: a step begins when the one before has been answered and judged; what is optional and
//! refused is done without.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Errno, Payload, Time};
use endpoint::Dialled;
use nvme::fabrics::{Connect, ConnectData, Connected, Property, PropertyAccess};
use nvme::feature::{Fid, GetFeatures, Select, SetFeatures};
use nvme::identify::controller::NvmController;
use nvme::identify::{self, Cns, Controller, Identifiers, Identify, Independent, Namespace};
use nvme::log::{GetLogPage, Lid};
use nvme::property::{Capabilities, Configuration, ControllerStatus};
use nvme::{Completion, Cqe, Sqe, Status};
use stream::{Slab, Tag};
use volume::Access;

use super::facts::{self, ControllerFacts, Limits, NamespaceFacts, Refused};
use super::fence::POLL;
use super::io_queues::IoQueue;
use super::links::QueueId;
use super::operation::PathFacts;
use super::queue_setup::{Progress, QueueSetup, SetupContext};
use super::settings::{KEEP_ALIVE_MAX, Settings};
use super::{AdminPurpose, NvmePath, RETRY, State, reasons, setup_context};
use crate::trace::{Side, Stage};
use crate::{DownReason, Event, VolumeInfo};

const TCP: Stage = "TCP";
/// Entries of the admin queue: the fewest that there may be.
const ADMIN_ENTRIES: u32 = Connect::ADMIN_ENTRIES_MIN;
/// Data in capsules of the admin queue (NVMe-TCP §3.3.1).
const ADMIN_CAPSULE_MAX: u32 = 8192;
/// From this version on there are namespace descriptors, and independent structures.
pub(super) const VERSION_DESCRIPTORS: u32 = 0x0001_0300;
const VERSION_INDEPENDENT: u32 = 0x0002_0000;
/// Events that are wanted: namespace attributes, ANA.
pub(super) const EVENTS: u32 = Controller::OAES_NAMESPACE_ATTRIBUTE | Controller::OAES_ANA_CHANGE;

/// A step of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Capabilities,
    Version,
    Enable,
    Ready,
    Controller,
    KeepAlive,
    Queues,
    Events,
    Namespace,
    Independent,
    Descriptors,
    Limits,
    Ana,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Capabilities => "Property Get CAP",
            Step::Version => "Property Get VS",
            Step::Enable => "Property Set CC.EN = 1",
            Step::Ready => "Property Get CSTS",
            Step::Controller => "Identify Controller",
            Step::KeepAlive => "Get Features, Keep Alive Timer",
            Step::Queues => "Set Features, Number of Queues",
            Step::Events => "Set Features, Asynchronous Event Configuration",
            Step::Namespace => "Identify Namespace",
            Step::Independent => "Identify Namespace, command set independent",
            Step::Descriptors => "Identify Namespace Identification Descriptors",
            Step::Limits => "Identify Controller, NVM command set",
            Step::Ana => "Get Log Page, ANA",
        }
    }

    fn next(self) -> Option<Step> {
        Some(match self {
            Step::Capabilities => Step::Version,
            Step::Version => Step::Enable,
            Step::Enable => Step::Ready,
            Step::Ready => Step::Controller,
            Step::Controller => Step::KeepAlive,
            Step::KeepAlive => Step::Queues,
            Step::Queues => Step::Events,
            Step::Events => Step::Namespace,
            Step::Namespace => Step::Independent,
            Step::Independent => Step::Descriptors,
            Step::Descriptors => Step::Limits,
            Step::Limits => Step::Ana,
            Step::Ana => return None,
        })
    }

    /// Whether a controller may do without it.
    fn is_optional(self) -> bool {
        matches!(self, Step::KeepAlive | Step::Events | Step::Independent | Step::Descriptors | Step::Limits)
    }
}

/// What has been found so far.
#[derive(Debug, Default)]
pub(super) struct Bringup {
    peer: Option<SocketAddr>,
    cntlid: u16,
    capabilities: Option<Capabilities>,
    pub(super) version: u32,
    controller: Option<ControllerFacts>,
    pub(super) namespace: Option<NamespaceFacts>,
    pub(super) identifiers: Identifiers,
    limits: Option<Limits>,
    pub(super) access: Option<Access>,
    /// The Keep Alive Timeout that the controller says that it has; `None`: it does not say, or has none.
    pub(super) keep_alive: Option<Duration>,
    queues: u16,
    /// A step that waits for memory, or for the controller to get ready.
    waiting: Option<Step>,
    /// When to look again whether the controller is ready, and when it must be.
    ready: Option<(Time, Time)>,
}

impl Bringup {
    pub(super) fn configuration(&self) -> Configuration {
        Configuration::ENABLE
    }

    pub(super) fn ready_within(&self, settings: &Settings) -> Duration {
        self.capabilities.map_or(settings.times.command, |cap| facts::ready_within(&cap, settings))
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.ready.map(|(next, until)| next.min(until))
    }
}

impl NvmePath {
    /// A new association.
    pub(super) fn begin(&mut self, cx: &mut Cx<'_>) {
        self.address = 0;
        self.path_facts = None;
        self.volume_info = None;
        self.state = State::Starting;
        self.dial_admin(cx);
    }

    fn dial_admin(&mut self, cx: &mut Cx<'_>) {
        self.association = self.association.wrapping_add(1);
        self.bringup = Bringup::default();
        self.io_queues.list.clear();
        let Some(&to) = self.settings.addresses.get(self.address) else {
            return self.end_association(cx, DownReason::Refused("no address is set; name one".to_owned()));
        };
        self.trace.begins(cx.now, 0, TCP);
        self.trace.field(cx.now, (0, TCP), Side::Us, "address", || to.to_string());
        let until = cx.now + self.settings.times.dial;
        self.links.dial(self.admin(), to, until);
    }

    pub(super) fn dialled(&mut self, cx: &mut Cx<'_>, who: QueueId, dialled: Dialled) {
        if who.association != self.association || !matches!(self.state, State::Starting) {
            return;
        }
        self.trace.field(cx.now, (who.qid, TCP), Side::Us, "local", || dialled.local.to_string());
        self.trace.ends(cx.now, who.qid, TCP);
        let until = cx.now + self.settings.times.join;
        let (connect, cntlid, in_capsule_max) = self.terms(who);
        if who.is_admin() {
            self.bringup.peer = Some(dialled.peer);
        }
        let setup = QueueSetup::new(who, connect, cntlid, in_capsule_max, until);
        setup.dialled(cx, setup_context(&self.settings, &mut self.links, &mut self.trace));
        self.setups.push(setup);
    }

    /// How a queue is asked for.
    fn terms(&self, who: QueueId) -> (Connect, u16, u32) {
        let flow_control = self.settings.flow_control;
        let (entries, kato_ms) = match who.is_admin() {
            true => (ADMIN_ENTRIES, self.settings.times.keep_alive.as_millis() as u32),
            false => (self.entries(), 0),
        };
        let connect = Connect { qid: who.qid, entries, flow_control, individual_deletion: false, kato_ms };
        match self.bringup.controller.filter(|_| !who.is_admin()) {
            Some(controller) => (connect, self.bringup.cntlid, controller.in_capsule_max),
            None => (connect, ConnectData::DYNAMIC, ADMIN_CAPSULE_MAX),
        }
    }

    /// Entries of an I/O queue: one stays free (NVMe Base §3.3.1.4).
    fn entries(&self) -> u32 {
        let capable = self.bringup.capabilities.map_or(2, |cap| cap.entries_max);
        let most = self.bringup.controller.and_then(|controller| controller.max_commands);
        let most = most.map_or(u32::MAX, |most| u32::from(most).max(2));
        (self.settings.depth + 1).min(capable).min(most).max(2)
    }

    pub(super) fn not_dialled(&mut self, cx: &mut Cx<'_>, who: QueueId, errno: Errno) {
        if who.association != self.association || !matches!(self.state, State::Starting) {
            return;
        }
        let what = format!("no connection (errno {})", errno.0);
        let advice = "see whether something listens there, and whether a firewall is in between";
        self.trace.fails(cx.now, (who.qid, TCP), what, advice);
        if who.is_admin() && self.address + 1 < self.settings.addresses.len() {
            self.address += 1;
            return self.dial_admin(cx);
        }
        self.end_association(cx, DownReason::Unreachable(errno));
    }

    /// Lets a joining queue do something, and takes what comes of it.
    pub(super) fn join(
        &mut self,
        cx: &mut Cx<'_>,
        who: QueueId,
        act: impl FnOnce(&mut QueueSetup, &mut Cx<'_>, SetupContext<'_>) -> Progress,
    ) {
        let Some(setup) = self.setups.iter_mut().find(|setup| setup.who == who) else { return };
        let setup_context = setup_context(&self.settings, &mut self.links, &mut self.trace);
        let progress = act(setup, cx, setup_context);
        match progress {
            Progress::Going if setup.is_short() => self.retry_at(cx.now + RETRY),
            Progress::Going => {}
            Progress::Up(connected) => {
                self.setups.retain(|setup| setup.who != who);
                self.joined(cx, who, connected);
            }
            Progress::Failed(why) => self.end_association(cx, why),
        }
    }

    fn joined(&mut self, cx: &mut Cx<'_>, who: QueueId, connected: Connected) {
        if who.is_admin() {
            self.bringup.cntlid = connected.cntlid;
            self.watch.begin(cx.now, self.settings.times.keep_alive);
            return self.step(cx, Step::Capabilities);
        }
        self.io_queues.list.push(IoQueue::new(who, self.entries() as usize - 1));
        if self.io_queues.list.len() == usize::from(self.bringup.queues) {
            self.up(cx);
        }
    }

    /// Begins a step.
    fn step(&mut self, cx: &mut Cx<'_>, step: Step) {
        let Some((sqe, len)) = self.command(step) else { return self.after(cx, step) };
        self.trace.begins(cx.now, 0, step.name());
        let until = Some(cx.now + self.settings.times.command);
        let admin = self.admin();
        if !self.admin_commands.send(
            cx,
            &mut self.links,
            admin,
            (sqe, len),
            (AdminPurpose::Step(step), until),
        ) {
            self.bringup.waiting = Some(step);
            self.retry_at(cx.now + RETRY);
        }
    }

    pub(super) fn step_again(&mut self, cx: &mut Cx<'_>) {
        if let (Some(step), State::Starting) = (self.bringup.waiting.take(), &self.state) {
            self.step(cx, step);
        }
    }

    pub(super) fn start_clock(&mut self, cx: &mut Cx<'_>) {
        let Some((next, until)) = self.bringup.ready else { return };
        if !matches!(self.state, State::Starting) {
            self.bringup.ready = None;
        } else if until <= cx.now {
            let advice = "look at the controller";
            self.trace.fails(cx.now, (0, Step::Ready.name()), "CSTS.RDY stays 0", advice);
            self.end_association(
                cx,
                DownReason::Lost(format!("the controller does not become ready; {advice}")),
            );
        } else if next <= cx.now {
            self.bringup.ready = Some((until, until));
            self.step(cx, Step::Ready);
        }
    }

    /// The command of a step; `None`: there is no need, or no use.
    fn command(&self, step: Step) -> Option<(Sqe, usize)> {
        let nsid = self.settings.nsid;
        let identify = |cns, nsid| {
            let command = Identify { cns, controller: 0, nsid, command_set: 0 };
            Some((command.sqe(), identify::LEN))
        };
        let feature = |fid, value| {
            let command = SetFeatures { fid, save: false, value, nsid: 0 };
            Some((command.sqe(), 0))
        };
        let version = self.bringup.version;
        match step {
            Step::Capabilities => Some((PropertyAccess::get_sqe(Property::CAP, 8), 0)),
            Step::Version => Some((PropertyAccess::get_sqe(Property::VS, 4), 0)),
            Step::Enable => Some((PropertyAccess::set_sqe(Property::CC, self.bringup.configuration().0), 0)),
            Step::Ready => Some((PropertyAccess::get_sqe(Property::CSTS, 4), 0)),
            Step::Controller => identify(Cns::CONTROLLER, 0),
            Step::KeepAlive => {
                let get =
                    GetFeatures { fid: Fid::KEEP_ALIVE_TIMER, select: Select::Current, argument: 0, nsid: 0 };
                Some((get.sqe(), 0))
            }
            Step::Queues => {
                let count = u32::from(self.settings.queues - 1);
                feature(Fid::NUMBER_OF_QUEUES, count << 16 | count)
            }
            Step::Events => {
                let wanted = self.bringup.controller?.events & EVENTS;
                if wanted == 0 { None } else { feature(Fid::ASYNC_EVENT_CONFIGURATION, wanted) }
            }
            Step::Namespace => identify(Cns::NAMESPACE, nsid),
            Step::Independent if version >= VERSION_INDEPENDENT => identify(Cns::INDEPENDENT_NAMESPACE, nsid),
            Step::Descriptors if version >= VERSION_DESCRIPTORS => identify(Cns::NAMESPACE_DESCRIPTORS, nsid),
            Step::Limits if version >= VERSION_INDEPENDENT => identify(Cns::COMMAND_SET_CONTROLLER, 0),
            Step::Independent | Step::Descriptors | Step::Limits => None,
            Step::Ana => self.ana_log(),
        }
    }

    /// Reads the states of all groups, and clears the event of it.
    pub(super) fn ana_log(&self) -> Option<(Sqe, usize)> {
        let len = self.bringup.controller?.ana_log_len()?;
        let log = GetLogPage {
            lid: Lid::ANA,
            specific: 1,
            retain: false,
            len: len as u64,
            offset: 0,
            by_index: false,
            command_set: 0,
            nsid: 0,
        };
        Some((log.sqe(), len))
    }

    /// A step was answered.
    pub(super) fn step_ended(&mut self, cx: &mut Cx<'_>, step: Step, cqe: Cqe, payload: Payload) {
        if !matches!(self.state, State::Starting) {
            return;
        }
        let end = cqe.completion();
        // A namespace that is not ready has names all the same.
        let is_unready = end.status.plain() == Status::NAMESPACE_NOT_READY;
        if !end.status.is_success() && (!step.is_optional() || is_unready) {
            let why = format!("{} failed: {}", step.name(), reasons::status(end.status));
            self.trace.fails(cx.now, (0, step.name()), why.clone(), "");
            return self.end_association(
                cx,
                match end.status.plain() {
                    Status::INVALID_NAMESPACE => DownReason::Absent(why),
                    _ if end.status.is_final() => DownReason::Refused(why),
                    _ => DownReason::Lost(why),
                },
            );
        }
        if end.status.is_success()
            && let Err(refused) = self.judge(cx, step, end, &payload)
        {
            let why = match refused {
                Refused::Lie(what) => reasons::lie(what.to_owned()),
                Refused::Foreign(what) => DownReason::Refused(format!("{}: {what}", step.name())),
                Refused::Absent(what) => DownReason::Absent(format!("{}: {what}", step.name())),
            };
            let (what, advice) = reasons::split(&why);
            self.trace.fails(cx.now, (0, step.name()), what, advice);
            return self.end_association(cx, why);
        }
        // Not ready yet: it is asked again by the clock.
        if step == Step::Ready && self.bringup.ready.is_some() {
            return;
        }
        self.trace.ends(cx.now, 0, step.name());
        if step == Step::Ana && self.is_contradictory() {
            return self.end_association(cx, reasons::unsized_path());
        }
        self.after(cx, step);
    }

    /// Whether the path serves, and what was learnt of the namespace is from when it did not.
    pub(super) fn is_contradictory(&self) -> bool {
        let is_silent = self.bringup.namespace.is_some_and(|namespace| namespace.format.is_none());
        is_silent && self.bringup.access.is_some_and(|access| access.serves())
    }

    fn after(&mut self, cx: &mut Cx<'_>, step: Step) {
        match step.next() {
            Some(next) => self.step(cx, next),
            None => self.dial_queues(cx),
        }
    }

    /// Takes what a step found.
    fn judge(
        &mut self,
        cx: &mut Cx<'_>,
        step: Step,
        end: Completion,
        payload: &Payload,
    ) -> Result<(), Refused> {
        let at = (0, step.name());
        let result = end.result;
        match step {
            Step::Capabilities => {
                self.trace.field(cx.now, at, Side::Target, "CAP", || format!("{result:#018x}"));
                self.bringup.capabilities = Some(Capabilities::parse(result));
            }
            Step::Version => {
                self.trace.field(cx.now, at, Side::Target, "VS", || format!("{:#010x}", result as u32));
                self.bringup.version = result as u32;
            }
            Step::Enable => {
                let until = cx.now + self.bringup.ready_within(&self.settings);
                self.bringup.ready = Some((until, until));
            }
            Step::Ready => {
                self.trace.field(cx.now, at, Side::Target, "CSTS", || format!("{:#x}", result as u32));
                let status = ControllerStatus::parse(result);
                if status.fatal {
                    return Err(Refused::Foreign("the controller is in a fatal state (CSTS.CFS)"));
                }
                let until = self.bringup.ready.map_or(cx.now, |(_, until)| until);
                self.bringup.ready = if status.ready { None } else { Some((cx.now + POLL, until)) };
            }
            Step::KeepAlive => {
                let kato = result as u32;
                self.trace.field(cx.now, at, Side::Target, "KATO", || format!("{kato} ms"));
                // An hour is the longest that we ask for: what claims more is not waited for any longer.
                let kato = Duration::from_millis(kato.into()).min(KEEP_ALIVE_MAX);
                self.bringup.keep_alive = Some(kato).filter(|kato| !kato.is_zero());
            }
            Step::Queues => {
                let granted = (result as u16).min((result >> 16) as u16).saturating_add(1);
                self.bringup.queues = granted.min(self.settings.queues);
                self.trace.field(cx.now, at, Side::Target, "granted", || granted.to_string());
            }
            Step::Events => {}
            Step::Controller => {
                let said = Controller::parse(&structure(payload)?);
                let facts = ControllerFacts::judge(&said, self.bringup.cntlid, self.settings.nsid)?;
                self.bringup.controller = Some(facts);
            }
            Step::Namespace => {
                let controller = self.bringup.controller.ok_or(Refused::Lie("there is no controller"))?;
                let said = Namespace::parse(&structure(payload)?);
                self.bringup.namespace = Some(NamespaceFacts::judge(&said, &controller, &self.settings)?);
            }
            Step::Independent => {
                let said = Independent::parse(&structure(payload)?);
                self.bringup.namespace = self.bringup.namespace.map(|namespace| namespace.and(&said));
            }
            Step::Descriptors => {
                self.bringup.identifiers = Identifiers::parse(&structure(payload)?);
                if self.bringup.identifiers.command_set.is_some_and(|set| set != 0) {
                    return Err(Refused::Foreign("the namespace is not of the NVM command set"));
                }
            }
            Step::Limits => {
                let said = NvmController::parse(&structure(payload)?);
                if let Some(format) = self.bringup.namespace.and_then(|namespace| namespace.format) {
                    let unknown = Limits::unknown(format.transfer_blocks());
                    self.bringup.limits = Some(Limits::judge(&said, format.shift, unknown));
                }
            }
            Step::Ana => self.take_ana(payload),
        }
        Ok(())
    }

    /// Takes the states of groups.
    pub(super) fn take_ana(&mut self, payload: &Payload) {
        let Payload::In(log) = payload else { return };
        let mut bytes = Vec::with_capacity(log.len());
        log.pieces().iter().for_each(|piece| bytes.extend_from_slice(piece));
        let group = self.bringup.namespace.map_or(0, |namespace| namespace.ana_group);
        let most = self.bringup.controller.and_then(|controller| controller.ana_groups).unwrap_or(0);
        self.bringup.access = Some(facts::access(&bytes, group, most));
    }

    fn dial_queues(&mut self, cx: &mut Cx<'_>) {
        let Some(to) = self.bringup.peer else { return };
        let until = cx.now + self.settings.times.dial;
        for qid in 1..=self.bringup.queues {
            self.trace.begins(cx.now, qid, TCP);
            self.trace.field(cx.now, (qid, TCP), Side::Us, "address", || to.to_string());
            self.links.dial(QueueId { association: self.association, qid }, to, until);
        }
    }

    fn up(&mut self, cx: &mut Cx<'_>) {
        let (Some(controller), Some(namespace)) = (self.bringup.controller, self.bringup.namespace) else {
            // Queues are dialled when both are known.
            return self.end_association(cx, reasons::lie("it has not said what it is".to_owned()));
        };
        // Without a shape nothing is sent, and one block is what every command carries.
        let transfer = namespace.format.map_or(1, |format| format.transfer_blocks());
        let limits = self.bringup.limits.unwrap_or(Limits::unknown(transfer));
        self.path_facts = Some(PathFacts { nsid: self.settings.nsid, controller, namespace, limits });
        if self.operations.is_empty() {
            // Twice the commands: an operation may wait for its next command, and pairs are two.
            self.operations = Slab::new(self.io_queues.window() * 2);
        }
        self.parked.reserve(self.io_queues.window() * 2);
        self.events.reserve(self.io_queues.window() * 2);
        self.state = State::Up;
        self.request_events(cx);
        if let Some(volume_info) = self.describe().map(Arc::new) {
            self.volume_info = Some(volume_info.clone());
            self.events.push_back(Event::Up(volume_info));
        }
    }

    /// The portrait as things stand; `None`: the path has not been up in this association.
    pub(super) fn describe(&self) -> Option<VolumeInfo> {
        let (path_facts, bringup) = (self.path_facts?, &self.bringup);
        let namespace = bringup.namespace.unwrap_or(path_facts.namespace);
        let controller = path_facts.controller;
        Some(VolumeInfo {
            uuid: facts::uuid(&bringup.identifiers),
            // Compare and write is a pair of commands in one queue.
            geometry: namespace.format.map(|format| volume::Geometry {
                caw_max: if self.io_queues.carries(2) { format.geometry.caw_max } else { 0 },
                ..format.geometry
            }),
            read_only: namespace.write_protected,
            access: bringup.access.unwrap_or(Access::Optimized),
            product: format!("{} {}", facts::text(&controller.model), facts::text(&controller.firmware)),
            serial: facts::serial(&controller, &namespace, &bringup.identifiers),
            depth: self.io_queues.window() as u32,
            terms: self.describe_terms(&path_facts, &namespace),
        })
    }

    fn describe_terms(&self, path_facts: &PathFacts, namespace: &NamespaceFacts) -> Vec<(String, String)> {
        let (controller, settings) = (&path_facts.controller, &self.settings);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let io = QueueId { association: self.association, qid: 1 };
        let terms = self.links.core(io).map(|core| *core.terms());
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let mut list = vec![
            ("SUBNQN", settings.subsystem.to_string()),
            ("HOSTNQN", settings.host.to_string()),
            ("HOSTID", settings.host_id.to_string()),
            ("NSID", settings.nsid.to_string()),
            ("CNTLID", format!("{:#06x}", controller.cntlid)),
            (
                "VS",
                format!(
                    "{}.{}.{}",
                    controller.version >> 16,
                    controller.version >> 8 & 255,
                    controller.version & 255
                ),
            ),
            ("I/O queues", self.io_queues.list.len().to_string()),
            ("SQSIZE", (self.entries() - 1).to_string()),
            ("SQ flow control", if settings.flow_control { "enabled" } else { "disabled" }.to_owned()),
            ("IOCCSZ", format!("{} bytes of data", controller.in_capsule_max)),
            ("MDTS", controller.transfer_max.map_or("no limit".into(), |bytes| format!("{bytes} bytes"))),
            ("KATO", format!("{} ms", settings.times.keep_alive.as_millis())),
            ("TBKAS", yes(controller.any_traffic_keeps_alive)),
            ("CQT", format!("{} ms", controller.quiesce.as_millis())),
            ("ONCS", format!("{:#06x}", controller.oncs)),
            ("fused compare and write", yes(controller.fused)),
            ("VWC", yes(controller.write_cache)),
            ("ANAGRPID", namespace.ana_group.to_string()),
            ("NMIC shared", yes(namespace.shared)),
            ("RESCAP", format!("{:#04x}", namespace.reservations)),
            ("EUI64", hex(&namespace.eui64)),
            ("NGUID", hex(&namespace.nguid)),
        ];
        if let Some(terms) = terms {
            list.push(("DGST", reasons::digests((terms.header_digest, terms.data_digest))));
            list.push(("MAXH2CDATA", terms.max_h2c_data.to_string()));
            list.push(("CPDA", (terms.controller_alignment / 4 - 1).to_string()));
            list.push(("HPDA", (terms.host_alignment / 4 - 1).to_string()));
            list.push(("MAXR2T", (terms.r2ts - 1).to_string()));
        }
        list.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The command of an operation is lost with its connection, if it is not up.
    pub(super) fn unpark(&mut self, tag: Tag) {
        if let Some(operation) = self.operations.get_mut(tag) {
            operation.parked = false;
        }
        self.finish_if_over(tag);
    }
}

/// A structure of 4096 bytes.
pub(super) fn structure(payload: &Payload) -> Result<[u8; identify::LEN], Refused> {
    let Payload::In(memory) = payload else { return Err(Refused::Lie("a structure did not come")) };
    let mut bytes = [0; identify::LEN];
    let mut at = 0;
    for piece in memory.pieces() {
        let room = bytes.get_mut(at..at + piece.len()).ok_or(Refused::Lie("a structure is too long"))?;
        room.copy_from_slice(piece);
        at += piece.len();
    }
    Ok(bytes)
}
