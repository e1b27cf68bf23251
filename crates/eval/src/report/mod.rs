//! A record as people read it: HTML (one file, works offline), Markdown, CSV.
//!
//! Invariant: a report shows nothing that is not in its record, in the published figures, or computed
//! from them; what is not known is shown as a dash, never as zero.

mod chart;
mod html;
mod tables;

pub use html::html;
pub use tables::{csv, markdown};

use crate::compare::Spread;
use crate::interval::short;

/// A figure and its spread, in short.
fn with_spread(spread: Option<Spread>, scale: f64) -> String {
    match spread {
        None => "–".to_owned(),
        Some(spread) if spread.runs == 1 => short(spread.median * scale),
        Some(spread) => format!("{} ±{:.0} %", short(spread.median * scale), spread.noise() * 50.0),
    }
}

/// `512`, `4K`, `1M`.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => bytes.to_string(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}
