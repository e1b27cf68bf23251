//! Standard INQUIRY data (SPC-4 §6.6.2).

use crate::wire::{Writer, bit, bits, flag_bit, place_bits};

/// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE: the first byte of all INQUIRY data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peripheral(pub u8);

impl Peripheral {
    /// A direct access block device that is there.
    pub const DISK: Peripheral = Peripheral(0x00);
    /// A well known logical unit (device type 1Eh).
    pub const WELL_KNOWN: Peripheral = Peripheral(0x1e);
    /// No such logical unit, and never one (qualifier 011b, type 1Fh).
    pub const NONE: Peripheral = Peripheral(0x7f);

    /// Whether a device is connected there (PERIPHERAL QUALIFIER 000b).
    pub const fn is_connected(self) -> bool {
        bits(self.0, 7, 5) == 0
    }

    /// PERIPHERAL DEVICE TYPE.
    pub const fn device_type(self) -> u8 {
        bits(self.0, 4, 0)
    }
}

/// TPGS: which forms of asymmetric access the logical unit has (SPC-4 §5.15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortGroupSupport {
    /// 00b.
    None,
    /// 01b: the target changes states.
    Implicit,
    /// 10b: SET TARGET PORT GROUPS does.
    Explicit,
    /// 11b.
    Both,
}

/// A version descriptor (SPC-4 §6.6.2, table of version descriptors).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VersionDescriptor(pub u16);

impl VersionDescriptor {
    /// SAM-5, no version claimed.
    pub const SAM_5: VersionDescriptor = VersionDescriptor(0x00a0);
    /// SPC-4, no version claimed.
    pub const SPC_4: VersionDescriptor = VersionDescriptor(0x0460);
    /// SBC-3, no version claimed.
    pub const SBC_3: VersionDescriptor = VersionDescriptor(0x04c0);
    /// iSCSI, no version claimed.
    pub const ISCSI: VersionDescriptor = VersionDescriptor(0x0960);
}

/// VERSION of a device that claims SPC-4.
pub const VERSION_SPC_4: u8 = 0x06;

/// What standard INQUIRY data says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StandardInquiry<'a> {
    /// What stands behind the logical unit number.
    pub peripheral: Peripheral,
    /// RMB: the medium is removable.
    pub removable: bool,
    /// TPGS.
    pub port_groups: PortGroupSupport,
    /// 3PC: EXTENDED COPY is there.
    pub third_party_copy: bool,
    /// MULTIP: more than one target port.
    pub multi_port: bool,
    /// T10 VENDOR IDENTIFICATION, at most 8 bytes.
    pub vendor: &'a [u8],
    /// PRODUCT IDENTIFICATION, at most 16 bytes.
    pub product: &'a [u8],
    /// PRODUCT REVISION LEVEL, at most 4 bytes.
    pub revision: &'a [u8],
}

/// Bytes of standard data, version descriptors included.
pub const STANDARD_LEN: usize = 74;

impl StandardInquiry<'_> {
    /// Writes the data: 74 bytes, with CMDQUE and HISUP set and the version descriptors of this crate.
    pub fn encode(&self, w: &mut Writer<'_>) {
        w.u8(self.peripheral.0);
        w.u8(flag_bit(self.removable, 7));
        w.u8(VERSION_SPC_4);
        w.u8(HISUP | RESPONSE_DATA_FORMAT);
        w.u8((STANDARD_LEN - 5) as u8);
        w.u8(place_bits(self.port_groups.code(), 5, 4) | flag_bit(self.third_party_copy, 3));
        w.u8(flag_bit(self.multi_port, 4));
        w.u8(CMDQUE);
        w.padded_ascii(self.vendor, 8);
        w.padded_ascii(self.product, 16);
        w.padded_ascii(self.revision, 4);
        w.zeros(22);
        for version in [
            VersionDescriptor::SAM_5,
            VersionDescriptor::SPC_4,
            VersionDescriptor::SBC_3,
            VersionDescriptor::ISCSI,
        ] {
            w.u16(version.0);
        }
        w.zeros(8);
    }
}

impl<'a> StandardInquiry<'a> {
    /// Reads the fields of this type; `None`: fewer than 36 bytes.
    pub fn decode(data: &'a [u8]) -> Option<Self> {
        let head: &'a [u8; 36] = data.first_chunk()?;
        Some(StandardInquiry {
            peripheral: Peripheral(head[0]),
            removable: bit(head[1], 7),
            port_groups: PortGroupSupport::from_code(bits(head[5], 5, 4)),
            third_party_copy: bit(head[5], 3),
            multi_port: bit(head[6], 4),
            vendor: head[8..16].trim_ascii_end(),
            product: head[16..32].trim_ascii_end(),
            revision: head[32..36].trim_ascii_end(),
        })
    }
}

const HISUP: u8 = 0x10;
const RESPONSE_DATA_FORMAT: u8 = 2;
const CMDQUE: u8 = 0x02;

impl PortGroupSupport {
    const fn code(self) -> u8 {
        match self {
            PortGroupSupport::None => 0,
            PortGroupSupport::Implicit => 1,
            PortGroupSupport::Explicit => 2,
            PortGroupSupport::Both => 3,
        }
    }

    const fn from_code(code: u8) -> Self {
        match code {
            0 => PortGroupSupport::None,
            1 => PortGroupSupport::Implicit,
            2 => PortGroupSupport::Explicit,
            _ => PortGroupSupport::Both,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: StandardInquiry<'static> = StandardInquiry {
        peripheral: Peripheral::DISK,
        removable: true,
        port_groups: PortGroupSupport::Implicit,
        third_party_copy: true,
        multi_port: false,
        vendor: b"BLOCKWIR",
        product: b"Volume",
        revision: b"0.1",
    };

    #[test]
    fn standard_data() {
        let mut out = [0xee; 80];
        let mut w = Writer::new(&mut out);
        DISK.encode(&mut w);
        assert_eq!(w.len(), STANDARD_LEN);
        assert_eq!(out[..8], [0, 0x80, 6, 0x12, 69, 0x18, 0, 2]);
        assert_eq!(&out[8..36], b"BLOCKWIRVolume          0.1 ");
        assert!(out[36..58].iter().all(|b| *b == 0));
        assert_eq!(out[58..66], [0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0, 0x09, 0x60]);
        assert_eq!(out[74..], [0xee; 6]);
        assert_eq!(StandardInquiry::decode(&out), Some(DISK));
        assert_eq!(StandardInquiry::decode(&out[..35]), None);
    }

    #[test]
    fn truncation_keeps_the_additional_length() {
        for allocation in 0..=STANDARD_LEN {
            let mut out = [0xee; 80];
            let mut w = Writer::with_allocation_length(&mut out, allocation);
            DISK.encode(&mut w);
            assert_eq!(w.written_len(), allocation);
            assert!(out[allocation..].iter().all(|b| *b == 0xee));
            assert!(allocation < 5 || out[4] == 69);
        }
    }
}
