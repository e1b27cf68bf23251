//! The engine: the shards of the target, run by the reactor. [`super::start_shards()`] starts them.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};

use endpoint::ShardId;
use reactor::ReactorHandle;
use shard::{ControlReport, ControlRequest, Message, NvmeMessage, ShardListing, VolumeSpec};
use volume::{DiskId, PortId, Refusal, VolumeId, VolumeRequest};

use super::{
    allocation_watcher::AllocationWatcher,
    catalog::Catalog,
    catalog_volume::CatalogVolume,
    exports::FixedSettings,
    inbox::{self, PendingRequests, RecordWriter},
    latency,
    log_lines::DownPaths,
    medium::{Medium, disk_sources, record_name},
    nvme_queues,
    prepared::PreparedPlan,
    refusal,
    sync_failures::SyncFailureNotes,
};
use crate::{
    Engine, EngineError, EngineObservation, StopMode,
    state::{StateDir, blocked_hosts::BlockedNames},
    store::Store,
};
use config::{
    name::VolumeName,
    plan::{ExportPlan, Plan},
};
use control::report::{
    ConnectionReport, LatencyReport, ListenerReport, SessionReport, ShardReport, VolumeStateReport,
    plan::DisturbanceReport,
};

/// How long a shard may take to answer a question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a volume may take to change: twice its fence's deadline, and some.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long is waited for a volume whose operations did not end in time before.
const REMOVAL_POLL_TIMEOUT: Duration = Duration::from_millis(200);
/// How long initiators may take to log out when asked to.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the flush of all volumes may take after that.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(40);
/// How long a socket may take to deliver the last bytes.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long, when all is ended at once, what is out on a disk may take.
const IMMEDIATE_STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The running shards.
pub struct Shards {
    pub(super) running: Arc<ReactorHandle<Message>>,
    pub(super) requests: Arc<PendingRequests>,
    pub(super) state: Arc<StateDir>,
    /// Who keeps what is to outlive the daemon of volumes.
    pub(super) records: RecordWriter,
    /// Who notes which syncs have failed.
    pub(super) notes: SyncFailureNotes,
    /// Who looks how much of files is allocated.
    pub(super) usage: AllocationWatcher,
    pub(super) frame: RwLock<Arc<FixedSettings>>,
    pub(super) cores: Vec<usize>,
    pub(super) oui: Option<[u8; 3]>,
    pub(super) catalog: Mutex<Catalog>,
    pub(super) unserved: Vec<(VolumeName, String)>,
    /// Which paths to volumes of other machines are down, as the log was told.
    pub(super) down_paths: DownPaths,
}

pub(super) fn ids_exhausted() -> EngineError {
    EngineError::Unsupported("the daemon has used up its volume numbers: restart it".to_owned())
}

impl Shards {
    pub(super) fn lock_catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings in force.
    pub(super) fn frame(&self) -> Arc<FixedSettings> {
        self.frame.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Other settings are in force from now on; shards hear of it by [`Shards::publish_exports`]. Gives those of before.
    pub(super) fn replace_frame(&self, settings: Arc<FixedSettings>) -> Arc<FixedSettings> {
        std::mem::replace(&mut *self.frame.write().unwrap_or_else(PoisonError::into_inner), settings)
    }

    fn shard_ids(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.running.shard_count()).map(ShardId)
    }

    /// Asks one shard.
    fn request(
        &self,
        shard: ShardId,
        control: ControlRequest,
        patience: Duration,
    ) -> Result<ControlReport, EngineError> {
        let expected = self.requests.register()?;
        if !self.running.post(shard, Message::Control(expected.number, control)) {
            return Err(EngineError::Stopped);
        }
        expected.wait_for_report(patience)
    }

    /// Asks every shard, then waits for all answers, in shard order.
    fn request_all(
        &self,
        control: impl Fn() -> ControlRequest,
        patience: Duration,
    ) -> Result<Vec<ControlReport>, EngineError> {
        let mut expected = Vec::new();
        for shard in self.shard_ids() {
            let one = self.requests.register()?;
            if !self.running.post(shard, Message::Control(one.number, control())) {
                return Err(EngineError::Stopped);
            }
            expected.push(one);
        }
        let until = Instant::now() + patience;
        let wait =
            |one: inbox::ExpectedReply| one.wait_for_report(until.saturating_duration_since(Instant::now()));
        expected.into_iter().map(wait).collect()
    }

    pub(super) fn request_listings(&self) -> Result<Vec<ShardListing>, EngineError> {
        let reports = self.request_all(|| ControlRequest::List, ANSWER_TIMEOUT)?;
        let listing = |report| match report {
            ControlReport::Listing(listing) => Some(*listing),
            ControlReport::Done | ControlReport::Refused(_) | ControlReport::NoVolume => None,
        };
        Ok(reports.into_iter().filter_map(listing).collect())
    }

    /// Tells every shard who may reach what from now on.
    pub(super) fn publish_exports(&self, catalog: &mut Catalog) -> Result<(), EngineError> {
        let frame = self.frame();
        catalog.number_ports(&frame, &self.state)?;
        let exports = catalog.build_exports(&frame);
        self.request_all(|| ControlRequest::Exports(exports.clone()), ANSWER_TIMEOUT).map(drop)
    }

    fn volume_id(&self, name: &str) -> Result<VolumeId, EngineError> {
        // Who asks has seen it a moment ago: then it is being removed.
        Ok(self.lock_catalog().find(name).ok_or(EngineError::Lingers)?.0)
    }

    /// Asks a volume's home for a change.
    fn request_change(
        &self,
        (name, volume): (&str, VolumeId),
        ask: VolumeRequest,
    ) -> Result<(), EngineError> {
        let home = shard::home_of(volume, self.running.shard_count());
        match self.request(home, ControlRequest::VolumeRequest(volume, ask), CHANGE_TIMEOUT)? {
            ControlReport::Done => Ok(()),
            ControlReport::Refused(refusal) => {
                Err(EngineError::Unsupported(refusal::refusal_text(name, &refusal)))
            }
            ControlReport::NoVolume => Err(EngineError::Lingers),
            ControlReport::Listing(_) => Err(EngineError::Stopped),
        }
    }

    /// Tells every shard of a volume; the home first: the others may ask it as soon as they know.
    fn announce_volume(&self, id: VolumeId, mut specs: Vec<VolumeSpec>) -> Result<(), EngineError> {
        let shards = self.running.shard_count();
        let home = shard::home_of(id, shards);
        specs.rotate_left(usize::from(home.0));
        for (turn, spec) in specs.into_iter().enumerate() {
            let shard = ShardId((home.0 + turn as u16) % shards);
            match self.request(shard, ControlRequest::AddVolume(Box::new(spec)), ANSWER_TIMEOUT)? {
                ControlReport::Done => {}
                ControlReport::Refused(_) | ControlReport::NoVolume | ControlReport::Listing(_) => {
                    let why = format!("shard {} still has another volume in this one's place", shard.0);
                    return Err(EngineError::Start(why));
                }
            }
        }
        Ok(())
    }

    /// Takes a volume that nothing leads to any more from every shard. While one of them has something of it out, it
    /// stays among those that leave: its place is nobody's, and its files stay open. Nothing is locked meanwhile.
    fn remove_from_shards(&self, id: VolumeId, patience: Duration) -> Result<(), EngineError> {
        if !self.lock_catalog().leaving.contains_key(&id) {
            return Ok(());
        }
        match self.request_all(|| ControlRequest::DropVolume(id), patience) {
            Ok(_) => {}
            Err(EngineError::TimedOut) => return Err(EngineError::Lingers),
            Err(why) => return Err(why),
        }
        if let Some(entry) = self.lock_catalog().let_go(id) {
            entry.medium.disks().into_iter().for_each(|disk| self.running.remove_disk(disk));
        }
        Ok(())
    }

    /// Looks whether volumes have gone whose operations were out when they were deleted.
    fn collect_removed(&self) {
        let leaving: Vec<VolumeId> = self.lock_catalog().leaving.keys().copied().collect();
        for id in leaving {
            let _ = self.remove_from_shards(id, REMOVAL_POLL_TIMEOUT);
        }
    }

    /// Gives the volume's files to the shards: their numbers, one per part of the volume.
    fn add_disks(&self, store: &Store) -> Result<Vec<Option<DiskId>>, EngineError> {
        let mut disks = Vec::new();
        for file in disk_sources(store) {
            let added = file.map(|file| file.and_then(|file| self.running.add_disk(file))).transpose();
            match added {
                Ok(disk) => disks.push(disk),
                Err(why) => {
                    disks.into_iter().flatten().for_each(|disk| self.running.remove_disk(disk));
                    return Err(EngineError::Start(why.to_string()));
                }
            }
        }
        Ok(disks)
    }

    /// Makes what the shards are told of a new volume. A refusal leaves nothing with them.
    fn make_volume(
        &self,
        store: &Store,
        id: VolumeId,
        catalog: &Catalog,
    ) -> Result<(CatalogVolume, Vec<VolumeSpec>), EngineError> {
        let shards = self.running.shard_count();
        let disks = self.add_disks(store)?;
        let make = || {
            let medium = Medium::of(store, &disks, shards, (&self.notes, id))?;
            let renumbering = || catalog.port_renumbering(&store.volume.name, &self.frame());
            let records = (&*self.state, &renumbering as &dyn Fn() -> _);
            let specs = medium.shard_specs(store, id, shards, self.oui, records, &self.usage)?;
            let shared = specs.first().map(|spec| spec.shared.clone()).ok_or(EngineError::Stopped)?;
            Ok((CatalogVolume::of(store, medium, shared), specs))
        };
        make().inspect_err(|_| disks.iter().flatten().for_each(|disk| self.running.remove_disk(*disk)))
    }

    /// Takes back a volume that could not be added.
    fn revert_add(&self, mut catalog: MutexGuard<'_, Catalog>, id: VolumeId, store: &Store) {
        let told = self.publish_exports(&mut catalog);
        drop(catalog);
        if let Err(why) = told.and_then(|()| self.remove_from_shards(id, ANSWER_TIMEOUT)) {
            tracing::error!(%why, volume = %store.volume.name, "cannot remove a volume that failed");
        }
    }

    /// Whether everything that was written is on stable storage, or another thread has lost patience.
    fn stop_cleanly(&self) -> bool {
        self.running.stop_accepting();
        let flushed = match self
            .request_all(|| ControlRequest::Stop { grace: LOGOUT_TIMEOUT }, LOGOUT_TIMEOUT + FLUSH_TIMEOUT)
        {
            Ok(reports) => match reports.iter().find(|report| !matches!(report, ControlReport::Done)) {
                None => Ok(()),
                Some(_) => Err("see the messages of each volume".to_owned()),
            },
            Err(EngineError::Stopped) => Ok(()),
            Err(why) => Err(why.to_string()),
        };
        if let Err(why) = &flushed {
            tracing::error!(%why, "not everything was flushed");
        }
        self.running.stop(LINGER_TIMEOUT);
        flushed.is_ok()
    }
}

impl Engine for Shards {
    fn unserved_volumes(&self) -> Vec<(VolumeName, String)> {
        self.unserved.clone()
    }

    fn listeners(&self) -> Vec<ListenerReport> {
        let report = |portal: &config::plan::Portal| ListenerReport {
            protocol: portal.protocol.as_str().to_owned(),
            address: portal.address,
            tag: portal.tag,
        };
        self.frame().portals().iter().map(report).collect()
    }

    fn sessions(&self) -> Result<Vec<SessionReport>, EngineError> {
        Ok(self.session_reports(&self.request_listings()?, false))
    }

    fn connections(&self) -> Result<Vec<ConnectionReport>, EngineError> {
        Ok(self.connection_reports(&self.request_listings()?))
    }

    fn observe(&self) -> Result<EngineObservation, EngineError> {
        self.observation()
    }

    fn volume_latency(&self, name: &str) -> Result<Vec<LatencyReport>, EngineError> {
        let id = self.volume_id(name)?;
        let listings = self.request_listings()?;
        let entries = listings.iter().flat_map(|listing| &listing.volumes).filter(|one| one.id == id);
        Ok(latency::latency_reports(entries.map(|entry| &entry.latency)))
    }

    fn connection_latency(&self, id: u64) -> Result<Vec<LatencyReport>, EngineError> {
        let listings = self.request_listings()?;
        let queues = listings.iter().flat_map(|listing| &listing.queues);
        let queues =
            queues.filter(|queue| nvme_queues::connection_id(queue) == id).map(|queue| &queue.latency);
        let sessions = listings.iter().flat_map(|listing| &listing.sessions);
        let sessions = sessions.filter(|session| u64::from(session.tsih) == id >> 16);
        Ok(latency::latency_reports(queues.chain(sessions.map(|session| &session.latency))))
    }

    fn volume_states(&self) -> Result<Vec<VolumeStateReport>, EngineError> {
        Ok(self.volume_state_reports(&self.request_listings()?))
    }

    fn set_path_access(&self, name: &str, ports: &[u16], to: volume::PathAccess) -> Result<(), EngineError> {
        let ports = ports.iter().map(|port| PortId(*port)).collect();
        self.request_change((name, self.volume_id(name)?), VolumeRequest::SetAccess { ports, to, by: None })
    }

    fn set_write_protection(&self, name: &str, on: bool) -> Result<(), EngineError> {
        self.request_change((name, self.volume_id(name)?), VolumeRequest::WriteProtect(on))
    }

    fn shards(&self) -> Result<Vec<ShardReport>, EngineError> {
        Ok(self.shard_reports(&self.request_listings()?))
    }

    fn add_volume(&self, store: &Store, ways: &ExportPlan) -> Result<(), EngineError> {
        self.collect_removed();
        let mut catalog = self.lock_catalog();
        let id = catalog.places.allocate_id().ok_or_else(ids_exhausted)?;
        let made = self.make_volume(store, id, &catalog);
        let (entry, specs) = made.inspect_err(|_| catalog.places.release(id))?;
        if let Err(why) = self.announce_volume(id, specs) {
            // Some shards may know it: all forget it.
            catalog.leaving.insert(id, entry);
            self.revert_add(catalog, id, store);
            return Err(why);
        }
        catalog.volumes.insert(id, entry);
        let before = catalog.ways.clone();
        catalog.ways.extend(ways);
        let told = self.publish_exports(&mut catalog);
        if told.is_err() {
            // Some shards may lead there. What led to it before it came stays, for when it comes again.
            catalog.ways = before;
            catalog.leave(id);
            self.revert_add(catalog, id, store);
        }
        told
    }

    fn remove_volume(&self, name: &str, force: bool) -> Result<(), EngineError> {
        let mut catalog = self.lock_catalog();
        if let Some((id, _)) = catalog.find(name) {
            let using = self.sessions()?.into_iter();
            let using = using.filter(|session| {
                session.target.as_ref().is_some_and(|target| catalog.ways.exports_volume(target, name))
            });
            let sessions = using.count();
            if sessions > 0 && !force {
                return Err(EngineError::InUse { sessions });
            }
            catalog.ways.remove_volume(name);
            catalog.leave(id);
        }
        // One that could not be served has what leads to it; the next one of that name is another.
        if catalog.leaving_volume(name).is_none() {
            catalog.ways.remove_volume(name);
        }
        // Also if this is not the first try: a shard may not have heard it.
        self.publish_exports(&mut catalog)
    }

    fn drain_volume(&self, name: &str) -> Result<(), EngineError> {
        // Its disk may be waited for: nothing is locked meanwhile.
        let Some(id) = self.lock_catalog().leaving_volume(name) else { return Ok(()) };
        // Whatever comes of it: hosts are told, and nothing new begins. What counts is that all shards let it go.
        if let Err(why) = self.request_change((name, id), VolumeRequest::Remove) {
            tracing::warn!(%why, volume = name, "operations of a deleted volume do not complete");
        }
        self.remove_from_shards(id, ANSWER_TIMEOUT)
    }

    fn discard_old_records(&self, store: &Store) -> Result<(), EngineError> {
        self.records.remove_record(record_name(store), ANSWER_TIMEOUT)
    }

    fn set_exports(&self, ways: &ExportPlan) -> Result<(), EngineError> {
        let mut catalog = self.lock_catalog();
        let before = catalog.ways.clone();
        catalog.set_exports(ways.clone());
        self.publish_exports(&mut catalog).inspect_err(|_| catalog.set_exports(before))
    }

    fn blocked_names(&self) -> BlockedNames {
        self.frame().operator_blocks()
    }

    fn set_blocked_names(&self, names: BlockedNames) -> Result<(), EngineError> {
        let mut catalog = self.lock_catalog();
        let before = self.frame().replace_operator_blocks(names);
        self.publish_exports(&mut catalog).inspect_err(|_| {
            self.frame().replace_operator_blocks(before);
            // Some shards may have heard.
            if let Err(why) = self.publish_exports(&mut catalog) {
                tracing::error!(%why, "not every shard has heard that hosts are blocked as before");
            }
        })
    }

    fn review(&self, plan: &Plan) -> Result<Vec<DisturbanceReport>, EngineError> {
        self.review_plan(plan)
    }

    fn prepare(&self, plan: &Plan, new: &[Store]) -> Result<PreparedPlan, EngineError> {
        self.prepare_plan(plan, new)
    }

    fn switch(&self, prepared: PreparedPlan, ways: &ExportPlan) -> Result<(), EngineError> {
        self.switch_plan(prepared, ways)
    }

    fn end_session(&self, id: u64, shard: usize) -> Result<(), EngineError> {
        let (shard, message) = match (u16::try_from(id), nvme_queues::cntlid(id), u16::try_from(shard)) {
            (Ok(tsih), _, Ok(shard)) => (shard, Message::EndSession(iscsi::wire::Tsih::new(tsih))),
            // A controller lives where its number says.
            (Err(_), Some(cntlid), _) => {
                (cntlid % self.running.shard_count(), Message::Nvme(NvmeMessage::EndController(cntlid)))
            }
            (Ok(_), _, Err(_)) | (Err(_), None, _) => return Ok(()),
        };
        match self.running.post(ShardId(shard), message) {
            true => Ok(()),
            false => Err(EngineError::Stopped),
        }
    }

    fn resize_volume(&self, name: &str, bytes: u64) -> Result<(), EngineError> {
        let of = |(id, entry): (VolumeId, &CatalogVolume)| (id, entry.medium.clone());
        let (id, medium) = self.lock_catalog().find(name).map(of).ok_or(EngineError::Lingers)?;
        let before = medium.geometry();
        let bytes_before = before.blocks * u64::from(before.logical);
        // As the medium will have it: direct I/O moves no part of a unit.
        let unit = u64::from(before.dio_unit_blocks());
        let blocks = bytes / u64::from(before.logical) / unit * unit;
        if blocks == 0 {
            let why = format!("the size must be {} bytes at least", unit * u64::from(before.logical));
            return Err(EngineError::Unsupported(why));
        }
        if blocks < before.blocks {
            // Nobody may be promised blocks that are gone: first the promise, then the medium.
            self.request_change((name, id), VolumeRequest::Resize(volume::Geometry { blocks, ..before }))?;
            return medium.resize(bytes).map(drop);
        }
        let after = medium.resize(bytes)?;
        let home = shard::home_of(id, self.running.shard_count());
        match self.request(
            home,
            ControlRequest::VolumeRequest(id, VolumeRequest::Resize(after)),
            CHANGE_TIMEOUT,
        ) {
            Ok(ControlReport::Done) => Ok(()),
            // It was not begun, so nobody was told.
            Ok(ControlReport::Refused(refusal)) if refusal != Refusal::NotFenced => {
                let _ = medium.resize(bytes_before);
                Err(EngineError::Unsupported(refusal::refusal_text(name, &refusal)))
            }
            // What hosts may have been told never shrinks by itself.
            Ok(ControlReport::Refused(refusal)) => {
                Err(EngineError::Unsettled(refusal::refusal_text(name, &refusal)))
            }
            Ok(ControlReport::NoVolume | ControlReport::Listing(_)) => Err(EngineError::Lingers),
            Err(why) => Err(EngineError::Unsettled(why.to_string())),
        }
    }

    fn note_sync_failure(&self, name: &str) {
        if let Some((_, entry)) = self.lock_catalog().find(name) {
            entry.medium.note_sync_failure();
        }
    }

    fn has_sync_failure(&self, name: &str) -> bool {
        let is = |(_, entry): (VolumeId, &CatalogVolume)| {
            entry.shared.has_sync_failed() || entry.medium.has_sync_failure()
        };
        self.lock_catalog().find(name).is_some_and(is)
    }

    fn acknowledge_sync_failure(&self, store: &Store) -> Result<(), EngineError> {
        let name = store.volume.name.as_str();
        let of = |(_, entry): (VolumeId, &CatalogVolume)| (entry.medium.clone(), entry.shared.clone());
        let (medium, shared) = self.lock_catalog().find(name).map(of).ok_or(EngineError::Lingers)?;
        // Counted before the sync: what fails from then on is another failure.
        let failures = medium.sync_failure_counts();
        let failed = |what: &str, why: std::io::Error| {
            EngineError::Unsupported(format!("{what}, so writes are still refused: {why}"))
        };
        // By the shards' own descriptors, so that none is told of it later what was told here.
        let mut files = store.legs_or_self().iter().filter_map(|part| part.file.as_ref());
        files.try_for_each(std::fs::File::sync_data).map_err(|why| failed("it cannot be synced yet", why))?;
        self.notes.remove_notes(store).map_err(|why| failed("its record cannot be removed", why))?;
        medium.acknowledge_sync_failures(&failures);
        shared.acknowledge_sync_failure();
        Ok(())
    }

    fn stop(&self, how: StopMode) -> bool {
        let well = match how {
            StopMode::Clean => self.stop_cleanly(),
            StopMode::Now => {
                self.running.stop(Duration::ZERO);
                true
            }
        };
        let patience = if how == StopMode::Now {
            IMMEDIATE_STOP_TIMEOUT
        } else {
            LINGER_TIMEOUT + IMMEDIATE_STOP_TIMEOUT
        };
        match self.running.join_within(patience) {
            Ok(true) => {}
            Ok(false) => tracing::error!(
                "stopped without waiting for a disk that does not respond; recent writes may still reach it, or \
                 be lost"
            ),
            Err(_) => {
                tracing::error!("a shard has panicked");
                return false;
            }
        }
        well
    }
}
