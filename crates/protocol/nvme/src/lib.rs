//! NVMe Base, NVMe over Fabrics and the NVM command set, as bytes and as values, for both roles. Independent
//! of transport, volumes and clock.
//!
//! Invariant: received bytes become a typed value or a named refusal once, here; unknown values are preserved
//! in open types (`struct Opcode(pub u8)`).

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

pub mod admin;
pub mod async_event;
pub mod auth;
pub mod controller_reset;
pub mod cqe;
pub mod fabrics;
pub mod failpoint;
pub mod feature;
pub mod identify;
pub mod io;
mod key_interchange;
pub mod log;
pub mod name;
pub mod property;
pub mod reservation;
pub mod sgl;
pub mod sqe;
pub mod status;
pub mod tls;
mod transfer_max;

pub use controller_reset::ControllerInstance;
pub use cqe::{Completion, Cqe};
pub use key_interchange::{KeyError, KeyFlaw, KeyKind};
pub use name::{HostId, Nqn};
pub use sgl::SglDescriptor;
pub use sqe::{Direction, FabricsType, Fuse, Opcode, Sqe};
pub use status::Status;
pub use transfer_max::TransferMax;
