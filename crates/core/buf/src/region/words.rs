//! Words that several cores touch at once, in memory of their own or in a region.
//!
//! Invariant: words in a region are touched as atomics only; no copy of the region includes them.

use std::fmt;
use std::ops::Deref;
use std::ptr::{NonNull, slice_from_raw_parts_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::Region;

/// Words that all cores share.
pub struct SharedWords {
    at: NonNull<AtomicU64>,
    count: usize,
    /// Where they are; `None`: in an allocation of their own.
    region: Option<Arc<Region>>,
}

// SAFETY: the words are atomics, which any thread may touch, and live until this is dropped.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// So many zeroed words. Those that are never written take no memory: the system maps zeroed pages when they are
    /// touched, as far as the words fill whole pages.
    pub fn zeroed(count: usize) -> Self {
        const { assert!(align_of::<u64>() == align_of::<AtomicU64>()) };
        let words = Box::into_raw(vec![0_u64; count].into_boxed_slice());
        // SAFETY: a box is never null.
        let at = unsafe { NonNull::new_unchecked(words.cast::<AtomicU64>()) };
        SharedWords { at, count, region: None }
    }

    /// So many words of a region, from `offset` on. The region's own methods are not to touch them.
    ///
    /// # Panics
    /// If they are not within the region, or `offset` is no multiple of 8.
    pub fn in_region(region: Arc<Region>, offset: usize, count: usize) -> Self {
        let bytes = count.checked_mul(size_of::<u64>());
        assert!(bytes.is_some(), "words outside of a region");
        let at = region.pointer(offset, bytes.unwrap_or(usize::MAX)).cast::<AtomicU64>();
        assert!(at.is_aligned(), "words of a region lie on an address of their own alignment");
        SharedWords { at, count, region: Some(region) }
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: so many words are there, aligned, as long as `self` lives: in its own allocation, or in a region that
        // it holds. Nothing takes a plain reference to them.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        if self.region.is_none() {
            let words = slice_from_raw_parts_mut(self.at.as_ptr().cast::<u64>(), self.count);
            // SAFETY: the box of `zeroed`, which nobody else has; an atomic has the layout of its word.
            drop(unsafe { Box::from_raw(words) });
        }
    }
}

impl fmt::Debug for SharedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedWords({})", self.count)
    }
}
