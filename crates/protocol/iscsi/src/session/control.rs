//! The requests that are not data: pings, task management, logout (RFC 7143 §11.5, §11.14, §11.18).

use super::TargetSession;
use super::data_out::after;
use super::link::Phase;
use super::outgoing::OutgoingPdu;
use super::request::{Request, TaskManagement};
use super::task::{Kind, State, Termination};
use super::window::{CmdSnOrder, HeldRequest};
use crate::links::LinkIndex;
use crate::wire::{
    Bhs, Itt, LogoutReason, LogoutRequest, LogoutResponseCode, NopOut, Opcode, Pdu, RejectReason,
    TmfFunction, TmfRequest, TmfResponseCode, Ttt,
};
use buf::{Cx, Sg};
use stream::{Tag, TargetEvent};

/// The bit of a NOP-Out's second byte that is always set (RFC 7143 §11.18).
const FINAL: u8 = 0x80;

/// A logout that waits for the tasks it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logout {
    pub(super) itt: Itt,
    /// The link that asked.
    pub(super) index: LinkIndex,
    /// The link to close; `None`: all.
    pub(super) scope: Option<LinkIndex>,
}

/// A task management function that waits for the commands before it (RFC 7143 §4.2.3.3).
#[derive(Debug)]
pub(super) struct WaitingFunction {
    tag: Tag,
    request: TaskManagement,
}

impl TargetSession {
    /// Refuses a PDU, with a copy of its header.
    pub(super) fn reject(&mut self, index: LinkIndex, bhs: &Bhs, reason: RejectReason) {
        self.links[index].tx.push(OutgoingPdu::Reject { reason, bhs: *bhs });
    }

    /// The checks that make a request refused as a PDU, SCSI Commands apart.
    pub(super) fn admit_request(&self, index: LinkIndex, bhs: &Bhs) -> Result<(), RejectReason> {
        if bhs.itt.is_none() {
            return Err(RejectReason::INVALID_PDU_FIELD);
        }
        let continues_text = self.links[index].text.as_ref().and_then(|text| text.open()) == Some(bhs.itt);
        if self.index.find(bhs.itt.value()).is_some()
            && !(bhs.opcode() == Opcode::TEXT_REQUEST && continues_text)
        {
            return Err(RejectReason::TASK_IN_PROGRESS);
        }
        match bhs.opcode() {
            Opcode::TMF_REQUEST if self.params.discovery => Err(RejectReason::PROTOCOL_ERROR),
            Opcode::TMF_REQUEST if bhs.is_immediate() && self.immediates_full() => {
                Err(RejectReason::TOO_MANY_IMMEDIATE)
            }
            Opcode::TEXT_REQUEST => self.admit_text(index, bhs),
            Opcode::LOGOUT_REQUEST if self.logout.is_some() => Err(RejectReason::PROTOCOL_ERROR),
            _other => Ok(()),
        }
    }

    fn immediates_full(&self) -> bool {
        self.immediates >= u32::from(self.limits.immediate)
    }

    /// Carries out a request whose turn has come.
    pub(super) fn perform(&mut self, cx: &mut Cx<'_>, index: LinkIndex, bhs: &Bhs, data: Sg) {
        if !self.links[index].is_open() {
            return;
        }
        if let Err(reason) = self.admit_request(index, bhs) {
            return self.reject(index, bhs, reason);
        }
        match bhs.opcode() {
            Opcode::NOP_OUT => {
                self.links[index].tx.push_nop(bhs.itt, Ttt::NONE, data);
            }
            Opcode::TMF_REQUEST => self.task_management(index, bhs),
            Opcode::TEXT_REQUEST => self.text(index, bhs, &data),
            Opcode::LOGOUT_REQUEST => self.begin_logout(cx, index, bhs),
            _other => self.reject(index, bhs, RejectReason::COMMAND_NOT_SUPPORTED),
        }
    }

    /// A NOP-Out: what it says of our pings, also if it wants an answer itself (RFC 7143 §11.18). False: it
    /// is refused.
    pub(super) fn admit_nop(&mut self, index: LinkIndex, bhs: &Bhs) -> bool {
        let pdu = NopOut::from_bhs(bhs);
        let reason = if bhs.flags & FINAL == 0 {
            RejectReason::INVALID_PDU_FIELD
        } else if bhs.itt.is_none() && !bhs.is_immediate() {
            RejectReason::PROTOCOL_ERROR
        } else if pdu.ttt.is_none() || self.links[index].pings.answer(pdu.ttt.value()) {
            return true;
        } else {
            RejectReason::INVALID_PDU_FIELD
        };
        self.reject(index, bhs, reason);
        false
    }

    /// Pings the initiator.
    pub(super) fn ping(&mut self, cx: &mut Cx<'_>, index: LinkIndex) {
        let ttt = self.next_ttt;
        self.next_ttt = after(ttt);
        let link = &mut self.links[index];
        link.pings.send(ttt, cx.now);
        link.tx.push_nop(Itt::NONE, Ttt::new(ttt), Sg::new());
    }

    fn task_management(&mut self, index: LinkIndex, bhs: &Bhs) {
        let pdu = TmfRequest::from_bhs(bhs);
        let function = pdu.function();
        let referenced = match self.resolve(index, pdu) {
            Ok(referenced) => referenced,
            Err(response) => {
                return self.links[index].tx.push(OutgoingPdu::Tmf { itt: bhs.itt, response });
            }
        };
        let Some(tag) = self.start_task(index, bhs, Kind::Tmf(function, referenced), State::Held) else {
            return self.reject(index, bhs, RejectReason::TOO_MANY_IMMEDIATE);
        };
        self.count_in(tag);
        let request = TaskManagement { function, lun: pdu.lun.0, referenced };
        if bhs.is_immediate() && ends_many(function) && self.window.exp().lt(pdu.cmd_sn) {
            self.waiting_functions.push(WaitingFunction { tag, request });
        } else {
            self.tell(tag, request);
        }
    }

    fn tell(&mut self, tag: Tag, request: TaskManagement) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        task.state = State::Live;
        let command = Request::Task(request);
        self.events.push_back(TargetEvent::Command { tag, command, data_out: 0 });
    }

    /// Drops the functions that died with their link while they waited.
    pub(super) fn forget_ended_functions(&mut self) {
        let tasks = &self.tasks;
        self.waiting_functions.retain(|waiting| tasks.get(waiting.tag).is_some());
    }

    /// Tells of the functions that waited for commands that are here now.
    pub(super) fn deliver_waiting_functions(&mut self, _cx: &mut Cx<'_>) {
        let mut index = 0;
        while let Some(waiting) = self.waiting_functions.get(index) {
            let tag = waiting.tag;
            let due = match self.tasks.get(tag) {
                None => true,
                Some(task) => !self.window.exp().lt(task.cmd_sn),
            };
            if due {
                let waiting = self.waiting_functions.remove(index);
                self.tell(tag, waiting.request);
            } else {
                index += 1;
            }
        }
    }

    /// Which task the function names; or the answer, where none is needed from above.
    fn resolve(&mut self, index: LinkIndex, pdu: &TmfRequest) -> Result<Option<Tag>, TmfResponseCode> {
        match pdu.function() {
            TmfFunction::ABORT_TASK => self.resolve_task(index, pdu, true),
            TmfFunction::QUERY_TASK if self.params.protocol_level >= 2 => {
                self.resolve_task(index, pdu, false)
            }
            TmfFunction::TASK_REASSIGN => Err(TmfResponseCode::NO_REASSIGNMENT),
            TmfFunction::ABORT_TASK_SET
            | TmfFunction::CLEAR_ACA
            | TmfFunction::CLEAR_TASK_SET
            | TmfFunction::LOGICAL_UNIT_RESET
            | TmfFunction::TARGET_WARM_RESET
            | TmfFunction::TARGET_COLD_RESET => Ok(None),
            TmfFunction::QUERY_TASK_SET
            | TmfFunction::I_T_NEXUS_RESET
            | TmfFunction::QUERY_ASYNCHRONOUS_EVENT
                if self.params.protocol_level >= 2 =>
            {
                Ok(None)
            }
            _other => Err(TmfResponseCode::NOT_SUPPORTED),
        }
    }

    fn resolve_task(
        &mut self,
        index: LinkIndex,
        pdu: &TmfRequest,
        abort: bool,
    ) -> Result<Option<Tag>, TmfResponseCode> {
        if pdu.referenced_tag == pdu.itt {
            return Err(TmfResponseCode::REJECTED);
        }
        let Some(tag) = self.index.find(pdu.referenced_tag.value()) else {
            return Err(self.resolve_absent(pdu, abort));
        };
        let Some(task) = self.tasks.get_mut(tag) else { return Err(TmfResponseCode::NO_TASK) };
        // It is executed on tasks only, and on the link that the task is allegiant to (§11.5.1).
        if task.link != index || !matches!(task.kind, Kind::Scsi(_)) {
            return Err(TmfResponseCode::REJECTED);
        }
        if task.lun != pdu.lun {
            return Err(TmfResponseCode::NO_TASK);
        }
        match &mut task.state {
            State::Live => Ok(Some(tag)),
            State::Terminating { how, acked: false } => {
                if abort {
                    *how = Termination::Silent;
                }
                Ok(Some(tag))
            }
            // The server knows nothing of it, or is done with it: it ends here.
            State::Held | State::Invalid(_) | State::Answered(_) | State::Terminating { acked: true, .. } => {
                if abort {
                    self.end_silently(tag);
                    Err(TmfResponseCode::COMPLETE)
                } else {
                    Err(TmfResponseCode::SUCCEEDED)
                }
            }
        }
    }

    /// A task that is not here: if its command is still missing from the order, an abort closes the
    /// gap (RFC 7143 §11.6.1).
    fn resolve_absent(&mut self, pdu: &TmfRequest, abort: bool) -> TmfResponseCode {
        let sn = pdu.ref_cmd_sn;
        let before = sn.lt(pdu.cmd_sn);
        match self.window.order(sn) {
            CmdSnOrder::Ahead if abort && before => {
                self.window.hold(sn, HeldRequest::Skipped);
                TmfResponseCode::COMPLETE
            }
            CmdSnOrder::Next if abort && before => {
                self.skip_next = true;
                TmfResponseCode::COMPLETE
            }
            CmdSnOrder::Next | CmdSnOrder::Ahead | CmdSnOrder::Outside => TmfResponseCode::NO_TASK,
        }
    }

    /// Goes on behind a CmdSN whose command was aborted before it came.
    pub(super) fn skip_aborted_cmd_sn(&mut self, cx: &mut Cx<'_>) {
        if std::mem::take(&mut self.skip_next) {
            self.deliver_in_order(cx, HeldRequest::Skipped);
        }
    }

    fn begin_logout(&mut self, cx: &mut Cx<'_>, index: LinkIndex, bhs: &Bhs) {
        let pdu = LogoutRequest::from_bhs(bhs);
        let scope = match pdu.reason() {
            LogoutReason::CLOSE_SESSION => None,
            LogoutReason::CLOSE_CONNECTION => {
                let named = |link: &super::link::LinkState| link.is_open() && link.cid == pdu.cid;
                match self.links.position(named) {
                    Some(found) => Some(found),
                    None => return self.answer_logout(index, bhs.itt, LogoutResponseCode::CID_NOT_FOUND),
                }
            }
            LogoutReason::REMOVE_FOR_RECOVERY => {
                return self.answer_logout(index, bhs.itt, LogoutResponseCode::RECOVERY_NOT_SUPPORTED);
            }
            _other => return self.reject(index, bhs, RejectReason::INVALID_PDU_FIELD),
        };
        self.logout = Some(Logout { itt: bhs.itt, index, scope });
        self.unsettled = true;
        for leaving in self.links.indices().filter(|link| scope.is_none_or(|scope| scope == *link)) {
            if self.links[leaving].is_open() {
                self.links[leaving].phase = Phase::Finishing;
                self.unfence(leaving);
                self.terminate_tasks_of(cx, leaving);
            }
        }
    }

    pub(super) fn answer_logout(&mut self, index: LinkIndex, itt: Itt, response: LogoutResponseCode) {
        let (time2wait, time2retain) = (self.params.time2wait, self.params.time2retain);
        self.links[index].tx.push(OutgoingPdu::Logout { itt, response, time2wait, time2retain });
    }
}

/// Whether the function ends tasks without naming them.
pub(super) fn ends_many(function: TmfFunction) -> bool {
    matches!(
        function,
        TmfFunction::ABORT_TASK_SET
            | TmfFunction::CLEAR_TASK_SET
            | TmfFunction::LOGICAL_UNIT_RESET
            | TmfFunction::TARGET_WARM_RESET
            | TmfFunction::TARGET_COLD_RESET
            | TmfFunction::I_T_NEXUS_RESET
    )
}
