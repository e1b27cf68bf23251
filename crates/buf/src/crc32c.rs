//! CRC32C (Castagnoli: reflected polynomial `82F63B78h`, initial value and final xor `FFFFFFFFh`),
//! as iSCSI (RFC 7143 §13.1) and NVMe/TCP use it. The digest word goes on the wire least
//! significant byte first.

/// A running CRC32C, fed piece by piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32c(u32);

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// The state before the first byte.
    pub const fn new() -> Self {
        Crc32c(!0)
    }

    /// Takes the next bytes in.
    pub fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = TABLE[usize::from(self.0 as u8 ^ byte)] ^ (self.0 >> 8);
        }
    }

    /// The digest of all bytes taken so far.
    pub const fn value(self) -> u32 {
        !self.0
    }

    /// The digest as it stands on the wire.
    pub const fn wire(self) -> [u8; 4] {
        self.value().to_le_bytes()
    }
}

/// The digest of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(bytes);
    crc.value()
}

static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0x82f6_3b78 } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_rfc_3720_appendix_b4() {
        assert_eq!(crc32c(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]).to_le_bytes(), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(crc32c(b"123456789").to_le_bytes(), [0x83, 0x92, 0x06, 0xe3]);
    }
}
