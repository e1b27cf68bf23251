//! Whether two records are comparable at all: what is to be known before a difference of theirs is believed.

use super::{FIGURES, LoadDifference, RecordDifference, WindowMatch};
use crate::figure_range::format_short;
use crate::record::{Machine, Point, Record};

/// Facts that differ from one moment to the next and say nothing about a machine.
const VOLATILE_FACTS: [&str; 2] = ["load", "clock MHz"];
/// Facts of the program that measured.
const PROGRAM_FACTS: [&str; 3] = ["commit", "build", "build flags"];

/// Figures that a record has and no line mentions: with how many loads that is so, and why. And processor time that may
/// not have been counted alike.
fn unmatched_figures(all: &RecordDifference) -> Vec<String> {
    let of = all.pairs.len();
    let mut said = Vec::new();
    for what in FIGURES {
        let untold = all.pairs.iter().filter(|pair| pair.untold.contains(&what));
        let is_unlike = |pair: &&LoadDifference| what.is_cpu_time() && pair.windows == WindowMatch::Unlike;
        let (unlike, untold): (Vec<_>, Vec<_>) = untold.partition(is_unlike);
        for (count, why) in [
            (untold.len(), "one of the two does not tell it"),
            (unlike.len(), "the two counted processor time in windows of different kinds"),
        ] {
            if count > 0 {
                said.push(format!("{}: not compared in {count} of {of} loads, since {why}", what.name()));
            }
        }
    }
    let is_doubtful = |pair: &&LoadDifference| {
        pair.windows == WindowMatch::Untold && pair.lines.iter().any(|line| line.what.is_cpu_time())
    };
    let doubtful = all.pairs.iter().filter(is_doubtful).count();
    if doubtful > 0 {
        said.push(format!(
            "processor time in {doubtful} of {of} loads: one of the two does not tell in which window it was counted"
        ));
    }
    said
}

pub(super) fn comparison_cautions(first: &Record, second: &Record, all: &RecordDifference) -> Vec<String> {
    let mut said = Vec::new();
    if first.preset != second.preset {
        said.push(format!("they are of different presets: {} and {}", first.preset, second.preset));
    }
    said.extend(machine_differences(first, second));
    let drift = all.drift_count();
    if drift > 0 {
        said.push(format!(
            "both were measured by one program on one machine that was set up alike: {drift} figures differ by what else \
             the machine did, so nothing is called better or worse; measure both again, in turn"
        ));
    }
    said.extend(unmatched_figures(all));
    let scant =
        all.pairs.iter().flat_map(|pair| &pair.lines).filter(|line| line.comparison.has_too_few_runs());
    if let Some(line) = scant.min_by_key(|line| line.first.runs + line.second.runs) {
        said.push(format!(
            "too few runs: {} and {} cannot tell a difference from noise (the test comes to {:.2} at best over {} loads). \
             Five runs each are the least, and more where there are more loads",
            line.first.runs,
            line.second.runs,
            line.comparison.least,
            all.pairs.len()
        ));
    }
    let smoke = all.pairs.iter().filter(|pair| pair.is_smoke_test).count();
    if smoke > 0 {
        said.push(format!(
            "{smoke} of {} loads are smoke tests: their runs are too short to show that something got better",
            all.pairs.len()
        ));
    }
    for (name, record) in [("first", first), ("second", second)] {
        let noise = record.points.iter().map(Point::noise);
        let (range, steal) = noise.fold((0f64, 0f64), |a, b| (a.0.max(b.0), a.1.max(b.1)));
        if range > 0.2 || steal > 0.01 {
            said.push(format!(
                "the {name} was noisy: runs of one load differ by up to {:.0} %, and up to {:.1} % of processor time was \
                 taken from the machine",
                range * 100.0,
                steal * 100.0
            ));
        }
        let unsettled = record.inconsistencies().len();
        if unsettled > 0 {
            said.push(format!("{unsettled} figures of the {name} do not add up: see its report"));
        }
    }
    let time = |record: &Record| {
        let runs = record.points.iter().flat_map(|point| &point.runs);
        runs.map(|run| run.seconds).fold(0.0, f64::max)
    };
    let (one, two) = (time(first), time(second));
    if one > 0.0 && two > 0.0 && (one / two > 2.0 || two / one > 2.0) {
        said.push(format!(
            "their runs are of different length: {} s and {} s",
            format_short(one),
            format_short(two)
        ));
    }
    said
}

/// Whether both records are of one program, on machines that were set up alike, as far as they tell. A program that
/// was built from changes beside its commit is not known by that.
pub(super) fn is_one_program(first: &Record, second: &Record) -> bool {
    let roles = |record: &Record| {
        let mut roles: Vec<String> = record.environment.iter().map(|machine| machine.role.clone()).collect();
        roles.sort_unstable();
        roles
    };
    let has_commit = |machine: &Machine| {
        let commit = machine.facts.iter().find(|(name, _)| name == "commit");
        commit.is_some_and(|(_, commit)| !commit.contains("dirty") && !commit.contains("changes"))
    };
    let is_alike = |one: &Machine| {
        let mut others = second.environment.iter().filter(|two| two.role == one.role);
        others.all(|two| changed_facts(one, two).is_empty())
    };
    first.preset == second.preset
        && roles(first) == roles(second)
        && first.environment.iter().any(has_commit)
        && first.environment.iter().all(is_alike)
}

/// What is not the same about their machines and the programs that measured.
fn machine_differences(first: &Record, second: &Record) -> Vec<String> {
    let mut said = Vec::new();
    let has = |record: &Record, role: &str| record.environment.iter().any(|machine| machine.role == role);
    for (name, record, other) in [("first", first, second), ("second", second, first)] {
        for machine in record.environment.iter().filter(|machine| !has(other, &machine.role)) {
            said.push(format!("only the {name} tells of a machine that is the {}", machine.role));
        }
    }
    for one in &first.environment {
        for two in second.environment.iter().filter(|two| two.role == one.role) {
            let (program, machine): (Vec<_>, Vec<_>) = changed_facts(one, two)
                .into_iter()
                .partition(|(name, _)| PROGRAM_FACTS.contains(&name.as_str()));
            for (differ, what) in [
                (program, "was measured by another program"),
                (machine, "is not the same machine or not set up alike"),
            ] {
                if !differ.is_empty() {
                    let differ: Vec<String> = differ.into_iter().map(|(_, words)| words).collect();
                    said.push(format!("the {} {what}: {}", one.role, differ.join(", ")));
                }
            }
        }
    }
    said
}

/// Facts of a machine that are not the same, or that only one record tells, each with both values in words.
fn changed_facts(one: &Machine, two: &Machine) -> Vec<(String, String)> {
    let value = |machine: &Machine, name: &str| {
        machine.facts.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    let mut differ: Vec<(String, String)> = Vec::new();
    for (name, _) in one.facts.iter().chain(&two.facts) {
        let (first, second) = (value(one, name), value(two, name));
        let is_known = differ.iter().any(|(known, _)| known == name);
        // Which systems only one of them has is said elsewhere.
        let is_system = name.starts_with("target ") || name.starts_with("initiator ");
        let is_of_one = is_system && (first.is_none() || second.is_none());
        if first == second || is_known || is_of_one || VOLATILE_FACTS.contains(&name.as_str()) {
            continue;
        }
        let [first, second] = [first, second].map(|value| value.unwrap_or_else(|| "not known".to_owned()));
        differ.push((name.clone(), format!("{name} ({first}; {second})")));
    }
    differ
}
