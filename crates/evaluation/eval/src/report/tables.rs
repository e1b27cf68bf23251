//! Tables: the same columns in Markdown, CSV and HTML.

use std::fmt::Write;

use super::text::{UNKNOWN_CELL, format_figure, format_size, format_times, smoke_test_notice, with_spread};
use crate::bootstrap::ROUNDS_MIN;
use crate::compare::{self, Comparison, Spread};
use crate::figure_range::format_short;
use crate::record::{EndKind, Metric, Point, Record, SystemConfiguration};

/// The columns of the table of results, with their units.
pub(super) const RESULT_COLUMNS: &[&str] = &[
    "target",
    "initiator",
    "protocol",
    "load",
    "size",
    "in flight",
    "connections",
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
    "target CPU s/M",
    "initiator CPU s/M",
    "target busy %",
    "initiator busy %",
    "effectiveness (target)",
    "limit",
    "of bare %",
    "errors",
];

/// A point's I/Os per second as a part of what the bare responder did, in percent.
pub(super) fn ceiling_share_cell(record: &Record, point: &Point) -> String {
    record.share_of_ceiling(point).map_or(UNKNOWN_CELL.to_owned(), |share| format_figure(share.ratio * 100.0))
}

/// A point's row.
pub(super) fn result_row(record: &Record, point: &Point) -> Vec<String> {
    let us = |percent| point.percentile(percent).map_or(UNKNOWN_CELL.to_owned(), format_figure);
    let label: String = point.labels.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    vec![
        point.target.clone(),
        point.initiator.clone(),
        point.protocol.clone(),
        format!("{}{label}", point.rw),
        format_size(point.bytes),
        point.depth.to_string(),
        point.connections.to_string(),
        with_spread(point.iops(), 1.0),
        with_spread(point.bandwidth(), 1e-6),
        with_spread(point.bandwidth(), 8e-9),
        with_spread(point.mean_latency(), 1.0),
        with_spread(point.jitter(), 1.0),
        us(50.0),
        us(99.0),
        us(99.9),
        us(99.99),
        point.longest_io_us().map_or("–".to_owned(), format_short),
        with_spread(point.cpu_per_million(EndKind::Target), 1.0),
        with_spread(point.cpu_per_million(EndKind::Initiator), 1.0),
        with_spread(point.busy_percent(EndKind::Target), 1.0),
        with_spread(point.busy_percent(EndKind::Initiator), 1.0),
        with_spread(point.effectiveness(EndKind::Target), 1.0),
        point.limit().map_or(UNKNOWN_CELL.to_owned(), |limit| limit.to_string()),
        ceiling_share_cell(record, point),
        point.runs.iter().map(|run| run.errors).sum::<u64>().to_string(),
    ]
}

/// Pairs of points that differ in their systems only, with how the second compares with the first. The
/// first is always of one system: that with the fewest I/Os per second, so that changes read as
/// improvements.
pub(super) fn compared_pairs(record: &Record) -> Vec<(&Point, &Point, Comparison)> {
    let Some(slowest) = slowest_system(record) else { return Vec::new() };
    let mut pairs = Vec::new();
    for point in
        record.points.iter().filter(|point| point.is_networked_system() && system_key(point) != slowest)
    {
        let base = record.points.iter().find(|base| system_key(base) == slowest && is_same_load(base, point));
        if let Some(base) = base
            && let Some(comparison) = point.compared_to(base, Metric::Iops)
        {
            pairs.push((base, point, comparison));
        }
    }
    compare::correct_holm(pairs.iter_mut().map(|(_, _, comparison)| comparison));
    pairs
}

/// How likely a difference comes by chance, in a cell; runs that are too short show none.
pub(super) fn chance_cell(base: &Point, point: &Point, comparison: &Comparison) -> String {
    match base.smoke_test().or(point.smoke_test()) {
        Some(_) => "smoke test".to_owned(),
        None => comparison.p_value_text(),
    }
}

type SystemKey<'a> = (&'a str, &'a str, &'a str);

fn system_key(point: &Point) -> SystemKey<'_> {
    (&point.target, &point.initiator, &point.protocol)
}

fn is_same_load(a: &Point, b: &Point) -> bool {
    (&a.rw, a.bytes, a.depth, a.connections, a.mtu, &a.labels)
        == (&b.rw, b.bytes, b.depth, b.connections, b.mtu, &b.labels)
}

/// The system with the fewest I/Os per second, over the loads that it shares with others.
fn slowest_system(record: &Record) -> Option<SystemKey<'_>> {
    let remote = || record.points.iter().filter(|point| point.is_networked_system());
    let mut systems: Vec<SystemKey<'_>> = Vec::new();
    for point in remote() {
        if !systems.contains(&system_key(point)) {
            systems.push(system_key(point));
        }
    }
    // Ratios to the others under the same load, as logarithms, so that large I/Os count as much as small.
    let rank = |system: SystemKey<'_>| {
        let mut sum = 0.0;
        for point in remote().filter(|point| system_key(point) == system) {
            for other in remote().filter(|other| system_key(other) != system && is_same_load(other, point)) {
                if let (Some(mine), Some(theirs)) = (point.iops(), other.iops()) {
                    sum += (mine.median.max(1.0) / theirs.median.max(1.0)).ln();
                }
            }
        }
        sum
    };
    systems.into_iter().min_by(|a, b| rank(*a).total_cmp(&rank(*b)))
}

/// Every point as a line of comma-separated values, raw: medians without spreads, SI units.
pub fn render_csv(record: &Record) -> String {
    let mut text = String::from(
        "target,initiator,protocol,rw,bytes,depth,connections,mtu,labels,runs,iops,bytes_per_second,mean_us,stddev_us,\
         p50_us,p90_us,p99_us,p999_us,p9999_us,max_us,target_cpu_s_per_million,initiator_cpu_s_per_million,\
         target_busy_percent,initiator_busy_percent,limit,errors,work,work_seconds,io_us,of_bare\n",
    );
    for point in &record.points {
        let labels: Vec<String> =
            point.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let names =
            [&point.target, &point.initiator, &point.protocol, &point.rw].map(|name| csv_quoted(name));
        let counts = [point.bytes, point.depth.into(), point.connections.into(), point.mtu.into()]
            .map(|n| n.to_string());
        let _ = write!(
            text,
            "{},{},{},{}",
            names.join(","),
            counts.join(","),
            csv_quoted(&labels.join(" ")),
            point.runs.len()
        );
        let percentiles = [50.0, 90.0, 99.0, 99.9, 99.99].map(|percent| point.percentile(percent));
        let max = point.longest_io_us();
        let medians = [point.iops(), point.bandwidth(), point.mean_latency(), point.jitter()]
            .map(|spread| spread.map(|spread| spread.median))
            .into_iter()
            .chain(percentiles)
            .chain([max])
            .chain(
                [
                    point.cpu_per_million(EndKind::Target),
                    point.cpu_per_million(EndKind::Initiator),
                    point.busy_percent(EndKind::Target),
                    point.busy_percent(EndKind::Initiator),
                ]
                .map(|spread| spread.map(|spread| spread.median)),
            );
        for figure in medians {
            let _ = match figure {
                Some(figure) => write!(text, ",{figure}"),
                None => write!(text, ","),
            };
        }
        let limit = point.limit().map_or(String::new(), |limit| limit.to_string());
        let _ = write!(text, ",{limit},{}", point.runs.iter().map(|run| run.errors).sum::<u64>());
        let work = [
            point.work.map(|work| work as f64),
            median_of(point.finish_seconds()),
            median_of(point.kernel_io_latency()),
        ];
        let cells: String =
            work.iter().map(|cell| cell.map_or(",".to_owned(), |cell| format!(",{cell}"))).collect();
        let share = record.share_of_ceiling(point).map_or(String::new(), |share| share.ratio.to_string());
        let _ = writeln!(text, "{cells},{share}");
    }
    text
}

fn median_of(spread: Option<Spread>) -> Option<f64> {
    spread.map(|spread| spread.median)
}

/// Columns of [`finish_rows`].
pub(super) const FINISH_COLUMNS: &[&str] = &[
    "load",
    "system",
    "round",
    "seconds",
    "units of work",
    "units per minute",
    "I/O latency µs",
    "of its round",
];

/// Every run of every fixed job, with whether it was the shortest of its round: which system wins is not settled by a
/// median.
pub(super) fn finish_rows(points: &[(&Point, String, String)]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (point, load, system) in points {
        let Some(work) = point.work else { continue };
        for (round, run) in point.runs.iter().enumerate() {
            let others =
                points.iter().filter(|(other, ..)| is_same_load(other, point) && other.work.is_some());
            let times: Vec<f64> =
                others.filter_map(|(other, ..)| Some(other.runs.get(round)?.seconds)).collect();
            let is_shortest = times.iter().all(|seconds| run.seconds <= *seconds);
            let place = match times.len() {
                0 | 1 => "alone",
                _ if is_shortest => "shortest",
                _ => "",
            };
            rows.push(vec![
                load.clone(),
                system.clone(),
                (round + 1).to_string(),
                format_figure(run.seconds),
                format_figure(work as f64),
                format_figure(work as f64 * 60.0 / run.seconds),
                run.io_latency_us.map_or(UNKNOWN_CELL.to_owned(), format_figure),
                place.to_owned(),
            ]);
        }
    }
    rows
}

/// Fixed jobs in Markdown, if there are any.
fn push_finish_table(text: &mut String, record: &Record) {
    let load = |point: &Point| format!("{}{}", point.rw, link_suffix(point));
    let all: Vec<(&Point, String, String)> =
        record.points.iter().map(|point| (point, load(point), point.system_name())).collect();
    let rows = finish_rows(&all);
    if !rows.is_empty() {
        let _ = writeln!(text, "\n## Time to finish a fixed job, every run\n");
        let _ =
            writeln!(text, "| {} |\n|{}", FINISH_COLUMNS.join(" | "), "---|".repeat(FINISH_COLUMNS.len()));
        for row in rows {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
    }
}

/// RFC 4180.
fn csv_quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Of [`RESULT_COLUMNS`], the one that names the load.
const LOAD_COLUMN: usize = 3;

/// The link that a load went by, if it was not loopback.
fn link_suffix(point: &Point) -> String {
    if point.link_name() == "loopback" { String::new() } else { format!(", {}", point.link_name()) }
}

/// The record as Markdown.
pub fn render_markdown(record: &Record) -> String {
    let mut text = format!(
        "# {}\n\nPreset `{}`, {}, {:.0} s.\n\n",
        record.title, record.preset, record.started, record.seconds
    );
    if let Some(smoke) = smoke_test_notice(record) {
        let _ = writeln!(text, "**Smoke test.** {smoke}\n");
    }
    // The first says how to have it again; what it started stands at the end.
    let mut commands = record.commands.iter();
    if let Some(first) = commands.next() {
        let _ = writeln!(text, "    {first}\n");
    }
    let _ = writeln!(text, "| {} |\n|{}", RESULT_COLUMNS.join(" | "), "---|".repeat(RESULT_COLUMNS.len()));
    for point in &record.points {
        let mut cells: Vec<String> =
            result_row(record, point).into_iter().map(|cell| cell.replace('|', "\\|")).collect();
        if let Some(load) = cells.get_mut(LOAD_COLUMN) {
            *load += &link_suffix(point);
        }
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    push_finish_table(&mut text, record);
    let pairs = compared_pairs(record);
    if !pairs.is_empty() {
        text.push_str("\n## Compared\n\n| system | against | load | size | IOPS ratio | 95 % interval | by chance |\n|---|---|---|---|---|---|---|\n");
        for (base, point, comparison) in pairs {
            let (system, against) = (point.system_name(), base.system_name());
            let _ = writeln!(
                text,
                "| {system} | {against} | {}{} | {} | {} | {} | {} |",
                point.rw,
                link_suffix(point),
                format_size(point.bytes),
                format_times(comparison.ratio.ratio),
                interval_text(&comparison),
                chance_cell(base, point, &comparison)
            );
        }
        let _ = writeln!(
            text,
            "\nIntervals are bootstrapped over rounds, at least {ROUNDS_MIN}. Chances are corrected for all \
             rows (Holm)."
        );
    }
    push_section(&mut text, "Notes", &record.notes);
    push_section(&mut text, "What does not add up", &record.inconsistencies());
    for machine in &record.environment {
        let facts: Vec<String> =
            machine.facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        push_section(&mut text, &format!("Machine ({})", machine.role), &facts);
    }
    for pair in record.negotiated() {
        push_section(&mut text, &format!("Negotiated ({})", pair.name()), &pair.lines().collect::<Vec<_>>());
    }
    if commands.len() > 0 {
        text.push_str("\n## Commands\n\n");
        for command in commands {
            let _ = writeln!(text, "    {command}");
        }
    }
    for SystemConfiguration { system, file, text: lines } in &record.configurations {
        let _ = writeln!(text, "\n## Configuration of {system}: {file}\n");
        for line in lines.lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

fn interval_text(comparison: &Comparison) -> String {
    let interval = comparison.ratio.interval;
    interval.map_or(UNKNOWN_CELL.to_owned(), |(low, high)| {
        format!("{} to {}", format_times(low), format_times(high))
    })
}

fn push_section(text: &mut String, title: &str, lines: &[String]) {
    if !lines.is_empty() {
        let _ = writeln!(text, "\n## {title}\n");
        for line in lines {
            let _ = writeln!(text, "- {line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::point;

    #[test]
    fn links_are_told_apart_and_commands_stand_behind_the_figures() {
        let mut far = point("tgt", "randread", 4096, 10_000);
        far.mtu = 9000;
        let points = vec![point("tgt", "randread", 4096, 10_000), far];
        let commands = ["blockwire eval run x", "tgtd -f"].map(str::to_owned).to_vec();
        let text = render_markdown(&Record { points, commands, ..Record::default() });
        assert_eq!(RESULT_COLUMNS[LOAD_COLUMN], "load");
        assert_eq!(text.matches("| randread, MTU 9000 |").count(), 1, "{text}");
        assert_eq!(text.matches("| randread |").count(), 1, "{text}");
        let places = ["eval run x", "| target |", "## Commands", "tgtd -f"].map(|what| text.find(what));
        assert!(places.is_sorted() && places[0].is_some(), "{text}");
    }

    /// A ratio of 15 was `15.47` here and `15.5x` on the page.
    #[test]
    fn ratios_have_the_form_of_the_page() {
        let points = [("blockwire", 20_000), ("tgt", 10_000)]
            .map(|(target, iops)| point(target, "randread", 4096, iops))
            .to_vec();
        let text = render_markdown(&Record { points, ..Record::default() });
        assert!(text.contains("| 4K | 2.00x | – |"), "{text}");
    }

    /// The median hid the round that the other system won.
    #[test]
    fn every_run_of_a_fixed_job_is_shown() {
        let mut jobs =
            [("blockwire", [20.0, 30.0, 20.0]), ("tgt", [25.0, 25.0, 25.0])].map(|(target, seconds)| {
                let mut job = point(target, "oltp", 0, 10_000);
                job.work = Some(5000);
                job.runs.iter_mut().zip(seconds).for_each(|(run, seconds)| run.seconds = seconds);
                job
            });
        jobs[0].runs[0].io_latency_us = Some(250.0);
        let text = render_markdown(&Record { points: jobs.to_vec(), ..Record::default() });
        let system = |at: usize| jobs[at].system_name();
        for row in [
            format!("| oltp | {} | 1 | 20 | 5,000 | 15,000 | 250 | shortest |", system(0)),
            format!("| oltp | {} | 2 | 30 | 5,000 | 10,000 | – |  |", system(0)),
            format!("| oltp | {} | 2 | 25 | 5,000 | 12,000 | – | shortest |", system(1)),
        ] {
            assert!(text.contains(&row), "{row}: {text}");
        }
        assert_eq!(text.matches("| shortest |").count(), 3, "{text}");
    }

    #[test]
    fn a_fixed_job_is_told_by_its_time() {
        let mut job = point("tgt", "oltp", 0, 10_000);
        job.work = Some(5000);
        job.runs.iter_mut().for_each(|run| run.io_latency_us = Some(250.0));
        let record =
            Record { points: vec![job, point("tgt", "randread", 4096, 10_000)], ..Record::default() };
        let csv = render_csv(&record);
        let rows: Vec<&str> = csv.lines().collect();
        let columns = rows[0].split(',').count();
        assert!(rows[1].ends_with(",0,5000,1,250,") && rows[2].ends_with(",0,,,,"), "{csv}");
        assert!(rows.iter().all(|row| row.split(',').count() == columns), "{csv}");
    }
}
