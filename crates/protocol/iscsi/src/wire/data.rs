//! The PDUs that move data: Data-Out, Data-In, R2T, and SNACK (RFC 7143 §11.7, §11.8, §11.16).

use super::bhs::{Len24, OpByte, Opcode, flags, pdu};
use super::codes::{ScsiStatus, SnackType};
use super::numbers::{Itt, Lun, Sn, Ttt};
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

flags! {
    /// Byte 1 of a Data-Out.
    pub struct DataOutFlags {
        /// The last PDU of a sequence.
        FINAL = 0x80,
    }
}

flags! {
    /// Byte 1 of a Data-In.
    pub struct DataInFlags {
        /// The last PDU of a sequence.
        FINAL = 0x80,
        /// An acknowledgment is asked for (ErrorRecoveryLevel 1 and more).
        ACKNOWLEDGE = 0x40,
        /// Residual overflow, valid with STATUS.
        OVERFLOW = 0x04,
        /// Residual underflow, valid with STATUS.
        UNDERFLOW = 0x02,
        /// The status rides on this PDU; FINAL must be set as well.
        STATUS = 0x01,
    }
}

/// SCSI Data-Out (RFC 7143 §11.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DataOut {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Final bit.
    pub flags: DataOutFlags,
    /// Reserved.
    pub reserved_2: [u8; 2],
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// Logical unit number.
    pub lun: Lun,
    /// Initiator Task Tag.
    pub itt: Itt,
    /// Tag of the R2T that asked; FFFFFFFFh for unsolicited data.
    pub ttt: Ttt,
    /// Reserved.
    pub reserved_24: [u8; 4],
    /// ExpStatSN: acknowledges every lower StatSN.
    pub exp_stat_sn: Sn,
    /// Reserved.
    pub reserved_32: [u8; 4],
    /// DataSN, from 0 in each sequence.
    pub data_sn: Sn,
    /// Offset of the payload in the command's data, in bytes.
    pub buffer_offset: U32,
    /// Reserved.
    pub reserved_44: [u8; 4],
}

pdu!(DataOut, Opcode::DATA_OUT, |p| p.ttt = Ttt::NONE);

/// SCSI Data-In (RFC 7143 §11.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DataIn {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Final, status, residual and acknowledge bits.
    pub flags: DataInFlags,
    /// Reserved.
    pub reserved_2: u8,
    /// SCSI status, valid with STATUS.
    pub status: ScsiStatus,
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// Logical unit number, valid with ACKNOWLEDGE.
    pub lun: Lun,
    /// Initiator Task Tag.
    pub itt: Itt,
    /// Target Transfer Tag, valid with ACKNOWLEDGE.
    pub ttt: Ttt,
    /// StatSN, valid with STATUS.
    pub stat_sn: Sn,
    /// ExpCmdSN.
    pub exp_cmd_sn: Sn,
    /// MaxCmdSN.
    pub max_cmd_sn: Sn,
    /// DataSN, from 0 per command.
    pub data_sn: Sn,
    /// Offset of the payload in the command's data, in bytes.
    pub buffer_offset: U32,
    /// Residual count in bytes, valid with STATUS.
    pub residual: U32,
}

pdu!(DataIn, Opcode::DATA_IN, |p| p.ttt = Ttt::NONE);

/// Ready To Transfer (RFC 7143 §11.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct R2t {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Bit 7 is always 1.
    pub flags: u8,
    /// Reserved.
    pub reserved_2: [u8; 2],
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// Logical unit number.
    pub lun: Lun,
    /// Initiator Task Tag.
    pub itt: Itt,
    /// Target Transfer Tag.
    pub ttt: Ttt,
    /// The next StatSN; an R2T does not advance it.
    pub stat_sn: Sn,
    /// ExpCmdSN.
    pub exp_cmd_sn: Sn,
    /// MaxCmdSN.
    pub max_cmd_sn: Sn,
    /// R2TSN, from 0 per command.
    pub r2t_sn: Sn,
    /// Offset of the wanted data, in bytes.
    pub buffer_offset: U32,
    /// Desired Data Transfer Length, 1 to MaxBurstLength bytes.
    pub desired_len: U32,
}

pdu!(R2t, Opcode::R2T, |p| p.flags = 0x80);

/// SNACK Request (RFC 7143 §11.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Snack {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Bit 7 is 1, bits 3:0 are the type.
    pub type_byte: u8,
    /// Reserved.
    pub reserved_2: [u8; 2],
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// Logical unit number.
    pub lun: Lun,
    /// Initiator Task Tag.
    pub itt: Itt,
    /// Target Transfer Tag or SNACK Tag.
    pub tag: U32,
    /// Reserved.
    pub reserved_24: [u8; 4],
    /// ExpStatSN: acknowledges every lower StatSN.
    pub exp_stat_sn: Sn,
    /// Reserved.
    pub reserved_32: [u8; 8],
    /// First number asked for.
    pub beg_run: U32,
    /// How many; 0 means to the end.
    pub run_length: U32,
}

pdu!(Snack, Opcode::SNACK, |p| p.type_byte = 0x80);

impl Snack {
    /// The type in bits 3:0.
    #[must_use]
    pub const fn snack_type(&self) -> SnackType {
        SnackType(self.type_byte & 0x0f)
    }
}
