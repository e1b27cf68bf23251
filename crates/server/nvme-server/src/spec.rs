//! Parameters of controllers and queues when they open: plain data. The composition makes a controller's,
//! from the host's admin Connect and the configuration. A controller makes its queues', which travel to the
//! shards where the queues live.

use std::net::SocketAddr;
use std::sync::Arc;

use nvme::auth::ConcatenationPolicy;
use nvme::fabrics::ConnectResult;
use nvme::{Completion, HostId, Nqn, TransferMax};
use volume::{Requester, ShardId, VolumeId};

use crate::authentication::RequiredAuthentication;
use crate::discovery::DiscoveryEntries;

/// An NVM subsystem, as every controller of it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// Its name.
    pub nqn: Nqn,
    /// SN: ASCII, filled with spaces.
    pub serial: [u8; 20],
    /// MN: ASCII, filled with spaces.
    pub model: [u8; 40],
    /// FR: ASCII, filled with spaces.
    pub firmware: [u8; 8],
    /// The highest NSID that it may ever have (NN, MNAN): 1 to [`NAMESPACES_MAX`].
    pub nsid_max: u32,
    /// The highest ANA group that it may ever have (ANAGRPMAX): 1 to [`ANA_GROUPS_MAX`].
    pub ana_group_max: u32,
}

/// The highest NSID of a subsystem: a list of namespaces fits its 1,024 places.
pub const NAMESPACES_MAX: u32 = 1024;

/// The most ANA groups of a subsystem.
pub const ANA_GROUPS_MAX: u32 = 128;

/// The most namespaces whose ANA log a host can take that transfers no more than `transfer` at once
/// (MNAN): 16 bytes, 32 for each of [`ANA_GROUPS_MAX`] groups, 4 for each namespace. Linux reckons with what
/// is announced, reads the log in one command, and does without ANA where MDTS is less.
pub const fn namespaces_max(transfer: TransferMax) -> u32 {
    let fit = transfer.bytes().saturating_sub(16 + 32 * ANA_GROUPS_MAX) / 4;
    if fit < NAMESPACES_MAX { fit } else { NAMESPACES_MAX }
}

/// A namespace as one controller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceEntry {
    /// Its NSID: 1 to the subsystem's `nsid_max`.
    pub nsid: u32,
    /// The volume that it is.
    pub volume: VolumeId,
    /// Whether this host may only read it.
    pub read_only: bool,
    /// Its ANA group: 1 to the subsystem's `ana_group_max`.
    pub ana_group: u32,
}

/// The least unit of keep-alive timeouts, as Identify tells it in units of 100 ms (KAS).
pub(crate) const KEEP_ALIVE_GRANULARITY: u16 = 10;

/// A host, as its Connect names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// HOSTNQN.
    pub nqn: Nqn,
    /// HOSTID.
    pub id: HostId,
}

/// What a controller grants at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerLimits {
    /// I/O queues: 1 to [`QUEUES_MAX`].
    pub queues: u16,
    /// Entries of an I/O queue: 2 to 1024 (CAP.MQES, MAXCMD).
    pub entries: u32,
    /// The longest transfer (MDTS).
    pub transfer: TransferMax,
    /// Bytes of data in a capsule of an I/O queue (IOCCSZ): a multiple of 16.
    pub in_capsule: u32,
}

/// The most I/O queues of one controller.
pub const QUEUES_MAX: u16 = 128;

/// What makes a controller a discovery controller.
#[derive(Clone, Debug)]
pub struct DiscoverySpec {
    /// What there is to discover now.
    pub entries: Arc<DiscoveryEntries>,
    /// The address that the connection came by: what listeners on an unspecified address are shown as.
    pub local: SocketAddr,
}

/// What Keep Alive Timeouts may be (NVMe Base §3.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepAliveLimits {
    /// A host that asks for less, but not for none, gets this, in milliseconds.
    pub least_ms: u32,
    /// A host that asks for more, or for none, is refused: Keep Alive Timeout Invalid. `None`: no bound.
    pub most_ms: Option<u32>,
}

impl KeepAliveLimits {
    /// What a host gets that asks for `kato_ms`: rounded up to the unit that Identify tells; `None` if
    /// it is refused.
    pub fn granted_timeout_ms(self, kato_ms: u32) -> Option<u32> {
        let unit = u32::from(KEEP_ALIVE_GRANULARITY) * 100;
        if self.most_ms.is_some_and(|most| kato_ms == 0 || kato_ms > most) {
            return None;
        }
        let wanted = if kato_ms == 0 { 0 } else { kato_ms.max(self.least_ms) };
        Some(wanted.div_ceil(unit).saturating_mul(unit))
    }
}

/// A controller.
#[derive(Clone, Debug)]
pub struct ControllerSpec {
    /// Its number: 1 to FFEFh, unique in the daemon while it lives.
    pub cntlid: u16,
    /// Its subsystem; of a discovery controller, one with the name of discovery.
    pub subsystem: Arc<Subsystem>,
    /// Whose it is.
    pub host: HostIdentity,
    /// Who its commands come from, for reservations and paths.
    pub nexus: Requester,
    /// Keep Alive Timeout in milliseconds; 0 is none.
    pub kato_ms: u32,
    /// What the timeout may be.
    pub keep_alive: KeepAliveLimits,
    /// Entries of its admin queue.
    pub entries: u32,
    /// Whether its admin queue has SQ flow control.
    pub flow_control: bool,
    /// Whether the host deletes I/O queues one by one (CATTR bit 3): then one that is lost does not
    /// end the association.
    pub individual_deletion: bool,
    /// The namespaces that this host may see, in any order.
    pub namespaces: Vec<NamespaceEntry>,
    /// What it grants.
    pub limits: ControllerLimits,
    /// Set for a discovery controller.
    pub discovery: Option<DiscoverySpec>,
    /// Set if the host authenticates: each of its queues then does, before it is served, unless it is known by a
    /// generated PSK ([`RequiredAuthentication::is_required`]).
    pub auth: Option<Arc<RequiredAuthentication>>,
}

impl ControllerSpec {
    /// Whether the host must authenticate before a queue is served.
    pub(crate) fn must_authenticate(&self) -> bool {
        self.auth.as_ref().is_some_and(|auth| auth.is_required())
    }
}

/// What an I/O Connect says, for the controller that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoQueueConnect {
    /// The queue.
    pub qid: u16,
    /// Its entries: 2 to 65536.
    pub entries: u32,
    /// Whether SQHD counts.
    pub flow_control: bool,
    /// The subsystem named.
    pub subsystem: Nqn,
    /// The host named.
    pub host: HostIdentity,
    /// The shard that the queue will live on.
    pub shard: ShardId,
}

/// A queue.
#[derive(Clone, Debug)]
pub struct QueueSpec {
    /// The controller.
    pub cntlid: u16,
    /// Which life of that number: a word of another life concerns nobody.
    pub association: u64,
    /// The queue identifier: 0 is the admin queue.
    pub qid: u16,
    /// Its name between it and its controller, 0 for the admin queue. Queues whose hosts have still to
    /// prove who they are may have one identifier, and never one queue slot.
    pub queue_slot: u16,
    /// Its entries: 2 to 1024.
    pub entries: u32,
    /// Whether SQHD counts.
    pub flow_control: bool,
    /// Bytes of data in a capsule.
    pub in_capsule: u32,
    /// The controller's shard.
    pub home: ShardId,
    /// Whose it is.
    pub host: HostIdentity,
    /// Who its commands come from, for reservations and paths.
    pub nexus: Requester,
    /// The active namespaces, ascending by NSID, each once.
    pub namespaces: Arc<[NamespaceEntry]>,
    /// The longest transfer of a command in bytes (MDTS).
    pub transfer_max: u32,
    /// How often the queue tells its controller at most that commands come, in milliseconds; 0: never.
    pub traffic_ms: u32,
    /// Whether the host waits before it tries a command again, as long as the status says (feature
    /// 16h, ACRE).
    pub delays_retries: bool,
    /// How the host authenticates, if it does.
    pub auth: Option<Arc<RequiredAuthentication>>,
}

impl QueueSpec {
    /// Sets the active namespaces, in any order; the first of those that have one number stays.
    pub fn set_namespaces(&mut self, namespaces: Vec<NamespaceEntry>) {
        self.namespaces = sort_and_dedup_by_nsid(namespaces);
    }

    /// The namespace of this number.
    #[inline]
    pub fn namespace(&self, nsid: u32) -> Option<&NamespaceEntry> {
        // Where they are numbered 1, 2, 3 … the number is the place.
        match self.namespaces.get((nsid as usize).wrapping_sub(1)) {
            Some(entry) if entry.nsid == nsid => Some(entry),
            Some(_) | None => {
                let at = self.namespaces.binary_search_by_key(&nsid, |entry| entry.nsid).ok()?;
                self.namespaces.get(at)
            }
        }
    }

    /// How the Connect that made the queue is answered, once the queue is open.
    pub fn connect_completion(&self) -> Completion {
        // Of the two only one is set (NVMe Base 2.1 figure 751): ASCR implies authentication.
        let secure_channel = self.qid == 0
            && self.auth.as_ref().is_some_and(|auth| auth.concatenation == ConcatenationPolicy::Required);
        let authenticate = !secure_channel && self.must_authenticate();
        ConnectResult { cntlid: self.cntlid, authenticate, secure_channel }.into()
    }

    /// Whether the host must authenticate before the queue is served.
    pub fn must_authenticate(&self) -> bool {
        self.auth.as_ref().is_some_and(|auth| auth.is_required())
    }
}

/// Ascending by NSID, each once: the first of those that have one number stays.
pub(crate) fn sort_and_dedup_by_nsid(mut namespaces: Vec<NamespaceEntry>) -> Arc<[NamespaceEntry]> {
    namespaces.sort_by_key(|entry| entry.nsid);
    namespaces.dedup_by_key(|entry| entry.nsid);
    namespaces.into()
}
