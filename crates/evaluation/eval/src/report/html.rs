//! The report as one self-contained HTML file.

use std::fmt::Write;

use super::answer::write_answer;
use super::charts::{CHARTED_CORES_MIN, EndSelector, busy_percent_per_core, write_charts};
use super::groups::{SystemNames, load_groups, load_kind_name};
use super::markup::{escape_html, write_details, write_table};
use super::paper::write_paper_section;
use super::summary::write_summary;
use super::tables::{FINISH_COLUMNS, ceiling_share_cell, chance_cell, compared_pairs, finish_rows};
use super::text::{UNKNOWN_CELL, format_figure, format_ratio, format_size, format_time, with_spread};
use crate::compare::Spread;
use crate::derived::count_busy_cores;
use crate::interrupts::InterruptAccounting;
use crate::record::{EndKind, EndUsage, Metric, Point, Record, Run, SystemConfiguration};

const STYLE: &str = include_str!("report.css");

/// The record as a page.
pub fn render_html(record: &Record) -> String {
    let names = SystemNames::of(record);
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
         <title>{0}</title><style>{STYLE}</style></head><body><main>\
         <header><h1>{0}</h1><p class=\"sub\">{1} · took {2}</p></header>",
        escape_html(&record.title),
        escape_html(&record.started),
        format_time(record.seconds)
    );
    write_answer(&mut page, record, &names);
    let mut body = String::new();
    write_summary(&mut body, record, &names);
    write_charts(&mut body, record, &names);
    write_comparison(&mut body, record, &names);
    write_results(&mut body, record, &names);
    write_busy_cores(&mut body, record, &names);
    write_remote_minus_local_latency(&mut body, record, &names);
    write_paper_section(&mut body, record, &names);
    write_list(&mut body, "Notes", "notes", &record.notes);
    write_list(&mut body, "What does not add up", "discords", &record.inconsistencies());
    write_method(&mut body, record);
    write_environment(&mut body, record);
    write_contents(&mut page, &body);
    page.push_str(&body);
    page.push_str("</main></body></html>\n");
    page
}

/// Links to the sections that are there.
fn write_contents(page: &mut String, body: &str) {
    page.push_str("<nav>");
    for section in body.split("<section id=\"").skip(1) {
        let (Some((id, _)), Some(title)) = (section.split_once('"'), section.split("</h2>").next()) else {
            continue;
        };
        let title = title.rsplit("<h2>").next().unwrap_or_default();
        let _ = write!(page, "<a href=\"#{id}\">{title}</a>");
    }
    page.push_str("</nav>");
}

/// Rows up to which a table is seen at once.
const OPEN_ROWS_MAX: usize = 6;

/// A table with its heading, which is shown when it is asked for if it is long.
fn write_titled_table(page: &mut String, title: &str, head: &[&str], rows: Vec<Vec<String>>) {
    if rows.len() <= OPEN_ROWS_MAX {
        let _ = write!(page, "<h3>{}</h3>", escape_html(title));
        write_table(page, head, rows.into_iter());
    } else {
        let summary = format!("{title}: {} rows", rows.len());
        write_details(page, &summary, |page| write_table(page, head, rows.into_iter()));
    }
}

fn load_cell(point: &Point, setting: &str) -> String {
    let setting = if setting.is_empty() { String::new() } else { format!(", {setting}") };
    format!("{} {}{setting}", load_kind_name(&point.rw), format_size(point.bytes))
}

/// All points with what sets them apart, in the order in which they are shown.
fn ordered_points(record: &Record) -> Vec<(&Point, String)> {
    let mut all = Vec::new();
    for group in load_groups(record) {
        for bytes in &group.sizes {
            let points = group.points.iter().filter(|point| point.bytes == *bytes);
            all.extend(points.map(|point| (*point, group.setting.clone())));
        }
    }
    all
}

fn write_results(page: &mut String, record: &Record, names: &SystemNames) {
    page.push_str(
        "<section id=\"results\"><h2>Results</h2><p>Medians of the runs, and half of their range. <em>Of bare</em>: I/Os \
         per second as a part of those of the bare responder, which has no protocol.</p>",
    );
    let all = ordered_points(record);
    let first = all.iter().map(|(point, setting)| {
        let us = |percent| point.percentile(percent).map_or(UNKNOWN_CELL.to_owned(), format_figure);
        vec![
            load_cell(point, setting),
            names.name_of(point),
            point.depth.to_string(),
            with_spread(point.iops(), 1.0),
            with_spread(point.bandwidth(), 1e-6),
            with_spread(point.bandwidth(), 8e-9),
            with_spread(point.mean_latency(), 1.0),
            with_spread(point.jitter(), 1.0),
            us(50.0),
            us(99.0),
            us(99.9),
            us(99.99),
            point.longest_io_us().map_or(UNKNOWN_CELL.to_owned(), format_figure),
            ceiling_share_cell(record, point),
            point.runs.iter().map(|run| run.errors).sum::<u64>().to_string(),
        ]
    });
    let head = [
        "load",
        "system",
        "in flight",
        "IOPS",
        "MB/s",
        "Gb/s",
        "mean µs",
        "σ µs",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "p99.99 µs",
        "max µs",
        "of bare %",
        "errors",
    ];
    write_titled_table(page, "Rate and latency, as the initiator saw them", &head, first.collect());
    let second = all.iter().map(|(point, setting)| {
        let counted = |of: fn(&Run) -> Option<f64>| {
            let figures: Vec<f64> = point.runs.iter().filter_map(of).collect();
            with_spread(Spread::of(&figures), 1.0)
        };
        vec![
            load_cell(point, setting),
            names.name_of(point),
            point.limit().map_or(UNKNOWN_CELL.to_owned(), |limit| limit.to_string()),
            with_spread(point.cpu_per_million(EndKind::Target), 1.0),
            with_spread(point.cpu_per_million(EndKind::Initiator), 1.0),
            with_spread(point.busy_percent(EndKind::Target), 1.0),
            with_spread(point.busy_percent(EndKind::Initiator), 1.0),
            with_spread(point.effectiveness(EndKind::Target), 1.0),
            with_spread(point.effectiveness(EndKind::Initiator), 1.0),
            counted(|run| resident_mebibytes(run.target.as_ref())),
            counted(|run| resident_mebibytes(run.initiator.as_ref())),
            counted(|run| Some(run.target.as_ref()?.idle_polls? / run.seconds * 100.0)),
            counted(|run| Some(run.initiator.as_ref()?.idle_polls? / run.seconds * 100.0)),
            counted(|run| {
                (run.ios > 0).then_some(run.target.as_ref()?.cores.switches as f64 / run.ios as f64)
            }),
            counted(|run| (run.ios > 0).then_some(run.packets? as f64 / run.ios as f64)),
            counted(|run| Some(run.retransmits? as f64)),
        ]
    });
    let head = [
        "load",
        "system",
        "limit",
        "target CPU s/M I/Os",
        "initiator CPU s/M I/Os",
        "target busy %",
        "initiator busy %",
        "effectiveness, target",
        "effectiveness, initiator",
        "target MiB",
        "initiator MiB",
        "target's idle polls, % of a core",
        "initiator's idle polls, % of a core",
        "switches per I/O",
        "packets per I/O",
        "retransmits",
    ];
    write_titled_table(page, "Processor, memory and network", &head, second.collect());
    if record.points.iter().any(|point| point.work.is_some()) {
        write_finish_times(page, &all, names);
    }
    page.push_str("</section>");
}

/// Resident memory of an end's processes; `None`: it has none of its own, or had ended.
fn resident_mebibytes(side: Option<&EndUsage>) -> Option<f64> {
    let resident = side?.resident;
    (resident > 0).then_some(resident as f64 / f64::from(1 << 20))
}

fn write_finish_times(page: &mut String, all: &[(&Point, String)], names: &SystemNames) {
    let named = |(point, setting): &(&'_ Point, String)| load_cell(point, setting);
    let all: Vec<(&Point, String, String)> =
        all.iter().map(|one| (one.0, named(one), names.name_of(one.0))).collect();
    // Every run is shown, also one that a rival wins.
    page.push_str("<h3>Time to finish a fixed job, every run</h3>");
    write_table(page, FINISH_COLUMNS, finish_rows(&all).into_iter());
}

fn write_comparison(page: &mut String, record: &Record, names: &SystemNames) {
    let pairs = compared_pairs(record);
    if pairs.is_empty() {
        return;
    }
    page.push_str(
        "<section id=\"improvement\"><h2>Against the slowest</h2><p>Each system's figure over that of the slowest under the same \
         load: 2.00x is twice as much, 0.50x half as much. IOPS and effectiveness: more is better; all others: less is better. In brackets: where the ratio lies with 95 % \
         certainty (bootstrap over rounds, at least five). The last column is how likely such a difference of \
         IOPS comes by chance (Mann-Whitney, two-sided, corrected for all rows by Holm).</p>",
    );
    let settings = ordered_points(record);
    let setting = |point: &Point| {
        let found = settings.iter().find(|(other, _)| std::ptr::eq(*other, point));
        found.map_or(String::new(), |(_, setting)| setting.clone())
    };
    let rows = pairs.iter().map(|(base, point, comparison)| {
        let of = |metric| format_ratio(point.ratio_to(base, metric));
        vec![
            load_cell(point, &setting(point)),
            names.name_of(point),
            names.name_of(base),
            of(Metric::Iops),
            of(Metric::MeanLatency),
            format_ratio(point.percentile_ratio_to(base, 99.0)),
            of(Metric::Jitter),
            of(Metric::Busy(EndKind::Target)),
            of(Metric::Effectiveness(EndKind::Target)),
            of(Metric::CpuPerMillion(EndKind::Target)),
            of(Metric::Finish),
            chance_cell(base, point, comparison),
        ]
    });
    let head = [
        "load",
        "system",
        "against",
        "IOPS",
        "latency",
        "p99",
        "jitter",
        "target busy",
        "effectiveness",
        "target CPU per I/O",
        "time to finish",
        "chance",
    ];
    let mut rows: Vec<Vec<String>> = rows.collect();
    // A column in which nothing is known says nothing.
    let known: Vec<bool> = (0..head.len())
        .map(|at| rows.iter().any(|row| row.get(at).is_some_and(|cell| cell != UNKNOWN_CELL)))
        .collect();
    for row in &mut rows {
        let mut known = known.iter();
        row.retain(|_| known.next().is_some_and(|known| *known));
    }
    let head: Vec<&str> =
        head.iter().zip(&known).filter(|(_, known)| **known).map(|(name, _)| *name).collect();
    write_titled_table(page, "Ratios", &head, rows);
    page.push_str("</section>");
}

/// Cores at or above 90, 20 and 10 percent, as the papers count them.
fn write_busy_cores(page: &mut String, record: &Record, names: &SystemNames) {
    let count = |point: &Point, side: EndSelector| -> Vec<String> {
        let busy: Vec<f64> = busy_percent_per_core(point, side).into_iter().map(|(_, busy)| busy).collect();
        if busy.is_empty() {
            return vec![UNKNOWN_CELL.to_owned(); 4];
        }
        let of = |limit| count_busy_cores(&busy, limit).to_string();
        vec![of(90.0), of(20.0), of(10.0), busy.len().to_string()]
    };
    let all = ordered_points(record);
    let is_many =
        |point: &Point, side: EndSelector| busy_percent_per_core(point, side).len() >= CHARTED_CORES_MIN;
    let rows: Vec<Vec<String>> = all
        .iter()
        .filter(|(point, _)| {
            is_many(point, |run| run.target.as_ref()) || is_many(point, |run| run.initiator.as_ref())
        })
        .map(|(point, setting)| {
            let mut row = vec![load_cell(point, setting), names.name_of(point)];
            row.extend(count(point, |run| run.target.as_ref()));
            row.extend(count(point, |run| run.initiator.as_ref()));
            row
        })
        .filter(|row| row.iter().skip(2).any(|cell| cell != UNKNOWN_CELL))
        .collect();
    if rows.is_empty() {
        return;
    }
    page.push_str(
        "<section id=\"cores\"><h2>Busy cores</h2><p>How many cores were busy for at least 90, 20 and 10 % of the time, and \
         how many each end had. A core near 100 % is where a system stops to scale.</p>",
    );
    let head = [
        "load",
        "system",
        "target ≥ 90 %",
        "≥ 20 %",
        "≥ 10 %",
        "of",
        "initiator ≥ 90 %",
        "≥ 20 %",
        "≥ 10 %",
        "of",
    ];
    write_titled_table(page, "Cores at or above a share of their time", &head, rows);
    page.push_str("</section>");
}

/// Remote less local latency.
fn write_remote_minus_local_latency(page: &mut String, record: &Record, names: &SystemNames) {
    let all = ordered_points(record);
    let local = |point: &Point| {
        let same = |other: &&(&Point, String)| {
            let other = other.0;
            other.protocol == "local"
                && (&other.rw, other.bytes, other.depth) == (&point.rw, point.bytes, point.depth)
                && other.volume_label() == point.volume_label()
        };
        all.iter().find(same).map(|(point, _)| *point)
    };
    let us = |value: Option<f64>| value.map_or(UNKNOWN_CELL.to_owned(), |us| format!("{us:.2}"));
    let rows: Vec<Vec<String>> = all
        .iter()
        .filter(|(point, _)| point.protocol != "local")
        .filter_map(|(point, setting)| {
            let near = local(point)?;
            let of = |percent: Option<f64>, point: &Point| match percent {
                None => point.mean_latency().map(|spread| spread.median),
                Some(percent) => point.percentile(percent),
            };
            let mut row = vec![load_cell(point, setting), names.name_of(point)];
            for percent in [None, Some(50.0), Some(99.0)] {
                let (near, far) = (of(percent, near), of(percent, point));
                row.extend([us(near), us(far), us(near.zip(far).map(|(near, far)| far - near))]);
            }
            Some(row)
        })
        .collect();
    if rows.is_empty() {
        return;
    }
    page.push_str(
        "<section id=\"distance\"><h2>Remote less local latency</h2><p>The same I/O without a network and over it, in µs: \
         what the protocol, the network stack and the waiting of both ends cost.</p>",
    );
    let head = [
        "load",
        "system",
        "mean: local",
        "remote",
        "delta",
        "p50: local",
        "remote",
        "delta",
        "p99: local",
        "remote",
        "delta",
    ];
    write_titled_table(page, "Local and remote latency", &head, rows);
    page.push_str("</section>");
}

fn write_list(page: &mut String, title: &str, id: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = write!(page, "<section id=\"{id}\"><h2>{}</h2>", escape_html(title));
    let all = |page: &mut String| {
        page.push_str("<ul>");
        for line in lines {
            let _ = write!(page, "<li>{}</li>", escape_html(line));
        }
        page.push_str("</ul>");
    };
    if lines.len() <= OPEN_ROWS_MAX {
        all(page)
    } else {
        write_details(page, &format!("{} lines", lines.len()), all)
    }
    page.push_str("</section>");
}

fn write_method(page: &mut String, record: &Record) {
    let reached = record.points.iter().filter(|point| point.steady_after.is_some()).count();
    let steady = if reached == 0 {
        String::new()
    } else {
        format!(" {reached} of {} loads were steady.", record.points.len())
    };
    let [target, initiator] =
        [EndKind::Target, EndKind::Initiator].map(|end| InterruptAccounting::of(record, end));
    let interrupts = match target == initiator {
        true => target.sentence().to_owned(),
        false => format!("Of the target: {} Of the initiator: {}", target.sentence(), initiator.sentence()),
    };
    let _ = write!(
        page,
        "<section id=\"method\"><h2>Method</h2><details><summary>How figures were made and judged</summary><ul>\
         <li>Systems are run in turn, each load several times; figures are medians, with half of the range. Ratios are \
         those of the rounds' means, round by round, with a 95 % interval bootstrapped over rounds; fewer than five rounds \
         have none. Whether two differ is judged over their runs by the exact Mann-Whitney test, corrected for all \
         comparisons of a table, and in the first sentence for all pairs of systems under its load (Holm), and by the \
         interval.</li>\
         <li>A run counts if it lasts for at least 10 s and 50 mean latencies and drains for at most a tenth of its time. Others \
         are smoke tests and win nothing.</li>\
         <li>Latency is measured at the initiator; with a rate, from the moment at which an I/O was meant to start. A \
         percentile is of all runs' latencies together, and is shown only where at least ten I/Os lie beyond it.</li>\
         <li>Busy percent is of all cores that an end may use; where both ends share them, effectiveness counts both. \
         Processor seconds are of the processes (user and system). {interrupts}</li>\
         <li>Effectiveness is IOPS for each percent of an end's cores. IOPS times latency is checked against what was in \
         flight, IOPS times size against the bytes counted, processor time against what there was.</li>\
         <li>Steady is by SNIA PTS: five rounds, range within 20 %, slope within 10 % of the average.{steady}</li>\
         <li>Histograms are kept with 64 buckets for each doubling: a percentile is right within 1.6 %.</li></ul></details></section>"
    );
}

fn write_environment(page: &mut String, record: &Record) {
    page.push_str("<section id=\"environment\"><h2>Environment and commands</h2>");
    for machine in &record.environment {
        write_details(page, &format!("Machine: {}", machine.role), |page| {
            page.push_str("<div class=\"wide\"><table class=\"facts\"><tbody>");
            for (name, value) in &machine.facts {
                let _ =
                    write!(page, "<tr><th>{}</th><td>{}</td></tr>", escape_html(name), escape_html(value));
            }
            page.push_str("</tbody></table></div>");
        });
    }
    for pair in record.negotiated() {
        write_details(page, &format!("Negotiated: {}", pair.name()), |page| {
            page.push_str("<div class=\"wide\"><table class=\"facts\"><tbody>");
            for (name, values) in &pair.terms {
                let value = escape_html(&values.join(", "));
                let _ = write!(page, "<tr><th>{}</th><td>{value}</td></tr>", escape_html(name));
            }
            page.push_str("</tbody></table></div>");
        });
    }
    let mut commands = record.commands.iter();
    if let Some(first) = commands.next() {
        let _ = write!(page, "<h3>This repeats it</h3><pre>{}</pre>", escape_html(first));
    }
    let started: Vec<&str> = commands.map(String::as_str).collect();
    if !started.is_empty() {
        let summary = format!("What it started: {} commands", started.len());
        write_details(page, &summary, |page| {
            let _ = write!(page, "<pre>{}</pre>", escape_html(&started.join("\n")));
        });
    }
    for SystemConfiguration { system, file, text } in &record.configurations {
        let (system, file) = (escape_html(system), escape_html(file));
        let _ = write!(
            page,
            "<details><summary>Configuration of {system}: {file}</summary><pre>{}</pre></details>",
            escape_html(text)
        );
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
        let page = render_html(&record());
        for outside in ["http://", "https://", "<script", "<link", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("&lt;tgt&gt;") && !page.contains("<tgt>"), "names are text");
        assert!(!page.contains("data-points=\"0\""), "no chart is empty");
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        // One before all; five against size; at either end percentiles, shapes and three kinds of bars. Two cores have no
        // picture.
        assert_eq!(page.matches("<svg").count(), 1 + 5 + 2 * 5);
        for shown in ["4.00x", "does not add up", "no tgt &amp; no SPDK"] {
            assert!(page.contains(shown), "{shown}");
        }
    }

    #[test]
    fn pictures_of_cores_begin_with_four_and_wait_until_they_are_asked_for() {
        let mut record = record();
        assert!(
            !render_html(&record).contains("How busy each core")
                && !render_html(&record).contains("id=\"cores\"")
        );
        for side in
            record.points.iter_mut().flat_map(|point| &mut point.runs).filter_map(|run| run.target.as_mut())
        {
            let kinds = side.cores.cores[0].1;
            side.cores.cores.extend([(2, kinds), (3, kinds)]);
        }
        let page = render_html(&record);
        let before = page.split("How busy each core").next().unwrap();
        assert!(page.contains("How busy each core") && page.contains("id=\"cores\""));
        assert!(before.matches("<details>").count() > before.matches("</details>").count());
    }

    /// A page of a sweep was 37,000 pixels long.
    #[test]
    fn what_is_long_waits_until_it_is_asked_for() {
        let mut record = record();
        let more: Vec<Point> = [1500, 9000]
            .iter()
            .flat_map(|mtu| {
                record.points.iter().cloned().map(|mut point| {
                    point.mtu = *mtu;
                    point
                })
            })
            .collect();
        record.points.extend(more);
        let page = render_html(&record);
        let mut seen = String::new();
        for part in page.split("<details>") {
            seen.push_str(
                part.split_once("</details>")
                    .map_or(if seen.is_empty() { part } else { "" }, |(_, rest)| rest),
            );
        }
        // One chart before all, and two of the only direction.
        assert_eq!(seen.matches("<svg").count(), 3);
        assert!(seen.matches("<tr>").count() < 40, "{}", seen.matches("<tr>").count());
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        let mut record = record();
        for run in record.points.iter_mut().flat_map(|point| &mut point.runs) {
            (run.target, run.initiator) = (None, None);
        }
        let page = render_html(&record);
        assert!(page.contains("<td class=\"n\">–</td>") && !page.contains("NaN"));
        assert!(super::super::render_markdown(&record).contains("| – |"));
        assert!(super::super::render_csv(&record).lines().nth(1).unwrap().contains(",,"));
    }

    #[test]
    fn tables_agree_over_all_forms() {
        let record = record();
        let (markdown, csv) = (super::super::render_markdown(&record), super::super::render_csv(&record));
        assert_eq!(csv.lines().count(), 1 + record.points.len());
        let columns = csv.lines().next().unwrap().split(',').count();
        assert!(csv.lines().all(|line| line.split(',').count() == columns));
        assert!(markdown.contains("| <tgt> |") && markdown.contains("4.00"));
    }
}
