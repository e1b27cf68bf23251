//! The one load of a record that its first sentence is about, and who carried it best.
//!
//! Invariant: which load that is follows from the record's loads, never from who wins it.

use super::text::{figure, size};
use crate::bootstrap::ROUNDS_LEAST;
use crate::compare::{Comparison, Spread};
use crate::record::{End, Metric, Point, Record};

use super::groups::kind;

/// The responder without a protocol: what there can be at most, and no rival.
const CEILING: &str = "bare";

/// What systems are held against each other by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// I/Os for each processor second of the target.
    PerCore,
    /// I/Os per second, where no processor was looked at.
    Iops,
    /// Mean latency.
    Latency,
    /// Its standard deviation.
    Jitter,
    /// Time for a fixed job.
    Finish,
}

impl Measure {
    /// What a record is about.
    fn of(record: &Record) -> Measure {
        let points = || record.points.iter().filter(|point| point.protocol != "local");
        match () {
            () if points().any(|point| point.work.is_some()) => Measure::Finish,
            () if record.preset.ends_with("jitter") => Measure::Jitter,
            () if record.preset.ends_with("latency") => Measure::Latency,
            () if points().any(|point| point.per_core(End::Target).is_some()) => Measure::PerCore,
            () => Measure::Iops,
        }
    }

    pub(super) fn metric(self) -> Metric {
        match self {
            Measure::PerCore => Metric::PerCore(End::Target),
            Measure::Iops => Metric::Iops,
            Measure::Latency => Metric::MeanLatency,
            Measure::Jitter => Metric::Jitter,
            Measure::Finish => Metric::Finish,
        }
    }

    pub(super) fn is_more_better(self) -> bool {
        matches!(self, Measure::PerCore | Measure::Iops)
    }

    /// What it is called, and its unit.
    pub(super) fn words(self) -> (&'static str, &'static str) {
        match self {
            Measure::PerCore => ("I/Os for each processor second of the target", "I/Os per CPU second"),
            Measure::Iops => ("I/Os per second", "IOPS"),
            Measure::Latency => ("mean latency", "µs"),
            Measure::Jitter => ("standard deviation of latency", "µs"),
            Measure::Finish => ("time for the whole job", "s"),
        }
    }

    /// How the best stands to a rival, as `does 2.40x as many I/Os as tgt`.
    pub(super) fn against(self, ratio: &str, rival: &str) -> String {
        match self {
            Measure::PerCore => {
                format!("does {ratio} as many I/Os as {rival} for each processor second of the target")
            }
            Measure::Iops => format!("does {ratio} as many I/Os as {rival} in the same time"),
            Measure::Latency => format!("takes {ratio} as long as {rival} on average"),
            Measure::Jitter => format!("has {ratio} the standard deviation of latency of {rival}"),
            Measure::Finish => format!("takes {ratio} as long as {rival} for the whole job"),
        }
    }

    /// Its figure of a point, with its unit.
    pub(super) fn shown(self, point: &Point) -> Option<String> {
        let spread = self.spread(point)?;
        Some(format!("{} {}", figure(spread.median), self.words().1))
    }

    pub(super) fn spread(self, point: &Point) -> Option<Spread> {
        Spread::of(&point.figures(self.metric()))
    }
}

/// One load, and the systems that carried it.
pub(super) struct Headline<'a> {
    pub(super) measure: Measure,
    /// All that carried it, the best first, with what is a ceiling and no system.
    pub(super) all: Vec<&'a Point>,
    /// The best system.
    pub(super) best: &'a Point,
    /// The best of the others, and the best over it.
    pub(super) rival: Option<(&'a Point, Comparison)>,
    /// What there can be at most.
    pub(super) ceiling: Option<&'a Point>,
}

fn load(point: &Point) -> (&str, u64, u32, u32, u32, &[(String, String)]) {
    (&point.rw, point.bytes, point.depth, point.connections, point.mtu, &point.labels)
}

/// A load's direction, size and link, as `random reads of 4K, loopback`.
pub(super) fn load_words(point: &Point) -> String {
    let labels: String = point.labels.iter().map(|(name, value)| format!(", {name} {value}")).collect();
    let what = kind(&point.rw).to_lowercase();
    match point.bytes {
        0 => format!("{what}, {}{labels}", point.link()),
        bytes => format!("{what} of {}, {}{labels}", size(bytes), point.link()),
    }
}

impl<'a> Headline<'a> {
    /// Of a record; `None`: nothing was measured over a network.
    pub(super) fn of(record: &'a Record) -> Option<Headline<'a>> {
        Headline::by(record, Measure::of(record))
    }

    /// 4K random reads before others, the first setting before others, loads of several systems before those of one.
    pub(super) fn by(record: &'a Record, measure: Measure) -> Option<Headline<'a>> {
        let known = |point: &&'a Point| point.protocol != "local" && measure.spread(point).is_some();
        let mut loads: Vec<Vec<&'a Point>> = Vec::new();
        for point in record.points.iter().filter(known) {
            match loads.iter_mut().find(|all| all.first().is_some_and(|one| load(one) == load(point))) {
                Some(all) => all.push(point),
                None => loads.push(vec![point]),
            }
        }
        let targets = |all: &[&Point]| {
            let mut names: Vec<&str> = all.iter().map(|point| point.target.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            names.len()
        };
        let rank = |all: &Vec<&'a Point>| {
            let first = all.first()?;
            let is_alone = targets(all) < 2 && all.len() < 2;
            Some((is_alone, first.rw != "randread", first.bytes.abs_diff(4096)))
        };
        // The first of those that rank alike.
        let mut all = loads.into_iter().min_by_key(rank)?;
        let value = |point: &Point| measure.spread(point).map_or(0.0, |spread| spread.median);
        all.sort_by(|a, b| value(a).total_cmp(&value(b)));
        if measure.is_more_better() {
            all.reverse();
        }
        let (ceilings, systems): (Vec<&Point>, Vec<&Point>) =
            all.iter().copied().partition(|point| point.target == CEILING);
        let (&best, others) = systems.split_first()?;
        let others: Vec<&Point> = others.to_vec();
        let is_rival = |point: &&&Point| point.target != best.target;
        let is_alike =
            |point: &&&Point| (&point.initiator, &point.protocol) == (&best.initiator, &best.protocol);
        let rival = others.iter().filter(is_rival).find(is_alike);
        let rival = rival.or_else(|| others.iter().find(is_rival)).or_else(|| others.first()).copied();
        let rival = rival.and_then(|rival| Some((rival, best.compared_to(rival, measure.metric())?)));
        Some(Headline { measure, best, rival, ceiling: ceilings.first().copied(), all })
    }

    /// Why nothing is proven; `None`: it is.
    pub(super) fn doubt(&self) -> Option<String> {
        let (rival, comparison) = self.rival.as_ref()?;
        if let Some(why) = self.best.smoke_test().or(rival.smoke_test()) {
            return Some(format!("a smoke test ({why})"));
        }
        if comparison.is_short() {
            let rounds = self.best.runs.len().min(rival.runs.len());
            return Some(format!("too few rounds ({rounds} of at least {ROUNDS_LEAST})"));
        }
        (!comparison.is_significant()).then(|| "the rounds do not tell the two apart".to_owned())
    }

    /// How many rounds of which length its systems had: the fewest, and the shortest.
    pub(super) fn rounds(&self) -> (usize, f64) {
        let both = || std::iter::once(self.best).chain(self.rival.as_ref().map(|(rival, _)| *rival));
        let rounds = both().map(|point| point.runs.len()).min().unwrap_or(0);
        let seconds =
            both().flat_map(|point| &point.runs).map(|run| run.seconds).fold(f64::INFINITY, f64::min);
        (rounds, if seconds.is_finite() { seconds } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::five;

    fn record(points: Vec<Point>) -> Record {
        Record { points, ..Record::default() }
    }

    #[test]
    fn it_is_the_same_load_whoever_wins_it() {
        for (ours, theirs, best) in [(30_000, 10_000, "blockwire"), (10_000, 30_000, "tgt")] {
            let record = record(vec![
                five("blockwire", "randwrite", 4096, 90_000),
                five("blockwire", "randread", 65_536, 90_000),
                five("blockwire", "randread", 4096, ours),
                five("tgt", "randread", 4096, theirs),
                five("tgt", "randwrite", 4096, 500),
            ]);
            let one = Headline::of(&record).unwrap();
            assert_eq!(
                (one.best.target.as_str(), one.best.rw.as_str(), one.best.bytes),
                (best, "randread", 4096)
            );
            assert_eq!(one.measure, Measure::PerCore);
            assert_eq!(one.doubt(), None);
            assert_eq!(one.rounds(), (5, 20.0));
        }
    }

    #[test]
    fn a_ceiling_is_no_rival() {
        let record = record(vec![
            five("bare", "randread", 4096, 90_000),
            five("blockwire", "randread", 4096, 30_000),
            five("tgt", "randread", 4096, 10_000),
        ]);
        let one = Headline::of(&record).unwrap();
        assert_eq!((one.best.target.as_str(), one.rival.unwrap().0.target.as_str()), ("blockwire", "tgt"));
        assert_eq!(one.ceiling.map(|point| point.target.as_str()), Some("bare"));
    }

    #[test]
    fn a_fixed_job_is_won_by_the_shortest_time() {
        let jobs = [("blockwire", 30.0), ("tgt", 25.0)].map(|(target, seconds)| {
            let mut job = five(target, "oltp", 0, 1000);
            job.work = Some(5000);
            job.runs.iter_mut().for_each(|run| run.seconds = seconds);
            job
        });
        let record = record(jobs.to_vec());
        let one = Headline::of(&record).unwrap();
        assert_eq!((one.measure, one.best.target.as_str()), (Measure::Finish, "tgt"));
    }
}
