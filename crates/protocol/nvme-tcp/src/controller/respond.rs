//! Answers: read data and completions, and how tasks end.

use super::outgoing::{OutgoingPdu, ReadData};
use super::task::{DataSource, EndedBy, TaskState};
use super::{ControllerQueue, Phase};
use buf::Sg;
use nvme::Completion;
use stream::{Tag, TargetEvent};

impl ControllerQueue {
    pub(super) fn allow_read(&mut self, tag: Tag, len: u32) -> bool {
        let Some(task) = self.tasks.get_mut(tag) else { return true };
        // Who asks again (its answer found no memory) keeps what it was allowed, and that counts once.
        let kept = task.read_reserved;
        let more = len.saturating_sub(kept);
        let outstanding = self.read_bytes + self.kernel_bytes;
        let allowed = outstanding == u64::from(kept)
            || outstanding + u64::from(more) <= u64::from(self.limits.read_bytes);
        if allowed {
            self.read_bytes += u64::from(more);
            task.read_reserved += more;
        }
        allowed
    }

    pub(super) fn allow_write(&mut self, tag: Tag, len: u32) -> bool {
        let Some(task) = self.tasks.get_mut(tag) else { return true };
        let outstanding = self.write_bytes;
        let allowed = outstanding == 0 || outstanding + u64::from(len) <= u64::from(self.limits.write_bytes);
        if allowed {
            self.write_bytes += u64::from(len);
            task.write_reserved += len;
        }
        allowed
    }

    /// Queues read data of a task. What is beyond the SGL's length never leaves.
    pub(super) fn queue_data(&mut self, tag: Tag, offset: u32, data: Sg) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let reserved = task.read_reserved.min(data.len() as u32);
        let len = data.len().min(task.len.saturating_sub(offset) as usize);
        if !task.wants_data() || task.source != DataSource::Server || len == 0 {
            return;
        }
        task.read_reserved -= reserved;
        self.read_bytes = (self.read_bytes + len as u64).saturating_sub(u64::from(reserved));
        let data = if len < data.len() { data.slice(0..len) } else { data };
        // Counted as the pool counts: an answer of a few bytes holds a block.
        let unasked = (len as u32).saturating_sub(reserved).next_multiple_of(super::BLOCK);
        self.unasked_bytes += u64::from(unasked);
        self.out.push_back(OutgoingPdu::Data(ReadData {
            cid: task.cid,
            ends: offset + len as u32 == task.len,
            offset,
            unasked,
            done: 0,
            data,
            completion: None,
        }));
    }

    /// The server answers.
    pub(super) fn take_response(&mut self, tag: Tag, completion: Completion) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let owed = task.is_owed();
        match &mut task.state {
            TaskState::Live if owed => {
                task.state = TaskState::Answered(completion);
                task.places.clear();
                self.placeless = false;
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
    pub(super) fn let_go(&mut self, tag: Tag) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        match &mut task.state {
            TaskState::Live => {
                task.state = TaskState::Abandoned;
                task.places.clear();
                self.placeless = false;
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
        let Some(task) = self.tasks.get(tag) else { return };
        // Of a connection that is gone, nothing more will come.
        let owed = task.is_owed() && !self.is_over();
        match task.state {
            TaskState::Ending { how: EndedBy::Silent, acked: true } => {
                self.remove(tag);
            }
            TaskState::Ending { how: EndedBy::Status(status), acked: true } if !owed => {
                self.answer(tag, status.into());
            }
            TaskState::Answered(completion) if !owed => self.answer(tag, completion),
            TaskState::Abandoned if !owed => {
                self.remove(tag);
            }
            TaskState::Live | TaskState::Ending { .. } | TaskState::Answered(_) | TaskState::Abandoned => {}
        }
    }

    /// A task is to end without the server's answer.
    pub(super) fn doom(&mut self, tag: Tag, how: EndedBy) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
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
                self.remove(tag);
            }
            TaskState::Answered(_) | TaskState::Abandoned => {}
        }
    }

    /// Whether the server has still to let go of a task that ends without its answer.
    pub(super) fn is_dying(&self, tag: Tag) -> bool {
        self.tasks.get(tag).is_some_and(|task| matches!(task.state, TaskState::Ending { acked: false, .. }))
    }

    pub(super) fn doom_all(&mut self) {
        let tags: Vec<Tag> = self.tasks.iter().map(|(tag, _)| tag).collect();
        tags.into_iter().for_each(|tag| self.doom(tag, EndedBy::Silent));
    }

    /// Takes a task out of its table and of every count; gives its CID.
    fn remove(&mut self, tag: Tag) -> Option<u16> {
        let task = self.tasks.get(tag)?;
        let cid = task.cid;
        // Its name may be another's already (see `take_from_event_request`).
        if self.index.find(cid.into()) == Some(tag) {
            self.index.remove(cid.into());
        }
        if task.capsule {
            self.capsules.give();
        }
        self.owed -= usize::from(task.owing);
        self.read_bytes = self.read_bytes.saturating_sub(u64::from(task.read_reserved));
        self.write_bytes = self.write_bytes.saturating_sub(u64::from(task.write_reserved));
        self.tasks.discard(tag);
        Some(cid)
    }

    fn answer(&mut self, tag: Tag, completion: Completion) {
        let Some(cid) = self.remove(tag) else { return };
        let connect = self.connect.take_if(|(connect, _)| *connect == tag).is_some();
        if self.is_over() {
            return;
        }
        if let Some(OutgoingPdu::Data(run)) = self.out.back_mut()
            && run.cid == cid
            && run.completion.is_none()
        {
            run.completion = Some(completion);
        } else {
            self.out.push_back(OutgoingPdu::Response { cid, completion, connect });
        }
    }

    /// Whether nothing that the server says reaches the host any more.
    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Finishing | Phase::Dead | Phase::Gone)
    }
}
