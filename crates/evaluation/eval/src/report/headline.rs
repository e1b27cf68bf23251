//! The one load of a record that its first sentence is about, and who carried it best.
//!
//! Invariant: which load that is follows from the record's loads, never from who wins it.

use super::groups::load_kind_name;
use super::text::{format_figure, format_size};
use crate::bootstrap::ROUNDS_MIN;
use crate::compare::{Comparison, Spread, correct_holm};
use crate::record::{EndKind, Metric, Point, Record};

/// What systems are held against each other by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadlineMeasure {
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

impl HeadlineMeasure {
    /// What a record is about.
    fn of(record: &Record) -> HeadlineMeasure {
        let points = || record.points.iter().filter(|point| point.protocol != "local");
        match () {
            () if points().any(|point| point.work.is_some()) => HeadlineMeasure::Finish,
            () if record.preset.ends_with("jitter") => HeadlineMeasure::Jitter,
            () if record.preset.ends_with("latency") => HeadlineMeasure::Latency,
            () if points().any(|point| point.ios_per_cpu_second(EndKind::Target).is_some()) => {
                HeadlineMeasure::PerCore
            }
            () => HeadlineMeasure::Iops,
        }
    }

    pub(super) fn metric(self) -> Metric {
        match self {
            HeadlineMeasure::PerCore => Metric::PerCore(EndKind::Target),
            HeadlineMeasure::Iops => Metric::Iops,
            HeadlineMeasure::Latency => Metric::MeanLatency,
            HeadlineMeasure::Jitter => Metric::Jitter,
            HeadlineMeasure::Finish => Metric::Finish,
        }
    }

    pub(super) fn is_more_better(self) -> bool {
        matches!(self, HeadlineMeasure::PerCore | HeadlineMeasure::Iops)
    }

    /// What it is called, and its unit.
    pub(super) fn name_and_unit(self) -> (&'static str, &'static str) {
        match self {
            HeadlineMeasure::PerCore => {
                ("I/Os for each processor second of the target", "I/Os per CPU second")
            }
            HeadlineMeasure::Iops => ("I/Os per second", "IOPS"),
            HeadlineMeasure::Latency => ("mean latency", "µs"),
            HeadlineMeasure::Jitter => ("standard deviation of latency", "µs"),
            HeadlineMeasure::Finish => ("time for the whole job", "s"),
        }
    }

    /// How the best stands to a rival, as `does 2.40x as many I/Os as tgt`.
    pub(super) fn comparison_text(self, ratio: &str, rival: &str) -> String {
        match self {
            HeadlineMeasure::PerCore => {
                format!("does {ratio} as many I/Os as {rival} for each processor second of the target")
            }
            HeadlineMeasure::Iops => format!("does {ratio} as many I/Os as {rival} in the same time"),
            HeadlineMeasure::Latency => format!("takes {ratio} as long as {rival} on average"),
            HeadlineMeasure::Jitter => format!("has {ratio} the standard deviation of latency of {rival}"),
            HeadlineMeasure::Finish => format!("takes {ratio} as long as {rival} for the whole job"),
        }
    }

    /// Its figure of a point, with its unit.
    pub(super) fn value_text(self, point: &Point) -> Option<String> {
        Some(self.with_unit(self.spread(point)?.median))
    }

    pub(super) fn with_unit(self, value: f64) -> String {
        format!("{} {}", format_figure(value), self.name_and_unit().1)
    }

    pub(super) fn spread(self, point: &Point) -> Option<Spread> {
        Spread::of(&point.figures(self.metric()))
    }
}

/// The system that the best is held against.
pub(super) struct RivalSystem<'a> {
    pub(super) point: &'a Point,
    /// How the best stands to it, or why that cannot be said.
    pub(super) held: Result<BestOverRival, &'static str>,
}

/// The best over its rival, in the runs of both that belong together.
pub(super) struct BestOverRival {
    /// Corrected for all pairs of systems under that load: which of them it is about was seen from the figures.
    pub(super) comparison: Comparison,
    /// The mean of the best and that of its rival, whose quotient the ratio is.
    pub(super) means: (f64, f64),
    /// How many rounds: the fewer of the two, if they do not belong together.
    rounds: usize,
    /// How many pairs of systems it was corrected for.
    pairs: usize,
}

impl BestOverRival {
    fn of(
        systems: &[&Point],
        rival: &Point,
        measure: HeadlineMeasure,
    ) -> Result<BestOverRival, &'static str> {
        let metric = measure.metric();
        let best = *systems.first().ok_or("nothing was measured")?;
        if measure == HeadlineMeasure::PerCore && !best.has_same_window(rival) {
            return Err("their processor time was counted in windows of different kinds");
        }
        let (base, first, _) = best.paired_figures(rival, metric);
        let rounds = base.len().min(first.len());
        if rounds == 0 {
            return Err("they have no round in common");
        }
        let later = |at: usize| systems.iter().skip(at + 1);
        let mut pairs: Vec<(bool, Comparison)> = Vec::new();
        for (at, one) in systems.iter().enumerate() {
            let asked = |other: &Point| at == 0 && std::ptr::eq(other, rival);
            pairs.extend(later(at).filter_map(|two| Some((asked(two), one.compared_to(two, metric)?))));
        }
        correct_holm(pairs.iter_mut().map(|(_, comparison)| comparison));
        let asked = pairs.iter().find(|(is_asked, _)| *is_asked);
        let comparison = asked.map(|(_, comparison)| *comparison).ok_or("the other's figure is zero")?;
        let mean = |figures: &[f64]| figures.iter().sum::<f64>() / figures.len() as f64;
        Ok(BestOverRival { comparison, means: (mean(&first), mean(&base)), rounds, pairs: pairs.len() })
    }
}

/// One load, and the systems that carried it.
pub(super) struct Headline<'a> {
    pub(super) measure: HeadlineMeasure,
    /// All that carried it, the best first, with what is a ceiling and no system.
    pub(super) all: Vec<&'a Point>,
    /// The best system.
    pub(super) best: &'a Point,
    /// The best with another target; if all have the same, the best of the others.
    pub(super) rival: Option<RivalSystem<'a>>,
    /// What there can be at most.
    pub(super) ceiling: Option<&'a Point>,
}

fn load_key(point: &Point) -> (&str, u64, u32, u32, u32, &[(String, String)]) {
    (&point.rw, point.bytes, point.depth, point.connections, point.mtu, &point.labels)
}

/// A load's direction, size and link, as `random reads of 4K, loopback`.
pub(super) fn load_text(point: &Point) -> String {
    let labels: String = point.labels.iter().map(|(name, value)| format!(", {name} {value}")).collect();
    let what = load_kind_name(&point.rw).to_lowercase();
    match point.bytes {
        0 => format!("{what}, {}{labels}", point.link_name()),
        bytes => format!("{what} of {}, {}{labels}", format_size(bytes), point.link_name()),
    }
}

impl<'a> Headline<'a> {
    /// Of a record; `None`: nothing was measured over a network.
    pub(super) fn of(record: &'a Record) -> Option<Headline<'a>> {
        Headline::for_measure(record, HeadlineMeasure::of(record))
    }

    /// Of deviation, a link held to a speed before others; then loads of several systems before those of one, random reads
    /// before others, 4K before others, and the first setting.
    pub(super) fn for_measure(record: &'a Record, measure: HeadlineMeasure) -> Option<Headline<'a>> {
        let known = |point: &&'a Point| point.protocol != "local" && measure.spread(point).is_some();
        let mut loads: Vec<Vec<&'a Point>> = Vec::new();
        for point in record.points.iter().filter(known) {
            match loads.iter_mut().find(|all| all.first().is_some_and(|one| load_key(one) == load_key(point)))
            {
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
            let is_quiet = measure == HeadlineMeasure::Jitter && !is_rate_limited(first);
            Some((is_quiet, is_alone, first.rw != "randread", first.bytes.abs_diff(4096)))
        };
        // The first of those that rank alike.
        let mut all = loads.into_iter().min_by_key(rank)?;
        let value = |point: &Point| measure.spread(point).map_or(0.0, |spread| spread.median);
        all.sort_by(|a, b| value(a).total_cmp(&value(b)));
        if measure.is_more_better() {
            all.reverse();
        }
        let (ceilings, systems): (Vec<&Point>, Vec<&Point>) =
            all.iter().copied().partition(|point| point.is_ceiling());
        let (&best, others) = systems.split_first()?;
        let rival = others.iter().find(|point| point.target != best.target).or(others.first()).copied();
        let rival =
            rival.map(|point| RivalSystem { point, held: BestOverRival::of(&systems, point, measure) });
        Some(Headline { measure, best, rival, ceiling: ceilings.first().copied(), all })
    }

    /// The best and its rival.
    pub(super) fn best_and_rival(&self) -> impl Iterator<Item = &'a Point> {
        std::iter::once(self.best).chain(self.rival.as_ref().map(|rival| rival.point))
    }

    /// Why it shows only that the systems work; `None`: its runs count.
    pub(super) fn smoke_test_reason(&self) -> Option<String> {
        let why = self.best_and_rival().find_map(Point::smoke_test)?;
        Some(format!("a smoke test ({why})"))
    }

    /// Why nothing is proven; `None`: it is.
    pub(super) fn doubt_reason(&self) -> Option<String> {
        if let Some(smoke) = self.smoke_test_reason() {
            return Some(smoke);
        }
        let held = match &self.rival {
            None => return Some("nothing stands beside it".to_owned()),
            Some(RivalSystem { held: Err(why), .. }) => return Some(format!("not compared: {why}")),
            Some(RivalSystem { held: Ok(held), .. }) => held,
        };
        if held.rounds < ROUNDS_MIN {
            return Some(format!("too few rounds ({} of at least {ROUNDS_MIN})", held.rounds));
        }
        if held.comparison.has_too_few_runs() {
            return Some(format!("{} rounds are too few for {} pairs of systems", held.rounds, held.pairs));
        }
        (!held.comparison.is_significant()).then(|| "the rounds do not tell the two apart".to_owned())
    }

    /// How many rounds of which length were held together, or its systems had: the fewest, and the shortest.
    pub(super) fn rounds(&self) -> (usize, f64) {
        let rounds = match &self.rival {
            Some(RivalSystem { held: Ok(held), .. }) => held.rounds,
            _ => self.best_and_rival().map(|point| point.runs.len()).min().unwrap_or(0),
        };
        let seconds = self
            .best_and_rival()
            .flat_map(|point| &point.runs)
            .map(|run| run.seconds)
            .fold(f64::INFINITY, f64::min);
        (rounds, if seconds.is_finite() { seconds } else { 0.0 })
    }

    /// Whether its link is held to a speed, which other traffic has its part of.
    pub(super) fn is_congested(&self) -> bool {
        is_rate_limited(self.best)
    }
}

fn is_rate_limited(point: &Point) -> bool {
    point.labels.iter().any(|(name, _)| name == "limit")
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
            assert_eq!(one.measure, HeadlineMeasure::PerCore);
            assert_eq!(one.doubt_reason(), None);
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
        assert_eq!(
            (one.best.target.as_str(), one.rival.unwrap().point.target.as_str()),
            ("blockwire", "tgt")
        );
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
        assert_eq!((one.measure, one.best.target.as_str()), (HeadlineMeasure::Finish, "tgt"));
    }

    /// Of the best and the third of three, with the same protocol, the second was in the chart alone.
    #[test]
    fn the_rival_is_the_best_with_another_target() {
        let mut near = five("spdk-nvmf", "randread", 4096, 25_000);
        near.protocol = "nvme-tcp".into();
        let mut own = five("blockwire", "randread", 4096, 28_000);
        own.protocol = "nvme-tcp".into();
        let far = five("tgt", "randread", 4096, 10_000);
        let all = record(vec![five("blockwire", "randread", 4096, 30_000), far, near, own.clone()]);
        assert_eq!(Headline::of(&all).unwrap().rival.unwrap().point.target, "spdk-nvmf");
        let alone = record(vec![five("blockwire", "randread", 4096, 30_000), own]);
        assert_eq!(Headline::of(&alone).unwrap().rival.unwrap().point.protocol, "nvme-tcp");
    }

    #[test]
    fn deviation_is_told_of_the_congested_link() {
        let mut all = Vec::new();
        for limit in [None, Some("1000Mb/s")] {
            for target in ["blockwire", "tgt"] {
                let mut one = five(target, "randread", 4096, 10_000);
                one.labels.extend(limit.map(|limit| ("limit".to_owned(), limit.to_owned())));
                all.push(one);
            }
        }
        let mut record = record(all);
        assert!(!Headline::of(&record).unwrap().is_congested());
        record.preset = "nvme-tcp-jitter".into();
        let one = Headline::of(&record).unwrap();
        assert_eq!((one.measure, one.is_congested()), (HeadlineMeasure::Jitter, true));
    }

    /// Of five rounds each, two systems that lie apart are told from each other; the best of six and the next are not: one
    /// of fifteen pairs lies so by chance more often than once in twenty cases.
    #[test]
    fn the_best_of_many_systems_takes_more_rounds() {
        let of = |count: u64| {
            let all =
                (0..count).map(|at| five(&format!("system {at}"), "randread", 4096, 10_000 + 2_000 * at));
            Headline::of(&record(all.collect())).unwrap().doubt_reason()
        };
        assert_eq!(of(2), None);
        assert_eq!(of(6).as_deref(), Some("5 rounds are too few for 15 pairs of systems"));
    }

    /// Of a system with a round more, whose figure was far off, the medians stood beside a ratio that is not theirs.
    #[test]
    fn the_ratio_is_the_quotient_of_the_figures_beside_it() {
        let numbered = |target: &str, iops| {
            let mut one = five(target, "randread", 4096, iops);
            (0..).zip(&mut one.runs).for_each(|(at, run)| run.round = Some(at));
            one
        };
        let (mut best, rival) = (numbered("blockwire", 30_000), numbered("tgt", 10_000));
        let mut more = best.runs[0].clone();
        (more.round, more.ios) = (Some(5), more.ios * 9);
        best.runs.push(more);
        let record = record(vec![best, rival]);
        let one = Headline::of(&record).unwrap();
        let held = one.rival.as_ref().unwrap().held.as_ref().unwrap();
        assert!((held.means.0 / held.means.1 - held.comparison.ratio.ratio).abs() < 1e-9);
        assert_eq!(one.rounds().0, 5);
    }
}
