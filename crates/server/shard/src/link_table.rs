//! Which connection each socket of the shard belongs to, and its operations in flight.
//!
//! Invariant: a closed socket keeps its entry until all its operations have come back, so that they reach the
//! connection that owns them.

use endpoint::LinkId;
use stream::{LinkNumber, Tag};

/// Where a socket belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkOwner {
    /// The connection.
    pub(crate) conn: Tag,
    /// Which of its links.
    pub(crate) link: LinkNumber,
}

#[derive(Clone, Copy, Debug)]
struct LinkRecord {
    id: LinkId,
    owner: LinkOwner,
    recv_out: bool,
    sends_out: u32,
    /// How many of these have memory that others may write.
    lent_out: u32,
    /// It goes with a reset, not with a close that waits for the peer.
    resets: bool,
    departed: bool,
    ready: bool,
    traffic: LinkTraffic,
}

/// Bytes that a socket has moved since it came to this shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Received.
    pub received: u64,
    /// Sent.
    pub sent: u64,
}

/// Sockets by the low half of their name, which the world keeps dense.
#[derive(Debug, Default)]
pub(crate) struct LinkTable {
    slots: Vec<Option<LinkRecord>>,
}

impl LinkTable {
    fn slot_of(id: LinkId) -> usize {
        id.0 as u32 as usize
    }

    fn entry_mut(&mut self, id: LinkId) -> Option<&mut LinkRecord> {
        self.slots.get_mut(Self::slot_of(id))?.as_mut().filter(|entry| entry.id == id)
    }

    /// A socket is here.
    pub(crate) fn insert(&mut self, id: LinkId, owner: LinkOwner) {
        let at = Self::slot_of(id);
        if self.slots.len() <= at {
            self.slots.resize(at + 1, None);
        }
        let entry = LinkRecord {
            id,
            owner,
            recv_out: false,
            sends_out: 0,
            lent_out: 0,
            resets: false,
            departed: false,
            ready: false,
            traffic: LinkTraffic::default(),
        };
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Some(entry);
        }
    }

    /// Whose it is, as long as it is asked for operations.
    pub(crate) fn owner_if_active(&self, id: LinkId) -> Option<LinkOwner> {
        match self.slots.get(Self::slot_of(id)) {
            Some(Some(entry)) if entry.id == id => Some(entry.owner),
            Some(_) | None => None,
        }
    }

    /// What it has moved.
    pub(crate) fn traffic(&self, id: LinkId) -> LinkTraffic {
        match self.slots.get(Self::slot_of(id)) {
            Some(Some(entry)) if entry.id == id => entry.traffic,
            Some(_) | None => LinkTraffic::default(),
        }
    }

    /// Gives it to another connection of this shard.
    pub(crate) fn set_owner(&mut self, id: LinkId, owner: LinkOwner) {
        if let Some(entry) = self.entry_mut(id) {
            entry.owner = owner;
        }
    }

    /// A receive went out.
    pub(crate) fn note_recv_started(&mut self, id: LinkId) {
        if let Some(entry) = self.entry_mut(id) {
            entry.recv_out = true;
        }
    }

    /// It came back with so many bytes.
    pub(crate) fn note_recv_finished(&mut self, id: LinkId, bytes: usize) -> Option<LinkOwner> {
        let entry = self.entry_mut(id)?;
        entry.traffic.received += bytes as u64;
        entry.recv_out = false;
        Some(entry.owner)
    }

    /// A batch went out, perhaps with memory that others may write.
    pub(crate) fn note_send_started(&mut self, id: LinkId, lent: bool) {
        if let Some(entry) = self.entry_mut(id) {
            entry.sends_out += 1;
            entry.lent_out += u32::from(lent);
        }
    }

    /// Whether memory that others may write is out.
    pub(crate) fn has_lent_send(&self, id: LinkId) -> bool {
        match self.slots.get(Self::slot_of(id)) {
            Some(Some(entry)) if entry.id == id => entry.lent_out > 0,
            Some(_) | None => false,
        }
    }

    /// However its connection lets go of it, it goes with a reset.
    pub(crate) fn reset_at_departure(&mut self, id: LinkId) {
        if let Some(entry) = self.entry_mut(id) {
            entry.resets = true;
        }
    }

    /// Its memory came back, and with it what was sent of so many bytes.
    pub(crate) fn note_send_released(&mut self, id: LinkId, bytes: usize, lent: bool) -> Option<LinkOwner> {
        let entry = self.entry_mut(id)?;
        entry.traffic.sent += bytes as u64;
        entry.sends_out = entry.sends_out.saturating_sub(1);
        entry.lent_out = entry.lent_out.saturating_sub(u32::from(lent));
        Some(entry.owner)
    }

    /// Whether nothing is out on any of these.
    pub(crate) fn are_idle(&self, mut ids: impl Iterator<Item = LinkId>) -> bool {
        ids.all(|id| match self.slots.get(Self::slot_of(id)) {
            Some(Some(entry)) if entry.id == id => !entry.recv_out && entry.sends_out == 0,
            Some(_) | None => true,
        })
    }

    /// Marks it; true if it was not marked before.
    pub(crate) fn mark_ready(&mut self, id: LinkId) -> bool {
        match self.entry_mut(id) {
            Some(entry) if !entry.departed => !std::mem::replace(&mut entry.ready, true),
            Some(_) | None => false,
        }
    }

    /// Takes the mark away.
    pub(crate) fn clear_ready(&mut self, id: LinkId) {
        if let Some(entry) = self.entry_mut(id) {
            entry.ready = false;
        }
    }

    /// The shard lets go of it; whether that is to be with a reset: it was asked for, or memory is out that others may
    /// write, which a peer would read after them. A socket that moves must have nothing out.
    pub(crate) fn begin_departure(&mut self, id: LinkId, moves: bool) -> bool {
        let Some(entry) = self.entry_mut(id) else { return false };
        assert!(!moves || !entry.recv_out, "a link moves with no receive out");
        entry.departed = true;
        entry.resets || entry.lent_out > 0
    }

    /// Forgets it if it has departed and nothing is out.
    pub(crate) fn remove_drained(&mut self, id: LinkId) -> Option<LinkOwner> {
        let slot = self.slots.get_mut(Self::slot_of(id))?;
        let over = |entry: &mut LinkRecord| {
            entry.id == id && entry.departed && !entry.recv_out && entry.sends_out == 0
        };
        slot.take_if(over).map(|entry| entry.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> LinkOwner {
        LinkOwner { conn: Tag::from_bits(7), link: LinkNumber(0) }
    }

    #[test]
    fn a_socket_with_memory_that_others_may_write_does_not_go_with_a_close_that_waits() {
        let mut links = LinkTable::default();
        links.insert(LinkId(0), owner());
        links.note_send_started(LinkId(0), true);
        links.note_send_started(LinkId(0), false);
        assert!(links.begin_departure(LinkId(0), false));
        links.insert(LinkId(1), owner());
        links.note_send_started(LinkId(1), false);
        assert!(!links.begin_departure(LinkId(1), false));
    }

    #[test]
    fn a_reused_slot_is_another_socket() {
        let mut links = LinkTable::default();
        links.insert(LinkId(3), owner());
        let reused = LinkId(1 << 32 | 3);
        assert_eq!(links.owner_if_active(reused), None);
        assert!(!links.begin_departure(LinkId(3), false));
        assert_eq!(links.remove_drained(LinkId(3)), Some(owner()));
        links.insert(reused, owner());
        assert_eq!((links.owner_if_active(LinkId(3)), links.owner_if_active(reused)), (None, Some(owner())));
    }

    #[test]
    fn a_departed_socket_stays_until_everything_is_back() {
        let mut links = LinkTable::default();
        links.insert(LinkId(0), owner());
        links.note_recv_started(LinkId(0));
        links.note_send_started(LinkId(0), true);
        links.reset_at_departure(LinkId(0));
        assert!(links.begin_departure(LinkId(0), false) && links.has_lent_send(LinkId(0)));
        assert_eq!(links.remove_drained(LinkId(0)), None);
        assert_eq!(links.note_recv_finished(LinkId(0), 48), Some(owner()));
        assert_eq!(links.remove_drained(LinkId(0)), None);
        assert_eq!(links.note_send_released(LinkId(0), 512, true), Some(owner()));
        assert!(!links.has_lent_send(LinkId(0)));
        assert_eq!(links.traffic(LinkId(0)), LinkTraffic { received: 48, sent: 512 });
        assert!(!links.mark_ready(LinkId(0)));
        assert_eq!(links.remove_drained(LinkId(0)), Some(owner()));
    }
}
