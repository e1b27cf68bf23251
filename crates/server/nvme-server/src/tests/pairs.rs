//! Fused Compare and Write: whole, split, mismatched, aborted.

use volume::{Fault, PathAccess};

use super::*;

const FIRST: u8 = 1;
const SECOND: u8 = 2;

fn fused(opcode: Opcode, lba: u64, blocks: u32, part: u8, cid: u16) -> Sqe {
    let mut sqe = with_cid(transfer(opcode, lba, blocks), cid);
    sqe.flags |= part;
    sqe
}

fn first(lba: u64, blocks: u32) -> Sqe {
    fused(Opcode::COMPARE, lba, blocks, FIRST, 1)
}

fn second(lba: u64, blocks: u32) -> Sqe {
    fused(Opcode::WRITE, lba, blocks, SECOND, 2)
}

fn pair(world: &mut World, host: Host, expected: u8, new: u8) -> (Status, Status) {
    let a = world.start(host, &first(3, 1), &block(expected));
    assert!(!world.solicited(a), "data of a first half waits for the second");
    let b = world.start(host, &second(3, 1), &block(new));
    world.run();
    (world.status(a), world.status(b))
}

#[test]
fn a_pair_compares_and_writes() {
    let (mut world, host) = disk();
    assert_eq!(pair(&mut world, host, 0, 1), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(world.read(host, 3, 1), block(1));
    let miscompared =
        (Status::COMPARE_FAILURE.with_do_not_retry(), Status::ABORTED_FAILED_FUSED.with_do_not_retry());
    assert_eq!(pair(&mut world, host, 0, 2), miscompared);
    assert_eq!(world.read(host, 3, 1), block(1));
    assert_eq!(pair(&mut world, host, 1, 2), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(world.lent(), 0);
}

/// The half at fault says what went wrong, and the other was aborted for it.
#[test]
fn a_pair_on_blocks_that_cannot_be_read_or_written() {
    let (mut world, host) = disk();
    let failed = Status::ABORTED_FAILED_FUSED.with_do_not_retry();
    world.good(host, &transfer(Opcode::WRITE_UNCORRECTABLE, 3, 1), &[]);
    assert_eq!(pair(&mut world, host, 0, 1), (Status::UNRECOVERED_READ_ERROR.with_do_not_retry(), failed));
    world.write(host, 3, &block(0));
    world.disks.unwritable.set(Some(3));
    assert_eq!(pair(&mut world, host, 0, 1), (failed, Status::WRITE_FAULT.with_do_not_retry()));
    let miscompared = Status::COMPARE_FAILURE.with_do_not_retry();
    assert_eq!(pair(&mut world, host, 9, 1), (miscompared, failed), "nothing was to be written");
    world.disks.unwritable.set(None);
    assert_eq!(pair(&mut world, host, 0, 1), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(world.lent(), 0);
}

/// A host would repeat it, and it would find its own data.
#[test]
fn a_pair_that_may_have_been_done_is_not_asked_for_again() {
    let (mut world, host) = disk();
    for (fault, status) in [
        (Fault::PathLost, Status::INTERNAL_PATH_ERROR),
        (Fault::Aborted, Status::COMMAND_INTERRUPTED),
        (Fault::Internal, Status::INTERNAL_ERROR),
    ] {
        world.disks.writes_end.set(Some(fault));
        assert_eq!(pair(&mut world, host, 0, 1), (status.with_do_not_retry(), status.with_do_not_retry()));
    }
    world.disks.writes_end.set(None);
    assert_eq!(pair(&mut world, host, 0, 1), (Status::SUCCESS, Status::SUCCESS));
}

/// The pair is done, and only its flush fails: nothing of what it may say lets the host repeat it.
#[test]
fn a_pair_whose_flush_fails_is_not_asked_for_again() {
    let mut stable = second(3, 1);
    stable.cdw10[2] = U32::new(BlockTransfer::FUA);
    for fault in [Fault::PathLost, Fault::Aborted, Fault::Internal, Fault::Sync, Fault::NoSpace] {
        let (mut world, host) = disk();
        world.disks.flushes_end.set(Some(fault));
        let a = world.start(host, &first(3, 1), &block(0));
        let b = world.start(host, &stable, &block(1));
        world.run();
        for status in [world.status(a), world.status(b)] {
            assert_eq!(status, status.with_do_not_retry(), "{fault:?}");
        }
        world.disks.flushes_end.set(None);
        assert_eq!(world.read(host, 3, 1), block(1));
    }
    // The flush is refused, since the path has stopped serving while the disk wrote.
    let (mut world, host) = disk();
    world.disks.hold_writes.set(true);
    let a = world.start(host, &first(3, 1), &block(0));
    let b = world.start(host, &stable, &block(1));
    world.run();
    world.request_later(
        0,
        VolumeRequest::SetAccess { ports: vec![PortId(1)], to: PathAccess::Transition, by: None },
    );
    world.disks.hold_writes.set(false);
    world.run();
    let transition = Status::ANA_TRANSITION.with_do_not_retry();
    assert_eq!((world.status(a), world.status(b)), (transition, transition));
}

#[test]
fn a_stable_pair_is_flushed() {
    let (mut world, host) = disk();
    let a = world.start(host, &first(3, 1), &block(0));
    let mut stable = second(3, 1);
    stable.cdw10[2] = U32::new(BlockTransfer::FUA);
    let b = world.start(host, &stable, &block(1));
    world.run();
    assert_eq!((world.status(a), world.status(b)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(world.disks.kinds.borrow().last(), Some(&volume::Op::Flush));
}

#[test]
fn data_in_the_first_capsule_is_taken_at_once() {
    let (mut world, host) = disk();
    let mut a = first(3, 1);
    a.dptr.identifier = SglDescriptor::IN_CAPSULE;
    let a = world.start(host, &a, &block(0));
    assert!(world.solicited(a));
    assert_eq!(world.end(a), None);
    let b = world.start(host, &second(3, 1), &block(7));
    world.run();
    assert_eq!((world.status(a), world.status(b)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(world.read(host, 3, 1), block(7));
}

#[test]
fn another_command_between_the_halves_ends_both() {
    let missing = Status::ABORTED_MISSING_FUSED.with_do_not_retry();
    for between in [transfer(Opcode::READ, 0, 1), sqe(Opcode::FLUSH), sqe(Opcode(0x7d))] {
        let (mut world, host) = disk();
        let a = world.start(host, &first(3, 1), &block(0));
        let c = world.start(host, &between, &[]);
        assert_eq!(world.status(a), missing);
        let b = world.start(host, &second(3, 1), &block(1));
        world.run();
        assert_eq!(world.status(b), missing);
        assert!(world.end(c).is_some());
        assert_eq!(world.read(host, 3, 1), block(0));
        assert_eq!(pair(&mut world, host, 0, 1), (Status::SUCCESS, Status::SUCCESS));
    }
}

#[test]
fn first_halves_in_a_row() {
    let (mut world, host) = disk();
    let a = world.start(host, &first(3, 1), &block(0));
    let b = world.start(host, &first(4, 1), &block(0));
    assert_eq!((world.status(a), world.end(b)), (Status::ABORTED_MISSING_FUSED.with_do_not_retry(), None));
    let c = world.start(host, &second(4, 1), &block(1));
    world.run();
    assert_eq!((world.status(b), world.status(c)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(world.read(host, 3, 2), [block(0), block(1)].concat());
}

#[test]
fn halves_of_other_queues_are_not_between() {
    let (mut world, host) = disk();
    let other = world.host(0, 2, &[0]);
    let a = world.start(host, &first(3, 1), &block(0));
    world.read(other, 0, 1);
    let lone = world.start(other, &second(3, 1), &block(1));
    assert_eq!(world.status(lone), Status::ABORTED_MISSING_FUSED.with_do_not_retry());
    let b = world.start(host, &second(3, 1), &block(2));
    world.run();
    assert_eq!((world.status(a), world.status(b)), (Status::SUCCESS, Status::SUCCESS));
}

#[test]
fn halves_that_do_not_fit() {
    let (mut world, host) = disk();
    let invalid = Status::INVALID_FIELD.with_do_not_retry();
    let seconds = [
        second(4, 1),
        second(3, 2),
        on(second(3, 1), 2),
        fused(Opcode::COMPARE, 3, 1, SECOND, 2),
        fused(Opcode::READ, 3, 1, SECOND, 2),
    ];
    for b in seconds {
        let a = world.start(host, &first(3, 1), &block(0));
        let b = world.start(host, &b, &block(1));
        world.run();
        assert_eq!((world.status(a), world.status(b)), (invalid, invalid));
        assert!(!world.solicited(a) && !world.solicited(b));
    }
    // A first half that is none, a part that is not defined.
    for sqe in [fused(Opcode::WRITE, 3, 1, FIRST, 1), fused(Opcode::COMPARE, 3, 1, 3, 1)] {
        assert_eq!(world.command(host, &sqe, &block(0)), invalid);
    }
    // An SGL that does not agree: each half for itself.
    let a = world.start(host, &first(3, 1), &block(0));
    let b = world.start_with(host, &second(3, 1), &block(1), 1024);
    assert_eq!(world.status(a), Status::ABORTED_FAILED_FUSED.with_do_not_retry());
    assert_eq!(world.status(b), Status::SGL_LENGTH_INVALID.with_do_not_retry());
    // Longer than can be one step.
    let max = world.home(0).view().geometry.caw_max;
    let data = vec![0; (max as usize + 1) * 512];
    let a = world.start(host, &first(0, max + 1), &data);
    let b = world.start(host, &second(0, max + 1), &data);
    let exceeded = Status::ATOMIC_WRITE_UNIT_EXCEEDED.with_do_not_retry();
    assert_eq!((world.status(a), world.status(b)), (exceeded, exceeded));
    assert_eq!(world.read(host, 3, 1), block(0));
}

#[test]
fn a_half_that_is_aborted_takes_the_other_along() {
    let failed = Status::ABORTED_FAILED_FUSED.with_do_not_retry();
    for (cid, aborted) in [(1, (Status::ABORT_REQUESTED, failed)), (2, (failed, Status::ABORT_REQUESTED))] {
        // While they wait for data, and while the disk has them.
        for on_disk in [false, true] {
            // What the disk had may be done: it must not be sent again.
            let expected = if on_disk {
                (aborted.0.with_do_not_retry(), aborted.1.with_do_not_retry())
            } else {
                aborted
            };
            let (mut world, host) = disk();
            world.withhold = !on_disk;
            world.disks.hold.set(on_disk);
            let a = world.start(host, &first(3, 1), &block(0));
            let b = world.start(host, &second(3, 1), &block(1));
            world.run();
            assert_eq!((world.end(a), world.end(b)), (None, None));
            assert!(world.server(host).context.abort_cid(host.key, cid));
            world.run();
            world.disks.hold.set(false);
            world.run();
            assert_eq!((world.status(a), world.status(b)), expected, "{cid} {on_disk}");
            assert_eq!(world.lent(), 0);
        }
    }
}

#[test]
fn a_lone_half_can_be_aborted_and_its_queue_closed() {
    let (mut world, host) = disk();
    let a = world.start(host, &first(3, 1), &block(0));
    assert!(world.server(host).context.abort_cid(host.key, 1));
    world.run();
    assert_eq!(world.status(a), Status::ABORT_REQUESTED);
    let b = world.start(host, &second(3, 1), &block(1));
    assert_eq!(world.status(b), Status::ABORTED_MISSING_FUSED.with_do_not_retry());
    world.withhold = true;
    let a = world.start(host, &first(3, 1), &block(0));
    let b = world.start(host, &second(3, 1), &block(1));
    let c = world.start(host, &first(3, 1), &block(0));
    world.close(host);
    world.run();
    assert_eq!([a, b, c].map(|half| world.end(half)), [Some(End::Retired); 3]);
    assert_eq!(world.lent(), 0);
}

#[test]
fn a_pair_writes_only_what_may_be_written() {
    let (mut world, host) = disk();
    world.request(0, VolumeRequest::WriteProtect(true)).unwrap();
    let protected = Status::NAMESPACE_WRITE_PROTECTED.with_do_not_retry();
    assert_eq!(pair(&mut world, host, 0, 1), (protected, protected));
    world.request(0, VolumeRequest::WriteProtect(false)).unwrap();
    world.withhold = true;
    let a = world.start(host, &first(3, 1), &block(0));
    let b = world.start(host, &second(3, 1), &block(1));
    let key = host.key;
    world.server(host).context.change_queue_namespaces(key, [entry(0, true)].into());
    world.send_withheld(b);
    world.send_withheld(a);
    assert_eq!((world.status(a), world.status(b)), (protected, protected));
}
