//! Volumes of other machines, without I/O: paths over iSCSI and NVMe/TCP, which of them to use, and what to
//! do when one fails.
//!
//! A [`Path`] is one way to a volume. It connects, reports what it found, executes operations, and reports
//! for each failed one whether it may have taken effect ([`IoError`]). With several paths, a retry never
//! overtakes a write with an unknown outcome: the path that lost it is fenced first.

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

mod any_path;
mod client;
pub mod iscsi;
pub mod nvme;
mod path;
mod raw_command;
mod remote;
mod secret;
mod sockets_endpoint;
mod striped;
pub mod suggest;
pub mod trace;
pub mod url;

pub use any_path::{
    AnyPath, HostIdentity, PathConfigError, UrlSecrets, discovery_watch, subsystem_discovery,
    target_discovery,
};
pub use client::{Client, VOLUMES_MAX, VolumeHandle};
pub use path::{
    DownReason, IoError, LostController, PATHS_MAX, Path, PathEvent, Protocol, Registration, ReservationOp,
    Reservations, VolumeInfo,
};
pub use raw_command::{
    CDB_LEN_MAX, NvmeCommand, RAW_COMMANDS_MAX, RAW_DATA_MAX, RawAnswer, RawCommand, RawCompletion, RawError,
    RawRefusal,
};
pub use remote::{
    ExpectedVolume, IN_WORK_MAX, PathCounters, PathInfo, PathProblem, PathState, RESERVATION_OPS_MAX,
    RemoteVolume, ReservationReply, VolumeEvent, VolumeMismatch, VolumeSettings, matches_serial,
};
pub use secret::Secret;
pub use sockets_endpoint::{NoShardMessage, SocketsEndpoint};
pub use trace::Trace;
pub use url::Url;
