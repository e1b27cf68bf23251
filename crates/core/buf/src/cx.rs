//! Everything that a protocol core sees of the world: clock, memory, randomness.

use std::ops::{Add, Sub};
use std::time::Duration;

use crate::Pool;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A point on the world's clock, in nanoseconds since an origin that only the world knows: in production
/// CLOCK_MONOTONIC, so `Time(0)` is not the start of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// Time from `earlier` to here; zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, duration: Duration) -> Time {
        Time(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Randomness, seeded by the world: from the system in production, from the seed in simulation.
/// Good enough for challenges and keys if the seed was.
pub struct Entropy(ChaCha20Rng);

impl Entropy {
    /// A generator whose whole future follows from `seed`.
    pub fn new(seed: [u8; 32]) -> Self {
        Entropy(ChaCha20Rng::from_seed(seed))
    }

    /// Fills `into` with random bytes.
    pub fn fill(&mut self, into: &mut [u8]) {
        self.0.fill_bytes(into);
    }

    /// A random number.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}

impl std::fmt::Debug for Entropy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entropy")
    }
}

/// What a core is given with each call.
#[derive(Debug)]
pub struct Cx<'a> {
    /// The world's clock, read once per turn.
    pub now: Time,
    /// The shard's memory.
    pub pool: &'a Pool,
    /// The shard's randomness.
    pub entropy: &'a mut Entropy,
}
