//! The record of requests in flight, in memory that the front end keeps (vhost-user, "Inflight I/O
//! tracking"). The next server of the machine, or this one after a reconnect, executes requests that were
//! taken and not answered, and no others.
//!
//! Each answer is a separate batch: at most one entry can be in doubt, and the ring's own index decides it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use buf::{Region, RegionHandle};

use super::message::InflightAt;
use super::ring::SIZE_MAX;

/// features, version, descriptors, last batch's head, used index.
const HEAD: usize = 16;
const VERSION: usize = 8;
const DESCRIPTORS: usize = 10;
const LAST_HEAD: usize = 12;
const USED: usize = 14;
/// in flight, padding, next, counter.
const ENTRY: usize = 16;
const COUNTER: usize = 8;

/// Bytes of one queue's record.
fn record(queue_size: u16) -> usize {
    (HEAD + ENTRY * usize::from(queue_size)).next_multiple_of(64)
}

/// One queue's record.
#[derive(Clone, Debug)]
pub(super) struct Inflight {
    memory: RegionHandle,
    base: usize,
    size: u16,
    counter: u64,
}

/// Fresh memory for the records of these queues.
pub(super) fn create(asked: InflightAt) -> io::Result<(OwnedFd, InflightAt)> {
    if asked.queue_size == 0 || asked.queue_size > SIZE_MAX || asked.queues == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let size = (record(asked.queue_size) * usize::from(asked.queues)) as u64;
    let file = rustix::fs::memfd_create("vhost-inflight", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, size)?;
    Ok((file, InflightAt { size, offset: 0, ..asked }))
}

/// The records in memory that the front end gives.
pub(super) fn open(file: BorrowedFd<'_>, at: InflightAt) -> io::Result<Vec<Inflight>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let each = record(at.queue_size);
    let needed = each * usize::from(at.queues);
    let offset = usize::try_from(at.offset).map_err(|_| invalid())?;
    let is_fit = at.queue_size > 0 && at.queue_size <= SIZE_MAX && at.queues > 0 && offset % 8 == 0;
    if !is_fit || (needed as u64) > at.size {
        return Err(invalid());
    }
    let end = offset.checked_add(needed).ok_or_else(invalid)?;
    let memory = RegionHandle::new(Arc::new(Region::of_file(file, end)?));
    let of = |queue| Inflight {
        memory: memory.clone(),
        base: offset + each * queue,
        size: at.queue_size,
        counter: 0,
    };
    Ok((0..usize::from(at.queues)).map(of).collect())
}

impl Inflight {
    fn entry(&self, head: u16) -> usize {
        self.base + HEAD + ENTRY * usize::from(head)
    }

    fn set_in_flight(&self, head: u16, in_flight: bool) {
        self.memory.region().write(self.entry(head), &[in_flight.into()]);
    }

    fn is_in_flight(&self, head: u16) -> bool {
        let mut byte = [0];
        self.memory.region().read(self.entry(head), &mut byte);
        byte[0] == 1
    }

    fn counter(&self, head: u16) -> u64 {
        let mut bytes = [0; 8];
        self.memory.region().read(self.entry(head) + COUNTER, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// A chain was taken.
    pub(super) fn taken(&mut self, head: u16) {
        if head < self.size {
            // It goes on from what the front end's memory says, which may be the last number there is.
            self.counter = self.counter.wrapping_add(1);
            self.memory.region().write(self.entry(head) + COUNTER, &self.counter.to_ne_bytes());
            self.set_in_flight(head, true);
        }
    }

    /// A chain is about to be given back.
    pub(super) fn giving_back(&self, head: u16) {
        if head < self.size {
            self.memory.region().store_u16(self.base + LAST_HEAD, head);
        }
    }

    /// It was, and the ring's index is this now.
    pub(super) fn given_back(&self, head: u16, used: u16) {
        if head < self.size {
            self.set_in_flight(head, false);
            self.memory.region().store_u16(self.base + USED, used);
        }
    }

    /// Begins, or begins again: the heads that were taken and not given back, oldest first.
    pub(super) fn recover(&mut self, queue_size: u16, used: u16) -> Vec<u16> {
        let region = self.memory.region();
        if region.load_u16(self.base + VERSION) == 0 {
            region.store_u16(self.base + VERSION, 1);
            region.store_u16(self.base + DESCRIPTORS, self.size);
            region.store_u16(self.base + USED, used);
            return Vec::new();
        }
        if region.load_u16(self.base + USED) != used {
            // The last answer is in the ring and not noted here.
            let head = region.load_u16(self.base + LAST_HEAD);
            if head < self.size {
                self.set_in_flight(head, false);
            }
            region.store_u16(self.base + USED, used);
        }
        let mut heads: Vec<u16> =
            (0..self.size.min(queue_size)).filter(|&head| self.is_in_flight(head)).collect();
        // Each number is read once: the front end may change them meanwhile, and an order that changes is none.
        heads.sort_by_cached_key(|&head| self.counter(head));
        self.counter = heads.last().map_or(0, |&head| self.counter(head));
        heads
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_record_that_changes_while_it_is_read_ends_nobody() {
        let asked = InflightAt { size: 0, offset: 0, queues: 1, queue_size: SIZE_MAX, padding: [0; 4] };
        let (file, at) = create(asked).unwrap();
        let record = move |file: &OwnedFd| open(file.as_fd(), at).unwrap().remove(0);
        let mut ours = record(&file);
        assert!(ours.recover(SIZE_MAX, 0).is_empty());
        (0..SIZE_MAX).for_each(|head| ours.set_in_flight(head, true));
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let changer = std::thread::spawn(move || {
            let theirs = record(&file);
            let region = theirs.memory.region();
            let mut number = 1_u64;
            while !seen.load(Ordering::Relaxed) {
                for head in 0..SIZE_MAX {
                    number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    region.write(theirs.entry(head) + COUNTER, &number.to_ne_bytes());
                }
            }
        });
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..300 {
                let mut heads = ours.recover(SIZE_MAX, 0);
                heads.sort_unstable();
                assert!(heads.into_iter().eq(0..SIZE_MAX), "each head once");
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        changer.join().unwrap();
        found.unwrap();
    }
}
