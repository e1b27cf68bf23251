//! The truth about a volume, whatever protocol asks: who may do what, in which order, under which
//! name and size. This crate knows neither SCSI nor NVMe: refusals and faults are its own words.
//!
//! # What a server does
//!
//! - When a command arrives: [`View::admit`] (or [`View::admit_class`] for one that touches no
//!   blocks, [`View::admit_medium`] for one that asks whether there is a medium). It takes no lock.
//!   A [`Refusal`] becomes status and sense in the server's `status.rs`.
//! - When its data is there: [`Gate::submit`] with an [`Io`] that owns the memory. The gate admits
//!   again, bindingly; keeps compare-and-write and its like apart from overlapping writes of all
//!   cores; and answers by [`Gate::poll_done`] with [`Done`], which gives the memory back.
//! - Payload: [`Op::Read`] takes `Payload::In` of the span's length, or `Payload::None` if
//!   [`Gate::lends`], and gives `In` or `Out`. Writing and comparing ops take `Payload::Out`:
//!   `CompareAndWrite` twice the span, `WriteSame` one block, the others the span's length.
//!   All others take `Payload::None`.
//! - Each turn: [`Gate::resume`] until it says false, then `poll_done`, `poll_disk`, `poll_wake`,
//!   `poll_ack`, and in the end `poll_timeout`.
//! - To change the truth (reservations, path states, size, write protection, medium, sanitize;
//!   aborts that every core must acknowledge): send an [`VolumeRequest`] to the volume's home core, with a
//!   number of the server's choice. The [`VolumeOwner`] there answers each with [`Answer`], which the
//!   world carries back.
//! - When an [`ViewUpdate`] arrives: abort the tasks that [`ViewUpdate::aborts`] names (but not the one
//!   that asked), queue the notices that are for own nexuses ([`Notice::is_for`]), then give the
//!   adoption to [`Gate::adopt`]. The gate's [`Ack`] goes back to the home core.
//!
//! # Invariants
//!
//! - A change is answered only when every core has adopted it and, where it takes rights away, what
//!   was admitted before has ended: after the answer no old write can land.
//! - Reservations that shall survive power loss are durable before the change is adopted.
//! - A [`Backend`] makes no system call: what it wants of a disk leaves as a [`DiskOp`].

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

mod authority;
mod backend;
mod bad;
mod by_volume;
mod change;
mod facts;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod gate;
mod guard;
mod io;
mod nexus;
mod notice;
mod owner;
mod ram;
mod record;
pub mod reservation;
mod shared;
mod view;

pub use authority::{Change, Volume};
pub use backend::{Backend, DiskId, DiskKind, DiskOp, DiskTicket, Geometry, Shard};
pub use bad::{BAD_BLOCKS_MAX, BadBlocks};
pub use buf::{Cx, Errno, Payload, Time};
pub use by_volume::ByVolume;
pub use change::{
    Abort, Ack, Answer, ChangeId, OperatorNotice, RequestId, StoreOp, ViewUpdate, VolumeRequest,
};
pub use facts::{Facts, Uuid, VolumeId};
pub use gate::Gate;
pub use io::{
    CommandClass, Done, Durability, Epoch, Extent, Failure, Fault, InlineIo, Io, IoId, Issuer, Op, Outcome,
    Refusal, SanitizeKind, Span, UnservableReason,
};
pub use nexus::{Access, Identity, Nexus, PortId};
pub use notice::{Cause, Notice, NoticeReceivers};
pub use owner::{REQUESTS_MAX, VolumeOwner};
pub use ram::{Ram, RamDisk};
pub use record::{PortRenumbering, RecordError, renumber_ports};
pub use shared::{Gauge, Shared};
pub use view::{HostProtection, Progress, View, VolumeState};
