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
mod closing;
mod command;
mod control;
mod data_out;
mod fence;
mod functions;
mod link;
mod memory_promise;
mod outgoing;
mod params;
mod pings;
mod placing;
mod receive;
mod request;
mod respond;
mod task;
mod tasks;
mod text;
mod window;

#[cfg(test)]
mod tests;

use buf::{Cx, Errno, Pool, Sg, SgMut, Time};
use closing::NexusEnd;
use control::Logout;
use functions::WaitingFunctions;
use link::{LinkPhase, LinkState};
pub use memory_promise::{MemoryPromise, WINDOW_START};
pub use params::{LinkParams, SessionLimits, SessionParams};
pub use request::{
    Cdb, Fault, LinkFault, Request, Residual, Response, ScsiCommand, ScsiResult, SenseBytes, TaskManagement,
};
use std::collections::VecDeque;
use stream::{AnswerRun, Close, Connection, Link, Received, RecvOp, SendOp, Tag, Target, TargetEvent};
pub use task::R2T_MAX;
use tasks::{SessionTasks, links_to_keep};

use crate::wire::{Cid, Lun, Sn};

/// Most commands that a session may have in work.
const COMMANDS_MAX: u16 = 4096;

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
    functions: WaitingFunctions,
    shut: VecDeque<Link>,
    violations: Vec<LinkFault>,
    logout: Option<Logout>,
    close_at: Option<Time>,
    /// Logical units whose tasks a lost link took with it.
    cleared: Vec<Lun>,
    closing: bool,
    /// How far the end of its nexus is.
    nexus_end: NexusEnd,
    closed: bool,
}

impl TargetSession {
    /// Begins a session with what memory can be had; [`TargetSession::attach`] gives it its links.
    pub fn new(cx: &mut Cx<'_>, params: SessionParams, limits: SessionLimits) -> Result<Self, AttachError> {
        let commands = limits.commands.clamp(1, COMMANDS_MAX);
        let promise = MemoryPromise::new(cx.pool, params.unsolicited(), u32::from(commands));
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
        assert!(promise.is_for(params.unsolicited()), "memory is set aside for what was negotiated");
        let immediate = limits.immediate.clamp(2, 256);
        let limits = SessionLimits { immediate, commands: limits.commands.clamp(1, COMMANDS_MAX), ..limits };
        TargetSession {
            tasks: SessionTasks::new(cx, params, limits, promise),
            functions: WaitingFunctions::default(),
            shut: VecDeque::new(),
            violations: Vec::new(),
            logout: None,
            close_at: None,
            cleared: Vec::new(),
            closing: false,
            nexus_end: NexusEnd::No,
            closed: false,
        }
    }

    /// Adds a link whose login is over: its final Login Response is written, and `leftover` is what
    /// came behind its last request. A link with the same CID is closed first (connection
    /// reinstatement, RFC 7143 §6.3.4).
    pub fn attach(
        &mut self,
        cx: &mut Cx<'_>,
        params: LinkParams,
        leftover: &[u8],
    ) -> Result<Link, AttachError> {
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
            self.tidy(cx.now);
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
    pub fn reinstate(&mut self, cx: &mut Cx<'_>, cid: Cid, until: Time) {
        let bears = |link: &LinkState| link.cid == cid && link.is_alive();
        let old = self.tasks.links.position(bears);
        // Also where none bears it: the last link may die while the new one is on its way.
        if !self.is_ending() {
            self.tasks.expected.retain(|(other, _)| *other != cid);
            self.tasks.expected.push((cid, until));
        }
        let Some(index) = old else { return };
        self.fail_link(cx.now, index);
        self.tidy(cx.now);
    }

    /// Keeps a place for a connection that [`reinstate`](Self::reinstate) expects and whose login is about
    /// to be answered, with memory for a burst of its own; or says why it must be refused.
    pub fn keep_place(&mut self, cid: Cid) -> Result<(), AttachError> {
        if self.is_ending() || !self.tasks.expected.iter().any(|(expected, _)| *expected == cid) {
            return Err(AttachError::Closing);
        }
        let most = usize::from(self.tasks.params.max_connections.max(1));
        let kept = links_to_keep(&self.tasks.links, &self.tasks.expected);
        // Links that are ending keep their places for a while.
        let taken = self.tasks.links.iter().filter(|link| link.phase != LinkPhase::Gone).count();
        let places = 2 * most.min(usize::from(u16::MAX) / 2);
        if kept as usize > most || taken + self.tasks.expected.len() > places {
            return Err(AttachError::TooManyLinks);
        }
        if self.tasks.window.make_room_for_links(kept) { Ok(()) } else { Err(AttachError::NoMemory) }
    }

    /// A connection that was expected does not come.
    pub fn expect_no_more(&mut self, cx: &mut Cx<'_>, cid: Cid) {
        let before = self.tasks.expected.len();
        self.tasks.expected.retain(|(expected, _)| *expected != cid);
        let lives = self.tasks.links.iter().any(|link| link.is_alive());
        if before > 0 && self.tasks.expected.is_empty() && !lives {
            self.fail_session(cx.now);
        }
        self.tidy(cx.now);
    }

    /// Whether no link with this CID is in use, nor any task of one left: the login that reinstates it
    /// may be answered.
    #[must_use]
    pub fn is_clear_of(&self, cid: Cid) -> bool {
        let lives = |link: &LinkState| {
            let ended = matches!(link.phase, LinkPhase::Dead | LinkPhase::Gone);
            link.cid == cid && !(ended && link.tasks == 0)
        };
        !self.tasks.links.iter().any(lives)
    }

    /// A logical unit of whose tasks some ended with a link that was lost, while the session goes on:
    /// its next command is to be told so (unit attention 47h/7Fh, RFC 7143 §11.14.5).
    #[must_use]
    pub fn poll_cleared(&mut self) -> Option<[u8; 8]> {
        self.cleared.pop().map(|lun| lun.0)
    }

    /// Copies read data that waits to be sent and lies in memory that others may write. What is in batches is not
    /// touched. Gives the links that have some left, for want of memory.
    #[must_use]
    pub fn copy_lent(&mut self, pool: &Pool) -> Vec<Link> {
        let indices = self.tasks.links.indices();
        indices.filter(|index| !self.tasks.links[*index].tx.copy_lent(pool)).map(Link::from).collect()
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
        self.tasks.window.limit()
    }

    /// ExpCmdSN and MaxCmdSN as they stand, for the final Login Response of a further link.
    #[must_use]
    pub fn command_numbers(&self) -> (Sn, Sn) {
        let numbers = self.tasks.window.numbers();
        (numbers.exp_cmd_sn, numbers.max_cmd_sn)
    }

    /// Tasks in work.
    #[must_use]
    pub fn tasks_in_work(&self) -> usize {
        self.tasks.table.len()
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

    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: Link) -> Option<RecvOp> {
        self.next_recv(cx, self.tasks.links.index_of(link)?)
    }

    fn handle_recv(
        &mut self,
        cx: &mut Cx<'_>,
        link: Link,
        op: RecvOp,
        received: Received,
    ) -> Result<(), Self::LinkFault> {
        let Some(index) = self.tasks.links.index_of(link) else { return Ok(()) };
        let result = self.received(cx, index, op, received);
        self.tidy(cx.now);
        result
    }

    fn resume(&mut self, cx: &mut Cx<'_>) -> Result<(), Self::LinkFault> {
        let mut result = Ok(());
        for index in self.tasks.links.indices() {
            let link = &self.tasks.links[index];
            if !link.rx.receive_buffer.is_empty() && link.retry.is_none_or(|retry| retry <= cx.now) {
                self.tasks.links[index].retry = None;
                result = result.and(self.parse(cx, index, true));
            }
        }
        self.tidy(cx.now);
        result
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, link: Link) -> Option<SendOp> {
        let numbers = self.tasks.window.numbers();
        let has_grown = self.tasks.window.has_grown();
        let link = self.tasks.links.get_mut(link)?;
        if has_grown && link.is_open() && link.tx.is_idle() {
            // The window grew, and no answer is there to tell of it.
            link.tx.push_window_update();
        }
        let op = link.gather(numbers, cx)?;
        self.tasks.window.told();
        Some(op)
    }

    fn handle_written(&mut self, cx: &mut Cx<'_>, link: Link, how: Result<(), Errno>) {
        let Some(index) = self.tasks.links.index_of(link) else { return };
        self.tasks.links[index].tx.transmit_queue.written();
        if how.is_err() {
            self.fail_link(cx.now, index);
        }
        self.tidy(cx.now);
    }

    fn handle_sent(&mut self, cx: &mut Cx<'_>, link: Link, op: SendOp) {
        if let Some(link) = self.tasks.links.get_mut(link) {
            link.tx.sent(op);
        }
        self.tidy(cx.now);
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        self.tasks.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.next_deadline()
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.look_at_clocks(cx.now);
        self.tidy(cx.now);
    }

    fn poll_shut(&mut self) -> Option<Link> {
        self.shut.pop_front()
    }

    fn close(&mut self, cx: &mut Cx<'_>, how: Close) {
        self.begin_close(cx.now, how);
        self.tidy(cx.now);
    }
}

impl Target for TargetSession {
    type Command = Request;
    type Response = Response;

    fn recv_data(&mut self, cx: &mut Cx<'_>, tag: Tag, offset: u32, into: SgMut) {
        self.tasks.add_place(cx.now, tag, offset, into);
    }

    fn data_at_hand(&self, tag: Tag) -> Option<&[u8]> {
        self.tasks.whole_payload(tag)
    }

    fn send_data(&mut self, _cx: &mut Cx<'_>, tag: Tag, offset: u32, data: Sg) {
        self.tasks.queue_data(tag, offset, data);
    }

    fn reserve_read(&mut self, tag: Tag, len: u32) -> bool {
        self.tasks.allow_read(tag, len)
    }

    fn reserve_write(&mut self, tag: Tag, len: u32) -> bool {
        self.tasks.allow_write(tag, len)
    }

    #[inline]
    fn label_answer(&mut self, label: u64) {
        self.tasks.answer_stamp.1 = label;
    }

    #[inline]
    fn poll_written(&mut self, link: Link) -> Option<AnswerRun> {
        self.tasks.links.get_mut(link)?.tx.answer_times.poll_written()
    }

    fn respond(&mut self, cx: &mut Cx<'_>, tag: Tag, response: Self::Response) {
        self.tasks.answer_stamp.0 = cx.now;
        self.tasks.take_response(cx.now, tag, response);
        self.tasks.answer_stamp.1 = 0;
        self.tidy(cx.now);
    }

    fn retire(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        self.tasks.let_go(cx.now, tag);
        self.tidy(cx.now);
    }
}
