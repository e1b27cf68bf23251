//! The arena of a pool: blocks of 512 bytes to 1 MiB, their owners, and the limit of each class.
//!
//! Invariant, as long as no unsolicited memory beyond the reservation is taken: free bytes ≥ reserved −
//! unsolicited bytes in use.

use std::cell::Cell;
use std::ptr::NonNull;

use crate::buddy_blocks::{BuddyBlocks, ORDERS};
use crate::memory_mapping::{map_anonymous, unmap};

/// What memory is taken for. It decides how deep into the pool a request may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryClass {
    /// Headers and small replies: may take everything but what was promised.
    Wire,
    /// Payload that arrives unasked (immediate data, first bursts, capsules), promised to the peer
    /// and set aside with [`Pool::reserve`](crate::Pool::reserve).
    Unsolicited,
    /// Payload that can wait: reads, and writes solicited by R2T. Leaves alone what was promised,
    /// and a sixteenth of the pool besides, for headers.
    Solicited,
}

/// On whose account memory is set aside: one for each transport that shares a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolAccount {
    /// Sessions of iSCSI.
    Iscsi,
    /// Queues of NVMe/TCP.
    NvmeTcp,
}

impl PoolAccount {
    const COUNT: usize = 2;

    pub(crate) fn other(self) -> PoolAccount {
        match self {
            PoolAccount::Iscsi => PoolAccount::NvmeTcp,
            PoolAccount::NvmeTcp => PoolAccount::Iscsi,
        }
    }
}

/// The smallest block, in bytes.
pub(crate) const BLOCK_MIN: usize = 512;
/// The largest block, in bytes.
pub(crate) const BLOCK_MAX: usize = BLOCK_MIN << (ORDERS - 1);
/// One part in so many stays for headers and replies when payload has taken all it may.
const WIRE_RESERVE_DIVISOR: usize = 16;

/// One mapping, and who has how much of it.
pub(crate) struct Arena {
    pub(crate) base: NonNull<u8>,
    units: u32,
    blocks: BuddyBlocks,
    /// Shares of each block that was frozen, by first unit.
    shares: Box<[Cell<u32>]>,
    /// Bytes of the blocks that are lent.
    pub(crate) lent: Cell<usize>,
    /// By account.
    pub(crate) reserved: [Cell<usize>; PoolAccount::COUNT],
    /// What each account may have, whatever the other one has: none takes all.
    pub(crate) floor: Cell<usize>,
    /// Bytes asked for (not lent: blocks are larger) of what was reserved, in whole units.
    pub(crate) used: Cell<usize>,
    pub(crate) returned: Cell<u64>,
    /// Whether its memory shows that nobody has filled it.
    #[cfg(feature = "poison")]
    pub(crate) poisoned: Cell<bool>,
}

/// One block that is lent.
#[derive(Clone, Copy)]
pub(crate) struct BlockLease {
    /// First unit.
    first: u32,
    /// Units that were asked for.
    asked: u16,
    /// The order of the block, and [`SPLIT_FLAG`]; or [`SET_ASIDE_FLAG`].
    shape: u8,
    pub(crate) class: MemoryClass,
}

/// The block was cut: those who hold it are counted.
const SPLIT_FLAG: u8 = 0x80;
/// There is no block yet: `first` is how many units are set aside.
const SET_ASIDE_FLAG: u8 = 0x40;

impl BlockLease {
    pub(crate) fn block_bytes(self) -> usize {
        BLOCK_MIN << self.order()
    }

    fn order(self) -> usize {
        usize::from(self.shape & !SPLIT_FLAG)
    }

    pub(crate) fn is_split(self) -> bool {
        self.shape & SPLIT_FLAG != 0
    }

    /// Bytes that are set aside; `None`: it is a block.
    #[inline]
    pub(crate) fn set_aside_bytes(self) -> Option<usize> {
        (self.shape & SET_ASIDE_FLAG != 0).then_some(self.first as usize * BLOCK_MIN)
    }

    /// The same for a part of the block.
    pub(crate) fn as_split(self) -> BlockLease {
        BlockLease { shape: self.shape | SPLIT_FLAG, ..self }
    }

    pub(crate) fn is_same_block(&self, other: &BlockLease) -> bool {
        self.first == other.first
    }

    fn requested_bytes(self) -> usize {
        usize::from(self.asked) * BLOCK_MIN
    }
}

impl Arena {
    #[expect(clippy::expect_used, reason = "documented: a pool has at most 2 TiB")]
    pub(crate) fn new(bytes: usize) -> Self {
        let bytes = bytes.max(1).next_multiple_of(BLOCK_MAX);
        let units = u32::try_from(bytes / BLOCK_MIN).expect("a pool is smaller than 2 TiB");
        Arena {
            base: map_anonymous(bytes),
            units,
            blocks: BuddyBlocks::new(units),
            shares: vec![Cell::new(0); units as usize].into(),
            lent: Cell::new(0),
            reserved: Default::default(),
            floor: Cell::new(0),
            used: Cell::new(0),
            returned: Cell::new(0),
            #[cfg(feature = "poison")]
            poisoned: Cell::new(false),
        }
    }

    /// A block for `len` bytes; `None` if the class may take no more now, or no block is large enough.
    #[inline]
    pub(crate) fn allocate(&self, class: MemoryClass, len: usize) -> Option<BlockLease> {
        let order = order_for_len(len)?;
        let asked = len.div_ceil(BLOCK_MIN);
        if !self.may_allocate(class, BLOCK_MIN << order, BLOCK_MIN * asked) {
            return None;
        }
        let first = self.blocks.allocate(order)?;
        let lease = BlockLease { first, asked: asked as u16, shape: order as u8, class };
        self.count_lease(lease);
        self.poison(lease);
        Some(lease)
    }

    /// Counts memory for `len` bytes as lent, without taking any: a block for all of it if the class may have that,
    /// else whole units. What is set aside is free in the blocks; `None`: the class may have neither.
    pub(crate) fn set_aside(&self, class: MemoryClass, len: usize) -> Option<BlockLease> {
        let least = len.max(1).checked_next_multiple_of(BLOCK_MIN)?;
        let whole = order_for_len(len).map(|order| BLOCK_MIN << order);
        let fits = |bytes: &usize| self.may_allocate(class, *bytes, least);
        let bytes = whole.filter(fits).or_else(|| Some(least).filter(fits))?;
        let first = u32::try_from(bytes / BLOCK_MIN).ok()?;
        self.lent.set(self.lent.get() + bytes);
        Some(BlockLease { first, asked: 0, shape: SET_ASIDE_FLAG, class: MemoryClass::Wire })
    }

    /// A block for `len` bytes that were set aside, if it needs no more than `bytes` and there is one.
    pub(crate) fn take_set_aside(&self, len: usize, bytes: usize) -> Option<BlockLease> {
        let order = order_for_len(len).filter(|order| BLOCK_MIN << order <= bytes)?;
        let first = self.blocks.allocate(order)?;
        let asked = len.div_ceil(BLOCK_MIN) as u16;
        let lease = BlockLease { first, asked, shape: order as u8, class: MemoryClass::Wire };
        self.count_lease(lease);
        self.poison(lease);
        Some(lease)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.units as usize * BLOCK_MIN
    }

    /// On all accounts.
    #[inline]
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.reserved.iter().map(Cell::get).sum()
    }

    /// Whether a block of `bytes` may go to `class` for `asked` bytes, if there is one.
    #[inline]
    pub(crate) fn may_allocate(&self, class: MemoryClass, bytes: usize, asked: usize) -> bool {
        let promised = self.reserved_bytes().saturating_sub(self.used.get());
        let kept = match class {
            // What a block is larger than was asked must not come out of others' promises.
            MemoryClass::Unsolicited => promised.saturating_sub(asked),
            MemoryClass::Wire => promised,
            MemoryClass::Solicited => promised + self.capacity() / WIRE_RESERVE_DIVISOR,
        };
        bytes.saturating_add(kept) <= self.capacity() - self.lent.get()
    }

    #[inline]
    fn count_lease(&self, lease: BlockLease) {
        self.lent.set(self.lent.get() + lease.block_bytes());
        if lease.class == MemoryClass::Unsolicited {
            self.used.set(self.used.get() + lease.requested_bytes());
        }
    }

    #[inline]
    pub(crate) fn free(&self, lease: BlockLease) {
        if let Some(bytes) = lease.set_aside_bytes() {
            self.lent.set(self.lent.get() - bytes);
            self.returned.set(self.returned.get() + 1);
            return;
        }
        self.lent.set(self.lent.get() - lease.block_bytes());
        if lease.class == MemoryClass::Unsolicited {
            self.used.set(self.used.get() - lease.requested_bytes());
        }
        self.returned.set(self.returned.get() + 1);
        self.poison(lease);
        self.blocks.free(lease.first, lease.order());
    }

    /// Nothing of a block that nobody names is what was there last.
    #[cfg(feature = "poison")]
    fn poison(&self, lease: BlockLease) {
        if self.poisoned.get() {
            // SAFETY: the block is within the arena, which is mapped and initialised, and nobody names it: it is
            // not lent yet, or its last owner has just given it back.
            let memory = unsafe {
                std::slice::from_raw_parts_mut(self.block_address(lease).as_ptr(), lease.block_bytes())
            };
            crate::poison::fill(memory);
        }
    }

    /// Nothing is done to memory outside of tests.
    #[cfg(not(feature = "poison"))]
    #[inline(always)]
    fn poison(&self, _: BlockLease) {}

    /// Starts to count the shares of a block that had one owner.
    #[expect(clippy::indexing_slicing, reason = "a lease names units of its pool")]
    pub(crate) fn begin_sharing(&self, lease: BlockLease) {
        self.shares[lease.first as usize].set(1);
    }

    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "a lease names units of its pool; 2^32 shares do not fit in memory"
    )]
    pub(crate) fn add_share(&self, lease: BlockLease) {
        let shares = &self.shares[lease.first as usize];
        // Who forgets four thousand million shares must not get the block lent twice.
        shares.set(shares.get().checked_add(1).expect("a buffer has fewer than 2^32 shares"));
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a lease names units of its pool")]
    pub(crate) fn drop_share(&self, lease: BlockLease) {
        let shares = &self.shares[lease.first as usize];
        let left = shares.get() - 1;
        shares.set(left);
        if left == 0 {
            self.free(lease);
        }
    }

    /// Address of a block's first byte.
    #[inline]
    pub(crate) fn block_address(&self, lease: BlockLease) -> NonNull<u8> {
        // SAFETY: the lease names a block of this arena, so the sum stays inside the mapping.
        unsafe { self.base.add(lease.first as usize * BLOCK_MIN) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map_anonymous` with this length, and every buffer holds
        // an `Rc` of this value, so none is left.
        unsafe { unmap(self.base, self.capacity()) };
    }
}

/// The order of the smallest block for `len` bytes.
#[inline]
fn order_for_len(len: usize) -> Option<usize> {
    if len > BLOCK_MAX {
        return None;
    }
    Some(
        len.max(BLOCK_MIN).next_power_of_two().trailing_zeros() as usize
            - BLOCK_MIN.trailing_zeros() as usize,
    )
}
