//! Sense data (SPC-4 §4.5): why a command ended with CHECK CONDITION, or what a logical unit reports.
//!
//! [`Sense`] is small and `Copy`. It is built from its named constants plus details of the case (a field
//! pointer, a block address, progress), and encoded in fixed (70h) or descriptor (72h) format when it is
//! sent. The decoder never trusts the lengths inside.

mod codes;
#[cfg(test)]
mod tests;

use crate::wire::{Writer, be16, be32, be64, bit, bits, copy_truncated, flag_bit, place_bits};

/// Sense key (SPC-4 §4.5.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct SenseKey(pub u8);

impl SenseKey {
    /// Nothing specific to report.
    pub const NO_SENSE: SenseKey = SenseKey(0x0);
    /// Done, after the device recovered.
    pub const RECOVERED_ERROR: SenseKey = SenseKey(0x1);
    /// The logical unit cannot be accessed now.
    pub const NOT_READY: SenseKey = SenseKey(0x2);
    /// A flaw of the medium or of the recorded data.
    pub const MEDIUM_ERROR: SenseKey = SenseKey(0x3);
    /// A failure that is not the medium's.
    pub const HARDWARE_ERROR: SenseKey = SenseKey(0x4);
    /// The request is wrong.
    pub const ILLEGAL_REQUEST: SenseKey = SenseKey(0x5);
    /// Something changed since the last command of this I_T nexus.
    pub const UNIT_ATTENTION: SenseKey = SenseKey(0x6);
    /// The block is protected.
    pub const DATA_PROTECT: SenseKey = SenseKey(0x7);
    /// EXTENDED COPY ended early.
    pub const COPY_ABORTED: SenseKey = SenseKey(0xa);
    /// The device server aborted the command; a retry may help.
    pub const ABORTED_COMMAND: SenseKey = SenseKey(0xb);
    /// Source data did not match the medium.
    pub const MISCOMPARE: SenseKey = SenseKey(0xe);
}

/// Additional sense code (high byte) and its qualifier (low byte).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct AdditionalSenseCode(pub u16);

impl AdditionalSenseCode {
    /// ADDITIONAL SENSE CODE.
    pub const fn code(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// ADDITIONAL SENSE CODE QUALIFIER.
    pub const fn qualifier(self) -> u8 {
        self.0 as u8
    }
}

/// The field that was refused (SPC-4 §4.5.2.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct FieldPointer {
    /// True: a byte of the CDB; false: of the parameter list.
    pub in_cdb: bool,
    /// Offset of the byte.
    pub byte: u16,
    /// Most significant bit of the field, if the field is not a whole byte.
    pub bit: Option<u8>,
}

/// Sense key specific information.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum SenseKeySpecific {
    /// None.
    None,
    /// With ILLEGAL REQUEST: which field.
    Field(FieldPointer),
    /// With NOT READY or NO SENSE: how much is done, in parts of 65536.
    Progress(u16),
    /// With COPY ABORTED: the byte of the segment (`true`) or of the parameter list that was refused.
    Segment {
        /// The pointer counts from the start of the segment descriptor.
        in_segment: bool,
        /// Offset of the byte.
        byte: u16,
    },
    /// Information that this crate does not interpret.
    Other([u8; 3]),
}

/// What a device server has to say about a command or a logical unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Sense {
    /// Sense key.
    pub key: SenseKey,
    /// Additional sense code and qualifier.
    pub code: AdditionalSenseCode,
    /// INFORMATION: a block address, or the offset of a miscompare.
    pub information: Option<u64>,
    /// Sense key specific information.
    pub specific: SenseKeySpecific,
}

/// Sense data as received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodedSense {
    /// What was said.
    pub sense: Sense,
    /// True: about an earlier command (response codes 71h, 73h).
    pub deferred: bool,
}

const FIXED_LEN: usize = 18;
const DESCRIPTOR_HEADER_LEN: usize = 8;
const INFORMATION_LEN: usize = 12;
const SPECIFIC_LEN: usize = 8;

impl Sense {
    /// The most bytes that [`Sense::encode`] gives.
    pub const LEN_MAX: usize = DESCRIPTOR_HEADER_LEN + INFORMATION_LEN + SPECIFIC_LEN;

    /// A sense value with nothing but key and code.
    pub const fn new(key: SenseKey, code: AdditionalSenseCode) -> Sense {
        Sense { key, code, information: None, specific: SenseKeySpecific::None }
    }

    /// The same with the INFORMATION field: the address of a block, or the offset of a miscompare in bytes.
    pub const fn with_information(mut self, information: u64) -> Sense {
        self.information = Some(information);
        self
    }

    /// The same with a pointer to a byte of the CDB; `bit`: the most significant bit of the field.
    pub const fn with_cdb_field(mut self, byte: u16, bit: Option<u8>) -> Sense {
        self.specific = SenseKeySpecific::Field(FieldPointer { in_cdb: true, byte, bit });
        self
    }

    /// The same with a pointer to a byte of the parameter list.
    pub const fn with_list_field(mut self, byte: u16, bit: Option<u8>) -> Sense {
        self.specific = SenseKeySpecific::Field(FieldPointer { in_cdb: false, byte, bit });
        self
    }

    /// The same with a progress indication, in parts of 65536.
    pub const fn with_progress(mut self, progress: u16) -> Sense {
        self.specific = SenseKeySpecific::Progress(progress);
        self
    }

    /// INVALID FIELD IN CDB with its pointer.
    pub const fn invalid_cdb_field(byte: u16, bit: Option<u8>) -> Sense {
        Sense::INVALID_FIELD_IN_CDB.with_cdb_field(byte, bit)
    }

    /// INVALID FIELD IN PARAMETER LIST with its pointer; an offset beyond the pointer's 16 bits is left out.
    pub fn invalid_list_field(byte: usize, bit: Option<u8>) -> Sense {
        match u16::try_from(byte) {
            Ok(byte) => Sense::INVALID_FIELD_IN_PARAMETER_LIST.with_list_field(byte, bit),
            Err(_) => Sense::INVALID_FIELD_IN_PARAMETER_LIST,
        }
    }

    /// Writes sense data and gives its length, at most that of `out`.
    ///
    /// `descriptor` chooses 72h (D_SENSE = 1, DESC = 1) over 70h. Information that needs more than 32 bits has
    /// no place in the fixed format: VALID is then 0 (SPC-4 §4.5.3).
    pub fn encode(&self, descriptor: bool, out: &mut [u8]) -> usize {
        let mut data = [0; Sense::LEN_MAX];
        let len = if descriptor { self.put_descriptors(&mut data) } else { self.put_fixed(&mut data) };
        let len = len.min(out.len());
        copy_truncated(out, data.get(..len).unwrap_or(&data));
        len
    }

    /// As [`Sense::encode`], about an earlier command that was already answered: response code 71h or 73h
    /// (SPC-4 §4.5.5, deferred errors).
    pub fn encode_deferred(&self, descriptor: bool, out: &mut [u8]) -> usize {
        let len = self.encode(descriptor, out);
        if let Some(response) = out.first_mut() {
            *response |= 1;
        }
        len
    }

    fn put_fixed(&self, data: &mut [u8; Sense::LEN_MAX]) -> usize {
        let information = self.information.and_then(|i| u32::try_from(i).ok());
        data[0] = 0x70 | flag_bit(information.is_some(), 7);
        data[2] = place_bits(self.key.0, 3, 0);
        data[3..7].copy_from_slice(&information.unwrap_or(0).to_be_bytes());
        data[7] = (FIXED_LEN - 8) as u8;
        data[12] = self.code.code();
        data[13] = self.code.qualifier();
        data[15..18].copy_from_slice(&self.specific.encode());
        FIXED_LEN
    }

    fn put_descriptors(&self, data: &mut [u8; Sense::LEN_MAX]) -> usize {
        let mut w = Writer::new(data);
        w.put(&[0x72, place_bits(self.key.0, 3, 0), self.code.code(), self.code.qualifier()]);
        w.zeros(DESCRIPTOR_HEADER_LEN - 4);
        if let Some(information) = self.information {
            w.put(&[0x00, 0x0a, 0x80, 0]);
            w.u64(information);
        }
        if self.specific != SenseKeySpecific::None {
            w.put(&[0x02, 0x06, 0, 0]);
            w.put(&self.specific.encode());
            w.u8(0);
        }
        let len = w.len();
        w.patch(7, &[(len - DESCRIPTOR_HEADER_LEN) as u8]);
        len
    }

    /// Reads sense data. `None`: not a response code of SPC, or too short to hold key and code.
    pub fn decode(data: &[u8]) -> Option<DecodedSense> {
        let response = bits(*data.first()?, 6, 0);
        match response {
            0x70 | 0x71 => Some(DecodedSense { sense: decode_fixed(data)?, deferred: response == 0x71 }),
            0x72 | 0x73 => {
                Some(DecodedSense { sense: decode_descriptors(data)?, deferred: response == 0x73 })
            }
            _ => None,
        }
    }
}

fn decode_fixed(data: &[u8]) -> Option<Sense> {
    let head: &[u8; 8] = data.first_chunk()?;
    let body = data.get(..usize::from(head[7]) + 8).unwrap_or(data);
    let key = SenseKey(bits(head[2], 3, 0));
    // A device may cut the data before the additional sense code: then it has none (SPC-4 §4.5.3).
    let code = if body.len() >= 14 { AdditionalSenseCode(be16(body, 12)) } else { AdditionalSenseCode(0) };
    let information = bit(head[0], 7).then(|| u64::from(be32(head, 3)));
    let specific = body.get(15..).and_then(|rest| rest.first_chunk());
    let specific = specific.map_or(SenseKeySpecific::None, |bytes| SenseKeySpecific::decode(key, *bytes));
    Some(Sense { key, code, information, specific })
}

fn decode_descriptors(data: &[u8]) -> Option<Sense> {
    let head: &[u8; 8] = data.first_chunk()?;
    let end = (usize::from(head[7]) + 8).min(data.len());
    let mut sense = Sense::new(SenseKey(bits(head[1], 3, 0)), AdditionalSenseCode(be16(head, 2)));
    let mut rest = data.get(8..end).unwrap_or_default();
    while let [kind, len, tail @ ..] = rest {
        let Some((body, next)) = tail.split_at_checked(usize::from(*len)) else { break };
        match (kind, body) {
            (0x00, [valid, _, info @ ..]) if info.len() >= 8 && bit(*valid, 7) => {
                sense.information = Some(be64(info, 0));
            }
            (0x02, [_, _, a, b, c, ..]) => sense.specific = SenseKeySpecific::decode(sense.key, [*a, *b, *c]),
            _ => {}
        }
        rest = next;
    }
    Some(sense)
}

impl SenseKeySpecific {
    fn encode(self) -> [u8; 3] {
        let [pointer, low, high];
        match self {
            SenseKeySpecific::None => return [0; 3],
            SenseKeySpecific::Other(bytes) => return bytes,
            SenseKeySpecific::Field(f) => {
                pointer = 0x80
                    | flag_bit(f.in_cdb, 6)
                    | flag_bit(f.bit.is_some(), 3)
                    | place_bits(f.bit.unwrap_or(0), 2, 0);
                [high, low] = f.byte.to_be_bytes();
            }
            SenseKeySpecific::Progress(progress) => {
                pointer = 0x80;
                [high, low] = progress.to_be_bytes();
            }
            SenseKeySpecific::Segment { in_segment, byte } => {
                pointer = 0x80 | flag_bit(in_segment, 5);
                [high, low] = byte.to_be_bytes();
            }
        }
        [pointer, high, low]
    }

    fn decode(key: SenseKey, bytes: [u8; 3]) -> SenseKeySpecific {
        if !bit(bytes[0], 7) {
            return SenseKeySpecific::None;
        }
        let value = be16(&bytes, 1);
        match key {
            SenseKey::ILLEGAL_REQUEST => SenseKeySpecific::Field(FieldPointer {
                in_cdb: bit(bytes[0], 6),
                byte: value,
                bit: bit(bytes[0], 3).then(|| bits(bytes[0], 2, 0)),
            }),
            SenseKey::NO_SENSE | SenseKey::NOT_READY => SenseKeySpecific::Progress(value),
            SenseKey::COPY_ABORTED => SenseKeySpecific::Segment { in_segment: bit(bytes[0], 5), byte: value },
            _ => SenseKeySpecific::Other(bytes),
        }
    }
}
