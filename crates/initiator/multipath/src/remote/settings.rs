//! Time-outs of a remote volume, and its reports about paths.

use std::sync::Arc;
use std::time::Duration;

use volume::{Access, Time};

use crate::path::{DownReason, Protocol, VolumeInfo};
use crate::url::{Options, PathPolicy};

/// Most paths of a volume: a bit of a `u32` each.
pub const PATHS_MAX: usize = 32;

/// Most operations in work on a volume.
pub const IN_WORK_MAX: usize = 16_384;

/// Which volume is meant: what was found of it before, perhaps by others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its UUID, if its target gives one.
    pub uuid: Option<volume::Uuid>,
    /// Its serial number, by which it is known where there is no UUID.
    pub serial: String,
    /// Bytes of its blocks.
    pub logical: u32,
}

/// Whether a volume without a UUID that was known by this serial number is the one that a path found. Where either
/// lacks the namespace's own name that follows the number (records of older versions; a path that tells nothing of
/// the volume in its state), the number decides. A stripe's is those of its legs, joined by `+`.
pub fn is_same_serial(known: &str, found: &VolumeInfo) -> bool {
    let named = |rest: &str| rest.starts_with(" NGUID ") || rest.starts_with(" EUI64 ");
    let is_same = |known: &str, told: &str| {
        known == told
            || told.strip_prefix(known).is_some_and(named)
            || found.geometry.is_none() && known.strip_prefix(told).is_some_and(named)
    };
    let (legs, told) = (known.split('+'), found.serial.split('+'));
    legs.clone().count() == told.clone().count() && legs.zip(told).all(|(one, other)| is_same(one, other))
}

impl Expected {
    /// Whether what a path found is that volume.
    ///
    /// # Errors
    /// What each of both is known by.
    pub fn accept(&self, found: &VolumeInfo) -> Result<(), VolumeMismatch> {
        match (self.uuid, found.uuid) {
            (Some(volume), Some(path)) if volume != path => {
                return Err(VolumeMismatch::OtherUuid { volume, path });
            }
            (Some(_), Some(_)) => {}
            (None, None) if is_same_serial(&self.serial, found) => {}
            (volume, path) => {
                let name = |uuid: Option<volume::Uuid>, serial: &str| match uuid {
                    Some(uuid) => format!("the UUID {uuid}"),
                    None => format!("the serial number \"{serial}\" and no UUID"),
                };
                let (volume, path) = (name(volume, &self.serial), name(path, &found.serial));
                return Err(VolumeMismatch::Other { volume, path });
            }
        }
        match found.geometry {
            Some(geometry) if geometry.logical != self.logical => {
                Err(VolumeMismatch::OtherBlocks { volume: self.logical, path: geometry.logical })
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// How a volume uses its paths. [`Duration::MAX`] is for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSettings {
    /// Which path is next.
    pub policy: PathPolicy,
    /// Most operations in work or waiting: 1 to [`IN_WORK_MAX`].
    pub in_work: usize,
    /// Whether writes are refused here.
    pub read_only: bool,
    /// From the loss of a path to the first attempt to connect it again, more or less a quarter by
    /// chance; twice as long each time up to `reconnect_delay_max`, until the path has been up for so long.
    pub reconnect_delay: Duration,
    /// See `reconnect_delay`.
    pub reconnect_delay_max: Duration,
    /// A path that has been down for so long is given up.
    pub loss_timeout: Duration,
    /// When no path has served for so long, what waits fails, and what comes fails at once, until one
    /// serves again.
    pub fast_fail: Duration,
    /// An operation that has waited so long for a path that serves, or for a fence, fails. Zero: no
    /// operation waits.
    pub queue_timeout: Duration,
    /// Whether an operation that may have been done ends only when it is certain that it can land no more,
    /// however long that takes: for who tells others that it failed, and cannot keep them from trying again by
    /// another way.
    pub certain: bool,
    /// Which volume it must be; `None`: what the first path finds.
    pub expected: Option<Expected>,
    /// What one operation carries is this, in bytes, however little a path carries: what is longer goes in
    /// pieces. `None`: what every path carries. For who has told others already.
    pub max_io: Option<u32>,
    /// How long attempts to open go on while every path fails; each is tried once at least. A wrong
    /// secret, or another volume's path, is not tried again.
    pub open_timeout: Duration,
}

impl Default for VolumeSettings {
    fn default() -> Self {
        VolumeSettings {
            policy: PathPolicy::LeastQueue,
            in_work: 1024,
            read_only: false,
            reconnect_delay: Duration::from_millis(100),
            reconnect_delay_max: Duration::from_secs(10),
            loss_timeout: Duration::from_secs(600),
            fast_fail: Duration::MAX,
            queue_timeout: Duration::from_secs(120),
            certain: false,
            expected: None,
            max_io: None,
            open_timeout: Duration::ZERO,
        }
    }
}

impl VolumeSettings {
    /// The defaults, but for what a URL says.
    pub fn of(options: &Options) -> VolumeSettings {
        let (said, plain) = (&options.volume, VolumeSettings::default());
        let reconnect_delay = said.reconnect_delay.unwrap_or(plain.reconnect_delay);
        VolumeSettings {
            policy: said.policy.unwrap_or(plain.policy),
            in_work: plain.in_work,
            read_only: options.read_only.unwrap_or(plain.read_only),
            reconnect_delay,
            reconnect_delay_max: said
                .reconnect_delay_max
                .unwrap_or(plain.reconnect_delay_max)
                .max(reconnect_delay),
            loss_timeout: said.loss_timeout.unwrap_or(plain.loss_timeout),
            fast_fail: said.fast_fail.unwrap_or(plain.fast_fail),
            queue_timeout: said.queue_timeout.unwrap_or(plain.queue_timeout),
            certain: plain.certain,
            expected: plain.expected,
            max_io: plain.max_io,
            open_timeout: said.open_timeout.unwrap_or(plain.open_timeout),
        }
    }
}

/// What became of a volume or a path. Each is told once per change, however often it has changed since
/// the last was taken; what is true now is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeEvent {
    /// The volume can be used.
    Open,
    /// It could not be opened, and never will be: [`PathInfo::last`] says why, path by path.
    Failed,
    /// Its size, access or protection has changed, or others have changed its reservations.
    Changed,
    /// This path has changed its state.
    Path(usize),
    /// The volume is closed; nothing is left of it.
    Closed,
}

/// The state of a path, as its volume uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathState {
    /// It connects.
    Connecting,
    /// It is up; whether it is used follows from its access state.
    Up,
    /// It is up, but carries nothing until what it lost before can land no more.
    Fencing,
    /// It is up, but carries nothing until this host is registered by it, as it is by others.
    Registering,
    /// It is down, and will be tried again at this time.
    Waiting(Time),
    /// It is down, and is not tried any more.
    GivenUp,
    /// It is being closed, or is closed.
    Closed,
}

/// What is told of a path.
#[derive(Clone, Debug)]
pub struct PathInfo {
    /// Over which protocol.
    pub protocol: Protocol,
    /// Its state.
    pub state: PathState,
    /// What it found when it last was up.
    pub info: Option<Arc<VolumeInfo>>,
    /// Why it was last down, and since when (of the last loss) it is.
    pub last: Option<(Time, PathProblem)>,
    /// Operations on it now.
    pub in_work: u32,
    /// What it has done.
    pub counts: PathCounts,
    /// How long after its loss its commands may still be carried out.
    pub lands_for: Duration,
}

/// Why a path cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathProblem {
    /// It says so itself.
    Down(DownReason),
    /// What stands at its other end is not this volume.
    VolumeMismatch(VolumeMismatch),
    /// It is up and does not serve, and the target tells nothing of the volume by a path in this state.
    Untold(Access),
    /// It is used as it is, without a registration: another host has taken this host's away.
    Preempted,
}

/// Why what a path found is not taken for this volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeMismatch {
    /// Another UUID than the volume's.
    OtherUuid {
        /// The volume's.
        volume: volume::Uuid,
        /// The path's.
        path: volume::Uuid,
    },
    /// Not the volume that was found before: what each is known by.
    Other {
        /// The volume.
        volume: String,
        /// What the path leads to.
        path: String,
    },
    /// The path's volume has no UUID, or ours has none: nothing shows that they are one.
    NoUuid,
    /// Without a UUID, the serial number is another than before.
    OtherSerial,
    /// Its blocks have another size.
    OtherBlocks {
        /// The volume's, in bytes.
        volume: u32,
        /// The path's.
        path: u32,
    },
}

impl std::fmt::Display for VolumeMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            VolumeMismatch::OtherUuid { volume, path } => write!(
                f,
                "it leads to the volume with the UUID {path}, not to {volume}: check the target's name and \
                 the unit, or whether the target has lost its volume"
            ),
            VolumeMismatch::Other { volume, path } => write!(
                f,
                "it leads to a volume with {path}, not to the one with {volume}: check the target's name and the \
                 unit, or whether the target has lost its volume"
            ),
            VolumeMismatch::NoUuid => f.write_str(
                "without a UUID from the target on every path nothing shows that they lead to one volume: \
                 use one path alone",
            ),
            VolumeMismatch::OtherSerial => {
                f.write_str("another serial number than before answers there: the volume was replaced")
            }
            VolumeMismatch::OtherBlocks { volume, path } => {
                write!(f, "its blocks have {path} bytes, the volume's have {volume}")
            }
        }
    }
}

impl std::fmt::Display for DownReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DownReason::Unreachable(errno) => write!(f, "not reachable: errno {}", errno.0),
            DownReason::Refused(what)
            | DownReason::Absent(what)
            | DownReason::Unproven(what)
            | DownReason::CutShort(what)
            | DownReason::Silent(what)
            | DownReason::Lost(what) => f.write_str(what),
            DownReason::Ended => f.write_str("it was closed"),
        }
    }
}

impl std::fmt::Display for PathProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PathProblem::Down(why) => why.fmt(f),
            PathProblem::VolumeMismatch(mismatch) => mismatch.fmt(f),
            PathProblem::Preempted => f.write_str(
                "another host has taken this host's registration for reservations away, so this path was not \
                 registered: register again if this host is to go on",
            ),
            PathProblem::Untold(access) => write!(
                f,
                "the target does not serve the volume by this path, which is {}, and does not tell its size by \
                 it: add a path that serves, or change the path's state at the target",
                match access {
                    Access::Optimized | Access::NonOptimized => "about to change",
                    Access::Inaccessible => "inaccessible",
                    Access::Transition => "in transition",
                    Access::PersistentLoss => "lost for good",
                }
            ),
        }
    }
}

/// What a path has done since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// Operations that ended well.
    pub done: u64,
    /// Operations that the target refused or failed at.
    pub failed: u64,
    /// Operations that were taken back and went elsewhere, or here again.
    pub retried: u64,
    /// Operations whose fate was unknown.
    pub lost: u64,
    /// How often it came up.
    pub connects: u64,
    /// How often it was lost after it had been up.
    pub losses: u64,
    /// How often it was fenced.
    pub fences: u64,
}
