//! Charts against what a preset varies beside the size of an I/O: the rate, the target's processors, depth and threads.
//!
//! Invariant: a line is of one system under one kind of load; what was not measured leaves a gap.

use std::fmt::Write;

use super::chart::{Axis, LineSeries, line_chart};
use super::groups::{SystemNames, load_kind_name};
use super::markup::{escape_html, push_figure, write_details};
use super::text::format_size;
use crate::record::{EndKind, Metric, Point, Record, varied};

/// Charts that are seen at once, of the first load of each direction.
const OPEN_CHARTS_MAX: usize = 4;

/// Points that differ in what is varied, and in their systems.
struct ParameterSweep<'a> {
    name: String,
    rw: &'a str,
    label: &'static str,
    /// Values in their order, and their points.
    places: Vec<String>,
    points: Vec<(usize, &'a Point)>,
}

/// Where a point stands on the axis: what is varied, in words.
fn axis_label(point: &Point) -> Option<String> {
    let (label, value) = point.varied_parameter()?;
    Some(match (label, value.parse::<u32>()) {
        (varied::THREADS_PARAMETER, Ok(threads)) if threads > 0 => {
            format!("{} x {threads}", point.depth / threads)
        }
        _ => value.to_owned(),
    })
}

/// All of a record, in its order.
fn sweeps(record: &Record) -> Vec<ParameterSweep<'_>> {
    let mut all: Vec<ParameterSweep<'_>> = Vec::new();
    for point in &record.points {
        let Some(((label, _), place)) = point.varied_parameter().zip(axis_label(point)) else {
            continue;
        };
        let others: String = point
            .labels
            .iter()
            .filter(|(known, _)| known != label)
            .map(|(name, value)| format!(", {name} {value}"))
            .collect();
        let link =
            if point.link_name() == "loopback" { String::new() } else { format!(", {}", point.link_name()) };
        let name = format!("{} of {}{link}{others}", load_kind_name(&point.rw), format_size(point.bytes));
        let at = all.iter().position(|sweep| sweep.name == name && sweep.label == label);
        let at = at.unwrap_or_else(|| {
            let (places, points) = (Vec::new(), Vec::new());
            all.push(ParameterSweep { name, rw: &point.rw, label, places, points });
            all.len() - 1
        });
        let Some(sweep) = all.get_mut(at) else {
            continue;
        };
        let place = sweep.places.iter().position(|known| *known == place).unwrap_or_else(|| {
            sweep.places.push(place);
            sweep.places.len() - 1
        });
        sweep.points.push((place, point));
    }
    all
}

type PointValue<'a> = &'a dyn Fn(&Point) -> Option<f64>;

impl ParameterSweep<'_> {
    fn line_series(&self, names: &SystemNames, of: PointValue<'_>) -> Vec<LineSeries> {
        let mut all: Vec<LineSeries> = Vec::new();
        for (place, point) in &self.points {
            let name = names.name_of(point);
            let at = all.iter().position(|one| one.name == name).unwrap_or_else(|| {
                let (colour, values) = (names.colour(&name), vec![None; self.places.len()]);
                all.push(LineSeries { name, colour, values, on_right: false });
                all.len() - 1
            });
            if let Some(value) = all.get_mut(at).and_then(|one| one.values.get_mut(*place)) {
                *value = of(point);
            }
        }
        all.retain(|one| one.values.iter().any(Option::is_some));
        all
    }

    /// The same system with one processor.
    fn with_one_core(&self, point: &Point) -> Option<&Point> {
        let who = |one: &Point| (one.target.clone(), one.initiator.clone(), one.protocol.clone());
        let is_one = |one: &Point| one.varied_parameter() == Some((varied::CORES_PARAMETER, "1"));
        self.points.iter().map(|(_, one)| *one).find(|one| is_one(one) && who(one) == who(point))
    }

    /// Its charts, as figures of the page.
    fn chart_figures(&self, names: &SystemNames) -> Vec<String> {
        let us = |percent: f64| move |point: &Point| point.percentile(percent);
        let median = |metric: Metric| {
            move |point: &Point| {
                crate::compare::Spread::of(&point.figures(metric)).map(|spread| spread.median)
            }
        };
        let iops = ("I/Os per second", "IOPS", &median(Metric::Iops) as PointValue<'_>, false);
        let p99 = ("99th percentile of latency", "µs", &us(99.0) as PointValue<'_>, true);
        let busy = (
            "Processor use of the target, all of its processors",
            "%",
            &median(Metric::Busy(EndKind::Target)) as PointValue<'_>,
            false,
        );
        let busy_initiator = (
            "Processor use of the initiator",
            "%",
            &median(Metric::Busy(EndKind::Initiator)) as PointValue<'_>,
            false,
        );
        let p50 = ("Median latency", "µs", &us(50.0) as PointValue<'_>, true);
        let p999 = ("99.9th percentile of latency", "µs", &us(99.9) as PointValue<'_>, true);
        let scaling = |point: &Point| {
            let one = self.with_one_core(point)?;
            Some(point.ratio_to(one, Metric::Iops)?.ratio)
        };
        let scaling =
            ("I/Os per second over those with one processor", "x", &scaling as PointValue<'_>, false);
        let cost = (
            "Processor time of the target for a million I/Os",
            "s",
            &median(Metric::CpuPerMillion(EndKind::Target)) as PointValue<'_>,
            false,
        );
        let (below, charts) = match self.label {
            varied::RATE_PARAMETER => {
                ("percent of the most", vec![p50, p99, p999, busy, busy_initiator, iops])
            }
            varied::CORES_PARAMETER => ("processors of the target", vec![iops, scaling, cost, p99]),
            _ => ("depth x threads", vec![iops, p99, cost]),
        };
        let mut figures = Vec::new();
        for (what, unit, of, is_log) in charts {
            let series = self.line_series(names, of);
            if !series.is_empty() {
                let caption = format!("{what}: {}", self.name);
                let axis = Axis { left: unit, right: "", below, is_log };
                push_figure(&mut figures, &caption, &line_chart(&caption, &self.places, &axis, &series));
            }
        }
        figures
    }
}

/// The charts of all that is varied: of each direction those of the first load, and all others when they are asked for.
pub(super) fn write_varied_charts(page: &mut String, record: &Record, names: &SystemNames) {
    let mut seen: Vec<&str> = Vec::new();
    for sweep in sweeps(record) {
        let figures = sweep.chart_figures(names);
        let first = if seen.contains(&sweep.rw) { 0 } else { OPEN_CHARTS_MAX.min(figures.len()) };
        let (shown, rest) = figures.split_at(first);
        if !shown.is_empty() {
            seen.push(sweep.rw);
            let _ = write!(
                page,
                "<h3>{}</h3><div class=\"charts\">{}</div>",
                escape_html(&sweep.name),
                shown.concat()
            );
        }
        if !rest.is_empty() {
            let more = if shown.is_empty() { "" } else { " more" };
            write_details(page, &format!("{}: {}{more} charts", sweep.name, rest.len()), |page| {
                let _ = write!(page, "<div class=\"charts\">{}</div>", rest.concat());
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::five;

    fn labelled(target: &str, name: &str, value: &str, iops: u64) -> Point {
        let mut point = five(target, "randread", 4096, iops);
        point.labels = vec![(name.to_owned(), value.to_owned())];
        point
    }

    fn page(points: Vec<Point>) -> String {
        let record = Record { points, ..Record::default() };
        let mut page = String::new();
        write_varied_charts(&mut page, &record, &SystemNames::of(&record));
        page
    }

    #[test]
    fn latency_is_drawn_against_the_load() {
        let rates = ["10 %", "50 %", "100 %"];
        let points = ["blockwire", "tgt"].iter().flat_map(|target| {
            rates.iter().map(|rate| labelled(target, varied::RATE_PARAMETER, rate, 10_000))
        });
        let page = page(points.collect());
        for said in
            ["Median latency", "99.9th percentile", "Processor use of the initiator", "percent of the most"]
        {
            assert!(page.contains(said), "{said}: {page}");
        }
        assert!(page.contains("2 more charts"), "{page}");
    }

    #[test]
    fn scaling_is_over_the_same_system_with_one_core() {
        let points = [("blockwire", "1", 10_000), ("blockwire", "2", 18_000), ("tgt", "2", 5_000)];
        let points = points
            .map(|(target, cores, iops)| labelled(target, varied::CORES_PARAMETER, cores, iops))
            .to_vec();
        let record = Record { points, ..Record::default() };
        let all = sweeps(&record);
        assert_eq!((all.len(), &all[0].places[..]), (1, &["1".to_owned(), "2".to_owned()][..]));
        assert_eq!(
            all[0].with_one_core(&record.points[1]).map(|one| one.runs[0].ios),
            Some(record.points[0].runs[0].ios)
        );
        assert_eq!(all[0].with_one_core(&record.points[2]), None);
    }

    #[test]
    fn depth_and_threads_are_one_axis() {
        let mut one = labelled("blockwire", varied::THREADS_PARAMETER, "4", 10_000);
        one.depth = 32;
        assert_eq!(axis_label(&one).as_deref(), Some("8 x 4"));
        assert_eq!(axis_label(&five("blockwire", "randread", 4096, 1)), None);
    }
}
