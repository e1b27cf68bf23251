//! The state of a volume at its home: what each request changes, without time and without messages.
//! `owner.rs` carries a change through all cores.
//!
//! Invariant: computing a change does not modify the state; only [`Volume::commit`] replaces it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::backend::Geometry;
use crate::bad::BadBlocks;
use crate::change::{Abort, VolumeRequest};
use crate::facts::Facts;
use crate::io::{Durability, Epoch, Op, Refusal, Span, UnservableReason};
use crate::nexus::{Access, Identity, Nexus, PortId};
use crate::notice::{Cause, Notice, NoticeReceivers};
use crate::record::PersistentState;
use crate::reservation::Action;
use crate::view::{HostProtection, View, VolumeState};

/// How many nexuses can prevent the removal of the medium: more than sessions are let in.
const PREVENTING_MAX: usize = 16384;

/// A volume as its home core knows it.
#[derive(Clone, Debug)]
pub struct Volume {
    facts: Facts,
    view: View,
    preventing: BTreeSet<Arc<Identity>>,
}

/// A change that is worked out but does not stand yet.
#[derive(Clone, Debug)]
pub struct Change {
    /// The truth that it makes; its epoch is the next one.
    pub view: View,
    /// Whether what was admitted before must have ended before it is answered.
    pub drain: bool,
    /// Whose tasks it aborts.
    pub abort: Abort,
    /// Who must hear of it.
    pub notices: Vec<Notice>,
    preventing: BTreeSet<Arc<Identity>>,
}

impl Volume {
    /// A volume that was opened with what its record kept.
    pub(crate) fn new(facts: Facts, geometry: Geometry, kept: PersistentState) -> Self {
        let PersistentState { reservations, bad, access, write_protected, host_protection, owes_sanitize } =
            kept;
        // The volume may have shrunk while it was closed.
        let bad = bad.without(Span { lba: geometry.blocks, blocks: u64::MAX });
        let view = View::from(VolumeState {
            reservations,
            bad: Arc::new(bad),
            access,
            write_protected,
            host_protection,
            owes_sanitize,
            // Nobody carries on with one that ran.
            not_ready: owes_sanitize.then_some(UnservableReason::SanitizeFailed),
            ..(*View::of(geometry)).clone()
        });
        Volume { facts, view, preventing: BTreeSet::new() }
    }

    /// What it says of itself.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What is true now.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Makes a change the current state.
    pub fn commit(&mut self, change: &Change) {
        assert!(change.view.epoch > self.view.epoch, "a change is worked out on the truth that it replaces");
        self.view = change.view.clone();
        self.preventing.clone_from(&change.preventing);
    }

    /// Whether a change would alter nothing that any core sees or does.
    pub fn is_noop(&self, change: &Change) -> bool {
        let same = VolumeState { epoch: self.view.epoch, ..(*change.view).clone() };
        same == *self.view && change.abort == Abort::Nobody && change.notices.is_empty() && !change.drain
    }

    /// What `request` changes, or why it is refused.
    pub fn change(&self, request: &VolumeRequest) -> Result<Change, Refusal> {
        match request {
            VolumeRequest::Reserve { who, action } => self.reserve(who, action),
            VolumeRequest::SetAccess { ports, to, by } => Ok(self.set_access(ports, *to, by.as_ref())),
            VolumeRequest::Resize(geometry) => self.resize(*geometry),
            VolumeRequest::WriteProtect(on) => Ok(self.write_protect(*on)),
            VolumeRequest::BackingReadOnly(on) => Ok(self.backing_read_only(*on)),
            VolumeRequest::WriteProtectByHost { by, on } => Ok(self.write_protect_by_host(by, *on)),
            VolumeRequest::HostSettings { by, bits } => Ok(self.host_settings(by, *bits)),
            VolumeRequest::PreventRemoval { by, on } => self.prevent_removal(by, *on),
            VolumeRequest::Eject { .. } => self.eject(),
            VolumeRequest::Load { by } => self.load(by.as_ref()),
            VolumeRequest::Stop => self.unready(UnservableReason::Stopped),
            VolumeRequest::Start => self.ready(UnservableReason::Stopped),
            VolumeRequest::Reset => Ok(self.reset()),
            VolumeRequest::ClearTasks { by } => Ok(self.clear_tasks(by)),
            VolumeRequest::AbortTasks { of } => {
                Ok(Change { abort: Abort::These(vec![of.clone()]), drain: true, ..self.same() })
            }
            VolumeRequest::NexusLost(who) => Ok(self.nexus_lost(who)),
            VolumeRequest::SanitizeStart => self.sanitize_start(),
            VolumeRequest::SanitizeEnd { done } => self.sanitize_end(*done),
            VolumeRequest::SanitizeForgive => {
                let change = self.ready(UnservableReason::SanitizeFailed)?;
                Ok(owing(change, false))
            }
            VolumeRequest::MarkBad { who, span } => self.mark_bad(who, *span),
            VolumeRequest::ClearBad { who, span } => {
                self.view.admit(who, &Op::Write(*span, Durability::Cached))?;
                Ok(self.with_bad(self.view.bad.without(*span)))
            }
            // The home takes it before it comes here.
            VolumeRequest::Withdraw => Ok(self.same()),
            VolumeRequest::Remove => Ok(Change {
                notices: vec![to_all(Cause::InventoryChanged)],
                ..self.not_ready(Some(UnservableReason::Removed))
            }),
        }
    }

    /// A reservation action; see `Reservations::apply`.
    pub fn reserve(&self, who: &Nexus, action: &Action) -> Result<Change, Refusal> {
        let effect = self.view.reservations.apply(who, action)?;
        let reservations = Arc::new(effect.state);
        let abort = if effect.abort.is_empty() { Abort::Nobody } else { Abort::These(effect.abort) };
        let change = self.with(|standing| standing.reservations = reservations);
        Ok(Change { drain: effect.drain, abort, notices: effect.notices, ..change })
    }

    /// New states of the paths by `ports`.
    pub fn set_access(&self, ports: &[PortId], to: Access, by: Option<&Arc<Identity>>) -> Change {
        let change = self.with(|standing| {
            standing.access.retain(|(port, _)| !ports.contains(port));
            if to != Access::Optimized {
                standing.access.extend(ports.iter().map(|port| (*port, to)));
                standing.access.sort_unstable();
                standing.access.dedup();
            }
        });
        let notices = if change.view.access == self.view.access {
            vec![]
        } else {
            vec![to_others(by, Cause::AccessChanged)]
        };
        Change { drain: !to.serves(), notices, ..change }
    }

    /// What the blocks are like from now on.
    pub fn resize(&self, geometry: Geometry) -> Result<Change, Refusal> {
        let old = self.view.geometry;
        if geometry.logical != old.logical || geometry.blocks == 0 {
            // Hosts cannot follow a change of the block size.
            return Err(Refusal::Unsupported);
        }
        let change = self.with(|standing| {
            standing.geometry = geometry;
            let beyond = Span { lba: geometry.blocks, blocks: u64::MAX };
            standing.bad = Arc::new(standing.bad.without(beyond));
        });
        let mut notices = Vec::new();
        if geometry.blocks != old.blocks {
            notices.push(to_all(Cause::CapacityChanged));
        }
        if (Geometry { blocks: old.blocks, ..geometry }) != old {
            notices.push(to_all(Cause::IdentityChanged));
        }
        Ok(Change { drain: geometry.blocks < old.blocks, notices, ..change })
    }

    fn mark_bad(&self, who: &Nexus, span: Span) -> Result<Change, Refusal> {
        self.view.admit(who, &Op::MarkBad(span))?;
        let bad = self.view.bad.with(span).ok_or(Refusal::NoMarkSpace)?;
        Ok(self.with_bad(bad))
    }

    fn with_bad(&self, bad: BadBlocks) -> Change {
        self.with(|standing| standing.bad = Arc::new(bad))
    }

    /// The change to a volume closed (or open again) because a fence could not be kept.
    pub(crate) fn close(&self, closed: bool) -> Change {
        let notices = vec![to_all(Cause::AccessChanged)];
        Change { notices, ..self.with(|standing| standing.closed = closed) }
    }

    fn same(&self) -> Change {
        self.with(|_| {})
    }

    fn with(&self, alter: impl FnOnce(&mut VolumeState)) -> Change {
        let mut standing = (*self.view).clone();
        alter(&mut standing);
        standing.epoch = Epoch(self.view.epoch.0 + 1);
        Change {
            view: View::from(standing),
            drain: false,
            abort: Abort::Nobody,
            notices: Vec::new(),
            preventing: self.preventing.clone(),
        }
    }

    fn write_protect(&self, on: bool) -> Change {
        let notices =
            if on == self.view.write_protected { vec![] } else { vec![to_all(Cause::WriteProtectChanged)] };
        Change { drain: on, notices, ..self.with(|standing| standing.write_protected = on) }
    }

    /// Nothing has to be waited for: the backend refuses what it does not take.
    fn backing_read_only(&self, on: bool) -> Change {
        let change = self.with(|standing| standing.backing_read_only = on);
        let differs = change.view.is_protected() != self.view.is_protected();
        let notices = if differs { vec![to_all(Cause::WriteProtectChanged)] } else { vec![] };
        Change { notices, ..change }
    }

    fn write_protect_by_host(&self, by: &Arc<Identity>, on: bool) -> Change {
        let old = self.view.host_protection;
        let new = match (on, &**by) {
            (false, _) => HostProtection::None,
            (true, Identity::Host(_)) => HostProtection::Lasting,
            (true, Identity::Initiator { .. }) if old.is_on() => old,
            (true, Identity::Initiator { .. }) => HostProtection::UntilReset,
        };
        let notices =
            if on == old.is_on() { vec![] } else { vec![to_others(Some(by), Cause::WriteProtectChanged)] };
        Change { drain: on, notices, ..self.with(|standing| standing.host_protection = new) }
    }

    fn host_settings(&self, by: &Arc<Identity>, bits: u32) -> Change {
        let notices = if bits == self.view.host_settings {
            vec![]
        } else {
            vec![to_others(Some(by), Cause::SettingsChanged)]
        };
        Change { notices, ..self.with(|standing| standing.host_settings = bits) }
    }

    fn prevent_removal(&self, by: &Arc<Identity>, on: bool) -> Result<Change, Refusal> {
        if on && !self.facts.removable {
            return Err(Refusal::Unsupported);
        }
        let mut change = self.same();
        if !on {
            change.preventing.remove(by);
        } else if change.preventing.len() >= PREVENTING_MAX {
            return Err(Refusal::Busy);
        } else {
            change.preventing.insert(by.clone());
        }
        Ok(change)
    }

    fn may_move_medium(&self) -> Result<(), Refusal> {
        if !self.facts.removable {
            return Err(Refusal::Unsupported);
        }
        if self.preventing.is_empty() { Ok(()) } else { Err(Refusal::RemovalPrevented) }
    }

    fn eject(&self) -> Result<Change, Refusal> {
        if self.view.not_ready == Some(UnservableReason::NoMedium) {
            return Ok(self.same());
        }
        self.may_move_medium()?;
        self.unready(UnservableReason::NoMedium)
    }

    fn load(&self, by: Option<&Arc<Identity>>) -> Result<Change, Refusal> {
        self.may_move_medium()?;
        let change = self.ready(UnservableReason::NoMedium)?;
        let was_out = self.view.not_ready == Some(UnservableReason::NoMedium);
        let notices = if was_out { vec![to_others(by, Cause::MediumChanged)] } else { vec![] };
        Ok(Change { notices, ..change })
    }

    /// Not ready from now on, unless it is already for another reason.
    fn unready(&self, why: UnservableReason) -> Result<Change, Refusal> {
        match self.view.not_ready {
            Some(UnservableReason::Stopped) if why == UnservableReason::NoMedium => {
                Ok(self.not_ready(Some(why)))
            }
            Some(other) if other != why || matches!(why, UnservableReason::Sanitizing(_)) => {
                Err(Refusal::NotReady(other))
            }
            Some(_) => Ok(self.same()),
            None => Ok(self.not_ready(Some(why))),
        }
    }

    /// Ready again, if `why` was the reason.
    fn ready(&self, why: UnservableReason) -> Result<Change, Refusal> {
        match self.view.not_ready {
            Some(other) if other == why => Ok(Change { drain: false, ..self.not_ready(None) }),
            Some(other) => Err(Refusal::NotReady(other)),
            None => Ok(self.same()),
        }
    }

    fn not_ready(&self, why: Option<UnservableReason>) -> Change {
        Change { drain: true, ..self.with(|standing| standing.not_ready = why) }
    }

    fn sanitize_start(&self) -> Result<Change, Refusal> {
        let change = match self.view.not_ready {
            Some(UnservableReason::SanitizeFailed) => self.not_ready(Some(UnservableReason::Sanitizing(0))),
            Some(_) | None => self.unready(UnservableReason::Sanitizing(0))?,
        };
        Ok(owing(change, true))
    }

    fn sanitize_end(&self, done: bool) -> Result<Change, Refusal> {
        if self.view.not_ready != Some(UnservableReason::Sanitizing(0)) {
            return Err(Refusal::InvalidAction);
        }
        let change = self.with(|standing| {
            standing.not_ready = if done { None } else { Some(UnservableReason::SanitizeFailed) };
            if done {
                // Every block was written.
                standing.bad = Arc::default();
                standing.owes_sanitize = false;
            }
        });
        Ok(Change { notices: vec![to_all(Cause::SanitizeDone)], ..change })
    }

    fn reset(&self) -> Change {
        let mut change = self.with(|standing| {
            if standing.host_protection == HostProtection::UntilReset {
                standing.host_protection = HostProtection::None;
            }
            standing.host_settings = 0;
            if let Some(without) = standing.reservations.without_legacy_of(None) {
                standing.reservations = Arc::new(without);
            }
        });
        change.preventing.clear();
        let notices = vec![Notice { to: NoticeReceivers::Initiators, cause: Cause::Reset }];
        Change { drain: true, abort: Abort::Initiators, notices, ..change }
    }

    fn clear_tasks(&self, by: &Arc<Identity>) -> Change {
        let notices =
            vec![Notice { to: NoticeReceivers::InitiatorsBut(by.clone()), cause: Cause::TasksCleared }];
        Change { drain: true, abort: Abort::Initiators, notices, ..self.same() }
    }

    /// Whether nothing ends with this nexus.
    pub fn has_nothing_of(&self, who: &Arc<Identity>) -> bool {
        self.view.reservations.without_legacy_of(Some(who)).is_none() && !self.preventing.contains(who)
    }

    fn nexus_lost(&self, who: &Arc<Identity>) -> Change {
        let mut change = self.with(|standing| {
            if let Some(without) = standing.reservations.without_legacy_of(Some(who)) {
                standing.reservations = Arc::new(without);
            }
        });
        change.preventing.remove(who);
        change
    }
}

/// The change that notes besides whether a sanitize is owed.
fn owing(change: Change, owes_sanitize: bool) -> Change {
    let view = View::from(VolumeState { owes_sanitize, ..(*change.view).clone() });
    Change { view, ..change }
}

fn to_all(cause: Cause) -> Notice {
    Notice { to: NoticeReceivers::All, cause }
}

fn to_others(by: Option<&Arc<Identity>>, cause: Cause) -> Notice {
    let to = by.map_or(NoticeReceivers::All, |by| NoticeReceivers::AllBut(by.clone()));
    Notice { to, cause }
}
