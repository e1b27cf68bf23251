//! Messages between shards, and from the control plane.

mod group;
mod nvme;

use std::net::IpAddr;
use std::sync::Arc;

use buf::Cx;
use endpoint::{AcceptedSocket, Computation, NetworkBackend, ShardId};
use iscsi::chap::Algorithm;
use iscsi::login::EstablishedConnection;
use iscsi::session::SessionParams;
use iscsi::wire::{Cid, LoginStatus, Sn, Tsih};
use scsi_server::UnitSpec;
use stream::Tag;
use volume::{
    Ack, Backend, DiskId, Failure, Fault, Refusal, RequestId, SharedGateState, StoreOp, View, ViewUpdate,
    VolumeAnswer, VolumeFacts, VolumeId, VolumeNotIdle, VolumeOwner, VolumeRequest,
};

use crate::exports::{Exports, PlacementOutcome};
use crate::latency::CommandLatency;
use crate::link_table::LinkTraffic;
use crate::log::RefusalCause;
use crate::session_directory::{AdmissionReply, AdmissionRequest};
use crate::target_snapshot::ShardSnapshot;

pub use self::group::{FromGateway, GroupStep, ToGateway};
pub use nvme::{
    AdmittedQueue, HostAuthentication, NvmeLinkHandoff, NvmeMessage, QueueEntry, QueueGrant, QueueRefusal,
    QueueRequest,
};

/// The control plane, as an address for messages.
pub const CONTROL_PLANE: ShardId = ShardId(u16::MAX);

/// One message.
#[derive(Debug)]
pub enum Message {
    /// To the directory's shard: a login is about to end.
    AdmissionRequest(AdmissionRequest),
    /// From it: the answer to the login of this number.
    AdmissionReply(u64, AdmissionReply),
    /// To the shard where a new session shall live: set aside what its login is about to announce. For the
    /// login of this number on that shard. Held until the link comes, or [`Message::LoginAborted`].
    ReserveMemory(Tsih, SessionMemoryNeeds, ShardId, u64),
    /// The answer: it is set aside, or with what the login is refused.
    MemoryReserved(u64, Result<(), LoginStatus>),
    /// To the directory's shard: the shard that was to have this new session has no memory for it. For the
    /// login of this number on that shard, which is answered once more.
    PlaceElsewhere(Tsih, ShardId, u64),
    /// To the shard where a new session was to live: its login came to nothing.
    LoginAborted(Tsih),
    /// To a session's shard: keep a place for a connection; where does the command window stand? For the
    /// login of this number on that shard, whose connection has this CID: one that bears it already is
    /// ended before the answer. Held until the link comes, or [`Message::JoinAborted`].
    JoinSession(Tsih, Cid, ShardId, u64),
    /// The answer: ExpCmdSN and MaxCmdSN, or with what the login is refused.
    JoinReply(u64, Result<(Sn, Sn), LoginStatus>),
    /// To a session's shard: the login of this number on that shard, whose connection was to join with this
    /// CID, came to nothing.
    JoinAborted(Tsih, Cid, ShardId, u64),
    /// To a session's shard: end it, it is being reinstated.
    EndSession(Tsih),
    /// To every shard: a TARGET COLD RESET of this target was answered, and ends its sessions (RFC 7143 §11.5.1).
    ColdReset(Arc<str>),
    /// To the directory's shard: a session has ended.
    SessionGone(Tsih),
    /// To the directory's shard: a connection of a session has ended.
    ConnectionGone(Tsih, Cid),
    /// To every shard: who came from this address has failed to prove who they are.
    AuthenticationFailed(IpAddr),
    /// With a socket: it is the link of this number among those that were restored.
    CarriedLink(u32),
    /// With a socket: it has logged in.
    Link(Box<LinkHandoff>),
    /// About NVMe controllers and queues.
    Nvme(NvmeMessage),
    /// To the control plane: what would keep the data of this shard waiting too long, for a remote volume of
    /// it. [`Message::Computed`] follows, when it has been done or dropped.
    Compute(ShardId, Tag, Computation),
    /// From it.
    Computed(Tag),
    /// To a volume's home.
    VolumeRequest(VolumeId, ShardId, RequestId, VolumeRequest),
    /// From it.
    Answer(VolumeId, VolumeAnswer),
    /// From a volume's home to every shard.
    ViewUpdate(VolumeId, Arc<ViewUpdate>),
    /// Back.
    Ack(VolumeId, Ack),
    /// A gate of this volume on this shard waits for something that another shard has done.
    Wake(VolumeId),
    /// To the control plane: state that is to be made durable (written to a new file of the state
    /// directory, synced, renamed to its name, the directory synced).
    Store(VolumeId, StoreOp),
    /// From it: the store of this ticket is durable, or could not be made so. Sent to the volume's
    /// home.
    Stored(VolumeId, u64, bool),
    /// To the control plane, about a volume of a gateway group.
    ToGateway(Box<ToGateway>),
    /// From it.
    FromGateway(Box<FromGateway>),
    /// From the home of a group's volume to every shard, and back.
    InGroup(VolumeId, GroupStep),
    /// To every shard, for the control plane's request of this number: [`Message::BarrierReached`] is to
    /// follow. What the shard that sends it had told before is done then, since messages keep their order.
    Barrier(ShardId, u64),
    /// The answer.
    BarrierReached(u64),
    /// From the control plane, with its number for the request.
    Control(u64, ControlRequest),
    /// To it.
    Report(u64, ControlReport),
}

/// For what a new session needs memory of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionMemoryNeeds {
    /// Bytes that a command may bring unasked.
    pub unsolicited: u32,
    /// Most commands in work.
    pub commands: u16,
}

/// What a shard must know of a link that comes to it in full feature phase.
#[derive(Debug)]
pub struct LinkHandoff {
    /// The outcome of its login.
    pub established: EstablishedConnection,
    /// Where it was accepted.
    pub accepted: AcceptedSocket,
    /// Whether it founds a session, or joins one.
    pub new: bool,
    /// Bytes that came behind the login.
    pub rest: Vec<u8>,
}

/// Makes the backend of a volume on the shard where it is called.
pub type MakeBackend = Box<dyn FnOnce() -> Box<dyn Backend> + Send>;

/// Makes a backend with sockets, such as that of a remote volume, and begins to connect it.
pub type MakeNetworkBackend = Box<dyn FnOnce(&mut Cx<'_>) -> Box<dyn NetworkBackend> + Send>;

/// Makes a volume's backend on the shard that calls it.
pub enum BackendFactory {
    /// A backend without sockets: memory, a file or a block device.
    Local(MakeBackend),
    /// A backend with sockets, whose dials, receives, sends and timers the shard carries out: a remote volume, a
    /// stripe, or one that needs a timer.
    Network(MakeNetworkBackend),
}

/// A volume, as a shard must know it.
pub struct VolumeSpec {
    /// What it says of itself.
    pub facts: Arc<VolumeFacts>,
    /// What its gates share over all shards.
    pub shared: SharedGateState,
    /// The truth when it is opened.
    pub view: View,
    /// Makes this shard's backend.
    pub make: BackendFactory,
    /// The disks that the backend's operations name.
    pub disks: Vec<DiskId>,
    /// The authority, for the shard that is the volume's home.
    pub home: Option<Box<VolumeOwner>>,
    /// Whether it is a volume of a gateway group: its authority comes with [`FromGateway::Open`], to one gateway at a time.
    pub in_group: bool,
}

impl VolumeSpec {
    /// A volume without disks, for each of `shards` shards: the first is for shard 0. `make` is called on each shard
    /// with its number.
    pub fn for_shards<B: Backend + 'static>(
        home: VolumeOwner,
        shards: u16,
        make: impl Fn(u16) -> B + Clone + Send + 'static,
    ) -> Vec<VolumeSpec> {
        let (facts, view, shared) =
            (Arc::new(home.facts().clone()), home.view().clone(), SharedGateState::new(shards));
        let authority = crate::home_of(facts.id, shards);
        let mut home = Some(Box::new(home));
        let spec = |shard: u16| {
            let make = make.clone();
            VolumeSpec {
                facts: facts.clone(),
                shared: shared.clone(),
                view: view.clone(),
                make: BackendFactory::Local(Box::new(move || Box::new(make(shard)))),
                disks: Vec::new(),
                home: home.take_if(|_| authority == ShardId(shard)),
                in_group: false,
            }
        };
        (0..shards).map(spec).collect()
    }

    /// The logical unit that the volume is.
    pub fn unit_spec(&self) -> UnitSpec {
        UnitSpec {
            oui: self.facts.oui,
            volume: self.facts.id,
            uuid: self.facts.uuid,
            removable: self.facts.removable,
            rpm: self.facts.rpm,
            task_aborted_status: self.facts.task_aborted_status,
            shared: self.shared.clone(),
        }
    }
}

impl VolumeSpec {
    /// The namespace that the volume is.
    pub fn volume_info(&self) -> nvme_server::VolumeInfo {
        nvme_server::VolumeInfo { facts: self.facts.clone(), shared: self.shared.clone() }
    }
}

impl std::fmt::Debug for VolumeSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.facts.fmt(f)
    }
}

/// What the control plane asks of one shard.
#[derive(Debug)]
pub enum ControlRequest {
    /// Serve this volume too. Sent to every shard, the home first.
    AddVolume(Box<VolumeSpec>),
    /// Serve it no more: its tasks are aborted, its backend dropped. Sent to every shard after the
    /// home has answered [`VolumeRequest::Remove`].
    DropVolume(VolumeId),
    /// Something for the volume's home. Sent to that shard (see [`home_of`](crate::home_of)).
    VolumeRequest(VolumeId, VolumeRequest),
    /// Who may reach what, from now on. Sessions that may reach nothing any more are ended; the
    /// others see their LUNs change.
    Exports(Arc<Exports>),
    /// What there is.
    List,
    /// Stop: refuse logins, ask initiators to log out, and flush every volume when all have gone
    /// or the time is over.
    Stop {
        /// How long initiators may take.
        grace: std::time::Duration,
    },
    /// Quiesce, so that another process can go on. Answered with [`ControlReport::Done`] when the shard is quiesced, or at
    /// once with [`ControlReport::NotQuiesced`] if it can never be.
    Quiesce,
    /// The time to quiesce is over: connections whose commands wait for their hosts are left behind.
    ForceQuiesce,
    /// Have what was told to other shards before arrive there. Sent to every shard, twice: an answer may cause another
    /// message.
    Settle,
    /// Save what the shard has: [`ControlReport::Saved`], or why not. It stays quiesced.
    Save,
    /// Go on as if nothing had happened.
    Resume,
}

/// A shard's answer to the control plane.
#[derive(Debug)]
pub enum ControlReport {
    /// Done.
    Done,
    /// Refused by the volume. Of a stop: not everything that was written is on stable storage.
    Refused(Refusal),
    /// There is no such volume.
    NoVolume,
    /// What there is.
    Listing(Box<ShardListing>),
    /// The quiesced shard.
    Saved(Box<ShardSnapshot>),
    /// It is not quiesced, for this reason.
    NotQuiesced(QuiesceBlocker),
}

/// What keeps a shard from being quiesced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuiesceBlocker {
    /// Nobody has asked for it.
    Active,
    /// It is being quiesced already.
    Quiescing,
    /// The daemon stops.
    Stopping,
    /// This volume is held by peers, to whom it is connected.
    RemoteVolume(Arc<str>),
    /// This volume is one of a gateway group, whose other gateways forward commands to this process.
    GroupVolume(Arc<str>),
    /// So many commands do not end; most of them are of this host.
    Commands {
        /// Its name.
        host: Arc<str>,
        /// How many.
        commands: usize,
    },
    /// Commands wait for memory.
    Memory,
    /// Changes of volumes or sessions are under way.
    Requests,
    /// This volume has something to do.
    Volume(Arc<str>, VolumeWork),
    /// What is out on sockets has not come back.
    Sockets,
    /// Memory is short for what is to be saved.
    NoMemory,
}

/// What a volume has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeWork {
    /// So many operations.
    Operations(usize),
    /// Its state is not settled.
    State(VolumeNotIdle),
}

/// In words.
impl std::fmt::Display for QuiesceBlocker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            QuiesceBlocker::Active => f.write_str("it was not asked to come to rest"),
            QuiesceBlocker::Quiescing => f.write_str("another replacement is under way"),
            QuiesceBlocker::Stopping => f.write_str("the daemon is stopping"),
            QuiesceBlocker::GroupVolume(name) => {
                write!(
                    f,
                    "volume {name} is one of a gateway group, and connections to other gateways cannot be moved"
                )
            }
            QuiesceBlocker::RemoteVolume(name) => {
                write!(f, "volume {name} is held by other targets, and connections to them cannot be moved")
            }
            QuiesceBlocker::Commands { host, commands } => {
                write!(f, "{commands} commands do not end, most of them of {host}")
            }
            QuiesceBlocker::Memory => f.write_str("commands wait for memory"),
            QuiesceBlocker::Requests => f.write_str("changes of volumes or sessions are under way"),
            QuiesceBlocker::Volume(name, VolumeWork::Operations(operations)) => {
                write!(f, "{operations} operations of volume {name} do not end")
            }
            QuiesceBlocker::Volume(name, VolumeWork::State(why)) => write!(f, "volume {name}: {why}"),
            QuiesceBlocker::Sockets => f.write_str("what is out on sockets has not come back"),
            QuiesceBlocker::NoMemory => f.write_str("memory is short"),
        }
    }
}

/// What there is on one shard.
#[derive(Clone, Debug, Default)]
pub struct ShardListing {
    /// Its sessions.
    pub sessions: Vec<SessionStatus>,
    /// Its NVMe queues, admin queues among them. A controller's queues may be on several shards.
    pub queues: Vec<QueueEntry>,
    /// Its volumes.
    pub volumes: Vec<VolumeStatus>,
    /// Bytes of its pool: size, lent, reserved.
    pub memory: (usize, usize, usize),
    /// Connections that log in, or connect a queue, just now.
    pub logins: usize,
    /// How often hosts were refused here, by cause.
    pub refusals: Vec<(RefusalCause, u64)>,
    /// Where hosts come from that have failed to prove who they are, and have to wait: single addresses, or the
    /// first of an IPv6 /64.
    pub delayed: Vec<IpAddr>,
}

/// A session.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// Its handle.
    pub tsih: u16,
    /// The initiator's name.
    pub initiator: Arc<str>,
    /// Its ISID, as 12 hexadecimal digits.
    pub isid: String,
    /// The target's name; `None` for a discovery session.
    pub target: Option<Arc<str>>,
    /// The CHAP name that was proved.
    pub user: Option<String>,
    /// What its leading login settled.
    pub params: SessionParams,
    /// Commands that it may have in work now.
    pub window: u32,
    /// How its shard was chosen.
    pub placed: PlacementOutcome,
    /// Its connections.
    pub connections: Vec<ConnectionStatus>,
    /// Tasks in work.
    pub tasks: usize,
    /// I/O since login: reads, bytes read, writes, bytes written.
    pub io: IoCounters,
    /// How long its commands took.
    pub latency: CommandLatency,
}

/// A connection of a session.
#[derive(Clone, Debug)]
pub struct ConnectionStatus {
    /// Its id.
    pub cid: u16,
    /// How it came.
    pub accepted: AcceptedSocket,
    /// CRC32C behind headers, and behind data.
    pub digests: (bool, bool),
    /// Largest data segments in bytes: to the initiator, and to us.
    pub segments: (u32, u32),
    /// The CHAP algorithm by which the initiator proved itself; `None`: it did not.
    pub algorithm: Option<Algorithm>,
    /// Bytes of its socket.
    pub traffic: LinkTraffic,
}

/// A volume on one shard.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// Its number.
    pub id: VolumeId,
    /// The truth as this shard has it: size, reservations, paths, protection.
    pub view: View,
    /// A sync has failed, so that nothing is written any more.
    pub sync_failed: bool,
    /// I/O of this shard since it was added.
    pub io: IoCounters,
    /// Its operations that have not ended.
    pub in_flight: usize,
    /// Its operations that failed.
    pub errors: ErrorCounters,
    /// One has failed lately for want of space.
    pub no_space: bool,
    /// How long its commands on this shard took.
    pub latency: CommandLatency,
}

/// Why an operation of a volume failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCause {
    /// Blocks cannot be read, or written.
    Medium,
    /// There is no space.
    NoSpace,
    /// What was written could not be made stable.
    Sync,
    /// What stores the blocks is out of reach.
    PathLost,
    /// A fault of ours.
    Internal,
    /// The state of the volume, or of the path, did not allow it.
    Refused,
}

impl ErrorCause {
    /// All of them, in the order of [`ErrorCounters`].
    pub const ALL: [ErrorCause; 6] = [
        ErrorCause::Medium,
        ErrorCause::NoSpace,
        ErrorCause::Sync,
        ErrorCause::PathLost,
        ErrorCause::Internal,
        ErrorCause::Refused,
    ];

    /// In a word.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorCause::Medium => "medium",
            ErrorCause::NoSpace => "no-space",
            ErrorCause::Sync => "sync",
            ErrorCause::PathLost => "path-lost",
            ErrorCause::Internal => "internal",
            ErrorCause::Refused => "refused",
        }
    }

    /// Of what failed; `None`: it was to end so (a miscompare, a cancel, another host's reservation).
    pub(crate) fn of_failure(failure: &Failure) -> Option<Self> {
        Some(match failure {
            Failure::Refused(Refusal::Conflict) => return None,
            Failure::Refused(_) => ErrorCause::Refused,
            Failure::Failed(Fault::Medium(_) | Fault::Unwritable(_)) => ErrorCause::Medium,
            Failure::Failed(Fault::NoSpace) => ErrorCause::NoSpace,
            Failure::Failed(Fault::Sync) => ErrorCause::Sync,
            Failure::Failed(Fault::PathLost) => ErrorCause::PathLost,
            Failure::Failed(Fault::Internal) => ErrorCause::Internal,
            Failure::Failed(Fault::Miscompare(_) | Fault::Aborted) => return None,
        })
    }
}

/// Operations that failed, by cause, in the order of [`ErrorCause::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounters(pub [u64; ErrorCause::ALL.len()]);

impl ErrorCounters {
    /// Counts an operation that failed.
    pub(crate) fn count_failure(&mut self, failure: &Failure) {
        if let Some(count) = ErrorCause::of_failure(failure).and_then(|cause| self.0.get_mut(cause as usize))
        {
            *count += 1;
        }
    }
}

/// Counts of I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounters {
    /// Read operations.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write operations.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}
