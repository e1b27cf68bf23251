//! Events as lines: text for people, JSON for programs, fields for systemd's journal.
//!
//! Invariant: no line contains a hidden character of foreign origin (see [`printable`](crate::printable)), and an
//! event is one line, but for the trace of a panic.

use std::{
    fmt::{self, Write as _},
    io,
    os::fd::AsFd,
    str::FromStr,
    time::SystemTime,
};

use serde_json::{Map, Value};
use tracing::Level;

use super::{area, format_utc_micros, journal};
use crate::printable::{escape_line, escape_lines, is_hidden};

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people, on stderr. Under systemd, which has a time stamp of its own, lines begin with a priority instead.
    #[default]
    Text,
    /// One JSON object per line, on stderr.
    Json,
    /// To systemd's journal, with fields.
    Journald,
}

/// No such form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatError;

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the formats are text, json and journald")
    }
}

impl std::error::Error for FormatError {}

impl FromStr for LogFormat {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            "journald" => Ok(LogFormat::Journald),
            _ => Err(FormatError),
        }
    }
}

/// One event.
#[derive(Debug)]
pub(super) struct LogRecord<'a> {
    pub(super) level: Level,
    pub(super) area: &'static str,
    pub(super) message: &'a str,
    pub(super) fields: &'a [(&'static str, Value)],
}

/// How records become bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogEncoding {
    Text,
    /// With `<4>` instead of time and level, as systemd reads it from stderr.
    PrefixedText,
    Json,
    Journal,
}

impl LogEncoding {
    pub(super) fn of(format: LogFormat) -> LogEncoding {
        match format {
            LogFormat::Text if is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref(), io::stderr()) => {
                LogEncoding::PrefixedText
            }
            LogFormat::Text => LogEncoding::Text,
            LogFormat::Json => LogEncoding::Json,
            LogFormat::Journald => LogEncoding::Journal,
        }
    }

    /// The line that tells how many lines were not written.
    pub(super) fn encode_dropped(self, count: u64) -> Vec<u8> {
        let message = "log lines were dropped: they were not read fast enough, or writing has failed";
        let fields = [("count", Value::from(count))];
        self.encode(&LogRecord { level: Level::WARN, area: area::SERVE, message, fields: &fields })
    }

    pub(super) fn encode(self, record: &LogRecord<'_>) -> Vec<u8> {
        match self {
            LogEncoding::Text => {
                let level = level_word(record.level).to_uppercase();
                format!("{} {level} {}\n", format_utc_micros(SystemTime::now()), record.text()).into_bytes()
            }
            LogEncoding::PrefixedText => {
                format!("<{}>{}\n", priority(record.level), record.text()).into_bytes()
            }
            LogEncoding::Json => record.json(SystemTime::now()).into_bytes(),
            LogEncoding::Journal => journal::encode(record),
        }
    }
}

/// Whether it is the stream that systemd names as the journal's, `DEVICE:INODE`. Who starts the program by hand under a
/// service of systemd, a terminal for instance, has the variable too, and another stderr.
fn is_journal(named: Option<&str>, stream: impl AsFd) -> bool {
    let Some((device, inode)) = named.and_then(|named| named.split_once(':')) else { return false };
    rustix::fs::fstat(stream)
        .is_ok_and(|facts| device.parse() == Ok(facts.st_dev) && inode.parse() == Ok(facts.st_ino))
}

impl LogRecord<'_> {
    /// `iscsi: login failed peer=192.0.2.7:40000`.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}: {}", self.area, escape_lines(self.message));
        for (name, value) in self.fields {
            let _ = write!(text, " {name}={}", field_text(value));
        }
        text
    }

    fn json(&self, now: SystemTime) -> String {
        let mut object = Map::new();
        object.insert("time".to_owned(), format_utc_micros(now).into());
        object.insert("level".to_owned(), level_word(self.level).into());
        object.insert("area".to_owned(), self.area.into());
        object.insert("message".to_owned(), self.message.into());
        for (name, value) in self.fields {
            object.insert((*name).to_owned(), value.clone());
        }
        let mut line = escape_line(&Value::Object(object).to_string()).into_owned();
        line.push('\n');
        line
    }
}

/// A value, quoted where it could be misread.
pub(super) fn field_text(value: &Value) -> String {
    let Value::String(text) = value else { return value.to_string() };
    if text.is_empty() || text.contains([' ', '"', '=']) || text.chars().any(is_hidden) {
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        format!("\"{}\"", escape_line(&quoted))
    } else {
        text.clone()
    }
}

pub(super) fn level_word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        _ => "trace",
    }
}

/// The priority of syslog.
pub(super) fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn fields() -> [(&'static str, Value); 4] {
        [
            ("peer", "192.0.2.7:1".into()),
            ("cause", "no such \"target\"".into()),
            ("initiator", "iqn.x\n\u{202e}evil".into()),
            ("count", 3.into()),
        ]
    }

    fn record<'a>(fields: &'a [(&'static str, Value)]) -> LogRecord<'a> {
        LogRecord { level: Level::WARN, area: area::ISCSI, message: "login failed", fields }
    }

    #[test]
    fn text_says_all_in_one_line_and_hides_nothing() {
        assert_eq!(
            record(&fields()).text(),
            "iscsi: login failed peer=192.0.2.7:1 cause=\"no such \\\"target\\\"\" \
             initiator=\"iqn.x\\u000a\\u202eevil\" count=3"
        );
        let line = String::from_utf8(LogEncoding::PrefixedText.encode(&record(&[]))).unwrap();
        assert_eq!(line, "<4>iscsi: login failed\n");
        let line = String::from_utf8(LogEncoding::Text.encode(&record(&[]))).unwrap();
        assert!(line.ends_with("Z WARN iscsi: login failed\n") && line.contains('.'), "{line}");
    }

    #[test]
    fn json_is_an_object_a_line_with_numbers_as_numbers() {
        let line = record(&fields()).json(UNIX_EPOCH + Duration::from_micros(1_500_000));
        assert!(line.is_ascii() && line.ends_with("}\n") && line.matches('\n').count() == 1, "{line}");
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["time"], "1970-01-01T00:00:01.500000Z");
        assert_eq!((&object["level"], &object["area"]), (&"warn".into(), &"iscsi".into()));
        assert_eq!((&object["count"], &object["initiator"]), (&3.into(), &"iqn.x\n\u{202e}evil".into()));
    }

    #[test]
    fn the_journal_is_the_stream_that_systemd_names_and_no_other() {
        let (ours, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let facts = rustix::fs::fstat(&ours).unwrap();
        let named = format!("{}:{}", facts.st_dev, facts.st_ino);
        assert!(is_journal(Some(&named), &ours) && !is_journal(Some(&named), &other));
        assert!(["", "x", ":", "1:2:3", "-1:1"].iter().all(|named| !is_journal(Some(named), &ours)));
        assert!(!is_journal(None, &ours));
    }

    #[test]
    fn formats_have_names() {
        assert_eq!(
            ["text", "json", "journald"].map(str::parse),
            [Ok(LogFormat::Text), Ok(LogFormat::Json), Ok(LogFormat::Journald)]
        );
        assert!("xml".parse::<LogFormat>().unwrap_err().to_string().contains("journald"));
    }
}
