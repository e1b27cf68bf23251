//! The state of a volume at its home: what each request changes, without time and without messages.
//! `owner.rs` carries a change through all cores.
//!
//! Invariant: computing a change does not modify the state; only [`VolumeAuthority::commit`] replaces it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::backend::Geometry;
use crate::bad_blocks::BadBlocks;
use crate::facts::VolumeFacts;
use crate::io::{Durability, Epoch, Op, Refusal, SanitizeKind, Span, UnservableReason};
use crate::notice::{Notice, NoticeCause, NoticeReceivers};
use crate::owner_messages::{AbortScope, VolumeRequest};
use crate::record::PersistentState;
use crate::requester::{Identity, PathAccess, PortId, Requester};
use crate::reservation::Action;
use crate::view::{HostWriteProtection, View, VolumeState};

/// How many nexuses can prevent the removal of the medium: more than sessions are let in.
pub(crate) const REMOVAL_PREVENTERS_MAX: usize = 16384;

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
        let PersistentState {
            reservations,
            bad,
            access,
            preferred,
            write_protected,
            host_protection,
            owes_sanitize,
        } = kept;
        // The volume may have shrunk while it was closed.
        let bad = bad.without_span(Span { lba: geometry.blocks, blocks: u64::MAX });
        let view = View::from(VolumeState {
            reservations,
            bad: Arc::new(bad),
            access,
            preferred,
            write_protected,
            host_protection,
            owes_sanitize,
            // Nobody carries on with one that ran.
            not_ready: owes_sanitize.then_some(UnservableReason::SanitizeFailed),
            ..(*View::without_reservations(geometry)).clone()
        });
        VolumeAuthority { facts, view, preventing: BTreeSet::new() }
    }

    /// The same volume as another process has left it.
    pub(crate) fn with_running_state(self, view: View, preventing: BTreeSet<Arc<Identity>>) -> Self {
        VolumeAuthority { view, preventing, ..self }
    }

    /// Who prevents the removal of the medium.
    pub(crate) fn removal_preventers(&self) -> impl Iterator<Item = &Arc<Identity>> {
        self.preventing.iter()
    }

    /// What it says of itself.
    pub fn facts(&self) -> &VolumeFacts {
        &self.facts
    }

    /// What is true now.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Counts views from `epoch` on.
    pub(crate) fn start_at(&mut self, epoch: Epoch) {
        self.view = View::from(VolumeState { epoch, ..(*self.view).clone() });
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
    pub fn plan_request(&self, request: &VolumeRequest) -> Result<PendingChange, Refusal> {
        match request {
            VolumeRequest::Reserve { who, action } => self.plan_reservation_action(who, action),
            VolumeRequest::SetAccess { ports, to, by } => Ok(self.plan_path_access(ports, *to, by.as_ref())),
            VolumeRequest::SetPreferred { ports, on } => Ok(self.plan_preferred_paths(ports, *on)),
            VolumeRequest::Resize(geometry) => self.plan_resize(*geometry),
            VolumeRequest::WriteProtect(on) => Ok(self.plan_write_protect(*on)),
            VolumeRequest::BackingReadOnly(on) => Ok(self.plan_backing_read_only(*on)),
            VolumeRequest::WriteProtectByHost { by, on } => Ok(self.plan_write_protect_by_host(by, *on)),
            VolumeRequest::HostSettings { by, bits } => Ok(self.plan_host_settings(by, *bits)),
            VolumeRequest::PreventRemoval { by, on } => self.plan_prevent_removal(by, *on),
            VolumeRequest::Eject { .. } => self.plan_eject(),
            VolumeRequest::Load { by } => self.plan_load(by.as_ref()),
            VolumeRequest::Stop => self.plan_unready(UnservableReason::Stopped),
            VolumeRequest::Start => self.plan_ready(UnservableReason::Stopped),
            VolumeRequest::Reset => Ok(self.plan_reset()),
            VolumeRequest::ClearTasks { by } => Ok(self.plan_clear_tasks(by)),
            VolumeRequest::AbortTasks { of } => Ok(PendingChange {
                abort: AbortScope::These(vec![of.clone()]),
                drain: true,
                ..self.plan_unchanged()
            }),
            VolumeRequest::NexusLost(who) => Ok(self.plan_nexus_loss(who)),
            VolumeRequest::SanitizeStart { who } => {
                self.plan_sanitize_start(who, UnservableReason::Sanitizing(0))
            }
            VolumeRequest::FormatStart { who } => {
                self.plan_sanitize_start(who, UnservableReason::Formatting(0))
            }
            VolumeRequest::SanitizeEnd { done } => self.plan_sanitize_end(*done),
            VolumeRequest::SanitizeForgive => {
                let change = self.plan_ready(UnservableReason::SanitizeFailed)?;
                Ok(with_sanitize_owed(change, false))
            }
            VolumeRequest::MarkBad { who, span } => self.plan_mark_bad(who, *span),
            VolumeRequest::ClearBad { who, span } => {
                self.view.admit(who, &Op::Write(*span, Durability::Cached))?;
                Ok(self.plan_bad_blocks(self.view.bad.without_span(*span)))
            }
            // The home takes the first before it comes here.
            VolumeRequest::Withdraw | VolumeRequest::Refresh => Ok(self.plan_unchanged()),
            VolumeRequest::Remove => Ok(PendingChange {
                notices: vec![notice_to_all(NoticeCause::InventoryChanged)],
                ..self.plan_readiness(Some(UnservableReason::Removed))
            }),
        }
    }

    /// A reservation action; see `Reservations::apply`.
    pub fn plan_reservation_action(
        &self,
        who: &Requester,
        action: &Action,
    ) -> Result<PendingChange, Refusal> {
        let effect = self.view.reservations.apply(who, action)?;
        let reservations = Arc::new(effect.state);
        let abort =
            if effect.abort.is_empty() { AbortScope::Nobody } else { AbortScope::These(effect.abort) };
        let change = self.plan_state_change(|standing| standing.reservations = reservations);
        Ok(PendingChange { drain: effect.drain, abort, notices: effect.notices, ..change })
    }

    /// New states of the paths by `ports`.
    pub fn plan_path_access(
        &self,
        ports: &[PortId],
        to: PathAccess,
        by: Option<&Arc<Identity>>,
    ) -> PendingChange {
        let change = self.plan_state_change(|standing| {
            standing.access.retain(|(port, _)| !ports.contains(port));
            if to != PathAccess::Optimized {
                standing.access.extend(ports.iter().map(|port| (*port, to)));
                standing.access.sort_unstable();
                standing.access.dedup();
            }
        });
        let notices = if change.view.access == self.view.access {
            vec![]
        } else {
            vec![notice_to_others(by, NoticeCause::AccessChanged)]
        };
        PendingChange { drain: !to.allows_io(), notices, ..change }
    }

    fn plan_preferred_paths(&self, ports: &[PortId], on: bool) -> PendingChange {
        let change = self.plan_state_change(|standing| {
            standing.preferred.retain(|port| !ports.contains(port));
            if on {
                standing.preferred.extend(ports);
                standing.preferred.sort_unstable();
                standing.preferred.dedup();
            }
        });
        let differs = change.view.preferred != self.view.preferred;
        let notices = if differs { vec![notice_to_all(NoticeCause::AccessChanged)] } else { vec![] };
        PendingChange { notices, ..change }
    }

    /// What the blocks are like from now on.
    pub fn plan_resize(&self, geometry: Geometry) -> Result<PendingChange, Refusal> {
        let old = self.view.geometry;
        if geometry.logical != old.logical || geometry.blocks == 0 {
            // Hosts cannot follow a change of the block size.
            return Err(Refusal::Unsupported);
        }
        let change = self.plan_state_change(|standing| {
            standing.geometry = geometry;
            let beyond = Span { lba: geometry.blocks, blocks: u64::MAX };
            standing.bad = Arc::new(standing.bad.without_span(beyond));
        });
        let mut notices = Vec::new();
        if geometry.blocks != old.blocks {
            notices.push(notice_to_all(NoticeCause::CapacityChanged));
        }
        if (Geometry { blocks: old.blocks, ..geometry }) != old {
            notices.push(notice_to_all(NoticeCause::IdentityChanged));
        }
        Ok(PendingChange { drain: geometry.blocks < old.blocks, notices, ..change })
    }

    fn plan_mark_bad(&self, who: &Requester, span: Span) -> Result<PendingChange, Refusal> {
        self.view.admit(who, &Op::MarkBad(span))?;
        let bad = self.view.bad.with_span(span).ok_or(Refusal::NoMarkSpace)?;
        Ok(self.plan_bad_blocks(bad))
    }

    fn plan_bad_blocks(&self, bad: BadBlocks) -> PendingChange {
        self.plan_state_change(|standing| standing.bad = Arc::new(bad))
    }

    /// The change to a volume closed (or open again) because a fence could not be kept.
    pub(crate) fn plan_closed(&self, closed: bool) -> PendingChange {
        let notices = vec![notice_to_all(NoticeCause::AccessChanged)];
        PendingChange { notices, ..self.plan_state_change(|standing| standing.closed = closed) }
    }

    fn plan_unchanged(&self) -> PendingChange {
        self.plan_state_change(|_| {})
    }

    fn plan_state_change(&self, alter: impl FnOnce(&mut VolumeState)) -> PendingChange {
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

    fn plan_write_protect(&self, on: bool) -> PendingChange {
        let notices = if on == self.view.write_protected {
            vec![]
        } else {
            vec![notice_to_all(NoticeCause::WriteProtectChanged)]
        };
        PendingChange {
            drain: on,
            notices,
            ..self.plan_state_change(|standing| standing.write_protected = on)
        }
    }

    /// Nothing has to be waited for: the backend refuses what it does not take.
    fn plan_backing_read_only(&self, on: bool) -> PendingChange {
        let change = self.plan_state_change(|standing| standing.backing_read_only = on);
        let differs = change.view.is_write_protected_for_all() != self.view.is_write_protected_for_all();
        let notices = if differs { vec![notice_to_all(NoticeCause::WriteProtectChanged)] } else { vec![] };
        PendingChange { notices, ..change }
    }

    fn plan_write_protect_by_host(&self, by: &Arc<Identity>, on: bool) -> PendingChange {
        let old = self.view.host_protection;
        let new = match (on, &**by) {
            (false, _) => HostWriteProtection::None,
            (true, Identity::Host(_)) => HostWriteProtection::Lasting,
            (true, Identity::Initiator { .. }) if old.is_on() => old,
            (true, Identity::Initiator { .. }) => HostWriteProtection::UntilReset,
        };
        let notices = if on == old.is_on() {
            vec![]
        } else {
            vec![notice_to_others(Some(by), NoticeCause::WriteProtectChanged)]
        };
        PendingChange {
            drain: on,
            notices,
            ..self.plan_state_change(|standing| standing.host_protection = new)
        }
    }

    fn plan_host_settings(&self, by: &Arc<Identity>, bits: u32) -> PendingChange {
        let notices = if bits == self.view.host_settings {
            vec![]
        } else {
            vec![notice_to_others(Some(by), NoticeCause::SettingsChanged)]
        };
        PendingChange { notices, ..self.plan_state_change(|standing| standing.host_settings = bits) }
    }

    fn plan_prevent_removal(&self, by: &Arc<Identity>, on: bool) -> Result<PendingChange, Refusal> {
        if on && !self.facts.removable {
            return Err(Refusal::Unsupported);
        }
        let mut change = self.plan_unchanged();
        if !on {
            change.preventing.remove(by);
        } else if change.preventing.len() >= REMOVAL_PREVENTERS_MAX {
            return Err(Refusal::Busy);
        } else {
            change.preventing.insert(by.clone());
        }
        Ok(change)
    }

    fn check_medium_movable(&self) -> Result<(), Refusal> {
        if !self.facts.removable {
            return Err(Refusal::Unsupported);
        }
        if self.preventing.is_empty() { Ok(()) } else { Err(Refusal::RemovalPrevented) }
    }

    fn plan_eject(&self) -> Result<PendingChange, Refusal> {
        if self.view.not_ready == Some(UnservableReason::NoMedium) {
            return Ok(self.plan_unchanged());
        }
        self.check_medium_movable()?;
        self.plan_unready(UnservableReason::NoMedium)
    }

    fn plan_load(&self, by: Option<&Arc<Identity>>) -> Result<PendingChange, Refusal> {
        self.check_medium_movable()?;
        let change = self.plan_ready(UnservableReason::NoMedium)?;
        let was_out = self.view.not_ready == Some(UnservableReason::NoMedium);
        let notices = if was_out { vec![notice_to_others(by, NoticeCause::MediumChanged)] } else { vec![] };
        Ok(PendingChange { notices, ..change })
    }

    /// Not ready from now on, unless it is already for another reason.
    fn plan_unready(&self, why: UnservableReason) -> Result<PendingChange, Refusal> {
        match self.view.not_ready {
            Some(UnservableReason::Stopped) if why == UnservableReason::NoMedium => {
                Ok(self.plan_readiness(Some(why)))
            }
            Some(other)
                if other != why
                    || matches!(why, UnservableReason::Sanitizing(_) | UnservableReason::Formatting(_)) =>
            {
                Err(Refusal::NotReady(other))
            }
            Some(_) => Ok(self.plan_unchanged()),
            None => Ok(self.plan_readiness(Some(why))),
        }
    }

    /// Ready again, if `why` was the reason.
    fn plan_ready(&self, why: UnservableReason) -> Result<PendingChange, Refusal> {
        match self.view.not_ready {
            Some(other) if other == why => Ok(PendingChange { drain: false, ..self.plan_readiness(None) }),
            Some(other) => Err(Refusal::NotReady(other)),
            None => Ok(self.plan_unchanged()),
        }
    }

    fn plan_readiness(&self, why: Option<UnservableReason>) -> PendingChange {
        PendingChange { drain: true, ..self.plan_state_change(|standing| standing.not_ready = why) }
    }

    /// `running`: of a sanitize, or of a format. What was changed while it waited for its turn, as by the preempt of
    /// who asks, holds for it too.
    fn plan_sanitize_start(
        &self,
        who: &Requester,
        running: UnservableReason,
    ) -> Result<PendingChange, Refusal> {
        self.view.admit(who, &Op::Sanitize(SanitizeKind::BlockErase))?;
        let change = match self.view.not_ready {
            Some(UnservableReason::SanitizeFailed) => self.plan_readiness(Some(running)),
            Some(_) | None => self.plan_unready(running)?,
        };
        Ok(with_sanitize_owed(change, true))
    }

    fn plan_sanitize_end(&self, done: bool) -> Result<PendingChange, Refusal> {
        let (sanitizes, formats) = (UnservableReason::Sanitizing(0), UnservableReason::Formatting(0));
        if !self.view.not_ready.is_some_and(|why| why == sanitizes || why == formats) {
            return Err(Refusal::InvalidAction);
        }
        let change = self.plan_state_change(|standing| {
            standing.not_ready = if done { None } else { Some(UnservableReason::SanitizeFailed) };
            if done {
                // Every block was written.
                standing.bad = Arc::default();
                standing.owes_sanitize = false;
            }
        });
        Ok(PendingChange { notices: vec![notice_to_all(NoticeCause::SanitizeDone)], ..change })
    }

    /// Nothing changes but what initiators are told.
    pub(crate) fn plan_thin_notice(&self) -> PendingChange {
        let notice = Notice { to: NoticeReceivers::Initiators, cause: NoticeCause::ThinThresholdReached };
        PendingChange { notices: vec![notice], ..self.plan_unchanged() }
    }

    fn plan_reset(&self) -> PendingChange {
        let mut change = self.plan_state_change(|standing| {
            if standing.host_protection == HostWriteProtection::UntilReset {
                standing.host_protection = HostWriteProtection::None;
            }
            standing.host_settings = 0;
            if let Some(without) = standing.reservations.without_legacy_reservation_of(None) {
                standing.reservations = Arc::new(without);
            }
        });
        change.preventing.clear();
        let notices = vec![Notice { to: NoticeReceivers::Initiators, cause: NoticeCause::Reset }];
        PendingChange { drain: true, abort: AbortScope::Initiators, notices, ..change }
    }

    fn plan_clear_tasks(&self, by: &Arc<Identity>) -> PendingChange {
        let notices =
            vec![Notice { to: NoticeReceivers::InitiatorsBut(by.clone()), cause: NoticeCause::TasksCleared }];
        PendingChange { drain: true, abort: AbortScope::Initiators, notices, ..self.plan_unchanged() }
    }

    /// Whether nothing ends with this requester.
    pub fn has_no_state_of(&self, who: &Arc<Identity>) -> bool {
        self.view.reservations.without_legacy_reservation_of(Some(who)).is_none()
            && !self.preventing.contains(who)
    }

    fn plan_nexus_loss(&self, who: &Arc<Identity>) -> PendingChange {
        let mut change = self.plan_state_change(|standing| {
            if let Some(without) = standing.reservations.without_legacy_reservation_of(Some(who)) {
                standing.reservations = Arc::new(without);
            }
        });
        change.preventing.remove(who);
        change
    }
}

/// The change that notes besides whether a sanitize is owed.
fn with_sanitize_owed(change: PendingChange, owes_sanitize: bool) -> PendingChange {
    let view = View::from(VolumeState { owes_sanitize, ..(*change.view).clone() });
    PendingChange { view, ..change }
}

fn notice_to_all(cause: NoticeCause) -> Notice {
    Notice { to: NoticeReceivers::All, cause }
}

fn notice_to_others(by: Option<&Arc<Identity>>, cause: NoticeCause) -> Notice {
    let to = by.map_or(NoticeReceivers::All, |by| NoticeReceivers::AllBut(by.clone()));
    Notice { to, cause }
}
