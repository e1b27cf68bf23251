//! Write tasks that ended before the peer had sent all their data: further data for them is skipped, not
//! refused (RFC 7143 §4.2.3.3; without FastAbort an initiator sends on until the sequence is complete).
//!
//! One LOGICAL UNIT RESET may end every task in flight this way, so there are as many slots as tasks. A tag
//! that is used again, or whose last sequence has arrived, is removed. If no slot is free, the oldest one is
//! reused.

use crate::links::LinkIndex;
use crate::wire::Itt;
use std::collections::{BTreeMap, VecDeque};

/// Task tag and link.
type TaskKey = (u32, LinkIndex);

#[derive(Debug)]
pub(super) struct AbandonedWrites {
    /// With the number under which it was put.
    known: BTreeMap<TaskKey, u64>,
    /// In the order in which they came; what is not known by the same number was taken out.
    order: VecDeque<(TaskKey, u64)>,
    count: u64,
    most: usize,
}

impl AbandonedWrites {
    /// With places for `most`.
    pub(super) fn new(most: usize) -> Self {
        AbandonedWrites { known: BTreeMap::new(), order: VecDeque::new(), count: 0, most: most.max(1) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(super) fn contains(&self, itt: Itt, link: LinkIndex) -> bool {
        self.known.contains_key(&(itt.value(), link))
    }

    /// Task tag and link of each, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = TaskKey> + '_ {
        let current = |(key, number): &&(TaskKey, u64)| self.known.get(key) == Some(number);
        self.order.iter().filter(current).map(|(key, _)| *key)
    }

    pub(super) fn insert(&mut self, itt: Itt, link: LinkIndex) {
        let key = (itt.value(), link);
        let AbandonedWrites { known, order, count, most } = self;
        if order.len() >= 2 * *most {
            order.retain(|(key, number)| known.get(key) == Some(number));
        }
        *count += 1;
        known.insert(key, *count);
        order.push_back((key, *count));
        while known.len() > *most {
            let Some((oldest, number)) = order.pop_front() else { return };
            if known.get(&oldest) == Some(&number) {
                known.remove(&oldest);
            }
        }
    }

    pub(super) fn remove(&mut self, itt: Itt, link: LinkIndex) {
        self.known.remove(&(itt.value(), link));
    }

    /// A link is gone.
    pub(super) fn remove_link(&mut self, link: LinkIndex) {
        self.known.retain(|(_, of), _| *of != link);
        self.order.retain(|((_, of), _)| *of != link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_lost_while_there_are_places_and_the_oldest_goes_first() {
        let mut links = crate::links::Links::new();
        let (first, second) = (links.push(()), links.push(()));
        let mut abandoned = AbandonedWrites::new(4);
        for round in 0..100 {
            abandoned.insert(Itt::new(round), first);
            abandoned.insert(Itt::new(round), first);
            let kept: Vec<_> = (0..=round).filter(|itt| abandoned.contains(Itt::new(*itt), first)).collect();
            assert_eq!(kept, (0..=round).skip((round as usize + 1).saturating_sub(4)).collect::<Vec<_>>());
            assert!(abandoned.order.len() <= 8);
        }
        abandoned.remove(Itt::new(98), first);
        assert!(!abandoned.contains(Itt::new(98), first) && !abandoned.contains(Itt::new(99), second));
        for _ in 0..100 {
            abandoned.insert(Itt::new(1), second);
            abandoned.remove(Itt::new(1), second);
            assert!(abandoned.order.len() <= 8);
        }
        abandoned.remove_link(first);
        assert!(abandoned.is_empty());
    }
}
