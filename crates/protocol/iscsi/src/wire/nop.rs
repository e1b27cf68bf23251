//! NOP-Out and NOP-In (RFC 7143 §11.18, §11.19).

use super::bhs::{Opcode, pdu};
use super::numbers::{Itt, Lun, Ttt};

pdu! {
    /// NOP-Out (RFC 7143 §11.18).
    pub struct NopOut: Opcode::NOP_OUT, |p| {
        p.flags = 0x80;
        p.itt = Itt::NONE;
        p.ttt = Ttt::NONE;
    };
    1..4 {
        /// Bit 7 is always 1.
        pub flags: u8,
        reserved_2: [u8; 2],
    }
    8..24 {
        /// Logical unit number.
        pub lun: Lun,
        /// FFFFFFFFh when no answer is wanted.
        pub itt: Itt,
        /// Copied from the NOP-In that is answered, else FFFFFFFFh.
        pub ttt: Ttt,
    }
    request 32..48 {
        reserved_32: [u8; 16],
    }
}

pdu! {
    /// NOP-In (RFC 7143 §11.19).
    pub struct NopIn: Opcode::NOP_IN, |p| {
        p.flags = 0x80;
        p.itt = Itt::NONE;
        p.ttt = Ttt::NONE;
    };
    1..4 {
        /// Bit 7 is always 1.
        pub flags: u8,
        reserved_2: [u8; 2],
    }
    8..24 {
        /// To be copied into the answer when TTT is valid.
        pub lun: Lun,
        /// Of the NOP-Out that is answered, else FFFFFFFFh.
        pub itt: Itt,
        /// Valid when the target wants an answer, else FFFFFFFFh.
        pub ttt: Ttt,
    }
    response 36..48 {
        reserved_36: [u8; 12],
    }
}
