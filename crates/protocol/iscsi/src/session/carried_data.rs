//! Write data that came before its task was withdrawn.
//!
//! The server gave the buffer that it came into back with the command. The bytes wait beside the pool: the
//! server must find the memory again that it takes for the whole payload, and it would not if what is
//! withdrawn kept as much.

use super::task::Transfer;
use std::collections::BTreeMap;
use stream::Tag;

/// The bytes of a task's data that came, from offset `base` on.
#[derive(Debug)]
pub(super) struct CarriedData {
    base: u32,
    /// Offset of the first byte that was not copied on.
    from: u32,
    bytes: Box<[u8]>,
}

impl CarriedData {
    pub(super) fn new(base: u32, bytes: Box<[u8]>) -> Self {
        CarriedData { base, from: base, bytes }
    }

    pub(super) fn base(&self) -> u32 {
        self.base
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn end(&self) -> u32 {
        self.base.saturating_add(self.bytes.len() as u32)
    }
}

/// The carried data of a session, by task. It is in no task itself: each command enters and leaves the table of tasks,
/// and hardly any has such data.
#[derive(Debug, Default)]
pub(super) struct CarriedDataTable(BTreeMap<Tag, CarriedData>);

impl CarriedDataTable {
    pub(super) fn get(&self, tag: Tag) -> Option<&CarriedData> {
        self.0.get(&tag)
    }

    pub(super) fn insert(&mut self, tag: Tag, carried: CarriedData) {
        self.0.insert(tag, carried);
    }

    /// The task's data is not wanted any more.
    #[inline]
    pub(super) fn remove(&mut self, tag: Tag) {
        if !self.0.is_empty() {
            self.0.remove(&tag);
        }
    }

    /// Copies carried bytes of a task on into the places that want them, and frees them when all were. False while the
    /// memory of a place is out.
    #[inline]
    pub(super) fn place(&mut self, tag: Tag, transfer: &mut Transfer) -> bool {
        self.0.is_empty() || self.place_carried(tag, transfer)
    }

    #[cold]
    fn place_carried(&mut self, tag: Tag, transfer: &mut Transfer) -> bool {
        let Some(carried) = self.0.get_mut(&tag) else { return true };
        for place in &mut transfer.places {
            let from = carried.from.max(place.data_offset());
            let to = carried.end().min(place.data_end());
            if from >= to {
                continue;
            }
            let range = (from - carried.base) as usize..(to - carried.base) as usize;
            if !place.copy_from_bytes(from, carried.bytes.get(range).unwrap_or_default()) {
                return false;
            }
            carried.from = to;
        }
        let got = transfer.got;
        if carried.from >= carried.end() || transfer.places.iter().any(|place| place.data_end() > got) {
            self.0.remove(&tag);
        }
        true
    }
}

impl Transfer {
    /// Whether all that comes next was asked for by R2T: it may wait in the stream for a place, for only such data
    /// may wait for memory.
    pub(super) fn is_solicited(&self) -> bool {
        self.asked > self.unsolicited
    }

    /// Takes back what came into the server's buffers and the hold, as the server has let go of the task. False, and
    /// nothing is changed: the server has some of the data, some memory is out with a receive, or a byte is missing.
    pub(super) fn carry_received_data(&mut self, tag: Tag, table: &mut CarriedDataTable) -> bool {
        if self.delivered || self.sent > 0 {
            return false;
        }
        let mut parts: Vec<(u32, Vec<u8>)> = Vec::new();
        if let Some(carried) = table.get(tag) {
            parts.push((carried.base, carried.bytes.to_vec()));
        }
        if let Some(hold) = &self.hold {
            let Some(part) = hold.received_bytes() else { return false };
            parts.push(part);
        }
        for place in &self.places {
            let Some(bytes) = place.received_bytes() else { return false };
            parts.push((place.data_offset(), bytes));
        }
        parts.retain(|(_, bytes)| !bytes.is_empty());
        parts.sort_by_key(|(at, _)| *at);
        let Some(base) = parts.first().map(|(at, _)| *at) else {
            // Bytes that came and are nowhere were wanted by nobody, or are lost.
            if self.got > 0 {
                return false;
            }
            self.drop_memory();
            table.remove(tag);
            return true;
        };
        let mut bytes: Vec<u8> = Vec::with_capacity(self.got.saturating_sub(base) as usize);
        for (at, part) in parts {
            let known = base as usize + bytes.len();
            let Some(overlap) = known.checked_sub(at as usize) else { return false };
            bytes.extend_from_slice(part.get(overlap..).unwrap_or_default());
        }
        if base as usize + bytes.len() != self.got as usize {
            return false;
        }
        self.drop_memory();
        table.insert(tag, CarriedData::new(base, bytes.into()));
        true
    }
}
