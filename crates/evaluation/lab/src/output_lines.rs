//! What a process prints: line by line, to its log and to who waits for it.
//!
//! Invariant: however much a process prints, at most [`UNREAD_BYTES_MAX`] bytes of it wait in memory and [`LOG_BYTES_MAX`] stand in
//! its log; it is never kept from going on, and whether anything was left out is known.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes that wait for who reads them. A target's lines are read until it is ready, and no more.
const UNREAD_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 64 << 20 };
/// Bytes of a line; of a longer one each part is a line.
const LINE_BYTES_MAX: usize = UNREAD_BYTES_MAX / 4;
/// What a line takes beside its bytes, about.
const LINE_OVERHEAD_BYTES: usize = 64;
/// Bytes of a log.
const LOG_BYTES_MAX: u64 = if cfg!(test) { 2 << 20 } else { 256 << 20 };

/// Which stream a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// A line, and when it came.
pub(crate) type OutputLine = (OutputStream, String, Instant);

/// The lines that were printed and not yet taken.
#[derive(Debug)]
pub(crate) struct OutputLines {
    lines: Receiver<OutputLine>,
    unread: Arc<UnreadLines>,
}

/// Where lines are put in. The output has ended when the last of these is gone.
#[derive(Clone)]
pub(crate) struct OutputSender {
    to: Sender<OutputLine>,
    unread: Arc<UnreadLines>,
    log: Arc<Mutex<BoundedLog>>,
}

#[derive(Debug, Default)]
struct UnreadLines {
    weight: AtomicUsize,
    /// Lines of standard output were left out.
    is_cut: AtomicBool,
}

struct BoundedLog {
    file: File,
    left: u64,
}

fn line_weight(line: &str) -> usize {
    line.len() + LINE_OVERHEAD_BYTES
}

impl OutputLines {
    /// The output of a process whose log this is.
    pub(crate) fn new(log: File) -> (OutputLines, OutputSender) {
        let (to, lines) = channel();
        let unread = Arc::<UnreadLines>::default();
        let log = Arc::new(Mutex::new(BoundedLog { file: log, left: LOG_BYTES_MAX }));
        (OutputLines { lines, unread: Arc::clone(&unread) }, OutputSender { to, unread, log })
    }

    /// The next line, within a time.
    pub(crate) fn next_line(&self, within: Duration) -> Result<OutputLine, RecvTimeoutError> {
        let line = self.lines.recv_timeout(within)?;
        self.unread.weight.fetch_sub(line_weight(&line.1), Ordering::Relaxed);
        Ok(line)
    }

    /// Whether lines of standard output were left out, since nobody read them in time.
    pub(crate) fn is_truncated(&self) -> bool {
        self.unread.is_cut.load(Ordering::Relaxed)
    }
}

impl OutputSender {
    /// Reads a stream to its end, on a thread of its own.
    pub(crate) fn spawn_reader(&self, from: impl Read + Send + 'static, stream: OutputStream) {
        let feed = self.clone();
        std::thread::spawn(move || {
            let mut from = BufReader::new(from);
            let mut bytes = Vec::new();
            while read_line(&mut from, &mut bytes) && feed.push_line(stream, &bytes) {
                bytes.clear();
            }
        });
    }

    /// False: nobody is there any more.
    fn push_line(&self, stream: OutputStream, bytes: &[u8]) -> bool {
        if let Ok(mut log) = self.log.lock() {
            log.write(bytes);
        }
        let line = String::from_utf8_lossy(bytes).trim_end().to_owned();
        let weight = line_weight(&line);
        if self.unread.weight.load(Ordering::Relaxed) + weight > UNREAD_BYTES_MAX {
            self.unread.is_cut.fetch_or(stream == OutputStream::Out, Ordering::Relaxed);
            return true;
        }
        self.unread.weight.fetch_add(weight, Ordering::Relaxed);
        self.to.send((stream, line, Instant::now())).is_ok()
    }
}

impl BoundedLog {
    fn write(&mut self, bytes: &[u8]) {
        let fits = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if fits == 0 {
            return;
        }
        self.left -= fits as u64;
        // What is said goes on without its log.
        let _ = self.file.write_all(bytes.get(..fits).unwrap_or(bytes));
        if self.left == 0 {
            let _ = self.file.write_all(b"\n(what follows is left out)\n");
        }
    }
}

/// Reads up to the end of a line, or of one that is to be drawn over (a carriage return). False: there is
/// nothing more.
fn read_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> bool {
    loop {
        let Ok(bytes) = from.fill_buf() else { return !line.is_empty() };
        if bytes.is_empty() {
            return !line.is_empty();
        }
        let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let taken = end.map_or(bytes.len(), |at| at + 1);
        line.extend(bytes.iter().take(taken));
        from.consume(taken);
        if end.is_some() || line.len() >= LINE_BYTES_MAX {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(said: Vec<u8>) -> (OutputLines, u64) {
        let log = tempfile::NamedTempFile::new().unwrap();
        let (output, feed) = OutputLines::new(log.reopen().unwrap());
        feed.spawn_reader(std::io::Cursor::new(said), OutputStream::Out);
        drop(feed);
        // Nobody reads before it has ended.
        let begun = Instant::now();
        while Arc::strong_count(&output.unread) > 1 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is kept from going on");
            std::thread::sleep(Duration::from_millis(1));
        }
        (output, log.as_file().metadata().unwrap().len())
    }

    fn all(output: &OutputLines) -> Vec<String> {
        std::iter::from_fn(|| output.next_line(Duration::from_secs(10)).ok())
            .map(|(_, line, _)| line)
            .collect()
    }

    #[test]
    fn what_nobody_reads_fills_neither_memory_nor_disk() {
        for line in [&b"y\n"[..], &[b'y'; 1000]] {
            let (output, logged) = fed(line.repeat((4 << 20) / line.len()));
            assert!(
                output.is_truncated() && output.unread.weight.load(Ordering::Relaxed) <= UNREAD_BYTES_MAX
            );
            assert!(logged <= LOG_BYTES_MAX + 100, "{logged}");
            let kept: usize = all(&output).iter().map(|line| line_weight(line)).sum();
            assert!((UNREAD_BYTES_MAX / 2..=UNREAD_BYTES_MAX).contains(&kept), "{kept}");
            assert_eq!(output.unread.weight.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn what_fits_is_whole() {
        let (output, logged) = fed(b"one\ntwo\rthree".to_vec());
        assert_eq!(
            (all(&output), output.is_truncated(), logged),
            (["one", "two", "three"].map(str::to_owned).to_vec(), false, 13)
        );
    }
}
