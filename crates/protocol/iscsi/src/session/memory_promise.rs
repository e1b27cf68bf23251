//! Memory reserved for unsolicited data (the third law in `ARCHITECTURE.md`).
//!
//! One unit is one whole unsolicited burst, rounded as the pool rounds. A session holds one unit for each
//! command that its window admits and one for immediate commands. It begins with [`INITIAL_WINDOW`] commands
//! and takes more as they are used. It returns unused units as its window closes
//! ([`CommandWindow`](super::window::CommandWindow)). Growth leaves room for future sessions.
//!
//! NVMe/TCP lets a capsule wait in the stream until a unit is free. iSCSI cannot: a command that holds a unit
//! may need more of the stream. Its burst may continue in Data-Outs behind other commands, the rest of its
//! data is solicited and arrives on the same link, and over several links its turn may wait for a command
//! behind the waiting one. So no link may stop.

use buf::{Pool, PoolAccount};

/// Commands that a session may send from the start, if unsolicited data was agreed; it never has fewer
/// unless memory is out or fewer are configured.
pub const INITIAL_WINDOW: u16 = 8;
/// Growing leaves one part in so many of what a pool may promise to sessions that are still to come, and
/// takes no session beyond such a part of what is not others'.
const SPARE_DIVISOR: usize = 4;

/// Memory set aside for a session. Where the session is still to come, it is held from before its login is
/// answered, so that no initiator is let in to what cannot be kept.
#[derive(Debug)]
pub struct MemoryPromise {
    pool: Pool,
    /// Bytes of one unit; 0 if no unsolicited data may come.
    unit: usize,
    units: u32,
}

impl MemoryPromise {
    /// Sets aside as much as can be had for as many of `commands` as a session begins with, where one may
    /// bring `burst` bytes of unsolicited data ([`SessionParams::unsolicited`](super::SessionParams::unsolicited_burst_len));
    /// `None` if not even for one.
    #[must_use]
    pub fn new(pool: &Pool, burst: u32, commands: u32) -> Option<Self> {
        let mut promise =
            MemoryPromise { pool: pool.clone(), unit: rounded_to_pool_size(burst as usize), units: 0 };
        promise.grow_to(commands.clamp(1, u32::from(INITIAL_WINDOW)));
        (promise.unit == 0 || promise.units >= 2).then_some(promise)
    }

    /// Sets aside as many units as a session had elsewhere; `None` if so many cannot be had.
    pub(super) fn with_units(pool: &Pool, burst: u32, units: u32) -> Option<Self> {
        let mut promise =
            MemoryPromise { pool: pool.clone(), unit: rounded_to_pool_size(burst as usize), units: 0 };
        if promise.unit > 0 {
            promise.grow_to(units.saturating_sub(1));
        }
        (promise.unit == 0 || promise.units >= units.max(2)).then_some(promise)
    }

    pub(super) fn units(&self) -> u32 {
        self.units
    }

    /// Whether it is for bursts of so many bytes.
    pub(super) fn is_for_burst_len(&self, burst: u32) -> bool {
        self.unit == rounded_to_pool_size(burst as usize)
    }

    /// Whether it is more than a unit for each of `commands`.
    #[inline]
    pub(super) fn exceeds_commands(&self, commands: u32) -> bool {
        self.unit > 0 && self.units > commands + 1
    }

    /// Whether the window follows what is set aside.
    #[inline]
    pub(super) fn limits_window(&self) -> bool {
        self.unit > 0
    }

    /// Tries to come nearer to a unit for each of `commands`, whatever that leaves for others.
    pub(super) fn grow_to(&mut self, commands: u32) {
        let want = commands + 1;
        let mut step = want.saturating_sub(self.units);
        while self.unit > 0 && step > 0 && self.units < want {
            step = step.min(want - self.units);
            if self.pool.reserve(PoolAccount::Iscsi, step as usize * self.unit) {
                self.units += step;
            } else {
                step /= 2;
            }
        }
    }

    /// Likewise, as far as enough is left for others.
    pub(super) fn grow_leaving_spare(&mut self, commands: u32) {
        let (usage, own) = (self.pool.usage(), self.units as usize * self.unit);
        let left = self.pool.reservable_bytes(PoolAccount::Iscsi);
        let most = (own + left.saturating_sub(usage.reservable_max() / SPARE_DIVISOR))
            .min((own + left) / SPARE_DIVISOR);
        let most = u32::try_from(most / self.unit.max(1)).unwrap_or(u32::MAX);
        if most > self.units {
            self.grow_to(commands.min(most - 1));
        }
    }

    /// Gives back what is beyond a unit for each of `commands`.
    pub(super) fn shrink(&mut self, commands: u32) {
        let back = self.units.saturating_sub(commands + 1);
        self.pool.unreserve(PoolAccount::Iscsi, back as usize * self.unit);
        self.units -= back;
    }

    /// How many of `commands` may be in work.
    pub(super) fn commands_covered(&self, commands: u32) -> u32 {
        if self.unit == 0 { commands } else { commands.min(self.units - 1) }
    }

    /// Whether each of `links` links has one whole burst of its own, or can have it.
    pub(super) fn make_room_for_links(&mut self, links: u32) -> bool {
        self.grow_to(links);
        self.unit == 0 || self.units > links
    }
}

impl Drop for MemoryPromise {
    fn drop(&mut self) {
        self.pool.unreserve(PoolAccount::Iscsi, self.units as usize * self.unit);
    }
}

/// What the pool lends for so many bytes: whole blocks of 1 MiB, and the rest as a power of two.
fn rounded_to_pool_size(bytes: usize) -> usize {
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
    fn windows_are_small_when_memory_is_short_and_it_comes_back() {
        let pool = Pool::new(1 << 20);
        let first = MemoryPromise::new(&pool, 65_536, 4).unwrap();
        assert_eq!(first.commands_covered(4), 4);
        let mut second = MemoryPromise::new(&pool, 65_536, 16).unwrap();
        assert_eq!(second.commands_covered(16), 2);
        assert!(MemoryPromise::new(&pool, 65_536, 16).is_none());
        drop(first);
        second.grow_to(8);
        assert_eq!(second.commands_covered(16), 7, "half of the pool");
        drop(second);
        assert_eq!(pool.usage().reserved, 0);
    }

    #[test]
    fn no_unsolicited_data_needs_no_memory() {
        let pool = Pool::new(1 << 20);
        let promise = MemoryPromise::new(&pool, 0, 64).unwrap();
        assert_eq!((promise.commands_covered(64), pool.usage().reserved), (64, 0));
    }
}
