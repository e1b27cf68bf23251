//! Failed syncs over restarts, on files whose syncs the test controls.

use buf::{Cx, Entropy, Errno, Payload, Pool, Time};
use shard::{BackendFactory, MakeBackend};
use volume::{Backend, DiskId, Fault, Io, IoCompletion, IoId, Op};

use super::*;
use crate::{dataplane::medium::Medium, state::identity::Identities};
use config::{
    name::VolumeName,
    plan::{Volume, VolumeOrigin},
    spec,
};

const ID: VolumeId = VolumeId(4 << 32 | 3);
const SOON: Duration = Duration::from_secs(30);

struct Rig {
    root: tempfile::TempDir,
    store: Store,
}

impl Rig {
    fn new(legs: usize) -> Self {
        let root = tempfile::tempdir().unwrap();
        let file = |leg: usize| format!("file:{},size=1M", root.path().join(leg.to_string()).display());
        let leg = |leg: usize| file(leg).replace(',', "\\,");
        let text = match legs {
            1 => file(0),
            _ => format!("stripe:{}", (0..legs).map(leg).collect::<Vec<_>>().join("+")),
        };
        let spec = spec::parse(&text).unwrap();
        let volume = Volume { name: VolumeName::parse("a").unwrap(), spec, origin: VolumeOrigin::Configured };
        let store = Store::open(&volume, &mut Identities::default(), [].iter()).unwrap();
        Rig { root, store }
    }

    fn notes(&self) -> (SyncFailureNotes, NoteQueue) {
        SyncFailureNotes::of(Arc::new(StateDir::open(&self.root.path().join("state")).unwrap()))
    }

    fn medium(&self, notes: &SyncFailureNotes) -> Medium {
        let disks: Vec<_> = (0..self.store.legs_or_self().len() as u32).map(|at| Some(DiskId(at))).collect();
        Medium::of(&self.store, &disks, 1, (notes, ID)).unwrap()
    }
}

fn cx<R>(run: impl FnOnce(&mut Cx<'_>) -> R) -> R {
    let (pool, mut entropy) = (Pool::new(1 << 20), Entropy::new([0; 32]));
    run(&mut Cx { now: Time(1), pool: &pool, entropy: &mut entropy })
}

fn made(make: MakeBackend) -> Box<dyn Backend> {
    make()
}

fn backend(medium: &Medium) -> Box<dyn Backend> {
    match medium.backend_factory(0) {
        BackendFactory::Local(make) => made(make),
        BackendFactory::Network(make) => {
            struct Whole(Box<dyn endpoint::NetworkBackend>);
            impl Backend for Whole {
                fn geometry(&self) -> volume::Geometry {
                    self.0.geometry()
                }
                fn submit(&mut self, cx: &mut Cx<'_>, io: Io) {
                    self.0.submit(cx, io);
                }
                fn cancel(&mut self, id: IoId) {
                    self.0.cancel(id);
                }
                fn poll_done(&mut self) -> Option<IoCompletion> {
                    self.0.poll_done()
                }
                fn poll_disk(&mut self) -> Option<volume::DiskOp> {
                    self.0.poll_disk()
                }
                fn handle_disk(&mut self, cx: &mut Cx<'_>, op: volume::DiskOp, came: Result<usize, Errno>) {
                    self.0.handle_disk(cx, op, came);
                }
                fn handle_wake(&mut self) {
                    self.0.handle_wake();
                }
            }
            Box::new(Whole(cx(make)))
        }
    }
}

/// How a flush ends if each of its syncs ends like this.
fn flush(backend: &mut dyn Backend, came: Result<usize, Errno>) -> Option<IoCompletion> {
    cx(|cx| {
        let io = Io { id: IoId(1), epoch: volume::Epoch(0), op: Op::Flush, payload: Payload::None };
        backend.submit(cx, io);
        while let Some(op) = backend.poll_disk() {
            backend.handle_disk(cx, op, came);
        }
    });
    backend.poll_done()
}

#[test]
fn a_failed_sync_is_not_forgotten_by_a_daemon_that_was_killed() {
    for legs in [1, 2] {
        let rig = Rig::new(legs);
        let (notes, attending) = rig.notes();
        let medium = rig.medium(&notes);
        assert!(!medium.has_sync_failure());
        let mut shard = backend(&medium);
        assert!(flush(&mut *shard, Err(Errno(5))).is_none(), "told before it is noted");
        let (woken, wakes) = channel();
        start_writer(attending, move |id| woken.send(id).unwrap()).unwrap();
        assert_eq!(wakes.recv_timeout(SOON), Ok(ID));
        (1..legs).for_each(|_| _ = wakes.recv_timeout(SOON));
        shard.handle_wake();
        assert_eq!(shard.poll_done().unwrap().result, Err(Fault::Sync.into()));
        // Killed: nothing of it is told to anybody; its state directory is free when its threads have gone.
        drop((shard, medium, notes));
        let deadline = std::time::Instant::now() + SOON;
        while StateDir::open(&rig.root.path().join("state")).is_err() {
            assert!(std::time::Instant::now() < deadline, "the thread that notes has not ended");
            thread::sleep(Duration::from_millis(1));
        }

        let (notes, attending) = rig.notes();
        let medium = rig.medium(&notes);
        let mut shard = backend(&medium);
        assert_eq!(flush(&mut *shard, Ok(0)).unwrap().result, Err(Fault::Sync.into()), "{legs}");
        let failures = medium.sync_failure_counts();
        notes.remove_notes(&rig.store).unwrap();
        medium.acknowledge_sync_failures(&failures);
        assert!(flush(&mut *shard, Ok(0)).unwrap().result.is_ok());
        drop((shard, medium, notes, attending));

        let (notes, _attending) = rig.notes();
        assert!(!rig.medium(&notes).has_sync_failure(), "acknowledged");
    }
}

#[test]
fn a_file_that_could_not_be_synced_when_it_was_opened_is_in_doubt() {
    for in_doubt in [false, true] {
        let mut rig = Rig::new(1);
        rig.store.in_doubt = in_doubt;
        let (notes, attending) = rig.notes();
        let medium = rig.medium(&notes);
        assert_eq!((medium.has_sync_failure(), attending.asked.try_recv().is_ok()), (in_doubt, in_doubt));
        assert!(flush(&mut *backend(&medium), Ok(0)).is_none_or(|done| done.result.is_ok() && !in_doubt));
    }
}

#[test]
fn a_note_that_cannot_be_written_or_read_keeps_nobody_waiting_and_is_none_of_success() {
    let rig = Rig::new(1);
    let (notes, attending) = rig.notes();
    let path = notes.state.path().join(record_name(rig.store.uuid));
    std::fs::create_dir(&path).unwrap();
    assert!(notes.has_failure(&rig.store), "nobody knows what it says");
    let medium = rig.medium(&notes);
    assert!(medium.has_sync_failure());
    std::fs::remove_dir(&path).unwrap();
    medium.acknowledge_sync_failures(&medium.sync_failure_counts());
    std::fs::create_dir(notes.state.path().join(format!("{}.new", record_name(rig.store.uuid)))).unwrap();
    let mut shard = backend(&medium);
    assert!(flush(&mut *shard, Err(Errno(5))).is_none());
    let (woken, wakes) = channel();
    start_writer(attending, move |id| woken.send(id).unwrap()).unwrap();
    assert_eq!(wakes.recv_timeout(SOON), Ok(ID));
    shard.handle_wake();
    assert_eq!(shard.poll_done().unwrap().result, Err(Fault::Sync.into()));
}

/// A state directory's disk that does not answer, for one file and not the other.
#[test]
fn a_note_that_is_not_written_keeps_no_other_waiting_and_nobody_longer_than_from_when_it_was_asked() {
    let (rig, other) = (Rig::new(1), Rig::new(1));
    let (notes, attending) = rig.notes();
    let medium = rig.medium(&notes);
    let disks = [Some(DiskId(0))];
    let well = Medium::of(&other.store, &disks, 1, (&notes, VolumeId(5))).unwrap();
    let (stuck, (begun, begins), (woken, wakes)) = (rig.store.uuid, channel(), channel());
    let (release, released) = channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let write = move |_: &StateDir, file, _: &FailedSync| {
        begun.send(file).unwrap();
        if file == stuck {
            let _ = released.lock().unwrap().recv_timeout(SOON);
        }
        Ok(())
    };
    let patience = Duration::from_secs(1);
    let start = Instant::now();
    run_writer(attending, patience, write, move |id| _ = woken.send((id, start.elapsed()))).unwrap();
    let mut shard = backend(&medium);
    assert!(flush(&mut *shard, Err(Errno(5))).is_none());
    // Each of these asks as well.
    (0..50).for_each(|_| medium.note_sync_failure());
    let asked = start.elapsed();
    assert!(flush(&mut *backend(&well), Err(Errno(5))).is_none());
    let told: Vec<_> = (0..3).map(|_| wakes.recv_timeout(SOON).unwrap()).collect();
    assert_eq!(told.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [VolumeId(5), ID, ID], "{told:?}");
    assert!(told[2].1 < asked + 10 * patience, "one after the other: {told:?}");
    let begins: Vec<_> = begins.try_iter().collect();
    let of = |file| begins.iter().filter(|begun| **begun == file).count();
    assert_eq!((of(stuck), of(other.store.uuid)), (1, 1), "one note is written of a file at a time");
    shard.handle_wake();
    assert_eq!(shard.poll_done().unwrap().result, Err(Fault::Sync.into()));
    release.send(()).unwrap();
}
