//! The UUIDs of volumes, open or not.

use std::path::Path;

use client::stripe_uuid;
use uuid::Uuid;

use super::{Store, WHOLE_VOLUME};
use crate::{
    EngineError,
    state::{StateDir, identity::Identities},
};
use config::{
    name::VolumeName,
    plan::{Plan, Volume},
    spec::VolumeSource,
};

/// The UUID that a volume had when it was open last, or has by the configuration.
pub fn known_uuid(volume: &Volume, identities: &Identities) -> Option<Uuid> {
    volume
        .spec
        .uuid
        .or_else(|| known_uuid_of_source(&volume.name, (WHOLE_VOLUME, &volume.spec.source), identities))
}

fn known_uuid_of_source(
    name: &VolumeName,
    (leg, source): (usize, &VolumeSource),
    identities: &Identities,
) -> Option<Uuid> {
    match source {
        // The cluster tells which image it is.
        VolumeSource::Ram | VolumeSource::Null | VolumeSource::Rbd(_) => None,
        VolumeSource::File(path) | VolumeSource::Device(path) => identities.last_uuid_at(path),
        VolumeSource::Nbd(export) => identities.last_uuid_at(Path::new(export.url())),
        VolumeSource::Remote(_) => {
            identities.remote_identity(name, leg)?.uuid.map(|uuid| Uuid::from_bytes(uuid.0))
        }
        VolumeSource::Stripe(striped) => {
            let legs = striped.legs.iter().enumerate();
            let legs = legs.map(|(at, leg)| known_uuid_of_source(name, (at + 1, &leg.source), identities));
            let uuids: Option<Vec<[u8; 16]>> = legs.map(|uuid| uuid.map(Uuid::into_bytes)).collect();
            Some(Uuid::from_bytes(stripe_uuid(&uuids?, striped.chunk)))
        }
    }
}

/// Tells the UUIDs of volumes, as far as they are known, open or not.
pub fn known_uuids(
    plan: &Plan,
    open: &[Store],
    state: &StateDir,
) -> Result<impl Fn(&VolumeName) -> Option<volume::Uuid>, EngineError> {
    let identities = Identities::load(state).map_err(|why| EngineError::Start(why.to_string()))?;
    Ok(move |name: &VolumeName| {
        let store = open.iter().find(|store| store.volume.name == *name).map(|store| store.uuid);
        let closed = || known_uuid(plan.volumes.iter().find(|volume| volume.name == *name)?, &identities);
        store.or_else(closed).map(|uuid| volume::Uuid(uuid.into_bytes()))
    })
}
