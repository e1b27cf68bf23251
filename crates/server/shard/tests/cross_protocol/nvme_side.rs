//! NVMe/TCP controllers in a history: their queues, resets, aborts and losses.

use std::time::Duration;

use nvme::fabrics::{Connect, ConnectData, ConnectNames, ConnectResult, Property, PropertyAccess};
use nvme::{FabricsType, HostId, Nqn, Opcode, Sqe, Status};
use nvme_tcp::{ConnectedQueueSize, HostQueueSettings};
use sim::PeerEnd;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use crate::command::{Action, Flight, sqe};
use crate::history::History;
use crate::host::Side;
use crate::queue::{Ended, Queue};
use testkit::target::SUBSYSTEM_NQN;

const HOST: &str = "nqn.2026-11.test:host";
const ADMIN: ConnectedQueueSize =
    ConnectedQueueSize { entries: 32, flow_control: true, in_capsule_max: 8192 };

impl History {
    /// Sends a command that is no part of the history to a queue, and waits for its end.
    pub fn errand(&mut self, host: usize, at: usize, sqe: Sqe, out: Vec<u8>, read: usize) -> Ended {
        let id = self.take_id();
        self.hosts[host].controller().queues[at].send(id, sqe, out, read);
        self.answer(host, id)
    }

    /// Waits for the end of such a command.
    pub fn answer(&mut self, host: usize, id: u64) -> Ended {
        let mut answer = None;
        self.wait("an answer of a controller", |history| {
            let answers = &mut history.hosts[host].controller().answers;
            let at = answers.iter().position(|ended| ended.id == id);
            answer = at.map(|at| answers.remove(at));
            answer.is_some()
        });
        answer.expect("it was waited for")
    }

    /// Connects a host's admin queue, enables the controller, and connects its I/O queues; all of it again if a shard
    /// has no room for one of them.
    pub fn connect(&mut self, host: usize) {
        loop {
            let controller = self.hosts[host].controller();
            controller.cntlid = ConnectData::DYNAMIC;
            controller.enabled = false;
            controller.queues.clear();
            let ended = self.join(host, 0);
            if self.was_turned_away(host, &ended) {
                continue;
            }
            assert!(ended.status.is_success(), "seed {}: {ended:?}", self.plan.seed);
            self.hosts[host].controller().cntlid = ConnectResult::parse(ended.result).cntlid;
            if self.enable(host) {
                return;
            }
            self.leave(host);
        }
    }

    /// Whether the queue that a host connected last was reset on its way to its controller's shard.
    fn was_turned_away(&mut self, host: usize, ended: &Ended) -> bool {
        let queue = self.hosts[host].controller().queues.last().expect("it was connected");
        let turned_away = ended.status == Status::HOST_PATH_ERROR
            && self.plan.shard_faults.refuse_move_permille > 0
            && self.world.peer_end(queue.peer) == PeerEnd::Reset;
        self.tally.turned_away += u64::from(turned_away);
        turned_away
    }

    /// A host gives its association up, of which a queue was turned away.
    fn leave(&mut self, host: usize) {
        self.hosts[host].controller().queues[0].hang_up(&mut self.world, false);
        self.wait("the queues of an association that its host gives up to close", |history| {
            history.hosts[host].controller().queues.iter().all(Queue::is_closed)
        });
    }

    /// Connects a queue.
    pub fn join(&mut self, host: usize, qid: u16) -> Ended {
        let pieces = self.plan.pieces;
        let limits = HostQueueSettings {
            header_digest: self.plan.digests.0,
            data_digest: self.plan.digests.1,
            r2ts: self.plan.r2ts,
            hpda: pieces.map_or(0, |pieces| pieces.hpda),
            ..HostQueueSettings::default()
        };
        let queue = Queue::open(&mut self.world, &self.pool, limits, self.chance.fork());
        let (entries, flow_control) = (self.plan.entries, self.plan.flow_control);
        let controller = self.hosts[host].controller();
        controller.queues.push(queue);
        let at = controller.queues.len() - 1;
        let in_capsule_max = pieces.map_or(ADMIN.in_capsule_max, |pieces| pieces.in_capsule);
        let size =
            if qid == 0 { ADMIN } else { ConnectedQueueSize { entries, flow_control, in_capsule_max } };
        let connect = Connect {
            qid,
            entries: size.entries.into(),
            flow_control: size.flow_control,
            individual_deletion: false,
            kato_ms: if qid == 0 { self.plan.kato_ms } else { 0 },
        };
        let names = ConnectNames {
            host_id: HostId::new([controller.host_id; 16]).expect("an identifier is not zero"),
            cntlid: controller.cntlid,
            subsystem: Nqn::parse(SUBSYSTEM_NQN).unwrap(),
            host: Nqn::parse(HOST).unwrap(),
        };
        let data = ConnectData::new(&names).as_bytes().to_vec();
        let ended = self.errand(host, at, connect.to_sqe(), data, 0);
        if ended.status.is_success() {
            self.hosts[host].controller().queues[at].opened(size);
        }
        ended
    }

    /// False: a shard has no room for one of its queues.
    fn enable(&mut self, host: usize) -> bool {
        let on = PropertyAccess::property_set_sqe(Property::CC, 0x0046_0001);
        assert!(self.errand(host, 0, on, vec![], 0).status.is_success());
        self.wait_ready(host, true);
        for qid in 1..=self.plan.queues {
            let ended = self.join(host, qid);
            if self.was_turned_away(host, &ended) {
                return false;
            }
            let busy = ended.status == Status::CONTROLLER_BUSY;
            if busy && qid > 1 && self.plan.pool_bytes <= 4 << 20 {
                // There is not the memory for another; a host does with fewer.
                self.hosts[host].controller().queues.pop();
                break;
            }
            assert!(ended.status.is_success(), "seed {} queue {qid}: {ended:?}", self.plan.seed);
        }
        self.ask_for_events(host);
        true
    }

    /// Waits until CSTS.RDY is so.
    fn wait_ready(&mut self, host: usize, ready: bool) {
        for _ in 0..10_000 {
            let get = PropertyAccess::property_get_sqe(Property::CSTS, 4);
            let ended = self.errand(host, 0, get, vec![], 0);
            assert!(ended.status.is_success(), "{ended:?}");
            if (ended.result & 1 != 0) == ready {
                return;
            }
        }
        panic!("seed {}: the controller's readiness never is {ready}", self.plan.seed);
    }

    pub fn settle_controller(&mut self, host: usize) {
        let controller = self.hosts[host].controller();
        let ends: Vec<Ended> = controller.queues.iter_mut().flat_map(|queue| queue.ended.drain(..)).collect();
        for ended in ends {
            let controller = self.hosts[host].controller();
            if controller.aborts.remove(&ended.id) {
                let code = Status(ended.status.0 & 0x7ff);
                let known = [Status::SUCCESS, Status::ABORT_LIMIT_EXCEEDED, Status::ABORTED_SQ_DELETION];
                let lost = code == Status::HOST_PATH_ERROR;
                assert!(lost || known.contains(&code), "seed {}: {ended:?}", self.plan.seed);
            } else if controller.requests.remove(&ended.id) {
                self.take_event(host, &ended);
            } else if let Some(log) = controller.chores.remove(&ended.id) {
                self.take_log(host, log, &ended);
            } else if controller.is_in_pair(ended.id) {
                if let Some((id, first, second)) = controller.half_ended(ended.id, ended.status) {
                    let flight = self.hosts[host].flights.remove(&id).expect("it was sent");
                    self.judge(flight, (first, second), &[]);
                }
            } else if let Some(flight) = self.hosts[host].flights.remove(&ended.id) {
                self.judge(flight, (ended.status, ended.status), &ended.data);
            } else {
                self.hosts[host].controller().answers.push(ended);
            }
        }
    }

    /// Sends the halves of a pair with another command between them.
    pub fn part(&mut self, host: usize) {
        let queues = self.hosts[host].controller().queues.len() as u64;
        let at = self.chance.between(1, queues - 1) as usize;
        let lba = self.chance.below(8) as usize;
        let stamp = self.tick();
        let actions =
            [Action::Half { first: true, stamp }, Action::Read, Action::Half { first: false, stamp }];
        for action in actions {
            let began = self.tick();
            let flight = Flight { host, action, volume: 0, lba, blocks: 1, began };
            let id = self.take_id();
            self.hosts[host].flights.insert(id, flight);
            let queue = &mut self.hosts[host].controller().queues[at];
            flight
                .sqes(self.plan.block)
                .into_iter()
                .for_each(|(sqe, out, read)| queue.send(id, sqe, out, read));
        }
    }

    /// Asks for the end of a command that is on the wire.
    pub fn abort_command(&mut self, host: usize) {
        let controller = self.hosts[host].controller();
        let cids = |(qid, queue): (usize, &Queue)| {
            queue.cids().into_iter().map(move |cid| (qid as u32, u32::from(cid))).collect::<Vec<_>>()
        };
        let all: Vec<(u32, u32)> = controller.queues.iter().enumerate().skip(1).flat_map(cids).collect();
        if all.is_empty() {
            return;
        }
        let (qid, cid) = *self.chance.pick(&all);
        let id = self.take_id();
        let mut abort = sqe(Opcode(0x08));
        abort.cdw10[0] = U32::new(qid | cid << 16);
        let controller = self.hosts[host].controller();
        controller.aborts.insert(id);
        controller.queues[0].send(id, abort, vec![], 0);
    }

    /// An I/O queue is disconnected in good order, with whatever is in work on it, and connected again; the
    /// others go on.
    pub fn disconnect(&mut self, host: usize) {
        let queues = self.hosts[host].controller().queues.len() as u64;
        let at = self.chance.between(1, queues - 1) as usize;
        let mut disconnect = sqe(Opcode::FABRICS);
        disconnect.nsid = U32::new(FabricsType::DISCONNECT.0.into());
        let ended = self.errand(host, at, disconnect, vec![], 0);
        assert!(ended.status.is_success(), "seed {}: {ended:?}", self.plan.seed);
        self.hosts[host].controller().queues[at].hang_up(&mut self.world, false);
        let peer = self.hosts[host].controller().queues[at].peer;
        self.wait("a disconnected queue to close", |history| history.is_closed(peer));
        // Its shard tells its controller's.
        let until = self.world.now() + Duration::from_millis(1);
        while self.world.now() < until {
            self.step();
        }
        let mut ended = self.join(host, at as u16);
        while self.was_turned_away(host, &ended) {
            self.hosts[host].controller().queues.pop();
            ended = self.join(host, at as u16);
        }
        assert!(ended.status.is_success(), "seed {}: queue {at}: {ended:?}", self.plan.seed);
        let controller = self.hosts[host].controller();
        controller.queues.swap_remove(at);
    }

    /// A link breaks: the association ends, and the host connects again.
    pub fn lose_link(&mut self, host: usize) {
        self.hosts[host].controller().enabled = false;
        let reset = self.chance.chance_permille(500);
        let queues = self.hosts[host].controller().queues.len() as u64;
        let at = self.chance.below(queues) as usize;
        self.hosts[host].controller().queues[at].hang_up(&mut self.world, reset);
        self.wait("a lost association's queues to close", |history| {
            history.hosts[host].controller().queues.iter().all(Queue::is_closed)
        });
        // What was under way may still happen; it may not be answered.
        assert!(self.hosts[host].is_idle(), "seed {}: every command ends", self.plan.seed);
        self.connect(host);
    }

    /// All but one write what it may have had in work.
    fn others_go_on(&mut self, host: usize) {
        for _ in 0..3 {
            for other in (0..self.hosts.len()).filter(|other| *other != host) {
                self.command(other);
            }
            for _ in 0..20 {
                self.poll();
                self.step();
            }
        }
    }

    fn wait_for_the_end(&mut self, host: usize) {
        self.wait("the queues of a controller that is reset to close", |history| {
            history.hosts[host].controller().queues[1..].iter().all(Queue::is_closed)
        });
    }

    /// Associations whose wires were noisy end, and their hosts connect again; what was heard wrong has had
    /// time to do its harm.
    pub fn mend(&mut self) {
        for host in 0..self.hosts.len() {
            let Side::Nvme(controller) = &mut self.hosts[host].side else { continue };
            let noises: u32 =
                controller.queues.iter_mut().map(|queue| std::mem::take(&mut queue.noises)).sum();
            if noises == 0 {
                continue;
            }
            self.tally.noises += u64::from(noises);
            for _ in 0..200 {
                self.poll();
                self.step();
            }
            self.lose_link(host);
        }
    }

    /// Resets a controller. Once it is not ready, nothing that was under way may happen any more.
    pub fn reset_controller(&mut self, host: usize) {
        self.tally.resets += 1;
        self.hosts[host].controller().enabled = false;
        let off = PropertyAccess::property_set_sqe(Property::CC, 0x0046_0000);
        assert!(self.errand(host, 0, off, vec![], 0).status.is_success());
        if !self.plan.wide {
            self.wait_for_the_end(host);
        }
        self.wait_ready(host, false);
        // Whatever is answered from now on had happened before.
        let now = self.tick();
        let one = &mut self.hosts[host];
        let orphans = std::mem::take(&mut one.controller().orphans);
        for flight in orphans.into_iter().chain(one.flights.values().copied()) {
            self.ledgers[flight.volume].over(flight.lba, flight.blocks, flight.began, now);
        }
        if self.plan.wide {
            self.others_go_on(host);
        }
        self.wait_for_the_end(host);
        let controller = self.hosts[host].controller();
        controller.orphans.clear();
        controller.queues.truncate(1);
        if !self.enable(host) {
            self.leave(host);
            self.connect(host);
        }
    }
}
