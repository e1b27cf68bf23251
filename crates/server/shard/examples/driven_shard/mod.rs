//! A shard between a client of either protocol and a driver that keeps what is to be sent: no socket, no clock.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blockwire_shard::{ControlRequest, Exports, Message, Shard, VolumeSpec};
use buf::{Cx, Entropy, MemoryClass, Pool, Region, Time};
use endpoint::{
    AcceptedSocket, Dial, Endpoint, IoDriver, LinkArrival, LinkDeparture, LinkId, ListenerId, ShardId, pump,
};
use iscsi::initiator::{InitiatorLogin, LoggedInConnection, LoginProgress};
use iscsi::negotiate::NegotiationLimits;
use iscsi::session::SessionLimits;
use iscsi::wire::{BHS_LEN, Bhs, CommandFlags, Itt, Pdu, ScsiCommand, Sn};
use nvme::fabrics::{Connect, ConnectData, ConnectNames, ConnectResult, Property, PropertyAccess};
use nvme::io::BlockTransfer;
use nvme::{Completion, HostId, Nqn, Opcode, SglDescriptor, Sqe};
use nvme_tcp::wire::{C2hData, CapsuleCmd, CapsuleResp, IcReq, IcResp};
use stream::{Received, RecvOp, SendOp};
use testkit::target::{self, TargetLimits};
use volume::{
    Backend, DiskOp, Durability, Io, IoId, Op, Payload, RamBackend, RamDisk, Span, movable_ram_len,
};
use zerocopy::little_endian::U32;
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of a command.
pub const BLOCK_LEN: usize = 4096;
/// Rounds before the measured ones: pools, queues and windows reach their size.
pub const WARM_UP: u32 = 8;

#[derive(Default)]
struct PendingOps {
    recv: Option<RecvOp>,
    send: Option<SendOp>,
}

#[derive(Default)]
struct RecordingDriver {
    wires: Vec<PendingOps>,
    messages: Vec<(ShardId, Message)>,
}

impl IoDriver<Message> for RecordingDriver {
    fn start_recv(&mut self, link: LinkId, op: RecvOp) {
        self.wires[link.0 as usize].recv = Some(op);
    }

    fn start_send(&mut self, link: LinkId, op: SendOp) {
        self.wires[link.0 as usize].send = Some(op);
    }

    fn start_disk_op(&mut self, op: DiskOp) {
        unreachable!("memory asks for no disk operation: {op:?}");
    }

    fn halt_link(&mut self, link: LinkId) {
        unreachable!("nothing comes to rest here: {link:?}");
    }

    fn remove_link(&mut self, _link: LinkId, _how: LinkDeparture<Message>) {
        unreachable!("the link stays: it came where it belongs");
    }

    fn post_message(&mut self, to: ShardId, message: Message) {
        self.messages.push((to, message));
    }

    fn start_dial(&mut self, dial: Dial) {
        unreachable!("a target's shard without remotes dials nobody: {dial:?}");
    }
}

/// The other shards of a target, as one of them sees them.
pub trait OtherShards {
    /// Delivers a message.
    fn post(&mut self, to: ShardId, message: Message);
    /// A message for this one, if there is one.
    fn poll(&mut self) -> Option<Message>;
}

/// There is one shard only.
pub struct NoOthers;

impl OtherShards for NoOthers {
    fn post(&mut self, _to: ShardId, _message: Message) {}

    fn poll(&mut self) -> Option<Message> {
        None
    }
}

/// A shard whose calls are measured from some moment on.
pub struct MeasuredShard<O> {
    shard: Shard,
    pool: Pool,
    entropy: Entropy,
    now: Time,
    hands: RecordingDriver,
    others: O,
    number: u16,
    pub spent: Duration,
    /// Whether what the shard does from now on counts.
    pub is_measured: bool,
}

/// What shards offer; `change` may add to it.
pub fn exports(change: impl FnOnce(&mut Exports)) -> Arc<Exports> {
    let negotiation = NegotiationLimits {
        mrdsl: 65_536,
        first_burst: 65_536,
        max_burst: 262_144,
        ..NegotiationLimits::default()
    };
    let terms =
        TargetLimits { negotiation, limits: SessionLimits { commands: 128, ..SessionLimits::default() } };
    let mut exports = target::build_exports(&terms);
    let owned = Arc::get_mut(&mut exports).expect("nobody else has them yet");
    owned.nvme.subsystems[0].limits.entries = 256;
    change(owned);
    exports
}

/// A volume of so many blocks, every page of it written, for so many shards.
pub fn written_volume(blocks: u64, shards: u16) -> Vec<VolumeSpec> {
    volume_on(RamDisk::new(blocks, blocks, BLOCK_LEN as u32, 4096), shards)
}

/// The same of a disk that can move to another process.
#[allow(dead_code, reason = "not every example measures it")]
pub fn movable_volume(blocks: u64, shards: u16) -> Vec<VolumeSpec> {
    let len = movable_ram_len(blocks, BLOCK_LEN as u32, 4096).expect("it fits the address space");
    let disk = RamDisk::movable(Region::new(len as usize), (blocks, blocks), BLOCK_LEN as u32, 4096);
    volume_on(disk.expect("memory of that length"), shards)
}

fn volume_on(disk: RamDisk, shards: u16) -> Vec<VolumeSpec> {
    let disk = Arc::new(disk);
    let blocks = disk.geometry().blocks;
    let geometry = disk.geometry();
    let mut touched = RamBackend::new(disk.clone());
    let (pool, mut entropy) = (Pool::new(1 << 20), Entropy::new([5; 32]));
    for lba in 0..blocks {
        let memory = pool.take_sg(MemoryClass::Wire, BLOCK_LEN).expect("there is memory");
        let op = Op::Write(Span { lba, blocks: 1 }, Durability::Cached);
        let io = Io { id: IoId(lba), epoch: Default::default(), op, payload: Payload::Out(memory.freeze()) };
        touched.submit(&mut Cx { now: Time(1), pool: &pool, entropy: &mut entropy }, io);
        touched.poll_done().expect("memory answers at once");
    }
    target::volume_specs(shards, geometry, &[], None, move |_| RamBackend::new(disk.clone()))
}

impl<O: OtherShards> MeasuredShard<O> {
    /// Shard `number` of `shards`, with its part of the volume.
    pub fn new(number: u16, shards: u16, exports: Arc<Exports>, volume: VolumeSpec, others: O) -> Self {
        let mut world = MeasuredShard {
            shard: Shard::new(ShardId(number), shards, exports),
            pool: Pool::new(64 << 20),
            entropy: Entropy::new([5; 32]),
            now: Time(1_000_000),
            hands: RecordingDriver::default(),
            others,
            number,
            spent: Duration::ZERO,
            is_measured: false,
        };
        let add = Message::Control(0, ControlRequest::AddVolume(Box::new(volume)));
        world.with_shard(|shard, cx| shard.handle_message(cx, add));
        world
    }

    /// Has memory for so many connections, in place of some. To be called before any is made.
    pub fn set_connections(&mut self, count: u32) {
        // What an NVMe host's two queues reserve is at most half of the pool.
        self.pool = Pool::new((64 << 20) + (128 << 10) * count as usize);
    }

    /// A socket of a listener.
    fn connect(&mut self, listener: ListenerId) -> LinkId {
        let link = LinkId(self.hands.wires.len() as u64);
        self.hands.wires.push(PendingOps::default());
        let address = SocketAddr::from(([127, 0, 0, 1], 3260));
        let accepted = AcceptedSocket { listener, local: address, peer: address, cpu: None };
        self.with_shard(|shard, cx| shard.handle_arrival(cx, link, LinkArrival::Accepted(accepted)));
        link
    }

    fn with_shard(&mut self, act: impl FnOnce(&mut Shard, &mut Cx<'_>)) {
        let MeasuredShard { shard, pool, entropy, now, hands, spent, is_measured, number, others } = self;
        now.0 += 1_000;
        let mut cx = Cx { now: *now, pool, entropy };
        if *is_measured {
            let start = Instant::now();
            BEGUN[usize::from(*number)].0.store(1, Ordering::Relaxed);
            measured_turn(shard, &mut cx, hands, act);
            ENDED.0.store(1, Ordering::Relaxed);
            *spent += start.elapsed();
        } else {
            act_and_pump(shard, &mut cx, hands, act);
        }
        hands.messages.drain(..).for_each(|(to, message)| others.post(to, message));
    }

    /// Takes what other shards have sent; whether there was anything.
    pub fn take_messages(&mut self) -> bool {
        let mut took = false;
        while let Some(message) = self.others.poll() {
            took = true;
            self.with_shard(|shard, cx| shard.handle_message(cx, message));
        }
        took
    }

    /// Sends `stream` and takes answers, at least so many bytes of them.
    pub fn exchange(&mut self, link: LinkId, mut stream: &[u8], answers: &mut Vec<u8>, least: usize) {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(op) = self.hands.wires[link.0 as usize].send.take() {
                let had = answers.len();
                answers.resize(had + op.len, 0);
                op.copy_to(0, &mut answers[had..]);
                self.with_shard(|shard, cx| {
                    shard.handle_written(cx, link, Ok(()));
                    shard.handle_send_released(cx, link, op);
                });
            } else if self.take_messages() {
            } else if stream.is_empty() {
                if answers.len() >= least {
                    return;
                }
                assert!(Instant::now() < until, "{} of {least} bytes were answered", answers.len());
                std::thread::yield_now();
            } else {
                let mut op = self.hands.wires[link.0 as usize].recv.take().expect("the shard listens");
                let taken = fill_recv(&self.pool, &mut op, stream);
                stream = &stream[taken..];
                self.with_shard(|shard, cx| shard.handle_recv(cx, link, op, Received::Bytes(taken)));
            }
        }
    }
}

/// A word in a cache line of its own.
#[repr(align(128))]
pub struct Marker(pub AtomicU64);

/// Written before a measured turn of that shard, and after it: a trace of stores shows where turns begin and end.
pub static BEGUN: [Marker; 2] = [const { Marker(AtomicU64::new(0)) }; 2];
/// See [`BEGUN`].
pub static ENDED: Marker = Marker(AtomicU64::new(0));

/// All that is measured.
#[inline(never)]
fn measured_turn(
    shard: &mut Shard,
    cx: &mut Cx<'_>,
    hands: &mut RecordingDriver,
    act: impl FnOnce(&mut Shard, &mut Cx<'_>),
) {
    act_and_pump(shard, cx, hands, act);
}

#[inline]
fn act_and_pump(
    shard: &mut Shard,
    cx: &mut Cx<'_>,
    hands: &mut RecordingDriver,
    act: impl FnOnce(&mut Shard, &mut Cx<'_>),
) {
    act(shard, cx);
    while pump(shard, cx, hands) {}
}

/// What the kernel does with a receive.
fn fill_recv(pool: &Pool, op: &mut RecvOp, stream: &[u8]) -> usize {
    let mut taken = 0;
    if let Some(direct) = &mut op.direct {
        for slice in direct.data.slices_mut(direct.want.clone()) {
            let n = slice.len().min(stream.len() - taken);
            slice[..n].copy_from_slice(&stream[taken..taken + n]);
            taken += n;
        }
        if taken < direct.want.len() {
            return taken;
        }
    }
    let rest = (stream.len() - taken).min(op.stage_len);
    if rest > 0 {
        let mut stage = pool.take(MemoryClass::Wire, op.stage_len).expect("there is memory");
        stage.set_len(rest);
        stage.copy_from_slice(&stream[taken..taken + rest]);
        op.stage = Some(stage);
    }
    taken + rest
}

fn log_in(world: &mut MeasuredShard<impl OtherShards>, link: LinkId, name: &str) -> LoggedInConnection {
    let mut wanted = target::login_config(1);
    wanted.initiator_name = name.into();
    wanted.limits.mrdsl = 262_144;
    let (mut login, first) = InitiatorLogin::start(wanted).expect("a login begins");
    let mut entropy = Entropy::new([1; 32]);
    let mut pdu = first;
    loop {
        let mut stream = [pdu.bhs.bytes().as_slice(), pdu.text.as_slice()].concat();
        stream.resize(stream.len().next_multiple_of(4), 0);
        let mut came = Vec::new();
        world.exchange(link, &stream, &mut came, BHS_LEN);
        let bhs = *Bhs::from_prefix(&came).expect("the target answers");
        let text = &came[BHS_LEN..BHS_LEN + bhs.data_len()];
        match login.handle_response(&bhs, text, &mut entropy).expect("a proper answer") {
            LoginProgress::Send(next) => pdu = next,
            LoginProgress::Established(logged) => return *logged,
        }
    }
}

/// Sends a capsule, and takes its answer without data.
fn send_capsule(
    world: &mut MeasuredShard<impl OtherShards>,
    link: LinkId,
    sqe: Sqe,
    data: &[u8],
) -> Completion {
    let (mut stream, mut came) = (Vec::new(), Vec::new());
    push_capsule(&mut stream, sqe, data);
    world.exchange(link, &stream, &mut came, CapsuleResp::LEN);
    let answer = CapsuleResp::from_prefix(&came).expect("the controller answers");
    let completion = answer.cqe.completion();
    assert!(completion.status.is_success(), "{completion:?}");
    completion
}

/// Connects a queue; the controller's number.
fn connect_queue(
    world: &mut MeasuredShard<impl OtherShards>,
    host: &str,
    (qid, cntlid): (u16, u16),
    entries: u32,
) -> (LinkId, u16) {
    let link = world.connect(ListenerId(1));
    let mut came = Vec::new();
    world.exchange(link, IcReq::new(0, false, false, 1).as_bytes(), &mut came, IcResp::LEN);
    assert_eq!(came.len(), IcResp::LEN);
    let connect = Connect { qid, entries, flow_control: false, individual_deletion: false, kato_ms: 0 };
    let names = ConnectNames {
        // The end of the name, which tells hosts apart.
        host_id: host.as_bytes().last_chunk().and_then(|end| HostId::new(*end)).expect("a long name"),
        cntlid,
        subsystem: Nqn::parse(target::SUBSYSTEM_NQN).expect("a name"),
        host: Nqn::parse(host).expect("a name"),
    };
    let answer = send_capsule(world, link, connect.to_sqe(), ConnectData::new(&names).as_bytes());
    (link, ConnectResult::parse(answer.result).cntlid)
}

fn push_capsule(stream: &mut Vec<u8>, mut sqe: Sqe, data: &[u8]) {
    sqe.flags = 0x40;
    if !data.is_empty() {
        sqe.dptr.length = U32::new(data.len() as u32);
        sqe.dptr.identifier = SglDescriptor::IN_CAPSULE;
    }
    let mut head = CapsuleCmd::new(sqe);
    if !data.is_empty() {
        head.common.pdo = CapsuleCmd::LEN as u8;
        head.common.plen = U32::new((CapsuleCmd::LEN + data.len()) as u32);
    }
    stream.extend(head.as_bytes());
    stream.extend(data);
}

/// Offsets that no cache foresees.
pub struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Random(0x2545_f491_4f6c_dd1d)
    }
}

impl Random {
    /// One of so many blocks.
    pub fn next_block(&mut self, blocks: u64) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % blocks) as u32
    }
}

/// The side that asks, ready to ask.
pub enum Client {
    Iscsi(Sn),
    Nvme,
}

impl Client {
    /// The initiator's or host's name; the iSCSI one and the NVMe one of a number.
    pub fn name(number: u16, is_nvme: bool) -> String {
        format!("{}.2026-11.test:host{number}", if is_nvme { "nqn" } else { "iqn" })
    }

    /// Connects the initiator or host of that number, ready for so many commands at once.
    pub fn connect(
        world: &mut MeasuredShard<impl OtherShards>,
        number: u16,
        is_nvme: bool,
        depth: u32,
    ) -> (Self, LinkId) {
        let name = Client::name(number, is_nvme);
        if is_nvme { Client::connect_nvme(world, &name, depth) } else { Client::log_in_iscsi(world, &name) }
    }

    fn log_in_iscsi(world: &mut MeasuredShard<impl OtherShards>, name: &str) -> (Self, LinkId) {
        let link = world.connect(ListenerId(0));
        let mut client = Client::Iscsi(log_in(world, link, name).cmd_sn);
        // A new nexus is told first that power came on.
        let mut stream = Vec::new();
        client.push_scsi_command(&mut stream, 0, &[0; 6], false, 0);
        world.exchange(link, &stream, &mut Vec::new(), BHS_LEN);
        (client, link)
    }

    fn connect_nvme(world: &mut MeasuredShard<impl OtherShards>, host: &str, depth: u32) -> (Self, LinkId) {
        let (admin, cntlid) = connect_queue(world, host, (0, ConnectData::DYNAMIC), 32);
        send_capsule(world, admin, PropertyAccess::property_set_sqe(Property::CC, 0x0046_0001), &[]);
        let (link, _) = connect_queue(world, host, (1, cntlid), depth + 1);
        (Client::Nvme, link)
    }

    fn push_scsi_command(&mut self, stream: &mut Vec<u8>, itt: u32, cdb: &[u8], write: bool, len: usize) {
        let Client::Iscsi(cmd_sn) = self else { return };
        let mut pdu = ScsiCommand::new();
        pdu.itt = Itt::new(itt);
        pdu.cdb[..cdb.len()].copy_from_slice(cdb);
        pdu.expected_data_len = (len as u32).into();
        let way = if write { CommandFlags::WRITE } else { CommandFlags::READ };
        pdu.flags = CommandFlags(1).with(CommandFlags::FINAL).with(way);
        pdu.cmd_sn = cmd_sn.take();
        pdu.set_data_len(if write { len } else { 0 });
        stream.extend(pdu.as_bhs().bytes());
        stream.resize(stream.len() + if write { len } else { 0 }, 0x5a);
    }

    /// One command of a block.
    pub fn push_command(&mut self, stream: &mut Vec<u8>, number: u32, block: u32, write: bool) {
        match self {
            Client::Iscsi(_) => {
                let [a, b, c, d] = block.to_be_bytes();
                let opcode = if write { 0x2a } else { 0x28 };
                self.push_scsi_command(
                    stream,
                    number,
                    &[opcode, 0, a, b, c, d, 0, 0, 1, 0],
                    write,
                    BLOCK_LEN,
                );
            }
            Client::Nvme => {
                let mut sqe = Sqe::new_zeroed();
                (sqe.cid, sqe.nsid) = ((number as u16).into(), U32::new(1));
                sqe.opcode = if write { Opcode::WRITE } else { Opcode::READ };
                BlockTransfer { lba: block.into(), blocks: 1, flags: 0 }.write_to_sqe(&mut sqe);
                sqe.dptr.length = U32::new(BLOCK_LEN as u32);
                sqe.dptr.identifier = SglDescriptor::TRANSPORT;
                push_capsule(stream, sqe, if write { &[0x5a; BLOCK_LEN] } else { &[] });
            }
        }
    }

    /// Bytes of an answer.
    pub fn answer_len(&self, write: bool) -> usize {
        match (self, write) {
            (Client::Iscsi(_), _) => BHS_LEN + if write { 0 } else { BLOCK_LEN },
            (Client::Nvme, false) => C2hData::LEN + BLOCK_LEN,
            (Client::Nvme, true) => CapsuleResp::LEN,
        }
    }
}
