//! From a configured PSK to the key that TLS uses (NVMe/TCP Transport 1.1 §3.6.1.3; RFC 5869, RFC 8446 §7.1).

use core::fmt;

use zeroize::Zeroizing;

use super::identity::{IdentityVersion, PskIdentity, PskKind};
use super::{CipherSuite, ConfiguredPsk};
use crate::Nqn;
use crate::auth::{Hash, HashBytes, hmac};
use crate::key_interchange::encode_base64;

/// What is hashed behind the names of a digest.
const DIGEST_SUFFIX: &[u8] = b"NVMe-over-Fabrics";
const RETAINED_LABEL: &str = "tls13 HostNQN";
const TLS_LABEL: &str = "tls13 nvme-tls-psk";

/// How HKDF-Expand-Label's argument is laid out. Both are in use, and give different keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HkdfLabelFormat {
    /// As RFC 8446 §7.1 says: a length in network order, then label and context, each behind its length. The
    /// standard, SPDK, and libnvme from 1.16 on.
    #[default]
    Standard,
    /// As libnvme did before 1.16: the length in little-endian order, label and context without lengths. libnvme
    /// calls it `compat`.
    Compat,
}

impl HkdfLabelFormat {
    /// The argument of HKDF-Expand; `None`: a part is longer than its length field can say.
    fn expand_info(self, len: usize, label: &str, context: &str) -> Option<Vec<u8>> {
        let len = u16::try_from(len).ok()?;
        Some(match self {
            HkdfLabelFormat::Standard => {
                let lengths = [u8::try_from(label.len()).ok()?, u8::try_from(context.len()).ok()?];
                let [label_len, context_len] = lengths.map(|len| [len]);
                let parts: [&[u8]; 5] =
                    [&len.to_be_bytes(), &label_len, label.as_bytes(), &context_len, context.as_bytes()];
                parts.concat()
            }
            HkdfLabelFormat::Compat => {
                [&len.to_le_bytes()[..], label.as_bytes(), context.as_bytes()].concat()
            }
        })
    }

    /// HKDF-Expand-Label(HKDF-Extract(0, key), label, context, len).
    fn extract_and_expand(
        self,
        hash: Hash,
        key: &[u8],
        (label, context): (&str, &str),
        len: usize,
    ) -> Option<Zeroizing<Vec<u8>>> {
        let info = self.expand_info(len, label, context)?;
        // A key of zeroes and none are the same to HMAC (RFC 5869 §2.2, RFC 2104 §2).
        let prk = hmac(hash, &[], &[key]);
        let mut out = Zeroizing::new(Vec::with_capacity(len + hash.len()));
        let mut block: Option<HashBytes> = None;
        for counter in 1u8..=u8::MAX {
            let last = block.as_ref().map_or(&[][..], |block| block.as_slice());
            let next = hmac(hash, prk.as_slice(), &[last, &info, &[counter]]);
            out.extend_from_slice(next.as_slice());
            block = Some(next);
            if out.len() >= len {
                out.truncate(len);
                return Some(out);
            }
        }
        None
    }
}

/// What TLS PSKs of one host are derived from: a retained PSK or a generated one (§3.6.1.3).
#[derive(Clone)]
struct InputPsk {
    bytes: Zeroizing<Vec<u8>>,
    derivation: HkdfLabelFormat,
}

/// A PSK of one host that an administrator configured.
#[derive(Clone)]
pub struct RetainedPsk(InputPsk);

/// A PSK that a host and a controller have generated when they authenticated (NVMe Base 2.1 §8.3.4.5.9), as long as
/// the hash of its cipher suite.
#[derive(Clone)]
pub struct GeneratedPsk {
    input: InputPsk,
    suite: CipherSuite,
}

impl ConfiguredPsk {
    /// The retained PSK that it is for a host (§3.6.1.3).
    pub fn derive_retained(&self, host: &Nqn, derivation: HkdfLabelFormat) -> RetainedPsk {
        let bytes = self.transform.and_then(|hash| {
            // Never `None`: a name is at most 223 bytes long.
            derivation.extract_and_expand(
                hash,
                &self.bytes,
                (RETAINED_LABEL, host.as_str()),
                self.bytes.len(),
            )
        });
        RetainedPsk(InputPsk { bytes: bytes.unwrap_or_else(|| self.bytes.clone()), derivation })
    }
}

impl RetainedPsk {
    /// The identity under which the host offers it to a subsystem. `None`: a name holds a space, or the names are
    /// so long that no key can be derived (version 0 only).
    pub fn psk_identity(
        &self,
        version: IdentityVersion,
        suite: CipherSuite,
        host: &Nqn,
        subsystem: &Nqn,
    ) -> Option<PskIdentity> {
        let names = (host, subsystem);
        self.0.identity(PskKind::Retained, version, suite, names)
    }

    /// The key that TLS uses under an identity; `None`: the identity is of another key, or too long for one to be
    /// derived.
    pub fn tls_psk(&self, identity: &PskIdentity) -> Option<TlsPsk> {
        self.0.tls_psk(identity)
    }
}

impl GeneratedPsk {
    /// HMAC(KS, C1 ‖ C2); `None`: the hash is no suite's.
    pub(crate) fn generate(
        hash: Hash,
        session_key: &HashBytes,
        first: &[u8],
        second: &[u8],
    ) -> Option<GeneratedPsk> {
        let suite = CipherSuite::from_hash_id(hash.id())?;
        let bytes = hmac(hash, session_key.as_slice(), &[first, second]);
        let bytes = Zeroizing::new(bytes.as_slice().to_vec());
        Some(GeneratedPsk { input: InputPsk { bytes, derivation: HkdfLabelFormat::Standard }, suite })
    }

    /// The identity under which the host offers it to the subsystem: version 1. `None`: a name holds a space.
    pub fn identity(&self, host: &Nqn, subsystem: &Nqn) -> Option<PskIdentity> {
        self.input.identity(PskKind::Generated, IdentityVersion::One, self.suite, (host, subsystem))
    }

    /// The key that TLS uses under an identity; `None`: the identity is of another key.
    pub fn tls_psk(&self, identity: &PskIdentity) -> Option<TlsPsk> {
        (identity.kind == PskKind::Generated).then(|| self.input.tls_psk(identity)).flatten()
    }
}

impl InputPsk {
    fn identity(
        &self,
        kind: PskKind,
        version: IdentityVersion,
        suite: CipherSuite,
        (host, subsystem): (&Nqn, &Nqn),
    ) -> Option<PskIdentity> {
        let digest = match version {
            IdentityVersion::Zero => None,
            IdentityVersion::One => Some(self.identity_digest(suite, host, subsystem)),
        };
        let identity = PskIdentity { kind, suite, host: host.clone(), subsystem: subsystem.clone(), digest };
        (identity.is_unambiguous() && self.tls_psk(&identity).is_some()).then_some(identity)
    }

    /// The digest of version 1: HMAC(PSK, host, " ", subsystem, " NVMe-over-Fabrics") in base64.
    fn identity_digest(&self, suite: CipherSuite, host: &Nqn, subsystem: &Nqn) -> String {
        let (host, subsystem) = (host.as_str().as_bytes(), subsystem.as_str().as_bytes());
        let mac = hmac(suite.hash(), &self.bytes, &[host, b" ", subsystem, b" ", DIGEST_SUFFIX]);
        let mut text = String::new();
        encode_base64(mac.as_slice(), &mut text);
        text
    }

    fn tls_psk(&self, identity: &PskIdentity) -> Option<TlsPsk> {
        let suite = identity.suite;
        let context = match &identity.digest {
            None => identity.to_string(),
            Some(digest) => {
                if *digest != self.identity_digest(suite, &identity.host, &identity.subsystem) {
                    return None;
                }
                format!("{:02} {digest}", suite.hash().id())
            }
        };
        let hash = suite.hash();
        let bytes =
            self.derivation.extract_and_expand(hash, &self.bytes, (TLS_LABEL, &context), hash.len())?;
        Some(TlsPsk { suite, bytes })
    }
}

impl fmt::Debug for RetainedPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RetainedPsk(..)")
    }
}

impl fmt::Debug for GeneratedPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GeneratedPsk(..)")
    }
}

/// A key as TLS uses it: as long as its suite's hash.
#[derive(Clone)]
pub struct TlsPsk {
    suite: CipherSuite,
    bytes: Zeroizing<Vec<u8>>,
}

impl TlsPsk {
    /// The suite that it is for.
    pub fn suite(&self) -> CipherSuite {
        self.suite
    }

    /// Its bytes, for the handshake and nothing else.
    pub fn expose(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsPsk(..)")
    }
}
