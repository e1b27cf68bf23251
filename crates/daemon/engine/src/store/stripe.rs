//! Opens the legs of a stripe, and computes their common properties.

use client::stripe_uuid;
use sha2::{Digest, Sha256};
use uuid::Uuid;
use volume::{Backend, Geometry};

use super::{CreatePolicy, OpenErrorReason, ProbeResult, StorageInUse, Store, store_with_geometry};
use crate::state::{file_identity::FileIdentity, identity::Identities};
use config::{
    plan::Volume,
    spec::{Spec, StripeSpec, VolumeSource},
};

/// Opens all legs; those that were opened are given up again if one fails.
pub(super) fn open_legs(
    volume: &Volume,
    (striped, making): (&StripeSpec, CreatePolicy),
    identities: &Identities,
    others: &StorageInUse,
    probed: &mut ProbeResult,
) -> Result<Store, OpenErrorReason> {
    let mut legs: Vec<Store> = Vec::new();
    let opened = striped.legs.iter().enumerate().try_for_each(|(at, leg)| {
        let leg = Volume { spec: leg_spec(volume, leg), ..volume.clone() };
        let own = |key: &FileIdentity| {
            let alias = legs.iter().find(|leg| leg.key.as_ref().is_some_and(|other| other.aliases(key)));
            alias.map(|leg| leg.volume.name.clone())
        };
        let holder = |key: &FileIdentity| others.holder(key).or_else(|| own(key));
        let wrong = |why| OpenErrorReason::Leg(at + 1, Box::new(why));
        let leg = super::open_single(&leg, (at + 1, making), identities, &holder, probed).map_err(wrong)?;
        legs.push(leg);
        Ok(())
    });
    match opened.and_then(|()| assemble_stripe(volume, striped, &legs)) {
        Ok(store) => Ok(Store { legs, ..store }),
        Err(why) => {
            // Nothing is recorded of them yet.
            legs.into_iter().for_each(|leg| leg.discard(&mut Identities::default()));
            Err(why)
        }
    }
}

/// Finds out which volumes the legs are, and which the stripe is by them.
pub(super) fn assign_identities(
    stripe: &mut Store,
    chunk: u32,
    identities: &mut Identities,
) -> Result<(), OpenErrorReason> {
    let mut uuids: Vec<[u8; 16]> = Vec::new();
    for (at, leg) in stripe.legs.iter_mut().enumerate() {
        leg.assign_identity(at + 1, identities).map_err(|why| OpenErrorReason::Leg(at + 1, Box::new(why)))?;
        if let Some(own) = leg.remote.as_ref().and_then(|remote| remote.uuid) {
            leg.uuid = own;
        }
        let uuid = leg.uuid.into_bytes();
        if let Some(same) = uuids.iter().position(|before| *before == uuid) {
            return Err(OpenErrorReason::Leg(at + 1, Box::new(OpenErrorReason::SameLeg(same + 1))));
        }
        uuids.push(uuid);
    }
    let own = || Uuid::from_bytes(stripe_uuid(&uuids, chunk));
    stripe.uuid = stripe.volume.spec.uuid.unwrap_or_else(own);
    Ok(())
}

/// What is said of the whole holds for each leg. A volume of another machine that has no identity need not have
/// one here if the stripe has.
fn leg_spec(volume: &Volume, leg: &Spec) -> Spec {
    let is_remote = matches!(leg.source, VolumeSource::Remote(_));
    let uuid = volume.spec.uuid.filter(|_| is_remote);
    // Of its own for each leg, by its name.
    let mut name = [0; 16];
    name.iter_mut().zip(Sha256::digest(leg.to_string())).for_each(|(byte, of)| *byte = of);
    let uuid = uuid.map(|uuid| Uuid::from_bytes(stripe_uuid(&[uuid.into_bytes(), name], 0)));
    Spec { read_only: volume.spec.read_only, uuid, ..leg.clone() }
}

/// The stripe that these legs are.
fn assemble_stripe(volume: &Volume, striped: &StripeSpec, legs: &[Store]) -> Result<Store, OpenErrorReason> {
    let shapes: Vec<Geometry> = legs
        .iter()
        .enumerate()
        .map(|(at, leg)| {
            leg.block_geometry()
                .map_err(|why| OpenErrorReason::Leg(at + 1, Box::new(OpenErrorReason::Unfit(why))))
        })
        .collect::<Result<_, _>>()?;
    let geometry = backends::stripe::combined_geometry(&shapes, striped.chunk, volume.spec.size)
        .map_err(OpenErrorReason::Misfit)?;
    if let Some(size) = volume.spec.size.filter(|size| *size > geometry.capacity_bytes()) {
        return Err(OpenErrorReason::TooLarge(size, geometry.capacity_bytes()));
    }
    Ok(store_with_geometry(volume, &geometry))
}

impl Store {
    /// What its blocks are like, as its backend will say.
    fn block_geometry(&self) -> Result<Geometry, backends::UnsuitableFile> {
        let (spec, blocks) = (&self.volume.spec, self.bytes / u64::from(self.volume.spec.block));
        Ok(match (&spec.source, &self.remote) {
            (
                VolumeSource::File(_) | VolumeSource::Device(_) | VolumeSource::Rbd(_) | VolumeSource::Nbd(_),
                _,
            ) => {
                return self.file_facts().geometry();
            }
            (_, Some(remote)) => remote.geometry,
            // Memory has no limits of its own that would matter here.
            _ => Geometry {
                physical: self.physical,
                ..backends::NullBackend::new(blocks, spec.block).geometry()
            },
        })
    }
}
