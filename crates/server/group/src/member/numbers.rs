//! What is given once in the group: port numbers, controller identifiers, names of host identifiers, versions of the
//! configuration.
//!
//! Invariant: a number counts as given when the swap that gives it is known to be done, not before.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use buf::Time;

use super::{Member, Output, Phase, RestartCause};
use crate::codec::Damage;
use crate::failpoint::Failpoint;
use crate::ids::RequestId;
use crate::object::{
    Allocations, AllocationsEdit, CONFIGURATION_MAX, CONTROLLER_RANGE, ConfigurationEdit, NAME_MAX, Object,
};
use crate::register::{Register, RegisterEvent};
use crate::store::ObjectName;

/// How many requests of each kind wait at a time: a configuration has fewer ports, and hosts that connect try again.
const REQUESTS_MAX: usize = 1024;

/// Why a configuration was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyError {
    /// It replaces another version than the one that stands.
    Conflict {
        /// The version that stands.
        stands: u64,
    },
    /// It has more than [`CONFIGURATION_MAX`] bytes.
    TooLong,
    /// Too many requests wait. Try again.
    Busy,
    /// What stands cannot be read.
    Damaged(Damage),
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApplyError::Conflict { stands } => {
                write!(
                    f,
                    "the configuration was changed meanwhile: it is at version {stands}; read it and try again"
                )
            }
            ApplyError::TooLong => write!(f, "the configuration has more than {CONFIGURATION_MAX} bytes"),
            ApplyError::Busy => write!(f, "too many changes wait; try again"),
            ApplyError::Damaged(damage) => write!(f, "the group's configuration object is damaged: {damage}"),
        }
    }
}

impl std::error::Error for ApplyError {}

/// Why a port has no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortError {
    /// All 65,535 are given.
    Exhausted,
    /// Its name has more than [`NAME_MAX`] bytes.
    TooLong,
    /// Too many requests wait. Try again.
    Busy,
    /// The allocations object cannot be read.
    Damaged(Damage),
}

/// Why a host may not connect under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostBindError {
    /// Another host uses the identifier, under this name.
    OtherName(Arc<str>),
    /// [`HOSTS_MAX`](crate::HOSTS_MAX) identifiers are in use.
    Full,
    /// Its name has more than [`NAME_MAX`] bytes.
    TooLong,
    /// Too many requests wait. Try again.
    Busy,
    /// The allocations object cannot be read.
    Damaged(Damage),
}

/// Who waits for the changes of an object, in their order.
#[derive(Debug, Default)]
pub(super) struct Requests {
    allocations: VecDeque<Option<RequestId>>,
    configuration: VecDeque<RequestId>,
    /// Ranges of controller identifiers that were put out.
    ranges: BTreeSet<u16>,
}

impl<P: Clone> Member<P> {
    /// A number for the port of this name: the same each time, at every gateway. [`Output::Port`] has it.
    pub fn allocate_port(&mut self, now: Time, id: RequestId, name: &str) {
        if !self.called(now) {
            return;
        }
        if name.len() > NAME_MAX {
            return self.reply_to(id, |id| Output::Port { id, result: Err(PortError::TooLong) });
        }
        if self.requests.allocations.len() >= REQUESTS_MAX {
            return self.reply_to(id, |id| Output::Port { id, result: Err(PortError::Busy) });
        }
        self.change_allocations(Some(id), AllocationsEdit::Port(name.into()));
        self.turn(now);
    }

    /// A host of this identifier and name wants to connect here. [`Output::HostBound`] says whether it may.
    pub fn bind_host(&mut self, now: Time, id: RequestId, host: [u8; 16], nqn: &str) {
        if !self.called(now) {
            return;
        }
        let result = if nqn.len() > NAME_MAX {
            Err(HostBindError::TooLong)
        } else if self.requests.allocations.len() >= REQUESTS_MAX {
            Err(HostBindError::Busy)
        } else {
            Ok(())
        };
        if result.is_err() {
            return self.reply_to(id, |id| Output::HostBound { id, result });
        }
        let expelled = self.members.value().expelled().collect();
        let edit = AllocationsEdit::Bind { host, nqn: nqn.into(), user: self.me, expelled };
        self.change_allocations(Some(id), edit);
        self.turn(now);
    }

    /// The last connection of a host here has ended, and no registration needs its name.
    pub fn release_host(&mut self, now: Time, host: [u8; 16]) {
        if self.called(now) {
            self.change_allocations(None, AllocationsEdit::Release { host, user: self.me });
            self.turn(now);
        }
    }

    /// The controller identifiers given so far are used up. [`Output::ControllerIds`] has more.
    pub fn allocate_controller_ids(&mut self, now: Time) {
        if self.called(now) && self.phase == Phase::Joined {
            self.want_range();
            self.turn(now);
        }
    }

    /// Makes these bytes the group's configuration, in the place of version `base` (0: there is none yet) or of
    /// whichever stands. [`Output::Applied`] tells the outcome.
    pub fn apply(&mut self, now: Time, id: RequestId, base: Option<u64>, bytes: &[u8]) {
        if !self.called(now) {
            return;
        }
        let refused = if bytes.len() > CONFIGURATION_MAX {
            Some(ApplyError::TooLong)
        } else if self.requests.configuration.len() >= REQUESTS_MAX {
            Some(ApplyError::Busy)
        } else {
            self.configuration.damage().map(ApplyError::Damaged)
        };
        if let Some(refused) = refused {
            return self.reply_to(id, |id| Output::Applied { id, result: Err(refused) });
        }
        self.requests.configuration.push_back(id);
        self.configuration.change(&mut self.store, ConfigurationEdit { base, bytes: bytes.into() });
        self.turn(now);
    }

    /// Whether a controller identifier is in a range of this instance.
    pub(super) fn has_controller_id(&self, cntlid: u16) -> bool {
        self.requests
            .ranges
            .iter()
            .any(|first| (*first..first.saturating_add(CONTROLLER_RANGE)).contains(&cntlid))
    }

    pub(super) fn want_range(&mut self) {
        let has = self.requests.ranges.len();
        let edit = AllocationsEdit::Range { instance: self.me, has };
        if self.store.failpoints.has(Failpoint::RangeGivenTwice)
            && let Some(next) = self.allocations.value().edited(&edit, 0)
        {
            self.tell_ranges(&next);
        }
        self.change_allocations(None, edit);
    }

    pub(super) fn change_allocations(&mut self, id: Option<RequestId>, edit: AllocationsEdit) {
        self.requests.allocations.push_back(id);
        self.allocations.change(&mut self.store, edit);
    }

    fn tell_ranges(&mut self, allocations: &Allocations) -> bool {
        let mut any = false;
        for first in allocations.ranges_of(self.me) {
            if self.requests.ranges.insert(first) {
                any = true;
                self.outputs.push_back(Output::ControllerIds { first, count: CONTROLLER_RANGE });
            }
        }
        any
    }

    /// Takes what has come of changes.
    pub(super) fn run_numbers(&mut self) {
        while let Some(event) = self.allocations.poll_event() {
            match event {
                RegisterEvent::Read => {}
                RegisterEvent::Settled(edit, _) => {
                    let id = self.requests.allocations.pop_front().flatten();
                    self.allocated(id, edit);
                }
                RegisterEvent::Undecidable => return self.end(RestartCause::Undecidable),
                RegisterEvent::Damaged(damage) => {
                    // Without it no controller and no port may be made.
                    return self.end(RestartCause::Damaged(ObjectName::Allocations, damage));
                }
            }
        }
        while let Some(event) = self.configuration.poll_event() {
            match event {
                RegisterEvent::Read => self.tell_configuration(),
                RegisterEvent::Settled(_, wrote) => {
                    let Some(id) = self.requests.configuration.pop_front() else { continue };
                    let stands = self.configuration.count();
                    let result = wrote.ok_or(ApplyError::Conflict { stands });
                    self.outputs.push_back(Output::Applied { id, result });
                }
                RegisterEvent::Undecidable => return self.end(RestartCause::Undecidable),
                RegisterEvent::Damaged(damage) => self.configuration_damaged(damage),
            }
        }
    }

    fn allocated(&mut self, id: Option<RequestId>, edit: AllocationsEdit) {
        let allocations = self.allocations.value();
        match (edit, id) {
            (AllocationsEdit::Range { .. }, _) => {
                let allocations = allocations.clone();
                if !self.tell_ranges(&allocations) && self.requests.ranges.is_empty() {
                    self.outputs.push_back(Output::NoControllerIds);
                }
            }
            (AllocationsEdit::Port(name), Some(id)) => {
                let result = allocations.port(&name).ok_or(PortError::Exhausted);
                self.outputs.push_back(Output::Port { id, result });
            }
            (AllocationsEdit::Bind { host, nqn, .. }, Some(id)) => {
                let result = match allocations.nqn(&host, self.me) {
                    Some((known, true)) if known == nqn => Ok(()),
                    Some((known, _)) => Err(HostBindError::OtherName(known)),
                    None => Err(HostBindError::Full),
                };
                self.outputs.push_back(Output::HostBound { id, result });
            }
            (AllocationsEdit::Port(_) | AllocationsEdit::Bind { .. }, None) => {}
            (AllocationsEdit::Forget(gone), _) => self.forgotten(gone),
            (AllocationsEdit::Release { .. }, _) => {}
        }
    }

    fn tell_configuration(&mut self) {
        let version = self.configuration.count();
        if version > self.configuration_told && self.configuration.damage().is_none() {
            self.configuration_told = version;
            let bytes = self.configuration.value().0.clone();
            self.outputs.push_back(Output::Configuration { version, bytes });
        }
    }

    fn configuration_damaged(&mut self, damage: Damage) {
        self.outputs.push_back(Output::Damaged { object: ObjectName::Configuration, damage });
        Register::retain_changes(&mut self.configuration, |_| false);
        for id in self.requests.configuration.drain(..) {
            self.outputs.push_back(Output::Applied { id, result: Err(ApplyError::Damaged(damage)) });
        }
    }
}
