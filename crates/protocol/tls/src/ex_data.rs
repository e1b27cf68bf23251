//! What a context and its handshakes keep in OpenSSL's `ex_data`: keys, and the identity that a handshake goes by.
//!
//! Invariant: an index is drawn once for the process, and only this crate reads what stands under it.

use std::sync::{Arc, OnceLock};

use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{Ssl, SslContext, SslRef};

use crate::psk::{Psk, PskLookup};

/// The longest identity that is noted for the log.
const NOTED_IDENTITY_LEN_MAX: usize = 600;

/// Which identity a server's handshake goes by.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfferedIdentity {
    /// The last that the client named.
    pub(crate) identity: Vec<u8>,
    /// Its key was found.
    pub(crate) is_known: bool,
}

pub(crate) struct ExDataIndices {
    pub(crate) lookup: Index<SslContext, Arc<dyn PskLookup>>,
    pub(crate) key: Index<SslContext, (Vec<u8>, Psk)>,
    offered: Index<Ssl, OfferedIdentity>,
}

/// Where OpenSSL keeps what is ours; drawn once.
pub(crate) fn ex_data_indices() -> Result<&'static ExDataIndices, ErrorStack> {
    static INDICES: OnceLock<ExDataIndices> = OnceLock::new();
    if let Some(known) = INDICES.get() {
        return Ok(known);
    }
    let drawn = ExDataIndices {
        lookup: SslContext::new_ex_index()?,
        key: SslContext::new_ex_index()?,
        offered: Ssl::new_ex_index()?,
    };
    Ok(INDICES.get_or_init(|| drawn))
}

/// The key of an identity that a client offers.
pub(crate) fn find_server_psk(ssl: &SslRef, identity: &[u8]) -> Option<Psk> {
    let lookup = ssl.ssl_context().ex_data(ex_data_indices().ok()?.lookup)?;
    lookup.find_psk(identity).filter(|psk| psk.suite_name().is_some())
}

/// Notes which identity a handshake goes by.
pub(crate) fn note_identity(ssl: &mut SslRef, identity: &[u8], is_known: bool) {
    let Ok(indices) = ex_data_indices() else { return };
    let identity = identity.get(..NOTED_IDENTITY_LEN_MAX).unwrap_or(identity).to_vec();
    ssl.set_ex_data(indices.offered, OfferedIdentity { identity, is_known });
}

/// What a client offers: identity and key.
pub(crate) fn offered_psk(ssl: &SslRef) -> Option<(&[u8], &Psk)> {
    let (identity, psk) = ssl.ssl_context().ex_data(ex_data_indices().ok()?.key)?;
    Some((identity, psk))
}

/// Which identity a handshake goes by.
pub(crate) fn offered_identity(ssl: &SslRef) -> Option<&OfferedIdentity> {
    ssl.ex_data(ex_data_indices().ok()?.offered)
}
