//! The minimum of iSCSI (RFC 7143) for a load: READ (10) and WRITE (10) with immediate data, R2T, Data-In
//! with the status on it or after it, and an answer to the target's pings.

use std::collections::HashMap;
use std::io;

use iscsi::wire::{
    BHS_LEN, Bhs, DataIn, DataOut, DataOutFlags, Itt, LogoutRequest, Lun, NopIn, NopOut, Opcode, Pdu, R2t,
    ScsiResponse, Sn, Ttt,
};

use super::session::IscsiSession;
use super::{LoadOp, Outgoing, ProtocolClient, WireRequest, protocol_error};

/// The requesting side of a connection.
#[derive(Debug)]
pub struct IscsiClient {
    session: IscsiSession,
    /// Bytes of the current segment that are to come, and the tag that is done when they have.
    segment_left: usize,
    done_then: Option<u32>,
    /// Bytes of data that reads have yet to get, by tag.
    reading: HashMap<u32, u32>,
    writing: HashMap<u32, u32>,
}

impl IscsiClient {
    /// A session that logged in.
    pub fn new(session: IscsiSession) -> Self {
        IscsiClient {
            session,
            segment_left: 0,
            done_then: None,
            reading: HashMap::new(),
            writing: HashMap::new(),
        }
    }

    /// Takes a header; gives the tag that is done when its segment is through.
    fn take_header(&mut self, header: &Bhs, out: &mut Outgoing) -> io::Result<Option<u32>> {
        match header.opcode() {
            Opcode::DATA_IN => self.take_data_in(DataIn::from_bhs(header)),
            Opcode::SCSI_RESPONSE => self.take_response(ScsiResponse::from_bhs(header)),
            Opcode::R2T => self.send_data(R2t::from_bhs(header), out).map(|()| None),
            Opcode::NOP_IN => {
                self.answer_ping(NopIn::from_bhs(header), out);
                Ok(None)
            }
            Opcode::LOGOUT_RESPONSE => Ok(None),
            other => Err(protocol_error(format!(
                "a PDU with opcode {:02x}h came where none was asked for",
                other.0
            ))),
        }
    }

    fn take_data_in(&mut self, part: &DataIn) -> io::Result<Option<u32>> {
        let tag = part.itt.value();
        let left = self.reading.get_mut(&tag).ok_or_else(|| protocol_error("data for no read"))?;
        let len = part.data_segment_len.value();
        *left = left.checked_sub(len).ok_or_else(|| protocol_error("more data than was asked for"))?;
        self.session.open_window(part.max_cmd_sn);
        if part.flags.0 & 1 == 0 {
            return Ok(None);
        }
        self.session.acknowledge(part.stat_sn, part.max_cmd_sn);
        self.finish_request(tag, part.status.0).map(Some)
    }

    fn take_response(&mut self, response: &ScsiResponse) -> io::Result<Option<u32>> {
        self.session.acknowledge(response.stat_sn, response.max_cmd_sn);
        if response.response.0 != 0 {
            return Err(protocol_error(format!("iSCSI response {}", response.response.0)));
        }
        self.finish_request(response.itt.value(), response.status.0).map(Some)
    }

    fn finish_request(&mut self, tag: u32, status: u8) -> io::Result<u32> {
        if status != 0 {
            return Err(protocol_error(format!("SCSI status {status:02x}h")));
        }
        match (self.reading.remove(&tag), self.writing.remove(&tag)) {
            (Some(0), None) | (None, Some(_)) => Ok(tag),
            (Some(left), None) => Err(protocol_error(format!("{left} bytes of a read are missing"))),
            _ => Err(protocol_error("a response for no request")),
        }
    }

    fn send_data(&mut self, wanted: &R2t, out: &mut Outgoing) -> io::Result<()> {
        let tag = wanted.itt.value();
        let len = *self.writing.get(&tag).ok_or_else(|| protocol_error("R2T for no write"))?;
        self.session.open_window(wanted.max_cmd_sn);
        let (mut at, end) = (
            wanted.buffer_offset.get(),
            u64::from(wanted.buffer_offset.get()) + u64::from(wanted.desired_len.get()),
        );
        if end > u64::from(len) {
            return Err(protocol_error("R2T behind the end of a write"));
        }
        let mut number = Sn::new(0);
        while u64::from(at) < end {
            let here = self.session.segment_max.min(end as u32 - at);
            let mut part = DataOut::new();
            part.flags = DataOutFlags(if u64::from(at + here) == end { 0x80 } else { 0 });
            part.lun = Lun(self.session.lun);
            part.itt = wanted.itt;
            part.ttt = wanted.ttt;
            part.exp_stat_sn = self.session.exp_stat_sn;
            part.data_sn = number.take();
            part.buffer_offset = at.into();
            part.set_data_len(here as usize);
            out.push_header(part.as_bhs().bytes());
            out.push_payload(here as usize);
            at += here;
        }
        Ok(())
    }

    fn answer_ping(&mut self, ping: &NopIn, out: &mut Outgoing) {
        self.session.open_window(ping.max_cmd_sn);
        if ping.ttt == Ttt::NONE {
            return;
        }
        let mut answer = NopOut::new();
        answer.op = answer.op.with_immediate();
        answer.lun = ping.lun;
        answer.ttt = ping.ttt;
        answer.cmd_sn = self.session.cmd_sn;
        answer.exp_stat_sn = self.session.exp_stat_sn;
        out.push_header(answer.as_bhs().bytes());
    }
}

impl ProtocolClient for IscsiClient {
    fn encode_request(&mut self, request: WireRequest, out: &mut Outgoing) -> bool {
        if self.session.max_cmd_sn.lt(self.session.cmd_sn) {
            return false;
        }
        let mut command = self.session.read_write_command(request);
        match request.op {
            LoadOp::Read => {
                self.reading.insert(request.tag, request.len);
                out.push_header(command.as_bhs().bytes());
            }
            LoadOp::Write => {
                let most = self.session.first_burst.min(self.session.segment_max);
                let now = if self.session.immediate { request.len.min(most) } else { 0 };
                self.writing.insert(request.tag, request.len);
                command.set_data_len(now as usize);
                out.push_header(command.as_bhs().bytes());
                out.push_payload(now as usize);
            }
        }
        true
    }

    fn handle_input(&mut self, input: &[u8], out: &mut Outgoing, done: &mut Vec<u32>) -> io::Result<usize> {
        let mut at = 0;
        loop {
            let here = self.segment_left.min(input.len() - at);
            at += here;
            self.segment_left -= here;
            if self.segment_left > 0 {
                return Ok(at);
            }
            done.extend(self.done_then.take());
            let Some(header) = Bhs::from_prefix(input.get(at..).unwrap_or_default()) else { return Ok(at) };
            at += BHS_LEN;
            self.segment_left = header.ahs_len() + header.padded_data_len();
            self.done_then = self.take_header(header, out)?;
        }
    }

    fn encode_end(&mut self, out: &mut Outgoing) {
        let mut request = LogoutRequest::new();
        request.op = request.op.with_immediate();
        request.itt = Itt::new(u32::MAX - 1);
        request.cmd_sn = self.session.cmd_sn;
        request.exp_stat_sn = self.session.exp_stat_sn;
        out.push_header(request.as_bhs().bytes());
    }
}
