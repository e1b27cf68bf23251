//! Reservations, over all paths.
//!
//! A SCSI registrant is an initiator port and a target port: each path is registered separately. An NVMe
//! registrant is the host, on any path. So a registration goes to every iSCSI path that is up and to one NVMe
//! path; everything else goes to one of the best paths. `registering` registers paths that come up later.
//!
//! A reservation belongs to the nexus that took it, and a RELEASE by any other succeeds without effect (SPC-4
//! §5.9.11.2). So a release goes to the path that holds the reservation, and waits for that path if it is
//! down.

use buf::Cx;
use volume::reservation::{Action, Key, RegisterMode};
use volume::{Failure, IoId, Refusal, Time};

use super::path_registering::retry_pause;
use super::{ABORTED, ANSWER_TIMEOUT_MIN, PATH_LOST, RemoteVolume, VolumeStage};
use crate::path::{IoError, Path, Protocol, ReservationOp, Reservations};

/// Most requests in work on a volume.
pub const RESERVATION_OPS_MAX: usize = 16;

/// A request that was taken on.
#[derive(Debug)]
pub(super) struct PendingReservationOp {
    id: IoId,
    request: ReservationOp,
    /// The name that paths know it by.
    name: IoId,
    begun: bool,
    /// Paths to ask, those that have done it, and the one that is asked.
    todo: u32,
    done: u32,
    path: Option<u8>,
    deadline: Time,
    /// The path that is asked has as long as this.
    asked_until: Time,
    /// It is not asked before this time, having been put off so often.
    not_before: Time,
    pauses: u8,
    /// How often a path has not taken it.
    skips: u8,
    found: Option<Reservations>,
    /// What a path said that had no registration to be removed.
    absent: Option<Failure>,
}

impl PendingReservationOp {
    /// When it has waited long enough: for a path, or for the answer of the path that it was given to.
    fn deadline(&self) -> Time {
        if self.path.is_some() { self.deadline.max(self.asked_until) } else { self.deadline }
    }

    /// No path has it.
    pub(super) fn is_waiting_for_path(&self) -> bool {
        self.path.is_none()
    }

    fn is_register(&self) -> bool {
        matches!(self.request, ReservationOp::Change(Action::Register(_)))
    }

    fn is_unregister(&self) -> bool {
        matches!(&self.request, ReservationOp::Change(Action::Register(register))
            if register.mode == RegisterMode::Remove || register.new == Key::NONE)
    }
}

/// How a request ended: with what was reported, if that was asked for.
pub type ReservationReply = (IoId, Result<Option<Reservations>, Failure>);

impl<P: Path> RemoteVolume<P> {
    /// Asks something about the volume's reservations; it ends by [`RemoteVolume::poll_reservation_reply`]. `false`: too
    /// many are in work already. What has waited for `queue_timeout` fails, and so does a change whose path
    /// was lost: whether it was made is not known.
    pub fn submit_reservation_op(&mut self, cx: &mut Cx<'_>, id: IoId, request: ReservationOp) -> bool {
        if self.requests.len() >= RESERVATION_OPS_MAX {
            return false;
        }
        let failure = match self.stage {
            VolumeStage::Opening | VolumeStage::Open => None,
            VolumeStage::Failed => Some(PATH_LOST),
            VolumeStage::Closing | VolumeStage::Closed => Some(ABORTED),
        };
        if let Some(failure) = failure {
            self.replies.push_back((id, Err(failure)));
            return true;
        }
        // Apart from the names of operations.
        let name = IoId(u64::MAX - self.numbers);
        self.numbers += 1;
        let deadline = cx.now + self.settings.queue_timeout;
        self.requests.push(PendingReservationOp {
            id,
            request,
            name,
            begun: false,
            todo: 0,
            done: 0,
            path: None,
            deadline,
            asked_until: cx.now,
            not_before: cx.now,
            pauses: 0,
            skips: 0,
            found: None,
            absent: None,
        });
        self.tasks.expiry = self.tasks.expiry.min(deadline);
        self.has_work = true;
        true
    }

    /// A request that has ended.
    #[must_use]
    pub fn poll_reservation_reply(&mut self) -> Option<ReservationReply> {
        self.replies.pop_front()
    }

    /// Sends what waits; one request at a time, in order.
    pub(super) fn send_reservation_ops(&mut self, cx: &mut Cx<'_>) {
        let Some(first) = self.requests.first() else { return };
        if first.path.is_some() || self.slots.best.is_empty() {
            return;
        }
        if first.not_before > cx.now {
            self.ask_again = self.ask_again.min(first.not_before);
            self.has_work = true;
            return;
        }
        let todo = match first.begun {
            true => Some(first.todo),
            false if first.is_register() => Some(self.paths_for_register() & !first.done),
            false => self.path_for_action(),
        };
        // The path that holds the reservation is down.
        let (Some(todo), Some(first)) = (todo, self.requests.first_mut()) else { return };
        (first.todo, first.begun) = (todo, true);
        if first.todo == 0 {
            // The paths that were left are down: those that have done it suffice, and they join when they are up.
            let lost = first.absent.unwrap_or(PATH_LOST);
            let result = if first.done != 0 { Ok(first.found.take()) } else { Err(lost) };
            return self.finish_reservation_op(cx.now, 0, result);
        }
        let index = first.todo.trailing_zeros() as usize;
        if self.slots[index].path.submit_reservation_op(cx, first.name, first.request.clone()).is_ok() {
            (first.path, first.asked_until) = (Some(index as u8), cx.now + ANSWER_TIMEOUT_MIN);
            self.mark_pending(index);
        } else {
            // One that takes none for now keeps nothing from going by another that is as good.
            first.begun = first.is_register();
            first.skips = first.skips.wrapping_add(1);
            self.schedule_retry(cx.now);
        }
    }

    /// The paths that a registration goes to.
    fn paths_for_register(&self) -> u32 {
        let (mut slots, mut nvme) = (0, false);
        for (index, slot) in self.slots.iter().enumerate() {
            let is_nvme = slot.path.protocol() == Protocol::Nvme;
            if slot.access().is_some() && !(is_nvme && nvme) {
                slots |= 1 << index;
                nvme |= is_nvme;
            }
        }
        slots
    }

    /// The path that anything else goes to; `None`: none of those that it has to go by is up.
    fn path_for_action(&self) -> Option<u32> {
        let request = self.requests.first()?;
        let turn = usize::from(request.skips).checked_rem(self.slots.best.len())?;
        let best = self.slots.best.get(turn).map(|&index| usize::from(index))?;
        let holds = |index: usize| {
            self.registrations.holder.is_some_and(|holder| {
                let by_host = |index: usize| self.slots[index].path.protocol() == Protocol::Nvme;
                index == holder || by_host(index) && by_host(holder)
            })
        };
        let by_holder = || {
            let up =
                (0..self.slots.len()).find(|&index| holds(index) && self.slots[index].access().is_some());
            if holds(best) { Some(best) } else { up }
        };
        let index = match &request.request {
            ReservationOp::Change(Action::Release { kind, .. })
                if self.registrations.holder.is_some() && !kind.is_all_registrants() =>
            {
                by_holder()?
            }
            ReservationOp::Change(Action::Reserve { .. } | Action::Preempt { .. }) => {
                by_holder().unwrap_or(best)
            }
            ReservationOp::Change(_) | ReservationOp::Report => best,
        };
        Some(1 << index)
    }

    /// Ends a request. Of a registration that some paths have made it is remembered, however it ends.
    fn finish_reservation_op(
        &mut self,
        now: Time,
        index: usize,
        result: Result<Option<Reservations>, Failure>,
    ) {
        let request = self.requests.remove(index);
        if result.is_ok() || request.done != 0 && request.is_register() && !request.is_unregister() {
            self.note_reservation_change(now, &request.request, request.done);
        }
        self.replies.push_back((request.id, result));
    }

    pub(super) fn handle_reservation_ended(
        &mut self,
        cx: &mut Cx<'_>,
        index: usize,
        name: IoId,
        how: Result<Option<Reservations>, IoError>,
    ) {
        if self.handle_registering_ended(cx, index, name, &how) {
            return;
        }
        let Some(first) = self.requests.first_mut() else { return };
        if first.name != name || first.path != Some(index as u8) {
            return;
        }
        self.has_work = true;
        first.path = None;
        self.tasks.expiry = self.tasks.expiry.min(first.deadline);
        let report = first.request == ReservationOp::Report;
        let result = match how {
            Ok(found) => {
                first.found = found.or(first.found.take());
                first.todo &= !(1 << index);
                first.done |= 1 << index;
                match first.request {
                    ReservationOp::Change(Action::Reserve { .. }) => self.registrations.holder = Some(index),
                    // It takes the reservation if it was the victim's: ours stays where it is, unless we are it.
                    ReservationOp::Change(Action::Preempt { victim, .. }) => {
                        let is_ours =
                            self.registrations.registered.as_ref().is_some_and(|ours| ours.new == victim);
                        self.registrations.holder =
                            if is_ours { Some(index) } else { self.registrations.holder.or(Some(index)) };
                    }
                    ReservationOp::Change(Action::Release { .. } | Action::Clear { .. }) => {
                        self.registrations.holder = None
                    }
                    ReservationOp::Change(_) | ReservationOp::Report => {}
                }
                if first.todo != 0 {
                    return;
                }
                Ok(first.found.take())
            }
            // What is to be removed is not there by this path; by another one it may be.
            Err(IoError::Failed(failure @ Failure::Refused(Refusal::NotRegistered | Refusal::Conflict)))
                if first.is_unregister() =>
            {
                first.todo &= !(1 << index);
                first.absent = Some(failure);
                if first.todo != 0 {
                    return;
                }
                if first.done != 0 { Ok(None) } else { Err(failure) }
            }
            Err(IoError::Failed(failure)) => Err(failure),
            Err(error @ IoError::NotDone(_)) => {
                // Elsewhere, or here again; at the deadline it is over.
                first.not_before = cx.now + retry_pause(&error, first.pauses);
                first.pauses = first.pauses.saturating_add(1);
                first.begun = first.todo.count_ones() > 1;
                return;
            }
            Err(error @ IoError::InDoubt) if report => {
                first.not_before = cx.now + retry_pause(&error, first.pauses);
                first.pauses = first.pauses.saturating_add(1);
                first.begun = false;
                return;
            }
            Err(IoError::InDoubt) => Err(PATH_LOST),
        };
        self.finish_reservation_op(cx.now, 0, result);
        self.send_reservation_ops(cx);
    }

    /// A path is not up any more.
    pub(super) fn drop_path_reservation_ops(&mut self, index: usize) {
        for request in &mut self.requests {
            request.todo &= !(1 << index);
            if request.todo == 0 && request.path.is_none() && !request.is_register() {
                request.begun = false;
            }
        }
    }

    /// Ends all requests.
    pub(super) fn fail_reservation_ops(&mut self, now: Time) {
        while !self.requests.is_empty() {
            self.finish_reservation_op(now, 0, Err(PATH_LOST));
        }
    }

    /// Ends the requests that wait for a path. One that a path has been given may be carried out still: its path
    /// ends it, or the time that it has for its answer.
    pub(super) fn fail_waiting_reservation_ops(&mut self, now: Time) {
        while let Some(index) = self.requests.iter().position(PendingReservationOp::is_waiting_for_path) {
            self.finish_reservation_op(now, index, Err(PATH_LOST));
        }
    }

    pub(super) fn expire_reservation_ops(&mut self, now: Time) {
        let mut index = 0;
        while let Some(request) = self.requests.get(index) {
            let until = request.deadline();
            if until <= now {
                self.finish_reservation_op(now, index, Err(PATH_LOST));
            } else {
                self.tasks.expiry = self.tasks.expiry.min(until);
                index += 1;
            }
        }
    }
}
