//! The known properties of a volume that is not open.

use client::stripe_uuid;
use uuid::Uuid;

use super::WHOLE;
use crate::state::identity::Identities;
use config::{name::VolumeName, plan::Volume, spec::Source};

/// The UUID that a volume had when it was open last, or has by the configuration.
pub fn known_uuid(volume: &Volume, identities: &Identities) -> Option<Uuid> {
    volume.spec.uuid.or_else(|| of_source(&volume.name, (WHOLE, &volume.spec.source), identities))
}

fn of_source(name: &VolumeName, (leg, source): (usize, &Source), identities: &Identities) -> Option<Uuid> {
    match source {
        Source::Ram | Source::Null => None,
        Source::File(path) | Source::Device(path) => identities.last_at(path),
        Source::Remote(_) => identities.elsewhere(name, leg)?.uuid.map(|uuid| Uuid::from_bytes(uuid.0)),
        Source::Stripe(striped) => {
            let legs = striped.legs.iter().enumerate();
            let legs = legs.map(|(at, leg)| of_source(name, (at + 1, &leg.source), identities));
            let uuids: Option<Vec<[u8; 16]>> = legs.map(|uuid| uuid.map(Uuid::into_bytes)).collect();
            Some(Uuid::from_bytes(stripe_uuid(&uuids?, striped.chunk)))
        }
    }
}
