//! One remote volume over one or several paths.
//!
//! A [`RemoteVolume`] is a backend. An operation goes to one of the best paths. If a path returns it undone,
//! it goes to another. If no path can serve it, it waits for a limited time. Paths belong to one volume if
//! their UUIDs agree, and only then.
//!
//! Invariants:
//! - Every accepted operation ends exactly once, by [`Backend::poll_done`].
//! - Of two overlapping writes, the second is given to a path only after the first has ended.
//! - A write that may have been executed is repeated only after its path has reported that it can no longer
//!   land; no overlapping operation is sent before. A compare-and-write is never repeated: it fails.
//! - An operation longer than a path's limit is executed in pieces, one after the other, and ends as one.
//! - A flush succeeds only if each path that was up and had carried writes since its last flush has flushed
//!   (NVMe Base: a flush covers what its own controller completed), and at least one path has.
//!
//! Bounds: at most [`VolumeSettings::in_work`] operations are held, in all queues together, and as many results not
//! yet taken; at most [`RESERVATION_OPS_MAX`] requests, [`RAW_COMMANDS_MAX`](crate::RAW_COMMANDS_MAX) raw commands,
//! [`PATHS_MAX`] paths. On the fast path nothing is allocated.
//!
//! [`Backend::poll_done`]: volume::Backend::poll_done

mod controller_resets;
mod dispatch;
mod path_registering;
mod path_slot;
mod paths;
mod raw_commands;
mod registration;
mod report;
mod reservation;
mod settings;
mod sockets;
mod split;
mod tasks;
#[cfg(test)]
mod tests;
mod timers;
mod write_overlap;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use buf::Cx;
use endpoint::{DialId, LinkId};
use smallvec::SmallVec;
use volume::{Failure, Fault, Geometry, Time, Uuid};

pub use report::{PathCounters, PathInfo, PathProblem, PathState, VolumeEvent, VolumeMismatch};
pub use reservation::{RESERVATION_OPS_MAX, ReservationReply};
pub use settings::{ExpectedVolume, IN_WORK_MAX, VolumeSettings, matches_serial};

use crate::path::{LostController, PATHS_MAX, Path, VolumeInfo};
use crate::raw_command::RawError;
use path_registering::HostRegistrations;
use path_slot::{PathSlot, PathSlots};
use raw_commands::RawCommands;
use reservation::PendingReservationOp;
use tasks::{TaskState, Tasks};

/// What the volume did to it.
const PATH_LOST: Failure = Failure::Failed(Fault::PathLost);
const ABORTED: Failure = Failure::Failed(Fault::Aborted);

/// What a path was asked it has at least so long to answer, however soon what waits for a path fails: it may do it
/// still, and its caller would be told that it failed.
const ANSWER_TIMEOUT_MIN: Duration = Duration::from_secs(30);

/// A time that never comes.
const NEVER: Time = Time(u64::MAX);

/// What all paths must have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
enum VolumeIdentity {
    /// This UUID.
    Uuid(Uuid),
    /// Only this path, and while its serial number stays.
    Alone(u8, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VolumeStage {
    Opening,
    Open,
    /// No path could be opened; what connects is being closed.
    Failed,
    Closing,
    Closed,
}

/// See the module.
#[derive(Debug)]
pub struct RemoteVolume<P> {
    settings: VolumeSettings,
    stage: VolumeStage,
    identity: Option<VolumeIdentity>,
    /// What the volume is like, of the path that told something new of it last; its geometry is known.
    info: Option<Arc<VolumeInfo>>,
    slots: PathSlots<P>,
    tasks: Tasks,
    /// Operations so far.
    numbers: u64,
    /// Cached writes that have ended so far.
    cached: u64,
    requests: Vec<PendingReservationOp>,
    registrations: HostRegistrations,
    replies: VecDeque<ReservationReply>,
    raw: RawCommands,
    /// Controllers that a path is resetting.
    resets: Vec<LostController>,
    /// Sockets and connections that are wanted, and whose they are.
    links: SmallVec<[(LinkId, u8); 4]>,
    dials: SmallVec<[(DialId, u8, DialId); 4]>,
    next_dial: u64,
    /// Since when no path serves.
    unserved_since: Option<Time>,
    opened_at: Time,
    /// Whether anything but the paths needs time.
    has_work: bool,
    /// When paths are asked again that took nothing although they had nothing in work.
    ask_again: Time,
    wake: Option<Time>,
    events: PendingEvents,
    /// A path may have something to be said of it.
    remarks: bool,
}

#[derive(Debug, Default)]
struct PendingEvents {
    open: bool,
    failed: bool,
    changed: bool,
    closed: bool,
    /// Told to the backend's user by [`RemoteVolume::has_geometry_changed`].
    geometry: bool,
    /// Told by [`RemoteVolume::has_lost_command_lifetime_changed`].
    landing: bool,
}

/// Tells each path by which portals others reach its target.
fn exchange_fence_portals<P: Path>(paths: &mut [P]) {
    let elsewhere = |path: &P| {
        let (target, own) = path.target_portals()?;
        let others = paths.iter().filter_map(Path::target_portals).filter(|(name, _)| *name == target);
        let mut elsewhere: Vec<SocketAddr> = others.flat_map(|(_, portals)| portals).copied().collect();
        elsewhere.retain(|portal| !own.contains(portal));
        elsewhere.dedup();
        Some(elsewhere)
    };
    let known: Vec<_> = paths.iter().map(elsewhere).collect();
    for (path, elsewhere) in paths.iter_mut().zip(known) {
        if let Some(elsewhere) = elsewhere {
            path.set_fence_portals(elsewhere);
        }
    }
}

impl<P: Path> RemoteVolume<P> {
    /// Begins to connect all paths, at most [`PATHS_MAX`] and at least one. [`VolumeEvent::Open`] follows with the
    /// first that is up, [`VolumeEvent::Failed`] if none comes up. What is submitted before waits.
    pub fn open(cx: &mut Cx<'_>, paths: Vec<P>, settings: VolumeSettings) -> Self {
        assert!((1..=PATHS_MAX).contains(&paths.len()), "a volume has 1 to {PATHS_MAX} paths");
        let in_work = settings.in_work.clamp(1, IN_WORK_MAX);
        let mut paths = paths;
        exchange_fence_portals(&mut paths);
        let slots = PathSlots::new(paths.into_iter().map(|path| PathSlot::new(path, cx.now)).collect());
        let tasks = Tasks::new(in_work, settings.queue_timeout, settings.certain);
        let mut volume = RemoteVolume {
            settings,
            stage: VolumeStage::Opening,
            identity: None,
            info: None,
            slots,
            tasks,
            numbers: 0,
            cached: 0,
            requests: Vec::new(),
            registrations: HostRegistrations::default(),
            replies: VecDeque::new(),
            raw: RawCommands::default(),
            resets: Vec::new(),
            links: SmallVec::new(),
            dials: SmallVec::new(),
            next_dial: 0,
            unserved_since: Some(cx.now),
            opened_at: cx.now,
            has_work: true,
            ask_again: NEVER,
            wake: None,
            events: PendingEvents::default(),
            remarks: false,
        };
        for slot in volume.slots.iter_mut() {
            slot.path.connect(cx);
        }
        volume.schedule_wake();
        volume
    }

    /// What the volume is like; `None` before it is open.
    pub fn info(&self) -> Option<&Arc<VolumeInfo>> {
        self.info.as_ref()
    }

    /// What its blocks are like; `None` before it is open.
    pub fn known_geometry(&self) -> Option<Geometry> {
        self.info.as_ref()?.geometry
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.settings.read_only || self.info.as_ref().is_some_and(|info| info.read_only)
    }

    /// Whether the geometry or the protection has changed since this was last asked.
    pub fn has_geometry_changed(&mut self) -> bool {
        std::mem::take(&mut self.events.geometry)
    }

    /// Whether [`PathInfo::lands_for`] of a path has grown, or is told by its target for the first time, since this was
    /// last asked: who keeps a record of it for the time after this process writes it again.
    pub fn has_lost_command_lifetime_changed(&mut self) -> bool {
        std::mem::take(&mut self.events.landing)
    }

    /// Whether operations may be submitted with the hope that they are done.
    pub fn is_open(&self) -> bool {
        self.stage == VolumeStage::Open
    }

    /// How it is to be used.
    pub fn settings(&self) -> &VolumeSettings {
        &self.settings
    }

    /// How many paths it has.
    pub fn path_count(&self) -> usize {
        self.slots.len()
    }

    /// The state of a path.
    pub fn path_info(&self, path: usize) -> Option<PathInfo> {
        Some(self.slots.iter().nth(path)?.path_info())
    }

    /// A path itself, to look at.
    pub fn path(&self, path: usize) -> Option<&P> {
        Some(&self.slots.iter().nth(path)?.path)
    }

    /// Operations that were taken on and have not ended.
    pub fn in_work(&self) -> usize {
        self.tasks.slab.len()
    }

    /// Whether one more operation can be taken on. If not, [`Backend::submit`](volume::Backend::submit)
    /// refuses it as busy.
    pub fn has_room(&self) -> bool {
        !self.tasks.slab.is_full()
    }

    /// What has changed.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<VolumeEvent> {
        let events = &mut self.events;
        for (flag, told) in [
            (&mut events.open, VolumeEvent::Open),
            (&mut events.failed, VolumeEvent::Failed),
            (&mut events.changed, VolumeEvent::Changed),
        ] {
            if std::mem::take(flag) {
                return Some(told);
            }
        }
        if let Some(path) = self.slots.iter_mut().position(|slot| std::mem::take(&mut slot.state_changed)) {
            return Some(VolumeEvent::Path(path));
        }
        std::mem::take(&mut self.events.closed).then_some(VolumeEvent::Closed)
    }

    /// Ends it: paths have `grace` to finish what they have, the rest ends as aborted. [`VolumeEvent::Closed`]
    /// follows.
    pub fn close(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        if matches!(self.stage, VolumeStage::Closing | VolumeStage::Closed) {
            return;
        }
        self.stage = VolumeStage::Closing;
        self.tasks.fail_all_waiting(ABORTED);
        self.raw.fail_waiting(RawError::Aborted);
        self.disconnect_all(cx, grace);
    }

    fn mark_pending(&mut self, slot: usize) {
        self.slots.mark_pending(slot);
    }
}
