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

use std::convert::Infallible;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use buf::{Cx, MemoryClass, Sg, Time};
use nvme::io::BlockTransfer;
use nvme::{Completion, HostId, Nqn, Opcode, SglDescriptor, Sqe, Status};
use testkit::server_world::{self, EndOf, ServerWorld, ShardMessage, TestedServer, WorldParts};
use volume::{
    Geometry, IdSpace, Identity, IoCompletion, PortId, Refusal, RequestId, Requester, ShardId, Uuid,
    ViewUpdate, VolumeFacts, VolumeId, VolumeOwner, VolumeRequest,
};
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

use crate::{CommandKey, ControllerStep, NamespaceEntry, QueueKey, QueueSpec, Server, Step, VolumeInfo};

/// A queue of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Host {
    pub(super) shard: usize,
    pub(super) key: QueueKey,
}

/// A command of a host.
pub(super) type Started = server_world::Started<CommandKey>;
/// How a command ended.
pub(super) type End = EndOf<Server>;

impl TestedServer for Server {
    type Command = CommandKey;
    type Reply = Completion;
    type OtherEnd = Infallible;
    type OtherStep = ControllerStep;
    type Message = crate::QueueMessage;
    const ID_SPACE: IdSpace = IdSpace::Nvme;

    fn poll_step(&mut self) -> Option<Step> {
        self.poll_step()
    }
    fn requester_of(&self, command: CommandKey) -> Requester {
        self.nexus(command.queue).clone()
    }
    fn handle_data(&mut self, cx: &mut Cx<'_>, command: CommandKey, at: u32, data: Sg) {
        self.handle_data(cx, command, at, data);
    }
    fn handle_io_done(&mut self, cx: &mut Cx<'_>, done: IoCompletion) {
        self.handle_io_done(cx, done);
    }
    fn handle_volume_answer(&mut self, cx: &mut Cx<'_>, id: RequestId, result: Result<(), Refusal>) {
        self.handle_volume_answer(cx, id, result);
    }
    fn update_view(&mut self, volume: VolumeId, update: &ViewUpdate) {
        self.update_view(volume, update);
    }
}

pub(super) struct World {
    parts: WorldParts<Server>,
    /// Powers are computed; else they wait, and what waits is kept.
    pub(super) computes: bool,
    pub(super) uncomputed: Vec<crate::ComputeId>,
    /// While set, messages of servers are carried, and links are closed when a server says so.
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
}

impl Deref for World {
    type Target = WorldParts<Server>;

    fn deref(&self) -> &WorldParts<Server> {
        &self.parts
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut WorldParts<Server> {
        &mut self.parts
    }
}

impl ServerWorld for World {
    type Server = Server;

    fn parts(&mut self) -> &mut WorldParts<Server> {
        &mut self.parts
    }

    fn run_other_step(&mut self, shard: usize, step: ControllerStep) {
        let (core, mut cx) = self.parts.core(shard);
        match step {
            step @ (ControllerStep::ListControllers { .. }
            | ControllerStep::ResetController { .. }
            | ControllerStep::AnswerReset { .. }) => self.step_between_shards(shard, step),
            ControllerStep::FormatVolume { id, volume, .. } => self.formats.push((id, volume)),
            ControllerStep::QueueMessage { to, message } if self.linked => {
                self.messages.push_back(ShardMessage::ToServer(to, message))
            }
            ControllerStep::EndQueue { queue } if self.linked => {
                core.server.close_queue(&mut cx, queue);
                self.ended.push(Host { shard, key: queue });
            }
            ControllerStep::Compute { id, work, .. } if self.computes => {
                core.server.handle_computed(&mut cx, id, work.run())
            }
            ControllerStep::Compute { id, .. } => self.uncomputed.push(id),
            ControllerStep::CancelCompute { id } => self.uncomputed.retain(|waiting| *waiting != id),
            ControllerStep::ControllerGone { cntlid, why } => self.gone.push((cntlid, why)),
            ControllerStep::HostAuthenticated { .. } => {}
            ControllerStep::PskGenerated { queue, .. } => self.generated.push(queue),
            ControllerStep::AuthenticationFailed { queue } => self.unproven.push(queue),
            ControllerStep::QueueMessage { .. } | ControllerStep::EndQueue { .. } => {}
        }
    }

    fn await_memory(&mut self, started: Started, class: MemoryClass, len: u32) {
        self.hungry.push((started, class, len));
    }

    fn deliver_to_server(&mut self, shard: usize, message: crate::QueueMessage) {
        let (core, mut cx) = self.parts.core(shard);
        core.server.handle_queue_message(&mut cx, message);
        self.run_steps(shard);
    }

    fn retry_answers(&mut self) -> bool {
        let pool = self.pool.clone();
        let (fed, hungry) = std::mem::take(&mut self.hungry)
            .into_iter()
            .partition(|(_, class, len)| pool.take_sg(*class, *len as usize).is_some());
        self.hungry = hungry;
        let fed: Vec<(Started, MemoryClass, u32)> = fed;
        for (Started { shard, key }, ..) in &fed {
            let (core, mut cx) = self.parts.core(*shard);
            core.server.retry_answer(&mut cx, *key);
            self.run_steps(*shard);
        }
        !fed.is_empty()
    }
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
        World {
            parts: WorldParts::new(shards, Server::new),
            computes: true,
            uncomputed: Vec::new(),
            linked: false,
            ended: Vec::new(),
            gone: Vec::new(),
            formats: Vec::new(),
            hungry: Vec::new(),
            unproven: Vec::new(),
            generated: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, blocks: u64, alter: impl Fn(&mut Geometry)) -> VolumeId {
        self.add_of(blocks, 512, alter)
    }

    pub(super) fn add_of(&mut self, blocks: u64, logical: u32, alter: impl Fn(&mut Geometry)) -> VolumeId {
        let id = self.next_volume();
        let facts =
            VolumeFacts { revision: "1".into(), ..VolumeFacts::new(id, "v", Uuid([id.0 as u8 + 1; 16])) };
        let shown = Arc::new(facts.clone());
        self.add_volume(facts, (blocks, logical), alter, |server, shared, view| {
            server.add_volume(VolumeInfo { facts: shown.clone(), shared }, view);
        })
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
        let (core, mut cx) = self.parts.core(shard);
        Host { shard, key: core.server.open_queue(&mut cx, spec) }
    }

    pub(super) fn server(&mut self, host: Host) -> &mut Server {
        &mut self.cores[host.shard].server
    }

    pub(super) fn home(&self, volume: u32) -> &VolumeOwner {
        &self.homes[volume as usize]
    }

    pub(super) fn close(&mut self, host: Host) {
        let (core, mut cx) = self.parts.core(host.shard);
        core.server.close_queue(&mut cx, host.key);
        self.run_steps(host.shard);
    }

    /// What this name was given to is not computed.
    pub(super) fn not_computed(&mut self, host: Host, id: crate::ComputeId) {
        let (core, mut cx) = self.parts.core(host.shard);
        core.server.handle_not_computed(&mut cx, id);
        self.run_steps(host.shard);
    }

    /// Asks as another server does, and runs until it has been answered.
    pub(super) fn request(&mut self, volume: u32, request: VolumeRequest) -> Result<(), Refusal> {
        ServerWorld::request(self, VolumeId(volume.into()), request)
    }

    /// Asks as another server does, and runs as far as that goes.
    pub(super) fn request_later(&mut self, volume: u32, request: VolumeRequest) {
        ServerWorld::request_later(self, VolumeId(volume.into()), request);
    }

    pub(super) fn start(&mut self, host: Host, sqe: &Sqe, out: &[u8]) -> Started {
        self.start_with(host, sqe, out, out.len() as u32)
    }

    /// Starts a command of whose data the SGL promises `data_out` bytes.
    pub(super) fn start_with(&mut self, host: Host, sqe: &Sqe, out: &[u8], data_out: u32) -> Started {
        let key = CommandKey { queue: host.key, tag: self.next_tag() };
        let started = self.enter(host.shard, key, out);
        let (core, mut cx) = self.parts.core(host.shard);
        core.server.start_command(&mut cx, key, sqe, data_out);
        self.run_steps(host.shard);
        started
    }

    /// How a command ended, if it did.
    pub(super) fn end(&self, started: Started) -> Option<End> {
        self.end_of(started).copied()
    }

    /// Whether a command's data was asked for.
    pub(super) fn solicited(&self, started: Started) -> bool {
        self.transfers[&started].solicited
    }

    #[track_caller]
    pub(super) fn status(&self, started: Started) -> Status {
        match self.end(started) {
            Some(End::Reply(completion)) => completion.status,
            other => panic!("a command ended as {other:?}"),
        }
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

    /// Bytes of the pool that are out, but for reports that servers keep.
    pub(super) fn lent(&mut self) -> usize {
        let WorldParts { cores, homes, .. } = &mut self.parts;
        for core in cores {
            for home in homes.iter() {
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
