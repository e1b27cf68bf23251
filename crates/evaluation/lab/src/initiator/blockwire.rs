//! Our load generator: `blockwire bench`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use eval::Histogram;
use eval::fio::Job;
use eval::preset::Protocol;
use eval::record::{Refilled, Unfinished, Window};
use serde_json::Value;

use super::fio_args::fio_words;
use super::negotiated::of_path;
use super::{Event, Initiator, LoadResult, Progress, Task, patience};
use crate::Failure;
use crate::place::Place;
use crate::process::{Late, Process, Stream};

#[derive(Debug)]
pub(super) struct Ours {
    binary: PathBuf,
    name: &'static str,
    /// Microseconds for which it polls before it sleeps.
    poll_us: u32,
}

/// How long the one that polls does so: longer than a network and a target in memory take to answer.
pub(super) const POLL_US: u32 = 200;

impl Ours {
    /// It sleeps when there is nothing to do.
    pub(super) fn new(binary: &Path) -> Ours {
        Ours { binary: binary.to_owned(), name: "blockwire", poll_us: 0 }
    }

    /// It polls first: the other way to wait.
    pub(super) fn polling(binary: &Path) -> Ours {
        Ours { binary: binary.to_owned(), name: "blockwire-polling", poll_us: POLL_US }
    }

    fn words(&self, task: &Task<'_>) -> Vec<String> {
        let mut words = vec![task.place.binary(&self.binary), "bench".to_owned()];
        words.extend(task.urls.iter().map(|url| patient(url, task.connections)));
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
        words.extend(fio_words(task.job));
        words
    }
}

impl Initiator for Ours {
    fn name(&self) -> &'static str {
        self.name
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Iscsi, Protocol::NvmeTcp, Protocol::Local]
    }

    fn missing(&self, place: &Place) -> Option<String> {
        place.lacks_binary(&self.binary)
    }

    fn version(&self, place: &Place) -> Option<String> {
        let said = place.run(&[&place.binary(&self.binary), "--version"]).ok()?;
        said.split_ascii_whitespace().nth(1).map(str::to_owned)
    }

    fn window(&self) -> Window {
        Window::Same
    }

    fn run(&self, task: &Task<'_>, tell: &dyn Fn(Event)) -> Result<LoadResult, Failure> {
        let mut process = task.start(self.words(task))?;
        let text = events(&mut process, task.job, tell)?;
        let mut figures = read(&text).map_err(|why| process.failure(why))?;
        process.command().clone_into(&mut figures.command);
        Ok(figures)
    }
}

/// Connections that take so long to be made and served in turn that the usual 5 s are no sign of a dead one.
const MANY: u32 = 1000;

/// A URL whose controllers have a Keep Alive Timeout for so many connections; sessions of iSCSI have none.
fn patient(url: &str, connections: u32) -> String {
    if connections <= MANY || !url.starts_with("nvme") || url.contains("keep_alive=") {
        return url.to_owned();
    }
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}keep_alive=120s")
}

/// Passes on what a process says with `--events` until it ends, and gives what it printed.
pub(super) fn events(process: &mut Process, job: &Job, tell: &dyn Fn(Event)) -> Result<String, Failure> {
    let until = Instant::now() + patience(job);
    let mut text = String::new();
    loop {
        match process.next_line(until.saturating_duration_since(Instant::now())) {
            Ok(Some((Stream::Err, line))) => {
                if let Some(event) = parse_event(&line, process.pid()) {
                    tell(event);
                }
            }
            Ok(Some((Stream::Out, line))) => text.push_str(&line),
            Ok(None) => break,
            Err(Late) => {
                process.stop();
                return Err(process.failure("it did not end in time"));
            }
        }
    }
    process.finish(patience(job))?;
    Ok(text)
}

/// A line that `--events` prints.
fn parse_event(line: &str, pid: u32) -> Option<Event> {
    let value: Value = serde_json::from_str(line).ok()?;
    match value.get("event")?.as_str()? {
        "begin" => Some(Event::Began(vec![pid])),
        "end" => Some(Event::Ended),
        "progress" => Some(Event::Progress(Progress {
            seconds: value.get("seconds")?.as_f64()?,
            ios: value.get("ios")?.as_u64()?,
            bytes: value.get("bytes")?.as_u64()?,
            latency_us: value.get("latency_us").and_then(Value::as_f64),
        })),
        _ => None,
    }
}

/// Figures of all jobs together.
pub(super) fn read(text: &str) -> Result<LoadResult, Failure> {
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
        let refilled = refilled.map(|(seconds, outside)| Refilled { seconds, outside });
        let left = job.get("unfinished_ios").and_then(Value::as_u64).zip(used("unfinished_oldest_seconds"));
        let unfinished = left.map(|(ios, oldest)| Unfinished { ios, oldest });
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
    all.negotiated = value.get("path").map(of_path).unwrap_or_default();
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
        let all = read(&format!("{{\"jobs\":[{},{}]}}", job(0.125), job(0.25))).unwrap();
        assert_eq!((all.ios, all.errors, all.cpu, all.polls), (20, 2, Some((1.0, 0.5)), Some(0.375)));
        assert_eq!(all.refilled, Some(Refilled { seconds: 1.5, outside: 0.5 }));
        assert_eq!(all.unfinished, Some(Unfinished { ios: 6, oldest: 0.25 }));
        for part in ["{\"ios\":10}", "{\"bytes\":1}", "{\"ios\":1,\"bytes\":1,\"histogram\":{}}"] {
            let text = format!("{{\"jobs\":[{{\"seconds\":1.0,\"errors\":0,\"read\":{part}}}]}}");
            assert!(read(&text).is_err(), "{text}");
        }
        assert!(
            read("{}").is_err()
                && read("{\"jobs\":[{\"seconds\":1.0}]}").unwrap_err().to_string().contains("errors")
        );
    }

    #[test]
    fn thousands_of_controllers_are_waited_for() {
        let url = "nvme+tcp://h:4420/nqn.2026-11.io.example:v0/1";
        assert_eq!(patient(url, 256), url);
        assert_eq!(patient(url, 8_128), format!("{url}?keep_alive=120s"));
        assert_eq!(patient("nvme+tcp://h/n?a=b", 8_128), "nvme+tcp://h/n?a=b&keep_alive=120s");
        assert_eq!(patient("iscsi://h/iqn.2026-11.x:v0/0", 16_384), "iscsi://h/iqn.2026-11.x:v0/0");
    }

    #[test]
    fn events_are_read() {
        assert_eq!(parse_event("{\"event\":\"begin\"}", 9), Some(Event::Began(vec![9])));
        assert_eq!(parse_event("a message", 9), None);
        let line = "{\"event\":\"progress\",\"seconds\":1.0,\"ios\":5,\"bytes\":20480,\"latency_us\":3.5}";
        let Some(Event::Progress(progress)) = parse_event(line, 9) else { panic!("{line}") };
        assert_eq!((progress.ios, progress.latency_us), (5, Some(3.5)));
    }
}
