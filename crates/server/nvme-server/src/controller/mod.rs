//! Controllers (NVMe Base §3.1): each lives on the shard of its admin queue.
//!
//! A controller knows its I/O queues by number and shard, and exchanges messages with them, even with those
//! of its own shard. It is gone when its admin queue and all its I/O queues are.
//!
//! Invariants: a queue is a member from the moment its Connect was admitted until the message that it is gone. What an
//! admin command has asked of a volume is waited for, also when the command was ended ([`Unanswered`]). So no reset,
//! shutdown or end is complete while a command may still run.

pub(crate) mod abort;
pub(crate) mod ana;
pub(crate) mod async_events;
pub(crate) mod error_log;
pub(crate) mod feature_values;
mod lifecycle;
mod open_controller;
mod queue_messages;
pub(crate) mod reservation_notices;
pub(crate) mod reset;
mod timeouts;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use buf::Time;
use nvme::property::{ControllerConfiguration, ControllerStatus};
use nvme::{ControllerInstance, Status};
use volume::{IdSpace, RequestId, ShardId};

use crate::discovery::DiscoveryEntries;
use crate::queue_message::QueueCounters;
use crate::spec::{ControllerSpec, NamespaceEntry, QUEUES_MAX, QueueSpec};
use crate::step::{CommandKey, ControllerEnd, QueueKey};

use ana::AnaGroups;
use async_events::AsyncEvents;
use error_log::ErrorLog;
use feature_values::FeatureValues;

/// The command retry delay (CRDT1) in units of 100 ms: after so long what kept a command from being
/// executed, as too many others, should be over.
pub(crate) const RETRY_DELAY: u16 = 1;

/// A controller.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) spec: ControllerSpec,
    pub(crate) association: u64,
    /// By what other controllers may be asked to reset this life of it.
    pub(crate) instance: ControllerInstance,
    pub(crate) admin: QueueKey,
    /// Ascending by NSID, each once.
    pub(crate) namespaces: Arc<[NamespaceEntry]>,
    pub(crate) configuration: ControllerConfiguration,
    pub(crate) status: ControllerStatus,
    /// How many I/O queues may be connected.
    pub(crate) granted: u16,
    pub(crate) members: Vec<JoinedQueue>,
    /// The queue slot that was given last to a queue that had something to prove.
    pub(crate) last_queue_slot: u16,
    /// Admin commands that wait: at most as many as the admin queue has entries.
    pub(crate) waiting: Vec<WaitingCommand>,
    /// Counts questions to queues.
    pub(crate) tickets: u64,
    /// What queues did that are gone.
    pub(crate) past: QueueCounters,
    pub(crate) opened: Time,
    /// Keep alive: how long the host may be silent, and when it was heard last.
    pub(crate) keep_alive_timeout: Option<Duration>,
    pub(crate) last_heard: Time,
    /// When an I/O queue was lost that ends the association.
    pub(crate) lost: Option<Time>,
    /// The time under which it stands among the timers.
    pub(crate) armed: Option<Time>,
    /// It is to end, and why.
    pub(crate) ending: Option<ControllerEnd>,
    /// The admin queue is gone.
    pub(crate) admin_gone: bool,
    /// What commands that have been ended since have asked of volumes, and has no answer yet.
    pub(crate) unanswered: Vec<Unanswered>,
    pub(crate) events: AsyncEvents,
    pub(crate) errors: ErrorLog,
    pub(crate) features: FeatureValues,
    pub(crate) ana: AnaGroups,
    pub(crate) notices: reservation_notices::ReservationNoticeLog,
    /// The discovery log as it was last begun to be read.
    pub(crate) snapshot: Option<Arc<DiscoveryEntries>>,
}

/// How many queues a controller knows at most, those that prove nothing among them: eight for each
/// identifier. The composition lets far fewer strangers in.
pub(crate) const KNOWN_QUEUES_MAX: usize = 8 * QUEUES_MAX as usize;

/// An I/O queue of a controller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinedQueue {
    pub(crate) qid: u16,
    /// What it is called in messages.
    pub(crate) queue_slot: u16,
    /// Its host has proved who it is, or need not: only then the identifier is its own.
    pub(crate) proven: bool,
    pub(crate) shard: ShardId,
    /// Whether it has said that it is open.
    pub(crate) open: bool,
    /// What it reported last.
    pub(crate) counters: QueueCounters,
}

/// What an admin command has asked of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// A request to its home.
    Request(RequestId),
    /// A format: until it has begun, or was refused. Then it goes on without its host.
    Format(u64),
}

/// An admin command that waits.
#[derive(Debug)]
pub(crate) struct WaitingCommand {
    pub(crate) key: CommandKey,
    pub(crate) cid: u16,
    pub(crate) on: AdminWait,
}

/// What an admin command waits for.
#[derive(Debug)]
pub(crate) enum AdminWait {
    /// An event.
    Event,
    /// Its data: a feature's.
    Feature(nvme::feature::SetFeatures),
    /// An answer of a volume's home.
    VolumeRequest(RequestId),
    /// A queue's answer whether a command was aborted.
    Abort { ticket: u64 },
    /// Reports of these queues, then a log page.
    Reports { ticket: u64, from: Vec<u16>, page: nvme::log::GetLogPage },
    /// Each shard's answer which controllers it has: so many have come, with these. The list begins at
    /// `from`.
    ControllerList { id: u64, from: u16, answers: u16, found: Vec<u16> },
    /// Each shard's answer to a Cross-Controller Reset: so many have come. `status`: how it ends so far.
    Reset { id: u64, instance: ControllerInstance, answers: u16, status: Status },
    /// The end of a format; whether it has begun.
    Format { id: u64, begun: bool },
    /// Memory for its answer; it has done nothing yet.
    Memory(Box<nvme::Sqe>),
    /// Memory for a log page whose queues have reported.
    MemoryForPage(nvme::log::GetLogPage),
    /// Memory for a list of these controllers, from one on.
    MemoryForList(Vec<u16>, u16),
}

/// The controllers of a shard.
#[derive(Debug, Default)]
pub(crate) struct Controllers {
    pub(crate) here: HashMap<u16, Controller>,
    timers: BTreeSet<(Time, ControllerTimer)>,
    pub(crate) associations: u64,
    requests: u64,
    lists: u64,
    /// Who waits for the end of a controller of this shard.
    pub(crate) resets: Vec<reset::ResetWaiter>,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ControllerTimer {
    /// A controller's deadline.
    Controller(u16),
    /// A queue's, to authenticate.
    Queue(QueueKey),
}

impl Controllers {
    /// A number for a question to all shards.
    pub(crate) fn next_list_id(&mut self) -> u64 {
        self.lists += 1;
        self.lists
    }

    /// Moves a timer.
    pub(crate) fn move_timer(&mut self, due: ControllerTimer, from: Option<Time>, to: Option<Time>) {
        if from == to {
            return;
        }
        if let Some(from) = from {
            self.timers.remove(&(from, due));
        }
        if let Some(to) = to {
            self.timers.insert((to, due));
        }
    }

    pub(crate) fn find(&self, cntlid: u16) -> Option<&Controller> {
        self.here.get(&cntlid)
    }

    pub(crate) fn find_mut(&mut self, cntlid: u16) -> Option<&mut Controller> {
        self.here.get_mut(&cntlid)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Controller> {
        self.here.values()
    }

    /// A name for a request of an admin command. Bit 61 tells it from those of I/O commands.
    pub(crate) fn next_request_id(&mut self) -> RequestId {
        self.requests += 1;
        RequestId::in_space(IdSpace::Nvme, 1 << 61 | self.requests)
    }
}

impl Controller {
    pub(crate) fn is_discovery(&self) -> bool {
        self.spec.discovery.is_some()
    }

    /// A command that waits is ended: what it has asked of a volume may still be carried out.
    pub(crate) fn note_ended_command(&mut self, waiting: &WaitingCommand) {
        match waiting.on {
            AdminWait::VolumeRequest(id) => self.unanswered.push(Unanswered::Request(id)),
            AdminWait::Format { id, begun: false } => self.unanswered.push(Unanswered::Format(id)),
            AdminWait::Format { begun: true, .. }
            | AdminWait::Event
            | AdminWait::Feature(_)
            | AdminWait::Abort { .. }
            | AdminWait::Reports { .. }
            | AdminWait::ControllerList { .. }
            | AdminWait::Reset { .. }
            | AdminWait::Memory(_)
            | AdminWait::MemoryForPage(_)
            | AdminWait::MemoryForList(..) => {}
        }
    }

    /// The namespace of this number.
    pub(crate) fn namespace(&self, nsid: u32) -> Option<&NamespaceEntry> {
        let at = self.namespaces.binary_search_by_key(&nsid, |entry| entry.nsid).ok()?;
        self.namespaces.get(at)
    }

    /// A slot for a queue that has still to prove something. They go round, so that a late message finds
    /// nobody rather than another.
    fn free_queue_slot(&mut self) -> Option<u16> {
        if self.members.len() >= KNOWN_QUEUES_MAX {
            return None;
        }
        loop {
            self.last_queue_slot = self.last_queue_slot.checked_add(1).unwrap_or(QUEUES_MAX + 1);
            if self.members.iter().all(|member| member.queue_slot != self.last_queue_slot) {
                return Some(self.last_queue_slot);
            }
        }
    }

    pub(crate) fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// The sum of what the I/O queues have reported, queues that have ended included. The admin queue's counters
    /// are in its entry of `context.queues`.
    pub(crate) fn counters(&self) -> QueueCounters {
        self.members.iter().fold(self.past, |sum, member| sum.sum(member.counters))
    }

    /// How often its I/O queues are to tell of commands at most: each quarter of the timeout.
    pub(crate) fn traffic_notice_interval_ms(&self) -> u32 {
        self.keep_alive_timeout.map_or(0, |keep_alive_timeout| keep_alive_timeout.as_millis() as u32 / 4)
    }

    /// The keep-alive timeout in milliseconds; 0 is none.
    pub(crate) fn kato_ms(&self) -> u32 {
        self.spec.kato_ms
    }

    /// Sets it. False, and nothing is set: it is none that is granted.
    #[must_use]
    pub(crate) fn set_kato(&mut self, now: Time, kato_ms: u32) -> bool {
        let Some(granted) = self.spec.keep_alive.granted_timeout_ms(kato_ms) else { return false };
        self.spec.kato_ms = granted;
        let idle = self.is_discovery().then_some(lifecycle::DISCOVERY_TIMEOUT);
        let asked = Duration::from_millis(self.spec.kato_ms.into());
        self.keep_alive_timeout = if asked.is_zero() { idle } else { Some(asked) };
        self.last_heard = now;
        true
    }
}

impl Controller {
    fn queue_spec(&self, home: ShardId, qid: u16, entries: u32, flow_control: bool) -> QueueSpec {
        QueueSpec {
            cntlid: self.spec.cntlid,
            association: self.association,
            qid,
            queue_slot: qid,
            entries,
            flow_control,
            in_capsule: if qid == 0 { 8192 } else { self.spec.limits.in_capsule },
            home,
            host: self.spec.host.clone(),
            nexus: self.spec.nexus.clone(),
            namespaces: self.namespaces.clone(),
            transfer_max: self.spec.limits.transfer.bytes(),
            traffic_ms: if qid == 0 { 0 } else { self.traffic_notice_interval_ms() },
            delays_retries: self.features.supports_retry_delay(),
            auth: self.spec.auth.clone(),
        }
    }
}
