//! A table of values by number. Numbers are reused, so a long-lived user of a number also keeps something
//! that identifies the value.

pub(crate) struct SlotTable<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> SlotTable<T> {
    pub(crate) fn new() -> Self {
        SlotTable { places: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, what: T) -> u32 {
        let at = self.free.pop().unwrap_or(self.places.len() as u32);
        match self.places.get_mut(at as usize) {
            Some(place) => *place = Some(what),
            None => self.places.push(Some(what)),
        }
        at
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.places.get(at as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.places.get_mut(at as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let what = self.places.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(what)
    }

    /// Every number that may have been given.
    pub(crate) fn slot_numbers(&self) -> std::ops::Range<u32> {
        0..self.places.len() as u32
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }
}
