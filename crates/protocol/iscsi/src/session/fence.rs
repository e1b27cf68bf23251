//! The response fence (RFC 7143 §4.2.2.3): one order of responses over the links of a session, where SCSI
//! needs one. What wants it: the end of a function that ends many tasks (§4.2.3.3), and what the server
//! marks ([`ScsiResult::fence`]).
//!
//! A session of one link needs nothing: TCP keeps the order. Over several links a fenced response waits
//! until the initiator has acknowledged (ExpStatSN) all that was handed over before it, on every link; and
//! what is handed over behind it for the same logical unit waits until it is acknowledged itself.
//! Acknowledgments are asked for by NOP-In, since an initiator that has nothing to say sends none.
//!
//! Other sessions whose tasks a function ended are told by a unit attention, which is fenced there in its
//! turn (§4.2.3.3 e): no session waits for another's initiator, so none can hold it up. And the answers to
//! R2Ts of tasks that are ended so are not waited for, though §4.2.3.3 a asks for it: what Linux sends
//! none of by default (`FastAbort = Yes` of open-iscsi) would make each reset run into its time-out. Such
//! data is known by its tags and skipped instead.
//!
//! Invariant: nothing waits for long. Every wait names links that are open, each of which owes an
//! acknowledgment by a time, and is dropped if that passes.

use super::task::{Answer, Task, TaskState};
use super::tasks::Tasks;
use crate::links::LinkIndex;
use crate::wire::{Lun, Sn};
use buf::Time;
use smallvec::SmallVec;
use stream::Tag;

/// A response on its way through the fence: the one that its task keeps.
#[derive(Debug)]
pub(super) struct ResponseFence {
    tag: Tag,
    /// The logical unit whose responses it orders; `None`: all of them.
    lun: Option<Lun>,
    state: FenceState,
}

/// A link, and the ExpStatSN that acknowledges what was to be sent on it.
type Acknowledgment = (LinkIndex, Sn);

#[derive(Debug)]
enum FenceState {
    /// Others go before it.
    Waiting,
    /// What was handed over before it is to be acknowledged by a time.
    Before(SmallVec<[Acknowledgment; 4]>, Time),
    /// It is sent, and to be acknowledged by a time.
    After(Acknowledgment, Time),
    /// Nothing is left to wait for.
    Over,
}

impl Tasks {
    /// Sends a task's answer, or keeps it with the task while a fence stands, or until it is through its
    /// own. Nothing is owed for the task any more.
    pub(super) fn answer_in_order(&mut self, now: Time, tag: Tag, answer: Answer) {
        let Some(task) = self.table.get_mut(tag) else { return };
        let lun = task.lun;
        let fences = matches!(&answer, Answer::Result(result) if result.fence);
        if self.is_held(lun) {
            self.keep(tag, answer);
        } else if fences && self.needs_fence() {
            self.put_fence(now, tag, answer, Some(lun));
        } else if let Some(task) = self.remove(tag) {
            self.send_answer(task, answer);
        }
    }

    /// Keeps a task's answer until it is through the fence; `lun`: the unit whose responses it orders.
    pub(super) fn put_fence(&mut self, now: Time, tag: Tag, answer: Answer, lun: Option<Lun>) {
        self.keep(tag, answer);
        self.fences.push_back(ResponseFence { tag, lun, state: FenceState::Waiting });
        self.step_fences(now);
    }

    fn keep(&mut self, tag: Tag, answer: Answer) {
        let Some(task) = self.table.get_mut(tag) else { return };
        task.state = TaskState::Answered(Box::new(answer));
        if let Some(transfer) = task.transfer() {
            transfer.drop_memory();
        }
    }

    /// Whether responses of this unit wait behind a fence.
    pub(super) fn is_held(&self, lun: Lun) -> bool {
        self.fences.iter().any(|fence| fence.lun.is_none_or(|fenced| fenced == lun))
    }

    /// Whether responses can overtake each other.
    fn needs_fence(&self) -> bool {
        self.links.iter().filter(|link| link.is_open()).count() > 1
    }

    /// Brings fences forward; ends when the first waits for an acknowledgment.
    pub(super) fn step_fences(&mut self, now: Time) {
        while let Some(mut fence) = self.fences.pop_front() {
            self.step_fence(now, &mut fence);
            if !matches!(fence.state, FenceState::Over) {
                self.fences.push_front(fence);
                return;
            }
            self.release(now);
        }
    }

    fn step_fence(&mut self, now: Time, fence: &mut ResponseFence) {
        let until = now + self.limits.nop_timeout;
        let kept = |task: &Task| matches!(task.state, TaskState::Answered(_));
        let wanted = self.table.get(fence.tag).is_some_and(kept);
        if !wanted && !matches!(fence.state, FenceState::After(..)) {
            // It was aborted, or went with its link.
            fence.state = FenceState::Over;
        }
        if matches!(fence.state, FenceState::Waiting) {
            let mut marks = SmallVec::new();
            if self.needs_fence() {
                for index in self.links.indices() {
                    let mark = (index, self.links[index].tx.all_sent());
                    if self.links[index].is_open() && !self.is_acknowledged(mark) {
                        marks.push(mark);
                        self.ping(now, index);
                    }
                }
            }
            fence.state = FenceState::Before(marks, until);
        }
        if let FenceState::Before(marks, _) = &mut fence.state {
            marks.retain(|mark| !self.is_acknowledged(*mark));
            if marks.is_empty() {
                let sent = self.send_fenced(fence.tag).filter(|_| self.needs_fence());
                fence.state = match sent {
                    Some(index) => {
                        let mark = (index, self.links[index].tx.all_sent());
                        self.ping(now, index);
                        FenceState::After(mark, until)
                    }
                    None => FenceState::Over,
                };
            }
        }
        if let FenceState::After(mark, _) = fence.state
            && self.is_acknowledged(mark)
        {
            fence.state = FenceState::Over;
        }
    }

    fn is_acknowledged(&self, (index, exp_stat_sn): Acknowledgment) -> bool {
        !self.links[index].acked.next().lt(exp_stat_sn)
    }

    /// Queues the response that a task keeps, and says where.
    fn send_fenced(&mut self, tag: Tag) -> Option<LinkIndex> {
        let mut task = self.remove(tag)?;
        let index = task.link;
        if let TaskState::Answered(answer) = std::mem::replace(&mut task.state, TaskState::Live) {
            self.send_answer(task, *answer);
        }
        Some(index)
    }

    /// Sends what waited behind a fence that is down, or begins the next.
    fn release(&mut self, now: Time) {
        let kept = |task: &Task| matches!(task.state, TaskState::Answered(_)) && !task.is_owed();
        let tags: Vec<Tag> = self.table.iter().filter(|(_, task)| kept(task)).map(|(tag, _)| tag).collect();
        for tag in tags {
            if !self.fences.iter().any(|fence| fence.tag == tag) {
                self.finish(now, tag);
            }
        }
    }

    /// A link leaves: no acknowledgment is waited for on it any more.
    pub(super) fn unfence(&mut self, leaving: LinkIndex) {
        for fence in &mut self.fences {
            match &mut fence.state {
                FenceState::Before(marks, _) => marks.retain(|(index, _)| *index != leaving),
                FenceState::After((index, _), _) if *index == leaving => fence.state = FenceState::Over,
                FenceState::Waiting | FenceState::After(..) | FenceState::Over => {}
            }
        }
    }

    /// When an acknowledgment is due.
    pub(super) fn fence_deadline(&self) -> Option<Time> {
        match self.fences.front()?.state {
            FenceState::Before(_, until) | FenceState::After(_, until) => Some(until),
            FenceState::Waiting | FenceState::Over => None,
        }
    }

    /// Links that are waited for, and acknowledge nothing.
    pub(super) fn silent_links(&self) -> SmallVec<[LinkIndex; 4]> {
        match self.fences.front().map(|fence| &fence.state) {
            Some(FenceState::Before(marks, _)) => marks.iter().map(|(index, _)| *index).collect(),
            Some(FenceState::After((index, _), _)) => SmallVec::from_slice(&[*index]),
            Some(FenceState::Waiting | FenceState::Over) | None => SmallVec::new(),
        }
    }
}
