//! The charts of a report, group by group.

use std::fmt::Write;

use super::chart::{Axis, Bar, Distribution, Row, Series, bars, distributions, heat, lines};
use super::groups::{Group, Names, groups};
use super::markup::{details, escaped};
use super::text::size;
use super::varied::varied_charts;
use crate::compare::Spread;
use crate::record::{End, EndUsage, Point, Record, Run};

/// Cores from which on a picture of each says something.
pub(super) const CORES_LEAST: usize = 4;
/// Charts that are seen at once, of the first setting of each direction.
const SEEN: usize = 2;

/// The charts' section: of each direction the first setting's, and all others when they are asked for.
pub(super) fn charts(page: &mut String, record: &Record, names: &Names) {
    page.push_str("<section id=\"charts\"><h2>Charts</h2>");
    let mut seen: Vec<&str> = Vec::new();
    varied_charts(page, record, names);
    let groups = groups(record);
    // What is varied has charts of its own.
    let is_plain = |group: &&Group<'_>| group.points.iter().all(|point| point.varied().is_none());
    for group in groups.iter().filter(is_plain) {
        let mut figures = Vec::new();
        if group.sizes.len() > 1 {
            against_size(&mut figures, record, group, names);
        }
        for bytes in group.ends() {
            of_size(&mut figures, record, group, bytes, names);
        }
        let mut rest = figures.as_slice();
        if !seen.contains(&group.rw) && group.points.iter().any(|point| point.protocol != "local") {
            seen.push(group.rw);
            let (first, others) = rest.split_at(SEEN.min(rest.len()));
            let _ = write!(
                page,
                "<h3>{}</h3><div class=\"charts\">{}</div>",
                escaped(&group.name()),
                first.concat()
            );
            rest = others;
        }
        if !rest.is_empty() {
            let more = if rest.len() == figures.len() { "" } else { " more" };
            let summary = format!("{}: {}{more} charts", group.name(), rest.len());
            details(page, &summary, |page| {
                let _ = write!(page, "<div class=\"charts\">{}</div>", rest.concat());
            });
        }
    }
    page.push_str("</section>");
}

pub(super) fn figure(figures: &mut Vec<String>, caption: &str, svg: &str) {
    figures.push(format!("<figure><figcaption>{}</figcaption>{svg}</figure>", escaped(caption)));
}

type Of = fn(&Point) -> Option<f64>;
type Spreads = fn(&Point) -> Option<Spread>;
/// One end of a run.
pub(super) type EndOf = fn(&Run) -> Option<&EndUsage>;

/// A line for each system.
fn series(
    group: &Group<'_>,
    names: &Names,
    on_right: bool,
    of: impl Fn(&Point) -> Option<f64>,
) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for point in &group.points {
        let name = names.name(point);
        if all.iter().any(|one| one.name == name) {
            continue;
        }
        let mine = |bytes: &u64| group.of_size(*bytes).find(|other| names.name(other) == name);
        let values: Vec<Option<f64>> = group.sizes.iter().map(|bytes| of(mine(bytes)?)).collect();
        if values.iter().any(Option::is_some) {
            all.push(Series { colour: names.colour(&name), name, values, on_right });
        }
    }
    all
}

/// What changes with the size of an I/O.
fn against_size(figures: &mut Vec<String>, record: &Record, group: &Group<'_>, names: &Names) {
    let places: Vec<String> = group.sizes.iter().map(|bytes| size(*bytes)).collect();
    let busy_end: Of = if group.points.iter().any(|point| point.busy(End::Target).is_some()) {
        |point| Some(point.busy(End::Target)?.median)
    } else {
        |point| Some(point.busy(End::Initiator)?.median)
    };
    let mut both = series(group, names, false, |point| Some(point.bandwidth()?.median * 8e-9));
    let busy = series(group, names, true, busy_end);
    let right = if busy.is_empty() { "" } else { "% CPU" };
    both.extend(busy);
    let caption = if right.is_empty() {
        "Throughput against I/O size"
    } else {
        "Throughput (solid) and CPU use (dashed) against I/O size"
    };
    let axis = |left, right| Axis { left, right, below: "bytes of an I/O", is_log: false };
    figure(figures, caption, &lines(caption, &places, &axis("Gb/s", right), &both));
    let share = series(group, names, false, |point| Some(record.share_of_ceiling(point)?.ratio * 100.0));
    if !share.is_empty() {
        let caption = "I/Os per second as a part of the bare responder's, against I/O size";
        figure(figures, caption, &lines(caption, &places, &axis("%", ""), &share));
    }
    let more: [(&str, &'static str, Of); 4] = [
        ("I/Os per second against I/O size", "IOPS", |point| Some(point.iops()?.median)),
        ("Mean latency against I/O size", "µs", |point| Some(point.mean_latency()?.median)),
        ("Processor effectiveness of the target: IOPS for each percent of its cores", "IOPS/%", |point| {
            Some(point.effectiveness(End::Target)?.median)
        }),
        ("Processor time of both ends for a million I/Os", "s", |point| {
            Some(point.cpu_per_million(End::Both)?.median)
        }),
    ];
    for (caption, unit, of) in more {
        let series = series(group, names, false, of);
        if !series.is_empty() {
            figure(figures, caption, &lines(caption, &places, &axis(unit, ""), &series));
        }
    }
}

/// What is shown of one size.
fn of_size(figures: &mut Vec<String>, record: &Record, group: &Group<'_>, bytes: u64, names: &Names) {
    let points: Vec<&Point> = group.of_size(bytes).collect();
    let said = if group.sizes.len() > 1 { format!(", {}", size(bytes)) } else { String::new() };
    latency(figures, &points, &said, names);
    let kinds: [(&str, &str, Spreads); 4] = [
        ("I/Os per second", "IOPS", Point::iops),
        ("Processor effectiveness of the target", "IOPS per %", |point| point.effectiveness(End::Target)),
        ("Processor time of both ends for a million I/Os", "s", |point| point.cpu_per_million(End::Both)),
        ("Time to finish", "s", Point::finish),
    ];
    for (what, unit, of) in kinds {
        let shown = points.iter().filter_map(|point| {
            let spread = of(point)?;
            let name = names.name(point);
            let colour = names.colour(&name);
            Some(Bar { name, colour, value: spread.median, low: spread.min, high: spread.max })
        });
        let shown: Vec<Bar> = shown.collect();
        if !shown.is_empty() {
            let caption = format!("{what}{said}");
            figure(figures, &caption, &bars(&caption, unit, &shown));
        }
    }
    let shown = points.iter().filter_map(|point| {
        let share = record.share_of_ceiling(point)?;
        let (low, high) = share.interval.unwrap_or((share.ratio, share.ratio));
        let name = names.name(point);
        let colour = names.colour(&name);
        Some(Bar { name, colour, value: share.ratio * 100.0, low: low * 100.0, high: high * 100.0 })
    });
    let shown: Vec<Bar> = shown.collect();
    if !shown.is_empty() {
        let caption = format!("I/Os per second as a part of the bare responder's{said}");
        figure(figures, &caption, &bars(&caption, "%", &shown));
    }
    heat_maps(figures, &points, &said, names);
}

/// Percentiles, and the shapes of the distributions.
fn latency(figures: &mut Vec<String>, points: &[&Point], said: &str, names: &Names) {
    const PERCENTS: [f64; 7] = [10.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0];
    let (mut series, mut drawn) = (Vec::new(), Vec::new());
    for point in points {
        let all = point.latencies();
        if all.count() == 0 {
            continue;
        }
        let values = PERCENTS.iter().map(|percent| {
            let ns = if *percent == 100.0 { Some(all.max()) } else { all.percentile_told(*percent) };
            ns.map(|ns| ns as f64 / 1e3)
        });
        let (values, name) = (values.collect(), names.name(point));
        let colour = names.colour(&name);
        series.push(Series { name: name.clone(), colour, values, on_right: false });
        drawn.push(Distribution { name, colour, latencies: all });
    }
    if series.is_empty() {
        return;
    }
    let places = PERCENTS.map(|percent| if percent == 100.0 { "max".into() } else { format!("{percent}") });
    let axis = Axis { left: "µs", right: "", below: "percentile", is_log: true };
    let caption = format!("Latency percentiles{said}");
    figure(figures, &caption, &lines(&caption, &places, &axis, &series));
    let caption = format!("How latency is spread (jitter){said}");
    figure(figures, &caption, &distributions(&caption, &drawn));
}

/// How busy each core of either end was, over all runs.
fn heat_maps(figures: &mut Vec<String>, points: &[&Point], said: &str, names: &Names) {
    let ends: [(&str, EndOf); 2] =
        [("target", |run| run.target.as_ref()), ("initiator", |run| run.initiator.as_ref())];
    let mut shown: Vec<Vec<Row>> = Vec::new();
    for (end, side) in ends {
        let rows: Vec<Row> = points
            .iter()
            .filter_map(|point| {
                let cores = busy_percent_per_core(point, side);
                (cores.len() >= CORES_LEAST).then(|| (names.name(point), cores))
            })
            .collect();
        // Of few cores a picture says no more than the tables. Both ends on the same cores are one picture.
        if rows.is_empty() || shown.contains(&rows) {
            continue;
        }
        let caption = format!("How busy each core was, in percent ({end}'s cores){said}");
        figure(figures, &caption, &heat(&caption, &rows));
        shown.push(rows);
    }
}

/// Each core's number and how busy it was over all runs, in percent.
pub(super) fn busy_percent_per_core(point: &Point, side: EndOf) -> Vec<(u32, f64)> {
    let mut cores: Vec<(u32, f64, f64)> = Vec::new();
    for (core, kinds) in point.runs.iter().filter_map(side).flat_map(|side| &side.cores.cores) {
        match cores.iter_mut().find(|(known, _, _)| known == core) {
            Some((_, busy, total)) => (*busy, *total) = (*busy + kinds.busy(), *total + kinds.total()),
            None => cores.push((*core, kinds.busy(), kinds.total())),
        }
    }
    cores.sort_unstable_by_key(|(core, _, _)| *core);
    let percent =
        |(core, busy, total): &(u32, f64, f64)| (*total > 0.0).then(|| (*core, 100.0 * busy / total));
    cores.iter().filter_map(percent).collect()
}
