//! The target as it is at rest, for another process that goes on with it: what each shard has saved, put together.
//!
//! The bytes are framed by `stream::snapshot`. They hold data of hosts: they are for a socket between two processes of
//! one user, and for no file or log.
//!
//! Invariant: what is in it goes along whole. A controller without one of its queues, or a queue without its controller,
//! is left behind, and listed. Bytes of another process are parsed, never trusted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use endpoint::{AcceptedSocket, LinkId, ListenerId, ShardId};
use nvme::fabrics::ConnectNames;
use nvme::{HostId, Nqn};
use nvme_server::{ControllerSnapshot, ServerQueueSnapshot};
use scsi_server::NexusSnapshot;
use serde::{Deserialize, Serialize};
use stream::snapshot::{SnapshotDamage, SnapshotFormat};
use volume::{RunningVolume, Uuid};

/// Of a whole target.
const FORMAT: SnapshotFormat = SnapshotFormat { kind: *b"trgt", version: 1 };

/// What one shard has saved, and whom it leaves behind.
#[derive(Clone, PartialEq, Eq)]
pub struct ShardSnapshot {
    pub(crate) body: ShardBody,
    pub(crate) left: Vec<LeftBehind>,
}

/// Without what it holds: data of hosts is among it.
impl fmt::Debug for ShardSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShardSnapshot(shard {}, {:?} left behind)", self.body.shard, self.left)
    }
}

/// A connection that does not go along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBehind {
    /// Where it comes from.
    pub peer: SocketAddr,
    /// The initiator or host, if it has said who it is.
    pub host: Option<Arc<str>>,
    /// The target or subsystem.
    pub target: Option<Arc<str>>,
    /// Why.
    pub why: LeftBehindCause,
}

/// Why a connection does not go along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftBehindCause {
    /// It logs in, or connects a queue.
    LoggingIn,
    /// The session cannot be saved.
    Session(iscsi::session::SessionSaveRefusal),
    /// The queue cannot be saved.
    Queue(nvme_tcp::controller::QueueSaveRefusal),
    /// What the server knows of the queue or its controller cannot be saved.
    Association(nvme_server::AssociationSaveRefusal),
    /// Another queue of its controller does not go along, or the controller itself.
    Companion,
}

/// In words.
impl fmt::Display for LeftBehindCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeftBehindCause::LoggingIn => f.write_str("it was logging in"),
            LeftBehindCause::Session(why) => why.fmt(f),
            LeftBehindCause::Queue(why) => why.fmt(f),
            LeftBehindCause::Association(why) => why.fmt(f),
            LeftBehindCause::Companion => f.write_str("another queue of its controller cannot be moved"),
        }
    }
}

/// Why bytes are no target that can go on here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSnapshotError {
    /// They are no snapshot that this release reads.
    Damage(SnapshotDamage),
    /// It was saved by so many shards.
    Shards {
        /// That many.
        saved: u16,
        /// Here are that many.
        here: u16,
    },
    /// It contradicts itself, in this.
    Contradiction(&'static str),
}

/// In words.
impl fmt::Display for TargetSnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetSnapshotError::Damage(damage) => damage.fmt(f),
            TargetSnapshotError::Shards { saved, here } => {
                write!(f, "saved by {saved} shards, and there are {here} here: give both the same cores")
            }
            TargetSnapshotError::Contradiction(what) => {
                write!(f, "a snapshot that contradicts itself ({what})")
            }
        }
    }
}

impl std::error::Error for TargetSnapshotError {}

/// A target at rest.
#[derive(Clone, PartialEq, Eq)]
pub struct TargetSnapshot {
    shards: Vec<ShardBody>,
    left: Vec<LeftBehind>,
}

/// Without what it holds: data of hosts is among it.
impl fmt::Debug for TargetSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TargetSnapshot({} shards, {:?} left behind)", self.shards.len(), self.left)
    }
}

impl TargetSnapshot {
    /// Puts together what all shards have saved, in any order.
    ///
    /// # Errors
    /// They are not all shards of one target.
    pub fn assemble(parts: Vec<ShardSnapshot>) -> Result<Self, TargetSnapshotError> {
        let (mut shards, mut left) = (Vec::new(), Vec::new());
        for part in parts {
            shards.push(part.body);
            left.extend(part.left);
        }
        shards.sort_by_key(|shard| shard.shard);
        let mut snapshot = TargetSnapshot { shards, left };
        snapshot.check()?;
        snapshot.leave_incomplete_controllers();
        Ok(snapshot)
    }

    /// The bytes, for another process.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        stream::snapshot::write(FORMAT, &self.shards)
    }

    /// Reads what another process wrote, for a target of so many shards.
    ///
    /// # Errors
    /// See [`TargetSnapshotError`].
    pub fn from_bytes(bytes: &[u8], here: u16) -> Result<Self, TargetSnapshotError> {
        let shards: Vec<ShardBody> =
            stream::snapshot::read(FORMAT, bytes).map_err(TargetSnapshotError::Damage)?;
        let saved = u16::try_from(shards.len()).unwrap_or(u16::MAX);
        if saved != here {
            return Err(TargetSnapshotError::Shards { saved, here });
        }
        let snapshot = TargetSnapshot { shards, left: Vec::new() };
        snapshot.check()?;
        Ok(snapshot)
    }

    fn check(&self) -> Result<(), TargetSnapshotError> {
        let contradiction = |sound: bool, what| match sound {
            true => Ok(()),
            false => Err(TargetSnapshotError::Contradiction(what)),
        };
        let count = self.shards.len();
        let numbered = self
            .shards
            .iter()
            .enumerate()
            .all(|(at, shard)| usize::from(shard.shard) == at && usize::from(shard.shards) == count);
        contradiction(numbered && count > 0, "shards")?;
        let mut tsihs = BTreeSet::new();
        let sessions = || self.shards.iter().flat_map(|shard| &shard.sessions);
        contradiction(sessions().all(|session| tsihs.insert(session.tsih)), "session handles")?;
        let mut cntlids = BTreeSet::new();
        for shard in &self.shards {
            let own = |cntlid: u16| cntlid != 0 && usize::from(cntlid) % count == usize::from(shard.shard);
            let sound = |one: &ControllerBody| {
                let cntlid = one.snapshot.admin_queue().cntlid();
                own(cntlid) && cntlids.insert(cntlid)
            };
            contradiction(shard.controllers.iter().all(sound), "controllers")?;
            let mut links = BTreeSet::new();
            contradiction(shard.links().all(|link| links.insert(link)), "links")?;
        }
        let mut uuids = BTreeSet::new();
        let volumes = self.shards.iter().flat_map(|shard| &shard.volumes);
        contradiction(volumes.clone().all(|volume| uuids.insert(volume.uuid())), "volumes")
    }

    /// A controller goes along with all of its queues, or not at all.
    fn leave_incomplete_controllers(&mut self) {
        let has_queue = |shards: &[ShardBody], cntlid: u16, qid: u16, shard: u16| {
            let shard = shards.get(usize::from(shard));
            shard.is_some_and(|shard| {
                shard.queues.iter().any(|queue| queue.cntlid == cntlid && queue.qid == qid)
            })
        };
        let mut complete = BTreeMap::new();
        for shard in &self.shards {
            for one in &shard.controllers {
                let cntlid = one.snapshot.admin_queue().cntlid();
                let mut queues = one.snapshot.io_queues();
                let whole = queues.all(|(qid, at)| has_queue(&self.shards, cntlid, qid, at))
                    && has_queue(&self.shards, cntlid, 0, shard.shard);
                complete.insert(cntlid, whole);
            }
        }
        let goes = |cntlid: &u16| complete.get(cntlid).copied().unwrap_or(false);
        for shard in &mut self.shards {
            shard.controllers.retain(|one| goes(&one.snapshot.admin_queue().cntlid()));
            for queue in shard.queues.extract_if(.., |queue| !goes(&queue.cntlid)) {
                self.left.push(LeftBehind {
                    peer: queue.accepted.peer,
                    host: Some(queue.names.host.as_str().into()),
                    target: Some(queue.names.subsystem.as_str().into()),
                    why: LeftBehindCause::Companion,
                });
            }
        }
    }

    /// Who does not go along.
    pub fn left_behind(&self) -> &[LeftBehind] {
        &self.left
    }

    /// How many sessions and how many queues go along.
    pub fn connection_counts(&self) -> (usize, usize) {
        let sessions = self.shards.iter().map(|shard| shard.sessions.len());
        let queues = self.shards.iter().map(|shard| shard.queues.len());
        (sessions.sum(), queues.sum())
    }

    /// The links of a shard that go along, as their process names them. The number of each is its place: the link
    /// arrives in the new process with [`Message::CarriedLink`](crate::Message::CarriedLink) of that number.
    pub fn links(&self, shard: ShardId) -> Vec<LinkId> {
        self.shard(shard).map(|shard| shard.links().map(LinkId).collect()).unwrap_or_default()
    }

    /// The state of a volume, if it was served.
    pub fn running_volume(&self, uuid: Uuid) -> Option<&RunningVolume> {
        self.shards.iter().flat_map(|shard| &shard.volumes).find(|volume| volume.uuid() == uuid)
    }

    /// The volumes that were served.
    pub fn volumes(&self) -> impl Iterator<Item = Uuid> + '_ {
        self.shards.iter().flat_map(|shard| shard.volumes.iter().map(RunningVolume::uuid))
    }

    pub(crate) fn shard(&self, shard: ShardId) -> Option<&ShardBody> {
        self.shards.get(usize::from(shard.0))
    }

    pub(crate) fn shards(&self) -> &[ShardBody] {
        &self.shards
    }
}

/// What a shard has.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardBody {
    pub(crate) shard: u16,
    pub(crate) shards: u16,
    pub(crate) sessions: Vec<SessionBody>,
    pub(crate) controllers: Vec<ControllerBody>,
    pub(crate) queues: Vec<QueueBody>,
    /// Those whose home it is.
    pub(crate) volumes: Vec<RunningVolume>,
    /// Nexuses that end with the old process.
    pub(crate) lost: Vec<LostNexusBody>,
}

impl ShardBody {
    /// Links that go along, sessions' first.
    fn links(&self) -> impl Iterator<Item = u64> + '_ {
        let sessions = self.sessions.iter().flat_map(|session| session.links.iter().map(|link| link.id));
        sessions.chain(self.queues.iter().map(|queue| queue.link))
    }
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionBody {
    /// See `iscsi::session::SessionSnapshot`.
    pub(crate) protocol: Vec<u8>,
    pub(crate) tsih: u16,
    pub(crate) initiator: String,
    pub(crate) isid: [u8; 6],
    pub(crate) target: String,
    pub(crate) user: Option<String>,
    /// Bytes that it was promised when it began.
    pub(crate) promised: u64,
    pub(crate) connections_max: u16,
    pub(crate) nexus: NexusSnapshot,
    pub(crate) links: Vec<LinkBody>,
    pub(crate) latest: AcceptedBody,
    /// Reads and their bytes, writes and theirs.
    pub(crate) io: [u64; 4],
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkBody {
    /// As the old process names it.
    pub(crate) id: u64,
    /// As the session does.
    pub(crate) number: u16,
    pub(crate) cid: u16,
    pub(crate) accepted: AcceptedBody,
    pub(crate) digests: (bool, bool),
    pub(crate) segments: (u32, u32),
    pub(crate) algorithm: Option<u8>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ControllerBody {
    pub(crate) snapshot: ControllerSnapshot,
    pub(crate) names: NamesBody,
    pub(crate) accepted: AcceptedBody,
    pub(crate) is_logged: bool,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueueBody {
    /// As the old process names it.
    pub(crate) link: u64,
    /// See `nvme_tcp::controller::QueueSnapshot`.
    pub(crate) protocol: Vec<u8>,
    pub(crate) cntlid: u16,
    pub(crate) qid: u16,
    /// `None`: it is an admin queue, and goes with its controller.
    pub(crate) server: Option<ServerQueueSnapshot>,
    pub(crate) names: NamesBody,
    pub(crate) accepted: AcceptedBody,
    /// Of an I/O queue: where the admin queue was accepted.
    pub(crate) admin: Option<AcceptedBody>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamesBody {
    pub(crate) host: String,
    pub(crate) host_id: [u8; 16],
    pub(crate) subsystem: String,
}

impl NamesBody {
    pub(crate) fn of(names: &ConnectNames) -> Self {
        NamesBody {
            host: names.host.as_str().into(),
            host_id: names.host_id.bytes(),
            subsystem: names.subsystem.as_str().into(),
        }
    }

    /// `None`: they are no names.
    pub(crate) fn to_names(&self, cntlid: u16) -> Option<ConnectNames> {
        Some(ConnectNames {
            host_id: HostId::new(self.host_id)?,
            cntlid,
            subsystem: Nqn::parse(&self.subsystem).ok()?,
            host: Nqn::parse(&self.host).ok()?,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AcceptedBody {
    pub(crate) listener: u16,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) cpu: Option<u32>,
}

impl AcceptedBody {
    pub(crate) fn of(accepted: &AcceptedSocket) -> Self {
        let AcceptedSocket { listener, local, peer, cpu } = *accepted;
        AcceptedBody { listener: listener.0, local, peer, cpu }
    }

    /// The same by the listener's number of now.
    pub(crate) fn to_accepted(self, listener: ListenerId) -> AcceptedSocket {
        let AcceptedBody { local, peer, cpu, .. } = self;
        AcceptedSocket { listener, local, peer, cpu }
    }
}

/// A nexus that ends: homes of the volumes that it reached let go of it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LostNexusBody {
    pub(crate) initiator: String,
    pub(crate) isid: [u8; 6],
    pub(crate) port: u16,
    pub(crate) volumes: Vec<[u8; 16]>,
}
