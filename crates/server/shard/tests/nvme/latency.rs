//! Each stage of a command holds the time that passed in it, over both protocols, and no other stage does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blockwire_shard::{
    CommandLatency, ControlReport, ControlRequest, Histogram, LatencyClass, LatencyStage, Message, Shard,
    ShardListing, StageHistograms,
};
use buf::Cx;
use endpoint::ShardId;
use sim::{Config, World};
use volume::{Backend, Geometry, Io, IoCompletion, IoId, Op, RamBackend, RamDisk, VolumeId};

use crate::both::{both, run};
use crate::host::{Host, heed, transfer};
use crate::{BLOCKS, pattern};
use testkit::iscsi_initiator::TestInitiator;
use testkit::target::{self, TargetLimits};

const MIB: usize = 1 << 20;
const DELAY: Duration = Duration::from_millis(40);
/// More than a message takes on its way in this world.
const SHORT: Duration = Duration::from_millis(10);

/// Memory that lends nothing, and keeps reads and writes while it is told to; an exclusive operation too.
struct Slow {
    inner: RamBackend,
    holds: Arc<AtomicBool>,
    held: Vec<Io>,
}

impl Backend for Slow {
    fn geometry(&self) -> Geometry {
        Geometry { lends: false, ..self.inner.geometry() }
    }

    fn submit(&mut self, cx: &mut Cx<'_>, io: Io) {
        if self.holds.load(Ordering::Relaxed) && matches!(io.op, Op::Read(_) | Op::Write(..)) {
            self.held.push(io);
        } else {
            self.inner.submit(cx, io);
        }
    }

    fn resume(&mut self) {
        self.inner.resume();
    }

    fn wants_resume(&self) -> bool {
        self.inner.wants_resume()
    }

    fn cancel(&mut self, id: IoId) {
        self.inner.cancel(id);
    }

    fn poll_done(&mut self) -> Option<IoCompletion> {
        if !self.holds.load(Ordering::Relaxed) {
            let pool = buf::Pool::new(1 << 20);
            let mut entropy = buf::Entropy::new([9; 32]);
            let mut cx = Cx { now: buf::Time(0), pool: &pool, entropy: &mut entropy };
            self.held.drain(..).for_each(|io| self.inner.submit(&mut cx, io));
        }
        self.inner.poll_done()
    }
}

/// One shard, both protocols, and a host of each.
struct Case {
    world: World<Shard>,
    scsi: TestInitiator,
    nvme: Host,
    holds: Arc<AtomicBool>,
}

impl Case {
    /// On memory that can be told to keep what it is given, or on memory that is lent.
    fn new(seed: u64, slow: bool) -> Case {
        let exports = target::build_exports(&TargetLimits::default());
        let config = Config { window: 64 << 10, pool_bytes: 16 << 20, shards: 1, ..Config::new(seed) };
        let shards = config.shards;
        let mut world = World::new(config, |id, _| Shard::new(id, shards, exports.clone()));
        let (disk, holds) = (Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096)), Arc::default());
        let specs = if slow {
            let make = |disk: &Arc<RamDisk>, holds: &Arc<AtomicBool>| Slow {
                inner: RamBackend::new(disk.clone()),
                holds: holds.clone(),
                held: Vec::new(),
            };
            let geometry = make(&disk, &holds).geometry();
            let kept: Arc<AtomicBool> = Arc::clone(&holds);
            target::volume_specs(shards, geometry, &[], None, move |_| make(&disk, &kept))
        } else {
            target::volume_specs(shards, disk.geometry(), &[], None, move |_| RamBackend::new(disk.clone()))
        };
        target::serve_volume(&mut world, specs);
        let (scsi, nvme) = both(&mut world);
        Case { world, scsi, nvme, holds }
    }

    /// Time passes, and nobody reads what the target sends.
    fn pass(&mut self, time: Duration) {
        self.world.run_for(time);
        heed(&mut self.world, &mut Vec::new());
    }

    /// The same, but all read what the target sends, and follow R2Ts.
    fn go_on(&mut self, time: Duration) {
        let until = self.world.now() + time;
        while self.world.now() < until {
            self.pass(Duration::from_millis(1));
            self.scsi.poll(&mut self.world);
            self.nvme.pipes[1].poll(&mut self.world);
        }
    }

    fn hold(&self) {
        self.holds.store(true, Ordering::Relaxed);
    }

    fn release(&mut self) {
        self.holds.store(false, Ordering::Relaxed);
        self.world.send_message(ShardId(0), Message::Wake(VolumeId(0)));
    }

    /// All commands come to their ends.
    fn finish(&mut self) {
        let Case { world, scsi, nvme, .. } = self;
        run(world, scsi, nvme, |scsi, nvme| {
            scsi.is_idle() && nvme.pipes[1..].iter().all(|pipe| pipe.is_idle())
        });
        assert!(self.scsi.ended.iter().all(|ended| ended.status == 0), "{:?}", self.scsi.ended);
        self.world.run_for(SHORT);
    }

    fn listing(&mut self) -> ShardListing {
        self.world.send_message(ShardId(0), Message::Control(7, ControlRequest::List));
        self.world.run_for(Duration::from_millis(1));
        let mut reports = Vec::new();
        heed(&mut self.world, &mut reports);
        let found = reports.into_iter().find_map(|report| match report {
            ControlReport::Listing(listing) => Some(*listing),
            ControlReport::Done
            | ControlReport::Refused(_)
            | ControlReport::NoVolume
            | ControlReport::Saved(_)
            | ControlReport::NotQuiesced(_) => None,
        });
        found.expect("the shard answers")
    }

    /// The histograms of a class: of the volume, of the SCSI session, of the first I/O queue. What the volume counts is
    /// what its connections count together.
    fn histograms(&mut self, class: LatencyClass) -> [Option<StageHistograms>; 2] {
        let listing = self.listing();
        let of = |latency: &CommandLatency| latency.class_histograms(class);
        let session = of(&listing.sessions[0].latency);
        let queue = of(&listing.queues.iter().find(|queue| queue.qid == 1).unwrap().latency);
        let mut both = StageHistograms::default();
        for stages in [&session, &queue].into_iter().flatten() {
            both.iter_mut().zip(stages).for_each(|(sum, more)| sum.merge(more));
        }
        assert_eq!(of(&listing.volumes[0].latency).unwrap_or_default(), both);
        [session, queue]
    }
}

/// How many of a histogram took so long or longer.
fn long(histogram: &Histogram, than: Duration) -> u64 {
    let least = (than.as_micros() as u64).ilog2() as usize;
    histogram.counts[least..].iter().sum()
}

/// One command, which spent its time in one stage.
fn only(stages: &StageHistograms, stage: LatencyStage) {
    for (at, histogram) in LatencyStage::ALL.into_iter().zip(stages) {
        assert_eq!(histogram.total_count(), 1, "{at:?} {histogram:?}");
        let took = Duration::from_nanos(histogram.sum_ns);
        if at == stage {
            assert!(took >= DELAY && took < 2 * DELAY, "{at:?} {took:?}");
            assert_eq!(long(histogram, DELAY), 1);
        } else {
            assert!(took <= SHORT, "{at:?} {took:?}");
        }
    }
}

const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 8, 0, 0, 8, 0];
const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 8, 0, 0, 8, 0];

#[test]
fn a_slow_disk_is_seen_in_the_backend_stage() {
    for is_write in [false, true] {
        let mut case = Case::new(3, true);
        case.hold();
        let data = pattern(8, 8, 1);
        if is_write {
            case.scsi.send_command(&mut case.world, 0, &WRITE, &data, 0);
            case.nvme.start(&mut case.world, 1, transfer(1, 64, 8), &data, 0);
        } else {
            case.scsi.send_command(&mut case.world, 0, &READ, &[], 4096);
            case.nvme.start(&mut case.world, 1, transfer(2, 64, 8), &[], 4096);
        }
        // R2Ts are followed meanwhile.
        case.go_on(DELAY + SHORT);
        case.release();
        case.finish();
        let class = if is_write { LatencyClass::Write } else { LatencyClass::Read };
        for stages in case.histograms(class) {
            only(&stages.unwrap(), LatencyStage::Backend);
        }
        let other = if is_write { LatencyClass::Read } else { LatencyClass::Write };
        assert_eq!(case.histograms(other), [None, None]);
    }
}

#[test]
fn a_short_pool_is_seen_in_the_stage_of_waiting() {
    let mut case = Case::new(4, true);
    case.hold();
    // All the memory of the pool, and more.
    for at in 0..24 {
        case.nvme.start(&mut case.world, 1, transfer(2, at, MIB / 512), &[], MIB);
    }
    case.pass(DELAY + SHORT);
    case.release();
    case.finish();
    let [_, queue] = case.histograms(LatencyClass::Read);
    let [receive, wait, queued, backend, _] = queue.unwrap();
    let (waited, carried) = (long(&wait, DELAY), long(&backend, DELAY));
    assert!(waited > 0 && carried > 0, "{waited} {carried}");
    assert_eq!((wait.total_count(), waited + carried), (24, 24), "each spent the time in one of the two");
    assert_eq!((long(&receive, SHORT), long(&queued, SHORT)), (0, 0));
}

#[test]
fn an_operation_that_another_one_excludes_is_seen_in_the_queue() {
    let mut case = Case::new(5, true);
    case.hold();
    // COMPARE AND WRITE of block 8 begins with a read, which is held.
    let cdb = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0];
    case.scsi.send_command(&mut case.world, 0, &cdb, &[0; 1024], 0);
    case.go_on(SHORT);
    case.nvme.start(&mut case.world, 1, transfer(1, 8, 8), &pattern(8, 8, 1), 0);
    case.pass(DELAY + SHORT);
    case.release();
    case.finish();
    let [_, queue] = case.histograms(LatencyClass::Write);
    only(&queue.unwrap(), LatencyStage::Queue);
    let [session, _] = case.histograms(LatencyClass::Other);
    let [.., backend, _] = session.unwrap();
    assert_eq!(long(&backend, DELAY), 1, "the other one was with the disk");
}

#[test]
fn a_host_that_does_not_read_is_seen_in_the_stage_of_sending() {
    for slow in [false, true] {
        let mut case = Case::new(6, slow);
        // More than the window of the connection.
        case.scsi.send_command(&mut case.world, 0, &[0x28, 0, 0, 0, 0, 0, 0, 2, 0, 0], &[], 512 * 512);
        case.nvme.start(&mut case.world, 1, transfer(2, 0, 512), &[], 512 * 512);
        case.pass(DELAY + SHORT);
        case.finish();
        for stages in case.histograms(LatencyClass::Read) {
            only(&stages.unwrap(), LatencyStage::Send);
        }
    }
}

#[test]
fn what_memory_carries_out_at_once_is_in_the_first_bucket_of_each_stage_but_sending() {
    let mut case = Case::new(7, false);
    for at in 0..16 {
        case.nvme.start(&mut case.world, 1, transfer(2, at * 8, 8), &[], 4096);
        case.nvme.start(&mut case.world, 1, transfer(1, at * 8, 8), &pattern(8, 8, 1), 0);
    }
    case.finish();
    assert_eq!(case.histograms(LatencyClass::Read)[0], None, "nothing is kept of a connection at rest");
    for at in 0..16 {
        let [read, write] = [0x28, 0x2a].map(|opcode| [opcode, 0, 0, 0, 0, at * 8, 0, 0, 8, 0]);
        case.scsi.send_command(&mut case.world, 0, &read, &[], 4096);
        case.finish();
        case.scsi.send_command(&mut case.world, 0, &write, &pattern(8, 8, 1), 0);
        case.finish();
    }
    for class in [LatencyClass::Read, LatencyClass::Write] {
        let connections = case.histograms(class).map(Option::unwrap);
        for (stage, histogram) in
            connections.iter().flat_map(|stages| LatencyStage::ALL.into_iter().zip(stages))
        {
            assert_eq!(histogram.total_count(), 16, "{stage:?}");
            // The data of a write may come a moment after its header.
            let at_once = match stage {
                LatencyStage::Receive | LatencyStage::Queue | LatencyStage::Backend => true,
                LatencyStage::Wait => class == LatencyClass::Read,
                LatencyStage::Send => false,
            };
            assert!(!at_once || histogram.counts[0] == 16, "{stage:?} {histogram:?}");
        }
    }
}
