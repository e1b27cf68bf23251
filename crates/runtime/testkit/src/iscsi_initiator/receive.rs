//! What the target sends: each PDU is checked against the protocol, and answered where it must be.

use buf::Entropy;
use buf::crc32c::crc32c;
use iscsi::initiator::LoginProgress;
use iscsi::wire::{
    BHS_LEN, Bhs, DataIn, DataInFlags, Itt, NopIn, NopOut, OpByte, Opcode, Pdu, R2t, ScsiResponse, Sn,
    TmfResponse, padded_len,
};
use shard::Shard;
use sim::World;

use super::{CommandResult, TestInitiator};

impl TestInitiator {
    pub(super) fn next_pdu(&mut self, conn: usize) -> Option<(Bhs, Vec<u8>)> {
        let (header_digest, data_digest) = self.digests_enabled(conn);
        let inbox = &mut self.conns[conn].inbox;
        let bhs = *Bhs::from_prefix(inbox)?;
        let digest_at = BHS_LEN;
        let data_at = digest_at + if header_digest { 4 } else { 0 };
        let segment_end = data_at + padded_len(bhs.data_len())?;
        let end = segment_end + if data_digest && bhs.data_len() > 0 { 4 } else { 0 };
        if inbox.len() < end {
            return None;
        }
        assert_eq!(bhs.ahs_len(), 0, "a target sends no AHS");
        if header_digest {
            assert_eq!(inbox[digest_at..digest_at + 4], crc32c(&inbox[..BHS_LEN]).to_le_bytes());
        }
        if data_digest && bhs.data_len() > 0 {
            let digest = crc32c(&inbox[data_at..segment_end]).to_le_bytes();
            assert_eq!(inbox[segment_end..end], digest, "the data digest is of the data");
        }
        let data = inbox[data_at..data_at + bhs.data_len()].to_vec();
        inbox.drain(..end);
        Some((bhs, data))
    }

    pub(super) fn handle_pdu(&mut self, world: &mut World<Shard>, conn: usize, bhs: &Bhs, data: &[u8]) {
        if self.conns[conn].login.is_some() {
            return self.handle_login_response(world, conn, bhs, data);
        }
        match bhs.opcode() {
            Opcode::SCSI_RESPONSE => self.handle_scsi_response(conn, ScsiResponse::from_bhs(bhs), data),
            Opcode::DATA_IN => self.handle_data_in(conn, DataIn::from_bhs(bhs), data),
            Opcode::R2T => self.handle_r2t(world, conn, R2t::from_bhs(bhs)),
            Opcode::NOP_IN => self.handle_nop_in(world, conn, NopIn::from_bhs(bhs)),
            Opcode::TMF_RESPONSE => {
                let pdu = TmfResponse::from_bhs(bhs);
                self.update_sequence_numbers(conn, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn);
                self.managed.push((pdu.itt.value(), pdu.response.0));
            }
            Opcode::LOGOUT_RESPONSE => self.logged_out = true,
            Opcode::ASYNC_MESSAGE => {
                self.asked_to_log_out = true;
                self.conns[conn].exp_stat_sn = self.conns[conn].exp_stat_sn.next();
            }
            Opcode::REJECT => {
                self.conns[conn].exp_stat_sn = self.conns[conn].exp_stat_sn.next();
            }
            other => panic!("an unexpected PDU {other:?}"),
        }
    }

    fn handle_login_response(&mut self, world: &mut World<Shard>, at: usize, bhs: &Bhs, data: &[u8]) {
        let first = at == 0;
        let conn = &mut self.conns[at];
        let Some(login) = &mut conn.login else { return };
        match login.handle_response(bhs, data, &mut Entropy::new([9; 32])) {
            Ok(LoginProgress::Send(pdu)) => self.send_pdu(world, at, &pdu.bhs, &pdu.text),
            Ok(LoginProgress::Established(logged)) => {
                conn.login = None;
                conn.exp_stat_sn = logged.exp_stat_sn;
                if first {
                    self.cmd_sn = logged.cmd_sn;
                    self.exp_cmd_sn = logged.exp_cmd_sn;
                    self.max_cmd_sn = logged.max_cmd_sn;
                }
                let (exp_cmd_sn, max_cmd_sn) = (logged.exp_cmd_sn, logged.max_cmd_sn);
                conn.logged = Some(*logged);
                self.update_window(exp_cmd_sn, max_cmd_sn);
            }
            Err(failure) => {
                conn.login = None;
                conn.failure = Some(failure);
            }
        }
    }

    fn update_sequence_numbers(&mut self, conn: usize, stat_sn: Sn, exp_cmd_sn: Sn, max_cmd_sn: Sn) {
        let conn = &mut self.conns[conn];
        assert_eq!(stat_sn, conn.exp_stat_sn, "StatSN goes up by one");
        conn.exp_stat_sn = stat_sn.next();
        self.update_window(exp_cmd_sn, max_cmd_sn);
    }

    fn update_window(&mut self, exp_cmd_sn: Sn, max_cmd_sn: Sn) {
        assert!(exp_cmd_sn.le(self.cmd_sn), "what was not sent is not expected to have come");
        if self.max_cmd_sn.lt(max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
        if self.exp_cmd_sn.lt(exp_cmd_sn) {
            self.exp_cmd_sn = exp_cmd_sn;
        }
    }

    fn handle_scsi_response(&mut self, conn: usize, pdu: &ScsiResponse, data: &[u8]) {
        self.update_sequence_numbers(conn, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn);
        let residual = i64::from(pdu.residual.get());
        let residual = match (pdu.flags.0 & 0x02 != 0, pdu.flags.0 & 0x04 != 0) {
            (true, _) => residual,
            (_, true) => -residual,
            (false, false) => 0,
        };
        let sense = data.get(2..).unwrap_or_default().to_vec();
        self.end_task(conn, pdu.itt.value(), pdu.status.0, sense, residual);
    }

    fn end_task(&mut self, conn: usize, itt: u32, status: u8, sense: Vec<u8>, residual: i64) {
        let task = self.tasks.remove(&itt).expect("only what was sent is answered, and once");
        assert_eq!(task.conn, conn, "a command is answered where it was sent");
        self.ended.push(CommandResult { itt, status, sense, data: task.data, residual });
    }

    fn handle_data_in(&mut self, conn: usize, pdu: &DataIn, data: &[u8]) {
        let itt = pdu.itt.value();
        let task = self.tasks.get_mut(&itt).expect("data only for a live task");
        assert_eq!(pdu.data_sn.value(), task.next_data_sn, "DataSN goes up by one");
        task.next_data_sn += 1;
        assert_eq!(pdu.buffer_offset.get() as usize, task.data.len(), "data comes in order");
        task.data.extend(data);
        assert!(task.data.len() <= task.edtl, "no byte beyond what was expected");
        if pdu.flags.contains(DataInFlags::STATUS) {
            self.update_sequence_numbers(conn, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn);
            let sign = if pdu.flags.0 & 0x02 != 0 { 1 } else { -1 };
            self.end_task(conn, itt, pdu.status.0, Vec::new(), sign * i64::from(pdu.residual.get()));
        } else {
            self.update_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
        }
    }

    fn handle_r2t(&mut self, world: &mut World<Shard>, conn: usize, pdu: &R2t) {
        self.update_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
        let max_burst = self.conns[conn].logged.as_ref().expect("logged in").params.max_burst;
        let itt = pdu.itt;
        // A task that this end gave up, but the target not yet: it may be told so by no data at all.
        let Some(task) = self.tasks.get_mut(&itt.value()) else { return };
        assert_eq!(pdu.r2t_sn.value(), task.next_r2t_sn, "R2TSN goes up by one");
        task.next_r2t_sn += 1;
        self.later_r2ts += u64::from(task.next_r2t_sn > 1);
        let (at, len) = (pdu.buffer_offset.get() as usize, pdu.desired_len.get() as usize);
        assert!(
            len > 0 && pdu.desired_len.get() <= max_burst && at + len <= task.out.len(),
            "an R2T within bounds"
        );
        let (lun, burst) = (task.lun, task.out[at..at + len].to_vec());
        self.send_data_out_sequence(world, conn, (lun, itt, pdu.ttt), at, &burst);
    }

    fn handle_nop_in(&mut self, world: &mut World<Shard>, conn: usize, pdu: &NopIn) {
        if pdu.ttt.value() == u32::MAX {
            if pdu.itt.is_none() {
                // It carries the next StatSN, and takes none.
                self.update_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
            } else {
                assert!(self.pings.remove(&pdu.itt.value()).is_some(), "a ping is echoed once");
                self.update_sequence_numbers(conn, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn);
            }
            return;
        }
        self.update_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
        let mut answer = NopOut::new();
        answer.op = OpByte::new(Opcode::NOP_OUT).with_immediate();
        answer.lun = pdu.lun;
        answer.itt = Itt::new(u32::MAX);
        answer.ttt = pdu.ttt;
        answer.cmd_sn = self.cmd_sn;
        answer.exp_stat_sn = self.conns[conn].exp_stat_sn;
        self.send_pdu(world, conn, answer.as_bhs(), &[]);
    }
}
