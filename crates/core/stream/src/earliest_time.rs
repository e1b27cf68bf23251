//! Deadlines: connections keep them as plain data and name the earliest.

use buf::Time;

/// The earlier of two deadlines, where either may be none.
/// ```
/// use blockwire_stream::{Time, earliest};
///
/// assert_eq!(earliest(Some(Time(2)), Some(Time(1))), Some(Time(1)));
/// assert_eq!(earliest(None, Some(Time(1))), Some(Time(1)));
/// ```
pub fn earliest(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, None) | (None, one) => one,
    }
}
