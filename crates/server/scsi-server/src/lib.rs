//! A SCSI device server on volumes: SAM's task router, and the execution of SPC and SBC commands.
//!
//! One [`Server`] lives on each shard and serves every I_T nexus of that shard. It is independent of the
//! transport: tasks arrive by [`Server::start_command`], payload by [`Server::handle_data`], completed operations by
//! [`Server::handle_io_done`] and answers of the volume's home by [`Server::handle_volume_answer`]. Its requests leave as
//! [`Step`]s, in order, from [`Server::poll_step`]. The caller names each task by a [`TaskKey`] and
//! gets exactly one of `Step::Respond`, `Step::Retire` or [`ManagementEnd`] for it.
//!
//! A logical unit *is* a volume: through any target and LUN its reservations, blocks and identity are the
//! same. Unit attentions are kept per nexus and logical unit.
//!
//! Only `status.rs` translates the volume's refusals and faults into status and sense.

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

mod after_operation;
mod context;
mod exec;
mod nexus;
mod pending_functions;
mod server;
mod snapshot;
mod status;
mod step;
mod task;
mod task_management;
mod task_set;
#[cfg(test)]
mod tests;
mod unit;
mod unit_attention;

/// The NAA names of logical units, which are folded from UUIDs.
pub use scsi::vpd::{naa_locally_assigned, naa_registered_extended};

pub use nexus::{CopyVolume, InquiryProduct, LunEntry, NexusSpec, TargetPort};
pub use server::Server;
pub use snapshot::{NexusRestoreError, NexusSnapshot};
pub use step::{
    DeviceStep, ManagementEnd, ManagementFunction, ManagementOutcome, NexusKey, Reply, Step, TaskKey,
};
pub use task::IncomingCommand;
pub use task_set::TaskAttribute;
pub use unit::UnitSpec;
pub use unit_attention::UnitAttentions;
