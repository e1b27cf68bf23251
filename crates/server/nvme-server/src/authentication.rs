//! The authentication state of a queue (NVMe Base §8.3.5). Its commands are in `admin/auth.rs`.

use std::sync::Arc;
use std::time::Duration;

use buf::Time;
use nvme::auth::{
    AuthState, ConcatenationPolicy, ControllerAuthenticator as Machine, Credentials, DhGroup, DhchapPolicy,
    Hash,
};

use crate::key::{CommandKey, ComputeId};

/// How long a host may take to authenticate a queue, or to authenticate it again.
pub(crate) const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(30);

/// What a host must prove before its queues serve it.
#[derive(Clone, Debug)]
pub struct RequiredAuthentication {
    /// Names and keys.
    pub credentials: Credentials,
    /// What may be used.
    pub policy: DhchapPolicy,
    /// Which PSKs for TLS may be generated on the admin queue.
    pub concatenation: ConcatenationPolicy,
}

impl RequiredAuthentication {
    /// Whether queues are served only after their hosts have authenticated. Else the host is known by the generated
    /// PSK of its TLS, and authenticates only to have it replaced.
    pub fn is_required(&self) -> bool {
        self.concatenation != ConcatenationPolicy::Replacement
    }
}

/// The authentication of a queue.
pub(crate) struct QueueAuthentication {
    pub(crate) machine: Machine,
    /// The command that waits, and for what.
    pub(crate) waiting: Option<(CommandKey, u16, AuthWait)>,
    /// Until when the host must have authenticated.
    pub(crate) deadline: Option<Time>,
    /// The host has authenticated once.
    pub(crate) proven: bool,
    /// Something was computed for it, or was to be.
    pub(crate) cost: bool,
}

/// What a command of authentication waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthWait {
    Data,
    Computation(ComputeId),
    /// Memory for a message of `len` bytes, of an Authentication Receive whose SGL has `room`.
    Memory {
        len: u32,
        room: u32,
    },
}

impl std::fmt::Debug for QueueAuthentication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueAuthentication").field("state", &self.machine.state()).finish_non_exhaustive()
    }
}

impl QueueAuthentication {
    /// The authentication of a queue of this number; `None`: it needs none.
    pub(crate) fn new(what: &Arc<RequiredAuthentication>, qid: u16) -> Option<QueueAuthentication> {
        let required = what.is_required();
        let RequiredAuthentication { credentials, policy, concatenation } =
            RequiredAuthentication::clone(what);
        let machine = Machine::new(credentials, policy);
        let machine = match (qid, required) {
            (0, true) => machine.with_concatenation(concatenation),
            (0, false) => machine.with_concatenation(concatenation).proven(),
            (_, true) => machine,
            (_, false) => return None,
        };
        let proven = !required;
        Some(QueueAuthentication { machine, waiting: None, deadline: None, proven, cost: false })
    }

    /// The host has authenticated in another process, by this method.
    pub(crate) fn set_authenticated(&mut self, method: Option<(Hash, DhGroup)>) {
        self.machine.restore_authenticated(method);
        (self.proven, self.deadline) = (true, None);
    }

    /// Whether commands are served.
    pub(crate) fn is_authenticated(&self) -> bool {
        match self.machine.state() {
            AuthState::Authenticated | AuthState::Reauthenticating => true,
            AuthState::Pending | AuthState::Failed => false,
        }
    }

    /// When the host must be done.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Sets the deadline while something is due, and clears it when nothing is.
    pub(crate) fn update_deadline(&mut self, now: Time) {
        match self.machine.state() {
            AuthState::Authenticated => self.deadline = None,
            AuthState::Pending | AuthState::Reauthenticating | AuthState::Failed => {
                self.deadline.get_or_insert(now + AUTHENTICATION_TIMEOUT);
            }
        }
    }
}
