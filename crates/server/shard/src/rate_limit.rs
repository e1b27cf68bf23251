//! Limits of operations and bytes per second: token buckets that the shards share by atomics, without a lock.
//!
//! A bucket holds at most its burst and fills at its rate. Who takes tokens before they are there is told from when on it
//! may use them: a reservation. Reservations are given in the order in which they are asked for, so shards that serve one
//! volume or host get what they have use for, and one alone gets all.
//!
//! Invariant: of what begins in any span of time, no more is let through than rate × span + burst. For that, tokens that
//! are reserved and not yet used count as tokens in the bucket. Only an operation that is larger than the burst exceeds
//! it, by the difference; what comes after it waits for that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use buf::Time;

/// How much may begin per second, and how much at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Operations or bytes per second; not 0.
    pub per_second: u64,
    /// As many may begin at once after a pause; not 0.
    pub burst: u64,
}

impl Rate {
    /// One part in so many of a second is what a burst has, unless it is given.
    const DEFAULT_BURST_DIVISOR: u64 = 10;

    /// With the burst that holds if none is given: a tenth of a second's. `None`: it would let nothing through.
    pub fn new(per_second: u64, burst: Option<u64>) -> Option<Self> {
        let burst = burst.unwrap_or((per_second / Self::DEFAULT_BURST_DIVISOR).max(1));
        (per_second > 0 && burst > 0).then_some(Rate { per_second, burst })
    }

    /// How long it takes until so much has come in; rounded up.
    fn fill_ns(&self, amount: u64) -> u64 {
        let ns = (u128::from(amount) * 1_000_000_000).div_ceil(u128::from(self.per_second.max(1)));
        // Two weeks say what they have to say, and sums of them do not overflow.
        u64::try_from(ns).unwrap_or(u64::MAX).min(FILL_NS_MAX)
    }
}

/// The longest time that an operation may wait for its own tokens.
const FILL_NS_MAX: u64 = 1 << 50;

/// The limits of a volume or host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Of operations.
    pub iops: Option<Rate>,
    /// Of bytes.
    pub bandwidth: Option<Rate>,
}

impl RateLimits {
    /// Nothing is limited.
    pub const NONE: RateLimits = RateLimits { iops: None, bandwidth: None };
}

/// What an operation takes from the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct Bucket {
    rate: Rate,
    /// When it is full, by the clock of all shards, if nothing more is taken.
    full_at: AtomicU64,
    /// How long it takes to fill what is reserved and not yet used.
    reserved_ns: AtomicU64,
}

impl Bucket {
    fn new(rate: Rate) -> Self {
        Bucket { rate, full_at: AtomicU64::new(0), reserved_ns: AtomicU64::new(0) }
    }

    /// Takes tokens; gives the time from which on they may be used.
    fn reserve(&self, now: Time, amount: u64) -> Time {
        let takes = self.rate.fill_ns(amount);
        let held = self.reserved_ns.fetch_add(takes, Ordering::AcqRel);
        let earliest = now.0.saturating_add(held);
        let taken = |full_at: u64| Some(full_at.max(earliest).saturating_add(takes));
        let before = self.full_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, taken);
        let full_at = before.unwrap_or_else(|full_at| full_at).max(earliest);
        let burst = self.rate.fill_ns(self.rate.burst);
        Time(full_at.saturating_sub(burst - takes.min(burst)))
    }

    /// What was reserved is used now.
    fn consume(&self, amount: u64) {
        self.reserved_ns.fetch_sub(self.rate.fill_ns(amount), Ordering::AcqRel);
    }

    /// What was reserved is not used.
    fn give_back(&self, amount: u64) {
        let takes = self.rate.fill_ns(amount);
        self.full_at.fetch_sub(takes, Ordering::AcqRel);
        self.reserved_ns.fetch_sub(takes, Ordering::AcqRel);
    }

    /// What was used did not begin after all.
    fn refund(&self, amount: u64) {
        let takes = self.rate.fill_ns(amount);
        let less = |full_at: u64| Some(full_at.saturating_sub(takes));
        let _ = self.full_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

/// The buckets of a volume or host, shared by all shards, and what they have delayed.
#[derive(Debug)]
pub struct RateLimiter {
    limits: RateLimits,
    operations: Option<Bucket>,
    bytes: Option<Bucket>,
    delayed: AtomicU64,
    delayed_ns: AtomicU64,
}

impl RateLimiter {
    /// Full buckets.
    pub fn new(limits: RateLimits) -> Self {
        RateLimiter {
            limits,
            operations: limits.iops.map(Bucket::new),
            bytes: limits.bandwidth.map(Bucket::new),
            delayed: AtomicU64::new(0),
            delayed_ns: AtomicU64::new(0),
        }
    }

    /// What it limits.
    pub fn limits(&self) -> RateLimits {
        self.limits
    }

    /// How many operations have waited for it, and how long, together.
    pub fn delays(&self) -> (u64, Duration) {
        let ns = self.delayed_ns.load(Ordering::Relaxed);
        (self.delayed.load(Ordering::Relaxed), Duration::from_nanos(ns))
    }

    /// Takes the tokens of an operation; gives the time from which on it may begin.
    /// [`RateLimiter::consume`] or [`RateLimiter::give_back`] follows.
    pub(crate) fn reserve(&self, now: Time, charge: Charge) -> Time {
        let operations = self.operations.as_ref().map(|bucket| bucket.reserve(now, charge.operations));
        let bytes = self.bytes.as_ref().map(|bucket| bucket.reserve(now, charge.bytes));
        operations.into_iter().chain(bytes).max().unwrap_or(now)
    }

    /// An operation begins whose tokens were reserved, as far as this limit goes.
    pub(crate) fn consume(&self, charge: Charge) {
        self.operations.iter().for_each(|bucket| bucket.consume(charge.operations));
        self.bytes.iter().for_each(|bucket| bucket.consume(charge.bytes));
    }

    /// An operation does not begin whose tokens were reserved.
    pub(crate) fn give_back(&self, charge: Charge) {
        self.operations.iter().for_each(|bucket| bucket.give_back(charge.operations));
        self.bytes.iter().for_each(|bucket| bucket.give_back(charge.bytes));
    }

    /// An operation does not begin that was let through, because another limit holds it.
    pub(crate) fn refund(&self, charge: Charge) {
        self.operations.iter().for_each(|bucket| bucket.refund(charge.operations));
        self.bytes.iter().for_each(|bucket| bucket.refund(charge.bytes));
    }

    /// An operation has waited for it.
    pub(crate) fn count_delay(&self, ns: u64) {
        self.delayed.fetch_add(1, Ordering::Relaxed);
        self.delayed_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn limiter(per_second: u64, burst: u64) -> RateLimiter {
        let iops = Rate::new(per_second, Some(burst));
        RateLimiter::new(RateLimits { iops, bandwidth: None })
    }

    const ONE: Charge = Charge { operations: 1, bytes: 0 };

    #[test]
    fn a_rate_lets_something_through_and_has_a_burst() {
        assert_eq!(Rate::new(1000, None), Some(Rate { per_second: 1000, burst: 100 }));
        assert_eq!(Rate::new(3, None), Some(Rate { per_second: 3, burst: 1 }));
        assert_eq!((Rate::new(0, None), Rate::new(5, Some(0))), (None, None));
    }

    #[test]
    fn a_full_bucket_lets_its_burst_begin_at_once_and_then_its_rate() {
        let limiter = limiter(100, 5);
        let now = Time(10 * SECOND);
        let starts: Vec<u64> = (0..8).map(|_| limiter.reserve(now, ONE).0.max(now.0) - now.0).collect();
        let tick = SECOND / 100;
        assert_eq!(starts, [0, 0, 0, 0, 0, tick, 2 * tick, 3 * tick]);
    }

    /// Several shards that come late, or often, or hold what they reserved for long: over no span of time is more let
    /// through than rate × span + burst, and with enough demand no less than 95 %.
    #[test]
    fn over_no_span_of_time_is_more_let_through_than_the_rate_and_a_burst() {
        let mut entropy = buf::Entropy::new([7; 32]);
        for round in 0..20 {
            let (per_second, burst) = (100 + entropy.next_u64() % 3000, 1 + entropy.next_u64() % 100);
            let limiter = limiter(per_second, burst);
            // Each shard has one reservation at a time, and comes back when it is due, or later.
            let late_max = SECOND * burst / per_second / 2 + 1;
            let mut shards: Vec<(Time, Time)> = (0..3).map(|_| (Time(SECOND), Time(0))).collect();
            let mut begun: Vec<u64> = Vec::new();
            let end = SECOND + 4 * SECOND;
            let mut held = [false; 3];
            loop {
                let at = (0..3).min_by_key(|at| shards[*at].0).unwrap();
                let (now, due) = shards[at];
                if now.0 >= end {
                    break;
                }
                if held[at] && entropy.next_u64().is_multiple_of(50) {
                    limiter.give_back(ONE);
                    held[at] = false;
                } else if held[at] && due <= now {
                    limiter.consume(ONE);
                    begun.push(now.0);
                    held[at] = false;
                }
                if !held[at] {
                    shards[at].1 = limiter.reserve(now, ONE);
                    held[at] = true;
                }
                // Who waits may be woken late.
                let waits = shards[at].1 > now && entropy.next_u64().is_multiple_of(4);
                let late = if waits { entropy.next_u64() % late_max } else { 1 };
                shards[at].0 = Time(shards[at].1.0.max(now.0) + late);
            }
            for (first, from) in begun.iter().enumerate() {
                for (last, to) in begun.iter().enumerate().skip(first) {
                    let allowed = u128::from(to - from) * u128::from(per_second) / u128::from(SECOND);
                    let count = (last - first + 1) as u128;
                    assert!(
                        count <= allowed + u128::from(burst) + 1,
                        "round {round}: {count} in {} ns",
                        to - from
                    );
                }
            }
            let least = per_second * 4 * 95 / 100;
            let got = begun.len() as u64;
            assert!(burst < 4 || got >= least, "round {round}: {got} of {least} ({per_second}, {burst})");
        }
    }

    #[test]
    fn an_operation_larger_than_the_burst_begins_when_the_bucket_is_full_and_is_paid_for_afterwards() {
        let bandwidth = Rate::new(1000, Some(100));
        let limiter = RateLimiter::new(RateLimits { iops: None, bandwidth });
        let now = Time(SECOND);
        let take = |bytes| limiter.reserve(now, Charge { operations: 1, bytes });
        assert!(take(500) <= now, "the bucket is full");
        limiter.consume(Charge { operations: 1, bytes: 500 });
        assert_eq!(take(50), Time(now.0 + SECOND * 450 / 1000));
    }

    #[test]
    fn what_is_given_back_is_there_for_the_next() {
        let limiter = limiter(10, 1);
        let now = Time(SECOND);
        assert!(limiter.reserve(now, ONE) <= now);
        limiter.consume(ONE);
        let next = limiter.reserve(now, ONE);
        assert_eq!(next, Time(now.0 + SECOND / 10));
        limiter.give_back(ONE);
        assert_eq!(limiter.reserve(now, ONE), next);
    }

    #[test]
    fn both_limits_hold_and_huge_ones_do_not_overflow() {
        let rate = |per_second| Rate::new(per_second, None);
        let limiter = RateLimiter::new(RateLimits { iops: rate(1), bandwidth: rate(u64::MAX) });
        let charge = Charge { operations: 1, bytes: u64::MAX };
        let now = Time(SECOND);
        assert!(limiter.reserve(now, charge) <= now);
        assert!(limiter.reserve(now, charge) >= Time(2 * SECOND));
        let slow = RateLimiter::new(RateLimits { iops: None, bandwidth: rate(1) });
        assert!((0..100).all(|_| slow.reserve(now, charge) <= slow.reserve(now, charge)));
    }
}
