//! Task management, task attributes and unit attentions.

use scsi::Status;

use super::*;

const TUR: [u8; 6] = [0; 6];
const UNIT: [u8; 8] = [0; 8];

fn two() -> (World, Host, Host) {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let (a, b) = (world.host(0, "iqn.a", &[0]), world.host(1, "iqn.b", &[0]));
    (world, a, b)
}

#[test]
fn a_reset_is_answered_when_every_shard_has_ended_its_tasks() {
    for what in [ManagementFunction::LogicalUnitReset(UNIT), ManagementFunction::TargetReset] {
        let (mut world, a, b) = two();
        world.disks.hold.set(true);
        let (mine, other) =
            (world.start(a, &write_10(0, 1), &block(1), 0), world.start(b, &write_10(1, 1), &block(1), 0));
        world.run();
        let reset = world.manage(a, what);
        world.run();
        assert_eq!((world.end(reset), world.end(other)), (None, None));
        world.disks.hold.set(false);
        world.run();
        assert_eq!(world.end(reset), Some(End::Other(ManagementOutcome::Complete)));
        assert_eq!(world.end(mine), Some(End::Retired));
        assert_eq!(world.outcome(other).status, Status::TASK_ABORTED);
        for host in [a, b] {
            world.refused(host, &TUR, &[], 0, 0x06_2903);
            world.good(host, &TUR, &[], 0);
        }
    }
}

#[test]
fn clearing_a_task_set_leaves_no_command_of_another_without_an_answer() {
    let (mut world, a, b) = two();
    let c = world.host(1, "iqn.c", &[0]);
    world.disks.hold.set(true);
    let queued = world.start_as(b, &UNIT, TaskAttribute::ORDERED, &read_10(0, 1), &[], 512);
    let others =
        [world.start(b, &write_10(1, 1), &block(1), 0), world.start(c, &read_10(0, 1), &[], 512), queued];
    let own = world.start(a, &write_10(2, 1), &block(1), 0);
    world.run();
    let clear = world.manage(a, ManagementFunction::ClearTaskSet(UNIT));
    world.run();
    assert_eq!(world.end(clear), None);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.end(clear), Some(End::Other(ManagementOutcome::Complete)));
    assert_eq!(world.end(own), Some(End::Retired), "who asks is told by the function's answer");
    for other in others {
        let told = world.outcome(other);
        assert_eq!((told.status, told.reply.transferred), (Status::TASK_ABORTED, 0));
    }
    // The status says it: there is no unit attention.
    for host in [a, b, c] {
        world.good(host, &TUR, &[], 0);
    }
}

/// TAS as an initiator set it goes for what a reset ends, and is back at its default behind it.
#[test]
fn a_reset_ends_commands_as_tas_was_and_takes_it_back() {
    let (mut world, a, b) = two();
    set_tas(&mut world, a, false);
    world.refused(b, &TUR, &[], 0, 0x06_2a01);
    for end in [Some(End::Retired), None] {
        world.disks.hold.set(true);
        let other = world.start(b, &write_10(1, 1), &block(1), 0);
        world.run();
        let reset = world.manage(a, ManagementFunction::LogicalUnitReset(UNIT));
        world.run();
        world.disks.hold.set(false);
        world.run();
        assert_eq!(world.end(reset), Some(End::Other(ManagementOutcome::Complete)));
        match end {
            Some(end) => assert_eq!(world.end(other), Some(end)),
            None => assert_eq!(world.outcome(other).status, Status::TASK_ABORTED),
        }
        for host in [a, b] {
            world.refused(host, &TUR, &[], 0, 0x06_2903);
        }
    }
}

fn set_tas(world: &mut World, host: Host, on: bool) {
    let page = &mut world.good(host, &[0x1a, 8, 0x0a, 0, 255, 0], &[], 255)[4..].to_vec();
    page[5] = if on { 0x40 } else { 0 };
    let list = [&[0; 4][..], page].concat();
    world.good(host, &[0x15, 0x10, 0, 0, list.len() as u8, 0], &list, 0);
    assert_eq!(world.good(host, &[0x1a, 8, 0x0a, 0, 255, 0], &[], 255)[4 + 5], page[5]);
}

#[test]
fn without_tas_clearing_a_task_set_is_told_by_attentions_to_whose_tasks_it_ended() {
    let (mut world, a, b) = two();
    set_tas(&mut world, a, false);
    world.refused(b, &TUR, &[], 0, 0x06_2a01);
    let c = world.host(1, "iqn.c", &[0]);
    world.disks.hold.set(true);
    let other = world.start(b, &write_10(1, 1), &block(1), 0);
    let own = world.start(a, &write_10(2, 1), &block(1), 0);
    world.run();
    let clear = world.manage(a, ManagementFunction::ClearTaskSet(UNIT));
    world.run();
    assert_eq!(world.end(clear), None);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.end(clear), Some(End::Other(ManagementOutcome::Complete)));
    assert_eq!((world.end(own), world.end(other)), (Some(End::Retired), Some(End::Retired)));
    world.good(a, &TUR, &[], 0);
    world.refused(b, &TUR, &[], 0, 0x06_2f00);
    world.good(c, &TUR, &[], 0);
}

#[test]
fn abort_task_set_touches_no_other_nexus() {
    let (mut world, a, b) = two();
    world.disks.hold.set(true);
    let own = [world.start(a, &write_10(0, 1), &block(1), 0), world.start(a, &read_10(0, 1), &[], 512)];
    let other = world.start(b, &write_10(1, 1), &block(1), 0);
    world.run();
    let abort = world.manage(a, ManagementFunction::AbortTaskSet(UNIT));
    world.run();
    assert_eq!(world.end(abort), None);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.end(abort), Some(End::Other(ManagementOutcome::Complete)));
    assert_eq!(own.map(|task| world.end(task)), [Some(End::Retired), Some(End::Retired)]);
    assert_eq!(world.outcome(other).status, Status::GOOD);
    world.good(a, &TUR, &[], 0);
}

#[test]
fn queries_and_functions_on_nothing() {
    let (mut world, a, _) = two();
    let done = world.start(a, &TUR, &[], 0);
    world.run();
    let tag = Some(done.key.tag);
    assert_eq!(world.managed(a, ManagementFunction::AbortTask { tag }), ManagementOutcome::NoTask);
    assert_eq!(world.managed(a, ManagementFunction::AbortTask { tag: None }), ManagementOutcome::NoTask);
    assert_eq!(world.managed(a, ManagementFunction::QueryTask { tag }), ManagementOutcome::Complete);
    world.disks.hold.set(true);
    let live = world.start(a, &read_10(0, 1), &[], 512);
    world.run();
    let tag = Some(live.key.tag);
    assert_eq!(world.managed(a, ManagementFunction::QueryTask { tag }), ManagementOutcome::Succeeded);
    assert_eq!(world.managed(a, ManagementFunction::QueryTaskSet(UNIT)), ManagementOutcome::Succeeded);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.managed(a, ManagementFunction::QueryTaskSet(UNIT)), ManagementOutcome::Complete);
    assert_eq!(world.managed(a, ManagementFunction::ClearAca(UNIT)), ManagementOutcome::NotSupported);
    assert_eq!(world.managed(a, ManagementFunction::QueryAsyncEvent(UNIT)), ManagementOutcome::Complete);
    assert_eq!(world.managed(a, ManagementFunction::NexusReset), ManagementOutcome::Complete);
    assert_eq!(world.managed(a, ManagementFunction::QueryAsyncEvent(UNIT)), ManagementOutcome::Succeeded);
    for what in [
        ManagementFunction::AbortTaskSet([0, 9, 0, 0, 0, 0, 0, 0]),
        ManagementFunction::LogicalUnitReset([0xff; 8]),
        ManagementFunction::ClearTaskSet([0xc1, 1, 0, 0, 0, 0, 0, 0]),
        ManagementFunction::QueryTaskSet([0, 0, 0, 1, 0, 0, 0, 0]),
    ] {
        assert_eq!(world.managed(a, what), ManagementOutcome::NoUnit);
    }
}

#[test]
fn ordered_tasks_keep_their_order() {
    let (mut world, a, _) = two();
    let ordered = |world: &mut World, cdb: &[u8], out: &[u8], len| {
        world.start_as(a, &UNIT, TaskAttribute::ORDERED, cdb, out, len)
    };
    world.disks.hold.set(true);
    let first = world.start(a, &write_10(0, 1), &block(1), 0);
    let second = ordered(&mut world, &write_10(0, 1), &block(2), 0);
    let third = world.start(a, &read_10(0, 1), &[], 512);
    let head = world.start_as(a, &UNIT, TaskAttribute::HEAD_OF_QUEUE, &TUR, &[], 0);
    world.run();
    // Head of queue overtakes; the others wait, and have not even asked for their data.
    assert_eq!(world.outcome(head).status, Status::GOOD);
    assert_eq!(world.disks.kinds.borrow().len(), 1);
    world.disks.hold.set(false);
    world.run();
    for task in [first, second, third] {
        assert_eq!(world.outcome(task).status, Status::GOOD);
    }
    assert_eq!(world.outcome(third).data, block(2));
    // One that waits can be aborted, and lets the next in.
    world.disks.hold.set(true);
    let first = world.start(a, &read_10(0, 1), &[], 512);
    let second = ordered(&mut world, &read_10(0, 1), &[], 512);
    let third = world.start(a, &TUR, &[], 0);
    world.run();
    assert_eq!(world.end(third), None);
    let tag = Some(second.key.tag);
    assert_eq!(world.managed(a, ManagementFunction::AbortTask { tag }), ManagementOutcome::Complete);
    assert_eq!(world.end(second), Some(End::Retired));
    assert_eq!(world.outcome(third).status, Status::GOOD);
    assert_eq!(world.end(first), None);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.outcome(first).status, Status::GOOD);
    for attr in [TaskAttribute::ACA, TaskAttribute(5), TaskAttribute(7)] {
        let task = world.start_as(a, &UNIT, attr, &TUR, &[], 0);
        world.run();
        assert_eq!(world.outcome(task).code(), 0x05_4900);
    }
    // A long queue of tasks that end at once is worked off without a deep stack.
    world.disks.hold.set(true);
    let gate = ordered(&mut world, &read_10(0, 1), &[], 512);
    let many: Vec<_> = (0..200).map(|_| ordered(&mut world, &TUR, &[], 0)).collect();
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.outcome(gate).status, Status::GOOD);
    assert!(many.into_iter().all(|task| world.outcome(task).status == Status::GOOD));
}

#[test]
fn attentions_are_told_once_and_by_whatever_asks() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let host = world.fresh_host(0, "iqn.a", 1, &[0]);
    // Not by these.
    world.good(host, &[0x12, 0, 0, 0, 36, 0], &[], 36);
    world.good(host, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], &[], 16);
    world.refused(host, &[0x12, 0, 9, 0, 36, 0], &[], 36, 0x05_2400);
    // But by a command that is wrong, too.
    world.refused(host, &[0xc1, 0, 0, 0, 0, 0], &[], 0, 0x06_2900);
    world.refused(host, &[0xc1, 0, 0, 0, 0, 0], &[], 0, 0x05_2000);
    // REQUEST SENSE tells the oldest, and takes it away.
    let geometry = world.homes[0].view().geometry;
    world.request(VolumeId(0), VolumeRequest::Resize(Geometry { blocks: 8000, ..geometry }));
    world.request(VolumeId(0), VolumeRequest::WriteProtect(true));
    let sense = world.good(host, &[0x03, 0, 0, 0, 18, 0], &[], 18);
    assert_eq!((sense[2], sense[12], sense[13]), (6, 0x2a, 0x09));
    world.refused(host, &TUR, &[], 0, 0x06_2a01);
    world.good(host, &TUR, &[], 0);
}

/// A reset ends what waits at home for its turn, from whatever shard: it is not carried out later.
#[test]
fn what_a_reset_ends_is_not_carried_out_behind_it() {
    let (mut world, a, b) = two();
    let reset = world.manage(a, ManagementFunction::LogicalUnitReset(UNIT));
    let mut list = [0; 24];
    list[15] = 9;
    let register = world.start(b, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list, 0);
    world.run();
    assert_eq!(world.end(reset), Some(End::Other(ManagementOutcome::Complete)));
    assert_eq!(world.outcome(register).status, Status::TASK_ABORTED);
    assert!(world.homes[0].view().reservations.registrants().is_empty());
    world.refused(b, &TUR, &[], 0, 0x06_2903);
    let register = world.start(b, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list, 0);
    world.run();
    assert_eq!(world.outcome(register).status, Status::GOOD);
}

#[test]
fn only_what_is_plain_in_every_respect_is_done_at_once() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let fresh = world.fresh_host(0, "iqn.fresh", 1, &[0]);
    let host = world.host(0, "iqn.a", &[0]);
    let (read, write) = (read_10(8, 2), write_10(8, 2));
    let arrived = |cdb: &'static [u8], data_in, data_out| IncomingCommand {
        lun: UNIT,
        cdb,
        attr: TaskAttribute::SIMPLE,
        data_in,
        data_out,
    };
    let (read, write): (&'static [u8], &'static [u8]) = (Vec::from(read).leak(), Vec::from(write).leak());
    let plain = world.server(host).inline_io_for(host.key, &arrived(read, 1024, 0)).expect("a plain read");
    assert_eq!((plain.volume, plain.bytes, plain.write), (VolumeId(0), 1024, None));
    assert_eq!(plain.span, volume::Span { lba: 8, blocks: 2 });
    let plain = world.server(host).inline_io_for(host.key, &arrived(write, 0, 1024)).expect("a plain write");
    assert_eq!((plain.bytes, plain.write), (1024, Some(volume::Durability::Cached)));
    let fua: &'static [u8] = &[0x2a, 0x08, 0, 0, 0, 8, 0, 0, 2, 0];
    let plain = world.server(host).inline_io_for(host.key, &arrived(fua, 0, 1024)).expect("a plain write");
    assert_eq!(plain.write, Some(volume::Durability::Stable));
    let none: &'static [u8] = &[0x28, 0, 0, 0, 0, 8, 0, 0, 0, 0];
    let reserved: &'static [u8] = &[0x28, 0x20, 0, 0, 0, 8, 0, 0, 2, 0];
    for refused in [
        arrived(read, 512, 0),
        arrived(read, 2048, 0),
        arrived(write, 0, 512),
        arrived(none, 0, 0),
        arrived(reserved, 1024, 0),
        arrived(&TUR, 0, 0),
        IncomingCommand { attr: TaskAttribute::ORDERED, ..arrived(read, 1024, 0) },
        IncomingCommand { attr: TaskAttribute(5), ..arrived(read, 1024, 0) },
        IncomingCommand { lun: [0, 1, 0, 0, 0, 0, 0, 0], ..arrived(read, 1024, 0) },
    ] {
        assert_eq!(world.server(host).inline_io_for(host.key, &refused), None, "{refused:?}");
    }
    // A unit attention is told first.
    assert_eq!(world.server(fresh).inline_io_for(fresh.key, &arrived(read, 1024, 0)), None);
    // So long as an ORDERED task is at work, others wait for their turn.
    world.disks.hold.set(true);
    world.start_as(host, &UNIT, TaskAttribute::ORDERED, write, &[2; 1024], 0);
    world.run();
    assert_eq!(world.server(host).inline_io_for(host.key, &arrived(read, 1024, 0)), None);
    world.disks.hold.set(false);
    world.run();
    assert!(world.server(host).inline_io_for(host.key, &arrived(read, 1024, 0)).is_some());
    // Who may only read writes nothing.
    let luns = vec![LunEntry { lun: 0, volume: VolumeId(0), read_only: true }];
    world.server(host).change_luns(host.key, luns);
    world.refused(host, &TUR, &[], 0, 0x06_3f0e);
    assert_eq!(world.server(host).inline_io_for(host.key, &arrived(write, 0, 1024)), None);
    assert!(world.server(host).inline_io_for(host.key, &arrived(read, 1024, 0)).is_some());
}

#[test]
fn a_unit_whose_commands_died_with_a_connection_tells_so() {
    let (mut world, a, b) = two();
    world.server(a).handle_commands_cleared(a.key, [0, 9, 0, 0, 0, 0, 0, 0]);
    world.good(a, &TUR, &[], 0);
    world.server(a).handle_commands_cleared(a.key, UNIT);
    world.server(a).handle_commands_cleared(a.key, UNIT);
    world.refused(a, &TUR, &[], 0, 0x06_477f);
    world.good(a, &TUR, &[], 0);
    world.good(b, &TUR, &[], 0);
}
