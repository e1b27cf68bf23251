//! A small NVMe host: a controller with its queues, in the simulated world.

use std::time::Duration;

use blockwire_shard::{ControlReport, Message, NvmeMessage, Shard};
use endpoint::{ListenerId, ShardId};
use nvme::fabrics::{Connect, ConnectData, ConnectNames, ConnectResult, Property, PropertyAccess};
use nvme::{HostId, Nqn, Opcode, Sqe, Status};
use sim::{Peer, PeerEnd, World};
use zerocopy::FromZeros;
use zerocopy::little_endian::U32;

use testkit::nvme_host::{CommandResult, TestQueue};
use testkit::target::SUBSYSTEM_NQN;

pub const HOST: &str = "nqn.2026-11.test:host";
/// The listener for subsystems.
pub const IO: ListenerId = ListenerId(1);
/// The listener for discovery alone.
pub const DISCOVERY: ListenerId = ListenerId(2);

/// Who connects to what, and how.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub host: &'static str,
    pub host_id: u8,
    pub subsystem: &'static str,
    pub listener: ListenerId,
    pub digests: (bool, bool),
    pub kato_ms: u32,
    pub queues: u16,
    pub entries: u32,
    pub flow_control: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        Wanted {
            host: HOST,
            host_id: 1,
            subsystem: SUBSYSTEM_NQN,
            listener: IO,
            digests: (false, false),
            kato_ms: 0,
            queues: 2,
            entries: 32,
            flow_control: true,
        }
    }
}

impl Wanted {
    pub fn names(&self, cntlid: u16) -> ConnectNames {
        ConnectNames {
            host_id: HostId::new([self.host_id; 16]).expect("an identifier is not zero"),
            cntlid,
            subsystem: Nqn::parse(self.subsystem).unwrap(),
            host: Nqn::parse(self.host).unwrap(),
        }
    }

    pub fn connect(&self, qid: u16) -> Connect {
        Connect {
            qid,
            entries: self.entries,
            flow_control: self.flow_control,
            individual_deletion: false,
            kato_ms: if qid == 0 { self.kato_ms } else { 0 },
        }
    }
}

/// A controller and its queues: the admin queue is the first.
pub struct Host {
    pub wanted: Wanted,
    pub pipes: Vec<TestQueue>,
    pub cntlid: u16,
}

/// Whether the controller has closed a connection.
pub fn is_dead(world: &World<Shard>, pipe: &TestQueue) -> bool {
    world.peer_end(Peer(pipe.at)) != PeerEnd::Open
}

/// Breaks a connection.
pub fn reset(world: &mut World<Shard>, pipe: &TestQueue) {
    world.reset(Peer(pipe.at));
}

/// Lets the world go on until `done`; what the target wants kept is kept.
pub fn run(
    world: &mut World<Shard>,
    pipes: &mut [&mut TestQueue],
    mut done: impl FnMut(&World<Shard>, &[&mut TestQueue]) -> bool,
) -> Vec<ControlReport> {
    let mut reports = Vec::new();
    for _ in 0..400_000 {
        for pipe in pipes.iter_mut() {
            pipe.poll(world);
        }
        heed(world, &mut reports);
        if done(world, pipes) {
            return reports;
        }
        let until = world.now() + Duration::from_millis(1);
        world.step(until);
    }
    let ends: Vec<_> = pipes.iter().map(|pipe| world.peer_end(Peer(pipe.at))).collect();
    panic!("it does not come to an end: {world:?}, connections {ends:?}");
}

thread_local! {
    /// PSKs that the control plane was told of, in order: whether each holds from then on.
    pub static PSKS: std::cell::RefCell<Vec<(nvme::tls::PskIdentity, bool)>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// What the control plane does.
pub fn heed(world: &mut World<Shard>, reports: &mut Vec<ControlReport>) {
    for (_, message) in world.take_control_messages() {
        match message {
            Message::Store(volume, op) => {
                world.send_message(ShardId(0), Message::Stored(volume, op.ticket, true));
            }
            Message::Nvme(NvmeMessage::Compute(shard, id, _, work)) => {
                let outcome = Box::new(work.run());
                world.send_message(shard, Message::Nvme(NvmeMessage::Computed(id, outcome)));
            }
            Message::Nvme(NvmeMessage::Forget(..)) => {}
            Message::Nvme(NvmeMessage::PskGenerated(psk)) => {
                PSKS.with_borrow_mut(|psks| psks.push((psk.0, true)));
            }
            Message::Nvme(NvmeMessage::PskRevoked(identity)) => {
                PSKS.with_borrow_mut(|psks| psks.push((*identity, false)));
            }
            Message::Report(_, report) => reports.push(report),
            other => panic!("unexpected: {other:?}"),
        }
    }
}

/// Runs a command of one connection to its end.
pub fn wait(world: &mut World<Shard>, pipe: &mut TestQueue, cid: u16) -> CommandResult {
    run(world, &mut [pipe], |_, pipes| pipes[0].ended.iter().any(|ended| ended.cid == cid));
    pipe.take_result(cid).unwrap()
}

pub fn sqe(opcode: u8) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    sqe.opcode = Opcode(opcode);
    sqe
}

/// Read (02h) or Write (01h).
pub fn transfer(opcode: u8, lba: u64, blocks: usize) -> Sqe {
    let mut sqe = sqe(opcode);
    sqe.nsid = U32::new(1);
    sqe.cdw10[0] = U32::new(lba as u32);
    sqe.cdw10[2] = U32::new(blocks as u32 - 1);
    sqe
}

/// A reservation command of namespace 1.
pub fn reserve(opcode: u8, action: u32, kind: u32) -> Sqe {
    let mut sqe = sqe(opcode);
    sqe.nsid = U32::new(1);
    sqe.cdw10[0] = U32::new(action | kind << 8);
    sqe
}

/// The data of a reservation command: two keys.
pub fn keys(current: u64, other: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&current.to_le_bytes());
    bytes[8..].copy_from_slice(&other.to_le_bytes());
    bytes
}

impl Host {
    /// Connects the admin queue; the refusal if there is one.
    pub fn admin(world: &mut World<Shard>, wanted: Wanted) -> Result<Host, CommandResult> {
        let mut pipe = TestQueue::open_connection(world, wanted.listener, wanted.digests);
        let cid = pipe.send_connect(world, &wanted.connect(0), &wanted.names(ConnectData::DYNAMIC));
        let ended = wait(world, &mut pipe, cid);
        if !ended.status.is_success() {
            return Err(ended);
        }
        let connected = ConnectResult::parse(ended.result);
        assert!(!connected.authenticate);
        Ok(Host { wanted, pipes: vec![pipe], cntlid: connected.cntlid })
    }

    /// Connects, enables the controller and connects its I/O queues.
    pub fn connect(world: &mut World<Shard>, wanted: Wanted) -> Host {
        let mut host = Host::admin(world, wanted).expect("the host is let in");
        host.enable(world);
        for qid in 1..=host.wanted.queues {
            let ended = host.join(world, qid);
            assert!(ended.status.is_success(), "queue {qid}: {ended:?}");
        }
        host
    }

    /// Enables the controller and waits until it is ready.
    pub fn enable(&mut self, world: &mut World<Shard>) {
        let set = PropertyAccess::property_set_sqe(Property::CC, 0x0046_0001);
        assert!(self.ask(world, 0, set, &[], 0).status.is_success());
        while self.status(world) & 1 == 0 {
            world.run_for(Duration::from_millis(1));
        }
    }

    /// CSTS.
    pub fn status(&mut self, world: &mut World<Shard>) -> u64 {
        let ended = self.ask(world, 0, PropertyAccess::property_get_sqe(Property::CSTS, 4), &[], 0);
        assert!(ended.status.is_success());
        ended.result
    }

    /// Connects an I/O queue; it is kept if that succeeds.
    pub fn join(&mut self, world: &mut World<Shard>, qid: u16) -> CommandResult {
        let connect = self.wanted.connect(qid);
        let names = self.wanted.names(self.cntlid);
        self.join_as(world, &connect, &names)
    }

    pub fn join_as(
        &mut self,
        world: &mut World<Shard>,
        connect: &Connect,
        names: &ConnectNames,
    ) -> CommandResult {
        let mut pipe = TestQueue::open_connection(world, self.wanted.listener, self.wanted.digests);
        let cid = pipe.send_connect(world, connect, names);
        let ended = wait(world, &mut pipe, cid);
        if ended.status.is_success() {
            self.pipes.push(pipe);
        }
        ended
    }

    /// Sends a command to a queue and waits for its end.
    pub fn ask(
        &mut self,
        world: &mut World<Shard>,
        at: usize,
        sqe: Sqe,
        out: &[u8],
        read: usize,
    ) -> CommandResult {
        let cid = self.start(world, at, sqe, out, read);
        wait(world, &mut self.pipes[at], cid)
    }

    /// Sends a command to a queue; up to 4 KiB go in its capsule.
    pub fn start(&mut self, world: &mut World<Shard>, at: usize, sqe: Sqe, out: &[u8], read: usize) -> u16 {
        self.pipes[at].send_command(world, sqe, out, out.len() <= 4096, read)
    }

    /// Runs all commands to their ends.
    pub fn settle(&mut self, world: &mut World<Shard>) {
        let mut pipes: Vec<&mut TestQueue> = self.pipes.iter_mut().collect();
        run(world, &mut pipes, |_, pipes| pipes.iter().all(|pipe| pipe.is_idle()));
    }

    /// Runs all commands of the I/O queues to their ends, while this one waits at the admin queue.
    pub fn settle_but(&mut self, world: &mut World<Shard>, waits: u16) {
        let mut pipes: Vec<&mut TestQueue> = self.pipes.iter_mut().collect();
        run(world, &mut pipes, |_, pipes| {
            let told = pipes[0].is_idle() || pipes[0].ended.iter().any(|ended| ended.cid == waits);
            told && pipes[1..].iter().all(|pipe| pipe.is_idle())
        });
    }

    pub fn write(&mut self, world: &mut World<Shard>, at: usize, lba: u64, data: &[u8]) -> Status {
        self.ask(world, at, transfer(1, lba, data.len() / 512), data, 0).status
    }

    pub fn read(&mut self, world: &mut World<Shard>, at: usize, lba: u64, blocks: usize) -> Vec<u8> {
        let ended = self.ask(world, at, transfer(2, lba, blocks), &[], blocks * 512);
        assert!(ended.status.is_success(), "{ended:?}");
        ended.data
    }

    /// Whether all its connections have been closed by the controller.
    pub fn is_dead(&self, world: &World<Shard>) -> bool {
        self.pipes.iter().all(|pipe| is_dead(world, pipe))
    }
}
