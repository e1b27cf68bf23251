//! The state of one task between its header and its answer.
//!
//! Write data is in the capsule, or is requested by R2Ts, never both. Every byte has exactly one destination:
//! a buffer of the server, or nowhere, if it is no longer needed.

use buf::{SgMut, Time};
use nvme::failpoint::{Failpoint, is_on};
use nvme::{Completion, Status};
use smallvec::SmallVec;
use stream::PayloadBuffer;

/// Most R2Ts outstanding per task, however many the host offers.
pub const R2T_MAX: usize = 4;

#[derive(Debug)]
pub(super) struct Task {
    pub(super) cid: u16,
    /// Where its data is.
    pub(super) source: DataSource,
    /// Bytes of its data, as the SGL says.
    pub(super) len: u32,
    pub(super) state: TaskState,
    /// The stream stands in its in-capsule data, or before it.
    pub(super) arriving: bool,
    /// It takes up one of the capsules that memory was set aside for.
    pub(super) capsule: bool,
    /// Whether the queue counts it among those that the host owes data for.
    pub(super) owing: bool,
    /// It asks for an event: it moves no data, and only its answer, which may never come, uses its name.
    pub(super) event_request: bool,
    /// Bytes that [`reserve_send_window`](stream::TargetConnection::reserve_send_window) allowed and nobody has sent yet.
    pub(super) read_reserved: u32,
    /// Bytes that [`reserve_receive_window`](stream::TargetConnection::reserve_receive_window) allowed and that have not come yet.
    pub(super) write_reserved: u32,
    /// When the server gave the answer that waits for the host's data, and under what it is counted.
    pub(super) answer_stamp: (Time, u64),
    /// When it came, among the commands of its queue; wraps around.
    pub(super) arrival: u32,
    /// The host or the server has some of its data.
    pub(super) moved: bool,
    /// End of what was asked for by R2T.
    pub(super) asked: u32,
    /// Stretches asked for and not whole, in the order of asking.
    pub(super) r2ts: SmallVec<[SolicitedRange; R2T_MAX]>,
    /// The server's buffers that are not full, in order.
    pub(super) places: SmallVec<[PayloadBuffer; 1]>,
}

/// Where a command's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataSource {
    /// There is none.
    None,
    /// In the capsule.
    Capsule,
    /// With the host, to be asked for by R2T.
    Host,
    /// With the server: a read.
    Server,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum TaskState {
    /// With the server.
    Live,
    /// The server has given it back before it had any effect: it is to be announced again.
    Withdrawn,
    /// It ends without the server's answer. `acked`: the server has let go of it.
    Ending { how: TaskEnding, acked: bool },
    /// Answered, but the host still sends data: the answer follows the last of it.
    Answered(Completion),
    /// Ended without an answer, but the host still sends data, which is skipped.
    Abandoned,
}

/// How a dying task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskEnding {
    /// With this status.
    Status(Status),
    /// With no word.
    Silent,
}

/// A stretch that an R2T asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SolicitedRange {
    pub(super) ttag: u16,
    /// Offset of the next byte that must come.
    pub(super) next: u32,
    pub(super) end: u32,
}

impl Task {
    pub(super) fn new(cid: u16, source: DataSource, len: u32) -> Self {
        Task {
            cid,
            source,
            len,
            state: TaskState::Live,
            arriving: false,
            capsule: false,
            owing: false,
            event_request: false,
            read_reserved: 0,
            write_reserved: 0,
            answer_stamp: (Time(0), 0),
            arrival: 0,
            moved: false,
            asked: 0,
            r2ts: SmallVec::new(),
            places: SmallVec::new(),
        }
    }

    /// Whether arriving data has a use.
    pub(super) fn wants_data(&self) -> bool {
        matches!(self.state, TaskState::Live | TaskState::Withdrawn)
    }

    /// Whether the host still sends data that it was asked for, or began to send.
    pub(super) fn is_data_owed(&self) -> bool {
        self.arriving || !self.r2ts.is_empty()
    }

    /// The buffer that the byte at `data_offset`, or one behind it, is for.
    pub(super) fn buffer_for_offset(&mut self, at: u32) -> Option<&mut PayloadBuffer> {
        self.places.iter_mut().find(|place| at < place.data_end())
    }

    /// A PDU with data of it is whole.
    pub(super) fn confirm_received(&mut self) {
        if is_on(Failpoint::DataMisplaced) {
            self.fake_received_bytes(16);
        }
        if is_on(Failpoint::DataMadeUp) {
            self.fake_received_bytes(usize::MAX);
        }
        self.places.iter_mut().for_each(PayloadBuffer::confirm_received);
    }

    /// What was carried came in PDUs that are whole.
    pub(super) fn confirm_carried(&mut self) {
        self.places.iter_mut().for_each(PayloadBuffer::confirm_received);
    }

    /// What a failpoint does: bytes of the first buffer count that never came.
    fn fake_received_bytes(&mut self, len: usize) {
        let Some(place) = self.places.first_mut() else { return };
        if let Some((data, _)) = place.lend_to_recv(0, 0) {
            place.return_from_recv(data, len);
        }
    }

    /// Takes the next buffer out that is full of whole data.
    pub(super) fn take_complete_buffer(&mut self) -> Option<(u32, SgMut)> {
        let at = self.places.iter().position(PayloadBuffer::is_complete)?;
        self.moved = true;
        self.places.remove(at).into_complete()
    }

    /// The next stretch to ask for, of at most `len_max` bytes, if fewer than `most` are outstanding.
    pub(super) fn next_r2t(&mut self, ttag: u16, most: usize, len_max: u32) -> Option<SolicitedRange> {
        if self.source != DataSource::Host || self.r2ts.len() >= most.min(R2T_MAX) {
            return None;
        }
        let asked = self.asked;
        let place = self.places.iter().find(|place| place.data_end() > asked)?;
        let next = asked.max(place.data_offset());
        let end = place.data_end().min(self.len).min(next.saturating_add(len_max));
        if next >= end {
            return None;
        }
        self.asked = end;
        let asked = SolicitedRange { ttag, next, end };
        self.r2ts.push(asked);
        Some(asked)
    }
}
