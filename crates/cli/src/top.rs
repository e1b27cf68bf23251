//! `blockwire top`: what a running daemon does now, again and again, from the rates between two samples of it.
//!
//! Plain ANSI: the cursor goes home, and each line is written over the one before. No other terminal mode is set, so
//! nothing is left behind however it ends. Without a terminal, or with `--once`, it is text and nothing else.

use std::{
    io::{self, IsTerminal, Write},
    thread,
    time::Duration,
};

use clap::Args;

use crate::output::{self, Terminal};
use control::{
    rates::{self, DaemonSample, IoRates, VolumeRate},
    report::{ObservationReport, SessionReport},
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
    let mut before = DaemonSample::take(socket)?;
    loop {
        thread::sleep(args.interval);
        let now = DaemonSample::take(socket)?;
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

fn rate_cells(rates: &IoRates) -> [String; 4] {
    let megabytes = |bytes: f64| format_short(bytes / 1e6);
    [
        format_short(rates.reads),
        megabytes(rates.read_bytes),
        format_short(rates.writes),
        megabytes(rates.written_bytes),
    ]
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
    let seconds = now.seconds_since(before);
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
    let volumes = rates::volume_rates(seen, old, seconds);
    say(LineKind::Plain, total_line(&volumes, before, now, seconds));
    let sessions = rates::session_rates(seen, old, seconds);
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
    let sums: IoRates = volumes.iter().map(|one| one.rates).sum();
    let [reads, read, writes, written] = rate_cells(&sums);
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

fn volume_table(volumes: &[VolumeRate<'_>], most: usize) -> output::DisplayText {
    let rows = volumes.iter().take(most).map(|one| {
        let [reads, read, writes, written] = rate_cells(&one.rates);
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

fn session_table(sessions: &[(&SessionReport, IoRates)], most: usize) -> output::DisplayText {
    let rows = sessions.iter().take(most).map(|(session, rates)| {
        let [reads, read, writes, written] = rate_cells(rates);
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

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 7.0, 7.25, 123.4, 9999.0, 12_345.0, 1_234_567.0, 2.5e9].map(format_short);
        assert_eq!(all, ["0", "7", "7.2", "123", "9999", "12.3K", "1.2M", "2.5G"]);
    }

    #[test]
    fn intervals() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "nan", "1e9", "x"] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
    }
}
