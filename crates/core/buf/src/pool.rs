//! The pool: one arena per shard, lent in blocks of 512 bytes to 1 MiB.
//!
//! Memory is accounted by [`Class`]: what unsolicited payload was promised ([`Pool::reserve`]) is
//! never lent to anything else, since the byte streams that the payload stands in could not move
//! on (see "advertise only what is reserved" in `ARCHITECTURE.md`). Invariant, as long as nobody
//! takes more unsolicited memory than was set aside: free bytes ≥ reserved − asked for unsolicited.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::blocks::{Blocks, ORDERS};
use crate::buffer::BufMut;
use crate::memory::{map_anonymous, unmap};
use crate::sg::SgMut;

/// The smallest block, in bytes.
const UNIT: usize = 512;
/// The largest block, in bytes.
const BLOCK_MAX: usize = UNIT << (ORDERS - 1);
/// One part in so many stays for headers and replies when payload has taken all it may.
const WIRE_SHARE: usize = 16;

/// What memory is taken for. It decides how deep into the pool a request may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Headers and small replies: may take everything but what was promised.
    Wire,
    /// Payload that arrives unasked (immediate data, first bursts, capsules), promised to the peer
    /// and set aside with [`Pool::reserve`].
    Unsolicited,
    /// Payload that can wait: reads, and writes solicited by R2T. Leaves alone what was promised,
    /// and a sixteenth of the pool besides, for headers.
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
    /// Set aside for unsolicited payload, on all accounts.
    pub reserved: usize,
}

/// On whose account memory is set aside: one for each transport that shares a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Sessions of iSCSI.
    Iscsi,
    /// Queues of NVMe/TCP.
    NvmeTcp,
}

impl Account {
    const COUNT: usize = 2;

    fn other(self) -> Account {
        match self {
            Account::Iscsi => Account::NvmeTcp,
            Account::NvmeTcp => Account::Iscsi,
        }
    }
}

impl PoolUse {
    /// The most that may be set aside: the other half stays for data that is asked for, or nothing
    /// could be served.
    pub fn promise_max(&self) -> usize {
        self.capacity / 2
    }
}

pub(crate) struct Inner {
    base: NonNull<u8>,
    units: u32,
    blocks: Blocks,
    /// Shares of each block that was frozen, by first unit.
    shares: Box<[Cell<u32>]>,
    /// Bytes of the blocks that are lent.
    lent: Cell<usize>,
    /// By account.
    reserved: [Cell<usize>; Account::COUNT],
    /// What each account may have, whatever the other one has: none takes all.
    floor: Cell<usize>,
    /// Bytes asked for (not lent: blocks are larger) of what was reserved, in whole units.
    used: Cell<usize>,
    returned: Cell<u64>,
    /// Whether its memory shows that nobody has filled it.
    #[cfg(feature = "rig")]
    poisoned: Cell<bool>,
}

/// One block that is lent.
#[derive(Clone, Copy)]
pub(crate) struct Lease {
    /// First unit.
    first: u32,
    /// Units that were asked for.
    asked: u16,
    /// The order of the block, and [`IN_PARTS`].
    shape: u8,
    pub(crate) class: Class,
}

/// The block was cut: those who hold it are counted.
const IN_PARTS: u8 = 0x80;

impl Lease {
    pub(crate) fn block_bytes(self) -> usize {
        UNIT << self.order()
    }

    fn order(self) -> usize {
        usize::from(self.shape & !IN_PARTS)
    }

    pub(crate) fn is_in_parts(self) -> bool {
        self.shape & IN_PARTS != 0
    }

    /// The same for a part of the block.
    pub(crate) fn in_parts(self) -> Lease {
        Lease { shape: self.shape | IN_PARTS, ..self }
    }

    pub(crate) fn is_same(&self, other: &Lease) -> bool {
        self.first == other.first
    }

    fn asked_bytes(self) -> usize {
        usize::from(self.asked) * UNIT
    }
}

impl Pool {
    /// A pool of `bytes`, rounded up to whole MiB, at most 2 TiB.
    ///
    /// # Panics
    /// If the address space has no room for it.
    #[expect(clippy::expect_used, reason = "documented: a pool has at most 2 TiB")]
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.max(1).next_multiple_of(BLOCK_MAX);
        let units = u32::try_from(bytes / UNIT).expect("a pool is smaller than 2 TiB");
        let inner = Inner {
            base: map_anonymous(bytes),
            units,
            blocks: Blocks::new(units),
            shares: vec![Cell::new(0); units as usize].into(),
            lent: Cell::new(0),
            reserved: Default::default(),
            floor: Cell::new(0),
            used: Cell::new(0),
            returned: Cell::new(0),
            #[cfg(feature = "rig")]
            poisoned: Cell::new(false),
        };
        Pool { inner: Rc::new(inner) }
    }
    /// The same for tests: what it lends and what it gets back holds a pattern that
    /// [`poison::find`](crate::poison::find) finds.
    ///
    /// # Panics
    /// As [`Pool::new`].
    #[cfg(feature = "rig")]
    pub fn poisoned(bytes: usize) -> Self {
        let pool = Pool::new(bytes);
        pool.inner.poisoned.set(true);
        pool
    }

    /// One contiguous buffer of `len` bytes (0 to 1 MiB), its contents whatever was there last;
    /// `None` if the class may take no more now, or no block is large enough.
    #[inline]
    pub fn take(&self, class: Class, len: usize) -> Option<BufMut> {
        let order = order_of(len)?;
        let inner = &self.inner;
        let asked = len.div_ceil(UNIT);
        if !inner.may_take(class, UNIT << order, UNIT * asked) {
            return None;
        }
        let first = inner.blocks.take(order)?;
        let lease = Lease { first, asked: asked as u16, shape: order as u8, class };
        inner.lend(lease);
        inner.poison(lease);
        Some(BufMut::new(inner.clone(), lease, len as u32))
    }

    /// Buffers of `len` bytes together: contiguous if that can be had, else in several pieces of at
    /// least 512 bytes.
    pub fn take_sg(&self, class: Class, len: usize) -> Option<SgMut> {
        if let Some(whole) = self.take(class, len) {
            return Some(whole.into());
        }
        // What the class cannot have at all is not begun.
        let units = len.checked_next_multiple_of(UNIT)?;
        if !self.inner.may_take(class, units, units) {
            return None;
        }
        let mut sg = SgMut::new();
        let mut piece_max = BLOCK_MAX;
        while sg.len() < len {
            let want = (len - sg.len()).min(piece_max);
            match self.take(class, want) {
                Some(piece) => sg.push(piece),
                None => piece_max = want.next_power_of_two() / 2,
            }
            if piece_max < UNIT {
                return None;
            }
        }
        Some(sg)
    }

    /// From now on one part in `share` of what may be promised is kept for each account, however much the
    /// other one wants; 0: nothing is. What was promised before stays.
    pub fn share_between_accounts(&self, share: usize) {
        self.inner.floor.set(self.usage().promise_max().checked_div(share).unwrap_or(0));
    }

    /// How much more may be set aside on an account.
    #[expect(clippy::indexing_slicing, reason = "there is an entry for each account")]
    pub fn left_to_promise(&self, account: Account) -> usize {
        let others = self.inner.reserved[account.other() as usize].get().max(self.inner.floor.get());
        let own = self.inner.reserved[account as usize].get();
        self.usage().promise_max().saturating_sub(others).saturating_sub(own)
    }

    /// Sets `bytes` (rounded up to 512) aside for unsolicited payload; false if so much is not left
    /// to promise. Each payload to come takes up whole units of 512 bytes.
    #[expect(clippy::indexing_slicing, reason = "there is an entry for each account")]
    pub fn reserve(&self, account: Account, bytes: usize) -> bool {
        let inner = &self.inner;
        let Some(more) = bytes.checked_next_multiple_of(UNIT) else { return false };
        if more > self.left_to_promise(account) {
            return false;
        }
        // What is lent already cannot be promised.
        let promised = (inner.reserved() + more).saturating_sub(inner.used.get());
        if promised > inner.capacity() - inner.lent.get() {
            return false;
        }
        let own = &inner.reserved[account as usize];
        own.set(own.get() + more);
        true
    }

    /// Gives back what [`Pool::reserve`] set aside, called with the same number and account.
    ///
    /// # Panics
    /// If that is more than is reserved.
    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "there is an entry for each account; what is given back was reserved, since a reservation is given back once"
    )]
    pub fn unreserve(&self, account: Account, bytes: usize) {
        let own = &self.inner.reserved[account as usize];
        let left = own.get().checked_sub(bytes.next_multiple_of(UNIT));
        own.set(left.expect("no more is given back than was reserved"));
    }

    /// How many buffers have come back since the start: who was refused memory and sees another
    /// number than then may ask again.
    #[inline]
    pub fn returned(&self) -> u64 {
        self.inner.returned.get()
    }

    /// What is held and lent now.
    pub fn usage(&self) -> PoolUse {
        PoolUse {
            capacity: self.inner.capacity(),
            lent: self.inner.lent.get(),
            reserved: self.inner.reserved(),
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

    /// On all accounts.
    #[inline]
    fn reserved(&self) -> usize {
        self.reserved.iter().map(Cell::get).sum()
    }

    /// Whether a block of `bytes` may go to `class` for `asked` bytes, if there is one.
    #[inline]
    fn may_take(&self, class: Class, bytes: usize, asked: usize) -> bool {
        let promised = self.reserved().saturating_sub(self.used.get());
        let kept = match class {
            // What a block is larger than was asked must not come out of others' promises.
            Class::Unsolicited => promised.saturating_sub(asked),
            Class::Wire => promised,
            Class::Solicited => promised + self.capacity() / WIRE_SHARE,
        };
        bytes.saturating_add(kept) <= self.capacity() - self.lent.get()
    }

    #[inline]
    fn lend(&self, lease: Lease) {
        self.lent.set(self.lent.get() + lease.block_bytes());
        if lease.class == Class::Unsolicited {
            self.used.set(self.used.get() + lease.asked_bytes());
        }
    }

    #[inline]
    pub(crate) fn give_back(&self, lease: Lease) {
        self.lent.set(self.lent.get() - lease.block_bytes());
        if lease.class == Class::Unsolicited {
            self.used.set(self.used.get() - lease.asked_bytes());
        }
        self.returned.set(self.returned.get() + 1);
        self.poison(lease);
        self.blocks.give(lease.first, lease.order());
    }

    /// Nothing of a block that nobody names is what was there last.
    #[cfg(feature = "rig")]
    fn poison(&self, lease: Lease) {
        if self.poisoned.get() {
            // SAFETY: the block is within the arena, which is mapped and initialised, and nobody names it: it is
            // not lent yet, or its last owner has just given it back.
            let memory =
                unsafe { std::slice::from_raw_parts_mut(self.address(lease).as_ptr(), lease.block_bytes()) };
            crate::poison::fill(memory);
        }
    }

    /// Nothing is done to memory outside of tests.
    #[cfg(not(feature = "rig"))]
    #[inline(always)]
    fn poison(&self, _: Lease) {}

    /// Starts to count the shares of a block that had one owner.
    #[expect(clippy::indexing_slicing, reason = "a lease names units of its pool")]
    pub(crate) fn share_first(&self, lease: Lease) {
        self.shares[lease.first as usize].set(1);
    }

    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "a lease names units of its pool; 2^32 shares do not fit in memory"
    )]
    pub(crate) fn share_more(&self, lease: Lease) {
        let shares = &self.shares[lease.first as usize];
        // Who forgets four thousand million shares must not get the block lent twice.
        shares.set(shares.get().checked_add(1).expect("a buffer has fewer than 2^32 shares"));
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a lease names units of its pool")]
    pub(crate) fn share_less(&self, lease: Lease) {
        let shares = &self.shares[lease.first as usize];
        let left = shares.get() - 1;
        shares.set(left);
        if left == 0 {
            self.give_back(lease);
        }
    }

    /// Address of a block's first byte.
    #[inline]
    pub(crate) fn address(&self, lease: Lease) -> NonNull<u8> {
        // SAFETY: the lease names a block of this arena, so the sum stays inside the mapping.
        unsafe { self.base.add(lease.first as usize * UNIT) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map_anonymous` with this length, and every buffer holds
        // an `Rc` of this value, so none is left.
        unsafe { unmap(self.base, self.capacity()) };
    }
}

/// The order of the smallest block for `len` bytes.
#[inline]
fn order_of(len: usize) -> Option<usize> {
    if len > BLOCK_MAX {
        return None;
    }
    Some(len.max(UNIT).next_power_of_two().trailing_zeros() as usize - UNIT.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests;
