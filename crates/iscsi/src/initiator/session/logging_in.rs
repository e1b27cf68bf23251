//! The login of a link: whole PDUs between the stream and [`InitiatorLogin`](crate::initiator::InitiatorLogin).

use super::link::{Phase, Terms};
use super::outgoing::Out;
use super::receive::Step;
use super::request::Notice;
use super::{InitiatorSession, State};
use crate::initiator::{Failure, LoggedIn, Progress};
use crate::login::LOGIN_SEGMENT_LEN_MAX;
use crate::negotiate::Digest;
use crate::wire::{BHS_LEN, Bhs};
use buf::Cx;
use stream::{HostEvent, Link};

impl InitiatorSession {
    /// Takes one Login Response.
    pub(super) fn parse_login(&mut self, cx: &mut Cx<'_>, at: usize) -> Step {
        let link = &mut self.links[at];
        let Some(bhs) = link.rx.inlet.header(BHS_LEN).and_then(Bhs::from_prefix).copied() else {
            return Step::Stop;
        };
        if bhs.data_len() > LOGIN_SEGMENT_LEN_MAX || bhs.ahs_len() > 0 {
            self.fail_login(at, Failure::Malformed);
            return Step::Stop;
        }
        let whole = BHS_LEN + bhs.padded_data_len();
        let Some(bytes) = link.rx.inlet.header(whole) else { return Step::Stop };
        let data = bytes[BHS_LEN..BHS_LEN + bhs.data_len()].to_vec();
        link.rx.inlet.consume(whole);
        let Phase::Login(login) = &mut link.phase else { return Step::Stop };
        // What comes before our request has left answers nothing.
        let early = !link.out.is_empty();
        let progress =
            if early { Err(Failure::Malformed) } else { login.handle_response(&bhs, &data, cx.entropy) };
        match progress {
            Ok(Progress::Send(next)) => link.out.push_back(Out::Login(Box::new(next))),
            Ok(Progress::Established(logged_in)) => self.established(cx, at, &logged_in),
            Err(failure) => {
                self.fail_login(at, failure);
                return Step::Stop;
            }
        }
        Step::On
    }

    fn established(&mut self, cx: &mut Cx<'_>, at: usize, logged_in: &LoggedIn) {
        let params = &logged_in.params;
        let link = &mut self.links[at];
        link.terms = Terms {
            header_digest: params.header_digest == Digest::Crc32c,
            data_digest: params.data_digest == Digest::Crc32c,
            initiator_mrdsl: params.initiator_mrdsl,
            target_mrdsl: params.target_mrdsl,
        };
        (link.phase, link.deadline, link.heard) = (Phase::Open, None, cx.now);
        link.exp_stat_sn = logged_in.exp_stat_sn;
        self.window.take(logged_in.exp_cmd_sn, logged_in.max_cmd_sn);
        if self.state == State::Starting {
            self.state = State::Ready;
            self.params = params.clone();
            self.tsih = logged_in.tsih;
            self.portal_group_tag = logged_in.portal_group_tag;
            self.events.push_back(HostEvent::Ready);
        } else {
            self.notices.push_back(Notice::LinkReady(Link(at as u16)));
        }
    }

    /// The login of a link failed; the session lives on if it had begun.
    pub(super) fn fail_login(&mut self, at: usize, failure: Failure) {
        self.notices.push_back(Notice::LoginFailed(Link(at as u16), failure));
        self.lose_link(at);
    }
}
