//! Login Request and Login Response (RFC 7143 §11.12, §11.13).

use super::bhs::{Len24, OpByte, Opcode, flags, pdu};
use super::codes::{LoginStatus, codes};
use super::numbers::{Cid, Isid, Itt, Sn, Tsih};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// Login stage, two bits (RFC 7143 §11.12.3).
    pub struct Stage {
        /// SecurityNegotiation.
        SECURITY = 0,
        /// LoginOperationalNegotiation.
        OPERATIONAL = 1,
        /// FullFeaturePhase.
        FULL_FEATURE = 3,
    }
}

flags! {
    /// Byte 1 of Login Requests and Responses.
    pub struct LoginFlags {
        /// Ready to go from CSG to NSG.
        TRANSIT = 0x80,
        /// The text goes on in the next PDU; excludes TRANSIT.
        CONTINUE = 0x40,
    }
}

impl LoginFlags {
    /// The current stage, bits 3:2.
    #[must_use]
    pub const fn current(self) -> Stage {
        Stage(self.0 >> 2 & 3)
    }

    /// The next stage, bits 1:0; meaningful with TRANSIT only.
    #[must_use]
    pub const fn next(self) -> Stage {
        Stage(self.0 & 3)
    }

    /// The flags with these stages.
    #[must_use]
    pub const fn with_stages(self, current: Stage, next: Stage) -> Self {
        Self(self.0 & 0xf0 | (current.0 & 3) << 2 | next.0 & 3)
    }
}

/// Login Request (RFC 7143 §11.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LoginRequest {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Transit and continue bits, stages.
    pub flags: LoginFlags,
    /// Highest version that the initiator speaks; 0 is the only one there is.
    pub version_max: u8,
    /// Lowest version that the initiator speaks.
    pub version_min: u8,
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// Initiator Session ID.
    pub isid: Isid,
    /// Session to join; 0 for a new one.
    pub tsih: Tsih,
    /// Initiator Task Tag.
    pub itt: Itt,
    /// Connection ID.
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

pdu!(LoginRequest, Opcode::LOGIN_REQUEST, |p| p.op = p.op.immediate());

/// Login Response (RFC 7143 §11.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LoginResponse {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Transit and continue bits, stages.
    pub flags: LoginFlags,
    /// Highest version that the target speaks.
    pub version_max: u8,
    /// The version in force.
    pub version_active: u8,
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// As in the request.
    pub isid: Isid,
    /// The session's handle in the final response.
    pub tsih: Tsih,
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
    /// Class and detail.
    pub status: LoginStatus,
    /// Reserved.
    pub reserved_38: [u8; 10],
}

pdu!(LoginResponse, Opcode::LOGIN_RESPONSE, |_p| ());
