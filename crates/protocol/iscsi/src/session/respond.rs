//! Answers: read data and status (RFC 7143 §11.4, §11.7), and how tasks end.

use super::outgoing::{DataInRun, FullResponse, OutgoingPdu};
use super::request::{Residual, Response, ScsiResult};
use super::response_fence::{Acknowledgment, FenceState, FencedResponse};
use super::task::{Answer, Task, TaskKind, TaskState, Termination, Transfer};
use super::task_functions::ends_unnamed_tasks;
use super::tasks::SessionTasks;
use crate::links::LinkIndex;
use crate::wire::{Lun, ScsiStatus, TmfFunction, TmfResponseCode};
use buf::{Sg, Time};
use smallvec::SmallVec;
use stream::{Tag, TargetEvent};

impl SessionTasks {
    pub(super) fn reserve_send_window(&mut self, tag: Tag, len: u32) -> bool {
        let Some(task) = self.table.get_mut(tag) else { return true };
        self.links[task.link].tx.reserve_send_window(&mut task.read_reserved, len, self.limits.read_bytes)
    }

    pub(super) fn reserve_receive_window(&mut self, tag: Tag, len: u32) -> bool {
        let Some(task) = self.table.get_mut(tag) else { return true };
        let link = &mut self.links[task.link];
        let outstanding = link.write_bytes;
        let allowed = outstanding == 0 || outstanding + u64::from(len) <= u64::from(self.limits.write_bytes);
        if allowed {
            link.write_bytes += u64::from(len);
            task.write_reserved += len;
        }
        allowed
    }

    /// Queues read data of a task. What is beyond the expected length never leaves.
    pub(super) fn queue_data(&mut self, tag: Tag, offset: u32, data: Sg) {
        let Some(task) = self.table.get_mut(tag) else { return };
        let live = matches!(task.state, TaskState::Live);
        let (itt, index) = (task.itt, task.link);
        let reserved = task.read_reserved.min(data.len() as u32);
        let TaskKind::Scsi(transfer) = &mut task.kind else { return };
        let room = transfer.edtl.saturating_sub(offset) as usize;
        let len = data.len().min(room);
        if !live || !transfer.read || transfer.write || len == 0 {
            return;
        }
        let link = &mut self.links[index];
        task.read_reserved -= reserved;
        let (segment, burst) = (link.framing.send_segment_len_max(), self.params.max_burst);
        let sn = transfer.data_sn;
        transfer.data_sn = sn.wrapping_add(DataInRun::pdu_count(len as u32, segment, burst));
        transfer.sent = offset.saturating_add(len as u32);
        let data = if len < data.len() { data.slice(0..len) } else { data };
        let unreserved = (len as u32).saturating_sub(reserved);
        let run = DataInRun { itt, offset, data, unreserved, done: 0, sn, segment, burst, status: None };
        link.tx.push_data_in(run, reserved);
    }

    /// Answers with GOOD after so many bytes. False, and nothing is done: more than a status is owed, or it has to wait.
    #[inline]
    pub(super) fn send_good_status(&mut self, tag: Tag, transferred: u64) -> bool {
        let Some(task) = self.table.get(tag) else { return false };
        let (TaskState::Live, TaskKind::Scsi(transfer)) = (&task.state, &task.kind) else { return false };
        if transfer.is_data_owed() || transfer.bidi_read_len > 0 || !self.fences.is_empty() {
            return false;
        }
        let residual = Residual::from_lengths(transfer.edtl, transferred);
        let (index, itt, exp_data_sn) = (task.link, task.itt, transfer.data_sn);
        self.remove_from_counts(tag);
        self.table.discard(tag);
        let tx = &mut self.links[index].tx;
        tx.push_status(itt, ScsiStatus::GOOD, exp_data_sn, residual);
        tx.note_queued_response(self.answer_stamp);
        true
    }

    /// The server answers.
    pub(super) fn handle_response(&mut self, now: Time, tag: Tag, response: Response) {
        if let Response::Scsi(result) = &response
            && is_good_status(result)
            && self.send_good_status(tag, result.transferred)
        {
            return;
        }
        let Some(task) = self.table.get_mut(tag) else { return };
        match (&mut task.state, &task.kind) {
            (TaskState::Live, TaskKind::Scsi(_)) => {
                task.answer_stamp = self.answer_stamp;
                let answer = Answer::from_response(response).unwrap_or(Answer::Failure);
                if task.is_data_owed() {
                    task.state = TaskState::Answered(Box::new(answer));
                    if let Some(transfer) = task.transfer_mut() {
                        transfer.drop_memory();
                        self.carried.remove(tag);
                    }
                } else {
                    self.answer_in_order(now, tag, answer);
                }
            }
            (TaskState::Live, TaskKind::Tmf(function, referenced)) => {
                let (function, referenced) = (*function, *referenced);
                let code = match response {
                    Response::Task(code) => code,
                    Response::Scsi(_) | Response::TargetFailure | Response::Targets(_) => {
                        TmfResponseCode::REJECTED
                    }
                };
                let code =
                    referenced.map_or(code, |named| self.referenced_task_answer(named, function, code));
                self.answer_task_management(now, tag, function, code);
            }
            (TaskState::Live, TaskKind::Text) => {
                let records = match response {
                    Response::Targets(records) => records,
                    Response::Scsi(_) | Response::TargetFailure | Response::Task(_) => Box::default(),
                };
                if let Some(task) = self.remove(tag) {
                    let fresh = self.ttts.next_tag();
                    self.links[task.link].answer_send_targets(records, self.params.discovery, fresh);
                }
            }
            (TaskState::Terminating { acked, .. }, _) => {
                *acked = true;
                self.finish_task(now, tag);
            }
            (TaskState::Held | TaskState::Invalid(_) | TaskState::Withdrawn | TaskState::Answered(_), _) => {}
        }
    }

    /// The server lets go of a task without an answer.
    pub(super) fn end_task_without_response(&mut self, now: Time, tag: Tag) {
        let Some(task) = self.table.get_mut(tag) else { return };
        match &mut task.state {
            TaskState::Live => self.end_task_silently(tag),
            TaskState::Terminating { acked, .. } => {
                *acked = true;
                self.finish_task(now, tag);
            }
            TaskState::Held | TaskState::Invalid(_) | TaskState::Withdrawn | TaskState::Answered(_) => {}
        }
    }

    /// What a function on one task comes to, as the initiator sees that task: the server may have answered
    /// it, and the answer be withheld still. It must not follow the function's.
    fn referenced_task_answer(
        &mut self,
        named: Tag,
        function: TmfFunction,
        code: TmfResponseCode,
    ) -> TmfResponseCode {
        let withheld = |task: &Task| matches!(task.state, TaskState::Answered(_));
        if !self.table.get(named).is_some_and(withheld) {
            return code;
        }
        if function == TmfFunction::ABORT_TASK {
            self.end_task_silently(named);
            TmfResponseCode::COMPLETE
        } else {
            TmfResponseCode::SUCCEEDED
        }
    }

    fn answer_task_management(
        &mut self,
        now: Time,
        tag: Tag,
        function: TmfFunction,
        response: TmfResponseCode,
    ) {
        let answer = Answer::Function(response);
        if response != TmfResponseCode::COMPLETE || !ends_unnamed_tasks(function) {
            if let Some(task) = self.remove(tag) {
                self.send_answer(task, answer);
            }
            return;
        }
        let Some(lun) = self.table.get(tag).map(|task| function.uses_lun().then_some(task.lun)) else {
            return;
        };
        // No answer of an affected task may follow (RFC 7143 §4.2.3.3): not even a withheld one.
        let affected = |task: &Task| {
            let withheld =
                matches!(task.state, TaskState::Answered(_)) && matches!(task.kind, TaskKind::Scsi(_));
            withheld && lun.is_none_or(|lun| task.lun == lun)
        };
        let gone: Vec<Tag> =
            self.table.iter().filter(|(_, task)| affected(task)).map(|(tag, _)| tag).collect();
        gone.into_iter().for_each(|tag| self.end_task_silently(tag));
        self.fence_answer(now, tag, answer, lun);
    }

    /// Ends a task that waits for nothing more.
    pub(super) fn finish_task(&mut self, now: Time, tag: Tag) {
        let Some(task) = self.table.get(tag) else { return };
        match &task.state {
            TaskState::Terminating { how: Termination::Silent, acked: true } => self.end_task_silently(tag),
            TaskState::Terminating { how: Termination::Sense(sense), acked: true }
                if !task.is_data_owed() =>
            {
                let result = ScsiResult::check_condition(&sense.to_sense_data(), 0);
                self.answer_in_order(now, tag, Answer::Result(result));
            }
            TaskState::Answered(_) if !task.is_data_owed() => {
                let Some(task) = self.table.get_mut(tag) else { return };
                if let TaskState::Answered(answer) = std::mem::replace(&mut task.state, TaskState::Live) {
                    self.answer_in_order(now, tag, *answer);
                }
            }
            TaskState::Held
            | TaskState::Invalid(_)
            | TaskState::Live
            | TaskState::Withdrawn
            | TaskState::Terminating { .. }
            | TaskState::Answered(_) => {}
        }
    }

    /// A task is to end without the server's answer.
    pub(super) fn terminate_task(&mut self, now: Time, tag: Tag, how: Termination) {
        let Some(task) = self.table.get_mut(tag) else { return };
        if let TaskKind::Scsi(transfer) = &mut task.kind {
            transfer.drop_memory();
            self.carried.remove(tag);
        }
        match &mut task.state {
            TaskState::Live => {
                task.state = TaskState::Terminating { how, acked: false };
                self.events.push_back(TargetEvent::Aborted { tag });
            }
            TaskState::Held | TaskState::Invalid(_) | TaskState::Answered(_) => match how {
                Termination::Silent => self.end_task_silently(tag),
                Termination::Sense(sense) if matches!(task.state, TaskState::Held) => {
                    task.state = TaskState::Invalid(sense)
                }
                Termination::Sense(_) => {}
            },
            // The server has let go of it.
            TaskState::Withdrawn => {
                task.state = TaskState::Terminating { how, acked: true };
                self.finish_task(now, tag);
            }
            TaskState::Terminating { how: before, .. } => {
                if how == Termination::Silent {
                    *before = how;
                }
                self.finish_task(now, tag);
            }
        }
    }

    pub(super) fn terminate_link_tasks(&mut self, now: Time, index: LinkIndex) {
        let tags: Vec<Tag> =
            self.table.iter().filter(|(_, task)| task.link == index).map(|(tag, _)| tag).collect();
        tags.into_iter().for_each(|tag| self.terminate_task(now, tag, Termination::Silent));
    }

    /// Ends a task with no word; data that the peer still sends for it is skipped.
    pub(super) fn end_task_silently(&mut self, tag: Tag) {
        let was_closed = self.window.is_closed();
        let Some(task) = self.remove(tag) else { return };
        if task.is_data_owed() && self.links[task.link].is_open() {
            self.abandoned.insert(task.itt, task.link);
        }
        if was_closed {
            // Nothing that is sent for this task tells of the open window.
            self.window.opened = true;
        }
    }

    pub(super) fn send_answer(&mut self, task: Task, answer: Answer) {
        if let Answer::Function(response) = answer {
            return self.links[task.link].tx.push(OutgoingPdu::Tmf { itt: task.itt, response });
        }
        let TaskKind::Scsi(transfer) = task.kind else { return };
        let link = &mut self.links[task.link];
        let (itt, exp_data_sn) = (task.itt, transfer.data_sn);
        let transferred = match &answer {
            Answer::Result(result) => result.transferred,
            Answer::Failure | Answer::Function(_) => 0,
        };
        let residual = Residual::from_lengths(transfer.edtl, transferred);
        let status = match &answer {
            Answer::Result(result) if is_status_only(&transfer, result) => Some(result.status),
            Answer::Result(_) | Answer::Failure | Answer::Function(_) => None,
        };
        match status {
            Some(status @ ScsiStatus::GOOD) => link.tx.push_status(itt, status, exp_data_sn, residual),
            Some(status @ ScsiStatus::CONDITION_MET) if link.tx.last_queued_data_in(itt).is_some() => {
                link.tx.push_status(itt, status, exp_data_sn, residual);
            }
            _other => link.tx.push(OutgoingPdu::Scsi(Box::new(FullResponse {
                itt,
                answer,
                exp_data_sn,
                residual,
                bidi_residual: transfer.bidi_read_len,
                with_qualifier: self.params.protocol_level >= 2,
            }))),
        }
        link.tx.note_queued_response(task.answer_stamp);
    }

    /// Sends a task's answer, or keeps it with the task while a fence stands, or until it is through its
    /// own. Nothing is owed for the task any more.
    pub(super) fn answer_in_order(&mut self, now: Time, tag: Tag, answer: Answer) {
        let Some(task) = self.table.get_mut(tag) else { return };
        let lun = task.lun;
        let fences = matches!(&answer, Answer::Result(result) if result.fence);
        if self.fences.holds_unit(lun) {
            self.keep_answer(tag, answer);
        } else if fences && self.needs_fence() {
            self.fence_answer(now, tag, answer, Some(lun));
        } else if let Some(task) = self.remove(tag) {
            self.send_answer(task, answer);
        }
    }

    /// Keeps a task's answer until it is through the fence; `lun`: the unit whose responses it orders.
    pub(super) fn fence_answer(&mut self, now: Time, tag: Tag, answer: Answer, lun: Option<Lun>) {
        self.keep_answer(tag, answer);
        self.fences.push(tag, lun);
        self.step_fences(now);
    }

    fn keep_answer(&mut self, tag: Tag, answer: Answer) {
        let Some(task) = self.table.get_mut(tag) else { return };
        task.state = TaskState::Answered(Box::new(answer));
        if let Some(transfer) = task.transfer_mut() {
            transfer.drop_memory();
            self.carried.remove(tag);
        }
    }

    /// Whether responses can overtake each other.
    fn needs_fence(&self) -> bool {
        self.links.iter().filter(|link| link.is_open()).count() > 1
    }

    /// Brings fences forward; ends when the first waits for an acknowledgment.
    pub(super) fn step_fences(&mut self, now: Time) {
        while let Some(mut fence) = self.fences.take_first() {
            self.step_fence(now, &mut fence);
            if !matches!(fence.state, FenceState::Over) {
                self.fences.put_back_first(fence);
                return;
            }
            self.release_fenced(now);
        }
    }

    fn step_fence(&mut self, now: Time, fence: &mut FencedResponse) {
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
                    let mark = (index, self.links[index].tx.exp_stat_sn_after_queue());
                    if self.links[index].is_open() && !self.is_acknowledged(mark) {
                        marks.push(mark);
                        self.send_ping(now, index);
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
                        let mark = (index, self.links[index].tx.exp_stat_sn_after_queue());
                        self.send_ping(now, index);
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
    fn release_fenced(&mut self, now: Time) {
        let kept = |task: &Task| matches!(task.state, TaskState::Answered(_)) && !task.is_data_owed();
        let tags: Vec<Tag> = self.table.iter().filter(|(_, task)| kept(task)).map(|(tag, _)| tag).collect();
        for tag in tags {
            if !self.fences.contains_task(tag) {
                self.finish_task(now, tag);
            }
        }
    }
}

/// Whether a result is a status and nothing else.
fn is_status_only(transfer: &Transfer, result: &ScsiResult) -> bool {
    result.sense.is_empty() && result.qualifier == 0 && transfer.bidi_read_len == 0
}

/// Whether a result is GOOD and nothing else.
#[inline]
fn is_good_status(result: &ScsiResult) -> bool {
    result.status == ScsiStatus::GOOD && !result.fence && result.sense.is_empty() && result.qualifier == 0
}
