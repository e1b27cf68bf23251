//! Served volumes by number and by name, and the numbers that volumes are given.
//!
//! Invariant: finding a volume, and giving a number, takes the same time however many volumes there are.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use volume::VolumeId;

use super::catalog_volume::CatalogVolume;

/// Volumes by number and by name. A name is that of one volume at most.
#[derive(Debug, Default)]
pub struct VolumeIndex {
    by_id: BTreeMap<VolumeId, CatalogVolume>,
    by_name: HashMap<String, VolumeId>,
}

impl VolumeIndex {
    /// Adds a volume.
    pub fn insert(&mut self, id: VolumeId, entry: CatalogVolume) {
        self.by_name.insert(entry.name.to_string(), id);
        self.by_id.insert(id, entry);
    }

    /// Removes a volume.
    pub fn remove(&mut self, id: VolumeId) -> Option<CatalogVolume> {
        let entry = self.by_id.remove(&id)?;
        if self.by_name.get(entry.name.as_str()) == Some(&id) {
            self.by_name.remove(entry.name.as_str());
        }
        Some(entry)
    }

    /// The volume of that number.
    pub fn get(&self, id: VolumeId) -> Option<&CatalogVolume> {
        self.by_id.get(&id)
    }

    /// The volume of that name.
    pub fn find(&self, name: &str) -> Option<(VolumeId, &CatalogVolume)> {
        let id = *self.by_name.get(name)?;
        Some((id, self.by_id.get(&id)?))
    }

    /// The volume of that name, to be changed.
    pub fn find_mut(&mut self, name: &str) -> Option<&mut CatalogVolume> {
        self.by_id.get_mut(self.by_name.get(name)?)
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = (VolumeId, &CatalogVolume)> {
        self.by_id.iter().map(|(id, entry)| (*id, entry))
    }
}

/// Which places in the shards' tables are taken, and how many numbers were given.
///
/// A place is given again when it is released, a number never.
#[derive(Debug, Default)]
pub struct VolumePlaces {
    /// Released places below `end`.
    free: BTreeSet<u32>,
    /// No place from here on was ever taken.
    end: u32,
    /// How many numbers were given.
    given: u32,
}

impl VolumePlaces {
    /// A number that no volume ever had, with the lowest place that is free; `None` after four billion volumes.
    pub fn allocate_id(&mut self) -> Option<VolumeId> {
        let life = self.given;
        let given = life.checked_add(1)?;
        let place = match self.free.pop_first() {
            Some(place) => place,
            None => {
                let place = self.end;
                self.end = place.checked_add(1)?;
                place
            }
        };
        self.given = given;
        Some(VolumeId::new(place, life))
    }

    /// No shard has anything of this volume any more.
    pub fn release(&mut self, id: VolumeId) {
        if id.table_slot() < self.end {
            self.free.insert(id.table_slot());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_twice_and_no_place_before_it_is_released() {
        let mut places = VolumePlaces::default();
        let first: Vec<VolumeId> = (0..4).map(|_| places.allocate_id().unwrap()).collect();
        assert_eq!(first.iter().map(|id| id.table_slot()).collect::<Vec<_>>(), [0, 1, 2, 3]);
        places.release(first[2]);
        places.release(first[1]);
        let next: Vec<VolumeId> = (0..3).map(|_| places.allocate_id().unwrap()).collect();
        assert_eq!(next.iter().map(|id| id.table_slot()).collect::<Vec<_>>(), [1, 2, 4]);
        assert!(next.iter().all(|id| !first.contains(id)), "{next:?}");
        places.given = u32::MAX;
        assert_eq!(places.allocate_id(), None);
    }
}
