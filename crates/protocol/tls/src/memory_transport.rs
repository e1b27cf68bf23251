//! What OpenSSL takes for its socket: bytes that were fed, and bytes that are to be sent.

use std::io::{self, Read, Write};

/// Both directions of a stream.
#[derive(Debug, Default)]
pub(crate) struct MemoryTransport {
    incoming: Vec<u8>,
    /// Bytes of `incoming` that OpenSSL has taken.
    taken: usize,
    pub(crate) outgoing: Vec<u8>,
}

impl MemoryTransport {
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.taken == self.incoming.len() {
            self.incoming.clear();
            self.taken = 0;
        }
        self.incoming.extend_from_slice(bytes);
    }

    /// Bytes that OpenSSL has not taken.
    pub(crate) fn unread_len(&self) -> usize {
        self.incoming.len() - self.taken
    }
}

impl Read for MemoryTransport {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = self.incoming.get(self.taken..).unwrap_or_default();
        if rest.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = rest.len().min(into.len());
        if let (Some(to), Some(from)) = (into.get_mut(..count), rest.get(..count)) {
            to.copy_from_slice(from);
        }
        self.taken += count;
        Ok(count)
    }
}

impl Write for MemoryTransport {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.outgoing.extend_from_slice(from);
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
