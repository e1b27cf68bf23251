//! Our load generator: `blockwire bench`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use eval::Histogram;
use eval::fio::Job;
use eval::preset::Protocol;
use eval::record::{CountingWindow, FullLoadPeriod, OutstandingIos};
use serde_json::Value;

use super::fio_args::fio_option_words;
use super::negotiated::negotiated_from_path;
use super::{Initiator, LoadEvent, LoadResult, LoadTask, ProgressCounts, load_timeout};
use crate::Failure;
use crate::place::CommandLocation;
use crate::process::{LineTimeout, OutputStream, Process};

#[derive(Debug)]
pub(super) struct BlockwireInitiator {
    binary: PathBuf,
    name: &'static str,
    /// Microseconds for which it polls before it sleeps.
    poll_us: u32,
}

/// How long the one that polls does so: longer than a network and a target in memory take to answer.
pub(super) const POLL_US: u32 = 200;

impl BlockwireInitiator {
    /// It sleeps when there is nothing to do.
    pub(super) fn new(binary: &Path) -> BlockwireInitiator {
        BlockwireInitiator { binary: binary.to_owned(), name: "blockwire", poll_us: 0 }
    }

    /// It polls first: the other way to wait.
    pub(super) fn polling(binary: &Path) -> BlockwireInitiator {
        BlockwireInitiator { binary: binary.to_owned(), name: "blockwire-polling", poll_us: POLL_US }
    }

    fn command_words(&self, task: &LoadTask<'_>) -> Vec<String> {
        let mut words = vec![task.place.binary_path(&self.binary), "bench".to_owned()];
        words.extend(task.urls.iter().map(|url| with_keep_alive_for(url, task.connections)));
        words.extend(["--json", "--events"].map(str::to_owned));
        let threads = task.cores.len().max(1).min(task.job.threads as usize);
        words.extend(["--threads".to_owned(), threads.to_string()]);
        // Each thread has a session of its own with every volume anyway.
        let own = threads * task.urls.len();
        if task.connections as usize > own {
            let each = (task.connections as usize).div_ceil(own);
            words.extend(["--sessions".to_owned(), each.to_string()]);
        }
        if self.poll_us > 0 {
            words.extend(["--poll".to_owned(), self.poll_us.to_string()]);
        }
        words.extend(fio_option_words(task.job));
        words
    }
}

impl Initiator for BlockwireInitiator {
    fn name(&self) -> &'static str {
        self.name
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Iscsi, Protocol::NvmeTcp, Protocol::Local]
    }

    fn missing(&self, place: &CommandLocation) -> Option<String> {
        place.missing_binary(&self.binary)
    }

    fn version(&self, place: &CommandLocation) -> Option<String> {
        let said = place.run(&[&place.binary_path(&self.binary), "--version"]).ok()?;
        said.split_ascii_whitespace().nth(1).map(str::to_owned)
    }

    fn counting_window(&self) -> CountingWindow {
        CountingWindow::Same
    }

    fn run(&self, task: &LoadTask<'_>, tell: &dyn Fn(LoadEvent)) -> Result<LoadResult, Failure> {
        run_with_events(task, self.command_words(task), tell, parse_figures)
    }
}

/// Connections that take so long to be made and served in turn that the usual 5 s are no sign of a dead one.
const MANY_CONNECTIONS: u32 = 1000;

/// A URL whose controllers have a Keep Alive Timeout for so many connections; sessions of iSCSI have none.
fn with_keep_alive_for(url: &str, connections: u32) -> String {
    if connections <= MANY_CONNECTIONS || !url.starts_with("nvme") || url.contains("keep_alive=") {
        return url.to_owned();
    }
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}keep_alive=120s")
}

/// Runs a process that tells events and prints figures at its end.
pub(super) fn run_with_events(
    task: &LoadTask<'_>,
    words: Vec<String>,
    tell: &dyn Fn(LoadEvent),
    parse: impl FnOnce(&str) -> Result<LoadResult, Failure>,
) -> Result<LoadResult, Failure> {
    let mut process = task.start_process(words)?;
    let text = relay_events(&mut process, task.job, tell)?;
    let figures = parse(&text).map_err(|why| process.failure_with_output(why))?;
    Ok(LoadResult { command: process.command_line().to_owned(), ..figures })
}

/// Passes on what a process says with `--events` until it ends, and gives what it printed.
fn relay_events(process: &mut Process, job: &Job, tell: &dyn Fn(LoadEvent)) -> Result<String, Failure> {
    let until = Instant::now() + load_timeout(job);
    let mut text = String::new();
    loop {
        match process.next_line(until.saturating_duration_since(Instant::now())) {
            Ok(Some((OutputStream::Err, line))) => {
                if let Some(event) = parse_event(&line, process.pid()) {
                    tell(event);
                }
            }
            Ok(Some((OutputStream::Out, line))) => text.push_str(&line),
            Ok(None) => break,
            Err(LineTimeout) => {
                process.stop();
                return Err(process.failure_with_output("it did not end in time"));
            }
        }
    }
    process.wait_for_output(load_timeout(job))?;
    Ok(text)
}

/// A line that `--events` prints.
fn parse_event(line: &str, pid: u32) -> Option<LoadEvent> {
    let value: Value = serde_json::from_str(line).ok()?;
    match value.get("event")?.as_str()? {
        "begin" => Some(LoadEvent::Began(vec![pid])),
        "end" => Some(LoadEvent::Ended),
        "progress" => Some(LoadEvent::Progress(ProgressCounts {
            seconds: value.get("seconds")?.as_f64()?,
            ios: value.get("ios")?.as_u64()?,
            bytes: value.get("bytes")?.as_u64()?,
            latency_us: value.get("latency_us").and_then(Value::as_f64),
        })),
        _ => None,
    }
}

/// Figures of all jobs together.
pub(super) fn parse_figures(text: &str) -> Result<LoadResult, Failure> {
    let value: Value =
        serde_json::from_str(text).map_err(|why| Failure::new(format!("its figures: {why}")))?;
    let jobs = value
        .get("jobs")
        .and_then(Value::as_array)
        .ok_or_else(|| Failure::new("its figures hold no jobs"))?;
    let mut all = LoadResult::default();
    for job in jobs {
        let seconds = job
            .get("seconds")
            .and_then(Value::as_f64)
            .ok_or_else(|| Failure::new("its figures hold no time"))?;
        let errors = job
            .get("errors")
            .and_then(Value::as_u64)
            .ok_or_else(|| Failure::new("its figures hold no count of errors"))?;
        let used = |name: &str| job.get(name).and_then(Value::as_f64);
        let cpu = used("cpu_user_seconds").zip(used("cpu_system_seconds"));
        let polls = used("poll_seconds");
        let refilled = used("refilled_seconds").zip(used("latency_outside_seconds"));
        let refilled = refilled.map(|(seconds, outside)| FullLoadPeriod { seconds, outside });
        let left = job.get("unfinished_ios").and_then(Value::as_u64).zip(used("unfinished_oldest_seconds"));
        let unfinished = left.map(|(ios, oldest)| OutstandingIos { ios, oldest });
        let mut figures =
            LoadResult { seconds, errors, refilled, unfinished, cpu, polls, ..LoadResult::default() };
        for kind in ["read", "write", "trim"] {
            let Some(part) = job.get(kind) else { continue };
            let lacks = |what: &str| Failure::new(format!("its figures hold no {what} of {kind}s"));
            let number = |name: &str| part.get(name).and_then(Value::as_u64).ok_or_else(|| lacks(name));
            figures.ios = figures.ios.saturating_add(number("ios")?);
            figures.moved = figures.moved.saturating_add(number("bytes")?);
            // What it tells of latencies can be read, or is no figure of anything.
            if let Some(told) = part.get("histogram") {
                let latency: Histogram = serde_json::from_value(told.clone())
                    .map_err(|why| lacks("latencies that can be").during(why))?;
                figures.latency.merge(&latency);
            }
        }
        all.merge(&figures);
    }
    all.negotiated = value.get("path").map(negotiated_from_path).unwrap_or_default();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_all_jobs_are_one() {
        let job = |polled: f64| {
            format!(
                "{{\"seconds\":2.0,\"errors\":1,\"cpu_user_seconds\":0.5,\"cpu_system_seconds\":0.25,\
                 \"poll_seconds\":{polled},\"refilled_seconds\":1.5,\"latency_outside_seconds\":0.25,\
                 \"unfinished_ios\":3,\"unfinished_oldest_seconds\":{polled},\
                 \"read\":{{\"ios\":10,\"bytes\":40960}}}}"
            )
        };
        let all = parse_figures(&format!("{{\"jobs\":[{},{}]}}", job(0.125), job(0.25))).unwrap();
        assert_eq!((all.ios, all.errors, all.cpu, all.polls), (20, 2, Some((1.0, 0.5)), Some(0.375)));
        assert_eq!(all.refilled, Some(FullLoadPeriod { seconds: 1.5, outside: 0.5 }));
        assert_eq!(all.unfinished, Some(OutstandingIos { ios: 6, oldest: 0.25 }));
        for part in ["{\"ios\":10}", "{\"bytes\":1}", "{\"ios\":1,\"bytes\":1,\"histogram\":{}}"] {
            let text = format!("{{\"jobs\":[{{\"seconds\":1.0,\"errors\":0,\"read\":{part}}}]}}");
            assert!(parse_figures(&text).is_err(), "{text}");
        }
        assert!(
            parse_figures("{}").is_err()
                && parse_figures("{\"jobs\":[{\"seconds\":1.0}]}")
                    .unwrap_err()
                    .to_string()
                    .contains("errors")
        );
    }

    #[test]
    fn thousands_of_controllers_are_waited_for() {
        let url = "nvme+tcp://h:4420/nqn.2026-11.io.example:v0/1";
        assert_eq!(with_keep_alive_for(url, 256), url);
        assert_eq!(with_keep_alive_for(url, 8_128), format!("{url}?keep_alive=120s"));
        assert_eq!(with_keep_alive_for("nvme+tcp://h/n?a=b", 8_128), "nvme+tcp://h/n?a=b&keep_alive=120s");
        assert_eq!(
            with_keep_alive_for("iscsi://h/iqn.2026-11.x:v0/0", 16_384),
            "iscsi://h/iqn.2026-11.x:v0/0"
        );
    }

    #[test]
    fn events_are_read() {
        assert_eq!(parse_event("{\"event\":\"begin\"}", 9), Some(LoadEvent::Began(vec![9])));
        assert_eq!(parse_event("a message", 9), None);
        let line = "{\"event\":\"progress\",\"seconds\":1.0,\"ios\":5,\"bytes\":20480,\"latency_us\":3.5}";
        let Some(LoadEvent::Progress(progress)) = parse_event(line, 9) else { panic!("{line}") };
        assert_eq!((progress.ios, progress.latency_us), (5, Some(3.5)));
    }
}
