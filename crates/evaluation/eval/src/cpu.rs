//! Processor time per core and per process, from the kernel's own counters.
//!
//! The text is read elsewhere (`/proc` of this machine, or of another over ssh) and parsed here. Invariant:
//! differences are computed only between two readings of the same cores; a counter that went back (a core
//! that was offline) counts as nothing.

use serde::{Deserialize, Serialize};

/// Processor time by kind, in the order of `/proc/stat` (proc(5)). In ticks when read, in seconds once
/// it is a difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTimes {
    /// In user space, niced included; guests' time is part of it.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
    /// In hard interrupts.
    pub irq: f64,
    /// In soft interrupts: where most of receiving TCP happens.
    pub softirq: f64,
    /// With nothing to do.
    pub idle: f64,
    /// With nothing to do while a local disk was waited for.
    pub iowait: f64,
    /// Taken by the hypervisor: noise.
    pub steal: f64,
}

impl CpuTimes {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.busy_time() + self.idle + self.iowait + self.steal
    }

    /// What was used.
    pub fn busy_time(&self) -> f64 {
        self.user + self.system + self.irq + self.softirq
    }

    /// What was used, in percent; 0 of nothing.
    pub fn busy_percent(&self) -> f64 {
        if self.total() > 0.0 { 100.0 * self.busy_time() / self.total() } else { 0.0 }
    }

    fn zip_with(&self, other: &CpuTimes, f: impl Fn(f64, f64) -> f64) -> CpuTimes {
        CpuTimes {
            user: f(self.user, other.user),
            system: f(self.system, other.system),
            irq: f(self.irq, other.irq),
            softirq: f(self.softirq, other.softirq),
            idle: f(self.idle, other.idle),
            iowait: f(self.iowait, other.iowait),
            steal: f(self.steal, other.steal),
        }
    }
}

/// One reading of `/proc/stat`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuReading {
    /// Each core that is online, by its number.
    pub cores: Vec<(u32, CpuTimes)>,
    /// Context switches of the machine.
    pub switches: u64,
}

/// Why a text cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcParseError {
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: &'static str,
}

impl std::fmt::Display for ProcParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for ProcParseError {}

impl CpuReading {
    /// Reads the text of `/proc/stat`.
    pub fn parse(text: &str) -> Result<CpuReading, ProcParseError> {
        let mut reading = CpuReading::default();
        for (at, line) in text.lines().enumerate() {
            let wrong = |why| ProcParseError { line: at + 1, why };
            let mut words = line.split_ascii_whitespace();
            let Some(name) = words.next() else { continue };
            if name == "ctxt" {
                let count = words.next().and_then(|word| word.parse().ok());
                reading.switches = count.ok_or(wrong("a count of context switches is expected"))?;
            } else if let Some(core) = name.strip_prefix("cpu")
                && !core.is_empty()
            {
                let core = core.parse().map_err(|_| wrong("no core has this name"))?;
                let ticks: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
                let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else {
                    return Err(wrong("eight kinds of time are expected"));
                };
                let user = user + nice;
                let kinds = CpuTimes { user, system, idle, iowait, irq, softirq, steal };
                reading.cores.push((core, kinds));
            }
        }
        if reading.cores.is_empty() {
            return Err(ProcParseError { line: 1, why: "there is no core in it" });
        }
        Ok(reading)
    }

    /// What passed since an earlier reading, in seconds; cores that are in only one of them are left out.
    pub fn since(&self, earlier: &CpuReading, ticks_per_second: f64) -> CpuUsage {
        let before = |core: u32| earlier.cores.iter().find(|(other, _)| *other == core);
        let passed = self.cores.iter().filter_map(|(core, now)| {
            let (_, then) = before(*core)?;
            let kinds = now.zip_with(then, |now, then| (now - then).max(0.0) / ticks_per_second);
            Some((*core, kinds))
        });
        CpuUsage { cores: passed.collect(), switches: self.switches.saturating_sub(earlier.switches) }
    }
}

/// Processor time between two readings, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuUsage {
    /// Each core, by its number.
    pub cores: Vec<(u32, CpuTimes)>,
    /// Context switches.
    pub switches: u64,
}

impl CpuUsage {
    /// All cores together.
    pub fn total(&self) -> CpuTimes {
        self.cores.iter().fold(CpuTimes::default(), |sum, (_, kinds)| sum.zip_with(kinds, |a, b| a + b))
    }
}

/// One reading of a process, from `/proc/PID/stat`: all its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessReading {
    /// Ticks in user space.
    pub user: u64,
    /// Ticks in the kernel on its behalf.
    pub system: u64,
    /// Pages that are resident.
    pub resident: u64,
}

impl ProcessReading {
    /// Reads the text of `/proc/PID/stat`. The name stands in brackets and may hold anything.
    pub fn parse(text: &str) -> Result<ProcessReading, ProcParseError> {
        let wrong = |why| ProcParseError { line: 1, why };
        let (_, behind) = text.rsplit_once(')').ok_or(wrong("a process's name is expected in brackets"))?;
        // The first word behind the name is field 3.
        let words: Vec<&str> = behind.split_ascii_whitespace().collect();
        let field = |number: usize| words.get(number - 3).and_then(|word| word.parse().ok());
        match (field(14), field(15), field(24)) {
            (Some(user), Some(system), Some(resident)) => Ok(ProcessReading { user, system, resident }),
            _ => Err(wrong("fields 14, 15 and 24 are expected to be counts")),
        }
    }

    /// Processor seconds since an earlier reading: user, system.
    pub fn since(&self, earlier: &ProcessReading, ticks_per_second: f64) -> (f64, f64) {
        let seconds = |now: u64, then: u64| now.saturating_sub(then) as f64 / ticks_per_second;
        (seconds(self.user, earlier.user), seconds(self.system, earlier.system))
    }
}

/// Segments that TCP sent again since start, from the text of `/proc/net/snmp`.
pub fn tcp_retransmits(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_ascii_whitespace().position(|name| name == "RetransSegs")?;
    values.split_ascii_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "cpu  10 0 10 180 0 0 0 0 0 0\ncpu0 5 0 5 90 0 0 0 0 0 0\ncpu1 5 0 5 90 0 0 0 0 0 0\nctxt 100\n";
    const LATER: &str =
        "cpu  0\ncpu0 65 10 30 90 0 1 4 0 0 0\ncpu1 5 0 5 180 8 0 0 2 0 0\ncpu2 9 9 9 9 9 9 9 9\nctxt 350\n";

    #[test]
    fn time_is_told_by_core_and_kind() {
        let usage = CpuReading::parse(LATER).unwrap().since(&CpuReading::parse(STAT).unwrap(), 100.0);
        assert_eq!(usage.switches, 250);
        assert_eq!(usage.cores.len(), 2, "the third came between");
        let (_, first) = usage.cores[0];
        assert_eq!((first.user, first.system, first.irq, first.softirq), (0.7, 0.25, 0.01, 0.04));
        assert_eq!(
            usage.cores.iter().map(|(_, kinds)| kinds.busy_percent()).collect::<Vec<_>>(),
            [100.0, 0.0]
        );
        assert_eq!(usage.total().total(), 2.0);
    }

    #[test]
    fn nonsense_is_refused_by_line() {
        assert_eq!(CpuReading::parse("cpu0 1 2 3\n").unwrap_err().line, 1);
        assert_eq!(CpuReading::parse("ctxt x\n").unwrap_err().line, 1);
        assert!(CpuReading::parse("").is_err());
    }

    #[test]
    fn a_process_may_be_called_anything() {
        let text = "42 (a) b) (c) S 1 1 1 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 100 1000000 321 0";
        let process = ProcessReading::parse(text).unwrap();
        assert_eq!(process, ProcessReading { user: 250, system: 50, resident: 321 });
        assert!(ProcessReading::parse("42 S").is_err());
        let later = ProcessReading { user: 300, system: 40, ..process };
        assert_eq!(later.since(&process, 100.0), (0.5, 0.0));
    }

    #[test]
    fn retransmits_are_found_by_name() {
        let text = "Ip: a\nIp: 1\nTcp: RtoAlgorithm RetransSegs InErrs\nTcp: 1 77 0\n";
        assert_eq!(tcp_retransmits(text), Some(77));
        assert_eq!(tcp_retransmits("Udp: x"), None);
    }

    /// A process that burns a known time is charged that time.
    #[test]
    fn what_is_burnt_is_charged() {
        let read = || ProcessReading::parse(&std::fs::read_to_string("/proc/self/stat").unwrap()).unwrap();
        let own = || {
            let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
            text.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        let (before, thread) = (read(), own());
        let mut sum = 0u64;
        while own() - thread < 300_000_000 {
            sum = (0..100_000).fold(sum, |sum, at| sum.wrapping_mul(31).wrapping_add(at));
        }
        std::hint::black_box(sum);
        let (user, system) = read().since(&before, 100.0);
        // Other tests of this process run beside; ticks are 10 ms.
        assert!(user + system >= 0.27, "{user} and {system}");
    }
}
