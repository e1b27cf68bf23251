//! Asynchronous events of a controller (NVMe Base §5.2).
//!
//! Invariant: after an event was sent, no other of its kind is sent until its log was read without Retain
//! (RAE). A change that happens meanwhile is not lost: it is in the log when that is read.

use nvme::event::Event;
use nvme::log::Lid;

/// How many Asynchronous Event Requests may wait (AERL + 1).
pub(crate) const EVENTS_MAX: usize = 4;

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Namespaces,
    Ana,
    Discovery,
    Reservation,
}

impl EventKind {
    const ALL: [EventKind; 4] =
        [EventKind::Namespaces, EventKind::Ana, EventKind::Discovery, EventKind::Reservation];

    fn event(self) -> Event {
        match self {
            EventKind::Namespaces => Event::NAMESPACE_ATTRIBUTE,
            EventKind::Ana => Event::ANA_CHANGE,
            EventKind::Discovery => Event::DISCOVERY_CHANGE,
            EventKind::Reservation => Event::RESERVATION,
        }
    }

    /// The bit of feature 0Bh that turns it on. Reservation events are turned off one by one, by
    /// feature 82h.
    fn switch(self) -> u32 {
        match self {
            EventKind::Namespaces => 1 << 8,
            EventKind::Ana => 1 << 11,
            EventKind::Discovery => 1 << 31,
            EventKind::Reservation => 0,
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Which events there are for a host.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Feature 0Bh.
    pub(crate) configuration: u32,
    /// Kinds that have happened and were not told.
    pending: u8,
    /// Kinds that were told, and whose log was not read yet.
    masked: u8,
    /// Namespaces that changed since the log was read, ascending. Stops growing at 1,025: then the
    /// log says that there are too many.
    changed: Vec<u32>,
}

impl Events {
    /// Something has happened.
    pub(crate) fn raise(&mut self, kind: EventKind) {
        let on = kind.switch() == 0 || self.configuration & kind.switch() != 0;
        if on && self.masked & kind.bit() == 0 {
            self.pending |= kind.bit();
        }
    }

    /// The next event to tell.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let kind = EventKind::ALL.into_iter().find(|kind| self.pending & kind.bit() != 0)?;
        self.pending &= !kind.bit();
        self.masked |= kind.bit();
        Some(kind.event())
    }

    /// The log of a kind was read, and its event cleared.
    pub(crate) fn cleared(&mut self, log: Lid) {
        for kind in EventKind::ALL.into_iter().filter(|kind| kind.event().log == log) {
            self.masked &= !kind.bit();
            self.pending &= !kind.bit();
        }
    }

    /// Notes that namespaces changed.
    pub(crate) fn note_changed(&mut self, nsids: &[u32]) {
        for &nsid in nsids {
            if let Err(at) = self.changed.binary_search(&nsid)
                && self.changed.len() <= 1024
            {
                self.changed.insert(at, nsid);
            }
        }
    }

    /// The namespaces that changed since they were taken last.
    pub(crate) fn changed(&self) -> &[u32] {
        &self.changed
    }

    /// The list was read.
    pub(crate) fn forget_changed(&mut self) {
        self.changed.clear();
    }
}
