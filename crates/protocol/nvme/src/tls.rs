//! Pre-shared keys of TLS 1.3 for NVMe/TCP (NVMe/TCP Transport 1.1 §3.6.1): configured keys as text, what is
//! derived from them, and the identities under which a host offers them.
//!
//! A *configured* PSK is what an administrator passes on, as `NVMeTLSkey-1:hh:BASE64:`. It becomes a *retained*
//! PSK of one host, and that a *TLS* PSK of one identity, which names the host, the subsystem and the cipher
//! suite.
//!
//! Invariant: no error and no `Debug` shows a key or a part of it, and memory that held one is wiped.

mod derive;
mod identity;

use core::fmt;

use zeroize::Zeroizing;

use crate::auth::{FillRandom, Hash};
use crate::key_interchange::{self, KeyTextError};

pub use derive::{GeneratedPsk, HkdfLabelFormat, RetainedPsk, TlsPsk};
pub use identity::{IdentityError, IdentityVersion, PskIdentity, PskKind};

const PREFIX: &str = "NVMeTLSkey-1:";

/// A cipher suite of TLS 1.3 that NVMe/TCP uses (§3.6.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CipherSuite {
    /// TLS_AES_128_GCM_SHA256, which every implementation has.
    Aes128GcmSha256,
    /// TLS_AES_256_GCM_SHA384.
    Aes256GcmSha384,
}

impl CipherSuite {
    /// Both, the stronger first.
    pub const ALL: [CipherSuite; 2] = [CipherSuite::Aes256GcmSha384, CipherSuite::Aes128GcmSha256];

    /// Its hash, which also derives the keys that are used with it.
    pub const fn hash(self) -> Hash {
        match self {
            CipherSuite::Aes128GcmSha256 => Hash::Sha256,
            CipherSuite::Aes256GcmSha384 => Hash::Sha384,
        }
    }

    /// Its name in RFC 8446.
    pub const fn name(self) -> &'static str {
        match self {
            CipherSuite::Aes128GcmSha256 => "TLS_AES_128_GCM_SHA256",
            CipherSuite::Aes256GcmSha384 => "TLS_AES_256_GCM_SHA384",
        }
    }

    /// Its number in RFC 8446 §B.4.
    pub const fn number(self) -> [u8; 2] {
        match self {
            CipherSuite::Aes128GcmSha256 => [0x13, 0x01],
            CipherSuite::Aes256GcmSha384 => [0x13, 0x02],
        }
    }

    /// The suite whose hash has this identifier: 1 or 2.
    const fn from_hash_id(id: u8) -> Option<CipherSuite> {
        match id {
            1 => Some(CipherSuite::Aes128GcmSha256),
            2 => Some(CipherSuite::Aes256GcmSha384),
            _ => None,
        }
    }
}

/// A configured PSK: 32 or 48 bytes, and the hash that makes it a retained PSK.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfiguredPsk {
    transform: Option<Hash>,
    bytes: Zeroizing<Vec<u8>>,
}

/// Why a text is no configured PSK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfiguredPskError {
    /// It does not begin with `NVMeTLSkey-1:`.
    Prefix,
    /// The two digits behind that are not 00, 01 or 02.
    Transform,
    /// The last character is no colon, or one is missing.
    Colon,
    /// What is between the colons is no base64.
    Base64,
    /// The key itself has this many bytes, and not 32 or 48.
    Length(usize),
    /// The checksum is wrong: a character was mistyped or lost.
    Checksum,
}

impl fmt::Display for ConfiguredPskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix => f.write_str("a key of TLS begins with `NVMeTLSkey-1:`"),
            Self::Transform => f.write_str("`NVMeTLSkey-1:` must be followed by 00, 01 or 02 and a colon"),
            Self::Colon => f.write_str("a key of TLS ends with a colon"),
            Self::Base64 => f.write_str("the part between the last two colons is no base64"),
            Self::Length(len) => write!(f, "the key has {len} bytes, and may have 32 or 48"),
            Self::Checksum => {
                f.write_str("the key's checksum is wrong: a character was mistyped or lost; copy it again")
            }
        }
    }
}

impl std::error::Error for ConfiguredPskError {}

impl From<KeyTextError> for ConfiguredPskError {
    fn from(flaw: KeyTextError) -> Self {
        match flaw {
            KeyTextError::Prefix => Self::Prefix,
            KeyTextError::Transform => Self::Transform,
            KeyTextError::Colon => Self::Colon,
            KeyTextError::Base64 => Self::Base64,
            KeyTextError::Length(len) => Self::Length(len),
            KeyTextError::Checksum => Self::Checksum,
        }
    }
}

impl ConfiguredPsk {
    /// Reads the interchange form (§3.6.1.5); white space around it is not counted.
    pub fn parse(text: &str) -> Result<ConfiguredPsk, ConfiguredPskError> {
        let (transform, bytes) = key_interchange::parse_key_text(text, PREFIX, 2, &[32, 48])?;
        Ok(ConfiguredPsk { transform: Hash::from_id(transform), bytes })
    }

    /// Draws a key for a suite, as long as the suite's hash; `transforms`: it becomes a retained PSK by that hash,
    /// else it is used as one.
    pub fn generate(suite: CipherSuite, transforms: bool, fill: FillRandom<'_>) -> ConfiguredPsk {
        let mut bytes = Zeroizing::new(vec![0; suite.hash().len()]);
        fill(&mut bytes);
        ConfiguredPsk { transform: transforms.then_some(suite.hash()), bytes }
    }

    /// The interchange form: to be kept as secret as the key.
    pub fn to_text(&self) -> Zeroizing<String> {
        key_interchange::format_key_text(PREFIX, self.transform.map_or(0, Hash::id), &self.bytes)
    }

    /// The hash that makes it a retained PSK; `None`: it is one.
    pub fn transform(&self) -> Option<Hash> {
        self.transform
    }

    /// Its length in bytes: 32 or 48.
    #[allow(clippy::len_without_is_empty)] // A key is never empty.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The suite that a host uses it with if nothing else is said: that of the key's hash, else that whose hash is
    /// as long as the key.
    pub fn default_suite(&self) -> CipherSuite {
        match (self.transform, self.bytes.len()) {
            (Some(Hash::Sha384), _) | (None, 48) => CipherSuite::Aes256GcmSha384,
            _ => CipherSuite::Aes128GcmSha256,
        }
    }
}

impl fmt::Debug for ConfiguredPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfiguredPsk(..)")
    }
}

#[cfg(test)]
mod tests;
