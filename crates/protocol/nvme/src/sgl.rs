//! The scatter-gather list descriptor (NVMe Base §4.1.2), in the two forms used by NVMe/TCP.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A descriptor as it is on the wire: 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SglDescriptor {
    /// An address, or an offset in the capsule.
    pub address: U64,
    /// Bytes.
    pub length: U32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// Type in bits 7:4, subtype in bits 3:0.
    pub identifier: u8,
}

const _: () = assert!(size_of::<SglDescriptor>() == 16);

impl SglDescriptor {
    /// Data Block, subtype Offset: the data is in the capsule.
    pub const IN_CAPSULE: u8 = 0x01;
    /// Transport Data Block, subtype Transport: the data goes by data PDUs.
    pub const TRANSPORT: u8 = 0x5a;
}
