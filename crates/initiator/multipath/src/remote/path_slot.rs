//! The volume's state of one of its paths.

use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Duration;

use buf::Cx;
use smallvec::SmallVec;
use volume::reservation::{Key, RegistrationRequest};
use volume::{OperatorNotice, PathAccess, Time};

use super::registration::PathRegistering;
use super::report::{PathCounters, PathInfo, PathProblem, PathState};
use super::settings::VolumeSettings;
use crate::path::{PATHS_MAX, Path, Protocol, VolumeInfo};
use crate::url::PathPolicy;

/// After how long a path that stays down for the same reason is said to be down again.
const DOWN_NOTICE_INTERVAL: Duration = Duration::from_secs(60);

/// Where a path stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    Connecting,
    Up,
    /// Down; to be connected then.
    Waiting(Time),
    GivenUp,
    /// To be down for good: told to disconnect, `Down` awaited.
    Closing,
    Closed,
}

/// How long a path that is in transition while the volume is opened may be.
const TRANSITION_WAIT_MAX: Duration = Duration::from_secs(30);

/// A volume's paths, each by its number. Invariant: they are as many as when the volume was opened, and whatever names
/// one (bits, `best`, links, dials) has its number from here.
#[derive(Debug)]
pub(super) struct PathSlots<P> {
    list: Vec<PathSlot<P>>,
    /// Paths that may be used, of the best state that any has.
    pub(super) best: SmallVec<[u8; 8]>,
    /// Where in `best` the next choice begins.
    turn: usize,
    /// Paths to be looked at in this turn; to be asked for links, dials and leaves.
    pub(super) touched: u32,
    pub(super) ready: u32,
}

impl<P> PathSlots<P> {
    pub(super) fn new(list: Vec<PathSlot<P>>) -> Self {
        let all = u32::MAX >> (PATHS_MAX - list.len());
        PathSlots { list, best: SmallVec::new(), turn: 0, touched: all, ready: all }
    }

    /// A path is to be looked at.
    pub(super) fn mark_pending(&mut self, index: usize) {
        self.touched |= 1 << index;
        self.ready |= 1 << index;
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, PathSlot<P>> {
        self.list.iter()
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, PathSlot<P>> {
        self.list.iter_mut()
    }
}

impl<P: Path> PathSlots<P> {
    /// A path among the best that has room.
    #[inline]
    pub(super) fn choose_path(&mut self, policy: PathPolicy) -> Option<u8> {
        if let [only] = self.best[..] {
            return self[usize::from(only)].has_room().then_some(only);
        }
        let count = self.best.len();
        let mut chosen: Option<(usize, u32)> = None;
        for step in 0..count {
            let index = (self.turn + step) % count;
            let Some(slot) = self.best.get(index).map(|&best| &self[usize::from(best)]) else { break };
            if !slot.has_room() {
                continue;
            }
            match policy {
                PathPolicy::RoundRobin => {
                    chosen = Some((index, 0));
                    break;
                }
                PathPolicy::LeastQueue if chosen.is_none_or(|(_, least)| slot.in_work < least) => {
                    chosen = Some((index, slot.in_work));
                }
                PathPolicy::LeastQueue => {}
            }
        }
        let (index, _) = chosen?;
        self.turn = index + 1;
        self.best.get(index).copied()
    }

    /// These are the paths to use from now on.
    pub(super) fn set_best(&mut self, best: SmallVec<[u8; 8]>) {
        (self.best, self.turn) = (best, 0);
    }

    /// Whether no path carries anything, though some could.
    pub(super) fn is_stalled(&self) -> bool {
        self.best
            .iter()
            .map(|index| &self[usize::from(*index)])
            .all(|slot| slot.in_work == 0 && !slot.has_room())
    }

    /// Whether one is fenced, or has to be.
    pub(super) fn is_fencing(&self) -> bool {
        self.iter().any(|slot| slot.fencing || slot.wants_fence)
    }

    /// Who has nothing in work takes as much as it said, for all that is known.
    pub(super) fn reset_idle_depths(&mut self) {
        for slot in self.list.iter_mut().filter(|slot| slot.in_work == 0 && slot.state == SlotState::Up) {
            slot.depth = slot.window;
        }
    }

    pub(super) fn is_nvme(&self, index: usize) -> bool {
        self[index].path.protocol() == Protocol::Nvme
    }

    /// When a path that waits has to be looked at.
    pub(super) fn next_deadline(&self, loss: Duration) -> Option<Time> {
        let next = self.iter().filter_map(|slot| match slot.state {
            SlotState::Waiting(time) => Some(time.min(slot.down_since + loss)),
            _ => None,
        });
        next.min()
    }
}

impl<P> Index<usize> for PathSlots<P> {
    type Output = PathSlot<P>;

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "see the invariant")]
    fn index(&self, index: usize) -> &PathSlot<P> {
        &self.list[index]
    }
}

impl<P> IndexMut<usize> for PathSlots<P> {
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "see the invariant")]
    fn index_mut(&mut self, index: usize) -> &mut PathSlot<P> {
        &mut self.list[index]
    }
}

#[derive(Debug)]
pub(super) struct PathSlot<P> {
    pub(super) path: P,
    pub(super) state: SlotState,
    pub(super) info: Option<Arc<VolumeInfo>>,
    /// Operations that the path has.
    pub(super) in_work: u32,
    /// How many it takes now, and how many it said that it takes.
    pub(super) depth: u32,
    pub(super) window: u32,
    /// The most bytes of one operation.
    pub(super) most: u64,
    /// A fence is awaited.
    pub(super) fencing: bool,
    /// Something was lost since the last fence was asked for.
    pub(super) wants_fence: bool,
    /// It has to be registered before it is used.
    pub(super) registering: Option<PathRegistering>,
    /// What it was registered with while it joined, and it is not confirmed that nobody had preempted us by then.
    pub(super) unconfirmed: Option<RegistrationRequest>,
    /// PathCounts fences that were asked for; a doubt notes the count at its time.
    pub(super) generation: u32,
    /// Connections that failed, or served for too short a time, since one last served for long enough.
    attempts: u32,
    /// Since when it has been up.
    up_since: Option<Time>,
    /// Why it was last said to be down, and when.
    said: Option<(Time, String)>,
    /// What is to be said of it: `None` of its reason if it is up again.
    remark: Option<Option<String>>,
    /// Since when it has not been up.
    pub(super) down_since: Time,
    /// It has been of this volume.
    pub(super) known: bool,
    /// It has been down since the volume was opened.
    pub(super) tried: bool,
    /// Since when it is up and tells nothing of the volume.
    pub(super) untold: Option<Time>,
    /// The volume's count of cached writes when its last one ended.
    pub(super) written: u64,
    /// All its writes up to this count are flushed.
    pub(super) flushed: u64,
    pub(super) last: Option<(Time, PathProblem)>,
    /// What it found is not our volume: the reason for its next `Down`.
    pub(super) expelled: Option<PathProblem>,
    pub(super) counts: PathCounters,
    /// How long after its loss its commands may be carried out, by the longest settings that it has had.
    lands_for: Option<Duration>,
    /// Its state has changed since that was last told.
    pub(super) state_changed: bool,
}

impl<P: Path> PathSlot<P> {
    /// Whether it may be registered with this key without our knowing.
    pub(super) fn is_registration_unconfirmed(&self, key: Key) -> bool {
        self.unconfirmed.as_ref().is_some_and(|register| register.new == key)
    }

    pub(super) fn new(path: P, now: Time) -> Self {
        PathSlot {
            lands_for: None,
            path,
            state: SlotState::Connecting,
            info: None,
            in_work: 0,
            depth: 0,
            window: 0,
            most: 0,
            fencing: false,
            wants_fence: false,
            registering: None,
            unconfirmed: None,
            generation: 0,
            attempts: 0,
            up_since: None,
            said: None,
            remark: None,
            down_since: now,
            known: false,
            tried: false,
            untold: None,
            written: 0,
            flushed: 0,
            last: None,
            expelled: None,
            counts: PathCounters::default(),
            state_changed: false,
        }
    }

    /// The state of the path at the target, if it may be used.
    pub(super) fn access(&self) -> Option<PathAccess> {
        let up = self.state == SlotState::Up && self.expelled.is_none() && self.registering.is_none();
        let up = up && !self.fencing && !self.wants_fence;
        let info = self.info.as_ref()?;
        (up && info.access.allows_io() && info.geometry.is_some()).then_some(info.access)
    }

    /// Until when it is hoped that a path will tell what it does not tell yet: the state of one that is in
    /// transition is about to be another.
    pub(super) fn access_report_deadline(&self) -> Option<Time> {
        let is_transition = self.info.as_ref().is_some_and(|it| it.access == PathAccess::Transition);
        self.untold.map(|since| if is_transition { since + TRANSITION_WAIT_MAX } else { since })
    }

    /// Whether what it was opened for has been tried once.
    pub(super) fn is_first_attempt_over(&self, now: Time) -> bool {
        self.tried || self.access_report_deadline().is_some_and(|until| now >= until)
    }

    /// Whether its registration is being settled; that of a path that does not serve waits until it does.
    fn is_registering(&self) -> bool {
        self.registering.is_some() && self.serves()
    }

    /// Whether nothing has to be done about it.
    pub(super) fn is_settled(&self) -> bool {
        !self.fencing && !self.wants_fence && !self.is_registering()
    }

    /// Whether it is up and the target serves by it, though it may have to be fenced first.
    pub(super) fn serves(&self) -> bool {
        let serves = |info: &Arc<VolumeInfo>| info.access.allows_io() && info.geometry.is_some();
        let serves = self.info.as_ref().is_some_and(serves);
        self.state == SlotState::Up && self.expelled.is_none() && serves
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_work < self.depth
    }

    /// Whether writes that it carried are not flushed.
    pub(super) fn has_unflushed_writes(&self) -> bool {
        self.written > self.flushed
    }

    /// When it is tried next: twice as long each time, with a quarter more or less by chance, so that
    /// many hosts do not come at once. A path that comes up and fails at once is not up: the delay begins
    /// at the shortest again after it was up for as long as the longest.
    pub(super) fn schedule_reconnect(
        &mut self,
        cx: &mut Cx<'_>,
        settings: &VolumeSettings,
        slowly: bool,
    ) -> Time {
        if self.up_since.take().is_some_and(|since| cx.now.since(since) >= settings.reconnect_delay_max) {
            self.attempts = 0;
        }
        let doubled = settings.reconnect_delay.saturating_mul(1 << self.attempts.min(16));
        self.attempts = self.attempts.saturating_add(1);
        let delay =
            if slowly { settings.reconnect_delay_max } else { doubled.min(settings.reconnect_delay_max) };
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX) / 4;
        cx.now + (delay - delay / 4) + Duration::from_nanos(cx.entropy.next_u64() % (2 * nanos + 1).max(1))
    }

    pub(super) fn note_up(&mut self, now: Time) {
        self.up_since = Some(now);
        if self.said.take().is_some() {
            self.remark = Some(None);
        }
    }

    /// What the path says while it connects is not yet of its target, and what it lost may be of longer settings.
    fn lost_command_lifetime(&self) -> Duration {
        self.path.lost_command_lifetime().max(self.lands_for.unwrap_or_default())
    }

    /// It was connected: whether its commands may be carried out for longer after its loss than before.
    pub(super) fn update_lost_command_lifetime(&mut self) -> bool {
        let before = self.lands_for.replace(self.lost_command_lifetime());
        self.lands_for > before
    }

    /// It is down: that is said once for each reason, and again from time to time.
    pub(super) fn note_down(&mut self, now: Time, was_up: bool, why: &PathProblem) {
        let why = why.to_string();
        let known = self
            .said
            .as_ref()
            .is_some_and(|(time, said)| *said == why && now.since(*time) < DOWN_NOTICE_INTERVAL);
        if was_up || !known {
            self.said = Some((now, why.clone()));
            self.remark = Some(Some(why));
        }
    }

    /// What is to be said of it.
    pub(super) fn poll_notice(&mut self, index: usize) -> Option<OperatorNotice> {
        let path = (None, index);
        Some(match self.remark.take()? {
            Some(why) => OperatorNotice::PathDown { path, why },
            None => OperatorNotice::PathUp { path },
        })
    }

    pub(super) fn path_info(&self) -> PathInfo {
        let state = match self.state {
            SlotState::Connecting => PathState::Connecting,
            SlotState::Up if self.fencing || self.wants_fence => PathState::Fencing,
            SlotState::Up if self.is_registering() => PathState::Registering,
            SlotState::Up => PathState::Up,
            SlotState::Waiting(until) => PathState::Waiting(until),
            SlotState::GivenUp => PathState::GivenUp,
            SlotState::Closing | SlotState::Closed => PathState::Closed,
        };
        PathInfo {
            protocol: self.path.protocol(),
            state,
            info: self.info.clone(),
            last: self.last.clone(),
            in_work: self.in_work,
            counts: self.counts,
            lands_for: self.lost_command_lifetime(),
        }
    }
}
