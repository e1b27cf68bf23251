//! Opens the legs of a stripe, and computes their common properties.

use client::stripe_uuid;
use sha2::{Digest, Sha256};
use uuid::Uuid;
use volume::{Backend, Geometry};

use super::{CreatePolicy, ProbeResult, Store, Why, of_shape};
use crate::state::identity::Identities;
use config::{
    plan::Volume,
    spec::{Source, Spec, Striped},
};

/// Opens all legs; those that were opened are given up again if one fails.
pub(super) fn open<'a>(
    volume: &Volume,
    (striped, making): (&Striped, CreatePolicy),
    identities: &Identities,
    others: impl Iterator<Item = &'a Store> + Clone,
    probed: &mut ProbeResult,
) -> Result<Store, Why> {
    let mut legs: Vec<Store> = Vec::new();
    let opened = striped.legs.iter().enumerate().try_for_each(|(at, leg)| {
        let leg = Volume { spec: spec_of(volume, leg), ..volume.clone() };
        let beside = others.clone().map(|other| -> &Store { other }).chain(legs.iter());
        let wrong = |why| Why::Leg(at + 1, Box::new(why));
        let leg = super::open_one(&leg, (at + 1, making), identities, beside, probed).map_err(wrong)?;
        legs.push(leg);
        Ok(())
    });
    match opened.and_then(|()| together(volume, striped, &legs)) {
        Ok(store) => Ok(Store { legs, ..store }),
        Err(why) => {
            // Nothing is recorded of them yet.
            legs.into_iter().for_each(|leg| leg.discard(&mut Identities::default()));
            Err(why)
        }
    }
}

/// Finds out which volumes the legs are, and which the stripe is by them.
pub(super) fn identify(stripe: &mut Store, chunk: u32, identities: &mut Identities) -> Result<(), Why> {
    let mut uuids: Vec<[u8; 16]> = Vec::new();
    for (at, leg) in stripe.legs.iter_mut().enumerate() {
        leg.identify(at + 1, identities).map_err(|why| Why::Leg(at + 1, Box::new(why)))?;
        if let Some(own) = leg.remote.as_ref().and_then(|remote| remote.uuid) {
            leg.uuid = own;
        }
        let uuid = leg.uuid.into_bytes();
        if let Some(same) = uuids.iter().position(|before| *before == uuid) {
            return Err(Why::Leg(at + 1, Box::new(Why::SameLeg(same + 1))));
        }
        uuids.push(uuid);
    }
    let own = || Uuid::from_bytes(stripe_uuid(&uuids, chunk));
    stripe.uuid = stripe.volume.spec.uuid.unwrap_or_else(own);
    Ok(())
}

/// What is said of the whole holds for each leg. A volume of another machine that has no identity need not have
/// one here if the stripe has.
fn spec_of(volume: &Volume, leg: &Spec) -> Spec {
    let is_remote = matches!(leg.source, Source::Remote(_));
    let uuid = volume.spec.uuid.filter(|_| is_remote);
    // Of its own for each leg, by its name.
    let mut name = [0; 16];
    name.iter_mut().zip(Sha256::digest(leg.to_string())).for_each(|(byte, of)| *byte = of);
    let uuid = uuid.map(|uuid| Uuid::from_bytes(stripe_uuid(&[uuid.into_bytes(), name], 0)));
    Spec { read_only: volume.spec.read_only, uuid, ..leg.clone() }
}

/// The stripe that these legs are.
fn together(volume: &Volume, striped: &Striped, legs: &[Store]) -> Result<Store, Why> {
    let shapes: Vec<Geometry> = legs
        .iter()
        .enumerate()
        .map(|(at, leg)| leg.shape().map_err(|why| Why::Leg(at + 1, Box::new(Why::Unfit(why)))))
        .collect::<Result<_, _>>()?;
    let geometry = backends::stripe::fit(&shapes, striped.chunk, volume.spec.size).map_err(Why::Misfit)?;
    if let Some(size) = volume.spec.size.filter(|size| *size > geometry.bytes()) {
        return Err(Why::TooLarge(size, geometry.bytes()));
    }
    Ok(of_shape(volume, &geometry))
}

impl Store {
    /// What its blocks are like, as its backend will say.
    fn shape(&self) -> Result<Geometry, backends::UnsuitableFile> {
        let (spec, blocks) = (&self.volume.spec, self.bytes / u64::from(self.volume.spec.block));
        Ok(match (&spec.source, &self.remote) {
            (Source::File(_) | Source::Device(_), _) => return self.facts().geometry(),
            (_, Some(remote)) => remote.geometry,
            // Memory has no limits of its own that would matter here.
            _ => Geometry { physical: self.physical, ..backends::Null::new(blocks, spec.block).geometry() },
        })
    }
}
