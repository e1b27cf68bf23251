//! A socket that goes from one process to another.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt, MetadataExt},
            net::UnixListener,
        },
    },
    path::Path,
    sync::Arc,
};

use super::ControlSocket;
use crate::{accept_gate::AcceptGate, readers::ReaderGroup};
use process::exit::Failure;

impl ControlSocket {
    /// The socket of a daemon that hands over to this process. It stays that daemon's until [`Self::take_over`].
    ///
    /// # Errors
    /// It is not the one at this path, or readers cannot be let in.
    pub fn adopt(path: &Path, listener: UnixListener, readers: Option<ReaderGroup>) -> Result<Self, Failure> {
        let failed = |why: io::Error| {
            Failure::failed(format!("cannot look at the control socket {}: {why}", path.display()))
        };
        let own = listener.local_addr().map_err(failed)?;
        let meta = fs::symlink_metadata(path).map_err(failed)?;
        if !meta.file_type().is_socket() || own.as_pathname().is_none() {
            let why = format!("the daemon that hands over answers elsewhere than at {}", path.display());
            return Err(Failure::failed(why));
        }
        Ok(ControlSocket {
            listener: Arc::new(listener),
            path: path.to_owned(),
            inode: None,
            readers,
            gate: AcceptGate::default(),
        })
    }

    /// The daemon that handed over does not serve any more: from now on dropping the socket removes it.
    pub fn take_over(&mut self) {
        self.inode = fs::symlink_metadata(&self.path).ok().map(|meta| (meta.dev(), meta.ino()));
    }

    /// What lets clients in.
    pub fn gate(&self) -> AcceptGate {
        self.gate.clone()
    }

    /// The socket, for a process that takes over.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(self.listener.try_clone()?.into())
    }
}
