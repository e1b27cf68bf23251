//! Progress shown while an evaluation runs.
//!
//! On a terminal, one line that is redrawn; elsewhere, a line per step. Invariant: standard output is for
//! results only.

use std::io::{self, Write};
use std::time::{Duration, Instant};

/// A step of an evaluation, and how it goes now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepProgress {
    /// Which step of how many, from 1.
    pub step: (usize, usize),
    /// What it is: systems and load.
    pub what: String,
    /// I/Os per second since the last moment.
    pub iops: f64,
    /// Mean latency in microseconds.
    pub latency_us: Option<f64>,
    /// How busy the target's cores and the initiator's are, in percent.
    pub busy: (Option<f64>, Option<f64>),
    /// How long all is expected to take from now on.
    pub left: Duration,
}

impl StepProgress {
    /// The same step, as it goes now.
    pub(crate) fn with_progress(&self, pulse: &crate::measure::LoadProgress) -> StepProgress {
        StepProgress {
            iops: pulse.iops,
            latency_us: pulse.latency_us,
            busy: pulse.busy,
            left: self.left.saturating_sub(Duration::try_from_secs_f64(pulse.seconds).unwrap_or_default()),
            ..self.clone()
        }
    }
}

/// Shows how an evaluation proceeds.
pub trait ProgressDisplay {
    /// A step begins.
    fn step_started(&mut self, moment: &StepProgress);
    /// It goes on.
    fn step_progressed(&mut self, moment: &StepProgress);
    /// It has ended: its I/Os per second, or why there are none.
    fn step_finished(&mut self, moment: &StepProgress, outcome: Result<f64, &str>);
    /// All is over.
    fn finish(&mut self) {}
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl ProgressDisplay for NoProgress {
    fn step_started(&mut self, _: &StepProgress) {}
    fn step_progressed(&mut self, _: &StepProgress) {}
    fn step_finished(&mut self, _: &StepProgress, _: Result<f64, &str>) {}
}

/// Prints a line to standard error for each step that has ended.
#[derive(Debug, Default)]
pub struct LineProgress;

impl ProgressDisplay for LineProgress {
    fn step_started(&mut self, _: &StepProgress) {}
    fn step_progressed(&mut self, _: &StepProgress) {}

    fn step_finished(&mut self, moment: &StepProgress, outcome: Result<f64, &str>) {
        let _ = writeln!(io::stderr(), "{}", finished_line(moment, outcome));
    }
}

fn finished_line(moment: &StepProgress, outcome: Result<f64, &str>) -> String {
    let (at, all) = moment.step;
    match outcome {
        Ok(iops) => format!("[{at}/{all}] {}: {} IOPS", moment.what, format_short(iops)),
        Err(why) => format!("[{at}/{all}] {}: {why}", moment.what),
    }
}

/// Redraws one line on a terminal.
#[derive(Debug, Default)]
pub struct TerminalProgress {
    drawn: Option<Instant>,
}

/// How often the line is drawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);

impl TerminalProgress {
    fn clear_line(&mut self) {
        if self.drawn.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl ProgressDisplay for TerminalProgress {
    fn step_started(&mut self, moment: &StepProgress) {
        self.clear_line();
        self.step_progressed(moment);
    }

    fn step_progressed(&mut self, moment: &StepProgress) {
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW_INTERVAL) {
            return;
        }
        self.drawn = Some(Instant::now());
        let _ = write!(io::stderr(), "\r{}\x1b[K", progress_line(moment));
    }

    fn step_finished(&mut self, moment: &StepProgress, outcome: Result<f64, &str>) {
        self.clear_line();
        let _ = writeln!(io::stderr(), "{}", finished_line(moment, outcome));
    }

    fn finish(&mut self) {
        self.clear_line();
    }
}

fn progress_line(moment: &StepProgress) -> String {
    let (at, all) = moment.step;
    let filled = (20 * at).checked_div(all).unwrap_or(0).min(20);
    let mut text = format!("[{:<20}] {at}/{all} {}", "#".repeat(filled), moment.what);
    if moment.iops > 0.0 {
        text.push_str(&format!("  {} IOPS", format_short(moment.iops)));
    }
    if let Some(latency) = moment.latency_us {
        text.push_str(&format!("  {latency:.0} us"));
    }
    if let (Some(target), Some(initiator)) = moment.busy {
        text.push_str(&format!("  CPU {target:.0} % | {initiator:.0} %"));
    }
    let seconds = moment.left.as_secs();
    text.push_str(&format!("  {}:{:02} left", seconds / 60, seconds % 60));
    text
}

fn format_short(figure: f64) -> String {
    match figure {
        f if f >= 1e6 => format!("{:.2} M", f / 1e6),
        f if f >= 1e4 => format!("{:.0} K", f / 1e3),
        f => format!("{f:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_how_fast_and_how_long() {
        let moment = StepProgress {
            step: (3, 12),
            what: "blockwire / blockwire (iscsi) randread 4K".into(),
            iops: 683_000.0,
            latency_us: Some(46.8),
            busy: (Some(99.6), Some(71.0)),
            left: Duration::from_secs(75),
        };
        let text = progress_line(&moment);
        for part in
            ["[#####     ", "3/12", "randread 4K", "683 K IOPS", "47 us", "CPU 100 % | 71 %", "1:15 left"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(finished_line(&moment, Ok(1_234_567.0)), format!("[3/12] {}: 1.23 M IOPS", moment.what));
        assert!(finished_line(&moment, Err("refused")).ends_with(": refused"));
    }
}
