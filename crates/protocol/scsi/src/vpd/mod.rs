//! Vital product data (SPC-4 §7.8, SBC-3 §6.6): encoders from plain structs, and decoders for what an initiator
//! reads.
//!
//! Each page is written by [`write_page`], which puts the header and counts its length, so that a truncated transfer
//! still says how long the page is.

mod block;
mod identification;
#[cfg(test)]
mod tests;
mod third_party_copy;

use crate::inquiry::Peripheral;
use crate::wire::{Writer, be16, flag_bit};
pub use block::{
    BlockDeviceCharacteristics, BlockLimits, LogicalBlockProvisioning, ProvisioningType, ReadAfterErase,
};
pub use identification::{
    Association, CodeSet, Designator, DesignatorType, TargetPort, UnitNames, decode_designators,
    encode_identification, naa_locally_assigned, naa_registered_extended,
};
pub use third_party_copy::encode_third_party_copy;

/// Supported pages.
pub const SUPPORTED_PAGES: u8 = 0x00;
/// Unit serial number.
pub const UNIT_SERIAL_NUMBER: u8 = 0x80;
/// Device identification.
pub const DEVICE_IDENTIFICATION: u8 = 0x83;
/// Extended INQUIRY data.
pub const EXTENDED_INQUIRY: u8 = 0x86;
/// Mode page policy.
pub const MODE_PAGE_POLICY: u8 = 0x87;
/// SCSI ports.
pub const SCSI_PORTS: u8 = 0x88;
/// Third-party copy.
pub const THIRD_PARTY_COPY: u8 = 0x8f;
/// Block limits.
pub const BLOCK_LIMITS: u8 = 0xb0;
/// Block device characteristics.
pub const BLOCK_DEVICE_CHARACTERISTICS: u8 = 0xb1;
/// Logical block provisioning.
pub const PROVISIONING: u8 = 0xb2;

/// Writes the header of a page, what `body` puts, and the length.
pub fn write_page(peripheral: Peripheral, code: u8, w: &mut Writer<'_>, body: impl FnOnce(&mut Writer<'_>)) {
    let start = w.len();
    w.put(&[peripheral.0, code, 0, 0]);
    body(w);
    w.patch_length_u16(start + 2);
}

/// The body of a page that has the code `code`, as far as it was transferred.
pub fn page_body(code: u8, data: &[u8]) -> Option<&[u8]> {
    let header: &[u8; 4] = data.first_chunk()?;
    if header[1] != code {
        return None;
    }
    let end = (4 + usize::from(be16(header, 2))).min(data.len());
    data.get(4..end)
}

/// Page 00h: the codes of all pages, which must ascend.
pub fn encode_supported_pages(peripheral: Peripheral, codes: &[u8], w: &mut Writer<'_>) {
    assert!(codes.is_sorted_by(|a, b| a < b), "page codes ascend");
    write_page(peripheral, SUPPORTED_PAGES, w, |w| w.put(codes));
}

/// Page 80h: the serial number in ASCII.
pub fn encode_serial_number(peripheral: Peripheral, number: &[u8], w: &mut Writer<'_>) {
    write_page(peripheral, UNIT_SERIAL_NUMBER, w, |w| w.padded_ascii(number, number.len()));
}

/// Page 86h.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtendedInquiry {
    /// V_SUP: there is a volatile cache.
    pub volatile_cache: bool,
    /// MAXIMUM SUPPORTED SENSE DATA LENGTH in bytes.
    pub sense_len_max: u8,
}

impl ExtendedInquiry {
    /// Writes the page: simple, ordered and head of queue tasks, no protection, no grouping.
    pub fn encode(&self, peripheral: Peripheral, w: &mut Writer<'_>) {
        write_page(peripheral, EXTENDED_INQUIRY, w, |w| {
            w.u8(0);
            w.u8(flag_bit(true, 2) | flag_bit(true, 1) | flag_bit(true, 0));
            w.u8(flag_bit(self.volatile_cache, 0));
            w.zeros(6);
            w.u8(self.sense_len_max);
            w.zeros(50);
        });
    }
}

/// Page 87h: all mode pages are shared by all I_T nexuses.
pub fn encode_mode_page_policy(peripheral: Peripheral, w: &mut Writer<'_>) {
    const ALL_PAGES_SHARED: [u8; 4] = [0x3f, 0xff, 0, 0];
    write_page(peripheral, MODE_PAGE_POLICY, w, |w| w.put(&ALL_PAGES_SHARED));
}

/// Page 88h: relative port identifier and name of each target port.
pub fn encode_scsi_ports<'a>(
    peripheral: Peripheral,
    ports: impl Iterator<Item = TargetPort<'a>>,
    w: &mut Writer<'_>,
) {
    write_page(peripheral, SCSI_PORTS, w, |w| {
        for port in ports {
            w.zeros(2);
            w.u16(port.relative);
            w.zeros(6);
            let len_at = w.len();
            w.u16(0);
            port.put_name(w);
            w.patch_length_u16(len_at);
        }
    });
}
