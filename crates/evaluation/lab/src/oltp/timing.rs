//! How much work fits the time: transactions for each user, and when a run is ended early.
//!
//! Invariant: the amount that the first system on a database server can do in its part of the time is the
//! amount for all others on that server.

use std::time::Duration;

use super::scale::OltpSize;

/// Seconds of work below which a second round is not worth what it takes to start.
pub(super) const WORTHWHILE_SECONDS: f64 = 10.0;
/// Part of the time that work is planned to take: what users do before figures count they do with all caches, and
/// take half as long again without; and systems that are slower than the first take more of it.
const PLANNED_PART: f64 = 0.5;
/// Seconds that a run works at least.
const RUN_SECONDS_MIN: f64 = 5.0;

/// Seconds of work for each of so many runs that are ahead; all but this one have to be started.
pub(super) fn work_seconds(left: Duration, starting: Duration, runs: usize) -> f64 {
    let runs = runs.max(1) as f64;
    let work = left.as_secs_f64() - starting.as_secs_f64() * (runs - 1.0);
    (work * PLANNED_PART / runs).max(RUN_SECONDS_MIN)
}

/// Transactions of each user, if all users together did so many in a second.
pub(super) fn transactions_per_user(size: &OltpSize, rate: f64, seconds: f64) -> u64 {
    let users = f64::from(size.users * size.databases);
    ((rate * seconds / users) as u64).clamp(20, 20_000)
}

/// Seconds after which a run is ended, so that the others of its round, each taking so long, can still be made.
pub(super) fn run_limit_seconds(left: Duration, others: usize, each: Duration) -> u64 {
    (left.as_secs_f64() - each.as_secs_f64() * others as f64).max(RUN_SECONDS_MIN) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oltp::users::UserProgram;

    #[test]
    fn transactions_fill_the_time_that_is_left() {
        let size = OltpSize {
            program: UserProgram::Sysbench,
            databases: 2,
            users: 5,
            transactions: None,
            rounds: 2,
            luns: 6,
            lun: 64 << 20,
            warehouses: 3,
            time: Some(Duration::from_secs(600)),
        };
        // Of 600 s, three more starts take 60; four runs share half of the rest.
        let each = work_seconds(Duration::from_secs(600), Duration::from_secs(20), 4);
        assert_eq!(each, 67.5);
        assert_eq!(transactions_per_user(&size, 300.0, each), 2_025);
        assert_eq!(transactions_per_user(&size, 0.0, each), 20);
        assert_eq!(work_seconds(Duration::from_secs(10), Duration::from_secs(20), 4), RUN_SECONDS_MIN);
    }

    #[test]
    fn a_run_leaves_time_for_the_others_of_its_round() {
        let second = Duration::from_secs;
        assert_eq!(run_limit_seconds(second(300), 2, second(80)), 140);
        assert_eq!(run_limit_seconds(second(300), 0, second(80)), 300);
        assert_eq!(run_limit_seconds(second(60), 3, second(80)), 5, "what was begun does something");
    }
}
