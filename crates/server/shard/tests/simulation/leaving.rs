//! What lasts as long as a nexus is gone when its session says so: a reservation by RESERVE(6) holds nobody up
//! behind the answer to a logout, and its late end takes nothing from the session that comes next.

use std::sync::Arc;
use std::time::Duration;

use blockwire_shard::{Shard, TargetExport};
use sim::{Config, World};

use crate::{log_in, run_until};
use testkit::iscsi_host::Initiator;
use testkit::target::{self, wanted};

const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const TEST_UNIT_READY: [u8; 6] = [0; 6];
const CONFLICT: u8 = 0x18;
const SECOND: &str = "iqn.2026-11.io.blockwire:second";
/// More shards, and slower messages between them, than other tests have.
const SHARDS: u16 = 4;

fn world(seed: u64) -> World<Shard> {
    super::world(Config { shards: SHARDS, ..Config::new(seed) })
}

fn status(world: &mut World<Shard>, host: &mut Initiator, cdb: &[u8]) -> u8 {
    let itt = host.command(world, 0, cdb, &[], 0);
    run_until(world, &mut [&mut *host], |all| all[0].is_idle());
    let ended = host.ended.pop().unwrap();
    assert_eq!(ended.itt, itt);
    ended.status
}

#[test]
fn no_reservation_stands_when_the_logout_of_its_nexus_is_answered() {
    for seed in 0..60 {
        let mut world = world(seed);
        let mut holder = log_in(&mut world, wanted(1));
        let mut other = log_in(&mut world, wanted(2));
        assert_eq!(status(&mut world, &mut holder, &RESERVE), 0);
        assert_eq!(status(&mut world, &mut other, &TEST_UNIT_READY), CONFLICT, "seed {seed}");
        holder.log_out(&mut world);
        run_until(&mut world, &mut [&mut holder], |all| all[0].logged_out);
        assert_eq!(status(&mut world, &mut other, &TEST_UNIT_READY), 0, "seed {seed}: it is still reserved");
        assert_eq!(status(&mut world, &mut other, &RESERVE), 0, "seed {seed}");
    }
}

/// The nexus of a session that is reinstated bears the name of the one before: the end of that one must not
/// come behind what this one makes.
#[test]
fn the_end_of_a_session_does_not_take_the_reservation_of_the_one_that_reinstates_it() {
    for seed in 0..60 {
        let mut world = world(seed);
        let mut other = log_in(&mut world, wanted(2));
        let mut old = log_in(&mut world, wanted(1));
        assert_eq!(status(&mut world, &mut old, &RESERVE), 0);
        let mut new = log_in(&mut world, wanted(1));
        assert_eq!(status(&mut world, &mut other, &TEST_UNIT_READY), 0, "seed {seed}: it is still reserved");
        assert_eq!(status(&mut world, &mut new, &RESERVE), 0, "seed {seed}");
        world.run_for(Duration::from_millis(50));
        assert_eq!(status(&mut world, &mut other, &TEST_UNIT_READY), CONFLICT, "seed {seed}: it was taken");
    }
}

/// An initiator that reaches a volume by two targets is one nexus to it, as long as one of its sessions lives,
/// whichever shards they live on.
#[test]
fn a_session_by_another_target_does_not_take_the_reservation_along_when_it_ends() {
    for seed in 0..40 {
        let mut exports = (*target::exports(&target::Terms::default())).clone();
        let second = TargetExport { name: SECOND.into(), ..exports.targets[0].clone() };
        exports.targets.push(second);
        let config = Config { shards: SHARDS, ..Config::new(seed) };
        let mut world = super::world_with(config, Arc::new(exports));
        let by_second = iscsi::initiator::LoginConfig { target_name: Some(SECOND.into()), ..wanted(1) };
        let mut first = log_in(&mut world, wanted(1));
        let mut second = log_in(&mut world, by_second);
        let mut other = log_in(&mut world, wanted(2));
        assert_eq!(status(&mut world, &mut second, &RESERVE), 0);
        first.log_out(&mut world);
        run_until(&mut world, &mut [&mut first], |all| all[0].logged_out);
        world.run_for(Duration::from_millis(50));
        assert_eq!(status(&mut world, &mut other, &TEST_UNIT_READY), CONFLICT, "seed {seed}: it was taken");
        second.log_out(&mut world);
        run_until(&mut world, &mut [&mut second], |all| all[0].logged_out);
        assert_eq!(status(&mut world, &mut other, &TEST_UNIT_READY), 0, "seed {seed}: it is still reserved");
    }
}
