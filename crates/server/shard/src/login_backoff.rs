//! Delays for sources of wrong passwords.
//!
//! A source is an IPv4 address or an IPv6 /64, which one host can choose from. The first few failures have no
//! effect, so that a mistyped secret, or a host that logs in to many targets at once, is not delayed. After
//! that each failure doubles the time during which logins that need authentication are refused with "service
//! unavailable" (0301h, which initiators retry) before anything is computed for them. The answer depends on
//! the source only, never on the account. Every shard keeps the same count: the shard that accepted the
//! connection tells all others. Invariant: the table holds at most [`SOURCES_MAX`] sources; beyond that, the
//! source that was quiet for longest is forgotten.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use buf::Time;

/// Sources that are remembered at most.
pub(crate) const SOURCES_MAX: usize = 1024;
/// Failures that cost nothing.
const FREE_FAILURES: u32 = 5;
/// What the first failure beyond those costs.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// What a failure costs at most.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// After so long without a failure a source is as good as new.
const FORGIVE_AFTER: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug)]
struct FailureRecord {
    failures: u32,
    last: Time,
    until: Time,
}

/// Failures by source.
#[derive(Debug, Default)]
pub(crate) struct LoginBackoff {
    sources: HashMap<IpAddr, FailureRecord>,
}

impl LoginBackoff {
    /// Whether logins from here must wait.
    pub(crate) fn must_wait(&self, now: Time, from: IpAddr) -> bool {
        self.sources.get(&source_network(from)).is_some_and(|offence| now < offence.until)
    }

    /// The sources that must wait, in no order.
    pub(crate) fn delayed_sources(&self, now: Time) -> impl Iterator<Item = IpAddr> {
        self.sources.iter().filter(move |(_, offence)| now < offence.until).map(|(from, _)| *from)
    }

    /// A login from here has failed to prove what it had to.
    pub(crate) fn note_failure(&mut self, now: Time, from: IpAddr) {
        let from = source_network(from);
        if !self.sources.contains_key(&from) && self.sources.len() >= SOURCES_MAX {
            self.evict_source(now);
        }
        let offence =
            self.sources.entry(from).or_insert(FailureRecord { failures: 0, last: now, until: now });
        if now >= offence.last + FORGIVE_AFTER {
            offence.failures = 0;
        }
        offence.failures = offence.failures.saturating_add(1);
        offence.last = now;
        offence.until = now + delay_after(offence.failures);
    }

    /// Forgets whom it may; if nobody, the one that was quiet for longest.
    fn evict_source(&mut self, now: Time) {
        self.sources.retain(|_, offence| now < offence.last + FORGIVE_AFTER);
        if self.sources.len() < SOURCES_MAX {
            return;
        }
        // The address breaks ties, so that equal histories lead to equal tables.
        let quietest = self.sources.iter().min_by_key(|(from, offence)| (offence.last, **from));
        if let Some(from) = quietest.map(|(from, _)| *from) {
            self.sources.remove(&from);
        }
    }
}

fn delay_after(failures: u32) -> Duration {
    match failures.checked_sub(FREE_FAILURES + 1) {
        None => Duration::ZERO,
        // 2^7 times the first is more than the longest already.
        Some(beyond) => (FIRST_DELAY * (1 << beyond.min(7))).min(DELAY_MAX),
    }
}

/// What one host can choose its addresses from.
pub fn source_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn attack_15_ten_thousand_wrong_passwords_take_a_day() {
        let mut backoff = LoginBackoff::default();
        let (thief, other) = (ip("192.0.2.66"), ip("192.0.2.67"));
        let mut now = Time(1);
        let mut tries = 0;
        while now < Time(1) + Duration::from_secs(24 * 3600) {
            if !backoff.must_wait(now, thief) {
                tries += 1;
                backoff.note_failure(now, thief);
            }
            assert!(!backoff.must_wait(now, other), "others do not wait");
            now = now + Duration::from_millis(50);
        }
        assert!((8_000..10_000).contains(&tries), "{tries} tries in a day");
        assert_eq!(backoff.sources.len(), 1);
    }

    #[test]
    fn the_first_failures_are_free_and_time_forgives() {
        let mut backoff = LoginBackoff::default();
        let (from, now) = (ip("2001:db8::1"), Time(1));
        for _ in 0..FREE_FAILURES {
            backoff.note_failure(now, from);
            assert!(!backoff.must_wait(now, from));
        }
        backoff.note_failure(now, from);
        assert!(backoff.must_wait(now, ip("2001:db8::2")), "one host has a whole /64");
        assert!(!backoff.must_wait(now, ip("2001:db8:0:1::1")));
        assert!(!backoff.must_wait(now + FIRST_DELAY, from));
        let later = now + FORGIVE_AFTER;
        backoff.note_failure(later, from);
        assert!(!backoff.must_wait(later, from));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut backoff = LoginBackoff::default();
        for host in 0..4 * SOURCES_MAX as u32 {
            backoff.note_failure(Time(u64::from(host)), IpAddr::V4(host.into()));
            assert!(backoff.sources.len() <= SOURCES_MAX);
        }
        let last = IpAddr::V4((4 * SOURCES_MAX as u32 - 1).into());
        assert!(backoff.sources.contains_key(&last));
        assert!(!backoff.sources.contains_key(&ip("0.0.0.0")));
    }
}
