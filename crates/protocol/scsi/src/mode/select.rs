//! The parameter list of MODE SELECT (SPC-4 §6.9): parsed and checked as a whole before anything changes.

use super::pages::PageImage;
use super::{
    LONG_DESCRIPTOR_LEN, MEDIUM_TYPE, ModeHeader, ModeParameters, SHORT_DESCRIPTOR_LEN, block_count_u32,
};
use crate::cdb::{ModeForm, ModeSelect};
use crate::sense::Sense;
use crate::wire::{be16, be24, be32, be64, bit, bits, top_bit};

/// The header of a mode parameter list or of MODE SENSE data.
pub(super) struct ModeListHeader {
    pub(super) len: usize,
    pub(super) medium_type: u8,
    pub(super) device_specific: u8,
    pub(super) long_lba: bool,
    pub(super) descriptor_len: usize,
}

impl ModeListHeader {
    pub(super) fn parse(form: ModeForm, list: &[u8]) -> Result<ModeListHeader, Sense> {
        match form {
            ModeForm::Six => {
                let h: &[u8; 4] = list.first_chunk().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
                Ok(ModeListHeader {
                    len: 4,
                    medium_type: h[1],
                    device_specific: h[2],
                    long_lba: false,
                    descriptor_len: usize::from(h[3]),
                })
            }
            ModeForm::Ten => {
                let h: &[u8; 8] = list.first_chunk().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
                Ok(ModeListHeader {
                    len: 8,
                    medium_type: h[2],
                    device_specific: h[3],
                    long_lba: bit(h[4], 0),
                    descriptor_len: usize::from(be16(h, 6)),
                })
            }
        }
    }

    /// Offset of MEDIUM TYPE, and of the last byte of BLOCK DESCRIPTOR LENGTH.
    fn field_offsets(form: ModeForm) -> (usize, usize) {
        match form {
            ModeForm::Six => (1, 3),
            ModeForm::Ten => (2, 6),
        }
    }
}

/// Code and length of a page.
pub(super) struct PageHeader {
    pub(super) page: u8,
    pub(super) subpage: u8,
    /// Bytes of the page, header included.
    pub(super) len: usize,
}

impl PageHeader {
    /// `None`: too short for a header.
    pub(super) fn parse(bytes: &[u8]) -> Option<PageHeader> {
        let first = *bytes.first()?;
        let page = bits(first, 5, 0);
        if bit(first, 6) {
            let h: &[u8; 4] = bytes.first_chunk()?;
            return Some(PageHeader { page, subpage: h[1], len: 4 + usize::from(be16(h, 2)) });
        }
        Some(PageHeader { page, subpage: 0, len: 2 + usize::from(*bytes.get(1)?) })
    }
}

/// Reads a MODE SELECT list and gives the parameters as they are to be; the caller compares them with the
/// current ones to learn what changed. Nothing changes when any part of the list is refused.
pub fn parse_mode_select(
    command: &ModeSelect,
    list: &[u8],
    device: &ModeHeader,
    current: &ModeParameters,
) -> Result<ModeParameters, Sense> {
    if command.save {
        return Err(Sense::invalid_cdb_field(1, Some(0)));
    }
    if command.list_len == 0 {
        return Ok(*current);
    }
    if !command.page_format {
        return Err(Sense::invalid_cdb_field(1, Some(4)));
    }
    let list = list.get(..usize::from(command.list_len)).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    let header = ModeListHeader::parse(command.form, list)?;
    let (medium_at, descriptor_len_at) = ModeListHeader::field_offsets(command.form);
    if header.medium_type != MEDIUM_TYPE {
        return Err(Sense::invalid_list_field(medium_at, None));
    }
    let descriptor = list.get(header.len..header.len + header.descriptor_len);
    let descriptor = descriptor.ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    let refused = Sense::invalid_list_field(descriptor_len_at, None);
    check_block_descriptor(descriptor, header.long_lba, header.len, device)
        .map_err(|at| at.unwrap_or(refused))?;
    parse_pages(list, header.len + header.descriptor_len, current)
}

/// A block descriptor may only repeat what is so. The error is the field, or `None` for a wrong length.
fn check_block_descriptor(
    descriptor: &[u8],
    long: bool,
    at: usize,
    device: &ModeHeader,
) -> Result<(), Option<Sense>> {
    let (blocks_fit, block_len, len_at) = match (descriptor.len(), long) {
        (0, _) => return Ok(()),
        (SHORT_DESCRIPTOR_LEN, false) => {
            let blocks = be32(descriptor, 0);
            (blocks == 0 || blocks == block_count_u32(device) || blocks == u32::MAX, be24(descriptor, 5), 5)
        }
        (LONG_DESCRIPTOR_LEN, true) => {
            let blocks = be64(descriptor, 0);
            (blocks == 0 || blocks == device.blocks || blocks == u64::MAX, be32(descriptor, 12), 12)
        }
        _ => return Err(None),
    };
    if !blocks_fit {
        return Err(Some(Sense::invalid_list_field(at, None)));
    }
    if block_len != device.block_len {
        return Err(Some(Sense::invalid_list_field(at + len_at, None)));
    }
    Ok(())
}

fn parse_pages(list: &[u8], start: usize, current: &ModeParameters) -> Result<ModeParameters, Sense> {
    let mut changed = *current;
    let mut at = start;
    while let Some(rest @ [first, ..]) = list.get(at..) {
        let header = PageHeader::parse(rest).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let (Some(values), Some(mask)) = (
            PageImage::current_values(header.page, header.subpage, current),
            PageImage::changeable_mask(header.page, header.subpage),
        ) else {
            return Err(Sense::invalid_list_field(at, Some(5)));
        };
        if header.len != values.bytes().len() {
            return Err(Sense::invalid_list_field(at + if bit(*first, 6) { 2 } else { 1 }, None));
        }
        let page = rest.get(..header.len).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        // Of the header only PS is not matched yet, and it means nothing here.
        let body = if bit(*first, 6) { 4 } else { 2 };
        let bytes = page.iter().zip(values.bytes()).zip(mask.bytes());
        for (offset, ((given, value), mask)) in bytes.enumerate().skip(body) {
            let differs = (given ^ value) & !mask;
            if differs != 0 {
                return Err(Sense::invalid_list_field(at + offset, Some(top_bit(differs))));
            }
        }
        changed.apply_page(header.page, header.subpage, page);
        at += header.len;
    }
    Ok(changed)
}
