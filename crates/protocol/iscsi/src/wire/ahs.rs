//! Additional Header Segments (RFC 7143 §11.2.2): extended CDBs and the read length of bidirectional commands.
//!
//! The chain is parsed once, at the edge. Whatever it says, no slice leaves the received bytes and no CDB
//! exceeds [`CDB_LEN_MAX`].

use super::RejectReason;

/// Longest CDB that is accepted: 16 bytes in the header and 244 more (SPC-4 §4.2.3: 8 + 252).
pub const CDB_LEN_MAX: usize = 260;

const TYPE_EXTENDED_CDB: u8 = 1;
const TYPE_BIDI_READ_LEN: u8 = 2;
/// SPC variable-length and extended CDBs; every other standard opcode fixes a length of at most 16 bytes.
const VARIABLE_LENGTH_OPCODES: [u8; 2] = [0x7e, 0x7f];

/// What is wrong with the chain, or with the CDB that it extends. The command is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AhsError {
    /// A segment reaches beyond TotalAHSLength, or its length is 0.
    Truncated,
    /// A segment's length does not fit its type.
    Length,
    /// A type appears twice.
    Repeated,
    /// A type that no document names.
    UnknownType(u8),
    /// An extended CDB for an opcode whose CDB is at most 16 bytes long.
    CdbNotLong,
    /// The CDB is longer than [`CDB_LEN_MAX`].
    CdbTooLong,
    /// The CDB's own length field names more bytes than came.
    CdbShort,
}

impl AhsError {
    /// The reason that the Reject carries.
    #[must_use]
    pub const fn reject_reason(self) -> RejectReason {
        RejectReason::INVALID_PDU_FIELD
    }
}

/// What a command's additional header segments say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdditionalHeaders<'a> {
    /// The CDB's bytes from the 17th on.
    pub cdb_tail: Option<&'a [u8]>,
    /// Expected read length of a bidirectional command, in bytes.
    pub bidi_read_len: Option<u32>,
}

impl<'a> AdditionalHeaders<'a> {
    /// Parses all segments; `bytes` is exactly TotalAHSLength long.
    #[inline]
    pub fn parse(mut bytes: &'a [u8]) -> Result<Self, AhsError> {
        let mut found = Self::default();
        while !bytes.is_empty() {
            let ([a, b, kind], rest) = bytes.split_first_chunk().ok_or(AhsError::Truncated)?;
            let len = usize::from(u16::from_be_bytes([*a, *b]));
            if len == 0 {
                return Err(AhsError::Truncated);
            }
            let body = rest.get(..len).ok_or(AhsError::Truncated)?;
            found.set_segment(*kind, body)?;
            let whole = super::padded_len(3 + len).ok_or(AhsError::Truncated)?;
            bytes = bytes.get(whole..).ok_or(AhsError::Truncated)?;
        }
        Ok(found)
    }

    fn set_segment(&mut self, kind: u8, body: &'a [u8]) -> Result<(), AhsError> {
        match kind {
            TYPE_EXTENDED_CDB => {
                // The first byte is reserved; a tail of no bytes would say that the CDB is not long.
                let tail = body.get(1..).filter(|tail| !tail.is_empty()).ok_or(AhsError::Length)?;
                if tail.len() > CDB_LEN_MAX - 16 {
                    return Err(AhsError::CdbTooLong);
                }
                set_once(&mut self.cdb_tail, tail)
            }
            TYPE_BIDI_READ_LEN => {
                let [_, a, b, c, d] = body.try_into().map_err(|_| AhsError::Length)?;
                set_once(&mut self.bidi_read_len, u32::from_be_bytes([a, b, c, d]))
            }
            other => Err(AhsError::UnknownType(other)),
        }
    }
}

fn set_once<T>(place: &mut Option<T>, value: T) -> Result<(), AhsError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(AhsError::Repeated),
    }
}

/// A whole CDB of 16 to 260 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cdb {
    len: u16,
    bytes: [u8; CDB_LEN_MAX],
}

impl Cdb {
    /// Joins the header's 16 bytes and the extension; refuses an extension that the CDB's opcode excludes.
    pub fn assemble(head: &[u8; 16], tail: Option<&[u8]>) -> Result<Self, AhsError> {
        let tail = tail.unwrap_or(&[]);
        if !tail.is_empty() && !VARIABLE_LENGTH_OPCODES.contains(&head[0]) && !is_vendor_specific(head[0]) {
            return Err(AhsError::CdbNotLong);
        }
        let len = 16 + tail.len();
        let mut bytes = [0; CDB_LEN_MAX];
        bytes[..16].copy_from_slice(head);
        bytes.get_mut(16..len).ok_or(AhsError::CdbTooLong)?.copy_from_slice(tail);
        // ADDITIONAL CDB LENGTH of a variable-length CDB counts from byte 8 on (SPC-4 §4.2.3).
        if head[0] == 0x7f && 8 + usize::from(head[7]) > len {
            return Err(AhsError::CdbShort);
        }
        Ok(Self { len: len as u16, bytes })
    }

    /// The CDB's bytes; at least 16, padded with what the header carried.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&self.bytes)
    }
}

impl core::fmt::Debug for Cdb {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Cdb({:02x?})", self.as_slice())
    }
}

/// Groups 6 and 7 (C0h to FFh): a vendor may give them any length.
const fn is_vendor_specific(opcode: u8) -> bool {
    opcode >= 0xc0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extended(cdb_len: usize) -> Vec<u8> {
        let mut ahs = ((cdb_len - 15) as u16).to_be_bytes().to_vec();
        ahs.extend([TYPE_EXTENDED_CDB, 0]);
        ahs.extend((16..cdb_len).map(|i| i as u8));
        ahs.resize(super::super::padded_len(ahs.len()).unwrap(), 0);
        ahs
    }

    #[test]
    fn both_segments_in_either_order() {
        let bidi = [0, 5, TYPE_BIDI_READ_LEN, 0, 0, 1, 2, 3];
        let cdb = extended(32);
        let tail: Vec<u8> = (16..32).collect();
        let want = AdditionalHeaders { cdb_tail: Some(&tail), bidi_read_len: Some(0x0001_0203) };
        assert_eq!(AdditionalHeaders::parse(&[&cdb[..], &bidi].concat()), Ok(want));
        assert_eq!(AdditionalHeaders::parse(&[&bidi[..], &cdb].concat()), Ok(want));
        assert_eq!(AdditionalHeaders::parse(&[]), Ok(AdditionalHeaders::default()));
    }

    #[test]
    fn attack_24_extended_cdb_of_a_short_command() {
        let ahs = extended(32);
        let tail = AdditionalHeaders::parse(&ahs).unwrap().cdb_tail;
        let mut head = [0; 16];
        head[0] = 0x28;
        assert_eq!(Cdb::assemble(&head, tail), Err(AhsError::CdbNotLong));
        head[0] = 0x7f;
        head[7] = 24;
        assert_eq!(Cdb::assemble(&head, tail).unwrap().as_slice().len(), 32);
        head[7] = 25;
        assert_eq!(Cdb::assemble(&head, tail), Err(AhsError::CdbShort));
        assert_eq!(AhsError::CdbNotLong.reject_reason(), RejectReason::INVALID_PDU_FIELD);
    }

    #[test]
    fn attack_24_cdb_longer_than_260_bytes() {
        assert_eq!(AdditionalHeaders::parse(&extended(260)).unwrap().cdb_tail.unwrap().len(), 244);
        assert_eq!(AdditionalHeaders::parse(&extended(261)), Err(AhsError::CdbTooLong));
        assert_eq!(AdditionalHeaders::parse(&extended(1000)), Err(AhsError::CdbTooLong));
    }

    #[test]
    fn broken_chains_are_named() {
        let cases: [(&[u8], AhsError); 8] = [
            (&[0, 1], AhsError::Truncated),
            (&[0, 0, 1, 0], AhsError::Truncated),
            (&[0xff, 0xff, 1, 0], AhsError::Truncated),
            (&[0, 1, 1, 0], AhsError::Length),
            (&[0, 4, 2, 0, 0, 0, 0, 0], AhsError::Length),
            (&[0, 1, 9, 0], AhsError::UnknownType(9)),
            (&[0, 1, 0, 0], AhsError::UnknownType(0)),
            (&[0, 5, 2, 0, 0, 0, 0, 1, 0, 5, 2, 0, 0, 0, 0, 1], AhsError::Repeated),
        ];
        for (bytes, want) in cases {
            assert_eq!(AdditionalHeaders::parse(bytes), Err(want), "{bytes:02x?}");
        }
    }
}
