//! The outbox: everything that a link has ready becomes one [`SendOp`].
//!
//! Headers and small payloads are packed into one head buffer, which the kernel copies fastest; large
//! payloads are sent by reference. With a digest, the bytes that were digested are the bytes that are sent:
//! memory that may change meanwhile is copied first, whatever its size.
//!
//! Invariant: at most one batch is being sent. Data that becomes ready meanwhile waits for the next one, so
//! batches grow under load. A batch is bounded by its head and by [`PIECES_MAX`].

use crate::io_ops::{SendOp, SendPiece};
use crate::unsent_bytes::UnsentBytes;
use buf::crc32c::Crc32c;
use buf::{BufMut, MemoryClass, Pool, Sg, Time};
use smallvec::SmallVec;
use std::ops::Range;

/// Payloads up to so many bytes are copied behind their header.
pub const COPIED_PAYLOAD_MAX: usize = 8 << 10;
/// Longest head, in bytes.
pub const HEAD_MAX: usize = 256 << 10;
/// Most pieces of one batch.
pub const PIECES_MAX: usize = 64;
/// A batch with so many bytes takes no further PDU.
pub const BATCH_MAX: usize = 1 << 20;

/// The sending half of one link.
#[derive(Debug, Default)]
pub struct TransmitQueue {
    /// When the batch that is out and unwritten was handed out.
    unwritten: Option<Time>,
    /// Batches whose memory the kernel may still hold.
    in_kernel: usize,
    /// A list of pieces that came back, to be used again.
    spare: Option<SmallVec<[SendPiece; 8]>>,
    /// What goes out before the next batch is made.
    unsent: UnsentBytes,
}

/// There is no memory for a batch of bytes that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoBatchMemory;

impl TransmitQueue {
    /// Nothing is out.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a batch may be handed out now.
    pub fn can_start_batch(&self) -> bool {
        self.unwritten.is_none()
    }

    /// Whether bytes wait that must go before the next batch: [`TransmitQueue::build_unsent_batch`] sends them.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// How many such bytes wait.
    pub fn unsent_len(&self) -> usize {
        self.unsent.len()
    }

    /// A copy of them.
    pub fn unsent_bytes(&self) -> Vec<u8> {
        self.unsent.to_vec()
    }

    /// Begins with bytes that an earlier process owed the peer, or takes them back.
    pub fn set_unsent(&mut self, bytes: Vec<u8>) {
        self.unsent = UnsentBytes::new(bytes);
    }

    /// Takes all bytes that wait: the caller answers for their being sent.
    #[must_use]
    pub fn take_unsent(&mut self) -> Vec<u8> {
        self.unsent.take_all()
    }

    /// The batch that is out comes back, and the socket took only the first `written` bytes: the rest waits, before
    /// all else.
    pub fn keep_unsent(&mut self, op: SendOp, written: usize) {
        self.unsent.put_back(&op, written);
        self.handle_written();
        self.handle_send_released(op);
    }

    /// A batch of the bytes that wait; `None` if there are none, or a batch is out.
    pub fn build_unsent_batch(&mut self, pool: &Pool, now: Time) -> Result<Option<SendOp>, NoBatchMemory> {
        if self.unsent.is_empty() || !self.can_start_batch() {
            return Ok(None);
        }
        let mut batch = self.start_batch(pool, 1, self.unsent.len()).ok_or(NoBatchMemory)?;
        self.unsent.take_next(batch.room(), |bytes| batch.push_bytes(bytes));
        Ok(self.finish_batch(batch, now))
    }

    /// Whether the kernel holds no memory of this link's batches.
    pub fn is_idle(&self) -> bool {
        self.unwritten.is_none() && self.in_kernel == 0
    }

    /// When the batch that is out was handed out, if the socket has not taken all of it yet.
    pub fn unwritten_since(&self) -> Option<Time> {
        self.unwritten
    }

    /// Begins a batch with a head of `want` bytes, or of any size down to `least` if memory is short.
    /// `None`: a batch is out, or memory is.
    pub fn start_batch(&mut self, pool: &Pool, least: usize, want: usize) -> Option<SendOpBuilder> {
        if !self.can_start_batch() {
            return None;
        }
        let mut len = want.min(HEAD_MAX).max(least);
        let mut head = loop {
            match pool.take(MemoryClass::Wire, len) {
                Some(head) => break head,
                None if len / 2 >= least && len > 1 => len /= 2,
                None => return None,
            }
        };
        head.set_len(head.capacity());
        let pieces = self.spare.take().unwrap_or_default();
        Some(SendOpBuilder { head, used: 0, run: 0, pieces, len: 0 })
    }

    /// Ends the batch; `None` if nothing was put into it.
    pub fn finish_batch(&mut self, batch: SendOpBuilder, now: Time) -> Option<SendOp> {
        let op = batch.finish();
        if op.len == 0 {
            self.spare = Some(op.pieces);
            return None;
        }
        self.unwritten = Some(now);
        self.in_kernel += 1;
        Some(op)
    }

    /// The socket has taken the batch, or failed.
    pub fn handle_written(&mut self) {
        self.unwritten = None;
    }

    /// A batch's memory came back.
    pub fn handle_send_released(&mut self, mut op: SendOp) {
        self.in_kernel = self.in_kernel.saturating_sub(1);
        if op.pieces.spilled() {
            op.pieces.clear();
            self.spare = Some(op.pieces);
        }
    }
}

/// A [`SendOp`] in the making.
#[derive(Debug)]
pub struct SendOpBuilder {
    head: BufMut,
    /// Bytes of `head` in use.
    used: usize,
    /// Where in `head` the stretch begins that is not yet a piece.
    run: usize,
    pieces: SmallVec<[SendPiece; 8]>,
    /// Bytes of all pieces; the open stretch is not counted.
    len: usize,
}

impl SendOpBuilder {
    /// How many bytes of head `len` bytes of `data` take: none if they go by reference.
    pub fn head_len_for(data: &Sg, len: usize, digest: bool) -> usize {
        let copied = len <= COPIED_PAYLOAD_MAX || (digest && !data.is_stable());
        if copied { len } else { 0 }
    }

    /// Whether a PDU with so many bytes in the head and `data` by reference still fits.
    pub fn has_room(&self, head: usize, data: &Sg) -> bool {
        let pieces = self.pieces.len() + data.pieces().len() + 2;
        self.head.len() - self.used >= head
            && (self.is_empty() || (self.len() < BATCH_MAX && pieces <= PIECES_MAX))
    }

    /// Bytes of head that are free.
    fn room(&self) -> usize {
        self.head.len() - self.used
    }

    /// Bytes in the batch.
    pub fn len(&self) -> usize {
        self.len + self.used - self.run
    }

    /// Whether nothing is in.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends bytes: a header, padding, a digest.
    ///
    /// # Panics
    /// If the head is full: ask [`SendOpBuilder::has_room`] first.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.grow_head(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends `range` of a payload, copied or by reference, and feeds it to `digest`.
    #[expect(
        clippy::indexing_slicing,
        clippy::expect_used,
        reason = "`head_need` copies what is not stable, and a piece is given with a range within it"
    )]
    pub fn push_payload(&mut self, data: &Sg, range: Range<usize>, digest: Option<&mut Crc32c>) {
        let copied = Self::head_len_for(data, range.len(), digest.is_some()) > 0;
        match digest {
            Some(crc) if copied => {
                let slot = self.grow_head(range.len());
                data.copy_to_with_crc(range.start, slot, crc);
            }
            None if copied => data.copy_to(range.start, self.grow_head(range.len())),
            Some(crc) => {
                data.for_each_piece(range.clone(), |piece, within| {
                    let bytes = piece.stable_bytes().expect("what is not stable is copied");
                    crc.update(&bytes[within]);
                });
                self.push_shared(data, range);
            }
            None => self.push_shared(data, range),
        }
    }

    fn push_shared(&mut self, data: &Sg, range: Range<usize>) {
        self.end_head_run();
        self.len += range.len();
        data.for_each_piece(range, |piece, within| self.pieces.push(SendPiece::Shared(piece.slice(within))));
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "the caller has asked `fits`; a batch that is too full is a mistake of ours, and documented as a panic"
    )]
    fn grow_head(&mut self, len: usize) -> &mut [u8] {
        let at = self.used;
        self.used += len;
        &mut self.head[at..at + len]
    }

    fn end_head_run(&mut self) {
        if self.used > self.run {
            self.len += self.used - self.run;
            self.pieces.push(SendPiece::Head(self.run as u32..self.used as u32));
            self.run = self.used;
        }
    }

    fn finish(mut self) -> SendOp {
        self.end_head_run();
        let head = (self.used > 0).then_some(self.head);
        SendOp { head, pieces: self.pieces, len: self.len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buf::crc32c::crc32c;
    use buf::{Region, RegionHandle};
    use std::sync::Arc;

    fn wire(op: &SendOp) -> Vec<u8> {
        let mut bytes = vec![0; op.len];
        assert_eq!(op.copy_to(0, &mut bytes), op.len);
        bytes
    }

    #[test]
    fn small_payloads_stand_behind_their_headers_and_large_ones_are_referred_to() {
        let pool = Pool::new(4 << 20);
        let mut large = pool.take_sg(MemoryClass::Solicited, 64 << 10).unwrap();
        large.copy_from(0, &[7; 64 << 10]);
        let large = large.freeze();
        let small = large.slice(0..100);
        let mut transmit_queue = TransmitQueue::new();
        let mut batch = transmit_queue.start_batch(&pool, 64, 4096).unwrap();
        batch.push_bytes(b"h1");
        batch.push_payload(&small, 10..20, None);
        batch.push_bytes(b"h2");
        batch.push_payload(&large, 0..64 << 10, None);
        batch.push_bytes(b"end");
        let op = transmit_queue.finish_batch(batch, Time(5)).unwrap();
        assert_eq!(op.pieces.len(), 3);
        let want = [b"h1".to_vec(), vec![7; 10], b"h2".to_vec(), vec![7; 64 << 10], b"end".to_vec()].concat();
        assert_eq!(wire(&op), want);
        assert!(!transmit_queue.can_start_batch() && transmit_queue.start_batch(&pool, 64, 64).is_none());
        assert_eq!(transmit_queue.unwritten_since(), Some(Time(5)));
        transmit_queue.handle_written();
        assert!(transmit_queue.can_start_batch() && !transmit_queue.is_idle());
        transmit_queue.handle_send_released(op);
        assert!(transmit_queue.is_idle());
    }

    #[test]
    fn what_was_digested_is_what_is_sent_though_the_volume_changes() {
        let pool = Pool::new(4 << 20);
        let region = Arc::new(Region::new(64 << 10));
        let handle = RegionHandle::new(region.clone());
        let data = Sg::from(handle.view(0, 64 << 10));
        let mut transmit_queue = TransmitQueue::new();
        let mut batch = transmit_queue.start_batch(&pool, 64 << 10, 65 << 10).unwrap();
        let mut crc = Crc32c::new();
        batch.push_payload(&data, 0..64 << 10, Some(&mut crc));
        region.write(100, b"changed");
        let op = transmit_queue.finish_batch(batch, Time(0)).unwrap();
        assert_eq!(crc32c(&wire(&op)), crc.value());
    }

    #[test]
    fn what_a_socket_did_not_take_goes_first_and_once() {
        let pool = Pool::new(4 << 20);
        let mut transmit_queue = TransmitQueue::new();
        let bytes: Vec<u8> = (0..600_000u32).map(|i| (i / 7) as u8).collect();
        transmit_queue.set_unsent(bytes.clone());
        let (mut sent, mut round) = (Vec::new(), 0);
        while let Some(op) = transmit_queue.build_unsent_batch(&pool, Time(1)).unwrap() {
            assert!(op.len <= HEAD_MAX && !transmit_queue.can_start_batch());
            let written = if round % 2 == 0 { op.len / 3 } else { op.len };
            sent.extend_from_slice(&wire(&op)[..written]);
            transmit_queue.keep_unsent(op, written);
            assert_eq!(sent.len() + transmit_queue.unsent_len(), bytes.len());
            round += 1;
        }
        assert!(sent == bytes && !transmit_queue.has_unsent() && transmit_queue.is_idle());
        transmit_queue.set_unsent(b"abc".to_vec());
        assert_eq!((transmit_queue.take_unsent(), transmit_queue.has_unsent()), (b"abc".to_vec(), false));
    }

    #[test]
    fn an_empty_batch_is_none() {
        let pool = Pool::new(1 << 20);
        let mut transmit_queue = TransmitQueue::new();
        let batch = transmit_queue.start_batch(&pool, 64, 64).unwrap();
        assert!(transmit_queue.finish_batch(batch, Time(0)).is_none());
        assert!(transmit_queue.is_idle());
    }
}
