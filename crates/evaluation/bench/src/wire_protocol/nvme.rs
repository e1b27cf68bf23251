//! The minimum of NVMe/TCP for a load: Read and Write, data in capsules and after R2Ts, C2HData with the
//! completion on it or after it. No digests, no SQ flow control.

use std::io;

use nvme::io::BlockTransfer;
use nvme::{Opcode, SglDescriptor, Sqe};
use nvme_tcp::wire::{
    C2hData, COMMON_LEN, CapsuleCmd, CapsuleResp, CommonHeader, Flags, H2cData, PduType, R2t,
};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::association::{NvmeQueue, command_capsule};
use super::{LoadOp, Outgoing, ProtocolClient, WireRequest, protocol_error};

/// What a request waits for, by tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingResponse {
    /// Nothing: there is none.
    Idle,
    /// So many bytes, and its end.
    Read(u32),
    /// The end of a write of so many bytes.
    Write(u32),
}

/// The requesting side of a queue.
#[derive(Debug)]
pub struct NvmeTcpClient {
    queue: NvmeQueue,
    /// Bytes of the current PDU that are to come, and the tag that is done when they have.
    left: usize,
    done_then: Option<u32>,
    waits: Vec<PendingResponse>,
}

impl NvmeTcpClient {
    /// A queue that has joined, for tags below `depth`.
    pub fn new(queue: NvmeQueue, depth: u32) -> Self {
        NvmeTcpClient { queue, left: 0, done_then: None, waits: vec![PendingResponse::Idle; depth as usize] }
    }

    /// Takes a PDU's header; gives the tag that is done when the rest of it is through.
    fn take_pdu(&mut self, bytes: &[u8], kind: PduType, out: &mut Outgoing) -> io::Result<Option<u32>> {
        match kind {
            PduType::C2H_DATA => self.take_data(C2hData::from_prefix(bytes)),
            PduType::CAPSULE_RESP => self.take_response(CapsuleResp::from_prefix(bytes)),
            PduType::R2T => self.send_data(R2t::from_prefix(bytes), out).map(|()| None),
            PduType::C2H_TERM_REQ => Err(protocol_error("the controller ends the connection")),
            other => {
                Err(protocol_error(format!("a PDU of type {:02x}h came where none was asked for", other.0)))
            }
        }
    }

    fn take_data(&mut self, part: Option<&C2hData>) -> io::Result<Option<u32>> {
        let part = part.ok_or_else(|| protocol_error("data whose header is cut off"))?;
        let tag = u32::from(part.cccid.get());
        let Some(PendingResponse::Read(left)) = self.waits.get_mut(tag as usize) else {
            return Err(protocol_error("data for no read"));
        };
        let len = part.datal.get();
        if u64::from(part.common.plen.get()) < u64::from(part.common.pdo) + u64::from(len) {
            return Err(protocol_error("data that its PDU does not hold"));
        }
        *left = left.checked_sub(len).ok_or_else(|| protocol_error("more data than was asked for"))?;
        if part.common.flags.contains(Flags::SUCCESS) { self.finish_request(tag).map(Some) } else { Ok(None) }
    }

    fn take_response(&mut self, response: Option<&CapsuleResp>) -> io::Result<Option<u32>> {
        let cqe = response.ok_or_else(|| protocol_error("a response that is cut off"))?.cqe;
        let status = cqe.completion().status;
        if !status.is_success() {
            return Err(protocol_error(format!(
                "NVMe status {:x}.{:02x}h",
                status.status_code_type(),
                status.code()
            )));
        }
        self.finish_request(cqe.cid.get().into()).map(Some)
    }

    fn finish_request(&mut self, tag: u32) -> io::Result<u32> {
        let waits =
            self.waits.get_mut(tag as usize).ok_or_else(|| protocol_error("the end of no request"))?;
        match std::mem::replace(waits, PendingResponse::Idle) {
            PendingResponse::Read(0) | PendingResponse::Write(_) => Ok(tag),
            PendingResponse::Read(left) => Err(protocol_error(format!("{left} bytes of a read are missing"))),
            PendingResponse::Idle => Err(protocol_error("the end of no request")),
        }
    }

    fn send_data(&mut self, wanted: Option<&R2t>, out: &mut Outgoing) -> io::Result<()> {
        let wanted = wanted.ok_or_else(|| protocol_error("an R2T that is cut off"))?;
        let Some(PendingResponse::Write(len)) = self.waits.get(usize::from(wanted.cccid.get())) else {
            return Err(protocol_error("R2T for no write"));
        };
        let (mut at, end) = (wanted.r2to.get(), u64::from(wanted.r2to.get()) + u64::from(wanted.r2tl.get()));
        if end > u64::from(*len) {
            return Err(protocol_error("R2T behind the end of a write"));
        }
        // The same alignment as in capsules, for a header of 24 bytes.
        let alignment = self.queue.data_at.next_power_of_two().min(128);
        let data_at = if self.queue.data_at == 72 { 24 } else { alignment };
        while u64::from(at) < end {
            let here = self.queue.max_h2c_data.min(end as u32 - at);
            let last = u64::from(at + here) == end;
            let mut part = H2cData::new(wanted.cccid.get(), wanted.ttag.get(), at, here, last);
            part.common.pdo = data_at as u8;
            part.common.plen = U32::new(data_at + here);
            out.push_header(part.as_bytes());
            out.push_zeroes(data_at as usize - H2cData::LEN);
            out.push_payload(here as usize);
            at += here;
        }
        Ok(())
    }
}

impl ProtocolClient for NvmeTcpClient {
    fn encode_request(&mut self, request: WireRequest, out: &mut Outgoing) -> bool {
        let queue = self.queue;
        let Some(waits) = self.waits.get_mut(request.tag as usize) else { return false };
        let mut sqe = Sqe::new_zeroed();
        sqe.flags = 0x40;
        sqe.cid = U16::new(request.tag as u16);
        sqe.nsid = U32::new(queue.nsid);
        let blocks = request.len >> queue.shift;
        BlockTransfer { lba: request.offset >> queue.shift, blocks, flags: 0 }.write_to_sqe(&mut sqe);
        sqe.dptr.length = U32::new(request.len);
        sqe.dptr.identifier = SglDescriptor::TRANSPORT;
        match request.op {
            LoadOp::Read => {
                sqe.opcode = Opcode::READ;
                *waits = PendingResponse::Read(request.len);
                out.push_header(command_capsule(sqe, 0, 0).as_bytes());
            }
            LoadOp::Write => {
                sqe.opcode = Opcode::WRITE;
                *waits = PendingResponse::Write(request.len);
                if request.len > queue.in_capsule {
                    out.push_header(command_capsule(sqe, 0, 0).as_bytes());
                    return true;
                }
                sqe.dptr.identifier = SglDescriptor::IN_CAPSULE;
                out.push_header(command_capsule(sqe, queue.data_at, request.len).as_bytes());
                out.push_zeroes(queue.data_at as usize - CapsuleCmd::LEN);
                out.push_payload(request.len as usize);
            }
        }
        true
    }

    fn handle_input(&mut self, input: &[u8], out: &mut Outgoing, done: &mut Vec<u32>) -> io::Result<usize> {
        let mut at = 0;
        loop {
            let here = self.left.min(input.len() - at);
            at += here;
            self.left -= here;
            if self.left > 0 {
                return Ok(at);
            }
            done.extend(self.done_then.take());
            let rest = input.get(at..).unwrap_or_default();
            let Ok((common, _)) = CommonHeader::ref_from_prefix(rest) else { return Ok(at) };
            let (head, len) = (usize::from(common.hlen), common.plen.get() as usize);
            if head < COMMON_LEN || len < head {
                return Err(protocol_error("a PDU that is shorter than its header"));
            }
            let Some(header) = rest.get(..head) else { return Ok(at) };
            self.done_then = self.take_pdu(header, common.pdu_type, out)?;
            at += head;
            self.left = len - head;
        }
    }

    /// There is nothing to be said: a queue ends with its connection.
    fn encode_end(&mut self, _out: &mut Outgoing) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::{Completion, Cqe, Status};

    fn queue() -> NvmeQueue {
        NvmeQueue { nsid: 1, shift: 12, in_capsule: 8192, data_at: 72, max_h2c_data: 16 << 10 }
    }

    fn bytes(out: &mut Outgoing) -> Vec<u8> {
        let mut bytes = Vec::new();
        out.flush(&mut bytes).unwrap();
        bytes
    }

    fn data(tag: u16, at: u32, len: u32, flags: Flags) -> Vec<u8> {
        let mut part = C2hData::new(tag, at, len, flags);
        part.common.pdo = 24;
        part.common.plen = U32::new(24 + len);
        [part.as_bytes(), &vec![9; len as usize]].concat()
    }

    fn end(tag: u16, status: Status) -> Vec<u8> {
        CapsuleResp::new(Cqe::new(status.into(), tag, 0)).as_bytes().to_vec()
    }

    #[test]
    fn reads_end_with_their_data_or_behind_it_however_the_bytes_come() {
        let both = Flags(Flags::LAST.0 | Flags::SUCCESS.0);
        let mut came = data(1, 0, 4096, both);
        came.extend(data(0, 0, 2048, Flags(0)));
        came.extend(data(0, 2048, 2048, Flags::LAST));
        came.extend(end(0, Completion::SUCCESS.status));
        for step in [1, 7, 1000, came.len()] {
            let mut client = NvmeTcpClient::new(queue(), 2);
            let mut out = Outgoing::new(4096);
            for tag in 0..2 {
                assert!(client.encode_request(
                    WireRequest { tag, op: LoadOp::Read, offset: 8192, len: 4096 },
                    &mut out
                ));
            }
            let commands = bytes(&mut out);
            assert_eq!(commands.len(), 2 * CapsuleCmd::LEN);
            let first = CapsuleCmd::from_prefix(&commands).unwrap().sqe;
            assert_eq!(
                (first.opcode, BlockTransfer::from_sqe(&first).lba, BlockTransfer::from_sqe(&first).blocks),
                (Opcode::READ, 2, 1)
            );
            let (mut done, mut kept) = (Vec::new(), Vec::new());
            for piece in came.chunks(step) {
                kept.extend_from_slice(piece);
                let taken = client.handle_input(&kept, &mut out, &mut done).unwrap();
                kept.drain(..taken);
            }
            assert_eq!((done, kept.len()), (vec![1, 0], 0));
        }
    }

    #[test]
    fn short_writes_go_in_the_capsule_and_long_ones_as_they_are_asked_for() {
        let mut client = NvmeTcpClient::new(NvmeQueue { data_at: 128, ..queue() }, 2);
        let mut out = Outgoing::new(64 << 10);
        client.encode_request(WireRequest { tag: 0, op: LoadOp::Write, offset: 0, len: 8192 }, &mut out);
        let short = bytes(&mut out);
        let head = CapsuleCmd::from_prefix(&short).unwrap();
        assert_eq!((head.common.pdo, head.common.plen.get() as usize), (128, short.len()));
        assert_eq!((short.len(), head.sqe.dptr.identifier), (128 + 8192, SglDescriptor::IN_CAPSULE));
        client.encode_request(WireRequest { tag: 1, op: LoadOp::Write, offset: 0, len: 40 << 10 }, &mut out);
        assert_eq!(bytes(&mut out).len(), 72);
        let wanted = R2t::new(1, 77, 4096, 36 << 10);
        client.handle_input(wanted.as_bytes(), &mut out, &mut Vec::new()).unwrap();
        let sent = bytes(&mut out);
        assert_eq!(sent.len(), 3 * 128 + (36 << 10));
        let last = H2cData::from_prefix(&sent[2 * (128 + (16 << 10))..]).unwrap();
        assert_eq!((last.datao.get(), last.datal.get(), last.ttag.get()), (4096 + (32 << 10), 4 << 10, 77));
        assert!(last.common.flags.contains(Flags::LAST));
    }

    #[test]
    fn what_no_controller_says_ends_the_load() {
        let ahead = R2t::new(0, 1, 0, 8193);
        let mut lost = data(0, 0, 4096, Flags::SUCCESS);
        lost.splice(4..8, 4000u32.to_le_bytes());
        // Added up in 32 bits it would be little.
        let mut huge = data(0, 0, 4096, Flags::SUCCESS);
        huge.splice(16..20, u32::MAX.to_le_bytes());
        let rows = [
            data(1, 0, 512, Flags(0)),
            data(0, 0, 8192, Flags(0)),
            lost,
            huge,
            ahead.as_bytes().to_vec(),
            end(0, Status::INVALID_FIELD),
            end(0, Status::SUCCESS),
            end(7, Status::SUCCESS),
            vec![5, 0, 4, 0, 24, 0, 0, 0],
            vec![0xee; 300],
        ];
        for row in rows {
            let mut client = NvmeTcpClient::new(queue(), 1);
            let mut out = Outgoing::new(4096);
            client.encode_request(WireRequest { tag: 0, op: LoadOp::Read, offset: 0, len: 4096 }, &mut out);
            assert!(client.handle_input(&row, &mut out, &mut Vec::new()).is_err(), "{row:02x?}");
        }
    }
}
