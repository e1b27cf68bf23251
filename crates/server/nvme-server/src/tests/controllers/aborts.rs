//! Abort of commands on other shards, of admin commands, of unknown commands.

use nvme::{Opcode, Status};

use super::super::{block, transfer};
use super::*;

fn world() -> (World, Host, Host) {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let host = world.controller(spec(2, 1, vec![entry(0)]));
    let queue = world.connect(2, &join(3, 1, 1)).unwrap();
    (world, host, queue)
}

/// Abort of a command of queue 3.
fn abort(cid: u16) -> Sqe {
    admin(0x08, 0, &[3 | u32::from(cid) << 16], 0)
}

fn with_cid(mut sqe: Sqe, cid: u16) -> Sqe {
    sqe.cid = U16::new(cid);
    sqe
}

#[test]
fn an_abort_is_answered_when_its_command_has_ended() {
    let (mut world, host, queue) = world();
    world.disks.hold.set(true);
    let write = world.start(queue, &with_cid(transfer(Opcode::WRITE, 0, 1), 77), &block(1));
    let abort = world.start(host, &abort(77), &[]);
    world.run();
    assert_eq!((world.end(write), world.end(abort)), (None, None), "the disk has it");
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.status(write), Status::ABORT_REQUESTED);
    assert_eq!(world.completion(abort), Completion::SUCCESS);
}

#[test]
fn an_abort_ends_a_command_that_waits_for_data() {
    let (mut world, host, queue) = world();
    world.withhold = true;
    let write = world.start(queue, &with_cid(transfer(Opcode::WRITE, 0, 1), 5), &block(1));
    assert_eq!(world.ends(host, &abort(5), &[]), Completion::SUCCESS);
    assert_eq!(world.status(write), Status::ABORT_REQUESTED);
}

/// A host may send Aborts without end: each looks at the commands of one queue, not at all that the shard executes.
#[test]
fn an_abort_does_not_look_at_the_commands_of_other_queues() {
    let (mut world, _, queue) = world();
    let other = world.connect(2, &join(4, 1, 1)).unwrap();
    assert_eq!(other.shard, queue.shard);
    world.disks.hold.set(true);
    for cid in 0..100 {
        world.start(other, &with_cid(transfer(Opcode::WRITE, 0, 1), cid), &block(1));
    }
    world.start(queue, &with_cid(transfer(Opcode::WRITE, 0, 1), 1), &block(1));
    let looked = std::cell::Cell::new(0);
    let found = world.server(queue).context.commands_of(queue.key, |_| {
        looked.set(looked.get() + 1);
        true
    });
    assert_eq!((found.len(), looked.get()), (1, 1));
    let slots = world.server(queue).context.queues.get(queue.key).command_slots().count();
    assert!(slots <= 2, "{slots} places were looked at");
    assert_eq!(world.server(other).context.commands_of(other.key, |_| true).len(), 100);
}

#[test]
fn what_is_not_there_is_not_aborted() {
    let (mut world, host, queue) = world();
    let not = Completion { result: 1, status: Status::SUCCESS };
    assert_eq!(world.ends(host, &abort(5), &[]), not);
    for sqid in [1, 4, 0xffff] {
        assert_eq!(world.ends(host, &admin(0x08, 0, &[sqid], 0), &[]), not);
    }
    // A queue that ends while it is asked answers by its end.
    world.disks.hold.set(true);
    world.start(queue, &with_cid(transfer(Opcode::WRITE, 0, 1), 9), &block(1));
    let late = world.start(host, &abort(9), &[]);
    world.close(queue);
    world.disks.hold.set(false);
    world.run();
    assert!(matches!(world.end(late), Some(End::Reply(_))));
}

#[test]
fn attack_73_requests_for_events_are_bounded_and_can_be_aborted() {
    let (mut world, host, _) = world();
    let requests: Vec<_> = (0..4).map(|cid| world.start(host, &event_request(cid), &[])).collect();
    let fifth = world.ends(host, &event_request(4), &[]);
    assert_eq!(fifth.status, Status::AER_LIMIT_EXCEEDED.with_do_not_retry());
    assert_eq!(world.ends(host, &admin(0x08, 0, &[2 << 16], 0), &[]), Completion::SUCCESS);
    assert_eq!(world.status(requests[2]), Status::ABORT_REQUESTED);
    // Twice is once.
    assert_eq!(world.ends(host, &admin(0x08, 0, &[2 << 16], 0), &[]).result, 1);
    let again = world.start(host, &event_request(2), &[]);
    assert_eq!(world.end(again), None);
    world.close(host);
    for request in [requests[0], requests[1], requests[3], again] {
        assert_eq!(world.end(request), Some(End::Retired));
    }
}

#[test]
fn attack_73_aborts_without_end_are_bounded() {
    let (mut world, host, queue) = world();
    world.disks.hold.set(true);
    let write = world.start(queue, &with_cid(transfer(Opcode::WRITE, 0, 1), 1), &block(1));
    world.hold_messages = true;
    let aborts: Vec<_> = (0..16).map(|_| world.start(host, &abort(1), &[])).collect();
    assert!(aborts[8..].iter().all(|abort| world.status(*abort) == Status::ABORT_LIMIT_EXCEEDED));
    world.hold_messages = false;
    world.run();
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.status(write), Status::ABORT_REQUESTED);
    // The first has aborted it; the others came too late, or ended with it.
    let results: Vec<_> = aborts[..8].iter().map(|abort| world.completion(*abort)).collect();
    assert_eq!(results[0], Completion::SUCCESS);
    assert!(results.iter().all(|completion| completion.status == Status::SUCCESS));
    for number in 0..65_536_u32 {
        assert_eq!(world.ends(host, &admin(0x08, 0, &[number << 16 | 3], 0), &[]).result, 1);
        assert!(world.controllers_waiting(host) == 0);
    }
}

#[test]
fn an_abort_races_with_the_end_of_its_command() {
    let (mut world, host, queue) = world();
    for cid in 0..200 {
        world.hold_messages = true;
        let write = world.start(queue, &with_cid(transfer(Opcode::WRITE, 0, 1), cid), &block(1));
        let abort = world.start(host, &abort(cid), &[]);
        if cid % 2 == 0 {
            world.run();
        }
        world.hold_messages = false;
        world.run();
        let aborted = world.status(write) == Status::ABORT_REQUESTED;
        assert_eq!(world.completion(abort).result, u64::from(!aborted), "command {cid}");
    }
}

impl World {
    /// How many admin commands wait.
    fn controllers_waiting(&mut self, host: Host) -> usize {
        let cntlid = self.server(host).context.queues.get(host.key).spec.cntlid;
        self.server(host).controllers.find(cntlid).map_or(0, |controller| controller.waiting.len())
    }
}
