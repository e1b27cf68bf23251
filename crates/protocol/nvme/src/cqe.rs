//! The completion queue entry (NVMe Base §3.3.3.2).

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::status::Status;

/// How a command ends, before its queue puts SQHD and CID to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Dwords 0 and 1.
    pub result: u64,
    /// How it went.
    pub status: Status,
}

impl Completion {
    /// Success, without a result.
    pub const SUCCESS: Completion = Completion { result: 0, status: Status::SUCCESS };
}

impl From<Status> for Completion {
    fn from(status: Status) -> Self {
        Completion { result: 0, status }
    }
}

/// A completion queue entry as it is on the wire: 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Cqe {
    /// Dwords 0 and 1.
    pub result: U64,
    /// The submission queue's head.
    pub sqhd: U16,
    /// Reserved on fabrics.
    pub sqid: U16,
    /// The command identifier.
    pub cid: U16,
    /// The status in bits 15:1; the phase tag in bit 0 is reserved on fabrics.
    pub status: U16,
}

const _: () = assert!(size_of::<Cqe>() == 16);

impl Cqe {
    /// The entry for a command's end.
    pub fn new(completion: Completion, cid: u16, sqhd: u16) -> Self {
        Cqe {
            result: U64::new(completion.result),
            sqhd: U16::new(sqhd),
            sqid: U16::ZERO,
            cid: U16::new(cid),
            status: U16::new(completion.status.0 << 1),
        }
    }

    /// How the command ended.
    pub fn completion(&self) -> Completion {
        Completion { result: self.result.get(), status: Status(self.status.get() >> 1) }
    }
}
