//! Fences over both protocols. Once PREEMPT, or PREEMPT AND ABORT, is answered, over either protocol, no
//! write that the preempted hosts sent before reaches the disk, over any protocol, queue, connection or
//! shard. Their later writes get a reservation conflict.

use std::time::Duration;

use nvme::reservation::{Acquire, AcquireAction};
use nvme::{Opcode, Status};
use sim::SimRng;
use testkit::seeds;
use zerocopy::little_endian::U32;

use crate::command::{Action, Flight, sqe};
use crate::history::History;
use crate::host::Side;
use crate::plan::{Bug, Plan, SPAN, disk};

const KEEPER: u64 = 0xa;
const VICTIMS: u64 = 0xb;
const CONFLICT: u8 = 0x18;
const TASK_ABORTED: u8 = 0x40;

/// Kinds of reservations: SCSI's number, NVMe's, and whether all registrants may write.
const KINDS: [(u8, u8, bool); 4] = [(5, 3, true), (6, 4, true), (1, 1, false), (3, 2, false)];

testkit::tally! {
    struct Met {
        /// Writes that had succeeded before.
        done,
        /// Writes that were refused or aborted.
        refused,
        /// How much of their data went in more pieces than one.
        pieces
    }
}

fn bytes(one: u64, other: u64, big: bool) -> Vec<u8> {
    let each = |key: u64| if big { key.to_be_bytes() } else { key.to_le_bytes() };
    [each(one), each(other)].concat()
}

impl History {
    pub fn is_scsi(&self, host: usize) -> bool {
        matches!(self.hosts[host].side, Side::Scsi(_))
    }

    /// PERSISTENT RESERVE OUT, or the NVMe command; they must succeed.
    fn reserve(
        &mut self,
        (host, volume): (usize, usize),
        (action, kind): (u8, u8),
        (opcode, word): (Opcode, u32),
        keys: (u64, u64),
    ) {
        let seed = self.plan.seed;
        if self.is_scsi(host) {
            let mut list = bytes(keys.0, keys.1, true);
            list.resize(24, 0);
            let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
            let ended = self.scsi_errand((host, volume), &cdb, &list, 0);
            assert_eq!(ended.status, 0, "seed {seed}: action {action}: {ended:?}");
        } else {
            let mut command = sqe(opcode);
            command.nsid = U32::new(volume as u32 + 1);
            command.cdw10[0] = U32::new(word);
            let ended = self.errand(host, 1, command, bytes(keys.0, keys.1, false), 0);
            assert!(ended.status.is_success(), "seed {seed}: action {action}: {ended:?}");
        }
    }

    fn register(&mut self, at: (usize, usize), key: u64) {
        self.reserve(at, (0, 0), (Opcode::RESERVATION_REGISTER, 0), (0, key));
    }

    fn acquire(&mut self, at: (usize, usize), action: AcquireAction, kind: (u8, u8), keys: (u64, u64)) {
        let scsi = match action {
            AcquireAction::Acquire => 1,
            AcquireAction::Preempt => 4,
            AcquireAction::PreemptAndAbort => 5,
        };
        let mut command = sqe(Opcode::RESERVATION_ACQUIRE);
        Acquire { action, ignore_key: false, kind: kind.1 }.write_to_sqe(&mut command);
        let word = command.cdw10[0].get();
        self.reserve(at, (scsi, kind.0), (Opcode::RESERVATION_ACQUIRE, word), keys);
    }

    /// A host writes, and waits for nothing.
    fn write(&mut self, (host, volume): (usize, usize)) {
        let began = self.tick();
        let most = if self.plan.block == 512 { 30 } else { 8 };
        let blocks = self.chance.between(1, most) as usize;
        let lba = self.chance.below((SPAN - blocks) as u64 + 1) as usize;
        let action = Action::Write { stamp: began, fua: false };
        let flight = Flight { host, action, volume, lba, blocks, began };
        self.send(flight);
        // Their ends are looked at all together.
        self.hosts[host].flights.clear();
    }

    fn medium(&mut self, volume: usize) -> Vec<u8> {
        let mut bytes = vec![0; SPAN * self.plan.block];
        self.world.disk(disk(volume)).expect("a file has a disk").read(0, &mut bytes);
        bytes
    }

    /// How the writes of a host ended that are no part of the history.
    fn count(&mut self, host: usize, met: &mut Met) {
        let seed = self.plan.seed;
        match &mut self.hosts[host].side {
            Side::Scsi(session) => {
                for ended in std::mem::take(&mut session.answers) {
                    match ended.status {
                        0 => met.done += 1,
                        // A unit attention comes first.
                        CONFLICT | TASK_ABORTED | 2 => met.refused += 1,
                        _ => panic!("seed {seed}: {ended:?}"),
                    }
                }
            }
            Side::Nvme(controller) => {
                for ended in std::mem::take(&mut controller.answers) {
                    match Status(ended.status.0 & 0x7ff) {
                        Status::SUCCESS => met.done += 1,
                        Status::RESERVATION_CONFLICT | Status::PREEMPT_ABORT => met.refused += 1,
                        _ => panic!("seed {seed}: {ended:?}"),
                    }
                }
            }
        }
    }

    /// Every queue of a host, every connection: each write meets a conflict, or none does.
    fn is_shut_out(&mut self, (host, volume): (usize, usize), shut_out: bool) {
        let seed = self.plan.seed;
        let began = self.tick();
        let action = Action::Write { stamp: began, fua: false };
        let flight = Flight { host, action, volume, lba: 3, blocks: 2, began };
        if self.is_scsi(host) {
            let (cdb, out, _) = flight.cdb(self.plan.block).expect("SCSI writes");
            for conn in 0..usize::from(self.plan.connections) {
                // Attentions are taken over whatever connection they come.
                self.scsi_errand((host, volume), &[0; 6], &[], 0);
                self.hosts[host].session().initiator.next_conn = conn;
                let ended = self.scsi_once((host, volume), &cdb, &out, 0);
                let status = if shut_out { CONFLICT } else { 0 };
                assert_eq!(ended.status, status, "seed {seed}: volume {volume}: {ended:?}");
            }
        } else {
            for at in 1..=usize::from(self.plan.queues) {
                let (command, out, _) = flight.sqes(self.plan.block).remove(0);
                let ended = self.errand(host, at, command, out, 0);
                let status = if shut_out { Status::RESERVATION_CONFLICT } else { Status::SUCCESS };
                assert_eq!(ended.status.0 & 0x7ff, status.0, "seed {seed}: volume {volume}: {ended:?}");
            }
        }
    }
}

fn fence(plan: Plan) -> Met {
    let seed = plan.seed;
    let mut history = History::new(plan);
    let mut chance = SimRng::new(seed ^ 0xface);
    let hosts = history.hosts.len();
    let keeper = chance.below(hosts as u64) as usize;
    let (scsi, nvme, all) = *chance.pick(&KINDS);
    let kind = (scsi, nvme);
    let victims: Vec<usize> = (0..hosts).filter(|host| *host != keeper).collect();
    // What happens to one volume is nothing to the other.
    let volumes = history.plan.volumes;
    let fenced = chance.below(volumes as u64) as usize;
    victims.iter().for_each(|host| history.register((*host, fenced), VICTIMS));
    history.register((keeper, fenced), KEEPER);
    // Where only the holder may write, it is a victim.
    let holder = if all { keeper } else { *chance.pick(&victims) };
    let key = if all { KEEPER } else { VICTIMS };
    history.acquire((holder, fenced), AcquireAction::Acquire, kind, (key, 0));
    for host in victims.iter().filter(|host| history.is_scsi(**host)).copied().collect::<Vec<_>>() {
        (0..volumes).for_each(|volume| drop(history.scsi_errand((host, volume), &[0; 6], &[], 0)));
    }
    let writers = if all { victims.clone() } else { vec![holder] };
    for _ in 0..36 {
        let host = *chance.pick(&writers);
        let other = volumes > 1 && chance.chance_permille(200);
        history.write((host, if other { 1 - fenced } else { fenced }));
    }
    let until = history.world.now() + Duration::from_micros(chance.below(6_000));
    // Some are not there to send the data that is asked for, nor to read what is answered.
    history.deaf = victims.iter().copied().filter(|_| chance.chance_permille(300)).collect();
    while history.world.now() < until {
        history.poll();
        history.step();
    }
    let action = *chance.pick(&[AcquireAction::Preempt, AcquireAction::PreemptAndAbort]);
    history.acquire((keeper, fenced), action, kind, (KEEPER, VICTIMS));
    let stands = history.medium(fenced);
    history.deaf.clear();
    for _ in 0..200 {
        let until = history.world.now() + Duration::from_millis(1);
        while history.world.now() < until {
            history.poll();
            history.step();
        }
        assert!(history.medium(fenced) == stands, "seed {seed}: a write of a preempted host lands");
    }
    let mut met = Met::default();
    for host in victims {
        if let Side::Scsi(session) = &mut history.hosts[host].side {
            assert_eq!(
                session.initiator.tasks_in_flight(),
                [],
                "seed {seed}: what was aborted is answered, too"
            );
        }
        history.count(host, &mut met);
        (0..volumes).for_each(|volume| history.is_shut_out((host, volume), volume == fenced));
    }
    assert!(history.medium(fenced) == stands, "seed {seed}: a preempted host writes");
    history.write((keeper, fenced));
    history.wait("the keeper's write", |history| history.medium(fenced) != stands);
    met.pieces = history.tally.pieces;
    met
}

#[test]
fn fences_hold_over_both_protocols() {
    let test = "blockwire-shard --test cross_protocol fences";
    let (total, runs) = seeds::run_all_seeds(60, test, |seed| fence(Plan::slow(seed)));
    assert!(total.done > runs && total.refused > runs, "fences met hardly any write: {total:?}");
    assert!(runs < 20 || total.pieces > runs, "hardly any write goes in pieces: {total:?}");
}

#[test]
fn a_fence_that_is_not_awaited_is_noticed() {
    let plan = |seed| Plan { bug: Some(Bug::FenceNotAwaited), ..Plan::slow(seed) };
    seeds::assert_some_seed_fails(Bug::FenceNotAwaited, 60, |seed| fence(plan(seed)));
}
