//! Messages between the shards of a gateway and what runs its membership of a group, about the group's volumes.
//!
//! What comes from there goes to the home of the volume, which tells the other shards ([`GroupStep`]): messages between
//! two shards keep their order, so each shard hears of an owner before it hears of that owner's changes.

use std::sync::Arc;

use endpoint::ShardId;
use group::{
    Answer, Command, ExecutionId, HostBindError, LinkPayload, LostController, PathError, PathState,
    ResetAnswer, Snapshot, Term,
};
use volume::{Geometry, Notice, PathAccess, PortId, Requester, View, VolumeId};

/// From a shard, to the control plane.
#[derive(Debug)]
pub enum ToGateway {
    /// A command of a host of this gateway on a volume that is not executed for it here: for `group::Member::submit`.
    /// [`FromGateway::Answer`] answers it once, unless the gateway starts again before.
    Submit {
        /// Who asks.
        from: ShardId,
        /// Its number there.
        number: u64,
        /// The volume.
        volume: VolumeId,
        /// Whose command it is.
        who: Requester,
        /// What.
        command: Command<LinkPayload>,
    },
    /// An operation of [`ToGateway::Submit`] is not wanted any more: for `group::Member::cancel`. It is answered in any
    /// case.
    Cancel {
        /// Who has submitted it.
        from: ShardId,
        /// Its number there.
        number: u64,
    },
    /// The end of [`FromGateway::Execute`].
    Executed {
        /// Which.
        execution: ExecutionId,
        /// How it ended.
        answer: Answer<LinkPayload>,
    },
    /// [`FromGateway::Quiesce`] is carried out on all shards: nothing is in flight.
    Quiesced {
        /// The volume.
        volume: VolumeId,
        /// As it was asked.
        round: u64,
    },
    /// State of the owner object that was made by the [`FromGateway::Open`] of this term, to be made durable.
    /// [`FromGateway::Stored`] answers.
    Store {
        /// The volume.
        volume: VolumeId,
        /// The term.
        term: Term,
        /// Names the store.
        ticket: u64,
        /// The record.
        bytes: Vec<u8>,
    },
    /// Numbers for NVMe controllers run out: for `group::Member::allocate_controller_ids`.
    ControllerIdsWanted,
    /// A host of this identifier and name connects: for `group::Member::bind_host`. From shard 0, and answered there by
    /// [`FromGateway::HostBound`].
    BindHost {
        /// Names the request.
        number: u64,
        /// Its identifier.
        host: [u8; 16],
        /// Its name.
        nqn: Arc<str>,
    },
    /// The last controller of this identifier here has ended: for `group::Member::release_host`.
    ReleaseHost {
        /// The identifier.
        host: [u8; 16],
    },
    /// A host wants one of its controllers to be reset, wherever it is: for `group::Member::reset_controller`.
    /// [`FromGateway::ControllerReset`] answers.
    ResetController {
        /// Who asks.
        from: ShardId,
        /// Its number there.
        number: u64,
        /// Which.
        controller: LostController,
    },
    /// The end of [`FromGateway::ResetController`].
    ControllerReset {
        /// As it was asked.
        number: u64,
        /// How it ended.
        answer: ResetAnswer,
    },
    /// The owner object's state, after each change and after it was opened, and who must hear of the change.
    Publish {
        /// The volume.
        volume: VolumeId,
        /// The term.
        term: Term,
        /// What other gateways show from now on.
        snapshot: Snapshot,
        /// What they tell their hosts; may be empty.
        notices: Vec<Notice>,
    },
}

/// From what runs the membership. What names a volume goes to the home of the volume (see
/// [`home_of`](crate::home_of)).
#[derive(Debug)]
pub enum FromGateway {
    /// This gateway owns the volume from now on: its owner object is made from the record. Hosts of this gateway are
    /// served here when [`FromGateway::Path`] says so.
    Open {
        /// The volume.
        volume: VolumeId,
        /// The term.
        term: Term,
        /// Its record, if there is one.
        record: Option<Arc<[u8]>>,
        /// What its blocks are like.
        geometry: Geometry,
    },
    /// This gateway owns the volume, and its record is damaged: it is not served.
    OpenFailed {
        /// The volume.
        volume: VolumeId,
    },
    /// Hosts' commands are executed here no more; when none is in flight, [`ToGateway::Quiesced`] answers. Taken back by
    /// [`FromGateway::Path`] with [`PathState::Optimized`].
    Quiesce {
        /// The volume.
        volume: VolumeId,
        /// Names the request.
        round: u64,
    },
    /// This gateway owns it no more; only after [`ToGateway::Quiesced`].
    Close {
        /// The volume.
        volume: VolumeId,
    },
    /// Execute a command, of a host of another gateway or one that waited for an owner.
    Execute {
        /// The volume.
        volume: VolumeId,
        /// Names the execution.
        execution: ExecutionId,
        /// Whose command it is.
        who: Requester,
        /// What.
        command: Command<LinkPayload>,
    },
    /// An execution is not wanted any more. It ends early if it can; [`ToGateway::Executed`] comes in any case.
    Cancel {
        /// The volume.
        volume: VolumeId,
        /// The execution.
        execution: ExecutionId,
    },
    /// Of [`ToGateway::Submit`], to the shard that has submitted.
    Answer {
        /// The shard's number.
        number: u64,
        /// How the command ended.
        result: Result<Answer<LinkPayload>, PathError>,
    },
    /// How this gateway reaches the volume from now on.
    Path {
        /// The volume.
        volume: VolumeId,
        /// How.
        state: PathState,
        /// How paths by the iSCSI ports of other gateways are shown.
        others: Arc<[(PortId, PathAccess)]>,
    },
    /// What the volume's owner, another gateway, has published.
    Snapshot {
        /// The volume.
        volume: VolumeId,
        /// What is shown from now on.
        snapshot: Snapshot,
    },
    /// Tell hosts of a change at the owner; after its snapshot.
    Notices {
        /// The volume.
        volume: VolumeId,
        /// What happened, and who must hear.
        notices: Arc<[Notice]>,
    },
    /// Changes at the owner may have been missed: tell hosts so.
    NoticesLost {
        /// The volume.
        volume: VolumeId,
    },
    /// Numbers that this gateway may give to NVMe controllers, each once. To shard 0.
    ControllerIds {
        /// The first.
        first: u16,
        /// How many.
        count: u16,
    },
    /// Of [`ToGateway::BindHost`]. To shard 0.
    HostBound {
        /// The request.
        number: u64,
        /// Whether the host may connect.
        result: Result<(), HostBindError>,
    },
    /// A host of another gateway wants a controller of this one to be reset. To shard 0; [`ToGateway::ControllerReset`]
    /// answers.
    ResetController {
        /// Names the reset.
        number: u64,
        /// Which.
        controller: LostController,
    },
    /// Of [`ToGateway::ResetController`], to the shard that has asked. Of a controller of this gateway's shards only these
    /// know.
    ControllerReset {
        /// The shard's number.
        number: u64,
        /// How it ended at the other gateways.
        answer: ResetAnswer,
    },
    /// A [`ToGateway::Store`] is durable.
    Stored {
        /// The volume.
        volume: VolumeId,
        /// The store.
        ticket: u64,
    },
}

/// From the home of a group's volume to every shard, and back.
#[derive(Clone, Debug)]
pub enum GroupStep {
    /// This gateway owns the volume: the view of its owner object.
    Opened(View),
    /// How this gateway and the others reach it; `Optimized`: hosts' commands are executed here.
    Path(PathState, Arc<[(PortId, PathAccess)]>),
    /// Hosts' commands are executed here no more. [`GroupStep::Quiet`] follows.
    Quiesce(u64),
    /// Back: nothing is in flight on this shard.
    Quiet(ShardId, u64),
    /// This gateway owns the volume no more.
    Closed,
    /// What another gateway, its owner, has published.
    Replica(View),
    /// Hosts must hear of this.
    Notices(Arc<[Notice]>),
    /// Changes at the owner may have been missed.
    NoticesLost,
}
