//! Text Requests of the full feature phase, target side (RFC 7143 §11.10, §11.11, §6.2).
//!
//! One exchange is open per connection. The session passes in requests with a fresh transfer tag for each,
//! fills in the counters of the result, and sends it. A long answer is sent in pieces, each requested by the
//! initiator with the Target Transfer Tag of the last, so that a stale tag matches nothing. A negotiation
//! takes effect with the final response, or not at all.

use crate::chap::find_value;
use crate::discovery::SendTargets;
use crate::keys::{Role, TextPhase};
use crate::negotiate::{Negotiation, NegotiationLimits, Params};
use crate::text::{self, TextBuf, TextReassembly};
use crate::wire::{Itt, Pdu, RejectReason, TextFlags, TextRequest, TextResponse, Ttt};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Longest piece of an answer in bytes, however much the initiator would take. libiscsi 1.19 knows no answers
/// in pieces but takes 256 KiB at once, so that it sees some 2,000 targets.
pub const PIECE_LEN_MAX: usize = 256 * 1024;

/// The text exchanges of one connection.
#[derive(Debug)]
pub struct TextExchange {
    limits: NegotiationLimits,
    state: ExchangeState,
}

/// What is awaited.
#[derive(Debug)]
enum ExchangeState {
    /// A first request.
    Idle,
    /// The rest of the initiator's text, or its final request.
    AwaitText { open: OpenExchange, ttt: Ttt },
    /// The list of targets, from above.
    AwaitTargets { open: OpenExchange, out: TextBuf, closing: bool },
    /// An empty request that fetches the next piece.
    AwaitFetch { open: OpenExchange, ttt: Ttt, text: Arc<[u8]>, offset: usize },
}

/// An exchange that began.
#[derive(Debug)]
struct OpenExchange {
    itt: Itt,
    incoming: TextReassembly,
    keys: Negotiation,
}

/// What follows from a request.
#[derive(Debug)]
pub enum TextStep {
    /// Send the response.
    Send(Box<TextAnswer>),
    /// Ask which targets there are, then call [`TextExchange::answer_send_targets`].
    AskTargets(SendTargets),
}

/// A Text Response; the session fills StatSN, ExpCmdSN and MaxCmdSN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextAnswer {
    /// The header, with DataSegmentLength.
    pub response: TextResponse,
    /// The data segment, without padding.
    pub text: Vec<u8>,
    /// The initiator's new MaxRecvDataSegmentLength, in force after this response.
    pub initiator_mrdsl: Option<u32>,
}

impl TextExchange {
    /// Nothing is open.
    #[must_use]
    pub fn new(limits: NegotiationLimits) -> Self {
        Self { limits, state: ExchangeState::Idle }
    }

    /// The task of the exchange that is open; without one there is nothing to remember.
    #[must_use]
    pub fn open_task(&self) -> Option<Itt> {
        match &self.state {
            ExchangeState::Idle => None,
            ExchangeState::AwaitText { open, .. }
            | ExchangeState::AwaitTargets { open, .. }
            | ExchangeState::AwaitFetch { open, .. } => Some(open.itt),
        }
    }

    /// Judges a request by its header, before its place in the order of commands is used up: what is refused
    /// here changes nothing (RFC 7143 §11.17 wants the gap in CmdSN). `exchange` is what is remembered, if
    /// anything is.
    pub fn admit_request(exchange: Option<&Self>, request: &TextRequest) -> Result<(), RejectReason> {
        let state = exchange.map_or(&ExchangeState::Idle, |exchange| &exchange.state);
        let begins = request.ttt.is_none();
        match state {
            // One request at a time, whatever its tags (RFC 7143 §11.10): the open one is still answered.
            ExchangeState::AwaitTargets { .. } => return Err(RejectReason::PROTOCOL_ERROR),
            _ if request.flags.contains(TextFlags::FINAL.with(TextFlags::CONTINUE)) => {
                return Err(RejectReason::PROTOCOL_ERROR);
            }
            _ if request.itt.is_none() => {}
            // Without a transfer tag an exchange begins, and one that was left half-way is forgotten.
            ExchangeState::Idle | ExchangeState::AwaitText { .. } | ExchangeState::AwaitFetch { .. }
                if begins =>
            {
                return Ok(());
            }
            ExchangeState::AwaitText { open, ttt } | ExchangeState::AwaitFetch { open, ttt, .. }
                if open.itt == request.itt && *ttt == request.ttt =>
            {
                return Ok(());
            }
            ExchangeState::Idle | ExchangeState::AwaitText { .. } | ExchangeState::AwaitFetch { .. } => {}
        }
        Err(RejectReason::INVALID_PDU_FIELD)
    }

    /// Takes a whole Text Request; `params` are the connection's values in force, `fresh` is a tag that the
    /// answer may carry. A text that is refused closes the exchange, nothing has changed, and the request is
    /// rejected.
    pub fn handle_request(
        &mut self,
        request: &TextRequest,
        data: &[u8],
        params: &Params,
        fresh: Ttt,
    ) -> Result<TextStep, RejectReason> {
        Self::admit_request(Some(self), request)?;
        let terms = &RequestContext { params, fresh };
        let closing = request.flags.contains(TextFlags::FINAL);
        let more = request.flags.contains(TextFlags::CONTINUE);
        let mut open = match core::mem::replace(&mut self.state, ExchangeState::Idle) {
            _ if request.ttt.is_none() => OpenExchange::new(request.itt, params, &self.limits),
            ExchangeState::AwaitFetch { open, text, offset, .. } => {
                if !data.is_empty() || more {
                    return Err(RejectReason::PROTOCOL_ERROR);
                }
                return Ok(TextStep::Send(self.build_piece_answer(open, text, offset, closing, terms)));
            }
            ExchangeState::AwaitText { open, .. } => open,
            ExchangeState::Idle | ExchangeState::AwaitTargets { .. } => {
                return Err(RejectReason::PROTOCOL_ERROR);
            }
        };
        open.incoming.add(data).map_err(|_| RejectReason::PROTOCOL_ERROR)?;
        if more {
            return Ok(TextStep::Send(self.build_piece_answer(open, Arc::new([]), 0, false, terms)));
        }
        self.negotiate(open, closing, terms)
    }

    fn negotiate(
        &mut self,
        mut open: OpenExchange,
        closing: bool,
        terms: &RequestContext<'_>,
    ) -> Result<TextStep, RejectReason> {
        let text = open.incoming.take_text();
        let pairs = text::parse(&text).map_err(|_| RejectReason::PROTOCOL_ERROR)?;
        let mut out = TextBuf::new();
        let outcome = open.keys.handle_text(&pairs, TextPhase::FullFeature, &mut out);
        outcome.map_err(|_| RejectReason::PROTOCOL_ERROR)?;
        if let Some(value) = find_value(&pairs, "SendTargets") {
            if let Some(question) = SendTargets::parse(value, terms.params.session_type) {
                self.state = ExchangeState::AwaitTargets { open, out, closing };
                return Ok(TextStep::AskTargets(question));
            }
            out.push("SendTargets", text::REJECT).map_err(|_| RejectReason::PROTOCOL_ERROR)?;
        }
        Ok(TextStep::Send(self.build_piece_answer(open, out.as_bytes().into(), 0, closing, terms)))
    }

    /// Takes the answer to [`TextStep::AskTargets`]: the text of a
    /// [`TargetList`](crate::discovery::TargetList). `None`: no such question is open.
    pub fn answer_send_targets(
        &mut self,
        list: Box<[u8]>,
        params: &Params,
        fresh: Ttt,
    ) -> Option<Box<TextAnswer>> {
        let (open, out, closing) = match core::mem::replace(&mut self.state, ExchangeState::Idle) {
            ExchangeState::AwaitTargets { open, out, closing } => (open, out, closing),
            other => {
                self.state = other;
                return None;
            }
        };
        let text = if out.is_empty() { list.into() } else { [out.as_bytes(), &list].concat().into() };
        Some(self.build_piece_answer(open, text, 0, closing, &RequestContext { params, fresh }))
    }

    /// Sends the next piece of `text` from `offset` on. The last one is final if the request was.
    fn build_piece_answer(
        &mut self,
        open: OpenExchange,
        text: Arc<[u8]>,
        offset: usize,
        closing: bool,
        terms: &RequestContext<'_>,
    ) -> Box<TextAnswer> {
        let params = terms.params;
        let limit = PIECE_LEN_MAX.min(params.initiator_mrdsl as usize);
        let piece = first_piece(text.get(offset..).unwrap_or_default(), limit).to_vec();
        let end = offset + piece.len();
        let is_last = end == text.len();
        let mut response = TextResponse::new();
        response.itt = open.itt;
        response.set_data_len(piece.len());
        let mut initiator_mrdsl = None;
        if is_last && closing {
            response.flags = TextFlags::FINAL;
            let declared = open.keys.params().initiator_mrdsl;
            initiator_mrdsl = (declared != params.initiator_mrdsl).then_some(declared);
        } else {
            let ttt = terms.fresh;
            response.ttt = ttt;
            if !is_last {
                response.flags = TextFlags::CONTINUE;
            }
            self.state = match is_last {
                true => ExchangeState::AwaitText { open, ttt },
                false => ExchangeState::AwaitFetch { open, ttt, text, offset: end },
            };
        }
        Box::new(TextAnswer { response, text: piece, initiator_mrdsl })
    }
}

/// What holds while one request is worked through.
struct RequestContext<'a> {
    params: &'a Params,
    fresh: Ttt,
}

impl OpenExchange {
    fn new(itt: Itt, params: &Params, limits: &NegotiationLimits) -> Self {
        let keys = Negotiation::resume(Role::Target, params.clone(), limits.clone());
        Self { itt, incoming: TextReassembly::default(), keys }
    }
}

/// What of a text fits one piece: whole pairs where at least one fits, for the sake of initiators that read
/// each piece by itself.
fn first_piece(text: &[u8], limit: usize) -> &[u8] {
    let Some(head) = text.get(..limit).filter(|head| head.len() < text.len()) else { return text };
    let last_pair_ends = head.iter().rposition(|byte| *byte == 0);
    last_pair_ends.and_then(|end| head.get(..=end)).unwrap_or(head)
}
