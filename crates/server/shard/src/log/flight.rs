//! What of a shard's life goes into its flight recorder: each line of the log, changes of volumes, failed and slow
//! operations, task management, waits for memory.
//!
//! Invariant: nothing here runs for a command that is carried out as it should be; names and causes are recorded, and no
//! data, key or secret.

use buf::Time;
use flight_recorder::{Event, EventKind, FlightRecorder, TextField};
use volume::{
    Failure, Identity, IoCompletion, OperationTimes, OperatorNotice, PathAccess, Refusal, UnservableReason,
    VolumeRequest, reservation::Action,
};

use super::{Log, LogLine, NvmeLogLine};
use crate::message::ErrorCause;

/// An operation that takes as long is recorded: hosts give up after some tens of seconds.
const SLOW_OPERATION_NS: u64 = 1_000_000_000;

impl Log {
    /// Has events recorded from now on.
    pub(crate) fn set_recorder(&mut self, recorder: FlightRecorder) {
        self.recorder = Some(recorder);
    }

    /// The time of events that are recorded from now on.
    #[inline]
    pub(crate) fn set_now(&mut self, now: Time) {
        self.now = now;
    }

    /// Records an event.
    pub(crate) fn record(&mut self, event: &Event<'_>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record(self.now, event);
        }
    }

    /// Records an event of a volume.
    pub(crate) fn record_of_volume(&mut self, kind: EventKind, volume: &str) {
        self.record(&Event::new(kind).with_text(TextField::Volume, volume));
    }

    /// Records what a home was asked for.
    pub(crate) fn record_request(&mut self, volume: &str, request: &VolumeRequest) {
        let Some((kind, cause, by)) = request_words(request) else { return };
        let by = by.map(ToString::to_string).unwrap_or_default();
        let event = Event::new(kind).with_text(TextField::Cause, cause).with_text(TextField::Volume, volume);
        self.record(&event.with_text(TextField::Host, &by));
    }

    /// Records that a change was refused.
    pub(crate) fn record_refusal(&mut self, volume: &str, refusal: &Refusal) {
        let event = Event::new(EventKind::ChangeRefused).with_text(TextField::Volume, volume);
        self.record(&event.with_text(TextField::Cause, refusal_words(refusal)));
    }

    /// Records an operation that failed or took long.
    pub(crate) fn record_completion(&mut self, volume: &str, done: &IoCompletion, times: OperationTimes) {
        let took = self.now.0.saturating_sub(times.submitted.0);
        if let Err(failure) = &done.result
            && let Some(cause) = ErrorCause::of_failure(failure)
        {
            let words = match failure {
                Failure::Refused(refusal) => refusal_words(refusal),
                Failure::Failed(_) => cause.as_str(),
            };
            let event = Event::new(EventKind::OperationFailed).with_number(took);
            self.record(&event.with_text(TextField::Volume, volume).with_text(TextField::Cause, words));
        }
        if took >= SLOW_OPERATION_NS {
            let began = times.begun.0.saturating_sub(times.submitted.0);
            let cause = if began >= took / 2 { "queue" } else { "backend" };
            let event = Event::new(EventKind::SlowOperation).with_number(took);
            self.record(&event.with_text(TextField::Volume, volume).with_text(TextField::Cause, cause));
        }
    }

    /// Whether [`Log::record_completion`] has something to record.
    #[inline]
    pub(crate) fn is_remarkable(now: Time, done: &IoCompletion, times: OperationTimes) -> bool {
        done.result.is_err() || now.0.saturating_sub(times.submitted.0) >= SLOW_OPERATION_NS
    }

    pub(super) fn record_line(&mut self, line: &LogLine) {
        if self.recorder.is_none() {
            return;
        }
        let cause = line.refusal_cause().map_or("", |(_, cause)| cause);
        match line {
            LogLine::LoginFailed { peer, names, .. } => {
                let event =
                    Event::new(EventKind::LoginRefused).with_peer(*peer).with_text(TextField::Cause, cause);
                let (host, target) = names.as_deref().map_or(("", ""), |names| {
                    (&*names.initiator, names.target.as_deref().unwrap_or_default())
                });
                self.record(&event.with_text(TextField::Host, host).with_text(TextField::Target, target));
            }
            LogLine::LoggedIn { peer, initiator, target } => {
                let event =
                    Event::new(EventKind::Login).with_peer(*peer).with_text(TextField::Host, initiator);
                self.record(&event.with_text(TextField::Target, target.as_deref().unwrap_or("discovery")));
            }
            LogLine::LoggedOut { peer, initiator, target } => {
                let event = Event::new(EventKind::SessionEnded)
                    .with_peer(*peer)
                    .with_text(TextField::Host, initiator);
                self.record(&event.with_text(TextField::Target, target.as_deref().unwrap_or("discovery")));
            }
            LogLine::LinkFault { peer, initiator, target, violation } => {
                let cause = violation.fault.to_string();
                let event = Event::new(EventKind::ProtocolViolation).with_peer(*peer);
                let event = event.with_text(TextField::Cause, &cause).with_text(TextField::Host, initiator);
                self.record(&event.with_text(TextField::Target, target.as_deref().unwrap_or("discovery")));
            }
            LogLine::Nvme(line) => self.record_nvme_line(line, cause),
            LogLine::Volume { name, remark } => self.record_notice(name, remark),
        }
    }

    fn record_nvme_line(&mut self, line: &NvmeLogLine, cause: &str) {
        let (kind, peer, names, why, number) = match line {
            NvmeLogLine::NotConnected { peer, names, cause: why } => {
                let why = why.as_ref().map_or_else(|| cause.to_owned(), ToString::to_string);
                let names = names.as_ref().map(|(host, subsystem)| (host, subsystem));
                (EventKind::ConnectRefused, peer, names, why, 0)
            }
            NvmeLogLine::Connected { peer, host, subsystem, cntlid } => {
                (EventKind::Connect, peer, Some((host, subsystem)), String::new(), *cntlid)
            }
            NvmeLogLine::Disconnected { peer, host, subsystem, cntlid, why } => {
                (EventKind::ControllerEnded, peer, Some((host, subsystem)), why.to_string(), *cntlid)
            }
            NvmeLogLine::LinkFault { peer, names, violation } => {
                let names = names.as_ref().map(|(host, subsystem)| (host, subsystem));
                (EventKind::ProtocolViolation, peer, names, violation.to_string(), 0)
            }
        };
        let (host, target) =
            names.map_or_else(Default::default, |(host, target)| (host.to_string(), target.to_string()));
        let event =
            Event::new(kind).with_peer(*peer).with_number(number.into()).with_text(TextField::Cause, &why);
        self.record(&event.with_text(TextField::Host, &host).with_text(TextField::Target, &target));
    }

    fn record_notice(&mut self, volume: &str, remark: &OperatorNotice) {
        let path = |(leg, path): (Option<usize>, usize)| ((leg.unwrap_or(0) << 16) | path) as u64;
        let (kind, number, cause) = match remark {
            OperatorNotice::Persistence { persists: true, .. } => {
                (EventKind::VolumeNotice, 0, "registrations survive power loss from now on")
            }
            OperatorNotice::Persistence { persists: false, .. } => {
                (EventKind::VolumeNotice, 0, "registrations do not survive power loss from now on")
            }
            OperatorNotice::Closed => {
                (EventKind::VolumeNotice, 0, "closed: a change could not be fenced in time")
            }
            OperatorNotice::Opened => (EventKind::VolumeNotice, 0, "open again"),
            OperatorNotice::SyncFailed => {
                (EventKind::VolumeNotice, 0, "a sync has failed: writes are refused")
            }
            OperatorNotice::RecordUnreadable => {
                (EventKind::VolumeNotice, 0, "the record that its owner left cannot be read")
            }
            OperatorNotice::NotFlushed => (EventKind::VolumeNotice, 0, "not flushed at the stop"),
            OperatorNotice::ThinThreshold { allocated, .. } => {
                (EventKind::VolumeNotice, *allocated, "a thin volume has reached its threshold")
            }
            OperatorNotice::NoSpace => (EventKind::VolumeNotice, 0, "no space for a write"),
            OperatorNotice::BadBlocksFull { .. } => {
                (EventKind::VolumeNotice, 0, "no more blocks can be marked bad")
            }
            OperatorNotice::PathDown { path: at, why } => {
                (EventKind::RemotePathDown, path(*at), why.as_str())
            }
            OperatorNotice::PathUp { path: at } => (EventKind::RemotePathUp, path(*at), ""),
        };
        let event = Event::new(kind).with_number(number).with_text(TextField::Volume, volume);
        self.record(&event.with_text(TextField::Cause, cause));
    }
}

/// What a request is and who asks; `None`: it is part of a host's write, or says nothing by itself.
fn request_words(request: &VolumeRequest) -> Option<(EventKind, &'static str, Option<&Identity>)> {
    let change = |cause| Some((EventKind::VolumeChange, cause, None));
    match request {
        VolumeRequest::Reserve { who, action } => {
            Some((EventKind::Reservation, action_words(action), Some(&who.identity)))
        }
        VolumeRequest::SetAccess { to, by, .. } => {
            let cause = match to {
                PathAccess::Optimized => "path set to optimized",
                PathAccess::NonOptimized => "path set to non-optimized",
                PathAccess::Inaccessible => "path set to inaccessible",
                PathAccess::PersistentLoss => "path set to persistent-loss",
                PathAccess::Transition => "path set to transition",
                PathAccess::Standby => "path set to standby",
            };
            Some((EventKind::VolumeChange, cause, by.as_deref()))
        }
        VolumeRequest::SetPreferred { on: true, .. } => change("path preferred"),
        VolumeRequest::SetPreferred { on: false, .. } => change("path not preferred"),
        VolumeRequest::Resize(_) => change("resize"),
        VolumeRequest::WriteProtect(true) => change("write-protect by the operator"),
        VolumeRequest::WriteProtect(false) => change("no write protection by the operator"),
        VolumeRequest::BackingReadOnly(true) => change("the backing takes no writes"),
        VolumeRequest::BackingReadOnly(false) => change("the backing takes writes"),
        VolumeRequest::WriteProtectByHost { by: who, on: true } => by_host("write-protect by a host", who),
        VolumeRequest::WriteProtectByHost { by: who, on: false } => {
            by_host("no write protection by a host", who)
        }
        VolumeRequest::HostSettings { by: who, .. } => by_host("settings that hosts share", who),
        VolumeRequest::PreventRemoval { by: who, on: true } => by_host("prevent removal of the medium", who),
        VolumeRequest::PreventRemoval { by: who, on: false } => by_host("allow removal of the medium", who),
        VolumeRequest::Eject { by } => Some((EventKind::VolumeChange, "eject", by.as_deref())),
        VolumeRequest::Load { by } => Some((EventKind::VolumeChange, "load", by.as_deref())),
        VolumeRequest::Stop => change("stop unit"),
        VolumeRequest::Start => change("start unit"),
        VolumeRequest::Reset => change("logical unit reset"),
        VolumeRequest::ClearTasks { by: who } => by_host("clear task set", who),
        VolumeRequest::AbortTasks { of } => by_host("abort task set", of),
        VolumeRequest::NexusLost(who) => by_host("nexus lost", who),
        VolumeRequest::SanitizeStart { who } => by_host("sanitize begins", &who.identity),
        VolumeRequest::FormatStart { who } => by_host("format begins", &who.identity),
        VolumeRequest::SanitizeEnd { done: true } => change("sanitize has ended"),
        VolumeRequest::SanitizeEnd { done: false } => change("sanitize has failed"),
        VolumeRequest::SanitizeForgive => change("exit failure mode of sanitize"),
        VolumeRequest::Remove => change("removed"),
        VolumeRequest::MarkBad { .. }
        | VolumeRequest::ClearBad { .. }
        | VolumeRequest::Withdraw
        | VolumeRequest::Refresh => None,
    }
}

fn by_host<'a>(
    cause: &'static str,
    who: &'a Identity,
) -> Option<(EventKind, &'static str, Option<&'a Identity>)> {
    Some((EventKind::VolumeChange, cause, Some(who)))
}

fn action_words(action: &Action) -> &'static str {
    match action {
        Action::Register(_) => "register",
        Action::Move { .. } => "register and move",
        Action::Reserve { .. } => "reserve",
        Action::Release { .. } => "release",
        Action::Clear { .. } => "clear",
        Action::Preempt { abort: true, .. } => "preempt and abort",
        Action::Preempt { abort: false, .. } => "preempt",
        Action::Persist { .. } => "persist through power loss",
        Action::LegacyReserve => "reserve (SCSI-2)",
        Action::LegacyRelease => "release (SCSI-2)",
    }
}

fn refusal_words(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Conflict => "reservation conflict",
        Refusal::Inaccessible(_) => "the path is not accessible",
        Refusal::OutOfRange => "blocks behind the end",
        Refusal::ReadOnly => "read-only",
        Refusal::AtomicUnit => "longer than can be atomic",
        Refusal::NotReady(reason) => match reason {
            UnservableReason::Stopped => "the unit is stopped",
            UnservableReason::NoMedium => "no medium",
            UnservableReason::Sanitizing(_) => "a sanitize runs",
            UnservableReason::Formatting(_) => "a format runs",
            UnservableReason::SanitizeFailed => "the last sanitize failed",
            UnservableReason::SyncFailed => "a sync has failed before",
            UnservableReason::Removed => "the volume is removed",
        },
        Refusal::Unsupported => "not supported by the backend",
        Refusal::Busy => "busy",
        Refusal::NoRegistrationSpace => "too many registrations",
        Refusal::NoMarkSpace => "too many bad blocks",
        Refusal::NotRegistered => "not registered, or another key",
        Refusal::InvalidRelease => "release of another kind of reservation",
        Refusal::InvalidAction => "invalid field",
        Refusal::NothingReserved => "nothing is reserved",
        Refusal::NotDurable => "could not be saved",
        Refusal::RemovalPrevented => "removal is prevented",
        Refusal::NotFenced => "operations in flight did not end in time",
    }
}
