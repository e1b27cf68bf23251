//! The first screen: one sentence, one chart, and what a stranger asks first.
//!
//! Invariant: what a record does not tell is said to be not recorded; nothing is guessed.

use std::fmt::Write;

use super::chart::{Bar, bar_chart};
use super::groups::{SystemNames, protocol_label};
use super::headline::{Headline, HeadlineMeasure, RivalSystem, load_text};
use super::limit::{ReportedLimit, limit_text};
use super::markup::escape_html;
use super::paper::{inconsistency_text, is_different_figure, not_comparable_text, printed_figure_text};
use super::text::{NOT_RECORDED, format_figure, format_time, format_times, smoke_test_notice};
use crate::import::IMPORTED;
use crate::record::{Machine, Point, Record};

/// The first screen.
pub(super) fn write_answer(page: &mut String, record: &Record, names: &SystemNames) {
    page.push_str("<section id=\"answer\" class=\"first\">");
    let Some(headline) = Headline::of(record) else {
        page.push_str("<p class=\"lead\">Nothing was measured over a network.</p></section>");
        return;
    };
    let _ =
        write!(page, "<p class=\"lead\">{}</p>", escape_html(&headline_sentence(record, &headline, names)));
    if let Some(smoke) = smoke_test_notice(record) {
        let _ = write!(page, "<p class=\"warn\"><b>Smoke test.</b> {}</p>", escape_html(&smoke));
    }
    write_headline_chart(page, &headline, names);
    write_questions(page, record, &headline, names);
    page.push_str("</section>");
}

/// One sentence: the ratio, its interval, what limited, the paper's figure, length and rounds.
fn headline_sentence(record: &Record, one: &Headline<'_>, names: &SystemNames) -> String {
    let load = load_text(one.best);
    let (rounds, seconds) = one.rounds();
    let rounds = if rounds == 1 { "one round".to_owned() } else { format!("{rounds} rounds") };
    let rounds = format!("{rounds} of {}", format_time(seconds));
    let what = match one.measure {
        // Their units say it.
        HeadlineMeasure::PerCore | HeadlineMeasure::Iops => String::new(),
        HeadlineMeasure::Latency | HeadlineMeasure::Jitter | HeadlineMeasure::Finish => {
            format!(", {}", one.measure.name_and_unit().0)
        }
    };
    let each = format!("Under {load}{what}: {}", measured_medians(one, names).join(", "));
    let mut text = match &one.rival {
        None => format!("{each} ({rounds}), with nothing beside it"),
        Some(_) if one.smoke_test_reason().is_some() => {
            format!("{each} ({rounds}); of a smoke test no ratio is claimed")
        }
        Some(RivalSystem { held: Err(why), .. }) => {
            format!("{each} ({rounds}); the two are not compared, as {why}")
        }
        Some(RivalSystem { point, held: Ok(held) }) => {
            let against = one
                .measure
                .comparison_text(&format_times(held.comparison.ratio.ratio), &names.name_of(point));
            let [mine, theirs] = [held.means.0, held.means.1].map(|mean| one.measure.with_unit(mean));
            let is_proven = if one.doubt_reason().is_some() { "not proven" } else { "proven" };
            format!(
                "Under {load}, {} {against}: on average {mine} against {theirs} ({}; {rounds}; {is_proven})",
                names.name_of(one.best),
                interval_text(one)
            )
        }
    };
    let _ = write!(text, "; the limit: {}", ReportedLimit::of(one.best).as_text());
    if let Some(paper) = printed_figure_text(record) {
        let which = if is_different_figure(record, one) { "of another figure, " } else { "" };
        let _ = write!(text, "; {which}the paper prints {paper}");
    }
    text.push('.');
    text
}

/// The best system and its rival, each with its median.
fn measured_medians(one: &Headline<'_>, names: &SystemNames) -> Vec<String> {
    let value = |point: &Point| one.measure.value_text(point).unwrap_or_else(|| NOT_RECORDED.to_owned());
    one.best_and_rival().map(|point| format!("{} {}", names.name_of(point), value(point))).collect()
}

fn interval_text(one: &Headline<'_>) -> String {
    let held = one.rival.as_ref().and_then(|rival| rival.held.as_ref().ok());
    match held.map(|held| held.comparison.ratio.interval) {
        Some(Some((low, high))) => format!("95 % interval {} to {}", format_times(low), format_times(high)),
        Some(None) => "no 95 % interval, which takes five rounds".to_owned(),
        None => "no 95 % interval".to_owned(),
    }
}

/// All systems under that load.
fn write_headline_chart(page: &mut String, one: &Headline<'_>, names: &SystemNames) {
    let (what, unit) = one.measure.name_and_unit();
    let shown = one.all.iter().filter_map(|point| {
        let spread = one.measure.spread(point)?;
        let name = names.name_of(point);
        let colour = names.colour(&name);
        Some(Bar { name, colour, value: spread.median, low: spread.min, high: spread.max })
    });
    let shown: Vec<Bar> = shown.collect();
    if shown.is_empty() {
        return;
    }
    let better = if one.measure.is_more_better() { "more is better" } else { "less is better" };
    let caption = format!("{what}, {} ({better}; median, lowest and highest round)", load_text(one.best));
    let svg = bar_chart(&caption, unit, &shown);
    let _ = write!(
        page,
        "<figure class=\"headline\"><figcaption>{}</figcaption>{svg}</figure>",
        escape_html(&caption)
    );
}

/// What a stranger asks, each with its answer.
fn write_questions(page: &mut String, record: &Record, headline: &Headline<'_>, names: &SystemNames) {
    let (asked, said) = per_core_answer(record, names);
    let rows = [
        (asked.as_str(), said),
        ("How sure", confidence_answer(record, headline)),
        ("Hardware and kernel", hardware_answer(record)),
        ("Limit", limits_answer(headline, names)),
        ("The paper's figure", papers_answer(record, headline)),
        ("Not comparable", not_comparable_text(record)),
        ("99th percentile", percentiles_answer(headline, names)),
        ("Steady", steadiness_answer(record)),
        ("To repeat", repeat_answer(record)),
        ("Set up alike", comparability_answer(record, headline)),
    ];
    page.push_str("<dl class=\"questions\">");
    for (what, said) in rows {
        let _ = write!(page, "<div><dt>{}</dt><dd>{}</dd></div>", escape_html(what), escape_html(&said));
    }
    page.push_str("</dl>");
}

fn papers_answer(record: &Record, headline: &Headline<'_>) -> String {
    let Some(printed) = printed_figure_text(record) else { return "no paper stands beside this".to_owned() };
    let slip =
        inconsistency_text(record).map_or(String::new(), |slip| format!("; that does not add up: {slip}"));
    let another =
        if is_different_figure(record, headline) { "; the first sentence is about another" } else { "" };
    format!("{printed}{another}{slip}")
}

/// Who does most per processor, asked of the load that there is, and the answer.
fn per_core_answer(record: &Record, names: &SystemNames) -> (String, String) {
    let asked = "Who wins per CPU";
    let Some(one) = Headline::for_measure(record, HeadlineMeasure::PerCore) else {
        return (asked.to_owned(), format!("processor time of the target: {NOT_RECORDED}"));
    };
    let each = measured_medians(&one, names).join(", ");
    let said = match (&one.rival, one.smoke_test_reason()) {
        (None, _) => format!("{each}, alone"),
        (Some(_), Some(smoke)) => format!("not told by {smoke}: {each}"),
        (Some(RivalSystem { held: Err(why), .. }), None) => format!("{each}; not compared: {why}"),
        (Some(RivalSystem { point, held: Ok(held) }), None) => {
            let doubt = one.doubt_reason().map_or(String::new(), |doubt| format!("; not proven, {doubt}"));
            format!(
                "{}: on average {}, {} {}'s ({}){doubt}",
                names.name_of(one.best),
                one.measure.with_unit(held.means.0),
                format_times(held.comparison.ratio.ratio),
                names.name_of(point),
                interval_text(&one)
            )
        }
    };
    (format!("{asked}: {}", load_text(one.best)), said)
}

fn confidence_answer(record: &Record, headline: &Headline<'_>) -> String {
    let (rounds, seconds) = headline.rounds();
    let rounds = if rounds == 1 { "one round".to_owned() } else { format!("{rounds} rounds") };
    let doubt =
        headline.doubt_reason().map_or_else(|| "proven".to_owned(), |doubt| format!("not proven, {doubt}"));
    let noise = record.points.iter().map(|point| point.noise().0).fold(0.0, f64::max);
    format!(
        "{doubt}; {}; {rounds} of {}; rounds of one load differ by up to {:.0} %",
        interval_text(headline),
        format_time(seconds),
        noise * 100.0
    )
}

/// A fact of the first machine that has it.
fn machine_fact<'a>(record: &'a Record, names: &[&str]) -> Option<&'a str> {
    let facts = || record.environment.iter().flat_map(|machine| &machine.facts);
    names.iter().find_map(|name| facts().find(|(known, _)| known == name)).map(|(_, value)| value.as_str())
}

/// A fact of all machines: once if it is the same of all, else each with its role; `None`: no machine has it.
fn fact_of_each_machine(record: &Record, names: &[&str]) -> Option<String> {
    let of = |machine: &'_ Machine| {
        let facts = || machine.facts.iter();
        let fact = names.iter().find_map(|name| facts().find(|(known, _)| known == name));
        fact.map(|(_, value)| value.clone())
    };
    let all: Vec<Option<String>> = record.environment.iter().map(of).collect();
    let first = all.iter().flatten().next()?;
    if all.iter().all(|one| one.as_ref() == Some(first)) {
        return Some(first.clone());
    }
    let roles = record.environment.iter().map(|machine| machine.role.as_str());
    let each =
        roles.zip(&all).map(|(role, one)| format!("{role} {}", one.as_deref().unwrap_or(NOT_RECORDED)));
    Some(each.collect::<Vec<_>>().join(", "))
}

fn hardware_answer(record: &Record) -> String {
    let of = |what: &str, names: &[&str]| {
        format!("{what} {}", fact_of_each_machine(record, names).unwrap_or_else(|| NOT_RECORDED.to_owned()))
    };
    let machines = match record.environment.len() {
        0 => "machines not recorded".to_owned(),
        _ if record.is_single_machine() => "both ends on one machine".to_owned(),
        many => format!("{many} machines"),
    };
    [
        of("processor", &["processor"]),
        of("cores", &["cores"]),
        of("kernel", &["kernel"]),
        machines,
        network_cards(record),
        of("mitigations", &["mitigations"]),
        of("governor", &["governor", "frequency governor"]),
        of("congestion control", &["congestion control"]),
    ]
    .join("; ")
}

/// Records name each card: `NIC eth0`.
fn network_cards(record: &Record) -> String {
    let facts = record.environment.iter().flat_map(|machine| &machine.facts);
    let cards = facts.filter_map(|(name, value)| Some(format!("{}: {value}", name.strip_prefix("NIC ")?)));
    let cards: Vec<String> = cards.collect();
    let cards = if cards.is_empty() { NOT_RECORDED.to_owned() } else { cards.join(", ") };
    format!("network cards {cards}")
}

fn limits_answer(headline: &Headline<'_>, names: &SystemNames) -> String {
    let mut all: Vec<String> = headline
        .best_and_rival()
        .map(|point| format!("{}: {}", names.name_of(point), limit_text(point)))
        .collect();
    if let Some(ceiling) = headline.ceiling.and_then(|point| headline.measure.value_text(point)) {
        all.push(format!("a responder without a protocol: {ceiling}"));
    }
    all.join("; ")
}

fn percentiles_answer(headline: &Headline<'_>, names: &SystemNames) -> String {
    let of = |point: &Point| {
        point.percentile(99.0).map_or(NOT_RECORDED.to_owned(), |us| format!("{} µs", format_figure(us)))
    };
    let all: Vec<String> =
        headline.best_and_rival().map(|point| format!("{}: {}", names.name_of(point), of(point))).collect();
    format!("{} ({})", all.join("; "), load_text(headline.best))
}

fn steadiness_answer(record: &Record) -> String {
    let looked =
        record.points.iter().filter(|point| point.runs.len() >= crate::steady::WINDOW_ROUNDS).count();
    let reached = record.points.iter().filter(|point| point.steady_after.is_some()).count();
    match looked {
        0 => format!("{NOT_RECORDED}: it takes {} rounds of a load", crate::steady::WINDOW_ROUNDS),
        _ => format!("{reached} of {} loads, over rounds, by SNIA's rule", record.points.len()),
    }
}

fn repeat_answer(record: &Record) -> String {
    let first = record.commands.first().map_or(NOT_RECORDED, String::as_str);
    let commit = machine_fact(record, &["commit"]).unwrap_or(NOT_RECORDED);
    let flags = machine_fact(record, &["build flags", "build"]).unwrap_or(NOT_RECORDED);
    format!("{first} (commit: {commit}; build flags: {flags}; all commands are at the end)")
}

/// How each target keeps its volumes where this program started it: then the record has its version.
fn volume_storage(target: &str) -> &'static str {
    match target {
        "blockwire" => "volumes in its own memory",
        "tgt" => "volumes in files in memory, by its threads",
        "istgt" => "volumes in files in memory",
        "lio" | "nvmet" => "volumes in ramdisks of its kernel",
        "spdk-iscsi" | "spdk-nvmf" => "volumes in its own memory; it polls, without huge pages",
        "bare" => "volumes in its own memory, without a protocol",
        _ => "volumes not recorded",
    }
}

fn comparability_answer(record: &Record, headline: &Headline<'_>) -> String {
    let mut targets: Vec<&Point> = Vec::new();
    for point in &headline.all {
        if !targets.iter().any(|known| known.target == point.target) {
            targets.push(point);
        }
    }
    // What another tool's file holds was not started by this program, whatever was beside it.
    let is_imported = record.notes.iter().any(|note| note.starts_with(IMPORTED));
    let each = targets.iter().map(|point| {
        let version = machine_fact(record, &[&format!("target {}", point.target)]);
        let is_null = point.labels.iter().any(|(_, value)| value.contains("null"));
        let kept = match version {
            Some(_) if !is_imported && is_null => "null volumes",
            Some(_) if !is_imported => volume_storage(&point.target),
            _ => "volumes not recorded",
        };
        let version = version.unwrap_or("version not recorded");
        format!("{} {version}, {}, {kept}", point.target, protocol_label(&point.protocol))
    });
    let cores = match machine_fact(record, &["target's cores"]) {
        Some(cores) => format!("the same load and link for all, and the same cores (target's: {cores})"),
        None => "the same load and link for all; cores not recorded".to_owned(),
    };
    format!("{cores}: {}", each.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::CountingWindow;
    use crate::record::tests::{five, point};

    fn page(record: &Record) -> String {
        let mut page = String::new();
        write_answer(&mut page, record, &SystemNames::of(record));
        page
    }

    #[test]
    fn the_first_sentence_says_it_all() {
        let points = vec![five("blockwire", "randread", 4096, 30_000), five("tgt", "randread", 4096, 10_000)];
        let record = Record { paper: Some("demartek".into()), points, ..Record::default() };
        let page = page(&record);
        let lead = page.split("</p>").next().unwrap();
        for said in [
            "Under random reads of 4K, loopback, blockwire does 3.00x as many I/Os as tgt for each processor second",
            "on average 60,240 I/Os per CPU second against 20,080 I/Os per CPU second",
            "(95 % interval 3.00x to 3.00x; 5 rounds of 20 s; proven)",
            "the limit: the processors of both ends",
            "; of another figure, the paper prints over 3.5x",
        ] {
            assert!(lead.contains(said), "{said}: {lead}");
        }
        // One sentence's place, then one chart, then answers; no table before.
        assert_eq!(lead.matches(". ").count(), 0, "one sentence: {lead}");
        assert_eq!((page.matches("<svg").count(), page.matches("<table").count()), (1, 0));
        assert_eq!(page.matches("<dt>").count(), 10);
    }

    #[test]
    fn what_is_too_short_or_too_few_is_not_proven() {
        let points =
            vec![point("blockwire", "randread", 4096, 30_000), point("tgt", "randread", 4096, 10_000)];
        let page = page(&Record { points, ..Record::default() });
        let lead = page.split("</p>").next().unwrap();
        assert!(
            lead.contains("(3 rounds of 1 s); of a smoke test no ratio is claimed") && !lead.contains("00x"),
            "{lead}"
        );
        assert!(page.contains("no 95 % interval, which takes five rounds"), "{page}");
        assert!(
            page.contains("<dd>not told by a smoke test (1 s of at least 10): blockwire 60,000"),
            "{page}"
        );
        let mut few =
            vec![five("blockwire", "randread", 4096, 30_000), five("tgt", "randread", 4096, 10_000)];
        few.iter_mut().for_each(|point| point.runs.truncate(4));
        let page = self::page(&Record { points: few, ..Record::default() });
        assert!(page.contains("not proven, too few rounds (4 of at least 5)"), "{page}");
    }

    /// The question was of 4K reads, whatever there was.
    #[test]
    fn the_question_names_the_load() {
        let points =
            vec![five("blockwire", "randwrite", 65_536, 30_000), five("tgt", "randwrite", 65_536, 10_000)];
        let page = page(&Record { points, ..Record::default() });
        assert!(page.contains("<dt>Who wins per CPU: random writes of 64K, loopback</dt>"), "{page}");
        assert!(!page.contains("4K reads"), "{page}");
    }

    /// Of "326.9 µs" nobody could tell whether it was a mean or a deviation.
    #[test]
    fn what_has_no_ratio_says_what_it_is() {
        let points = vec![point("blockwire", "randread", 4096, 10_000)];
        for (preset, what) in
            [("nvme-tcp-jitter", "standard deviation of latency"), ("nvme-tcp-latency", "mean latency")]
        {
            let record = Record { preset: preset.into(), points: points.clone(), ..Record::default() };
            let page = page(&record);
            assert!(
                page.contains(&format!("Under random reads of 4K, loopback, {what}: blockwire ")),
                "{page}"
            );
        }
    }

    /// Two bars were in the chart, and the sentence said that nothing stood beside the first.
    #[test]
    fn systems_of_unlike_windows_stand_beside_each_other_without_a_ratio() {
        let mut points =
            vec![five("blockwire", "randread", 4096, 30_000), five("tgt", "randread", 4096, 10_000)];
        for (point, window) in points.iter_mut().zip([CountingWindow::Same, CountingWindow::OwnClock]) {
            point.runs.iter_mut().for_each(|run| run.window = Some(window));
        }
        let page = page(&Record { points: points.clone(), ..Record::default() });
        let why = "their processor time was counted in windows of different kinds";
        for said in [
            format!(
                "blockwire 60,000 I/Os per CPU second, tgt 20,000 I/Os per CPU second (5 rounds of 20 s); the two are not compared, as {why}"
            ),
            format!(
                "<dd>blockwire 60,000 I/Os per CPU second, tgt 20,000 I/Os per CPU second; not compared: {why}</dd>"
            ),
            format!("<dd>not proven, not compared: {why}; no 95 % interval; 5 rounds"),
        ] {
            assert!(page.contains(&said), "{said}: {page}");
        }
        points.truncate(1);
        let page = self::page(&Record { points, ..Record::default() });
        assert!(page.contains("(5 rounds of 20 s), with nothing beside it"), "{page}");
        assert!(page.contains("<dd>not proven, nothing stands beside it; "), "{page}");
    }

    /// An imported load was said to be served as this program would have served it.
    #[test]
    fn how_targets_were_set_up_is_told_only_where_this_program_did_it() {
        let facts = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), "0".to_owned())).collect();
        let of = |names: &[&str], note: Option<&str>| {
            let environment = vec![Machine { role: "target and initiator".into(), facts: facts(names) }];
            let points = vec![five("tgt", "randread", 4096, 10_000)];
            let notes = note.map(str::to_owned).into_iter().collect();
            let page = page(&Record { environment, points, notes, ..Record::default() });
            page.split("<dt>Set up alike</dt><dd>").nth(1).unwrap().split("</dd>").next().unwrap().to_owned()
        };
        let (known, unknown) = ("volumes in files in memory, by its threads", "volumes not recorded");
        let all = ["target tgt", "target's cores"].as_slice();
        let said = of(all, None);
        assert!(said.contains(known) && said.contains("and the same cores (target's: 0)"), "{said}");
        let said = of(&[], None);
        assert!(said.contains(unknown) && said.contains("; cores not recorded: tgt version"), "{said}");
        let said = of(all, Some("Imported from fio-3.33. Processor time is that of fio."));
        assert!(said.contains(unknown) && !said.contains(known), "{said}");
    }

    /// Of two machines only the first one's facts were told.
    #[test]
    fn what_differs_between_machines_is_told_of_each() {
        let machine = |role: &str, facts: &[(&str, &str)]| Machine {
            role: role.into(),
            facts: facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        };
        let environment = vec![
            machine("target", &[("processor", "A"), ("cores", "8"), ("kernel", "6.1"), ("governor", "none")]),
            machine("initiator", &[("processor", "B"), ("cores", "16"), ("kernel", "6.1")]),
        ];
        let points = vec![five("blockwire", "randread", 4096, 30_000)];
        let page = page(&Record { environment, points, ..Record::default() });
        for said in [
            "processor target A, initiator B; cores target 8, initiator 16; kernel 6.1; 2 machines",
            "governor target none, initiator not recorded",
            "here it was A, 8 cores, B, 16 cores",
        ] {
            assert!(page.contains(said), "{said}: {page}");
        }
    }

    #[test]
    fn what_the_record_does_not_hold_is_not_recorded() {
        let mut points = vec![five("blockwire", "randread", 4096, 30_000)];
        for run in &mut points[0].runs {
            (run.target, run.initiator) = (None, None);
        }
        let page = page(&Record { points, ..Record::default() });
        for said in [
            "kernel not recorded",
            "commit: not recorded",
            "the limit: not recorded",
            "governor not recorded",
        ] {
            assert!(page.contains(said), "{said}: {page}");
        }
        let facts =
            [("kernel", "6.1"), ("commit", "abc"), ("target blockwire", "0.1.0"), ("governor", "none")];
        let facts = facts.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let environment = vec![Machine { role: "target and initiator".into(), facts }];
        let points = vec![five("blockwire", "randread", 4096, 30_000)];
        let page = self::page(&Record { environment, points, ..Record::default() });
        for said in
            ["kernel 6.1", "commit: abc", "blockwire 0.1.0", "governor none", "both ends on one machine"]
        {
            assert!(page.contains(said), "{said}: {page}");
        }
    }
}
