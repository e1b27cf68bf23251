//! Processes, told apart from later ones of the same number.
//!
//! Invariant: a signal reaches the very process that was meant, or none.

use std::fs;
use std::io;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process, told apart from a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it began, in ticks since boot.
    pub started: u64,
}

impl Process {
    /// The process of this number, if there is one.
    pub fn of(pid: u32) -> Option<Process> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let words: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
        // Field 22 of proc(5); the first word is field 3. A zombie has ended.
        let started = (*words.first()? != "Z").then(|| words.get(19)?.parse().ok()).flatten()?;
        Some(Process { pid, started })
    }

    /// This one.
    pub fn own() -> Process {
        let pid = std::process::id();
        Process::of(pid).unwrap_or(Process { pid, started: 0 })
    }

    /// Whether it still runs.
    pub fn lives(self) -> bool {
        Process::of(self.pid) == Some(self)
    }

    /// Whether it runs as this user.
    pub fn is_of(self, user: u32) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        // Real, effective, saved, of the file system.
        let effective = ids.and_then(|ids| ids.split_ascii_whitespace().nth(1)?.parse::<u32>().ok());
        effective == Some(user) && self.lives()
    }

    /// Sends it a signal, if it still runs and is this user's.
    ///
    /// # Errors
    /// `NotFound` if it has ended; `PermissionDenied` if it is somebody else's; what the system says.
    pub fn signal(self, signal: Signal, user: u32) -> io::Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        // Held while it is looked at: from then on the number can mean no other process.
        let held = pidfd_open(pid, PidfdFlags::empty())?;
        if !self.lives() {
            return Err(io::ErrorKind::NotFound.into());
        }
        if !self.is_of(user) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(pidfd_send_signal(held, signal)?)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_later_process_of_the_same_number_is_not_signalled() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (meant, user) = (Process::of(child.id()).unwrap(), crate::owned::user());
        let earlier = Process { started: meant.started - 1, ..meant };
        assert_eq!(earlier.signal(Signal::TERM, user).unwrap_err().kind(), io::ErrorKind::NotFound);
        let others = meant.signal(Signal::TERM, user + 1).unwrap_err();
        assert_eq!(others.kind(), io::ErrorKind::PermissionDenied);
        assert!(child.try_wait().unwrap().is_none(), "it was signalled");
        meant.signal(Signal::TERM, user).unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
