//! Progress for users: a line that is redrawn on a terminal, nothing elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use config::size::human;

/// How often it is drawn.
const EACH: Duration = Duration::from_millis(200);
/// Characters of the bar.
const BAR: usize = 24;

/// A bar on standard error.
#[derive(Debug)]
pub struct Progress {
    total: u64,
    begun: Instant,
    drawn: Option<Instant>,
    /// Bytes that were done before, by an earlier run.
    before: u64,
    is_shown: bool,
}

impl Progress {
    /// For so many bytes; `before` of them are done already.
    pub fn new(total: u64, before: u64, is_quiet: bool) -> Self {
        let is_shown = !is_quiet && io::stderr().is_terminal();
        Progress { total, begun: Instant::now(), drawn: None, before, is_shown }
    }

    /// So many bytes are done.
    pub fn at(&mut self, done: u64) {
        if !self.is_shown || self.drawn.is_some_and(|drawn| drawn.elapsed() < EACH) {
            return;
        }
        self.drawn = Some(Instant::now());
        let line = line(done, self.total, self.before, self.begun.elapsed());
        let _ = write!(io::stderr(), "\r{line}\x1b[K");
    }

    /// It is over: the line goes away.
    pub fn end(&mut self) {
        if self.drawn.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// Bytes per second of this run.
    pub fn rate(&self, done: u64) -> f64 {
        let seconds = self.begun.elapsed().as_secs_f64();
        if seconds > 0.0 { (done - self.before) as f64 / seconds } else { 0.0 }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

fn line(done: u64, total: u64, before: u64, time: Duration) -> String {
    let part = if total == 0 { 1.0 } else { done as f64 / total as f64 };
    let full = (part * BAR as f64) as usize;
    let seconds = time.as_secs_f64();
    let rate = if seconds > 0.0 { (done - before) as f64 / seconds } else { 0.0 };
    let left = if rate > 0.0 { clock(((total - done) as f64 / rate) as u64) } else { "-:--".to_owned() };
    format!(
        "[{}{}] {:3.0} %  {} of {}  {}/s  {left} left",
        "#".repeat(full),
        "-".repeat(BAR - full),
        part * 100.0,
        human(done),
        human(total),
        human(rate as u64)
    )
}

fn clock(seconds: u64) -> String {
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
        let text = line(3 << 30, 4 << 30, 1 << 30, Duration::from_secs(4));
        assert_eq!(text, "[##################------]  75 %  3 GiB of 4 GiB  512 MiB/s  0:02 left");
        assert!(line(0, 1 << 30, 0, Duration::ZERO).contains("-:-- left"));
        assert_eq!(clock(3725), "1:02:05");
    }
}
