//! In-band authentication of a queue (NVMe Base §8.3.5): its commands, its deadline, and what is served
//! meanwhile.
//!
//! Invariant: a queue whose host has not authenticated serves Authentication Send and Receive, one at a time,
//! and nothing else. Long computations leave by [`ControllerStep::Compute`] and come back by [`Server::handle_computed`],
//! under a number that no other computation of this shard has.

use buf::{Cx, Sg};
use nvme::auth::{
    AuthFailure, AuthOutcome, AuthState, ControllerProgress, DhGroup, DhResult, Hash, MESSAGE_LEN_MAX,
    transfer_len,
};
use nvme::feature::FeatureId;
use nvme::{Completion, FabricsType, Opcode, Sqe, Status};

use super::copy_to_pool;
use crate::authentication::{AuthWait, QueueAuthentication};
use crate::controller::ControllerTimer;
use crate::queue_message::{CommandFailure, ControllerEvent};
use crate::server::Server;
use crate::step::{CommandKey, ComputeId, ControllerEnd, ControllerStep, QueueKey, Step};

/// A message is given with zeroes behind it up to the room there is, since a host may count bytes; up to
/// this much, which no message reaches.
const AUTH_RECEIVE_LEN_MAX: u32 = 4096;

/// Whether it is a command of authentication.
pub(crate) fn is_auth_command(sqe: &Sqe) -> bool {
    let kinds = [FabricsType::AUTHENTICATION_SEND, FabricsType::AUTHENTICATION_RECEIVE];
    sqe.opcode == Opcode::FABRICS && kinds.contains(&sqe.fabrics_type())
}

/// Whether an admin command is served on a queue whose host has still to come again over TLS. Linux's host brings the
/// controller up first: it enables it, and reads what it is. Nothing that changes more than this controller is served
/// where somebody in between could have sent it.
fn may_go_before_tls(sqe: &Sqe) -> bool {
    match sqe.opcode {
        Opcode::FABRICS
        | Opcode::GET_LOG_PAGE
        | Opcode::IDENTIFY
        | Opcode::GET_FEATURES
        | Opcode::ABORT
        | Opcode::ASYNC_EVENT_REQUEST
        | Opcode::KEEP_ALIVE => true,
        Opcode::SET_FEATURES => {
            let own = [
                FeatureId::NUMBER_OF_QUEUES,
                FeatureId::ASYNC_EVENT_CONFIGURATION,
                FeatureId::KEEP_ALIVE_TIMER,
                FeatureId::HOST_BEHAVIOR,
            ];
            own.contains(&FeatureId(sqe.cdw(10) as u8))
        }
        _ => false,
    }
}

impl Server {
    /// Whether the host has still to prove to this queue who it is.
    pub fn must_authenticate(&self, key: QueueKey) -> bool {
        self.context.queues.get(key).guard.as_ref().is_some_and(|guard| !guard.is_authenticated())
    }

    /// By which hash and group the host of a queue has authenticated; `None`: it has not, or need not.
    pub fn dhchap_parameters(&self, key: QueueKey) -> Option<(Hash, DhGroup)> {
        self.context.queues.get(key).guard.as_ref().and_then(|guard| guard.machine.negotiated_method())
    }

    /// A queue has opened that must authenticate: it has until its deadline.
    pub(crate) fn start_authentication(&mut self, key: QueueKey) {
        let now = self.context.now;
        if let Some(guard) = &mut self.context.queues.get_mut(key).guard {
            guard.update_deadline(now);
        }
        self.schedule_queue_deadline(key);
    }

    /// A command has come to a queue with a guard: whether it was dealt with here.
    pub(crate) fn handle_auth_or_refuse(
        &mut self,
        cx: &mut Cx<'_>,
        key: CommandKey,
        sqe: &Sqe,
        data_out: u32,
    ) -> bool {
        let Some(guard) = &self.context.queues.get(key.queue).guard else { return false };
        if is_auth_command(sqe) {
            self.execute_auth_command(cx, key, sqe, data_out);
            return true;
        }
        let refused = match (guard.is_authenticated(), guard.machine.awaits_tls()) {
            (true, true) if !may_go_before_tls(sqe) => Status::OPERATION_DENIED,
            (true, _) => return false,
            (false, _) => Status::AUTHENTICATION_REQUIRED,
        };
        let cid = sqe.cid.get();
        self.complete_auth_command(key, cid, refused.with_do_not_retry().into());
        true
    }

    fn complete_auth_command(&mut self, command: CommandKey, cid: u16, completion: Completion) {
        if !completion.status.is_success() {
            let failure =
                CommandFailure { at: self.context.now, cid, status: completion.status, lba: 0, nsid: 0 };
            self.note_failure(command.queue, failure);
        }
        self.context.steps.push_back(Step::Respond { command, reply: completion });
    }

    fn execute_auth_command(&mut self, cx: &mut Cx<'_>, key: CommandKey, sqe: &Sqe, data_out: u32) {
        let cid = sqe.cid.get();
        let refused = match transfer_len(sqe) {
            Err(status) => status,
            Ok(_)
                if self
                    .context
                    .queues
                    .get(key.queue)
                    .guard
                    .as_ref()
                    .is_some_and(|guard| guard.waiting.is_some()) =>
            {
                Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry()
            }
            Ok(len) if sqe.fabrics_type() == FabricsType::AUTHENTICATION_RECEIVE => {
                return self.send_auth_message(cx, key, cid, len, sqe.dptr.length.get());
            }
            Ok(len) if len as usize > MESSAGE_LEN_MAX => Status::INVALID_FIELD.with_do_not_retry(),
            Ok(len) if len != data_out => Status::SGL_LENGTH_INVALID.with_do_not_retry(),
            Ok(len) => {
                if let Some(guard) = &mut self.context.queues.get_mut(key.queue).guard {
                    guard.waiting = Some((key, cid, AuthWait::Data));
                }
                return self.context.steps.push_back(Step::Receive {
                    command: key,
                    at: 0,
                    len,
                    volume: None,
                });
            }
        };
        self.complete_auth_command(key, cid, refused.into());
    }

    /// Authentication Receive.
    fn send_auth_message(&mut self, cx: &mut Cx<'_>, key: CommandKey, cid: u16, len: u32, room: u32) {
        let now = self.context.now;
        let Some(guard) = &mut self.context.queues.get_mut(key.queue).guard else { return };
        if room < len {
            return self.complete_auth_command(
                key,
                cid,
                Status::SGL_LENGTH_INVALID.with_do_not_retry().into(),
            );
        }
        let len = len.min(AUTH_RECEIVE_LEN_MAX);
        if !super::has_memory(cx.pool, len) {
            guard.waiting = Some((key, cid, AuthWait::Memory { len, room }));
            return self.context.await_memory(key, len);
        }
        let given = guard.machine.handle_receive(len).map(|mut given| {
            given.message.resize(len as usize, 0);
            given
        });
        guard.update_deadline(now);
        let (completion, outcome) = match given {
            Err(status) => (status.into(), AuthOutcome::End(nvme::auth::FailureExplanation::PAYLOAD)),
            Ok(given) => match copy_to_pool(cx.pool, &given.message) {
                Some(data) => {
                    self.context.steps.push_back(Step::Send { command: key, at: 0, data });
                    (Completion::SUCCESS, given.outcome)
                }
                // Memory was looked for before.
                None => {
                    let failed = nvme::auth::FailureExplanation::PAYLOAD;
                    (Status::COMMAND_INTERRUPTED.into(), AuthOutcome::End(failed))
                }
            },
        };
        self.complete_auth_command(key, cid, completion);
        match outcome {
            AuthOutcome::Continue => self.schedule_queue_deadline(key.queue),
            AuthOutcome::Authenticated => self.admit_host(key.queue),
            AuthOutcome::End(_) => self.reject_host(key.queue),
        }
    }

    /// There may be memory for an Authentication Receive. Whether it was one.
    pub(crate) fn retry_auth_receive(&mut self, cx: &mut Cx<'_>, key: CommandKey) -> bool {
        let Some(guard) = self.context.queues.find_mut(key.queue).and_then(|queue| queue.guard.as_mut())
        else {
            return false;
        };
        let waits = |(command, _, on): &mut (CommandKey, u16, AuthWait)| {
            *command == key && matches!(on, AuthWait::Memory { .. })
        };
        let Some((_, cid, on)) = guard.waiting.take_if(waits) else { return false };
        if let AuthWait::Memory { len, room } = on {
            self.send_auth_message(cx, key, cid, len, room);
        }
        true
    }

    /// The data of an Authentication Send is here. Whether it was one.
    pub(crate) fn handle_auth_data(&mut self, cx: &mut Cx<'_>, key: CommandKey, data: &Sg) -> bool {
        let Some(queue) = self.context.queues.find_mut(key.queue) else { return false };
        let Some(guard) = &mut queue.guard else { return false };
        let Some((_, cid, _)) =
            guard.waiting.take_if(|(command, _, on)| *command == key && *on == AuthWait::Data)
        else {
            return false;
        };
        let mut message = vec![0; data.len()];
        data.copy_to(0, &mut message);
        let entropy = &mut *cx.entropy;
        let progress = guard.machine.handle_send(&message, &mut |bytes| entropy.fill(bytes));
        self.apply_auth_progress(key, cid, progress);
        true
    }

    /// What [`ControllerStep::Compute`](crate::ControllerStep::Compute) gave out is done.
    pub fn handle_computed(&mut self, cx: &mut Cx<'_>, id: ComputeId, outcome: DhResult) {
        self.context.now = cx.now;
        let Some(queue) = self.computing.remove(&id) else { return };
        let Some(guard) = self.context.queues.find_mut(queue).and_then(|queue| queue.guard.as_mut()) else {
            return;
        };
        let Some((key, cid, _)) = guard.waiting.take_if(|(_, _, on)| *on == AuthWait::Computation(id)) else {
            return;
        };
        let progress = guard.machine.handle_computed(outcome);
        self.apply_auth_progress(key, cid, progress);
    }

    /// What [`ControllerStep::Compute`](crate::ControllerStep::Compute) gave out is not done, since too much else waits: the queue ends, and its host may
    /// come again.
    pub fn handle_not_computed(&mut self, cx: &mut Cx<'_>, id: ComputeId) {
        self.context.now = cx.now;
        let Some(queue) = self.computing.remove(&id) else { return };
        let Some(guard) = self.context.queues.find_mut(queue).and_then(|queue| queue.guard.as_mut()) else {
            return;
        };
        let Some((key, cid, _)) = guard.waiting.take_if(|(_, _, on)| *on == AuthWait::Computation(id)) else {
            return;
        };
        // Nobody is to be blamed for what was not done.
        guard.cost = false;
        self.complete_auth_command(key, cid, Status::INTERNAL_ERROR.into());
        self.end_unauthenticated(key.queue, ControllerEnd::Overloaded);
    }

    fn apply_auth_progress(&mut self, key: CommandKey, cid: u16, progress: ControllerProgress) {
        let now = self.context.now;
        if let Some(guard) = &mut self.context.queues.get_mut(key.queue).guard {
            guard.update_deadline(now);
            if let Some((_, psk)) = guard.machine.take_psk() {
                let (queue, psk) = (key.queue, Box::new(psk));
                self.context.steps.push_back(Step::Other(ControllerStep::PskGenerated { queue, psk }));
            }
        }
        match progress {
            ControllerProgress::Answer => {
                self.complete_auth_command(key, cid, Completion::SUCCESS);
                self.schedule_queue_deadline(key.queue);
            }
            ControllerProgress::Compute(work) => {
                self.computations += 1;
                let id = ComputeId(self.computations);
                self.computing.insert(id, key.queue);
                if let Some(guard) = &mut self.context.queues.get_mut(key.queue).guard {
                    guard.waiting = Some((key, cid, AuthWait::Computation(id)));
                    guard.cost = true;
                }
                self.context.steps.push_back(Step::Other(ControllerStep::Compute {
                    queue: key.queue,
                    id,
                    work,
                }));
            }
            ControllerProgress::Authenticated => {
                self.complete_auth_command(key, cid, Completion::SUCCESS);
                self.admit_host(key.queue);
            }
            ControllerProgress::End(_) => {
                self.complete_auth_command(key, cid, Completion::SUCCESS);
                self.reject_host(key.queue);
            }
        }
    }

    /// The host has authenticated.
    fn admit_host(&mut self, key: QueueKey) {
        let now = self.context.now;
        let queue = self.context.queues.get_mut(key);
        if let Some(guard) = &mut queue.guard {
            guard.update_deadline(now);
            guard.proven = true;
        }
        self.schedule_queue_deadline(key);
        self.context.steps.push_back(Step::Other(ControllerStep::HostAuthenticated { queue: key }));
        if self.context.queues.get(key).spec.qid != 0 {
            self.context.send_to_controller(key, ControllerEvent::Proven);
        }
    }

    /// The host has failed to authenticate: the queue ends, and with it the association.
    pub(crate) fn reject_host(&mut self, key: QueueKey) {
        let guard = self.context.queues.get(key).guard.as_ref();
        let why = match guard.map_or(AuthFailure::Host, |guard| guard.machine.failure()) {
            AuthFailure::Host => ControllerEnd::Unauthenticated,
            AuthFailure::NoControllerKey => ControllerEnd::NoControllerKey,
            AuthFailure::RefusedByHost(explanation) => ControllerEnd::RefusedByHost(explanation),
        };
        self.end_unauthenticated(key, why);
    }

    fn end_unauthenticated(&mut self, key: QueueKey, why: ControllerEnd) {
        let spec = &self.context.queues.get(key).spec;
        if spec.qid == 0 {
            return self.controllers.end_association(&mut self.context.steps, spec.cntlid, why);
        }
        if !std::mem::replace(&mut self.context.queues.get_mut(key).end_requested, true) {
            self.context.steps.push_back(Step::Other(ControllerStep::EndQueue { queue: key }));
        }
    }

    /// A command of authentication that waits must end without an answer. Whether it was one.
    pub(crate) fn retire_auth_command(&mut self, key: CommandKey) -> bool {
        let Some(guard) = self.context.queues.find_mut(key.queue).and_then(|queue| queue.guard.as_mut())
        else {
            return false;
        };
        let Some((_, _, on)) = guard.waiting.take_if(|(command, _, _)| *command == key) else { return false };
        if let AuthWait::Computation(id) = on {
            self.discard_computation(id);
        }
        self.context.steps.push_back(Step::Retire { command: key });
        true
    }

    /// A queue with a guard closes: what waits there ends.
    pub(crate) fn close_authentication(&mut self, key: QueueKey) {
        let queue = self.context.queues.get_mut(key);
        let Some(QueueAuthentication { machine, waiting, proven, cost, .. }) = queue.guard.take() else {
            return;
        };
        // Of whom it is not proved that the queue is theirs, they cannot end an association by losing it.
        queue.ended |= !proven;
        // Who lets powers be computed and goes has failed as much as who sends a wrong answer; else it would be
        // the cheaper way to keep us busy.
        if machine.state() == AuthState::Failed || (cost && !proven) {
            self.context.steps.push_back(Step::Other(ControllerStep::AuthenticationFailed { queue: key }));
        }
        if let Some((command, _, on)) = waiting {
            if let AuthWait::Computation(id) = on {
                self.discard_computation(id);
            }
            self.context.steps.push_back(Step::Retire { command });
        }
        self.schedule_queue_deadline(key);
    }

    /// What was to be computed is of no use any more.
    fn discard_computation(&mut self, id: ComputeId) {
        if self.computing.remove(&id).is_some() {
            self.context.steps.push_back(Step::Other(ControllerStep::CancelCompute { id }));
        }
    }

    /// Puts a queue's deadline among the timers.
    fn schedule_queue_deadline(&mut self, key: QueueKey) {
        let queue = self.context.queues.get_mut(key);
        let deadline = queue.guard.as_ref().and_then(QueueAuthentication::deadline);
        let old = std::mem::replace(&mut queue.armed, deadline);
        self.controllers.move_timer(ControllerTimer::Queue(key), old, deadline);
    }
}
