//! The pool: one arena per shard, lent in blocks of 512 bytes to 1 MiB.
//!
//! Memory is accounted by [`MemoryClass`]. Memory promised for unsolicited payload ([`Pool::reserve`]) is never
//! used for anything else, because the byte streams that carry the payload would stall (see "advertise only
//! what is reserved" in `ARCHITECTURE.md`).

use std::fmt;
use std::rc::Rc;

use crate::arena::{Arena, BLOCK_MAX, BLOCK_MIN, MemoryClass, PoolAccount};
use crate::buffer::BufMut;
use crate::sg::{Sg, SgMut};

/// A shard's memory. Cloning shares the pool.
#[derive(Clone)]
pub struct Pool {
    arena: Rc<Arena>,
}

/// What a pool holds and lends, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Size of the arena.
    pub capacity: usize,
    /// Lent to anyone, rounded to block sizes.
    pub lent: usize,
    /// Set aside for unsolicited payload, on all accounts.
    pub reserved: usize,
}

impl PoolUsage {
    /// The most that may be set aside: the other half stays for data that is asked for, or nothing
    /// could be served.
    pub fn reservable_max(&self) -> usize {
        self.capacity / 2
    }
}

impl Pool {
    /// A pool of `bytes`, rounded up to whole MiB, at most 2 TiB.
    ///
    /// # Panics
    /// If the address space has no room for it.
    pub fn new(bytes: usize) -> Self {
        Pool { arena: Rc::new(Arena::new(bytes)) }
    }

    /// The same for tests: what it lends and what it gets back holds a pattern that
    /// [`poison::find`](crate::poison::find) finds.
    ///
    /// # Panics
    /// As [`Pool::new`].
    #[cfg(feature = "poison")]
    pub fn new_poisoned(bytes: usize) -> Self {
        let pool = Pool::new(bytes);
        pool.arena.poisoned.set(true);
        pool
    }

    /// One contiguous buffer of `len` bytes (0 to 1 MiB), its contents whatever was there last;
    /// `None` if the class may take no more now, or no block is large enough.
    #[inline]
    pub fn take(&self, class: MemoryClass, len: usize) -> Option<BufMut> {
        let lease = self.arena.allocate(class, len)?;
        Some(BufMut::new(self.arena.clone(), lease, len as u32))
    }

    /// Buffers of `len` bytes together: contiguous if that can be had, else in several pieces of at
    /// least 512 bytes.
    pub fn take_sg(&self, class: MemoryClass, len: usize) -> Option<SgMut> {
        if let Some(whole) = self.take(class, len) {
            return Some(whole.into());
        }
        // What the class cannot have at all is not begun.
        let units = len.checked_next_multiple_of(BLOCK_MIN)?;
        if !self.arena.may_allocate(class, units, units) {
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
            if piece_max < BLOCK_MIN {
                return None;
            }
        }
        Some(sg)
    }

    /// As [`Pool::take_sg`], but the memory is only set aside (and counted as lent): it is taken when it is used
    /// first. So an operation that waits long for its bytes holds no memory meanwhile that the processor's cache
    /// has forgotten when they come. What is promised for unsolicited payload cannot be set aside: it is then
    /// `None`, as if there were none.
    ///
    /// ```
    /// use blockwire_buf::{MemoryClass, Pool};
    ///
    /// let pool = Pool::new(1 << 20);
    /// let mut waiting = pool.take_sg_later(MemoryClass::Wire, 4096).unwrap();
    /// assert_eq!((waiting.len(), pool.usage().lent), (4096, 4096));
    /// waiting.copy_from(0, b"bytes");
    /// assert_eq!(pool.usage().lent, 4096);
    /// ```
    pub fn take_sg_later(&self, class: MemoryClass, len: usize) -> Option<SgMut> {
        match class {
            MemoryClass::Unsolicited => None,
            MemoryClass::Wire | MemoryClass::Solicited => {
                let lease = self.arena.set_aside(class, len)?;
                Some(SgMut::set_aside(BufMut::set_aside(&self.arena, lease), len))
            }
        }
    }

    /// The bytes of `from` in memory of the pool, which nobody else writes. `None`: there is not as much.
    #[must_use]
    pub fn copy_sg(&self, class: MemoryClass, from: &Sg) -> Option<Sg> {
        let mut copy = self.take_sg(class, from.len())?;
        let mut offset = 0;
        for slice in copy.slices_mut(0..from.len()) {
            from.copy_to(offset, slice);
            offset += slice.len();
        }
        Some(copy.freeze())
    }

    /// From now on one part in `share` of what may be promised is kept for each account, however much the
    /// other one wants; 0: nothing is. What was promised before stays.
    pub fn set_account_share(&self, share: usize) {
        self.arena.floor.set(self.usage().reservable_max().checked_div(share).unwrap_or(0));
    }

    /// How much more may be set aside on an account.
    #[expect(clippy::indexing_slicing, reason = "there is an entry for each account")]
    pub fn reservable_bytes(&self, account: PoolAccount) -> usize {
        let others = self.arena.reserved[account.other() as usize].get().max(self.arena.floor.get());
        let own = self.arena.reserved[account as usize].get();
        self.usage().reservable_max().saturating_sub(others).saturating_sub(own)
    }

    /// Sets `bytes` (rounded up to 512) aside for unsolicited payload; false if so much is not left
    /// to promise. Each payload to come takes up whole units of 512 bytes.
    #[expect(clippy::indexing_slicing, reason = "there is an entry for each account")]
    pub fn reserve(&self, account: PoolAccount, bytes: usize) -> bool {
        let arena = &self.arena;
        let Some(more) = bytes.checked_next_multiple_of(BLOCK_MIN) else { return false };
        if more > self.reservable_bytes(account) {
            return false;
        }
        // What is lent already cannot be promised.
        let promised = (arena.reserved_bytes() + more).saturating_sub(arena.used.get());
        if promised > arena.capacity() - arena.lent.get() {
            return false;
        }
        let own = &arena.reserved[account as usize];
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
    pub fn unreserve(&self, account: PoolAccount, bytes: usize) {
        let own = &self.arena.reserved[account as usize];
        let left = own.get().checked_sub(bytes.next_multiple_of(BLOCK_MIN));
        own.set(left.expect("no more is given back than was reserved"));
    }

    /// How many buffers have come back since the start: who was refused memory and sees another
    /// number than then may ask again.
    #[inline]
    pub fn buffers_returned(&self) -> u64 {
        self.arena.returned.get()
    }

    /// What is held and lent now.
    pub fn usage(&self) -> PoolUsage {
        PoolUsage {
            capacity: self.arena.capacity(),
            lent: self.arena.lent.get(),
            reserved: self.arena.reserved_bytes(),
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.usage().fmt(f)
    }
}

#[cfg(test)]
mod tests;
