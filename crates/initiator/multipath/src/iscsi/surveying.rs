//! The path's side of its surveys: asking, and acting on what was found.

use std::sync::Arc;
use std::time::Duration;

use buf::{Class, Cx, Payload};
use iscsi::initiator::Response;
use scsi::Sense;

use super::connecting::Phase;
use super::found::{Abilities, Found};
use super::survey::{Next, Step, Survey};
use super::verdict::{self, Judged, Learn, Verdict};
use super::{IscsiPath, Owner, tracing};
use crate::{Event, Portrait, Why};

/// How soon a path that does not serve any more is looked at, and how often at last: each time it takes
/// twice as long.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(100);
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(2);
/// From the end of a survey to the beginning of the next, where the target has told of a change meanwhile.
const SURVEY_PAUSE: Duration = Duration::from_millis(100);

impl IscsiPath {
    /// Asks the logical unit what it is.
    pub(super) fn start_survey(&mut self, cx: &mut Cx<'_>) {
        self.phase = Phase::Surveying;
        self.touched = true;
        self.to_learn = Learn::Nothing;
        self.survey = Some(Survey::whole(cx.now, cx.now + self.settings.timeouts.start_up));
    }

    /// Begins a survey if something is to be learnt, and asks its question if that is due.
    pub(super) fn tend_survey(&mut self, cx: &mut Cx<'_>) {
        if self.survey.is_none() && self.is_up() && self.to_learn != Learn::Nothing {
            let scope = std::mem::take(&mut self.to_learn);
            let until = cx.now + self.settings.timeouts.start_up;
            let found = self.found.clone().unwrap_or_else(Found::new);
            // A target that tells of a change at each question is not asked without end at its speed.
            let due = self.next_survey.take().map_or(cx.now, |next| next.max(cx.now));
            self.survey = Some(Survey::again(scope, found, due, until));
        }
        let Some(survey) = &mut self.survey else { return };
        let is_sure = survey.scope != Learn::Identity;
        if survey.until <= cx.now && self.phase == Phase::Up && survey.due.is_some() && is_sure {
            // Who is up, and known to lead to its volume, stays up; the target is asked on.
            survey.until = cx.now + self.settings.timeouts.start_up;
        }
        if survey.until <= cx.now {
            let step = survey.step.name();
            let text = match self.phase == Phase::Up && !is_sure {
                true => format!(
                    "the target does not tell which volume stands behind this logical unit number now (at {step}); \
                     look into its log"
                ),
                false => {
                    format!("the logical unit does not get ready (at {step}); look into the target's log")
                }
            };
            return self.end_session(cx, Why::Lost(text));
        }
        if survey.due.is_none_or(|due| due > cx.now) {
            return;
        }
        let (command, len) = survey.question();
        let again = cx.now + Duration::from_millis(1);
        survey.due = Some(again);
        let payload = match len {
            0 => Payload::None,
            len => match cx.pool.take_sg(Class::Wire, len) {
                Some(memory) => Payload::In(memory),
                None => return,
            },
        };
        if let Ok(tag) = self.offer(cx, &command, false, payload) {
            self.own(tag, Owner::Survey);
            if let Some(survey) = &mut self.survey {
                survey.due = None;
            }
        }
    }

    /// A question has an answer.
    pub(super) fn survey_answered(&mut self, cx: &mut Cx<'_>, response: Response, payload: Payload) {
        if let Response::Scsi(answer) = &response {
            // The target tells of a change, or of a write that it lost, once, by whatever is asked next.
            let none = volume::Span { lba: 0, blocks: 0 };
            let Judged { verdict, learn } = verdict::judge(answer.status, &answer.sense, none);
            let is_missed = self.survey.as_ref().is_none_or(|survey| survey.misses(learn));
            if learn == Learn::WriteLost || matches!(verdict, Verdict::Again(_)) && is_missed {
                self.learn(learn);
            }
        }
        let Some(survey) = &mut self.survey else { return };
        let Response::Scsi(answer) = response else {
            // Lost, damaged or rejected: once more, until the time is over.
            survey.due = Some(cx.now + Duration::from_millis(100));
            return;
        };
        let mut data = vec![0; payload.len().min(answer.transferred as usize)];
        payload.into_sg().copy_to(0, &mut data);
        let (asked, was_sure) = (survey.step, survey.scope != Learn::Identity);
        let next = survey.take(answer.status, &answer.sense, &data);
        let identifies = survey.scope == Learn::Identity;
        if was_sure && identifies {
            survey.until = cx.now + self.settings.timeouts.start_up;
        }
        tracing::answered(&mut self.trace, cx.now, asked, &answer, &next);
        match next {
            Next::VolumeRequest(after) => survey.due = Some(cx.now + after),
            Next::Known => {
                if let Some(survey) = self.survey.take() {
                    self.surveyed(cx, survey.found);
                }
            }
            // The volume is stopped, or has no medium: operations are told, one by one.
            Next::Refused(_) if asked == Step::Ready && self.is_up() && !identifies => self.survey = None,
            Next::Refused(complaint) => {
                let grace = self.settings.timeouts.abort;
                let why = if asked == Step::Luns { Why::Absent(complaint) } else { Why::Refused(complaint) };
                self.log_out(cx, grace, why);
            }
        }
    }

    /// All is known: tells it, if it is anything new.
    fn surveyed(&mut self, cx: &mut Cx<'_>, found: Found) {
        self.touched = true;
        self.next_survey = (self.to_learn != Learn::Nothing).then(|| cx.now + SURVEY_PAUSE);
        let Some(nexus) = &self.nexuses.now else { return };
        let up = self.is_up();
        if let (Some(before), true) = (&self.found, up)
            && !before.is_same_unit(&found)
        {
            let text = match before.is_other_unit(&found) {
                true => "another volume stands behind this logical unit number now; look into the target",
                false => {
                    "the target does not tell any more which volume stands behind this logical unit number, so it may \
                     be another volume; look into the target"
                }
            };
            return self.end_session(cx, Why::Lost(text.to_owned()));
        }
        let portrait = found.portrait(&nexus.session, nexus.address, self.settings.commands().into());
        let before = self.can.take().filter(|_| up);
        let unknown = before.map_or(0, |can| can.unknown);
        self.can = found.abilities().map(|can| Abilities { unknown, ..can });
        // No command tells that a path serves again: it is looked at.
        let usable = found.is_usable();
        self.look_again = (!usable).then(|| cx.now + self.look_after);
        self.look_after = if usable { LOOK_AGAIN } else { (self.look_after * 2).min(LOOK_AGAIN_MAX) };
        let news = self.portrait.as_deref() != Some(&portrait);
        let portrait = Arc::new(portrait);
        (self.found, self.portrait) = (Some(found), Some(portrait.clone()));
        if !up {
            self.phase = Phase::Up;
            self.wanted = false;
            self.events.push_back(Event::Up(portrait));
        } else if news {
            self.events.push_back(Event::Changed(portrait));
        }
    }

    /// A command was refused because of the state of its path, and others would be: nothing more goes by it
    /// until it was looked at.
    pub(super) fn closed(&mut self, sense: &[u8]) {
        let Some(found) = self.found.as_mut().filter(|found| found.serves()) else { return };
        found.refused(sense);
        let (Some(before), access) = (&self.portrait, found.access()) else { return };
        let portrait = Arc::new(Portrait { access, ..(**before).clone() });
        self.portrait = Some(portrait.clone());
        self.events.push_back(Event::Changed(portrait));
    }

    /// The logical unit says something unasked (SAM-5 §6.6): as if a command had been answered so.
    pub(super) fn asynchronous(&mut self, sense: &[u8]) {
        if Sense::decode(sense).is_some() {
            let none = volume::Span { lba: 0, blocks: 0 };
            let judged = verdict::judge(iscsi::wire::ScsiStatus::CHECK_CONDITION, sense, none);
            self.touched = true;
            self.learn(judged.learn);
        }
    }
}
