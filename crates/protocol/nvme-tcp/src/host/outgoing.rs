//! PDUs that wait to be sent to the controller, and how they are sent.

use super::OutgoingPdu;
use super::command::{Command, CommandData};
use crate::pdu_writer::{DIGEST_SEGMENT_MAX, PDU_OVERHEAD_MAX, PduWriter};
use crate::send_queue;
use crate::wire::{CapsuleCmd, ConnectionParameters, H2cData, IcReq, PduType, TermReq};
use buf::Sg;
use std::ops::Range;
use stream::{SendOpBuilder, Slab};
use zerocopy::IntoBytes;

/// What PDUs of a host are made from.
pub struct PduContext<'a> {
    pub(super) commands: &'a mut Slab<Command>,
    pub(super) asked: &'a IcReq,
}

impl OutgoingPdu {
    /// The bytes that the next PDU carries.
    fn next_pdu_payload<'a>(
        &self,
        commands: &'a Slab<Command>,
        parameters: &ConnectionParameters,
    ) -> Option<(&'a Sg, Range<usize>)> {
        match self {
            OutgoingPdu::Init | OutgoingPdu::Term(_) => None,
            OutgoingPdu::Capsule(tag) => match &commands.get(*tag)?.data {
                CommandData::Out { data, in_capsule: true } if !data.is_empty() => {
                    Some((data, 0..data.len()))
                }
                CommandData::Out { .. } | CommandData::In(_) | CommandData::None => None,
            },
            OutgoingPdu::Data { tag, at, end, .. } => match &commands.get(*tag)?.data {
                CommandData::Out { data, .. } => {
                    // Memory that does not change goes in PDUs as long as the controller takes: nvmet of Linux takes the
                    // digest of a PDU for that of its command's data.
                    let copied = parameters.data_digest && !data.is_stable();
                    let digest = if copied { DIGEST_SEGMENT_MAX } else { u32::MAX };
                    let len = (end - at).min(parameters.max_h2c_data).min(digest);
                    Some((data, *at as usize..(at + len) as usize))
                }
                CommandData::In(_) | CommandData::None => None,
            },
        }
    }
}

impl send_queue::OutgoingPdu for OutgoingPdu {
    type Context<'a> = PduContext<'a>;

    fn head_estimate(&self, parameters: &ConnectionParameters, context: &PduContext<'_>) -> usize {
        self.next_head_len_max(parameters, context)
    }

    fn next_head_len_max(&self, parameters: &ConnectionParameters, context: &PduContext<'_>) -> usize {
        match self.next_pdu_payload(context.commands, parameters) {
            Some((data, range)) => {
                PDU_OVERHEAD_MAX + SendOpBuilder::head_len_for(data, range.len(), parameters.data_digest)
            }
            None => match self {
                OutgoingPdu::Init => IcReq::LEN,
                OutgoingPdu::Capsule(_) | OutgoingPdu::Data { .. } => PDU_OVERHEAD_MAX,
                OutgoingPdu::Term(term) => TermReq::LEN + term.header.len(),
            },
        }
    }

    fn data_pieces<'a>(
        &'a self,
        parameters: &ConnectionParameters,
        context: &'a PduContext<'_>,
    ) -> Option<&'a Sg> {
        self.next_pdu_payload(context.commands, parameters).map(|(data, _)| data)
    }

    /// What belongs to a command that has ended meanwhile is left out.
    fn put_next_pdu(
        &mut self,
        writer: &mut PduWriter<'_>,
        PduContext { commands, asked }: &mut PduContext<'_>,
    ) -> bool {
        let carried = self.next_pdu_payload(commands, writer.parameters);
        match self {
            OutgoingPdu::Init => writer.batch.push_bytes(asked.as_bytes()),
            OutgoingPdu::Capsule(tag) => {
                if let Some(command) = commands.get(*tag) {
                    writer.put_pdu(CapsuleCmd::new(command.sqe).as_mut_bytes(), carried);
                }
                if let Some(command) = commands.get_mut(*tag) {
                    command.sent = true;
                }
            }
            OutgoingPdu::Data { tag, ttag, at, end } => {
                let Some(command) = commands.get(*tag) else { return true };
                let Some((data, range)) = carried else { return true };
                let (to, cid) = (range.end as u32, command.sqe.cid.get());
                let last = to == *end;
                let mut header = H2cData::new(cid, *ttag, *at, range.len() as u32, last);
                writer.put_pdu(header.as_mut_bytes(), Some((data, range)));
                *at = to;
                if let (Some(command), true) = (commands.get_mut(*tag), last) {
                    command.r2ts -= 1;
                }
                return last;
            }
            OutgoingPdu::Term(term) => writer.put_term_req(PduType::H2C_TERM_REQ, term),
        }
        true
    }
}
