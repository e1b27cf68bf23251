//! The target in the simulated world: the shard that ships, on a network, clock and backend controlled by one
//! seed, driven by an initiator that checks the rules of the protocol.

mod command;
mod copies;
mod fences;
mod history;
mod leaving;
mod logins;
mod model;
mod placement;
mod plan;
mod reloads;
mod stop;

use std::sync::Arc;
use std::time::Duration;

use blockwire_shard::{Exports, Shard};
use endpoint::{ListenerId, ShardId};
use history::History;
use iscsi::initiator::LoginConfig;
use iscsi::negotiate::Digest;
use iscsi::wire::TmfFunction;
use plan::Plan;
use sim::{Config, PeerEnd, World};
use testkit::iscsi_initiator::TestInitiator;
use testkit::target::{self, TargetLimits, login_config};
use testkit::{Defect, faulty_backend, seeds};
use volume::{RamBackend, RamDisk};

const BLOCKS: u64 = 4096;

fn world(config: Config) -> World<Shard> {
    world_with(config, target::build_exports(&TargetLimits::default()))
}

fn world_with(config: Config, exports: Arc<Exports>) -> World<Shard> {
    let shards = config.shards;
    let mut world = World::new(config, |id, _| Shard::new(id, shards, exports.clone()));
    let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096));
    let geometry = disk.geometry();
    let specs = target::volume_specs(shards, geometry, &[], None, move |_| RamBackend::new(disk.clone()));
    target::serve_volume(&mut world, specs);
    world
}

fn run_until(
    world: &mut World<Shard>,
    initiators: &mut [&mut TestInitiator],
    done: impl Fn(&[&mut TestInitiator]) -> bool,
) {
    for _ in 0..200_000 {
        for initiator in initiators.iter_mut() {
            initiator.poll(world);
        }
        if done(initiators) {
            return;
        }
        let until = world.now() + Duration::from_millis(1);
        world.step(until);
    }
    panic!("it does not come to an end: {world:?}");
}

fn log_in(world: &mut World<Shard>, wanted: LoginConfig) -> TestInitiator {
    let mut initiator = TestInitiator::connect(world, wanted);
    run_until(world, &mut [&mut initiator], |all| all[0].is_logged_in() || all[0].failure().is_some());
    assert_eq!(initiator.failure(), None);
    // The first command reports POWER ON.
    let itt = initiator.send_command(world, 0, &[0; 6], &[], 0);
    run_until(world, &mut [&mut initiator], |all| all[0].is_idle());
    let ended = initiator.ended.pop().unwrap();
    assert_eq!((ended.itt, ended.status), (itt, 2));
    assert_eq!(ended.sense[12], 0x29);
    initiator
}

fn write10(lba: u32, blocks: u16) -> [u8; 10] {
    let [a, b, c, d] = lba.to_be_bytes();
    let [e, f] = blocks.to_be_bytes();
    [0x2a, 0, a, b, c, d, 0, e, f, 0]
}

fn read10(lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = write10(lba, blocks);
    cdb[0] = 0x28;
    cdb
}

#[test]
fn what_is_written_is_read_back() {
    for seed in 0..20 {
        let mut config = Config::new(seed);
        config.loaned_permille = if seed % 2 == 0 { 0 } else { 500 };
        let mut world = world(config);
        let mut asked = login_config(1);
        if seed % 3 == 0 {
            asked.limits.header_digest = vec![Digest::Crc32c];
            asked.limits.data_digest = vec![Digest::Crc32c];
        }
        asked.limits.initial_r2t = seed % 4 == 1;
        asked.limits.immediate_data = seed % 5 != 2;
        let mut initiator = log_in(&mut world, asked);
        for blocks in [1u16, 8, 31, 256] {
            let data: Vec<u8> =
                (0..usize::from(blocks) * 512).map(|at| (at * 7 + seed as usize) as u8).collect();
            initiator.send_command(&mut world, 0, &write10(5, blocks), &data, 0);
            run_until(&mut world, &mut [&mut initiator], |all| all[0].is_idle());
            let ended = initiator.ended.pop().unwrap();
            assert_eq!((ended.status, ended.residual), (0, 0), "seed {seed}, {blocks} blocks: {ended:?}");
            initiator.send_command(&mut world, 0, &read10(5, blocks), &[], data.len());
            run_until(&mut world, &mut [&mut initiator], |all| all[0].is_idle());
            let ended = initiator.ended.pop().unwrap();
            assert_eq!((ended.status, ended.residual), (0, 0));
            assert!(ended.data == data, "seed {seed}: {blocks} blocks are read as written");
        }
        initiator.send_logout(&mut world);
        run_until(&mut world, &mut [&mut initiator], |all| all[0].logged_out);
        world.run_for(Duration::from_secs(20));
        for shard in 0..2 {
            assert_eq!(world.link_count(ShardId(shard)), 0, "seed {seed}: every socket is closed");
            let usage = world.pool(ShardId(shard)).usage();
            assert_eq!((usage.lent, usage.reserved), (0, 0), "seed {seed}: all memory came back");
        }
    }
}

/// Many histories, each against a model of the disk; half of them with short bursts.
#[test]
fn histories_agree_with_a_disk() {
    let test = "blockwire-shard --test simulation histories";
    let (total, runs) =
        seeds::run_all_seeds(200, test, |seed| History::new(Plan::of(seed).in_pieces()).play());
    assert!(runs < 100 || total.is_eventful(), "nothing much happens: {total:?}");
}

/// Histories that found something: a response fence withheld the answer to a task, and the answer came behind
/// the end of the abort of that task, which said that there is no such task (908, 3872, 4263); a session ended
/// under a connection that was on its way to it (848). Two others failed once, and nobody knows why any more
/// (3569, 3663).
#[test]
fn histories_that_found_something_pass() {
    for seed in [848, 908, 3569, 3663, 3872, 4263] {
        History::new(Plan::of(seed)).play();
    }
}

/// Backends with a planted bug: each kind is noticed within a few histories.
#[test]
fn planted_bugs_are_caught() {
    faulty_backend::READ_WRITE_DEFECTS.into_iter().for_each(is_caught);
}

/// The same for what is said to be stable and is not.
#[test]
fn planted_bugs_of_what_is_stable_are_caught() {
    faulty_backend::SYNC_DEFECTS.into_iter().for_each(is_caught);
}

fn is_caught(defect: Defect) {
    seeds::assert_some_seed_fails(defect, 200, |seed| History::new(Plan::of(seed).with(defect)).play());
}

#[test]
fn a_session_is_reinstated_and_its_tasks_end_once() {
    for seed in 0..20 {
        let mut world = world(Config::new(seed));
        let mut old = log_in(&mut world, login_config(1));
        for lba in 0..8 {
            old.send_command(&mut world, 0, &write10(lba * 64, 64), &[1; 64 * 512], 0);
        }
        let steps = world.rng().below(200);
        for _ in 0..steps {
            old.poll(&mut world);
            let until = world.now() + Duration::from_micros(20);
            world.step(until);
        }
        let mut new = log_in(&mut world, login_config(1));
        new.send_command(&mut world, 0, &read10(0, 1), &[], 512);
        run_until(&mut world, &mut [&mut new], |all| all[0].is_idle());
        assert_eq!(new.ended.pop().unwrap().status, 0);
        old.poll(&mut world);
        assert_ne!(old.peer_end(&world), PeerEnd::Open, "seed {seed}: the old connection is gone");
    }
}

#[test]
fn resets_at_any_moment_leak_nothing() {
    for seed in 0..40 {
        let mut world = world(Config::new(seed));
        let mut initiator = log_in(&mut world, login_config(1));
        for lba in 0..6 {
            initiator.send_command(&mut world, 0, &write10(lba * 64, 64), &[2; 64 * 512], 0);
            initiator.send_command(&mut world, 0, &read10(lba * 64, 64), &[], 64 * 512);
        }
        let steps = world.rng().below(300);
        for _ in 0..steps {
            initiator.poll(&mut world);
            let until = world.now() + Duration::from_micros(20);
            world.step(until);
        }
        if seed % 2 == 0 {
            world.reset(initiator.leading_peer());
        } else {
            world.shutdown_write(initiator.leading_peer());
            let _ = world.receive(initiator.leading_peer());
        }
        for _ in 0..40 {
            world.run_for(Duration::from_secs(5));
            let _ = world.receive(initiator.leading_peer());
        }
        for shard in 0..2 {
            assert_eq!(world.link_count(ShardId(shard)), 0, "seed {seed}: every socket is closed");
            let usage = world.pool(ShardId(shard)).usage();
            assert_eq!((usage.lent, usage.reserved), (0, 0), "seed {seed}: all memory came back");
        }
    }
}

#[test]
fn a_task_management_function_is_answered_after_its_tasks() {
    for seed in 0..20 {
        let mut world = world(Config::new(seed));
        let mut initiator = log_in(&mut world, login_config(1));
        let itt = initiator.send_command(&mut world, 0, &write10(0, 128), &[3; 128 * 512], 0);
        let (function, _) = initiator.send_task_management(&mut world, TmfFunction::ABORT_TASK, 0, itt);
        run_until(&mut world, &mut [&mut initiator], |all| !all[0].managed.is_empty());
        let (answered, response) = initiator.managed.pop().unwrap();
        assert_eq!(answered, function);
        let before = initiator.ended.len();
        // 0: it was aborted and nothing more is said of it; 1: it had ended before.
        assert!(response == 0 || before == 1, "seed {seed}: response {response}");
        initiator.forget_task(itt);
        world.run_for(Duration::from_millis(10));
        initiator.send_command(&mut world, 0, &read10(0, 1), &[], 512);
        run_until(&mut world, &mut [&mut initiator], |all| all[0].is_idle());
    }
}

/// No command of a disk moves data both ways.
#[test]
fn a_command_both_ways_is_refused_and_the_session_goes_on() {
    let mut world = world(Config::new(1));
    let mut initiator = log_in(&mut world, login_config(1));
    for data in [&[][..], &[7; 512]] {
        // XDWRITEREAD(10), which is one.
        initiator.send_bidirectional_command(&mut world, &[0x53, 0, 0, 0, 0, 0, 0, 0, 1, 0], data, 512);
        run_until(&mut world, &mut [&mut initiator], |all| all[0].is_idle());
        let ended = initiator.ended.pop().unwrap();
        assert_eq!((ended.status, ended.sense[2] & 0xf, &ended.sense[12..14]), (2, 5, &[0x20, 0][..]));
        assert_eq!((ended.data.len(), ended.residual), (0, data.len() as i64));
        initiator.send_command(&mut world, 0, &read10(0, 1), &[], 512);
        run_until(&mut world, &mut [&mut initiator], |all| all[0].is_idle());
        assert_eq!(initiator.ended.pop().unwrap().status, 0);
    }
}

#[test]
fn attack_01_a_connection_that_says_nothing_is_closed() {
    let mut world = world(Config::new(1));
    let peer = world.connect(ListenerId(0));
    world.run_for(Duration::from_secs(14));
    assert_eq!(world.peer_end(peer), PeerEnd::Open);
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.peer_end(peer), PeerEnd::Closed);
}

#[test]
fn attack_02_one_deadline_for_the_whole_login() {
    let mut world = world(Config::new(1));
    let peer = world.connect(ListenerId(0));
    let mut sent = 0;
    while world.peer_end(peer) == PeerEnd::Open && sent < 60 {
        world.send(peer, &[0x43]);
        sent += 1;
        world.run_for(Duration::from_secs(1));
    }
    assert!(sent <= 17, "closed after {sent} seconds");
}

#[test]
fn attack_03_another_protocol_is_closed_at_its_first_header() {
    for bytes in [&b"GET / HTTP/1.1\r\nHost: blockwire\r\nAccept: */*\r\n\r\n"[..], &[0x16; 64]] {
        let mut world = world(Config::new(1));
        let peer = world.connect(ListenerId(0));
        world.send(peer, bytes);
        world.run_for(Duration::from_millis(100));
        assert_ne!(world.peer_end(peer), PeerEnd::Open);
    }
}
