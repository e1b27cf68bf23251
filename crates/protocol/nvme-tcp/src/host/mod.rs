//! A queue on the host's side (NVMe-TCP §3), without I/O.
//!
//! A [`HostQueue`] is one TCP connection from its first byte on: ICReq, then the commands of its owner, the
//! first of which is Connect. Data of reads is received directly into the caller's buffer. Data of writes is
//! sent in the capsule if that is allowed, otherwise when the controller requests it.
//!
//! Everything that the controller sends is checked: lengths and offsets against the command, in order and
//! without gaps, R2Ts against what was offered, tags by look-up. A violation ends the connection with an
//! H2CTermReq. Invariants:
//! - Every command ends exactly once, by [`HostEvent::Completed`] with its memory.
//! - A read that succeeds is complete. A read that fails returns no byte that was not received.

mod command;
mod outgoing;
mod receive;

use crate::limits::{ConnectedQueueSize, QUEUE_ENTRIES_MAX};
use crate::pdu_receiver::TermReqContents;
use crate::pdu_writer::DIGEST_SEGMENT_MAX;
use crate::queue::{PeerTimeouts, Queue, QueuePhase, Role};
use crate::wire::{ADMIN_CAPSULE_MAX, ConnectionParameters, IcReq};
use buf::{Cx, Payload};
use command::Command;
use nvme::{Cqe, Sqe};
use receive::PduData;
use std::time::Duration;
use stream::{HostConnection, HostEvent, ReceiveBuffer, Slab, Tag, TagIndex};

#[cfg(test)]
mod tests;

/// Settings of one queue's connection on the host side: what it requests in ICReq, and its time-outs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostQueueSettings {
    /// HPDA: data of the controller begins at a multiple of (HPDA + 1) × 4 bytes; 0 to 31. Some
    /// controllers refuse anything but 0.
    pub hpda: u8,
    /// Whether to ask for CRC32C behind headers.
    pub header_digest: bool,
    /// Whether to ask for CRC32C behind data.
    pub data_digest: bool,
    /// R2Ts per command that may be outstanding; 1 to 16.
    pub r2ts: u32,
    /// How long the controller may take for ICResp.
    pub handshake_timeout: Duration,
    /// How long it may take to end a PDU that it began.
    pub pdu_timeout: Duration,
    /// How long it may leave what we send unread.
    pub stall_timeout: Duration,
    /// How long it may take to close after an H2CTermReq.
    pub term_timeout: Duration,
}

impl Default for HostQueueSettings {
    fn default() -> Self {
        HostQueueSettings {
            hpda: 0,
            header_digest: false,
            data_digest: false,
            r2ts: 1,
            handshake_timeout: Duration::from_secs(15),
            pdu_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(60),
            term_timeout: Duration::from_secs(5),
        }
    }
}

/// A PDU, or a run of H2CData PDUs.
#[derive(Debug)]
pub enum OutgoingPdu {
    /// ICReq.
    Init,
    /// A command, with its data if that is in the capsule.
    Capsule(Tag),
    /// What an R2T asked for, from `at` on.
    Data {
        /// The command.
        tag: Tag,
        /// The R2T's.
        ttag: u16,
        /// Offset of the next byte in the command's data.
        at: u32,
        /// Where the stretch ends.
        end: u32,
    },
    /// Last words.
    Term(Box<TermReqContents>),
}

/// An NVMe/TCP queue on the host's side.
pub type HostQueue = Queue<HostRole>;

/// What a host keeps of a queue.
#[derive(Debug)]
pub struct HostRole {
    asked: IcReq,
    /// Commands that may be in work at once.
    window: usize,
    commands: Slab<Command>,
    index: TagIndex,
    next_cid: u16,
}

impl Role for HostRole {
    type PduData = PduData;
    type Pdu = OutgoingPdu;
    type Event = HostEvent<Cqe>;
    const CLOSED_EVENT: Self::Event = HostEvent::Closed;

    fn term_req_pdu(term: Box<TermReqContents>) -> OutgoingPdu {
        OutgoingPdu::Term(term)
    }
}

impl HostQueue {
    /// Begins on a socket that is connected. [`HostEvent::Ready`] follows when the parameters are agreed;
    /// then one command at a time may be submitted: Connect, first of all.
    pub fn new(cx: &mut Cx<'_>, limits: HostQueueSettings) -> Self {
        let r2ts = limits.r2ts.clamp(1, R2TS_MAX);
        let role = HostRole {
            asked: IcReq::new(limits.hpda, limits.header_digest, limits.data_digest, r2ts),
            window: 1,
            commands: Slab::new(usize::from(QUEUE_ENTRIES_MAX)),
            index: TagIndex::new(1),
            next_cid: 0,
        };
        let timeouts = PeerTimeouts {
            handshake: limits.handshake_timeout,
            pdu: limits.pdu_timeout,
            stall: limits.stall_timeout,
            term: limits.term_timeout,
        };
        let parameters = ConnectionParameters {
            header_digest: false,
            data_digest: false,
            host_alignment: 4,
            controller_alignment: 4,
            r2ts,
            max_h2c_data: crate::wire::MAX_H2C_DATA_LEAST,
        };
        let size = ConnectedQueueSize { entries: 2, flow_control: true, in_capsule_max: ADMIN_CAPSULE_MAX };
        let mut queue = Queue::with_role(cx, role, timeouts, parameters, size, ReceiveBuffer::new());
        queue.out.push(OutgoingPdu::Init);
        queue
    }

    /// Connect has succeeded: so many commands may be in work from now on (one less than entries, as a
    /// full submission queue has it), and so much data in a capsule.
    pub fn finish_connect(&mut self, size: ConnectedQueueSize) {
        let entries = size.entries.clamp(2, QUEUE_ENTRIES_MAX);
        // A capsule is one PDU, whose data may have to be copied to be digested: what is longer is asked for, whatever
        // the controller says that it takes.
        let in_capsule_max = size.in_capsule_max.min(DIGEST_SEGMENT_MAX);
        self.size = ConnectedQueueSize { entries, in_capsule_max, ..size };
        self.role.window = usize::from(entries) - 1;
        self.role.index.grow(self.role.window);
        if self.phase == QueuePhase::Connect {
            self.phase = QueuePhase::Open;
        }
    }

    /// As [`HostConnection::submit`], for a command of which it is not known how much data it moves: success with
    /// less data than there is memory is success, and the memory that comes back is cut to what came, or was asked
    /// for.
    pub fn submit_accepting_short_data(
        &mut self,
        command: Sqe,
        payload: Payload,
    ) -> Result<Tag, (Sqe, Payload)> {
        self.start_command(command, payload, true)
    }

    /// Commands in work.
    pub fn commands_in_work(&self) -> usize {
        self.role.commands.len()
    }

    /// What a command in work is called on the wire (CID), for an Abort of it.
    pub fn command_id(&self, tag: Tag) -> Option<u16> {
        self.role.commands.get(tag).map(|command| command.sqe.cid.get())
    }
}

/// Most R2Ts per command that are offered: what waits to be sent is bounded by this times the window.
const R2TS_MAX: u32 = 16;

impl HostConnection for HostQueue {
    type Command = Sqe;
    type Response = Cqe;

    fn submit(
        &mut self,
        _cx: &mut Cx<'_>,
        command: Self::Command,
        payload: Payload,
    ) -> Result<Tag, (Self::Command, Payload)> {
        self.start_command(command, payload, false)
    }
}
