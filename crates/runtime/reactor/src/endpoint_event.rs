//! Events of a world, for the shard's endpoint.

use buf::Errno;
use endpoint::{DialId, Dialled, LinkArrival, LinkId};
use stream::{Received, RecvOp, SendOp};
use volume::DiskOp;

/// Something for the endpoint.
pub(crate) enum EndpointEvent<M> {
    Arrival(LinkId, LinkArrival<M>),
    Message(M),
    Recv(LinkId, RecvOp, Received),
    Written(LinkId, Result<(), Errno>),
    Sent(LinkId, SendOp),
    /// Of a link that was halted: with how much of it the socket has taken.
    SendCut(LinkId, SendOp, usize),
    Disk(DiskOp, Result<usize, Errno>),
    Dialled(DialId, Result<Dialled, Errno>),
}
