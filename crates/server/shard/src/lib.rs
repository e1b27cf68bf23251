//! The target: connections, device servers and volumes composed into an endpoint; still no I/O.
//!
//! - [`Exports`]: what is offered to whom, as plain data.
//! - [`Shard`]: everything that lives on one core. It implements [`endpoint::Endpoint`], so the
//!   real and the simulated world run it alike.
//! - [`Message`]: what shards tell each other: logins ask the directory which session they become,
//!   volumes' changes go from their home to every shard and are acknowledged, the control plane adds,
//!   lists and stops.
//!
//! How a login goes: any shard accepts the socket and carries the login to its end; the directory (on
//! shard 0) says which session it becomes, new or old, and on which shard; the link moves there
//! before the first PDU of the full feature phase.

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

mod backoff;
mod controllers;
mod directory;
mod exports;
mod links;
mod login_link;
mod message;
mod shard;

pub use backoff::source;
pub use controllers::{CNTLID_MAX, ControllerReply, ControllerRequest};
pub use directory::SESSIONS_MAX;
pub use exports::{
    Admission, Bind, Choice, Comer, Condition, ControllerLimits, DISCOVERY_NQN, DataTerms, End, Exports,
    HostAuth, HostRule, LunExport, LunMask, NamespaceExport, NamespaceMask, Network, NotAllowed, Number,
    NvmeExports, NvmePortal, NvmeProduct, NvmeService, Order, Placed, PlacementRule, Portal, Redirect,
    Referral, Rule, SentOn, SubsystemExport, TargetExport, Wish,
};
pub use links::Moved;
pub use message::{
    AdmittedQueue, CONTROL, ConnectionEntry, Control, LinkHandoff, Listing, Make, MakeBackend, MakeRemote,
    Message, NvmeLinkHandoff, NvmeMessage, Proof, QueueEntry, QueueGrant, QueueRefusal, QueueRequest, Report,
    SessionEntry, SessionMemory, Traffic, VolumeEntry, VolumeSpec,
};
pub use nvme_server::{ANA_GROUPS_MAX, ComputeId, Gone, KeepAlive, NAMESPACES_MAX, namespaces_max};
pub use shard::{LOGINS_MAX, LogLine, NvmeCause, NvmeLine, Shard, home_of};
