//! Initiator Task Tags to tags: a table of fixed size, so that no command allocates.
//!
//! Open addressing with linear probing, at most half full. An ITT is hashed and compared, never used
//! as an index. The table is small, so a peer that chooses colliding ITTs makes its own look-ups
//! slower by some hundred compares and harms nobody.

use crate::wire::Itt;
use stream::Tag;

#[derive(Debug)]
pub(crate) struct IttIndex {
    places: Box<[Option<(Itt, Tag)>]>,
    len: usize,
}

impl IttIndex {
    /// Room for `limit` tasks.
    pub(crate) fn new(limit: usize) -> Self {
        let places = (limit.max(1) * 2).next_power_of_two();
        IttIndex { places: vec![None; places].into(), len: 0 }
    }

    pub(crate) fn find(&self, itt: Itt) -> Option<Tag> {
        let mut at = self.home(itt);
        while let Some((here, tag)) = self.places[at] {
            if here == itt {
                return Some(tag);
            }
            at = self.after(at);
        }
        None
    }

    /// Enters a tag that is not in yet.
    ///
    /// # Panics
    /// If more than `limit` are in: the tasks are counted elsewhere.
    pub(crate) fn insert(&mut self, itt: Itt, tag: Tag) {
        assert!(self.len * 2 < self.places.len(), "more tasks than the index has room for");
        let mut at = self.home(itt);
        while self.places[at].is_some() {
            at = self.after(at);
        }
        self.places[at] = Some((itt, tag));
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, itt: Itt) {
        let mut at = self.home(itt);
        loop {
            match self.places[at] {
                None => return,
                Some((here, _)) if here == itt => break,
                Some(_) => at = self.after(at),
            }
        }
        self.len -= 1;
        // Close the gap: move back whatever was pushed beyond it.
        let mut gap = at;
        let mut from = self.after(gap);
        while let Some((here, _)) = self.places[from] {
            let home = self.home(here);
            let mask = self.places.len() - 1;
            if (from.wrapping_sub(home) & mask) >= (from.wrapping_sub(gap) & mask) {
                self.places[gap] = self.places[from];
                gap = from;
            }
            from = self.after(from);
        }
        self.places[gap] = None;
    }

    fn home(&self, itt: Itt) -> usize {
        let spread = u64::from(itt.value()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread >> 32) as usize & (self.places.len() - 1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn behaves_like_a_map(steps in proptest::collection::vec((any::<bool>(), 0u32..12), 0..200)) {
            let mut index = IttIndex::new(8);
            let mut map = HashMap::new();
            for (n, (put, key)) in steps.into_iter().enumerate() {
                let itt = Itt::new(key.wrapping_mul(0x1000_0001));
                if !put {
                    index.remove(itt);
                    map.remove(&itt);
                } else if map.len() < 8 && !map.contains_key(&itt) {
                    let tag = Tag::from_bits(n as u64);
                    index.insert(itt, tag);
                    map.insert(itt, tag);
                }
                for key in 0..12u32 {
                    let itt = Itt::new(key.wrapping_mul(0x1000_0001));
                    prop_assert_eq!(index.find(itt), map.get(&itt).copied());
                }
            }
        }
    }
}
