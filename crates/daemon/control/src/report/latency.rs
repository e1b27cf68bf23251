//! How long commands took, stage by stage.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Commands of one class, of a volume or of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyReport {
    /// `read`, `write`, or `other`: flush, unmap, compare, copy.
    pub class: String,
    /// In the order in which a command goes through them.
    pub stages: Vec<StageReport>,
}

/// One stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageReport {
    /// `receive`, `wait`, `queue`, `backend` or `send`.
    pub stage: String,
    /// How many commands went through it.
    pub commands: u64,
    /// Their time in it, together.
    pub sum_ns: u64,
    /// Half of them took no longer; `null`: there are none, or they took longer than all buckets.
    pub p50_us: Option<u64>,
    /// 99 % of them took no longer.
    pub p99_us: Option<u64>,
    /// 99.9 % of them took no longer.
    pub p999_us: Option<u64>,
    /// How many took how long. Empty buckets are left out.
    pub buckets: Vec<BucketReport>,
}

/// One bucket of a histogram: its end is twice that of the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BucketReport {
    /// Its end; the bucket before ends at half of it. `null`: the last one, without end.
    pub up_to_us: Option<u64>,
    /// How many commands.
    pub commands: u64,
}

impl StageReport {
    /// A stage from its histogram: bucket `n` ends at 2ⁿ µs, the last one has no end.
    pub fn new(stage: &str, counts: &[u64], sum_ns: u64) -> Self {
        let last = counts.len().saturating_sub(1);
        let end = |at: usize| (at < last).then(|| 1_u64.checked_shl(at as u32)).flatten();
        let commands: u64 = counts.iter().sum();
        let part = |of_thousand: u64| {
            // At least so many took no longer.
            let wanted = (u128::from(commands) * u128::from(of_thousand)).div_ceil(1000);
            let mut seen = 0;
            let found = counts.iter().position(|count| {
                seen += u128::from(*count);
                seen >= wanted
            });
            found.filter(|_| commands > 0).and_then(end)
        };
        let filled = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        StageReport {
            stage: stage.to_owned(),
            commands,
            sum_ns,
            p50_us: part(500),
            p99_us: part(990),
            p999_us: part(999),
            buckets: filled.map(|(at, count)| BucketReport { up_to_us: end(at), commands: *count }).collect(),
        }
    }

    /// The mean in nanoseconds; `None`: there are no commands.
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.commands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_ends_of_their_buckets() {
        let mut counts = [0; 28];
        (counts[0], counts[3], counts[10], counts[27]) = (500, 490, 9, 1);
        let stage = StageReport::new("backend", &counts, 4_000_000);
        assert_eq!((stage.p50_us, stage.p99_us, stage.p999_us), (Some(1), Some(8), Some(1024)));
        assert_eq!((stage.commands, stage.mean_ns()), (1000, Some(4000)));
        assert_eq!(stage.buckets[3], BucketReport { up_to_us: None, commands: 1 });
        let none = StageReport::new("send", &[0; 28], 0);
        assert_eq!((none.p50_us, none.mean_ns(), none.buckets.len()), (None, None, 0));
        let slow = StageReport::new("send", &[0, 0, 3], 0);
        assert_eq!(slow.p50_us, None, "longer than all buckets");
    }
}
