//! Two shards with a server each, gates on RAM disks, homes, and one controller with its queues. Nothing
//! moves without an explicit call, so that everything can overlap.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Time};
use nvme::{Direction, HostId, Nqn, Sqe};
use nvme_server::{
    CommandKey, ControllerLimits, ControllerSpec, ControllerStep, FormatFailure, HostIdentity,
    IoQueueConnect, NamespaceEntry, QueueKey, QueueMessage, Server, Step, Subsystem, VolumeInfo,
};
use volume::{
    Ack, Failure, Fault, Gate, Identity, Io, IoCompletion, PortId, RamBackend, RamDisk, RequestId, Requester,
    ShardId, SharedGateState, Uuid, ViewUpdate, VolumeAnswer, VolumeFacts, VolumeId, VolumeOwner,
    VolumeRequest,
};

const SHARDS: usize = 2;
const VOLUMES: u32 = 2;
pub const VOLUME_BLOCKS: u64 = 64;
/// Entries of every queue: so many commands are out at most, as a transport sees to.
const QUEUE_ENTRIES: usize = 32;
const CNTLID: u16 = 2;

enum HarnessMessage {
    VolumeRequest(VolumeId, ShardId, RequestId, VolumeRequest),
    Answer(VolumeId, VolumeAnswer),
    ViewUpdate(usize, VolumeId, Arc<ViewUpdate>),
    Ack(VolumeId, Ack),
    Queue(ShardId, QueueMessage),
}

struct HarnessShard {
    server: Server,
    gates: Vec<Gate>,
}

/// A queue that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenQueue {
    shard: usize,
    key: QueueKey,
    qid: u16,
}

type CommandName = (usize, CommandKey);

/// What a fuzz run executed, so that a corpus test can require that it got far enough.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunCounts {
    pub commands: u32,
    pub good: u32,
    pub retired: u32,
    pub joined: u32,
}

pub struct Harness {
    pool: Pool,
    entropy: Entropy,
    now: Time,
    cores: Vec<HarnessShard>,
    homes: Vec<VolumeOwner>,
    mail: VecDeque<HarnessMessage>,
    queues: Vec<OpenQueue>,
    alive: bool,
    /// Commands that have not ended, with the data that their host has for them.
    live: HashMap<CommandName, Vec<u8>>,
    /// Data that was asked for, and operations that wait for memory.
    receives: Vec<(CommandName, u32)>,
    ios: VecDeque<(usize, CommandKey, VolumeId, Io, u32)>,
    tag: u64,
    pub reached: RunCounts,
}

fn subsystem() -> Arc<Subsystem> {
    Arc::new(Subsystem {
        nqn: Nqn::parse("nqn.2026-11.io.blockwire:fuzz").unwrap(),
        serial: *b"0123456789abcdef0123",
        model: [b' '; 40],
        firmware: [b' '; 8],
        nsid_max: 8,
        ana_group_max: 8,
    })
}

fn host_identity() -> HostIdentity {
    HostIdentity {
        nqn: Nqn::parse("nqn.2026-11.io.blockwire:host").unwrap(),
        id: HostId::new([7; 16]).unwrap(),
    }
}

pub fn namespace_entry(volume: u32, read_only: bool) -> NamespaceEntry {
    NamespaceEntry { nsid: volume + 1, volume: VolumeId(volume.into()), read_only, ana_group: 1 }
}

impl Harness {
    pub fn new() -> Harness {
        let core = |shard| HarnessShard { server: Server::new(ShardId(shard)), gates: Vec::new() };
        let mut harness = Harness {
            pool: Pool::new(64 << 20),
            entropy: Entropy::new([3; 32]),
            now: Time(0),
            cores: (0..SHARDS as u16).map(core).collect(),
            homes: Vec::new(),
            mail: VecDeque::new(),
            queues: Vec::new(),
            alive: false,
            live: HashMap::new(),
            receives: Vec::new(),
            ios: VecDeque::new(),
            tag: 0,
            reached: RunCounts::default(),
        };
        (0..VOLUMES).for_each(|volume| harness.add_volume(VolumeId(volume.into())));
        harness.open_controller();
        harness
    }

    fn add_volume(&mut self, id: VolumeId) {
        let disk = Arc::new(RamDisk::new(VOLUME_BLOCKS, 2 * VOLUME_BLOCKS, 512, 4096));
        let facts =
            VolumeFacts { revision: "1".into(), ..VolumeFacts::new(id, "v", Uuid([id.0 as u8 + 1; 16])) };
        let shared = SharedGateState::new(SHARDS as u16);
        let home = VolumeOwner::restore(facts.clone(), disk.geometry(), SHARDS as u16, false, None).unwrap();
        for (at, core) in self.cores.iter_mut().enumerate() {
            let (view, backend) = (home.view().clone(), Box::new(RamBackend::new(disk.clone())));
            core.gates.push(Gate::new(ShardId(at as u16), shared.clone(), view.clone(), backend));
            core.server
                .add_volume(VolumeInfo { facts: Arc::new(facts.clone()), shared: shared.clone() }, view);
        }
        self.homes.push(home);
    }

    fn with_shard<T>(&mut self, shard: usize, act: impl FnOnce(&mut HarnessShard, &mut Cx<'_>) -> T) -> T {
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        act(&mut self.cores[shard], &mut cx)
    }

    /// Opens the controller, unless it is there.
    pub fn open_controller(&mut self) {
        if self.alive {
            return;
        }
        let spec = ControllerSpec {
            cntlid: CNTLID,
            subsystem: subsystem(),
            host: host_identity(),
            nexus: Requester {
                identity: Arc::new(Identity::Host([7; 16])),
                port: PortId(1),
                read_only: false,
            },
            keep_alive: Default::default(),
            kato_ms: 5000,
            entries: QUEUE_ENTRIES as u32,
            flow_control: false,
            individual_deletion: false,
            namespaces: (0..VOLUMES).map(|volume| namespace_entry(volume, false)).collect(),
            limits: ControllerLimits {
                queues: 4,
                entries: 128,
                transfer: nvme::TransferMax::MAX,
                in_capsule: 8192,
            },
            discovery: None,
            auth: None,
        };
        let key = self.with_shard(0, |core, cx| core.server.open_controller(cx, spec));
        self.alive = true;
        self.queues.push(OpenQueue { shard: 0, key, qid: 0 });
        self.run_steps();
    }

    /// Connects an I/O queue, if its controller lets it in.
    pub fn connect_io_queue(&mut self, qid: u16) {
        let shard = usize::from(qid) % SHARDS;
        let join = IoQueueConnect {
            qid,
            entries: QUEUE_ENTRIES as u32,
            flow_control: false,
            subsystem: subsystem().nqn.clone(),
            host: host_identity(),
            shard: ShardId(shard as u16),
        };
        let Ok(spec) = self.cores[0].server.admit_io_queue(CNTLID, &join) else { return };
        let key = self.with_shard(shard, |core, cx| core.server.open_queue(cx, spec));
        self.queues.push(OpenQueue { shard, key, qid });
        self.reached.joined += 1;
        self.run_steps();
    }

    /// Starts a command on an admin queue, or on an I/O queue, if there is one with room.
    pub fn start_command(&mut self, admin: bool, which: usize, sqe: &Sqe, mut out: Vec<u8>) {
        let fit: Vec<OpenQueue> =
            self.queues.iter().filter(|queue| (queue.qid == 0) == admin).copied().collect();
        let Some(queue) = fit.get(which % fit.len().max(1)) else { return };
        let of = |name: &&CommandName| name.0 == queue.shard && name.1.queue == queue.key;
        if self.live.keys().filter(of).count() >= QUEUE_ENTRIES {
            return;
        }
        self.tag += 1;
        let key = CommandKey { queue: queue.key, tag: (self.tag << 32) | (self.tag % 1024) };
        let len = if sqe.direction() == Direction::ToController { sqe.dptr.length.get() } else { 0 };
        out.resize(out.len().max(len.min(1 << 20) as usize), 0x5a);
        self.live.insert((queue.shard, key), out);
        self.reached.commands += 1;
        self.with_shard(queue.shard, |core, cx| core.server.start_command(cx, key, sqe, len));
        self.run_steps();
    }

    /// Sends the data that was asked for longest.
    pub fn send_oldest_data(&mut self) {
        if self.receives.is_empty() {
            return;
        }
        let (name, len) = self.receives.remove(0);
        let mut memory = self.pool.take_sg(MemoryClass::Solicited, len as usize).expect("memory for all");
        memory.copy_from(0, &self.live[&name][..len as usize]);
        self.with_shard(name.0, |core, cx| core.server.handle_data(cx, name.1, 0, memory.freeze()));
        self.run_steps();
    }

    /// The transport wants a command to end.
    pub fn abort_command(&mut self, which: usize) {
        let mut names: Vec<CommandName> = self.live.keys().copied().collect();
        names.sort_unstable();
        if let Some(&(shard, key)) = names.get(which % names.len().max(1)) {
            self.cores[shard].server.abort_command(key);
            self.run_steps();
        }
    }

    /// A link is lost.
    pub fn close_link(&mut self, which: usize) {
        if self.queues.is_empty() {
            return;
        }
        let queue = self.queues.remove(which % self.queues.len());
        self.with_shard(queue.shard, |core, cx| core.server.close_queue(cx, queue.key));
        self.run_steps();
    }

    pub fn send_volume_request(&mut self, volume: u32, request: VolumeRequest) {
        self.mail.push_back(HarnessMessage::VolumeRequest(
            VolumeId((volume % VOLUMES).into()),
            ShardId(0),
            RequestId(1),
            request,
        ));
    }

    pub fn change_namespaces(&mut self, namespaces: Vec<NamespaceEntry>) {
        self.cores[0].server.change_namespaces(CNTLID, namespaces);
        self.run_steps();
    }

    pub fn advance_time(&mut self, time_ms: u64) {
        self.now.0 += time_ms * 1_000_000;
        for shard in 0..SHARDS {
            if self.cores[shard].server.poll_timeout().is_some_and(|due| due <= self.now) {
                self.with_shard(shard, |core, cx| core.server.handle_timeout(cx));
            }
        }
        self.run_steps();
    }

    fn run_steps(&mut self) {
        for shard in 0..SHARDS {
            while let Some(step) = self.cores[shard].server.poll_step() {
                self.run_step(shard, step);
            }
        }
    }

    fn run_step(&mut self, shard: usize, step: Step) {
        match step {
            Step::Receive { command, at, len, .. } => {
                assert!(at == 0 && len > 0 && self.live[&(shard, command)].len() >= len as usize);
                self.receives.push(((shard, command), len));
            }
            // There is memory for all, at once.
            Step::AwaitMemory { command, len, .. } => {
                assert!(len > 0, "room for nothing");
                if self.live.contains_key(&(shard, command)) {
                    self.with_shard(shard, |core, cx| core.server.retry_answer(cx, command));
                }
            }
            Step::Send { command, .. } => {
                assert!(self.live.contains_key(&(shard, command)), "data after the end")
            }
            Step::Respond { command, reply: completion } => {
                self.note_command_ended((shard, command));
                self.reached.good += u32::from(completion.status.is_success());
            }
            Step::Retire { command } => {
                self.note_command_ended((shard, command));
                self.reached.retired += 1;
            }
            Step::Io { command, volume, io, want, .. } => {
                self.ios.push_back((shard, command, volume, io, want))
            }
            Step::Cancel { volume, io, .. } => {
                match self.ios.iter().position(|waits| waits.0 == shard && waits.3.id == io) {
                    Some(at) => {
                        self.ios.remove(at);
                        let result = Err(Failure::Failed(Fault::Aborted));
                        self.with_shard(shard, |core, cx| {
                            core.server
                                .handle_io_done(cx, IoCompletion { id: io, result, payload: Payload::None })
                        });
                    }
                    None => self.cores[shard].gates[volume.0 as usize].cancel(io),
                }
            }
            Step::VolumeRequest { volume, id, request } => {
                self.mail.push_back(HarnessMessage::VolumeRequest(volume, ShardId(shard as u16), id, request))
            }
            Step::Other(ControllerStep::ListControllers { id, of }) => {
                let here: Vec<Vec<u16>> =
                    self.cores.iter().map(|core| core.server.local_controllers(&of)).collect();
                let shards = here.len() as u16;
                here.iter().for_each(|here| {
                    self.with_shard(shard, |core, cx| {
                        core.server.handle_shard_controllers(cx, id, shards, here)
                    })
                });
            }
            Step::Other(ControllerStep::ResetController { id, request }) => {
                for asked in 0..self.cores.len() {
                    self.with_shard(asked, |core, _| {
                        core.server.reset_controller((ShardId(shard as u16), id), &request)
                    });
                }
            }
            Step::Other(ControllerStep::FormatVolume { id, .. }) => {
                self.with_shard(shard, |core, cx| {
                    core.server.handle_format_end(cx, id, Err(FormatFailure::Failed))
                });
            }
            Step::Other(ControllerStep::AnswerReset { to, id, answer }) => {
                let shards = self.cores.len() as u16;
                self.with_shard(usize::from(to.0), |core, cx| {
                    core.server.handle_reset_answer(cx, id, shards, answer)
                });
            }
            Step::Other(ControllerStep::QueueMessage { to, message }) => {
                self.mail.push_back(HarnessMessage::Queue(to, message))
            }
            Step::Other(ControllerStep::EndQueue { queue }) => {
                self.queues.retain(|known| (known.shard, known.key) != (shard, queue));
                self.with_shard(shard, |core, cx| core.server.close_queue(cx, queue));
            }
            Step::Other(ControllerStep::ControllerGone { cntlid, .. }) => {
                assert!(cntlid == CNTLID && self.alive, "a controller goes once");
                self.alive = false;
            }
            Step::Other(ControllerStep::Compute { .. })
            | Step::Other(ControllerStep::CancelCompute { .. })
            | Step::Other(ControllerStep::HostAuthenticated { .. })
            | Step::Other(ControllerStep::PskGenerated { .. })
            | Step::Other(ControllerStep::AuthenticationFailed { .. }) => {
                unreachable!("nobody authenticates")
            }
        }
    }

    fn note_command_ended(&mut self, name: CommandName) {
        assert!(self.live.remove(&name).is_some(), "{name:?} ends once");
        self.receives.retain(|(waits, _)| *waits != name);
    }

    /// Moves one thing on. False: nothing was to be moved.
    pub fn advance_one(&mut self) -> bool {
        if let Some((shard, command, volume, mut io, want)) = self.ios.pop_front() {
            if want > 0 {
                io.payload = Payload::In(
                    self.pool.take_sg(MemoryClass::Solicited, want as usize).expect("memory for all"),
                );
            }
            let who = self.cores[shard].server.nexus(command.queue).clone();
            self.with_shard(shard, |core, cx| core.gates[volume.0 as usize].submit(cx, &who, io));
            return true;
        }
        let mut moved = false;
        for shard in 0..SHARDS {
            for at in 0..VOLUMES as usize {
                moved |= self.run_gate(shard, at);
            }
        }
        match self.mail.pop_front() {
            Some(mail) => self.deliver_message(mail),
            None => return moved,
        }
        true
    }

    fn run_gate(&mut self, shard: usize, at: usize) -> bool {
        let mut moved = self.with_shard(shard, |core, cx| core.gates[at].resume(cx));
        let volume = VolumeId(at as u64);
        while let Some(done) = self.cores[shard].gates[at].poll_done() {
            self.with_shard(shard, |core, cx| core.server.handle_io_done(cx, done));
            self.run_steps();
            moved = true;
        }
        while let Some(woken) = self.cores[shard].gates[at].poll_shard_to_wake() {
            self.cores[usize::from(woken.0)].gates[at].handle_wake();
            moved = true;
        }
        let gate = &mut self.cores[shard].gates[at];
        while let Some((id, request)) = gate.poll_request() {
            self.mail.push_back(HarnessMessage::VolumeRequest(volume, ShardId(shard as u16), id, request));
            moved = true;
        }
        if let Some(ack) = gate.poll_ack() {
            self.mail.push_back(HarnessMessage::Ack(volume, ack));
            moved = true;
        }
        if gate.poll_timeout().is_some_and(|due| due <= self.now) {
            moved = true;
        }
        moved
    }

    fn deliver_message(&mut self, mail: HarnessMessage) {
        match mail {
            HarnessMessage::Queue(to, message) => {
                self.with_shard(to.0.into(), |core, cx| core.server.handle_queue_message(cx, message))
            }
            HarnessMessage::VolumeRequest(volume, from, id, request) => {
                self.homes[volume.0 as usize].handle_request(self.now, from, id, request);
                self.run_volume_owner(volume);
            }
            HarnessMessage::Ack(volume, ack) => {
                self.homes[volume.0 as usize].handle_ack(self.now, ack);
                self.run_volume_owner(volume);
            }
            HarnessMessage::Answer(volume, answer) if answer.id.id_space() == volume::IdSpace::Gate => {
                self.with_shard(answer.to.0.into(), |core, cx| {
                    core.gates[volume.0 as usize].handle_answer(cx, answer.id, answer.result);
                });
            }
            HarnessMessage::Answer(_, answer) if answer.id.0 >> 63 == 0 => {}
            HarnessMessage::Answer(_, answer) => {
                self.with_shard(answer.to.0.into(), |core, cx| {
                    core.server.handle_volume_answer(cx, answer.id, answer.result)
                });
            }
            HarnessMessage::ViewUpdate(shard, volume, update) => {
                self.cores[shard].server.update_view(volume, &update);
                self.run_steps();
                self.cores[shard].gates[volume.0 as usize].update_view(&update);
            }
        }
        self.run_steps();
    }

    fn run_volume_owner(&mut self, volume: VolumeId) {
        let home = &mut self.homes[volume.0 as usize];
        while let Some(store) = home.poll_store_op() {
            home.handle_stored(self.now, store.ticket, true);
        }
        while let Some(update) = home.poll_view_update() {
            let update = Arc::new(update);
            self.mail
                .extend((0..SHARDS).map(|shard| HarnessMessage::ViewUpdate(shard, volume, update.clone())));
        }
        while let Some(answer) = home.poll_answer() {
            self.mail.push_back(HarnessMessage::Answer(volume, answer));
        }
    }

    /// Runs until nothing moves.
    pub fn run_until_idle(&mut self) {
        for _ in 0..100_000 {
            if !self.advance_one() {
                if self.receives.is_empty() {
                    return;
                }
                self.send_oldest_data();
            }
            // What waits for other cores' writes looks again after some microseconds.
            self.now.0 += 1000;
        }
        panic!("it does not come to rest");
    }

    /// All links are lost: every command has ended once, the controller is gone, all memory is back.
    pub fn finish_and_check(mut self) -> RunCounts {
        self.run_until_idle();
        let admin = self.queues.iter().filter(|queue| queue.qid == 0).count();
        assert_eq!(admin > 0, self.alive, "a controller lives as long as its admin queue");
        while !self.queues.is_empty() {
            self.close_link(0);
        }
        self.run_until_idle();
        assert!(self.live.is_empty(), "every command ends: {:?}", self.live.keys());
        assert!(!self.alive, "the controller is gone");
        for volume in 0..VOLUMES {
            self.cores.iter_mut().for_each(|core| core.server.remove_volume(VolumeId(volume.into())));
        }
        assert_eq!(self.pool.usage().lent, 0, "all memory came back");
        self.reached
    }
}
