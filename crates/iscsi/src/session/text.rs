//! Text exchanges in full feature phase (RFC 7143 §11.10, §11.11): SendTargets, and the few keys that
//! may be declared after login.
//!
//! One exchange per link. A long text comes and goes in pieces; the tag of each piece that is to be
//! answered is new, so that a stale one names nothing.

use super::TargetSession;
use super::data_out::after;
use super::outgoing::Out;
use super::request::{Request, SendTargets};
use super::task::{Kind, State};
use crate::keys::{Phase, Side};
use crate::name::IscsiName;
use crate::negotiate::{Connection, Limits, Negotiation, SessionType};
use crate::text::{self, Reassembly, TextBuf};
use crate::wire::{Bhs, Itt, Pdu, RejectReason, TextFlags, TextRequest, Ttt};
use buf::Sg;
use stream::TargetEvent;

/// Longest piece of an answer, whatever the initiator takes.
const PIECE_MAX: usize = 32 << 10;

/// A text exchange.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) itt: Itt,
    request: Reassembly,
    answer: Vec<u8>,
    /// How much of the answer was sent.
    sent: usize,
    /// Of our last response, if it is to be answered.
    ttt: Option<u32>,
    /// The initiator has said all.
    last: bool,
    /// The server makes the list of targets.
    asked: bool,
}

impl TargetSession {
    /// The checks that make a Text Request refused as a PDU.
    pub(super) fn admit_text(&self, at: usize, bhs: &Bhs) -> Result<(), RejectReason> {
        let pdu = TextRequest::from_bhs(bhs);
        if pdu.flags.contains(TextFlags::FINAL) && pdu.flags.contains(TextFlags::CONTINUE)
            || bhs.data_len() > text::TEXT_LEN_MAX
        {
            return Err(RejectReason::PROTOCOL_ERROR);
        }
        match &self.links[at].text {
            // One at a time (RFC 7143 §11.10).
            Some(exchange) if exchange.asked || (pdu.ttt.is_none() && exchange.itt != pdu.itt) => {
                Err(RejectReason::PROTOCOL_ERROR)
            }
            Some(exchange) if pdu.ttt.is_none() || exchange.itt == pdu.itt => {
                let known = pdu.ttt.is_none() || exchange.ttt == Some(pdu.ttt.value());
                if known { Ok(()) } else { Err(RejectReason::INVALID_PDU_FIELD) }
            }
            None if pdu.ttt.is_none() => Ok(()),
            Some(_) | None => Err(RejectReason::INVALID_PDU_FIELD),
        }
    }

    /// A Text Request that was admitted.
    pub(super) fn text(&mut self, at: usize, bhs: &Bhs, data: &Sg) {
        let pdu = TextRequest::from_bhs(bhs);
        let before = self.links[at].text.take().filter(|_| !pdu.ttt.is_none());
        let mut exchange = before.unwrap_or_else(|| Box::new(Exchange::new(pdu.itt)));
        exchange.last = pdu.flags.contains(TextFlags::FINAL);
        let mut piece = vec![0; data.len()];
        data.copy_to(0, &mut piece);
        if exchange.request.add(&piece).is_err() {
            return self.reject(at, bhs, RejectReason::PROTOCOL_ERROR);
        }
        let continues = pdu.flags.contains(TextFlags::CONTINUE);
        let rest_of_answer = exchange.sent < exchange.answer.len() && exchange.request.is_empty();
        if continues || rest_of_answer {
            self.links[at].text = Some(exchange);
            return self.say(at, continues);
        }
        let request = exchange.request.take();
        (exchange.answer, exchange.sent) = (Vec::new(), 0);
        match self.answer_text(at, &request) {
            Err(()) => self.reject(at, bhs, RejectReason::PROTOCOL_ERROR),
            Ok((answer, wanted)) => {
                exchange.answer = answer;
                exchange.asked = wanted.is_some();
                self.links[at].text = Some(exchange);
                match wanted {
                    None => self.say(at, false),
                    Some(wanted) => self.ask_targets(at, bhs, wanted),
                }
            }
        }
    }

    /// Our answers to the keys of a whole text, and the list of targets that is wanted.
    fn answer_text(&mut self, at: usize, request: &[u8]) -> Result<(Vec<u8>, Option<SendTargets>), ()> {
        let pairs = text::parse(request).map_err(drop)?;
        let kind = if self.params.discovery { SessionType::Discovery } else { SessionType::Normal };
        let limits = Limits { mrdsl: self.links[at].params.target_mrdsl, ..Limits::default() };
        let mut negotiation = Negotiation::new(Side::Target, Connection::Leading, kind, limits);
        let mut answers = TextBuf::new();
        negotiation.handle(&pairs, Phase::FullFeature, &mut answers).map_err(drop)?;
        let mut wanted = None;
        for pair in &pairs {
            match pair.key {
                "SendTargets" => wanted = Some(self.wanted(pair.value).ok_or(())?),
                "MaxRecvDataSegmentLength" => {
                    self.links[at].params.initiator_mrdsl = negotiation.params().initiator_mrdsl;
                }
                _other => {}
            }
        }
        Ok((answers.as_bytes().to_vec(), wanted))
    }

    fn wanted(&self, value: &str) -> Option<SendTargets> {
        match value {
            "All" => self.params.discovery.then_some(SendTargets::All),
            "" => (!self.params.discovery).then_some(SendTargets::Own),
            name => IscsiName::parse(name).ok().map(|name| SendTargets::Named(name.as_str().into())),
        }
    }

    fn ask_targets(&mut self, at: usize, bhs: &Bhs, wanted: SendTargets) {
        let Some(tag) = self.start_task(at, bhs, Kind::Text, State::Live) else {
            self.links[at].text = None;
            return self.reject(at, bhs, RejectReason::TOO_MANY_IMMEDIATE);
        };
        self.count_in(tag);
        let command = Request::SendTargets(wanted);
        self.events.push_back(TargetEvent::Command { tag, command, data_out: 0 });
    }

    /// The server's list is here.
    pub(super) fn answer_targets(&mut self, at: usize, records: &[u8]) {
        let Some(exchange) = &mut self.links[at].text else { return };
        exchange.asked = false;
        exchange.answer.extend_from_slice(records);
        self.say(at, false);
    }

    /// Sends the next piece of the answer; an empty one where the initiator is to go on.
    fn say(&mut self, at: usize, listening: bool) {
        let ttt = self.next_ttt;
        let link = &mut self.links[at];
        let Some(mut exchange) = link.text.take() else { return };
        let left = &exchange.answer[exchange.sent..];
        let piece =
            if listening { 0 } else { left.len().min(PIECE_MAX.min(link.params.initiator_mrdsl as usize)) };
        let more = !listening && piece < left.len();
        let data = left[..piece].into();
        exchange.sent += piece;
        let ends = exchange.last && !more && !listening;
        let flags = match (more, ends) {
            (true, _) => TextFlags::CONTINUE,
            (false, true) => TextFlags::FINAL,
            (false, false) => TextFlags(0),
        };
        let itt = exchange.itt;
        let tag = if ends {
            Ttt::NONE
        } else {
            self.next_ttt = after(ttt);
            exchange.ttt = Some(ttt);
            link.text = Some(exchange);
            Ttt::new(ttt)
        };
        let lun = crate::wire::Lun::default();
        self.links[at].out.push_back(Out::Text { itt, ttt: tag, flags, lun, data });
    }
}

impl Exchange {
    fn new(itt: Itt) -> Self {
        Exchange {
            itt,
            request: Reassembly::default(),
            answer: Vec::new(),
            sent: 0,
            ttt: None,
            last: false,
            asked: false,
        }
    }
}
