//! SCSI Command and SCSI Response (RFC 7143 §11.3, §11.4; priority and qualifier: RFC 7144).

use super::bhs::{Len24, OpByte, Opcode, flags, pdu};
use super::codes::{ScsiResponseCode, ScsiStatus, TaskAttribute};
use super::numbers::{Itt, Lun, Sn};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

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

/// SCSI Command (RFC 7143 §11.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ScsiCommand {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Direction, final bit and task attribute.
    pub flags: CommandFlags,
    /// Task priority in bits 7:4, valid at iSCSIProtocolLevel 2 only.
    pub priority: u8,
    /// Reserved.
    pub reserved_3: u8,
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// Logical unit number.
    pub lun: Lun,
    /// Initiator Task Tag.
    pub itt: Itt,
    /// Expected Data Transfer Length in bytes (of the write where the command is bidirectional).
    pub expected_data_len: U32,
    /// CmdSN.
    pub cmd_sn: Sn,
    /// ExpStatSN: acknowledges every lower StatSN.
    pub exp_stat_sn: Sn,
    /// The first 16 bytes of the CDB.
    pub cdb: [u8; 16],
}

pdu!(ScsiCommand, Opcode::SCSI_COMMAND, |p| p.flags = CommandFlags::FINAL);

impl ScsiCommand {
    /// Task priority, 0 to 15 (RFC 7144); 0 means none.
    #[must_use]
    pub const fn task_priority(&self) -> u8 {
        self.priority >> 4
    }
}

/// SCSI Response (RFC 7143 §11.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ScsiResponse {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Residual bits.
    pub flags: ResponseFlags,
    /// iSCSI service response.
    pub response: ScsiResponseCode,
    /// SCSI status.
    pub status: ScsiStatus,
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// Status qualifier, at iSCSIProtocolLevel 2 only.
    pub status_qualifier: U16,
    /// Reserved.
    pub reserved_10: [u8; 6],
    /// Initiator Task Tag.
    pub itt: Itt,
    /// SNACK Tag.
    pub snack_tag: U32,
    /// StatSN.
    pub stat_sn: Sn,
    /// ExpCmdSN.
    pub exp_cmd_sn: Sn,
    /// MaxCmdSN.
    pub max_cmd_sn: Sn,
    /// Number of Data-In and R2T PDUs that were sent for the command.
    pub exp_data_sn: Sn,
    /// Bidirectional read residual count in bytes.
    pub bidi_residual: U32,
    /// Residual count in bytes.
    pub residual: U32,
}

pdu!(ScsiResponse, Opcode::SCSI_RESPONSE, |p| p.flags = ResponseFlags::FINAL);
