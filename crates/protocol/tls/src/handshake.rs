//! The handshake.

use std::fmt;

use openssl::ssl::{ErrorCode, Ssl, SslStream};

use crate::channel::Channel;
use crate::context::{ClientContext, ServerContext};
use crate::ex_data;
use crate::fault::{ContextError, TlsFault};
use crate::memory_transport::MemoryTransport;

/// A handshake that is not over.
pub struct Handshake {
    stream: SslStream<MemoryTransport>,
    is_server: bool,
}

/// What a step came to. What is to be sent in each case is in it.
#[derive(Debug)]
pub enum HandshakeProgress {
    /// More must come from the other side.
    Wait(Handshake),
    /// Both sides have the same key.
    Done(Channel),
    /// It has failed; what is still to be sent is an alert, or nothing.
    Failed(TlsFault, Vec<u8>),
}

impl Handshake {
    /// The server's side of a connection that a client opens with a ClientHello.
    ///
    /// # Errors
    /// Memory.
    pub fn new_server(context: &ServerContext) -> Result<Handshake, ContextError> {
        let mut ssl = Ssl::new(&context.0)?;
        ssl.set_accept_state();
        Ok(Handshake { stream: SslStream::new(ssl, MemoryTransport::default())?, is_server: true })
    }

    /// The client's side: the first step makes the ClientHello.
    ///
    /// # Errors
    /// Memory.
    pub fn new_client(context: &ClientContext) -> Result<Handshake, ContextError> {
        let mut ssl = Ssl::new(&context.0)?;
        ssl.set_connect_state();
        Ok(Handshake { stream: SslStream::new(ssl, MemoryTransport::default())?, is_server: false })
    }

    /// Takes what has come from the other side. The next step uses it.
    pub fn feed_incoming(&mut self, bytes: &[u8]) {
        self.stream.get_mut().feed(bytes);
    }

    /// What is to be sent.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.stream.get_mut().outgoing)
    }

    /// Computes as far as it can.
    pub fn step(mut self) -> HandshakeProgress {
        match self.stream.do_handshake() {
            Ok(()) => self.finish_handshake(),
            Err(error) if error.code() == ErrorCode::WANT_READ => HandshakeProgress::Wait(self),
            Err(error) => {
                let fault = self.refine_fault(&TlsFault::from_ssl_error(&error, &self.printable_identity()));
                HandshakeProgress::Failed(fault, self.take_outgoing())
            }
        }
    }

    /// Without a key of both sides there is no channel, whatever else OpenSSL would have taken.
    fn finish_handshake(mut self) -> HandshakeProgress {
        let is_known = match ex_data::offered_identity(self.stream.ssl()) {
            Some(offered) => offered.is_known,
            None => !self.is_server,
        };
        if !self.stream.ssl().session_reused() || !is_known {
            return HandshakeProgress::Failed(TlsFault::NoKey, self.take_outgoing());
        }
        let identity = self.raw_identity().to_vec();
        HandshakeProgress::Done(Channel::new(self.stream, identity))
    }

    /// The identity that this goes by, as it was said.
    fn raw_identity(&self) -> &[u8] {
        let ssl = self.stream.ssl();
        match (ex_data::offered_identity(ssl), ex_data::offered_psk(ssl)) {
            (Some(offered), _) => &offered.identity,
            (None, Some((identity, _))) => identity,
            (None, None) => &[],
        }
    }

    /// The same, to be shown: a peer chooses it, so it holds no control character.
    fn printable_identity(&self) -> String {
        let text = String::from_utf8_lossy(self.raw_identity());
        text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
    }

    /// A server that finds no key goes on to look for a certificate, and says that it has none: the key is to blame.
    fn refine_fault(&self, fault: &TlsFault) -> TlsFault {
        let ours = matches!(
            fault,
            TlsFault::Protocol("no suitable signature algorithm" | "no shared cipher" | "no certificate set")
        );
        match ex_data::offered_identity(self.stream.ssl()) {
            Some(offered) if ours && !offered.is_known => {
                TlsFault::UnknownIdentity(self.printable_identity())
            }
            None if ours && self.is_server => TlsFault::NoKey,
            Some(_) | None => fault.clone(),
        }
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handshake(..)")
    }
}
