//! The shards of the target, run by the reactor: what they are asked and told. [`super::start_shards()`] starts them.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};

use endpoint::ShardId;
use reactor::ReactorHandle;
use shard::{ControlReport, ControlRequest, Message, ShardListing, VolumeSpec};
use volume::{DiskId, VolumeId, VolumeRequest};

use super::{
    allocation_watcher::AllocationWatcher,
    catalog::Catalog,
    catalog_volume::CatalogVolume,
    exports::FixedSettings,
    group::JoinedGroup,
    inbox::{self, PendingRequests, RecordWriter},
    log_lines::DownPaths,
    medium::{Medium, disk_sources},
    refusal,
    sync_failures::SyncFailureNotes,
};
use crate::{EngineError, state::StateDir, store::Store};
use config::name::VolumeName;
use process::log::area;

/// How long a shard may take to answer a question.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a volume may take to change: twice its fence's deadline, and some.
pub(super) const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long is waited for a volume whose operations did not end in time before.
const REMOVAL_POLL_TIMEOUT: Duration = Duration::from_millis(200);
/// How long initiators may take to log out when asked to.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the flush of all volumes may take after that.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(40);
/// How long a socket may take to deliver the last bytes.
pub(super) const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
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
    /// The group of gateways that this one is of.
    pub(super) group: Option<Arc<JoinedGroup>>,
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

    pub(super) fn shard_ids(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.running.shard_count()).map(ShardId)
    }

    /// Asks one shard.
    pub(super) fn request(
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
    pub(super) fn request_all(
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
            ControlReport::Done
            | ControlReport::Refused(_)
            | ControlReport::NoVolume
            | ControlReport::Saved(_)
            | ControlReport::NotQuiesced(_) => None,
        };
        Ok(reports.into_iter().filter_map(listing).collect())
    }

    /// Tells every shard who may reach what from now on.
    pub(super) fn publish_exports(&self, catalog: &mut Catalog) -> Result<(), EngineError> {
        let frame = self.frame();
        catalog.number_ports(&frame, &self.state, self.group.as_deref())?;
        let exports = catalog.build_exports(&frame);
        self.request_all(|| ControlRequest::Exports(exports.clone()), ANSWER_TIMEOUT).map(drop)
    }

    pub(super) fn volume_id(&self, name: &str) -> Result<VolumeId, EngineError> {
        // Who asks has seen it a moment ago: then it is being removed.
        Ok(self.lock_catalog().find(name).ok_or(EngineError::Lingers)?.0)
    }

    /// Asks a volume's home for a change.
    pub(super) fn request_change(
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
            ControlReport::Listing(_) | ControlReport::Saved(_) | ControlReport::NotQuiesced(_) => {
                Err(EngineError::Stopped)
            }
        }
    }

    /// Tells every shard of a volume; the home first: the others may ask it as soon as they know.
    pub(super) fn announce_volume(
        &self,
        id: VolumeId,
        mut specs: Vec<VolumeSpec>,
    ) -> Result<(), EngineError> {
        let shards = self.running.shard_count();
        let home = shard::home_of(id, shards);
        specs.rotate_left(usize::from(home.0));
        for (turn, spec) in specs.into_iter().enumerate() {
            let shard = ShardId((home.0 + turn as u16) % shards);
            match self.request(shard, ControlRequest::AddVolume(Box::new(spec)), ANSWER_TIMEOUT)? {
                ControlReport::Done => {}
                ControlReport::Refused(_)
                | ControlReport::NoVolume
                | ControlReport::Listing(_)
                | ControlReport::Saved(_)
                | ControlReport::NotQuiesced(_) => {
                    let why = format!("shard {} still has another volume in this one's place", shard.0);
                    return Err(EngineError::Start(why));
                }
            }
        }
        Ok(())
    }

    /// Takes a volume that nothing leads to any more from every shard. While one of them has something of it out, it
    /// stays among those that leave: its place is nobody's, and its files stay open. Nothing is locked meanwhile.
    pub(super) fn remove_from_shards(&self, id: VolumeId, patience: Duration) -> Result<(), EngineError> {
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
    pub(super) fn collect_removed(&self) {
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
    pub(super) fn make_volume(
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
            let specs = medium.shard_specs(store, id, shards, self.oui, records, (&self.usage, None))?;
            let shared = specs.first().map(|spec| spec.shared.clone()).ok_or(EngineError::Stopped)?;
            Ok((CatalogVolume::of(store, medium, shared), specs))
        };
        make().inspect_err(|_| disks.iter().flatten().for_each(|disk| self.running.remove_disk(*disk)))
    }

    /// Takes back a volume that could not be added.
    pub(super) fn revert_add(&self, mut catalog: MutexGuard<'_, Catalog>, id: VolumeId, store: &Store) {
        let told = self.publish_exports(&mut catalog);
        drop(catalog);
        if let Err(why) = told.and_then(|()| self.remove_from_shards(id, ANSWER_TIMEOUT)) {
            tracing::error!(target: area::SERVE, %why, volume = %store.volume.name, "cannot remove a volume that failed");
        }
    }

    /// Whether everything that was written is on stable storage, or another thread has lost patience.
    pub(super) fn stop_cleanly(&self) -> bool {
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
            tracing::error!(target: area::SERVE, %why, "not everything was flushed");
        }
        self.running.stop(LINGER_TIMEOUT);
        flushed.is_ok()
    }
}
