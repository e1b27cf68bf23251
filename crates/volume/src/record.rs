//! What of a volume outlives power, as bytes: reservations that persist, and bad blocks. Versioned,
//! checksummed, bound to the volume's UUID.
//!
//! ```text
//! "BWPR" version=2 flags uuid[16] reservations (see `reservation/saved.rs`)
//! count(u16) × { lba(u64) blocks(u16) }     bad blocks; none in version 1
//! crc32c(u32) of all before; numbers little-endian
//! ```
//!
//! Invariant: bytes that differ anywhere from what was written are refused, never read as "nothing".

use std::fmt;

use crate::bad::BadBlocks;
use crate::facts::Uuid;
use crate::io::Span;
use crate::reservation::Reservations;

const MAGIC: &[u8; 4] = b"BWPR";
/// Version 1 knew neither Host NQNs nor bad blocks.
const VERSION: u8 = 2;

/// Why a volume's record cannot be trusted. The volume must not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damaged {
    /// Not such a record.
    Foreign,
    /// Written by a later version of this software.
    Version(u8),
    /// The record is of another volume.
    OtherVolume(Uuid),
    /// The bytes do not have the checksum that they were written with.
    Checksum,
    /// The checksum is right, the contents contradict themselves.
    Contents,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damaged::Foreign => write!(f, "not a reservation file"),
            Damaged::Version(version) => write!(f, "written in format {version}, which is not known here"),
            Damaged::OtherVolume(uuid) => write!(f, "of another volume: {uuid}"),
            Damaged::Checksum => write!(f, "wrong checksum"),
            Damaged::Contents => write!(f, "contradictory contents"),
        }
    }
}

impl std::error::Error for Damaged {}

/// The record's bytes: of the reservations everything, or only that nothing is to be kept.
pub(crate) fn save(uuid: Uuid, reservations: &Reservations, bad: &BadBlocks) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + reservations.registrants().len() * 64 + bad.spans().len() * 10);
    out.extend_from_slice(MAGIC);
    out.push(VERSION);
    out.push(reservations.saved_flags());
    out.extend_from_slice(&uuid.0);
    reservations.save_to(&mut out);
    out.extend_from_slice(&(bad.spans().len() as u16).to_le_bytes());
    for span in bad.spans() {
        out.extend_from_slice(&span.lba.to_le_bytes());
        out.extend_from_slice(&(span.blocks as u16).to_le_bytes());
    }
    out.extend_from_slice(&buf::crc32c::crc32c(&out).to_le_bytes());
    out
}

/// What [`save`], or an older version of it, wrote for this volume.
pub(crate) fn restore(
    bytes: &[u8],
    uuid: Uuid,
    persist_forced: bool,
) -> Result<(Reservations, BadBlocks), Damaged> {
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or(Damaged::Foreign)?;
    let mut from = Reader(body);
    if from.array::<4>().ok_or(Damaged::Foreign)? != *MAGIC {
        return Err(Damaged::Foreign);
    }
    if buf::crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(Damaged::Checksum);
    }
    let [version] = from.array().ok_or(Damaged::Contents)?;
    if version == 0 || version > VERSION {
        return Err(Damaged::Version(version));
    }
    let [flags] = from.array().ok_or(Damaged::Contents)?;
    let of = Uuid(from.array().ok_or(Damaged::Contents)?);
    if of != uuid {
        return Err(Damaged::OtherVolume(of));
    }
    let named = version > 1;
    let reservations =
        Reservations::restore_from(&mut from, flags, named, persist_forced).ok_or(Damaged::Contents)?;
    let bad =
        if version > 1 { restore_bad(&mut from).ok_or(Damaged::Contents)? } else { BadBlocks::default() };
    if from.0.is_empty() { Ok((reservations, bad)) } else { Err(Damaged::Contents) }
}

fn restore_bad(from: &mut Reader<'_>) -> Option<BadBlocks> {
    let count = u16::from_le_bytes(from.array()?);
    let mut spans = Vec::new();
    for _ in 0..count {
        let lba = u64::from_le_bytes(from.array()?);
        let blocks = u64::from(u16::from_le_bytes(from.array()?));
        spans.push(Span { lba, blocks });
    }
    BadBlocks::restore(spans)
}

/// Takes a record apart; `None` where it ends too soon.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (now, later) = self.0.split_first_chunk()?;
        self.0 = later;
        Some(*now)
    }

    /// Text behind its length in one byte.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let [len] = self.array()?;
        let (now, later) = self.0.split_at_checked(usize::from(len))?;
        self.0 = later;
        std::str::from_utf8(now).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Span;

    const UUID: Uuid = Uuid([9; 16]);

    #[test]
    fn bad_blocks_come_back() {
        let bad = BadBlocks::default().with(Span { lba: 1 << 40, blocks: 4096 }).unwrap();
        let bytes = save(UUID, &Reservations::default(), &bad);
        assert_eq!(restore(&bytes, UUID, false), Ok((Reservations::default(), bad)));
    }

    /// What version 1 wrote: an initiator's key 1, a host's key 2 that holds Write Exclusive.
    #[test]
    fn the_first_version_is_still_read() {
        let mut old = b"BWPR\x01\x01".to_vec();
        old.extend_from_slice(&UUID.0);
        old.extend_from_slice(&[1, 1, 0, 2, 0]);
        old.extend_from_slice(&[0, 1, 0, 0x40, 0, 0, 0, 0, 7, 1, 0, 0, 0, 0, 0, 0, 0, 5]);
        old.extend_from_slice(b"iqn.a");
        old.push(1);
        old.extend_from_slice(&[4; 16]);
        old.extend_from_slice(&2u64.to_le_bytes());
        old.extend_from_slice(&buf::crc32c::crc32c(&old).to_le_bytes());
        let (reservations, bad) = restore(&old, UUID, false).unwrap();
        assert!(bad.is_empty() && reservations.persists());
        let keys: Vec<u64> = reservations.registrants().iter().map(|one| one.key.0).collect();
        assert_eq!(keys, [1, 2]);
        let host = crate::Identity::Host([4; 16]);
        assert!(reservations.is_holder(&host));
        assert_eq!(reservations.host_nqn(&[4; 16]), None, "version 1 knew no names");
        assert_eq!(restore(&save(UUID, &reservations, &bad), UUID, false), Ok((reservations, bad)));
    }

    #[test]
    fn a_later_version_is_refused() {
        let mut later = save(UUID, &Reservations::default(), &BadBlocks::default());
        later[4] = 3;
        let body = later.len() - 4;
        let crc = buf::crc32c::crc32c(&later[..body]).to_le_bytes();
        later[body..].copy_from_slice(&crc);
        assert_eq!(restore(&later, UUID, false), Err(Damaged::Version(3)));
    }
}
