//! ICReq and ICResp: how a connection begins (NVMe-TCP §3.6.2.2, §3.6.2.3), and what they negotiate.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommonHeader, FatalError, PduType};

/// The coarsest data alignment: (31 + 1) × 4 bytes.
pub const HPDA_MAX: u8 = 31;
/// The least MAXH2CDATA, in bytes.
pub const MAX_H2C_DATA_LEAST: u32 = 4096;

const DGST_HEADER: u8 = 1;
const DGST_DATA: u8 = 1 << 1;

/// ICReq: what the host offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IcReq {
    /// The common header.
    pub common: CommonHeader,
    /// Version of the PDU format: 0.
    pub pfv: U16,
    /// Data in PDUs to the host begins at a multiple of (HPDA + 1) × 4 bytes; 0 to 31.
    pub hpda: u8,
    /// Digests wanted: bit 0 header, bit 1 data.
    pub dgst: u8,
    /// R2Ts per command that may be outstanding, less one.
    pub maxr2t: U32,
    /// Reserved.
    pub reserved: [u8; 112],
}

/// ICResp: what the controller grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IcResp {
    /// The common header.
    pub common: CommonHeader,
    /// Version of the PDU format: 0.
    pub pfv: U16,
    /// Data in PDUs to the controller begins at a multiple of (CPDA + 1) × 4 bytes; 0 to 31.
    pub cpda: u8,
    /// Digests in use: bit 0 header, bit 1 data.
    pub dgst: u8,
    /// Longest data of one H2CData, in bytes: 4096 and more, a multiple of 4.
    pub maxh2cdata: U32,
    /// Reserved.
    pub reserved: [u8; 112],
}

const _: () = assert!(size_of::<IcReq>() == IcReq::LEN && size_of::<IcResp>() == IcResp::LEN);

/// What both sides settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionParameters {
    /// CRC32C behind headers.
    pub header_digest: bool,
    /// CRC32C behind data.
    pub data_digest: bool,
    /// Data to the host begins at a multiple of so many bytes: 4 to 128.
    pub host_alignment: u8,
    /// Data to the controller does.
    pub controller_alignment: u8,
    /// R2Ts of one command that may be outstanding; 1 and more.
    pub r2ts: u32,
    /// Longest data of one H2CData, in bytes.
    pub max_h2c_data: u32,
}

impl IcReq {
    /// Bytes of the header, which is all there is.
    pub const LEN: usize = 128;

    const AT_PFV: u32 = 8;
    const AT_HPDA: u32 = 10;

    /// An offer; `r2ts` is 1 and more.
    pub fn new(hpda: u8, header_digest: bool, data_digest: bool, r2ts: u32) -> Self {
        IcReq {
            common: CommonHeader::header_only(PduType::IC_REQ, Self::LEN),
            pfv: U16::ZERO,
            hpda,
            dgst: digest_flags(header_digest, data_digest),
            maxr2t: U32::new(r2ts.saturating_sub(1)),
            reserved: [0; 112],
        }
    }

    /// The header at the beginning of `bytes`, if so many are there.
    pub fn from_prefix(bytes: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// Whether what it offers can be met.
    pub fn check(&self) -> Result<(), FatalError> {
        if self.pfv.get() != 0 {
            return Err(FatalError::unsupported_parameter(Self::AT_PFV));
        }
        if self.hpda > HPDA_MAX {
            return Err(FatalError::invalid_field(Self::AT_HPDA));
        }
        Ok(())
    }

    /// Whether a header digest is wanted.
    pub fn header_digest(&self) -> bool {
        self.dgst & DGST_HEADER != 0
    }

    /// Whether a data digest is wanted.
    pub fn data_digest(&self) -> bool {
        self.dgst & DGST_DATA != 0
    }
}

impl IcResp {
    /// Bytes of the header, which is all there is.
    pub const LEN: usize = 128;

    const AT_PFV: u32 = 8;
    const AT_CPDA: u32 = 10;
    const AT_DGST: u32 = 11;
    const AT_MAXH2CDATA: u32 = 12;

    /// What is granted.
    pub fn new(parameters: &ConnectionParameters) -> Self {
        IcResp {
            common: CommonHeader::header_only(PduType::IC_RESP, Self::LEN),
            pfv: U16::ZERO,
            cpda: parameters.controller_alignment / 4 - 1,
            dgst: digest_flags(parameters.header_digest, parameters.data_digest),
            maxh2cdata: U32::new(parameters.max_h2c_data),
            reserved: [0; 112],
        }
    }

    /// The header at the beginning of `bytes`, if so many are there.
    pub fn from_prefix(bytes: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// What it grants to `asked`; refused if that is more than was asked for, or makes no sense.
    pub fn parameters(&self, asked: &IcReq) -> Result<ConnectionParameters, FatalError> {
        if self.pfv.get() != 0 {
            return Err(FatalError::unsupported_parameter(Self::AT_PFV));
        }
        if self.cpda > HPDA_MAX {
            return Err(FatalError::invalid_field(Self::AT_CPDA));
        }
        if self.dgst & !asked.dgst != 0 {
            return Err(FatalError::invalid_field(Self::AT_DGST));
        }
        let most = self.maxh2cdata.get();
        if most < MAX_H2C_DATA_LEAST || !most.is_multiple_of(4) {
            return Err(FatalError::invalid_field(Self::AT_MAXH2CDATA));
        }
        Ok(ConnectionParameters {
            header_digest: self.dgst & DGST_HEADER != 0,
            data_digest: self.dgst & DGST_DATA != 0,
            host_alignment: alignment_bytes(asked.hpda),
            controller_alignment: alignment_bytes(self.cpda),
            r2ts: asked.maxr2t.get().saturating_add(1),
            max_h2c_data: most,
        })
    }
}

/// Bytes of the alignment that HPDA or CPDA stands for.
pub(crate) fn alignment_bytes(pda: u8) -> u8 {
    (pda.min(HPDA_MAX) + 1) * 4
}

fn digest_flags(header: bool, data: bool) -> u8 {
    if header && data {
        DGST_HEADER | DGST_DATA
    } else if header {
        DGST_HEADER
    } else if data {
        DGST_DATA
    } else {
        0
    }
}
