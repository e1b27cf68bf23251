//! Controllers whose path is inaccessible and reports no size of the namespace (NVMe Base 2.1 §8.1.1).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use blockwire_multipath::nvme::NvmePath;
use blockwire_multipath::{DownReason, Path, PathEvent};
use volume::{Failure, IoId, Op, PathAccess, Refusal, Span};

use crate::hostile::{Answer, World, property};
use crate::settings;

const GROUP: u8 = 7;

/// A controller with ANA and a namespace of 1,024 blocks in group 7, whose state and size are told as these say.
pub fn controller(access: Rc<Cell<u8>>, tells: Rc<Cell<bool>>) -> impl FnMut(&[u8]) -> Answer {
    move |sqe| {
        let mut page = vec![0; 4096];
        match (sqe[0], sqe[40]) {
            (0x7f, _) if sqe[4] == 4 && sqe[44] == 8 => Some((0x0001_0200, vec![])),
            (0x7f, _) => property(sqe, 1),
            (6, 1) => {
                (page[77], page[78], page[259]) = (5, 1, 3);
                page[80..84].copy_from_slice(&0x0001_0200_u32.to_le_bytes());
                (page[512], page[513], page[514], page[516], page[536]) = (0x66, 0x44, 128, 4, 1);
                (page[111], page[320], page[540]) = (1, 10, 4);
                (page[1792], page[1796]) = (0x44, 1);
                // CMIC: ANA. ANAGRPMAX, NANAGRPID.
                (page[76], page[344], page[348]) = (8, 8, 1);
                Some((0, page))
            }
            (6, 0) => {
                (page[92], page[130]) = (GROUP, 9);
                if tells.get() {
                    (page[1], page[9]) = (4, 4);
                }
                Some((0, page))
            }
            // The ANA log: one group without its namespaces.
            (2, 0x0c) => {
                let mut log = vec![0; 48];
                (log[8], log[16], log[32]) = (1, GROUP, access.get());
                Some((0, log))
            }
            (2, _) if sqe[4] == 1 => Some((0, vec![0x5a; 512])),
            (2, _) => Some((0, page)),
            // Events are not told.
            (0x0c, _) => None,
            _ => Some((0, vec![])),
        }
    }
}

fn next(world: &mut World<NvmePath>) -> PathEvent {
    world.until(Duration::from_secs(30), Path::poll_event)
}

#[test]
fn a_path_that_is_inaccessible_and_tells_no_size_is_up_and_not_given_up() {
    let (access, tells) = (Rc::new(Cell::new(3)), Rc::new(Cell::new(false)));
    let mut world = World::new(NvmePath::new(settings()), controller(access.clone(), tells.clone()));
    world.host(|path, cx| path.connect(cx));
    let PathEvent::Up(info) = next(&mut world) else { panic!("it comes up") };
    assert_eq!((info.geometry, info.access), (None, PathAccess::Inaccessible));
    // Nothing goes by it, and nothing that is submitted fails for good.
    world.host(|path, cx| path.submit(cx, IoId(1), Op::Flush, buf::Payload::None)).unwrap();
    let PathEvent::Done { how: Err(error), .. } = next(&mut world) else { panic!("it ends") };
    assert!(format!("{error:?}").starts_with("NotDone"), "{error:?}");
    // It serves again: all of it is asked again.
    access.set(1);
    tells.set(true);
    match next(&mut world) {
        PathEvent::Down(DownReason::Lost(why)) => assert!(why.contains("identified again"), "{why}"),
        other => panic!("{other:?}"),
    }
    world.host(|path, cx| path.connect(cx));
    let PathEvent::Up(info) = next(&mut world) else { panic!("it comes up") };
    assert_eq!((info.geometry.unwrap().blocks, info.access), (1024, PathAccess::Optimized));
}

#[test]
fn a_namespace_without_a_size_in_no_group_is_not_there() {
    let (access, tells) = (Rc::new(Cell::new(3)), Rc::new(Cell::new(false)));
    let mut honest = controller(access, tells);
    let mut world = World::new(NvmePath::new(settings()), move |sqe| {
        let answer = honest(sqe);
        if (sqe[0], sqe[40]) == (6, 0) { Some((0, vec![0; 4096])) } else { answer }
    });
    world.host(|path, cx| path.connect(cx));
    assert!(matches!(next(&mut world), PathEvent::Down(DownReason::Absent(_))));
}

#[test]
fn a_path_asks_the_controller_where_the_namespace_ends() {
    let (access, tells) = (Rc::new(Cell::new(1)), Rc::new(Cell::new(true)));
    let mut world = World::new(NvmePath::new(settings()), controller(access, tells));
    world.host(|path, cx| path.connect(cx));
    assert!(matches!(next(&mut world), PathEvent::Up(_)));
    // The namespace has grown beyond the 1,024 blocks that this path has heard of.
    let room = buf::Payload::In(world.pool.take_sg(buf::MemoryClass::Solicited, 512).unwrap());
    let op = Op::Read(Span { lba: 1500, blocks: 1 });
    world.host(|path, cx| path.submit(cx, IoId(1), op, room)).unwrap();
    assert!(matches!(next(&mut world), PathEvent::Done { how: Ok(_), .. }));
    // Numbers that no block can have are our own to refuse.
    let room = buf::Payload::In(world.pool.take_sg(buf::MemoryClass::Solicited, 1024).unwrap());
    let op = Op::Read(Span { lba: u64::MAX, blocks: 2 });
    world.host(|path, cx| path.submit(cx, IoId(2), op, room)).unwrap();
    let PathEvent::Done { how: Err(error), .. } = next(&mut world) else { panic!("it ends") };
    assert!(matches!(error, blockwire_multipath::IoError::Failed(Failure::Refused(Refusal::OutOfRange))));
}
