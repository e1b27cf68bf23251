//! H2CTermReq and C2HTermReq: a fatal error, named (NVMe-TCP §3.6.2.4, §3.6.2.5).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommonHeader, PduType};

/// Most bytes of the offending header that a TermReq repeats.
pub const TERM_DATA_MAX: usize = 128;

/// FES: what went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FatalStatus(pub u16);

impl FatalStatus {
    /// A header field is wrong; FEI is its offset.
    pub const INVALID_FIELD: FatalStatus = FatalStatus(1);
    /// A PDU that may not come now.
    pub const SEQUENCE: FatalStatus = FatalStatus(2);
    /// The header digest is wrong; FEI is the one received.
    pub const HEADER_DIGEST: FatalStatus = FatalStatus(3);
    /// Data outside of what was asked for.
    pub const OUT_OF_RANGE: FatalStatus = FatalStatus(4);
    /// More data than one PDU may carry, or more R2Ts than were offered.
    pub const LIMIT_EXCEEDED: FatalStatus = FatalStatus(5);
    /// A parameter that is not supported; FEI is its offset.
    pub const UNSUPPORTED: FatalStatus = FatalStatus(6);
}

/// Why a PDU ends its connection: what the TermReq says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatalError {
    /// FES.
    pub fes: FatalStatus,
    /// FEI: an offset, a digest, or 0.
    pub fei: u32,
}

impl FatalError {
    /// The field at this offset is wrong.
    pub const fn invalid_field(at: u32) -> Self {
        FatalError { fes: FatalStatus::INVALID_FIELD, fei: at }
    }

    /// The parameter at this offset is not supported.
    pub const fn unsupported_parameter(at: u32) -> Self {
        FatalError { fes: FatalStatus::UNSUPPORTED, fei: at }
    }

    /// It may not come now; `at` is the field that shows it.
    pub const fn sequence_error(at: u32) -> Self {
        FatalError { fes: FatalStatus::SEQUENCE, fei: at }
    }

    /// An error that FEI says nothing of.
    pub const fn without_fei(fes: FatalStatus) -> Self {
        FatalError { fes, fei: 0 }
    }

    /// This header digest was received, and is wrong.
    pub const fn header_digest_error(received: [u8; 4]) -> Self {
        FatalError { fes: FatalStatus::HEADER_DIGEST, fei: u32::from_le_bytes(received) }
    }
}

/// A TermReq of either side. Up to [`TERM_DATA_MAX`] bytes of the offending header follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TermReq {
    /// The common header.
    pub common: CommonHeader,
    /// What went wrong.
    pub fes: U16,
    /// Where.
    pub fei: U32,
    /// Reserved.
    pub reserved: [u8; 10],
}

const _: () = assert!(size_of::<TermReq>() == TermReq::LEN);

impl TermReq {
    /// Bytes of the header.
    pub const LEN: usize = 24;

    /// A TermReq of this type, which `data` bytes of the offending header follow.
    ///
    /// # Panics
    /// If those are more than [`TERM_DATA_MAX`].
    pub fn new(pdu_type: PduType, fatal: FatalError, data: usize) -> Self {
        assert!(data <= TERM_DATA_MAX, "a TermReq repeats a header");
        let mut common = CommonHeader::header_only(pdu_type, Self::LEN);
        common.plen = U32::new((Self::LEN + data) as u32);
        TermReq { common, fes: U16::new(fatal.fes.0), fei: U32::new(fatal.fei), reserved: [0; 10] }
    }

    /// The header at the beginning of `bytes`, if so many are there.
    pub fn from_prefix(bytes: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// What it says.
    pub fn fatal_error(&self) -> FatalError {
        FatalError { fes: FatalStatus(self.fes.get()), fei: self.fei.get() }
    }
}
