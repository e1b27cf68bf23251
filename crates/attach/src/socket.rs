//! A Unix socket that only those may open who shall.
//!
//! Invariant: what is removed from the file system is a socket of our own user that nobody listens on, or the
//! very one that was made here.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A socket that listens at a path, which goes with it.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and number of its inode.
    inode: (u64, u64),
}

impl Listener {
    /// Listens at a path, which has this mode from its first moment. A socket of ours there that nobody listens
    /// on is replaced.
    ///
    /// # Errors
    /// What the system says; `AddrInUse` if anything else is there.
    pub(crate) fn new(path: &Path, mode: u32) -> io::Result<Listener> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(mode & 0o777))?;
        match rustix::net::bind(&socket, &address) {
            Err(rustix::io::Errno::ADDRINUSE) if is_stale(path, &address)? => {
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

/// Whether a path is a socket of ours that nobody listens on.
fn is_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<bool> {
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
