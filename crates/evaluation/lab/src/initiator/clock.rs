//! Programs that print nothing while they run: the clock decides when their figures count.
//!
//! Invariant: processors are measured only while figures count: the end is assumed a little early.

use std::time::{Duration, Instant};

use super::LoadEvent;
use crate::Failure;
use crate::end_request;
use crate::process::Process;

/// How often a program is looked after.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long before figures cease to count this is told: 1 part of 50, and time for a look.
fn announce_margin(lasts: Duration) -> Duration {
    (lasts / 50).max(Duration::from_millis(25)).min(lasts / 4)
}

/// Tells, of programs whose figures count from one moment to another, when that is. `pids`: who does the
/// work.
///
/// # Errors
/// If there is no time between the moments, or one of them ends before its time.
pub(super) fn announce_window(
    processes: &mut [Process],
    pids: Vec<u32>,
    (begin, end): (Instant, Instant),
    tell: &dyn Fn(LoadEvent),
) -> Result<(), Failure> {
    let lasts = end.saturating_duration_since(begin);
    if lasts.is_zero() {
        return Err(Failure::new(
            "its processes began so far apart that they never ran together: run it longer",
        ));
    }
    sleep_until(begin, processes)?;
    tell(LoadEvent::Began(pids));
    sleep_until(end - announce_margin(lasts), processes)?;
    tell(LoadEvent::Ended);
    Ok(())
}

fn sleep_until(moment: Instant, processes: &mut [Process]) -> Result<(), Failure> {
    loop {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        for process in processes.iter_mut() {
            if !process.is_alive() {
                return Err(process.failure_with_output("it ended before its time"));
            }
        }
        end_request::sleep_unless_ending(left.min(POLL_INTERVAL))?;
    }
}

/// Whole seconds, rounded up: what some programs can be told.
pub(super) fn whole_seconds_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::CommandLocation;
    use crate::process::ProcessSpec;
    use std::cell::RefCell;

    fn sleeper(dir: &std::path::Path, seconds: &str) -> Process {
        let words = ["sleep", seconds].map(str::to_owned).to_vec();
        Process::start(ProcessSpec { name: "sleeper", place: &CommandLocation::Here, cores: &[], words, dir })
            .unwrap()
    }

    #[test]
    fn the_end_is_told_before_it_comes() {
        let dir = tempfile::tempdir().unwrap();
        let mut processes = [sleeper(dir.path(), "600")];
        let (start, told) = (Instant::now(), RefCell::new(Vec::new()));
        let tell = |event| told.borrow_mut().push((event, start.elapsed()));
        let (ramp, lasts) = (Duration::from_millis(100), Duration::from_millis(400));
        announce_window(&mut processes, vec![7], (start + ramp, start + ramp + lasts), &tell).unwrap();
        let told = told.into_inner();
        assert_eq!(told[0].0, LoadEvent::Began(vec![7]));
        assert!(told[0].1 >= ramp);
        assert_eq!(told[1].0, LoadEvent::Ended);
        assert!(told[1].1 >= ramp + lasts / 2);
    }

    #[test]
    fn who_ends_before_its_time_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut processes = [sleeper(dir.path(), "0")];
        let now = Instant::now();
        let times = (now + Duration::from_secs(5), now + Duration::from_secs(10));
        let why = announce_window(&mut processes, Vec::new(), times, &|_| ()).unwrap_err();
        assert!(why.to_string().contains("before its time"), "{why}");
        let why = announce_window(&mut processes, Vec::new(), (times.1, times.0), &|_| ()).unwrap_err();
        assert!(why.to_string().contains("never ran together"), "{why}");
    }

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!([0, 1, 1000, 1001].map(|ms| whole_seconds_up(Duration::from_millis(ms))), [0, 1, 1, 2]);
    }
}
