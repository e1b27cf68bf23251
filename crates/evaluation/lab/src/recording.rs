//! A record while it is being made: its beginning, its points, and values known only at its end.

use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use eval::preset::Preset;
use eval::record::{CountingWindow, Point, RECORD_SCHEMA_VERSION, Record, Run, SystemConfiguration};

use eval::steady;

use crate::target::ServingTarget;

/// A record that holds nothing yet.
pub(crate) fn begin_record(preset: &Preset, notes: &[String]) -> Record {
    Record {
        schema: RECORD_SCHEMA_VERSION,
        preset: preset.id.to_owned(),
        title: preset.title.to_owned(),
        paper: preset.paper.map(str::to_owned),
        started: format_utc(SystemTime::now()),
        notes: notes.to_vec(),
        ..Record::default()
    }
}

/// What can be said only when all runs are there.
pub(crate) fn finish_record(record: &mut Record, begun: Instant) {
    record.seconds = begun.elapsed().as_secs_f64();
    record.notes.extend(counting_window_note(&record.points));
    for point in &mut record.points {
        let rounds: Vec<f64> = point.runs.iter().map(Run::iops).collect();
        point.steady_after = steady::steady_round(&rounds);
    }
}

/// Which load generators count by clocks of their own, if any do.
fn counting_window_note(points: &[Point]) -> Option<String> {
    let own = |point: &&Point| point.runs.iter().any(|run| run.window == Some(CountingWindow::OwnClock));
    let mut names: Vec<&str> = points.iter().filter(own).map(|point| point.initiator.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    (!names.is_empty()).then(|| {
        format!(
            "{}: I/Os are counted by the load generator's own clock, and processors were looked at when that was \
             expected to begin and, a fiftieth early, to end; such processor time is not held against that of load \
             generators that have one window for both",
            names.join(", ")
        )
    })
}

/// Writes a command down unless one is there that differs in its ports alone.
pub(crate) fn note_command(record: &mut Record, command: &str) {
    if !record.commands.iter().any(|known| strip_ports(known) == strip_ports(command)) {
        record.commands.push(command.to_owned());
    }
}

/// A text without the ports in it.
fn strip_ports(text: &str) -> String {
    let mut bare = String::with_capacity(text.len());
    let mut is_port = false;
    for c in text.chars() {
        is_port = c == ':' || (is_port && c.is_ascii_digit());
        if !is_port || c == ':' {
            bare.push(c);
        }
    }
    bare
}

/// Writes down what a target was started with and what must be known of it, each once.
pub(crate) fn note_configuration(record: &mut Record, system: &str, serving: &ServingTarget) {
    for (file, text) in &serving.files {
        let fresh = SystemConfiguration { system: system.to_owned(), file: file.clone(), text: text.clone() };
        // Names of a run's own files and ports differ with each start, and lengths do not.
        let is_known = |known: &SystemConfiguration| {
            (&known.system, &known.file) == (&fresh.system, &fresh.file)
                && known.text.lines().count() == fresh.text.lines().count()
        };
        if !record.configurations.iter().any(is_known) {
            record.configurations.push(fresh);
        }
    }
    for remark in &serving.remarks {
        if !record.notes.contains(remark) {
            record.notes.push(remark.clone());
        }
    }
}

/// Puts the runs of a point to those of the same point, if there is one.
pub(crate) fn add_runs(record: &mut Record, fresh: Point) {
    let bare = |point: &Point| Point { runs: Vec::new(), steady_after: None, ..point.clone() };
    let wanted = bare(&fresh);
    match record.points.iter_mut().find(|point| bare(point) == wanted) {
        Some(point) => point.runs.extend(fresh.runs),
        None => record.points.push(fresh),
    }
}

/// A moment as RFC 3339 writes it, in UTC.
pub(crate) fn format_utc(moment: SystemTime) -> String {
    let seconds = moment.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |passed| passed.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days to a date of the Gregorian calendar, in years that begin with March.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// The same, in milliseconds.
pub(crate) fn format_utc_ms(moment: SystemTime) -> String {
    let ms = moment.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |passed| passed.subsec_millis());
    format!("{}.{ms:03}Z", format_utc(moment).trim_end_matches('Z'))
}

/// A directory for what comes of a preset, named by it and the time, inside `under`.
pub fn result_directory(under: &Path, preset: &str) -> PathBuf {
    let name: String = format_utc(SystemTime::now()).replace([':', 'Z'], "");
    under.join(format!("{preset}-{name}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_counts_by_a_clock_of_its_own_is_named() {
        let point = |initiator: &str, window| Point {
            initiator: initiator.into(),
            runs: vec![Run { window, ..Run::default() }],
            ..Point::default()
        };
        let ours = point("blockwire", Some(CountingWindow::Same));
        assert_eq!(counting_window_note(&[ours.clone(), point("fio", None)]), None);
        let own = Some(CountingWindow::OwnClock);
        let note =
            counting_window_note(&[point("spdk", own), ours, point("fio", own), point("fio", own)]).unwrap();
        assert!(note.starts_with("fio, spdk: I/Os are counted by"), "{note}");
    }

    #[test]
    fn moments_are_written_in_utc() {
        let at = |seconds| format_utc(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_795_305_599), "2026-11-21T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
        let odd = SystemTime::UNIX_EPOCH + Duration::from_millis(1_007);
        assert_eq!(format_utc_ms(odd), "1970-01-01T00:00:01.007Z");
    }

    #[test]
    fn commands_that_differ_in_ports_alone_are_written_once() {
        let mut record = Record::default();
        for command in [
            "t iscsi://h:3260/iqn:v0/0 --bs=1",
            "t iscsi://h:40001/iqn:v0/0 --bs=1",
            "t iscsi://h:3260/iqn:v0/0 --bs=2",
        ] {
            note_command(&mut record, command);
        }
        assert_eq!(record.commands.len(), 2);
    }
}
