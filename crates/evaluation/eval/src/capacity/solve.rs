//! Least squares without negative coefficients.
//!
//! There are three terms, so each choice of non-zero ones is solved. Invariant: the result has the smallest
//! residual of all choices without a negative coefficient.

use super::Cost;

const TERMS: usize = 3;

/// An I/O's terms: itself, its bytes, and whether its data is asked for.
fn terms(cost: &Cost) -> [f64; TERMS] {
    [1.0, cost.bytes, f64::from(u8::from(cost.is_asked))]
}

/// What an I/O, a byte and asking cost; asking nothing unless it is to be told.
pub(super) fn least(costs: &[Cost], has_ask: bool) -> (f64, f64, f64) {
    let mut best = ([0.0; TERMS], f64::INFINITY);
    for chosen in 1u8..1 << TERMS {
        let uses = |term: usize| chosen >> term & 1 == 1;
        if uses(2) && !has_ask {
            continue;
        }
        let Some(found) = solved(costs, &uses) else { continue };
        if found.iter().any(|one| *one < 0.0) {
            continue;
        }
        let off = |cost: &Cost| {
            let guess: f64 = terms(cost).iter().zip(found).map(|(term, each)| term * each).sum();
            (guess / cost.seconds - 1.0).powi(2)
        };
        let left: f64 = costs.iter().map(off).sum();
        if left < best.1 {
            best = (found, left);
        }
    }
    let [per_io, per_byte, per_ask] = best.0;
    (per_io, per_byte, per_ask)
}

#[expect(clippy::indexing_slicing, reason = "every index is below TERMS, and rows have one more")]
/// The coefficients of the terms that are used, each point weighted by the inverse of its cost; `None`: the points
/// do not tell them apart.
fn solved(costs: &[Cost], uses: &dyn Fn(usize) -> bool) -> Option<[f64; TERMS]> {
    // Normal equations, of terms in units of their largest, so that bytes do not drown the rest.
    let most = |term: usize| costs.iter().map(|cost| terms(cost)[term]).fold(0.0, f64::max);
    let unit = [0, 1, 2].map(|term| if uses(term) { most(term) } else { 1.0 });
    let mut rows = [[0.0; TERMS + 1]; TERMS];
    for cost in costs {
        let scaled: Vec<f64> = (0..TERMS)
            .map(|term| if uses(term) { terms(cost)[term] / unit[term] / cost.seconds } else { 0.0 })
            .collect();
        for (at, row) in rows.iter_mut().enumerate() {
            for (other, cell) in row.iter_mut().take(TERMS).enumerate() {
                *cell += scaled[at] * scaled[other];
            }
            row[TERMS] += scaled[at];
        }
    }
    for (term, row) in rows.iter_mut().enumerate().filter(|(term, _)| !uses(*term)) {
        row[term] = 1.0;
    }
    for pivot in 0..TERMS {
        let diagonal = rows[pivot][pivot];
        if diagonal.is_nan() || diagonal <= 1e-9 * rows[pivot].iter().fold(0.0, |a: f64, b| a.max(b.abs())) {
            return None;
        }
        for row in 0..TERMS {
            if row != pivot {
                let part = rows[row][pivot] / diagonal;
                let upper = rows[pivot];
                rows[row].iter_mut().zip(upper).for_each(|(cell, above)| *cell -= part * above);
            }
        }
    }
    Some([0, 1, 2].map(|term| rows[term][TERMS] / rows[term][term] / unit[term]))
}
