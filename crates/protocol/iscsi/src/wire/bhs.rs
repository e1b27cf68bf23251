//! The Basic Header Segment that all PDUs share (RFC 7143 §11.2.1) and the lengths that follow from it.
//!
//! Lengths come from the peer: DataSegmentLength has 24 bits and TotalAHSLength 8, so a sum of padded
//! segments fits `usize` everywhere; the caller compares it with its own limit before it allocates.

use super::codes::codes;
use super::numbers::{Itt, Lun};
use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a Basic Header Segment.
pub const BHS_LEN: usize = 48;

/// Largest value of the 24-bit DataSegmentLength field.
pub const SEGMENT_LEN_MAX: u32 = (1 << 24) - 1;

codes! {
    /// Operation code, bits 5:0 of byte 0 (RFC 7143 §11.2.1.2).
    pub struct Opcode {
        /// NOP-Out: ping, or the answer to the target's ping.
        NOP_OUT = 0x00,
        /// SCSI Command.
        SCSI_COMMAND = 0x01,
        /// Task Management Function Request.
        TMF_REQUEST = 0x02,
        /// Login Request.
        LOGIN_REQUEST = 0x03,
        /// Text Request.
        TEXT_REQUEST = 0x04,
        /// SCSI Data-Out.
        DATA_OUT = 0x05,
        /// Logout Request.
        LOGOUT_REQUEST = 0x06,
        /// SNACK Request.
        SNACK = 0x10,
        /// NOP-In: ping answer, or the target's ping.
        NOP_IN = 0x20,
        /// SCSI Response.
        SCSI_RESPONSE = 0x21,
        /// Task Management Function Response.
        TMF_RESPONSE = 0x22,
        /// Login Response.
        LOGIN_RESPONSE = 0x23,
        /// Text Response.
        TEXT_RESPONSE = 0x24,
        /// SCSI Data-In.
        DATA_IN = 0x25,
        /// Logout Response.
        LOGOUT_RESPONSE = 0x26,
        /// Ready To Transfer.
        R2T = 0x31,
        /// Asynchronous Message.
        ASYNC_MESSAGE = 0x32,
        /// Reject.
        REJECT = 0x3f,
    }
}

/// Byte 0: the opcode and the immediate bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct OpByte(pub u8);

impl OpByte {
    const IMMEDIATE: u8 = 0x40;

    /// An opcode without the immediate bit.
    #[must_use]
    #[inline]
    pub const fn new(opcode: Opcode) -> Self {
        Self(opcode.0)
    }

    /// The same opcode, marked for immediate delivery.
    #[must_use]
    pub const fn with_immediate(self) -> Self {
        Self(self.0 | Self::IMMEDIATE)
    }

    /// The opcode in bits 5:0.
    #[must_use]
    #[inline]
    pub const fn opcode(self) -> Opcode {
        Opcode(self.0 & 0x3f)
    }

    /// Whether the request is for immediate delivery (RFC 7143 §11.2.1.1).
    #[must_use]
    #[inline]
    pub const fn is_immediate(self) -> bool {
        self.0 & Self::IMMEDIATE != 0
    }
}

impl fmt::Debug for OpByte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.is_immediate() { "+I" } else { "" };
        write!(f, "{:?}{mark}", self.opcode())
    }
}

/// DataSegmentLength: 24 bits, bytes of payload without padding.
#[derive(Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct Len24([u8; 3]);

impl Len24 {
    /// Takes a length of at most [`SEGMENT_LEN_MAX`] bytes.
    #[must_use]
    pub const fn new(len: u32) -> Option<Self> {
        match len.to_be_bytes() {
            [0, a, b, c] => Some(Self([a, b, c])),
            _ => None,
        }
    }

    /// The length in bytes.
    #[must_use]
    pub const fn value(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_be_bytes([0, a, b, c])
    }
}

impl fmt::Debug for Len24 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value())
    }
}

/// Padding bytes (0 to 3) behind a segment of `len` bytes.
#[must_use]
#[inline]
pub const fn pad_len(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// The zeros that pad a segment of `len` bytes.
#[must_use]
#[inline]
pub const fn padding(len: usize) -> &'static [u8] {
    match pad_len(len) {
        0 => &[],
        1 => &[0; 1],
        2 => &[0; 2],
        _three => &[0; 3],
    }
}

/// `len` and its padding; `None` where that exceeds `usize`.
#[must_use]
pub const fn padded_len(len: usize) -> Option<usize> {
    len.checked_add(pad_len(len))
}

/// The header that all PDUs share; bytes whose meaning depends on the opcode stay opaque.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Bhs {
    /// Opcode and immediate bit.
    pub op: OpByte,
    /// Byte 1: bit 7 is the final bit in most PDUs.
    pub flags: u8,
    /// Bytes 2-3, by opcode.
    pub specific: [u8; 2],
    /// TotalAHSLength in 4-byte words.
    pub ahs_words: u8,
    /// DataSegmentLength.
    pub data_segment_len: Len24,
    /// LUN, or by opcode (bytes 8-15).
    pub lun: Lun,
    /// Initiator Task Tag (bytes 16-19).
    pub itt: Itt,
    /// Bytes 20-47, by opcode.
    pub rest: [u8; 28],
}

impl Bhs {
    /// A header of zeros.
    pub const ZERO: Bhs = Bhs {
        op: OpByte(0),
        flags: 0,
        specific: [0; 2],
        ahs_words: 0,
        data_segment_len: Len24([0; 3]),
        lun: Lun([0; 8]),
        itt: Itt::new(0),
        rest: [0; 28],
    };

    /// Views the first 48 of at least 48 bytes as a header.
    #[must_use]
    pub fn from_prefix(bytes: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(bytes).ok().map(|(bhs, _)| bhs)
    }

    /// The opcode.
    #[must_use]
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        self.op.opcode()
    }

    /// Whether the request is for immediate delivery.
    #[must_use]
    #[inline]
    pub const fn is_immediate(&self) -> bool {
        self.op.is_immediate()
    }

    /// Bytes of all additional header segments, padding included: 0 to 1020.
    #[must_use]
    #[inline]
    pub const fn ahs_len(&self) -> usize {
        self.ahs_words as usize * 4
    }

    /// Bytes of payload without padding: 0 to 2^24-1.
    #[must_use]
    #[inline]
    pub const fn data_len(&self) -> usize {
        self.data_segment_len.value() as usize
    }

    /// Bytes of payload with padding: 0 to 2^24.
    #[must_use]
    pub const fn padded_data_len(&self) -> usize {
        self.data_len() + pad_len(self.data_len())
    }

    /// The header's 48 bytes, as a Reject carries them.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8; BHS_LEN] {
        zerocopy::transmute_ref!(self)
    }
}

impl fmt::Debug for Bhs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bhs({:?}, {:?}, ahs {}, data {})", self.op, self.itt, self.ahs_len(), self.data_len())
    }
}

/// A typed view of a [`Bhs`]. The view is total: every 48 bytes are some value of every PDU type, so the
/// caller checks the opcode and the reader of a field checks its range.
pub trait Pdu: Copy {
    /// The opcode that this layout belongs to.
    const OPCODE: Opcode;

    /// A header of zeros but for the opcode and the bits that are always 1 in this PDU.
    fn new() -> Self;

    /// Views a header as this PDU.
    fn from_bhs(bhs: &Bhs) -> &Self;

    /// Views this PDU as a header.
    fn as_bhs(&self) -> &Bhs;

    /// Copies the header out.
    fn to_bhs(&self) -> Bhs {
        *self.as_bhs()
    }

    /// Sets DataSegmentLength.
    ///
    /// # Panics
    /// When `len` exceeds 24 bits: our own segments are limited by the peer's MaxRecvDataSegmentLength, which
    /// has 24 bits.
    fn set_data_len(&mut self, len: usize);
}

/// Declares the 48-byte header of a PDU and implements [`Pdu`]. The fields are given by the bytes where they
/// stand; those that stand at the same bytes in every PDU, or in every request or response, are added. The
/// block behind the opcode sets the bits that are always 1.
macro_rules! pdu {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $opcode:expr, |$pdu:ident| $fixed:expr;
        1..4 { $($flags:tt)* } 8..24 { $($tags:tt)* } request 32..48 { $($rest:tt)* }
    ) => {
        pdu! {
            $(#[$meta])*
            pub struct $name: $opcode, |$pdu| $fixed;
            1..4 { $($flags)* } 8..24 { $($tags)* } 24..48 {
                /// CmdSN.
                pub cmd_sn: $crate::wire::Sn,
                /// ExpStatSN: acknowledges every lower StatSN.
                pub exp_stat_sn: $crate::wire::Sn,
                $($rest)*
            }
        }
    };
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $opcode:expr, |$pdu:ident| $fixed:expr;
        1..4 { $($flags:tt)* } 8..24 { $($tags:tt)* } response 36..48 { $($rest:tt)* }
    ) => {
        pdu! {
            $(#[$meta])*
            pub struct $name: $opcode, |$pdu| $fixed;
            1..4 { $($flags)* } 8..24 { $($tags)* } 24..48 {
                /// StatSN. It counts what carries a status or answers a request: no R2T, no Data-In without
                /// STATUS, no NOP-In without ITT.
                pub stat_sn: $crate::wire::Sn,
                /// ExpCmdSN.
                pub exp_cmd_sn: $crate::wire::Sn,
                /// MaxCmdSN.
                pub max_cmd_sn: $crate::wire::Sn,
                $($rest)*
            }
        }
    };
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $opcode:expr, |$pdu:ident| $fixed:expr;
        1..4 { $($flags:tt)* } 8..24 { $($tags:tt)* } 24..48 { $($rest:tt)* }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            ::zerocopy::FromBytes, ::zerocopy::IntoBytes, ::zerocopy::Immutable, ::zerocopy::KnownLayout,
            ::zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            /// Opcode and immediate bit.
            pub op: $crate::wire::OpByte,
            $($flags)*
            /// TotalAHSLength in 4-byte words.
            pub ahs_words: u8,
            /// DataSegmentLength.
            pub data_segment_len: $crate::wire::Len24,
            $($tags)*
            $($rest)*
        }

        const _: () = assert!(size_of::<$name>() == $crate::wire::BHS_LEN);

        impl $crate::wire::Pdu for $name {
            const OPCODE: $crate::wire::Opcode = $opcode;

            fn new() -> Self {
                let mut $pdu: Self = ::zerocopy::FromZeros::new_zeroed();
                $pdu.op = $crate::wire::OpByte::new($opcode);
                let () = $fixed;
                $pdu
            }

            #[inline]
            fn from_bhs(bhs: &$crate::wire::Bhs) -> &Self {
                ::zerocopy::transmute_ref!(bhs)
            }

            #[inline]
            fn as_bhs(&self) -> &$crate::wire::Bhs {
                ::zerocopy::transmute_ref!(self)
            }

            fn set_data_len(&mut self, len: usize) {
                let len = u32::try_from(len).ok().and_then($crate::wire::Len24::new);
                self.data_segment_len = len.expect("a segment of ours has at most 24 bits of length");
            }
        }
    };
}
pub(super) use pdu;

/// A byte of flag bits with named bits.
macro_rules! flags {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$doc:meta])* $bit:ident = $value:expr,)* }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Debug, Default,
            ::zerocopy::FromBytes, ::zerocopy::IntoBytes, ::zerocopy::Immutable, ::zerocopy::KnownLayout,
            ::zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name(pub u8);

        impl $name {
            $($(#[$doc])* pub const $bit: Self = Self($value);)*

            /// Whether every bit of `other` is set here.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// These bits and those of `other`.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// These bits without those of `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }
    };
}
pub(super) use flags;
