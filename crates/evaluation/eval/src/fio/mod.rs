//! fio's job files and command lines, as papers and users' scripts have them.
//!
//! Each option takes effect, or is reported as meaningless here ([`IgnoredWord`]), or refused with its place
//! ([`ScriptError`]); none is ignored silently. Invariant: a [`Script`] can be run without further changes.

mod error;
mod read;
mod value;
mod word;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use error::{ScriptError, ScriptErrorReason};
pub use read::{parse_args, parse_file};
pub(crate) use value::parse_bytes;

/// What to do with blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoDirection {
    /// Read only.
    Read,
    /// Write only.
    Write,
    /// Both, so many percent of them reads.
    Mixed(u8),
    /// Deallocate.
    Trim,
}

/// How far a job goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobSize {
    /// So many bytes.
    Bytes(u64),
    /// So many percent of the volume.
    Percent(u8),
}

/// A limit of speed. With one, latency counts from the moment at which an I/O was meant to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rate {
    /// I/Os per second of each job.
    Iops(u64),
    /// Bytes per second of each job.
    Bytes(u64),
}

/// One job, with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its section's name.
    pub name: String,
    /// What it does.
    pub direction: IoDirection,
    /// Whether in random order.
    pub is_random: bool,
    /// Bytes of a read, and of a write.
    pub block: (u32, u32),
    /// I/Os that each of its threads keeps in flight.
    pub depth: u32,
    /// How many threads do the same.
    pub threads: u32,
    /// The volumes (or what stands for them, before it is mapped), in turn.
    pub files: Vec<String>,
    /// How much is done, all files of a thread together; `None`: the whole of them.
    pub size: Option<JobSize>,
    /// How much of each file is used; `None`: as `size` and the volume allow.
    pub file_size: Option<JobSize>,
    /// Where in a file it begins, in bytes.
    pub offset: u64,
    /// How much is moved, if that differs from `size`.
    pub io_size: Option<u64>,
    /// Longest time.
    pub runtime: Option<Duration>,
    /// Whether it goes on for all of `runtime`, though everything was done once.
    pub is_time_based: bool,
    /// How long it runs before figures count.
    pub ramp: Duration,
    /// How long it waits before it begins.
    pub delay: Duration,
    /// Limits: of reads, and of writes.
    pub rate: (Option<Rate>, Option<Rate>),
    /// A pause after each I/O.
    pub think: Duration,
    /// Whether every block comes once before one comes again.
    pub covers: bool,
    /// Whether what was written is read and compared.
    pub verifies: bool,
    /// Whether it waits for all jobs before it to end.
    pub is_walled: bool,
    /// Whether all end when the first ends.
    pub exits_all: bool,
    /// Whether it flushes when it ends.
    pub flushes_at_end: bool,
    /// Writes after which it flushes; 0: never.
    pub flush_every: u32,
    /// Processors that it may use; empty: all.
    pub cores: Vec<usize>,
    /// Where random numbers come from: the same seed gives the same offsets.
    pub seed: u64,
    /// Whether figures of its threads are reported as one.
    pub is_grouped: bool,
}

impl Default for Job {
    /// fio's own defaults.
    fn default() -> Self {
        Job {
            name: String::new(),
            direction: IoDirection::Read,
            is_random: false,
            block: (4096, 4096),
            depth: 1,
            threads: 1,
            files: Vec::new(),
            size: None,
            file_size: None,
            offset: 0,
            io_size: None,
            runtime: None,
            is_time_based: false,
            ramp: Duration::ZERO,
            delay: Duration::ZERO,
            rate: (None, None),
            think: Duration::ZERO,
            covers: true,
            verifies: false,
            is_walled: false,
            exits_all: false,
            flushes_at_end: false,
            flush_every: 0,
            cores: Vec::new(),
            seed: 0x_89_29_86_47,
            is_grouped: false,
        }
    }
}

/// A word that was understood and changes nothing here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredWord {
    /// Where it stands: a line, or an argument, from 1.
    pub at: usize,
    /// The word.
    pub word: String,
    /// Why it changes nothing.
    pub why: &'static str,
}

/// Jobs, in the order in which they begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Words that change nothing.
    pub notes: Vec<IgnoredWord>,
}

impl Script {
    /// Puts what `map` says in the place of file names. URLs stand for themselves; any other name that is
    /// not mapped is refused.
    pub fn map_files(&mut self, map: &[(String, String)]) -> Result<(), ScriptError> {
        for job in &mut self.jobs {
            for file in &mut job.files {
                let found = map.iter().find(|(from, _)| from == file).map(|(_, to)| to.clone());
                *file = match found {
                    Some(to) => to,
                    None if file.contains("://") => continue,
                    None => {
                        let reason =
                            ScriptErrorReason::NotMapped { job: job.name.clone(), file: file.clone() };
                        return Err(ScriptError { file: None, position: 0, reason });
                    }
                };
            }
        }
        Ok(())
    }
}
