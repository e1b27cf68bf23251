//! The order in which a task set executes (SAM-5 §8): the effect of task attributes.
//!
//! A task set is kept per I_T nexus and logical unit, and a nexus lives on one shard. So an ORDERED task
//! waits for the older tasks of its own nexus, and newer ones of that nexus wait for it. No order is kept
//! between nexuses. Hosts that share a volume order their commands by reservations or COMPARE AND WRITE.
//! QUEUE ALGORITHM MODIFIER of the control mode page says that simple tasks are reordered without
//! restriction.
//!
//! Invariant: a task is counted as active, or is in `waiting`, never both.

use std::collections::VecDeque;

/// A task attribute, as the request carries it (the values of RFC 7143 §11.3.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskAttribute(pub u8);

impl TaskAttribute {
    /// None given: as SIMPLE.
    pub const UNTAGGED: TaskAttribute = TaskAttribute(0);
    /// SIMPLE.
    pub const SIMPLE: TaskAttribute = TaskAttribute(1);
    /// ORDERED.
    pub const ORDERED: TaskAttribute = TaskAttribute(2);
    /// HEAD OF QUEUE.
    pub const HEAD_OF_QUEUE: TaskAttribute = TaskAttribute(3);
    /// ACA: refused, since there never is an auto contingent allegiance.
    pub const ACA: TaskAttribute = TaskAttribute(4);
}

/// An attribute that is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attribute {
    Simple,
    Ordered,
    Head,
}

impl Attribute {
    /// `None`: no such attribute is executed here.
    pub(crate) fn parse(attribute: TaskAttribute) -> Option<Attribute> {
        match attribute {
            TaskAttribute::UNTAGGED | TaskAttribute::SIMPLE => Some(Attribute::Simple),
            TaskAttribute::ORDERED => Some(Attribute::Ordered),
            TaskAttribute::HEAD_OF_QUEUE => Some(Attribute::Head),
            _ => None,
        }
    }

    fn is_barrier(self) -> bool {
        self != Attribute::Simple
    }
}

/// A task set.
#[derive(Debug, Default)]
pub(crate) struct TaskSet {
    active: u32,
    /// Active tasks that newer ones must wait for.
    barriers: u32,
    waiting: VecDeque<(u32, Attribute)>,
}

impl TaskSet {
    /// A task arrives. True if it may start at once; else [`TaskSet::next`] names it later.
    pub(crate) fn arrive(&mut self, slot: u32, attribute: Attribute) -> bool {
        let may = match attribute {
            Attribute::Head => true,
            Attribute::Simple | Attribute::Ordered => self.waiting.is_empty() && self.admits(attribute),
        };
        if may {
            self.enter(attribute);
        } else {
            self.waiting.push_back((slot, attribute));
        }
        may
    }

    /// Whether a SIMPLE task that arrives now starts at once.
    pub(crate) fn is_open(&self) -> bool {
        self.waiting.is_empty() && self.admits(Attribute::Simple)
    }

    fn admits(&self, attribute: Attribute) -> bool {
        match attribute {
            Attribute::Head => true,
            Attribute::Simple => self.barriers == 0,
            Attribute::Ordered => self.active == 0,
        }
    }

    fn enter(&mut self, attribute: Attribute) {
        self.active += 1;
        self.barriers += u32::from(attribute.is_barrier());
    }

    /// A task ends: one that waited, or one that was active.
    pub(crate) fn leave(&mut self, slot: u32, attribute: Attribute) {
        if !self.waiting.is_empty()
            && let Some(at) = self.waiting.iter().position(|(waiting, _)| *waiting == slot)
        {
            self.waiting.remove(at);
            return;
        }
        self.active -= 1;
        self.barriers -= u32::from(attribute.is_barrier());
    }

    /// A task that may start now.
    pub(crate) fn next(&mut self) -> Option<u32> {
        let &(slot, attribute) = self.waiting.front()?;
        if !self.admits(attribute) {
            return None;
        }
        self.waiting.pop_front();
        self.enter(attribute);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_waits_for_older_and_newer_wait_for_it() {
        let mut order = TaskSet::default();
        assert!(order.arrive(1, Attribute::Simple) && order.arrive(2, Attribute::Simple));
        assert!(!order.arrive(3, Attribute::Ordered));
        assert!(!order.arrive(4, Attribute::Simple));
        assert!(order.arrive(5, Attribute::Head));
        order.leave(1, Attribute::Simple);
        order.leave(2, Attribute::Simple);
        assert_eq!(order.next(), None);
        order.leave(5, Attribute::Head);
        assert_eq!((order.next(), order.next()), (Some(3), None));
        order.leave(3, Attribute::Ordered);
        assert_eq!((order.next(), order.next()), (Some(4), None));
    }

    #[test]
    fn one_that_waits_can_leave() {
        let mut order = TaskSet::default();
        assert!(order.arrive(1, Attribute::Ordered));
        assert!(!order.arrive(2, Attribute::Ordered));
        assert!(!order.arrive(3, Attribute::Simple));
        order.leave(2, Attribute::Ordered);
        order.leave(1, Attribute::Ordered);
        assert_eq!((order.next(), order.next()), (Some(3), None));
        order.leave(3, Attribute::Simple);
        assert!(order.arrive(4, Attribute::Ordered));
    }
}
