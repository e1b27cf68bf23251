//! The block device of virtio (virtio 1.2 §5.2): its features, its configuration, its requests.

use volume::Geometry;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::requests::RequestKind;

pub(super) mod feature {
    pub(in crate::vhost) const SIZE_MAX: u64 = 1 << 1;
    pub(in crate::vhost) const SEG_MAX: u64 = 1 << 2;
    pub(in crate::vhost) const RO: u64 = 1 << 5;
    pub(in crate::vhost) const BLK_SIZE: u64 = 1 << 6;
    pub(in crate::vhost) const FLUSH: u64 = 1 << 9;
    pub(in crate::vhost) const TOPOLOGY: u64 = 1 << 10;
    pub(in crate::vhost) const CONFIG_WCE: u64 = 1 << 11;
    pub(in crate::vhost) const MQ: u64 = 1 << 12;
    pub(in crate::vhost) const DISCARD: u64 = 1 << 13;
    pub(in crate::vhost) const WRITE_ZEROES: u64 = 1 << 14;
}

const SECTOR_LEN: u64 = 512;
/// Segments of a request (the smallest usual queue, 128, less header and status), and bytes of each:
/// together less than [`REQUEST_LEN_MAX`](crate::REQUEST_MAX).
const SEGMENTS_PER_REQUEST_MAX: u32 = 126;
const SEGMENT_LEN_MAX: u32 = 256 << 10;
const _: () = assert!(SEGMENTS_PER_REQUEST_MAX as usize * SEGMENT_LEN_MAX as usize <= crate::REQUEST_LEN_MAX);
/// Sectors that one discard, or write of zeroes, may name: 1 GiB.
const RANGE_SECTORS_MAX: u32 = 1 << 21;

/// Where the driver may write in the configuration.
pub(super) const WCE_OFFSET: u32 = 32;

/// struct virtio_blk_config.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct BlockConfig {
    capacity: U64,
    size_max: U32,
    seg_max: U32,
    geometry: [u8; 4],
    blk_size: U32,
    physical_block_exp: u8,
    alignment_offset: u8,
    min_io_size: U16,
    opt_io_size: U32,
    wce: u8,
    unused: u8,
    num_queues: U16,
    max_discard_sectors: U32,
    max_discard_seg: U32,
    discard_sector_alignment: U32,
    max_write_zeroes_sectors: U32,
    max_write_zeroes_seg: U32,
    write_zeroes_may_unmap: u8,
    unused1: [u8; 3],
}

const _: () =
    assert!(size_of::<BlockConfig>() == 60 && std::mem::offset_of!(BlockConfig, wce) == WCE_OFFSET as usize);

impl BlockConfig {
    pub(super) fn new(geometry: &Geometry, queues: u16, write_back: bool) -> Self {
        // Whatever the far side says, a physical block has at least one logical block.
        let per_physical = (geometry.physical / geometry.logical.max(1)).max(1);
        BlockConfig {
            capacity: (geometry.capacity_bytes() / SECTOR_LEN).into(),
            size_max: SEGMENT_LEN_MAX.into(),
            seg_max: SEGMENTS_PER_REQUEST_MAX.into(),
            geometry: [0; 4],
            blk_size: geometry.logical.into(),
            physical_block_exp: per_physical.ilog2() as u8,
            alignment_offset: 0,
            min_io_size: u16::try_from(per_physical).unwrap_or(u16::MAX).into(),
            opt_io_size: (geometry.max_io / geometry.logical.max(1)).into(),
            wce: write_back.into(),
            unused: 0,
            num_queues: queues.into(),
            max_discard_sectors: RANGE_SECTORS_MAX.into(),
            max_discard_seg: 1.into(),
            discard_sector_alignment: (geometry.physical / SECTOR_LEN as u32).into(),
            max_write_zeroes_sectors: RANGE_SECTORS_MAX.into(),
            max_write_zeroes_seg: 1.into(),
            write_zeroes_may_unmap: 1,
            unused1: [0; 3],
        }
    }
}

pub(super) fn offered_features(read_only: bool) -> u64 {
    use feature::*;
    let both = SIZE_MAX | SEG_MAX | BLK_SIZE | FLUSH | TOPOLOGY | CONFIG_WCE | MQ;
    both | if read_only { RO } else { DISCARD | WRITE_ZEROES }
}

/// How a request ended, for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestStatus {
    Ok = 0,
    Failed = 1,
    Unsupported = 2,
}

/// In front of every request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RequestHeader {
    kind: U32,
    priority: U32,
    sector: U64,
}

pub(super) const REQUEST_HEADER_LEN: usize = size_of::<RequestHeader>();

/// The range of a discard, or of a write of zeroes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct DiscardRange {
    sector: U64,
    sectors: U32,
    flags: U32,
}

pub(super) const DISCARD_RANGE_LEN: usize = size_of::<DiscardRange>();
const RANGE_UNMAP: u32 = 1;

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockRequest {
    /// A transfer, a flush: what, first byte, bytes.
    Do(RequestKind, u64, u64),
    /// A range stands behind the header.
    Discard,
    WriteZeroes,
    Identify,
    Refuse(RequestStatus),
}

impl RequestHeader {
    /// `payload` bytes stand behind it, and `room` bytes are there for an answer.
    pub(super) fn parse_request(&self, payload: usize, room: usize, stable: bool) -> BlockRequest {
        let at = |len: usize| match self.sector.get().checked_mul(SECTOR_LEN) {
            Some(at) if (len as u64).is_multiple_of(SECTOR_LEN) && len <= crate::REQUEST_LEN_MAX => {
                Some((at, len as u64))
            }
            _ => None,
        };
        match self.kind.get() {
            0 => at(room).map_or(BlockRequest::Refuse(RequestStatus::Failed), |(at, len)| {
                BlockRequest::Do(RequestKind::Read, at, len)
            }),
            1 => at(payload).map_or(BlockRequest::Refuse(RequestStatus::Failed), |(at, len)| {
                BlockRequest::Do(RequestKind::Write { stable }, at, len)
            }),
            4 => BlockRequest::Do(RequestKind::Flush, 0, 0),
            8 => BlockRequest::Identify,
            11 if payload == DISCARD_RANGE_LEN => BlockRequest::Discard,
            13 if payload == DISCARD_RANGE_LEN => BlockRequest::WriteZeroes,
            11 | 13 => BlockRequest::Refuse(RequestStatus::Failed),
            _ => BlockRequest::Refuse(RequestStatus::Unsupported),
        }
    }
}

impl DiscardRange {
    /// `None`: flags that mean nothing here (virtio 1.2 §5.2.6.2).
    pub(super) fn to_request(
        self,
        discard: bool,
        stable: bool,
    ) -> Result<(RequestKind, u64, u64), RequestStatus> {
        let flags = self.flags.get();
        if flags & !RANGE_UNMAP != 0 || (discard && flags != 0) {
            return Err(RequestStatus::Unsupported);
        }
        let at = self.sector.get().checked_mul(SECTOR_LEN).ok_or(RequestStatus::Failed)?;
        if self.sectors.get() > RANGE_SECTORS_MAX {
            return Err(RequestStatus::Failed);
        }
        let len = u64::from(self.sectors.get()) * SECTOR_LEN;
        let ask = if discard {
            RequestKind::Unmap { stable }
        } else {
            RequestKind::Zero { unmap: flags & RANGE_UNMAP != 0, stable }
        };
        Ok((ask, at, len))
    }
}
