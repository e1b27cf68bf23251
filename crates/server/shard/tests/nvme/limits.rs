//! Limits of operations and bytes per second, of volumes and hosts, over both protocols.

use std::sync::Arc;
use std::time::Duration;

use blockwire_shard::{ControlRequest, Exports, Message, Rate, RateLimiter, RateLimits, Shard};
use buf::Time;
use endpoint::ShardId;
use iscsi::wire::TmfFunction;
use nvme::Status;
use sim::{Config, World};
use volume::{VolumeId, VolumeRequest};
use zerocopy::little_endian::U32;

use crate::both::{both, run};
use crate::host::{Host, Wanted, keys, reserve, sqe, transfer};
use crate::world_of;
use testkit::iscsi_initiator::TestInitiator;
use testkit::target::{self, TargetLimits};

const SHARDS: u16 = 2;
const VOLUME: VolumeId = VolumeId(0);

fn iops(per_second: u64, burst: u64) -> RateLimits {
    RateLimits { iops: Rate::new(per_second, Some(burst)), ..RateLimits::NONE }
}

fn bandwidth(per_second: u64, burst: u64) -> RateLimits {
    RateLimits { bandwidth: Rate::new(per_second, Some(burst)), ..RateLimits::NONE }
}

fn limited(limits: RateLimits) -> Arc<Exports> {
    let mut exports = (*target::build_exports(&TargetLimits::default())).clone();
    exports.volume_limits.insert(VOLUME, Arc::new(RateLimiter::new(limits)));
    Arc::new(exports)
}

fn world(seed: u64, exports: &Arc<Exports>) -> World<Shard> {
    world_of(Config { shards: SHARDS, ..Config::new(seed) }, exports)
}

fn change(world: &mut World<Shard>, exports: &Arc<Exports>) {
    for shard in 0..SHARDS {
        world.send_message(ShardId(shard), Message::Control(9, ControlRequest::Exports(exports.clone())));
    }
}

/// A host that keeps commands in flight: reads, or writes, of so many blocks.
struct Load {
    depth: [usize; 2],
    blocks: u8,
    writes: bool,
}

/// When the commands of the SCSI and of the NVMe host ended.
type Ends = [Vec<Time>; 2];

impl Load {
    fn cdb(&self) -> [u8; 10] {
        [if self.writes { 0x2a } else { 0x28 }, 0, 0, 0, 0, 0, 0, 0, self.blocks, 0]
    }

    /// Keeps up the load for so long.
    fn play(
        &self,
        world: &mut World<Shard>,
        scsi: &mut TestInitiator,
        nvme: &mut Host,
        time: Duration,
    ) -> Ends {
        let bytes = usize::from(self.blocks) * 512;
        let data = if self.writes { vec![7; bytes] } else { Vec::new() };
        let read = if self.writes { 0 } else { bytes };
        let mut ends: Ends = [Vec::new(), Vec::new()];
        let mut in_flight = [0, 0];
        let until = world.now() + time;
        let queues = nvme.pipes.len() - 1;
        while world.now() < until {
            let now = world.now();
            for ended in scsi.ended.drain(..) {
                assert_eq!(ended.status, 0, "{ended:?}");
                in_flight[0] -= 1;
                ends[0].push(now);
            }
            for queue in &mut nvme.pipes[1..] {
                for ended in queue.ended.drain(..) {
                    assert_eq!(ended.status, Status::SUCCESS);
                    in_flight[1] -= 1;
                    ends[1].push(now);
                }
            }
            while in_flight[0] < self.depth[0] {
                scsi.send_command(world, 0, &self.cdb(), &data, read);
                in_flight[0] += 1;
            }
            while in_flight[1] < self.depth[1] {
                let opcode = if self.writes { 1 } else { 2 };
                let at = 1 + in_flight[1] % queues;
                nvme.start(world, at, transfer(opcode, 0, self.blocks.into()), &data, read);
                in_flight[1] += 1;
            }
            let next = world.now() + Duration::from_micros(200);
            world.step(next);
            scsi.poll(world);
            nvme.pipes.iter_mut().for_each(|pipe| pipe.poll(world));
        }
        ends
    }
}

/// Over no span of time has more ended than the rate and the burst allow, nor, where there is demand for all of it, less
/// than 95 % over the whole. What began in a span may end some milliseconds behind it.
fn assert_rate(ends: &Ends, unit: u64, limit: Rate, time: Duration) {
    let mut all: Vec<Time> = ends.iter().flatten().copied().collect();
    all.sort_unstable();
    let slack = Duration::from_millis(5).as_nanos() as u64;
    for (first, from) in all.iter().enumerate() {
        for (last, to) in all.iter().enumerate().skip(first) {
            let span = u128::from(to.0 - from.0 + slack);
            let allowed = u128::from(limit.per_second) * span / 1_000_000_000 + u128::from(limit.burst);
            let got = (last - first + 1) as u128 * u128::from(unit);
            assert!(got <= allowed + u128::from(unit), "{got} of {allowed} in {span} ns");
        }
    }
    let least = limit.per_second as f64 * time.as_secs_f64() * 0.95;
    let got = all.len() as u64 * unit;
    assert!(got as f64 >= least, "{got} of at least {least}");
}

const PLAYED: Duration = Duration::from_secs(2);

#[test]
fn a_volume_has_its_whole_limit_and_no_more_by_one_shard_or_two_and_either_protocol() {
    for (seed, depth) in [[16, 0], [0, 16], [8, 8], [1, 24]].into_iter().enumerate() {
        for writes in [false, true] {
            let limits = iops(500, 20);
            let mut world = world(seed as u64, &limited(limits));
            let (mut scsi, mut nvme) = both(&mut world);
            let load = Load { depth, blocks: 8, writes };
            let ends = load.play(&mut world, &mut scsi, &mut nvme, PLAYED);
            assert_rate(&ends, 1, limits.iops.unwrap(), PLAYED);
        }
    }
}

#[test]
fn bytes_are_limited_whatever_way_they_come() {
    // Within the first burst of a session or the capsule, and by R2T.
    for blocks in [8, 128] {
        for writes in [false, true] {
            let limits = bandwidth(4 << 20, 256 << 10);
            let mut world = world(blocks.into(), &limited(limits));
            let (mut scsi, mut nvme) = both(&mut world);
            let load = Load { depth: [8, 8], blocks, writes };
            let ends = load.play(&mut world, &mut scsi, &mut nvme, PLAYED);
            assert_rate(&ends, u64::from(blocks) * 512, limits.bandwidth.unwrap(), PLAYED);
        }
    }
}

/// The one has six times as many commands in flight as the other, and two connections.
#[test]
fn two_hosts_share_the_limit_of_a_volume() {
    for seed in 0..4 {
        let mut world = world(seed, &limited(iops(400, 8)));
        let (mut scsi, mut nvme) = both(&mut world);
        let load = Load { depth: [4, 24], blocks: 8, writes: seed % 2 == 0 };
        let [scsi, nvme] = load.play(&mut world, &mut scsi, &mut nvme, PLAYED);
        let (scsi, nvme) = (scsi.len(), nvme.len());
        // A host is a flow on each shard that serves it.
        assert!(scsi * 4 >= scsi + nvme && nvme * 4 >= scsi + nvme, "seed {seed}: {scsi} and {nvme}");
    }
}

#[test]
fn a_host_has_one_limit_for_all_its_sessions_over_both_protocols() {
    let limits = iops(300, 10);
    let limiter = Arc::new(RateLimiter::new(limits));
    let mut exports = (*target::build_exports(&TargetLimits::default())).clone();
    exports.targets[0].rules[0].limiter = Some(limiter.clone());
    exports.nvme.subsystems[0].rules[0].limiter = Some(limiter.clone());
    let mut world = world(1, &Arc::new(exports));
    let (mut scsi, mut nvme) = both(&mut world);
    for depth in [[8, 8], [0, 8], [8, 0]] {
        let load = Load { depth, blocks: 8, writes: true };
        let ends = load.play(&mut world, &mut scsi, &mut nvme, PLAYED);
        assert_rate(&ends, 1, limits.iops.unwrap(), PLAYED);
        run(&mut world, &mut scsi, &mut nvme, |scsi, nvme| {
            scsi.is_idle() && nvme.pipes.iter().all(|pipe| pipe.is_idle())
        });
        scsi.ended.clear();
        nvme.pipes.iter_mut().for_each(|pipe| pipe.ended.clear());
    }
    let (delayed, time) = limiter.delays();
    assert!(delayed > 500 && time > PLAYED, "{delayed} commands waited {time:?}");
}

/// Starts commands of both hosts on a volume that lets one through an hour.
fn stuck(seed: u64, writes: bool) -> (World<Shard>, TestInitiator, Host, Vec<u32>, Vec<u16>) {
    let limits = RateLimits { iops: Rate::new(1, Some(1)), bandwidth: Rate::new(1, Some(1)) };
    let mut world = world(seed, &limited(limits));
    let (mut scsi, mut nvme) = both(&mut world);
    let load = Load { depth: [0, 0], blocks: 128, writes };
    let data = if writes { vec![9; 64 << 10] } else { Vec::new() };
    let read = if writes { 0 } else { 64 << 10 };
    // The first one begins, and its bytes are paid for in the hours that follow.
    nvme.read(&mut world, 1, 0, 8);
    let itts = (0..4).map(|_| scsi.send_command(&mut world, 0, &load.cdb(), &data, read)).collect();
    let opcode = if writes { 1 } else { 2 };
    let cids = (0..4).map(|_| nvme.start(&mut world, 1, transfer(opcode, 0, 128), &data, read)).collect();
    play_for(&mut world, &mut scsi, &mut nvme, Duration::from_millis(300));
    assert!(scsi.ended.is_empty() && nvme.pipes[1].ended.is_empty(), "they wait");
    (world, scsi, nvme, itts, cids)
}

fn play_for(world: &mut World<Shard>, scsi: &mut TestInitiator, nvme: &mut Host, time: Duration) {
    let until = world.now() + time;
    while world.now() < until {
        scsi.poll(world);
        nvme.pipes.iter_mut().for_each(|pipe| pipe.poll(world));
        crate::host::heed(world, &mut Vec::new());
        let next = (world.now() + Duration::from_millis(1)).min(until);
        world.step(next);
    }
}

/// Runs until `done`, which has to come long before a command would be let through.
fn soon(
    world: &mut World<Shard>,
    scsi: &mut TestInitiator,
    nvme: &mut Host,
    done: impl FnMut(&TestInitiator, &Host) -> bool,
) {
    let begun = world.now();
    run(world, scsi, nvme, done);
    assert!(world.now().since(begun) < Duration::from_secs(1), "it waited for the limit");
}

#[test]
fn what_waits_holds_no_memory_and_is_aborted_and_nothing_but_blocks_waits() {
    for (seed, writes) in [(1, false), (2, true)] {
        let (mut world, mut scsi, mut nvme, itts, cids) = stuck(seed, writes);
        for shard in 0..SHARDS {
            let lent = world.pool(ShardId(shard)).usage().lent;
            // What sessions and queues were promised, and what their links receive into.
            assert!(lent < 256 << 10, "shard {shard}: {lent} bytes are held");
        }
        // A flush, a task management function, an admin command: none is limited.
        let flush = nvme.start(
            &mut world,
            1,
            {
                let mut flush = sqe(0x00);
                flush.nsid = U32::new(1);
                flush
            },
            &[],
            0,
        );
        soon(&mut world, &mut scsi, &mut nvme, |_, nvme| {
            nvme.pipes[1].ended.iter().any(|one| one.cid == flush)
        });
        nvme.pipes[1].ended.clear();
        scsi.send_command(&mut world, 0, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0);
        soon(&mut world, &mut scsi, &mut nvme, |scsi, _| scsi.ended.len() == 1);
        assert_eq!(scsi.ended.remove(0).status, 0);
        // The second of each is aborted.
        let (tmf, _) = scsi.send_task_management(&mut world, TmfFunction::ABORT_TASK, 0, itts[1]);
        soon(&mut world, &mut scsi, &mut nvme, |scsi, _| scsi.managed.iter().any(|(itt, _)| *itt == tmf));
        assert_eq!(scsi.managed.last().unwrap().1, 0, "function complete");
        scsi.forget_task(itts[1]);
        let mut abort = sqe(0x08);
        abort.cdw10[0] = U32::new(1 | u32::from(cids[1]) << 16);
        let ended = nvme.start(&mut world, 0, abort, &[], 0);
        soon(&mut world, &mut scsi, &mut nvme, |_, nvme| {
            let aborted = nvme.pipes[1].ended.iter().any(|one| one.cid == cids[1]);
            aborted && nvme.pipes[0].ended.iter().any(|one| one.cid == ended)
        });
        let aborted = nvme.pipes[1].take_result(cids[1]).unwrap();
        assert_eq!(aborted.status.0 & 0x7ff, Status::ABORT_REQUESTED.0 & 0x7ff);
        // The first of the queue too: the next takes its place.
        let (tmf, _) = scsi.send_task_management(&mut world, TmfFunction::ABORT_TASK, 0, itts[0]);
        soon(&mut world, &mut scsi, &mut nvme, |scsi, _| scsi.managed.iter().any(|(itt, _)| *itt == tmf));
        scsi.forget_task(itts[0]);
        // Without the limit the others end.
        change(&mut world, &target::build_exports(&TargetLimits::default()));
        soon(&mut world, &mut scsi, &mut nvme, |scsi, nvme| {
            scsi.ended.len() == 2 && nvme.pipes[1].ended.len() == 3
        });
        assert!(scsi.ended.iter().all(|ended| ended.status == 0));
        assert!(nvme.pipes[1].ended.iter().all(|ended| ended.status == Status::SUCCESS));
    }
}

#[test]
fn a_limit_that_is_raised_wakes_what_waits() {
    let (mut world, mut scsi, mut nvme, ..) = stuck(3, true);
    change(&mut world, &limited(iops(1000, 10)));
    soon(&mut world, &mut scsi, &mut nvme, |scsi, nvme| {
        scsi.ended.len() == 4 && nvme.pipes[1].ended.len() == 4
    });
    // And one that comes holds for what comes after it.
    change(&mut world, &limited(iops(1, 1)));
    play_for(&mut world, &mut scsi, &mut nvme, Duration::from_millis(10));
    nvme.read(&mut world, 1, 0, 1);
    let begun = world.now();
    nvme.read(&mut world, 1, 0, 1);
    assert!(world.now().since(begun) > Duration::from_millis(900));
}

/// A write that waits has not begun: no fence waits for it, and behind the fence it is refused.
#[test]
fn a_preempt_passes_what_waits_and_refuses_it() {
    for seed in 0..4 {
        let (mut world, mut scsi, mut nvme, ..) = stuck(seed, true);
        let mut other = Host::connect(
            &mut world,
            Wanted { host: "nqn.2026-11.test:other", host_id: 2, ..Wanted::default() },
        );
        let begun = world.now();
        assert_eq!(other.ask(&mut world, 1, reserve(0x0d, 0, 0), &keys(0, 0xb), 0).status, Status::SUCCESS);
        // Exclusive Access.
        assert_eq!(other.ask(&mut world, 1, reserve(0x11, 0, 2), &keys(0xb, 0), 0).status, Status::SUCCESS);
        assert!(world.now().since(begun) < Duration::from_secs(1), "it waited for the limit");
        change(&mut world, &target::build_exports(&TargetLimits::default()));
        soon(&mut world, &mut scsi, &mut nvme, |scsi, nvme| {
            scsi.ended.len() == 4 && nvme.pipes[1].ended.len() == 4
        });
        assert!(scsi.ended.iter().all(|ended| ended.status == 0x18), "seed {seed}: {:?}", scsi.ended);
        let conflict = Status::RESERVATION_CONFLICT.0 & 0x7ff;
        assert!(nvme.pipes[1].ended.iter().all(|ended| ended.status.0 & 0x7ff == conflict), "seed {seed}");
        assert!(other.read(&mut world, 1, 0, 8) == vec![0; 4096], "nothing was written");
    }
}

#[test]
fn what_waits_for_a_volume_that_goes_ends() {
    for (seed, writes) in [(5, false), (6, true)] {
        let (mut world, mut scsi, mut nvme, ..) = stuck(seed, writes);
        world.send_message(
            ShardId(0),
            Message::Control(7, ControlRequest::VolumeRequest(VOLUME, VolumeRequest::Remove)),
        );
        soon(&mut world, &mut scsi, &mut nvme, |scsi, nvme| {
            scsi.ended.len() == 4 && nvme.pipes[1].ended.len() == 4
        });
        assert!(scsi.ended.iter().all(|ended| ended.status == 2), "{:?}", scsi.ended);
        assert!(nvme.pipes[1].ended.iter().all(|ended| ended.status != Status::SUCCESS));
    }
}

/// A host that goes takes what it had waiting along, and what others have waiting goes on.
#[test]
fn what_a_lost_connection_had_waiting_is_gone() {
    for (seed, scsi_goes) in [(8, false), (9, true)] {
        let (mut world, mut scsi, mut nvme, ..) = stuck(seed, true);
        if scsi_goes {
            scsi.break_connection(&mut world, 0, true);
        } else {
            nvme.pipes.iter().for_each(|pipe| crate::host::reset(&mut world, pipe));
        }
        play_for(&mut world, &mut scsi, &mut nvme, Duration::from_millis(200));
        change(&mut world, &limited(iops(1000, 10)));
        let ended = |scsi: &TestInitiator, nvme: &Host| {
            if scsi_goes { nvme.pipes[1].ended.len() } else { scsi.ended.len() }
        };
        let begun = world.now();
        while ended(&scsi, &nvme) < 4 && world.now().since(begun) < Duration::from_secs(1) {
            play_for(&mut world, &mut scsi, &mut nvme, Duration::from_millis(1));
        }
        assert_eq!(ended(&scsi, &nvme), 4, "seed {seed}");
    }
}
