//! Cross-Controller Reset.

use nvme::{ControllerInstance, Opcode, Status};

use super::super::{block, transfer};
use super::*;
use crate::ControllerEnd;

/// By what its host may have this controller reset, as Identify Controller tells it.
fn instance(world: &mut World, host: Host) -> ControllerInstance {
    let data = world.good(host, &admin(0x06, 0, &[1], 4096), &[]);
    assert_eq!(data[1807], 8, "CCRL");
    let random_number = u64::from_le_bytes(data[136..144].try_into().unwrap());
    let cntlid = u16::from_le_bytes(data[78..80].try_into().unwrap());
    assert!(data[135] != 0 && random_number != 0);
    ControllerInstance { cntlid, uniquifier: data[135], random_number }
}

fn reset(instance: ControllerInstance) -> Sqe {
    Sqe { flags: 0x40, ..instance.to_reset_sqe() }
}

/// Controllers 2 and 3 of one host, on one shard each; 2 has an I/O queue on the shard of 3.
fn world() -> (World, [Host; 2], Host) {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let hosts = [2, 3].map(|cntlid| world.controller(spec(cntlid, 1, vec![entry(0)])));
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    (world, hosts, queue)
}

#[test]
fn a_host_has_a_controller_reset_by_another_one() {
    let (mut world, [lost, other], queue) = world();
    world.good(queue, &transfer(Opcode::WRITE, 0, 1), &block(1));
    let lost = instance(&mut world, lost);
    let end = world.ends(other, &reset(lost), &[]);
    assert_eq!((end.status, end.result), (Status::SUCCESS, 1));
    assert_eq!(world.gone, [(2, ControllerEnd::CrossControllerReset)]);
    assert!(world.ended.contains(&queue));
    // Once more: it is gone. Its log has nothing to add.
    assert_eq!(world.ends(other, &reset(lost), &[]).result, 1);
    assert_eq!(world.good(other, &get_log(0x1e, 16), &[]), [0; 16]);
    // Another life of the number is not meant.
    let again = world.controller(spec(2, 1, vec![entry(0)]));
    assert_ne!(instance(&mut world, again), lost);
    assert_eq!(world.ends(other, &reset(lost), &[]).result, 1);
    assert_eq!(world.gone.len(), 1);
}

#[test]
fn a_reset_is_not_complete_before_all_queues_are_gone() {
    let (mut world, [lost, other], queue) = world();
    let lost = instance(&mut world, lost);
    // What the controller tells its queues does not arrive yet.
    world.hold_messages = true;
    let started = world.start(other, &reset(lost), &[]);
    world.run();
    assert_eq!((world.end(started), world.ended.contains(&queue)), (None, false));
    let twice = world.start(other, &reset(lost), &[]);
    assert_eq!(world.status(twice), Status::CROSS_CONTROLLER_RESET_IN_PROGRESS);
    world.hold_messages = false;
    world.run();
    assert_eq!(world.completion(started).result, 1);
    assert!(world.ended.contains(&queue));
}

#[test]
fn resets_of_what_is_not_the_hosts_own_are_refused() {
    let (mut world, [lost, other], _) = world();
    let (lost, own) = (instance(&mut world, lost), instance(&mut world, other));
    let invalid = Status::INVALID_FIELD.with_do_not_retry();
    assert_eq!(world.command(other, &reset(own), &[]), invalid, "itself");
    let stranger = world.controller(spec(5, 2, vec![entry(0)]));
    assert_eq!(world.command(stranger, &reset(lost), &[]), invalid, "another host's");
    let elsewhere =
        Arc::new(Subsystem { nqn: nqn("nqn.2026-11.io.blockwire:other"), ..(*subsystem()).clone() });
    let elsewhere = world.controller(ControllerSpec { subsystem: elsewhere, ..spec(7, 1, vec![entry(0)]) });
    assert_eq!(world.command(elsewhere, &reset(lost), &[]), invalid, "of another subsystem");
    // A guess of its random number names nobody.
    let guess = ControllerInstance { random_number: lost.random_number ^ 1, ..lost };
    assert_eq!(world.ends(other, &reset(guess), &[]).result, 1);
    assert!(world.gone.is_empty());
}

#[test]
fn no_more_resets_are_under_way_than_were_announced() {
    let (mut world, [_, other], _) = world();
    let lost: Vec<_> = (10..19)
        .map(|cntlid| {
            let host = world.controller(spec(cntlid, 1, vec![entry(0)]));
            world.connect(cntlid, &join(1, 1, 0)).unwrap();
            instance(&mut world, host)
        })
        .collect();
    world.hold_messages = true;
    let started: Vec<_> = lost.iter().map(|lost| world.start(other, &reset(*lost), &[])).collect();
    let (last, first) = started.split_last().unwrap();
    assert_eq!(world.status(*last), Status::CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED);
    assert!(first.iter().all(|started| world.end(*started).is_none()));
    world.hold_messages = false;
    world.run();
    assert!(first.iter().all(|started| world.completion(*started).result == 1));
    // The asker goes while its question is under way.
    world.hold_messages = true;
    world.start(other, &reset(lost[8]), &[]);
    world.hold_messages = false;
    world.close(other);
    world.run();
    assert_eq!(world.gone.len(), 10);
}
