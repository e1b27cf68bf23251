//! Tags, identifiers and serial numbers (RFC 7143 §4.2.2, §11.2.1; RFC 1982).
//!
//! Each has the layout of its wire field, so headers hold them directly. A tag is opaque: it may be compared
//! and echoed, never used as an index.

use core::fmt;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! number {
    ($(#[$meta:meta])* $name:ident, $wire:ty, $native:ty, none: $none:expr) => {
        number!($(#[$meta])* $name, $wire, $native);

        impl $name {
            /// The value that names nothing.
            pub const NONE: $name = $name::new($none);

            /// Whether it names nothing.
            #[must_use]
            #[inline]
            pub fn is_none(self) -> bool {
                self == Self::NONE
            }
        }
    };
    ($(#[$meta:meta])* $name:ident, $wire:ty, $native:ty) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name($wire);

        impl $name {
            /// From a number in the host's byte order.
            #[must_use]
            #[inline]
            pub const fn new(value: $native) -> Self {
                Self(<$wire>::new(value))
            }

            /// The number in the host's byte order.
            #[must_use]
            #[inline]
            pub const fn value(self) -> $native {
                self.0.get()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.value())
            }
        }
    };
}

/// Bytes that are compared, ordered and echoed, and mean nothing here.
macro_rules! opaque {
    ($(#[$meta:meta])* pub struct $name:ident(pub [u8; $len:literal]);) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default,
            FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name(pub [u8; $len]);
    };
}

number!(
    /// Initiator Task Tag (RFC 7143 §11.2.1.8), unique within the session while the task lives.
    Itt, U32, u32, none: u32::MAX
);
number!(
    /// Target Transfer Tag (RFC 7143 §11.7.4, §11.10.4).
    Ttt, U32, u32, none: u32::MAX
);
number!(
    /// Target Session Identifying Handle (RFC 7143 §11.12.6); 0 asks for a new session.
    Tsih, U16, u16, none: 0
);
number!(
    /// Connection ID (RFC 7143 §11.12.7), chosen by the initiator, unique within a session.
    Cid, U16, u16
);
number!(
    /// A 32-bit serial number: CmdSN, StatSN, DataSN, R2TSN (RFC 7143 §4.2.2), compared as RFC 1982 says.
    ///
    /// Two numbers exactly 2^31 apart have no order: then neither [`lt`](Sn::lt) holds.
    Sn, U32, u32
);

impl Sn {
    /// This number plus `n`, modulo 2^32.
    #[must_use]
    #[inline]
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.value().wrapping_add(n))
    }

    /// This number minus `n`, modulo 2^32.
    #[must_use]
    #[inline]
    pub const fn sub(self, n: u32) -> Self {
        Self::new(self.value().wrapping_sub(n))
    }

    /// The number that follows.
    #[must_use]
    #[inline]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// Returns this number and steps to the next.
    #[inline]
    pub fn take(&mut self) -> Self {
        let now = *self;
        *self = now.next();
        now
    }

    /// How many steps lead from `earlier` to this number, modulo 2^32.
    #[must_use]
    #[inline]
    pub const fn steps_since(self, earlier: Self) -> u32 {
        self.value().wrapping_sub(earlier.value())
    }

    /// Whether this number comes before `other` (RFC 1982 §3.2).
    #[must_use]
    #[inline]
    pub const fn lt(self, other: Self) -> bool {
        let ahead = other.steps_since(self);
        ahead != 0 && ahead < 1 << 31
    }

    /// Whether this number comes before `other` or is it.
    #[must_use]
    #[inline]
    pub const fn le(self, other: Self) -> bool {
        other.steps_since(self) < 1 << 31
    }
}

opaque! {
    /// Initiator Session ID (RFC 7143 §11.12.5): 6 bytes, the initiator's half of the session's name.
    pub struct Isid(pub [u8; 6]);
}

impl Isid {
    /// The format "random" (bits 7:6 of byte 0 are 10b) with a 24-bit number and a qualifier.
    #[must_use]
    pub const fn random(number: [u8; 3], qualifier: u16) -> Self {
        let q = qualifier.to_be_bytes();
        Self([0x80, number[0], number[1], number[2], q[0], q[1]])
    }
}

impl fmt::Debug for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Twelve hexadecimal digits, as in SCSI port names (RFC 7143 §4.4.2).
impl fmt::Display for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

opaque! {
    /// Logical unit number as SAM-5 §4.7 forms it: 8 bytes, opaque here.
    pub struct Lun(pub [u8; 8]);
}

impl Lun {
    /// A number below 2^14 in single-level form: peripheral addressing below 256, flat space above.
    /// Larger numbers have no such form.
    #[must_use]
    pub const fn single_level(number: u16) -> Option<Self> {
        let [high, low] = number.to_be_bytes();
        match number {
            0..=0xff => Some(Self([0, low, 0, 0, 0, 0, 0, 0])),
            0x100..=0x3fff => Some(Self([0x40 | high, low, 0, 0, 0, 0, 0, 0])),
            _ => None,
        }
    }
}

impl fmt::Debug for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lun({:#018x})", u64::from_be_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_order_wraps() {
        let last = Sn::new(u32::MAX);
        let zero = Sn::new(0);
        assert!(last.lt(zero) && last.le(zero) && !zero.lt(last) && !zero.le(last));
        assert!(!zero.lt(zero) && zero.le(zero));
        assert_eq!(last.next(), zero);
        assert_eq!(zero.steps_since(last), 1);
        assert_eq!(zero.sub(1), last);
        assert_eq!(Sn::new(0xffff_fff0).add(0x20), Sn::new(0x10));
    }

    #[test]
    fn serial_order_has_no_answer_at_half_the_circle() {
        let a = Sn::new(7);
        let b = a.add(1 << 31);
        assert!(!a.lt(b) && !b.lt(a));
        assert!(a.lt(a.add((1 << 31) - 1)));
        assert!(a.add((1 << 31) + 1).lt(a));
    }

    #[test]
    fn take_returns_then_steps() {
        let mut sn = Sn::new(u32::MAX);
        assert_eq!(sn.take(), Sn::new(u32::MAX));
        assert_eq!(sn, Sn::new(0));
    }

    #[test]
    fn luns_and_isids_show_their_bytes() {
        assert_eq!(Lun::single_level(3), Some(Lun([0, 3, 0, 0, 0, 0, 0, 0])));
        assert_eq!(Lun::single_level(0x1234), Some(Lun([0x52, 0x34, 0, 0, 0, 0, 0, 0])));
        assert_eq!(Lun::single_level(0x4000), None);
        assert_eq!(Isid::random([1, 2, 3], 0x0405).to_string(), "800102030405");
    }
}
