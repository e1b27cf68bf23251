//! The frame of a snapshot: what a connection is made of, as bytes for another process.
//!
//! ```text
//! "BWSN" kind(4 bytes) version(u16)
//! body                                 in postcard's format; the owner of the kind defines it
//! crc32c(u32)                          of all before
//! ```
//! Integers are little-endian. The version is that of the kind's body.
//!
//! Invariant: bytes of another kind or version, or that have changed since they were written, are refused by
//! name; nothing of them is used. A body that can be read is plain data, to be checked by who restores from it.

use std::fmt;

use buf::crc32c::crc32c;
use serde::Serialize;
use serde::de::DeserializeOwned;

const MAGIC: &[u8; 4] = b"BWSN";
const CHECKSUM_LEN: usize = 4;

/// What a snapshot is of, and in which version of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotFormat {
    /// Four letters.
    pub kind: [u8; 4],
    /// Raised with each change of the body.
    pub version: u16,
}

/// Why a snapshot cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotDamage {
    /// Not a snapshot.
    Foreign,
    /// One of another kind.
    Kind([u8; 4]),
    /// Of this kind, in a version that this release does not read.
    Version(u16),
    /// The bytes do not have the checksum that they were written with.
    Checksum,
    /// The checksum is right, and the body is none.
    Body,
}

/// In words.
impl fmt::Display for SnapshotDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotDamage::Foreign => f.write_str("not a snapshot"),
            SnapshotDamage::Kind(kind) => write!(f, "a snapshot of another kind ({})", kind.escape_ascii()),
            SnapshotDamage::Version(version) => {
                write!(f, "a snapshot in version {version}, which this release does not read")
            }
            SnapshotDamage::Checksum => f.write_str("a snapshot with a wrong checksum"),
            SnapshotDamage::Body => f.write_str("a snapshot whose contents cannot be read"),
        }
    }
}

impl std::error::Error for SnapshotDamage {}

/// Writes a snapshot.
/// ```
/// use blockwire_stream::snapshot::{SnapshotDamage, SnapshotFormat, read, write};
///
/// const NUMBERS: SnapshotFormat = SnapshotFormat { kind: *b"nmbr", version: 1 };
/// let bytes = write(NUMBERS, &vec![1u32, 2, 3]);
/// assert_eq!(read::<Vec<u32>>(NUMBERS, &bytes), Ok(vec![1, 2, 3]));
/// let later = SnapshotFormat { version: 2, ..NUMBERS };
/// assert_eq!(read::<Vec<u32>>(later, &bytes), Err(SnapshotDamage::Version(1)));
/// ```
#[expect(
    clippy::expect_used,
    reason = "bodies are plain data of known lengths, and a vector takes all of them"
)]
pub fn write(format: SnapshotFormat, body: &impl Serialize) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&format.kind);
    bytes.extend_from_slice(&format.version.to_le_bytes());
    let mut bytes = postcard::to_extend(body, bytes).expect("plain data is written");
    let checksum = crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Reads a snapshot of this format.
pub fn read<T: DeserializeOwned>(format: SnapshotFormat, bytes: &[u8]) -> Result<T, SnapshotDamage> {
    let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(SnapshotDamage::Foreign)?;
    let (kind, rest) = rest.split_first_chunk::<4>().ok_or(SnapshotDamage::Foreign)?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or(SnapshotDamage::Foreign)?;
    let (body, checksum) = rest.split_last_chunk::<CHECKSUM_LEN>().ok_or(SnapshotDamage::Foreign)?;
    if magic != MAGIC {
        return Err(SnapshotDamage::Foreign);
    }
    if *kind != format.kind {
        return Err(SnapshotDamage::Kind(*kind));
    }
    let version = u16::from_le_bytes(*version);
    if version != format.version {
        return Err(SnapshotDamage::Version(version));
    }
    let covered = bytes.get(..bytes.len() - CHECKSUM_LEN).ok_or(SnapshotDamage::Foreign)?;
    if crc32c(covered) != u32::from_le_bytes(*checksum) {
        return Err(SnapshotDamage::Checksum);
    }
    match postcard::take_from_bytes(body) {
        Ok((body, [])) => Ok(body),
        Ok((_, _)) | Err(_) => Err(SnapshotDamage::Body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: SnapshotFormat = SnapshotFormat { kind: *b"test", version: 3 };

    #[test]
    fn what_was_not_written_so_is_refused_by_name() {
        let bytes = write(FORMAT, &(7u32, vec![1u8, 2, 3]));
        type Body = (u32, Vec<u8>);
        assert_eq!(read::<Body>(FORMAT, &bytes), Ok((7, vec![1, 2, 3])));
        for len in 0..bytes.len() {
            assert!(read::<Body>(FORMAT, &bytes[..len]).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            let want = match at {
                0..4 => SnapshotDamage::Foreign,
                4..8 => SnapshotDamage::Kind(damaged[4..8].try_into().unwrap()),
                8..10 => SnapshotDamage::Version(u16::from_le_bytes([damaged[8], damaged[9]])),
                _ => SnapshotDamage::Checksum,
            };
            assert_eq!(read::<Body>(FORMAT, &damaged), Err(want), "{at}");
        }
        // A body of another type, and one with something behind it.
        assert_eq!(read::<(u32, Vec<u8>, u32)>(FORMAT, &bytes), Err(SnapshotDamage::Body));
        assert_eq!(read::<u32>(FORMAT, &bytes), Err(SnapshotDamage::Body));
        assert!(SnapshotDamage::Kind(*b"iscs").to_string().contains("iscs"));
    }

    /// A length that the body claims takes no memory before the bytes are there.
    #[test]
    fn a_length_that_is_not_there_is_refused() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&FORMAT.kind);
        bytes.extend_from_slice(&FORMAT.version.to_le_bytes());
        bytes.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
        let checksum = crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        assert_eq!(read::<Vec<u64>>(FORMAT, &bytes), Err(SnapshotDamage::Body));
    }
}
