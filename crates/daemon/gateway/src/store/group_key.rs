//! The key that the links between a group's gateways are authenticated with. It lies in the group's pool: who may read
//! that may take part.

use std::fmt;

use buf::crc32c::crc32c;
use zeroize::Zeroizing;

const MAGIC: &[u8; 5] = b"BWGK\x01";
const KEY_LEN: usize = 32;

/// 32 random bytes, made by the group's first gateway.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupKey(Zeroizing<[u8; KEY_LEN]>);

impl GroupKey {
    /// A key of bytes that nobody can guess.
    pub fn new(random: [u8; KEY_LEN]) -> GroupKey {
        GroupKey(Zeroizing::new(random))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// The key's object: `"BWGK" 1 key crc32c`.
    pub(crate) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new([MAGIC.as_slice(), self.0.as_slice()].concat());
        let checksum = crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// `None`: damaged, or written by a later release.
    pub(crate) fn decode(bytes: &[u8]) -> Option<GroupKey> {
        let (covered, checksum) = bytes.split_last_chunk::<4>()?;
        let key = covered.strip_prefix(MAGIC)?.try_into().ok()?;
        (crc32c(covered) == u32::from_le_bytes(*checksum)).then(|| GroupKey::new(key))
    }
}

impl fmt::Debug for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written_or_not_at_all() {
        let key = GroupKey::new([7; 32]);
        let bytes = key.encode();
        assert_eq!(GroupKey::decode(&bytes), Some(key.clone()));
        assert_eq!(format!("{key:?}"), "GroupKey(..)");
        for at in 0..bytes.len() {
            let mut other = bytes.to_vec();
            other[at] ^= 1;
            assert_eq!(GroupKey::decode(&other), None);
            assert_eq!(GroupKey::decode(&bytes[..at]), None);
        }
    }
}
