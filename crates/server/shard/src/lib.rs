//! The target of one core: connections, servers and volumes composed into an endpoint; no I/O.
//!
//! - [`Exports`]: what is offered to which hosts, as plain data.
//! - [`Shard`]: everything that lives on one core. It implements [`endpoint::Endpoint`], so the real and the
//!   simulated world run it alike.
//! - [`Message`]: messages between shards. Logins ask the directory which session they become. Changes of
//!   volumes go from their home to every shard and are acknowledged. The control plane adds, lists and stops.
//!
//! A login: any shard accepts the socket and completes the login. The directory (on shard 0) decides which
//! session it becomes, new or old, and on which shard. The link moves there before the first PDU of the full
//! feature phase.

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

mod controller_directory;
mod exports;
mod latency;
mod link_table;
mod log;
mod login_backoff;
mod login_link;
mod message;
mod rate_limit;
mod session_directory;
mod shard;
mod target_snapshot;

pub use controller_directory::{CNTLID_MAX, ControllerReply, ControllerRequest};
pub use exports::{
    AdmissionLimits, BlockedHosts, Comparison, Condition, ConnectionEnd, ConnectionNumber, ControllerLimits,
    DISCOVERY_NQN, EndCause, Exports, GroupExports, GroupRedirect, H2cDataLimits, HostAuth, HostNotAllowed,
    HostRule, InitiatorRule, LOGINS_MAX, LunExport, LunMask, NamespaceExport, NamespaceMask, Network,
    NvmeExports, NvmePortal, NvmeProduct, NvmeService, OtherGateway, PlacementOutcome, PlacementPolicy,
    PlacementQuery, PlacementReason, PlacementRule, Portal, Redirect, Referral, SESSIONS_MAX,
    ShardPreference, SubsystemExport, TargetExport, TargetPort, TlsMode,
};
pub use latency::{BUCKETS, CommandLatency, Histogram, LatencyClass, LatencyStage, StageHistograms};
pub use link_table::LinkTraffic;
pub use log::{ConnectFailure, LogLine, LoginNames, NvmeLogLine, RefusalCause};
pub use login_backoff::source_network;
pub use message::{
    AdmittedQueue, BackendFactory, CONTROL_PLANE, ConnectionStatus, ControlReport, ControlRequest,
    ErrorCause, ErrorCounters, FromGateway, GroupStep, HostAuthentication, IoCounters, LinkHandoff,
    MakeBackend, MakeNetworkBackend, Message, NvmeLinkHandoff, NvmeMessage, QueueEntry, QueueGrant,
    QueueRefusal, QueueRequest, QuiesceBlocker, SessionMemoryNeeds, SessionStatus, ShardListing, ToGateway,
    VolumeSpec, VolumeStatus, VolumeWork,
};
pub use nvme_server::{
    ANA_GROUPS_MAX, ComputeId, ControllerEnd, KeepAliveLimits, NAMESPACES_MAX, namespaces_max,
};
pub use rate_limit::{Rate, RateLimiter, RateLimits};
pub use shard::{CarriedNumbers, RestoreError, RestoreFailure, Shard, home_of};
pub use target_snapshot::{LeftBehind, LeftBehindCause, ShardSnapshot, TargetSnapshot, TargetSnapshotError};
