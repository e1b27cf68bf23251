//! A server's buffer for write data, while it is being filled.
//!
//! Invariant: a place is full when every byte of it was received from the stream, in PDUs with right digests.
//! Nothing else counts: not the length that a command announces, and not skipped data. Bytes are counted
//! here, where they are stored, so earlier contents of the memory never pass for data.

use std::ops::Range;

use buf::SgMut;
use buf::crc32c::Crc32c;

use crate::receive_buffer::ReceiveBuffer;

/// Memory for a stretch of a command's data.
/// ```
/// use blockwire_stream::{ReceiveBuffer, PayloadBuffer};
/// use buf::{MemoryClass, Pool};
///
/// let pool = Pool::new(1 << 20);
/// let mut place = PayloadBuffer::new(0, pool.take_sg(MemoryClass::Solicited, 4).unwrap(), 4).unwrap();
/// let mut receive_buffer = ReceiveBuffer::with_bytes(b"data");
/// assert_eq!(place.fill_from_stream(&mut receive_buffer, 0, 4, None), Some(4));
/// assert!(!place.is_complete(), "the digest of its PDU may still be wrong");
/// place.confirm_received();
/// assert!(place.is_complete());
/// ```
#[derive(Debug)]
pub struct PayloadBuffer {
    at: u32,
    end: u32,
    /// Bytes that were put in.
    came: u32,
    /// Of these, bytes of PDUs that are whole.
    whole: u32,
    /// `None` while it is out with a receive.
    data: Option<SgMut>,
}

impl PayloadBuffer {
    /// Memory for the data of a command from offset `data_offset` on, which has `data_len` bytes in all: what lies
    /// beyond is no part of it. `None` if nothing is left.
    pub fn new(at: u32, mut into: SgMut, data_len: u32) -> Option<Self> {
        let len = u32::try_from(into.len()).unwrap_or(u32::MAX).min(data_len.saturating_sub(at));
        if len == 0 {
            return None;
        }
        into.truncate(len as usize);
        Some(PayloadBuffer { at, end: at + len, came: 0, whole: 0, data: Some(into) })
    }

    /// Offset of its first byte in the command's data.
    pub fn data_offset(&self) -> u32 {
        self.at
    }

    /// Offset of the first byte behind it.
    pub fn data_end(&self) -> u32 {
        self.end
    }

    /// Whether its memory is here, not out with a receive.
    pub fn has_memory(&self) -> bool {
        self.data.is_some()
    }

    /// The part of its memory for `len` bytes from offset `data_offset` of the command's data on, as far as it goes.
    fn memory_range(&self, at: u32, len: u32) -> Range<usize> {
        let (from, to) = (at.clamp(self.at, self.end), at.saturating_add(len).clamp(self.at, self.end));
        (from - self.at) as usize..(to - self.at) as usize
    }

    /// Gives the memory to a receive, which shall put at most `len` bytes there, those from `data_offset` on.
    pub fn lend_to_recv(&mut self, at: u32, len: u32) -> Option<(SgMut, Range<usize>)> {
        let want = self.memory_range(at, len);
        self.data.take().map(|data| (data, want))
    }

    /// Takes it back from a receive that has put `came` bytes in.
    pub fn return_from_recv(&mut self, data: SgMut, came: usize) {
        self.data = Some(data);
        self.note_received(came);
    }

    /// Moves the next of at most `len` bytes of the stream in, those from `data_offset` on, and digests them where
    /// that is wanted; gives their number. `None` while the memory is out.
    pub fn fill_from_stream(
        &mut self,
        receive_buffer: &mut ReceiveBuffer,
        at: u32,
        len: u32,
        crc: Option<&mut Crc32c>,
    ) -> Option<usize> {
        let range = self.memory_range(at, len);
        let data = self.data.as_mut()?;
        let n = receive_buffer.copy_into(data, range.clone());
        if let Some(crc) = crc {
            for slice in data.slices_mut(range.start..range.start + n) {
                crc.update(slice);
            }
        }
        self.note_received(n);
        Some(n)
    }

    /// Copies bytes in that came from the stream before: `source` of `held`, to `data_offset`. False while the memory
    /// is out.
    ///
    /// # Panics
    /// If `source` ends behind `held`.
    #[expect(clippy::indexing_slicing, reason = "pieces of a slice together have its length")]
    pub fn copy_from_received(&mut self, at: u32, held: &mut SgMut, source: Range<usize>) -> bool {
        let range = self.memory_range(at, u32::try_from(source.len()).unwrap_or(u32::MAX));
        let Some(data) = &mut self.data else { return false };
        let mut from = source.start;
        let len = range.len();
        for slice in data.slices_mut(range) {
            let mut done = 0;
            for piece in held.slices_mut(from..from + slice.len()) {
                slice[done..done + piece.len()].copy_from_slice(piece);
                done += piece.len();
            }
            from += slice.len();
        }
        self.note_received(len);
        true
    }

    fn note_received(&mut self, came: usize) {
        let room = self.end - self.at;
        self.came = self.came.saturating_add(u32::try_from(came).unwrap_or(u32::MAX)).min(room);
    }

    /// Copies bytes in that came before, for offset `at` of the command's data on: as far as they are of this buffer.
    /// False while the memory is out.
    #[expect(clippy::indexing_slicing, reason = "pieces of a slice together have its length")]
    pub fn copy_from_bytes(&mut self, at: u32, bytes: &[u8]) -> bool {
        let range = self.memory_range(at, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        let Some(data) = &mut self.data else { return false };
        let (mut from, len) = ((self.at + range.start as u32).saturating_sub(at) as usize, range.len());
        for slice in data.slices_mut(range) {
            slice.copy_from_slice(&bytes[from..from + slice.len()]);
            from += slice.len();
        }
        self.note_received(len);
        true
    }

    /// How many bytes were put in.
    pub fn received_len(&self) -> u32 {
        self.came
    }

    /// What its memory holds of the command's data from offset `range.start` to `range.end`, as far as that is of this
    /// buffer. `None` while the memory is out.
    pub fn copy_range(&self, range: Range<u32>) -> Option<Vec<u8>> {
        let range = self.memory_range(range.start, range.end.saturating_sub(range.start));
        let (mut bytes, mut at) = (Vec::with_capacity(range.len()), 0);
        for piece in self.data.as_ref()?.pieces() {
            let within =
                range.start.clamp(at, at + piece.len()) - at..range.end.clamp(at, at + piece.len()) - at;
            bytes.extend_from_slice(piece.get(within)?);
            at += piece.len();
        }
        Some(bytes)
    }

    /// The bytes that were put in, which began with the first of the buffer. `None` while the memory is out.
    pub fn received_bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.came as usize);
        for piece in self.data.as_ref()?.pieces() {
            let len = (self.came as usize - bytes.len()).min(piece.len());
            bytes.extend_from_slice(piece.get(..len)?);
        }
        Some(bytes)
    }

    /// All that was put in so far belongs to PDUs that are whole.
    pub fn confirm_received(&mut self) {
        self.whole = self.came;
    }

    /// Whether its memory is here and every byte of it came in a PDU that is whole.
    pub fn is_complete(&self) -> bool {
        self.whole == self.end - self.at && self.data.is_some()
    }

    /// Its offset and its memory, if it is full.
    pub fn into_complete(self) -> Option<(u32, SgMut)> {
        if !self.is_complete() {
            return None;
        }
        self.data.map(|data| (self.at, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buf::{MemoryClass, Pool};

    fn memory(pool: &Pool, len: usize) -> SgMut {
        pool.take_sg(MemoryClass::Solicited, len).unwrap()
    }

    #[test]
    fn only_bytes_that_were_put_in_and_confirmed_make_it_full() {
        let pool = Pool::new(1 << 20);
        let mut place = PayloadBuffer::new(100, memory(&pool, 10), 1000).unwrap();
        assert_eq!((place.data_offset(), place.data_end(), place.is_complete()), (100, 110, false));
        place.confirm_received();
        assert!(!place.is_complete(), "nothing came");
        let mut receive_buffer = ReceiveBuffer::with_bytes(b"abcdefgh");
        assert_eq!(place.fill_from_stream(&mut receive_buffer, 100, 4, None), Some(4));
        let (data, want) = place.lend_to_recv(104, 100).unwrap();
        assert_eq!((want, place.has_memory()), (4..10, false));
        assert_eq!(place.fill_from_stream(&mut receive_buffer, 104, 4, None), None);
        place.return_from_recv(data, 2);
        let mut held: SgMut = memory(&pool, 8);
        held.copy_from(0, b"....ghij");
        assert!(place.copy_from_received(106, &mut held, 4..8));
        assert!(!place.is_complete(), "no PDU is whole");
        place.confirm_received();
        let (at, data) = place.into_complete().unwrap();
        let bytes: Vec<u8> = data.freeze().slice(0..10).pieces()[0].stable_bytes().unwrap().to_vec();
        assert_eq!((at, &bytes[..4], &bytes[6..]), (100, &b"abcd"[..], &b"ghij"[..]));
    }

    #[test]
    fn what_came_moves_to_another_buffer() {
        let pool = Pool::new(1 << 20);
        let mut place = PayloadBuffer::new(100, memory(&pool, 10), 1000).unwrap();
        assert_eq!(place.received_bytes(), Some(Vec::new()));
        place.fill_from_stream(&mut ReceiveBuffer::with_bytes(b"abcdefgh"), 100, 6, None);
        let bytes = place.received_bytes().unwrap();
        assert_eq!(bytes, b"abcdef");
        let mut next = PayloadBuffer::new(102, memory(&pool, 4), 1000).unwrap();
        assert!(next.copy_from_bytes(100, &bytes));
        next.confirm_received();
        assert!(next.is_complete());
        assert_eq!(next.received_bytes().unwrap(), b"cdef");
        assert_eq!(place.copy_range(102..105).unwrap(), b"cde");
        assert_eq!((place.received_len(), next.received_len()), (6, 4));
        assert!(next.lend_to_recv(102, 1).is_some() && !next.copy_from_bytes(102, b"c"));
        assert_eq!(next.received_bytes(), None);
    }

    #[test]
    fn what_lies_beyond_the_data_is_no_part_of_it() {
        let pool = Pool::new(1 << 20);
        let place = PayloadBuffer::new(8, memory(&pool, 512), 20).unwrap();
        assert_eq!(place.data_end(), 20);
        assert!(PayloadBuffer::new(20, memory(&pool, 512), 20).is_none());
        assert!(PayloadBuffer::new(0, SgMut::new(), 20).is_none());
        let short = PayloadBuffer::new(8, memory(&pool, 512), 20).unwrap();
        assert!(short.into_complete().is_none());
    }
}
