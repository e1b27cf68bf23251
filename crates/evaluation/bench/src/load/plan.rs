//! What a load is to be, where it is, and what was measured of it.

use std::time::Duration;

use eval::Histogram;

use crate::spin::{WaitMode, WaitStats};
use crate::wire_protocol::LoadOp;

/// How the load is laid out.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// Read or write.
    pub op: LoadOp,
    /// So many percent of reads in place of `op` alone; the rest are writes.
    pub reads: Option<u8>,
    /// Requests per second, each begun on time whether or not others have ended; `None`: one for each that ends.
    pub rate: Option<f64>,
    /// Bytes per request.
    pub len: u32,
    /// Requests in flight per connection.
    pub depth: u32,
    /// Bytes of the volume that are used; offsets are random multiples of `len` below.
    pub size: u64,
    /// From end to end and again, in place of random offsets.
    pub is_sequential: bool,
    /// The volume once from end to end, in place of random offsets for a time.
    pub once: bool,
    /// How long to load before measuring.
    pub warmup: Duration,
    /// How long to measure.
    pub measure: Duration,
    /// Time between an answer and the next request.
    pub gap: Duration,
    /// How to wait.
    pub wait: WaitMode,
    /// The longest poll.
    pub poll: Duration,
    /// The process whose use of the processor is measured as well.
    pub server: Option<u32>,
    /// What the offsets follow from.
    pub seed: u64,
}

/// What a connection does beside those that are measured: as many requests at a time as it has depth, each followed
/// by another when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundLoad {
    /// Read or write.
    pub op: LoadOp,
    /// Bytes per request.
    pub len: u32,
    /// Bytes of the volume that are used; offsets are random multiples of `len` below.
    pub size: u64,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct LoadMeasurement {
    /// Time of the measurement in seconds.
    pub seconds: f64,
    /// Latencies; with a rate, from the moment at which a request was to begin.
    pub latency: Histogram,
    /// How many of them were of writes.
    pub writes: u64,
    /// Bytes of the requests of [`BackgroundLoad`]s, which are in no other figure.
    pub background_bytes: u64,
    /// The server's processor time in nanoseconds.
    pub server_cpu_ns: u64,
    /// The generator's processor time in nanoseconds.
    pub client_cpu_ns: u64,
    /// How the generator waited.
    pub waits: WaitStats,
    /// How often the server's window held a request back.
    pub window_stalls: u64,
    /// Requests that were out when the measurement ended: they are in no latency.
    pub unfinished: u64,
    /// How old the oldest of them was by then.
    pub unfinished_oldest: Duration,
}

/// Where a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadPhase {
    /// It is measured from now on.
    Measuring,
    /// So many requests were answered since it is; told about four times a second.
    Progress(u64),
    /// It is not measured any more.
    Measured,
}
