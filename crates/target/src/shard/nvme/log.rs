//! What an operator may want to know of NVMe hosts.

use std::net::SocketAddr;
use std::sync::Arc;

use nvme::Nqn;
use nvme::fabrics::ConnectRefusal;
use nvme_server::Gone;
use nvme_tcp::Violation;

/// A line about an NVMe host.
#[derive(Clone, Debug)]
pub enum NvmeLine {
    /// A connection ended before it became a queue.
    NotConnected {
        /// Whence.
        peer: SocketAddr,
        /// Who to whom, if it said: host and subsystem.
        names: Option<(Nqn, Nqn)>,
        /// Why; `None`: the peer went away or took too long.
        cause: Option<NvmeCause>,
    },
    /// A host has a controller.
    Connected {
        /// Whence.
        peer: SocketAddr,
        /// Who.
        host: Nqn,
        /// Where.
        subsystem: Nqn,
        /// The controller.
        cntlid: u16,
    },
    /// A controller has ended.
    Disconnected {
        /// Who.
        host: Nqn,
        /// Where.
        subsystem: Nqn,
        /// The controller.
        cntlid: u16,
        /// What ended it.
        why: Gone,
    },
    /// A peer broke the protocol.
    Violation {
        /// Whence.
        peer: SocketAddr,
        /// Who, if it is connected.
        host: Option<Nqn>,
        /// How.
        violation: Violation,
    },
}

/// Why a queue was not connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NvmeCause {
    /// There is no such subsystem at this address.
    NoSubsystem,
    /// No rule of the subsystem lets the host in.
    NotAllowed,
    /// The subsystem, or the daemon, has as many controllers as it may.
    TooManyControllers,
    /// Its source has as many controllers of the discovery service as it may.
    TooManyOfSource,
    /// The host's identifier is in use by the host of this name.
    IdentifierTaken(Arc<str>),
    /// Too many hosts from there have failed to prove who they are: it has to wait.
    PutOff,
    /// It sent another command than Connect first.
    NotConnect,
    /// The Connect was refused, by the controller that it named or for what it said.
    Refused(ConnectRefusal),
    /// There was no memory for it.
    NoMemory,
}

impl NvmeLine {
    /// Whether anybody can cause it at will.
    pub fn is_strangers(&self) -> bool {
        match self {
            NvmeLine::NotConnected { .. } | NvmeLine::Violation { .. } => true,
            NvmeLine::Disconnected { why, .. } => *why == Gone::Unauthenticated,
            NvmeLine::Connected { .. } => false,
        }
    }
}
