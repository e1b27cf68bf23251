//! The requests of a session from their submission to their end, and their shared state: the links that carry
//! them and the target's command window.

use super::IMMEDIATE_REQUESTS_MAX;
use super::command::{Command, CommandData, RequestKind, data_in_residual_flags, parse_residual};
use super::link::{LinkState, OutgoingPdu};
use super::request::{Fault, NoAnswer, Request, Response, ScsiAnswer};
use crate::links::{LinkIndex, Links};
use crate::negotiate::{Params, SessionType};
use crate::session::{Residual, SenseBytes, TaskManagement};
use crate::wire::ahs::CDB_LEN_MAX;
use crate::wire::{Bhs, DataIn, DataInFlags, Itt, Lun, Opcode, Pdu, R2t, RejectReason, ScsiStatus, Sn, Ttt};
use buf::{Payload, SgMut, Time};
use std::collections::VecDeque;
use stream::{HostEvent, Slab, Tag, TagIndex};

/// How far StatSN may run ahead. Over TCP no answer is lost, and some targets count what they send unprompted, so a
/// small gap is no harm; a number that is beyond all that can be in work would be acknowledged for ever.
const STAT_SN_AHEAD_MAX: u32 = 4096;

/// The order of commands as the initiator sees it (RFC 7143 §4.2.2.1).
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandWindow {
    /// CmdSN of the next command.
    pub(super) next: Sn,
    pub(super) exp: Sn,
    max: Sn,
}

impl CommandWindow {
    /// How many more commands may be numbered.
    pub(super) fn available_commands(&self) -> usize {
        if self.next.le(self.max) { self.max.steps_since(self.next) as usize + 1 } else { 0 }
    }

    /// Takes ExpCmdSN and MaxCmdSN; numbers that cannot be are ignored.
    pub(super) fn update_window(&mut self, exp: Sn, max: Sn) {
        if !exp.sub(1).le(max) {
            return;
        }
        if self.exp.lt(exp) && exp.le(self.next) {
            self.exp = exp;
        }
        if self.max.lt(max) {
            self.max = max;
        }
    }
}

#[derive(Debug)]
pub(super) struct Commands {
    /// What was negotiated; the defaults before that.
    pub(super) params: Params,
    pub(super) window: CommandWindow,
    /// Commands that were accepted and have no CmdSN yet.
    pub(super) waiting: usize,
    pub(super) table: Slab<Command>,
    /// SCSI commands among them, and how many there may be.
    scsi: usize,
    scsi_max: usize,
    /// By Initiator Task Tag.
    index: TagIndex,
    next_itt: u32,
    pub(super) links: Links<LinkState>,
    /// Tags of commands that ended before their answer came: what comes for them is skipped.
    pub(super) abandoned: VecDeque<Itt>,
    pub(super) events: VecDeque<HostEvent<Response>>,
    /// Since when a command has waited for the window.
    pub(super) refused: Option<Time>,
}

impl Commands {
    pub(super) fn new(kind: SessionType, cmd_sn: Sn, scsi_max: u16) -> Self {
        let most = usize::from(scsi_max) + IMMEDIATE_REQUESTS_MAX;
        Commands {
            params: Params::defaults(kind),
            window: CommandWindow { next: cmd_sn, exp: cmd_sn, max: cmd_sn },
            waiting: 0,
            table: Slab::new(most),
            scsi: 0,
            scsi_max: scsi_max.into(),
            index: TagIndex::new(most),
            next_itt: 1,
            links: Links::new(),
            abandoned: VecDeque::new(),
            events: VecDeque::new(),
            refused: None,
        }
    }

    /// Starts a request; gives it back if it may not be in work now.
    pub(super) fn start_request(
        &mut self,
        now: Time,
        request: Request,
        payload: Payload,
    ) -> Result<Tag, (Request, Payload)> {
        if !self.admits_request(now, &request, &payload) {
            return Err((request, payload));
        }
        let Some(link) = self.choose_link(&request) else { return Err((request, payload)) };
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let (immediate, unsolicited) = match &payload {
            Payload::Out(_) => self.unsolicited_lens(link, len),
            Payload::None | Payload::In(_) => (0, 0),
        };
        let data = match payload {
            Payload::In(data) if len > 0 => CommandData::In(Some(data)),
            Payload::Out(data) if len > 0 => CommandData::Out { data, immediate },
            Payload::None | Payload::In(_) | Payload::Out(_) => CommandData::None,
        };
        let (kind, is_scsi) = match request {
            Request::Scsi(command) => (RequestKind::Scsi(command), true),
            Request::Task(TaskManagement { function, lun, referenced }) => {
                (RequestKind::Task { function, lun: Lun(lun), referenced }, false)
            }
            Request::SendTargets(question) => {
                (RequestKind::Text { question, reader: Box::default(), ttt: Ttt::NONE }, false)
            }
        };
        let itt = self.next_itt();
        let command = Command {
            itt,
            link,
            kind,
            data,
            len,
            next: unsolicited,
            sn: 0,
            r2ts: 0,
            unsent: unsolicited - immediate,
            sent: None,
            since: now,
            digest_failed: false,
            lost: None,
        };
        #[expect(
            clippy::unreachable,
            reason = "`admits` has counted, and the table is as long as it lets in"
        )]
        let Ok(tag) = self.table.insert(command) else { unreachable!("counted before") };
        self.index.insert(itt.value(), tag);
        self.links[link].commands += 1;
        let out = &mut self.links[link].out;
        out.push_back(OutgoingPdu::Request(tag));
        if is_scsi {
            self.scsi += 1;
            self.waiting += 1;
            if unsolicited > immediate {
                out.push_back(OutgoingPdu::Data {
                    tag,
                    ttt: Ttt::NONE,
                    offset: immediate,
                    end: unsolicited,
                    sn: 0,
                });
            }
        }
        Ok(tag)
    }

    /// Whether the request may be in work now.
    fn admits_request(&mut self, now: Time, request: &Request, payload: &Payload) -> bool {
        let discovery = self.params.session_type == SessionType::Discovery;
        match request {
            Request::Scsi(command) => {
                let fits =
                    u32::try_from(payload.len()).is_ok() && command.cdb.as_slice().len() <= CDB_LEN_MAX;
                if discovery || !fits || self.scsi >= self.scsi_max {
                    return false;
                }
                let open = self.window.available_commands() > self.waiting;
                if !open && self.refused.is_none() {
                    self.refused = Some(now);
                }
                open
            }
            Request::Task(_) | Request::SendTargets(_) => {
                let others = self.table.len() - self.scsi;
                let allowed = !discovery || matches!(request, Request::SendTargets(_));
                allowed && payload.is_empty() && others < IMMEDIATE_REQUESTS_MAX
            }
        }
    }

    /// The open link with the fewest commands; for a function that names a command, that of the command
    /// (RFC 7143 §11.5.1).
    fn choose_link(&self, request: &Request) -> Option<LinkIndex> {
        if let Request::Task(TaskManagement { referenced: Some(tag), .. }) = request
            && let Some(command) = self.table.get(*tag)
        {
            return Some(command.link);
        }
        let open = self.links.enumerate().filter(|(_, link)| link.is_open());
        open.min_by_key(|(_, link)| link.commands).map(|(index, _)| index)
    }

    /// How much of a write goes with its command, and how much unsolicited with and behind it (RFC 7143 §13.10,
    /// §13.11, §13.14).
    fn unsolicited_lens(&self, link: LinkIndex, len: u32) -> (u32, u32) {
        let framing = self.links[link].framing;
        let burst = self.params.first_burst.min(len);
        let immediate =
            if self.params.immediate_data { burst.min(framing.send_segment_len_max()) } else { 0 };
        (immediate, if self.params.initial_r2t { immediate } else { burst })
    }

    pub(super) fn next_itt(&mut self) -> Itt {
        loop {
            let itt = Itt::new(self.next_itt);
            self.next_itt = self.next_itt.wrapping_add(1);
            if !itt.is_none() && self.index.find(itt.value()).is_none() && !self.abandoned.contains(&itt) {
                return itt;
            }
        }
    }

    /// The command that a PDU names; `None` if it has ended and what comes for it is skipped.
    pub(super) fn find_command(
        &self,
        index: LinkIndex,
        itt: Itt,
        opcode: Opcode,
    ) -> Result<Option<Tag>, Fault> {
        match self.index.find(itt.value()) {
            Some(tag) => {
                let mine = |command: &&Command| command.sent.is_some() && command.link == index;
                let command = self.table.get(tag).filter(mine);
                let command = command.ok_or(Fault::UnknownTask(opcode))?;
                Ok(command.lost.is_none().then_some(tag))
            }
            None if self.abandoned.contains(&itt) => Ok(None),
            None => Err(Fault::UnknownTask(opcode)),
        }
    }

    /// Judges a Data-In by its header; gives the command that its data is for.
    pub(super) fn check_data_in(&mut self, index: LinkIndex, pdu: &DataIn) -> Result<Option<Tag>, Fault> {
        let Some(tag) = self.find_command(index, pdu.itt, Opcode::DATA_IN)? else { return Ok(None) };
        let Some(command) = self.table.get_mut(tag) else { return Ok(None) };
        if !matches!(command.data, CommandData::In(_)) {
            return Err(Fault::WrongTask(Opcode::DATA_IN));
        }
        let (offset, len) = (pdu.buffer_offset.get(), pdu.data_segment_len.value());
        let end = offset.checked_add(len).ok_or(Fault::DataBeyond)?;
        if end > command.len {
            return Err(Fault::DataBeyond);
        }
        if offset != command.next || pdu.data_sn.value() != command.sn {
            return Err(Fault::DataOrder);
        }
        if pdu.flags.contains(DataInFlags::STATUS) {
            let needs_sense = pdu.status == ScsiStatus::CHECK_CONDITION;
            if needs_sense || !pdu.flags.contains(DataInFlags::FINAL) {
                return Err(Fault::Status);
            }
            parse_residual(data_in_residual_flags(pdu.flags), pdu.residual.get(), command.len)?;
        }
        Ok(Some(tag))
    }

    /// A Data-In is whole; `good`: its data digest is right.
    pub(super) fn finish_data_in(&mut self, tag: Tag, pdu: &DataIn, good: bool) -> Result<(), Fault> {
        let Some(command) = self.table.get_mut(tag) else { return Ok(()) };
        command.next += pdu.data_segment_len.value();
        command.sn = command.sn.wrapping_add(1);
        command.digest_failed |= !good;
        if pdu.flags.contains(DataInFlags::STATUS) {
            let residual =
                parse_residual(data_in_residual_flags(pdu.flags), pdu.residual.get(), command.len)?;
            self.finish_scsi_command(tag, pdu.status, SenseBytes::new(), residual)?;
        }
        Ok(())
    }

    /// A stretch of a write is asked for.
    pub(super) fn handle_r2t(&mut self, index: LinkIndex, pdu: &R2t) -> Result<(), Fault> {
        let Some(tag) = self.find_command(index, pdu.itt, Opcode::R2T)? else { return Ok(()) };
        let (burst, most) = (self.params.max_burst, self.params.max_outstanding_r2t);
        let Some(command) = self.table.get_mut(tag) else { return Ok(()) };
        if !matches!(command.data, CommandData::Out { .. }) {
            return Err(Fault::WrongTask(Opcode::R2T));
        }
        let (offset, len) = (pdu.buffer_offset.get(), pdu.desired_len.get());
        let end = offset.checked_add(len).filter(|end| *end <= command.len);
        let end = end.filter(|_| len > 0 && len <= burst && !pdu.ttt.is_none()).ok_or(Fault::R2tRange)?;
        if offset != command.next || pdu.r2t_sn.value() != command.sn {
            return Err(Fault::R2tOrder);
        }
        if command.r2ts >= most {
            return Err(Fault::R2tTooMany);
        }
        command.r2ts += 1;
        command.unsent += len;
        command.sn = command.sn.wrapping_add(1);
        command.next = end;
        self.links[index].out.push_back(OutgoingPdu::Data { tag, ttt: pdu.ttt, offset, end, sn: 0 });
        Ok(())
    }

    /// Ends a SCSI command with its status. A write that is answered GOOD before all of its data has left is not
    /// ended: it may be the answer to another.
    pub(super) fn finish_scsi_command(
        &mut self,
        tag: Tag,
        status: ScsiStatus,
        sense: SenseBytes,
        residual: Residual,
    ) -> Result<(), Fault> {
        let Some(command) = self.table.get(tag) else { return Ok(()) };
        let missing = match residual {
            Residual::Underflow(count) => count,
            Residual::None | Residual::Overflow(_) => 0,
        };
        let expected = command.len - missing;
        let is_read = matches!(command.data, CommandData::In(_));
        let transferred = (command.next - command.unsent).min(expected);
        let is_short = status == ScsiStatus::GOOD && transferred < expected;
        if is_short && matches!(command.data, CommandData::Out { .. }) {
            return Err(Fault::WriteShort);
        }
        let response = if is_read && command.digest_failed {
            Response::Lost(NoAnswer::DataDigest)
        } else if is_read && is_short {
            Response::Lost(NoAnswer::Short)
        } else {
            Response::Scsi(ScsiAnswer { status, sense, residual, transferred })
        };
        self.complete_request(tag, response);
        Ok(())
    }

    /// Ends a request. Its memory must be here.
    pub(super) fn complete_request(&mut self, tag: Tag, response: Response) {
        let Some(command) = self.table.remove(tag) else { return };
        self.index.remove(command.itt.value());
        self.links[command.link].commands -= 1;
        if matches!(command.kind, RequestKind::Scsi(_)) {
            self.scsi -= 1;
            if command.sent.is_none() {
                self.waiting -= 1;
            }
        }
        let good = match &response {
            Response::Scsi(answer) => answer.transferred,
            _ended_otherwise => command.next.min(command.len),
        };
        let payload = match command.data {
            CommandData::None => Payload::None,
            CommandData::In(data) => {
                let mut data = data.unwrap_or_default();
                if good < command.len {
                    data.zero(good as usize..command.len as usize);
                }
                Payload::In(data)
            }
            CommandData::Out { data, .. } => Payload::Out(data),
        };
        self.events.push_back(HostEvent::Completed { tag, response, payload });
    }

    /// Ends a request that gets no answer; later, if its memory is out. What still comes for it is skipped.
    pub(super) fn end_unanswered(&mut self, tag: Tag, why: NoAnswer) {
        let Some(command) = self.table.get_mut(tag) else { return };
        if command.lost.is_none() && command.sent.is_some() {
            let itt = command.itt;
            self.abandon_tag(itt);
        }
        let Some(command) = self.table.get_mut(tag) else { return };
        if matches!(command.data, CommandData::In(None)) {
            command.lost.get_or_insert(why);
        } else {
            let why = command.lost.unwrap_or(why);
            self.complete_request(tag, Response::Lost(why));
        }
    }

    /// Skips what comes for this tag.
    fn abandon_tag(&mut self, itt: Itt) {
        // No more than commands may be in work.
        if self.abandoned.len() >= self.scsi_max + IMMEDIATE_REQUESTS_MAX {
            self.abandoned.pop_front();
        }
        self.abandoned.push_back(itt);
    }

    /// Whether this tag was abandoned: its answer is here, and nothing else comes for it.
    pub(super) fn remove_abandoned(&mut self, itt: Itt) -> bool {
        let before = self.abandoned.len();
        self.abandoned.retain(|abandoned| *abandoned != itt);
        self.abandoned.len() < before
    }

    /// Ends a request that the target refused. The number of a command counts as not received (RFC 7143 §7.3), unless
    /// the target says otherwise: a NOP-Out takes it, since all that are numbered behind it wait for it.
    pub(super) fn end_rejected(&mut self, index: LinkIndex, tag: Tag, reason: RejectReason) {
        let command = self.table.get(tag).filter(|command| matches!(command.kind, RequestKind::Scsi(_)));
        let missing = command.and_then(|command| command.sent).filter(|sn| self.window.exp.le(*sn));
        if let Some(cmd_sn) = missing {
            let itt = self.next_itt();
            self.abandon_tag(itt);
            self.links[index].out.push_back(OutgoingPdu::GapFiller { itt, cmd_sn });
        }
        self.end_unanswered(tag, NoAnswer::Rejected(reason));
    }

    /// Ends all requests whose memory is here: the session is over.
    pub(super) fn end_all_unanswered(&mut self) {
        let tags: Vec<Tag> = self.table.iter().map(|(tag, _)| tag).collect();
        for tag in tags {
            let sent = self.table.get(tag).is_some_and(|command| command.sent.is_some());
            self.end_unanswered(tag, if sent { NoAnswer::Unknown } else { NoAnswer::NotSent });
        }
        self.abandoned.clear();
    }

    /// The request that an answer is for, which must be of its kind; `None` if it has ended.
    pub(super) fn find_answered_request(
        &self,
        index: LinkIndex,
        bhs: &Bhs,
        is: impl Fn(&RequestKind) -> bool,
    ) -> Result<Option<Tag>, Fault> {
        let Some(tag) = self.find_command(index, bhs.itt, bhs.opcode())? else { return Ok(None) };
        let right = self.table.get(tag).is_some_and(|command| is(&command.kind));
        if right { Ok(Some(tag)) } else { Err(Fault::WrongTask(bhs.opcode())) }
    }

    /// Takes the numbers that every PDU of a target carries at the same places. StatSN counts with what
    /// has a status only; one that is behind is ignored.
    pub(super) fn handle_sequence_numbers(&mut self, index: LinkIndex, bhs: &Bhs) -> Result<(), Fault> {
        let pdu = DataIn::from_bhs(bhs);
        let counts = match bhs.opcode() {
            Opcode::DATA_IN => pdu.flags.contains(DataInFlags::STATUS),
            Opcode::R2T => false,
            Opcode::NOP_IN => !bhs.itt.is_none(),
            _answer => true,
        };
        let link = &mut self.links[index];
        if counts && link.exp_stat_sn.le(pdu.stat_sn) {
            if pdu.stat_sn.steps_since(link.exp_stat_sn) > STAT_SN_AHEAD_MAX {
                return Err(Fault::StatSn);
            }
            link.exp_stat_sn = pdu.stat_sn.next();
        }
        self.window.update_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
        if self.window.available_commands() > self.waiting {
            self.refused = None;
        }
        Ok(())
    }

    pub(super) fn memory_mut(&mut self, tag: Tag) -> Option<&mut Option<SgMut>> {
        match &mut self.table.get_mut(tag)?.data {
            CommandData::In(data) => Some(data),
            CommandData::None | CommandData::Out { .. } => None,
        }
    }
}
