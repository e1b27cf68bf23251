//! Blocks that a host marks bad: over all cores, whatever cures them, and over a restart.

extern crate blockwire_volume as volume;

mod slow;

use slow::daemon::{Daemon, facts, home, register, reserve};
use slow::{BLOCK, geometry, initiator, requester};
use volume::reservation::{Action, Key, ReservationType};
use volume::{
    BAD_BLOCKS_MAX, Durability, Failure, Fault, Geometry, Op, OperatorNotice, Payload, Refusal, SanitizeKind,
    Span, UnservableReason, VolumeOwner, VolumeRequest,
};

fn span(lba: u64, blocks: u64) -> Span {
    Span { lba, blocks }
}

/// How a read of one block by a shard ends.
fn read(daemon: &mut Daemon, shard: usize, lba: u64) -> Result<u8, Failure> {
    let room = daemon.world.room(BLOCK);
    let done = daemon.run(shard, &initiator(1), Op::Read(span(lba, 1)), room);
    done.result.map(|_| {
        let mut first = [0];
        done.payload.into_sg().copy_to(0, &mut first);
        first[0]
    })
}

/// Three shards; an NVMe host on shard 2 has marked blocks 8 to 15.
fn marked() -> Daemon {
    let mut daemon = Daemon::new(3);
    let done = daemon.run(2, &requester(1), Op::MarkBad(span(8, 8)), Payload::None);
    assert!(done.result.is_ok(), "{:?}", done.result);
    daemon
}

#[test]
fn every_shard_and_both_protocols_see_the_marks() {
    let mut daemon = marked();
    for shard in 0..3 {
        assert_eq!(read(&mut daemon, shard, 7), Ok(0));
        assert_eq!(read(&mut daemon, shard, 8), Err(Fault::Medium(8).into()));
        let who = [initiator(1), requester(2)][shard % 2].clone();
        let room = daemon.world.room(20 * BLOCK);
        let done = daemon.run(shard, &who, Op::Read(span(0, 20)), room);
        assert_eq!(done.result, Err(Fault::Medium(8).into()), "the first bad block is named");
        let done = daemon.run(shard, &who, Op::Verify(span(10, 1)), Payload::None);
        assert_eq!(done.result, Err(Fault::Medium(10).into()));
        let both = daemon.world.payload(&[0; 2 * BLOCK]);
        let done = daemon.run(shard, &who, Op::CompareAndWrite(span(15, 1)), both);
        assert_eq!(done.result, Err(Fault::Medium(15).into()));
    }
}

/// What an operation is called, how it is made, and how many bytes it brings.
type Cure = (&'static str, fn(Span) -> Op, usize);

/// Every operation that writes cures what it writes, and nothing else.
#[test]
fn what_writes_cures() {
    let cures: [Cure; 6] = [
        ("write", |at| Op::Write(at, Durability::Cached), 2 * BLOCK),
        ("write through", |at| Op::Write(at, Durability::Stable), 2 * BLOCK),
        ("atomic write", Op::WriteAtomic, 2 * BLOCK),
        ("write same", Op::WriteSame, BLOCK),
        ("write zeroes", |span| Op::WriteZeroes { span, unmap: true }, 0),
        ("unmap", |at| Op::Unmap(vec![span(0, 2), at]), 0),
    ];
    for (name, op, len) in cures {
        let mut daemon = marked();
        // The first two of the bad blocks, then two in their middle.
        for (lba, shard) in [(7, 0), (11, 1)] {
            let payload = if len > 0 { daemon.world.payload(&vec![0; len]) } else { Payload::None };
            let done = daemon.run(shard, &initiator(1), op(span(lba, 2)), payload);
            assert!(done.result.is_ok(), "{name}: {:?}", done.result);
        }
        for lba in 0..20 {
            let bad = matches!(lba, 9 | 10 | 13 | 14 | 15);
            let expected = if bad { Err(Fault::Medium(lba).into()) } else { Ok(0) };
            assert_eq!(read(&mut daemon, 2, lba), expected, "{name}, block {lba}");
        }
        assert_eq!(daemon.home.view().bad.count(), 5, "{name}");
    }
}

#[test]
fn a_sanitize_and_a_shrinking_cure_too() {
    let mut daemon = marked();
    assert_eq!(daemon.asked(VolumeRequest::SanitizeStart { who: requester(1) }), Ok(()));
    let done = daemon.run(0, &requester(1), Op::Sanitize(SanitizeKind::BlockErase), Payload::None);
    assert!(done.result.is_ok());
    assert_eq!(daemon.asked(VolumeRequest::SanitizeEnd { done: true }), Ok(()));
    assert_eq!(read(&mut daemon, 1, 8), Ok(0));

    let mut daemon = marked();
    for blocks in [12, 64] {
        assert_eq!(daemon.asked(VolumeRequest::Resize(geometry(blocks, 512))), Ok(()));
    }
    assert_eq!(read(&mut daemon, 1, 11), Err(Fault::Medium(11).into()));
    assert_eq!(read(&mut daemon, 1, 12), Ok(0), "cut off and grown again");
}

/// Contents that were to be made unreadable are not served because somebody was killed meanwhile.
#[test]
fn a_sanitize_that_ran_is_not_forgotten_by_a_restart() {
    let again = |daemon: &Daemon| {
        let record = daemon.record.clone().expect("a record");
        VolumeOwner::restore(facts(), geometry(64, 512), 2, false, Some(&record)).unwrap()
    };
    let mut daemon = marked();
    assert_eq!(again(&daemon).view().not_ready, None);
    assert_eq!(daemon.asked(VolumeRequest::SanitizeStart { who: requester(1) }), Ok(()));
    assert_eq!(again(&daemon).view().not_ready, Some(UnservableReason::SanitizeFailed), "while it ran");
    assert_eq!(daemon.asked(VolumeRequest::SanitizeEnd { done: false }), Ok(()));
    assert_eq!(again(&daemon).view().not_ready, Some(UnservableReason::SanitizeFailed), "after it failed");
    let mut other = Daemon::of(again(&daemon), 2);
    assert_eq!(other.asked(VolumeRequest::Remove), Ok(()));
    assert_eq!(other.record, None, "a removal changes nothing of it");
    // Another one heals it, and so does leave to go without.
    assert_eq!(daemon.asked(VolumeRequest::SanitizeStart { who: requester(1) }), Ok(()));
    assert_eq!(daemon.asked(VolumeRequest::SanitizeEnd { done: true }), Ok(()));
    assert_eq!((daemon.home.view().not_ready, again(&daemon).view().not_ready), (None, None));
    assert_eq!(daemon.asked(VolumeRequest::SanitizeStart { who: requester(1) }), Ok(()));
    assert_eq!(daemon.asked(VolumeRequest::SanitizeEnd { done: false }), Ok(()));
    assert_eq!(daemon.asked(VolumeRequest::SanitizeForgive), Ok(()));
    assert_eq!((daemon.home.view().not_ready, again(&daemon).view().not_ready), (None, None));
}

#[test]
fn marks_are_durable_before_they_are_answered_and_come_back() {
    let mut daemon = marked();
    let record = daemon.record.clone().expect("a record");
    let home = VolumeOwner::restore(facts(), geometry(64, 512), 2, false, Some(&record)).unwrap();
    let mut again = Daemon::of(home, 2);
    assert_eq!(read(&mut again, 1, 15), Err(Fault::Medium(15).into()));

    // Nothing is answered while the record may not be durable.
    let done = daemon.write(0, &initiator(1), 1, 8, false);
    for _ in 0..3 {
        daemon.resume(0);
        daemon.land(0);
    }
    daemon.resume(0);
    assert!(daemon.done.iter().all(|one| one.id.0 != done), "written, but the mark still stands");
    daemon.settle();
    assert!(daemon.done.iter().any(|one| one.id.0 == done && one.result.is_ok()));
    let record = daemon.record.clone().expect("a record");
    let home = VolumeOwner::restore(facts(), geometry(64, 512), 2, false, Some(&record)).unwrap();
    assert_eq!(home.view().bad.spans(), [span(9, 7)]);
}

/// The record forgets a mark only when what was written over the block is stable: otherwise a failure of
/// the power would bring back what stood there before it was bad.
#[test]
fn what_cures_is_stable_before_the_mark_is_forgotten() {
    for (durability, cached, flushes) in
        [(Durability::Cached, true, 1), (Durability::Cached, false, 0), (Durability::Stable, true, 0)]
    {
        let geometry = Geometry { write_cache: cached, ..geometry(64, 512) };
        let home = VolumeOwner::restore(facts(), geometry, 2, false, None).unwrap();
        let mut daemon = Daemon::of(home, 2);
        assert!(daemon.run(0, &requester(1), Op::MarkBad(span(8, 1)), Payload::None).result.is_ok());
        let payload = daemon.world.payload(&[1; BLOCK]);
        daemon.submit(1, &initiator(1), Op::Write(span(8, 1), durability), payload);
        let mut seen = 0;
        for _ in 0..4 {
            daemon.resume(1);
            daemon.drain_home();
            let waiting = daemon.world.disk.borrow().flushes();
            assert!(waiting == 0 || daemon.home.view().bad.count() == 1, "forgotten before it is stable");
            seen += waiting;
            daemon.land(0);
        }
        daemon.settle();
        assert_eq!((seen, daemon.home.view().bad.count()), (flushes, 0), "{durability:?}, cache {cached}");
    }
}

#[test]
fn a_record_that_cannot_be_written_marks_nothing() {
    let mut home = home(1);
    let request = VolumeRequest::MarkBad { who: requester(1), span: span(0, 1) };
    let now = volume::Time(0);
    home.handle_request(now, volume::ShardId(0), volume::RequestId(1), request);
    let store = home.poll_store_op().expect("a store");
    home.handle_stored(now, store.ticket, false);
    assert_eq!(home.poll_answer().map(|answer| answer.result), Some(Err(Refusal::NotDurable)));
    assert!(home.view().bad.is_empty() && home.poll_view_update().is_none());
}

#[test]
fn the_bound_is_said_and_writes_are_never_refused_for_it() {
    let home = VolumeOwner::restore(facts(), geometry(1 << 20, 512), 2, false, None).unwrap();
    let mut daemon = Daemon::of(home, 2);
    let full = Op::MarkBad(span(64, BAD_BLOCKS_MAX));
    assert!(daemon.run(0, &requester(1), full.clone(), Payload::None).result.is_ok());
    let more = daemon.run(1, &requester(1), Op::MarkBad(span(0, 1)), Payload::None);
    assert_eq!(more.result, Err(Refusal::NoMarkSpace.into()));
    assert_eq!(daemon.remarks, [OperatorNotice::BadBlocksFull { by: requester(1).identity }]);
    assert!(daemon.run(0, &requester(1), full, Payload::None).result.is_ok(), "no more than before");
    assert_eq!(read(&mut daemon, 0, 0), Ok(0), "what was refused is not marked");
    // A write into the middle makes two runs of one.
    let payload = daemon.world.payload(&[5; BLOCK]);
    daemon.submit(0, &requester(1), Op::Write(span(66, 1), Durability::Cached), payload);
    daemon.resume(0);
    assert_eq!(daemon.world.disk.borrow().waiting(), 1);
}

/// While a fence waits for older operations, one that waits for the home must not be waited for.
#[test]
fn a_mark_and_a_fence_do_not_wait_for_each_other() {
    let mut daemon = Daemon::new(2);
    for (who, key) in [(initiator(1), 1), (requester(2), 2)] {
        assert_eq!(daemon.asked(register(&who, key, false)), Ok(()));
    }
    assert_eq!(daemon.asked(reserve(&requester(2), 2, ReservationType::WriteExclusiveRegistrants)), Ok(()));
    // The preempt comes first to the home, the mark is with it behind.
    let mark = daemon.submit(0, &requester(2), Op::MarkBad(span(3, 1)), Payload::None);
    daemon.resume(0);
    let kind = ReservationType::WriteExclusiveRegistrants;
    let action = Action::Preempt { key: Some(Key(1)), victim: Key(2), kind, abort: false };
    let preempt = daemon.request(VolumeRequest::Reserve { who: initiator(1), action });
    daemon.settle();
    assert_eq!(daemon.answer_to(preempt), Some(Ok(())));
    let done = daemon.done.iter().find(|done| done.id.0 == mark).expect("an end");
    assert_eq!(done.result, Err(Refusal::Conflict.into()), "admitted again, under the preempt");
    assert!(daemon.home.view().bad.is_empty());
}

/// Nor must a fence wait for a read that waits for a guard: who holds that may wait for the home.
#[test]
fn a_read_that_lost_against_a_writer_and_a_fence_do_not_wait_for_each_other() {
    let mut daemon = Daemon::new(2);
    let room = daemon.world.room(BLOCK);
    let read = daemon.submit(1, &initiator(1), Op::Read(span(8, 1)), room);
    let mark = daemon.submit(0, &requester(1), Op::MarkBad(span(8, 1)), Payload::None);
    daemon.resume(0);
    // The reset comes first to the home, the mark is with it behind.
    let reset = daemon.request(VolumeRequest::Reset);
    daemon.deliver(1);
    for _ in 0..10 {
        daemon.land(0);
        daemon.resume(1);
    }
    assert_eq!(daemon.world.disk.borrow().waiting(), 0, "the read waits for the guard");
    assert!(daemon.done.is_empty());
    daemon.settle();
    assert_eq!(daemon.answer_to(reset), Some(Ok(())));
    let ended = |io| daemon.done.iter().find(|done| done.id.0 == io).map(|done| done.result.is_ok());
    assert_eq!((ended(mark), ended(read)), (Some(true), Some(false)), "it is read behind the mark");
}

/// What a preempted host wrote on bad blocks before the preempt stays unreadable behind it.
#[test]
fn a_preempted_write_cures_nothing() {
    let mut daemon = marked();
    for (who, key) in [(initiator(1), 1), (requester(2), 2)] {
        assert_eq!(daemon.asked(register(&who, key, false)), Ok(()));
    }
    let kind = ReservationType::WriteExclusiveRegistrants;
    assert_eq!(daemon.asked(reserve(&requester(2), 2, kind)), Ok(()));
    let write = daemon.write(0, &requester(2), 7, 8, false);
    daemon.resume(0);
    daemon.land(0);
    let action = Action::Preempt { key: Some(Key(1)), victim: Key(2), kind, abort: true };
    let preempt = daemon.request(VolumeRequest::Reserve { who: initiator(1), action });
    daemon.settle();
    assert_eq!(daemon.answer_to(preempt), Some(Ok(())));
    let done = daemon.done.iter().find(|done| done.id.0 == write).expect("an end");
    assert_eq!(done.result, Err(Refusal::Conflict.into()));
    assert_eq!(read(&mut daemon, 1, 8), Err(Fault::Medium(8).into()));
    let fill = daemon.world.payload(&[9; BLOCK]);
    let done = daemon.run(1, &initiator(1), Op::Write(span(8, 1), Durability::Cached), fill);
    assert!(done.result.is_ok());
    assert_eq!(read(&mut daemon, 0, 8), Ok(9));
}

/// A write over bad blocks and good ones whose host is preempted before the cure: what it wrote while it
/// might stands, so it ends as aborted; a refusal would say that nothing was done.
#[test]
fn a_preempted_write_that_shows_is_aborted_not_refused() {
    for (lba, blocks, shows) in [(8, 2, false), (7, 2, true), (15, 2, true)] {
        let mut daemon = marked();
        for (who, key) in [(initiator(1), 1), (requester(2), 2)] {
            assert_eq!(daemon.asked(register(&who, key, false)), Ok(()));
        }
        let kind = ReservationType::WriteExclusiveRegistrants;
        assert_eq!(daemon.asked(reserve(&requester(2), 2, kind)), Ok(()));
        let payload = daemon.world.payload(&[7; 2 * BLOCK]);
        let op = Op::Write(span(lba, blocks), Durability::Cached);
        let write = daemon.submit(0, &requester(2), op, payload);
        daemon.resume(0);
        daemon.land(0);
        let action = Action::Preempt { key: Some(Key(1)), victim: Key(2), kind, abort: true };
        daemon.request(VolumeRequest::Reserve { who: initiator(1), action });
        daemon.settle();
        let done = daemon.done.iter().find(|done| done.id.0 == write).expect("an end");
        let conflict: Failure = Refusal::Conflict.into();
        assert_eq!(done.result, Err(if shows { Fault::Aborted.into() } else { conflict }), "{lba}");
        for at in lba..lba + blocks {
            let bad = (8..16).contains(&at);
            let expected = if bad { Err(Fault::Medium(at).into()) } else { Ok(7) };
            assert_eq!(read(&mut daemon, 1, at), expected, "{lba}: {at}");
        }
    }
}

/// Once one core has seen a block cured, no core sees it bad again; and the reverse of a marking.
#[test]
fn one_moment_divides_bad_from_good_over_all_cores() {
    let mut daemon = marked();
    let write = daemon.write(0, &initiator(1), 4, 8, false);
    daemon.resume(0);
    daemon.land(0);
    daemon.resume(0);
    daemon.acknowledge(0);
    // Shard 1 has adopted that the block is good, shard 2 has not: reads of either wait.
    daemon.deliver(1);
    let room = || daemon.world.room(BLOCK);
    let rooms = [room(), room()];
    let reads: Vec<u64> = rooms
        .into_iter()
        .zip([1, 2])
        .map(|(room, shard)| daemon.submit(shard, &initiator(2), Op::Read(span(8, 1)), room))
        .collect();
    for _ in 0..20 {
        daemon.resume(1);
        daemon.resume(2);
        daemon.land(0);
    }
    assert!(daemon.done.iter().all(|done| !reads.contains(&done.id.0)), "they wait for the write");
    daemon.settle();
    for io in reads.into_iter().chain([write]) {
        assert!(daemon.done.iter().any(|done| done.id.0 == io && done.result.is_ok()), "{io}");
    }
}
