//! The report: one HTML file that needs nothing else.

use std::fmt::Write;

use super::chart::{Series, bars, heat, lines};
use super::size;
use super::tables::{COLUMNS, pairs, row};
use crate::derived::Improvement;
use crate::interval::short;
use crate::published::{check, published};
use crate::record::{End, Point, Record};

/// Text as HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = include_str!("report.css");

/// The record as a page.
pub fn html(record: &Record) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{0}</title><style>{STYLE}</style></head><body><main>\
         <h1>{0}</h1><p class=\"sub\">Preset <code>{1}</code> · {2} · {3:.0} s</p>",
        escaped(&record.title),
        escaped(&record.preset),
        escaped(&record.started),
        record.seconds
    );
    summary(&mut page, record);
    charts(&mut page, record);
    results(&mut page, record);
    comparison(&mut page, record);
    paper(&mut page, record);
    list(&mut page, "Notes", &record.notes);
    list(&mut page, "What does not add up", &record.discords());
    method(&mut page);
    environment(&mut page, record);
    page.push_str("</main></body></html>\n");
    page
}

/// In words: who was fastest, who needed least processor, who was steadiest.
fn summary(page: &mut String, record: &Record) {
    page.push_str("<section><h2>Summary</h2><ul>");
    let mut loads: Vec<(&str, u64)> =
        record.points.iter().map(|point| (point.rw.as_str(), point.bytes)).collect();
    loads.sort_unstable();
    loads.dedup();
    for (rw, bytes) in loads {
        let of: Vec<&Point> = record.points.iter().filter(|p| p.rw == rw && p.bytes == bytes).collect();
        let best = |figure: &dyn Fn(&Point) -> Option<f64>, is_more: bool| {
            let figures = of.iter().filter_map(|point| Some((figure(point)?, *point)));
            if is_more {
                figures.max_by(|a, b| a.0.total_cmp(&b.0))
            } else {
                figures.min_by(|a, b| a.0.total_cmp(&b.0))
            }
        };
        let _ = write!(page, "<li><b>{} {}</b>: ", escaped(rw), size(bytes));
        if let Some((iops, point)) = best(&|point| Some(point.iops()?.median), true) {
            let _ = write!(page, "most I/Os by {} ({} IOPS)", escaped(&point.system()), short(iops));
        }
        if let Some((cpu, point)) = best(&|point| Some(point.cpu_per_million(End::Target)?.median), false) {
            let _ = write!(
                page,
                "; least target processor by {} ({} s per million)",
                escaped(&point.system()),
                short(cpu)
            );
        }
        if let Some((us, point)) = best(&|point| Some(point.latency(99.0)?.median), false) {
            let _ =
                write!(page, "; steadiest {} (99th percentile {} µs)", escaped(&point.system()), short(us));
        }
        page.push_str(".</li>");
    }
    let noise = record
        .points
        .iter()
        .map(Point::noise)
        .fold((0.0, 0.0), |a: (f64, f64), b| (a.0.max(b.0), a.1.max(b.1)));
    if noise.0 > 0.10 || noise.1 > 0.01 {
        let _ = write!(
            page,
            "<li class=\"warn\">The machine was noisy: runs of one load differed by up to {:.0} %, and up to {:.1} % of \
             the processors' time was taken from it. Trust ratios more than figures.</li>",
            noise.0 * 100.0,
            noise.1 * 100.0
        );
    }
    page.push_str("</ul></section>");
}

fn systems(points: &[&Point]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for point in points {
        let system = point.system();
        if !all.contains(&system) {
            all.push(system);
        }
    }
    all
}

fn charts(page: &mut String, record: &Record) {
    page.push_str("<section><h2>Charts</h2>");
    let mut loads: Vec<&str> = record.points.iter().map(|point| point.rw.as_str()).collect();
    loads.sort_unstable();
    loads.dedup();
    for rw in loads {
        let points: Vec<&Point> = record.points.iter().filter(|point| point.rw == rw).collect();
        against_size(page, rw, &points);
        latency_percentiles(page, rw, &points);
        bar_charts(page, rw, &points);
        heat_map(page, rw, &points);
    }
    page.push_str("</section>");
}

fn against_size(page: &mut String, rw: &str, points: &[&Point]) {
    let mut sizes: Vec<u64> = points.iter().map(|point| point.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < 2 {
        return;
    }
    let series_of = |system: &str, name: &str, on_right: bool, figure: &dyn Fn(&Point) -> Option<f64>| {
        let values = sizes.iter().map(|bytes| {
            points
                .iter()
                .find(|point| point.bytes == *bytes && point.system() == system)
                .and_then(|p| figure(p))
        });
        Series { name: format!("{system}: {name}"), values: values.collect(), on_right }
    };
    let all = systems(points);
    let mut series = Vec::new();
    for system in &all {
        series.push(series_of(system, "Gb/s", false, &|p| Some(p.bandwidth()?.median * 8e-9)));
        series.push(series_of(system, "target CPU %", true, &|p| Some(p.busy(End::Target)?.median)));
    }
    let places: Vec<String> = sizes.iter().map(|bytes| size(*bytes)).collect();
    figure(
        page,
        &format!("{rw}: throughput and target processor use against I/O size"),
        &lines(rw, &places, ("Gb/s", "% of all cores"), &series),
    );
}

fn latency_percentiles(page: &mut String, rw: &str, points: &[&Point]) {
    const PERCENTS: [f64; 7] = [10.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0];
    let shown = points.iter().filter(|point| point.latencies().count() > 0).take(8);
    let series: Vec<Series> = shown
        .map(|point| {
            let all = point.latencies();
            let values = PERCENTS.iter().map(|percent| {
                let ns = if *percent == 100.0 { all.max() } else { all.percentile(*percent) };
                // One in 10,000 is not told by fewer.
                let is_known = *percent == 100.0 || all.count() as f64 * (1.0 - percent / 100.0) >= 1.0;
                is_known.then_some(ns as f64 / 1e3)
            });
            let name = format!("{} {} × {}", point.system(), size(point.bytes), point.depth);
            Series { name, values: values.collect(), on_right: false }
        })
        .collect();
    if !series.is_empty() {
        let places =
            PERCENTS.map(|percent| if percent == 100.0 { "max".into() } else { format!("p{percent}") });
        figure(page, &format!("{rw}: latency percentiles"), &lines(rw, &places, ("µs", ""), &series));
    }
}

fn bar_charts(page: &mut String, rw: &str, points: &[&Point]) {
    type Figure = fn(&Point) -> Option<crate::compare::Spread>;
    let kinds: [(&str, &str, Figure); 4] = [
        ("IOPS", "", Point::iops),
        ("processor effectiveness of the target", "IOPS per %", |point| point.effectiveness(End::Target)),
        ("processor seconds for a million I/Os, both ends", "s", |point| point.cpu_per_million(End::Both)),
        ("jitter (standard deviation of latency)", "µs", Point::jitter),
    ];
    for (what, unit, of) in kinds {
        let shown = points.iter().filter_map(|point| {
            let spread = of(point)?;
            let name = format!("{} {} × {}", point.system(), size(point.bytes), point.depth);
            Some((name, spread.median, spread.min, spread.max))
        });
        let shown: Vec<_> = shown.collect();
        if !shown.is_empty() {
            figure(page, &format!("{rw}: {what}"), &bars(rw, unit, &shown));
        }
    }
}

fn heat_map(page: &mut String, rw: &str, points: &[&Point]) {
    let rows = points.iter().filter_map(|point| {
        let run = point.runs.last()?;
        let cores = run.target.as_ref().or(run.initiator.as_ref())?.cores.busy_percent();
        Some((format!("{} {} × {}", point.system(), size(point.bytes), point.depth), cores))
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        figure(page, &format!("{rw}: how busy each core was"), &heat(rw, &rows));
    }
}

fn figure(page: &mut String, caption: &str, svg: &str) {
    let _ = write!(page, "<figure><figcaption>{}</figcaption>{svg}</figure>", escaped(caption));
}

fn table(page: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    page.push_str("<div class=\"wide\"><table><thead><tr>");
    for name in head {
        let _ = write!(page, "<th>{}</th>", escaped(name));
    }
    page.push_str("</tr></thead><tbody>");
    for row in rows {
        page.push_str("<tr>");
        for cell in row {
            let _ = write!(page, "<td>{}</td>", escaped(&cell));
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table></div>");
}

fn results(page: &mut String, record: &Record) {
    page.push_str("<section><h2>Results</h2><p>Medians of the runs, and half of their range.</p>");
    table(page, COLUMNS, record.points.iter().map(row));
    page.push_str("</section>");
}

fn comparison(page: &mut String, record: &Record) {
    let pairs = pairs(record);
    if pairs.is_empty() {
        return;
    }
    page.push_str(
        "<section><h2>Improvement</h2><p>Each system against the first that carried the same load.</p>",
    );
    let change = |old: Option<crate::compare::Spread>, new: Option<crate::compare::Spread>| {
        let change = old.zip(new).and_then(|(old, new)| Improvement::of(old.median, new.median));
        change.map_or("–".to_owned(), |change| change.to_string())
    };
    let rows = pairs.iter().map(|(base, point, comparison)| {
        vec![
            point.system(),
            base.system(),
            format!("{} {}", point.rw, size(point.bytes)),
            change(base.iops(), point.iops()),
            change(base.mean_latency(), point.mean_latency()),
            change(base.jitter(), point.jitter()),
            change(base.busy(End::Target), point.busy(End::Target)),
            change(base.effectiveness(End::Target), point.effectiveness(End::Target)),
            change(base.cpu_per_million(End::Target), point.cpu_per_million(End::Target)),
            format!("{:.3}", comparison.chance),
        ]
    });
    let head = [
        "system",
        "against",
        "load",
        "IOPS",
        "latency",
        "jitter",
        "target CPU",
        "effectiveness",
        "target CPU per I/O",
        "chance that IOPS do not differ",
    ];
    table(page, &head, rows);
    page.push_str("</section>");
}

fn paper(page: &mut String, record: &Record) {
    let data = published();
    let Some(paper) = record.paper.as_ref().and_then(|id| data.papers.iter().find(|paper| paper.id == *id))
    else {
        return;
    };
    let _ = write!(
        page,
        "<section><h2>What the paper printed</h2><p><b>{}</b>, {}{}. Its set-up: {}. Its machines, network and offload \
         hardware are not those of this run: ratios between systems may be held against each other, absolute figures \
         may not.</p>",
        escaped(&paper.title),
        escaped(&paper.by),
        paper.date.as_ref().map(|date| format!(", {}", escaped(date))).unwrap_or_default(),
        escaped(&paper.set_up)
    );
    let slips = check(data);
    let rows = data.of(&paper.id).map(|figure| {
        let slip = slips.iter().find(|slip| slip.figure == figure.id);
        vec![
            figure.what.clone(),
            format!("{} {}", short(figure.value), figure.unit),
            figure.at.clone(),
            slip.map_or(String::new(), |slip| {
                format!("does not add up: {} gives {}", slip.because, slip.follows)
            }),
        ]
    });
    table(page, &["what", "printed", "where", "checked"], rows);
    page.push_str("</section>");
}

fn list(page: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = write!(page, "<section><h2>{}</h2><ul>", escaped(title));
    for line in lines {
        let _ = write!(page, "<li>{}</li>", escaped(line));
    }
    page.push_str("</ul></section>");
}

fn method(page: &mut String) {
    page.push_str(
        "<section><h2>Method</h2><ul>\
         <li>Systems are run in turn, each load several times; figures are medians, with half of the range.</li>\
         <li>Latency is measured at the initiator; with a rate, from the moment at which an I/O was meant to start.</li>\
         <li>Busy percent is of all cores of a machine; on one machine both ends share them, so effectiveness counts \
         both. Processor seconds are of the processes (user and system); what the kernel does in interrupts for them \
         is in the cores' figures only.</li>\
         <li>Effectiveness is IOPS for each percent of all cores. In-flight is checked against IOPS times latency.</li>\
         <li>Steady is by SNIA PTS: five rounds, range within 20 %, slope within 10 % of the average.</li></ul></section>",
    );
}

fn environment(page: &mut String, record: &Record) {
    page.push_str("<section><h2>Environment and commands</h2>");
    for machine in &record.environment {
        let _ = write!(page, "<h3>{}</h3>", escaped(&machine.role));
        table(
            page,
            &["what", "value"],
            machine.facts.iter().map(|(name, value)| vec![name.clone(), value.clone()]),
        );
    }
    if !record.commands.is_empty() {
        let _ = write!(page, "<pre>{}</pre>", escaped(&record.commands.join("\n")));
    }
    page.push_str("</section>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::point;

    fn record() -> Record {
        let points = ["blockwire", "<tgt>"].iter().flat_map(|target| {
            [4096, 16_384]
                .map(|bytes| point(target, "randread", bytes, if *target == "<tgt>" { 5000 } else { 20_000 }))
        });
        Record {
            preset: "quick".into(),
            title: "Quick look".into(),
            paper: Some("demartek".into()),
            commands: vec!["blockwire eval run quick".into()],
            notes: vec!["no tgt & no SPDK".into()],
            points: points.collect(),
            ..Record::default()
        }
    }

    #[test]
    fn a_page_needs_nothing_else_and_shows_what_is_there() {
        let page = html(&record());
        for outside in ["http://", "https://", "<script", "<link", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("&lt;tgt&gt;") && !page.contains("<tgt>"), "names are text");
        assert!(!page.contains("data-points=\"0\""), "no chart is empty");
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        // Against size, percentiles, four kinds of bars, heat.
        assert_eq!(page.matches("<svg").count(), 7);
        for shown in ["-75 %", "does not add up", "no tgt &amp; no SPDK"] {
            assert!(page.contains(shown), "{shown}");
        }
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        let mut record = record();
        for run in record.points.iter_mut().flat_map(|point| &mut point.runs) {
            (run.target, run.initiator) = (None, None);
        }
        let page = html(&record);
        assert!(page.contains("<td>–</td>") && !page.contains("NaN"));
        assert!(super::super::markdown(&record).contains("| – |"));
        assert!(super::super::csv(&record).lines().nth(1).unwrap().contains(",,"));
    }

    #[test]
    fn tables_agree_over_all_forms() {
        let record = record();
        let (markdown, csv) = (super::super::markdown(&record), super::super::csv(&record));
        assert_eq!(csv.lines().count(), 1 + record.points.len());
        let columns = csv.lines().next().unwrap().split(',').count();
        assert!(csv.lines().all(|line| line.split(',').count() == columns));
        assert!(markdown.contains("| <tgt> |") && markdown.contains("0.25"));
    }
}
