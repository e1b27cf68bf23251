//! The daemon as a gateway of a group: joins it, and is its target.
//!
//! ```text
//! shards ── ToGateway ──► JoinedGroup ── RuntimeRequest ──► runtime (member, links, store)
//! shards ◄─ FromGateway ── ShardChannel ◄─ Output ───────────┘
//! ```
//! Invariants: what the member puts out reaches the home of a volume in its order; a volume's image is in its slot from
//! before the home opens the volume until after it has closed it.

mod portals;
mod shard_channel;

use std::{
    collections::BTreeMap,
    fmt,
    net::TcpListener,
    sync::{Arc, mpsc::sync_channel},
    thread,
    time::{Duration, Instant},
};

use backends::FileDisk;
use gateway::{
    DRAIN_TIME, GroupKey, GroupStatus, GroupStore, Inbox, LinkContext, Runtime, RuntimeConfig,
    RuntimeRequest, StoreOptions, VolumeImage,
};
use group::{
    GroupId, GroupName, InstanceId, MemberConfig, MemberEntry, Membership, PortError, RequestId,
    RestartCause, Timing,
};
use rbd::{ClusterOptions, ImageSlot, Library};
use reactor::ReactorHandle;
use shard::{Message, OtherGateway, ToGateway};
use volume::{PortId, Uuid, VolumeId};

use self::shard_channel::{ShardChannel, Target};
use crate::{EngineError, state::StateDir, store::Store};
use config::{
    name::VolumeName,
    plan::{GroupSettings, Plan, Protocol},
    spec::VolumeSource,
};
use process::{log::area, random};

pub use self::shard_channel::path_word;

/// How many ANA groups the images are divided into: an owner object is read every second for each.
const GROUPS: u32 = 64;
/// How long the group may take to give a port its number at start.
const PORT_PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks whether the group has let this gateway in.
const JOIN_PAUSE: Duration = Duration::from_millis(10);
/// How long the runtime may take to say what it knows.
const STATUS_PATIENCE: Duration = Duration::from_secs(5);
/// The record of the state directory with its identity as a gateway.
const IDENTITY: &str = "gateway";

/// A volume that the group serves.
#[derive(Debug)]
pub struct GroupVolume {
    /// Its number here.
    pub id: VolumeId,
    /// Where its image is put in.
    pub slot: ImageSlot,
    /// What the shards' backends stand on.
    pub disk: Arc<FileDisk>,
}

/// The group that this daemon has joined.
pub struct JoinedGroup {
    name: VolumeName,
    group: GroupName,
    runtime: Runtime,
    store: Arc<GroupStore>,
    shards: Arc<ShardChannel>,
}

impl JoinedGroup {
    /// Joins. Waits for the cluster.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn join(
        settings: &GroupSettings,
        plan: &Plan,
        (state, volumes): (&StateDir, &[Store]),
        lost: Box<dyn Fn(RestartCause) + Send + Sync>,
    ) -> Result<JoinedGroup, EngineError> {
        let failed = |why: String| EngineError::Start(format!("group \"{}\": {why}", settings.name));
        if !sandbox::may_run_ceph() {
            return Err(failed(sandbox::CEPH_HINT.to_owned()));
        }
        let name = gateway_name(settings).map_err(failed)?;
        let identity = state_identity(state)?;
        let listener = TcpListener::bind(settings.listen)
            .map_err(|why| EngineError::Listen { address: settings.listen, why })?;
        let library = Library::open().map_err(|why| failed(why.to_string()))?;
        let inbox = Inbox::new().map_err(|why| failed(why.to_string()))?;
        let new_key = random::random_bytes().map_err(|why| failed(why.to_string()))?;
        let options = StoreOptions {
            cluster: ClusterOptions { conf: settings.conf.clone(), user: settings.user.clone() },
            pool: settings.pool.clone(),
            namespace: settings.namespace.clone(),
            group: settings.name.clone(),
            new_key: GroupKey::new(new_key),
        };
        let store =
            GroupStore::open(&library, options, inbox.mailbox()).map_err(|why| failed(why.to_string()))?;
        let store = Arc::new(store);
        store.set_volumes(&images(volumes));
        let links = LinkContext::new(store.instance(), &settings.name, store.key());
        let groups = groups_of(volumes);
        let member = MemberConfig {
            instance: store.instance(),
            gateway: name.as_str().into(),
            state: identity,
            address: settings.address.to_string().into(),
            portals: portals::describe(plan, settings),
            groups: groups.clone(),
            timing: Timing::default(),
        };
        tracing::info!(
            target: area::SERVE,
            group = %settings.name, gateway = %name, instance = %store.instance(), address = %settings.address,
            "joining the group"
        );
        let shards = Arc::new(ShardChannel::new(inbox.clone(), store.clone(), groups, lost));
        let links = links.map_err(|why| failed(why.to_string()))?;
        let config = RuntimeConfig { member, links, listener };
        let runtime = Runtime::start(config, inbox, store.clone(), Target(shards.clone()))
            .map_err(|why| failed(why.to_string()))?;
        let joined = JoinedGroup { name, group: settings.name.clone(), runtime, store, shards };
        joined.check_tags(plan)?;
        Ok(joined)
    }

    /// A portal group with one tag is one group on all machines of a target (RFC 7143 §4.4.3): a login to it at another
    /// gateway would tell an initiator that the session here has ended with all its tasks, which it has not.
    ///
    /// # Errors
    /// Another gateway has one of these tags, or the group does not let this one in.
    pub fn check_tags(&self, plan: &Plan) -> Result<(), EngineError> {
        let iscsi = plan.portals.iter().filter(|portal| portal.protocol == Protocol::Iscsi);
        let own: Vec<u16> = iscsi.map(|portal| portal.tag).collect();
        let begun = Instant::now();
        loop {
            let status = self.status().filter(|_| begun.elapsed() < PORT_PATIENCE);
            let Some(status) = status else {
                let cause = self.lost().map(|cause| cause.to_string());
                let why = cause.unwrap_or_else(|| "the cluster does not answer".to_owned());
                return Err(EngineError::Start(format!("group \"{}\": {why}", self.group)));
            };
            let joined: Vec<&MemberEntry> =
                status.members.iter().filter(|entry| entry.membership == Membership::Joined).collect();
            if !joined.iter().any(|entry| entry.instance == status.instance) {
                thread::sleep(JOIN_PAUSE);
                continue;
            }
            // Of two that join at once the later one sees the other.
            let others = joined.iter().filter(|entry| entry.instance != status.instance);
            let mut shared =
                others.filter_map(|entry| Some((entry, portals::shared_tag(&own, &entry.portals)?)));
            return match shared.next() {
                None => Ok(()),
                Some((entry, (address, tag))) => Err(EngineError::Start(format!(
                    "group \"{}\": the iSCSI portal {address} of gateway \"{}\" has the portal group tag {tag}, as one \
                     of this gateway: give the iSCSI portals of each gateway tags of their own (tag = in [[portal]]), or, \
                     if that gateway is gone for good, run `blockwire gateway fence {}` at another one",
                    self.group, entry.gateway, entry.gateway
                ))),
            };
        }
    }

    /// The number of a port of this gateway: the same each time, and no other gateway's.
    ///
    /// # Errors
    /// The group gives none.
    pub fn port_number(&self, port: &str) -> Result<PortId, EngineError> {
        self.port_number_of(self.name.as_str(), port)
    }

    fn port_number_of(&self, gateway: &str, port: &str) -> Result<PortId, EngineError> {
        let (tell, told) = sync_channel(1);
        let name = format!("{gateway} {port}");
        self.runtime.inbox().post(RuntimeRequest::AllocatePort(name.into(), tell));
        let why = match told.recv_timeout(PORT_PATIENCE) {
            Ok(Ok(number)) => return Ok(number),
            Ok(Err(PortError::Exhausted)) => "all 65,535 port numbers of the group are given".to_owned(),
            Ok(Err(PortError::TooLong)) => "its name is too long".to_owned(),
            Ok(Err(PortError::Busy)) => "too many numbers are asked for at once".to_owned(),
            Ok(Err(PortError::Damaged(damage))) => {
                format!("the group's object of allocations is damaged: {damage}")
            }
            Err(_) => match self.shards.lost() {
                Some(cause) => cause.to_string(),
                None => "the cluster does not answer".to_owned(),
            },
        };
        Err(EngineError::Start(format!("no number for the port {port}: {why}")))
    }

    /// What the member puts out goes to these shards from now on, also what it has put out before.
    pub fn connect_shards(
        &self,
        running: &Arc<ReactorHandle<Message>>,
        volumes: BTreeMap<Uuid, GroupVolume>,
    ) {
        self.shards.connect(running, volumes);
    }

    /// From a shard.
    pub fn handle(&self, message: ToGateway) {
        self.shards.handle(message);
    }

    /// An image has told that this gateway's client is barred.
    pub fn note_fenced(&self) {
        self.runtime.inbox().post(RuntimeRequest::Fenced);
    }

    /// Why this gateway is no member any more.
    pub fn lost(&self) -> Option<RestartCause> {
        self.shards.lost()
    }

    /// What is known of the group; `None`: this gateway is no member any more.
    pub fn status(&self) -> Option<GroupStatus> {
        let (tell, told) = sync_channel(1);
        self.runtime.inbox().post(RuntimeRequest::Status(tell));
        told.recv_timeout(STATUS_PATIENCE).ok()
    }

    /// The other gateways that take part, with their portals.
    ///
    /// # Errors
    /// The group does not say the numbers of their ports.
    pub fn other_gateways(&self, status: &GroupStatus) -> Result<Vec<OtherGateway>, EngineError> {
        let others = status
            .members
            .iter()
            .filter(|entry| entry.membership == Membership::Joined && entry.instance != status.instance);
        let gateway = |entry: &MemberEntry| {
            portals::read(&entry.portals, |port| self.port_number_of(&entry.gateway, port))
        };
        others.map(gateway).collect()
    }

    /// Hands all groups to other gateways, and takes none until [`JoinedGroup::undrain`]. True if that is done in time; it
    /// goes on in any case.
    pub fn drain(&self, patience: Duration) -> bool {
        let (tell, told) = sync_channel(1);
        self.runtime.inbox().post(RuntimeRequest::Drain(tell));
        told.recv_timeout(patience).is_ok()
    }

    /// Takes groups again.
    pub fn undrain(&self) {
        self.runtime.inbox().post(RuntimeRequest::Undrain);
    }

    /// Expels an instance: it is barred from the cluster, and its groups are taken.
    pub fn expel(&self, instance: InstanceId) {
        self.runtime.inbox().post(RuntimeRequest::Expel(instance));
    }

    /// Hands over what can be handed over before the daemon stops.
    pub fn leave(&self) {
        let begun = Instant::now();
        let others = self.status().is_some_and(|status| !status.linked.is_empty());
        if others && !self.drain(DRAIN_TIME) {
            tracing::warn!(
                target: area::SERVE,
                seconds = begun.elapsed().as_secs(),
                "not all volumes could be handed to other gateways: these take them when this one has ended"
            );
        }
    }

    /// This gateway's name.
    pub fn name(&self) -> &VolumeName {
        &self.name
    }

    /// The group's name.
    pub fn group_name(&self) -> &GroupName {
        &self.group
    }

    /// The identity of this run in the cluster.
    pub fn instance(&self) -> InstanceId {
        self.store.instance()
    }
}

impl fmt::Debug for JoinedGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinedGroup")
            .field("name", &self.name)
            .field("instance", &self.instance())
            .finish_non_exhaustive()
    }
}

/// Names a command of a shard in the whole gateway.
fn request_id(shard: u16, number: u64) -> RequestId {
    RequestId(u64::from(shard) << 48 | number & ((1 << 48) - 1))
}

/// The ANA group of a volume: it follows from its identity, so all gateways agree.
pub fn group_of(volume: Uuid) -> GroupId {
    let [a, b, c, d, ..] = volume.0;
    GroupId(1 + u32::from_le_bytes([a, b, c, d]) % GROUPS)
}

fn groups_of(volumes: &[Store]) -> BTreeMap<GroupId, Vec<Uuid>> {
    let mut groups: BTreeMap<GroupId, Vec<Uuid>> = BTreeMap::new();
    for store in volumes.iter().filter(|store| store.slot.is_some()) {
        let uuid = Uuid(*store.uuid.as_bytes());
        groups.entry(group_of(uuid)).or_default().push(uuid);
    }
    groups
}

fn images(volumes: &[Store]) -> BTreeMap<Uuid, VolumeImage> {
    let image = |store: &Store| match &store.volume.spec.source {
        VolumeSource::Rbd(image) if store.slot.is_some() => {
            let (pool, namespace, image) = (image.pool.clone(), image.namespace.clone(), image.image.clone());
            Some((Uuid(*store.uuid.as_bytes()), VolumeImage { pool, namespace, image }))
        }
        _ => None,
    };
    volumes.iter().filter_map(image).collect()
}

/// The name of this gateway: as configured, or that of the machine.
fn gateway_name(settings: &GroupSettings) -> Result<VolumeName, String> {
    if let Some(name) = &settings.gateway {
        return Ok(name.clone());
    }
    let node = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    let first = node.split('.').next().unwrap_or_default();
    VolumeName::parse(first).map_err(|_| {
        format!(
            "the machine's name, \"{node}\", is no name for a gateway: give gateway = \"NAME\" in [group]"
        )
    })
}

/// By which the group tells this state directory from others.
fn state_identity(state: &StateDir) -> Result<Uuid, EngineError> {
    let failed = |why: String| EngineError::Start(why);
    if let Some(known) = state.read_json::<uuid::Uuid>(IDENTITY).map_err(|why| failed(why.to_string()))? {
        return Ok(Uuid(*known.as_bytes()));
    }
    let random = random::random_bytes().map_err(|why| failed(why.to_string()))?;
    let new = uuid::Builder::from_random_bytes(random).into_uuid();
    state.write_json(IDENTITY, &new).map_err(|why| failed(why.to_string()))?;
    Ok(Uuid(*new.as_bytes()))
}
