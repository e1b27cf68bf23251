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

use super::guardian_protocol::{
    GuardianReply, GuardianRequest, RecoveryState, receive_message, send_message,
};
use super::record::{GuardianAddress, ProcessId};
use control::secret_url::SecretUrl;
use process::exit::Failure;
use process::owned_dir::{PeerProcess, current_uid};

/// How long a guardian may take to answer; ending I/O takes longest.
const GUARDIAN_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an answer to a status request may take.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// The holder's end of the lifeline.
#[derive(Debug)]
pub(super) struct GuardianLifeline {
    /// `None` once the attachment has ended.
    socket: Mutex<Option<OwnedFd>>,
    /// Where the guardian is found.
    pub(super) kept: GuardianAddress,
}

/// A guardian that has not confirmed.
#[derive(Debug)]
pub(super) struct UnconfirmedGuardian {
    pub(super) why: io::Error,
    /// The request was sent, so it may hold the state.
    pub(super) is_said: bool,
}

/// What a take-over yields.
#[derive(Debug)]
pub(super) struct TakeoverResult {
    pub(super) lifeline: GuardianLifeline,
    pub(super) state: RecoveryState,
    pub(super) files: Vec<OwnedFd>,
    /// How long the holder has been dead.
    pub(super) dead_for: Duration,
    /// The URL of the volume, as the holder had it.
    pub(super) url: Option<SecretUrl>,
}

/// Starts a guardian that listens at `path`. It holds nothing yet.
pub(super) fn start_guardian(path: &Path) -> Result<GuardianLifeline, Failure> {
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
    let process = ProcessId::of(child.id()).map_err(failed)?;
    let process = process.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    // Reap it when it exits.
    let spawned = std::thread::Builder::new().name("guardian".into()).spawn(move || child.wait());
    spawned.map_err(failed)?;
    Ok(GuardianLifeline {
        socket: Mutex::new(Some(ours)),
        kept: GuardianAddress { process, socket: path.to_owned() },
    })
}

impl GuardianLifeline {
    /// To a guardian that a test plays.
    #[cfg(test)]
    pub(super) fn of(socket: OwnedFd, kept: GuardianAddress) -> GuardianLifeline {
        GuardianLifeline { socket: Mutex::new(Some(socket)), kept }
    }

    /// What is kept from now on. When this returns, the holder may be killed.
    ///
    /// # Errors
    /// Why the guardian has not said so; it may hold on all the same.
    pub(super) fn hand_over_state(
        &self,
        state: RecoveryState,
        files: &[BorrowedFd<'_>],
        record: PathBuf,
        timeout_ms: u64,
        url: &SecretUrl,
    ) -> Result<(), UnconfirmedGuardian> {
        let unsaid = |why: io::Error| UnconfirmedGuardian { why, is_said: false };
        let said = |why: io::Error| UnconfirmedGuardian { why, is_said: true };
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = socket.as_ref().ok_or_else(|| unsaid(io::ErrorKind::NotConnected.into()))?;
        let url = Some(url.clone());
        send_message(socket, &GuardianRequest::Hold { state, record, timeout_ms, url }, files)
            .map_err(unsaid)?;
        match receive_message::<GuardianReply>(socket, GUARDIAN_TIMEOUT).map_err(said)? {
            Some((GuardianReply::Held, _)) => Ok(()),
            Some(_) => Err(said(io::Error::other("the guardian gave an unexpected answer"))),
            None => Err(said(io::Error::new(io::ErrorKind::BrokenPipe, "the guardian is gone"))),
        }
    }

    /// The device is to go with its last user.
    pub(super) fn release_with_last_user(&self) {
        self.send_request(&GuardianRequest::LetGo);
    }

    /// The attachment has ended in good order: nothing is to be kept.
    pub(super) fn end_cleanly(&self) {
        self.send_request(&GuardianRequest::Leave);
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn send_request(&self, word: &GuardianRequest) {
        if let Some(socket) = &*self.socket.lock().unwrap_or_else(PoisonError::into_inner) {
            // A guardian that is gone keeps nothing.
            let _ = send_message(socket, word, &[]);
        }
    }
}

/// Connects to a guardian: to the very process that the record names, of the user whose record it is.
fn connect_guardian(kept: &GuardianAddress, owner: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(&kept.socket)?)?;
    let peer = PeerProcess::of(&socket)?;
    match peer == (PeerProcess { user: owner, pid: kept.process.pid }) && kept.process.is_running()? {
        true => Ok(socket),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("process {} of user {} listens in the guardian's place", peer.pid, peer.user),
        )),
    }
}

fn exchange_messages(
    (kept, owner): (&GuardianAddress, u32),
    word: &GuardianRequest,
    wait: Duration,
) -> io::Result<(OwnedFd, GuardianReply, Vec<OwnedFd>)> {
    let socket = connect_guardian(kept, owner)?;
    send_message(&socket, word, &[])?;
    let (answer, files) = receive_message(&socket, wait)?.ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((socket, answer, files))
}

/// How long I/O still waits; `None`: it fails already. `owner`: the user whose guardian it is.
///
/// # Errors
/// If the guardian has ended, or its holder lives.
pub(super) fn remaining_wait(kept: &GuardianAddress, owner: u32) -> io::Result<Option<Duration>> {
    match exchange_messages((kept, owner), &GuardianRequest::Status, STATUS_TIMEOUT)? {
        (_, GuardianReply::Waiting { left_ms }, _) => Ok(left_ms.map(Duration::from_millis)),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// Ends the waiting: I/O fails.
///
/// # Errors
/// If the guardian has ended, or its holder lives.
pub(super) fn end_waiting(kept: &GuardianAddress, owner: u32) -> io::Result<()> {
    match exchange_messages((kept, owner), &GuardianRequest::End, GUARDIAN_TIMEOUT)? {
        (_, GuardianReply::Ended, _) => Ok(()),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// Takes over what a killed holder had: its time-out stands still until this holder serves, or ends.
///
/// # Errors
/// `AddrInUse` if the holder lives; what the system says if the guardian is gone.
pub(super) fn take_over(kept: &GuardianAddress) -> io::Result<TakeoverResult> {
    match exchange_messages((kept, current_uid()), &GuardianRequest::Take, GUARDIAN_TIMEOUT)? {
        (socket, GuardianReply::TakeoverResult { state, dead_ms, url }, files) => Ok(TakeoverResult {
            lifeline: GuardianLifeline { socket: Mutex::new(Some(socket)), kept: kept.clone() },
            state,
            files,
            dead_for: Duration::from_millis(dead_ms),
            url,
        }),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "its holder lives")),
    }
}
