//! Deadlines: connections keep them as plain data and name the earliest.

use buf::Time;

/// The earlier of two deadlines, where either may be none.
pub fn earliest(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, None) | (None, one) => one,
    }
}
