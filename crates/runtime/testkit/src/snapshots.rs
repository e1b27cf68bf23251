//! Snapshots of connections ([`stream::snapshot`]) as tests change them: the checksum is right, the rest need not be.

use buf::crc32c::crc32c;

/// Magic, kind and version.
const HEADER_LEN: usize = 10;
const VERSION_AT: usize = 8;
const CHECKSUM_LEN: usize = 4;

/// The snapshot after `change`, with the checksum that it needs then.
fn with_change(snapshot: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = snapshot[..snapshot.len() - CHECKSUM_LEN].to_vec();
    change(&mut bytes);
    let checksum = crc32c(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

/// The snapshot with another version, below 256.
pub fn with_version(snapshot: &[u8], version: u8) -> Vec<u8> {
    with_change(snapshot, |bytes| bytes[VERSION_AT] = version)
}

/// The snapshot with these bytes of its body changed, and its body cut to a length. Places and length are taken
/// modulo the length of the body.
pub fn with_damaged_body(snapshot: &[u8], hits: &[(usize, u8)], cut: Option<usize>) -> Vec<u8> {
    with_change(snapshot, |bytes| {
        let body = &mut bytes[HEADER_LEN..];
        let body_len = body.len();
        for (at, value) in hits {
            body[at % body_len] = *value;
        }
        if let Some(cut) = cut {
            bytes.truncate(HEADER_LEN + cut % body_len);
        }
    })
}
