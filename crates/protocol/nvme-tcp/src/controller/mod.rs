//! A queue on the controller's side (NVMe-TCP §3), without I/O.
//!
//! A [`ControllerQueue`] is one TCP connection from its first byte on. It negotiates (ICReq, ICResp) and
//! reports the Connect. After [`ControllerQueue::finish_connect`] has passed it the results of the Connect, it turns
//! capsules into commands and answers into bytes. It uses lengths and directions of data, but does not
//! interpret commands.
//!
//! Until it is opened it takes one command at a time and does not read on meanwhile. So it can be handed off
//! with the Connect unanswered, and continue on the shard that has its memory.
//!
//! Invariants:
//! - A command is announced before its data is received. Data without a buffer stays in the stream;
//!   in-capsule data is only received while memory is reserved for it (`capsule_memory`).
//! - Every task ends exactly once: answered, or released by the server after [`TargetEvent::Aborted`]. It
//!   keeps its entry while the host still sends data for it.
//! - Numbers of the host are looked up or compared, never used as an index.

mod capsule_memory;
mod carried_data;
mod command;
mod data;
mod outgoing;
mod quiesce;
mod receive;
mod respond;
mod snapshot;
mod task;
mod task_table;

pub use crate::limits::{ConnectedQueueSize, DigestPolicy, QUEUE_ENTRIES_MAX, QueueHandoff, QueueLimits};
use crate::pdu_receiver::TermReqContents;
use crate::queue::{PeerTimeouts, Queue, QueuePhase, Role};
use crate::tls_link::TlsLink;
use crate::wire::ConnectionParameters;
use buf::{Cx, MemoryClass, Sg, SgMut, Time};
use capsule_memory::CapsuleMemory;
use nvme::{Completion, Sqe};
use outgoing::OutgoingPdu;
use receive::PduData;
pub use snapshot::{QueueRestoreError, QueueSaveRefusal, QueueSnapshot};
use std::time::Duration;
use stream::{LabelledResponses, LinkNumber, ReceiveBuffer, Tag, TargetConnection, TargetEvent};
pub use task::R2T_MAX;
use task::{DataSource, Task};
use task_table::TaskTable;

#[cfg(test)]
mod tests;

/// How many capsules' data a queue always has memory for: the two commands of a fused pair, of which
/// the first waits for the second. So `2 × round(in-capsule data)` is what an open queue costs a pool's
/// promise.
pub const CAPSULES_RESERVED: u32 = 2;
/// The least that a pool lends.
const POOL_BLOCK_MIN: u32 = 512;

/// Longest wait for the host to close after a C2HTermReq (NVMe-TCP §3.5).
const TERM_TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// An NVMe/TCP queue on the controller's side.
pub type ControllerQueue = Queue<ControllerRole>;

/// What a controller keeps of a queue.
#[derive(Debug)]
pub struct ControllerRole {
    limits: QueueLimits,
    tasks: TaskTable,
    /// The Connect that waits for its answer.
    connect: Option<(Tag, Sqe)>,
    /// It is an Admin Queue, and open.
    admin: bool,
    /// The stream stands in data that has no place yet: it is not the host who is waited for.
    awaits_place: bool,
    /// The last command was refused here, so the server does not know that it stood between others.
    refused: bool,
    /// The last command, if it is the first of a fused pair.
    half: Option<Tag>,
    next_ttag: u16,
    sqhd: u16,
    /// Bytes that wait and nobody asked leave for: small answers.
    unasked_bytes: u64,
    /// How many commands came; wraps around.
    arrivals: u32,
    /// Commands that the server has given back, with their tasks.
    withdrawn: Vec<(Tag, Sqe)>,
    /// Nothing is received or parsed, until the queue goes on here or elsewhere.
    quiesced: bool,
    /// When the server gives the answer that it gives, and under what it is counted.
    answer_stamp: (Time, u64),
}

impl Role for ControllerRole {
    type PduData = PduData;
    type Pdu = OutgoingPdu;
    type Event = TargetEvent<Sqe>;
    const CLOSED_EVENT: Self::Event = TargetEvent::Closed;

    fn term_req_pdu(term: Box<TermReqContents>) -> OutgoingPdu {
        OutgoingPdu::Term(term)
    }
}

impl ControllerQueue {
    /// A connection that was just accepted.
    pub fn new(cx: &mut Cx<'_>, limits: QueueLimits) -> Self {
        let max_h2c_data = limits.max_h2c_data.max(crate::wire::MAX_H2C_DATA_LEAST) & !3;
        let parameters = ConnectionParameters {
            header_digest: false,
            data_digest: false,
            host_alignment: 4,
            controller_alignment: crate::wire::alignment_bytes(limits.cpda),
            r2ts: 1,
            max_h2c_data,
        };
        Self::with_parameters(cx, limits, parameters, ReceiveBuffer::new())
    }

    fn with_parameters(
        cx: &mut Cx<'_>,
        limits: QueueLimits,
        parameters: ConnectionParameters,
        receive_buffer: ReceiveBuffer,
    ) -> Self {
        let timeouts = PeerTimeouts {
            handshake: limits.handshake_timeout,
            pdu: limits.pdu_timeout,
            stall: limits.stall_timeout,
            term: limits.term_timeout.min(TERM_TIMEOUT_MAX),
        };
        let role = ControllerRole {
            limits,
            tasks: TaskTable::new(cx.pool, cx.now),
            connect: None,
            admin: false,
            awaits_place: false,
            refused: false,
            half: None,
            // Tags of different queues differ, so that a PDU gone astray is noticed.
            next_ttag: cx.entropy.next_u64() as u16,
            sqhd: 0,
            unasked_bytes: 0,
            arrivals: 0,
            withdrawn: Vec::new(),
            quiesced: false,
            answer_stamp: (cx.now, 0),
        };
        let size = ConnectedQueueSize { entries: 1, flow_control: true, in_capsule_max: 0 };
        Queue::with_role(cx, role, timeouts, parameters, size, receive_buffer)
    }

    /// Whether [`ControllerQueue::hand_off`] would succeed: a Connect and all its data have come, it is
    /// unanswered, and nothing is out.
    pub fn can_hand_off(&self) -> bool {
        self.phase == QueuePhase::Connect
            && self.awaits_connect_answer()
            && self.role.tasks.len() == 1
            && self.events.is_empty()
            && self.out.is_empty()
            && self.has_no_io_in_flight()
            && self.tls.as_ref().is_none_or(|link| link.can_hand_off())
    }

    /// Makes plain data of the queue, to go on elsewhere. `None`, and the connection is lost, unless
    /// [`ControllerQueue::can_hand_off`].
    pub fn hand_off(self) -> Option<QueueHandoff> {
        if !self.can_hand_off() {
            return None;
        }
        let (_, connect) = self.role.connect?;
        Some(QueueHandoff {
            parameters: self.parameters,
            connect,
            left: self.rx.receive_buffer.unconsumed_bytes().into(),
            tls: self.tls.and_then(|link| link.into_channel()),
        })
    }

    /// Goes on with a queue that was handed off. The tag is that of its Connect, which is still to be
    /// answered.
    pub fn from_handoff(cx: &mut Cx<'_>, limits: QueueLimits, handoff: QueueHandoff) -> (Self, Tag) {
        let mut queue =
            Self::with_parameters(cx, limits, handoff.parameters, ReceiveBuffer::with_bytes(&handoff.left));
        queue.phase = QueuePhase::Connect;
        queue.tls = handoff.tls.map(TlsLink::from_channel);
        let cid = handoff.connect.cid.get();
        #[expect(clippy::unreachable, reason = "the table is new")]
        let Some(tag) = queue.role.tasks.insert(Task::new(cid, DataSource::None, 0)) else {
            unreachable!("an empty table has room")
        };
        queue.role.connect = Some((tag, handoff.connect));
        (queue, tag)
    }

    /// Connect will be answered with success: the queue takes its size. Memory for in-capsule data is
    /// set aside for [`CAPSULES_RESERVED`] capsules; more is borrowed while commands are in work, and what
    /// finds none waits in the stream. False, and the Connect is to be refused (Controller Busy), if
    /// there is no memory, or the queue has no Connect to answer.
    #[must_use]
    pub fn finish_connect(&mut self, cx: &mut Cx<'_>, size: ConnectedQueueSize) -> bool {
        let entries = size.entries.clamp(2, QUEUE_ENTRIES_MAX);
        if self.phase != QueuePhase::Connect {
            return false;
        }
        let Some((_, connect)) = self.role.connect else { return false };
        let mut capsules = CapsuleMemory::empty(cx.pool);
        if !capsules.reserve_capsules(size.in_capsule_max, CAPSULES_RESERVED) {
            return false;
        }
        self.role.tasks.capsules = capsules;
        self.size = ConnectedQueueSize { entries, ..size };
        self.role.tasks.grow(entries);
        self.role.admin = nvme::fabrics::Connect::is_for_admin_queue(&connect);
        self.phase = QueuePhase::Open;
        self.deadline = None;
        true
    }

    /// What Connect settled, once the queue is open.
    pub fn size(&self) -> ConnectedQueueSize {
        self.size
    }

    /// Which memory the data of a write is to be taken from, so that no two wait for each other: what
    /// stands in the stream already comes from what was set aside for it when the queue was opened, and
    /// must not wait behind data that is still to be asked for.
    pub fn write_memory_class(&self, tag: Tag) -> MemoryClass {
        match self.role.tasks.get(tag) {
            Some(task) if task.capsule => MemoryClass::Unsolicited,
            // Connect and the like: nothing was set aside for them.
            Some(task) if task.source == DataSource::Capsule => MemoryClass::Wire,
            Some(_) | None => MemoryClass::Solicited,
        }
    }

    /// Commands in work.
    pub fn tasks_in_work(&self) -> usize {
        self.role.tasks.len()
    }

    /// Whether a task has leave to read so many bytes already, and has sent none of them: its answer may have
    /// found no memory.
    pub fn has_read_reserved(&self, tag: Tag, len: u32) -> bool {
        self.role.tasks.get(tag).is_some_and(|task| len > 0 && task.read_reserved >= len)
    }
}

impl TargetConnection for ControllerQueue {
    type Command = Sqe;
    type Response = Completion;

    fn recv_data(&mut self, cx: &mut Cx<'_>, tag: Tag, at: u32, into: SgMut) {
        self.add_payload_buffer(cx, tag, at, into);
    }

    fn contiguous_payload(&self, tag: Tag) -> Option<&[u8]> {
        self.contiguous_capsule_data(tag)
    }

    fn send_data(&mut self, _cx: &mut Cx<'_>, tag: Tag, offset: u32, data: Sg) {
        self.queue_data(tag, offset, data);
    }

    fn reserve_send_window(&mut self, tag: Tag, len: u32) -> bool {
        self.role.tasks.reserve_send_window(tag, len, self.out.kernel_bytes(), self.role.limits.read_bytes)
    }

    fn reserve_receive_window(&mut self, tag: Tag, len: u32) -> bool {
        self.role.tasks.reserve_receive_window(tag, len, self.role.limits.write_bytes)
    }

    #[inline]
    fn label_next_response(&mut self, label: u64) {
        self.role.answer_stamp.1 = label;
    }

    #[inline]
    fn poll_written_responses(&mut self, _link: LinkNumber) -> Option<LabelledResponses> {
        self.out.answer_times.poll_written_responses()
    }

    fn respond(&mut self, cx: &mut Cx<'_>, tag: Tag, response: Self::Response) {
        self.role.answer_stamp.0 = cx.now;
        self.handle_response(tag, response);
        self.role.answer_stamp.1 = 0;
        self.finish_closing();
    }

    fn end_without_response(&mut self, _cx: &mut Cx<'_>, tag: Tag) {
        self.end_task_without_response(tag);
        self.finish_closing();
    }
}
