//! The target's answers and unsolicited messages (RFC 7143 §11.4, §11.6, §11.9, §11.11, §11.15, §11.17,
//! §11.19).

use super::command::{RequestKind, parse_residual};
use super::link::OutgoingPdu;
use super::request::{Fault, NoAnswer, Notice, Response};
use super::{InitiatorSession, SessionState};
use crate::links::LinkIndex;
use crate::session::{Residual, SenseBytes};
use crate::wire::{
    AsyncEvent, AsyncMessage, BHS_LEN, Bhs, LogoutResponse, LogoutResponseCode, Lun, NopIn, Opcode, Pdu,
    Reject, RejectReason, ResponseFlags, ScsiResponse, ScsiResponseCode, ScsiStatus, TextFlags, TextResponse,
    TmfFunction, TmfResponse, TmfResponseCode,
};
use buf::Cx;
use std::time::Duration;
use stream::{ConnectionClose, Tag};

/// Longest sense data (SPC-4 §4.5).
const SENSE_LEN_MAX: usize = 252;
/// Most of a wait that a target names that is passed on, or kept.
const TARGET_WAIT_MAX: Duration = Duration::from_secs(60);

impl InitiatorSession {
    /// Acts on a PDU that is whole and carries no read's data; `data` is the beginning of its segment.
    pub(super) fn handle_pdu(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        bhs: &Bhs,
        data: &[u8],
    ) -> Result<(), Fault> {
        match bhs.opcode() {
            Opcode::SCSI_RESPONSE => return self.handle_scsi_response(index, bhs, data),
            Opcode::TMF_RESPONSE => self.handle_task_management_response(index, TmfResponse::from_bhs(bhs)),
            Opcode::TEXT_RESPONSE => self.handle_text_response(index, TextResponse::from_bhs(bhs)),
            Opcode::NOP_IN => return self.handle_nop_in(index, NopIn::from_bhs(bhs)),
            Opcode::LOGOUT_RESPONSE => {
                return self.handle_logout_response(index, LogoutResponse::from_bhs(bhs));
            }
            Opcode::REJECT => self.handle_reject(index, Reject::from_bhs(bhs).reason, data),
            Opcode::ASYNC_MESSAGE => return self.handle_async_message(cx, AsyncMessage::from_bhs(bhs), data),
            // R2T was acted on with its header; data of a command that ended is skipped.
            _done => {}
        }
        Ok(())
    }

    fn handle_scsi_response(&mut self, index: LinkIndex, bhs: &Bhs, data: &[u8]) -> Result<(), Fault> {
        let pdu = ScsiResponse::from_bhs(bhs);
        let Some(tag) = self.commands.find_command(index, bhs.itt, bhs.opcode())? else {
            self.commands.remove_abandoned(bhs.itt);
            return Ok(());
        };
        if pdu.response != ScsiResponseCode::COMPLETED {
            self.commands.complete_request(tag, Response::TargetFailure);
            return Ok(());
        }
        let sense = parse_sense_data(data, bhs.data_len())?;
        if pdu.status == ScsiStatus::CHECK_CONDITION && sense.is_empty() {
            return Err(Fault::Sense);
        }
        let len = self.commands.table.get(tag).map_or(0, |command| command.len);
        let over = pdu.flags.contains(ResponseFlags::OVERFLOW);
        let under = pdu.flags.contains(ResponseFlags::UNDERFLOW);
        let residual: Residual = parse_residual((over, under), pdu.residual.get(), len)?;
        self.commands.finish_scsi_command(tag, pdu.status, sense, residual)
    }

    /// A task management function is done; so are the commands that it ended (RFC 7143 §11.6.1).
    fn handle_task_management_response(&mut self, index: LinkIndex, pdu: &TmfResponse) {
        let Ok(Some(tag)) = self.commands.find_command(index, pdu.itt, Opcode::TMF_RESPONSE) else { return };
        let Some(RequestKind::Task { function, lun, referenced }) =
            self.commands.table.get(tag).map(|c| &c.kind)
        else {
            return;
        };
        let (function, lun, referenced) = (*function, *lun, *referenced);
        match (function, pdu.response) {
            (TmfFunction::ABORT_TASK, TmfResponseCode::COMPLETE) => {
                referenced.into_iter().for_each(|tag| self.commands.end_unanswered(tag, NoAnswer::Aborted));
            }
            // The target has no such task, and answered none.
            (TmfFunction::ABORT_TASK, TmfResponseCode::NO_TASK) => {
                referenced.into_iter().for_each(|tag| self.commands.end_unanswered(tag, NoAnswer::Unknown));
            }
            (
                TmfFunction::ABORT_TASK_SET | TmfFunction::CLEAR_TASK_SET | TmfFunction::LOGICAL_UNIT_RESET,
                TmfResponseCode::COMPLETE,
            ) => self.end_commands_before(tag, Some(lun)),
            (
                TmfFunction::TARGET_WARM_RESET
                | TmfFunction::TARGET_COLD_RESET
                | TmfFunction::I_T_NEXUS_RESET,
                TmfResponseCode::COMPLETE,
            ) => self.end_commands_before(tag, None),
            _ends_nothing => {}
        }
        self.commands.complete_request(tag, Response::Task(pdu.response));
    }

    /// Ends the commands that were sent before a function, to one logical unit or to all.
    fn end_commands_before(&mut self, function: Tag, unit: Option<Lun>) {
        let Some(before) = self.commands.table.get(function).and_then(|command| command.sent) else { return };
        let hit = |kind: &RequestKind| match kind {
            RequestKind::Scsi(command) => unit.is_none_or(|lun| lun.0 == command.lun),
            RequestKind::Task { .. } | RequestKind::Text { .. } => false,
        };
        let ended: Vec<Tag> = self
            .commands
            .table
            .iter()
            .filter(|(_, command)| hit(&command.kind) && command.sent.is_some_and(|sn| sn.lt(before)))
            .map(|(tag, _)| tag)
            .collect();
        ended.into_iter().for_each(|tag| self.commands.end_unanswered(tag, NoAnswer::Aborted));
    }

    fn handle_text_response(&mut self, index: LinkIndex, pdu: &TextResponse) {
        let Ok(Some(tag)) = self.commands.find_command(index, pdu.itt, Opcode::TEXT_RESPONSE) else { return };
        let Some(command) = self.commands.table.get_mut(tag) else { return };
        let RequestKind::Text { reader, ttt, .. } = &mut command.kind else { return };
        let ends = pdu.ttt.is_none() || pdu.flags.contains(TextFlags::FINAL);
        if ends || reader.is_truncated() {
            let targets = reader.finish();
            self.commands.complete_request(tag, Response::Targets(targets));
        } else {
            *ttt = pdu.ttt;
            let link = command.link;
            self.commands.links[link].out.push_back(OutgoingPdu::Request(tag));
        }
    }

    fn handle_nop_in(&mut self, index: LinkIndex, pdu: &NopIn) -> Result<(), Fault> {
        let link = &mut self.commands.links[index];
        if !pdu.itt.is_none() {
            let ours = link.ping.take_if(|(itt, _)| *itt == pdu.itt).is_some()
                || self.commands.remove_abandoned(pdu.itt);
            return if ours { Ok(()) } else { Err(Fault::UnknownTask(Opcode::NOP_IN)) };
        }
        if !pdu.ttt.is_none() {
            link.pongs += 1;
            link.out.push_back(OutgoingPdu::Pong { ttt: pdu.ttt, lun: pdu.lun });
        }
        Ok(())
    }

    fn handle_logout_response(&mut self, index: LinkIndex, pdu: &LogoutResponse) -> Result<(), Fault> {
        if self.logout != Some((index, pdu.itt)) {
            return Err(Fault::UnknownTask(Opcode::LOGOUT_RESPONSE));
        }
        if pdu.response != LogoutResponseCode::CLOSED {
            self.notices.push_back(Notice::LogoutRefused(pdu.response));
        }
        self.fail_session();
        Ok(())
    }

    /// A PDU of ours was refused; `header` is what the target says it was.
    fn handle_reject(&mut self, index: LinkIndex, reason: RejectReason, header: &[u8]) {
        let Some(bhs) = header.get(..BHS_LEN).and_then(Bhs::from_prefix) else {
            return self.notices.push_back(Notice::Rejected(Opcode::REJECT, reason));
        };
        let (opcode, itt) = (bhs.opcode(), bhs.itt);
        let begins = matches!(opcode, Opcode::SCSI_COMMAND | Opcode::TMF_REQUEST | Opcode::TEXT_REQUEST);
        match self.commands.find_command(index, itt, opcode) {
            Ok(Some(tag)) if begins => self.commands.end_rejected(index, tag, reason),
            _other => self.notices.push_back(Notice::Rejected(opcode, reason)),
        }
        if self.logout == Some((index, itt)) {
            self.fail_session();
        }
        if opcode == Opcode::NOP_OUT {
            // Refused is an answer too.
            self.commands.links[index].ping.take_if(|(ping, _)| *ping == itt);
        }
    }

    fn handle_async_message(
        &mut self,
        cx: &mut Cx<'_>,
        pdu: &AsyncMessage,
        data: &[u8],
    ) -> Result<(), Fault> {
        let wait = |seconds: u16| Duration::from_secs(seconds.into()).min(TARGET_WAIT_MAX);
        let notice = match pdu.event {
            AsyncEvent::SCSI_EVENT => Notice::Scsi {
                lun: pdu.lun.0,
                sense: parse_sense_data(data, pdu.data_segment_len.value() as usize)?,
            },
            AsyncEvent::LOGOUT_REQUEST | AsyncEvent::NEGOTIATION_REQUEST => {
                let within = wait(pdu.parameter3.get()).max(Duration::from_secs(1));
                if self.state == SessionState::Ready {
                    self.begin_close(ConnectionClose::AfterLogout(cx.now + within));
                }
                Notice::LogoutRequested { within }
            }
            AsyncEvent::CONNECTION_DROP | AsyncEvent::SESSION_DROP => {
                self.fail_session();
                Notice::Dropped { wait: wait(pdu.parameter2.get()) }
            }
            other => Notice::Unknown(other),
        };
        self.notices.push_back(notice);
        Ok(())
    }
}

/// The sense data of a segment of `len` bytes that begins with `data` (RFC 7143 §11.4.7).
fn parse_sense_data(data: &[u8], len: usize) -> Result<SenseBytes, Fault> {
    let Some(([high, low], rest)) = data.split_first_chunk() else {
        return if len == 0 { Ok(SenseBytes::new()) } else { Err(Fault::Sense) };
    };
    let sense_len = usize::from(u16::from_be_bytes([*high, *low]));
    if sense_len > len - 2 {
        return Err(Fault::Sense);
    }
    Ok(SenseBytes::from_slice(rest.get(..sense_len.min(SENSE_LEN_MAX)).unwrap_or(rest)))
}
