//! A Unix socket that only those may open who shall.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Listens at a path, which has this mode before anybody can connect. A socket there that nobody listens
/// on is replaced.
pub(crate) fn listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::bind(&socket, &address) {
        Err(rustix::io::Errno::ADDRINUSE) if is_stale(path, &address)? => {
            std::fs::remove_file(path)?;
            rustix::net::bind(&socket, &address)?;
        }
        other => other?,
    }
    // Before anybody can connect: what does not listen refuses.
    rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode & 0o777))?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

/// Whether a path is a socket that nobody listens on.
fn is_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<bool> {
    use std::os::unix::fs::FileTypeExt;
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(rustix::net::connect(&probe, address) == Err(rustix::io::Errno::CONNREFUSED))
}
