//! The reason why a connection ended, as a value for the log and the counters.

use core::fmt;

use crate::wire::{FatalError, FatalStatus};

/// What a peer did that ends the connection. Each is told once; the connection itself does what
/// follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkFault {
    /// A PDU broke the rules; a TermReq says so.
    Fatal(FatalError),
    /// A host sent more commands than the queue has entries; a C2HTermReq ends it.
    TooManyCommands,
    /// The peer ended the connection with a TermReq.
    Terminated(FatalError),
    /// The handshake was not over in time: ICReq and Connect of a host, ICResp of a controller.
    HandshakeTimeout,
    /// A PDU was begun and not ended in time.
    PduTimeout,
    /// The peer leaves what we send unread, or does not send data that it was asked for.
    Stalled,
    /// It broke TLS, or has not our key.
    Tls(Box<tls::TlsFault>),
    /// It came without TLS where that is demanded.
    TlsRequired,
    /// Its TLS handshake was not computed: too many others wait.
    TlsNotComputed,
}

/// In words, with what to do about it where the operator can.
impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkFault::Fatal(fatal) => {
                write!(f, "it sent a PDU that breaks the protocol: {}", FatalErrorText(fatal))
            }
            LinkFault::TooManyCommands => f.write_str("it sent more commands than its queue has entries"),
            LinkFault::Terminated(fatal) => {
                write!(f, "it says that we broke the protocol: {}", FatalErrorText(fatal))
            }
            LinkFault::HandshakeTimeout => {
                f.write_str("its handshake was not over in time: see whether NVMe/TCP is spoken to this port")
            }
            LinkFault::PduTimeout => f.write_str("it began a PDU and did not end it in time"),
            LinkFault::Tls(fault) => fault.fmt(f),
            LinkFault::TlsRequired => f.write_str("it came without TLS, which this address demands"),
            LinkFault::TlsNotComputed => f.write_str("too many TLS handshakes wait to be computed"),
            LinkFault::Stalled => f.write_str(
                "it does not read what is sent, or does not send requested data: check whether it hangs",
            ),
        }
    }
}

struct FatalErrorText<'a>(&'a FatalError);

impl fmt::Display for FatalErrorText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FatalError { fes, fei } = self.0;
        match *fes {
            FatalStatus::INVALID_FIELD => write!(f, "a wrong header field at offset {fei}"),
            FatalStatus::SEQUENCE => f.write_str("a PDU that may not come then"),
            FatalStatus::HEADER_DIGEST => {
                f.write_str("a wrong header digest: look for what damages data on the way")
            }
            FatalStatus::OUT_OF_RANGE => f.write_str("data outside of the requested range"),
            FatalStatus::LIMIT_EXCEEDED => f.write_str("more than was agreed"),
            FatalStatus::UNSUPPORTED => write!(f, "a parameter that is not supported at offset {fei}"),
            FatalStatus(other) => write!(f, "fatal status {other:04x}h"),
        }
    }
}
