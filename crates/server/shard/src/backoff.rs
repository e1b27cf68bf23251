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
const FREE: u32 = 5;
/// What the first failure beyond those costs.
const FIRST: Duration = Duration::from_millis(100);
/// What a failure costs at most.
const LONGEST: Duration = Duration::from_secs(10);
/// After so long without a failure a source is as good as new.
const FORGIVEN: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug)]
struct Offence {
    failures: u32,
    last: Time,
    until: Time,
}

/// Failures by source.
#[derive(Debug, Default)]
pub(crate) struct BackOff {
    sources: HashMap<IpAddr, Offence>,
}

impl BackOff {
    /// Whether logins from here must wait.
    pub(crate) fn holds(&self, now: Time, from: IpAddr) -> bool {
        self.sources.get(&source(from)).is_some_and(|offence| now < offence.until)
    }

    /// The sources that must wait, in no order.
    pub(crate) fn held(&self, now: Time) -> impl Iterator<Item = IpAddr> {
        self.sources.iter().filter(move |(_, offence)| now < offence.until).map(|(from, _)| *from)
    }

    /// A login from here has failed to prove what it had to.
    pub(crate) fn failed(&mut self, now: Time, from: IpAddr) {
        let from = source(from);
        if !self.sources.contains_key(&from) && self.sources.len() >= SOURCES_MAX {
            self.make_room(now);
        }
        let offence = self.sources.entry(from).or_insert(Offence { failures: 0, last: now, until: now });
        if now >= offence.last + FORGIVEN {
            offence.failures = 0;
        }
        offence.failures = offence.failures.saturating_add(1);
        offence.last = now;
        offence.until = now + penalty(offence.failures);
    }

    /// Forgets whom it may; if nobody, the one that was quiet for longest.
    fn make_room(&mut self, now: Time) {
        self.sources.retain(|_, offence| now < offence.last + FORGIVEN);
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

fn penalty(failures: u32) -> Duration {
    match failures.checked_sub(FREE + 1) {
        None => Duration::ZERO,
        // 2^7 times the first is more than the longest already.
        Some(beyond) => (FIRST * (1 << beyond.min(7))).min(LONGEST),
    }
}

/// What one host can choose its addresses from.
pub fn source(address: IpAddr) -> IpAddr {
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
        let mut backoff = BackOff::default();
        let (thief, other) = (ip("192.0.2.66"), ip("192.0.2.67"));
        let mut now = Time(1);
        let mut tries = 0;
        while now < Time(1) + Duration::from_secs(24 * 3600) {
            if !backoff.holds(now, thief) {
                tries += 1;
                backoff.failed(now, thief);
            }
            assert!(!backoff.holds(now, other), "others do not wait");
            now = now + Duration::from_millis(50);
        }
        assert!((8_000..10_000).contains(&tries), "{tries} tries in a day");
        assert_eq!(backoff.sources.len(), 1);
    }

    #[test]
    fn the_first_failures_are_free_and_time_forgives() {
        let mut backoff = BackOff::default();
        let (from, now) = (ip("2001:db8::1"), Time(1));
        for _ in 0..FREE {
            backoff.failed(now, from);
            assert!(!backoff.holds(now, from));
        }
        backoff.failed(now, from);
        assert!(backoff.holds(now, ip("2001:db8::2")), "one host has a whole /64");
        assert!(!backoff.holds(now, ip("2001:db8:0:1::1")));
        assert!(!backoff.holds(now + FIRST, from));
        let later = now + FORGIVEN;
        backoff.failed(later, from);
        assert!(!backoff.holds(later, from));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut backoff = BackOff::default();
        for host in 0..4 * SOURCES_MAX as u32 {
            backoff.failed(Time(u64::from(host)), IpAddr::V4(host.into()));
            assert!(backoff.sources.len() <= SOURCES_MAX);
        }
        let last = IpAddr::V4((4 * SOURCES_MAX as u32 - 1).into());
        assert!(backoff.sources.contains_key(&last));
        assert!(!backoff.sources.contains_key(&ip("0.0.0.0")));
    }
}
