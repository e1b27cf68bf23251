//! Random histories: hosts of both protocols at all gateways read, write, compare and write, while groups are drained,
//! processes killed and stopped, and links lost. Each block's operations can be put in order, no operation is executed for a
//! term that is over, and reservations are the same everywhere at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use sim::linearizability::{History as Order, Operation, OperationKind, Verdict};
use testkit::seeds;
use volume::VolumeId;

use crate::cluster::{Cluster, Plan};
use crate::hosts::{Ask, End, Host, Side};
use crate::scenarios::block;

/// Blocks that are in everybody's way.
const SPAN: u64 = 6;
const FLIGHTS_MAX: usize = 3;

testkit::tally! {
    pub struct Tally {
        good, swapped, missed, paths, others, kills, stops, drains, cuts, forwarded, undecided, notices, refused,
    }
}

struct Flight {
    volume: usize,
    lba: u64,
    begin: u64,
    what: OperationKind,
}

pub struct History {
    cluster: Cluster,
    hosts: Vec<Host>,
    flights: Vec<BTreeMap<u64, Flight>>,
    orders: Vec<Order>,
    /// What each block held when it was seen last.
    seen: BTreeMap<(usize, u64), u64>,
    moment: u64,
    made: u8,
    tally: Tally,
}

fn stamped(stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(64)
}

fn stamp_of(data: &[u8], seed: u64) -> u64 {
    let stamp = u64::from_le_bytes(data[..8].try_into().unwrap());
    assert!(data.chunks(8).all(|part| part == stamp.to_le_bytes()), "seed {seed}: a block is torn");
    stamp
}

impl History {
    pub fn new(plan: Plan) -> History {
        let orders = (0..plan.volumes).map(|_| Order::new(0)).collect();
        let mut history = History {
            cluster: Cluster::new(plan),
            hosts: Vec::new(),
            flights: Vec::new(),
            orders,
            seen: BTreeMap::new(),
            moment: 1,
            made: 0,
            tally: Tally::default(),
        };
        for gateway in 0..history.cluster.gateways.len() {
            history.hosts_come(gateway);
        }
        history
    }

    /// A host of each protocol comes to a gateway.
    fn hosts_come(&mut self, gateway: usize) {
        self.made += 1;
        let scsi = Host::scsi(&mut self.cluster, gateway, self.made);
        let nvme = Host::nvme(&mut self.cluster, gateway, 0x80 + self.made);
        for host in [scsi, nvme] {
            self.hosts.push(host);
            self.flights.push(BTreeMap::new());
        }
    }

    fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn runs(&self, host: usize) -> bool {
        let gateway = &self.cluster.gateways[self.hosts[host].gateway];
        !gateway.stopped && !gateway.ended
    }

    fn command(&mut self, at: usize) {
        if self.flights[at].len() >= FLIGHTS_MAX || !self.runs(at) {
            return;
        }
        let begin = self.tick();
        let volume = self.cluster.chance.below(self.orders.len() as u64) as usize;
        let lba = self.cluster.chance.below(SPAN);
        let seen = self.seen.get(&(volume, lba)).copied().unwrap_or(0);
        let scsi = matches!(self.hosts[at].side, Side::Scsi(_));
        let (ask, what) = match self.cluster.chance.below(10) {
            0..4 => (Ask::Read { lba, blocks: 1 }, OperationKind::Read(0)),
            4..7 if scsi => {
                let (old, new) = (stamped(seen), stamped(begin));
                let what = OperationKind::CompareAndWrite { expected: seen, new: begin, swapped: true };
                (Ask::CompareAndWrite { lba, old, new }, what)
            }
            _ => (Ask::Write { lba, data: stamped(begin) }, OperationKind::Write(begin)),
        };
        let id = self.hosts[at].send(&mut self.cluster, volume, &ask);
        self.flights[at].insert(id, Flight { volume, lba, begin, what });
    }

    fn poll(&mut self) {
        for at in 0..self.hosts.len() {
            if !self.runs(at) {
                continue;
            }
            self.hosts[at].poll(&mut self.cluster);
            while let Some((id, end)) = self.hosts[at].ended.pop_front() {
                if let Some(flight) = self.flights[at].remove(&id) {
                    self.ended(at, flight, end);
                }
            }
        }
    }

    fn ended(&mut self, at: usize, flight: Flight, end: End) {
        let moment = self.tick();
        let seed = self.cluster.plan.seed;
        let Flight { volume, lba, begin, mut what } = flight;
        // A unit attention is told instead of carrying the command out.
        let attention = matches!(&end, End::Other(sense) if sense.contains("70, 0, 6"));
        let known = match (&end, &mut what) {
            (End::Good(data), OperationKind::Read(stamp)) => {
                *stamp = stamp_of(data, seed);
                self.seen.insert((volume, lba), *stamp);
                true
            }
            (End::Good(_), _) => true,
            (End::Differs, OperationKind::CompareAndWrite { swapped, .. }) => {
                *swapped = false;
                true
            }
            (End::Conflict, _) => panic!("seed {seed}: nobody has reserved"),
            // It was not carried out: a read that returns what it would have written has no writer.
            (End::Path, _) => {
                self.tally.paths += 1;
                return;
            }
            _ if attention => return,
            (End::Other(_) | End::Differs, OperationKind::Read(_)) => {
                self.tally.others += 1;
                return;
            }
            (End::Other(_) | End::Differs, _) => {
                self.tally.others += 1;
                false
            }
        };
        match what {
            OperationKind::CompareAndWrite { swapped: true, .. } if known => self.tally.swapped += 1,
            OperationKind::CompareAndWrite { .. } if known => self.tally.missed += 1,
            _ => self.tally.good += u64::from(known),
        }
        if let (true, OperationKind::Write(stamp)) = (known, what) {
            self.seen.insert((volume, lba), stamp);
        }
        let end = known.then_some(moment);
        self.orders[volume].record(lba, Operation { client: at as u32, begin, end, what });
    }

    /// Hosts of a gateway that is gone: what they had in flight was carried out or not.
    fn hosts_leave(&mut self, gateway: usize) {
        let gone: Vec<usize> =
            (0..self.hosts.len()).filter(|host| self.hosts[*host].gateway == gateway).collect();
        for at in gone.into_iter().rev() {
            for flight in std::mem::take(&mut self.flights[at]).into_values() {
                if !matches!(flight.what, OperationKind::Read(_)) {
                    let Flight { volume, lba, begin, what } = flight;
                    let operation = Operation { client: at as u32, begin, end: None, what };
                    self.orders[volume].record(lba, operation);
                }
            }
            // Their numbers are not given again: flights name them.
            self.hosts[at].gateway = gateway;
            self.hosts.remove(at);
            self.flights.remove(at);
        }
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            for _ in 0..self.cluster.chance.between(1, 4) {
                let at = self.cluster.chance.below(self.hosts.len() as u64) as usize;
                self.command(at);
            }
            for _ in 0..self.cluster.chance.below(30) {
                self.cluster.step();
                self.poll();
            }
        }
    }

    fn wait(&mut self, what: &str, mut done: impl FnMut(&mut History) -> bool) {
        for _ in 0..1_000_000 {
            if done(self) {
                return;
            }
            self.cluster.step();
            self.poll();
        }
        panic!("seed {}: waited too long for {what}", self.cluster.plan.seed);
    }

    /// Something happens to a gateway, and the group is whole again.
    fn event(&mut self) {
        let victim = self.cluster.chance.below(self.cluster.gateways.len() as u64) as usize;
        match self.cluster.chance.below(8) {
            0..4 => {
                self.tally.drains += 1;
                let now = self.cluster.gateways[victim].now();
                self.cluster.gateways[victim].member.drain(now);
                self.run(20);
                let now = self.cluster.gateways[victim].now();
                self.cluster.gateways[victim].member.undrain(now);
            }
            4..6 => {
                self.tally.kills += 1;
                self.cluster.kill(victim, false);
                self.hosts_leave(victim);
                self.run(30);
                self.cluster.restart(victim);
                self.wait("the next instance", |history| history.cluster.is_whole());
                self.hosts_come(victim);
            }
            6 => {
                self.tally.stops += 1;
                // With something in flight.
                let victim = self.cluster.owner(VolumeId(0));
                for at in (0..self.hosts.len()).cycle().take(4 * self.hosts.len()) {
                    if self.hosts[at].gateway == victim {
                        self.command(at);
                    }
                }
                self.cluster.run_for(Duration::from_micros(250));
                self.cluster.kill(victim, true);
                self.run(10);
                let until = self.cluster.chance.between(500, 3_000);
                for _ in 0..until / 10 {
                    self.cluster.run_for(Duration::from_millis(10));
                    self.poll();
                }
                self.cluster.wake(victim);
                self.run(10);
                self.wait("the end of a stop", |history| {
                    history.cluster.gateways[victim].ended || history.cluster.is_whole()
                });
                if self.cluster.gateways[victim].ended {
                    self.hosts_leave(victim);
                    self.cluster.restart(victim);
                    self.wait("the next instance", |history| history.cluster.is_whole());
                    self.hosts_come(victim);
                }
            }
            _ => {
                self.tally.cuts += 1;
                self.cluster.cut(victim, (victim + 1) % self.cluster.gateways.len());
                self.run(20);
            }
        }
        self.wait("the group", |history| history.cluster.is_whole());
    }

    /// Reservations are the same at every gateway, and outlive their owner's term.
    fn check_reservations(&mut self, round: u64) {
        let seed = self.cluster.plan.seed;
        let (one, other) = {
            let many = self.hosts.len() as u64;
            let one = self.cluster.chance.below(many) as usize;
            // Of another gateway.
            let others: Vec<usize> = (0..self.hosts.len())
                .filter(|at| self.hosts[*at].gateway != self.hosts[one].gateway)
                .collect();
            (one, others[self.cluster.chance.below(others.len() as u64) as usize])
        };
        let (key, second) = (0x100 + round, 0x200 + round);
        let cluster = &mut self.cluster;
        let good = End::Good(vec![]);
        assert_eq!(self.hosts[one].ask(cluster, 0, &Ask::Register { key }), good, "seed {seed}");
        assert_eq!(self.hosts[one].ask(cluster, 0, &Ask::Reserve { key }), good, "seed {seed}");
        // Its owner gives it away, or is killed at once.
        let owner = cluster.owner(VolumeId(0));
        let hosts_of = [self.hosts[one].gateway, self.hosts[other].gateway];
        if hosts_of.contains(&owner) {
            let now = cluster.gateways[owner].now();
            cluster.gateways[owner].member.drain(now);
            cluster
                .until("another owner", |cluster| cluster.is_whole() && cluster.owner(VolumeId(0)) != owner);
            let now = cluster.gateways[owner].now();
            cluster.gateways[owner].member.undrain(now);
        } else {
            self.tally.kills += 1;
            cluster.kill(owner, false);
            let (one_is, other_is) = (self.hosts[one].number, self.hosts[other].number);
            self.hosts_leave(owner);
            self.cluster.restart(owner);
            self.wait("the next instance", |history| history.cluster.is_whole());
            self.hosts_come(owner);
            let find = |hosts: &[Host], number| hosts.iter().position(|host| host.number == number);
            let one = find(&self.hosts, one_is).expect("it is at another gateway");
            let other = find(&self.hosts, other_is).expect("it is at another gateway");
            return self.check_reserved(one, other, key, second);
        }
        self.check_reserved(one, other, key, second);
    }

    fn check_reserved(&mut self, one: usize, other: usize, key: u64, second: u64) {
        let seed = self.cluster.plan.seed;
        let cluster = &mut self.cluster;
        let good = End::Good(vec![]);
        for host in &mut self.hosts {
            assert_eq!(host.keys(cluster, 0), [key], "seed {seed}: host {}", host.number);
        }
        assert_eq!(self.hosts[other].write(cluster, 0, 40, block(1)), End::Conflict, "seed {seed}");
        assert_eq!(self.hosts[one].write(cluster, 0, 40, block(2)), good, "seed {seed}");
        assert_eq!(self.hosts[other].ask(cluster, 0, &Ask::Register { key: second }), good, "seed {seed}");
        assert_eq!(self.hosts[other].write(cluster, 0, 40, block(3)), good, "seed {seed}");
        self.hosts[one].told.clear();
        let preempt = Ask::Preempt { key: second, victim: key };
        assert_eq!(self.hosts[other].ask(cluster, 0, &preempt), good, "seed {seed}");
        // The notice comes before this, or with the next command.
        for _ in 0..2 {
            assert_eq!(self.hosts[one].write(cluster, 0, 40, block(4)), End::Conflict, "seed {seed}");
        }
        if let Side::Scsi(_) = self.hosts[one].side {
            let told = &self.hosts[one].told;
            assert!(told.contains(&[0x2a, 5]), "seed {seed}: a host was not told: {told:x?}");
        }
        for host in &mut self.hosts {
            assert_eq!(host.keys(cluster, 0), [second], "seed {seed}: host {}", host.number);
        }
        assert_eq!(self.hosts[other].ask(cluster, 0, &Ask::Clear { key: second }), good, "seed {seed}");
        for host in &mut self.hosts {
            assert!(host.keys(cluster, 0).is_empty(), "seed {seed}: host {}", host.number);
            host.told.clear();
        }
    }

    pub fn play(mut self) -> Tally {
        for _ in 0..5 {
            self.run(25);
            self.event();
        }
        self.wait("everything to end", |history| history.flights.iter().all(BTreeMap::is_empty));
        let seed = self.cluster.plan.seed;
        for order in &self.orders {
            match order.check_linearizable() {
                Ok(Verdict::Holds) => {}
                Ok(Verdict::Undecided) => self.tally.undecided += 1,
                Err(violation) => panic!("seed {seed}: {violation}"),
            }
        }
        assert_eq!(self.cluster.stale(), 0, "seed {seed}: operations of terms that were over");
        for round in 0..3 {
            self.check_reservations(round);
        }
        assert_eq!(self.cluster.stale(), 0, "seed {seed}: operations of terms that were over");
        self.tally.forwarded = self.cluster.gateways.iter().map(|gateway| gateway.submitted).sum();
        self.tally.notices = self.cluster.gateways.iter().map(|gateway| gateway.notices).sum();
        self.tally.refused = self.cluster.images.values().map(|image| image.state().refused).sum();
        self.tally
    }
}

#[test]
fn histories_of_gateways_agree_with_one_volume() {
    let test = "blockwire-shard --test group histories_of_gateways";
    let (total, runs) = seeds::run_all_seeds(24, test, |seed| History::new(Plan::new(seed)).play());
    let Tally { good, swapped, missed, kills, stops, drains, cuts, forwarded, undecided, refused, .. } =
        total;
    assert_eq!(undecided, 0);
    let eventful = good > 2_000 && swapped > 100 && missed > 20 && forwarded > 2_000;
    let rare = [kills, stops, drains, cuts];
    let happens = eventful && refused > 0 && rare.iter().all(|count| *count > 3);
    assert!(runs < 24 || happens, "nothing much happens: {total:?}");
}
