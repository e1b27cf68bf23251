//! The parameter list of FORMAT UNIT (SBC-3 §5.3.2): there is one format, without protection information or defect lists.

use crate::sense::Sense;
use crate::wire::{Writer, be16, be32, bit, bits, flag_bit};

/// Bytes of the short and of the long parameter list header.
const SHORT_HEADER_LEN: usize = 4;
const LONG_HEADER_LEN: usize = 8;

/// FORMAT UNIT (SBC-3 §5.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FormatUnit {
    /// FMTDATA: a parameter list follows ([`FormatParameters`]).
    pub with_list: bool,
    /// LONGLIST: it has the long header.
    pub long_list: bool,
}

/// How to format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FormatParameters {
    /// IMMED: answer before the work is done.
    pub immediate: bool,
}

impl FormatParameters {
    /// Bytes of a list, which is its header: LONGLIST says which.
    pub const fn list_len(long: bool) -> usize {
        if long { LONG_HEADER_LEN } else { SHORT_HEADER_LEN }
    }

    /// Reads a list. What is asked for beyond the one format is refused.
    pub fn parse(list: &[u8], long: bool) -> Result<FormatParameters, Sense> {
        let header =
            list.get(..FormatParameters::list_len(long)).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let &[usage, flags, ..] = header else { return Err(Sense::PARAMETER_LIST_LENGTH_ERROR) };
        if bits(usage, 2, 0) != 0 {
            return Err(Sense::invalid_list_field(0, Some(2)));
        }
        // DPRY, DCRT, STPF and IP count only with FOV.
        if !bit(flags, 7) && bits(flags, 6, 3) != 0 {
            return Err(Sense::invalid_list_field(1, Some(7)));
        }
        // An initialization pattern is SANITIZE's; DSP is obsolete.
        for unsupported in [3, 2] {
            if bit(flags, unsupported) {
                return Err(Sense::invalid_list_field(1, Some(unsupported)));
            }
        }
        // There are no defects, and so no list of any.
        let (defects, at) = if long {
            if header.get(3).is_some_and(|interval| *interval != 0) {
                return Err(Sense::invalid_list_field(3, Some(7)));
            }
            (be32(header, 4), 4)
        } else {
            (u32::from(be16(header, 2)), 2)
        };
        if defects != 0 {
            return Err(Sense::invalid_list_field(at, None));
        }
        Ok(FormatParameters { immediate: bit(flags, 1) })
    }

    /// Writes a short list.
    pub fn encode(&self, w: &mut Writer<'_>) {
        w.put(&[0, flag_bit(self.immediate, 1), 0, 0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let list = |at: usize, byte: u8| {
            let mut list = [0; 8];
            list[at] = byte;
            list
        };
        for immediate in [false, true] {
            let mut out = [0xee; 4];
            FormatParameters { immediate }.encode(&mut Writer::new(&mut out));
            assert_eq!(FormatParameters::parse(&out, false), Ok(FormatParameters { immediate }));
        }
        // FOV with DPRY, DCRT and STPF: nothing is certified, and nothing stops.
        for flags in [0x80, 0xf0] {
            assert_eq!(
                FormatParameters::parse(&list(1, flags), true),
                Ok(FormatParameters { immediate: false })
            );
        }
        for (at, byte, bit) in [(0, 1, 2), (1, 0x40, 7), (1, 0x88, 3), (1, 4, 2)] {
            let refused = Err(Sense::invalid_list_field(at, Some(bit)));
            assert_eq!(FormatParameters::parse(&list(at, byte), false), refused);
            assert_eq!(FormatParameters::parse(&list(at, byte), true), refused);
        }
        assert_eq!(FormatParameters::parse(&list(3, 8), false), Err(Sense::invalid_list_field(2, None)));
        assert_eq!(FormatParameters::parse(&list(3, 8), true), Err(Sense::invalid_list_field(3, Some(7))));
        assert_eq!(FormatParameters::parse(&list(7, 8), true), Err(Sense::invalid_list_field(4, None)));
        assert_eq!(FormatParameters::parse(&[0; 7], true), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
        assert_eq!(FormatParameters::parse(&[0; 3], false), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
    }
}
