//! Steady state, by the SNIA Solid State Storage Performance Test Specification, 2.1.24: over a window of
//! five rounds the tracked figure's range is at most 20 % of its average, and the straight line fitted to it
//! by least squares changes within the window by at most 10 % of the average.

/// Rounds that are looked at together.
pub const WINDOW_ROUNDS: usize = 5;
/// Greatest range of the figure within the window, as part of its average.
pub const STEADY_RANGE_MAX: f64 = 0.20;
/// Greatest rise or fall of the fitted line over the window, as part of the average.
pub const STEADY_SLOPE_MAX: f64 = 0.10;

/// What a window of rounds looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundWindow {
    /// The mean of its rounds.
    pub average: f64,
    /// Highest less lowest, as part of the average.
    pub range: f64,
    /// Slope of the fitted line, per round.
    pub slope: f64,
    /// How far the line rises (or falls, then negative) from the first round to the last, as part of the
    /// average.
    pub excursion: f64,
}

impl RoundWindow {
    /// Looks at the last [`WINDOW_ROUNDS`] rounds; `None` if there are fewer, or their average is not above 0.
    pub fn last(rounds: &[f64]) -> Option<RoundWindow> {
        let window = rounds.last_chunk::<WINDOW_ROUNDS>()?;
        let n = WINDOW_ROUNDS as f64;
        let average = window.iter().sum::<f64>() / n;
        if average.is_nan() || average <= 0.0 {
            return None;
        }
        let high = window.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let low = window.iter().copied().fold(f64::INFINITY, f64::min);
        let middle = (n - 1.0) / 2.0;
        let (mut product, mut square) = (0.0, 0.0);
        for (at, value) in window.iter().enumerate() {
            let x = at as f64 - middle;
            product += x * (value - average);
            square += x * x;
        }
        let slope = product / square;
        Some(RoundWindow {
            average,
            range: (high - low) / average,
            slope,
            excursion: slope * (n - 1.0) / average,
        })
    }

    /// Whether the system is steady by both rules.
    pub fn is_steady(&self) -> bool {
        self.range <= STEADY_RANGE_MAX && self.excursion.abs() <= STEADY_SLOPE_MAX
    }
}

/// The round, counted from 1, with which the first steady window ends.
pub fn steady_round(rounds: &[f64]) -> Option<usize> {
    (WINDOW_ROUNDS..=rounds.len())
        .find(|end| rounds.get(..*end).and_then(RoundWindow::last).is_some_and(|w| w.is_steady()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_line_is_steady_at_once() {
        let window = RoundWindow::last(&[100.0; 5]).unwrap();
        assert_eq!((window.average, window.range, window.slope), (100.0, 0.0, 0.0));
        assert_eq!(steady_round(&[100.0; 5]), Some(5));
        assert_eq!(steady_round(&[100.0; 4]), None);
    }

    #[test]
    fn the_limits_themselves_are_within() {
        // Range exactly 20 %, no slope: 90, 110, 100, 110, 90.
        let window = RoundWindow::last(&[90.0, 110.0, 100.0, 110.0, 90.0]).unwrap();
        assert!((window.range - 0.20).abs() < 1e-12 && window.excursion.abs() < 1e-12);
        assert!(RoundWindow { range: STEADY_RANGE_MAX, ..window }.is_steady());
        assert!(!RoundWindow::last(&[89.0, 111.0, 100.0, 110.0, 90.0]).unwrap().is_steady());
        // A pure slope of 2.5 a round: from 95 to 105 is 10 % over the window.
        let window = RoundWindow::last(&[95.0, 97.5, 100.0, 102.5, 105.0]).unwrap();
        assert!((window.slope - 2.5).abs() < 1e-12 && (window.excursion - 0.10).abs() < 1e-12);
        assert!(!RoundWindow::last(&[94.0, 97.0, 100.0, 103.0, 106.0]).unwrap().is_steady());
    }

    #[test]
    fn a_system_that_settles_is_steady_when_the_window_has_left_its_fall() {
        let rounds = [300.0, 200.0, 150.0, 110.0, 104.0, 101.0, 100.0, 100.0, 99.0];
        assert_eq!(steady_round(&rounds), Some(8));
        let falling: Vec<f64> = (0..25).map(|round| 1000.0 * 0.95f64.powi(round)).collect();
        assert_eq!(steady_round(&falling), None, "it falls by a fifth in each window");
    }

    #[test]
    fn nothing_is_not_steady() {
        assert_eq!(RoundWindow::last(&[0.0; 5]), None);
        assert_eq!(RoundWindow::last(&[f64::NAN; 5]), None);
    }
}
