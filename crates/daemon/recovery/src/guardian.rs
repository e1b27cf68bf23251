//! The client side of a guardian: the process that keeps I/O of an attachment waiting when its holder is killed, and
//! makes it fail when the time-out has passed.
//!
//! Invariant: the guardian knows of the holder's death only by the end of one connection, the lifeline. The process
//! that has the lifeline is the holder.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::record::{GuardianAddress, Process};
use super::wire::{GuardianReply, GuardianRequest, RecoveryState, receive, send};
use control::secret_url::SecretUrl;
use process::exit::Failure;
use process::owned::{Peer, user};

/// How long a guardian may take to answer; ending I/O takes longest.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long an answer to a status request may take.
const SOON: Duration = Duration::from_secs(2);

/// The holder's end of the lifeline.
#[derive(Debug)]
pub(super) struct Lifeline {
    /// `None` once the attachment has ended.
    socket: Mutex<Option<OwnedFd>>,
    /// Where the guardian is found.
    pub(super) kept: GuardianAddress,
}

/// A guardian that has not confirmed.
#[derive(Debug)]
pub(super) struct NotHeld {
    pub(super) why: io::Error,
    /// The request was sent, so it may hold the state.
    pub(super) is_said: bool,
}

/// What a take-over yields.
#[derive(Debug)]
pub(super) struct TakeoverResult {
    pub(super) lifeline: Lifeline,
    pub(super) state: RecoveryState,
    pub(super) files: Vec<OwnedFd>,
    /// How long the holder has been dead.
    pub(super) dead_for: Duration,
    /// The URL of the volume, as the holder had it.
    pub(super) url: Option<SecretUrl>,
}

/// Starts a guardian that listens at `path`. It holds nothing yet.
pub(super) fn start(path: &Path) -> Result<Lifeline, Failure> {
    let failed = |why: io::Error| Failure::failed(format!("cannot start the attachment's guardian: {why}"));
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|why| failed(why.into()))?;
    // This very program, even if it was replaced on disk.
    let mut guardian = Command::new("/proc/self/exe");
    guardian
        .arg0("blockwire")
        .args(["keep", "--socket"])
        .arg(path)
        .stdin(theirs)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = guardian.spawn().map_err(failed)?;
    let process = Process::of(child.id()).map_err(failed)?;
    let process = process.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    // Reap it when it exits.
    let spawned = std::thread::Builder::new().name("guardian".into()).spawn(move || child.wait());
    spawned.map_err(failed)?;
    Ok(Lifeline {
        socket: Mutex::new(Some(ours)),
        kept: GuardianAddress { process, socket: path.to_owned() },
    })
}

impl Lifeline {
    /// To a guardian that a test plays.
    #[cfg(test)]
    pub(super) fn of(socket: OwnedFd, kept: GuardianAddress) -> Lifeline {
        Lifeline { socket: Mutex::new(Some(socket)), kept }
    }

    /// What is kept from now on. When this returns, the holder may be killed.
    ///
    /// # Errors
    /// Why the guardian has not said so; it may hold on all the same.
    pub(super) fn hold(
        &self,
        state: RecoveryState,
        files: &[BorrowedFd<'_>],
        record: PathBuf,
        timeout_ms: u64,
        url: &SecretUrl,
    ) -> Result<(), NotHeld> {
        let unsaid = |why: io::Error| NotHeld { why, is_said: false };
        let said = |why: io::Error| NotHeld { why, is_said: true };
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = socket.as_ref().ok_or_else(|| unsaid(io::ErrorKind::NotConnected.into()))?;
        let url = Some(url.clone());
        send(socket, &GuardianRequest::Hold { state, record, timeout_ms, url }, files).map_err(unsaid)?;
        match receive::<GuardianReply>(socket, PATIENCE).map_err(said)? {
            Some((GuardianReply::Held, _)) => Ok(()),
            Some(_) => Err(said(io::Error::other("the guardian gave an unexpected answer"))),
            None => Err(said(io::Error::new(io::ErrorKind::BrokenPipe, "the guardian is gone"))),
        }
    }

    /// The device is to go with its last user.
    pub(super) fn let_go(&self) {
        self.say(&GuardianRequest::LetGo);
    }

    /// The attachment has ended in good order: nothing is to be kept.
    pub(super) fn leave(&self) {
        self.say(&GuardianRequest::Leave);
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn say(&self, word: &GuardianRequest) {
        if let Some(socket) = &*self.socket.lock().unwrap_or_else(PoisonError::into_inner) {
            // A guardian that is gone keeps nothing.
            let _ = send(socket, word, &[]);
        }
    }
}

/// Connects to a guardian: to the very process that the record names, of the user whose record it is.
fn connect(kept: &GuardianAddress, owner: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(&kept.socket)?)?;
    let peer = Peer::of(&socket)?;
    match peer == (Peer { user: owner, pid: kept.process.pid }) && kept.process.lives()? {
        true => Ok(socket),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("process {} of user {} listens in the guardian's place", peer.pid, peer.user),
        )),
    }
}

fn exchange(
    (kept, owner): (&GuardianAddress, u32),
    word: &GuardianRequest,
    wait: Duration,
) -> io::Result<(OwnedFd, GuardianReply, Vec<OwnedFd>)> {
    let socket = connect(kept, owner)?;
    send(&socket, word, &[])?;
    let (answer, files) = receive(&socket, wait)?.ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((socket, answer, files))
}

/// How long I/O still waits; `None`: it fails already. `owner`: the user whose guardian it is.
///
/// # Errors
/// If the guardian has ended, or its holder lives.
pub(super) fn ask(kept: &GuardianAddress, owner: u32) -> io::Result<Option<Duration>> {
    match exchange((kept, owner), &GuardianRequest::Status, SOON)? {
        (_, GuardianReply::Waiting { left_ms }, _) => Ok(left_ms.map(Duration::from_millis)),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// Ends the waiting: I/O fails.
///
/// # Errors
/// If the guardian has ended, or its holder lives.
pub(super) fn end(kept: &GuardianAddress, owner: u32) -> io::Result<()> {
    match exchange((kept, owner), &GuardianRequest::End, PATIENCE)? {
        (_, GuardianReply::Ended, _) => Ok(()),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// Takes over what a killed holder had: its time-out stands still until this holder serves, or ends.
///
/// # Errors
/// `AddrInUse` if the holder lives; what the system says if the guardian is gone.
pub(super) fn take(kept: &GuardianAddress) -> io::Result<TakeoverResult> {
    match exchange((kept, user()), &GuardianRequest::Take, PATIENCE)? {
        (socket, GuardianReply::TakeoverResult { state, dead_ms, url }, files) => Ok(TakeoverResult {
            lifeline: Lifeline { socket: Mutex::new(Some(socket)), kept: kept.clone() },
            state,
            files,
            dead_for: Duration::from_millis(dead_ms),
            url,
        }),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "its holder lives")),
    }
}
