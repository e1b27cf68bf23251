//! Buffers: [`BufMut`] with one owner, [`Buf`] shared and read-only.
//!
//! Invariant: a block's memory is named by one `BufMut`, or by the `Buf`s that its count of shares
//! says, or by nobody; the last one to go gives it back.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::crc32c::Crc32c;
use crate::pool::{Inner, Lease};
use crate::region::RegionHandle;
use crate::shared;

/// A buffer with one owner.
pub struct BufMut {
    pool: Rc<Inner>,
    lease: Lease,
    len: u32,
}

impl BufMut {
    pub(crate) fn new(pool: Rc<Inner>, lease: Lease, len: u32) -> Self {
        BufMut { pool, lease, len }
    }

    /// Address of the first byte, for the kernel.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pool.address(self.lease).as_ptr()
    }

    /// How many bytes the block has room for.
    pub fn capacity(&self) -> usize {
        self.lease.block_bytes()
    }

    /// Sets the length; what becomes visible is whatever was there last.
    ///
    /// # Panics
    /// If `len` is more than [`BufMut::capacity`].
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "a buffer cannot outgrow its block");
        self.len = len as u32;
    }

    /// Makes it shareable and read-only.
    pub fn freeze(self) -> Buf {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so the `Rc` is moved, not doubled.
        let pool = unsafe { std::ptr::read(&this.pool) };
        let (lease, len) = (this.lease, this.len);
        pool.share_first(lease);
        Buf { at: pool.address(lease), len, owner: Owner::Pool { pool, lease } }
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the block is initialised memory of the arena (zero pages at first), this value is
        // its only owner, and `len` is at most its size.
        unsafe { std::slice::from_raw_parts(self.pool.address(self.lease).as_ptr(), self.len as usize) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len as usize) }
    }
}

impl Drop for BufMut {
    fn drop(&mut self) {
        self.pool.give_back(self.lease);
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({} bytes, {:?})", self.len, self.lease.class)
    }
}

/// A read-only, shareable view of a buffer or of a [`Region`](crate::Region).
pub struct Buf {
    at: NonNull<u8>,
    len: u32,
    owner: Owner,
}

enum Owner {
    Pool { pool: Rc<Inner>, lease: Lease },
    Region(RegionHandle),
}

impl Buf {
    pub(crate) fn of_region(region: RegionHandle, at: NonNull<u8>, len: u32) -> Self {
        Buf { at, len, owner: Owner::Region(region) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte, for the kernel.
    pub fn as_ptr(&self) -> *const u8 {
        self.at.as_ptr()
    }

    /// The bytes, if nobody can change them while they are looked at: `None` for a region.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self.owner {
            // SAFETY: frozen pool memory has no writer until its last `Buf` is dropped.
            Owner::Pool { .. } => Some(unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len()) }),
            Owner::Region(_) => None,
        }
    }

    /// Whether the bytes stay as they are: pool memory does, a region may be written at any time.
    pub fn is_stable(&self) -> bool {
        matches!(self.owner, Owner::Pool { .. })
    }

    /// The part `range` of this view.
    ///
    /// # Panics
    /// If `range` is not within the view.
    pub fn slice(&self, range: Range<usize>) -> Buf {
        assert!(range.start <= range.end && range.end <= self.len(), "slice outside of a buffer");
        let mut part = self.clone();
        // SAFETY: the new start is within the view, hence within the owner's memory.
        part.at = unsafe { self.at.add(range.start) };
        part.len = (range.end - range.start) as u32;
        part
    }

    /// Copies the bytes from `at` on into all of `into`.
    ///
    /// # Panics
    /// If the view ends before `into` is full.
    pub fn copy_to(&self, at: usize, into: &mut [u8]) {
        let from = self.range(at, into.len());
        // SAFETY: the source range is within the owner's memory, which lives as long as `self`, and
        // `into` is a unique borrow, so the two cannot overlap. Pool memory has no writer now; a
        // region's bytes may change during the copy, and then a mixture is copied.
        unsafe {
            match self.owner {
                Owner::Pool { .. } => std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()),
                Owner::Region(_) => shared::copy(from, into.as_mut_ptr(), into.len()),
            }
        }
    }

    /// Copies like [`Buf::copy_to`] and feeds what was copied to `crc` in the same pass: the digest
    /// is of the bytes that stand in `into`, even if a region's change meanwhile.
    pub fn copy_to_crc(&self, at: usize, into: &mut [u8], crc: &mut Crc32c) {
        let from = self.range(at, into.len());
        // SAFETY: as in `copy_to`.
        unsafe { crc.copy_raw(from, into) };
    }

    /// Address of `len` bytes from `at` on.
    fn range(&self, at: usize, len: usize) -> *const u8 {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len()), "copy outside of a buffer");
        // SAFETY: `at` is within the view, hence within the owner's memory.
        unsafe { self.at.as_ptr().add(at) }
    }
}

impl Clone for Buf {
    fn clone(&self) -> Self {
        let owner = match &self.owner {
            Owner::Pool { pool, lease } => {
                pool.share_more(*lease);
                Owner::Pool { pool: pool.clone(), lease: *lease }
            }
            Owner::Region(region) => Owner::Region(region.clone()),
        };
        Buf { at: self.at, len: self.len, owner }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Owner::Pool { pool, lease } = &self.owner {
            pool.share_less(*lease);
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_stable() { "pool" } else { "region" };
        write!(f, "Buf({} bytes of a {kind})", self.len)
    }
}
