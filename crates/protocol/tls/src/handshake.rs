//! The handshake.

use std::fmt;

use openssl::ssl::{ErrorCode, Ssl, SslStream};

use crate::channel::Channel;
use crate::context::{self, ClientContext, ServerContext};
use crate::fault::{ContextError, Fault};
use crate::transport::Transport;

/// A handshake that is not over.
pub struct Handshake {
    stream: SslStream<Transport>,
    is_server: bool,
}

/// What a step came to. What is to be sent in each case is in it.
#[derive(Debug)]
pub enum Progress {
    /// More must come from the other side.
    Wait(Handshake),
    /// Both sides have the same key.
    Done(Channel),
    /// It has failed; what is still to be sent is an alert, or nothing.
    Failed(Fault, Vec<u8>),
}

impl Handshake {
    /// The server's side of a connection that a client opens with a ClientHello.
    ///
    /// # Errors
    /// Memory.
    pub fn accept(context: &ServerContext) -> Result<Handshake, ContextError> {
        let mut ssl = Ssl::new(&context.0)?;
        ssl.set_accept_state();
        Ok(Handshake { stream: SslStream::new(ssl, Transport::default())?, is_server: true })
    }

    /// The client's side: the first step makes the ClientHello.
    ///
    /// # Errors
    /// Memory.
    pub fn connect(context: &ClientContext) -> Result<Handshake, ContextError> {
        let mut ssl = Ssl::new(&context.0)?;
        ssl.set_connect_state();
        Ok(Handshake { stream: SslStream::new(ssl, Transport::default())?, is_server: false })
    }

    /// Takes what has come from the other side. The next step uses it.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.stream.get_mut().feed(bytes);
    }

    /// What is to be sent.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.stream.get_mut().outgoing)
    }

    /// Computes as far as it can.
    pub fn step(mut self) -> Progress {
        match self.stream.do_handshake() {
            Ok(()) => self.finish(),
            Err(error) if error.code() == ErrorCode::WANT_READ => Progress::Wait(self),
            Err(error) => {
                let fault = self.fault(&Fault::of(&error, &self.identity()));
                Progress::Failed(fault, self.take_outgoing())
            }
        }
    }

    /// Without a key of both sides there is no channel, whatever else OpenSSL would have taken.
    fn finish(mut self) -> Progress {
        let is_known = match context::offered(self.stream.ssl()) {
            Some(offered) => offered.is_known,
            None => !self.is_server,
        };
        if !self.stream.ssl().session_reused() || !is_known {
            return Progress::Failed(Fault::NoKey, self.take_outgoing());
        }
        let identity = self.raw_identity().to_vec();
        Progress::Done(Channel::new(self.stream, identity))
    }

    /// The identity that this goes by, as it was said.
    fn raw_identity(&self) -> &[u8] {
        let ssl = self.stream.ssl();
        match (context::offered(ssl), context::client_key(ssl)) {
            (Some(offered), _) => &offered.identity,
            (None, Some((identity, _))) => identity,
            (None, None) => &[],
        }
    }

    /// The same, to be shown: a peer chooses it, so it holds no control character.
    fn identity(&self) -> String {
        let text = String::from_utf8_lossy(self.raw_identity());
        text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
    }

    /// A server that finds no key goes on to look for a certificate, and says that it has none: the key is to blame.
    fn fault(&self, fault: &Fault) -> Fault {
        let ours = matches!(
            fault,
            Fault::Protocol("no suitable signature algorithm" | "no shared cipher" | "no certificate set")
        );
        match context::offered(self.stream.ssl()) {
            Some(offered) if ours && !offered.is_known => Fault::UnknownIdentity(self.identity()),
            None if ours && self.is_server => Fault::NoKey,
            Some(_) | None => fault.clone(),
        }
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handshake(..)")
    }
}
