//! The home core's part: it handles requests one at a time, makes durable what must survive power loss, sends
//! each change to every core, and answers when all have acknowledged it.
//!
//! Invariants:
//! - Each request is answered exactly once.
//! - `Ok` is answered only after every shard has acknowledged the change (and drained, if requested).
//! - A change that must be durable is not applied before it is.
//! - A change that was refused because it could not be stored does not come back: as long as the record may
//!   contain it, the current state is written over it again and again.
//! - A fence that misses its deadline closes the volume on every port until it is drained. The change stays
//!   in effect, and its answer is withheld. After a second deadline the answer is [`Refusal::NotFenced`],
//!   never `Ok`.

mod request_queue;
mod running;
mod thin_threshold;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use buf::Time;

use crate::authority::{PendingChange, VolumeAuthority};
use crate::backend::{Geometry, ShardId};
use crate::facts::VolumeFacts;
use crate::io::{Epoch, Refusal, UnservableReason};
use crate::owner_messages::{
    Ack, ChangeId, OperatorNotice, RequestId, StoreOp, ViewUpdate, VolumeAnswer, VolumeRequest,
};
use crate::record::{self, PersistentState, RecordError};
use crate::requester::Identity;
use crate::reservation::Reservations;
use crate::shared_gate_state::SharedGateState;
use crate::view::View;

pub use request_queue::REQUESTS_MAX;
use request_queue::{QueuedRequest, RequestQueue};
pub use running::{RunningVolume, RunningVolumeError, VolumeNotIdle};
use thin_threshold::ThinThreshold;

/// How many remarks wait to be taken; more are dropped, since each turn takes all.
const OPERATOR_NOTICES_MAX: usize = 16;

/// The authority over one volume, on its home core.
/// A change is answered when every shard has taken it over:
///
/// ```
/// use blockwire_volume::{
///     Ack, RequestId, VolumeFacts, RamDisk, ShardId, Time, Uuid, VolumeId, VolumeOwner, VolumeRequest,
/// };
///
/// let geometry = RamDisk::new(8, 8, 4096, 4096).geometry();
/// let facts = VolumeFacts::new(VolumeId::new(0, 0), "demo", Uuid([7; 16]));
/// let mut owner = VolumeOwner::restore(facts, geometry, 2, false, None).unwrap();
/// owner.handle_request(Time(0), ShardId(1), RequestId(5), VolumeRequest::Stop);
/// let change = owner.poll_view_update().unwrap();
/// assert!(change.view.not_ready.is_some());
/// owner.handle_ack(Time(1), Ack { from: ShardId(0), change: change.change });
/// assert_eq!(owner.poll_answer(), None);
/// owner.handle_ack(Time(2), Ack { from: ShardId(1), change: change.change });
/// let answer = owner.poll_answer().unwrap();
/// assert_eq!((answer.to, answer.id, answer.result), (ShardId(1), RequestId(5), Ok(())));
/// ```
#[derive(Debug)]
pub struct VolumeOwner {
    volume: VolumeAuthority,
    fence_timeout: Duration,
    queue: RequestQueue,
    current: Option<RequestInProgress>,
    change: ChangeId,
    /// What each shard has acknowledged.
    acked: Vec<ChangeId>,
    /// While the volume is closed: the change that must be acknowledged by all to open it.
    closed_for: Option<ChangeId>,
    /// What is known to be durable; `None` after a store that failed, which may have half happened.
    saved: Option<Vec<u8>>,
    /// The truth that stands is being written over what a failed store may have left.
    amending: Option<StoreInFlight>,
    ticket: u64,
    stores: VecDeque<StoreOp>,
    updates: VecDeque<ViewUpdate>,
    answers: VecDeque<VolumeAnswer>,
    remarks: VecDeque<OperatorNotice>,
    thin_threshold: Option<ThinThreshold>,
}

#[derive(Debug)]
struct RequestInProgress {
    from: ShardId,
    id: RequestId,
    stage: RequestStage,
}

/// A store of the truth that stands.
#[derive(Debug)]
struct StoreInFlight {
    ticket: u64,
    bytes: Vec<u8>,
    /// When it is asked for again: it has failed, or nothing is heard of it, since the ask or its answer was lost.
    again: Time,
}

#[derive(Debug)]
enum RequestStage {
    /// The state is being made durable.
    Storing { request: VolumeRequest, bytes: Vec<u8>, ticket: u64, deadline: Time },
    /// Shards adopt and drain.
    Fencing { change: ChangeId, deadline: Time },
    /// They did not in time; the volume is closed.
    Late { change: ChangeId, deadline: Time },
}

impl RequestInProgress {
    fn deadline(&self) -> Time {
        match self.stage {
            RequestStage::Storing { deadline, .. } | RequestStage::Fencing { deadline, .. } => deadline,
            RequestStage::Late { deadline, .. } => deadline,
        }
    }
}

impl VolumeOwner {
    /// Opens the authority over a volume that `shards` cores serve. `saved` is the contents of its
    /// record (see `record.rs`), `None` if there is none; a damaged one is an error, and the volume must
    /// not open. With `persist_forced`, reservations survive power loss whatever hosts ask for.
    pub fn restore(
        facts: VolumeFacts,
        geometry: Geometry,
        shards: u16,
        persist_forced: bool,
        saved: Option<&[u8]>,
    ) -> Result<VolumeOwner, RecordError> {
        assert!(shards > 0, "a volume is served by a core");
        let (kept, durable) = match saved {
            Some(bytes) => {
                let kept = record::restore_record(bytes, facts.uuid, persist_forced)?;
                // Whatever its version: what it says is durable.
                (kept.clone(), kept)
            }
            None => {
                let reservations = Arc::new(Reservations::new(persist_forced));
                (PersistentState { reservations, ..PersistentState::default() }, PersistentState::default())
            }
        };
        let saved = Some(record::save(facts.uuid, &durable));
        Ok(VolumeOwner {
            volume: VolumeAuthority::new(facts, geometry, kept),
            fence_timeout: Duration::from_secs(10),
            queue: RequestQueue::default(),
            current: None,
            change: ChangeId(0),
            acked: vec![ChangeId(0); usize::from(shards)],
            closed_for: None,
            saved,
            amending: None,
            ticket: 0,
            stores: VecDeque::new(),
            updates: VecDeque::new(),
            answers: VecDeque::new(),
            remarks: VecDeque::new(),
            thin_threshold: None,
        })
    }

    /// Tells hosts and the operator from now on when the volume's threshold is reached: the one of
    /// [`SharedGateState::set_thin_threshold_percent`], of what its gauge says.
    pub fn watch_thin_threshold(&mut self, shared: SharedGateState) {
        self.thin_threshold = Some(ThinThreshold::new(shared));
    }

    /// The same, with views counted from `epoch` on: above those of all owners of the volume before, where its gates
    /// outlive them.
    #[must_use]
    pub fn starting_at(mut self, epoch: Epoch) -> VolumeOwner {
        self.volume.start_at(epoch);
        self
    }

    /// The truth as it is sent to every core. Gates are made with it.
    pub fn view(&self) -> &View {
        self.volume.view()
    }

    /// What the volume says of itself.
    pub fn facts(&self) -> &VolumeFacts {
        self.volume.facts()
    }

    /// Whether there is nothing to do, store or wait for.
    pub fn is_idle(&self) -> bool {
        let waits = self.current.is_some() || !self.queue.is_empty() || self.amending.is_some();
        !waits && self.closed_for.is_none()
    }

    /// Takes an ask. [`VolumeOwner::poll_answer`] gives its answer, perhaps at once.
    pub fn handle_request(&mut self, now: Time, from: ShardId, id: RequestId, request: VolumeRequest) {
        if request == VolumeRequest::Withdraw {
            return self.withdraw_request(from, id);
        }
        if let VolumeRequest::NexusLost(who) = &request
            && self.has_no_state_of(who)
        {
            return self.push_answer(from, id, Ok(()));
        }
        if let Some(QueuedRequest { from, id, .. }) =
            self.queue.push_or_displace(QueuedRequest { from, id, request })
        {
            self.push_answer(from, id, Err(Refusal::Busy));
        }
        self.process_requests(now);
    }

    /// Whether a requester that is lost leaves nothing behind, so that hosts that come and go fill no queue.
    fn has_no_state_of(&self, who: &Arc<Identity>) -> bool {
        let stores = match &self.current {
            Some(RequestInProgress { stage: RequestStage::Storing { request, .. }, .. }) => {
                request.requester().is_some_and(|known| known == who)
            }
            Some(_) | None => false,
        };
        !stores
            && !self.queue.has_request_of(who)
            && self.closed_for.is_none()
            && self.volume.has_no_state_of(who)
    }

    fn withdraw_request(&mut self, from: ShardId, id: RequestId) {
        if self.queue.withdraw(from, id) {
            self.push_answer(from, id, Err(Refusal::Busy));
        }
    }

    /// A [`StoreOp`] was made durable, or not.
    pub fn handle_stored(&mut self, now: Time, ticket: u64, durable: bool) {
        if let Some(amending) = self.amending.take_if(|amending| amending.ticket == ticket) {
            if durable {
                self.saved = Some(amending.bytes);
            } else {
                let again = now + self.fence_timeout;
                self.amending = Some(StoreInFlight { again, ..amending });
            }
        }
        match self.current.take() {
            Some(RequestInProgress {
                from,
                id,
                stage: RequestStage::Storing { request, bytes, ticket: asked, .. },
            }) if asked == ticket => {
                if durable {
                    self.saved = Some(bytes);
                }
                // Worked out again, since the volume may have been opened again meanwhile; nothing
                // else can have changed, so what is durable is what comes of it.
                match self.volume.plan_request(&request) {
                    Ok(change) if durable => {
                        self.push_persistence_notice(&request, &change);
                        self.publish_change(now, from, id, change);
                    }
                    Ok(_) => self.handle_store_failure(now, from, id, Refusal::NotDurable),
                    Err(refusal) => self.handle_store_failure(now, from, id, refusal),
                }
            }
            other => self.current = other,
        }
        self.process_requests(now);
    }

    /// What was to be stored does not stand, and the record may hold it.
    fn handle_store_failure(&mut self, now: Time, from: ShardId, id: RequestId, refusal: Refusal) {
        self.push_answer(from, id, Err(refusal));
        let bytes =
            record::save(self.volume.facts().uuid, &PersistentState::from_volume_state(self.volume.view()));
        self.saved = None;
        let ticket = self.store_record(bytes.clone());
        self.amending = Some(StoreInFlight { ticket, bytes, again: now + self.fence_timeout });
    }

    /// By the same ticket: where the disk is slow, the answer to any of these asks will do.
    fn retry_store(&mut self, now: Time) {
        let Some(mut amending) = self.amending.take_if(|amending| amending.again <= now) else { return };
        amending.again = now + self.fence_timeout;
        self.push_store_op(amending.ticket, amending.bytes.clone());
        self.amending = Some(amending);
    }

    fn store_record(&mut self, bytes: Vec<u8>) -> u64 {
        self.ticket += 1;
        self.push_store_op(self.ticket, bytes);
        self.ticket
    }

    fn push_store_op(&mut self, ticket: u64, bytes: Vec<u8>) {
        let name = format!("{}.reservations", self.volume.facts().uuid);
        self.stores.push_back(StoreOp { ticket, name, bytes });
    }

    /// A shard has adopted a change, and what it must wait for has ended there.
    pub fn handle_ack(&mut self, now: Time, ack: Ack) {
        let Some(acked) = self.acked.get_mut(usize::from(ack.from.0)) else { return };
        *acked = ack.change.max(*acked);
        self.process_requests(now);
    }

    /// The time that [`VolumeOwner::poll_timeout`] named has come.
    pub fn handle_timeout(&mut self, now: Time) {
        self.retry_store(now);
        if let Some(RequestInProgress { from, id, stage }) =
            self.current.take_if(|pending| pending.deadline() <= now)
        {
            match stage {
                // It may still become durable: what stands is written behind it.
                RequestStage::Storing { .. } => self.handle_store_failure(now, from, id, Refusal::NotDurable),
                RequestStage::Fencing { change, .. } => {
                    let stage = RequestStage::Late { change, deadline: now + self.fence_timeout };
                    self.current = Some(RequestInProgress { from, id, stage });
                    self.close_volume(change);
                }
                RequestStage::Late { .. } => self.push_answer(from, id, Err(Refusal::NotFenced)),
            }
        }
        self.check_thin_threshold(now);
        self.process_requests(now);
    }

    fn check_thin_threshold(&mut self, now: Time) {
        let geometry = self.volume.view().geometry;
        let Some(allocated) = self.thin_threshold.as_mut().and_then(|thin| thin.check(now, &geometry)) else {
            return;
        };
        self.push_view_update(self.volume.plan_thin_notice(), None);
        self.push_operator_notice(OperatorNotice::ThinThreshold {
            allocated,
            capacity: geometry.capacity_bytes(),
        });
    }

    /// When [`VolumeOwner::handle_timeout`] wants to be called, if at all.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let again = self.amending.as_ref().map(|amending| amending.again);
        let deadline = self.current.as_ref().map(RequestInProgress::deadline);
        let thin = self.thin_threshold.as_ref().map(ThinThreshold::next_check);
        again.into_iter().chain(deadline).chain(thin).min()
    }

    /// State to be made durable.
    #[must_use]
    pub fn poll_store_op(&mut self) -> Option<StoreOp> {
        self.stores.pop_front()
    }

    /// Whether any of the `poll_` calls has something to give.
    #[inline]
    pub fn has_outputs(&self) -> bool {
        !(self.stores.is_empty()
            && self.updates.is_empty()
            && self.answers.is_empty()
            && self.remarks.is_empty())
    }

    /// A change for every shard, this one included, in this order.
    #[must_use]
    pub fn poll_view_update(&mut self) -> Option<ViewUpdate> {
        self.updates.pop_front()
    }

    /// An answer to an ask.
    #[must_use]
    pub fn poll_answer(&mut self) -> Option<VolumeAnswer> {
        self.answers.pop_front()
    }

    /// Something for the log.
    #[must_use]
    pub fn poll_operator_notice(&mut self) -> Option<OperatorNotice> {
        self.remarks.pop_front()
    }

    /// The volume goes, and nothing of it is in flight: every ask that has no answer yet is refused, so none
    /// is waited for without end.
    #[must_use]
    pub fn into_refusals(mut self) -> Vec<VolumeAnswer> {
        let gone = Err(Refusal::NotReady(UnservableReason::Removed));
        if let Some(RequestInProgress { from, id, .. }) = self.current.take() {
            self.push_answer(from, id, gone);
        }
        while let Some(QueuedRequest { from, id, .. }) = self.queue.pop() {
            self.push_answer(from, id, gone);
        }
        self.answers.into()
    }

    #[expect(clippy::expect_used, reason = "`restore` asserts that there is a shard")]
    fn process_requests(&mut self, now: Time) {
        let fenced = self.acked.iter().copied().min().expect("a volume is served by a core");
        if let Some(RequestInProgress { from, id, stage }) = &self.current
            && let RequestStage::Fencing { change, .. } | RequestStage::Late { change, .. } = stage
            && *change <= fenced
        {
            self.push_answer(*from, *id, Ok(()));
            self.current = None;
        }
        if self.closed_for.is_some_and(|change| change <= fenced) {
            self.closed_for = None;
            let change = self.volume.plan_closed(false);
            self.push_view_update(change, None);
            self.push_operator_notice(OperatorNotice::Opened);
        }
        while self.current.is_none() {
            let Some(asked) = self.queue.pop() else { break };
            self.begin_request(now, asked);
        }
    }

    fn begin_request(&mut self, now: Time, asked: QueuedRequest) {
        let QueuedRequest { from, id, request } = asked;
        let change = match self.volume.plan_request(&request) {
            Ok(change) => change,
            Err(refusal) => return self.refuse_request(from, id, &request, refusal),
        };
        let bytes = record::save(self.volume.facts().uuid, &PersistentState::from_volume_state(&change.view));
        // What is no matter of the record does not depend on it: a reservation of a requester that is lost ends, and
        // a unit is reset, also while the disk with the records is full. What stands is being written meanwhile.
        let is_as_it_stands = || {
            bytes
                == record::save(
                    self.volume.facts().uuid,
                    &PersistentState::from_volume_state(self.volume.view()),
                )
        };
        if self.saved.as_ref() == Some(&bytes) || (!request.may_change_record() && is_as_it_stands()) {
            self.push_persistence_notice(&request, &change);
            return self.publish_change(now, from, id, change);
        }
        // Until it is known to be durable, neither the old nor the new contents are; and it is written behind
        // whatever else was to be.
        (self.saved, self.amending) = (None, None);
        let ticket = self.store_record(bytes.clone());
        let stage = RequestStage::Storing { request, bytes, ticket, deadline: now + self.fence_timeout };
        self.current = Some(RequestInProgress { from, id, stage });
    }

    fn refuse_request(&mut self, from: ShardId, id: RequestId, request: &VolumeRequest, refusal: Refusal) {
        if let (VolumeRequest::MarkBad { who, .. }, Refusal::NoMarkSpace) = (request, refusal) {
            self.push_operator_notice(OperatorNotice::BadBlocksFull { by: who.identity.clone() });
        }
        self.push_answer(from, id, Err(refusal));
    }

    /// One bit serves both protocols: who changes it, changes it for all.
    fn push_persistence_notice(&mut self, request: &VolumeRequest, change: &PendingChange) {
        let (before, after) = (&self.volume.view().reservations, &change.view.reservations);
        if let VolumeRequest::Reserve { who, .. } = request
            && before.persists() != after.persists()
            && !before.registrants().is_empty()
        {
            let (persists, registrants) = (after.persists(), after.registrants().len());
            self.push_operator_notice(OperatorNotice::Persistence {
                by: who.identity.clone(),
                persists,
                registrants,
            });
        }
    }

    fn push_operator_notice(&mut self, remark: OperatorNotice) {
        if self.remarks.len() < OPERATOR_NOTICES_MAX {
            self.remarks.push_back(remark);
        }
    }

    fn publish_change(&mut self, now: Time, from: ShardId, id: RequestId, change: PendingChange) {
        // While an older fence is not kept, even a repeated ask must wait for it.
        if self.volume.is_noop(&change) && self.closed_for.is_none() {
            self.volume.commit(&change);
            return self.push_answer(from, id, Ok(()));
        }
        let sent = self.push_view_update(change, Some((from, id)));
        let stage = RequestStage::Fencing { change: sent, deadline: now + self.fence_timeout };
        self.current = Some(RequestInProgress { from, id, stage });
    }

    fn push_answer(&mut self, to: ShardId, id: RequestId, result: Result<(), Refusal>) {
        self.answers.push_back(VolumeAnswer { to, id, result });
    }

    fn close_volume(&mut self, until: ChangeId) {
        self.closed_for = Some(until);
        if !self.volume.view().closed {
            let change = self.volume.plan_closed(true);
            self.push_view_update(change, None);
            self.push_operator_notice(OperatorNotice::Closed);
        }
    }

    fn push_view_update(&mut self, change: PendingChange, asked: Option<(ShardId, RequestId)>) -> ChangeId {
        self.volume.commit(&change);
        self.change = ChangeId(self.change.0 + 1);
        let PendingChange { view, drain, abort, notices, .. } = change;
        self.updates.push_back(ViewUpdate { change: self.change, view, drain, abort, notices, asked });
        self.change
    }
}
