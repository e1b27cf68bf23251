//! State with the lifetime of a nexus is gone when its session reports that: after the answer to a logout, a
//! reservation by RESERVE(6) blocks no host, and its late end takes nothing from the next session.

use std::sync::Arc;
use std::time::Duration;

use blockwire_shard::{Shard, TargetExport, TargetPort};
use sim::{Config, World};
use volume::PortId;

use crate::{log_in, run_until};
use testkit::iscsi_initiator::TestInitiator;
use testkit::target::{self, login_config};

const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const TEST_UNIT_READY: [u8; 6] = [0; 6];
const CONFLICT: u8 = 0x18;
const SECOND: &str = "iqn.2026-11.io.blockwire:second";
/// More shards, and slower messages between them, than other tests have.
const SHARDS: u16 = 4;

fn world(seed: u64) -> World<Shard> {
    super::world(Config { shards: SHARDS, ..Config::new(seed) })
}

fn status(world: &mut World<Shard>, host: &mut TestInitiator, cdb: &[u8]) -> u8 {
    let itt = host.send_command(world, 0, cdb, &[], 0);
    run_until(world, &mut [&mut *host], |all| all[0].is_idle());
    let ended = host.ended.pop().unwrap();
    assert_eq!(ended.itt, itt);
    ended.status
}

#[test]
fn no_reservation_stands_when_the_logout_of_its_nexus_is_answered() {
    for seed in 0..60 {
        let mut world = world(seed);
        let mut holder = log_in(&mut world, login_config(1));
        let mut other = log_in(&mut world, login_config(2));
        assert_eq!(status(&mut world, &mut holder, &RESERVE), 0);
        assert_eq!(status(&mut world, &mut other, &TEST_UNIT_READY), CONFLICT, "seed {seed}");
        holder.send_logout(&mut world);
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
        let mut other = log_in(&mut world, login_config(2));
        let mut old = log_in(&mut world, login_config(1));
        assert_eq!(status(&mut world, &mut old, &RESERVE), 0);
        let mut new = log_in(&mut world, login_config(1));
        assert_eq!(status(&mut world, &mut other, &TEST_UNIT_READY), 0, "seed {seed}: it is still reserved");
        assert_eq!(status(&mut world, &mut new, &RESERVE), 0, "seed {seed}");
        world.run_for(Duration::from_millis(50));
        assert_eq!(status(&mut world, &mut other, &TEST_UNIT_READY), CONFLICT, "seed {seed}: it was taken");
    }
}

/// A target port is a target's name and a portal group tag (RFC 7143 §3.4.1): an initiator port that logs in to two
/// targets of one volume is two I_T nexuses to it, whichever shards they live on.
#[test]
fn sessions_by_two_targets_of_one_volume_are_two_nexuses() {
    for seed in 0..40 {
        let mut world = two_targets(seed);
        let by_second = iscsi::initiator::LoginConfig { target_name: Some(SECOND.into()), ..login_config(1) };
        let mut first = log_in(&mut world, login_config(1));
        let mut second = log_in(&mut world, by_second);
        let mut other = log_in(&mut world, login_config(2));
        assert_eq!(status(&mut world, &mut second, &RESERVE), 0);
        assert_eq!(status(&mut world, &mut first, &TEST_UNIT_READY), CONFLICT, "seed {seed}: it is not his");
        first.send_logout(&mut world);
        run_until(&mut world, &mut [&mut first], |all| all[0].logged_out);
        world.run_for(Duration::from_millis(50));
        assert_eq!(status(&mut world, &mut other, &TEST_UNIT_READY), CONFLICT, "seed {seed}: it was taken");
        second.send_logout(&mut world);
        run_until(&mut world, &mut [&mut second], |all| all[0].logged_out);
        assert_eq!(status(&mut world, &mut other, &TEST_UNIT_READY), 0, "seed {seed}: it is still reserved");
    }
}

/// Two targets of one volume, with ports of their own.
fn two_targets(seed: u64) -> World<Shard> {
    let mut exports = (*target::build_exports(&target::TargetLimits::default())).clone();
    let ports = vec![TargetPort { port: PortId(9), portal_group: exports.portals[0].group }];
    exports.targets.push(TargetExport { name: SECOND.into(), ports, ..exports.targets[0].clone() });
    super::world_with(Config { shards: SHARDS, ..Config::new(seed) }, Arc::new(exports))
}

/// REGISTER of `key`, by who has registered `current`.
fn register(world: &mut World<Shard>, host: &mut TestInitiator, current: u8, key: u8) -> u8 {
    let mut list = [0; 24];
    (list[7], list[15]) = (current, key);
    let itt = host.send_command(world, 0, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list, 0);
    run_until(world, &mut [&mut *host], |all| all[0].is_idle());
    let ended = host.ended.pop().unwrap();
    assert_eq!(ended.itt, itt);
    ended.status
}

/// Reads `len` bytes of what a command tells.
fn told(world: &mut World<Shard>, host: &mut TestInitiator, cdb: &[u8], len: usize) -> Vec<u8> {
    host.send_command(world, 0, cdb, &[], len);
    run_until(world, &mut [&mut *host], |all| all[0].is_idle());
    let ended = host.ended.pop().unwrap();
    assert_eq!(ended.status, 0);
    ended.data
}

#[test]
fn each_session_by_a_target_of_its_own_is_registered_for_itself_and_names_its_own_port() {
    let mut world = two_targets(3);
    let by_second = iscsi::initiator::LoginConfig { target_name: Some(SECOND.into()), ..login_config(1) };
    let (mut first, mut second) = (log_in(&mut world, login_config(1)), log_in(&mut world, by_second));
    for (host, own, other) in [(&mut first, 1, 9), (&mut second, 9, 1)] {
        assert_eq!(register(&mut world, host, 0, 7), 0, "it is not registered yet");
        let groups = told(&mut world, host, &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], 64);
        // One group, whose number and port are behind the list's length.
        assert_eq!((groups[3], groups[6..8].to_vec(), groups[15]), (12, vec![0, own], own));
        let names = told(&mut world, host, &[0x12, 1, 0x83, 0, 255, 0], 255);
        let relative = |port| names.windows(8).any(|at| at == [0x01, 0x14, 0, 4, 0, 0, 0, port]);
        assert!(relative(own) && !relative(other), "{names:02x?}");
    }
    let keys = told(&mut world, &mut second, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0], 64);
    assert_eq!(keys[7], 16, "two registrations");
    // Who leaves takes nobody along.
    assert_eq!(register(&mut world, &mut first, 7, 0), 0);
    let keys = told(&mut world, &mut second, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0], 64);
    assert_eq!((keys[7], keys[15]), (8, 7));
}
