//! Counters of a server that any thread may read while the server runs.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one server since its start.
#[derive(Debug, Default)]
pub struct Statistics {
    reads: AtomicU64,
    bytes_read: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    failures: AtomicU64,
    clients: AtomicU64,
}

/// What the counters said at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatisticsSnapshot {
    /// Reads that succeeded.
    pub reads: u64,
    /// Their bytes.
    pub bytes_read: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Their bytes.
    pub bytes_written: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Discards, and writes of zeroes, that succeeded.
    pub discards: u64,
    /// Requests that failed, of whatever kind.
    pub failures: u64,
    /// Clients that are there now: connections, or openings of the file.
    pub clients: u64,
}

/// Kinds of requests that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedRequest {
    Read(u64),
    Written(u64),
    Flush,
    Discard,
    Failure,
    Other,
}

impl Statistics {
    /// All counters now.
    pub fn snapshot(&self) -> StatisticsSnapshot {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StatisticsSnapshot {
            reads: of(&self.reads),
            bytes_read: of(&self.bytes_read),
            writes: of(&self.writes),
            bytes_written: of(&self.bytes_written),
            flushes: of(&self.flushes),
            discards: of(&self.discards),
            failures: of(&self.failures),
            clients: of(&self.clients),
        }
    }

    pub(crate) fn count_request(&self, what: CountedRequest) {
        // Only the server's thread writes, so a load and a store are enough.
        let add = |counter: &AtomicU64, n| {
            counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        };
        match what {
            CountedRequest::Read(bytes) => {
                add(&self.reads, 1);
                add(&self.bytes_read, bytes);
            }
            CountedRequest::Written(bytes) => {
                add(&self.writes, 1);
                add(&self.bytes_written, bytes);
            }
            CountedRequest::Flush => add(&self.flushes, 1),
            CountedRequest::Discard => add(&self.discards, 1),
            CountedRequest::Failure => add(&self.failures, 1),
            CountedRequest::Other => {}
        }
    }

    pub(crate) fn set_clients(&self, now: u64) {
        self.clients.store(now, Ordering::Relaxed);
    }
}
