//! Answers: read data and completions, and how tasks end.

use super::ControllerQueue;
use super::outgoing::ReadData;
use super::task::{DataSource, TaskEnding, TaskState};
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
        task.moved = true;
        let (cid, ends) = (task.cid, offset + len as u32 == task.len);
        self.role.tasks.read_bytes =
            (self.role.tasks.read_bytes + len as u64).saturating_sub(u64::from(reserved));
        let data = if len < data.len() { data.slice(0..len) } else { data };
        // Counted as the pool counts: an answer of a few bytes holds a block.
        let unasked = (len as u32).saturating_sub(reserved).next_multiple_of(super::POOL_BLOCK_MIN);
        self.push_read_data(ReadData { cid, ends, offset, unasked, done: 0, data, completion: None });
    }

    /// The server answers.
    pub(super) fn handle_response(&mut self, tag: Tag, completion: Completion) {
        let Some(task) = self.role.tasks.get_mut(tag) else { return };
        let owed = task.is_data_owed();
        match &mut task.state {
            TaskState::Live if owed => {
                task.state = TaskState::Answered(completion);
                task.answer_stamp = self.role.answer_stamp;
                task.places.clear();
                self.role.tasks.carried.remove(tag);
                self.role.awaits_place = false;
            }
            TaskState::Live => self.send_completion(tag, completion),
            TaskState::Ending { acked, .. } => {
                *acked = true;
                self.finish_task(tag);
            }
            TaskState::Withdrawn | TaskState::Answered(_) | TaskState::Abandoned => {}
        }
    }

    /// The server lets go of a task without an answer.
    pub(super) fn end_task_without_response(&mut self, tag: Tag) {
        let Some(task) = self.role.tasks.get_mut(tag) else { return };
        match &mut task.state {
            TaskState::Live => {
                task.state = TaskState::Abandoned;
                task.places.clear();
                self.role.tasks.carried.remove(tag);
                self.role.awaits_place = false;
                self.finish_task(tag);
            }
            TaskState::Ending { acked, .. } => {
                *acked = true;
                self.finish_task(tag);
            }
            TaskState::Withdrawn | TaskState::Answered(_) | TaskState::Abandoned => {}
        }
    }

    /// Ends a task that waits for nothing more.
    pub(super) fn finish_task(&mut self, tag: Tag) {
        let Some(task) = self.role.tasks.get(tag) else { return };
        // Of a connection that is gone, nothing more will come.
        let owed = task.is_data_owed() && !self.is_over();
        match task.state {
            TaskState::Ending { how: TaskEnding::Silent, acked: true } => {
                self.role.tasks.remove(tag);
            }
            TaskState::Ending { how: TaskEnding::Status(status), acked: true } if !owed => {
                self.send_completion(tag, status.into());
            }
            TaskState::Answered(completion) if !owed => {
                self.role.answer_stamp = task.answer_stamp;
                self.send_completion(tag, completion);
                self.role.answer_stamp.1 = 0;
            }
            TaskState::Abandoned if !owed => {
                self.role.tasks.remove(tag);
            }
            TaskState::Live
            | TaskState::Withdrawn
            | TaskState::Ending { .. }
            | TaskState::Answered(_)
            | TaskState::Abandoned => {}
        }
    }

    /// A task is to end without the server's answer.
    pub(super) fn abort_task(&mut self, tag: Tag, how: TaskEnding) {
        self.role.tasks.carried.remove(tag);
        let Some(task) = self.role.tasks.get_mut(tag) else { return };
        task.places.clear();
        match &mut task.state {
            TaskState::Live => {
                task.state = TaskState::Ending { how, acked: false };
                self.events.push_back(TargetEvent::Aborted { tag });
            }
            // The server has let go of it.
            TaskState::Withdrawn => {
                task.state = TaskState::Ending { how, acked: true };
                self.finish_task(tag);
            }
            TaskState::Ending { how: before, .. } => {
                if how == TaskEnding::Silent {
                    *before = how;
                }
                self.finish_task(tag);
            }
            // Its answer, or its silence, is settled already.
            TaskState::Answered(_) | TaskState::Abandoned if how == TaskEnding::Silent => {
                self.role.tasks.remove(tag);
            }
            TaskState::Answered(_) | TaskState::Abandoned => {}
        }
    }

    /// Whether the server has still to let go of a task that ends without its answer.
    pub(super) fn is_task_abort_pending(&self, tag: Tag) -> bool {
        self.role
            .tasks
            .get(tag)
            .is_some_and(|task| matches!(task.state, TaskState::Ending { acked: false, .. }))
    }

    pub(super) fn abort_all_tasks(&mut self) {
        self.role.tasks.tags().into_iter().for_each(|tag| self.abort_task(tag, TaskEnding::Silent));
    }

    fn send_completion(&mut self, tag: Tag, completion: Completion) {
        let Some(cid) = self.role.tasks.remove(tag) else { return };
        let connect = self.role.connect.take_if(|(connect, _)| *connect == tag).is_some();
        if self.is_over() {
            return;
        }
        self.push_completion(cid, completion, connect);
    }
}
