//! The input of a kernel that digests it chunk by chunk.

use crate::shared_memory;

/// Bytes that are to be digested and, if `COPY`, copied.
///
/// Invariant: the promise of [`super::update_raw`] holds for what is left.
pub(super) struct Input<const COPY: bool> {
    from: *const u8,
    into: *mut u8,
    len: usize,
}

impl<const COPY: bool> Input<COPY> {
    /// # Safety
    /// As for [`super::update_raw`].
    #[inline(always)]
    pub(super) unsafe fn new(from: *const u8, into: *mut u8, len: usize) -> Self {
        Input { from, into, len }
    }

    /// The next `len` bytes where they may be read more than once: a copy is read back from the destination, which
    /// nobody else writes, while it is in the cache. `None`: fewer are left.
    #[inline(always)]
    pub(super) fn next_chunk(&mut self, len: usize) -> Option<*const u8> {
        if self.len < len {
            return None;
        }
        let mut readable = self.from;
        if COPY {
            // SAFETY: as many bytes are left, by the invariant, and the destination has room for them.
            unsafe { shared_memory::copy_shared(self.from, self.into, len) };
            readable = self.into;
        }
        self.from = self.from.wrapping_add(len);
        self.into = self.into.wrapping_add(len);
        self.len -= len;
        Some(readable)
    }

    /// Source, destination and length of what is left.
    #[inline(always)]
    pub(super) fn rest(&self) -> (*const u8, *mut u8, usize) {
        (self.from, self.into, self.len)
    }
}
