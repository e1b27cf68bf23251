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
pub(crate) enum ExecutedAttribute {
    Simple,
    Ordered,
    Head,
}

impl ExecutedAttribute {
    /// `None`: no such attribute is executed here.
    pub(crate) fn from_task_attribute(attribute: TaskAttribute) -> Option<ExecutedAttribute> {
        match attribute {
            TaskAttribute::UNTAGGED | TaskAttribute::SIMPLE => Some(ExecutedAttribute::Simple),
            TaskAttribute::ORDERED => Some(ExecutedAttribute::Ordered),
            TaskAttribute::HEAD_OF_QUEUE => Some(ExecutedAttribute::Head),
            _ => None,
        }
    }

    fn is_barrier(self) -> bool {
        self != ExecutedAttribute::Simple
    }
}

/// A task set.
#[derive(Debug, Default)]
pub(crate) struct TaskSet {
    active: u32,
    /// Active tasks that newer ones must wait for.
    barriers: u32,
    waiting: VecDeque<(u32, ExecutedAttribute)>,
}

impl TaskSet {
    /// A task arrives. True if it may start at once; else [`TaskSet::next_startable`] names it later.
    pub(crate) fn add_task(&mut self, slot: u32, attribute: ExecutedAttribute) -> bool {
        let may = match attribute {
            ExecutedAttribute::Head => true,
            ExecutedAttribute::Simple | ExecutedAttribute::Ordered => {
                self.waiting.is_empty() && self.may_start(attribute)
            }
        };
        if may {
            self.note_started(attribute);
        } else {
            self.waiting.push_back((slot, attribute));
        }
        may
    }

    /// Whether a SIMPLE task that arrives now starts at once.
    pub(crate) fn accepts_simple(&self) -> bool {
        self.waiting.is_empty() && self.may_start(ExecutedAttribute::Simple)
    }

    fn may_start(&self, attribute: ExecutedAttribute) -> bool {
        match attribute {
            ExecutedAttribute::Head => true,
            ExecutedAttribute::Simple => self.barriers == 0,
            ExecutedAttribute::Ordered => self.active == 0,
        }
    }

    fn note_started(&mut self, attribute: ExecutedAttribute) {
        self.active += 1;
        self.barriers += u32::from(attribute.is_barrier());
    }

    /// A task ends: one that waited, or one that was active.
    pub(crate) fn remove_task(&mut self, slot: u32, attribute: ExecutedAttribute) {
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
    pub(crate) fn next_startable(&mut self) -> Option<u32> {
        let &(slot, attribute) = self.waiting.front()?;
        if !self.may_start(attribute) {
            return None;
        }
        self.waiting.pop_front();
        self.note_started(attribute);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_waits_for_older_and_newer_wait_for_it() {
        let mut order = TaskSet::default();
        assert!(order.add_task(1, ExecutedAttribute::Simple) && order.add_task(2, ExecutedAttribute::Simple));
        assert!(!order.add_task(3, ExecutedAttribute::Ordered));
        assert!(!order.add_task(4, ExecutedAttribute::Simple));
        assert!(order.add_task(5, ExecutedAttribute::Head));
        order.remove_task(1, ExecutedAttribute::Simple);
        order.remove_task(2, ExecutedAttribute::Simple);
        assert_eq!(order.next_startable(), None);
        order.remove_task(5, ExecutedAttribute::Head);
        assert_eq!((order.next_startable(), order.next_startable()), (Some(3), None));
        order.remove_task(3, ExecutedAttribute::Ordered);
        assert_eq!((order.next_startable(), order.next_startable()), (Some(4), None));
    }

    #[test]
    fn one_that_waits_can_leave() {
        let mut order = TaskSet::default();
        assert!(order.add_task(1, ExecutedAttribute::Ordered));
        assert!(!order.add_task(2, ExecutedAttribute::Ordered));
        assert!(!order.add_task(3, ExecutedAttribute::Simple));
        order.remove_task(2, ExecutedAttribute::Ordered);
        order.remove_task(1, ExecutedAttribute::Ordered);
        assert_eq!((order.next_startable(), order.next_startable()), (Some(3), None));
        order.remove_task(3, ExecutedAttribute::Simple);
        assert!(order.add_task(4, ExecutedAttribute::Ordered));
    }
}
