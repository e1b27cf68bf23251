//! The order of commands over all links, and the window that is open for them (RFC 7143 §4.2.2.1).
//!
//! Invariant: commands delivered and not yet ended, and those that the open window may still bring,
//! are never more than `limit`; and MaxCmdSN never moves backwards.

use crate::links::LinkIndex;
use crate::wire::{Bhs, Sn};
use std::collections::VecDeque;
use stream::Tag;

use super::request::ScsiCommand;
use buf::Sg;

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
pub(super) struct Window {
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
}

impl Window {
    pub(super) fn new(exp: Sn, limit: u32) -> Self {
        let max = exp.add(limit - 1);
        Window { exp, max, told: max, offered: limit, limit, in_work: 0, held: VecDeque::new() }
    }

    #[inline]
    pub(super) fn exp(&self) -> Sn {
        self.exp
    }

    #[inline]
    pub(super) fn max(&self) -> Sn {
        self.max
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.max.lt(self.exp)
    }

    /// Whether the initiator has used up all that it knows of, though more is open.
    #[inline]
    pub(super) fn has_grown(&self) -> bool {
        self.told.lt(self.exp) && !self.is_closed()
    }

    /// What is open now was sent.
    #[inline]
    pub(super) fn told(&mut self) {
        (self.told, self.offered) = (self.max, self.promised());
    }

    /// Commands that the initiator has in work as far as it knows: with those whose answers are not sent.
    #[inline]
    pub(super) fn used(&self) -> u32 {
        let left = if self.told.lt(self.exp) { 0 } else { self.told.since(self.exp) + 1 };
        self.offered.saturating_sub(left)
    }

    /// Sets how many commands may be in work from now on.
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = limit.max(1);
        self.open();
    }

    #[inline]
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Commands in work, and all that may come by what was offered.
    pub(super) fn promised(&self) -> u32 {
        let open = if self.is_closed() { 0 } else { self.max.since(self.exp) + 1 };
        self.in_work + open
    }

    #[inline]
    pub(super) fn order(&self, sn: Sn) -> CmdSnOrder {
        if !sn.le(self.max) || sn.lt(self.exp) {
            return CmdSnOrder::Outside;
        }
        match sn.since(self.exp) {
            0 => CmdSnOrder::Next,
            ahead => match self.held.get(ahead as usize - 1) {
                Some(Some(_)) => CmdSnOrder::Outside,
                Some(None) | None => CmdSnOrder::Ahead,
            },
        }
    }

    /// Keeps a request whose turn is [`CmdSnOrder::Ahead`].
    pub(super) fn hold(&mut self, sn: Sn, held: HeldRequest) {
        let place = sn.since(self.exp) as usize - 1;
        while self.held.len() <= place {
            self.held.push_back(None);
        }
        if let Some(place) = self.held.get_mut(place) {
            *place = Some(held);
        }
    }

    /// Whether requests wait for one before them.
    #[inline]
    pub(super) fn has_gap(&self) -> bool {
        // The last place is never empty.
        !self.held.is_empty()
    }

    /// Bytes of memory that held requests other than SCSI commands have: those have theirs set aside.
    pub(super) fn held_bytes(&self) -> usize {
        let bytes = |held: &HeldRequest| match held {
            HeldRequest::Other { data, .. } if !data.is_empty() => data.len().next_multiple_of(512),
            HeldRequest::Other { .. } | HeldRequest::Scsi(..) | HeldRequest::Skipped => 0,
        };
        self.held.iter().flatten().map(bytes).sum()
    }

    /// Steps over `exp`; gives what was held for the number that is next now.
    #[inline]
    pub(super) fn advance(&mut self) -> Option<HeldRequest> {
        self.exp = self.exp.next();
        self.held.pop_front().flatten()
    }

    /// A command of this window was delivered.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.in_work += 1;
    }

    /// A command of this window has ended.
    #[inline]
    pub(super) fn end(&mut self) {
        self.in_work -= 1;
        self.open();
    }

    /// Opens the window as far as the limit allows.
    #[inline]
    pub(super) fn open(&mut self) {
        let free = self.limit.saturating_sub(self.in_work);
        let max = self.exp.add(free).sub(1);
        if self.max.lt(max) {
            self.max = max;
        }
    }

    /// Takes all that is held out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = HeldRequest> + '_ {
        self.held.drain(..).flatten()
    }

    /// How many requests wait for their turn.
    #[cfg(test)]
    pub(super) fn held_len(&self) -> usize {
        self.held.iter().flatten().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_never_holds_more_than_its_limit() {
        let mut window = Window::new(Sn::new(u32::MAX), 4);
        assert_eq!(window.max(), Sn::new(2));
        assert_eq!(window.order(Sn::new(u32::MAX)), CmdSnOrder::Next);
        assert_eq!(window.order(Sn::new(2)), CmdSnOrder::Ahead);
        assert_eq!(window.order(Sn::new(3)), CmdSnOrder::Outside);
        assert_eq!(window.order(Sn::new(u32::MAX - 1)), CmdSnOrder::Outside);
        for _ in 0..4 {
            window.begin();
            assert!(window.advance().is_none());
            window.open();
        }
        assert!(window.is_closed());
        assert_eq!(window.order(Sn::new(3)), CmdSnOrder::Outside);
        window.end();
        assert_eq!(window.max(), Sn::new(3));
        assert_eq!(window.order(Sn::new(3)), CmdSnOrder::Next);
    }

    #[test]
    fn a_smaller_limit_does_not_take_back_what_was_offered() {
        let mut window = Window::new(Sn::new(10), 8);
        window.set_limit(2);
        assert_eq!(window.max(), Sn::new(17));
        for _ in 0..7 {
            window.advance();
            window.open();
        }
        assert_eq!((window.exp(), window.max()), (Sn::new(17), Sn::new(18)));
    }

    #[test]
    fn what_is_held_comes_in_turn_and_once() {
        let mut window = Window::new(Sn::new(0), 8);
        window.hold(Sn::new(2), HeldRequest::Skipped);
        assert_eq!(window.order(Sn::new(2)), CmdSnOrder::Outside);
        assert_eq!(window.order(Sn::new(1)), CmdSnOrder::Ahead);
        assert!(window.advance().is_none());
        assert!(matches!(window.advance(), Some(HeldRequest::Skipped)));
        assert_eq!(window.exp(), Sn::new(2));
        assert_eq!(window.held_len(), 0);
    }
}
