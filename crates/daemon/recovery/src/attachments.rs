//! The attachments of the daemon, each on its own thread.
//!
//! Invariant: an attachment is in the list from the moment it is reported until its thread has ended. If it still has
//! users when the daemon exits or is killed, it is left to its guardian; the next daemon with the same control socket
//! recovers it automatically.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::list::{self, AttachState, FoundAttachment};
use super::record;
use super::{AccessPoints, AttachCancellation, AttachOptions, Attachment, DetachHandle};
use control::AttachRequest;
use control::report::AttachmentReport;
use multipath::url::RelativeSecretFile;
use process::exit::{Exit, Failure};
use process::log::area;
use process::owned_dir;

/// Attachments at one time: each has its own thread and sessions, and up to 128 MiB of memory.
const ATTACHMENTS_MAX: usize = 64;
/// How long one may take until it is ready; opening the volume and waiting for a killed holder's writes take longest.
/// The command line waits a little longer.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(55);
/// The same for attachments of the previous daemon: no client waits for an answer.
const RESUME_TIMEOUT: Duration = Duration::from_secs(600);
/// Between two attempts to recover one, until its I/O fails.
const RESUME_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long the daemon waits for users when it exits.
const EXIT_DETACH_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of the check whether a thread has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The daemon's attachments.
#[derive(Debug, Default)]
pub struct Attachments {
    held: Mutex<Vec<HeldAttachment>>,
    /// Attachments of the previous daemon that are being recovered.
    resuming: Mutex<Vec<FoundAttachment>>,
    ending: AtomicBool,
}

#[derive(Debug)]
struct HeldAttachment {
    /// Empty until it is ready.
    report: Arc<OnceLock<AttachmentReport>>,
    /// It belonged to the previous daemon.
    resumed: bool,
    end: DetachHandle,
    thread: JoinHandle<()>,
}

/// Extra time for one that has begun to create or take over its device.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// Opens an attachment, on its thread.
type OpenFn = Box<dyn FnOnce(&AttachCancellation) -> Result<OpenedAttachment, Failure> + Send>;
/// Serves it until it is detached; calls back when it is ready.
type ServeFn = Box<dyn FnOnce(&DetachHandle, &mut dyn FnMut(&AccessPoints)) -> Result<(), Failure>>;

/// An open attachment that has not touched a device yet.
struct OpenedAttachment {
    url: String,
    via: String,
    remark: Option<String>,
    timeout_ms: u64,
    serve: ServeFn,
}

impl From<Attachment> for OpenedAttachment {
    fn from(attachment: Attachment) -> Self {
        OpenedAttachment {
            url: attachment.url().to_owned(),
            via: attachment.via().cli_name().to_owned(),
            remark: attachment.remark.clone(),
            timeout_ms: record::to_millis(attachment.timeout()),
            serve: Box::new(move |end, ready| attachment.serve(end, ready)),
        }
    }
}

/// Where a request came from, and how long it waits.
#[derive(Clone, Copy, Debug)]
struct AttachOrigin {
    /// It belonged to the previous daemon.
    resumed: bool,
    /// The device exists already, and its users wait.
    recovers: bool,
    patience: Duration,
}

impl Attachments {
    fn lock_held(&self) -> MutexGuard<'_, Vec<HeldAttachment>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|one| !one.thread.is_finished());
        held
    }

    /// How many are ready.
    pub fn count_ready(&self) -> usize {
        self.lock_held().iter().filter(|one| one.report.get().is_some()).count()
    }

    /// Attaches; returns when the device can be used.
    ///
    /// # Errors
    /// Those of the attachment.
    pub fn attach(&self, options: AttachOptions) -> Result<AttachmentReport, Failure> {
        let begun = Instant::now();
        if let Some(report) = options.recover.then(|| self.wait_for_resumed(&options)).flatten() {
            return Ok(report);
        }
        let patience = ATTACH_TIMEOUT.saturating_sub(begun.elapsed());
        let asked = AttachOrigin { resumed: false, recovers: options.recover, patience };
        self.start_attachment(
            Box::new(move |cancellation| Attachment::open(options, cancellation).map(OpenedAttachment::from)),
            asked,
        )
    }

    fn start_attachment(&self, open: OpenFn, asked: AttachOrigin) -> Result<AttachmentReport, Failure> {
        let AttachOrigin { resumed, recovers, patience } = asked;
        let end = DetachHandle::new()?;
        let cancellation = Arc::new(AttachCancellation::new());
        let its_cancellation = cancellation.clone();
        let (say, said) = mpsc::channel();
        let its_end = end.clone();
        let report = Arc::new(OnceLock::new());
        let its_report = report.clone();
        {
            let mut held = self.lock_held();
            if held.len() >= ATTACHMENTS_MAX {
                return Err(Failure::failed(format!(
                    "the daemon holds {ATTACHMENTS_MAX} attachments already"
                )));
            }
            if self.ending.load(Ordering::Acquire) {
                return Err(Failure::failed("the daemon is stopping"));
            }
            let hold = move || run_attachment(open, &its_cancellation, &its_end, (&*its_report, &say));
            let thread = thread::Builder::new().name("attachment".to_owned()).spawn(hold);
            let thread = thread.map_err(|why| Failure::failed(format!("cannot start a thread: {why}")))?;
            held.push(HeldAttachment { report, resumed, end: end.clone(), thread });
        }
        let mut heard = said.recv_timeout(patience);
        let is_late = |heard: &Result<_, _>| matches!(heard, Err(mpsc::RecvTimeoutError::Timeout));
        // Either it is cancelled before it touches a device, or it needs only a moment more.
        if is_late(&heard) && !cancellation.try_cancel() {
            heard = said.recv_timeout(SETTLE_TIMEOUT);
            if is_late(&heard) && recovers {
                let why = "the device is taken over but not served yet: `blockwire attach --list` shows it";
                return Err(Failure::new(Exit::RequestTimeout, why));
            }
        }
        match heard {
            Ok(answer) => answer,
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(Failure::failed("the attachment failed")),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                // No client knows of it; a device that was just created is removed again.
                end.detach();
                end.detach();
                let why = "the volume did not come up in time, or recovery is still waiting for writes of the killed \
                     holder";
                Err(Failure::new(Exit::RequestTimeout, why))
            }
        }
    }

    /// Recovers all waiting attachments of the previous daemon with this control socket, each on its own thread, with
    /// retries until its I/O fails. Returns at once.
    pub fn resume_all(self: &Arc<Self>, control: &Path) {
        let dir = record::record_dir(Some(control));
        for left in waiting_attachments(&dir, control) {
            self.lock_resuming().push(left.clone());
            let file = left.file.clone();
            let (held, dir, control) = (self.clone(), dir.clone(), control.to_owned());
            let go_on = move || held.resume_one(left, &dir, &control);
            if let Err(why) = thread::Builder::new().name("resume".to_owned()).spawn(go_on) {
                self.lock_resuming().retain(|one| one.file != file);
                tracing::warn!(target: area::ATTACH, %why, "cannot take over an attachment of the previous daemon");
            }
        }
    }

    fn lock_resuming(&self) -> MutexGuard<'_, Vec<FoundAttachment>> {
        self.resuming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Recovers one; a failure does not change how long it waits.
    fn resume_one(&self, mut left: FoundAttachment, dir: &Path, control: &Path) {
        let mut said = String::new();
        loop {
            let (found, its_dir, its_control) = (left.clone(), dir.to_owned(), control.to_owned());
            let open = move |cancellation: &AttachCancellation| {
                Attachment::resume(found, &its_dir, &its_control, cancellation).map(OpenedAttachment::from)
            };
            let asked = AttachOrigin { resumed: true, recovers: true, patience: RESUME_TIMEOUT };
            let went = self.start_attachment(Box::new(open), asked);
            self.lock_resuming().retain(|one| one.file != left.file);
            let Err(why) = went else { return };
            if said != why.message {
                let (ways, url) = (left.access_points_text(), &left.record.url);
                let hint = format!("blockwire attach '{url}' --daemon --recover --at {}", left.attach_path());
                tracing::warn!(target: area::ATTACH, %why, hint, "{ways} is waiting and cannot be recovered yet");
                said = why.message;
            }
            thread::sleep(RESUME_RETRY_INTERVAL);
            let still = waiting_attachments(dir, control).into_iter().find(|one| one.file == left.file);
            let Some(still) = still.filter(|_| !self.ending.load(Ordering::Acquire)) else { return };
            self.lock_resuming().push(still.clone());
            left = still;
        }
    }

    /// The requested attachment, if this daemon has already recovered it; waits for a running attempt.
    fn wait_for_resumed(&self, options: &AttachOptions) -> Option<AttachmentReport> {
        let (_, shown) = client::urls_of_name(&options.url).ok()?;
        let is_meant = |url: &str, is_at: &dyn Fn(&Path) -> bool| match &options.at {
            Some(at) => is_at(at),
            None => url == shown,
        };
        let until = Instant::now() + ATTACH_TIMEOUT;
        while self.lock_resuming().iter().any(|one| is_meant(&one.record.url, &|at| one.matches_name(at))) {
            if Instant::now() >= until {
                return None;
            }
            thread::sleep(POLL_INTERVAL);
        }
        let held = self.lock_held();
        let mut reports = held.iter().filter(|one| one.resumed).filter_map(|one| one.report.get());
        let is_at = |report: &AttachmentReport, at: &Path| {
            report.ways.iter().any(|way| Path::new(way) == at || Path::new(way).parent() == Some(at))
        };
        reports.find(|report| is_meant(&report.url, &|at| is_at(report, at))).cloned()
    }

    /// Detaches the one at this path and waits until it has ended. `None`: not held by this daemon.
    ///
    /// # Errors
    /// It is still in use after `patience`.
    pub fn detach(&self, way: &str, now: bool, patience: Duration) -> Option<Result<(), Failure>> {
        let has = |one: &HeldAttachment| {
            one.report.get().is_some_and(|report| report.ways.iter().any(|mine| mine == way))
        };
        {
            let held = self.lock_held();
            let one = held.iter().find(|one| has(one))?;
            one.end.detach();
            if now {
                one.end.detach();
            }
        }
        let until = Instant::now() + patience;
        while self.lock_held().iter().any(has) {
            if Instant::now() >= until {
                let why = format!("{way} is still in use: unmount it, or use --now");
                return Some(Err(Failure::new(Exit::RequestTimeout, why)));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Some(Ok(()))
    }

    /// Detaches all; what is still in use after a while is left to its guardian.
    pub fn detach_all(&self) {
        self.ending.store(true, Ordering::Release);
        self.lock_held().iter().for_each(|one| one.end.detach());
        let until = Instant::now() + EXIT_DETACH_TIMEOUT;
        loop {
            let held = self.lock_held();
            if held.is_empty() {
                return;
            }
            if Instant::now() >= until {
                for one in held.iter().filter_map(|one| one.report.get()) {
                    let (ways, timeout) = (one.ways.join(" "), one.timeout_ms / 1000);
                    tracing::warn!(
                        target: area::ATTACH,
                        "{ways} is in use: its I/O waits {timeout} s for the next daemon, or `attach --recover`"
                    );
                }
                return;
            }
            drop(held);
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Whether the previous daemon with this control socket was killed or stopped while attachments were in use.
pub fn has_waiting_attachments(control: &Path) -> bool {
    !waiting_attachments(&record::record_dir(Some(control)), control).is_empty()
}

/// Attachments of a daemon with this control socket whose holder is gone, and whose I/O waits.
fn waiting_attachments(dir: &Path, control: &Path) -> Vec<FoundAttachment> {
    let mut all = list::find_attachments(dir).unwrap_or_else(|why| {
        tracing::warn!(target: area::ATTACH, %why, "attachments of the previous daemon are not taken over");
        Vec::new()
    });
    // Never those of another user.
    all.retain(|one| one.dir.owner_uid() == owned_dir::current_uid());
    all.retain(|one| {
        one.record.control.as_deref() == Some(control) && matches!(one.state, AttachState::Waiting { .. })
    });
    all
}

/// The thread of one attachment.
fn run_attachment(
    open: OpenFn,
    cancellation: &AttachCancellation,
    end: &DetachHandle,
    (there, say): (&OnceLock<AttachmentReport>, &mpsc::Sender<Result<AttachmentReport, Failure>>),
) {
    let OpenedAttachment { url, via, remark, timeout_ms, serve } = match open(cancellation) {
        Ok(opening) => opening,
        Err(why) => return drop(say.send(Err(why))),
    };
    if !cancellation.try_begin() {
        tracing::info!(target: area::ATTACH, url, via, "cancelled before it touched a device: it took too long");
        return;
    }
    let ended = serve(end, &mut |opened: &AccessPoints| {
        let report = AttachmentReport {
            url: url.clone(),
            via: via.clone(),
            ways: opened.record_names(),
            lines: remark.iter().cloned().chain(opened.display_lines()).collect(),
            timeout_ms,
        };
        tracing::info!(target: area::ATTACH, url, via, ways = report.ways.join(" "), "attached");
        // From now on it can be detached, even if the client has given up.
        let _ = there.set(report.clone());
        let _ = say.send(Ok(report));
    });
    match ended {
        Ok(()) => tracing::info!(target: area::ATTACH, url, "detached"),
        Err(why) => {
            tracing::warn!(target: area::ATTACH, url, %why, "an attachment has ended");
            let _ = say.send(Err(why));
        }
    }
}

/// The options of a request to attach; relative paths have no meaning here and are refused.
///
/// # Errors
/// The request is invalid.
pub fn options_from_request(request: AttachRequest, control: &Path) -> Result<AttachOptions, String> {
    let AttachRequest { url, via, at, recover, force, timeout_ms } = request;
    if at.as_deref().is_some_and(Path::is_relative) {
        return Err("the path of the device must be absolute".to_owned());
    }
    let (urls, _) = client::urls_of_name(&url).map_err(|why| why.to_string())?;
    if let Some(secret) = RelativeSecretFile::find_in(&urls) {
        return Err(secret.to_string());
    }
    let timeout = Duration::from_millis(timeout_ms);
    if timeout > super::RECOVERY_TIMEOUT_MAX {
        return Err("the time-out is at most a day".to_owned());
    }
    Ok(AttachOptions {
        url,
        via: via.as_deref().map(super::parse_via).transpose()?,
        at,
        recover,
        force,
        timeout,
        dir: super::record::record_dir(Some(control)),
        control: Some(control.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(recovers: bool, patience: Duration) -> AttachOrigin {
        AttachOrigin { resumed: false, recovers, patience }
    }

    fn opening(serve: ServeFn) -> OpenedAttachment {
        OpenedAttachment { url: "u".into(), via: "fuse".into(), remark: None, timeout_ms: 1, serve }
    }

    fn until_all_have_ended(attachments: &Attachments) {
        let until = Instant::now() + Duration::from_secs(60);
        while !attachments.lock_held().is_empty() {
            assert!(Instant::now() < until, "a thread goes on for ever");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_recovery_that_timed_out_touches_no_device_later() {
        let (attachments, served) = (Attachments::default(), Arc::new(AtomicBool::new(false)));
        let its_served = served.clone();
        let open = move |cancellation: &AttachCancellation| {
            while !cancellation.is_cancelled() {
                thread::sleep(Duration::from_millis(1));
            }
            // It comes up after all.
            let serve = move |_: &DetachHandle, _: &mut dyn FnMut(&AccessPoints)| {
                its_served.store(true, Ordering::Release);
                Ok(())
            };
            Ok(opening(Box::new(serve)))
        };
        let why =
            attachments.start_attachment(Box::new(open), asked(true, Duration::from_millis(20))).unwrap_err();
        assert_eq!(why.exit, Exit::RequestTimeout);
        until_all_have_ended(&attachments);
        assert!(!served.load(Ordering::Acquire), "the device was taken over, to be taken away");
    }

    #[test]
    fn a_recovery_that_is_ready_after_everybody_has_given_up_can_be_detached() {
        let attachments = Attachments::default();
        let (go, wait) = mpsc::channel::<()>();
        let open = move |_: &AttachCancellation| {
            let serve = move |end: &DetachHandle, ready: &mut dyn FnMut(&AccessPoints)| {
                let _ = wait.recv();
                ready(&AccessPoints { ways: vec![("socket", "/late".to_owned())], remarks: Vec::new() });
                while end.stop.request_count() == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            };
            Ok(opening(Box::new(serve)))
        };
        let why =
            attachments.start_attachment(Box::new(open), asked(true, Duration::from_millis(20))).unwrap_err();
        assert!(why.message.contains("taken over"), "{why}");
        assert_eq!(attachments.count_ready(), 0);
        drop(go);
        let until = Instant::now() + Duration::from_secs(60);
        while attachments.count_ready() == 0 {
            assert!(Instant::now() < until, "nobody knows of it");
            thread::sleep(Duration::from_millis(1));
        }
        attachments.detach("/late", false, Duration::from_secs(60)).expect("it is held").unwrap();
        assert_eq!(attachments.count_ready(), 0);
    }

    #[test]
    fn a_recovery_that_has_begun_is_not_ended_by_a_time_out() {
        let (attachments, ended) = (Attachments::default(), Arc::new(AtomicBool::new(false)));
        let (go, wait) = mpsc::channel::<()>();
        let its_ended = ended.clone();
        let open = move |_: &AttachCancellation| {
            let serve = move |end: &DetachHandle, ready: &mut dyn FnMut(&AccessPoints)| {
                // Longer than who asked is patient for.
                thread::sleep(Duration::from_millis(200));
                ready(&AccessPoints::default());
                let _ = wait.recv();
                its_ended.store(end.stop.request_count() > 0, Ordering::Release);
                Ok(())
            };
            Ok(opening(Box::new(serve)))
        };
        let report = attachments.start_attachment(Box::new(open), asked(true, Duration::from_millis(50)));
        assert!(report.is_ok() && attachments.count_ready() == 1, "{report:?}");
        drop(go);
        until_all_have_ended(&attachments);
        assert!(!ended.load(Ordering::Acquire));
    }
}
