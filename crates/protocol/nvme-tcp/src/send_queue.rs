//! PDUs that wait to be sent, and those that the kernel still holds.

use crate::pdu_writer::PduWriter;
use crate::wire::ConnectionParameters;
use buf::{Cx, Sg, Time};
use std::collections::VecDeque;
use std::fmt::Debug;
use stream::{NoBatchMemory, ResponseTimes, SendOp, TransmitQueue};

/// A PDU, or a run of data PDUs, that waits to be sent.
pub trait OutgoingPdu: Debug + Sized {
    /// What of its queue it needs.
    type Context<'a>;
    /// About how many bytes of head all of it takes, for sizing a batch.
    fn head_estimate(&self, parameters: &ConnectionParameters, context: &Self::Context<'_>) -> usize;
    /// Bytes of head that the next PDU needs at most.
    fn next_head_len_max(&self, parameters: &ConnectionParameters, context: &Self::Context<'_>) -> usize;
    /// The memory that its data lies in.
    fn data_pieces<'a>(
        &'a self,
        parameters: &ConnectionParameters,
        context: &'a Self::Context<'_>,
    ) -> Option<&'a Sg>;
    /// Puts one PDU into the batch; true if this is done with.
    fn put_next_pdu(&mut self, writer: &mut PduWriter<'_>, context: &mut Self::Context<'_>) -> bool;
}

/// What waits to be sent.
#[derive(Debug)]
pub struct SendQueue<P> {
    pub(crate) pdus: VecDeque<P>,
    transmit_queue: TransmitQueue,
    /// Bytes in batches that the kernel still holds.
    kernel_bytes: u64,
    /// Since when answers wait.
    pub(crate) answer_times: ResponseTimes,
}

/// There is no memory for a batch.
pub struct NoMemory;

impl<P> Default for SendQueue<P> {
    fn default() -> Self {
        SendQueue {
            pdus: VecDeque::new(),
            transmit_queue: TransmitQueue::new(),
            kernel_bytes: 0,
            answer_times: ResponseTimes::default(),
        }
    }
}

impl<P: OutgoingPdu> SendQueue<P> {
    #[inline]
    pub(crate) fn push(&mut self, pdu: P) {
        self.pdus.push_back(pdu);
    }

    /// Notes since when the last of what waits, which is an answer or has one, does so.
    #[inline]
    pub(crate) fn note_queued_response(&mut self, (now, label): (Time, u64)) {
        self.answer_times.note_response(now, label, self.pdus.len());
    }

    /// Drops what waits.
    pub(crate) fn clear(&mut self) {
        self.pdus.clear();
        drop(self.transmit_queue.take_unsent());
        self.answer_times.clear();
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.pdus.is_empty() && !self.transmit_queue.has_unsent()
    }

    /// Whether the socket has taken all batches.
    pub(crate) fn all_written(&self) -> bool {
        self.transmit_queue.can_start_batch()
    }

    /// Whether the kernel holds nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.transmit_queue.is_idle()
    }

    pub(crate) fn unwritten_since(&self) -> Option<Time> {
        self.transmit_queue.unwritten_since()
    }

    /// Bytes that are with the kernel, or wait to be sent as they are.
    #[inline]
    pub(crate) fn kernel_bytes(&self) -> u64 {
        self.kernel_bytes + self.transmit_queue.unsent_len() as u64
    }

    /// A batch came back of which the socket took only the first `written` bytes: the rest goes first.
    pub(crate) fn keep_unsent(&mut self, op: SendOp, written: usize) {
        self.kernel_bytes = self.kernel_bytes.saturating_sub(op.len as u64);
        self.transmit_queue.keep_unsent(op, written);
    }

    /// Takes the bytes that wait to be sent as they are.
    pub(crate) fn take_unsent(&mut self) -> Vec<u8> {
        self.transmit_queue.take_unsent()
    }

    pub(crate) fn set_unsent(&mut self, bytes: Vec<u8>) {
        self.transmit_queue.set_unsent(bytes);
    }

    pub(crate) fn unsent_bytes(&self) -> Vec<u8> {
        self.transmit_queue.unsent_bytes()
    }

    #[cold]
    fn build_unsent_batch(&mut self, cx: &mut Cx<'_>) -> Result<Option<SendOp>, NoMemory> {
        let op = self.transmit_queue.build_unsent_batch(cx.pool, cx.now).map_err(|NoBatchMemory| NoMemory)?;
        self.kernel_bytes += op.as_ref().map_or(0, |op| op.len as u64);
        Ok(op)
    }

    pub(crate) fn handle_written(&mut self) {
        self.transmit_queue.handle_written();
    }

    pub(crate) fn handle_send_released(&mut self, op: SendOp) {
        self.kernel_bytes = self.kernel_bytes.saturating_sub(op.len as u64);
        self.transmit_queue.handle_send_released(op);
    }

    /// Makes one batch of all that waits; data in it begins at a multiple of `alignment` bytes.
    #[inline]
    pub(crate) fn build_send_batch(
        &mut self,
        cx: &mut Cx<'_>,
        parameters: &ConnectionParameters,
        alignment: u8,
        mut context: P::Context<'_>,
    ) -> Result<Option<SendOp>, NoMemory> {
        if self.transmit_queue.has_unsent() {
            return self.build_unsent_batch(cx);
        }
        let Some(first) = self.pdus.front() else { return Ok(None) };
        let least = first.next_head_len_max(parameters, &context);
        if !self.transmit_queue.can_start_batch() {
            return Ok(None);
        }
        let mut want = 0;
        for pdu in &self.pdus {
            want += pdu.head_estimate(parameters, &context);
            if want >= stream::HEAD_MAX {
                break;
            }
        }
        let batch = self.transmit_queue.start_batch(cx.pool, least, want.max(least)).ok_or(NoMemory)?;
        let mut writer = PduWriter { batch, parameters, alignment };
        let none = Sg::new();
        while let Some(pdu) = self.pdus.front_mut() {
            let head = pdu.next_head_len_max(parameters, &context);
            if !writer.batch.has_room(head, pdu.data_pieces(parameters, &context).unwrap_or(&none)) {
                break;
            }
            if pdu.put_next_pdu(&mut writer, &mut context) {
                self.pdus.pop_front();
                self.answer_times.begin_batch();
            }
        }
        let op = self.transmit_queue.finish_batch(writer.batch, cx.now);
        self.kernel_bytes += op.as_ref().map_or(0, |op| op.len as u64);
        Ok(op)
    }
}
