//! Stages that the kernel selects when data arrives: a ring of provided buffers. So a link that waits for
//! data pins no memory.
//!
//! Buffers are used first-in-first-out, so the ring holds only as many as were recently needed at once: more
//! would only displace the processor's cache. Surplus buffers leave as receives use them.
//!
//! Invariant: a buffer is either in the ring, where `lent` holds it for the kernel, or handed out.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use buf::{BufMut, MemoryClass, Pool, Time};
use io_uring::Submitter;
use io_uring::types::BufRingEntry;

/// The group that receives choose from.
pub(crate) const BUFFER_GROUP: u16 = 0;
/// Room in the ring: the most receives that can complete between two refills.
const RING_ENTRIES: u16 = 256;
/// Length of a stage in bytes.
pub(crate) const STAGING_LEN: usize = 64 << 10;
/// How many stages are kept ready at first.
pub(crate) const READY_BUFFERS_MIN: usize = 8;
/// How long buffers must have been too many before fewer are kept.
const SHRINK_DELAY: Duration = Duration::from_secs(4);

pub(crate) struct ProvidedBuffers {
    ring: NonNull<BufRingEntry>,
    tail: u16,
    /// What the kernel may write to, by buffer number.
    lent: Vec<Option<BufMut>>,
    free: Vec<u16>,
    wanted: ReadyTarget,
}

/// How many buffers to keep in the ring: twice as many when a receive has found none, half as many when more
/// than half have stood there unused for a while.
struct ReadyTarget {
    count: usize,
    /// The fewest that were ready since `since`.
    fewest: usize,
    since: Time,
}

impl ReadyTarget {
    fn note_exhausted(&mut self) {
        self.count = (self.count * 2).min(usize::from(RING_ENTRIES));
        self.fewest = 0;
    }

    /// So many are left after a receive.
    fn note_remaining(&mut self, ready: usize) {
        self.fewest = self.fewest.min(ready);
    }

    fn review_target(&mut self, now: Time, ready: usize) {
        if now.since(self.since) < SHRINK_DELAY {
            return;
        }
        if self.fewest > self.count / 2 {
            self.count = (self.count / 2).max(READY_BUFFERS_MIN);
        }
        self.fewest = ready;
        self.since = now;
    }
}

/// The memory of the ring, which the kernel wants on a page of its own.
#[repr(align(4096))]
struct RingMemory {
    _entries: [BufRingEntry; RING_ENTRIES as usize],
}

const LAYOUT: Layout = Layout::new::<RingMemory>();

impl ProvidedBuffers {
    /// Registers an empty ring of buffers.
    pub(crate) fn new(submitter: &Submitter<'_>) -> io::Result<Self> {
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc_zeroed(LAYOUT) };
        let ring = NonNull::new(at.cast::<BufRingEntry>()).unwrap_or_else(|| handle_alloc_error(LAYOUT));
        let stages = ProvidedBuffers {
            ring,
            tail: 0,
            lent: (0..RING_ENTRIES).map(|_| None).collect(),
            free: (0..RING_ENTRIES).rev().collect(),
            wanted: ReadyTarget { count: READY_BUFFERS_MIN, fewest: 0, since: Time(0) },
        };
        // SAFETY: the memory is page-aligned and long enough, and is freed only after
        // `unregister` has succeeded.
        match unsafe { submitter.register_buf_ring_with_flags(at as u64, RING_ENTRIES, BUFFER_GROUP, 0) } {
            Ok(()) => Ok(stages),
            Err(e) => {
                stages.free_ring();
                Err(e)
            }
        }
    }

    fn free_ring(&self) {
        // SAFETY: allocated by `new` with this layout; the kernel does not know it (any more).
        unsafe { dealloc(self.ring.as_ptr().cast(), LAYOUT) };
    }

    /// Puts buffers in until as many are ready as were lately needed, or the pool has no more.
    pub(crate) fn refill(&mut self, now: Time, pool: &Pool) {
        self.wanted.review_target(now, self.ready_count());
        let tail = self.tail;
        while self.ready_count() < self.wanted.count {
            let Some(mut buffer) = pool.take(MemoryClass::Wire, STAGING_LEN) else { break };
            let Some(number) = self.free.pop() else { break };
            // SAFETY: the index is below ENTRIES. The kernel reads no entry at or behind the tail.
            let entry = unsafe { self.ring.add(usize::from(self.tail % RING_ENTRIES)).as_mut() };
            entry.set_addr(buffer.as_mut_ptr() as u64);
            entry.set_len(STAGING_LEN as u32);
            entry.set_bid(number);
            if let Some(lent) = self.lent.get_mut(usize::from(number)) {
                *lent = Some(buffer);
            }
            self.tail = self.tail.wrapping_add(1);
        }
        if self.tail != tail {
            // SAFETY: the ring's base is valid; its tail lies in the first entry's reserved field, and
            // is read by the kernel at any time, hence the atomic store.
            unsafe {
                let at = BufRingEntry::tail(self.ring.as_ptr()).cast_mut();
                AtomicU16::from_ptr(at).store(self.tail, Ordering::Release);
            }
        }
    }

    /// How many receives that are submitted now may find a buffer.
    pub(crate) fn ready_count(&self) -> usize {
        usize::from(RING_ENTRIES) - self.free.len()
    }

    /// Pool memory in the ring, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.ready_count() * STAGING_LEN
    }

    /// A receive found none.
    pub(crate) fn note_exhausted(&mut self) {
        self.wanted.note_exhausted();
    }

    /// Takes the buffer that the kernel chose, which it does among those that it was lent.
    pub(crate) fn take_buffer(&mut self, number: u16) -> Option<BufMut> {
        let buffer = self.lent.get_mut(usize::from(number))?.take()?;
        self.free.push(number);
        self.wanted.note_remaining(self.ready_count());
        Some(buffer)
    }

    /// Takes the ring back from the kernel. No receive may be out.
    pub(crate) fn unregister(mut self, submitter: &Submitter<'_>) {
        if submitter.unregister_buf_ring(BUFFER_GROUP).is_ok() {
            self.free_ring();
        } else {
            // The kernel may still write there: it keeps all.
            std::mem::forget(std::mem::take(&mut self.lent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_does_not_keep_stages_for_ever() {
        let mut wanted = ReadyTarget { count: READY_BUFFERS_MIN, fewest: 0, since: Time(0) };
        for _ in 0..10 {
            wanted.note_exhausted();
        }
        let all = usize::from(RING_ENTRIES);
        assert_eq!(wanted.count, all);
        let mut now = Time(0);
        let mut counts = Vec::new();
        // Two receives at a time from now on.
        for _ in 0..8 {
            now = now + SHRINK_DELAY;
            wanted.review_target(now, wanted.count);
            wanted.note_remaining(wanted.count - 2);
            counts.push(wanted.count);
        }
        assert_eq!(counts, [256, 128, 64, 32, 16, 8, 8, 8], "the burst was in the first of these times");
    }

    #[test]
    fn stages_that_are_needed_are_kept() {
        let mut wanted = ReadyTarget { count: 64, fewest: 0, since: Time(0) };
        for second in 1..20 {
            wanted.review_target(Time(0) + Duration::from_secs(second), 64);
            // Each second a burst takes half of them.
            wanted.note_remaining(32);
        }
        assert_eq!(wanted.count, 64);
        wanted.review_target(Time(0) + Duration::from_secs(20), 64);
        wanted.note_remaining(33);
        wanted.note_exhausted();
        wanted.review_target(Time(0) + Duration::from_secs(24), 128);
        assert_eq!(wanted.count, 128, "a receive found none a moment ago");
    }
}
