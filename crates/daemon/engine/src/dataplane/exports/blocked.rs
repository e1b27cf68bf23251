//! Hosts that may not connect: those that the operator has blocked, and those whose `[[host]]` says `blocked`.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use shard::BlockedHosts;

use super::{FixedSettings, to_shard_network};
use crate::state::blocked_hosts::BlockedNames;

/// What the operator has blocked; the same for every configuration while the daemon runs.
#[derive(Clone, Debug, Default)]
pub(super) struct OperatorBlocks(Arc<Mutex<BlockedNames>>);

impl FixedSettings {
    /// The names that the operator has blocked.
    pub fn operator_blocks(&self) -> BlockedNames {
        self.blocked.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Others are blocked from the next exports on. Gives those of before.
    pub fn replace_operator_blocks(&self, names: BlockedNames) -> BlockedNames {
        std::mem::replace(&mut *self.blocked.0.lock().unwrap_or_else(PoisonError::into_inner), names)
    }

    /// Who is blocked by operator and configuration together. A host of the configuration is blocked by its names, from
    /// wherever it comes; one without names is what comes from its networks.
    pub(in crate::dataplane) fn blocked_hosts(&self) -> Arc<BlockedHosts> {
        let configured = || self.hosts.iter().filter(|host| host.blocked);
        let mut names: BTreeSet<String> = self.operator_blocks();
        names.extend(configured().flat_map(|host| host.iqns.iter().chain(&host.nqns)).cloned());
        let nameless = configured().filter(|host| host.iqns.is_empty() && host.nqns.is_empty());
        let sources = nameless.flat_map(|host| &host.sources).map(to_shard_network).collect();
        Arc::new(BlockedHosts::new(names.iter().map(String::as_str), sources))
    }
}
