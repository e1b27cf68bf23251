//! Objects of the store as bytes: versioned, checksummed, with the last swap of each instance that wrote lately.
//!
//! ```text
//! "BWGO" format(u8)=1 kind(u8)
//! count(u16) × { instance(u64) operation(u64) count(u64) }   the last swap of each recent writer; the newest at the end
//! body                                            see `object`
//! crc32c(u32)                                     of all before
//! ```
//! Integers are little-endian. A text is length(u16) and UTF-8.
//!
//! Invariant: bytes that this module did not write, or that have changed since, are refused by name; nothing of them
//! is used.

use std::fmt;
use std::sync::Arc;

use buf::crc32c::crc32c;

const MAGIC: &[u8; 4] = b"BWGO";
const FORMAT: u8 = 1;

/// Why an object of the store cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Not an object of a gateway group.
    Foreign,
    /// Written by a later release, in this format.
    Format(u8),
    /// An object of another kind.
    Kind(u8),
    /// The bytes do not have the checksum that they were written with.
    Checksum,
    /// The checksum is right, the contents contradict themselves.
    Contents,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Foreign => write!(f, "not an object of a gateway group"),
            Damage::Format(format) => write!(f, "written in format {format} by a later release"),
            Damage::Kind(kind) => write!(f, "an object of another kind ({kind})"),
            Damage::Checksum => write!(f, "wrong checksum"),
            Damage::Contents => write!(f, "contradictory contents"),
        }
    }
}

impl std::error::Error for Damage {}

/// Writes an object.
#[derive(Debug)]
pub(crate) struct Encoder(Vec<u8>);

impl Encoder {
    pub(crate) fn new(kind: u8) -> Encoder {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&[FORMAT, kind]);
        Encoder(bytes)
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn array(&mut self, value: &[u8; 16]) {
        self.0.extend_from_slice(value);
    }

    /// A number of entries: every list is bounded far below 65,536.
    pub(crate) fn count(&mut self, count: usize) {
        assert!(count <= usize::from(u16::MAX), "lists of objects are bounded");
        self.u16(count as u16);
    }

    /// At most 65,535 bytes of it: names are checked where they enter.
    pub(crate) fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let checksum = crc32c(&self.0);
        self.0.extend_from_slice(&checksum.to_le_bytes());
        self.0
    }
}

/// Reads an object.
#[derive(Debug)]
pub(crate) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    /// The object's body, if the bytes are an object of this kind.
    pub(crate) fn open(bytes: &'a [u8], kind: u8) -> Result<Decoder<'a>, Damage> {
        let (head, rest) = bytes.split_first_chunk::<6>().ok_or(Damage::Foreign)?;
        let [a, b, c, d, format, is] = *head;
        if [a, b, c, d] != *MAGIC {
            return Err(Damage::Foreign);
        }
        if format != FORMAT {
            return Err(Damage::Format(format));
        }
        let (body, checksum) = rest.split_last_chunk::<4>().ok_or(Damage::Foreign)?;
        let covered = bytes.get(..bytes.len() - 4).ok_or(Damage::Foreign)?;
        if crc32c(covered) != u32::from_le_bytes(*checksum) {
            return Err(Damage::Checksum);
        }
        if is != kind {
            return Err(Damage::Kind(is));
        }
        Ok(Decoder(body))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Damage> {
        let (value, rest) = self.0.split_first_chunk::<N>().ok_or(Damage::Contents)?;
        self.0 = rest;
        Ok(*value)
    }

    fn slice(&mut self, length: usize) -> Result<&'a [u8], Damage> {
        let (value, rest) = self.0.split_at_checked(length).ok_or(Damage::Contents)?;
        self.0 = rest;
        Ok(value)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Damage> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Damage> {
        self.take().map(u16::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Damage> {
        self.take().map(u64::from_le_bytes)
    }

    pub(crate) fn array(&mut self) -> Result<[u8; 16], Damage> {
        self.take()
    }

    /// The entries of a list, at most so many.
    pub(crate) fn list<T>(
        &mut self,
        most: usize,
        mut entry: impl FnMut(&mut Self) -> Result<T, Damage>,
    ) -> Result<Vec<T>, Damage> {
        let count = usize::from(self.u16()?);
        if count > most {
            return Err(Damage::Contents);
        }
        (0..count).map(|_| entry(self)).collect()
    }

    pub(crate) fn text(&mut self) -> Result<Arc<str>, Damage> {
        let length = usize::from(self.u16()?);
        std::str::from_utf8(self.slice(length)?).map(Arc::from).map_err(|_| Damage::Contents)
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, Damage> {
        let length = usize::try_from(self.u64()?).map_err(|_| Damage::Contents)?;
        Ok(self.slice(length)?.to_vec())
    }

    /// Nothing may be left.
    pub(crate) fn close(self) -> Result<(), Damage> {
        if self.0.is_empty() { Ok(()) } else { Err(Damage::Contents) }
    }
}
