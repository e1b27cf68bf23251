//! Latencies in few bytes: a histogram whose buckets grow with their values.
//!
//! Invariant: the width of a bucket is at most a 64th of its values (or 1 ns), so any percentile is right
//! within 1.6 %; count, sum, minimum and maximum are exact.

use serde::{Deserialize, Serialize};

/// Buckets per doubling: 2 to the power of this.
const SUB_BUCKET_BITS: u32 = 6;
/// Buckets up to 2^64.
const BUCKETS: usize = ((64 - SUB_BUCKET_BITS as usize) + 1) << SUB_BUCKET_BITS;

/// Latencies that must lie beyond a percentile for it to be told.
pub const BEYOND_PERCENTILE_MIN: u64 = 10;

/// How often each latency came. Nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Sparse", into = "Sparse")]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    /// Of squares, for the standard deviation: exact up to 2^64 values of an hour each.
    squares: u128,
    min: u64,
    max: u64,
}

/// As it is written: only buckets that hold something, as index and count.
#[derive(Serialize, Deserialize)]
struct Sparse {
    buckets: Vec<(u32, u64)>,
    #[serde(with = "wide")]
    sum_ns: u128,
    #[serde(with = "wide")]
    squares_ns2: u128,
    min_ns: u64,
    max_ns: u64,
}

/// Numbers of more than 64 bits are written as text: a JSON value holds no such number.
mod wide {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Text(String),
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub fn serialize<S: Serializer>(number: &u128, to: S) -> Result<S::Ok, S::Error> {
        match u64::try_from(*number) {
            Ok(number) => to.serialize_u64(number),
            Err(_) => to.collect_str(number),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        match Written::deserialize(from)? {
            Written::Number(number) => Ok(u128::from(number)),
            Written::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS], count: 0, sum: 0, squares: 0, min: u64::MAX, max: 0 }
    }
}

fn bucket_index(value: u64) -> usize {
    let high = 64 - value.leading_zeros();
    if high <= SUB_BUCKET_BITS {
        return value as usize;
    }
    let shift = high - SUB_BUCKET_BITS - 1;
    ((shift as usize + 1) << SUB_BUCKET_BITS) + (value >> shift) as usize - (1 << SUB_BUCKET_BITS)
}

/// The lowest value of a bucket, and how many values it holds.
fn bucket_range(bucket: usize) -> (u64, u64) {
    let (row, at) = ((bucket >> SUB_BUCKET_BITS) as u32, (bucket & ((1 << SUB_BUCKET_BITS) - 1)) as u64);
    if row == 0 { (at, 1) } else { ((at + (1 << SUB_BUCKET_BITS)) << (row - 1), 1 << (row - 1)) }
}

impl Histogram {
    /// Counts one latency of so many nanoseconds.
    #[expect(clippy::indexing_slicing, reason = "there is a bucket for every number of 64 bits")]
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket_index(ns)] += 1;
        self.count += 1;
        self.sum += u128::from(ns);
        self.squares = self.squares.saturating_add(u128::from(ns) * u128::from(ns));
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    /// Counts one latency so many times. False, and nothing is counted: they are more than 64 bits count.
    #[expect(clippy::indexing_slicing, reason = "there is a bucket for every number of 64 bits")]
    #[must_use]
    pub fn record_many(&mut self, ns: u64, count: u64) -> bool {
        let Some(all) = self.count.checked_add(count) else { return false };
        if count == 0 {
            return true;
        }
        self.count = all;
        // No more than all of them.
        self.counts[bucket_index(ns)] += count;
        self.sum = self.sum.saturating_add(u128::from(ns) * u128::from(count));
        let square = u128::from(ns) * u128::from(ns);
        self.squares = self.squares.saturating_add(square.saturating_mul(u128::from(count)));
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
        true
    }

    /// Of counts that were gathered elsewhere, each at a latency in nanoseconds, with the extremes, the mean
    /// and the standard deviation that were computed there from what was not yet rounded.
    ///
    /// # Errors
    /// If these cannot be of one set of latencies.
    pub fn from_counts(
        counts: impl IntoIterator<Item = (u64, u64)>,
        (min, max): (u64, u64),
        mean: f64,
        deviation: f64,
    ) -> Result<Histogram, &'static str> {
        let mut histogram = Histogram { min, max, ..Histogram::default() };
        for (ns, count) in counts {
            let all = histogram.count.checked_add(count).ok_or("latencies are more than 64 bits count")?;
            if let Some(bucket) = histogram.counts.get_mut(bucket_index(ns)) {
                *bucket += count;
            }
            histogram.count = all;
        }
        if histogram.count == 0 {
            return Ok(Histogram::default());
        }
        let (low, high) = (min as f64, max as f64);
        if low > high || !(low - 1.0..=high + 1.0).contains(&mean) || !(0.0..=high + 1.0).contains(&deviation)
        {
            return Err("the extremes, the mean and the deviation of latencies do not agree");
        }
        let count = histogram.count as f64;
        histogram.sum = (mean * count) as u128;
        histogram.squares = ((deviation * deviation + mean * mean) * count) as u128;
        Ok(histogram)
    }

    /// Adds all of another.
    pub fn merge(&mut self, other: &Histogram) {
        // Records of others may hold more than can be counted together.
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.squares = self.squares.saturating_add(other.squares);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// What was counted since an earlier moment, when it was as `earlier`: extremes are those of its buckets. `None`:
    /// it never was.
    pub fn since(&self, earlier: &Histogram) -> Option<Histogram> {
        let less = |(now, then): (&u64, &u64)| now.checked_sub(*then);
        let counts = self.counts.iter().zip(&earlier.counts).map(less).collect::<Option<Vec<u64>>>()?;
        let mut fresh =
            Histogram { counts, count: self.count.checked_sub(earlier.count)?, ..Histogram::default() };
        if fresh.count == 0 {
            return Some(Histogram::default());
        }
        fresh.sum = self.sum.checked_sub(earlier.sum)?;
        fresh.squares = self.squares.checked_sub(earlier.squares)?;
        let (low, _, _) = fresh.buckets().next()?;
        let (high, width, _) = fresh.buckets().last()?;
        // Where a latency was gathered elsewhere, its bucket is the nearest to what it was rounded to.
        let mean = fresh.mean();
        fresh.min = low.max(self.min).min(mean.floor() as u64);
        fresh.max = high.saturating_add(width - 1).min(self.max).max(mean.ceil() as u64);
        Some(fresh)
    }

    /// All values together, in nanoseconds.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean in nanoseconds; 0 of nothing.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The standard deviation in nanoseconds, of all that was counted (not of a sample); 0 of nothing.
    pub fn standard_deviation(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        let mean = self.mean();
        (self.squares as f64 / self.count as f64 - mean * mean).max(0.0).sqrt()
    }

    /// The shortest, in nanoseconds; 0 of nothing.
    pub fn min(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min }
    }

    /// The longest, in nanoseconds.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value, in nanoseconds, that `percent` of all do not exceed (nearest rank); the middle of its
    /// bucket, within what was seen. 0 of nothing.
    pub fn percentile(&self, percent: f64) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let rank = self.rank(percent);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen = u64::saturating_add(seen, *count);
            if seen >= rank {
                let (low, width) = bucket_range(at);
                return (low + width / 2).clamp(self.min, self.max);
            }
        }
        self.max
    }

    fn rank(&self, percent: f64) -> u64 {
        // What is a whole number but for the last bit of floating point is that number.
        let rank = percent / 100.0 * self.count as f64 * (1.0 - 1e-12);
        (rank.ceil() as u64).clamp(1, self.count.max(1))
    }

    /// As [`percentile`](Self::percentile), where at least ten values lie beyond it: of fewer it says nothing.
    pub fn reliable_percentile(&self, percent: f64) -> Option<u64> {
        (self.count.saturating_sub(self.rank(percent)) >= BEYOND_PERCENTILE_MIN)
            .then(|| self.percentile(percent))
    }

    /// The buckets that hold something: lowest value, how many values wide, count. Ascending.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let held = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        held.map(|(at, count)| {
            let (low, width) = bucket_range(at);
            (low, width, *count)
        })
    }
}

impl From<Histogram> for Sparse {
    fn from(histogram: Histogram) -> Self {
        let held = histogram.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        Sparse {
            buckets: held.map(|(at, count)| (at as u32, *count)).collect(),
            sum_ns: histogram.sum,
            squares_ns2: histogram.squares,
            min_ns: histogram.min,
            max_ns: histogram.max,
        }
    }
}

/// How far a mean that was rounded may lie beyond the extremes, as a part of them.
const ROUNDING_TOLERANCE: f64 = 1e-6;

impl TryFrom<Sparse> for Histogram {
    type Error = &'static str;

    /// Anyone who wrote it may have written anything: what is shown of a histogram takes it as it is.
    fn try_from(sparse: Sparse) -> Result<Self, &'static str> {
        let mut histogram = Histogram {
            sum: sparse.sum_ns,
            squares: sparse.squares_ns2,
            min: sparse.min_ns,
            max: sparse.max_ns,
            ..Histogram::default()
        };
        for (at, count) in sparse.buckets {
            let mine = histogram.counts.get_mut(at as usize).ok_or("a bucket of latencies does not exist")?;
            let all = histogram.count.checked_add(count).ok_or("latencies are more than 64 bits count")?;
            // No more than all of them.
            (*mine, histogram.count) = (*mine + count, all);
        }
        if histogram.count == 0 {
            return Ok(Histogram::default());
        }
        if histogram.min > histogram.max {
            return Err("the shortest latency is above the longest");
        }
        let (low, high) = (
            histogram.min as f64 * (1.0 - ROUNDING_TOLERANCE) - 1.0,
            histogram.max as f64 * (1.0 + ROUNDING_TOLERANCE) + 1.0,
        );
        if !(low..=high).contains(&histogram.mean()) {
            return Err("the mean of latencies is not between the shortest and the longest");
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn long_latencies_pass_through_a_json_value() {
        let mut histogram = Histogram::default();
        (0..4).for_each(|_| histogram.record(5_000_000_000));
        let value = serde_json::to_value(&histogram).unwrap();
        assert_eq!(value["squares_ns2"], "100000000000000000000");
        assert_eq!(serde_json::from_value::<Histogram>(value).unwrap(), histogram);
    }

    #[test]
    fn a_percentile_beyond_which_fewer_than_ten_lie_is_never_told() {
        for (percent, least) in [(50.0, 20), (99.0, 1_000), (99.9, 10_000), (99.99, 100_000)] {
            let mut histogram = Histogram::default();
            (0..least - 1).for_each(|_| histogram.record(1_000));
            assert_eq!(histogram.reliable_percentile(percent), None, "{percent} of {}", least - 1);
            histogram.record(1_000);
            assert_eq!(
                histogram.reliable_percentile(percent),
                Some(histogram.percentile(percent)),
                "{percent}"
            );
        }
        assert_eq!(Histogram::default().reliable_percentile(0.0), None);
    }

    #[test]
    fn many_at_once_are_as_many_one_by_one() {
        let (mut one, mut many) = (Histogram::default(), Histogram::default());
        for (ns, count) in [(7, 3), (1_000_000, 0), (5_000_000, 900), (7, 1)] {
            (0..count).for_each(|_| one.record(ns));
            assert!(many.record_many(ns, count));
        }
        assert_eq!(one, many);
        assert!(!many.record_many(1, u64::MAX), "more than 64 bits count");
        assert_eq!(one, many);
    }

    #[test]
    fn buckets_follow_on_each_other() {
        let mut next = 0u64;
        for at in 0..BUCKETS - (1 << SUB_BUCKET_BITS) {
            let (low, width) = bucket_range(at);
            assert_eq!(low, next, "bucket {at}");
            assert_eq!((bucket_index(low), bucket_index(low + width - 1)), (at, at));
            next = low + width;
        }
        assert_eq!(bucket_index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn an_even_spread_has_the_percentiles_it_must() {
        let mut histogram = Histogram::default();
        (1..=100_000).for_each(|us| histogram.record(us * 1000));
        for percent in [50.0, 90.0, 99.0, 99.9, 99.99] {
            let right = percent * 1e6;
            let got = histogram.percentile(percent) as f64;
            assert!((got - right).abs() <= right / 64.0, "{percent}: {got} for {right}");
        }
        assert!((histogram.mean() - 50_000_500.0).abs() < 1.0);
        // Of an even spread: the width over the root of twelve.
        assert!((histogram.standard_deviation() / (1e8 / 12f64.sqrt()) - 1.0).abs() < 1e-4);
        assert_eq!((histogram.min(), histogram.max()), (1000, 100_000_000));
    }

    proptest! {
        #[test]
        fn percentiles_are_near_those_of_the_sorted_list(
            mut all in proptest::collection::vec(0u64..10_000_000_000, 1..400), percent in 0.0f64..100.0,
        ) {
            let mut histogram = Histogram::default();
            all.iter().for_each(|ns| histogram.record(*ns));
            all.sort_unstable();
            let rank = ((percent / 100.0 * all.len() as f64).ceil() as usize).clamp(1, all.len());
            let right = all[rank - 1] as f64;
            let got = histogram.percentile(percent) as f64;
            prop_assert!((got - right).abs() <= right / 64.0 + 1.0);
        }

        #[test]
        fn halves_merged_and_written_are_the_whole(all in proptest::collection::vec(0u64..1 << 40, 0..200)) {
            let (mut whole, mut left, mut right) =
                (Histogram::default(), Histogram::default(), Histogram::default());
            for (at, ns) in all.iter().enumerate() {
                whole.record(*ns);
                if at % 2 == 0 { left.record(*ns) } else { right.record(*ns) }
            }
            left.merge(&right);
            let text = serde_json::to_string(&left).unwrap();
            prop_assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), whole);
        }
    }

    #[test]
    fn what_came_since_is_what_is_new() {
        let mut before = Histogram::default();
        (1..100).for_each(|at| before.record(at * 1_000));
        let mut after = before.clone();
        let mut fresh = Histogram::default();
        for ns in [700, 50_000, 2_000_000] {
            after.record(ns);
            fresh.record(ns);
        }
        let since = after.since(&before).unwrap();
        assert_eq!(
            (since.count(), since.sum(), since.counts.clone()),
            (3, fresh.sum(), fresh.counts.clone())
        );
        assert!((since.standard_deviation() - fresh.standard_deviation()).abs() < 1.0);
        assert!(since.min() <= 700 && since.max() >= 2_000_000 && since.max() <= after.max());
        let text = serde_json::to_string(&since).unwrap();
        assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), since);
        assert_eq!(after.since(&after), Some(Histogram::default()));
        assert_eq!(before.since(&after), None, "it never was that");
    }
}
