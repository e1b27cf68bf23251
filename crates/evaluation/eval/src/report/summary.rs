//! The summary: the results as sentences.
//!
//! Invariant: a sentence that compares systems says so if their runs do not distinguish them.

use std::fmt::Write;

use super::groups::{LoadGroup, SystemNames, load_groups, load_kind_name};
use super::headline::load_text;
use super::markup::{escape_html, write_details};
use super::text::{format_figure, format_ratio, format_size, format_time, format_times};
use crate::bootstrap::Ratio;
use crate::compare::{self, Comparison, Spread};
use crate::record::{EndKind, Metric, Point, Record};

/// Settings up to which each has sentences of its own; beyond, the first of each kind of load speaks.
const SUMMARISED_GROUPS_MAX: usize = 4;

/// The summary's section: the best figures, and what makes them less sure; load by load when it is asked for.
pub(super) fn write_summary(page: &mut String, record: &Record, names: &SystemNames) {
    page.push_str("<section id=\"summary\"><h2>Summary</h2>");
    let _ = write!(page, "<p>{}</p>", escape_html(&method_sentence(record, names)));
    write_tiles(page, record, names);
    write_cautions(page, record);
    let groups = load_groups(record);
    let mut said: Vec<&str> = Vec::new();
    let mut findings = Vec::new();
    for group in &groups {
        if groups.len() > SUMMARISED_GROUPS_MAX && said.contains(&group.rw) {
            continue;
        }
        said.push(group.rw);
        findings.extend(
            group
                .smallest_and_largest()
                .into_iter()
                .filter_map(|bytes| LoadFinding::of(record, group, bytes)),
        );
    }
    compare::correct_holm(
        findings.iter_mut().flat_map(|one| &mut one.others).map(|(_, comparison)| comparison),
    );
    write_details(
        page,
        &format!("Load by load: {}", counted_noun(findings.len(), "load", "loads")),
        |page| {
            page.push_str("<ul class=\"findings\">");
            for finding in &findings {
                let _ = write!(page, "<li>{}</li>", finding.sentence(names));
            }
            if groups.len() > SUMMARISED_GROUPS_MAX {
                page.push_str("<li class=\"dim\">Other settings are in the charts and tables below.</li>");
            }
            page.push_str("</ul>");
        },
    );
    page.push_str("</section>");
}

fn counted_noun(number: usize, one: &str, many: &str) -> String {
    if number == 1 { format!("one {one}") } else { format!("{number} {many}") }
}

fn method_sentence(record: &Record, names: &SystemNames) -> String {
    let mut kinds: Vec<&str> = Vec::new();
    for point in &record.points {
        if !kinds.contains(&point.rw.as_str()) {
            kinds.push(&point.rw);
        }
    }
    let kinds: Vec<String> = kinds.iter().map(|rw| load_kind_name(rw).to_lowercase()).collect();
    let sizes = || record.points.iter().map(|point| point.bytes);
    let sizes = match (sizes().min(), sizes().max()) {
        (Some(least), Some(most)) if least != most => {
            format!("of {} to {}", format_size(least), format_size(most))
        }
        (Some(least), _) => format!("of {}", format_size(least)),
        _ => String::new(),
    };
    let runs = record.points.iter().map(|point| point.runs.len()).max().unwrap_or(0);
    let cores = record.environment.iter().flat_map(|machine| &machine.facts);
    let cores = cores.filter(|(name, _)| name == "cores").map(|(_, value)| value.as_str()).next();
    let on = match record.environment.len() {
        0 => String::new(),
        1 => format!(" on one machine{}", cores.map(|n| format!(" with {n} cores")).unwrap_or_default()),
        more => format!(" on {more} machines"),
    };
    let common = names.common_parts(record);
    let common = if common.is_empty() { String::new() } else { format!(" {}", common.join(" ")) };
    format!(
        "{} ({}){} carried {} {sizes}{common}{on}, {} of each load, in {}.",
        counted_noun(names.list().len(), "system", "systems"),
        names.list().join("; "),
        names.legend(),
        kinds.join(" and "),
        counted_noun(runs, "run", "runs"),
        format_time(record.seconds)
    )
}

/// A figure of a point with the point itself.
type BestPoint<'a> = Option<(f64, &'a Point)>;

type ValueFormat = fn(f64) -> String;

/// The best figures of all, as a manager wants them first.
fn write_tiles(page: &mut String, record: &Record, names: &SystemNames) {
    let counts = |point: &&Point| point.is_networked_system() && point.smoke_test().is_none();
    let remote = || record.points.iter().filter(counts);
    let median = |spread: Option<Spread>| spread.map(|spread| spread.median);
    let most = |of: &dyn Fn(&Point) -> Option<f64>| -> BestPoint<'_> {
        remote().filter_map(|point| Some((of(point)?, point))).max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let least = |of: &dyn Fn(&Point) -> Option<f64>| -> BestPoint<'_> {
        remote().filter_map(|point| Some((of(point)?, point))).min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let tiles: [(&str, BestPoint<'_>, ValueFormat); 4] = [
        ("Most I/Os per second", most(&|point| median(point.iops())), format_figure),
        ("Most throughput", most(&|point| median(point.bandwidth())), |rate| {
            format!("{} Gb/s", format_figure(rate * 8e-9))
        }),
        ("Shortest 99th percentile", least(&|point| point.percentile(99.0)), |us| {
            format!("{} µs", format_figure(us))
        }),
        (
            "Least target processor",
            least(&|point| median(point.cpu_per_million(EndKind::Target))),
            |seconds| format!("{} s per million I/Os", format_figure(seconds)),
        ),
    ];
    if tiles.iter().all(|(_, best, _)| best.is_none()) {
        return;
    }
    page.push_str("<div class=\"tiles\">");
    for (what, best, shown) in tiles {
        let Some((value, point)) = best else { continue };
        let (number, unit) = shown(value).split_once(' ').map_or_else(
            || (shown(value), String::new()),
            |(number, unit)| (number.to_owned(), unit.to_owned()),
        );
        let _ = write!(
            page,
            "<div class=\"tile\"><div class=\"what\">{what}</div><div class=\"number\">{number}<small> {unit}</small></div>\
             <div class=\"who\">{}<br>{}</div></div>",
            escape_html(&names.name_of(point)),
            escape_html(&load_text(point))
        );
    }
    page.push_str("</div>");
}

/// One load: the best of the systems that carried it, and the next ones.
struct LoadFinding<'a> {
    group: &'a LoadGroup<'a>,
    bytes: u64,
    best: &'a Point,
    /// Up to three others, each with the best over it.
    others: Vec<(&'a Point, Comparison)>,
    local: Option<&'a Point>,
    /// What the best does of what the bare responder does.
    of_ceiling: Option<Ratio>,
}

impl<'a> LoadFinding<'a> {
    fn of(record: &Record, group: &'a LoadGroup<'a>, bytes: u64) -> Option<LoadFinding<'a>> {
        let mut points: Vec<(&Point, f64)> =
            group.points_of_size(bytes).filter_map(|point| Some((point, point.iops()?.median))).collect();
        points.retain(|(point, _)| !point.is_ceiling());
        points.sort_by(|a, b| b.1.total_cmp(&a.1));
        let (local, remote): (Vec<&Point>, Vec<&Point>) =
            points.into_iter().map(|(point, _)| point).partition(|point| point.protocol == "local");
        let (&best, others) = remote.split_first()?;
        let others =
            others.iter().take(3).filter_map(|other| Some((*other, best.compared_to(other, Metric::Iops)?)));
        Some(LoadFinding {
            group,
            bytes,
            best,
            others: others.collect(),
            local: local.first().copied(),
            of_ceiling: record.share_of_ceiling(best),
        })
    }

    /// As HTML.
    fn sentence(&self, names: &SystemNames) -> String {
        let best = self.best;
        let name = escape_html(&names.name_of(best));
        let mut text = format!("<b>{}, {}:</b> ", escape_html(&self.group.name()), format_size(self.bytes));
        if let Some(finish) = best.finish_seconds() {
            let work = best.work.unwrap_or(0);
            let _ = write!(text, "{name} took {} for {work} units of work", format_time(finish.median));
        } else {
            let rate = best.iops().map_or(0.0, |rate| rate.median);
            let gigabits = best.bandwidth().map_or(0.0, |rate| rate.median * 8e-9);
            let _ = write!(
                text,
                "{name} did {} I/Os per second ({} Gb/s)",
                format_figure(rate),
                format_figure(gigabits)
            );
        }
        if let (Some(mean), Some(tail)) = (best.mean_latency(), best.percentile(99.0)) {
            let (mean, tail) = (format_figure(mean.median), format_figure(tail));
            let _ = write!(text, ", each in {mean} µs on average and 99 of 100 within {tail} µs");
        }
        text.push('.');
        for (other, comparison) in &self.others {
            let _ = write!(text, " {}", comparison_sentence(best, other, comparison, names));
        }
        if let Some(Ratio { ratio, interval }) = self.of_ceiling {
            let within = interval.map_or(String::new(), |(low, high)| {
                format!(" (95 % interval {} to {})", format_times(low), format_times(high))
            });
            let _ = write!(text, " It does {} of what the bare responder does{within}.", format_times(ratio));
        }
        if let Some(local) = self.local
            && let (Some(near), Some(far)) = (local.mean_latency(), best.mean_latency())
        {
            let more = format_figure(far.median - near.median);
            let _ = write!(text, " That is {more} µs more than the same I/O without a network.");
        }
        text
    }
}

/// The best system against another.
fn comparison_sentence(best: &Point, other: &Point, comparison: &Comparison, names: &SystemNames) -> String {
    let other_name = escape_html(&names.name_of(other));
    if best.smoke_test().or(other.smoke_test()).is_some() {
        return format!("A smoke test does not tell it from {other_name}.");
    }
    let Ratio { ratio, interval } = comparison.ratio;
    if comparison.has_too_few_runs() {
        let (count, more) = (best.runs.len(), ratio_phrase(ratio));
        let runs = if count == 1 { "one run".to_owned() } else { format!("{count} runs") };
        return format!(
            "In {runs} of each, that is {more} {other_name}: too few rounds to tell it from chance."
        );
    }
    if !comparison.is_significant() {
        return format!("{other_name} did about as many: the runs do not tell the two apart.");
    }
    let (low, high) = interval.unwrap_or((ratio, ratio));
    let (low, high) = (format_times(low), format_times(high));
    let mut text = format!("That is {} {other_name} (95 % interval {low} to {high})", ratio_phrase(ratio));
    let mut also = Vec::new();
    if let Some(ratio) = best.ratio_to(other, Metric::MeanLatency) {
        also.push(format!("{} the latency", format_ratio(Some(ratio))));
    }
    if let Some(ratio) = best.ratio_to(other, Metric::CpuPerMillion(EndKind::Target)) {
        also.push(format!("{} the target's processor time for each I/O", format_ratio(Some(ratio))));
    }
    if !also.is_empty() {
        let _ = write!(text, ", with {}", also.join(" and "));
    }
    text.push('.');
    text
}

/// `2.40x as many as`.
fn ratio_phrase(ratio: f64) -> String {
    format!("{} as many as", format_times(ratio))
}

/// What makes the figures less sure.
fn write_cautions(page: &mut String, record: &Record) {
    let mut said = Vec::new();
    let noise = record.points.iter().map(Point::noise);
    let (range, steal) = noise.fold((0f64, 0f64), |a, b| (a.0.max(b.0), a.1.max(b.1)));
    if range > 0.10 || steal > 0.01 {
        said.push(format!(
            "The machine was noisy: runs of one load differed by up to {:.0} %, and up to {:.1} % of the processors' time \
             was taken from it. Trust ratios more than figures.",
            range * 100.0,
            steal * 100.0
        ));
    }
    let unsteady =
        record.points.iter().filter(|point| point.runs.len() >= 5 && point.steady_after.is_none()).count();
    if unsteady > 0 {
        said.push(format!(
            "{unsteady} of {} loads did not become steady by the rule of the method below.",
            record.points.len()
        ));
    }
    if record.is_single_machine() {
        said.push(
            "Target and initiator ran on the same machine: they share its memory, and no network card was in the way. \
             Figures between machines will differ."
                .to_owned(),
        );
    }
    let discords = record.inconsistencies().len();
    if discords > 0 {
        said.push(format!(
            "{} not add up; they are listed below.",
            if discords == 1 { "One figure does".to_owned() } else { format!("{discords} figures do") }
        ));
    }
    let errors: u64 = record.points.iter().flat_map(|point| &point.runs).map(|run| run.errors).sum();
    if errors > 0 {
        said.push(format!("{errors} I/Os failed."));
    }
    for caution in said {
        let _ = write!(page, "<p class=\"warn\">{}</p>", escape_html(&caution));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{five, point};

    fn summary_of(points: Vec<Point>) -> String {
        let record = Record { points, ..Record::default() };
        let mut page = String::new();
        write_summary(&mut page, &record, &SystemNames::of(&record));
        page
    }

    #[test]
    fn the_faster_is_said_to_be_faster() {
        let page = summary_of(vec![
            five("blockwire", "randread", 4096, 30_000),
            five("tgt", "randread", 4096, 10_000),
        ]);
        assert!(page.contains("blockwire did 30,000 I/Os per second"), "{page}");
        let said = "That is 3.00x as many as tgt (95 % interval 3.00x to 3.00x), with 0.33x (0.33x to 0.33x) the latency and ";
        assert!(page.contains(said), "{page}");
        assert!(page.contains("Most I/Os per second"), "{page}");
        // Each of the best figures says on which link, of which size, in which direction.
        let tiles = page.matches("class=\"tile\"").count();
        assert!(
            tiles > 2 && page.matches("<br>random reads of 4K, loopback</div>").count() == tiles,
            "{page}"
        );
    }

    #[test]
    fn few_rounds_are_no_proof() {
        for (count, words) in [(1, "one run"), (2, "2 runs"), (4, "4 runs")] {
            let mut points =
                vec![five("blockwire", "randread", 4096, 30_000), five("tgt", "randread", 4096, 10_000)];
            points.iter_mut().for_each(|point| point.runs.truncate(count));
            let page = summary_of(points);
            let said = format!(
                "In {words} of each, that is 3.00x as many as tgt: too few rounds to tell it from chance."
            );
            assert!(page.contains(&said), "{page}");
        }
    }

    #[test]
    fn a_smoke_test_wins_nothing() {
        let page = summary_of(vec![
            point("blockwire", "randread", 4096, 30_000),
            point("tgt", "randread", 4096, 10_000),
        ]);
        assert!(page.contains("A smoke test does not tell it from tgt."), "{page}");
        assert!(!page.contains("x as many") && !page.contains("Most I/Os per second"), "{page}");
    }

    #[test]
    fn what_runs_do_not_tell_apart_is_not_told_apart() {
        let page = summary_of(vec![
            five("blockwire", "randread", 4096, 10_010),
            five("tgt", "randread", 4096, 10_000),
        ]);
        assert!(page.contains("tgt did about as many: the runs do not tell the two apart"), "{page}");
    }
}
