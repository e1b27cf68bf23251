//! Text exchanges of the session's links: [`text_exchange`](crate::exchange) has their rules. This module places
//! them in the order of commands, and gets the list of targets from above.

use super::TargetSession;
use super::link::LinkState;
use super::outgoing::OutgoingPdu;
use super::request::Request;
use super::task::{TaskKind, TaskState};
use crate::discovery::SendTargets;
use crate::links::LinkIndex;
use crate::negotiate::{NegotiationLimits, Params, SessionType};
use crate::text;
use crate::text_exchange::{TextAnswer, TextExchange, TextStep};
use crate::wire::{Bhs, Pdu, RejectReason, TextRequest, Ttt};
use buf::Sg;
use stream::TargetEvent;

impl TargetSession {
    /// A Text Request that was admitted.
    pub(super) fn handle_text_request(&mut self, index: LinkIndex, bhs: &Bhs, data: &Sg) {
        let mut piece = vec![0; data.len()];
        data.copy_to(0, &mut piece);
        let (fresh, discovery) = (self.tasks.ttts.next_tag(), self.tasks.params.discovery);
        let link = &mut self.tasks.links[index];
        let params = link.text_params(discovery);
        let mut exchange = link.text.take().unwrap_or_else(|| {
            Box::new(TextExchange::new(NegotiationLimits {
                mrdsl: params.target_mrdsl,
                ..NegotiationLimits::default()
            }))
        });
        let step = exchange.handle_request(TextRequest::from_bhs(bhs), &piece, &params, fresh);
        if exchange.open_task().is_some() {
            link.text = Some(exchange);
        }
        match step {
            Err(reason) => link.queue_reject(bhs, reason),
            Ok(TextStep::Send(answer)) => link.queue_text_response(*answer),
            Ok(TextStep::AskTargets(which)) => self.request_target_list(index, bhs, which),
        }
    }

    fn request_target_list(&mut self, index: LinkIndex, bhs: &Bhs, which: SendTargets) {
        let Some(tag) = self.tasks.begin_task(index, bhs, TaskKind::Text, TaskState::Live) else {
            let link = &mut self.tasks.links[index];
            link.text = None;
            return link.queue_reject(bhs, RejectReason::TOO_MANY_IMMEDIATE);
        };
        self.tasks.count_in_window(tag);
        let command = Request::SendTargets(which);
        self.tasks.events.push_back(TargetEvent::Command { tag, command, data_out: 0 });
    }
}

impl LinkState {
    /// What makes a Text Request refused before its data is kept.
    pub(super) fn admit_text(&self, bhs: &Bhs) -> Result<(), RejectReason> {
        if bhs.data_len() > text::TEXT_LEN_MAX {
            return Err(RejectReason::PROTOCOL_ERROR);
        }
        TextExchange::admit_request(self.text.as_deref(), TextRequest::from_bhs(bhs))
    }

    /// What a text of the full feature phase may depend on; the other values are those of the login.
    fn text_params(&self, discovery: bool) -> Params {
        let kind = if discovery { SessionType::Discovery } else { SessionType::Normal };
        Params {
            initiator_mrdsl: self.framing.peer_mrdsl,
            target_mrdsl: self.framing.own_mrdsl,
            ..Params::defaults(kind)
        }
    }

    /// The server's list of targets is here.
    pub(super) fn answer_send_targets(&mut self, records: Box<[u8]>, discovery: bool, fresh: Ttt) {
        let params = self.text_params(discovery);
        let Some(exchange) = self.text.as_mut() else { return };
        let Some(answer) = exchange.answer_send_targets(records, &params, fresh) else { return };
        if exchange.open_task().is_none() {
            self.text = None;
        }
        self.queue_text_response(*answer);
    }

    fn queue_text_response(&mut self, answer: TextAnswer) {
        let TextAnswer { response, text, initiator_mrdsl } = answer;
        let (itt, ttt, flags, lun) = (response.itt, response.ttt, response.flags, response.lun);
        self.tx.push(OutgoingPdu::Text { itt, ttt, flags, lun, data: text.into() });
        if let Some(mrdsl) = initiator_mrdsl {
            self.framing.peer_mrdsl = mrdsl;
        }
    }
}
