//! How many disk calls the ring has at a time.
//!
//! Calls that the kernel cannot complete at once go to its workers, of which a ring has four per processor by
//! default. Disks that never answer would soon occupy all of them, and no other disk's sync would begin.
//! Invariant: a disk has at most [`DISK_DEPTH_MAX`] calls in the ring; the rest waits here, in order. There may be
//! as many workers as the disks may have calls in the ring, up to [`WORKERS_MAX`].
//!
//! A limit remains in the kernel: it serializes writes to files by 64 hashes of their inodes, so a write that
//! hangs delays those to other files with its hash.

use std::collections::VecDeque;

use io_uring::Submitter;
use volume::DiskId;

use crate::disk::DiskSyscall;

/// Calls of one disk that the ring has at most: as many as the kernel queues for a device by itself.
const DISK_DEPTH_MAX: usize = 256;
/// Workers at most. They are made when others are blocked, and end after seconds without work. Each takes some 24 KiB.
const WORKERS_MAX: usize = 4096;

/// The calls of each disk.
#[derive(Default)]
pub(super) struct DiskQueues {
    disks: Vec<DiskQueue>,
}

#[derive(Default)]
struct DiskQueue {
    out: usize,
    /// With the slots that they stand in.
    waiting: VecDeque<(u32, DiskSyscall)>,
}

impl DiskQueues {
    /// Whether the ring may have a call now; else it is kept until [`DiskQueues::finish_call`] gives it.
    pub(super) fn try_start_call(
        &mut self,
        ring: &Submitter<'_>,
        disk: DiskId,
        slot: u32,
        call: DiskSyscall,
    ) -> bool {
        let at = disk.0 as usize;
        if at >= self.disks.len() {
            self.disks.resize_with(at + 1, DiskQueue::default);
            let workers = (self.disks.len() * DISK_DEPTH_MAX).min(WORKERS_MAX) as u32;
            // Those that are not bound to files stay as they are. Before Linux 5.15 there are as many as there are.
            let _ = ring.register_iowq_max_workers(&mut [workers, 0]);
        }
        let Some(of) = self.disks.get_mut(at) else { return true };
        if of.out == DISK_DEPTH_MAX {
            of.waiting.push_back((slot, call));
            return false;
        }
        of.out += 1;
        true
    }

    /// A call of a disk has ended; the one that the ring may have instead.
    pub(super) fn finish_call(&mut self, disk: DiskId) -> Option<(u32, DiskSyscall)> {
        let of = self.disks.get_mut(disk.0 as usize)?;
        let next = of.waiting.pop_front();
        if next.is_none() {
            of.out -= 1;
        }
        next
    }
}
