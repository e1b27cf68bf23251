//! The backend's own memory in the hands of readers. It is read when it is sent, which may be long after the read has
//! ended: so a host that is fenced meanwhile would be sent what others write after that.
//!
//! Invariant: while hosts may be fenced nothing is lent, and no change that fences is acknowledged before everything is
//! back that was lent before.

use buf::Time;

use super::{Gate, LOOK_AGAIN};
use crate::change::Ack;

impl Gate {
    /// Whether a read may come with [`Payload::None`](crate::Payload) and be given the backend's own memory. Memory that
    /// is lent is read later: not when an atomic write may have to be seen whole, and not while hosts are
    /// registered or one has reserved the volume, since others would be sent what is written after that.
    pub fn lends(&self) -> bool {
        let reservations = &self.view.reservations;
        let fenced = !reservations.registrants().is_empty() || reservations.legacy().is_some();
        self.view.geometry.lends && !self.shared.atomic_seen() && !fenced
    }

    /// Since when a change waits for memory that was lent before it. Who holds it reads nothing, and has to be made to
    /// let go: see [`Gate::poll_ack`].
    pub fn loans_awaited(&self) -> Option<Time> {
        self.loans_awaited
    }

    fn awaits_loans(&self) -> bool {
        self.flights.drains() && !self.lends() && self.backend.has_loans()
    }

    /// Nobody tells when memory is back.
    pub(super) fn look_for_loans(&mut self, now: Time) {
        self.loans_awaited = self.awaits_loans().then(|| self.loans_awaited.unwrap_or(now));
        if let Some(since) = self.loans_awaited {
            let (least, most) = LOOK_AGAIN;
            let time = now + now.since(since).clamp(least, most);
            self.look_again = Some(self.look_again.map_or(time, |sooner| sooner.min(time)));
        }
    }

    /// A change that this shard has adopted and drained; goes to the home core.
    #[must_use]
    pub fn poll_ack(&mut self) -> Option<Ack> {
        if self.awaits_loans() {
            return None;
        }
        let change = self.flights.poll_ack()?;
        Some(Ack { from: self.shard, change })
    }
}
