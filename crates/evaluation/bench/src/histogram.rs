//! A log-linear histogram of latencies: 64 steps per doubling, so a figure is off by 1.6 % at most.

use std::time::Duration;

const STEPS: usize = 64;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Up to 2^42 ns: more than an hour.
const DOUBLINGS: usize = 36;

/// Counts of latencies.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; STEPS * (DOUBLINGS + 1)], total: 0, sum_ns: 0, max_ns: 0 }
    }
}

impl Histogram {
    /// Counts one latency.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "no more than the last bucket")]
    pub fn record(&mut self, latency: Duration) {
        let ns = latency.as_nanos() as u64;
        let bucket = bucket(ns).min(self.counts.len() - 1);
        self.counts[bucket] += 1;
        self.total += 1;
        self.sum_ns += ns;
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many were counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The mean in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.sum_ns as f64 / self.total.max(1) as f64 / 1e3
    }

    /// The largest in microseconds.
    pub fn max_us(&self) -> f64 {
        self.max_ns as f64 / 1e3
    }

    /// The latency in microseconds that `share` (0 to 1) of all stay within.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let wanted = (self.total as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                // The last bucket holds all that is longer, too.
                if bucket + 1 == self.counts.len() {
                    return self.max_us();
                }
                return upper_ns(bucket).min(self.max_ns) as f64 / 1e3;
            }
        }
        self.max_us()
    }
}

fn bucket(ns: u64) -> usize {
    let doubling = (64 - (ns >> STEP_BITS).leading_zeros()).saturating_sub(1);
    if ns < STEPS as u64 {
        return ns as usize;
    }
    STEPS * (doubling as usize + 1) + ((ns >> doubling) as usize - STEPS)
}

fn upper_ns(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let doubling = bucket / STEPS - 1;
    (((bucket % STEPS + STEPS) as u64 + 1) << doubling) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for shift in 0..40 {
            for near in 0..200u64 {
                let ns = (1u64 << shift) + near;
                let bucket = bucket(ns);
                assert!(ns <= upper_ns(bucket), "{ns}");
                assert!(bucket == 0 || ns > upper_ns(bucket - 1), "{ns}");
                assert!(upper_ns(bucket) - ns <= ns / 64 + 1);
            }
        }
    }

    #[test]
    fn quantiles() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|us| histogram.record(Duration::from_micros(us)));
        for (share, us) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            assert!((histogram.quantile_us(share) / us - 1.0).abs() < 0.02, "{share}");
        }
        assert!((histogram.mean_us() - 500.5).abs() < 0.1);
        histogram.record(Duration::from_secs(1_000_000));
        assert_eq!(histogram.quantile_us(1.0), 1e12);
    }
}
