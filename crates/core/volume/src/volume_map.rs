//! A table of values per volume, found by the volume's number.
//!
//! Invariant: a slot holds the value of one volume, and only that volume's complete number finds it. A late
//! message for a deleted or unknown volume finds nothing, whichever volume uses the slot now.

use crate::facts::VolumeId;

/// A value for each volume that is known.
/// ```
/// use blockwire_volume::{VolumeMap, VolumeId};
///
/// let (gone, new) = (VolumeId::new(0, 1), VolumeId::new(0, 2));
/// let mut names = VolumeMap::default();
/// names.insert(gone, "old").unwrap();
/// assert_eq!(names.remove(gone), Some("old"));
/// names.insert(new, "new").unwrap();
/// assert_eq!((names.get(gone), names.get(new)), (None, Some(&"new")));
/// ```
#[derive(Debug)]
pub struct VolumeMap<T> {
    places: Vec<Option<(VolumeId, T)>>,
}

impl<T> Default for VolumeMap<T> {
    fn default() -> Self {
        VolumeMap { places: Vec::new() }
    }
}

impl<T> VolumeMap<T> {
    /// Whether the place of a volume is free for it.
    pub fn is_free_for(&self, volume: VolumeId) -> bool {
        self.places.get(volume.table_slot() as usize).is_none_or(Option::is_none)
    }

    /// Keeps a value. Where a volume has the place already, it stays as it is and the value comes back.
    #[expect(clippy::indexing_slicing, reason = "the places were made enough just before")]
    pub fn insert(&mut self, volume: VolumeId, value: T) -> Result<(), T> {
        let at = volume.table_slot() as usize;
        if self.places.len() <= at {
            self.places.resize_with(at + 1, || None);
        }
        match &mut self.places[at] {
            Some(_) => Err(value),
            free => {
                *free = Some((volume, value));
                Ok(())
            }
        }
    }

    /// What is kept of a volume.
    #[inline]
    pub fn get(&self, volume: VolumeId) -> Option<&T> {
        let (known, value) = self.places.get(volume.table_slot() as usize)?.as_ref()?;
        (*known == volume).then_some(value)
    }

    /// The same, to be changed.
    #[inline]
    pub fn get_mut(&mut self, volume: VolumeId) -> Option<&mut T> {
        let (known, value) = self.places.get_mut(volume.table_slot() as usize)?.as_mut()?;
        (*known == volume).then_some(value)
    }

    /// Forgets a volume.
    pub fn remove(&mut self, volume: VolumeId) -> Option<T> {
        let place = self.places.get_mut(volume.table_slot() as usize)?;
        place.take_if(|(known, _)| *known == volume).map(|(_, value)| value)
    }

    /// All, by their places.
    pub fn iter(&self) -> impl Iterator<Item = (VolumeId, &T)> {
        self.places.iter().flatten().map(|(volume, value)| (*volume, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_place_never_gets_what_is_for_who_had_it_before() {
        let (first, second) = (VolumeId::new(3, 0), VolumeId::new(3, 1));
        let mut table = VolumeMap::default();
        table.insert(first, 'a').unwrap();
        assert_eq!(table.insert(second, 'b'), Err('b'), "the place is taken");
        assert_eq!((table.get(first), table.get(second)), (Some(&'a'), None));
        assert_eq!(table.remove(second), None);
        assert_eq!(table.remove(first), Some('a'));
        assert!(table.is_free_for(second));
        table.insert(second, 'b').unwrap();
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.iter().collect::<Vec<_>>(), [(second, &'b')]);
        assert!(table.get(VolumeId::new(9, 0)).is_none() && table.is_free_for(VolumeId::new(9, 0)));
    }
}
