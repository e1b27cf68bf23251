//! Command identifiers to tags: a table of fixed size, so that no command allocates.
//!
//! Open addressing with linear probing, at most half full. A CID is hashed and compared, never used
//! as an index. A peer that chooses colliding CIDs makes its own look-ups slower, and harms nobody.

use stream::Tag;

#[derive(Debug)]
pub(crate) struct CidIndex {
    places: Box<[Option<(u16, Tag)>]>,
    len: usize,
}

impl CidIndex {
    /// Room for `limit` tasks.
    pub(crate) fn new(limit: usize) -> Self {
        let places = (limit.max(1) * 2).next_power_of_two();
        CidIndex { places: vec![None; places].into(), len: 0 }
    }

    /// Makes room for `limit` tasks.
    pub(crate) fn grow(&mut self, limit: usize) {
        let old = std::mem::replace(self, Self::new(limit));
        old.places.iter().flatten().for_each(|(cid, tag)| self.insert(*cid, *tag));
    }

    #[inline]
    pub(crate) fn find(&self, cid: u16) -> Option<Tag> {
        let mut at = self.home(cid);
        while let Some((here, tag)) = self.places[at] {
            if here == cid {
                return Some(tag);
            }
            at = self.after(at);
        }
        None
    }

    /// Enters a CID that is not in yet.
    ///
    /// # Panics
    /// If more than `limit` are in: the tasks are counted elsewhere.
    pub(crate) fn insert(&mut self, cid: u16, tag: Tag) {
        assert!(self.len * 2 < self.places.len(), "more tasks than the index has room for");
        let mut at = self.home(cid);
        while self.places[at].is_some() {
            at = self.after(at);
        }
        self.places[at] = Some((cid, tag));
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, cid: u16) {
        let mut gap = self.home(cid);
        loop {
            match self.places[gap] {
                None => return,
                Some((here, _)) if here == cid => break,
                Some(_) => gap = self.after(gap),
            }
        }
        self.len -= 1;
        // Close the gap: move back whatever was pushed beyond it.
        let mask = self.places.len() - 1;
        let mut from = self.after(gap);
        while let Some((here, _)) = self.places[from] {
            if (from.wrapping_sub(self.home(here)) & mask) >= (from.wrapping_sub(gap) & mask) {
                self.places[gap] = self.places[from];
                gap = from;
            }
            from = self.after(from);
        }
        self.places[gap] = None;
    }

    fn home(&self, cid: u16) -> usize {
        let spread = u32::from(cid).wrapping_mul(0x9e37_79b1);
        (spread >> 16) as usize & (self.places.len() - 1)
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
        fn behaves_like_a_map(steps in proptest::collection::vec((any::<bool>(), 0u16..12), 0..200)) {
            let mut index = CidIndex::new(4);
            let mut map = HashMap::new();
            let cid = |key: u16| key.wrapping_mul(0x1001);
            for (n, (put, key)) in steps.into_iter().enumerate() {
                if n == 100 {
                    index.grow(12);
                }
                let limit = if n < 100 { 4 } else { 12 };
                let tag = Tag::from_bits(n as u64);
                if !put {
                    index.remove(cid(key));
                    map.remove(&cid(key));
                } else if map.len() < limit && !map.contains_key(&cid(key)) {
                    index.insert(cid(key), tag);
                    map.insert(cid(key), tag);
                }
                for key in 0..12 {
                    prop_assert_eq!(index.find(cid(key)), map.get(&cid(key)).copied());
                }
            }
        }
    }
}
