//! READ CAPACITY(10) and (16) data (SBC-3 §5.15, §5.16).

use crate::wire::{Writer, be16, be32, be64, bit, bits, flag_bit, place_bits};

/// How large a logical unit is and how its blocks lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Address of the last block: the number of blocks less one.
    pub last_lba: u64,
    /// Bytes per logical block.
    pub block_len: u32,
    /// LBPPBE: log2 of logical blocks per physical block, 0..=15.
    pub physical_exponent: u8,
    /// LOWEST ALIGNED LOGICAL BLOCK ADDRESS, 0..=16383.
    pub lowest_aligned: u16,
    /// LBPME: blocks may be unmapped (VPD B2h says how).
    pub provisioned: bool,
    /// LBPRZ: unmapped blocks read as zeros.
    pub reads_zeros: bool,
}

/// Bytes of READ CAPACITY(16) data.
pub const CAPACITY_16_LEN: usize = 32;

impl Capacity {
    /// READ CAPACITY(10): FFFFFFFFh stands for an address that needs more than 32 bits.
    pub fn encode_10(&self, w: &mut Writer<'_>) {
        w.u32(u32::try_from(self.last_lba).unwrap_or(u32::MAX));
        w.u32(self.block_len);
    }

    /// READ CAPACITY(16); no protection information.
    pub fn encode_16(&self, w: &mut Writer<'_>) {
        w.u64(self.last_lba);
        w.u32(self.block_len);
        w.u8(0);
        w.u8(place_bits(self.physical_exponent, 3, 0));
        let [high, low] = self.lowest_aligned.to_be_bytes();
        w.u8(flag_bit(self.provisioned, 7) | flag_bit(self.reads_zeros, 6) | place_bits(high, 5, 0));
        w.u8(low);
        w.zeros(16);
    }

    /// Reads READ CAPACITY(10) data; `None`: fewer than 8 bytes.
    pub fn decode_10(data: &[u8]) -> Option<Capacity> {
        let d: &[u8; 8] = data.first_chunk()?;
        Some(Capacity {
            last_lba: u64::from(be32(d, 0)),
            block_len: be32(d, 4),
            physical_exponent: 0,
            lowest_aligned: 0,
            provisioned: false,
            reads_zeros: false,
        })
    }

    /// Reads READ CAPACITY(16) data; `None`: fewer than 16 bytes.
    pub fn decode_16(data: &[u8]) -> Option<Capacity> {
        let d: &[u8; 16] = data.first_chunk()?;
        Some(Capacity {
            last_lba: be64(d, 0),
            block_len: be32(d, 8),
            physical_exponent: bits(d[13], 3, 0),
            lowest_aligned: be16(d, 14) & 0x3fff,
            provisioned: bit(d[14], 7),
            reads_zeros: bit(d[14], 6),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors() {
        let small = Capacity {
            last_lba: 0x1_ffff,
            block_len: 512,
            physical_exponent: 3,
            lowest_aligned: 1,
            provisioned: true,
            reads_zeros: true,
        };
        let mut out = [0xee; 40];
        let mut w = Writer::new(&mut out);
        small.encode_10(&mut w);
        assert_eq!(w.len(), 8);
        assert_eq!(out[..8], [0, 1, 0xff, 0xff, 0, 0, 2, 0]);
        let plain = Capacity {
            physical_exponent: 0,
            lowest_aligned: 0,
            provisioned: false,
            reads_zeros: false,
            ..small
        };
        assert_eq!(Capacity::decode_10(&out), Some(plain));
        assert_eq!(Capacity::decode_10(&out[..7]), None);

        let mut w = Writer::new(&mut out);
        small.encode_16(&mut w);
        assert_eq!(w.len(), CAPACITY_16_LEN);
        assert_eq!(out[..16], [0, 0, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 2, 0, 0, 3, 0xc0, 1]);
        assert_eq!(out[16..32], [0; 16]);
        assert_eq!(Capacity::decode_16(&out), Some(small));
        assert_eq!(Capacity::decode_16(&out[..15]), None);

        let large = Capacity { last_lba: 1 << 32, block_len: 4096, ..small };
        let mut w = Writer::new(&mut out);
        large.encode_10(&mut w);
        assert_eq!(out[..8], [0xff, 0xff, 0xff, 0xff, 0, 0, 0x10, 0]);
    }
}
