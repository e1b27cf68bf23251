//! iSCSI TransportID (SPC-4 §7.6.4.6): the name of an initiator port in reservation parameter data.
//!
//! The lengths inside are checked against the received bytes, and the name is text up to its NUL, so no later
//! code looks at raw bytes.

use crate::wire::{Writer, be16, bits, hex_digit, place_bits};

/// PROTOCOL IDENTIFIER of iSCSI.
const ISCSI: u8 = 5;
/// Longest iSCSI name (RFC 7143 §4.2.7.1).
pub const NAME_LEN_MAX: usize = 223;
/// Between name and ISID.
const SEPARATOR: &str = ",i,0x";
const ISID_DIGITS: usize = 12;
const HEADER_LEN: usize = 4;
/// ADDITIONAL LENGTH is at least this.
const ADDITIONAL_LEN_MIN: usize = 20;
/// Longest encoding in bytes.
pub const LEN_MAX: usize =
    HEADER_LEN + (NAME_LEN_MAX + SEPARATOR.len() + ISID_DIGITS + 1).next_multiple_of(4);

/// An initiator device or one of its ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct TransportId<'a> {
    /// iSCSI name, 1..=223 bytes.
    pub name: &'a str,
    /// The port's ISID (format 01b); `None`: the whole device (format 00b).
    pub isid: Option<[u8; 6]>,
}

/// A TransportID that names no iSCSI initiator; answer INVALID FIELD IN PARAMETER LIST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MalformedTransportId;

impl<'a> TransportId<'a> {
    /// Reads the TransportID at the beginning of `bytes` and gives what follows it.
    pub fn parse(bytes: &'a [u8]) -> Result<(TransportId<'a>, &'a [u8]), MalformedTransportId> {
        let (head, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(MalformedTransportId)?;
        let additional = usize::from(be16(head, 2));
        if bits(head[0], 5, 0) != ISCSI || additional < ADDITIONAL_LEN_MIN || additional % 4 != 0 {
            return Err(MalformedTransportId);
        }
        let (field, rest) = rest.split_at_checked(additional).ok_or(MalformedTransportId)?;
        let end = field.iter().position(|b| *b == 0).ok_or(MalformedTransportId)?;
        let text = field.get(..end).ok_or(MalformedTransportId)?;
        let text = std::str::from_utf8(text).map_err(|_| MalformedTransportId)?;
        let id = match bits(head[0], 7, 6) {
            0 => TransportId { name: text, isid: None },
            1 => {
                let (name, isid) = text.split_once(SEPARATOR).ok_or(MalformedTransportId)?;
                TransportId { name, isid: Some(parse_isid(isid)?) }
            }
            _ => return Err(MalformedTransportId),
        };
        if id.name.is_empty() || id.name.len() > NAME_LEN_MAX || id.name.contains(',') {
            return Err(MalformedTransportId);
        }
        Ok((id, rest))
    }

    /// Writes the TransportID. The name must be one that [`TransportId::parse`] or a login has checked.
    pub fn encode(&self, w: &mut Writer<'_>) {
        let start = w.len();
        w.u8(place_bits(u8::from(self.isid.is_some()), 7, 6) | ISCSI);
        w.u8(0);
        w.u16(0);
        w.put(self.name.as_bytes());
        if let Some(isid) = self.isid {
            w.put(SEPARATOR.as_bytes());
            for byte in isid {
                w.put(&[hex_digit(bits(byte, 7, 4)), hex_digit(bits(byte, 3, 0))]);
            }
        }
        let len = w.len() - start - HEADER_LEN;
        w.zeros((len + 1).next_multiple_of(4).max(ADDITIONAL_LEN_MIN) - len);
        w.patch_length_u16(start + 2);
    }
}

fn parse_isid(digits: &str) -> Result<[u8; 6], MalformedTransportId> {
    let digits: &[u8; ISID_DIGITS] = digits.as_bytes().try_into().map_err(|_| MalformedTransportId)?;
    let mut isid = [0; 6];
    for (byte, pair) in isid.iter_mut().zip(digits.as_chunks::<2>().0) {
        let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
        *byte = place_bits(high.ok_or(MalformedTransportId)? as u8, 7, 4)
            | low.ok_or(MalformedTransportId)? as u8;
    }
    Ok(isid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(id: TransportId<'_>) -> Vec<u8> {
        let mut out = [0xee; LEN_MAX];
        let mut w = Writer::new(&mut out);
        id.encode(&mut w);
        let len = w.written_len();
        assert_eq!(len, w.len());
        out[..len].to_vec()
    }

    #[test]
    fn vectors() {
        let device = TransportId { name: "iqn.a:b", isid: None };
        let mut expected = vec![0x05, 0, 0, 20];
        expected.extend(b"iqn.a:b\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(encoded(device), expected);
        let port = TransportId { name: "iqn.a:b", isid: Some([0x80, 0x12, 0xab, 0, 0, 0xff]) };
        let mut expected = vec![0x45, 0, 0, 28];
        expected.extend(b"iqn.a:b,i,0x8012ab0000ff\0\0\0\0");
        assert_eq!(encoded(port), expected);
        expected.push(9);
        assert_eq!(TransportId::parse(&expected), Ok((port, &[9][..])));
        let longest = "x".repeat(NAME_LEN_MAX);
        assert_eq!(encoded(TransportId { name: &longest, isid: Some([0; 6]) }).len(), LEN_MAX);
    }

    #[test]
    fn refused() {
        let good = encoded(TransportId { name: "iqn.a:b", isid: Some([1, 2, 3, 4, 5, 6]) });
        for len in 0..good.len() {
            assert_eq!(TransportId::parse(&good[..len]), Err(MalformedTransportId), "cut at {len}");
        }
        for (at, value) in
            [(0, 0x46), (0, 0x85), (3, 16), (3, 29), (3, 0xfc), (2, 0xff), (4, 0), (4, 0xff), (7, b',')]
        {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(TransportId::parse(&bad), Err(MalformedTransportId), "byte {at} = {value:02x}h");
        }
        for text in [
            "iqn.a:b,i,0x12345",
            "iqn.a:b,i,0x1234567890123",
            "iqn.a:b,i,0xghijklmnopqr",
            ",i,0x123456789012",
        ] {
            let mut bad = vec![0x45, 0, 0, 40];
            bad.extend(text.as_bytes());
            bad.resize(44, 0);
            assert_eq!(TransportId::parse(&bad), Err(MalformedTransportId), "{text}");
        }
        // No NUL in the whole field.
        let mut endless = vec![0x05, 0, 0, 20];
        endless.extend([b'a'; 20]);
        assert_eq!(TransportId::parse(&endless), Err(MalformedTransportId));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn parse_inverts_encode(name in "[a-z0-9.:-]{1,223}", isid: Option<[u8; 6]>) {
            let id = TransportId { name: &name, isid };
            let bytes = encoded(id);
            prop_assert_eq!(TransportId::parse(&bytes), Ok((id, &[][..])));
        }

        #[test]
        fn anything_has_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = TransportId::parse(&bytes);
        }
    }
}
