//! Resource use of a process: processor time and memory, from `/proc`.

use std::fs;
use std::io;

use crate::system;

/// Processor time of a process, user and system, in nanoseconds: of all its threads, those that have ended too.
pub fn cpu_ns(pid: u32) -> io::Result<u64> {
    system::process_cpu_ns(pid)
}

/// What a process has used since then.
pub fn cpu_ns_since(pid: u32, then: u64) -> io::Result<u64> {
    let other = || io::Error::other(format!("process {pid} is not the one whose time was read before"));
    cpu_ns(pid)?.checked_sub(then).ok_or_else(other)
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
pub fn read_first_line(path: &str) -> String {
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

    /// A reading over live threads went back, or left out what the ended one had used.
    #[test]
    fn a_thread_that_has_ended_is_not_forgotten() {
        let pid = std::process::id();
        let before = cpu_ns(pid).unwrap();
        let worked = std::thread::spawn(|| {
            let start = std::time::Instant::now();
            while start.elapsed().as_millis() < 50 {
                std::hint::black_box(0);
            }
            // By this thread's own clock: on a loaded machine it did not run all the time.
            system::thread_cpu_ns().unwrap()
        });
        let worked = worked.join().unwrap();
        assert!(worked > 0 && cpu_ns_since(pid, before).unwrap() >= worked, "{worked} ns");
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
