//! Random histories over paths that lose operations, let them land late, come and go. The results must be
//! linearizable per block, flushed data must be durable, and every operation must end once and in time.
//!
//! The paths report outcomes truthfully: of the operations they lost, some were done, some never will be, and
//! some land at any time until the path reports that it is fenced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use buf::{MemoryClass, Payload};
use sim::SimRng;
use sim::linearizability::{History, Operation, OperationKind, Stamp, Verdict};
use testkit::seeds;
use volume::{
    Backend, Durability, Epoch, Failure, Fault, Io, IoCompletion, IoId, Op, Outcome, PathAccess, Span,
};

use super::script::{Scene, info};
use crate::path::{DownReason, IoError, PathEvent, VolumeInfo};
use crate::remote::VolumeSettings;
use crate::remote::tasks::PlantedBug;
use crate::url::PathPolicy;

/// Blocks that everybody is after.
const BLOCKS: u64 = 12;
const FLIGHTS_MAX: usize = 10;
const QUEUE_TIMEOUT: Duration = Duration::from_secs(20);

/// An operation of the caller.
#[derive(Clone, Debug)]
struct Flight {
    op: Op,
    stamp: Stamp,
    expected: Stamp,
    began: u64,
    client: u32,
    /// For a flush: the writes that it must make durable.
    covers: BTreeSet<Stamp>,
}

/// What a path does not have any more, and may still happen.
#[derive(Clone, Debug)]
struct Zombie {
    op: Op,
    stamps: Vec<Stamp>,
}

#[derive(Default)]
struct Line {
    up: bool,
    /// It is in a state in which the target serves.
    serves: bool,
    connects: u32,
    fences: u32,
    disconnects: u32,
    zombies: Vec<Zombie>,
    /// Operations that were done and whose answers were not sent yet.
    executed: BTreeMap<IoId, Result<(), Failure>>,
    /// Written by this path and not flushed.
    cached: BTreeSet<Stamp>,
}

struct Play {
    seed: u64,
    scene: Scene,
    chance: SimRng,
    lines: Vec<Line>,
    medium: Vec<Stamp>,
    flights: BTreeMap<u64, Flight>,
    /// Answered writes that a path holds in its cache still.
    answered: BTreeSet<Stamp>,
    history: History,
    now: u64,
    tally: Tally,
}

testkit::tally! {
    struct Tally { well, failed, lost, late, flushed, swapped, fences, undecided }
}

impl Play {
    fn new(seed: u64, bug: Option<PlantedBug>) -> Play {
        let mut chance = SimRng::new(seed ^ 0x9a7);
        let settings = VolumeSettings {
            policy: *chance.pick(&[PathPolicy::RoundRobin, PathPolicy::LeastQueue]),
            queue_timeout: QUEUE_TIMEOUT,
            ..VolumeSettings::default()
        };
        let paths = chance.between(1, 4) as usize;
        let mut scene = Scene::up(paths, settings);
        scene.volume.tasks.bug = bug;
        let mut lines: Vec<Line> = Vec::new();
        lines.resize_with(paths, || Line { up: true, serves: true, connects: 1, ..Line::default() });
        Play {
            seed,
            scene,
            chance,
            lines,
            medium: vec![0; BLOCKS as usize],
            flights: BTreeMap::new(),
            answered: BTreeSet::new(),
            history: History::new(0),
            now: 0,
            tally: Tally::default(),
        }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn span(&mut self) -> Span {
        let blocks = self.chance.between(1, 4);
        Span { lba: self.chance.below(BLOCKS - blocks + 1), blocks }
    }

    fn submit(&mut self) {
        if self.flights.len() >= FLIGHTS_MAX {
            return;
        }
        let began = self.tick();
        let span = self.span();
        let one = Span { blocks: 1, ..span };
        let op = match self.chance.below(20) {
            0..8 => Op::Write(span, *self.chance.pick(&[Durability::Cached, Durability::Stable])),
            8..15 => Op::Read(span),
            15..17 => Op::CompareAndWrite(one),
            17 => Op::WriteZeroes { span: one, unmap: false },
            _ => Op::Flush,
        };
        self.send(op, began);
    }

    fn send(&mut self, op: Op, began: u64) {
        // Zeroes are the initial stamp again; nobody could tell them apart, so they are kept to one block.
        let stamp = if matches!(op, Op::WriteZeroes { .. }) { 0 } else { began };
        let expected = match &op {
            Op::CompareAndWrite(span) => self.medium[span.lba as usize],
            _ => 0,
        };
        let covers = if matches!(op, Op::Flush) { self.answered.clone() } else { BTreeSet::new() };
        let blocks =
            super::super::write_overlap::spans_of(&op).first().map_or(0, |span| span.blocks) as usize;
        let payload = match &op {
            Op::Read(_) => {
                Payload::In(self.scene.pool.take_sg(MemoryClass::Solicited, blocks * 512).unwrap())
            }
            Op::Write(..) => self.stamps(&vec![stamp; blocks]),
            Op::CompareAndWrite(_) => self.stamps(&[expected, stamp]),
            _ => Payload::None,
        };
        let client = self.flights.len() as u32;
        self.flights.insert(began, Flight { op: op.clone(), stamp, expected, began, client, covers });
        let io = Io { id: IoId(began), epoch: Epoch(0), op, payload };
        self.scene.with(|volume, cx| volume.submit(cx, io));
    }

    fn stamps(&self, stamps: &[Stamp]) -> Payload {
        let mut sg = self.scene.pool.take_sg(MemoryClass::Solicited, stamps.len() * 512).unwrap();
        for (at, stamp) in stamps.iter().enumerate() {
            let mut bytes = stamp.to_le_bytes().into_iter();
            for slice in sg.slices_mut(at * 512..at * 512 + 8) {
                slice.iter_mut().for_each(|byte| *byte = bytes.next().unwrap());
            }
        }
        Payload::Out(sg.freeze())
    }

    fn stamps_of(payload: &Payload) -> Vec<Stamp> {
        let Payload::Out(sg) = payload else { return vec![] };
        let mut bytes = vec![0; sg.len()];
        sg.copy_to(0, &mut bytes);
        bytes.chunks(512).map(|block| Stamp::from_le_bytes(*block.first_chunk().unwrap())).collect()
    }

    /// Does an operation to the medium, as the path does it.
    fn execute(&mut self, path: usize, op: &Op, stamps: &[Stamp]) -> Result<(), Failure> {
        match op {
            Op::Write(span, durability) => {
                self.medium[span.lba as usize..][..span.blocks as usize].copy_from_slice(stamps);
                // Done again by another path, it is that one's.
                self.lines.iter_mut().for_each(|line| _ = line.cached.remove(&stamps[0]));
                if *durability == Durability::Cached {
                    self.lines[path].cached.insert(stamps[0]);
                }
            }
            Op::WriteZeroes { span, .. } => self.medium[span.lba as usize] = 0,
            Op::CompareAndWrite(span) => {
                let block = &mut self.medium[span.lba as usize];
                if *block != stamps[0] {
                    return Err(Failure::Failed(Fault::Miscompare(0)));
                }
                *block = stamps[1];
                self.lines[path].cached.insert(stamps[1]);
            }
            Op::Flush => self.lines[path].cached.clear(),
            _ => {}
        }
        Ok(())
    }

    /// A path does one of its operations, and perhaps says so.
    fn work(&mut self, path: usize) {
        let given = self.scene.given(path);
        if given == 0 {
            return;
        }
        let at = self.chance.below(given as u64) as usize;
        let (id, op, stamps) = {
            let script = self.scene.paths[path].0.borrow();
            let (id, op, payload) = &script.given[at];
            (*id, op.clone(), Self::stamps_of(payload))
        };
        let how = match self.lines[path].executed.remove(&id) {
            Some(how) => how,
            None if !self.lines[path].serves => {
                let (id, _, payload) = self.scene.paths[path].0.borrow_mut().given.remove(at).unwrap();
                let how = Err(IoError::NotDone(Duration::from_millis(20)));
                return self.scene.say(path, PathEvent::Done { id, how, payload });
            }
            None => {
                let how = self.execute(path, &op, &stamps);
                // Reads are answered in the moment in which they are done.
                if self.chance.chance_permille(500) && !matches!(op, Op::Read(_)) {
                    self.lines[path].executed.insert(id, how);
                    return;
                }
                how
            }
        };
        let (id, op, mut payload) = self.scene.paths[path].0.borrow_mut().given.remove(at).unwrap();
        if let (Op::Read(span), Payload::In(_)) = (&op, &payload) {
            let found = self.medium[span.lba as usize..][..span.blocks as usize].to_vec();
            payload = self.stamps(&found);
        }
        let how = how.map(|()| Outcome::Complete).map_err(IoError::Failed);
        self.scene.say(path, PathEvent::Done { id, how, payload });
    }

    /// A path loses an operation, or all with its connection.
    fn lose(&mut self, path: usize, all: bool) {
        while let Some((id, op, payload)) = { self.scene.paths[path].0.borrow_mut().given.pop_front() } {
            let stamps = Self::stamps_of(&payload);
            let done = self.lines[path].executed.remove(&id).is_some();
            let error = match self.chance.below(3) {
                0 if !done => IoError::NotDone(Duration::from_millis(self.chance.below(3) * 20)),
                _ => IoError::InDoubt,
            };
            if matches!(error, IoError::InDoubt) && !done && op.is_write() && self.chance.chance_permille(700)
            {
                self.lines[path].zombies.push(Zombie { op, stamps });
            }
            self.tally.lost += u64::from(matches!(error, IoError::InDoubt));
            self.scene.paths[path].0.borrow_mut().says.push_back(PathEvent::Done {
                id,
                how: Err(error),
                payload,
            });
            if !all {
                break;
            }
        }
        if all && self.lines[path].up {
            self.lines[path].up = false;
            // The target takes its cache over.
            self.lines[path].cached.clear();
            self.scene.say(path, PathEvent::Down(DownReason::Lost("chance".into())));
        } else {
            self.scene.with(|_, _| ());
        }
    }

    /// What was lost lands.
    fn land(&mut self, path: usize) {
        let count = self.lines[path].zombies.len() as u64;
        if count > 0 {
            let at = self.chance.below(count) as usize;
            let zombie = self.lines[path].zombies.swap_remove(at);
            let _ = self.execute(path, &zombie.op, &zombie.stamps);
            self.tally.late += 1;
        }
    }

    /// A path does what it was told: to connect, to fence, to disconnect.
    fn obey(&mut self, path: usize, kindly: bool) {
        let (connects, fences, disconnects) = {
            let script = self.scene.paths[path].0.borrow();
            (script.connects, script.fences, script.disconnects)
        };
        if fences > self.lines[path].fences && (kindly || self.chance.chance_permille(300)) {
            self.lines[path].fences += 1;
            while !self.lines[path].zombies.is_empty() && self.chance.chance_permille(500) {
                self.land(path);
            }
            self.lines[path].zombies.clear();
            self.tally.fences += 1;
            self.scene.say(path, PathEvent::Fenced);
        }
        let line = &mut self.lines[path];
        if disconnects > line.disconnects {
            line.disconnects = disconnects;
            line.connects = connects;
            if line.up || connects > 0 {
                self.lose(path, true);
            }
        } else if connects > line.connects && (kindly || self.chance.chance_permille(300)) {
            line.connects = connects;
            if kindly || self.chance.chance_permille(600) {
                line.up = true;
                let access = if kindly { PathAccess::Optimized } else { self.access() };
                self.lines[path].serves = access.allows_io();
                self.scene.say(path, PathEvent::Up(Arc::new(VolumeInfo { access, ..info() })));
            } else {
                self.scene.say(path, PathEvent::Down(DownReason::Unreachable(buf::Errno(111))));
            }
        }
    }

    fn access(&mut self) -> PathAccess {
        *self.chance.pick(&[
            PathAccess::Optimized,
            PathAccess::Optimized,
            PathAccess::NonOptimized,
            PathAccess::Inaccessible,
            PathAccess::Transition,
        ])
    }

    /// Takes what has ended.
    fn take(&mut self) {
        for done in std::mem::take(&mut self.scene.ended) {
            let IoCompletion { id, result, payload } = done;
            let seed = self.seed;
            let Some(flight) = self.flights.remove(&id.0) else {
                panic!("seed {seed}: {id:?} ends twice");
            };
            let end = self.tick();
            match result {
                Ok(_) => self.tally.well += 1,
                Err(_) => self.tally.failed += 1,
            }
            self.judge(flight, result, &payload, end);
        }
    }

    fn judge(&mut self, flight: Flight, result: Result<Outcome, Failure>, payload: &Payload, end: u64) {
        let Flight { op, stamp, expected, began, client, covers } = flight;
        let mut note = |lba: u64, what, end| {
            self.history.record(lba, Operation { client, begin: began, end, what });
        };
        let sure = result.is_ok().then_some(end);
        match op {
            Op::Read(span) if sure.is_some() => {
                let found = Self::stamps_of(payload);
                (span.lba..).zip(found).for_each(|(lba, stamp)| note(lba, OperationKind::Read(stamp), sure));
            }
            Op::Read(_) => {}
            Op::Write(span, durability) => {
                (span.lba..span.lba + span.blocks)
                    .for_each(|lba| note(lba, OperationKind::Write(stamp), sure));
                if sure.is_some() && durability == Durability::Cached {
                    self.answered.insert(stamp);
                }
            }
            Op::WriteZeroes { span, .. } => note(span.lba, OperationKind::Write(0), sure),
            Op::CompareAndWrite(span) => {
                let swapped = match result {
                    Ok(_) => true,
                    Err(Failure::Failed(Fault::Miscompare(_))) => false,
                    Err(_) => {
                        return note(
                            span.lba,
                            OperationKind::CompareAndWrite { expected, new: stamp, swapped: true },
                            None,
                        );
                    }
                };
                self.tally.swapped += u64::from(swapped);
                note(span.lba, OperationKind::CompareAndWrite { expected, new: stamp, swapped }, Some(end));
            }
            Op::Flush if sure.is_some() => {
                self.tally.flushed += 1;
                for (path, line) in self.lines.iter().enumerate() {
                    let forgotten: Vec<_> = line.cached.intersection(&covers).collect();
                    assert!(
                        forgotten.is_empty(),
                        "seed {}: path {path} has not flushed {forgotten:?}",
                        self.seed
                    );
                }
            }
            _ => {}
        }
    }

    fn step(&mut self) {
        let path = self.chance.below(self.lines.len() as u64) as usize;
        match self.chance.below(100) {
            0..30 => self.submit(),
            30..70 => self.work(path),
            70..73 => self.lose(path, true),
            73..76 => self.lose(path, false),
            76..80 => self.land(path),
            80..90 => self.obey(path, false),
            90..92 => {
                let access = self.access();
                if self.lines[path].up {
                    if !access.allows_io() {
                        self.lines[path].cached.clear();
                    }
                    self.lines[path].serves = access.allows_io();
                    let info = VolumeInfo { access, ..info() };
                    self.scene.say(path, PathEvent::Changed(Arc::new(info)));
                }
            }
            92 => {
                let ids: Vec<u64> = self.flights.keys().copied().collect();
                if !ids.is_empty() {
                    let id = *self.chance.pick(&ids);
                    self.scene.with(|volume, _| volume.cancel(IoId(id)));
                }
            }
            _ => {
                let time = self.chance.below(200);
                self.scene.pass(Duration::from_millis(time));
            }
        }
        self.scene.with(|_, _| ());
        self.take();
    }

    fn play(mut self) -> Tally {
        for _ in 0..250 {
            self.step();
        }
        // Everything heals: what is left ends within its time.
        let until = self.scene.now + QUEUE_TIMEOUT + Duration::from_secs(15);
        let all: Vec<u64> = (0..BLOCKS).collect();
        while !self.flights.is_empty() {
            self.run_pending();
            let left: Vec<_> = self.flights.values().collect();
            assert!(self.scene.now < until, "seed {}: never ends: {left:?}", self.seed);
        }
        for lba in all {
            let began = self.tick();
            self.send(Op::Read(Span { lba, blocks: 1 }), began);
            while !self.flights.is_empty() {
                self.run_pending();
                assert!(self.scene.now < until + QUEUE_TIMEOUT, "seed {}: no read ends", self.seed);
            }
        }
        assert_eq!(self.scene.volume.tasks.order.len(), self.scene.volume.tasks.in_doubt.len() as u32);
        assert_eq!(
            (self.scene.volume.in_work(), self.scene.volume.tasks.held.len()),
            (0, 0),
            "seed {}",
            self.seed
        );
        let verdict = match self.history.check_linearizable() {
            Ok(verdict) => verdict,
            Err(violation) => panic!("seed {}: {violation}", self.seed),
        };
        self.tally.undecided += u64::from(verdict == Verdict::Undecided);
        self.tally
    }

    fn run_pending(&mut self) {
        for path in 0..self.lines.len() {
            self.obey(path, true);
            if self.lines[path].up {
                self.lines[path].serves = true;
                self.scene.say(path, PathEvent::Changed(Arc::new(info())));
            }
            (0..4).for_each(|_| self.work(path));
        }
        self.scene.pass(Duration::from_millis(50));
        self.take();
    }
}

#[test]
fn random_histories_have_an_order() {
    let test = "blockwire-multipath --lib random_histories";
    let (all, runs) = seeds::run_all_seeds(1000, test, |seed| Play::new(seed, None).play());
    let Tally { well, failed, lost, late, flushed, swapped, fences, .. } = all;
    let is_eventful = well > 5_000 && [failed, lost, late, flushed, swapped, fences].iter().all(|n| *n > 100);
    assert!(runs < 100 || is_eventful, "nothing much happens: {all:?}");
}

/// Bugs that the volume could have: each is noticed.
#[test]
fn planted_bugs_are_noticed() {
    for bug in [
        PlantedBug::NoFence,
        PlantedBug::NoOrder,
        PlantedBug::FlushOne,
        PlantedBug::Lose,
        PlantedBug::Double,
        PlantedBug::RepeatSwap,
    ] {
        seeds::assert_some_seed_fails(bug, 400, |seed| Play::new(seed, Some(bug)).play());
    }
}
