//! What a shard knows of a volume of a gateway group, beyond what it knows of every volume.
//!
//! Invariants: hosts' commands are executed here only while this gateway owns the volume and shows its paths as
//! optimized; at all other times they are submitted to the group. The servers decide by a view of an owner object of
//! this gateway, or by none.

use std::sync::Arc;

use endpoint::ShardId;
use group::{PathState, Term};
use volume::{
    AbortScope, ChangeId, Geometry, Notice, NoticeCause, NoticeReceivers, PathAccess, PortId, View,
    ViewUpdate, VolumeFacts, VolumeState,
};

/// The longest operation that is forwarded, in bytes: two of them, as a COMPARE AND WRITE has, fit a message.
const GROUP_IO_MAX: u32 = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(in crate::shard) struct GroupVolume {
    pub(in crate::shard) facts: Arc<VolumeFacts>,
    /// The volume as its owner has it, as far as is known here.
    pub(super) view: View,
    state: PathState,
    others: Arc<[(PortId, PathAccess)]>,
    /// This gateway owns it.
    pub(super) is_open: bool,
    /// Hosts' commands are executed here.
    is_direct: bool,
    /// The home is to hear when nothing is in flight on this shard.
    pub(super) quiesce: Option<u64>,
    /// At the home: the term of its owner object.
    pub(super) term: Term,
    /// At the home: a request to quiesce, and the shards that have not answered.
    pub(super) quiescing: Option<(u64, Vec<ShardId>)>,
    /// Changes may have been missed since the state was this.
    missed_since: Option<View>,
}

impl GroupVolume {
    pub(in crate::shard) fn new(facts: Arc<VolumeFacts>, view: View) -> Box<GroupVolume> {
        Box::new(GroupVolume {
            facts,
            view,
            state: PathState::Transition,
            others: Arc::default(),
            is_open: false,
            is_direct: false,
            quiesce: None,
            term: Term(0),
            quiescing: None,
            missed_since: None,
        })
    }

    /// The term of its owner object.
    pub(in crate::shard) fn term(&self) -> Term {
        self.term
    }

    /// Whether hosts' commands are submitted to the group.
    #[inline]
    pub(in crate::shard) fn is_forwarded(&self) -> bool {
        !self.is_direct
    }

    /// Takes a view over; false: a later one is known.
    pub(super) fn take_view(&mut self, view: &View) -> bool {
        let is_later = view.epoch > self.view.epoch;
        if is_later {
            self.view = view.clone();
        }
        is_later
    }

    pub(super) fn open(&mut self, view: &View) {
        (self.is_open, self.view) = (true, view.clone());
    }

    pub(super) fn close(&mut self) {
        (self.is_open, self.is_direct, self.quiesce) = (false, false, None);
    }

    pub(super) fn set_path(&mut self, state: PathState, others: Arc<[(PortId, PathAccess)]>) -> bool {
        let changed = self.state != state || self.others != others;
        (self.state, self.others) = (state, others);
        self.is_direct = self.is_open && state == PathState::Optimized;
        if self.is_direct {
            self.quiesce = None;
        }
        changed
    }

    pub(super) fn start_quiesce(&mut self, round: u64) {
        (self.is_direct, self.quiesce) = (false, Some(round));
    }

    /// The volume as it is shown now.
    pub(in crate::shard) fn view(&self) -> View {
        self.shown_view(&self.view)
    }

    /// A view of the volume as the servers are to have it.
    pub(in crate::shard) fn shown_view(&self, view: &View) -> View {
        let geometry = Geometry {
            max_io: view.geometry.max_io.min(GROUP_IO_MAX),
            // What is forwarded is copied.
            lends: false,
            ..view.geometry
        };
        View::from(VolumeState {
            geometry,
            decided_elsewhere: !self.is_open,
            gateway_access: self.state.into(),
            gateway_paths: self.others.clone(),
            ..(**view).clone()
        })
    }

    /// A change that only the servers hear of.
    pub(super) fn shown_update(&self, notices: Vec<Notice>) -> ViewUpdate {
        // Of a reset the other gateways hear by its notices only.
        let ends_tasks =
            |notice: &Notice| matches!(notice.cause, NoticeCause::Reset | NoticeCause::TasksCleared);
        let abort = if notices.iter().any(ends_tasks) { AbortScope::Initiators } else { AbortScope::Nobody };
        let view = self.shown_view(&self.view);
        ViewUpdate { change: ChangeId(0), view, drain: false, abort, notices, asked: None }
    }

    /// Changes may have been missed from now on, until the next state is known.
    pub(super) fn note_missed(&mut self) {
        if self.missed_since.is_none() {
            self.missed_since = Some(self.view.clone());
        }
    }

    /// What hosts may have missed between what was known and what is known now.
    pub(super) fn take_missed_notices(&mut self) -> Vec<Notice> {
        let Some(old) = self.missed_since.take() else { return Vec::new() };
        let (before, after) = (&old.reservations, &self.view.reservations);
        let mut notices = Vec::new();
        let mut to_all = |cause| notices.push(Notice { to: NoticeReceivers::All, cause });
        if old.geometry.blocks != self.view.geometry.blocks {
            to_all(NoticeCause::CapacityChanged);
        }
        let protection = |view: &View| {
            (view.is_write_protected_for_all(), view.host_protection.is_on(), view.host_settings)
        };
        if protection(&old) != protection(&self.view) {
            to_all(NoticeCause::WriteProtectChanged);
        }
        let gone: Vec<_> = before
            .registrants()
            .iter()
            .filter(|one| after.key_of(&one.identity).is_none())
            .map(|one| one.identity.clone())
            .collect();
        if before.held_reservation() != after.held_reservation() && before.held_reservation().is_some() {
            let left: Vec<_> = after.registrants().iter().map(|one| one.identity.clone()).collect();
            let to = NoticeReceivers::These(left.into());
            notices.push(Notice { to, cause: NoticeCause::ReservationsReleased });
        }
        if !gone.is_empty() {
            let to = NoticeReceivers::These(gone.into());
            notices.push(Notice { to, cause: NoticeCause::RegistrationsPreempted });
        }
        notices
    }
}
