//! The backing of a volume, made of an open [`Store`], and what each shard is told of it.

use std::{io, sync::Arc};

use backends::{FileBackend, FileDisk, LegBackend, NullBackend, Stripe};
use reactor::DiskSource;
use shard::{BackendFactory, MakeBackend, VolumeSpec};
use volume::{
    AllocationGauge, DiskId, Geometry, PortRenumbering, RamBackend, RamDisk, RunningVolume, SharedGateState,
    Uuid, View, VolumeFacts, VolumeId, VolumeOwner,
};

use super::{
    allocation_watcher::AllocationWatcher, exports::product_revision, sync_failures::SyncFailureNotes,
};
use crate::{
    EngineError,
    remote::ProbedRemote,
    state::{RESERVATIONS_SUFFIX, StateDir},
    store::{Store, map_ram},
};
use config::{plan::InquiryStrings, spec::VolumeSource};

/// Where the bytes are, as all shards see it.
#[derive(Clone, Debug)]
pub enum Medium {
    /// Memory.
    Ram(Arc<RamDisk>),
    /// A file, a device, an image of Ceph or an export of an NBD server that the shards know by this number.
    File(Arc<FileDisk>, DiskId),
    /// Nowhere: so many blocks of so many bytes.
    Null {
        /// Blocks.
        blocks: u64,
        /// Bytes of each.
        logical: u32,
    },
    /// On another machine, to which each shard connects.
    Remote(Arc<ProbedRemote>),
    /// On several of these, in turn.
    Stripe(Arc<StripeLayout>),
}

/// What a stripe is made of.
#[derive(Debug)]
pub struct StripeLayout {
    legs: Vec<Medium>,
    /// Bytes of a chunk.
    chunk: u32,
    /// Bytes of the whole at most.
    limit: Option<u64>,
    /// What the blocks were like when it was opened.
    geometry: Geometry,
}

impl Medium {
    /// The medium of an open volume. `disks` are the numbers of its files: of its own, or of each leg's. What fails of
    /// them is noted under the volume's number.
    pub fn of(
        store: &Store,
        disks: &[Option<DiskId>],
        shards: u16,
        noted: (&SyncFailureNotes, VolumeId),
    ) -> Result<Self, EngineError> {
        match &store.volume.spec.source {
            VolumeSource::Stripe(striped) => {
                let legs = store.legs.iter().zip(disks);
                let legs = legs.map(|(leg, disk)| Medium::of_single(leg, *disk, shards, noted));
                let legs = legs.collect::<Result<Vec<_>, _>>()?;
                let shapes: Vec<Geometry> = legs.iter().map(Medium::geometry).collect();
                let (chunk, limit) = (striped.chunk, store.volume.spec.size);
                let geometry = backends::stripe::combined_geometry(&shapes, chunk, limit).map_err(|why| {
                    EngineError::Unsupported(format!("volume \"{}\": {why}", store.volume.name))
                })?;
                Ok(Medium::Stripe(Arc::new(StripeLayout { legs, chunk, limit, geometry })))
            }
            _ => Medium::of_single(store, disks.first().copied().flatten(), shards, noted),
        }
    }

    /// The medium of what is no stripe.
    fn of_single(
        store: &Store,
        disk: Option<DiskId>,
        shards: u16,
        (notes, id): (&SyncFailureNotes, VolumeId),
    ) -> Result<Self, EngineError> {
        let (spec, blocks) = (&store.volume.spec, store.bytes / u64::from(store.volume.spec.block));
        match (&spec.source, disk) {
            (VolumeSource::Null, _) => Ok(Medium::Null { blocks, logical: spec.block }),
            (VolumeSource::Ram, _) => {
                let disk = map_ram(store).map_err(|why| {
                    EngineError::Unsupported(format!("volume \"{}\": {why}", store.volume.name))
                })?;
                Ok(Medium::Ram(Arc::new(disk)))
            }
            (
                VolumeSource::File(_) | VolumeSource::Device(_) | VolumeSource::Rbd(_) | VolumeSource::Nbd(_),
                Some(disk),
            ) => {
                let made = FileDisk::new(disk, &store.file_facts(), shards);
                let unfit =
                    |why| EngineError::Unsupported(format!("volume \"{}\": {why}", store.volume.name));
                let made = made.map_err(unfit)?.with_failure_store(notes.failure_store(id, store));
                let was_noted = notes.has_failure(store);
                if was_noted || store.in_doubt {
                    made.note_external_sync_failure();
                }
                if was_noted {
                    made.sync_failures().note_recorded(made.sync_failures().failure_count());
                }
                Ok(Medium::File(Arc::new(made), disk))
            }
            (VolumeSource::Remote(_), _) => match &store.remote {
                Some(remote) => Ok(Medium::Remote(Arc::new(remote.clone()))),
                None => Err(EngineError::Stopped),
            },
            (
                VolumeSource::File(_) | VolumeSource::Device(_) | VolumeSource::Rbd(_) | VolumeSource::Nbd(_),
                None,
            ) => Err(EngineError::Stopped),
            (VolumeSource::Stripe(_), _) => {
                Err(EngineError::Unsupported("a stripe cannot be a leg of another".to_owned()))
            }
        }
    }

    /// What its blocks are like now; those of another machine, when it was looked at.
    pub fn geometry(&self) -> Geometry {
        match self {
            Medium::Ram(disk) => disk.geometry(),
            Medium::File(disk, _) => disk.geometry(),
            Medium::Null { blocks, logical } => {
                volume::Backend::geometry(&NullBackend::new(*blocks, *logical))
            }
            Medium::Remote(remote) => remote.geometry,
            Medium::Stripe(striping) => striping.geometry,
        }
    }

    /// The numbers of its files.
    pub fn disks(&self) -> Vec<DiskId> {
        match self {
            Medium::Stripe(striping) => striping.legs.iter().filter_map(Medium::own_disk).collect(),
            _ => self.own_disk().into_iter().collect(),
        }
    }

    /// The number of its own file.
    fn own_disk(&self) -> Option<DiskId> {
        match self {
            Medium::File(_, disk) => Some(*disk),
            Medium::Ram(_) | Medium::Null { .. } | Medium::Remote(_) | Medium::Stripe(_) => None,
        }
    }

    /// Its files, or those of its legs.
    fn file_disks(&self) -> Vec<&Arc<FileDisk>> {
        match self {
            Medium::File(disk, _) => vec![disk],
            Medium::Stripe(striping) => striping.legs.iter().flat_map(Medium::file_disks).collect(),
            Medium::Ram(_) | Medium::Null { .. } | Medium::Remote(_) => Vec::new(),
        }
    }

    /// A sync of its own file has failed that no shard asked for.
    pub fn note_sync_failure(&self) {
        match self {
            Medium::File(disk, _) => disk.note_external_sync_failure(),
            Medium::Ram(_) | Medium::Null { .. } | Medium::Remote(_) | Medium::Stripe(_) => {}
        }
    }

    /// Whether a sync of one of its files has failed, and nobody has acknowledged it.
    pub fn has_sync_failure(&self) -> bool {
        self.file_disks().iter().any(|disk| disk.sync_failures().has_unacknowledged())
    }

    /// How often syncs of each of its files have failed.
    pub fn sync_failure_counts(&self) -> Vec<u64> {
        self.file_disks().iter().map(|disk| disk.sync_failures().failure_count()).collect()
    }

    /// The operator acknowledges so many failures of each of its files.
    pub fn acknowledge_sync_failures(&self, failures: &[u64]) {
        self.file_disks()
            .iter()
            .zip(failures)
            .for_each(|(disk, failures)| disk.acknowledge_sync_failures(*failures));
    }

    /// The backing has this many bytes from now on.
    pub fn resize(&self, bytes: u64) -> Result<Geometry, EngineError> {
        match self {
            Medium::Ram(disk) => {
                if !disk.resize(bytes / u64::from(disk.geometry().logical)) {
                    let why =
                        "a RAM volume grows to twice its size at start, or by 64 GiB, and to 16 TiB at most"
                            .to_owned();
                    return Err(EngineError::Unsupported(why));
                }
                Ok(disk.geometry())
            }
            Medium::File(disk, _) => Ok(disk.note_resize(bytes)),
            Medium::Null { .. } => Err(EngineError::Unsupported("a null volume keeps its size".to_owned())),
            Medium::Remote(_) => {
                Err(EngineError::Unsupported("resize the volume on the machine that owns it".to_owned()))
            }
            Medium::Stripe(_) => {
                Err(EngineError::Unsupported("a stripe has the size of its legs".to_owned()))
            }
        }
    }

    pub(super) fn backend_factory(&self, shard: u16) -> BackendFactory {
        let backend: MakeBackend = match self {
            Medium::Ram(disk) => {
                let disk = disk.clone();
                Box::new(move || Box::new(RamBackend::new(disk)))
            }
            Medium::File(disk, _) => {
                let disk = disk.clone();
                Box::new(move || Box::new(FileBackend::new(disk, shard)))
            }
            Medium::Null { blocks, logical } => {
                let (blocks, logical) = (*blocks, *logical);
                Box::new(move || Box::new(NullBackend::new(blocks, logical)))
            }
            Medium::Remote(remote) => {
                let remote = remote.clone();
                return BackendFactory::Network(Box::new(move |cx| {
                    Box::new(remote.volume_for_shard(cx, shard))
                }));
            }
            Medium::Stripe(striping) => {
                let striping = striping.clone();
                return BackendFactory::Network(Box::new(move |cx| {
                    let legs = striping.legs.iter().map(|leg| {
                        let volume = match leg.backend_factory(shard) {
                            BackendFactory::Local(make) => LegBackend::Local(make()),
                            BackendFactory::Network(make) => LegBackend::Network(make(cx)),
                        };
                        (volume, leg.own_disk())
                    });
                    let logical = Some(striping.geometry.logical);
                    Box::new(Stripe::new(legs.collect(), striping.chunk, striping.limit, logical))
                }));
            }
        };
        BackendFactory::Local(backend)
    }

    /// Where it can be read how much is allocated.
    fn allocation_gauge(&self, store: &Store, usage: &AllocationWatcher) -> Option<AllocationGauge> {
        match self {
            Medium::Ram(disk) => Some(disk.allocation_gauge()),
            Medium::File(..) => match &store.volume.spec.source {
                VolumeSource::File(path) => usage.watch(path),
                VolumeSource::Device(_) | VolumeSource::Ram | VolumeSource::Null => None,
                VolumeSource::Remote(_) | VolumeSource::Stripe(_) => None,
                VolumeSource::Rbd(_) | VolumeSource::Nbd(_) => None,
            },
            Medium::Null { .. } | Medium::Remote(_) | Medium::Stripe(_) => None,
        }
    }

    /// What each shard is told, in shard order; the one of the volume's home has its authority. The
    /// reservations that were saved come back; if they are damaged, the volume does not open. `renumbering` is asked
    /// for if there are any.
    pub fn shard_specs(
        &self,
        store: &Store,
        id: VolumeId,
        shards: u16,
        oui: Option<[u8; 3]>,
        (state, renumbering): (&StateDir, &dyn Fn() -> PortRenumbering),
        (usage, running): (&AllocationWatcher, Option<&RunningVolume>),
    ) -> Result<Vec<VolumeSpec>, EngineError> {
        let name = &store.volume.name;
        let refuse = |why: String| EngineError::Record(format!("volume \"{name}\": {why}"));
        let uuid = Uuid(*store.uuid.as_bytes());
        let inquiry = InquiryStrings::default();
        let facts = VolumeFacts {
            id,
            name: name.as_str().into(),
            uuid,
            oui,
            vendor: inquiry.vendor.into(),
            product: inquiry.product.into(),
            revision: product_revision().into(),
            removable: store.volume.spec.removable,
            rpm: 0,
            task_aborted_status: store.volume.spec.task_aborted_status,
        };
        if store.slot.is_some() {
            return self.group_specs(&Arc::new(facts), store, shards);
        }
        let persist = store.volume.spec.persist;
        let shared = SharedGateState::new(shards);
        if let Some(running) = running {
            let (facts_of, geometry) = (facts.clone(), self.geometry());
            let home = VolumeOwner::restore_running(facts_of, geometry, shards, persist, running, &shared);
            let home = home.map_err(|why| refuse(why.to_string()))?;
            return Ok(self.specs_around(store, facts, home, (shared, shards), usage));
        }
        let record = record_name(store);
        let saved = state.read_record(&record).map_err(|why| refuse(why.to_string()))?;
        let saved = saved.map(|saved| volume::renumber_ports(&saved, uuid, &renumbering())).transpose();
        let restored = saved.and_then(|saved| {
            VolumeOwner::restore(facts.clone(), self.geometry(), shards, persist, saved.as_deref())
        });
        let home = restored.map_err(|why| {
            refuse(format!(
                "{record} in the state directory is damaged ({why}); restore it, or move it away if its \
                 reservations and bad blocks may be lost"
            ))
        })?;
        // Whether hosts were to be let out of a sanitize that failed was not recorded: only another one heals it.
        shared.restrict_sanitize_exit(home.view().owes_sanitize);
        Ok(self.specs_around(store, facts, home, (shared, shards), usage))
    }

    /// What each shard is told of a volume whose home is made.
    fn specs_around(
        &self,
        store: &Store,
        facts: VolumeFacts,
        mut home: VolumeOwner,
        (shared, shards): (SharedGateState, u16),
        usage: &AllocationWatcher,
    ) -> Vec<VolumeSpec> {
        let (id, facts, view) = (facts.id, Arc::new(facts), home.view().clone());
        shared.set_sanitize_rate(store.volume.spec.sanitize_rate.unwrap_or(0));
        if let Some(limit) = store.queue_timeout() {
            shared.set_queue_timeout(limit);
        }
        if let Some(gauge) = self.allocation_gauge(store, usage) {
            shared.set_allocation_gauge(gauge);
            if let Some(percent) = store.volume.spec.thin_threshold {
                shared.set_thin_threshold_percent(percent.into());
                home.watch_thin_threshold(shared.clone());
            }
        }
        let at = shard::home_of(id, shards);
        let mut home = Some(Box::new(home));
        let spec = |shard: u16| VolumeSpec {
            facts: facts.clone(),
            shared: shared.clone(),
            view: view.clone(),
            make: self.backend_factory(shard),
            disks: self.disks(),
            home: if shard == at.0 { home.take() } else { None },
            in_group: false,
        };
        (0..shards).map(spec).collect()
    }

    /// The same of a volume that a group of gateways serves: its authority is made when this one owns it.
    fn group_specs(
        &self,
        facts: &Arc<VolumeFacts>,
        store: &Store,
        shards: u16,
    ) -> Result<Vec<VolumeSpec>, EngineError> {
        let shared = SharedGateState::new(shards);
        shared.set_sanitize_rate(store.volume.spec.sanitize_rate.unwrap_or(0));
        if let Some(limit) = store.queue_timeout() {
            shared.set_queue_timeout(limit);
        }
        let spec = |shard: u16| VolumeSpec {
            facts: facts.clone(),
            shared: shared.clone(),
            view: View::without_reservations(self.geometry()),
            make: self.backend_factory(shard),
            disks: self.disks(),
            home: None,
            in_group: true,
        };
        Ok((0..shards).map(spec).collect())
    }
}

/// The name of a volume's record: reservations, bad blocks, path states and protection.
pub fn record_name(store: &Store) -> String {
    format!("{}.{RESERVATIONS_SUFFIX}", Uuid(*store.uuid.as_bytes()))
}

/// A second descriptor of each of the volume's files, for the shards; the first keeps the lock. Or its images. As many
/// as the volume has parts.
pub fn disk_sources(store: &Store) -> Vec<Option<io::Result<DiskSource>>> {
    let of = |part: &Store| {
        if let Some(image) = &part.image {
            return Some(Ok(DiskSource::Library(Arc::new(image.clone()))));
        }
        if let Some(slot) = &part.slot {
            return Some(Ok(DiskSource::Library(Arc::new(slot.clone()))));
        }
        if let Some(export) = &part.export {
            return Some(Ok(DiskSource::Library(Arc::new(export.clone()))));
        }
        Some(part.file.as_ref()?.try_clone().map(DiskSource::from))
    };
    store.legs_or_self().iter().map(of).collect()
}
