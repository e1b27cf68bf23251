//! Operations over a path.

use std::time::Duration;

use blockwire_multipath::nvme::Settings;
use blockwire_multipath::{DownReason, IoError, Path};
use buf::Payload;
use volume::{Durability, Failure, Fault, Op, Outcome, PathAccess, Refusal, Span, Uuid};

use crate::world::BLOCKS;
use crate::{settings, up};
use testkit::delivery::payload_bytes;

fn pattern(lba: u64, blocks: u64, mark: u8) -> Vec<u8> {
    (0..blocks * 512).map(|at| (lba * 512 + at) as u8 ^ (at >> 8) as u8 ^ mark).collect()
}

fn span(lba: u64, blocks: u64) -> Span {
    Span { lba, blocks }
}

#[test]
fn a_path_identifies_reads_writes_and_flushes() {
    for (digests, queues) in [(false, 1), (true, 3)] {
        let settings = Settings { header_digest: digests, data_digest: digests, queues, ..settings() };
        let mut world = crate::World::new(super::NvmePath::new(settings), crate::exports());
        let info = world.connect().unwrap();
        assert_eq!(info.uuid, Some(Uuid([7; 16])));
        let geometry = info.geometry.unwrap();
        assert_eq!((geometry.blocks, geometry.logical), (BLOCKS, 512));
        assert!(info.access == PathAccess::Optimized && !info.read_only);
        assert_eq!(info.depth, u32::from(queues) * 31);
        assert_eq!((info.product.as_str(), info.serial.as_str()), ("Blockwire 0", "7"));
        for (lba, blocks) in [(0, 1), (7, 16), (100, 1024), (BLOCKS - 5, 5)] {
            let data = pattern(lba, blocks, 1);
            let write = Op::Write(span(lba, blocks), Durability::Stable);
            let out = world.out(&data);
            let (how, payload) = world.run(write, out);
            assert!(matches!(how, Ok(Outcome::Complete)), "{how:?}");
            assert_eq!(payload.len(), data.len());
            let room = world.room(data.len());
            let (how, payload) = world.run(Op::Read(span(lba, blocks)), room);
            assert!(matches!(how, Ok(Outcome::Complete)), "{how:?}");
            assert!(payload_bytes(payload) == data, "{lba} {blocks}");
        }
        assert!(world.run(Op::Flush, Payload::None).0.is_ok());
        world.host(|path, cx| path.disconnect(cx, Duration::from_secs(5)));
        assert_eq!(world.down(), DownReason::Ended);
        assert!((0..world.wires()).all(|wire| world.is_gone(wire)));
    }
}

#[test]
fn commands_without_data_are_cut_to_what_the_controller_takes() {
    let mut world = up(settings());
    let out = world.out(&pattern(0, 64, 9));
    world.run(Op::Write(span(0, 64), Durability::Cached), out).0.unwrap();
    let zeroes = Op::WriteZeroes { span: span(8, 8), unmap: true };
    world.run(zeroes, Payload::None).0.unwrap();
    world.run(Op::Unmap(vec![span(20, 4), span(30, 0), span(40, 8)]), Payload::None).0.unwrap();
    world.run(Op::Verify(span(0, BLOCKS)), Payload::None).0.unwrap();
    world.run(Op::WriteZeroes { span: span(64, BLOCKS - 64), unmap: false }, Payload::None).0.unwrap();
    world.run(Op::Prefetch(span(0, 8)), Payload::None).0.unwrap();
    let room = world.room(64 * 512);
    let read = payload_bytes(world.run(Op::Read(span(0, 64)), room).1);
    let mut wanted = pattern(0, 64, 9);
    for (from, to) in [(8, 16), (20, 24), (40, 48)] {
        wanted[from * 512..to * 512].fill(0);
    }
    assert!(read == wanted);
    for op in [Op::Or(span(0, 1)), Op::Extents(span(0, 8)), Op::WriteSame(span(0, 1))] {
        let (how, _) = world.run(op, Payload::None);
        assert!(matches!(how, Err(IoError::Failed(Failure::Refused(Refusal::Unsupported)))), "{how:?}");
    }
    let room = world.room(1024);
    let (how, payload) = world.run(Op::Read(span(BLOCKS - 1, 2)), room);
    assert!(matches!(how, Err(IoError::Failed(Failure::Refused(Refusal::OutOfRange)))), "{how:?}");
    assert_eq!(payload.len(), 1024);
}

#[test]
fn compare_and_write_is_one_step_and_comes_back_whole() {
    let mut world = up(settings());
    let (old, new) = (pattern(5, 4, 1), pattern(5, 4, 2));
    let out = world.out(&old);
    world.run(Op::Write(span(5, 4), Durability::Cached), out).0.unwrap();
    let both = [old.clone(), new.clone()].concat();
    let out = world.out(&both);
    let (how, payload) = world.run(Op::CompareAndWrite(span(5, 4)), out);
    assert!(how.is_ok(), "{how:?}");
    assert!(payload_bytes(payload) == both);
    let out = world.out(&both);
    let (how, payload) = world.run(Op::CompareAndWrite(span(5, 4)), out);
    assert!(matches!(how, Err(IoError::Failed(Failure::Failed(Fault::Miscompare(_))))), "{how:?}");
    assert!(payload_bytes(payload) == both);
    let out = world.out(&new);
    world.run(Op::Compare(span(5, 4)), out).0.unwrap();
    let out = world.out(&old);
    let (how, _) = world.run(Op::Compare(span(5, 4)), out);
    assert!(matches!(how, Err(IoError::Failed(Failure::Failed(Fault::Miscompare(_))))), "{how:?}");
}

#[test]
fn a_pair_that_no_queue_can_carry_is_refused_and_does_not_wait_for_ever() {
    let mut world = up(Settings { depth: 1, ..settings() });
    let out = world.out(&[0; 1024]);
    let (how, payload) = world.run(Op::CompareAndWrite(span(5, 1)), out);
    assert!(matches!(how, Err(IoError::Failed(Failure::Refused(Refusal::Unsupported)))), "{how:?}");
    assert_eq!(payload.len(), 1024);
    let out = world.out(&[1; 512]);
    world.run(Op::Write(span(5, 1), Durability::Cached), out).0.unwrap();
}

/// The transport's table gives a place away as soon as a command has ended, heard or not.
#[test]
fn operations_may_be_submitted_before_the_ends_of_others_are_heard() {
    let mut world = up(Settings { queues: 2, ..settings() });
    let mut started = Vec::new();
    for _ in 0..40 {
        for _ in 0..8 {
            let room = world.room(512);
            started.push(world.start(Op::Read(span(3, 1)), room));
        }
        world.step();
        world.deliver();
        for _ in 0..8 {
            let room = world.room(512);
            started.push(world.start(Op::Read(span(4, 1)), room));
        }
        while started.len() > 16 {
            let id = started.remove(0);
            assert!(world.wait(id).0.is_ok());
        }
    }
    for id in started {
        assert!(world.wait(id).0.is_ok());
    }
}
