//! Asynchronous Message (RFC 7143 §11.9).

use super::bhs::{Len24, OpByte, Opcode, pdu};
use super::codes::AsyncEvent;
use super::numbers::{Itt, Lun, Sn};
use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Asynchronous Message (RFC 7143 §11.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AsyncMessage {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Bit 7 is always 1.
    pub flags: u8,
    /// Reserved.
    pub reserved_2: [u8; 2],
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// Logical unit number.
    pub lun: Lun,
    /// Always FFFFFFFFh.
    pub itt: Itt,
    /// Reserved.
    pub reserved_20: [u8; 4],
    /// StatSN.
    pub stat_sn: Sn,
    /// ExpCmdSN.
    pub exp_cmd_sn: Sn,
    /// MaxCmdSN.
    pub max_cmd_sn: Sn,
    /// What happened.
    pub event: AsyncEvent,
    /// Vendor code, for vendor events.
    pub vendor_code: u8,
    /// CID for CONNECTION_DROP.
    pub parameter1: U16,
    /// Time2Wait in seconds for drops.
    pub parameter2: U16,
    /// Time2Retain, or the time until the logout or negotiation is due, in seconds.
    pub parameter3: U16,
    /// Reserved.
    pub reserved_44: [u8; 4],
}

pdu!(AsyncMessage, Opcode::ASYNC_MESSAGE, |p| {
    p.flags = 0x80;
    p.itt = Itt::NONE;
});
