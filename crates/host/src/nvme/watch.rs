//! What goes on while a path is up: keep alive, and events, upon which what may have changed is looked at
//! again.
//!
//! Invariant: at most one look is in work; what comes meanwhile is remembered as one bit each, so a flood
//! of events costs no more than one look after another.

use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Payload, Time};
use nvme::event::Event as Notice;
use nvme::identify::{self, Cns, Identify, Independent, Namespace};
use nvme::log::{GetLogPage, Lid};
use nvme::{Cqe, Sqe, admin};
use volume::Access;

use super::claims::{NamespaceFacts, Shape};
use super::start::structure;
use super::{Errand, NvmePath, RETRY, State, words};
use crate::{Event, Why};

/// Requests for events that wait at the controller.
const REQUESTS: usize = 4;
/// Least time between two looks: so events without end do not fill the admin queue.
const PAUSE: Duration = Duration::from_millis(20);

/// What may have to be looked at, in the order in which it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The list of changed namespaces: reading it clears the event.
    Changed,
    Namespace,
    Independent,
    Ana,
    /// The notice of a reservation: reading it clears the event.
    Reservation,
}

impl Look {
    const ALL: [Look; 5] = [Look::Changed, Look::Namespace, Look::Independent, Look::Ana, Look::Reservation];

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Half or a quarter of the keep-alive timeout.
    tick: Duration,
    next: Option<Time>,
    patience: Duration,
    /// The controller has answered something since the last tick.
    pub(super) heard: bool,
    /// What is to be looked at, as bits.
    wanted: u8,
    looking: bool,
    /// Not before this time.
    not_before: Option<Time>,
}

impl Watch {
    /// An admin queue is up.
    pub(super) fn begin(&mut self, now: Time, keep_alive: Duration) {
        *self = Watch { tick: keep_alive / 4, patience: keep_alive, ..Watch::default() };
        self.next = Some(now + self.tick);
    }

    /// Only while the path is `up` is anything looked at.
    pub(super) fn poll_timeout(&self, up: bool) -> Option<Time> {
        let look = self.not_before.filter(|_| up && self.wanted != 0 && !self.looking);
        stream::earliest(self.next, look)
    }

    fn want(&mut self, looks: &[Look]) {
        self.wanted |= looks.iter().fold(0, |bits, look| bits | look.bit());
    }
}

impl NvmePath {
    /// The path is up: events are asked for.
    pub(super) fn arm(&mut self, cx: &mut Cx<'_>) {
        let Some(known) = self.known else { return };
        let admin = self.admin();
        let wanted = usize::from(known.controller.event_requests).min(REQUESTS);
        while self.errands.count(|errand| *errand == Errand::Event) < wanted {
            let request = (admin::async_event_request(), 0);
            if !self.errands.send(cx, &mut self.links, admin, request, (Errand::Event, None)) {
                return;
            }
        }
    }

    /// An event was told.
    pub(super) fn event(&mut self, cx: &mut Cx<'_>, cqe: Cqe) {
        let end = cqe.completion();
        if !end.status.is_success() || !matches!(self.state, State::Up | State::Ending { .. }) {
            return;
        }
        match Notice::parse(end.result as u32) {
            Notice { kind: 2, info: 0, .. } => {
                self.watch.want(&[Look::Changed, Look::Namespace, Look::Independent]);
            }
            Notice { kind: 2, info: 3, .. } => self.watch.want(&[Look::Ana]),
            Notice { kind: 6, info: 0, .. } => self.watch.want(&[Look::Reservation]),
            // What else there is changes nothing here: errors are told by commands, health is its
            // operator's.
            _ => {}
        }
        self.look(cx);
        self.arm(cx);
    }

    /// A path-related status says more than the last look.
    pub(super) fn path_says(&mut self, cx: &mut Cx<'_>, access: Access) {
        if self.found.access != Some(access) {
            self.found.access = Some(access);
            self.changed();
        }
        self.watch.want(&[Look::Ana]);
        self.look(cx);
    }

    /// The controller says that a block is beyond the end: perhaps the namespace has another size by now.
    pub(super) fn size_differs(&mut self, cx: &mut Cx<'_>) {
        self.watch.want(&[Look::Namespace]);
        self.look(cx);
    }

    /// Looks at the next thing.
    pub(super) fn look(&mut self, cx: &mut Cx<'_>) {
        if self.watch.looking || !matches!(self.state, State::Up) {
            return;
        }
        if self.watch.not_before.is_some_and(|time| time > cx.now) {
            return;
        }
        while let Some(look) = Look::ALL.into_iter().find(|look| self.watch.wanted & look.bit() != 0) {
            let Some((sqe, len)) = self.look_command(look) else {
                self.watch.wanted &= !look.bit();
                continue;
            };
            let until = Some(cx.now + self.settings.times.command);
            let admin = self.admin();
            if self.errands.send(cx, &mut self.links, admin, (sqe, len), (Errand::Look(look), until)) {
                self.watch.wanted &= !look.bit();
                self.watch.looking = true;
            } else {
                self.retry_at(cx.now + RETRY);
            }
            return;
        }
    }

    pub(super) fn look_again(&mut self, cx: &mut Cx<'_>) {
        self.look(cx);
        self.arm(cx);
    }

    fn look_command(&self, look: Look) -> Option<(Sqe, usize)> {
        let log = |lid, len: u64, nsid| {
            let log = GetLogPage {
                lid,
                specific: 0,
                retain: false,
                len,
                offset: 0,
                by_index: false,
                command_set: 0,
                nsid,
            };
            Some((log.sqe(), len as usize))
        };
        let identify = |cns| {
            let command = Identify { cns, controller: 0, nsid: self.settings.nsid, command_set: 0 };
            Some((command.sqe(), identify::LEN))
        };
        match look {
            Look::Changed => log(Lid::CHANGED_NAMESPACES, 4096, identify::NSID_ALL),
            Look::Namespace => identify(Cns::NAMESPACE),
            Look::Independent if self.known?.controller.version >= 0x0002_0000 => {
                identify(Cns::INDEPENDENT_NAMESPACE)
            }
            Look::Independent => None,
            Look::Ana => self.ana_log(),
            Look::Reservation => log(Lid::RESERVATION, 64, 0),
        }
    }

    /// A look has been answered.
    pub(super) fn looked(&mut self, cx: &mut Cx<'_>, look: Look, cqe: Cqe, payload: Payload) {
        self.watch.looking = false;
        self.watch.not_before = Some(cx.now + PAUSE);
        if !matches!(self.state, State::Up) {
            return;
        }
        if cqe.completion().status.is_success() {
            self.take_look(cx, look, &payload);
        }
        if matches!(self.state, State::Up) && self.is_contradictory() {
            return self.fall(cx, words::unsized_path());
        }
        if matches!(self.state, State::Up) {
            self.changed();
            self.look(cx);
        }
    }

    fn take_look(&mut self, cx: &mut Cx<'_>, look: Look, payload: &Payload) {
        let Some(known) = &mut self.known else { return };
        match look {
            Look::Changed => {}
            Look::Namespace => {
                let said = structure(payload).map(|bytes| Namespace::parse(&bytes));
                let judged =
                    said.and_then(|said| NamespaceFacts::judge(&said, &known.controller, &self.settings));
                // What it does not tell now is as it was.
                let before = known.namespace.shape;
                let judged = judged.map(|facts| NamespaceFacts { shape: facts.shape.or(before), ..facts });
                let shift = |shape: Option<Shape>| shape.map(|shape| shape.shift);
                match judged {
                    // Another block size is another namespace: nothing that is in work fits it.
                    Ok(facts) if before.is_none() || shift(facts.shape) == shift(before) => {
                        // Of the limits that go with a shape nothing was learnt without it: that is begun again.
                        let facts = NamespaceFacts { shape: before.and(facts.shape), ..facts };
                        known.namespace = facts;
                        self.found.namespace = Some(facts);
                    }
                    Ok(_) | Err(_) => {
                        let why = "the namespace is gone, or is another one now".to_owned();
                        self.fall(cx, Why::Refused(why));
                    }
                }
            }
            Look::Independent => {
                if let Ok(bytes) = structure(payload) {
                    known.namespace = known.namespace.and(&Independent::parse(&bytes));
                    self.found.namespace = Some(known.namespace);
                }
            }
            Look::Ana => self.take_ana(payload),
            // 8: the type; 0 says that there is no notice. The rest of them come one by one.
            Look::Reservation => {
                if let Payload::In(page) = payload {
                    let kind = page.pieces().first().and_then(|piece| piece.get(8)).copied();
                    if kind.is_some_and(|kind| kind != 0) {
                        self.events.push_back(Event::ReservationsChanged);
                        self.watch.want(&[Look::Reservation]);
                    }
                }
            }
        }
    }

    /// Tells what differs from the portrait that was told last.
    fn changed(&mut self) {
        let portrait = self.paint();
        if self.portrait.as_deref() != Some(&portrait) {
            let portrait = Arc::new(portrait);
            self.portrait = Some(portrait.clone());
            self.events.push_back(Event::Changed(portrait));
        }
    }

    pub(super) fn kept_alive(&mut self, cx: &mut Cx<'_>, cqe: Cqe) {
        if !cqe.completion().status.is_success() {
            self.fall(cx, Why::Lost("the controller does not take Keep Alive".to_owned()));
        }
    }

    /// Keep Alive goes at half of the timeout, or at a quarter unless there was traffic where any traffic
    /// keeps alive.
    pub(super) fn watch_clock(&mut self, cx: &mut Cx<'_>) {
        self.look(cx);
        let Some(next) = self.watch.next.filter(|next| *next <= cx.now) else { return };
        self.watch.next = Some(next.max(cx.now - self.watch.tick) + self.watch.tick);
        let heard = std::mem::take(&mut self.watch.heard);
        let any = self.known.is_some_and(|known| known.controller.any_traffic_keeps_alive);
        // A path that does not serve may serve again, and not every controller tells it.
        if self.found.access.is_some_and(|access| !access.serves()) {
            self.watch.want(&[Look::Ana]);
            self.look(cx);
        }
        if any && heard || self.errands.count(|errand| *errand == Errand::KeepAlive) > 0 {
            return;
        }
        let until = Some(cx.now + self.watch.patience);
        let admin = self.admin();
        let alive = (admin::keep_alive(), 0);
        let _sent_or_next_time =
            self.errands.send(cx, &mut self.links, admin, alive, (Errand::KeepAlive, until));
    }
}
