//! Rates between two samples of a running daemon.
//!
//! Invariant: a count that has become smaller began again, so no rate is negative.

use std::{
    collections::HashMap,
    iter::Sum,
    path::Path,
    time::{Duration, Instant},
};

use process::exit::Failure;

use crate::{
    Answer, Request, client,
    report::{LatencyReport, ObservationReport, SessionReport, VolumeReport, VolumeStateReport},
};

/// What a daemon has counted, as of one moment.
#[derive(Debug)]
pub struct DaemonSample {
    when: Instant,
    /// What it says of itself.
    pub seen: ObservationReport,
    /// Processor time of the daemon since it began, if it can be read.
    pub processor: Option<Duration>,
}

impl DaemonSample {
    /// Asks for it.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn take(socket: &Path) -> Result<DaemonSample, Failure> {
        match client::send_request(socket, Request::Observe)? {
            Answer::Observation(seen) => {
                let processor = processor_time(seen.status.pid);
                Ok(DaemonSample { when: Instant::now(), seen: *seen, processor })
            }
            _other => Err(Failure::failed("unexpected answer from the daemon")),
        }
    }

    /// Seconds from an earlier sample to this; never 0.
    pub fn seconds_since(&self, before: &DaemonSample) -> f64 {
        self.when.duration_since(before.when).as_secs_f64().max(1e-3)
    }
}

/// User and system time of a process of this machine.
fn processor_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything; utime and stime are the 12th and 13th fields behind it.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Rates of what is counted, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IoRates {
    /// Reads.
    pub reads: f64,
    /// Bytes read.
    pub read_bytes: f64,
    /// Writes.
    pub writes: f64,
    /// Bytes written.
    pub written_bytes: f64,
}

impl IoRates {
    /// Of counts now and before: a count that has become smaller began again.
    fn between(now: [u64; 4], before: [u64; 4], seconds: f64) -> Self {
        let restarted = now.iter().zip(before).any(|(now, before)| *now < before);
        let mut at = 0;
        let mut rate = || {
            let (now, before) = (now.get(at).copied(), before.get(at).copied());
            at += 1;
            let before = if restarted { 0 } else { before.unwrap_or(0) };
            now.unwrap_or(0).saturating_sub(before) as f64 / seconds
        };
        IoRates { reads: rate(), read_bytes: rate(), writes: rate(), written_bytes: rate() }
    }

    /// Reads and writes.
    pub fn total_iops(&self) -> f64 {
        self.reads + self.writes
    }
}

impl Sum for IoRates {
    fn sum<I: Iterator<Item = IoRates>>(all: I) -> IoRates {
        all.fold(IoRates::default(), |sum, one| IoRates {
            reads: sum.reads + one.reads,
            read_bytes: sum.read_bytes + one.read_bytes,
            writes: sum.writes + one.writes,
            written_bytes: sum.written_bytes + one.written_bytes,
        })
    }
}

fn volume_counters(standing: Option<&VolumeStateReport>) -> [u64; 4] {
    standing.map_or([0; 4], |one| [one.reads, one.read_bytes, one.writes, one.written_bytes])
}

fn session_counters(one: &SessionReport) -> [u64; 4] {
    [one.reads, one.read_bytes, one.writes, one.written_bytes]
}

/// Mean time of the commands of the interval in microseconds, over all stages; `None`: there were none.
fn mean_micros(now: Option<&Vec<LatencyReport>>, before: Option<&Vec<LatencyReport>>) -> Option<f64> {
    let sums = |latency: Option<&Vec<LatencyReport>>| {
        let stages = latency.into_iter().flatten().flat_map(|class| &class.stages);
        stages.fold((0_u64, 0_u64), |(ns, sent), stage| {
            let commands = if stage.stage == "send" { stage.commands } else { 0 };
            (ns.saturating_add(stage.sum_ns), sent + commands)
        })
    };
    let ((ns, sent), (ns_before, sent_before)) = (sums(now), sums(before));
    let commands = sent.checked_sub(sent_before).filter(|commands| *commands > 0)?;
    Some(ns.saturating_sub(ns_before) as f64 / commands as f64 / 1e3)
}

/// What a volume does.
#[derive(Debug)]
pub struct VolumeRate<'a> {
    /// The volume.
    pub volume: &'a VolumeReport,
    /// Its operations.
    pub rates: IoRates,
    /// Mean time of its commands in microseconds; `None`: there were none.
    pub mean: Option<f64>,
}

/// Of all volumes, the busiest first.
pub fn volume_rates<'a>(
    seen: &'a ObservationReport,
    old: &ObservationReport,
    seconds: f64,
) -> Vec<VolumeRate<'a>> {
    let before: HashMap<&str, &VolumeReport> =
        old.volumes.iter().map(|volume| (volume.name.as_str(), volume)).collect();
    let rate = |volume: &'a VolumeReport| {
        let before = before.get(volume.name.as_str()).copied();
        let counts = volume_counters(volume.standing.as_ref());
        let counts_before = volume_counters(before.and_then(|before| before.standing.as_ref()));
        let latency_before = before.and_then(|before| before.latency.as_ref());
        VolumeRate {
            volume,
            rates: IoRates::between(counts, counts_before, seconds),
            mean: mean_micros(volume.latency.as_ref(), latency_before),
        }
    };
    let mut all: Vec<VolumeRate<'_>> = seen.volumes.iter().map(rate).collect();
    all.sort_by(|a, b| b.rates.total_iops().total_cmp(&a.rates.total_iops()));
    all
}

/// Of all sessions, the busiest first.
pub fn session_rates<'a>(
    seen: &'a ObservationReport,
    old: &ObservationReport,
    seconds: f64,
) -> Vec<(&'a SessionReport, IoRates)> {
    let key = |one: &SessionReport| (one.id, one.initiator.clone());
    let before: HashMap<_, [u64; 4]> =
        old.sessions.iter().map(|one| (key(one), session_counters(one))).collect();
    let rate = |one: &'a SessionReport| {
        let before = before.get(&key(one)).copied().unwrap_or_default();
        (one, IoRates::between(session_counters(one), before, seconds))
    };
    let mut all: Vec<_> = seen.sessions.iter().map(rate).collect();
    all.sort_by(|(_, a), (_, b)| b.total_iops().total_cmp(&a.total_iops()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::StageReport;

    #[test]
    fn a_counter_that_began_again_is_counted_from_its_beginning() {
        let rates = IoRates::between([10, 0, 4, 0], [4, 0, 0, 0], 2.0);
        assert_eq!((rates.reads, rates.writes), (3.0, 2.0));
        let rates = IoRates::between([10, 0, 4, 0], [400, 0, 0, 0], 2.0);
        assert_eq!((rates.reads, rates.writes), (5.0, 2.0));
    }

    #[test]
    fn the_mean_is_that_of_the_interval() {
        let class = |commands: u64, ns| {
            let stages =
                vec![StageReport::new("backend", &[commands], ns), StageReport::new("send", &[commands], ns)];
            vec![LatencyReport { class: "read".into(), stages }]
        };
        assert_eq!(mean_micros(Some(&class(30, 90_000)), Some(&class(10, 30_000))), Some(6.0));
        assert_eq!(mean_micros(Some(&class(10, 30_000)), Some(&class(10, 30_000))), None);
        assert_eq!(mean_micros(None, None), None);
    }
}
