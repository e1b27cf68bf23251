//! SCSI Command and SCSI Response (RFC 7143 §11.3, §11.4; priority and qualifier: RFC 7144).

use super::bhs::{Opcode, flags, pdu};
use super::codes::{ScsiResponseCode, ScsiStatus, TaskAttribute};
use super::numbers::{Itt, Lun, Sn};
use zerocopy::byteorder::big_endian::{U16, U32};

flags! {
    /// Byte 1 of a SCSI Command.
    pub struct CommandFlags {
        /// No unsolicited Data-Out follows.
        FINAL = 0x80,
        /// The command is expected to read.
        READ = 0x40,
        /// The command is expected to write.
        WRITE = 0x20,
    }
}

impl CommandFlags {
    /// The task attribute in bits 2:0.
    #[must_use]
    pub const fn attribute(self) -> TaskAttribute {
        TaskAttribute(self.0 & 7)
    }

    /// The same flags with a task attribute.
    #[must_use]
    pub const fn with_attribute(self, attribute: TaskAttribute) -> Self {
        Self(self.0 & !7 | attribute.0 & 7)
    }
}

flags! {
    /// Byte 1 of a SCSI Response; bit 7 is always 1.
    pub struct ResponseFlags {
        /// Bit 7, always set.
        FINAL = 0x80,
        /// Bidirectional read residual overflow (o).
        BIDI_OVERFLOW = 0x10,
        /// Bidirectional read residual underflow (u).
        BIDI_UNDERFLOW = 0x08,
        /// Residual overflow (O).
        OVERFLOW = 0x04,
        /// Residual underflow (U).
        UNDERFLOW = 0x02,
    }
}

pdu! {
    /// SCSI Command (RFC 7143 §11.3).
    pub struct ScsiCommand: Opcode::SCSI_COMMAND, |p| p.flags = CommandFlags::FINAL;
    1..4 {
        /// Direction, final bit and task attribute.
        pub flags: CommandFlags,
        /// Task priority in bits 7:4, valid at iSCSIProtocolLevel 2 only.
        pub priority: u8,
        reserved_3: u8,
    }
    8..24 {
        /// Logical unit number.
        pub lun: Lun,
        /// Initiator Task Tag.
        pub itt: Itt,
        /// Expected Data Transfer Length in bytes (of the write where the command is bidirectional).
        pub expected_data_len: U32,
    }
    request 32..48 {
        /// The first 16 bytes of the CDB.
        pub cdb: [u8; 16],
    }
}

impl ScsiCommand {
    /// Task priority, 0 to 15 (RFC 7144); 0 means none.
    #[must_use]
    pub const fn task_priority(&self) -> u8 {
        self.priority >> 4
    }
}

pdu! {
    /// SCSI Response (RFC 7143 §11.4).
    pub struct ScsiResponse: Opcode::SCSI_RESPONSE, |p| p.flags = ResponseFlags::FINAL;
    1..4 {
        /// Residual bits.
        pub flags: ResponseFlags,
        /// iSCSI service response.
        pub response: ScsiResponseCode,
        /// SCSI status.
        pub status: ScsiStatus,
    }
    8..24 {
        /// Status qualifier, at iSCSIProtocolLevel 2 only.
        pub status_qualifier: U16,
        reserved_10: [u8; 6],
        /// Initiator Task Tag.
        pub itt: Itt,
        /// SNACK Tag.
        pub snack_tag: U32,
    }
    response 36..48 {
        /// Number of Data-In and R2T PDUs that were sent for the command.
        pub exp_data_sn: Sn,
        /// Bidirectional read residual count in bytes.
        pub bidi_residual: U32,
        /// Residual count in bytes.
        pub residual: U32,
    }
}
