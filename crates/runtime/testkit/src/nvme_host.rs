//! One connection of a small NVMe/TCP host for tests: it follows the protocol, and checks that the controller
//! does.

use std::collections::BTreeMap;

use endpoint::ListenerId;
use nvme::fabrics::{Connect, ConnectData, ConnectNames};
use nvme::{SglDescriptor, Sqe, Status};
use nvme_tcp::wire::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, Flags, H2cData, IcReq, IcResp, PduFrame, PduLimits,
    PduType, R2t, Sender, crc32c_digest,
};
use shard::Shard;
use sim::{Peer, World};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// What carries bytes between a test's host and the shards.
pub trait TestTransport {
    /// Connects to a listener; the connection's number.
    fn open(&mut self, listener: ListenerId) -> usize;
    /// Sends bytes.
    fn send_bytes(&mut self, at: usize, bytes: &[u8]);
    /// What has come.
    fn take_received(&mut self, at: usize) -> Vec<u8>;
}

impl TestTransport for World<Shard> {
    fn open(&mut self, listener: ListenerId) -> usize {
        self.connect(listener).0
    }

    fn send_bytes(&mut self, at: usize, bytes: &[u8]) {
        self.send(Peer(at), bytes);
    }

    fn take_received(&mut self, at: usize) -> Vec<u8> {
        self.receive(Peer(at))
    }
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandResult {
    pub cid: u16,
    pub status: Status,
    pub result: u64,
    pub data: Vec<u8>,
}

struct Task {
    out: Vec<u8>,
    data: Vec<u8>,
    got: usize,
    last: bool,
}

/// A connection, and the queue that it becomes.
pub struct TestQueue {
    pub at: usize,
    inbox: Vec<u8>,
    offer: (bool, bool),
    digests: Option<(bool, bool)>,
    h2c_max: usize,
    next_cid: u16,
    tasks: BTreeMap<u16, Task>,
    held: Vec<Vec<u8>>,
    pub ended: Vec<CommandResult>,
    /// The controller has said that the connection is in error.
    pub terminated: bool,
    /// How many bytes of data an R2T was answered with.
    pub solicited: usize,
}

impl TestQueue {
    /// Connects and offers terms.
    pub fn open_connection(
        world: &mut impl TestTransport,
        listener: ListenerId,
        digests: (bool, bool),
    ) -> Self {
        let at = world.open(listener);
        let offer = u8::from(digests.0) | u8::from(digests.1) << 1;
        let mut request = [0; IcReq::LEN];
        (request[0], request[2], request[4], request[11]) = (0, 128, 128, offer);
        world.send_bytes(at, &request);
        TestQueue {
            at,
            inbox: Vec::new(),
            offer: digests,
            digests: None,
            h2c_max: 4096,
            next_cid: 1,
            tasks: BTreeMap::new(),
            held: Vec::new(),
            ended: Vec::new(),
            terminated: false,
            solicited: 0,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Sends a Connect.
    pub fn send_connect(
        &mut self,
        world: &mut impl TestTransport,
        connect: &Connect,
        names: &ConnectNames,
    ) -> u16 {
        let data = ConnectData::new(names);
        self.send_command(world, connect.to_sqe(), data.as_bytes(), true, 0)
    }

    /// Sends a command: `out` goes in its capsule, or by R2T; or `read` bytes come.
    pub fn send_command(
        &mut self,
        world: &mut impl TestTransport,
        mut sqe: Sqe,
        out: &[u8],
        in_capsule: bool,
        read: usize,
    ) -> u16 {
        let cid = self.next_cid;
        self.next_cid = self.next_cid.wrapping_add(1) % 0x4000;
        sqe.cid = cid.into();
        sqe.flags |= 0x40;
        let identifier =
            if in_capsule && !out.is_empty() { SglDescriptor::IN_CAPSULE } else { SglDescriptor::TRANSPORT };
        sqe.dptr = SglDescriptor {
            address: U64::ZERO,
            length: U32::new(out.len().max(read) as u32),
            reserved: [0; 3],
            identifier,
        };
        self.tasks.insert(cid, Task { out: out.to_vec(), data: vec![0xee; read], got: 0, last: false });
        let mut capsule = CapsuleCmd::new(sqe);
        capsule.common.plen = U32::new(CapsuleCmd::LEN as u32);
        self.send_pdu(world, capsule.as_bytes(), if in_capsule { out } else { &[] });
        cid
    }

    /// Sends a PDU: a header and its data, with the digests that were agreed; or keeps it until ICResp is
    /// here.
    fn send_pdu(&mut self, world: &mut impl TestTransport, header: &[u8], data: &[u8]) {
        let Some((header_digest, data_digest)) = self.digests else {
            let mut whole = header.to_vec();
            whole.extend(data);
            self.held.push(whole);
            return;
        };
        let mut bytes = header.to_vec();
        let head = header.len() + if header_digest { 4 } else { 0 };
        let tail = if data_digest && !data.is_empty() { 4 } else { 0 };
        let flags =
            Flags(bytes[1]).with(Flags::HEADER_DIGEST, header_digest).with(Flags::DATA_DIGEST, tail > 0);
        bytes[1] = flags.0;
        bytes[3] = if data.is_empty() { 0 } else { head as u8 };
        bytes[4..8].copy_from_slice(&((head + data.len() + tail) as u32).to_le_bytes());
        if header_digest {
            let sum = crc32c_digest(&bytes);
            bytes.extend(sum);
        }
        bytes.extend(data);
        if tail > 0 {
            bytes.extend(crc32c_digest(data));
        }
        world.send_bytes(self.at, &bytes);
    }

    /// Takes what has come, and sends what was asked for.
    pub fn poll(&mut self, world: &mut impl TestTransport) {
        let bytes = world.take_received(self.at);
        self.inbox.extend(bytes);
        while let Some(len) = self.complete_pdu_len() {
            let pdu: Vec<u8> = self.inbox.drain(..len).collect();
            self.handle_pdu(world, &pdu);
        }
    }

    fn complete_pdu_len(&self) -> Option<usize> {
        let common = CommonHeader::ref_from_prefix(&self.inbox).ok()?.0;
        let len = common.plen.get() as usize;
        assert!(len >= 8, "a PDU has a header");
        (self.inbox.len() >= len).then_some(len)
    }

    fn handle_pdu(&mut self, world: &mut impl TestTransport, pdu: &[u8]) {
        let common = *CommonHeader::ref_from_prefix(pdu).unwrap().0;
        if common.pdu_type == PduType::IC_RESP {
            return self.handle_ic_resp(world, IcResp::ref_from_bytes(pdu).unwrap());
        }
        let (header_digest, data_digest) = self.digests.expect("ICResp comes first");
        let rules =
            PduLimits { from: Sender::Controller, header_digest, data_digest, alignment: 4, capsule_max: 0 };
        let frame = PduFrame::parse(&common, &rules).expect("a controller keeps the rules");
        let header = usize::from(frame.header);
        if frame.pdu_type == PduType::C2H_TERM_REQ {
            self.terminated = true;
            return;
        }
        if header_digest {
            assert_eq!(pdu[header..header + 4], crc32c_digest(&pdu[..header]), "header digest");
        }
        let data = &pdu[usize::from(frame.head)..][..frame.data as usize];
        if data_digest && !data.is_empty() {
            assert_eq!(pdu[pdu.len() - 4..], crc32c_digest(data), "data digest");
        }
        match frame.pdu_type {
            PduType::CAPSULE_RESP => {
                let cqe = CapsuleResp::from_prefix(pdu).unwrap().cqe;
                let completion = cqe.completion();
                self.finish_command(cqe.cid.get(), completion.status, completion.result);
            }
            PduType::R2T => self.answer_r2t(world, *R2t::from_prefix(pdu).unwrap()),
            PduType::C2H_DATA => {
                let head = *C2hData::from_prefix(pdu).unwrap();
                let task = self.tasks.get_mut(&head.cccid.get()).expect("data of a command in work");
                let at = head.datao.get() as usize;
                assert_eq!(at, task.got, "data comes in order");
                task.data[at..at + data.len()].copy_from_slice(data);
                task.got += data.len();
                assert!(!task.last, "nothing comes behind the last");
                task.last = frame.flags.contains(Flags::LAST);
                assert!(task.last || task.got < task.data.len(), "the last byte is in the last PDU");
                if frame.flags.contains(Flags::SUCCESS) {
                    self.finish_command(head.cccid.get(), Status::SUCCESS, 0);
                }
            }
            other => panic!("a controller does not send {other:?}"),
        }
    }

    fn handle_ic_resp(&mut self, world: &mut impl TestTransport, response: &IcResp) {
        assert!(self.digests.is_none(), "ICResp comes once");
        let digests = (response.dgst & 1 != 0, response.dgst & 2 != 0);
        assert!(!digests.0 || self.offer.0, "what was not offered");
        assert!(!digests.1 || self.offer.1, "what was not offered");
        self.digests = Some(digests);
        self.h2c_max = response.maxh2cdata.get() as usize;
        for whole in std::mem::take(&mut self.held) {
            let (header, data) = whole.split_at(CapsuleCmd::LEN);
            self.send_pdu(world, header, data);
        }
    }

    fn answer_r2t(&mut self, world: &mut impl TestTransport, r2t: R2t) {
        let (cid, mut at, len) = (r2t.cccid.get(), r2t.r2to.get() as usize, r2t.r2tl.get() as usize);
        let end = at + len;
        let task = self.tasks.get(&cid).expect("R2T of a command in work");
        let out = task.out.clone();
        assert!(end <= out.len(), "R2T within the data");
        self.solicited += len;
        while at < end {
            let now = (end - at).min(self.h2c_max).min(16_384);
            let head = H2cData::new(cid, r2t.ttag.get(), at as u32, now as u32, at + now == end);
            self.send_pdu(world, head.as_bytes(), &out[at..at + now]);
            at += now;
        }
    }

    fn finish_command(&mut self, cid: u16, status: Status, result: u64) {
        let mut task = self.tasks.remove(&cid).expect("an answer to a command in work");
        if status.is_success() && !task.data.is_empty() {
            assert!(task.last, "success with all its data");
            // Security messages may be shorter than the room for them.
            task.data.truncate(task.got);
        }
        self.ended.push(CommandResult { cid, status, result, data: task.data });
    }

    /// How a command ended, if it has.
    pub fn take_result(&mut self, cid: u16) -> Option<CommandResult> {
        let at = self.ended.iter().position(|ended| ended.cid == cid)?;
        Some(self.ended.remove(at))
    }
}
