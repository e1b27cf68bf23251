//! Counters of a shard. Each has one writer, its shard, and any thread may read it: plain adds, no
//! read-modify-write, no waiting.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One count with one writer.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    pub(crate) fn load(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one shard, alone on their cache lines.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        /// What a shard has counted since it started.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ShardStats { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            pub(crate) fn stats(&self) -> ShardStats {
                ShardStats { $($name: self.$name.load(),)* }
            }
        }
    };
}

counters! {
    /// Turns of the loop.
    turns,
    /// Times that it slept in the kernel.
    sleeps,
    /// Times that polling before sleeping found work.
    polls_useful,
    /// Times that polling before sleeping found none.
    polls_idle,
    /// Nanoseconds spent polling, useful or not.
    poll_ns,
    /// Messages taken from other shards and the control plane.
    messages,
    /// Times that another thread had to be woken from its sleep.
    wakeups,
    /// System calls of the loop (receives and sends of the epoll world included).
    syscalls,
    /// Receives that brought bytes.
    recvs,
    /// Bytes received.
    recv_bytes,
    /// Times that a receive found no memory and had to wait for some.
    recvs_starved,
    /// Sends that were written whole.
    sends,
    /// Bytes sent.
    send_bytes,
    /// Times that a send had to be continued after a part of it.
    sends_partial,
    /// Disk operations ended.
    disks,
    /// Sockets accepted here, for whichever shard.
    accepted,
    /// Sockets reset for want of room on the shard, or of descriptors.
    refused,
    /// Times that accepting found no descriptor or memory left.
    exhausted,
    /// Messages for the control plane that it did not fetch in time, dropped.
    control_lost,
    /// Links now.
    links,
    /// Pool memory lent now, in bytes, without what the world keeps ready for receives.
    pool_lent,
}
