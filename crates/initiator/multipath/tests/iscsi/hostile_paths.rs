//! Targets whose paths are closed, offline, elsewhere, or lead to another volume.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use blockwire_multipath::{DownReason, Path, PathEvent};
use buf::Payload;
use iscsi::name::TargetAddress;
use volume::{Durability, IoId, Op, Outcome, PathAccess};

use crate::{next, run, span, up};
use testkit::delivery;
use testkit::scripted_iscsi_target::{ScriptedAnswer, ScriptedTarget, honest_answer};

use crate::hostile::{against, honest_target_except};

/// What a path that is closed refuses need not wait on another one, which must not find this one open.
#[test]
fn a_closed_path_says_so_before_its_operations_end() {
    for (sense, access) in [(0x040c, PathAccess::Inaccessible), (0x040a, PathAccess::Transition)] {
        let mut world = honest_target_except(0x28, None, None, ScriptedAnswer::Check(2, sense));
        up(&mut world);
        let room = delivery::payload_for_read(&world.pool, 512);
        world.with(|path, cx| path.submit(cx, IoId(7), Op::Read(span(0, 1)), room)).unwrap();
        let PathEvent::Changed(info) = next(&mut world) else { panic!("{sense:x}: it is not told") };
        assert_eq!(info.access, access);
        let PathEvent::Done { how: Err(error), .. } = next(&mut world) else { panic!("{sense:x}") };
        assert_eq!(format!("{error:?}"), "NotDone(0ns)");
    }
}

/// A path that does not serve, and refuses READ CAPACITY too (SPC-4 §5.15.2.4.4): nothing is known of its blocks.
#[test]
fn a_path_whose_capacity_is_not_told_does_not_show_a_volume_of_no_blocks() {
    for sense in [0x040c, 0x040b, 0x040a] {
        let state = Rc::new(Cell::new(false));
        let serves = state.clone();
        let mut world = against(ScriptedTarget::new(move |cdb| match (cdb[0], honest_answer(cdb)) {
            (0x00 | 0x28 | 0x9e | 0x25 | 0x1a, _) if !serves.get() => ScriptedAnswer::Check(2, sense),
            (0xa3, ScriptedAnswer::Good(mut data)) if !serves.get() => {
                data[4] = if sense == 0x040a { 0x0f } else { 0x03 };
                ScriptedAnswer::Good(data)
            }
            // Blocks of 4,096 bytes.
            (0x9e, ScriptedAnswer::Good(mut data)) => {
                data[10] = 0x10;
                ScriptedAnswer::Good(data)
            }
            (_, answer) => answer,
        }));
        let info = up(&mut world);
        assert_eq!((info.geometry, info.access.allows_io()), (None, false), "{sense:x}");
        assert!(info.uuid.is_some(), "whose path it is, is known");
        world.with(|path, cx| path.submit(cx, IoId(1), Op::Flush, Payload::None)).unwrap();
        let PathEvent::Done { how: Err(error), .. } = next(&mut world) else { panic!("{sense:x}") };
        assert!(format!("{error:?}").starts_with("NotDone"), "{error:?}");
        state.set(true);
        let PathEvent::Changed(info) = next(&mut world) else { panic!("{sense:x}: it is not told") };
        let geometry = info.geometry.unwrap();
        assert_eq!((geometry.blocks, geometry.logical, info.access), (1000, 4096, PathAccess::Optimized));
        // What it does not tell any more is as it was.
        state.set(false);
        let room = delivery::payload_for_read(&world.pool, 4096);
        world.with(|path, cx| path.submit(cx, IoId(7), Op::Read(span(0, 1)), room)).unwrap();
        for _ in 0..2 {
            if let PathEvent::Changed(info) = next(&mut world) {
                assert_eq!((info.geometry, info.access.allows_io()), (Some(geometry), false));
            }
        }
    }
}

/// Where the volume ends is the target's to say.
#[test]
fn a_path_that_has_not_heard_of_a_growth_asks_the_target() {
    let mut world = against(ScriptedTarget::new(honest_answer));
    up(&mut world);
    let room = delivery::payload_for_read(&world.pool, 512);
    assert_eq!(run(&mut world, Op::Read(span(1500, 1)), room).0, Ok(Outcome::Complete));
    let room = delivery::payload_for_read(&world.pool, 1024);
    let how = run(&mut world, Op::Read(span(u64::MAX, 2)), room).0;
    assert_eq!(how, Err("Failed(Refused(OutOfRange))".to_owned()));
}

/// However long a path has been closed, it is looked at when it is needed.
#[test]
fn a_closed_path_is_looked_at_when_no_other_serves() {
    let open = Rc::new(RefCell::new(true));
    let state = open.clone();
    let mut world = against(ScriptedTarget::new(move |cdb| match cdb[0] {
        0x00 | 0x28 if !*state.borrow() => ScriptedAnswer::Check(2, 0x040c),
        _ => honest_answer(cdb),
    }));
    up(&mut world);
    *open.borrow_mut() = false;
    let room = delivery::payload_for_read(&world.pool, 512);
    assert!(run(&mut world, Op::Read(span(0, 1)), room).0.is_err());
    world.run(Duration::from_secs(60), |_| false);
    *open.borrow_mut() = true;
    let before = world.now;
    world.with(|path, _| path.recheck_access());
    let PathEvent::Changed(info) = next(&mut world) else { panic!("it does not look") };
    assert!(info.access.allows_io() && world.now.since(before) < Duration::from_millis(50));
}

#[test]
fn a_port_that_is_offline_is_looked_at_again_and_others_are_used() {
    let offline = Rc::new(RefCell::new(false));
    let seen = offline.clone();
    let mut world =
        against(ScriptedTarget::new(move |cdb| match (cdb[0], *seen.borrow(), honest_answer(cdb)) {
            (0x28, true, _) => ScriptedAnswer::Check(2, 0x0412),
            (0xa3, true, ScriptedAnswer::Good(mut data)) => {
                data[4] = 0x0e;
                ScriptedAnswer::Good(data)
            }
            (.., answer) => answer,
        }));
    up(&mut world);
    *offline.borrow_mut() = true;
    let room = delivery::payload_for_read(&world.pool, 512);
    world.with(|path, cx| path.submit(cx, IoId(7), Op::Read(span(0, 1)), room)).unwrap();
    let mut undone = false;
    while !undone {
        match next(&mut world) {
            PathEvent::Done { how, .. } => {
                undone = {
                    assert!(matches!(how, Err(blockwire_multipath::IoError::NotDone(_))), "{how:?}");
                    true
                }
            }
            PathEvent::Changed(info) => assert_eq!(info.access, PathAccess::Inaccessible),
            other => panic!("{other:?}"),
        }
    }
    *offline.borrow_mut() = false;
    while !matches!(next(&mut world), PathEvent::Changed(info) if info.access.allows_io()) {}
}

#[test]
fn redirections_are_followed_but_not_for_ever() {
    let to = |text: &str| TargetAddress::parse(text).unwrap();
    let cases = [
        (vec![to("127.0.0.1:3261"), to("[::1]:3262")], None),
        (vec![to("127.0.0.1:3260")], Some("round and round")),
        (vec![to("127.0.0.1:3261"), to("127.0.0.1:3260")], Some("round and round")),
        ((1..=9).map(|n| to(&format!("127.0.0.1:{}", 4000 + n))).collect(), Some("round and round")),
        (vec![to("elsewhere.example:3260")], Some("connect to that address")),
    ];
    for (moves, complaint) in cases {
        let mut script = ScriptedTarget::new(honest_answer);
        script.moves = moves.into();
        let mut world = against(script);
        world.with(|path, cx| path.connect(cx));
        match (next(&mut world), complaint) {
            (PathEvent::Up(info), None) => {
                assert_eq!(info.terms[0], ("TargetAddress".to_owned(), "[::1]:3262".to_owned()));
            }
            (PathEvent::Down(DownReason::Refused(text)), Some(complaint)) => {
                assert!(text.contains(complaint), "{text}")
            }
            other => panic!("{other:?}"),
        }
        assert!(world.dialled.len() <= 5);
    }
}

#[test]
fn a_change_is_told_and_another_volume_ends_the_path() {
    let state = Rc::new(RefCell::new((false, 9u8, 0xe7u8)));
    let seen = state.clone();
    let mut world = against(ScriptedTarget::new(move |cdb| {
        let mut state = seen.borrow_mut();
        match (cdb[0], cdb[1], cdb[2], honest_answer(cdb)) {
            (0x28, ..) if std::mem::take(&mut state.0) => ScriptedAnswer::Check(6, 0x2a09),
            (0x2a, ..) if std::mem::take(&mut state.0) => ScriptedAnswer::Check(6, 0x3f0e),
            (0x12, 1, 0x83, ScriptedAnswer::Good(mut data)) => {
                data[10..26].fill(state.1);
                ScriptedAnswer::Good(data)
            }
            (0x9e, 0x10, _, ScriptedAnswer::Good(mut data)) => {
                data[7] = state.2;
                ScriptedAnswer::Good(data)
            }
            (.., answer) => answer,
        }
    }));
    up(&mut world);
    *state.borrow_mut() = (true, 9, 0xff);
    let room = delivery::payload_for_read(&world.pool, 512);
    world.with(|path, cx| path.submit(cx, IoId(7), Op::Read(span(0, 1)), room)).unwrap();
    let (mut told, mut read) = (false, false);
    while !told || !read {
        match next(&mut world) {
            PathEvent::Changed(info) => told = info.geometry.unwrap().blocks == 1024,
            PathEvent::Done { how: Ok(_), .. } => read = true,
            other => panic!("{other:?}"),
        }
    }
    *state.borrow_mut() = (true, 8, 0xff);
    let payload = delivery::payload_with_bytes(&world.pool, &[1; 512]);
    world
        .with(|path, cx| path.submit(cx, IoId(8), Op::Write(span(0, 1), Durability::Cached), payload))
        .unwrap();
    loop {
        match next(&mut world) {
            PathEvent::Done { how: Err(how), .. } => {
                assert_eq!(format!("{how:?}"), "NotDone(0ns)", "it does not go to the other volume");
            }
            PathEvent::Down(DownReason::Lost(text)) => {
                break assert!(text.contains("another volume"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
}
