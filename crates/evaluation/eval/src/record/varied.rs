//! What a preset varies beside the size of an I/O, as labels of its points.
//!
//! Invariant: a point has at most one of them.

use super::Point;

/// The rate, in percent of what the system does at most.
pub const RATE_PARAMETER: &str = "load";
/// Processors of the target.
pub const CORES_PARAMETER: &str = "target cores";
/// Threads, among which what is in flight is divided.
pub const THREADS_PARAMETER: &str = "threads";

impl Point {
    /// Which of them it has, and its value.
    pub fn varied_parameter(&self) -> Option<(&'static str, &str)> {
        [RATE_PARAMETER, CORES_PARAMETER, THREADS_PARAMETER].into_iter().find_map(|name| {
            let found = self.labels.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| (name, value.as_str()))
        })
    }
}
