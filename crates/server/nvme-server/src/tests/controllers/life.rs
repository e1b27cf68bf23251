//! Properties, enabling, reset, shutdown, keep alive, and the end of associations.

use nvme::fabrics::Property;
use nvme::{Opcode, Status};

use super::super::{block, transfer};
use super::*;
use crate::ControllerEnd;

fn world() -> (World, Host) {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let host = world.controller(spec(2, 1, vec![entry(0)]));
    (world, host)
}

#[test]
fn properties_say_what_the_controller_can_do() {
    let (mut world, host) = world();
    assert_eq!(world.property(host, Property::CAP, 8), 0x0800_0820_1e01_007f);
    assert_eq!(world.property(host, Property::VS, 4), 0x0002_0000);
    assert_eq!(world.property(host, Property::CC, 4), 0x0046_0001);
    assert_eq!(world.property(host, Property::CRTO, 4), 30);
    for (property, len) in [(Property::CAP, 4), (Property::VS, 8), (Property(0x20), 4), (Property(0x1000), 4)]
    {
        let sqe = PropertyAccess::property_get_sqe(property, len);
        assert_eq!(world.ends(host, &sqe, &[]).status, Status::INVALID_FIELD.with_do_not_retry());
    }
    for property in [Property::CAP, Property::VS, Property::CSTS, Property(0x20)] {
        assert_eq!(world.set(host, property, 0x4e56_4d65), Status::INVALID_FIELD.with_do_not_retry());
    }
}

#[test]
fn a_connect_is_answered_with_the_controllers_number() {
    let (mut world, host) = world();
    assert_eq!(world.server(host).connect_completion(host.key).result, 2);
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    assert_eq!(
        world.server(queue).connect_completion(queue.key),
        Completion { result: 2, status: Status::SUCCESS }
    );
}

#[test]
fn io_goes_by_queues_on_other_shards() {
    let (mut world, _) = world();
    let one = world.connect(2, &join(1, 1, 1)).unwrap();
    let two = world.connect(2, &join(2, 1, 0)).unwrap();
    world.write(one, 7, &block(0xa5));
    assert_eq!(world.read(two, 7, 1), block(0xa5));
}

#[test]
fn a_reset_ends_io_queues_before_it_is_done() {
    let (mut world, host) = world();
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    let request = world.start(host, &event_request(9), &[]);
    world.disks.hold.set(true);
    let write = world.start(queue, &transfer(Opcode::WRITE, 0, 1), &block(1));
    assert_eq!(world.set(host, Property::CC, 0x0046_0000), Status::SUCCESS);
    assert_eq!(world.property(host, Property::CSTS, 4), 1, "a write is still on its way");
    assert_eq!(world.status(request), Status::ABORTED_SQ_DELETION);
    assert_eq!(world.ended, [queue]);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.end(write), Some(End::Retired));
    assert_eq!(world.property(host, Property::CSTS, 4), 0);
    assert_eq!(world.connect(2, &join(1, 1, 1)), Err(ConnectRefusal::Sequence));
    assert_eq!(world.set(host, Property::CC, 0x0046_0001), Status::SUCCESS);
    let again = world.connect(2, &join(1, 1, 1)).unwrap();
    world.read(again, 0, 1);
}

#[test]
fn a_shutdown_is_complete_when_io_queues_are_gone() {
    let (mut world, host) = world();
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    world.disks.hold.set(true);
    world.start(queue, &transfer(Opcode::WRITE, 0, 1), &block(1));
    assert_eq!(world.set(host, Property::CC, 0x0046_4001), Status::SUCCESS);
    assert_eq!(world.property(host, Property::CSTS, 4), 0b0101);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.property(host, Property::CSTS, 4), 0b1001);
    assert_eq!(world.connect(2, &join(1, 1, 1)), Err(ConnectRefusal::Sequence));
    // A reset is the way back.
    assert_eq!(world.set(host, Property::CC, 0), Status::SUCCESS);
    assert_eq!(world.property(host, Property::CSTS, 4), 0);
    assert_eq!(world.set(host, Property::CC, 0x0046_0001), Status::SUCCESS);
    assert_eq!(world.property(host, Property::CSTS, 4), 1);
}

#[test]
fn attack_71_configurations_that_cannot_be_are_fatal_until_a_reset() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let host = world.open(spec(1, 1, vec![entry(0)]));
    // MPS 1, AMS 1, CSS 1 and 7, IOSQES 0, IOCQES 0, CRIME.
    for wrong in [0x0046_0081, 0x0046_0801, 0x0046_0011, 0x0046_0071, 0x0040_0001, 0x0006_0001, 0x0146_0001] {
        assert_eq!(world.set(host, Property::CC, wrong), Status::SUCCESS);
        assert_eq!(world.property(host, Property::CSTS, 4), 2, "{wrong:#x}");
        let identify = admin(0x06, 0, &[1], 4096);
        assert_eq!(
            world.ends(host, &identify, &[]).status,
            Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry()
        );
        assert_eq!(world.set(host, Property::CC, 0), Status::SUCCESS);
        assert_eq!(world.property(host, Property::CSTS, 4), 0);
    }
    for _ in 0..1000 {
        assert_eq!(world.set(host, Property::CC, 0x0046_0061), Status::SUCCESS);
        let queue = world.connect(1, &join(1, 1, 0)).unwrap();
        world.disks.hold.set(true);
        world.start(queue, &transfer(Opcode::WRITE, 0, 1), &block(1));
        assert_eq!(world.set(host, Property::CC, 0x0046_0060), Status::SUCCESS);
        world.disks.hold.set(false);
        world.run();
        assert_eq!(world.property(host, Property::CSTS, 4), 0);
    }
    assert_eq!(world.pool.usage().lent, 0);
}

#[test]
fn attack_71_a_shutdown_during_io_leaves_nothing_behind() {
    let (mut world, host) = world();
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    world.withhold = true;
    let waits: Vec<_> =
        (0..8).map(|lba| world.start(queue, &transfer(Opcode::WRITE, lba, 1), &block(1))).collect();
    assert_eq!(world.set(host, Property::CC, 0x0046_8001), Status::SUCCESS);
    world.run();
    assert!(waits.iter().all(|write| world.end(*write) == Some(End::Retired)));
    assert_eq!(world.property(host, Property::CSTS, 4), 0b1001);
    assert_eq!(world.pool.usage().lent, 0);
}

#[test]
fn attack_74_timeouts_are_rounded_and_silence_frees_the_association() {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let host = world.controller(ControllerSpec { kato_ms: 1, ..spec(1, 1, vec![entry(0)]) });
    assert_eq!(world.ends(host, &get_feature(0x0f, 0, 0, 0), &[]).result, 1000);
    let request = world.start(host, &event_request(1), &[]);
    world.now.0 += SECOND - 1;
    world.fire();
    assert!(world.gone.is_empty());
    // A Keep Alive is as good as any command.
    assert_eq!(world.ends(host, &admin(0x18, 0, &[], 0), &[]).status, Status::SUCCESS);
    world.now.0 += SECOND - 1;
    world.fire();
    assert!(world.gone.is_empty());
    world.now.0 += 1;
    world.fire();
    assert_eq!(world.end(request), Some(End::Retired));
    assert_eq!(
        (world.gone.as_slice(), world.ended.as_slice()),
        (&[(1, ControllerEnd::Silent)][..], &[host][..])
    );
}

#[test]
fn attack_74_without_a_timeout_keep_alive_is_invalid() {
    let (mut world, host) = world();
    assert_eq!(
        world.ends(host, &admin(0x18, 0, &[], 0), &[]).status,
        Status::KEEP_ALIVE_INVALID.with_do_not_retry()
    );
    world.pass(1000);
    assert!(world.gone.is_empty());
    assert_eq!(world.ends(host, &set_feature(0x0f, 0, 1500), &[]).status, Status::SUCCESS);
    assert_eq!(world.ends(host, &get_feature(0x0f, 0, 0, 0), &[]).result, 2000);
    assert_eq!(world.ends(host, &admin(0x18, 0, &[], 0), &[]).status, Status::SUCCESS);
    world.pass(2);
    assert_eq!(world.gone, [(2, ControllerEnd::Silent)]);
}

#[test]
fn traffic_of_io_queues_keeps_the_association_alive() {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    world.controller(ControllerSpec { kato_ms: 4000, ..spec(2, 1, vec![entry(0)]) });
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    for _ in 0..20 {
        world.pass(3);
        world.read(queue, 0, 1);
    }
    assert!(world.gone.is_empty());
    // Silence ends it after the timeout, and a quarter in which traffic may not have been told.
    world.pass(4);
    assert!(world.gone.is_empty());
    world.pass(1);
    assert_eq!(world.gone, [(2, ControllerEnd::Silent)]);
    assert_eq!(world.ended.len(), 2);
}

#[test]
fn a_timeout_that_is_set_later_counts_traffic_too() {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let host = world.controller(spec(2, 1, vec![entry(0)]));
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    world.read(queue, 0, 1);
    assert_eq!(world.ends(host, &set_feature(0x0f, 0, 4000), &[]).status, Status::SUCCESS);
    for _ in 0..10 {
        world.pass(3);
        world.read(queue, 0, 1);
    }
    assert!(world.gone.is_empty());
    world.pass(6);
    assert_eq!(world.gone, [(2, ControllerEnd::Silent)]);
}

#[test]
fn queues_tell_of_traffic_only_now_and_then() {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    world.controller(ControllerSpec { kato_ms: 4000, ..spec(2, 1, vec![entry(0)]) });
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    let mut messages = 0;
    for _ in 0..100 {
        world.now.0 += SECOND / 100;
        let started = world.start(queue, &transfer(Opcode::READ, 0, 1), &[]);
        messages += world
            .messages
            .iter()
            .filter(|message| matches!(message, testkit::server_world::ShardMessage::ToServer(..)))
            .count();
        world.run();
        assert_eq!(world.status(started), Status::SUCCESS);
    }
    assert_eq!(messages, 1);
}

#[test]
fn the_loss_of_the_admin_queue_ends_the_association() {
    let (mut world, host) = world();
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    world.disks.hold.set(true);
    let write = world.start(queue, &transfer(Opcode::WRITE, 0, 1), &block(1));
    world.close(host);
    world.run();
    assert_eq!(world.ended, [queue]);
    assert!(world.gone.is_empty(), "a write is still on its way");
    assert_eq!(world.join(2, &join(2, 1, 1)).unwrap_err(), ConnectRefusal::CNTLID);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.end(write), Some(End::Retired));
    assert_eq!(world.gone, [(2, ControllerEnd::Closed)]);
    // The number may be given again.
    let host = world.controller(spec(2, 7, vec![entry(0)]));
    assert_eq!(world.property(host, Property::CSTS, 4), 1);
}

#[test]
fn the_loss_of_an_io_queue_ends_the_association_unless_the_host_takes_it_down() {
    let (mut world, host) = world();
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    world.close(queue);
    world.run();
    world.pass(4);
    assert!(world.gone.is_empty());
    // What a host does that disconnects: queues first, then the shutdown.
    assert_eq!(world.set(host, Property::CC, 0x0046_4001), Status::SUCCESS);
    world.pass(10);
    assert!(world.gone.is_empty());
    assert_eq!(world.set(host, Property::CC, 0), Status::SUCCESS);
    assert_eq!(world.set(host, Property::CC, 0x0046_0001), Status::SUCCESS);
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    world.close(queue);
    world.run();
    world.pass(5);
    assert_eq!(world.gone, [(2, ControllerEnd::QueueLost)]);
}

#[test]
fn a_disconnect_ends_one_queue_only() {
    let (mut world, _) = world();
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    let mut sqe = admin(0x7f, 8, &[1], 0);
    assert_eq!(world.ends(queue, &sqe, &[]).status, Status::CONNECT_INCOMPATIBLE_FORMAT.with_do_not_retry());
    sqe.cdw10[0] = U32::new(0);
    assert_eq!(world.ends(queue, &sqe, &[]).status, Status::SUCCESS);
    assert_eq!(world.ended, [queue]);
    world.pass(20);
    assert!(world.gone.is_empty());
    world.connect(2, &join(1, 1, 0)).unwrap();
}

#[test]
fn a_lost_queue_is_no_end_where_queues_are_deleted_one_by_one() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    world.controller(ControllerSpec { individual_deletion: true, ..spec(1, 1, vec![entry(0)]) });
    let queue = world.connect(1, &join(1, 1, 0)).unwrap();
    world.close(queue);
    world.run();
    world.pass(20);
    assert!(world.gone.is_empty());
}

#[test]
fn admin_queues_are_not_disconnected_and_do_no_io() {
    let (mut world, host) = world();
    assert_eq!(
        world.ends(host, &admin(0x7f, 8, &[], 0), &[]).status,
        Status::INVALID_QUEUE_TYPE.with_do_not_retry()
    );
    assert_eq!(
        world.ends(host, &admin(0x7f, 1, &[], 0), &[]).status,
        Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry()
    );
    // Create and Delete I/O queues have no place on fabrics.
    for opcode in [0x00, 0x01, 0x04, 0x05, 0x0d, 0x10, 0x15, 0x84, 0xc0, 0xff] {
        assert_eq!(
            world.ends(host, &admin(opcode, 1, &[], 0), &[]).status,
            Status::INVALID_OPCODE.with_do_not_retry()
        );
    }
    let fused = {
        let mut sqe = admin(0x06, 0, &[1], 4096);
        sqe.flags = 0x41;
        sqe
    };
    assert_eq!(world.ends(host, &fused, &[]).status, Status::INVALID_FIELD.with_do_not_retry());
}

/// The keep-alive timer runs while a controller is enabled and not shut down (NVMe Base §3.9): a host that
/// takes its time before and afterwards loses nothing, and nobody holds a controller for ever.
#[test]
fn a_controller_that_is_not_enabled_is_not_ended_by_its_keep_alive_timeout() {
    for shut_down in [false, true] {
        let mut world = World::new(1);
        world.add(4096, |_| {});
        let spec = ControllerSpec { kato_ms: 1000, ..spec(1, 1, vec![entry(0)]) };
        let host = if shut_down { world.controller(spec) } else { world.open(spec) };
        if shut_down {
            assert_eq!(world.set(host, Property::CC, 0x0046_4001), Status::SUCCESS);
        }
        world.pass(100);
        assert!(world.gone.is_empty(), "{shut_down}");
        if !shut_down {
            assert_eq!(world.set(host, Property::CC, 0x0046_0001), Status::SUCCESS);
            world.now.0 += SECOND - 1;
            world.fire();
            assert!(world.gone.is_empty(), "its time begins with its enabling");
        }
        world.pass(121);
        assert_eq!(world.gone, [(1, ControllerEnd::Silent)], "{shut_down}");
    }
}
