//! Raw commands over NVMe/TCP: sent once, answered as they are, ended by the clock or with the association.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use blockwire_multipath::nvme::{NvmePath, Settings};
use blockwire_multipath::{
    DownReason, NvmeCommand, Path, PathEvent, RawAnswer, RawCommand, RawCompletion, RawError,
};
use buf::{MemoryClass, Payload};
use volume::{Durability, IoId, Op, Span};

use crate::world::World;
use crate::{hostile, settings, silent, up};
use testkit::delivery::payload_bytes;

fn admin(opcode: u8, cdw10: u32, payload: Payload) -> RawCommand {
    let command = NvmeCommand { opcode, cdw10: [cdw10, 0, 0, 0, 0, 0], ..NvmeCommand::default() };
    RawCommand::nvme_admin(command, payload).map_err(|(why, _)| why).unwrap()
}

fn io(opcode: u8, lba: u32, blocks: u32, payload: Payload) -> RawCommand {
    let command = NvmeCommand { opcode, cdw10: [lba, 0, blocks - 1, 0, 0, 0], ..NvmeCommand::default() };
    RawCommand::nvme_io(command, payload).map_err(|(why, _)| why).unwrap()
}

fn start(world: &mut World<NvmePath>, id: u64, command: RawCommand) {
    assert!(world.host(|path, cx| path.submit_raw(cx, IoId(id), command)).is_ok(), "there is room");
}

fn ended(world: &mut World<NvmePath>, id: u64) -> RawCompletion {
    world.until("raw end", |events| {
        let of = |event: &PathEvent| matches!(event, PathEvent::RawDone(done) if done.id == IoId(id));
        match events.remove(events.iter().position(of)?) {
            PathEvent::RawDone(done) => Some(done),
            _ => None,
        }
    })
}

fn run(world: &mut World<NvmePath>, command: RawCommand) -> RawCompletion {
    start(world, 900, command);
    ended(world, 900)
}

#[test]
fn admin_and_io_commands_are_answered_as_they_are() {
    let mut world = up(settings());
    let room = world.room(4096);
    let done = run(&mut world, admin(0x06, 1, room));
    assert!(matches!(done.how, Ok(RawAnswer::Nvme { status: 0, transferred: 4096, .. })), "{:?}", done.how);
    assert!(payload_bytes(done.payload)[768..].starts_with(b"nqn."));
    // Get Features of Keep Alive Timer: what counts is in dword 0.
    let done = run(&mut world, admin(0x0a, 0x0f, Payload::None));
    let Ok(RawAnswer::Nvme { status: 0, result, .. }) = done.how else { panic!("{:?}", done.how) };
    assert_ne!(result & 0xffff_ffff, 0);
    // A write goes to the namespace of the path, and what it wrote is what is read.
    let content = vec![0x3c; 1024];
    let out = world.out(&content);
    let done = run(&mut world, io(0x01, 5, 2, out));
    assert!(matches!(done.how, Ok(RawAnswer::Nvme { status: 0, transferred: 1024, .. })), "{:?}", done.how);
    let room = world.room(1024);
    let (how, payload) = world.run(Op::Read(Span { lba: 5, blocks: 2 }), room);
    assert!(how.is_ok() && payload_bytes(payload) == content);
    // Refused by the controller: that is an answer, and memory that was not filled is not handed out.
    let room = world.room(512);
    let done = run(&mut world, io(0x02, u32::MAX, 1, room));
    let Ok(RawAnswer::Nvme { status, transferred: 0, .. }) = done.how else { panic!("{:?}", done.how) };
    assert_eq!((status & 0x7ff, done.payload.len()), (0x80, 0), "LBA Out of Range");
    let cdb = RawCommand::scsi(&[0; 6], Payload::None).map_err(|(why, _)| why).unwrap();
    assert_eq!(run(&mut world, cdb).how, Err(RawError::WrongProtocol));
    world.host(|path, cx| path.disconnect(cx, Duration::from_secs(5)));
    assert_eq!(world.down(), DownReason::Ended);
}

#[test]
fn what_was_lost_is_in_doubt_and_is_fenced_as_a_write_is() {
    for queue in [0, 1] {
        let mut world = up(settings());
        world.cut(queue);
        let out = world.out(&[7; 512]);
        match queue {
            0 => start(&mut world, 901, admin(0x0a, 7, Payload::None)),
            _ => start(&mut world, 901, io(0x01, 5, 1, out)),
        }
        world.step();
        world.reset(queue, true);
        assert_eq!(ended(&mut world, 901).how, Err(RawError::InDoubt));
        assert!(matches!(world.down(), DownReason::Lost(_)));
        world.host(|path, cx| path.fence(cx));
        world.until("fence", |events| {
            let at = events.iter().position(|event| matches!(event, PathEvent::Fenced))?;
            events.remove(at);
            Some(())
        });
        world.connect().unwrap();
        let out = world.out(&[8; 512]);
        world.run(Op::Write(Span { lba: 5, blocks: 1 }, Durability::Stable), out).0.unwrap();
    }
}

#[test]
fn the_end_of_the_path_waits_for_a_command_of_the_admin_queue_and_then_fences() {
    let mut world = up(settings());
    // The I/O queue is lost; the admin queue stands, resets the controller, and still has a command.
    world.cut(1);
    let out = world.out(&[7; 512]);
    start(&mut world, 902, io(0x01, 5, 1, out));
    world.step();
    start(&mut world, 903, admin(0x0a, 7, Payload::None));
    world.host(|path, cx| path.fence(cx));
    world.reset(1, true);
    assert_eq!(ended(&mut world, 902).how, Err(RawError::InDoubt));
    let _answered_or_lost = ended(&mut world, 903);
    assert!(matches!(world.down(), DownReason::Lost(_)));
    let begun = world.now;
    world.host(|path, cx| path.fence(cx));
    world.until("fence", |events| {
        let at = events.iter().position(|event| matches!(event, PathEvent::Fenced))?;
        events.remove(at);
        Some(())
    });
    assert!(world.now.since(begun) < Duration::from_millis(100));
}

/// A controller of fixed bytes that does not answer opcode C0h, answers C2h with 512 bytes, and counts Aborts.
fn scripted(settings: Settings) -> (Rc<Cell<u32>>, hostile::World<NvmePath>) {
    let aborts = Rc::new(Cell::new(0));
    let counted = aborts.clone();
    let mut honest = silent::controller(Rc::new(Cell::new(1)), Rc::new(Cell::new(true)));
    let mut world = hostile::World::new(NvmePath::new(settings), move |sqe| match sqe[0] {
        0xc0 => None,
        0xc2 => Some((0x1234_5678_9abc, vec![0x5a; 512])),
        0x08 => {
            counted.set(counted.get() + 1);
            // It was not aborted.
            Some((1, vec![]))
        }
        _ => honest(sqe),
    });
    world.host(|path, cx| path.connect(cx));
    assert!(matches!(world.until(Duration::from_secs(30), Path::poll_event), PathEvent::Up(_)));
    (aborts, world)
}

#[test]
fn memory_is_cut_to_what_the_controller_sent() {
    let (_, mut world) = scripted(settings());
    let room = Payload::In(world.pool.take_sg(MemoryClass::Wire, 4096).unwrap());
    world.host(|path, cx| path.submit_raw(cx, IoId(1), admin(0xc2, 0, room))).unwrap();
    let PathEvent::RawDone(done) = world.until(Duration::from_secs(5), Path::poll_event) else {
        panic!("it ends")
    };
    let wanted = RawAnswer::Nvme { status: 0, result: 0x1234_5678_9abc, transferred: 512 };
    assert_eq!(done.how, Ok(wanted));
    assert_eq!(payload_bytes(done.payload), [0x5a; 512]);
}

#[test]
fn a_command_that_is_never_answered_is_aborted_and_then_its_association_ends() {
    let (aborts, mut world) = scripted(settings());
    let begun = world.now;
    world.host(|path, cx| path.submit_raw(cx, IoId(1), admin(0xc0, 0, Payload::None))).unwrap();
    let PathEvent::RawDone(done) = world.until(Duration::from_secs(120), Path::poll_event) else {
        panic!("it ends")
    };
    assert_eq!(done.how, Err(RawError::InDoubt));
    assert!(world.now.since(begun) >= Duration::from_secs(30));
    assert_eq!(aborts.get(), 1);
    assert!(matches!(world.until(Duration::from_secs(30), Path::poll_event), PathEvent::Down(_)));
}
