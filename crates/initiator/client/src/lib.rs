//! The initiator as a library: remote volumes over iSCSI and NVMe/TCP, driven by the thread of who
//! calls. No kernel module, no daemon, no root.
//!
//! ```no_run
//! # extern crate blockwire_client as initiator;
//! use initiator::{Initiator, Settings};
//!
//! let mut initiator = Initiator::new(Settings::default())?;
//! // Several URLs of one volume, joined by commas, are its paths.
//! let disk = initiator.open("iscsi://127.0.0.1/iqn.2026-11.io.blockwire:demo/0")?;
//! let mut block = [0; 4096];
//! initiator.read_at(disk, 0, &mut block)?;
//! initiator.write_at(disk, 0, &block)?;
//! initiator.flush(disk)?;
//! initiator.close(disk)?;
//! # Ok::<(), initiator::Error>(())
//! ```
//!
//! Beneath these calls, which wait, are those that do not: [`Initiator::memory`], [`Initiator::submit`],
//! [`Initiator::turn`], [`Initiator::poll_done`]. Data goes from the socket straight into the memory that
//! was submitted, and from there to the socket. [`Initiator::as_fd`](std::os::fd::AsFd) is for a loop of the
//! caller's own.
//!
//! Invariant: no call waits longer than the time-outs of the URL and of [`Settings`] say.

#![forbid(unsafe_code)]
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

mod error;
mod identity;
mod initiator;
mod look;
mod name;
mod plain;
mod secret;
mod settings;

pub use error::{Error, ErrorKind};
pub use identity::{IsidChoice, PathIdentity};
pub use initiator::{Initiator, resolve, secrets};
pub use look::{Discovered, DiscoveredTarget, Examined, discover, examine};
pub use multipath::trace;
pub use multipath::url::{Options, Url, time};
pub use multipath::{
    Handle, PathInfo, PathState, Protocol, Registration, ReservationOp, Reservations, VolumeEvent, VolumeInfo,
};
pub use name::{is_volume, stripe_uuid, urls_of};
pub use reactor::IoChoice;
pub use settings::Settings;
pub use volume::{Done, Durability, Extent, Failure, Fault, Geometry, Io, IoId, Op, Outcome, Refusal, Span};
