//! Memory that several cores and the kernel touch at once: the contents of a RAM volume.
//!
//! Invariant: no Rust reference into a region ever exists. All access is by raw copies, so that two
//! writers at the same place give a mixture of bytes, as two writes of a disk may, and nothing worse.

use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use crate::pool::{Buf, map_anonymous};

/// A zeroed stretch of memory, shared by all cores.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is only touched by raw copies, which need no exclusive access (see the module's
// invariant), and it lives until the last owner is dropped.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// One shard's handle on a [`Region`]: cloned and dropped per I/O without touching shared memory.
#[derive(Clone, Debug)]
#[expect(
    clippy::redundant_allocation,
    reason = "the Rc keeps per-I/O counting off the shared count of the Arc"
)]
pub struct RegionHandle(Rc<Arc<Region>>);

impl Region {
    /// A region of `len` zero bytes; pages take memory when they are first written.
    ///
    /// # Panics
    /// If `len` is 0 or the address space has no room for it.
    pub fn new(len: usize) -> Self {
        assert!(len > 0, "an empty region");
        Region { base: map_anonymous(len), len }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn at(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "access outside of a region");
        // SAFETY: `at` is within the mapping.
        unsafe { self.base.add(at) }
    }

    /// Copies bytes from `at` on into all of `into`.
    ///
    /// # Panics
    /// If the range is not within the region (so for each method here).
    pub fn read(&self, at: usize, into: &mut [u8]) {
        let from = self.at(at, into.len());
        // SAFETY: the source is within the mapping; `into` is a unique borrow elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    /// Copies all of `from` to `at`.
    pub fn write(&self, at: usize, from: &[u8]) {
        let to = self.at(at, from.len());
        // SAFETY: the destination is within the mapping, and no reference into it exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
    }

    /// Copies `from`, whichever memory it is of, to `at`.
    pub fn write_buf(&self, at: usize, from: &Buf) {
        let to = self.at(at, from.len());
        // SAFETY: both ranges are within live memory; `copy` allows that they overlap, as they do
        // when `from` is of this very region.
        unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), from.len()) };
    }

    /// Zeroes `len` bytes from `at` on; whole pages of it are returned to the system.
    pub fn zero(&self, at: usize, len: usize) {
        const PAGE: usize = 4096;
        let to = self.at(at, len);
        let head = (at.next_multiple_of(PAGE) - at).min(len);
        let pages = (len - head) / PAGE * PAGE;
        // SAFETY: each of the three stretches is within the mapping. MADV_DONTNEED on a private
        // anonymous mapping makes whole pages read as zero.
        unsafe {
            std::ptr::write_bytes(to.as_ptr(), 0, head);
            if pages > 0 {
                let advised = libc::madvise(to.as_ptr().add(head).cast(), pages, libc::MADV_DONTNEED);
                if advised != 0 {
                    std::ptr::write_bytes(to.as_ptr().add(head), 0, pages);
                }
            }
            std::ptr::write_bytes(to.as_ptr().add(head + pages), 0, len - head - pages);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; handles hold an `Arc`, so none is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl RegionHandle {
    /// A handle for one shard.
    pub fn new(region: Arc<Region>) -> Self {
        RegionHandle(Rc::new(region))
    }

    /// The region.
    pub fn region(&self) -> &Region {
        &self.0
    }

    /// A view of `len` bytes from `at` on, which may change under the reader's hands.
    pub fn view(&self, at: usize, len: usize) -> Buf {
        let start = self.0.at(at, len);
        Buf::of_region(self.clone(), start, u32::try_from(len).expect("a view is smaller than 4 GiB"))
    }
}
