//! A session, the bytes of its peer, and a server of one small disk.

use super::super::*;
use crate::wire::{
    self, BHS_LEN, Bhs, Cid, Isid, Itt, Lun, Opcode, Pdu, Sn, TmfResponseCode, Tsih, padded_len,
};
use buf::crc32c::crc32c;
use buf::{Entropy, MemoryClass, Pool};
use std::sync::LazyLock;
pub use std::time::Duration;
use testkit::delivery::RecvDelivery;

pub const DISK_LEN: usize = 1 << 20;
/// What stands on each disk at first: to make it again for each test would take longer than most of them.
static DISK: LazyLock<Vec<u8>> = LazyLock::new(|| (0..DISK_LEN).map(|i| (i / 512 + i) as u8).collect());
pub const CMD_SN: u32 = 0xffff_fffe;

/// What the server does with SCSI commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerMode {
    /// Serves the disk: the CDB's bytes 2 to 5 are the offset.
    Serve,
    /// Keeps them: the test answers.
    Keep,
}

/// A received PDU of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedPdu {
    pub bhs: Bhs,
    pub data: Vec<u8>,
}

impl ReceivedPdu {
    pub fn op(&self) -> Opcode {
        self.bhs.opcode()
    }
    pub fn as_pdu<P: Pdu>(&self) -> P {
        assert_eq!(self.op(), P::OPCODE, "{:?}", self.bhs);
        *P::from_bhs(&self.bhs)
    }
}

#[derive(Default)]
pub struct WireEnd {
    /// Bytes on their way to the session.
    pub inbox: VecDeque<u8>,
    /// Bytes that the session sent, not yet taken by the test.
    pub sent: Vec<u8>,
    /// A receive that waits for bytes.
    pub op: Option<RecvOp>,
    pub shut: bool,
    /// Batches are taken, but never written out.
    pub deaf: bool,
    stuck: Vec<SendOp>,
}

pub struct ScriptedInitiator {
    pub pool: Pool,
    pub entropy: Entropy,
    pub now: Time,
    pub session: TargetSession,
    pub ends: Vec<WireEnd>,
    pub mode: ServerMode,
    pub disk: Vec<u8>,
    /// Everything that was told, in order, for comparing runs.
    pub log: Vec<String>,
    /// Commands that the server keeps.
    pub kept: Vec<(Tag, Request)>,
    pub aborted: Vec<Tag>,
    pub closed: bool,
    pub violations: Vec<Fault>,
    /// Writes being received, with where they go.
    pub writes: Vec<(Tag, u32, u32)>,
    /// How bytes come.
    pub delivery: RecvDelivery,
    /// Places are given this late: after so many turns.
    pub place_late: bool,
    late: Vec<(Tag, u32)>,
    /// Payload that lies whole in the stage is used there.
    pub at_hand: bool,
    /// How often that was so.
    pub hands: usize,
    /// Commands beyond the disk or of both directions are refused, as a real server does.
    pub bounded: bool,
    /// The answer to SendTargets.
    pub records: Vec<u8>,
    /// The nexus lasts until the test ends it.
    pub keeps_nexus: bool,
    /// How often the end of the nexus was asked for.
    pub leavings: usize,
}

pub fn session_params() -> SessionParams {
    SessionParams {
        isid: Isid([0x80, 1, 2, 3, 4, 5]),
        tsih: Tsih::new(1),
        discovery: false,
        max_connections: 4,
        initial_r2t: false,
        immediate_data: true,
        max_burst: 16384,
        first_burst: 8192,
        segment_max: 8192,
        max_outstanding_r2t: 2,
        time2wait: 2,
        time2retain: 0,
        protocol_level: 2,
        cmd_sn: Sn::new(CMD_SN),
    }
}

pub fn link_params(cid: u16) -> LinkParams {
    LinkParams {
        cid: Cid::new(cid),
        header_digest: false,
        data_digest: false,
        initiator_mrdsl: 4096,
        target_mrdsl: 8192,
        stat_sn: Sn::new(100),
    }
}

pub fn limits() -> SessionLimits {
    SessionLimits { commands: 8, immediate: 4, ..SessionLimits::default() }
}

impl ScriptedInitiator {
    pub fn new() -> Self {
        Self::with(session_params(), link_params(0), limits())
    }

    pub fn limited(limits: SessionLimits) -> Self {
        Self::with(session_params(), link_params(0), limits)
    }

    /// Its server keeps commands.
    pub fn keeping() -> Self {
        ScriptedInitiator { mode: ServerMode::Keep, ..Self::new() }
    }

    pub fn with(params: SessionParams, link: LinkParams, limits: SessionLimits) -> Self {
        let pool = Pool::new_poisoned(32 << 20);
        let mut entropy = Entropy::new([7; 32]);
        let now = Time(1_000_000_000);
        let mut cx = Cx { now, pool: &pool, entropy: &mut entropy };
        let mut session = TargetSession::new(&mut cx, params, limits).unwrap();
        session.attach_link(&mut cx, link, &[]).unwrap();
        ScriptedInitiator {
            pool,
            entropy,
            now,
            session,
            ends: vec![WireEnd::default()],
            mode: ServerMode::Serve,
            disk: DISK.clone(),
            log: Vec::new(),
            kept: Vec::new(),
            aborted: Vec::new(),
            closed: false,
            violations: Vec::new(),
            writes: Vec::new(),
            delivery: RecvDelivery::unlimited(),
            place_late: false,
            late: Vec::new(),
            at_hand: false,
            hands: 0,
            bounded: false,
            records: b"TargetName=iqn.x:a\0TargetAddress=10.0.0.1:3260,1\0".to_vec(),
            keeps_nexus: false,
            leavings: 0,
        }
    }

    pub fn attach(&mut self, params: LinkParams) -> LinkNumber {
        let link = self.with_cx(|session, cx| session.attach_link(cx, params, &[]).unwrap());
        let index = usize::from(link.0);
        if index == self.ends.len() {
            self.ends.push(WireEnd::default());
        } else {
            self.ends[index] = WireEnd::default();
        }
        link
    }

    pub fn with_cx<T>(&mut self, call: impl FnOnce(&mut TargetSession, &mut Cx<'_>) -> T) -> T {
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        call(&mut self.session, &mut cx)
    }

    pub fn feed(&mut self, link: usize, bytes: &[u8]) {
        self.ends[link].inbox.extend(bytes);
        self.pump();
    }

    /// Sends PDUs of the initiator on link 0 and gives what came back.
    pub fn talk(&mut self, bytes: &[u8]) -> Vec<ReceivedPdu> {
        self.feed(0, bytes);
        self.take(0)
    }

    /// Runs until nothing moves.
    pub fn pump(&mut self) {
        loop {
            let mut moved = false;
            for index in 0..self.ends.len() {
                moved |= self.receive(index);
                moved |= self.serve();
                let result = self.with_cx(|session, cx| session.resume_parsing(cx));
                self.note(result);
                moved |= self.serve();
                moved |= self.send(index);
                self.take_shut();
            }
            // Parsing on may have made room for the next receive, and told nothing.
            if !moved && !(0..self.ends.len()).any(|index| self.receive(index)) {
                return;
            }
        }
    }

    /// Receives and sends, with the server asleep.
    pub fn pump_without_serving(&mut self) {
        while self.receive(0) {
            let result = self.with_cx(|session, cx| session.resume_parsing(cx));
            self.note(result);
        }
    }

    fn note(&mut self, result: Result<(), LinkFault>) {
        if let Err(violation) = result {
            self.violations.push(violation.fault);
        }
        while let Some(violation) = self.session.poll_link_fault() {
            self.violations.push(violation.fault);
        }
    }

    fn receive(&mut self, index: usize) -> bool {
        let link = LinkNumber(index as u16);
        if self.ends[index].op.is_none() {
            self.ends[index].op = self.with_cx(|session, cx| session.poll_recv(cx, link));
        }
        if self.ends[index].inbox.is_empty() {
            return false;
        }
        let Some(op) = self.ends[index].op.take() else { return false };
        let (op, came) = self.delivery.fill_recv(&self.pool, op, &mut self.ends[index].inbox);
        let result = self.with_cx(|session, cx| session.handle_recv(cx, link, op, came));
        self.note(result);
        true
    }

    fn send(&mut self, index: usize) -> bool {
        let link = LinkNumber(index as u16);
        let Some(op) = self.with_cx(|session, cx| session.poll_send(cx, link)) else { return false };
        if self.ends[index].deaf {
            self.ends[index].stuck.push(op);
            return true;
        }
        let bytes = testkit::delivery::send_op_bytes(&op);
        assert_eq!(buf::poison::find(&bytes), None, "memory that nobody has filled");
        self.ends[index].sent.extend(bytes);
        self.with_cx(|session, cx| {
            session.handle_written(cx, link, Ok(()));
            session.handle_send_released(cx, link, op);
        });
        true
    }

    fn take_shut(&mut self) {
        while let Some(link) = self.session.poll_link_to_close() {
            let end = &mut self.ends[usize::from(link.0)];
            assert!(!end.shut, "a link is named once");
            end.shut = true;
            end.inbox.clear();
            let (op, stuck) = (end.op.take(), std::mem::take(&mut end.stuck));
            self.with_cx(|session, cx| {
                if let Some(op) = op {
                    session.handle_recv(cx, link, op, Received::Cancelled).unwrap();
                }
                for op in stuck {
                    session.handle_written(cx, link, Err(Errno(32)));
                    session.handle_send_released(cx, link, op);
                }
            });
            self.serve();
        }
    }

    /// The peer's TCP connection is gone.
    pub fn hang_up(&mut self, index: usize) {
        let link = LinkNumber(index as u16);
        let op =
            self.ends[index].op.take().or_else(|| self.with_cx(|session, cx| session.poll_recv(cx, link)));
        if let Some(op) = op {
            let result = self.with_cx(|session, cx| session.handle_recv(cx, link, op, Received::End));
            self.note(result);
        }
        self.pump();
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.with_cx(|session, cx| session.handle_timeout(cx));
        while let Some(violation) = self.session.poll_link_fault() {
            self.violations.push(violation.fault);
        }
        self.pump();
    }

    fn serve(&mut self) -> bool {
        let mut any = false;
        for (tag, len) in std::mem::take(&mut self.late) {
            let memory = self.pool.take_sg(MemoryClass::Solicited, len as usize).unwrap();
            self.with_cx(|session, cx| session.recv_data(cx, tag, 0, memory));
            any = true;
        }
        if self.session.poll_nexus_end() {
            self.leavings += 1;
            assert_eq!(self.session.tasks_in_work(), 0, "a task could make something that lasts");
            if !self.keeps_nexus {
                self.with_cx(|session, cx| session.handle_nexus_ended(cx));
            }
            any = true;
        }
        while let Some(event) = self.session.poll_event() {
            any = true;
            match event {
                TargetEvent::Command { tag, command, data_out } => self.command(tag, command, data_out),
                TargetEvent::DataReceived { tag, at, data } => self.data_received(tag, at, &data),
                TargetEvent::Aborted { tag } => {
                    self.log.push("aborted".into());
                    self.aborted.push(tag);
                    self.kept.retain(|(kept, _)| *kept != tag);
                    self.with_cx(|session, cx| session.end_without_response(cx, tag));
                }
                TargetEvent::Closed => {
                    assert!(!self.closed, "closed once");
                    self.closed = true;
                }
            }
        }
        any
    }

    fn command(&mut self, tag: Tag, command: Request, data_out: u32) {
        self.log.push(format!("{command:?} {data_out}"));
        match (&command, self.mode) {
            (Request::Scsi(scsi), ServerMode::Serve) => {
                let offset = u32::from_be_bytes(scsi.cdb.as_slice()[2..6].try_into().unwrap());
                let end = u64::from(offset) + u64::from(scsi.edtl);
                if self.bounded && (end > DISK_LEN as u64 || (scsi.read && scsi.write)) {
                    let refusal = ScsiResult::check_condition(&[0x70, 0, 5], 0);
                    self.answer(tag, Response::Scsi(refusal));
                } else if let Some(data) = self.session.contiguous_payload(tag).filter(|_| self.at_hand) {
                    assert_eq!(data.len(), data_out as usize);
                    self.disk[offset as usize..end as usize].copy_from_slice(data);
                    self.hands += 1;
                    self.log.push(format!("data 0 {data_out}"));
                    self.answer(tag, Response::Scsi(ScsiResult::good(u64::from(data_out))));
                } else if scsi.write {
                    self.writes.push((tag, offset, data_out));
                    if self.place_late {
                        self.late.push((tag, data_out));
                    } else {
                        let memory = self.pool.take_sg(MemoryClass::Solicited, data_out as usize).unwrap();
                        self.with_cx(|session, cx| session.recv_data(cx, tag, 0, memory));
                    }
                } else {
                    self.send_read(tag, offset as usize, scsi.edtl as usize);
                }
            }
            (Request::SendTargets(_), _) => {
                let records = self.records.clone().into();
                self.answer(tag, Response::Targets(records));
            }
            (Request::Scsi(_) | Request::Task(_), ServerMode::Keep) => self.kept.push((tag, command)),
            (Request::Task(task), ServerMode::Serve) => {
                if let Some(referenced) = task.referenced {
                    self.with_cx(|session, cx| session.end_without_response(cx, referenced));
                }
                self.answer(tag, Response::Task(TmfResponseCode::COMPLETE));
            }
        }
    }

    fn data_received(&mut self, tag: Tag, within: u32, data: &Sg) {
        let write = self.writes.iter().position(|(write, ..)| *write == tag).expect("a write of ours");
        let (_, offset, _) = self.writes.swap_remove(write);
        let from = (offset + within) as usize;
        let len = data.len();
        data.copy_to(0, &mut self.disk[from..from + len]);
        assert_eq!(buf::poison::find(&self.disk[from..from + len]), None, "memory that nobody has filled");
        self.log.push(format!("data {within} {len}"));
        self.answer(tag, Response::Scsi(ScsiResult::good(len as u64)));
    }

    pub fn answer(&mut self, tag: Tag, response: Response) {
        self.kept.retain(|(kept, _)| *kept != tag);
        self.with_cx(|session, cx| session.respond(cx, tag, response));
    }

    /// Sends read data and GOOD.
    pub fn send_read(&mut self, tag: Tag, offset: usize, len: usize) {
        let mut memory = self.pool.take_sg(MemoryClass::Solicited, len).unwrap();
        memory.copy_from(0, &self.disk[offset..offset + len]);
        let data = memory.freeze();
        self.with_cx(|session, cx| {
            session.send_data(cx, tag, 0, data);
            session.respond(cx, tag, Response::Scsi(ScsiResult::good(len as u64)));
        });
    }

    /// Takes what the session sent on a link, as PDUs; digests are checked.
    pub fn take(&mut self, index: usize) -> Vec<ReceivedPdu> {
        let bytes = std::mem::take(&mut self.ends[index].sent);
        let framing = self.link_state(index).framing;
        parse(&bytes, framing.header_digest, framing.data_digest)
    }

    pub fn link_state(&self, index: usize) -> &LinkState {
        let index = self.session.tasks.links.index_of(LinkNumber(index as u16)).unwrap();
        &self.session.tasks.links[index]
    }
}

pub fn parse(mut bytes: &[u8], header_digest: bool, data_digest: bool) -> Vec<ReceivedPdu> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let bhs = *Bhs::from_prefix(bytes).expect("whole headers");
        let header;
        (header, bytes) = bytes.split_at(BHS_LEN);
        assert_eq!(bhs.ahs_len(), 0);
        if header_digest {
            assert_eq!(bytes[..4], crc32c(header).to_le_bytes(), "header digest");
            bytes = &bytes[4..];
        }
        let padded = padded_len(bhs.data_len()).unwrap();
        let data;
        (data, bytes) = bytes.split_at(padded);
        if data_digest && padded > 0 {
            assert_eq!(bytes[..4], crc32c(data).to_le_bytes(), "data digest");
            bytes = &bytes[4..];
        }
        all.push(ReceivedPdu { bhs, data: data[..bhs.data_len()].to_vec() });
    }
    all
}

/// An initiator's PDU as bytes, without digests.
pub fn pdu(pdu: &impl Pdu, data: &[u8]) -> Vec<u8> {
    digested(pdu, &[], data, false, false)
}

/// An initiator's PDU as bytes.
pub fn digested(pdu: &impl Pdu, ahs: &[u8], data: &[u8], header_digest: bool, data_digest: bool) -> Vec<u8> {
    let mut pdu = *pdu;
    pdu.set_data_len(data.len());
    let mut bhs = pdu.to_bhs();
    bhs.ahs_words = (ahs.len() / 4) as u8;
    let mut bytes = bhs.bytes().to_vec();
    bytes.extend(ahs);
    if header_digest {
        bytes.extend(crc32c(&bytes).to_le_bytes());
    }
    if !data.is_empty() {
        let mut padded = data.to_vec();
        padded.resize(padded_len(data.len()).unwrap(), 0);
        bytes.extend(&padded);
        if data_digest {
            bytes.extend(crc32c(&padded).to_le_bytes());
        }
    }
    bytes
}

pub fn lun() -> Lun {
    Lun::single_level(3).unwrap()
}

fn cdb(offset: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = 0x28;
    cdb[2..6].copy_from_slice(&offset.to_be_bytes());
    cdb
}

/// The n-th command of the session.
pub fn sn(n: u32) -> Sn {
    Sn::new(CMD_SN).add(n)
}

pub fn read(n: u32, offset: u32, len: u32) -> wire::ScsiCommand {
    let mut pdu = wire::ScsiCommand::new();
    pdu.flags = wire::CommandFlags::FINAL.with(wire::CommandFlags::READ);
    (pdu.lun, pdu.itt, pdu.cmd_sn, pdu.exp_stat_sn) = (lun(), Itt::new(n), sn(n), Sn::new(100));
    pdu.expected_data_len = len.into();
    pdu.cdb = cdb(offset);
    pdu
}

/// A write whose unsolicited data is all in the command.
pub fn write(n: u32, offset: u32, len: u32) -> wire::ScsiCommand {
    let mut pdu = read(n, offset, len);
    pdu.flags = wire::CommandFlags::FINAL.with(wire::CommandFlags::WRITE);
    pdu
}

pub fn data_out(n: u32, ttt: wire::Ttt, data_sn: u32, offset: u32, last: bool) -> wire::DataOut {
    let mut pdu = wire::DataOut::new();
    pdu.flags = if last { wire::DataOutFlags::FINAL } else { wire::DataOutFlags(0) };
    (pdu.lun, pdu.itt, pdu.ttt, pdu.exp_stat_sn) = (lun(), Itt::new(n), ttt, Sn::new(100));
    pdu.data_sn = Sn::new(data_sn);
    pdu.buffer_offset = offset.into();
    pdu
}

pub fn nop(n: u32, itt: u32) -> wire::NopOut {
    let mut pdu = wire::NopOut::new();
    (pdu.itt, pdu.cmd_sn, pdu.exp_stat_sn) = (Itt::new(itt), sn(n), Sn::new(100));
    pdu
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}
