//! What of a record does not add up: raw figures are held against each other, run by run.

use super::{EndUsage, FullLoadPeriod, OutstandingIos, Point, Record, Run};
use crate::derived::{EdgeEffects, Inconsistency, RawFigures};

impl Run {
    /// What does not add up.
    pub fn inconsistencies(&self, point: &Point) -> Vec<Inconsistency> {
        let used = |side: &EndUsage| {
            let total = side.cores.total();
            (total.busy_time(), total.total())
        };
        let sides = [&self.target, &self.initiator].into_iter().flatten();
        let processor = sides.map(used).fold((0.0, 0.0), |a: (f64, f64), b| if b.0 > a.0 { b } else { a });
        // What is in flight of a fixed job are its units.
        let units = point.work.filter(|_| self.seconds > 0.0).map(|work| work as f64 / self.seconds);
        let rate = units.unwrap_or(self.iops());
        let edges = match (units, self.refilled) {
            (Some(_), _) => EdgeEffects::None,
            (None, Some(FullLoadPeriod { seconds, outside })) if seconds > 0.0 => {
                EdgeEffects::Told { refilled: seconds, outside }
            }
            _ => EdgeEffects::Untold,
        };
        let bytes = if point.bytes == 0 { self.bandwidth() / rate.max(1e-9) } else { point.bytes as f64 };
        let raw = RawFigures {
            iops: rate,
            latency_s: self.mean_and_deviation().map(|(mean, deviation)| (mean / 1e9, deviation / 1e9)),
            seconds: self.seconds,
            edges,
            bytes,
            bandwidth: self.bandwidth(),
            depth: f64::from(point.depth),
            is_closed: point.is_closed,
            processor,
        };
        let mut found = if self.ios == 0 { Vec::new() } else { raw.inconsistencies() };
        for (end, side) in [("target", &self.target), ("initiator", &self.initiator)] {
            let late = side.as_ref().and_then(|side| side.late);
            found.extend(late.map(|late| Inconsistency::Late { end, late, seconds: self.seconds }));
        }
        if let Some(OutstandingIos { ios, oldest }) = self.stalled_ios() {
            found.push(Inconsistency::Unfinished { ios, oldest, seconds: self.seconds });
        }
        found
    }
}

impl Record {
    /// All that does not add up, in words.
    pub fn inconsistencies(&self) -> Vec<String> {
        let mut all = Vec::new();
        for point in &self.points {
            for (at, run) in point.runs.iter().enumerate() {
                for discord in run.inconsistencies(point) {
                    all.push(format!(
                        "{}, {} {}, run {}: {}",
                        point.system_name(),
                        point.rw,
                        point.bytes,
                        at + 1,
                        inconsistency_text(&discord)
                    ));
                }
            }
        }
        all
    }
}

fn inconsistency_text(discord: &Inconsistency) -> String {
    let short = crate::figure_range::format_short;
    match discord {
        Inconsistency::TooMany { found, most } => {
            format!(
                "IOPS times latency is {} I/Os in flight, and {} were allowed",
                short(*found),
                short(*most)
            )
        }
        Inconsistency::TooFew { found, most } => format!(
            "IOPS times latency is {} I/Os in flight of {}: the load generator may be the limit",
            short(*found),
            short(*most)
        ),
        Inconsistency::Bandwidth { found, measured } => {
            format!("IOPS times size is {} bytes/s, and {} were counted", short(*found), short(*measured))
        }
        Inconsistency::Late { end, late, seconds } => format!(
            "the {end}'s processors were sampled up to {} s late in a run of {} s: their figures cover a different interval",
            short(*late),
            short(*seconds)
        ),
        Inconsistency::Unfinished { ios, oldest, seconds } => format!(
            "{ios} I/Os were out at the end of its {} s, the oldest for {} s: they are in no mean and no percentile of latency",
            short(*seconds),
            short(*oldest)
        ),
        Inconsistency::Processor { used, had } => {
            format!("{} processor seconds were used of {}", short(*used), short(*had))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::point;
    use super::*;
    use crate::histogram::Histogram;

    #[test]
    fn a_fixed_job_is_judged_by_its_units() {
        let mut point = point("tgt", "oltp", 0, 10_000);
        // 16 users whose transactions take 20 ms do 800 a second, of 12.5 I/Os each.
        (point.depth, point.work) = (16, Some(800));
        for run in &mut point.runs {
            (run.ios, run.moved, run.latency) = (10_000, 10_000 * 6000, Histogram::default());
            (0..800).for_each(|_| run.latency.record(20_000_000));
        }
        assert_eq!(point.finish_seconds().unwrap().median, 1.0);
        assert!(point.runs.iter().all(|run| run.inconsistencies(&point).is_empty()));
        point.work = Some(8000);
        assert_eq!(point.runs[0].inconsistencies(&point).len(), 1, "more than its users can have done");
    }

    #[test]
    fn who_was_looked_at_late_is_named() {
        let mut point = point("tgt", "randread", 4096, 10_000);
        if let Some(side) = &mut point.runs[2].target {
            side.late = Some(3.0);
        }
        let record = Record { points: vec![point], ..Record::default() };
        let discords = record.inconsistencies();
        assert_eq!(discords.len(), 1);
        assert!(
            discords[0].contains("run 3: the target's processors were sampled up to 3 s late"),
            "{discords:?}"
        );
    }

    #[test]
    fn a_run_that_does_not_add_up_is_named() {
        let mut point = point("tgt", "randread", 4096, 10_000);
        point.runs[1].moved *= 2;
        let record = Record { points: vec![point], ..Record::default() };
        let discords = record.inconsistencies();
        assert_eq!(discords.len(), 1);
        assert!(discords[0].contains("run 2") && discords[0].contains("bytes/s"), "{discords:?}");
    }
}
