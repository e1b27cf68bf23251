//! Asynchronous events of a controller (NVMe Base §5.2).
//!
//! Invariant: after an event was sent, no other of its kind is sent until its log was read without Retain
//! (RAE). A change that happens meanwhile is not lost: it is in the log when that is read.

use nvme::async_event::AsyncEvent;
use nvme::log::LogPageId;

/// How many Asynchronous Event Requests may wait (AERL + 1).
pub(crate) const EVENT_REQUESTS_MAX: usize = 4;

/// How many changed namespaces are noted: one more than the log lists.
pub(crate) const CHANGED_MAX: usize = 1025;
/// The bits of all kinds of events.
pub(crate) const EVENT_KIND_BITS: u8 = 0b1111;

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AsyncEventKind {
    Namespaces,
    Ana,
    Discovery,
    Reservation,
}

impl AsyncEventKind {
    const ALL: [AsyncEventKind; 4] = [
        AsyncEventKind::Namespaces,
        AsyncEventKind::Ana,
        AsyncEventKind::Discovery,
        AsyncEventKind::Reservation,
    ];

    fn to_event(self) -> AsyncEvent {
        match self {
            AsyncEventKind::Namespaces => AsyncEvent::NAMESPACE_ATTRIBUTE,
            AsyncEventKind::Ana => AsyncEvent::ANA_CHANGE,
            AsyncEventKind::Discovery => AsyncEvent::DISCOVERY_CHANGE,
            AsyncEventKind::Reservation => AsyncEvent::RESERVATION,
        }
    }

    /// The bit of feature 0Bh that turns it on. Reservation events are turned off one by one, by
    /// feature 82h.
    fn enable_bit(self) -> u32 {
        match self {
            AsyncEventKind::Namespaces => 1 << 8,
            AsyncEventKind::Ana => 1 << 11,
            AsyncEventKind::Discovery => 1 << 31,
            AsyncEventKind::Reservation => 0,
        }
    }

    fn pending_bit(self) -> u8 {
        1 << self as u8
    }
}

/// Which events there are for a host.
#[derive(Debug, Default)]
pub(crate) struct AsyncEvents {
    /// Feature 0Bh.
    pub(crate) configuration: u32,
    /// Kinds that have happened and were not told.
    pub(crate) pending: u8,
    /// Kinds that were told, and whose log was not read yet.
    pub(crate) masked: u8,
    /// Namespaces that changed since the log was read, ascending. Stops growing at 1,025: then the
    /// log says that there are too many.
    pub(crate) changed: Vec<u32>,
}

impl AsyncEvents {
    /// Something has happened.
    pub(crate) fn raise(&mut self, kind: AsyncEventKind) {
        let on = kind.enable_bit() == 0 || self.configuration & kind.enable_bit() != 0;
        if on && self.masked & kind.pending_bit() == 0 {
            self.pending |= kind.pending_bit();
        }
    }

    /// The next event to tell.
    pub(crate) fn next_event(&mut self) -> Option<AsyncEvent> {
        let kind = AsyncEventKind::ALL.into_iter().find(|kind| self.pending & kind.pending_bit() != 0)?;
        self.pending &= !kind.pending_bit();
        self.masked |= kind.pending_bit();
        Some(kind.to_event())
    }

    /// The log of a kind was read, and its event cleared.
    pub(crate) fn clear_by_log(&mut self, log: LogPageId) {
        for kind in AsyncEventKind::ALL.into_iter().filter(|kind| kind.to_event().log == log) {
            self.masked &= !kind.pending_bit();
            self.pending &= !kind.pending_bit();
        }
    }

    /// Notes that namespaces changed.
    pub(crate) fn note_changed_namespaces(&mut self, nsids: &[u32]) {
        for &nsid in nsids {
            if let Err(at) = self.changed.binary_search(&nsid)
                && self.changed.len() < CHANGED_MAX
            {
                self.changed.insert(at, nsid);
            }
        }
    }

    /// The namespaces that changed since they were taken last.
    pub(crate) fn changed_namespaces(&self) -> &[u32] {
        &self.changed
    }

    /// The list was read.
    pub(crate) fn clear_changed_namespaces(&mut self) {
        self.changed.clear();
    }
}
