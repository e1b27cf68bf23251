//! The headers of capsules and of data PDUs (NVMe-TCP §3.6.2).

use nvme::{Cqe, Sqe};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommonHeader, Flags, PduType};

/// Makes a header of a structure: its type, its length, and how it is read.
macro_rules! header {
    ($name:ident, $len:literal, $pdu_type:expr) => {
        const _: () = assert!(size_of::<$name>() == $len);

        impl $name {
            /// Bytes of the header.
            pub const LEN: usize = $len;
            /// Its type.
            pub const TYPE: PduType = $pdu_type;

            /// The header at the beginning of `bytes`, if so many are there.
            pub fn from_prefix(bytes: &[u8]) -> Option<&Self> {
                Self::ref_from_prefix(bytes).ok().map(|(header, _)| header)
            }
        }
    };
}

/// CapsuleCmd: a command, perhaps with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CapsuleCmd {
    /// The common header.
    pub common: CommonHeader,
    /// The command.
    pub sqe: Sqe,
}

header!(CapsuleCmd, 72, PduType::CAPSULE_CMD);

/// CapsuleResp: a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CapsuleResp {
    /// The common header.
    pub common: CommonHeader,
    /// The completion.
    pub cqe: Cqe,
}

header!(CapsuleResp, 24, PduType::CAPSULE_RESP);

/// H2CData: data that an R2T asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct H2cData {
    /// The common header.
    pub common: CommonHeader,
    /// The command's identifier.
    pub cccid: U16,
    /// The transfer tag of the R2T.
    pub ttag: U16,
    /// Offset of the data in the command's data.
    pub datao: U32,
    /// Bytes of data.
    pub datal: U32,
    /// Reserved.
    pub reserved: U32,
}

header!(H2cData, 24, PduType::H2C_DATA);

impl H2cData {
    /// Where TTAG stands, for the FEI of a TermReq.
    pub const AT_TTAG: u32 = 10;
}

/// C2HData: data of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct C2hData {
    /// The common header.
    pub common: CommonHeader,
    /// The command's identifier.
    pub cccid: U16,
    /// Reserved.
    pub reserved1: U16,
    /// Offset of the data in the command's data.
    pub datao: U32,
    /// Bytes of data.
    pub datal: U32,
    /// Reserved.
    pub reserved2: U32,
}

header!(C2hData, 24, PduType::C2H_DATA);

/// R2T: the controller takes data of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct R2t {
    /// The common header.
    pub common: CommonHeader,
    /// The command's identifier.
    pub cccid: U16,
    /// The controller's tag for the transfer.
    pub ttag: U16,
    /// Offset of the wanted data in the command's data.
    pub r2to: U32,
    /// Bytes wanted.
    pub r2tl: U32,
    /// Reserved.
    pub reserved: U32,
}

header!(R2t, 24, PduType::R2T);

impl CapsuleCmd {
    /// A command without data.
    pub fn new(sqe: Sqe) -> Self {
        CapsuleCmd { common: CommonHeader::header_only(Self::TYPE, Self::LEN), sqe }
    }
}

impl CapsuleResp {
    /// A completion.
    pub fn new(cqe: Cqe) -> Self {
        CapsuleResp { common: CommonHeader::header_only(Self::TYPE, Self::LEN), cqe }
    }
}

impl H2cData {
    /// `datal` bytes from `datao` on; `last` of what the R2T asked for.
    pub fn new(cccid: u16, ttag: u16, datao: u32, datal: u32, last: bool) -> Self {
        let mut common = CommonHeader::header_only(Self::TYPE, Self::LEN);
        common.flags = Flags(0).with(Flags::LAST, last);
        H2cData {
            common,
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            datao: U32::new(datao),
            datal: U32::new(datal),
            reserved: U32::ZERO,
        }
    }
}

impl C2hData {
    /// `datal` bytes from `datao` on.
    pub fn new(cccid: u16, datao: u32, datal: u32, flags: Flags) -> Self {
        let mut common = CommonHeader::header_only(Self::TYPE, Self::LEN);
        common.flags = flags;
        C2hData {
            common,
            cccid: U16::new(cccid),
            reserved1: U16::ZERO,
            datao: U32::new(datao),
            datal: U32::new(datal),
            reserved2: U32::ZERO,
        }
    }
}

impl R2t {
    /// Asks for `r2tl` bytes from `r2to` on.
    pub fn new(cccid: u16, ttag: u16, r2to: u32, r2tl: u32) -> Self {
        R2t {
            common: CommonHeader::header_only(Self::TYPE, Self::LEN),
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            r2to: U32::new(r2to),
            r2tl: U32::new(r2tl),
            reserved: U32::ZERO,
        }
    }
}
