//! The truth about a volume, whatever protocol asks: who may do what, in which order, under which
//! name and size.
//!
//! - An [`Io`] is an operation that owns its memory; a [`Backend`] carries it out and gives it back
//!   as [`Done`]. A backend makes no system call: what it wants of a disk leaves as a [`DiskOp`].
//! - A [`View`] is one core's copy of the truth. [`View::admit`] answers without a lock whether a
//!   nexus may do an operation now.
//! - The volume's home core holds the one authority. What it changes leaves as a [`Change`]: a new
//!   view for every core, a fence that says when the change may be answered, and notices.
//!
//! This crate knows neither SCSI nor NVMe: refusals and faults are its own words.

#![forbid(unsafe_code)]

mod backend;
mod io;
mod nexus;
mod view;

pub use backend::{Backend, DiskId, DiskKind, DiskOp, DiskTicket, Geometry};
pub use buf::{Cx, Errno, Payload, Time};
pub use io::{
    Done, Durability, Epoch, Extent, Failure, Fault, Io, IoId, Op, Outcome, Refusal, SanitizeKind, Span, Why,
};
pub use nexus::{Identity, Nexus, PortId};
pub use view::{Access, View};

/// Names a volume on every core of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub u32);
