//! One remote volume over one or several paths.
//!
//! A [`RemoteVolume`] is a backend. What is submitted goes by one of the best paths; what a path gives
//! back undone goes by another; what nobody can serve waits, for a stated time and no longer. Paths are of
//! one volume if their UUIDs agree, and by nothing else.
//!
//! Invariants:
//! - Every operation that was taken on ends exactly once, by [`Backend::poll_done`].
//! - Of two writes that overlap, the second is given to a path when the first has ended, and not before.
//! - A write that may have been done is repeated only after its path has said that it can land no more;
//!   nothing that overlaps it goes anywhere before. A compare-and-write is not repeated at all: it fails.
//! - What is longer than a path carries at once is carried out in pieces, one after the other, and ends as one.
//! - A flush ends well only if each path that was up and had carried writes since its last flush has
//!   flushed (NVMe Base: a flush covers what its own controller completed), and one at least.
//!
//! Bounds: at most [`Terms::in_work`] operations are held, in all queues together, and as many ends that
//! were not taken; at most [`REQUESTS_MAX`] claims; [`PATHS_MAX`] paths. On the plain path nothing is
//! allocated.
//!
//! [`Backend::poll_done`]: volume::Backend::poll_done

mod dispatch;
mod order;
mod path_slot;
mod paths;
mod registering;
mod reservation;
mod sockets;
mod split;
mod terms;
#[cfg(test)]
mod tests;
mod timers;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Payload};
use endpoint::{DialId, LinkId};
use smallvec::SmallVec;
use stream::{Slab, Tag};
use volume::reservation::Register;
use volume::{Done, Failure, Fault, Geometry, IoId, Op, Time, Uuid};

pub use reservation::{REQUESTS_MAX, ReservationReply};
pub use terms::{
    Counts, Expected, IN_WORK_MAX, PATHS_MAX, PathInfo, PathProblem, PathState, Terms, VolumeEvent,
    VolumeMismatch, is_same_serial,
};

use crate::path::{Path, VolumeInfo};
use order::Order;
use path_slot::{PathSlot, PathSlots};
use registering::KnownRegistrations;
use reservation::PendingRequest;
use split::SplitOp;

/// What the volume did to it.
const PATH_LOST: Failure = Failure::Failed(Fault::PathLost);
const ABORTED: Failure = Failure::Failed(Fault::Aborted);

/// A time that never comes.
const NEVER: Time = Time(u64::MAX);

/// Where an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    /// In the queue for a path with room.
    Queued,
    /// Behind an earlier write that overlaps it.
    Held,
    /// Undone; to be queued again at a time.
    Later,
    /// With this path.
    Path(u8),
    /// A flush: with the paths of `out`, and to go to those of `todo`.
    Flush { todo: u32, out: u32 },
    /// This path has lost it; the fence is awaited that is asked for after so many.
    Doubt(u8, u32),
}

/// An operation that was taken on.
#[derive(Debug)]
struct Task {
    /// The caller's name for it.
    id: IoId,
    /// To do it again.
    op: Op,
    at: TaskState,
    /// Its memory, while no path has it.
    payload: Payload,
    /// Its place among all: earlier writes have lower numbers.
    number: u64,
    /// When it has waited long enough; [`NEVER`] as long as nothing went wrong.
    deadline: Time,
    /// How often it came back undone.
    tries: u32,
    cancelled: bool,
    /// A flush: the count of cached writes when it began; what its legs came to.
    since: u64,
    again: bool,
    /// A path that has room has not taken a leg of it.
    declined: bool,
    failure: Option<Failure>,
    /// What no path carries at once: how far it is.
    split: Option<Box<SplitOp>>,
}

/// A write that ended without a certain fate, and may land until its path is fenced.
#[derive(Debug)]
struct InDoubtWrite {
    slot: u8,
    generation: u32,
    number: u64,
    op: Op,
}

/// What all paths must have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Identity {
    /// This UUID.
    Uuid(Uuid),
    /// Only this path, and while its serial number stays.
    Alone(u8, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
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
    terms: Terms,
    stage: Stage,
    identity: Option<Identity>,
    /// What the volume is like, of the path that told something new of it last; its geometry is known.
    volume_info: Option<Arc<VolumeInfo>>,
    slots: PathSlots<P>,
    /// Paths that may be used, of the best state that any has.
    best: SmallVec<[u8; 8]>,
    /// Where in `best` the next choice begins.
    turn: usize,
    tasks: Slab<Task>,
    /// Operations so far.
    numbers: u64,
    /// Cached writes that have ended so far.
    cached: u64,
    order: Order,
    in_doubt: Vec<InDoubtWrite>,
    queue: VecDeque<Tag>,
    /// Writes behind others, in order; whether one of those has ended.
    held: VecDeque<Tag>,
    release: bool,
    later: BinaryHeap<Reverse<(Time, u64)>>,
    /// Flushes that have legs left to send.
    flushes: Vec<Tag>,
    cancels: Vec<IoId>,
    requests: Vec<PendingRequest>,
    /// How this host was registered, to register paths that come up later in the same way.
    registered: Option<Register>,
    known_registrations: KnownRegistrations,
    /// The path by which a reservation was taken last, if it was not given up since.
    holder: Option<usize>,
    replies: VecDeque<ReservationReply>,
    done: VecDeque<Done>,
    /// Paths to be looked at in this turn; to be asked for links, dials and leaves.
    touched: u32,
    ready: u32,
    /// Sockets and connections that are wanted, and whose they are.
    links: SmallVec<[(LinkId, u8); 4]>,
    dials: SmallVec<[(DialId, u8, DialId); 4]>,
    next_dial: u64,
    /// Since when no path serves.
    unserved_since: Option<Time>,
    opened_at: Time,
    /// Whether anything but the paths needs time.
    has_work: bool,
    /// The earliest deadline of what waits, or earlier.
    expiry: Time,
    /// When paths are asked again that took nothing although they had nothing in work.
    ask_again: Time,
    wake: Option<Time>,
    events: PendingEvents,
    /// A path may have something to be said of it.
    remarks: bool,
    #[cfg(test)]
    bug: Option<Bug>,
}

/// A bug that a test plants: who does not notice it proves nothing.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A write of unknown fate is repeated without a fence.
    NoFence,
    /// Writes that overlap go at once.
    NoOrder,
    /// A flush goes by one path.
    FlushOne,
    /// What was fenced is forgotten.
    Lose,
    /// What is repeated ends twice.
    Double,
    /// A compare-and-write of unknown fate is repeated.
    RepeatSwap,
}

#[derive(Debug, Default)]
struct PendingEvents {
    open: bool,
    failed: bool,
    changed: bool,
    closed: bool,
    /// Told to the backend's user by [`RemoteVolume::has_changed`].
    geometry: bool,
    /// Told by [`RemoteVolume::has_landing_changed`].
    landing: bool,
}

/// Tells each path by which portals others reach its target.
fn introduce<P: Path>(paths: &mut [P]) {
    let elsewhere = |path: &P| {
        let (target, own) = path.portals()?;
        let others = paths.iter().filter_map(Path::portals).filter(|(name, _)| *name == target);
        let mut elsewhere: Vec<SocketAddr> = others.flat_map(|(_, portals)| portals).copied().collect();
        elsewhere.retain(|portal| !own.contains(portal));
        elsewhere.dedup();
        Some(elsewhere)
    };
    let known: Vec<_> = paths.iter().map(elsewhere).collect();
    for (path, elsewhere) in paths.iter_mut().zip(known) {
        if let Some(elsewhere) = elsewhere {
            path.fence_by(elsewhere);
        }
    }
}

impl<P: Path> RemoteVolume<P> {
    /// Begins to connect all paths, at most [`PATHS_MAX`] and at least one. [`VolumeEvent::Open`] follows with the
    /// first that is up, [`VolumeEvent::Failed`] if none comes up. What is submitted before waits.
    pub fn open(cx: &mut Cx<'_>, paths: Vec<P>, terms: Terms) -> Self {
        assert!((1..=PATHS_MAX).contains(&paths.len()), "a volume has 1 to {PATHS_MAX} paths");
        let in_work = terms.in_work.clamp(1, IN_WORK_MAX);
        let mut paths = paths;
        introduce(&mut paths);
        let slots = PathSlots::new(paths.into_iter().map(|path| PathSlot::new(path, cx.now)).collect());
        let all = u32::MAX >> (PATHS_MAX - slots.len());
        let mut volume = RemoteVolume {
            terms,
            stage: Stage::Opening,
            identity: None,
            volume_info: None,
            slots,
            best: SmallVec::new(),
            turn: 0,
            tasks: Slab::new(in_work),
            numbers: 0,
            cached: 0,
            order: Order::new(),
            in_doubt: Vec::new(),
            queue: VecDeque::new(),
            held: VecDeque::new(),
            release: false,
            later: BinaryHeap::new(),
            flushes: Vec::new(),
            cancels: Vec::new(),
            requests: Vec::new(),
            registered: None,
            known_registrations: KnownRegistrations::default(),
            holder: None,
            replies: VecDeque::new(),
            done: VecDeque::new(),
            touched: all,
            ready: all,
            links: SmallVec::new(),
            dials: SmallVec::new(),
            next_dial: 0,
            unserved_since: Some(cx.now),
            opened_at: cx.now,
            has_work: true,
            expiry: NEVER,
            ask_again: NEVER,
            wake: None,
            events: PendingEvents::default(),
            remarks: false,
            #[cfg(test)]
            bug: None,
        };
        for slot in volume.slots.iter_mut() {
            slot.path.connect(cx);
        }
        volume.set_wake();
        volume
    }

    /// What the volume is like; `None` before it is open.
    pub fn volume_info(&self) -> Option<&Arc<VolumeInfo>> {
        self.volume_info.as_ref()
    }

    /// What its blocks are like; `None` before it is open.
    pub fn known_geometry(&self) -> Option<Geometry> {
        self.volume_info.as_ref()?.geometry
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.terms.read_only || self.volume_info.as_ref().is_some_and(|volume_info| volume_info.read_only)
    }

    /// Whether the geometry or the protection has changed since this was last asked.
    pub fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.events.geometry)
    }

    /// Whether [`PathInfo::lands_for`] of a path has grown, or is told by its target for the first time, since this was
    /// last asked: who keeps a record of it for the time after this process writes it again.
    pub fn has_landing_changed(&mut self) -> bool {
        std::mem::take(&mut self.events.landing)
    }

    /// Whether operations may be submitted with the hope that they are done.
    pub fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// How it is to be used.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// How many paths it has.
    pub fn paths(&self) -> usize {
        self.slots.len()
    }

    /// The state of a path.
    pub fn path_info(&self, path: usize) -> Option<PathInfo> {
        Some(self.slots.iter().nth(path)?.info())
    }

    /// A path itself, to look at.
    pub fn path(&self, path: usize) -> Option<&P> {
        Some(&self.slots.iter().nth(path)?.path)
    }

    /// Operations that were taken on and have not ended.
    pub fn in_work(&self) -> usize {
        self.tasks.len()
    }

    /// Whether one more operation can be taken on. If not, [`Backend::submit`](volume::Backend::submit)
    /// refuses it as busy.
    pub fn has_room(&self) -> bool {
        !self.tasks.is_full()
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
        if matches!(self.stage, Stage::Closing | Stage::Closed) {
            return;
        }
        self.stage = Stage::Closing;
        self.fail_waiting(ABORTED);
        self.disconnect_all(cx, grace);
    }

    fn geometry_now(&self) -> Geometry {
        match self.known_geometry() {
            Some(geometry) => geometry,
            // Nothing is known: nothing can be done. Who can wait asks for what is known.
            None => Geometry {
                blocks: 0,
                logical: 512,
                physical: 512,
                dio_align: 1,
                max_io: 0,
                thin: false,
                write_cache: true,
                atomic: 1,
                atomic_powerfail: 1,
                caw_max: 0,
                dealloc_reads_zero: false,
                lends: false,
            },
        }
    }

    #[cfg(test)]
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn touch(&mut self, slot: usize) {
        self.touched |= 1 << slot;
        self.ready |= 1 << slot;
    }
}
