//! The offset and direction of the next I/O.
//!
//! Invariant: sequences depend only on the seed; with `covers`, every block comes exactly once before
//! [`Offsets::next`] reports that all have come.

use super::IoKind;
use crate::fio::{IoDirection, Job};

/// SplitMix64: every seed gives a sequence of full period.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    pub(super) fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix_bits(self.0)
    }

    /// Below `bound`, evenly (by multiplication; the bias is below 2^-32 for volumes that exist).
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

fn mix_bits(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Reads or writes, in the proportion that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadWriteMix {
    direction: IoDirection,
    random: SplitMix64,
}

impl ReadWriteMix {
    pub(super) fn new(direction: IoDirection, seed: u64) -> Self {
        ReadWriteMix { direction, random: SplitMix64::new(mix_bits(seed ^ 0x6D69_7865)) }
    }

    pub(super) fn next(&mut self) -> IoKind {
        match self.direction {
            IoDirection::Read => IoKind::Read,
            IoDirection::Write => IoKind::Write,
            IoDirection::Trim => IoKind::Trim,
            IoDirection::Mixed(reads) if self.random.below(100) < u64::from(reads) => IoKind::Read,
            IoDirection::Mixed(_) => IoKind::Write,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum OffsetOrder {
    Ascending {
        next: u64,
    },
    Random(SplitMix64),
    /// A random order in which every block comes once.
    Covering {
        next: u64,
        shuffle: Permutation,
    },
}

/// The offsets of one volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    first: u64,
    /// Bytes of a place; a shorter I/O stands at its start.
    place: u64,
    places: u64,
    order: OffsetOrder,
    seed: u64,
    rounds: u64,
}

impl Offsets {
    pub(super) fn new(job: &Job, bytes: u64, largest: u32, seed: u64) -> Self {
        let place = u64::from(largest);
        let places = bytes / place;
        let order = match (job.is_random, job.covers) {
            (false, _) => OffsetOrder::Ascending { next: 0 },
            (true, false) => OffsetOrder::Random(SplitMix64::new(mix_bits(seed))),
            (true, true) => OffsetOrder::Covering { next: 0, shuffle: Permutation::new(places, seed) },
        };
        Offsets { first: job.offset, place, places, order, seed, rounds: 0 }
    }

    /// The next; `None` if all have come.
    pub(super) fn next(&mut self) -> Option<u64> {
        let at = match &mut self.order {
            OffsetOrder::Random(random) => random.below(self.places),
            OffsetOrder::Ascending { next } | OffsetOrder::Covering { next, .. } if *next == self.places => {
                return None;
            }
            OffsetOrder::Ascending { next } => {
                *next += 1;
                *next - 1
            }
            OffsetOrder::Covering { next, shuffle } => {
                *next += 1;
                shuffle.permute(*next - 1)
            }
        };
        Some(self.first + at * self.place)
    }

    /// Begins again, in another order if the order is random.
    pub(super) fn restart(&mut self) {
        self.rounds += 1;
        match &mut self.order {
            OffsetOrder::Random(_) => {}
            OffsetOrder::Ascending { next } => *next = 0,
            OffsetOrder::Covering { next, shuffle } => {
                *next = 0;
                *shuffle = Permutation::new(self.places, self.seed.wrapping_add(mix_bits(self.rounds)));
            }
        }
    }
}

/// A permutation of the numbers below `count`: a Feistel network over the next power of four, walked
/// until it lands inside (fewer than four steps on average).
#[derive(Clone, Copy, Debug)]
struct Permutation {
    count: u64,
    half: u32,
    keys: [u64; 4],
}

impl Permutation {
    fn new(count: u64, seed: u64) -> Self {
        let bits = 64 - count.max(2).saturating_sub(1).leading_zeros();
        let mut random = SplitMix64::new(mix_bits(seed));
        let keys = std::array::from_fn(|_| random.next());
        Permutation { count, half: bits.div_ceil(2), keys }
    }

    fn permute(&self, at: u64) -> u64 {
        let mask = (1u64 << self.half) - 1;
        let mut at = at;
        loop {
            let (mut left, mut right) = (at >> self.half, at & mask);
            for key in self.keys {
                (left, right) = (right, left ^ (mix_bits(right ^ key) & mask));
            }
            at = left << self.half | right;
            if at < self.count {
                return at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_shuffle_is_a_permutation(count in 1u64..3000, seed: u64) {
            let shuffle = Permutation::new(count, seed);
            let mut all: Vec<u64> = (0..count).map(|at| shuffle.permute(at)).collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..count));
        }
    }

    #[test]
    fn random_offsets_are_even() {
        let job = Job { is_random: true, covers: false, ..Job::default() };
        let mut offsets = Offsets::new(&job, 4096 * 64, 4096, 7);
        let mut counts = [0u32; 64];
        for _ in 0..64_000 {
            counts[(offsets.next().unwrap() / 4096) as usize] += 1;
        }
        // Chi square over 63 degrees of freedom: beyond 110 comes once in 5,000.
        let chi: f64 = counts.iter().map(|count| (f64::from(*count) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 110.0, "{chi}");
    }

    #[test]
    fn a_mix_is_as_asked() {
        let mut mix = ReadWriteMix::new(IoDirection::Mixed(70), 1);
        let reads = (0..100_000).filter(|_| mix.next() == IoKind::Read).count();
        assert!((69_000..71_000).contains(&reads), "{reads}");
    }
}
