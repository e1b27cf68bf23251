//! Figures as text: significant digits, sizes, times.

use crate::bootstrap::Ratio;
use crate::compare::Spread;
use crate::figure_range::format_short;
use crate::record::Record;

use super::groups::load_kind_name;

/// What stands where nothing is known.
pub(super) const UNKNOWN_CELL: &str = "–";
/// What is said of what a record does not hold.
pub(super) const NOT_RECORDED: &str = "not recorded";

/// A figure and its spread, in short.
pub(super) fn with_spread(spread: Option<Spread>, scale: f64) -> String {
    match spread {
        None => UNKNOWN_CELL.to_owned(),
        // A spread of less than half a percent is none that could be shown.
        Some(spread) if spread.runs == 1 || spread.noise() < 0.01 => format_figure(spread.median * scale),
        Some(spread) => format!("{} ±{:.0} %", format_figure(spread.median * scale), spread.noise() * 50.0),
    }
}

/// Four digits that count, all of those before the point, with commas between thousands.
pub(super) fn format_figure(value: f64) -> String {
    if value.abs() < 1000.0 {
        return format_short(value);
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
pub(super) fn format_size(bytes: u64) -> String {
    match bytes {
        0 => "of many sizes".to_owned(),
        1..1024 => bytes.to_string(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// A ratio, the one form in which reports hold figures against each other: `1.43x`, `0.061x`, `24x`.
pub(super) fn format_times(ratio: f64) -> String {
    let places = match ratio.abs() {
        _ if !ratio.is_finite() => return UNKNOWN_CELL.to_owned(),
        0.0 => 0,
        10.0.. => 1,
        0.1.. => 2,
        0.01.. => 3,
        _ => 4,
    };
    format!("{ratio:.places$}x")
}

/// A ratio with its interval where there are rounds enough: `1.43x (1.40x to 1.46x)`.
pub(super) fn format_ratio(ratio: Option<Ratio>) -> String {
    let Some(Ratio { ratio, interval }) = ratio else { return UNKNOWN_CELL.to_owned() };
    match interval {
        None => format_times(ratio),
        Some((low, high)) => {
            format!("{} ({} to {})", format_times(ratio), format_times(low), format_times(high))
        }
    }
}

/// What is said of loads whose runs are too short to count, if there are any.
pub(super) fn smoke_test_notice(record: &Record) -> Option<String> {
    let mut short = record.points.iter().filter_map(|point| Some((point, point.smoke_test()?)));
    let (first, why) = short.next()?;
    let (count, all) = (short.count() + 1, record.points.len());
    Some(format!(
        "{count} of {all} loads are a smoke test: they show that it works, and win nothing. The first of them is {}, {}, of {}: {why}.",
        load_kind_name(&first.rw).to_lowercase(),
        format_size(first.bytes),
        first.target
    ))
}

/// `42 s`, `31 minutes`, `2.5 hours`.
pub(super) fn format_time(seconds: f64) -> String {
    match seconds {
        _ if seconds < 120.0 => format!("{} s", format_figure((seconds * 10.0).round() / 10.0)),
        _ if seconds < 7200.0 => format!("{:.0} minutes", seconds / 60.0),
        _ => format!("{:.1} hours", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "0.5x" and "-50 %" were both in use, for the same thing.
    #[test]
    fn a_ratio_has_one_form() {
        let shown = [2.4, 1.43, 0.5, 0.061, 24.0, 0.002, 0.0].map(format_times);
        assert_eq!(shown, ["2.40x", "1.43x", "0.50x", "0.061x", "24.0x", "0.0020x", "0x"]);
        let ratio = |interval| Some(Ratio { ratio: 0.5, interval });
        assert_eq!(format_ratio(ratio(Some((0.4, 0.6)))), "0.50x (0.40x to 0.60x)");
        assert_eq!(
            (format_ratio(ratio(None)), format_ratio(None)),
            ("0.50x".to_owned(), UNKNOWN_CELL.to_owned())
        );
    }
}
