//! Records, once the handshake is over.

use std::fmt;

use openssl::ssl::{ErrorCode, SslStream};

use crate::fault::TlsFault;
use crate::memory_transport::MemoryTransport;

/// The most that may wait to be sent before the other side is taken to flood us: what the owner encrypts at a
/// time, and answers to key updates.
const OUTGOING_MAX: usize = 4 << 20;

/// Encrypts and decrypts.
pub struct Channel {
    stream: SslStream<MemoryTransport>,
    identity: Vec<u8>,
    /// What has ended it, to be told once all that came before is delivered.
    fault: Option<TlsFault>,
}

/// What was decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecryptOutcome {
    /// So many bytes; there may be more.
    Bytes(usize),
    /// More must come first.
    Wait,
}

impl Channel {
    pub(crate) fn new(stream: SslStream<MemoryTransport>, identity: Vec<u8>) -> Channel {
        Channel { stream, identity, fault: None }
    }

    /// The identity of the key that both sides have.
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// The cipher suite's name.
    pub fn suite(&self) -> &'static str {
        self.stream.ssl().current_cipher().and_then(|cipher| cipher.standard_name()).unwrap_or("unknown")
    }

    /// Takes what has come from the other side.
    pub fn feed_incoming(&mut self, bytes: &[u8]) {
        self.stream.get_mut().feed(bytes);
    }

    /// Whether something was fed that has not been looked at.
    pub fn has_incoming(&self) -> bool {
        self.fault.is_some() || self.stream.ssl().pending() > 0 || self.stream.get_ref().unread_len() > 0
    }

    /// Decrypts as much as is there and has room.
    ///
    /// # Errors
    /// The other side closed or broke the channel. What is to be sent may hold an alert.
    pub fn decrypt(&mut self, into: &mut [u8]) -> Result<DecryptOutcome, TlsFault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let mut done = 0;
        while let Some(room) = into.get_mut(done..).filter(|room| !room.is_empty()) {
            match self.stream.ssl_read(room) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.code() == ErrorCode::WANT_READ => break,
                Err(error) => {
                    self.fault = Some(TlsFault::from_ssl_error(&error, ""));
                    break;
                }
            }
        }
        if self.outgoing_len() > OUTGOING_MAX {
            self.fault = Some(TlsFault::Flood);
        }
        match &self.fault {
            _ if done > 0 => Ok(DecryptOutcome::Bytes(done)),
            Some(fault) => Err(fault.clone()),
            None => Ok(DecryptOutcome::Wait),
        }
    }

    /// Encrypts.
    ///
    /// # Errors
    /// The channel is broken.
    pub fn encrypt(&mut self, mut from: &[u8]) -> Result<(), TlsFault> {
        while !from.is_empty() {
            let bytes = self.stream.ssl_write(from).map_err(|error| TlsFault::from_ssl_error(&error, ""))?;
            from = from.get(bytes..).unwrap_or_default();
        }
        Ok(())
    }

    /// Says that nothing more will be sent.
    pub fn send_close_notify(&mut self) {
        // A failure has nobody to be told to: the connection ends in any case.
        let _ = self.stream.shutdown();
    }

    /// Bytes that are to be sent.
    pub fn outgoing_len(&self) -> usize {
        self.stream.get_ref().outgoing.len()
    }

    /// Moves what is to be sent into memory that has room for it; gives how many bytes.
    pub fn take_outgoing(&mut self, into: &mut [u8]) -> usize {
        let outgoing = &mut self.stream.get_mut().outgoing;
        let count = outgoing.len().min(into.len());
        if let (Some(to), Some(from)) = (into.get_mut(..count), outgoing.get(..count)) {
            to.copy_from_slice(from);
        }
        outgoing.drain(..count);
        count
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({})", self.suite())
    }
}
