//! Maps a peer's names of commands (Initiator Task Tags, command identifiers) to tags: a table of fixed size,
//! so that no command allocates.
//!
//! Open addressing with linear probing, at most half full. A name is hashed and compared, never used as an
//! index. The table is small: a peer that chooses colliding names slows down only its own look-ups, by at
//! most one comparison per command in flight.

use crate::tag::Tag;

/// See the module.
/// ```
/// use blockwire_stream::{Slab, TagIndex};
///
/// let (mut tasks, mut index) = (Slab::new(8), TagIndex::new(8));
/// let tag = tasks.insert("read").unwrap();
/// index.insert(0xffff_fff0, tag);
/// assert_eq!(index.find(0xffff_fff0), Some(tag));
/// assert_eq!(index.find(7), None, "the peer has named a task that is not there");
/// ```
#[derive(Debug)]
pub struct TagIndex {
    places: Box<[Option<(u32, Tag)>]>,
    len: usize,
}

impl TagIndex {
    /// Room for `limit` tasks.
    pub fn new(limit: usize) -> Self {
        let places = (limit.max(1) * 2).next_power_of_two();
        TagIndex { places: vec![None; places].into(), len: 0 }
    }

    /// Makes room for `limit` tasks.
    pub fn grow(&mut self, limit: usize) {
        let old = std::mem::replace(self, Self::new(limit));
        old.places.iter().flatten().for_each(|(name, tag)| self.insert(*name, *tag));
    }

    /// The tag of a name.
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "`home` and `after` mask by the number of places, which is a power of two"
    )]
    pub fn find(&self, name: u32) -> Option<Tag> {
        let mut at = self.home_slot(name);
        while let Some((here, tag)) = self.places[at] {
            if here == name {
                return Some(tag);
            }
            at = self.next_slot(at);
        }
        None
    }

    /// Enters a name that is not in yet.
    ///
    /// # Panics
    /// If more than `limit` are in: the tasks are counted elsewhere.
    #[expect(
        clippy::indexing_slicing,
        reason = "`home` and `after` mask by the number of places, which is a power of two"
    )]
    pub fn insert(&mut self, name: u32, tag: Tag) {
        assert!(self.len * 2 < self.places.len(), "more tasks than the index has room for");
        let mut at = self.home_slot(name);
        while self.places[at].is_some() {
            at = self.next_slot(at);
        }
        self.places[at] = Some((name, tag));
        self.len += 1;
    }

    /// Takes a name out; one that is not in is fine.
    pub fn remove(&mut self, name: u32) {
        self.remove_if(name, |_| true);
    }

    /// Takes a name out if it is that of this task.
    pub fn remove_tag(&mut self, name: u32, tag: Tag) {
        self.remove_if(name, |found| found == tag);
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "`home` and `after` mask by the number of places, which is a power of two"
    )]
    fn remove_if(&mut self, name: u32, is_meant: impl FnOnce(Tag) -> bool) {
        let mut gap = self.home_slot(name);
        loop {
            match self.places[gap] {
                None => return,
                Some((here, tag)) if here == name => match is_meant(tag) {
                    true => break,
                    false => return,
                },
                Some(_) => gap = self.next_slot(gap),
            }
        }
        self.len -= 1;
        // Close the gap: move back whatever was pushed beyond it.
        let mask = self.places.len() - 1;
        let mut from = self.next_slot(gap);
        while let Some((here, _)) = self.places[from] {
            if (from.wrapping_sub(self.home_slot(here)) & mask) >= (from.wrapping_sub(gap) & mask) {
                self.places[gap] = self.places[from];
                gap = from;
            }
            from = self.next_slot(from);
        }
        self.places[gap] = None;
    }

    fn home_slot(&self, name: u32) -> usize {
        let spread = u64::from(name).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread >> 32) as usize & (self.places.len() - 1)
    }

    fn next_slot(&self, at: usize) -> usize {
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
            let mut index = TagIndex::new(4);
            let mut map = HashMap::new();
            let name = |key: u32| key.wrapping_mul(0x1000_0001);
            for (n, (put, key)) in steps.into_iter().enumerate() {
                if n == 100 {
                    index.grow(12);
                }
                let limit = if n < 100 { 4 } else { 12 };
                let tag = Tag::from_bits(n as u64);
                if !put {
                    index.remove(name(key));
                    map.remove(&name(key));
                } else if map.len() < limit && !map.contains_key(&name(key)) {
                    index.insert(name(key), tag);
                    map.insert(name(key), tag);
                }
                for key in 0..12 {
                    prop_assert_eq!(index.find(name(key)), map.get(&name(key)).copied());
                }
            }
        }
    }
}
