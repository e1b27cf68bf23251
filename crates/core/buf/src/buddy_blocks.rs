//! Blocks of an arena, by a lazy buddy scheme: powers of two from one unit up.
//!
//! Freed blocks go to a small last-in-first-out cache of their size, so that the next I/O writes into memory
//! that is still in the processor's cache. They are joined with their buddies only when a larger block is
//! needed and none can be split. Invariant: every unit is in exactly one of: a block of a free list, a block
//! of a size's cache, a block that was taken.

use std::cell::{Cell, RefCell};

/// Number of block sizes: 512 bytes × 2^0 … 2^11 = 1 MiB.
pub(crate) const ORDERS: usize = 12;
/// How many freed blocks of one size are kept unjoined.
const CACHED_BLOCKS_MAX: usize = 64;
/// No block, in the lists.
const NO_BLOCK: u32 = u32::MAX;
/// Marks a unit that starts no block of a free list.
const NOT_FREE: u8 = u8::MAX;

/// The blocks of one arena, named by their first unit.
pub(crate) struct BuddyBlocks {
    cache: [FreedBlockStack; ORDERS],
    joined: RefCell<FreeLists>,
}

/// Freed blocks of one size, the last one on top.
struct FreedBlockStack {
    len: Cell<usize>,
    firsts: [Cell<u32>; CACHED_BLOCKS_MAX],
}

impl FreedBlockStack {
    fn new() -> Self {
        FreedBlockStack { len: Cell::new(0), firsts: [const { Cell::new(NO_BLOCK) }; CACHED_BLOCKS_MAX] }
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "`top` is below the number of firsts, which is at most their capacity"
    )]
    fn pop(&self) -> Option<u32> {
        let top = self.len.get().checked_sub(1)?;
        self.len.set(top);
        Some(self.firsts[top].get())
    }

    /// False if there is no room.
    #[inline]
    fn push(&self, first: u32) -> bool {
        let len = self.len.get();
        let Some(place) = self.firsts.get(len) else { return false };
        place.set(first);
        self.len.set(len + 1);
        true
    }
}

/// The free lists.
struct FreeLists {
    /// Head of the free list of each size.
    free: [u32; ORDERS],
    /// Neighbours in the free list, by first unit.
    next: Box<[u32]>,
    prev: Box<[u32]>,
    /// Size (order) of the free block that starts at a unit, or `NOT_FREE`.
    order: Box<[u8]>,
}

impl BuddyBlocks {
    /// All of `units` units, a multiple of the largest block, free.
    pub(crate) fn new(units: u32) -> Self {
        let mut joined = FreeLists {
            free: [NO_BLOCK; ORDERS],
            next: vec![NO_BLOCK; units as usize].into(),
            prev: vec![NO_BLOCK; units as usize].into(),
            order: vec![NOT_FREE; units as usize].into(),
        };
        for first in (0..units).step_by(1 << (ORDERS - 1)).rev() {
            joined.push_free(first, ORDERS - 1);
        }
        BuddyBlocks { cache: std::array::from_fn(|_| FreedBlockStack::new()), joined: RefCell::new(joined) }
    }

    /// A block of 2^`order` units.
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "orders are below `ORDERS`, and units are below the number that the tables were made for"
    )]
    pub(crate) fn allocate(&self, order: usize) -> Option<u32> {
        match self.cache[order].pop() {
            Some(first) => Some(first),
            None => self.allocate_uncached(order),
        }
    }

    /// Takes a block back.
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "orders are below `ORDERS`, and units are below the number that the tables were made for"
    )]
    pub(crate) fn free(&self, first: u32, order: usize) {
        if !self.cache[order].push(first) {
            self.joined.borrow_mut().free_and_coalesce(first, order);
        }
    }

    #[cold]
    #[expect(
        clippy::indexing_slicing,
        reason = "orders are below `ORDERS`, and units are below the number that the tables were made for"
    )]
    fn allocate_uncached(&self, order: usize) -> Option<u32> {
        let mut joined = self.joined.borrow_mut();
        if let Some(first) = joined.allocate(order) {
            return Some(first);
        }
        // A larger one at rest is split before smaller ones are searched for buddies.
        let larger = (order + 1..ORDERS).find_map(|o| Some((self.cache[o].pop()?, o)));
        if let Some((first, from)) = larger {
            joined.free_excess(first, from, order);
            return Some(first);
        }
        for smaller in 0..order {
            while let Some(first) = self.cache[smaller].pop() {
                joined.free_and_coalesce(first, smaller);
            }
        }
        joined.allocate(order)
    }
}

impl FreeLists {
    #[expect(
        clippy::indexing_slicing,
        reason = "orders are below `ORDERS`, and units are below the number that the tables were made for"
    )]
    fn allocate(&mut self, order: usize) -> Option<u32> {
        let from = (order..ORDERS).find(|&o| self.free[o] != NO_BLOCK)?;
        let first = self.free[from];
        self.unlink(first, from);
        self.free_excess(first, from, order);
        Some(first)
    }

    /// Frees all of the block but its first 2^`to` units.
    fn free_excess(&mut self, first: u32, from: usize, to: usize) {
        for order in (to..from).rev() {
            self.push_free(first + (1 << order), order);
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "orders are below `ORDERS`, and units are below the number that the tables were made for"
    )]
    fn free_and_coalesce(&mut self, mut first: u32, mut order: usize) {
        while order < ORDERS - 1 {
            let buddy = first ^ (1 << order);
            if usize::from(self.order[buddy as usize]) != order {
                break;
            }
            self.unlink(buddy, order);
            first &= !(1 << order);
            order += 1;
        }
        self.push_free(first, order);
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "orders are below `ORDERS`, and units are below the number that the tables were made for"
    )]
    fn push_free(&mut self, first: u32, order: usize) {
        let head = self.free[order];
        self.next[first as usize] = head;
        self.prev[first as usize] = NO_BLOCK;
        if head != NO_BLOCK {
            self.prev[head as usize] = first;
        }
        self.free[order] = first;
        self.order[first as usize] = order as u8;
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "orders are below `ORDERS`, and units are below the number that the tables were made for"
    )]
    fn unlink(&mut self, first: u32, order: usize) {
        let (prev, next) = (self.prev[first as usize], self.next[first as usize]);
        if prev == NO_BLOCK {
            self.free[order] = next;
        } else {
            self.next[prev as usize] = next;
        }
        if next != NO_BLOCK {
            self.prev[next as usize] = prev;
        }
        self.order[first as usize] = NOT_FREE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNITS: u32 = 4 << (ORDERS - 1);

    /// Every unit is in one place only; `taken` is what the test holds.
    fn check(blocks: &BuddyBlocks, taken: &[(u32, usize)]) {
        let mut seen = vec![false; UNITS as usize];
        let mut mark = |first: u32, order: usize| {
            assert_eq!(first % (1 << order), 0, "a block lies at a multiple of its size");
            for unit in first..first + (1 << order) {
                assert!(!std::mem::replace(&mut seen[unit as usize], true), "unit {unit} is in two places");
            }
        };
        for order in 0..ORDERS {
            let joined = blocks.joined.borrow();
            let mut first = joined.free[order];
            while first != NO_BLOCK {
                assert_eq!(usize::from(joined.order[first as usize]), order);
                mark(first, order);
                first = joined.next[first as usize];
            }
            let stack = &blocks.cache[order];
            stack.firsts[..stack.len.get()].iter().for_each(|first| mark(first.get(), order));
        }
        taken.iter().for_each(|&(first, order)| mark(first, order));
        assert!(seen.into_iter().all(|seen| seen), "a unit is lost");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 48 }, ..ProptestConfig::default() })]

        #[test]
        fn every_unit_is_in_one_place(steps in prop::collection::vec((any::<bool>(), 0..ORDERS, any::<prop::sample::Index>()), 1..300)) {
            let blocks = BuddyBlocks::new(UNITS);
            let mut taken = Vec::new();
            for (take, order, which) in steps {
                if take || taken.is_empty() {
                    taken.extend(blocks.allocate(order).map(|first| (first, order)));
                } else {
                    let (first, order) = taken.swap_remove(which.index(taken.len()));
                    blocks.free(first, order);
                }
            }
            check(&blocks, &taken);
            for (first, order) in taken.drain(..) {
                blocks.free(first, order);
            }
            check(&blocks, &taken);
            // What came back joins up again, whatever order it came in.
            for _ in 0..4 {
                taken.push((blocks.allocate(ORDERS - 1).expect("all of it is free"), ORDERS - 1));
            }
            check(&blocks, &taken);
        }
    }

    #[test]
    fn small_blocks_fill_the_arena_and_join_again() {
        let blocks = BuddyBlocks::new(UNITS);
        let taken: Vec<_> = std::iter::from_fn(|| blocks.allocate(0)).collect();
        assert_eq!(taken.len(), UNITS as usize);
        for first in taken {
            blocks.free(first, 0);
        }
        assert!((0..4).all(|_| blocks.allocate(ORDERS - 1).is_some()));
        assert!(blocks.allocate(0).is_none());
    }

    #[test]
    fn the_last_one_given_is_the_next_one_taken() {
        let blocks = BuddyBlocks::new(UNITS);
        let (a, b) = (blocks.allocate(3).unwrap(), blocks.allocate(3).unwrap());
        blocks.free(b, 3);
        blocks.free(a, 3);
        assert_eq!(blocks.allocate(3), Some(a));
        assert_eq!(blocks.allocate(3), Some(b));
    }

    #[test]
    fn a_small_block_is_cut_from_a_larger_one_at_rest() {
        let blocks = BuddyBlocks::new(1 << (ORDERS - 1));
        let whole = blocks.allocate(ORDERS - 1).unwrap();
        blocks.free(whole, ORDERS - 1);
        assert_eq!(blocks.allocate(0), Some(whole));
    }
}
