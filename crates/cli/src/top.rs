//! `blockwire top`: what a running daemon does now, again and again, from the difference of two looks at it.
//!
//! Plain ANSI: the cursor goes home, and each line is written over the one before. No other terminal mode is set, so
//! nothing is left behind however it ends. Without a terminal, or with `--once`, it is text and nothing else.

use std::{
    collections::HashMap,
    io::{self, IsTerminal, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use clap::Args;

use crate::output::{self, Terminal};
use control::{
    Answer, Request, client,
    report::{LatencyReport, ObservationReport, SessionReport, VolumeReport, VolumeStateReport},
};
use process::{
    exit::{Exit, Failure},
    paths::DefaultPaths,
    printable,
};

/// Options of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print one interval and exit
    #[arg(long)]
    pub once: bool,
    /// Seconds between two looks at the daemon, 0.5 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_interval)]
    pub interval: Duration,
    /// Without colour; the same as the environment variable NO_COLOR
    #[arg(long)]
    pub no_color: bool,
    /// Control socket of the daemon [default: /run/blockwire/control.sock]
    #[arg(long, value_name = "PATH")]
    pub control: Option<std::path::PathBuf>,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.5..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("\"{text}\" is not a number from 0.5 to 3600"))
}

/// A look at the daemon.
struct DaemonSample {
    when: Instant,
    seen: ObservationReport,
    /// Processor time of the daemon since it began, if it can be read.
    processor: Option<Duration>,
}

/// Lines and columns of what is written to.
#[derive(Clone, Copy)]
struct TerminalSize {
    lines: usize,
    columns: usize,
}

/// Runs until it is interrupted.
pub fn run(args: &TopArgs, paths: &DefaultPaths) -> Result<Exit, Failure> {
    let socket = args.control.as_deref().unwrap_or(&paths.control);
    let is_screen = io::stdout().is_terminal() && !args.once;
    let no_color = args.no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let has_color = io::stdout().is_terminal() && !no_color;
    let mut before = sample_daemon(socket)?;
    loop {
        thread::sleep(args.interval);
        let now = sample_daemon(socket)?;
        let size =
            if is_screen { terminal_size() } else { TerminalSize { lines: usize::MAX, columns: usize::MAX } };
        let frame = build_frame(&before, &now, size);
        if !write_frame(&frame, size, is_screen, has_color) {
            return Ok(Exit::Success);
        }
        if args.once {
            return Ok(if now.seen.status.problems.is_empty() { Exit::Success } else { Exit::Failure });
        }
        before = now;
    }
}

fn sample_daemon(socket: &Path) -> Result<DaemonSample, Failure> {
    match client::send_request(socket, Request::Observe)? {
        Answer::Observation(seen) => {
            let processor = processor_time(seen.status.pid);
            Ok(DaemonSample { when: Instant::now(), seen: *seen, processor })
        }
        _other => Err(Failure::failed("unexpected answer from the daemon")),
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

fn terminal_size() -> TerminalSize {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let known = size.filter(|size| size.ws_row > 0 && size.ws_col > 0);
    known.map_or(TerminalSize { lines: 24, columns: 80 }, |size| TerminalSize {
        lines: size.ws_row.into(),
        columns: size.ws_col.into(),
    })
}

/// Writes a frame; false: nobody reads any more.
fn write_frame(frame: &[ScreenLine], size: TerminalSize, is_screen: bool, has_color: bool) -> bool {
    let mut out = String::new();
    if is_screen {
        out.push_str("\x1b[H");
    }
    for line in frame.iter().take(size.lines.saturating_sub(1)) {
        let text: String = printable::escape_line(&line.text).chars().take(size.columns).collect();
        match (has_color, line.kind) {
            (true, LineKind::Head) => out.push_str(&format!("\x1b[1m{text}\x1b[0m")),
            (true, LineKind::Problem) => out.push_str(&format!("\x1b[31m{text}\x1b[0m")),
            _ => out.push_str(&text),
        }
        out.push_str(if is_screen { "\x1b[K\n" } else { "\n" });
    }
    out.push_str(if is_screen { "\x1b[J" } else { "" });
    let mut stdout = io::stdout();
    stdout.write_all(out.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LineKind {
    Head,
    Plain,
    Problem,
}

struct ScreenLine {
    kind: LineKind,
    text: String,
}

/// Rates of what is counted, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct IoRates {
    reads: f64,
    read_bytes: f64,
    writes: f64,
    written_bytes: f64,
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

    fn total_iops(&self) -> f64 {
        self.reads + self.writes
    }

    fn table_cells(&self) -> [String; 4] {
        let megabytes = |bytes: f64| format_short(bytes / 1e6);
        [
            format_short(self.reads),
            megabytes(self.read_bytes),
            format_short(self.writes),
            megabytes(self.written_bytes),
        ]
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

/// Three digits or four.
fn format_short(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "K"),
        v => (v, ""),
    };
    let digits = if unit.is_empty() && value.fract() == 0.0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$}{unit}")
}

fn build_frame(before: &DaemonSample, now: &DaemonSample, size: TerminalSize) -> Vec<ScreenLine> {
    let seconds = now.when.duration_since(before.when).as_secs_f64().max(1e-3);
    let (seen, old) = (&now.seen, &before.seen);
    let mut lines = Vec::new();
    let mut say = |kind, text: String| lines.push(ScreenLine { kind, text });
    let status = &seen.status;
    say(
        LineKind::Head,
        format!(
            "blockwire {}, up {}, {}, {} shards, {} volumes, {} sessions, {} connections",
            status.version,
            output::format_duration(status.uptime_seconds),
            status.io,
            status.shards,
            status.volumes,
            status.sessions,
            status.connections,
        ),
    );
    let kind = if status.problems.is_empty() { LineKind::Plain } else { LineKind::Problem };
    say(kind, output::health_line(status));
    let volumes = volume_rates(seen, old, seconds);
    say(LineKind::Plain, total_line(&volumes, before, now, seconds));
    let sessions = session_rates(seen, old, seconds);
    // Half of what is left for volumes, half for sessions, as far as there are so many.
    let room = size.lines.saturating_sub(8 + seen.shards.len());
    let for_sessions = sessions.len().min(room.saturating_sub(volumes.len()).max(room / 2));
    let for_volumes = volumes.len().min(room.saturating_sub(for_sessions));
    let tables = [
        volume_table(&volumes, for_volumes),
        session_table(&sessions, for_sessions),
        shard_table(seen, old, seconds),
    ];
    for table in tables {
        say(LineKind::Plain, String::new());
        for (at, line) in table.as_str().lines().enumerate() {
            say(if at == 0 { LineKind::Head } else { LineKind::Plain }, line.to_owned());
        }
    }
    lines
}

/// The sum over all volumes, and what it costs in processor time.
fn total_line(volumes: &[VolumeRate<'_>], before: &DaemonSample, now: &DaemonSample, seconds: f64) -> String {
    let sum = |read: fn(&IoRates) -> f64| volumes.iter().map(|one| read(&one.rates)).sum::<f64>();
    let sums = IoRates {
        reads: sum(|one| one.reads),
        read_bytes: sum(|one| one.read_bytes),
        writes: sum(|one| one.writes),
        written_bytes: sum(|one| one.written_bytes),
    };
    let [reads, read, writes, written] = sums.table_cells();
    let mut text = format!("{reads} reads/s at {read} MB/s, {writes} writes/s at {written} MB/s");
    if let Some((now, before)) = now.processor.zip(before.processor) {
        let percent = now.saturating_sub(before).as_secs_f64() / seconds * 100.0;
        text.push_str(&format!(", {percent:.0} % of a core"));
        if percent >= 1.0 {
            text.push_str(&format!(", {} IOPS per %", format_short(sums.total_iops() / percent)));
        }
    }
    text
}

struct VolumeRate<'a> {
    volume: &'a VolumeReport,
    rates: IoRates,
    mean: Option<f64>,
}

/// The busiest first.
fn volume_rates<'a>(
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

fn volume_table(volumes: &[VolumeRate<'_>], most: usize) -> output::DisplayText {
    let rows = volumes.iter().take(most).map(|one| {
        let [reads, read, writes, written] = one.rates.table_cells();
        [
            one.volume.name.clone(),
            reads,
            read,
            writes,
            written,
            one.volume.standing.as_ref().map_or(0, |standing| standing.operations_in_flight).to_string(),
            one.mean.map_or_else(|| "-".to_owned(), format_short),
            if one.volume.failed.is_some() { "FAILED" } else { "" }.to_owned(),
        ]
    });
    let head = ["VOLUME", "READS/S", "MB/S", "WRITES/S", "MB/S", "DEPTH", "MEAN µS", ""];
    output::render_table(Terminal::NONE, head, rows.collect(), "no volumes")
}

fn session_rates<'a>(
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

fn session_table(sessions: &[(&SessionReport, IoRates)], most: usize) -> output::DisplayText {
    let rows = sessions.iter().take(most).map(|(session, rates)| {
        let [reads, read, writes, written] = rates.table_cells();
        let who = session.host.as_ref().unwrap_or(&session.initiator);
        [session.protocol.clone(), reads, read, writes, written, session.commands.to_string(), who.clone()]
    });
    let head = ["PROTOCOL", "READS/S", "MB/S", "WRITES/S", "MB/S", "DEPTH", "HOST"];
    output::render_table(Terminal::NONE, head, rows.collect(), "no sessions")
}

fn shard_table(seen: &ObservationReport, old: &ObservationReport, seconds: f64) -> output::DisplayText {
    let rows = seen.shards.iter().map(|shard| {
        let before = old.shards.iter().find(|one| one.id == shard.id);
        let rate = |read: fn(&control::report::ShardReport) -> u64| {
            read(shard).saturating_sub(before.map_or(0, read)) as f64 / seconds
        };
        let used = shard.memory_lent_bytes.saturating_mul(100).checked_div(shard.memory_bytes).unwrap_or(0);
        [
            shard.id.to_string(),
            shard.core.map_or_else(|| "-".to_owned(), |core| core.to_string()),
            shard.connections.to_string(),
            format!("{used} %"),
            format_short(rate(|one| one.received_bytes) / 1e6),
            format_short(rate(|one| one.sent_bytes) / 1e6),
            format_short(rate(|one| one.turns)),
            format_short(rate(|one| one.sleeps)),
        ]
    });
    let head = ["SHARD", "CORE", "CONNECTIONS", "MEMORY", "MB/S IN", "MB/S OUT", "TURNS/S", "SLEEPS/S"];
    output::render_table(Terminal::NONE, head, rows.collect(), "no shards")
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::report::StageReport;

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 7.0, 7.25, 123.4, 9999.0, 12_345.0, 1_234_567.0, 2.5e9].map(format_short);
        assert_eq!(all, ["0", "7", "7.2", "123", "9999", "12.3K", "1.2M", "2.5G"]);
    }

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

    #[test]
    fn intervals() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "nan", "1e9", "x"] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
    }
}
