//! The login of a link: whole PDUs between the stream and [`InitiatorLogin`](crate::initiator::InitiatorLogin).

use super::link::{LinkPhase, OutgoingPdu};
use super::request::{LoginStep, Notice};
use super::{InitiatorSession, LOGIN_STEPS_MAX, SessionState};
use crate::framing::{Framing, ParseStatus};
use crate::initiator::{LoggedInConnection, LoginFailure, LoginProgress};
use crate::links::LinkIndex;
use crate::login::LOGIN_SEGMENT_LEN_MAX;
use crate::wire::{BHS_LEN, Bhs, LoginResponse, LoginStatus, Opcode, Pdu};
use buf::Cx;
use stream::HostEvent;

impl InitiatorSession {
    /// Takes one Login Response.
    pub(super) fn parse_login(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> ParseStatus {
        let link = &mut self.commands.links[index];
        let Some(bhs) = link.rx.next_bhs() else { return self.reject_other_protocol(index) };
        if bhs.data_len() > LOGIN_SEGMENT_LEN_MAX || bhs.ahs_len() > 0 {
            self.handle_login_failure(index, LoginFailure::Malformed);
            return ParseStatus::Wait;
        }
        let whole = BHS_LEN + bhs.padded_data_len();
        let Some(bytes) = link.rx.receive_buffer.peek_header(whole) else { return ParseStatus::Wait };
        let Some(data) = bytes.get(BHS_LEN..BHS_LEN + bhs.data_len()) else { return ParseStatus::Wait };
        let data = data.to_vec();
        link.rx.receive_buffer.consume_header(whole);
        self.trace_login_step(index, true, &bhs, &data);
        let link = &mut self.commands.links[index];
        let LinkPhase::Login(login) = &mut link.phase else { return ParseStatus::Wait };
        // What comes before our request has left answers nothing.
        let early = !link.out.is_empty();
        let progress =
            if early { Err(LoginFailure::Malformed) } else { login.handle_response(&bhs, &data, cx.entropy) };
        match progress {
            Ok(LoginProgress::Send(next)) => {
                let (bhs, text) = (next.bhs, if self.limits.trace { next.text.clone() } else { Vec::new() });
                link.out.push_back(OutgoingPdu::Login(Box::new(next)));
                self.trace_login_step(index, false, &bhs, &text);
            }
            Ok(LoginProgress::Established(logged_in)) => self.finish_login(cx, index, &logged_in),
            Err(failure) => {
                self.handle_login_failure(index, failure);
                return ParseStatus::Wait;
            }
        }
        ParseStatus::Continue
    }

    /// Tells a link's first request.
    pub(super) fn trace_first_request(&mut self, index: LinkIndex) {
        if let Some(OutgoingPdu::Login(first)) = self.commands.links[index].out.front() {
            let (bhs, text) = (first.bhs, if self.limits.trace { first.text.clone() } else { Vec::new() });
            self.trace_login_step(index, false, &bhs, &text);
        }
    }

    /// What begins with another opcode than that of a login response is answered at once: what another protocol
    /// says may be shorter than a header, which would be waited for until the time-out.
    fn reject_other_protocol(&mut self, index: LinkIndex) -> ParseStatus {
        let begun = self.commands.links[index].rx.receive_buffer.peek_header(1);
        let opcode = begun.and_then(<[u8]>::first).map(|first| Opcode(first & 0x3f));
        if let Some(other) = opcode.filter(|opcode| *opcode != Opcode::LOGIN_RESPONSE) {
            self.handle_login_failure(index, LoginFailure::Unexpected(other));
        }
        ParseStatus::Wait
    }

    /// Tells a PDU, if that is wanted.
    fn trace_login_step(&mut self, index: LinkIndex, is_answer: bool, bhs: &Bhs, text: &[u8]) {
        if !self.limits.trace {
            return;
        }
        // Flags and status stand at the same places in requests and responses; a request has no status.
        let response = LoginResponse::from_bhs(bhs);
        if self.steps.len() >= LOGIN_STEPS_MAX {
            self.steps.pop_front();
        }
        self.steps.push_back(LoginStep {
            link: index.into(),
            cid: self.commands.links[index].cid,
            is_answer,
            flags: response.flags,
            status: if is_answer { response.status } else { LoginStatus::SUCCESS },
            text: text.to_vec(),
        });
    }

    fn finish_login(&mut self, cx: &mut Cx<'_>, index: LinkIndex, logged_in: &LoggedInConnection) {
        let params = &logged_in.params;
        let link = &mut self.commands.links[index];
        link.framing = Framing::of_initiator(params);
        (link.phase, link.deadline, link.heard) = (LinkPhase::Open, None, cx.now);
        link.exp_stat_sn = logged_in.exp_stat_sn;
        self.commands.window.update_window(logged_in.exp_cmd_sn, logged_in.max_cmd_sn);
        if self.state == SessionState::Starting {
            self.state = SessionState::Ready;
            self.commands.params = params.clone();
            self.tsih = logged_in.tsih;
            self.portal_group_tag = logged_in.portal_group_tag;
            self.commands.events.push_back(HostEvent::Ready);
        } else {
            self.notices.push_back(Notice::LinkReady(index.into()));
        }
    }

    /// The login of a link failed; the session lives on if it had begun.
    pub(super) fn handle_login_failure(&mut self, index: LinkIndex, failure: LoginFailure) {
        self.notices.push_back(Notice::LoginFailed(index.into(), failure));
        self.handle_link_lost(index);
    }
}
