//! The volumes of a shard: a gate for each, and the owner of those whose home is here.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use buf::{Cx, Errno, Sg, Time};
use endpoint::ShardId;
use flight_recorder::{Event, EventKind, TextField};
use stream::{Tag, TimerQueue};
use volume::{
    Ack, DiskId, DiskOp, Durability, Gate, IdSpace, Io, IoCompletion, IoId, Op, OperationTimes,
    OperatorNotice, PathAccess, Refusal, RequestId, Requester, Span, StoreOp, UnservableReason, View,
    ViewUpdate, VolumeAnswer, VolumeId, VolumeMap, VolumeOwner, VolumeRequest,
};

use super::group::{Executions, GroupVolume, SubmittedCommands, publication};
use super::network_backends::RemoteBackends;
use super::outbox::Outbox;
use crate::latency::{CommandLatency, LatencyClass};
use crate::log::{Log, LogLine};
use crate::message::{
    BackendFactory, CONTROL_PLANE, ErrorCounters, IoCounters, Message, ToGateway, VolumeSpec, VolumeStatus,
};

mod quiesce;

/// The shard where a volume's authority lives.
pub fn home_of(volume: VolumeId, shards: u16) -> ShardId {
    ShardId((volume.table_slot() % u32::from(shards)) as u16)
}

/// A volume on this shard.
pub(super) struct LocalVolume {
    name: Arc<str>,
    pub(super) gate: Gate,
    pub(super) home: Option<Box<VolumeOwner>>,
    /// Of a volume of a gateway group: who executes for its hosts.
    pub(super) group: Option<Box<GroupVolume>>,
    io: IoCounters,
    latency: CommandLatency,
    errors: ErrorCounters,
    pub(super) scheduled: bool,
    /// Its backend, if that has sockets.
    pub(super) remote: Option<Tag>,
    /// Something was written that may still lie in a cache.
    unflushed: bool,
    /// The flush that covers all of it, if it ends well.
    flush: Option<IoId>,
    /// Its note in the timers.
    noted: Option<Time>,
}

impl LocalVolume {
    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Notes what an operation that is about to be submitted does to what is not flushed.
    fn note_submitted(&mut self, io: &Io) {
        match &io.op {
            // What is in flight now may be answered behind it, and is not covered.
            Op::Flush if self.gate.in_flight_count() == 0 => self.flush = Some(io.id),
            Op::Flush | Op::Write(_, Durability::Stable) => {}
            op if op.is_write() => (self.unflushed, self.flush) = (true, None),
            _ => {}
        }
    }

    /// Counts an operation that is submitted.
    #[inline]
    fn count_io(&mut self, io: &Io) {
        let bytes = self.gate.view().geometry.logical;
        match &io.op {
            Op::Read(span) => self.io.count_read(span.blocks * u64::from(bytes)),
            Op::Write(span, _) => self.io.count_write(span.blocks * u64::from(bytes)),
            _ => {}
        }
    }

    fn note_done(&mut self, done: &IoCompletion) {
        if let Err(failure) = &done.result {
            self.errors.count_failure(failure);
        }
        if self.flush == Some(done.id) {
            self.flush = None;
            self.unflushed &= done.result.is_err();
        }
    }

    /// Whether the stop has to flush it. Where a peer holds it, the peer may never let go: so only
    /// if there is something to lose.
    fn needs_stop_flush(&self) -> bool {
        if let Some(group) = &self.group {
            return !group.is_forwarded();
        }
        self.remote.is_none() || self.unflushed && self.gate.view().geometry.write_cache
    }

    /// The volume as hosts are shown it.
    fn view(&self) -> View {
        self.group.as_ref().map_or_else(|| self.gate.view().clone(), |group| group.view())
    }

    /// Whether its owner object is at another gateway of a group, or nowhere.
    pub(super) fn is_owned_elsewhere(&self) -> bool {
        self.group.is_some() && self.home.is_none()
    }

    /// Whether commands of hosts are submitted to a group.
    #[inline]
    fn is_forwarded(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.is_forwarded())
    }

    fn poll_operator_notice(&mut self) -> Option<(Arc<str>, OperatorNotice)> {
        let remark = self.gate.poll_operator_notice()?;
        Some((self.name.clone(), remark))
    }
}

/// All volumes of a shard.
pub(super) struct LocalVolumes {
    shard: ShardId,
    shards: u16,
    volumes: VolumeMap<LocalVolume>,
    disks: HashMap<DiskId, VolumeId>,
    /// Volumes that may have something to give.
    pub(super) scheduled: VecDeque<VolumeId>,
    /// Volumes with a long operation that goes on when the world has had its turn.
    pub(super) long_running: VecDeque<VolumeId>,
    timers: TimerQueue<VolumeId>,
    out: VecDeque<DiskOp>,
    /// Commands that a group executes elsewhere, and those that it has executed here.
    pub(super) submitted: SubmittedCommands,
    pub(super) executions: Executions,
    /// Operations that came for a volume that is not there (any more): they end too.
    pub(super) orphans: VecDeque<IoCompletion>,
    /// The latest views of volumes that are not here, the newest last: their homes may begin before the other shards
    /// have heard of them. Bounded: of volumes that went, more than the newest are of no use.
    early_views: VecDeque<(VolumeId, View)>,
}

impl LocalVolumes {
    pub(super) fn new(shard: ShardId, shards: u16) -> Self {
        LocalVolumes {
            shard,
            shards,
            volumes: VolumeMap::default(),
            disks: HashMap::new(),
            scheduled: VecDeque::new(),
            long_running: VecDeque::new(),
            timers: TimerQueue::default(),
            out: VecDeque::new(),
            submitted: SubmittedCommands::new(shard, shards),
            executions: Executions::default(),
            orphans: VecDeque::new(),
            early_views: VecDeque::new(),
        }
    }

    /// Keeps the view of a volume that may be on its way here.
    pub(super) fn keep_early_view(&mut self, volume: VolumeId, view: &View) {
        self.early_views.retain(|(known, _)| *known != volume);
        if self.early_views.len() == EARLY_VIEWS_MAX {
            self.early_views.pop_front();
        }
        self.early_views.push_back((volume, view.clone()));
    }

    /// What a volume that comes has changed to while it was on its way here.
    pub(super) fn take_early_view(&mut self, volume: VolumeId, view: &View) -> Option<View> {
        let at = self.early_views.iter().position(|(known, _)| *known == volume)?;
        let (_, early) = self.early_views.remove(at)?;
        (early.epoch > view.epoch).then_some(early)
    }

    /// This shard.
    pub(super) fn shard_id(&self) -> ShardId {
        self.shard
    }

    /// Whether commands of hosts on a volume are submitted to a group.
    pub(super) fn is_forwarded(&self, volume: VolumeId) -> bool {
        self.get(volume).is_some_and(LocalVolume::is_forwarded)
    }

    /// The shard where a volume's authority lives.
    pub(super) fn home_of(&self, volume: VolumeId) -> ShardId {
        home_of(volume, self.shards)
    }

    pub(super) fn get_mut(&mut self, volume: VolumeId) -> Option<&mut LocalVolume> {
        self.volumes.get_mut(volume)
    }

    /// An operation of this volume that has ended.
    pub(super) fn poll_done(&mut self, volume: VolumeId) -> Option<(IoCompletion, OperationTimes)> {
        let local = self.get_mut(volume)?;
        let (done, times) = local.gate.poll_done_with_times()?;
        local.note_done(&done);
        Some((done, times))
    }

    /// Where the commands of a volume are counted.
    #[inline]
    pub(super) fn latency_of(&mut self, volume: VolumeId) -> Option<&mut CommandLatency> {
        Some(&mut self.get_mut(volume)?.latency)
    }

    /// Takes from a gate what it wants done elsewhere.
    pub(super) fn forward_gate_outputs(&mut self, volume: VolumeId, outbox: &mut Outbox, log: &mut Log) {
        while let Some(op) = self.get_mut(volume).and_then(|local| local.gate.poll_disk()) {
            self.out.push_back(op);
        }
        while let Some(core) = self.get_mut(volume).and_then(|local| local.gate.poll_shard_to_wake()) {
            outbox.post(core, Message::Wake(volume));
        }
        while let Some((name, remark)) = self.get_mut(volume).and_then(LocalVolume::poll_operator_notice) {
            log.push(LogLine::Volume { name, remark });
        }
        let home = self.home_of(volume);
        while let Some((id, request)) = self.get_mut(volume).and_then(|local| local.gate.poll_request()) {
            outbox.post(home, Message::VolumeRequest(volume, self.shard, id, request));
        }
    }

    /// Takes from a home what it wants done elsewhere.
    pub(super) fn forward_owner_outputs(&mut self, volume: VolumeId, outbox: &mut Outbox, log: &mut Log) {
        let Some(local) = self.get_mut(volume) else { return };
        let Some(home) = local.home.as_mut().filter(|home| home.has_outputs()) else { return };
        let group = local.group.as_ref().map(|group| (group.term(), group.facts.uuid));
        let stores: Vec<StoreOp> = std::iter::from_fn(|| home.poll_store_op()).collect();
        let updates: Vec<ViewUpdate> = std::iter::from_fn(|| home.poll_view_update()).collect();
        let answers: Vec<VolumeAnswer> = std::iter::from_fn(|| home.poll_answer()).collect();
        let name = home.facts().name.clone();
        let remarks: Vec<OperatorNotice> = std::iter::from_fn(|| home.poll_operator_notice()).collect();
        for remark in remarks {
            log.push(LogLine::Volume { name: name.clone(), remark });
        }
        for store in stores {
            let message = match group {
                None => Message::Store(volume, store),
                Some((term, _)) => {
                    let StoreOp { ticket, bytes, .. } = store;
                    Message::ToGateway(Box::new(ToGateway::Store { volume, term, ticket, bytes }))
                }
            };
            outbox.post(CONTROL_PLANE, message);
        }
        for update in updates {
            if let Some((term, uuid)) = group {
                let message = publication(volume, term, uuid, &update.view, update.notices.clone());
                outbox.post(CONTROL_PLANE, Message::ToGateway(Box::new(message)));
            }
            if update.drain {
                let event = Event::new(EventKind::Fence).with_number(update.change.0);
                log.record(&event.with_text(TextField::Volume, &name));
            }
            let update = Arc::new(update);
            outbox.broadcast(|| Message::ViewUpdate(volume, update.clone()));
        }
        for answer in answers {
            if let Err(refusal) = &answer.result {
                log.record_refusal(&name, refusal);
            }
            outbox.post(answer.to, Message::Answer(volume, answer));
        }
    }

    /// See [`Gate::may_have_stale_loans`].
    pub(super) fn may_have_stale_loans(&self, volume: VolumeId) -> bool {
        self.get(volume).is_some_and(|local| local.gate.may_have_stale_loans())
    }

    pub(super) fn get(&self, volume: VolumeId) -> Option<&LocalVolume> {
        self.volumes.get(volume)
    }

    /// Whether no volume has the place of this one.
    pub(super) fn is_free_for(&self, volume: VolumeId) -> bool {
        self.volumes.is_free_for(volume)
    }

    /// Takes a volume on, whose place is free.
    pub(super) fn insert(&mut self, cx: &mut Cx<'_>, remotes: &mut RemoteBackends, spec: VolumeSpec) {
        let id = spec.facts.id;
        for &disk in &spec.disks {
            self.disks.insert(disk, id);
        }
        let (remote, backend) = match spec.make {
            BackendFactory::Local(make) => (None, make()),
            BackendFactory::Network(make) => {
                let (tag, backend) = remotes.insert(id, spec.view.geometry, make(cx));
                (Some(tag), backend)
            }
        };
        let group = spec.in_group.then(|| GroupVolume::new(spec.facts.clone(), spec.view.clone()));
        let gate = Gate::new(self.shard, spec.shared, spec.view, backend);
        let (name, home, io) = (spec.facts.name.clone(), spec.home, IoCounters::default());
        let local = LocalVolume {
            name,
            gate,
            home,
            group,
            io,
            latency: CommandLatency::default(),
            errors: ErrorCounters::default(),
            scheduled: false,
            remote,
            unflushed: false,
            flush: None,
            noted: None,
        };
        let added = self.volumes.insert(id, local);
        assert!(added.is_ok(), "anyone who adds a volume has asked whether its place is free");
        self.mark_pending(id);
    }

    /// Another shard says that this one may go on with what it waits for.
    pub(super) fn handle_wake(&mut self, volume: VolumeId) {
        if let Some(local) = self.get_mut(volume) {
            local.gate.handle_wake();
        }
        self.mark_pending(volume);
    }

    /// Forgets a volume on which nothing is in flight: what its home has not answered is answered now. `None`
    /// while something is in flight.
    pub(super) fn drop_idle(
        &mut self,
        cx: &mut Cx<'_>,
        remotes: &mut RemoteBackends,
        volume: VolumeId,
    ) -> Option<Vec<VolumeAnswer>> {
        let busy = |local: &mut LocalVolume| local.gate.in_flight_count() > 0 || local.scheduled;
        if self.get_mut(volume).is_some_and(busy) || self.submitted.has_commands_of(volume) {
            return None;
        }
        let Some(local) = self.volumes.remove(volume) else { return Some(Vec::new()) };
        if let Some(tag) = local.remote {
            remotes.close(cx, tag);
        }
        self.disks.retain(|_, of| *of != volume);
        Some(local.home.map(|home| home.into_refusals()).unwrap_or_default())
    }

    pub(super) fn volume_ids(&self) -> Vec<VolumeId> {
        self.volumes.iter().map(|(id, _)| id).collect()
    }

    /// Volumes that the stop has to flush.
    pub(super) fn volumes_to_flush(&self) -> Vec<VolumeId> {
        let wants = |id: &VolumeId| self.get(*id).is_some_and(LocalVolume::needs_stop_flush);
        self.volume_ids().into_iter().filter(wants).collect()
    }

    pub(super) fn volume_entries(&self, now: Time) -> Vec<VolumeStatus> {
        let entry = |(id, local): (VolumeId, &LocalVolume)| VolumeStatus {
            id,
            view: local.view(),
            sync_failed: local.gate.has_sync_failed(),
            io: local.io,
            in_flight: local.gate.in_flight_count(),
            errors: local.errors,
            no_space: local.gate.lacked_space_recently(now),
            latency: local.latency.clone(),
        };
        self.volumes.iter().map(entry).collect()
    }

    /// Notes that a volume may have something to give.
    pub(super) fn mark_pending(&mut self, volume: VolumeId) {
        if let Some(local) = self.get_mut(volume)
            && !std::mem::replace(&mut local.scheduled, true)
        {
            self.scheduled.push_back(volume);
        }
    }

    /// Goes on with long operations.
    pub(super) fn resume_long_ops(&mut self) {
        while let Some(volume) = self.long_running.pop_front() {
            self.mark_pending(volume);
        }
    }

    /// Whether a long operation is to go on.
    pub(super) fn has_long_ops(&self) -> bool {
        !self.long_running.is_empty()
    }

    /// Whether a read may be given the volume's own memory.
    pub(super) fn lends_memory(&self, volume: VolumeId) -> bool {
        self.get(volume).is_some_and(|local| local.gate.lends_memory())
    }

    pub(super) fn span_bytes(&self, volume: VolumeId, span: Span) -> u32 {
        let logical = self.get(volume).map_or(0, |local| local.gate.view().geometry.logical);
        u32::try_from(span.blocks * u64::from(logical)).unwrap_or(u32::MAX)
    }

    pub(super) fn submit(&mut self, cx: &mut Cx<'_>, who: &Requester, volume: VolumeId, io: Io) {
        match self.get_mut(volume).filter(|local| local.is_forwarded()) {
            Some(local) => {
                local.count_io(&io);
                self.submitted.submit_io(volume, who, io);
            }
            None => self.submit_here(cx, who, volume, io),
        }
    }

    /// Submits an operation to the volume's gate here, also of another gateway's host.
    pub(super) fn submit_here(&mut self, cx: &mut Cx<'_>, who: &Requester, volume: VolumeId, io: Io) {
        let Some(local) = self.get_mut(volume) else {
            // The volume went while this waited for memory, or for its turn in a longer command.
            let result = Err(Refusal::NotReady(UnservableReason::Removed).into());
            return self.orphans.push_back(IoCompletion { id: io.id, result, payload: io.payload });
        };
        local.count_io(&io);
        local.note_submitted(&io);
        local.gate.submit(cx, who, io);
        self.mark_pending(volume);
    }

    /// Reads at once, if the transport has leave to send so much, a command whose header came `receive_ns` ago; see
    /// [`Gate::read_inline`].
    #[inline]
    pub(super) fn read_inline(
        &mut self,
        who: &Requester,
        (volume, span): (VolumeId, Span),
        receive_ns: u64,
        may: impl FnOnce() -> bool,
    ) -> Option<Sg> {
        let local = self.volumes.get_mut(volume)?;
        if local.is_forwarded() {
            return None;
        }
        let data = local.gate.read_inline(who, span).filter(|_| may())?;
        local.io.count_read(data.len() as u64);
        local.latency.count_inline(LatencyClass::Read, receive_ns);
        Some(data)
    }

    /// Writes at once; see [`Gate::write_inline`].
    #[inline]
    pub(super) fn write_inline(
        &mut self,
        who: &Requester,
        volume: VolumeId,
        (span, durability): (Span, Durability),
        receive_ns: u64,
        from: &[u8],
    ) -> bool {
        let LocalVolumes { volumes, scheduled, .. } = self;
        let Some(local) = volumes.get_mut(volume).filter(|local| !local.is_forwarded()) else { return false };
        if !local.gate.write_inline(who, span, durability, from) {
            return false;
        }
        local.io.count_write(from.len() as u64);
        local.latency.count_inline(LatencyClass::Write, receive_ns);
        // Its turn settles all that was written at once, before anything is sent.
        if !std::mem::replace(&mut local.scheduled, true) {
            scheduled.push_back(volume);
        }
        true
    }

    pub(super) fn cancel(&mut self, volume: VolumeId, id: IoId) {
        if self.get(volume).is_some_and(|local| local.group.is_some())
            && let Some(done) = self.submitted.cancel(id)
        {
            return self.orphans.push_back(done);
        }
        if let Some(local) = self.get_mut(volume) {
            local.gate.cancel(id);
            self.mark_pending(volume);
        }
    }

    pub(super) fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        let Some(volume) = self.disks.get(&op.disk).copied() else { return };
        if let Some(local) = self.get_mut(volume) {
            local.gate.handle_disk(cx, op, came);
            self.mark_pending(volume);
        }
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        while let Some((time, volume)) = self.timers.pop_due(cx.now) {
            let Some(local) = self.get_mut(volume) else { continue };
            if local.noted != Some(time) {
                continue;
            }
            local.noted = None;
            if let Some(home) = &mut local.home
                && home.poll_timeout().is_some_and(|time| time <= cx.now)
            {
                home.handle_timeout(cx.now);
            }
            // Its turn resumes the gate, and notes the next time.
            self.mark_pending(volume);
        }
    }

    /// Notes when a volume wants to be called next.
    pub(super) fn update_timer(&mut self, volume: VolumeId) {
        let Some(local) = self.volumes.get_mut(volume) else { return };
        let home = local.home.as_ref().and_then(|home| home.poll_timeout());
        let wanted = [local.gate.poll_timeout(), home].into_iter().flatten().min();
        self.timers.update_timer(volume, wanted, &mut local.noted);
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.timers.next_time()
    }

    pub(super) fn poll_disk(&mut self) -> Option<DiskOp> {
        self.out.pop_front()
    }

    /// Takes an ask to its home. Where there is none any more, this is the answer.
    #[must_use]
    pub(super) fn request_from_owner(
        &mut self,
        cx: &mut Cx<'_>,
        volume: VolumeId,
        from: ShardId,
        id: RequestId,
        request: VolumeRequest,
    ) -> Option<VolumeAnswer> {
        if let Some(local) = self.get_mut(volume)
            && let Some(home) = &mut local.home
        {
            home.handle_request(cx.now, from, id, request);
            self.mark_pending(volume);
            return None;
        }
        // A group's volume is with another gateway by now.
        let result = Err(match self.get(volume).is_some_and(|local| local.group.is_some()) {
            true => Refusal::Inaccessible(PathAccess::Transition),
            false => Refusal::NotReady(UnservableReason::Removed),
        });
        Some(VolumeAnswer { to: from, id, result })
    }

    pub(super) fn handle_ack(&mut self, cx: &mut Cx<'_>, volume: VolumeId, ack: Ack) {
        if let Some(local) = self.get_mut(volume)
            && let Some(home) = &mut local.home
        {
            home.handle_ack(cx.now, ack);
            self.mark_pending(volume);
        }
    }

    /// A home has answered what a gate asked.
    pub(super) fn handle_gate_answer(&mut self, cx: &mut Cx<'_>, volume: VolumeId, answer: &VolumeAnswer) {
        if let Some(local) = self.get_mut(volume) {
            local.gate.handle_answer(cx, answer.id, answer.result);
            self.mark_pending(volume);
        }
    }

    /// Starts a flush that no reservation can refuse, for the stop.
    pub(super) fn start_stop_flush(&mut self, cx: &mut Cx<'_>, volume: VolumeId) {
        if let Some(local) = self.get_mut(volume) {
            local.gate.start_unconditional_flush(cx, STOP_FLUSH_ID);
            self.mark_pending(volume);
        }
    }

    /// A volume's state was made durable, or not.
    pub(super) fn handle_stored(&mut self, cx: &mut Cx<'_>, volume: VolumeId, ticket: u64, durable: bool) {
        if let Some(local) = self.get_mut(volume)
            && let Some(home) = &mut local.home
        {
            home.handle_stored(cx.now, ticket, durable);
            self.mark_pending(volume);
        }
    }
}

/// How many volumes that are not here may have changed. Volumes are added one after the other.
const EARLY_VIEWS_MAX: usize = 256;
/// The flush of the stop.
pub(super) const STOP_FLUSH_ID: IoId = IoId::in_space(IdSpace::Shard, 0);

impl IoCounters {
    fn count_read(&mut self, bytes: u64) {
        self.reads += 1;
        self.read_bytes += bytes;
    }

    fn count_write(&mut self, bytes: u64) {
        self.writes += 1;
        self.written_bytes += bytes;
    }
}
