//! Sixteen table look-ups per sixteen bytes ("slicing"), for processors without a CRC instruction.

use super::polynomial::times_x;
use crate::shared_memory;

/// `TABLES[n][byte]`: the remainder of `byte` followed by `n` zero bytes.
static TABLES: [[u32; 256]; 16] = make_tables();

#[expect(
    clippy::indexing_slicing,
    reason = "tables have 256 entries, indexed by a byte; there are sixteen, one for each byte of a chunk"
)]
const fn make_tables() -> [[u32; 256]; 16] {
    let mut tables = [[0u32; 256]; 16];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = times_x(value);
            bit += 1;
        }
        tables[0][byte] = value;
        byte += 1;
    }
    let mut n = 1;
    while n < 16 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[n - 1][byte];
            tables[n][byte] = tables[0][(before & 0xff) as usize] ^ (before >> 8);
            byte += 1;
        }
        n += 1;
    }
    tables
}

/// See [`super::update_raw`].
///
/// # Safety
/// As there.
pub(super) unsafe fn update_raw<const COPY: bool>(
    mut state: u32,
    from: *const u8,
    into: *mut u8,
    len: usize,
) -> u32 {
    // A copy is read back from the destination, which nobody else writes, while it is in the cache.
    const CHUNK: usize = 4096;
    if !COPY {
        // SAFETY: unchanging memory of that length, by the caller's promise.
        return update_from_tables(state, unsafe { std::slice::from_raw_parts(from, len) });
    }
    let mut at = 0;
    while at < len {
        let n = CHUNK.min(len - at);
        // SAFETY: both ranges are within what the caller promised, and the destination is the
        // caller's own, so it may be looked at as a slice.
        state = unsafe {
            shared_memory::copy_shared(from.add(at), into.add(at), n);
            update_from_tables(state, std::slice::from_raw_parts(into.add(at), n))
        };
        at += n;
    }
    state
}

#[expect(
    clippy::indexing_slicing,
    reason = "tables have 256 entries, indexed by a byte; there are sixteen, one for each byte of a chunk"
)]
fn update_from_tables(mut state: u32, bytes: &[u8]) -> u32 {
    let (blocks, rest) = bytes.as_chunks::<16>();
    for block in blocks {
        let mut mixed = *block;
        for (byte, with) in mixed.iter_mut().zip(state.to_le_bytes()) {
            *byte ^= with;
        }
        state = 0;
        for (n, byte) in mixed.into_iter().enumerate() {
            state ^= TABLES[15 - n][usize::from(byte)];
        }
    }
    for &byte in rest {
        state = TABLES[0][usize::from(state as u8 ^ byte)] ^ (state >> 8);
    }
    state
}
