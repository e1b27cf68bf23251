//! Finds which of many state machines has a due timeout, without asking all of them every turn.
//!
//! The `poll_timeout` of each is authoritative; the heap holds a time for each that is not later. A time that
//! passes with nothing to do is looked up again, so traffic that pushes a deadline back costs nothing. Later
//! times, left from before a deadline moved forward, are ignored and dropped when they come up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use buf::Time;

/// The earliest times, by whose they are.
/// ```
/// use blockwire_stream::{Time, TimerQueue};
///
/// let (mut timers, mut noted) = (TimerQueue::default(), None);
/// timers.update_timer("link 1", Some(Time(50)), &mut noted);
/// assert_eq!(timers.next_time(), Some(Time(50)));
/// assert_eq!(timers.pop_due(Time(49)), None);
/// assert_eq!(timers.pop_due(Time(50)), Some((Time(50), "link 1")));
/// ```
#[derive(Debug)]
pub struct TimerQueue<K> {
    heap: BinaryHeap<Reverse<(Time, K)>>,
}

impl<K: Copy + Ord> Default for TimerQueue<K> {
    fn default() -> Self {
        TimerQueue { heap: BinaryHeap::new() }
    }
}

impl<K: Copy + Ord> TimerQueue<K> {
    /// One wants to be called at `wanted`; `noted` is what it said when last asked, and is
    /// brought up to date.
    pub fn update_timer(&mut self, whose: K, wanted: Option<Time>, noted: &mut Option<Time>) {
        let Some(wanted) = wanted else { return };
        if noted.is_none_or(|noted| wanted < noted) {
            self.heap.push(Reverse((wanted, whose)));
            *noted = Some(wanted);
        }
    }

    /// The earliest time.
    pub fn next_time(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((time, _))| *time)
    }

    /// One whose time has come, and that time. If it is its note, the caller forgets the note, calls
    /// it, and notes it again; else there is nothing to do.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, K)> {
        let &Reverse((time, whose)) = self.heap.peek()?;
        if time > now {
            return None;
        }
        self.heap.pop();
        Some((time, whose))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_deadline_costs_nothing_and_an_earlier_one_counts() {
        let mut timers = TimerQueue::default();
        let tag = 1;
        let mut noted = None;
        timers.update_timer(tag, Some(Time(50)), &mut noted);
        timers.update_timer(tag, Some(Time(90)), &mut noted);
        assert_eq!(timers.heap.len(), 1);
        timers.update_timer(tag, Some(Time(20)), &mut noted);
        assert_eq!(timers.next_time(), Some(Time(20)));
        assert_eq!(timers.pop_due(Time(19)), None);
        assert_eq!(timers.pop_due(Time(20)), Some((Time(20), tag)));
        assert_eq!(timers.next_time(), Some(Time(50)));
        // The caller knows by its note that this one means nothing.
        timers.update_timer(tag, Some(Time(90)), &mut noted);
        assert_eq!(timers.pop_due(Time(50)), Some((Time(50), tag)));
        assert_ne!(noted, Some(Time(50)));
    }
}
