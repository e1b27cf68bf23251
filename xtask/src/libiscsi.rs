//! Results of libiscsi's test tool (`iscsi-test-cu`), combined over several kinds of logical unit.
//!
//! CUnit counts a skipped test as passed, so the printed `[SKIPPED]` lines decide. A test counts as run if it
//! ran to its end without being skipped on at least one kind, and as failed if it failed on any. The list of
//! tests comes from the tool itself; a test without a result is a finding. The expected results are in a
//! file: a worse result is a finding, a better one is reported.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::Report;

const USAGE: &str = "libiscsi --list FILE --expected FILE [--limit N] [--update] KIND=LOG...";

/// How many tests may stay without a full run.
const LIMIT: usize = 5;

/// Marks that a test leaves out one assertion, not that it was skipped.
const INCIDENTAL: &[&str] = &[
    "No alignment restrictions on this LUN",
    "No granularity restrictions on this LUN",
    "LUN too small. Skipping assert",
];

/// Tests that try several actions and mark only those that the target lacks.
const PIECEMEAL: &[(&str, &str)] = &[
    ("Sanitize.Readonly", "SANITIZE CRYPTO_ERASE is not implemented"),
    ("Sanitize.Reservations", "SANITIZE CRYPTO_ERASE is not implemented"),
];

/// What became of a test; the better the greater.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Failed(String),
    Never(String),
    Partial(String),
    Ran,
}

impl Outcome {
    fn word(&self) -> &'static str {
        match self {
            Self::Failed(_) => "failed",
            Self::Never(_) => "never",
            Self::Partial(_) => "partial",
            Self::Ran => "ran",
        }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Failed(text) | Self::Never(text) | Self::Partial(text) => text,
            Self::Ran => "",
        }
    }

    /// Place in the order failed, never, partial, ran.
    fn rank(&self) -> u8 {
        match self {
            Self::Failed(_) => 0,
            Self::Never(_) => 1,
            Self::Partial(_) => 2,
            Self::Ran => 3,
        }
    }
}

type Outcomes = BTreeMap<String, Outcome>;

struct Options {
    list: PathBuf,
    expected: PathBuf,
    limit: usize,
    update: bool,
    logs: Vec<(String, PathBuf)>,
}

/// Reads the logs and compares them with the list and the expected results.
pub fn check(args: &[String]) -> Result<Report, String> {
    let options = parse_options(args)?;
    let read = |path: &PathBuf| {
        std::fs::read(path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .map_err(|error| format!("{}: {error}", path.display()))
    };
    let tests = parse_list(&read(&options.list)?);
    let mut united = Outcomes::new();
    for (kind, path) in &options.logs {
        unite(&mut united, kind, parse_log(&read(path)?));
    }
    if options.update {
        let text = print_expected(&tests, &united);
        std::fs::write(&options.expected, text).map_err(|error| error.to_string())?;
    }
    let expected = parse_expected(&read(&options.expected)?)?;
    Ok(compare(&tests, &united, &expected, options.limit))
}

fn parse_options(args: &[String]) -> Result<Options, String> {
    let (mut list, mut expected) = (None, None);
    let mut options = (LIMIT, false, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => list = args.next().map(PathBuf::from),
            "--expected" => expected = args.next().map(PathBuf::from),
            "--limit" => {
                options.0 = args.next().and_then(|text| text.parse().ok()).ok_or(USAGE)?;
            }
            "--update" => options.1 = true,
            other => {
                let (kind, path) = other.split_once('=').ok_or(USAGE)?;
                options.2.push((kind.to_owned(), PathBuf::from(path)));
            }
        }
    }
    let (limit, update, logs) = options;
    let (list, expected) = (list.ok_or(USAGE)?, expected.ok_or(USAGE)?);
    Ok(Options { list, expected, limit, update, logs })
}

/// The names `Suite.Test` of the family ALL in the output of `iscsi-test-cu --list`.
fn parse_list(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("ALL."))
        .filter(|name| name.contains('.'))
        .map(str::to_owned)
        .collect()
}

/// Outcomes in one log, which may hold the output of several runs of the tool.
fn parse_log(text: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut suite = "";
    let mut open: Option<OpenTest> = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("Suite: ") {
            close(&mut outcomes, open.take());
            suite = name.trim();
        } else if let Some((name, rest)) =
            line.strip_prefix("  Test: ").and_then(|rest| rest.split_once(" ..."))
        {
            close(&mut outcomes, open.take());
            let mut test = OpenTest::new(format!("{suite}.{name}"));
            test.take(rest);
            open = Some(test);
        } else if line.starts_with("Run Summary:") {
            close(&mut outcomes, open.take());
        } else if let Some(test) = &mut open {
            test.take(line);
        }
    }
    close(&mut outcomes, open.take());
    outcomes
}

/// A test whose lines are being read.
struct OpenTest {
    name: String,
    passed: Option<bool>,
    skipped: Option<String>,
    complaint: Option<String>,
}

impl OpenTest {
    fn new(name: String) -> Self {
        Self { name, passed: None, skipped: None, complaint: None }
    }

    fn take(&mut self, line: &str) {
        if line.starts_with("passed") {
            self.passed.get_or_insert(true);
        } else if line.starts_with("FAILED") {
            self.passed.get_or_insert(false);
        } else if self.passed.is_some() && !line.contains("CU_") {
            // What follows the verdict is the clean-up of the suite.
            return;
        }
        if let Some((_, text)) = line.split_once("[SKIPPED]")
            && !INCIDENTAL.iter().any(|mark| text.contains(mark))
            && !self.is_piece(text)
        {
            self.skipped.get_or_insert(text.trim().to_owned());
        }
        if line.contains("[FAILED]") || line.contains("CU_") {
            self.complaint.get_or_insert(line.trim().chars().take(160).collect());
        }
    }

    fn is_piece(&self, text: &str) -> bool {
        PIECEMEAL.iter().any(|(name, mark)| self.name == *name && text.contains(mark))
    }

    fn outcome(self) -> (String, Outcome) {
        let complaint = || self.complaint.clone().unwrap_or_default();
        let outcome = match (self.passed, self.skipped) {
            (None, _) => Outcome::Failed("no result: it hung or the tool died".to_owned()),
            (Some(false), _) => Outcome::Failed(complaint()),
            (Some(true), Some(reason)) => Outcome::Never(reason),
            (Some(true), None) => match PIECEMEAL.iter().find(|(name, _)| self.name == *name) {
                Some((_, mark)) => Outcome::Partial((*mark).to_owned()),
                None => Outcome::Ran,
            },
        };
        (self.name, outcome)
    }
}

/// Enters a finished test. A second run of a test replaces the first: it was repeated on its own.
fn close(outcomes: &mut Outcomes, open: Option<OpenTest>) {
    if let Some((name, outcome)) = open.map(OpenTest::outcome) {
        outcomes.insert(name, outcome);
    }
}

/// Adds the outcomes on one kind of logical unit: a failure wins, else the better outcome.
fn unite(united: &mut Outcomes, kind: &str, outcomes: Outcomes) {
    for (name, outcome) in outcomes {
        let outcome = match outcome {
            Outcome::Failed(text) => Outcome::Failed(format!("on {kind}: {text}")),
            other => other,
        };
        let failed = |outcome: &Outcome| outcome.rank() == 0;
        match united.get(&name) {
            Some(old) if failed(old) || (!failed(&outcome) && old.rank() >= outcome.rank()) => {}
            Some(_) | None => {
                united.insert(name, outcome);
            }
        }
    }
}

/// Lines `Suite.Test outcome reason...`; `#` starts a comment.
fn parse_expected(text: &str) -> Result<Outcomes, String> {
    let mut expected = Outcomes::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.splitn(3, char::is_whitespace);
        let (name, word) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let reason = words.next().unwrap_or_default().trim().to_owned();
        let outcome = match word {
            "ran" => Outcome::Ran,
            "partial" if !reason.is_empty() => Outcome::Partial(reason),
            "never" if !reason.is_empty() => Outcome::Never(reason),
            "failed" if !reason.is_empty() => Outcome::Failed(reason),
            _ => return Err(format!("expected results: {line}: not an outcome with its reason")),
        };
        expected.insert(name.to_owned(), outcome);
    }
    Ok(expected)
}

fn print_expected(tests: &[String], united: &Outcomes) -> String {
    let mut text = String::from("# Suite.Test outcome reason: ran, partial, never, failed.\n");
    for name in tests {
        let missing = Outcome::Failed("no result".to_owned());
        let outcome = united.get(name).unwrap_or(&missing);
        let line = format!("{name} {} {}", outcome.word(), outcome.reason());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn compare(tests: &[String], united: &Outcomes, expected: &Outcomes, limit: usize) -> Report {
    let mut findings = Vec::new();
    let mut notes = Vec::new();
    let mut counts = [0_usize; 4];
    for name in tests {
        let missing = Outcome::Failed("no result on any kind of logical unit".to_owned());
        // A test that is expected never to run may be left out of the runs.
        let left_out = expected.get(name).filter(|wanted| matches!(wanted, Outcome::Never(_)));
        let outcome = united.get(name).or(left_out).unwrap_or(&missing);
        counts[usize::from(outcome.rank())] += 1;
        let said = format!("{name} {} {}", outcome.word(), outcome.reason());
        match expected.get(name) {
            None => findings.push(format!("{said} (not among the expected results)")),
            Some(wanted) if outcome.rank() < wanted.rank() => {
                findings.push(format!("{said} (expected: {})", wanted.word()));
            }
            Some(wanted) if outcome.rank() > wanted.rank() => {
                notes.push(format!("{said} (expected only: {})", wanted.word()));
            }
            Some(_) => {}
        }
    }
    let unknown = expected.keys().filter(|name| !tests.contains(name));
    findings.extend(unknown.map(|name| format!("{name} is expected, but the tool has no such test")));
    let [failed, never, partial, ran] = counts;
    if never + partial > limit {
        findings.push(format!("{} tests without a full run, {limit} at most", never + partial));
    }
    let summary =
        format!("{} tests: {ran} ran, {partial} in part, {never} never, {failed} failed", tests.len());
    Report { findings, notes, summary }
}

#[cfg(test)]
mod tests;
