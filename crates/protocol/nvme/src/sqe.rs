//! The submission queue entry (NVMe Base §3.3.3.1, §4.1).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::sgl::SglDescriptor;

/// What a command is, by the queue that it came by: admin, I/O, or on either 7Fh for fabrics.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct Opcode(pub u8);

impl Opcode {
    /// A fabrics command; its kind is in [`Sqe::fabrics_type`].
    pub const FABRICS: Opcode = Opcode(0x7f);
}

/// The kind of a fabrics command (FCTYPE, NVMe Base §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FabricsType(pub u8);

impl FabricsType {
    /// Property Set.
    pub const PROPERTY_SET: FabricsType = FabricsType(0x00);
    /// Connect.
    pub const CONNECT: FabricsType = FabricsType(0x01);
    /// Property Get.
    pub const PROPERTY_GET: FabricsType = FabricsType(0x04);
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: FabricsType = FabricsType(0x05);
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: FabricsType = FabricsType(0x06);
    /// Disconnect.
    pub const DISCONNECT: FabricsType = FabricsType(0x08);
}

/// Which way a command's data goes: the low two bits of its opcode, or of its fabrics type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// There is none.
    None,
    /// From the host to the controller.
    ToController,
    /// From the controller to the host.
    ToHost,
    /// Both: no command that is served does this.
    Both,
}

/// Part of a fused pair (FUSE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fuse {
    /// An ordinary command.
    No,
    /// The first of a pair.
    First,
    /// The second.
    Second,
    /// Not defined.
    Reserved,
}

/// A submission queue entry as it is on the wire: 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sqe {
    /// What to do.
    pub opcode: Opcode,
    /// FUSE in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    /// The command identifier.
    pub cid: U16,
    /// The namespace; for fabrics commands the first byte is FCTYPE.
    pub nsid: U32,
    /// Command dwords 2 and 3.
    pub cdw2: [U32; 2],
    /// The metadata pointer.
    pub mptr: U64,
    /// The data pointer: one SGL descriptor.
    pub dptr: SglDescriptor,
    /// Command dwords 10 to 15.
    pub cdw10: [U32; 6],
}

const _: () = assert!(size_of::<Sqe>() == 64);

impl Sqe {
    /// Of a fabrics command: its kind.
    pub fn fabrics_type(&self) -> FabricsType {
        FabricsType(self.nsid.get() as u8)
    }

    /// Which way its data goes.
    pub fn direction(&self) -> Direction {
        let code = if self.opcode == Opcode::FABRICS { self.fabrics_type().0 } else { self.opcode.0 };
        match code & 3 {
            0 => Direction::None,
            1 => Direction::ToController,
            2 => Direction::ToHost,
            _ => Direction::Both,
        }
    }

    /// Whether it is part of a fused pair.
    pub fn fuse(&self) -> Fuse {
        match self.flags & 3 {
            0 => Fuse::No,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// PSDT: how `dptr` is to be read. 1 (an SGL) is what fabrics prescribe.
    pub fn psdt(&self) -> u8 {
        self.flags >> 6
    }

    /// Command dword `n`, 10 to 15: there are no others.
    #[inline]
    pub fn cdw(&self, n: usize) -> u32 {
        debug_assert!((10..16).contains(&n), "dword {n}");
        n.checked_sub(10).and_then(|at| self.cdw10.get(at)).map_or(0, |dword| dword.get())
    }

    /// Command dwords `n` (low) and `n + 1` (high).
    #[inline]
    pub fn cdw_pair(&self, n: usize) -> u64 {
        u64::from(self.cdw(n)) | u64::from(self.cdw(n + 1)) << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_the_base_specification_puts_them() {
        let bytes: [u8; 64] = std::array::from_fn(|at| at as u8);
        let sqe = Sqe::read_from_bytes(&bytes).unwrap();
        assert_eq!(sqe.opcode, Opcode(0));
        assert_eq!(sqe.cid.get(), 0x0302);
        assert_eq!(sqe.nsid.get(), 0x0706_0504);
        assert_eq!(sqe.dptr.identifier, 39);
        assert_eq!(sqe.cdw(10), 0x2b2a_2928);
        assert_eq!(sqe.cdw_pair(14), 0x3f3e_3d3c_3b3a_3938);
    }

    #[test]
    fn the_direction_of_fabrics_commands_is_in_their_type() {
        let mut sqe = Sqe::read_from_bytes(&[0; 64]).unwrap();
        sqe.opcode = Opcode(2);
        assert_eq!(sqe.direction(), Direction::ToHost);
        sqe.opcode = Opcode::FABRICS;
        assert_eq!(sqe.direction(), Direction::None);
        sqe.nsid = U32::new(FabricsType::AUTHENTICATION_SEND.0.into());
        assert_eq!(sqe.direction(), Direction::ToController);
        sqe.flags = 0x42;
        assert_eq!((sqe.fuse(), sqe.psdt()), (Fuse::Second, 1));
    }
}
