//! A queue, the bytes of its host, and a server of one small disk.

use super::super::*;
use crate::LinkFault;
use crate::queue::LINK;
use crate::wire::{
    self, C2hData, CapsuleCmd, CapsuleResp, CommonHeader, FatalError, Flags, H2cData, IcReq, IcResp,
    PduFrame, PduLimits, PduType, R2t, Sender, TermReq, crc32c_digest,
};
use buf::crc32c::crc32c;
use buf::{Entropy, Errno, MemoryClass, Pool, Time};
use nvme::{Cqe, FabricsType, Opcode, SglDescriptor, Status};
use std::collections::VecDeque;
use stream::{Connection, Received, RecvOp, SendOp};
use testkit::delivery::RecvDelivery;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

pub const DISK_LEN: usize = 512 << 10;
pub const WRITE: Opcode = Opcode(1);
pub const READ: Opcode = Opcode(2);
pub const FLUSH: Opcode = Opcode(0);
pub const SIZE: ConnectedQueueSize =
    ConnectedQueueSize { entries: 8, flow_control: true, in_capsule_max: 8192 };

/// What the server does with commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Serves the disk: dword 10 is the offset.
    Serve,
    /// Keeps them: the test answers.
    Keep,
}

/// A received PDU of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    pub frame: PduFrame,
    pub header: Vec<u8>,
    pub data: Vec<u8>,
}

impl Got {
    pub fn cqe(&self) -> Cqe {
        assert_eq!(self.frame.pdu_type, PduType::CAPSULE_RESP, "{self:?}");
        CapsuleResp::from_prefix(&self.header).unwrap().cqe
    }
    pub fn status(&self) -> Status {
        self.cqe().completion().status
    }
    pub fn r2t(&self) -> R2t {
        assert_eq!(self.frame.pdu_type, PduType::R2T, "{self:?}");
        *R2t::from_prefix(&self.header).unwrap()
    }
    pub fn c2h(&self) -> C2hData {
        assert_eq!(self.frame.pdu_type, PduType::C2H_DATA, "{self:?}");
        *C2hData::from_prefix(&self.header).unwrap()
    }
    pub fn term(&self) -> FatalError {
        assert_eq!(self.frame.pdu_type, PduType::C2H_TERM_REQ, "{self:?}");
        TermReq::from_prefix(&self.header).unwrap().fatal_error()
    }
}

pub struct Pair {
    pub pool: Pool,
    pub entropy: Entropy,
    pub now: Time,
    pub queue: ControllerQueue,
    /// Bytes on their way to the queue.
    pub inbox: VecDeque<u8>,
    /// Bytes that the queue sent, not yet taken by the test.
    pub sent: Vec<u8>,
    /// A receive that waits for bytes.
    pub op: Option<RecvOp>,
    pub shut: bool,
    /// Batches are taken, but never written out.
    pub deaf: bool,
    pub stuck: Vec<SendOp>,
    pub mode: Mode,
    pub disk: Vec<u8>,
    /// Everything that was told, in order, for comparing runs.
    pub log: Vec<String>,
    /// Commands that the server keeps.
    pub kept: Vec<(Tag, Sqe)>,
    pub aborted: Vec<Tag>,
    pub closed: bool,
    pub violations: Vec<LinkFault>,
    /// Writes being received, with where they go.
    pub writes: Vec<(Tag, u32)>,
    /// How bytes come.
    pub delivery: RecvDelivery,
    /// Reads are answered in pieces of so many bytes.
    pub read_step: usize,
    /// Writes are received in stretches of so many bytes.
    pub write_step: usize,
    /// Payload that lies whole in the stage is used there; how often that was so.
    pub at_hand: Option<usize>,
}

/// How the host sends: what was settled, and the padding that it adds.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    pub header_digest: bool,
    pub data_digest: bool,
}

pub const PLAIN: Dialect = Dialect { header_digest: false, data_digest: false };

impl Dialect {
    /// A PDU of the host: header, digests, data behind `pdo` (0: where it may begin first).
    pub fn pdu(self, header: &[u8], pdo: u8, data: &[u8]) -> Vec<u8> {
        let mut bytes = header.to_vec();
        let end = header.len() + if self.header_digest { 4 } else { 0 };
        let pdo = if pdo == 0 { end } else { pdo.into() };
        let tail = if self.data_digest && !data.is_empty() { 4 } else { 0 };
        let flags =
            Flags(bytes[1]).with(Flags::HEADER_DIGEST, self.header_digest).with(Flags::DATA_DIGEST, tail > 0);
        bytes[1] = flags.0;
        let plen = if data.is_empty() { end } else { pdo + data.len() + tail };
        if !data.is_empty() {
            bytes[3] = pdo as u8;
        }
        bytes[4..8].copy_from_slice(&(plen as u32).to_le_bytes());
        if self.header_digest {
            bytes.extend(crc32c_digest(&bytes.clone()));
        }
        if !data.is_empty() {
            bytes.resize(pdo, 0);
            bytes.extend(data);
            if self.data_digest {
                bytes.extend(crc32c(data).to_le_bytes());
            }
        }
        bytes
    }

    pub fn capsule(self, sqe: &Sqe, data: &[u8]) -> Vec<u8> {
        self.pdu(CapsuleCmd::new(*sqe).as_bytes(), 0, data)
    }

    pub fn h2c(self, r2t: &R2t, at: u32, data: &[u8], last: bool) -> Vec<u8> {
        let header = H2cData::new(r2t.cccid.get(), r2t.ttag.get(), at, data.len() as u32, last);
        self.pdu(header.as_bytes(), 0, data)
    }
}

pub fn sqe(opcode: Opcode, cid: u16, offset: u32, identifier: u8, len: u32) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    sqe.opcode = opcode;
    sqe.flags = 0x40;
    sqe.cid = U16::new(cid);
    sqe.dptr = SglDescriptor { address: U64::ZERO, length: U32::new(len), reserved: [0; 3], identifier };
    sqe.cdw10[0] = U32::new(offset);
    sqe
}

pub fn read(cid: u16, offset: u32, len: u32) -> Sqe {
    sqe(READ, cid, offset, SglDescriptor::TRANSPORT, len)
}

pub fn write(cid: u16, offset: u32, len: u32) -> Sqe {
    sqe(WRITE, cid, offset, SglDescriptor::TRANSPORT, len)
}

pub fn write_here(cid: u16, offset: u32, len: u32) -> Sqe {
    sqe(WRITE, cid, offset, SglDescriptor::IN_CAPSULE, len)
}

pub fn connect(cid: u16) -> Sqe {
    let mut connect = sqe(Opcode::FABRICS, cid, 0, SglDescriptor::IN_CAPSULE, 1024);
    connect.nsid = U32::new(FabricsType::CONNECT.0.into());
    connect
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 256 + i * 7) as u8).collect()
}

impl Pair {
    /// A connection that was just accepted.
    pub fn fresh(limits: QueueLimits) -> Self {
        Self::with_pool(limits, Pool::new_poisoned(32 << 20))
    }

    fn with_pool(limits: QueueLimits, pool: Pool) -> Self {
        let mut entropy = Entropy::new([7; 32]);
        let now = Time(1_000_000_000);
        let queue = ControllerQueue::new(&mut Cx { now, pool: &pool, entropy: &mut entropy }, limits);
        Pair {
            pool,
            entropy,
            now,
            queue,
            inbox: VecDeque::new(),
            sent: Vec::new(),
            op: None,
            shut: false,
            deaf: false,
            stuck: Vec::new(),
            mode: Mode::Serve,
            disk: (0..DISK_LEN).map(|i| (i / 512 + i) as u8).collect(),
            log: Vec::new(),
            kept: Vec::new(),
            aborted: Vec::new(),
            closed: false,
            violations: Vec::new(),
            writes: Vec::new(),
            delivery: RecvDelivery::unlimited(),
            read_step: usize::MAX,
            write_step: usize::MAX,
            at_hand: None,
        }
    }

    /// An open queue on these parameters.
    pub fn open(request: IcReq, size: ConnectedQueueSize) -> Self {
        let mut pair = Self::fresh(QueueLimits::default());
        pair.establish(request, size);
        pair
    }

    /// An open queue without digests.
    pub fn plain() -> Self {
        Self::open(IcReq::new(0, false, false, 1), SIZE)
    }

    /// The same with memory that keeps what was there last, as in production.
    pub fn unpoisoned() -> Self {
        let mut pair = Self::with_pool(QueueLimits::default(), Pool::new(32 << 20));
        pair.establish(IcReq::new(0, false, false, 1), SIZE);
        pair
    }

    /// ICReq and Connect, with whatever splits are set.
    pub fn establish(&mut self, request: IcReq, size: ConnectedQueueSize) {
        let mode = std::mem::replace(&mut self.mode, Mode::Keep);
        self.feed(request.as_bytes());
        assert_eq!(self.sent.len(), IcResp::LEN, "{:?}", self.violations);
        self.sent.clear();
        self.feed(&self.dialect().capsule(&connect(0xffff), &[0xc0; 1024]));
        let (tag, _) = self.kept.pop().expect("a Connect");
        assert!(self.with_cx(|queue, cx| queue.finish_connect(cx, size)));
        self.answer(tag, Completion::SUCCESS);
        self.pump();
        let answer = self.take().pop().unwrap().cqe();
        let sqhd = if size.flow_control { 1 } else { u16::MAX };
        assert_eq!((answer.completion(), answer.sqhd.get()), (Completion::SUCCESS, sqhd));
        self.mode = mode;
        self.log.clear();
    }

    pub fn dialect(&self) -> Dialect {
        let parameters = self.queue.parameters();
        Dialect { header_digest: parameters.header_digest, data_digest: parameters.data_digest }
    }

    pub fn with_cx<T>(&mut self, call: impl FnOnce(&mut ControllerQueue, &mut Cx<'_>) -> T) -> T {
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        call(&mut self.queue, &mut cx)
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.inbox.extend(bytes);
        self.pump();
    }

    /// Sends bytes of the host and gives what came back.
    pub fn talk(&mut self, bytes: &[u8]) -> Vec<Got> {
        self.feed(bytes);
        self.take()
    }

    /// Sends a command without data, and so on.
    pub fn command(&mut self, sqe: &Sqe, data: &[u8]) -> Vec<Got> {
        self.talk(&self.dialect().capsule(sqe, data))
    }

    /// Runs until nothing moves.
    pub fn pump(&mut self) {
        loop {
            let mut moved = self.receive();
            moved |= self.serve();
            let result = self.with_cx(|queue, cx| queue.resume_parsing(cx));
            self.note(result);
            moved |= self.serve();
            moved |= self.send();
            self.take_shut();
            // Parsing on may have made room for the next receive, and told nothing.
            if !moved && !self.receive() {
                return;
            }
        }
    }

    fn note(&mut self, result: Result<(), LinkFault>) {
        self.violations.extend(result.err());
        self.violations.extend(self.queue.poll_link_fault());
    }

    fn receive(&mut self) -> bool {
        if self.op.is_none() && !self.shut {
            self.op = self.with_cx(|queue, cx| queue.poll_recv(cx, LINK));
        }
        if self.inbox.is_empty() {
            return false;
        }
        let Some(op) = self.op.take() else { return false };
        let (op, came) = self.delivery.fill_recv(&self.pool, op, &mut self.inbox);
        let result = self.with_cx(|queue, cx| queue.handle_recv(cx, LINK, op, came));
        self.note(result);
        true
    }

    fn send(&mut self) -> bool {
        let Some(op) = self.with_cx(|queue, cx| queue.poll_send(cx, LINK)) else { return false };
        if self.deaf {
            self.stuck.push(op);
            return true;
        }
        let bytes = testkit::delivery::send_op_bytes(&op);
        assert_eq!(buf::poison::find(&bytes), None, "memory that nobody has filled");
        self.sent.extend(bytes);
        self.with_cx(|queue, cx| {
            queue.handle_written(cx, LINK, Ok(()));
            queue.handle_send_released(cx, LINK, op);
        });
        true
    }

    fn take_shut(&mut self) {
        while self.queue.poll_link_to_close().is_some() {
            assert!(!self.shut, "the link is named once");
            self.shut = true;
            self.inbox.clear();
            let (op, stuck) = (self.op.take(), std::mem::take(&mut self.stuck));
            self.with_cx(|queue, cx| {
                if let Some(op) = op {
                    queue.handle_recv(cx, LINK, op, Received::Cancelled).unwrap();
                }
                for op in stuck {
                    queue.handle_written(cx, LINK, Err(Errno(32)));
                    queue.handle_send_released(cx, LINK, op);
                }
            });
            self.serve();
        }
    }

    /// The host's TCP connection is gone.
    pub fn hang_up(&mut self) {
        if let Some(op) = self.op.take().or_else(|| self.with_cx(|queue, cx| queue.poll_recv(cx, LINK))) {
            let result = self.with_cx(|queue, cx| queue.handle_recv(cx, LINK, op, Received::End));
            self.note(result);
        }
        self.pump();
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.with_cx(|queue, cx| queue.handle_timeout(cx));
        self.violations.extend(self.queue.poll_link_fault());
        self.pump();
    }

    fn serve(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.queue.poll_event() {
            any = true;
            match event {
                TargetEvent::Command { tag, command, data_out } => self.serve_command(tag, command, data_out),
                TargetEvent::DataReceived { tag, at, data } => self.data_received(tag, at, &data),
                TargetEvent::Aborted { tag } => {
                    self.log.push("aborted".into());
                    self.aborted.push(tag);
                    self.kept.retain(|(kept, _)| *kept != tag);
                    self.with_cx(|queue, cx| queue.end_without_response(cx, tag));
                }
                TargetEvent::Closed => {
                    assert!(!self.closed, "closed once");
                    self.closed = true;
                }
            }
        }
        any
    }

    fn serve_command(&mut self, tag: Tag, command: Sqe, data_out: u32) {
        self.log.push(format!("{command:?} {data_out}"));
        if self.mode == Mode::Keep {
            self.kept.push((tag, command));
            if command.opcode == Opcode::FABRICS && data_out > 0 {
                let memory = self.pool.take_sg(MemoryClass::Wire, data_out as usize).unwrap();
                self.with_cx(|queue, cx| queue.recv_data(cx, tag, 0, memory));
            }
            return;
        }
        let offset = command.cdw(10);
        let len = command.dptr.length.get();
        if u64::from(offset) + u64::from(len) > DISK_LEN as u64 {
            return self.answer(tag, Status::SGL_LENGTH_INVALID.with_do_not_retry().into());
        }
        if let (WRITE, Some(hands)) = (command.opcode, self.at_hand)
            && let Some(data) = self.queue.contiguous_payload(tag)
        {
            self.disk[offset as usize..(offset + len) as usize].copy_from_slice(data);
            self.at_hand = Some(hands + 1);
            return self.answer(tag, Completion::SUCCESS);
        }
        match command.opcode {
            WRITE => {
                self.writes.push((tag, offset));
                let mut at = 0;
                while at < data_out {
                    let step = ((data_out - at) as usize).min(self.write_step);
                    let memory = self.pool.take_sg(MemoryClass::Solicited, step).unwrap();
                    self.with_cx(|queue, cx| queue.recv_data(cx, tag, at, memory));
                    at += step as u32;
                }
            }
            READ => self.send_read(tag, offset as usize, len as usize),
            _other => self.answer(tag, Completion::SUCCESS),
        }
    }

    fn data_received(&mut self, tag: Tag, at: u32, data: &Sg) {
        if self.kept.iter().any(|(kept, _)| *kept == tag) {
            return;
        }
        let write = self.writes.iter().position(|(write, _)| *write == tag).expect("a write of ours");
        let from = (self.writes[write].1 + at) as usize;
        let len = data.len();
        data.copy_to(0, &mut self.disk[from..from + len]);
        assert_eq!(buf::poison::find(&self.disk[from..from + len]), None, "memory that nobody has filled");
        self.log.push(format!("data {at} {len}"));
        let whole = self.queue.role.tasks.get(tag).is_some_and(|task| at + len as u32 == task.len);
        if whole {
            self.writes.swap_remove(write);
            self.answer(tag, Completion::SUCCESS);
        }
    }

    pub fn answer(&mut self, tag: Tag, completion: Completion) {
        self.kept.retain(|(kept, _)| *kept != tag);
        self.with_cx(|queue, cx| queue.respond(cx, tag, completion));
    }

    /// Sends read data and success.
    pub fn send_read(&mut self, tag: Tag, offset: usize, len: usize) {
        let mut at = 0;
        while at < len {
            let step = (len - at).min(self.read_step);
            let mut memory = self.pool.take_sg(MemoryClass::Solicited, step).unwrap();
            memory.copy_from(0, &self.disk[offset + at..offset + at + step]);
            let data = memory.freeze();
            self.with_cx(|queue, cx| queue.send_data(cx, tag, at as u32, data));
            at += step;
        }
        self.answer(tag, Completion::SUCCESS);
    }

    /// Takes what the queue sent, as PDUs; digests and padding are checked.
    pub fn take(&mut self) -> Vec<Got> {
        let bytes = std::mem::take(&mut self.sent);
        parse(&bytes, self.queue.parameters())
    }

    /// All memory has come back, and the queue knows that it is gone.
    pub fn assert_gone(&mut self) {
        assert!(self.closed && self.shut, "{:?}", self.queue);
        self.sent.clear();
        assert_eq!(self.pool.usage().lent, 0);
    }
}

/// Cuts what a controller sent into PDUs.
pub fn parse(mut bytes: &[u8], parameters: &ConnectionParameters) -> Vec<Got> {
    let limits = PduLimits {
        from: Sender::Controller,
        header_digest: parameters.header_digest,
        data_digest: parameters.data_digest,
        alignment: parameters.host_alignment,
        capsule_max: 0,
    };
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let common = CommonHeader::read_from_prefix(bytes).unwrap().0;
        let frame = PduFrame::parse(&common, &limits).unwrap();
        let (pdu, rest) = bytes.split_at(common.plen.get() as usize);
        let header = &pdu[..usize::from(frame.header)];
        if frame.flags.contains(Flags::HEADER_DIGEST) {
            assert_eq!(pdu[header.len()..header.len() + 4], crc32c_digest(header));
        }
        let (head, len) = (usize::from(frame.head), frame.data as usize);
        let data = &pdu[head..head + len];
        if frame.flags.contains(Flags::DATA_DIGEST) {
            assert_eq!(pdu[head + len..], wire::crc32c_digest(data));
        } else {
            assert_eq!(pdu.len(), head + len);
        }
        all.push(Got { frame, header: header.to_vec(), data: data.to_vec() });
        bytes = rest;
    }
    all
}

/// Puts the data of C2HData PDUs of one command together; the rest is given back.
pub fn gather(got: Vec<Got>, len: usize) -> (Vec<u8>, Vec<Got>) {
    let mut data = vec![0; len];
    let mut others = Vec::new();
    for pdu in got {
        if pdu.frame.pdu_type == PduType::C2H_DATA {
            let at = pdu.c2h().datao.get() as usize;
            assert_eq!(pdu.c2h().datal.get() as usize, pdu.data.len());
            data[at..at + pdu.data.len()].copy_from_slice(&pdu.data);
        } else {
            others.push(pdu);
        }
    }
    (data, others)
}
