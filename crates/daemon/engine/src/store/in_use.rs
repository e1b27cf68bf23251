//! What open volumes stand on, and their UUIDs: what another volume must not have.
//!
//! Invariant: asking takes the same time however many volumes are open.

use std::collections::HashMap;

use uuid::Uuid;

use super::{Store, open_error::OpenErrorReason};
use crate::state::file_identity::{FileIdentity, StorageKey};
use config::name::VolumeName;

/// Storage and UUIDs of open volumes and of their legs, each with the volume that had it first.
#[derive(Debug, Default)]
pub struct StorageInUse {
    storage: HashMap<StorageKey, VolumeName>,
    uuids: HashMap<Uuid, VolumeName>,
}

impl StorageInUse {
    /// That of these volumes.
    pub fn of<'a>(stores: impl IntoIterator<Item = &'a Store>) -> Self {
        let mut in_use = StorageInUse::default();
        stores.into_iter().for_each(|store| in_use.add(store));
        in_use
    }

    /// Another volume is open.
    pub fn add(&mut self, store: &Store) {
        let name = &store.volume.name;
        for part in store.legs_or_self() {
            if let Some(key) = &part.key {
                self.storage.entry(key.storage_key()).or_insert_with(|| name.clone());
            }
        }
        for uuid in store.uuids() {
            self.uuids.entry(uuid).or_insert_with(|| name.clone());
        }
    }

    /// The volume that stands on a file or device.
    pub(super) fn holder(&self, key: &FileIdentity) -> Option<VolumeName> {
        self.storage.get(&key.storage_key()).cloned()
    }

    /// Why a volume cannot be served beside these: it is, or has a leg that is, the same as one of them or of their legs.
    pub(super) fn conflict_with(&self, store: &Store) -> Option<OpenErrorReason> {
        // Looked at when it was opened; but another may have come since that reads the same file.
        let alias = |part: &Store| {
            let holder = self.holder(part.key.as_ref()?)?;
            let place = part.volume.spec.source.display_location().unwrap_or_default();
            Some(OpenErrorReason::Alias(place.into(), holder))
        };
        let same = |uuid: Uuid| Some(OpenErrorReason::SameUuid(store.uuid, self.uuids.get(&uuid)?.clone()));
        let alias = store.legs_or_self().iter().find_map(alias);
        alias.or_else(|| store.uuids().find_map(same))
    }
}
