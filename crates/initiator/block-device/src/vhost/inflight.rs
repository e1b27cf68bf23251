//! The record of requests in flight, in memory that the front end keeps (vhost-user, "Inflight I/O
//! tracking"). The next server of the machine, or this one after a reconnect, executes requests that were
//! taken and not answered, and no others.
//!
//! Each answer is a separate batch: at most one entry can be in doubt, and the ring's own index decides it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use buf::{Region, RegionHandle};

use super::message::InflightLayout;
use super::ring::RING_SIZE_MAX;

/// features, version, descriptors, last batch's head, used index.
const HEADER_LEN: usize = 16;
const VERSION_OFFSET: usize = 8;
const DESCRIPTORS_OFFSET: usize = 10;
const LAST_HEAD_OFFSET: usize = 12;
const USED_OFFSET: usize = 14;
/// in flight, padding, next, counter.
const ENTRY_LEN: usize = 16;
const COUNTER_OFFSET: usize = 8;

/// Bytes of one queue's record.
fn record_len(queue_size: u16) -> usize {
    (HEADER_LEN + ENTRY_LEN * usize::from(queue_size)).next_multiple_of(64)
}

/// One queue's record.
#[derive(Clone, Debug)]
pub(super) struct InflightRecord {
    memory: RegionHandle,
    base: usize,
    size: u16,
    counter: u64,
}

/// Fresh memory for the records of these queues.
pub(super) fn create_records(asked: InflightLayout) -> io::Result<(OwnedFd, InflightLayout)> {
    if asked.queue_size == 0 || asked.queue_size > RING_SIZE_MAX || asked.queues == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let size = (record_len(asked.queue_size) * usize::from(asked.queues)) as u64;
    let file = rustix::fs::memfd_create("vhost-inflight", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, size)?;
    Ok((file, InflightLayout { size, offset: 0, ..asked }))
}

/// The records in memory that the front end gives.
pub(super) fn open_records(file: BorrowedFd<'_>, at: InflightLayout) -> io::Result<Vec<InflightRecord>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let each = record_len(at.queue_size);
    let needed = each * usize::from(at.queues);
    let offset = usize::try_from(at.offset).map_err(|_| invalid())?;
    let is_fit = at.queue_size > 0 && at.queue_size <= RING_SIZE_MAX && at.queues > 0 && offset % 8 == 0;
    if !is_fit || (needed as u64) > at.size {
        return Err(invalid());
    }
    let end = offset.checked_add(needed).ok_or_else(invalid)?;
    let memory = RegionHandle::new(Arc::new(Region::map_file(file, end)?));
    let of = |queue| InflightRecord {
        memory: memory.clone(),
        base: offset + each * queue,
        size: at.queue_size,
        counter: 0,
    };
    Ok((0..usize::from(at.queues)).map(of).collect())
}

impl InflightRecord {
    fn entry_offset(&self, head: u16) -> usize {
        self.base + HEADER_LEN + ENTRY_LEN * usize::from(head)
    }

    fn set_in_flight(&self, head: u16, in_flight: bool) {
        self.memory.region().write(self.entry_offset(head), &[in_flight.into()]);
    }

    fn is_in_flight(&self, head: u16) -> bool {
        let mut byte = [0];
        self.memory.region().read(self.entry_offset(head), &mut byte);
        byte[0] == 1
    }

    fn submission_counter(&self, head: u16) -> u64 {
        let mut bytes = [0; 8];
        self.memory.region().read(self.entry_offset(head) + COUNTER_OFFSET, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// A chain was taken.
    pub(super) fn record_taken(&mut self, head: u16) {
        if head < self.size {
            // It goes on from what the front end's memory says, which may be the last number there is.
            self.counter = self.counter.wrapping_add(1);
            self.memory.region().write(self.entry_offset(head) + COUNTER_OFFSET, &self.counter.to_ne_bytes());
            self.set_in_flight(head, true);
        }
    }

    /// A chain is about to be given back.
    pub(super) fn record_returning(&self, head: u16) {
        if head < self.size {
            self.memory.region().store_u16(self.base + LAST_HEAD_OFFSET, head);
        }
    }

    /// It was, and the ring's index is this now.
    pub(super) fn record_returned(&self, head: u16, used: u16) {
        if head < self.size {
            self.set_in_flight(head, false);
            self.memory.region().store_u16(self.base + USED_OFFSET, used);
        }
    }

    /// Begins, or begins again: the heads that were taken and not given back, oldest first.
    pub(super) fn recover_in_flight(&mut self, queue_size: u16, used: u16) -> Vec<u16> {
        let region = self.memory.region();
        if region.load_u16(self.base + VERSION_OFFSET) == 0 {
            region.store_u16(self.base + VERSION_OFFSET, 1);
            region.store_u16(self.base + DESCRIPTORS_OFFSET, self.size);
            region.store_u16(self.base + USED_OFFSET, used);
            return Vec::new();
        }
        if region.load_u16(self.base + USED_OFFSET) != used {
            // The last answer is in the ring and not noted here.
            let head = region.load_u16(self.base + LAST_HEAD_OFFSET);
            if head < self.size {
                self.set_in_flight(head, false);
            }
            region.store_u16(self.base + USED_OFFSET, used);
        }
        let mut heads: Vec<u16> =
            (0..self.size.min(queue_size)).filter(|&head| self.is_in_flight(head)).collect();
        // Each number is read once: the front end may change them meanwhile, and an order that changes is none.
        heads.sort_by_cached_key(|&head| self.submission_counter(head));
        self.counter = heads.last().map_or(0, |&head| self.submission_counter(head));
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
        let asked =
            InflightLayout { size: 0, offset: 0, queues: 1, queue_size: RING_SIZE_MAX, padding: [0; 4] };
        let (file, at) = create_records(asked).unwrap();
        let record = move |file: &OwnedFd| open_records(file.as_fd(), at).unwrap().remove(0);
        let mut ours = record(&file);
        assert!(ours.recover_in_flight(RING_SIZE_MAX, 0).is_empty());
        (0..RING_SIZE_MAX).for_each(|head| ours.set_in_flight(head, true));
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let changer = std::thread::spawn(move || {
            let theirs = record(&file);
            let region = theirs.memory.region();
            let mut number = 1_u64;
            while !seen.load(Ordering::Relaxed) {
                for head in 0..RING_SIZE_MAX {
                    number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    region.write(theirs.entry_offset(head) + COUNTER_OFFSET, &number.to_ne_bytes());
                }
            }
        });
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..300 {
                let mut heads = ours.recover_in_flight(RING_SIZE_MAX, 0);
                heads.sort_unstable();
                assert!(heads.into_iter().eq(0..RING_SIZE_MAX), "each head once");
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        changer.join().unwrap();
        found.unwrap();
    }
}
