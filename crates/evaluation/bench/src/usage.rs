//! Resource use of a process: processor time and memory, from `/proc`.

use std::fs;
use std::io;

/// Processor time of all live threads of a process, user and system, in nanoseconds.
pub fn cpu_ns(pid: u32) -> io::Result<u64> {
    let mut sum = None;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while we look.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let ns = text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
        let ns =
            ns.ok_or_else(|| io::Error::other(format!("process {pid}: \"{text}\" is no time of a thread")))?;
        sum = Some(sum.unwrap_or(0) + ns);
    }
    // As of a kernel that keeps no such account.
    sum.ok_or_else(|| io::Error::other(format!("no thread of process {pid} says what time it used")))
}

/// What a process has used since then.
pub fn cpu_ns_since(pid: u32, then: u64) -> io::Result<u64> {
    // The time of threads that have ended is not in it, and the difference would be any number.
    let ended = || io::Error::other(format!("threads of process {pid} ended while it was measured"));
    cpu_ns(pid)?.checked_sub(then).ok_or_else(ended)
}

/// Resident memory of a process in bytes.
pub fn resident_bytes(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    // One that has ended has none.
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| io::Error::other(format!("process {pid} says nothing of its memory")))
}

/// One line of a file, without its end; empty where it cannot be read.
pub fn line_of(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_usage_grows() {
        let pid = std::process::id();
        let before = cpu_ns(pid).unwrap();
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 50 {
            std::hint::black_box(0);
        }
        assert!(cpu_ns(pid).unwrap() > before);
        assert!(resident_bytes(pid).unwrap() > 100 << 10);
        assert!(cpu_ns(u32::MAX).is_err());
        assert!(cpu_ns_since(pid, before).is_ok() && cpu_ns_since(pid, u64::MAX).is_err());
    }

    /// It was read as one that needs no memory.
    #[test]
    fn a_process_that_has_ended_is_never_one_without_memory() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let status = format!("/proc/{}/status", child.id());
        // Ended and not waited for: it is there still.
        while fs::read_to_string(&status).is_ok_and(|text| text.contains("VmRSS:")) {
            std::thread::yield_now();
        }
        assert!(resident_bytes(child.id()).is_err());
        child.wait().unwrap();
    }
}
