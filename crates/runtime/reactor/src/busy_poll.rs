//! How long to poll before sleeping.
//!
//! A sleep costs a wake-up: some 5 to 25 µs of processor time and 35 µs of latency on a virtual machine,
//! against nanoseconds per poll of the ring's memory. So polling pays when the next event is near, and is
//! pure loss otherwise. A shard polls while that has recently succeeded: hits earn credit, misses cost more
//! of it. Without credit it only measures its sleeps. A run of short sleeps starts a trial, and each failed
//! trial makes the next one more expensive.

/// The shortest useful poll, in nanoseconds.
const BUDGET_MIN: u64 = 10_000;
/// A sleep shorter than the longest poll plus this (the cost of going to sleep and waking, seen at
/// both ends) might have been spared.
const WAKE_COST: u64 = 70_000;
/// The most hits that are remembered.
const CREDIT_MAX: i32 = 16;
/// What a trial starts with.
const CREDIT_TRIAL: i32 = 4;
/// What a miss costs, in hits: polling goes on while two of three polls find something.
const MISS_COST: i32 = 2;
/// Short sleeps in a row before the first trial, and at most before a later one.
const TRIAL_AFTER_MIN: u32 = 2;
const TRIAL_AFTER_MAX: u32 = 1024;

/// One shard's estimate.
pub(crate) struct BusyPollEstimate {
    /// The longest poll; 0 forbids polling.
    max: u64,
    credit: i32,
    /// Smoothed time to the next event, while polling.
    gap: u64,
    short_sleeps: u32,
    trial_after: u32,
}

impl BusyPollEstimate {
    pub(crate) fn new(max: u64) -> Self {
        BusyPollEstimate { max, credit: 0, gap: max, short_sleeps: 0, trial_after: TRIAL_AFTER_MIN }
    }

    /// How long to poll now, in nanoseconds.
    pub(crate) fn budget(&self) -> u64 {
        if self.credit <= 0 { 0 } else { (self.gap * 3).clamp(BUDGET_MIN.min(self.max), self.max) }
    }

    /// Polling found something after `gap` nanoseconds.
    pub(crate) fn note_hit(&mut self, gap: u64) {
        self.credit = (self.credit + 1).min(CREDIT_MAX);
        self.gap = (self.gap * 7 + gap) / 8;
        if self.credit == CREDIT_MAX {
            self.trial_after = TRIAL_AFTER_MIN;
        }
    }

    /// Polling found nothing.
    pub(crate) fn note_miss(&mut self) {
        self.credit -= MISS_COST;
        // What is now known is that the gap is longer than thought.
        self.gap = (self.gap * 2).min(self.max);
        if self.credit <= 0 {
            self.trial_after = (self.trial_after * 2).min(TRIAL_AFTER_MAX);
            self.short_sleeps = 0;
        }
    }

    /// The shard slept, and `gap` nanoseconds passed since it ran out of work.
    pub(crate) fn note_slept(&mut self, gap: u64) {
        if self.max == 0 || self.credit > 0 {
            return;
        }
        if gap > self.max + WAKE_COST {
            self.short_sleeps = 0;
            return;
        }
        self.short_sleeps += 1;
        if self.short_sleeps >= self.trial_after {
            self.short_sleeps = 0;
            self.credit = CREDIT_TRIAL;
            self.gap = self.max;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_shard_never_polls() {
        let mut spin = BusyPollEstimate::new(50_000);
        for _ in 0..1000 {
            assert_eq!(spin.budget(), 0);
            spin.note_slept(1_000_000);
        }
    }

    #[test]
    fn near_events_are_polled_for_and_the_budget_follows_the_gap() {
        let mut spin = BusyPollEstimate::new(50_000);
        spin.note_slept(60_000);
        assert_eq!(spin.budget(), 0, "one short sleep proves nothing");
        spin.note_slept(60_000);
        assert_eq!(spin.budget(), 50_000);
        for _ in 0..50 {
            spin.note_hit(6_000);
        }
        assert!((10_000..25_000).contains(&spin.budget()), "{}", spin.budget());
    }

    #[test]
    fn misses_end_polling_and_make_trials_rarer() {
        let mut spin = BusyPollEstimate::new(50_000);
        let mut polled = 0;
        // Events always 100 µs apart: sleeps look short enough to try, but no poll ever hits.
        for _ in 0..10_000 {
            if spin.budget() > 0 {
                polled += 1;
                spin.note_miss();
            }
            spin.note_slept(100_000);
        }
        assert!(polled < 60, "polled {polled} times without work");
    }

    #[test]
    fn zero_forbids_polling() {
        let mut spin = BusyPollEstimate::new(0);
        for _ in 0..100 {
            spin.note_slept(1);
            assert_eq!(spin.budget(), 0);
        }
    }
}
