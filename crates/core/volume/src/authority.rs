//! The state of a volume at its home: what each request changes, without time and without messages.
//! `owner.rs` carries a change through all cores.
//!
//! Invariant: computing a change does not modify the state; only [`VolumeAuthority::commit`] replaces it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::backend::Geometry;
use crate::bad::BadBlocks;
use crate::change::{AbortScope, VolumeRequest};
use crate::facts::VolumeFacts;
use crate::io::{Durability, Epoch, Op, Refusal, Span, UnservableReason};
use crate::notice::{Notice, NoticeCause, NoticeReceivers};
use crate::record::PersistentState;
use crate::requester::{Access, Identity, PortId, Requester};
use crate::reservation::Action;
use crate::view::{HostProtection, View, VolumeState};

/// How many nexuses can prevent the removal of the medium: more than sessions are let in.
const PREVENTING_MAX: usize = 16384;

/// A volume as its home core knows it.
#[derive(Clone, Debug)]
pub struct VolumeAuthority {
    facts: VolumeFacts,
    view: View,
    preventing: BTreeSet<Arc<Identity>>,
}

/// A change that is worked out but does not stand yet.
#[derive(Clone, Debug)]
pub struct PendingChange {
    /// The truth that it makes; its epoch is the next one.
    pub view: View,
    /// Whether what was admitted before must have ended before it is answered.
    pub drain: bool,
    /// Whose tasks it aborts.
    pub abort: AbortScope,
    /// Who must hear of it.
    pub notices: Vec<Notice>,
    preventing: BTreeSet<Arc<Identity>>,
}

impl VolumeAuthority {
    /// A volume that was opened with what its record kept.
    pub(crate) fn new(facts: VolumeFacts, geometry: Geometry, kept: PersistentState) -> Self {
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
        VolumeAuthority { facts, view, preventing: BTreeSet::new() }
    }

    /// What it says of itself.
    pub fn facts(&self) -> &VolumeFacts {
        &self.facts
    }

    /// What is true now.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Makes a change the current state.
    pub fn commit(&mut self, change: &PendingChange) {
        assert!(change.view.epoch > self.view.epoch, "a change is worked out on the truth that it replaces");
        self.view = change.view.clone();
        self.preventing.clone_from(&change.preventing);
    }

    /// Whether a change would alter nothing that any core sees or does.
    pub fn is_noop(&self, change: &PendingChange) -> bool {
        let same = VolumeState { epoch: self.view.epoch, ..(*change.view).clone() };
        same == *self.view && change.abort == AbortScope::Nobody && change.notices.is_empty() && !change.drain
    }

    /// What `request` changes, or why it is refused.
    pub fn change(&self, request: &VolumeRequest) -> Result<PendingChange, Refusal> {
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
                Ok(PendingChange { abort: AbortScope::These(vec![of.clone()]), drain: true, ..self.same() })
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
            VolumeRequest::Remove => Ok(PendingChange {
                notices: vec![to_all(NoticeCause::InventoryChanged)],
                ..self.not_ready(Some(UnservableReason::Removed))
            }),
        }
    }

    /// A reservation action; see `Reservations::apply`.
    pub fn reserve(&self, who: &Requester, action: &Action) -> Result<PendingChange, Refusal> {
        let effect = self.view.reservations.apply(who, action)?;
        let reservations = Arc::new(effect.state);
        let abort =
            if effect.abort.is_empty() { AbortScope::Nobody } else { AbortScope::These(effect.abort) };
        let change = self.with(|standing| standing.reservations = reservations);
        Ok(PendingChange { drain: effect.drain, abort, notices: effect.notices, ..change })
    }

    /// New states of the paths by `ports`.
    pub fn set_access(&self, ports: &[PortId], to: Access, by: Option<&Arc<Identity>>) -> PendingChange {
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
            vec![to_others(by, NoticeCause::AccessChanged)]
        };
        PendingChange { drain: !to.serves(), notices, ..change }
    }

    /// What the blocks are like from now on.
    pub fn resize(&self, geometry: Geometry) -> Result<PendingChange, Refusal> {
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
            notices.push(to_all(NoticeCause::CapacityChanged));
        }
        if (Geometry { blocks: old.blocks, ..geometry }) != old {
            notices.push(to_all(NoticeCause::IdentityChanged));
        }
        Ok(PendingChange { drain: geometry.blocks < old.blocks, notices, ..change })
    }

    fn mark_bad(&self, who: &Requester, span: Span) -> Result<PendingChange, Refusal> {
        self.view.admit(who, &Op::MarkBad(span))?;
        let bad = self.view.bad.with(span).ok_or(Refusal::NoMarkSpace)?;
        Ok(self.with_bad(bad))
    }

    fn with_bad(&self, bad: BadBlocks) -> PendingChange {
        self.with(|standing| standing.bad = Arc::new(bad))
    }

    /// The change to a volume closed (or open again) because a fence could not be kept.
    pub(crate) fn close(&self, closed: bool) -> PendingChange {
        let notices = vec![to_all(NoticeCause::AccessChanged)];
        PendingChange { notices, ..self.with(|standing| standing.closed = closed) }
    }

    fn same(&self) -> PendingChange {
        self.with(|_| {})
    }

    fn with(&self, alter: impl FnOnce(&mut VolumeState)) -> PendingChange {
        let mut standing = (*self.view).clone();
        alter(&mut standing);
        standing.epoch = Epoch(self.view.epoch.0 + 1);
        PendingChange {
            view: View::from(standing),
            drain: false,
            abort: AbortScope::Nobody,
            notices: Vec::new(),
            preventing: self.preventing.clone(),
        }
    }

    fn write_protect(&self, on: bool) -> PendingChange {
        let notices = if on == self.view.write_protected {
            vec![]
        } else {
            vec![to_all(NoticeCause::WriteProtectChanged)]
        };
        PendingChange { drain: on, notices, ..self.with(|standing| standing.write_protected = on) }
    }

    /// Nothing has to be waited for: the backend refuses what it does not take.
    fn backing_read_only(&self, on: bool) -> PendingChange {
        let change = self.with(|standing| standing.backing_read_only = on);
        let differs = change.view.is_protected() != self.view.is_protected();
        let notices = if differs { vec![to_all(NoticeCause::WriteProtectChanged)] } else { vec![] };
        PendingChange { notices, ..change }
    }

    fn write_protect_by_host(&self, by: &Arc<Identity>, on: bool) -> PendingChange {
        let old = self.view.host_protection;
        let new = match (on, &**by) {
            (false, _) => HostProtection::None,
            (true, Identity::Host(_)) => HostProtection::Lasting,
            (true, Identity::Initiator { .. }) if old.is_on() => old,
            (true, Identity::Initiator { .. }) => HostProtection::UntilReset,
        };
        let notices = if on == old.is_on() {
            vec![]
        } else {
            vec![to_others(Some(by), NoticeCause::WriteProtectChanged)]
        };
        PendingChange { drain: on, notices, ..self.with(|standing| standing.host_protection = new) }
    }

    fn host_settings(&self, by: &Arc<Identity>, bits: u32) -> PendingChange {
        let notices = if bits == self.view.host_settings {
            vec![]
        } else {
            vec![to_others(Some(by), NoticeCause::SettingsChanged)]
        };
        PendingChange { notices, ..self.with(|standing| standing.host_settings = bits) }
    }

    fn prevent_removal(&self, by: &Arc<Identity>, on: bool) -> Result<PendingChange, Refusal> {
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

    fn eject(&self) -> Result<PendingChange, Refusal> {
        if self.view.not_ready == Some(UnservableReason::NoMedium) {
            return Ok(self.same());
        }
        self.may_move_medium()?;
        self.unready(UnservableReason::NoMedium)
    }

    fn load(&self, by: Option<&Arc<Identity>>) -> Result<PendingChange, Refusal> {
        self.may_move_medium()?;
        let change = self.ready(UnservableReason::NoMedium)?;
        let was_out = self.view.not_ready == Some(UnservableReason::NoMedium);
        let notices = if was_out { vec![to_others(by, NoticeCause::MediumChanged)] } else { vec![] };
        Ok(PendingChange { notices, ..change })
    }

    /// Not ready from now on, unless it is already for another reason.
    fn unready(&self, why: UnservableReason) -> Result<PendingChange, Refusal> {
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
    fn ready(&self, why: UnservableReason) -> Result<PendingChange, Refusal> {
        match self.view.not_ready {
            Some(other) if other == why => Ok(PendingChange { drain: false, ..self.not_ready(None) }),
            Some(other) => Err(Refusal::NotReady(other)),
            None => Ok(self.same()),
        }
    }

    fn not_ready(&self, why: Option<UnservableReason>) -> PendingChange {
        PendingChange { drain: true, ..self.with(|standing| standing.not_ready = why) }
    }

    fn sanitize_start(&self) -> Result<PendingChange, Refusal> {
        let change = match self.view.not_ready {
            Some(UnservableReason::SanitizeFailed) => self.not_ready(Some(UnservableReason::Sanitizing(0))),
            Some(_) | None => self.unready(UnservableReason::Sanitizing(0))?,
        };
        Ok(owing(change, true))
    }

    fn sanitize_end(&self, done: bool) -> Result<PendingChange, Refusal> {
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
        Ok(PendingChange { notices: vec![to_all(NoticeCause::SanitizeDone)], ..change })
    }

    fn reset(&self) -> PendingChange {
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
        let notices = vec![Notice { to: NoticeReceivers::Initiators, cause: NoticeCause::Reset }];
        PendingChange { drain: true, abort: AbortScope::Initiators, notices, ..change }
    }

    fn clear_tasks(&self, by: &Arc<Identity>) -> PendingChange {
        let notices =
            vec![Notice { to: NoticeReceivers::InitiatorsBut(by.clone()), cause: NoticeCause::TasksCleared }];
        PendingChange { drain: true, abort: AbortScope::Initiators, notices, ..self.same() }
    }

    /// Whether nothing ends with this requester.
    pub fn has_nothing_of(&self, who: &Arc<Identity>) -> bool {
        self.view.reservations.without_legacy_of(Some(who)).is_none() && !self.preventing.contains(who)
    }

    fn nexus_lost(&self, who: &Arc<Identity>) -> PendingChange {
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
fn owing(change: PendingChange, owes_sanitize: bool) -> PendingChange {
    let view = View::from(VolumeState { owes_sanitize, ..(*change.view).clone() });
    PendingChange { view, ..change }
}

fn to_all(cause: NoticeCause) -> Notice {
    Notice { to: NoticeReceivers::All, cause }
}

fn to_others(by: Option<&Arc<Identity>>, cause: NoticeCause) -> Notice {
    let to = by.map_or(NoticeReceivers::All, |by| NoticeReceivers::AllBut(by.clone()));
    Notice { to, cause }
}
