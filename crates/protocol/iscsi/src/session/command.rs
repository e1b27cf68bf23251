//! SCSI Commands (RFC 7143 §11.3) and the order in which requests are delivered.

use super::link::Segment;
use super::request::{Cdb, Request, ScsiCommand};
use super::task::{Additional, Kind, State, Task, Termination, Transfer};
use super::window::{CmdSnOrder, HeldRequest};
use super::{TargetSession, receive};
use crate::links::LinkIndex;
use crate::wire::ahs::{self, Extensions};
use crate::wire::{self, Bhs, CommandFlags, Opcode, Pdu, RejectReason};
use buf::{Cx, Sg};
use stream::TargetEvent;

/// Bytes of pings and texts that may wait for their turn: more than any initiator sends ahead of it.
const HELD_MAX: usize = 64 << 10;

impl TargetSession {
    /// Acts on a SCSI Command's header; says what its immediate data is for.
    pub(super) fn begin_command(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        bhs: &Bhs,
        ahs: &[u8],
    ) -> Segment {
        let pdu = wire::ScsiCommand::from_bhs(bhs);
        let order = self.order_of(bhs);
        if order == CmdSnOrder::Outside {
            return Segment::Skip;
        }
        let parsed = self.admit_command(pdu).and_then(|()| {
            let extensions = Extensions::parse(ahs).map_err(|error| error.reject_reason())?;
            Ok((cdb_of(pdu, extensions)?, extensions.bidi_read_len.unwrap_or(0)))
        });
        let (cdb, bidi_read_len) = match parsed {
            Ok(parsed) => parsed,
            Err(reason) => {
                self.reject(index, bhs, reason);
                return Segment::Skip;
            }
        };
        let (transfer, wrong) = self.transfer_of(pdu, bidi_read_len);
        let command = ScsiCommand {
            lun: pdu.lun.0,
            cdb,
            attr: pdu.flags.attribute(),
            priority: if self.params.protocol_level >= 2 { pdu.task_priority() } else { 0 },
            immediate_delivery: bhs.is_immediate(),
            read: transfer.read,
            write: transfer.write,
            edtl: transfer.edtl,
            bidi_read_len,
            link: index.into(),
        };
        let state = match wrong {
            None => State::Held,
            Some(sense) => State::Invalid(sense),
        };
        let Some(tag) = self.start_task(index, bhs, Kind::Scsi(transfer), state) else {
            self.reject(index, bhs, RejectReason::TOO_MANY_IMMEDIATE);
            return Segment::Skip;
        };
        self.note_owed(cx, tag);
        match order {
            CmdSnOrder::Ahead => self.window.hold(pdu.cmd_sn, HeldRequest::Scsi(tag, command)),
            CmdSnOrder::Next if bhs.is_immediate() => self.deliver_command(cx, tag, command),
            CmdSnOrder::Next | CmdSnOrder::Outside => {
                // As `deliver_in_order` does, without a place to hold it.
                let next = self.window.advance();
                self.deliver_command(cx, tag, command);
                self.window.open();
                match next {
                    Some(next) => self.deliver_in_order(cx, next),
                    None => self.deliver_waiting_functions(cx),
                }
            }
        }
        if bhs.data_len() == 0 { Segment::Skip } else { Segment::Write { tag, sequence: false } }
    }

    /// When the request is to be delivered; immediate ones at once (RFC 7143 §4.2.2.1).
    pub(super) fn order_of(&self, bhs: &Bhs) -> CmdSnOrder {
        if bhs.is_immediate() { CmdSnOrder::Next } else { self.window.order(receive::cmd_sn_of(bhs)) }
    }

    /// The checks that make a command refused as a PDU.
    fn admit_command(&self, pdu: &wire::ScsiCommand) -> Result<(), RejectReason> {
        if self.params.discovery {
            return Err(RejectReason::PROTOCOL_ERROR);
        }
        if pdu.itt.is_none() {
            return Err(RejectReason::INVALID_PDU_FIELD);
        }
        if self.index.find(pdu.itt.value()).is_some() {
            return Err(RejectReason::TASK_IN_PROGRESS);
        }
        let write = pdu.flags.contains(CommandFlags::WRITE);
        let read = pdu.flags.contains(CommandFlags::READ);
        let last = pdu.flags.contains(CommandFlags::FINAL);
        let (data, expected) = (pdu.data_segment_len.value(), pdu.expected_data_len.get());
        let unsound = !write && (!last || data > 0 || (!read && expected > 0));
        if unsound { Err(RejectReason::INVALID_PDU_FIELD) } else { Ok(()) }
    }

    /// What the header says of the data, and whether that breaks what was negotiated.
    fn transfer_of(&self, pdu: &wire::ScsiCommand, bidi_read_len: u32) -> (Transfer, Option<Additional>) {
        let mut transfer = Transfer {
            read: pdu.flags.contains(CommandFlags::READ),
            write: pdu.flags.contains(CommandFlags::WRITE),
            edtl: pdu.expected_data_len.get(),
            bidi_read_len,
            ..Transfer::default()
        };
        if !transfer.write {
            return (transfer, None);
        }
        let immediate = pdu.data_segment_len.value();
        // What was set aside: a link that joined later may have been told of longer segments.
        let segment = if self.params.initial_r2t { self.params.segment_max } else { u32::MAX };
        let most = transfer.edtl.min(self.params.first_burst).min(segment);
        let wrong = if immediate > 0 && !self.params.immediate_data {
            Some(Additional::UNEXPECTED_UNSOLICITED)
        } else if immediate > most {
            Some(Additional::WRONG_AMOUNT)
        } else {
            None
        };
        let more = !pdu.flags.contains(CommandFlags::FINAL) && !self.params.initial_r2t && immediate < most;
        transfer.unsolicited_open = more;
        transfer.unsolicited = if more { most } else { immediate };
        transfer.asked = transfer.unsolicited;
        (transfer, wrong)
    }

    /// Enters a task; `None` if too many are in work.
    pub(super) fn start_task(
        &mut self,
        index: LinkIndex,
        bhs: &Bhs,
        kind: Kind,
        state: State,
    ) -> Option<stream::Tag> {
        let immediate = bhs.is_immediate();
        let bursts = immediate && kind.has_unsolicited();
        if immediate && self.immediates >= u32::from(self.limits.immediate) || bursts && self.immediate_burst
        {
            return None;
        }
        let task = Task {
            itt: bhs.itt,
            lun: bhs.lun,
            cmd_sn: receive::cmd_sn_of(bhs),
            link: index,
            immediate,
            kind,
            state,
            read_reserved: 0,
            write_reserved: 0,
            owing: false,
            counted: false,
        };
        let tag = self.tasks.insert(task).ok()?;
        self.index.insert(bhs.itt.value(), tag);
        self.links[index].tasks += 1;
        self.immediate_burst |= bursts;
        if !self.abandoned.is_empty() {
            // The tag lives again: what comes for it now is meant for this task.
            self.abandoned.take(bhs.itt, index);
        }
        self.immediates += u32::from(immediate);
        Some(tag)
    }

    /// A request other than a SCSI Command or Data-Out, whole with its data.
    pub(super) fn request(&mut self, cx: &mut Cx<'_>, index: LinkIndex, bhs: Bhs, data: Sg) {
        let link = index;
        if bhs.opcode() == Opcode::NOP_OUT {
            // Without a task tag it carries no CmdSN of its own, and wants no answer (RFC 7143 §11.18.1).
            let wants = !bhs.itt.is_none();
            let is_new = !wants || self.order_of(&bhs) != CmdSnOrder::Outside;
            if !is_new || !self.admit_nop(index, &bhs) || !wants {
                return;
            }
        }
        match self.order_of(&bhs) {
            CmdSnOrder::Outside => {}
            CmdSnOrder::Ahead => {
                // No memory was set aside for it, and the gap may stay for ever.
                let is_too_much = !data.is_empty() && self.window.held_bytes() + data.len() > HELD_MAX;
                let held =
                    if is_too_much { HeldRequest::Skipped } else { HeldRequest::Other { link, bhs, data } };
                self.window.hold(receive::cmd_sn_of(&bhs), held);
                if is_too_much {
                    self.reject(index, &bhs, RejectReason::LONG_OPERATION);
                }
            }
            CmdSnOrder::Next => match self.admit_request(index, &bhs) {
                Err(reason) => self.reject(index, &bhs, reason),
                Ok(()) if bhs.is_immediate() => self.deliver(cx, HeldRequest::Other { link, bhs, data }),
                Ok(()) => self.deliver_in_order(cx, HeldRequest::Other { link, bhs, data }),
            },
        }
    }

    /// Delivers the request whose turn it is, and those that waited for it.
    pub(super) fn deliver_in_order(&mut self, cx: &mut Cx<'_>, first: HeldRequest) {
        let mut next = Some(first);
        while let Some(held) = next {
            // The order is stepped over first: what is delivered sees itself as received.
            next = self.window.advance();
            self.deliver(cx, held);
            self.window.open();
        }
        self.deliver_waiting_functions(cx);
    }

    fn deliver(&mut self, cx: &mut Cx<'_>, held: HeldRequest) {
        match held {
            HeldRequest::Skipped => {}
            HeldRequest::Other { link, bhs, data } => self.perform(cx, link, &bhs, data),
            HeldRequest::Scsi(tag, command) => self.deliver_command(cx, tag, command),
        }
    }

    fn deliver_command(&mut self, cx: &mut Cx<'_>, tag: stream::Tag, command: ScsiCommand) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        if !task.immediate && !task.counted {
            task.counted = true;
            self.window.begin();
            self.note_demand(cx.now);
        }
        let Some(task) = self.tasks.get_mut(tag) else { return };
        match &mut task.state {
            State::Held => {
                task.state = State::Live;
                let data_out = if command.write { command.edtl } else { 0 };
                let command = Request::Scsi(command);
                self.events.push_back(TargetEvent::Command { tag, command, data_out });
            }
            State::Invalid(sense) => {
                task.state = State::Terminating { how: Termination::Sense(*sense), acked: true };
                self.finish(cx, tag);
            }
            State::Live | State::Terminating { .. } | State::Answered(_) => {}
        }
    }

    /// Counts a task of the command window as in work.
    pub(super) fn count_in(&mut self, tag: stream::Tag) {
        if let Some(task) = self.tasks.get_mut(tag).filter(|task| !task.immediate && !task.counted) {
            task.counted = true;
            self.window.begin();
        }
    }
}

fn cdb_of(pdu: &wire::ScsiCommand, extensions: Extensions<'_>) -> Result<Cdb, RejectReason> {
    /// Variable-length CDBs carry their own length (SPC-4 §4.2.3).
    const VARIABLE_LENGTH: u8 = 0x7f;
    if extensions.cdb_tail.is_none() && pdu.cdb[0] != VARIABLE_LENGTH {
        return Ok(Cdb::Short(pdu.cdb));
    }
    let whole = ahs::Cdb::assemble(&pdu.cdb, extensions.cdb_tail).map_err(|error| error.reject_reason())?;
    Ok(match extensions.cdb_tail {
        None => Cdb::Short(pdu.cdb),
        Some(_) => Cdb::Long(whole.as_slice().into()),
    })
}
