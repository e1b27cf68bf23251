//! Memory set aside for in-capsule data (the third law in `ARCHITECTURE.md`).
//!
//! One unit is one capsule's data, rounded as the pool rounds. A queue holds one unit for each of its
//! entries; while the pool has less to promise, fewer commands with in-capsule data are let in at
//! once, and the next one waits in the stream, its header unread. Who takes up a unit has all its
//! data in the stream right behind its header, so it needs nothing more from any stream.

use buf::Pool;

#[derive(Debug)]
pub(super) struct Capsules {
    pool: Pool,
    /// Bytes of one unit; 0 if nothing comes in capsules, or nothing is counted yet.
    unit: usize,
    most: u32,
    held: u32,
    used: u32,
}

/// A pair of fused commands may need both its capsules at once.
const LEAST: u32 = 2;

impl Capsules {
    /// Nothing is set aside.
    pub(super) fn none(pool: &Pool) -> Self {
        Capsules { pool: pool.clone(), unit: 0, most: 0, held: 0, used: 0 }
    }

    /// Sets aside as much as can be had for `most` capsules of `len` bytes; false if not even for the
    /// least number.
    pub(super) fn set_aside(&mut self, len: u32, most: u32) -> bool {
        self.unit = if len == 0 { 0 } else { (len as usize).next_power_of_two().max(512) };
        self.most = most;
        if self.unit == 0 {
            return true;
        }
        self.grow();
        self.held >= LEAST.min(most)
    }

    /// Whether another capsule may come; it is asked for more memory if need be.
    pub(super) fn has_room(&mut self) -> bool {
        if self.unit > 0 && self.used >= self.held {
            self.grow();
        }
        self.unit == 0 || self.used < self.held
    }

    /// A capsule has come. True if it is to be given back.
    pub(super) fn take(&mut self) -> bool {
        self.used += u32::from(self.unit > 0);
        self.unit > 0
    }

    pub(super) fn give(&mut self) {
        self.used -= 1;
    }

    fn grow(&mut self) {
        let mut step = self.most - self.held;
        while step > 0 && self.held < self.most {
            step = step.min(self.most - self.held);
            if self.pool.reserve(step as usize * self.unit) {
                self.held += step;
            } else {
                step /= 2;
            }
        }
    }
}

impl Drop for Capsules {
    fn drop(&mut self) {
        self.pool.unreserve(self.held as usize * self.unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_capsules_when_memory_is_short_and_it_comes_back() {
        let pool = Pool::new(1 << 20);
        let mut first = Capsules::none(&pool);
        assert!(first.set_aside(8192, 32));
        let mut second = Capsules::none(&pool);
        assert!(second.set_aside(8000, 64));
        assert_eq!((first.held, second.held), (32, 32));
        let mut third = Capsules::none(&pool);
        assert!(!third.set_aside(512, 8));
        for _ in 0..32 {
            assert!(second.has_room() && second.take());
        }
        assert!(!second.has_room());
        drop(first);
        assert!(second.has_room());
        assert_eq!(second.held, 64);
        drop((second, third));
        assert_eq!(pool.usage().reserved, 0);
    }

    #[test]
    fn no_in_capsule_data_needs_no_memory() {
        let pool = Pool::new(1 << 20);
        let mut capsules = Capsules::none(&pool);
        assert!(capsules.set_aside(0, 128) && capsules.has_room() && !capsules.take());
        assert_eq!(pool.usage().reserved, 0);
    }
}
