//! Hashes and responses (NVMe Base §8.3.5.5.4 and §8.3.5.5.5).
//!
//! A response is HMAC(key, Ca ‖ S ‖ T_ID ‖ SC_C ‖ role ‖ own NQN ‖ 0 ‖ the other's NQN), where Ca is
//! the challenge C, or with Diffie-Hellman HMAC(H(shared value), C).

use core::fmt;

use super::Concatenation;
use hmac::{Hmac, KeyInit, Mac};
use sha2::digest::Digest as _;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Longest hash, in bytes.
pub(super) const HASH_LEN_MAX: usize = 64;

/// A hash that responses can be computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hash::Sha256 => "sha256",
            Hash::Sha384 => "sha384",
            Hash::Sha512 => "sha512",
        })
    }
}

impl Hash {
    /// The hash of an identifier on the wire.
    pub const fn from_id(id: u8) -> Option<Hash> {
        match id {
            1 => Some(Hash::Sha256),
            2 => Some(Hash::Sha384),
            3 => Some(Hash::Sha512),
            _ => None,
        }
    }

    /// Its identifier on the wire.
    pub const fn id(self) -> u8 {
        match self {
            Hash::Sha256 => 1,
            Hash::Sha384 => 2,
            Hash::Sha512 => 3,
        }
    }

    /// Bytes that it gives.
    #[allow(clippy::len_without_is_empty)] // A hash is never empty.
    pub const fn len(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }
}

/// What a hash gives, or a challenge, which is as long: 32 to 64 bytes, wiped when it goes.
#[derive(Clone)]
pub(crate) struct HashBytes {
    len: usize,
    bytes: Zeroizing<[u8; HASH_LEN_MAX]>,
}

impl HashBytes {
    /// Takes at most 64 bytes over.
    pub(super) fn new(slice: &[u8]) -> HashBytes {
        let mut bytes = Zeroizing::new([0; HASH_LEN_MAX]);
        bytes.iter_mut().zip(slice).for_each(|(to, from)| *to = *from);
        HashBytes { len: slice.len().min(HASH_LEN_MAX), bytes }
    }

    /// So many unpredictable bytes, at most 64.
    pub(super) fn random(len: usize, fill: super::FillRandom<'_>) -> HashBytes {
        let (len, mut bytes) = (len.min(HASH_LEN_MAX), Zeroizing::new([0; HASH_LEN_MAX]));
        fill(bytes.split_at_mut(len).0);
        HashBytes { len, bytes }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.prefix(self.len)
    }

    /// The first so many bytes; there are as many as the longest hash has.
    pub(super) fn prefix(&self, len: usize) -> &[u8] {
        self.bytes.get(..len).unwrap_or(&*self.bytes)
    }

    /// Compares in constant time; only a difference in length shows.
    pub(super) fn constant_time_eq(&self, other: &[u8]) -> bool {
        self.as_slice().ct_eq(other).into()
    }
}

impl fmt::Debug for HashBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashBytes(..)")
    }
}

/// HMAC over parts (RFC 2104).
pub(crate) fn hmac(hash: Hash, key: &[u8], parts: &[&[u8]]) -> HashBytes {
    match hash {
        Hash::Sha256 => hmac_with::<Hmac<sha2::Sha256>>(key, parts),
        Hash::Sha384 => hmac_with::<Hmac<sha2::Sha384>>(key, parts),
        Hash::Sha512 => hmac_with::<Hmac<sha2::Sha512>>(key, parts),
    }
}

#[expect(clippy::unreachable, reason = "HMAC takes keys of any length (RFC 2104)")]
fn hmac_with<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> HashBytes {
    let Ok(mut mac) = <M as KeyInit>::new_from_slice(key) else {
        unreachable!("HMAC takes keys of any length")
    };
    for part in parts {
        mac.update(part);
    }
    HashBytes::new(&mac.finalize().into_bytes())
}

/// The session key of a value that both sides have: its hash.
pub(super) fn session_key(hash: Hash, shared: &[u8]) -> HashBytes {
    match hash {
        Hash::Sha256 => HashBytes::new(&sha2::Sha256::digest(shared)),
        Hash::Sha384 => HashBytes::new(&sha2::Sha384::digest(shared)),
        Hash::Sha512 => HashBytes::new(&sha2::Sha512::digest(shared)),
    }
}

/// What a response answers.
#[derive(Clone, Copy)]
pub(super) struct ResponseInput<'a> {
    pub hash: Hash,
    pub challenge: &'a [u8],
    /// KS, where there is a group.
    pub session_key: Option<&'a HashBytes>,
    pub sequence: u32,
    pub transaction: u16,
    pub concatenation: Concatenation,
    pub host_nqn: &'a str,
    pub subsystem_nqn: &'a str,
}

impl ResponseInput<'_> {
    /// R1: what the host answers.
    pub(super) fn host_response(&self, key: &[u8]) -> HashBytes {
        self.compute_response(key, b"HostHost", self.host_nqn, self.subsystem_nqn)
    }

    /// R2: what the controller answers.
    pub(super) fn controller_response(&self, key: &[u8]) -> HashBytes {
        self.compute_response(key, b"Controller", self.subsystem_nqn, self.host_nqn)
    }

    fn compute_response(&self, key: &[u8], role: &[u8], own: &str, other: &str) -> HashBytes {
        let challenge = match self.session_key {
            None => HashBytes::new(self.challenge),
            Some(session) => hmac(self.hash, session.as_slice(), &[self.challenge]),
        };
        let parts: [&[u8]; 8] = [
            challenge.as_slice(),
            &self.sequence.to_le_bytes(),
            &self.transaction.to_le_bytes(),
            &[self.concatenation.id()],
            role,
            own.as_bytes(),
            &[0],
            other.as_bytes(),
        ];
        hmac(self.hash, key, &parts)
    }
}
