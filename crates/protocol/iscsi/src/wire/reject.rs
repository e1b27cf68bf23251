//! Reject (RFC 7143 §11.17). Its data segment is the header of the refused PDU.

use super::bhs::{Opcode, pdu};
use super::codes::RejectReason;
use super::numbers::{Itt, Sn};

pdu! {
    /// Reject (RFC 7143 §11.17).
    pub struct Reject: Opcode::REJECT, |p| {
        p.flags = 0x80;
        p.itt = Itt::NONE;
    };
    1..4 {
        /// Bit 7 is always 1.
        pub flags: u8,
        /// Why.
        pub reason: RejectReason,
        reserved_3: u8,
    }
    8..24 {
        reserved_8: [u8; 8],
        /// Always FFFFFFFFh.
        pub itt: Itt,
        reserved_20: [u8; 4],
    }
    response 36..48 {
        /// DataSN or R2TSN, for a rejected DataACK.
        pub data_sn: Sn,
        reserved_40: [u8; 8],
    }
}
