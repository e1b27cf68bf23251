//! The login of a link: whole PDUs between the stream and [`InitiatorLogin`](crate::initiator::InitiatorLogin).

use super::link::{LinkPhase, OutgoingPdu};
use super::request::{LoginStep, Notice};
use super::{InitiatorSession, STEPS_MAX, SessionState};
use crate::framing::{Framing, Parsing};
use crate::initiator::{Failure, LoggedIn, Progress};
use crate::links::LinkIndex;
use crate::login::LOGIN_SEGMENT_LEN_MAX;
use crate::wire::{BHS_LEN, Bhs, LoginResponse, LoginStatus, Pdu};
use buf::Cx;
use stream::HostEvent;

impl InitiatorSession {
    /// Takes one Login Response.
    pub(super) fn parse_login(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Parsing {
        let link = &mut self.commands.links[index];
        let Some(bhs) = link.rx.next_bhs() else { return Parsing::Wait };
        if bhs.data_len() > LOGIN_SEGMENT_LEN_MAX || bhs.ahs_len() > 0 {
            self.fail_login(index, Failure::Malformed);
            return Parsing::Wait;
        }
        let whole = BHS_LEN + bhs.padded_data_len();
        let Some(bytes) = link.rx.receive_buffer.header(whole) else { return Parsing::Wait };
        let Some(data) = bytes.get(BHS_LEN..BHS_LEN + bhs.data_len()) else { return Parsing::Wait };
        let data = data.to_vec();
        link.rx.receive_buffer.consume(whole);
        self.trace_step(index, true, &bhs, &data);
        let link = &mut self.commands.links[index];
        let LinkPhase::Login(login) = &mut link.phase else { return Parsing::Wait };
        // What comes before our request has left answers nothing.
        let early = !link.out.is_empty();
        let progress =
            if early { Err(Failure::Malformed) } else { login.handle_response(&bhs, &data, cx.entropy) };
        match progress {
            Ok(Progress::Send(next)) => {
                let (bhs, text) = (next.bhs, if self.limits.trace { next.text.clone() } else { Vec::new() });
                link.out.push_back(OutgoingPdu::Login(Box::new(next)));
                self.trace_step(index, false, &bhs, &text);
            }
            Ok(Progress::Established(logged_in)) => self.established(cx, index, &logged_in),
            Err(failure) => {
                self.fail_login(index, failure);
                return Parsing::Wait;
            }
        }
        Parsing::Continue
    }

    /// Tells a link's first request.
    pub(super) fn trace_first(&mut self, index: LinkIndex) {
        if let Some(OutgoingPdu::Login(first)) = self.commands.links[index].out.front() {
            let (bhs, text) = (first.bhs, if self.limits.trace { first.text.clone() } else { Vec::new() });
            self.trace_step(index, false, &bhs, &text);
        }
    }

    /// Tells a PDU, if that is wanted.
    fn trace_step(&mut self, index: LinkIndex, is_answer: bool, bhs: &Bhs, text: &[u8]) {
        if !self.limits.trace {
            return;
        }
        // Flags and status stand at the same places in requests and responses; a request has no status.
        let response = LoginResponse::from_bhs(bhs);
        if self.steps.len() >= STEPS_MAX {
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

    fn established(&mut self, cx: &mut Cx<'_>, index: LinkIndex, logged_in: &LoggedIn) {
        let params = &logged_in.params;
        let link = &mut self.commands.links[index];
        link.framing = Framing::of_initiator(params);
        (link.phase, link.deadline, link.heard) = (LinkPhase::Open, None, cx.now);
        link.exp_stat_sn = logged_in.exp_stat_sn;
        self.commands.window.take(logged_in.exp_cmd_sn, logged_in.max_cmd_sn);
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
    pub(super) fn fail_login(&mut self, index: LinkIndex, failure: Failure) {
        self.notices.push_back(Notice::LoginFailed(index.into(), failure));
        self.lose_link(index);
    }
}
