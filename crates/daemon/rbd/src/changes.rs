//! Tells a thread that waits that an image has another size, or is cut off: a count of such changes over all images, and
//! a bell. Which image it is, and what, is to be read from the images.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

static COUNT: Mutex<u64> = Mutex::new(0);
static COUNTED: Condvar = Condvar::new();

/// How many changes there were.
pub fn changes() -> u64 {
    *COUNT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until there were others than `seen`, or for `limit`; tells how many there were by then.
pub fn wait_for_change(seen: u64, limit: Option<Duration>) -> u64 {
    let count = COUNT.lock().unwrap_or_else(PoisonError::into_inner);
    let unchanged = |count: &mut u64| *count == seen;
    match limit {
        None => *COUNTED.wait_while(count, unchanged).unwrap_or_else(PoisonError::into_inner),
        Some(limit) => {
            let waited = COUNTED.wait_timeout_while(count, limit, unchanged);
            *waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

/// An image has changed.
pub(crate) fn tell() {
    *COUNT.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    COUNTED.notify_all();
}
