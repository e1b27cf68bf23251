//! Controllers (NVMe Base §3.1): each lives on the shard of its admin queue.
//!
//! A controller knows its I/O queues by number and shard, and talks to them by messages, even to those
//! of its own shard. It is gone when its admin queue and all its I/O queues are.
//!
//! Invariant: a queue is a member from the moment that its Connect was let in until the message that it
//! is gone; so no reset, shutdown or end is complete while a command of it may still run.

pub(crate) mod abort;
pub(crate) mod ana;
pub(crate) mod errors;
pub(crate) mod events;
mod life;
pub(crate) mod notices;
mod queue_messages;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Time};
use nvme::Completion;
use nvme::fabrics::ConnectRefusal;
use nvme::property::{Configuration, ControllerStatus, Shutdown};
use volume::{AskId, Shard};

use crate::admin::features::Features;
use crate::admin::logs::Snapshot;
use crate::authentication::Authentication;
use crate::queue_message::Counters;
use crate::server::Server;
use crate::spec::{ControllerSpec, Join, NamespaceEntry, QUEUES_MAX, QueueSpec, ordered};
use crate::step::{CommandKey, Gone, QueueKey};

use ana::Ana;
use errors::Errors;
use events::Events;

/// The command retry delay (CRDT1) in units of 100 ms: after so long what kept a command from being
/// executed, as too many others, should be over.
pub(crate) const RETRY_DELAY: u16 = 1;

/// A controller.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) spec: ControllerSpec,
    pub(crate) association: u64,
    pub(crate) admin: QueueKey,
    /// Ascending by NSID, each once.
    pub(crate) namespaces: Arc<[NamespaceEntry]>,
    pub(crate) configuration: Configuration,
    pub(crate) status: ControllerStatus,
    /// How many I/O queues may be connected.
    pub(crate) granted: u16,
    pub(crate) members: Vec<Member>,
    /// The queue slot that was given last to a queue that had something to prove.
    last_queue_slot: u16,
    /// Admin commands that wait: at most as many as the admin queue has entries.
    pub(crate) waiting: Vec<Waiting>,
    /// Counts questions to queues.
    pub(crate) tickets: u64,
    /// What queues did that are gone.
    pub(crate) past: Counters,
    pub(crate) opened: Time,
    /// Keep alive: how long the host may be silent, and when it was heard last.
    pub(crate) patience: Option<Duration>,
    pub(crate) heard: Time,
    /// When an I/O queue was lost that ends the association.
    pub(crate) lost: Option<Time>,
    /// The time under which it stands among the timers.
    armed: Option<Time>,
    /// It is to end, and why.
    pub(crate) ending: Option<Gone>,
    /// The admin queue is gone.
    admin_gone: bool,
    pub(crate) events: Events,
    pub(crate) errors: Errors,
    pub(crate) features: Features,
    pub(crate) ana: Ana,
    pub(crate) notices: notices::Notices,
    /// The discovery log as it was last begun to be read.
    pub(crate) snapshot: Option<Snapshot>,
}

/// How many queues a controller knows at most, those that prove nothing among them: eight for each
/// identifier. The composition lets far fewer strangers in.
const MEMBERS_MAX: usize = 8 * QUEUES_MAX as usize;

/// An I/O queue of a controller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) qid: u16,
    /// What it is called in messages.
    pub(crate) queue_slot: u16,
    /// Its host has proved who it is, or need not: only then the identifier is its own.
    pub(crate) proven: bool,
    pub(crate) shard: Shard,
    /// Whether it has said that it is open.
    pub(crate) open: bool,
    /// What it reported last.
    pub(crate) counters: Counters,
}

/// An admin command that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) key: CommandKey,
    pub(crate) cid: u16,
    pub(crate) on: Wait,
}

/// What an admin command waits for.
#[derive(Debug)]
pub(crate) enum Wait {
    /// An event.
    Event,
    /// Its data: a feature's.
    Feature(nvme::feature::SetFeatures),
    /// An answer of a volume's home.
    VolumeRequest(AskId),
    /// A queue's answer whether a command was aborted.
    Abort { ticket: u64 },
    /// Reports of these queues, then a log page.
    Reports { ticket: u64, from: Vec<u16>, page: nvme::log::GetLogPage },
    /// Each shard's answer which controllers it has: so many have come, with these. The list begins at
    /// `from`.
    ControllerList { id: u64, from: u16, answers: u16, found: Vec<u16> },
    /// Memory for its answer; it has done nothing yet.
    Room(Box<nvme::Sqe>),
    /// Memory for a log page whose queues have reported.
    RoomForPage(nvme::log::GetLogPage),
    /// Memory for a list of these controllers, from one on.
    RoomForList(Vec<u16>, u16),
}

/// The controllers of a shard.
#[derive(Debug, Default)]
pub(crate) struct Controllers {
    here: HashMap<u16, Controller>,
    timers: BTreeSet<(Time, Due)>,
    associations: u64,
    asks: u64,
    lists: u64,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A controller's deadline.
    Controller(u16),
    /// A queue's, to authenticate.
    Queue(QueueKey),
}

impl Controllers {
    /// A number for a question to all shards.
    pub(crate) fn next_list(&mut self) -> u64 {
        self.lists += 1;
        self.lists
    }

    /// Moves a timer.
    pub(crate) fn rearm(&mut self, due: Due, from: Option<Time>, to: Option<Time>) {
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

    /// A name for an ask of an admin command. Bit 62 tells it from those of I/O commands.
    pub(crate) fn next_ask(&mut self) -> AskId {
        self.asks += 1;
        AskId(crate::task::OURS | 1 << 62 | self.asks)
    }
}

impl Controller {
    pub(crate) fn is_discovery(&self) -> bool {
        self.spec.discovery.is_some()
    }

    /// The namespace of this number.
    pub(crate) fn namespace(&self, nsid: u32) -> Option<&NamespaceEntry> {
        let at = self.namespaces.binary_search_by_key(&nsid, |entry| entry.nsid).ok()?;
        self.namespaces.get(at)
    }

    /// A slot for a queue that has still to prove something. They go round, so that a late message finds
    /// nobody rather than another.
    fn free_queue_slot(&mut self) -> Option<u16> {
        if self.members.len() >= MEMBERS_MAX {
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

    /// What the host has done so far, as far as its queues have told.
    pub(crate) fn counters(&self) -> Counters {
        self.members.iter().fold(self.past, |sum, member| sum.plus(member.counters))
    }

    /// How often its I/O queues are to tell of commands at most: each quarter of the timeout.
    pub(crate) fn traffic_ms(&self) -> u32 {
        self.patience.map_or(0, |patience| patience.as_millis() as u32 / 4)
    }

    /// The keep-alive timeout in milliseconds; 0 is none.
    pub(crate) fn kato_ms(&self) -> u32 {
        self.spec.kato_ms
    }

    /// Sets it. False, and nothing is set: it is none that is granted.
    #[must_use]
    pub(crate) fn set_kato(&mut self, now: Time, kato_ms: u32) -> bool {
        let Some(granted) = self.spec.keep_alive.granted(kato_ms) else { return false };
        self.spec.kato_ms = granted;
        let idle = self.is_discovery().then_some(life::DISCOVERY_PATIENCE);
        let asked = Duration::from_millis(self.spec.kato_ms.into());
        self.patience = if asked.is_zero() { idle } else { Some(asked) };
        self.heard = now;
        true
    }
}

impl Server {
    /// Opens a controller on this shard, with its admin queue, whose Connect [`Server::connected`]
    /// answers.
    ///
    /// # Panics
    /// If there is a controller of this number here: a number is given again only after
    /// [`Step::ControllerGone`](crate::Step::ControllerGone). If the keep-alive timeout is none that is
    /// granted ([`KeepAlive::granted`](crate::KeepAlive::granted)).
    pub fn open_controller(&mut self, cx: &mut Cx<'_>, spec: ControllerSpec) -> QueueKey {
        self.controllers.associations += 1;
        let association = self.controllers.associations;
        let namespaces = ordered(spec.namespaces.clone());
        let mut controller = Controller {
            association,
            admin: QueueKey(u32::MAX),
            namespaces,
            configuration: Configuration::default(),
            status: ControllerStatus::default(),
            granted: spec.limits.queues,
            members: Vec::new(),
            last_queue_slot: QUEUES_MAX,
            waiting: Vec::new(),
            tickets: 0,
            past: Counters::default(),
            opened: cx.now,
            patience: None,
            heard: cx.now,
            lost: None,
            armed: None,
            ending: None,
            admin_gone: false,
            events: Events::default(),
            errors: Errors::default(),
            features: Features::default(),
            ana: Ana::default(),
            notices: notices::Notices::default(),
            snapshot: None,
            spec,
        };
        let fits = controller.set_kato(cx.now, controller.spec.kato_ms);
        assert!(fits, "a Connect was refused whose keep-alive timeout is not granted");
        let cntlid = controller.spec.cntlid;
        let admin = self.open_queue(
            cx,
            controller.queue_spec(
                self.context.shard,
                0,
                controller.spec.entries,
                controller.spec.flow_control,
            ),
        );
        controller.admin = admin;
        let states = self.ana_states(&controller.namespaces, controller.spec.nexus.port);
        controller.ana.follow(states);
        let old = self.controllers.here.insert(cntlid, controller);
        assert!(old.is_none(), "a controller's number is given again only after it is gone");
        self.arm(cntlid);
        admin
    }

    /// Lets an I/O queue in, or says why not (NVMe Base §6.3, in the order of its checks). The queue
    /// counts from now on: it is to be opened on `join.shard`, or given up there.
    pub fn join(&mut self, cntlid: u16, join: &Join) -> Result<QueueSpec, ConnectRefusal> {
        let shard = self.context.shard;
        let controller = self.controllers.find_mut(cntlid).ok_or(ConnectRefusal::CNTLID)?;
        if controller.ending.is_some() || controller.is_discovery() {
            return Err(ConnectRefusal::CNTLID);
        }
        if controller.spec.subsystem.nqn != join.subsystem {
            return Err(ConnectRefusal::SUBNQN);
        }
        if controller.spec.host.nqn != join.host.nqn {
            return Err(ConnectRefusal::HOSTNQN);
        }
        if controller.spec.host.id != join.host.id {
            return Err(ConnectRefusal::HOSTID);
        }
        let status = &controller.status;
        if !controller.configuration.is_enabled() || !status.ready || status.shutdown != Shutdown::No {
            return Err(ConnectRefusal::Sequence);
        }
        if join.qid == 0 || join.qid > controller.granted {
            return Err(ConnectRefusal::QID);
        }
        // A queue that has proved nothing keeps nobody out: who proves first has the identifier.
        if controller.members.iter().any(|member| member.qid == join.qid && member.proven) {
            return Err(ConnectRefusal::Sequence);
        }
        if join.entries < 2 || join.entries > controller.spec.limits.entries {
            return Err(ConnectRefusal::SQSIZE);
        }
        let proven = controller.spec.auth.is_none();
        let queue_slot = if proven { Some(join.qid) } else { controller.free_queue_slot() };
        let queue_slot = queue_slot.ok_or(ConnectRefusal::Busy)?;
        controller.members.push(Member {
            qid: join.qid,
            queue_slot,
            proven,
            shard: join.shard,
            open: false,
            counters: Counters::default(),
        });
        let spec = controller.queue_spec(shard, join.qid, join.entries, join.flow_control);
        Ok(QueueSpec { queue_slot, ..spec })
    }

    /// The shard of each I/O queue that a controller has, or has let in.
    pub fn queue_shards(&self, cntlid: u16) -> impl Iterator<Item = Shard> + '_ {
        let controller = self.controllers.find(cntlid);
        controller.into_iter().flat_map(|controller| controller.members.iter().map(|member| member.shard))
    }

    /// Whether the controller has a queue of this number that has proved what it must.
    pub fn holds(&self, cntlid: u16, qid: u16) -> bool {
        let controller = self.controllers.find(cntlid).filter(|controller| controller.ending.is_none());
        controller.is_some_and(|it| it.members.iter().any(|member| member.qid == qid && member.proven))
    }

    /// How the Connect that made this queue is answered, once it is open.
    pub fn connected(&self, key: QueueKey) -> Completion {
        self.context.queue(key).spec.connected()
    }

    /// Whether a controller has neither I/O queues nor anything to do but to wait for events, and is not
    /// ending.
    pub fn is_at_rest(&self, cntlid: u16) -> bool {
        self.controllers.find(cntlid).is_some_and(|controller| {
            let waits = |waiting: &Waiting| matches!(waiting.on, Wait::Event);
            let stays = controller.ending.is_none() && !controller.admin_gone;
            stays && controller.members.is_empty() && controller.waiting.iter().all(waits)
        })
    }

    /// What a controller's host must prove changes, for queues that connect from now on; what is served
    /// goes on. False, and the controller is to be ended: the host has not proved who it is, and has to.
    #[must_use]
    pub fn change_authentication(&mut self, cntlid: u16, auth: &Option<Arc<Authentication>>) -> bool {
        let Some(controller) = self.controllers.find(cntlid) else { return true };
        let admin = controller.admin;
        let unproven = !controller.admin_gone && self.must_prove(admin);
        let Some(controller) = self.controllers.find_mut(cntlid) else { return true };
        if unproven || (auth.is_some() && controller.spec.auth.is_none()) {
            return false;
        }
        controller.spec.auth.clone_from(auth);
        true
    }

    /// The I/O queues that this host holds, and what its controller is: for those who look on.
    pub fn controller_queues(&self, cntlid: u16) -> Option<(&ControllerSpec, usize)> {
        let controller = self.controllers.find(cntlid)?;
        Some((&controller.spec, controller.members.len()))
    }
}

impl Controller {
    fn queue_spec(&self, home: Shard, qid: u16, entries: u32, flow_control: bool) -> QueueSpec {
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
            traffic_ms: if qid == 0 { 0 } else { self.traffic_ms() },
            delays_retries: self.features.delays_retries(),
            auth: self.spec.auth.clone(),
        }
    }
}
