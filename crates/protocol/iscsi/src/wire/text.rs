//! Text Request and Text Response (RFC 7143 §11.10, §11.11).

use super::bhs::{Opcode, flags, pdu};
use super::numbers::{Itt, Lun, Ttt};

flags! {
    /// Byte 1 of Text Requests and Responses.
    pub struct TextFlags {
        /// The sender has no more to say.
        FINAL = 0x80,
        /// The text goes on in the next PDU; excludes FINAL.
        CONTINUE = 0x40,
    }
}

pdu! {
    /// Text Request (RFC 7143 §11.10).
    pub struct TextRequest: Opcode::TEXT_REQUEST, |p| p.ttt = Ttt::NONE;
    1..4 {
        /// Final and continue bits.
        pub flags: TextFlags,
        reserved_2: [u8; 2],
    }
    8..24 {
        /// Logical unit number.
        pub lun: Lun,
        /// Initiator Task Tag.
        pub itt: Itt,
        /// FFFFFFFFh starts a negotiation, another value continues one.
        pub ttt: Ttt,
    }
    request 32..48 {
        reserved_32: [u8; 16],
    }
}

pdu! {
    /// Text Response (RFC 7143 §11.11).
    pub struct TextResponse: Opcode::TEXT_RESPONSE, |p| p.ttt = Ttt::NONE;
    1..4 {
        /// Final and continue bits.
        pub flags: TextFlags,
        reserved_2: [u8; 2],
    }
    8..24 {
        /// Logical unit number.
        pub lun: Lun,
        /// Initiator Task Tag.
        pub itt: Itt,
        /// FFFFFFFFh when the exchange ends here.
        pub ttt: Ttt,
    }
    response 36..48 {
        reserved_36: [u8; 12],
    }
}
