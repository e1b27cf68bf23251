//! Memory set aside for unsolicited data (the third law in `ARCHITECTURE.md`).
//!
//! One unit is one whole unsolicited burst, rounded as the pool rounds. A session holds one unit for
//! each command that its window admits and one for immediate commands; while the pool has less to
//! promise, the window is smaller. It never begins with less than one of each.

use buf::Pool;

#[derive(Debug)]
pub(super) struct Reservation {
    pool: Pool,
    /// Bytes of one unit; 0 if no data comes unasked.
    unit: usize,
    units: u32,
}

impl Reservation {
    /// Sets aside as much as can be had for `commands`; `None` if not even for one.
    pub(super) fn new(pool: &Pool, burst: u32, commands: u32) -> Option<Self> {
        let mut reservation = Reservation { pool: pool.clone(), unit: rounded(burst as usize), units: 0 };
        reservation.grow(commands);
        (reservation.unit == 0 || reservation.units >= 2).then_some(reservation)
    }

    /// Tries to come nearer to a unit for each of `commands`.
    pub(super) fn grow(&mut self, commands: u32) {
        if self.unit == 0 {
            return;
        }
        let mut step = (commands + 1).saturating_sub(self.units);
        while step > 0 && self.units < commands + 1 {
            step = step.min(commands + 1 - self.units);
            if self.pool.reserve(step as usize * self.unit) {
                self.units += step;
            } else {
                step /= 2;
            }
        }
    }

    /// How many of `commands` may be in work.
    pub(super) fn commands(&self, commands: u32) -> u32 {
        if self.unit == 0 { commands } else { commands.min(self.units - 1) }
    }

    /// Whether each of `links` links has one whole burst of its own.
    pub(super) fn has_room_for_link(&self, links: usize) -> bool {
        self.unit == 0 || self.units as usize > links
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.unreserve(self.units as usize * self.unit);
    }
}

/// What the pool lends for so many bytes: whole blocks of 1 MiB, and the rest as a power of two.
fn rounded(bytes: usize) -> usize {
    const BLOCK: usize = 1 << 20;
    const LEAST: usize = 512;
    match (bytes / BLOCK * BLOCK, bytes % BLOCK) {
        (0, 0) => 0,
        (whole, 0) => whole,
        (whole, rest) => whole + rest.next_power_of_two().max(LEAST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_shrink_when_memory_is_short_and_it_comes_back() {
        let pool = Pool::new(4 << 20);
        let first = Reservation::new(&pool, 65_536, 16).unwrap();
        assert_eq!(first.commands(16), 16);
        let mut second = Reservation::new(&pool, 65_536, 16).unwrap();
        assert_eq!(second.commands(16), 14);
        assert!(Reservation::new(&pool, 65_536, 16).is_none());
        drop(first);
        second.grow(16);
        assert_eq!(second.commands(16), 16);
        drop(second);
        assert_eq!(pool.usage().reserved, 0);
    }

    #[test]
    fn no_unsolicited_data_needs_no_memory() {
        let pool = Pool::new(1 << 20);
        let reservation = Reservation::new(&pool, 0, 64).unwrap();
        assert_eq!((reservation.commands(64), pool.usage().reserved), (64, 0));
    }
}
