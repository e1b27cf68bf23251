//! One TCP connection while it logs in: framing around the login's state machine, and its deadline.
//!
//! Invariant: no receive is in flight while a question is open or after the login has ended. So a link that
//! has logged in can move to another shard, or become part of a session, without further preparation.

use std::collections::VecDeque;

use buf::{Cx, MemoryClass, Time};
use endpoint::AcceptedSocket;
use iscsi::login::{
    Authorization, EstablishedConnection, LOGIN_SEGMENT_LEN_MAX, Login, LoginAction, LoginCompletion,
    LoginEndCause, LoginIdentity, LoginPdu, SessionQuestion,
};
use iscsi::wire::{BHS_LEN, Bhs, padded_len};
use smallvec::smallvec;

use crate::log::LoginNames;
use stream::{Received, RecvOp, SendOp, SendPiece};

/// Most bytes that are received and not yet parsed: one whole request.
const UNPARSED_MAX: usize = BHS_LEN + LOGIN_SEGMENT_LEN_MAX;

/// What the shard must decide or do.
#[derive(Debug)]
pub(crate) enum LoginEvent {
    /// Answer with [`LoginLink::authorize`].
    Authorize(LoginIdentity),
    /// Answer with [`LoginLink::complete_login`].
    Complete(Box<SessionQuestion>),
    /// The last response is sent: the link belongs to a session now.
    Done(Box<EstablishedConnection>),
    /// Close the link; why, for the log.
    Over(Option<LoginEndCause>),
}

#[derive(Debug)]
enum LoginPhase {
    AwaitRequest,
    AwaitAnswer,
    /// The last response is on its way; then this.
    Ending(Box<LinkEnding>),
    Over,
}

#[derive(Debug)]
enum LinkEnding {
    Established(Box<EstablishedConnection>),
    Refused(LoginEndCause),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LoginLink {
    pub(crate) accepted: AcceptedSocket,
    machine: Login,
    /// Who wants to log in to what, once it has said so.
    identity: Option<Box<LoginIdentity>>,
    unparsed: Vec<u8>,
    /// Padded length of the data segment behind the header that was judged already.
    judged: Option<usize>,
    to_send: VecDeque<LoginPdu>,
    phase: LoginPhase,
    receiving: bool,
    sending: bool,
    /// Batches whose memory the kernel may still hold.
    in_kernel: u32,
    deadline: Time,
    evicted: bool,
    event: Option<LoginEvent>,
}

impl LoginLink {
    /// A connection that has said nothing yet; its login must have ended at `deadline`.
    pub(crate) fn new(deadline: Time, accepted: AcceptedSocket) -> Self {
        LoginLink {
            accepted,
            machine: Login::new(),
            identity: None,
            unparsed: Vec::new(),
            judged: None,
            to_send: VecDeque::new(),
            phase: LoginPhase::AwaitRequest,
            receiving: false,
            sending: false,
            deadline,
            in_kernel: 0,
            evicted: false,
            event: None,
        }
    }

    pub(crate) fn poll_event(&mut self) -> Option<LoginEvent> {
        self.event.take()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        (!matches!(self.phase, LoginPhase::Over)).then_some(self.deadline)
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if now >= self.deadline {
            self.end_login(None);
        }
    }

    /// Ends the login if the peer owes a request; says whether it did.
    pub(crate) fn evict(&mut self) -> bool {
        let owes = matches!(self.phase, LoginPhase::AwaitRequest);
        if owes {
            self.evicted = true;
            self.end_login(None);
        }
        owes
    }

    /// Whether [`LoginLink::evict`] has ended it.
    pub(crate) fn is_evicted(&self) -> bool {
        self.evicted
    }

    /// Who wanted to log in to what, as far as it was said; none of it is authenticated.
    pub(crate) fn claimed_names(&self) -> Option<Box<LoginNames>> {
        let identity = self.identity.as_deref()?;
        Some(Box::new(LoginNames {
            initiator: identity.initiator_name.to_string(),
            target: identity.target_name.as_ref().map(ToString::to_string),
            user: self.machine.claimed_user().map(str::to_owned),
        }))
    }

    /// Bytes that came behind the last request; there are none unless the peer breaks the rules.
    pub(crate) fn into_unparsed_bytes(self) -> Vec<u8> {
        self.unparsed
    }

    fn end_login(&mut self, cause: Option<LoginEndCause>) {
        match std::mem::replace(&mut self.phase, LoginPhase::Over) {
            LoginPhase::Over => {}
            // A peer that did not stay for the answer was refused all the same.
            LoginPhase::Ending(ending) => match *ending {
                LinkEnding::Refused(refused) => self.event = Some(LoginEvent::Over(Some(refused))),
                LinkEnding::Established(_) => self.event = Some(LoginEvent::Over(cause)),
            },
            LoginPhase::AwaitRequest | LoginPhase::AwaitAnswer => self.event = Some(LoginEvent::Over(cause)),
        }
    }

    pub(crate) fn poll_recv(&mut self) -> Option<RecvOp> {
        if self.receiving || !matches!(self.phase, LoginPhase::AwaitRequest) {
            return None;
        }
        self.receiving = true;
        let stage_len = UNPARSED_MAX - self.unparsed.len();
        Some(RecvOp { direct: None, stage_len, stage: None })
    }

    pub(crate) fn handle_recv(&mut self, cx: &mut Cx<'_>, op: RecvOp, came: Received) {
        self.receiving = false;
        match came {
            Received::Bytes(_) => self.unparsed.extend_from_slice(op.stage.as_deref().unwrap_or_default()),
            Received::Loaned(pages) => {
                let mut bytes = vec![0; pages.len()];
                pages.copy_to(0, &mut bytes);
                self.unparsed.append(&mut bytes);
            }
            Received::End | Received::Cancelled | Received::Failed(_) => return self.end_login(None),
        }
        self.parse(cx);
    }

    fn parse(&mut self, cx: &mut Cx<'_>) {
        while matches!(self.phase, LoginPhase::AwaitRequest) {
            let Some(bhs) = Bhs::from_prefix(&self.unparsed).cloned() else { return };
            let padded = match self.judged {
                Some(padded) => padded,
                None => match self.machine.handle_header(&bhs) {
                    Ok(padded) => *self.judged.insert(padded),
                    Err(step) => return self.apply_action(*step),
                },
            };
            let whole = BHS_LEN + padded;
            // The padding is behind the data.
            let Some(data) = self.unparsed.get(BHS_LEN..whole).and_then(|data| data.get(..bhs.data_len()))
            else {
                return;
            };
            self.judged = None;
            let step = self.machine.handle_request(&bhs, data, cx.entropy);
            self.unparsed.drain(..whole);
            self.apply_action(step);
        }
    }

    fn apply_action(&mut self, step: LoginAction) {
        match step {
            LoginAction::Send(pdu) => {
                self.to_send.push_back(pdu);
                self.phase = LoginPhase::AwaitRequest;
            }
            LoginAction::Authorize(question) => {
                self.identity = Some(Box::new(question.clone()));
                self.raise_question(LoginEvent::Authorize(question));
            }
            LoginAction::Complete(question) => self.raise_question(LoginEvent::Complete(question)),
            LoginAction::Refuse(pdu, cause) => self.send_last_response(pdu, LinkEnding::Refused(cause)),
            LoginAction::Drop(cause) => self.end_login(Some(cause)),
            LoginAction::Established(pdu, established) => {
                self.send_last_response(pdu, LinkEnding::Established(established))
            }
        }
    }

    fn raise_question(&mut self, question: LoginEvent) {
        self.phase = LoginPhase::AwaitAnswer;
        self.event = Some(question);
    }

    fn send_last_response(&mut self, pdu: LoginPdu, ending: LinkEnding) {
        self.to_send.push_back(pdu);
        self.phase = LoginPhase::Ending(Box::new(ending));
    }

    /// Whether a question is open: it may have been overtaken by the link's end.
    pub(crate) fn awaits_answer(&self) -> bool {
        matches!(self.phase, LoginPhase::AwaitAnswer)
    }

    pub(crate) fn authorize(&mut self, cx: &mut Cx<'_>, authorization: Authorization) {
        let step = self.machine.authorize(authorization, cx.entropy);
        self.apply_action(step);
        self.parse(cx);
    }

    pub(crate) fn complete_login(&mut self, completion: LoginCompletion) {
        let step = self.machine.complete(completion);
        self.apply_action(step);
    }

    pub(crate) fn poll_send(&mut self, cx: &mut Cx<'_>) -> Option<SendOp> {
        if self.sending || matches!(self.phase, LoginPhase::Over) {
            return None;
        }
        let pdu = self.to_send.front()?;
        let len = BHS_LEN + padded_len(pdu.text.len())?;
        let mut head = cx.pool.take(MemoryClass::Wire, len)?;
        let bytes = pdu.bhs.bytes().iter().chain(&pdu.text).copied().chain(std::iter::repeat(0));
        head.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        self.to_send.pop_front();
        self.sending = true;
        self.in_kernel += 1;
        Some(SendOp { head: Some(head), pieces: smallvec![SendPiece::Head(0..len as u32)], len })
    }

    pub(crate) fn handle_written(&mut self, how: Result<(), buf::Errno>) {
        self.sending = false;
        if how.is_err() {
            self.end_login(None);
        }
    }

    /// A batch's memory is back too. When nothing is out any more the link may leave.
    pub(crate) fn handle_send_released(&mut self) {
        self.in_kernel = self.in_kernel.saturating_sub(1);
        if self.sending || self.in_kernel > 0 || !self.to_send.is_empty() {
            return;
        }
        match std::mem::replace(&mut self.phase, LoginPhase::Over) {
            LoginPhase::Ending(ending) => {
                self.event = Some(match *ending {
                    LinkEnding::Established(established) => LoginEvent::Done(established),
                    LinkEnding::Refused(cause) => LoginEvent::Over(Some(cause)),
                });
            }
            phase => self.phase = phase,
        }
    }
}
