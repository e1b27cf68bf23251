//! Mode parameters (SPC-4 §7.5, SBC-3 §6.4): MODE SENSE data and MODE SELECT lists.
//!
//! The pages 01h, 08h, 0Ah, 0Ah/01h and 1Ch exist, and 1Ch/02h of a thin volume. Their images are made from [`ModeParameters`], so current and
//! default values, what MODE SELECT may change and what the device server does come from one place. Saved
//! pages are not kept. The write cache is reported as it is and cannot be changed.

mod pages;
mod select;
#[cfg(test)]
mod tests;

use crate::cdb::{ModeForm, ModeSense, PageControl};
use crate::sense::Sense;
use crate::wire::{Writer, be24, be32, be64, flag_bit};
use pages::{PageImage, SUPPORTED_PAGES};
pub use select::parse_mode_select;

/// Read-write error recovery.
pub const ERROR_RECOVERY: u8 = 0x01;
/// Caching.
pub const CACHING: u8 = 0x08;
/// Control; subpage 01h is control extension.
pub const CONTROL: u8 = 0x0a;
/// Informational exceptions control.
pub const INFORMATIONAL_EXCEPTIONS: u8 = 0x1c;
/// All pages.
pub const ALL_PAGES: u8 = 0x3f;
/// All subpages.
pub const ALL_SUBPAGES: u8 = 0xff;

/// What the mode pages say about a logical unit; the rest of the pages is constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModeParameters {
    /// WCE: a write may be answered before it is on stable storage. Not changeable.
    pub write_cache: bool,
    /// D_SENSE: sense data in descriptor format. Changeable.
    pub descriptor_sense: bool,
    /// SWP: software write protect. Changeable.
    pub write_protect: bool,
    /// TAS: commands aborted by another I_T nexus end with TASK ABORTED. Changeable.
    pub task_aborted_status: bool,
    /// IALUAE: implicit changes of asymmetric access states happen. Not changeable.
    pub implicit_access: bool,
    /// What the logical block provisioning page says; `None`: the volume is not thin, and has no such page.
    pub provisioning: Option<ProvisioningThreshold>,
}

/// The threshold of the logical block provisioning page. Not changeable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProvisioningThreshold {
    /// From how many used threshold sets on initiators are told; `None`: they are not.
    pub used_max: Option<u32>,
}

/// Where the threshold stands in its page: what the sense data of THIN PROVISIONING SOFT THRESHOLD REACHED points at
/// (SBC-3 §4.7.3.7.4).
pub const THRESHOLD_DESCRIPTOR_AT: u64 = 16;

/// What the mode parameter header and block descriptor say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModeHeader {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes per block.
    pub block_len: u32,
    /// The medium is write protected for a reason other than SWP.
    pub write_protected: bool,
}

/// Writes MODE SENSE data. Refused: saved values, and pages that do not exist.
pub fn encode_mode_sense(
    request: &ModeSense,
    device: &ModeHeader,
    current: &ModeParameters,
    default: &ModeParameters,
    w: &mut Writer<'_>,
) -> Result<(), Sense> {
    check_page(request, current)?;
    let image = |page, subpage| match request.control {
        PageControl::Current => Ok(PageImage::current_values(page, subpage, current)),
        PageControl::Changeable => Ok(PageImage::changeable_mask(page, subpage)),
        PageControl::Default => Ok(PageImage::current_values(page, subpage, default)),
        PageControl::Saved => Err(Sense::SAVING_PARAMETERS_NOT_SUPPORTED),
    };
    let write_protected = device.write_protected || current.write_protect;
    let start = w.len();
    put_header(request, device, write_protected, w);
    for &(page, subpage) in SUPPORTED_PAGES.iter().filter(|at| is_page_requested(request, **at)) {
        let exists = PageImage::current_values(page, subpage, current).is_some();
        if let Some(image) = image(page, subpage)?.filter(|_| exists) {
            w.put(image.bytes());
        }
    }
    match request.form {
        // All pages together are far below 255 bytes, which the tests hold.
        ModeForm::Six => w.patch(start, &[(w.len() - start - 1) as u8]),
        ModeForm::Ten => w.patch_length_u16(start),
    }
    Ok(())
}

fn is_page_requested(request: &ModeSense, (page, subpage): (u8, u8)) -> bool {
    (request.page == ALL_PAGES || request.page == page)
        && (request.subpage == ALL_SUBPAGES || request.subpage == subpage)
}

fn check_page(request: &ModeSense, current: &ModeParameters) -> Result<(), Sense> {
    let exists = |page, subpage| PageImage::current_values(page, subpage, current).is_some();
    let is_meant = |at: &(u8, u8)| is_page_requested(request, *at) && exists(at.0, at.1);
    if SUPPORTED_PAGES.iter().any(is_meant) {
        return Ok(());
    }
    let page_exists =
        request.page == ALL_PAGES || SUPPORTED_PAGES.iter().any(|(page, _)| *page == request.page);
    Err(if page_exists { Sense::invalid_cdb_field(3, Some(7)) } else { Sense::invalid_cdb_field(2, Some(5)) })
}

/// The mode parameter header with its length still 0, and the block descriptor (SBC-3 §6.4.2).
fn put_header(request: &ModeSense, device: &ModeHeader, write_protected: bool, w: &mut Writer<'_>) {
    // WP and DPOFUA: DPO and FUA are understood by every command that has them.
    let specific = flag_bit(write_protected, 7) | flag_bit(true, 4);
    let long = request.long_lba && request.form == ModeForm::Ten;
    let descriptor_len = match (request.disable_block_descriptors, long) {
        (true, _) => 0,
        (false, true) => LONG_DESCRIPTOR_LEN,
        (false, false) => SHORT_DESCRIPTOR_LEN,
    };
    match request.form {
        ModeForm::Six => w.put(&[0, MEDIUM_TYPE, specific, descriptor_len as u8]),
        ModeForm::Ten => {
            w.put(&[0, 0, MEDIUM_TYPE, specific, flag_bit(long && descriptor_len != 0, 0), 0]);
            w.u16(descriptor_len as u16);
        }
    }
    match descriptor_len {
        LONG_DESCRIPTOR_LEN => {
            w.u64(device.blocks);
            w.u32(0);
            w.u32(device.block_len);
        }
        SHORT_DESCRIPTOR_LEN => {
            w.u32(block_count_u32(device));
            w.u8(0);
            w.u24(device.block_len);
        }
        _ => {}
    }
}

/// More blocks than 32 bits can say are FFFFFFFFh.
fn block_count_u32(device: &ModeHeader) -> u32 {
    u32::try_from(device.blocks).unwrap_or(u32::MAX)
}

const MEDIUM_TYPE: u8 = 0;
const SHORT_DESCRIPTOR_LEN: usize = 8;
const LONG_DESCRIPTOR_LEN: usize = 16;

/// MODE SENSE data as received, cut into its parts: for initiators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodedModeSense<'a> {
    /// WP: the medium is write protected.
    pub write_protected: bool,
    /// DPOFUA: DPO and FUA are understood.
    pub dpo_fua: bool,
    /// Number of blocks and bytes per block, if there was a block descriptor.
    pub blocks: Option<(u64, u32)>,
    /// The pages, see [`find_page`].
    pub pages: &'a [u8],
}

/// Cuts MODE SENSE data; `None`: too short for what its header says.
pub fn decode_mode_sense(form: ModeForm, data: &[u8]) -> Option<DecodedModeSense<'_>> {
    let header = select::ModeListHeader::parse(form, data).ok()?;
    let (descriptor, pages) = data.get(header.len..)?.split_at_checked(header.descriptor_len)?;
    let blocks = match (descriptor.len(), header.long_lba) {
        (LONG_DESCRIPTOR_LEN, true) => Some((be64(descriptor, 0), be32(descriptor, 12))),
        (SHORT_DESCRIPTOR_LEN, false) => Some((u64::from(be32(descriptor, 0)), be24(descriptor, 5))),
        _ => None,
    };
    let specific = header.device_specific;
    let bit = crate::wire::bit;
    Some(DecodedModeSense { write_protected: bit(specific, 7), dpo_fua: bit(specific, 4), blocks, pages })
}

/// WCE of a caching page as [`find_page`] gives it; `None`: too short.
pub fn write_cache_enabled(caching: &[u8]) -> Option<bool> {
    caching.get(2).map(|byte| crate::wire::bit(*byte, 2))
}

/// The bytes of one page, header included, among the pages of [`DecodedModeSense`].
pub fn find_page(pages: &[u8], page: u8, subpage: u8) -> Option<&[u8]> {
    let mut rest = pages;
    loop {
        let header = select::PageHeader::parse(rest)?;
        let (bytes, next) = rest.split_at_checked(header.len)?;
        if (header.page, header.subpage) == (page, subpage) {
            return Some(bytes);
        }
        rest = next;
    }
}
