//! One command: from its submission to its completion.

use super::{HostQueue, OutgoingPdu};
use crate::queue::QueuePhase;
use crate::wire::{ADMIN_CAPSULE_MAX, C2hData, FatalError, FatalStatus, Flags, PduFrame, R2t};
use buf::{Payload, Sg, SgMut};
use nvme::{Completion, Cqe, Opcode, SglDescriptor, Sqe, Status};
use stream::{HostEvent, Tag};
use zerocopy::little_endian::{U16, U32, U64};

/// Where CCCID stands in every PDU that has one.
const AT_CCCID: u32 = 8;
/// Where the CID stands in a CapsuleResp.
const AT_CID: u32 = 20;

#[derive(Debug)]
pub(super) struct Command {
    pub(super) sqe: Sqe,
    pub(super) data: CommandData,
    /// Bytes of its data.
    pub(super) len: u32,
    /// Offset of the next PDU's data, or of the next byte that must be asked for.
    pub(super) next: u32,
    /// Stretches that were asked for and are not in batches yet.
    pub(super) r2ts: u32,
    /// The capsule is in a batch.
    pub(super) sent: bool,
    /// The last C2HData came.
    pub(super) last: bool,
    /// A data digest was wrong.
    pub(super) digest_failed: bool,
    /// How much data moves is the controller's choice: its memory is cut to what came, or was asked for.
    pub(super) accepts_short_data: bool,
}

/// A command's memory.
#[derive(Debug)]
pub(super) enum CommandData {
    None,
    /// To be filled; `None` while it is out with a receive.
    In(Option<SgMut>),
    Out {
        data: Sg,
        /// It goes with the command.
        in_capsule: bool,
    },
}

impl HostQueue {
    /// Starts a command; gives it back if it may not be in work now. CID, PSDT and the data pointer
    /// are set here.
    pub(super) fn start_command(
        &mut self,
        mut sqe: Sqe,
        payload: Payload,
        accepts_short_data: bool,
    ) -> Result<Tag, (Sqe, Payload)> {
        let Ok(len) = u32::try_from(payload.len()) else { return Err((sqe, payload)) };
        if !matches!(self.phase, QueuePhase::Connect | QueuePhase::Open)
            || self.role.commands.len() >= self.role.window
        {
            return Err((sqe, payload));
        }
        while self.role.next_cid == u16::MAX || self.role.index.find(self.role.next_cid.into()).is_some() {
            self.role.next_cid = self.role.next_cid.wrapping_add(1);
        }
        let cid = self.role.next_cid;
        self.role.next_cid = cid.wrapping_add(1);
        let fabrics = sqe.opcode == Opcode::FABRICS;
        let most = if fabrics { ADMIN_CAPSULE_MAX } else { self.size.in_capsule_max };
        let data = match payload {
            Payload::None => CommandData::None,
            Payload::In(data) => CommandData::In(Some(data)),
            Payload::Out(data) => CommandData::Out { data, in_capsule: len <= most },
        };
        let in_capsule = matches!(data, CommandData::Out { in_capsule: true, .. }) && len > 0;
        sqe.cid = U16::new(cid);
        sqe.flags = sqe.flags & 0x3f | 0x40;
        sqe.dptr = SglDescriptor {
            address: U64::ZERO,
            length: U32::new(len),
            reserved: [0; 3],
            identifier: if in_capsule { SglDescriptor::IN_CAPSULE } else { SglDescriptor::TRANSPORT },
        };
        let command = Command {
            sqe,
            data,
            len,
            next: 0,
            r2ts: 0,
            sent: false,
            last: false,
            digest_failed: false,
            accepts_short_data,
        };
        #[expect(clippy::unreachable, reason = "the window was looked at, and is smaller than the table")]
        let Ok(tag) = self.role.commands.insert(command) else {
            unreachable!("the window is smaller than the table")
        };
        self.role.index.insert(cid.into(), tag);
        self.out.push(OutgoingPdu::Capsule(tag));
        Ok(tag)
    }

    /// Judges a C2HData by its header; gives the command that its data is for.
    pub(super) fn check_c2h_data(&mut self, pdu: &C2hData, frame: PduFrame) -> Result<Tag, FatalError> {
        let out_of_range = FatalError::without_fei(FatalStatus::OUT_OF_RANGE);
        let tag = self.role.index.find(pdu.cccid.get().into()).ok_or(FatalError::sequence_error(AT_CCCID))?;
        let command = self.role.commands.get_mut(tag).ok_or(FatalError::sequence_error(AT_CCCID))?;
        if !command.sent || command.last || !matches!(command.data, CommandData::In(_)) {
            return Err(FatalError::sequence_error(AT_CCCID));
        }
        let (at, len) = (pdu.datao.get(), pdu.datal.get());
        at.checked_add(len).filter(|end| *end <= command.len).ok_or(out_of_range)?;
        if len == 0 || len != frame.data || at != command.next {
            return Err(out_of_range);
        }
        let (last, success) = (frame.flags.contains(Flags::LAST), frame.flags.contains(Flags::SUCCESS));
        if success && (!last || self.size.flow_control) {
            return Err(FatalError::invalid_field(1));
        }
        command.last = last;
        Ok(tag)
    }

    /// A C2HData is whole, up to `end` of the command's data; `good`: its data digest is right.
    pub(super) fn finish_c2h_data(&mut self, tag: Tag, flags: Flags, end: u32, good: bool) {
        let Some(command) = self.role.commands.get_mut(tag) else { return };
        command.next = end;
        command.digest_failed |= !good;
        if flags.contains(Flags::SUCCESS) {
            let cqe = Cqe::new(Completion::SUCCESS, command.sqe.cid.get(), 0);
            self.complete_command(tag, cqe);
        }
    }

    /// A stretch of a write is asked for.
    pub(super) fn handle_r2t(&mut self, pdu: &R2t) -> Result<(), FatalError> {
        let out_of_range = FatalError::without_fei(FatalStatus::OUT_OF_RANGE);
        let tag = self.role.index.find(pdu.cccid.get().into()).ok_or(FatalError::sequence_error(AT_CCCID))?;
        let most = self.parameters.r2ts;
        let command = self.role.commands.get_mut(tag).ok_or(FatalError::sequence_error(AT_CCCID))?;
        if !command.sent || !matches!(command.data, CommandData::Out { in_capsule: false, .. }) {
            return Err(FatalError::sequence_error(AT_CCCID));
        }
        let (at, len) = (pdu.r2to.get(), pdu.r2tl.get());
        let end = at.checked_add(len).filter(|end| *end <= command.len).ok_or(out_of_range)?;
        if len == 0 || at != command.next {
            return Err(out_of_range);
        }
        if command.r2ts >= most {
            return Err(FatalError::without_fei(FatalStatus::LIMIT_EXCEEDED));
        }
        command.r2ts += 1;
        command.next = end;
        self.out.push(OutgoingPdu::Data { tag, ttag: pdu.ttag.get(), at, end });
        Ok(())
    }

    /// A completion came. Success of a write before all of its data has left ends the connection, and leaves the
    /// write in doubt: it may be the answer to another. Of a write whose length is the controller's choice only what
    /// was asked for must have left.
    pub(super) fn handle_completion(&mut self, cqe: Cqe) -> Result<(), FatalError> {
        let unknown = FatalError::sequence_error(AT_CID);
        let tag = self.role.index.find(cqe.cid.get().into()).ok_or(unknown)?;
        let command = self.role.commands.get(tag).filter(|command| command.sent).ok_or(unknown)?;
        let success = cqe.completion().status.is_success();
        if success && matches!(command.data, CommandData::In(_)) && command.next > 0 && !command.last {
            return Err(FatalError::sequence_error(0));
        }
        let is_asked_for = matches!(command.data, CommandData::Out { in_capsule: false, .. });
        let owes_requests = command.next < command.len && !command.accepts_short_data;
        if success && is_asked_for && (owes_requests || command.r2ts > 0) {
            return Err(FatalError::sequence_error(AT_CID));
        }
        self.complete_command(tag, cqe);
        Ok(())
    }

    /// Ends a command.
    fn complete_command(&mut self, tag: Tag, mut cqe: Cqe) {
        let Some(command) = self.role.commands.remove(tag) else { return };
        let cid = command.sqe.cid.get();
        self.role.index.remove(cid.into());
        let short = command.next < command.len;
        let payload = match command.data {
            CommandData::None => Payload::None,
            CommandData::In(data) => {
                let mut data = data.unwrap_or_default();
                if short && command.accepts_short_data {
                    data.truncate(command.next as usize);
                } else if short && !data.is_empty() {
                    data.zero(command.next as usize..command.len as usize);
                }
                let failure = if command.digest_failed {
                    Some(Status::TRANSIENT_TRANSPORT_ERROR)
                } else {
                    // Authentication Receive names the room that there is (AL), not what must come.
                    let exact = command.sqe.opcode != Opcode::FABRICS && !command.accepts_short_data;
                    (short && exact).then_some(Status::DATA_TRANSFER_ERROR)
                };
                if let (Some(status), true) = (failure, cqe.completion().status.is_success()) {
                    cqe = Cqe::new(status.into(), cid, cqe.sqhd.get());
                }
                Payload::In(data)
            }
            CommandData::Out { data, in_capsule: false } if short && command.accepts_short_data => {
                Payload::Out(data.slice(0..command.next as usize))
            }
            CommandData::Out { data, .. } => Payload::Out(data),
        };
        self.events.push_back(HostEvent::Completed { tag, response: cqe, payload });
    }

    /// Ends all commands whose memory is here: the connection is gone.
    pub(super) fn complete_all_commands(&mut self) {
        let here = |(_, command): &(Tag, &Command)| !matches!(command.data, CommandData::In(None));
        let ended: Vec<(Tag, u16)> = self
            .role
            .commands
            .iter()
            .filter(here)
            .map(|(tag, command)| (tag, command.sqe.cid.get()))
            .collect();
        for (tag, cid) in ended {
            self.complete_command(tag, Cqe::new(Status::HOST_PATH_ERROR.into(), cid, 0));
        }
    }
}
