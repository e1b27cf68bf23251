//! SCSI Commands (RFC 7143 §11.3) and the order in which requests are delivered.

use super::TargetSession;
use super::link::SegmentPurpose;
use super::params::SessionParams;
use super::request::{Cdb, ScsiCommand};
use super::task::{AdditionalSense, TaskKind, TaskState, Transfer};
use super::window::{CmdSnOrder, HeldRequest, cmd_sn_of};
use crate::links::LinkIndex;
use crate::wire::ahs::{self, AdditionalHeaders};
use crate::wire::{self, Bhs, CommandFlags, Opcode, Pdu, RejectReason};
use buf::{Sg, Time};

/// Bytes of pings and texts that may wait for their turn: more than any initiator sends ahead of it.
pub(super) const HELD_BYTES_MAX: usize = 64 << 10;

impl TargetSession {
    /// Acts on a SCSI Command's header; says what its immediate data is for.
    pub(super) fn begin_command(
        &mut self,
        now: Time,
        index: LinkIndex,
        bhs: &Bhs,
        ahs: &[u8],
    ) -> SegmentPurpose {
        let pdu = wire::ScsiCommand::from_bhs(bhs);
        let order = self.tasks.window.request_order(bhs);
        if order == CmdSnOrder::Outside {
            return SegmentPurpose::Skip;
        }
        let parsed = self.admit_command(pdu).and_then(|()| {
            let extensions = AdditionalHeaders::parse(ahs).map_err(|error| error.reject_reason())?;
            Ok((assemble_cdb(pdu, extensions)?, extensions.bidi_read_len.unwrap_or(0)))
        });
        let (cdb, bidi_read_len) = match parsed {
            Ok(parsed) => parsed,
            Err(reason) => {
                self.tasks.links[index].queue_reject(bhs, reason);
                return SegmentPurpose::Skip;
            }
        };
        let (transfer, wrong) = Transfer::from_command_header(pdu, bidi_read_len, &self.tasks.params);
        let command = ScsiCommand {
            lun: pdu.lun.0,
            cdb,
            attr: pdu.flags.attribute(),
            priority: if self.tasks.params.protocol_level >= 2 { pdu.task_priority() } else { 0 },
            immediate_delivery: bhs.is_immediate(),
            read: transfer.read,
            write: transfer.write,
            edtl: transfer.edtl,
            bidi_read_len,
            link: index.into(),
        };
        let state = match wrong {
            None => TaskState::Held,
            Some(sense) => TaskState::Invalid(sense),
        };
        let Some(tag) = self.tasks.begin_task(index, bhs, TaskKind::Scsi(transfer), state) else {
            self.tasks.links[index].queue_reject(bhs, RejectReason::TOO_MANY_IMMEDIATE);
            return SegmentPurpose::Skip;
        };
        self.tasks.update_data_owed(now, tag);
        match order {
            CmdSnOrder::Ahead => self.tasks.window.hold_request(pdu.cmd_sn, HeldRequest::Scsi(tag, command)),
            CmdSnOrder::Next if bhs.is_immediate() => self.tasks.deliver_command(now, tag, command),
            CmdSnOrder::Next | CmdSnOrder::Outside => {
                // As `deliver_in_order` does, without a place to hold it.
                let next = self.tasks.window.advance_exp_cmd_sn();
                self.tasks.deliver_command(now, tag, command);
                self.tasks.window.open_to_limit();
                match next {
                    Some(next) => self.deliver_in_order(now, next),
                    None => self.functions.deliver_due(&mut self.tasks),
                }
            }
        }
        if bhs.data_len() == 0 {
            SegmentPurpose::Skip
        } else {
            SegmentPurpose::Write { tag, sequence: false }
        }
    }

    /// The checks that make a command refused as a PDU.
    fn admit_command(&self, pdu: &wire::ScsiCommand) -> Result<(), RejectReason> {
        if self.tasks.params.discovery {
            return Err(RejectReason::PROTOCOL_ERROR);
        }
        if pdu.itt.is_none() {
            return Err(RejectReason::INVALID_PDU_FIELD);
        }
        if self.tasks.index.find(pdu.itt.value()).is_some() {
            return Err(RejectReason::TASK_IN_PROGRESS);
        }
        let write = pdu.flags.contains(CommandFlags::WRITE);
        let read = pdu.flags.contains(CommandFlags::READ);
        let last = pdu.flags.contains(CommandFlags::FINAL);
        let (data, expected) = (pdu.data_segment_len.value(), pdu.expected_data_len.get());
        let unsound = !write && (!last || data > 0 || (!read && expected > 0));
        if unsound { Err(RejectReason::INVALID_PDU_FIELD) } else { Ok(()) }
    }

    /// A request other than a SCSI Command or Data-Out, whole with its data.
    pub(super) fn handle_request(&mut self, now: Time, index: LinkIndex, bhs: Bhs, data: Sg) {
        let link = index;
        if bhs.opcode() == Opcode::NOP_OUT {
            // Without a task tag it carries no CmdSN of its own, and wants no answer (RFC 7143 §11.18.1).
            let wants = !bhs.itt.is_none();
            let is_new = !wants || self.tasks.window.request_order(&bhs) != CmdSnOrder::Outside;
            if !is_new || !self.tasks.links[index].admit_nop(&bhs) || !wants {
                return;
            }
        }
        match self.tasks.window.request_order(&bhs) {
            CmdSnOrder::Outside => {}
            CmdSnOrder::Ahead => {
                // No memory was set aside for it, and the gap may stay for ever.
                let is_too_much =
                    !data.is_empty() && self.tasks.window.held_bytes() + data.len() > HELD_BYTES_MAX;
                let held =
                    if is_too_much { HeldRequest::Skipped } else { HeldRequest::Other { link, bhs, data } };
                self.tasks.window.hold_request(cmd_sn_of(&bhs), held);
                if is_too_much {
                    self.tasks.links[index].queue_reject(&bhs, RejectReason::LONG_OPERATION);
                }
            }
            CmdSnOrder::Next => match self.admit_request(index, &bhs) {
                Err(reason) => self.tasks.links[index].queue_reject(&bhs, reason),
                Ok(()) if bhs.is_immediate() => {
                    self.deliver_request(now, HeldRequest::Other { link, bhs, data })
                }
                Ok(()) => self.deliver_in_order(now, HeldRequest::Other { link, bhs, data }),
            },
        }
    }

    /// Delivers the request whose turn it is, and those that waited for it.
    pub(super) fn deliver_in_order(&mut self, now: Time, first: HeldRequest) {
        let mut next = Some(first);
        while let Some(held) = next {
            // The order is stepped over first: what is delivered sees itself as received.
            next = self.tasks.window.advance_exp_cmd_sn();
            self.deliver_request(now, held);
            self.tasks.window.open_to_limit();
        }
        self.functions.deliver_due(&mut self.tasks);
    }

    fn deliver_request(&mut self, now: Time, held: HeldRequest) {
        match held {
            HeldRequest::Skipped => {}
            HeldRequest::Other { link, bhs, data } => self.execute_request(now, link, &bhs, data),
            HeldRequest::Scsi(tag, command) => self.tasks.deliver_command(now, tag, command),
        }
    }
}

impl Transfer {
    /// What the header says of the data, and whether that breaks what was negotiated.
    #[inline]
    fn from_command_header(
        pdu: &wire::ScsiCommand,
        bidi_read_len: u32,
        params: &SessionParams,
    ) -> (Transfer, Option<AdditionalSense>) {
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
        let segment = if params.initial_r2t { params.segment_max } else { u32::MAX };
        let most = transfer.edtl.min(params.first_burst).min(segment);
        let wrong = if immediate > 0 && !params.immediate_data {
            Some(AdditionalSense::UNEXPECTED_UNSOLICITED_DATA)
        } else if immediate > most {
            Some(AdditionalSense::INCORRECT_AMOUNT_OF_DATA)
        } else {
            None
        };
        let more = !pdu.flags.contains(CommandFlags::FINAL) && !params.initial_r2t && immediate < most;
        transfer.unsolicited_open = more;
        transfer.unsolicited = if more { most } else { immediate };
        transfer.asked = transfer.unsolicited;
        (transfer, wrong)
    }
}

#[inline]
fn assemble_cdb(pdu: &wire::ScsiCommand, extensions: AdditionalHeaders<'_>) -> Result<Cdb, RejectReason> {
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
