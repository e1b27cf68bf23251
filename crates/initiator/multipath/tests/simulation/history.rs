//! Random histories: a host reads and writes over several paths of both protocols, and another may read.
//! Meanwhile connections are lost, fall silent or are refused, path states change, and the target is killed
//! and started again. The results of all hosts must be linearizable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use blockwire_multipath::{VolumeEvent, VolumeHandle};
use buf::{MemoryClass, Payload, Time};
use endpoint::{Endpoint, OutboundSockets, ShardId};
use shard::{ControlRequest, Message};
use sim::linearizability::{Operation, OperationKind, Stamp, Verdict};
use sim::{Reachability, SimRng, World};
use volume::{
    Durability, Epoch, Failure, Fault, Io, IoCompletion, IoId, Op, Outcome, PathAccess, PortId, RamDisk,
    Span, VolumeId, VolumeRequest,
};

use crate::faulty_path::FaultyPath;
use crate::node::Node;
use crate::plan::{PORTALS, Plan, QUEUE_TIMEOUT, SPAN, address};

const FLIGHTS_MAX: usize = 8;
/// Beyond the time that an operation waits: for a command's own time-outs, aborts and resets.
const PATIENCE: Duration = Duration::from_secs(200);

/// An operation of a host.
#[derive(Clone, Debug)]
struct Flight {
    op: Op,
    expected: Stamp,
    began: u64,
    since: Time,
    cancelled: bool,
}

testkit::tally! {
    pub struct Tally {
        well, lost, cancelled, swapped, losses, retried, unknown, fences, restarts, changes, undecided,
    }
}

impl Tally {
    /// Whether everything that can happen happens, in a hundred histories or more.
    pub fn is_eventful(&self) -> bool {
        let rare = [self.cancelled, self.swapped, self.losses, self.retried, self.unknown, self.fences];
        self.well > 5_000 && self.restarts > 20 && self.changes > 20 && rare.iter().all(|count| *count > 50)
    }
}

pub struct History {
    plan: Plan,
    chance: SimRng,
    world: World<Node<FaultyPath>>,
    disk: Arc<RamDisk>,
    volumes: Vec<VolumeHandle>,
    flights: Vec<BTreeMap<u64, Flight>>,
    seen: Vec<Stamp>,
    history: sim::linearizability::History,
    moment: u64,
    /// Steps since the clock last moved.
    idle: u32,
    shut: Vec<usize>,
    tally: Tally,
}

impl History {
    pub fn new(plan: Plan) -> History {
        let disk = Arc::new(RamDisk::new(SPAN, SPAN, 512, 4096));
        let mut world = plan.world(&disk);
        world.run_for(Duration::from_millis(1));
        let volumes: Vec<VolumeHandle> =
            (0..plan.hosts.len()).map(|host| plan.open(&mut world, host)).collect();
        for (host, volume) in volumes.iter().enumerate() {
            while world.endpoint_mut(plan.host(host)).client().poll_event(*volume) != Some(VolumeEvent::Open)
            {
                let now = world.now();
                assert!(now < Time(30_000_000_000), "seed {}: host {host} does not come up", plan.seed);
                world.step(now + Duration::from_millis(100));
            }
        }
        History {
            chance: SimRng::new(!plan.seed),
            flights: vec![BTreeMap::new(); plan.hosts.len()],
            world,
            disk,
            volumes,
            seen: vec![0; SPAN as usize],
            history: sim::linearizability::History::new(0),
            moment: 0,
            idle: 0,
            shut: vec![],
            tally: Tally::default(),
            plan,
        }
    }

    fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn choose(&mut self, host: usize) -> Op {
        let blocks = self.chance.between(1, 6);
        let span = Span { lba: self.chance.below(SPAN - blocks + 1), blocks };
        if host > 0 {
            return Op::Read(span);
        }
        match self.chance.below(20) {
            0..9 => Op::Write(span, *self.chance.pick(&[Durability::Cached, Durability::Stable])),
            9..16 => Op::Read(span),
            16..18 => Op::CompareAndWrite(Span { blocks: 1, ..span }),
            _ => Op::Flush,
        }
    }

    fn submit(&mut self, host: usize, op: Op) {
        let (began, since) = (self.tick(), self.world.now());
        let shard = self.plan.host(host);
        let expected = match &op {
            Op::CompareAndWrite(span) => self.seen[span.lba as usize],
            _ => 0,
        };
        let pool = self.world.pool(shard).clone();
        let payload = match &op {
            Op::Read(span) => {
                Payload::In(pool.take_sg(MemoryClass::Solicited, span.blocks as usize * 512).unwrap())
            }
            Op::Write(span, _) => stamps(&pool, &vec![began; span.blocks as usize]),
            Op::CompareAndWrite(_) => stamps(&pool, &[expected, began]),
            _ => Payload::None,
        };
        let flight = Flight { op: op.clone(), expected, began, since, cancelled: false };
        self.flights[host].insert(began, flight);
        let io = Io { id: IoId(began), epoch: Epoch(0), op, payload };
        let volume = self.volumes[host];
        self.world
            .with_endpoint(shard, |node, cx| node.client().submit(cx, volume, io))
            .expect("there is room");
    }

    /// Lets the next thing happen. A clock that stands still is somebody's timer that does nothing.
    fn step(&mut self, most: Duration) {
        let before = self.world.now();
        self.world.step(before + most);
        self.idle = if self.world.now() > before { 0 } else { self.idle + 1 };
        let seed = self.plan.seed;
        assert!(
            self.idle < 100_000,
            "seed {seed}: the clock stands still at {before:?}: {:?}",
            self.timers()
        );
    }

    /// Whose timers are due, and when: of a shard, and of the paths of its volume.
    fn timers(&self) -> Vec<(usize, Option<Time>, Vec<Option<Time>>)> {
        let timers = |shard: usize| {
            let node = self.world.endpoint(ShardId(shard as u16));
            let remote = match node {
                Node::Host(client) => {
                    client.remote_volume(self.volumes[shard - usize::from(self.plan.shards)])
                }
                Node::Target(_) => None,
            };
            let paths = remote.map_or(0, |remote| remote.path_count());
            let path = |at| remote.and_then(|remote| remote.path(at)).and_then(OutboundSockets::poll_timeout);
            (shard, node.poll_timeout(), (0..paths).map(path).collect())
        };
        (0..self.world.shard_count()).map(timers).collect()
    }

    /// Takes what has ended.
    fn take(&mut self) {
        for host in 0..self.volumes.len() {
            let (shard, volume) = (self.plan.host(host), self.volumes[host]);
            while let Some(done) = self.world.endpoint_mut(shard).client().poll_done(volume) {
                self.ended(host, done);
            }
        }
    }

    fn ended(&mut self, host: usize, done: IoCompletion) {
        let IoCompletion { id, result, payload } = done;
        let (seed, end, now) = (self.plan.seed, self.tick(), self.world.now());
        let Some(flight) = self.flights[host].remove(&id.0) else { panic!("seed {seed}: {id:?} ends twice") };
        let waited = now.since(flight.since);
        match &result {
            Ok(_) => self.tally.well += 1,
            Err(Failure::Failed(Fault::Aborted)) if flight.cancelled => self.tally.cancelled += 1,
            Err(Failure::Failed(Fault::Miscompare(_))) if matches!(flight.op, Op::CompareAndWrite(_)) => {}
            Err(Failure::Failed(Fault::PathLost)) => {
                self.tally.lost += 1;
                let once = matches!(flight.op, Op::CompareAndWrite(_));
                assert!(once || waited >= QUEUE_TIMEOUT, "seed {seed}: {flight:?} after {waited:?} only");
            }
            Err(failure) => panic!("seed {seed}: {flight:?}: {failure:?}"),
        }
        let Flight { op, expected, began, .. } = flight;
        let client = host as u32 * 100;
        let sure = result.is_ok().then_some(end);
        let mut note =
            |lba: u64, what, end| self.history.record(lba, Operation { client, begin: began, end, what });
        match op {
            Op::Read(span) if sure.is_some() => {
                for (lba, found) in (span.lba..).zip(stamps_of(seed, span, payload)) {
                    note(lba, OperationKind::Read(found), sure);
                    self.seen[lba as usize] = found;
                }
            }
            Op::Write(span, _) => {
                (span.lba..span.lba + span.blocks)
                    .for_each(|lba| note(lba, OperationKind::Write(began), sure));
            }
            Op::CompareAndWrite(span) => {
                let (swapped, end) = match result {
                    Ok(Outcome::Complete) => (true, Some(end)),
                    Err(Failure::Failed(Fault::Miscompare(_))) => (false, Some(end)),
                    _ => (true, None),
                };
                self.tally.swapped += u64::from(swapped && end.is_some());
                note(span.lba, OperationKind::CompareAndWrite { expected, new: began, swapped }, end);
            }
            _ => {}
        }
    }

    /// Something goes wrong, perhaps.
    fn problem(&mut self) {
        let plan = self.plan.clone();
        let portal = self.chance.below(PORTALS.len() as u64) as usize;
        if self.chance.chance_permille(plan.lose_permille) {
            let silent = self.chance.chance_permille(300);
            let connections = self.world.connections_via(address(portal));
            if !connections.is_empty() {
                let peer = *self.chance.pick(&connections);
                if silent { self.world.lose_silently(peer) } else { self.world.reset(peer) }
            }
        }
        if self.chance.chance_permille(plan.silence_permille + plan.close_permille) {
            let silent = self.chance.chance_permille(500);
            self.world.set_reachability(
                address(portal),
                if silent { Reachability::Silent } else { Reachability::Refused },
            );
            if !silent {
                let connections = self.world.connections_via(address(portal));
                connections.into_iter().for_each(|peer| self.world.reset(peer));
            }
            self.shut.push(portal);
        }
        if !self.shut.is_empty() && self.chance.chance_permille(60) {
            self.world.set_reachability(address(self.shut.pop().expect("not empty")), Reachability::Open);
        }
        if self.chance.chance_permille(plan.restart_permille) {
            self.tally.restarts += 1;
            let pause = Duration::from_millis(self.chance.below(3_000));
            self.world.restart_shards(plan.target(), |id, _| plan.shard(id));
            self.world.run_for(pause);
            plan.serve(&mut self.world, &self.disk, None);
        }
        if self.chance.chance_permille(plan.access_permille) {
            let states = [
                PathAccess::Optimized,
                PathAccess::NonOptimized,
                PathAccess::Inaccessible,
                PathAccess::Transition,
            ];
            let to = *self.chance.pick(&states);
            self.set_access(portal, to);
        }
        if self.chance.chance_permille(plan.cancel_permille) {
            let ids: Vec<u64> = self.flights[0].keys().copied().collect();
            if !ids.is_empty() {
                let id = *self.chance.pick(&ids);
                self.flights[0].get_mut(&id).expect("it is there").cancelled = true;
                let volume = self.volumes[0];
                self.world.with_endpoint(plan.host(0), |node, _| node.client().cancel(volume, IoId(id)));
            }
        }
    }

    fn set_access(&mut self, portal: usize, to: PathAccess) {
        self.tally.changes += 1;
        let ask = VolumeRequest::SetAccess { ports: vec![PortId(portal as u16 + 1)], to, by: None };
        self.world
            .send_message(ShardId(0), Message::Control(5, ControlRequest::VolumeRequest(VolumeId(0), ask)));
    }

    fn run(&mut self) {
        for _ in 0..self.plan.steps {
            let host = self.chance.below(self.volumes.len() as u64) as usize;
            if self.flights[host].len() < FLIGHTS_MAX {
                let op = self.choose(host);
                self.submit(host, op);
            }
            self.problem();
            let happenings = self.chance.below(30);
            for _ in 0..happenings {
                self.step(Duration::from_millis(200));
            }
            self.take();
            self.world.take_control_messages();
        }
    }

    /// Everything heals, and what is left ends in time.
    fn heal(&mut self) {
        for portal in 0..PORTALS.len() {
            self.world.set_reachability(address(portal), Reachability::Open);
            self.set_access(portal, PathAccess::Optimized);
        }
        self.wait("what is in work", |history| history.flights.iter().all(BTreeMap::is_empty));
        for host in 0..self.volumes.len() {
            self.submit(host, Op::Read(Span { lba: 0, blocks: SPAN }));
        }
        self.wait("the last reads", |history| history.flights.iter().all(BTreeMap::is_empty));
    }

    fn wait(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let until = self.world.now() + QUEUE_TIMEOUT + PATIENCE;
        while !done(self) {
            let (seed, now) = (self.plan.seed, self.world.now());
            assert!(now < until, "seed {seed}: waited too long for {what}: {:?}", self.flights);
            self.step(Duration::from_millis(500));
            self.take();
            self.world.take_control_messages();
        }
    }

    /// The volumes are closed: nothing is left of them.
    fn close(&mut self) {
        let seed = self.plan.seed;
        for host in 0..self.volumes.len() {
            let (shard, volume) = (self.plan.host(host), self.volumes[host]);
            let remote = self.world.endpoint(shard);
            let Node::Host(client) = remote else { panic!("a host") };
            let remote = client.remote_volume(volume).expect("it is there");
            for path in 0..remote.path_count() {
                let counts = remote.path_info(path).expect("it is there").counts;
                self.tally.losses += counts.losses;
                self.tally.retried += counts.retried;
                self.tally.unknown += counts.lost;
                self.tally.fences += counts.fences;
            }
            self.world
                .with_endpoint(shard, |node, cx| node.client().close(cx, volume, Duration::from_secs(5)));
            let until = self.world.now() + Duration::from_secs(120);
            loop {
                let news = self.world.endpoint_mut(shard).client().poll_event(volume);
                if news == Some(VolumeEvent::Closed) {
                    break;
                }
                let now = self.world.now();
                assert!(now < until, "seed {seed}: host {host} is never closed");
                if news.is_none() {
                    self.step(Duration::from_millis(100));
                }
            }
            // A path may still be about to fence: it is cut.
            self.world.with_endpoint(shard, |node, _| node.client().drop_volume(volume));
            self.world.run_for(Duration::from_secs(1));
            assert_eq!(self.world.link_count(shard), 0, "seed {seed}: every socket is closed");
            let usage = self.world.pool(shard).usage();
            assert_eq!(usage.lent, 0, "seed {seed}: all memory came back");
        }
    }

    pub fn play(mut self) -> Tally {
        self.run();
        self.heal();
        self.close();
        match self.history.check_linearizable() {
            Ok(verdict) => self.tally.undecided += u64::from(verdict == Verdict::Undecided),
            Err(violation) => panic!("seed {}: {violation}", self.plan.seed),
        }
        self.tally
    }
}

fn stamps(pool: &buf::Pool, stamps: &[Stamp]) -> Payload {
    let mut bytes = Vec::with_capacity(stamps.len() * 512);
    for stamp in stamps {
        (0..64).for_each(|_| bytes.extend_from_slice(&stamp.to_le_bytes()));
    }
    let mut sg = pool.take_sg(MemoryClass::Solicited, bytes.len()).unwrap();
    let mut at = 0;
    for slice in sg.slices_mut(0..bytes.len()) {
        slice.copy_from_slice(&bytes[at..at + slice.len()]);
        at += slice.len();
    }
    Payload::Out(sg.freeze())
}

fn stamps_of(seed: u64, span: Span, payload: Payload) -> Vec<Stamp> {
    let sg = payload.into_sg();
    let mut bytes = vec![0; sg.len()];
    sg.copy_to(0, &mut bytes);
    assert_eq!(bytes.len(), span.blocks as usize * 512, "seed {seed}: a read is as long as was asked");
    let stamp = |block: &[u8]| {
        let stamp = Stamp::from_le_bytes(*block.first_chunk().expect("a block is longer"));
        let whole = block.chunks(8).all(|chunk| chunk == stamp.to_le_bytes());
        assert!(whole, "seed {seed}: a block is torn in {span:?}");
        stamp
    };
    bytes.chunks(512).map(stamp).collect()
}
