//! Queues: how they are created, what they carry, how often, and over which shards.

use std::sync::Arc;
use std::time::Duration;

use blockwire_shard::{
    ControlReport, ControlRequest, ControllerLimits, Exports, HostRule, Message, NamespaceMask,
    PlacementReason, Shard, ShardListing,
};
use endpoint::ShardId;
use nvme::fabrics::{ConnectData, ConnectRefusal};
use nvme::{Completion, Status};
use sim::{Config, World};

use crate::host::{DISCOVERY, Host, Wanted, heed, keys, reserve, reset, sqe, transfer};
use crate::{BLOCKS, pattern, world, world_of, world_with};
use testkit::target;

pub fn listings(world: &mut World<Shard>) -> Vec<ShardListing> {
    for shard in 0..world.shard_count() {
        world.send_message(ShardId(shard as u16), Message::Control(9, ControlRequest::List));
    }
    world.run_for(Duration::from_millis(1));
    let mut reports = Vec::new();
    heed(world, &mut reports);
    let listing = |report| match report {
        ControlReport::Listing(listing) => Some(*listing),
        _ => None,
    };
    reports.into_iter().filter_map(listing).collect()
}

#[test]
fn what_is_written_by_one_queue_is_read_by_another() {
    for seed in 0..20 {
        let digests = (seed & 1 != 0, seed & 2 != 0);
        let flow_control = seed & 4 != 0;
        let mut world = world(seed, 1 + (seed % 3) as u16);
        let wanted = Wanted { digests, flow_control, ..Wanted::default() };
        let mut host = Host::connect(&mut world, wanted);
        for (lba, blocks) in [(0, 1), (8, 8), (100, 16), (200, 256), (1000, 2048)] {
            let data = pattern(lba, blocks, seed as u8);
            assert_eq!(host.write(&mut world, 1, lba, &data), Status::SUCCESS, "seed {seed}");
            assert!(host.read(&mut world, 2, lba, blocks) == data, "seed {seed}: {blocks} blocks at {lba}");
        }
        assert!(host.pipes[1].solicited > 0, "seed {seed}: long writes are asked for");
    }
}

#[test]
fn full_queues_on_all_shards_answer_everything() {
    for seed in 0..10 {
        let mut world = world(seed, 3);
        let wanted = Wanted { queues: 4, digests: (true, true), flow_control: false, ..Wanted::default() };
        let mut host = Host::connect(&mut world, wanted);
        for round in 0..4u64 {
            for at in 1..=4usize {
                for slot in 0..16u64 {
                    let lba = (at as u64 * 64 + slot) * 8;
                    let data = pattern(lba, 8, round as u8);
                    host.start(&mut world, at, transfer(1, lba, 8), &data, 0);
                }
            }
            host.settle(&mut world);
            for at in 1..=4usize {
                let ended = std::mem::take(&mut host.pipes[at].ended);
                assert_eq!(ended.len(), 16);
                assert!(ended.iter().all(|ended| ended.status.is_success()), "seed {seed}: {ended:?}");
            }
            for at in 1..=4usize {
                for slot in 0..16u64 {
                    let lba = (at as u64 * 64 + slot) * 8;
                    assert!(host.read(&mut world, 5 - at, lba, 8) == pattern(lba, 8, round as u8));
                }
            }
        }
    }
}

/// SPDK frees a queue and makes it again at once: the end of the old connection may be heard of later.
#[test]
fn a_queue_that_is_connected_anew_waits_for_the_end_of_the_old_one() {
    for seed in 0..40 {
        let mut world = world(seed, 1 + (seed % 3) as u16);
        let mut host = Host::connect(&mut world, Wanted { queues: 2, ..Wanted::default() });
        for round in 0..3 {
            reset(&mut world, &host.pipes[1]);
            let ended = host.join(&mut world, 1);
            assert!(ended.status.is_success(), "seed {seed}, round {round}: {ended:?}");
            // The new one stands where the old one was.
            let new = host.pipes.pop().unwrap();
            host.pipes[1] = new;
            let data = pattern(8, 4, round);
            assert_eq!(host.write(&mut world, 1, 8, &data), Status::SUCCESS, "seed {seed}");
            assert!(host.read(&mut world, 2, 8, 4) == data, "seed {seed}");
        }
        // Who is there and stays keeps its number.
        let ended = host.join(&mut world, 1);
        assert_eq!(ended.status.0 & 0x7ff, Status::COMMAND_SEQUENCE_ERROR.0, "seed {seed}: {ended:?}");
        assert!(host.read(&mut world, 1, 8, 4) == pattern(8, 4, 2), "seed {seed}");
    }
}

#[test]
fn queues_go_where_the_network_card_hands_their_bytes_over_while_balance_is_kept() {
    let mut world = world(3, 3);
    world.set_peer_origin("192.0.2.7".parse().unwrap(), 1);
    let mut host = Host::connect(&mut world, Wanted { queues: 4, ..Wanted::default() });
    for at in 1..=4 {
        assert!(host.read(&mut world, at, 0, 8).len() == 4096);
    }
    let listings = listings(&mut world);
    let of = |shard: usize| {
        let queues = listings[shard].queues.iter().filter(|queue| queue.qid > 0);
        queues.map(|queue| queue.placed.choice).collect::<Vec<_>>()
    };
    // One for each shard, and the fourth is the queue's again.
    assert_eq!(of(1), [PlacementReason::Queue; 2]);
    assert_eq!((of(0), of(2)), (vec![PlacementReason::NotQueue], vec![PlacementReason::NotQueue]));
    let admin = listings[1].queues.iter().find(|queue| queue.qid == 0).expect("the admin queue too");
    assert_eq!(admin.placed.choice, PlacementReason::Queue);
}

#[test]
fn queues_go_round_the_shards_and_are_listed() {
    let mut world = world(3, 3);
    let host = Host::connect(&mut world, Wanted { queues: 3, ..Wanted::default() });
    let listings = listings(&mut world);
    assert_eq!(listings.len(), 3);
    for (shard, listing) in listings.iter().enumerate() {
        let ids: Vec<u16> = listing.queues.iter().map(|queue| queue.qid).collect();
        for queue in &listing.queues {
            assert_eq!(queue.cntlid, host.cntlid);
            assert_eq!(usize::from((queue.cntlid + queue.qid) % 3), shard);
            assert_eq!((queue.host.as_str(), queue.entries), (host.wanted.host, 32));
        }
        assert_eq!(ids.len(), if shard == usize::from(host.cntlid % 3) { 2 } else { 1 });
        assert_eq!(listing.logins, 0);
    }
}

/// The numbers of a list of controllers (CNS 12h of namespace 1, or 13h), from one on.
fn controllers(world: &mut World<Shard>, host: &mut Host, cns: u32, from: u16) -> Vec<u16> {
    let mut identify = sqe(6);
    (identify.cdw10[0], identify.nsid) = ((cns | u32::from(from) << 16).into(), 1.into());
    let ended = host.ask(world, 0, identify, &[], 4096);
    assert!(ended.status.is_success(), "{ended:?}");
    let count = usize::from(u16::from_le_bytes([ended.data[0], ended.data[1]]));
    let numbers = ended.data[2..].chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
    let numbers: Vec<u16> = numbers.collect();
    assert!(numbers[count..].iter().all(|number| *number == 0));
    numbers[..count].to_vec()
}

/// Hosts on several shards: each is told of all controllers of the subsystem, and of those that its
/// namespace is attached to.
#[test]
fn every_controller_of_a_subsystem_is_listed_whatever_its_shard() {
    let other = "nqn.2026-11.test:other";
    let mut exports = Exports::clone(&target::build_exports(&target::TargetLimits::default()));
    let rules = &mut exports.nvme.subsystems[0].rules;
    let blind =
        HostRule { hosts: vec![other.into()], namespaces: NamespaceMask::Some(vec![]), ..rules[0].clone() };
    rules.insert(0, blind);
    let mut world = world_with(5, 3, &Arc::new(exports));
    let wanted = |host, host_id| Wanted { queues: 1, host, host_id, ..Wanted::default() };
    let names = Wanted::default().host;
    let mut hosts: Vec<Host> = (1..=3).map(|id| Host::connect(&mut world, wanted(names, id))).collect();
    let blind = Host::connect(&mut world, wanted(other, 9)).cntlid;
    let mut all: Vec<u16> = hosts.iter().map(|host| host.cntlid).collect();
    let shards: std::collections::BTreeSet<u16> = all.iter().map(|cntlid| cntlid % 3).collect();
    assert!(shards.len() > 1, "on several shards: {all:?}");
    all.sort_unstable();
    let mut whole = all.clone();
    whole.push(blind);
    whole.sort_unstable();
    for host in &mut hosts {
        assert_eq!(controllers(&mut world, host, 0x13, 0), whole);
        assert_eq!(controllers(&mut world, host, 0x12, 0), all);
        let (from, behind) = (whole[1], whole[1..].to_vec());
        assert_eq!(controllers(&mut world, host, 0x13, from), behind);
        assert_eq!(controllers(&mut world, host, 0x13, 0xffff), []);
    }
    // One that goes is on no list any more.
    let gone = hosts.remove(0);
    reset(&mut world, &gone.pipes[0]);
    world.run_for(Duration::from_secs(1));
    let left: Vec<u16> = whole.into_iter().filter(|cntlid| *cntlid != gone.cntlid).collect();
    assert_eq!(controllers(&mut world, &mut hosts[0], 0x13, 0), left);
}

/// Bytes of in-capsule data that a controller takes, by its Identify data (IOCCSZ).
fn in_capsule(world: &mut World<Shard>, host: &mut Host) -> usize {
    let mut identify = sqe(6);
    identify.cdw10[0] = 1.into();
    let ended = host.ask(world, 0, identify, &[], 4096);
    assert!(ended.status.is_success(), "{ended:?}");
    let units = u32::from_le_bytes(ended.data[1792..1796].try_into().unwrap());
    units as usize * 16 - 64
}

/// A world of one shard, with so much memory, that lets hosts have as many queues as there may be.
fn roomy(seed: u64, pool_bytes: usize) -> World<Shard> {
    let mut exports = Exports::clone(&target::build_exports(&target::TargetLimits::default()));
    exports.nvme.subsystems[0].limits = ControllerLimits { controllers: 64, ..ControllerLimits::default() };
    let mut config = Config::new(seed);
    (config.shards, config.pool_bytes) = (1, pool_bytes);
    world_of(config, &Arc::new(exports))
}

#[test]
fn a_thousand_queues_fit_one_shard_and_all_write_at_once() {
    let mut world = roomy(1, 128 << 20);
    let wanted = Wanted { queues: 125, entries: 128, ..Wanted::default() };
    let mut hosts: Vec<Host> = (0..8).map(|_| Host::connect(&mut world, wanted.clone())).collect();
    for host in &mut hosts {
        assert_eq!(in_capsule(&mut world, host), 8192);
    }
    // What they keep is 16 KiB each.
    assert_eq!(world.pool(ShardId(0)).usage().reserved, 1008 * (16 << 10));
    for (group, host) in hosts.iter_mut().enumerate() {
        for at in 1..=125usize {
            for slot in 0..4 {
                let lba = ((group * 125 + at) * 4 + slot) as u64 % BLOCKS;
                host.start(&mut world, at, transfer(1, lba, 1), &pattern(lba, 1, 7), 0);
            }
        }
    }
    for host in &mut hosts {
        host.settle(&mut world);
        for pipe in &mut host.pipes {
            let ended = std::mem::take(&mut pipe.ended);
            assert!(ended.iter().all(|ended| ended.status.is_success()), "{ended:?}");
        }
    }
    assert!(hosts[0].read(&mut world, 1, 4003, 1) == pattern(4003, 1, 7));
    assert_eq!(world.pool(ShardId(0)).usage().reserved, 1008 * (16 << 10), "what was borrowed is back");
    reset(&mut world, &hosts[0].pipes[0]);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.pool(ShardId(0)).usage().reserved, 882 * (16 << 10));
}

#[test]
fn controllers_are_offered_less_as_memory_grows_short_and_none_is_refused() {
    let mut world = roomy(2, 4 << 20);
    let mut offers = Vec::new();
    for _ in 0..24 {
        let mut host = Host::admin(&mut world, Wanted::default()).expect("it is let in");
        host.enable(&mut world);
        let mut ask = sqe(9);
        (ask.cdw10[0], ask.cdw10[1]) = (7.into(), 0x007f_007f.into());
        let granted = host.ask(&mut world, 0, ask, &[], 0);
        let queues = (granted.result as u16) + 1;
        let most = in_capsule(&mut world, &mut host);
        for qid in 1..=queues {
            let ended = host.join(&mut world, qid);
            assert!(ended.status.is_success(), "queue {qid} of {queues}, {most}: {ended:?}");
        }
        let data = pattern(8, 4, queues as u8);
        let cid = host.pipes[1].send_command(&mut world, transfer(1, 8, 4), &data, most >= 2048, 0);
        let ended = crate::host::wait(&mut world, &mut host.pipes[1], cid);
        assert!(ended.status.is_success());
        assert_eq!(host.pipes[1].solicited, if most == 0 { 2048 } else { 0 });
        assert!(host.read(&mut world, 1, 8, 4) == data);
        offers.push((most, queues));
    }
    offers.dedup();
    assert_eq!(offers.first().map(|offer| offer.0), Some(8192));
    assert!(offers.iter().any(|offer| offer.0 == 4096));
    assert_eq!(offers.last(), Some(&(0, 128)));
    assert!(offers.is_sorted_by(|one, next| one.0 >= next.0), "{offers:?}");
}

#[test]
fn discovery_is_answered_on_both_kinds_of_listeners_and_subsystems_on_one() {
    let mut world = world(1, 2);
    let discovery = Wanted { subsystem: nvme::Nqn::DISCOVERY, queues: 0, ..Wanted::default() };
    for listener in [DISCOVERY, discovery.listener] {
        let mut host = Host::connect(&mut world, Wanted { listener, ..discovery.clone() });
        let mut log = crate::host::sqe(2);
        log.cdw10[0] = (0x70 | (2048 / 4 - 1) << 16).into();
        let ended = host.ask(&mut world, 0, log, &[], 2048);
        assert!(ended.status.is_success(), "{ended:?}");
        assert_eq!(ended.data[8], 2, "the subsystem, and the listener for discovery");
        let refused = host.join(&mut world, 1);
        assert!(!refused.status.is_success(), "a discovery controller has no I/O queues");
    }
    let elsewhere = Wanted { listener: DISCOVERY, ..Wanted::default() };
    let Err(refused) = Host::admin(&mut world, elsewhere) else { panic!("no subsystem is there") };
    let expected = Completion::from(ConnectRefusal::SUBNQN);
    assert_eq!((refused.status, refused.result), (expected.status, expected.result));
}

#[test]
fn a_host_identifier_belongs_to_one_name() {
    let mut world = world(5, 2);
    let mut first = Host::connect(&mut world, Wanted::default());
    let clone = Wanted { host: "nqn.2026-11.test:clone", ..Wanted::default() };
    let Err(refused) = Host::admin(&mut world, clone.clone()) else { panic!("its identifier is taken") };
    assert_eq!(refused.status, Completion::from(ConnectRefusal::Host).status);
    // The same host may have more controllers.
    let second = Host::connect(&mut world, Wanted::default());
    assert_ne!(first.cntlid, second.cntlid);
    for host in [&first, &second] {
        host.pipes.iter().for_each(|pipe| reset(&mut world, pipe));
    }
    world.run_for(Duration::from_secs(5));
    Host::connect(&mut world, clone);
    first.pipes.clear();
}

#[test]
fn an_identifier_that_is_registered_stays_bound_while_nobody_is_connected() {
    let mut world = world(7, 2);
    let mut first = Host::connect(&mut world, Wanted::default());
    let register = reserve(0x0d, 0, 0);
    assert_eq!(first.ask(&mut world, 1, register, &keys(0, 0xb), 0).status, Status::SUCCESS);
    first.pipes.iter().for_each(|pipe| reset(&mut world, pipe));
    world.run_for(Duration::from_secs(5));
    let clone = Wanted { host: "nqn.2026-11.test:clone", ..Wanted::default() };
    let Err(refused) = Host::admin(&mut world, clone.clone()) else { panic!("its identifier is registered") };
    assert_eq!(refused.status, Completion::from(ConnectRefusal::Host).status);
    // Its bearer comes back, and unregisters: then it is anybody's.
    let mut again = Host::connect(&mut world, Wanted::default());
    let unregister = reserve(0x0d, 1, 0);
    assert_eq!(again.ask(&mut world, 2, unregister, &keys(0xb, 0), 0).status, Status::SUCCESS);
    again.pipes.iter().for_each(|pipe| reset(&mut world, pipe));
    world.run_for(Duration::from_secs(5));
    Host::connect(&mut world, clone);
}

#[test]
fn a_subsystem_has_as_many_controllers_as_it_may() {
    let mut world = world(6, 2);
    let mut hosts: Vec<Host> =
        (0..8).map(|_| Host::admin(&mut world, Wanted::default()).expect("there is room")).collect();
    let Err(refused) = Host::admin(&mut world, Wanted::default()) else { panic!("it is full") };
    assert_eq!(refused.status, Status::CONTROLLER_BUSY);
    let gone = hosts.pop().unwrap();
    reset(&mut world, &gone.pipes[0]);
    world.run_for(Duration::from_secs(1));
    let again = Host::admin(&mut world, Wanted::default()).expect("there is room again");
    assert!(hosts.iter().all(|host| host.cntlid != again.cntlid));
    assert_eq!(ConnectData::DYNAMIC, 0xffff);
}

#[test]
fn data_in_the_stream_does_not_wait_behind_data_that_is_asked_for() {
    for seed in 0..4 {
        let mut config = Config::new(seed);
        config.shards = 1;
        config.pool_bytes = 4 << 20;
        let mut world = world_of(config, &target::build_exports(&target::TargetLimits::default()));
        let mut host = Host::connect(&mut world, Wanted { queues: 1, ..Wanted::default() });
        // More than the pool has for solicited data; what it asks for stands behind the small ones.
        for slot in 0..16u64 {
            host.start(&mut world, 1, transfer(1, slot * 220, 500), &pattern(slot * 220, 500, 1), 0);
        }
        for slot in 0..4u64 {
            host.start(&mut world, 1, transfer(1, 4000 + slot * 8, 8), &pattern(4000 + slot * 8, 8, 1), 0);
        }
        let begun = world.now();
        host.settle(&mut world);
        assert!(
            world.now().since(begun) < Duration::from_secs(5),
            "seed {seed}: nobody waits for a deadline"
        );
        assert!(host.pipes[1].ended.iter().all(|ended| ended.status.is_success()), "seed {seed}");
        assert!(host.read(&mut world, 1, 4024, 8) == pattern(4024, 8, 1));
    }
}

/// A host with one queue at a shard whose memory is all taken.
fn without_memory() -> (World<Shard>, Host, Vec<buf::SgMut>) {
    let mut config = Config::new(5);
    (config.shards, config.pool_bytes) = (1, 4 << 20);
    let mut world = world_of(config, &target::build_exports(&target::TargetLimits::default()));
    let host = Host::connect(&mut world, Wanted { queues: 1, ..Wanted::default() });
    let pool = world.pool(ShardId(0)).clone();
    let mut all = Vec::new();
    for len in [64 << 10, 4096, 512] {
        all.extend(std::iter::from_fn(|| pool.take_sg(buf::MemoryClass::Solicited, len)));
    }
    (world, host, all)
}

/// Rare data of the server's own making waits for memory in the same queue as payload does.
#[test]
fn answers_wait_for_memory_as_payload_does() {
    let (mut world, mut host, all) = without_memory();
    let mut report = reserve(0x0e, 4096 / 4 - 1, 0);
    report.cdw10[1] = 1.into();
    let mut log = sqe(0x02);
    (log.nsid, log.cdw10[0]) = (0xffff_ffff.into(), (0x05 | (8192 / 4 - 1) << 16).into());
    let waiting = [(1, report, 4096), (0, log, 8192)].map(|(at, sqe, len)| {
        let cid = host.start(&mut world, at, sqe, &[], len);
        (at, cid)
    });
    world.run_for(Duration::from_millis(50));
    let ended = |host: &mut Host, world: &mut World<Shard>, (at, cid): (usize, u16)| {
        host.pipes[at].poll(world);
        host.pipes[at].ended.iter().find(|ended| ended.cid == cid).map(|ended| ended.status)
    };
    assert_eq!(waiting.map(|one| ended(&mut host, &mut world, one)), [None, None]);
    // What needs none of it is served meanwhile, and another turn looks for what has come back.
    assert!(host.read(&mut world, 1, 0, 1).len() == 512);
    drop(all);
    assert!(host.read(&mut world, 1, 0, 1).len() == 512);
    host.settle(&mut world);
    let ends = waiting.map(|one| ended(&mut host, &mut world, one));
    assert_eq!(ends, [Some(Status::SUCCESS); 2]);
}

/// Their leave to be sent counts once, however often they look for memory, and nobody who waits for it stands
/// before them.
#[test]
fn long_log_pages_that_find_no_memory_do_not_shut_their_queue() {
    let mut config = Config::new(5);
    (config.shards, config.pool_bytes) = (1, 64 << 20);
    let mut world = world_of(config, &target::build_exports(&target::TargetLimits::default()));
    let mut host = Host::connect(&mut world, Wanted { queues: 1, ..Wanted::default() });
    let pool = world.pool(ShardId(0)).clone();
    let mut all = Vec::new();
    for len in [1 << 20, 64 << 10, 4096, 512] {
        all.extend(std::iter::from_fn(|| pool.take_sg(buf::MemoryClass::Solicited, len)));
    }
    let mut log = sqe(0x02);
    log.nsid = 0xffff_ffff.into();
    (log.cdw10[0], log.cdw10[1]) = ((0x02 | 0xffff << 16).into(), 3.into());
    let cids: Vec<u16> = (0..12).map(|_| host.start(&mut world, 0, log, &[], 1 << 20)).collect();
    world.run_for(Duration::from_millis(50));
    // Enough for one: all of them look, gather what they show, and look again.
    all.remove(0);
    assert!(host.read(&mut world, 1, 0, 1).len() == 512);
    world.run_for(Duration::from_millis(50));
    drop(all);
    assert!(host.read(&mut world, 1, 0, 1).len() == 512);
    host.settle(&mut world);
    for cid in cids {
        let ended = host.pipes[0].ended.iter().find(|ended| ended.cid == cid);
        assert_eq!(ended.map(|ended| ended.status), Some(Status::SUCCESS));
    }
}

/// Nobody stands behind a command that the host has taken back: what comes next has the memory that is there.
#[test]
fn an_aborted_write_does_not_go_on_waiting_for_memory() {
    let (mut world, mut host, mut all) = without_memory();
    let great = host.start(&mut world, 1, transfer(1, 0, 500), &pattern(0, 500, 1), 0);
    world.run_for(Duration::from_millis(50));
    let mut abort = sqe(0x08);
    abort.cdw10[0] = (1 | u32::from(great) << 16).into();
    let aborted = host.ask(&mut world, 0, abort, &[], 0);
    assert_eq!((aborted.status, aborted.result), (Status::SUCCESS, 0));
    assert_eq!(crate::host::wait(&mut world, &mut host.pipes[1], great).status, Status::ABORT_REQUESTED);
    // There is room for a small one, and none for what was to be written.
    all.swap_remove(0);
    let small = host.pipes[1].send_command(&mut world, transfer(1, 0, 16), &pattern(0, 16, 1), false, 0);
    let ended = crate::host::wait(&mut world, &mut host.pipes[1], small);
    assert!(ended.status.is_success(), "{ended:?}");
    assert_eq!(host.pipes[1].solicited, 16 * 512);
}

/// A controller's queues go round the shards: what it is offered is what the poorest of them can bear.
#[test]
fn an_offer_looks_at_the_memory_of_all_shards() {
    let most = (64 << 20) - (64 << 10);
    for (poor, taken, offered) in [(0, 0, 8192), (0, most, 4096), (1, most, 4096), (2, 64 << 20, 0)] {
        let mut config = Config::new(6);
        (config.shards, config.pool_bytes) = (3, 128 << 20);
        let mut world = world_of(config, &target::build_exports(&target::TargetLimits::default()));
        assert!(world.pool(ShardId(poor)).reserve(buf::PoolAccount::NvmeTcp, taken));
        // It is told when something is done there, and with hysteresis.
        listings(&mut world);
        let mut host = Host::admin(&mut world, Wanted::default()).expect("it is let in");
        host.enable(&mut world);
        assert_eq!(in_capsule(&mut world, &mut host), offered, "shard {poor} lacks {taken}");
    }
}
