//! Scatter-gather lists: a payload in one piece if the pool can, in several if it must.
//!
//! The memory of a list may only be set aside. An operation may wait long before its bytes come, and until then needs no
//! memory of its own, only certainty that there will be some. What is taken then is what was given back last, and the
//! processor's cache may still hold it. Invariant: what is set aside and not yet taken is free in the pool's blocks, and
//! counted as lent; the piece that stands for it never leaves its list.

use std::ops::Range;

use smallvec::SmallVec;

use crate::arena::BLOCK_MIN;
use crate::buffer::{Buf, BufMut};
use crate::crc32c::Crc32c;

/// A payload that may be written: pieces with one owner.
#[derive(Debug, Default)]
pub struct SgMut {
    pieces: SmallVec<[BufMut; 1]>,
    len: usize,
}

/// A payload that may be shared and read.
#[derive(Clone, Debug, Default)]
pub struct Sg {
    pieces: SmallVec<[Buf; 1]>,
    len: usize,
}

impl SgMut {
    /// No bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// `len` bytes that are taken from their pool when they are used first.
    pub(crate) fn set_aside(piece: BufMut, len: usize) -> Self {
        SgMut { pieces: SmallVec::from_buf([piece]), len }
    }

    /// Whether its memory is only set aside: it holds no bytes yet.
    #[inline]
    pub fn is_only_set_aside(&self) -> bool {
        self.pieces.first().is_some_and(|piece| piece.set_aside_part().is_some())
    }

    /// The pieces, with their memory.
    #[inline]
    fn pieces_mut(&mut self) -> &mut SmallVec<[BufMut; 1]> {
        if self.is_only_set_aside() {
            self.take_set_aside();
        }
        &mut self.pieces
    }

    /// Takes the memory that was set aside: in one piece if the pool has that, else in several.
    #[cold]
    fn take_set_aside(&mut self) {
        let part = self.pieces.first().and_then(BufMut::set_aside_part);
        let Some((arena, bytes)) = part.map(|(arena, bytes)| (arena.clone(), bytes)) else { return };
        // From here on it is not counted, until it is again as what is taken.
        self.pieces.clear();
        let mut take = |len: usize, bytes: usize| {
            let lease = arena.take_set_aside(len, bytes)?;
            self.pieces.push(BufMut::new(arena.clone(), lease, len as u32));
            Some(())
        };
        if take(self.len, bytes).is_some() {
            return;
        }
        let (mut left, mut most) = (self.len, usize::MAX);
        while left > 0 {
            // Powers of two, so that no block is larger than what was counted for it.
            let units = 1 << left.div_ceil(BLOCK_MIN).min(most).ilog2();
            let len = left.min(units * BLOCK_MIN);
            if take(len, units * BLOCK_MIN).is_some() {
                left -= len;
            } else {
                assert!(units > 1, "what is set aside is free");
                most = units / 2;
            }
        }
    }

    /// Appends a piece.
    pub fn push(&mut self, piece: BufMut) {
        self.pieces_mut();
        self.len += piece.len();
        self.pieces.push(piece);
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces in order; of memory that is only set aside, one without a byte.
    pub fn pieces(&self) -> &[BufMut] {
        &self.pieces
    }

    /// The slices that make up `range`, in order.
    ///
    /// # Panics
    /// If `range` ends behind the payload.
    #[expect(clippy::indexing_slicing, reason = "start and end are clamped to this piece")]
    pub fn slices_mut(&mut self, range: Range<usize>) -> impl Iterator<Item = &mut [u8]> {
        assert!(range.start <= range.end && range.end <= self.len, "range outside of a payload");
        let mut base = 0;
        self.pieces_mut().iter_mut().filter_map(move |piece| {
            let here = base..base + piece.len();
            base = here.end;
            let start = range.start.max(here.start);
            let end = range.end.min(here.end);
            (start < end).then(|| &mut piece[start - here.start..end - here.start])
        })
    }

    /// Feeds `range` to a digest.
    ///
    /// # Panics
    /// If `range` ends behind the payload.
    pub fn update_crc(&mut self, range: Range<usize>, crc: &mut Crc32c) {
        self.slices_mut(range).for_each(|slice| crc.update(slice));
    }

    /// Copies all of `from` to `offset`.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn copy_from(&mut self, offset: usize, mut from: &[u8]) {
        for slice in self.slices_mut(offset..offset + from.len()) {
            let (now, later) = from.split_at(slice.len());
            slice.copy_from_slice(now);
            from = later;
        }
    }

    /// Fills `range` with zeroes.
    pub fn zero(&mut self, range: Range<usize>) {
        for slice in self.slices_mut(range) {
            slice.fill(0);
        }
    }

    /// Drops what is behind the first `len` bytes.
    #[expect(clippy::expect_used, reason = "the length is the sum of the pieces, and is not zero here")]
    pub fn truncate(&mut self, len: usize) {
        if self.is_only_set_aside() {
            self.len = self.len.min(len);
            return;
        }
        while self.len > len {
            let last = self.pieces.last_mut().expect("length counts the pieces");
            let excess = self.len - len;
            if excess >= last.len() {
                self.len -= last.len();
                self.pieces.pop();
            } else {
                let keep = last.len() - excess;
                last.set_len(keep);
                self.len = len;
            }
        }
    }

    /// Cuts it in two without moving a byte: what is before `offset` stays, what is from there on is given.
    ///
    /// # Panics
    /// If `offset` is behind the end.
    #[must_use]
    pub fn split_off(&mut self, offset: usize) -> SgMut {
        assert!(offset <= self.len, "cut outside of a payload");
        let mut rest = SgMut::new();
        let mut base = 0;
        let mut kept = 0;
        for piece in self.pieces_mut() {
            let len = piece.len();
            if base + len <= offset {
                kept += 1;
            } else if base < offset {
                rest.push(piece.split_off(offset - base));
                kept += 1;
                break;
            } else {
                break;
            }
            base += len;
        }
        self.pieces.drain(kept..).for_each(|piece| rest.push(piece));
        self.len = offset;
        rest
    }

    /// Appends all pieces of `other`; those that were cut off here become one again.
    pub fn append(&mut self, mut other: SgMut) {
        self.pieces_mut();
        other.pieces_mut();
        self.len += other.len;
        for piece in other.pieces {
            let left = match self.pieces.last_mut() {
                Some(last) => last.unsplit(piece).err(),
                None => Some(piece),
            };
            self.pieces.extend(left);
        }
    }

    /// Makes it shareable and read-only.
    pub fn freeze(mut self) -> Sg {
        self.pieces_mut();
        if self.pieces.len() == 1 {
            return self.pieces.pop().map(BufMut::freeze).map(Sg::from).unwrap_or_default();
        }
        Sg { len: self.len, pieces: self.pieces.into_iter().map(BufMut::freeze).collect() }
    }
}

impl From<BufMut> for SgMut {
    fn from(piece: BufMut) -> Self {
        let mut sg = SgMut::new();
        sg.push(piece);
        sg
    }
}

impl Sg {
    /// No bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a piece.
    pub fn push(&mut self, piece: Buf) {
        self.len += piece.len();
        self.pieces.push(piece);
    }

    /// Appends all pieces of `other`.
    pub fn append(&mut self, other: Sg) {
        self.len += other.len;
        self.pieces.extend(other.pieces);
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces in order.
    pub fn pieces(&self) -> &[Buf] {
        &self.pieces
    }

    /// Whether nobody can change the bytes (see [`Buf::is_stable`]).
    pub fn is_stable(&self) -> bool {
        self.pieces.iter().all(Buf::is_stable)
    }

    /// The part `range`, sharing the memory.
    ///
    /// # Panics
    /// If `range` ends behind the payload.
    pub fn slice(&self, range: Range<usize>) -> Sg {
        let mut part = Sg::new();
        self.for_each_piece(range, |piece, within| part.push(piece.slice(within)));
        part
    }

    /// Copies the bytes from `offset` on into all of `into`.
    ///
    /// # Panics
    /// If the payload ends before `into` is full.
    #[expect(
        clippy::indexing_slicing,
        reason = "the pieces of a range together have its length, which `into` has: documented"
    )]
    pub fn copy_to(&self, offset: usize, into: &mut [u8]) {
        let mut done = 0;
        self.for_each_piece(offset..offset + into.len(), |piece, within| {
            let len = within.len();
            piece.copy_to(within.start, &mut into[done..done + len]);
            done += len;
        });
    }

    /// Copies like [`Sg::copy_to`] and feeds what was copied to `crc` in the same pass: the digest
    /// is of the very bytes that stand in `into`, even if the source changes meanwhile.
    ///
    /// # Panics
    /// If the payload ends before `into` is full.
    #[expect(
        clippy::indexing_slicing,
        reason = "the pieces of a range together have its length, which `into` has: documented"
    )]
    pub fn copy_to_with_crc(&self, offset: usize, into: &mut [u8], crc: &mut Crc32c) {
        let mut done = 0;
        self.for_each_piece(offset..offset + into.len(), |piece, within| {
            let len = within.len();
            piece.copy_to_with_crc(within.start, &mut into[done..done + len], crc);
            done += len;
        });
    }

    /// Calls `each` with every piece that `range` touches, and the range within that piece.
    pub fn for_each_piece(&self, range: Range<usize>, mut each: impl FnMut(&Buf, Range<usize>)) {
        assert!(range.start <= range.end && range.end <= self.len, "range outside of a payload");
        let mut base = 0;
        for piece in &self.pieces {
            let here = base..base + piece.len();
            base = here.end;
            let (start, end) = (range.start.max(here.start), range.end.min(here.end));
            if start < end {
                each(piece, start - here.start..end - here.start);
            }
        }
    }
}

impl From<Buf> for Sg {
    fn from(piece: Buf) -> Self {
        let mut sg = Sg::new();
        sg.push(piece);
        sg
    }
}

#[cfg(test)]
mod tests;
