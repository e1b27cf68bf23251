//! The store that gateways share, as RADOS behaves: a map with a blocklist, servers and clients that learn of maps
//! late, objects with versions, locks, and the blocks of the volumes.

use std::collections::{BTreeMap, BTreeSet};

use volume::Uuid;

use super::target::BLOCKS;
use crate::ids::{InstanceId, MapEpoch, Version};
use crate::object::Record;
use crate::register::peek;
use crate::store::ObjectName;

/// How many servers (OSDs) keep the blocks of volumes.
const BLOCK_SERVERS: usize = 5;
/// How many there are: objects lie on others, so that reading them tells no server of blocks of a map.
pub(super) const SERVERS: usize = BLOCK_SERVERS + 3;

/// A client that is no gateway, and keeps what it has locked.
pub(super) const STRANGER: InstanceId = InstanceId(u64::MAX);

/// A request of a client on its way.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Read(ObjectName),
    Swap { object: ObjectName, expected: Version, value: Vec<u8> },
    Lock(Uuid),
    Unlock(Uuid),
    ReadBlock { volume: Uuid, lba: u64 },
    WriteBlock { volume: Uuid, lba: u64, value: u64 },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Contents(Version, Vec<u8>),
    Swapped(Version),
    Mismatch,
    Locked(InstanceId),
    Block(u64),
    Done,
    Fenced,
}

#[derive(Debug)]
pub(super) struct Cluster {
    /// Who is barred, by map.
    maps: Vec<BTreeSet<InstanceId>>,
    servers: [usize; SERVERS],
    clients: BTreeMap<InstanceId, usize>,
    pub(super) objects: BTreeMap<ObjectName, (Version, Vec<u8>)>,
    pub(super) locks: BTreeMap<Uuid, InstanceId>,
    blocks: BTreeMap<(Uuid, u64), u64>,
}

impl Cluster {
    pub(super) fn new() -> Cluster {
        Cluster {
            maps: vec![BTreeSet::new(), BTreeSet::new()],
            servers: [1; SERVERS],
            clients: BTreeMap::new(),
            objects: BTreeMap::new(),
            locks: BTreeMap::new(),
            blocks: BTreeMap::new(),
        }
    }

    pub(super) fn latest(&self) -> usize {
        self.maps.len() - 1
    }

    /// A client connects, with the latest map.
    pub(super) fn connect(&mut self, client: InstanceId) {
        self.clients.insert(client, self.latest());
    }

    pub(super) fn client_map(&self, client: InstanceId) -> usize {
        self.clients[&client]
    }

    pub(super) fn server_of(volume: Uuid, lba: u64) -> usize {
        (usize::from(volume.0[0]) * 7 + lba as usize * 3) % BLOCK_SERVERS
    }

    /// Every server of a volume executes something of this client, sent with this map. `false`: it is barred.
    pub(super) fn spread(&mut self, client: InstanceId, map: usize, volume: Uuid) -> bool {
        let servers: BTreeSet<usize> = (0..BLOCKS).map(|lba| Self::server_of(volume, lba)).collect();
        servers.into_iter().all(|server| {
            let map = self.servers[server].max(map);
            self.servers[server] = map;
            !self.maps[map].contains(&client)
        })
    }

    /// The record of a volume that stands.
    pub(super) fn record(&self, volume: Uuid) -> Option<Record> {
        peek(&self.objects.get(&ObjectName::Record(volume))?.1)
    }

    fn place(operation: &Operation) -> usize {
        match operation {
            Operation::Read(object) | Operation::Swap { object, .. } => match object {
                ObjectName::Members | ObjectName::Configuration => BLOCK_SERVERS,
                ObjectName::Allocations => BLOCK_SERVERS + 1,
                ObjectName::Owner(group) => BLOCK_SERVERS + group.0 as usize % 3,
                ObjectName::Record(volume) => BLOCK_SERVERS + usize::from(volume.0[0] + 1) % 3,
            },
            Operation::Lock(volume) | Operation::Unlock(volume) => {
                BLOCK_SERVERS + usize::from(volume.0[0] + 2) % 3
            }
            Operation::ReadBlock { volume, lba } | Operation::WriteBlock { volume, lba, .. } => {
                Self::server_of(*volume, *lba)
            }
        }
    }

    /// The monitor bars an instance; the map in which it is.
    pub(super) fn blocklist(&mut self, instance: InstanceId) -> MapEpoch {
        self.change_map(|map| map.insert(instance));
        MapEpoch(self.latest() as u64)
    }

    pub(super) fn remove_from_blocklist(&mut self, instance: InstanceId) {
        self.change_map(|map| map.remove(&instance));
    }

    fn change_map(&mut self, change: impl Fn(&mut BTreeSet<InstanceId>) -> bool) {
        let mut map = self.maps[self.latest()].clone();
        if change(&mut map) {
            self.maps.push(map);
        }
    }

    pub(super) fn is_barred(&self, instance: InstanceId) -> bool {
        self.maps[self.latest()].contains(&instance)
    }

    pub(super) fn client_learns(&mut self, client: InstanceId) {
        let latest = self.latest();
        self.clients.insert(client, latest);
    }

    pub(super) fn server_learns(&mut self, server: usize) {
        self.servers[server] = self.latest();
    }

    /// A server executes an operation that its client sent with this map. `alive` tells whether a lock's holder runs.
    pub(super) fn execute(
        &mut self,
        client: InstanceId,
        map: usize,
        operation: &Operation,
        alive: impl Fn(InstanceId) -> bool,
    ) -> Outcome {
        let server = Self::place(operation);
        // A server waits for the map that an operation was sent with.
        let map = self.servers[server].max(map);
        self.servers[server] = map;
        if self.maps[map].contains(&client) {
            return Outcome::Fenced;
        }
        match operation {
            Operation::Read(object) => {
                let (version, value) = self.objects.get(object).cloned().unwrap_or_default();
                Outcome::Contents(version, value)
            }
            Operation::Swap { object, expected, value } => {
                let version = self.objects.get(object).map_or(Version(0), |(version, _)| *version);
                if version != *expected {
                    return Outcome::Mismatch;
                }
                let version = Version(version.0 + 1);
                self.objects.insert(*object, (version, value.clone()));
                Outcome::Swapped(version)
            }
            Operation::Lock(volume) => {
                match self.locks.get(volume) {
                    Some(&holder)
                        if holder != client && alive(holder) && !self.maps[map].contains(&holder) =>
                    {
                        return Outcome::Locked(holder);
                    }
                    _ => self.locks.insert(*volume, client),
                };
                Outcome::Done
            }
            Operation::Unlock(volume) => {
                if self.locks.get(volume) == Some(&client) {
                    self.locks.remove(volume);
                }
                Outcome::Done
            }
            Operation::ReadBlock { volume, lba } => {
                Outcome::Block(self.blocks.get(&(*volume, *lba)).copied().unwrap_or(0))
            }
            Operation::WriteBlock { volume, lba, value } => {
                self.blocks.insert((*volume, *lba), *value);
                Outcome::Done
            }
        }
    }
}
