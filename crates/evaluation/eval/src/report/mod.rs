//! A record as people read it: HTML (one file, works offline), Markdown, CSV.
//!
//! Invariant: a report shows nothing that is not in its record, in the published figures, or computed
//! from them; what is not known is shown as a dash, never as zero.

mod beside;
mod chart;
mod drawn;
mod groups;
mod html;
mod tables;
mod words;

pub use html::html;
pub use tables::{csv, markdown};

use crate::compare::Spread;
use crate::interval::short;

/// What stands where nothing is known.
const UNKNOWN: &str = "–";

/// A figure and its spread, in short.
fn with_spread(spread: Option<Spread>, scale: f64) -> String {
    match spread {
        None => UNKNOWN.to_owned(),
        // A spread of less than half a percent is none that could be shown.
        Some(spread) if spread.runs == 1 || spread.noise() < 0.01 => figure(spread.median * scale),
        Some(spread) => format!("{} ±{:.0} %", figure(spread.median * scale), spread.noise() * 50.0),
    }
}

/// Four digits that count, all of those before the point, with commas between thousands.
fn figure(value: f64) -> String {
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
fn size(bytes: u64) -> String {
    match bytes {
        0 => "of many sizes".to_owned(),
        1..1024 => bytes.to_string(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}
