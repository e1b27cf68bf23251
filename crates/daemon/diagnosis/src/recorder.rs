//! What the flight recorder says: how the daemon before this one ended, and what the shards noticed lately.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use super::{Examination, Finding};
use crate::flight_report::FlightReport;
use control::report::StatusReport;
use engine::flight_files::{FlightRun, flight_directory, read_runs};
use flight_recorder::{Ending, EventKind, TextField};
use process::log::format_utc_micros;

/// How many of the last events of a crashed daemon are shown.
const LAST_EVENTS: usize = 8;
/// How long ago an event may be that says something about now.
const LATELY_NS: u64 = 3600 * 1_000_000_000;

/// Looks at the recordings beside the control socket.
pub(super) fn examine(found: &mut Examination, control: &Path, status: Option<&StatusReport>) {
    let runs = match read_runs(control) {
        Ok(runs) => runs,
        Err(why) => {
            found.saw("recorder", "it cannot be read");
            let next = "run this as root or as the daemon's user";
            return found.findings.push(Finding::warning("flight recorder", why.message, next));
        }
    };
    found.saw(
        "recorder",
        format!("recordings of {} starts in {}", runs.len(), flight_directory(control).display()),
    );
    for (path, why) in runs.iter().flat_map(|run| &run.unreadable) {
        let next = "remove it; a copy helps a report of a bug";
        found.findings.push(Finding::warning(path.display(), why, next));
    }
    let runs_now = |run: &&FlightRun| {
        status.is_some_and(|status| run.recordings.iter().any(|one| one.pid == u64::from(status.pid)))
    };
    let current = runs.first().filter(runs_now);
    let before = if current.is_some() { runs.get(1) } else { runs.first() };
    if let Some(before) = before {
        examine_ending(found, before, current.is_none());
    }
    if let Some(current) = current {
        examine_events(found, current);
    }
}

/// A daemon that has ended: was it asked to?
fn examine_ending(found: &mut Examination, run: &FlightRun, is_latest: bool) {
    let Some(first) = run.recordings.first() else { return };
    let panic = run.recordings.iter().find_map(|one| match &one.ending {
        Ending::Panic(text) => Some(text),
        Ending::None | Ending::InOrder => None,
    });
    if panic.is_none() && first.ending == Ending::InOrder {
        return;
    }
    let last = run.recordings.iter().filter_map(|one| one.events.last()).map(|event| event.unix_ns).max();
    let when = last.map_or_else(String::new, |ns| format!("; its last event is of {}", time(ns)));
    let how = match panic {
        Some(text) => format!("failed by a bug: {text}"),
        None => "ended without a stop: it was killed, it crashed, or the machine failed".to_owned(),
    };
    let mut why = format!(
        "process {} (version {}), started {}, {how}{when}",
        first.pid,
        first.version,
        time(first.started_unix_ns)
    );
    for event in &FlightReport::of(run, LAST_EVENTS).events {
        why.push_str(&format!("\n  {}", event.line()));
    }
    let run_number = if is_latest { 0 } else { 1 };
    let next = match panic {
        Some(_) => format!("report the bug, with `blockwire flight-recorder --run {run_number} --last 0`"),
        None => format!(
            "`blockwire flight-recorder --run {run_number} --last 0` shows what it did; `journalctl -u blockwire` and \
             `journalctl -k` tell of signals and of lack of memory"
        ),
    };
    let make: fn(String, String, String) -> Finding =
        if is_latest { Finding::problem } else { Finding::warning };
    found.findings.push(make("the daemon before".to_owned(), why, next));
}

/// What the shards of the running daemon noticed within the last hour.
fn examine_events(found: &mut Examination, run: &FlightRun) {
    let newest = run.recordings.iter().filter_map(|one| one.events.last()).map(|event| event.unix_ns).max();
    let since = newest.unwrap_or(0).saturating_sub(LATELY_NS);
    let mut slow: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut failed: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut memory_waits = 0_u64;
    let recent = run.recordings.iter().flat_map(|one| &one.events).filter(|event| event.unix_ns >= since);
    for event in recent {
        let volume = event.text(TextField::Volume).unwrap_or_default();
        match event.kind {
            Ok(EventKind::SlowOperation) => {
                let (count, longest) = slow.entry(volume).or_default();
                (*count, *longest) = (*count + 1, (*longest).max(event.number));
            }
            Ok(EventKind::OperationFailed) => {
                *failed.entry((volume, event.text(TextField::Cause).unwrap_or_default())).or_default() += 1;
            }
            Ok(EventKind::MemoryWait) => memory_waits += 1,
            _ => {}
        }
    }
    for (volume, (count, longest)) in slow {
        let longest = longest as f64 / 1e9;
        let why =
            format!("{count} operations took more than a second within an hour, the longest {longest:.1} s");
        let next =
            format!("`blockwire volume show {volume} --latency` shows which stage is slow; check its disk");
        found.findings.push(Finding::warning(volume, why, next));
    }
    for ((volume, cause), count) in failed {
        let why = format!("{count} operations failed within an hour: {cause}");
        found.findings.push(Finding::warning(
            volume,
            why,
            "`blockwire flight-recorder` shows each; check its disk",
        ));
    }
    if memory_waits > 0 {
        let why = format!("commands had to wait for payload memory {memory_waits} times within an hour");
        found.findings.push(Finding::warning("memory", why, "raise memory in [limits]"));
    }
}

fn time(unix_ns: u64) -> String {
    format_utc_micros(UNIX_EPOCH + Duration::from_nanos(unix_ns))
}
