//! Tags: the names of tasks between a connection and its server.
//!
//! A tag carries a generation, so that a late completion never finds the task that reused its slot. A number
//! from a peer is never a tag: it is looked up, and the look-up can fail.

/// Names one task of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    slot: u32,
    generation: u32,
}

impl Tag {
    /// Both halves in one number, for a field that carries 64 bits.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The tag that [`Tag::to_bits`] wrote. Any number is accepted: a wrong one names nothing.
    pub fn from_bits(bits: u64) -> Self {
        Tag { slot: bits as u32, generation: (bits >> 32) as u32 }
    }

    /// The slot, for tables that run beside a [`Slab`]. Not unique over time.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// A bounded table of values named by [`Tag`]s.
/// ```
/// use blockwire_stream::Slab;
///
/// let mut tasks = Slab::new(2);
/// let read = tasks.insert("read").unwrap();
/// assert_eq!(tasks.remove(read), Some("read"));
/// // Another task takes the slot; the tag of the first names nothing.
/// let write = tasks.insert("write").unwrap();
/// assert_eq!(write.slot(), read.slot());
/// assert_eq!((tasks.get(read), tasks.get(write)), (None, Some(&"write")));
/// ```
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<Slot<T>>,
    free: Option<u32>,
    len: usize,
    limit: usize,
}

#[derive(Debug)]
enum Slot<T> {
    Free { next: Option<u32>, generation: u32 },
    Taken { generation: u32, value: T },
}

impl<T> Slot<T> {
    fn holds_tag(&self, tag: u32) -> bool {
        matches!(self, Slot::Taken { generation, .. } if *generation == tag)
    }
}

impl<T> Slab<T> {
    /// An empty table that never holds more than `limit` values.
    pub fn new(limit: usize) -> Self {
        assert!(u32::try_from(limit).is_ok(), "a slab's limit fits 32 bits");
        Slab { entries: Vec::new(), free: None, len: 0, limit }
    }

    /// Puts `value` in; gives it back if the table is full.
    #[expect(
        clippy::indexing_slicing,
        clippy::unreachable,
        reason = "the free list holds slots of this table that `remove` or `discard` have freed"
    )]
    pub fn insert(&mut self, value: T) -> Result<Tag, T> {
        if self.len == self.limit {
            return Err(value);
        }
        self.len += 1;
        match self.free {
            Some(slot) => {
                let entry = &mut self.entries[slot as usize];
                let Slot::Free { next, generation } = *entry else {
                    unreachable!("free list holds a taken slot")
                };
                self.free = next;
                *entry = Slot::Taken { generation, value };
                Ok(Tag { slot, generation })
            }
            None => {
                let slot = self.entries.len() as u32;
                self.entries.push(Slot::Taken { generation: 0, value });
                Ok(Tag { slot, generation: 0 })
            }
        }
    }

    /// Takes the value out, if `tag` still names one.
    #[expect(clippy::unreachable, reason = "the entry was matched as taken just before")]
    pub fn remove(&mut self, tag: Tag) -> Option<T> {
        let free = self.free;
        let entry = self.entries.get_mut(tag.slot as usize)?;
        match entry {
            Slot::Taken { generation, .. } if *generation == tag.generation => {}
            Slot::Taken { .. } | Slot::Free { .. } => return None,
        }
        let next = Slot::Free { next: free, generation: tag.generation.wrapping_add(1) };
        self.free = Some(tag.slot);
        self.len -= 1;
        match std::mem::replace(entry, next) {
            Slot::Taken { value, .. } => Some(value),
            Slot::Free { .. } => unreachable!("matched above"),
        }
    }

    /// Drops the value where it is, if `tag` still names one.
    pub fn discard(&mut self, tag: Tag) {
        let free = self.free;
        match self.entries.get_mut(tag.slot as usize) {
            Some(entry @ Slot::Taken { .. }) if entry.holds_tag(tag.generation) => {
                *entry = Slot::Free { next: free, generation: tag.generation.wrapping_add(1) };
                self.free = Some(tag.slot);
                self.len -= 1;
            }
            Some(_) | None => {}
        }
    }

    /// The value that `tag` names, if any.
    pub fn get(&self, tag: Tag) -> Option<&T> {
        match self.entries.get(tag.slot as usize)? {
            Slot::Taken { generation, value } if *generation == tag.generation => Some(value),
            Slot::Taken { .. } | Slot::Free { .. } => None,
        }
    }

    /// The value that `tag` names, if any, to change it.
    pub fn get_mut(&mut self, tag: Tag) -> Option<&mut T> {
        match self.entries.get_mut(tag.slot as usize)? {
            Slot::Taken { generation, value } if *generation == tag.generation => Some(value),
            Slot::Taken { .. } | Slot::Free { .. } => None,
        }
    }

    /// All values with their tags.
    pub fn iter(&self) -> impl Iterator<Item = (Tag, &T)> {
        self.entries.iter().enumerate().filter_map(|(slot, entry)| match entry {
            Slot::Taken { generation, value } => {
                Some((Tag { slot: slot as u32, generation: *generation }, value))
            }
            Slot::Free { .. } => None,
        })
    }

    /// All values with their tags, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Tag, &mut T)> {
        self.entries.iter_mut().enumerate().filter_map(|(slot, entry)| match entry {
            Slot::Taken { generation, value } => {
                Some((Tag { slot: slot as u32, generation: *generation }, value))
            }
            Slot::Free { .. } => None,
        })
    }

    /// How many values are in.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none is in.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether no more fits.
    pub fn is_full(&self) -> bool {
        self.len == self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_tag_names_nothing() {
        let mut slab = Slab::new(1);
        let first = slab.insert('a').unwrap();
        assert_eq!(slab.insert('b'), Err('b'));
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('c').unwrap();
        assert_eq!(first.slot(), second.slot());
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(Tag::from_bits(second.to_bits())), Some(&'c'));
        assert_eq!(slab.get(Tag::from_bits(u64::MAX)), None);
        slab.discard(first);
        assert_eq!(slab.get(second), Some(&'c'));
        slab.discard(second);
        assert!(slab.is_empty() && slab.get(second).is_none());
        let third = slab.insert('d').unwrap();
        assert!(third != second && slab.remove(second).is_none() && slab.remove(third) == Some('d'));
    }
}
