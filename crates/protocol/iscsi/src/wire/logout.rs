//! Logout Request and Logout Response (RFC 7143 §11.14, §11.15).

use super::bhs::{Len24, OpByte, Opcode, pdu};
use super::codes::{LogoutReason, LogoutResponseCode};
use super::numbers::{Cid, Itt, Sn};
use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Logout Request (RFC 7143 §11.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogoutRequest {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Bit 7 is 1, bits 6:0 are the reason.
    pub reason_byte: u8,
    /// Reserved.
    pub reserved_2: [u8; 2],
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// Reserved.
    pub reserved_8: [u8; 8],
    /// Initiator Task Tag.
    pub itt: Itt,
    /// The connection to close, unless the whole session is closed.
    pub cid: Cid,
    /// Reserved.
    pub reserved_22: [u8; 2],
    /// CmdSN.
    pub cmd_sn: Sn,
    /// ExpStatSN: acknowledges every lower StatSN.
    pub exp_stat_sn: Sn,
    /// Reserved.
    pub reserved_32: [u8; 16],
}

pdu!(LogoutRequest, Opcode::LOGOUT_REQUEST, |p| p.reason_byte = 0x80);

impl LogoutRequest {
    /// The reason in bits 6:0.
    #[must_use]
    pub const fn reason(&self) -> LogoutReason {
        LogoutReason(self.reason_byte & 0x7f)
    }

    /// Sets the reason.
    pub const fn set_reason(&mut self, reason: LogoutReason) {
        self.reason_byte = 0x80 | reason.0;
    }
}

/// Logout Response (RFC 7143 §11.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogoutResponse {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Bit 7 is always 1.
    pub flags: u8,
    /// Outcome.
    pub response: LogoutResponseCode,
    /// Reserved.
    pub reserved_3: u8,
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// Reserved.
    pub reserved_8: [u8; 8],
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
    pub reserved_36: [u8; 4],
    /// Seconds to wait before a reconnect.
    pub time2wait: U16,
    /// Seconds that tasks survive after Time2Wait.
    pub time2retain: U16,
    /// Reserved.
    pub reserved_44: [u8; 4],
}

pdu!(LogoutResponse, Opcode::LOGOUT_RESPONSE, |p| p.flags = 0x80);
