//! I/O queues: admission, races during a Connect, changes of namespaces.

use nvme::fabrics::Property;
use nvme::{Opcode, Status};

use super::super::{block, transfer};
use super::*;
use crate::ControllerEnd;

fn world() -> (World, Host) {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    world.add(4096, |_| {});
    let host = world.controller(spec(2, 1, vec![entry(0), entry(1)]));
    (world, host)
}

/// What changes while a queue is on its way is told to it once it is there.
#[test]
fn namespaces_that_change_before_a_queue_is_open() {
    let mut world = World::new(2);
    for _ in 0..2 {
        world.add(4096, |_| {});
    }
    let host = world.controller(spec(2, 1, vec![entry(0), entry(1)]));
    let spec = world.join(2, &join(1, 1, 1)).unwrap();
    world.server(host).change_namespaces(2, vec![entry(1)]);
    world.run();
    let queue = world.open_on(1, spec);
    world.run();
    let read = super::super::transfer(Opcode::READ, 0, 1);
    assert_eq!(world.command(queue, &read, &[]), Status::INVALID_NAMESPACE.with_do_not_retry());
    assert_eq!(world.command(queue, &super::super::on(read, 2), &[]), Status::SUCCESS);
}

#[test]
fn attack_67_io_connects_to_controllers_that_are_not_theirs() {
    let (mut world, host) = world();
    let good = join(1, 1, 1);
    assert_eq!(world.join(9, &good).unwrap_err(), ConnectRefusal::CNTLID);
    let other = IoQueueConnect { subsystem: nqn("nqn.2026-11.io.blockwire:other"), ..good.clone() };
    assert_eq!(world.join(2, &other).unwrap_err(), ConnectRefusal::SUBNQN);
    let stranger = IoQueueConnect {
        host: crate::HostIdentity { nqn: super::host(7).nqn, ..good.host.clone() },
        ..good.clone()
    };
    assert_eq!(world.join(2, &stranger).unwrap_err(), ConnectRefusal::HOSTNQN);
    let twin = IoQueueConnect {
        host: crate::HostIdentity { id: super::host(7).id, ..good.host.clone() },
        ..good.clone()
    };
    assert_eq!(world.join(2, &twin).unwrap_err(), ConnectRefusal::HOSTID);
    // A number that was good until a moment ago.
    world.close(host);
    world.run();
    assert_eq!(world.gone, [(2, ControllerEnd::Closed)]);
    assert_eq!(world.join(2, &good).unwrap_err(), ConnectRefusal::CNTLID);
    let completion = Completion::from(ConnectRefusal::CNTLID);
    assert_eq!((completion.result, completion.status.0), (16 | 1 << 16, 0x0182));
}

#[test]
fn attack_68_queue_numbers_and_sizes_that_were_not_granted() {
    let (mut world, host) = world();
    assert_eq!(world.ends(host, &set_feature(7, 0, 0x0003_0001), &[]).result, 0x0001_0001);
    let refusal = |world: &mut World, join: &IoQueueConnect| world.join(2, join).unwrap_err();
    assert_eq!(refusal(&mut world, &join(0, 1, 1)), ConnectRefusal::QID);
    assert_eq!(refusal(&mut world, &join(3, 1, 1)), ConnectRefusal::QID);
    assert_eq!(refusal(&mut world, &join(0xffff, 1, 1)), ConnectRefusal::QID);
    assert_eq!(
        refusal(&mut world, &IoQueueConnect { entries: 129, ..join(1, 1, 1) }),
        ConnectRefusal::SQSIZE
    );
    assert_eq!(
        refusal(&mut world, &IoQueueConnect { entries: 65_536, ..join(1, 1, 1) }),
        ConnectRefusal::SQSIZE
    );
    assert_eq!(refusal(&mut world, &IoQueueConnect { entries: 1, ..join(1, 1, 1) }), ConnectRefusal::SQSIZE);
    world.connect(2, &join(1, 1, 1)).unwrap();
    assert_eq!(refusal(&mut world, &join(1, 1, 0)), ConnectRefusal::Sequence);
    assert_eq!(Completion::from(ConnectRefusal::Sequence).status, Status::COMMAND_SEQUENCE_ERROR);
    // While queues are connected, their number is not changed.
    assert_eq!(
        world.ends(host, &set_feature(7, 0, 0), &[]).status,
        Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry()
    );
}

#[test]
fn a_queue_is_let_in_only_while_its_controller_is_ready() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let host = world.open(spec(1, 1, vec![entry(0)]));
    assert_eq!(world.join(1, &join(1, 1, 0)).unwrap_err(), ConnectRefusal::Sequence);
    world.set(host, Property::CC, 0x0046_0001);
    world.connect(1, &join(1, 1, 0)).unwrap();
}

#[test]
fn a_queue_on_its_way_counts_until_it_is_given_up() {
    let (mut world, host) = world();
    let on_its_way = world.join(2, &join(1, 1, 1)).unwrap();
    assert_eq!(world.join(2, &join(1, 1, 1)).unwrap_err(), ConnectRefusal::Sequence);
    // What the controller asks of all queues does not wait for one that is not there.
    assert_eq!(world.good(host, &get_log(2, 512), &[]).len(), 512);
    assert_eq!(world.ends(host, &admin(0x08, 0, &[1], 0), &[]).result, 1);
    world.cores[1].server.abandon_queue(&on_its_way);
    world.run();
    world.connect(2, &join(1, 1, 1)).unwrap();
}

#[test]
fn a_queue_that_opens_after_a_reset_ends_at_once() {
    let (mut world, host) = world();
    let late = world.join(2, &join(1, 1, 1)).unwrap();
    world.set(host, Property::CC, 0x0046_0000);
    assert_eq!(world.property(host, Property::CSTS, 4), 1, "a queue is on its way");
    let queue = world.open_on(1, late);
    world.run();
    assert_eq!(world.ended, [queue]);
    assert_eq!(world.property(host, Property::CSTS, 4), 0);
    world.pass(20);
    assert!(world.gone.is_empty());
}

#[test]
fn a_queue_that_opens_after_its_association_ended_ends_at_once() {
    let (mut world, host) = world();
    let late = world.join(2, &join(1, 1, 1)).unwrap();
    world.close(host);
    world.run();
    assert!(world.gone.is_empty());
    let queue = world.open_on(1, late);
    world.run();
    assert_eq!(
        (world.ended.as_slice(), world.gone.as_slice()),
        (&[queue][..], &[(2, ControllerEnd::Closed)][..])
    );
}

#[test]
fn attack_78_a_namespace_is_removed_during_io() {
    let (mut world, host) = world();
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    let request = world.start(host, &event_request(1), &[]);
    assert_eq!(world.ends(host, &set_feature(0x0b, 0, 1 << 8), &[]).status, Status::SUCCESS);
    world.withhold = true;
    let on_two = super::super::on(transfer(Opcode::WRITE, 0, 1), 2);
    let write = world.start(queue, &on_two, &block(1));
    let stays = world.start(queue, &transfer(Opcode::WRITE, 0, 1), &block(1));
    world.server(host).change_namespaces(2, vec![entry(0)]);
    world.run();
    assert_eq!(world.status(write), Status::INVALID_NAMESPACE.with_do_not_retry());
    assert_eq!(world.event(request), Some(0x0004_0002));
    assert_eq!(world.good(host, &get_log(4, 4096), &[])[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    world.withhold = false;
    world.send_withheld(stays);
    assert_eq!(world.status(stays), Status::SUCCESS);
    assert_eq!(world.command(queue, &on_two, &block(1)), Status::INVALID_NAMESPACE.with_do_not_retry());
    // And back.
    world.server(host).change_namespaces(2, vec![entry(1), entry(0)]);
    world.run();
    assert_eq!(world.command(queue, &on_two, &block(1)), Status::SUCCESS);
}

#[test]
fn attack_78_a_subsystem_or_a_volume_is_removed_during_connect_and_io() {
    let (mut world, host) = world();
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    let late = world.join(2, &join(2, 1, 0)).unwrap();
    world.disks.hold.set(true);
    let write = world.start(queue, &transfer(Opcode::WRITE, 0, 1), &block(1));
    for core in &mut world.cores {
        core.server.remove_volume(volume::VolumeId(0));
    }
    let gone = transfer(Opcode::READ, 0, 1);
    assert_eq!(world.command(queue, &gone, &[]), Status::INVALID_NAMESPACE.with_do_not_retry());
    let identify = admin(0x06, 1, &[3], 4096);
    assert_eq!(world.ends(host, &identify, &[]).status, Status::INVALID_NAMESPACE.with_do_not_retry());
    world.server(host).end_controller(2);
    world.server(host).end_controller(2);
    world.run();
    let arrived = world.open_on(0, late);
    world.disks.hold.set(false);
    world.run();
    assert!(world.end(write).is_some());
    assert!(world.ended.contains(&queue) && world.ended.contains(&host) && world.ended.contains(&arrived));
    assert_eq!(world.gone, [(2, ControllerEnd::Removed)]);
    assert_eq!(world.pool.usage().lent, 0);
}

#[test]
fn attack_70_io_queues_know_no_properties_and_no_second_connect() {
    let (mut world, _) = world();
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    let cases = [
        (0x00, Status::INVALID_QUEUE_TYPE),
        (0x04, Status::INVALID_QUEUE_TYPE),
        (0x01, Status::COMMAND_SEQUENCE_ERROR),
        (0x05, Status::COMMAND_SEQUENCE_ERROR),
        (0x06, Status::COMMAND_SEQUENCE_ERROR),
        (0x02, Status::INVALID_FIELD),
        (0xc0, Status::INVALID_FIELD),
    ];
    for (kind, status) in cases {
        assert_eq!(
            world.ends(queue, &admin(0x7f, kind, &[], 0), &[]).status,
            status.with_do_not_retry(),
            "{kind:#x}"
        );
    }
}
