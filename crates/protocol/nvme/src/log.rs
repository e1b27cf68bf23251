//! Log pages (NVMe Base §5.16): the command, and the pages as bytes.
//!
//! Invariant: a page is built completely before a part is cut out, so that its parts agree.

pub mod ana;
pub mod discovery;
pub mod effects;
pub mod health;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::sqe::Sqe;

/// Names a log page (LID).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogPageId(pub u8);

#[allow(missing_docs)] // The names are the standard's.
impl LogPageId {
    pub const SUPPORTED_PAGES: LogPageId = LogPageId(0x00);
    pub const ERROR: LogPageId = LogPageId(0x01);
    pub const SMART: LogPageId = LogPageId(0x02);
    pub const FIRMWARE_SLOT: LogPageId = LogPageId(0x03);
    pub const CHANGED_NAMESPACES: LogPageId = LogPageId(0x04);
    pub const COMMAND_EFFECTS: LogPageId = LogPageId(0x05);
    pub const ANA: LogPageId = LogPageId(0x0c);
    pub const FEATURE_EFFECTS: LogPageId = LogPageId(0x12);
    pub const MANAGEMENT_EFFECTS: LogPageId = LogPageId(0x13);
    pub const CROSS_CONTROLLER_RESET: LogPageId = LogPageId(0x1e);
    pub const DISCOVERY: LogPageId = LogPageId(0x70);
    pub const RESERVATION: LogPageId = LogPageId(0x80);
}

/// A Get Log Page command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// Which page.
    pub lid: LogPageId,
    /// LSP: what of it, by page.
    pub specific: u8,
    /// RAE: the event that the page belongs to is not cleared.
    pub retain: bool,
    /// Bytes wanted: a multiple of 4, up to 16 GiB.
    pub len: u64,
    /// LPO: where to begin, in bytes.
    pub offset: u64,
    /// OT: `offset` is an index, which no page here has.
    pub by_index: bool,
    /// CSI: the I/O command set.
    pub command_set: u8,
    /// NSID.
    pub nsid: u32,
}

impl GetLogPage {
    /// Reads the command.
    pub fn parse(sqe: &Sqe) -> GetLogPage {
        let first = sqe.cdw(10);
        let dwords = u64::from(first >> 16) | u64::from(sqe.cdw(11) & 0xffff) << 16;
        GetLogPage {
            lid: LogPageId(first as u8),
            specific: (first >> 8) as u8 & 0x7f,
            retain: first & 1 << 15 != 0,
            len: (dwords + 1) * 4,
            offset: sqe.cdw_pair(12),
            by_index: sqe.cdw(14) & 1 << 23 != 0,
            command_set: (sqe.cdw(14) >> 24) as u8,
            nsid: sqe.nsid.get(),
        }
    }
}

/// Supported Log Pages (00h): 4 bytes for each, bit 0 of those that there are.
pub fn encode_supported_pages(pages: &[LogPageId]) -> [u8; 1024] {
    let mut log = [0; 1024];
    for lid in pages {
        if let Some([supported, ..]) = log.as_chunks_mut::<4>().0.get_mut(usize::from(lid.0)) {
            *supported = 1;
        }
    }
    log
}

/// An entry of the error log (01h): 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    /// Counts the errors of the controller; 0 if there is no entry.
    pub count: U64,
    /// The queue.
    pub sqid: U16,
    /// The command.
    pub cid: U16,
    /// Its status field, as in its completion.
    pub status: U16,
    /// Which byte and bit of the command is to blame; FFFFh if none is.
    pub parameter: U16,
    /// The first block.
    pub lba: U64,
    /// The namespace.
    pub nsid: U32,
    /// Whether there is more, and by what transport.
    pub vendor: u8,
    /// TRTYPE: 3 for TCP.
    pub transport: u8,
    /// Reserved.
    pub reserved: [u8; 2],
    /// By command.
    pub specific: U64,
    /// By transport.
    pub transport_specific: U16,
    /// Reserved.
    pub reserved_end: [u8; 22],
}

const _: () = assert!(size_of::<ErrorEntry>() == 64);

/// Firmware Slot Information (03h): one slot, which is active.
pub fn encode_firmware_slot(revision: [u8; 8]) -> [u8; 512] {
    let mut log = [0; 512];
    log[0] = 1;
    log[8..16].copy_from_slice(&revision);
    log
}

/// Changed Namespace List (04h): ascending; if they do not fit, FFFFFFFFh stands alone.
pub fn encode_changed_namespaces(nsids: &[u32]) -> [u8; 4096] {
    let mut log = [0; 4096];
    if nsids.len() > 1024 {
        log[..4].fill(0xff);
    } else {
        for (place, nsid) in log.chunks_exact_mut(4).zip(nsids) {
            place.copy_from_slice(&nsid.to_le_bytes());
        }
    }
    log
}

/// What the reservation notification log tells (80h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationNotice {
    /// The host's registration was preempted.
    RegistrationPreempted = 1,
    /// The reservation was released.
    ReservationReleased,
    /// The reservation was preempted.
    ReservationPreempted,
}

/// Reservation Notification (80h): 64 bytes. `count` counts the notices;
/// `more`: how many wait behind this one.
pub fn encode_reservation_notification(count: u64, what: ReservationNotice, more: u8, nsid: u32) -> [u8; 64] {
    let mut log = [0; 64];
    log[..8].copy_from_slice(&count.to_le_bytes());
    (log[8], log[9]) = (what as u8, more);
    log[12..16].copy_from_slice(&nsid.to_le_bytes());
    log
}

#[cfg(test)]
mod tests;
