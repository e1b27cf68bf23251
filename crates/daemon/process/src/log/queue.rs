//! Writes log lines to stderr, which may have no reader: a bounded queue and one writing thread.
//!
//! Invariant: a thread that logs never waits for the reader. Lines that do not fit are counted and dropped,
//! and the count is written as soon as lines can be written again.

use std::{
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Bytes of lines that may wait: some ten thousand lines. As many again may be with the thread that writes.
pub const QUEUED_BYTES_MAX: usize = 1 << 20;

/// Where lines wait.
#[derive(Debug, Default)]
pub struct LogQueue {
    waiting: Mutex<QueuedLines>,
    /// Something is there to be written.
    more: Condvar,
    /// Everything has been written.
    done: Condvar,
}

#[derive(Debug, Default)]
struct QueuedLines {
    lines: Vec<Vec<u8>>,
    bytes: usize,
    /// Lines that found no room, or that could not be written, and were not reported yet.
    dropped: u64,
    /// The thread has lines that it took and has not written yet.
    is_writing: bool,
}

impl LogQueue {
    /// An outlet to `sink`, which one thread writes; `count` makes the line that tells how many were dropped.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start<W, F>(sink: W, count: F) -> io::Result<Arc<LogQueue>>
    where
        W: Write + Send + 'static,
        F: Fn(u64) -> Vec<u8> + Send + 'static,
    {
        let outlet = Arc::<LogQueue>::default();
        let writer = outlet.clone();
        thread::Builder::new().name("stderr".to_owned()).spawn(move || {
            sandbox::deny_files_to_this_thread();
            writer.write_loop(sink, &count);
        })?;
        Ok(outlet)
    }

    /// Puts a line, or several as one, behind those that wait; drops it if there is no room.
    pub fn push(&self, line: impl Into<Vec<u8>>) {
        let line = line.into();
        let mut waiting = self.lock_lines();
        if line.len() > QUEUED_BYTES_MAX - waiting.bytes {
            waiting.dropped = waiting.dropped.saturating_add(1);
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push(line);
        self.more.notify_one();
    }

    /// Waits until all that was put is written, but not longer than `patience`.
    pub fn flush(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut waiting = self.lock_lines();
        while waiting.is_writing || !waiting.lines.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            waiting = self.done.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn write_loop(&self, mut sink: impl Write, count: &impl Fn(u64) -> Vec<u8>) {
        loop {
            let (lines, dropped) = self.take_lines();
            let mut unwritten = 0;
            for line in &lines {
                // A closed stderr must not end the daemon.
                unwritten += u64::from(sink.write_all(line).is_err());
            }
            let said = dropped == 0 || sink.write_all(&count(dropped)).is_ok();
            let mut waiting = self.lock_lines();
            let owed = if said { unwritten } else { unwritten.saturating_add(dropped) };
            waiting.dropped = waiting.dropped.saturating_add(owed);
            waiting.is_writing = false;
            self.done.notify_all();
        }
    }

    /// All lines that wait, once there are any, and how many were dropped behind them.
    fn take_lines(&self) -> (Vec<Vec<u8>>, u64) {
        let mut waiting = self.lock_lines();
        while waiting.lines.is_empty() {
            waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.is_writing = true;
        waiting.bytes = 0;
        (std::mem::take(&mut waiting.lines), std::mem::take(&mut waiting.dropped))
    }

    fn lock_lines(&self) -> MutexGuard<'_, QueuedLines> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    fn counted(dropped: u64) -> Vec<u8> {
        format!("{dropped} dropped\n").into_bytes()
    }

    #[test]
    fn who_logs_does_not_wait_for_who_does_not_read() {
        let (reader, writer) = io::pipe().unwrap();
        let outlet = LogQueue::start(writer, counted).unwrap();
        let line = format!("{}\n", "x".repeat(1023));
        let begun = Instant::now();
        // More than pipe, writer and queue hold together.
        let put = 4 * QUEUED_BYTES_MAX / line.len();
        (0..put).for_each(|_| outlet.push(line.clone()));
        outlet.flush(Duration::from_millis(50));
        assert!(begun.elapsed() < Duration::from_secs(5), "nobody has read anything");
        // What was dropped is counted when lines flow again.
        let reader = BufReader::new(reader);
        // It may be said in parts, for the writer may have begun while lines still came.
        let (mut told, mut dropped) = (0, 0);
        for line in reader.lines().map_while(Result::ok) {
            match line.strip_suffix(" dropped") {
                Some(count) => dropped += count.parse::<usize>().unwrap(),
                None => told += 1,
            }
            if told + dropped >= put {
                break;
            }
        }
        assert!(told + dropped == put && dropped > 0, "{told} and {dropped} of {put}");
    }

    #[test]
    fn what_was_put_is_written_when_it_has_settled() {
        let (mut reader, writer) = io::pipe().unwrap();
        let outlet = LogQueue::start(writer, counted).unwrap();
        outlet.push("one\n".to_owned());
        outlet.push("two\n".to_owned());
        outlet.flush(Duration::from_secs(30));
        let mut bytes = [0; 8];
        io::Read::read_exact(&mut reader, &mut bytes).unwrap();
        assert_eq!(&bytes, b"one\ntwo\n");
    }

    #[test]
    fn a_closed_stderr_ends_nothing() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let outlet = LogQueue::start(writer, counted).unwrap();
        for _ in 0..3 {
            outlet.push("nobody hears it\n".to_owned());
            outlet.flush(Duration::from_secs(30));
        }
        let waiting = outlet.lock_lines();
        assert!(waiting.lines.is_empty() && waiting.dropped == 3, "{waiting:?}");
    }
}
