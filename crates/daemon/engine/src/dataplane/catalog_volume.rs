//! What the catalog knows of a volume that is served.

use std::sync::Arc;

use shard::{RateLimiter, RateLimits};
use volume::SharedGateState;

use super::medium::Medium;
use crate::store::Store;
use config::name::VolumeName;

/// A volume that is served.
#[derive(Debug)]
pub struct CatalogVolume {
    /// Its name.
    pub name: VolumeName,
    /// What it stands on.
    pub medium: Medium,
    /// Write-protected by the configuration.
    pub read_only: bool,
    /// Its identity.
    pub uuid: volume::Uuid,
    /// What its gates share.
    pub shared: SharedGateState,
    /// Other gateways of the group serve it too.
    pub in_group: bool,
    /// How much may be done with it per second.
    pub limiter: Option<Arc<RateLimiter>>,
}

impl CatalogVolume {
    /// The entry of an open volume.
    pub fn of(store: &Store, medium: Medium, shared: SharedGateState) -> Self {
        CatalogVolume {
            name: store.volume.name.clone(),
            medium,
            read_only: store.volume.spec.read_only,
            uuid: volume::Uuid(*store.uuid.as_bytes()),
            shared,
            in_group: store.slot.is_some(),
            limiter: limiter_of(store.volume.spec.limits.checked_rates()),
        }
    }
}

/// What keeps limits, if there are any; its buckets are full.
pub fn limiter_of(limits: RateLimits) -> Option<Arc<RateLimiter>> {
    (limits != RateLimits::NONE).then(|| Arc::new(RateLimiter::new(limits)))
}
