//! State that the gates of one volume share over all cores, in atomics.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use buf::Time;

use crate::backend::ShardId;
use crate::region_guards::RegionGuards;

/// How long a lack of space is not told again.
const NO_SPACE_NOTICE_INTERVAL_NS: u64 = 60_000_000_000;

/// The shared state of a volume's gates. Make one per opened volume, and give a clone to each gate.
#[derive(Clone, Debug)]
pub struct SharedGateState(Arc<SharedGateStateInner>);

#[derive(Debug)]
struct SharedGateStateInner {
    guards: RegionGuards,
    shards: u16,
    sync_failed: AtomicBool,
    /// When it was last told that there is no space, in nanoseconds; 0: never.
    space_told: AtomicU64,
    atomic_seen: AtomicBool,
    sanitize_rate: AtomicU64,
    sanitize_restricted: AtomicBool,
    /// In percent of the capacity; 0: none.
    thin_threshold: AtomicU32,
    /// In nanoseconds; 0: none.
    queue_timeout: AtomicU64,
    gauge: OnceLock<AllocationGauge>,
}

/// How many bytes of a thin volume's medium are allocated. Who knows the medium keeps it up to date;
/// clones are the same gauge.
#[derive(Clone, Debug, Default)]
pub struct AllocationGauge(Arc<AtomicU64>);

impl AllocationGauge {
    /// Bytes.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it.
    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether anyone else reads it.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl SharedGateState {
    /// For gates on `shard_count` cores, numbered from 0.
    pub fn new(shards: u16) -> Self {
        SharedGateState(Arc::new(SharedGateStateInner {
            guards: RegionGuards::new(shards),
            shards,
            sync_failed: AtomicBool::new(false),
            space_told: AtomicU64::new(0),
            atomic_seen: AtomicBool::new(false),
            sanitize_rate: AtomicU64::new(0),
            sanitize_restricted: AtomicBool::new(false),
            thin_threshold: AtomicU32::new(0),
            queue_timeout: AtomicU64::new(0),
            gauge: OnceLock::new(),
        }))
    }

    /// How many cores take part.
    pub fn shard_count(&self) -> u16 {
        self.0.shards
    }

    /// Whether a sync has failed, so that contents are in doubt until [`SharedGateState::acknowledge_sync_failure`].
    pub fn has_sync_failed(&self) -> bool {
        self.0.sync_failed.load(Ordering::Acquire)
    }

    /// The operator takes note of what may be lost: a failed sync is no longer held against the volume. Its backend
    /// says again what it still holds against it.
    pub fn acknowledge_sync_failure(&self) {
        self.0.sync_failed.store(false, Ordering::Release);
    }

    /// A sync has failed in the process that served the volume before.
    pub(crate) fn carry_sync_failure(&self) {
        self.0.sync_failed.store(true, Ordering::Release);
    }

    /// Notes that a sync has failed; whether it is the first one, over all cores.
    pub(crate) fn note_sync_failure(&self) -> bool {
        !self.0.sync_failed.swap(true, Ordering::AcqRel)
    }

    /// Whether it is to be told that there is no space: once a minute, over all cores.
    pub(crate) fn should_report_no_space(&self, now: Time) -> bool {
        let told = self.0.space_told.load(Ordering::Relaxed);
        let due = told == 0 || now.0 >= told.saturating_add(NO_SPACE_NOTICE_INTERVAL_NS);
        let tell =
            || self.0.space_told.compare_exchange(told, now.0.max(1), Ordering::Relaxed, Ordering::Relaxed);
        due && tell().is_ok()
    }

    /// Whether it was told that there is no space within two of the times in which it is told once.
    pub(crate) fn lacked_space_recently(&self, now: Time) -> bool {
        let told = self.0.space_told.load(Ordering::Relaxed);
        told != 0 && now.0 < told.saturating_add(2 * NO_SPACE_NOTICE_INTERVAL_NS)
    }

    /// Whether an operation was submitted that reads must see whole, so that memory must not be
    /// lent for reading any more.
    pub(crate) fn had_atomic_op(&self) -> bool {
        self.0.atomic_seen.load(Ordering::Acquire)
    }

    pub(crate) fn note_atomic_op(&self) {
        if !self.had_atomic_op() {
            self.0.atomic_seen.store(true, Ordering::Release);
        }
    }

    /// Says where it can be read how much of the medium is allocated. Only the first call counts.
    pub fn set_allocation_gauge(&self, gauge: AllocationGauge) {
        let _ = self.0.gauge.set(gauge);
    }

    /// How many bytes of the medium are allocated, if that is known.
    pub fn allocated_bytes(&self) -> Option<u64> {
        Some(self.0.gauge.get()?.get())
    }

    /// Sets from how many percent of its capacity on a thin volume tells its hosts how much of it is allocated; 0, as at
    /// first, is never.
    pub fn set_thin_threshold_percent(&self, percent: u32) {
        self.0.thin_threshold.store(percent, Ordering::Relaxed);
    }

    /// How many bytes that is of a volume of this capacity; `None`: it is not told.
    pub fn thin_threshold_bytes(&self, capacity_bytes: u64) -> Option<u64> {
        match self.0.thin_threshold.load(Ordering::Relaxed) {
            0 => None,
            percent => Some((u128::from(capacity_bytes) * u128::from(percent) / 100) as u64),
        }
    }

    pub(crate) fn guards(&self) -> &RegionGuards {
        &self.0.guards
    }

    /// Sets how long an operation may be with the backend before it fails with
    /// [`Fault::PathLost`](crate::Fault::PathLost); zero, as at first, is any time. It concerns what is submitted from
    /// now on.
    pub fn set_queue_timeout(&self, limit: Duration) {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.0.queue_timeout.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn queue_timeout(&self) -> Option<Duration> {
        match self.0.queue_timeout.load(Ordering::Relaxed) {
            0 => None,
            limit => Some(Duration::from_nanos(limit)),
        }
    }

    /// Sets how many bytes per second a sanitize may write, so that it leaves the disk time for
    /// others' work; 0, as at first, is as many as it can.
    pub fn set_sanitize_rate(&self, bytes_per_second: u64) {
        self.0.sanitize_rate.store(bytes_per_second, Ordering::Relaxed);
    }

    pub(crate) fn sanitize_rate(&self) -> u64 {
        self.0.sanitize_rate.load(Ordering::Relaxed)
    }

    /// Notes whether, should the sanitize that begins now fail, only another one may open the volume
    /// again. Who asks [`VolumeRequest::SanitizeForgive`](crate::VolumeRequest::SanitizeForgive) looks first.
    pub fn restrict_sanitize_exit(&self, restricted: bool) {
        self.0.sanitize_restricted.store(restricted, Ordering::Release);
    }

    /// What [`SharedGateState::restrict_sanitize_exit`] noted last.
    pub fn is_sanitize_exit_restricted(&self) -> bool {
        self.0.sanitize_restricted.load(Ordering::Acquire)
    }

    /// Panics if the shard is not one of the cores that take part.
    pub(crate) fn assert_shard_in_range(&self, shard: ShardId) {
        assert!(shard.0 < self.0.shards, "a gate's shard is one of those that share the volume");
    }
}
