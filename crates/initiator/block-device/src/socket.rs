//! A listening Unix socket with restricted access.
//!
//! Invariant: only a stale socket of our own user, or the socket created here, is ever removed from the file system.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use buf::Time;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::event_waiter::{EpollWaiter, EventKey, monotonic_now};

/// A socket that listens at a path, which is removed with it.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and number of its inode.
    inode: (u64, u64),
}

impl Listener {
    /// Listens at a path, with this mode from the start. A stale socket of our own is replaced.
    ///
    /// # Errors
    /// What the system says; `AddrInUse` if anything else is there.
    pub(crate) fn new(path: &Path, mode: u32) -> io::Result<Listener> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(mode & 0o777))?;
        match rustix::net::bind(&socket, &address) {
            Err(rustix::io::Errno::ADDRINUSE) if is_stale_socket(path, &address)? => {
                std::fs::remove_file(path)?;
                rustix::net::bind(&socket, &address)?;
            }
            other => other?,
        }
        let made = std::fs::symlink_metadata(path)?;
        let listener = Listener { socket, path: path.to_owned(), inode: (made.dev(), made.ino()) };
        // The user's mask may have taken rights away. What does not listen refuses.
        rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode & 0o777))?;
        rustix::net::listen(&listener.socket, 128)?;
        Ok(listener)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another may stand there by now.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// How long no connection is accepted when the system has no descriptor or memory left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Whether a listener accepts connections. Invariant: without a free descriptor the listener is not polled, so that
/// waiting clients cause no busy loop.
#[derive(Debug, Default)]
pub(crate) struct AcceptGate {
    watched: bool,
    paused_until: Option<Time>,
}

impl AcceptGate {
    /// Has the waiter tell of a listener, or not.
    pub(crate) fn update_watch(
        &mut self,
        listener: &Listener,
        key: EventKey,
        waiter: &EpollWaiter,
        may: bool,
    ) -> io::Result<()> {
        self.paused_until = self.paused_until.filter(|until| monotonic_now() < *until);
        let may = may && self.paused_until.is_none();
        match (self.watched, may) {
            (false, true) => match waiter.add_fd(listener.as_fd(), key, true, false) {
                Ok(()) => self.watched = true,
                Err(_) => self.pause_accepting(),
            },
            (true, false) => {
                waiter.remove_fd(listener.as_fd())?;
                self.watched = false;
            }
            (false, false) | (true, true) => {}
        }
        Ok(())
    }

    /// Accepts a waiting client.
    pub(crate) fn accept(&mut self, listener: &Listener) -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        self.handle_accepted(rustix::net::accept_with(listener, flags))
    }

    fn handle_accepted(&mut self, accepted: rustix::io::Result<OwnedFd>) -> Option<OwnedFd> {
        use rustix::io::Errno;
        match accepted {
            Ok(fd) => Some(fd),
            // Nobody is there, or not any more.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => None,
            // The listener stays ready, however often it is asked.
            Err(_) => {
                self.pause_accepting();
                None
            }
        }
    }

    /// Accepts no client for a while.
    pub(crate) fn pause_accepting(&mut self) {
        self.paused_until = Some(monotonic_now() + ACCEPT_PAUSE);
    }

    /// When [`AcceptGate::update_watch`] is to be called at the latest.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.paused_until
    }
}

/// Whether a path is a socket of ours that nobody listens on.
fn is_stale_socket(path: &Path, address: &SocketAddrUnix) -> io::Result<bool> {
    let there = std::fs::symlink_metadata(path)?;
    if !there.file_type().is_socket() || there.uid() != rustix::process::geteuid().as_raw() {
        return Ok(false);
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(rustix::net::connect(&probe, address) == Err(rustix::io::Errno::CONNREFUSED))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::event_waiter::ServerStop;
    use crate::test_disk::{Behaviour, RamVolume};

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("attach-socket-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_socket_that_took_its_place_is_not_removed() {
        let path = place("taken");
        let listener = Listener::new(&path, 0o640).unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o640);
        std::fs::remove_file(&path).unwrap();
        let theirs = UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists(), "somebody else's socket is gone");
        drop(theirs);
        // It is stale now, and ours.
        drop(Listener::new(&path, 0o600).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn who_waits_where_there_are_no_descriptors_keeps_nobody_awake() {
        let path = place("full");
        let listener = Listener::new(&path, 0o600).unwrap();
        let ram = std::sync::Arc::new(volume::RamDisk::new(8, 8, 512, 512));
        let (disk, stop) = (RamVolume::new(ram, Behaviour::default()), ServerStop::new().unwrap());
        let mut waiter = EpollWaiter::new(&disk, &stop).unwrap();
        let mut gate = AcceptGate::default();
        gate.update_watch(&listener, EventKey(7), &waiter, true).unwrap();
        let _client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let is_told = |waiter: &mut EpollWaiter| {
            waiter.wait_for_events(&disk, Some(Duration::ZERO)).unwrap();
            waiter.ready_event(0).is_some()
        };
        assert!(is_told(&mut waiter));
        for errno in [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE, rustix::io::Errno::NOMEM] {
            assert!(gate.handle_accepted(Err(errno)).is_none());
            gate.update_watch(&listener, EventKey(7), &waiter, true).unwrap();
            let until = gate.poll_timeout().expect("there is a time when it is tried again");
            assert!(monotonic_now() >= until || !is_told(&mut waiter), "{errno:?}: a busy loop");
            std::thread::sleep(until.since(monotonic_now()) + Duration::from_millis(1));
            gate.update_watch(&listener, EventKey(7), &waiter, true).unwrap();
            assert!(gate.poll_timeout().is_none() && is_told(&mut waiter));
        }
        assert!(gate.accept(&listener).is_some() && gate.accept(&listener).is_none());
        assert!(gate.poll_timeout().is_none(), "nobody waits, which is no lack");
    }

    #[test]
    fn another_users_stale_socket_and_a_file_are_not_replaced() {
        let path = place("other");
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(Listener::new(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        if std::os::unix::fs::chown(&path, Some(65534), None).is_ok() {
            assert_eq!(Listener::new(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AddrInUse);
            assert!(path.exists(), "another user's socket is gone");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
