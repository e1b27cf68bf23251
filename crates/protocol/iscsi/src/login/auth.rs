//! The security stage (RFC 7143 §12.1): method, algorithm, response.
//!
//! A step without the required key is a failure: once a method is chosen, it cannot be skipped.

use super::{AuthPolicy, ChapAccounts, LoginEndCause};
use crate::chap::{Algorithm, Challenge, ChapFailed, find_value};
use crate::text::{self, KeyValue, TextBuf};
use stream::Entropy;

/// What the authentication waits for.
#[derive(Debug)]
pub(super) enum AuthState {
    /// AuthMethod, or the initiator's step past it.
    AwaitMethod,
    /// CHAP_A.
    AwaitAlgorithm,
    /// CHAP_N and CHAP_R.
    AwaitResponse(Challenge),
    /// Nothing: what was proved, if anything.
    Done(Option<AuthenticatedUser>),
}

/// What an initiator has proved.
#[derive(Debug)]
pub(super) struct AuthenticatedUser {
    /// That it is the one of this CHAP name.
    pub(super) user: String,
    /// How.
    pub(super) algorithm: Algorithm,
}

/// The keys of the stage in one text.
struct SecurityKeys<'a> {
    method: Option<&'a str>,
    algorithms: Option<&'a str>,
    identifier: Option<&'a str>,
    challenge: Option<&'a str>,
    name: Option<&'a str>,
    response: Option<&'a str>,
}

impl<'a> SecurityKeys<'a> {
    fn from_pairs(pairs: &[KeyValue<'a>]) -> Self {
        Self {
            method: find_value(pairs, "AuthMethod"),
            algorithms: find_value(pairs, "CHAP_A"),
            identifier: find_value(pairs, "CHAP_I"),
            challenge: find_value(pairs, "CHAP_C"),
            name: find_value(pairs, "CHAP_N"),
            response: find_value(pairs, "CHAP_R"),
        }
    }

    fn has_chap_response_keys(&self) -> bool {
        self.identifier.is_some()
            || self.challenge.is_some()
            || self.name.is_some()
            || self.response.is_some()
    }
}

impl AuthState {
    /// Whether the initiator is who the policy wants.
    pub(super) fn is_done(&self) -> bool {
        matches!(self, AuthState::Done(_))
    }

    /// The initiator steps on: without a method, only a policy without authentication lets it pass.
    pub(super) fn end_security_stage(&mut self, policy: &AuthPolicy) -> Result<(), ChapFailed> {
        match (&self, policy) {
            (
                AuthState::AwaitMethod,
                AuthPolicy::None | AuthPolicy::Optional(_) | AuthPolicy::Dispensable(_),
            ) => {
                *self = AuthState::Done(None);
            }
            (AuthState::AwaitMethod, AuthPolicy::Required(_)) => return Err(ChapFailed),
            (AuthState::AwaitAlgorithm | AuthState::AwaitResponse(_) | AuthState::Done(_), _) => {}
        }
        Ok(())
    }

    /// Takes one text of the security stage.
    pub(super) fn handle_text(
        &mut self,
        policy: &AuthPolicy,
        pairs: &[KeyValue<'_>],
        entropy: &mut Entropy,
        out: &mut TextBuf,
    ) -> Result<(), LoginEndCause> {
        let offered = SecurityKeys::from_pairs(pairs);
        let next = match self {
            AuthState::AwaitMethod => {
                if offered.algorithms.is_some() || offered.has_chap_response_keys() {
                    return Err(ChapFailed.into());
                }
                let Some(methods) = offered.method else { return Ok(()) };
                choose_method(policy, methods, out)?
            }
            AuthState::AwaitAlgorithm => {
                if offered.has_chap_response_keys() {
                    return Err(ChapFailed.into());
                }
                choose_algorithm(
                    policy_accounts(policy)?,
                    offered.algorithms.ok_or(ChapFailed)?,
                    entropy,
                    out,
                )?
            }
            AuthState::AwaitResponse(challenge) => {
                AuthState::Done(Some(check_response(policy_accounts(policy)?, challenge, &offered, out)?))
            }
            AuthState::Done(_)
                if offered.method.is_some()
                    || offered.algorithms.is_some()
                    || offered.has_chap_response_keys() =>
            {
                return Err(ChapFailed.into());
            }
            AuthState::Done(_) => return Ok(()),
        };
        *self = next;
        Ok(())
    }
}

fn policy_accounts(policy: &AuthPolicy) -> Result<&ChapAccounts, ChapFailed> {
    match policy {
        AuthPolicy::None => Err(ChapFailed),
        AuthPolicy::Optional(chap) | AuthPolicy::Dispensable(chap) | AuthPolicy::Required(chap) => Ok(chap),
    }
}

fn choose_method(policy: &AuthPolicy, methods: &str, out: &mut TextBuf) -> Result<AuthState, LoginEndCause> {
    let allowed: &[&str] = match policy {
        AuthPolicy::None => &["None"],
        AuthPolicy::Optional(_) => &["CHAP", "None"],
        AuthPolicy::Dispensable(_) => &["None", "CHAP"],
        AuthPolicy::Required(_) => &["CHAP"],
    };
    let offers = |method: &&str| text::split_list(methods).any(|offered| offered == *method);
    let chosen = allowed.iter().copied().find(offers).ok_or(ChapFailed)?;
    out.push("AuthMethod", chosen)?;
    Ok(if chosen == "CHAP" { AuthState::AwaitAlgorithm } else { AuthState::Done(None) })
}

/// Our order decides, so that the strongest algorithm that both have is taken.
fn choose_algorithm(
    chap: &ChapAccounts,
    offer: &str,
    entropy: &mut Entropy,
    out: &mut TextBuf,
) -> Result<AuthState, LoginEndCause> {
    let offers = |algorithm: &Algorithm| {
        text::split_list(offer).any(|a| text::parse_number(a) == Ok(algorithm.0.into()))
    };
    let algorithm = chap.algorithms.iter().copied().find(offers).ok_or(ChapFailed)?;
    let challenge = Challenge::new(algorithm, entropy)?;
    out.push_number("CHAP_A", algorithm.0.into())?;
    challenge.encode(out)?;
    Ok(AuthState::AwaitResponse(challenge))
}

fn check_response(
    chap: &ChapAccounts,
    challenge: &Challenge,
    offered: &SecurityKeys<'_>,
    out: &mut TextBuf,
) -> Result<AuthenticatedUser, LoginEndCause> {
    if offered.algorithms.is_some() {
        return Err(ChapFailed.into());
    }
    let (name, response) = (offered.name.ok_or(ChapFailed)?, offered.response.ok_or(ChapFailed)?);
    let account = chap.accounts.iter().find(|account| account.name == name);
    challenge.verify(account, chap.mutual.as_ref(), response)?;
    match (offered.identifier, offered.challenge) {
        (None, None) if chap.demands_mutual => return Err(ChapFailed.into()),
        (None, None) => {}
        (Some(identifier), Some(theirs)) => {
            challenge.answer_peer_challenge(
                chap.mutual.as_ref().ok_or(ChapFailed)?,
                identifier,
                theirs,
                out,
            )?;
        }
        (Some(_), None) | (None, Some(_)) => return Err(ChapFailed.into()),
    }
    Ok(AuthenticatedUser { user: name.to_owned(), algorithm: challenge.algorithm() })
}
