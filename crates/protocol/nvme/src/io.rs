//! The I/O commands that address blocks (NVM Command Set §3.2): their dwords and parameter lists.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::sqe::{Opcode, Sqe};

#[allow(missing_docs)] // The names are the standard's.
impl Opcode {
    pub const FLUSH: Opcode = Opcode(0x00);
    pub const WRITE: Opcode = Opcode(0x01);
    pub const READ: Opcode = Opcode(0x02);
    pub const WRITE_UNCORRECTABLE: Opcode = Opcode(0x04);
    pub const COMPARE: Opcode = Opcode(0x05);
    pub const WRITE_ZEROES: Opcode = Opcode(0x08);
    pub const DATASET_MANAGEMENT: Opcode = Opcode(0x09);
    pub const VERIFY: Opcode = Opcode(0x0c);
    pub const RESERVATION_REGISTER: Opcode = Opcode(0x0d);
    pub const RESERVATION_REPORT: Opcode = Opcode(0x0e);
    pub const RESERVATION_ACQUIRE: Opcode = Opcode(0x11);
    pub const RESERVATION_RELEASE: Opcode = Opcode(0x15);
    pub const COPY: Opcode = Opcode(0x19);
}

/// Names every namespace (NSID FFFFFFFFh).
pub const NSID_ALL: u32 = 0xffff_ffff;

/// Dwords 10 to 12 of Read, Write, Compare, Verify, Write Zeroes and Write Uncorrectable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTransfer {
    /// The first block (SLBA).
    pub lba: u64,
    /// How many: 1 to 65536.
    pub blocks: u32,
    /// Dword 12 without its number of blocks.
    pub flags: u32,
}

impl BlockTransfer {
    /// Limited retry (LR).
    pub const LIMITED_RETRY: u32 = 1 << 31;
    /// Force unit access (FUA).
    pub const FUA: u32 = 1 << 30;
    /// Protection information action, and what to check of it (PRINFO).
    pub const PROTECTION: u32 = 0xf << 26;
    /// Of Write Zeroes: the blocks may be deallocated instead (DEAC).
    pub const DEALLOCATE: u32 = 1 << 25;
    /// Storage tag check (STC).
    pub const STORAGE_TAG: u32 = 1 << 24;

    /// What the command says.
    #[inline]
    pub fn from_sqe(sqe: &Sqe) -> Self {
        let flags = sqe.cdw(12);
        BlockTransfer { lba: sqe.cdw_pair(10), blocks: (flags & 0xffff) + 1, flags: flags & 0xffff_0000 }
    }

    /// Puts it into a command. `blocks` is 1 to 65536.
    pub fn write_to_sqe(self, sqe: &mut Sqe) {
        sqe.cdw10[0] = U32::new(self.lba as u32);
        sqe.cdw10[1] = U32::new((self.lba >> 32) as u32);
        sqe.cdw10[2] = U32::new(self.flags & 0xffff_0000 | (self.blocks - 1) & 0xffff);
    }

    /// Whether all of these flags are set.
    #[inline]
    pub fn has_flags(self, flag: u32) -> bool {
        self.flags & flag == flag
    }

    /// Whether the command wants anything of protection information, which formats without metadata
    /// do not have.
    #[inline]
    pub fn uses_protection(self) -> bool {
        self.flags & (Self::PROTECTION | Self::STORAGE_TAG) != 0
    }
}

/// Dataset Management (NVM Command Set §3.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// How many ranges follow: 1 to 256.
    pub ranges: u16,
    /// Deallocate them (AD).
    pub deallocate: bool,
}

impl DatasetManagement {
    /// What the command says.
    pub fn from_sqe(sqe: &Sqe) -> Self {
        DatasetManagement { ranges: (sqe.cdw(10) & 0xff) as u16 + 1, deallocate: sqe.cdw(11) & 4 != 0 }
    }

    /// Puts it into a command.
    pub fn write_to_sqe(self, sqe: &mut Sqe) {
        sqe.cdw10[0] = U32::new(u32::from(self.ranges - 1) & 0xff);
        sqe.cdw10[1] = U32::new(if self.deallocate { 4 } else { 0 });
    }
}

/// One range of Dataset Management: 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DatasetRange {
    /// Hints on how it will be used.
    pub attributes: U32,
    /// Blocks; 0 is none.
    pub blocks: U32,
    /// The first block.
    pub lba: U64,
}

const _: () = assert!(size_of::<DatasetRange>() == 16);

/// Copy (NVM Command Set §3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The first block of the destination (SDLBA).
    pub lba: u64,
    /// How many source ranges follow: 1 to 256 (NR).
    pub ranges: u16,
    /// Their format (DESFMT).
    pub format: u8,
    /// Force unit access.
    pub fua: bool,
    /// Whether it wants anything of protection information.
    pub protects: bool,
}

impl Copy {
    /// What the command says.
    pub fn from_sqe(sqe: &Sqe) -> Self {
        let flags = sqe.cdw(12);
        Copy {
            lba: sqe.cdw_pair(10),
            ranges: (flags & 0xff) as u16 + 1,
            format: (flags >> 8) as u8 & 0xf,
            fua: flags & BlockTransfer::FUA != 0,
            // PRINFOR in 15:12, STCW and STCR in 25:24, PRINFOW in 29:26.
            protects: flags & (0xf << 12 | 0x3 << 24 | BlockTransfer::PROTECTION) != 0,
        }
    }

    /// Puts it into a command, without protection information.
    pub fn write_to_sqe(self, sqe: &mut Sqe) {
        let fua = if self.fua { BlockTransfer::FUA } else { 0 };
        sqe.cdw10[0] = U32::new(self.lba as u32);
        sqe.cdw10[1] = U32::new((self.lba >> 32) as u32);
        sqe.cdw10[2] = U32::new(u32::from(self.ranges - 1) & 0xff | u32::from(self.format & 0xf) << 8 | fua);
    }
}

/// One source range of Copy, format 0h: 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CopyRange {
    /// Reserved.
    pub reserved: [u8; 8],
    /// The first block (SLBA).
    pub lba: U64,
    /// How many, less one (NLB).
    pub last: U16,
    /// Reserved.
    pub reserved_18: [u8; 6],
    /// Expected reference, application tag mask and application tag.
    pub tags: [u8; 8],
}

const _: () = assert!(size_of::<CopyRange>() == 32);

impl CopyRange {
    /// This many blocks, 1 to 65536, from `lba` on.
    pub fn new(lba: u64, blocks: u32) -> Self {
        CopyRange {
            reserved: [0; 8],
            lba: U64::new(lba),
            last: U16::new((blocks - 1) as u16),
            reserved_18: [0; 6],
            tags: [0; 8],
        }
    }

    /// How many blocks: 1 to 65536.
    pub fn blocks(&self) -> u32 {
        u32::from(self.last.get()) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sqe(opcode: Opcode) -> Sqe {
        let mut sqe = Sqe::read_from_bytes(&[0; 64]).unwrap();
        sqe.opcode = opcode;
        sqe
    }

    /// From the fields' places in NVM Command Set 1.0, figures 41 to 47 (Read).
    #[test]
    fn a_transfer_is_in_dwords_10_to_12() {
        let mut read = sqe(Opcode::READ);
        let transfer = BlockTransfer { lba: 0x0102_0304_0506_0708, blocks: 65536, flags: BlockTransfer::FUA };
        transfer.write_to_sqe(&mut read);
        let bytes = read.as_bytes();
        assert_eq!(bytes[40..52], [8, 7, 6, 5, 4, 3, 2, 1, 0xff, 0xff, 0, 0x40]);
        assert_eq!(BlockTransfer::from_sqe(&read), transfer);
        assert!(
            transfer.has_flags(BlockTransfer::FUA)
                && !transfer.has_flags(BlockTransfer::DEALLOCATE)
                && !transfer.uses_protection()
        );
        for bit in [24, 26, 27, 28, 29] {
            assert!(BlockTransfer { flags: 1 << bit, ..transfer }.uses_protection());
        }
    }

    /// Range as in NVM Command Set 1.0, figure 39: attributes, length, first block.
    #[test]
    fn ranges_of_dataset_management() {
        let mut dsm = sqe(Opcode::DATASET_MANAGEMENT);
        let words = DatasetManagement { ranges: 256, deallocate: true };
        words.write_to_sqe(&mut dsm);
        assert_eq!(dsm.as_bytes()[40..48], [0xff, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(DatasetManagement::from_sqe(&dsm), words);
        let bytes = [0x10, 0, 0, 1, 8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let range = DatasetRange::read_from_bytes(&bytes).unwrap();
        assert_eq!((range.attributes.get(), range.blocks.get()), (0x0100_0010, 8));
        assert_eq!(range.lba.get(), 0x0807_0605_0403_0201);
    }

    /// Source range as in NVM Command Set 1.0, figure 33 (format 0h).
    #[test]
    fn ranges_of_copy() {
        let mut copy = sqe(Opcode::COPY);
        let words = Copy { lba: 1 << 40, ranges: 2, format: 1, fua: true, protects: false };
        words.write_to_sqe(&mut copy);
        assert_eq!(copy.as_bytes()[40..52], [0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0x40]);
        assert_eq!(Copy::from_sqe(&copy), words);
        let mut bytes = [0; 32];
        bytes[8..18].copy_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 7, 0]);
        assert_eq!(CopyRange::read_from_bytes(&bytes).unwrap(), CopyRange::new(9, 8));
        for bit in [12, 15, 24, 25, 26, 29] {
            copy.cdw10[2] = U32::new(1 << bit);
            assert!(Copy::from_sqe(&copy).protects, "{bit}");
        }
    }
}
