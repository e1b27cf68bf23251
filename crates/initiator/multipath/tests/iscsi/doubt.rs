//! Another unit may be mapped to the LUN while the session stays: no command goes to it as if it were the old
//! one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use blockwire_multipath::iscsi::IscsiPath;
use blockwire_multipath::{DownReason, IoError, Path, PathEvent, ReservationOp};
use volume::reservation::{Action, Key};
use volume::{Durability, IoId, Op, Outcome};

use crate::world::World;
use crate::{next, run, settings, span, up};
use testkit::delivery;
use testkit::scripted_iscsi_target::{ScriptedAnswer, ScriptedTarget, honest_answer};
use testkit::target;

/// REPORTED LUNS DATA HAS CHANGED, and CAPACITY DATA HAS CHANGED.
const IDENTITY: ScriptedAnswer = ScriptedAnswer::Check(6, 0x3f0e);
const MEDIUM: ScriptedAnswer = ScriptedAnswer::Check(6, 0x2a09);

/// What the target says of itself, and what it was asked.
#[derive(Default)]
struct Unit {
    /// The byte of its UUID; 0: it has no page of names.
    uuid: Cell<u8>,
    /// Answers to the next commands of this operation code.
    next: RefCell<Vec<(u8, ScriptedAnswer)>>,
    /// The answer to each TEST UNIT READY and READ CAPACITY.
    unready: Cell<Option<u16>>,
    /// Every other MODE SENSE is told of a change of the medium.
    changes: Cell<bool>,
    modes: Cell<u32>,
    /// READ CAPACITY, writes, PERSISTENT RESERVE OUT.
    sizes: Cell<u32>,
    writes: Cell<u32>,
    requests: Cell<u32>,
}

impl Unit {
    fn says(&self, opcode: u8, answer: ScriptedAnswer) {
        self.next.borrow_mut().push((opcode, answer));
    }

    fn answer(&self, cdb: &[u8; 16]) -> ScriptedAnswer {
        let count = |of: &Cell<u32>, is| of.set(of.get() + u32::from(is));
        count(&self.sizes, cdb[0] == 0x9e);
        count(&self.writes, cdb[0] == 0x2a);
        count(&self.requests, cdb[0] == 0x5f);
        count(&self.modes, cdb[0] == 0x1a);
        if cdb[0] == 0x1a
            && self.changes.get()
            && self.modes.get().is_multiple_of(2)
            && self.modes.get() < 200
        {
            return MEDIUM;
        }
        let mut next = self.next.borrow_mut();
        if let Some(at) = next.iter().position(|(opcode, _)| *opcode == cdb[0]) {
            return next.remove(at).1;
        }
        match (cdb[0], cdb[1], cdb[2], honest_answer(cdb), self.unready.get()) {
            (0x00 | 0x25 | 0x9e, .., Some(code)) => ScriptedAnswer::Check(2, code),
            (0x12, 1, 0x83, ScriptedAnswer::Good(mut data), _) => {
                data[10..26].fill(self.uuid.get());
                ScriptedAnswer::Good(data)
            }
            (0x12, 1, 0x00, ..) if self.uuid.get() == 0 => ScriptedAnswer::Good(vec![0, 0, 0, 2, 0x00, 0x80]),
            (.., answer, _) => answer,
        }
    }
}

fn rigged() -> (Rc<Unit>, World<IscsiPath>) {
    let unit = Rc::new(Unit::default());
    unit.uuid.set(9);
    let asked = unit.clone();
    let mut world = crate::world(settings(), &target::TargetLimits::default());
    world.script = Some(ScriptedTarget::new(move |cdb| asked.answer(cdb)));
    up(&mut world);
    (unit, world)
}

fn reads(world: &mut World<IscsiPath>) {
    let room = delivery::payload_for_read(&world.pool, 512);
    assert_eq!(run(world, Op::Read(span(0, 1)), room).0, Ok(Outcome::Complete));
}

fn writes(world: &mut World<IscsiPath>) -> Result<(), ()> {
    let data = delivery::payload_with_bytes(&world.pool, &[1; 512]);
    let op = Op::Write(span(0, 1), Durability::Cached);
    world.with(|path, cx| path.submit(cx, IoId(8), op, data)).map_err(drop)
}

fn clears(world: &mut World<IscsiPath>, name: u64) -> Result<(), ()> {
    let request = ReservationOp::Change(Action::Clear { key: Some(Key(5)) });
    world.with(|path, cx| path.submit_reservation_op(cx, IoId(name), request)).map_err(drop)
}

/// The path ends, and of what it had in work nothing was done.
#[track_caller]
fn ends_for_another(world: &mut World<IscsiPath>) {
    loop {
        match next(world) {
            PathEvent::Down(DownReason::Lost(text)) => {
                return assert!(text.contains("another volume"), "{text}");
            }
            PathEvent::Done { how: Err(IoError::NotDone(_)), .. } => {}
            PathEvent::ReservationReply { how: Err(IoError::NotDone(_)), .. } => {}
            PathEvent::Changed(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn that_another_unit_stands_there_is_not_missed_when_a_question_of_ours_hears_it() {
    for opcode in [0x00, 0x12, 0x9e, 0x1a, 0xa3] {
        let (unit, mut world) = rigged();
        unit.says(0x28, if opcode == 0x12 { IDENTITY } else { MEDIUM });
        unit.says(opcode, IDENTITY);
        unit.uuid.set(8);
        let room = delivery::payload_for_read(&world.pool, 512);
        world.with(|path, cx| path.submit(cx, IoId(7), Op::Read(span(0, 1)), room)).unwrap();
        let mut down = None;
        world.run(Duration::from_secs(20), |world| {
            while let Some(event) = world.path.poll_event() {
                down = if let PathEvent::Down(why) = event { Some(why) } else { down.take() };
            }
            down.is_some()
        });
        let told = matches!(&down, Some(DownReason::Lost(text)) if text.contains("another volume"));
        assert!(told, "{opcode:x}: {down:?}");
    }
}

#[test]
fn a_change_of_the_size_that_a_late_question_hears_is_not_missed() {
    let (unit, mut world) = rigged();
    let before = unit.sizes.get();
    unit.says(0x28, MEDIUM);
    unit.says(0x1a, MEDIUM);
    reads(&mut world);
    world.run(Duration::from_secs(1), |_| false);
    assert_eq!(unit.sizes.get() - before, 2, "the size is asked for again behind the second change");
}

#[test]
fn a_unit_that_is_not_ready_is_asked_who_it_is_before_anything_is_written() {
    for code in [0x0402, 0x3a00] {
        for uuid in [8, 0, 9] {
            let (unit, mut world) = rigged();
            unit.says(0x2a, IDENTITY);
            unit.unready.set(Some(code));
            unit.uuid.set(uuid);
            writes(&mut world).unwrap();
            if uuid != 9 {
                ends_for_another(&mut world);
                assert_eq!(unit.writes.get(), 1, "{code:x}: it is not repeated on the other one");
                continue;
            }
            // It is the same, and the target says what becomes of what is asked of it.
            loop {
                match next(&mut world) {
                    PathEvent::Done { how, .. } => break assert!(how.is_ok(), "{code:x}: {how:?}"),
                    PathEvent::Changed(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(unit.writes.get(), 2, "{code:x}");
        }
    }
}

#[test]
fn no_reservation_is_changed_on_another_unit() {
    // What hears of the change: the claim itself, or a read while the claim waits for a target that is busy.
    for by_claim in [true, false] {
        let (unit, mut world) = rigged();
        unit.says(0x5f, if by_claim { IDENTITY } else { ScriptedAnswer::Status(0x08) });
        unit.uuid.set(8);
        clears(&mut world, 9).unwrap();
        world.settle();
        assert_eq!(unit.requests.get(), 1);
        if !by_claim {
            unit.says(0x28, IDENTITY);
            // It takes a while to say who it is.
            (0..20).for_each(|_| unit.says(0x12, ScriptedAnswer::Status(0x08)));
            let room = delivery::payload_for_read(&world.pool, 512);
            world.with(|path, cx| path.submit(cx, IoId(7), Op::Read(span(0, 1)), room)).unwrap();
            world.settle();
            assert!(clears(&mut world, 10).is_err(), "nor is one taken on");
            assert!(writes(&mut world).is_err());
        }
        ends_for_another(&mut world);
        assert_eq!(unit.requests.get(), 1, "by the claim: {by_claim}");
    }
}

#[test]
fn a_claim_that_was_held_goes_on_when_it_is_the_same_unit_and_does_not_wait_for_ever() {
    let (unit, mut world) = rigged();
    unit.says(0x5f, IDENTITY);
    clears(&mut world, 9).unwrap();
    loop {
        match next(&mut world) {
            PathEvent::ReservationReply { how, .. } => break assert!(matches!(how, Ok(None)), "{how:?}"),
            PathEvent::Changed(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(unit.requests.get(), 2);
    unit.says(0x5f, IDENTITY);
    (0..10_000).for_each(|_| unit.says(0x12, ScriptedAnswer::Status(0x08)));
    clears(&mut world, 10).unwrap();
    let before = world.now;
    let PathEvent::ReservationReply { how: Err(IoError::NotDone(_)), .. } = next(&mut world) else {
        panic!("it is told")
    };
    let waited = world.now.since(before);
    assert!(waited > Duration::from_secs(29) && waited < Duration::from_secs(40), "{waited:?}");
    assert_eq!(unit.requests.get(), 3);
}

#[test]
fn a_unit_that_does_not_tell_its_names_any_more_is_not_taken_for_the_one_before() {
    // Page 00h, 80h and 83h: refused, each for itself.
    for at in 0..3 {
        let (unit, mut world) = rigged();
        unit.says(0x2a, IDENTITY);
        unit.uuid.set(if at == 2 { 8 } else { 9 });
        let mut answers = vec![
            honest_answer(&inquiry(0, 0)),
            honest_answer(&inquiry(1, 0)),
            honest_answer(&inquiry(1, 0x80)),
        ];
        answers.truncate(at + 1);
        answers.push(ScriptedAnswer::Check(5, 0x2400));
        answers.into_iter().for_each(|answer| unit.says(0x12, answer));
        writes(&mut world).unwrap();
        ends_for_another(&mut world);
        assert_eq!(unit.writes.get(), 1, "{at}");
    }
}

fn inquiry(evpd: u8, page: u8) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2]) = (0x12, evpd, page);
    cdb
}

#[test]
fn a_unit_that_is_busy_without_end_does_not_keep_the_path_unsure_for_ever() {
    let (unit, mut world) = rigged();
    unit.says(0x28, IDENTITY);
    (0..100_000).for_each(|_| unit.says(0x12, ScriptedAnswer::Status(0x08)));
    let room = delivery::payload_for_read(&world.pool, 512);
    world.with(|path, cx| path.submit(cx, IoId(7), Op::Read(span(0, 1)), room)).unwrap();
    let (mut down, begun) = (None, world.now);
    world.run(Duration::from_secs(120), |world| {
        while let Some(event) = world.path.poll_event() {
            down = if let PathEvent::Down(why) = event { Some(why) } else { down.take() };
        }
        down.is_some()
    });
    let Some(DownReason::Lost(text)) = down else { panic!("{down:?}") };
    assert!(text.contains("does not report which volume"), "{text}");
    assert!(world.now.since(begun) < Duration::from_secs(40));
}

#[test]
fn a_unit_that_becomes_ready_slowly_tells_who_it_is_and_is_not_given_up() {
    let (unit, mut world) = rigged();
    unit.says(0x2a, IDENTITY);
    // Becoming ready.
    unit.unready.set(Some(0x0401));
    writes(&mut world).unwrap();
    world.run(Duration::from_secs(900), |world| {
        assert!(!matches!(world.path.poll_event(), Some(PathEvent::Down(_))));
        false
    });
    unit.unready.set(None);
    reads(&mut world);
}

#[test]
fn a_target_that_tells_of_a_change_at_each_question_is_not_asked_without_pause() {
    let (unit, mut world) = rigged();
    let before = unit.sizes.get();
    // Each survey hears of a change behind the question that it is about, and goes on.
    unit.changes.set(true);
    unit.says(0x28, MEDIUM);
    reads(&mut world);
    world.run(Duration::from_secs(1), |_| false);
    let surveys = unit.sizes.get() - before;
    assert!((2..12).contains(&surveys), "{surveys}");
}
