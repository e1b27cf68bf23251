//! `blockwire attach`: a volume as a local disk, for programs that do not support URLs.
//!
//! Invariant: an attachment ends when its owner is dropped. If this process is killed, the attachment's
//! guardian ends it: its time-out for a recovery is zero.

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use crate::Failure;
use crate::place::CommandLocation;
use crate::process::{Process, ProcessSpec};

/// How long a volume may take to be there.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(60);

/// How a volume becomes local.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachMethod {
    /// A block device.
    Ublk,
    /// A file, with a loop device over it where that is allowed.
    Fuse,
    /// A Unix socket.
    Nbd,
    /// A Unix socket by which a virtual machine shares its memory.
    VhostUser,
}

impl AttachMethod {
    /// As `--via` and records have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            AttachMethod::Ublk => "ublk",
            AttachMethod::Fuse => "fuse",
            AttachMethod::Nbd => "nbd",
            AttachMethod::VhostUser => "vhost-user",
        }
    }
}

/// What is to be made local.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttachSpec<'a> {
    /// This program, by its path here.
    pub(crate) binary: &'a Path,
    /// Where.
    pub(crate) place: &'a CommandLocation,
    /// Processors of what serves it.
    pub(crate) cores: &'a [usize],
    /// The volume.
    pub(crate) url: &'a str,
    /// How.
    pub(crate) way: AttachMethod,
    /// What tells it from others in messages, `dir` and `at`.
    pub(crate) name: &'a str,
    /// For its mount or socket, whose name must be short.
    pub(crate) at: &'a Path,
    /// For logs.
    pub(crate) dir: &'a Path,
}

/// A volume that is local.
#[derive(Debug)]
pub(crate) struct AttachedVolume {
    process: Process,
    /// What it said until it was ready: a word and the rest of the line.
    said: Vec<(String, String)>,
}

impl AttachedVolume {
    /// Makes a volume local.
    pub(crate) fn start(wanted: &AttachSpec<'_>) -> Result<AttachedVolume, Failure> {
        let AttachSpec { place, cores, name, dir, .. } = *wanted;
        let mut words = vec![place.binary_path(wanted.binary), "attach".to_owned()];
        words.extend(["--timeout", "0s", "--via", wanted.way.name()].map(str::to_owned));
        if wanted.way != AttachMethod::Ublk {
            let at = wanted.at.join(format!("{name}.{}", wanted.way.name()));
            let at = std::path::absolute(at).map_err(Failure::new)?;
            words.extend(["--at".to_owned(), at.display().to_string()]);
        }
        words.push(wanted.url.to_owned());
        let mut process = Process::start(ProcessSpec { name, place, cores, words, dir })?;
        let said = RefCell::new(Vec::new());
        process.wait_for_line(ATTACH_TIMEOUT, |line| {
            said.borrow_mut().extend(line.split_once(' ').map(|(word, rest)| (word.into(), rest.into())));
            (line == "ready").then_some(())
        })?;
        Ok(AttachedVolume { process, said: said.into_inner() })
    }

    /// What it said behind a word: `device`, `file`, `url`, `note`.
    pub(crate) fn output_after(&self, word: &str) -> Option<&str> {
        self.said.iter().find(|(known, _)| known == word).map(|(_, rest)| rest.as_str())
    }

    /// Why it is not as it was to be, with the last that it said.
    pub(crate) fn failure_with_output(&mut self, why: &str) -> Failure {
        self.process.failure_with_output(why)
    }

    /// The process that serves it.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What a person would type.
    pub(crate) fn command_line(&self) -> &str {
        self.process.command_line()
    }
}
