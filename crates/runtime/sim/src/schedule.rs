//! The schedule: one clock, one random generator, and the future events.
//!
//! Invariant: all random decisions are drawn here from one generator, in the order of the run, so a run
//! depends only on its seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use buf::{Errno, Time};
use endpoint::{AcceptedSocket, Dial, DialId, ShardId};
use volume::DiskOp;

use crate::connection::Peer;
use crate::rng::SimRng;

/// What happens at a time.
#[derive(Debug)]
pub(crate) enum SimEvent<M> {
    Receive(Peer),
    Transmit(Peer),
    Release(Peer),
    /// What is out on it comes back.
    Halt(Peer),
    /// With how many writes there had been on that disk when it began.
    Disk(ShardId, DiskOp, u64),
    /// The rest of a torn read, from this byte on.
    DiskRest(ShardId, DiskOp, usize),
    /// It has ended, and its shard hears of it.
    DiskEnded(ShardId, DiskOp, Result<usize, Errno>),
    Message(ShardId, M),
    Arrive(ShardId, Peer, Option<M>, AcceptedSocket),
    /// A connection is to be made.
    Dial(ShardId, Dial),
    /// It is not: this is the answer.
    DialFailed(ShardId, DialId, Errno),
    /// Bytes, and the end, cross from this wire to its twin.
    Carry(Peer),
    /// A connection is lost, in silence or not.
    Lose(Peer, bool),
}

/// An event with its time; ties go in the order of their making.
#[derive(Debug)]
pub(crate) struct ScheduledEvent<M> {
    pub(crate) at: (Time, u64),
    pub(crate) what: SimEvent<M>,
}

impl<M> PartialEq for ScheduledEvent<M> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl<M> Eq for ScheduledEvent<M> {}
impl<M> PartialOrd for ScheduledEvent<M> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<M> Ord for ScheduledEvent<M> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// The clock, the chance and the events.
#[derive(Debug)]
pub(crate) struct Schedule<M> {
    pub(crate) now: Time,
    pub(crate) chance: SimRng,
    heap: BinaryHeap<Reverse<ScheduledEvent<M>>>,
    /// How many events were made.
    made: u64,
    /// The last delivery between each pair of shards: messages do not overtake each other.
    last: BTreeMap<(ShardId, ShardId), Time>,
}

impl<M> Schedule<M> {
    pub(crate) fn new(chance: SimRng) -> Self {
        Schedule { now: Time(1), chance, heap: BinaryHeap::new(), made: 0, last: BTreeMap::new() }
    }

    /// Lets something happen at a time.
    pub(crate) fn push(&mut self, at: Time, what: SimEvent<M>) {
        self.made += 1;
        self.heap.push(Reverse(ScheduledEvent { at: (at, self.made), what }));
    }

    /// Lets something happen now, behind what is to happen now already.
    pub(crate) fn push_now(&mut self, what: SimEvent<M>) {
        self.push(self.now, what);
    }

    /// The same within `most`.
    pub(crate) fn push_within(&mut self, most: Duration, what: SimEvent<M>) {
        let at = self.random_time_within(most);
        self.push(at, what);
    }

    /// Keeps an event in its place, perhaps at a later time.
    pub(crate) fn reschedule(&mut self, event: ScheduledEvent<M>) {
        self.heap.push(Reverse(event));
    }

    /// Lets one shard hear of something from another within `most`, but not before what it said earlier.
    pub(crate) fn push_in_order(
        &mut self,
        (from, to): (ShardId, ShardId),
        most: Duration,
        what: SimEvent<M>,
    ) {
        let at = self.random_time_within(most);
        let last = self.last.entry((from, to)).or_default();
        let at = at.max(*last);
        *last = at;
        self.push(at, what);
    }

    /// A time within `most` from now.
    pub(crate) fn random_time_within(&mut self, most: Duration) -> Time {
        self.now + Duration::from_nanos(self.chance.below(most.as_nanos() as u64 + 1))
    }

    /// A time up to `most`. Nothing is drawn if that is zero, so that a history without the fault stays as it was.
    pub(crate) fn random_delay(&mut self, most: Duration) -> Duration {
        match most.as_nanos() as u64 {
            0 => Duration::ZERO,
            most => Duration::from_nanos(self.chance.below(most + 1)),
        }
    }

    /// When the next event happens.
    pub(crate) fn next_time(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(event)| event.at.0)
    }

    /// Takes the next event.
    pub(crate) fn pop(&mut self) -> Option<ScheduledEvent<M>> {
        self.heap.pop().map(|Reverse(event)| event)
    }

    /// Disk operations that are out, in the order in which they began.
    pub(crate) fn disk_ops(&self) -> Vec<&DiskOp> {
        let mut ops: Vec<(u64, &DiskOp)> = self
            .heap
            .iter()
            .filter_map(|Reverse(due)| match &due.what {
                SimEvent::Disk(_, op, _) => Some((due.at.1, op)),
                _ => None,
            })
            .collect();
        ops.sort_by_key(|(made, _)| *made);
        ops.into_iter().map(|(_, op)| op).collect()
    }

    /// Takes all events, the last one first.
    pub(crate) fn take_all(&mut self) -> Vec<ScheduledEvent<M>> {
        let all = std::mem::take(&mut self.heap).into_sorted_vec();
        all.into_iter().map(|Reverse(event)| event).collect()
    }
}
