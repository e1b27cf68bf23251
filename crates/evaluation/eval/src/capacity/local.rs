//! The cost of a size from measured sizes next to it.
//!
//! Between two neighbours the cost is a line through both. If it bends all the way in one sense, the cost of the size lies
//! between that line and those through either neighbour and the size beyond it. Rounds of every size are drawn again with
//! repetition (bootstrap) for what chance adds. Invariant: what is beyond the measured sizes, across a threshold, or wider than
//! [`MISS_MAX`] to either side, is refused.

use serde::{Deserialize, Serialize};

use super::IoCost;
use crate::bootstrap::{ROUNDS_MIN, SplitMix64, tail_share};

/// How far a prediction may be off to either side.
pub const MISS_MAX: f64 = 0.15;
/// Highest less lowest round of a size, as part of their mean, above which nothing is said by it.
pub const SPREAD_MAX: f64 = 0.10;
const RESAMPLES: usize = 400;

/// What bounds tell of chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoundsMeaning {
    /// The range of so many rounds: no certainty is claimed.
    Range(usize),
    /// What 95 % of the rounds' resamples lie within; of the size with the fewest rounds there are so many.
    Resampled(usize),
}

impl std::fmt::Display for BoundsMeaning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BoundsMeaning::Range(rounds) => write!(f, "range of {rounds} rounds"),
            BoundsMeaning::Resampled(rounds) => write!(f, "95 % certain over {rounds} rounds"),
        }
    }
}

/// What an I/O is predicted to cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedCost {
    /// Processor seconds for each.
    pub seconds: f64,
    /// At least: where the cost bends least, and by chance.
    pub low: f64,
    /// At most.
    pub high: f64,
    /// What its bounds tell of chance.
    pub chance: BoundsMeaning,
    /// How full the cores were of which this is known.
    pub fill: f64,
}

/// Why a cost is not predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PredictionError {
    /// No size below it, or none above it, was measured on its side of the thresholds.
    Outside,
    /// Fewer than three such sizes were: how the cost bends is not known.
    FewSizes,
    /// A size was measured once: how far its rounds differ is not known.
    OneRound,
    /// Rounds of one size differ by so large a part.
    Noisy(f64),
    /// The cost bends, or chance moves it, by so large a part to either side.
    Wide(f64),
    /// A cost is not above zero.
    NotPositive,
}

impl std::fmt::Display for PredictionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PredictionError::Outside => f.write_str(
                "no measured size below it, or none above it, is on its side of the protocol's threshold and of the cache",
            ),
            PredictionError::FewSizes => {
                f.write_str("how the cost bends takes three sizes next to it: measure more, for example 4k, 16k, 64k")
            }
            PredictionError::OneRound => {
                f.write_str("a size next to it was measured in one round: how far rounds differ is not known")
            }
            PredictionError::Noisy(part) => write!(
                f,
                "rounds of a size next to it differ by {:.0} % ({:.0} at most): run longer on a machine that does nothing else",
                part * 100.0,
                SPREAD_MAX * 100.0
            ),
            PredictionError::Wide(part) => write!(
                f,
                "the cost bends too much there: it would be off by up to {:.0} % ({:.0} at most); measure a size nearer to it",
                part * 100.0,
                MISS_MAX * 100.0
            ),
            PredictionError::NotPositive => {
                f.write_str("a cost in the run is not above zero: it was too short to be measured")
            }
        }
    }
}

impl std::error::Error for PredictionError {}

/// Why rounds of a size tell nothing.
pub(super) fn noise(cost: &IoCost) -> Option<PredictionError> {
    if cost.rounds.is_empty() || cost.rounds.iter().any(|one| one.is_nan() || *one <= 0.0) {
        return Some(PredictionError::NotPositive);
    }
    if cost.rounds.len() < 2 {
        return Some(PredictionError::OneRound);
    }
    Some(cost.spread()).filter(|spread| *spread > SPREAD_MAX).map(PredictionError::Noisy)
}

/// A size and a cost.
type SizeAndCost = (f64, f64);

/// The line through two of them, at a size.
fn interpolate(one: SizeAndCost, two: SizeAndCost, bytes: f64) -> f64 {
    one.1 + (two.1 - one.1) * (bytes - one.0) / (two.0 - one.0)
}

/// Sizes next to one: those beyond, and its neighbours.
#[derive(Clone, Copy)]
struct NeighbourSizes<'a> {
    below: [Option<&'a IoCost>; 2],
    above: [Option<&'a IoCost>; 2],
}

impl NeighbourSizes<'_> {
    /// Cost and its bounds at a size, of one figure for each neighbour.
    fn cost_at(&self, bytes: f64, figure: &mut dyn FnMut(&IoCost) -> f64) -> Option<(f64, f64, f64)> {
        let mut at = |cost: Option<&IoCost>| cost.map(|cost| (cost.bytes, figure(cost)));
        let (far, low, high, beyond) =
            (at(self.below[1]), at(self.below[0])?, at(self.above[0])?, at(self.above[1]));
        let chord = interpolate(low, high, bytes);
        let outer = [
            far.map(|far| interpolate(far, low, bytes)),
            beyond.map(|beyond| interpolate(high, beyond, bytes)),
        ];
        let outer: Vec<f64> = outer.into_iter().flatten().collect();
        let first = *outer.first()?;
        let is_one_sense = outer.iter().all(|one| (one - chord) * (first - chord) >= 0.0);
        let nearest = outer.iter().copied().min_by(|a, b| (a - chord).abs().total_cmp(&(b - chord).abs()))?;
        if is_one_sense {
            return Some((f64::midpoint(chord, nearest), chord.min(nearest), chord.max(nearest)));
        }
        let (least, most) =
            outer.iter().fold((chord, chord), |(low, high), one| (low.min(*one), high.max(*one)));
        Some((chord, least, most))
    }
}

/// What an I/O costs that is like `wanted` (its bytes, bytes in flight, and whether its data is asked for; its rounds are not
/// looked at), from sizes that were measured. `cache`: bytes in flight above which they leave a cache, where that is known.
///
/// # Errors
/// Why it cannot be told.
pub fn predict_cost(
    costs: &[IoCost],
    wanted: &IoCost,
    cache: Option<f64>,
) -> Result<PredictedCost, PredictionError> {
    let leaves = |cost: &IoCost| cache.is_some_and(|cache| cost.in_flight > cache);
    let is_alike = |cost: &&IoCost| cost.is_asked == wanted.is_asked && leaves(cost) == leaves(wanted);
    let mut alike: Vec<&IoCost> = costs.iter().filter(is_alike).collect();
    alike.sort_by(|a, b| a.bytes.total_cmp(&b.bytes));
    if let Some(same) = alike.iter().find(|cost| cost.bytes == wanted.bytes) {
        noise(same).map_or(Ok(()), Err)?;
        let (low, high) = same.bounds();
        let chance = BoundsMeaning::Range(same.rounds.len());
        return Ok(PredictedCost { seconds: same.seconds(), low, high, chance, fill: same.fill });
    }
    let mut below = alike.iter().rev().filter(|cost| cost.bytes < wanted.bytes).copied();
    let mut above = alike.iter().filter(|cost| cost.bytes > wanted.bytes).copied();
    let near = NeighbourSizes { below: [below.next(), below.next()], above: [above.next(), above.next()] };
    let (Some(low), Some(high)) = (near.below[0], near.above[0]) else {
        return Err(PredictionError::Outside);
    };
    let used: Vec<&IoCost> = near.below.into_iter().chain(near.above).flatten().collect();
    if let Some(why) = used.iter().find_map(|cost| noise(cost)) {
        return Err(why);
    }
    let found = near.cost_at(wanted.bytes, &mut IoCost::seconds);
    let (seconds, mut least, mut most) = found.ok_or(PredictionError::FewSizes)?;
    let (by_chance_least, by_chance_most, chance) = bootstrap_bounds(&near, &used, wanted.bytes);
    (least, most) = (least.min(by_chance_least), most.max(by_chance_most));
    if seconds <= 0.0 {
        return Err(PredictionError::NotPositive);
    }
    let wide = (most - seconds).max(seconds - least) / seconds;
    if wide > MISS_MAX {
        return Err(PredictionError::Wide(wide));
    }
    Ok(PredictedCost {
        seconds,
        low: least.max(0.0),
        high: most,
        chance,
        fill: f64::midpoint(low.fill, high.fill),
    })
}

/// Where the cost lies with 95 % certainty, by its rounds; of too few, their whole range.
fn bootstrap_bounds(near: &NeighbourSizes<'_>, used: &[&IoCost], bytes: f64) -> (f64, f64, BoundsMeaning) {
    let rounds = used.iter().map(|cost| cost.rounds.len()).min().unwrap_or(0);
    if rounds < ROUNDS_MIN {
        let of =
            |figure: fn(&IoCost) -> f64| near.cost_at(bytes, &mut { figure }).map(|(seconds, ..)| seconds);
        let ends = [of(|cost| cost.bounds().0), of(|cost| cost.bounds().1)];
        let ends: Vec<f64> = ends.into_iter().flatten().collect();
        let (low, high) = ends
            .iter()
            .fold((f64::INFINITY, 0.0), |(low, high), one| (f64::min(low, *one), f64::max(high, *one)));
        return (low, high, BoundsMeaning::Range(rounds));
    }
    let mut random = SplitMix64::new();
    let mut drawn = |cost: &IoCost| {
        let all = random.draw_indices(cost.rounds.len());
        let sum: f64 = all.iter().filter_map(|round| cost.rounds.get(*round)).sum();
        sum / all.len() as f64
    };
    let mut found: Vec<f64> =
        (0..RESAMPLES).filter_map(|_| near.cost_at(bytes, &mut drawn)).map(|(seconds, ..)| seconds).collect();
    found.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = (part * found.len().saturating_sub(1) as f64).round() as usize;
        found.get(place).copied().unwrap_or(f64::INFINITY)
    };
    (at(tail_share(rounds)), at(1.0 - tail_share(rounds)), BoundsMeaning::Resampled(rounds))
}

#[cfg(test)]
mod tests {
    use super::super::tests::cost;
    use super::*;

    fn wanted(bytes: f64) -> IoCost {
        IoCost { rounds: Vec::new(), ..cost(bytes, 1.0) }
    }

    #[test]
    fn a_straight_line_is_found_again() {
        let seconds = |bytes: f64| 1e-6 + bytes * 2e-10;
        let costs = [4096.0, 16_384.0, 131_072.0].map(|bytes| cost(bytes, seconds(bytes)));
        let found = predict_cost(&costs, &wanted(65_536.0), None).unwrap();
        assert!((found.seconds / seconds(65_536.0) - 1.0).abs() < 1e-9, "{found:?}");
        assert!(
            found.low < found.seconds && found.seconds < found.high && found.high / found.low < 1.01,
            "{found:?}"
        );
        // What was measured is as it was measured.
        assert!(
            (predict_cost(&costs, &wanted(4096.0), None).unwrap().seconds / seconds(4096.0) - 1.0).abs()
                < 1e-9
        );
    }

    /// Of few rounds, and of a size that was measured itself, the bounds were called 95 % certain.
    #[test]
    fn no_certainty_is_claimed_of_a_range() {
        let with = |rounds: usize| {
            [4096.0, 16_384.0, 65_536.0, 131_072.0].map(|bytes| {
                let cost = cost(bytes, 1e-6 + bytes * 2e-10);
                IoCost { rounds: vec![cost.seconds(); rounds], ..cost }
            })
        };
        let chance = |rounds, bytes| predict_cost(&with(rounds), &wanted(bytes), None).unwrap().chance;
        assert_eq!(chance(4, 32_768.0), BoundsMeaning::Range(4));
        assert_eq!(chance(5, 32_768.0), BoundsMeaning::Resampled(5));
        assert_eq!(chance(5, 4096.0), BoundsMeaning::Range(5));
        assert_eq!(BoundsMeaning::Range(2).to_string(), "range of 2 rounds");
    }

    #[test]
    fn what_bends_is_bounded_or_refused() {
        // As far as a parabola bends between its neighbours.
        let seconds = |bytes: f64| 1e-6 + bytes * 2e-10 + bytes * bytes * 2e-16;
        let costs = [4096.0, 16_384.0, 65_536.0, 131_072.0].map(|bytes| cost(bytes, seconds(bytes)));
        let found = predict_cost(&costs, &wanted(32_768.0), None).unwrap();
        let right = seconds(32_768.0);
        assert!(found.low <= right && right <= found.high, "{found:?} against {right}");
        // A break between two sizes: nobody knows where.
        let seconds = |bytes: f64| if bytes > 20_000.0 { 50e-6 } else { 2e-6 };
        let costs = [4096.0, 16_384.0, 65_536.0, 131_072.0].map(|bytes| cost(bytes, seconds(bytes)));
        assert!(matches!(predict_cost(&costs, &wanted(32_768.0), None), Err(PredictionError::Wide(_))));
    }

    /// Sizes whose data is asked for, or whose bytes in flight have left the cache, say nothing of others.
    #[test]
    fn thresholds_are_not_crossed() {
        let mut costs =
            [4096.0, 8192.0, 16_384.0, 65_536.0, 131_072.0].map(|bytes| cost(bytes, 1e-6 + bytes * 2e-10));
        for cost in costs.iter_mut().filter(|cost| cost.bytes > 20_000.0) {
            cost.is_asked = true;
            cost.rounds.iter_mut().for_each(|seconds| *seconds += 3e-6);
        }
        let asked = IoCost { is_asked: true, ..wanted(32_768.0) };
        assert_eq!(predict_cost(&costs, &asked, None), Err(PredictionError::Outside));
        let rides = predict_cost(&costs, &wanted(12_288.0), None).unwrap();
        assert!((rides.seconds / (1e-6 + 12_288.0 * 2e-10) - 1.0).abs() < 0.01, "{rides:?}");
        // The cache holds what is in flight of 8 KiB, and not of 16 KiB.
        assert_eq!(
            predict_cost(&costs, &wanted(12_288.0), Some(32.0 * 10_000.0)),
            Err(PredictionError::Outside)
        );
    }

    #[test]
    fn too_little_is_told_as_such() {
        let two = [4096.0, 65_536.0].map(|bytes| cost(bytes, 1e-6));
        assert_eq!(predict_cost(&two, &wanted(16_384.0), None), Err(PredictionError::FewSizes));
        assert_eq!(predict_cost(&two, &wanted(131_072.0), None), Err(PredictionError::Outside));
        assert_eq!(predict_cost(&[], &wanted(4096.0), None), Err(PredictionError::Outside));
        let mut zero = two.clone();
        zero[0].rounds[0] = 0.0;
        assert_eq!(predict_cost(&zero, &wanted(16_384.0), None), Err(PredictionError::NotPositive));
        let mut once = two.clone();
        once[0].rounds.truncate(1);
        assert_eq!(predict_cost(&once, &wanted(16_384.0), None), Err(PredictionError::OneRound));
        let mut noisy = two;
        noisy[1].rounds[0] *= 1.11;
        assert!(
            matches!(predict_cost(&noisy, &wanted(16_384.0), None), Err(PredictionError::Noisy(part)) if part > 0.1)
        );
    }
}
