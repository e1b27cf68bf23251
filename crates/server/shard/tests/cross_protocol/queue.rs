//! One NVMe/TCP queue of a host in the simulated world: the host code that ships, on a connection that splits
//! data at random. The test fails if the controller violates the protocol.

use std::collections::VecDeque;
use std::io::Read;

use blockwire_shard::Shard;
use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Time};
use endpoint::ListenerId;
use nvme::{Sqe, Status};
use nvme_tcp::{ConnectedQueueSize, HostQueue, HostQueueSettings, LinkFault};
use sim::{Peer, PeerEnd, SimRng, World};
use stream::{
    Connection, ConnectionClose, DirectBuffer, HostConnection, HostEvent, LinkNumber, Received, RecvOp, Tag,
};

const LINK: LinkNumber = LinkNumber(0);

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub id: u64,
    pub status: Status,
    pub result: u64,
    pub data: Vec<u8>,
}

struct Request {
    id: u64,
    sqe: Sqe,
    out: Vec<u8>,
    read: usize,
}

/// Watches PDUs go by in one direction.
#[derive(Default)]
struct Watch {
    header: Vec<u8>,
    /// Bytes until the next header.
    rest: usize,
    /// R2Ts that are not the first of their commands.
    later_r2ts: u64,
    /// H2CData PDUs behind which another one follows for the same R2T.
    cut_bursts: u64,
}

impl Watch {
    /// Every header has so many bytes at least.
    const HEADER: usize = 24;

    fn see(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let skipped = self.rest.min(bytes.len());
            self.rest -= skipped;
            let taken = (Self::HEADER - self.header.len()).min(bytes.len() - skipped);
            self.header.extend_from_slice(&bytes[skipped..skipped + taken]);
            bytes = &bytes[skipped + taken..];
            if self.header.len() < Self::HEADER {
                continue;
            }
            let word = |at: usize| u32::from_le_bytes(*self.header[at..].first_chunk().expect("24 bytes"));
            self.rest = (word(4) as usize).saturating_sub(Self::HEADER);
            self.later_r2ts += u64::from(self.header[0] == 0x09 && word(12) > 0);
            self.cut_bursts += u64::from(self.header[0] == 0x06 && self.header[1] & 4 == 0);
            self.header.clear();
        }
    }
}

/// A connection, and the queue that it becomes.
pub struct Queue {
    pub peer: Peer,
    queue: HostQueue,
    /// Commands that may be in work.
    window: usize,
    pool: Pool,
    entropy: Entropy,
    chance: SimRng,
    op: Option<RecvOp>,
    inbox: VecDeque<u8>,
    ready: bool,
    closed: bool,
    /// What the queue has no room for yet, in order.
    waiting: VecDeque<Request>,
    in_work: Vec<(Tag, u64)>,
    pub ended: Vec<Ended>,
    /// Bits that turn over on the wire, in thousandths of what is sent or comes at once.
    pub noise_permille: u32,
    /// How many have.
    pub noises: u32,
    /// The queue wants its connection closed.
    wants_shut: bool,
    /// Some bit has turned over: what the controller sends may look like anything.
    was_noisy: bool,
    /// What the host sends, and what the controller does.
    watches: [Watch; 2],
}

impl Queue {
    /// Connects to the listener for subsystems.
    pub fn open(world: &mut World<Shard>, pool: &Pool, limits: HostQueueSettings, chance: SimRng) -> Self {
        let peer = world.connect(ListenerId(1));
        let mut entropy = Entropy::new([5; 32]);
        let queue = HostQueue::new(&mut Cx { now: world.now(), pool, entropy: &mut entropy }, limits);
        Queue {
            peer,
            queue,
            window: 1,
            pool: pool.clone(),
            entropy,
            chance,
            op: None,
            inbox: VecDeque::new(),
            ready: false,
            closed: false,
            waiting: VecDeque::new(),
            in_work: vec![],
            ended: vec![],
            noise_permille: 0,
            noises: 0,
            wants_shut: false,
            was_noisy: false,
            watches: Default::default(),
        }
    }

    /// Its Connect has succeeded.
    pub fn opened(&mut self, size: ConnectedQueueSize) {
        self.window = usize::from(size.entries) - 1;
        self.queue.finish_connect(size);
    }

    /// Sends a command when there is room for it, behind all that were sent before.
    pub fn send(&mut self, id: u64, sqe: Sqe, out: Vec<u8>, read: usize) {
        self.waiting.push_back(Request { id, sqe, out, read });
    }

    /// R2Ts behind the first of a command, and H2CData PDUs before the last of an R2T, since it was asked.
    pub fn pieces(&mut self) -> u64 {
        let [sent, came] = &mut self.watches;
        std::mem::take(&mut came.later_r2ts) + std::mem::take(&mut sent.cut_bursts)
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Commands on the wire: their names on it.
    pub fn cids(&self) -> Vec<u16> {
        self.in_work.iter().filter_map(|(tag, _)| self.queue.command_id(*tag)).collect()
    }

    /// Closes the connection without a word.
    pub fn hang_up(&mut self, world: &mut World<Shard>, reset: bool) {
        if reset {
            world.reset(self.peer);
        } else {
            world.shutdown_write(self.peer);
        }
        self.with(world.now(), |queue, cx| queue.close(cx, ConnectionClose::Now));
        self.poll(world);
    }

    fn with<T>(&mut self, now: Time, act: impl FnOnce(&mut HostQueue, &mut Cx<'_>) -> T) -> T {
        act(&mut self.queue, &mut Cx { now, pool: &self.pool, entropy: &mut self.entropy })
    }

    fn judge(&self, result: Result<(), LinkFault>) {
        if let Err(violation) = result
            && !self.was_noisy
        {
            panic!("{:?}: the controller breaks a rule: {violation:?}", self.peer);
        }
    }

    /// Takes what has come, and sends what waits.
    pub fn poll(&mut self, world: &mut World<Shard>) {
        let mut bytes = world.receive(self.peer);
        self.watches[1].see(&bytes);
        self.disturb(&mut bytes);
        self.inbox.extend(bytes);
        let now = world.now();
        if self.queue.poll_timeout().is_some_and(|due| due <= now) {
            self.with(now, |queue, cx| queue.handle_timeout(cx));
            assert!(self.was_noisy || self.queue.poll_link_fault().is_none(), "{:?}", self.peer);
        }
        loop {
            let mut moved = self.submit(now);
            moved |= self.receive(now, world.peer_end(self.peer) != PeerEnd::Open);
            moved |= self.transmit(world, now);
            self.take_events();
            if !moved {
                break;
            }
        }
        if std::mem::take(&mut self.wants_shut) && self.was_noisy {
            world.shutdown_write(self.peer);
        }
    }

    /// One of the bits turns over, perhaps, once the queue's digests are agreed.
    fn disturb(&mut self, bytes: &mut [u8]) {
        let noisy = self.ready && self.noise_permille > 0 && !bytes.is_empty();
        if noisy && self.chance.chance_permille(self.noise_permille) {
            let at = self.chance.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.chance.below(8);
            self.noises += 1;
            self.was_noisy = true;
        }
    }

    fn submit(&mut self, now: Time) -> bool {
        if !self.ready || self.queue.commands_in_work() >= self.window {
            return false;
        }
        let Some(request) = self.waiting.pop_front() else { return false };
        let Request { id, sqe, out, read } = request;
        let payload = if !out.is_empty() {
            let mut memory =
                self.pool.take_sg(MemoryClass::Solicited, out.len()).expect("the host has memory");
            memory.copy_from(0, &out);
            Payload::Out(memory.freeze())
        } else if read > 0 {
            Payload::In(self.pool.take_sg(MemoryClass::Solicited, read).expect("the host has memory"))
        } else {
            Payload::None
        };
        match self.with(now, |queue, cx| queue.submit(cx, sqe, payload)) {
            Ok(tag) => self.in_work.push((tag, id)),
            // It ends already.
            Err(_) => self.lose(id),
        }
        true
    }

    fn lose(&mut self, id: u64) {
        self.ended.push(Ended { id, status: Status::HOST_PATH_ERROR, result: 0, data: vec![] });
    }

    fn receive(&mut self, now: Time, over: bool) -> bool {
        let result = self.with(now, |queue, cx| queue.resume_parsing(cx));
        self.judge(result);
        if self.queue.poll_link_to_close().is_some() {
            self.wants_shut = true;
            self.inbox.clear();
            if let Some(op) = self.op.take() {
                let _ = self.with(now, |queue, cx| queue.handle_recv(cx, LINK, op, Received::Cancelled));
            }
            return true;
        }
        if self.op.is_none() {
            self.op = self.with(now, |queue, cx| queue.poll_recv(cx, LINK));
        }
        let Some(op) = self.op.take() else { return false };
        if self.inbox.is_empty() {
            if over {
                let _ = self.with(now, |queue, cx| queue.handle_recv(cx, LINK, op, Received::End));
                return true;
            }
            self.op = Some(op);
            return false;
        }
        let (op, came) = self.fill(op);
        let result = self.with(now, |queue, cx| queue.handle_recv(cx, LINK, op, came));
        self.judge(result);
        true
    }

    /// A chance part of what has come, where it belongs.
    fn fill(&mut self, mut op: RecvOp) -> (RecvOp, Received) {
        let most = match self.chance.below(3) {
            0 => self.chance.between(1, self.inbox.len() as u64) as usize,
            _ => self.inbox.len(),
        };
        let mut took = 0;
        if let Some(DirectBuffer { data, want, .. }) = &mut op.direct {
            for slice in data.slices_mut(want.clone()) {
                let now = slice.len().min(most - took);
                self.inbox.read_exact(&mut slice[..now]).expect("it was counted");
                took += now;
            }
        }
        let full = op.direct.as_ref().is_none_or(|direct| took == direct.want.len());
        let rest = (most - took).min(op.stage_len);
        if full && rest > 0 {
            let mut stage = self.pool.take(MemoryClass::Wire, rest).expect("the host has memory");
            let rest = rest.min(stage.capacity());
            stage.set_len(rest);
            self.inbox.read_exact(&mut stage[..rest]).expect("it was counted");
            op.stage = Some(stage);
            took += rest;
        }
        (op, Received::Bytes(took))
    }

    fn transmit(&mut self, world: &mut World<Shard>, now: Time) -> bool {
        let Some(op) = self.with(now, |queue, cx| queue.poll_send(cx, LINK)) else { return false };
        let mut bytes = testkit::delivery::send_op_bytes(&op);
        self.watches[0].see(&bytes);
        self.disturb(&mut bytes);
        world.send(self.peer, &bytes);
        self.with(now, |queue, cx| {
            queue.handle_written(cx, LINK, Ok(()));
            queue.handle_send_released(cx, LINK, op);
        });
        true
    }

    fn take_events(&mut self) {
        while let Some(event) = self.queue.poll_event() {
            match event {
                HostEvent::Ready => self.ready = true,
                HostEvent::Completed { tag, response, payload } => {
                    let at = self.in_work.iter().position(|(known, _)| *known == tag);
                    let (_, id) = self.in_work.remove(at.expect("a command ends once"));
                    let completion = response.completion();
                    let data = match payload {
                        Payload::In(memory) => {
                            let mut bytes = vec![0; memory.len()];
                            memory.freeze().copy_to(0, &mut bytes);
                            bytes
                        }
                        Payload::Out(_) | Payload::None => vec![],
                    };
                    let (status, result) = (completion.status, completion.result);
                    self.ended.push(Ended { id, status, result, data });
                }
                HostEvent::Closed => {
                    self.closed = true;
                    for request in std::mem::take(&mut self.waiting) {
                        self.lose(request.id);
                    }
                }
            }
        }
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let wire: Vec<u16> = self.cids();
        write!(
            f,
            "{:?}: {wire:?} on the wire, {} wait, {} bytes unread",
            self.peer,
            self.waiting.len(),
            self.inbox.len()
        )
    }
}
