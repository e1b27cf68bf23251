//! All that is seen of a daemon at one moment, from one look at its shards.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConnectionReport, HostRateLimitReport, SessionReport, ShardReport, StatusReport, VolumeReport};

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObservationReport {
    /// The daemon.
    pub status: StatusReport,
    /// Its volumes, with their standing and latency; without what leads to them.
    pub volumes: Vec<VolumeReport>,
    /// Its sessions and controllers, with their latency.
    pub sessions: Vec<SessionReport>,
    /// Their connections.
    pub connections: Vec<ConnectionReport>,
    /// Its shards.
    pub shards: Vec<ShardReport>,
    /// Logins, connects and connections that were refused, or that failed.
    pub refusals: Vec<HostRefusalReport>,
    /// Hosts that are limited.
    #[serde(default)]
    pub host_limits: Vec<HostRateLimitReport>,
}

/// How often hosts were refused for one cause since the daemon started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostRefusalReport {
    /// `iscsi` or `nvme`.
    pub protocol: String,
    /// The cause, a word such as `authentication`.
    pub cause: String,
    /// How often.
    pub count: u64,
}

/// How many operations of a volume failed for one cause since the daemon serves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeErrorReport {
    /// `medium`, `no-space`, `sync`, `path-lost`, `internal`, or `refused`: by the state of the volume.
    pub cause: String,
    /// How many.
    pub count: u64,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProblemReport {
    /// One of [`ProblemReport::KINDS`].
    pub kind: String,
    /// Volume, shard or address.
    pub subject: String,
    /// What is wrong.
    pub why: String,
    /// What to do about it.
    pub next: String,
}

impl ProblemReport {
    /// A volume is not served.
    pub const VOLUME_FAILED: &str = "volume-failed";
    /// A sync of a volume has failed, and nobody has taken note of it.
    pub const SYNC_FAILED: &str = "sync-failed";
    /// A volume is closed for all hosts: a change of it could not be finished.
    pub const VOLUME_CLOSED: &str = "volume-closed";
    /// A write has failed lately because there is no space.
    pub const NO_SPACE: &str = "no-space";
    /// Hosts cannot reach a volume by one of its paths.
    pub const PATH_INACCESSIBLE: &str = "path-inaccessible";
    /// A path to a volume of another machine is down.
    pub const REMOTE_PATH_DOWN: &str = "remote-path-down";
    /// A shard has hardly any payload memory left.
    pub const MEMORY_SHORT: &str = "memory-short";
    /// A host is blocked, or has failed to authenticate so often that it has to wait.
    pub const HOST_BLOCKED: &str = "host-blocked";

    /// All kinds.
    pub const KINDS: [&str; 8] = [
        ProblemReport::VOLUME_FAILED,
        ProblemReport::SYNC_FAILED,
        ProblemReport::VOLUME_CLOSED,
        ProblemReport::NO_SPACE,
        ProblemReport::PATH_INACCESSIBLE,
        ProblemReport::REMOTE_PATH_DOWN,
        ProblemReport::MEMORY_SHORT,
        ProblemReport::HOST_BLOCKED,
    ];
}
