//! iSCSI on a shard: logins that become sessions, and what the SCSI server wants done.
//!
//! A login says who it is (`login`), the directory says which session it becomes, and its link goes to that session's
//! shard (`pending_sessions`, `joins`); then commands go to the server (`sessions`) and its steps come back (`steps`).

mod joins;
mod login;
mod pending_sessions;
mod sessions;
mod steps;

use std::collections::HashMap;
use std::sync::Arc;

use endpoint::ShardId;
use iscsi::wire::Tsih;
use scsi_server::{NexusKey, Server};
use stream::Tag;

use super::DIRECTORY;
use crate::directory::Directory;
use pending_sessions::PendingSessions;
use sessions::NexusEnds;

/// The iSCSI side of a shard.
pub(super) struct IscsiFront {
    pub(super) server: Server,
    /// Sessions of this shard by their handle.
    pub(super) sessions: HashMap<Tsih, Tag>,
    /// The connection of each nexus of the server.
    pub(super) nexuses: Vec<Option<Tag>>,
    /// Bytes that were promised to each initiator's sessions when they began.
    promised_by_initiator: HashMap<Arc<str>, usize>,
    pub(super) pending_sessions: PendingSessions,
    pub(super) nexus_ends: NexusEnds,
    directory: Option<Directory>,
}

impl IscsiFront {
    /// Of shard `id` of `shards`; the daemon may have so many sessions.
    pub(super) fn new(id: ShardId, shards: u16, sessions_max: usize) -> Self {
        IscsiFront {
            server: Server::new(volume::Shard(id.0)),
            sessions: HashMap::new(),
            nexuses: Vec::new(),
            promised_by_initiator: HashMap::new(),
            pending_sessions: PendingSessions::default(),
            nexus_ends: NexusEnds::default(),
            directory: (id == DIRECTORY).then(|| Directory::new(shards, sessions_max)),
        }
    }

    /// Ends a nexus.
    pub(super) fn close_nexus(&mut self, nexus: NexusKey) {
        self.server.close_nexus(nexus);
        if let Some(slot) = self.nexuses.get_mut(nexus.0 as usize) {
            *slot = None;
        }
    }
}
