//! Long computations: powers modulo a large prime, some milliseconds each. They are values, so that they can
//! run on another thread than the one that moves data.
//!
//! Invariant: private exponents and results are wiped when a value is dropped, and no `Debug` shows them.

use core::fmt;

use zeroize::Zeroizing;

use super::dh_group::{DhGroup, PRIVATE_EXPONENT_LEN};
use super::response::{Hash, HashBytes, session_key};

/// A private exponent.
pub(super) type PrivateExponent = Zeroizing<[u8; PRIVATE_EXPONENT_LEN]>;

/// Powers to be computed: [`DhComputation::run`], anywhere, then the outcome goes back to who gave it.
#[derive(Clone)]
pub struct DhComputation {
    /// Names the transaction that it is for, among those of its giver.
    pub(super) number: u32,
    pub(super) hash: Hash,
    /// Not [`DhGroup::Null`].
    pub(super) group: DhGroup,
    pub(super) private: PrivateExponent,
    /// Whether the own public value is wanted.
    pub(super) public: bool,
    /// The peer's public value, checked, if the session key is wanted.
    pub(super) peer: Option<Vec<u8>>,
}

impl DhComputation {
    /// Computes. It depends on nothing else and takes up to some tens of milliseconds.
    #[must_use]
    pub fn run(self) -> DhResult {
        let public = if self.public { self.group.public_value(&self.private) } else { Vec::new() };
        let session_key = self
            .peer
            .as_ref()
            .map(|peer| session_key(self.hash, &self.group.shared_secret(peer, &self.private)));
        DhResult { number: self.number, public, session_key }
    }
}

impl fmt::Debug for DhComputation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DhComputation({:?}, ..)", self.group)
    }
}

/// What came of [`DhComputation`].
#[derive(Clone)]
pub struct DhResult {
    pub(super) number: u32,
    /// The own public value; empty if it was not wanted.
    pub(super) public: Vec<u8>,
    pub(super) session_key: Option<HashBytes>,
}

impl fmt::Debug for DhResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DhResult(..)")
    }
}
