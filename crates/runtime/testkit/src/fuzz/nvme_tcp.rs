//! Fuzz functions for NVMe/TCP. Each makes a queue with a server, sends it the bytes as a hostile host would,
//! and checks: no panic, every command ends once, the connection closes and all memory comes back.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Entropy, Errno, MemoryClass, Pool, Time};
use nvme::{Completion, Opcode, Sqe, Status};
use nvme_tcp::wire::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, Flags, H2cData, IcReq, PduType, R2t, crc32c_digest,
};
use nvme_tcp::{ConnectedQueueSize, ControllerQueue, QueueLimits, ServerTls};
use stream::{Connection, LinkNumber, Received, RecvOp, Tag, TargetConnection, TargetEvent};
use tls::{Channel, ClientContext, Handshake, HandshakeProgress, Psk, PskLookup, ServerContext};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::delivery::RecvDelivery;

/// Longer inputs show nothing new.
const INPUT_MAX: usize = 64 << 10;
const LINK: LinkNumber = LinkNumber(0);
/// Longest data that the server takes or gives.
const DATA_MAX: u32 = 64 << 10;

/// What a fuzz run executed, so that a corpus test can require that it got far enough.
#[derive(Debug, Default)]
pub struct RunCounts {
    pub commands: usize,
    pub received: usize,
}

struct FuzzScene {
    pool: Pool,
    entropy: Entropy,
    now: Time,
    queue: ControllerQueue,
    op: Option<RecvOp>,
    inbox: VecDeque<u8>,
    sent: Vec<u8>,
    delivery: RecvDelivery,
    shut: bool,
    closed: bool,
    /// Commands that have not ended.
    live: BTreeSet<Tag>,
    /// Those that are answered later.
    kept: VecDeque<Tag>,
    /// With the command's last dword it chooses what the server does.
    mood: u8,
    reached: RunCounts,
}

impl FuzzScene {
    fn new(seed: u64) -> Self {
        let pool = Pool::new(4 << 20);
        let mut entropy = Entropy::new([9; 32]);
        let now = Time(1);
        let limits = QueueLimits { max_h2c_data: 8192, r2t_len_max: 16384, ..QueueLimits::default() };
        let queue = ControllerQueue::new(&mut Cx { now, pool: &pool, entropy: &mut entropy }, limits);
        FuzzScene {
            pool,
            entropy,
            now,
            queue,
            op: None,
            inbox: VecDeque::new(),
            sent: Vec::new(),
            delivery: RecvDelivery {
                chunks: vec![1 + (seed >> 4) as usize * 37 % 9000],
                loaned: seed & 4 != 0,
                ..RecvDelivery::unlimited()
            },
            shut: false,
            closed: false,
            live: BTreeSet::new(),
            kept: VecDeque::new(),
            mood: 0,
            reached: RunCounts::default(),
        }
    }

    /// An open queue with the digests that the seed chooses.
    fn with_open_queue(seed: u64) -> Self {
        let mut scene = Self::new(seed);
        scene.receive_bytes(IcReq::new((seed >> 3) as u8 % 8, seed & 1 != 0, seed & 2 != 0, 3).as_bytes());
        let mut connect = Sqe::new_zeroed();
        connect.opcode = Opcode::FABRICS;
        connect.flags = 0x40;
        connect.nsid = U32::new(1);
        scene.mood = 3;
        let bytes = scene.encode_pdu(CapsuleCmd::new(connect).as_bytes(), &[]);
        scene.receive_bytes(&bytes);
        let tag = scene.kept.pop_front().expect("a Connect");
        let size = ConnectedQueueSize { entries: 16, flow_control: seed & 8 == 0, in_capsule_max: 8192 };
        assert!(scene.with_queue(|queue, cx| queue.finish_connect(cx, size)));
        scene.send_answer(tag, Completion::SUCCESS);
        scene.pump();
        scene.sent.clear();
        scene.mood = 0;
        scene
    }

    /// A PDU of a host that keeps to the terms.
    fn encode_pdu(&self, header: &[u8], data: &[u8]) -> Vec<u8> {
        let terms = self.queue.parameters();
        let mut bytes = header.to_vec();
        let end = header.len() + if terms.header_digest { 4 } else { 0 };
        let tail = if terms.data_digest && !data.is_empty() { 4 } else { 0 };
        bytes[1] |=
            Flags(0).with(Flags::HEADER_DIGEST, terms.header_digest).with(Flags::DATA_DIGEST, tail > 0).0;
        bytes[3] = if data.is_empty() { 0 } else { end as u8 };
        bytes[4..8].copy_from_slice(&((end + data.len() + tail) as u32).to_le_bytes());
        if terms.header_digest {
            let sum = crc32c_digest(&bytes);
            bytes.extend(sum);
        }
        bytes.extend(data);
        if tail > 0 {
            bytes.extend(crc32c_digest(data));
        }
        bytes
    }

    fn with_queue<T>(&mut self, act: impl FnOnce(&mut ControllerQueue, &mut Cx<'_>) -> T) -> T {
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        act(&mut self.queue, &mut cx)
    }

    fn receive_bytes(&mut self, bytes: &[u8]) {
        if !self.shut {
            self.inbox.extend(bytes);
        }
        self.pump();
    }

    fn pump(&mut self) {
        loop {
            let mut moved = self.run_receive();
            moved |= self.serve_events();
            let _ = self.with_queue(|queue, cx| queue.resume_parsing(cx));
            moved |= self.serve_events();
            while let Some(handshake) = self.queue.poll_handshake() {
                self.queue.handle_handshake(Some(handshake.step()));
                moved = true;
            }
            if let Some(op) = self.with_queue(|queue, cx| queue.poll_send(cx, LINK)) {
                let from = self.sent.len();
                self.sent.resize(from + op.len, 0);
                assert_eq!(op.copy_to(0, &mut self.sent[from..]), op.len);
                self.with_queue(|queue, cx| {
                    queue.handle_written(cx, LINK, Ok(()));
                    queue.handle_send_released(cx, LINK, op);
                });
                moved = true;
            }
            self.handle_shut();
            if !moved && !self.run_receive() {
                return;
            }
        }
    }

    fn run_receive(&mut self) -> bool {
        if self.op.is_none() && !self.shut {
            self.op = self.with_queue(|queue, cx| queue.poll_recv(cx, LINK));
        }
        if self.inbox.is_empty() || self.op.is_none() {
            return false;
        }
        let Some(op) = self.op.take() else { return false };
        let (op, came) = self.delivery.fill_recv(&self.pool, op, &mut self.inbox);
        let _ = self.with_queue(|queue, cx| queue.handle_recv(cx, LINK, op, came));
        true
    }

    fn handle_shut(&mut self) {
        if self.queue.poll_link_to_close().is_some() {
            assert!(!self.shut, "a link is named once");
            self.shut = true;
            self.inbox.clear();
            if let Some(op) = self.op.take() {
                let _ = self
                    .with_queue(|queue, cx| queue.handle_recv(cx, LINK, op, Received::Failed(Errno(104))));
            }
            self.serve_events();
        }
    }

    fn serve_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.queue.poll_event() {
            any = true;
            match event {
                TargetEvent::Command { tag, command, data_out } => {
                    assert!(self.live.insert(tag), "a tag names one command");
                    assert!(self.live.len() <= 16, "no more commands than entries");
                    self.reached.commands += 1;
                    self.handle_command(tag, &command, data_out);
                }
                TargetEvent::DataReceived { tag, .. } => {
                    self.reached.received += 1;
                    self.send_answer(tag, Completion::SUCCESS);
                }
                TargetEvent::Aborted { tag } => self.retire_task(tag),
                TargetEvent::Closed => {
                    assert!(!self.closed, "closed once");
                    self.closed = true;
                }
            }
        }
        any
    }

    fn handle_command(&mut self, tag: Tag, command: &Sqe, data_out: u32) {
        let mood = self.mood.wrapping_add(command.cdw(15) as u8);
        let len = command.dptr.length.get();
        if len > DATA_MAX {
            return self.send_answer(tag, Status::SGL_LENGTH_INVALID.into());
        }
        match mood % 8 {
            0 => self.send_answer(tag, Status::LBA_OUT_OF_RANGE.into()),
            1 => self.retire_task(tag),
            2 | 3 => self.kept.push_back(tag),
            _ if data_out > 0 => {
                let class = self.queue.write_memory_class(tag);
                let Some(memory) = self.pool.take_sg(class, data_out as usize) else {
                    return self.send_answer(tag, Status::INTERNAL_ERROR.into());
                };
                self.with_queue(|queue, cx| queue.recv_data(cx, tag, 0, memory));
            }
            _ => {
                let Some(data) = self.pool.take_sg(MemoryClass::Solicited, len as usize) else {
                    return self.send_answer(tag, Status::INTERNAL_ERROR.into());
                };
                self.with_queue(|queue, cx| queue.send_data(cx, tag, 0, data.freeze()));
                self.send_answer(tag, Completion::SUCCESS);
            }
        }
    }

    fn send_answer(&mut self, tag: Tag, completion: Completion) {
        assert!(self.live.remove(&tag), "a command ends once");
        self.kept.retain(|kept| *kept != tag);
        self.with_queue(|queue, cx| queue.respond(cx, tag, completion));
    }

    fn retire_task(&mut self, tag: Tag) {
        assert!(self.live.remove(&tag), "a command ends once");
        self.kept.retain(|kept| *kept != tag);
        self.with_queue(|queue, cx| queue.end_without_response(cx, tag));
    }

    /// R2Ts among what was sent, which is forgotten.
    fn take_r2ts(&mut self) -> Vec<R2t> {
        let mut r2ts = Vec::new();
        let sent = std::mem::take(&mut self.sent);
        let mut rest = &sent[..];
        while let Ok((common, _)) = CommonHeader::read_from_prefix(rest) {
            let (pdu, behind) = rest.split_at(common.plen.get() as usize);
            assert!(
                [C2hData::TYPE, CapsuleResp::TYPE, R2t::TYPE, PduType::C2H_TERM_REQ]
                    .contains(&common.pdu_type)
            );
            r2ts.extend(R2t::from_prefix(pdu).filter(|_| common.pdu_type == R2t::TYPE));
            rest = behind;
        }
        r2ts
    }

    /// Time passes until everything has ended.
    fn finish_and_check(mut self) -> RunCounts {
        while let Some(tag) = self.kept.pop_front() {
            self.send_answer(tag, Completion::SUCCESS);
        }
        self.pump();
        if !self.shut {
            let op = self.op.take().or_else(|| self.with_queue(|queue, cx| queue.poll_recv(cx, LINK)));
            match op {
                Some(op) => {
                    let _ = self.with_queue(|queue, cx| queue.handle_recv(cx, LINK, op, Received::End));
                }
                // It waits for a place: the server never gives one, so the connection is closed.
                None => self.with_queue(|queue, cx| queue.close(cx, stream::ConnectionClose::Now)),
            }
            self.pump();
        }
        for _ in 0..4 {
            self.now = self.now + Duration::from_secs(60);
            self.with_queue(|queue, cx| queue.handle_timeout(cx));
            self.pump();
        }
        assert!(self.closed && self.live.is_empty());
        let FuzzScene { queue, pool, reached, .. } = self;
        drop(queue);
        assert_eq!((pool.usage().lent, pool.usage().reserved), (0, 0), "all memory came back");
        reached
    }
}

/// The first bytes choose the terms, and how the stream is cut.
fn split_seed(data: &[u8]) -> (u64, &[u8]) {
    match data.split_first_chunk::<2>() {
        Some((head, rest)) => (u64::from(u16::from_le_bytes(*head)), &rest[..rest.len().min(INPUT_MAX)]),
        None => (0, data),
    }
}

/// Bytes on a fresh connection, or on an open queue.
pub fn capsules(data: &[u8]) {
    let (seed, bytes) = split_seed(data);
    let mut scene = if seed & 8 == 0 { FuzzScene::new(seed) } else { FuzzScene::with_open_queue(seed) };
    scene.mood = 4;
    scene.receive_bytes(bytes);
    scene.finish_and_check();
}

/// PDUs made of the bytes, with lengths and digests that let them in.
pub fn pdus(data: &[u8]) {
    run_pdus(data);
}

/// Eight bytes make a PDU: a command, data for an R2T that came, or an answer of the server's.
pub fn run_pdus(data: &[u8]) -> RunCounts {
    let (seed, bytes) = split_seed(data);
    let mut scene = FuzzScene::with_open_queue(seed);
    let mut asked: Vec<R2t> = Vec::new();
    for part in bytes.chunks_exact(8).take(256) {
        let [kind, cid, a, b, c, d, e, f] = *part else { unreachable!("eight bytes") };
        asked.extend(scene.take_r2ts());
        let len = u32::from(u16::from_le_bytes([a, b])) % 20_000;
        let bytes = match kind % 4 {
            0 | 1 => {
                let mut sqe = Sqe::new_zeroed();
                sqe.opcode = Opcode(c % 4);
                // Few identifiers, so that they meet again; now and then a field is wrong.
                sqe.cid = U16::new(u16::from(cid % 12));
                sqe.flags = if d == 0 { e } else { 0x40 };
                sqe.dptr.length = U32::new(len);
                sqe.dptr.identifier = if d % 2 == 0 { 0x5a } else { 0x01 };
                sqe.cdw10[5] = U32::new(u32::from(f));
                let carried = if d % 2 == 0 { 0 } else { (len as usize).min(8192) };
                scene.encode_pdu(CapsuleCmd::new(sqe).as_bytes(), &vec![e; carried])
            }
            2 if !asked.is_empty() => {
                let r2t = asked.remove(usize::from(cid) % asked.len());
                let end = r2t.r2to.get() + r2t.r2tl.get();
                let mut all = Vec::new();
                let mut at = r2t.r2to.get();
                while at < end {
                    let len = (end - at).min(1 + u32::from(a) * 32);
                    let skew = u32::from(c == 0);
                    let header =
                        H2cData::new(r2t.cccid.get(), r2t.ttag.get(), at + skew, len, at + len == end);
                    all.extend(scene.encode_pdu(header.as_bytes(), &vec![e; len as usize]));
                    at += len;
                }
                all
            }
            _ => {
                if let Some(tag) = scene.kept.pop_front() {
                    scene.send_answer(tag, Completion::SUCCESS);
                }
                Vec::new()
            }
        };
        scene.receive_bytes(&bytes);
    }
    scene.finish_and_check()
}

struct OneKey;

/// The identity and the key of the host.
const IDENTITY: &[u8] = b"NVMe0R01 nqn.host nqn.subsystem";
const KEY: [u8; 32] = [0x4b; 32];
const SUITE: [u8; 2] = [0x13, 0x01];

impl PskLookup for OneKey {
    fn find_psk(&self, identity: &[u8]) -> Option<Psk> {
        (identity == IDENTITY).then(|| Psk::new(SUITE, &KEY))
    }
}

impl FuzzScene {
    /// A connection where TLS may be used, or must be.
    fn expecting_tls(seed: u64) -> Self {
        let mut scene = Self::new(seed);
        let context = ServerContext::new(Arc::new(OneKey)).expect("OpenSSL has TLS 1.3");
        scene.queue.expect_tls(ServerTls { context, is_required: seed & 1 != 0 });
        scene.mood = 4;
        scene
    }

    /// Shakes hands as a host that has the key.
    fn shake(&mut self) -> Channel {
        let context = ClientContext::new(IDENTITY.to_vec(), Psk::new(SUITE, &KEY)).expect("so has ours");
        let mut side = Handshake::new_client(&context).expect("so has ours");
        for _ in 0..16 {
            match side.step() {
                HandshakeProgress::Wait(mut waiting) => {
                    let outgoing = waiting.take_outgoing();
                    self.receive_bytes(&outgoing);
                    waiting.feed_incoming(&std::mem::take(&mut self.sent));
                    side = waiting;
                }
                HandshakeProgress::Done(mut channel) => {
                    self.feed_records(&mut channel, |_| {});
                    return channel;
                }
                HandshakeProgress::Failed(fault, _) => panic!("the handshake fails: {fault}"),
            }
        }
        panic!("the handshake has no end")
    }

    /// Sends what a channel has sealed, as `change` leaves it.
    fn feed_records(&mut self, channel: &mut Channel, change: impl FnOnce(&mut [u8])) {
        let mut records = vec![0; channel.outgoing_len()];
        let len = channel.take_outgoing(&mut records);
        records.truncate(len);
        change(&mut records);
        self.receive_bytes(&records);
    }
}

/// Bytes on a connection where TLS may be used: as they are, or in records of a host that has the key, some of which
/// are changed on the way. Behind a changed one nothing is served.
pub fn records(data: &[u8]) {
    run_records(data);
}

/// See [`records`].
pub fn run_records(data: &[u8]) -> RunCounts {
    let (seed, bytes) = split_seed(data);
    let mut scene = FuzzScene::expecting_tls(seed);
    if seed & 8 == 0 {
        scene.receive_bytes(bytes);
        return scene.finish_and_check();
    }
    let mut channel = scene.shake();
    assert_eq!(scene.queue.tls_identity(), Some(IDENTITY));
    let hello = IcReq::new(0, seed & 2 != 0, seed & 4 != 0, 3);
    let mut served = None;
    // The first byte of a part says how long it is, and whether a bit of its record is changed.
    let mut rest = [hello.as_bytes(), bytes].concat();
    let mut is_first = true;
    while !rest.is_empty() {
        let len = if is_first { size_of::<IcReq>() } else { 1 + usize::from(rest[0]) * 17 };
        let part: Vec<u8> = rest.drain(..len.min(rest.len())).collect();
        channel.encrypt(&part).expect("a host seals what it likes");
        let is_changed = !is_first && part[0] == 0xff;
        is_first = false;
        scene.feed_records(&mut channel, |records| {
            let at = part.len() % records.len().max(1);
            if let Some(byte) = records.get_mut(at).filter(|_| is_changed) {
                *byte ^= 1;
            }
        });
        if is_changed {
            served.get_or_insert(scene.reached.commands);
        }
    }
    let before = scene.reached.commands;
    assert!(served.is_none_or(|served| served == before), "a changed record is the end");
    scene.finish_and_check()
}
