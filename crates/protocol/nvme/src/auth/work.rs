//! What takes long: powers modulo a large prime, some milliseconds each. As a value, so that it can
//! be done on another thread than the one that moves data.
//!
//! Invariant: private exponents and what is computed with them are wiped when a value goes, and no
//! `Debug` shows them.

use core::fmt;

use zeroize::Zeroizing;

use super::group::{Group, PRIVATE_LEN};
use super::response::{Bytes, Hash, session_key};

/// A private exponent.
pub(super) type Private = Zeroizing<[u8; PRIVATE_LEN]>;

/// Powers to be computed: [`Work::run`], anywhere, then the outcome goes back to who gave it.
#[derive(Clone)]
pub struct Work {
    /// Names the transaction that it is for, among those of its giver.
    pub(super) number: u32,
    pub(super) hash: Hash,
    /// Not [`Group::Null`].
    pub(super) group: Group,
    pub(super) private: Private,
    /// Whether the own public value is wanted.
    pub(super) public: bool,
    /// The peer's public value, checked, if the session key is wanted.
    pub(super) peer: Option<Vec<u8>>,
}

impl Work {
    /// Computes. It depends on nothing else and takes up to some tens of milliseconds.
    #[must_use]
    pub fn run(self) -> Outcome {
        let public = if self.public { self.group.public(&self.private) } else { Vec::new() };
        let session_key =
            self.peer.as_ref().map(|peer| session_key(self.hash, &self.group.shared(peer, &self.private)));
        Outcome { number: self.number, public, session_key }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Work({:?}, ..)", self.group)
    }
}

/// What came of [`Work`].
#[derive(Clone)]
pub struct Outcome {
    pub(super) number: u32,
    /// The own public value; empty if it was not wanted.
    pub(super) public: Vec<u8>,
    pub(super) session_key: Option<Bytes>,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outcome(..)")
    }
}
