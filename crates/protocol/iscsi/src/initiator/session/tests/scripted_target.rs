//! A session whose target is bytes that a test writes.

use super::super::*;
use super::wire::*;
use crate::initiator::tests::respond;
use crate::negotiate::Digest;
use crate::wire::{self, BHS_LEN, Bhs, DataInFlags, Opcode, Pdu, ScsiStatus, Sn};
use buf::crc32c::crc32c;
use buf::{Entropy, Pool};

/// The first task tag of a session.
pub const ITT: u32 = 1;

pub struct ScriptedTarget {
    pub pool: Pool,
    pub entropy: Entropy,
    pub now: Time,
    pub host: InitiatorSession,
    pub end: End,
    digest: bool,
    pub stat_sn: u32,
    pub fault: Option<Fault>,
    pub ended: Vec<(Tag, Response, Payload)>,
    pub notices: Vec<Notice>,
    pub closed: bool,
    sent: Vec<u8>,
}

impl ScriptedTarget {
    pub fn new() -> Self {
        ScriptedTarget::with(false, |_| ())
    }

    /// A session that is logged in.
    pub fn with(digest: bool, set: impl FnOnce(&mut InitiatorLimits)) -> Self {
        let mut wanted = wanted();
        wanted.cmd_sn = Sn::new(1);
        wanted.limits.first_burst = 4096;
        wanted.limits.max_burst = 8192;
        wanted.limits.max_outstanding_r2t = 2;
        if digest {
            digests(&mut wanted.limits, Digest::Crc32c);
        }
        let mut limits = InitiatorLimits::default();
        set(&mut limits);
        let pool = Pool::new_poisoned(16 << 20);
        let mut entropy = Entropy::new([5; 32]);
        let now = Time(1_000_000_000);
        let host = InitiatorSession::new(&mut Cx { now, pool: &pool, entropy: &mut entropy }, wanted, limits)
            .unwrap();
        let mut peer = ScriptedTarget {
            pool,
            entropy,
            now,
            host,
            end: End::new(),
            digest: false,
            stat_sn: 0,
            fault: None,
            ended: Vec::new(),
            notices: Vec::new(),
            closed: false,
            sent: Vec::new(),
        };
        peer.turn();
        peer.login(0x81, 0, "AuthMethod=None");
        let word = if digest { "CRC32C" } else { "None" };
        let answer = format!(
            "HeaderDigest={word} DataDigest={word} MaxRecvDataSegmentLength=8192 TaskReporting=RFC3720 \
             MaxConnections=1 InitialR2T=No ImmediateData=Yes MaxBurstLength=8192 FirstBurstLength=4096 \
             DefaultTime2Wait=2 DefaultTime2Retain=0 MaxOutstandingR2T=2 DataPDUInOrder=Yes \
             DataSequenceInOrder=Yes ErrorRecoveryLevel=0 iSCSIProtocolLevel=2"
        );
        peer.login(0x87, 1, &answer);
        assert!(peer.host.state == SessionState::Ready, "{:?}", peer.notices);
        peer.digest = digest;
        peer.sent.clear();
        peer
    }

    fn login(&mut self, flags: u8, tsih: u16, text: &str) {
        let mut pdu = respond(flags, tsih, text);
        let response: &mut [u8] = &mut pdu.bhs.rest;
        // StatSN, ExpCmdSN 1, MaxCmdSN 64.
        response[4..8].copy_from_slice(&self.stat_sn.to_be_bytes());
        response[8..12].copy_from_slice(&1u32.to_be_bytes());
        response[12..16].copy_from_slice(&64u32.to_be_bytes());
        self.stat_sn += 1;
        self.feed(&login_bytes(&pdu));
    }

    pub fn submit(&mut self, request: Request, payload: Payload) -> Option<Tag> {
        let tag = self.host.submit(cx!(self), request, payload).ok();
        self.turn();
        tag
    }

    /// A read of so many bytes, its command sent.
    pub fn reading(len: usize) -> Self {
        ScriptedTarget::new().reads(len)
    }

    pub fn reads(mut self, len: usize) -> Self {
        let mut data = memory(&self.pool, len);
        data.copy_from(0, &vec![0xee; len]);
        self.submit(scsi(0), Payload::In(data)).unwrap();
        self
    }

    /// A write of so many bytes, with all that is sent unasked sent.
    pub fn writing(len: usize) -> Self {
        let mut peer = ScriptedTarget::new();
        let mut data = memory(&peer.pool, len);
        data.copy_from(0, &pattern(len, 0));
        peer.submit(scsi(0), Payload::Out(data.freeze())).unwrap();
        peer
    }

    /// Gives the session bytes; `None` once it has ended.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.end.inbox.extend(bytes);
        self.turn();
    }

    pub fn turn(&mut self) {
        loop {
            let mut moved = false;
            let link = LinkNumber(0);
            let result = self.host.resume_parsing(cx!(self));
            self.note(result);
            if self.end.op.is_none() && !self.end.shut {
                self.end.op = self.host.poll_recv(cx!(self), link);
            }
            if let Some(op) = self.end.op.take_if(|_| !self.end.inbox.is_empty()) {
                let (op, came) = self.end.delivery.fill_recv(&self.pool, op, &mut self.end.inbox);
                let result = self.host.handle_recv(cx!(self), link, op, came);
                self.note(result);
                moved = true;
            }
            if let Some(op) = self.host.poll_send(cx!(self), link) {
                self.sent.extend(testkit::delivery::send_op_bytes(&op));
                self.host.handle_written(cx!(self), link, Ok(()));
                self.host.handle_send_released(cx!(self), link, op);
                moved = true;
            }
            if self.host.poll_link_to_close().is_some() {
                self.end.shut(&mut self.host, link, cx!(self), Received::Cancelled);
                moved = true;
            }
            while let Some(event) = self.host.poll_event() {
                match event {
                    HostEvent::Ready => {}
                    HostEvent::Completed { tag, response, payload } => {
                        self.ended.push((tag, response, payload))
                    }
                    HostEvent::Closed => self.closed = true,
                }
            }
            while let Some(notice) = self.host.poll_notice() {
                self.notices.push(notice);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    fn note(&mut self, result: Result<(), LinkFault>) {
        let late = self.host.poll_link_fault();
        self.fault = self.fault.or(result.err().or(late).map(|violation| violation.fault));
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.host.handle_timeout(cx!(self));
        self.turn();
    }

    /// What the session sent since it was last asked.
    pub fn sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sent)
    }

    /// A PDU with the numbers of a target that keeps up, and digests if there are any.
    pub fn pdu<P: Pdu>(&mut self, mut pdu: P, data: &[u8]) -> Vec<u8> {
        pdu.set_data_len(data.len());
        let mut header = *pdu.as_bhs().bytes();
        header[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
        if header[32..36] == [0; 4] {
            header[28..32].copy_from_slice(&self.host.commands.window.next.value().to_be_bytes());
            header[32..36].copy_from_slice(&self.host.commands.window.next.add(63).value().to_be_bytes());
        }
        self.framed(&header, data)
    }

    pub fn framed(&self, header: &[u8; BHS_LEN], data: &[u8]) -> Vec<u8> {
        let mut bytes = header.to_vec();
        if self.digest {
            bytes.extend(crc32c(header).to_le_bytes());
        }
        let mut segment = data.to_vec();
        segment.resize(data.len().next_multiple_of(4), 0);
        bytes.extend(&segment);
        if self.digest && !data.is_empty() {
            bytes.extend(crc32c(&segment).to_le_bytes());
        }
        bytes
    }

    pub fn say<P: Pdu>(&mut self, pdu: P, data: &[u8]) {
        let bytes = self.pdu(pdu, data);
        self.stat_sn += u32::from(counts(Bhs::from_prefix(&bytes).unwrap()));
        self.feed(&bytes);
    }

    /// The one request that ended; it is the only one.
    pub fn outcome(&mut self) -> (Response, Vec<u8>) {
        assert_eq!(self.ended.len(), 1, "{:?}", self.ended);
        let (_, response, payload) = self.ended.pop().unwrap();
        (response, bytes_of(&payload))
    }

    /// The session ended for this fault, and gave its one command back; of a read no byte that did not come
    /// is shown.
    pub fn assert_ended(&mut self, fault: Fault, good: &[u8]) {
        assert_eq!(self.fault, Some(fault));
        assert!(self.closed);
        let (response, data) = self.outcome();
        assert_eq!(response, Response::Lost(NoAnswer::Unknown));
        assert_eq!(data[..good.len()], *good);
        assert!(data[good.len()..].iter().all(|byte| *byte == 0), "old bytes are shown");
    }
}

fn counts(bhs: &Bhs) -> bool {
    match bhs.opcode() {
        Opcode::DATA_IN => wire::DataIn::from_bhs(bhs).flags.contains(DataInFlags::STATUS),
        Opcode::R2T => false,
        Opcode::NOP_IN => !bhs.itt.is_none(),
        _answer => true,
    }
}

pub fn data_in(sn: u32, offset: u32, last: bool) -> wire::DataIn {
    let mut pdu = wire::DataIn::new();
    (pdu.itt, pdu.data_sn, pdu.buffer_offset) = (Itt::new(ITT), Sn::new(sn), offset.into());
    if last {
        pdu.flags = DataInFlags::FINAL.with(DataInFlags::STATUS);
    }
    pdu
}

pub fn r2t(sn: u32, offset: u32, len: u32) -> wire::R2t {
    let mut pdu = wire::R2t::new();
    (pdu.itt, pdu.ttt, pdu.r2t_sn) = (Itt::new(ITT), wire::Ttt::new(9), Sn::new(sn));
    (pdu.buffer_offset, pdu.desired_len) = (offset.into(), len.into());
    pdu
}

pub fn status(status: ScsiStatus) -> wire::ScsiResponse {
    let mut pdu = wire::ScsiResponse::new();
    (pdu.itt, pdu.status) = (Itt::new(ITT), status);
    pdu
}
