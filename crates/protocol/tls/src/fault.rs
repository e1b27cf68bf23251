//! Why there is no channel, or no longer one.

use std::fmt;

use openssl::error::ErrorStack;
use openssl::ssl;

/// OpenSSL's reason SSL_R_BINDER_DOES_NOT_VERIFY.
const BINDER_DOES_NOT_VERIFY: i32 = 253;

/// What ends a handshake or a channel. None of it is a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsFault {
    /// The client offered identities, and none is known: this is the last.
    UnknownIdentity(String),
    /// The client offered no pre-shared key.
    NoKey,
    /// The other side has another key under this identity.
    WrongKey(String),
    /// The other side broke the protocol, or ended it with an alert; in OpenSSL's words.
    Protocol(&'static str),
    /// The other side closed the channel (close_notify).
    Closed,
    /// The stream ended without that: what came last may be cut off.
    Truncated,
    /// The other side makes us send without end.
    Flood,
}

impl fmt::Display for TlsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsFault::UnknownIdentity(identity) => {
                write!(f, "no key is known for the TLS identity {identity}")
            }
            TlsFault::NoKey => f.write_str("it offered no pre-shared key of TLS 1.3"),
            TlsFault::WrongKey(identity) => {
                write!(f, "it has another key than ours for the TLS identity {identity}")
            }
            TlsFault::Protocol(reason) => write!(f, "TLS failed: {reason}"),
            TlsFault::Closed => f.write_str("it closed the TLS channel"),
            TlsFault::Truncated => f.write_str("the connection ended within TLS"),
            TlsFault::Flood => f.write_str("it asked for TLS messages without reading them"),
        }
    }
}

impl std::error::Error for TlsFault {}

impl TlsFault {
    /// What OpenSSL says of a call that failed.
    pub(crate) fn from_ssl_error(error: &ssl::Error, identity: &str) -> TlsFault {
        if error.code() == ssl::ErrorCode::ZERO_RETURN {
            return TlsFault::Closed;
        }
        let first = error.ssl_error().and_then(|stack| stack.errors().first());
        match first {
            Some(first) if first.reason_code() == BINDER_DOES_NOT_VERIFY => {
                TlsFault::WrongKey(identity.to_owned())
            }
            Some(first) => TlsFault::Protocol(first.reason().unwrap_or("an error without a name")),
            None => TlsFault::Truncated,
        }
    }
}

/// OpenSSL could not be set up: it lacks what is needed, or memory.
#[derive(Clone, Debug)]
pub struct ContextError(pub(crate) ErrorStack);

impl fmt::Display for ContextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenSSL cannot be used: {}", self.0)
    }
}

impl std::error::Error for ContextError {}

impl From<ErrorStack> for ContextError {
    fn from(stack: ErrorStack) -> Self {
        ContextError(stack)
    }
}
