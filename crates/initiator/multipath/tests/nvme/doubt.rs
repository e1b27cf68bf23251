//! Another namespace may be attached while the association stays: nothing is written before it is identified,
//! and a controller that does not identify it is given up.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use blockwire_multipath::nvme::NvmePath;
use blockwire_multipath::{DownReason, IoError, Path, PathEvent, ReservationOp};
use buf::{MemoryClass, Payload, SgMut};
use volume::{Durability, IoId, Op, Span};

use crate::hostile::{Answer, BROKEN, NOT_NOW, World, flood};
use crate::settings;

/// Namespace Attribute Changed.
const CHANGED: u64 = 0x0004_0002;

/// What the controller says, and what it was asked.
#[derive(Default)]
struct Controller {
    /// The descriptors are refused for now: the namespace is not ready; or for another reason.
    refuses: Cell<bool>,
    is_broken: Cell<bool>,
    /// The list of them is empty.
    is_nameless: Cell<bool>,
    flushes: Cell<u32>,
    /// Nor are they answered at all.
    is_silent: Cell<bool>,
    /// Bytes of the UUID, and of the NGUID of the namespace itself.
    uuid: Cell<u8>,
    nguid: Cell<u8>,
    names: Cell<u32>,
    writes: Cell<u32>,
}

impl Controller {
    fn answer(&self, sqe: &[u8]) -> Answer {
        match (sqe[0], sqe[40]) {
            (0x7f, _) if sqe[4] == 4 && sqe[44] == 8 => Some((0x0001_0300, vec![])),
            (0x0c, _) => None,
            (6, 1) => {
                let (_, mut page) = flood(sqe)?;
                // ONCS: Write Zeroes; VWC.
                (page[520], page[525]) = (8, 1);
                Some((0, page))
            }
            (6, 0) => {
                let (_, mut page) = flood(sqe)?;
                page[104] = self.nguid.get();
                Some((0, page))
            }
            (6, 3) => {
                self.names.set(self.names.get() + 1);
                let mut page = vec![0; 4096];
                (page[0], page[1]) = (3, 16);
                page[4..20].fill(self.uuid.get());
                if self.is_nameless.get() {
                    page.fill(0);
                }
                let answer = match (self.refuses.get(), self.is_broken.get()) {
                    (true, _) => (NOT_NOW, vec![]),
                    (_, true) => (BROKEN, vec![]),
                    (false, false) => (0, page),
                };
                (!self.is_silent.get()).then_some(answer)
            }
            (0, _) if sqe[4] == 1 => {
                self.flushes.set(self.flushes.get() + 1);
                Some((0, vec![]))
            }
            (1 | 8, _) if sqe[4] == 1 => {
                self.writes.set(self.writes.get() + 1);
                Some((0, vec![]))
            }
            _ => flood(sqe),
        }
    }
}

fn rigged() -> (Rc<Controller>, World<NvmePath>) {
    let controller = Rc::new(Controller::default());
    controller.uuid.set(1);
    controller.nguid.set(1);
    let asked = controller.clone();
    let mut world = World::new(NvmePath::new(settings()), move |sqe| asked.answer(sqe));
    world.host(|path, cx| path.connect(cx));
    world.until(Duration::from_secs(5), |path| matches!(path.poll_event()?, PathEvent::Up(_)).then_some(()));
    steps(&mut world);
    (controller, world)
}

/// What needs no time happens.
fn steps(world: &mut World<NvmePath>) {
    (0..50).for_each(|_| _ = world.step());
}

fn memory(world: &World<NvmePath>, len: usize) -> SgMut {
    let mut memory = world.pool.take_sg(MemoryClass::Solicited, len).unwrap();
    memory.zero(0..len);
    memory
}

fn writes(world: &mut World<NvmePath>) -> Result<(), ()> {
    let data = Payload::Out(memory(world, 512).freeze());
    let op = Op::Write(Span { lba: 0, blocks: 1 }, Durability::Cached);
    world.host(|path, cx| path.submit(cx, IoId(1), op, data)).map_err(drop)
}

fn reads(world: &mut World<NvmePath>) {
    let room = Payload::In(memory(world, 4096));
    let op = Op::Read(Span { lba: 0, blocks: 8 });
    world.host(|path, cx| path.submit(cx, IoId(2), op, room)).unwrap();
    ends_well(world);
}

#[track_caller]
fn ends_well(world: &mut World<NvmePath>) {
    let how = world.until(Duration::from_millis(100), |path| match path.poll_event()? {
        PathEvent::Done { how, .. } => Some(how),
        PathEvent::Changed(_) => None,
        other => panic!("{other:?}"),
    });
    assert!(how.is_ok(), "{how:?}");
}

/// Why the path ends, and after how long.
#[track_caller]
fn ends(world: &mut World<NvmePath>) -> (String, Duration) {
    let begun = world.now;
    let why = world.until(Duration::from_secs(60), |path| match path.poll_event()? {
        PathEvent::Down(why) => Some(why),
        PathEvent::Done { how: Err(IoError::NotDone(_)), .. } | PathEvent::Changed(_) => None,
        other => panic!("{other:?}"),
    });
    let DownReason::Lost(text) = why else { panic!("{why:?}") };
    (text, world.now.since(begun))
}

#[test]
fn nothing_is_written_before_it_is_told_which_namespace_stands_there() {
    let (controller, mut world) = rigged();
    writes(&mut world).unwrap();
    ends_well(&mut world);
    assert_eq!(controller.writes.get(), 1);
    controller.refuses.set(true);
    world.tell(CHANGED);
    steps(&mut world);
    for _ in 0..3 {
        assert!(writes(&mut world).is_err());
        assert!(
            world.host(|path, cx| path.submit_reservation_op(cx, IoId(3), ReservationOp::Report)).is_err()
        );
        reads(&mut world);
    }
    // It is the same: all goes on.
    controller.refuses.set(false);
    let begun = world.now;
    while writes(&mut world).is_err() {
        assert!(world.now.since(begun) < Duration::from_secs(1), "it is told, and nobody hears it");
        world.pass(Duration::from_millis(5));
    }
    ends_well(&mut world);
    assert_eq!(controller.writes.get(), 2);
}

#[test]
fn who_does_not_tell_which_namespace_stands_there_is_given_up() {
    for is_silent in [false, true] {
        let (controller, mut world) = rigged();
        controller.is_broken.set(true);
        controller.is_silent.set(is_silent);
        world.tell(CHANGED);
        steps(&mut world);
        assert!(writes(&mut world).is_err());
        let (text, took) = ends(&mut world);
        let is_named = text.contains("does not report which volume") || is_silent;
        assert!(is_named && took < Duration::from_secs(11), "{text} {took:?}");
        assert_eq!(controller.writes.get(), 0);
    }
}

#[test]
fn a_long_operation_does_not_go_on_on_another_namespace() {
    let (controller, mut world) = rigged();
    // Its commands take 20 s each.
    world.zeroes = Duration::from_secs(20);
    let op = Op::WriteZeroes { span: Span { lba: 0, blocks: 1024 }, unmap: false };
    world.host(|path, cx| path.submit(cx, IoId(4), op, Payload::None)).unwrap();
    steps(&mut world);
    assert_eq!(controller.writes.get(), 1);
    world.pass(Duration::from_secs(18));
    controller.is_broken.set(true);
    world.tell(CHANGED);
    let (text, _) = ends(&mut world);
    assert!(text.contains("does not report which volume"), "{text}");
    assert_eq!(controller.writes.get(), 1, "but for what was on its way");
}

#[test]
fn descriptors_that_are_refused_do_not_keep_the_namespace_from_being_looked_at() {
    let (controller, mut world) = rigged();
    controller.refuses.set(true);
    controller.nguid.set(2);
    world.tell(CHANGED);
    let (text, took) = ends(&mut world);
    assert!(text.contains("another volume"), "{text}");
    assert!(took < Duration::from_millis(10), "{took:?}");
}

#[test]
fn an_event_asks_at_once_for_what_was_refused_before() {
    let (controller, mut world) = rigged();
    controller.refuses.set(true);
    world.tell(CHANGED);
    let asked = controller.clone();
    world.until(Duration::from_secs(9), |_| (asked.names.get() > 7).then_some(()));
    steps(&mut world);
    // The next would be asked after more than a second.
    controller.refuses.set(false);
    controller.uuid.set(2);
    world.tell(CHANGED);
    let (text, took) = ends(&mut world);
    assert!(text.contains("another volume"), "{text}");
    assert!(took < Duration::from_millis(50), "{took:?}");
}

#[test]
fn a_list_of_names_that_lacks_what_was_named_does_not_settle_who_stands_there() {
    for names_another in [false, true] {
        let (controller, mut world) = rigged();
        match names_another {
            // The descriptors tell nothing any more.
            false => controller.is_nameless.set(true),
            // The namespace itself does not.
            true => controller.nguid.set(0),
        }
        world.tell(CHANGED);
        let (text, took) = ends(&mut world);
        assert!(text.contains("does not report which volume"), "{text}");
        assert!(took < Duration::from_millis(100), "{took:?}");
        assert!(writes(&mut world).is_err());
        assert_eq!(controller.writes.get(), 0);
    }
}

#[test]
fn a_namespace_that_is_not_ready_for_long_is_not_given_up() {
    let (controller, mut world) = rigged();
    controller.refuses.set(true);
    world.tell(CHANGED);
    steps(&mut world);
    // Longer than a path that is down is kept.
    for _ in 0..800 {
        world.pass(Duration::from_secs(1));
        assert!(writes(&mut world).is_err(), "who stands there is not known");
        assert!(world.host(|path, _| path.poll_event()).is_none());
    }
    controller.refuses.set(false);
    world.pass(Duration::from_secs(3));
    writes(&mut world).unwrap();
    ends_well(&mut world);
}

#[test]
fn names_that_are_not_ready_at_the_start_are_not_done_without() {
    let controller = Rc::new(Controller::default());
    controller.uuid.set(1);
    controller.refuses.set(true);
    let asked = controller.clone();
    let mut world = World::new(NvmePath::new(settings()), move |sqe| asked.answer(sqe));
    world.host(|path, cx| path.connect(cx));
    let event = world.until(Duration::from_secs(20), |path| path.poll_event());
    assert!(matches!(event, PathEvent::Down(DownReason::Lost(_))), "{event:?}");
}

#[test]
fn what_another_namespace_flushes_is_not_believed() {
    let (controller, mut world) = rigged();
    let flushes = |world: &mut World<NvmePath>| {
        world.host(|path, cx| path.submit(cx, IoId(5), Op::Flush, Payload::None)).map_err(drop)
    };
    flushes(&mut world).unwrap();
    ends_well(&mut world);
    assert_eq!(controller.flushes.get(), 1);
    controller.refuses.set(true);
    world.tell(CHANGED);
    steps(&mut world);
    assert!(flushes(&mut world).is_err());
    assert_eq!(controller.flushes.get(), 1);
}

#[test]
fn what_a_doubt_holds_does_not_hold_up_the_end_of_the_path() {
    let (controller, mut world) = rigged();
    world.zeroes = Duration::from_secs(2);
    let op = Op::WriteZeroes { span: Span { lba: 0, blocks: 1024 }, unmap: false };
    world.host(|path, cx| path.submit(cx, IoId(4), op, Payload::None)).unwrap();
    steps(&mut world);
    controller.refuses.set(true);
    world.tell(CHANGED);
    world.pass(Duration::from_secs(3));
    assert_eq!(controller.writes.get(), 1, "the rest of it is held");
    let begun = world.now;
    world.host(|path, cx| path.disconnect(cx, Duration::from_secs(60)));
    world.until(Duration::from_secs(61), |path| match path.poll_event()? {
        PathEvent::Done { how: Err(IoError::NotDone(_)), .. } => Some(()),
        other => panic!("{other:?}"),
    });
    assert!(world.now.since(begun) < Duration::from_secs(1), "it is told at once");
}
