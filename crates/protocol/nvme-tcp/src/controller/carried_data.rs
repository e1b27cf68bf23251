//! Write data that came before its task was withdrawn.
//!
//! The server gave the buffer that it came into back with the command. The bytes wait beside the pool: the
//! server must find the memory again that it takes for the whole payload, and it would not if what is
//! withdrawn kept as much. A host may send several stretches in turn, so they are several.

use super::ControllerQueue;
use super::receive::PduData;
use super::task::{DataSource, Task};
use crate::pdu_receiver::ReceiveState;
use std::collections::BTreeMap;
use std::ops::Range;
use stream::Tag;

/// Stretches of a task's data that came, in order, each with the offset of its first byte.
#[derive(Debug)]
pub(super) struct CarriedData(Vec<(u32, Box<[u8]>)>);

impl CarriedData {
    pub(super) fn new(stretches: Vec<(u32, Box<[u8]>)>) -> Self {
        CarriedData(stretches)
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.0.iter().map(|(at, bytes)| (*at, &**bytes))
    }
}

/// The carried data of a queue, by task. It is in no task itself: each command enters and leaves the table of tasks, and
/// hardly any has such data.
#[derive(Debug, Default)]
pub(super) struct CarriedDataTable(BTreeMap<Tag, CarriedData>);

impl CarriedDataTable {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Stretches of a task's data that have no place yet, each with its offset.
    pub(super) fn stretches(&self, tag: Tag) -> impl Iterator<Item = (u32, &[u8])> {
        self.0.get(&tag).into_iter().flat_map(CarriedData::iter)
    }

    pub(super) fn insert(&mut self, tag: Tag, carried: CarriedData) {
        if !carried.0.is_empty() {
            self.0.insert(tag, carried);
        }
    }

    /// The task's data is not wanted any more.
    #[inline]
    pub(super) fn remove(&mut self, tag: Tag) {
        if !self.0.is_empty() {
            self.0.remove(&tag);
        }
    }
}

impl Task {
    /// Takes back what came into the server's buffer, as the server has let go of the task, and puts it into the
    /// `table`; `stretch`: the PDU that the stream stands in, if it is of this task. False, and nothing is changed:
    /// some of the data is with the host or the server, the buffer is out with a receive, or is not that of the
    /// whole payload.
    pub(super) fn carry_received_data(
        &mut self,
        tag: Tag,
        stretch: Option<PduData>,
        table: &mut CarriedDataTable,
    ) -> bool {
        if self.moved || self.places.len() > 1 {
            return false;
        }
        let Some(place) = self.places.first() else { return true };
        if !place.has_memory() || (place.data_offset(), place.data_end()) != (0, self.len) {
            return false;
        }
        let mut stretches = Vec::new();
        for range in self.received_ranges(stretch) {
            let Some(bytes) = place.copy_range(range.clone()) else { return false };
            stretches.push((range.start, bytes.into()));
        }
        let len = stretches.iter().map(|(_, bytes): &(u32, Box<[u8]>)| bytes.len()).sum::<usize>();
        if len != place.received_len() as usize {
            return false;
        }
        self.places.clear();
        table.insert(tag, CarriedData::new(stretches));
        true
    }

    /// Which of its data has come, in order: all that was asked for, or stands in its capsule, but for what is
    /// still owed.
    pub(super) fn received_ranges(&self, stretch: Option<PduData>) -> Vec<Range<u32>> {
        let end = match self.source {
            DataSource::Capsule => self.len,
            DataSource::Host => self.asked,
            DataSource::None | DataSource::Server => 0,
        };
        let mut owed: Vec<Range<u32>> = self.r2ts.iter().map(|asked| asked.next..asked.end).collect();
        owed.extend(stretch.map(|stretch| stretch.at..stretch.at.saturating_add(stretch.want)));
        owed.retain(|range| !range.is_empty());
        owed.sort_by_key(|range| range.start);
        let (mut came, mut at) = (Vec::new(), 0);
        for range in owed {
            if at < range.start {
                came.push(at..range.start);
            }
            at = at.max(range.end);
        }
        if at < end {
            came.push(at..end);
        }
        came
    }
}

impl ControllerQueue {
    /// The PDU that the stream stands in, if its data is of this task.
    pub(super) fn stretch_of(&self, tag: Tag) -> Option<PduData> {
        match self.rx.state {
            ReceiveState::Data(stretch) | ReceiveState::Digest(stretch) if stretch.tag() == Some(tag) => {
                Some(stretch)
            }
            ReceiveState::Data(_) | ReceiveState::Digest(_) | ReceiveState::Header => None,
        }
    }

    /// Copies carried bytes on into the place that the server gave.
    #[cold]
    pub(super) fn place_carried_data(&mut self, tag: Tag) {
        let within_pdu = self.stretch_of(tag).is_some();
        let Some((task, table)) = self.role.tasks.get_mut_with_carried(tag) else { return };
        let Some(carried) = table.0.remove(&tag) else { return };
        for place in &mut task.places {
            for (at, bytes) in carried.iter() {
                let _ = place.copy_from_bytes(at, bytes);
            }
        }
        if !within_pdu {
            task.confirm_carried();
        }
    }
}
