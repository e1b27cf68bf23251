//! Payload that contains its own location, so that a lost, misplaced or torn block is recognized.
//!
//! Every 512 bytes begin with their location and the seed of their writer; the rest is derived from both.

use super::offsets::SplitMix64;

/// Bytes that are marked each on their own.
const UNIT_BYTES: usize = 512;

/// What is wrong with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The first byte that differs, from the start of the volume.
    pub at: u64,
    /// The offset that the block itself claims, if it was written by [`fill_pattern`] at all.
    pub claims: Option<u64>,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.claims {
            Some(claims) if claims / UNIT_BYTES as u64 != self.at / UNIT_BYTES as u64 => {
                write!(f, "byte {}: the data there was written for offset {claims}", self.at)
            }
            Some(_) => write!(f, "byte {}: old or damaged data", self.at),
            None => write!(f, "byte {}: no data of ours", self.at),
        }
    }
}

const MAGIC: u64 = 0x6B63_6F6C_6265_7277;

fn unit_pattern(offset: u64, seed: u64) -> [u8; UNIT_BYTES] {
    let mut bytes = [0; UNIT_BYTES];
    let mut random = SplitMix64::new(seed ^ offset.rotate_left(17));
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = match at {
            0 => MAGIC,
            1 => offset,
            2 => seed,
            _ => random.next(),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Fills `into`, a multiple of 512 bytes that belongs at `offset`.
pub fn fill_pattern(into: &mut [u8], offset: u64, seed: u64) {
    for (at, part) in into.chunks_mut(UNIT_BYTES).enumerate() {
        let unit = unit_pattern(offset + (at * UNIT_BYTES) as u64, seed);
        part.iter_mut().zip(unit).for_each(|(to, from)| *to = from);
    }
}

/// Compares with what [`fill_pattern`] would have written there.
pub fn verify_pattern(bytes: &[u8], offset: u64, seed: u64) -> Result<(), Mismatch> {
    for (at, part) in bytes.chunks(UNIT_BYTES).enumerate() {
        let start = offset + (at * UNIT_BYTES) as u64;
        let right = unit_pattern(start, seed);
        if let Some(differs) = part.iter().zip(&right).position(|(a, b)| a != b) {
            let word = |at: usize| Some(u64::from_le_bytes(part.get(at..at + 8)?.try_into().ok()?));
            let claims = if word(0) == Some(MAGIC) { word(8) } else { None };
            return Err(Mismatch { at: start + differs as u64, claims });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misplaced_torn_and_foreign_blocks_are_told_apart() {
        let mut bytes = vec![0; 4096];
        fill_pattern(&mut bytes, 8192, 5);
        assert_eq!(verify_pattern(&bytes, 8192, 5), Ok(()));
        assert_eq!(verify_pattern(&bytes, 0, 5), Err(Mismatch { at: 9, claims: Some(8192) }));
        assert_eq!(verify_pattern(&bytes, 8192, 6), Err(Mismatch { at: 8192 + 16, claims: Some(8192) }));
        bytes[1000] ^= 1;
        assert_eq!(verify_pattern(&bytes, 8192, 5), Err(Mismatch { at: 9192, claims: Some(8704) }));
        assert_eq!(verify_pattern(&[0; 512], 0, 5), Err(Mismatch { at: 0, claims: None }));
    }
}
