//! Logical unit numbers (SAM-5 §4.7): eight bytes on the wire, one number here.
//!
//! Only single level addresses exist; bytes of further levels must be zero, so that no two forms of garbage
//! name the same unit by accident.

use crate::wire::{be16, be24, bits};

/// The number of a logical unit, below 2^24.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Lun(u32);

impl Lun {
    /// The highest number.
    pub const MAX: Lun = Lun(0xff_ffff);

    /// `None`: the number does not fit into an extended flat address.
    pub const fn new(number: u32) -> Option<Lun> {
        if number <= Lun::MAX.0 { Some(Lun(number)) } else { None }
    }

    /// The number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// What a LUN field names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LunAddress {
    /// A logical unit.
    Unit(Lun),
    /// A well known logical unit; 01h is REPORT LUNS.
    WellKnown(u8),
}

/// W-LUN number of REPORT LUNS.
pub const REPORT_LUNS_WLUN: u8 = 0x01;

const PERIPHERAL_METHOD: u8 = 0;
const FLAT_METHOD: u8 = 1;
const EXTENDED_METHOD: u8 = 3;
/// First byte of an extended flat address with three bytes of number (length 1, method 2).
const EXTENDED_FLAT: u8 = 0xd2;
/// First byte of a well known logical unit (length 0, method 1).
const WELL_KNOWN: u8 = 0xc1;

impl LunAddress {
    /// Reads a LUN field. `None`: a form that names no logical unit here; answer LOGICAL UNIT NOT SUPPORTED.
    pub fn parse(field: &[u8; 8]) -> Option<LunAddress> {
        let (address, used) = match (bits(field[0], 7, 6), field[0]) {
            // A bus identifier other than 0 would name a second level.
            (PERIPHERAL_METHOD, 0) => (LunAddress::Unit(Lun(u32::from(field[1]))), 2),
            (FLAT_METHOD, _) => (LunAddress::Unit(Lun(u32::from(be16(field, 0) & 0x3fff))), 2),
            (EXTENDED_METHOD, EXTENDED_FLAT) => (LunAddress::Unit(Lun(be24(field, 1))), 4),
            (EXTENDED_METHOD, WELL_KNOWN) => (LunAddress::WellKnown(field[1]), 2),
            _ => return None,
        };
        field.iter().skip(used).all(|b| *b == 0).then_some(address)
    }

    /// Writes the shortest form: peripheral below 256, flat below 16384, extended flat above.
    pub fn encode(self) -> [u8; 8] {
        let mut field = [0; 8];
        match self {
            LunAddress::WellKnown(number) => field[..2].copy_from_slice(&[WELL_KNOWN, number]),
            LunAddress::Unit(Lun(number @ 0..=0xff)) => field[1] = number as u8,
            LunAddress::Unit(Lun(number @ 0x100..=0x3fff)) => {
                field[..2].copy_from_slice(&(0x4000 | number as u16).to_be_bytes());
            }
            LunAddress::Unit(Lun(number)) => {
                field[..4].copy_from_slice(&number.to_be_bytes());
                field[0] = EXTENDED_FLAT;
            }
        }
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Attack row 52: every form of a LUN field.
    #[test]
    fn forms() {
        let unit = |n| Some(LunAddress::Unit(Lun(n)));
        #[rustfmt::skip]
        let cases: &[([u8; 8], Option<LunAddress>)] = &[
            ([0, 0, 0, 0, 0, 0, 0, 0], unit(0)),
            ([0, 255, 0, 0, 0, 0, 0, 0], unit(255)),
            ([1, 0, 0, 0, 0, 0, 0, 0], None),
            ([0x3f, 1, 0, 0, 0, 0, 0, 0], None),
            ([0x40, 0, 0, 0, 0, 0, 0, 0], unit(0)),
            ([0x41, 0, 0, 0, 0, 0, 0, 0], unit(256)),
            ([0x7f, 0xff, 0, 0, 0, 0, 0, 0], unit(0x3fff)),
            ([0x80, 1, 0, 0, 0, 0, 0, 0], None),
            ([0xc1, 1, 0, 0, 0, 0, 0, 0], Some(LunAddress::WellKnown(1))),
            ([0xc1, 2, 0, 0, 0, 0, 0, 0], Some(LunAddress::WellKnown(2))),
            ([0xd2, 0, 0x40, 0, 0, 0, 0, 0], unit(0x4000)),
            ([0xd2, 0xff, 0xff, 0xff, 0, 0, 0, 0], unit(0xff_ffff)),
            ([0xe2, 0, 0, 0, 0, 1, 0, 0], None),
            ([0xff; 8], None),
            // Garbage in the second level.
            ([0, 0, 0, 1, 0, 0, 0, 0], None),
            ([0x40, 1, 0, 0, 0, 0, 0, 1], None),
            ([0xc1, 1, 0, 1, 0, 0, 0, 0], None),
            ([0xd2, 0, 0, 1, 1, 0, 0, 0], None),
        ];
        for (field, address) in cases {
            assert_eq!(LunAddress::parse(field), *address, "{field:02x?}");
        }
        assert_eq!(Lun::new(0x100_0000), None);
    }

    proptest! {
        #[test]
        fn parse_inverts_encode(number in 0u32..0x100_0000) {
            let address = LunAddress::Unit(Lun::new(number).unwrap());
            prop_assert_eq!(LunAddress::parse(&address.encode()), Some(address));
        }
    }
}
