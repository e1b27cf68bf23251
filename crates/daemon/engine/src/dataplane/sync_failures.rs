//! Records of failed syncs in the state directory: data that may be lost stays marked after the daemon was
//! killed, until the operator acknowledges it.
//!
//! Invariants: hosts are told of a failed sync when its record is durable. If that takes longer than
//! `NOTE_TIMEOUT`, they are told anyway, and the log says that the next start will not know of it. No file waits
//! for another's record, and at most one record per file is being written.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use backends::{SyncFailureStore, SyncFailures};
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use volume::VolumeId;

use crate::{
    state::{SYNC_FAILED_SUFFIX, StateDir, StateError},
    store::Store,
};
use process::log::area;

/// How long hosts wait for a note that they are not told of.
const NOTE_TIMEOUT: Duration = Duration::from_secs(5);

/// What is noted.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct FailedSync {
    volume: String,
    place: String,
}

/// Takes down what syncs have failed.
#[derive(Clone, Debug)]
pub struct SyncFailureNotes {
    state: Arc<StateDir>,
    events: Sender<NoteEvent>,
}

/// What those who note are told.
enum NoteEvent {
    /// A sync has failed.
    Failed(NoteJob),
    /// A shard is gone: those of its volume that wait for it are to go on.
    Wake(VolumeId),
    /// Writing the note of a file has ended.
    Written(Uuid, Result<(), String>),
}

/// A failed sync that is to be noted.
struct NoteJob {
    notes: SyncFailureNotes,
    id: VolumeId,
    file: Uuid,
    note: FailedSync,
    doubt: Arc<SyncFailures>,
    asked: Instant,
}

/// Notes what fails of one file.
struct FileSyncNotes {
    notes: SyncFailureNotes,
    id: VolumeId,
    file: Uuid,
    note: FailedSync,
}

impl fmt::Debug for FileSyncNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a note of {}", self.file)
    }
}

impl SyncFailureStore for FileSyncNotes {
    fn record_failures(&self, doubt: &Arc<SyncFailures>) {
        let (notes, note, doubt) = (self.notes.clone(), self.note.clone(), doubt.clone());
        let job = NoteJob { notes, id: self.id, file: self.file, note, doubt, asked: Instant::now() };
        // Without a thread that takes it the daemon is ending.
        let _ = self.notes.events.send(NoteEvent::Failed(job));
    }

    fn wake_shards(&self) {
        let _ = self.notes.events.send(NoteEvent::Wake(self.id));
    }
}

/// The record of a file's failed sync.
fn record_name(file: Uuid) -> String {
    format!("{file}.{SYNC_FAILED_SUFFIX}")
}

/// The files of a volume that there may be notes of.
pub fn file_uuids(store: &Store) -> Vec<Uuid> {
    store.legs_or_self().iter().filter(|part| part.file.is_some()).map(|part| part.uuid).collect()
}

/// Forgets the notes of these files.
pub fn remove_notes(state: &StateDir, files: &[Uuid]) -> Result<(), StateError> {
    files.iter().try_for_each(|file| {
        let name = record_name(*file);
        // Most volumes have none, and nothing need be synced for them.
        if state.path().join(&name).try_exists().unwrap_or(true) {
            state.remove_record(&name)
        } else {
            Ok(())
        }
    })
}

impl SyncFailureNotes {
    /// Notes in this directory, and what is to be noted: for [`start_writer`].
    pub fn of(state: Arc<StateDir>) -> (Self, NoteQueue) {
        let (events, asked) = channel();
        (SyncFailureNotes { state, events }, NoteQueue { asked })
    }

    /// Who notes what fails of a volume's file, or a leg's.
    pub fn failure_store(&self, id: VolumeId, part: &Store) -> Arc<dyn SyncFailureStore> {
        let place = part.volume.spec.source.display_location().unwrap_or_default();
        let note = FailedSync { volume: part.volume.name.to_string(), place };
        Arc::new(FileSyncNotes { notes: self.clone(), id, file: part.uuid, note })
    }

    /// Whether a sync of this file has failed that nobody has acknowledged. A note that cannot be read is one.
    pub fn has_failure(&self, part: &Store) -> bool {
        match self.state.read_record(&record_name(part.uuid)) {
            Ok(None) => false,
            Ok(Some(_)) => true,
            Err(why) => {
                tracing::error!(target: area::VOLUME, %why, volume = %part.volume.name, "the record of a failed sync cannot be read");
                true
            }
        }
    }

    /// Forgets the notes of a volume's files.
    pub fn remove_notes(&self, store: &Store) -> io::Result<()> {
        remove_notes(&self.state, &file_uuids(store)).map_err(io::Error::other)
    }
}

/// What is to be noted, until somebody attends to it.
pub struct NoteQueue {
    asked: Receiver<NoteEvent>,
}

/// Starts the thread that notes. `wake` wakes every shard of a volume.
pub fn start_writer(attending: NoteQueue, wake: impl Fn(VolumeId) + Send + 'static) -> io::Result<()> {
    let write = |state: &StateDir, file, note: &FailedSync| {
        state.write_json(&record_name(file), note).map_err(|why| why.to_string())
    };
    run_writer(attending, NOTE_TIMEOUT, write, wake)
}

/// The same; `write` writes a note, and may take its time.
fn run_writer(
    attending: NoteQueue,
    patience: Duration,
    write: impl Fn(&StateDir, Uuid, &FailedSync) -> Result<(), String> + Clone + Send + 'static,
    wake: impl Fn(VolumeId) + Send + 'static,
) -> io::Result<()> {
    let work = move || {
        let mut desk = NotesInProgress { files: HashMap::new(), write, wake };
        loop {
            let due = desk.oldest_wait().map(|asked| asked + patience);
            let event = match due {
                None => attending.asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => attending.asked.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match event {
                Ok(NoteEvent::Failed(job)) => desk.add_job(job),
                Ok(NoteEvent::Wake(volume)) => (desk.wake)(volume),
                Ok(NoteEvent::Written(file, came)) => desk.finish_write(file, came),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Some(late) = Instant::now().checked_sub(patience) {
                desk.expire_waiters(late);
            }
        }
    };
    thread::Builder::new().name("notes".to_owned()).spawn(work).map(drop)
}

/// The notes that are being written, and who waits for them.
struct NotesInProgress<F, G> {
    files: HashMap<Uuid, NoteWrite>,
    write: F,
    wake: G,
}

/// The note of a file, while it is being written.
#[derive(Default)]
struct NoteWrite {
    /// Whom it answers, and how many failures of theirs it covers: as counted before it was begun.
    now: Vec<(NoteJob, u64)>,
    /// Who asked since: what was there of an earlier note may have been removed before they did.
    next: Vec<NoteJob>,
}

impl<F, G> NotesInProgress<F, G>
where
    F: Fn(&StateDir, Uuid, &FailedSync) -> Result<(), String> + Clone + Send + 'static,
    G: Fn(VolumeId),
{
    /// Begins a note, or has the job wait for the one that is being written. Each doubt waits once.
    fn add_job(&mut self, job: NoteJob) {
        match self.files.get_mut(&job.file) {
            None => self.start_write(job.file, vec![job]),
            Some(turn) if turn.next.iter().any(|other| Arc::ptr_eq(&other.doubt, &job.doubt)) => {}
            Some(turn) => turn.next.push(job),
        }
    }

    /// Writes the note of a file, which no other thread does.
    fn start_write(&mut self, file: Uuid, jobs: Vec<NoteJob>) {
        let Some(first) = jobs.first() else { return };
        let (notes, note, write) = (first.notes.clone(), first.note.clone(), self.write.clone());
        let work = move || {
            let came = write(&notes.state, file, &note);
            let _ = notes.events.send(NoteEvent::Written(file, came));
        };
        let now = jobs.into_iter().map(|job| {
            let failures = job.doubt.failure_count();
            (job, failures)
        });
        self.files.insert(file, NoteWrite { now: now.collect(), next: Vec::new() });
        if let Err(why) = thread::Builder::new().name("note".to_owned()).spawn(work) {
            self.finish_write(file, Err(why.to_string()));
        }
    }

    /// A note has been written, or cannot be.
    fn finish_write(&mut self, file: Uuid, came: Result<(), String>) {
        let Some(NoteWrite { now, next }) = self.files.remove(&file) else { return };
        for (job, failures) in now {
            match &came {
                Ok(()) => self.report_failures(&job, failures),
                Err(why) => self.report_unnoted(&job, failures, why),
            }
        }
        self.start_write(file, next);
    }

    /// Since when the one has waited who has waited longest.
    fn oldest_wait(&self) -> Option<Instant> {
        self.files.values().flat_map(NoteWrite::waiting_jobs).map(|job| job.asked).min()
    }

    /// Tells those who asked by then.
    fn expire_waiters(&mut self, late: Instant) {
        let mut told = Vec::new();
        for turn in self.files.values_mut() {
            told.extend(turn.now.extract_if(.., |(job, _)| job.asked <= late).map(|(job, _)| job));
            told.extend(turn.next.extract_if(.., |job| job.asked <= late));
        }
        for job in told {
            let failures = job.doubt.failure_count();
            self.report_unnoted(&job, failures, "the state directory's disk does not answer");
        }
    }

    fn report_unnoted(&self, job: &NoteJob, failures: u64, why: &str) {
        tracing::error!(
            target: area::VOLUME,
            volume = job.note.volume,
            why,
            "a failed sync cannot be recorded in the state directory: after a restart the daemon will not know \
             that recent writes may be lost"
        );
        self.report_failures(job, failures);
    }

    /// Lets hosts be told of so many failures.
    fn report_failures(&self, job: &NoteJob, failures: u64) {
        job.doubt.note_recorded(failures);
        (self.wake)(job.id);
    }
}

impl NoteWrite {
    fn waiting_jobs(&self) -> impl Iterator<Item = &NoteJob> {
        self.now.iter().map(|(job, _)| job).chain(&self.next)
    }
}

#[cfg(test)]
#[path = "sync_failures_tests.rs"]
mod tests;
