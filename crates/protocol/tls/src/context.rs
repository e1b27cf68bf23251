//! What handshakes of one side share: versions, suites, keys.

use std::fmt;
use std::sync::Arc;

use openssl::error::ErrorStack;
use openssl::ssl::{
    ClientHelloResponse, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslRef,
    SslSessionCacheMode, SslVerifyMode, SslVersion,
};

use crate::ex_data::{ex_data_indices, find_server_psk};
use crate::fault::ContextError;
use crate::openssl_psk;
use crate::psk::{Psk, PskLookup};

/// Both suites, the stronger first.
const SUITES: &str = "TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256";
/// For servers: which keys there are.
#[derive(Clone)]
pub struct ServerContext(pub(crate) SslContext);

/// For clients: one key and the identity that it is offered under.
#[derive(Clone)]
pub struct ClientContext(pub(crate) SslContext);

/// What both sides have in common.
fn tls13_builder() -> Result<SslContextBuilder, ErrorStack> {
    let mut builder = SslContextBuilder::new(SslMethod::tls())?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_ciphersuites(SUITES)?;
    builder.set_options(SslOptions::NO_TICKET | SslOptions::NO_COMPRESSION | SslOptions::NO_RENEGOTIATION);
    builder.clear_options(SslOptions::ENABLE_MIDDLEBOX_COMPAT);
    builder.set_num_tickets(0)?;
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    builder.set_mode(SslMode::RELEASE_BUFFERS);
    Ok(builder)
}

impl fmt::Debug for ServerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerContext(..)")
    }
}

impl fmt::Debug for ClientContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientContext(..)")
    }
}

impl ServerContext {
    /// A server that takes clients whose keys `lookup` finds.
    ///
    /// # Errors
    /// OpenSSL lacks TLS 1.3 or one of the suites.
    pub fn new(lookup: Arc<dyn PskLookup>) -> Result<ServerContext, ContextError> {
        let mut builder = tls13_builder()?;
        builder.set_ex_data(ex_data_indices()?.lookup, lookup);
        builder.set_client_hello_callback(|ssl, _alert| {
            choose_suite(ssl)?;
            Ok(ClientHelloResponse::SUCCESS)
        });
        openssl_psk::set_find_callback(&mut builder);
        Ok(ServerContext(builder.build()))
    }
}

impl ClientContext {
    /// A client that offers one key.
    ///
    /// # Errors
    /// OpenSSL lacks TLS 1.3 or the key's suite.
    pub fn new(identity: Vec<u8>, psk: Psk) -> Result<ClientContext, ContextError> {
        let mut builder = tls13_builder()?;
        builder.set_ciphersuites(psk.suite_name().unwrap_or(SUITES))?;
        // A server that shows a certificate instead is not trusted for it: there is no authority.
        builder.set_verify(SslVerifyMode::PEER);
        builder.set_ex_data(ex_data_indices()?.key, (identity, psk));
        openssl_psk::set_use_callback(&mut builder);
        Ok(ClientContext(builder.build()))
    }
}

/// A key goes with the hash of its suite, but OpenSSL chooses the suite first: leave it the suite of the first
/// identity that is known.
fn choose_suite(ssl: &mut SslRef) -> Result<(), ErrorStack> {
    let name = openssl_psk::pre_shared_key_extension(ssl)
        .and_then(|extension| {
            parse_psk_identities(extension).find_map(|identity| find_server_psk(ssl, identity))
        })
        .and_then(|psk| psk.suite_name());
    match name {
        Some(name) => ssl.set_ciphersuites(name),
        None => Ok(()),
    }
}

/// The identities of an extension pre_shared_key (RFC 8446 §4.2.11).
fn parse_psk_identities(extension: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = extension
        .split_first_chunk::<2>()
        .and_then(|(len, rest)| rest.get(..usize::from(u16::from_be_bytes(*len))))
        .unwrap_or_default();
    std::iter::from_fn(move || {
        let (len, behind) = rest.split_first_chunk::<2>()?;
        let (identity, behind) = behind.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        // obfuscated_ticket_age
        let (_, behind) = behind.split_first_chunk::<4>()?;
        rest = behind;
        Some(identity)
    })
}

#[cfg(test)]
mod tests {
    use super::parse_psk_identities;

    #[test]
    fn identities_of_an_extension_are_found_and_no_more() {
        let two = b"\0\x10\0\x02ab0000\0\x02cd0000binders";
        assert_eq!(parse_psk_identities(two).collect::<Vec<_>>(), [b"ab", b"cd"]);
        // Cut off, lengths that lead outside, nothing.
        for len in 0..two.len() {
            assert!(parse_psk_identities(&two[..len]).count() <= 2);
        }
        assert_eq!(parse_psk_identities(b"\0\x08\xff\xffab0000").count(), 0);
        assert_eq!(parse_psk_identities(b"\xff\xff\0\x02ab0000").count(), 0);
        assert_eq!(parse_psk_identities(b"").count(), 0);
    }
}
