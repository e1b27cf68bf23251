//! The live page, and the numbers that it asks for.
//!
//! The page is one file: HTML, style and script, with nothing from elsewhere. Its policy (CSP) names the hashes of its
//! style and script, so nothing that a host calls itself can become code in it. `/live.json` has rates between the last
//! two samples, of the busiest volumes, hosts and connections.
//!
//! Invariant: the size of `/live.json` does not depend on how many volumes and connections there are.

use std::{
    cmp::Reverse,
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

use control::report::{
    ConnectionReport, HostRefusalReport, LatencyReport, ObservationReport, ProblemReport, SessionReport,
    ShardReport, VolumeReport, VolumeStateReport,
};
use serde::Serialize;

/// The page.
pub const PAGE: &str = include_str!("live/page.html");
/// What a browser lets the page do: run its own script, use its own style, ask this server.
pub const PAGE_POLICY: &str = "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; \
    script-src 'sha256-npAi/1kb9Ge7rs5+yXQZYPXsp5mP/F1aeR3G6OpBVCk='; \
    style-src 'sha256-NQd4EixkWPbJSWRYFw8QfLqClfRa2kTwLbJbCVhmU1c='";

/// Rows of each table at most: those that do most.
const ROWS_MAX: usize = 200;
/// Rates between two samples that are further apart say nothing about now.
const INTERVAL_MAX: Duration = Duration::from_secs(15);

/// What the daemon reported at a time.
#[derive(Clone, Debug)]
pub struct Sample<T> {
    /// When.
    pub when: Instant,
    /// Processor time of the daemon since it began.
    pub processor: Duration,
    /// What was seen.
    pub seen: T,
}

/// What the page shows.
#[derive(Debug, Serialize)]
struct LiveReport<'a> {
    version: &'a str,
    node: Option<&'a str>,
    uptime_seconds: u64,
    io: &'a str,
    /// Between the two samples; `null`: there was none before, and no rates.
    interval_seconds: Option<f64>,
    totals: Totals,
    problems: Rows<&'a ProblemReport>,
    volumes: Rows<VolumeRow<'a>>,
    hosts: Rows<HostRow<'a>>,
    connections: Rows<ConnectionRow<'a>>,
    shards: Rows<ShardRow>,
    refusals: Rows<&'a HostRefusalReport>,
}

/// The first rows, and how many more there are.
#[derive(Debug, Serialize)]
struct Rows<T> {
    rows: Vec<T>,
    omitted: usize,
}

#[derive(Debug, Serialize)]
struct Totals {
    #[serde(flatten)]
    rates: IoRates,
    mean_us: Option<f64>,
    processor_percent: Option<f64>,
    iops_per_percent: Option<f64>,
    volumes: usize,
    targets: usize,
    subsystems: usize,
    sessions: usize,
    connections: usize,
}

/// Per second; `null`: not known yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct IoRates {
    reads_per_second: Option<f64>,
    read_bytes_per_second: Option<f64>,
    writes_per_second: Option<f64>,
    written_bytes_per_second: Option<f64>,
}

#[derive(Debug, Serialize)]
struct StageMean<'a> {
    stage: &'a str,
    mean_us: f64,
}

#[derive(Debug, Serialize)]
struct VolumeRow<'a> {
    name: &'a str,
    kind: &'a str,
    failed: Option<&'a str>,
    read_only: bool,
    size_bytes: Option<u64>,
    allocated_bytes: Option<u64>,
    operations_in_flight: Option<u64>,
    errors: u64,
    reservation: Option<&'a str>,
    registrants: usize,
    #[serde(flatten)]
    rates: IoRates,
    mean_us: Option<f64>,
    stages: Vec<StageMean<'a>>,
}

#[derive(Debug, Serialize)]
struct HostRow<'a> {
    id: u64,
    protocol: &'a str,
    initiator: &'a str,
    host: Option<&'a str>,
    target: Option<&'a str>,
    shard: usize,
    connections: usize,
    commands: u64,
    #[serde(flatten)]
    rates: IoRates,
    mean_us: Option<f64>,
    stages: Vec<StageMean<'a>>,
}

#[derive(Debug, Serialize)]
struct ConnectionRow<'a> {
    id: u64,
    protocol: &'a str,
    peer: std::net::SocketAddr,
    initiator: &'a str,
    host: Option<&'a str>,
    shard: usize,
    tls: bool,
    received_bytes_per_second: Option<f64>,
    sent_bytes_per_second: Option<f64>,
}

#[derive(Debug, Serialize)]
struct ShardRow {
    id: usize,
    core: Option<usize>,
    connections: usize,
    memory_percent: Option<f64>,
    received_bytes_per_second: Option<f64>,
    sent_bytes_per_second: Option<f64>,
    turns_per_second: Option<f64>,
    sleeps_per_second: Option<f64>,
}

/// What the page shows, as JSON. `before`: the sample before this one.
pub fn render_live(
    now: &Sample<&ObservationReport>,
    before: Option<&Sample<&ObservationReport>>,
) -> Result<String, serde_json::Error> {
    let before = before.filter(|before| {
        let interval = now.when.saturating_duration_since(before.when);
        interval > Duration::ZERO && interval <= INTERVAL_MAX
    });
    let seconds = before.map(|before| now.when.saturating_duration_since(before.when).as_secs_f64());
    let (seen, old) = (now.seen, before.map(|before| before.seen));
    let interval = Interval { seconds };
    let volumes = interval.volume_rows(seen, old);
    let processor_percent = before.zip(seconds).map(|(before, seconds)| {
        now.processor.saturating_sub(before.processor).as_secs_f64() / seconds * 100.0
    });
    let status = &seen.status;
    let rates = sum_of_rates(&volumes);
    let iops = rates.reads_per_second.zip(rates.writes_per_second).map(|(reads, writes)| reads + writes);
    let report = LiveReport {
        version: &status.version,
        node: status.node.as_deref(),
        uptime_seconds: status.uptime_seconds,
        io: &status.io,
        interval_seconds: seconds,
        totals: Totals {
            rates,
            mean_us: mean_of_all(seen, old),
            processor_percent,
            // Less than that is noise.
            iops_per_percent: iops
                .zip(processor_percent.filter(|percent| *percent >= 1.0))
                .map(|(iops, percent)| iops / percent),
            volumes: status.volumes,
            targets: status.targets,
            subsystems: status.subsystems,
            sessions: status.sessions,
            connections: status.connections,
        },
        problems: first_rows(status.problems.iter().collect()),
        volumes: first_rows(volumes),
        hosts: first_rows(interval.host_rows(seen, old)),
        connections: first_rows(interval.connection_rows(seen, old)),
        shards: first_rows(interval.shard_rows(seen, old)),
        refusals: first_rows(seen.refusals.iter().collect()),
    };
    serde_json::to_string(&report)
}

fn first_rows<T>(mut rows: Vec<T>) -> Rows<T> {
    let omitted = rows.len().saturating_sub(ROWS_MAX);
    rows.truncate(ROWS_MAX);
    Rows { rows, omitted }
}

/// The time between two samples; `None`: there was none before.
#[derive(Clone, Copy)]
struct Interval {
    seconds: Option<f64>,
}

impl Interval {
    /// Per second. What is new, or has begun again, counts from its beginning.
    fn rate(self, now: u64, before: Option<u64>) -> Option<f64> {
        let before = before.filter(|before| *before <= now).unwrap_or(0);
        self.seconds.map(|seconds| (now - before) as f64 / seconds)
    }

    fn io_rates(self, now: [u64; 4], before: Option<[u64; 4]>) -> IoRates {
        let [reads, read, writes, written] = now;
        let was = |at: usize| before.and_then(|before| before.get(at).copied());
        IoRates {
            reads_per_second: self.rate(reads, was(0)),
            read_bytes_per_second: self.rate(read, was(1)),
            writes_per_second: self.rate(writes, was(2)),
            written_bytes_per_second: self.rate(written, was(3)),
        }
    }

    fn volume_rows<'a>(
        self,
        seen: &'a ObservationReport,
        old: Option<&ObservationReport>,
    ) -> Vec<VolumeRow<'a>> {
        let before =
            by_key(old.map(|old| old.volumes.as_slice()), |volume: &VolumeReport| volume.name.clone());
        let row = |volume: &'a VolumeReport| {
            let before = before.get(&volume.name).copied();
            let standing = volume.standing.as_ref();
            let counters =
                |one: &VolumeStateReport| [one.reads, one.read_bytes, one.writes, one.written_bytes];
            let was = before.and_then(|before| before.standing.as_ref()).map(counters);
            let latency_before = before.and_then(|before| before.latency.as_ref());
            let times =
                LatencyMeans::between(volume.latency.as_ref(), latency_before, self.seconds.is_some());
            VolumeRow {
                name: &volume.name,
                kind: &volume.kind,
                failed: volume.failed.as_deref(),
                read_only: volume.read_only
                    || standing.is_some_and(|one| one.write_protected || one.write_protected_by_host),
                size_bytes: volume.size_bytes,
                allocated_bytes: standing.and_then(|one| one.allocated_bytes),
                operations_in_flight: standing.map(|one| one.operations_in_flight),
                errors: standing.map_or(0, |one| one.errors.iter().map(|error| error.count).sum()),
                reservation: standing.and_then(|one| one.reservation.kind.as_deref()),
                registrants: standing.map_or(0, |one| one.reservation.registrants.len()),
                rates: standing.map_or_else(IoRates::default, |one| self.io_rates(counters(one), was)),
                mean_us: times.mean_us,
                stages: times.stages,
            }
        };
        let mut rows: Vec<VolumeRow<'_>> = seen.volumes.iter().map(row).collect();
        rows.sort_by(|a, b| {
            let order = |row: &VolumeRow<'_>| (Reverse(row.failed.is_some()), Reverse(busy(&row.rates)));
            order(a).cmp(&order(b)).then_with(|| a.name.cmp(b.name))
        });
        rows
    }

    fn host_rows<'a>(self, seen: &'a ObservationReport, old: Option<&ObservationReport>) -> Vec<HostRow<'a>> {
        let key = |one: &SessionReport| (one.id, one.initiator.clone());
        let before = by_key(old.map(|old| old.sessions.as_slice()), key);
        let counters = |one: &SessionReport| [one.reads, one.read_bytes, one.writes, one.written_bytes];
        let row = |one: &'a SessionReport| {
            let before = before.get(&key(one)).copied();
            let latency_before = before.and_then(|before| before.latency.as_ref());
            let times = LatencyMeans::between(one.latency.as_ref(), latency_before, self.seconds.is_some());
            HostRow {
                id: one.id,
                protocol: &one.protocol,
                initiator: &one.initiator,
                host: one.host.as_deref(),
                target: one.target.as_deref(),
                shard: one.shard,
                connections: one.connections,
                commands: one.commands,
                rates: self.io_rates(counters(one), before.map(counters)),
                mean_us: times.mean_us,
                stages: times.stages,
            }
        };
        let mut rows: Vec<HostRow<'_>> = seen.sessions.iter().map(row).collect();
        rows.sort_by_key(|row| (Reverse(busy(&row.rates)), row.id));
        rows
    }

    fn connection_rows<'a>(
        self,
        seen: &'a ObservationReport,
        old: Option<&ObservationReport>,
    ) -> Vec<ConnectionRow<'a>> {
        let before = by_key(old.map(|old| old.connections.as_slice()), |one: &ConnectionReport| one.id);
        let row = |one: &'a ConnectionReport| {
            let before = before.get(&one.id).copied();
            ConnectionRow {
                id: one.id,
                protocol: &one.protocol,
                peer: one.peer,
                initiator: &one.initiator,
                host: one.host.as_deref(),
                shard: one.shard,
                tls: one.tls.is_some(),
                received_bytes_per_second: self
                    .rate(one.received_bytes, before.map(|one| one.received_bytes)),
                sent_bytes_per_second: self.rate(one.sent_bytes, before.map(|one| one.sent_bytes)),
            }
        };
        let mut rows: Vec<ConnectionRow<'_>> = seen.connections.iter().map(row).collect();
        let moved = |row: &ConnectionRow<'_>| {
            row.received_bytes_per_second.unwrap_or(0.0) + row.sent_bytes_per_second.unwrap_or(0.0)
        };
        rows.sort_by_key(|row| (Reverse(moved(row) as u64), row.id));
        rows
    }

    fn shard_rows(self, seen: &ObservationReport, old: Option<&ObservationReport>) -> Vec<ShardRow> {
        let before = by_key(old.map(|old| old.shards.as_slice()), |shard: &ShardReport| shard.id);
        let row = |shard: &ShardReport| {
            let before = before.get(&shard.id).copied();
            let rate = |read: fn(&ShardReport) -> u64| self.rate(read(shard), before.map(read));
            ShardRow {
                id: shard.id,
                core: shard.core,
                connections: shard.connections,
                memory_percent: (shard.memory_bytes > 0)
                    .then(|| shard.memory_lent_bytes as f64 * 100.0 / shard.memory_bytes as f64),
                received_bytes_per_second: rate(|one| one.received_bytes),
                sent_bytes_per_second: rate(|one| one.sent_bytes),
                turns_per_second: rate(|one| one.turns),
                sleeps_per_second: rate(|one| one.sleeps),
            }
        };
        seen.shards.iter().map(row).collect()
    }
}

/// By what rows are sorted: whole operations per second.
fn busy(rates: &IoRates) -> u64 {
    (rates.reads_per_second.unwrap_or(0.0) + rates.writes_per_second.unwrap_or(0.0)) as u64
}

fn by_key<T, K: Eq + Hash>(all: Option<&[T]>, key: impl Fn(&T) -> K) -> HashMap<K, &T> {
    all.unwrap_or_default().iter().map(|one| (key(one), one)).collect()
}

fn sum_of_rates(volumes: &[VolumeRow<'_>]) -> IoRates {
    let sum = |read: fn(&IoRates) -> Option<f64>| {
        volumes
            .iter()
            .filter_map(|row| read(&row.rates))
            .fold(None, |sum, rate| Some(sum.unwrap_or(0.0) + rate))
    };
    IoRates {
        reads_per_second: sum(|one| one.reads_per_second),
        read_bytes_per_second: sum(|one| one.read_bytes_per_second),
        writes_per_second: sum(|one| one.writes_per_second),
        written_bytes_per_second: sum(|one| one.written_bytes_per_second),
    }
}

/// Time and commands of a stage.
type StageSum = (u64, u64);

fn stage_sums(latency: Option<&Vec<LatencyReport>>) -> HashMap<&str, StageSum> {
    let mut sums: HashMap<&str, StageSum> = HashMap::new();
    for stage in latency.into_iter().flatten().flat_map(|class| &class.stages) {
        let (ns, commands) = sums.entry(&stage.stage).or_default();
        (*ns, *commands) = (ns.saturating_add(stage.sum_ns), commands.saturating_add(stage.commands));
    }
    sums
}

/// Mean times of the commands that were answered between two samples.
#[derive(Default)]
struct LatencyMeans<'a> {
    /// Over all stages.
    mean_us: Option<f64>,
    stages: Vec<StageMean<'a>>,
}

impl<'a> LatencyMeans<'a> {
    fn between(
        now: Option<&'a Vec<LatencyReport>>,
        before: Option<&Vec<LatencyReport>>,
        has_before: bool,
    ) -> Self {
        if !has_before {
            return LatencyMeans::default();
        }
        let (now, before) = (stage_sums(now), stage_sums(before));
        let mut means = LatencyMeans::default();
        for stage in ["receive", "wait", "queue", "backend", "send"] {
            let Some((name, (ns, commands))) = now.get_key_value(stage) else { continue };
            let (ns_before, commands_before) = before.get(stage).copied().unwrap_or_default();
            let Some(commands) = commands.checked_sub(commands_before).filter(|commands| *commands > 0)
            else {
                continue;
            };
            let mean_us = ns.saturating_sub(ns_before) as f64 / commands as f64 / 1e3;
            means.stages.push(StageMean { stage: name, mean_us });
        }
        if !means.stages.is_empty() {
            means.mean_us = Some(means.stages.iter().map(|stage| stage.mean_us).sum());
        }
        means
    }
}

/// Of all volumes together.
fn mean_of_all(seen: &ObservationReport, old: Option<&ObservationReport>) -> Option<f64> {
    let sums = |report: &ObservationReport| {
        let stages = report.volumes.iter().filter_map(|volume| volume.latency.as_ref()).flatten();
        stages.flat_map(|class| &class.stages).fold((0_u64, 0_u64), |(ns, sent), stage| {
            let commands = if stage.stage == "send" { stage.commands } else { 0 };
            (ns.saturating_add(stage.sum_ns), sent.saturating_add(commands))
        })
    };
    let ((ns, sent), (ns_before, sent_before)) = (sums(seen), sums(old?));
    let commands = sent.checked_sub(sent_before).filter(|commands| *commands > 0)?;
    Some(ns.saturating_sub(ns_before) as f64 / commands as f64 / 1e3)
}

#[cfg(test)]
mod tests;
