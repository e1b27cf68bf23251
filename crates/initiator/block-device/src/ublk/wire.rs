//! The interface between the ublk driver and its servers (linux/ublk_cmd.h).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::wire::wire;

/// _IOC(READ or both, 'u', number, size).
const fn ioctl_number(both: bool, number: u32, size: usize) -> u32 {
    (if both { 3 } else { 2 }) << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | number
}

const fn control_ioctl_number(both: bool, number: u32) -> u32 {
    ioctl_number(both, number, size_of::<Control>())
}

pub(super) const GET_DEV_INFO: u32 = control_ioctl_number(false, 0x02);
pub(super) const ADD_DEV: u32 = control_ioctl_number(true, 0x04);
pub(super) const DEL_DEV: u32 = control_ioctl_number(true, 0x05);
pub(super) const START_DEV: u32 = control_ioctl_number(true, 0x06);
pub(super) const STOP_DEV: u32 = control_ioctl_number(true, 0x07);
pub(super) const SET_PARAMS: u32 = control_ioctl_number(true, 0x08);
pub(super) const START_USER_RECOVERY: u32 = control_ioctl_number(true, 0x10);
pub(super) const END_USER_RECOVERY: u32 = control_ioctl_number(true, 0x11);
pub(super) const GET_FEATURES: u32 = control_ioctl_number(false, 0x13);
pub(super) const UPDATE_SIZE: u32 = control_ioctl_number(true, 0x15);

pub(super) const FETCH_REQ: u32 = ioctl_number(true, 0x20, size_of::<IoCommand>());
pub(super) const COMMIT_AND_FETCH_REQ: u32 = ioctl_number(true, 0x21, size_of::<IoCommand>());

pub(super) mod flag {
    pub(in crate::ublk) const USER_RECOVERY: u64 = 1 << 3;
    pub(in crate::ublk) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    pub(in crate::ublk) const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    pub(in crate::ublk) const USER_COPY: u64 = 1 << 7;
    pub(in crate::ublk) const UPDATE_SIZE: u64 = 1 << 10;
}

pub(super) const STATE_DEAD: u16 = 0;
pub(super) const STATE_QUIESCED: u16 = 2;

/// The device is being stopped: this slot brings no more requests.
pub(super) const RESULT_ABORT: i32 = -libc::ENODEV;

/// The most descriptors of a queue; the mapping of each has room for so many.
pub(super) const QUEUE_DEPTH_MAX: u16 = 4096;

/// Where a request's data is in the character device: this, and its slot above so many bits.
const DATA_OFFSET_BASE: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;

/// Where the data of a slot of the first queue begins.
pub(super) fn data_offset(tag: u16) -> u64 {
    DATA_OFFSET_BASE + (u64::from(tag) << TAG_SHIFT)
}

pub(super) mod op {
    pub(in crate::ublk) const READ: u8 = 0;
    pub(in crate::ublk) const WRITE: u8 = 1;
    pub(in crate::ublk) const FLUSH: u8 = 2;
    pub(in crate::ublk) const DISCARD: u8 = 3;
    pub(in crate::ublk) const WRITE_ZEROES: u8 = 5;
}

pub(super) const IO_FUA: u32 = 1 << 13;
pub(super) const IO_NOUNMAP: u32 = 1 << 15;

wire!(
    /// struct ublksrv_ctrl_cmd.
    Control = 32 { device: u32, queue: u16, len: u16, address: u64, data: u64, reserved: u64, }
);
wire!(
    /// struct ublksrv_ctrl_dev_info.
    DeviceInfo = 64 {
        queues: u16, depth: u16, state: u16, pad0: u16, io_bytes_max: u32, device: u32, server: i32,
        pad1: u32, flags: u64, server_flags: u64, owner: [u32; 2], reserved: [u64; 2],
    }
);
wire!(
    /// struct ublksrv_io_cmd.
    IoCommand = 16 { queue: u16, tag: u16, result: i32, address: u64, }
);
wire!(
    /// struct ublksrv_io_desc.
    Descriptor = 24 { op_flags: u32, sectors: u32, sector: u64, address: u64, }
);
wire!(
    /// struct ublk_params, with basic and discard parameters.
    Parameters = 64 {
        len: u32, kinds: u32,
        attributes: u32, logical_shift: u8, physical_shift: u8, optimal_shift: u8, minimum_shift: u8,
        sectors_max: u32, chunk_sectors: u32, sectors: u64, virtual_boundary: u64,
        discard_alignment: u32, discard_granularity: u32, discard_sectors_max: u32,
        write_zeroes_sectors_max: u32, discard_segments_max: u16, reserved: u16, padding: u32,
    }
);

pub(super) const PARAMETERS_BASIC: u32 = 1;
pub(super) const PARAMETERS_DISCARD: u32 = 2;
pub(super) const ATTRIBUTE_READ_ONLY: u32 = 1;
pub(super) const ATTRIBUTE_VOLATILE_CACHE: u32 = 4;
pub(super) const ATTRIBUTE_FUA: u32 = 8;
