//! The host's side for one queue (NVMe Base §8.3.5.2), for the initiator and tests.
//!
//! Invariant: if the host has a key of the controller, it accepts only a Success1 with the right response to
//! its own challenge.

use core::fmt;

use super::dh_computation::{DhComputation, DhResult, PrivateExponent};
use super::dh_group::{DhGroup, PRIVATE_EXPONENT_LEN};
use super::message::{self, Challenge, FailureExplanation, MessageHeader, MessageType, Reply};
use super::response::{HASH_LEN_MAX, Hash, HashBytes};
use super::{Concatenation, Credentials, DhchapPolicy, FillRandom};
use crate::tls::GeneratedPsk;

/// What the host does next.
#[derive(Debug)]
pub enum HostProgress {
    /// Carry this by Authentication Send; [`HostAuthenticator::handle_sent`] follows once it is answered.
    Send(Vec<u8>),
    /// Fetch a message with room for [`super::MESSAGE_LEN_MAX`]; [`HostAuthenticator::handle_message`] follows.
    Receive,
    /// Compute; [`HostAuthenticator::handle_computed`] follows.
    Compute(DhComputation),
    /// Both sides are content.
    Authenticated,
    /// It failed; this association is of no use.
    Failed(HostFault),
}

/// Why it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostFault {
    /// The controller refuses the host, or gives up.
    Refused(FailureExplanation),
    /// The host refuses the controller: what came is wrong, or it is not whom it says.
    Wrong(FailureExplanation),
}

impl fmt::Display for HostFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostFault::Refused(explanation) => write!(f, "the controller refuses this host: {explanation}"),
            HostFault::Wrong(explanation) => write!(f, "this host refuses the controller: {explanation}"),
        }
    }
}

impl std::error::Error for HostFault {}

/// The host's side of one queue, for one transaction.
pub struct HostAuthenticator {
    credentials: Credentials,
    policy: DhchapPolicy,
    transaction: u16,
    concatenation: Concatenation,
    /// The PSK that this generates; of use once the controller has accepted the host.
    psk: Option<GeneratedPsk>,
    /// C2, as long as the longest hash, and S2.
    challenge: HashBytes,
    sequence: u32,
    private: PrivateExponent,
    state: HostState,
}

enum HostState {
    /// The negotiation is to be answered.
    Negotiating,
    /// The challenge is to come.
    Waiting,
    /// The values of the group are being computed.
    Computing(ReceivedChallenge),
    /// The reply is to be answered.
    Replying(ExpectedResponse),
    /// Success1 is to come.
    Judged(ExpectedResponse),
    /// Success2 is to be answered.
    Closing,
    /// Failure2 is to be answered.
    GivingUp(HostFault),
    Over,
}

/// A challenge of the controller.
struct ReceivedChallenge {
    hash: Hash,
    challenge: HashBytes,
    sequence: u32,
}

/// What Success1 has to bring.
struct ExpectedResponse {
    hash: Hash,
    /// R2, if the host asked for it.
    response: Option<HashBytes>,
}

impl HostAuthenticator {
    /// Begins a transaction; `transaction` (T_ID) is not that of another one of this controller. The
    /// message is to be carried by Authentication Send. Where `credentials` have a key of the
    /// controller it must prove that it has it.
    pub fn start(
        credentials: Credentials,
        policy: DhchapPolicy,
        transaction: u16,
        fill: FillRandom<'_>,
    ) -> (HostAuthenticator, Vec<u8>) {
        HostAuthenticator::start_concatenation(credentials, policy, (transaction, Concatenation::None), fill)
    }

    /// The same, and a PSK is generated: [`HostAuthenticator::take_psk`]. Of `policy`, SHA-512 and the null group are not used.
    pub fn start_concatenation(
        credentials: Credentials,
        policy: DhchapPolicy,
        (transaction, concatenation): (u16, Concatenation),
        fill: FillRandom<'_>,
    ) -> (HostAuthenticator, Vec<u8>) {
        let policy = policy.for_concatenation(concatenation);
        let negotiate = message::encode_negotiate(transaction, &policy, concatenation);
        let (mut sequence, mut private) = ([0; 4], PrivateExponent::new([0; PRIVATE_EXPONENT_LEN]));
        fill(&mut sequence);
        fill(&mut *private);
        let host = HostAuthenticator {
            credentials,
            policy,
            transaction,
            concatenation,
            psk: None,
            challenge: HashBytes::random(HASH_LEN_MAX, fill),
            // 0 would say that no proof is wanted.
            sequence: u32::from_le_bytes(sequence).max(1),
            private,
            state: HostState::Negotiating,
        };
        (host, negotiate)
    }

    /// The PSK that was generated; of use once this has ended by [`HostProgress::Authenticated`].
    pub fn take_psk(&mut self) -> Option<GeneratedPsk> {
        self.psk.take()
    }

    /// The message of the last [`HostProgress::Send`] was taken.
    pub fn handle_sent(&mut self) -> HostProgress {
        match std::mem::replace(&mut self.state, HostState::Over) {
            HostState::Negotiating => {
                self.state = HostState::Waiting;
                HostProgress::Receive
            }
            HostState::Replying(proof) => {
                self.state = HostState::Judged(proof);
                HostProgress::Receive
            }
            HostState::Closing => HostProgress::Authenticated,
            HostState::GivingUp(fault) => HostProgress::Failed(fault),
            HostState::Waiting | HostState::Computing(_) | HostState::Judged(_) | HostState::Over => {
                HostProgress::Failed(HostFault::Wrong(FailureExplanation::MESSAGE))
            }
        }
    }

    /// Takes the message of an Authentication Receive.
    pub fn handle_message(&mut self, message: &[u8]) -> HostProgress {
        let step = std::mem::replace(&mut self.state, HostState::Over);
        let taken = match MessageHeader::parse(message) {
            Ok(head) if head.kind == MessageType::FAILURE1 => {
                return HostProgress::Failed(HostFault::Refused(message::parse_failure(message)));
            }
            Ok(head) if head.transaction != self.transaction => Err(FailureExplanation::MESSAGE),
            Ok(head) => match (step, head.kind) {
                (HostState::Waiting, MessageType::CHALLENGE) => self.handle_challenge(message),
                (HostState::Judged(proof), MessageType::SUCCESS1) => self.handle_success1(&proof, message),
                _ => Err(FailureExplanation::MESSAGE),
            },
            Err(explanation) => Err(explanation),
        };
        taken.unwrap_or_else(|explanation| self.refuse_transaction(explanation))
    }

    /// Takes what came of [`HostProgress::Compute`].
    pub fn handle_computed(&mut self, outcome: DhResult) -> HostProgress {
        match std::mem::replace(&mut self.state, HostState::Over) {
            HostState::Computing(asked) => self
                .send_reply(&asked, &outcome.public, outcome.session_key.as_ref())
                .unwrap_or_else(|explanation| self.refuse_transaction(explanation)),
            _ => HostProgress::Failed(HostFault::Wrong(FailureExplanation::MESSAGE)),
        }
    }

    fn handle_challenge(&mut self, message: &[u8]) -> Result<HostProgress, FailureExplanation> {
        let challenge = Challenge::parse(message, &self.policy)?;
        let asked = ReceivedChallenge {
            hash: challenge.hash,
            challenge: HashBytes::new(challenge.challenge),
            sequence: challenge.sequence,
        };
        if challenge.sequence == 0 {
            return Err(FailureExplanation::PAYLOAD);
        }
        if challenge.group == DhGroup::Null {
            return self.send_reply(&asked, &[], None);
        }
        let work = DhComputation {
            number: 0,
            hash: challenge.hash,
            group: challenge.group,
            private: self.private.clone(),
            public: true,
            peer: Some(challenge.public.to_vec()),
        };
        self.state = HostState::Computing(asked);
        Ok(HostProgress::Compute(work))
    }

    fn send_reply(
        &mut self,
        asked: &ReceivedChallenge,
        public: &[u8],
        session: Option<&HashBytes>,
    ) -> Result<HostProgress, FailureExplanation> {
        let key = self.credentials.host.as_ref().ok_or(FailureExplanation::FAILED)?;
        let first = (asked.challenge.as_slice(), asked.sequence);
        let terms = (self.transaction, self.concatenation);
        let response = self.credentials.response_input(asked.hash, first, session, terms);
        let response = response.host_response(key.bytes());
        let challenge = self.challenge.prefix(asked.hash.len());
        let second = (challenge, self.sequence);
        let wanted = self.credentials.controller.as_ref().map(|key| {
            let question = self.credentials.response_input(asked.hash, second, session, terms);
            question.controller_response(key.bytes())
        });
        let generates = self.concatenation.generates_psk();
        let psk = session.filter(|_| generates).and_then(|session| {
            GeneratedPsk::generate(asked.hash, session, asked.challenge.as_slice(), challenge)
        });
        if generates && psk.is_none() {
            return Err(FailureExplanation::HASH);
        }
        // S2 is 0: the challenge is for the PSK only.
        let challenge = wanted.as_ref().map(|_| second).or(generates.then_some((challenge, 0)));
        let reply = Reply { response: response.as_slice(), challenge, public };
        let message = reply.encode(self.transaction);
        self.psk = psk;
        self.state = HostState::Replying(ExpectedResponse { hash: asked.hash, response: wanted });
        Ok(HostProgress::Send(message))
    }

    fn handle_success1(
        &mut self,
        proof: &ExpectedResponse,
        message: &[u8],
    ) -> Result<HostProgress, FailureExplanation> {
        let response = message::parse_success1(message, proof.hash)?;
        match (&proof.response, response) {
            (None, _) => Ok(HostProgress::Authenticated),
            (Some(wanted), Some(response)) if wanted.constant_time_eq(response) => {
                self.state = HostState::Closing;
                Ok(HostProgress::Send(message::encode_success2(self.transaction)))
            }
            (Some(_), _) => Err(FailureExplanation::FAILED),
        }
    }

    /// Tells the controller why this ends.
    fn refuse_transaction(&mut self, explanation: FailureExplanation) -> HostProgress {
        self.state = HostState::GivingUp(HostFault::Wrong(explanation));
        HostProgress::Send(message::encode_failure(MessageType::FAILURE2, self.transaction, explanation))
    }
}

impl fmt::Debug for HostAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Host(..)")
    }
}
