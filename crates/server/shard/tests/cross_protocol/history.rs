//! Random histories of hosts of both protocols on one volume. They read, write, compare and write, deallocate
//! and mark bad the same blocks over several connections and queues. Meanwhile links are lost, tasks aborted,
//! controllers and units reset, sessions reinstated, and the disk fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use blockwire_shard::{ControlReport, Exports, Message, NvmeMessage, Shard};
use buf::Pool;
use endpoint::ShardId;
use sim::linearizability::Verdict;
use sim::{PeerEnd, SimRng, World};

use volume::RamDisk;

use crate::command::{Action, Flight};
use crate::crash::Crashes;
use crate::host::{Controller, Host, Session, Side};
use crate::ledger::{BAD, Ledger, Moment};
use crate::plan::{Bug, PATTERNS, Plan, SPAN};
use crate::queue::Queue;

/// Simulated time after which something that was promised has not come.
pub const PATIENCE: Duration = Duration::from_secs(100);

/// Commands of one host in flight, at most: what the search for an order must try is bounded so.
const FLIGHTS_MAX: usize = 10;

testkit::tally! {
    pub struct Tally {
        good, failed, swapped, miscompared, parted, spoilt, unreadable, aborted, lost_links, resets,
        unit_resets, undecided, refused, changes, copied, verified, power_losses, noises, undigested,
        torn,
        /// Moments at which the power could fail, what it could leave then, and of that: blocks that are torn, blocks
        /// that are older than what a host was told, and records that are.
        crash_points, crash_states, crash_torn, crash_old, crash_old_records,
        /// R2Ts behind the first of a command, and data PDUs before the last of an R2T.
        pieces,
        /// Connections that were reset on their way to the shard of their session or controller.
        turned_away,
        /// Processes that were replaced; replacements that were taken back; of those, because something did not come to
        /// rest, or because some connection would have been left behind.
        replaced, taken_back, not_at_rest, left,
    }
}

impl Tally {
    /// Whether everything that can happen happens, in a hundred histories or more.
    pub fn is_eventful(&self) -> bool {
        let Tally { good, failed, swapped, miscompared, parted, spoilt, unreadable, .. } = *self;
        let Tally { aborted, lost_links, resets, unit_resets, pieces, turned_away, .. } = *self;
        let rare = [
            failed,
            miscompared,
            parted,
            spoilt,
            unreadable,
            aborted,
            lost_links,
            resets,
            unit_resets,
            pieces,
            turned_away,
        ];
        good > 5_000 && swapped > 200 && rare.iter().all(|count| *count > 20)
    }

    /// The same of what only wide histories have.
    pub fn is_wide(&self) -> bool {
        let Tally { copied, verified, power_losses, noises, undigested, pieces, .. } = *self;
        let rare = [copied, verified, power_losses, noises, undigested, pieces];
        self.good > 5_000 && rare.iter().all(|count| *count > 10)
    }
}

pub struct History {
    pub plan: Plan,
    pub chance: SimRng,
    pub world: World<Shard>,
    pub hosts: Vec<Host>,
    /// One of each volume.
    pub ledgers: Vec<Ledger>,
    /// What of each volume was stored last.
    pub records: Vec<Option<Vec<u8>>>,
    /// The hosts' memory.
    pub pool: Pool,
    pub now: Moment,
    next_id: u64,
    /// Hosts that neither read nor send.
    pub deaf: Vec<usize>,
    /// The disks, if they are no files.
    pub rams: Vec<Arc<RamDisk>>,
    /// What is offered.
    pub exports: Arc<Exports>,
    /// What shards have reported.
    pub reports: Vec<ControlReport>,
    /// Since when nobody may write, and to which volume.
    pub protected: Option<(usize, Moment)>,
    pub tally: Tally,
    /// What crash points need.
    pub crashes: Crashes,
}

impl History {
    pub fn new(plan: Plan) -> Self {
        let rams = plan.rams();
        let world = plan.world(&rams);
        let mut history = History::over(plan, rams, world);
        history.come();
        if history.plan.wide {
            history.lay_patterns();
        }
        history
    }

    /// One in a world that is there, before anybody comes.
    pub fn over(plan: Plan, rams: Vec<Arc<RamDisk>>, world: World<Shard>) -> Self {
        let chance = SimRng::new(!plan.seed);
        let ledgers = (0..plan.volumes).map(|_| Ledger::new(plan.seed, SPAN)).collect();
        let records = vec![None; plan.volumes];
        History {
            crashes: Crashes::of(&plan),
            exports: Arc::new(plan.exports()),
            plan,
            chance,
            world,
            hosts: vec![],
            ledgers,
            records,
            pool: Pool::new(8 << 20),
            now: 1,
            next_id: 1,
            deaf: vec![],
            rams,
            reports: vec![],
            protected: None,
            tally: Tally::default(),
        }
    }

    /// All hosts connect.
    pub fn come(&mut self) {
        for isid in 1..=self.plan.scsi_hosts as u16 {
            let initiator = self.log_in(isid);
            let session =
                Session { isid, initiator, managing: BTreeMap::new(), answers: vec![], told: vec![] };
            let side = Side::Scsi(Box::new(session));
            self.hosts.push(Host { flights: BTreeMap::new(), side });
        }
        for host_id in 1..=self.plan.nvme_hosts as u8 {
            let side = Side::Nvme(Controller { host_id, ..Controller::default() });
            self.hosts.push(Host { flights: BTreeMap::new(), side });
            self.connect(self.hosts.len() - 1);
        }
    }

    pub fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    pub fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// The next thing happens; what the control plane must do is done.
    pub fn step(&mut self) {
        if self.plan.crash_permille > 0 {
            self.crash();
        }
        let until = self.world.now() + Duration::from_millis(1);
        self.world.step(until);
        for (_, message) in self.world.take_control_messages() {
            match message {
                Message::Store(volume, op) if self.plan.crash_permille > 0 => self.begin_store(volume, op),
                Message::Store(volume, op) => {
                    self.records[volume.0 as usize] = Some(op.bytes);
                    let home = blockwire_shard::home_of(volume, self.plan.shards);
                    self.world.send_message(home, Message::Stored(volume, op.ticket, true));
                }
                Message::Nvme(NvmeMessage::Compute(..)) => unreachable!("nobody authenticates"),
                Message::Report(_, report) => self.reports.push(report),
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    /// Lets the world go on, with everybody reading, until `done`.
    pub fn wait(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.world.now() + PATIENCE;
        loop {
            self.poll();
            if done(self) {
                return;
            }
            let seed = self.plan.seed;
            assert!(self.world.now() < limit, "seed {seed}: waited too long for {what}: {}", self.open());
            self.step();
        }
    }

    /// What has not ended yet, and what memory there is.
    fn open(&self) -> String {
        let host = |host: &Host| match &host.side {
            Side::Scsi(session) => format!("{:?} {:?}", host.flights, session.initiator),
            Side::Nvme(controller) => format!("{:?} {:?}", host.flights, controller.queues),
        };
        let hosts: Vec<String> = self.hosts.iter().map(host).collect();
        let usage = |shard| self.world.pool(ShardId(shard)).usage();
        let pools: Vec<_> = (0..self.plan.shards).map(usage).collect();
        format!("{hosts:#?} {pools:?} {:?}", self.plan)
    }

    /// Everybody takes what has come.
    pub fn poll(&mut self) {
        (0..self.hosts.len()).for_each(|host| self.poll_host(host));
    }

    pub fn poll_host(&mut self, host: usize) {
        if self.deaf.contains(&host) {
            return;
        }
        match &mut self.hosts[host].side {
            Side::Scsi(session) => {
                session.initiator.poll(&mut self.world);
                self.tally.pieces += std::mem::take(&mut session.initiator.later_r2ts);
                self.settle_session(host);
            }
            Side::Nvme(controller) => {
                controller.queues.iter_mut().for_each(|queue| queue.poll(&mut self.world));
                self.tally.pieces += controller.queues.iter_mut().map(Queue::pieces).sum::<u64>();
                self.settle_controller(host);
                self.listen(host);
            }
        }
    }

    /// Chooses a command for a host. The stamps that it puts are the moments of their beginnings.
    fn choose(&mut self, host: usize) -> Flight {
        let began = self.tick();
        let nvme = matches!(self.hosts[host].side, Side::Nvme(_));
        let blocks = self.chance.between(1, 8) as usize;
        let stamp = began;
        let volume =
            if self.plan.volumes > 1 { self.chance.below(self.plan.volumes as u64) as usize } else { 0 };
        let (action, blocks) = match self.chance.below(40) {
            _ if self.plan.wide && self.chance.chance_permille(250) => self.choose_wide(nvme, blocks),
            0..11 => (Action::Write { stamp, fua: self.chance.chance_permille(200) }, blocks),
            11..22 => (Action::Read, *self.chance.pick(&[1, blocks])),
            22..34 => {
                (Action::Swap { expected: 0, stamp, fua: self.stable() }, *self.chance.pick(&[1, 1, 1, 2]))
            }
            34..36 => (Action::Zero { how: self.chance.below(3) as u8, fua: self.stable() }, blocks),
            36 => (Action::Flush { all: false }, 1),
            37 if nvme => (Action::Spoil, 1),
            38 if nvme => (Action::Compare { expected: 0 }, 1),
            _ => (Action::Read, 1),
        };
        // A few blocks are in everybody's way.
        let last = if self.chance.chance_permille(500) { 8 } else { SPAN };
        let lba = self.chance.below((last - blocks) as u64 + 1) as usize;
        // Mostly what was last seen there: so hosts race for the same block.
        let seen = &self.ledgers[volume].seen[lba..lba + blocks];
        let expected = seen[0];
        let known = seen.iter().all(|seen| *seen == expected && *seen != BAD);
        let action = match action {
            Action::Swap { stamp, fua, .. } if known => Action::Swap { expected, stamp, fua },
            Action::Compare { .. } if known => Action::Compare { expected },
            Action::Swap { .. } | Action::Compare { .. } => Action::Read,
            other => other,
        };
        Flight { host, action, volume, lba, blocks, began }
    }

    /// Whether what is written shall be stable at once.
    fn stable(&mut self) -> bool {
        self.plan.wide && self.chance.chance_permille(200)
    }

    /// Chooses a command that only wide histories have.
    fn choose_wide(&mut self, nvme: bool, blocks: usize) -> (Action, usize) {
        let run = (PATTERNS / 2) as u64;
        match self.chance.below(10) {
            0..4 if nvme => {
                let (first, second) = (self.chance.below(run) as usize, self.chance.below(run) as usize);
                let cut = self.chance.below(blocks as u64 + 1) as usize;
                (Action::Copy { first, second, cut, fua: self.stable() }, blocks)
            }
            0..6 => (Action::Flush { all: nvme && self.chance.chance_permille(300) }, 1),
            _ => (Action::Verify, *self.chance.pick(&[1, 1, blocks])),
        }
    }

    /// A host sends a command.
    pub fn command(&mut self, host: usize) {
        if self.hosts[host].flights.len() >= FLIGHTS_MAX {
            return;
        }
        let flight = self.choose(host);
        let ledger = &mut self.ledgers[flight.volume];
        for number in 0..flight.blocks {
            let Some(stamp) = flight.puts(number) else { break };
            ledger.begin(flight.lba + number, 1, stamp, flight.began);
        }
        self.send(flight);
    }

    pub fn send(&mut self, flight: Flight) {
        let id = self.take_id();
        let host = &mut self.hosts[flight.host];
        match &mut host.side {
            Side::Scsi(session) => {
                let (cdb, out, read) = flight.cdb(self.plan.block).expect("a command of SCSI");
                session.initiator.next_conn = self.chance.below(8) as usize;
                let itt =
                    session.initiator.send_command(&mut self.world, flight.volume as u16, &cdb, &out, read);
                host.flights.insert(itt.into(), flight);
            }
            Side::Nvme(controller) => {
                let at = self.chance.between(1, controller.queues.len() as u64 - 1) as usize;
                let mut sqes = flight.sqes(self.plan.block);
                if self.plan.bug == Some(Bug::PairsApart) {
                    sqes.iter_mut().for_each(|(sqe, ..)| sqe.flags = 0);
                }
                if sqes.len() == 2 {
                    let (sqe, out, read) = sqes.remove(0);
                    let first = self.next_id + 1;
                    self.next_id = first;
                    controller.queues[at].send(first, sqe, out, read);
                    let pair = crate::host::Pair { first, of_first: None, of_second: None };
                    controller.pairs.insert(id, pair);
                }
                let (sqe, out, read) = sqes.remove(0);
                controller.queues[at].send(id, sqe, out, read);
                host.flights.insert(id, flight);
            }
        }
    }

    /// From now on bits turn over on the wires, or do so no more.
    fn set_noise(&mut self, permille: u32) {
        for host in &mut self.hosts {
            if let Side::Nvme(controller) = &mut host.side {
                controller.queues.iter_mut().for_each(|queue| queue.noise_permille = permille);
            }
        }
    }

    /// A stretch of history.
    pub fn run(&mut self) {
        for _ in 0..self.plan.steps {
            let host = self.chance.below(self.hosts.len() as u64) as usize;
            for _ in 0..self.chance.between(1, 5) {
                self.command(host);
            }
            self.set_noise(self.plan.noise_permille);
            for _ in 0..self.chance.below(60) {
                // Now and then somebody does not read.
                let reader = self.chance.below(self.hosts.len() as u64 + 1) as usize;
                if reader < self.hosts.len() {
                    self.poll_host(reader);
                }
                self.step();
            }
            self.set_noise(0);
            self.mend();
            if self.plan.change_permille > 0 && self.chance.chance_permille(self.plan.change_permille) {
                self.change();
            }
            if self.plan.crash_permille > 0 {
                self.change_record(host);
            }
            if self.plan.replace_permille > 0 && self.chance.chance_permille(self.plan.replace_permille) {
                self.replace();
            }
            let Plan { abort_permille, lose_permille, reset_permille, unit_reset_permille, .. } = self.plan;
            let nvme = matches!(self.hosts[host].side, Side::Nvme(_));
            if nvme && self.chance.chance_permille(40) {
                self.part(host);
            }
            if self.chance.chance_permille(abort_permille) {
                if nvme { self.abort_command(host) } else { self.abort_task(host) }
            }
            if self.chance.chance_permille(lose_permille) {
                self.tally.lost_links += 1;
                if nvme { self.lose_link(host) } else { self.reinstate(host) }
            }
            if nvme && self.chance.chance_permille(reset_permille) {
                self.reset_controller(host);
            }
            if !nvme && self.chance.chance_permille(unit_reset_permille) {
                self.reset_unit(host);
            }
        }
    }

    /// Everything ends, and nobody waits for ever.
    pub fn quiesce(&mut self) {
        self.wait("everything to end", |history| history.hosts.iter().all(Host::is_idle));
    }

    /// Every host reads every block.
    fn read_all(&mut self) {
        let (hosts, volumes) = (self.hosts.len(), self.plan.volumes);
        for (host, volume) in (0..hosts).flat_map(|host| (0..volumes).map(move |volume| (host, volume))) {
            for lba in 0..SPAN {
                let mut left = 200;
                let (good, unreadable) = (self.tally.good, self.tally.unreadable);
                // A disk that fails now and then does not fail always.
                while self.tally.good == good && (!self.plan.is_calm() || self.tally.unreadable == unreadable)
                {
                    let began = self.tick();
                    self.send(Flight { host, action: Action::Read, volume, lba, blocks: 1, began });
                    self.quiesce();
                    left -= 1;
                    if left == 0 && self.tally.unreadable > unreadable {
                        break;
                    }
                    assert!(left > 0, "seed {}: blocks cannot be read", self.plan.seed);
                }
            }
        }
    }

    /// Each volume's history can be put in order.
    pub fn check_order(&mut self) {
        for ledger in &self.ledgers {
            self.tally.undecided += u64::from(ledger.check() == Verdict::Undecided);
        }
    }

    /// Everybody leaves: sockets are closed, and all memory is back.
    fn end(&mut self) {
        for host in &mut self.hosts {
            match &mut host.side {
                Side::Scsi(session) => session.initiator.send_logout(&mut self.world),
                Side::Nvme(controller) => {
                    for queue in &mut controller.queues {
                        queue.hang_up(&mut self.world, self.plan.seed.is_multiple_of(2));
                    }
                }
            }
        }
        let limit = self.world.now() + PATIENCE;
        while self.world.now() < limit {
            self.poll();
            self.step();
        }
        let seed = self.plan.seed;
        for host in &mut self.hosts {
            if let Side::Scsi(session) = &mut host.side {
                assert!(session.initiator.logged_out, "seed {seed}");
            }
        }
        for shard in 0..self.plan.shards {
            assert_eq!(self.world.link_count(ShardId(shard)), 0, "seed {seed}: every socket is closed");
            let usage = self.world.pool(ShardId(shard)).usage();
            assert_eq!((usage.lent, usage.reserved), (0, 0), "seed {seed}: all memory came back");
        }
    }

    /// The whole of it.
    pub fn play(mut self) -> Tally {
        self.run();
        if self.plan.power_loss {
            self.lose_power();
            self.run();
        }
        self.quiesce();
        self.read_all();
        self.check_order();
        self.end();
        self.tally
    }

    /// Whether the target has closed a connection.
    pub fn is_closed(&self, peer: sim::Peer) -> bool {
        self.world.peer_end(peer) != PeerEnd::Open
    }
}
