//! Figures derived from raw figures, as in the papers, and checks whether raw figures agree with each other.
//!
//! Invariant: every function is pure arithmetic; a figure that cannot be computed from its inputs is `None`,
//! never zero.

/// Bits of an I/O's payload per second that a link carries, in Gb/s (10^9).
pub fn payload_gbps(iops: f64, bytes: f64) -> f64 {
    iops * bytes * 8.0 / 1e9
}

/// Processor effectiveness: IOPS for each percent of *all* processors of a machine.
pub fn iops_per_cpu_percent(iops: f64, busy_percent: f64) -> Option<f64> {
    (busy_percent > 0.0).then(|| iops / busy_percent)
}

/// Processor seconds for a million I/Os, of `busy_cores` processors (1.5: one and a half).
pub fn cpu_per_million(iops: f64, busy_cores: f64) -> Option<f64> {
    (iops > 0.0).then(|| busy_cores * 1e6 / iops)
}

/// I/Os that are outstanding on average (Little's law), from rate and mean latency in seconds.
pub fn outstanding_ios(iops: f64, latency_s: f64) -> f64 {
    iops * latency_s
}

/// How many of these cores, each busy so many percent, are at or above a limit.
pub fn count_busy_cores(busy_percent: &[f64], limit: f64) -> usize {
    busy_percent.iter().filter(|busy| **busy >= limit).count()
}

/// What does not add up in a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Inconsistency {
    /// By Little's law so many were outstanding on average, and no more than so many can have been.
    TooMany {
        /// IOPS times latency.
        found: f64,
        /// Depth times jobs.
        most: f64,
    },
    /// Load that is always refilled had far fewer outstanding than it was to have: the generator, not
    /// the target, was the limit, or latencies are not those of the same run.
    TooFew {
        /// IOPS times latency.
        found: f64,
        /// Depth times jobs.
        most: f64,
    },
    /// Bandwidth is not IOPS times size.
    Bandwidth {
        /// IOPS times size.
        found: f64,
        /// What was measured, bytes per second.
        measured: f64,
    },
    /// An end's processors were looked at too late.
    Late {
        /// Which end.
        end: &'static str,
        /// By how many seconds, at most.
        late: f64,
        /// How long figures counted.
        seconds: f64,
    },
    /// I/Os that were out at the end, older than any that ended: a stall that is in no latency.
    Unfinished {
        /// How many.
        ios: u64,
        /// How old the oldest was, in seconds.
        oldest: f64,
        /// How long figures counted.
        seconds: f64,
    },
    /// More processor time than there was: so many seconds of a wall of so many.
    Processor {
        /// Seconds used.
        used: f64,
        /// Seconds that all processors had.
        had: f64,
    },
}

/// Raw figures of one run that must agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawFigures {
    /// I/Os per second.
    pub iops: f64,
    /// Mean latency in seconds and its standard deviation, where it is told.
    pub latency_s: Option<(f64, f64)>,
    /// How long figures counted, in seconds.
    pub seconds: f64,
    /// What of that time and of the latencies is of full load.
    pub edges: EdgeEffects,
    /// Bytes of each I/O.
    pub bytes: f64,
    /// Bytes per second, counted on their own.
    pub bandwidth: f64,
    /// I/Os that the generator keeps in flight, over all its jobs.
    pub depth: f64,
    /// Whether the generator keeps that many in flight at all times (no rate was asked for).
    pub is_closed: bool,
    /// Processor seconds used on the machine, and those that all its processors had.
    pub processor: (f64, f64),
}

/// What is not of full load: an I/O that was in flight when figures began to count is counted with all of its
/// latency, and those that are out when load ceases end in a time in which nothing is refilled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EdgeEffects {
    /// None: nothing was in flight before, or what was is of no account.
    None,
    /// As the generator tells them.
    Told {
        /// Seconds for which load was refilled at once while figures counted.
        refilled: f64,
        /// Latency, summed over all I/Os, that lies outside of that time.
        outside: f64,
    },
    /// The generator does not tell. At a random moment an I/O in flight is as old as half of the mean of the
    /// squares over the mean; twice that is allowed for each.
    Untold,
}

/// How far figures of one run may miss each other: clocks start and stop apart.
const TOLERANCE: f64 = 0.02;

impl RawFigures {
    /// All that does not add up.
    pub fn inconsistencies(&self) -> Vec<Inconsistency> {
        let mut found = Vec::new();
        // At a rate, what waits for its turn counts too: there is no bound.
        if let Some((mean, deviation)) = self.latency_s.filter(|(mean, _)| self.is_closed && *mean > 0.0) {
            let (inside, spare) = match self.edges {
                EdgeEffects::None => (outstanding_ios(self.iops, mean), 0.0),
                EdgeEffects::Told { refilled, outside } => {
                    ((outstanding_ios(self.iops, mean) * self.seconds - outside) / refilled, 0.0)
                }
                EdgeEffects::Untold => {
                    let old = (mean * mean + deviation * deviation) / mean;
                    (outstanding_ios(self.iops, mean), self.depth * old / self.seconds)
                }
            };
            if inside > self.depth * (1.0 + TOLERANCE) + spare {
                found.push(Inconsistency::TooMany { found: inside, most: self.depth });
            } else if inside < self.depth * 0.8 {
                found.push(Inconsistency::TooFew { found: inside, most: self.depth });
            }
        }
        let product = self.iops * self.bytes;
        if (product - self.bandwidth).abs() > TOLERANCE * product.max(self.bandwidth) {
            found.push(Inconsistency::Bandwidth { found: product, measured: self.bandwidth });
        }
        let (used, had) = self.processor;
        if used > had * (1.0 + TOLERANCE) {
            found.push(Inconsistency::Processor { used, had });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_as_in_the_papers() {
        // 2.9 million 4 KiB I/Os a second.
        assert!((payload_gbps(2.9e6, 4096.0) - 95.027).abs() < 0.001);
        assert_eq!(iops_per_cpu_percent(112_353.6, 0.0), None);
        assert!(
            (1.0 / 0.000_689 - iops_per_cpu_percent(112_353.6, 112_353.6 * 0.000_689).unwrap()).abs() < 1e-6
        );
        assert_eq!(cpu_per_million(500_000.0, 0.5), Some(1.0));
        assert_eq!(count_busy_cores(&[95.0, 90.0, 89.9, 10.0], 90.0), 2);
    }

    #[test]
    fn what_does_not_add_up_is_named() {
        let good = RawFigures {
            iops: 100_000.0,
            latency_s: Some((320e-6, 0.0)),
            seconds: 1.0,
            edges: EdgeEffects::None,
            bytes: 4096.0,
            bandwidth: 409.6e6,
            depth: 32.0,
            is_closed: true,
            processor: (1.9, 2.0),
        };
        assert_eq!(good.inconsistencies(), []);
        let found = |raw: RawFigures| raw.inconsistencies().len();
        assert_eq!(found(RawFigures { latency_s: Some((400e-6, 0.0)), ..good }), 1);
        assert_eq!(found(RawFigures { latency_s: Some((100e-6, 0.0)), ..good }), 1);
        assert_eq!(found(RawFigures { latency_s: Some((100e-6, 0.0)), is_closed: false, ..good }), 0);
        assert_eq!(found(RawFigures { latency_s: None, ..good }), 0, "what is not told is not judged");
        assert_eq!(found(RawFigures { bandwidth: 390e6, ..good }), 1);
        assert_eq!(found(RawFigures { processor: (2.1, 2.0), ..good }), 1);
    }
    /// A short load of long I/Os, one of whose slots each is always in use: in flight since 10 ms when figures
    /// begin, it ends 32 I/Os after 10, 30, 50, 70, 90 and, past the 100 ms that it was to last, 110 ms.
    #[test]
    fn a_short_load_adds_up_and_its_slips_do_not() {
        let (ios, seconds) = (6.0 * 32.0, 0.11);
        let short = RawFigures {
            iops: ios / seconds,
            latency_s: Some((0.020, 0.0)),
            seconds,
            edges: EdgeEffects::Told { refilled: 0.1, outside: 32.0 * 0.020 },
            bytes: 4096.0,
            bandwidth: ios * 4096.0 / seconds,
            depth: 32.0,
            is_closed: true,
            processor: (0.0, 1.0),
        };
        assert_eq!(short.inconsistencies(), []);
        // Without an account of its edges 34.9 would have been in flight.
        assert_eq!(RawFigures { edges: EdgeEffects::None, ..short }.inconsistencies().len(), 1);
        assert_eq!(RawFigures { edges: EdgeEffects::Untold, ..short }.inconsistencies(), []);
        for slip in [1.03, 0.7] {
            assert_eq!(
                RawFigures { latency_s: Some((0.020 * slip, 0.0)), ..short }.inconsistencies().len(),
                1,
                "{slip}"
            );
        }
        // Who does not tell is held to what can have been: not to a slip of a third.
        let untold = RawFigures { edges: EdgeEffects::Untold, latency_s: Some((0.032, 0.0)), ..short };
        assert_eq!(untold.inconsistencies().len(), 1);
        // Of a long load edges are nothing.
        let long = RawFigures { seconds: 60.0, iops: 1_648.0, bandwidth: 1_648.0 * 4096.0, ..untold };
        assert_eq!(long.inconsistencies().len(), 1);
        assert_eq!(RawFigures { latency_s: Some((32.0 / 1_648.0, 0.0)), ..long }.inconsistencies(), []);
    }
}
