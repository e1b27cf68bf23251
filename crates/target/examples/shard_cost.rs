//! What one 4 KiB command costs in a shard: bytes in, answer out, without any socket.
//!
//!     cargo run --release -p blockwire-target --example shard_cost
//!
//! prints nanoseconds per command, and under `valgrind --tool=callgrind --toggle-collect='*shard_turn*'`
//! the instructions are those of the shard alone: divide by the number of commands that is printed.
//! Arguments: `read` or `write`, depth, rounds.

#[path = "../tests/simulation/rig.rs"]
mod rig;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockwire_target::{Control, Message, Shard};
use buf::{Class, Cx, Entropy, Pool, Time};
use endpoint::{Accepted, Arrival, Departure, Driver, Endpoint, LinkId, ListenerId, ShardId, pump};
use iscsi::initiator::{InitiatorLogin, LoggedIn, Progress};
use iscsi::negotiate::Limits;
use iscsi::session::SessionLimits;
use iscsi::wire::{BHS_LEN, Bhs, CommandFlags, Itt, Pdu, ScsiCommand, Sn};
use rig::Terms;
use stream::{Came, RecvOp, SendOp};
use volume::{Backend, DiskOp, Durability, Io, IoId, Op, Payload, Ram, RamDisk, Span};

/// Blocks of 4 KiB: a volume that fits no cache.
const BLOCKS: u64 = 1 << 16;
const LEN: usize = 4096;
const LINK: LinkId = LinkId(0);

#[derive(Default)]
struct Hands {
    recv: Option<RecvOp>,
    send: Option<SendOp>,
}

impl Driver<Message> for Hands {
    fn recv(&mut self, _link: LinkId, op: RecvOp) {
        self.recv = Some(op);
    }

    fn send(&mut self, _link: LinkId, op: SendOp) {
        self.send = Some(op);
    }

    fn disk(&mut self, op: DiskOp) {
        unreachable!("memory asks for no disk operation: {op:?}");
    }

    fn depart(&mut self, _link: LinkId, _how: Departure<Message>) {
        unreachable!("the link stays");
    }

    fn post(&mut self, _to: ShardId, _message: Message) {}
}

struct World {
    shard: Shard,
    pool: Pool,
    entropy: Entropy,
    now: Time,
    hands: Hands,
    spent: Duration,
}

impl World {
    fn new() -> Self {
        let negotiation =
            Limits { mrdsl: 65_536, first_burst: 65_536, max_burst: 262_144, ..Limits::default() };
        let terms =
            Terms { negotiation, limits: SessionLimits { commands: 128, ..SessionLimits::default() } };
        let shard = Shard::new(ShardId(0), 1, rig::exports(&terms));
        let mut world = World {
            shard,
            pool: Pool::new(64 << 20),
            entropy: Entropy::new([5; 32]),
            now: Time(1_000_000),
            hands: Hands::default(),
            spent: Duration::ZERO,
        };
        let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 4096, 4096));
        let geometry = disk.geometry();
        let mut touched = Ram::new(disk.clone());
        for lba in 0..BLOCKS {
            let memory = world.pool.take_sg(Class::Solicited, LEN).expect("there is memory");
            let op = Op::Write(Span { lba, blocks: 1 }, Durability::Cached);
            let io =
                Io { id: IoId(lba), epoch: Default::default(), op, payload: Payload::Out(memory.freeze()) };
            let mut cx = Cx { now: world.now, pool: &world.pool, entropy: &mut world.entropy };
            touched.submit(&mut cx, io);
            touched.poll_done().expect("memory answers at once");
        }
        for spec in rig::volume(1, geometry, &[], None, move |_| Ram::new(disk.clone())) {
            let add = Message::Control(0, Control::AddVolume(Box::new(spec)));
            world.with(|shard, cx| shard.handle_message(cx, add));
        }
        let address = SocketAddr::from(([127, 0, 0, 1], 3260));
        let accepted = Accepted { listener: ListenerId(0), local: address, peer: address };
        world.with(|shard, cx| shard.handle_arrival(cx, LINK, Arrival::Accepted(accepted)));
        world
    }

    fn with(&mut self, act: impl FnOnce(&mut Shard, &mut Cx<'_>)) {
        let World { shard, pool, entropy, now, hands, spent } = self;
        now.0 += 1_000;
        let mut cx = Cx { now: *now, pool, entropy };
        let start = Instant::now();
        shard_turn(shard, &mut cx, hands, act);
        *spent += start.elapsed();
    }

    /// Sends `stream` and takes all answers.
    fn exchange(&mut self, mut stream: &[u8], answers: &mut Vec<u8>) {
        loop {
            if let Some(op) = self.hands.send.take() {
                let had = answers.len();
                answers.resize(had + op.len, 0);
                op.copy_to(0, &mut answers[had..]);
                self.with(|shard, cx| {
                    shard.handle_written(cx, LINK, Ok(()));
                    shard.handle_sent(cx, LINK, op);
                });
            } else if stream.is_empty() {
                return;
            } else {
                let mut op = self.hands.recv.take().expect("the shard listens");
                let taken = fill(&self.pool, &mut op, stream);
                stream = &stream[taken..];
                self.with(|shard, cx| shard.handle_recv(cx, LINK, op, Came::Bytes(taken)));
            }
        }
    }
}

/// All that is measured.
#[inline(never)]
fn shard_turn(
    shard: &mut Shard,
    cx: &mut Cx<'_>,
    hands: &mut Hands,
    act: impl FnOnce(&mut Shard, &mut Cx<'_>),
) {
    act(shard, cx);
    while pump(shard, cx, hands) {}
}

/// What the kernel does with a receive.
fn fill(pool: &Pool, op: &mut RecvOp, stream: &[u8]) -> usize {
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
        let mut stage = pool.take(Class::Wire, op.stage_len).expect("there is memory");
        stage.set_len(rest);
        stage.copy_from_slice(&stream[taken..taken + rest]);
        op.stage = Some(stage);
    }
    taken + rest
}

fn log_in(world: &mut World) -> LoggedIn {
    let mut wanted = rig::wanted(1);
    wanted.limits.mrdsl = 262_144;
    let (mut login, first) = InitiatorLogin::start(wanted).expect("a login begins");
    let mut entropy = Entropy::new([1; 32]);
    let mut pdu = first;
    loop {
        let mut stream = [pdu.bhs.bytes().as_slice(), pdu.text.as_slice()].concat();
        stream.resize(stream.len().next_multiple_of(4), 0);
        let mut came = Vec::new();
        world.exchange(&stream, &mut came);
        let bhs = *Bhs::from_prefix(&came).expect("the target answers");
        let text = &came[BHS_LEN..BHS_LEN + bhs.data_len()];
        match login.handle_response(&bhs, text, &mut entropy).expect("a proper answer") {
            Progress::Send(next) => pdu = next,
            Progress::Established(logged) => return *logged,
        }
    }
}

struct Client {
    cmd_sn: Sn,
    random: u64,
}

impl Client {
    fn command(&mut self, stream: &mut Vec<u8>, itt: u32, cdb: &[u8], write: bool, len: usize) {
        let mut pdu = ScsiCommand::new();
        pdu.itt = Itt::new(itt);
        pdu.cdb[..cdb.len()].copy_from_slice(cdb);
        pdu.expected_data_len = (len as u32).into();
        let way = if write { CommandFlags::WRITE } else { CommandFlags::READ };
        pdu.flags = CommandFlags(1).with(CommandFlags::FINAL).with(way);
        pdu.cmd_sn = self.cmd_sn.take();
        pdu.set_data_len(if write { len } else { 0 });
        stream.extend(pdu.as_bhs().bytes());
        stream.resize(stream.len() + if write { len } else { 0 }, 0x5a);
    }

    fn block(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % BLOCKS) as u32
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let write = args.next().is_some_and(|op| op == "write");
    let depth: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(32);
    let rounds: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(2_000);
    let mut world = World::new();
    let logged = log_in(&mut world);
    let mut client = Client { cmd_sn: logged.cmd_sn, random: 0x2545_f491_4f6c_dd1d };
    let (mut stream, mut answers) = (Vec::new(), Vec::new());
    // A new nexus is told first that power came on.
    client.command(&mut stream, 0, &[0; 6], false, 0);
    world.exchange(&stream, &mut answers);
    world.spent = Duration::ZERO;
    for _ in 0..rounds {
        stream.clear();
        answers.clear();
        for itt in 0..depth {
            let [a, b, c, d] = client.block().to_be_bytes();
            let opcode = if write { 0x2a } else { 0x28 };
            client.command(&mut stream, itt, &[opcode, 0, a, b, c, d, 0, 0, 1, 0], write, LEN);
        }
        world.exchange(&stream, &mut answers);
        let each = BHS_LEN + if write { 0 } else { LEN };
        assert_eq!(answers.len(), depth as usize * each, "every command is answered with GOOD");
    }
    let commands = u64::from(depth) * u64::from(rounds);
    let name = if write { "write" } else { "read" };
    println!(
        "{commands} {name}s at depth {depth}: {:.0} ns each",
        world.spent.as_nanos() as f64 / commands as f64
    );
}
