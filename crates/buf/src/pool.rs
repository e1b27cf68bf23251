//! The pool: one arena per shard, cut into blocks of 512 bytes to 1 MiB by a lazy buddy scheme.
//!
//! Freed blocks go to a small last-in-first-out cache of their size first, so that the next I/O
//! writes into memory that is still in the processor's cache; they are joined with their buddies
//! only when a larger block is wanted. Invariant: every block of the arena is in exactly one of:
//! a free list, a size's cache, the hands of a [`BufMut`], or shared by [`Buf`]s that count it.
//!
//! Memory is accounted by [`Class`]: what unsolicited payload was promised (law 3) is never lent
//! to data that could have waited.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::region::RegionHandle;
use crate::sg::SgMut;

/// The smallest block, in bytes.
const UNIT: usize = 512;
/// Number of block sizes: 512 bytes × 2^0 … 2^11 = 1 MiB.
const ORDERS: usize = 12;
/// How many freed blocks of one size are kept unjoined.
const CACHED_MAX: usize = 64;
/// No block, in the lists.
const NIL: u32 = u32::MAX;

/// What memory is taken for. It decides how deep into the pool a request may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Headers and small replies: may take everything that is left.
    Wire,
    /// Payload that arrives unasked (immediate data, first bursts, capsules), promised to the peer
    /// and set aside with [`Pool::reserve`].
    Unsolicited,
    /// Payload that can wait: reads, and writes solicited by R2T. Never touches what is reserved.
    Solicited,
}

/// A shard's memory. Cloning shares the pool.
#[derive(Clone)]
pub struct Pool {
    inner: Rc<Inner>,
}

/// What a pool holds and lends, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Size of the arena.
    pub capacity: usize,
    /// Lent to anyone, rounded to block sizes.
    pub lent: usize,
    /// Set aside for unsolicited payload.
    pub reserved: usize,
}

struct Inner {
    base: NonNull<u8>,
    units: u32,
    lists: RefCell<Lists>,
    /// Shares of each block that was frozen, by first unit.
    shares: Box<[Cell<u32>]>,
    lent: [Cell<usize>; 3],
    reserved: Cell<usize>,
}

struct Lists {
    /// Head of the free list of each size.
    free: [u32; ORDERS],
    /// Neighbours in the free list, by first unit.
    next: Box<[u32]>,
    prev: Box<[u32]>,
    /// Size (order) of the free block that starts at a unit, or `LENT`.
    order: Box<[u8]>,
    cache: [Vec<u32>; ORDERS],
}

/// Marks a unit that starts no block of a free list.
const LENT: u8 = u8::MAX;

impl Pool {
    /// A pool of `bytes`, rounded up to whole MiB, at most 2 TiB.
    ///
    /// # Panics
    /// If the address space has no room for it.
    pub fn new(bytes: usize) -> Self {
        let top = UNIT << (ORDERS - 1);
        let bytes = bytes.max(1).next_multiple_of(top);
        let units = u32::try_from(bytes / UNIT).expect("a pool is smaller than 2 TiB");
        let base = map_anonymous(bytes);
        let mut lists = Lists {
            free: [NIL; ORDERS],
            next: vec![NIL; units as usize].into(),
            prev: vec![NIL; units as usize].into(),
            order: vec![LENT; units as usize].into(),
            cache: std::array::from_fn(|_| Vec::with_capacity(CACHED_MAX)),
        };
        for first in (0..units).step_by(top / UNIT).rev() {
            lists.push_free(first, ORDERS - 1);
        }
        let inner = Inner {
            base,
            units,
            lists: RefCell::new(lists),
            shares: vec![Cell::new(0); units as usize].into(),
            lent: Default::default(),
            reserved: Cell::new(0),
        };
        Pool { inner: Rc::new(inner) }
    }

    /// One contiguous buffer of `len` bytes (0 to 1 MiB), its contents whatever was there last;
    /// `None` if the class may take no more now.
    pub fn take(&self, class: Class, len: usize) -> Option<BufMut> {
        let order = order_of(len)?;
        if !self.inner.may_take(class, UNIT << order) {
            return None;
        }
        let first = self.inner.lists.borrow_mut().take(order)?;
        let lent = &self.inner.lent[class as usize];
        lent.set(lent.get() + (UNIT << order));
        Some(BufMut { pool: self.inner.clone(), first, order: order as u8, class, start: 0, len: len as u32 })
    }

    /// Buffers of `len` bytes together: contiguous if that can be had, else in several pieces.
    pub fn take_sg(&self, class: Class, len: usize) -> Option<SgMut> {
        let mut sg = SgMut::new();
        let mut left = len;
        let mut piece_max = UNIT << (ORDERS - 1);
        while left > 0 {
            let want = left.min(piece_max);
            match self.take(class, want) {
                Some(piece) => {
                    left -= want;
                    sg.push(piece);
                }
                None if piece_max > UNIT => piece_max = want.next_power_of_two().min(piece_max) / 2,
                None => return None,
            }
            if piece_max < UNIT {
                return None;
            }
        }
        Some(sg)
    }

    /// Sets `bytes` aside for unsolicited payload; false if so much is not left to promise.
    pub fn reserve(&self, bytes: usize) -> bool {
        let reserved = self.inner.reserved.get();
        // Half of the pool stays for data that is asked for, or nothing could be served.
        if reserved + bytes > self.inner.capacity() / 2 {
            return false;
        }
        self.inner.reserved.set(reserved + bytes);
        true
    }

    /// Gives back what [`Pool::reserve`] set aside.
    pub fn unreserve(&self, bytes: usize) {
        let reserved = self.inner.reserved.get();
        assert!(bytes <= reserved, "more given back than was reserved");
        self.inner.reserved.set(reserved - bytes);
    }

    /// What is held and lent now.
    pub fn usage(&self) -> PoolUse {
        PoolUse {
            capacity: self.inner.capacity(),
            lent: self.inner.lent.iter().map(Cell::get).sum(),
            reserved: self.inner.reserved.get(),
        }
    }

    /// The arena's address and length, to register it with the kernel.
    pub fn arena(&self) -> (*mut u8, usize) {
        (self.inner.base.as_ptr(), self.inner.capacity())
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.usage().fmt(f)
    }
}

impl Inner {
    fn capacity(&self) -> usize {
        self.units as usize * UNIT
    }

    fn may_take(&self, class: Class, bytes: usize) -> bool {
        match class {
            Class::Wire | Class::Unsolicited => true,
            Class::Solicited => {
                let unsolicited = self.lent[Class::Unsolicited as usize].get();
                let promised = self.reserved.get().saturating_sub(unsolicited);
                let lent: usize = self.lent.iter().map(Cell::get).sum();
                // A sixteenth stays for headers and replies.
                lent + promised + bytes <= self.capacity() - self.capacity() / 16
            }
        }
    }

    fn give_back(&self, first: u32, order: u8, class: Class) {
        let lent = &self.lent[class as usize];
        lent.set(lent.get() - (UNIT << order));
        self.lists.borrow_mut().give(first, usize::from(order));
    }

    fn address(&self, first: u32, start: u32) -> NonNull<u8> {
        // SAFETY: `first` names a unit of this arena and `start` is at most the length of the block
        // that starts there, so the sum stays inside the mapping.
        unsafe { self.base.add(first as usize * UNIT + start as usize) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map_anonymous` with this length, and every buffer holds
        // an `Rc` of this value, so none is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.capacity()) };
    }
}

fn order_of(len: usize) -> Option<usize> {
    let order = len.max(UNIT).next_power_of_two().trailing_zeros() as usize - UNIT.trailing_zeros() as usize;
    (order < ORDERS).then_some(order)
}

/// Fresh zeroed memory that the kernel fills page by page on first touch.
pub(crate) fn map_anonymous(bytes: usize) -> NonNull<u8> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory
    // that anything else names.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert!(at != libc::MAP_FAILED, "no address space for {bytes} bytes");
    NonNull::new(at.cast()).expect("mmap gives no null page")
}

impl Lists {
    fn take(&mut self, order: usize) -> Option<u32> {
        if let Some(first) = self.cache[order].pop() {
            return Some(first);
        }
        self.take_free(order).or_else(|| {
            self.join_cached();
            self.take_free(order)
        })
    }

    fn take_free(&mut self, order: usize) -> Option<u32> {
        let mut from = (order..ORDERS).find(|&o| self.free[o] != NIL)?;
        let first = self.free[from];
        self.unlink(first, from);
        while from > order {
            from -= 1;
            self.push_free(first + (1 << from), from);
        }
        Some(first)
    }

    fn give(&mut self, first: u32, order: usize) {
        if self.cache[order].len() < CACHED_MAX {
            self.cache[order].push(first);
        } else {
            self.join(first, order);
        }
    }

    fn join_cached(&mut self) {
        for order in 0..ORDERS {
            while let Some(first) = self.cache[order].pop() {
                self.join(first, order);
            }
        }
    }

    fn join(&mut self, mut first: u32, mut order: usize) {
        while order < ORDERS - 1 {
            let buddy = first ^ (1 << order);
            if self.order.get(buddy as usize) != Some(&(order as u8)) {
                break;
            }
            self.unlink(buddy, order);
            first &= !(1 << order);
            order += 1;
        }
        self.push_free(first, order);
    }

    fn push_free(&mut self, first: u32, order: usize) {
        let head = self.free[order];
        self.next[first as usize] = head;
        self.prev[first as usize] = NIL;
        if head != NIL {
            self.prev[head as usize] = first;
        }
        self.free[order] = first;
        self.order[first as usize] = order as u8;
    }

    fn unlink(&mut self, first: u32, order: usize) {
        let (prev, next) = (self.prev[first as usize], self.next[first as usize]);
        if prev == NIL {
            self.free[order] = next;
        } else {
            self.next[prev as usize] = next;
        }
        if next != NIL {
            self.prev[next as usize] = prev;
        }
        self.order[first as usize] = LENT;
    }
}

/// A buffer with one owner.
pub struct BufMut {
    pool: Rc<Inner>,
    first: u32,
    order: u8,
    class: Class,
    start: u32,
    len: u32,
}

impl BufMut {
    /// Address of the first byte, for the kernel.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pool.address(self.first, self.start).as_ptr()
    }

    /// How many bytes the block has room for behind the start.
    pub fn capacity(&self) -> usize {
        (UNIT << self.order) - self.start as usize
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
        let at = pool.address(this.first, this.start);
        pool.shares[this.first as usize].set(1);
        Buf {
            at,
            len: this.len,
            owner: Owner::Pool { pool, first: this.first, order: this.order, class: this.class },
        }
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the block is initialised memory of the arena (zero pages at first), this value is
        // its only owner, and `start + len` is within it.
        unsafe {
            std::slice::from_raw_parts(self.pool.address(self.first, self.start).as_ptr(), self.len as usize)
        }
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
        self.pool.give_back(self.first, self.order, self.class);
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({} bytes, {:?})", self.len, self.class)
    }
}

/// A read-only, shareable view of a buffer or of a [`Region`](crate::Region).
pub struct Buf {
    at: NonNull<u8>,
    len: u32,
    owner: Owner,
}

enum Owner {
    Pool { pool: Rc<Inner>, first: u32, order: u8, class: Class },
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
        assert!(at.checked_add(into.len()).is_some_and(|end| end <= self.len()), "copy outside of a buffer");
        // SAFETY: the source range is within the owner's memory, which lives as long as `self`; the
        // destination is a unique borrow, so the two cannot overlap. A region's bytes may change
        // during the copy: then a mixture is copied, which is what a concurrent write means.
        unsafe { std::ptr::copy_nonoverlapping(self.at.as_ptr().add(at), into.as_mut_ptr(), into.len()) };
    }
}

impl Clone for Buf {
    fn clone(&self) -> Self {
        let owner = match &self.owner {
            Owner::Pool { pool, first, order, class } => {
                let shares = &pool.shares[*first as usize];
                shares.set(shares.get() + 1);
                Owner::Pool { pool: pool.clone(), first: *first, order: *order, class: *class }
            }
            Owner::Region(region) => Owner::Region(region.clone()),
        };
        Buf { at: self.at, len: self.len, owner }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Owner::Pool { pool, first, order, class } = &self.owner {
            let shares = &pool.shares[*first as usize];
            shares.set(shares.get() - 1);
            if shares.get() == 0 {
                pool.give_back(*first, *order, *class);
            }
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_stable() { "pool" } else { "region" };
        write!(f, "Buf({} bytes of a {kind})", self.len)
    }
}
