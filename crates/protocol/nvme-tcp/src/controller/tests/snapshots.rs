//! Snapshots: what is refused and why, and the bytes of version 1.

use super::super::*;
use super::pair::*;
use crate::queue::LINK;
use crate::wire::IcReq;
use buf::{MemoryClass, Pool, PoolAccount};
use proptest::prelude::*;
use stream::snapshot::SnapshotDamage;
use stream::{Connection, ConnectionClose, Received};
use testkit::snapshots::{with_damaged_body, with_version};

/// A queue of version 1: half an H2CData of a write, a read, and a command without data.
const VERSION_1: &[u8] = include_bytes!("queue_v1.snapshot");

/// Brings the pair's queue to rest, as a daemon that is replaced does.
fn bring_to_rest(pair: &mut Pair, placed: Vec<(Tag, Sqe)>) {
    pair.queue.quiesce();
    if let Some(op) = pair.op.take() {
        pair.with_cx(|queue, cx| queue.handle_recv(cx, LINK, op, Received::Cancelled).unwrap());
    }
    let given: Vec<_> = std::mem::take(&mut pair.kept).into_iter().chain(placed).collect();
    for (tag, sqe) in given {
        pair.queue.withdraw(tag, sqe).unwrap();
    }
    pair.writes.clear();
}

/// The queue that [`VERSION_1`] was made from, at rest, and the rest of what the host sends.
fn eventful() -> (Pair, Vec<u8>) {
    let mut pair = Pair::open(IcReq::new(0, true, true, 1), SIZE);
    pair.mode = Mode::Keep;
    let dialect = pair.dialect();
    let data = pattern(20_000);
    pair.command(&write(0, 8192, 20_000), &[]);
    let (tag, sqe) = pair.kept.pop().unwrap();
    let memory = pair.pool.take_sg(MemoryClass::Solicited, 20_000).unwrap();
    pair.with_cx(|queue, cx| queue.recv_data(cx, tag, 0, memory));
    pair.pump();
    let r2t = pair.take()[0].r2t();
    let mut bytes = dialect.capsule(&read(1, 512, 4000), &[]);
    bytes.extend(dialect.capsule(&sqe_of_no_data(2), &[]));
    let first = bytes.len();
    bytes.extend(dialect.h2c(&r2t, 0, &data[..12_000], false));
    bytes.extend(dialect.h2c(&r2t, 12_000, &data[12_000..], true));
    bytes.extend(dialect.capsule(&write_here(3, 40_000, 4096), &data[..4096]));
    let rest = bytes.split_off(first + 3333);
    pair.feed(&bytes);
    bring_to_rest(&mut pair, vec![(tag, sqe)]);
    (pair, rest)
}

fn sqe_of_no_data(cid: u16) -> Sqe {
    sqe(FLUSH, cid, 0, nvme::SglDescriptor::TRANSPORT, 0)
}

fn restored(pair: &mut Pair, bytes: &[u8]) -> Result<(), QueueRestoreError> {
    let snapshot = QueueSnapshot::from_bytes(bytes.into());
    pair.queue = pair.with_cx(|_, cx| ControllerQueue::restore(cx, &snapshot, QueueLimits::default()))?;
    Ok(())
}

#[test]
fn a_queue_of_version_1_is_written_and_read_as_ever() {
    let (mut pair, rest) = eventful();
    let saved = pair.with_cx(|queue, cx| queue.save(cx)).unwrap();
    assert!(saved.as_bytes() == VERSION_1, "the format has changed: raise its version, and read both");
    assert!(!format!("{saved:?}").contains("123"), "no data in logs");
    restored(&mut pair, VERSION_1).unwrap();
    pair.mode = Mode::Serve;
    let got = pair.talk(&rest);
    assert_eq!(pair.disk[8192..28_192], pattern(20_000));
    assert_eq!(pair.disk[40_000..44_096], pattern(4096));
    let (_, others) = gather(got, 4000);
    let mut answered: Vec<u16> = others.iter().map(|pdu| pdu.cqe().cid.get()).collect();
    answered.sort_unstable();
    assert_eq!(answered, [0, 1, 2, 3]);
    assert_eq!((pair.queue.tasks_in_work(), pair.violations.as_slice()), (0, &[][..]));
    pair.hang_up();
    pair.assert_gone();
}

#[test]
fn what_is_withdrawn_and_taken_back_goes_on_here() {
    let (mut pair, rest) = eventful();
    pair.queue.resume();
    pair.mode = Mode::Serve;
    pair.talk(&rest);
    assert_eq!(pair.disk[8192..28_192], pattern(20_000));
    pair.hang_up();
    pair.assert_gone();
}

#[test]
fn a_queue_that_is_lost_at_rest_ends_as_any_other() {
    let (mut pair, _) = eventful();
    pair.with_cx(|queue, cx| queue.close(cx, ConnectionClose::Now));
    pair.pump();
    pair.assert_gone();
    assert_eq!(pair.queue.tasks_in_work(), 0);
}

/// What was made bytes of for another process dies with the link.
#[test]
fn a_link_that_is_lost_sends_nothing_more() {
    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    pair.command(&read(0, 0, 9000), &[]);
    let (tag, _) = pair.kept.pop().unwrap();
    pair.send_read(tag, 0, 9000);
    bring_to_rest(&mut pair, Vec::new());
    pair.with_cx(|queue, cx| queue.save(cx)).unwrap();
    assert!(pair.queue.out.kernel_bytes() > 9000);
    pair.with_cx(|queue, cx| queue.close(cx, ConnectionClose::Now));
    pair.pump();
    assert!(pair.sent.is_empty());
    pair.assert_gone();
}

#[test]
fn a_batch_that_comes_back_to_a_lost_link_is_the_last_that_its_queue_waits_for() {
    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    pair.command(&read(0, 0, 9000), &[]);
    let (tag, _) = pair.kept.pop().unwrap();
    pair.send_read(tag, 0, 9000);
    let op = pair.with_cx(|queue, cx| queue.poll_send(cx, LINK)).unwrap();
    bring_to_rest(&mut pair, Vec::new());
    pair.with_cx(|queue, cx| queue.close(cx, ConnectionClose::Now));
    assert!(pair.queue.poll_event().is_none());
    pair.queue.handle_send_cut(op, 100);
    assert!(matches!(pair.queue.poll_event(), Some(TargetEvent::Closed)) && pair.pool.usage().lent == 0);
}

#[test]
fn what_cannot_be_saved_is_refused_by_name() {
    let refusal = |pair: &mut Pair| pair.with_cx(|queue, cx| queue.save(cx)).unwrap_err();
    let mut pair = Pair::fresh(QueueLimits::default());
    assert_eq!(refusal(&mut pair), QueueSaveRefusal::Connecting);
    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    pair.command(&read(0, 0, 512), &[]);
    assert_eq!(refusal(&mut pair), QueueSaveRefusal::TasksWithServer(1));
    let (tag, sqe) = pair.kept[0];
    assert_eq!(pair.queue.withdraw(tag, sqe), Err(sqe), "it goes on");
    pair.queue.quiesce();
    assert_eq!(pair.queue.withdraw(tag, sqe), Ok(()));
    assert_eq!(pair.queue.withdraw(tag, sqe), Err(sqe), "once");
    assert_eq!(refusal(&mut pair), QueueSaveRefusal::Busy, "a receive is out");
    pair.with_cx(|queue, cx| queue.close(cx, ConnectionClose::AfterLogout(cx.now + Duration::from_secs(9))));
    assert_eq!(refusal(&mut pair), QueueSaveRefusal::Ending);
    assert!(QueueSaveRefusal::TasksWithServer(3).to_string().starts_with("3 of its commands"));
}

/// Of a command of which the host has seen something, or the server has data, nothing is taken back.
#[test]
fn a_command_that_had_an_effect_is_executed_to_its_end() {
    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    pair.command(&read(0, 0, 9000), &[]);
    let (tag, sqe) = pair.kept.pop().unwrap();
    let memory = pair.pool.take_sg(MemoryClass::Solicited, 4096).unwrap();
    pair.with_cx(|queue, cx| queue.send_data(cx, tag, 0, memory.freeze()));
    pair.queue.quiesce();
    assert_eq!(pair.queue.withdraw(tag, sqe), Err(sqe));

    let mut pair = Pair::plain();
    pair.mode = Mode::Keep;
    pair.command(&write_here(0, 0, 4096), &pattern(4096));
    let (tag, sqe) = pair.kept.pop().unwrap();
    let memory = pair.pool.take_sg(MemoryClass::Unsolicited, 4096).unwrap();
    pair.with_cx(|queue, cx| {
        queue.recv_data(cx, tag, 0, memory);
        queue.resume_parsing(cx).unwrap();
    });
    let delivered = pair.queue.poll_event();
    assert!(matches!(delivered, Some(TargetEvent::DataReceived { at: 0, .. })), "{delivered:?}");
    pair.queue.quiesce();
    assert_eq!(pair.queue.withdraw(tag, sqe), Err(sqe));
}

#[test]
fn a_queue_without_its_memory_is_not_restored() {
    let (mut pair, _) = eventful();
    pair.pool = Pool::new(1 << 20);
    let others = pair.pool.reservable_bytes(PoolAccount::NvmeTcp) - (8 << 10);
    assert!(pair.pool.reserve(PoolAccount::NvmeTcp, others));
    assert_eq!(restored(&mut pair, VERSION_1), Err(QueueRestoreError::NoMemory));
    assert_eq!((pair.pool.usage().lent, pair.pool.usage().reserved), (0, others));
}

#[test]
fn another_version_is_refused_by_name() {
    let (mut pair, _) = eventful();
    let later = with_version(VERSION_1, 2);
    assert_eq!(restored(&mut pair, &later), Err(QueueRestoreError::Damage(SnapshotDamage::Version(2))));
    assert_eq!(restored(&mut pair, &VERSION_1[1..]), Err(QueueRestoreError::Damage(SnapshotDamage::Foreign)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever a body says, what comes of it is refused, or a queue that keeps its rules.
    #[test]
    fn a_body_is_parsed_and_never_trusted(
        hits in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<usize>()),
    ) {
        let (mut pair, rest) = eventful();
        let bytes = with_damaged_body(VERSION_1, &hits, cut);
        pair.pool = Pool::new_poisoned(32 << 20);
        if restored(&mut pair, &bytes).is_ok() {
            pair.mode = Mode::Keep;
            pair.feed(&rest);
            for (tag, sqe) in std::mem::take(&mut pair.kept) {
                let len = (sqe.dptr.length.get() as usize).clamp(1, 64 << 10);
                let memory = pair.pool.take_sg(MemoryClass::Solicited, len).unwrap();
                pair.with_cx(|queue, cx| queue.recv_data(cx, tag, 0, memory));
                pair.answer(tag, Completion::SUCCESS);
            }
            pair.pass(Duration::from_secs(100));
            pair.hang_up();
            pair.assert_gone();
        } else {
            prop_assert_eq!((pair.pool.usage().lent, pair.pool.usage().reserved), (0, 0));
        }
    }
}
