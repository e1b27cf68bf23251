//! What a process has used: processor time and memory, as `/proc` tells.

use std::fs;
use std::io;

/// Processor time of all live threads of a process, user and system, in nanoseconds.
pub fn cpu_ns(pid: u32) -> io::Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while we look.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        sum += text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

/// Resident memory of a process in bytes.
pub fn resident_bytes(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    let kib = line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    Ok(kib * 1024)
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
    }
}
