//! Figures as text: as many digits as count, sizes, times.

use crate::compare::Spread;
use crate::interval::short;

/// What stands where nothing is known.
pub(super) const UNKNOWN: &str = "–";

/// A figure and its spread, in short.
pub(super) fn with_spread(spread: Option<Spread>, scale: f64) -> String {
    match spread {
        None => UNKNOWN.to_owned(),
        // A spread of less than half a percent is none that could be shown.
        Some(spread) if spread.runs == 1 || spread.noise() < 0.01 => figure(spread.median * scale),
        Some(spread) => format!("{} ±{:.0} %", figure(spread.median * scale), spread.noise() * 50.0),
    }
}

/// Four digits that count, all of those before the point, with commas between thousands.
pub(super) fn figure(value: f64) -> String {
    if value.abs() < 1000.0 {
        return short(value);
    }
    let digits = format!("{:.0}", value.abs());
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `512`, `4K`, `1M`.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0 => "of many sizes".to_owned(),
        1..1024 => bytes.to_string(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// `42 s`, `31 minutes`, `2.5 hours`.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        _ if seconds < 120.0 => format!("{} s", figure((seconds * 10.0).round() / 10.0)),
        _ if seconds < 7200.0 => format!("{:.0} minutes", seconds / 60.0),
        _ => format!("{:.1} hours", seconds / 3600.0),
    }
}
