//! Messages between shards about NVMe controllers and their queues.

use std::net::IpAddr;
use std::sync::Arc;

use endpoint::{AcceptedSocket, Computation, ShardId};
use nvme::auth::{DhComputation, DhGroup, DhResult, Hash};
use nvme::fabrics::{Connect, ConnectNames, ConnectRefusal};
use nvme::tls::PskIdentity;
use nvme::{HostId, Nqn};
use nvme_server::{
    ComputeId, ControllerListQuery, ControllerResetAnswer, ControllerResetRequest, IoQueueConnect,
    QueueCounters, QueueMessage, QueueSpec,
};
use nvme_tcp::QueueHandoff;
use tls::Psk;

use crate::controller_directory::{ControllerReply, ControllerRequest};
use crate::exports::{PlacementOutcome, ShardPreference};
use crate::latency::CommandLatency;
use crate::link_table::LinkTraffic;

/// One message of the NVMe side.
#[derive(Debug)]
pub enum NvmeMessage {
    /// To the directory's shard: an admin queue connects.
    ControllerRequest(ControllerRequest),
    /// From it: the answer to the connection of this number.
    ControllerReply(u64, ControllerReply),
    /// To the directory's shard: this shard has so many bytes left to promise.
    MemoryLeft(ShardId, u64),
    /// To the directory's shard: a controller has ended.
    ControllerGone(u16),
    /// To the directory's shard: the host of this controller has proved who it is.
    HostAuthenticated(u16),
    /// From it: another host has proved that the identifier is its own; the controller is to end.
    IdentifierTaken(u16),
    /// From the control plane to a controller's shard: the operator ends its association (NVMe-oF §4.2), with all its
    /// queues. Commands in flight are not answered.
    EndController(u16),
    /// To a controller's shard: an I/O queue connects. For the connection of this number on that shard.
    JoinController(u16, ShardId, u64, Box<QueueRequest>),
    /// The answer, and where it shall live.
    QueueReply(u64, Result<(ShardId, Box<AdmittedQueue>), QueueRefusal>),
    /// With a socket: its Connect is granted and not answered yet.
    Link(Box<NvmeLinkHandoff>),
    /// To every shard: which controllers does it have of these? The question's number is the asking shard's.
    ListControllers(ShardId, u64, Box<ControllerListQuery>),
    /// The answer.
    ControllersListed(u64, Vec<u16>),
    /// To every shard: reset this controller if it is yours. The question's number is the asking shard's.
    ResetController(ShardId, u64, Box<ControllerResetRequest>),
    /// The answer.
    ResetAnswered(u64, ControllerResetAnswer),
    /// From a controller to its queue, or back.
    Queue(QueueMessage),
    /// To the control plane: what would keep the data of this shard waiting too long, for a host of this
    /// source (an IPv4 address, an IPv6 /64), which shares with others.
    Compute(ShardId, ComputeId, IpAddr, Box<DhComputation>),
    /// To it: a step of a TLS handshake of this connection of this shard.
    Handshake(ShardId, u64, Computation),
    /// From it: that is done, or was dropped.
    HandshakeComputed(u64),
    /// To it: a host may use TLS by this PSK, which it has generated.
    PskGenerated(Box<(PskIdentity, Psk)>),
    /// To it: it may not any more, for connections to come.
    PskRevoked(Box<PskIdentity>),
    /// To it: of no use any more.
    Forget(ShardId, ComputeId),
    /// From it.
    Computed(ComputeId, Box<DhResult>),
    /// From it: too much else waits.
    NotComputed(ComputeId),
}

/// What a shard must know of a queue's link that comes to it.
#[derive(Debug)]
pub struct NvmeLinkHandoff {
    /// The connection as it stands.
    pub parked: QueueHandoff,
    /// Where it was accepted.
    pub accepted: AcceptedSocket,
    /// What its Connect asks.
    pub connect: Connect,
    /// Who connects to whom.
    pub names: ConnectNames,
    /// What was granted.
    pub grant: QueueGrant,
}

/// An I/O queue that connects.
#[derive(Clone, Debug)]
pub struct QueueRequest {
    /// What its Connect asks. What it says of its own shard is replaced by where it shall live.
    pub join: IoQueueConnect,
    /// Where it would like to live.
    pub preference: ShardPreference,
    /// Who connects to whom.
    pub names: ConnectNames,
    /// From where, and by which address.
    pub accepted: AcceptedSocket,
    /// The identity of its TLS; `None`: it has none.
    pub tls: Option<PskIdentity>,
}

/// An I/O queue that its controller has let in.
#[derive(Clone, Debug)]
pub struct AdmittedQueue {
    /// What it is.
    pub spec: QueueSpec,
    /// Where its controller's admin queue was accepted: the same rule must hold for both as long as the queue
    /// lives.
    pub admin: AcceptedSocket,
}

/// Why an I/O queue may not join a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRefusal {
    /// The controller refuses it.
    Refused(ConnectRefusal),
    /// It comes under another rule than the controller's admin queue.
    OtherRule,
    /// It comes by TLS and the admin queue did not, or the other way round, or by another PSK than the one that was
    /// generated for the controller.
    OtherChannel,
}

/// What a connection becomes.
#[derive(Clone, Debug)]
pub enum QueueGrant {
    /// The admin queue of a new controller.
    Admin {
        /// Its number.
        cntlid: u16,
        /// The least that a shard has left to promise, in bytes, as far as the directory knows.
        left: u64,
    },
    /// An I/O queue.
    Io(Box<AdmittedQueue>),
}

impl QueueGrant {
    /// The controller.
    pub fn cntlid(&self) -> u16 {
        match self {
            QueueGrant::Admin { cntlid, .. } => *cntlid,
            QueueGrant::Io(joined) => joined.spec.cntlid,
        }
    }
}

/// Whether a queue's host has proved who it is (DH-HMAC-CHAP).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAuthentication {
    /// It need not.
    NotRequired,
    /// It has still to.
    Pending,
    /// It has, by this hash and in this group.
    Done(Hash, DhGroup),
}

/// A queue of an NVMe controller, with its connection.
#[derive(Clone, Debug)]
pub struct QueueEntry {
    /// The controller.
    pub cntlid: u16,
    /// The queue: 0 is the admin queue.
    pub qid: u16,
    /// The subsystem's name.
    pub subsystem: Arc<str>,
    /// The host's name.
    pub host: Nqn,
    /// The host's identifier.
    pub host_id: HostId,
    /// How it came.
    pub accepted: AcceptedSocket,
    /// The identity of the key that its TLS goes by; `None`: it has none.
    pub tls: Option<nvme::tls::PskIdentity>,
    /// CRC32C behind headers, and behind data.
    pub digests: (bool, bool),
    /// Entries of the queue.
    pub entries: u16,
    /// Whether the host counts by SQHD.
    pub flow_control: bool,
    /// Bytes of data that a command's capsule may hold.
    pub in_capsule: u32,
    /// Whether its host has proved who it is.
    pub authentication: HostAuthentication,
    /// The cipher suite of its TLS 1.3; `None`: it has no TLS.
    pub cipher_suite: Option<&'static str>,
    /// Commands in work.
    pub commands: usize,
    /// How its shard was chosen.
    pub placed: PlacementOutcome,
    /// What it has done since it was opened.
    pub counters: QueueCounters,
    /// Bytes of its socket.
    pub traffic: LinkTraffic,
    /// How long its commands took.
    pub latency: CommandLatency,
}
