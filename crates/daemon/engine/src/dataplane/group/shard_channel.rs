//! Between the member and the shards: what it puts out becomes messages to the homes of volumes, and theirs become
//! requests to it.
//!
//! Invariant: what came before the shards ran waits, in its order.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use endpoint::ShardId;
use gateway::{GroupStore, GroupTarget, Inbox, RuntimeRequest, RuntimeWarning};
use group::{
    Answer, Command, ExecutionId, GroupId, LinkPayload, ObjectName, Output, PathState, RequestId,
    RestartCause, SavedRecord, Term,
};
use reactor::ReactorHandle;
use shard::{FromGateway, Message, ToGateway};
use volume::{Failure, Refusal, Requester, UnservableReason, Uuid, VolumeId};

use super::{GroupVolume, request_id};
use process::log::area;

/// Where a number of [`request_id`] has its shard.
const SHARD_SHIFT: u32 = 48;

/// The shard that gives controller identifiers.
const DIRECTORY_SHARD: ShardId = ShardId(0);

/// The target as the runtime calls it.
pub struct Target(pub Arc<ShardChannel>);

/// See the module.
pub struct ShardChannel {
    inbox: Inbox,
    store: Arc<GroupStore>,
    lost: Box<dyn Fn(RestartCause) + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Weak: the member's thread must not keep the shards.
    running: Option<Weak<ReactorHandle<Message>>>,
    /// What came before they ran.
    early: VecDeque<Output<LinkPayload>>,
    volumes: BTreeMap<Uuid, GroupVolume>,
    uuids: BTreeMap<VolumeId, Uuid>,
    groups: BTreeMap<GroupId, Vec<Uuid>>,
    /// The volumes of each group that are open here.
    open: BTreeMap<GroupId, BTreeSet<Uuid>>,
    /// Groups that are to come to rest, in this round, and their volumes that have not.
    quiescing: BTreeMap<GroupId, (u64, BTreeSet<Uuid>)>,
    lost: Option<RestartCause>,
}

impl ShardChannel {
    pub fn new(
        inbox: Inbox,
        store: Arc<GroupStore>,
        groups: BTreeMap<GroupId, Vec<Uuid>>,
        lost: Box<dyn Fn(RestartCause) + Send + Sync>,
    ) -> ShardChannel {
        ShardChannel { inbox, store, lost, state: Mutex::new(State { groups, ..State::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn lost(&self) -> Option<RestartCause> {
        self.lock().lost
    }

    pub fn connect(&self, running: &Arc<ReactorHandle<Message>>, volumes: BTreeMap<Uuid, GroupVolume>) {
        let mut state = self.lock();
        state.running = Some(Arc::downgrade(running));
        state.uuids = volumes.iter().map(|(uuid, volume)| (volume.id, *uuid)).collect();
        state.volumes = volumes;
        while let Some(output) = state.early.pop_front() {
            self.carry_out(&mut state, output);
        }
    }

    /// From a shard.
    pub fn handle(&self, message: ToGateway) {
        let mut state = self.lock();
        let uuid = |state: &State, volume: VolumeId| state.uuids.get(&volume).copied();
        match message {
            ToGateway::Submit { from, number, volume, who, command } => {
                let Some(volume) = uuid(&state, volume) else { return };
                let id = request_id(from.0, number);
                self.inbox.post(RuntimeRequest::Submit { id, volume, who, command });
            }
            ToGateway::Cancel { from, number } => {
                self.inbox.post(RuntimeRequest::Cancel(request_id(from.0, number)));
            }
            ToGateway::Executed { execution, answer } => {
                self.inbox.post(RuntimeRequest::Executed { execution, answer });
            }
            ToGateway::Quiesced { volume, round } => {
                if let Some(volume) = uuid(&state, volume) {
                    self.quiesced(&mut state, volume, round);
                }
            }
            ToGateway::ControllerIdsWanted => {
                self.inbox.post(RuntimeRequest::AllocateControllerIds);
            }
            ToGateway::BindHost { number, host, nqn } => {
                self.inbox.post(RuntimeRequest::BindHost(RequestId(number), host, nqn));
            }
            ToGateway::ReleaseHost { host } => {
                self.inbox.post(RuntimeRequest::ReleaseHost(host));
            }
            ToGateway::ResetController { from, number, controller } => {
                let id = request_id(from.0, number);
                self.inbox.post(RuntimeRequest::ResetController(id, controller));
            }
            ToGateway::ControllerReset { number, answer } => {
                self.inbox.post(RuntimeRequest::ControllerReset(number, answer));
            }
            ToGateway::Store { volume, term, ticket, bytes } => {
                let Some(volume) = uuid(&state, volume) else { return };
                self.inbox.post(RuntimeRequest::StoreRecord { volume, term, ticket, bytes });
            }
            ToGateway::Publish { volume, term, snapshot, notices } => {
                let Some(volume) = uuid(&state, volume) else { return };
                self.inbox.post(RuntimeRequest::Publish { volume, term, snapshot, notices });
            }
        }
    }

    fn quiesced(&self, state: &mut State, volume: Uuid, round: u64) {
        let found = state.quiescing.iter_mut().find(|(_, (of, left))| *of == round && left.contains(&volume));
        let Some((group, (_, left))) = found else { return };
        let group = *group;
        left.remove(&volume);
        if left.is_empty() {
            state.quiescing.remove(&group);
            self.inbox.post(RuntimeRequest::Quiesced { group, round });
        }
    }

    /// Carries out what the member wants of its target, when the shards run.
    fn carry_out(&self, state: &mut State, output: Output<LinkPayload>) {
        match output {
            Output::Open { group, term, records } => self.open_group(state, group, term, records),
            Output::Quiesce { group, round } => {
                let left = state.open.get(&group).cloned().unwrap_or_default();
                for volume in &left {
                    state.tell(*volume, |volume| FromGateway::Quiesce { volume, round });
                }
                if left.is_empty() {
                    self.inbox.post(RuntimeRequest::Quiesced { group, round });
                } else {
                    state.quiescing.insert(group, (round, left));
                }
            }
            Output::Close(group) => {
                for volume in state.open.remove(&group).unwrap_or_default() {
                    state.tell(volume, |volume| FromGateway::Close { volume });
                    // Nothing is in flight; the store closes the image when it is asked to unlock it.
                    if let Some(known) = state.volumes.get(&volume) {
                        known.slot.set(None);
                    }
                }
            }
            Output::Execute { execution, volume, who, command } => {
                self.execute(state, execution, volume, (who, command));
            }
            Output::Cancel { execution, volume } => {
                state.tell(volume, |volume| FromGateway::Cancel { volume, execution });
            }
            Output::Answer { id, result } => {
                let (shard, number) = request_of(id);
                state.post(shard, FromGateway::Answer { number, result });
            }
            Output::Path { group, state: path } => {
                for volume in state.groups.get(&group).cloned().unwrap_or_default() {
                    let others = Arc::default();
                    state.tell(volume, |volume| FromGateway::Path { volume, state: path, others });
                }
                tracing::info!(target: area::VOLUME, %group, path = path_word(path), "path");
            }
            Output::Snapshot { volume, snapshot, .. } => {
                state.tell(volume, |volume| FromGateway::Snapshot { volume, snapshot });
            }
            Output::Notices { volume, notices } => {
                state.tell(volume, |volume| FromGateway::Notices { volume, notices });
            }
            Output::NoticesLost(group) => {
                for volume in state.groups.get(&group).cloned().unwrap_or_default() {
                    state.tell(volume, |volume| FromGateway::NoticesLost { volume });
                }
            }
            Output::RecordStored { volume, ticket } => {
                state.tell(volume, |volume| FromGateway::Stored { volume, ticket });
            }
            Output::NotDrained(group) => tracing::warn!(
                target: area::VOLUME,
                %group,
                "a group of volumes cannot be handed over now: no other gateway can take it, or commands did not end \
                 in time; it is tried again"
            ),
            Output::Damaged { object, damage } => tracing::error!(
                target: area::VOLUME,
                object = object_text(&object), %damage,
                "an object of the group is damaged: what depends on it is not served"
            ),
            Output::NoControllerIds => tracing::error!(
                target: area::NVME,
                "all controller identifiers of the group are given: no NVMe host can connect here"
            ),
            Output::ControllerIds { first, count } => {
                state.post(DIRECTORY_SHARD, FromGateway::ControllerIds { first, count });
            }
            Output::HostBound { id, result } => {
                state.post(DIRECTORY_SHARD, FromGateway::HostBound { number: id.0, result });
            }
            Output::ResetController { number, controller } => {
                state.post(DIRECTORY_SHARD, FromGateway::ResetController { number, controller });
            }
            Output::ControllerReset { id, answer } => {
                let (shard, number) = request_of(id);
                state.post(shard, FromGateway::ControllerReset { number, answer });
            }
            Output::Configuration { .. } => {}
            // The runtime keeps these to itself.
            Output::Store { .. } | Output::Connect { .. } | Output::CloseLink(_) | Output::Send { .. } => {}
            Output::Port { .. } | Output::Applied { .. } | Output::Drained => {}
            Output::Restart(_) => {}
        }
    }

    fn open_group(&self, state: &mut State, group: GroupId, term: Term, records: Vec<(Uuid, SavedRecord)>) {
        let mut open = BTreeSet::new();
        for (uuid, record) in records {
            let Some(known) = state.volumes.get(&uuid) else { continue };
            let image = self.store.image(uuid);
            let (Ok(record), Some(image)) = (record, image) else {
                state.tell(uuid, |volume| FromGateway::OpenFailed { volume });
                continue;
            };
            let geometry = known.disk.note_resize(image.bytes());
            known.slot.set(Some(image));
            open.insert(uuid);
            state.tell(uuid, |volume| FromGateway::Open { volume, term, record, geometry });
        }
        tracing::info!(target: area::VOLUME, %group, %term, volumes = open.len(), "owned here");
        state.open.insert(group, open);
    }

    fn execute(
        &self,
        state: &State,
        execution: ExecutionId,
        volume: Uuid,
        (who, command): (Requester, Command<LinkPayload>),
    ) {
        if state.volumes.contains_key(&volume) {
            return state.tell(volume, |volume| FromGateway::Execute { volume, execution, who, command });
        }
        // It has failed to open here at start, and is none of the shards'.
        let refusal = Refusal::NotReady(UnservableReason::Stopped);
        let answer = match command {
            Command::Io { .. } => Answer::Io { result: Err(Failure::Refused(refusal)), payload: None },
            Command::Change(_) => Answer::Change(Err(refusal)),
        };
        self.inbox.post(RuntimeRequest::Executed { execution, answer });
    }

    fn restart(&self, cause: RestartCause) {
        let mut state = self.lock();
        state.lost = Some(cause);
        state.early.clear();
        let running = state.running.as_ref().and_then(Weak::upgrade);
        drop(state);
        // No host is answered any more.
        if let Some(running) = running {
            running.stop(Duration::ZERO);
        }
        (self.lost)(cause);
    }
}

impl State {
    /// Tells the home of a volume.
    fn tell(&self, volume: Uuid, message: impl FnOnce(VolumeId) -> FromGateway) {
        let Some(known) = self.volumes.get(&volume) else { return };
        let Some(running) = self.running.as_ref().and_then(Weak::upgrade) else { return };
        let home = shard::home_of(known.id, running.shard_count());
        running.post(home, Message::FromGateway(Box::new(message(known.id))));
    }

    fn post(&self, shard: ShardId, message: FromGateway) {
        if let Some(running) = self.running.as_ref().and_then(Weak::upgrade) {
            running.post(shard, Message::FromGateway(Box::new(message)));
        }
    }
}

impl GroupTarget for Target {
    fn handle_output(&mut self, output: Output<LinkPayload>) {
        if let Output::Restart(cause) = output {
            return self.0.restart(cause);
        }
        let mut state = self.0.lock();
        if state.running.is_none() {
            return state.early.push_back(output);
        }
        self.0.carry_out(&mut state, output);
    }

    fn warn(&mut self, what: RuntimeWarning) {
        match what {
            RuntimeWarning::Link(peer, fault) => {
                tracing::warn!(target: area::SERVE, %peer, %fault, "a link to another gateway has ended");
            }
            RuntimeWarning::Store(why) => {
                tracing::warn!(target: area::SERVE, why, "the group's cluster; it is tried again");
            }
            RuntimeWarning::Address(address) => {
                tracing::warn!(target: area::SERVE, %address, "a gateway of the group has an address that is none");
            }
            RuntimeWarning::System(why) => {
                tracing::error!(target: area::SERVE, why, "the links to other gateways cannot be served");
            }
        }
    }
}

/// The shard of a request, and its number there: the reverse of [`request_id`].
fn request_of(id: RequestId) -> (ShardId, u64) {
    (ShardId((id.0 >> SHARD_SHIFT) as u16), id.0 & ((1 << SHARD_SHIFT) - 1))
}

fn object_text(object: &ObjectName) -> String {
    match object {
        ObjectName::Members => "members".to_owned(),
        ObjectName::Configuration => "configuration".to_owned(),
        ObjectName::Allocations => "allocations".to_owned(),
        ObjectName::Owner(group) => format!("owner of ANA group {group}"),
        ObjectName::Record(volume) => format!("record of volume {volume}"),
    }
}

/// As reports have it.
pub fn path_word(path: PathState) -> &'static str {
    match path {
        PathState::Optimized => "optimized",
        PathState::NonOptimized => "non-optimized",
        PathState::Transition => "transition",
    }
}
