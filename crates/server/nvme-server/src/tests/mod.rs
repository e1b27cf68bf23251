//! The server in a test world: gates on RAM disks, homes, and several shards whose messages are delivered in
//! order. Commands are submission queue entries; results are bytes and status.

mod blocks;
mod controllers;
mod copies;
mod datasets;
mod ends;
mod formats;
mod hostile;
mod hungry;
mod pairs;
mod reservations;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Time};
use nvme::io::BlockTransfer;
use nvme::{Completion, HostId, Nqn, Opcode, SglDescriptor, Sqe, Status};
use testkit::{FakeBackend, FakeControls};
use volume::{
    Ack, Gate, Geometry, Identity, PortId, RamBackend, RamDisk, RequestId, Requester, ShardId,
    SharedGateState, Uuid, ViewUpdate, VolumeAnswer, VolumeFacts, VolumeId, VolumeOwner, VolumeRequest,
};
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

use crate::{CommandKey, ControllerStep, NamespaceEntry, QueueKey, QueueSpec, Server, Step, VolumeInfo};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Completion(Completion),
    Retired,
}

/// A queue of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Host {
    pub(super) shard: usize,
    pub(super) key: QueueKey,
}

/// A command of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Started {
    pub(super) shard: usize,
    pub(super) key: CommandKey,
}

#[derive(Default)]
struct Moving {
    out: Vec<u8>,
    data: Vec<u8>,
    solicited: bool,
    end: Option<End>,
}

enum Mail {
    VolumeRequest(VolumeId, ShardId, RequestId, VolumeRequest),
    Answer(VolumeId, VolumeAnswer),
    ViewUpdate(usize, VolumeId, Arc<ViewUpdate>),
    Ack(VolumeId, Ack),
    Queue(ShardId, crate::QueueMessage),
}

struct Core {
    server: Server,
    gates: Vec<Gate>,
}

pub(super) struct World {
    pub(super) pool: Pool,
    entropy: Entropy,
    pub(super) now: Time,
    cores: Vec<Core>,
    homes: Vec<VolumeOwner>,
    mail: VecDeque<Mail>,
    moving: HashMap<Started, Moving>,
    tag: u64,
    /// What is done to the disks, and what reached them.
    pub(super) disks: FakeControls,
    /// While set, hosts send no data.
    pub(super) withhold: bool,
    /// Powers are computed; else they wait, and what waits is kept.
    pub(super) computes: bool,
    pub(super) uncomputed: Vec<crate::ComputeId>,
    /// While set, messages between cores wait.
    pub(super) hold_mail: bool,
    /// Answers to asks of no server's.
    pub(super) answers: Vec<VolumeAnswer>,
    /// While set, words are carried, and links are closed when a server says so.
    pub(super) linked: bool,
    /// Queues whose links were closed because a server said so.
    pub(super) ended: Vec<Host>,
    /// Controllers that are gone.
    pub(super) gone: Vec<(u16, crate::ControllerEnd)>,
    /// Formats that were asked for: the command's number, and the volume.
    pub(super) formats: Vec<(u64, VolumeId)>,
    /// Commands whose answers wait for memory: how much of which class.
    pub(super) hungry: Vec<(Started, MemoryClass, u32)>,
    /// Queues whose hosts failed to prove who they are.
    pub(super) unproven: Vec<QueueKey>,
    /// Queues that a PSK was generated on.
    pub(super) generated: Vec<QueueKey>,
    /// Blocks of reads for hosts, which need leave before they begin.
    pub(super) to_host: u64,
}

/// A 16 MiB thin volume of 512-byte blocks on 4 KiB physical ones, on one shard, and a host on it
/// as namespace 1.
pub(super) fn disk() -> (World, Host) {
    let mut world = World::new(1);
    world.add(32768, |_| {});
    let host = world.host(0, 0xa, &[0]);
    (world, host)
}

impl World {
    pub(super) fn new(shards: u16) -> World {
        let core = |shard| Core { server: Server::new(ShardId(shard)), gates: Vec::new() };
        World {
            pool: Pool::new(64 << 20),
            entropy: Entropy::new([7; 32]),
            now: Time(0),
            cores: (0..shards).map(core).collect(),
            homes: Vec::new(),
            mail: VecDeque::new(),
            moving: HashMap::new(),
            tag: 0,
            disks: FakeControls::default(),
            withhold: false,
            computes: true,
            uncomputed: Vec::new(),
            hold_mail: false,
            answers: Vec::new(),
            linked: false,
            ended: Vec::new(),
            gone: Vec::new(),
            formats: Vec::new(),
            hungry: Vec::new(),
            to_host: 0,
            unproven: Vec::new(),
            generated: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, blocks: u64, alter: impl Fn(&mut Geometry)) -> VolumeId {
        self.add_of(blocks, 512, alter)
    }

    pub(super) fn add_of(&mut self, blocks: u64, logical: u32, alter: impl Fn(&mut Geometry)) -> VolumeId {
        let id = VolumeId(self.homes.len() as u64);
        let disk = Arc::new(RamDisk::new(blocks, 2 * blocks, logical, 4096));
        let mut geometry = disk.geometry();
        alter(&mut geometry);
        let facts =
            VolumeFacts { revision: "1".into(), ..VolumeFacts::new(id, "v", Uuid([id.0 as u8 + 1; 16])) };
        let shards = self.cores.len() as u16;
        let shared = SharedGateState::new(shards);
        shared.set_allocation_gauge(disk.allocation_gauge());
        let home = VolumeOwner::restore(facts.clone(), geometry, shards, false, None).unwrap();
        for (at, core) in self.cores.iter_mut().enumerate() {
            let backend = FakeBackend::new(RamBackend::new(disk.clone()), geometry, self.disks.clone());
            let view = home.view().clone();
            core.gates.push(Gate::new(ShardId(at as u16), shared.clone(), view.clone(), Box::new(backend)));
            core.server
                .add_volume(VolumeInfo { facts: Arc::new(facts.clone()), shared: shared.clone() }, view);
        }
        self.homes.push(home);
        id
    }

    /// A queue of the host with this identifier, on port 1, that reaches these volumes as namespaces of
    /// the number plus one.
    pub(super) fn host(&mut self, shard: usize, id: u8, volumes: &[u32]) -> Host {
        let entries = volumes.iter().map(|volume| entry(*volume, false)).collect();
        self.host_on(shard, id, 1, entries)
    }

    pub(super) fn host_on(
        &mut self,
        shard: usize,
        id: u8,
        port: u16,
        namespaces: Arc<[NamespaceEntry]>,
    ) -> Host {
        let identity = Arc::new(Identity::Host([id; 16]));
        let spec = QueueSpec {
            cntlid: 1,
            association: 1,
            qid: 1,
            queue_slot: 1,
            entries: 128,
            flow_control: false,
            in_capsule: 8192,
            home: ShardId(0),
            host: crate::HostIdentity {
                nqn: Nqn::parse("nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001")
                    .unwrap(),
                id: HostId::new([id; 16]).unwrap(),
            },
            nexus: Requester { identity, port: PortId(port), read_only: false },
            namespaces,
            transfer_max: 1 << 20,
            traffic_ms: 0,
            delays_retries: false,
            auth: None,
        };
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        Host { shard, key: self.cores[shard].server.open_queue(&mut cx, spec) }
    }

    pub(super) fn server(&mut self, host: Host) -> &mut Server {
        &mut self.cores[host.shard].server
    }

    pub(super) fn home(&self, volume: u32) -> &VolumeOwner {
        &self.homes[volume as usize]
    }

    pub(super) fn close(&mut self, host: Host) {
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        self.cores[host.shard].server.close_queue(&mut cx, host.key);
        self.steps(host.shard);
    }

    /// What this name was given to is not computed.
    pub(super) fn not_computed(&mut self, host: Host, id: crate::ComputeId) {
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        self.cores[host.shard].server.handle_not_computed(&mut cx, id);
        self.steps(host.shard);
    }

    /// Asks as another server does, and runs until all is quiet.
    pub(super) fn request(&mut self, volume: u32, request: VolumeRequest) -> Result<(), volume::Refusal> {
        self.mail.push_back(Mail::VolumeRequest(VolumeId(volume.into()), ShardId(0), RequestId(7), request));
        self.run();
        self.answers.pop().expect("an ask is answered").result
    }

    /// Asks as another server does, and runs as far as that goes.
    pub(super) fn request_later(&mut self, volume: u32, request: VolumeRequest) {
        self.mail.push_back(Mail::VolumeRequest(VolumeId(volume.into()), ShardId(0), RequestId(7), request));
        self.run();
    }

    pub(super) fn start(&mut self, host: Host, sqe: &Sqe, out: &[u8]) -> Started {
        self.start_with(host, sqe, out, out.len() as u32)
    }

    /// Starts a command of whose data the SGL promises `data_out` bytes.
    pub(super) fn start_with(&mut self, host: Host, sqe: &Sqe, out: &[u8], data_out: u32) -> Started {
        self.tag += 1;
        // A dense index, and a generation above it.
        let tag = (self.tag << 32) | (self.tag % 256);
        let started = Started { shard: host.shard, key: CommandKey { queue: host.key, tag } };
        self.moving.insert(started, Moving { out: out.to_vec(), ..Moving::default() });
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        self.cores[host.shard].server.start_command(&mut cx, started.key, sqe, data_out);
        self.steps(host.shard);
        started
    }

    /// How a command ended, if it did.
    pub(super) fn end(&self, started: Started) -> Option<End> {
        self.moving[&started].end
    }

    /// Whether a command's data was asked for.
    pub(super) fn solicited(&self, started: Started) -> bool {
        self.moving[&started].solicited
    }

    #[track_caller]
    pub(super) fn status(&self, started: Started) -> Status {
        match self.end(started) {
            Some(End::Completion(completion)) => completion.status,
            other => panic!("a command ended as {other:?}"),
        }
    }

    pub(super) fn bytes(&self, started: Started) -> Vec<u8> {
        self.moving[&started].data.clone()
    }

    /// Runs a command to its end.
    #[track_caller]
    pub(super) fn command(&mut self, host: Host, sqe: &Sqe, out: &[u8]) -> Status {
        let started = self.start(host, sqe, out);
        self.run();
        self.status(started)
    }

    /// Runs a command that must end well, and gives its data.
    #[track_caller]
    pub(super) fn good(&mut self, host: Host, sqe: &Sqe, out: &[u8]) -> Vec<u8> {
        let started = self.start(host, sqe, out);
        self.run();
        assert_eq!(self.status(started), Status::SUCCESS, "{sqe:?}");
        self.bytes(started)
    }

    /// Blocks of namespace 1.
    #[track_caller]
    pub(super) fn read(&mut self, host: Host, lba: u64, blocks: u32) -> Vec<u8> {
        self.good(host, &transfer(Opcode::READ, lba, blocks), &[])
    }

    #[track_caller]
    pub(super) fn write(&mut self, host: Host, lba: u64, data: &[u8]) {
        self.good(host, &transfer(Opcode::WRITE, lba, (data.len() / 512) as u32), data);
    }

    /// Sends the data that was withheld of a command that waits for all of it, and runs.
    pub(super) fn feed(&mut self, started: Started) {
        let bytes = self.moving[&started].out.clone();
        let mut memory = self.pool.take_sg(MemoryClass::Solicited, bytes.len()).unwrap();
        memory.copy_from(0, &bytes);
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        self.cores[started.shard].server.handle_data(&mut cx, started.key, 0, memory.freeze());
        self.run();
    }

    /// Takes the steps of one shard.
    fn steps(&mut self, shard: usize) {
        while let Some(step) = self.cores[shard].server.poll_step() {
            self.step(shard, step);
        }
    }

    fn step(&mut self, shard: usize, step: Step) {
        let core = &mut self.cores[shard];
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        match step {
            Step::Receive { command, at, len, .. } => {
                assert!(len > 0);
                let moving = self.moving.get_mut(&Started { shard, key: command }).unwrap();
                moving.solicited = true;
                if self.withhold {
                    return;
                }
                let bytes = &moving.out[at as usize..(at + len) as usize];
                let mut memory = self.pool.take_sg(MemoryClass::Solicited, bytes.len()).unwrap();
                memory.copy_from(0, bytes);
                core.server.handle_data(&mut cx, command, at, memory.freeze());
            }
            Step::AwaitMemory { command, class, len } => {
                assert!(len > 0);
                self.hungry.push((Started { shard, key: command }, class, len));
            }
            Step::Send { command, at, data } => {
                let moving = self.moving.get_mut(&Started { shard, key: command }).unwrap();
                assert!(moving.end.is_none(), "data after the end");
                let end = at as usize + data.len();
                moving.data.resize(end.max(moving.data.len()), 0);
                data.copy_to(0, &mut moving.data[at as usize..end]);
            }
            Step::Respond { command, reply: completion } => {
                self.ended(shard, command, End::Completion(completion))
            }
            Step::Retire { command } => self.ended(shard, command, End::Retired),
            Step::Io { command, volume, mut io, want, to_peer } => {
                match &io.op {
                    volume::Op::Read(span) if to_peer => self.to_host += span.blocks,
                    op => assert!(!to_peer, "{op:?} reads nothing"),
                }
                assert!(io.id.0 >> 63 == 1 && io.id.0 != u64::MAX, "operations bear the server's mark");
                if want > 0 {
                    io.payload =
                        Payload::In(self.pool.take_sg(MemoryClass::Solicited, want as usize).unwrap());
                }
                let who = core.server.nexus(command.queue).clone();
                core.gates[volume.0 as usize].submit(&mut cx, &who, io);
            }
            Step::Cancel { volume, io, .. } => core.gates[volume.0 as usize].cancel(io),
            Step::VolumeRequest { volume, id, request } => {
                self.mail.push_back(Mail::VolumeRequest(volume, ShardId(shard as u16), id, request));
            }
            Step::Other(
                step @ (ControllerStep::ListControllers { .. }
                | ControllerStep::ResetController { .. }
                | ControllerStep::AnswerReset { .. }),
            ) => self.step_between_shards(shard, step),
            Step::Other(ControllerStep::FormatVolume { id, volume, .. }) => self.formats.push((id, volume)),
            Step::Other(ControllerStep::QueueMessage { to, message }) if self.linked => {
                self.mail.push_back(Mail::Queue(to, message))
            }
            Step::Other(ControllerStep::EndQueue { queue }) if self.linked => {
                self.ended.push(Host { shard, key: queue });
                core.server.close_queue(&mut cx, queue);
            }
            Step::Other(ControllerStep::Compute { id, work, .. }) if self.computes => {
                core.server.handle_computed(&mut cx, id, work.run())
            }
            Step::Other(ControllerStep::Compute { id, .. }) => self.uncomputed.push(id),
            Step::Other(ControllerStep::CancelCompute { id }) => {
                self.uncomputed.retain(|waiting| *waiting != id)
            }
            Step::Other(ControllerStep::ControllerGone { cntlid, why }) => self.gone.push((cntlid, why)),
            Step::Other(ControllerStep::HostAuthenticated { .. }) => {}
            Step::Other(ControllerStep::PskGenerated { queue, .. }) => self.generated.push(queue),
            Step::Other(ControllerStep::AuthenticationFailed { queue }) => self.unproven.push(queue),
            Step::Other(ControllerStep::QueueMessage { .. })
            | Step::Other(ControllerStep::EndQueue { .. }) => {}
        }
    }

    fn ended(&mut self, shard: usize, command: CommandKey, end: End) {
        let moving = self.moving.get_mut(&Started { shard, key: command }).expect("a command was started");
        assert!(moving.end.is_none(), "{command:?} ends twice: {:?} and {end:?}", moving.end);
        moving.end = Some(end);
    }

    /// Runs everything until nothing moves but, perhaps, time.
    pub(super) fn run(&mut self) {
        for _ in 0..1_000_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("the world does not come to rest");
    }

    fn turn(&mut self) -> bool {
        let mut moved = self.feed_answers();
        for shard in 0..self.cores.len() {
            self.steps(shard);
            for at in 0..self.cores[shard].gates.len() {
                moved |= self.run_gate(shard, at);
            }
        }
        if !self.hold_mail
            && let Some(mail) = self.mail.pop_front()
        {
            self.deliver(mail);
            moved = true;
        }
        moved
    }

    /// Answers that wait for memory, and can have some.
    fn feed_answers(&mut self) -> bool {
        let pool = self.pool.clone();
        let (fed, hungry) = std::mem::take(&mut self.hungry)
            .into_iter()
            .partition(|(_, class, len)| pool.take_sg(*class, *len as usize).is_some());
        self.hungry = hungry;
        let fed: Vec<(Started, MemoryClass, u32)> = fed;
        for (Started { shard, key }, ..) in &fed {
            let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
            self.cores[*shard].server.retry_answer(&mut cx, *key);
            self.steps(*shard);
        }
        !fed.is_empty()
    }

    fn run_gate(&mut self, shard: usize, at: usize) -> bool {
        let mut moved = false;
        loop {
            let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
            let core = &mut self.cores[shard];
            let more = core.gates[at].resume(&mut cx);
            let done = core.gates[at].poll_done();
            if let Some(done) = done {
                core.server.handle_io_done(&mut cx, done);
                self.steps(shard);
                moved = true;
            } else if !more {
                break;
            }
        }
        while let Some(woken) = self.cores[shard].gates[at].poll_shard_to_wake() {
            self.cores[usize::from(woken.0)].gates[at].handle_wake();
            moved = true;
        }
        let gate = &mut self.cores[shard].gates[at];
        while let Some((id, request)) = gate.poll_request() {
            self.mail.push_back(Mail::VolumeRequest(VolumeId(at as u64), ShardId(shard as u16), id, request));
            moved = true;
        }
        if let Some(ack) = gate.poll_ack() {
            self.mail.push_back(Mail::Ack(VolumeId(at as u64), ack));
            moved = true;
        }
        moved
    }

    fn deliver(&mut self, mail: Mail) {
        match mail {
            Mail::Queue(to, message) => {
                let shard = usize::from(to.0);
                let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
                self.cores[shard].server.handle_queue_message(&mut cx, message);
                self.steps(shard);
            }
            Mail::VolumeRequest(volume, from, id, request) => {
                self.homes[volume.0 as usize].handle_request(self.now, from, id, request);
                self.run_home(volume);
            }
            Mail::Ack(volume, ack) => {
                self.homes[volume.0 as usize].handle_ack(self.now, ack);
                self.run_home(volume);
            }
            Mail::Answer(volume, answer) if answer.id.id_space() == volume::IdSpace::Gate => {
                let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
                let gate = &mut self.cores[usize::from(answer.to.0)].gates[volume.0 as usize];
                gate.handle_answer(&mut cx, answer.id, answer.result);
            }
            Mail::Answer(_, answer) if answer.id.0 >> 63 == 0 => self.answers.push(answer),
            Mail::Answer(_, answer) => {
                let shard = usize::from(answer.to.0);
                let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
                self.cores[shard].server.handle_volume_answer(&mut cx, answer.id, answer.result);
                self.steps(shard);
            }
            Mail::ViewUpdate(shard, volume, update) => {
                self.cores[shard].server.update_view(volume, &update);
                self.steps(shard);
                self.cores[shard].gates[volume.0 as usize].update_view(&update);
            }
        }
    }

    fn run_home(&mut self, volume: VolumeId) {
        let home = &mut self.homes[volume.0 as usize];
        while let Some(store) = home.poll_store_op() {
            home.handle_stored(self.now, store.ticket, true);
        }
        while let Some(update) = home.poll_view_update() {
            let update = Arc::new(update);
            for shard in 0..self.cores.len() {
                self.mail.push_back(Mail::ViewUpdate(shard, volume, update.clone()));
            }
        }
        while let Some(answer) = home.poll_answer() {
            self.mail.push_back(Mail::Answer(volume, answer));
        }
    }

    /// Bytes of the pool that are out, but for reports that servers keep.
    pub(super) fn lent(&mut self) -> usize {
        for core in &mut self.cores {
            for home in &self.homes {
                core.server.context.cache_reservation_report(home.facts().id, None);
            }
        }
        self.pool.usage().lent
    }
}

pub(super) fn entry(volume: u32, read_only: bool) -> NamespaceEntry {
    NamespaceEntry { nsid: volume + 1, volume: VolumeId(volume.into()), read_only, ana_group: 1 }
}

/// A command without data on namespace 1.
pub(super) fn sqe(opcode: Opcode) -> Sqe {
    let mut sqe = Sqe::read_from_bytes(&[0; 64]).unwrap();
    sqe.opcode = opcode;
    sqe.flags = 1 << 6;
    sqe.nsid = U32::new(1);
    sqe.dptr.identifier = SglDescriptor::TRANSPORT;
    sqe
}

/// A command on blocks of namespace 1; the SGL is as long as 512-byte blocks ask for.
pub(super) fn transfer(opcode: Opcode, lba: u64, blocks: u32) -> Sqe {
    transfer_with(opcode, lba, blocks, 0)
}

pub(super) fn transfer_with(opcode: Opcode, lba: u64, blocks: u32, flags: u32) -> Sqe {
    let mut sqe = sqe(opcode);
    BlockTransfer { lba, blocks, flags }.write_to_sqe(&mut sqe);
    sqe.dptr.length = U32::new(blocks * 512);
    sqe
}

pub(super) fn with_cid(mut sqe: Sqe, cid: u16) -> Sqe {
    sqe.cid = U16::new(cid);
    sqe
}

pub(super) fn on(mut sqe: Sqe, nsid: u32) -> Sqe {
    sqe.nsid = U32::new(nsid);
    sqe
}

/// A block full of one byte.
pub(super) fn block(byte: u8) -> [u8; 512] {
    [byte; 512]
}
