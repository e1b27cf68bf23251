//! Parsing and encoding of the messages (NVMe Base §8.3.5.3 to §8.3.5.5).
//!
//! Invariant: parsed values lie within the received bytes, every length in them has been compared with the
//! message's own, and every hash, group or value can be used in a computation.

use super::dh_group::{DhGroup, PUBLIC_VALUE_LEN_MAX};
use super::response::{HASH_LEN_MAX, Hash, HashBytes};
use super::{Concatenation, ConcatenationPolicy, Credentials, DhchapPolicy};

/// The longest message: a reply with the longest hash and the longest value, in bytes.
pub const MESSAGE_LEN_MAX: usize = HEADER_LEN + 2 * HASH_LEN_MAX + PUBLIC_VALUE_LEN_MAX;
/// Bytes of a failure, the shortest message.
pub(super) const FAILURE_LEN: usize = 8;
/// Bytes in front of the values of a challenge, a reply or a success.
const HEADER_LEN: usize = 16;
/// Bytes in front of the protocol descriptors of a negotiation.
const NEGOTIATE_LEN: usize = 8;
/// Bytes of a protocol descriptor.
const DESCRIPTOR_LEN: usize = 64;
/// How many identifiers of hashes, and of groups, a descriptor has room for.
const IDS_MAX: usize = 30;
/// A descriptor of DH-HMAC-CHAP.
const DH_HMAC_CHAP: u8 = 1;

/// Why an authentication failed, as the other side is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureExplanation(pub u8);

impl FailureExplanation {
    /// The response was wrong, or there is no key to give one with.
    pub const FAILED: FailureExplanation = FailureExplanation(1);
    /// No protocol that is offered can be used.
    pub const PROTOCOL: FailureExplanation = FailureExplanation(2);
    /// A secure channel is wanted on one side only.
    pub const CONCATENATION: FailureExplanation = FailureExplanation(3);
    /// No hash that is offered can be used.
    pub const HASH: FailureExplanation = FailureExplanation(4);
    /// No group that is offered can be used.
    pub const GROUP: FailureExplanation = FailureExplanation(5);
    /// A message of a wrong length or with a wrong value.
    pub const PAYLOAD: FailureExplanation = FailureExplanation(6);
    /// Not the message that was to come.
    pub const MESSAGE: FailureExplanation = FailureExplanation(7);
}

impl core::fmt::Display for FailureExplanation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::FAILED => f.write_str("authentication failed: the keys differ, or one is missing"),
            Self::PROTOCOL => f.write_str("no authentication protocol in common"),
            Self::CONCATENATION => f.write_str("only one side requires a secure channel"),
            Self::HASH => f.write_str("no hash in common"),
            Self::GROUP => f.write_str("no Diffie-Hellman group in common"),
            Self::PAYLOAD => f.write_str("an incorrect payload"),
            Self::MESSAGE => f.write_str("an incorrect protocol message"),
            Self(other) => write!(f, "explanation {other:02x}h"),
        }
    }
}

/// AUTH_TYPE and AUTH_ID of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageType(pub u8, pub u8);

impl MessageType {
    pub(super) const NEGOTIATE: MessageType = MessageType(0, 0x00);
    pub(super) const CHALLENGE: MessageType = MessageType(1, 0x01);
    pub(super) const REPLY: MessageType = MessageType(1, 0x02);
    pub(super) const SUCCESS1: MessageType = MessageType(1, 0x03);
    pub(super) const SUCCESS2: MessageType = MessageType(1, 0x04);
    pub(super) const FAILURE2: MessageType = MessageType(0, 0xf0);
    pub(super) const FAILURE1: MessageType = MessageType(0, 0xf1);
}

/// What every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageHeader {
    pub kind: MessageType,
    /// T_ID.
    pub transaction: u16,
}

impl MessageHeader {
    pub(super) fn parse(message: &[u8]) -> Result<MessageHeader, FailureExplanation> {
        match message.first_chunk::<FAILURE_LEN>() {
            Some([kind, id, _, _, low, high, _, _]) => Ok(MessageHeader {
                kind: MessageType(*kind, *id),
                transaction: u16::from_le_bytes([*low, *high]),
            }),
            None => Err(FailureExplanation::PAYLOAD),
        }
    }

    /// The first eight bytes of a message; two of them belong to its kind.
    fn encode_start(self, own: [u8; 2]) -> Vec<u8> {
        let ([low, high], [first, second]) = (self.transaction.to_le_bytes(), own);
        vec![self.kind.0, self.kind.1, 0, 0, low, high, first, second]
    }
}

/// AUTH_Negotiate: what is to be concatenated, and the hash and the group that are most wanted here of those that
/// are offered.
pub(super) fn choose_from_negotiate(
    message: &[u8],
    policy: &DhchapPolicy,
    concatenation: ConcatenationPolicy,
) -> Result<(Concatenation, Hash, DhGroup), FailureExplanation> {
    let (header, descriptors) =
        message.split_first_chunk::<NEGOTIATE_LEN>().ok_or(FailureExplanation::PAYLOAD)?;
    let (asked, count) = (header[6], usize::from(header[7]));
    if count == 0 || descriptors.len() != count * DESCRIPTOR_LEN {
        return Err(FailureExplanation::PAYLOAD);
    }
    let concatenation = concatenation.judge(asked)?;
    let policy = policy.for_concatenation(concatenation);
    let (descriptors, _) = descriptors.as_chunks::<DESCRIPTOR_LEN>();
    let ours = descriptors.iter().find(|descriptor| descriptor[0] == DH_HMAC_CHAP);
    let ours = ours.ok_or(FailureExplanation::PROTOCOL)?;
    let (hashes, groups) = (usize::from(ours[2]), usize::from(ours[3]));
    if hashes == 0 || hashes > IDS_MAX || groups == 0 || groups > IDS_MAX {
        return Err(FailureExplanation::PAYLOAD);
    }
    let hashes = ours[4..34].get(..hashes).ok_or(FailureExplanation::PAYLOAD)?;
    let groups = ours[34..].get(..groups).ok_or(FailureExplanation::PAYLOAD)?;
    let hash = policy.hashes.iter().find(|hash| hashes.contains(&hash.id()));
    let group = policy.groups.iter().find(|group| groups.contains(&group.id()));
    Ok((concatenation, *hash.ok_or(FailureExplanation::HASH)?, *group.ok_or(FailureExplanation::GROUP)?))
}

/// AUTH_Negotiate, with all that a policy allows.
pub(super) fn encode_negotiate(
    transaction: u16,
    policy: &DhchapPolicy,
    concatenation: Concatenation,
) -> Vec<u8> {
    // One descriptor.
    let own = [concatenation.id(), 1];
    let mut message = MessageHeader { kind: MessageType::NEGOTIATE, transaction }.encode_start(own);
    let (hashes, groups) = (policy.hashes.len().min(IDS_MAX), policy.groups.len().min(IDS_MAX));
    message.extend_from_slice(&[DH_HMAC_CHAP, 0, hashes as u8, groups as u8]);
    message.extend(policy.hashes.iter().take(IDS_MAX).map(|hash| hash.id()));
    message.resize(NEGOTIATE_LEN + DESCRIPTOR_LEN - IDS_MAX, 0);
    message.extend(policy.groups.iter().take(IDS_MAX).map(|group| group.id()));
    message.resize(NEGOTIATE_LEN + DESCRIPTOR_LEN, 0);
    message
}

/// The values behind a header: as many bytes as each is to have, and nothing is left.
fn split_values<const N: usize>(message: &[u8], lens: [usize; N]) -> Result<[&[u8]; N], FailureExplanation> {
    let mut rest = message.get(HEADER_LEN..).ok_or(FailureExplanation::PAYLOAD)?;
    let mut values = [&[][..]; N];
    for (value, len) in values.iter_mut().zip(lens) {
        (*value, rest) = rest.split_at_checked(len).ok_or(FailureExplanation::PAYLOAD)?;
    }
    if rest.is_empty() { Ok(values) } else { Err(FailureExplanation::PAYLOAD) }
}

/// What is in front of the values.
fn values_header(message: &[u8]) -> Result<&[u8; HEADER_LEN], FailureExplanation> {
    message.first_chunk().ok_or(FailureExplanation::PAYLOAD)
}

/// DHVLEN of a challenge or a reply.
fn public_len(header: &[u8; HEADER_LEN]) -> usize {
    usize::from(u16::from_le_bytes([header[10], header[11]]))
}

/// SEQNUM of a challenge or a reply.
fn sequence_number(header: &[u8; HEADER_LEN]) -> u32 {
    u32::from_le_bytes([header[12], header[13], header[14], header[15]])
}

/// The second half of a header of a challenge or a reply.
fn encode_header_end(own: [u8; 2], public: &[u8], sequence: u32) -> [u8; 8] {
    let [low, high] = (public.len() as u16).to_le_bytes();
    let [a, b, c, d] = sequence.to_le_bytes();
    [own[0], own[1], low, high, a, b, c, d]
}

/// DH-HMAC-CHAP_Challenge.
#[derive(Clone, Copy)]
pub(super) struct Challenge<'a> {
    pub hash: Hash,
    pub group: DhGroup,
    /// S1.
    pub sequence: u32,
    /// C1.
    pub challenge: &'a [u8],
    /// The controller's public value; empty without a group.
    pub public: &'a [u8],
}

impl<'a> Challenge<'a> {
    /// Reads one that keeps to what the host offered.
    pub(super) fn parse(
        message: &'a [u8],
        offered: &DhchapPolicy,
    ) -> Result<Challenge<'a>, FailureExplanation> {
        let header = values_header(message)?;
        let hash = Hash::from_id(header[8]).filter(|hash| offered.hashes.contains(hash));
        let hash = hash.ok_or(FailureExplanation::HASH)?;
        let group = DhGroup::from_id(header[9]).filter(|group| offered.groups.contains(group));
        let group = group.ok_or(FailureExplanation::GROUP)?;
        if usize::from(header[6]) != hash.len() {
            return Err(FailureExplanation::HASH);
        }
        // The room may have been longer than the message.
        let end = HEADER_LEN + hash.len() + public_len(header);
        let message = message.get(..end).ok_or(FailureExplanation::PAYLOAD)?;
        let [challenge, public] = split_values(message, [hash.len(), public_len(header)])?;
        if !is_valid_public_value(group, public) {
            return Err(FailureExplanation::PAYLOAD);
        }
        Ok(Challenge { hash, group, sequence: sequence_number(header), challenge, public })
    }

    pub(super) fn encode(&self, transaction: u16) -> Vec<u8> {
        let mut message = MessageHeader { kind: MessageType::CHALLENGE, transaction }
            .encode_start([self.hash.len() as u8, 0]);
        let ids = [self.hash.id(), self.group.id()];
        message.extend_from_slice(&encode_header_end(ids, self.public, self.sequence));
        message.extend_from_slice(self.challenge);
        message.extend_from_slice(self.public);
        message
    }
}

/// Whether a public value is one that the group takes, or is left out where there is no group.
fn is_valid_public_value(group: DhGroup, public: &[u8]) -> bool {
    if group == DhGroup::Null { public.is_empty() } else { group.is_valid_public(public) }
}

/// DH-HMAC-CHAP_Reply.
#[derive(Clone, Copy)]
pub(super) struct Reply<'a> {
    /// R1.
    pub response: &'a [u8],
    /// C2 and S2. S2 is 0 if C2 is for a generated PSK only; else the host requests authentication of the controller.
    pub challenge: Option<(&'a [u8], u32)>,
    /// The host's public value; empty without a group.
    pub public: &'a [u8],
}

impl<'a> Reply<'a> {
    pub(super) fn parse(
        message: &'a [u8],
        concatenation: Concatenation,
        (hash, group): (Hash, DhGroup),
    ) -> Result<Reply<'a>, FailureExplanation> {
        let header = values_header(message)?;
        if usize::from(header[6]) != hash.len() {
            return Err(FailureExplanation::PAYLOAD);
        }
        let [response, challenge, public] =
            split_values(message, [hash.len(), hash.len(), public_len(header)])?;
        if !is_valid_public_value(group, public) {
            return Err(FailureExplanation::PAYLOAD);
        }
        let challenge = match (header[8], sequence_number(header)) {
            // Without a challenge the sequence number means nothing; Linux sends one all the same.
            (0, _) if !concatenation.generates_psk() => None,
            (1, sequence) if sequence != 0 || concatenation.generates_psk() => Some((challenge, sequence)),
            // No challenge where a PSK depends on it, one for a PSK that nobody asked for, or a value that there is
            // not.
            _ => return Err(FailureExplanation::PAYLOAD),
        };
        Ok(Reply { response, challenge, public })
    }

    pub(super) fn encode(&self, transaction: u16) -> Vec<u8> {
        let mut message = MessageHeader { kind: MessageType::REPLY, transaction }
            .encode_start([self.response.len() as u8, 0]);
        let (valid, sequence) = self.challenge.map_or((0, 0), |(_, sequence)| (1, sequence));
        message.extend_from_slice(&encode_header_end([valid, 0], self.public, sequence));
        message.extend_from_slice(self.response);
        match self.challenge {
            Some((challenge, _)) => message.extend_from_slice(challenge),
            None => message.resize(message.len() + self.response.len(), 0),
        }
        message.extend_from_slice(self.public);
        message
    }
}

/// DH-HMAC-CHAP_Success1, with R2 where the host asked for it.
pub(super) fn encode_success1(transaction: u16, hash: Hash, response: Option<&HashBytes>) -> Vec<u8> {
    let mut message =
        MessageHeader { kind: MessageType::SUCCESS1, transaction }.encode_start([hash.len() as u8, 0]);
    message.extend_from_slice(&[response.is_some().into(), 0, 0, 0, 0, 0, 0, 0]);
    if let Some(response) = response {
        message.extend_from_slice(response.as_slice());
    }
    message
}

/// R2 of a Success1; `None` if there is none in it.
pub(super) fn parse_success1(message: &[u8], hash: Hash) -> Result<Option<&[u8]>, FailureExplanation> {
    let header = values_header(message)?;
    if usize::from(header[6]) != hash.len() {
        return Err(FailureExplanation::HASH);
    }
    match header[8] {
        0 => Ok(None),
        1 => message.get(HEADER_LEN..HEADER_LEN + hash.len()).map(Some).ok_or(FailureExplanation::PAYLOAD),
        _ => Err(FailureExplanation::PAYLOAD),
    }
}

/// DH-HMAC-CHAP_Success2.
pub(super) fn encode_success2(transaction: u16) -> Vec<u8> {
    let mut message = MessageHeader { kind: MessageType::SUCCESS2, transaction }.encode_start([0; 2]);
    message.resize(HEADER_LEN, 0);
    message
}

/// Whether a Success2 is as long as one is.
pub(super) fn is_valid_success2(message: &[u8]) -> bool {
    message.len() == HEADER_LEN
}

/// AUTH_Failure1 or AUTH_Failure2.
pub(super) fn encode_failure(
    kind: MessageType,
    transaction: u16,
    explanation: FailureExplanation,
) -> Vec<u8> {
    // The one reason there is: authentication failed.
    MessageHeader { kind, transaction }.encode_start([1, explanation.0])
}

/// What a failure explains.
pub(super) fn parse_failure(message: &[u8]) -> FailureExplanation {
    FailureExplanation(message.get(7).copied().unwrap_or(0))
}

impl Credentials {
    /// The question that a challenge asks.
    pub(super) fn response_input<'a>(
        &'a self,
        hash: Hash,
        (challenge, sequence): (&'a [u8], u32),
        session_key: Option<&'a HashBytes>,
        (transaction, concatenation): (u16, Concatenation),
    ) -> super::response::ResponseInput<'a> {
        super::response::ResponseInput {
            hash,
            challenge,
            session_key,
            sequence,
            transaction,
            concatenation,
            host_nqn: &self.host_nqn,
            subsystem_nqn: &self.subsystem_nqn,
        }
    }
}
