//! What log lines are about: the words by which they are filtered.

/// iSCSI: logins, sessions, broken rules.
pub const ISCSI: &str = "iscsi";
/// NVMe/TCP: connects, controllers, broken rules.
pub const NVME: &str = "nvme";
/// Sessions of both protocols: those that are ended, floods of strangers.
pub const SESSION: &str = "session";
/// Volumes: what is created, fails, is full or closed.
pub const VOLUME: &str = "volume";
/// Paths to volumes of other machines.
pub const PATH: &str = "path";
/// Attached disks.
pub const ATTACH: &str = "attach";
/// The configuration, and what of it takes effect.
pub const CONFIG: &str = "config";
/// The control socket.
pub const CONTROL: &str = "control";
/// Who changed what.
pub const AUDIT: &str = "audit";
/// The metrics over HTTP.
pub const METRICS: &str = "metrics";
/// The state directory.
pub const STATE: &str = "state";
/// Start, shards and end of the daemon.
pub const SERVE: &str = "serve";

/// All of them.
pub const ALL: [&str; 12] =
    [ISCSI, NVME, SESSION, VOLUME, PATH, ATTACH, CONFIG, CONTROL, AUDIT, METRICS, STATE, SERVE];

/// The area of an event: that of its `target:`. Without one (of a library, for instance) it is of the daemon.
pub fn of_target(target: &str) -> &'static str {
    ALL.into_iter().find(|area| *area == target).unwrap_or(SERVE)
}
