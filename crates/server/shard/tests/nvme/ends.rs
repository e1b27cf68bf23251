//! Ends of associations: by the host, a lost link, silence, the operator.

use std::sync::Arc;
use std::time::Duration;

use blockwire_shard::{ControlReport, ControlRequest, Exports, Message};
use endpoint::ShardId;
use nvme::fabrics::{Property, PropertyAccess};
use nvme::{FabricsType, Opcode, Status};
use zerocopy::little_endian::U32;

use crate::host::{Host, Wanted, heed, is_dead, reset, run, sqe, transfer};
use crate::queues::listings;
use crate::{pattern, world};
use testkit::nvme_host::TestQueue;
use testkit::target::{self, TargetLimits};

fn nobody_is_left(world: &mut sim::World<blockwire_shard::Shard>) {
    world.run_for(Duration::from_secs(1));
    for listing in listings(world) {
        assert!(listing.queues.is_empty(), "{:?}", listing.queues);
    }
}

#[test]
fn a_lost_link_ends_the_association() {
    for seed in 0..12 {
        let mut world = world(seed, 3);
        let mut host = Host::connect(&mut world, Wanted { queues: 3, ..Wanted::default() });
        let lost = (seed % 4) as usize;
        for at in 1..=3 {
            host.start(&mut world, at, transfer(1, at as u64 * 256, 256), &pattern(0, 256, 1), 0);
        }
        reset(&mut world, &host.pipes[lost]);
        host.pipes.remove(lost);
        let mut pipes: Vec<&mut TestQueue> = host.pipes.iter_mut().collect();
        run(&mut world, &mut pipes, |world, pipes| pipes.iter().all(|pipe| is_dead(world, pipe)));
        nobody_is_left(&mut world);
        // The host comes back and finds the volume as it should.
        let mut again = Host::connect(&mut world, Wanted::default());
        assert_eq!(again.write(&mut world, 1, 0, &pattern(0, 8, 2)), Status::SUCCESS);
        assert!(again.read(&mut world, 2, 0, 8) == pattern(0, 8, 2));
    }
}

#[test]
fn a_reset_under_load_drops_the_queues_and_they_come_back() {
    for seed in 0..12 {
        let mut world = world(seed, 2);
        let mut host = Host::connect(&mut world, Wanted { queues: 2, ..Wanted::default() });
        for round in 0..5 {
            for slot in 0..16 {
                let at = 1 + slot % 2;
                host.start(&mut world, at, transfer(1, slot as u64 * 128, 128), &pattern(0, 128, round), 0);
            }
            let until = world.now() + Duration::from_micros(u64::from(round) * 50);
            while world.step(until) {}
            let off = PropertyAccess::property_set_sqe(Property::CC, 0x0046_0000);
            assert!(host.ask(&mut world, 0, off, &[], 0).status.is_success());
            let mut dropped = host.pipes.split_off(1);
            let mut pipes: Vec<&mut TestQueue> = dropped.iter_mut().collect();
            run(&mut world, &mut pipes, |world, pipes| pipes.iter().all(|pipe| is_dead(world, pipe)));
            while host.status(&mut world) & 1 != 0 {
                world.run_for(Duration::from_millis(1));
            }
            host.enable(&mut world);
            for qid in 1..=2 {
                let ended = host.join(&mut world, qid);
                assert!(ended.status.is_success(), "seed {seed} round {round} queue {qid}: {ended:?}");
            }
            assert_eq!(host.write(&mut world, 1, 9, &pattern(9, 3, round)), Status::SUCCESS);
            assert!(host.read(&mut world, 2, 9, 3) == pattern(9, 3, round));
        }
    }
}

#[test]
fn a_disconnected_queue_goes_alone() {
    let mut world = world(4, 2);
    let mut host = Host::connect(&mut world, Wanted { queues: 3, ..Wanted::default() });
    let mut disconnect = sqe(Opcode::FABRICS.0);
    disconnect.nsid = U32::new(FabricsType::DISCONNECT.0.into());
    let ended = host.ask(&mut world, 2, disconnect, &[], 0);
    assert!(ended.status.is_success(), "{ended:?}");
    let mut gone = host.pipes.remove(2);
    world.shutdown_write(sim::Peer(gone.at));
    run(&mut world, &mut [&mut gone], |world, pipes| is_dead(world, pipes[0]));
    world.run_for(Duration::from_secs(10));
    assert!(host.pipes.iter().all(|pipe| !is_dead(&world, pipe)));
    assert_eq!(host.write(&mut world, 2, 7, &pattern(7, 1, 1)), Status::SUCCESS);
    // Its identifier is free again.
    assert!(host.join(&mut world, 2).status.is_success());
}

#[test]
fn a_queue_gone_with_no_word_of_its_peer_frees_its_memory() {
    let mut world = world(8, 2);
    let before: Vec<usize> = (0..2).map(|at| world.pool(ShardId(at)).usage().reserved).collect();
    let host = Host::connect(&mut world, Wanted { queues: 4, ..Wanted::default() });
    let during: usize = (0..2).map(|at| world.pool(ShardId(at)).usage().reserved).sum();
    assert!(during >= before.iter().sum::<usize>() + 5 * 2 * 8192, "capsules have their memory");
    host.pipes.iter().for_each(|pipe| reset(&mut world, pipe));
    nobody_is_left(&mut world);
    let after: Vec<usize> = (0..2).map(|at| world.pool(ShardId(at)).usage().reserved).collect();
    assert_eq!(after, before);
    assert!((0..2).all(|at| world.pool(ShardId(at)).usage().lent == 0));
}

#[test]
fn a_stop_answers_what_is_in_work_and_flushes() {
    for seed in 0..8 {
        let mut world = world(seed, 2);
        let mut host = Host::connect(&mut world, Wanted { queues: 2, ..Wanted::default() });
        // The host waits for events, as hosts do.
        host.start(&mut world, 0, sqe(0x0c), &[], 0);
        for slot in 0..8u64 {
            host.start(&mut world, 1, transfer(1, slot * 8, 8), &pattern(slot * 8, 8, 3), 0);
        }
        // What was sent has come.
        world.run_for(Duration::from_millis(3));
        for shard in 0..2 {
            let stop = ControlRequest::Stop { grace: Duration::from_secs(10) };
            world.send_message(ShardId(shard), Message::Control(7, stop));
        }
        let began = world.now();
        let mut reports = Vec::new();
        while reports.len() < 2 {
            host.pipes.iter_mut().for_each(|pipe| pipe.poll(&mut world));
            heed(&mut world, &mut reports);
            let until = world.now() + Duration::from_millis(1);
            world.step(until);
        }
        assert!(reports.iter().all(|report| matches!(report, ControlReport::Done)));
        assert!(world.now() < began + Duration::from_secs(9), "seed {seed}: it did not wait for nothing");
        host.pipes.iter_mut().for_each(|pipe| pipe.poll(&mut world));
        assert!(host.is_dead(&world));
        assert_eq!(host.pipes[1].ended.len(), 8, "seed {seed}");
        assert!(host.pipes[1].ended.iter().all(|ended| ended.status.is_success()));
    }
}

/// A controller waits for queues of other shards, whose disks may be slow.
#[test]
fn a_stop_waits_for_queues_on_all_shards() {
    for seed in 0..8 {
        let shards = 2 + seed as u16 % 2;
        let mut world = crate::both::slow(seed, shards);
        // It lives on another shard than its controller.
        let mut host = Host::connect(&mut world, Wanted { queues: 1, ..Wanted::default() });
        for slot in 0..8u64 {
            host.start(&mut world, 1, transfer(1, slot * 8, 8), &pattern(slot * 8, 8, 3), 0);
        }
        world.run_for(Duration::from_micros(500));
        for shard in 0..shards {
            let stop = ControlRequest::Stop { grace: Duration::from_secs(10) };
            world.send_message(ShardId(shard), Message::Control(7, stop));
        }
        let mut reports = Vec::new();
        while reports.len() < usize::from(shards) {
            host.pipes.iter_mut().for_each(|pipe| pipe.poll(&mut world));
            heed(&mut world, &mut reports);
            let until = world.now() + Duration::from_millis(1);
            world.step(until);
        }
        host.pipes.iter_mut().for_each(|pipe| pipe.poll(&mut world));
        assert!(host.is_dead(&world));
        assert_eq!(host.pipes[1].ended.len(), 8, "seed {seed}");
        assert!(host.pipes[1].ended.iter().all(|ended| ended.status.is_success()));
    }
}

fn change(world: &mut sim::World<blockwire_shard::Shard>, exports: Exports) {
    let exports = Arc::new(exports);
    for shard in 0..world.shard_count() {
        let control = ControlRequest::Exports(exports.clone());
        world.send_message(ShardId(shard as u16), Message::Control(8, control));
    }
}

#[test]
fn attack_78_a_subsystem_or_listener_removed_during_io() {
    for seed in 0..12 {
        let mut world = world(seed, 2);
        let mut host = Host::connect(&mut world, Wanted { queues: 2, ..Wanted::default() });
        for slot in 0..8u64 {
            host.start(&mut world, 1 + slot as usize % 2, transfer(1, slot * 8, 8), &pattern(0, 8, 3), 0);
        }
        let until = world.now() + Duration::from_micros(seed * 40);
        while world.step(until) {}
        let mut exports = (*target::build_exports(&TargetLimits::default())).clone();
        if seed % 2 == 0 {
            exports.nvme.subsystems.clear()
        } else {
            exports.nvme.portals.clear()
        }
        // One connects just then.
        let late = Wanted { host_id: 2, ..Wanted::default() };
        let mut pipe = TestQueue::open_connection(&mut world, late.listener, (false, false));
        let cid = pipe.send_connect(&mut world, &late.connect(0), &late.names(0xffff));
        let until = world.now() + Duration::from_micros(seed * 30);
        while world.step(until) {}
        change(&mut world, exports);
        run(&mut world, &mut [&mut pipe], |world, pipes| {
            is_dead(world, pipes[0]) || pipes[0].ended.iter().any(|ended| ended.cid == cid)
        });
        let mut pipes: Vec<&mut TestQueue> = host.pipes.iter_mut().chain([&mut pipe]).collect();
        run(&mut world, &mut pipes, |world, pipes| pipes.iter().all(|pipe| is_dead(world, pipe)));
        nobody_is_left(&mut world);
        change(&mut world, (*target::build_exports(&TargetLimits::default())).clone());
        world.run_for(Duration::from_millis(5));
        let mut again = Host::connect(&mut world, Wanted::default());
        assert_eq!(again.write(&mut world, 1, 0, &pattern(0, 8, 2)), Status::SUCCESS);
    }
}

#[test]
fn attack_78_a_namespace_removed_during_io_is_told_and_refused() {
    for seed in 0..8 {
        let mut world = world(seed, 2);
        let mut host = Host::connect(&mut world, Wanted { queues: 2, ..Wanted::default() });
        // Namespace attribute notices, and one request for them.
        let mut features = sqe(9);
        (features.cdw10[0], features.cdw10[1]) = (U32::new(0x0b), U32::new(1 << 8));
        assert!(host.ask(&mut world, 0, features, &[], 0).status.is_success());
        let event = host.start(&mut world, 0, sqe(0x0c), &[], 0);
        for slot in 0..8u64 {
            host.start(&mut world, 1 + slot as usize % 2, transfer(1, slot * 8, 8), &pattern(0, 8, 3), 0);
        }
        let until = world.now() + Duration::from_micros(seed * 40);
        while world.step(until) {}
        let mut exports = (*target::build_exports(&TargetLimits::default())).clone();
        exports.nvme.subsystems[0].namespaces.clear();
        change(&mut world, exports);
        host.settle_but(&mut world, event);
        let told = crate::host::wait(&mut world, &mut host.pipes[0], event);
        assert!(told.status.is_success());
        // Notice, namespace attribute changed, log page 04h.
        assert_eq!(told.result & 0x00ff_ff07, 0x0004_0002, "{told:?}");
        for at in 1..=2 {
            for ended in host.pipes[at].ended.drain(..) {
                let code = ended.status.0 & 0x7ff;
                assert!(code == 0 || code == Status::INVALID_NAMESPACE.0, "{ended:?}");
            }
            let refused = host.write(&mut world, at, 0, &pattern(0, 8, 4));
            assert_eq!(refused.0 & 0x7ff, Status::INVALID_NAMESPACE.0);
        }
    }
}

#[test]
fn attack_74_a_silent_host_is_let_go_after_its_time() {
    let mut world = world(2, 2);
    let mut host = Host::connect(&mut world, Wanted { kato_ms: 1, queues: 1, ..Wanted::default() });
    // What is granted is rounded up to what Identify names; traffic keeps it alive.
    for _ in 0..50 {
        assert_eq!(host.write(&mut world, 1, 0, &pattern(0, 1, 1)), Status::SUCCESS);
        world.run_for(Duration::from_millis(50));
    }
    let alive = host.ask(&mut world, 0, sqe(0x18), &[], 0);
    assert!(alive.status.is_success());
    world.run_for(Duration::from_secs(20));
    host.pipes.iter_mut().for_each(|pipe| pipe.poll(&mut world));
    assert!(host.is_dead(&world));
    nobody_is_left(&mut world);
}
