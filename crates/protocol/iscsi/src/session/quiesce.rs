//! A session that comes to rest, so that another process can go on with it.
//!
//! Quiesced, it receives and parses nothing; what executes is answered and sent. A command that has had no
//! effect yet (it is queued, or waits for its data) is *withdrawn*: the server gives it back by value, as it got it.
//! When the session goes on, here or elsewhere, it is announced again, and the data that came for it is placed
//! again.
//!
//! Invariant: a command is withdrawn only if the initiator has seen nothing of it but R2Ts, and the server has none
//! of its data.

use super::TargetSession;
use super::request::{Request, ScsiCommand};
use super::task::{TaskKind, TaskState};
use super::tasks::SessionTasks;
use crate::wire::Sn;
use buf::Cx;
use stream::{LinkNumber, SendOp, Tag, TargetEvent};

impl TargetSession {
    /// Receives and parses nothing more until [`resume`](Self::resume). Receives that are out are to be cancelled.
    pub fn quiesce(&mut self) {
        self.quiesced = true;
    }

    /// Goes on after [`quiesce`](Self::quiesce): what was withdrawn is announced again. The caller lets it
    /// [resume parsing](stream::Connection::resume_parsing).
    pub fn resume(&mut self) {
        self.quiesced = false;
        self.tasks.announce_withdrawn();
    }

    /// The server gives a command back that has had no effect: it lets go of its task. Where it cannot be withdrawn
    /// it stays with the server, to be executed to its end: the session is not quiesced, the server has some of its
    /// data, the initiator has, or the task is ending.
    pub fn withdraw(&mut self, tag: Tag, command: ScsiCommand) -> Result<(), ScsiCommand> {
        if !self.quiesced {
            return Err(command);
        }
        self.tasks.withdraw(tag, command)
    }

    /// A batch comes back of which the socket took only the first `written` bytes, because sending was stopped. The
    /// rest goes out before anything else.
    pub fn handle_send_cut(&mut self, cx: &mut Cx<'_>, link: LinkNumber, op: SendOp, written: usize) {
        if let Some(link) = self.tasks.links.get_mut(link) {
            link.tx.keep_unsent(op, written);
            if !link.is_open_or_sending() {
                drop(link.tx.transmit_queue.take_unsent());
            }
        }
        self.finish_closing(cx.now);
    }
}

impl SessionTasks {
    fn withdraw(&mut self, tag: Tag, command: ScsiCommand) -> Result<(), ScsiCommand> {
        let Some(task) = self.table.get_mut(tag) else { return Err(command) };
        let (TaskState::Live, TaskKind::Scsi(transfer)) = (&task.state, &mut task.kind) else {
            return Err(command);
        };
        if !transfer.carry_received_data(tag, &mut self.carried) {
            return Err(command);
        }
        task.state = TaskState::Withdrawn;
        let (read, write) =
            (std::mem::take(&mut task.read_reserved), std::mem::take(&mut task.write_reserved));
        let link = &mut self.links[task.link];
        link.tx.release_send_window(read);
        link.write_bytes = link.write_bytes.saturating_sub(u64::from(write));
        self.withdrawn.push((tag, command));
        Ok(())
    }

    /// Announces what was withdrawn: first what the server had begun with, so that it finds memory in the order in
    /// which it found it before; each part in the order of commands.
    pub(super) fn announce_withdrawn(&mut self) {
        let mut withdrawn = std::mem::take(&mut self.withdrawn);
        let exp = self.window.exp_cmd_sn();
        withdrawn.sort_by_key(|(tag, _)| self.announcement_order(*tag, exp));
        for (tag, command) in withdrawn {
            let Some(task) = self.table.get_mut(tag) else { continue };
            if !matches!(task.state, TaskState::Withdrawn) {
                continue;
            }
            task.state = TaskState::Live;
            let data_out = if command.write { command.edtl } else { 0 };
            self.events.push_back(TargetEvent::Command { tag, command: Request::Scsi(command), data_out });
        }
    }

    fn announcement_order(&self, tag: Tag, exp: Sn) -> (bool, u32) {
        let Some(task) = self.table.get(tag) else { return (true, 0) };
        let begun = match &task.kind {
            // Any of its data has come, or was asked for.
            TaskKind::Scsi(transfer) => self.carried.get(tag).is_some() || transfer.is_solicited(),
            TaskKind::Tmf(..) | TaskKind::Text => false,
        };
        (!begun, u32::MAX - exp.steps_since(task.cmd_sn))
    }
}
