//! Pages B0h block limits, B1h block device characteristics, B2h logical block provisioning (SBC-3 §6.6,
//! SBC-4 for the atomic limits).

use super::{BLOCK_DEVICE_CHARACTERISTICS, BLOCK_LIMITS, PROVISIONING, page_body, write_page};
use crate::inquiry::Peripheral;
use crate::wire::{Writer, be16, be32, be64, bit, bits, copy_truncated, flag_bit, place_bits};

/// Length of pages B0h and B1h after the header.
const BLOCK_PAGE_LEN: usize = 0x3c;

/// Page B0h. All lengths in blocks; 0 means "not reported" unless said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockLimits {
    /// WSNZ: WRITE SAME refuses 0 blocks.
    pub write_same_non_zero: bool,
    /// MAXIMUM COMPARE AND WRITE LENGTH; 0: not supported.
    pub compare_and_write_max: u8,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY.
    pub granularity: u16,
    /// MAXIMUM TRANSFER LENGTH.
    pub transfer_max: u32,
    /// OPTIMAL TRANSFER LENGTH.
    pub transfer_optimal: u32,
    /// MAXIMUM PREFETCH LENGTH.
    pub prefetch_max: u32,
    /// MAXIMUM UNMAP LBA COUNT; 0: UNMAP is not supported.
    pub unmap_blocks_max: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT; 0: UNMAP is not supported.
    pub unmap_descriptors_max: u32,
    /// OPTIMAL UNMAP GRANULARITY.
    pub unmap_granularity: u32,
    /// UNMAP GRANULARITY ALIGNMENT, 31 bits; `None`: UGAVALID = 0.
    pub unmap_alignment: Option<u32>,
    /// MAXIMUM WRITE SAME LENGTH.
    pub write_same_max: u64,
    /// MAXIMUM ATOMIC TRANSFER LENGTH; 0: WRITE ATOMIC is not supported.
    pub atomic_max: u32,
    /// ATOMIC ALIGNMENT.
    pub atomic_alignment: u32,
    /// ATOMIC TRANSFER LENGTH GRANULARITY.
    pub atomic_granularity: u32,
    /// MAXIMUM ATOMIC TRANSFER LENGTH WITH ATOMIC BOUNDARY.
    pub atomic_max_with_boundary: u32,
    /// MAXIMUM ATOMIC BOUNDARY SIZE.
    pub atomic_boundary_max: u32,
}

impl BlockLimits {
    /// Writes the page.
    pub fn encode(&self, peripheral: Peripheral, w: &mut Writer<'_>) {
        write_page(peripheral, BLOCK_LIMITS, w, |w| {
            w.u8(flag_bit(self.write_same_non_zero, 0));
            w.u8(self.compare_and_write_max);
            w.u16(self.granularity);
            w.u32(self.transfer_max);
            w.u32(self.transfer_optimal);
            w.u32(self.prefetch_max);
            w.u32(self.unmap_blocks_max);
            w.u32(self.unmap_descriptors_max);
            w.u32(self.unmap_granularity);
            w.u32(self.unmap_alignment.map_or(0, |alignment| alignment | UGAVALID));
            w.u64(self.write_same_max);
            w.u32(self.atomic_max);
            w.u32(self.atomic_alignment);
            w.u32(self.atomic_granularity);
            w.u32(self.atomic_max_with_boundary);
            w.u32(self.atomic_boundary_max);
        });
    }

    /// Reads the page; fields that an older or shorter page lacks are 0.
    pub fn decode(data: &[u8]) -> Option<BlockLimits> {
        let mut d = [0; BLOCK_PAGE_LEN];
        copy_truncated(&mut d, page_body(BLOCK_LIMITS, data)?);
        let alignment = be32(&d, 28);
        Some(BlockLimits {
            write_same_non_zero: bit(d[0], 0),
            compare_and_write_max: d[1],
            granularity: be16(&d, 2),
            transfer_max: be32(&d, 4),
            transfer_optimal: be32(&d, 8),
            prefetch_max: be32(&d, 12),
            unmap_blocks_max: be32(&d, 16),
            unmap_descriptors_max: be32(&d, 20),
            unmap_granularity: be32(&d, 24),
            unmap_alignment: (alignment & UGAVALID != 0).then_some(alignment & !UGAVALID),
            write_same_max: be64(&d, 32),
            atomic_max: be32(&d, 40),
            atomic_alignment: be32(&d, 44),
            atomic_granularity: be32(&d, 48),
            atomic_max_with_boundary: be32(&d, 52),
            atomic_boundary_max: be32(&d, 56),
        })
    }
}

const UGAVALID: u32 = 1 << 31;

/// WABEREQ: what reads of blocks give after a block erase, until they are written (SBC-3 §6.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadAfterErase(pub u8);

impl ReadAfterErase {
    /// 00b: not said; without block erase it must be this.
    pub const UNSPECIFIED: ReadAfterErase = ReadAfterErase(0);
    /// 01b: reads succeed, with any data.
    pub const READABLE: ReadAfterErase = ReadAfterErase(1);
    /// 10b: reads fail until the block is written.
    pub const WRITE_FIRST: ReadAfterErase = ReadAfterErase(2);
}

/// Page B1h.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockDeviceCharacteristics {
    /// MEDIUM ROTATION RATE: 0 not reported, 1 not rotating, else revolutions per minute.
    pub rotation_rate: u16,
    /// WABEREQ.
    pub after_block_erase: ReadAfterErase,
    /// NOMINAL FORM FACTOR, 0..=15; 0 not reported.
    pub form_factor: u8,
    /// FUAB: SYNCHRONIZE CACHE and FUA behave as SBC-3 says.
    pub fua_behavior: bool,
    /// VBULS: VERIFY of unmapped blocks behaves as SBC-3 says.
    pub verify_unmapped: bool,
}

impl BlockDeviceCharacteristics {
    /// Writes the page.
    pub fn encode(&self, peripheral: Peripheral, w: &mut Writer<'_>) {
        write_page(peripheral, BLOCK_DEVICE_CHARACTERISTICS, w, |w| {
            w.u16(self.rotation_rate);
            w.u8(0);
            w.u8(place_bits(self.after_block_erase.0, 7, 6) | place_bits(self.form_factor, 3, 0));
            w.u8(flag_bit(self.fua_behavior, 1) | flag_bit(self.verify_unmapped, 0));
            w.zeros(BLOCK_PAGE_LEN - 5);
        });
    }

    /// Reads the page; `None`: too short.
    pub fn decode(data: &[u8]) -> Option<BlockDeviceCharacteristics> {
        let d: &[u8; 5] = page_body(BLOCK_DEVICE_CHARACTERISTICS, data)?.first_chunk()?;
        Some(BlockDeviceCharacteristics {
            rotation_rate: be16(d, 0),
            after_block_erase: ReadAfterErase(bits(d[3], 7, 6)),
            form_factor: bits(d[3], 3, 0),
            fua_behavior: bit(d[4], 1),
            verify_unmapped: bit(d[4], 0),
        })
    }
}

/// PROVISIONING TYPE of page B2h.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProvisioningType(pub u8);

impl ProvisioningType {
    /// Fully provisioned, or not reported.
    pub const FULL: ProvisioningType = ProvisioningType(0);
    /// Resource provisioned.
    pub const RESOURCE: ProvisioningType = ProvisioningType(1);
    /// Thin provisioned.
    pub const THIN: ProvisioningType = ProvisioningType(2);
}

/// Page B2h.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogicalBlockProvisioning {
    /// THRESHOLD EXPONENT; 0: no thresholds.
    pub threshold_exponent: u8,
    /// LBPU: UNMAP is supported.
    pub unmap: bool,
    /// LBPWS: WRITE SAME(16) unmaps.
    pub write_same_16: bool,
    /// LBPWS10: WRITE SAME(10) unmaps.
    pub write_same_10: bool,
    /// LBPRZ = 001b: unmapped blocks read as zeros.
    pub reads_zeros: bool,
    /// ANC_SUP: anchored blocks are supported.
    pub anchor: bool,
    /// PROVISIONING TYPE.
    pub kind: ProvisioningType,
}

impl LogicalBlockProvisioning {
    /// Writes the page, without a provisioning group descriptor.
    pub fn encode(&self, peripheral: Peripheral, w: &mut Writer<'_>) {
        write_page(peripheral, PROVISIONING, w, |w| {
            w.u8(self.threshold_exponent);
            w.u8(flag_bit(self.unmap, 7)
                | flag_bit(self.write_same_16, 6)
                | flag_bit(self.write_same_10, 5)
                | flag_bit(self.reads_zeros, 2)
                | flag_bit(self.anchor, 1));
            w.u8(place_bits(self.kind.0, 2, 0));
            w.u8(0);
        });
    }

    /// Reads the page; `None`: too short.
    pub fn decode(data: &[u8]) -> Option<LogicalBlockProvisioning> {
        let d: &[u8; 3] = page_body(PROVISIONING, data)?.first_chunk()?;
        Some(LogicalBlockProvisioning {
            threshold_exponent: d[0],
            unmap: bit(d[1], 7),
            write_same_16: bit(d[1], 6),
            write_same_10: bit(d[1], 5),
            reads_zeros: bits(d[1], 4, 2) == 1,
            anchor: bit(d[1], 1),
            kind: ProvisioningType(bits(d[2], 2, 0)),
        })
    }
}
