//! Secure channel concatenation (SC_C; NVMe Base 2.1 §8.3.4.3, §8.3.4.4.1, §8.3.4.5.9): an authentication that
//! generates a pre-shared key for TLS. The host then disconnects, and connects again over TLS with that key.
//!
//! Invariant: a PSK is generated only from a Diffie-Hellman exchange, and only where both sides have said so: SC_C is
//! part of what both responses are computed over.

use super::{DhGroup, DhchapPolicy, FailureExplanation, Hash};

/// Which PSK an authentication generates (SC_C).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concatenation {
    /// None (NOSC).
    #[default]
    None,
    /// The first one of a host, on an admin queue without TLS (NEWTLSPSK).
    NewPsk,
    /// One that takes the place of the PSK that the admin queue's TLS goes by (REPLACETLSPSK).
    ReplacePsk,
}

impl Concatenation {
    /// SC_C.
    pub(super) const fn id(self) -> u8 {
        match self {
            Concatenation::None => 0,
            Concatenation::NewPsk => 2,
            Concatenation::ReplacePsk => 3,
        }
    }

    /// The value of SC_C; 1 is of a draft.
    pub(super) const fn from_id(id: u8) -> Option<Concatenation> {
        match id {
            0 => Some(Concatenation::None),
            2 => Some(Concatenation::NewPsk),
            3 => Some(Concatenation::ReplacePsk),
            _ => None,
        }
    }

    /// Whether a PSK is generated.
    pub fn generates_psk(self) -> bool {
        self != Concatenation::None
    }
}

/// Which concatenation a controller takes part in on a queue (NVMe Base 2.1 figure 753).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConcatenationPolicy {
    /// None: an I/O queue, or there is no TLS, or the queue's TLS goes by a PSK that was configured.
    #[default]
    Refused,
    /// None, or a new PSK: an admin queue without TLS, where TLS may be used.
    Allowed,
    /// A new PSK: an admin queue without TLS, where TLS must be used.
    Required,
    /// None, or another PSK: an admin queue whose TLS goes by a generated one.
    Replacement,
}

impl ConcatenationPolicy {
    /// What SC_C asks for, if this takes part in it.
    pub(super) fn judge(self, id: u8) -> Result<Concatenation, FailureExplanation> {
        let asked = Concatenation::from_id(id).ok_or(FailureExplanation::CONCATENATION)?;
        let takes_part = match (self, asked) {
            (Self::Refused | Self::Allowed | Self::Replacement, Concatenation::None)
            | (Self::Allowed | Self::Required, Concatenation::NewPsk)
            | (Self::Replacement, Concatenation::ReplacePsk) => true,
            (Self::Required, Concatenation::None)
            | (Self::Refused | Self::Replacement, Concatenation::NewPsk)
            | (Self::Refused | Self::Allowed | Self::Required, Concatenation::ReplacePsk) => false,
        };
        if takes_part { Ok(asked) } else { Err(FailureExplanation::CONCATENATION) }
    }
}

impl DhchapPolicy {
    /// What of it can be used for a concatenation: a PSK needs a session key, so a group; and its hash is that of a
    /// cipher suite. Where nobody has said otherwise SHA-256 comes first: its suite is the one that every
    /// implementation has, and GnuTLS (tlshd of Linux) binds every PSK with SHA-256.
    pub(super) fn for_concatenation(&self, concatenation: Concatenation) -> DhchapPolicy {
        let mut policy = self.clone();
        if concatenation.generates_psk() {
            if policy.hashes == DhchapPolicy::default().hashes {
                policy.hashes.reverse();
            }
            policy.hashes.retain(|hash| *hash != Hash::Sha512);
            policy.groups.retain(|group| *group != DhGroup::Null);
        }
        policy
    }
}
