//! The files of the shards' flight recorders, beside the control socket: `control.flight` beside `control.sock`, with a
//! file for each start and shard.
//!
//! They are mapped, so what was recorded stays after the process was killed; the directory is that of the socket because
//! it usually lies in memory (`/run`), where no disk can hold a shard up. The space is taken at the start: a full file
//! system cannot end the process later. Files of the last [`RUNS_KEPT`] starts are kept.
//!
//! Invariant: a daemon that cannot have them serves without, and says so.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    panic,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use buf::{Region, Time};
use endpoint::ShardId;
use flight_recorder::{FILE_BYTES, FlightRecorder, HEADER_BYTES, Origin, Recording, note_end, note_panic};
use process::{exit::Failure, log::area, owned_dir::OwnedDir};
use rustix::fs::FallocateFlags;

/// How many starts are kept, the running one included: a daemon that fails again and again leaves its first failures.
pub const RUNS_KEPT: usize = 4;
const SUFFIX: &str = ".flight";

/// Those of a daemon that panics are told of it.
static RUNNING: Mutex<Vec<Weak<Region>>> = Mutex::new(Vec::new());

/// The files of one daemon. Without any, nothing is recorded.
#[derive(Clone, Debug, Default)]
pub struct FlightFiles {
    regions: Vec<Arc<Region>>,
    paths: Vec<PathBuf>,
    /// As it stands in the names of its files.
    start: Option<String>,
}

/// Where the files of the daemon with this control socket are.
pub fn flight_directory(control: &Path) -> PathBuf {
    control.with_extension("flight")
}

impl FlightFiles {
    /// Makes the files of a start, and removes those of starts that are long past, but not of `serving`: the start of
    /// the daemon from which this one takes over, which may serve on.
    ///
    /// # Errors
    /// The directory is not this user's, or the file system has no room or cannot reserve it.
    pub fn create(control: &Path, shards: usize, serving: Option<&str>) -> Result<FlightFiles, Failure> {
        let path = flight_directory(control);
        let directory = OwnedDir::create(&path)?;
        let failed = |why: io::Error| Failure::failed(format!("{}: {why}", path.display()));
        remove_old_runs(&directory, serving).map_err(failed)?;
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos();
        let start = format!("{start:020}");
        let mut files = FlightFiles { start: Some(start.clone()), ..FlightFiles::default() };
        for shard in 0..shards {
            let file = path.join(format!("{start}-{shard}{SUFFIX}"));
            match create_region(&file) {
                Ok(region) => files.regions.push(Arc::new(region)),
                Err(why) => {
                    let _ = std::fs::remove_file(&file);
                    files.discard();
                    return Err(failed(why));
                }
            }
            files.paths.push(file);
        }
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|region| region.strong_count() > 0);
        running.extend(files.regions.iter().map(Arc::downgrade));
        Ok(files)
    }

    /// The same; if there is no place for them, the daemon serves without.
    pub fn create_or_warn(control: &Path, shards: u16, serving: Option<&str>) -> FlightFiles {
        FlightFiles::create(control, shards.into(), serving).unwrap_or_else(|why| {
            tracing::warn!(
                target: area::SERVE,
                why = why.message,
                "no flight recorder: events of the shards are not recorded"
            );
            FlightFiles::default()
        })
    }

    /// The recorder of a shard whose clock shows `now`.
    pub fn recorder(&self, shard: ShardId, now: Time) -> Option<FlightRecorder> {
        let region = self.regions.get(usize::from(shard.0))?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let origin = Origin {
            shard: shard.0.into(),
            pid: std::process::id().into(),
            started_unix_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
            started: now,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Some(FlightRecorder::new(region.clone(), &origin))
    }

    /// The start that has these files, if there are any.
    pub fn start(&self) -> Option<&str> {
        self.start.as_deref()
    }

    /// Notes that the daemon ends in order.
    pub fn note_end(&self) {
        self.regions.iter().for_each(|region| note_end(region));
    }

    /// Removes the files of a start that came to nothing.
    pub fn discard(&self) {
        self.paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

fn create_region(path: &Path) -> io::Result<Region> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file: File = options.open(path)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES as u64)?;
    Region::map_file(file.as_fd(), FILE_BYTES)
}

/// The start, as it stands in the name of a file.
fn start_of(name: &str) -> Option<&str> {
    let (start, shard) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(start) && is_number(shard)).then_some(start)
}

/// Names of files by their start, the earliest first.
fn names_by_start(directory: &OwnedDir) -> io::Result<BTreeMap<String, Vec<String>>> {
    let mut runs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in directory.entry_names()? {
        if let Some(name) = name.to_str()
            && let Some(start) = start_of(name)
        {
            runs.entry(start.to_owned()).or_default().push(name.to_owned());
        }
    }
    Ok(runs)
}

fn remove_old_runs(directory: &OwnedDir, serving: Option<&str>) -> io::Result<()> {
    let runs = names_by_start(directory)?;
    let old = (runs.len() + 1).saturating_sub(RUNS_KEPT);
    let removable = runs.iter().filter(|(start, _)| serving != Some(start.as_str()));
    for name in removable.take(old).flat_map(|(_, names)| names) {
        directory.remove_file(name.as_ref())?;
    }
    Ok(())
}

/// What a start has recorded.
#[derive(Debug, Default)]
pub struct FlightRun {
    /// Of each shard.
    pub recordings: Vec<Recording>,
    /// Files that could not be read, and why.
    pub unreadable: Vec<(PathBuf, String)>,
}

impl FlightRun {
    /// Reads files, wherever they are.
    pub fn read(files: impl IntoIterator<Item = PathBuf>) -> FlightRun {
        let mut run = FlightRun::default();
        for path in files {
            let read = |path: &Path| -> io::Result<(Vec<u8>, Vec<u8>)> {
                Ok((read_bounded(path, FILE_BYTES + 1)?, read_bounded(path, HEADER_BYTES)?))
            };
            run.add(path.clone(), read(&path));
        }
        run
    }

    fn add(&mut self, path: PathBuf, read: io::Result<(Vec<u8>, Vec<u8>)>) {
        let parsed = read
            .map_err(|why| why.to_string())
            .and_then(|(bytes, after)| Recording::parse(&bytes, &after).map_err(|why| why.to_string()));
        match parsed {
            Ok(recording) => self.recordings.push(recording),
            Err(why) => self.unreadable.push((path, why)),
        }
    }
}

fn read_bounded(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    use io::Read;
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What the starts of the daemon with this control socket have recorded, the latest first.
///
/// # Errors
/// The directory is another user's, or others may change it; what the system says.
pub fn read_runs(control: &Path) -> Result<Vec<FlightRun>, Failure> {
    let path = flight_directory(control);
    let Some(directory) = OwnedDir::find_existing(&path)? else { return Ok(Vec::new()) };
    let failed = |why: io::Error| Failure::failed(format!("{}: {why}", path.display()));
    let runs = names_by_start(&directory).map_err(failed)?;
    let read = |names: Vec<String>| {
        let mut run = FlightRun::default();
        for name in names {
            let bytes = directory.read_trusted(name.as_ref(), FILE_BYTES as u64 + 1);
            let both = bytes.and_then(|bytes| {
                let after = directory.read_trusted(name.as_ref(), FILE_BYTES as u64 + 1)?;
                Ok((bytes, after.get(..HEADER_BYTES).unwrap_or_default().to_vec()))
            });
            run.add(path.join(&name), both);
        }
        run.recordings.sort_by_key(|recording| recording.shard);
        run
    };
    Ok(runs.into_values().rev().map(read).collect())
}

/// Has panics of this process noted in the files of its daemon, before they end it.
pub fn note_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |why| {
        // The thread that panics may hold the lock itself.
        if let Ok(running) = RUNNING.try_lock() {
            let text = why.to_string();
            running.iter().filter_map(Weak::upgrade).for_each(|region| note_panic(&region, &text));
        }
        before(why);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use flight_recorder::{Ending, Event, EventKind, TextField};

    fn events(run: &FlightRun) -> Vec<&str> {
        run.recordings.iter().flat_map(|one| one.events.iter().map(|event| event.name())).collect()
    }

    #[test]
    fn files_stay_for_some_starts_and_are_read_while_they_are_written() {
        let place = tempfile::tempdir().unwrap();
        let control = place.path().join("control.sock");
        assert!(read_runs(&control).unwrap().is_empty());
        for start in 0..6 {
            let files = FlightFiles::create(&control, 2, None).unwrap();
            let mut recorder = files.recorder(ShardId(1), Time(7)).unwrap();
            assert!(files.recorder(ShardId(2), Time(7)).is_none());
            recorder.record(Time(8), &Event::new(EventKind::Start));
            let event = Event::new(EventKind::VolumeAdded).with_text(TextField::Volume, "data");
            recorder.record(Time(9), &event);
            // A shard that has not begun has no header yet.
            let runs = read_runs(&control).unwrap();
            let latest = runs.first().unwrap();
            assert_eq!((latest.unreadable.len(), events(latest)), (1, vec!["start", "volume-added"]));
            drop(files.recorder(ShardId(0), Time(7)));
            assert_eq!(runs.len(), RUNS_KEPT.min(start + 1));
            if start % 2 == 0 {
                files.note_end();
            }
        }
        let runs = read_runs(&control).unwrap();
        let endings: Vec<_> = runs.iter().map(|run| run.recordings.first().unwrap().ending.clone()).collect();
        assert_eq!(endings, [Ending::None, Ending::InOrder, Ending::None, Ending::InOrder]);
        assert_eq!(runs.first().unwrap().recordings.len(), 2);
    }

    /// New processes that do not come to serve may be killed, so that their files stay.
    #[test]
    fn files_of_the_daemon_that_serves_outlast_failed_upgrades() {
        let place = tempfile::tempdir().unwrap();
        let control = place.path().join("control.sock");
        let serving = FlightFiles::create(&control, 1, None).unwrap();
        for _ in 0..2 * RUNS_KEPT {
            FlightFiles::create(&control, 1, serving.start()).unwrap();
            assert!(serving.paths.iter().all(|path| path.exists()));
        }
        assert_eq!(
            names_by_start(&OwnedDir::create(&flight_directory(&control)).unwrap()).unwrap().len(),
            RUNS_KEPT
        );
        FlightFiles::create(&control, 1, None).unwrap();
        assert!(!serving.paths.iter().any(|path| path.exists()));
    }

    #[test]
    fn a_start_that_came_to_nothing_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let control = place.path().join("control.sock");
        FlightFiles::create(&control, 3, None).unwrap().discard();
        assert!(read_runs(&control).unwrap().is_empty());
    }

    #[test]
    fn other_files_are_named_and_refused() {
        let place = tempfile::tempdir().unwrap();
        let control = place.path().join("control.sock");
        let files = FlightFiles::create(&control, 1, None).unwrap();
        drop(files.recorder(ShardId(0), Time(1)));
        let path = files.paths.first().unwrap().clone();
        std::fs::write(path.with_file_name("notes.txt"), "x").unwrap();
        std::fs::write(path.with_file_name("00000000000000000001-0.flight"), "x").unwrap();
        let runs = read_runs(&control).unwrap();
        assert_eq!(runs.len(), 2);
        assert!(runs[1].unreadable[0].1.contains("not a flight recording"), "{runs:?}");
        let run = FlightRun::read([path, place.path().join("none")]);
        assert_eq!((run.recordings.len(), run.unreadable.len()), (1, 1));
    }
}
