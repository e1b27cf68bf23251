//! The device server in a test world: gates on RAM disks, homes, and several shards whose messages are
//! delivered in order. Commands are CDBs; results are bytes, status and sense data.

mod blocks;
mod compare;
mod copying;
mod describe;
mod devices;
mod flushes;
mod modes;
mod random;
mod replacements;
mod reservations;
mod sanitize;
mod tasks;

use std::convert::Infallible;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use buf::{Cx, MemoryClass, Sg, Time};
use scsi::Status;
use scsi::sense::Sense;
use testkit::server_world::{self, EndOf, ServerWorld, TestedServer, WorldParts};
use volume::{
    Gate, Geometry, IdSpace, Identity, IoCompletion, PortId, Refusal, RequestId, Requester, ShardId, Uuid,
    ViewUpdate, VolumeFacts, VolumeId, VolumeRequest,
};

use crate::step::{
    DeviceStep, ManagementEnd, ManagementFunction, ManagementOutcome, NexusKey, Reply, Step, TaskKey,
};
use crate::{
    CopyVolume, IncomingCommand, InquiryProduct, LunEntry, NexusSpec, Server, TargetPort, TaskAttribute,
    UnitSpec,
};

/// What a command brought.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) status: Status,
    pub(super) sense: Option<Sense>,
    pub(super) data: Vec<u8>,
    pub(super) reply: Reply,
}

impl Outcome {
    /// Key and additional code: 0x05_2400 for instance; 0 without sense data.
    pub(super) fn code(&self) -> u32 {
        self.sense.map_or(0, |sense| u32::from(sense.key.0) << 16 | u32::from(sense.code.0))
    }
}

/// A nexus of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Host {
    pub(super) shard: usize,
    pub(super) key: NexusKey,
}

/// A task of a host.
pub(super) type Started = server_world::Started<TaskKey>;
/// How a task ended.
pub(super) type End = EndOf<Server>;

impl TestedServer for Server {
    type Command = TaskKey;
    type Reply = Reply;
    type OtherEnd = ManagementOutcome;
    type OtherStep = DeviceStep;
    type Message = Infallible;
    const ID_SPACE: IdSpace = IdSpace::Scsi;

    fn poll_step(&mut self) -> Option<Step> {
        self.poll_step()
    }
    fn requester_of(&self, command: TaskKey) -> Requester {
        self.nexus(command.nexus).nexus.clone()
    }
    fn handle_data(&mut self, cx: &mut Cx<'_>, command: TaskKey, at: u32, data: Sg) {
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
    /// What copies may name besides the units of their nexus.
    pub(super) copy_volumes: Vec<CopyVolume>,
    /// While set, volumes get UUIDs from which the short name of volume 0 is folded too.
    pub(super) named_alike: bool,
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

    fn run_other_step(&mut self, shard: usize, step: DeviceStep) {
        match step {
            DeviceStep::ManagementEnd(ManagementEnd { task, outcome }) => {
                self.finish(shard, task, End::Other(outcome))
            }
            DeviceStep::FindCopyVolumes(task) => {
                let volumes = self.copy_volumes.clone();
                self.cores[shard].server.handle_copy_volumes(task, volumes);
            }
        }
    }

    fn await_memory(&mut self, _: Started, _: MemoryClass, _: u32) {
        unreachable!("its answers need no memory of the pool")
    }

    fn deliver_to_server(&mut self, _: usize, message: Infallible) {
        match message {}
    }
}

/// A 16 MiB thin volume of 512-byte blocks on 4 KiB physical ones, on one shard, and a host on it
/// as LUN 0 that has been told of its power on.
pub(super) fn disk() -> (World, Host) {
    let mut world = World::new(1);
    world.add(32768, |_| {});
    let host = world.host(0, "iqn.host-a", &[0]);
    (world, host)
}

impl World {
    pub(super) fn new(shards: u16) -> World {
        World { parts: WorldParts::new(shards, Server::new), copy_volumes: Vec::new(), named_alike: false }
    }

    pub(super) fn add(&mut self, blocks: u64, alter: impl Fn(&mut Geometry)) -> VolumeId {
        self.add_with(blocks, false, alter)
    }

    pub(super) fn add_with(
        &mut self,
        blocks: u64,
        removable: bool,
        alter: impl Fn(&mut Geometry),
    ) -> VolumeId {
        let id = self.next_volume();
        let mut uuid = uuid(id.0 as u8);
        if self.named_alike {
            uuid[7] ^= uuid[15];
        }
        let uuid = Uuid(uuid);
        let facts = VolumeFacts { removable, revision: "1".into(), ..VolumeFacts::new(id, "v", uuid) };
        self.add_volume(facts, (blocks, 512), alter, |server, shared, view| {
            let spec = UnitSpec {
                volume: id,
                uuid,
                oui: None,
                removable,
                rpm: 0,
                task_aborted_status: true,
                shared,
            };
            server.add_unit(spec, view);
        })
    }

    /// A host on port 1 that reaches these volumes by LUNs of the same number, its power on told.
    pub(super) fn host(&mut self, shard: usize, name: &str, volumes: &[u32]) -> Host {
        let host = self.fresh_host(shard, name, 1, volumes);
        for &lun in volumes {
            assert_eq!(self.command_on(host, lun as u16, &[0; 6], &[], 0).code(), 0x06_2900);
        }
        host
    }

    pub(super) fn fresh_host(&mut self, shard: usize, name: &str, port: u16, volumes: &[u32]) -> Host {
        let spec = World::nexus_spec(name, port, volumes);
        Host { shard, key: self.cores[shard].server.open_nexus(spec) }
    }

    pub(super) fn nexus_spec(name: &str, port: u16, volumes: &[u32]) -> NexusSpec {
        let entry = |volume: &u32| LunEntry {
            lun: *volume as u16,
            volume: VolumeId((*volume).into()),
            read_only: false,
        };
        let isid = [0x80, 0, 0, 0, 0, 1];
        let identity = Identity::Initiator { name: name.into(), isid, port: PortId(port) };
        NexusSpec {
            nexus: Requester { identity: Arc::new(identity), port: PortId(port), read_only: false },
            target: "iqn.target".into(),
            portal_group: port,
            ports: [1, 2].map(|port| TargetPort { port: PortId(port), portal_group: port }).into(),
            luns: volumes.iter().map(entry).collect(),
            product: Arc::new(InquiryProduct {
                vendor: "BLOCKWIR".into(),
                product: "Volume".into(),
                revision: "1.0".into(),
            }),
            explicit_alua: true,
        }
    }

    pub(super) fn server(&mut self, host: Host) -> &mut Server {
        &mut self.cores[host.shard].server
    }

    /// Closes a nexus whose tasks have ended, as a transport does: its tasks are aborted first.
    pub(super) fn close(&mut self, host: Host) {
        let identity = self.server(host).nexus(host.key).nexus.identity.clone();
        let luns = self.server(host).nexus(host.key).luns.clone();
        let live: Vec<Started> = self
            .transfers
            .iter()
            .filter(|(task, transfer)| {
                task.shard == host.shard && task.key.nexus == host.key && transfer.end.is_none()
            })
            .map(|(task, _)| *task)
            .collect();
        for task in live {
            self.server(host).abort_command(task.key);
        }
        self.run();
        self.server(host).close_nexus(host.key);
        for entry in luns {
            self.request(entry.volume, VolumeRequest::NexusLost(identity.clone()));
        }
    }

    /// Asks as the control plane does, and runs until that is done.
    pub(super) fn request(&mut self, volume: VolumeId, request: VolumeRequest) {
        assert_eq!(ServerWorld::request(self, volume, request), Ok(()));
    }

    /// Starts a command on LUN 0.
    pub(super) fn start(&mut self, host: Host, cdb: &[u8], out: &[u8], data_in: u32) -> Started {
        self.start_as(host, &[0; 8], TaskAttribute::SIMPLE, cdb, out, data_in)
    }

    pub(super) fn start_as(
        &mut self,
        host: Host,
        lun: &[u8; 8],
        attr: TaskAttribute,
        cdb: &[u8],
        out: &[u8],
        data_in: u32,
    ) -> Started {
        let key = TaskKey { nexus: host.key, tag: self.next_tag() };
        let started = self.enter(host.shard, key, out);
        let arrived = IncomingCommand { lun: *lun, cdb, attr, data_in, data_out: out.len() as u32 };
        let (core, mut cx) = self.parts.core(host.shard);
        core.server.start_command(&mut cx, key, arrived);
        self.run_steps(host.shard);
        started
    }

    /// Starts a task management function.
    pub(super) fn manage(&mut self, host: Host, what: ManagementFunction) -> Started {
        let key = TaskKey { nexus: host.key, tag: self.next_tag() };
        let started = self.enter(host.shard, key, &[]);
        self.cores[host.shard].server.start_management(key, what);
        self.run_steps(host.shard);
        started
    }

    /// Runs a task management function to its end.
    pub(super) fn managed(&mut self, host: Host, what: ManagementFunction) -> ManagementOutcome {
        let started = self.manage(host, what);
        self.run();
        match self.end(started) {
            Some(End::Other(outcome)) => outcome,
            other => panic!("a function ended as {other:?}"),
        }
    }

    /// How a task ended, if it did.
    pub(super) fn end(&self, task: Started) -> Option<End> {
        self.end_of(task).copied()
    }

    pub(super) fn outcome(&self, task: Started) -> Outcome {
        let transfer = &self.transfers[&task];
        match &transfer.end {
            Some(End::Reply(reply)) => {
                let data = transfer.data.clone();
                Outcome { status: reply.status, sense: reply.sense, data, reply: *reply }
            }
            other => panic!("a command ended as {other:?}"),
        }
    }

    /// Runs a command on LUN 0 to its end.
    pub(super) fn command(&mut self, host: Host, cdb: &[u8], out: &[u8], data_in: u32) -> Outcome {
        self.command_on(host, 0, cdb, out, data_in)
    }

    pub(super) fn command_on(
        &mut self,
        host: Host,
        lun: u16,
        cdb: &[u8],
        out: &[u8],
        data_in: u32,
    ) -> Outcome {
        let field = [0, lun as u8, 0, 0, 0, 0, 0, 0];
        let started = self.start_as(host, &field, TaskAttribute::SIMPLE, cdb, out, data_in);
        self.run();
        self.outcome(started)
    }

    /// Runs a command that must end well, and gives its data.
    pub(super) fn good(&mut self, host: Host, cdb: &[u8], out: &[u8], data_in: u32) -> Vec<u8> {
        let outcome = self.command(host, cdb, out, data_in);
        assert_eq!((outcome.status, outcome.code()), (Status::GOOD, 0), "{cdb:02x?}");
        outcome.data
    }

    /// Runs a command that must be refused with this key and code.
    #[track_caller]
    pub(super) fn refused(&mut self, host: Host, cdb: &[u8], out: &[u8], data_in: u32, code: u32) {
        let outcome = self.command(host, cdb, out, data_in);
        assert_eq!(outcome.code(), code, "{cdb:02x?}: {outcome:x?}");
        assert_eq!(outcome.status, Status::CHECK_CONDITION);
    }

    #[track_caller]
    pub(super) fn conflicts(&mut self, host: Host, cdb: &[u8], out: &[u8], data_in: u32) {
        let outcome = self.command(host, cdb, out, data_in);
        assert_eq!(outcome.status, Status::RESERVATION_CONFLICT, "{cdb:02x?}: {outcome:x?}");
    }

    /// Blocks of LUN 0.
    pub(super) fn read(&mut self, host: Host, lba: u32, blocks: u16) -> Vec<u8> {
        self.good(host, &read_10(lba, blocks), &[], u32::from(blocks) * 512)
    }

    pub(super) fn write(&mut self, host: Host, lba: u32, data: &[u8]) {
        self.good(host, &write_10(lba, (data.len() / 512) as u16), data, 0);
    }

    /// Lets time pass until nothing waits for it any more.
    pub(super) fn run_out(&mut self) {
        loop {
            self.run();
            let gates = self.cores.iter().flat_map(|core| &core.gates);
            match gates.filter_map(Gate::poll_timeout).min() {
                Some(time) => self.now = time.max(self.now),
                None => return,
            }
        }
    }

    /// Bytes of the pool that are out.
    pub(super) fn lent(&self) -> usize {
        self.pool.usage().lent
    }
}

/// The UUID of a volume.
pub(super) fn uuid(volume: u8) -> [u8; 16] {
    let mut uuid = *b"\x01\x23\x45\x67\x89\xab\x4c\xde\x8f\x00\x11\x22\x33\x44\x55\x66";
    uuid[15] = volume;
    uuid
}

pub(super) fn read_10(lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = 0x28;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

pub(super) fn write_10(lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = read_10(lba, blocks);
    cdb[0] = 0x2a;
    cdb
}

/// A 16-byte CDB with LBA in bytes 2 to 9 and a length in bytes 10 to 13.
pub(super) fn cdb_16(opcode: u8, flags: u8, lba: u64, len: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (opcode, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&len.to_be_bytes());
    cdb
}

/// A block full of one byte.
pub(super) fn block(byte: u8) -> [u8; 512] {
    [byte; 512]
}
