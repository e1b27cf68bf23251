//! Text Request and Text Response (RFC 7143 §11.10, §11.11).

use super::bhs::{Len24, OpByte, Opcode, flags, pdu};
use super::numbers::{Itt, Lun, Sn, Ttt};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

flags! {
    /// Byte 1 of Text Requests and Responses.
    pub struct TextFlags {
        /// The sender has no more to say.
        FINAL = 0x80,
        /// The text goes on in the next PDU; excludes FINAL.
        CONTINUE = 0x40,
    }
}

/// Text Request (RFC 7143 §11.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TextRequest {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Final and continue bits.
    pub flags: TextFlags,
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
    /// FFFFFFFFh starts a negotiation, another value continues one.
    pub ttt: Ttt,
    /// CmdSN.
    pub cmd_sn: Sn,
    /// ExpStatSN: acknowledges every lower StatSN.
    pub exp_stat_sn: Sn,
    /// Reserved.
    pub reserved_32: [u8; 16],
}

pdu!(TextRequest, Opcode::TEXT_REQUEST, |p| p.ttt = Ttt::NONE);

/// Text Response (RFC 7143 §11.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TextResponse {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Final and continue bits.
    pub flags: TextFlags,
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
    /// FFFFFFFFh when the exchange ends here.
    pub ttt: Ttt,
    /// StatSN.
    pub stat_sn: Sn,
    /// ExpCmdSN.
    pub exp_cmd_sn: Sn,
    /// MaxCmdSN.
    pub max_cmd_sn: Sn,
    /// Reserved.
    pub reserved_36: [u8; 12],
}

pdu!(TextResponse, Opcode::TEXT_RESPONSE, |p| p.ttt = Ttt::NONE);
