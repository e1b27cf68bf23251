//! The controller's side for one queue (NVMe Base §8.3.5.2).
//!
//! Invariant: a transaction goes Negotiate, Challenge, Reply, Success1 (and Success2 if the host requested
//! authentication of the controller), and nowhere else. Anything else ends in Failure1, which answers the
//! next Authentication Receive and ends the association.

use core::fmt;

use super::dh_computation::{DhComputation, DhResult, PrivateExponent};
use super::dh_group::DhGroup;
use super::message::{self, Challenge, FAILURE_LEN, FailureExplanation, MessageHeader, MessageType, Reply};
use super::response::{Hash, HashBytes};
use super::secret::DhchapKey;
use super::{Concatenation, ConcatenationPolicy, Credentials, DhchapPolicy, FillRandom};
use crate::status::Status;
use crate::tls::GeneratedPsk;

/// What becomes of an Authentication Send.
#[derive(Debug)]
pub enum ControllerProgress {
    /// Answer it with success.
    Answer,
    /// Answer it later, as [`ControllerAuthenticator::handle_computed`] says once this was done.
    Compute(DhComputation),
    /// Answer it with success; the host has authenticated.
    Authenticated,
    /// Answer it with success, then end the association: the host gave up.
    End(FailureExplanation),
}

/// The message for an Authentication Receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthMessage {
    /// The bytes, no more than there is room for.
    pub message: Vec<u8>,
    /// What follows once the command is answered.
    pub outcome: AuthOutcome,
}

/// What follows an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthOutcome {
    /// The host goes on.
    Continue,
    /// The host has authenticated.
    Authenticated,
    /// End the association: authentication failed.
    End(FailureExplanation),
}

/// What an authentication failed for, for the log of the controller's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthFailure {
    /// The host did not prove that it has its key, or broke the protocol.
    Host,
    /// The host proved it, and requested authentication of the controller, which has no key.
    NoControllerKey,
    /// The host ended it (AUTH_Failure2): it does not accept the controller.
    RefusedByHost(FailureExplanation),
}

/// How far a queue is, for its owner's deadline and rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthState {
    /// The host has not authenticated: nothing but authentication is served, and not for long.
    Pending,
    /// The host has authenticated.
    Authenticated,
    /// It has, and does so again: commands are served, but this must come to an end in time.
    Reauthenticating,
    /// It failed: the association ends.
    Failed,
}

/// The controller's side of one queue.
pub struct ControllerAuthenticator {
    credentials: Credentials,
    policy: DhchapPolicy,
    /// The last S1; 0 before the first.
    sequence: u32,
    /// The last S2 that a host used; 0 before the first.
    host_sequence: u32,
    /// Names the work that is under way.
    number: u32,
    authenticated: bool,
    /// By what the host answered rightly last.
    method: Option<(Hash, DhGroup)>,
    /// What the last failure was about, unless it was [`AuthFailure::Host`].
    failure: Option<AuthFailure>,
    /// Which PSKs may be generated, and the last one that was.
    concatenation: ConcatenationPolicy,
    psk: Option<(Concatenation, GeneratedPsk)>,
    /// A new PSK was generated: the host is to come again over TLS.
    awaits_tls: bool,
    state: TransactionState,
}

/// Where a transaction stands.
enum TransactionState {
    /// There is none.
    Idle,
    /// The public value is being computed.
    Publishing(Transaction),
    /// The challenge is to be fetched.
    Challenging(Transaction),
    /// The reply is to come.
    Asked(Transaction),
    /// The session key is being computed.
    Deriving(Transaction, ReplyValues),
    /// Success1 is to be fetched, with R2 if the host asked for it.
    Accepting(Transaction, Option<HashBytes>),
    /// Success2 is to come.
    Proving(Transaction),
    /// Failure1 is to be fetched.
    Refusing { transaction: u16, explanation: FailureExplanation },
    /// It is over.
    Over,
}

struct Transaction {
    id: u16,
    concatenation: Concatenation,
    hash: Hash,
    group: DhGroup,
    /// C1.
    challenge: HashBytes,
    /// S1.
    sequence: u32,
    private: PrivateExponent,
    public: Vec<u8>,
    /// What a host without a key is measured with, so that it costs the same.
    decoy: DhchapKey,
}

/// What a reply said.
struct ReplyValues {
    response: HashBytes,
    challenge: Option<(HashBytes, u32)>,
}

impl ControllerAuthenticator {
    /// A queue whose host is still to authenticate.
    pub fn new(credentials: Credentials, policy: DhchapPolicy) -> ControllerAuthenticator {
        ControllerAuthenticator {
            credentials,
            policy,
            sequence: 0,
            host_sequence: 0,
            number: 0,
            authenticated: false,
            method: None,
            failure: None,
            concatenation: ConcatenationPolicy::Refused,
            psk: None,
            awaits_tls: false,
            state: TransactionState::Idle,
        }
    }

    /// The same where the host may, or must, have a PSK generated.
    #[must_use]
    pub fn with_concatenation(mut self, concatenation: ConcatenationPolicy) -> ControllerAuthenticator {
        self.concatenation = concatenation;
        self
    }

    /// The same for a queue whose host has proved who it is otherwise: by the PSK of its TLS. It may authenticate again.
    #[must_use]
    pub fn proven(mut self) -> ControllerAuthenticator {
        self.authenticated = true;
        self
    }

    /// The host of a queue that was restored has authenticated in another process, by this method. It may authenticate
    /// again.
    pub fn restore_authenticated(&mut self, method: Option<(Hash, DhGroup)>) {
        self.authenticated = true;
        self.method = method;
    }

    /// The PSK that a host's reply has generated, once: it has proved that it has its key, and is still to be told so.
    /// Void if the transaction fails.
    pub fn take_psk(&mut self) -> Option<(Concatenation, GeneratedPsk)> {
        self.psk.take()
    }

    /// Whether the host must come again over TLS before it is served whole: it has had a new PSK generated here, or
    /// has to.
    pub fn awaits_tls(&self) -> bool {
        self.awaits_tls || self.concatenation == ConcatenationPolicy::Required
    }

    /// Whether the host has authenticated, and has not failed to do so again.
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// By which hash and group the host has authenticated, if it has.
    pub fn negotiated_method(&self) -> Option<(Hash, DhGroup)> {
        self.method.filter(|_| self.authenticated)
    }

    /// What it failed for; of meaning once it has failed.
    pub fn failure(&self) -> AuthFailure {
        self.failure.unwrap_or(AuthFailure::Host)
    }

    /// How far it is.
    pub fn state(&self) -> AuthState {
        match (&self.state, self.authenticated) {
            (TransactionState::Refusing { .. } | TransactionState::Over, _) => AuthState::Failed,
            (_, false) => AuthState::Pending,
            (TransactionState::Idle, true) => AuthState::Authenticated,
            (_, true) => AuthState::Reauthenticating,
        }
    }

    /// Takes the message of an Authentication Send.
    pub fn handle_send(&mut self, message: &[u8], fill: FillRandom<'_>) -> ControllerProgress {
        let step = std::mem::replace(&mut self.state, TransactionState::Over);
        let head = match MessageHeader::parse(message) {
            Ok(head) => head,
            Err(explanation) => return self.refuse_transaction(0, explanation),
        };
        match (step, head.kind) {
            (TransactionState::Over, _) => ControllerProgress::End(FailureExplanation::MESSAGE),
            (_, MessageType::FAILURE2) => {
                let explanation = message::parse_failure(message);
                self.authenticated = false;
                self.failure = Some(AuthFailure::RefusedByHost(explanation));
                ControllerProgress::End(explanation)
            }
            (TransactionState::Idle, MessageType::NEGOTIATE) => {
                match self.begin_challenge(head.transaction, message, fill) {
                    Ok(progress) => progress,
                    Err(explanation) => self.refuse_transaction(head.transaction, explanation),
                }
            }
            (TransactionState::Asked(transaction), MessageType::REPLY)
                if transaction.id == head.transaction =>
            {
                let id = transaction.id;
                match self.handle_reply(transaction, message) {
                    Ok(progress) => progress,
                    Err(explanation) => self.refuse_transaction(id, explanation),
                }
            }
            (TransactionState::Proving(transaction), MessageType::SUCCESS2)
                if transaction.id == head.transaction && message::is_valid_success2(message) =>
            {
                self.set_authenticated(transaction.concatenation);
                ControllerProgress::Authenticated
            }
            (_, MessageType::SUCCESS2) if !message::is_valid_success2(message) => {
                self.refuse_transaction(head.transaction, FailureExplanation::PAYLOAD)
            }
            _ => self.refuse_transaction(head.transaction, FailureExplanation::MESSAGE),
        }
    }

    /// Takes what came of [`ControllerProgress::Compute`]: what becomes of the command that waited for it. If the
    /// transaction has failed in the meantime, it is answered all the same.
    pub fn handle_computed(&mut self, outcome: DhResult) -> ControllerProgress {
        if outcome.number != self.number {
            return ControllerProgress::Answer;
        }
        match std::mem::replace(&mut self.state, TransactionState::Over) {
            TransactionState::Publishing(mut transaction) => {
                transaction.public = outcome.public;
                self.state = TransactionState::Challenging(transaction);
                ControllerProgress::Answer
            }
            TransactionState::Deriving(transaction, replied) => {
                self.verify_response(transaction, replied, outcome.session_key.as_ref())
            }
            other => {
                self.state = other;
                ControllerProgress::Answer
            }
        }
    }

    /// Gives the message for an Authentication Receive with room for `room` bytes. Less than a
    /// failure needs is an invalid field, and ends the association when it is answered.
    pub fn handle_receive(&mut self, room: u32) -> Result<AuthMessage, Status> {
        let room = room as usize;
        if room < FAILURE_LEN {
            self.authenticated = false;
            self.state = TransactionState::Over;
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        let id = self.state.transaction_id();
        let mut concatenation = Concatenation::None;
        let (given, next) = match std::mem::replace(&mut self.state, TransactionState::Over) {
            TransactionState::Challenging(transaction) => {
                (transaction.challenge_message(), TransactionState::Asked(transaction))
            }
            TransactionState::Accepting(transaction, response) => {
                let message = message::encode_success1(transaction.id, transaction.hash, response.as_ref());
                concatenation = transaction.concatenation;
                let next = if response.is_some() {
                    TransactionState::Proving(transaction)
                } else {
                    TransactionState::Idle
                };
                (message, next)
            }
            TransactionState::Refusing { transaction, explanation } => {
                return Ok(self.fail_transaction(transaction, explanation));
            }
            _ => return Ok(self.fail_transaction(id, FailureExplanation::MESSAGE)),
        };
        if given.len() > room {
            return Ok(self.fail_transaction(id, FailureExplanation::PAYLOAD));
        }
        let outcome = if matches!(next, TransactionState::Idle) {
            self.set_authenticated(concatenation);
            AuthOutcome::Authenticated
        } else {
            self.state = next;
            AuthOutcome::Continue
        };
        Ok(AuthMessage { message: given, outcome })
    }

    /// Negotiate: a fresh challenge, and where there is a group a fresh exponent.
    fn begin_challenge(
        &mut self,
        id: u16,
        message: &[u8],
        fill: FillRandom<'_>,
    ) -> Result<ControllerProgress, FailureExplanation> {
        let (concatenation, hash, group) =
            message::choose_from_negotiate(message, &self.policy, self.concatenation)?;
        if self.sequence == 0 {
            let mut first = [0; 4];
            fill(&mut first);
            self.sequence = u32::from_le_bytes(first);
        }
        // 0 is no sequence number.
        self.sequence = self.sequence.checked_add(1).unwrap_or(1);
        let mut transaction = Transaction {
            id,
            concatenation,
            hash,
            group,
            challenge: HashBytes::random(hash.len(), fill),
            sequence: self.sequence,
            private: PrivateExponent::new([0; super::dh_group::PRIVATE_EXPONENT_LEN]),
            public: Vec::new(),
            decoy: DhchapKey::decoy(fill),
        };
        if group == DhGroup::Null {
            self.state = TransactionState::Challenging(transaction);
            return Ok(ControllerProgress::Answer);
        }
        fill(&mut *transaction.private);
        let work = transaction.dh_computation(self.next_sequence_number(), None);
        self.state = TransactionState::Publishing(transaction);
        Ok(ControllerProgress::Compute(work))
    }

    fn handle_reply(
        &mut self,
        transaction: Transaction,
        message: &[u8],
    ) -> Result<ControllerProgress, FailureExplanation> {
        let terms = (transaction.hash, transaction.group);
        let reply = Reply::parse(message, transaction.concatenation, terms)?;
        if let Some((challenge, sequence)) = reply.challenge {
            // Our own challenge, or a sequence number of before, is not answered. 0 is none.
            let is_old = sequence != 0 && sequence == self.host_sequence;
            if transaction.challenge.constant_time_eq(challenge) || is_old {
                return Err(FailureExplanation::FAILED);
            }
            if sequence != 0 {
                self.host_sequence = sequence;
            }
        }
        let replied = ReplyValues {
            response: HashBytes::new(reply.response),
            challenge: reply.challenge.map(|(challenge, sequence)| (HashBytes::new(challenge), sequence)),
        };
        if transaction.group == DhGroup::Null {
            return Ok(self.verify_response(transaction, replied, None));
        }
        let work = transaction.dh_computation(self.next_sequence_number(), Some(reply.public.to_vec()));
        self.state = TransactionState::Deriving(transaction, replied);
        Ok(ControllerProgress::Compute(work))
    }

    /// Compares R1, computes R2 if it is wanted, and generates a PSK if one is.
    fn verify_response(
        &mut self,
        transaction: Transaction,
        replied: ReplyValues,
        session: Option<&HashBytes>,
    ) -> ControllerProgress {
        let (hash, challenge) = (transaction.hash, transaction.challenge.as_slice());
        let terms = (transaction.id, transaction.concatenation);
        let question =
            self.credentials.response_input(hash, (challenge, transaction.sequence), session, terms);
        let key = self.credentials.host.as_ref().unwrap_or(&transaction.decoy);
        let right = question.host_response(key.bytes()).constant_time_eq(replied.response.as_slice());
        if !right || self.credentials.host.is_none() {
            return self.refuse_transaction(transaction.id, FailureExplanation::FAILED);
        }
        let requested = replied.challenge.as_ref().filter(|(_, sequence)| *sequence != 0);
        let response = match (requested, &self.credentials.controller) {
            (None, _) => None,
            // The host requests a response that this controller cannot give.
            (Some(_), None) => {
                self.failure = Some(AuthFailure::NoControllerKey);
                return self.refuse_transaction(transaction.id, FailureExplanation::FAILED);
            }
            (Some((second, sequence)), Some(key)) => {
                let question =
                    self.credentials.response_input(hash, (second.as_slice(), *sequence), session, terms);
                Some(question.controller_response(key.bytes()))
            }
        };
        if transaction.concatenation.generates_psk() {
            let psk = match (session, &replied.challenge) {
                (Some(session), Some((second, _))) => {
                    GeneratedPsk::generate(hash, session, challenge, second.as_slice())
                }
                _ => None,
            };
            let Some(psk) = psk else {
                return self.refuse_transaction(transaction.id, FailureExplanation::HASH);
            };
            self.psk = Some((transaction.concatenation, psk));
        }
        self.method = Some((transaction.hash, transaction.group));
        self.state = TransactionState::Accepting(transaction, response);
        ControllerProgress::Answer
    }

    fn next_sequence_number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }

    fn set_authenticated(&mut self, concatenation: Concatenation) {
        self.awaits_tls |= concatenation == Concatenation::NewPsk;
        self.authenticated = true;
        self.state = TransactionState::Idle;
    }

    /// The command is answered, and the failure fetched by the next.
    fn refuse_transaction(
        &mut self,
        transaction: u16,
        explanation: FailureExplanation,
    ) -> ControllerProgress {
        self.authenticated = false;
        self.state = TransactionState::Refusing { transaction, explanation };
        ControllerProgress::Answer
    }

    fn fail_transaction(&mut self, transaction: u16, explanation: FailureExplanation) -> AuthMessage {
        self.authenticated = false;
        self.state = TransactionState::Over;
        AuthMessage {
            message: message::encode_failure(MessageType::FAILURE1, transaction, explanation),
            outcome: AuthOutcome::End(explanation),
        }
    }
}

impl TransactionState {
    /// T_ID, 0 where there is none.
    fn transaction_id(&self) -> u16 {
        match self {
            TransactionState::Idle | TransactionState::Over => 0,
            TransactionState::Publishing(transaction)
            | TransactionState::Challenging(transaction)
            | TransactionState::Asked(transaction)
            | TransactionState::Deriving(transaction, _)
            | TransactionState::Accepting(transaction, _)
            | TransactionState::Proving(transaction) => transaction.id,
            TransactionState::Refusing { transaction, .. } => *transaction,
        }
    }
}

impl Transaction {
    fn challenge_message(&self) -> Vec<u8> {
        let challenge = Challenge {
            hash: self.hash,
            group: self.group,
            sequence: self.sequence,
            challenge: self.challenge.as_slice(),
            public: &self.public,
        };
        challenge.encode(self.id)
    }

    fn dh_computation(&self, number: u32, peer: Option<Vec<u8>>) -> DhComputation {
        DhComputation {
            number,
            hash: self.hash,
            group: self.group,
            private: self.private.clone(),
            public: peer.is_none(),
            peer,
        }
    }
}

impl fmt::Debug for ControllerAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Controller({:?})", self.state())
    }
}
