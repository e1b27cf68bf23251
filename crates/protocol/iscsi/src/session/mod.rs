//! The full feature phase of a session, on the target's side (RFC 7143), without I/O.
//!
//! A [`TargetSession`] is one iSCSI session over one or several links. It turns bytes into [`Request`]s, and
//! the server's answers into bytes. It implements PDUs, order, windows, digests and transfers, but does not
//! interpret CDBs. It starts where login ends, from plain data.
//!
//! Invariants:
//! - A command is announced before its data is received, and does not wait for the server: data without a
//!   buffer of the server goes to memory that was reserved before. One whole unsolicited burst is reserved
//!   for each command that the window admits, and one more for immediate commands. So parsing never waits for
//!   memory whose holder waits for parsing.
//! - Every task ends exactly once: answered, or released by the server after [`TargetEvent::Aborted`]. Until
//!   then it keeps its place in the window.
//! - Numbers of the peer are looked up or compared, never used as an index.

mod abandoned_writes;
mod carried_data;
mod closing;
mod command;
mod control;
mod data_out;
mod link;
mod memory_promise;
mod outgoing;
mod params;
mod pings;
mod placing;
mod quiesce;
mod receive;
mod request;
mod respond;
mod response_fence;
mod snapshot;
mod task;
mod task_functions;
mod tasks;
mod text;
mod window;

#[cfg(test)]
mod tests;

use buf::{Cx, Errno, Pool, Sg, SgMut, Time};
use closing::NexusEndState;
use control::PendingLogout;
use link::{LinkPhase, LinkState};
pub use memory_promise::{INITIAL_WINDOW, MemoryPromise};
pub use params::{LinkParams, SessionLimits, SessionParams};
pub use request::{
    Cdb, Fault, LinkFault, Request, Residual, Response, ScsiCommand, ScsiResult, SenseBytes, TaskManagement,
};
pub use snapshot::{SessionRestoreError, SessionSaveRefusal, SessionSnapshot};
use std::collections::VecDeque;
use stream::{
    Connection, ConnectionClose, LabelledResponses, LinkNumber, Received, RecvOp, SendOp, Tag,
    TargetConnection, TargetEvent,
};
pub use task::R2T_MAX;
use task_functions::WaitingTaskFunctions;
use tasks::{SessionTasks, open_or_expected_links};

use crate::wire::{Cid, Lun, Sn};

/// Most commands that a session may have in work.
const COMMANDS_MAX: u16 = 4096;
/// Most immediate ones.
const IMMEDIATE_MAX: u16 = 256;

/// Why a session or a link cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// Not even the least memory for unsolicited data can be set aside.
    NoMemory,
    /// All the links that were negotiated are in use.
    TooManyLinks,
    /// The session is ending.
    Closing,
}

/// An iSCSI session in full feature phase, on the target's side.
///
/// What receives is each link's `PduReceiver`, what sends its `LinkSender`, what counts
/// the `CommandWindow`; `SessionTasks` begins and answers commands on them. The session itself delivers requests in order, and
/// ends links and itself.
#[derive(Debug)]
pub struct TargetSession {
    tasks: SessionTasks,
    functions: WaitingTaskFunctions,
    shut: VecDeque<LinkNumber>,
    violations: Vec<LinkFault>,
    logout: Option<PendingLogout>,
    close_at: Option<Time>,
    /// Logical units whose tasks a lost link took with it.
    cleared: Vec<Lun>,
    closing: bool,
    /// How far the end of its nexus is.
    nexus_end: NexusEndState,
    closed: bool,
    /// Nothing is received or parsed, until the session goes on here or elsewhere.
    quiesced: bool,
}

impl TargetSession {
    /// Begins a session with what memory can be had; [`TargetSession::attach_link`] gives it its links.
    pub fn new(cx: &mut Cx<'_>, params: SessionParams, limits: SessionLimits) -> Result<Self, AttachError> {
        let commands = limits.commands.clamp(1, COMMANDS_MAX);
        let promise = MemoryPromise::new(cx.pool, params.unsolicited_burst_len(), u32::from(commands));
        Ok(Self::with_memory(cx, params, limits, promise.ok_or(AttachError::NoMemory)?))
    }

    /// Begins a session with memory that was set aside for it before its login was answered.
    ///
    /// # Panics
    /// If the memory was set aside for another length of bursts.
    #[must_use]
    pub fn with_memory(
        cx: &mut Cx<'_>,
        params: SessionParams,
        limits: SessionLimits,
        promise: MemoryPromise,
    ) -> Self {
        assert!(
            promise.is_for_burst_len(params.unsolicited_burst_len()),
            "memory is set aside for what was negotiated"
        );
        let immediate = limits.immediate.clamp(2, IMMEDIATE_MAX);
        let limits = SessionLimits { immediate, commands: limits.commands.clamp(1, COMMANDS_MAX), ..limits };
        TargetSession {
            tasks: SessionTasks::new(cx, params, limits, promise),
            functions: WaitingTaskFunctions::default(),
            shut: VecDeque::new(),
            violations: Vec::new(),
            logout: None,
            close_at: None,
            cleared: Vec::new(),
            closing: false,
            nexus_end: NexusEndState::No,
            closed: false,
            quiesced: false,
        }
    }

    /// Adds a link whose login is over: its final Login Response is written, and `leftover` is what
    /// came behind its last request. A link with the same CID is closed first (connection
    /// reinstatement, RFC 7143 §6.3.4).
    pub fn attach_link(
        &mut self,
        cx: &mut Cx<'_>,
        params: LinkParams,
        leftover: &[u8],
    ) -> Result<LinkNumber, AttachError> {
        if self.is_ending() {
            return Err(AttachError::Closing);
        }
        let same = |link: &LinkState| link.cid == params.cid && link.phase != LinkPhase::Gone;
        let reinstated = self.tasks.links.position(same);
        let open = self.tasks.links.iter().filter(|link| link.is_open()).count();
        let most = usize::from(self.tasks.params.max_connections.max(1));
        if reinstated.is_none() && open >= most {
            return Err(AttachError::TooManyLinks);
        }
        // Links that are ending keep their places for a while.
        let free = self.tasks.links.position(|link| link.phase == LinkPhase::Gone);
        if free.is_none() && self.tasks.links.len() >= 2 * most.min(usize::from(u16::MAX) / 2) {
            return Err(AttachError::TooManyLinks);
        }
        if !self.tasks.links.is_empty() && !self.tasks.window.make_room_for_links(open as u32 + 1) {
            return Err(AttachError::NoMemory);
        }
        self.tasks.expected.retain(|(cid, _)| *cid != params.cid);
        let link = LinkState::new(&params, leftover, cx.now);
        let index = match free {
            Some(index) => {
                self.tasks.links[index] = link;
                index
            }
            None => self.tasks.links.push(link),
        };
        if let Some(old) = reinstated.filter(|old| *old != index) {
            self.fail_link(cx.now, old);
            self.finish_closing(cx.now);
        }
        Ok(index.into())
    }

    /// Whether a link with this CID is in use.
    #[must_use]
    pub fn has_connection(&self, cid: Cid) -> bool {
        self.tasks.links.iter().any(|link| link.is_open() && link.cid == cid)
    }

    /// A connection with this CID is about to be attached: one that bears the CID already ends now, and
    /// the session waits until `until` for the new one, even if it has no other link (connection
    /// reinstatement, RFC 7143 §6.3.4).
    pub fn reinstate_connection(&mut self, cx: &mut Cx<'_>, cid: Cid, until: Time) {
        let bears = |link: &LinkState| link.cid == cid && link.is_open_or_sending();
        let old = self.tasks.links.position(bears);
        // Also where none bears it: the last link may die while the new one is on its way.
        if !self.is_ending() {
            self.tasks.expected.retain(|(other, _)| *other != cid);
            self.tasks.expected.push((cid, until));
        }
        let Some(index) = old else { return };
        self.fail_link(cx.now, index);
        self.finish_closing(cx.now);
    }

    /// Keeps a place for a connection that [`reinstate_connection`](Self::reinstate_connection) expects and whose login is about
    /// to be answered, with memory for a burst of its own; or says why it must be refused.
    pub fn reserve_connection_slot(&mut self, cid: Cid) -> Result<(), AttachError> {
        if self.is_ending() || !self.tasks.expected.iter().any(|(expected, _)| *expected == cid) {
            return Err(AttachError::Closing);
        }
        let most = usize::from(self.tasks.params.max_connections.max(1));
        let kept = open_or_expected_links(&self.tasks.links, &self.tasks.expected);
        // Links that are ending keep their places for a while.
        let taken = self.tasks.links.iter().filter(|link| link.phase != LinkPhase::Gone).count();
        let places = 2 * most.min(usize::from(u16::MAX) / 2);
        if kept as usize > most || taken + self.tasks.expected.len() > places {
            return Err(AttachError::TooManyLinks);
        }
        if self.tasks.window.make_room_for_links(kept) { Ok(()) } else { Err(AttachError::NoMemory) }
    }

    /// A connection that was expected does not come.
    pub fn cancel_expected_connection(&mut self, cx: &mut Cx<'_>, cid: Cid) {
        let before = self.tasks.expected.len();
        self.tasks.expected.retain(|(expected, _)| *expected != cid);
        let lives = self.tasks.links.iter().any(|link| link.is_open_or_sending());
        if before > 0 && self.tasks.expected.is_empty() && !lives {
            self.fail_session(cx.now);
        }
        self.finish_closing(cx.now);
    }

    /// Whether no link with this CID is in use, nor any task of one left: the login that reinstates it
    /// may be answered.
    #[must_use]
    pub fn is_connection_cleared(&self, cid: Cid) -> bool {
        let lives = |link: &LinkState| {
            let ended = matches!(link.phase, LinkPhase::Dead | LinkPhase::Gone);
            link.cid == cid && !(ended && link.tasks == 0)
        };
        !self.tasks.links.iter().any(lives)
    }

    /// A logical unit of whose tasks some ended with a link that was lost, while the session goes on:
    /// its next command is to be told so (unit attention 47h/7Fh, RFC 7143 §11.14.5).
    #[must_use]
    pub fn poll_cleared_unit(&mut self) -> Option<[u8; 8]> {
        self.cleared.pop().map(|lun| lun.0)
    }

    /// Copies read data that waits to be sent and lies in memory that others may write. What is in batches is not
    /// touched. Gives the links that have some left, for want of memory.
    #[must_use]
    pub fn copy_lent_data(&mut self, pool: &Pool) -> Vec<LinkNumber> {
        let indices = self.tasks.links.indices();
        indices
            .filter(|index| !self.tasks.links[*index].tx.copy_lent_data(pool))
            .map(LinkNumber::from)
            .collect()
    }

    /// What the session was made from.
    #[must_use]
    pub fn params(&self) -> &SessionParams {
        &self.tasks.params
    }

    /// Commands that may be in work at once now: what memory is set aside for, the configured number at
    /// most.
    #[must_use]
    pub fn command_window(&self) -> u32 {
        self.tasks.window.command_limit()
    }

    /// ExpCmdSN and MaxCmdSN as they stand, for the final Login Response of a further link.
    #[must_use]
    pub fn command_numbers(&self) -> (Sn, Sn) {
        let numbers = self.tasks.window.command_numbers();
        (numbers.exp_cmd_sn, numbers.max_cmd_sn)
    }

    /// Tasks in work.
    #[must_use]
    pub fn tasks_in_work(&self) -> usize {
        self.tasks.table.len()
    }

    /// As [`respond`](TargetConnection::respond), with [`ScsiResult::good`].
    #[inline]
    pub fn respond_good(&mut self, cx: &mut Cx<'_>, tag: Tag, transferred: u64) {
        self.tasks.answer_stamp.0 = cx.now;
        if !self.tasks.send_good_status(tag, transferred) {
            let response = Response::Scsi(ScsiResult::good(transferred));
            self.tasks.handle_response(cx.now, tag, response);
        }
        self.tasks.answer_stamp.1 = 0;
        self.finish_closing(cx.now);
    }

    /// What a peer did by leaving something undone; other violations are told where they are found.
    #[must_use]
    pub fn poll_link_fault(&mut self) -> Option<LinkFault> {
        self.violations.pop()
    }
}

impl Connection for TargetSession {
    type Event = TargetEvent<Request>;
    type LinkFault = LinkFault;

    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkNumber) -> Option<RecvOp> {
        self.next_recv(cx, self.tasks.links.index_of(link)?)
    }

    fn handle_recv(
        &mut self,
        cx: &mut Cx<'_>,
        link: LinkNumber,
        op: RecvOp,
        received: Received,
    ) -> Result<(), Self::LinkFault> {
        let Some(index) = self.tasks.links.index_of(link) else { return Ok(()) };
        let result = self.finish_receive(cx, index, op, received);
        self.finish_closing(cx.now);
        result
    }

    fn resume_parsing(&mut self, cx: &mut Cx<'_>) -> Result<(), Self::LinkFault> {
        let mut result = Ok(());
        for index in self.tasks.links.indices() {
            let link = &self.tasks.links[index];
            if !link.rx.receive_buffer.is_empty() && link.retry.is_none_or(|retry| retry <= cx.now) {
                self.tasks.links[index].retry = None;
                result = result.and(self.parse_received(cx, index, true));
            }
        }
        self.finish_closing(cx.now);
        result
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkNumber) -> Option<SendOp> {
        let numbers = self.tasks.window.command_numbers();
        let has_grown = self.tasks.window.has_unannounced_room();
        let link = self.tasks.links.get_mut(link)?;
        if has_grown && link.is_open() && link.tx.is_idle() {
            // The window grew, and no answer is there to tell of it.
            link.tx.push_window_update();
        }
        let op = link.build_send_batch(numbers, cx)?;
        self.tasks.window.note_window_sent();
        Some(op)
    }

    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkNumber, how: Result<(), Errno>) {
        let Some(index) = self.tasks.links.index_of(link) else { return };
        self.tasks.links[index].tx.transmit_queue.handle_written();
        if how.is_err() {
            self.fail_link(cx.now, index);
        }
        self.finish_closing(cx.now);
    }

    fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkNumber, op: SendOp) {
        if let Some(link) = self.tasks.links.get_mut(link) {
            link.tx.handle_send_released(op);
        }
        self.finish_closing(cx.now);
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        self.tasks.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.next_deadline()
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.check_deadlines(cx.now);
        self.finish_closing(cx.now);
    }

    fn poll_link_to_close(&mut self) -> Option<LinkNumber> {
        self.shut.pop_front()
    }

    fn close(&mut self, cx: &mut Cx<'_>, how: ConnectionClose) {
        self.begin_close(cx.now, how);
        self.finish_closing(cx.now);
    }
}

impl TargetConnection for TargetSession {
    type Command = Request;
    type Response = Response;

    fn recv_data(&mut self, cx: &mut Cx<'_>, tag: Tag, offset: u32, into: SgMut) {
        self.tasks.add_payload_buffer(cx.now, tag, offset, into);
    }

    fn contiguous_payload(&self, tag: Tag) -> Option<&[u8]> {
        self.tasks.contiguous_immediate_data(tag)
    }

    fn send_data(&mut self, _cx: &mut Cx<'_>, tag: Tag, offset: u32, data: Sg) {
        self.tasks.queue_data(tag, offset, data);
    }

    fn reserve_send_window(&mut self, tag: Tag, len: u32) -> bool {
        self.tasks.reserve_send_window(tag, len)
    }

    fn reserve_receive_window(&mut self, tag: Tag, len: u32) -> bool {
        self.tasks.reserve_receive_window(tag, len)
    }

    #[inline]
    fn label_next_response(&mut self, label: u64) {
        self.tasks.answer_stamp.1 = label;
    }

    #[inline]
    fn poll_written_responses(&mut self, link: LinkNumber) -> Option<LabelledResponses> {
        self.tasks.links.get_mut(link)?.tx.answer_times.poll_written_responses()
    }

    fn respond(&mut self, cx: &mut Cx<'_>, tag: Tag, response: Self::Response) {
        self.tasks.answer_stamp.0 = cx.now;
        self.tasks.handle_response(cx.now, tag, response);
        self.tasks.answer_stamp.1 = 0;
        self.finish_closing(cx.now);
    }

    fn end_without_response(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        self.tasks.end_task_without_response(cx.now, tag);
        self.finish_closing(cx.now);
    }
}
