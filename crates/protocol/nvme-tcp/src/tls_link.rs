//! The state of TLS below a queue's connection: the handshake, then the channel that encrypts and decrypts records.
//! `queue/tls.rs` drives it.
//!
//! A batch of the queue is encrypted in stretches of [`HEAD_MAX`] into batches of the world. Records are decrypted
//! straight into what the queue wants to receive: a payload's own buffer, then a stage.
//!
//! Invariant: at most one batch of the world is unwritten.

use buf::{Cx, MemoryClass};
use stream::{HEAD_MAX, Received, RecvOp, SendOp, SendPiece};
use tls::{Channel, DecryptOutcome, Handshake, RECORD_CONTENT_MAX, RECORD_OVERHEAD, TlsFault};

/// The least memory that a batch of records is made in.
const RECORD_BATCH_MIN: usize = 1 << 10;

/// What a controller demands of a connection.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// The keys.
    pub context: tls::ServerContext,
    /// Whether a host that does not use TLS is turned away.
    pub is_required: bool,
}

#[derive(Debug)]
pub(crate) enum TlsState {
    /// The first byte decides.
    Detecting(ServerTls),
    /// The handshake, unless it is being computed; whether it can go on; what is to be sent.
    Shaking(Option<Handshake>, bool, Vec<u8>),
    /// The handshake is over.
    Open(Channel),
    /// It has failed, and this is to be sent.
    Failed(Vec<u8>),
}

/// The TLS of a queue's link.
#[derive(Debug)]
pub(crate) struct TlsLink {
    pub(crate) state: TlsState,
    /// A receive of the world is out.
    pub(crate) recv_out: bool,
    /// What the queue wants to receive.
    pub(crate) wanted: Option<RecvOp>,
    /// A batch of the queue, and how many of its bytes are encrypted.
    pub(crate) sealing: Option<(SendOp, usize)>,
    /// A batch of the world is out and not written.
    pub(crate) unwritten: bool,
    /// How many batches the world holds memory of.
    pub(crate) in_kernel: usize,
    /// The peer was told that nothing more comes.
    said_goodbye: bool,
    /// A record's content on its way to be encrypted.
    content: Box<[u8]>,
}

impl TlsLink {
    pub(crate) fn new(state: TlsState) -> Box<TlsLink> {
        Box::new(TlsLink {
            state,
            recv_out: false,
            wanted: None,
            sealing: None,
            unwritten: false,
            in_kernel: 0,
            said_goodbye: false,
            content: Box::default(),
        })
    }

    /// Goes on with a channel that came from another shard.
    pub(crate) fn from_channel(channel: Channel) -> Box<TlsLink> {
        TlsLink::new(TlsState::Open(channel))
    }

    /// What goes to another shard.
    pub(crate) fn into_channel(self) -> Option<Channel> {
        match self.state {
            TlsState::Open(channel) => Some(channel),
            _ => None,
        }
    }

    /// Whether the world holds nothing of it, and nothing is on its way out.
    pub(crate) fn has_no_io_in_flight(&self) -> bool {
        !self.recv_out && self.in_kernel == 0 && self.sealing.is_none()
    }

    /// Whether it may go to another shard.
    pub(crate) fn can_hand_off(&self) -> bool {
        self.has_no_io_in_flight()
            && matches!(&self.state, TlsState::Open(channel) if channel.outgoing_len() == 0)
    }

    /// Whether the peer knows that nothing more comes; tells it if it does not.
    pub(crate) fn finish_close_notify(&mut self) -> bool {
        let TlsState::Open(channel) = &mut self.state else { return true };
        if !std::mem::replace(&mut self.said_goodbye, true) {
            channel.send_close_notify();
        }
        channel.outgoing_len() == 0 && !self.unwritten
    }

    /// Encrypts what there is room for, into one batch of the world. `Ok(None)`: there is nothing to send.
    pub(crate) fn seal_batch(&mut self, cx: &mut Cx<'_>) -> Result<Option<SendOp>, SealError> {
        let TlsState::Open(channel) = &mut self.state else { return Ok(None) };
        let left = self.sealing.as_ref().map_or(0, |(op, at)| op.len - at);
        if left + channel.outgoing_len() == 0 {
            return Ok(None);
        }
        let records = left.div_ceil(RECORD_CONTENT_MAX);
        let mut want =
            (channel.outgoing_len() + left + records * RECORD_OVERHEAD).clamp(RECORD_BATCH_MIN, HEAD_MAX);
        let mut head = loop {
            match cx.pool.take(MemoryClass::Wire, want) {
                Some(head) => break head,
                None if want / 2 >= RECORD_BATCH_MIN => want /= 2,
                None => return Err(SealError::NoMemory),
            }
        };
        head.set_len(head.capacity());
        if self.content.is_empty() {
            self.content = vec![0; RECORD_CONTENT_MAX].into();
        }
        if let Some((op, at)) = &mut self.sealing {
            while *at < op.len {
                let room = head.len().saturating_sub(channel.outgoing_len() + RECORD_OVERHEAD);
                let len = room.min(RECORD_CONTENT_MAX).min(op.len - *at);
                let Some(content) = self.content.get_mut(..len).filter(|content| !content.is_empty()) else {
                    break;
                };
                *at += op.copy_to(*at, content);
                channel.encrypt(content).map_err(SealError::Broken)?;
            }
        }
        let len = channel.take_outgoing(&mut head);
        self.unwritten = true;
        self.in_kernel += 1;
        Ok(Some(single_piece_op(head, len)))
    }

    /// What of a handshake is to be sent.
    pub(crate) fn handshake_batch(&mut self, cx: &mut Cx<'_>) -> Result<Option<SendOp>, SealError> {
        let (TlsState::Shaking(_, _, outgoing) | TlsState::Failed(outgoing)) = &mut self.state else {
            return Ok(None);
        };
        if outgoing.is_empty() {
            return Ok(None);
        }
        let len = outgoing.len().min(HEAD_MAX);
        let mut head = cx.pool.take(MemoryClass::Wire, len).ok_or(SealError::NoMemory)?;
        head.set_len(len);
        head.iter_mut().zip(outgoing.drain(..len)).for_each(|(to, from)| *to = from);
        self.unwritten = true;
        self.in_kernel += 1;
        Ok(Some(single_piece_op(head, len)))
    }
}

pub(crate) enum SealError {
    NoMemory,
    Broken(TlsFault),
}

fn single_piece_op(head: buf::BufMut, len: usize) -> SendOp {
    let pieces = [SendPiece::Head(0..len as u32)].into_iter().collect();
    SendOp { head: Some(head), pieces, len }
}

/// Gives `each` what a receive brought.
pub(crate) fn for_each_received(op: &RecvOp, received: &Received, mut each: impl FnMut(&[u8])) {
    match received {
        Received::Bytes(bytes) => {
            if let Some(bytes) = op.stage.as_ref().and_then(|stage| stage.get(..*bytes)) {
                each(bytes);
            }
        }
        Received::Loaned(pages) => {
            let mut bytes = vec![0; pages.len()];
            pages.copy_to(0, &mut bytes);
            each(&bytes);
        }
        Received::End | Received::Cancelled | Received::Failed(_) => {}
    }
}

/// Decrypts into what a queue wants to receive; gives how many bytes. `Err(None)`: there is no memory for a
/// stage.
pub(crate) fn decrypt_into(
    channel: &mut Channel,
    cx: &mut Cx<'_>,
    op: &mut RecvOp,
) -> Result<usize, Option<TlsFault>> {
    let (mut done, mut is_full) = (0, true);
    if let Some(direct) = &mut op.direct {
        for slice in direct.data.slices_mut(direct.want.clone()) {
            let mut rest = slice;
            while !rest.is_empty() && is_full {
                match channel.decrypt(rest) {
                    Ok(DecryptOutcome::Bytes(bytes)) => {
                        done += bytes;
                        rest = rest.get_mut(bytes..).unwrap_or_default();
                    }
                    Ok(DecryptOutcome::Wait) => is_full = false,
                    // What came before is delivered first; the fault comes again.
                    Err(_) if done > 0 => is_full = false,
                    Err(fault) => return Err(Some(fault)),
                }
            }
        }
    }
    if !is_full || op.stage_len == 0 || !channel.has_incoming() {
        return Ok(done);
    }
    let mut stage = match cx.pool.take(MemoryClass::Wire, op.stage_len) {
        Some(stage) => stage,
        None if done > 0 => return Ok(done),
        None => return Err(None),
    };
    stage.set_len(stage.capacity());
    match channel.decrypt(&mut stage) {
        Ok(DecryptOutcome::Bytes(bytes)) => {
            stage.set_len(bytes);
            op.stage = Some(stage);
            Ok(done + bytes)
        }
        Ok(DecryptOutcome::Wait) => Ok(done),
        Err(_) if done > 0 => Ok(done),
        Err(fault) => Err(Some(fault)),
    }
}
