//! Two shards on one file. The test decides when and how each call ends.

use super::*;

const EIO: Errno = Errno(5);
const EAGAIN: Errno = Errno(11);
const OK: Result<Outcome, Failure> = Ok(Outcome::Complete);
const LOST: Result<Outcome, Failure> = Err(Failure::Failed(Fault::Sync));

struct Shards {
    pool: Pool,
    entropy: Entropy,
    disk: Arc<FileDisk>,
    files: [FileBackend; 2],
}

impl Shards {
    fn new(facts: FileFacts) -> Self {
        let disk = Arc::new(FileDisk::new(DiskId(3), &facts, 2).unwrap());
        let files = [0, 1].map(|shard| FileBackend::new(disk.clone(), shard));
        Shards { pool: Pool::new(1 << 20), entropy: Entropy::new([0; 32]), disk, files }
    }

    /// With nothing that is not stable.
    fn clean(facts: FileFacts) -> Self {
        let mut shards = Shards::new(facts);
        settle_at_start(&mut shards);
        shards
    }

    fn start(&mut self, shard: usize, id: u64, op: Op, payload: Payload) {
        let mut cx = Cx { now: Time(0), pool: &self.pool, entropy: &mut self.entropy };
        self.files[shard].submit(&mut cx, Io { id: IoId(id), epoch: Default::default(), op, payload });
    }

    fn write(&mut self, shard: usize, id: u64, durability: Durability) {
        let payload = Payload::Out(self.pool.take_sg(MemoryClass::Wire, 512).unwrap().freeze());
        self.start(shard, id, Op::Write(Span { lba: 0, blocks: 1 }, durability), payload);
    }

    fn flush(&mut self, shard: usize, id: u64) {
        self.start(shard, id, Op::Flush, Payload::None);
    }

    /// What a shard asks of the disk.
    fn asked(&mut self, shard: usize) -> Option<DiskOp> {
        self.files[shard].poll_disk()
    }

    fn came(&mut self, shard: usize, op: DiskOp, came: Result<usize, Errno>) {
        let mut cx = Cx { now: Time(0), pool: &self.pool, entropy: &mut self.entropy };
        self.files[shard].handle_disk(&mut cx, op, came);
    }

    /// The one call that a shard has asked for ends.
    fn call(&mut self, shard: usize, came: Result<usize, Errno>) {
        let op = self.asked(shard).expect("a call");
        self.came(shard, op, came);
    }

    fn sync(&mut self, shard: usize, came: Result<usize, Errno>) {
        let op = self.asked(shard).expect("a call");
        assert!(matches!(op.kind, DiskKind::Sync), "{op:?}");
        self.came(shard, op, came);
    }

    /// A shard goes, and its backend with it.
    fn end(&mut self, shard: usize) {
        let other = FileDisk::new(DiskId(4), &facts(true, 512, true), 2).unwrap();
        self.files[shard] = FileBackend::new(Arc::new(other), shard as u16);
    }

    fn ended(&mut self, shard: usize) -> Vec<(u64, Result<Outcome, Failure>)> {
        std::iter::from_fn(|| self.files[shard].poll_done()).map(|done| (done.id.0, done.result)).collect()
    }

    /// Wakes whom a shard names.
    fn wake(&mut self, by: usize) -> Vec<u16> {
        let woken: Vec<u16> =
            std::iter::from_fn(|| self.files[by].poll_shard_to_wake()).map(|shard| shard.0).collect();
        woken.iter().for_each(|shard| self.files[usize::from(*shard)].handle_wake());
        woken
    }
}

#[test]
fn the_first_flush_after_a_start_is_never_good_without_a_sync() {
    for cache in [false, true] {
        let mut shards = Shards::new(facts(true, 512, cache));
        shards.flush(1, 1);
        assert_eq!(shards.ended(1), []);
        shards.sync(1, Ok(0));
        assert_eq!(shards.ended(1), [(1, OK)]);
        shards.flush(0, 2);
        assert_eq!(shards.ended(0), [(2, OK)], "nothing was written since");
    }
}

#[test]
fn a_failed_stable_write_does_not_eat_the_error_of_the_next_flush() {
    let mut shards = Shards::clean(facts(true, 512, true));
    shards.write(0, 1, Durability::Cached);
    shards.call(0, Ok(512));
    shards.write(1, 2, Durability::Stable);
    // The kernel tells it here, and nobody again.
    shards.call(1, Err(EIO));
    assert_eq!((shards.ended(0), shards.ended(1)), (vec![(1, OK)], vec![(2, LOST)]));
    shards.flush(0, 3);
    shards.flush(1, 4);
    assert_eq!((shards.ended(0), shards.ended(1)), (vec![(3, LOST)], vec![(4, LOST)]));
}

/// Where no write is answered before it is stable, a bad block is one bad block.
#[test]
fn a_failed_write_without_a_cache_is_no_failed_sync() {
    let mut shards = Shards::clean(facts(true, 512, false));
    shards.write(0, 1, Durability::Cached);
    shards.call(0, Err(EIO));
    assert_eq!(shards.ended(0), []);
    // Not even when nothing has to be made stable.
    shards.call(0, Err(EIO));
    assert_eq!(shards.ended(0), [(1, Err(Fault::Unwritable(0).into()))]);
    shards.write(0, 2, Durability::Cached);
    shards.call(0, Ok(512));
    assert_eq!(shards.ended(0), [(2, OK)]);
}

/// The disk drops what is in its cache and tells the first that asks; the next is told that all is well.
#[test]
fn a_flush_that_failed_within_one_stable_write_is_not_hidden_from_the_others() {
    let mut shards = Shards::clean(facts(true, 512, false));
    shards.write(0, 1, Durability::Cached);
    shards.write(1, 2, Durability::Cached);
    shards.call(0, Err(EIO));
    shards.call(1, Ok(512));
    assert_eq!((shards.ended(0), shards.ended(1)), (vec![], vec![(2, OK)]));
    let op = shards.asked(0).unwrap();
    assert!(matches!(op.kind, DiskKind::Write { durable: false, skip: 0, .. }), "{op:?}");
    shards.came(0, op, Ok(512));
    assert_eq!(shards.ended(0), [(1, LOST)]);
    shards.write(1, 3, Durability::Cached);
    shards.flush(1, 4);
    assert_eq!(shards.ended(1), [(3, LOST), (4, LOST)], "the write that was answered before may be lost");
}

/// Shard 0 has written, been told of a failure, and is to write once more to learn of what.
fn probing(shards: &mut Shards, store: &Told) {
    assert_eq!(store.take(), 0);
    shards.write(0, 1, Durability::Cached);
    shards.call(0, Err(EIO));
    assert!(!shards.disk.sync_failures().has_unacknowledged());
}

#[test]
fn an_abort_does_not_hide_a_failed_flush() {
    let (mut shards, told) = recorded(facts(true, 512, false));
    settle_at_start(&mut shards);
    probing(&mut shards, &told);
    shards.files[0].cancel(IoId(1));
    assert_eq!(shards.ended(0), [], "it is not known yet what has failed");
    shards.call(0, Ok(512));
    assert!(shards.disk.sync_failures().has_unacknowledged());
    shards.disk.sync_failures().note_recorded(shards.disk.sync_failures().failure_count());
    shards.files[0].handle_wake();
    assert_eq!(shards.ended(0), [(1, LOST)]);
}

#[test]
fn only_an_error_that_tells_of_bad_blocks_clears_a_flush_that_may_have_failed() {
    let of_blocks = [5, 121, 61, 84, 74].map(|errno| (Err(Errno(errno)), false));
    // ENXIO, ENODEV, ETIMEDOUT, ENOMEM, EAGAIN, ENOSPC, EINVAL; and nothing moved.
    let of_others = [6, 19, 110, 12, 11, 28, 22].map(|errno| (Err(Errno(errno)), true));
    for (came, fails) in of_blocks.into_iter().chain(of_others).chain([(Ok(0), true)]) {
        let mut shards = Shards::clean(facts(true, 512, false));
        shards.write(0, 1, Durability::Cached);
        shards.call(0, Err(EIO));
        while let Some(op) = shards.asked(0) {
            shards.came(0, op, came);
        }
        let expected = if fails { LOST } else { Err(Fault::Unwritable(0).into()) };
        assert_eq!(shards.ended(0), [(1, expected)], "{came:?}");
        assert_eq!(shards.disk.sync_failures().has_unacknowledged(), fails, "{came:?}");
    }
}

#[test]
fn a_shard_that_ends_before_it_knows_what_has_failed_leaves_a_doubt() {
    let (mut shards, told) = recorded(facts(true, 512, false));
    settle_at_start(&mut shards);
    probing(&mut shards, &told);
    shards.end(0);
    assert!(shards.disk.sync_failures().has_unacknowledged() && told.take() > 0);
}

/// At its end a shard takes back what is out, and asks the disk for nothing more.
#[test]
fn a_shard_that_ends_with_calls_that_never_left_leaves_no_doubt() {
    let (mut shards, told) = recorded(facts(false, 512, false));
    settle_at_start(&mut shards);
    shards.write(0, 1, Durability::Cached);
    let write = shards.asked(0).unwrap();
    shards.came(0, write, Ok(512));
    shards.flush(1, 2);
    assert!(shards.asked(1).is_none(), "the other one has the turn");
    // The sync that makes it stable was never asked for.
    shards.end(0);
    assert_eq!((shards.disk.sync_failures().has_unacknowledged(), told.take()), (false, 0));
    assert!(told.took_wake(), "who waited for it goes on");
    shards.files[1].handle_wake();
    shards.sync(1, Ok(0));
    assert_eq!(shards.ended(1), [(2, OK)]);
}

#[test]
fn a_shard_that_ends_with_writes_that_never_left_leaves_no_doubt() {
    let (mut shards, told) = recorded(facts(true, 512, true));
    settle_at_start(&mut shards);
    shards.write(0, 1, Durability::Cached);
    shards.call(0, Ok(512));
    // Half of one that is stable by itself has been done.
    let two = Payload::Out(shards.pool.take_sg(MemoryClass::Solicited, 1024).unwrap().freeze());
    shards.start(1, 2, Op::Write(Span { lba: 0, blocks: 2 }, Durability::Stable), two);
    shards.call(1, Ok(512));
    shards.flush(0, 3);
    shards.sync(0, Ok(0));
    assert_eq!(shards.ended(0), [(1, OK)]);
    shards.end(1);
    assert_eq!((shards.disk.sync_failures().has_unacknowledged(), told.take()), (false, 0));
    assert!(told.took_wake());
    shards.files[0].handle_wake();
    assert_eq!(shards.ended(0), [(3, OK)]);
    // One that the disk has is not over.
    shards.write(0, 4, Durability::Stable);
    let _out = shards.asked(0).unwrap();
    shards.end(0);
    assert!(shards.disk.sync_failures().has_unacknowledged() && told.take() > 0);
}

/// A shard has one stable write out, and a flush of the other one has failed: the operator takes note of that.
fn forgiven(fail: impl FnOnce(&mut Shards)) -> (Shards, DiskOp) {
    let mut shards = Shards::clean(facts(true, 512, true));
    shards.write(0, 1, Durability::Cached);
    shards.call(0, Ok(512));
    shards.write(1, 2, Durability::Stable);
    let older = shards.asked(1).unwrap();
    shards.flush(0, 3);
    fail(&mut shards);
    assert_eq!(shards.ended(0), [(1, OK), (3, LOST)]);
    shards.disk.acknowledge_sync_failures(shards.disk.sync_failures().failure_count());
    shards.flush(0, 4);
    shards.sync(0, Ok(0));
    (shards, older)
}

#[test]
fn a_flush_behind_a_forgiven_failure_waits_for_the_stable_writes_before_it() {
    for fails in [false, true] {
        let failed_sync = forgiven(|shards| shards.sync(0, Err(EIO)));
        let failed_beside = forgiven(|shards| {
            shards.sync(0, Ok(0));
            shards.write(1, 9, Durability::Stable);
            shards.call(1, Err(EIO));
            assert_eq!(shards.ended(1), [(9, LOST)]);
            shards.files[0].handle_wake();
        });
        for (mut shards, older) in [failed_sync, failed_beside] {
            assert_eq!(shards.ended(0), [], "an older write may be told of what the sync should have been");
            shards.came(1, older, if fails { Err(EIO) } else { Ok(512) });
            assert_eq!(shards.wake(1), [0]);
            assert_eq!(shards.ended(0), [(4, if fails { LOST } else { OK })]);
        }
    }
}

#[test]
fn a_failure_beside_a_sync_is_not_forgotten_with_the_operators_word() {
    let mut shards = Shards::clean(facts(true, 512, true));
    shards.write(0, 1, Durability::Cached);
    shards.call(0, Ok(512));
    shards.write(1, 2, Durability::Stable);
    shards.write(1, 3, Durability::Stable);
    let (first, second) = (shards.asked(1).unwrap(), shards.asked(1).unwrap());
    shards.flush(0, 4);
    shards.sync(0, Ok(0));
    shards.came(1, first, Err(EIO));
    shards.disk.acknowledge_sync_failures(shards.disk.sync_failures().failure_count());
    shards.came(1, second, Ok(512));
    shards.wake(1);
    assert_eq!(shards.ended(0), [(1, OK), (4, LOST)]);
}

/// One that remembers how often it was told, and whether it was to wake the shards, and does nothing by itself.
#[derive(Debug, Default)]
struct Told(std::sync::atomic::AtomicU32, std::sync::atomic::AtomicBool);

impl SyncFailureStore for Told {
    fn record_failures(&self, _doubt: &Arc<SyncFailures>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    fn wake_shards(&self) {
        self.1.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

impl Told {
    fn take(&self) -> u32 {
        self.0.swap(0, std::sync::atomic::Ordering::SeqCst)
    }

    fn took_wake(&self) -> bool {
        self.1.swap(false, std::sync::atomic::Ordering::SeqCst)
    }
}

/// Nothing is left that is not stable.
fn settle_at_start(shards: &mut Shards) {
    shards.flush(0, 99);
    shards.sync(0, Ok(0));
    assert_eq!(shards.ended(0), [(99, OK)]);
}

fn recorded(facts: FileFacts) -> (Shards, Arc<Told>) {
    let told = Arc::new(Told::default());
    let disk = Arc::new(FileDisk::new(DiskId(3), &facts, 2).unwrap().with_failure_store(told.clone()));
    let files = [0, 1].map(|shard| FileBackend::new(disk.clone(), shard));
    (Shards { disk, files, ..Shards::new(facts) }, told)
}

#[test]
fn no_host_hears_of_a_failed_sync_before_that_is_durable() {
    let (mut shards, told) = recorded(facts(true, 512, true));
    shards.flush(0, 1);
    shards.sync(0, Err(EIO));
    shards.write(1, 2, Durability::Cached);
    shards.start(1, 3, Op::WriteZeroes { span: Span { lba: 0, blocks: 1 }, unmap: true }, Payload::None);
    shards.files.iter_mut().for_each(Backend::handle_wake);
    assert_eq!((shards.ended(0), shards.ended(1), told.take()), (vec![], vec![], 1));
    shards.disk.sync_failures().note_recorded(shards.disk.sync_failures().failure_count());
    shards.files.iter_mut().for_each(Backend::handle_wake);
    assert_eq!((shards.ended(0), shards.ended(1)), (vec![(1, LOST)], vec![(2, LOST), (3, LOST)]));
    shards.flush(1, 4);
    assert_eq!((shards.ended(1), told.take()), (vec![(4, LOST)], 0));
}

#[test]
fn what_the_operator_forgives_is_no_failure_that_came_later() {
    let (mut shards, told) = recorded(facts(true, 512, true));
    let failed = |shards: &mut Shards| {
        shards.disk.note_external_sync_failure();
        shards.disk.sync_failures().note_recorded(shards.disk.sync_failures().failure_count());
        shards.disk.sync_failures().failure_count()
    };
    let first = failed(&mut shards);
    let second = failed(&mut shards);
    assert_eq!(told.take(), 1);
    shards.disk.acknowledge_sync_failures(first);
    assert_eq!(
        (shards.disk.sync_failures().has_unacknowledged(), told.take()),
        (true, 1),
        "it is written down again"
    );
    shards.disk.acknowledge_sync_failures(second);
    assert!(!shards.disk.sync_failures().has_unacknowledged());
    shards.flush(0, 1);
    shards.sync(0, Ok(0));
    assert_eq!(shards.ended(0), [(1, OK)]);
    failed(&mut shards);
    shards.flush(0, 2);
    assert_eq!(shards.ended(0), [(2, LOST)]);
}

/// Nobody takes the wakes of a backend that is gone.
#[test]
fn a_flush_that_waits_for_a_shard_which_goes_does_not_wait_for_ever() {
    let (mut shards, told) = recorded(facts(true, 512, true));
    shards.flush(0, 1);
    let _out = shards.asked(0).unwrap();
    shards.flush(1, 2);
    shards.disk.sync_failures().note_recorded(0);
    shards.end(0);
    assert!(told.take() > 0, "who keeps the doubt wakes all");
    shards.disk.sync_failures().note_recorded(shards.disk.sync_failures().failure_count());
    shards.files[1].handle_wake();
    assert_eq!(shards.ended(1), [(2, LOST)]);
}

#[test]
fn a_full_file_system_is_no_failed_sync() {
    for direct in [false, true] {
        let mut shards = Shards::clean(facts(direct, 512, true));
        shards.write(0, 1, Durability::Cached);
        shards.call(0, Ok(512));
        shards.write(0, 2, Durability::Stable);
        shards.call(0, Err(ENOSPC));
        assert_eq!(shards.ended(0), [(1, OK), (2, Err(Fault::NoSpace.into()))]);
        shards.flush(0, 3);
        shards.sync(0, Ok(0));
        assert_eq!(shards.ended(0), [(3, OK)]);
    }
}

#[test]
fn of_two_shards_that_flush_none_is_good_where_one_is_told_of_a_failure() {
    let mut shards = Shards::clean(facts(false, 512, true));
    for shard in [0, 1] {
        shards.write(shard, 1, Durability::Cached);
        shards.call(shard, Ok(512));
        assert_eq!(shards.ended(shard), [(1, OK)]);
        shards.flush(shard, 2);
    }
    assert!(shards.asked(1).is_none(), "a second sync could be told that all is well");
    shards.sync(0, Err(EIO));
    assert_eq!((shards.ended(0), shards.ended(1)), (vec![(2, LOST)], vec![]));
    assert_eq!(shards.wake(0), [1]);
    assert_eq!(shards.ended(1), [(2, LOST)]);
    assert!(shards.asked(1).is_none());
}

#[test]
fn shards_that_flush_at_once_share_syncs_and_none_is_left_waiting() {
    let mut shards = Shards::clean(facts(false, 512, true));
    for shard in [0, 1] {
        shards.write(shard, 1, Durability::Cached);
        shards.call(shard, Ok(512));
    }
    shards.flush(0, 2);
    shards.flush(1, 2);
    // Written behind the beginning of the sync that is out.
    shards.write(1, 3, Durability::Cached);
    let sync = shards.asked(0).unwrap();
    shards.call(1, Ok(512));
    shards.flush(1, 4);
    shards.came(0, sync, Ok(0));
    assert_eq!(shards.ended(0), [(1, OK), (2, OK)]);
    assert_eq!(shards.wake(0), [1]);
    assert_eq!(shards.ended(1), [(1, OK), (3, OK), (2, OK)], "what the other shard's sync has covered");
    shards.sync(1, Ok(0));
    assert_eq!(shards.ended(1), [(4, OK)]);
    assert_eq!(shards.wake(1), []);
}

#[test]
fn a_flush_is_not_good_before_the_stable_writes_beside_it_have_ended() {
    for fails in [false, true] {
        let mut shards = Shards::clean(facts(true, 512, true));
        shards.write(0, 1, Durability::Cached);
        shards.call(0, Ok(512));
        shards.write(1, 2, Durability::Stable);
        let beside = shards.asked(1).unwrap();
        shards.flush(0, 3);
        shards.sync(0, Ok(0));
        assert_eq!(shards.ended(0), [(1, OK)]);
        // One that begins behind the sync's end is not waited for.
        shards.write(1, 4, Durability::Stable);
        shards.came(1, beside, if fails { Err(EIO) } else { Ok(512) });
        assert_eq!(shards.wake(1), [0]);
        assert_eq!(shards.ended(0), [(3, if fails { LOST } else { OK })]);
        let last = shards.asked(1).unwrap();
        shards.came(1, last, Ok(512));
        assert_eq!(shards.wake(1), []);
    }
}

/// There, a call that is stable by itself may be told of what others have lost, or they of what it has.
#[test]
fn through_the_page_cache_a_stable_write_is_written_and_then_synced() {
    for durability in [Durability::Stable, Durability::Cached] {
        let mut shards = Shards::clean(facts(false, 512, durability == Durability::Stable));
        shards.write(0, 1, durability);
        let op = shards.asked(0).unwrap();
        assert!(matches!(op.kind, DiskKind::Write { durable: false, .. }), "{op:?}");
        shards.came(0, op, Ok(512));
        assert_eq!(shards.ended(0), []);
        shards.sync(0, Err(EIO));
        assert_eq!(shards.ended(0), [(1, LOST)]);
    }
}

#[test]
fn a_sync_that_failed_elsewhere_is_not_forgotten() {
    let mut shards = Shards::clean(facts(true, 512, true));
    shards.disk.note_external_sync_failure();
    for shard in [0, 1] {
        shards.flush(shard, 1);
        shards.write(shard, 2, Durability::Cached);
        assert_eq!(shards.ended(shard), [(1, LOST), (2, LOST)]);
    }
}

#[test]
fn a_new_length_is_not_taken_for_stable() {
    let mut shards = Shards::clean(facts(true, 512, true));
    shards.disk.note_resize(BLOCKS * 1024);
    shards.flush(0, 1);
    shards.sync(0, Ok(0));
    assert_eq!(shards.ended(0), [(1, OK)]);
}

#[test]
fn a_read_at_an_unaligned_end_of_the_file_does_not_loop() {
    let mut shards = Shards::clean(facts(true, 4096, true));
    let room = Payload::In(shards.pool.take_sg(MemoryClass::Wire, 8192).unwrap());
    shards.start(0, 1, Op::Read(Span { lba: 8, blocks: 16 }), room);
    // The file ends 512 bytes behind its second page.
    let mut calls = 0;
    while let Some(op) = shards.asked(0) {
        calls += 1;
        assert!(calls < 100, "for ever");
        let DiskKind::Read { skip, .. } = &op.kind else { panic!("{op:?}") };
        let came = (4096 + 512_usize).saturating_sub(*skip);
        shards.came(0, op, Ok(came));
    }
    assert_eq!(shards.ended(0), [(1, Err(Fault::Medium(8 + 8 + 1).into()))]);
}

#[test]
fn a_disk_that_always_says_come_again_is_not_asked_for_ever() {
    let mut shards = Shards::clean(facts(true, 512, true));
    let room = Payload::In(shards.pool.take_sg(MemoryClass::Wire, 512).unwrap());
    let span = Span { lba: 8, blocks: 1 };
    shards.start(0, 1, Op::Read(span), room);
    shards.write(0, 2, Durability::Cached);
    shards.write(0, 3, Durability::Stable);
    shards.start(0, 4, Op::WriteZeroes { span, unmap: false }, Payload::None);
    shards.start(0, 5, Op::Extents(span), Payload::None);
    shards.write(0, 6, Durability::Cached);
    let mut calls = 0;
    while let Some(op) = shards.asked(0) {
        calls += 1;
        assert!(calls < 1000, "for ever");
        shards.came(0, op, Err(EAGAIN));
    }
    let busy = Err(Refusal::Busy.into());
    let mut ended = shards.ended(0);
    ended.sort_by_key(|(id, _)| *id);
    let all = vec![Extent { span, mapped: true }];
    let data = Ok(Outcome::Extents(all));
    assert_eq!(
        ended,
        [(1, busy.clone()), (2, busy.clone()), (3, busy.clone()), (4, busy.clone()), (5, data), (6, busy)]
    );
    shards.write(0, 7, Durability::Cached);
    shards.call(0, Ok(512));
    shards.flush(0, 8);
    while let Some(op) = shards.asked(0) {
        calls += 1;
        assert!(calls < 1000, "for ever");
        shards.came(0, op, Err(EAGAIN));
    }
    assert_eq!(shards.ended(0), [(7, OK), (8, LOST)]);
}

#[test]
fn a_stable_write_is_told_to_be_in_the_page_cache_before_its_sync_ends() {
    // Past the page cache it is stable by itself: there is nothing between.
    for direct in [false, true] {
        let mut shards = Shards::clean(facts(direct, 512, true));
        shards.write(0, 1, Durability::Stable);
        assert_eq!(shards.files[0].poll_unsynced_write(), None);
        shards.call(0, Ok(512));
        let written = shards.files[0].poll_unsynced_write();
        assert_eq!(written, (!direct).then_some(IoId(1)));
        if !direct {
            assert_eq!(shards.ended(0), []);
            shards.sync(0, Ok(0));
        }
        assert_eq!((shards.ended(0), shards.files[0].poll_unsynced_write()), (vec![(1, OK)], None));
    }
}
