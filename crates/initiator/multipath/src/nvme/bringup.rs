//! Bringing up an association, step by step: the commands of the steps, and their answers.

use std::net::SocketAddr;
use std::time::Duration;

use buf::{Cx, Payload, Time};
use nvme::fabrics::{Connect, ConnectData, Property, PropertyAccess};
use nvme::feature::{FeatureId, FeatureSelect, GetFeatures, SetFeatures};
use nvme::identify::controller::IdentifyNvmController;
use nvme::identify::{
    self, Cns, Identify, IdentifyController, IdentifyIndependentNamespace, IdentifyNamespace,
    NamespaceIdentifiers,
};
use nvme::log::LogPageId;
use nvme::property::{ControllerCapabilities, ControllerConfiguration, ControllerStatus};
use nvme::{Completion, Sqe};
use volume::PathAccess;

use super::admin_commands::log_page_command;
use super::down_reasons;
use super::facts::{self, CommandLimits, ControllerFacts, NamespaceFacts, UnusableFacts};
use super::fence::CSTS_POLL_INTERVAL;
use super::io_queues::IoQueues;
use super::operation::PathFacts;
use super::queue_links::QueueId;
use super::settings::{KEEP_ALIVE_MAX, Settings};
use crate::trace::{Speaker, Trace};

/// Entries of the admin queue: the fewest that there may be.
const ADMIN_QUEUE_ENTRIES: u32 = Connect::ADMIN_ENTRIES_MIN;
/// Data in capsules of the admin queue (NVMe-TCP §3.3.1).
const ADMIN_CAPSULE_DATA_MAX: u32 = 8192;
/// From this version on there are namespace descriptors, and independent structures.
pub(super) const VERSION_WITH_DESCRIPTORS: u32 = 0x0001_0300;
pub(super) const VERSION_WITH_INDEPENDENT: u32 = 0x0002_0000;
/// Events that are wanted: namespace attributes, ANA.
const ENABLED_ASYNC_EVENTS: u32 =
    IdentifyController::OAES_NAMESPACE_ATTRIBUTE | IdentifyController::OAES_ANA_CHANGE;

/// A step of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BringupStep {
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

impl BringupStep {
    pub(super) fn step_name(self) -> &'static str {
        match self {
            BringupStep::Capabilities => "Property Get CAP",
            BringupStep::Version => "Property Get VS",
            BringupStep::Enable => "Property Set CC.EN = 1",
            BringupStep::Ready => "Property Get CSTS",
            BringupStep::Controller => "Identify Controller",
            BringupStep::KeepAlive => "Get Features, Keep Alive Timer",
            BringupStep::Queues => "Set Features, Number of Queues",
            BringupStep::Events => "Set Features, Asynchronous Event Configuration",
            BringupStep::Namespace => "Identify Namespace",
            BringupStep::Independent => "Identify Namespace, command set independent",
            BringupStep::Descriptors => "Identify Namespace Identification Descriptors",
            BringupStep::Limits => "Identify Controller, NVM command set",
            BringupStep::Ana => "Get Log Page, ANA",
        }
    }

    pub(super) fn next_step(self) -> Option<BringupStep> {
        Some(match self {
            BringupStep::Capabilities => BringupStep::Version,
            BringupStep::Version => BringupStep::Enable,
            BringupStep::Enable => BringupStep::Ready,
            BringupStep::Ready => BringupStep::Controller,
            BringupStep::Controller => BringupStep::KeepAlive,
            BringupStep::KeepAlive => BringupStep::Queues,
            BringupStep::Queues => BringupStep::Events,
            BringupStep::Events => BringupStep::Namespace,
            BringupStep::Namespace => BringupStep::Independent,
            BringupStep::Independent => BringupStep::Descriptors,
            BringupStep::Descriptors => BringupStep::Limits,
            BringupStep::Limits => BringupStep::Ana,
            BringupStep::Ana => return None,
        })
    }

    /// Whether a controller may do without it.
    pub(super) fn is_optional(self) -> bool {
        matches!(
            self,
            BringupStep::KeepAlive
                | BringupStep::Events
                | BringupStep::Independent
                | BringupStep::Descriptors
                | BringupStep::Limits
        )
    }
}

/// What has been found so far.
#[derive(Debug, Default)]
pub(super) struct BringupState {
    pub(super) peer: Option<SocketAddr>,
    pub(super) cntlid: u16,
    pub(super) capabilities: Option<ControllerCapabilities>,
    pub(super) version: u32,
    pub(super) controller: Option<ControllerFacts>,
    pub(super) namespace: Option<NamespaceFacts>,
    pub(super) identifiers: NamespaceIdentifiers,
    pub(super) limits: Option<CommandLimits>,
    pub(super) access: Option<PathAccess>,
    /// The Keep Alive Timeout that the controller says that it has; `None`: it does not say, or has none.
    pub(super) keep_alive: Option<Duration>,
    pub(super) queues: u16,
    /// A step that waits for memory, or for the controller to get ready.
    pub(super) waiting: Option<BringupStep>,
    /// When to look again whether the controller is ready, and when it must be.
    pub(super) ready: Option<(Time, Time)>,
}

impl BringupState {
    pub(super) fn controller_configuration(&self) -> ControllerConfiguration {
        ControllerConfiguration::ENABLE
    }

    pub(super) fn ready_timeout(&self, settings: &Settings) -> Duration {
        self.capabilities.map_or(settings.times.command, |cap| facts::ready_timeout(&cap, settings))
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.ready.map(|(next, until)| next.min(until))
    }

    /// How a queue is asked for.
    pub(super) fn connect_command(&self, settings: &Settings, who: QueueId) -> (Connect, u16, u32) {
        let flow_control = settings.flow_control;
        let (entries, kato_ms) = match who.is_admin() {
            true => (ADMIN_QUEUE_ENTRIES, settings.times.keep_alive.as_millis() as u32),
            false => (self.io_queue_entries(settings), 0),
        };
        let connect = Connect { qid: who.qid, entries, flow_control, individual_deletion: false, kato_ms };
        match self.controller.filter(|_| !who.is_admin()) {
            Some(controller) => (connect, self.cntlid, controller.in_capsule_max),
            None => (connect, ConnectData::DYNAMIC, ADMIN_CAPSULE_DATA_MAX),
        }
    }

    /// Entries of an I/O queue: one stays free (NVMe Base §3.3.1.4).
    pub(super) fn io_queue_entries(&self, settings: &Settings) -> u32 {
        let capable = self.capabilities.map_or(2, |cap| cap.entries_max);
        let most = self.controller.and_then(|controller| controller.max_commands);
        let most = most.map_or(u32::MAX, |most| u32::from(most).max(2));
        (settings.depth + 1).min(capable).min(most).max(2)
    }

    /// The command of a step; `None`: there is no need, or no use.
    pub(super) fn step_command(&self, settings: &Settings, step: BringupStep) -> Option<(Sqe, usize)> {
        let nsid = settings.nsid;
        let identify = |cns, nsid| {
            let command = Identify { cns, controller: 0, nsid, command_set: 0 };
            Some((command.to_sqe(), identify::IDENTIFY_LEN))
        };
        let feature = |fid, value| {
            let command = SetFeatures { fid, save: false, value, nsid: 0 };
            Some((command.to_sqe(), 0))
        };
        let version = self.version;
        match step {
            BringupStep::Capabilities => Some((PropertyAccess::property_get_sqe(Property::CAP, 8), 0)),
            BringupStep::Version => Some((PropertyAccess::property_get_sqe(Property::VS, 4), 0)),
            BringupStep::Enable => {
                Some((PropertyAccess::property_set_sqe(Property::CC, self.controller_configuration().0), 0))
            }
            BringupStep::Ready => Some((PropertyAccess::property_get_sqe(Property::CSTS, 4), 0)),
            BringupStep::Controller => identify(Cns::CONTROLLER, 0),
            BringupStep::KeepAlive => {
                let get = GetFeatures {
                    fid: FeatureId::KEEP_ALIVE_TIMER,
                    select: FeatureSelect::Current,
                    argument: 0,
                    nsid: 0,
                };
                Some((get.to_sqe(), 0))
            }
            BringupStep::Queues => {
                let count = u32::from(settings.queues - 1);
                feature(FeatureId::NUMBER_OF_QUEUES, count << 16 | count)
            }
            BringupStep::Events => {
                let wanted = self.controller?.events & ENABLED_ASYNC_EVENTS;
                if wanted == 0 { None } else { feature(FeatureId::ASYNC_EVENT_CONFIGURATION, wanted) }
            }
            BringupStep::Namespace => identify(Cns::NAMESPACE, nsid),
            BringupStep::Independent if version >= VERSION_WITH_INDEPENDENT => {
                identify(Cns::INDEPENDENT_NAMESPACE, nsid)
            }
            BringupStep::Descriptors if version >= VERSION_WITH_DESCRIPTORS => {
                identify(Cns::NAMESPACE_DESCRIPTORS, nsid)
            }
            BringupStep::Limits if version >= VERSION_WITH_INDEPENDENT => {
                identify(Cns::COMMAND_SET_CONTROLLER, 0)
            }
            BringupStep::Independent | BringupStep::Descriptors | BringupStep::Limits => None,
            BringupStep::Ana => self.ana_log_command(),
        }
    }

    /// Reads the states of all groups, and clears the event of it.
    pub(super) fn ana_log_command(&self) -> Option<(Sqe, usize)> {
        let len = self.controller?.ana_log_len()?;
        Some(log_page_command(LogPageId::ANA, 1, 0, 0, len))
    }

    /// Whether the path serves, and what was learnt of the namespace is from when it did not.
    pub(super) fn is_namespace_unread(&self) -> bool {
        let is_silent = self.namespace.is_some_and(|namespace| namespace.format.is_none());
        is_silent && self.access.is_some_and(|access| access.allows_io())
    }

    /// Takes what a step found.
    pub(super) fn handle_step_result(
        &mut self,
        cx: &Cx<'_>,
        settings: &Settings,
        trace: &mut Trace,
        step: BringupStep,
        end: Completion,
        payload: &Payload,
    ) -> Result<(), UnusableFacts> {
        let at = (0, step.step_name());
        let result = end.result;
        match step {
            BringupStep::Capabilities => {
                trace.trace_field(cx.now, at, Speaker::Target, "CAP", || format!("{result:#018x}"));
                self.capabilities = Some(ControllerCapabilities::parse(result));
            }
            BringupStep::Version => {
                trace.trace_field(cx.now, at, Speaker::Target, "VS", || format!("{:#010x}", result as u32));
                self.version = result as u32;
            }
            BringupStep::Enable => {
                let until = cx.now + self.ready_timeout(settings);
                self.ready = Some((until, until));
            }
            BringupStep::Ready => {
                trace.trace_field(cx.now, at, Speaker::Target, "CSTS", || format!("{:#x}", result as u32));
                let status = ControllerStatus::parse(result);
                if status.fatal {
                    return Err(UnusableFacts::Foreign("the controller is in a fatal state (CSTS.CFS)"));
                }
                let until = self.ready.map_or(cx.now, |(_, until)| until);
                self.ready = if status.ready { None } else { Some((cx.now + CSTS_POLL_INTERVAL, until)) };
            }
            BringupStep::KeepAlive => {
                let kato = result as u32;
                trace.trace_field(cx.now, at, Speaker::Target, "KATO", || format!("{kato} ms"));
                // An hour is the longest that we ask for: what claims more is not waited for any longer.
                let kato = Duration::from_millis(kato.into()).min(KEEP_ALIVE_MAX);
                self.keep_alive = Some(kato).filter(|kato| !kato.is_zero());
            }
            BringupStep::Queues => {
                let granted = (result as u16).min((result >> 16) as u16).saturating_add(1);
                self.queues = granted.min(settings.queues);
                trace.trace_field(cx.now, at, Speaker::Target, "granted", || granted.to_string());
            }
            BringupStep::Events => {}
            BringupStep::Controller => {
                let said = IdentifyController::parse(&identify_data(payload)?);
                let facts = ControllerFacts::from_identify(&said, self.cntlid, settings.nsid)?;
                self.controller = Some(facts);
            }
            BringupStep::Namespace => {
                let controller = self.controller.ok_or(UnusableFacts::Lie("there is no controller"))?;
                let said = IdentifyNamespace::parse(&identify_data(payload)?);
                self.namespace = Some(NamespaceFacts::from_identify(&said, &controller, settings)?);
            }
            BringupStep::Independent => {
                let said = IdentifyIndependentNamespace::parse(&identify_data(payload)?);
                self.namespace = self.namespace.map(|namespace| namespace.merge_independent(&said));
            }
            BringupStep::Descriptors => {
                self.identifiers = NamespaceIdentifiers::parse(&identify_data(payload)?);
                if self.identifiers.command_set.is_some_and(|set| set != 0) {
                    return Err(UnusableFacts::Foreign("the namespace is not of the NVM command set"));
                }
            }
            BringupStep::Limits => {
                let said = IdentifyNvmController::parse(&identify_data(payload)?);
                if let Some(format) = self.namespace.and_then(|namespace| namespace.format) {
                    let unknown = CommandLimits::defaults(format.transfer_blocks());
                    self.limits = Some(CommandLimits::from_identify(&said, format.shift, unknown));
                }
            }
            BringupStep::Ana => self.parse_ana_log(payload),
        }
        Ok(())
    }

    /// Takes the states of groups.
    pub(super) fn parse_ana_log(&mut self, payload: &Payload) {
        let Payload::In(log) = payload else { return };
        let mut bytes = Vec::with_capacity(log.len());
        log.pieces().iter().for_each(|piece| bytes.extend_from_slice(piece));
        let group = self.namespace.map_or(0, |namespace| namespace.ana_group);
        let most = self.controller.and_then(|controller| controller.ana_groups).unwrap_or(0);
        self.access = Some(facts::ana_group_access(&bytes, group, most));
    }

    /// How long after its loss a controller may carry on; `ended`: its admin queue was closed in good order.
    pub(super) fn lost_command_lifetime(
        &self,
        settings: &Settings,
        controller: Option<ControllerFacts>,
        ended: bool,
    ) -> Duration {
        let quiesce = controller.map_or(Duration::ZERO, |controller| controller.quiesce);
        let times = settings.times;
        let unit = controller.map_or(Duration::from_secs(1), |controller| controller.keep_alive_unit);
        // The controller may have taken a longer one than it was asked for.
        let keep_alive = self.keep_alive.map_or(times.keep_alive, |theirs| theirs.max(times.keep_alive));
        let units = keep_alive.as_millis().div_ceil(unit.as_millis().max(1));
        let keep_alive = unit.saturating_mul(u32::try_from(units).unwrap_or(u32::MAX));
        let any = controller.is_none_or(|controller| controller.any_traffic_keeps_alive);
        let count = match (ended, any) {
            (true, _) => 1,
            (false, true) => 3,
            (false, false) => 2,
        };
        (keep_alive.saturating_mul(count).saturating_add(quiesce)).max(times.lost_least)
    }

    /// The terms of an association, for people; `terms`: those of an I/O queue.
    pub(super) fn association_terms(
        &self,
        settings: &Settings,
        io_queues: &IoQueues,
        known: &PathFacts,
        namespace: &NamespaceFacts,
        terms: Option<nvme_tcp::wire::ConnectionParameters>,
    ) -> Vec<(String, String)> {
        let controller = &known.controller;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
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
            ("I/O queues", io_queues.list.len().to_string()),
            ("SQSIZE", (self.io_queue_entries(settings) - 1).to_string()),
            ("SQ flow control", if settings.flow_control { "enabled" } else { "disabled" }.to_owned()),
            ("IOCCSZ", format!("{} bytes of data", controller.in_capsule_max)),
            ("MDTS", controller.transfer_max.map_or("no limit".into(), |bytes| format!("{bytes} bytes"))),
            ("KATO", format!("{} ms", settings.times.keep_alive.as_millis())),
            ("TBKAS", yes(controller.any_traffic_keeps_alive)),
            ("CQT", format!("{} ms", controller.quiesce.as_millis())),
            ("CCRL", controller.peer_resets.to_string()),
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
            list.push(("DGST", down_reasons::digests_text((terms.header_digest, terms.data_digest))));
            list.push(("MAXH2CDATA", terms.max_h2c_data.to_string()));
            list.push(("CPDA", (terms.controller_alignment / 4 - 1).to_string()));
            list.push(("HPDA", (terms.host_alignment / 4 - 1).to_string()));
            list.push(("MAXR2T", (terms.r2ts - 1).to_string()));
        }
        list.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// A structure of 4096 bytes.
pub(super) fn identify_data(payload: &Payload) -> Result<[u8; identify::IDENTIFY_LEN], UnusableFacts> {
    let Payload::In(memory) = payload else { return Err(UnusableFacts::Lie("a structure did not come")) };
    let mut bytes = [0; identify::IDENTIFY_LEN];
    let mut at = 0;
    for piece in memory.pieces() {
        let room =
            bytes.get_mut(at..at + piece.len()).ok_or(UnusableFacts::Lie("a structure is too long"))?;
        room.copy_from_slice(piece);
        at += piece.len();
    }
    Ok(bytes)
}
