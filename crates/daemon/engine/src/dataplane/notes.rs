//! Records of failed syncs in the state directory: data that may be lost stays marked after the daemon was
//! killed, until the operator acknowledges it.
//!
//! Invariants: hosts are told of a failed sync when its record is durable. If that takes longer than
//! `PATIENCE`, they are told anyway, and the log says that the next start will not know of it. No file waits
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
    state::{SYNC_FAILED, StateDir, StateError},
    store::Store,
};

/// How long hosts wait for a note that they are not told of.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is noted.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct FailedSync {
    volume: String,
    place: String,
}

/// Takes down what syncs have failed.
#[derive(Clone, Debug)]
pub struct Notes {
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
    notes: Notes,
    id: VolumeId,
    file: Uuid,
    note: FailedSync,
    doubt: Arc<SyncFailures>,
    asked: Instant,
}

/// Notes what fails of one file.
struct FileNotes {
    notes: Notes,
    id: VolumeId,
    file: Uuid,
    note: FailedSync,
}

impl fmt::Debug for FileNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a note of {}", self.file)
    }
}

impl SyncFailureStore for FileNotes {
    fn record(&self, doubt: &Arc<SyncFailures>) {
        let (notes, note, doubt) = (self.notes.clone(), self.note.clone(), doubt.clone());
        let job = NoteJob { notes, id: self.id, file: self.file, note, doubt, asked: Instant::now() };
        // Without a thread that takes it the daemon is ending.
        let _ = self.notes.events.send(NoteEvent::Failed(job));
    }

    fn wake(&self) {
        let _ = self.notes.events.send(NoteEvent::Wake(self.id));
    }
}

/// The record of a file's failed sync.
fn record(file: Uuid) -> String {
    format!("{file}.{SYNC_FAILED}")
}

/// The files of a volume that there may be notes of.
pub fn files(store: &Store) -> Vec<Uuid> {
    store.parts().iter().filter(|part| part.file.is_some()).map(|part| part.uuid).collect()
}

/// Forgets the notes of these files.
pub fn forget(state: &StateDir, files: &[Uuid]) -> Result<(), StateError> {
    files.iter().try_for_each(|file| {
        let name = record(*file);
        // Most volumes have none, and nothing need be synced for them.
        if state.path().join(&name).try_exists().unwrap_or(true) { state.remove(&name) } else { Ok(()) }
    })
}

impl Notes {
    /// Notes in this directory, and what is to be noted: for [`attend`].
    pub fn of(state: Arc<StateDir>) -> (Self, UnreadEvents) {
        let (events, asked) = channel();
        (Notes { state, events }, UnreadEvents { asked })
    }

    /// Who notes what fails of a volume's file, or a leg's.
    pub fn store(&self, id: VolumeId, part: &Store) -> Arc<dyn SyncFailureStore> {
        let place = part.volume.spec.source.place().unwrap_or_default();
        let note = FailedSync { volume: part.volume.name.to_string(), place };
        Arc::new(FileNotes { notes: self.clone(), id, file: part.uuid, note })
    }

    /// Whether a sync of this file has failed that nobody has acknowledged. A note that cannot be read is one.
    pub fn has(&self, part: &Store) -> bool {
        match self.state.read(&record(part.uuid)) {
            Ok(None) => false,
            Ok(Some(_)) => true,
            Err(why) => {
                tracing::error!(%why, volume = %part.volume.name, "the record of a failed sync cannot be read");
                true
            }
        }
    }

    /// Forgets the notes of a volume's files.
    pub fn forget(&self, store: &Store) -> io::Result<()> {
        forget(&self.state, &files(store)).map_err(io::Error::other)
    }
}

/// What is to be noted, until somebody attends to it.
pub struct UnreadEvents {
    asked: Receiver<NoteEvent>,
}

/// Starts the thread that notes. `wake` wakes every shard of a volume.
pub fn attend(attending: UnreadEvents, wake: impl Fn(VolumeId) + Send + 'static) -> io::Result<()> {
    let write = |state: &StateDir, file, note: &FailedSync| {
        state.write_json(&record(file), note).map_err(|why| why.to_string())
    };
    attend_by(attending, PATIENCE, write, wake)
}

/// The same; `write` writes a note, and may take its time.
fn attend_by(
    attending: UnreadEvents,
    patience: Duration,
    write: impl Fn(&StateDir, Uuid, &FailedSync) -> Result<(), String> + Clone + Send + 'static,
    wake: impl Fn(VolumeId) + Send + 'static,
) -> io::Result<()> {
    let work = move || {
        let mut desk = NotesInProgress { files: HashMap::new(), write, wake };
        loop {
            let due = desk.oldest().map(|asked| asked + patience);
            let event = match due {
                None => attending.asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => attending.asked.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match event {
                Ok(NoteEvent::Failed(job)) => desk.take(job),
                Ok(NoteEvent::Wake(volume)) => (desk.wake)(volume),
                Ok(NoteEvent::Written(file, came)) => desk.written(file, came),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Some(late) = Instant::now().checked_sub(patience) {
                desk.lose_patience(late);
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
    fn take(&mut self, job: NoteJob) {
        match self.files.get_mut(&job.file) {
            None => self.begin(job.file, vec![job]),
            Some(turn) if turn.next.iter().any(|other| Arc::ptr_eq(&other.doubt, &job.doubt)) => {}
            Some(turn) => turn.next.push(job),
        }
    }

    /// Writes the note of a file, which no other thread does.
    fn begin(&mut self, file: Uuid, jobs: Vec<NoteJob>) {
        let Some(first) = jobs.first() else { return };
        let (notes, note, write) = (first.notes.clone(), first.note.clone(), self.write.clone());
        let work = move || {
            let came = write(&notes.state, file, &note);
            let _ = notes.events.send(NoteEvent::Written(file, came));
        };
        let now = jobs.into_iter().map(|job| {
            let failures = job.doubt.failures();
            (job, failures)
        });
        self.files.insert(file, NoteWrite { now: now.collect(), next: Vec::new() });
        if let Err(why) = thread::Builder::new().name("note".to_owned()).spawn(work) {
            self.written(file, Err(why.to_string()));
        }
    }

    /// A note has been written, or cannot be.
    fn written(&mut self, file: Uuid, came: Result<(), String>) {
        let Some(NoteWrite { now, next }) = self.files.remove(&file) else { return };
        for (job, failures) in now {
            match &came {
                Ok(()) => self.tell(&job, failures),
                Err(why) => self.tell_unnoted(&job, failures, why),
            }
        }
        self.begin(file, next);
    }

    /// Since when the one has waited who has waited longest.
    fn oldest(&self) -> Option<Instant> {
        self.files.values().flat_map(NoteWrite::waiting).map(|job| job.asked).min()
    }

    /// Tells those who asked by then.
    fn lose_patience(&mut self, late: Instant) {
        let mut told = Vec::new();
        for turn in self.files.values_mut() {
            told.extend(turn.now.extract_if(.., |(job, _)| job.asked <= late).map(|(job, _)| job));
            told.extend(turn.next.extract_if(.., |job| job.asked <= late));
        }
        for job in told {
            let failures = job.doubt.failures();
            self.tell_unnoted(&job, failures, "the state directory's disk does not answer");
        }
    }

    fn tell_unnoted(&self, job: &NoteJob, failures: u64, why: &str) {
        tracing::error!(
            volume = job.note.volume,
            why,
            "a failed sync cannot be recorded in the state directory: after a restart the daemon will not know \
             that recent writes may be lost"
        );
        self.tell(job, failures);
    }

    /// Lets hosts be told of so many failures.
    fn tell(&self, job: &NoteJob, failures: u64) {
        job.doubt.recorded(failures);
        (self.wake)(job.id);
    }
}

impl NoteWrite {
    fn waiting(&self) -> impl Iterator<Item = &NoteJob> {
        self.now.iter().map(|(job, _)| job).chain(&self.next)
    }
}

#[cfg(test)]
#[path = "notes_tests.rs"]
mod tests;
