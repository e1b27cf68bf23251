//! Logout Request and Logout Response (RFC 7143 §11.14, §11.15).

use super::bhs::{Opcode, pdu};
use super::codes::{LogoutReason, LogoutResponseCode};
use super::numbers::{Cid, Itt};
use zerocopy::byteorder::big_endian::U16;

pdu! {
    /// Logout Request (RFC 7143 §11.14).
    pub struct LogoutRequest: Opcode::LOGOUT_REQUEST, |p| p.reason_byte = 0x80;
    1..4 {
        /// Bit 7 is 1, bits 6:0 are the reason.
        pub reason_byte: u8,
        reserved_2: [u8; 2],
    }
    8..24 {
        reserved_8: [u8; 8],
        /// Initiator Task Tag.
        pub itt: Itt,
        /// The connection to close, unless the whole session is closed.
        pub cid: Cid,
        reserved_22: [u8; 2],
    }
    request 32..48 {
        reserved_32: [u8; 16],
    }
}

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

pdu! {
    /// Logout Response (RFC 7143 §11.15).
    pub struct LogoutResponse: Opcode::LOGOUT_RESPONSE, |p| p.flags = 0x80;
    1..4 {
        /// Bit 7 is always 1.
        pub flags: u8,
        /// Outcome.
        pub response: LogoutResponseCode,
        reserved_3: u8,
    }
    8..24 {
        reserved_8: [u8; 8],
        /// Initiator Task Tag.
        pub itt: Itt,
        reserved_20: [u8; 4],
    }
    response 36..48 {
        reserved_36: [u8; 4],
        /// Seconds to wait before a reconnect.
        pub time2wait: U16,
        /// Seconds that tasks survive after Time2Wait.
        pub time2retain: U16,
        reserved_44: [u8; 4],
    }
}
