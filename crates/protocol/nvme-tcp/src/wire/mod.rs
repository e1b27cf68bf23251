//! PDUs as bytes and as values (NVMe-TCP §3.6).
//!
//! A PDU is `header | header digest | padding | data | data digest`. [`PduFrame`] is its common header, checked
//! once; the structures here are the headers. All numbers are little-endian.

mod frame;
mod init;
mod pdus;
mod term;

#[cfg(test)]
mod tests;

pub use frame::{PduFrame, PduLimits, Sender};
pub(crate) use init::alignment_bytes;
pub use init::{ConnectionParameters, HPDA_MAX, IcReq, IcResp, MAX_H2C_DATA_LEAST};
pub use pdus::{C2hData, CapsuleCmd, CapsuleResp, H2cData, R2t};
pub use term::{FatalError, FatalStatus, TERM_DATA_MAX, TermReq};

use buf::crc32c::Crc32c;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the common header.
pub const COMMON_LEN: usize = 8;
/// Bytes of a digest.
pub const DIGEST_LEN: usize = 4;
/// In-capsule data that an admin queue, and every fabrics command, may carry (NVMe-TCP §3.3).
pub const ADMIN_CAPSULE_MAX: u32 = 8192;

/// What a PDU is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct PduType(pub u8);

impl PduType {
    /// The host begins a connection.
    pub const IC_REQ: PduType = PduType(0x00);
    /// The controller agrees.
    pub const IC_RESP: PduType = PduType(0x01);
    /// The host names an error and ends the connection.
    pub const H2C_TERM_REQ: PduType = PduType(0x02);
    /// The controller does.
    pub const C2H_TERM_REQ: PduType = PduType(0x03);
    /// A command.
    pub const CAPSULE_CMD: PduType = PduType(0x04);
    /// A completion.
    pub const CAPSULE_RESP: PduType = PduType(0x05);
    /// Data of a write.
    pub const H2C_DATA: PduType = PduType(0x06);
    /// Data of a read.
    pub const C2H_DATA: PduType = PduType(0x07);
    /// Ready to take data of a write.
    pub const R2T: PduType = PduType(0x09);
}

/// The flags of the common header.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct Flags(pub u8);

impl Flags {
    /// A header digest follows the header.
    pub const HEADER_DIGEST: Flags = Flags(1);
    /// A data digest follows the data.
    pub const DATA_DIGEST: Flags = Flags(1 << 1);
    /// The last data PDU: of an R2T (H2CData), or of a command (C2HData).
    pub const LAST: Flags = Flags(1 << 2);
    /// C2HData: the command has succeeded, and no CapsuleResp follows.
    pub const SUCCESS: Flags = Flags(1 << 3);

    /// Whether all of `other` is set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// With `other` set, if `so`.
    #[must_use]
    pub const fn with(self, other: Flags, so: bool) -> Flags {
        if so { Flags(self.0 | other.0) } else { self }
    }
}

/// What every PDU begins with (NVMe-TCP §3.6.1): 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommonHeader {
    /// What it is.
    pub pdu_type: PduType,
    /// Its flags.
    pub flags: Flags,
    /// Bytes of the header, without its digest.
    pub hlen: u8,
    /// Where the data begins, counted from the PDU's start; 0 if there is none.
    pub pdo: u8,
    /// Bytes of the whole PDU.
    pub plen: U32,
}

const _: () = assert!(size_of::<CommonHeader>() == COMMON_LEN);

impl CommonHeader {
    /// Offsets of the fields, for the FEI of a TermReq.
    pub const AT_TYPE: u32 = 0;
    /// Of FLAGS.
    pub const AT_FLAGS: u32 = 1;
    /// Of HLEN.
    pub const AT_HLEN: u32 = 2;
    /// Of PDO.
    pub const AT_PDO: u32 = 3;
    /// Of PLEN.
    pub const AT_PLEN: u32 = 4;

    /// Of a PDU that is a header and nothing else.
    pub(crate) fn header_only(pdu_type: PduType, hlen: usize) -> Self {
        CommonHeader { pdu_type, flags: Flags(0), hlen: hlen as u8, pdo: 0, plen: U32::new(hlen as u32) }
    }
}

/// What stands between a header and its data at most: both alignments are 128 bytes at most.
const PADDING: [u8; 128] = [0; 128];

/// So much of it.
pub(crate) fn padding(len: usize) -> &'static [u8] {
    PADDING.get(..len).unwrap_or(&PADDING)
}

/// The digest of `bytes` as it stands on the wire.
pub fn crc32c_digest(bytes: &[u8]) -> [u8; DIGEST_LEN] {
    let mut crc = Crc32c::new();
    crc.update(bytes);
    crc.to_wire_bytes()
}
