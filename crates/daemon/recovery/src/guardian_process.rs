//! `blockwire keep`: the guardian process. It is started by holders, not by users.
//!
//! Invariant: while the holder lives, the guardian does nothing with what it holds. When the holder is dead, I/O waits
//! until another process takes over or the time-out has passed, and then fails. A take-over that ends before it serves
//! does not extend that time.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use block_device::{ErrorDisk, ServerStop, Statistics, fuse, nbd, ublk, vhost};
use clap::Args;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::guardian_protocol::{
    ClientGeometry, GuardianReply, GuardianRequest, RecoveryState, poll_readable, receive_message,
    send_message,
};
use super::record::to_millis;
use control::secret_url::SecretUrl;
use process::exit::{Exit, Failure};
use process::owned_dir::{OwnedDir, PeerProcess, current_uid};

/// How long a client may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a socket without clients is still served with errors: clients that reconnect do so within seconds.
const DESERTED_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of the check for clients.
const CLIENT_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long the kernel may take to notice that a killed holder's descriptors are closed.
const DESCRIPTOR_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The same for the ublk driver; a request to end the waiting takes this long.
const UBLK_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause when the system has no descriptor or memory left.
const RESOURCE_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Arguments of `keep`, the verb that starts the guardian.
#[derive(Debug, Args)]
pub struct GuardianArgs {
    /// Where to listen
    #[arg(long)]
    socket: PathBuf,
}

/// Runs the guardian, with the lifeline as standard input.
pub fn run_guardian(args: &GuardianArgs) -> Result<Exit, Failure> {
    let failed = |why: io::Error| Failure::failed(format!("{}: {why}", args.socket.display()));
    // Signals to the holder's terminal or process group must not reach it.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    let lifeline = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let listener = listen_at(&args.socket).map_err(failed)?;
    let made = fs::symlink_metadata(&args.socket).map_err(failed)?;
    Guardian { lifeline: Some(lifeline), held: None, dead: None, failing: None }.run(&listener);
    let is_ours = |now: &fs::Metadata| {
        (now.dev(), now.ino()) == (made.dev(), made.ino()) && now.file_type().is_socket()
    };
    if fs::symlink_metadata(&args.socket).is_ok_and(|now| is_ours(&now)) {
        let _ = fs::remove_file(&args.socket);
    }
    Ok(Exit::Success)
}

/// Listens at a new path.
fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // The socket has this mode from the start.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 16)?;
    Ok(socket)
}

/// Removes a record of our own.
fn remove_own_record(record: &Path) {
    if let (Some(dir), Some(name)) = (record.parent(), record.file_name())
        && let Ok(Some(dir)) = OwnedDir::find_existing(dir)
        && dir.owner_uid() == current_uid()
    {
        let _ = dir.remove_file(name);
    }
}

/// What the guardian holds.
struct HeldState {
    state: RecoveryState,
    files: Vec<OwnedFd>,
    record: PathBuf,
    timeout: Duration,
    url: Option<SecretUrl>,
}

struct Guardian {
    /// To the holder, or to the process that is taking over.
    lifeline: Option<OwnedFd>,
    held: Option<HeldState>,
    /// When the holder died; kept during a take-over until the new holder serves.
    dead: Option<Instant>,
    /// Serves errors to clients that would otherwise wait forever.
    failing: Option<ErrorServer>,
}

/// Whether the main loop goes on.
#[derive(PartialEq, Eq)]
enum LoopControl {
    Continue,
    Exit,
}

impl Guardian {
    /// No failure may end it while it holds something.
    fn run(&mut self, listener: &OwnedFd) {
        loop {
            let due = self.next_deadline();
            let mut fds = vec![listener.as_fd()];
            fds.extend(self.lifeline.as_ref().map(AsFd::as_fd));
            let ready = poll_readable(&fds, due).unwrap_or_else(|_| {
                std::thread::sleep(RESOURCE_RETRY_DELAY);
                Vec::new()
            });
            if ready.get(1) == Some(&true) && self.handle_holder() == LoopControl::Exit {
                break;
            }
            if ready.first() == Some(&true) && self.handle_client(listener) == LoopControl::Exit {
                break;
            }
            if self.next_deadline() == Some(Duration::ZERO) && self.handle_timeout() == LoopControl::Exit {
                break;
            }
        }
        if let Some(held) = self.held.take() {
            remove_own_record(&held.record);
        }
    }

    /// When to act next; `None`: on the next message.
    fn next_deadline(&self) -> Option<Duration> {
        if self.lifeline.is_some() {
            return None;
        }
        if let Some(failing) = &self.failing {
            return Some(failing.next_check());
        }
        let (held, dead) = (self.held.as_ref()?, self.dead?);
        Some(held.timeout.saturating_sub(dead.elapsed()))
    }

    /// A message of the holder, or its death.
    fn handle_holder(&mut self) -> LoopControl {
        let Some(lifeline) = &self.lifeline else { return LoopControl::Continue };
        match receive_message::<GuardianRequest>(lifeline, Duration::ZERO) {
            Ok(Some((GuardianRequest::Hold { state, record, timeout_ms, url }, files))) => {
                if let Some(before) = self.held.as_ref().filter(|before| before.record != record) {
                    remove_own_record(&before.record);
                }
                let timeout = Duration::from_millis(timeout_ms);
                self.held = Some(HeldState { state, files, record, timeout, url });
                self.dead = None;
                match send_message(lifeline, &GuardianReply::Held, &[]) {
                    Ok(()) => LoopControl::Continue,
                    // The holder has just died, or thinks that it has failed: its I/O waits.
                    Err(_) => self.handle_holder_loss(),
                }
            }
            Ok(Some((GuardianRequest::LetGo, _))) => {
                if let Some(HeldState { state: RecoveryState::Fuse { device, .. }, files, .. }) =
                    &mut self.held
                {
                    *device = false;
                    files.truncate(1);
                }
                LoopControl::Continue
            }
            Ok(Some((GuardianRequest::Leave, _))) => LoopControl::Exit,
            Ok(Some((GuardianRequest::Take | GuardianRequest::End | GuardianRequest::Status, _))) => {
                LoopControl::Continue
            }
            // An invalid message counts as the holder's death.
            Ok(None) | Err(_) => self.handle_holder_loss(),
        }
    }

    /// The holder is gone.
    fn handle_holder_loss(&mut self) -> LoopControl {
        self.lifeline = None;
        self.dead.get_or_insert_with(Instant::now);
        // A holder that never served leaves nothing behind.
        if self.held.is_some() { LoopControl::Continue } else { LoopControl::Exit }
    }

    /// A client has connected.
    fn handle_client(&mut self, listener: &OwnedFd) -> LoopControl {
        use rustix::io::Errno;
        let peer = match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(peer) => peer,
            // The client is gone.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return LoopControl::Continue,
            // No descriptor or memory; the listener stays ready.
            Err(_) => {
                std::thread::sleep(RESOURCE_RETRY_DELAY);
                return LoopControl::Continue;
            }
        };
        if !PeerProcess::of(&peer).is_ok_and(PeerProcess::is_trusted) {
            return LoopControl::Continue;
        }
        let Ok(Some((word, _))) = receive_message::<GuardianRequest>(&peer, REQUEST_TIMEOUT) else {
            return LoopControl::Continue;
        };
        let (Some(held), Some(dead), None) = (&self.held, self.dead, &self.lifeline) else {
            // Also during a take-over. If the reply cannot be sent, the client is gone.
            let _ = send_message(&peer, &GuardianReply::Busy, &[]);
            return LoopControl::Continue;
        };
        match word {
            GuardianRequest::Status => {
                let left = held.timeout.saturating_sub(dead.elapsed());
                let left_ms = self.failing.is_none().then(|| to_millis(left));
                let _ = send_message(&peer, &GuardianReply::Waiting { left_ms }, &[]);
                LoopControl::Continue
            }
            GuardianRequest::Take => {
                // It occupies the socket's path.
                self.failing = None;
                let (state, url) = (held.state.clone(), held.url.clone());
                let answer = GuardianReply::TakeoverResult { state, dead_ms: to_millis(dead.elapsed()), url };
                let files: Vec<_> = held.files.iter().map(AsFd::as_fd).collect();
                if send_message(&peer, &answer, &files).is_ok() {
                    self.lifeline = Some(peer);
                }
                LoopControl::Continue
            }
            GuardianRequest::End => {
                self.failing = None;
                self.fail_waiting_io();
                let _ = send_message(&peer, &GuardianReply::Ended, &[]);
                LoopControl::Exit
            }
            GuardianRequest::Hold { .. } | GuardianRequest::LetGo | GuardianRequest::Leave => {
                LoopControl::Continue
            }
        }
    }

    /// The time-out has passed, or no client is left that needs errors.
    fn handle_timeout(&mut self) -> LoopControl {
        if let Some(failing) = &mut self.failing {
            return if failing.is_deserted() { LoopControl::Exit } else { LoopControl::Continue };
        }
        self.fail_waiting_io();
        let Some(held) = &self.held else { return LoopControl::Exit };
        self.failing = match &held.state {
            RecoveryState::Fuse { .. } | RecoveryState::Ublk { .. } => None,
            RecoveryState::Nbd { .. } | RecoveryState::VhostUser { .. } => {
                ErrorServer::start(held.state.clone())
            }
        };
        if self.failing.is_some() { LoopControl::Continue } else { LoopControl::Exit }
    }

    /// Makes waiting I/O fail.
    fn fail_waiting_io(&mut self) {
        let Some(held) = &mut self.held else { return };
        match &held.state {
            RecoveryState::Fuse { dir, name, made, .. } => {
                let mut files = held.files.drain(..);
                // The last descriptor of the FUSE connection: without it the kernel fails all requests.
                drop(files.next());
                let until = Instant::now() + DESCRIPTOR_CLOSE_TIMEOUT;
                let name = fuse::MountId(*name);
                while !matches!(fuse::unmount_dead_id(dir, name), Ok(true)) && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(50));
                }
                if let Some((device, inode)) = *made {
                    fuse::CreatedDir { device, inode }.remove_if_same(dir);
                }
                // Users of the loop device are not waited for.
                files.for_each(drop);
            }
            RecoveryState::Ublk { number, process } => {
                // The driver notices the death of a server a moment later. If it has another server by then, the device
                // is that server's.
                let until = Instant::now() + UBLK_CLOSE_TIMEOUT;
                let deleted = || ublk::delete_abandoned(*number, *process);
                while deleted().is_err_and(|why| why.kind() == io::ErrorKind::ResourceBusy)
                    && Instant::now() < until
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
            // Clients get a refused connection at once.
            RecoveryState::Nbd { .. } | RecoveryState::VhostUser { .. } => {}
        }
    }
}

/// Answers clients of a socket with errors; otherwise they would reconnect forever while their users wait.
struct ErrorServer {
    stop: ServerStop,
    statistics: std::sync::Arc<Statistics>,
    thread: Option<JoinHandle<()>>,
    /// Since when there is no client.
    deserted: Instant,
    /// When to check for clients.
    look_at: Instant,
}

impl ErrorServer {
    fn start(state: RecoveryState) -> Option<ErrorServer> {
        let stop = ServerStop::new().ok()?;
        let its_stop = stop.clone();
        let disk = |shape: ClientGeometry| ErrorDisk::in_place_of(shape.to_geometry(), shape.read_only).ok();
        // If the path is in use, another process serves there.
        let (statistics, thread) = match state {
            RecoveryState::Nbd { path, shape } => {
                let mut server = nbd::Server::new(nbd::Settings::new(path)).ok()?;
                let statistics = server.io_counters();
                let mut serve = move || disk(shape).map(|mut disk| server.run(&mut disk, &its_stop));
                (statistics, std::thread::spawn(move || drop(serve())))
            }
            RecoveryState::VhostUser { path, id, shape } => {
                let settings = vhost::Settings { id, ..vhost::Settings::new(path) };
                let mut server = vhost::Backend::new(settings).ok()?;
                let statistics = server.io_counters();
                let mut serve = move || disk(shape).map(|mut disk| server.run(&mut disk, &its_stop));
                (statistics, std::thread::spawn(move || drop(serve())))
            }
            RecoveryState::Fuse { .. } | RecoveryState::Ublk { .. } => return None,
        };
        let (deserted, look_at) = (Instant::now(), Instant::now() + CLIENT_POLL_INTERVAL);
        Some(ErrorServer { stop, statistics, thread: Some(thread), deserted, look_at })
    }

    fn next_check(&self) -> Duration {
        self.look_at.saturating_duration_since(Instant::now())
    }

    fn is_deserted(&mut self) -> bool {
        self.look_at = Instant::now() + CLIENT_POLL_INTERVAL;
        if self.statistics.snapshot().clients > 0 {
            self.deserted = Instant::now();
        }
        self.deserted.elapsed() >= DESERTED_TIMEOUT
            || self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for ErrorServer {
    fn drop(&mut self) {
        self.stop.request_stop();
        self.stop.request_stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_dies_as_it_says_hold_does_not_end_its_guardian() {
        use rustix::net::{AddressFamily, SocketType, socketpair};
        let root = tempfile::tempdir().unwrap();
        let pair =
            || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (ours, theirs) = pair();
        let mut guardian = Guardian { lifeline: Some(theirs), held: None, dead: None, failing: None };
        let state = RecoveryState::Ublk { number: u32::MAX, process: 1 };
        let record = root.path().join("1.json");
        let hold = GuardianRequest::Hold { state, record, timeout_ms: 60_000, url: None };
        send_message(&ours, &hold, &[]).unwrap();
        drop(ours);
        assert!(
            guardian.handle_holder() == LoopControl::Continue,
            "what it holds goes, and all that waits fails"
        );
        assert!(guardian.lifeline.is_none() && guardian.held.is_some());
        assert!(
            guardian.next_deadline().is_some_and(|due| due > Duration::from_secs(50)),
            "its time-out runs"
        );
        // A holder that never served leaves nothing behind.
        let (ours, theirs) = pair();
        let mut guardian = Guardian { lifeline: Some(theirs), held: None, dead: None, failing: None };
        drop(ours);
        assert!(guardian.handle_holder() == LoopControl::Exit);
    }
}
