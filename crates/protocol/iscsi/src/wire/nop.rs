//! NOP-Out and NOP-In (RFC 7143 §11.18, §11.19).

use super::bhs::{Len24, OpByte, Opcode, pdu};
use super::numbers::{Itt, Lun, Sn, Ttt};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// NOP-Out (RFC 7143 §11.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NopOut {
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
    /// FFFFFFFFh when no answer is wanted.
    pub itt: Itt,
    /// Copied from the NOP-In that is answered, else FFFFFFFFh.
    pub ttt: Ttt,
    /// CmdSN.
    pub cmd_sn: Sn,
    /// ExpStatSN: acknowledges every lower StatSN.
    pub exp_stat_sn: Sn,
    /// Reserved.
    pub reserved_32: [u8; 16],
}

pdu!(NopOut, Opcode::NOP_OUT, |p| {
    p.flags = 0x80;
    p.itt = Itt::NONE;
    p.ttt = Ttt::NONE;
});

/// NOP-In (RFC 7143 §11.19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NopIn {
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
    /// To be copied into the answer when TTT is valid.
    pub lun: Lun,
    /// Of the NOP-Out that is answered, else FFFFFFFFh.
    pub itt: Itt,
    /// Valid when the target wants an answer, else FFFFFFFFh.
    pub ttt: Ttt,
    /// StatSN; advanced only when ITT is valid.
    pub stat_sn: Sn,
    /// ExpCmdSN.
    pub exp_cmd_sn: Sn,
    /// MaxCmdSN.
    pub max_cmd_sn: Sn,
    /// Reserved.
    pub reserved_36: [u8; 12],
}

pdu!(NopIn, Opcode::NOP_IN, |p| {
    p.flags = 0x80;
    p.itt = Itt::NONE;
    p.ttt = Ttt::NONE;
});
