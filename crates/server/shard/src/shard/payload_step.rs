//! Steps that move the payload of commands, whichever server they belong to, and those that are parked at a connection.

use std::collections::VecDeque;

use buf::Class;
use nvme_server::CommandKey;
use scsi_server::TaskKey;
use stream::Tag;
use volume::{Io, IoId, VolumeId};

/// A command of either server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandId {
    Scsi(TaskKey),
    Nvme(CommandKey),
}

impl CommandId {
    /// Its name at its connection.
    pub(super) fn tag(self) -> Tag {
        match self {
            CommandId::Scsi(key) => Tag::from_bits(key.tag),
            CommandId::Nvme(key) => Tag::from_bits(key.tag),
        }
    }
}

/// The peer is to send `len` bytes of a command's payload, from `at` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receive {
    pub(super) command: CommandId,
    pub(super) at: u32,
    pub(super) len: u32,
}

/// A volume is to carry this out.
#[derive(Debug)]
pub(super) struct IoStep {
    pub(super) command: CommandId,
    pub(super) volume: VolumeId,
    pub(super) io: Io,
    /// Bytes of memory to be attached first; 0 if none.
    pub(super) want: u32,
    /// Whether the bytes that it reads are for the peer.
    pub(super) to_peer: bool,
}

/// The NVMe server is to make an answer for which it found no memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    pub(super) command: CommandKey,
    pub(super) class: Class,
    pub(super) len: u32,
}

/// A step that moves payload.
#[derive(Debug)]
pub(super) enum PayloadStep {
    Receive(Receive),
    Io(IoStep),
    Retry(Retry),
}

impl PayloadStep {
    pub(super) fn command(&self) -> CommandId {
        match self {
            PayloadStep::Receive(receive) => receive.command,
            PayloadStep::Io(step) => step.command,
            PayloadStep::Retry(retry) => CommandId::Nvme(retry.command),
        }
    }

    /// Whether it is this operation. Those of either server have names of their own.
    pub(super) fn is_io(&self, id: IoId) -> bool {
        matches!(self, PayloadStep::Io(step) if step.io.id == id)
    }

    /// Whether nobody wants it any more when its command has ended. An operation is cancelled by its name.
    pub(super) fn ends_with_command(&self) -> bool {
        !matches!(self, PayloadStep::Io(_))
    }
}

/// What waits until the peer of a connection has done its part of what was started before.
#[derive(Debug, Default)]
pub(super) struct Parked {
    /// Reads and long answers: until it has read what was sent.
    pub(super) reads: VecDeque<PayloadStep>,
    /// Writes: until it has sent what it was asked for.
    pub(super) writes: VecDeque<Receive>,
}

impl Parked {
    pub(super) fn remove_io(&mut self, id: IoId) -> bool {
        let at = self.reads.iter().position(|step| step.is_io(id));
        at.and_then(|at| self.reads.remove(at)).is_some()
    }

    pub(super) fn remove_transfers(&mut self, of: CommandId) {
        self.reads.retain(|step| !(step.ends_with_command() && step.command() == of));
        self.writes.retain(|receive| receive.command != of);
    }
}
