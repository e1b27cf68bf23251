//! TLS below a queue (NVMe/TCP Transport 1.1 §3.6.1): the queue's operations are of plaintext, those of the
//! world of records.
//!
//! Where bytes enter: a receive of the world brings records into its stage; they are fed to the channel, and
//! decrypted for the queue. Where they leave: a batch of the queue is encrypted into batches of the world; it is
//! written when the last of them is. So neither the queue nor the world knows of TLS, and all worlds have it.
//!
//! A handshake is computed elsewhere: [`Queue::poll_handshake`] gives it away, [`Queue::handle_handshake`] takes
//! it back. Its time is that of the queue's own handshake.
//!
//! Invariants:
//! - At most one receive and one batch of the world are out; what they brought is decrypted before another
//!   receive goes out, so that memory is bounded by one stage, one batch and one record.
//! - No byte of a queue over TLS leaves or enters before the handshake is over.

use super::{MEMORY_RETRY_INTERVAL, Queue, QueuePhase, Role, RoleQueue};
use crate::LinkFault;
use crate::tls_link::{SealError, ServerTls, TlsLink, TlsState, decrypt_into, for_each_received};
use buf::{Cx, Errno};
use stream::{Received, RecvOp, SendOp};
use tls::{
    Channel, HANDSHAKE_RECORD, Handshake, HandshakeProgress, RECORD_CONTENT_MAX, RECORD_OVERHEAD, TlsFault,
};

/// Stage of a receive within a handshake: a ClientHello with the longest identities, and more.
const HANDSHAKE_STAGING_LEN: usize = 4 << 10;
/// Least and most that a receive of records asks for.
const STAGING_LEN_MIN: usize = 4 << 10;
const STAGING_LEN_MAX: usize = 64 << 10;

impl<R: Role> Queue<R>
where
    Self: RoleQueue<PduData = R::PduData, Event = R::Event>,
{
    /// The peer may, or must, begin with a TLS handshake: to be said before the first receive.
    pub fn expect_tls(&mut self, tls: ServerTls) {
        self.tls = Some(TlsLink::new(TlsState::Detecting(tls)));
    }

    /// This side begins with a TLS handshake: to be said before the first batch.
    pub fn start_tls(&mut self, handshake: Handshake) {
        self.tls = Some(TlsLink::new(TlsState::Shaking(Some(handshake), true, Vec::new())));
    }

    /// A handshake to be computed, wherever that delays nothing.
    #[must_use]
    pub fn poll_handshake(&mut self) -> Option<Handshake> {
        match &mut self.tls.as_mut()?.state {
            TlsState::Shaking(handshake, is_due @ true, _) => {
                *is_due = false;
                handshake.take()
            }
            _ => None,
        }
    }

    /// What came of it; `None`: who computes has too much else to do.
    pub fn handle_handshake(&mut self, progress: Option<HandshakeProgress>) {
        let Some(link) =
            self.tls.as_mut().filter(|_| !matches!(self.phase, QueuePhase::Dead | QueuePhase::Gone))
        else {
            return;
        };
        match progress {
            Some(HandshakeProgress::Wait(mut handshake)) => {
                let outgoing = handshake.take_outgoing();
                link.state = TlsState::Shaking(Some(handshake), false, outgoing);
            }
            Some(HandshakeProgress::Done(channel)) => link.state = TlsState::Open(channel),
            Some(HandshakeProgress::Failed(fault, last_words)) => {
                let is_mute = last_words.is_empty();
                link.state = TlsState::Failed(last_words);
                self.link_fault = Some(LinkFault::Tls(Box::new(fault)));
                if is_mute {
                    self.fail_connection();
                }
            }
            None => {
                self.link_fault = Some(LinkFault::TlsNotComputed);
                self.fail_connection();
            }
        }
        self.finish_closing();
    }

    /// The identity of the key that both sides have proved to have; `None`: without TLS, or before.
    pub fn tls_identity(&self) -> Option<&[u8]> {
        Some(self.channel()?.identity())
    }

    /// The cipher suite's name.
    pub fn tls_suite(&self) -> Option<&'static str> {
        Some(self.channel()?.suite())
    }

    fn channel(&self) -> Option<&Channel> {
        match &self.tls.as_ref()?.state {
            TlsState::Open(channel) => Some(channel),
            _ => None,
        }
    }

    /// What the world is to receive.
    pub(super) fn poll_record_recv(&mut self) -> Option<RecvOp> {
        let closed = matches!(self.phase, QueuePhase::Dead | QueuePhase::Gone);
        let link = self.tls.as_mut().filter(|link| !closed && !link.recv_out)?;
        let op = match &link.state {
            // Without TLS this is the queue's own first receive.
            TlsState::Detecting(_) => self.poll_plain_recv()?,
            TlsState::Shaking(Some(_), false, _) => {
                RecvOp { direct: None, stage_len: HANDSHAKE_STAGING_LEN, stage: None }
            }
            TlsState::Open(channel) if !channel.has_incoming() => {
                if link.wanted.is_none() {
                    let wanted = self.poll_plain_recv()?;
                    self.tls.as_mut()?.wanted = Some(wanted);
                }
                let wanted = self.tls.as_ref()?.wanted.as_ref()?;
                let direct = wanted.direct.as_ref().map_or(0, |direct| direct.want.len());
                let len = direct + wanted.stage_len;
                let len = len + len.div_ceil(RECORD_CONTENT_MAX) * RECORD_OVERHEAD;
                RecvOp { direct: None, stage_len: len.clamp(STAGING_LEN_MIN, STAGING_LEN_MAX), stage: None }
            }
            TlsState::Open(_) | TlsState::Shaking(..) | TlsState::Failed(_) => return None,
        };
        self.tls.as_mut()?.recv_out = true;
        Some(op)
    }

    /// Takes a receive of the world back.
    pub(super) fn handle_record_recv(
        &mut self,
        cx: &mut Cx<'_>,
        op: RecvOp,
        received: Received,
    ) -> Result<(), LinkFault> {
        let is_over = matches!(self.phase, QueuePhase::Dead | QueuePhase::Gone);
        let Some(link) = &mut self.tls else { return Ok(()) };
        link.recv_out = false;
        // The world's receive may have ended before it heard that the connection is over: the queue's own receive
        // is not kept for the rest of a record then.
        if is_over && matches!(link.state, TlsState::Open(_)) && link.wanted.is_some() {
            self.return_queue_ops();
            self.finish_closing();
            return Ok(());
        }
        match &mut link.state {
            TlsState::Detecting(_) => self.detect_tls(cx, op, received),
            TlsState::Shaking(handshake, is_due, _) => {
                match (received, handshake) {
                    (Received::Cancelled, _) => {}
                    (received @ (Received::Bytes(_) | Received::Loaned(_)), Some(handshake)) => {
                        for_each_received(&op, &received, |bytes| handshake.feed_incoming(bytes));
                        *is_due = true;
                    }
                    _ => self.fail_connection(),
                }
                self.finish_closing();
                Ok(())
            }
            TlsState::Open(channel) => match received {
                Received::Bytes(_) | Received::Loaned(_) => {
                    for_each_received(&op, &received, |bytes| channel.feed_incoming(bytes));
                    self.deliver_decrypted(cx)
                }
                Received::End | Received::Cancelled | Received::Failed(_) => {
                    match link.wanted.take() {
                        Some(wanted) => return self.handle_plain_recv(cx, wanted, received),
                        None if !matches!(received, Received::Cancelled) => self.fail_connection(),
                        None => {}
                    }
                    self.finish_closing();
                    Ok(())
                }
            },
            TlsState::Failed(_) => {
                self.finish_closing();
                Ok(())
            }
        }
    }

    /// The first bytes: a record of TLS, or ICReq.
    fn detect_tls(&mut self, cx: &mut Cx<'_>, op: RecvOp, received: Received) -> Result<(), LinkFault> {
        let Some(link) = &mut self.tls else { return Ok(()) };
        let TlsState::Detecting(tls) = &link.state else { return Ok(()) };
        let mut first = None;
        for_each_received(&op, &received, |bytes| first = bytes.first().copied());
        let fault = match first {
            Some(HANDSHAKE_RECORD) => match Handshake::new_server(&tls.context) {
                Ok(mut handshake) => {
                    for_each_received(&op, &received, |bytes| handshake.feed_incoming(bytes));
                    link.state = TlsState::Shaking(Some(handshake), true, Vec::new());
                    self.rx.out = false;
                    self.finish_closing();
                    return Ok(());
                }
                Err(_) => LinkFault::TlsNotComputed,
            },
            Some(_) if tls.is_required => LinkFault::TlsRequired,
            Some(_) => {
                self.tls = None;
                return self.handle_plain_recv(cx, op, received);
            }
            None => return self.handle_plain_recv(cx, op, received),
        };
        self.rx.out = false;
        self.fail_connection();
        self.finish_closing();
        Err(fault)
    }

    /// Decrypts what is here, as long as the queue wants more and has nothing to tell.
    pub(super) fn deliver_decrypted(&mut self, cx: &mut Cx<'_>) -> Result<(), LinkFault> {
        loop {
            let Some(link) = self.tls.as_mut().filter(|link| !link.recv_out) else { return Ok(()) };
            let TlsState::Open(channel) = &mut link.state else { return Ok(()) };
            if !channel.has_incoming() {
                return Ok(());
            }
            let Some(mut op) = link.wanted.take().or_else(|| self.poll_plain_recv()) else { return Ok(()) };
            let Some(TlsLink { state: TlsState::Open(channel), wanted, .. }) = self.tls.as_deref_mut() else {
                return Ok(());
            };
            match decrypt_into(channel, cx, &mut op) {
                Ok(0) => {
                    *wanted = Some(op);
                    return Ok(());
                }
                Ok(bytes) => self.handle_plain_recv(cx, op, Received::Bytes(bytes))?,
                Err(None) => {
                    *wanted = Some(op);
                    self.retry = Some(cx.now + MEMORY_RETRY_INTERVAL);
                    return Ok(());
                }
                Err(Some(TlsFault::Closed)) => return self.handle_plain_recv(cx, op, Received::End),
                Err(Some(fault)) => {
                    let _ = self.handle_plain_recv(cx, op, Received::End);
                    return Err(LinkFault::Tls(Box::new(fault)));
                }
            }
            if !self.events.is_empty() {
                return Ok(());
            }
        }
    }

    /// The next batch for the world.
    pub(super) fn poll_record_send(&mut self, cx: &mut Cx<'_>) -> Option<SendOp> {
        let is_over = matches!(self.phase, QueuePhase::Dead | QueuePhase::Gone);
        let link = self.tls.as_mut().filter(|link| !link.unwritten && !is_over)?;
        let is_open = matches!(link.state, TlsState::Open(_));
        if is_open && link.sealing.is_none() {
            let batch = self.poll_plain_send(cx);
            self.tls.as_mut()?.sealing = batch.map(|batch| (batch, 0));
        }
        let link = self.tls.as_mut()?;
        match if is_open { link.seal_batch(cx) } else { link.handshake_batch(cx) } {
            Ok(batch) => batch,
            Err(SealError::NoMemory) => {
                self.retry = Some(cx.now + MEMORY_RETRY_INTERVAL);
                None
            }
            Err(SealError::Broken(fault)) => {
                self.link_fault = Some(LinkFault::Tls(Box::new(fault)));
                self.fail_connection();
                self.finish_closing();
                None
            }
        }
    }

    /// The world has written a batch, or failed to.
    pub(super) fn handle_record_written(&mut self, how: Result<(), Errno>) {
        let Some(link) = &mut self.tls else { return };
        link.unwritten = false;
        if how.is_err() {
            self.fail_connection();
        } else {
            let is_out = match &link.state {
                TlsState::Open(channel) => channel.outgoing_len() == 0,
                TlsState::Failed(outgoing) if outgoing.is_empty() => {
                    self.fail_connection();
                    false
                }
                _ => false,
            };
            let whole =
                self.tls.as_mut().and_then(|link| link.sealing.take_if(|(op, at)| is_out && *at == op.len));
            if let Some((op, _)) = whole {
                self.out.handle_written();
                self.out.handle_send_released(op);
            }
        }
        self.finish_closing();
    }

    /// The world gives a batch's memory back.
    pub(super) fn handle_record_send_released(&mut self) {
        if let Some(link) = &mut self.tls {
            link.in_kernel = link.in_kernel.saturating_sub(1);
        }
        self.finish_closing();
    }

    /// The connection is lost: gives the queue's own operations back that are not with the world.
    pub(super) fn return_queue_ops(&mut self) {
        let Some(link) = &mut self.tls else { return };
        let sealing = link.sealing.take();
        let wanted = link.wanted.take_if(|_| !link.recv_out);
        if let Some((op, _)) = sealing {
            self.out.handle_written();
            self.out.handle_send_released(op);
        }
        if let Some(op) = wanted {
            self.rx.out = false;
            if let Some(direct) = op.direct {
                self.return_direct_buffer(direct, 0);
            }
        }
    }
}
