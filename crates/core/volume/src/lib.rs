//! The state of a volume, shared by both protocols: access, order, identity, size. This crate does not depend
//! on SCSI or NVMe; it has its own refusals and faults.
//!
//! # What a server does
//!
//! - When a command arrives: [`View::admit`] (or [`View::admit_class`] for one that touches no blocks,
//!   [`View::check_medium_ready`] for one that depends on the medium only). It takes no lock. A [`Refusal`] becomes
//!   status and sense in the server's `status.rs`.
//! - When its data has been received: [`Gate::submit`] with an [`Io`] that owns the memory. The gate makes
//!   the binding admission decision and keeps compare-and-write and similar operations apart from overlapping
//!   writes of all cores. [`Gate::poll_done`] returns [`IoCompletion`] with the memory.
//! - Payload: [`Op::Read`] takes `Payload::In` of the span's length, or `Payload::None` if [`Gate::lends_memory`],
//!   and returns `In` or `Out`. Writing and comparing ops take `Payload::Out`: `CompareAndWrite` twice the
//!   span, `WriteSame` one block, the others the span's length. All others take `Payload::None`.
//! - Each turn: [`Gate::resume`] until it returns false, then `poll_done`, `poll_disk`, `poll_wake`,
//!   `poll_ack`, and at the end `poll_timeout`.
//! - To change the state (reservations, path states, size, write protection, medium, sanitize; aborts that
//!   every core must acknowledge): send a [`VolumeRequest`] to the volume's home core, with a number that the
//!   server chooses. The [`VolumeOwner`] there answers each with a [`VolumeAnswer`], which the world delivers.
//! - When a [`ViewUpdate`] arrives: abort the tasks that [`ViewUpdate::aborts_tasks_of`] names (except the one that
//!   requested it), queue the notices for own nexuses ([`Notice::is_for`]), then pass the update to
//!   [`Gate::update_view`]. Send the gate's [`Ack`] to the home core.
//!
//! # Invariants
//!
//! - A change is answered only when every core has applied it. If it takes rights away, all operations
//!   admitted before have also ended: after the answer no old write can land.
//! - Reservations that must survive power loss are durable before the change is applied.
//! - A [`Backend`] makes no system call: its disk operations are [`DiskOp`] values.

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
mod bad_blocks;
mod command_step;
mod facts;
#[cfg(any(test, feature = "fake"))]
pub mod fake_backend;
mod gate;
mod io;
mod notice;
mod owner;
mod owner_messages;
mod ram;
mod record;
mod region_guards;
mod replica;
mod requester;
pub mod reservation;
mod shared_gate_state;
mod task_table;
mod view;
mod volume_map;

pub use authority::{PendingChange, VolumeAuthority};
pub use backend::{Backend, DiskId, DiskKind, DiskOp, DiskTicket, Geometry, ShardId};
pub use bad_blocks::{BAD_BLOCKS_MAX, BadBlocks};
pub use buf::{Cx, Errno, Payload, Time};
pub use command_step::CommandStep;
pub use facts::{Uuid, VolumeFacts, VolumeId};
pub use gate::{Gate, OperationTimes};
pub use io::{
    CommandClass, Durability, Epoch, Extent, Failure, Fault, IdSpace, InlineIo, Io, IoCompletion, IoId, Op,
    Outcome, Refusal, SanitizeKind, Span, UnservableReason,
};
pub use notice::{Notice, NoticeCause, NoticeReceivers};
pub use owner::{REQUESTS_MAX, RunningVolume, RunningVolumeError, VolumeNotIdle, VolumeOwner};
pub use owner_messages::{
    AbortScope, Ack, ChangeId, OperatorNotice, RequestId, StoreOp, ViewUpdate, VolumeAnswer, VolumeRequest,
};
pub use ram::{ForeignMemory, RamBackend, RamDisk, movable_ram_len};
pub use record::{PortRenumbering, RecordError, renumber_ports};
pub use requester::{Identity, PathAccess, PortId, Requester};
pub use shared_gate_state::{AllocationGauge, SharedGateState};
pub use task_table::{ServerTask, TaskTable};
pub use view::{HostWriteProtection, SanitizeProgress, View, VolumeState};
pub use volume_map::VolumeMap;
