//! Generated PSKs (NVMe Base 2.1 §8.3.4.5.9): what hosts that have authenticated may use TLS by. Shards tell of them, and
//! handshakes look them up.
//!
//! Invariants:
//! - A PSK is found for [`LIFETIME`] at most (NVMe/TCP Transport 1.1 §3.6.1.4), and not after the controller has ended
//!   whose queues came by it.
//! - There are at most [`PSKS_MAX`], some 4 MiB, and [`PSKS_PER_HOST_MAX`] of a host for a subsystem; one more takes the
//!   place of the oldest. Only hosts that have authenticated have one.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nvme::tls::PskIdentity;
use tls::Psk;

/// How long connections may be set up by a PSK.
const LIFETIME: Duration = Duration::from_secs(600);
/// How many there are at most.
const PSKS_MAX: usize = 4096;
/// How many there are of one host for one subsystem: no host takes the place of the others.
const PSKS_PER_HOST_MAX: usize = 32;

/// The PSKs, oldest first.
#[derive(Clone, Debug, Default)]
pub struct GeneratedPsks(Arc<Mutex<VecDeque<GeneratedPsk>>>);

#[derive(Debug)]
struct GeneratedPsk {
    identity: PskIdentity,
    psk: Psk,
    until: Instant,
}

impl GeneratedPsks {
    fn list(&self, now: Instant) -> MutexGuard<'_, VecDeque<GeneratedPsk>> {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while list.front().is_some_and(|oldest| oldest.until <= now) {
            list.pop_front();
        }
        list
    }

    /// Adds one.
    pub fn add(&self, now: Instant, identity: PskIdentity, psk: Psk) {
        let mut list = self.list(now);
        let is_own = |known: &GeneratedPsk| {
            known.identity.host == identity.host && known.identity.subsystem == identity.subsystem
        };
        if list.iter().filter(|known| is_own(known)).count() >= PSKS_PER_HOST_MAX {
            let oldest = list.iter().position(is_own);
            oldest.and_then(|at| list.remove(at));
        } else if list.len() >= PSKS_MAX {
            list.pop_front();
        }
        list.push_back(GeneratedPsk { identity, psk, until: now + LIFETIME });
    }

    /// Removes one.
    pub fn revoke(&self, now: Instant, identity: &PskIdentity) {
        self.list(now).retain(|known| known.identity != *identity);
    }

    /// The PSK of an identity, if it was generated since then.
    pub fn find(&self, now: Instant, identity: &PskIdentity, since: Instant) -> Option<Psk> {
        let list = self.list(now);
        let known = list.iter().find(|known| known.identity == *identity)?;
        (known.until >= since + LIFETIME).then(|| known.psk.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(number: usize) -> PskIdentity {
        let host = number / PSKS_PER_HOST_MAX;
        PskIdentity::parse(format!("NVMe1G01 nqn.h{host} nqn.s {number:044}").as_bytes()).unwrap()
    }

    fn psk() -> Psk {
        Psk::new([0x13, 1], &[1; 32])
    }

    #[test]
    fn a_psk_lives_for_its_time_or_until_it_is_revoked() {
        let (psks, now) = (GeneratedPsks::default(), Instant::now());
        psks.add(now, identity(1), psk());
        psks.add(now + LIFETIME / 2, identity(2), psk());
        assert!(psks.find(now, &identity(3), now).is_none());
        let last = now + LIFETIME - Duration::from_millis(1);
        assert!(psks.find(last, &identity(1), now).is_some());
        assert!(psks.find(now + LIFETIME, &identity(1), now).is_none());
        assert!(psks.find(now + LIFETIME, &identity(2), now).is_some());
        assert!(psks.find(now + LIFETIME, &identity(2), now + LIFETIME).is_none(), "of another secret");
        psks.revoke(now + LIFETIME, &identity(2));
        assert!(psks.find(now + LIFETIME, &identity(2), now).is_none());
        assert!(!format!("{psks:?}").contains("1, 1, 1"), "no Debug shows a key");
    }

    #[test]
    fn there_are_so_many_and_no_more() {
        let (psks, now) = (GeneratedPsks::default(), Instant::now());
        let is_known = |number| psks.find(now, &identity(number), now).is_some();
        (0..=PSKS_MAX).for_each(|number| psks.add(now, identity(number), psk()));
        assert!(!is_known(0) && is_known(1) && is_known(PSKS_MAX));
    }

    #[test]
    fn a_host_takes_the_place_of_its_own() {
        let (psks, now) = (GeneratedPsks::default(), Instant::now());
        let own = |number: usize| {
            PskIdentity::parse(format!("NVMe1G01 nqn.own nqn.s {number:044}").as_bytes()).unwrap()
        };
        psks.add(now, identity(0), psk());
        (0..2 * PSKS_MAX).for_each(|number| psks.add(now, own(number), psk()));
        assert!(psks.find(now, &identity(0), now).is_some());
        let last = 2 * PSKS_MAX - 1;
        assert!(psks.find(now, &own(last), now).is_some());
        assert!(psks.find(now, &own(last - PSKS_PER_HOST_MAX + 1), now).is_some());
        assert!(psks.find(now, &own(last - PSKS_PER_HOST_MAX), now).is_none());
    }
}
