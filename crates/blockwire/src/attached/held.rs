//! What the daemon holds: each attachment on a thread of its own.
//!
//! Invariant: an attachment is in the list from the answer that it is there until its thread has ended.
//! One that still has users when the daemon ends is left to its keeper.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Attachment, End, Opened, Wish};
use crate::control::AttachRequest;
use crate::exit::{Exit, Failure};
use crate::report::AttachmentReport;
use crate::spec::Source;

/// Attachments at one time: each has a thread, 128 MiB of memory at most, and sessions of its own.
const HELD_MAX: usize = 64;
/// How long one may take until it is there; opening a volume and waiting for a killed holder's writes take
/// longest. The command line waits a little longer.
const PATIENCE: Duration = Duration::from_secs(55);
/// How long the daemon waits for users when it ends.
const FAREWELL: Duration = Duration::from_secs(5);
/// Between two looks at whether a thread has ended.
const LOOK: Duration = Duration::from_millis(20);

/// The daemon's attachments.
#[derive(Debug, Default)]
pub struct Attachments {
    held: Mutex<Vec<Held>>,
}

#[derive(Debug)]
struct Held {
    /// `None` until it is there.
    report: Option<AttachmentReport>,
    end: End,
    thread: JoinHandle<()>,
}

impl Attachments {
    fn held(&self) -> MutexGuard<'_, Vec<Held>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|one| !one.thread.is_finished());
        held
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.held().len()
    }

    /// Attaches; answers when the device can be used.
    ///
    /// # Errors
    /// What the attachment says.
    pub fn attach(&self, wish: Wish) -> Result<AttachmentReport, Failure> {
        let end = End::new()?;
        let (say, said) = mpsc::channel();
        let its_end = end.clone();
        let thread = {
            let mut held = self.held();
            if held.len() >= HELD_MAX {
                return Err(Failure::failed(format!("the daemon holds {HELD_MAX} attachments already")));
            }
            let hold = move || hold(wish, &its_end, &say);
            let thread = thread::Builder::new().name("attachment".to_owned()).spawn(hold);
            let thread = thread.map_err(|why| Failure::failed(format!("cannot start a thread: {why}")))?;
            let id = thread.thread().id();
            held.push(Held { report: None, end: end.clone(), thread });
            id
        };
        match said.recv_timeout(PATIENCE) {
            Ok(Ok(report)) => {
                let mut held = self.held();
                if let Some(one) = held.iter_mut().find(|one| one.thread.thread().id() == thread) {
                    one.report = Some(report.clone());
                }
                Ok(report)
            }
            Ok(Err(why)) => Err(why),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(Failure::failed("the attachment broke down")),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                // It ends as soon as it can; nobody was told of it.
                end.end();
                end.end();
                let why =
                    "the volume did not come up in time, or the killed holder's writes are still waited for";
                Err(Failure::new(Exit::RequestTimeout, why))
            }
        }
    }

    /// Ends the one with this way, and waits for its end. `None`: it is none of ours.
    ///
    /// # Errors
    /// If its users do not go within `patience`.
    pub fn detach(&self, way: &str, now: bool, patience: Duration) -> Option<Result<(), Failure>> {
        let has =
            |one: &Held| one.report.as_ref().is_some_and(|report| report.ways.iter().any(|mine| mine == way));
        {
            let held = self.held();
            let one = held.iter().find(|one| has(one))?;
            one.end.end();
            if now {
                one.end.end();
            }
        }
        let until = Instant::now() + patience;
        while self.held().iter().any(has) {
            if Instant::now() >= until {
                let why = format!("{way} is still in use: unmount it, or use --now");
                return Some(Err(Failure::new(Exit::RequestTimeout, why)));
            }
            thread::sleep(LOOK);
        }
        Some(Ok(()))
    }

    /// Ends all; what is still used after a while is left to its keeper.
    pub fn end(&self) {
        self.held().iter().for_each(|one| one.end.end());
        let until = Instant::now() + FAREWELL;
        loop {
            let held = self.held();
            if held.is_empty() {
                return;
            }
            if Instant::now() >= until {
                for one in held.iter().filter_map(|one| one.report.as_ref()) {
                    let (ways, timeout) = (one.ways.join(" "), one.timeout_ms / 1000);
                    tracing::warn!("{ways} is in use: its I/O waits {timeout} s for `attach --recover`");
                }
                return;
            }
            drop(held);
            thread::sleep(LOOK);
        }
    }
}

/// The thread of one attachment.
fn hold(wish: Wish, end: &End, say: &mpsc::Sender<Result<AttachmentReport, Failure>>) {
    let timeout_ms = super::note::millis(wish.timeout);
    let attachment = match Attachment::open(wish) {
        Ok(attachment) => attachment,
        Err(why) => return drop(say.send(Err(why))),
    };
    let (url, via, remark) =
        (attachment.url().to_owned(), attachment.via().name(), attachment.remark.clone());
    let ended = attachment.serve(end, &mut |opened: &Opened| {
        let report = AttachmentReport {
            url: url.clone(),
            via: via.to_owned(),
            ways: opened.names(),
            lines: remark.iter().cloned().chain(opened.lines()).collect(),
            timeout_ms,
        };
        tracing::info!(url, via, ways = report.ways.join(" "), "attached");
        // Who asked may have given up.
        let _ = say.send(Ok(report));
    });
    match ended {
        Ok(()) => tracing::info!(url, "detached"),
        Err(why) => {
            tracing::warn!(url, %why, "an attachment has ended");
            let _ = say.send(Err(why));
        }
    }
}

/// A request to attach, made a wish: what has no meaning in another process is refused.
///
/// # Errors
/// What makes no sense.
pub fn wish(request: AttachRequest, control: &Path) -> Result<Wish, String> {
    let AttachRequest { url, via, at, recover, timeout_ms } = request;
    if at.as_deref().is_some_and(Path::is_relative) {
        return Err("the path of the device must be absolute".to_owned());
    }
    initiator::urls_of(&url).map_err(|why| why.to_string())?;
    if Source::Remote(url.clone()).has_relative_secret() {
        return Err("the path of a secret's file must be absolute".to_owned());
    }
    let timeout = Duration::from_millis(timeout_ms);
    if timeout > super::TIMEOUT_MAX {
        return Err("the time-out is at most a day".to_owned());
    }
    Ok(Wish {
        url,
        via: via.as_deref().map(super::via).transpose()?,
        at,
        recover,
        timeout,
        dir: super::note::dir(Some(control)),
        control: Some(control.to_owned()),
    })
}
