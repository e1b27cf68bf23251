//! The log: lines on stderr, as text, as JSON or for systemd's journal.
//!
//! Text is `2026-11-21T00:00:00.123456Z WARN iscsi: login failed peer=192.0.2.7:40000 ...`: time, level, area, what
//! happened, who and why. Events come from `tracing`'s macros; their `target:` is an [`area`].
//!
//! Two bounds hold. At most [`BURST_LINES`] lines of one kind (level and place in the source) are written in ten
//! seconds, and then one line with the number of suppressed ones, so that a peer that misbehaves a thousand times a
//! second cannot fill a disk; only what operators change ([`area::AUDIT`]) is written always. And the program never
//! waits for who reads: lines go through a bounded queue, and those that do not fit are dropped and counted. The usual
//! subscribers have neither (`tracing-journald` waits for the journal), and this is why there is one here. Spans are
//! not used.

pub mod area;
mod filter;
mod format;
mod journal;
mod queue;

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    borrow::Cow,
    collections::HashMap,
    fmt::{self, Write as _},
    hash::Hash,
    io::{self, Write as _},
    panic::PanicHookInfo,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

pub use filter::{FilterError, LogFilter};
pub use format::{FormatError, LogFormat};

use crate::printable::escape_lines;
use format::{LogEncoding, LogRecord};
use journal::JournalSocket;
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
/// A value is cut behind so many bytes: a line of several such values still has room in the queue, and in a datagram
/// to the journal.
const VALUE_BYTES_MAX: usize = 8 << 10;
/// How long the last lines of a process may take to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The variable with the filter.
pub const FILTER_VARIABLE: &str = "BLOCKWIRE_LOG";

/// Where stderr's lines wait, once this process logs.
static STDERR_QUEUE: OnceLock<Arc<LogQueue>> = OnceLock::new();
/// Where events go, once this process logs.
static LOG: OnceLock<LogOutput> = OnceLock::new();

/// What is logged, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// The form of lines.
    pub format: LogFormat,
    /// Which events.
    pub filter: LogFilter,
}

/// Where events go, and in which form.
#[derive(Clone, Debug)]
struct LogOutput {
    encoding: LogEncoding,
    queue: Arc<LogQueue>,
}

impl LogOutput {
    fn push(&self, record: &LogRecord<'_>) {
        self.queue.push(self.encoding.encode(record));
    }
}

/// Sends events to the log from now on, and what a thread that panics says.
///
/// # Errors
/// The system has no thread for it, or no journal that takes lines.
pub fn install_logger(settings: LogSettings) -> io::Result<()> {
    let encoding = LogEncoding::of(settings.format);
    if LOG.get().is_none() {
        let dropped = move |count| encoding.encode_dropped(count);
        // With the journal, stderr has what is not logged.
        let of_stderr = if encoding == LogEncoding::Journal { LogEncoding::Text } else { encoding };
        let stderr = LogQueue::start(io::stderr(), move |count| of_stderr.encode_dropped(count))?;
        let queue = match encoding {
            LogEncoding::Journal => LogQueue::start(JournalSocket::open()?, dropped)?,
            LogEncoding::Text | LogEncoding::PrefixedText | LogEncoding::Json => stderr.clone(),
        };
        STDERR_QUEUE.get_or_init(|| stderr);
        LOG.get_or_init(|| LogOutput { encoding, queue });
    }
    std::panic::set_hook(Box::new(log_panic));
    let Some(output) = LOG.get().cloned() else { return Ok(()) };
    let logger = Logger { filter: settings.filter, output, limiter: Mutex::default() };
    // A second logger in one process (tests) is no harm: the first one stays.
    let _ = tracing::subscriber::set_global_default(logger);
    Ok(())
}

/// Says to the person at the terminal what may not be meant so.
pub fn warn_on_stderr(warning: &str) {
    write_stderr(&format!("warning: {}\n", crate::printable::escape_lines(warning)));
}

/// Writes text to stderr as it is: behind the lines that wait, without waiting for them, if this process logs.
pub fn write_stderr(text: &str) {
    match STDERR_QUEUE.get() {
        Some(queue) => queue.push(text.to_owned()),
        None => drop(io::stderr().write_all(text.as_bytes())),
    }
}

/// Text for who started the program by hand; nothing where lines are for programs.
pub fn write_hint(text: &str) {
    match LOG.get().map(|output| output.encoding) {
        None | Some(LogEncoding::Text | LogEncoding::PrefixedText) => write_stderr(text),
        Some(LogEncoding::Json | LogEncoding::Journal) => {}
    }
}

/// Says why the process ends: to who started it, and in the log if its lines are for programs.
pub fn write_failure(message: &str) {
    let message = escape_lines(message);
    let Some(output) = LOG.get() else { return write_stderr(&format!("blockwire: {message}\n")) };
    let record = LogRecord { level: Level::ERROR, area: area::SERVE, message: &message, fields: &[] };
    match output.encoding {
        LogEncoding::Text | LogEncoding::PrefixedText => write_stderr(&format!("blockwire: {message}\n")),
        LogEncoding::Json => output.push(&record),
        LogEncoding::Journal => {
            write_stderr(&format!("blockwire: {message}\n"));
            output.push(&record);
        }
    }
}

/// Gives the last lines of a process time to be written: a second, so that a stderr that nobody reads keeps no
/// process from its end.
pub fn flush() {
    for queue in LOG.get().map(|output| &output.queue).into_iter().chain(STDERR_QUEUE.get()) {
        queue.flush(FLUSH_TIMEOUT);
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let name = thread.name().unwrap_or("without a name");
    let mut text = format!("this is a bug, please report it: the thread {name} {panic}");
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        let _ = write!(text, "\n{trace}");
    }
    match LOG.get() {
        Some(output) => {
            output.push(&LogRecord { level: Level::ERROR, area: area::SERVE, message: &text, fields: &[] });
        }
        None => write_stderr(&(text + "\n")),
    }
    // The process may end by it.
    flush();
}

struct Logger {
    filter: LogFilter,
    output: LogOutput,
    limiter: Mutex<LineLimiter<Identifier>>,
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
        metadata.is_event() && self.filter.admits(area::of_target(metadata.target()), *metadata.level())
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let area = area::of_target(event.metadata().target());
        let kind = event.metadata().callsite();
        let decision = match area {
            area::AUDIT => LimitDecision::Print,
            _ => self.limiter.lock().unwrap_or_else(PoisonError::into_inner).admit(kind, Instant::now()),
        };
        match decision {
            LimitDecision::Drop => return,
            LimitDecision::Print => {}
            LimitDecision::PrintAfter(left_out) => {
                let fields = [("count", serde_json::Value::from(left_out))];
                let message = "similar lines were suppressed";
                self.output.push(&LogRecord { level: Level::WARN, area, message, fields: &fields });
            }
        }
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let (level, message) = (*event.metadata().level(), &*fields.message);
        self.output.push(&LogRecord { level, area, message, fields: &fields.rest });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The beginning of a long value, and how much more there is.
fn cut_value(value: &str) -> Cow<'_, str> {
    if value.len() <= VALUE_BYTES_MAX {
        return Cow::Borrowed(value);
    }
    let end = (0..=VALUE_BYTES_MAX).rev().find(|at| value.is_char_boundary(*at)).unwrap_or(0);
    let begins = value.get(..end).unwrap_or_default();
    Cow::Owned(format!("{begins}... ({} bytes more)", value.len() - end))
}

#[derive(Default)]
struct EventFields {
    message: String,
    rest: Vec<(&'static str, serde_json::Value)>,
}

impl EventFields {
    fn add(&mut self, field: &Field, value: impl Into<serde_json::Value>) {
        self.rest.push((field.name(), value.into()));
    }
}

impl Visit for EventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(&cut_value(value)),
            _ => self.add(field, cut_value(value)),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// `2026-11-21T00:00:00Z`.
pub fn format_utc(time: SystemTime) -> String {
    format!("{}Z", format_date_time(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()))
}

/// `2026-11-21T00:00:00.123456Z`.
pub fn format_utc_micros(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:06}Z", format_date_time(since.as_secs()), since.subsec_micros())
}

fn format_date_time(seconds: u64) -> String {
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
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
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
        let time = UNIX_EPOCH + Duration::from_micros(951_782_400_000_042);
        assert_eq!(format_utc_micros(time), "2000-02-29T00:00:00.000042Z");
    }

    /// The audit has a line for each change, however much there is to say of it.
    #[test]
    fn a_long_value_is_cut_and_a_line_of_several_fits_a_datagram() {
        assert_eq!(cut_value("all targets"), "all targets");
        let long = format!("a{}", "ü".repeat(500_000));
        let cut = cut_value(&long);
        assert!(cut.starts_with("aü") && cut.ends_with("ü... (991810 bytes more)"), "{}", cut.len());
        let fields = ["object", "before", "after", "cause"].map(|name| (name, (&*cut).into()));
        let record = LogRecord { level: Level::INFO, area: area::AUDIT, message: &cut, fields: &fields };
        // What a datagram holds where nobody has changed net.core.wmem_default.
        assert!(LogEncoding::Journal.encode(&record).len() < 200_000);
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
}
