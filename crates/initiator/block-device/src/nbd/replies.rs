//! Replies of an NBD server.
//!
//! Invariant: a reply on extents covers the request from its beginning without a gap, and nothing beyond its
//! end.

use buf::Sg;
use smallvec::SmallVec;
use volume::Extent;
use zerocopy::IntoBytes;

use super::session::{Export, META_CONTEXT_ID};
use super::wire::{self, chunk, error};
use crate::request_error::RequestError;
use crate::requests::EndedRequest;

/// The server's name for a request: whose it is, and how to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingReply {
    pub(super) client: u32,
    pub(super) generation: u32,
    pub(super) cookie: u64,
    pub(super) structured: bool,
    pub(super) one: bool,
}

/// A reply that is being sent.
#[derive(Debug)]
pub(super) struct EncodedReply {
    pub(super) head: SmallVec<[u8; 48]>,
    pub(super) data: Sg,
}

impl EncodedReply {
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.data.len()
    }
}

/// The protocol's number for a failure.
pub(super) fn error_number(trouble: RequestError) -> u32 {
    match trouble {
        RequestError::Io | RequestError::Gone | RequestError::Conflict => error::IO,
        RequestError::NoSpace => error::NOSPC,
        RequestError::ReadOnly => error::PERM,
        RequestError::Unsupported => error::NOTSUP,
        RequestError::Invalid => error::INVAL,
    }
}

pub(super) fn simple_reply(cookie: u64, number: u32, data: Sg) -> EncodedReply {
    let head = wire::SimpleReply {
        magic: wire::SIMPLE_REPLY_MAGIC.into(),
        error: number.into(),
        cookie: cookie.into(),
    };
    EncodedReply { head: SmallVec::from_slice(head.as_bytes()), data }
}

fn chunk_header(cookie: u64, kind: u16, len: usize) -> SmallVec<[u8; 48]> {
    let head = wire::ChunkHeader {
        magic: wire::STRUCTURED_REPLY_MAGIC.into(),
        flags: chunk::DONE.into(),
        kind: kind.into(),
        cookie: cookie.into(),
        len: (len as u32).into(),
    };
    SmallVec::from_slice(head.as_bytes())
}

pub(super) fn data_chunk(cookie: u64, at: u64, data: Sg) -> EncodedReply {
    let mut head = chunk_header(cookie, chunk::OFFSET_DATA, 8 + data.len());
    head.extend_from_slice(&at.to_be_bytes());
    EncodedReply { head, data }
}

pub(super) fn error_chunk(cookie: u64, number: u32) -> EncodedReply {
    let mut head = chunk_header(cookie, chunk::ERROR, 6);
    head.extend_from_slice(&number.to_be_bytes());
    head.extend_from_slice(&[0; 2]);
    EncodedReply { head, data: Sg::new() }
}

/// The extents of a request, in bytes, none past its end; at least one.
pub(super) fn block_status_chunk(ended: &EndedRequest<PendingReply>, export: &Export) -> EncodedReply {
    let states = block_states(&ended.extents, ended.at, ended.len, export);
    // cannot fail: there is at least one.
    let states = if ended.token.one { &states[..1] } else { &states[..] };
    let mut head = chunk_header(ended.token.cookie, chunk::BLOCK_STATUS, 4 + 8 * states.len());
    head.extend_from_slice(&META_CONTEXT_ID.to_be_bytes());
    for (len, state) in states {
        head.extend_from_slice(&len.to_be_bytes());
        head.extend_from_slice(&state.to_be_bytes());
    }
    EncodedReply { head, data: Sg::new() }
}

fn block_states(extents: &[Extent], at: u64, len: u64, export: &Export) -> SmallVec<[(u32, u32); 4]> {
    let block = u64::from(export.minimum);
    let end = at + len;
    let mut states: SmallVec<[(u32, u32); 4]> = SmallVec::new();
    let mut here = at;
    for extent in extents {
        // Of what no extent tells nothing is known, so it counts as data.
        let start = extent.span.lba.saturating_mul(block).min(end);
        if start > here {
            states.push(((start - here) as u32, 0));
            here = start;
        }
        let stop = extent.span.lba.saturating_add(extent.span.blocks).saturating_mul(block).min(end);
        // Deallocated blocks that are not known to read as zeroes are holes with whatever in them.
        let hole =
            if export.unmapped_is_zero { wire::STATE_HOLE | wire::STATE_ZERO } else { wire::STATE_HOLE };
        if stop > here {
            states.push(((stop - here) as u32, if extent.mapped { 0 } else { hole }));
            here = stop;
        }
    }
    if states.is_empty() {
        states.push((len as u32, 0));
    }
    states
}
