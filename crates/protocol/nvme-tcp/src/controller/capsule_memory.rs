//! Memory reserved for in-capsule data (the third law in `ARCHITECTURE.md`).
//!
//! One unit is one capsule's data, rounded as the pool rounds. A queue holds a few units as long as it lives.
//! Each further command with in-capsule data borrows one while it is in flight, if the pool can promise it.
//! Otherwise the command waits in the stream, its header unread, until one before it has ended. A command
//! with a unit has all its data in the stream right behind its header, so it needs nothing more from any
//! stream.

use buf::{Pool, PoolAccount};

#[derive(Debug)]
pub(super) struct CapsuleMemory {
    pool: Pool,
    /// Bytes of one unit; 0 if nothing comes in capsules, or nothing is counted yet.
    unit: usize,
    /// Units that are kept, used or not.
    kept: u32,
    used: u32,
}

/// Borrowing leaves an eighth of what a pool may promise to queues that are still to come.
const SPARE_DIVISOR: usize = 8;

impl CapsuleMemory {
    /// Nothing is set aside.
    pub(super) fn empty(pool: &Pool) -> Self {
        CapsuleMemory { pool: pool.clone(), unit: 0, kept: 0, used: 0 }
    }

    /// Sets memory aside for `kept` capsules of `len` bytes; false if there is none.
    pub(super) fn reserve_capsules(&mut self, len: u32, kept: u32) -> bool {
        let unit = if len == 0 { 0 } else { (len as usize).next_power_of_two().max(512) };
        let granted = unit == 0 || self.pool.reserve(PoolAccount::NvmeTcp, kept as usize * unit);
        if granted {
            (self.unit, self.kept) = (unit, kept);
        }
        granted
    }

    /// Whether another capsule may come. If so it has its unit.
    pub(super) fn take_unit(&mut self) -> bool {
        let borrowed = self.unit > 0 && self.used >= self.kept;
        if borrowed && !self.borrow_unit() {
            return false;
        }
        self.used += 1;
        true
    }

    /// A capsule that was taken has come to its end.
    pub(super) fn release_unit(&mut self) {
        if self.unit > 0 && self.used > self.kept {
            self.pool.unreserve(PoolAccount::NvmeTcp, self.unit);
        }
        self.used -= 1;
    }

    fn borrow_unit(&mut self) -> bool {
        let usage = self.pool.usage();
        self.pool.reservable_bytes(PoolAccount::NvmeTcp) >= self.unit + usage.reservable_max() / SPARE_DIVISOR
            && self.pool.reserve(PoolAccount::NvmeTcp, self.unit)
    }
}

impl Drop for CapsuleMemory {
    fn drop(&mut self) {
        self.pool.unreserve(PoolAccount::NvmeTcp, self.kept.max(self.used) as usize * self.unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_borrowed_while_they_are_used_and_some_are_left() {
        let pool = Pool::new(1 << 20);
        let mut first = CapsuleMemory::empty(&pool);
        assert!(first.reserve_capsules(8000, 2));
        assert_eq!(pool.usage().reserved, 16 << 10);
        // Of 512 KiB an eighth is left.
        let most = (448 << 10) / 8192;
        for taken in 0..most {
            assert!(first.take_unit(), "{taken}");
        }
        assert!(!first.take_unit());
        assert_eq!(pool.usage().reserved, 448 << 10);
        // Others may still come, and have what they keep.
        let mut second = CapsuleMemory::empty(&pool);
        assert!(second.reserve_capsules(8192, 2));
        assert!(second.take_unit() && second.take_unit() && !second.take_unit());
        for _ in 0..3 {
            first.release_unit();
        }
        assert!(second.take_unit());
        assert!(!second.take_unit());
        second.release_unit();
        for _ in 3..most {
            first.release_unit();
        }
        assert_eq!(pool.usage().reserved, 32 << 10);
        assert!(second.take_unit());
        drop((first, second));
        assert_eq!(pool.usage().reserved, 0);
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        let pool = Pool::new(1 << 20);
        let kept: Vec<CapsuleMemory> = (0..32)
            .map(|_| {
                let mut capsules = CapsuleMemory::empty(&pool);
                assert!(capsules.reserve_capsules(8192, 2));
                capsules
            })
            .collect();
        assert!(!CapsuleMemory::empty(&pool).reserve_capsules(512, 1));
        drop(kept);
        assert_eq!(pool.usage().reserved, 0);
    }

    #[test]
    fn no_in_capsule_data_needs_no_memory() {
        let pool = Pool::new(1 << 20);
        let mut capsules = CapsuleMemory::empty(&pool);
        assert!(capsules.reserve_capsules(0, 2) && capsules.take_unit());
        capsules.release_unit();
        assert_eq!(pool.usage().reserved, 0);
    }
}
