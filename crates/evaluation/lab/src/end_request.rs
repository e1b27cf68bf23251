//! An early end that was requested from outside, as by a signal.
//!
//! All waits give up, so that all owners are dropped and clean up. Invariant: after the request nothing is
//! started any more, except clean-up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Failure;

/// Whether it was asked for. It is the process's, as signals are.
static END_REQUESTED: AtomicBool = AtomicBool::new(false);

/// How soon who waits hears of it.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Asks all runners of this process to end: they come back soon, with what was measured until then.
pub fn request_end() {
    END_REQUESTED.store(true, Ordering::Relaxed);
}

/// Whether an end was asked for.
pub fn is_ending() -> bool {
    END_REQUESTED.load(Ordering::Relaxed)
}

/// Why something was not done, if an end was asked for.
pub(crate) fn check_not_ending() -> Result<(), Failure> {
    if is_ending() { Err(Failure::new("interrupted by a signal")) } else { Ok(()) }
}

/// Sleeps for a time.
///
/// # Errors
/// If an end is asked for meanwhile.
pub(crate) fn sleep_unless_ending(time: Duration) -> Result<(), Failure> {
    let until = Instant::now() + time;
    loop {
        check_not_ending()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(CHECK_INTERVAL));
    }
}

/// Waits until something is so, but no longer than a time; whether it is.
pub(crate) fn wait_until(time: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + time;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
