//! Allocated space of thin files: checked once a second, outside of the data cores, while there are any.

use std::{
    fs::File,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::OFlags;
use volume::AllocationGauge;

/// How old what is shown may be, and how long a descriptor may outlive its volume.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Whom to tell of files.
#[derive(Clone, Debug)]
pub struct AllocationWatcher(Sender<WatchedFile>);

#[derive(Debug)]
struct WatchedFile {
    /// A descriptor of its own that can be looked at and no more: it shares no lock.
    file: File,
    gauge: AllocationGauge,
}

impl WatchedFile {
    /// Looks; false if it cannot.
    fn refresh(&self) -> bool {
        // st_blocks counts units of 512 bytes, whatever the file system's block is.
        self.file.metadata().map(|meta| self.gauge.set(meta.blocks() * 512)).is_ok()
    }
}

impl AllocationWatcher {
    /// Starts the thread. It ends when nobody can tell it of files any more.
    pub fn start() -> std::io::Result<Self> {
        let (files, told) = channel();
        thread::Builder::new().name("usage".to_owned()).spawn(move || refresh_gauges(&told))?;
        Ok(AllocationWatcher(files))
    }

    /// Keeps a gauge of a file for as long as anyone has it; `None` if the file cannot be looked at.
    pub fn watch(&self, path: &Path) -> Option<AllocationGauge> {
        let look_only = OFlags::PATH.bits() as i32;
        let file = File::options().read(true).custom_flags(look_only).open(path).ok()?;
        let watched = WatchedFile { file, gauge: AllocationGauge::default() };
        let gauge = watched.gauge.clone();
        (watched.refresh() && self.0.send(watched).is_ok()).then_some(gauge)
    }
}

/// Reads the allocated space of each watched file once per [`REFRESH_INTERVAL`], until its gauge is dropped.
fn refresh_gauges(told: &Receiver<WatchedFile>) {
    let mut all: Vec<WatchedFile> = Vec::new();
    let mut due = Instant::now() + REFRESH_INTERVAL;
    loop {
        let next = if all.is_empty() {
            told.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            told.recv_timeout(due.saturating_duration_since(Instant::now()))
        };
        match next {
            Ok(watched) => all.push(watched),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // However often files come: else those that have gone would be kept while others come.
        if Instant::now() >= due {
            all.retain(|one| one.gauge.is_shared() && one.refresh());
            due = Instant::now() + REFRESH_INTERVAL;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;

    #[test]
    fn a_file_is_watched_while_it_grows() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let usage = AllocationWatcher::start().unwrap();
        let gauge = usage.watch(file.path()).unwrap();
        assert_eq!(gauge.get(), 0, "a hole");
        file.seek(SeekFrom::Start(64 << 10)).unwrap();
        file.write_all(&[7; 64 << 10]).unwrap();
        file.as_file().sync_all().unwrap();
        let begun = Instant::now();
        while gauge.get() < 64 << 10 && begun.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(20));
        }
        assert!((64 << 10..=1 << 20).contains(&gauge.get()), "{}", gauge.get());
        assert!(usage.watch(Path::new("/nonexistent/file")).is_none());
    }

    /// How many descriptors of this process are of this file.
    fn descriptors(path: &Path) -> usize {
        let path = path.canonicalize().unwrap();
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|link| link == path)).count()
    }

    #[test]
    fn files_of_deleted_volumes_are_not_kept_open_while_others_come() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.img");
        std::fs::write(&path, [7; 4096]).unwrap();
        let usage = AllocationWatcher::start().unwrap();
        // One every 50 ms, gone at once: 60 s long, or until some were let go.
        let let_go = (1..1200).any(|made| {
            drop(usage.watch(&path).unwrap());
            thread::sleep(Duration::from_millis(50));
            descriptors(&path) < made
        });
        assert!(let_go);
    }
}
