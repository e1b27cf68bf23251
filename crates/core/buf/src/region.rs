//! Memory that several cores and the kernel touch at once: the contents of a RAM volume.
//!
//! Invariant: no Rust reference into a region ever exists. All access is through the copies of [`shared_memory`],
//! which may race: two writers at the same offset give a mixture of bytes, as two overlapping writes of a
//! disk may, and nothing worse. A reference would promise the compiler that the memory does not change.

mod view;
mod words;

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

pub use words::SharedWords;

use crate::crc32c::Crc32c;
use crate::memory_mapping::{
    is_sealed_against_shrinking, prefer_large_pages, release_file_pages, release_pages, try_map_anonymous,
    try_map_file, unmap,
};
use crate::shared_memory;

/// The shortest region, in bytes, that is taken to fit no cache: what is written to it by whole lines goes
/// to memory at once.
const UNCACHED_REGION_MIN: usize = 32 << 20;

/// A zeroed stretch of memory, shared by all cores.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    pages: PageKind,
}

/// How pages are given back to the system, so that they read as zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageKind {
    Anonymous,
    /// Of a memfd, which frees them.
    Memfd,
    /// Of a file of another process: they are zeroed instead.
    Foreign,
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
    /// A region of `len` zero bytes; pages take memory when they are first written, 2 MiB at a time where
    /// the system gives large ones.
    ///
    /// # Panics
    /// If `len` is 0 or the address space has no room for it.
    #[expect(clippy::panic, reason = "documented: who can go on without the memory asks `try_new`")]
    pub fn new(len: usize) -> Self {
        Self::try_new(len).unwrap_or_else(|| panic!("no address space for {len} bytes"))
    }

    /// As [`Region::new`]; `None` where that panics.
    pub fn try_new(len: usize) -> Option<Self> {
        if len == 0 {
            return None;
        }
        Some(Region { base: try_map_anonymous(len)?, len, pages: PageKind::Anonymous })
    }

    /// The first `len` bytes of a file that another process has mapped too, such as a virtual machine's
    /// memory.
    ///
    /// Who may shorten the file can end this process: touching a page behind its end is a SIGBUS.
    ///
    /// # Errors
    /// `InvalidInput` if the file is shorter or `len` is 0; else what the system says.
    pub fn map_file(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let size = std::fs::File::from(file.try_clone_to_owned()?).metadata()?.len();
        if len == 0 || size < len as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Region { base: try_map_file(file, len)?, len, pages: PageKind::Foreign })
    }

    /// All of a memfd: memory that another process can go on with. Pages take memory when they are first touched, by a
    /// read too, and are small ones unless the system gives large ones to shared memory (`shmem_enabled`).
    ///
    /// # Errors
    /// `InvalidInput` if the file is empty, or may be shortened: it must have the seal F_SEAL_SHRINK; else what the
    /// system says.
    pub fn map_memfd(file: BorrowedFd<'_>) -> io::Result<Self> {
        let size = std::fs::File::from(file.try_clone_to_owned()?).metadata()?.len();
        let len = usize::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
        if len == 0 || !is_sealed_against_shrinking(file) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let base = try_map_file(file, len)?;
        prefer_large_pages(base, len);
        Ok(Region { base, len, pages: PageKind::Memfd })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn pointer(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "access outside of a region");
        // SAFETY: `offset` is within the mapping.
        unsafe { self.base.add(offset) }
    }

    fn atomic_word(&self, offset: usize) -> &AtomicU16 {
        let word = self.pointer(offset, size_of::<u16>());
        assert!(word.cast::<u16>().is_aligned(), "a word of a region lies on an even address");
        // SAFETY: the word is within the mapping, which lives as long as `self`, and aligned; all that
        // touches it here is this atomic and the raw copies, and neither takes a plain reference.
        unsafe { AtomicU16::from_ptr(word.cast().as_ptr()) }
    }

    /// The 16-bit word at an even address, in the machine's order. What was written before it was stored
    /// there (with release) is seen by who reads after this.
    ///
    /// # Panics
    /// As [`Region::read`], and if the address is odd.
    pub fn load_u16(&self, offset: usize) -> u16 {
        self.atomic_word(offset).load(Ordering::Acquire)
    }

    /// Stores a 16-bit word at an even address, after all that was written before.
    ///
    /// # Panics
    /// As [`Region::load_u16`].
    pub fn store_u16(&self, offset: usize, word: u16) {
        self.atomic_word(offset).store(word, Ordering::Release);
    }

    /// Tells the processor that the bytes from `offset` on will soon be read.
    pub fn prefetch(&self, offset: usize, len: usize) {
        shared_memory::prefetch(self.pointer(offset, len).as_ptr(), len);
    }

    /// Copies bytes from `offset` on into all of `into`.
    ///
    /// # Panics
    /// If the range is not within the region (so for each method here).
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.pointer(offset, into.len());
        // SAFETY: the source is within the mapping; `into` is a unique borrow elsewhere.
        unsafe { shared_memory::copy_shared(from.as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    /// Copies like [`Region::read`] and feeds what was copied to `crc` in the same pass: the digest
    /// is of the bytes that stand in `into`, even if another core writes meanwhile.
    pub fn read_with_crc(&self, offset: usize, into: &mut [u8], crc: &mut Crc32c) {
        let from = self.pointer(offset, into.len());
        // SAFETY: as in `read`.
        unsafe { crc.copy_raw_and_update(from.as_ptr(), into) };
    }

    /// Copies all of `from` to `offset`.
    pub fn write(&self, offset: usize, from: &[u8]) {
        let to = self.pointer(offset, from.len());
        // SAFETY: the destination is within the mapping, and no reference into it exists, so `from`
        // is elsewhere.
        unsafe { shared_memory::copy_shared(from.as_ptr(), to.as_ptr(), from.len()) };
    }

    /// Copies all of `from` to `offset` like [`Region::write`], but past the caches if the region fits none:
    /// that takes half the time. Other cores may see these bytes late, even behind what is stored
    /// afterwards, until this one calls [`Region::store_fence`]: do so before anybody is told that they are
    /// there. This core itself sees them at once.
    pub fn write_non_temporal(&self, offset: usize, from: &[u8]) {
        if self.len < UNCACHED_REGION_MIN {
            return self.write(offset, from);
        }
        let to = self.pointer(offset, from.len());
        // SAFETY: as in `write`. That the bytes may come late makes them one more mixture for who reads
        // them meanwhile, which any reader must expect.
        unsafe { shared_memory::copy_non_temporal(from.as_ptr(), to.as_ptr(), from.len()) };
    }

    /// What this core wrote by [`Region::write_non_temporal`] stands before what it stores from now on.
    pub fn store_fence(&self) {
        if self.len >= UNCACHED_REGION_MIN {
            shared_memory::store_fence();
        }
    }

    /// Zeroes `len` bytes from `offset` on; whole pages of it are returned to the system.
    pub fn zero(&self, offset: usize, len: usize) {
        const PAGE: usize = 4096;
        let to = self.pointer(offset, len);
        let head = (offset.next_multiple_of(PAGE) - offset).min(len);
        let pages = (len - head) / PAGE * PAGE;
        // SAFETY: each of the three stretches is within the mapping, and no reference into it exists.
        unsafe {
            shared_memory::zero_shared(to.as_ptr(), head);
            let at = to.as_ptr().add(head);
            let released = pages > 0
                && match self.pages {
                    PageKind::Anonymous => release_pages(at, pages),
                    PageKind::Memfd => release_file_pages(at, pages),
                    PageKind::Foreign => false,
                };
            if !released {
                shared_memory::zero_shared(at, pages);
            }
            shared_memory::zero_shared(to.as_ptr().add(head + pages), len - head - pages);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; handles hold an `Arc`, so none is left.
        unsafe { unmap(self.base, self.len) };
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

    /// Whether there are views of this handle's that are not dropped.
    pub fn has_views(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }
}

#[cfg(test)]
mod tests;
