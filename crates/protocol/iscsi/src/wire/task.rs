//! Task Management Function Request and Response (RFC 7143 §11.5, §11.6; RFC 7144).

use super::bhs::{Len24, OpByte, Opcode, pdu};
use super::codes::{TmfFunction, TmfResponseCode};
use super::numbers::{Itt, Lun, Sn};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Task Management Function Request (RFC 7143 §11.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TmfRequest {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Bit 7 is 1, bits 6:0 are the function.
    pub function_byte: u8,
    /// Reserved.
    pub reserved_2: [u8; 2],
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// Logical unit number.
    pub lun: Lun,
    /// Initiator Task Tag.
    pub itt: Itt,
    /// Referenced Task Tag; FFFFFFFFh where the function names no task.
    pub referenced_tag: Itt,
    /// CmdSN.
    pub cmd_sn: Sn,
    /// ExpStatSN: acknowledges every lower StatSN.
    pub exp_stat_sn: Sn,
    /// CmdSN of the referenced task.
    pub ref_cmd_sn: Sn,
    /// ExpDataSN, for TASK REASSIGN.
    pub exp_data_sn: Sn,
    /// Reserved.
    pub reserved_40: [u8; 8],
}

pdu!(TmfRequest, Opcode::TMF_REQUEST, |p| {
    p.function_byte = 0x80;
    p.referenced_tag = Itt::NONE;
});

impl TmfRequest {
    /// The function in bits 6:0.
    #[must_use]
    pub const fn function(&self) -> TmfFunction {
        TmfFunction(self.function_byte & 0x7f)
    }

    /// Sets the function.
    pub const fn set_function(&mut self, function: TmfFunction) {
        self.function_byte = 0x80 | function.0;
    }
}

/// Task Management Function Response (RFC 7143 §11.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TmfResponse {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Bit 7 is always 1.
    pub flags: u8,
    /// Outcome.
    pub response: TmfResponseCode,
    /// Reserved.
    pub reserved_3: u8,
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// Additional Response Information, at iSCSIProtocolLevel 2 only (RFC 7144).
    pub additional: [u8; 3],
    /// Reserved.
    pub reserved_11: [u8; 5],
    /// Initiator Task Tag.
    pub itt: Itt,
    /// Reserved.
    pub reserved_20: [u8; 4],
    /// StatSN.
    pub stat_sn: Sn,
    /// ExpCmdSN.
    pub exp_cmd_sn: Sn,
    /// MaxCmdSN.
    pub max_cmd_sn: Sn,
    /// Reserved.
    pub reserved_36: [u8; 12],
}

pdu!(TmfResponse, Opcode::TMF_RESPONSE, |p| p.flags = 0x80);
