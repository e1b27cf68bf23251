//! A host and a correct target, both driven by [`pump`], with a middleman that changes what the target sends.
//!
//! Requirements for the host: no panic; every operation and request ends exactly once; all its memory comes
//! back; its clock never stops; and it sends no byte that was not put there to be sent. All memory holds a
//! pattern, which is searched in outgoing data and in data of successful reads.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use blockwire_multipath::iscsi::{IscsiPath, Settings as IscsiSettings};
use blockwire_multipath::nvme::{NvmePath, Settings as NvmeSettings};
use blockwire_multipath::{
    AnyPath, Client, NoShardMessage, ReservationOp, VolumeEvent, VolumeHandle, VolumeSettings,
};
use buf::{Cx, Entropy, Errno, MemoryClass, Payload, Pool, Time};
use endpoint::{
    AcceptedSocket, Dial, Dialled, Endpoint, IoDriver, LinkArrival, LinkDeparture, LinkId, ListenerId,
    ShardId, pump,
};
use iscsi::wire::Isid;
use nvme::{HostId, Nqn};
use shard::{ControlRequest, Message, NvmeMessage, Shard};
use sim::SimRng;
use stream::{Received, RecvOp, SendOp};
use volume::reservation::{Action, Key, RegistrationRequest};
use volume::{Backend, DiskId, DiskOp, Durability, Epoch, Io, IoId, Op, RamBackend, RamDisk, Span};

use crate::mangle::{Mangler, Protocol};
use testkit::target;

const BLOCKS: u64 = 1 << 12;
const RESET: Errno = Errno(104);
/// Stands in all memory of the host that nothing was put into.
const MARK: [u8; 8] = *b"\xd7SECRET\xd7";
/// Memory of the host, bytes: the bound of what all its sessions may hold.
const MEMORY: usize = 4 << 20;
/// Most operations in work.
const IN_WORK: usize = 24;

#[derive(Default)]
struct End {
    recv: Option<RecvOp>,
    inbox: VecDeque<Vec<u8>>,
    left: bool,
}

struct Wire {
    host: End,
    target: End,
    mangler: Mangler,
}

/// What one side wants of the world.
struct Hands<M> {
    recvs: Vec<(LinkId, RecvOp)>,
    sends: Vec<(LinkId, SendOp)>,
    departed: Vec<LinkId>,
    dials: Vec<Dial>,
    posted: Vec<M>,
}

impl<M> Default for Hands<M> {
    fn default() -> Self {
        Hands { recvs: vec![], sends: vec![], departed: vec![], dials: vec![], posted: vec![] }
    }
}

impl<M> IoDriver<M> for Hands<M> {
    fn start_recv(&mut self, link: LinkId, op: RecvOp) {
        self.recvs.push((link, op));
    }
    fn start_send(&mut self, link: LinkId, op: SendOp) {
        self.sends.push((link, op));
    }
    fn start_disk_op(&mut self, op: DiskOp) {
        unreachable!("nobody here has a disk: {op:?}")
    }
    fn halt_link(&mut self, link: LinkId) {
        unreachable!("nothing comes to rest here: {link:?}");
    }
    fn remove_link(&mut self, link: LinkId, _how: LinkDeparture<M>) {
        self.departed.push(link);
    }
    fn post_message(&mut self, _to: ShardId, message: M) {
        self.posted.push(message);
    }
    fn start_dial(&mut self, dial: Dial) {
        self.dials.push(dial);
    }
}

pub struct Session {
    seed: u64,
    protocol: Protocol,
    chance: SimRng,
    client: Client<AnyPath>,
    volume: VolumeHandle,
    shard: Shard,
    host_hands: Hands<NoShardMessage>,
    target_hands: Hands<Message>,
    wires: Vec<Wire>,
    pool: Pool,
    their_pool: Pool,
    entropy: Entropy,
    now: Time,
    /// Of a thousand PDUs of a connection that is made now, so many are changed.
    permille: u32,
    /// Receives bring loaned pages, as io_uring's do.
    loans: bool,
    open: BTreeSet<u64>,
    requests: BTreeSet<u64>,
    next: u64,
    pub tally: Tally,
}

testkit::tally! {
    pub struct Tally { well, failed, connections, changed }
}

impl Session {
    pub fn new(seed: u64, protocol: Protocol) -> Session {
        let mut chance = SimRng::new(seed);
        let (pool, their_pool) = (Pool::new(MEMORY), Pool::new(16 << 20));
        mark(&pool);
        let mut entropy = Entropy::new([seed as u8; 32]);
        let now = Time(1_000_000_000);
        let path = match protocol {
            Protocol::Iscsi => AnyPath::Iscsi(Box::new(IscsiPath::new(iscsi_settings()).unwrap())),
            Protocol::Nvme => AnyPath::Nvme(Box::new(NvmePath::new(nvme_settings()))),
        };
        let terms = VolumeSettings {
            in_work: IN_WORK,
            open_timeout: Duration::MAX,
            loss_timeout: Duration::MAX,
            queue_timeout: Duration::from_secs(60),
            certain: chance.chance_permille(300),
            ..VolumeSettings::default()
        };
        let mut client = Client::new();
        let mut cx = Cx { now, pool: &pool, entropy: &mut entropy };
        let volume = client.open(&mut cx, vec![path], terms).unwrap();
        let mut session = Session {
            permille: *chance.pick(&[5, 20, 60, 200]),
            loans: chance.chance_permille(500),
            seed,
            protocol,
            chance,
            client,
            volume,
            shard: Shard::new(ShardId(0), 1, target::build_exports(&target::TargetLimits::default())),
            host_hands: Hands::default(),
            target_hands: Hands::default(),
            wires: Vec::new(),
            pool,
            their_pool,
            entropy,
            now,
            open: BTreeSet::new(),
            requests: BTreeSet::new(),
            next: 1,
            tally: Tally::default(),
        };
        let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096));
        let geometry = RamBackend::new(disk.clone()).geometry();
        for spec in
            target::volume_specs(1, geometry, &[DiskId(0)], None, move |_| RamBackend::new(disk.clone()))
        {
            session.target(|shard, cx| {
                shard.handle_message(cx, Message::Control(0, ControlRequest::AddVolume(Box::new(spec))));
            });
        }
        session
    }

    /// From its first dial to the end of everything.
    pub fn play(mut self) -> Tally {
        for _ in 0..self.chance.between(5, 40) {
            for _ in 0..self.chance.between(0, 4) {
                self.submit();
            }
            let until = self.now + Duration::from_millis(self.chance.between(1, 3_000));
            self.run(until, |_| false);
        }
        // From now on the target is good: what is left ends.
        self.permille = 0;
        self.wires.iter_mut().for_each(|wire| wire.mangler.permille = 0);
        let until = self.now + Duration::from_secs(3_600);
        self.run(until, |session| session.open.is_empty() && session.requests.is_empty());
        let (seed, left, requests) = (self.seed, &self.open, &self.requests);
        let paths = self.client.paths(self.volume);
        assert!(
            left.is_empty() && requests.is_empty(),
            "seed {seed}: never end: {left:?} {requests:?}, at {:?}: {paths:?}",
            self.now
        );
        let volume = self.volume;
        self.host(|client, cx| client.close(cx, volume, Duration::from_secs(5)));
        let mut closed = false;
        let until = self.now + Duration::from_secs(600);
        self.run(until, |session| {
            while let Some(news) = session.client.poll_event(volume) {
                closed |= news == VolumeEvent::Closed;
            }
            closed
        });
        assert!(closed, "seed {seed}: the volume does not close");
        self.run(until, |_| false);
        self.client.drop_volume(volume);
        assert_eq!(self.pool.usage().lent, 0, "seed {seed}: memory does not come back");
        self.tally.changed = self.wires.iter().map(|wire| wire.mangler.changed).sum();
        self.tally
    }

    fn host<R>(&mut self, act: impl FnOnce(&mut Client<AnyPath>, &mut Cx<'_>) -> R) -> R {
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        let result = act(&mut self.client, &mut cx);
        while pump(&mut self.client, &mut cx, &mut self.host_hands) {}
        result
    }

    fn target(&mut self, act: impl FnOnce(&mut Shard, &mut Cx<'_>)) {
        let mut cx = Cx { now: self.now, pool: &self.their_pool, entropy: &mut self.entropy };
        act(&mut self.shard, &mut cx);
        while pump(&mut self.shard, &mut cx, &mut self.target_hands) {}
    }

    fn submit(&mut self) {
        let id = self.next;
        self.next += 1;
        let blocks = *self.chance.pick(&[1, 2, 8, 17, 64, 200]);
        let span = Span { lba: self.chance.below(BLOCKS - blocks), blocks };
        let len = blocks as usize * 512;
        let (op, payload) = match self.chance.below(16) {
            0..5 => (Op::Read(span), self.pool.take_sg(MemoryClass::Solicited, len).map(Payload::In)),
            5..10 => (Op::Write(span, Durability::Cached), self.data(len, id as u8)),
            10 => (Op::Flush, Some(Payload::None)),
            11 => (Op::WriteZeroes { span, unmap: true }, Some(Payload::None)),
            12 => (Op::Unmap(vec![span]), Some(Payload::None)),
            13 => (Op::CompareAndWrite(Span { blocks: 1, ..span }), self.data(1024, id as u8)),
            14 => (Op::Extents(span), Some(Payload::None)),
            _ => return self.request_reservation(id),
        };
        let Some(payload) = payload else { return };
        let io = Io { id: IoId(id), epoch: Epoch(0), op, payload };
        let volume = self.volume;
        if self.host(|client, cx| client.submit(cx, volume, io)).is_ok() {
            self.open.insert(id);
            if self.chance.chance_permille(50) {
                self.host(|client, _| client.cancel(volume, IoId(id)));
            }
        }
    }

    fn request_reservation(&mut self, id: u64) {
        let register = RegistrationRequest::new(None, Key(id));
        let request = if self.chance.chance_permille(500) {
            ReservationOp::Report
        } else {
            ReservationOp::Change(Action::Register(register))
        };
        let volume = self.volume;
        if self.host(|client, cx| client.submit_reservation_op(cx, volume, IoId(id), request)) {
            self.requests.insert(id);
        }
    }

    /// Memory to be sent: all of it is what the caller put there.
    fn data(&self, len: usize, byte: u8) -> Option<Payload> {
        let mut memory = self.pool.take_sg(MemoryClass::Solicited, len)?;
        memory.slices_mut(0..len).for_each(|slice| slice.fill(byte));
        Some(Payload::Out(memory.freeze()))
    }

    /// Takes what has ended.
    fn take(&mut self) {
        let (seed, volume) = (self.seed, self.volume);
        while let Some(done) = self.client.poll_done(volume) {
            assert!(self.open.remove(&done.id.0), "seed {seed}: {:?} ends twice", done.id);
            match (done.result.is_ok(), done.payload) {
                (true, Payload::In(data)) => {
                    let bytes: Vec<u8> = data.pieces().iter().flat_map(|piece| piece.to_vec()).collect();
                    assert!(!has_mark(&bytes), "seed {seed}: {:?} was read well, but not all of it", done.id);
                    self.tally.well += 1;
                }
                (well, _) => {
                    self.tally.well += u64::from(well);
                    self.tally.failed += u64::from(!well);
                }
            }
        }
        while let Some((id, _)) = self.client.poll_reservation_reply(volume) {
            assert!(self.requests.remove(&id.0), "seed {seed}: the claim {id:?} ends twice");
        }
    }

    /// Goes on until then, or until `done`.
    fn run(&mut self, until: Time, mut done: impl FnMut(&mut Self) -> bool) {
        let mut stood = 0;
        loop {
            for round in 0.. {
                assert!(round < 100_000, "seed {}: the world does not come to rest", self.seed);
                if !self.step() && !self.flush() {
                    break;
                }
            }
            self.take();
            if done(self) {
                return;
            }
            let due = stream::earliest(self.client.poll_timeout(), self.shard.poll_timeout());
            let Some(due) = due.filter(|due| *due <= until) else {
                self.now = until.max(self.now);
                return;
            };
            stood = if due > self.now { 0 } else { stood + 1 };
            assert!(stood < 1_000, "seed {}: the clock stands still", self.seed);
            self.now = self.now.max(due);
            if self.client.poll_timeout().is_some_and(|due| due <= self.now) {
                self.host(|client, cx| client.handle_timeout(cx));
            }
            if self.shard.poll_timeout().is_some_and(|due| due <= self.now) {
                self.target(|shard, cx| shard.handle_timeout(cx));
            }
        }
    }

    /// What was held back arrives.
    fn flush(&mut self) -> bool {
        let mut any = false;
        for wire in &mut self.wires {
            if let Some(late) = wire.mangler.flush() {
                wire.host.inbox.push_back(late);
                any = true;
            }
        }
        any
    }

    fn step(&mut self) -> bool {
        self.host(|_, _| ());
        self.target(|_, _| ());
        let mut any = false;
        for dial in std::mem::take(&mut self.host_hands.dials) {
            any = true;
            self.dial(dial);
        }
        for (link, op) in std::mem::take(&mut self.host_hands.recvs) {
            any = true;
            assert!(self.wires[link.0 as usize].host.recv.replace(op).is_none());
        }
        for (link, op) in std::mem::take(&mut self.target_hands.recvs) {
            any = true;
            assert!(self.wires[link.0 as usize].target.recv.replace(op).is_none());
        }
        for (link, op) in std::mem::take(&mut self.host_hands.sends) {
            any = true;
            self.host_sends(link, op);
        }
        for (link, op) in std::mem::take(&mut self.target_hands.sends) {
            any = true;
            self.target_sends(link, op);
        }
        for link in std::mem::take(&mut self.host_hands.departed) {
            self.wires[link.0 as usize].host.left = true;
            any = true;
        }
        for link in std::mem::take(&mut self.target_hands.departed) {
            self.wires[link.0 as usize].target.left = true;
            any = true;
        }
        for message in std::mem::take(&mut self.target_hands.posted) {
            any = true;
            match message {
                Message::Store(volume, op) => {
                    self.target(|shard, cx| {
                        shard.handle_message(cx, Message::Stored(volume, op.ticket, true))
                    });
                }
                Message::Nvme(NvmeMessage::Compute(..)) => unreachable!("nobody proves anything here"),
                _ => {}
            }
        }
        for at in 0..self.wires.len() {
            any |= self.arrive(at);
        }
        any
    }

    fn dial(&mut self, dial: Dial) {
        let link = LinkId(self.wires.len() as u64);
        let mangler = Mangler::new(self.protocol, self.permille, &mut self.chance);
        self.wires.push(Wire { host: End::default(), target: End::default(), mangler });
        self.tally.connections += 1;
        let local = "127.0.0.1:50000".parse().unwrap();
        let listener = ListenerId(u16::from(self.protocol == Protocol::Nvme));
        let accepted = AcceptedSocket { listener, local: dial.to, peer: local, cpu: None };
        self.target(|shard, cx| shard.handle_arrival(cx, link, LinkArrival::Accepted(accepted)));
        let dialled = Dialled { link, local, peer: dial.to };
        self.host(|client, cx| client.handle_dialled(cx, dial.id, Ok(dialled)));
    }

    fn host_sends(&mut self, link: LinkId, op: SendOp) {
        let bytes = testkit::delivery::send_op_bytes(&op);
        assert!(!has_mark(&bytes), "seed {}: memory leaves that nobody asked for", self.seed);
        let wire = &mut self.wires[link.0 as usize];
        let gone = wire.host.left || wire.target.left;
        if !gone {
            wire.target.inbox.push_back(bytes);
        }
        let how = if gone { Err(RESET) } else { Ok(()) };
        self.host(|client, cx| {
            client.handle_written(cx, link, how);
            client.handle_send_released(cx, link, op);
        });
    }

    fn target_sends(&mut self, link: LinkId, op: SendOp) {
        let bytes = testkit::delivery::send_op_bytes(&op);
        let wire = &mut self.wires[link.0 as usize];
        let gone = wire.host.left || wire.target.left;
        if !gone {
            let said = wire.mangler.say(&bytes, &mut self.chance);
            wire.host.inbox.extend(said.into_iter().filter(|segment| !segment.is_empty()));
        }
        let how = if gone { Err(RESET) } else { Ok(()) };
        self.target(|shard, cx| {
            shard.handle_written(cx, link, how);
            shard.handle_send_released(cx, link, op);
        });
    }

    /// What is on its way arrives at both ends of a wire.
    fn arrive(&mut self, at: usize) -> bool {
        let link = LinkId(at as u64);
        let (loans, wire) = (self.loans, &mut self.wires[at]);
        let over = wire.target.left;
        let host = receive(&self.pool, &mut wire.host, over, loans);
        let over = wire.host.left;
        let target = receive(&self.their_pool, &mut wire.target, over, false);
        let any = host.is_some() || target.is_some();
        if let Some((op, came)) = host {
            self.host(|client, cx| client.handle_recv(cx, link, op, came));
        }
        if let Some((op, came)) = target {
            self.target(|shard, cx| shard.handle_recv(cx, link, op, came));
        }
        any
    }
}

/// What a receive that is out brings, if it brings anything; `over`: the other end has left.
fn receive(pool: &Pool, end: &mut End, over: bool, loans: bool) -> Option<(RecvOp, Received)> {
    if end.left {
        return Some((end.recv.take()?, Received::Cancelled));
    }
    let Some(segment) = end.inbox.front_mut() else {
        return if over { Some((end.recv.take()?, Received::End)) } else { None };
    };
    let mut op = end.recv.take()?;
    if loans {
        let len = segment.len().min(8192);
        let mut pages = pool.take_sg(MemoryClass::Wire, len).expect("there is memory");
        pages.copy_from(0, &segment[..len]);
        segment.drain(..len);
        end.inbox.pop_front_if_empty();
        return Some((op, Received::Loaned(pages.freeze())));
    }
    let mut taken = 0;
    if let Some(direct) = &mut op.direct {
        taken = direct.want.len().min(segment.len());
        let mut from = 0;
        for slice in direct.data.slices_mut(direct.want.start..direct.want.start + taken) {
            let len = slice.len();
            slice.copy_from_slice(&segment[from..from + len]);
            from += len;
        }
    }
    let full = op.direct.as_ref().is_none_or(|direct| taken == direct.want.len());
    let rest = (segment.len() - taken).min(op.stage_len);
    if full && rest > 0 {
        let mut stage = pool.take(MemoryClass::Wire, op.stage_len).expect("there is memory");
        stage.set_len(rest);
        stage.copy_from_slice(&segment[taken..taken + rest]);
        op.stage = Some(stage);
        taken += rest;
    }
    segment.drain(..taken);
    end.inbox.pop_front_if_empty();
    Some((op, Received::Bytes(taken)))
}

trait PopEmpty {
    fn pop_front_if_empty(&mut self);
}

impl PopEmpty for VecDeque<Vec<u8>> {
    fn pop_front_if_empty(&mut self) {
        if self.front().is_some_and(Vec::is_empty) {
            self.pop_front();
        }
    }
}

/// Fills all memory with the mark.
fn mark(pool: &Pool) {
    let mut all = Vec::new();
    for size in [1 << 20, 1 << 16, 1 << 12, 512] {
        while let Some(mut memory) = pool.take_sg(MemoryClass::Wire, size) {
            memory.slices_mut(0..size).for_each(|slice| {
                slice.chunks_mut(MARK.len()).for_each(|chunk| chunk.copy_from_slice(&MARK[..chunk.len()]));
            });
            all.push(memory);
        }
    }
}

fn has_mark(bytes: &[u8]) -> bool {
    bytes.windows(MARK.len()).any(|window| window == MARK)
}

fn iscsi_settings() -> IscsiSettings {
    let isid = Isid::random([1, 2, 3], 4);
    let portals = vec!["127.0.0.1:3260".parse().unwrap()];
    IscsiSettings::new(portals, target::TARGET_NAME.to_owned(), 0, "iqn.2026-11.test:host".to_owned(), isid)
}

fn nvme_settings() -> NvmeSettings {
    let host = Nqn::parse("nqn.2026-11.test:host").unwrap();
    let addresses = vec!["127.0.0.1:4420".parse().unwrap()];
    NvmeSettings::new(
        addresses,
        Nqn::parse(target::SUBSYSTEM_NQN).unwrap(),
        1,
        host,
        HostId::new([1; 16]).unwrap(),
    )
}
