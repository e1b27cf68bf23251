//! The numbers and layouts of `include/blockwire.h`.
//!
//! Invariant: every number and layout here equals the header's; a test compiles the header and compares.

#![allow(missing_docs, reason = "the header says what each is")]

use std::ffi::c_void;

pub const BW_ABI_VERSION: u32 = 1;

pub const BW_IO_AUTO: u32 = 0;
pub const BW_IO_URING: u32 = 1;
pub const BW_IO_EPOLL: u32 = 2;

pub const BW_NEXUS_PASSING: u32 = 0;
pub const BW_NEXUS_LASTING: u32 = 1;

pub const BW_STATE_OPENING: i32 = 0;
pub const BW_STATE_OPEN: i32 = 1;

pub const BW_GEOMETRY_READ_ONLY: u32 = 1;
pub const BW_GEOMETRY_WRITE_CACHE: u32 = 2;
pub const BW_GEOMETRY_THIN: u32 = 4;
pub const BW_GEOMETRY_ZEROES: u32 = 8;

pub const BW_READ: u32 = 0;
pub const BW_WRITE: u32 = 1;
pub const BW_FLUSH: u32 = 2;
pub const BW_DISCARD: u32 = 3;
pub const BW_WRITE_ZEROES: u32 = 4;

pub const BW_PIECES_MAX: u32 = 1024;

pub const BW_FUA: u32 = 1;
pub const BW_ALLOCATE: u32 = 2;

pub const BW_DATA_NONE: u32 = 0;
pub const BW_DATA_IN: u32 = 1;
pub const BW_DATA_OUT: u32 = 2;

pub const BW_SENSE_MAX: u32 = 252;

/// `bw_options`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub size: u32,
    pub io: u32,
    pub nexus: u32,
    pub open_timeout_ms: u32,
    pub close_timeout_ms: u32,
    pub poll_us_max: u32,
    pub memory: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            size: size_of::<Options>() as u32,
            io: BW_IO_AUTO,
            nexus: BW_NEXUS_PASSING,
            open_timeout_ms: 30_000,
            close_timeout_ms: 2_000,
            poll_us_max: 0,
            memory: 16 << 20,
        }
    }
}

/// `bw_geometry`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Geometry {
    pub bytes: u64,
    pub block: u32,
    pub physical: u32,
    pub io_max: u32,
    pub flags: u32,
}

/// `bw_request`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub op: u32,
    pub flags: u32,
    pub data: *mut c_void,
    pub len: u64,
    pub offset: u64,
    pub user: *mut c_void,
}

/// `bw_piece`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub data: *mut c_void,
    pub len: usize,
}

/// `bw_completion`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    pub user: *mut c_void,
    /// A `Volume` of [`crate::state`].
    pub volume: *mut c_void,
    pub id: u64,
    pub block: u64,
    pub status: i32,
    pub reserved: u32,
}

/// `bw_scsi_answer`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScsiAnswer {
    pub status: u32,
    pub transferred: u32,
    pub underflow: u32,
    pub overflow: u32,
    pub sense_len: u32,
    pub sense: [u8; BW_SENSE_MAX as usize],
}

/// `bw_nvme_command`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NvmeCommand {
    pub opcode: u8,
    pub flags: u8,
    pub reserved: u16,
    pub nsid: u32,
    pub cdw2: u32,
    pub cdw3: u32,
    pub cdw10: u32,
    pub cdw11: u32,
    pub cdw12: u32,
    pub cdw13: u32,
    pub cdw14: u32,
    pub cdw15: u32,
}

/// `bw_nvme_answer`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NvmeAnswer {
    pub status: u32,
    pub transferred: u32,
    pub result: u64,
}
