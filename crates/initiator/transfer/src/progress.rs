//! Progress for users: a line that is redrawn on a terminal, nothing elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use config::size::format_human;

/// How often it is drawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Characters of the bar.
const BAR_WIDTH: usize = 24;

/// A bar on standard error.
#[derive(Debug)]
pub struct ProgressBar {
    total: u64,
    begun: Instant,
    drawn: Option<Instant>,
    /// Bytes that were done before, by an earlier run.
    before: u64,
    is_shown: bool,
}

impl ProgressBar {
    /// For so many bytes; `before` of them are done already.
    pub fn new(total: u64, before: u64, is_quiet: bool) -> Self {
        let is_shown = !is_quiet && io::stderr().is_terminal();
        ProgressBar { total, begun: Instant::now(), drawn: None, before, is_shown }
    }

    /// So many bytes are done.
    pub fn update(&mut self, done: u64) {
        if !self.is_shown || self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW_INTERVAL) {
            return;
        }
        self.drawn = Some(Instant::now());
        let line = progress_line(done, self.total, self.before, self.begun.elapsed());
        let _ = write!(io::stderr(), "\r{line}\x1b[K");
    }

    /// It is over: the line goes away.
    pub fn clear(&mut self) {
        if self.drawn.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// Bytes per second of this run.
    pub fn bytes_per_second(&self, done: u64) -> f64 {
        let seconds = self.begun.elapsed().as_secs_f64();
        if seconds > 0.0 { (done - self.before) as f64 / seconds } else { 0.0 }
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        self.clear();
    }
}

fn progress_line(done: u64, total: u64, before: u64, time: Duration) -> String {
    let part = if total == 0 { 1.0 } else { done as f64 / total as f64 };
    let full = (part * BAR_WIDTH as f64) as usize;
    let seconds = time.as_secs_f64();
    let rate = if seconds > 0.0 { (done - before) as f64 / seconds } else { 0.0 };
    let left =
        if rate > 0.0 { format_duration(((total - done) as f64 / rate) as u64) } else { "-:--".to_owned() };
    format!(
        "[{}{}] {:3.0} %  {} of {}  {}/s  {left} left",
        "#".repeat(full),
        "-".repeat(BAR_WIDTH - full),
        part * 100.0,
        format_human(done),
        format_human(total),
        format_human(rate as u64)
    )
}

fn format_duration(seconds: u64) -> String {
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{:02}", seconds % 60)
    } else {
        format!("{minutes}:{:02}", seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_rate_and_time_left() {
        let text = progress_line(3 << 30, 4 << 30, 1 << 30, Duration::from_secs(4));
        assert_eq!(text, "[##################------]  75 %  3 GiB of 4 GiB  512 MiB/s  0:02 left");
        assert!(progress_line(0, 1 << 30, 0, Duration::ZERO).contains("-:-- left"));
        assert_eq!(format_duration(3725), "1:02:05");
    }
}
