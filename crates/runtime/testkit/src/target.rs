//! The volume that tests serve: a target's logical unit and a subsystem's namespace, open to all hosts.

use std::sync::Arc;
use std::time::Duration;

use endpoint::{ListenerId, ShardId};
use iscsi::initiator::LoginConfig;
use iscsi::negotiate::NegotiationLimits;
use iscsi::session::SessionLimits;
use iscsi::wire::{Cid, Isid, Sn, Tsih};
use shard::{
    ControlRequest, ControllerLimits, Exports, Message, NvmeExports, NvmePortal, NvmeService, Portal, Shard,
    SubsystemExport, TargetExport, VolumeSpec,
};
use sim::World;
use volume::{Backend, DiskId, Geometry, PortId, Uuid, VolumeFacts, VolumeId, VolumeOwner};

pub const TARGET_NAME: &str = "iqn.2026-11.io.blockwire:disk";
/// The UUID of volume 0.
pub const VOLUME_UUID: Uuid = Uuid([7; 16]);
pub const SUBSYSTEM_NQN: &str = "nqn.2026-11.io.blockwire:disk";

/// What the target offers and allows.
#[derive(Clone, Debug)]
pub struct TargetLimits {
    pub negotiation: NegotiationLimits,
    pub limits: SessionLimits,
}

impl Default for TargetLimits {
    /// Small numbers, so that bounds are met soon.
    fn default() -> Self {
        let negotiation = NegotiationLimits {
            first_burst: 16_384,
            max_burst: 65_536,
            mrdsl: 8_192,
            ..NegotiationLimits::default()
        };
        TargetLimits { negotiation, limits: SessionLimits { commands: 16, ..SessionLimits::default() } }
    }
}

pub fn build_exports(terms: &TargetLimits) -> Arc<Exports> {
    let target = TargetExport {
        alias: Some("disk".into()),
        negotiation: terms.negotiation.clone(),
        limits: terms.limits.clone(),
        ..TargetExport::open_to_all(TARGET_NAME, &[VolumeId(0)])
    };
    let portal = Portal {
        listener: ListenerId(0),
        address: "127.0.0.1:3260".parse().unwrap(),
        group: 1,
        port: PortId(1),
    };
    Arc::new(Exports {
        cores: Arc::from([0, 1, 2, 3]),
        portals: vec![portal],
        targets: vec![target],
        nvme: nvme_exports(),
        ..Exports::default()
    })
}

/// Listener 1 is for subsystems, listener 2 for discovery alone.
fn nvme_exports() -> NvmeExports {
    let portal = |listener: u16, port, service| NvmePortal {
        service,
        ..NvmePortal::new(ListenerId(listener), ([127, 0, 0, 1], port).into(), PortId(listener + 1))
    };
    let subsystem = SubsystemExport {
        limits: ControllerLimits { controllers: 8, queues: 4, entries: 32, ..ControllerLimits::default() },
        ..SubsystemExport::open_to_all(SUBSYSTEM_NQN, "7", &[VolumeId(0)])
    };
    NvmeExports {
        portals: vec![portal(1, 4420, NvmeService::Subsystems), portal(2, 8009, NvmeService::Discovery)],
        subsystems: vec![subsystem],
        referrals: vec![],
        generation: 1,
        ..NvmeExports::default()
    }
}

/// The volume for each shard; the first is its home.
pub fn volume_specs<B: Backend + 'static>(
    shards: u16,
    geometry: Geometry,
    disks: &[DiskId],
    saved: Option<&[u8]>,
    make: impl Fn(u16) -> B + Clone + Send + 'static,
) -> Vec<VolumeSpec> {
    numbered_volume_specs(VolumeId(0), shards, geometry, disks, saved, make)
}

/// The same, for one of several volumes.
pub fn numbered_volume_specs<B: Backend + 'static>(
    id: VolumeId,
    shards: u16,
    geometry: Geometry,
    disks: &[DiskId],
    saved: Option<&[u8]>,
    make: impl Fn(u16) -> B + Clone + Send + 'static,
) -> Vec<VolumeSpec> {
    let uuid = Uuid(VOLUME_UUID.0.map(|byte| byte + id.0 as u8));
    let facts = VolumeFacts::new(id, &format!("disk{}", id.0), uuid);
    let home = VolumeOwner::restore(facts, geometry, shards, false, saved).unwrap();
    let mut specs = VolumeSpec::for_shards(home, shards, make);
    specs.iter_mut().for_each(|spec| spec.disks = disks.to_vec());
    specs
}

/// Each shard of a world serves what is its own of a volume.
pub fn serve_volume(world: &mut World<Shard>, specs: Vec<VolumeSpec>) {
    let shards = specs.len();
    for (shard, spec) in (0..).zip(specs) {
        world.send_message(ShardId(shard), Message::Control(0, ControlRequest::AddVolume(Box::new(spec))));
    }
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.take_control_messages().len(), shards);
}

/// A login of initiator port `isid`, to its first connection.
pub fn login_config(isid: u16) -> LoginConfig {
    LoginConfig {
        initiator_name: "iqn.2026-11.test:host".into(),
        alias: None,
        target_name: Some(TARGET_NAME.into()),
        isid: Isid::random([1, 2, 3], isid),
        tsih: Tsih::NONE,
        cid: Cid::new(0),
        cmd_sn: Sn::new(u32::MAX - 3),
        limits: NegotiationLimits { mrdsl: 8_192, ..NegotiationLimits::default() },
        credentials: None,
    }
}
