//! The parameters of a history, and its world: everything follows from the seed.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use backends::{FileBackend, FileDisk, FileFacts};
use blockwire_multipath::iscsi::{IscsiPath, Settings as IscsiSettings, Timeouts as IscsiTimeouts};
use blockwire_multipath::nvme::{NvmePath, Settings as NvmeSettings, Timeouts as NvmeTimeouts};
use blockwire_multipath::url::PathPolicy;
use blockwire_multipath::{AnyPath, Client, Protocol, VolumeSettings};
use buf::Cx;
use endpoint::{ListenerId, ShardId};
use iscsi::negotiate::Digest;
use iscsi::wire::Isid;
use nvme::{HostId, Nqn};
use shard::{ControlRequest, Exports, Message, NvmePortal, Portal, Shard, VolumeSpec};
use sim::{Config, SimRng, World};
use volume::{DiskId, Geometry, PortId, RamBackend, RamDisk, Uuid, VolumeFacts, VolumeOwner};

use crate::faulty_path::{Defect, FaultyPath};
use crate::node::Node;
use testkit::target;

/// Blocks that everybody is after.
pub const SPAN: u64 = 24;
/// Where a file's blocks are.
const DISK: DiskId = DiskId(3);
/// How long an operation waits for a path.
pub const QUEUE_TIMEOUT: Duration = Duration::from_secs(40);

/// One of the target's addresses.
#[derive(Clone, Copy, Debug)]
pub struct TargetPortal {
    pub protocol: Protocol,
    pub port: u16,
}

/// Two of each protocol, each a port of its own.
pub const PORTALS: [TargetPortal; 4] = [
    TargetPortal { protocol: Protocol::Iscsi, port: 3260 },
    TargetPortal { protocol: Protocol::Iscsi, port: 3261 },
    TargetPortal { protocol: Protocol::Nvme, port: 4420 },
    TargetPortal { protocol: Protocol::Nvme, port: 4421 },
];

pub fn address(portal: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], PORTALS[portal].port))
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Shards of the target; hosts come behind them.
    pub shards: u16,
    /// The portals of each host's paths. The first host writes and reads, others only read.
    pub hosts: Vec<Vec<usize>>,
    pub policy: PathPolicy,
    pub digests: bool,
    pub links: u16,
    pub queues: u16,
    pub window: usize,
    pub wire_delay_max: Duration,
    pub loaned_permille: u32,
    /// In thousandths of the steps.
    pub lose_permille: u32,
    pub silence_permille: u32,
    pub close_permille: u32,
    pub restart_permille: u32,
    pub access_permille: u32,
    pub cancel_permille: u32,
    pub steps: u32,
    /// The volume is a file, on a disk that takes up to this long for what it is given.
    pub disk_delay_max: Option<Duration>,
    pub defect: Option<Defect>,
}

impl Plan {
    pub fn of(seed: u64) -> Plan {
        let mut chance = SimRng::new(seed ^ 0x1057);
        let calm = chance.chance_permille(150);
        let problem = |chance: &mut SimRng, most| if calm { 0 } else { chance.below(most) as u32 };
        let hosts = (0..chance.between(1, 2)).map(|_| {
            let paths = chance.between(1, 4);
            (0..paths).map(|_| chance.below(PORTALS.len() as u64) as usize).collect()
        });
        Plan {
            seed,
            hosts: hosts.collect(),
            shards: chance.between(1, 3) as u16,
            policy: *chance.pick(&[PathPolicy::LeastQueue, PathPolicy::RoundRobin]),
            digests: chance.chance_permille(300),
            links: chance.between(1, 2) as u16,
            queues: chance.between(1, 3) as u16,
            window: *chance.pick(&[600, 16 << 10, 1 << 20]),
            wire_delay_max: Duration::from_micros(*chance.pick(&[100, 1_000, 20_000])),
            loaned_permille: *chance.pick(&[0, 0, 300]),
            lose_permille: problem(&mut chance, 40),
            silence_permille: problem(&mut chance, 10),
            close_permille: problem(&mut chance, 20),
            restart_permille: problem(&mut chance, 8),
            access_permille: problem(&mut chance, 30),
            cancel_permille: problem(&mut chance, 30),
            steps: 160,
            disk_delay_max: None,
            defect: None,
        }
    }

    /// A world whose disk is slow, and whose connections get lost often: what a lost path had in work is
    /// with the disk still when its host asks whether it is over.
    pub fn slow(seed: u64) -> Plan {
        let plan = Plan::of(seed);
        Plan {
            disk_delay_max: Some(Duration::from_millis(400)),
            lose_permille: 80,
            silence_permille: 0,
            steps: 320,
            wire_delay_max: Duration::from_micros(100),
            ..plan
        }
    }

    pub fn host(&self, host: usize) -> ShardId {
        ShardId(self.shards + host as u16)
    }

    pub fn target(&self) -> Range<u16> {
        0..self.shards
    }

    fn exports(&self) -> Arc<Exports> {
        let mut terms = target::TargetLimits::default();
        terms.negotiation.max_connections = 2;
        let mut exports = (*target::build_exports(&terms)).clone();
        let iscsi: Portal = exports.portals[0].clone();
        let nvme: NvmePortal = exports.nvme.portals[0].clone();
        (exports.portals, exports.nvme.portals) = (vec![], vec![]);
        for (at, portal) in (0..).zip(&PORTALS) {
            let (listener, port) = (ListenerId(at), PortId(at + 1));
            match portal.protocol {
                Protocol::Iscsi => {
                    let portal = Portal { listener, port, group: at + 1, ..iscsi.clone() };
                    exports.portals.push(Portal { address: address(at.into()), ..portal });
                }
                Protocol::Nvme => {
                    let portal = NvmePortal { listener, port, ..nvme.clone() };
                    exports.nvme.portals.push(NvmePortal { address: address(at.into()), ..portal });
                }
            }
        }
        Arc::new(exports)
    }

    pub fn shard(&self, id: ShardId) -> Node<FaultyPath> {
        Node::Target(Box::new(Shard::new(id, self.shards, self.exports())))
    }

    pub fn world(&self, disk: &Arc<RamDisk>) -> World<Node<FaultyPath>> {
        let mut config = Config::new(self.seed);
        config.shards = self.shards + self.hosts.len() as u16;
        config.pool_bytes = 8 << 20;
        config.window = self.window;
        config.wire_delay_max = self.wire_delay_max;
        config.loaned_permille = self.loaned_permille;
        config.disk_delay_max = self.disk_delay_max.unwrap_or(config.disk_delay_max);
        let mut world = World::new(config, |id, _| match id.0 < self.shards {
            true => self.shard(id),
            false => Node::Host(Box::new(Client::new())),
        });
        for (at, _) in PORTALS.iter().enumerate() {
            world.add_listener(address(at), ListenerId(at as u16), self.target());
        }
        self.serve(&mut world, disk, None);
        world
    }

    /// Puts the volume in, after a start of the target.
    pub fn serve(&self, world: &mut World<Node<FaultyPath>>, disk: &Arc<RamDisk>, uuid: Option<Uuid>) {
        let (geometry, disk) = (disk.geometry(), disk.clone());
        let specs = match self.disk_delay_max {
            None => {
                target::volume_specs(self.shards, geometry, &[], None, move |_| RamBackend::new(disk.clone()))
            }
            Some(_) => self.file(),
        };
        for (shard, mut spec) in (0..).zip(specs) {
            if let Some(uuid) = uuid {
                spec = renamed(spec, geometry, self.shards, uuid);
            }
            world
                .send_message(ShardId(shard), Message::Control(0, ControlRequest::AddVolume(Box::new(spec))));
        }
    }

    fn file(&self) -> Vec<VolumeSpec> {
        let facts = FileFacts { direct: false, offset_align: 0, ..FileFacts::new(SPAN * 512) };
        let file = Arc::new(FileDisk::new(DISK, &facts, self.shards).expect("a file can be served"));
        let geometry = file.geometry();
        target::volume_specs(self.shards, geometry, &[DISK], None, move |shard| {
            FileBackend::new(file.clone(), shard)
        })
    }

    /// The paths of a host. Every session and every host has a name of its own.
    pub fn paths(&self, host: usize) -> Vec<FaultyPath> {
        let path = |(at, &portal): (usize, &usize)| match PORTALS[portal].protocol {
            Protocol::Iscsi => {
                let isid = Isid::random([1, 2, host as u8], at as u16);
                let name = format!("iqn.2026-11.test:host{host}");
                let mut settings =
                    IscsiSettings::new(vec![address(portal)], target::TARGET_NAME.to_owned(), 0, name, isid);
                if self.digests {
                    settings.negotiation.header_digest = vec![Digest::Crc32c];
                    settings.negotiation.data_digest = vec![Digest::Crc32c];
                }
                settings.links = self.links;
                let second = Duration::from_secs(1);
                settings.timeouts = IscsiTimeouts { fence: 20 * second, ..IscsiTimeouts::default() };
                AnyPath::Iscsi(Box::new(IscsiPath::new(settings).unwrap()))
            }
            Protocol::Nvme => {
                let nqn = Nqn::parse(&format!("nqn.2026-11.test:host{host}")).unwrap();
                let id = HostId::new([host as u8 + 1; 16]).unwrap();
                let subsystem = Nqn::parse(target::SUBSYSTEM_NQN).unwrap();
                let mut settings = NvmeSettings::new(vec![address(portal)], subsystem, 1, nqn, id);
                (settings.header_digest, settings.data_digest) = (self.digests, self.digests);
                settings.queues = self.queues;
                settings.times = NvmeTimeouts::default();
                AnyPath::Nvme(Box::new(NvmePath::new(settings)))
            }
        };
        self.hosts[host].iter().enumerate().map(path).map(|path| FaultyPath::new(path, self.defect)).collect()
    }

    pub fn terms(&self) -> VolumeSettings {
        VolumeSettings {
            policy: self.policy,
            queue_timeout: QUEUE_TIMEOUT,
            open_timeout: Duration::from_secs(60),
            reconnect_delay_max: Duration::from_secs(4),
            ..VolumeSettings::default()
        }
    }

    pub fn open(
        &self,
        world: &mut World<Node<FaultyPath>>,
        host: usize,
    ) -> blockwire_multipath::VolumeHandle {
        let (paths, terms) = (self.paths(host), self.terms());
        let open = |node: &mut Node<FaultyPath>, cx: &mut Cx<'_>| node.client().open(cx, paths, terms);
        world.with_endpoint(self.host(host), open).expect("there is room")
    }
}

/// The same volume under another name: as a target gives that has forgotten what it had.
fn renamed(spec: VolumeSpec, geometry: Geometry, shards: u16, uuid: Uuid) -> VolumeSpec {
    let facts = Arc::new(VolumeFacts { uuid, ..(*spec.facts).clone() });
    let home = spec.home.is_some().then(|| {
        Box::new(
            VolumeOwner::restore((*facts).clone(), geometry, shards, false, None)
                .expect("nothing to restore"),
        )
    });
    VolumeSpec { facts, home, ..spec }
}
