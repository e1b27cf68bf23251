//! Bringing up an association, step by step: the commands of the steps, and their answers.

use std::net::SocketAddr;
use std::time::Duration;

use buf::{Cx, Payload, Time};
use nvme::fabrics::{Connect, ConnectData, Property, PropertyAccess};
use nvme::feature::{FeatureSelect, Fid, GetFeatures, SetFeatures};
use nvme::identify::controller::NvmController;
use nvme::identify::{self, Cns, Controller, Identifiers, Identify, IndependentNamespace, Namespace};
use nvme::log::Lid;
use nvme::property::{Capabilities, Configuration, ControllerStatus};
use nvme::{Completion, Sqe};
use volume::Access;

use super::admin_commands::log_page;
use super::facts::{self, ControllerFacts, Limits, NamespaceFacts, Refused};
use super::fence::POLL;
use super::io_queues::IoQueues;
use super::links::QueueId;
use super::operation::PathFacts;
use super::reasons;
use super::settings::{KEEP_ALIVE_MAX, Settings};
use crate::trace::{Side, Trace};

/// Entries of the admin queue: the fewest that there may be.
const ADMIN_ENTRIES: u32 = Connect::ADMIN_ENTRIES_MIN;
/// Data in capsules of the admin queue (NVMe-TCP §3.3.1).
const ADMIN_CAPSULE_MAX: u32 = 8192;
/// From this version on there are namespace descriptors, and independent structures.
pub(super) const VERSION_DESCRIPTORS: u32 = 0x0001_0300;
pub(super) const VERSION_INDEPENDENT: u32 = 0x0002_0000;
/// Events that are wanted: namespace attributes, ANA.
const EVENTS: u32 = Controller::OAES_NAMESPACE_ATTRIBUTE | Controller::OAES_ANA_CHANGE;

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
    pub(super) fn name(self) -> &'static str {
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

    pub(super) fn next(self) -> Option<Step> {
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
    pub(super) fn is_optional(self) -> bool {
        matches!(self, Step::KeepAlive | Step::Events | Step::Independent | Step::Descriptors | Step::Limits)
    }
}

/// What has been found so far.
#[derive(Debug, Default)]
pub(super) struct Bringup {
    pub(super) peer: Option<SocketAddr>,
    pub(super) cntlid: u16,
    pub(super) capabilities: Option<Capabilities>,
    pub(super) version: u32,
    pub(super) controller: Option<ControllerFacts>,
    pub(super) namespace: Option<NamespaceFacts>,
    pub(super) identifiers: Identifiers,
    pub(super) limits: Option<Limits>,
    pub(super) access: Option<Access>,
    /// The Keep Alive Timeout that the controller says that it has; `None`: it does not say, or has none.
    pub(super) keep_alive: Option<Duration>,
    pub(super) queues: u16,
    /// A step that waits for memory, or for the controller to get ready.
    pub(super) waiting: Option<Step>,
    /// When to look again whether the controller is ready, and when it must be.
    pub(super) ready: Option<(Time, Time)>,
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

    /// How a queue is asked for.
    pub(super) fn connect_terms(&self, settings: &Settings, who: QueueId) -> (Connect, u16, u32) {
        let flow_control = settings.flow_control;
        let (entries, kato_ms) = match who.is_admin() {
            true => (ADMIN_ENTRIES, settings.times.keep_alive.as_millis() as u32),
            false => (self.entries(settings), 0),
        };
        let connect = Connect { qid: who.qid, entries, flow_control, individual_deletion: false, kato_ms };
        match self.controller.filter(|_| !who.is_admin()) {
            Some(controller) => (connect, self.cntlid, controller.in_capsule_max),
            None => (connect, ConnectData::DYNAMIC, ADMIN_CAPSULE_MAX),
        }
    }

    /// Entries of an I/O queue: one stays free (NVMe Base §3.3.1.4).
    pub(super) fn entries(&self, settings: &Settings) -> u32 {
        let capable = self.capabilities.map_or(2, |cap| cap.entries_max);
        let most = self.controller.and_then(|controller| controller.max_commands);
        let most = most.map_or(u32::MAX, |most| u32::from(most).max(2));
        (settings.depth + 1).min(capable).min(most).max(2)
    }

    /// The command of a step; `None`: there is no need, or no use.
    pub(super) fn command(&self, settings: &Settings, step: Step) -> Option<(Sqe, usize)> {
        let nsid = settings.nsid;
        let identify = |cns, nsid| {
            let command = Identify { cns, controller: 0, nsid, command_set: 0 };
            Some((command.sqe(), identify::LEN))
        };
        let feature = |fid, value| {
            let command = SetFeatures { fid, save: false, value, nsid: 0 };
            Some((command.sqe(), 0))
        };
        let version = self.version;
        match step {
            Step::Capabilities => Some((PropertyAccess::get_sqe(Property::CAP, 8), 0)),
            Step::Version => Some((PropertyAccess::get_sqe(Property::VS, 4), 0)),
            Step::Enable => Some((PropertyAccess::set_sqe(Property::CC, self.configuration().0), 0)),
            Step::Ready => Some((PropertyAccess::get_sqe(Property::CSTS, 4), 0)),
            Step::Controller => identify(Cns::CONTROLLER, 0),
            Step::KeepAlive => {
                let get = GetFeatures {
                    fid: Fid::KEEP_ALIVE_TIMER,
                    select: FeatureSelect::Current,
                    argument: 0,
                    nsid: 0,
                };
                Some((get.sqe(), 0))
            }
            Step::Queues => {
                let count = u32::from(settings.queues - 1);
                feature(Fid::NUMBER_OF_QUEUES, count << 16 | count)
            }
            Step::Events => {
                let wanted = self.controller?.events & EVENTS;
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
        let len = self.controller?.ana_log_len()?;
        Some(log_page(Lid::ANA, 1, 0, 0, len))
    }

    /// Whether the path serves, and what was learnt of the namespace is from when it did not.
    pub(super) fn is_contradictory(&self) -> bool {
        let is_silent = self.namespace.is_some_and(|namespace| namespace.format.is_none());
        is_silent && self.access.is_some_and(|access| access.serves())
    }

    /// Takes what a step found.
    pub(super) fn judge(
        &mut self,
        cx: &Cx<'_>,
        settings: &Settings,
        trace: &mut Trace,
        step: Step,
        end: Completion,
        payload: &Payload,
    ) -> Result<(), Refused> {
        let at = (0, step.name());
        let result = end.result;
        match step {
            Step::Capabilities => {
                trace.field(cx.now, at, Side::Target, "CAP", || format!("{result:#018x}"));
                self.capabilities = Some(Capabilities::parse(result));
            }
            Step::Version => {
                trace.field(cx.now, at, Side::Target, "VS", || format!("{:#010x}", result as u32));
                self.version = result as u32;
            }
            Step::Enable => {
                let until = cx.now + self.ready_within(settings);
                self.ready = Some((until, until));
            }
            Step::Ready => {
                trace.field(cx.now, at, Side::Target, "CSTS", || format!("{:#x}", result as u32));
                let status = ControllerStatus::parse(result);
                if status.fatal {
                    return Err(Refused::Foreign("the controller is in a fatal state (CSTS.CFS)"));
                }
                let until = self.ready.map_or(cx.now, |(_, until)| until);
                self.ready = if status.ready { None } else { Some((cx.now + POLL, until)) };
            }
            Step::KeepAlive => {
                let kato = result as u32;
                trace.field(cx.now, at, Side::Target, "KATO", || format!("{kato} ms"));
                // An hour is the longest that we ask for: what claims more is not waited for any longer.
                let kato = Duration::from_millis(kato.into()).min(KEEP_ALIVE_MAX);
                self.keep_alive = Some(kato).filter(|kato| !kato.is_zero());
            }
            Step::Queues => {
                let granted = (result as u16).min((result >> 16) as u16).saturating_add(1);
                self.queues = granted.min(settings.queues);
                trace.field(cx.now, at, Side::Target, "granted", || granted.to_string());
            }
            Step::Events => {}
            Step::Controller => {
                let said = Controller::parse(&structure(payload)?);
                let facts = ControllerFacts::judge(&said, self.cntlid, settings.nsid)?;
                self.controller = Some(facts);
            }
            Step::Namespace => {
                let controller = self.controller.ok_or(Refused::Lie("there is no controller"))?;
                let said = Namespace::parse(&structure(payload)?);
                self.namespace = Some(NamespaceFacts::judge(&said, &controller, settings)?);
            }
            Step::Independent => {
                let said = IndependentNamespace::parse(&structure(payload)?);
                self.namespace = self.namespace.map(|namespace| namespace.merge_independent(&said));
            }
            Step::Descriptors => {
                self.identifiers = Identifiers::parse(&structure(payload)?);
                if self.identifiers.command_set.is_some_and(|set| set != 0) {
                    return Err(Refused::Foreign("the namespace is not of the NVM command set"));
                }
            }
            Step::Limits => {
                let said = NvmController::parse(&structure(payload)?);
                if let Some(format) = self.namespace.and_then(|namespace| namespace.format) {
                    let unknown = Limits::unknown(format.transfer_blocks());
                    self.limits = Some(Limits::judge(&said, format.shift, unknown));
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
        let group = self.namespace.map_or(0, |namespace| namespace.ana_group);
        let most = self.controller.and_then(|controller| controller.ana_groups).unwrap_or(0);
        self.access = Some(facts::access(&bytes, group, most));
    }

    /// How long after its loss a controller may carry on; `ended`: its admin queue was closed in good order.
    pub(super) fn patience(
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
    pub(super) fn describe_terms(
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
            ("SQSIZE", (self.entries(settings) - 1).to_string()),
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
