//! Memory set aside for unsolicited data (the third law in `ARCHITECTURE.md`).
//!
//! One unit is one whole unsolicited burst, rounded as the pool rounds. A session holds one unit for
//! each command that its window admits and one for immediate commands. It begins with
//! [`WINDOW_START`] commands and takes more as they are used; what it does not use it gives back as
//! its window closes behind it ([`Demand`]). Growing leaves room for sessions to come, so that none
//! takes the last.
//!
//! Why a window and not a command that waits in the stream until a unit is free, as capsules of NVMe/TCP
//! do: who holds a unit here may need more of a stream. Its burst may go on in Data-Outs behind other
//! commands, the rest of its data is solicited and comes by the same link, and over several links its
//! turn waits for a command that may stand behind the one that waits. So no link may stop.

use super::window::Window;
use buf::{Account, Pool, Time};
use std::time::Duration;

/// Commands that a session may send from the start, if unsolicited data was agreed; it never has fewer
/// unless memory is out or fewer are configured.
pub const WINDOW_START: u16 = 8;
/// Growing leaves one part in so many of what a pool may promise to sessions that are still to come, and
/// takes no session beyond such a part of what is not others'.
const SHARE: usize = 4;
/// How long a session must have used less than a quarter of its window before it is halved.
const REVIEW: Duration = Duration::from_secs(1);

/// Memory set aside for a session. Where the session is still to come, it is held from before its login is
/// answered, so that no initiator is let in to what cannot be kept.
#[derive(Debug)]
pub struct MemoryPromise {
    pool: Pool,
    /// Bytes of one unit; 0 if no data comes unasked.
    unit: usize,
    units: u32,
}

impl MemoryPromise {
    /// Sets aside as much as can be had for as many of `commands` as a session begins with, where one may
    /// bring `burst` bytes unasked ([`SessionParams::unsolicited`](super::SessionParams::unsolicited));
    /// `None` if not even for one.
    #[must_use]
    pub fn new(pool: &Pool, burst: u32, commands: u32) -> Option<Self> {
        let mut promise = MemoryPromise { pool: pool.clone(), unit: rounded(burst as usize), units: 0 };
        promise.secure(commands.clamp(1, u32::from(WINDOW_START)));
        (promise.unit == 0 || promise.units >= 2).then_some(promise)
    }

    /// Whether it is for bursts of so many bytes.
    pub(super) fn is_for(&self, burst: u32) -> bool {
        self.unit == rounded(burst as usize)
    }

    /// Whether the window follows what is set aside.
    pub(super) fn binds(&self) -> bool {
        self.unit > 0
    }

    /// Tries to come nearer to a unit for each of `commands`, at whosever cost.
    pub(super) fn secure(&mut self, commands: u32) {
        let want = commands + 1;
        let mut step = want.saturating_sub(self.units);
        while self.unit > 0 && step > 0 && self.units < want {
            step = step.min(want - self.units);
            if self.pool.reserve(Account::Iscsi, step as usize * self.unit) {
                self.units += step;
            } else {
                step /= 2;
            }
        }
    }

    /// Likewise, as far as enough is left for others.
    fn grow(&mut self, commands: u32) {
        let (usage, own) = (self.pool.usage(), self.units as usize * self.unit);
        let left = self.pool.left_to_promise(Account::Iscsi);
        let most = (own + left.saturating_sub(usage.promise_max() / SHARE)).min((own + left) / SHARE);
        let most = u32::try_from(most / self.unit.max(1)).unwrap_or(u32::MAX);
        if most > self.units {
            self.secure(commands.min(most - 1));
        }
    }

    /// Gives back what is beyond a unit for each of `commands`.
    fn shrink(&mut self, commands: u32) {
        let back = self.units.saturating_sub(commands + 1);
        self.pool.unreserve(Account::Iscsi, back as usize * self.unit);
        self.units -= back;
    }

    /// How many of `commands` may be in work.
    pub(super) fn commands(&self, commands: u32) -> u32 {
        if self.unit == 0 { commands } else { commands.min(self.units - 1) }
    }

    /// Whether each of `links` links has one whole burst of its own, or can have it.
    pub(super) fn make_room_for_links(&mut self, links: u32) -> bool {
        self.secure(links);
        self.unit == 0 || self.units > links
    }
}

impl Drop for MemoryPromise {
    fn drop(&mut self) {
        self.pool.unreserve(Account::Iscsi, self.units as usize * self.unit);
    }
}

/// How much of its window a session uses: the window follows it.
///
/// What was offered cannot be taken back (RFC 7143 §4.2.2.1): a smaller window comes about as commands
/// use up the greater one, and each unit is given back when no command that was offered needs it.
#[derive(Debug)]
pub(super) struct Demand {
    /// Most commands that the initiator had in work since the last review.
    peak: u32,
    review: Time,
}

impl Demand {
    pub(super) fn new(now: Time) -> Self {
        Demand { peak: 0, review: now + REVIEW }
    }

    /// A command was delivered. `commands`: most that are configured; `least`: those that the session
    /// keeps in any case.
    #[inline]
    pub(super) fn delivered(
        &mut self,
        now: Time,
        window: &mut Window,
        promise: &mut MemoryPromise,
        commands: u32,
        least: impl FnOnce() -> u32,
    ) {
        let (used, limit) = (window.used(), window.limit());
        self.peak = self.peak.max(used);
        if used > limit / 2 && limit < commands {
            promise.grow(commands.min(limit.saturating_mul(2)));
            window.set_limit(promise.commands(commands).max(limit));
        } else if now >= self.review {
            if self.peak < limit / 4 {
                window.set_limit((limit / 2).max(least()).min(limit));
            }
            (self.peak, self.review) = (used, now + REVIEW);
        }
    }

    /// A command has ended: what no command can need any more goes back, but for one unit for each of
    /// `links` links.
    #[inline]
    pub(super) fn ended(window: &Window, promise: &mut MemoryPromise, links: impl FnOnce() -> u32) {
        if promise.units > window.limit() + 1 && promise.unit > 0 {
            promise.shrink(window.promised().max(window.limit()).max(links()));
        }
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
    use crate::wire::Sn;

    #[test]
    fn windows_are_small_when_memory_is_short_and_it_comes_back() {
        let pool = Pool::new(1 << 20);
        let first = MemoryPromise::new(&pool, 65_536, 4).unwrap();
        assert_eq!(first.commands(4), 4);
        let mut second = MemoryPromise::new(&pool, 65_536, 16).unwrap();
        assert_eq!(second.commands(16), 2);
        assert!(MemoryPromise::new(&pool, 65_536, 16).is_none());
        drop(first);
        second.secure(8);
        assert_eq!(second.commands(16), 7, "half of the pool");
        drop(second);
        assert_eq!(pool.usage().reserved, 0);
    }

    #[test]
    fn no_unsolicited_data_needs_no_memory() {
        let pool = Pool::new(1 << 20);
        let promise = MemoryPromise::new(&pool, 0, 64).unwrap();
        assert_eq!((promise.commands(64), pool.usage().reserved), (64, 0));
    }

    /// A session's window without the session.
    struct Alone {
        window: Window,
        promise: MemoryPromise,
        demand: Demand,
        now: Time,
        commands: u32,
    }

    impl Alone {
        fn new(pool: &Pool, commands: u32) -> Self {
            Self::of(pool, 16_384, commands)
        }

        fn of(pool: &Pool, burst: u32, commands: u32) -> Self {
            let promise = MemoryPromise::new(pool, burst, commands).unwrap();
            let window = Window::new(Sn::new(u32::MAX - 5), promise.commands(commands));
            Alone { window, promise, demand: Demand::new(Time(0)), now: Time(0), commands }
        }

        /// Sends as many commands as the window allows, `most` at most; gives how many.
        fn begin(&mut self, most: u32) -> u32 {
            let mut begun = 0;
            while begun < most && self.knows_more() {
                self.window.advance();
                self.window.begin();
                let Alone { window, promise, demand, now, commands } = self;
                demand.delivered(*now, window, promise, *commands, || u32::from(WINDOW_START));
                self.window.open();
                self.check();
                begun += 1;
            }
            begun
        }

        /// Whether the initiator knows that it may send one more; it is told if it knows too little.
        fn knows_more(&mut self) -> bool {
            if self.window.has_grown() {
                self.window.told();
            }
            !self.window.is_closed()
        }

        fn end(&mut self, count: u32) {
            for _ in 0..count {
                self.window.end();
                self.window.told();
                Demand::ended(&self.window, &mut self.promise, || 1);
                self.check();
            }
        }

        /// The law: whatever may come has its unit.
        fn check(&self) {
            assert!(self.window.promised() < self.promise.units, "{self:?}");
        }
    }

    impl std::fmt::Debug for Alone {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{:?} {:?}", self.window, self.promise)
        }
    }

    #[test]
    fn a_window_follows_what_is_used_of_it() {
        let pool = Pool::new(128 << 20);
        let mut alone = Alone::new(&pool, 128);
        assert_eq!((alone.window.limit(), pool.usage().reserved), (8, 9 * 16_384));
        // One command at a time needs no more.
        for _ in 0..100 {
            assert_eq!(alone.begin(1), 1);
            alone.end(1);
        }
        assert_eq!(alone.window.limit(), 8);
        // A host that sends all it may has the whole window by the time that it is closed.
        assert_eq!(alone.begin(1000), 128);
        assert_eq!(pool.usage().reserved, 129 * 16_384);
        alone.end(128);
        assert_eq!(pool.usage().reserved, 129 * 16_384, "what is offered stays set aside");
        // One at a time again: it shrinks as the offer is used up.
        for _ in 0..1000 {
            alone.now = alone.now + Duration::from_millis(20);
            assert_eq!(alone.begin(1), 1);
            alone.end(1);
        }
        assert_eq!((alone.window.limit(), pool.usage().reserved), (8, 9 * 16_384));
        drop(alone);
        assert_eq!(pool.usage().reserved, 0);
    }

    #[test]
    fn a_window_of_2048_has_room_in_256_mebibytes_where_one_segment_rides_on_a_command() {
        let pool = Pool::new(256 << 20);
        let mut alone = Alone::of(&pool, 8192, 2048);
        assert_eq!(alone.window.limit(), 8);
        assert_eq!(alone.begin(5000), 2048);
        assert_eq!((alone.window.limit(), pool.usage().reserved), (2048, 2049 * 8192));
    }

    #[test]
    fn many_sessions_begin_whole_and_growing_leaves_them_room() {
        let pool = Pool::new(128 << 20);
        let mut busy: Vec<Alone> = (0..100)
            .map(|_| {
                let mut alone = Alone::new(&pool, 128);
                alone.begin(1000);
                alone
            })
            .collect();
        assert!(busy[..20].iter().all(|alone| alone.window.limit() == 128));
        assert!(busy.iter().all(|alone| alone.window.limit() >= 8), "and all have what they began with");
        // Who ends gives others room to grow.
        busy.drain(..10);
        let last = busy.last_mut().unwrap();
        let before = last.window.limit();
        last.end(1);
        last.begin(1000);
        assert!(last.window.limit() > before, "{before}");
        drop(busy);
        // At rest there is room for many.
        let quiet: Vec<Alone> = (0..450).map(|_| Alone::new(&pool, 128)).collect();
        assert!(quiet.iter().all(|alone| alone.window.limit() == 8));
    }
}
