//! The NVMe/TCP transport: PDUs as bytes and as values, and connections of either role without I/O. One
//! connection carries one queue. Commands are not interpreted here, except for the length and the direction
//! of their data.

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
mod pdu_receiver;
mod pdu_writer;
mod queue;
mod send_queue;
mod tls_link;
pub mod wire;

pub use controller::{
    CAPSULES_RESERVED, ConnectedQueueSize, ControllerQueue, QueueHandoff, QueueLimits, QueueRestoreError,
    QueueSaveRefusal, QueueSnapshot,
};
pub use host::{HostQueue, HostQueueSettings};
pub use link_fault::LinkFault;
pub use queue::Queue;
pub use tls_link::ServerTls;
