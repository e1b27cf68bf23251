//! Client sides of the protocols that a load speaks: iSCSI, NVMe/TCP, and the bare protocol (a header and data).

pub mod association;
pub mod bare;
pub mod iscsi;
pub mod login;
pub mod nvme;
mod session;

use std::io::{self, IoSlice, Write};

/// What a load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LoadOp {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct WireRequest {
    /// Names the request on its connection; below the depth.
    pub tag: u32,
    /// Read or write.
    pub op: LoadOp,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub len: u32,
}

/// A protocol's client side on one connection: it encodes requests and decodes responses.
pub trait ProtocolClient {
    /// Encodes a request, or gives false if the server takes no more now.
    fn encode_request(&mut self, request: WireRequest, out: &mut Outgoing) -> bool;

    /// Takes what came; gives how many bytes it took (what is left is shown again with more behind
    /// it) and pushes the tags of the requests that are done.
    fn handle_input(&mut self, input: &[u8], out: &mut Outgoing, done: &mut Vec<u32>) -> io::Result<usize>;

    /// Encodes the end of the session or association.
    fn encode_end(&mut self, out: &mut Outgoing);
}

/// An error of the peer's making.
fn protocol_error(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

/// Bytes on their way to the socket: headers, and payload that is the same for all writes.
#[derive(Debug)]
pub struct Outgoing {
    heads: Vec<u8>,
    parts: Vec<OutgoingPart>,
    payload: Vec<u8>,
    /// Bytes of the first part that the socket has taken.
    taken: usize,
    first: usize,
}

#[derive(Clone, Copy, Debug)]
enum OutgoingPart {
    Head { from: usize, len: usize },
    Payload { len: usize },
}

/// Payload up to this length is copied behind its header: one long stretch costs the kernel less
/// than many short ones.
const COPIED_PAYLOAD_MAX: usize = 16 << 10;
/// Parts handed over at once; the system takes 1024.
const PARTS_MAX: usize = 512;

impl Outgoing {
    /// Nothing yet; writes will carry up to `payload_max` bytes.
    pub fn new(payload_max: usize) -> Self {
        // Anything but zeroes, which some storage would not store.
        let payload = (0..payload_max).map(|n| (n % 251) as u8 + 1).collect();
        Outgoing { heads: Vec::new(), parts: Vec::new(), payload, taken: 0, first: 0 }
    }

    /// Whether all was taken.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Appends a header.
    pub fn push_header(&mut self, bytes: &[u8]) {
        let from = self.heads.len();
        self.heads.extend_from_slice(bytes);
        match self.parts.last_mut() {
            Some(OutgoingPart::Head { len, .. }) => *len += bytes.len(),
            _ => self.parts.push(OutgoingPart::Head { from, len: bytes.len() }),
        }
    }

    /// Appends zeroes to a header.
    pub fn push_zeroes(&mut self, len: usize) {
        /// More than any header is padded by.
        const ZEROES: [u8; 128] = [0; 128];
        self.push_header(ZEROES.get(..len).unwrap_or(&ZEROES));
    }

    /// Appends payload: at most as much as was said at first.
    #[expect(
        clippy::indexing_slicing,
        reason = "no request is longer than the plan's, which made the payload"
    )]
    pub fn push_payload(&mut self, len: usize) {
        if len > COPIED_PAYLOAD_MAX {
            self.parts.push(OutgoingPart::Payload { len });
        } else if len > 0 {
            let payload = std::mem::take(&mut self.payload);
            self.push_header(&payload[..len]);
            self.payload = payload;
        }
    }

    /// Writes what the socket takes; true if that was all.
    pub fn flush(&mut self, socket: &mut impl Write) -> io::Result<bool> {
        self.flush_part(socket, usize::MAX)
    }

    /// Writes what the socket takes, at most so many bytes; true if that was all there is.
    #[expect(
        clippy::indexing_slicing,
        reason = "less than all of the first part was taken, and `first` is below their number"
    )]
    pub fn flush_part(&mut self, socket: &mut impl Write, most: usize) -> io::Result<bool> {
        let mut left = most;
        while self.first < self.parts.len() {
            if left == 0 {
                return Ok(false);
            }
            let (mut skip, mut room) = (self.taken, left);
            let slices: Vec<IoSlice<'_>> = self.parts[self.first..]
                .iter()
                .take(PARTS_MAX)
                .map(|part| {
                    let bytes = &self.part_bytes(*part)[std::mem::take(&mut skip)..];
                    let len = bytes.len().min(room);
                    room -= len;
                    IoSlice::new(&bytes[..len])
                })
                .collect();
            let written =
                if let [only] = &slices[..] { socket.write(only) } else { socket.write_vectored(&slices) };
            drop(slices);
            match written {
                Ok(n) => {
                    left -= n;
                    self.advance(n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.heads.clear();
        self.parts.clear();
        self.first = 0;
        Ok(true)
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a part names bytes that were appended, and they stay until all are sent"
    )]
    fn part_bytes(&self, part: OutgoingPart) -> &[u8] {
        match part {
            OutgoingPart::Head { from, len } => &self.heads[from..from + len],
            OutgoingPart::Payload { len } => &self.payload[..len],
        }
    }

    fn advance(&mut self, written: usize) {
        self.taken += written;
        while let Some(part) = self.parts.get(self.first) {
            let len = self.part_bytes(*part).len();
            if self.taken < len {
                break;
            }
            self.taken -= len;
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket that takes a few bytes at a time.
    struct Slow(Vec<u8>, usize);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            if self.1.is_multiple_of(3) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let n = bytes.len().min(7000);
            self.0.extend_from_slice(&bytes[..n]);
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn all_bytes_go_out_in_order() {
        let mut out = Outgoing::new(20_000);
        let mut expected = Vec::new();
        for (n, len) in [0, 100, 20_000, 16 << 10, 17_000].into_iter().enumerate() {
            out.push_header(&[n as u8; 48]);
            out.push_payload(len);
            expected.extend([n as u8; 48]);
            expected.extend((0..len).map(|n| (n % 251) as u8 + 1));
        }
        let mut socket = Slow(Vec::new(), 0);
        while !out.flush(&mut socket).unwrap() {}
        assert!(out.is_empty() && socket.0 == expected);
    }

    #[test]
    fn a_part_is_no_longer_than_was_said() {
        let mut out = Outgoing::new(20_000);
        for _ in 0..3 {
            out.push_header(&[7; 48]);
            out.push_payload(20_000);
        }
        let mut socket = Vec::new();
        let mut calls = 0;
        loop {
            let before = socket.len();
            let is_all = out.flush_part(&mut socket, 8192).unwrap();
            assert!((1..=8192).contains(&(socket.len() - before)));
            calls += 1;
            if is_all {
                break;
            }
        }
        assert_eq!((socket.len(), calls), (3 * 20_048, (3 * 20_048_usize).div_ceil(8192)));
    }
}
