//! Answers: read data and completions, and how tasks end.

use super::ControllerQueue;
use super::outgoing::ReadData;
use super::task::{DataSource, EndedBy, TaskState};
use buf::Sg;
use nvme::Completion;
use stream::{Tag, TargetEvent};

impl ControllerQueue {
    /// Queues read data of a task. What is beyond the SGL's length never leaves.
    pub(super) fn queue_data(&mut self, tag: Tag, offset: u32, data: Sg) {
        let Some(task) = self.role.tasks.get_mut(tag) else { return };
        let reserved = task.read_reserved.min(data.len() as u32);
        let len = data.len().min(task.len.saturating_sub(offset) as usize);
        if !task.wants_data() || task.source != DataSource::Server || len == 0 {
            return;
        }
        task.read_reserved -= reserved;
        let (cid, ends) = (task.cid, offset + len as u32 == task.len);
        self.role.tasks.read_bytes =
            (self.role.tasks.read_bytes + len as u64).saturating_sub(u64::from(reserved));
        let data = if len < data.len() { data.slice(0..len) } else { data };
        // Counted as the pool counts: an answer of a few bytes holds a block.
        let unasked = (len as u32).saturating_sub(reserved).next_multiple_of(super::BLOCK);
        self.push_data(ReadData { cid, ends, offset, unasked, done: 0, data, completion: None });
    }

    /// The server answers.
    pub(super) fn take_response(&mut self, tag: Tag, completion: Completion) {
        let Some(task) = self.role.tasks.get_mut(tag) else { return };
        let owed = task.is_owed();
        match &mut task.state {
            TaskState::Live if owed => {
                task.state = TaskState::Answered(completion);
                task.answer_stamp = self.role.answer_stamp;
                task.places.clear();
                self.role.awaits_place = false;
            }
            TaskState::Live => self.answer(tag, completion),
            TaskState::Ending { acked, .. } => {
                *acked = true;
                self.finish(tag);
            }
            TaskState::Answered(_) | TaskState::Abandoned => {}
        }
    }

    /// The server lets go of a task without an answer.
    pub(super) fn retire_task(&mut self, tag: Tag) {
        let Some(task) = self.role.tasks.get_mut(tag) else { return };
        match &mut task.state {
            TaskState::Live => {
                task.state = TaskState::Abandoned;
                task.places.clear();
                self.role.awaits_place = false;
                self.finish(tag);
            }
            TaskState::Ending { acked, .. } => {
                *acked = true;
                self.finish(tag);
            }
            TaskState::Answered(_) | TaskState::Abandoned => {}
        }
    }

    /// Ends a task that waits for nothing more.
    pub(super) fn finish(&mut self, tag: Tag) {
        let Some(task) = self.role.tasks.get(tag) else { return };
        // Of a connection that is gone, nothing more will come.
        let owed = task.is_owed() && !self.is_over();
        match task.state {
            TaskState::Ending { how: EndedBy::Silent, acked: true } => {
                self.role.tasks.remove(tag);
            }
            TaskState::Ending { how: EndedBy::Status(status), acked: true } if !owed => {
                self.answer(tag, status.into());
            }
            TaskState::Answered(completion) if !owed => {
                self.role.answer_stamp = task.answer_stamp;
                self.answer(tag, completion);
                self.role.answer_stamp.1 = 0;
            }
            TaskState::Abandoned if !owed => {
                self.role.tasks.remove(tag);
            }
            TaskState::Live | TaskState::Ending { .. } | TaskState::Answered(_) | TaskState::Abandoned => {}
        }
    }

    /// A task is to end without the server's answer.
    pub(super) fn abort_task(&mut self, tag: Tag, how: EndedBy) {
        let Some(task) = self.role.tasks.get_mut(tag) else { return };
        task.places.clear();
        match &mut task.state {
            TaskState::Live => {
                task.state = TaskState::Ending { how, acked: false };
                self.events.push_back(TargetEvent::Aborted { tag });
            }
            TaskState::Ending { how: before, .. } => {
                if how == EndedBy::Silent {
                    *before = how;
                }
                self.finish(tag);
            }
            // Its answer, or its silence, is settled already.
            TaskState::Answered(_) | TaskState::Abandoned if how == EndedBy::Silent => {
                self.role.tasks.remove(tag);
            }
            TaskState::Answered(_) | TaskState::Abandoned => {}
        }
    }

    /// Whether the server has still to let go of a task that ends without its answer.
    pub(super) fn is_aborting(&self, tag: Tag) -> bool {
        self.role
            .tasks
            .get(tag)
            .is_some_and(|task| matches!(task.state, TaskState::Ending { acked: false, .. }))
    }

    pub(super) fn abort_all(&mut self) {
        self.role.tasks.tags().into_iter().for_each(|tag| self.abort_task(tag, EndedBy::Silent));
    }

    fn answer(&mut self, tag: Tag, completion: Completion) {
        let Some(cid) = self.role.tasks.remove(tag) else { return };
        let connect = self.role.connect.take_if(|(connect, _)| *connect == tag).is_some();
        if self.is_over() {
            return;
        }
        self.push_answer(cid, completion, connect);
    }
}
