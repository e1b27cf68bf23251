//! The initiator's security stage: the target must authenticate as required (RFC 7143 §12.1).

use super::{Credentials, LoginFailure};
use crate::chap::{Algorithm, Challenge, ChapFailed, answer_text_challenge, find_value};
use crate::text::{self, KeyValue, TextBuf};
use crate::wire::Stage;
use stream::Entropy;

/// What is awaited of the target.
#[derive(Debug)]
pub(super) enum SecurityState {
    /// AuthMethod.
    AwaitMethod,
    /// CHAP_A, CHAP_I and CHAP_C.
    AwaitChallenge,
    /// CHAP_N and CHAP_R, in answer to this.
    AwaitProof(Challenge),
    /// Nothing more.
    Done,
}

impl SecurityState {
    pub(super) fn new() -> Self {
        SecurityState::AwaitMethod
    }

    /// Whether the target has agreed to a method.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self, SecurityState::AwaitMethod)
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self, SecurityState::Done)
    }

    /// Offers exactly what is wanted; gives the transition to ask for.
    pub(super) fn offer_auth_method(
        &mut self,
        wanted: Option<&Credentials>,
        out: &mut TextBuf,
    ) -> Result<Option<Stage>, LoginFailure> {
        match wanted {
            Some(_) => {
                out.push("AuthMethod", "CHAP")?;
                Ok(None)
            }
            None => {
                out.push("AuthMethod", "None")?;
                Ok(Some(Stage::OPERATIONAL))
            }
        }
    }

    /// Takes one text of the stage; gives the transition to ask for next.
    pub(super) fn handle_text(
        &mut self,
        wanted: Option<&Credentials>,
        pairs: &[KeyValue<'_>],
        entropy: &mut Entropy,
        out: &mut TextBuf,
    ) -> Result<Option<Stage>, LoginFailure> {
        let next = match (&self, wanted) {
            (SecurityState::AwaitMethod, None) => {
                // A target without authentication may leave the key unanswered.
                if find_value(pairs, "AuthMethod").is_some_and(|method| method != "None") {
                    return Err(LoginFailure::Authentication);
                }
                SecurityState::Done
            }
            (SecurityState::AwaitMethod, Some(credentials)) => {
                if find_value(pairs, "AuthMethod") != Some("CHAP") {
                    return Err(LoginFailure::Authentication);
                }
                let algorithms: Vec<_> = credentials.algorithms.iter().map(|a| a.0.to_string()).collect();
                out.push("CHAP_A", &algorithms.join(","))?;
                SecurityState::AwaitChallenge
            }
            (SecurityState::AwaitChallenge, Some(credentials)) => {
                answer_challenge(credentials, pairs, entropy, out)?
            }
            (SecurityState::AwaitProof(challenge), Some(credentials)) => {
                let (name, proof) = (find_value(pairs, "CHAP_N"), find_value(pairs, "CHAP_R"));
                let target = credentials.target.as_ref().filter(|target| Some(target.name.as_str()) == name);
                challenge.verify(target, Some(&credentials.ours), proof.ok_or(ChapFailed)?)?;
                SecurityState::Done
            }
            (SecurityState::Done, _) => SecurityState::Done,
            (SecurityState::AwaitChallenge | SecurityState::AwaitProof(_), None) => {
                return Err(LoginFailure::Authentication);
            }
        };
        *self = next;
        Ok(match self {
            SecurityState::AwaitMethod | SecurityState::AwaitChallenge => None,
            SecurityState::AwaitProof(_) | SecurityState::Done => Some(Stage::OPERATIONAL),
        })
    }
}

fn answer_challenge(
    credentials: &Credentials,
    pairs: &[KeyValue<'_>],
    entropy: &mut Entropy,
    out: &mut TextBuf,
) -> Result<SecurityState, LoginFailure> {
    let algorithm = find_value(pairs, "CHAP_A").and_then(|a| text::parse_number(a).ok()).ok_or(ChapFailed)?;
    let algorithm = u8::try_from(algorithm).map(Algorithm).map_err(|_| ChapFailed)?;
    if !credentials.algorithms.contains(&algorithm) {
        return Err(LoginFailure::Authentication);
    }
    let identifier = find_value(pairs, "CHAP_I").ok_or(ChapFailed)?;
    let challenge = find_value(pairs, "CHAP_C").ok_or(ChapFailed)?;
    answer_text_challenge(algorithm, &credentials.ours, identifier, challenge, out)?;
    if credentials.target.is_none() {
        return Ok(SecurityState::Done);
    }
    let ours = Challenge::new(algorithm, entropy)?;
    ours.encode(out)?;
    Ok(SecurityState::AwaitProof(ours))
}
