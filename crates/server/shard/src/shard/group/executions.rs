//! Commands that the group has the home of a volume execute: of hosts of other gateways, and of hosts that have waited for
//! an owner.
//!
//! They go through the same gate and the same owner object as those of hosts of this gateway, in the name of the requester
//! that sent them. So fences wait for them, and reservations bind them.
//!
//! Invariants: each has one answer. What another gateway says of lengths is checked before the gate sees it, and the memory
//! of a read was filled for it when its bytes go out.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use buf::{Cx, MemoryClass, Payload};
use endpoint::ShardId;
use group::{Answer, Command, ExecutionId, LinkPayload};
use volume::{
    Failure, Fault, IdSpace, Io, IoCompletion, IoId, Op, Outcome, Refusal, RequestId, Requester,
    UnservableReason, VolumeAnswer, VolumeId, VolumeRequest,
};

use crate::message::ToGateway;
use crate::shard::local_volumes::{LocalVolume, LocalVolumes};

/// Operations and requests of executions are numbered from here, in the shard's own space: those of the control plane, of
/// formats and about the ends of nexuses are below.
const EXECUTION_BASE: u64 = 3 << 60;
/// The most bytes that an execution brings or reads: a COMPARE AND WRITE of 1 MiB.
const PAYLOAD_MAX: usize = 2 << 20;

/// An operation that waits for memory.
#[derive(Debug)]
struct WaitingIo {
    volume: VolumeId,
    execution: ExecutionId,
    who: Requester,
    op: Op,
    payload: Option<LinkPayload>,
    /// Bytes of memory.
    len: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::shard) struct Executions {
    made: u64,
    running: HashMap<u64, (VolumeId, ExecutionId)>,
    waiting: VecDeque<WaitingIo>,
}

impl Executions {
    fn start(&mut self, volume: VolumeId, execution: ExecutionId) -> u64 {
        self.made += 1;
        let number = EXECUTION_BASE | self.made;
        self.running.insert(number, (volume, execution));
        number
    }

    /// Whether an operation of this volume waits for memory.
    pub(super) fn has_waiting_of(&self, volume: VolumeId) -> bool {
        self.waiting.iter().any(|waiting| waiting.volume == volume)
    }
}

fn refusal(refusal: Refusal) -> Answer<LinkPayload> {
    Answer::Io { result: Err(refusal.into()), payload: None }
}

/// How many bytes an operation brings, or reads (`true`). `None`: no such operation comes from another gateway.
fn payload_len(op: &Op, logical: u32) -> Option<(usize, bool)> {
    let bytes = |blocks: u64| usize::try_from(blocks.checked_mul(u64::from(logical))?).ok();
    let (len, is_read) = match op {
        Op::Read(span) => (bytes(span.blocks)?, true),
        Op::Write(span, _) | Op::WriteAtomic(span) | Op::Compare(span) | Op::Or(span) => {
            (bytes(span.blocks)?, false)
        }
        Op::CompareAndWrite(span) => (bytes(span.blocks.checked_mul(2)?)?, false),
        Op::WriteSame(_) => (logical as usize, false),
        Op::Flush | Op::WriteZeroes { .. } | Op::Unmap(_) | Op::Verify(_) | Op::Prefetch(_) => (0, false),
        Op::Extents(_) | Op::MarkBad(_) => (0, false),
        // None begins elsewhere ([`is_of_group`]).
        Op::Sanitize(_) => return None,
    };
    (len <= PAYLOAD_MAX).then_some((len, is_read))
}

/// Whether a request is one of hosts, or of the operator for the whole group.
fn is_of_group(request: &VolumeRequest) -> bool {
    match request {
        VolumeRequest::Reserve { .. }
        | VolumeRequest::SetAccess { .. }
        | VolumeRequest::WriteProtect(_)
        | VolumeRequest::WriteProtectByHost { .. }
        | VolumeRequest::HostSettings { .. }
        | VolumeRequest::PreventRemoval { .. } => true,
        VolumeRequest::Eject { .. }
        | VolumeRequest::Load { .. }
        | VolumeRequest::Stop
        | VolumeRequest::Start => true,
        VolumeRequest::Reset
        | VolumeRequest::ClearTasks { .. }
        | VolumeRequest::AbortTasks { .. }
        | VolumeRequest::NexusLost(_) => true,
        VolumeRequest::SetPreferred { .. } => true,
        VolumeRequest::SanitizeEnd { .. } | VolumeRequest::SanitizeForgive | VolumeRequest::Refresh => true,
        // If the other gateway were lost, nobody would end what it has begun, and the volume stayed closed.
        VolumeRequest::SanitizeStart { .. } | VolumeRequest::FormatStart { .. } => false,
        // What lies beneath is the business of each gateway, and marks are of gates.
        VolumeRequest::Resize(_) | VolumeRequest::BackingReadOnly(_) | VolumeRequest::Remove => false,
        VolumeRequest::MarkBad { .. } | VolumeRequest::ClearBad { .. } | VolumeRequest::Withdraw => false,
    }
}

impl LocalVolumes {
    /// Executes a command; its answer goes to the group.
    pub(super) fn execute(
        &mut self,
        cx: &mut Cx<'_>,
        volume: VolumeId,
        execution: ExecutionId,
        who: Requester,
        command: Command<LinkPayload>,
    ) {
        let shard = self.shard_id();
        let Some(local) = self.get_mut(volume).filter(|local| local.home.is_some()) else {
            // Its record is damaged.
            let unservable = Refusal::NotReady(UnservableReason::Stopped);
            let answer = match command {
                Command::Io { .. } => refusal(unservable),
                Command::Change(_) => Answer::Change(Err(unservable)),
            };
            return self.push_executed(execution, answer);
        };
        match command {
            Command::Change(request) if !is_of_group(&request) => {
                self.push_executed(execution, Answer::Change(Err(Refusal::Unsupported)));
            }
            Command::Change(request) => {
                let id = RequestId::in_space(IdSpace::Shard, self.executions.start(volume, execution));
                self.request_of_execution(cx, volume, shard, id, request);
            }
            Command::Io { op, payload } => match check_io(local, &who, &op, payload.as_ref()) {
                Err(failure) => {
                    self.push_executed(execution, Answer::Io { result: Err(failure), payload: None });
                }
                Ok(len) => {
                    let io = WaitingIo { volume, execution, who, op, payload, len };
                    self.executions.waiting.push_back(io);
                    self.start_waiting_executions(cx);
                }
            },
        }
    }

    fn request_of_execution(
        &mut self,
        cx: &mut Cx<'_>,
        volume: VolumeId,
        from: ShardId,
        id: RequestId,
        request: VolumeRequest,
    ) {
        if let Some(answer) = self.request_from_owner(cx, volume, from, id, request) {
            self.handle_execution_answer(&answer);
        }
    }

    /// Starts operations for which there is memory, in order; true if one started.
    pub(super) fn start_waiting_executions(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut any = false;
        while let Some(next) = self.executions.waiting.pop_front() {
            let Some(payload) = memory_for(cx, &next) else {
                self.executions.waiting.push_front(next);
                break;
            };
            any = true;
            let WaitingIo { volume, execution, who, op, .. } = next;
            let id = IoId::in_space(IdSpace::Shard, self.executions.start(volume, execution));
            self.submit_here(cx, &who, volume, Io { id, epoch: volume::Epoch::default(), op, payload });
        }
        any
    }

    /// An execution is not wanted any more: one that waits for memory has ended.
    pub(super) fn cancel_execution(&mut self, volume: VolumeId, execution: ExecutionId) {
        if let Some(at) = self.executions.waiting.iter().position(|one| one.execution == execution) {
            self.executions.waiting.remove(at);
            let answer = Answer::Io { result: Err(Fault::Aborted.into()), payload: None };
            self.mark_pending(volume);
            return self.push_executed(execution, answer);
        }
        let found = self.executions.running.iter().find(|(_, (_, known))| *known == execution);
        if let Some(number) = found.map(|(number, _)| *number)
            && let Some(local) = self.get_mut(volume)
        {
            local.gate.cancel(IoId::in_space(IdSpace::Shard, number));
            self.mark_pending(volume);
        }
    }

    /// Whether an operation of the shard's own is of an execution.
    pub(in crate::shard) fn is_execution(&self, id: IoId) -> bool {
        self.executions.running.contains_key(&(id.0 & !IoId::in_space(IdSpace::Shard, 0).0))
    }

    /// The operation of an execution has ended.
    pub(in crate::shard) fn handle_execution_done(&mut self, done: IoCompletion) {
        let number = done.id.0 & !IoId::in_space(IdSpace::Shard, 0).0;
        let Some((_, execution)) = self.executions.running.remove(&number) else { return };
        let payload = match (&done.result, done.payload) {
            (Ok(Outcome::Complete), Payload::In(memory)) => {
                let data = memory.freeze();
                let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, data.len()).collect();
                if let Some(bytes) = Arc::get_mut(&mut bytes) {
                    data.copy_to(0, bytes);
                }
                Some(LinkPayload(bytes))
            }
            (Ok(_) | Err(_), _) => None,
        };
        self.push_executed(execution, Answer::Io { result: done.result, payload });
    }

    /// The owner object has answered; true if it was for an execution.
    pub(in crate::shard) fn handle_execution_answer(&mut self, answer: &VolumeAnswer) -> bool {
        let number = answer.id.0 & !RequestId::in_space(IdSpace::Shard, 0).0;
        let Some((_, execution)) = self.executions.running.remove(&number) else { return false };
        self.push_executed(execution, Answer::Change(answer.result));
        true
    }

    fn push_executed(&mut self, execution: ExecutionId, answer: Answer<LinkPayload>) {
        self.submitted.out.push_back(ToGateway::Executed { execution, answer });
    }
}

/// Checks an operation; how many bytes of memory it needs.
fn check_io(
    local: &LocalVolume,
    who: &Requester,
    op: &Op,
    payload: Option<&LinkPayload>,
) -> Result<usize, Failure> {
    local.gate.admit(who, op)?;
    let Some((len, is_read)) = payload_len(op, local.gate.view().geometry.logical) else {
        return Err(Refusal::Unsupported.into());
    };
    let brought = payload.map_or(0, |payload| payload.0.len());
    let fits = if is_read { brought == 0 } else { brought == len };
    // The other gateway is to blame, and its host is told of a fault of ours.
    if fits { Ok(len) } else { Err(Fault::Internal.into()) }
}

/// Memory for an operation, with what it brings; `None`: there is none now.
fn memory_for(cx: &mut Cx<'_>, io: &WaitingIo) -> Option<Payload> {
    if io.len == 0 {
        return Some(Payload::None);
    }
    let mut memory = cx.pool.take_sg(MemoryClass::Solicited, io.len)?;
    Some(match &io.payload {
        Some(brought) => {
            memory.copy_from(0, &brought.0);
            Payload::Out(memory.freeze())
        }
        None => Payload::In(memory),
    })
}

#[cfg(test)]
mod tests {
    use volume::{Durability, Span};

    use super::*;

    #[test]
    fn lengths_that_another_gateway_names_are_checked() {
        let span = |blocks| Span { lba: 0, blocks };
        let len = |op: Op| payload_len(&op, 512);
        assert_eq!(len(Op::Read(span(8))), Some((4096, true)));
        assert_eq!(len(Op::Write(span(4096), Durability::Cached)), Some((2 << 20, false)));
        assert_eq!(len(Op::Write(span(4097), Durability::Cached)), None);
        assert_eq!(len(Op::CompareAndWrite(span(2048))), Some((2 << 20, false)));
        assert_eq!(len(Op::CompareAndWrite(span(2049))), None);
        assert_eq!(len(Op::WriteSame(span(u64::MAX))), Some((512, false)));
        for blocks in [u64::MAX, u64::MAX / 512 + 1, 1 << 60] {
            assert_eq!(len(Op::Read(span(blocks))), None);
            assert_eq!(len(Op::CompareAndWrite(span(blocks))), None);
        }
    }

    #[test]
    fn what_concerns_one_gateway_is_not_taken_from_another() {
        for request in [VolumeRequest::Remove, VolumeRequest::BackingReadOnly(true), VolumeRequest::Withdraw]
        {
            assert!(!is_of_group(&request), "{request:?}");
        }
        // What nobody would end if that gateway were lost.
        let who = || Requester {
            identity: Arc::new(volume::Identity::Host([1; 16])),
            port: volume::PortId(1),
            read_only: false,
        };
        for request in
            [VolumeRequest::SanitizeStart { who: who() }, VolumeRequest::FormatStart { who: who() }]
        {
            assert!(!is_of_group(&request), "{request:?}");
        }
        assert_eq!(payload_len(&Op::Sanitize(volume::SanitizeKind::BlockErase), 512), None);
        for request in [VolumeRequest::Reset, VolumeRequest::Refresh, VolumeRequest::WriteProtect(true)] {
            assert!(is_of_group(&request), "{request:?}");
        }
    }
}
