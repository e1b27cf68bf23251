//! Operations from their submission to their end: one command for a read or a write, several, one after
//! another, for what one cannot carry.
//!
//! Invariant: an operation ends once, after the last of its commands; its memory goes with it.

use buf::{Cx, Payload, Time};
use nvme::{Cqe, Status, admin};
use stream::{Tag, earliest};
use volume::{Failure, IoId, Op, Outcome, Refusal};

use super::fate::{self, Circumstances};
use super::flight::{Flight, Known, Plan, Stage, Work, worse};
use super::links::QueueId;
use super::reserve::Asked;
use super::{AdminPurpose, NvmePath, RETRY, State};
use crate::{Claim, Event, Fate, Why};

/// How often operations are looked over: this part of their time.
const SCANS: u32 = 8;
/// Until a caller's wish to end an operation is looked at again, where Aborts are short.
const ABORT_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// Until an operation comes again that a path could not take whose blocks are not known.
const UNKNOWN_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

impl NvmePath {
    /// [`Path::submit`](crate::Path::submit).
    pub(super) fn operate(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        mut op: Op,
        payload: Payload,
    ) -> Result<(), (Op, Payload)> {
        let (Some(known), State::Up) = (self.known, &self.state) else { return Err((op, payload)) };
        // A read changes nothing. A flush of another volume would be taken for one of what was written here.
        if self.is_unsure() && (op.is_write() || matches!(op, Op::Flush)) {
            return Err((op, payload));
        }
        let commands = if matches!(op, Op::CompareAndWrite(_)) { 2 } else { 1 };
        if !self.lanes.carries(commands) {
            // A pair in queues of one command would wait for ever, with all that waits behind it.
            let how = Err(Fate::Failed(Failure::Refused(Refusal::Unsupported)));
            self.events.push_back(Event::Done { id, how, payload });
            return Ok(());
        }
        if self.flights.is_full() || !self.parked.is_empty() {
            return Err((op, payload));
        }
        let Some(shape) = known.namespace.shape else {
            // Nothing is known of its blocks yet.
            self.events.push_back(Event::Done { id, how: Err(Fate::NotDone(UNKNOWN_PAUSE)), payload });
            return Ok(());
        };
        let Some(lane) = self.lanes.choose(commands) else { return Err((op, payload)) };
        let who = lane.who;
        let (writes, lba) = (op.is_write(), first(&op));
        let flight = |work, payload| Flight {
            id,
            work,
            payload,
            pair: None,
            out: 0,
            fate: None,
            writes,
            lba,
            until: cx.now + self.settings.times.operation,
            stage: Stage::Working,
            parked: false,
        };
        match known.plan(&shape, &mut op, payload) {
            Plan::Nothing(payload) => {
                self.events.push_back(Event::Done { id, how: Ok(Outcome::Complete), payload });
            }
            Plan::Refused(failure, payload) => {
                self.events.push_back(Event::Done { id, how: Err(Fate::Failed(failure)), payload });
            }
            Plan::One(sqe, payload) => {
                let Ok(tag) = self.flights.insert(flight(Work::Last, Payload::None)) else {
                    return Err((op, payload));
                };
                match self.links.submit(cx, who, sqe, payload) {
                    Ok(command) => self.sent(tag, who, command),
                    Err((_, payload)) => {
                        self.flights.discard(tag);
                        return Err((op, payload));
                    }
                }
            }
            Plan::Pair(pair, whole) => {
                let flight = Flight { pair: Some(whole), ..flight(Work::Last, Payload::None) };
                let tag = match self.flights.insert(flight) {
                    Ok(tag) => tag,
                    Err(flight) => return Err((op, flight.pair.map_or(Payload::None, Payload::Out))),
                };
                // Both or none: their queue has room for both, or it is gone.
                for (sqe, half) in pair {
                    match self.links.submit(cx, who, sqe, half) {
                        Ok(command) => self.sent(tag, who, command),
                        Err((_, payload)) => self.land(tag, payload, Some(Fate::NotDone(RETRY))),
                    }
                }
                self.finish_if_over(tag);
            }
            Plan::Work(work) => match self.flights.insert(flight(work, Payload::None)) {
                Ok(tag) => self.go_on(cx, tag),
                Err(flight) => self.events.push_back(Event::Done {
                    id: flight.id,
                    how: Err(Fate::NotDone(RETRY)),
                    payload: Payload::None,
                }),
            },
        }
        self.watch_operations(cx.now);
        Ok(())
    }

    /// [`Path::claim`](crate::Path::claim).
    pub(super) fn ask(&mut self, cx: &mut Cx<'_>, id: IoId, claim: Claim) -> Result<(), Claim> {
        let (Some(known), State::Up) = (self.known, &self.state) else { return Err(claim) };
        if self.is_unsure() || self.flights.is_full() || !self.parked.is_empty() {
            return Err(claim);
        }
        let asked = known.can_reserve().then(|| Asked::new(&claim)).flatten();
        let Some(asked) = asked else {
            let how = Err(Fate::Failed(Failure::Refused(Refusal::Unsupported)));
            self.events.push_back(Event::Claimed { id, how });
            return Ok(());
        };
        let flight = Flight {
            id,
            writes: asked.acts(),
            work: Work::Claim(asked),
            payload: Payload::None,
            pair: None,
            out: 0,
            fate: None,
            lba: 0,
            until: cx.now + self.settings.times.operation,
            stage: Stage::Working,
            parked: false,
        };
        let Ok(tag) = self.flights.insert(flight) else { return Err(claim) };
        self.go_on(cx, tag);
        self.watch_operations(cx.now);
        Ok(())
    }

    /// A command of an operation was started.
    fn sent(&mut self, flight: Tag, who: QueueId, command: Tag) {
        if let Some(lane) = self.lanes.find(who) {
            lane.put(command, flight);
        }
        if let Some(flight) = self.flights.get_mut(flight) {
            flight.out += 1;
        }
    }

    /// Sends the next command of an operation, or lets it wait: for memory or room, or until it is told who the
    /// namespace is.
    fn go_on(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let (unsure, is_ending) = (self.is_unsure(), matches!(self.state, State::Ending { .. }));
        let (Some(known), Some(flight)) = (self.known, self.flights.get_mut(tag)) else { return };
        let held = unsure && (flight.writes || matches!(flight.work, Work::Claim(_)));
        if held && is_ending {
            // Nothing is asked any more that would tell who the namespace is.
            self.finish_if_over(tag);
            if self.flights.is_empty() {
                self.ending_clock(cx);
            }
            return;
        }
        if !held && let Some(lane) = self.lanes.choose(1) {
            let who = lane.who;
            if let Some((sqe, payload, by)) = known.next(cx, &flight.work)
                && let Ok(command) = self.links.submit(cx, who, sqe, payload)
            {
                flight.work.advance(by);
                flight.begin_command(cx.now + self.settings.times.operation);
                return self.sent(tag, who, command);
            }
        }
        flight.parked = true;
        self.parked.push_back(tag);
        self.retry_at(cx.now + RETRY);
    }

    /// Lets those go on that wait.
    pub(super) fn launch(&mut self, cx: &mut Cx<'_>) {
        if !matches!(self.state, State::Up | State::Ending { .. }) || self.retry.is_some() {
            return;
        }
        for _ in 0..self.parked.len() {
            let Some(tag) = self.parked.pop_front() else { return };
            let Some(flight) = self.flights.get_mut(tag) else { continue };
            flight.parked = false;
            self.go_on(cx, tag);
        }
    }

    /// A command of an operation has ended.
    pub(super) fn landed(&mut self, cx: &mut Cx<'_>, tag: Tag, cqe: Cqe, payload: Payload) {
        let status = cqe.completion().status;
        let ours = matches!(self.state, State::Falling(_)) && status.plain() == Status::HOST_PATH_ERROR;
        let Some(flight) = self.flights.get_mut(tag) else { return };
        flight.out -= 1;
        let mut payload = payload;
        let mut how = None;
        if !status.is_success() {
            let circumstances = Circumstances {
                writes: flight.writes,
                cancelled: flight.stage.is_cancelled(),
                once: flight.pair.is_some(),
                lba: flight.lba,
                retry_delays: self.known.map_or(Default::default(), |known| known.controller.retry_delays),
            };
            how = Some(fate::of((!ours).then_some(status), circumstances));
        } else if let Work::Claim(asked) = &mut flight.work
            && let Payload::In(report) = std::mem::take(&mut payload)
        {
            asked.reported(report, self.settings.host_id.bytes());
        }
        let access = fate::access(status);
        // Who knows of other blocks than the controller asks it again.
        let resized = status.plain() == Status::LBA_OUT_OF_RANGE;
        self.land(tag, payload, how);
        if resized && matches!(self.state, State::Up) {
            self.size_differs(cx);
        }
        if let (Some(access), State::Up) = (access, &self.state) {
            self.path_says(cx, access);
        }
        let on = matches!(self.state, State::Up | State::Ending { .. });
        let more = self.flights.get(tag).is_some_and(|flight| {
            flight.out == 0 && flight.fate.is_none() && !flight.work.is_done() && !flight.stage.is_cancelled()
        });
        if on && more {
            if let Some(flight) = self.flights.get_mut(tag) {
                // It may have to wait before it is sent: that is part of its time.
                flight.begin_command(cx.now + self.settings.times.operation);
            }
            return self.go_on(cx, tag);
        }
        self.finish_if_over(tag);
        if matches!(self.state, State::Falling(_)) {
            self.settle();
        } else if matches!(self.state, State::Ending { .. }) && self.flights.is_empty() {
            self.ending_clock(cx);
        }
    }

    /// Keeps what has become of a command, and its memory if it is the operation's.
    fn land(&mut self, tag: Tag, payload: Payload, how: Option<Fate>) {
        let Some(flight) = self.flights.get_mut(tag) else { return };
        if matches!(flight.work, Work::Last) {
            // The halves of a pair come back in any order, and its memory is kept whole beside them.
            if flight.pair.is_none() && !matches!(payload, Payload::None) {
                flight.payload = payload;
            }
        }
        if let Some(how) = how {
            flight.fate = Some(worse(flight.fate.take(), how));
        }
    }

    /// Tells the end of an operation that has nothing in work or waiting.
    pub(super) fn finish_if_over(&mut self, tag: Tag) {
        if self.flights.get(tag).is_none_or(|flight| flight.out > 0 || flight.parked) {
            return;
        }
        let Some(flight) = self.flights.remove(tag) else { return };
        let Flight { id, work, payload, pair, fate, stage, .. } = flight;
        let payload = pair.map_or(payload, Payload::Out);
        let failure = fate.or_else(|| {
            let cancelled = Fate::Failed(Failure::Failed(volume::Fault::Aborted));
            let stopped =
                if stage.is_cancelled() { cancelled } else { Fate::NotDone(std::time::Duration::ZERO) };
            (!work.is_done()).then_some(stopped)
        });
        self.fence.unknown |= matches!(failure, Some(Fate::Unknown));
        self.events.push_back(match (work, failure) {
            (Work::Claim(_), Some(fate)) => Event::Claimed { id, how: Err(fate) },
            // A report that cannot be read shows nothing, least of all that nothing is held.
            (Work::Claim(asked), None) if asked.report.is_none() && !asked.acts() => {
                Event::Claimed { id, how: Err(Fate::Failed(Failure::Failed(volume::Fault::Internal))) }
            }
            (Work::Claim(asked), None) => Event::Claimed { id, how: Ok(asked.report) },
            (_, Some(fate)) => Event::Done { id, how: Err(fate), payload },
            (_, None) => Event::Done { id, how: Ok(Outcome::Complete), payload },
        });
    }

    /// [`Path::cancel`](crate::Path::cancel).
    pub(super) fn unwant(&mut self, cx: &mut Cx<'_>, id: IoId) {
        let Some(tag) = self.flights.iter().find(|(_, flight)| flight.id == id).map(|(tag, _)| tag) else {
            return;
        };
        let Some(flight) = self.flights.get_mut(tag) else { return };
        flight.stage = match flight.stage {
            Stage::Working | Stage::Unwanted | Stage::Late => Stage::Unwanted,
            Stage::Aborting { .. } => Stage::Aborting { wanted: true },
        };
        if flight.parked {
            self.parked.retain(|parked| *parked != tag);
            self.unpark(tag);
            return;
        }
        self.abort(cx, tag);
    }

    /// Sends Abort for what an operation has in work, if one more may be.
    fn abort(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let (Some(known), Some(flight)) = (self.known, self.flights.get(tag)) else { return };
        let wanted = flight.stage.is_cancelled();
        let admin = self.admin();
        let in_work = self.lanes.list.iter().find_map(|lane| {
            let command = lane.commands(tag).next()?;
            Some((lane.who, self.links.core(lane.who)?.cid(command)?))
        });
        let Some((who, cid)) = in_work else { return };
        let most = usize::from(known.controller.aborts).min(4);
        let until = Some(cx.now + self.settings.times.command);
        let abort = (admin::abort(who.qid, cid), 0);
        let sent = self.errands.count(|errand| *errand == AdminPurpose::Abort) < most
            && self.errands.send(cx, &mut self.links, admin, abort, (AdminPurpose::Abort, until));
        if let (Some(flight), true) = (self.flights.get_mut(tag), sent) {
            flight.stage = Stage::Aborting { wanted };
            flight.until = cx.now + self.settings.times.abort;
        }
        if !sent {
            self.scan = earliest(self.scan, Some(cx.now + ABORT_PAUSE));
        }
    }

    /// Operations are looked over from time to time as long as there are any.
    fn watch_operations(&mut self, now: Time) {
        if self.scan.is_none() && !self.flights.is_empty() {
            self.scan = Some(now + self.settings.times.operation / SCANS);
        }
    }

    /// Looks for operations that take too long.
    pub(super) fn scan_clock(&mut self, cx: &mut Cx<'_>) {
        if self.scan.is_none_or(|scan| scan > cx.now) {
            return;
        }
        self.scan = None;
        if !matches!(self.state, State::Up | State::Ending { .. }) {
            return;
        }
        let (mut soonest, mut act, mut deaf) = (None, None, false);
        for (tag, flight) in self.flights.iter_mut() {
            let late = flight.until <= cx.now;
            match flight.stage {
                Stage::Working if late => flight.stage = Stage::Late,
                Stage::Aborting { .. } if late => {
                    deaf = true;
                    continue;
                }
                Stage::Working | Stage::Aborting { .. } => {
                    soonest = earliest(soonest, Some(flight.until));
                    continue;
                }
                Stage::Unwanted | Stage::Late => {}
            }
            // What has waited for memory all the time is given up by itself.
            if flight.parked {
                flight.stage = Stage::Unwanted;
            }
            act.get_or_insert(tag);
            soonest = earliest(soonest, Some(cx.now + ABORT_PAUSE));
        }
        if deaf {
            let why = "an operation was not answered in time, and not aborted either";
            return self.fall(cx, Why::Lost(why.to_owned()));
        }
        if let Some(tag) = act {
            self.give_up(cx, tag);
        }
        let slow = cx.now + self.settings.times.operation / SCANS;
        let next = soonest.map(|soonest| soonest.max(cx.now + RETRY).min(slow));
        self.scan = earliest(self.scan, next);
    }

    fn give_up(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        if self.flights.get(tag).is_some_and(|flight| flight.parked) {
            self.parked.retain(|parked| *parked != tag);
            if let Some(flight) = self.flights.get_mut(tag) {
                flight.fate = Some(worse(flight.fate.take(), Fate::NotDone(RETRY)));
            }
            return self.unpark(tag);
        }
        self.abort(cx, tag);
    }
}

impl Known {
    /// Whether there are reservations.
    fn can_reserve(&self) -> bool {
        self.controller.can(nvme::identify::Controller::ONCS_RESERVATIONS)
    }
}

/// The first block of an operation.
fn first(op: &Op) -> u64 {
    match op {
        Op::Read(span)
        | Op::Write(span, _)
        | Op::WriteAtomic(span)
        | Op::Compare(span)
        | Op::CompareAndWrite(span)
        | Op::WriteZeroes { span, .. }
        | Op::WriteSame(span)
        | Op::Or(span)
        | Op::Verify(span)
        | Op::MarkBad(span)
        | Op::Prefetch(span)
        | Op::Extents(span) => span.lba,
        Op::Unmap(spans) => spans.first().map_or(0, |span| span.lba),
        Op::Flush | Op::Sanitize(_) => 0,
    }
}
