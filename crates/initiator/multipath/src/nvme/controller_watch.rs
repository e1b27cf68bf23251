//! While a path is up: keep alive, and events, after which everything that may have changed is checked again.
//!
//! Invariants:
//! - At most one check is in flight; further events are remembered as one bit each, so a flood of events
//!   costs only one check after another.
//! - After the event that another namespace may be attached, no writes, flushes or reservation commands are
//!   sent until it is identified. If identification exceeds the time of an admin command, the path ends,
//!   except for a namespace that is not ready: as long as the controller reports that, the path waits.
//! - A check that is refused for now does not block others.

use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Payload, Time};
use nvme::async_event::AsyncEvent as Notice;
use nvme::identify::{
    self, Cns, Identify, IdentifyIndependentNamespace, IdentifyNamespace, NamespaceIdentifiers,
};
use nvme::log::LogPageId;
use nvme::{Cqe, Sqe, Status, admin};
use volume::PathAccess;

use super::admin_commands::log_page_command;
use super::bringup::{BringupState, VERSION_WITH_DESCRIPTORS, VERSION_WITH_INDEPENDENT, identify_data};
use super::facts::{BlockFormat, NamespaceFacts};
use super::settings::Settings;
use super::{AdminPurpose, NvmePath, PathPhase, RETRY_DELAY, down_reasons};
use crate::{DownReason, PathEvent};

/// Requests for events that wait at the controller.
const EVENT_REQUESTS_MAX: usize = 4;
/// What is looked at where the namespace may be another one, or be different.
const NAMESPACE_RECHECKS: &[Recheck] = &[Recheck::Descriptors, Recheck::Namespace, Recheck::Independent];
/// Those of them that tell who it is.
const IDENTITY_RECHECKS: &[Recheck] = &[Recheck::Descriptors, Recheck::Namespace];
/// Least time between two looks: so events without end do not fill the admin queue.
const RECHECK_PAUSE: Duration = Duration::from_millis(20);

/// Looks that are refused for now are this often twice as long apart each time: up to 1.28 s.
const BACKOFF_DOUBLINGS_MAX: u32 = 6;

/// What may have to be looked at, in the order in which it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recheck {
    /// The list of changed namespaces: reading it clears the event.
    Changed,
    /// Who the namespace is.
    Descriptors,
    Namespace,
    Independent,
    Ana,
    /// The notice of a reservation: reading it clears the event.
    Reservation,
}

impl Recheck {
    const ALL: [Recheck; 6] = [
        Recheck::Changed,
        Recheck::Descriptors,
        Recheck::Namespace,
        Recheck::Independent,
        Recheck::Ana,
        Recheck::Reservation,
    ];

    fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Its command; `None`: there is no need.
    fn recheck_command(self, settings: &Settings, bringup: &BringupState) -> Option<(Sqe, usize)> {
        let log = |lid, len, nsid| Some(log_page_command(lid, 0, nsid, 0, len));
        let identify = |cns| {
            let command = Identify { cns, controller: 0, nsid: settings.nsid, command_set: 0 };
            Some((command.to_sqe(), identify::IDENTIFY_LEN))
        };
        match self {
            Recheck::Changed => log(LogPageId::CHANGED_NAMESPACES, 4096, identify::NSID_ALL),
            Recheck::Descriptors if bringup.version >= VERSION_WITH_DESCRIPTORS => {
                identify(Cns::NAMESPACE_DESCRIPTORS)
            }
            Recheck::Descriptors => None,
            Recheck::Namespace => identify(Cns::NAMESPACE),
            Recheck::Independent if bringup.controller?.version >= VERSION_WITH_INDEPENDENT => {
                identify(Cns::INDEPENDENT_NAMESPACE)
            }
            Recheck::Independent => None,
            Recheck::Ana => bringup.ana_log_command(),
            Recheck::Reservation => log(LogPageId::RESERVATION, 64, 0),
        }
    }

    /// Whether what is refused now was told when the path came up.
    fn was_reported_at_bringup(self, bringup: &BringupState) -> bool {
        let NamespaceIdentifiers { eui64, nguid, uuid, .. } = &bringup.identifiers;
        self != Recheck::Descriptors || eui64.is_some() || nguid.is_some() || uuid.is_some()
    }

    fn bit_set(rechecks: &[Recheck]) -> u8 {
        rechecks.iter().fold(0, |bits, recheck| bits | recheck.bit())
    }
}

/// Keep Alive, and rechecks of what the controller reported as changed.
#[derive(Debug, Default)]
pub(super) struct ControllerWatch {
    /// Half or a quarter of the keep-alive timeout.
    tick: Duration,
    next: Option<Time>,
    patience: Duration,
    /// The controller has answered something since the last tick.
    pub(super) heard: bool,
    /// What is to be looked at, as bits.
    wanted: u8,
    looking: bool,
    /// What was refused for now, as bits, and when it is looked at again.
    put_off: u8,
    again_at: Option<Time>,
    /// How often in a row something was.
    refused: u32,
    /// Not before this time.
    not_before: Option<Time>,
    /// But for who the namespace is: what is written meanwhile goes to who stands there.
    hurry: bool,
    /// What is to tell, since an event, whether another namespace stands here; as bits. Until when it has to, unless
    /// the controller says that the namespace is not ready.
    doubts: u8,
    told_by: Option<Time>,
}

impl ControllerWatch {
    /// An admin queue is up.
    pub(super) fn start_keep_alive(&mut self, now: Time, keep_alive: Duration) {
        *self = ControllerWatch { tick: keep_alive / 4, patience: keep_alive, ..ControllerWatch::default() };
        self.next = Some(now + self.tick);
    }

    /// Only while the path is `up` is anything looked at.
    pub(super) fn poll_timeout(&self, up: bool) -> Option<Time> {
        let rechecks = up && !self.looking;
        let recheck = self.not_before.filter(|_| rechecks && self.wanted != 0);
        let again = self.again_at.filter(|_| rechecks);
        let told_by = self.told_by.filter(|_| up);
        [recheck, again, told_by].into_iter().fold(self.next, stream::earliest)
    }

    /// Whether another namespace may stand here by now.
    pub(super) fn is_identity_in_doubt(&self) -> bool {
        self.doubts != 0
    }

    fn request_rechecks(&mut self, rechecks: &[Recheck]) {
        self.wanted |= Recheck::bit_set(rechecks);
    }

    /// An event was told: what was refused may be told by now.
    fn hasten_postponed(&mut self, now: Time) {
        self.refused = 0;
        self.again_at = self.again_at.map(|at| at.min(now + RECHECK_PAUSE));
    }

    /// Another namespace may stand here by now.
    fn doubt_identity(&mut self, until: Time) {
        self.doubts |= Recheck::bit_set(IDENTITY_RECHECKS);
        self.told_by.get_or_insert(until);
    }

    /// Something was refused for now: it is asked for again, ever more slowly, for the change that it was about
    /// stands.
    fn postpone_recheck(&mut self, now: Time, recheck: Recheck) {
        self.put_off |= recheck.bit();
        self.again_at = Some(now + RECHECK_PAUSE * (1 << self.refused.min(BACKOFF_DOUBLINGS_MAX)));
        self.refused = self.refused.saturating_add(1);
    }

    /// The controller says that it cannot tell yet.
    fn extend_identity_deadline(&mut self, until: Time) {
        self.told_by = self.told_by.map(|before| before.max(until));
    }

    /// Something was told, or never will be.
    fn note_recheck_answered(&mut self, recheck: Recheck) {
        self.put_off &= !recheck.bit();
        if self.put_off == 0 {
            (self.refused, self.again_at) = (0, None);
        }
        // What an event asked for meanwhile is not told yet.
        self.clear_doubt(recheck);
    }

    /// What was asked for settles no doubt.
    fn clear_doubt(&mut self, recheck: Recheck) {
        self.doubts &= !recheck.bit() | self.wanted;
        if self.doubts == 0 {
            self.told_by = None;
        }
    }

    /// What was put off and is due is wanted.
    fn resume_postponed(&mut self, now: Time) {
        if self.again_at.is_some_and(|at| at <= now) {
            self.again_at = None;
            self.wanted |= std::mem::take(&mut self.put_off);
        }
    }
}

/// Whether a namespace has another name than it had. What is not told, or zero, is no name.
fn is_other_namespace(before: &NamespaceIdentifiers, now: &NamespaceIdentifiers) -> bool {
    fn identifiers_differ<const N: usize>(before: Option<[u8; N]>, now: Option<[u8; N]>) -> bool {
        let told = |name: Option<[u8; N]>| name.filter(|name| *name != [0; N]);
        told(before).zip(told(now)).is_some_and(|(before, now)| before != now)
    }
    identifiers_differ(before.uuid, now.uuid)
        || identifiers_differ(before.nguid, now.nguid)
        || identifiers_differ(before.eui64, now.eui64)
}

/// Whether a namespace is not told by a name any more by which it was told.
fn has_lost_identifier(before: &NamespaceIdentifiers, now: &NamespaceIdentifiers) -> bool {
    fn is_identifier_lost<const N: usize>(before: Option<[u8; N]>, now: Option<[u8; N]>) -> bool {
        let told = |name: Option<[u8; N]>| name.is_some_and(|name| name != [0; N]);
        told(before) && !told(now)
    }
    is_identifier_lost(before.uuid, now.uuid)
        || is_identifier_lost(before.nguid, now.nguid)
        || is_identifier_lost(before.eui64, now.eui64)
}

/// The names in Identify Namespace.
fn identifiers_of(facts: &NamespaceFacts) -> NamespaceIdentifiers {
    NamespaceIdentifiers {
        eui64: Some(facts.eui64),
        nguid: Some(facts.nguid),
        ..NamespaceIdentifiers::default()
    }
}

fn other_volume_reason() -> DownReason {
    let text = "another volume has this namespace number now; check the target";
    DownReason::Lost(text.to_owned())
}

fn unidentified_volume_reason() -> DownReason {
    let text = "the controller does not report which volume has this namespace number now; check the target";
    DownReason::Lost(text.to_owned())
}

impl NvmePath {
    /// The path is up: events are asked for.
    pub(super) fn send_async_event_requests(&mut self, cx: &mut Cx<'_>) {
        let Some(known) = self.known else { return };
        let admin = self.admin_queue();
        let wanted = usize::from(known.controller.event_requests).min(EVENT_REQUESTS_MAX);
        while self.admin_commands.count_with_purpose(|purpose| *purpose == AdminPurpose::Event) < wanted {
            let request = (admin::async_event_request_sqe(), 0);
            if !self.admin_commands.send_command(
                cx,
                &mut self.links,
                admin,
                request,
                (AdminPurpose::Event, None),
            ) {
                return;
            }
        }
    }

    /// An event was told.
    pub(super) fn handle_async_event(&mut self, cx: &mut Cx<'_>, cqe: Cqe) {
        let end = cqe.completion();
        if !end.status.is_success() || !matches!(self.state, PathPhase::Up | PathPhase::Ending { .. }) {
            return;
        }
        match Notice::parse(end.result as u32) {
            Notice { kind: 2, info: 0, .. } => {
                self.watch.request_rechecks(&[Recheck::Changed]);
                self.watch.request_rechecks(NAMESPACE_RECHECKS);
                self.watch.doubt_identity(cx.now + self.settings.times.command);
            }
            Notice { kind: 2, info: 3, .. } => self.watch.request_rechecks(&[Recheck::Ana]),
            Notice { kind: 6, info: 0, .. } => self.watch.request_rechecks(&[Recheck::Reservation]),
            // What else there is changes nothing here: errors are told by commands, health is its
            // operator's.
            _ => {}
        }
        self.watch.hasten_postponed(cx.now);
        self.send_next_recheck(cx);
        self.send_async_event_requests(cx);
    }

    /// A path-related status says more than the last look.
    pub(super) fn note_path_access(&mut self, cx: &mut Cx<'_>, access: PathAccess) {
        if self.bringup.access != Some(access) {
            self.bringup.access = Some(access);
            self.report_if_changed();
        }
        self.watch.request_rechecks(&[Recheck::Ana]);
        self.send_next_recheck(cx);
    }

    /// The controller says that a block is beyond the end: perhaps the namespace has another size by now.
    pub(super) fn recheck_namespace_size(&mut self, cx: &mut Cx<'_>) {
        self.watch.request_rechecks(NAMESPACE_RECHECKS);
        self.send_next_recheck(cx);
    }

    /// Looks at the next thing.
    pub(super) fn send_next_recheck(&mut self, cx: &mut Cx<'_>) {
        if self.watch.looking || !matches!(self.state, PathPhase::Up) {
            return;
        }
        self.watch.resume_postponed(cx.now);
        let is_early = self.watch.not_before.is_some_and(|time| time > cx.now);
        if is_early && !self.watch.hurry {
            return;
        }
        let urgent = |recheck: &Recheck| IDENTITY_RECHECKS.contains(recheck);
        let due = |wanted: u8| {
            let mut all = Recheck::ALL.into_iter();
            all.find(|recheck| wanted & recheck.bit() != 0 && (!is_early || urgent(recheck)))
        };
        while let Some(recheck) = due(self.watch.wanted) {
            let Some((sqe, len)) = recheck.recheck_command(&self.settings, &self.bringup) else {
                self.watch.wanted &= !recheck.bit();
                self.watch.note_recheck_answered(recheck);
                continue;
            };
            let until = Some(cx.now + self.settings.times.command);
            let admin = self.admin_queue();
            if self.admin_commands.send_command(
                cx,
                &mut self.links,
                admin,
                (sqe, len),
                (AdminPurpose::Recheck(recheck), until),
            ) {
                self.watch.wanted &= !recheck.bit();
                self.watch.looking = true;
                self.watch.hurry &= recheck != Recheck::Namespace;
            } else {
                // Not at once: until then nothing is due, and the world may sleep.
                (self.watch.not_before, self.watch.hurry) = (Some(cx.now + RETRY_DELAY), false);
                self.schedule_retry(cx.now + RETRY_DELAY);
            }
            return;
        }
    }

    pub(super) fn retry_rechecks(&mut self, cx: &mut Cx<'_>) {
        self.send_next_recheck(cx);
        self.send_async_event_requests(cx);
    }

    /// A look has been answered.
    pub(super) fn handle_recheck_ended(
        &mut self,
        cx: &mut Cx<'_>,
        recheck: Recheck,
        cqe: Cqe,
        payload: Payload,
    ) {
        self.watch.looking = false;
        self.watch.not_before = Some(cx.now + RECHECK_PAUSE);
        self.watch.hurry |= recheck == Recheck::Changed;
        if !matches!(self.state, PathPhase::Up) {
            return;
        }
        let status = cqe.completion().status;
        if status.is_success() {
            let is_in_doubt = self.watch.doubts & recheck.bit() != 0;
            self.watch.note_recheck_answered(recheck);
            self.handle_recheck_data(cx, recheck, &payload, is_in_doubt);
        } else if !status.is_do_not_retry() {
            self.watch.postpone_recheck(cx.now, recheck);
            if status.without_retry_hints() == Status::NAMESPACE_NOT_READY {
                self.watch.extend_identity_deadline(cx.now + self.settings.times.command);
            }
            if !recheck.was_reported_at_bringup(&self.bringup) {
                // What was never told names nobody, and is not waited for.
                self.watch.clear_doubt(recheck);
            }
        } else if self.watch.doubts & recheck.bit() != 0 && recheck.was_reported_at_bringup(&self.bringup) {
            return self.end_association(cx, unidentified_volume_reason());
        } else {
            self.watch.note_recheck_answered(recheck);
        }
        if matches!(self.state, PathPhase::Up) && self.bringup.is_namespace_unread() {
            return self.end_association(cx, down_reasons::namespace_size_unknown());
        }
        if matches!(self.state, PathPhase::Up) {
            self.report_if_changed();
            self.send_next_recheck(cx);
        }
    }

    /// `is_in_doubt`: it is to tell who the namespace is.
    fn handle_recheck_data(
        &mut self,
        cx: &mut Cx<'_>,
        recheck: Recheck,
        payload: &Payload,
        is_in_doubt: bool,
    ) {
        let Some(known) = &mut self.known else { return };
        match recheck {
            Recheck::Changed => {}
            Recheck::Descriptors => {
                // What cannot be read names nobody.
                let said = identify_data(payload).map_or_else(
                    |_| NamespaceIdentifiers::default(),
                    |bytes| NamespaceIdentifiers::parse(&bytes),
                );
                if is_other_namespace(&self.bringup.identifiers, &said) {
                    self.end_association(cx, other_volume_reason());
                } else if is_in_doubt && has_lost_identifier(&self.bringup.identifiers, &said) {
                    self.end_association(cx, unidentified_volume_reason());
                }
            }
            Recheck::Namespace => {
                let said = identify_data(payload).map(|bytes| IdentifyNamespace::parse(&bytes));
                let judged = said
                    .and_then(|said| NamespaceFacts::from_identify(&said, &known.controller, &self.settings));
                // What it does not tell now is as it was.
                let before = known.namespace.format;
                let judged = judged.map(|facts| NamespaceFacts { format: facts.format.or(before), ..facts });
                let shift = |format: Option<BlockFormat>| format.map(|format| format.shift);
                if let Ok(facts) = &judged {
                    let (before, now) = (identifiers_of(&known.namespace), identifiers_of(facts));
                    if is_other_namespace(&before, &now) {
                        return self.end_association(cx, other_volume_reason());
                    }
                    if is_in_doubt && has_lost_identifier(&before, &now) {
                        return self.end_association(cx, unidentified_volume_reason());
                    }
                }
                match judged {
                    // Another block size is another namespace: nothing that is in work fits it.
                    Ok(facts) if before.is_none() || shift(facts.format) == shift(before) => {
                        // Of the limits that go with a shape nothing was learnt without it: that is begun again.
                        let facts = NamespaceFacts { format: before.and(facts.format), ..facts };
                        known.namespace = facts;
                        self.bringup.namespace = Some(facts);
                    }
                    Ok(_) | Err(_) => {
                        let why = "the namespace is gone, or is another one now".to_owned();
                        self.end_association(cx, DownReason::Refused(why));
                    }
                }
            }
            Recheck::Independent => {
                if let Ok(bytes) = identify_data(payload) {
                    known.namespace =
                        known.namespace.merge_independent(&IdentifyIndependentNamespace::parse(&bytes));
                    self.bringup.namespace = Some(known.namespace);
                }
            }
            Recheck::Ana => self.bringup.parse_ana_log(payload),
            // 8: the type; 0 says that there is no notice. The rest of them come one by one.
            Recheck::Reservation => {
                if let Payload::In(page) = payload {
                    let kind = page.pieces().first().and_then(|piece| piece.get(8)).copied();
                    if kind.is_some_and(|kind| kind != 0) {
                        self.events.push_back(PathEvent::ReservationsChanged);
                        self.watch.request_rechecks(&[Recheck::Reservation]);
                    }
                }
            }
        }
    }

    /// Tells what differs from what was told last.
    fn report_if_changed(&mut self) {
        let Some(info) = self.volume_info() else { return };
        if self.info.as_deref() != Some(&info) {
            let info = Arc::new(info);
            self.info = Some(info.clone());
            self.events.push_back(PathEvent::Changed(info));
        }
    }

    pub(super) fn handle_keep_alive_ended(&mut self, cx: &mut Cx<'_>, cqe: Cqe) {
        if !cqe.completion().status.is_success() {
            self.end_association(cx, DownReason::Lost("the controller does not take Keep Alive".to_owned()));
        }
    }

    /// Keep Alive goes at half of the timeout, or at a quarter unless there was traffic where any traffic
    /// keeps alive.
    pub(super) fn run_watch_timers(&mut self, cx: &mut Cx<'_>) {
        if matches!(self.state, PathPhase::Up) && self.watch.told_by.is_some_and(|until| until <= cx.now) {
            return self.end_association(cx, unidentified_volume_reason());
        }
        self.send_next_recheck(cx);
        let Some(next) = self.watch.next.filter(|next| *next <= cx.now) else { return };
        self.watch.next = Some(next.max(cx.now - self.watch.tick) + self.watch.tick);
        let heard = std::mem::take(&mut self.watch.heard);
        let any = self.known.is_some_and(|known| known.controller.any_traffic_keeps_alive);
        // A path that does not serve may serve again, and not every controller tells it.
        if self.bringup.access.is_some_and(|access| !access.allows_io()) {
            self.watch.request_rechecks(&[Recheck::Ana]);
            self.send_next_recheck(cx);
        }
        if any && heard
            || self.admin_commands.count_with_purpose(|purpose| *purpose == AdminPurpose::KeepAlive) > 0
        {
            return;
        }
        let until = Some(cx.now + self.watch.patience);
        let admin = self.admin_queue();
        let alive = (admin::keep_alive_sqe(), 0);
        let _sent_or_next_time = self.admin_commands.send_command(
            cx,
            &mut self.links,
            admin,
            alive,
            (AdminPurpose::KeepAlive, until),
        );
    }
}
