//! Requests other than commands and data: pings, task management, logout (RFC 7143 §11.5, §11.14, §11.18).

use super::TargetSession;
use super::link::{LinkPhase, LinkState};
use super::window::HeldRequest;
use crate::links::LinkIndex;
use crate::wire::{
    Bhs, Itt, LogoutReason, LogoutRequest, LogoutResponseCode, Opcode, Pdu, RejectReason, Ttt,
};
use buf::{Sg, Time};

/// A logout that waits for the tasks it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingLogout {
    pub(super) itt: Itt,
    /// The link that asked.
    pub(super) index: LinkIndex,
    /// The link to close; `None`: all.
    pub(super) scope: Option<LinkIndex>,
}

impl TargetSession {
    /// The checks that make a request refused as a PDU, SCSI Commands apart.
    pub(super) fn admit_request(&self, index: LinkIndex, bhs: &Bhs) -> Result<(), RejectReason> {
        if bhs.itt.is_none() {
            return Err(RejectReason::INVALID_PDU_FIELD);
        }
        let continues_text =
            self.tasks.links[index].text.as_ref().and_then(|text| text.open_task()) == Some(bhs.itt);
        if self.tasks.index.find(bhs.itt.value()).is_some()
            && !(bhs.opcode() == Opcode::TEXT_REQUEST && continues_text)
        {
            return Err(RejectReason::TASK_IN_PROGRESS);
        }
        match bhs.opcode() {
            Opcode::TMF_REQUEST if self.tasks.params.discovery => Err(RejectReason::PROTOCOL_ERROR),
            Opcode::TMF_REQUEST if bhs.is_immediate() && self.tasks.has_max_immediate_tasks() => {
                Err(RejectReason::TOO_MANY_IMMEDIATE)
            }
            Opcode::TEXT_REQUEST => self.tasks.links[index].admit_text(bhs),
            Opcode::LOGOUT_REQUEST if self.logout.is_some() => Err(RejectReason::PROTOCOL_ERROR),
            _other => Ok(()),
        }
    }

    /// Carries out a request whose turn has come.
    pub(super) fn execute_request(&mut self, now: Time, index: LinkIndex, bhs: &Bhs, data: Sg) {
        if !self.tasks.links[index].is_open() {
            return;
        }
        if let Err(reason) = self.admit_request(index, bhs) {
            return self.tasks.links[index].queue_reject(bhs, reason);
        }
        match bhs.opcode() {
            Opcode::NOP_OUT => {
                self.tasks.links[index].tx.push_nop(bhs.itt, Ttt::NONE, data);
            }
            Opcode::TMF_REQUEST => self.functions.begin_function(&mut self.tasks, index, bhs),
            Opcode::TEXT_REQUEST => self.handle_text_request(index, bhs, &data),
            Opcode::LOGOUT_REQUEST => self.begin_logout(now, index, bhs),
            _other => self.tasks.links[index].queue_reject(bhs, RejectReason::COMMAND_NOT_SUPPORTED),
        }
    }

    /// Goes on behind a CmdSN whose command was aborted before it came.
    pub(super) fn skip_aborted_cmd_sn(&mut self, now: Time) {
        if std::mem::take(&mut self.tasks.window.skips_next) {
            self.deliver_in_order(now, HeldRequest::Skipped);
        }
    }

    fn begin_logout(&mut self, now: Time, index: LinkIndex, bhs: &Bhs) {
        let pdu = LogoutRequest::from_bhs(bhs);
        let scope = match pdu.reason() {
            LogoutReason::CLOSE_SESSION => None,
            LogoutReason::CLOSE_CONNECTION => {
                let named = |link: &LinkState| link.is_open() && link.cid == pdu.cid;
                match self.tasks.links.position(named) {
                    Some(found) => Some(found),
                    None => {
                        return self.tasks.answer_logout(index, bhs.itt, LogoutResponseCode::CID_NOT_FOUND);
                    }
                }
            }
            LogoutReason::REMOVE_FOR_RECOVERY => {
                return self.tasks.answer_logout(index, bhs.itt, LogoutResponseCode::RECOVERY_NOT_SUPPORTED);
            }
            _other => return self.tasks.links[index].queue_reject(bhs, RejectReason::INVALID_PDU_FIELD),
        };
        self.logout = Some(PendingLogout { itt: bhs.itt, index, scope });
        self.tasks.unsettled = true;
        for leaving in self.tasks.links.indices().filter(|link| scope.is_none_or(|scope| scope == *link)) {
            if self.tasks.links[leaving].is_open() {
                self.tasks.links[leaving].phase = LinkPhase::Finishing;
                self.tasks.fences.remove_link(leaving);
                self.tasks.terminate_link_tasks(now, leaving);
            }
        }
    }
}
