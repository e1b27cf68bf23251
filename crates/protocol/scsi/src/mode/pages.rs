//! Images of the mode pages, for values and for the mask of what MODE SELECT may change.

use super::{CACHING, CONTROL, ERROR_RECOVERY, INFORMATIONAL_EXCEPTIONS, ModeParameters};
use crate::wire::{bit, flag_bit, place_bits};

/// Pages and subpages in the order of MODE SENSE.
pub(super) const SUPPORTED_PAGES: [(u8, u8); 6] = [
    (ERROR_RECOVERY, 0),
    (CACHING, 0),
    (CONTROL, 0),
    (CONTROL, CONTROL_EXTENSION),
    (INFORMATIONAL_EXCEPTIONS, 0),
    (INFORMATIONAL_EXCEPTIONS, PROVISIONING),
];

/// Subpage code of control extension.
pub(super) const CONTROL_EXTENSION: u8 = 0x01;

/// Subpage code of logical block provisioning (SBC-3 §6.4.7).
pub(super) const PROVISIONING: u8 = 0x02;

/// Bytes of the logical block provisioning page before its threshold descriptors.
const THRESHOLDS_AT: usize = 16;

/// Bytes of a threshold descriptor.
const THRESHOLD_LEN: usize = 8;

/// THRESHOLD RESOURCE: the used LBA mapping resources, in threshold sets.
const RESOURCE_USED: u8 = 2;

/// THRESHOLD ARMING: it is reached from below.
const ARMED_BY_INCREASE: u8 = 1;

/// Longest page: control extension.
const PAGE_LEN_MAX: usize = 32;

const D_SENSE_BIT: u8 = 2;
const SWP_BIT: u8 = 3;
const TAS_BIT: u8 = 6;
const WCE_BIT: u8 = 2;
/// QUEUE ALGORITHM MODIFIER 1: unrestricted reordering of simple commands.
const UNRESTRICTED_REORDERING: u8 = 1;

/// The bytes of one page, header included.
pub(super) struct PageImage {
    bytes: [u8; PAGE_LEN_MAX],
    len: usize,
}

impl PageImage {
    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }

    /// The header and zeros. PS is 0: pages cannot be saved.
    fn header_only(page: u8, subpage: u8) -> Option<PageImage> {
        let mut bytes = [0; PAGE_LEN_MAX];
        bytes[0] = page;
        let len = match (page, subpage) {
            (ERROR_RECOVERY | CONTROL | INFORMATIONAL_EXCEPTIONS, 0) => 12,
            (CACHING, 0) => 20,
            (CONTROL, CONTROL_EXTENSION) => {
                bytes[0] |= flag_bit(true, 6);
                bytes[1] = subpage;
                bytes[3] = 32 - 4;
                return Some(PageImage { bytes, len: 32 });
            }
            (INFORMATIONAL_EXCEPTIONS, PROVISIONING) => {
                let len = THRESHOLDS_AT + THRESHOLD_LEN;
                bytes[0] |= flag_bit(true, 6);
                bytes[1] = subpage;
                bytes[3] = len as u8 - 4;
                return Some(PageImage { bytes, len });
            }
            _ => return None,
        };
        bytes[1] = len as u8 - 2;
        Some(PageImage { bytes, len })
    }

    /// The values of a page; `None`: there is no such page.
    pub(super) fn current_values(page: u8, subpage: u8, p: &ModeParameters) -> Option<PageImage> {
        let mut image = PageImage::header_only(page, subpage)?;
        let b = &mut image.bytes;
        match (page, subpage) {
            (CACHING, 0) => b[2] = flag_bit(p.write_cache, WCE_BIT),
            (CONTROL, 0) => {
                // GLTSD: log parameters are not saved by the device server.
                b[2] = flag_bit(p.descriptor_sense, D_SENSE_BIT) | flag_bit(true, 1);
                b[3] = place_bits(UNRESTRICTED_REORDERING, 7, 4);
                b[4] = flag_bit(p.write_protect, SWP_BIT);
                b[5] = flag_bit(p.task_aborted_status, TAS_BIT);
                // BUSY TIMEOUT PERIOD: unlimited.
                b[8..10].fill(0xff);
            }
            (CONTROL, CONTROL_EXTENSION) => b[4] = flag_bit(p.implicit_access, 0),
            // DEXCPT: informational exceptions are not reported.
            (INFORMATIONAL_EXCEPTIONS, 0) => b[2] = flag_bit(true, 3),
            (INFORMATIONAL_EXCEPTIONS, PROVISIONING) => {
                // SITUA is 0: every nexus is told.
                let enabled = flag_bit(p.provisioning?.used_max.is_some(), 7);
                b[THRESHOLDS_AT] = enabled | ARMED_BY_INCREASE;
                b[THRESHOLDS_AT + 1] = RESOURCE_USED;
                let count = p.provisioning?.used_max.unwrap_or(0).to_be_bytes();
                b[THRESHOLDS_AT + 4..THRESHOLDS_AT + THRESHOLD_LEN].copy_from_slice(&count);
            }
            _ => {}
        }
        Some(image)
    }

    /// Ones where MODE SELECT may change a bit; the header as in the values.
    pub(super) fn changeable_mask(page: u8, subpage: u8) -> Option<PageImage> {
        let mut image = PageImage::header_only(page, subpage)?;
        if (page, subpage) == (CONTROL, 0) {
            image.bytes[2] = flag_bit(true, D_SENSE_BIT);
            image.bytes[4] = flag_bit(true, SWP_BIT);
            image.bytes[5] = flag_bit(true, TAS_BIT);
        }
        Some(image)
    }
}

impl ModeParameters {
    /// Takes over the changeable bits of a page that was already checked.
    pub(super) fn apply_page(&mut self, page: u8, subpage: u8, bytes: &[u8]) {
        if let ((CONTROL, 0), [_, _, sense, _, protect, aborted, ..]) = ((page, subpage), bytes) {
            self.descriptor_sense = bit(*sense, D_SENSE_BIT);
            self.write_protect = bit(*protect, SWP_BIT);
            self.task_aborted_status = bit(*aborted, TAS_BIT);
        }
    }
}
