//! Stripes in a SPEC: `stripe:SPEC+SPEC...`.
//!
//! Invariant: no leg is a stripe itself; options of the whole volume (read-only, identity) are given for the
//! stripe, not for a leg.

use std::fmt;

use backends::stripe::{CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, format_legs, parse_stripe};

use super::{Spec, SpecError, VolumeSource};
use crate::size;

/// The keys that mean something for the whole.
pub(super) const KEYS: [&str; 12] = [
    "size",
    "chunk",
    "ro",
    "uuid",
    "removable",
    "tas",
    "sanitize_rate",
    "iops_limit",
    "iops_burst",
    "bandwidth_limit",
    "bandwidth_burst",
    "persist",
];

/// The keys that mean something for a leg: of a volume of another machine, none.
const LEG_KEYS: [&str; 10] =
    ["size", "block", "physical", "cache", "direct", "thin", "conf", "user", "queue_timeout", "break_lock"];

/// Volumes that make up one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeSpec {
    /// The volumes, in the order in which chunks go round them; two at least.
    pub legs: Vec<Spec>,
    /// Bytes of a chunk: a power of two.
    pub chunk: u32,
}

impl StripeSpec {
    /// Cuts a stripe as it was written into legs and the fields behind them.
    pub(super) fn parse(text: &str) -> Result<(Self, Vec<String>), SpecError> {
        let cut = parse_stripe(text).map_err(SpecError::BadStripe)?;
        let mut legs = Vec::new();
        for (at, text) in cut.legs.iter().enumerate() {
            let wrong = |why| SpecError::BadLeg(at + 1, Box::new(why));
            let (leg, given) = super::parse_parts(text).map_err(wrong)?;
            if matches!(leg.source, VolumeSource::Stripe(_)) {
                return Err(wrong(SpecError::NestedStripe));
            }
            if let Some(key) = given.iter().find(|key| !LEG_KEYS.contains(&key.as_str())) {
                let why = "does not belong to a leg; append it to the whole stripe".to_owned();
                return Err(wrong(SpecError::BadValue { key: key.clone(), why }));
            }
            legs.push(leg);
        }
        Ok((StripeSpec { legs, chunk: CHUNK_BYTES_DEFAULT }, cut.fields))
    }

    /// Checks what involves several keys at once; `size` is that of the whole, if it was chosen.
    pub(super) fn check(&self, size: Option<u64>) -> Result<(), SpecError> {
        for (at, leg) in self.legs.iter().enumerate() {
            leg.check().map_err(|why| SpecError::BadLeg(at + 1, Box::new(why)))?;
        }
        if size.is_some_and(|size| !size.is_multiple_of(self.chunk.into())) {
            let why = format!("is not a multiple of the chunk, {}", size::format_exact(self.chunk.into()));
            return Err(SpecError::BadValue { key: "size".to_owned(), why });
        }
        Ok(())
    }

    /// Where the legs are, as shown to users.
    pub(super) fn display_location(&self) -> String {
        let places =
            self.legs.iter().map(|leg| leg.source.display_location().unwrap_or_else(|| leg.to_string()));
        places.collect::<Vec<_>>().join("+")
    }
}

impl VolumeSource {
    /// Sets how long chunks are, from the value as it was written.
    pub(super) fn set_chunk(&mut self, value: &str) -> Result<(), String> {
        let VolumeSource::Stripe(striped) = self else {
            return Err("applies only to stripes".to_owned());
        };
        let bytes = size::parse(value).map_err(|why| why.to_string())?;
        if !bytes.is_power_of_two() || !(512..=u64::from(CHUNK_BYTES_MAX)).contains(&bytes) {
            return Err("is a power of two from 512 to 64M".to_owned());
        }
        striped.chunk = bytes as u32;
        Ok(())
    }
}

impl fmt::Display for StripeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let legs: Vec<String> = self.legs.iter().map(ToString::to_string).collect();
        f.write_str(&format_legs(legs.iter().map(String::as_str)))?;
        if self.chunk == CHUNK_BYTES_DEFAULT {
            Ok(())
        } else {
            write!(f, ",chunk={}", size::format_exact(self.chunk.into()))
        }
    }
}
