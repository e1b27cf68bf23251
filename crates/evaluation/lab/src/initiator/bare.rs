//! The bare requester: the least that a client of the bare responder does.

use std::path::{Path, PathBuf};

use eval::fio::{IoDirection, Job, Rate};
use eval::preset::{Protocol, fio_rw_word};
use eval::record::CountingWindow;

use super::blockwire::{POLL_US, parse_figures, run_with_events};
use super::{Initiator, LoadEvent, LoadResult, LoadTask};
use crate::Failure;
use crate::place::CommandLocation;

/// `blockwire eval bare --to`.
#[derive(Debug)]
pub(super) struct BareInitiator {
    binary: PathBuf,
    name: &'static str,
    /// Microseconds for which it polls before it sleeps.
    poll_us: u32,
}

/// Bytes of the longest request.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

impl BareInitiator {
    /// It sleeps when there is nothing to do.
    pub(super) fn new(binary: &Path) -> BareInitiator {
        BareInitiator { binary: binary.to_owned(), name: eval::preset::BARE_SYSTEM, poll_us: 0 }
    }

    /// It polls first.
    pub(super) fn polling(binary: &Path) -> BareInitiator {
        BareInitiator { binary: binary.to_owned(), name: eval::preset::BARE_POLLING_SYSTEM, poll_us: POLL_US }
    }

    fn command_words(&self, task: &LoadTask<'_>) -> Vec<String> {
        let job = task.job;
        let threads = task.cores.len().max(1).min(job.threads as usize);
        let own = threads * task.urls.len();
        let sessions = (task.connections as usize).div_ceil(own.max(1)).max(1);
        let ms = |time: std::time::Duration| time.as_millis().to_string();
        let mut words = vec![task.place.binary_path(&self.binary), "eval".to_owned(), "bare".to_owned()];
        let mut pair = |name: &str, value: String| words.extend([format!("--{name}"), value]);
        pair("to", task.urls.join(","));
        pair("rw", fio_rw_word(job.direction, job.is_random).to_owned());
        pair("bs", job.block.0.to_string());
        pair("in-flight", (job.depth * job.threads).to_string());
        pair("threads", threads.to_string());
        pair("sessions", sessions.to_string());
        pair("poll", self.poll_us.to_string());
        pair("ramp-ms", ms(job.ramp));
        pair("runtime-ms", ms(job.runtime.unwrap_or_default()));
        pair("seed", job.seed.to_string());
        if let IoDirection::Mixed(reads) = job.direction {
            pair("mix", reads.to_string());
        }
        let rates = [job.rate.0, job.rate.1].into_iter().flatten();
        let rate: u64 = rates
            .map(|rate| match rate {
                Rate::Iops(rate) | Rate::Bytes(rate) => rate,
            })
            .sum();
        if rate > 0 {
            pair("rate", (rate * u64::from(job.threads)).to_string());
        }
        words
    }
}

fn is_byte_rate(rate: Option<Rate>) -> bool {
    matches!(rate, Some(Rate::Bytes(_)))
}

impl Initiator for BareInitiator {
    fn name(&self) -> &'static str {
        self.name
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Bare]
    }

    fn missing(&self, place: &CommandLocation) -> Option<String> {
        place.missing_binary(&self.binary)
    }

    fn unsupported_reason(&self, job: &Job) -> Option<String> {
        let why = match job {
            _ if job.direction == IoDirection::Trim => "it does not deallocate",
            _ if is_byte_rate(job.rate.0) || is_byte_rate(job.rate.1) => "its rate is of I/Os",
            _ if job.runtime.is_none() || !job.is_time_based => "it ends by time",
            _ if job.block.0 != job.block.1 => "reads and writes are of one size",
            _ if job.block.0 > REQUEST_BYTES_MAX => "a request has at most 1 MiB",
            _ if job.verifies => "it does not verify",
            _ => return None,
        };
        Some(why.to_owned())
    }

    fn counting_window(&self) -> CountingWindow {
        CountingWindow::Same
    }

    fn run(&self, task: &LoadTask<'_>, tell: &dyn Fn(LoadEvent)) -> Result<LoadResult, Failure> {
        run_with_events(task, self.command_words(task), tell, parse_figures)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn its_words_are_the_load() {
        let job = Job {
            direction: IoDirection::Write,
            depth: 8,
            threads: 4,
            runtime: Some(Duration::from_millis(200)),
            is_time_based: true,
            ..Job::default()
        };
        let task = LoadTask {
            name: "load".to_owned(),
            place: &CommandLocation::Here,
            urls: vec!["bare://h:1/0+8".to_owned(), "bare://h:1/8+8".to_owned()],
            job: &job,
            cores: &[0, 1],
            connections: 7,
            dir: Path::new("."),
        };
        let words = BareInitiator::polling(Path::new("blockwire")).command_words(&task).join(" ");
        for said in ["--in-flight 32", "--threads 2", "--sessions 2", "--poll 200", "--runtime-ms 200"] {
            assert!(words.contains(said), "{said}: {words}");
        }
        assert_eq!(BareInitiator::new(Path::new("blockwire")).unsupported_reason(&job), None);
        let mixed = Job {
            direction: IoDirection::Mixed(70),
            rate: (Some(Rate::Iops(7)), Some(Rate::Iops(3))),
            ..job.clone()
        };
        let words = BareInitiator::new(Path::new("blockwire"))
            .command_words(&LoadTask { job: &mixed, ..task.clone() })
            .join(" ");
        assert!(words.contains("--mix 70") && words.contains("--rate 40"), "{words}");
        let trim = Job { direction: IoDirection::Trim, ..mixed };
        assert!(BareInitiator::new(Path::new("blockwire")).unsupported_reason(&trim).is_some());
    }
}
