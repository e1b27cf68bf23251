//! The bare protocol: a header of 48 bytes each way, with the data behind it.
//!
//! | bytes | request | reply |
//! |---|---|---|
//! | 0 | 1 read, 2 write | 0 done |
//! | 4..8 | length of the data | length of the data that follows |
//! | 8..12 | tag | tag |
//! | 16..24 | offset | |
//!
//! Numbers are little-endian. A write's data follows its request, a read's data its reply.

use std::io;

use super::{LoadOp, Outgoing, ProtocolClient, WireRequest, protocol_error};

/// Bytes of a header.
pub const HEADER_LEN: usize = 48;

/// The header of a request.
pub fn request_header(request: WireRequest) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0] = match request.op {
        LoadOp::Read => 1,
        LoadOp::Write => 2,
    };
    header[4..8].copy_from_slice(&request.len.to_le_bytes());
    header[8..12].copy_from_slice(&request.tag.to_le_bytes());
    header[16..24].copy_from_slice(&request.offset.to_le_bytes());
    header
}

/// The request that a header says, if it says one.
pub fn parse_request(header: &[u8; HEADER_LEN]) -> Option<WireRequest> {
    let op = match header[0] {
        1 => LoadOp::Read,
        2 => LoadOp::Write,
        _ => return None,
    };
    let (words, _) = header.as_chunks::<4>();
    let [_, len, tag, _, low, high, ..] = *words else { return None };
    let number = u32::from_le_bytes;
    let offset = u64::from(number(high)) << 32 | u64::from(number(low));
    Some(WireRequest { tag: number(tag), op, offset, len: number(len) })
}

/// The header of a reply with `len` bytes of data.
pub fn reply_header(tag: u32, len: u32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[4..8].copy_from_slice(&len.to_le_bytes());
    header[8..12].copy_from_slice(&tag.to_le_bytes());
    header
}

/// The tag and the length of the data of a reply, if the request was carried out.
fn parse_reply(header: &[u8; HEADER_LEN]) -> Option<(u32, u32)> {
    let (words, _) = header.as_chunks::<4>();
    let [[0, ..], len, tag, ..] = *words else { return None };
    Some((u32::from_le_bytes(tag), u32::from_le_bytes(len)))
}

/// The requesting side of a connection.
#[derive(Debug, Default)]
pub struct BareClient {
    /// The reply whose data is arriving, and how much of it is to come.
    arriving: Option<(u32, usize)>,
}

impl ProtocolClient for BareClient {
    fn encode_request(&mut self, request: WireRequest, out: &mut Outgoing) -> bool {
        out.push_header(&request_header(request));
        if request.op == LoadOp::Write {
            out.push_payload(request.len as usize);
        }
        true
    }

    fn handle_input(&mut self, input: &[u8], _: &mut Outgoing, done: &mut Vec<u32>) -> io::Result<usize> {
        let mut at = 0;
        loop {
            let (tag, left) = match self.arriving {
                Some(arriving) => arriving,
                None => {
                    let rest = input.get(at..).unwrap_or_default();
                    let Some(header) = rest.first_chunk::<HEADER_LEN>() else { return Ok(at) };
                    let (tag, len) = parse_reply(header).ok_or_else(|| protocol_error("a request failed"))?;
                    at += HEADER_LEN;
                    (tag, len as usize)
                }
            };
            let here = left.min(input.len() - at);
            at += here;
            if here < left {
                self.arriving = Some((tag, left - here));
                return Ok(at);
            }
            self.arriving = None;
            done.push(tag);
        }
    }

    fn encode_end(&mut self, _: &mut Outgoing) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_say_what_was_meant() {
        let request = WireRequest { tag: 7, op: LoadOp::Write, offset: 0x1_2345_6789_abcd, len: 4096 };
        let parsed = parse_request(&request_header(request)).unwrap();
        assert_eq!(
            (parsed.tag, parsed.op, parsed.offset, parsed.len),
            (7, LoadOp::Write, 0x1_2345_6789_abcd, 4096)
        );
        assert!(parse_request(&[0; HEADER_LEN]).is_none());
    }

    #[test]
    fn replies_in_any_pieces() {
        let stream: Vec<u8> = (0..5u32)
            .flat_map(|tag| [reply_header(tag, tag * 100).to_vec(), vec![9; tag as usize * 100]].concat())
            .collect();
        for piece in [1, 47, 48, 49, 333, stream.len()] {
            let (mut bare, mut out, mut done) = (BareClient::default(), Outgoing::new(0), Vec::new());
            let mut seen = Vec::new();
            for bytes in stream.chunks(piece) {
                seen.extend_from_slice(bytes);
                let taken = bare.handle_input(&seen, &mut out, &mut done).unwrap();
                seen.drain(..taken);
            }
            assert_eq!(done, [0, 1, 2, 3, 4], "in pieces of {piece}");
            assert!(seen.is_empty());
        }
    }
}
