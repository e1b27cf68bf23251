//! The states of a login and the transitions between them.

use super::auth::AuthState;
use super::{
    Authorization, EstablishedConnection, LOGIN_REQUESTS_MAX, LOGIN_SEGMENT_LEN_MAX, LoginAction,
    LoginCompletion, LoginEndCause, LoginIdentity, LoginPdu, LoginPolicy, SessionQuestion,
};
use crate::chap::find_value;
use crate::keys::{Key, Role, TextPhase};
use crate::name::{IscsiName, TargetAddress};
use crate::negotiate::{LoginKind, Negotiation, NegotiationViolation, SessionType};
use crate::text::{self, KeyValue, TextBuf, TextReassembly};
use crate::wire::{
    Bhs, Cid, Isid, Itt, LoginFlags, LoginRequest, LoginResponse, LoginStatus, Opcode, Pdu, Sn, Stage, Tsih,
};
use stream::Entropy;

/// How much of a CHAP name is kept for the log: RFC 7143 §12.1.3 allows text values of 255 bytes.
pub(super) const CLAIMED_USER_CHARS_MAX: usize = 255;

/// The login of one connection.
#[derive(Debug)]
pub struct Login {
    state: LoginState,
    /// What the first request fixed; every later one must repeat it.
    fixed: Option<FixedFields>,
    stage: Stage,
    requests: u32,
    incoming: TextReassembly,
    stat_sn: Sn,
    /// ExpCmdSN of responses; the session's own once it is known.
    exp_cmd_sn: Sn,
    max_cmd_sn: Sn,
    negotiating: Option<Box<AuthorizedLogin>>,
    /// The first CHAP name that the initiator gave; not authenticated.
    claimed_user: Option<Box<str>>,
}

/// What is awaited.
#[derive(Debug)]
enum LoginState {
    /// A request; `text` may have come in part.
    AwaitRequest,
    /// An empty request that fetches the rest of our answer.
    AwaitFetch(OutgoingText),
    /// The answer whether a first request is authorized, which is kept whole.
    AwaitAuthorization { identity: LoginIdentity, flags: LoginFlags, text: Vec<u8> },
    /// The session, for the final response.
    AwaitCompletion(TextBuf),
    /// Nothing: established or failed.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FixedFields {
    itt: Itt,
    isid: Isid,
    tsih: Tsih,
    cid: Cid,
    versions: (u8, u8),
}

/// Everything that exists once the login is authorized.
#[derive(Debug)]
struct AuthorizedLogin {
    identity: LoginIdentity,
    policy: LoginPolicy,
    auth: AuthState,
    keys: Negotiation,
    initiator_alias: Option<String>,
    /// Whether TargetPortalGroupTag and TargetAlias were said.
    introduced: bool,
}

/// An answer that goes out in pieces, and what its last piece means.
#[derive(Debug)]
struct OutgoingText {
    text: TextBuf,
    after: NextStep,
}

#[derive(Debug)]
enum NextStep {
    Stay,
    Enter(Stage),
    Establish(Box<EstablishedConnection>),
}

impl Default for Login {
    fn default() -> Self {
        Self::new()
    }
}

impl Login {
    /// A connection that has said nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: LoginState::AwaitRequest,
            fixed: None,
            stage: Stage::SECURITY,
            requests: 0,
            incoming: TextReassembly::default(),
            stat_sn: Sn::new(0),
            exp_cmd_sn: Sn::new(0),
            max_cmd_sn: Sn::new(0),
            negotiating: None,
            claimed_user: None,
        }
    }

    /// The CHAP name that the initiator gave, for the operator's log. Nothing says that it is right.
    #[must_use]
    pub fn claimed_user(&self) -> Option<&str> {
        self.claimed_user.as_deref()
    }

    /// Checks a header before room is made for its data: gives the padded length of the data segment, at most
    /// [`LOGIN_SEGMENT_LEN_MAX`] bytes, or the end of the login.
    pub fn handle_header(&mut self, bhs: &Bhs) -> Result<usize, Box<LoginAction>> {
        match self.check_header(bhs) {
            Ok(()) => Ok(bhs.padded_data_len()),
            Err(cause) => Err(Box::new(self.end_with_cause(Some(bhs), cause))),
        }
    }

    /// Takes a whole Login Request; `data` is the data segment without padding.
    pub fn handle_request(&mut self, bhs: &Bhs, data: &[u8], entropy: &mut Entropy) -> LoginAction {
        match self.process_request(bhs, data, entropy) {
            Ok(step) => step,
            Err(cause) => self.end_with_cause(Some(bhs), cause),
        }
    }

    /// Takes the answer to [`LoginAction::Authorize`]; without such a question the login ends.
    ///
    /// # Panics
    /// When a refusal carries no failure.
    pub fn authorize(&mut self, authorization: Authorization, entropy: &mut Entropy) -> LoginAction {
        let LoginState::AwaitAuthorization { identity, flags, text } = self.take_state() else {
            return self.end_with_cause(None, LoginEndCause::OutOfTurn);
        };
        let policy = match authorization {
            Authorization::Granted(policy) => policy,
            Authorization::Refused(status) => {
                return self.end_with_cause(None, LoginEndCause::Refused(status));
            }
            Authorization::MovedTemporarily(to) => return self.redirect(LoginStatus::MOVED_TEMPORARILY, to),
            Authorization::MovedPermanently(to) => return self.redirect(LoginStatus::MOVED_PERMANENTLY, to),
        };
        let connection = if identity.tsih.is_none() { LoginKind::Leading } else { LoginKind::Added };
        let keys = Negotiation::new(Role::Target, connection, identity.session_type, policy.limits.clone());
        self.negotiating = Some(Box::new(AuthorizedLogin {
            identity,
            policy: *policy,
            auth: AuthState::AwaitMethod,
            keys,
            initiator_alias: None,
            introduced: false,
        }));
        self.process_text(flags, &text, entropy).unwrap_or_else(|cause| self.end_with_cause(None, cause))
    }

    /// Takes the answer to [`LoginAction::Complete`]; without such a question the login ends.
    ///
    /// # Panics
    /// When the answer names TSIH 0 or an empty window, or a refusal carries no failure.
    pub fn complete(&mut self, completion: LoginCompletion) -> LoginAction {
        let asked = (self.take_state(), self.negotiating.take(), self.fixed);
        let (LoginState::AwaitCompletion(text), Some(n), Some(fixed)) = asked else {
            return self.end_with_cause(None, LoginEndCause::OutOfTurn);
        };
        let AuthState::Done(proved) = n.auth else {
            return self.end_with_cause(None, LoginEndCause::OutOfTurn);
        };
        let tsih = match completion {
            LoginCompletion::Refused(status) => {
                return self.end_with_cause(None, LoginEndCause::Refused(status));
            }
            LoginCompletion::NewSession { tsih, window } => {
                assert!(!tsih.is_none() && window > 0, "a session has a handle and a window");
                self.max_cmd_sn = self.exp_cmd_sn.add(window - 1);
                tsih
            }
            LoginCompletion::Join { exp_cmd_sn, max_cmd_sn } => {
                (self.exp_cmd_sn, self.max_cmd_sn) = (exp_cmd_sn, max_cmd_sn);
                fixed.tsih
            }
        };
        let (user, algorithm) = proved.map(|proved| (proved.user, proved.algorithm)).unzip();
        let established = EstablishedConnection {
            identity: n.identity,
            tsih,
            user,
            algorithm,
            initiator_alias: n.initiator_alias,
            portal_group_tag: n.policy.portal_group_tag,
            params: n.keys.params().clone(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
            // Set when the last piece goes out.
            stat_sn: self.stat_sn,
        };
        self.send_piece(OutgoingText { text, after: NextStep::Establish(Box::new(established)) })
    }

    fn take_state(&mut self) -> LoginState {
        core::mem::replace(&mut self.state, LoginState::Over)
    }

    fn check_header(&self, bhs: &Bhs) -> Result<(), LoginEndCause> {
        if bhs.opcode() != Opcode::LOGIN_REQUEST {
            return Err(match self.fixed {
                Some(_) => LoginEndCause::WrongPdu(bhs.opcode()),
                None => LoginEndCause::NotLogin(bhs.opcode()),
            });
        }
        if bhs.data_len() > LOGIN_SEGMENT_LEN_MAX {
            return Err(LoginEndCause::SegmentTooLong);
        }
        if bhs.ahs_len() != 0 || !bhs.is_immediate() {
            return Err(LoginEndCause::Header);
        }
        Ok(())
    }

    fn process_request(
        &mut self,
        bhs: &Bhs,
        data: &[u8],
        entropy: &mut Entropy,
    ) -> Result<LoginAction, LoginEndCause> {
        self.check_header(bhs)?;
        let request = LoginRequest::from_bhs(bhs);
        self.check_fixed_fields(request)?;
        self.check_stage(request.flags)?;
        self.requests += 1;
        if self.requests > LOGIN_REQUESTS_MAX {
            return Err(LoginEndCause::TooManyRequests);
        }
        match self.take_state() {
            LoginState::AwaitRequest => {}
            LoginState::AwaitFetch(outgoing) if data.is_empty() => return Ok(self.send_piece(outgoing)),
            LoginState::AwaitFetch(_) => return Err(LoginEndCause::Unasked),
            LoginState::AwaitAuthorization { .. } | LoginState::AwaitCompletion(_) | LoginState::Over => {
                return Err(LoginEndCause::Overtaken);
            }
        }
        self.incoming.add(data)?;
        if request.flags.contains(LoginFlags::CONTINUE) {
            return Ok(self.send_piece(OutgoingText { text: TextBuf::new(), after: NextStep::Stay }));
        }
        let text = self.incoming.take_text();
        if self.negotiating.is_some() {
            return self.process_text(request.flags, &text, entropy);
        }
        let identity = parse_identity(&text::parse(&text)?, request)?;
        self.state =
            LoginState::AwaitAuthorization { identity: identity.clone(), flags: request.flags, text };
        Ok(LoginAction::Authorize(identity))
    }

    /// The first request fixes the identity and opens the stage; the others repeat it.
    fn check_fixed_fields(&mut self, request: &LoginRequest) -> Result<(), LoginEndCause> {
        let fixed = FixedFields {
            itt: request.itt,
            isid: request.isid,
            tsih: request.tsih,
            cid: request.cid,
            versions: (request.version_max, request.version_min),
        };
        if self.fixed.is_some_and(|first| first != fixed) {
            return Err(LoginEndCause::Changed);
        }
        if self.fixed.is_none() {
            self.fixed = Some(fixed);
            self.stage = request.flags.current();
            self.exp_cmd_sn = request.cmd_sn;
            self.max_cmd_sn = request.cmd_sn;
            // Any first StatSN will do; the one that the initiator expects suits those who check.
            self.stat_sn = request.exp_stat_sn;
        }
        // Version 0 is the only one that exists (RFC 7143 §11.12.4).
        if request.version_min > 0 { Err(LoginEndCause::Version) } else { Ok(()) }
    }

    fn check_stage(&self, flags: LoginFlags) -> Result<(), LoginEndCause> {
        let (current, next) = (flags.current(), flags.next());
        let known = current == Stage::SECURITY || current == Stage::OPERATIONAL;
        let transit = flags.contains(LoginFlags::TRANSIT);
        let forward = match next {
            Stage::OPERATIONAL => current == Stage::SECURITY,
            Stage::FULL_FEATURE => true,
            _ => false,
        };
        let contradictory = transit && flags.contains(LoginFlags::CONTINUE);
        if !known || current != self.stage || contradictory || (transit && !forward) {
            return Err(LoginEndCause::Stage);
        }
        Ok(())
    }

    /// Works through a complete text of the current stage.
    fn process_text(
        &mut self,
        flags: LoginFlags,
        text: &[u8],
        entropy: &mut Entropy,
    ) -> Result<LoginAction, LoginEndCause> {
        let n = self.negotiating.as_mut().ok_or(LoginEndCause::OutOfTurn)?;
        let pairs = text::parse(text)?;
        let mut out = TextBuf::new();
        n.check_identity(&pairs)?;
        n.put_portal_group_tag(&mut out)?;
        let security = self.stage == Stage::SECURITY;
        let phase = if security { TextPhase::Security } else { TextPhase::Operational };
        n.keys.handle_text(&pairs, phase, &mut out)?;
        if let Some(alias) = find_value(&pairs, "InitiatorAlias") {
            n.initiator_alias = Some(alias.to_owned());
        }
        if security && let Some(name) = find_value(&pairs, "CHAP_N") {
            self.claimed_user.get_or_insert_with(|| name.chars().take(CLAIMED_USER_CHARS_MAX).collect());
        }
        if security {
            n.auth.handle_text(&n.policy.auth, &pairs, entropy, &mut out)?;
        } else {
            n.auth.end_security_stage(&n.policy.auth)?;
            n.keys.declare_recv_segment_len(&mut out)?;
        }
        let wanted = flags.contains(LoginFlags::TRANSIT).then_some(flags.next());
        match n.enter_next_stage(self.stage, wanted, &pairs, &mut out)? {
            Some(Stage::FULL_FEATURE) => {
                let question = n.session_question(self.exp_cmd_sn)?;
                self.state = LoginState::AwaitCompletion(out);
                Ok(LoginAction::Complete(Box::new(question)))
            }
            Some(stage) => Ok(self.send_piece(OutgoingText { text: out, after: NextStep::Enter(stage) })),
            None => Ok(self.send_piece(OutgoingText { text: out, after: NextStep::Stay })),
        }
    }

    /// Sends the next piece of an answer; only the last carries T.
    fn send_piece(&mut self, mut outgoing: OutgoingText) -> LoginAction {
        let text = outgoing.text.take_piece(LOGIN_SEGMENT_LEN_MAX);
        let mut response = self.build_response(LoginStatus::SUCCESS);
        if !outgoing.text.is_empty() {
            response.flags = LoginFlags::CONTINUE.with_stages(self.stage, Stage(0));
            self.state = LoginState::AwaitFetch(outgoing);
            return LoginAction::Send(login_pdu(response, text));
        }
        match outgoing.after {
            NextStep::Stay => {
                response.flags = LoginFlags::default().with_stages(self.stage, Stage(0));
                self.state = LoginState::AwaitRequest;
                LoginAction::Send(login_pdu(response, text))
            }
            NextStep::Enter(next) => {
                response.flags = LoginFlags::TRANSIT.with_stages(self.stage, next);
                self.stage = next;
                self.state = LoginState::AwaitRequest;
                LoginAction::Send(login_pdu(response, text))
            }
            NextStep::Establish(mut established) => {
                response.flags = LoginFlags::TRANSIT.with_stages(self.stage, Stage::FULL_FEATURE);
                response.tsih = established.tsih;
                established.stat_sn = self.stat_sn;
                self.state = LoginState::Over;
                LoginAction::Established(login_pdu(response, text), established)
            }
        }
    }

    fn build_response(&mut self, status: LoginStatus) -> LoginResponse {
        let mut response = LoginResponse::new();
        if let Some(fixed) = self.fixed {
            response.itt = fixed.itt;
            response.isid = fixed.isid;
            response.tsih = fixed.tsih;
        }
        response.stat_sn = self.stat_sn.take();
        response.exp_cmd_sn = self.exp_cmd_sn;
        response.max_cmd_sn = self.max_cmd_sn;
        response.status = status;
        response
    }

    /// Ends the login; only what began as a login gets an answer. `bhs` is the request, if one is at hand.
    fn end_with_cause(&mut self, bhs: Option<&Bhs>, cause: LoginEndCause) -> LoginAction {
        self.state = LoginState::Over;
        self.negotiating = None;
        self.incoming = TextReassembly::default();
        if matches!(cause, LoginEndCause::NotLogin(_)) {
            return LoginAction::Drop(cause);
        }
        assert!(cause.login_status().class > 1, "a refusal carries a failure");
        let mut response = self.build_response(cause.login_status());
        response.flags = LoginFlags::default().with_stages(self.stage, Stage(0));
        if let (None, Some(bhs)) = (self.fixed, bhs) {
            let request = LoginRequest::from_bhs(bhs);
            (response.itt, response.isid, response.tsih) = (request.itt, request.isid, request.tsih);
        }
        LoginAction::Refuse(login_pdu(response, Vec::new()), cause)
    }

    fn redirect(&mut self, status: LoginStatus, to: TargetAddress) -> LoginAction {
        let mut text = TextBuf::new();
        let address = to.without_portal_group_tag().to_string();
        if let Err(error) = text.push("TargetAddress", &address) {
            return self.end_with_cause(None, error.into());
        }
        let mut response = self.build_response(status);
        response.flags = LoginFlags::default().with_stages(self.stage, Stage(0));
        LoginAction::Refuse(
            login_pdu(response, text.take_piece(LOGIN_SEGMENT_LEN_MAX)),
            LoginEndCause::Refused(status),
        )
    }
}

impl AuthorizedLogin {
    /// Names and session type stand in the first text or nowhere.
    fn check_identity(&self, pairs: &[KeyValue<'_>]) -> Result<(), LoginEndCause> {
        let keys = [
            (Key::InitiatorName, "InitiatorName"),
            (Key::TargetName, "TargetName"),
            (Key::SessionType, "SessionType"),
        ];
        match keys.iter().find(|(_, name)| self.introduced && find_value(pairs, name).is_some()) {
            Some((key, _)) => Err(NegotiationViolation::Redeclared(*key).into()),
            None => Ok(()),
        }
    }

    /// The first answer says which portal group was reached (RFC 7143 §13.9), and the target's alias.
    fn put_portal_group_tag(&mut self, out: &mut TextBuf) -> Result<(), LoginEndCause> {
        if self.introduced {
            return Ok(());
        }
        self.introduced = true;
        if self.identity.session_type == SessionType::Normal {
            out.push_number("TargetPortalGroupTag", self.policy.portal_group_tag.into())?;
            if let Some(alias) = &self.policy.target_alias {
                out.push("TargetAlias", alias)?;
            }
        }
        Ok(())
    }

    /// Where the login goes from here; `None` when it stays in its stage.
    fn enter_next_stage(
        &mut self,
        stage: Stage,
        wanted: Option<Stage>,
        pairs: &[KeyValue<'_>],
        out: &mut TextBuf,
    ) -> Result<Option<Stage>, LoginEndCause> {
        let Some(next) = wanted else { return Ok(None) };
        if stage == Stage::SECURITY {
            self.auth.end_security_stage(&self.policy.auth)?;
            if !self.auth.is_done() {
                // The initiator would go on, the authentication would not. A step that brought nothing was
                // refused before; full feature phase may not even be asked for once CHAP began.
                let began = find_value(pairs, "AuthMethod").is_none();
                return if began && next == Stage::FULL_FEATURE {
                    Err(LoginEndCause::Authentication)
                } else {
                    Ok(None)
                };
            }
        }
        if next != Stage::FULL_FEATURE {
            return Ok(Some(next));
        }
        if stage == Stage::SECURITY && !self.keys.values_within_limits() {
            // The defaults would break our limits: an earlier stage than asked for is ours to choose.
            return Ok(Some(Stage::OPERATIONAL));
        }
        if self.keys.propose_needed(out)? {
            return Ok(None);
        }
        self.keys.finish()?;
        Ok(Some(Stage::FULL_FEATURE))
    }

    fn session_question(&self, cmd_sn: Sn) -> Result<SessionQuestion, LoginEndCause> {
        let AuthState::Done(proved) = &self.auth else { return Err(LoginEndCause::OutOfTurn) };
        Ok(SessionQuestion {
            identity: self.identity.clone(),
            user: proved.as_ref().map(|proved| proved.user.clone()),
            cmd_sn,
            params: self.keys.params().clone(),
        })
    }
}

fn login_pdu(mut response: LoginResponse, text: Vec<u8>) -> LoginPdu {
    response.set_data_len(text.len());
    LoginPdu { bhs: response.to_bhs(), text }
}

/// Who logs in to what, from the first text (RFC 7143 §6.3).
fn parse_identity(pairs: &[KeyValue<'_>], request: &LoginRequest) -> Result<LoginIdentity, LoginEndCause> {
    let session_type = match find_value(pairs, "SessionType") {
        None | Some("Normal") => SessionType::Normal,
        Some("Discovery") => SessionType::Discovery,
        Some(_) => return Err(LoginEndCause::SessionType),
    };
    let initiator_name =
        find_value(pairs, "InitiatorName").ok_or(LoginEndCause::Missing(Key::InitiatorName))?;
    let initiator_name = IscsiName::parse(initiator_name).map_err(|_| LoginEndCause::InitiatorName)?;
    let target_name = find_value(pairs, "TargetName").map(IscsiName::parse).transpose();
    let target_name = target_name.map_err(|_| LoginEndCause::TargetName)?;
    if target_name.is_none() && session_type == SessionType::Normal {
        return Err(LoginEndCause::Missing(Key::TargetName));
    }
    Ok(LoginIdentity {
        initiator_name,
        target_name,
        session_type,
        isid: request.isid,
        tsih: request.tsih,
        cid: request.cid,
    })
}
