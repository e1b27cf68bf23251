//! The queues of this shard: the commands of each by tag, and its counters.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use nvme::{Completion, Status};
use volume::Time;

use crate::authentication::QueueAuthentication;
use crate::queue_message::{CommandFailure, FAILURES_MAX, QueueCounters, QueueReport};
use crate::spec::QueueSpec;
use crate::step::{CommandKey, QueueKey};
use crate::task::{CountedAs, Task};

/// The queues of a shard.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// By key.
    all: Vec<Option<Queue>>,
    /// I/O queues, by controller and queue slot. A queue whose association has ended stands here until it is gone,
    /// or until one of a newer association takes its place.
    joined: HashMap<(u16, u16), QueueKey>,
}

impl Queues {
    pub(crate) fn insert(&mut self, spec: QueueSpec) -> QueueKey {
        let index = match self.all.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.all.push(None);
                self.all.len() - 1
            }
        };
        if let Some(place) = self.all.get_mut(index) {
            *place = Some(Queue::new(spec));
        }
        QueueKey(index as u32)
    }

    #[inline]
    #[expect(clippy::expect_used, reason = "a key names its queue until the queue and its commands are gone")]
    pub(crate) fn get(&self, key: QueueKey) -> &Queue {
        self.find(key).expect("a queue key is used while the queue is open")
    }

    #[inline]
    #[expect(clippy::expect_used, reason = "a key names its queue until the queue and its commands are gone")]
    pub(crate) fn get_mut(&mut self, key: QueueKey) -> &mut Queue {
        self.find_mut(key).expect("a queue key is used while the queue is open")
    }

    /// A queue, if it is open.
    #[inline]
    pub(crate) fn find(&self, key: QueueKey) -> Option<&Queue> {
        self.all.get(key.0 as usize)?.as_ref()
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn find_mut(&mut self, key: QueueKey) -> Option<&mut Queue> {
        self.all.get_mut(key.0 as usize)?.as_mut()
    }

    /// Takes a queue out that is closing and has no commands left.
    pub(crate) fn remove_if_done(&mut self, key: QueueKey) -> Option<Queue> {
        self.all.get_mut(key.0 as usize)?.take_if(|queue| queue.closing && queue.live == 0)
    }

    /// Enters an I/O queue under its controller and queue slot.
    pub(crate) fn register_io_queue(&mut self, name: (u16, u16), key: QueueKey) {
        self.joined.insert(name, key);
    }

    /// Takes it out again, unless another stands there by now.
    pub(crate) fn unregister_io_queue(&mut self, name: (u16, u16), key: QueueKey) {
        if self.joined.get(&name) == Some(&key) {
            self.joined.remove(&name);
        }
    }

    /// The open I/O queue that a controller's message means.
    pub(crate) fn find_registered(&self, cntlid: u16, association: u64, queue_slot: u16) -> Option<QueueKey> {
        let key = *self.joined.get(&(cntlid, queue_slot))?;
        (self.get(key).spec.association == association).then_some(key)
    }
}

/// A queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) spec: QueueSpec,
    pub(crate) counters: QueueCounters,
    /// When the first of its live commands came, if there is one.
    busy_since: Time,
    /// The latest failures, oldest first, and how many there were, since the last report.
    pub(crate) failures: VecDeque<CommandFailure>,
    pub(crate) failed: u64,
    /// The first half of a fused pair whose second must be the next command.
    pub(crate) half: Option<u32>,
    /// It is gone when its last command has ended.
    pub(crate) closing: bool,
    /// Commands that have not ended.
    pub(crate) live: u32,
    /// From when on commands do not take the fast path: always on an admin queue; on an I/O queue from when the
    /// controller is next to be notified of traffic, which its keep-alive timer counts.
    pub(crate) slow_path_from: Time,
    /// When the controller is next to be notified that a command has come.
    next_traffic_notice: Time,
    /// Its end is no loss: the host has disconnected it, or the controller has ended it.
    pub(crate) ended: bool,
    /// Its end was asked for because the host did not authenticate.
    pub(crate) end_requested: bool,
    /// What stands between a host and its commands until it has authenticated.
    pub(crate) guard: Option<QueueAuthentication>,
    /// The time under which it stands among the timers.
    pub(crate) armed: Option<Time>,
    /// Identifiers of commands that are being aborted, and who asked.
    pub(crate) aborting: Vec<(u16, u64)>,
    /// Slots by the index in the tag.
    slots: Vec<u32>,
}

impl Queue {
    pub(crate) fn new(spec: QueueSpec) -> Self {
        let guard = spec.auth.as_ref().and_then(|auth| QueueAuthentication::new(auth, spec.qid));
        let reports = spec.qid == 0 || spec.traffic_ms != 0 || guard.is_some();
        Queue {
            slow_path_from: if reports { Time(0) } else { Time(u64::MAX) },
            next_traffic_notice: Time(0),
            ended: false,
            end_requested: false,
            guard,
            armed: None,
            aborting: Vec::new(),
            spec,
            counters: QueueCounters::default(),
            busy_since: Time(0),
            failures: VecDeque::new(),
            failed: 0,
            half: None,
            closing: false,
            live: 0,
            slots: Vec::new(),
        }
    }

    /// A command has come to an I/O queue that commands are served of: whether the controller must hear
    /// of it. It then need not hear of the next ones for a while.
    pub(crate) fn is_traffic_notice_due(&mut self, now: Time) -> bool {
        let due = self.spec.traffic_ms != 0 && now >= self.next_traffic_notice;
        if due {
            self.next_traffic_notice = now + Duration::from_millis(self.spec.traffic_ms.into());
        }
        self.slow_path_from = match (&self.guard, self.spec.traffic_ms) {
            // A host may authenticate again at any time.
            (Some(_), _) => Time(0),
            (None, 0) => Time(u64::MAX),
            (None, _) => self.next_traffic_notice,
        };
        due
    }

    /// Whether a read or write that comes to a queue with a guard is executed and no more: the host has
    /// authenticated, and the controller has heard of commands lately.
    pub(crate) fn may_use_fast_path(&self, now: Time) -> bool {
        let is_reported = self.spec.traffic_ms == 0 || now < self.next_traffic_notice;
        self.spec.qid != 0
            && is_reported
            && self.guard.as_ref().is_some_and(QueueAuthentication::is_authenticated)
    }

    /// Whether its host must come again over TLS before it is served whole.
    pub(crate) fn awaits_tls(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.machine.awaits_tls())
    }

    /// The controller wants to hear of commands so often.
    pub(crate) fn set_traffic_interval(&mut self, traffic_ms: u32) {
        if self.spec.traffic_ms != traffic_ms {
            self.spec.traffic_ms = traffic_ms;
            (self.next_traffic_notice, self.slow_path_from) = (Time(0), Time(0));
        }
    }

    /// Where the command is, or was.
    #[inline]
    pub(crate) fn slot_of(&self, key: CommandKey) -> Option<u32> {
        self.slots.get(key.tag as u32 as usize).copied()
    }

    /// Where its commands are, or were.
    pub(crate) fn command_slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().copied().filter(|slot| *slot != u32::MAX)
    }

    #[inline]
    pub(crate) fn note_command_started(&mut self, now: Time, key: CommandKey, slot: u32) {
        let at = key.tag as u32 as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, u32::MAX);
        }
        if let Some(place) = self.slots.get_mut(at) {
            *place = slot;
        }
        if self.live == 0 {
            self.busy_since = now;
        }
        self.live += 1;
    }

    /// A command has ended.
    #[inline]
    pub(crate) fn note_command_ended(&mut self, now: Time) {
        self.live -= 1;
        if self.live == 0 {
            self.counters.busy_ns += now.since(self.busy_since).as_nanos() as u64;
        }
    }

    /// Counts a task that is answered. Refused commands, admin commands and the fast path have no task; every
    /// answer except the fast path's passes [`Server::poll_step`](crate::Server::poll_step).
    #[inline]
    pub(crate) fn count_completion(&mut self, now: Time, task: &Task, completion: Completion) {
        if !completion.status.is_success() {
            let failure = CommandFailure {
                at: now,
                cid: task.cid,
                status: completion.status,
                lba: task.lba,
                nsid: task.nsid,
            };
            return self.note_failure(failure);
        }
        match task.tally {
            CountedAs::No => {}
            CountedAs::Read => {
                self.counters.reads += 1;
                self.counters.read_bytes += u64::from(task.bytes);
            }
            CountedAs::Write => {
                self.counters.writes += 1;
                self.counters.written_bytes += u64::from(task.bytes);
            }
        }
    }

    /// Notes a failure.
    pub(crate) fn note_failure(&mut self, failure: CommandFailure) {
        let Status(bits) = failure.status;
        // Blocks that differ from what a host expects are no error of the medium.
        if failure.status.status_code_type() == 2 && bits & 0x7ff != Status::COMPARE_FAILURE.0 {
            self.counters.media_errors += 1;
        }
        if self.failures.len() == FAILURES_MAX {
            self.failures.pop_front();
        }
        self.failures.push_back(failure);
        self.failed += 1;
    }

    /// What it has done, and what failed since it was asked last.
    pub(crate) fn take_report(&mut self, now: Time) -> QueueReport {
        if self.live > 0 {
            self.counters.busy_ns += now.since(self.busy_since).as_nanos() as u64;
            self.busy_since = now;
        }
        QueueReport {
            counters: self.counters,
            failures: self.failures.drain(..).collect(),
            failed: std::mem::take(&mut self.failed),
        }
    }
}
