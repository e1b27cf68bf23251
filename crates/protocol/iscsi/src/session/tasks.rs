//! The tasks of a session from their first PDU to their answer, and their shared state: the links that carry
//! them, the window that counts them, the fences that order their answers.
//!
//! It begins and ends tasks, moves their data and sends their answers; see also `data_out.rs`, `placing.rs`,
//! `respond.rs`, `functions.rs`. [`TargetSession`](super::TargetSession) decides in which order requests are
//! delivered, and when links and the session end.

use super::abandoned_writes::AbandonedWrites;
use super::carried_data::CarriedDataTable;
use super::link::LinkState;
use super::memory_promise::MemoryPromise;
use super::outgoing::OutgoingPdu;
use super::params::{SessionLimits, SessionParams};
use super::request::{Request, ScsiCommand, TaskManagement};
use super::response_fence::FencedResponses;
use super::task::{Task, TaskKind, TaskState, Termination};
use super::window::{CommandWindow, cmd_sn_of};
use crate::links::{LinkIndex, Links};
use crate::wire::{Bhs, Cid, Itt, LogoutResponseCode, Ttt};
use buf::{Cx, Time};
use std::collections::VecDeque;
use stream::{Slab, Tag, TagIndex, TargetEvent};

/// The tasks of a session by Initiator Task Tag, with the memory and the window that they share.
#[derive(Debug)]
pub(super) struct SessionTasks {
    pub(super) params: SessionParams,
    pub(super) limits: SessionLimits,
    pub(super) table: Slab<Task>,
    /// By Initiator Task Tag.
    pub(super) index: TagIndex,
    /// Immediate commands in work.
    immediates: u32,
    /// One of them has unsolicited data: memory is set aside for one at a time.
    immediate_burst: bool,
    /// Tasks that ended while the peer still owed them data: that data is skipped.
    pub(super) abandoned: AbandonedWrites,
    pub(super) window: CommandWindow,
    pub(super) links: Links<LinkState>,
    /// Connections that are on their way, and how long they are waited for.
    pub(super) expected: Vec<(Cid, Time)>,
    /// Responses that wait for acknowledgments, in order.
    pub(super) fences: FencedResponses,
    pub(super) events: VecDeque<TargetEvent<Request>>,
    /// Commands that the server has given back, with their tasks.
    pub(super) withdrawn: Vec<(Tag, ScsiCommand)>,
    /// What came for tasks before they were withdrawn.
    pub(super) carried: CarriedDataTable,
    pub(super) ttts: TransferTags,
    /// A link or the session is ending, and something of it has ended.
    pub(super) unsettled: bool,
    /// When the server gives the answer that it gives, and under what it is counted.
    pub(super) answer_stamp: (Time, u64),
}

impl SessionTasks {
    pub(super) fn new(
        cx: &mut Cx<'_>,
        params: SessionParams,
        limits: SessionLimits,
        promise: MemoryPromise,
    ) -> Self {
        let commands = u32::from(limits.commands);
        let most = commands as usize + usize::from(limits.immediate);
        SessionTasks {
            answer_stamp: (cx.now, 0),
            table: Slab::new(most),
            index: TagIndex::new(most),
            immediates: 0,
            immediate_burst: false,
            abandoned: AbandonedWrites::new(most),
            window: CommandWindow::new(params.cmd_sn, commands, promise, cx.now),
            links: Links::new(),
            expected: Vec::new(),
            fences: FencedResponses::default(),
            events: VecDeque::new(),
            withdrawn: Vec::new(),
            carried: CarriedDataTable::default(),
            // Tags of different sessions differ, so that a PDU gone astray is noticed.
            ttts: TransferTags((cx.entropy.next_u64() >> 33) as u32),
            unsettled: false,
            params,
            limits,
        }
    }

    /// Enters a task; `None` if too many are in work.
    pub(super) fn begin_task(
        &mut self,
        index: LinkIndex,
        bhs: &Bhs,
        kind: TaskKind,
        state: TaskState,
    ) -> Option<Tag> {
        let immediate = bhs.is_immediate();
        let bursts = immediate && kind.has_unsolicited();
        if immediate && self.has_max_immediate_tasks() || bursts && self.immediate_burst {
            return None;
        }
        let task = Task {
            answer_stamp: (Time(0), 0),
            itt: bhs.itt,
            lun: bhs.lun,
            cmd_sn: cmd_sn_of(bhs),
            link: index,
            immediate,
            kind,
            state,
            read_reserved: 0,
            write_reserved: 0,
            owing: false,
            counted: false,
        };
        let tag = self.table.insert(task).ok()?;
        self.index.insert(bhs.itt.value(), tag);
        self.links[index].tasks += 1;
        self.immediate_burst |= bursts;
        if !self.abandoned.is_empty() {
            // The tag lives again: what comes for it now is meant for this task.
            self.abandoned.remove(bhs.itt, index);
        }
        self.immediates += u32::from(immediate);
        Some(tag)
    }

    /// Enters a task of another process. `None`: it is one too many, or its tag is another's.
    pub(super) fn restore_task(&mut self, task: Task) -> Option<Tag> {
        let bursts = task.immediate && task.kind.has_unsolicited();
        let excess = task.immediate && self.has_max_immediate_tasks() || bursts && self.immediate_burst;
        if excess || self.table.is_full() || task.itt.is_none() || self.index.find(task.itt.value()).is_some()
        {
            return None;
        }
        let (itt, link, immediate, owing) = (task.itt, task.link, task.immediate, task.owing);
        let tag = self.table.insert(task).ok()?;
        self.index.insert(itt.value(), tag);
        self.links[link].tasks += 1;
        self.links[link].owed += usize::from(owing);
        self.immediate_burst |= bursts;
        self.immediates += u32::from(immediate);
        Some(tag)
    }

    pub(super) fn has_max_immediate_tasks(&self) -> bool {
        self.immediates >= u32::from(self.limits.immediate)
    }

    /// Tells the server of a SCSI command whose turn has come.
    pub(super) fn deliver_command(&mut self, now: Time, tag: Tag, command: ScsiCommand) {
        if self.count_in_window(tag) {
            let SessionTasks { window, links, expected, .. } = self;
            window.resize_to_demand(now, || open_or_expected_links(links, expected));
        }
        let Some(task) = self.table.get_mut(tag) else { return };
        match &mut task.state {
            TaskState::Held => {
                task.state = TaskState::Live;
                let data_out = if command.write { command.edtl } else { 0 };
                let command = Request::Scsi(command);
                self.events.push_back(TargetEvent::Command { tag, command, data_out });
            }
            TaskState::Invalid(sense) => {
                task.state = TaskState::Terminating { how: Termination::Sense(*sense), acked: true };
                self.finish_task(now, tag);
            }
            TaskState::Live
            | TaskState::Withdrawn
            | TaskState::Terminating { .. }
            | TaskState::Answered(_) => {}
        }
    }

    /// Tells the server of a task management function whose turn has come.
    pub(super) fn deliver_function(&mut self, tag: Tag, function: TaskManagement) {
        let Some(task) = self.table.get_mut(tag) else { return };
        task.state = TaskState::Live;
        let command = Request::Task(function);
        self.events.push_back(TargetEvent::Command { tag, command, data_out: 0 });
    }

    /// Counts a task of the command window as in work. False: it is none, or counted already.
    #[inline]
    pub(super) fn count_in_window(&mut self, tag: Tag) -> bool {
        let Some(task) = self.table.get_mut(tag) else { return false };
        if task.immediate || task.counted {
            return false;
        }
        task.counted = true;
        self.window.note_command_begun();
        true
    }

    /// Takes a task out of every count.
    pub(super) fn remove(&mut self, tag: Tag) -> Option<Task> {
        self.remove_from_counts(tag);
        self.table.remove(tag)
    }

    /// Takes a task that is about to go out of every count.
    pub(super) fn remove_from_counts(&mut self, tag: Tag) {
        let Some(task) = self.table.get(tag) else { return };
        self.index.remove(task.itt.value());
        self.carried.remove(tag);
        if task.counted {
            let SessionTasks { window, links, expected, .. } = self;
            window.note_command_ended(|| open_or_expected_links(links, expected));
        }
        self.immediates -= u32::from(task.immediate);
        if task.immediate && task.kind.has_unsolicited() {
            self.immediate_burst = false;
        }
        let link = &mut self.links[task.link];
        link.tasks -= 1;
        link.owed -= usize::from(task.owing);
        link.tx.release_send_window(task.read_reserved);
        link.write_bytes = link.write_bytes.saturating_sub(u64::from(task.write_reserved));
        self.unsettled |= !link.is_open();
    }

    pub(super) fn answer_logout(&mut self, index: LinkIndex, itt: Itt, response: LogoutResponseCode) {
        let (time2wait, time2retain) = (self.params.time2wait, self.params.time2retain);
        self.links[index].tx.push(OutgoingPdu::Logout { itt, response, time2wait, time2retain });
    }

    /// Pings the initiator.
    pub(super) fn send_ping(&mut self, now: Time, index: LinkIndex) {
        let ttt = self.ttts.next_tag();
        self.links[index].send_ping(now, ttt);
    }
}

/// Target Transfer Tags: all values but the reserved one, in turn.
#[derive(Debug)]
pub(super) struct TransferTags(pub(super) u32);

impl TransferTags {
    pub(super) fn next_tag(&mut self) -> Ttt {
        let ttt = Ttt::new(self.0);
        self.0 = match self.0.wrapping_add(1) {
            u32::MAX => 0,
            next => next,
        };
        ttt
    }
}

/// Links that are open or on their way.
pub(super) fn open_or_expected_links(links: &Links<LinkState>, expected: &[(Cid, Time)]) -> u32 {
    (links.iter().filter(|link| link.is_open()).count() + expected.len()) as u32
}
