//! A front is a command server with the connections that it serves. Code that moves payload is the same for
//! both protocols, and is here, once.
//!
//! A step that moves payload may wait for three things before it is executed: for the world's turn
//! ([`deferred`](super::deferred)), for its connection's permission to move so much more ([`ParkedSteps`]), and
//! for memory ([`memory`](super::memory)).
//!
//! *Inline* means without waiting: a plain read or write is executed within the call that delivers its
//! command ([`execute_inline`]). It needs no task, and has the same result.

use buf::{Cx, MemoryClass, Payload, Time};
use endpoint::{LinkDeparture, LinkId};
use stream::{Tag, TargetConnection};
use volume::{
    CommandStep, Failure, Fault, InlineIo, Io, IoCompletion, IoId, Op, OperationTimes, Requester, VolumeId,
};

use super::SharedParts;
use super::connections::Connections;
use super::local_volumes::LocalVolumes;
use super::operations::OperationCommands;
use super::payload_step::{
    AnyStep, CommandConn, IoStep, ParkedSteps, PayloadStep, ReceiveStep, RetryStep, StepName,
};
use super::throttle::{LimitsOfStep, charge_of_io};
use crate::message::Message;
use crate::rate_limit::Charge;

/// What the server of a front wants.
type StepOf<F> =
    CommandStep<<F as ProtocolFront>::Command, <F as ProtocolFront>::Reply, <F as ProtocolFront>::ServerStep>;

/// One protocol's side of a shard. See the module.
pub(super) trait ProtocolFront: Sized {
    /// Names a command at its server.
    type Command: Copy + PartialEq;
    /// A connection that carries such commands.
    type Conn: CommandConn<Command = Self::Command>;

    /// How its server answers a command.
    type Reply;
    /// What only its server wants.
    type ServerStep;

    /// Whether its server wants anything.
    fn has_steps(&self) -> bool;

    /// What its server wants next.
    fn poll_step(&mut self) -> Option<StepOf<Self>>;

    /// Does what only its server wants.
    fn run_server_step(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, other: Self::ServerStep);

    /// Whether a command has done all that it was to do.
    fn is_success(reply: &Self::Reply) -> bool;

    /// Answers a command.
    fn respond(conn: &mut Self::Conn, cx: &mut Cx<'_>, tag: Tag, reply: Self::Reply);

    /// A command's name at its connection.
    fn tag_of(command: Self::Command) -> Tag;

    /// The connection of a command.
    fn conn_of(&self, command: Self::Command) -> Option<Tag>;

    /// A connection of this front.
    fn conn_mut(conns: &mut Connections, tag: Tag) -> Option<&mut Self::Conn>;

    /// In whose name a command acts.
    fn nexus_of(&self, command: Self::Command) -> &Requester;

    /// A step of this front among others.
    fn into_any_step(step: PayloadStep<Self::Command>) -> AnyStep;

    /// A step, if it is one of this front.
    fn as_own_step(step: &AnyStep) -> Option<&PayloadStep<Self::Command>>;

    /// What the transfers of a command are called.
    fn transfers_name(command: Self::Command) -> StepName;

    /// There is memory for an answer of the server.
    fn retry_answer(&mut self, cx: &mut Cx<'_>, command: Self::Command);

    /// An operation has ended.
    fn handle_io_done(&mut self, cx: &mut Cx<'_>, done: IoCompletion);

    /// The commands of its operations.
    fn operations_mut(&mut self) -> &mut OperationCommands<Self::Command>;

    /// Notes for the times of a command that one of its operations goes to its volume.
    fn note_submit(&mut self, now: Time, conns: &mut Connections, step: &IoStep<Self::Command>) {
        let IoStep { command, volume, ref io, to_peer, .. } = *step;
        self.operations_mut().insert(io.id, command);
        let conn = self.conn_of(command).and_then(|tag| Self::conn_mut(conns, tag));
        if let Some(conn) = conn {
            conn.times_mut().note_submit(now, Self::tag_of(command), volume, io, to_peer);
        }
    }

    /// Notes for the times of a command that one of its operations has ended.
    fn note_done(&mut self, now: Time, conns: &mut Connections, done: &IoCompletion, times: OperationTimes) {
        let Some(command) = self.operations_mut().take(done.id) else { return };
        let conn = self.conn_of(command).and_then(|tag| Self::conn_mut(conns, tag));
        if let Some(conn) = conn {
            conn.times_mut().note_done(now, Self::tag_of(command), times);
        }
    }

    /// A link has departed and nothing is out on it: it is forgotten, and with it a connection that has no other.
    fn forget_link(&mut self, parts: &mut SharedParts, conn: Tag, id: LinkId);

    /// Acts on the connection of a command, which then has something to say.
    fn with_conn(
        &self,
        conns: &mut Connections,
        command: Self::Command,
        act: impl FnOnce(&mut Self::Conn, Tag),
    ) {
        let Some(tag) = self.conn_of(command) else { return };
        let Some(conn) = Self::conn_mut(conns, tag) else { return };
        act(conn, Self::tag_of(command));
        conns.mark_pending(tag);
    }

    /// Lets a link go. What is out on it comes back first; then it is forgotten.
    fn depart_link(&mut self, parts: &mut SharedParts, id: LinkId, how: LinkDeparture<Message>) {
        if let Some(owner) = parts.conns.begin_departure(id, how) {
            self.forget_link(parts, owner.conn, id);
        }
    }

    /// Does what the server wants; true if that was anything.
    #[inline]
    fn run_steps(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts) -> bool {
        let worked = self.has_steps();
        if worked {
            self.run_waiting_steps(cx, parts);
        }
        worked
    }

    fn run_waiting_steps(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts) {
        while let Some(step) = self.poll_step() {
            self.run_step(cx, parts, step);
        }
    }

    fn run_step(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, step: StepOf<Self>) {
        match step {
            CommandStep::Receive { command, at, len, volume } => {
                let receive = ReceiveStep { command, at, len, volume };
                self.start_payload_step(cx, parts, PayloadStep::Receive(receive));
            }
            CommandStep::AwaitMemory { command, class, len } => {
                self.start_payload_step(cx, parts, PayloadStep::Retry(RetryStep { command, class, len }));
            }
            CommandStep::Io { command, volume, io, want, to_peer } => {
                let step = IoStep { command, volume, io, want, to_peer };
                self.start_payload_step(cx, parts, PayloadStep::Io(step));
            }
            CommandStep::Send { command, at, data } => {
                self.with_conn(&mut parts.conns, command, |conn, tag| conn.send_data(cx, tag, at, data));
            }
            CommandStep::Respond { command, reply } => {
                // A command that ends before its data has come wants no memory for it any more.
                if !Self::is_success(&reply) {
                    self.forget_transfers(parts, command);
                }
                let SharedParts { conns, volumes, .. } = parts;
                self.with_conn(conns, command, |conn, tag| {
                    let label = conn.times_mut().count_answer(tag, volumes);
                    conn.protocol_and_parked().0.label_next_response(label);
                    Self::respond(conn, cx, tag, reply);
                });
            }
            CommandStep::Retire { command } => {
                self.forget_transfers(parts, command);
                self.with_conn(&mut parts.conns, command, |conn, tag| {
                    conn.protocol_and_parked().0.end_without_response(cx, tag)
                });
            }
            CommandStep::Cancel { command, volume, io } => self.cancel_io(cx, parts, command, volume, io),
            CommandStep::VolumeRequest { volume, id, request } => parts.post_request(volume, id, request),
            CommandStep::Other(other) => self.run_server_step(cx, parts, other),
        }
    }

    /// A step begins when the limits of its volume and host let it.
    fn start_payload_step(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        step: PayloadStep<Self::Command>,
    ) {
        if parts.throttled.is_in_force()
            && let Some((limits, charge)) = self.limits_of_step(parts, &step)
            && !parts.throttled.try_pass(cx.now, &limits, charge)
        {
            return parts.throttled.push(cx.now, &limits, charge, Self::into_any_step(step));
        }
        self.start_passed_step(cx, parts, step);
    }

    /// What limits a step, and what it takes from that; `None`: nothing does.
    fn limits_of_step(
        &self,
        parts: &mut SharedParts,
        step: &PayloadStep<Self::Command>,
    ) -> Option<(LimitsOfStep, Charge)> {
        let (command, volume) = match step {
            PayloadStep::Receive(receive) => (receive.command, receive.volume?),
            PayloadStep::Io(step) => (step.command, step.volume),
            PayloadStep::Retry(_) => return None,
        };
        let limiter = parts.exports.volume_limits.get(&volume);
        let conn = Self::conn_mut(&mut parts.conns, self.conn_of(command)?)?;
        if limiter.is_none() && conn.host_limit().limiter.is_none() {
            return None;
        }
        let tag = Self::tag_of(command);
        let charge = match step {
            // What came with its command stands in the stream: its operation waits instead.
            PayloadStep::Receive(_) if conn.memory_class(tag) != MemoryClass::Solicited => return None,
            PayloadStep::Receive(receive) => {
                conn.times_mut().set_paid(tag);
                Charge { operations: 1, bytes: receive.len.into() }
            }
            PayloadStep::Io(step) => {
                let logical = parts.volumes.get(volume)?.gate.view().geometry.logical;
                charge_of_io(step, logical, || conn.times_mut().take_paid(tag))?
            }
            PayloadStep::Retry(_) => return None,
        };
        let host = conn.host_limit().clone();
        Some((LimitsOfStep { host, volume: (volume, limiter.cloned()) }, charge))
    }

    /// A step begins when it is its turn.
    fn start_passed_step(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        step: PayloadStep<Self::Command>,
    ) {
        if matches!(step, PayloadStep::Io(_)) && parts.deferred.must_defer() {
            parts.deferred.push(Self::into_any_step(step));
        } else {
            self.begin_payload_step(cx, parts, step);
        }
    }

    /// It is a step's turn.
    fn begin_payload_step(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        step: PayloadStep<Self::Command>,
    ) {
        match step {
            PayloadStep::Receive(receive) => self.start_receive(cx, parts, receive),
            PayloadStep::Io(IoStep { to_peer: true, .. })
            | PayloadStep::Retry(RetryStep { class: MemoryClass::Solicited, .. }) => {
                self.start_send(cx, parts, step);
            }
            PayloadStep::Io(_) | PayloadStep::Retry(_) => self.run_with_memory(cx, parts, step),
        }
    }

    /// Bytes for the peer are fetched or made when its connection has leave to send so much more.
    fn start_send(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, mut step: PayloadStep<Self::Command>) {
        let len = outgoing_len(&parts.volumes, &mut step);
        let command = step.command();
        let mut may = Some(step);
        self.with_conn(&mut parts.conns, command, |conn, tag| {
            // Who asks again must not wait behind those that wait for what it holds itself.
            if conn.has_read_reserved(tag, len) {
                return;
            }
            let (proto, parked) = conn.protocol_and_parked();
            if !parked.reads.is_empty() || !proto.reserve_send_window(tag, len) {
                parked.reads.extend(may.take());
            }
        });
        if let Some(step) = may {
            self.run_with_memory(cx, parts, step);
        }
    }

    /// A write's data is asked for when its connection has leave to ask for so much more. What came with its command
    /// is here.
    fn start_receive(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        receive: ReceiveStep<Self::Command>,
    ) {
        let mut may = Some(receive);
        if self.memory_class(parts, receive.command) == MemoryClass::Solicited {
            self.with_conn(&mut parts.conns, receive.command, |conn, tag| {
                let (proto, parked) = conn.protocol_and_parked();
                if !parked.writes.is_empty() || !proto.reserve_receive_window(tag, receive.len) {
                    parked.writes.extend(may.take());
                }
            });
        }
        if let Some(receive) = may {
            self.run_with_memory(cx, parts, PayloadStep::Receive(receive));
        }
    }

    /// Which memory the data of a write is to be taken from.
    fn memory_class(&self, parts: &mut SharedParts, command: Self::Command) -> MemoryClass {
        let conn = self.conn_of(command).and_then(|tag| Self::conn_mut(&mut parts.conns, tag));
        conn.map_or(MemoryClass::Solicited, |conn| conn.memory_class(Self::tag_of(command)))
    }

    /// What was parked may start now, perhaps.
    fn resume_parked(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, conn: Tag) {
        if Self::conn_mut(&mut parts.conns, conn).is_none_or(|conn| conn.protocol_and_parked().1.is_empty())
            || parts.is_halting()
        {
            return;
        }
        while let Some((proto, parked)) =
            Self::conn_mut(&mut parts.conns, conn).map(CommandConn::protocol_and_parked)
        {
            let Some(mut step) = parked.reads.pop_front() else { break };
            let len = outgoing_len(&parts.volumes, &mut step);
            if !proto.reserve_send_window(Self::tag_of(step.command()), len) {
                parked.reads.push_front(step);
                break;
            }
            self.run_with_memory(cx, parts, step);
        }
        while let Some((proto, parked)) =
            Self::conn_mut(&mut parts.conns, conn).map(CommandConn::protocol_and_parked)
        {
            let Some(receive) = parked.writes.pop_front() else { return };
            if !proto.reserve_receive_window(Self::tag_of(receive.command), receive.len) {
                return parked.writes.push_front(receive);
            }
            self.run_with_memory(cx, parts, PayloadStep::Receive(receive));
        }
    }

    /// Gives a step its memory, or lets it wait for some.
    fn run_with_memory(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        step: PayloadStep<Self::Command>,
    ) {
        // What needs no memory gives some back when it is done: it must not wait for those that do.
        let needs_none = matches!(step, PayloadStep::Io(IoStep { want: 0, .. }));
        let in_stream = match &step {
            PayloadStep::Receive(receive) => {
                self.memory_class(parts, receive.command) != MemoryClass::Solicited
            }
            PayloadStep::Io(_) | PayloadStep::Retry(_) => false,
        };
        if !needs_none && !in_stream && !parts.memory_waiters.is_empty() {
            return parts.memory_waiters.push(Self::into_any_step(step));
        }
        match self.try_run_with_memory(cx, parts, step) {
            Some(step) if in_stream => parts.memory_waiters.push_front(Self::into_any_step(step)),
            Some(step) => parts.memory_waiters.push(Self::into_any_step(step)),
            None => {}
        }
    }

    /// Gives the step back if there is no memory for it.
    fn try_run_with_memory(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        step: PayloadStep<Self::Command>,
    ) -> Option<PayloadStep<Self::Command>> {
        match step {
            PayloadStep::Receive(ReceiveStep { command, at, len, .. }) => {
                let Some(memory) = cx.pool.take_sg(self.memory_class(parts, command), len as usize) else {
                    return Some(step);
                };
                self.with_conn(&mut parts.conns, command, |conn, tag| conn.recv_data(cx, tag, at, memory));
            }
            PayloadStep::Io(mut step) => {
                if !attach_memory(cx, &mut step.io, step.want) {
                    return Some(PayloadStep::Io(step));
                }
                self.note_submit(cx.now, &mut parts.conns, &step);
                parts.volumes.submit(cx, self.nexus_of(step.command), step.volume, step.io);
            }
            PayloadStep::Retry(RetryStep { command, class, len }) => {
                // The server takes it itself, in this very call.
                if cx.pool.take_sg(class, len as usize).is_none() {
                    return Some(step);
                }
                self.retry_answer(cx, command);
            }
        }
        None
    }

    /// A command that has ended wants no memory for its payload any more.
    fn forget_transfers(&mut self, parts: &mut SharedParts, ended: Self::Command) {
        parts.memory_waiters.remove_transfers::<Self>(|command| command == ended);
        parts.throttled.remove_named(Self::transfers_name(ended));
        self.with_conn(&mut parts.conns, ended, |conn, _| {
            conn.protocol_and_parked().1.remove_transfers(ended)
        });
    }

    /// An operation is not wanted any more: one that waits ends here, the others at their volume.
    fn cancel_io(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        command: Self::Command,
        volume: VolumeId,
        id: IoId,
    ) {
        let conn = self.conn_of(command).and_then(|tag| Self::conn_mut(&mut parts.conns, tag));
        let waits = conn.is_some_and(|conn| conn.protocol_and_parked().1.remove_io(id))
            || parts.memory_waiters.remove_io(id)
            || parts.deferred.remove(id)
            || parts.throttled.remove_named(StepName::Io(id));
        if waits {
            let result = Err(Failure::Failed(Fault::Aborted));
            self.handle_io_done(cx, IoCompletion { id, result, payload: Payload::None });
        } else {
            parts.volumes.cancel(volume, id);
        }
    }
}

/// Carries a plain read or write out and counts it for its volume, if nothing has to be waited for. Its command has
/// then only to be answered.
#[inline]
pub(super) fn execute_inline<C, T: TargetConnection>(
    cx: &mut Cx<'_>,
    volumes: &mut LocalVolumes,
    who: &Requester,
    io: &InlineIo,
    receive_ns: u64,
    (proto, tag): (&mut T, Tag),
    parked: &ParkedSteps<C>,
) -> bool {
    match io.write {
        None => {
            if !parked.reads.is_empty() {
                return false;
            }
            let may = || proto.reserve_send_window(tag, io.bytes);
            let Some(data) = volumes.read_inline(who, (io.volume, io.span), receive_ns, may) else {
                return false;
            };
            proto.send_data(cx, tag, 0, data);
            true
        }
        Some(durability) => {
            let Some(data) = proto.contiguous_payload(tag) else { return false };
            volumes.write_inline(who, io.volume, (io.span, durability), receive_ns, data)
        }
    }
}

/// How much a read or a long answer sends. If a volume may not lend its own memory any more (something was written
/// atomically, or hosts may be fenced), a read wants as much of the pool's, like all others.
fn outgoing_len<C>(volumes: &LocalVolumes, step: &mut PayloadStep<C>) -> u32 {
    let IoStep { volume, io, want, .. } = match step {
        PayloadStep::Io(step) => step,
        PayloadStep::Retry(retry) => return retry.len,
        PayloadStep::Receive(_) => return 0,
    };
    let len = match io.op {
        Op::Read(span) if *want == 0 => volumes.span_bytes(*volume, span),
        _ => *want,
    };
    if !volumes.lends_memory(*volume) {
        *want = len;
    }
    len
}

/// Attaches the memory that an operation wants; false if there is none.
fn attach_memory(cx: &Cx<'_>, io: &mut Io, want: u32) -> bool {
    if want == 0 {
        return true;
    }
    let Some(memory) = cx.pool.take_sg(MemoryClass::Solicited, want as usize) else { return false };
    io.payload = Payload::In(memory);
    true
}
