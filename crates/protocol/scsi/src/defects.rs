//! READ DEFECT DATA (SBC-3 §5.19): a volume has no defects to list, in any format.

use crate::cdb::ReadDefects;
use crate::wire::{Writer, flag_bit, place_bits};

/// Writes the header of empty lists: those asked for are there, and have no entry.
pub fn encode_empty_lists(request: &ReadDefects, w: &mut Writer<'_>) {
    w.u8(0);
    w.u8(flag_bit(request.primary, 4) | flag_bit(request.grown, 3) | place_bits(request.format, 2, 0));
    w.u16(0);
    if request.twelve {
        w.u32(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        let request =
            ReadDefects { twelve: false, primary: true, grown: false, format: 5, index: 0, allocation: 32 };
        let mut out = [0xee; 9];
        let mut w = Writer::new(&mut out);
        encode_empty_lists(&request, &mut w);
        assert_eq!((w.written_len(), out[4]), (4, 0xee));
        assert_eq!(out[..4], [0, 0x15, 0, 0]);
        let twelve = ReadDefects { twelve: true, primary: false, grown: true, format: 0, ..request };
        encode_empty_lists(&twelve, &mut Writer::new(&mut out));
        assert_eq!(out, [0, 0x08, 0, 0, 0, 0, 0, 0, 0xee]);
    }
}
