//! What a remote volume reports: events, the state of each path, and why a path cannot be used.
//!
//! Invariant: an event is reported once per change; the state is read where it is, never from an event.

use std::sync::Arc;
use std::time::Duration;

use volume::{PathAccess, Time};

use crate::path::{DownReason, Protocol, VolumeInfo};

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
    pub counts: PathCounters,
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
    Untold(PathAccess),
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
                    PathAccess::Optimized | PathAccess::NonOptimized => "about to change",
                    PathAccess::Standby => "in standby",
                    PathAccess::Inaccessible => "inaccessible",
                    PathAccess::Transition => "in transition",
                    PathAccess::PersistentLoss => "lost for good",
                }
            ),
        }
    }
}

/// What a path has done since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
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
