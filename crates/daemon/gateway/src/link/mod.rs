//! A link between two gateways of a group, as a state machine: bytes in, bytes out, no socket.
//!
//! ```text
//! TLS 1.3 with the group's key as pre-shared key (identity "blockwire-group NAME")
//! frame: length(u32) body
//!   first, both ways: hello = "BWGL" version(u16) group(text) from(u64) to(u64)
//!   then              a message (`messages`)
//! ```
//! Who connects says hello first. A gateway to which the hello is not addressed answers with its own and closes: so the
//! other learns that the instance it looks for is not there any more.
//!
//! Invariants:
//! - Nothing of a peer is looked at before it has proved that it has the group's key, and no message is delivered before
//!   its hello: a stranger gets a TLS alert at most.
//! - Messages are delivered in order, each once; after a fault none is.
//! - What waits to be sent, and what has come and is not whole, is bounded. A handshake has a deadline.

mod messages;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use buf::Time;
use group::{GroupName, InstanceId, LinkMessage, LinkPayload};
use tls::{
    Channel, ClientContext, ContextError, DecryptOutcome, Handshake, HandshakeProgress, Psk, PskLookup,
    ServerContext, TlsFault,
};

use crate::store::GroupKey;
use wire::{Malformed, Reader, Wire};

/// The version of messages and hello. Both sides must have the same.
pub const LINK_VERSION: u16 = 3;
/// The longest body of a frame: a payload (a host transfers 1 MiB at most; a compare-and-write has twice what it writes)
/// and what stands around it, or notices for 1,024 registrants.
pub const FRAME_MAX: usize = (2 << 20) + (512 << 10);
/// The longest hello.
const HELLO_MAX: usize = 256;
/// What may wait to be sent, in bytes; more is not taken, and the link is to be closed: the other side does not read.
pub const BACKLOG_MAX: usize = 64 << 20;
/// What is encrypted ahead of what was sent, in bytes.
const ENCRYPTED_AHEAD: usize = 256 << 10;
/// What a peer may send before it has proved that it has the key, in bytes: its hello of TLS has less than 1 KiB.
const HANDSHAKE_MAX: usize = 16 << 10;
/// How long TLS and hello may take.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// TLS_AES_128_GCM_SHA256: an external key goes with SHA-256.
const SUITE: [u8; 2] = [0x13, 0x01];
const MAGIC: [u8; 4] = *b"BWGL";

/// What all links of an instance have in common.
#[derive(Clone)]
pub struct LinkContext {
    me: InstanceId,
    group: Arc<str>,
    server: ServerContext,
    client: ClientContext,
}

struct GroupPsk {
    identity: Vec<u8>,
    psk: Psk,
}

impl PskLookup for GroupPsk {
    fn find_psk(&self, identity: &[u8]) -> Option<Psk> {
        (identity == self.identity).then(|| self.psk.clone())
    }
}

impl LinkContext {
    /// For this instance of a group.
    ///
    /// # Errors
    /// OpenSSL lacks TLS 1.3 or the suite.
    pub fn new(me: InstanceId, group: &GroupName, key: &GroupKey) -> Result<LinkContext, ContextError> {
        let identity = format!("blockwire-group {group}").into_bytes();
        let psk = Psk::new(SUITE, key.bytes());
        let client = ClientContext::new(identity.clone(), psk.clone())?;
        let server = ServerContext::new(Arc::new(GroupPsk { identity, psk }))?;
        Ok(LinkContext { me, group: group.to_string().into(), server, client })
    }
}

impl fmt::Debug for LinkContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkContext")
            .field("me", &self.me)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

/// Why a link has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkFault {
    /// The other side has another key, none, or broke TLS.
    Tls(TlsFault),
    /// TLS and hello took longer than [`HANDSHAKE_TIME`].
    Slow,
    /// The other side sends what no gateway sends.
    Malformed,
    /// A frame is longer than any.
    TooLong(u64),
    /// The other gateway has another version of the links.
    Version(u16),
    /// The other gateway is of this group.
    OtherGroup(Arc<str>),
    /// Another instance is there than the one that was wanted, or it wants another than this.
    OtherInstance(InstanceId),
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkFault::Tls(why) => write!(f, "TLS: {why}"),
            LinkFault::Slow => {
                write!(f, "no link within {} s: what is there does not answer", HANDSHAKE_TIME.as_secs())
            }
            LinkFault::Malformed => f.write_str("the other side sends what no gateway sends"),
            LinkFault::TooLong(length) => {
                write!(f, "the other side sends a frame of {length} bytes, more than {FRAME_MAX}")
            }
            LinkFault::Version(version) => write!(
                f,
                "the other gateway has version {version} of the links between gateways, this one {LINK_VERSION}: \
                 install the same release on both"
            ),
            LinkFault::OtherGroup(group) => write!(f, "the other gateway is of the group {group:?}"),
            LinkFault::OtherInstance(instance) => write!(f, "it is of another instance, {instance}"),
        }
    }
}

impl std::error::Error for LinkFault {}

/// What a link tells.
#[derive(Clone, Debug)]
pub enum LinkEvent {
    /// The other side is this instance of the group.
    Up(InstanceId),
    /// A message has come.
    Message(LinkMessage<LinkPayload>),
    /// The link is to be closed, once what is left has been sent.
    Ended(LinkFault),
}

/// A message was not taken: too much waits, or it is longer than a frame. The link is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRefused;

impl fmt::Display for SendRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too much waits to be sent to the other gateway")
    }
}

impl std::error::Error for SendRefused {}

enum Stage {
    Handshake(Box<Handshake>),
    /// The other side's hello is awaited.
    Hello(Box<Channel>),
    Up(Box<Channel>),
    /// What is left to be sent: an alert, or a hello that refuses.
    Ended(Vec<u8>),
}

/// A link.
pub struct Link {
    me: InstanceId,
    group: Arc<str>,
    /// Whom this side looks for, if it has connected.
    to: Option<InstanceId>,
    stage: Stage,
    /// Until when TLS and hello must be over.
    until: Time,
    /// What the other side has sent before it has proved that it has the key.
    unproved: usize,
    /// What of the handshake is to be sent before all else.
    flight: Vec<u8>,
    /// Frames that are not encrypted yet, and their bytes.
    outbox: VecDeque<Vec<u8>>,
    waiting: usize,
    /// What was decrypted and is not a whole frame.
    inbox: Vec<u8>,
    events: VecDeque<LinkEvent>,
}

impl Link {
    /// Begins as the side that has connected, to the gateway of this instance.
    ///
    /// # Errors
    /// Memory.
    pub fn connect(context: &LinkContext, now: Time, to: InstanceId) -> Result<Link, ContextError> {
        let mut link = Link::begin(context, now, Some(to), Handshake::new_client(&context.client)?);
        link.step_handshake();
        Ok(link)
    }

    /// Begins as the side that was connected to.
    ///
    /// # Errors
    /// Memory.
    pub fn accept(context: &LinkContext, now: Time) -> Result<Link, ContextError> {
        Ok(Link::begin(context, now, None, Handshake::new_server(&context.server)?))
    }

    fn begin(context: &LinkContext, now: Time, to: Option<InstanceId>, handshake: Handshake) -> Link {
        Link {
            me: context.me,
            group: context.group.clone(),
            to,
            stage: Stage::Handshake(Box::new(handshake)),
            until: now + HANDSHAKE_TIME,
            unproved: 0,
            flight: Vec::new(),
            outbox: VecDeque::new(),
            waiting: 0,
            inbox: Vec::new(),
            events: VecDeque::new(),
        }
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<LinkEvent> {
        self.events.pop_front()
    }

    /// When [`Link::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.stage {
            Stage::Handshake(_) | Stage::Hello(_) => Some(self.until),
            Stage::Up(_) | Stage::Ended(_) => None,
        }
    }

    /// The handshake may have taken too long.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout().is_some_and(|until| until <= now) {
            self.end(LinkFault::Slow, Vec::new());
        }
    }

    /// Sends a message. Before the link is up it is refused.
    ///
    /// # Errors
    /// It is too long, or too much waits.
    pub fn send(&mut self, message: &LinkMessage<LinkPayload>) -> Result<(), SendRefused> {
        let Stage::Up(_) = self.stage else { return Err(SendRefused) };
        let mut frame = vec![0; 4];
        message.encode(&mut frame);
        let length = frame.len() - 4;
        if length > FRAME_MAX || self.waiting + frame.len() > BACKLOG_MAX {
            return Err(SendRefused);
        }
        self.push_frame(frame);
        Ok(())
    }

    fn push_frame(&mut self, mut frame: Vec<u8>) {
        let length = u32::try_from(frame.len() - 4).unwrap_or(u32::MAX).to_le_bytes();
        if let Some(head) = frame.first_chunk_mut() {
            *head = length;
        }
        self.waiting += frame.len();
        self.outbox.push_back(frame);
    }

    /// Moves what is to be sent into memory that has room for it; gives how many bytes. 0: nothing is to be sent.
    pub fn poll_transmit(&mut self, into: &mut [u8]) -> usize {
        if let Stage::Handshake(handshake) = &mut self.stage {
            self.flight.append(&mut handshake.take_outgoing());
        }
        if !self.flight.is_empty() {
            return take_front(&mut self.flight, into);
        }
        match &mut self.stage {
            Stage::Handshake(_) => 0,
            Stage::Hello(channel) | Stage::Up(channel) => {
                while channel.outgoing_len() < ENCRYPTED_AHEAD
                    && let Some(frame) = self.outbox.pop_front()
                {
                    self.waiting -= frame.len();
                    if let Err(fault) = channel.encrypt(&frame) {
                        self.end(LinkFault::Tls(fault), Vec::new());
                        return 0;
                    }
                }
                channel.take_outgoing(into)
            }
            Stage::Ended(left) => take_front(left, into),
        }
    }

    /// Bytes have come from the other side.
    pub fn handle_received(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match &mut self.stage {
                Stage::Handshake(handshake) => {
                    self.unproved += bytes.len();
                    if self.unproved > HANDSHAKE_MAX {
                        return self.end(LinkFault::Tls(TlsFault::Flood), Vec::new());
                    }
                    handshake.feed_incoming(bytes);
                    bytes = &[];
                    self.step_handshake();
                    if matches!(self.stage, Stage::Handshake(_)) {
                        return;
                    }
                }
                Stage::Hello(channel) | Stage::Up(channel) => {
                    // OpenSSL keeps one record and what it was fed.
                    let (now, later) = bytes.split_at(bytes.len().min(tls::RECORD_CONTENT_MAX));
                    channel.feed_incoming(now);
                    bytes = later;
                }
                Stage::Ended(_) => return,
            }
            self.decrypt();
        }
    }

    fn step_handshake(&mut self) {
        let Stage::Handshake(handshake) = std::mem::replace(&mut self.stage, Stage::Ended(Vec::new())) else {
            return;
        };
        match handshake.step() {
            HandshakeProgress::Wait(handshake) => self.stage = Stage::Handshake(Box::new(handshake)),
            HandshakeProgress::Done(channel) => {
                self.stage = Stage::Hello(Box::new(channel));
                if let Some(to) = self.to {
                    self.say_hello(to);
                }
            }
            HandshakeProgress::Failed(fault, alert) => self.end(LinkFault::Tls(fault), alert),
        }
    }

    fn say_hello(&mut self, to: InstanceId) {
        let mut frame = vec![0; 4];
        MAGIC.encode(&mut frame);
        LINK_VERSION.encode(&mut frame);
        self.group.encode(&mut frame);
        self.me.0.encode(&mut frame);
        to.0.encode(&mut frame);
        self.push_frame(frame);
    }

    fn decrypt(&mut self) {
        let mut plain = [0; 16 << 10];
        loop {
            let channel = match &mut self.stage {
                Stage::Hello(channel) | Stage::Up(channel) => channel,
                Stage::Handshake(_) | Stage::Ended(_) => return,
            };
            match channel.decrypt(&mut plain) {
                Ok(DecryptOutcome::Bytes(count)) => {
                    self.inbox.extend_from_slice(plain.get(..count).unwrap_or_default());
                    self.take_frames();
                }
                Ok(DecryptOutcome::Wait) => return,
                Err(fault) => return self.end(LinkFault::Tls(fault), Vec::new()),
            }
        }
    }

    fn take_frames(&mut self) {
        let mut inbox = std::mem::take(&mut self.inbox);
        let mut taken = 0;
        while let Some(rest) = inbox.get(taken..)
            && let Some((head, body)) = rest.split_first_chunk::<4>()
        {
            let length = u32::from_le_bytes(*head);
            let most = match self.stage {
                Stage::Hello(_) => HELLO_MAX,
                Stage::Up(_) => FRAME_MAX,
                Stage::Handshake(_) | Stage::Ended(_) => return,
            };
            // Refused before any of it has come.
            let Some(length) = usize::try_from(length).ok().filter(|length| *length <= most) else {
                return self.end(LinkFault::TooLong(length.into()), Vec::new());
            };
            let Some(body) = body.get(..length) else { break };
            if let Err(fault) = self.take_frame(body) {
                // What is to be sent before the end: a hello that refuses.
                let left = self.encrypt_rest();
                return self.end(fault, left);
            }
            taken += 4 + length;
        }
        inbox.drain(..taken);
        self.inbox = inbox;
    }

    fn take_frame(&mut self, body: &[u8]) -> Result<(), LinkFault> {
        match std::mem::replace(&mut self.stage, Stage::Ended(Vec::new())) {
            Stage::Hello(channel) => {
                let hello = Hello::decode(body)?;
                self.stage = Stage::Hello(channel);
                self.take_hello(&hello)?;
                if let Stage::Hello(channel) = std::mem::replace(&mut self.stage, Stage::Ended(Vec::new())) {
                    self.stage = Stage::Up(channel);
                }
                self.events.push_back(LinkEvent::Up(hello.from));
            }
            Stage::Up(channel) => {
                self.stage = Stage::Up(channel);
                let mut from = Reader::new(body);
                let message = Wire::decode(&mut from)?;
                from.close()?;
                self.events.push_back(LinkEvent::Message(message));
            }
            other @ (Stage::Handshake(_) | Stage::Ended(_)) => self.stage = other,
        }
        Ok(())
    }

    fn take_hello(&mut self, hello: &Hello) -> Result<(), LinkFault> {
        if self.to.is_none() {
            // Answered in any case, so that the other side learns who is here.
            self.say_hello(hello.from);
        }
        if hello.version != LINK_VERSION {
            return Err(LinkFault::Version(hello.version));
        }
        if hello.group != self.group {
            return Err(LinkFault::OtherGroup(hello.group.clone()));
        }
        let is_other = self.to.is_some_and(|to| to != hello.from);
        if is_other || (self.to.is_none() && hello.to != self.me) {
            return Err(LinkFault::OtherInstance(if is_other { hello.from } else { hello.to }));
        }
        Ok(())
    }

    /// What is to be sent yet, as far as it is little.
    fn encrypt_rest(&mut self) -> Vec<u8> {
        let Stage::Hello(channel) = &mut self.stage else { return Vec::new() };
        let sealed = self.outbox.drain(..).all(|frame| channel.encrypt(&frame).is_ok());
        if !sealed {
            return Vec::new();
        }
        channel.send_close_notify();
        let mut left = vec![0; channel.outgoing_len()];
        let count = channel.take_outgoing(&mut left);
        left.truncate(count);
        left
    }

    fn end(&mut self, fault: LinkFault, left: Vec<u8>) {
        if !matches!(&self.stage, Stage::Ended(left) if !left.is_empty()) {
            self.stage = Stage::Ended(left);
        }
        self.outbox.clear();
        self.inbox = Vec::new();
        self.waiting = 0;
        self.events.push_back(LinkEvent::Ended(fault));
    }
}

/// Moves as many bytes as there is room for.
fn take_front(from: &mut Vec<u8>, into: &mut [u8]) -> usize {
    let count = from.len().min(into.len());
    if let (Some(into), Some(from)) = (into.get_mut(..count), from.get(..count)) {
        into.copy_from_slice(from);
    }
    from.drain(..count);
    count
}

/// Who is at the other side.
struct Hello {
    version: u16,
    group: Arc<str>,
    from: InstanceId,
    to: InstanceId,
}

impl Hello {
    /// Of another version, nothing behind the version is looked at.
    fn decode(body: &[u8]) -> Result<Hello, LinkFault> {
        let mut from = Reader::new(body);
        if <[u8; 4]>::decode(&mut from)? != MAGIC {
            return Err(LinkFault::Malformed);
        }
        let version = u16::decode(&mut from)?;
        if version != LINK_VERSION {
            let nobody = InstanceId(0);
            return Ok(Hello { version, group: "".into(), from: nobody, to: nobody });
        }
        let group = Wire::decode(&mut from)?;
        let (sender, receiver) = (u64::decode(&mut from)?, u64::decode(&mut from)?);
        from.close()?;
        Ok(Hello { version, group, from: InstanceId(sender), to: InstanceId(receiver) })
    }
}

impl From<Malformed> for LinkFault {
    fn from(_: Malformed) -> LinkFault {
        LinkFault::Malformed
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::Handshake(_) => "handshake",
            Stage::Hello(_) => "hello",
            Stage::Up(_) => "up",
            Stage::Ended(_) => "ended",
        };
        f.debug_struct("Link").field("to", &self.to).field("stage", &stage).finish_non_exhaustive()
    }
}
