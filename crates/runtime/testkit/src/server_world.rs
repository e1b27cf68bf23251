//! A command server in a test world: gates on RAM disks, homes of volumes, and several shards whose messages are
//! delivered in order, without transport.
//!
//! A crate's tests say what their server is ([`TestedServer`]) and what of its steps is its own ([`ServerWorld`]).

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Sg, Time};
use volume::{
    Ack, CommandStep, Gate, Geometry, IdSpace, IoCompletion, Op, RamBackend, RamDisk, Refusal, RequestId,
    Requester, ShardId, SharedGateState, View, ViewUpdate, VolumeAnswer, VolumeFacts, VolumeId, VolumeOwner,
    VolumeRequest,
};

use crate::{FakeBackend, FakeControls};

/// Turns after which a world that still moves is taken for one that always will.
const TURNS_MAX: u32 = 1_000_000;
/// What a test asks of a volume's home bears this number.
const TEST_REQUEST: RequestId = RequestId::in_space(IdSpace::Shard, 7);

/// A command server as a world drives it.
pub trait TestedServer {
    type Command: Copy + Debug + Eq + Hash;
    type Reply: Debug;
    /// How a command ends that is no ordinary one.
    type OtherEnd: Debug;
    /// A step that only this server has.
    type OtherStep;
    /// What servers of several shards tell each other.
    type Message;
    const ID_SPACE: IdSpace;

    fn poll_step(&mut self) -> Option<CommandStep<Self::Command, Self::Reply, Self::OtherStep>>;
    fn requester_of(&self, command: Self::Command) -> Requester;
    fn handle_data(&mut self, cx: &mut Cx<'_>, command: Self::Command, at: u32, data: Sg);
    fn handle_io_done(&mut self, cx: &mut Cx<'_>, done: IoCompletion);
    fn handle_volume_answer(&mut self, cx: &mut Cx<'_>, id: RequestId, result: Result<(), Refusal>);
    fn update_view(&mut self, volume: VolumeId, update: &ViewUpdate);
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEnd<R, O> {
    Reply(R),
    Retired,
    Other(O),
}

/// The end of a command of this server.
pub type EndOf<S> = CommandEnd<<S as TestedServer>::Reply, <S as TestedServer>::OtherEnd>;

/// A step of this server.
pub type StepOf<S> =
    CommandStep<<S as TestedServer>::Command, <S as TestedServer>::Reply, <S as TestedServer>::OtherStep>;

/// A command that was started on a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Started<C> {
    pub shard: usize,
    pub key: C,
}

/// The payload of a command in both directions, and its end.
pub struct Transfer<S: TestedServer> {
    pub out: Vec<u8>,
    pub data: Vec<u8>,
    /// Its data was asked for.
    pub solicited: bool,
    pub end: Option<EndOf<S>>,
}

/// What is between shards.
pub enum ShardMessage<M> {
    VolumeRequest(VolumeId, ShardId, RequestId, VolumeRequest),
    Answer(VolumeId, VolumeAnswer),
    ViewUpdate(usize, VolumeId, Arc<ViewUpdate>),
    Ack(VolumeId, Ack),
    ToServer(ShardId, M),
}

/// A shard: its server, and a gate for each volume.
pub struct Core<S> {
    pub server: S,
    pub gates: Vec<Gate>,
}

/// All that a world consists of.
pub struct WorldParts<S: TestedServer> {
    pub pool: Pool,
    pub entropy: Entropy,
    pub now: Time,
    pub cores: Vec<Core<S>>,
    pub homes: Vec<VolumeOwner>,
    pub shared: Vec<SharedGateState>,
    pub messages: VecDeque<ShardMessage<S::Message>>,
    pub transfers: HashMap<Started<S::Command>, Transfer<S>>,
    tag: u64,
    /// What is done to the disks, and what reached them.
    pub disks: FakeControls,
    /// While set, hosts send no data.
    pub withhold: bool,
    /// While set, messages between shards wait.
    pub hold_messages: bool,
    /// The disk with the records is full.
    pub stores_fail: bool,
    /// Every fence is late: what stands is answered as not fenced.
    pub fences_late: bool,
    /// Answers to what the test asked.
    pub answers: Vec<VolumeAnswer>,
    /// Blocks of reads for hosts, which need leave before they begin.
    pub to_host: u64,
}

impl<S: TestedServer> WorldParts<S> {
    pub fn new(shards: u16, server: impl Fn(ShardId) -> S) -> Self {
        let core = |shard| Core { server: server(ShardId(shard)), gates: Vec::new() };
        WorldParts {
            pool: Pool::new(64 << 20),
            entropy: Entropy::new([7; 32]),
            now: Time(0),
            cores: (0..shards).map(core).collect(),
            homes: Vec::new(),
            shared: Vec::new(),
            messages: VecDeque::new(),
            transfers: HashMap::new(),
            tag: 0,
            disks: FakeControls::default(),
            withhold: false,
            hold_messages: false,
            stores_fail: false,
            fences_late: false,
            answers: Vec::new(),
            to_host: 0,
        }
    }

    /// A shard's part, and what its calls need.
    pub fn core(&mut self, shard: usize) -> (&mut Core<S>, Cx<'_>) {
        let cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        (&mut self.cores[shard], cx)
    }

    /// The number of the next volume.
    pub fn next_volume(&self) -> VolumeId {
        VolumeId(self.homes.len() as u64)
    }

    /// Adds a thin volume in memory, on 4 KiB physical blocks, that can grow to twice its size; `announce` tells each
    /// shard's server of it.
    pub fn add_volume(
        &mut self,
        facts: VolumeFacts,
        (blocks, logical): (u64, u32),
        alter: impl Fn(&mut Geometry),
        announce: impl Fn(&mut S, SharedGateState, View),
    ) -> VolumeId {
        let id = facts.id;
        let disk = Arc::new(RamDisk::new(blocks, 2 * blocks, logical, 4096));
        let mut geometry = disk.geometry();
        alter(&mut geometry);
        let shards = self.cores.len() as u16;
        let shared = SharedGateState::new(shards);
        shared.set_allocation_gauge(disk.allocation_gauge());
        let home = VolumeOwner::restore(facts, geometry, shards, false, None).unwrap();
        for (at, core) in (0..).zip(&mut self.cores) {
            let backend = FakeBackend::new(RamBackend::new(disk.clone()), geometry, self.disks.clone());
            let view = home.view().clone();
            core.gates.push(Gate::new(ShardId(at), shared.clone(), view.clone(), Box::new(backend)));
            announce(&mut core.server, shared.clone(), view);
        }
        self.homes.push(home);
        self.shared.push(shared);
        id
    }

    /// A name for a command that no other has: a dense index, and a generation above it.
    pub fn next_tag(&mut self) -> u64 {
        self.tag += 1;
        (self.tag << 32) | (self.tag % 256)
    }

    /// Enters a command, which brings these bytes.
    pub fn enter(&mut self, shard: usize, key: S::Command, out: &[u8]) -> Started<S::Command> {
        let started = Started { shard, key };
        let transfer = Transfer { out: out.to_vec(), data: Vec::new(), solicited: false, end: None };
        self.transfers.insert(started, transfer);
        started
    }

    /// How a command ended, if it did.
    pub fn end_of(&self, started: Started<S::Command>) -> Option<&EndOf<S>> {
        self.transfers[&started].end.as_ref()
    }

    /// What a command has read.
    pub fn bytes(&self, started: Started<S::Command>) -> Vec<u8> {
        self.transfers[&started].data.clone()
    }

    /// Notes how a command ends, which it does once.
    pub fn finish(&mut self, shard: usize, key: S::Command, end: EndOf<S>) {
        let transfer = self.transfers.get_mut(&Started { shard, key }).expect("a command was started");
        assert!(transfer.end.is_none(), "{key:?} ends twice: {:?} and {end:?}", transfer.end);
        transfer.end = Some(end);
    }

    /// Bytes of a command's payload in the pool's memory.
    fn payload(&self, started: Started<S::Command>, at: usize, len: usize) -> Sg {
        let bytes = &self.transfers[&started].out[at..at + len];
        let mut memory = self.pool.take_sg(MemoryClass::Solicited, len).unwrap();
        memory.copy_from(0, bytes);
        memory.freeze()
    }

    /// Takes what a volume's home wants done elsewhere.
    pub fn run_home(&mut self, volume: VolumeId) {
        let home = &mut self.homes[volume.0 as usize];
        while let Some(store) = home.poll_store_op() {
            home.handle_stored(self.now, store.ticket, !self.stores_fail);
        }
        while let Some(update) = home.poll_view_update() {
            let update = Arc::new(update);
            for shard in 0..self.cores.len() {
                self.messages.push_back(ShardMessage::ViewUpdate(shard, volume, update.clone()));
            }
        }
        while let Some(answer) = home.poll_answer() {
            self.messages.push_back(ShardMessage::Answer(volume, answer));
        }
    }
}

/// A world: what all servers have in common is provided.
pub trait ServerWorld {
    type Server: TestedServer;

    fn parts(&mut self) -> &mut WorldParts<Self::Server>;

    /// Does what only this server wants.
    fn run_other_step(&mut self, shard: usize, step: <Self::Server as TestedServer>::OtherStep);

    /// A command's answer waits for so much memory of this class.
    fn await_memory(
        &mut self,
        started: Started<<Self::Server as TestedServer>::Command>,
        class: MemoryClass,
        len: u32,
    );

    /// Delivers a message of another shard's server.
    fn deliver_to_server(&mut self, shard: usize, message: <Self::Server as TestedServer>::Message);

    /// Goes on with what waits for memory; true if something did.
    fn retry_answers(&mut self) -> bool {
        false
    }

    /// Takes the steps of one shard.
    fn run_steps(&mut self, shard: usize) {
        while let Some(step) = self.parts().cores[shard].server.poll_step() {
            self.run_step(shard, step);
        }
    }

    fn run_step(&mut self, shard: usize, step: StepOf<Self::Server>) {
        let parts = self.parts();
        match step {
            CommandStep::Receive { command, at, len, .. } => {
                assert!(len > 0);
                let started = Started { shard, key: command };
                parts.transfers.get_mut(&started).unwrap().solicited = true;
                if !parts.withhold {
                    let data = parts.payload(started, at as usize, len as usize);
                    let (core, mut cx) = parts.core(shard);
                    core.server.handle_data(&mut cx, command, at, data);
                }
            }
            CommandStep::AwaitMemory { command, class, len } => {
                assert!(len > 0);
                self.await_memory(Started { shard, key: command }, class, len);
            }
            CommandStep::Send { command, at, data } => {
                let transfer = parts.transfers.get_mut(&Started { shard, key: command }).unwrap();
                assert!(transfer.end.is_none(), "data after the end");
                let end = at as usize + data.len();
                transfer.data.resize(end.max(transfer.data.len()), 0);
                data.copy_to(0, &mut transfer.data[at as usize..end]);
            }
            CommandStep::Respond { command, reply } => {
                parts.finish(shard, command, CommandEnd::Reply(reply));
            }
            CommandStep::Retire { command } => parts.finish(shard, command, CommandEnd::Retired),
            CommandStep::Io { command, volume, mut io, want, to_peer } => {
                match &io.op {
                    Op::Read(span) if to_peer => parts.to_host += span.blocks,
                    op => assert!(!to_peer, "{op:?} reads nothing"),
                }
                let space = <Self::Server as TestedServer>::ID_SPACE;
                assert_eq!(io.id.id_space(), space, "operations bear the server's mark");
                if want > 0 {
                    let memory = parts.pool.take_sg(MemoryClass::Solicited, want as usize).unwrap();
                    io.payload = Payload::In(memory);
                }
                let (core, mut cx) = parts.core(shard);
                let who = core.server.requester_of(command);
                core.gates[volume.0 as usize].submit(&mut cx, &who, io);
            }
            CommandStep::Cancel { volume, io, .. } => {
                parts.cores[shard].gates[volume.0 as usize].cancel(io);
            }
            CommandStep::VolumeRequest { volume, id, request } => {
                let from = ShardId(shard as u16);
                parts.messages.push_back(ShardMessage::VolumeRequest(volume, from, id, request));
            }
            CommandStep::Other(step) => self.run_other_step(shard, step),
        }
    }

    /// Runs everything until nothing moves but, perhaps, time.
    fn run(&mut self) {
        for _ in 0..TURNS_MAX {
            if !self.turn() {
                return;
            }
        }
        panic!("the world does not come to rest");
    }

    fn turn(&mut self) -> bool {
        let mut moved = self.retry_answers();
        for shard in 0..self.parts().cores.len() {
            self.run_steps(shard);
            for at in 0..self.parts().cores[shard].gates.len() {
                moved |= self.run_gate(shard, at);
            }
        }
        if !self.parts().hold_messages
            && let Some(message) = self.parts().messages.pop_front()
        {
            self.deliver(message);
            moved = true;
        }
        moved
    }

    fn run_gate(&mut self, shard: usize, at: usize) -> bool {
        let mut moved = false;
        loop {
            let (core, mut cx) = self.parts().core(shard);
            let more = core.gates[at].resume(&mut cx);
            if let Some(done) = core.gates[at].poll_done() {
                core.server.handle_io_done(&mut cx, done);
                self.run_steps(shard);
                moved = true;
            } else if !more {
                break;
            }
        }
        let parts = self.parts();
        while let Some(woken) = parts.cores[shard].gates[at].poll_shard_to_wake() {
            parts.cores[usize::from(woken.0)].gates[at].handle_wake();
            moved = true;
        }
        let (volume, from) = (VolumeId(at as u64), ShardId(shard as u16));
        let gate = &mut parts.cores[shard].gates[at];
        while let Some((id, request)) = gate.poll_request() {
            parts.messages.push_back(ShardMessage::VolumeRequest(volume, from, id, request));
            moved = true;
        }
        if let Some(ack) = gate.poll_ack() {
            parts.messages.push_back(ShardMessage::Ack(volume, ack));
            moved = true;
        }
        moved
    }

    fn deliver(&mut self, message: ShardMessage<<Self::Server as TestedServer>::Message>) {
        let parts = self.parts();
        match message {
            ShardMessage::ToServer(to, message) => self.deliver_to_server(usize::from(to.0), message),
            ShardMessage::VolumeRequest(volume, from, id, request) => {
                parts.homes[volume.0 as usize].handle_request(parts.now, from, id, request);
                parts.run_home(volume);
            }
            ShardMessage::Ack(volume, ack) => {
                parts.homes[volume.0 as usize].handle_ack(parts.now, ack);
                parts.run_home(volume);
            }
            ShardMessage::Answer(volume, answer) => {
                let shard = usize::from(answer.to.0);
                match answer.id.id_space() {
                    IdSpace::Shard => parts.answers.push(answer),
                    IdSpace::Gate => {
                        let (core, mut cx) = parts.core(shard);
                        core.gates[volume.0 as usize].handle_answer(&mut cx, answer.id, answer.result);
                    }
                    IdSpace::Scsi | IdSpace::Nvme => {
                        let late = parts.fences_late && answer.result.is_ok();
                        let result = if late { Err(Refusal::NotFenced) } else { answer.result };
                        let (core, mut cx) = parts.core(shard);
                        core.server.handle_volume_answer(&mut cx, answer.id, result);
                        self.run_steps(shard);
                    }
                }
            }
            ShardMessage::ViewUpdate(shard, volume, update) => {
                parts.cores[shard].server.update_view(volume, &update);
                self.run_steps(shard);
                self.parts().cores[shard].gates[volume.0 as usize].update_view(&update);
            }
        }
    }

    /// Asks a volume's home, as the control plane does, and runs as far as that goes.
    fn request_later(&mut self, volume: VolumeId, request: VolumeRequest) {
        let message = ShardMessage::VolumeRequest(volume, ShardId(0), TEST_REQUEST, request);
        self.parts().messages.push_back(message);
        self.run();
    }

    /// Asks a volume's home, as the control plane does, and runs until it has answered.
    fn request(&mut self, volume: VolumeId, request: VolumeRequest) -> Result<(), Refusal> {
        self.request_later(volume, request);
        self.parts().answers.pop().expect("a request is answered").result
    }

    /// Sends the data that was withheld of a command that waits for all of it, and runs.
    fn send_withheld(&mut self, started: Started<<Self::Server as TestedServer>::Command>) {
        let parts = self.parts();
        let data = parts.payload(started, 0, parts.transfers[&started].out.len());
        let (core, mut cx) = parts.core(started.shard);
        core.server.handle_data(&mut cx, started.key, 0, data);
        self.run();
    }
}
