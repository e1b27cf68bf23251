//! The simulation's own randomness, apart from the endpoints' entropy: one number decides a run.

/// SplitMix64: small, fast, and good enough to choose delays.
#[derive(Clone, Debug)]
pub struct SimRng(u64);

impl SimRng {
    /// Everything follows from `seed`.
    pub fn new(seed: u64) -> Self {
        SimRng(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to, not including, `end` (at least 1).
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "nothing is below 0");
        self.next_u64() % end
    }

    /// A number within the bounds, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True so many times in a thousand.
    pub fn chance_permille(&mut self, of: u32) -> bool {
        self.below(1000) < u64::from(of)
    }

    /// One of the items.
    #[expect(clippy::indexing_slicing, reason = "the number is below the length")]
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// A generator of its own, that goes on by itself.
    pub fn fork(&mut self) -> SimRng {
        SimRng(self.next_u64())
    }
}
