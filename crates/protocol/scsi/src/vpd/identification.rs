//! Page 83h, device identification (SPC-4 §7.8.6), and its designators.
//!
//! One UUID per volume gives all names of the logical unit: the UUID designator, an NAA designator folded from it (6h,
//! IEEE registered extended, where there is an OUI; else 3h, locally assigned), and a T10 vendor designator with its
//! text. So tools, and EXTENDED COPY, can tell that it is one disk.

use super::{DEVICE_IDENTIFICATION, write_page};
use crate::inquiry::Peripheral;
use crate::wire::{Writer, bits, flag_bit, hex_digit, place_bits};

/// How the bytes of a designator are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeSet(pub u8);

impl CodeSet {
    /// Bytes.
    pub const BINARY: CodeSet = CodeSet(1);
    /// Printable ASCII.
    pub const ASCII: CodeSet = CodeSet(2);
    /// UTF-8.
    pub const UTF_8: CodeSet = CodeSet(3);
}

/// What a designator names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Association(pub u8);

impl Association {
    /// The logical unit.
    pub const UNIT: Association = Association(0);
    /// The target port that received the command.
    pub const PORT: Association = Association(1);
    /// The target device.
    pub const DEVICE: Association = Association(2);
}

/// DESIGNATOR TYPE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DesignatorType(pub u8);

impl DesignatorType {
    /// T10 vendor ID based.
    pub const T10: DesignatorType = DesignatorType(0x1);
    /// EUI-64 based.
    pub const EUI_64: DesignatorType = DesignatorType(0x2);
    /// NAA.
    pub const NAA: DesignatorType = DesignatorType(0x3);
    /// Relative target port identifier.
    pub const RELATIVE_PORT: DesignatorType = DesignatorType(0x4);
    /// Target port group.
    pub const PORT_GROUP: DesignatorType = DesignatorType(0x5);
    /// SCSI name string.
    pub const NAME: DesignatorType = DesignatorType(0x8);
    /// UUID.
    pub const UUID: DesignatorType = DesignatorType(0xa);
}

/// A designator of page 83h or of a copy target descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Designator<'a> {
    /// How to read the bytes.
    pub code_set: CodeSet,
    /// What is named.
    pub association: Association,
    /// What kind of name it is.
    pub kind: DesignatorType,
    /// The name.
    pub bytes: &'a [u8],
}

/// The names of a logical unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnitNames<'a> {
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// T10 VENDOR IDENTIFICATION, at most 8 bytes.
    pub vendor: &'a [u8],
    /// The IEEE OUI under which the unit is named, if there is one.
    pub oui: Option<[u8; 3]>,
}

/// A target port, which for iSCSI is a portal group of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetPort<'a> {
    /// iSCSI name of the target, at most 223 bytes.
    pub target: &'a str,
    /// Target portal group tag.
    pub portal_group: u16,
    /// RELATIVE TARGET PORT IDENTIFIER, from 1.
    pub relative: u16,
    /// TARGET PORT GROUP of the asymmetric access states.
    pub group: u16,
}

/// The NAA 3h designator of a UUID: its halves folded, the first four bits replaced by the NAA.
///
/// Folding keeps what tells UUIDs of every version apart: the random bits of version 4, time and node of
/// version 1.
pub fn naa_locally_assigned(uuid: &[u8; 16]) -> [u8; 8] {
    let mut naa = [0; 8];
    let (high, low) = uuid.split_at(8);
    for ((byte, high), low) in naa.iter_mut().zip(high).zip(low) {
        *byte = high ^ low;
    }
    naa[0] = place_bits(NAA_LOCAL, 7, 4) | bits(naa[0], 3, 0);
    naa
}

/// The NAA 6h designator of a UUID under an OUI (SPC-4 §7.8.6.6.4): 36 bits of vendor specific identifier and 64 bits of
/// extension.
///
/// The first 32 bits of the UUID are folded into the last ones: in UUIDs of version 1 they are all that tells two of one
/// machine apart.
pub fn naa_registered_extended(oui: [u8; 3], uuid: &[u8; 16]) -> [u8; 16] {
    let mut naa = *uuid;
    for (byte, folded) in naa[12..].iter_mut().zip(uuid) {
        *byte ^= folded;
    }
    let nibbles = [
        bits(oui[0], 7, 4),
        bits(oui[0], 3, 0),
        bits(oui[1], 7, 4),
        bits(oui[1], 3, 0),
        bits(oui[2], 7, 4),
        bits(oui[2], 3, 0),
    ];
    naa[0] = place_bits(NAA_EXTENDED, 7, 4) | nibbles[0];
    naa[1] = place_bits(nibbles[1], 7, 4) | nibbles[2];
    naa[2] = place_bits(nibbles[3], 7, 4) | nibbles[4];
    naa[3] = place_bits(nibbles[5], 7, 4) | bits(uuid[3], 3, 0);
    naa
}

const NAA_LOCAL: u8 = 3;
const NAA_EXTENDED: u8 = 6;
/// PROTOCOL IDENTIFIER of iSCSI.
const ISCSI: u8 = 5;

/// Vendor identification and the UUID's text without hyphens.
const T10_LEN: usize = 8 + 32;
const UUID_LEN: usize = 18;

impl UnitNames<'_> {
    fn t10_designator(&self) -> [u8; T10_LEN] {
        let mut name = [0; T10_LEN];
        let mut w = Writer::new(&mut name);
        w.padded_ascii(self.vendor, 8);
        for byte in self.uuid {
            w.put(&[hex_digit(bits(byte, 7, 4)), hex_digit(bits(byte, 3, 0))]);
        }
        name
    }

    fn uuid_designator(&self) -> [u8; UUID_LEN] {
        let mut name = [0; UUID_LEN];
        name[0] = 0x10;
        name[2..].copy_from_slice(&self.uuid);
        name
    }

    fn for_each_designator(&self, mut f: impl FnMut(Designator<'_>)) {
        let mut unit = |code_set, kind, bytes: &[u8]| {
            f(Designator { code_set, association: Association::UNIT, kind, bytes });
        };
        unit(CodeSet::ASCII, DesignatorType::T10, &self.t10_designator());
        match self.oui {
            Some(oui) => {
                unit(CodeSet::BINARY, DesignatorType::NAA, &naa_registered_extended(oui, &self.uuid))
            }
            None => unit(CodeSet::BINARY, DesignatorType::NAA, &naa_locally_assigned(&self.uuid)),
        }
        unit(CodeSet::BINARY, DesignatorType::UUID, &self.uuid_designator());
    }

    /// Whether a designator (of a copy target descriptor) names this logical unit.
    pub fn is_named_by(&self, designator: &Designator<'_>) -> bool {
        let mut named = false;
        self.for_each_designator(|own| named |= own == *designator);
        named
    }
}

impl Designator<'_> {
    /// Writes the designator, which names no protocol.
    fn put(&self, w: &mut Writer<'_>) {
        w.u8(place_bits(self.code_set.0, 3, 0));
        w.u8(place_bits(self.association.0, 5, 4) | place_bits(self.kind.0, 3, 0));
        w.u8(0);
        w.u8(self.bytes.len() as u8);
        w.put(self.bytes);
    }
}

/// Longest iSCSI name (RFC 7143 §4.2.7.1).
const ISCSI_NAME_LEN_MAX: usize = 223;

/// Writes a SCSI name string designator: a name and its end, NUL terminated and padded to a multiple of four.
fn put_name_designator(association: Association, [name, end]: [&[u8]; 2], w: &mut Writer<'_>) {
    let name = name.get(..ISCSI_NAME_LEN_MAX).unwrap_or(name);
    let len = name.len() + end.len() + 1;
    let padded = len.next_multiple_of(4);
    w.u8(place_bits(ISCSI, 7, 4) | CodeSet::UTF_8.0);
    w.u8(flag_bit(true, 7) | place_bits(association.0, 5, 4) | DesignatorType::NAME.0);
    w.u8(0);
    w.u8(padded as u8);
    w.put(name);
    w.put(end);
    w.zeros(padded - len + 1);
}

impl TargetPort<'_> {
    /// The name of the port, "iqn...,t,0xTPGT" (RFC 7143 §4.2.7.1, SPC-4 §7.8.6.11).
    pub(super) fn put_name(&self, w: &mut Writer<'_>) {
        let mut tag = *b",t,0x0000";
        let [high, low] = self.portal_group.to_be_bytes();
        for (digit, nibble) in
            tag[5..].iter_mut().zip([bits(high, 7, 4), bits(high, 3, 0), bits(low, 7, 4), bits(low, 3, 0)])
        {
            *digit = hex_digit(nibble);
        }
        put_name_designator(Association::PORT, [self.target.as_bytes(), &tag], w);
    }

    fn put_designators(&self, w: &mut Writer<'_>) {
        for (kind, value) in
            [(DesignatorType::RELATIVE_PORT, self.relative), (DesignatorType::PORT_GROUP, self.group)]
        {
            let [high, low] = value.to_be_bytes();
            let bytes = &[0, 0, high, low];
            Designator { code_set: CodeSet::BINARY, association: Association::PORT, kind, bytes }.put(w);
        }
        self.put_name(w);
        put_name_designator(Association::DEVICE, [self.target.as_bytes(), b""], w);
    }
}

/// Writes page 83h: the unit's names, then those of the port that received the command and of its target.
pub fn encode_identification(
    peripheral: Peripheral,
    unit: Option<&UnitNames<'_>>,
    port: &TargetPort<'_>,
    w: &mut Writer<'_>,
) {
    write_page(peripheral, DEVICE_IDENTIFICATION, w, |w| {
        if let Some(unit) = unit {
            unit.for_each_designator(|designator| designator.put(w));
        }
        port.put_designators(w);
    });
}

/// The designators in the body of a page 83h; stops at one that is cut.
pub fn decode_designators(body: &[u8]) -> impl Iterator<Item = Designator<'_>> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let (head, tail) = rest.split_first_chunk::<4>()?;
        let (bytes, next) = tail.split_at_checked(usize::from(head[3]))?;
        rest = next;
        Some(Designator::from_parts(head, bytes))
    })
}

impl<'a> Designator<'a> {
    /// From the four bytes before a designator and its bytes.
    pub(crate) fn from_parts(head: &[u8; 4], bytes: &'a [u8]) -> Designator<'a> {
        Designator {
            code_set: CodeSet(bits(head[0], 3, 0)),
            association: Association(bits(head[1], 5, 4)),
            kind: DesignatorType(bits(head[1], 3, 0)),
            bytes,
        }
    }

    /// The UUID that it is (SPC-5 §7.7.6.11: RFC 4122 UUIDs only); `None`: another kind, or malformed.
    pub fn uuid(&self) -> Option<[u8; 16]> {
        let (head, uuid) = self.bytes.split_first_chunk::<2>()?;
        let known = self.kind == DesignatorType::UUID && bits(head[0], 7, 4) == 1;
        uuid.try_into().ok().filter(|_| known)
    }

    /// The number that a relative target port or target port group designator holds.
    pub fn port_or_group_number(&self) -> Option<u16> {
        let known = matches!(self.kind, DesignatorType::RELATIVE_PORT | DesignatorType::PORT_GROUP);
        match self.bytes {
            [_, _, high, low] if known => Some(u16::from_be_bytes([*high, *low])),
            _ => None,
        }
    }
}
