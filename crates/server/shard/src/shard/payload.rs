//! How the payload of commands moves, whichever server they belong to.
//!
//! A step that moves payload waits for up to three things before it is carried out: for the world's turn
//! ([`deferred`](super::deferred)), for its connection's leave to move so much more ([`Parked`]), and for memory
//! ([`memory`](super::memory)).
//!
//! *Inline* is what waits for nothing: a plain read or write that is carried out within the call that brings its
//! command ([`carry_out_inline`]). It becomes no task, and nobody can tell.

use buf::{Class, Cx, SgMut};
use stream::{Tag, Target};
use volume::{Done, Failure, Fault, InlineIo, IoId, Nexus, Op, Payload, VolumeId};

use super::Shard;
use super::conns::{Conn, ConnKind};
use super::payload_step::{CommandId, IoStep, Parked, PayloadStep, Receive};
use super::volumes::LocalVolumes;

/// Carries a plain read or write out and counts it for its volume, if nothing has to be waited for. Its command has
/// then only to be answered.
#[inline]
pub(super) fn carry_out_inline<T: Target>(
    cx: &mut Cx<'_>,
    volumes: &mut LocalVolumes,
    who: &Nexus,
    io: &InlineIo,
    (proto, tag): (&mut T, Tag),
    parked: &Parked,
) -> bool {
    match io.write {
        None => {
            if !parked.reads.is_empty() {
                return false;
            }
            let may = || proto.reserve_read(tag, io.bytes);
            let Some(data) = volumes.read_inline(who, io.volume, io.span, may) else { return false };
            proto.send_data(cx, tag, 0, data);
            true
        }
        Some(durability) => {
            let Some(data) = proto.data_at_hand(tag) else { return false };
            volumes.write_inline(who, io.volume, (io.span, durability), data)
        }
    }
}

impl ConnKind {
    /// What a command holds at its connection already covers so much more.
    fn has_leave(&self, tag: Tag, len: u32) -> bool {
        match self {
            ConnKind::Queue(queue) => queue.proto.has_read_reserved(tag, len),
            ConnKind::Session(_) | ConnKind::Login(_) => false,
        }
    }

    fn reserve_read(&mut self, tag: Tag, len: u32) -> bool {
        match self {
            ConnKind::Session(session) => session.proto.reserve_read(tag, len),
            ConnKind::Queue(queue) => queue.proto.reserve_read(tag, len),
            ConnKind::Login(_) => true,
        }
    }

    fn reserve_write(&mut self, tag: Tag, len: u32) -> bool {
        match self {
            ConnKind::Session(session) => session.proto.reserve_write(tag, len),
            ConnKind::Queue(queue) => queue.proto.reserve_write(tag, len),
            ConnKind::Login(_) => true,
        }
    }

    /// Memory for a command's payload is there.
    pub(super) fn recv_data(&mut self, cx: &mut Cx<'_>, tag: Tag, at: u32, memory: SgMut) {
        match self {
            ConnKind::Session(session) => {
                session.io.written_bytes += memory.len() as u64;
                session.proto.recv_data(cx, tag, at, memory);
            }
            ConnKind::Queue(queue) => queue.proto.recv_data(cx, tag, at, memory),
            ConnKind::Login(_) => {}
        }
    }
}

impl Shard {
    /// The connection of a command.
    fn conn_of(&self, command: CommandId) -> Option<Tag> {
        match command {
            CommandId::Scsi(key) => self.iscsi.nexuses.get(key.nexus.0 as usize).copied().flatten(),
            CommandId::Nvme(key) => self.nvme.conn_of_queue(key.queue),
        }
    }

    /// Acts on the connection of a command, which then has something to say.
    pub(super) fn with_conn(&mut self, command: CommandId, act: impl FnOnce(&mut Conn, Tag)) {
        let Some(tag) = self.conn_of(command) else { return };
        let Some(conn) = self.conns.get_mut(tag) else { return };
        act(conn, command.tag());
        self.conns.touch(tag);
    }

    /// Which memory the data of a write is to be taken from.
    pub(super) fn memory_class(&self, command: CommandId) -> Class {
        let CommandId::Nvme(_) = command else { return Class::Solicited };
        match self.conn_of(command).and_then(|conn| self.conns.get(conn)).map(|conn| &conn.kind) {
            Some(ConnKind::Queue(queue)) => queue.proto.memory_class(command.tag()),
            Some(ConnKind::Login(_) | ConnKind::Session(_)) | None => Class::Solicited,
        }
    }

    /// An operation begins when it is its turn.
    pub(super) fn start_io(&mut self, cx: &mut Cx<'_>, step: IoStep) {
        if self.deferred.must_defer() {
            self.deferred.push(step);
        } else {
            self.begin_io(cx, step);
        }
    }

    /// It is an operation's turn.
    pub(super) fn begin_io(&mut self, cx: &mut Cx<'_>, step: IoStep) {
        if step.to_peer {
            self.start_answer(cx, PayloadStep::Io(step));
        } else {
            self.run_with_memory(cx, PayloadStep::Io(step));
        }
    }

    /// Bytes for the peer are fetched or made when its connection has leave to send so much more.
    pub(super) fn start_answer(&mut self, cx: &mut Cx<'_>, mut step: PayloadStep) {
        let len = self.answer_len(&mut step);
        let command = step.command();
        let mut may = Some(step);
        self.with_conn(command, |Conn { kind, parked, .. }, tag| {
            // Who asks again must not wait behind those that wait for what it holds itself.
            if kind.has_leave(tag, len) {
                return;
            }
            if !parked.reads.is_empty() || !kind.reserve_read(tag, len) {
                parked.reads.extend(may.take());
            }
        });
        if let Some(step) = may {
            self.run_with_memory(cx, step);
        }
    }

    /// A write's data is asked for when its connection has leave to ask for so much more. What came with its command
    /// is here.
    pub(super) fn start_receive(&mut self, cx: &mut Cx<'_>, receive: Receive) {
        let mut may = Some(receive);
        if self.memory_class(receive.command) == Class::Solicited {
            self.with_conn(receive.command, |Conn { kind, parked, .. }, tag| {
                if !parked.writes.is_empty() || !kind.reserve_write(tag, receive.len) {
                    parked.writes.extend(may.take());
                }
            });
        }
        if let Some(receive) = may {
            self.run_with_memory(cx, PayloadStep::Receive(receive));
        }
    }

    /// What was parked may start now, perhaps.
    pub(super) fn resume_parked(&mut self, cx: &mut Cx<'_>, conn: Tag) {
        if self
            .conns
            .get(conn)
            .is_none_or(|conn| conn.parked.reads.is_empty() && conn.parked.writes.is_empty())
        {
            return;
        }
        while let Some(mut step) = self.conns.get_mut(conn).and_then(|conn| conn.parked.reads.pop_front()) {
            let len = self.answer_len(&mut step);
            let Some(Conn { kind, parked, .. }) = self.conns.get_mut(conn) else { return };
            if !kind.reserve_read(step.command().tag(), len) {
                parked.reads.push_front(step);
                break;
            }
            self.run_with_memory(cx, step);
        }
        while let Some(receive) = self.conns.get_mut(conn).and_then(|conn| conn.parked.writes.pop_front()) {
            let Some(Conn { kind, parked, .. }) = self.conns.get_mut(conn) else { return };
            if !kind.reserve_write(receive.command.tag(), receive.len) {
                parked.writes.push_front(receive);
                return;
            }
            self.run_with_memory(cx, PayloadStep::Receive(receive));
        }
    }

    /// How much a read or a long answer sends. If a volume may not lend its own memory any more (something was written
    /// atomically, or hosts may be fenced), a read wants as much of the pool's, like all others.
    fn answer_len(&self, step: &mut PayloadStep) -> u32 {
        let IoStep { volume, io, want, .. } = match step {
            PayloadStep::Io(step) => step,
            PayloadStep::Retry(retry) => return retry.len,
            PayloadStep::Receive(_) => return 0,
        };
        let len = match io.op {
            Op::Read(span) if *want == 0 => self.volumes.bytes(*volume, span),
            _ => *want,
        };
        if !self.volumes.lends(*volume) {
            *want = len;
        }
        len
    }

    /// A command that has ended wants no memory for its payload any more.
    pub(super) fn forget_transfers(&mut self, ended: CommandId) {
        self.memory_waiters.remove_transfers(|command| command == ended);
        self.with_conn(ended, |conn, _| conn.parked.remove_transfers(ended));
    }

    /// An operation is not wanted any more: one that waits ends here, the others at their volume.
    pub(super) fn cancel_io(&mut self, cx: &mut Cx<'_>, volume: VolumeId, id: IoId) {
        let waits = self.memory_waiters.remove_io(id)
            || self.deferred.remove(id)
            || self.conns.iter_mut().any(|(_, conn)| conn.parked.remove_io(id));
        if waits {
            let result = Err(Failure::Failed(Fault::Aborted));
            self.end_io(cx, Done { id, result, payload: Payload::None });
        } else {
            self.volumes.cancel(volume, id);
        }
    }
}
