//! How long to poll before sleeping.
//!
//! A sleep costs a wake-up at both ends, 35 µs of latency each on a virtual machine, so polling pays if the
//! next event is near and is pure loss otherwise. Each observed gap is evidence: short ones raise a score,
//! long ones lower it twice as fast, and polling requires a positive score. For gaps during sleep, the cost
//! of the wake-ups themselves is subtracted.

use std::time::{Duration, Instant};

/// What going to sleep and waking adds to a gap, at both ends together.
const WAKE_COST: Duration = Duration::from_micros(70);
const SCORE_MAX: i32 = 8;

/// How a program waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WaitMode {
    /// Polls for a short time where that has lately paid, then sleeps.
    Adaptive,
    /// Polls for ever.
    Poll,
    /// Sleeps at once.
    Sleep,
}

/// What waiting came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitStats {
    /// Polls that ended with an event.
    pub polls_useful: u64,
    /// Polls that ended with a sleep.
    pub polls_idle: u64,
    /// Time spent in the latter, in nanoseconds.
    pub polls_idle_ns: u64,
    /// Time spent polling, whether an event came or not, in nanoseconds.
    pub polled_ns: u64,
    /// Sleeps.
    pub sleeps: u64,
}

/// The estimate of one loop.
#[derive(Debug)]
pub struct SpinEstimator {
    wait: WaitMode,
    max: Duration,
    score: i32,
    /// What waiting came to so far.
    pub waits: WaitStats,
}

impl SpinEstimator {
    /// An estimate that polls for `max` at the longest.
    pub fn new(wait: WaitMode, max: Duration) -> Self {
        SpinEstimator { wait, max, score: 0, waits: WaitStats::default() }
    }

    /// Polls with `look` until it says true, or it is time to sleep; whether it said true.
    pub fn poll(&mut self, mut look: impl FnMut() -> bool) -> bool {
        let budget = match self.wait {
            WaitMode::Poll => Duration::MAX,
            WaitMode::Adaptive if self.score > 0 => self.max,
            WaitMode::Adaptive | WaitMode::Sleep => return look(),
        };
        let start = Instant::now();
        loop {
            // The clock costs more than a look at memory.
            if (0..16).any(|_| {
                std::hint::spin_loop();
                look()
            }) {
                self.waits.polls_useful += 1;
                self.waits.polled_ns += start.elapsed().as_nanos() as u64;
                self.score = (self.score + 1).min(SCORE_MAX);
                return true;
            }
            let waited = start.elapsed();
            if waited >= budget {
                self.waits.polls_idle += 1;
                self.waits.polls_idle_ns += waited.as_nanos() as u64;
                self.waits.polled_ns += waited.as_nanos() as u64;
                self.score -= 2;
                return false;
            }
        }
    }

    /// A sleep ended; the last event was `gap` ago.
    pub fn note_sleep(&mut self, gap: Duration) {
        self.waits.sleeps += 1;
        let near = gap.saturating_sub(WAKE_COST) <= self.max;
        self.score = if near { self.score + 1 } else { self.score - 2 }.clamp(-SCORE_MAX, SCORE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(wait: WaitMode) -> SpinEstimator {
        SpinEstimator::new(wait, Duration::from_micros(50))
    }

    #[test]
    fn far_events_are_not_polled_for() {
        let mut spin = spin(WaitMode::Adaptive);
        for _ in 0..100 {
            spin.note_sleep(Duration::from_millis(1));
            assert!(!spin.poll(|| false));
        }
        assert_eq!((spin.waits.polls_idle, spin.waits.sleeps), (0, 100));
    }

    #[test]
    fn near_events_are_polled_for_until_they_stay_away() {
        let mut spin = spin(WaitMode::Adaptive);
        spin.note_sleep(Duration::from_micros(80));
        assert!(spin.poll(|| true));
        assert_eq!(spin.waits.polls_useful, 1);
        for _ in 0..10 {
            spin.poll(|| false);
        }
        assert_eq!(spin.waits.polls_idle, 1, "one idle poll outweighs two hits");
        assert!(spin.waits.polls_idle_ns >= 50_000 && spin.waits.polled_ns >= spin.waits.polls_idle_ns);
    }

    #[test]
    fn sleepers_look_once() {
        let mut spin = spin(WaitMode::Sleep);
        spin.note_sleep(Duration::ZERO);
        let mut looks = 0;
        assert!(!spin.poll(|| {
            looks += 1;
            false
        }));
        assert_eq!((looks, spin.waits.polls_idle), (1, 0));
    }
}
