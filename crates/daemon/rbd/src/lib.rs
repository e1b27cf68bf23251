//! Images of RADOS block devices (RBD, the block device of Ceph) as disks of the reactor.
//!
//! librados and librbd are opened with dlopen when the first image is, so the program runs where they are not
//! installed. One client of the cluster per image: when another client takes an image over, only this image is cut
//! off.
//!
//! A writable image is opened under its exclusive lock (`rbd_lock_acquire`), which it does not give up when another
//! client asks. The lock keeps two daemons from serving one image by mistake. It is no fence by itself: what a
//! paused client has queued may still arrive after the lock was broken. So breaking the lock of a client that is
//! gone blocklists that client, for [`BLOCKLISTED_SECONDS`].
//!
//! A group of gateways has one client per instance instead ([`Client::connect_for_group`]): its objects ([`Pool`]) and the
//! images that it has locked ([`Image::open_in_group`]) are cut off together.
//!
//! Start reading at [`Image::open`] and [`Image::start`](reactor::LibraryDisk::start).
//!
//! Invariants: a call owns its memory until librbd's callback; after a client was found blocklisted nothing is
//! asked of librbd any more, and nothing succeeds; an image is closed when no call is out.

#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

mod calls;
mod changes;
mod client;
mod confirmation;
mod image;
mod monitors;
mod objects;
mod open;
mod open_error;
mod result;
mod slot;
mod symbols;

use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

pub use changes::{changes, wait_for_change};
pub use client::{Client, ClusterOptions};
pub use image::{Image, ImageIdentity, close_all};
pub use objects::{Contents, Pool, Watch, WatchEvent, WriteIf};
pub use open::{ANSWER, LOCK_WAIT, Options, is_opening};
pub use open_error::OpenError;
pub use slot::ImageSlot;
pub use symbols::LibraryError;
use symbols::{Functions, Libraries, ObjectFunctions};

/// How long a client whose lock was broken stays blocklisted, in seconds: a year. The entry must outlive whatever the
/// client may still send, and only who knows that it has ended may remove it.
pub const BLOCKLISTED_SECONDS: u32 = 31_536_000;

/// Ends the process at once: no destructor of librados or librbd runs beside threads of theirs that still wait for the
/// cluster.
pub fn exit_at_once(code: u8) -> ! {
    // SAFETY: it ends the process, and nothing runs behind it.
    unsafe { libc::_exit(code.into()) }
}

/// librados and librbd, open.
#[derive(Clone, Debug)]
pub struct Library(Arc<Functions>, Libraries);

impl Library {
    /// Opens the libraries, once per process.
    ///
    /// # Errors
    /// One of them is not installed, or is too old.
    pub fn open() -> Result<Self, LibraryError> {
        static OPEN: Mutex<Option<Library>> = Mutex::new(None);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = &*open {
            return Ok(library.clone());
        }
        let (functions, libraries) = Functions::open()?;
        let library = Library(Arc::new(functions), libraries);
        *open = Some(library.clone());
        Ok(library)
    }

    /// Opens the libraries of these two files, librados and librbd: for tests.
    ///
    /// # Errors
    /// As [`Library::open`].
    pub fn open_files(files: [&CStr; 2]) -> Result<Self, LibraryError> {
        let (functions, libraries) = Functions::open_files(files)?;
        Ok(Library(Arc::new(functions), libraries))
    }

    /// What a store of objects needs, looked up when it is first used: images need none of it.
    pub(crate) fn objects(&self) -> Result<Arc<ObjectFunctions>, LibraryError> {
        ObjectFunctions::look_up(self.1).map(Arc::new)
    }

    /// The version of librbd, as `1.16.0`.
    pub fn version(&self) -> String {
        let (major, minor, extra) = self.0.version();
        format!("{major}.{minor}.{extra}")
    }
}
