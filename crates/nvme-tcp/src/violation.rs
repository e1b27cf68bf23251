//! What ends a connection, as a value for the log and the counters.

use crate::wire::Fatal;

/// What a peer did that ends the connection. Each is told once; the connection itself does what
/// follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A PDU broke the rules; a TermReq says so.
    Fatal(Fatal),
    /// A host sent more commands than the queue has entries; a C2HTermReq ends it.
    TooManyCommands,
    /// The peer ended the connection with a TermReq.
    Terminated(Fatal),
    /// The handshake was not over in time: ICReq and Connect of a host, ICResp of a controller.
    HandshakeTimeout,
    /// A PDU was begun and not ended in time.
    PduTimeout,
    /// The peer leaves what we send unread, or does not send data that it was asked for.
    Stalled,
}
