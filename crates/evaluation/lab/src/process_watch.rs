//! Activity of processors, processes and the network stack between two moments, on one machine.
//!
//! Text of `/proc` is read where the processes run and parsed by [`eval::cpu`]. Invariant: a [`CpuSample`] is
//! one moment: it is only used as a difference to another of the same watch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use eval::cpu::{self, CpuReading, CpuTimes, CpuUsage, ProcessReading};
use eval::record::EndUsage;

use crate::Failure;
use crate::place::CommandLocation;
use crate::target::IdlePolling;

/// Who is watched, and on which cores.
#[derive(Clone, Debug)]
pub struct ProcessWatch {
    place: CommandLocation,
    /// Processes, with all their children. Empty: what the kernel does itself is charged by its cores.
    pids: Vec<u32>,
    /// Cores that belong to this end; empty: all of the machine.
    cores: Vec<u32>,
    ticks: f64,
    page: u64,
    /// Who says how long the system polled without work.
    polls: Option<Arc<dyn IdlePolling>>,
}

/// One moment.
#[derive(Clone, Debug)]
pub struct CpuSample {
    /// When it was here, by our clock: it was taken before that.
    here: Instant,
    /// When it was taken, in seconds by its own machine's clock; `None`: that is this machine, and no time went by.
    taken: Option<f64>,
    cores: CpuReading,
    processes: BTreeMap<u32, ProcessReading>,
    retransmits: Option<u64>,
    packets: Option<u64>,
    polls: Option<f64>,
}

/// What passed between two looks.
#[derive(Clone, Debug)]
pub struct CpuUse {
    /// Seconds between them, by the clock of their machine.
    pub seconds: f64,
    /// When the second was here, by our clock.
    pub until: Instant,
    /// Processors and processes, scaled to nothing: as they were.
    pub side: EndUsage,
    /// A process that was not there at one of the looks: what all of them used is not known.
    pub gone: Option<u32>,
    /// Segments sent again.
    pub retransmits: Option<u64>,
    /// Packets on the interface, both ways.
    pub packets: Option<u64>,
}

impl ProcessWatch {
    /// A watch over processes on these cores.
    pub fn new(place: CommandLocation, pids: Vec<u32>, cores: &[usize]) -> ProcessWatch {
        let cores = cores.iter().filter_map(|core| u32::try_from(*core).ok()).collect();
        let (ticks, page) = place.ticks_and_page_size();
        ProcessWatch { place, pids, cores, ticks: ticks as f64, page, polls: None }
    }

    /// The same watch, which also asks the system itself how long it polled without work.
    #[must_use]
    pub fn with_poll_source(self, polls: Option<Arc<dyn IdlePolling>>) -> ProcessWatch {
        ProcessWatch { polls, ..self }
    }

    /// Looks now, and then asks the system itself, since that takes a while: for the begin and the end of a run.
    ///
    /// # Errors
    /// If the machine's counters cannot be read.
    pub fn sample_with_polling(&self) -> Result<CpuSample, Failure> {
        let look = self.sample()?;
        let polls = self.polls.as_ref().and_then(|polls| polls.idle_seconds());
        Ok(CpuSample { polls, ..look })
    }

    /// Looks now.
    ///
    /// # Errors
    /// If the machine's counters cannot be read.
    pub fn sample(&self) -> Result<CpuSample, Failure> {
        let texts = self.read_proc_texts()?;
        let cores = CpuReading::parse(texts.get("stat").map_or("", String::as_str))
            .map_err(|why| Failure::new(format!("/proc/stat of {}: {why}", self.place.display_name())))?;
        let times = |(name, text): (&String, &String)| {
            let pid = name.strip_prefix("process ")?.parse().ok()?;
            Some((pid, ProcessReading::parse(text).ok()?))
        };
        let processes = texts.iter().filter_map(times).collect();
        Ok(CpuSample {
            here: Instant::now(),
            taken: texts.get("uptime").and_then(|text| parse_uptime(text)),
            cores,
            processes,
            retransmits: texts.get("snmp").and_then(|text| cpu::tcp_retransmits(text)),
            packets: texts.get("dev").and_then(|text| packet_count(text)),
            polls: None,
        })
    }

    /// All that is looked at, by name. The network's counters are those of the first process's namespace.
    fn read_proc_texts(&self) -> Result<BTreeMap<String, String>, Failure> {
        let net = self.pids.first().map_or("self".to_owned(), ToString::to_string);
        let mut texts = BTreeMap::new();
        if self.place.is_local() {
            texts.insert("stat".to_owned(), CommandLocation::Here.read_file("/proc/stat")?);
            for pid in with_descendants(&self.pids) {
                if let Ok(text) = CommandLocation::Here.read_file(&format!("/proc/{pid}/stat")) {
                    texts.insert(format!("process {pid}"), text);
                }
            }
            for name in ["snmp", "dev"] {
                if let Ok(text) = CommandLocation::Here.read_file(&format!("/proc/{net}/net/{name}")) {
                    texts.insert(name.to_owned(), text);
                }
            }
            return Ok(texts);
        }
        let pids: Vec<String> = self.pids.iter().map(ToString::to_string).collect();
        // By the shell alone: on a busy machine each program that is started takes its time, and the clock is to
        // be that of what is read after it.
        let script = format!(
            "f() {{ while IFS= read -r l; do printf '%s\\n' \"$l\"; done <\"$1\"; }}; \
             echo =uptime; f /proc/uptime; echo =stat; f /proc/stat; for p in {}; do all=$p; \
             for t in /proc/$p/task/*/children; do c=; read -r c <$t; all=\"$all $c\"; done; \
             for c in $all; do echo =process $c; f /proc/$c/stat; done; done 2>/dev/null; \
             echo =snmp; f /proc/{net}/net/snmp; echo =dev; f /proc/{net}/net/dev; true",
            pids.join(" ")
        );
        let said = self.place.run(&["sh", "-c", &script])?;
        let mut name = String::new();
        for line in said.lines() {
            if let Some(next) = line.strip_prefix('=') {
                name = next.to_owned();
                continue;
            }
            let text: &mut String = texts.entry(name.clone()).or_default();
            text.push_str(line);
            text.push('\n');
        }
        Ok(texts)
    }

    /// What passed since an earlier look.
    pub fn usage_since(&self, earlier: &CpuSample, now: &CpuSample) -> CpuUse {
        let mut usage = now.cores.since(&earlier.cores, self.ticks);
        if !self.cores.is_empty() {
            usage.cores.retain(|(core, _)| self.cores.contains(core));
        }
        let mut process = (0.0, 0.0);
        let mut resident = 0;
        for (pid, times) in &now.processes {
            let before = earlier.processes.get(pid).copied().unwrap_or_default();
            let (user, system) = times.since(&before, self.ticks);
            process = (process.0 + user, process.1 + system);
            resident = u64::saturating_add(resident, times.resident.saturating_mul(self.page));
        }
        if self.pids.is_empty() {
            process = user_and_system(&usage);
        }
        // What was late on its way was taken in time, or not: its own machine knows how long apart.
        let seconds = match (earlier.taken, now.taken) {
            (Some(earlier), Some(now)) => (now - earlier).max(0.0),
            _ => (now.here - earlier.here).as_secs_f64(),
        };
        let less = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        let was_there = |pid: &u32| [earlier, now].iter().all(|look| look.processes.contains_key(pid));
        CpuUse {
            seconds,
            until: now.here,
            side: EndUsage {
                cores: usage,
                process,
                resident,
                late: None,
                polls_untold: false,
                idle_polls: now.polls.zip(earlier.polls).map(|(now, then)| (now - then).max(0.0)),
            },
            gone: self.pids.iter().find(|pid| !was_there(pid)).copied(),
            retransmits: less(now.retransmits, earlier.retransmits),
            packets: less(now.packets, earlier.packets),
        }
    }
}

impl CpuUse {
    /// The same, if all that was watched was there all the time.
    ///
    /// # Errors
    /// If a process was not: its time would be taken for none.
    pub(crate) fn require_complete(self) -> Result<CpuUse, Failure> {
        match self.gone {
            None => Ok(self),
            Some(pid) => {
                Err(Failure::new(format!("process {pid} was not there all the time that was measured")))
            }
        }
    }
}

impl CpuSample {
    /// How late it is for something that happened at a moment, at most, in seconds.
    pub fn lateness_seconds(&self, happened: Instant) -> f64 {
        self.here.saturating_duration_since(happened).as_secs_f64()
    }
}

/// Seconds since a machine was started: the first number of `/proc/uptime`.
fn parse_uptime(text: &str) -> Option<f64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// What cores did, as user and system time: for systems that live in the kernel.
fn user_and_system(usage: &CpuUsage) -> (f64, f64) {
    let CpuTimes { user, system, irq, softirq, .. } = usage.total();
    (user, system + irq + softirq)
}

/// Processes with all that they started.
fn with_descendants(pids: &[u32]) -> Vec<u32> {
    let mut all = pids.to_vec();
    let mut at = 0;
    while let Some(process) = all.get(at) {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for pid in text.split_ascii_whitespace().filter_map(|word| word.parse().ok()) {
                if !all.contains(&pid) {
                    all.push(pid);
                }
            }
        }
        at += 1;
    }
    all
}

/// Packets of all interfaces but loopback, both ways; of loopback if there is no other, where each packet
/// is counted once as sent and once as received.
fn packet_count(text: &str) -> Option<u64> {
    let (mut others, mut own) = (0u64, 0u64);
    for line in text.lines() {
        let Some((name, counts)) = line.split_once(':') else { continue };
        let counts: Vec<u64> = counts.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
        let (received, sent) = (*counts.get(1)?, *counts.get(9)?);
        let is_own = name.trim() == "lo";
        let (sum, passed) =
            if is_own { (&mut own, sent) } else { (&mut others, received.saturating_add(sent)) };
        *sum = sum.saturating_add(passed);
    }
    Some(own.max(others))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Process, ProcessSpec};
    use std::time::Duration;

    const DEV: &str = "Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 100 7 0 0 0 0 0 0 100 7 0 0 0 0 0 0
  eth0: 100 20 0 0 0 0 0 0 100 30 0 0 0 0 0 0
";

    #[test]
    fn packets_are_those_of_the_link() {
        assert_eq!(packet_count(DEV), Some(50));
        let lone: Vec<&str> = DEV.lines().take(3).collect();
        assert_eq!(packet_count(&lone.join("\n")), Some(7));
    }

    /// A child that burns all the time that it gets is charged to who started it.
    #[test]
    fn children_are_charged_to_who_started_them() {
        let dir = tempfile::tempdir().unwrap();
        let script = "echo on; timeout 2 sh -c 'while :; do :; done' & exec sleep 600";
        let words = ["sh", "-c", script].map(str::to_owned).to_vec();
        let run =
            ProcessSpec { name: "burner", place: &CommandLocation::Here, cores: &[], words, dir: dir.path() };
        let mut process = Process::start(run).unwrap();
        process.wait_for_line(Duration::from_secs(5), |line| (line == "on").then_some(())).unwrap();
        let watch = ProcessWatch::new(CommandLocation::Here, vec![process.pid()], &[]);
        let before = watch.sample().unwrap();
        std::thread::sleep(Duration::from_millis(400));
        let seen = watch.usage_since(&before, &watch.sample().unwrap());
        assert!(seen.side.process.0 + seen.side.process.1 > 0.0, "{:?}", seen.side.process);
        assert!(seen.side.process.0 + seen.side.process.1 <= seen.seconds + 0.02);
        assert!(seen.side.resident > 0 && !seen.side.cores.cores.is_empty());
    }

    /// A look that was seconds on its way over the network is still of the moment at which it was taken.
    #[test]
    fn a_look_is_of_its_own_machines_time() {
        let watch = ProcessWatch::new(CommandLocation::Here, Vec::new(), &[]);
        let look = |taken, on_its_way| {
            let look = watch.sample().unwrap();
            CpuSample { taken, here: look.here + Duration::from_secs(on_its_way), ..look }
        };
        let (first, last) = (look(parse_uptime("100.25 7.00\n"), 0), look(parse_uptime("102.75 9.00\n"), 7));
        assert_eq!(watch.usage_since(&first, &last).seconds, 2.5);
        let late = last.lateness_seconds(first.here);
        assert!((7.0..8.0).contains(&late), "{late}");
        assert!((watch.usage_since(&look(None, 0), &look(None, 7)).seconds - 7.0).abs() < 0.5);
    }

    /// It was read as a process that had used nothing.
    #[test]
    fn a_process_that_has_ended_never_used_no_time() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let watch = ProcessWatch::new(CommandLocation::Here, vec![std::process::id(), child.id()], &[]);
        let before = watch.sample().unwrap();
        assert!(watch.usage_since(&before, &watch.sample().unwrap()).require_complete().is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        let seen = watch.usage_since(&before, &watch.sample().unwrap());
        assert_eq!(seen.gone, Some(child.id()));
        assert!(seen.require_complete().unwrap_err().to_string().contains(&child.id().to_string()));
    }

    #[test]
    fn cores_of_the_other_end_are_left_out() {
        let watch = ProcessWatch::new(CommandLocation::Here, Vec::new(), &[0]);
        let before = watch.sample().unwrap();
        std::thread::sleep(Duration::from_millis(30));
        let seen = watch.usage_since(&before, &watch.sample().unwrap());
        assert_eq!(seen.side.cores.cores.iter().map(|(core, _)| *core).collect::<Vec<_>>(), [0]);
        assert!((seen.seconds - 0.03).abs() < 0.5);
    }
}
