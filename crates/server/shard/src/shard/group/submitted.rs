//! Commands of this shard's hosts that the group executes elsewhere.
//!
//! Invariant: each has one end, when its answer comes or when it is cancelled before it was sent; one that was sent may be
//! answered as ended early. A read's memory is
//! filled by its answer whole, or is not given to the host.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use buf::Payload;
use endpoint::ShardId;
use group::{Answer, Command, LinkPayload, PathError};
use volume::{
    Failure, Fault, Identity, Io, IoCompletion, IoId, Op, Outcome, PathAccess, PortId, Refusal, RequestId,
    Requester, VolumeAnswer, VolumeId, VolumeRequest,
};

use crate::message::ToGateway;

/// How many commands of a shard are with the group at a time. Others wait here, without a copy of their data.
const SUBMITTED_MAX: usize = 4_096;
/// How many bytes of theirs, over all shards, and of one shard at least. A link between gateways keeps 64 MiB at most, and
/// is given up beyond.
const SUBMITTED_BYTES_MAX: usize = 32 << 20;
const SHARD_BYTES_MIN: usize = 4 << 20;

/// What waits for an answer.
#[derive(Debug)]
enum Submitted {
    Io { volume: VolumeId, id: IoId, payload: Payload, is_read: bool },
    Request { volume: VolumeId, id: RequestId },
}

#[derive(Debug)]
enum Waiting {
    Io(VolumeId, Requester, Io),
    Request(VolumeId, RequestId, VolumeRequest),
}

/// The end of a command.
#[derive(Debug)]
pub(super) enum SubmittedEnd {
    Io(IoCompletion),
    Request(VolumeId, VolumeAnswer),
}

/// See the module.
#[derive(Debug)]
pub(in crate::shard) struct SubmittedCommands {
    shard: ShardId,
    bytes_max: usize,
    made: u64,
    submitted: HashMap<u64, Submitted>,
    bytes: usize,
    waiting: VecDeque<Waiting>,
    /// Sent in the next turn.
    pub(super) out: VecDeque<ToGateway>,
}

impl SubmittedCommands {
    pub(in crate::shard) fn new(shard: ShardId, shards: u16) -> Self {
        SubmittedCommands {
            shard,
            bytes_max: (SUBMITTED_BYTES_MAX / usize::from(shards)).max(SHARD_BYTES_MIN),
            made: 0,
            submitted: HashMap::new(),
            bytes: 0,
            waiting: VecDeque::new(),
            out: VecDeque::new(),
        }
    }

    /// Whether a command on this volume has not ended.
    pub(in crate::shard) fn has_commands_of(&self, volume: VolumeId) -> bool {
        let is_submitted = self.submitted.values().any(|command| match command {
            Submitted::Io { volume: of, .. } | Submitted::Request { volume: of, .. } => *of == volume,
        });
        is_submitted
            || self.waiting.iter().any(|command| match command {
                Waiting::Io(of, ..) | Waiting::Request(of, ..) => *of == volume,
            })
    }

    pub(in crate::shard) fn submit_io(&mut self, volume: VolumeId, who: &Requester, io: Io) {
        self.waiting.push_back(Waiting::Io(volume, who.clone(), io));
        self.send_waiting();
    }

    /// Submits a request to the volume's owner object. What is with the group cannot be withdrawn: it ends as it ends.
    pub(in crate::shard) fn submit_request(
        &mut self,
        volume: VolumeId,
        id: RequestId,
        request: VolumeRequest,
    ) -> Option<VolumeAnswer> {
        if request == VolumeRequest::Withdraw {
            let is_it = |one: &Waiting| matches!(one, Waiting::Request(_, known, _) if *known == id);
            let at = self.waiting.iter().position(is_it)?;
            self.waiting.remove(at);
            return Some(VolumeAnswer { to: self.shard, id, result: Err(Refusal::Busy) });
        }
        self.waiting.push_back(Waiting::Request(volume, id, request));
        self.send_waiting();
        None
    }

    /// Submits a request of the operator. What concerns this gateway only is done: nothing here depends on it.
    pub(in crate::shard) fn submit_for_operator(
        &mut self,
        volume: VolumeId,
        id: RequestId,
        request: VolumeRequest,
    ) -> Option<VolumeAnswer> {
        match request {
            VolumeRequest::Remove | VolumeRequest::Resize(_) | VolumeRequest::BackingReadOnly(_) => {
                Some(VolumeAnswer { to: self.shard, id, result: Ok(()) })
            }
            request => self.submit_request(volume, id, request),
        }
    }

    /// An operation is not wanted any more: one that was not sent ends here, and the group is told of one that was.
    pub(in crate::shard) fn cancel(&mut self, id: IoId) -> Option<IoCompletion> {
        let is_sent = |one: &Submitted| matches!(one, Submitted::Io { id: known, .. } if *known == id);
        let sent = self.submitted.iter().find(|(_, one)| is_sent(one)).map(|(number, _)| *number);
        if let Some(number) = sent {
            self.out.push_back(ToGateway::Cancel { from: self.shard, number });
            return None;
        }
        let is_it = |one: &Waiting| matches!(one, Waiting::Io(_, _, io) if io.id == id);
        let at = self.waiting.iter().position(is_it)?;
        match self.waiting.remove(at) {
            Some(Waiting::Io(_, _, io)) => Some(failed(io.id, io.payload, Fault::Aborted.into())),
            Some(Waiting::Request(..)) | None => None,
        }
    }

    /// Sends what there is room for, in order.
    fn send_waiting(&mut self) {
        while let Some(next) = self.waiting.front() {
            let bytes = match next {
                Waiting::Io(_, _, io) => io.payload.len(),
                Waiting::Request(..) => 0,
            };
            // One is always let through.
            let full = self.bytes + bytes > self.bytes_max && self.bytes > 0;
            if full || self.submitted.len() >= SUBMITTED_MAX {
                return;
            }
            let Some(next) = self.waiting.pop_front() else { return };
            self.made += 1;
            let number = self.made;
            self.bytes += bytes;
            let (volume, who, command) = match next {
                Waiting::Io(volume, who, Io { id, op, payload, .. }) => {
                    let is_read = matches!(op, Op::Read(_));
                    let brought = (!is_read && !payload.is_empty()).then(|| copy_of(&payload));
                    self.submitted.insert(number, Submitted::Io { volume, id, payload, is_read });
                    (volume, who, Command::Io { op, payload: brought })
                }
                Waiting::Request(volume, id, request) => {
                    self.submitted.insert(number, Submitted::Request { volume, id });
                    (volume, requester_of(&request), Command::Change(request))
                }
            };
            self.out.push_back(ToGateway::Submit { from: self.shard, number, volume, who, command });
        }
    }

    /// An answer has come. `None`: to nothing that waits for one.
    pub(super) fn take_answer(
        &mut self,
        number: u64,
        result: Result<Answer<LinkPayload>, PathError>,
    ) -> Option<SubmittedEnd> {
        let end = match self.submitted.remove(&number)? {
            Submitted::Io { id, payload, is_read, .. } => {
                self.bytes -= payload.len();
                SubmittedEnd::Io(io_end(id, payload, is_read, result))
            }
            Submitted::Request { volume, id } => {
                let result = match result {
                    Ok(Answer::Change(result)) => result,
                    // What was sent was no operation.
                    Ok(Answer::Io { .. }) => Err(Refusal::NotDurable),
                    Err(_) => Err(Refusal::Inaccessible(PathAccess::Transition)),
                };
                SubmittedEnd::Request(volume, VolumeAnswer { to: self.shard, id, result })
            }
        };
        self.send_waiting();
        Some(end)
    }
}

fn io_end(
    id: IoId,
    payload: Payload,
    is_read: bool,
    result: Result<Answer<LinkPayload>, PathError>,
) -> IoCompletion {
    let (result, read) = match result {
        Ok(Answer::Io { result: Ok(outcome), payload: read }) => (outcome, read),
        Ok(Answer::Io { result: Err(failure), .. }) => return failed(id, payload, failure),
        // What was sent was no request.
        Ok(Answer::Change(_)) => return failed(id, payload, Fault::Internal.into()),
        // It was not carried out: another path, or the same one later, may do it.
        Err(PathError::NoOwner | PathError::Busy) => {
            return failed(id, payload, Refusal::Inaccessible(PathAccess::Transition).into());
        }
        // It was carried out once or not at all.
        Err(PathError::InDoubt) => return failed(id, payload, Fault::PathLost.into()),
    };
    match (payload, read) {
        (Payload::In(mut memory), Some(bytes)) if is_read && bytes.0.len() == memory.len() => {
            memory.copy_from(0, &bytes.0);
            IoCompletion { id, result: Ok(result), payload: Payload::In(memory) }
        }
        // A read without its bytes has read nothing.
        (payload, _) if is_read && !payload.is_empty() => failed(id, payload, Fault::Internal.into()),
        (payload, _) => IoCompletion { id, result: Ok(result), payload },
    }
}

fn failed(id: IoId, payload: Payload, failure: Failure) -> IoCompletion {
    IoCompletion { id, result: Err::<Outcome, _>(failure), payload }
}

/// The bytes that an operation brings; shared by all copies of the command.
fn copy_of(payload: &Payload) -> LinkPayload {
    let Payload::Out(data) = payload else { return LinkPayload(Arc::default()) };
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, data.len()).collect();
    if let Some(bytes) = Arc::get_mut(&mut bytes) {
        data.copy_to(0, bytes);
    }
    LinkPayload(bytes)
}

/// Who asks. A request that acts in a requester's name says itself in whose; of the others nobody is asked for.
fn requester_of(request: &VolumeRequest) -> Requester {
    match request {
        VolumeRequest::Reserve { who, .. }
        | VolumeRequest::MarkBad { who, .. }
        | VolumeRequest::ClearBad { who, .. } => who.clone(),
        _ => Requester { identity: Arc::new(Identity::Host([0; 16])), port: PortId(1), read_only: false },
    }
}

#[cfg(test)]
mod tests {
    use buf::{MemoryClass, Pool};
    use volume::{Durability, Epoch, IdSpace, Span};

    use super::*;

    const VOLUME: VolumeId = VolumeId(3);
    const SPAN: Span = Span { lba: 0, blocks: 8 };

    fn who() -> Requester {
        requester_of(&VolumeRequest::Reset)
    }

    fn io(number: u64, op: Op, payload: Payload) -> Io {
        Io { id: IoId::in_space(IdSpace::Scsi, number), epoch: Epoch::default(), op, payload }
    }

    fn read(pool: &Pool, number: u64, len: usize) -> Io {
        let memory = pool.take_sg(MemoryClass::Solicited, len).unwrap();
        io(number, Op::Read(SPAN), Payload::In(memory))
    }

    fn numbers(commands: &mut SubmittedCommands) -> Vec<u64> {
        let number = |message: ToGateway| match message {
            ToGateway::Submit { number, .. } => number,
            other => panic!("unexpected: {other:?}"),
        };
        commands.out.drain(..).map(number).collect()
    }

    fn answered(commands: &mut SubmittedCommands, number: u64, answer: Answer<LinkPayload>) -> IoCompletion {
        match commands.take_answer(number, Ok(answer)) {
            Some(SubmittedEnd::Io(done)) => done,
            other => panic!("not the end of an operation: {other:?}"),
        }
    }

    fn bytes(len: usize) -> Option<LinkPayload> {
        Some(LinkPayload(vec![7; len].into()))
    }

    #[test]
    fn a_read_is_given_all_its_bytes_or_fails() {
        let pool = Pool::new(1 << 20);
        let mut commands = SubmittedCommands::new(ShardId(0), 2);
        for (len, fits) in [(Some(4096), true), (Some(4095), false), (Some(4097), false), (None, false)] {
            commands.submit_io(VOLUME, &who(), read(&pool, 1, 4096));
            let number = numbers(&mut commands)[0];
            let payload = len.and_then(bytes);
            let done = answered(&mut commands, number, Answer::Io { result: Ok(Outcome::Complete), payload });
            assert_eq!(done.result.is_ok(), fits, "{len:?}");
            if fits {
                let mut read = vec![0; 4096];
                done.payload.into_sg().copy_to(0, &mut read);
                assert!(read.iter().all(|byte| *byte == 7));
            }
        }
        assert_eq!(commands.bytes, 0);
        assert!(commands.take_answer(1, Err(PathError::NoOwner)).is_none(), "answered already");
    }

    #[test]
    fn what_was_not_carried_out_is_told_from_what_is_in_doubt() {
        let mut commands = SubmittedCommands::new(ShardId(0), 1);
        let transition = Failure::Refused(Refusal::Inaccessible(PathAccess::Transition));
        for (error, failure) in [
            (PathError::NoOwner, transition),
            (PathError::Busy, transition),
            (PathError::InDoubt, Failure::Failed(Fault::PathLost)),
        ] {
            commands.submit_io(VOLUME, &who(), io(1, Op::Flush, Payload::None));
            let number = numbers(&mut commands)[0];
            match commands.take_answer(number, Err(error)) {
                Some(SubmittedEnd::Io(done)) => assert_eq!(done.result, Err(failure)),
                other => panic!("not the end of an operation: {other:?}"),
            }
        }
    }

    #[test]
    fn what_is_with_the_group_is_bounded_and_the_rest_waits_in_order() {
        let pool = Pool::new(16 << 20);
        let mut commands = SubmittedCommands::new(ShardId(0), 64);
        for number in 1..=5 {
            commands.submit_io(VOLUME, &who(), read(&pool, number, 1 << 20));
        }
        commands.submit_request(VOLUME, RequestId(6), VolumeRequest::Reset);
        commands.submit_request(VOLUME, RequestId(7), VolumeRequest::Reset);
        assert_eq!(numbers(&mut commands), [1, 2, 3, 4], "4 MiB");
        assert!(commands.has_commands_of(VOLUME) && !commands.has_commands_of(VolumeId(4)));
        // What waits can be taken back, and what is with the group cannot.
        let withdraw = |commands: &mut SubmittedCommands, id| {
            commands.submit_request(VOLUME, RequestId(id), VolumeRequest::Withdraw)
        };
        assert_eq!(withdraw(&mut commands, 7).map(|answer| answer.result), Some(Err(Refusal::Busy)));
        let cancelled = commands.cancel(IoId::in_space(IdSpace::Scsi, 5)).expect("it waits");
        assert_eq!(cancelled.result, Err(Fault::Aborted.into()));
        assert!(commands.cancel(IoId::in_space(IdSpace::Scsi, 4)).is_none());
        assert!(matches!(commands.out.pop_front(), Some(ToGateway::Cancel { number: 4, .. })));
        answered(&mut commands, 2, Answer::Io { result: Ok(Outcome::Complete), payload: bytes(1 << 20) });
        assert_eq!(numbers(&mut commands), [5], "the request");
        assert!(withdraw(&mut commands, 6).is_none(), "it is with the group");
        let end = commands.take_answer(5, Ok(Answer::Change(Ok(()))));
        assert!(matches!(end, Some(SubmittedEnd::Request(VOLUME, answer)) if answer.id == RequestId(6)));
    }

    #[test]
    fn a_write_is_copied_when_it_is_sent() {
        let pool = Pool::new(1 << 20);
        let mut commands = SubmittedCommands::new(ShardId(0), 1);
        let mut memory = pool.take_sg(MemoryClass::Solicited, 4096).unwrap();
        memory.copy_from(0, &[9; 4096]);
        let write = io(1, Op::Write(SPAN, Durability::Cached), Payload::Out(memory.freeze()));
        commands.submit_io(VOLUME, &who(), write);
        match commands.out.pop_front() {
            Some(ToGateway::Submit {
                command: Command::Io { payload: Some(LinkPayload(sent)), .. }, ..
            }) => {
                assert_eq!(*sent, [9; 4096]);
            }
            other => panic!("not a write: {other:?}"),
        }
    }
}
