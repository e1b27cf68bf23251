//! Reject (RFC 7143 §11.17). Its data segment is the header of the refused PDU.

use super::bhs::{Len24, OpByte, Opcode, pdu};
use super::codes::RejectReason;
use super::numbers::{Itt, Sn};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Reject (RFC 7143 §11.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Reject {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Bit 7 is always 1.
    pub flags: u8,
    /// Why.
    pub reason: RejectReason,
    /// Reserved.
    pub reserved_3: u8,
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// Reserved.
    pub reserved_8: [u8; 8],
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
    /// DataSN or R2TSN, for a rejected DataACK.
    pub data_sn: Sn,
    /// Reserved.
    pub reserved_40: [u8; 8],
}

pdu!(Reject, Opcode::REJECT, |p| {
    p.flags = 0x80;
    p.itt = Itt::NONE;
});
