//! Controllers that other controllers are asked to reset (Cross-Controller Reset; NVMe Base 2.3 §8.3.3).
//!
//! A reset ends the association. It is complete when the controller is gone: then all commands of all its queues have
//! ended, and none can reach a medium any more. A controller that is not here any more has been gone for as long.
//!
//! Bounds: [`RESETS_MAX`] commands of a controller wait, and [`WAITERS_MAX`] answers of a shard.

use std::collections::VecDeque;

use buf::Entropy;
use nvme::ControllerInstance;
use volume::ShardId;

use super::Controllers;
use crate::server::Server;
use crate::step::{ControllerEnd, ControllerResetAnswer, ControllerResetRequest, ControllerStep, Step};

/// How many resets of others a controller has under way at most (CCRL).
pub(crate) const RESETS_MAX: u8 = 8;

/// How many answers wait for the ends of a shard's controllers at most.
const WAITERS_MAX: usize = 256;

/// Who waits for the end of a controller.
#[derive(Debug)]
pub(crate) struct ResetWaiter {
    cntlid: u16,
    to: ShardId,
    id: u64,
}

/// How a new controller is named. Neither number is zero: that would say that there is none.
pub(super) fn new_instance(entropy: &mut Entropy, cntlid: u16, association: u64) -> ControllerInstance {
    ControllerInstance {
        cntlid,
        uniquifier: (association % 255) as u8 + 1,
        random_number: entropy.next_u64().max(1),
    }
}

impl Controllers {
    /// A controller is gone.
    pub(super) fn answer_reset_waiters(&mut self, steps: &mut VecDeque<Step>, cntlid: u16) {
        let answered = self.resets.extract_if(.., |waiter| waiter.cntlid == cntlid);
        steps.extend(answered.map(|ResetWaiter { to, id, .. }| answer(to, id, ControllerResetAnswer::Gone)));
    }
}

fn answer(to: ShardId, id: u64, answer: ControllerResetAnswer) -> Step {
    Step::Other(ControllerStep::AnswerReset { to, id, answer })
}

impl Server {
    /// A controller of some shard (`to`) was asked to reset another one ([`ControllerStep::ResetController`]). If it is
    /// one of this shard, it ends. [`ControllerStep::AnswerReset`] follows, once nothing of it can run any more.
    pub fn reset_controller(&mut self, (to, id): (ShardId, u64), request: &ControllerResetRequest) {
        let steps = &mut self.context.steps;
        let cntlid = request.instance.cntlid;
        let here = self.controllers.find(cntlid).filter(|here| here.instance == request.instance);
        let Some(controller) = here else {
            return steps.push_back(answer(to, id, ControllerResetAnswer::Gone));
        };
        let spec = &controller.spec;
        if spec.subsystem.nqn != request.subsystem || spec.host != request.host || controller.is_discovery() {
            return steps.push_back(answer(to, id, ControllerResetAnswer::NotPermitted));
        }
        if self.controllers.resets.len() >= WAITERS_MAX {
            return steps.push_back(answer(to, id, ControllerResetAnswer::Busy));
        }
        self.controllers.resets.push(ResetWaiter { cntlid, to, id });
        self.controllers.end_association(steps, cntlid, ControllerEnd::CrossControllerReset);
    }
}
