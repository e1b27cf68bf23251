//! Steps that move the payload of commands, for either server, and the connections of these commands, where some steps
//! are parked.

use std::collections::VecDeque;

use buf::{Class, Cx, Errno, Sg, SgMut};
use nvme_server::CommandKey;
use scsi_server::TaskKey;
use stream::{Connection, Link, Tag, Target};
use volume::{Io, IoId, VolumeId};

use super::times::CommandTimes;
use super::volumes::LocalVolumes;

/// The peer is to send `len` bytes of a command's payload, from `at` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receive<C> {
    pub(super) command: C,
    pub(super) at: u32,
    pub(super) len: u32,
}

/// A volume is to carry this out.
#[derive(Debug)]
pub(super) struct IoStep<C> {
    pub(super) command: C,
    pub(super) volume: VolumeId,
    pub(super) io: Io,
    /// Bytes of memory to be attached first; 0 if none.
    pub(super) want: u32,
    /// Whether the bytes that it reads are for the peer.
    pub(super) to_peer: bool,
}

/// The server is to make an answer for which it found no memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry<C> {
    pub(super) command: C,
    pub(super) class: Class,
    pub(super) len: u32,
}

/// A step that moves payload.
#[derive(Debug)]
pub(super) enum PayloadStep<C> {
    Receive(Receive<C>),
    Io(IoStep<C>),
    Retry(Retry<C>),
}

impl<C: Copy> PayloadStep<C> {
    pub(super) fn command(&self) -> C {
        match self {
            PayloadStep::Receive(receive) => receive.command,
            PayloadStep::Io(step) => step.command,
            PayloadStep::Retry(retry) => retry.command,
        }
    }

    /// Whether it is this operation.
    pub(super) fn is_io(&self, id: IoId) -> bool {
        matches!(self, PayloadStep::Io(step) if step.io.id == id)
    }

    /// Whether it waits on when its command has ended. An operation does: it is cancelled by its name.
    pub(super) fn outlives_command(&self) -> bool {
        matches!(self, PayloadStep::Io(_))
    }
}

/// A step of either server, where both wait in one queue.
#[derive(Debug)]
pub(super) enum AnyStep {
    Scsi(PayloadStep<TaskKey>),
    Nvme(PayloadStep<CommandKey>),
}

impl AnyStep {
    /// Whether it is this operation. Those of either server have names of their own.
    pub(super) fn is_io(&self, id: IoId) -> bool {
        match self {
            AnyStep::Scsi(step) => step.is_io(id),
            AnyStep::Nvme(step) => step.is_io(id),
        }
    }
}

/// What waits until the peer of a connection has done its part of what was started before.
#[derive(Debug)]
pub(super) struct ParkedSteps<C> {
    /// Reads and long answers: until it has read what was sent.
    pub(super) reads: VecDeque<PayloadStep<C>>,
    /// Writes: until it has sent what it was asked for.
    pub(super) writes: VecDeque<Receive<C>>,
}

impl<C> Default for ParkedSteps<C> {
    fn default() -> Self {
        ParkedSteps { reads: VecDeque::new(), writes: VecDeque::new() }
    }
}

impl<C: Copy + PartialEq> ParkedSteps<C> {
    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    pub(super) fn remove_io(&mut self, id: IoId) -> bool {
        let at = self.reads.iter().position(|step| step.is_io(id));
        at.and_then(|at| self.reads.remove(at)).is_some()
    }

    pub(super) fn remove_transfers(&mut self, of: C) {
        self.reads.retain(|step| step.outlives_command() || step.command() != of);
        self.writes.retain(|receive| receive.command != of);
    }
}

/// A connection that carries commands: a session, or a queue.
pub(super) trait CommandConn {
    /// Names a command at its server.
    type Command: Copy + PartialEq;
    /// What speaks with the peer.
    type Proto: Target;

    /// The protocol, and what waits for the peer.
    fn split(&mut self) -> (&mut Self::Proto, &mut ParkedSteps<Self::Command>);

    /// How long its commands took and take.
    fn times(&mut self) -> &mut CommandTimes;

    /// The socket has taken a batch, and with it answers.
    fn written(&mut self, cx: &mut Cx<'_>, volumes: &mut LocalVolumes, link: Link, how: Result<(), Errno>) {
        self.split().0.handle_written(cx, link, how);
        if how.is_err() {
            return;
        }
        while let Some(run) = self.split().0.poll_written(link) {
            self.times().sent(cx.now, run, volumes);
        }
    }

    /// Whether what a command holds already covers so much more to be sent.
    fn has_read_reserved(&self, tag: Tag, len: u32) -> bool;

    /// Which memory the data of a write is to be taken from.
    fn memory_class(&self, tag: Tag) -> Class;

    /// Sends bytes of a command's data.
    fn send_data(&mut self, cx: &mut Cx<'_>, tag: Tag, at: u32, data: Sg);

    /// Memory for a command's payload is there.
    fn recv_data(&mut self, cx: &mut Cx<'_>, tag: Tag, at: u32, memory: SgMut);
}
