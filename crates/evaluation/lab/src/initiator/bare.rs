//! The bare requester: the least that a client of the bare responder does.

use std::path::{Path, PathBuf};

use eval::fio::{Direction, Job, Rate};
use eval::preset::{Protocol, word};
use eval::record::Window;

use super::blockwire::{POLL_US, events, read};
use super::{Event, Initiator, LoadResult, Task};
use crate::Failure;
use crate::place::Place;

/// `blockwire eval bare --to`.
#[derive(Debug)]
pub(super) struct Bare {
    binary: PathBuf,
    name: &'static str,
    /// Microseconds for which it polls before it sleeps.
    poll_us: u32,
}

/// Bytes of the longest request.
const REQUEST_MAX: u32 = 1 << 20;

impl Bare {
    /// It sleeps when there is nothing to do.
    pub(super) fn new(binary: &Path) -> Bare {
        Bare { binary: binary.to_owned(), name: eval::preset::BARE, poll_us: 0 }
    }

    /// It polls first.
    pub(super) fn polling(binary: &Path) -> Bare {
        Bare { binary: binary.to_owned(), name: eval::preset::BARE_POLLING, poll_us: POLL_US }
    }

    fn words(&self, task: &Task<'_>) -> Vec<String> {
        let job = task.job;
        let threads = task.cores.len().max(1).min(job.threads as usize);
        let own = threads * task.urls.len();
        let sessions = (task.connections as usize).div_ceil(own.max(1)).max(1);
        let ms = |time: std::time::Duration| time.as_millis().to_string();
        let mut words = vec![task.place.binary(&self.binary), "eval".to_owned(), "bare".to_owned()];
        let mut pair = |name: &str, value: String| words.extend([format!("--{name}"), value]);
        pair("to", task.urls.join(","));
        pair("rw", word(job.direction, job.is_random).to_owned());
        pair("bs", job.block.0.to_string());
        pair("in-flight", (job.depth * job.threads).to_string());
        pair("threads", threads.to_string());
        pair("sessions", sessions.to_string());
        pair("poll", self.poll_us.to_string());
        pair("ramp-ms", ms(job.ramp));
        pair("runtime-ms", ms(job.runtime.unwrap_or_default()));
        pair("seed", job.seed.to_string());
        if let Direction::Mixed(reads) = job.direction {
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

fn is_of_bytes(rate: Option<Rate>) -> bool {
    matches!(rate, Some(Rate::Bytes(_)))
}

impl Initiator for Bare {
    fn name(&self) -> &'static str {
        self.name
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Bare]
    }

    fn missing(&self, place: &Place) -> Option<String> {
        place.lacks_binary(&self.binary)
    }

    fn lacks(&self, job: &Job) -> Option<String> {
        let why = match job {
            _ if job.direction == Direction::Trim => "it does not deallocate",
            _ if is_of_bytes(job.rate.0) || is_of_bytes(job.rate.1) => "its rate is of I/Os",
            _ if job.runtime.is_none() || !job.is_time_based => "it ends by time",
            _ if job.block.0 != job.block.1 => "reads and writes are of one size",
            _ if job.block.0 > REQUEST_MAX => "a request has at most 1 MiB",
            _ if job.verifies => "it does not verify",
            _ => return None,
        };
        Some(why.to_owned())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn its_words_are_the_load() {
        let job = Job {
            direction: Direction::Write,
            depth: 8,
            threads: 4,
            runtime: Some(Duration::from_millis(200)),
            is_time_based: true,
            ..Job::default()
        };
        let task = Task {
            name: "load".to_owned(),
            place: &Place::Here,
            urls: vec!["bare://h:1/0+8".to_owned(), "bare://h:1/8+8".to_owned()],
            job: &job,
            cores: &[0, 1],
            connections: 7,
            dir: Path::new("."),
        };
        let words = Bare::polling(Path::new("blockwire")).words(&task).join(" ");
        for said in ["--in-flight 32", "--threads 2", "--sessions 2", "--poll 200", "--runtime-ms 200"] {
            assert!(words.contains(said), "{said}: {words}");
        }
        assert_eq!(Bare::new(Path::new("blockwire")).lacks(&job), None);
        let mixed = Job {
            direction: Direction::Mixed(70),
            rate: (Some(Rate::Iops(7)), Some(Rate::Iops(3))),
            ..job.clone()
        };
        let words = Bare::new(Path::new("blockwire")).words(&Task { job: &mixed, ..task.clone() }).join(" ");
        assert!(words.contains("--mix 70") && words.contains("--rate 40"), "{words}");
        let trim = Job { direction: Direction::Trim, ..mixed };
        assert!(Bare::new(Path::new("blockwire")).lacks(&trim).is_some());
    }
}
