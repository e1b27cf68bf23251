//! Steps that move the payload of commands, for either server, and the connections of these commands, where some steps
//! are parked.

use std::collections::VecDeque;

use buf::{Cx, Errno, MemoryClass, Sg, SgMut};
use nvme_server::CommandKey;
use scsi_server::TaskKey;
use stream::{Connection, LinkNumber, Tag, TargetConnection};
use volume::{Io, IoId, VolumeId};

use super::command_times::CommandTimes;
use super::local_volumes::LocalVolumes;
use super::throttle::HostLimit;

/// The peer is to send `len` bytes of a command's payload, from `at` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveStep<C> {
    pub(super) command: C,
    pub(super) at: u32,
    pub(super) len: u32,
    /// The volume for whose blocks they are; `None`: they are parameters.
    pub(super) volume: Option<VolumeId>,
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
pub(super) struct RetryStep<C> {
    pub(super) command: C,
    pub(super) class: MemoryClass,
    pub(super) len: u32,
}

/// A step that moves payload.
#[derive(Debug)]
pub(super) enum PayloadStep<C> {
    Receive(ReceiveStep<C>),
    Io(IoStep<C>),
    Retry(RetryStep<C>),
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

/// Names steps that wait: an operation by itself, the transfers of a command by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum StepName {
    Io(IoId),
    Scsi(TaskKey),
    Nvme(CommandKey),
}

impl AnyStep {
    /// Its name. Operations of either server have names of their own.
    pub(super) fn name(&self) -> StepName {
        match self {
            AnyStep::Scsi(PayloadStep::Io(step)) => StepName::Io(step.io.id),
            AnyStep::Nvme(PayloadStep::Io(step)) => StepName::Io(step.io.id),
            AnyStep::Scsi(step) => StepName::Scsi(step.command()),
            AnyStep::Nvme(step) => StepName::Nvme(step.command()),
        }
    }

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
    pub(super) writes: VecDeque<ReceiveStep<C>>,
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
    type PeerConnection: TargetConnection;

    /// The protocol, and what waits for the peer.
    fn protocol_and_parked(&mut self) -> (&mut Self::PeerConnection, &mut ParkedSteps<Self::Command>);

    /// By what its host is limited.
    fn host_limit(&self) -> &HostLimit;

    /// How long its commands took and take.
    fn times_mut(&mut self) -> &mut CommandTimes;

    /// The socket has taken a batch, and with it answers.
    fn handle_written(
        &mut self,
        cx: &mut Cx<'_>,
        volumes: &mut LocalVolumes,
        link: LinkNumber,
        how: Result<(), Errno>,
    ) {
        self.protocol_and_parked().0.handle_written(cx, link, how);
        if how.is_err() {
            return;
        }
        while let Some(run) = self.protocol_and_parked().0.poll_written_responses(link) {
            self.times_mut().count_written(cx.now, run, volumes);
        }
    }

    /// Whether what a command holds already covers so much more to be sent.
    fn has_read_reserved(&self, tag: Tag, len: u32) -> bool;

    /// Which memory the data of a write is to be taken from.
    fn memory_class(&self, tag: Tag) -> MemoryClass;

    /// Sends bytes of a command's data.
    fn send_data(&mut self, cx: &mut Cx<'_>, tag: Tag, at: u32, data: Sg);

    /// Memory for a command's payload is there.
    fn recv_data(&mut self, cx: &mut Cx<'_>, tag: Tag, at: u32, memory: SgMut);
}
