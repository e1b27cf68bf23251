//! The store that the members of a group share, as messages: requests out, replies in. On RADOS each request is one
//! call of librados or librbd; on a shared LUN it would be a compare-and-write or a reservation.
//!
//! Invariants that the world keeps: each request has exactly one reply; where the world does not know the outcome it
//! replies [`StoreReply::Unknown`], and the request may have been carried out, may still be, or never will. All
//! requests of an instance, and the reads and writes of its volumes, go by one client of the store: what bars the
//! client bars them all, and each carries the client's map.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use buf::Time;
use volume::Uuid;

use crate::failpoint::Failpoints;
use crate::ids::{GroupId, InstanceId, MapEpoch, StoreTicket, Version};

/// An object of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectName {
    /// Who is a member.
    Members,
    /// The configuration of the group.
    Configuration,
    /// Numbers that are given once in the group.
    Allocations,
    /// Who owns this ANA group.
    Owner(GroupId),
    /// What of this volume outlives its owner: reservations, path states (see `volume::VolumeOwner`).
    Record(Uuid),
}

/// What a member asks of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest {
    /// The object's version and contents. RADOS: `read` and `get_version`, as one operation.
    Read(ObjectName),
    /// Puts `value` in the place of the contents of version `expected`; version 0: creates the object. RADOS:
    /// `assert_version` and `write_full`, or `create` exclusively, as one operation.
    Swap {
        /// Which object.
        object: ObjectName,
        /// Its version, as it was read.
        expected: Version,
        /// Its contents from now on.
        value: Vec<u8>,
    },
    /// Tells the watchers of this object that it has changed. Nothing depends on its outcome.
    Notify(ObjectName),
    /// Bars an instance from reading and writing. It may be barred already.
    Blocklist {
        /// Which.
        instance: InstanceId,
        /// How long. No time is long enough for a process that is stopped, so this is far longer than any is: only
        /// [`StoreRequest::RemoveFromBlocklist`] ends an entry.
        expiry: Duration,
    },
    /// Lets a dead instance's number be forgotten.
    RemoveFromBlocklist(InstanceId),
    /// Waits until this instance's client has this map or a later one.
    AwaitMap(MapEpoch),
    /// Has every server that keeps blocks of this volume learn this instance's map, if it has an older one. RADOS: an
    /// operation of this client in each placement group of the volume's pools, all of them answered.
    SpreadMap(Uuid),
    /// Takes the exclusive lock of a volume's disk. One that a barred instance holds is broken.
    Lock(Uuid),
    /// Gives it back. It may be free already.
    Unlock(Uuid),
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreReply {
    /// [`StoreRequest::Read`]: the contents; version 0 if there is no such object.
    Contents {
        /// Its version.
        version: Version,
        /// Its bytes.
        value: Vec<u8>,
    },
    /// [`StoreRequest::Swap`]: done; this is the version now.
    Swapped(Version),
    /// [`StoreRequest::Swap`]: the object has another version. Nothing changed.
    Mismatch,
    /// [`StoreRequest::Blocklist`]: the entry is in force where this map is known.
    Blocklisted(MapEpoch),
    /// [`StoreRequest::Lock`]: an instance that is not barred holds it.
    Locked(InstanceId),
    /// Any other request: done.
    Done,
    /// The outcome is not known, and may still come about.
    Unknown,
    /// The instance that asks is on the blocklist.
    Fenced,
}

/// What waits for the reply of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// A register.
    Object(ObjectName),
    /// A takeover: the entry of the old owner.
    Blocklist(GroupId),
    /// A takeover: the map.
    Map(GroupId),
    /// A takeover: the servers of a volume.
    Spread(GroupId, Uuid),
    /// A takeover: a lock.
    Lock(GroupId, Uuid),
    /// A handover: a lock.
    Unlock(GroupId, Uuid),
    /// That an expelled instance is barred, or the map in which it is.
    Departure(InstanceId),
    /// The removal of a predecessor's entry.
    Removal(InstanceId),
    /// Nothing.
    Nobody,
}

/// Requests on their way to the store, and what waits for each.
#[derive(Debug)]
pub(crate) struct StoreQueue {
    /// Who asks.
    pub(crate) me: InstanceId,
    pub(crate) failpoints: Failpoints,
    ticket: u64,
    /// Counts the swaps of this instance.
    operation: u64,
    waiting: BTreeMap<StoreTicket, Waiting>,
    requests: VecDeque<(StoreTicket, StoreRequest)>,
    /// When the store was last heard of.
    pub(crate) heard: Time,
}

impl StoreQueue {
    pub(crate) fn new(me: InstanceId, failpoints: Failpoints) -> StoreQueue {
        let (waiting, requests) = (BTreeMap::new(), VecDeque::new());
        StoreQueue { me, failpoints, ticket: 0, operation: 0, waiting, requests, heard: Time(0) }
    }

    pub(crate) fn ask(&mut self, waiting: Waiting, request: StoreRequest) -> StoreTicket {
        self.ticket += 1;
        let ticket = StoreTicket(self.ticket);
        self.waiting.insert(ticket, waiting);
        self.requests.push_back((ticket, request));
        ticket
    }

    /// What waited for this reply; `None`: it was given already, or is of nothing that was asked.
    pub(crate) fn take(&mut self, ticket: StoreTicket) -> Option<Waiting> {
        self.waiting.remove(&ticket)
    }

    pub(crate) fn next_operation(&mut self) -> u64 {
        self.operation += 1;
        self.operation
    }

    pub(crate) fn poll(&mut self) -> Option<(StoreTicket, StoreRequest)> {
        self.requests.pop_front()
    }

    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.waiting.clear();
    }
}
