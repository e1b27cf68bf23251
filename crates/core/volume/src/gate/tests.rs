use std::sync::Arc;

use buf::{Entropy, MemoryClass, Payload, Pool, Sg};

use super::*;
use crate::io::{Durability, SanitizeKind};
use crate::owner_messages::ViewUpdate;
use crate::ram::{RamBackend, RamDisk};
use crate::requester::{Identity, PortId};

/// A world for one thread: a pool and the time, for gates of several shards in turn.
pub(super) struct World {
    pub(super) pool: Pool,
    pub(super) entropy: Entropy,
    pub(super) now: Time,
}

impl World {
    pub(super) fn new() -> Self {
        World { pool: Pool::new(16 << 20), entropy: Entropy::new([1; 32]), now: Time(0) }
    }

    pub(super) fn cx(&mut self) -> Cx<'_> {
        Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy }
    }

    pub(super) fn filled(&self, bytes: &[u8]) -> Payload {
        let mut sg = self.pool.take_sg(MemoryClass::Solicited, bytes.len()).unwrap();
        sg.copy_from(0, bytes);
        Payload::Out(sg.freeze())
    }

    pub(super) fn empty(&self, len: usize) -> Payload {
        Payload::In(self.pool.take_sg(MemoryClass::Solicited, len).unwrap())
    }
}

pub(super) fn requester(number: u8) -> Requester {
    Requester { identity: Arc::new(Identity::Host([number; 16])), port: PortId(1), read_only: false }
}

pub(super) fn bytes_of(payload: Payload) -> Vec<u8> {
    let sg: Sg = payload.into_sg();
    let mut bytes = vec![0; sg.len()];
    sg.copy_to(0, &mut bytes);
    bytes
}

fn ram_gate(blocks: u64) -> Gate {
    let disk = Arc::new(RamDisk::new(blocks, blocks, 512, 4096));
    Gate::new(
        ShardId(0),
        SharedGateState::new(1),
        View::without_reservations(disk.geometry()),
        Box::new(RamBackend::new(disk)),
    )
}

/// Submits one operation and runs it to its end.
pub(super) fn run(
    world: &mut World,
    gate: &mut Gate,
    who: &Requester,
    op: Op,
    payload: Payload,
) -> IoCompletion {
    gate.submit(&mut world.cx(), who, Io { id: IoId(7), epoch: Default::default(), op, payload });
    finish(world, gate)
}

fn finish(world: &mut World, gate: &mut Gate) -> IoCompletion {
    for _ in 0..100_000 {
        gate.resume(&mut world.cx());
        if let Some(done) = gate.poll_done() {
            assert_eq!(done.id, IoId(7));
            return done;
        }
    }
    panic!("an operation does not end");
}

fn span(lba: u64, blocks: u64) -> Span {
    Span { lba, blocks }
}

fn read(world: &mut World, gate: &mut Gate, at: Span) -> Vec<u8> {
    let payload = world.empty(at.blocks as usize * 512);
    let done = run(world, gate, &requester(1), Op::Read(at), payload);
    assert_eq!(done.result, Ok(Outcome::Complete));
    bytes_of(done.payload)
}

#[test]
fn every_operation_does_what_it_says() {
    let (mut world, mut gate, who) = (World::new(), ram_gate(4096), requester(1));
    let w = &mut world;
    let ok = Ok(Outcome::Complete);
    let payload = w.filled(&[0x11; 1024]);
    assert_eq!(run(w, &mut gate, &who, Op::Write(span(8, 2), Durability::Stable), payload).result, ok);
    assert_eq!(read(w, &mut gate, span(8, 2)), [0x11; 1024]);

    let payload = w.filled(&[[0x11; 512], [0x22; 512]].concat());
    assert_eq!(run(w, &mut gate, &who, Op::CompareAndWrite(span(9, 1)), payload).result, ok);
    let mut wrong = [0x11; 1024];
    wrong[100] = 0x12;
    let payload = w.filled(&wrong);
    let done = run(w, &mut gate, &who, Op::CompareAndWrite(span(8, 1)), payload);
    assert_eq!(done.result, Err(Fault::Miscompare(100).into()));
    drop(done);
    assert_eq!(read(w, &mut gate, span(8, 2)), [[0x11; 512], [0x22; 512]].concat());

    let payload = w.filled(&[0x41; 512]);
    assert_eq!(run(w, &mut gate, &who, Op::Or(span(8, 1)), payload).result, ok);
    assert_eq!(read(w, &mut gate, span(8, 1)), [0x51; 512]);
    let payload = w.filled(&[0x51; 512]);
    assert_eq!(run(w, &mut gate, &who, Op::Compare(span(8, 1)), payload).result, ok);

    let payload = w.filled(&[0x77; 512]);
    assert_eq!(run(w, &mut gate, &who, Op::WriteSame(span(16, 3000)), payload).result, ok);
    assert_eq!(read(w, &mut gate, span(3015, 1)), [0x77; 512]);
    assert_eq!(read(w, &mut gate, span(3016, 1)), [0; 512]);
    assert_eq!(run(w, &mut gate, &who, Op::Verify(span(0, 4096)), Payload::None).result, ok);

    let zero = Op::Unmap(vec![span(16, 8), span(33, 8)]);
    assert_eq!(run(w, &mut gate, &who, zero, Payload::None).result, ok);
    assert_eq!(read(w, &mut gate, span(33, 8)), [0; 4096]);
    let done = run(w, &mut gate, &who, Op::Extents(span(16, 100)), Payload::None);
    let Ok(Outcome::Extents(extents)) = done.result else { panic!("{done:?}") };
    assert_eq!(extents[0], crate::Extent { span: span(16, 8), mapped: false });
    assert_eq!(extents[1], crate::Extent { span: span(24, 92), mapped: true });
    assert_eq!(w.pool.usage().lent, 0);
    assert_eq!(gate.in_flight_count(), 0);
}

#[test]
fn a_sanitize_leaves_its_pattern() {
    let (mut world, mut gate, who) = (World::new(), ram_gate(2048), requester(1));
    let w = &mut world;
    let kind = SanitizeKind::Overwrite { pattern: (*b"abc").into(), passes: 2, invert: true };
    let done = run(w, &mut gate, &who, Op::Sanitize(kind), Payload::None);
    assert_eq!(done.result, Ok(Outcome::Complete));
    let block = read(w, &mut gate, span(2047, 1));
    assert_eq!(&block[..4], &[!b'a', !b'b', !b'c', !b'a']);
    assert_eq!(gate.sanitize_progress(), u16::MAX);
    let done = run(w, &mut gate, &who, Op::Sanitize(SanitizeKind::BlockErase), Payload::None);
    assert_eq!(done.result, Ok(Outcome::Complete));
    assert_eq!(read(w, &mut gate, span(2047, 1)), [0; 512]);
}

/// Memory that has no room for one write in two.
#[derive(Debug)]
struct Crowded(RamBackend, bool, std::collections::VecDeque<IoCompletion>);

impl Backend for Crowded {
    fn geometry(&self) -> crate::Geometry {
        crate::Geometry { lends: false, ..self.0.geometry() }
    }
    fn submit(&mut self, cx: &mut Cx<'_>, io: Io) {
        self.1 = !self.1;
        if self.1 && (io.op.is_write() || io.op == Op::Flush) {
            let result = Err(Refusal::Busy.into());
            return self.2.push_back(IoCompletion { id: io.id, result, payload: io.payload });
        }
        self.0.submit(cx, io);
    }
    fn resume(&mut self) {
        self.0.resume();
    }
    fn wants_resume(&self) -> bool {
        self.0.wants_resume()
    }
    fn cancel(&mut self, _id: IoId) {}
    fn poll_done(&mut self) -> Option<IoCompletion> {
        self.2.pop_front().or_else(|| self.0.poll_done())
    }
}

#[test]
fn a_backend_that_has_no_room_for_now_does_not_end_a_sanitize() {
    for kind in [
        SanitizeKind::Overwrite { pattern: [7][..].into(), passes: 1, invert: false },
        SanitizeKind::BlockErase,
    ] {
        let disk = Arc::new(RamDisk::new(2048, 2048, 512, 4096));
        let crowded = Crowded(RamBackend::new(disk.clone()), false, Default::default());
        let mut gate = Gate::new(
            ShardId(0),
            SharedGateState::new(1),
            View::without_reservations(disk.geometry()),
            Box::new(crowded),
        );
        let (mut world, who) = (World::new(), requester(1));
        let byte = if kind == SanitizeKind::BlockErase { 0 } else { 7 };
        let io =
            Io { id: IoId(7), epoch: Default::default(), op: Op::Sanitize(kind), payload: Payload::None };
        gate.submit(&mut world.cx(), &who, io);
        let mut turns = 0;
        let done = loop {
            while gate.resume(&mut world.cx()) {}
            if let Some(done) = gate.poll_done() {
                break done;
            }
            turns += 1;
            assert!(turns < 1000, "for ever");
            world.now = gate.poll_timeout().expect("it says when it goes on");
        };
        assert_eq!(done.result, Ok(Outcome::Complete));
        assert!(world.now > Time(0), "it was put off");
        let mut plain = Gate::new(
            ShardId(0),
            SharedGateState::new(1),
            View::without_reservations(disk.geometry()),
            Box::new(RamBackend::new(disk)),
        );
        assert_eq!(read(&mut world, &mut plain, span(2047, 1)), [byte; 512]);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let (mut world, mut gate, who) = (World::new(), ram_gate(64), requester(1));
    let w = &mut world;
    let mut refused = |op, refusal: Refusal| {
        let done = run(w, &mut gate, &who, op, Payload::None);
        assert_eq!(done.result, Err(refusal.into()));
    };
    for (lba, blocks) in [(64, 1), (63, 2), (u64::MAX, 1), (u64::MAX, u64::MAX), (1 << 63, 1 << 63), (65, 0)]
    {
        refused(Op::Read(span(lba, blocks)), Refusal::OutOfRange);
        refused(Op::Unmap(vec![span(0, 1), span(lba, blocks)]), Refusal::OutOfRange);
        refused(Op::WriteAtomic(span(lba, blocks)), Refusal::OutOfRange);
    }
    refused(Op::Extents(span(64, 0)), Refusal::OutOfRange);
    let nothing = run(&mut world, &mut gate, &who, Op::Unmap(vec![span(64, 0)]), Payload::None);
    assert_eq!(nothing.result, Ok(Outcome::Complete));
}

#[test]
fn a_paced_sanitize_takes_its_time() {
    let disk = Arc::new(RamDisk::new(4096, 4096, 512, 4096));
    let shared = SharedGateState::new(1);
    shared.set_sanitize_rate(1 << 20);
    let view = View::without_reservations(disk.geometry());
    let mut gate = Gate::new(ShardId(0), shared, view, Box::new(RamBackend::new(disk)));
    let (mut world, who) = (World::new(), requester(1));
    let kind = SanitizeKind::Overwrite { pattern: [7][..].into(), passes: 1, invert: false };
    let io = Io { id: IoId(7), epoch: Default::default(), op: Op::Sanitize(kind), payload: Payload::None };
    gate.submit(&mut world.cx(), &who, io);
    let done = loop {
        while gate.resume(&mut world.cx()) {}
        if let Some(done) = gate.poll_done() {
            break done;
        }
        world.now = gate.poll_timeout().expect("a paced operation says when it goes on");
    };
    assert_eq!(done.result, Ok(Outcome::Complete));
    // 2 MiB at 1 MiB/s: the last of eight chunks may begin after 1.75 s, the flush after 2 s.
    assert_eq!(world.now, Time(2_000_000_000));
}

#[test]
fn an_old_change_does_not_bring_an_old_view_back() {
    let (mut world, mut gate, who) = (World::new(), ram_gate(64), requester(1));
    let view = |epoch, write_protected| {
        let view = View::without_reservations(gate.view().geometry);
        View::from(crate::VolumeState { epoch: crate::Epoch(epoch), write_protected, ..(*view).clone() })
    };
    let update = |change, view| ViewUpdate {
        change: crate::ChangeId(change),
        view,
        drain: true,
        abort: crate::AbortScope::Nobody,
        notices: Vec::new(),
        asked: None,
    };
    let (newer, older) = (update(2, view(5, true)), update(1, view(4, false)));
    gate.update_view(&newer);
    gate.update_view(&older);
    assert_eq!(gate.view().epoch, crate::Epoch(5));
    let payload = world.filled(&[1; 512]);
    let done = run(&mut world, &mut gate, &who, Op::Write(span(0, 1), Durability::Cached), payload);
    assert_eq!(done.result, Err(Refusal::ReadOnly.into()));
    assert_eq!(gate.poll_ack().map(|ack| ack.change.0), Some(2));
    assert_eq!(gate.poll_ack().map(|ack| ack.change.0), Some(1));
}

#[test]
fn a_long_operation_ends_when_it_is_cancelled() {
    let (mut world, mut gate, who) = (World::new(), ram_gate(1 << 20), requester(1));
    let payload = world.filled(&[5; 512]);
    let op = Op::WriteSame(span(0, 1 << 20));
    gate.submit(&mut world.cx(), &who, Io { id: IoId(7), epoch: Default::default(), op, payload });
    assert!(gate.resume(&mut world.cx()));
    gate.cancel(IoId(7));
    let done = finish(&mut world, &mut gate);
    assert_eq!(done.result, Err(Fault::Aborted.into()));
    assert_eq!(done.payload.len(), 512);
    assert_eq!(read(&mut world, &mut gate, span(0, 1)), [5; 512]);
    assert_eq!(read(&mut world, &mut gate, span((1 << 20) - 1, 1)), [0; 512]);
    gate.cancel(IoId(7));
}

#[test]
fn many_small_spans_are_unmapped_in_bounded_time() {
    let (mut world, mut gate, who) = (World::new(), ram_gate(1 << 17), requester(1));
    let spans = (0..65_535).map(|at| span(at, if at % 3 == 0 { 0 } else { 1 })).collect();
    let done = run(&mut world, &mut gate, &who, Op::Unmap(spans), Payload::None);
    assert_eq!(done.result, Ok(Outcome::Complete));
}

#[test]
fn what_finds_no_memory_waits_for_it_and_keeps_nobody_out() {
    let (mut world, mut gate, who) = (World::new(), ram_gate(64), requester(1));
    let (both, again) = (world.filled(&[0; 1024]), world.filled(&[0; 1024]));
    let wire = world.pool.take(MemoryClass::Wire, 512).unwrap();
    let mut held = Vec::new();
    let mut fill = |class| held.extend(std::iter::from_fn(|| world.pool.take(class, 512)));
    fill(MemoryClass::Solicited);
    // All may wait for memory that all hold: one of them takes what is kept for headers.
    let done = run(&mut world, &mut gate, &who, Op::CompareAndWrite(span(3, 1)), again);
    assert_eq!(done.result, Ok(Outcome::Complete));
    drop(done);
    held.extend(std::iter::from_fn(|| world.pool.take(MemoryClass::Wire, 512)));
    let io =
        Io { id: IoId(8), epoch: Default::default(), op: Op::CompareAndWrite(span(3, 1)), payload: both };
    gate.submit(&mut world.cx(), &who, io);
    gate.resume(&mut world.cx());
    assert!(gate.poll_done().is_none());
    assert!(gate.poll_timeout().is_some(), "nobody else tells when memory is back");
    let payload = Payload::Out(buf::SgMut::from(wire).freeze());
    let done = run(&mut world, &mut gate, &who, Op::Write(span(4, 1), Durability::Cached), payload);
    assert_eq!(done.result, Ok(Outcome::Complete));
    drop(done);
    held.clear();
    while gate.resume(&mut world.cx()) {}
    assert_eq!(gate.poll_done().map(|done| (done.id, done.result)), Some((IoId(8), Ok(Outcome::Complete))));
}

#[test]
fn a_sanitize_ends_with_the_volume_and_tells_how_far_it_is() {
    let (mut world, mut gate, who) = (World::new(), ram_gate(1 << 20), requester(1));
    let view = |gate: &Gate, epoch, why| {
        let view = gate.view().clone();
        let view = View::from(crate::VolumeState {
            epoch: crate::Epoch(epoch),
            not_ready: Some(why),
            ..(*view).clone()
        });
        let (change, abort) = (crate::ChangeId(epoch), crate::AbortScope::Nobody);
        ViewUpdate { change, view, drain: true, abort, notices: Vec::new(), asked: None }
    };
    let starts = view(&gate, 1, UnservableReason::Sanitizing(0));
    gate.update_view(&starts);
    let kind = SanitizeKind::Overwrite { pattern: [7][..].into(), passes: 1, invert: false };
    let io = Io { id: IoId(7), epoch: Default::default(), op: Op::Sanitize(kind), payload: Payload::None };
    gate.submit(&mut world.cx(), &who, io);
    for _ in 0..1024 {
        gate.resume(&mut world.cx());
    }
    let progress = gate.sanitize_progress();
    assert!(progress > 0 && progress < u16::MAX);
    let refused = Err(Refusal::NotReady(UnservableReason::Sanitizing(progress)));
    assert_eq!(gate.view().check_medium_ready(), refused);
    assert_eq!(gate.view().admit(&who, &Op::Read(span(0, 1))), refused);
    let ends = view(&gate, 2, UnservableReason::Removed);
    gate.update_view(&ends);
    let done = finish(&mut world, &mut gate);
    assert_eq!(done.result, Err(Refusal::NotReady(UnservableReason::Removed).into()));
    assert_eq!(gate.in_flight_count(), 0);
}

/// What a flush makes stable was written before. So a change is adopted while one is with a slow disk, also where the
/// flush is a part of a longer operation; what follows it is admitted again.
#[test]
fn a_flush_within_an_operation_holds_no_fence_up() {
    let sanitize = Op::Sanitize(SanitizeKind::BlockErase);
    let disk = Arc::new(RamDisk::new(64, 64, 512, 4096));
    let geometry = crate::Geometry { write_cache: true, ..disk.geometry() };
    let cure = Op::Write(span(3, 1), Durability::Cached);
    for (op, parts) in [(sanitize, 2), (cure, 2)] {
        let mut world = World::new();
        let hand = crate::fake_backend::FakeControls::default();
        let backend =
            crate::fake_backend::FakeBackend::new(RamBackend::new(disk.clone()), geometry, hand.clone());
        let bad = crate::BadBlocks::default().with_span(span(3, 1)).unwrap();
        let standing =
            crate::VolumeState { bad: Arc::new(bad), ..(*View::without_reservations(geometry)).clone() };
        let mut gate =
            Gate::new(ShardId(0), SharedGateState::new(1), View::from(standing), Box::new(backend));
        let payload = if matches!(op, Op::Write(..)) { world.filled(&[7; 512]) } else { Payload::None };
        let io = Io { id: IoId(7), epoch: Default::default(), op: op.clone(), payload };
        hand.hold.set(true);
        gate.submit(&mut world.cx(), &requester(1), io);
        let update_view = |gate: &mut Gate, epoch| {
            let standing = crate::VolumeState { epoch: crate::Epoch(epoch), ..(**gate.view()).clone() };
            let (change, abort) = (crate::ChangeId(epoch), crate::AbortScope::Nobody);
            let view = View::from(standing);
            gate.update_view(&ViewUpdate {
                change,
                view,
                drain: true,
                abort,
                notices: Vec::new(),
                asked: None,
            });
            gate.poll_ack()
        };
        assert_eq!(update_view(&mut gate, 1), None, "{op:?}: what is being written is waited for");
        hand.hold.set(false);
        gate.take_backend_completions(&mut world.cx());
        hand.hold.set(true);
        gate.resume(&mut world.cx());
        assert_eq!(hand.kinds.borrow().last(), Some(&Op::Flush), "{op:?}");
        assert_eq!(hand.kinds.borrow().len(), parts);
        assert!(gate.poll_ack().is_some(), "{op:?}: the write has ended");
        assert!(update_view(&mut gate, 2).is_some(), "{op:?}: a flush is not waited for");
        hand.hold.set(false);
        gate.resume(&mut world.cx());
        if let Some((id, _)) = gate.poll_request() {
            gate.handle_answer(&mut world.cx(), id, Ok(()));
        }
        let ended = gate.poll_done().map(|done| done.result);
        assert_eq!(ended, Some(Ok(Outcome::Complete)), "{op:?}");
        assert!(update_view(&mut gate, 3).is_some() && gate.in_flight_count() == 0);
    }
}

/// A sync may take as long as its disk likes; what was written before a change cannot land after it.
#[test]
fn a_fence_does_not_wait_until_a_write_is_stable() {
    let disk = Arc::new(RamDisk::new(64, 64, 512, 4096));
    let (mut world, hand) = (World::new(), crate::fake_backend::FakeControls::default());
    let backend =
        crate::fake_backend::FakeBackend::new(RamBackend::new(disk.clone()), disk.geometry(), hand.clone());
    let mut gate = Gate::new(
        ShardId(0),
        SharedGateState::new(1),
        View::without_reservations(disk.geometry()),
        Box::new(backend),
    );
    hand.hold.set(true);
    hand.keeps_ends.set(true);
    let submit = |world: &mut World, gate: &mut Gate, id, mark| {
        let payload = world.filled(&[mark; 512]);
        let op = Op::Write(span(3, 1), Durability::Stable);
        gate.submit(
            &mut world.cx(),
            &requester(1),
            Io { id: IoId(id), epoch: Default::default(), op, payload },
        );
        gate.resume(&mut world.cx());
    };
    submit(&mut world, &mut gate, 1, 7);
    assert!(gate.poll_done().is_none() && gate.in_flight_count() == 1);
    let standing = crate::VolumeState { epoch: crate::Epoch(1), ..(**gate.view()).clone() };
    let (change, abort, view) = (crate::ChangeId(1), crate::AbortScope::Nobody, View::from(standing));
    gate.update_view(&ViewUpdate { change, view, drain: true, abort, notices: Vec::new(), asked: None });
    assert!(gate.poll_ack().is_some(), "its blocks stand");
    // Nor does an exclusive operation of the same blocks.
    assert!(gate.shared.guards().has_no_plain_writes(LockRegions::of_span(span(3, 1), 512)));
    submit(&mut world, &mut gate, 2, 8);
    hand.hold.set(false);
    gate.resume(&mut world.cx());
    let ended: Vec<_> =
        std::iter::from_fn(|| gate.poll_done()).map(|done| (done.id.0, done.result)).collect();
    assert_eq!(ended, [(1, Ok(Outcome::Complete)), (2, Ok(Outcome::Complete))]);
    assert_eq!(gate.in_flight_count(), 0);
}

/// What is lent is read when it is sent, which may be after its reader was preempted: hosts that may be fenced are given
/// what stood there when they were allowed to read it.
#[test]
fn a_host_that_is_preempted_is_not_sent_what_was_written_after_that() {
    use crate::reservation::{Action, Key, RegistrationRequest};
    let (mut world, mut gate, who) = (World::new(), ram_gate(64), requester(1));
    let old = world.filled(&[1; 512]);
    assert!(run(&mut world, &mut gate, &who, Op::Write(span(0, 1), Durability::Cached), old).result.is_ok());
    let register = Action::Register(RegistrationRequest::new(None, Key(7)));
    let reservations = Arc::new(gate.view().reservations.apply(&who, &register).unwrap().state);
    let standing = crate::VolumeState { epoch: crate::Epoch(1), reservations, ..(**gate.view()).clone() };
    gate.view = View::from(standing);
    assert!(!gate.lends_memory() && gate.read_inline(&who, span(0, 1)).is_none());
    let was_read = run(&mut world, &mut gate, &who, Op::Read(span(0, 1)), Payload::None);
    let new = world.filled(&[2; 512]);
    assert!(
        run(&mut world, &mut gate, &requester(2), Op::Write(span(0, 1), Durability::Cached), new)
            .result
            .is_ok()
    );
    assert_eq!(bytes_of(was_read.payload), [1; 512]);
}

#[test]
fn inline_is_what_submitting_would_have_done() {
    let (mut world, mut gate, who) = (World::new(), ram_gate(64), requester(1));
    let cached = Durability::Cached;
    assert!(gate.write_inline(&who, span(2, 2), cached, &[0x5a; 1024]));
    assert_eq!(read(&mut world, &mut gate, span(2, 2)), [0x5a; 1024]);
    let lent = gate.read_inline(&who, span(3, 1)).unwrap();
    assert_eq!(bytes_of(Payload::Out(lent)), [0x5a; 512]);
    assert_eq!(gate.in_flight_count(), 0);
    // What does not fit is left to be refused.
    assert!(!gate.write_inline(&who, span(2, 2), cached, &[0; 512]), "too short");
    assert!(!gate.write_inline(&who, span(63, 2), cached, &[0; 1024]), "behind the end");
    assert!(!gate.write_inline(&who, span(2, 0), cached, &[]), "nothing");
    assert!(gate.read_inline(&who, span(64, 1)).is_none() && gate.read_inline(&who, span(0, 0)).is_none());
    let reader = Requester { read_only: true, ..requester(2) };
    assert!(!gate.write_inline(&reader, span(2, 1), cached, &[0; 512]));
    assert!(gate.read_inline(&reader, span(2, 1)).is_some());
    // Bad blocks are not read, and to make them good takes more than a plain write.
    let bad = crate::BadBlocks::default().with_span(span(3, 1)).unwrap();
    let standing =
        crate::VolumeState { epoch: crate::Epoch(1), bad: Arc::new(bad), ..(**gate.view()).clone() };
    gate.view = View::from(standing);
    assert!(gate.read_inline(&who, span(2, 4)).is_none());
    assert!(!gate.write_inline(&who, span(3, 1), cached, &[7; 512]));
    assert!(gate.write_inline(&who, span(4, 1), cached, &[7; 512]));
    // When something was written atomically, memory is lent no more.
    let payload = world.filled(&[1; 512]);
    assert_eq!(
        run(&mut world, &mut gate, &who, Op::WriteAtomic(span(9, 1)), payload).result,
        Ok(Outcome::Complete)
    );
    assert!(gate.read_inline(&who, span(9, 1)).is_none());
}

#[test]
fn nothing_is_written_inline_where_an_exclusive_operation_works() {
    let (mut world, mut gate, who) = (World::new(), ram_gate(64), requester(1));
    let mut held = LockRegions::NONE;
    let region = LockRegions::of_span(span(0, 1), 512);
    assert!(gate.shared.guards().try_hold(region, &mut held));
    assert!(!gate.write_inline(&who, span(2, 1), Durability::Cached, &[9; 512]));
    assert!(gate.shared.guards().has_no_plain_writes(region), "what is held is not claimed");
    gate.shared.guards().release_held(held);
    assert_eq!(read(&mut world, &mut gate, span(2, 1)), [0; 512], "nothing was done");
    assert!(gate.write_inline(&who, span(2, 1), Durability::Cached, &[9; 512]));
    assert!(
        !gate.shared.guards().has_no_plain_writes(region),
        "exclusive operations wait until it is settled"
    );
    gate.resume(&mut world.cx());
    assert!(gate.shared.guards().has_no_plain_writes(region));
    // A volume that goes leaves no claim behind.
    assert!(gate.write_inline(&who, span(2, 1), Durability::Cached, &[9; 512]));
    let shared = gate.shared.clone();
    drop(gate);
    assert!(shared.guards().has_no_plain_writes(region));
}

/// Nothing need follow a write that is not done inline: so what was claimed for it is given back there, or
/// exclusive operations of other cores would wait until this one happens to do something.
#[test]
fn what_is_not_written_inline_leaves_no_claim() {
    let disk = Arc::new(RamDisk::new(4096, 4096, 512, 4096));
    let (mut world, shared) = (World::new(), SharedGateState::new(2));
    let view = View::without_reservations(disk.geometry());
    let mut gate = Gate::new(ShardId(0), shared.clone(), view, Box::new(RamBackend::new(disk)));
    let write =
        |gate: &mut Gate, lba| gate.write_inline(&requester(1), span(lba, 1), Durability::Cached, &[1; 512]);
    let (free, taken) = (LockRegions::of_span(span(0, 1), 512), LockRegions::of_span(span(2048, 1), 512));
    let mut held = LockRegions::NONE;
    assert!(shared.guards().try_hold(taken, &mut held));
    assert!(!write(&mut gate, 2048) && shared.guards().has_no_plain_writes(free));
    // A run that has begun goes on, and leaves out what was held when it began.
    assert!(write(&mut gate, 0) && !write(&mut gate, 2048));
    shared.guards().release_held(held);
    assert!(!write(&mut gate, 2048), "the claim is older");
    assert!(!shared.guards().has_no_plain_writes(free));
    gate.resume(&mut world.cx());
    assert!(shared.guards().has_no_plain_writes(free));
}
