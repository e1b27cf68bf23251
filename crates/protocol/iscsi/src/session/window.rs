//! The order of commands over all links, the command window (RFC 7143 §4.2.2.1), and the memory reserved for
//! their unsolicited data.
//!
//! Invariant: commands delivered and not yet ended, and those that the open window still admits, are never
//! more than `command_limit`, and each of them has its unit of memory. MaxCmdSN never moves backwards.
//!
//! The window follows its use. An offer cannot be taken back: a window shrinks as commands use up the larger
//! one, and each unit is returned when no offered command needs it.

use super::memory_promise::{INITIAL_WINDOW, MemoryPromise};
use super::outgoing::CommandNumbers;
use super::request::ScsiCommand;
use crate::links::LinkIndex;
use crate::wire::{Bhs, NopOut, Pdu, Sn};
use buf::{Sg, Time};
use std::collections::VecDeque;
use std::time::Duration;
use stream::Tag;

/// How long a session must have used less than a quarter of its window before it is halved.
const USAGE_REVIEW_INTERVAL: Duration = Duration::from_secs(1);

/// A request that came before its turn.
#[derive(Debug)]
pub(super) enum HeldRequest {
    Scsi(Tag, ScsiCommand),
    /// Any other request, with its data.
    Other {
        link: LinkIndex,
        bhs: Bhs,
        data: Sg,
    },
    /// A CmdSN that is taken as received without its command (RFC 7143 §11.6.1).
    Skipped,
}

/// Where a CmdSN stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmdSnOrder {
    /// It is the next.
    Next,
    /// Earlier ones are missing.
    Ahead,
    /// Outside of the window, or here already: to be ignored silently.
    Outside,
}

#[derive(Debug)]
pub(super) struct CommandWindow {
    exp: Sn,
    max: Sn,
    /// The greatest MaxCmdSN that was sent, and how many commands the initiator could have in work by it.
    told: Sn,
    offered: u32,
    limit: u32,
    /// Delivered and not ended.
    in_work: u32,
    /// What came early; the first place is that of `exp + 1`.
    held: VecDeque<Option<HeldRequest>>,
    /// Most commands in work, as configured.
    most: u32,
    promise: MemoryPromise,
    /// Most commands that the initiator had in work since the last review, and when the next is due.
    peak: u32,
    review: Time,
    /// Requests wait for one with this number, and since when.
    gap: Option<(Sn, Time)>,
    /// An abort took the next CmdSN as received: its command is not waited for.
    pub(super) skips_next: bool,
    /// It opened and no answer tells of it.
    pub(super) opened: bool,
}

/// The numbers of a window, as they move to another process.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowNumbers {
    pub(super) exp: Sn,
    pub(super) max: Sn,
    pub(super) told: Sn,
    pub(super) offered: u32,
    pub(super) limit: u32,
    pub(super) peak: u32,
    pub(super) skips_next: bool,
    pub(super) opened: bool,
}

impl CommandWindow {
    /// The window's numbers, its units of memory, and what it holds: the first place is that of `exp + 1`.
    pub(super) fn parts(&self) -> (WindowNumbers, u32, impl Iterator<Item = Option<&HeldRequest>>) {
        let CommandWindow { exp, max, told, offered, limit, peak, skips_next, opened, .. } = *self;
        let numbers = WindowNumbers { exp, max, told, offered, limit, peak, skips_next, opened };
        (numbers, self.promise.units(), self.held.iter().map(Option::as_ref))
    }

    /// Goes on as a window of another process, `counted` of whose commands are in work. False, and nothing is changed:
    /// the numbers contradict each other, or the memory does not cover what was offered.
    pub(super) fn restore(
        &mut self,
        numbers: WindowNumbers,
        held: VecDeque<Option<HeldRequest>>,
        counted: u32,
    ) -> bool {
        let WindowNumbers { exp, max, told, offered, limit, peak, skips_next, opened } = numbers;
        let (most, open) = (self.most, max.next().steps_since(exp));
        let sound = (1..=most).contains(&limit)
            && open <= most
            && counted + open <= most
            && told.le(max)
            && max.steps_since(told) <= 2 * most
            && offered <= 2 * most
            && peak <= 2 * most
            && held.len() <= open.saturating_sub(1) as usize
            && held.back().is_none_or(Option::is_some)
            && self.promise.commands_covered(most) >= limit.max(counted + open);
        if sound {
            (self.exp, self.max, self.told, self.offered) = (exp, max, told, offered);
            (self.limit, self.peak, self.in_work, self.held) = (limit, peak, counted, held);
            (self.skips_next, self.opened) = (skips_next, opened);
        }
        sound
    }

    pub(super) fn new(exp: Sn, most: u32, promise: MemoryPromise, now: Time) -> Self {
        let limit = promise.commands_covered(most);
        let max = exp.add(limit - 1);
        CommandWindow {
            exp,
            max,
            told: max,
            offered: limit,
            limit,
            in_work: 0,
            held: VecDeque::new(),
            most,
            promise,
            peak: 0,
            review: now + USAGE_REVIEW_INTERVAL,
            gap: None,
            skips_next: false,
            opened: false,
        }
    }

    #[inline]
    pub(super) fn exp_cmd_sn(&self) -> Sn {
        self.exp
    }

    /// What every PDU tells of it.
    #[inline]
    pub(super) fn command_numbers(&self) -> CommandNumbers {
        CommandNumbers { exp_cmd_sn: self.exp, max_cmd_sn: self.max }
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.max.lt(self.exp)
    }

    /// Whether the initiator has used up all that it knows of, though more is open.
    #[inline]
    pub(super) fn has_unannounced_room(&self) -> bool {
        self.told.lt(self.exp) && !self.is_closed()
    }

    /// What is open now was sent.
    #[inline]
    pub(super) fn note_window_sent(&mut self) {
        (self.told, self.offered) = (self.max, self.commands_promised());
    }

    /// Commands that the initiator has in work as far as it knows: with those whose answers are not sent.
    #[inline]
    fn commands_in_use(&self) -> u32 {
        let left = if self.told.lt(self.exp) { 0 } else { self.told.steps_since(self.exp) + 1 };
        self.offered.saturating_sub(left)
    }

    /// Sets how many commands may be in work from now on.
    fn set_limit(&mut self, limit: u32) {
        self.limit = limit.max(1);
        self.open_to_limit();
    }

    #[inline]
    pub(super) fn command_limit(&self) -> u32 {
        self.limit
    }

    /// Commands in work, and all that may come by what was offered.
    fn commands_promised(&self) -> u32 {
        let open = if self.is_closed() { 0 } else { self.max.steps_since(self.exp) + 1 };
        self.in_work + open
    }

    /// When a request is to be delivered; immediate ones at once.
    #[inline]
    pub(super) fn request_order(&self, bhs: &Bhs) -> CmdSnOrder {
        if bhs.is_immediate() { CmdSnOrder::Next } else { self.cmd_sn_order(cmd_sn_of(bhs)) }
    }

    #[inline]
    pub(super) fn cmd_sn_order(&self, sn: Sn) -> CmdSnOrder {
        if !sn.le(self.max) || sn.lt(self.exp) {
            return CmdSnOrder::Outside;
        }
        match sn.steps_since(self.exp) {
            0 => CmdSnOrder::Next,
            ahead => match self.held.get(ahead as usize - 1) {
                Some(Some(_)) => CmdSnOrder::Outside,
                Some(None) | None => CmdSnOrder::Ahead,
            },
        }
    }

    /// Keeps a request whose turn is [`CmdSnOrder::Ahead`].
    pub(super) fn hold_request(&mut self, sn: Sn, held: HeldRequest) {
        let place = sn.steps_since(self.exp) as usize - 1;
        while self.held.len() <= place {
            self.held.push_back(None);
        }
        if let Some(place) = self.held.get_mut(place) {
            *place = Some(held);
        }
    }

    /// Bytes of memory that held requests other than SCSI commands have: those have theirs set aside.
    pub(super) fn held_bytes(&self) -> usize {
        let bytes = |held: &HeldRequest| match held {
            HeldRequest::Other { data, .. } if !data.is_empty() => data.len().next_multiple_of(512),
            HeldRequest::Other { .. } | HeldRequest::Scsi(..) | HeldRequest::Skipped => 0,
        };
        self.held.iter().flatten().map(bytes).sum()
    }

    /// Steps over `exp_cmd_sn`; gives what was held for the number that is next now.
    #[inline]
    pub(super) fn advance_exp_cmd_sn(&mut self) -> Option<HeldRequest> {
        self.exp = self.exp.next();
        self.held.pop_front().flatten()
    }

    /// A command of this window was delivered.
    #[inline]
    pub(super) fn note_command_begun(&mut self) {
        self.in_work += 1;
    }

    /// A command of this window has ended. What no command can need any more goes back, but for one unit for
    /// each of `links` links.
    #[inline]
    pub(super) fn note_command_ended(&mut self, links: impl FnOnce() -> u32) {
        self.in_work -= 1;
        self.open_to_limit();
        if self.promise.exceeds_commands(self.limit) {
            let commands = self.commands_promised().max(self.limit).max(links());
            self.promise.shrink(commands);
        }
    }

    /// The window follows what is used of it, when a command was delivered.
    #[inline]
    pub(super) fn resize_to_demand(&mut self, now: Time, links: impl FnOnce() -> u32) {
        if !self.promise.limits_window() {
            return;
        }
        let (used, limit) = (self.commands_in_use(), self.limit);
        self.peak = self.peak.max(used);
        if used > limit / 2 && limit < self.most {
            self.promise.grow_leaving_spare(self.most.min(limit.saturating_mul(2)));
            self.set_limit(self.promise.commands_covered(self.most).max(limit));
        } else if now >= self.review {
            if self.peak < limit / 4 {
                self.set_limit((limit / 2).max(self.commands_min(links())).min(limit));
            }
            (self.peak, self.review) = (used, now + USAGE_REVIEW_INTERVAL);
        }
    }

    /// Commands that the window admits in any case: one for each link at least.
    fn commands_min(&self, links: u32) -> u32 {
        links.max(u32::from(INITIAL_WINDOW)).min(self.most)
    }

    /// Sets more memory aside, where less than a session of `links` links begins with could be.
    pub(super) fn secure_min_memory(&mut self, links: u32) {
        let least = self.commands_min(links);
        if self.limit < least {
            self.promise.grow_to(least);
            self.set_limit(self.promise.commands_covered(self.most));
        }
    }

    /// Whether each of `links` links has memory for one whole burst of its own, or can have it.
    pub(super) fn make_room_for_links(&mut self, links: u32) -> bool {
        self.promise.make_room_for_links(links)
    }

    /// Notes since when requests have waited for the one whose turn it is; `others`: also such as are not held here.
    pub(super) fn note_cmd_sn_gap(&mut self, now: Time, others: bool) {
        self.gap = match self.gap {
            // The last place is never empty.
            _ if self.held.is_empty() && !others => None,
            Some((known, since)) if known == self.exp => Some((known, since)),
            Some(_) | None => Some((self.exp, now)),
        };
    }

    /// Since when requests have waited for one before them.
    pub(super) fn cmd_sn_gap_since(&self) -> Option<Time> {
        self.gap.map(|(_, since)| since)
    }

    /// Whether requests come in order, and answers tell of the window: none is held, missing or to be skipped.
    #[inline]
    pub(super) fn is_in_order(&self) -> bool {
        self.held.is_empty() && self.gap.is_none() && !self.skips_next && !self.opened
    }

    /// Whether the initiator is to be told that the window is open, once.
    pub(super) fn take_reopened(&mut self) -> bool {
        std::mem::take(&mut self.opened) && !self.is_closed()
    }

    /// Opens the window as far as the limit allows.
    #[inline]
    pub(super) fn open_to_limit(&mut self) {
        let free = self.limit.saturating_sub(self.in_work);
        let max = self.exp.add(free).sub(1);
        if self.max.lt(max) {
            self.max = max;
        }
    }

    /// Takes all that is held out.
    pub(super) fn drain_held(&mut self) -> impl Iterator<Item = HeldRequest> + '_ {
        self.held.drain(..).flatten()
    }

    /// How many requests wait for their turn.
    #[cfg(test)]
    pub(super) fn held_count(&self) -> usize {
        self.held.iter().flatten().count()
    }
}

/// CmdSN stands at the same place in every request that has one.
pub(super) fn cmd_sn_of(bhs: &Bhs) -> Sn {
    NopOut::from_bhs(bhs).cmd_sn
}

#[cfg(test)]
mod tests {
    use super::*;
    use buf::Pool;

    /// A window without memory set aside.
    fn free(exp: u32, limit: u32) -> CommandWindow {
        let promise = MemoryPromise::new(&Pool::new(1 << 20), 0, limit).unwrap();
        CommandWindow::new(Sn::new(exp), limit, promise, Time(0))
    }

    #[test]
    fn the_window_never_holds_more_than_its_limit() {
        let mut window = free(u32::MAX, 4);
        assert_eq!(window.max, Sn::new(2));
        assert_eq!(window.cmd_sn_order(Sn::new(u32::MAX)), CmdSnOrder::Next);
        assert_eq!(window.cmd_sn_order(Sn::new(2)), CmdSnOrder::Ahead);
        assert_eq!(window.cmd_sn_order(Sn::new(3)), CmdSnOrder::Outside);
        assert_eq!(window.cmd_sn_order(Sn::new(u32::MAX - 1)), CmdSnOrder::Outside);
        for _ in 0..4 {
            window.note_command_begun();
            assert!(window.advance_exp_cmd_sn().is_none());
            window.open_to_limit();
        }
        assert!(window.is_closed());
        assert_eq!(window.cmd_sn_order(Sn::new(3)), CmdSnOrder::Outside);
        window.note_command_ended(|| 1);
        assert_eq!(window.max, Sn::new(3));
        assert_eq!(window.cmd_sn_order(Sn::new(3)), CmdSnOrder::Next);
    }

    #[test]
    fn a_smaller_limit_does_not_take_back_what_was_offered() {
        let mut window = free(10, 8);
        window.set_limit(2);
        assert_eq!(window.max, Sn::new(17));
        for _ in 0..7 {
            window.advance_exp_cmd_sn();
            window.open_to_limit();
        }
        assert_eq!((window.exp_cmd_sn(), window.max), (Sn::new(17), Sn::new(18)));
    }

    #[test]
    fn what_is_held_comes_in_turn_and_once() {
        let mut window = free(0, 8);
        window.hold_request(Sn::new(2), HeldRequest::Skipped);
        assert_eq!(window.cmd_sn_order(Sn::new(2)), CmdSnOrder::Outside);
        assert_eq!(window.cmd_sn_order(Sn::new(1)), CmdSnOrder::Ahead);
        assert!(window.advance_exp_cmd_sn().is_none());
        assert!(matches!(window.advance_exp_cmd_sn(), Some(HeldRequest::Skipped)));
        assert_eq!(window.exp_cmd_sn(), Sn::new(2));
        assert_eq!(window.held_count(), 0);
    }

    /// A session's window without the session.
    #[derive(Debug)]
    struct Alone {
        window: CommandWindow,
        now: Time,
    }

    impl Alone {
        fn new(pool: &Pool, commands: u32) -> Self {
            Self::of(pool, 16_384, commands)
        }

        fn of(pool: &Pool, burst: u32, commands: u32) -> Self {
            let promise = MemoryPromise::new(pool, burst, commands).unwrap();
            let window = CommandWindow::new(Sn::new(u32::MAX - 5), commands, promise, Time(0));
            Alone { window, now: Time(0) }
        }

        /// Sends as many commands as the window allows, `most` at most; gives how many.
        fn begin(&mut self, most: u32) -> u32 {
            let mut begun = 0;
            while begun < most && self.knows_more() {
                self.window.advance_exp_cmd_sn();
                self.window.note_command_begun();
                self.window.resize_to_demand(self.now, || 1);
                self.window.open_to_limit();
                self.check();
                begun += 1;
            }
            begun
        }

        /// Whether the initiator knows that it may send one more; it is told if it knows too little.
        fn knows_more(&mut self) -> bool {
            if self.window.has_unannounced_room() {
                self.window.note_window_sent();
            }
            !self.window.is_closed()
        }

        fn end(&mut self, count: u32) {
            for _ in 0..count {
                self.window.note_command_ended(|| 1);
                self.window.note_window_sent();
                self.check();
            }
        }

        /// The law: whatever may come has its unit.
        fn check(&self) {
            assert!(
                self.window.promise.exceeds_commands(self.window.commands_promised().saturating_sub(1)),
                "{self:?}"
            );
        }
    }

    #[test]
    fn a_window_follows_what_is_used_of_it() {
        let pool = Pool::new(128 << 20);
        let mut alone = Alone::new(&pool, 128);
        assert_eq!((alone.window.command_limit(), pool.usage().reserved), (8, 9 * 16_384));
        // One command at a time needs no more.
        for _ in 0..100 {
            assert_eq!(alone.begin(1), 1);
            alone.end(1);
        }
        assert_eq!(alone.window.command_limit(), 8);
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
        assert_eq!((alone.window.command_limit(), pool.usage().reserved), (8, 9 * 16_384));
        drop(alone);
        assert_eq!(pool.usage().reserved, 0);
    }

    #[test]
    fn a_window_of_2048_has_room_in_256_mebibytes_where_one_segment_rides_on_a_command() {
        let pool = Pool::new(256 << 20);
        let mut alone = Alone::of(&pool, 8192, 2048);
        assert_eq!(alone.window.command_limit(), 8);
        assert_eq!(alone.begin(5000), 2048);
        assert_eq!((alone.window.command_limit(), pool.usage().reserved), (2048, 2049 * 8192));
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
        assert!(busy[..20].iter().all(|alone| alone.window.command_limit() == 128));
        assert!(
            busy.iter().all(|alone| alone.window.command_limit() >= 8),
            "and all have what they began with"
        );
        // Who ends gives others room to grow.
        busy.drain(..10);
        let last = busy.last_mut().unwrap();
        let before = last.window.command_limit();
        last.end(1);
        last.begin(1000);
        assert!(last.window.command_limit() > before, "{before}");
        drop(busy);
        // At rest there is room for many.
        let quiet: Vec<Alone> = (0..450).map(|_| Alone::new(&pool, 128)).collect();
        assert!(quiet.iter().all(|alone| alone.window.command_limit() == 8));
    }
}
