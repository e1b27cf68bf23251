//! Pre-shared keys, as a handshake uses them.

use std::fmt;

use zeroize::Zeroizing;

/// A key and the cipher suite that it is for.
#[derive(Clone)]
pub struct Psk {
    suite: [u8; 2],
    key: Zeroizing<Vec<u8>>,
}

impl Psk {
    /// A key for the suite of this number (RFC 8446 §B.4). A key that is no suite's is refused when it is used.
    pub fn new(suite: [u8; 2], key: &[u8]) -> Psk {
        Psk { suite, key: Zeroizing::new(key.to_vec()) }
    }

    /// The suite's number.
    pub fn suite(&self) -> [u8; 2] {
        self.suite
    }

    /// The suite's name, if it is one of the two that are used.
    pub(crate) fn suite_name(&self) -> Option<&'static str> {
        match self.suite {
            [0x13, 0x01] => Some("TLS_AES_128_GCM_SHA256"),
            [0x13, 0x02] => Some("TLS_AES_256_GCM_SHA384"),
            _ => None,
        }
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }
}

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psk({:02x?}, ..)", self.suite)
    }
}

/// Where a server finds the key of an identity that a client offers.
pub trait PskLookup: Send + Sync {
    /// The key. The identity is whatever the client says; it may be asked for more than once.
    fn find_psk(&self, identity: &[u8]) -> Option<Psk>;
}
