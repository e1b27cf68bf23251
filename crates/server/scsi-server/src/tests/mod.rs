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

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Time};
use scsi::Status;
use scsi::sense::Sense;
use testkit::{FakeBackend, FakeControls};
use volume::{
    Ack, Gate, Geometry, Identity, PortId, RamBackend, RamDisk, Refusal, RequestId, Requester, ShardId,
    SharedGateState, Uuid, ViewUpdate, VolumeAnswer, VolumeFacts, VolumeId, VolumeOwner, VolumeRequest,
};

use crate::step::{
    DeviceStep, ManagementEnd, ManagementFunction, ManagementOutcome, NexusKey, Reply, Step, TaskKey,
};
use crate::{
    CopyVolume, IncomingCommand, InquiryProduct, LunEntry, NexusSpec, Server, TargetPort, TaskAttribute,
    UnitSpec,
};

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Reply(Reply),
    Retired,
    Managed(ManagementOutcome),
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Started {
    pub(super) shard: usize,
    pub(super) key: TaskKey,
}

#[derive(Default)]
struct Transfer {
    out: Vec<u8>,
    data: Vec<u8>,
    end: Option<End>,
}

enum Mail {
    VolumeRequest(VolumeId, ShardId, RequestId, VolumeRequest),
    Answer(VolumeAnswer),
    ViewUpdate(usize, VolumeId, Arc<ViewUpdate>),
    Ack(VolumeId, Ack),
}

struct Core {
    server: Server,
    gates: Vec<Gate>,
}

pub(super) struct World {
    /// The disk with the records is full.
    pub(super) stores_fail: bool,
    /// Every fence is late: what stands is answered as not fenced.
    pub(super) fences_late: bool,
    pub(super) pool: Pool,
    entropy: Entropy,
    pub(super) now: Time,
    cores: Vec<Core>,
    homes: Vec<VolumeOwner>,
    pub(super) shared: Vec<SharedGateState>,
    mail: VecDeque<Mail>,
    transfers: HashMap<Started, Transfer>,
    tag: u64,
    /// What is done to the disks, and what reached them.
    pub(super) disks: FakeControls,
    /// What copies may name besides the units of their nexus.
    pub(super) copy_volumes: Vec<CopyVolume>,
    /// While set, initiators send no data.
    pub(super) withhold: bool,
    /// While set, volumes get UUIDs from which the short name of volume 0 is folded too.
    pub(super) named_alike: bool,
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
        let core = |shard| Core { server: Server::new(ShardId(shard)), gates: Vec::new() };
        World {
            stores_fail: false,
            fences_late: false,
            pool: Pool::new(64 << 20),
            entropy: Entropy::new([7; 32]),
            now: Time(0),
            cores: (0..shards).map(core).collect(),
            homes: Vec::new(),
            shared: Vec::new(),
            mail: VecDeque::new(),
            transfers: HashMap::new(),
            tag: 0,
            disks: FakeControls::default(),
            copy_volumes: Vec::new(),
            withhold: false,
            named_alike: false,
        }
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
        let id = VolumeId(self.homes.len() as u64);
        let disk = Arc::new(RamDisk::new(blocks, 2 * blocks, 512, 4096));
        let mut geometry = disk.geometry();
        alter(&mut geometry);
        let mut uuid = uuid(id.0 as u8);
        if self.named_alike {
            uuid[7] ^= uuid[15];
        }
        let uuid = Uuid(uuid);
        let facts = VolumeFacts { removable, revision: "1".into(), ..VolumeFacts::new(id, "v", uuid) };
        let shards = self.cores.len() as u16;
        let shared = SharedGateState::new(shards);
        let home = VolumeOwner::restore(facts, geometry, shards, false, None).unwrap();
        for (at, core) in self.cores.iter_mut().enumerate() {
            let backend = FakeBackend::new(RamBackend::new(disk.clone()), geometry, self.disks.clone());
            let view = home.view().clone();
            let gate = Gate::new(ShardId(at as u16), shared.clone(), view.clone(), Box::new(backend));
            core.gates.push(gate);
            let spec = UnitSpec {
                volume: id,
                uuid,
                oui: None,
                removable,
                rpm: 0,
                task_aborted_status: true,
                shared: shared.clone(),
            };
            core.server.add_unit(spec, view);
        }
        self.homes.push(home);
        self.shared.push(shared);
        id
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

    /// Asks as the control plane does, and runs until all is quiet.
    pub(super) fn request(&mut self, volume: VolumeId, request: VolumeRequest) {
        self.mail.push_back(Mail::VolumeRequest(volume, ShardId(0), RequestId(u64::MAX), request));
        self.run();
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
        self.tag += 1;
        // A dense index, and a generation above it.
        let tag = (self.tag << 32) | (self.tag % 256);
        let started = Started { shard: host.shard, key: TaskKey { nexus: host.key, tag } };
        self.transfers.insert(started, Transfer { out: out.to_vec(), ..Transfer::default() });
        let arrived = IncomingCommand { lun: *lun, cdb, attr, data_in, data_out: out.len() as u32 };
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        self.cores[host.shard].server.start_command(&mut cx, started.key, arrived);
        self.steps(host.shard);
        started
    }

    /// Starts a task management function.
    pub(super) fn manage(&mut self, host: Host, what: ManagementFunction) -> Started {
        self.tag += 1;
        let tag = (self.tag << 32) | (self.tag % 256);
        let started = Started { shard: host.shard, key: TaskKey { nexus: host.key, tag } };
        self.transfers.insert(started, Transfer::default());
        self.cores[host.shard].server.start_management(started.key, what);
        self.steps(host.shard);
        started
    }

    /// Runs a task management function to its end.
    pub(super) fn managed(&mut self, host: Host, what: ManagementFunction) -> ManagementOutcome {
        let started = self.manage(host, what);
        self.run();
        match self.end(started) {
            Some(End::Managed(outcome)) => outcome,
            other => panic!("a function ended as {other:?}"),
        }
    }

    /// How a task ended, if it did.
    pub(super) fn end(&self, task: Started) -> Option<End> {
        self.transfers[&task].end.clone()
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

    /// Sends the data that was withheld of a task that waits for all of it, and runs.
    pub(super) fn feed(&mut self, task: Started) {
        let bytes = self.transfers[&task].out.clone();
        let mut memory = self.pool.take_sg(MemoryClass::Solicited, bytes.len()).unwrap();
        memory.copy_from(0, &bytes);
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        self.cores[task.shard].server.handle_data(&mut cx, task.key, 0, memory.freeze());
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
            Step::Receive { command: task, at, len, .. } => {
                assert!(len > 0);
                if self.withhold {
                    return;
                }
                let transfer = &self.transfers[&Started { shard, key: task }];
                let bytes = &transfer.out[at as usize..(at + len) as usize];
                let mut memory = self.pool.take_sg(MemoryClass::Solicited, bytes.len()).unwrap();
                memory.copy_from(0, bytes);
                core.server.handle_data(&mut cx, task, at, memory.freeze());
            }
            Step::Send { command: task, at, data } => {
                let transfer = self.transfers.get_mut(&Started { shard, key: task }).unwrap();
                assert!(transfer.end.is_none(), "data after the end");
                let end = at as usize + data.len();
                transfer.data.resize(end.max(transfer.data.len()), 0);
                data.copy_to(0, &mut transfer.data[at as usize..end]);
            }
            Step::Respond { command: task, reply } => self.ended(shard, task, End::Reply(reply)),
            Step::Retire { command: task } => self.ended(shard, task, End::Retired),
            Step::Other(DeviceStep::ManagementEnd(ManagementEnd { task, outcome })) => {
                self.ended(shard, task, End::Managed(outcome))
            }
            Step::Other(DeviceStep::FindCopyVolumes(task)) => {
                let volumes = self.copy_volumes.clone();
                self.cores[shard].server.handle_copy_volumes(task, volumes);
            }
            Step::Io { command: task, volume, mut io, want, .. } => {
                if want > 0 {
                    io.payload =
                        Payload::In(self.pool.take_sg(MemoryClass::Solicited, want as usize).unwrap());
                }
                let who = core.server.nexus(task.nexus).nexus.clone();
                core.gates[volume.0 as usize].submit(&mut cx, &who, io);
            }
            Step::AwaitMemory { .. } => unreachable!("its answers need no memory of the pool"),
            Step::Cancel { volume, io, .. } => core.gates[volume.0 as usize].cancel(io),
            Step::VolumeRequest { volume, id, request } => {
                self.mail.push_back(Mail::VolumeRequest(volume, ShardId(shard as u16), id, request));
            }
        }
    }

    fn ended(&mut self, shard: usize, task: TaskKey, end: End) {
        let transfer =
            self.transfers.get_mut(&Started { shard, key: task }).expect("a task that was started");
        assert!(transfer.end.is_none(), "{task:?} ends twice: {:?} and {end:?}", transfer.end);
        transfer.end = Some(end);
    }

    /// Runs everything until nothing moves but, perhaps, time.
    pub(super) fn run(&mut self) {
        for _ in 0..1_000_000 {
            if self.turn() {
                continue;
            }
            return;
        }
        panic!("the world does not come to rest");
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

    fn turn(&mut self) -> bool {
        let mut moved = false;
        for shard in 0..self.cores.len() {
            self.steps(shard);
            for at in 0..self.cores[shard].gates.len() {
                moved |= self.run_gate(shard, at);
            }
        }
        if let Some(mail) = self.mail.pop_front() {
            self.deliver(mail);
            moved = true;
        }
        moved
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
        if let Some(ack) = gate.poll_ack() {
            self.mail.push_back(Mail::Ack(VolumeId(at as u64), ack));
            moved = true;
        }
        moved
    }

    fn deliver(&mut self, mail: Mail) {
        match mail {
            Mail::VolumeRequest(volume, from, id, request) => {
                self.homes[volume.0 as usize].handle_request(self.now, from, id, request);
                self.run_home(volume);
            }
            Mail::Ack(volume, ack) => {
                self.homes[volume.0 as usize].handle_ack(self.now, ack);
                self.run_home(volume);
            }
            Mail::Answer(VolumeAnswer { id: RequestId(u64::MAX), result, .. }) => assert_eq!(result, Ok(())),
            Mail::Answer(answer) => {
                let shard = usize::from(answer.to.0);
                let late = self.fences_late && answer.result.is_ok();
                let result = if late { Err(Refusal::NotFenced) } else { answer.result };
                let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
                self.cores[shard].server.handle_volume_answer(&mut cx, answer.id, result);
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
            home.handle_stored(self.now, store.ticket, !self.stores_fail);
        }
        while let Some(update) = home.poll_view_update() {
            let update = Arc::new(update);
            for shard in 0..self.cores.len() {
                self.mail.push_back(Mail::ViewUpdate(shard, volume, update.clone()));
            }
        }
        while let Some(answer) = home.poll_answer() {
            self.mail.push_back(Mail::Answer(answer));
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
