//! Targets with valid frames and invalid contents: every case has a defined result in bounded time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use blockwire_multipath::iscsi::{Discovery, DiscoverySettings, IscsiPath, Timeouts};
use blockwire_multipath::{DownReason, Path, PathEvent, ReservationOp};
use buf::Payload;
use iscsi::wire::{AsyncEvent, AsyncMessage, Isid, Itt, NopIn, Pdu, TmfResponseCode, Ttt};
use volume::{Durability, Extent, IoId, Op, Outcome, PathAccess};

use crate::world::World;
use crate::{next, run, settings, span, up};
use testkit::delivery;
use testkit::scripted_iscsi_target::{ScriptedAnswer, ScriptedTarget, honest_answer};
use testkit::target;

pub fn against(script: ScriptedTarget) -> World<IscsiPath> {
    let mut world = crate::world(settings(), &target::TargetLimits::default());
    world.script = Some(script);
    world
}

/// A target that answers honestly, except one command: `opcode`, with these bytes 1 and 2 of its CDB if they are given.
pub fn honest_target_except(
    opcode: u8,
    second: Option<u8>,
    third: Option<u8>,
    answer: ScriptedAnswer,
) -> World<IscsiPath> {
    against(ScriptedTarget::new(move |cdb| {
        let hit =
            cdb[0] == opcode && second.is_none_or(|at| cdb[1] == at) && third.is_none_or(|at| cdb[2] == at);
        if hit { answer.clone() } else { honest_answer(cdb) }
    }))
}

#[test]
fn an_honest_target_is_believed() {
    let mut world = against(ScriptedTarget::new(honest_answer));
    let info = up(&mut world);
    let geometry = info.geometry.unwrap();
    assert_eq!((geometry.blocks, geometry.max_io), (1000, 64 * 512));
    assert_eq!(info.uuid.map(|uuid| uuid.0), Some([9; 16]));
    assert!(geometry.thin && geometry.write_cache && !info.read_only);
    assert_eq!(info.access, PathAccess::Optimized);
}

#[test]
fn attack_88_vital_product_data_and_mode_data_that_lie_about_their_lengths() {
    let good = |bytes: &[u8]| ScriptedAnswer::Good(bytes.to_vec());
    let long = |head: &[u8]| ScriptedAnswer::Good([head, &[0xff; 300][..]].concat());
    let cases = [
        // The list of pages: longer than it is, of another code, of no byte.
        (0x12, Some(1), Some(0x00), good(&[0, 0, 0xff, 0xff, 0, 0x83])),
        (0x12, Some(1), Some(0x00), good(&[0, 0x83, 0, 2, 0, 0x83])),
        (0x12, Some(1), Some(0x00), good(&[])),
        (0x12, Some(1), Some(0x80), good(&[0, 0x80, 0xff, 0xff, 0x41, 0x00, 0x1b])),
        // Designators beyond the page, without end, of no byte, a UUID that is too short.
        (0x12, Some(1), Some(0x83), good(&[0, 0x83, 0, 8, 1, 0x0a, 0, 0xff, 0x10, 0, 1, 2])),
        (0x12, Some(1), Some(0x83), good(&[0, 0x83, 0xff, 0xff, 1, 3, 0, 8, 1, 2, 3])),
        (0x12, Some(1), Some(0x83), good(&[0, 0x83, 0, 6, 1, 0x0a, 0, 2, 0x10, 0])),
        (0x12, Some(1), Some(0x83), long(&[0, 0x83, 0xff, 0xff])),
        (0x12, Some(1), Some(0xb0), good(&[0, 0xb0, 0, 60, 1])),
        (0x12, Some(1), Some(0xb0), long(&[0, 0xb0, 0xff, 0xff])),
        (0x12, Some(1), Some(0xb1), good(&[0, 0xb1, 0xff, 0xff])),
        (0x12, Some(1), Some(0xb2), good(&[0, 0xb2, 0, 4])),
        // A block descriptor and pages beyond what came.
        (0x1a, None, None, good(&[0xff, 0, 0x10, 0xff])),
        (0x1a, None, None, good(&[0xff, 0, 0x10, 0, 8, 0xff, 4])),
        (0x1a, None, None, long(&[0, 0, 0, 0])),
        (0x1a, None, None, good(&[])),
        // Port groups that are listed and do not come, or with more ports than there are bytes.
        (0xa3, None, None, good(&[0xff, 0xff, 0xff, 0xff, 0, 0x0f, 0, 1, 0, 0, 0, 0xff])),
        (0xa3, None, None, long(&[0, 0, 0, 0xff])),
    ];
    for (opcode, second, third, answer) in cases {
        let mut world = honest_target_except(opcode, second, third, answer.clone());
        let info = up(&mut world);
        let geometry = info.geometry.unwrap();
        assert_eq!(geometry.blocks, 1000, "{answer:?}");
        assert!(geometry.max_io >= 512 && geometry.max_io <= 1 << 20 && geometry.max_io.is_multiple_of(512));
        let text = format!("{info:?}");
        assert!(text.is_ascii() && !text.contains('\u{1b}'), "{text}");
    }
}

#[test]
fn attack_88_units_and_sizes_that_cannot_be() {
    let good = |bytes: &[u8]| ScriptedAnswer::Good(bytes.to_vec());
    let size = |last: [u8; 8], block: [u8; 4]| {
        ScriptedAnswer::Good([&last[..], &block[..], &[0xff; 20][..]].concat())
    };
    let cases = [
        (0x12, Some(0), good(&[0; 35]), "too short"),
        (0x12, Some(0), ScriptedAnswer::Good([&[0x01][..], &[0; 40][..]].concat()), "no disk"),
        (0x9e, None, size([0xff; 8], [0, 0, 2, 0]), "beyond 2^63"),
        (0x9e, None, size([0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], [0, 0, 2, 0]), "beyond 2^63"),
        (0x9e, None, size([0, 0, 0, 0, 0, 0, 0, 9], [0; 4]), "blocks of 0 bytes"),
        (0x9e, None, size([0, 0, 0, 0, 0, 0, 0, 9], [0xff; 4]), "blocks of 4294967295 bytes"),
        (0x9e, None, size([0, 0, 0, 0, 0, 0, 0, 9], [0, 0, 2, 8]), "blocks of 520 bytes"),
        (0x9e, None, good(&[0; 15]), "too short"),
    ];
    for (opcode, second, answer, complaint) in cases {
        let mut world = honest_target_except(opcode, second, None, answer.clone());
        world.with(|path, cx| path.connect(cx));
        match next(&mut world) {
            PathEvent::Down(DownReason::Refused(text)) => {
                assert!(text.contains(complaint), "{answer:?}: {text}")
            }
            other => panic!("{answer:?}: {other:?}"),
        }
    }
    // No such unit; the list of those that are is as long as it says, and longer.
    for (luns, complaint) in [
        (good(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 5]), "but 3"),
        (good(&[0, 0, 0, 8]), "no logical unit"),
        (ScriptedAnswer::Good([&[0, 0, 0x10, 0, 0, 0, 0, 0][..], &[0; 4000][..]].concat()), "and more"),
    ] {
        let mut world = against(ScriptedTarget::new(move |cdb| match cdb[0] {
            0x12 => ScriptedAnswer::Good([&[0x7f][..], &[0; 40][..]].concat()),
            0xa0 => luns.clone(),
            _ => honest_answer(cdb),
        }));
        world.with(|path, cx| path.connect(cx));
        let PathEvent::Down(DownReason::Absent(text)) = next(&mut world) else { panic!() };
        assert!(text.contains(complaint), "{text}");
    }
}

#[test]
fn attack_88_extents_and_registrations_that_lie() {
    let descriptor = |lba: u64, blocks: u32, status: u8| {
        [&lba.to_be_bytes()[..], &blocks.to_be_bytes()[..], &[status, 0, 0, 0][..]].concat()
    };
    let list = |len: u32, parts: &[Vec<u8>]| {
        ScriptedAnswer::Good([&len.to_be_bytes()[..], &[0; 4][..], &parts.concat()[..]].concat())
    };
    let mapped = |lba, blocks, mapped| Extent { span: span(lba, blocks), mapped };
    let cases = [
        (
            list(0xffff_ffff, &[descriptor(10, 5, 0), descriptor(15, 1000, 1)]),
            Some(vec![mapped(10, 5, true), mapped(15, 85, false)]),
        ),
        // Begins before, stands still, goes back, leaves a gap, wraps round: what is sound of it counts.
        (list(20, &[descriptor(0, 20, 1)]), Some(vec![mapped(10, 10, false)])),
        (list(36, &[descriptor(10, 5, 0), descriptor(10, 5, 1)]), Some(vec![mapped(10, 5, true)])),
        (list(36, &[descriptor(10, 5, 0), descriptor(15, 0, 1)]), Some(vec![mapped(10, 5, true)])),
        (list(36, &[descriptor(10, 5, 0), descriptor(16, 5, 1)]), Some(vec![mapped(10, 5, true)])),
        (list(20, &[descriptor(u64::MAX, u32::MAX, 0)]), None),
        (list(20, &[descriptor(10, 0, 0)]), None),
        (list(20, &[]), None),
        (ScriptedAnswer::Good(vec![0xff; 7]), None),
    ];
    for (answer, expected) in cases {
        let mut world = honest_target_except(0x9e, Some(0x12), None, answer.clone());
        up(&mut world);
        let (how, _) = run(&mut world, Op::Extents(span(10, 90)), Payload::None);
        match expected {
            Some(extents) => assert_eq!(how, Ok(Outcome::Extents(extents)), "{answer:?}"),
            None => assert_eq!(how, Err("Failed(Failed(Internal))".to_owned()), "{answer:?}"),
        }
    }
    for status in [vec![0xff; 40], vec![0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff], vec![0, 0, 0, 1, 0, 0, 0, 24]] {
        let mut world = honest_target_except(0x5e, Some(3), None, ScriptedAnswer::Good(status));
        up(&mut world);
        world.with(|path, cx| path.submit_reservation_op(cx, IoId(1), ReservationOp::Report)).unwrap();
        let PathEvent::ReservationReply { how: Err(how), .. } = next(&mut world) else {
            panic!("nothing is known by it")
        };
        assert_eq!(format!("{how:?}"), "Failed(Failed(Internal))");
    }
}

#[test]
fn registrations_that_are_cut_off_are_asked_for_by_their_keys_and_an_unknown_type_is_not_nothing() {
    let report = |status: Vec<u8>, held: Vec<u8>| {
        let mut world = against(ScriptedTarget::new(move |cdb| match (cdb[0], cdb[1]) {
            (0x5e, 3) => ScriptedAnswer::Good(status.clone()),
            (0x5e, 0) => ScriptedAnswer::Good([&[0, 0, 0, 1, 0, 0, 0, 16], &[7; 16][..]].concat()),
            (0x5e, 1) => ScriptedAnswer::Good(held.clone()),
            _ => honest_answer(cdb),
        }));
        up(&mut world);
        world.with(|path, cx| path.submit_reservation_op(cx, IoId(1), ReservationOp::Report)).unwrap();
        match next(&mut world) {
            PathEvent::ReservationReply { how, .. } => {
                how.map(Option::unwrap).map_err(|error| format!("{error:?}"))
            }
            other => panic!("{other:?}"),
        }
    };
    let cut = vec![0, 0, 0, 1, 0, 1, 0, 0];
    let held = |kind| [&[0, 0, 0, 1, 0, 0, 0, 16], &[7; 8][..], &[0, 0, 0, 0, 0, kind, 0, 0]].concat();
    let told = report(cut.clone(), held(1)).unwrap();
    assert_eq!((told.named, told.whole, told.registrations.len()), (false, true, 2));
    assert_eq!(told.held, Some(volume::reservation::ReservationType::WriteExclusive));
    assert!(report(cut, held(2)).is_err(), "shared access is obsolete, and not nothing");
}

#[test]
fn attention_and_waiting_without_end_come_to_an_end() {
    for (answer, complaint) in [
        (ScriptedAnswer::Check(6, 0x2900), "unit attentions"),
        (ScriptedAnswer::Check(6, 0x3f0e), "unit attentions"),
        (ScriptedAnswer::Status(0x08), "does not get ready"),
        (ScriptedAnswer::Check(2, 0x0401), "does not get ready"),
        (ScriptedAnswer::Check(2, 0x0402), "stopped"),
        (ScriptedAnswer::Check(2, 0x3a00), "no medium"),
    ] {
        let mut world = honest_target_except(0x00, None, None, answer.clone());
        let before = world.now;
        world.with(|path, cx| path.connect(cx));
        let PathEvent::Down(DownReason::Refused(text) | DownReason::Lost(text)) = next(&mut world) else {
            panic!()
        };
        assert!(text.contains(complaint), "{answer:?}: {text}");
        assert!(world.now.since(before) < Duration::from_secs(60));
    }
    // What comes up answers reads so.
    for (answer, error) in [
        (ScriptedAnswer::Check(6, 0x2900), "NotDone(1s)"),
        (ScriptedAnswer::Status(0x28), "NotDone(1s)"),
        (ScriptedAnswer::Check(0xb, 0), "NotDone(1s)"),
        (ScriptedAnswer::Status(0x18), "Failed(Refused(Conflict))"),
        (ScriptedAnswer::Status(0x77), "Failed(Failed(Internal))"),
        (ScriptedAnswer::Check(2, 0x040c), "NotDone(0ns)"),
        (ScriptedAnswer::Check(3, 0x1100), "Failed(Failed(Medium(4)))"),
        (ScriptedAnswer::Check(5, 0x2100), "Failed(Refused(OutOfRange))"),
        (ScriptedAnswer::Check(7, 0x2700), "Failed(Refused(ReadOnly))"),
        (ScriptedAnswer::Check(7, 0x2707), "Failed(Failed(NoSpace))"),
        (
            ScriptedAnswer::Sense(vec![0xf0, 0, 3, 0xff, 0xff, 0xff, 0xff, 10, 0, 0, 0, 0, 0x11, 0]),
            "Failed(Failed(Medium(4)))",
        ),
        (
            ScriptedAnswer::Sense(vec![0xf0, 0, 3, 0, 0, 0, 5, 10, 0, 0, 0, 0, 0x11, 0]),
            "Failed(Failed(Medium(5)))",
        ),
        (ScriptedAnswer::Sense(vec![0x55]), "Failed(Failed(Internal))"),
        // GOOD, without the data.
        (ScriptedAnswer::Good(vec![]), "Failed(Failed(Internal))"),
    ] {
        let mut world = honest_target_except(0x28, None, None, answer.clone());
        up(&mut world);
        let room = delivery::payload_for_read(&world.pool, 1024);
        let (how, payload) = run(&mut world, Op::Read(span(4, 2)), room);
        assert_eq!(how, Err(error.to_owned()), "{answer:?}");
        assert!(delivery::payload_bytes(payload).iter().all(|byte| *byte == 0), "no byte that did not come");
    }
}

#[test]
fn an_answered_write_that_was_lost_fails_the_next_flush() {
    let deferred =
        RefCell::new(Some(ScriptedAnswer::Sense(vec![0x71, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x0c, 0])));
    let mut world = against(ScriptedTarget::new(move |cdb| match cdb[0] {
        0x28 => deferred.take().unwrap_or_else(|| honest_answer(cdb)),
        _ => honest_answer(cdb),
    }));
    up(&mut world);
    let room = delivery::payload_for_read(&world.pool, 512);
    assert_eq!(run(&mut world, Op::Read(span(0, 1)), room).0, Ok(Outcome::Complete));
    assert_eq!(run(&mut world, Op::Flush, Payload::None).0, Err("Failed(Failed(Sync))".to_owned()));
    assert_eq!(run(&mut world, Op::Flush, Payload::None).0, Ok(Outcome::Complete));
}

#[test]
fn a_lost_write_that_is_told_to_a_question_of_ours_fails_the_next_flush_too() {
    let deferred = Rc::new(RefCell::new(None));
    let told = deferred.clone();
    let mut world = against(ScriptedTarget::new(move |cdb| match cdb[0] {
        // TEST UNIT READY, which follows the news of another size.
        0x00 => told.borrow_mut().take().unwrap_or_else(|| honest_answer(cdb)),
        0x28 if told.borrow().is_some() && cdb[5] == 1 => ScriptedAnswer::Check(6, 0x2a09),
        _ => honest_answer(cdb),
    }));
    up(&mut world);
    *deferred.borrow_mut() =
        Some(ScriptedAnswer::Sense(vec![0x71, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x0c, 0]));
    let room = delivery::payload_for_read(&world.pool, 512);
    while deferred.borrow().is_some() {
        let room = delivery::payload_for_read(&world.pool, 512);
        world.with(|path, cx| path.submit(cx, IoId(7), Op::Read(span(1, 1)), room)).ok();
        world.settle();
    }
    drop(room);
    world.settle();
    while let Some(event) = world.with(|path, _| path.poll_event()) {
        assert!(matches!(event, PathEvent::Done { .. } | PathEvent::Changed(_)), "{event:?}");
    }
    assert_eq!(run(&mut world, Op::Flush, Payload::None).0, Err("Failed(Failed(Sync))".to_owned()));
    assert_eq!(run(&mut world, Op::Flush, Payload::None).0, Ok(Outcome::Complete));
}

#[test]
fn a_lost_write_is_told_to_every_flush_that_was_in_work_and_to_a_stable_write_that_flushes() {
    let script = || {
        let deferred = Rc::new(RefCell::new(None));
        let told = deferred.clone();
        let world = against(ScriptedTarget::new(move |cdb| match (cdb[0], honest_answer(cdb)) {
            (0x35 | 0x91, _) if told.borrow().is_some() => told.borrow_mut().take().unwrap(),
            // No FUA.
            (0x1a, ScriptedAnswer::Good(mut data)) => {
                data[2] = 0;
                ScriptedAnswer::Good(data)
            }
            (_, answer) => answer,
        }));
        (world, deferred)
    };
    let sense = || Some(ScriptedAnswer::Sense(vec![0x71, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x0c, 0]));
    let (mut world, deferred) = script();
    up(&mut world);
    *deferred.borrow_mut() = sense();
    for id in [1, 2] {
        world.with(|path, cx| path.submit(cx, IoId(id), Op::Flush, Payload::None)).unwrap();
    }
    for _ in [1, 2] {
        let PathEvent::Done { how: Err(how), .. } = next(&mut world) else {
            panic!("a flush that covers it is good")
        };
        assert_eq!(format!("{how:?}"), "Failed(Failed(Sync))");
    }
    assert_eq!(run(&mut world, Op::Flush, Payload::None).0, Ok(Outcome::Complete));
    let (mut world, deferred) = script();
    up(&mut world);
    *deferred.borrow_mut() = sense();
    let payload = delivery::payload_with_bytes(&world.pool, &[1; 512]);
    let (how, _) = run(&mut world, Op::Write(span(0, 1), Durability::Stable), payload);
    assert_eq!(how, Err("Failed(Failed(Sync))".to_owned()));
}

#[test]
fn a_write_of_which_the_target_means_more_blocks_than_we_do_is_not_done() {
    let mut world = against(ScriptedTarget::new(honest_answer));
    up(&mut world);
    let script = world.script.as_mut().unwrap();
    // SCSI Response with a residual overflow of 3,584 bytes: its blocks have 4,096 bytes by now.
    script.mangle = Some(Box::new(|said| {
        for pdu in said.iter_mut().filter(|pdu| pdu[0] & 0x3f == 0x21) {
            pdu[1] |= 4;
            pdu[44..48].copy_from_slice(&3584_u32.to_be_bytes());
        }
    }));
    let payload = delivery::payload_with_bytes(&world.pool, &[1; 512]);
    let (how, _) = run(&mut world, Op::Write(span(0, 1), Durability::Cached), payload);
    assert_eq!(how, Err("Failed(Failed(Internal))".to_owned()));
}

#[test]
fn a_compare_and_write_that_was_ended_amid_its_work_is_not_done_again() {
    for answer in [ScriptedAnswer::Status(0x40), ScriptedAnswer::Check(0xb, 0)] {
        let count = Rc::new(RefCell::new(0));
        let (seen, say) = (count.clone(), answer.clone());
        let mut world = against(ScriptedTarget::new(move |cdb| match cdb[0] {
            0x89 => {
                *seen.borrow_mut() += 1;
                say.clone()
            }
            _ => honest_answer(cdb),
        }));
        up(&mut world);
        let payload = delivery::payload_with_bytes(&world.pool, &[1; 1024]);
        let (how, _) = run(&mut world, Op::CompareAndWrite(span(0, 1)), payload);
        if how == Err("Failed(Refused(Unsupported))".to_owned()) {
            panic!("the target can");
        }
        assert_eq!((how, *count.borrow()), (Err("Failed(Failed(PathLost))".to_owned()), 1), "{answer:?}");
    }
}

#[test]
fn a_command_that_takes_too_long_is_aborted_then_reset_then_given_up() {
    let write = |world: &mut World<IscsiPath>| {
        let payload = delivery::payload_with_bytes(&world.pool, &[1; 512]);
        world
            .with(|path, cx| path.submit(cx, IoId(7), Op::Write(span(0, 1), Durability::Cached), payload))
            .unwrap();
        world.now
    };
    for (managed, functions, error, seconds) in [
        (Some(TmfResponseCode::COMPLETE), vec![1], "NotDone(0ns)", 30),
        (Some(TmfResponseCode::NO_TASK), vec![1], "InDoubt", 30),
        (Some(TmfResponseCode::REJECTED), vec![1, 5], "InDoubt", 30),
        (None, vec![1, 5], "InDoubt", 55),
    ] {
        let mut world = honest_target_except(0x2a, None, None, ScriptedAnswer::Silence);
        up(&mut world);
        world.script.as_mut().unwrap().managed = managed;
        let before = write(&mut world);
        let PathEvent::Done { how: Err(how), .. } = next(&mut world) else { panic!() };
        assert_eq!(format!("{how:?}"), error, "{managed:?}");
        let took = world.now.since(before).as_secs();
        assert!((seconds..seconds + 2).contains(&took), "{managed:?}: {took} s");
        assert_eq!(world.script.as_ref().unwrap().functions, functions);
        let down = functions.len() == 2;
        if down {
            assert!(matches!(next(&mut world), PathEvent::Down(DownReason::Lost(_))));
        }
        // Whatever is open is fenced by a login that reinstates the session.
        let sessions = world.dialled.len();
        world.with(|path, cx| path.fence(cx));
        loop {
            match next(&mut world) {
                PathEvent::Fenced => break,
                PathEvent::Down(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(world.dialled.len() > sessions, error == "InDoubt", "{managed:?}");
    }
}

#[test]
fn who_waits_for_ever_waits_on() {
    let mut settings = settings();
    (settings.timeouts.command, settings.timeouts.ping) = (Duration::ZERO, Duration::ZERO);
    let mut world = crate::world(settings, &target::TargetLimits::default());
    world.script =
        Some(ScriptedTarget::new(
            |cdb| if cdb[0] == 0x28 { ScriptedAnswer::Silence } else { honest_answer(cdb) },
        ));
    up(&mut world);
    let room = delivery::payload_for_read(&world.pool, 512);
    world.with(|path, cx| path.submit(cx, IoId(7), Op::Read(span(0, 1)), room)).unwrap();
    assert!(!world.run(Duration::from_secs(100_000), |world| world.path.poll_event().is_some()));
    world.with(|path, cx| path.cancel(cx, IoId(7)));
    let PathEvent::Done { how: Err(how), .. } = next(&mut world) else { panic!() };
    assert_eq!(format!("{how:?}"), "Failed(Failed(Aborted))");
}

/// So many asynchronous messages, or pings, that what is behind them is parsed only when they were taken.
fn burst(kind: u8) -> Vec<u8> {
    let mut pdu = AsyncMessage::new();
    pdu.event = AsyncEvent(0xff);
    let mut ping = NopIn::new();
    (ping.itt, ping.ttt) = (Itt::NONE, Ttt::new(7));
    let bhs = if kind == 0 { pdu.as_bhs() } else { ping.as_bhs() };
    bhs.bytes().repeat(64)
}

#[test]
fn a_burst_an_answer_and_a_bad_pdu_in_one_segment_do_not_end_the_process_nor_lose_the_operation() {
    for kind in [0, 1] {
        for bad in [0x3e, 0x20, 0x25] {
            let mut script = ScriptedTarget::new(honest_answer);
            script.mangle = Some(Box::new(move |said| {
                if said.first().is_some_and(|pdu| pdu[0] & 0x3f == 0x25 && pdu.len() == 48 + 512) {
                    said.insert(0, burst(kind));
                    let mut last = vec![0; 48];
                    last[0] = bad;
                    said.push(last);
                }
            }));
            let mut world = against(script);
            up(&mut world);
            let room = delivery::payload_for_read(&world.pool, 512);
            let (how, payload) = run(&mut world, Op::Read(span(0, 1)), room);
            assert_eq!(how, Ok(Outcome::Complete), "the answer had come: {kind} {bad:x}");
            assert!(delivery::payload_bytes(payload).iter().all(|byte| *byte == 0x5a));

            let PathEvent::Down(DownReason::Lost(_)) = next(&mut world) else { panic!("{kind} {bad:x}") };
            up(&mut world);
        }
    }
}

#[test]
fn a_list_of_targets_behind_a_burst_and_before_a_bad_pdu_is_not_lost() {
    for kind in [0, 1] {
        let mut script = ScriptedTarget::new(honest_answer);
        script.mangle = Some(Box::new(move |said| {
            if said.first().is_some_and(|pdu| pdu[0] & 0x3f == 0x24) {
                said.insert(0, burst(kind));
                said.push(vec![0x3e; 48]);
            }
        }));
        let question = DiscoverySettings {
            portal: "127.0.0.1:3260".parse().unwrap(),
            initiator: "iqn.2026-11.test:host".to_owned(),
            isid: Isid::random([1, 2, 3], 4),
            credentials: None,
            target: None,
            timeouts: Timeouts::default(),
            source: endpoint::DialSource::default(),
        };
        let mut world = crate::world_of(Discovery::new(question), &target::TargetLimits::default());
        world.script = Some(script);
        world.with(|discovery, cx| discovery.start(cx));
        let mut outcome = None;
        world.run(Duration::from_secs(60), |world| {
            outcome = world.path.poll_outcome();
            outcome.is_some()
        });
        let targets = outcome.expect("an outcome").expect("the list had come");
        assert_eq!(targets.records.len(), 1, "{kind}");
    }
}
