//! Abort (NVMe Base §5.1): a command of any queue of the controller ends with Command Abort Requested, and
//! Abort is answered after that. If the command no longer exists, Abort is answered with bit 0 of dword 0
//! set.

use std::collections::VecDeque;

use nvme::{Completion, Status};

use super::{AdminWait, Controller, WaitingCommand};
use crate::queue_message::{ControllerEvent, QueueMessage};
use crate::step::{CommandKey, ControllerStep, Step};

/// How many aborts wait at a time (ACL + 1).
pub(crate) const ABORTS_MAX: usize = 8;

/// Dword 0 if nothing was aborted.
const NOT_ABORTED: u64 = 1;

impl Controller {
    /// The host asks for it. `Ok(None)`: the answer follows.
    pub(crate) fn start_abort(
        &mut self,
        steps: &mut VecDeque<Step>,
        key: CommandKey,
        cid: u16,
        argument: u32,
    ) -> Result<Option<Completion>, Status> {
        let aborts = |waiting: &&WaitingCommand| matches!(waiting.on, AdminWait::Abort { .. });
        if self.waiting.iter().filter(aborts).count() >= ABORTS_MAX {
            return Err(Status::ABORT_LIMIT_EXCEEDED);
        }
        let (qid, victim) = (argument as u16, (argument >> 16) as u16);
        if qid == 0 {
            let aborted = self.take_abortable(victim);
            let done = aborted.is_some();
            if let Some(waiting) = aborted {
                let completion = Status::ABORT_REQUESTED.into();
                steps.push_back(Step::Respond { command: waiting.key, reply: completion });
            }
            return Ok(Some(abort_completion(done)));
        }
        let Some(member) =
            self.members.iter().find(|member| member.qid == qid && member.open && member.proven)
        else {
            return Ok(Some(abort_completion(false)));
        };
        let (to, queue_slot) = (member.shard, member.queue_slot);
        // Its queue slot rides along, so that its end answers for it.
        let ticket = (self.next_ticket() & ((1 << 48) - 1)) | u64::from(queue_slot) << 48;
        self.waiting.push(WaitingCommand { key, cid, on: AdminWait::Abort { ticket } });
        let message = QueueMessage {
            cntlid: self.spec.cntlid,
            association: self.association,
            queue_slot,
            event: ControllerEvent::Abort { cid: victim, ticket },
        };
        steps.push_back(Step::Other(ControllerStep::QueueMessage { to, message }));
        Ok(None)
    }

    /// A queue has answered.
    pub(super) fn handle_abort_answer(&mut self, steps: &mut VecDeque<Step>, ticket: u64, aborted: bool) {
        let asked = |waiting: &WaitingCommand| matches!(waiting.on, AdminWait::Abort { ticket: asked } if asked == ticket);
        if let Some(at) = self.waiting.iter().position(asked) {
            let command = self.waiting.remove(at).key;
            steps.push_back(Step::Respond { command, reply: abort_completion(aborted) });
        }
    }

    /// An admin command of this identifier that can be aborted. A volume's home cannot be stopped,
    /// and an Abort is not aborted.
    fn take_abortable(&mut self, cid: u16) -> Option<WaitingCommand> {
        let can = |waiting: &WaitingCommand| {
            let stoppable = matches!(
                waiting.on,
                AdminWait::Event
                    | AdminWait::Feature(_)
                    | AdminWait::Reports { .. }
                    | AdminWait::ControllerList { .. }
                    | AdminWait::Reset { .. }
                    | AdminWait::Memory(_)
                    | AdminWait::MemoryForPage(_)
                    | AdminWait::MemoryForList(..)
            );
            waiting.cid == cid && stoppable
        };
        let at = self.waiting.iter().position(can)?;
        Some(self.waiting.remove(at))
    }
}

fn abort_completion(aborted: bool) -> Completion {
    Completion { result: if aborted { 0 } else { NOT_ABORTED }, status: Status::SUCCESS }
}
