//! The PDUs that move data: Data-Out, Data-In and R2T (RFC 7143 §11.7, §11.8).

use super::bhs::{Opcode, flags, pdu};
use super::codes::ScsiStatus;
use super::numbers::{Itt, Lun, Sn, Ttt};
use zerocopy::byteorder::big_endian::U32;

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

pdu! {
    /// SCSI Data-Out (RFC 7143 §11.7).
    pub struct DataOut: Opcode::DATA_OUT, |p| p.ttt = Ttt::NONE;
    1..4 {
        /// Final bit.
        pub flags: DataOutFlags,
        reserved_2: [u8; 2],
    }
    8..24 {
        /// Logical unit number.
        pub lun: Lun,
        /// Initiator Task Tag.
        pub itt: Itt,
        /// Tag of the R2T that asked; FFFFFFFFh for unsolicited data.
        pub ttt: Ttt,
    }
    24..48 {
        reserved_24: [u8; 4],
        /// ExpStatSN: acknowledges every lower StatSN.
        pub exp_stat_sn: Sn,
        reserved_32: [u8; 4],
        /// DataSN, from 0 in each sequence.
        pub data_sn: Sn,
        /// Offset of the payload in the command's data, in bytes.
        pub buffer_offset: U32,
        reserved_44: [u8; 4],
    }
}

pdu! {
    /// SCSI Data-In (RFC 7143 §11.7).
    pub struct DataIn: Opcode::DATA_IN, |p| p.ttt = Ttt::NONE;
    1..4 {
        /// Final, status, residual and acknowledge bits.
        pub flags: DataInFlags,
        reserved_2: u8,
        /// SCSI status, valid with STATUS.
        pub status: ScsiStatus,
    }
    8..24 {
        /// Logical unit number, valid with ACKNOWLEDGE.
        pub lun: Lun,
        /// Initiator Task Tag.
        pub itt: Itt,
        /// Target Transfer Tag, valid with ACKNOWLEDGE.
        pub ttt: Ttt,
    }
    response 36..48 {
        /// DataSN, from 0 per command.
        pub data_sn: Sn,
        /// Offset of the payload in the command's data, in bytes.
        pub buffer_offset: U32,
        /// Residual count in bytes, valid with STATUS.
        pub residual: U32,
    }
}

pdu! {
    /// Ready To Transfer (RFC 7143 §11.8).
    pub struct R2t: Opcode::R2T, |p| p.flags = 0x80;
    1..4 {
        /// Bit 7 is always 1.
        pub flags: u8,
        reserved_2: [u8; 2],
    }
    8..24 {
        /// Logical unit number.
        pub lun: Lun,
        /// Initiator Task Tag.
        pub itt: Itt,
        /// Target Transfer Tag.
        pub ttt: Ttt,
    }
    response 36..48 {
        /// R2TSN, from 0 per command.
        pub r2t_sn: Sn,
        /// Offset of the wanted data, in bytes.
        pub buffer_offset: U32,
        /// Desired Data Transfer Length, 1 to MaxBurstLength bytes.
        pub desired_len: U32,
    }
}
