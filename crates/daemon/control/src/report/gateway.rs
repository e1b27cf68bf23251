//! The gateways of a group, as one of them knows them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A group of gateways that serve the same images of Ceph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GatewayGroupReport {
    /// The group.
    pub group: String,
    /// The gateway that answers.
    pub gateway: String,
    /// Its gateways, those included that are gone and may still be barred from the cluster.
    pub gateways: Vec<GatewayReport>,
    /// The volumes that the group serves.
    pub volumes: Vec<GatewayVolumeReport>,
    /// What this gateway has done for the group since it was started.
    pub counters: GatewayCounters,
    /// After `gateway drain`: whether it owns nothing any more. It goes on until it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<bool>,
}

/// One run of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GatewayReport {
    /// Its name.
    pub gateway: String,
    /// The number of its client in the cluster: `client.NUMBER`. Each run has another.
    pub instance: u64,
    /// Where other gateways connect to it.
    pub address: String,
    /// `joined`, `draining` or `expelled`.
    pub state: String,
    /// Whether the gateway that answers has a link to it; true for itself.
    pub linked: bool,
    /// How many volumes it owns.
    pub volumes: usize,
}

/// A volume of the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GatewayVolumeReport {
    /// The volume.
    pub volume: String,
    /// Its ANA group, which is owned as a whole.
    pub group: u32,
    /// Counts the owners of that group.
    pub term: u64,
    /// The gateway that owns it; nothing: none does now.
    pub owner: Option<String>,
    /// How the gateway that answers reaches it: `optimized`, `non-optimized` or `transition`.
    pub path: Option<String>,
}

/// What a gateway has done for its group since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GatewayCounters {
    /// Commands of own hosts on volumes that it did not serve at once itself.
    pub submitted: u64,
    /// Commands sent to owners, each time that they were.
    pub forwarded: u64,
    /// Commands executed for other gateways, or after they had waited.
    pub executed: u64,
    /// Commands of own hosts that ended with an error of the path.
    pub path_errors: u64,
    /// Groups of volumes that it has begun to serve.
    pub opened: u64,
    /// Groups of volumes that it has given away in good order.
    pub closed: u64,
}
