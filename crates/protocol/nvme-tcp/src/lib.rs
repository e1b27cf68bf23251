//! The NVMe/TCP transport: PDUs as bytes and as values, and connections of either side without I/O.
//! One connection carries one queue. What a command means is not known here: only the length and the
//! direction of its data.

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

pub mod controller;
pub mod host;
mod limits;
mod link_fault;
mod pdu_writer;
mod queue;
mod receiver;
mod send_queue;
pub mod wire;

pub use controller::{CAPSULES_KEPT, ControllerQueue, QueueHandoff, QueueLimits, QueueSize};
pub use host::{HostLimits, HostQueue};
pub use link_fault::LinkFault;
pub use queue::Queue;
