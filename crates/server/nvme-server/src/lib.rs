//! NVMe subsystems, controllers and namespaces on volumes; independent of the transport.
//!
//! One server lives on each shard. A controller's own state lives on one shard, with its admin queue. Its I/O
//! queues live where they are placed, and exchange messages with it that the caller carries from shard to
//! shard. Commands arrive by `start`, payload by `data`, completed operations by `done`, answers of a
//! volume's home by `answered`. The server's requests leave as [`Step`]s, in order. Each command gets exactly
//! one of `Step::Respond` and `Step::Retire`, except on the fast path: there the caller answers, and reports
//! it by [`Server::count_inline_io`].
//!
//! A namespace *is* a volume: through any subsystem and protocol its reservations, blocks and identity are
//! the same. Only `status.rs` translates the volume's refusals and faults into status.

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

mod admin;
mod after_wait;
mod authentication;
mod context;
mod controller;
pub mod discovery;
mod dispatch;
mod exec;
mod key;
mod queue;
mod queue_message;
mod server;
mod snapshot;
mod spec;
mod status;
mod step;
mod task;
#[cfg(test)]
mod tests;

pub use authentication::RequiredAuthentication;
pub use context::VolumeInfo;
pub use discovery::ADMIN_ENTRIES_MAX;
pub use exec::{COPY_BLOCKS_MAX, COPY_RANGE_BLOCKS_MAX, COPY_RANGES_MAX, UNCORRECTABLE_MAX_POWER};
pub use queue_message::{
    CommandFailure, ControllerEvent, FAILURES_MAX, QueueCounters, QueueMessage, QueueReport,
};
pub use server::Server;
pub use snapshot::{
    AssociationRestoreError, AssociationSaveRefusal, ControllerSnapshot, ServerQueueSnapshot,
};
pub use spec::{
    ANA_GROUPS_MAX, ControllerLimits, ControllerSpec, DiscoverySpec, HostIdentity, IoQueueConnect,
    KeepAliveLimits, NAMESPACES_MAX, NamespaceEntry, QUEUES_MAX, QueueSpec, Subsystem, namespaces_max,
};
pub use step::{
    CommandKey, ComputeId, ControllerEnd, ControllerListQuery, ControllerResetAnswer, ControllerResetRequest,
    ControllerStep, FormatFailure, QueueKey, Step,
};
