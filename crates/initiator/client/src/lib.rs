//! The initiator as a library: remote volumes over iSCSI and NVMe/TCP, driven by the caller's thread.
//! It needs no kernel module, no daemon and no root.
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
//! These calls block. The calls that do not block are [`Initiator::alloc_payload`], [`Initiator::submit`],
//! [`Initiator::turn`] and [`Initiator::poll_done`]. Data is received directly into the submitted memory,
//! and sent directly from it. [`Initiator::as_fd`](std::os::fd::AsFd) is for the caller's own event loop.
//!
//! Invariant: no call waits longer than the time-outs of the URL and of [`Settings`].

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

mod blocking_io;
mod discovery;
mod error;
mod identity;
mod initiator;
mod secret;
mod settings;
mod volume_name;

pub use discovery::{
    DiscoveredTarget, DiscoveryResult, PathExamination, discover_targets, examine_path, watch_discovery,
};
pub use error::{Error, ErrorKind};
pub use identity::{IsidChoice, PathIdentity};
pub use initiator::{Initiator, RawData, fetch_secrets, resolve_addresses};
pub use multipath::trace;
pub use multipath::url::{Options, Url, parse_time};
pub use multipath::{
    NvmeCommand, PathInfo, PathState, Protocol, RAW_COMMANDS_MAX, RAW_DATA_MAX, RawAnswer, RawCommand,
    RawCompletion, RawError, RawRefusal, Registration, ReservationOp, Reservations, VolumeEvent,
    VolumeHandle, VolumeInfo,
};
pub use reactor::IoChoice;
pub use settings::Settings;
pub use volume::{
    Durability, Extent, Failure, Fault, Geometry, Io, IoCompletion, IoId, Op, Outcome, Refusal, Span,
};
pub use volume_name::{is_remote_volume_name, stripe_uuid, urls_of_name};
