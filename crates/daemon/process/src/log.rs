//! Log lines on stderr: `2026-11-21T00:00:00Z INFO message key=value`.
//!
//! One line per event; at most [`BURST_LINES`] lines of one kind (level and place in the source) in ten seconds,
//! and then one line with the number of suppressed ones. So a peer that misbehaves a thousand times a second
//! cannot fill a disk. Spans are not used.
//!
//! The program never waits for stderr: lines go through a bounded queue, and those that do not fit are
//! dropped and counted.

mod queue;

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    collections::HashMap,
    fmt::{self, Write as _},
    hash::Hash,
    io::{self, Write as _},
    panic::PanicHookInfo,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::printable::{escape_line as shown_line, is_hidden};
use queue::LogQueue;
use tracing::{
    Event, Level, Metadata, Subscriber,
    callsite::Identifier,
    field::{Field, Visit},
    span,
};

/// Lines of one kind in one window.
pub const BURST_LINES: u32 = 20;
const BURST_WINDOW: Duration = Duration::from_secs(10);
/// How long the last lines of a process may take to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The outlet of this process, once it logs.
static LOG_QUEUE: OnceLock<Arc<LogQueue>> = OnceLock::new();

/// Sends events of at least `level` to stderr from now on, and what a thread that panics says. Under systemd the
/// journal's own time stamp is enough, so lines carry a priority prefix instead.
///
/// # Errors
/// The system has no thread for it.
pub fn install_logger(level: Level) -> io::Result<()> {
    let style = LinePrefix { journal: std::env::var_os("JOURNAL_STREAM").is_some() };
    let outlet = match LOG_QUEUE.get() {
        Some(outlet) => outlet.clone(),
        None => {
            let outlet = LogQueue::start(io::stderr(), move |dropped| style.dropped_line(dropped))?;
            LOG_QUEUE.get_or_init(|| outlet).clone()
        }
    };
    std::panic::set_hook(Box::new(move |panic| log_panic(style, panic)));
    let logger = Logger { level, style, outlet, limiter: Mutex::default() };
    // A second logger in one process (tests) is no harm: the first one stays.
    let _ = tracing::subscriber::set_global_default(logger);
    Ok(())
}

/// Writes text to stderr as it is: behind the lines that wait, without waiting for them, if this process logs.
pub fn write_stderr(text: &str) {
    match LOG_QUEUE.get() {
        Some(outlet) => outlet.push(text.to_owned()),
        None => drop(io::stderr().write_all(text.as_bytes())),
    }
}

/// Gives the last lines of a process time to be written: a second, so that a stderr that nobody reads keeps no
/// process from its end.
pub fn flush() {
    if let Some(outlet) = LOG_QUEUE.get() {
        outlet.flush(FLUSH_TIMEOUT);
    }
}

fn log_panic(style: LinePrefix, panic: &PanicHookInfo<'_>) {
    let mut text = String::new();
    style.push_prefix(&mut text, Level::ERROR);
    let thread = thread::current();
    let name = thread.name().unwrap_or("without a name");
    let _ = write!(text, "this is a bug, please report it: the thread {name} {panic}");
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        let _ = write!(text, "\n{trace}");
    }
    write_stderr(&(text + "\n"));
    // The process may end by it.
    flush();
}

struct Logger {
    level: Level,
    style: LinePrefix,
    outlet: Arc<LogQueue>,
    limiter: Mutex<LineLimiter<Identifier>>,
}

/// What lines begin with.
#[derive(Clone, Copy, Debug)]
struct LinePrefix {
    /// They are for systemd's journal.
    journal: bool,
}

/// Counts lines per kind. Kinds are places in the source, so there is a bounded number of them.
struct LineLimiter<K> {
    kinds: HashMap<K, LineBudget>,
}

impl<K> Default for LineLimiter<K> {
    fn default() -> Self {
        LineLimiter { kinds: HashMap::new() }
    }
}

struct LineBudget {
    since: Instant,
    lines: u32,
}

/// What to do with one line.
#[derive(Debug, PartialEq, Eq)]
enum LimitDecision {
    Print,
    /// Print, after saying that so many were left out.
    PrintAfter(u32),
    Drop,
}

impl<K: Hash + Eq> LineLimiter<K> {
    fn admit(&mut self, kind: K, now: Instant) -> LimitDecision {
        let budget = self.kinds.entry(kind).or_insert(LineBudget { since: now, lines: 0 });
        if now.duration_since(budget.since) >= BURST_WINDOW {
            let left_out = budget.lines.saturating_sub(BURST_LINES);
            *budget = LineBudget { since: now, lines: 1 };
            return if left_out > 0 { LimitDecision::PrintAfter(left_out) } else { LimitDecision::Print };
        }
        budget.lines = budget.lines.saturating_add(1);
        if budget.lines <= BURST_LINES { LimitDecision::Print } else { LimitDecision::Drop }
    }
}

impl Subscriber for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let kind = event.metadata().callsite();
        let verdict = self.limiter.lock().unwrap_or_else(PoisonError::into_inner).admit(kind, Instant::now());
        let mut line = String::new();
        match verdict {
            LimitDecision::Drop => return,
            LimitDecision::Print => {}
            LimitDecision::PrintAfter(left_out) => {
                self.style.push_prefix(&mut line, Level::WARN);
                let _ = writeln!(line, "similar lines were suppressed count={left_out}");
            }
        }
        self.style.push_prefix(&mut line, *event.metadata().level());
        let mut fields = EventFields::default();
        event.record(&mut fields);
        line.push_str(&fields.message);
        line.push_str(&fields.rest);
        line.push('\n');
        self.outlet.push(line);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl LinePrefix {
    fn push_prefix(self, line: &mut String, level: Level) {
        let (priority, word) = match level {
            Level::ERROR => (3, "ERROR"),
            Level::WARN => (4, "WARN"),
            Level::INFO => (6, "INFO"),
            _ => (7, "DEBUG"),
        };
        let _ = if self.journal {
            write!(line, "<{priority}>")
        } else {
            write!(line, "{} {word} ", format_utc(SystemTime::now()))
        };
    }

    /// The line that tells how many lines were not written.
    fn dropped_line(self, count: u64) -> String {
        let mut line = String::new();
        self.push_prefix(&mut line, Level::WARN);
        let (lines, were) = if count == 1 { ("line", "was") } else { ("lines", "were") };
        let _ = writeln!(
            line,
            "{count} log {lines} {were} dropped: stderr was not read fast enough, or has failed"
        );
        line
    }
}

#[derive(Default)]
struct EventFields {
    message: String,
    rest: String,
}

impl Visit for EventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(&shown_line(value));
        } else if value.is_empty() || value.contains([' ', '"', '=']) || value.chars().any(is_hidden) {
            let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = write!(self.rest, " {}=\"{}\"", field.name(), shown_line(&quoted));
        } else {
            let _ = write!(self.rest, " {}={value}", field.name());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// `2026-11-21T00:00:00Z`.
pub fn format_utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86400, seconds % 86400);
    // Civil date from days since 1970-01-01: shift to eras of 400 years that begin in March, so
    // that the leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(format_utc(UNIX_EPOCH + Duration::from_secs(seconds)), want);
        }
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let mut limiter = LineLimiter::default();
        let start = Instant::now();
        let printed = (0..100).filter(|_| limiter.admit("kind", start) == LimitDecision::Print).count();
        assert_eq!(printed, BURST_LINES as usize);
        let later = start + BURST_WINDOW;
        assert_eq!(limiter.admit("kind", later), LimitDecision::PrintAfter(100 - BURST_LINES));
        assert_eq!(limiter.admit("kind", later), LimitDecision::Print);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(shown_line("a\nb\x1b[1m"), "a\\u000ab\\u001b[1m");
    }
}
