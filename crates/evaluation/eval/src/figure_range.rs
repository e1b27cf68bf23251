//! A printed figure with the range that its last digit leaves open.
//!
//! Invariant: `low <= high`, neither is NaN; arithmetic on intervals contains every value that the same
//! arithmetic on members would give.

use std::fmt;

/// All that a printed figure may stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FigureRange {
    low: f64,
    high: f64,
}

impl FigureRange {
    /// From `low` to `high`, in either order; a bound that is no number leaves that side open.
    pub fn new(low: f64, high: f64) -> Self {
        let low = if low.is_nan() { f64::NEG_INFINITY } else { low };
        let high = if high.is_nan() { f64::INFINITY } else { high };
        FigureRange { low: low.min(high), high: low.max(high) }
    }

    /// A figure that was rounded to a multiple of `step`.
    pub fn rounded(value: f64, step: f64) -> Self {
        FigureRange::new(value - step / 2.0, value + step / 2.0)
    }

    /// A factor that may be off by this part: `part` is not negative.
    pub(crate) const fn around_one(part: f64) -> Self {
        FigureRange { low: 1.0 - part, high: 1.0 + part }
    }

    /// The lowest value.
    pub fn low(&self) -> f64 {
        self.low
    }

    /// The highest.
    pub fn high(&self) -> f64 {
        self.high
    }

    /// Its middle; of a half-open one, its only bound.
    pub fn middle(&self) -> f64 {
        match (self.low.is_finite(), self.high.is_finite()) {
            (true, true) => f64::midpoint(self.low, self.high),
            (true, false) => self.low,
            (false, true) => self.high,
            (false, false) => 0.0,
        }
    }

    /// Whether both can mean the same value.
    pub fn overlaps(&self, other: &FigureRange) -> bool {
        // What floating point loses is far below any printed digit.
        let slack = 1e-9 * self.middle().abs().max(other.middle().abs());
        self.low <= other.high + slack && other.low <= self.high + slack
    }

    /// The difference.
    pub fn minus(&self, other: &FigureRange) -> FigureRange {
        FigureRange::new(self.low - other.high, self.high - other.low)
    }

    /// The product.
    pub fn times(&self, other: &FigureRange) -> FigureRange {
        let all =
            [self.low * other.low, self.low * other.high, self.high * other.low, self.high * other.high];
        let (low, high) = all
            .into_iter()
            .filter(|value| !value.is_nan())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        FigureRange::new(low, high)
    }

    /// The quotient; `None` if the divisor may be zero.
    pub fn divided_by(&self, other: &FigureRange) -> Option<FigureRange> {
        if other.low <= 0.0 && other.high >= 0.0 {
            return None;
        }
        Some(self.times(&FigureRange::new(1.0 / other.high, 1.0 / other.low)))
    }
}

impl fmt::Display for FigureRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low.is_finite(), self.high.is_finite()) {
            (true, false) => write!(f, "over {}", format_short(self.low)),
            (false, true) => write!(f, "up to {}", format_short(self.high)),
            _ if self.low == self.high => f.write_str(&format_short(self.low)),
            _ => write!(f, "{} to {}", format_short(self.low), format_short(self.high)),
        }
    }
}

/// Four digits that count, and no zeroes behind them.
pub(crate) fn format_short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let places = (3 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arithmetic_holds_what_members_give(
            (a, b) in (0.1f64..1e6, 0.1f64..1e6), (s, t) in (0.001f64..0.1, 0.001f64..0.1),
            (x, y) in (-0.5f64..0.5, -0.5f64..0.5),
        ) {
            let (one, two) = (FigureRange::rounded(a, s), FigureRange::rounded(b, t));
            let (p, q) = (a + s * x, b + t * y);
            let holds = |i: FigureRange, v: f64| i.overlaps(&FigureRange::new(v, v));
            prop_assert!(holds(one.minus(&two), p - q));
            prop_assert!(holds(one.times(&two), p * q));
            prop_assert!(holds(one.divided_by(&two).unwrap(), p / q));
        }
    }

    #[test]
    fn a_half_open_one_meets_all_beyond() {
        let over = FigureRange::new(3.5, f64::INFINITY);
        assert!(over.overlaps(&FigureRange::rounded(3.66, 0.01)));
        assert!(!over.overlaps(&FigureRange::rounded(3.4, 0.01)));
        assert_eq!(over.to_string(), "over 3.5");
        assert!(FigureRange::new(1.0, 2.0).divided_by(&FigureRange::new(-1.0, 1.0)).is_none());
    }

    #[test]
    fn figures_are_printed_short() {
        assert_eq!(format_short(1451.3789), "1451");
        assert_eq!(format_short(0.000_689), "0.000689");
        assert_eq!(format_short(20.0), "20");
        assert_eq!(FigureRange::rounded(19.82, 0.02).to_string(), "19.81 to 19.83");
    }
}
