//! What a command server wants done for its commands, whatever its protocol.

use buf::{MemoryClass, Sg};

use crate::facts::VolumeId;
use crate::io::{Io, IoId};
use crate::owner_messages::{RequestId, VolumeRequest};

/// Something for the caller of a command server to do. `C` names a command, `R` answers one, and `O` is what only this
/// server wants.
#[derive(Debug)]
pub enum CommandStep<C, R, O> {
    /// Let the peer send `len` bytes of the command's payload, from `at` on; the server's `data` follows.
    /// Void once the command has ended, by [`CommandStep::Respond`] too: who keeps it while there is no
    /// memory drops it then.
    Receive {
        /// The command.
        command: C,
        /// Offset in its data.
        at: u32,
        /// Bytes; never 0.
        len: u32,
        /// The volume for whose blocks they are; `None`: they are parameters.
        volume: Option<VolumeId>,
    },
    /// The command's answer found no memory: call the server's `retry` once there are `len` bytes of this
    /// class. Void once the command has ended, as [`CommandStep::Receive`].
    AwaitMemory {
        /// The command.
        command: C,
        /// Of which class.
        class: MemoryClass,
        /// Bytes; never 0.
        len: u32,
    },
    /// Send these bytes.
    Send {
        /// The command.
        command: C,
        /// Offset in its data.
        at: u32,
        /// The bytes.
        data: Sg,
    },
    /// Answer the command; it has ended.
    Respond {
        /// The command.
        command: C,
        /// How.
        reply: R,
    },
    /// The command has ended without an answer.
    Retire {
        /// The command.
        command: C,
    },
    /// Give this to the volume's gate; the server's `done` follows.
    Io {
        /// The command that it is for.
        command: C,
        /// The volume.
        volume: VolumeId,
        /// The operation.
        io: Io,
        /// Bytes of memory to be attached to `io` as [`Payload::In`](buf::Payload) first; 0 if none.
        want: u32,
        /// Whether the bytes that it reads are for the peer, so that they count against what may be on
        /// its way there.
        to_peer: bool,
    },
    /// Ask that the operation end early; it still ends by `done`.
    Cancel {
        /// The command that it is for.
        command: C,
        /// The volume.
        volume: VolumeId,
        /// The operation.
        io: IoId,
    },
    /// Send this to the volume's home; the server's `answered` follows.
    VolumeRequest {
        /// The volume.
        volume: VolumeId,
        /// The server's number for the request.
        id: RequestId,
        /// What.
        request: VolumeRequest,
    },
    /// What only this server wants.
    Other(O),
}
