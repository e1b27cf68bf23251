//! Asynchronous Message (RFC 7143 §11.9).

use super::bhs::{Opcode, pdu};
use super::codes::AsyncEvent;
use super::numbers::{Itt, Lun};
use zerocopy::byteorder::big_endian::U16;

pdu! {
    /// Asynchronous Message (RFC 7143 §11.9).
    pub struct AsyncMessage: Opcode::ASYNC_MESSAGE, |p| {
        p.flags = 0x80;
        p.itt = Itt::NONE;
    };
    1..4 {
        /// Bit 7 is always 1.
        pub flags: u8,
        reserved_2: [u8; 2],
    }
    8..24 {
        /// Logical unit number.
        pub lun: Lun,
        /// Always FFFFFFFFh.
        pub itt: Itt,
        reserved_20: [u8; 4],
    }
    response 36..48 {
        /// What happened.
        pub event: AsyncEvent,
        /// Vendor code, for vendor events.
        pub vendor_code: u8,
        /// CID for CONNECTION_DROP.
        pub parameter1: U16,
        /// Time2Wait in seconds for drops.
        pub parameter2: U16,
        /// Time2Retain, or the time until the logout or negotiation is due, in seconds.
        pub parameter3: U16,
        reserved_44: [u8; 4],
    }
}
