//! Random histories: several hosts over several connections read, write and flush the same blocks while
//! connections die, sessions are reinstated, tasks aborted, units reset, the disk fails and the power fails.
//! Every seed is a separate history, and each must be consistent with a disk.

mod power;

use std::collections::BTreeMap;
use std::time::Duration;

use blockwire_shard::Shard;
use endpoint::ShardId;
use iscsi::negotiate::Digest;
use iscsi::wire::TmfFunction;
use sim::linearizability::{self, Operation, OperationKind, Verdict};
use sim::{DiskFaults, Peer, PeerEnd, SimRng, World};

use crate::command::{CommandKind, Flight, request};
use crate::model::{ALIKE, Model, Moment, Value, value_of};
use crate::plan::{PAGES, Plan, SPAN};
use testkit::iscsi_initiator::TestInitiator;
use testkit::target;

/// Simulated time after which something that was promised has not come.
const PATIENCE: Duration = Duration::from_secs(100);

struct Host {
    isid: u16,
    initiator: TestInitiator,
    flights: BTreeMap<u32, Flight>,
    /// Aborts under way, with the task that each is for; `None`: a reset of the unit.
    managing: BTreeMap<u32, (usize, Option<u32>)>,
    /// Writes that were given up with a connection: they may happen until the session ends.
    orphans: Vec<Flight>,
}

testkit::tally! {
    pub struct Tally {
        good, failed, aborted, kills, reinstated, power_losses, crashes,
        /// Flushes that were answered GOOD after a crash, and before anything was written.
        first_flushes,
        lost, swapped, miscompared, unmapped, copied, ordered, undecided,
        /// R2Ts that were not the first of their tasks.
        later_r2ts,
    }
}

impl Tally {
    /// Whether everything that can happen happens.
    pub fn is_eventful(&self) -> bool {
        let Tally { good, failed, aborted, kills, reinstated, power_losses, lost, .. } = *self;
        let Tally { swapped, miscompared, unmapped, copied, later_r2ts, crashes, first_flushes, .. } = *self;
        let rare = [failed, aborted, kills, reinstated, power_losses, lost, crashes, first_flushes];
        let common = [swapped, miscompared, unmapped, copied, later_r2ts];
        rare.iter().all(|count| *count > 5) && common.iter().all(|count| *count > 200) && good > 10_000
    }
}

pub struct History {
    plan: Plan,
    chance: SimRng,
    world: World<Shard>,
    model: Model,
    hosts: Vec<Host>,
    now: Moment,
    last_value: Value,
    /// What was last read in each block.
    seen: Vec<Value>,
    /// What everybody did to each block since the power came.
    done: linearizability::History,
    pub tally: Tally,
}

impl History {
    pub fn new(plan: Plan) -> Self {
        let world = plan.world(None, 0);
        let chance = SimRng::new(!plan.seed);
        let model = Model::new(SPAN);
        let mut history = History {
            plan,
            chance,
            world,
            model,
            hosts: vec![],
            now: 1,
            last_value: 0,
            seen: vec![0; SPAN],
            done: linearizability::History::new(0),
            tally: Tally::default(),
        };
        for isid in 1..=history.plan.hosts as u16 {
            let host = history.log_in(isid);
            history.hosts.push(host);
        }
        history
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn step(&mut self) {
        let until = self.world.now() + Duration::from_micros(50);
        self.world.step(until);
    }

    /// Lets the world go on until `done`, everybody reading.
    fn wait(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.world.now() + PATIENCE;
        while !done(self) {
            let seed = self.plan.seed;
            assert!(self.world.now() < limit, "seed {seed}: waited too long for {what}: {:?}", self.open());
            self.poll();
            let until = self.world.now() + Duration::from_millis(1);
            self.world.step(until);
        }
    }

    /// What is not answered yet.
    fn open(&self) -> Vec<String> {
        let host = |host: &Host| format!("{:?} {:?} {:?}", host.flights, host.managing, host.initiator);
        self.hosts.iter().map(host).collect()
    }

    /// Logs in, again as long as the shard of the new session has no room for its first connection. It has none for
    /// others that join: then the session goes on without them.
    fn log_in(&mut self, isid: u16) -> Host {
        loop {
            if let Some(host) = self.try_log_in(isid) {
                return host;
            }
        }
    }

    fn try_log_in(&mut self, isid: u16) -> Option<Host> {
        let mut wanted = target::login_config(isid);
        if self.plan.digests {
            wanted.limits.header_digest = vec![Digest::Crc32c];
            wanted.limits.data_digest = vec![Digest::Crc32c];
        }
        wanted.limits.initial_r2t = !self.plan.unsolicited;
        wanted.limits.immediate_data = self.plan.unsolicited;
        if let Some((first, all, outstanding)) = self.plan.bursts {
            (wanted.limits.first_burst, wanted.limits.max_burst) = (first, all);
            wanted.limits.max_outstanding_r2t = outstanding;
        }
        let mut initiator = TestInitiator::connect(&mut self.world, wanted);
        for cid in 0..self.plan.connections {
            if cid > 0 {
                initiator.add_connection(&mut self.world, cid);
            }
            let limit = self.world.now() + PATIENCE;
            while !initiator.is_logged_in() {
                assert_eq!(initiator.failure(), None, "seed {}", self.plan.seed);
                let seed = self.plan.seed;
                assert!(self.world.now() < limit, "seed {seed}: no login: {initiator:?}");
                initiator.poll(&mut self.world);
                self.poll();
                let until = self.world.now() + Duration::from_millis(1);
                self.world.step(until);
            }
            let conn = usize::from(cid);
            if self.is_turned_away(initiator.peer_of(conn)) {
                if cid == 0 {
                    return None;
                }
                initiator.break_connection(&mut self.world, conn, true);
            }
        }
        let (flights, managing, orphans) = (BTreeMap::new(), BTreeMap::new(), vec![]);
        Some(Host { isid, initiator, flights, managing, orphans })
    }

    /// Whether a connection that has just logged in is reset on its way to the shard of its session.
    fn is_turned_away(&mut self, peer: Peer) -> bool {
        if self.plan.shard_faults.refuse_move_permille == 0 {
            return false;
        }
        let until = self.world.now() + Duration::from_millis(50);
        while self.world.step(until) {
            self.poll();
        }
        self.world.peer_end(peer) == PeerEnd::Reset
    }

    /// Everybody takes what has come.
    fn poll(&mut self) {
        for host in 0..self.hosts.len() {
            self.hosts[host].initiator.poll(&mut self.world);
            self.settle(host);
        }
    }

    fn settle(&mut self, host: usize) {
        let initiator = &mut self.hosts[host].initiator;
        self.tally.later_r2ts += std::mem::take(&mut initiator.later_r2ts);
        for ended in std::mem::take(&mut self.hosts[host].initiator.ended) {
            let now = self.tick();
            let flight = self.hosts[host].flights.remove(&ended.itt).expect("it was sent");
            if ended.status == 0 {
                self.tally.good += 1;
                self.ended_well(flight, &ended.data, now);
            } else {
                self.tally.failed += 1;
                self.ended_badly(flight, ended.status, &ended.sense, now);
            }
        }
        for (itt, response) in std::mem::take(&mut self.hosts[host].initiator.managed) {
            let now = self.tick();
            let seed = self.plan.seed;
            let (_, of) = self.hosts[host].managing.remove(&itt).expect("it was asked for");
            // 0: done; 1: there is no such task any more.
            assert!(response == 0 || (response == 1 && of.is_some()), "seed {seed}: response {response}");
            if let Some(task) = of {
                self.ended_by_abort(host, task, now);
            }
        }
    }

    fn ended_well(&mut self, flight: Flight, data: &[u8], now: Moment) {
        if let Some((by, _)) = flight.kind.writes() {
            let fua = matches!(flight.kind, CommandKind::Write { fua: true, .. });
            let durable = fua || !self.plan.write_cache || !self.plan.file;
            self.model.succeed(flight.lba, flight.blocks, by, durable, now);
            self.note(flight, Some(now), true);
        }
        match flight.kind {
            CommandKind::Read => self.check(flight, data, now),
            CommandKind::Flush => self.model.flushed(flight.began),
            CommandKind::Swap { expected, .. } => {
                self.tally.swapped += 1;
                let seed = self.plan.seed;
                assert!(
                    self.model.allows(flight.lba, expected, flight.began),
                    "seed {seed}: {flight:?} found what cannot stand there, of {}",
                    self.model.describe(flight.lba)
                );
            }
            CommandKind::Unmap { .. } => self.tally.unmapped += 1,
            CommandKind::Copy { .. } => self.tally.copied += 1,
            CommandKind::Write { .. } | CommandKind::Same { .. } | CommandKind::Ready => {}
        }
    }

    /// Notes what a write did to its blocks, for the check of the whole.
    fn note(&mut self, flight: Flight, end: Option<Moment>, swapped: bool) {
        let Some((_, value)) = flight.kind.writes() else { return };
        let what = match flight.kind {
            CommandKind::Swap { expected, .. } => {
                OperationKind::CompareAndWrite { expected: expected.into(), new: value.into(), swapped }
            }
            _ => OperationKind::Write(value.into()),
        };
        for lba in flight.lba..flight.lba + flight.blocks {
            self.note_one(flight, lba, end, what);
        }
    }

    fn note_one(&mut self, flight: Flight, lba: usize, end: Option<Moment>, what: OperationKind) {
        let (client, begin) = (flight.host as u32, flight.began);
        self.done.record(lba as u64, Operation { client, begin, end, what });
    }

    /// Each block's reads, writes and swaps can have happened one after the other.
    fn check_order(&mut self) {
        match self.done.check_linearizable() {
            Ok(Verdict::Holds) => self.tally.ordered += 1,
            Ok(Verdict::Undecided) => self.tally.undecided += 1,
            Err(violation) => panic!("seed {}: {violation}", self.plan.seed),
        }
    }

    fn ended_badly(&mut self, flight: Flight, status: u8, sense: &[u8], now: Moment) {
        let key = sense.get(2).map(|byte| byte & 0x0f);
        let seed = self.plan.seed;
        if let (2, Some(0x0e), CommandKind::Swap { .. }) = (status, key, flight.kind) {
            self.tally.miscompared += 1;
            self.note(flight, Some(now), false);
            if let Some((by, _)) = flight.kind.writes() {
                self.model.take_back(flight.lba, flight.blocks, by);
            }
            return;
        }
        // Unit attention, medium error, not ready, data protect (no space); BUSY, TASK SET FULL,
        // TASK ABORTED. A copy that fails on its way is COPY ABORTED, whatever the reason.
        let copied = matches!(flight.kind, CommandKind::Copy { .. }) && (status, key) == (2, Some(0xa));
        let known = copied || matches!((status, key), (2, Some(2 | 3 | 6 | 7 | 0xb)) | (8 | 0x28 | 0x40, _));
        assert!(known, "seed {seed}: {flight:?} ended with {status:02x}, {sense:02x?}");
        let DiskFaults { error_permille, full_permille, sync_permille, lost_permille, .. } = self.plan.faults;
        let calm = error_permille + full_permille + sync_permille + lost_permille == 0;
        assert!(
            !calm || key == Some(6) || key == Some(2) || status != 2,
            "seed {seed}: {flight:?} failed with {sense:02x?} and no fault"
        );
        self.give_up(flight, now);
    }

    fn check(&mut self, flight: Flight, data: &[u8], now: Moment) {
        let seed = self.plan.seed;
        assert_eq!(data.len(), flight.blocks * 512, "seed {seed}: {flight:?}");
        for (number, bytes) in data.chunks(512).enumerate() {
            let lba = flight.lba + number;
            let Some(value) = value_of(lba, bytes) else {
                panic!("seed {seed}: block {lba} is torn: {:02x?}", &bytes[..32]);
            };
            assert!(
                self.model.allows(lba, value, flight.began),
                "seed {seed}: {flight:?}: block {lba} has {value}, of {}",
                self.model.describe(lba)
            );
            self.seen[lba] = value;
            self.note_one(flight, lba, Some(now), OperationKind::Read(value.into()));
        }
    }

    fn ended_by_abort(&mut self, host: usize, task: u32, now: Moment) {
        self.hosts[host].initiator.forget_task(task);
        if let Some(flight) = self.hosts[host].flights.remove(&task) {
            self.tally.aborted += 1;
            self.give_up(flight, now);
        }
    }

    fn give_up(&mut self, flight: Flight, now: Moment) {
        if let Some((by, _)) = flight.kind.writes() {
            self.model.give_up(flight.lba, flight.blocks, by, now);
            self.note(flight, None, false);
        }
    }

    fn command(&mut self, host: usize) {
        let began = self.tick();
        let kinds = if self.plan.copies { 27 } else { 24 };
        let kind = match self.chance.below(kinds) {
            0..9 => CommandKind::Write { value: self.next_value(), fua: self.chance.chance_permille(200) },
            9..18 => CommandKind::Read,
            18 => CommandKind::Flush,
            19 => CommandKind::Same { value: self.next_value() | ALIKE },
            20 => CommandKind::Unmap { by: self.next_value() },
            21 | 22 => CommandKind::Swap { expected: 0, value: self.next_value() },
            23 => CommandKind::Ready,
            _ => CommandKind::Copy { by: self.next_value(), page: self.chance.below(PAGES as u64) as Value },
        };
        let blocks =
            if matches!(kind, CommandKind::Swap { .. }) { 1 } else { self.chance.between(1, 40) as usize };
        let lba = self.chance.below((SPAN - blocks) as u64 + 1) as usize;
        let kind = match kind {
            // Mostly what was last seen there: so hosts race for the same block.
            CommandKind::Swap { value, .. } => CommandKind::Swap { expected: self.seen[lba], value },
            other => other,
        };
        self.send(began, host, kind, (lba, blocks));
    }

    fn send(&mut self, began: Moment, host: usize, kind: CommandKind, (lba, blocks): (usize, usize)) {
        let flight = Flight { host, kind, lba, blocks, began };
        if let Some((by, value)) = kind.writes() {
            self.model.begin(lba, blocks, by, value, began);
        }
        let (cdb, out, read) = request(flight);
        let host = &mut self.hosts[host];
        host.initiator.next_conn = self.chance.below(8) as usize;
        let itt = host.initiator.send_command(&mut self.world, 0, &cdb, &out, read);
        host.flights.insert(itt, flight);
    }

    fn next_value(&mut self) -> Value {
        self.last_value += 1;
        self.last_value
    }

    fn abort(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        let sent = |itt: &u32| !host.initiator.is_command_queued(*itt);
        let tasks: Vec<u32> = host.initiator.tasks_in_flight().into_iter().filter(sent).collect();
        if tasks.is_empty() {
            return;
        }
        let task = *self.chance.pick(&tasks);
        let (itt, conn) =
            host.initiator.send_task_management(&mut self.world, TmfFunction::ABORT_TASK, 0, task);
        host.managing.insert(itt, (conn, Some(task)));
    }

    /// Resets the unit. What is in flight, of any host, is answered or has silently ended soon after.
    fn reset_unit(&mut self, host: usize) {
        let one = &mut self.hosts[host];
        let (itt, conn) =
            one.initiator.send_task_management(&mut self.world, TmfFunction::LOGICAL_UNIT_RESET, 0, u32::MAX);
        one.managing.insert(itt, (conn, None));
        self.wait("the reset of a unit", |history| {
            history.hosts[host].managing.values().all(|(_, task)| task.is_some())
        });
        let limit = self.world.now() + Duration::from_secs(1);
        while self.world.now() < limit && self.hosts.iter().any(|host| !host.flights.is_empty()) {
            self.poll();
            self.step();
        }
        let now = self.tick();
        for host in 0..self.hosts.len() {
            for (task, flight) in std::mem::take(&mut self.hosts[host].flights) {
                self.tally.lost += 1;
                self.hosts[host].initiator.forget_task(task);
                self.give_up(flight, now);
            }
        }
    }

    /// A connection dies. The session goes on over the others, if there are any.
    fn kill_connection(&mut self, host: usize) {
        let living = self.hosts[host].initiator.live_connections();
        if living.len() < 2 {
            return self.reinstate(host);
        }
        self.tally.kills += 1;
        let conn = *self.chance.pick(&living);
        let reset = self.chance.chance_permille(500);
        self.lose(host, conn, reset);
        if self.chance.chance_permille(500) {
            let cid = self.hosts[host].initiator.cid_of(conn);
            if cid != 0 {
                self.hosts[host].initiator.add_connection(&mut self.world, cid);
                self.wait("a connection to be reinstated", |history| {
                    assert_eq!(history.hosts[host].initiator.failure(), None);
                    history.hosts[host].initiator.is_logged_in()
                });
                let latest = *self.hosts[host].initiator.live_connections().last().expect("it has joined");
                if self.is_turned_away(self.hosts[host].initiator.peer_of(latest)) {
                    self.lose(host, latest, true);
                }
            }
        }
    }

    /// What was sent over a connection is answered no more.
    fn lose(&mut self, host: usize, conn: usize, reset: bool) {
        let one = &mut self.hosts[host];
        let lost = one.initiator.break_connection(&mut self.world, conn, reset);
        for task in lost {
            one.orphans.extend(one.flights.remove(&task));
        }
        one.managing.retain(|_, (over, _)| *over != conn);
        let until = self.world.now() + Duration::from_millis(5);
        while self.world.step(until) {}
        self.poll();
        self.hosts[host].initiator.fill_cmd_sn_gaps(&mut self.world);
    }

    /// The same host logs in again. When it is in, nothing of the old session may happen any more.
    fn reinstate(&mut self, host: usize) {
        self.tally.reinstated += 1;
        if self.chance.chance_permille(500) {
            for conn in self.hosts[host].initiator.live_connections() {
                let reset = self.chance.chance_permille(500);
                self.hosts[host].initiator.break_connection(&mut self.world, conn, reset);
            }
        }
        let isid = self.hosts[host].isid;
        let new = self.log_in(isid);
        let old = std::mem::replace(&mut self.hosts[host], new);
        let now = self.tick();
        for flight in old.flights.into_values().chain(old.orphans) {
            self.give_up(flight, now);
        }
        self.wait("the old session's connections to close", |history| {
            let open = |conn: &usize| history.world.peer_end(old.initiator.peer_of(*conn)) == PeerEnd::Open;
            !old.initiator.live_connections().iter().any(open)
        });
    }

    /// A stretch of history.
    fn run(&mut self) {
        for _ in 0..self.plan.steps {
            let host = self.chance.below(self.hosts.len() as u64) as usize;
            let burst = self.chance.between(1, 6);
            for _ in 0..burst {
                self.command(host);
            }
            for _ in 0..self.chance.below(60) {
                // Now and then somebody does not read.
                let reader = self.chance.below(self.hosts.len() as u64 + 1) as usize;
                if reader < self.hosts.len() {
                    self.hosts[reader].initiator.poll(&mut self.world);
                    self.settle(reader);
                }
                self.step();
            }
            if self.chance.chance_permille(self.plan.abort_permille) {
                self.abort(host);
            }
            if self.chance.chance_permille(self.plan.kill_permille) {
                self.kill_connection(host);
            }
            if self.chance.chance_permille(self.plan.reinstate_permille) {
                self.reinstate(host);
            }
            if self.chance.chance_permille(self.plan.reset_permille) {
                self.reset_unit(host);
            }
        }
    }

    /// Everything ends, and nobody waits for ever.
    fn quiesce(&mut self) {
        self.wait("everything to end", |history| {
            let idle = |host: &Host| host.flights.is_empty() && host.managing.is_empty();
            history.hosts.iter().all(idle)
        });
    }

    fn read_all(&mut self) {
        for lba in (0..SPAN).step_by(8) {
            let mut left = 200;
            loop {
                let began = self.tick();
                let cdb = [0x28, 0, 0, 0, 0, lba as u8, 0, 0, 8, 0];
                let host = &mut self.hosts[0];
                let itt = host.initiator.send_command(&mut self.world, 0, &cdb, &[], 8 * 512);
                host.flights.insert(itt, Flight { host: 0, kind: CommandKind::Read, lba, blocks: 8, began });
                let good = self.tally.good;
                self.quiesce();
                left -= 1;
                assert!(left > 0, "seed {}: blocks cannot be read", self.plan.seed);
                if self.tally.good > good {
                    break;
                }
            }
        }
    }

    /// Everybody logs out: sockets are closed, and all memory is back.
    fn end(&mut self) {
        for host in &mut self.hosts {
            host.initiator.send_logout(&mut self.world);
        }
        self.wait("everybody to be logged out", |history| {
            history.hosts.iter().all(|host| host.initiator.logged_out)
        });
        self.world.run_for(PATIENCE);
        for shard in 0..self.plan.shards {
            let seed = self.plan.seed;
            assert_eq!(self.world.link_count(ShardId(shard)), 0, "seed {seed}: every socket is closed");
            let usage = self.world.pool(ShardId(shard)).usage();
            assert_eq!((usage.lent, usage.reserved), (0, 0), "seed {seed}: all memory came back");
        }
    }

    /// The whole of it.
    pub fn play(mut self) -> Tally {
        self.run();
        if self.plan.crash {
            self.crash();
            if !self.plan.power_loss || self.chance.chance_permille(500) {
                self.run();
            }
        }
        if self.plan.power_loss {
            self.lose_power();
            self.run();
        }
        self.quiesce();
        self.read_all();
        let orphans: Vec<Flight> = self.hosts.iter().flat_map(|host| host.orphans.clone()).collect();
        orphans.into_iter().for_each(|flight| self.note(flight, None, false));
        self.check_order();
        self.end();
        self.tally
    }
}
