//! Raw commands over iSCSI: sent once, answered as they are, ended by the clock.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use blockwire_multipath::iscsi::{IscsiPath, Settings};
use blockwire_multipath::{
    NvmeCommand, Path, PathEvent, RawAnswer, RawCommand, RawCompletion, RawError, RawRefusal,
};
use buf::Payload;
use iscsi::wire::TmfFunction;
use volume::{Durability, IoId, Op, Outcome};

use crate::world::World;
use crate::{next, run, settings, span, up};
use testkit::delivery;
use testkit::scripted_iscsi_target::{ScriptedAnswer, ScriptedTarget, honest_answer};
use testkit::target;

const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 255, 0];
/// A vendor's command.
const VENDOR: [u8; 6] = [0xc1, 0, 0, 0, 0, 0];

fn scsi(cdb: &[u8], payload: Payload) -> RawCommand {
    RawCommand::scsi(cdb, payload).map_err(|(why, _)| why).unwrap()
}

fn start(world: &mut World<IscsiPath>, command: RawCommand) {
    assert!(world.with(|path, cx| path.submit_raw(cx, IoId(9), command)).is_ok());
}

#[track_caller]
fn ended(world: &mut World<IscsiPath>) -> RawCompletion {
    loop {
        match next(world) {
            PathEvent::RawDone(done) => {
                assert_eq!(done.id, IoId(9));
                return done;
            }
            PathEvent::Changed(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[track_caller]
fn run_raw(world: &mut World<IscsiPath>, command: RawCommand) -> RawCompletion {
    start(world, command);
    ended(world)
}

#[test]
fn an_answer_is_handed_up_as_it_is_and_memory_is_cut_to_what_came() {
    let mut world = crate::world(settings(), &target::TargetLimits::default());
    up(&mut world);
    let room = delivery::payload_for_read(&world.pool, 255);
    let done = run_raw(&mut world, scsi(&INQUIRY, room));
    let Ok(RawAnswer::Scsi { status: 0, transferred, underflow, overflow: 0, sense }) = done.how else {
        panic!("{:?}", done.how)
    };
    assert!(sense.is_empty() && transferred + underflow == 255 && transferred >= 36);
    let data = delivery::payload_bytes(done.payload);
    assert_eq!((data.len(), &data[8..16]), (transferred as usize, &b"BLOCKWIR"[..]));
    // What is written raw is what is read.
    let content: Vec<u8> = (0..1024).map(|at| (at * 3) as u8).collect();
    let write = [0x2a, 0, 0, 0, 0, 8, 0, 0, 2, 0];
    let out = delivery::payload_with_bytes(&world.pool, &content);
    let done = run_raw(&mut world, scsi(&write, out));
    assert!(matches!(done.how, Ok(RawAnswer::Scsi { status: 0, transferred: 1024, .. })), "{:?}", done.how);
    let room = delivery::payload_for_read(&world.pool, 1024);
    let (how, payload) = run(&mut world, Op::Read(span(8, 2)), room);
    assert_eq!(how, Ok(Outcome::Complete));
    assert!(delivery::payload_bytes(payload) == content);
    // Refused by the target: that is an answer. A CDB of 32 bytes goes in an additional header segment.
    let mut long = [0; 32];
    (long[0], long[7]) = (0x7f, 24);
    let done = run_raw(&mut world, scsi(&long, Payload::None));
    let Ok(RawAnswer::Scsi { status: 2, sense, .. }) = &done.how else { panic!("{:?}", done.how) };
    assert_eq!(sense[2] & 15, 5, "ILLEGAL REQUEST");
}

#[test]
fn a_command_of_the_other_protocol_is_not_sent() {
    let mut world = crate::world(settings(), &target::TargetLimits::default());
    let vendor = || scsi(&VENDOR, Payload::None);
    assert!(world.with(|path, cx| path.submit_raw(cx, IoId(9), vendor())).is_err(), "the path is down");
    up(&mut world);
    let identify = NvmeCommand { opcode: 6, ..NvmeCommand::default() };
    let room = delivery::payload_for_read(&world.pool, 4096);
    let identify = RawCommand::nvme_admin(identify, room).map_err(|(why, _)| why).unwrap();
    let done = run_raw(&mut world, identify);
    assert_eq!((done.how, done.payload.len()), (Err(RawError::WrongProtocol), 0));
    let (why, _) = RawCommand::scsi(&[0x12, 0], Payload::None).unwrap_err();
    assert!(matches!(why, RawRefusal::CdbLength { len: 2, opcode: 0x12, least: 6 }), "{why}");
}

/// A target whose vendor command is answered so, and how often it came.
fn scripted(
    settings: Settings,
    answer: impl Fn() -> ScriptedAnswer + 'static,
) -> (Rc<Cell<u32>>, World<IscsiPath>) {
    let count = Rc::new(Cell::new(0));
    let asked = count.clone();
    let mut world = crate::world(settings, &target::TargetLimits::default());
    world.script = Some(ScriptedTarget::new(move |cdb| {
        if cdb[0] != VENDOR[0] {
            return honest_answer(cdb);
        }
        asked.set(asked.get() + 1);
        answer()
    }));
    up(&mut world);
    (count, world)
}

#[test]
fn a_unit_attention_is_an_answer_and_nothing_is_sent_again() {
    // CAPACITY DATA HAS CHANGED, BUSY, TASK ABORTED: an operation would be sent again.
    for answer in
        [|| ScriptedAnswer::Check(6, 0x2a09), || ScriptedAnswer::Status(8), || ScriptedAnswer::Status(0x40)]
    {
        let (count, mut world) = scripted(settings(), answer);
        let done = run_raw(&mut world, scsi(&VENDOR, Payload::None));
        assert!(matches!(done.how, Ok(RawAnswer::Scsi { status: 2 | 8 | 0x40, .. })), "{:?}", done.how);
        world.run(Duration::from_secs(40), |_| false);
        assert_eq!(count.get(), 1);
    }
}

#[test]
fn a_command_that_takes_too_long_is_aborted_and_says_so() {
    let (count, mut world) = scripted(settings(), || ScriptedAnswer::Silence);
    let begun = world.now;
    let room = delivery::payload_for_read(&world.pool, 64);
    let done = run_raw(&mut world, scsi(&VENDOR, room));
    assert_eq!((done.how, done.payload.len()), (Err(RawError::TimedOut), 0));
    let took = world.now.since(begun);
    assert!(took >= Duration::from_secs(30) && took < Duration::from_secs(41), "{took:?}");
    let functions = world.script.as_ref().unwrap().functions.clone();
    assert_eq!((functions, count.get()), (vec![TmfFunction::ABORT_TASK.0], 1));
    // The caller ends one early.
    start(&mut world, scsi(&VENDOR, Payload::None));
    world.run(Duration::from_secs(1), |_| false);
    let begun = world.now;
    world.with(|path, cx| path.cancel(cx, IoId(9)));
    assert_eq!(ended(&mut world).how, Err(RawError::Aborted));
    assert!(world.now.since(begun) < Duration::from_secs(5));
}

/// There is room for a few ABORT TASK at once. What is behind them is ended as soon as they are answered.
#[test]
fn many_that_are_cancelled_at_once_end_soon() {
    for raw in [false, true] {
        let silent = |cdb: &[u8]| matches!(cdb[0], 0x28 | 0xc1);
        let mut world =
            crate::world(Settings { commands: 24, ..settings() }, &target::TargetLimits::default());
        world.script = Some(ScriptedTarget::new(move |cdb| match silent(cdb) {
            true => ScriptedAnswer::Silence,
            false => honest_answer(cdb),
        }));
        up(&mut world);
        for id in 0..24 {
            let room = delivery::payload_for_read(&world.pool, 512);
            let taken = match raw {
                true => world.with(|path, cx| path.submit_raw(cx, IoId(id), scsi(&VENDOR, room))).is_ok(),
                false => world.with(|path, cx| path.submit(cx, IoId(id), Op::Read(span(0, 1)), room)).is_ok(),
            };
            assert!(taken, "{id}");
        }
        world.run(Duration::from_secs(1), |_| false);
        let begun = world.now;
        world.with(|path, cx| (0..24).for_each(|id| path.cancel(cx, IoId(id))));
        for _ in 0..24 {
            match next(&mut world) {
                PathEvent::RawDone(done) => assert_eq!(done.how, Err(RawError::Aborted)),
                PathEvent::Done { how, .. } => assert!(how.is_err()),
                other => panic!("{other:?}"),
            }
        }
        assert!(world.now.since(begun) < Duration::from_secs(5), "{raw}: {:?}", world.now.since(begun));
        let functions = &world.script.as_ref().unwrap().functions;
        assert_eq!(functions[..], [TmfFunction::ABORT_TASK.0; 24]);
    }
}

#[test]
fn an_abort_without_effect_becomes_a_reset_and_then_the_end_of_the_session() {
    let (_, mut world) = scripted(settings(), || ScriptedAnswer::Silence);
    world.script.as_mut().unwrap().managed = None;
    start(&mut world, scsi(&VENDOR, Payload::None));
    // Nobody knows whether it was done.
    assert_eq!(ended(&mut world).how, Err(RawError::InDoubt));
    assert!(matches!(next(&mut world), PathEvent::Down(_)));
    let functions = &world.script.as_ref().unwrap().functions;
    assert_eq!(functions[..], [TmfFunction::ABORT_TASK.0, TmfFunction::LOGICAL_UNIT_RESET.0]);
}

#[test]
fn a_command_that_was_lost_is_in_doubt_and_is_fenced_as_a_write_is() {
    let (count, mut world) = scripted(settings(), || ScriptedAnswer::Silence);
    start(&mut world, scsi(&VENDOR, Payload::None));
    world.run(Duration::from_secs(1), |_| false);
    world.cut();
    assert_eq!(ended(&mut world).how, Err(RawError::InDoubt));
    assert!(matches!(next(&mut world), PathEvent::Down(_)));
    assert_eq!(count.get(), 1);
    // Its session is replaced before it is called over.
    world.with(|path, cx| path.fence(cx));
    world.heal();
    assert!(matches!(next(&mut world), PathEvent::Fenced));
    up(&mut world);
    let data = delivery::payload_with_bytes(&world.pool, &[1; 512]);
    let (how, _) = run(&mut world, Op::Write(span(0, 1), Durability::Cached), data);
    assert_eq!(how, Ok(Outcome::Complete));
}
