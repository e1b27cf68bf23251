//! How much of thin files is allocated: looked up once a second, off the data cores, while there are any.

use std::{
    fs::File,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use rustix::fs::OFlags;
use volume::Gauge;

/// How old what is shown may be.
const PERIOD: Duration = Duration::from_secs(1);

/// Whom to tell of files.
#[derive(Clone, Debug)]
pub struct Usage(Sender<Watched>);

#[derive(Debug)]
struct Watched {
    /// A descriptor of its own that can be looked at and no more: it shares no lock.
    file: File,
    gauge: Gauge,
}

impl Watched {
    /// Looks; false if it cannot.
    fn look(&self) -> bool {
        // st_blocks counts units of 512 bytes, whatever the file system's block is.
        self.file.metadata().map(|meta| self.gauge.set(meta.blocks() * 512)).is_ok()
    }
}

impl Usage {
    /// Starts the thread. It ends when nobody can tell it of files any more.
    pub fn start() -> std::io::Result<Self> {
        let (files, told) = channel();
        thread::Builder::new().name("usage".to_owned()).spawn(move || watch(&told))?;
        Ok(Usage(files))
    }

    /// Keeps a gauge of a file for as long as anyone has it; `None` if the file cannot be looked at.
    pub fn watch(&self, path: &Path) -> Option<Gauge> {
        let look_only = OFlags::PATH.bits() as i32;
        let file = File::options().read(true).custom_flags(look_only).open(path).ok()?;
        let watched = Watched { file, gauge: Gauge::default() };
        let gauge = watched.gauge.clone();
        (watched.look() && self.0.send(watched).is_ok()).then_some(gauge)
    }
}

fn watch(told: &Receiver<Watched>) {
    let mut all: Vec<Watched> = Vec::new();
    loop {
        let next = if all.is_empty() {
            told.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            told.recv_timeout(PERIOD)
        };
        match next {
            Ok(watched) => all.push(watched),
            Err(RecvTimeoutError::Timeout) => all.retain(|one| one.gauge.is_read() && one.look()),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_file_is_watched_while_it_grows() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let usage = Usage::start().unwrap();
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
}
