//! Comparison of runs: medians with their spread, and whether a difference is more than noise.
//!
//! Invariant: the test makes no assumption about the distribution of figures (Mann-Whitney, exact for few
//! runs), because those of shared machines are not normal.

use serde::{Deserialize, Serialize};

use crate::bootstrap::{Ratio, RoundPairing};

/// Several runs of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many runs.
    pub runs: usize,
    /// The lowest.
    pub min: f64,
    /// A quarter is at or below it.
    pub lower: f64,
    /// The middle one; of an even number, the mean of the two.
    pub median: f64,
    /// A quarter is at or above it.
    pub upper: f64,
    /// The highest.
    pub max: f64,
}

impl Spread {
    /// Of these figures; `None` if there are none, or one is no number.
    #[expect(
        clippy::indexing_slicing,
        reason = "a place is a part, of 0 to 1, of the last index, and there is one figure at least"
    )]
    pub fn of(figures: &[f64]) -> Option<Spread> {
        if figures.is_empty() || figures.iter().any(|figure| figure.is_nan()) {
            return None;
        }
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = part * (sorted.len() - 1) as f64;
            let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        Some(Spread {
            runs: sorted.len(),
            min: *sorted.first()?,
            lower: at(0.25),
            median: at(0.5),
            upper: at(0.75),
            max: *sorted.last()?,
        })
    }

    /// Highest less lowest as part of the median: how noisy the runs were. 0 if the median is 0.
    pub fn noise(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.max - self.min) / self.median.abs() }
    }
}

/// Runs up to which every arrangement is counted; beyond, the normal approximation is good.
const EXACT_MAX: usize = 20;

/// How likely ranks as unequal as these come by chance if both lists stem from the same source
/// (Mann-Whitney U, two-sided): 0 to 1. Ties count half. 1 if either list is empty.
pub fn mann_whitney_p(a: &[f64], b: &[f64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 1.0;
    }
    // In halves, so that ties stay whole numbers.
    let doubled = |x: &f64, y: &f64| match x.total_cmp(y) {
        std::cmp::Ordering::Greater => 2u64,
        std::cmp::Ordering::Equal => 1,
        std::cmp::Ordering::Less => 0,
    };
    let u: u64 = a.iter().map(|x| b.iter().map(|y| doubled(x, y)).sum::<u64>()).sum();
    let most = 2 * (a.len() * b.len()) as u64;
    let u = u.min(most - u);
    if a.len() <= EXACT_MAX && b.len() <= EXACT_MAX {
        exact_p_value(a.len(), b.len(), u)
    } else {
        approximate_p_value(a, b, u as f64 / 2.0)
    }
}

#[expect(
    clippy::indexing_slicing,
    reason = "ways has a row for each j up to n, of each u up to m * n, and i * j is no more"
)]
/// The two-sided tail, by counting how many arrangements give each U.
fn exact_p_value(m: usize, n: usize, doubled: u64) -> f64 {
    // ways[j][u]: arrangements of i of the first list and j of the second with this U, for growing i.
    let most = m * n;
    let mut ways = vec![vec![0f64; most + 1]; n + 1];
    ways.iter_mut().for_each(|row| row[0] = 1.0);
    for i in 1..=m {
        let before = ways.clone();
        for j in 0..=n {
            for u in 0..=i * j {
                // The greatest of all is of the first list and beats all j, or is of the second.
                let first = if u >= j { before[j][u - j] } else { 0.0 };
                let second = if j > 0 && u <= i * (j - 1) { ways[j - 1][u] } else { 0.0 };
                ways[j][u] = first + second;
            }
        }
    }
    let all: f64 = ways[n].iter().sum();
    let tail: f64 = ways[n].iter().take((doubled / 2) as usize + 1).sum();
    (2.0 * tail / all).min(1.0)
}

/// The two-sided tail by the normal approximation, with the correction for ties and for continuity.
fn approximate_p_value(a: &[f64], b: &[f64], u: f64) -> f64 {
    let (m, n) = (a.len() as f64, b.len() as f64);
    let mut all: Vec<f64> = a.iter().chain(b).copied().collect();
    all.sort_by(f64::total_cmp);
    let ties: f64 = all
        .chunk_by(|x, y| x == y)
        .map(|tied| {
            let t = tied.len() as f64;
            t * t * t - t
        })
        .sum();
    let total = m + n;
    let variance = m * n / 12.0 * ((total + 1.0) - ties / (total * (total - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = ((m * n / 2.0 - u).abs() - 0.5).max(0.0) / variance.sqrt();
    (2.0 * normal_upper_tail(z)).min(1.0)
}

/// How much of a normal distribution lies beyond `z` standard deviations (Abramowitz and Stegun 7.1.26:
/// right within 1.5e-7).
fn normal_upper_tail(z: f64) -> f64 {
    let x = z / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let sum = t
        * (0.254_829_592
            + t * (-0.284_496_736 + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    0.5 * sum * (-x * x).exp()
}

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The second over the first, and how sure that is.
    #[serde(flatten)]
    pub ratio: Ratio,
    /// See [`mann_whitney_p`]; corrected for how many comparisons were made ([`correct_holm`]).
    pub chance: f64,
    /// The smallest chance that so many runs and comparisons can show: that of two lists that lie wholly apart.
    pub least: f64,
}

/// Chance below which a difference is called real.
pub const SIGNIFICANCE_LEVEL: f64 = 0.05;

impl Comparison {
    /// Compares the second list with the first; `None` if there is no ratio of them.
    pub fn of(first: &[f64], second: &[f64], pairing: RoundPairing) -> Option<Comparison> {
        let ratio = Ratio::of(first, second, pairing)?;
        let least = exact_p_value(first.len().min(EXACT_MAX), second.len().min(EXACT_MAX), 0);
        Some(Comparison { ratio, chance: mann_whitney_p(first, second), least })
    }

    /// Whether it is more than noise: by chance it would come in less than [`SIGNIFICANCE_LEVEL`] of cases, and its
    /// interval does not hold 1.
    pub fn is_significant(&self) -> bool {
        self.chance < SIGNIFICANCE_LEVEL && (self.ratio.is_above(1.0) || self.ratio.is_below(1.0))
    }

    /// Whether there are too few runs for any difference to be told from noise.
    pub fn has_too_few_runs(&self) -> bool {
        self.least >= SIGNIFICANCE_LEVEL || self.ratio.interval.is_none()
    }

    /// The chance in a table's cell.
    pub fn p_value_text(&self) -> String {
        if self.has_too_few_runs() { "too few rounds".to_owned() } else { format!("{:.3}", self.chance) }
    }

    /// By how much the second is worse than the first: 0.1 is a tenth. Below 0 it is better.
    pub fn relative_loss(&self, is_more_better: bool) -> f64 {
        if is_more_better { 1.0 - self.ratio.ratio } else { self.ratio.ratio - 1.0 }
    }

    /// Whether the second is worse than the first by more than `gate` (0.05: 5 %), and not by chance.
    pub fn is_worse(&self, is_more_better: bool, gate: f64) -> bool {
        self.relative_loss(is_more_better) > gate && self.is_significant()
    }
}

/// Corrects the chances of comparisons that were made together, by Holm: of many that show nothing some would come
/// below any limit. All of them keep a chance of less than [`SIGNIFICANCE_LEVEL`] that one is wrongly called real.
pub fn correct_holm<'a>(comparisons: impl Iterator<Item = &'a mut Comparison>) {
    let mut all: Vec<&mut Comparison> = comparisons.collect();
    all.sort_by(|a, b| a.chance.total_cmp(&b.chance));
    let (count, mut before) = (all.len(), 0.0_f64);
    for (rank, one) in all.into_iter().enumerate() {
        before = (one.chance * (count - rank) as f64).min(1.0).max(before);
        one.chance = before;
        one.least = (one.least * count as f64).min(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_what_it_says() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0, 5.0]).unwrap();
        assert_eq!(
            (spread.min, spread.lower, spread.median, spread.upper, spread.max),
            (1.0, 2.0, 3.0, 4.0, 5.0)
        );
        assert_eq!(Spread::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[f64::NAN]), None);
    }

    #[test]
    fn few_runs_are_counted_exactly() {
        // Of 5 and 5, all apart: 2 of 252 arrangements. Of 4 and 4: 2 of 70. Of 3 and 3: 2 of 20.
        let apart = |n: usize| {
            let low: Vec<f64> = (0..n).map(|at| at as f64).collect();
            let high: Vec<f64> = (0..n).map(|at| 100.0 + at as f64).collect();
            mann_whitney_p(&low, &high)
        };
        assert!((apart(5) - 2.0 / 252.0).abs() < 1e-12);
        assert!((apart(4) - 2.0 / 70.0).abs() < 1e-12);
        assert!((apart(3) - 0.1).abs() < 1e-12);
        assert!((mann_whitney_p(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]) - 1.0).abs() < 1e-12);
        // A table's value: m = n = 5, U = 2 has a one-sided tail of 4/252.
        let u2 = mann_whitney_p(&[1.0, 2.0, 3.0, 4.0, 7.0], &[5.0, 6.0, 8.0, 9.0, 10.0]);
        assert!((u2 - 2.0 * 4.0 / 252.0).abs() < 1e-12, "{u2}");
    }

    #[test]
    fn many_runs_agree_with_few() {
        let a: Vec<f64> = (0..20).map(|at| f64::from(at) + 0.25).collect();
        let b: Vec<f64> = (0..20).map(|at| f64::from(at) + 5.5).collect();
        let u = a.iter().map(|x| b.iter().filter(|y| x > *y).count()).sum::<usize>() as f64;
        let (exactly, nearly) = (mann_whitney_p(&a, &b), approximate_p_value(&a, &b, u));
        assert!((exactly - nearly).abs() < 0.004, "{exactly} against {nearly}");
    }

    #[test]
    fn a_loss_is_told_from_noise() {
        let steady = [100.0, 101.0, 99.0, 100.5, 99.5];
        let slower = [90.0, 91.0, 89.0, 90.5, 89.5];
        let loss = Comparison::of(&steady, &slower, RoundPairing::Apart).unwrap();
        assert!(loss.is_worse(true, 0.05) && !loss.is_worse(false, 0.05));
        assert!(!loss.is_worse(true, 0.15), "within the gate");
        let noisy = [100.0, 80.0, 120.0, 90.0, 95.0];
        let same = Comparison::of(&steady, &noisy, RoundPairing::Apart).unwrap();
        assert!(!same.is_worse(true, 0.04), "{same:?}");
    }

    /// Two runs each lie wholly apart in a third of all cases by chance.
    #[test]
    fn few_runs_that_lie_wholly_apart_are_never_significant() {
        for count in [1, 2, 3, 4] {
            let (one, two) = (vec![100.0; count], vec![80.0; count]);
            let few = Comparison::of(&one, &two, RoundPairing::Paired).unwrap();
            assert!(few.has_too_few_runs() && !few.is_significant(), "{few:?}");
            assert_eq!(few.p_value_text(), "too few rounds");
        }
        let five = Comparison::of(&[100.0; 5], &[80.0; 5], RoundPairing::Paired).unwrap();
        assert!(!five.has_too_few_runs() && five.is_worse(true, 0.05));
    }

    /// Holm's own example: of four, the limits are a fourth, a third, a half and all of it.
    #[test]
    fn many_comparisons_are_corrected() {
        let one = Comparison::of(&[1.0, 1.1, 1.2, 1.3, 1.4], &[2.0, 2.1, 2.2, 2.3, 2.4], RoundPairing::Apart)
            .unwrap();
        let mut all = [0.01, 0.04, 0.03, 0.005].map(|chance| Comparison { chance, ..one });
        correct_holm(all.iter_mut());
        let chances = all.map(|one| (one.chance * 1e6).round() / 1e6);
        assert_eq!(chances, [0.03, 0.06, 0.06, 0.02]);
        assert!(all.iter().all(|after| (after.least - one.least * 4.0).abs() < 1e-12));
        assert_eq!(all.map(|one| one.is_significant()), [true, false, false, true]);
        // Of ten, five rounds each can show nothing.
        let mut many = [one; 10];
        correct_holm(many.iter_mut());
        assert!(many.iter().all(|one| one.has_too_few_runs() && !one.is_significant()));
        let mut alone = [one];
        correct_holm(alone.iter_mut());
        assert_eq!(alone, [one]);
    }
}
