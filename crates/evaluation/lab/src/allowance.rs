//! The time given to an experiment, and what is left of it.
//!
//! Estimates may be wrong: an experiment may take a quarter longer, and then it ends. Invariant: without a
//! given time nothing is ever left out.

use std::time::{Duration, Instant};

/// How much longer than the time that it was given an experiment may take.
const OVERRUN_FACTOR: f64 = 1.25;
/// How much of another round must fit: half done is still better than not compared at all.
const ROUND_FIT_FRACTION_MIN: f64 = 0.8;

/// A time that was given, and when it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeBudget {
    begun: Instant,
    time: Option<Duration>,
}

impl TimeBudget {
    /// It begins now. `None`: as long as it takes.
    pub(crate) fn start(time: Option<Duration>) -> TimeBudget {
        TimeBudget { begun: Instant::now(), time }
    }

    /// The same begin, with another time.
    pub(crate) fn with_time(self, time: Option<Duration>) -> TimeBudget {
        TimeBudget { time, ..self }
    }

    /// When it began.
    pub(crate) fn started_at(&self) -> Instant {
        self.begun
    }

    /// What was given.
    pub(crate) fn granted(&self) -> Option<Duration> {
        self.time
    }

    /// What has passed.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// What is left until all must end.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.time.map(|time| time.mul_f64(OVERRUN_FACTOR).saturating_sub(self.elapsed()))
    }

    /// Whether all must end now.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.remaining().is_some_and(|left| left.is_zero())
    }

    /// Whether another round fits, if it takes as long as the last one, which began when so much had passed.
    pub(crate) fn has_time_for_round(&self, last_began: Duration) -> bool {
        let passed = self.elapsed();
        let next = passed.saturating_sub(last_began).mul_f64(ROUND_FIT_FRACTION_MIN);
        self.time.is_none_or(|time| passed + next <= time)
    }

    /// Whether one more of several fits, if it takes as long as each did so far.
    pub(crate) fn has_time_for_one_more(&self, done: usize) -> bool {
        let each = self.elapsed() / u32::try_from(done.max(1)).unwrap_or(u32::MAX);
        done == 0 || self.remaining().is_none_or(|left| each <= left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(passed: u64, time: u64) -> TimeBudget {
        let begun = Instant::now().checked_sub(Duration::from_secs(passed)).unwrap();
        TimeBudget { begun, time: Some(Duration::from_secs(time)) }
    }

    #[test]
    fn what_does_not_fit_the_time_is_left_out() {
        assert!(after(500, 60).has_time_for_one_more(0), "one is done in any case");
        assert!(after(60, 75).has_time_for_one_more(2) && !after(60, 70).has_time_for_one_more(2));
        assert!(after(60, 60).remaining().unwrap() > Duration::from_secs(14));
        assert!(!after(74, 60).is_exhausted() && after(76, 60).is_exhausted());
    }

    #[test]
    fn a_round_is_begun_if_most_of_it_fits() {
        let began = Duration::from_secs(20);
        // The last one took 40 s, of which 32 must fit.
        assert!(after(60, 93).has_time_for_round(began) && !after(60, 91).has_time_for_round(began));
    }

    #[test]
    fn without_a_time_all_is_done() {
        let free = after(1_000, 1).with_time(None);
        assert!(
            free.has_time_for_one_more(7) && free.has_time_for_round(Duration::ZERO) && !free.is_exhausted()
        );
        assert_eq!((free.remaining(), free.granted()), (None, None));
    }
}
