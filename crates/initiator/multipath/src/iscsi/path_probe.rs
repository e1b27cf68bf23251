//! The path's side of its probes: starting them, and acting on the results.

use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, MemoryClass, Payload};
use iscsi::initiator::Response;
use scsi::Sense;

use super::connecting::PathPhase;
use super::disposition::{self, Classification, CommandDisposition, FactsRefresh};
use super::probe::{Probe, ProbeProgress, ProbeStep};
use super::unit_facts::{UnitCapabilities, UnitFacts};
use super::{IscsiPath, RequestOwner, tracing};
use crate::{DownReason, PathEvent, VolumeInfo};

/// How soon a path that does not serve any more is looked at, and how often at last: each time it takes
/// twice as long.
pub(super) const ACCESS_RECHECK_DELAY: Duration = Duration::from_millis(100);
const ACCESS_RECHECK_DELAY_MAX: Duration = Duration::from_secs(2);
/// From the end of a probe to the beginning of the next, where the target has told of a change meanwhile.
const REPROBE_DELAY: Duration = Duration::from_millis(100);

impl IscsiPath {
    /// Asks the logical unit what it is.
    pub(super) fn start_full_probe(&mut self, cx: &mut Cx<'_>) {
        self.phase = PathPhase::Probing;
        self.touched = true;
        self.to_refresh = FactsRefresh::Nothing;
        self.probe = Some(Probe::full(cx.now, cx.now + self.settings.timeouts.start_up));
    }

    /// Begins a probe if something is to be learnt, and asks its question if that is due.
    pub(super) fn advance_probe(&mut self, cx: &mut Cx<'_>) {
        if self.probe.is_none() && self.is_up() && self.to_refresh != FactsRefresh::Nothing {
            let scope = std::mem::take(&mut self.to_refresh);
            let until = cx.now + self.settings.timeouts.start_up;
            let facts = self.facts.clone().unwrap_or_else(UnitFacts::new);
            // A target that tells of a change at each question is not asked without end at its speed.
            let due = self.next_probe.take().map_or(cx.now, |next| next.max(cx.now));
            self.probe = Some(Probe::reprobe(scope, facts, due, until));
        }
        let Some(probe) = &mut self.probe else { return };
        let is_sure = probe.scope != FactsRefresh::Identity;
        if probe.until <= cx.now && self.phase == PathPhase::Up && probe.due.is_some() && is_sure {
            // Who is up, and known to lead to its volume, stays up; the target is asked on.
            probe.until = cx.now + self.settings.timeouts.start_up;
        }
        if probe.until <= cx.now {
            let step = probe.step.command_name();
            let text = match self.phase == PathPhase::Up && !is_sure {
                true => format!(
                    "the target does not report which volume has this logical unit number now (at {step}); \
                     look into its log"
                ),
                false => {
                    format!("the logical unit does not get ready (at {step}); look into the target's log")
                }
            };
            return self.abort_session(cx, DownReason::Lost(text));
        }
        if probe.due.is_none_or(|due| due > cx.now) {
            return;
        }
        let (command, len) = probe.next_command();
        let again = cx.now + Duration::from_millis(1);
        probe.due = Some(again);
        let payload = match len {
            0 => Payload::None,
            len => match cx.pool.take_sg(MemoryClass::Wire, len) {
                Some(memory) => Payload::In(memory),
                None => return,
            },
        };
        if let Ok(tag) = self.submit_command(cx, &command, false, payload) {
            self.owners.insert_owner(tag, RequestOwner::Probe);
            if let Some(probe) = &mut self.probe {
                probe.due = None;
            }
        }
    }

    /// A question has an answer.
    pub(super) fn handle_probe_answer(&mut self, cx: &mut Cx<'_>, response: Response, payload: Payload) {
        if let Response::Scsi(answer) = &response {
            // The target tells of a change, or of a write that it lost, once, by whatever is asked next.
            let none = volume::Span { lba: 0, blocks: 0 };
            let Classification { disposition, refresh } =
                disposition::classify_status(answer.status, &answer.sense, none);
            let is_missed = self.probe.as_ref().is_none_or(|probe| probe.is_outdated_by(refresh));
            if refresh == FactsRefresh::WriteLost
                || matches!(disposition, CommandDisposition::Retry(_)) && is_missed
            {
                self.request_refresh(refresh);
            }
        }
        let Some(probe) = &mut self.probe else { return };
        let Response::Scsi(answer) = response else {
            // Lost, damaged or rejected: once more, until the time is over.
            probe.due = Some(cx.now + Duration::from_millis(100));
            return;
        };
        let mut data = vec![0; payload.len().min(answer.transferred as usize)];
        payload.into_sg().copy_to(0, &mut data);
        let (asked, was_sure) = (probe.step, probe.scope != FactsRefresh::Identity);
        let next = probe.handle_answer(answer.status, &answer.sense, &data);
        let identifies = probe.scope == FactsRefresh::Identity;
        if was_sure && identifies {
            probe.until = cx.now + self.settings.timeouts.start_up;
        }
        tracing::trace_probe_answer(&mut self.trace, cx.now, asked, &answer, &next);
        match next {
            ProbeProgress::Ask(after) => probe.due = Some(cx.now + after),
            ProbeProgress::Known => {
                if let Some(probe) = self.probe.take() {
                    self.finish_probe(cx, probe.facts);
                }
            }
            // The volume is stopped, or has no medium: operations are told, one by one.
            ProbeProgress::Refused(_) if asked == ProbeStep::Ready && self.is_up() && !identifies => {
                self.probe = None
            }
            ProbeProgress::Refused(complaint) => {
                let grace = self.settings.timeouts.abort;
                let why = if asked == ProbeStep::Luns {
                    DownReason::Absent(complaint)
                } else {
                    DownReason::Refused(complaint)
                };
                self.start_logout(cx, grace, why);
            }
        }
    }

    /// All is known: tells it, if it is anything new.
    fn finish_probe(&mut self, cx: &mut Cx<'_>, facts: UnitFacts) {
        self.touched = true;
        self.next_probe = (self.to_refresh != FactsRefresh::Nothing).then(|| cx.now + REPROBE_DELAY);
        let Some(wired) = &self.sessions.current else { return };
        let up = self.is_up();
        if let (Some(before), true) = (&self.facts, up)
            && !before.may_be_same_unit(&facts)
        {
            let text = match before.is_certainly_other_unit(&facts) {
                true => "another volume has this logical unit number now; check the target",
                false => {
                    "the target does not tell any more which volume stands behind this logical unit number, so it may \
                     be another volume; look into the target"
                }
            };
            return self.abort_session(cx, DownReason::Lost(text.to_owned()));
        }
        let info = facts.volume_info(&wired.session, wired.address, self.settings.commands_max().into());
        let before = self.can.take().filter(|_| up);
        let unknown = before.map_or(0, |can| can.unknown);
        self.can = facts.unit_capabilities().map(|can| UnitCapabilities { unknown, ..can });
        // No command tells that a path serves again: it is looked at.
        let usable = facts.is_usable();
        self.look_again = (!usable).then(|| cx.now + self.look_after);
        self.look_after =
            if usable { ACCESS_RECHECK_DELAY } else { (self.look_after * 2).min(ACCESS_RECHECK_DELAY_MAX) };
        let news = self.info.as_deref() != Some(&info);
        let info = Arc::new(info);
        (self.facts, self.info) = (Some(facts), Some(info.clone()));
        if !up {
            self.phase = PathPhase::Up;
            self.wanted = false;
            self.events.push_back(PathEvent::Up(info));
        } else if news {
            self.events.push_back(PathEvent::Changed(info));
        }
    }

    /// A command was refused because of the state of its path, and others would be: nothing more goes by it
    /// until it was looked at.
    pub(super) fn note_path_access(&mut self, sense: &[u8]) {
        let Some(facts) = self.facts.as_mut().filter(|facts| facts.serves()) else { return };
        facts.note_access_refused(sense);
        let (Some(before), access) = (&self.info, facts.access()) else { return };
        let info = Arc::new(VolumeInfo { access, ..(**before).clone() });
        self.info = Some(info.clone());
        self.events.push_back(PathEvent::Changed(info));
    }

    /// The logical unit says something unasked (SAM-5 §6.6): as if a command had been answered so.
    pub(super) fn handle_async_event(&mut self, sense: &[u8]) {
        if Sense::decode(sense).is_some() {
            let none = volume::Span { lba: 0, blocks: 0 };
            let classified =
                disposition::classify_status(iscsi::wire::ScsiStatus::CHECK_CONDITION, sense, none);
            self.touched = true;
            self.request_refresh(classified.refresh);
        }
    }
}
