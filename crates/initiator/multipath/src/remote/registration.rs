//! The registration of one path that has come up: the next request, and the known state.

use volume::reservation::Key;
use volume::{IoId, Time};

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathRegistering {
    pub(super) step: RegisteringStep,
    /// When it is used as it is; `NEVER` while it does not serve.
    pub(super) until: Time,
    /// The question that is out has as long as this to be answered.
    pub(super) asked_until: Time,
    /// Nothing is asked before this time.
    pub(super) not_before: Time,
    /// How often it was put off.
    pub(super) pauses: u8,
    /// How often it was registered.
    pub(super) tries: u8,
    /// The target has said that it is registered.
    pub(super) is_done: bool,
    /// The last report said whose registrations are.
    pub(super) is_named: bool,
    /// This host was registered again since it was asked what it is asked now.
    pub(super) is_outdated: bool,
}

impl PathRegistering {
    /// When the path is used as it is. What the target was asked it may do still, so a question that is out has
    /// its time, however soon `until` is.
    pub(super) fn expires_at(&self) -> Time {
        if self.step.outstanding_request().is_some() { self.until.max(self.asked_until) } else { self.until }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegisteringStep {
    /// A report is to be asked for.
    Look,
    Looking(IoId),
    /// It is to be registered.
    Register(KnownKey),
    /// `is_first`: no registration of it was in doubt before.
    Registering {
        name: IoId,
        old: KnownKey,
        is_first: bool,
    },
    /// Its registration is to be taken back.
    Remove,
    Removing(IoId),
}

impl RegisteringStep {
    /// The question that is out.
    pub(super) fn outstanding_request(self) -> Option<IoId> {
        match self {
            RegisteringStep::Looking(name)
            | RegisteringStep::Registering { name, .. }
            | RegisteringStep::Removing(name) => Some(name),
            RegisteringStep::Look | RegisteringStep::Register(_) | RegisteringStep::Remove => None,
        }
    }
}

/// What the path is known to be registered with; the target refuses its registration if that is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownKey {
    Nothing,
    Key(Key),
}
