//! The operations that a connection hands out and gets back by value.

use std::ops::Range;

use buf::{Buf, BufMut, Errno, Sg, SgMut};
use smallvec::SmallVec;

use crate::tag::Tag;

/// "Fill `direct`, then `stage`": one readv.
///
/// The stage takes the bytes behind the payload: the next headers. The world attaches it when
/// bytes are there, so an idle link pins none; it may be longer or shorter than `stage_len` asks,
/// and may be left out if `direct` is not filled.
#[derive(Debug)]
pub struct RecvOp {
    /// The rest of the payload that the stream stands in, if it has a place.
    pub direct: Option<DirectBuffer>,
    /// How many bytes of stage the connection would like; 0 if only `direct` is wanted.
    pub stage_len: usize,
    /// Memory for the stage, attached by the world, which sets its length to the bytes that arrived.
    pub stage: Option<BufMut>,
}

/// A payload's own final buffer.
#[derive(Debug)]
pub struct DirectBuffer {
    /// The task that it belongs to.
    pub tag: Tag,
    /// The buffer.
    pub data: SgMut,
    /// The part of `data` that the next bytes of the stream fill.
    pub want: Range<usize>,
}

/// The result of a receive.
#[derive(Debug)]
pub enum Received {
    /// So many bytes in all, first in `direct`, then in the stage. Never 0.
    Bytes(usize),
    /// Bytes in pages that the world chose; neither `direct` nor the stage was touched.
    Loaned(Sg),
    /// End of stream: the peer sends no more.
    End,
    /// The operation was cancelled; nothing was received.
    Cancelled,
    /// The socket failed.
    Failed(Errno),
}

impl Received {
    /// Bytes in the memory of the operation.
    #[inline]
    pub fn bytes(&self) -> usize {
        match self {
            Received::Bytes(n) => *n,
            Received::Loaned(_) | Received::End | Received::Cancelled | Received::Failed(_) => 0,
        }
    }
}

/// Bytes that are ready to be sent: one sendmsg. Headers and small payload are in `head`, large payload is
/// referenced. All memory is kept until the kernel releases it.
/// ```
/// use blockwire_stream::{TransmitQueue, Time};
/// use buf::{MemoryClass, Pool};
///
/// let pool = Pool::new(1 << 20);
/// let mut transmit_queue = TransmitQueue::new();
/// let mut batch = transmit_queue.start_batch(&pool, 64, 4096).unwrap();
/// batch.push_bytes(b"header");
/// let op = transmit_queue.finish_batch(batch, Time(1)).unwrap();
/// let mut wire = [0; 6];
/// assert_eq!(op.copy_to(0, &mut wire), op.len);
/// assert_eq!(&wire, b"header");
/// // One batch at a time is out, and its memory comes back.
/// assert!(transmit_queue.start_batch(&pool, 64, 4096).is_none());
/// transmit_queue.handle_written();
/// transmit_queue.handle_send_released(op);
/// assert!(transmit_queue.is_idle());
/// ```
#[derive(Debug)]
pub struct SendOp {
    /// Memory of the pieces that are [`SendPiece::Head`]; `None` if there is none.
    pub head: Option<BufMut>,
    /// What is sent, in order.
    pub pieces: SmallVec<[SendPiece; 8]>,
    /// Sum of the pieces, in bytes; never 0.
    pub len: usize,
}

/// One part of a [`SendOp`].
#[derive(Debug)]
pub enum SendPiece {
    /// A part of the op's `head`.
    Head(Range<u32>),
    /// Payload by reference.
    Shared(Buf),
}

impl SendOp {
    /// Whether the bytes cannot change while they are being sent (see [`Buf::is_stable`]).
    pub fn is_stable(&self) -> bool {
        self.pieces.iter().all(|piece| match piece {
            SendPiece::Head(_) => true,
            SendPiece::Shared(buf) => buf.is_stable(),
        })
    }

    /// Calls `each` with the address and length of every piece from byte `from` on, for the kernel
    /// or for a simulated wire.
    #[expect(clippy::expect_used, reason = "only `Outbox` makes head pieces, of a head that it puts there")]
    pub fn for_each_piece(&mut self, from: usize, mut each: impl FnMut(*const u8, usize)) {
        let head = self.head.as_mut().map(|head| head.as_mut_ptr().cast_const());
        let mut base = 0;
        for piece in &self.pieces {
            let (at, len) = match piece {
                SendPiece::Head(range) => {
                    let head = head.expect("a head piece has a head");
                    (head.wrapping_add(range.start as usize), (range.end - range.start) as usize)
                }
                SendPiece::Shared(buf) => (buf.as_ptr(), buf.len()),
            };
            let skip = from.saturating_sub(base).min(len);
            if skip < len {
                each(at.wrapping_add(skip), len - skip);
            }
            base += len;
        }
    }

    /// Copies the bytes from `at` on into `into`, as many as fit; returns their number.
    #[expect(
        clippy::indexing_slicing,
        clippy::expect_used,
        reason = "only `Outbox` makes head pieces, within a head that it puts there; what is taken is bounded by both lengths"
    )]
    pub fn copy_to(&self, at: usize, into: &mut [u8]) -> usize {
        let (mut base, mut done) = (0, 0);
        for piece in &self.pieces {
            let len = match piece {
                SendPiece::Head(range) => (range.end - range.start) as usize,
                SendPiece::Shared(buf) => buf.len(),
            };
            let from = (at + done).max(base) - base;
            if from < len && done < into.len() {
                let n = (len - from).min(into.len() - done);
                let to = &mut into[done..done + n];
                match piece {
                    SendPiece::Head(range) => {
                        let head = self.head.as_ref().expect("a head piece has a head");
                        to.copy_from_slice(&head[range.start as usize + from..][..n]);
                    }
                    SendPiece::Shared(buf) => buf.copy_to(from, to),
                }
                done += n;
            }
            base += len;
        }
        done
    }
}
