//! What the tests serve: one volume, as a target's logical unit and as a subsystem's namespace, open to
//! everybody.

use std::sync::Arc;

use blockwire_shard::{
    ControllerLimits, DataTerms, Exports, HostAuth, HostRule, LunExport, LunMask, Make, NamespaceExport,
    NamespaceMask, NvmeExports, NvmePortal, NvmeProduct, NvmeService, Portal, Rule, SubsystemExport,
    TargetExport, VolumeSpec,
};
use endpoint::ListenerId;
use iscsi::initiator::Wanted;
use iscsi::login::AuthPolicy;
use iscsi::negotiate::Limits;
use iscsi::session::SessionLimits;
use iscsi::wire::{Cid, Isid, Sn, Tsih};
use volume::{Backend, DiskId, Facts, Geometry, Home, PortId, Shared, Uuid, VolumeId};

pub const TARGET: &str = "iqn.2026-11.io.blockwire:disk";
/// The UUID of volume 0.
pub const UUID: Uuid = Uuid([7; 16]);
pub const SUBSYSTEM: &str = "nqn.2026-11.io.blockwire:disk";

/// What the target offers and allows.
#[derive(Clone, Debug)]
pub struct Terms {
    pub negotiation: Limits,
    pub limits: SessionLimits,
}

impl Default for Terms {
    /// Small numbers, so that bounds are met soon.
    fn default() -> Self {
        let negotiation =
            Limits { first_burst: 16_384, max_burst: 65_536, mrdsl: 8_192, ..Limits::default() };
        Terms { negotiation, limits: SessionLimits { commands: 16, ..SessionLimits::default() } }
    }
}

pub fn exports(terms: &Terms) -> Arc<Exports> {
    let product =
        scsi_server::Product { vendor: "BLOCKWIR".into(), product: "Volume".into(), revision: "0".into() };
    let rule = Rule {
        initiators: vec![],
        sources: vec![],
        locals: vec![],
        auth: AuthPolicy::None,
        luns: LunMask::All { read_only: false },
    };
    let target = TargetExport {
        name: TARGET.into(),
        alias: Some("disk".into()),
        groups: vec![],
        listeners: None,
        is_away: false,
        luns: vec![LunExport { lun: 0, volume: VolumeId(0), read_only: false }],
        rules: vec![rule],
        product: Arc::new(product),
        explicit_alua: false,
        negotiation: terms.negotiation.clone(),
        limits: terms.limits.clone(),
        redirect: None,
        sent_on: vec![],
    };
    let portal = Portal {
        listener: ListenerId(0),
        address: "127.0.0.1:3260".parse().unwrap(),
        group: 1,
        port: PortId(1),
    };
    Arc::new(Exports {
        placement: Vec::new(),
        cores: Arc::from([0, 1, 2, 3]),
        portals: vec![portal],
        targets: vec![target],
        discovery_auth: AuthPolicy::None,
        nvme: nvme_exports(),
        admission: Default::default(),
    })
}

/// Listener 1 is for subsystems, listener 2 for discovery alone.
fn nvme_exports() -> NvmeExports {
    let portal = |listener, port, service| NvmePortal {
        listener: ListenerId(listener),
        address: format!("127.0.0.1:{port}").parse().unwrap(),
        service,
        port: PortId(listener + 1),
        header_digest: true,
        data_digest: true,
        data: DataTerms::default(),
    };
    let rule = HostRule {
        hosts: vec![],
        id: None,
        sources: vec![],
        auth: HostAuth::None,
        namespaces: NamespaceMask::All { read_only: false },
    };
    let product = NvmeProduct { serial: "7".into(), model: "Volume".into(), firmware: "0".into() };
    let subsystem = SubsystemExport {
        nqn: SUBSYSTEM.into(),
        product: Arc::new(product),
        ports: vec![],
        is_away: false,
        namespaces: vec![NamespaceExport { nsid: 1, volume: VolumeId(0), read_only: false, ana_group: 1 }],
        rules: vec![rule],
        limits: ControllerLimits { controllers: 8, queues: 4, entries: 32, ..ControllerLimits::default() },
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
#[allow(dead_code, reason = "who serves several numbers them")]
pub fn volume<B: Backend + 'static>(
    shards: u16,
    geometry: Geometry,
    disks: &[DiskId],
    saved: Option<&[u8]>,
    make: impl Fn(u16) -> B + Clone + Send + 'static,
) -> Vec<VolumeSpec> {
    numbered(VolumeId(0), shards, geometry, disks, saved, make)
}

/// The same, for one of several volumes.
pub fn numbered<B: Backend + 'static>(
    id: VolumeId,
    shards: u16,
    geometry: Geometry,
    disks: &[DiskId],
    saved: Option<&[u8]>,
    make: impl Fn(u16) -> B + Clone + Send + 'static,
) -> Vec<VolumeSpec> {
    let facts = Arc::new(Facts {
        id,
        name: format!("disk{}", id.0).into(),
        uuid: Uuid(UUID.0.map(|byte| byte + id.0 as u8)),
        oui: None,
        removable: false,
        rpm: 0,
        task_aborted_status: true,
        vendor: "BLOCKWIR".into(),
        product: "Volume".into(),
        revision: "0".into(),
    });
    let shared = Shared::new(shards);
    let home = Home::restore((*facts).clone(), geometry, shards, false, saved).unwrap();
    let view = home.view().clone();
    let mut home = Some(Box::new(home));
    let spec = |shard| {
        let make = make.clone();
        VolumeSpec {
            facts: facts.clone(),
            shared: shared.clone(),
            view: view.clone(),
            make: Make::Backend(Box::new(move || Box::new(make(shard)))),
            disks: disks.to_vec(),
            home: if blockwire_shard::home_of(id, shards).0 == shard { home.take() } else { None },
        }
    };
    (0..shards).map(spec).collect()
}

/// A login of initiator port `isid`, to its first connection.
pub fn wanted(isid: u16) -> Wanted {
    Wanted {
        initiator_name: "iqn.2026-11.test:host".into(),
        alias: None,
        target_name: Some(TARGET.into()),
        isid: Isid::random([1, 2, 3], isid),
        tsih: Tsih::NONE,
        cid: Cid::new(0),
        cmd_sn: Sn::new(u32::MAX - 3),
        limits: Limits { mrdsl: 8_192, ..Limits::default() },
        credentials: None,
    }
}
