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
use crate::key_interchange::{self, KeyError, KeyKind};

pub use derive::{GeneratedPsk, HkdfLabelFormat, RetainedPsk, TlsPsk};
pub use identity::{IdentityError, IdentityVersion, PskIdentity, PskKind};

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

impl ConfiguredPsk {
    /// Reads the interchange form (§3.6.1.5); white space around it is not counted.
    pub fn parse(text: &str) -> Result<ConfiguredPsk, KeyError> {
        let (transform, bytes) = key_interchange::parse_key_text(text, KeyKind::Tls)?;
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
        key_interchange::format_key_text(KeyKind::Tls, self.transform.map_or(0, Hash::id), &self.bytes)
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
