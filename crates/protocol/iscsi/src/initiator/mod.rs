//! The initiator's side (RFC 7143): the login of one connection (§6.3), without I/O and without time, and the
//! [session](InitiatorSession) made of such connections.
//!
//! The login is the counterpart of [`login`](crate::login). It trusts the target as little as the target
//! trusts it: it accepts no transition that it did not request, no value outside an offer, and no weaker
//! authentication than required.

mod failure;
mod security;
mod session;

pub use failure::LoginFailure;
pub use session::{
    ADDRESSES_MAX, AddLinkError, DiscoveredTargets, Fault, InitiatorLimits, InitiatorSession,
    LOGIN_STEPS_MAX, LinkFault, LoginStep, NoAnswer, Notice, Request, Residual, Response, ScsiAnswer,
    ScsiCommand, TARGETS_MAX, TargetRecord, TaskManagement,
};

#[cfg(test)]
mod tests;

use crate::chap::{Algorithm, ChapAccount, find_value};
use crate::keys::{Role, TextPhase};
use crate::login::{LOGIN_REQUESTS_MAX, LOGIN_SEGMENT_LEN_MAX, LoginPdu};
use crate::name::TargetAddress;
use crate::negotiate::{LoginKind, Negotiation, NegotiationLimits, Params, SessionType};
use crate::text::{self, TextBuf, TextReassembly};
use crate::wire::{
    Bhs, Cid, Isid, Itt, LoginFlags, LoginRequest, LoginResponse, LoginStatus, Opcode, Pdu, Sn, Stage, Tsih,
};
use security::SecurityState;
use stream::Entropy;

/// What the initiator wants of a login.
#[derive(Clone, Debug)]
pub struct LoginConfig {
    /// Our name.
    pub initiator_name: String,
    /// What we are called besides, for people who read the target's logs (RFC 7143 §13.7).
    pub alias: Option<String>,
    /// The target; `None` asks for a discovery session.
    pub target_name: Option<String>,
    /// Our part of the session's identity.
    pub isid: Isid,
    /// The session to join; [`Tsih::NONE`] for a new one.
    pub tsih: Tsih,
    /// Connection ID.
    pub cid: Cid,
    /// CmdSN that the first command will carry; on an added connection the session's current one.
    pub cmd_sn: Sn,
    /// What we offer and accept.
    pub limits: NegotiationLimits,
    /// How we prove ourselves; the account of the target, if it must prove itself too.
    pub credentials: Option<Credentials>,
}

/// CHAP accounts, ours and the target's.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Our name and secret.
    pub ours: ChapAccount,
    /// The target's name and secret, for mutual authentication.
    pub target: Option<ChapAccount>,
    /// Algorithms that we offer, best first.
    pub algorithms: Vec<Algorithm>,
}

/// What follows from a response.
#[derive(Debug)]
pub enum LoginProgress {
    /// Send the request; its response is awaited.
    Send(LoginPdu),
    /// The connection is in full feature phase.
    Established(Box<LoggedInConnection>),
}

/// A connection in full feature phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedInConnection {
    /// The session's handle.
    pub tsih: Tsih,
    /// What was negotiated.
    pub params: Params,
    /// Tag of the portal group, where the target told it.
    pub portal_group_tag: Option<u16>,
    /// CmdSN of the next command.
    pub cmd_sn: Sn,
    /// ExpCmdSN of the final response.
    pub exp_cmd_sn: Sn,
    /// MaxCmdSN of the final response.
    pub max_cmd_sn: Sn,
    /// StatSN that is expected next.
    pub exp_stat_sn: Sn,
}

/// The login of one connection.
#[derive(Debug)]
pub struct InitiatorLogin {
    wanted: LoginConfig,
    stage: Stage,
    security: SecurityState,
    keys: Negotiation,
    /// Whether our operational keys were proposed.
    proposed: bool,
    incoming: TextReassembly,
    outgoing: TextBuf,
    /// The transition that the last piece of `outgoing` asks for, and that a response may grant.
    asks: Option<Stage>,
    requests: u32,
    exp_stat_sn: Sn,
    portal_group_tag: Option<u16>,
}

const ITT: Itt = Itt::new(0);

impl InitiatorLogin {
    /// Begins a login: gives the first request.
    pub fn start(wanted: LoginConfig) -> Result<(Self, LoginPdu), LoginFailure> {
        let connection = if wanted.tsih.is_none() { LoginKind::Leading } else { LoginKind::Added };
        let session_type = match wanted.target_name {
            Some(_) => SessionType::Normal,
            None => SessionType::Discovery,
        };
        let keys = Negotiation::new(Role::Initiator, connection, session_type, wanted.limits.clone());
        let mut login = Self {
            stage: Stage::SECURITY,
            security: SecurityState::new(),
            keys,
            proposed: false,
            incoming: TextReassembly::default(),
            outgoing: TextBuf::new(),
            asks: None,
            requests: 0,
            exp_stat_sn: Sn::new(0),
            portal_group_tag: None,
            wanted,
        };
        login.outgoing.push("InitiatorName", &login.wanted.initiator_name)?;
        if let Some(alias) = &login.wanted.alias {
            login.outgoing.push("InitiatorAlias", alias)?;
        }
        if let Some(name) = &login.wanted.target_name {
            login.outgoing.push("TargetName", name)?;
        }
        let word = if session_type == SessionType::Normal { "Normal" } else { "Discovery" };
        login.outgoing.push("SessionType", word)?;
        login.asks =
            login.security.offer_auth_method(login.wanted.credentials.as_ref(), &mut login.outgoing)?;
        let first = login.next_request()?;
        Ok((login, first))
    }

    /// Takes a whole PDU; `data` is the data segment without padding.
    pub fn handle_response(
        &mut self,
        bhs: &Bhs,
        data: &[u8],
        entropy: &mut Entropy,
    ) -> Result<LoginProgress, LoginFailure> {
        if bhs.opcode() != Opcode::LOGIN_RESPONSE {
            return Err(LoginFailure::Unexpected(bhs.opcode()));
        }
        let response = LoginResponse::from_bhs(bhs);
        let too_long = bhs.data_len() > LOGIN_SEGMENT_LEN_MAX || bhs.ahs_len() != 0;
        if too_long || response.itt != ITT {
            return Err(LoginFailure::Malformed);
        }
        // A refusal counts without the ISID: targets in the field (tgt) leave it zero there, and its status
        // is what the user must hear.
        if response.status.class > 1 {
            let is_anonymous = self.wanted.credentials.is_none();
            return Err(match response.status {
                LoginStatus::AUTHENTICATION_FAILURE if is_anonymous => LoginFailure::CredentialsMissing,
                status => LoginFailure::Refused(status),
            });
        }
        if response.isid != self.wanted.isid {
            return Err(LoginFailure::Malformed);
        }
        self.check_status(response.status, data)?;
        self.exp_stat_sn = response.stat_sn.next();
        let granted = self.check_flags(response.flags)?;
        if !self.outgoing.is_empty() {
            // Our text is not out yet: an answer to a part of it must be empty.
            return if data.is_empty() {
                Ok(LoginProgress::Send(self.next_request()?))
            } else {
                Err(LoginFailure::Malformed)
            };
        }
        self.incoming.add(data)?;
        if response.flags.contains(LoginFlags::CONTINUE) {
            return Ok(LoginProgress::Send(self.next_request()?));
        }
        let text = self.incoming.take_text();
        self.handle_text(&text, granted, response, entropy)
    }

    fn check_status(&self, status: LoginStatus, data: &[u8]) -> Result<(), LoginFailure> {
        match status.class {
            0 => Ok(()),
            1 => {
                let pairs = text::parse(data)?;
                let address =
                    find_value(&pairs, "TargetAddress").and_then(|text| TargetAddress::parse(text).ok());
                Err(LoginFailure::Moved(status, address.ok_or(LoginFailure::Malformed)?))
            }
            _ => Err(LoginFailure::Refused(status)),
        }
    }

    /// Gives the stage that the response grants; it may not lie behind the one that was asked for.
    fn check_flags(&self, flags: LoginFlags) -> Result<Option<Stage>, LoginFailure> {
        if flags.current() != self.stage {
            return Err(LoginFailure::Malformed);
        }
        if !flags.contains(LoginFlags::TRANSIT) {
            return Ok(None);
        }
        let next = flags.next();
        let forward =
            next == Stage::FULL_FEATURE || next == Stage::OPERATIONAL && self.stage == Stage::SECURITY;
        let asked = self.asks.is_some_and(|asked| next.0 <= asked.0);
        if !forward || !asked || flags.contains(LoginFlags::CONTINUE) || !self.outgoing.is_empty() {
            return Err(LoginFailure::Malformed);
        }
        Ok(Some(next))
    }

    /// Whether both sides have agreed to prove themselves, and are not done with that.
    fn is_authenticating(&self) -> bool {
        self.stage == Stage::SECURITY && self.wanted.credentials.is_some() && self.security.has_begun()
    }

    fn handle_text(
        &mut self,
        text: &[u8],
        granted: Option<Stage>,
        response: &LoginResponse,
        entropy: &mut Entropy,
    ) -> Result<LoginProgress, LoginFailure> {
        let pairs = text::parse(text)?;
        let security = self.stage == Stage::SECURITY;
        let phase = if security { TextPhase::Security } else { TextPhase::Operational };
        let mut out = TextBuf::new();
        self.keys.handle_text(&pairs, phase, &mut out)?;
        if let Some(tag) = find_value(&pairs, "TargetPortalGroupTag") {
            let tag = text::parse_number(tag).ok().and_then(|tag| u16::try_from(tag).ok());
            self.portal_group_tag = Some(tag.ok_or(LoginFailure::Malformed)?);
        }
        let mut asks = Some(Stage::FULL_FEATURE);
        if security {
            let credentials = self.wanted.credentials.as_ref();
            asks = self.security.handle_text(credentials, &pairs, entropy, &mut out)?;
        }
        match granted {
            Some(_) if security && !self.security.is_done() => return Err(LoginFailure::Authentication),
            Some(Stage::FULL_FEATURE) => return self.finish(&out, response),
            Some(stage) => {
                self.stage = stage;
                asks = Some(Stage::FULL_FEATURE);
            }
            None => {}
        }
        if self.stage == Stage::OPERATIONAL && !self.proposed {
            self.proposed = true;
            self.keys.propose_all(&mut out)?;
        }
        (self.outgoing, self.asks) = (out, asks);
        Ok(LoginProgress::Send(self.next_request()?))
    }

    fn finish(&mut self, out: &TextBuf, response: &LoginResponse) -> Result<LoginProgress, LoginFailure> {
        // A target that has questions may not end the login.
        if !out.is_empty() || response.tsih.is_none() {
            return Err(LoginFailure::Malformed);
        }
        self.keys.finish()?;
        Ok(LoginProgress::Established(Box::new(LoggedInConnection {
            tsih: response.tsih,
            params: self.keys.params().clone(),
            portal_group_tag: self.portal_group_tag,
            cmd_sn: self.wanted.cmd_sn,
            exp_cmd_sn: response.exp_cmd_sn,
            max_cmd_sn: response.max_cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        })))
    }

    /// The next piece of our text as a request.
    fn next_request(&mut self) -> Result<LoginPdu, LoginFailure> {
        self.requests += 1;
        if self.requests > LOGIN_REQUESTS_MAX {
            return Err(LoginFailure::TooManyRequests);
        }
        let text = self.outgoing.take_piece(LOGIN_SEGMENT_LEN_MAX);
        let mut request = LoginRequest::new();
        request.flags = match self.asks {
            _ if !self.outgoing.is_empty() => LoginFlags::CONTINUE.with_stages(self.stage, Stage(0)),
            // While the target's answer is being fetched nothing is asked for.
            Some(next) if self.incoming.is_empty() => LoginFlags::TRANSIT.with_stages(self.stage, next),
            Some(_) | None => LoginFlags::default().with_stages(self.stage, Stage(0)),
        };
        request.isid = self.wanted.isid;
        request.tsih = self.wanted.tsih;
        request.itt = ITT;
        request.cid = self.wanted.cid;
        request.cmd_sn = self.wanted.cmd_sn;
        request.exp_stat_sn = self.exp_stat_sn;
        request.set_data_len(text.len());
        Ok(LoginPdu { bhs: request.to_bhs(), text })
    }
}
