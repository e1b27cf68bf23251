//! A pattern that marks memory that was not filled, and a search for it.
//!
//! A pool made by [`Pool::new_poisoned`](crate::Pool::new_poisoned) fills its blocks with one pattern when it lends
//! them and when it gets them back. If the pattern reaches a disk or a socket, the memory was not filled for
//! that command: in production it would contain another command's data.
//!
//! Invariant: without the feature `poison`, which only tests and the simulated world enable, nothing of this is
//! in the program.

/// The pattern: four bytes that no data of a test repeats, over and over.
const PATTERN: [u8; 4] = [0xb7, 0x5e, 0xd3, 0x0f];
/// The shortest stretch that is surely found, in bytes: whatever its phase, eight bytes of it are aligned to
/// eight in what is looked at.
pub const DETECTABLE_LEN_MIN: usize = 15;

/// Fills memory with the pattern.
pub(crate) fn fill(memory: &mut [u8]) {
    let mut done = 0;
    for (byte, pattern) in memory.iter_mut().zip(PATTERN) {
        *byte = pattern;
        done += 1;
    }
    while done < memory.len() {
        let more = done.min(memory.len() - done);
        memory.copy_within(..more, done);
        done += more;
    }
}

/// Where the pattern stands in `bytes`: eight bytes of it at a multiple of eight.
pub fn find(bytes: &[u8]) -> Option<usize> {
    let word = u32::from_ne_bytes(PATTERN);
    let eight = |part: &[u8]| u64::from_ne_bytes(part.try_into().unwrap_or_default());
    let (chunks, _) = bytes.as_chunks::<8>();
    chunks
        .iter()
        .position(|part| {
            let both = eight(part);
            let (low, high) = (both as u32, (both >> 32) as u32);
            low == high && (0..4).any(|turn| low == word.rotate_left(8 * turn))
        })
        .map(|at| at * 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryClass, Pool};

    #[test]
    fn memory_that_nobody_filled_is_found_at_any_offset() {
        let pool = Pool::new_poisoned(1 << 20);
        let fresh = pool.take(MemoryClass::Wire, 4096).unwrap();
        for from in 0..16 {
            let mut bytes = vec![0; 64];
            bytes[from..from + DETECTABLE_LEN_MIN].copy_from_slice(&fresh[from..from + DETECTABLE_LEN_MIN]);
            assert!(find(&bytes).is_some(), "{from}");
        }
        assert_eq!(find(&[0; 4096]), None);
        assert_eq!(find(&[0xb7; 4096]), None);
    }

    #[test]
    fn what_was_there_last_is_never_lent_again() {
        let pool = Pool::new_poisoned(1 << 20);
        let mut buffer = pool.take(MemoryClass::Wire, 8192).unwrap();
        buffer.fill(1);
        drop(buffer);
        let again = pool.take(MemoryClass::Wire, 8192).unwrap();
        assert!(again.iter().all(|byte| *byte != 1));
        assert!(again.chunks(16).all(|part| find(part).is_some()));
        drop(again);
        // Longer than was asked for: the rest of a block is no different.
        let mut longer = pool.take(MemoryClass::Wire, 5000).unwrap();
        longer.set_len(8192);
        assert!(longer.chunks(16).all(|part| find(part).is_some()));
    }
}
