//! Commands that end early: aborts, closed queues, removed namespaces.

use super::*;

#[test]
fn an_abort_ends_what_waits_for_data() {
    let (mut world, host) = disk();
    world.withhold = true;
    let write = world.start(host, &with_cid(transfer(Opcode::WRITE, 0, 1), 77), &block(1));
    let other = world.start(host, &with_cid(transfer(Opcode::WRITE, 8, 1), 78), &block(1));
    assert!(!world.server(host).context.abort_cid(host.key, 79));
    assert!(world.server(host).context.abort_cid(host.key, 77));
    world.run();
    assert_eq!(world.status(write), Status::ABORT_REQUESTED);
    assert!(!world.server(host).context.abort_cid(host.key, 77));
    world.send_withheld(other);
    assert_eq!(world.status(other), Status::SUCCESS);
    // Data that comes too late finds nobody.
    world.send_withheld(write);
    assert_eq!((world.read(host, 0, 1), world.read(host, 8, 1)), (block(0).to_vec(), block(1).to_vec()));
    assert_eq!(world.lent(), 0);
}

#[test]
fn an_abort_of_what_is_on_the_disk_waits_for_it() {
    let (mut world, host) = disk();
    world.disks.hold.set(true);
    let read = world.start(host, &with_cid(transfer(Opcode::READ, 0, 8), 5), &[]);
    world.run();
    assert!(world.server(host).context.abort_cid(host.key, 5));
    world.run();
    assert_eq!(world.end(read), None);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.status(read), Status::ABORT_REQUESTED);
    assert!(world.bytes(read).is_empty());
    assert_eq!(world.lent(), 0);
}

#[test]
fn a_queue_that_closes_retires_all_that_it_has() {
    let (mut world, host) = disk();
    let other = world.host(0, 2, &[0]);
    world.withhold = true;
    let write = world.start(host, &transfer(Opcode::WRITE, 0, 1), &block(1));
    world.disks.hold.set(true);
    let read = world.start(host, &transfer(Opcode::READ, 0, 8), &[]);
    let stays = world.start(other, &transfer(Opcode::READ, 0, 8), &[]);
    world.run();
    world.close(host);
    world.close(host);
    assert_eq!((world.end(write), world.end(read)), (Some(End::Retired), None));
    world.disks.hold.set(false);
    world.run();
    assert_eq!((world.end(read), world.status(stays)), (Some(End::Retired), Status::SUCCESS));
    // The key is free again, and tags of the closed queue mean nothing in the new one.
    let next = world.host(0, 3, &[0]);
    assert_eq!(next.key, host.key);
    world.send_withheld(write);
    assert_eq!(world.read(next, 0, 1), block(0));
    assert_eq!(world.lent(), 0);
}

#[test]
fn the_transport_may_abort_what_is_answered_already() {
    let (mut world, host) = disk();
    world.withhold = true;
    let write = world.start(host, &transfer(Opcode::WRITE, 0, 1), &block(1));
    world.server(host).abort_command(write.key);
    world.run();
    assert_eq!(world.end(write), Some(End::Retired));
}

#[test]
fn namespaces_go_and_turn_read_only() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    world.add(4096, |_| {});
    let host = world.host(0, 1, &[0, 1]);
    world.withhold = true;
    let stays = world.start(host, &transfer(Opcode::WRITE, 0, 1), &block(1));
    let goes = world.start(host, &on(transfer(Opcode::WRITE, 0, 1), 2), &block(1));
    let key = host.key;
    world.server(host).context.change_queue_namespaces(key, [entry(0, true)].into());
    world.run();
    assert_eq!((world.status(goes), world.end(stays)), (Status::INVALID_NAMESPACE.with_do_not_retry(), None));
    world.send_withheld(stays);
    assert_eq!(world.status(stays), Status::NAMESPACE_WRITE_PROTECTED.with_do_not_retry());
    let protected = Status::NAMESPACE_WRITE_PROTECTED.with_do_not_retry();
    assert_eq!(world.command(host, &transfer(Opcode::WRITE, 0, 1), &block(1)), protected);
    assert_eq!(world.command(host, &transfer(Opcode::WRITE_ZEROES, 0, 1), &[]), protected);
    world.good(host, &transfer(Opcode::READ, 0, 1), &[]);
    assert_eq!(
        world.command(host, &on(transfer(Opcode::READ, 0, 1), 2), &[]),
        Status::INVALID_NAMESPACE.with_do_not_retry()
    );
    world.server(host).remove_volume(VolumeId(0));
    assert_eq!(
        world.command(host, &transfer(Opcode::READ, 0, 1), &[]),
        Status::INVALID_NAMESPACE.with_do_not_retry()
    );
}

#[test]
fn states_of_path_and_volume_are_told_apart() {
    let (mut world, host) = disk();
    let ports = || vec![PortId(1)];
    for (access, status) in [
        (volume::PathAccess::Inaccessible, Status::ANA_INACCESSIBLE),
        (volume::PathAccess::PersistentLoss, Status::ANA_PERSISTENT_LOSS),
        (volume::PathAccess::Transition, Status::ANA_TRANSITION),
        (volume::PathAccess::NonOptimized, Status::SUCCESS),
    ] {
        world.request(0, VolumeRequest::SetAccess { ports: ports(), to: access, by: None }).unwrap();
        assert_eq!(world.command(host, &transfer(Opcode::READ, 0, 1), &[]), status);
        assert_eq!(world.command(host, &transfer(Opcode::WRITE, 0, 1), &block(0)), status);
        assert_eq!(world.command(host, &sqe(Opcode::FLUSH), &[]), status);
    }
    world.request(0, VolumeRequest::WriteProtect(true)).unwrap();
    let protected = Status::NAMESPACE_WRITE_PROTECTED.with_do_not_retry();
    assert_eq!(world.command(host, &transfer(Opcode::WRITE, 0, 1), &block(0)), protected);
    world.request(0, VolumeRequest::WriteProtect(false)).unwrap();
    world.request(0, VolumeRequest::Stop).unwrap();
    assert_eq!(world.command(host, &transfer(Opcode::READ, 0, 1), &[]), Status::NAMESPACE_NOT_READY);
    world.request(0, VolumeRequest::Start).unwrap();
    let who = Requester { identity: Arc::new(Identity::Host([9; 16])), port: PortId(1), read_only: false };
    world.request(0, VolumeRequest::SanitizeStart { who }).unwrap();
    assert_eq!(world.command(host, &transfer(Opcode::READ, 0, 1), &[]), Status::SANITIZE_IN_PROGRESS);
    world.request(0, VolumeRequest::SanitizeEnd { done: false }).unwrap();
    assert_eq!(
        world.command(host, &transfer(Opcode::READ, 0, 1), &[]),
        Status::SANITIZE_FAILED.with_do_not_retry()
    );
}
