//! Processes, distinguished from later ones with the same PID.
//!
//! Invariants: a signal reaches exactly the intended process, or none. A process counts as ended only if the system
//! says so: one that cannot be inspected is an error, and so is the /proc of another PID namespace.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process, distinguished from a later one with the same PID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it began, in ticks since boot.
    pub started: u64,
}

impl ProcessId {
    /// The process of this number, if there is one.
    ///
    /// # Errors
    /// It cannot be determined.
    pub fn of(pid: u32) -> io::Result<Option<ProcessId>> {
        read_proc_file(fs::read_to_string(format!("/proc/{pid}/stat")))?
            .map_or(Ok(None), |text| parse_proc_stat(pid, &text))
    }

    /// This one.
    ///
    /// # Errors
    /// It cannot be determined.
    pub fn current() -> io::Result<ProcessId> {
        ProcessId::of(std::process::id())?.ok_or_else(foreign_process_error)
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// It cannot be determined.
    pub fn is_running(self) -> io::Result<bool> {
        Ok(ProcessId::of(self.pid)? == Some(self))
    }

    /// Whether it runs as this user.
    ///
    /// # Errors
    /// It cannot be determined.
    pub fn runs_as(self, user: u32) -> io::Result<bool> {
        let status =
            read_proc_file(fs::read_to_string(format!("/proc/{}/status", self.pid)))?.unwrap_or_default();
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        // Real, effective, saved, of the file system.
        let effective = ids.and_then(|ids| ids.split_ascii_whitespace().nth(1)?.parse::<u32>().ok());
        Ok(effective == Some(user) && self.is_running()?)
    }

    /// Sends it a signal, if it is still running and belongs to this user.
    ///
    /// # Errors
    /// `NotFound` if it has ended; `PermissionDenied` if it belongs to another user; system errors.
    pub fn signal(self, signal: Signal, user: u32) -> io::Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        // From here on the PID cannot be reused unnoticed.
        let held = pidfd_open(pid, PidfdFlags::empty())?;
        if !self.is_running()? {
            return Err(io::ErrorKind::NotFound.into());
        }
        if !self.runs_as(user)? {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(pidfd_send_signal(held, signal)?)
    }
}

/// A file of a process in /proc; `None`: there is no such process.
fn read_proc_file(read: io::Result<String>) -> io::Result<Option<String>> {
    match read {
        Ok(text) => Ok(Some(text)),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        // It ended while it was read.
        Err(why) if why.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(None),
        Err(why) => Err(why),
    }
}

/// By its `/proc/PID/stat`. A zombie has ended.
fn parse_proc_stat(pid: u32, text: &str) -> io::Result<Option<ProcessId>> {
    let words = text.rsplit_once(')').map_or("", |(_, words)| words).split_ascii_whitespace();
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat cannot be parsed"));
    // The first word is field 3 of proc(5), and what is wanted field 22.
    match words.clone().next().ok_or_else(unknown)? {
        "Z" | "X" => Ok(None),
        _ => {
            let started = words.clone().nth(19).and_then(|started| started.parse().ok());
            Ok(Some(ProcessId { pid, started: started.ok_or_else(unknown)? }))
        }
    }
}

fn foreign_process_error() -> io::Error {
    io::Error::other("/proc shows the processes of another PID namespace than this process is in")
}

/// The PID namespace of this process.
///
/// # Errors
/// It cannot be determined; /proc belongs to another namespace.
pub fn pid_namespace() -> io::Result<u64> {
    let own = fs::read_link("/proc/self")?;
    if own.to_str() != Some(&std::process::id().to_string()) {
        return Err(foreign_process_error());
    }
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_cannot_be_looked_at_has_not_ended() {
        let error = |errno: rustix::io::Errno| read_proc_file(Err(io::Error::from(errno)));
        for errno in [rustix::io::Errno::NOENT, rustix::io::Errno::SRCH] {
            assert!(error(errno).unwrap().is_none());
        }
        for errno in [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE, rustix::io::Errno::NOMEM] {
            assert!(error(errno).is_err(), "{errno:?}");
        }
        assert!(parse_proc_stat(7, "7 (a) S 1").is_err() && parse_proc_stat(7, "").is_err());
        assert_eq!(parse_proc_stat(7, "7 (a) Z 1").unwrap(), None);
        let (own, space) = (ProcessId::current().unwrap(), pid_namespace().unwrap());
        assert!(own.started > 0 && own.is_running().unwrap() && space > 0);
        assert!(!ProcessId { started: 0, ..own }.is_running().unwrap());
    }

    #[test]
    fn a_later_process_of_the_same_number_is_not_signalled() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (meant, user) = (ProcessId::of(child.id()).unwrap().unwrap(), process::owned_dir::current_uid());
        let earlier = ProcessId { started: meant.started - 1, ..meant };
        assert_eq!(earlier.signal(Signal::TERM, user).unwrap_err().kind(), io::ErrorKind::NotFound);
        let others = meant.signal(Signal::TERM, user + 1).unwrap_err();
        assert_eq!(others.kind(), io::ErrorKind::PermissionDenied);
        assert!(child.try_wait().unwrap().is_none(), "it was signalled");
        meant.signal(Signal::TERM, user).unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
