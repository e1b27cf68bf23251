//! Buffers: [`BufMut`] with one owner, [`Buf`] shared and read-only.
//!
//! Invariant: a byte of a block belongs to one `BufMut`, or to any number of `Buf`s, or is free. A block
//! belongs to one whole `BufMut`, or to as many parts and `Buf`s as its reference count says; the last one
//! returns it.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::arena::{Arena, BlockLease};
use crate::crc32c::Crc32c;
use crate::loan::Loan;
use crate::region::RegionHandle;
use crate::shared_memory;

/// A buffer with one owner.
pub struct BufMut {
    at: NonNull<u8>,
    len: u32,
    /// Bytes from `at` on that are this buffer's.
    room: u32,
    owner: OwnerMut,
}

/// Whose the memory is.
enum OwnerMut {
    /// A whole block, or a part of one (the lease knows), whose shares are counted then.
    Pool { pool: Rc<Arena>, lease: BlockLease },
    /// Somebody else's; the loan counts its shares itself.
    Lent(Loan),
}

impl BufMut {
    pub(crate) fn new(pool: Rc<Arena>, lease: BlockLease, len: u32) -> Self {
        let at = pool.block_address(lease);
        BufMut { at, len, room: lease.block_bytes() as u32, owner: OwnerMut::Pool { pool, lease } }
    }

    pub(crate) fn from_loan(loan: Loan, at: NonNull<u8>, len: u32) -> Self {
        BufMut { at, len, room: len, owner: OwnerMut::Lent(loan) }
    }

    /// The right to memory for `len` bytes that nobody has taken yet, as a buffer without a byte. It stays within the
    /// list that it is made for.
    pub(crate) fn set_aside(pool: &Rc<Arena>, lease: BlockLease) -> Self {
        BufMut { at: pool.base, len: 0, room: 0, owner: OwnerMut::Pool { pool: pool.clone(), lease } }
    }

    /// The pool and how much of it is set aside; `None`: the buffer has memory, or is another's.
    #[inline]
    pub(crate) fn set_aside_part(&self) -> Option<(&Rc<Arena>, usize)> {
        match &self.owner {
            OwnerMut::Pool { pool, lease } if self.room == 0 => Some((pool, lease.set_aside_bytes()?)),
            OwnerMut::Pool { .. } | OwnerMut::Lent(_) => None,
        }
    }

    /// Address of the first byte, for the kernel.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// How many bytes it has room for.
    pub fn capacity(&self) -> usize {
        self.room as usize
    }

    /// Sets the length; what becomes visible is whatever was there last.
    ///
    /// # Panics
    /// If `len` is more than [`BufMut::capacity`].
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "a buffer cannot outgrow its block");
        self.len = len as u32;
    }

    /// Cuts it in two: what is before `at` stays, what is from there on is given. The memory goes back
    /// when both are gone.
    ///
    /// # Panics
    /// If `at` is behind the end.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> BufMut {
        assert!(at <= self.len as usize, "cut outside of a buffer");
        let owner = match &mut self.owner {
            OwnerMut::Pool { pool, lease } => {
                if !lease.is_split() {
                    pool.begin_sharing(*lease);
                    *lease = lease.as_split();
                }
                pool.add_share(*lease);
                OwnerMut::Pool { pool: pool.clone(), lease: *lease }
            }
            OwnerMut::Lent(loan) => OwnerMut::Lent(loan.clone()),
        };
        // SAFETY: `at` is within the buffer, hence within its owner's memory.
        let behind = unsafe { self.at.add(at) };
        let rest = BufMut { at: behind, len: self.len - at as u32, room: self.room - at as u32, owner };
        (self.len, self.room) = (at as u32, at as u32);
        rest
    }

    /// Takes back what was cut off right behind; gives `rest` back if it is something else.
    pub fn unsplit(&mut self, mut rest: BufMut) -> Result<(), BufMut> {
        let is_of_one = match (&self.owner, &rest.owner) {
            (OwnerMut::Pool { pool, lease }, OwnerMut::Pool { pool: other, lease: its }) => {
                Rc::ptr_eq(pool, other) && lease.is_same_block(its)
            }
            (OwnerMut::Lent(loan), OwnerMut::Lent(other)) => loan.is_same_loan(other),
            (OwnerMut::Pool { .. }, OwnerMut::Lent(_)) | (OwnerMut::Lent(_), OwnerMut::Pool { .. }) => false,
        };
        let ends_at = self.at.as_ptr().wrapping_add(self.room as usize);
        if !is_of_one || self.len != self.room || ends_at != rest.at.as_ptr() {
            return Err(rest);
        }
        self.len += rest.len;
        self.room += rest.room;
        // Its memory is ours now; what is dropped is its share.
        (rest.len, rest.room) = (0, 0);
        Ok(())
    }

    /// Makes it shareable and read-only.
    pub fn freeze(self) -> Buf {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so its keeper is moved, not doubled.
        let owner = match unsafe { std::ptr::read(&this.owner) } {
            OwnerMut::Pool { pool, lease } => {
                if !lease.is_split() {
                    pool.begin_sharing(lease);
                }
                Owner::Pool { pool, lease }
            }
            OwnerMut::Lent(loan) => Owner::Lent(loan),
        };
        Buf { at: this.at, len: this.len, owner }
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised (the arena's are zero at first; a lender promises it), this
        // value is their only owner, and `len` is at most its room.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len as usize) }
    }
}

impl Drop for BufMut {
    fn drop(&mut self) {
        match &self.owner {
            OwnerMut::Pool { pool, lease } if lease.is_split() => pool.drop_share(*lease),
            OwnerMut::Pool { pool, lease } => pool.free(*lease),
            OwnerMut::Lent(_) => {}
        }
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            OwnerMut::Pool { lease, .. } => write!(f, "BufMut({} bytes, {:?})", self.len, lease.class),
            OwnerMut::Lent(_) => write!(f, "BufMut({} bytes, lent)", self.len),
        }
    }
}

/// A read-only, shareable view of a buffer or of a [`Region`](crate::Region).
pub struct Buf {
    at: NonNull<u8>,
    len: u32,
    owner: Owner,
}

enum Owner {
    Pool { pool: Rc<Arena>, lease: BlockLease },
    Region(RegionHandle),
    Lent(Loan),
}

impl Buf {
    pub(crate) fn from_loan(loan: Loan, at: NonNull<u8>, len: u32) -> Self {
        Buf { at, len, owner: Owner::Lent(loan) }
    }

    pub(crate) fn from_region(region: RegionHandle, at: NonNull<u8>, len: u32) -> Self {
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
    pub fn stable_bytes(&self) -> Option<&[u8]> {
        if !self.is_stable() {
            return None;
        }
        // SAFETY: frozen pool memory has no writer until its last `Buf` is dropped, and who lends memory
        // as stable promises the same.
        Some(unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len()) })
    }

    /// Whether the bytes stay as they are: pool memory does, a region may be written at any time, and of
    /// lent memory the lender says.
    pub fn is_stable(&self) -> bool {
        match &self.owner {
            Owner::Pool { .. } => true,
            Owner::Region(_) => false,
            Owner::Lent(loan) => loan.is_stable(),
        }
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
        let from = self.ptr_of_range(at, into.len());
        // SAFETY: the source range is within the owner's memory, which lives as long as `self`, and
        // `into` is a unique borrow, so the two cannot overlap. Pool memory has no writer now; a
        // region's bytes may change during the copy, and then a mixture is copied.
        unsafe {
            match self.is_stable() {
                true => std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()),
                false => shared_memory::copy_shared(from, into.as_mut_ptr(), into.len()),
            }
        }
    }

    /// Copies like [`Buf::copy_to`] and feeds what was copied to `crc` in the same pass: the digest
    /// is of the bytes that stand in `into`, even if a region's change meanwhile.
    pub fn copy_to_with_crc(&self, at: usize, into: &mut [u8], crc: &mut Crc32c) {
        let from = self.ptr_of_range(at, into.len());
        // SAFETY: as in `copy_to`.
        unsafe { crc.copy_raw_and_update(from, into) };
    }

    /// Address of `len` bytes from `at` on.
    fn ptr_of_range(&self, at: usize, len: usize) -> *const u8 {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len()), "copy outside of a buffer");
        // SAFETY: `at` is within the view, hence within the owner's memory.
        unsafe { self.at.as_ptr().add(at) }
    }
}

impl Clone for Buf {
    fn clone(&self) -> Self {
        let owner = match &self.owner {
            Owner::Pool { pool, lease } => {
                pool.add_share(*lease);
                Owner::Pool { pool: pool.clone(), lease: *lease }
            }
            Owner::Region(region) => Owner::Region(region.clone()),
            Owner::Lent(loan) => Owner::Lent(loan.clone()),
        };
        Buf { at: self.at, len: self.len, owner }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Owner::Pool { pool, lease } = &self.owner {
            pool.drop_share(*lease);
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.owner {
            Owner::Pool { .. } => "of a pool",
            Owner::Region(_) => "of a region",
            Owner::Lent(_) => "lent",
        };
        write!(f, "Buf({} bytes {kind})", self.len)
    }
}
