//! PSK identities (NVMe/TCP Transport 1.1 §3.6.1.3): `NVMe0R01 HOST SUBSYSTEM`, and in version 1 a digest of
//! the key behind that.
//!
//! Invariant: an [`PskIdentity`] prints as it was read, and no other text is read as it.

use core::fmt;

use super::CipherSuite;
use crate::{Nqn, name::NQN_LEN_MAX};

/// The version of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityVersion {
    /// Names only.
    Zero,
    /// With a digest of the key, so that a host may have several.
    One,
}

/// Where a PSK comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PskKind {
    /// An administrator configured it: `R`.
    Retained,
    /// In-band authentication produced it: `G`.
    Generated,
}

/// Whose key it is, for which subsystem and which suite. Not a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PskIdentity {
    /// Where the key comes from.
    pub kind: PskKind,
    /// The suite that it is for.
    pub suite: CipherSuite,
    /// The host.
    pub host: Nqn,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The key's digest in base64: version 1.
    pub(super) digest: Option<String>,
}

/// Why bytes are no identity of NVMe/TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityError {
    /// They are longer than any identity, or no UTF-8.
    Text,
    /// They do not begin with `NVMe`, a version of 0 or 1, `R` or `G`, and a hash of 01 or 02.
    Form,
    /// What follows is not two names, and in version 1 a digest, each behind one space.
    Names,
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "it is too long or no text",
            Self::Form => "it does not begin with NVMe0R01, NVMe0R02, NVMe1R01 or NVMe1R02 (or G for R)",
            Self::Names => "it does not hold the names of a host and a subsystem, and in version 1 a digest",
        })
    }
}

impl std::error::Error for IdentityError {}

/// `NVMe0R01`.
const FORM_LEN: usize = 8;
/// The longest digest: 48 bytes in base64.
const DIGEST_MAX: usize = 64;
/// The longest identity: form, two names, a digest, three spaces.
const IDENTITY_MAX: usize = FORM_LEN + 2 * NQN_LEN_MAX + DIGEST_MAX + 3;

impl PskIdentity {
    /// Reads what a host offers.
    pub fn parse(bytes: &[u8]) -> Result<PskIdentity, IdentityError> {
        if bytes.len() > IDENTITY_MAX {
            return Err(IdentityError::Text);
        }
        let text = core::str::from_utf8(bytes).map_err(|_| IdentityError::Text)?;
        let mut words = text.split(' ');
        let form = words.next().unwrap_or_default();
        let &[b'N', b'V', b'M', b'e', version, kind, b'0', id] = form.as_bytes() else {
            return Err(IdentityError::Form);
        };
        let kind = match kind {
            b'R' => PskKind::Retained,
            b'G' => PskKind::Generated,
            _ => return Err(IdentityError::Form),
        };
        let suite = id.checked_sub(b'0').and_then(CipherSuite::from_hash_id).ok_or(IdentityError::Form)?;
        let mut name = || words.next().and_then(|word| Nqn::parse(word).ok()).ok_or(IdentityError::Names);
        let (host, subsystem) = (name()?, name()?);
        let digest = words.next();
        let is_whole = words.next().is_none();
        let digest = match (version, digest) {
            (b'0', None) => None,
            (b'1', Some(digest)) if is_whole && is_digest(digest) => Some(digest.to_owned()),
            (b'0' | b'1', _) => return Err(IdentityError::Names),
            _ => return Err(IdentityError::Form),
        };
        Ok(PskIdentity { kind, suite, host, subsystem, digest })
    }

    /// Its version.
    pub fn version(&self) -> IdentityVersion {
        match self.digest {
            None => IdentityVersion::Zero,
            Some(_) => IdentityVersion::One,
        }
    }

    /// Whether its text can be read as it again: no name holds a space.
    pub(super) fn is_unambiguous(&self) -> bool {
        !self.host.as_str().contains(' ') && !self.subsystem.as_str().contains(' ')
    }
}

/// Whether it may be a digest: base64 of 32 or 48 bytes.
fn is_digest(text: &str) -> bool {
    matches!(text.len(), 44 | 64)
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='))
}

impl fmt::Display for PskIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            PskKind::Retained => 'R',
            PskKind::Generated => 'G',
        };
        let (version, hash) = (u8::from(self.digest.is_some()), self.suite.hash().id());
        write!(f, "NVMe{version}{kind}{hash:02} {} {}", self.host, self.subsystem)?;
        match &self.digest {
            None => Ok(()),
            Some(digest) => write!(f, " {digest}"),
        }
    }
}
