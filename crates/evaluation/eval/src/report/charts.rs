//! The charts of a report, group by group.

use std::fmt::Write;

use super::chart::{
    Axis, Bar, Distribution, HeatRow, LineSeries, bar_chart, distribution_chart, heat_map, line_chart,
};
use super::groups::{LoadGroup, SystemNames, load_groups};
use super::markup::{escape_html, push_figure, write_details};
use super::sweep_charts::write_varied_charts;
use super::text::format_size;
use crate::compare::Spread;
use crate::record::{EndKind, EndUsage, Point, Record, Run};

/// Cores from which on a picture of each says something.
pub(super) const CHARTED_CORES_MIN: usize = 4;
/// Charts that are seen at once, of the first setting of each direction.
const OPEN_CHARTS_MAX: usize = 2;

/// The charts' section: of each direction the first setting's, and all others when they are asked for.
pub(super) fn write_charts(page: &mut String, record: &Record, names: &SystemNames) {
    page.push_str("<section id=\"charts\"><h2>Charts</h2>");
    let mut seen: Vec<&str> = Vec::new();
    write_varied_charts(page, record, names);
    let groups = load_groups(record);
    // What is varied has charts of its own.
    let is_plain =
        |group: &&LoadGroup<'_>| group.points.iter().all(|point| point.varied_parameter().is_none());
    for group in groups.iter().filter(is_plain) {
        let mut figures = Vec::new();
        if group.sizes.len() > 1 {
            push_charts_by_size(&mut figures, record, group, names);
        }
        for bytes in group.smallest_and_largest() {
            push_charts_of_size(&mut figures, record, group, bytes, names);
        }
        let mut rest = figures.as_slice();
        if !seen.contains(&group.rw) && group.points.iter().any(|point| point.protocol != "local") {
            seen.push(group.rw);
            let (first, others) = rest.split_at(OPEN_CHARTS_MAX.min(rest.len()));
            let _ = write!(
                page,
                "<h3>{}</h3><div class=\"charts\">{}</div>",
                escape_html(&group.name()),
                first.concat()
            );
            rest = others;
        }
        if !rest.is_empty() {
            let more = if rest.len() == figures.len() { "" } else { " more" };
            let summary = format!("{}: {}{more} charts", group.name(), rest.len());
            write_details(page, &summary, |page| {
                let _ = write!(page, "<div class=\"charts\">{}</div>", rest.concat());
            });
        }
    }
    page.push_str("</section>");
}

type PointValue = fn(&Point) -> Option<f64>;
type PointSpread = fn(&Point) -> Option<Spread>;
/// One end of a run.
pub(super) type EndSelector = fn(&Run) -> Option<&EndUsage>;

/// A line for each system.
fn system_series(
    group: &LoadGroup<'_>,
    names: &SystemNames,
    on_right: bool,
    of: impl Fn(&Point) -> Option<f64>,
) -> Vec<LineSeries> {
    let mut all: Vec<LineSeries> = Vec::new();
    for point in &group.points {
        let name = names.name_of(point);
        if all.iter().any(|one| one.name == name) {
            continue;
        }
        let mine = |bytes: &u64| group.points_of_size(*bytes).find(|other| names.name_of(other) == name);
        let values: Vec<Option<f64>> = group.sizes.iter().map(|bytes| of(mine(bytes)?)).collect();
        if values.iter().any(Option::is_some) {
            all.push(LineSeries { colour: names.colour(&name), name, values, on_right });
        }
    }
    all
}

/// What changes with the size of an I/O.
fn push_charts_by_size(
    figures: &mut Vec<String>,
    record: &Record,
    group: &LoadGroup<'_>,
    names: &SystemNames,
) {
    let places: Vec<String> = group.sizes.iter().map(|bytes| format_size(*bytes)).collect();
    let busy_end: PointValue =
        if group.points.iter().any(|point| point.busy_percent(EndKind::Target).is_some()) {
            |point| Some(point.busy_percent(EndKind::Target)?.median)
        } else {
            |point| Some(point.busy_percent(EndKind::Initiator)?.median)
        };
    let mut both = system_series(group, names, false, |point| Some(point.bandwidth()?.median * 8e-9));
    let busy = system_series(group, names, true, busy_end);
    let right = if busy.is_empty() { "" } else { "% CPU" };
    both.extend(busy);
    let caption = if right.is_empty() {
        "Throughput against I/O size"
    } else {
        "Throughput (solid) and CPU use (dashed) against I/O size"
    };
    let axis = |left, right| Axis { left, right, below: "bytes of an I/O", is_log: false };
    push_figure(figures, caption, &line_chart(caption, &places, &axis("Gb/s", right), &both));
    let share =
        system_series(group, names, false, |point| Some(record.share_of_ceiling(point)?.ratio * 100.0));
    if !share.is_empty() {
        let caption = "I/Os per second as a part of the bare responder's, against I/O size";
        push_figure(figures, caption, &line_chart(caption, &places, &axis("%", ""), &share));
    }
    let more: [(&str, &'static str, PointValue); 4] = [
        ("I/Os per second against I/O size", "IOPS", |point| Some(point.iops()?.median)),
        ("Mean latency against I/O size", "µs", |point| Some(point.mean_latency()?.median)),
        ("Processor effectiveness of the target: IOPS for each percent of its cores", "IOPS/%", |point| {
            Some(point.effectiveness(EndKind::Target)?.median)
        }),
        ("Processor time of both ends for a million I/Os", "s", |point| {
            Some(point.cpu_per_million(EndKind::Both)?.median)
        }),
    ];
    for (caption, unit, of) in more {
        let series = system_series(group, names, false, of);
        if !series.is_empty() {
            push_figure(figures, caption, &line_chart(caption, &places, &axis(unit, ""), &series));
        }
    }
}

/// What is shown of one size.
fn push_charts_of_size(
    figures: &mut Vec<String>,
    record: &Record,
    group: &LoadGroup<'_>,
    bytes: u64,
    names: &SystemNames,
) {
    let points: Vec<&Point> = group.points_of_size(bytes).collect();
    let said = if group.sizes.len() > 1 { format!(", {}", format_size(bytes)) } else { String::new() };
    push_latency_charts(figures, &points, &said, names);
    let kinds: [(&str, &str, PointSpread); 4] = [
        ("I/Os per second", "IOPS", Point::iops),
        ("Processor effectiveness of the target", "IOPS per %", |point| point.effectiveness(EndKind::Target)),
        ("Processor time of both ends for a million I/Os", "s", |point| point.cpu_per_million(EndKind::Both)),
        ("Time to finish", "s", Point::finish_seconds),
    ];
    for (what, unit, of) in kinds {
        let shown = points.iter().filter_map(|point| {
            let spread = of(point)?;
            let name = names.name_of(point);
            let colour = names.colour(&name);
            Some(Bar { name, colour, value: spread.median, low: spread.min, high: spread.max })
        });
        let shown: Vec<Bar> = shown.collect();
        if !shown.is_empty() {
            let caption = format!("{what}{said}");
            push_figure(figures, &caption, &bar_chart(&caption, unit, &shown));
        }
    }
    let shown = points.iter().filter_map(|point| {
        let share = record.share_of_ceiling(point)?;
        let (low, high) = share.interval.unwrap_or((share.ratio, share.ratio));
        let name = names.name_of(point);
        let colour = names.colour(&name);
        Some(Bar { name, colour, value: share.ratio * 100.0, low: low * 100.0, high: high * 100.0 })
    });
    let shown: Vec<Bar> = shown.collect();
    if !shown.is_empty() {
        let caption = format!("I/Os per second as a part of the bare responder's{said}");
        push_figure(figures, &caption, &bar_chart(&caption, "%", &shown));
    }
    push_core_heat_maps(figures, &points, &said, names);
}

/// Percentiles, and the shapes of the distributions.
fn push_latency_charts(figures: &mut Vec<String>, points: &[&Point], said: &str, names: &SystemNames) {
    const PERCENTS: [f64; 7] = [10.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0];
    let (mut series, mut drawn) = (Vec::new(), Vec::new());
    for point in points {
        let all = point.latency_histogram();
        if all.count() == 0 {
            continue;
        }
        let values = PERCENTS.iter().map(|percent| {
            let ns = if *percent == 100.0 { Some(all.max()) } else { all.reliable_percentile(*percent) };
            ns.map(|ns| ns as f64 / 1e3)
        });
        let (values, name) = (values.collect(), names.name_of(point));
        let colour = names.colour(&name);
        series.push(LineSeries { name: name.clone(), colour, values, on_right: false });
        drawn.push(Distribution { name, colour, latencies: all });
    }
    if series.is_empty() {
        return;
    }
    let places = PERCENTS.map(|percent| if percent == 100.0 { "max".into() } else { format!("{percent}") });
    let axis = Axis { left: "µs", right: "", below: "percentile", is_log: true };
    let caption = format!("Latency percentiles{said}");
    push_figure(figures, &caption, &line_chart(&caption, &places, &axis, &series));
    let caption = format!("How latency is spread (jitter){said}");
    push_figure(figures, &caption, &distribution_chart(&caption, &drawn));
}

/// How busy each core of either end was, over all runs.
fn push_core_heat_maps(figures: &mut Vec<String>, points: &[&Point], said: &str, names: &SystemNames) {
    let ends: [(&str, EndSelector); 2] =
        [("target", |run| run.target.as_ref()), ("initiator", |run| run.initiator.as_ref())];
    let mut shown: Vec<Vec<HeatRow>> = Vec::new();
    for (end, side) in ends {
        let rows: Vec<HeatRow> = points
            .iter()
            .filter_map(|point| {
                let cores = busy_percent_per_core(point, side);
                (cores.len() >= CHARTED_CORES_MIN).then(|| (names.name_of(point), cores))
            })
            .collect();
        // Of few cores a picture says no more than the tables. Both ends on the same cores are one picture.
        if rows.is_empty() || shown.contains(&rows) {
            continue;
        }
        let caption = format!("How busy each core was, in percent ({end}'s cores){said}");
        push_figure(figures, &caption, &heat_map(&caption, &rows));
        shown.push(rows);
    }
}

/// Each core's number and how busy it was over all runs, in percent.
pub(super) fn busy_percent_per_core(point: &Point, side: EndSelector) -> Vec<(u32, f64)> {
    let mut cores: Vec<(u32, f64, f64)> = Vec::new();
    for (core, kinds) in point.runs.iter().filter_map(side).flat_map(|side| &side.cores.cores) {
        match cores.iter_mut().find(|(known, _, _)| known == core) {
            Some((_, busy, total)) => (*busy, *total) = (*busy + kinds.busy_time(), *total + kinds.total()),
            None => cores.push((*core, kinds.busy_time(), kinds.total())),
        }
    }
    cores.sort_unstable_by_key(|(core, _, _)| *core);
    let percent =
        |(core, busy, total): &(u32, f64, f64)| (*total > 0.0).then(|| (*core, 100.0 * busy / total));
    cores.iter().filter_map(percent).collect()
}
