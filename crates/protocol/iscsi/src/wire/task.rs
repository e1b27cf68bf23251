//! Task Management Function Request and Response (RFC 7143 §11.5, §11.6; RFC 7144).

use super::bhs::{Opcode, pdu};
use super::codes::{TmfFunction, TmfResponseCode};
use super::numbers::{Itt, Lun, Sn};

pdu! {
    /// Task Management Function Request (RFC 7143 §11.5).
    pub struct TmfRequest: Opcode::TMF_REQUEST, |p| {
        p.function_byte = 0x80;
        p.referenced_tag = Itt::NONE;
    };
    1..4 {
        /// Bit 7 is 1, bits 6:0 are the function.
        pub function_byte: u8,
        reserved_2: [u8; 2],
    }
    8..24 {
        /// Logical unit number.
        pub lun: Lun,
        /// Initiator Task Tag.
        pub itt: Itt,
        /// Referenced Task Tag; FFFFFFFFh where the function names no task.
        pub referenced_tag: Itt,
    }
    request 32..48 {
        /// CmdSN of the referenced task.
        pub ref_cmd_sn: Sn,
        /// ExpDataSN, for TASK REASSIGN.
        pub exp_data_sn: Sn,
        reserved_40: [u8; 8],
    }
}

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

pdu! {
    /// Task Management Function Response (RFC 7143 §11.6).
    pub struct TmfResponse: Opcode::TMF_RESPONSE, |p| p.flags = 0x80;
    1..4 {
        /// Bit 7 is always 1.
        pub flags: u8,
        /// Outcome.
        pub response: TmfResponseCode,
        reserved_3: u8,
    }
    8..24 {
        /// Additional Response Information, at iSCSIProtocolLevel 2 only (RFC 7144).
        pub additional: [u8; 3],
        reserved_11: [u8; 5],
        /// Initiator Task Tag.
        pub itt: Itt,
        reserved_20: [u8; 4],
    }
    response 36..48 {
        reserved_36: [u8; 12],
    }
}
