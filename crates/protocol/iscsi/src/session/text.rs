//! Text exchanges of the session's links: [`exchange`](crate::exchange) knows their rules, here they get
//! their place in the order of commands, and the list of targets from above.

use super::TargetSession;
use super::data_out::after;
use super::outgoing::OutgoingPdu;
use super::request::Request;
use super::task::{Kind, State};
use crate::discovery::SendTargets;
use crate::exchange::{TextAnswer, TextExchange, TextStep};
use crate::links::LinkIndex;
use crate::negotiate::{Limits, Params, SessionType};
use crate::text;
use crate::wire::{Bhs, Pdu, RejectReason, TextRequest, Ttt};
use buf::Sg;
use stream::TargetEvent;

impl TargetSession {
    /// What makes a Text Request refused before its data is kept.
    pub(super) fn admit_text(&self, index: LinkIndex, bhs: &Bhs) -> Result<(), RejectReason> {
        if bhs.data_len() > text::TEXT_LEN_MAX {
            return Err(RejectReason::PROTOCOL_ERROR);
        }
        TextExchange::admit(self.links[index].text.as_deref(), TextRequest::from_bhs(bhs))
    }

    /// A Text Request that was admitted.
    pub(super) fn text(&mut self, index: LinkIndex, bhs: &Bhs, data: &Sg) {
        let mut piece = vec![0; data.len()];
        data.copy_to(0, &mut piece);
        let params = self.text_params(index);
        let fresh = self.fresh_ttt();
        let mut exchange = self.links[index].text.take().unwrap_or_else(|| {
            Box::new(TextExchange::new(Limits { mrdsl: params.target_mrdsl, ..Limits::default() }))
        });
        let step = exchange.handle(TextRequest::from_bhs(bhs), &piece, &params, fresh);
        if exchange.open().is_some() {
            self.links[index].text = Some(exchange);
        }
        match step {
            Err(reason) => self.reject(index, bhs, reason),
            Ok(TextStep::Send(answer)) => self.send_text(index, *answer),
            Ok(TextStep::AskTargets(which)) => self.ask_targets(index, bhs, which),
        }
    }

    /// What a text of the full feature phase may depend on; the other values are those of the login.
    fn text_params(&self, index: LinkIndex) -> Params {
        let kind = if self.params.discovery { SessionType::Discovery } else { SessionType::Normal };
        let framing = self.links[index].framing;
        Params {
            initiator_mrdsl: framing.peer_mrdsl,
            target_mrdsl: framing.own_mrdsl,
            ..Params::defaults(kind)
        }
    }

    fn fresh_ttt(&mut self) -> Ttt {
        let ttt = self.next_ttt;
        self.next_ttt = after(ttt);
        Ttt::new(ttt)
    }

    fn ask_targets(&mut self, index: LinkIndex, bhs: &Bhs, which: SendTargets) {
        let Some(tag) = self.start_task(index, bhs, Kind::Text, State::Live) else {
            self.links[index].text = None;
            return self.reject(index, bhs, RejectReason::TOO_MANY_IMMEDIATE);
        };
        self.count_in(tag);
        let command = Request::SendTargets(which);
        self.events.push_back(TargetEvent::Command { tag, command, data_out: 0 });
    }

    /// The server's list is here.
    pub(super) fn answer_targets(&mut self, index: LinkIndex, records: Box<[u8]>) {
        let (params, fresh) = (self.text_params(index), self.fresh_ttt());
        let link = &mut self.links[index];
        let Some(exchange) = link.text.as_mut() else { return };
        let Some(answer) = exchange.answer_targets(records, &params, fresh) else { return };
        if exchange.open().is_none() {
            link.text = None;
        }
        self.send_text(index, *answer);
    }

    fn send_text(&mut self, index: LinkIndex, answer: TextAnswer) {
        let link = &mut self.links[index];
        let TextAnswer { response, text, initiator_mrdsl } = answer;
        let (itt, ttt, flags, lun) = (response.itt, response.ttt, response.flags, response.lun);
        link.tx.push(OutgoingPdu::Text { itt, ttt, flags, lun, data: text.into() });
        if let Some(mrdsl) = initiator_mrdsl {
            link.framing.peer_mrdsl = mrdsl;
        }
    }
}
