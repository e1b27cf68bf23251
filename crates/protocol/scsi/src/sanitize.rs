//! The parameter list of SANITIZE, OVERWRITE (SBC-3 §5.24.2.2).

use crate::sense::Sense;
use crate::wire::{Writer, be16, bit, bits, flag_bit, place_bits};

const HEADER_LEN: usize = 4;

/// How to overwrite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverwriteParameters<'a> {
    /// INVERT: the pattern is inverted between passes.
    pub invert: bool,
    /// OVERWRITE COUNT, 1..=31 passes.
    pub passes: u8,
    /// INITIALIZATION PATTERN, 1 byte up to a block; repeated over each block.
    pub pattern: &'a [u8],
}

impl<'a> OverwriteParameters<'a> {
    /// Longest list for blocks of `block_len` bytes; a longer PARAMETER LIST LENGTH is refused in the CDB.
    pub const fn list_len_max(block_len: u32) -> u32 {
        block_len.saturating_add(HEADER_LEN as u32)
    }

    /// Judges PARAMETER LIST LENGTH of the CDB, before the list is asked for.
    pub fn check_len(list_len: u16, block_len: u32) -> Result<(), Sense> {
        let len = u32::from(list_len);
        if len > HEADER_LEN as u32 && len <= OverwriteParameters::list_len_max(block_len) {
            Ok(())
        } else {
            Err(Sense::invalid_cdb_field(7, None))
        }
    }

    /// Reads the list.
    pub fn parse(list: &'a [u8], block_len: u32) -> Result<OverwriteParameters<'a>, Sense> {
        let (head, rest) =
            list.split_first_chunk::<HEADER_LEN>().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let passes = bits(head[0], 4, 0);
        // TEST asks for vendor specific behavior, of which there is none.
        if bits(head[0], 6, 5) != 0 {
            return Err(Sense::invalid_list_field(0, Some(6)));
        }
        if passes == 0 {
            return Err(Sense::invalid_list_field(0, Some(4)));
        }
        let pattern_len = be16(head, 2);
        if pattern_len == 0 || u32::from(pattern_len) > block_len {
            return Err(Sense::invalid_list_field(2, None));
        }
        let pattern = rest.get(..usize::from(pattern_len)).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        Ok(OverwriteParameters { invert: bit(head[0], 7), passes, pattern })
    }

    /// Writes the list; a pattern longer than 65535 bytes is cut.
    pub fn encode(&self, w: &mut Writer<'_>) {
        let pattern = self.pattern.get(..usize::from(u16::MAX)).unwrap_or(self.pattern);
        w.put(&[flag_bit(self.invert, 7) | place_bits(self.passes, 4, 0), 0]);
        w.u16(pattern.len() as u16);
        w.put(pattern);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let overwrite = OverwriteParameters { invert: true, passes: 3, pattern: &[0xaa; 512] };
        let mut list = [0; 516];
        overwrite.encode(&mut Writer::new(&mut list));
        assert_eq!(list[..6], [0x83, 0, 2, 0, 0xaa, 0xaa]);
        assert_eq!(OverwriteParameters::parse(&list, 512), Ok(overwrite));
        assert_eq!(OverwriteParameters::parse(&list, 511), Err(Sense::invalid_list_field(2, None)));
        assert_eq!(OverwriteParameters::parse(&list[..515], 512), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
        assert_eq!(OverwriteParameters::parse(&list[..3], 512), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
        assert_eq!(OverwriteParameters::parse(&[1, 0, 0, 1, 7], 512).unwrap().pattern, [7]);
        assert_eq!(
            OverwriteParameters::parse(&[1, 0, 0, 0, 7], 512),
            Err(Sense::invalid_list_field(2, None))
        );
        assert_eq!(
            OverwriteParameters::parse(&[0, 0, 0, 1, 7], 512),
            Err(Sense::invalid_list_field(0, Some(4)))
        );
        assert_eq!(
            OverwriteParameters::parse(&[0x21, 0, 0, 1, 7], 512),
            Err(Sense::invalid_list_field(0, Some(6)))
        );
    }

    #[test]
    fn list_lengths() {
        for (len, fits) in [(0, false), (4, false), (5, true), (516, true), (517, false)] {
            assert_eq!(OverwriteParameters::check_len(len, 512).is_ok(), fits, "{len}");
        }
    }
}
