//! One object of the store, as this instance knows it, and the changes that it wants of it, one at a time.
//!
//! Invariants:
//! - A change is settled once it is known to be done, or known to be needless. A swap of unknown outcome is asked for
//!   again as it is until the store says which: it can be carried out at most once, because it names the version that
//!   it replaces.
//! - A mismatch says that another swap came first, or that an earlier attempt of this one was carried out. The object
//!   tells which: it names the last swap of each instance that wrote lately.

use std::collections::VecDeque;
use std::time::Duration;

use buf::Time;

use crate::codec::{Damage, Decoder, Encoder};
use crate::failpoint::Failpoint;
use crate::ids::{InstanceId, StoreTicket, Version};
use crate::object::Object;
use crate::store::{ObjectName, StoreQueue, StoreReply, StoreRequest, Waiting};

/// How many writers an object names. A swap that so many others have followed cannot be told from one that was not
/// carried out; its instance then starts again.
const WRITERS_MAX: usize = 64;

/// A writer's last swap of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Writer {
    instance: InstanceId,
    operation: u64,
    /// How often the object had been changed then, this swap included.
    count: u64,
}

/// A swap under way.
#[derive(Debug)]
struct PendingSwap<E> {
    edit: E,
    operation: u64,
    /// How often the object will have been changed.
    count: u64,
    expected: Version,
    value: Vec<u8>,
    stage: SwapStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SwapStage {
    /// The store was asked.
    Asked(StoreTicket),
    /// The outcome is not known; the same is asked again then.
    Again(Time),
    /// The object had another version; it is read.
    Mismatched,
}

/// What became of an object or of a change.
#[derive(Debug)]
pub(crate) enum RegisterEvent<E> {
    /// It was read, or changed.
    Read,
    /// A change is over: as the change of this count, or because there was nothing to change (`None`).
    Settled(E, Option<u64>),
    /// Whether a swap was carried out can no longer be known.
    Undecidable,
    /// The object cannot be used.
    Damaged(Damage),
}

/// An object and what is wanted of it.
#[derive(Debug)]
pub(crate) struct Register<T: Object> {
    name: ObjectName,
    version: Version,
    value: T,
    writers: Vec<Writer>,
    /// Whether `value` was read after the last [`Register::refresh`].
    fresh: bool,
    damage: Option<Damage>,
    read: Option<StoreTicket>,
    /// How many reads were asked for, and the last that has come.
    asked: u64,
    seen: u64,
    read_again: Option<Time>,
    swap: Option<PendingSwap<T::Edit>>,
    queue: VecDeque<T::Edit>,
    events: VecDeque<RegisterEvent<T::Edit>>,
}

impl<T: Object> Register<T> {
    pub(crate) fn new(name: ObjectName) -> Register<T> {
        Register {
            name,
            version: Version(0),
            value: T::default(),
            writers: Vec::new(),
            fresh: false,
            damage: None,
            read: None,
            asked: 0,
            seen: 0,
            read_again: None,
            swap: None,
            queue: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// What it held when it was last read or changed.
    pub(crate) fn value(&self) -> &T {
        &self.value
    }

    /// How often it has been changed.
    pub(crate) fn count(&self) -> u64 {
        self.writers.last().map_or(0, |writer| writer.count)
    }

    /// Whether it was read since the last [`Register::refresh`].
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Why it cannot be used.
    pub(crate) fn damage(&self) -> Option<Damage> {
        self.damage
    }

    /// Whether no change is under way or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.swap.is_none() && self.queue.is_empty()
    }

    /// Reads it; what is read then was there after this call.
    pub(crate) fn refresh(&mut self, store: &mut StoreQueue) {
        self.fresh = false;
        self.ask_read(store);
    }

    /// The next read that is asked for: what it gives was there after this call.
    pub(crate) fn next_read(&self) -> u64 {
        self.asked + 1
    }

    /// Whether this read has come, or a later one.
    pub(crate) fn has_read(&self, number: u64) -> bool {
        self.seen >= number
    }

    /// Reads it unless a read is under way.
    pub(crate) fn poll_store(&mut self, store: &mut StoreQueue) {
        if self.read.is_none() && self.swap.is_none() {
            self.ask_read(store);
        }
    }

    fn ask_read(&mut self, store: &mut StoreQueue) {
        (self.read_again, self.asked) = (None, self.asked + 1);
        self.read = Some(store.ask(Waiting::Object(self.name), StoreRequest::Read(self.name)));
    }

    /// Wants a change. Its end is a [`RegisterEvent::Settled`].
    pub(crate) fn change(&mut self, store: &mut StoreQueue, edit: T::Edit) {
        self.queue.push_back(edit);
        self.next(store);
    }

    /// Drops changes that wait and are not under way.
    pub(crate) fn retain_changes(&mut self, keep: impl FnMut(&T::Edit) -> bool) {
        self.queue.retain(keep);
    }

    pub(crate) fn poll_event(&mut self) -> Option<RegisterEvent<T::Edit>> {
        self.events.pop_front()
    }

    /// When [`Register::handle_timeout`] wants to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let again = match self.swap.as_ref().map(|swap| swap.stage) {
            Some(SwapStage::Again(at)) => Some(at),
            Some(SwapStage::Asked(_) | SwapStage::Mismatched) | None => None,
        };
        again.into_iter().chain(self.read_again).min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Time, store: &mut StoreQueue) {
        if self.read_again.is_some_and(|at| at <= now) {
            self.ask_read(store);
        }
        if self.swap.as_ref().is_some_and(|swap| matches!(swap.stage, SwapStage::Again(at) if at <= now)) {
            self.ask_swap(store);
        }
    }

    /// A reply for this object.
    pub(crate) fn handle_reply(
        &mut self,
        now: Time,
        retry: Duration,
        store: &mut StoreQueue,
        ticket: StoreTicket,
        reply: StoreReply,
    ) {
        if self.read == Some(ticket) {
            self.read = None;
            match reply {
                StoreReply::Contents { version, value } => self.adopt(store, version, &value),
                _ => self.read_again = Some(now + retry),
            }
            return;
        }
        // The planted bugs are those of owners and records, where they are hardest to see.
        let guarded = matches!(self.name, ObjectName::Owner(_) | ObjectName::Record(_));
        let asked = SwapStage::Asked(ticket);
        let Some(swap) = self.swap.as_mut().filter(|swap| swap.stage == asked) else { return };
        match reply {
            StoreReply::Swapped(version) => self.finish_swap(store, version),
            StoreReply::Mismatch => {
                swap.stage = SwapStage::Mismatched;
                self.ask_read(store);
            }
            _ if guarded && store.failpoints.has(Failpoint::UnknownIsDone) => {
                let version = Version(swap.expected.0 + 1);
                self.finish_swap(store, version);
            }
            _ if guarded && store.failpoints.has(Failpoint::UnknownIsFailed) => {
                if let Some(swap) = self.swap.take() {
                    self.events.push_back(RegisterEvent::Settled(swap.edit, None));
                }
                self.next(store);
            }
            _ => swap.stage = SwapStage::Again(now + retry),
        }
    }

    /// The swap was carried out as it was asked for.
    fn finish_swap(&mut self, store: &mut StoreQueue, version: Version) {
        let Some(swap) = self.swap.take() else { return };
        let PendingSwap { edit, count, value, .. } = swap;
        if let Ok((value, writers)) = open::<T>(&value) {
            (self.version, self.value, self.writers) = (version, value, writers);
        }
        // What a read says that was asked before may be older.
        if self.read.take().is_some() {
            self.ask_read(store);
        }
        store.ask(Waiting::Nobody, StoreRequest::Notify(self.name));
        self.events.push_back(RegisterEvent::Settled(edit, Some(count)));
        self.events.push_back(RegisterEvent::Read);
        self.next(store);
    }

    fn adopt(&mut self, store: &mut StoreQueue, version: Version, bytes: &[u8]) {
        if version < self.version {
            // Of a read that was overtaken: versions only grow.
            return self.ask_read(store);
        }
        let read = if version == Version(0) { Ok((T::default(), Vec::new())) } else { open::<T>(bytes) };
        match read {
            Ok((value, writers)) => {
                (self.version, self.value, self.writers) = (version, value, writers);
                self.damage = None;
            }
            Err(damage) => {
                if self.damage.replace(damage) != Some(damage) {
                    self.events.push_back(RegisterEvent::Damaged(damage));
                }
            }
        }
        (self.fresh, self.seen) = (true, self.asked);
        self.events.push_back(RegisterEvent::Read);
        if self.swap.as_ref().is_some_and(|swap| swap.stage == SwapStage::Mismatched) {
            self.settle_mismatch(store.me);
        }
        self.next(store);
    }

    /// The object was read after a mismatch: either it names the swap, or another came first.
    fn settle_mismatch(&mut self, me: InstanceId) {
        let Some(swap) = self.swap.take() else { return };
        let mine = self.writers.iter().find(|writer| writer.instance == me);
        if mine.is_some_and(|writer| writer.operation == swap.operation) {
            self.events.push_back(RegisterEvent::Settled(swap.edit, Some(swap.count)));
        } else if self.damage.is_some() || self.count() >= swap.count + WRITERS_MAX as u64 {
            self.events.push_back(RegisterEvent::Undecidable);
        } else {
            self.queue.push_front(swap.edit);
        }
    }

    /// Begins the next change, on what is known; a swap refuses what has changed meanwhile.
    fn next(&mut self, store: &mut StoreQueue) {
        while self.swap.is_none() && self.fresh && self.damage.is_none() {
            let Some(edit) = self.queue.pop_front() else { return };
            let count = self.count() + 1;
            let Some(value) = self.value.edited(&edit, self.count()) else {
                self.events.push_back(RegisterEvent::Settled(edit, None));
                continue;
            };
            let operation = store.next_operation();
            let writer = Writer { instance: store.me, operation, count };
            let value = seal(&value, &self.writers, writer);
            let (expected, stage) = (self.version, SwapStage::Mismatched);
            self.swap = Some(PendingSwap { edit, operation, count, expected, value, stage });
            self.ask_swap(store);
        }
    }

    fn ask_swap(&mut self, store: &mut StoreQueue) {
        let Some(swap) = &mut self.swap else { return };
        let request =
            StoreRequest::Swap { object: self.name, expected: swap.expected, value: swap.value.clone() };
        swap.stage = SwapStage::Asked(store.ask(Waiting::Object(self.name), request));
    }
}

/// The bytes of an object that `writer` changes.
fn seal<T: Object>(value: &T, writers: &[Writer], writer: Writer) -> Vec<u8> {
    let mut others: Vec<Writer> =
        writers.iter().copied().filter(|known| known.instance != writer.instance).collect();
    if others.len() >= WRITERS_MAX {
        others.remove(0);
    }
    others.push(writer);
    let mut to = Encoder::new(T::KIND);
    to.count(others.len());
    for known in others {
        to.u64(known.instance.0);
        to.u64(known.operation);
        to.u64(known.count);
    }
    value.encode(&mut to);
    to.finish()
}

fn open<T: Object>(bytes: &[u8]) -> Result<(T, Vec<Writer>), Damage> {
    let mut from = Decoder::open(bytes, T::KIND)?;
    let writers = from.list(WRITERS_MAX, |from| {
        Ok(Writer { instance: InstanceId(from.u64()?), operation: from.u64()?, count: from.u64()? })
    })?;
    let value = T::decode(&mut from)?;
    from.close()?;
    Ok((value, writers))
}

/// The record of a volume within the bytes of its object, for those who look at the store.
#[cfg(test)]
pub(crate) fn peek<T: Object>(bytes: &[u8]) -> Option<T> {
    open::<T>(bytes).ok().map(|(value, _)| value)
}
