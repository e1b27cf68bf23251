//! A queue that comes to rest, so that another process can go on with it.
//!
//! Quiesced, it receives and parses nothing; what executes is answered and sent. A command that has had no
//! effect yet (it is queued, waits for its data, or is a request for an event that has not come) is *withdrawn*:
//! the server gives it back by value, as it got it. When the queue goes on, here or elsewhere, it is announced
//! again, in the order of arrival, so that the halves of a fused pair stand next to each other.
//!
//! Invariant: a command is withdrawn only if the host has seen nothing of it but R2Ts, and the server has none of
//! its data.

use super::ControllerQueue;
use super::task::{DataSource, TaskState};
use nvme::Sqe;
use stream::{SendOp, Tag, TargetEvent};

impl ControllerQueue {
    /// Receives and parses nothing more until [`resume`](Self::resume). A receive that is out is to be cancelled.
    pub fn quiesce(&mut self) {
        self.role.quiesced = true;
    }

    /// Goes on after [`quiesce`](Self::quiesce): what was withdrawn is announced again. The caller lets it
    /// [resume parsing](stream::Connection::resume_parsing).
    pub fn resume(&mut self) {
        self.role.quiesced = false;
        self.announce_withdrawn();
    }

    /// The server gives a command back that has had no effect: it lets go of its task. Where it cannot be withdrawn
    /// it stays with the server, to be executed to its end: the queue is not quiesced, the server has some of its data,
    /// the host has, or the task is ending.
    pub fn withdraw(&mut self, tag: Tag, command: Sqe) -> Result<(), Sqe> {
        let stretch = self.stretch_of(tag);
        if !self.role.quiesced {
            return Err(command);
        }
        let Some((task, table)) = self.role.tasks.get_mut_with_carried(tag) else { return Err(command) };
        if !matches!(task.state, TaskState::Live) || !task.carry_received_data(tag, stretch, table) {
            return Err(command);
        }
        task.state = TaskState::Withdrawn;
        let (read, write) =
            (std::mem::take(&mut task.read_reserved), std::mem::take(&mut task.write_reserved));
        let tasks = &mut self.role.tasks;
        tasks.read_bytes = tasks.read_bytes.saturating_sub(u64::from(read));
        tasks.write_bytes = tasks.write_bytes.saturating_sub(u64::from(write));
        self.role.withdrawn.push((tag, command));
        Ok(())
    }

    /// A batch comes back of which the socket took only the first `written` bytes, because sending was stopped. The
    /// rest goes out before anything else. Not for a queue over TLS, whose records the peer counts.
    pub fn handle_send_cut(&mut self, op: SendOp, written: usize) {
        self.out.keep_unsent(op, written);
        if self.is_over() {
            drop(self.out.take_unsent());
        }
        self.finish_closing();
    }

    pub(super) fn announce_withdrawn(&mut self) {
        let mut withdrawn = std::mem::take(&mut self.role.withdrawn);
        let newest = self.role.arrivals;
        let age = |tag: Tag| self.role.tasks.get(tag).map_or(0, |task| newest.wrapping_sub(task.arrival));
        withdrawn.sort_by_key(|(tag, _)| std::cmp::Reverse(age(*tag)));
        for (tag, command) in withdrawn {
            let Some(task) = self.role.tasks.get_mut(tag) else { continue };
            if !matches!(task.state, TaskState::Withdrawn) {
                continue;
            }
            task.state = TaskState::Live;
            let data_out = match task.source {
                DataSource::Capsule | DataSource::Host => task.len,
                DataSource::None | DataSource::Server => 0,
            };
            self.events.push_back(TargetEvent::Command { tag, command, data_out });
        }
    }
}
