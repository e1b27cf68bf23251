//! Runs volumes: the daemon, its data path, stores of blocks, and state that survives restarts.
//!
//! `serve` is: arguments and files → one checked [`config::plan::Plan`] → an [`Engine`] → the shards. The
//! trait [`Engine`] separates the control plane from the data path: plain values in, plain values out. The
//! control plane ([`daemon`]) decides and records; the engine ([`dataplane`]) moves data. Every method may be
//! called from any thread and waits until the shards have done what was requested.
//!
//! Invariant: a change is recorded in the state directory before it is reported as done.

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

pub mod backup;
mod connect_hints;
#[cfg(test)]
mod cpu_time;
pub mod daemon;
pub mod dataplane;
pub mod descriptors;
#[cfg(test)]
mod example;
pub mod flight_files;
mod memory;
mod remote;
pub mod serve;
pub mod state;
pub mod store;
pub mod upgrade;

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use crate::{
    daemon::StopSignal,
    dataplane::{group::JoinedGroup, prepared::PreparedPlan},
    flight_files::FlightFiles,
    state::{StateDir, blocked_hosts::BlockedNames},
    store::Store,
    upgrade::{HandOverError, HandedOver, Predecessor, Successor},
};
use shard::{OtherGateway, RateLimits};

use config::{
    name::VolumeName,
    plan::{ExportPlan, Plan},
};
use control::report::{
    ConnectionReport, HostRateLimitReport, HostRefusalReport, LatencyReport, ListenerReport, SessionReport,
    ShardReport, VolumeStateReport, plan::DisturbanceReport,
};

/// Why the engine did not do it.
#[derive(Debug)]
pub enum EngineError {
    /// A listener cannot be opened.
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        why: std::io::Error,
    },
    /// The system refused something at start: a ring, memory, a thread.
    Start(String),
    /// Initiators use the volume, and it was not to be forced.
    InUse {
        /// How many sessions.
        sessions: usize,
    },
    /// The backing cannot change in this way.
    Unsupported(String),
    /// What is kept of a volume (reservations, bad blocks, paths, protection) is damaged.
    Record(String),
    /// The change stands, but not every shard has heard of it in time: some hosts were told, and some were not.
    Unsettled(String),
    /// Nothing leads to the volume any more, but operations of it are still out.
    Lingers,
    /// The shards did not answer in time.
    TimedOut,
    /// The engine has stopped.
    Stopped,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::Listen { address, why } => {
                let hint = sandbox::listen_hint(*address, why).map(|hint| format!("; {hint}"));
                let advice = hint.unwrap_or_else(|| listen_advice(*address, why));
                write!(f, "cannot listen on {address}: {why}{advice}")
            }
            EngineError::Start(why) => write!(f, "cannot start: {why}"),
            EngineError::InUse { sessions } => {
                write!(f, "in use by {sessions} session(s); log them out first, or use --force")
            }
            EngineError::Unsupported(why) | EngineError::Record(why) => f.write_str(why),
            EngineError::Unsettled(why) => write!(f, "{why}"),
            EngineError::Lingers => f.write_str(
                "no host can reach it any more, but some of its operations are still in flight because its \
                 backing does not respond; its file stays open until they complete: delete it again then",
            ),
            EngineError::TimedOut => write!(f, "the shards did not answer in time"),
            EngineError::Stopped => write!(f, "the daemon is stopping"),
        }
    }
}

impl std::error::Error for EngineError {}

/// What to do about an address that cannot be listened on; empty if the system's words say it.
pub(crate) fn listen_advice(address: SocketAddr, why: &std::io::Error) -> String {
    match why.kind() {
        std::io::ErrorKind::AddrInUse => format!(
            "; another program uses the port: `ss -ltnp 'sport = :{}'` shows which. Stop it, or serve on another port",
            address.port()
        ),
        std::io::ErrorKind::AddrNotAvailable => {
            "; this machine does not have that address: `ip address` shows which it has".to_owned()
        }
        std::io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need the capability CAP_NET_BIND_SERVICE: use a higher one".to_owned()
        }
        _ => String::new(),
    }
}

/// How to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Accept nothing new, answer what is in flight, tell initiators (Async Message, logout), flush.
    Clean,
    /// Drop everything.
    Now,
}

/// The running data path.
pub trait Engine: Send + Sync {
    /// Volumes that it was started with and does not serve, and why. The ways that lead to them stay: once such a
    /// volume is added, they lead to it.
    fn unserved_volumes(&self) -> Vec<(VolumeName, String)> {
        Vec::new()
    }
    /// The group of gateways that this one is of.
    fn group(&self) -> Option<&JoinedGroup> {
        None
    }
    /// These are the other gateways of the group from now on, which hosts find by discovery here too.
    fn follow_group(&self, _gateways: Vec<OtherGateway>) -> Result<(), EngineError> {
        Ok(())
    }
    /// Where it listens, with the ports that the system chose, in the order of the plan's portals.
    fn listeners(&self) -> Vec<ListenerReport>;
    /// The sessions.
    fn sessions(&self) -> Result<Vec<SessionReport>, EngineError>;
    /// The connections.
    fn connections(&self) -> Result<Vec<ConnectionReport>, EngineError>;
    /// How long the commands of a volume took, of all shards together.
    fn volume_latency(&self, _name: &str) -> Result<Vec<LatencyReport>, EngineError> {
        Ok(Vec::new())
    }
    /// How long the commands of a connection took.
    fn connection_latency(&self, _id: u64) -> Result<Vec<LatencyReport>, EngineError> {
        Ok(Vec::new())
    }
    /// The shards.
    fn shards(&self) -> Result<Vec<ShardReport>, EngineError>;
    /// All that is seen of the shards, from one look at each.
    fn observe(&self) -> Result<EngineObservation, EngineError> {
        let in_doubt = |one: VolumeStateReport| VolumeStateReport {
            sync_failed: one.sync_failed || self.has_sync_failure(&one.volume),
            ..one
        };
        Ok(EngineObservation {
            sessions: self.sessions()?,
            connections: self.connections()?,
            shards: self.shards()?,
            standings: self.volume_states()?.into_iter().map(in_doubt).collect(),
            ..EngineObservation::default()
        })
    }
    /// What is true of each volume, in the order of their numbers.
    fn volume_states(&self) -> Result<Vec<VolumeStateReport>, EngineError>;
    /// Sets the state of a volume's paths by these ports; hosts of both protocols are told.
    fn set_path_access(&self, name: &str, ports: &[u16], to: volume::PathAccess) -> Result<(), EngineError>;
    /// Sets whether the paths by these ports are preferred.
    fn set_preferred_paths(&self, name: &str, ports: &[u16], on: bool) -> Result<(), EngineError>;
    /// Forbids writes to a volume, or allows them; hosts of both protocols are told.
    fn set_write_protection(&self, name: &str, on: bool) -> Result<(), EngineError>;
    /// Begins to serve a volume by `ways`, which lead to nothing else.
    fn add_volume(&self, volume: &Store, ways: &ExportPlan) -> Result<(), EngineError>;
    /// Stops serving a volume, and removes the targets and subsystems that it leaves with nothing. What is in flight
    /// goes on: its files stay open until [`Engine::drain_volume`].
    fn remove_volume(&self, name: &str, force: bool) -> Result<(), EngineError>;
    /// Waits for what is in flight of a volume that was removed, as long as its disk takes, but not without end. When
    /// this returns, nothing is, and its files may be closed. After [`EngineError::Lingers`] it is asked again.
    fn drain_volume(&self, name: &str) -> Result<(), EngineError>;
    /// Removes what was recorded of a volume that is not served now: it holds nothing of what it held then. This comes
    /// behind all that was to be recorded while it was served.
    fn discard_old_records(&self, _volume: &Store) -> Result<(), EngineError> {
        Ok(())
    }
    /// Leads to volumes by `ways` from now on, and by nothing else. Sessions of targets that are not among
    /// them are asked to log out; the others keep what they have negotiated.
    fn set_exports(&self, ways: &ExportPlan) -> Result<(), EngineError>;
    /// How much may be done with a volume per second.
    fn volume_limits(&self, _name: &str) -> RateLimits {
        RateLimits::NONE
    }
    /// Limits what is done with a volume from now on; what waits goes by it too. After an error all is as it was.
    fn set_volume_limits(&self, _name: &str, _limits: RateLimits) -> Result<(), EngineError> {
        Err(EngineError::Unsupported("this data path cannot limit volumes".to_owned()))
    }
    /// Hosts that are limited.
    fn host_limits(&self) -> Vec<HostRateLimitReport> {
        Vec::new()
    }
    /// The names of hosts that the operator has blocked.
    fn blocked_names(&self) -> BlockedNames {
        BlockedNames::default()
    }
    /// Blocks the hosts of these names and no others from now on, beside those that the configuration blocks: their
    /// sessions end at once. After an error all is as it was.
    fn set_blocked_names(&self, _names: BlockedNames) -> Result<(), EngineError> {
        Err(EngineError::Unsupported("this data path cannot block hosts".to_owned()))
    }
    /// Which sessions another plan would disturb, in the order of their numbers. Nothing is changed.
    fn review(&self, _plan: &Plan) -> Result<Vec<DisturbanceReport>, EngineError> {
        Ok(Vec::new())
    }
    /// Binds the new portals of a plan, and numbers what hosts will know by number. `new` are its volumes that are open
    /// and not served yet. Nothing that is served changes; what is not switched to is let go when it is dropped.
    fn prepare(&self, _plan: &Plan, _new: &[Store]) -> Result<PreparedPlan, EngineError> {
        Err(EngineError::Unsupported("this data path cannot change its configuration".to_owned()))
    }
    /// Serves by a plan that was prepared from now on: its settings, portals and `ways`. After an error all is as it was.
    fn switch(&self, _prepared: PreparedPlan, _ways: &ExportPlan) -> Result<(), EngineError> {
        Err(EngineError::Unsupported("this data path cannot change its configuration".to_owned()))
    }
    /// Ends an iSCSI session at once; its number and shard are those of its report.
    fn end_session(&self, id: u64, shard: usize) -> Result<(), EngineError>;
    /// The volume's backing now has this many bytes: initiators are told. After [`EngineError::Unsettled`], and
    /// wherever it is not known what became of it, they may have been.
    fn resize_volume(&self, name: &str, bytes: u64) -> Result<(), EngineError>;
    /// A sync of the volume's file has failed that the engine did not ask for: its writes and flushes are refused
    /// from now on, as if a shard had been told.
    fn note_sync_failure(&self, name: &str);
    /// Whether a sync of the volume has failed, so that its writes and flushes are refused until
    /// [`Engine::acknowledge_sync_failure`].
    fn has_sync_failure(&self, name: &str) -> bool;
    /// The operator takes note that what was written to the volume may be lost: once its files can be synced, hosts may
    /// write again.
    fn acknowledge_sync_failure(&self, volume: &Store) -> Result<(), EngineError>;
    /// What is listened on: number, report and socket of each, in the order of the plan's portals.
    fn duplicate_listeners(&self) -> Result<Vec<(u16, ListenerReport, OwnedFd)>, EngineError> {
        Err(EngineError::Unsupported("this data path cannot be handed over".to_owned()))
    }
    /// Comes to rest within this time and hands everything that is served to another process. After an error all goes on
    /// as if nothing had happened. After it has gone well nothing is served here any more, and the process is to end at
    /// once, without closing anything.
    fn hand_over(&self, _to: &mut Successor, _within: Duration) -> Result<HandedOver, HandOverError> {
        Err(HandOverError::Blocked("this data path cannot be handed over".to_owned()))
    }
    /// Stops; returns when all is done. False: not everything that was written is on stable storage, though the
    /// stop was to be clean. A second call with [`StopMode::Now`] ends a clean stop early.
    fn stop(&self, how: StopMode) -> bool;
}

/// A path to a volume of another machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DownPath {
    /// The volume.
    pub volume: String,
    /// Of a stripe: which leg.
    pub leg: Option<usize>,
    /// Which of its paths, counted from 0 in the order of its URLs.
    pub path: usize,
    /// Why, and what to do, in words.
    pub why: String,
}

/// What is seen of the shards at one moment.
#[derive(Debug, Default)]
pub struct EngineObservation {
    /// The sessions, with their latency.
    pub sessions: Vec<SessionReport>,
    /// The connections.
    pub connections: Vec<ConnectionReport>,
    /// The shards.
    pub shards: Vec<ShardReport>,
    /// What is true of each volume.
    pub standings: Vec<VolumeStateReport>,
    /// How long commands took, by the name of their volume.
    pub latency: HashMap<String, Vec<LatencyReport>>,
    /// Refusals by cause.
    pub refusals: Vec<HostRefusalReport>,
    /// Addresses whose hosts have to wait before they may authenticate again.
    pub delayed: Vec<IpAddr>,
    /// Paths to volumes of other machines that are down.
    pub paths_down: Vec<DownPath>,
}

/// What the data path starts from.
#[derive(Clone, Debug)]
pub struct EngineParams<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its volumes, open, in the plan's order.
    pub volumes: &'a [Store],
    /// Where reservations are kept.
    pub state: Arc<StateDir>,
    /// Where the shards record their events.
    pub flight: FlightFiles,
    /// How the data path has the daemon stop, when it cannot go on.
    pub stopping: Arc<StopSignal>,
    /// The process that serves them until now, if there is one.
    pub predecessor: Option<&'a Predecessor>,
}
