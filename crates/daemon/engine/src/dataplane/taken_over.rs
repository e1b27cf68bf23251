//! A start that takes over from another process: what that one has saved, and the moment from which this one serves.
//!
//! Invariant: before the old process' commit nothing is accepted, received, sent or written here.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, mpsc::Receiver},
    time::Duration,
};

use endpoint::ListenerId;
use reactor::BoundListener;
use shard::{Message, RestoreError, TargetSnapshot};

use super::{catalog::Catalog, shards::Shards};
use crate::{
    EngineError,
    upgrade::{HandedListener, Predecessor},
};
use config::plan::Plan;

/// How long a shard may take to be restored.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(10);

/// What another process has left.
pub struct TakenOver<'a> {
    predecessor: &'a Predecessor,
    /// The old number and the socket of each portal, in the order of the plan. All that can fail is done before the
    /// commit.
    listeners: Vec<(ListenerId, BoundListener)>,
    /// What is served.
    pub target: Arc<TargetSnapshot>,
}

impl<'a> TakenOver<'a> {
    /// Says that all is open, and waits for what is served.
    pub fn begin(predecessor: &'a Predecessor, plan: &Plan, shards: u16) -> Result<Self, EngineError> {
        if predecessor.shard_count() != shards {
            return Err(EngineError::Start(format!(
                "the daemon that serves has {} shards, and this one {shards}: give both the same cores",
                predecessor.shard_count()
            )));
        }
        let handed = predecessor.take_listeners(plan).map_err(|address| {
            EngineError::Start(format!(
                "the configuration has an address that the daemon that serves does not listen on: {address}; apply \
                 it first (`blockwire apply`)"
            ))
        })?;
        let adopted = |(old, _, socket): HandedListener| Ok((old, BoundListener::adopt(socket)?));
        let listeners = handed.into_iter().map(adopted).collect::<std::io::Result<Vec<_>>>();
        let listeners = listeners.map_err(|why| EngineError::Start(why.to_string()))?;
        let bytes = predecessor.wait_for_target().map_err(|why| EngineError::Start(why.to_string()))?;
        let target = TargetSnapshot::from_bytes(&bytes, shards)
            .map_err(|why| EngineError::Start(format!("what is served cannot be read: {why}")))?;
        Ok(TakenOver { predecessor, listeners, target: Arc::new(target) })
    }

    /// Where is listened, in the order of the plan.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|(_, listener)| listener.address()).collect()
    }

    /// The number here of each listener of the old process.
    pub fn listener_numbers(&self) -> HashMap<ListenerId, ListenerId> {
        let numbers = self.listeners.iter().zip(0..);
        numbers.map(|((old, _), at)| (*old, ListenerId(at))).collect()
    }

    /// Every volume that was served is here.
    pub fn check_volumes(&self, catalog: &Catalog) -> Result<(), EngineError> {
        let known = |uuid| catalog.volumes.iter().any(|(_, entry)| entry.uuid == uuid);
        match self.target.volumes().find(|uuid| !known(*uuid)) {
            Some(uuid) => Err(EngineError::Start(format!(
                "a volume that is served could not be opened, or is not configured: {uuid}"
            ))),
            None => Ok(()),
        }
    }

    /// All shards go on from what was saved, or none does.
    pub fn wait_until_restored(
        &self,
        restoring: &Receiver<Result<(), RestoreError>>,
        shards: u16,
    ) -> Result<(), EngineError> {
        for _ in 0..shards {
            let restored = restoring.recv_timeout(RESTORE_TIMEOUT).map_err(|_| EngineError::TimedOut)?;
            restored
                .map_err(|why| EngineError::Start(format!("what is served cannot be restored: {why}")))?;
        }
        Ok(())
    }

    /// Waits for the commit, and serves. Behind the commit nothing fails.
    pub fn finish(self, engine: &Shards) -> Result<(), EngineError> {
        let count = |shard| self.target.links(shard).len();
        let links =
            self.predecessor.wait_for_commit(count).map_err(|why| EngineError::Start(why.to_string()))?;
        for (shard, sockets) in links {
            for (number, socket) in (0..).zip(sockets) {
                engine.running.adopt_link(shard, socket, Message::CarriedLink(number));
            }
        }
        for ((_, listener), at) in self.listeners.into_iter().zip(0..) {
            engine.running.add_listener(ListenerId(at), listener);
        }
        self.predecessor.confirm();
        Ok(())
    }
}
