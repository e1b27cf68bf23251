//! Login Request and Login Response (RFC 7143 §11.12, §11.13).

use super::bhs::{Opcode, flags, pdu};
use super::codes::{LoginStatus, codes};
use super::numbers::{Cid, Isid, Itt, Tsih};

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

pdu! {
    /// Login Request (RFC 7143 §11.12).
    pub struct LoginRequest: Opcode::LOGIN_REQUEST, |p| p.op = p.op.with_immediate();
    1..4 {
        /// Transit and continue bits, stages.
        pub flags: LoginFlags,
        /// Highest version that the initiator speaks; 0 is the only one there is.
        pub version_max: u8,
        /// Lowest version that the initiator speaks.
        pub version_min: u8,
    }
    8..24 {
        /// Initiator Session ID.
        pub isid: Isid,
        /// Session to join; 0 for a new one.
        pub tsih: Tsih,
        /// Initiator Task Tag.
        pub itt: Itt,
        /// Connection ID.
        pub cid: Cid,
        reserved_22: [u8; 2],
    }
    request 32..48 {
        reserved_32: [u8; 16],
    }
}

pdu! {
    /// Login Response (RFC 7143 §11.13).
    pub struct LoginResponse: Opcode::LOGIN_RESPONSE, |_p| ();
    1..4 {
        /// Transit and continue bits, stages.
        pub flags: LoginFlags,
        /// Highest version that the target speaks.
        pub version_max: u8,
        /// The version in force.
        pub version_active: u8,
    }
    8..24 {
        /// As in the request.
        pub isid: Isid,
        /// The session's handle in the final response.
        pub tsih: Tsih,
        /// Initiator Task Tag.
        pub itt: Itt,
        reserved_20: [u8; 4],
    }
    response 36..48 {
        /// Class and detail.
        pub status: LoginStatus,
        reserved_38: [u8; 10],
    }
}
