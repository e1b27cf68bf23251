//! The engine: the shards of the target, run by the reactor. [`super::start()`] starts them.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};

use endpoint::ShardId;
use reactor::ReactorHandle;
use shard::{Control, Listing, Message, Report, VolumeSpec};
use volume::{DiskId, PortId, Refusal, VolumeId, VolumeRequest};

use super::{
    catalog::{Catalog, CatalogVolume},
    exports::FixedSettings,
    inbox::{self, Records, Requests},
    latency,
    log_lines::DownPaths,
    medium::{Medium, descriptors, record_of},
    notes::Notes,
    prepared::PreparedPlan,
    queues, refusal,
    usage::Usage,
};
use crate::{Engine, EngineError, EngineObservation, Stop, state::StateDir, store::Store};
use config::{
    name::VolumeName,
    plan::{Plan, ServedNames},
};
use control::report::{
    ConnectionReport, LatencyReport, ListenerReport, SessionReport, ShardReport, VolumeStateReport,
    plan::DisturbanceReport,
};

/// How long a shard may take to answer a question.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a volume may take to change: twice its fence's deadline, and some.
const CHANGE: Duration = Duration::from_secs(30);
/// How long is waited for a volume whose operations did not end in time before.
const LOOK: Duration = Duration::from_millis(200);
/// How long initiators may take to log out when asked to.
const GRACE: Duration = Duration::from_secs(5);
/// How long the flush of all volumes may take after that.
const FLUSH: Duration = Duration::from_secs(40);
/// How long a socket may take to deliver the last bytes.
const LINGER: Duration = Duration::from_secs(1);
/// How long, when all is ended at once, what is out on a disk may take.
const HASTE: Duration = Duration::from_secs(3);

/// The running shards.
pub struct Shards {
    pub(super) running: Arc<ReactorHandle<Message>>,
    pub(super) requests: Arc<Requests>,
    pub(super) state: Arc<StateDir>,
    /// Who keeps what is to outlive the daemon of volumes.
    pub(super) records: Records,
    /// Who notes which syncs have failed.
    pub(super) notes: Notes,
    /// Who looks how much of files is allocated.
    pub(super) usage: Usage,
    pub(super) frame: RwLock<Arc<FixedSettings>>,
    pub(super) cores: Vec<usize>,
    pub(super) oui: Option<[u8; 3]>,
    pub(super) catalog: Mutex<Catalog>,
    pub(super) unserved: Vec<(VolumeName, String)>,
    /// Which paths to volumes of other machines are down, as the log was told.
    pub(super) down_paths: DownPaths,
}

pub(super) fn no_number() -> EngineError {
    EngineError::Unsupported("the daemon has used up its volume numbers: restart it".to_owned())
}

impl Shards {
    pub(super) fn catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings in force.
    pub(super) fn frame(&self) -> Arc<FixedSettings> {
        self.frame.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Other settings are in force from now on; shards hear of it by [`Shards::publish`]. Gives those of before.
    pub(super) fn replace_frame(&self, settings: Arc<FixedSettings>) -> Arc<FixedSettings> {
        std::mem::replace(&mut *self.frame.write().unwrap_or_else(PoisonError::into_inner), settings)
    }

    fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.running.shards()).map(ShardId)
    }

    /// Asks one shard.
    fn ask(&self, shard: ShardId, control: Control, patience: Duration) -> Result<Report, EngineError> {
        let expected = self.requests.expect()?;
        if !self.running.post(shard, Message::Control(expected.number, control)) {
            return Err(EngineError::Stopped);
        }
        expected.wait(patience)
    }

    /// Asks every shard, then waits for all answers, in shard order.
    fn ask_all(&self, control: impl Fn() -> Control, patience: Duration) -> Result<Vec<Report>, EngineError> {
        let mut expected = Vec::new();
        for shard in self.shards() {
            let one = self.requests.expect()?;
            if !self.running.post(shard, Message::Control(one.number, control())) {
                return Err(EngineError::Stopped);
            }
            expected.push(one);
        }
        let until = Instant::now() + patience;
        let wait = |one: inbox::Expected| one.wait(until.saturating_duration_since(Instant::now()));
        expected.into_iter().map(wait).collect()
    }

    pub(super) fn listings(&self) -> Result<Vec<Listing>, EngineError> {
        let reports = self.ask_all(|| Control::List, ANSWER)?;
        let listing = |report| match report {
            Report::Listing(listing) => Some(*listing),
            Report::Done | Report::Refused(_) | Report::NoVolume => None,
        };
        Ok(reports.into_iter().filter_map(listing).collect())
    }

    /// Tells every shard who may reach what from now on.
    pub(super) fn publish(&self, catalog: &mut Catalog) -> Result<(), EngineError> {
        let frame = self.frame();
        catalog.number_ports(&frame, &self.state)?;
        let exports = catalog.exports(&frame);
        self.ask_all(|| Control::Exports(exports.clone()), ANSWER).map(drop)
    }

    fn number(&self, name: &str) -> Result<VolumeId, EngineError> {
        // Who asks has seen it a moment ago: then it is being removed.
        Ok(self.catalog().find(name).ok_or(EngineError::Lingers)?.0)
    }

    /// Asks a volume's home for a change.
    fn change(&self, (name, volume): (&str, VolumeId), ask: VolumeRequest) -> Result<(), EngineError> {
        let home = shard::home_of(volume, self.running.shards());
        match self.ask(home, Control::VolumeRequest(volume, ask), CHANGE)? {
            Report::Done => Ok(()),
            Report::Refused(refusal) => Err(EngineError::Unsupported(refusal::words(name, &refusal))),
            Report::NoVolume => Err(EngineError::Lingers),
            Report::Listing(_) => Err(EngineError::Stopped),
        }
    }

    /// Tells every shard of a volume; the home first: the others may ask it as soon as they know.
    fn tell(&self, id: VolumeId, mut specs: Vec<VolumeSpec>) -> Result<(), EngineError> {
        let shards = self.running.shards();
        let home = shard::home_of(id, shards);
        specs.rotate_left(usize::from(home.0));
        for (turn, spec) in specs.into_iter().enumerate() {
            let shard = ShardId((home.0 + turn as u16) % shards);
            match self.ask(shard, Control::AddVolume(Box::new(spec)), ANSWER)? {
                Report::Done => {}
                Report::Refused(_) | Report::NoVolume | Report::Listing(_) => {
                    let why = format!("shard {} still has another volume in this one's place", shard.0);
                    return Err(EngineError::Start(why));
                }
            }
        }
        Ok(())
    }

    /// Takes a volume that nothing leads to any more from every shard. While one of them has something of it out, it
    /// stays among those that leave: its place is nobody's, and its files stay open. Nothing is locked meanwhile.
    fn part(&self, id: VolumeId, patience: Duration) -> Result<(), EngineError> {
        if !self.catalog().leaving.contains_key(&id) {
            return Ok(());
        }
        match self.ask_all(|| Control::DropVolume(id), patience) {
            Ok(_) => {}
            Err(EngineError::TimedOut) => return Err(EngineError::Lingers),
            Err(why) => return Err(why),
        }
        if let Some(entry) = self.catalog().leaving.remove(&id) {
            entry.medium.disks().into_iter().for_each(|disk| self.running.remove_disk(disk));
        }
        Ok(())
    }

    /// Looks whether volumes have gone whose operations were out when they were deleted.
    fn sweep(&self) {
        let leaving: Vec<VolumeId> = self.catalog().leaving.keys().copied().collect();
        for id in leaving {
            let _ = self.part(id, LOOK);
        }
    }

    /// Gives the volume's files to the shards: their numbers, one per part of the volume.
    fn add_disks(&self, store: &Store) -> Result<Vec<Option<DiskId>>, EngineError> {
        let mut disks = Vec::new();
        for file in descriptors(store) {
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

    /// Takes back a volume that could not be added.
    fn take_back(&self, mut catalog: MutexGuard<'_, Catalog>, id: VolumeId, store: &Store) {
        let told = self.publish(&mut catalog);
        drop(catalog);
        if let Err(why) = told.and_then(|()| self.part(id, ANSWER)) {
            tracing::error!(%why, volume = %store.volume.name, "cannot remove a volume that failed");
        }
    }

    /// Whether everything that was written is on stable storage, or another thread has lost patience.
    fn stop_cleanly(&self) -> bool {
        self.running.stop_accepting();
        let flushed = match self.ask_all(|| Control::Stop { grace: GRACE }, GRACE + FLUSH) {
            Ok(reports) => match reports.iter().find(|report| !matches!(report, Report::Done)) {
                None => Ok(()),
                Some(_) => Err("see the messages of each volume".to_owned()),
            },
            Err(EngineError::Stopped) => Ok(()),
            Err(why) => Err(why.to_string()),
        };
        if let Err(why) = &flushed {
            tracing::error!(%why, "not everything was flushed");
        }
        self.running.stop(LINGER);
        flushed.is_ok()
    }
}

impl Engine for Shards {
    fn unserved(&self) -> Vec<(VolumeName, String)> {
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
        Ok(self.sessions_in(&self.listings()?, false))
    }

    fn connections(&self) -> Result<Vec<ConnectionReport>, EngineError> {
        Ok(self.connections_in(&self.listings()?))
    }

    fn observe(&self) -> Result<EngineObservation, EngineError> {
        self.observed()
    }

    fn volume_latency(&self, name: &str) -> Result<Vec<LatencyReport>, EngineError> {
        let id = self.number(name)?;
        let listings = self.listings()?;
        let entries = listings.iter().flat_map(|listing| &listing.volumes).filter(|one| one.id == id);
        Ok(latency::report(entries.map(|entry| &entry.latency)))
    }

    fn connection_latency(&self, id: u64) -> Result<Vec<LatencyReport>, EngineError> {
        let listings = self.listings()?;
        let queues = listings.iter().flat_map(|listing| &listing.queues);
        let queues = queues.filter(|queue| queues::connection_id(queue) == id).map(|queue| &queue.latency);
        let sessions = listings.iter().flat_map(|listing| &listing.sessions);
        let sessions = sessions.filter(|session| u64::from(session.tsih) == id >> 16);
        Ok(latency::report(queues.chain(sessions.map(|session| &session.latency))))
    }

    fn standings(&self) -> Result<Vec<VolumeStateReport>, EngineError> {
        Ok(self.standings_in(&self.listings()?))
    }

    fn set_access(&self, name: &str, ports: &[u16], to: volume::Access) -> Result<(), EngineError> {
        let ports = ports.iter().map(|port| PortId(*port)).collect();
        self.change((name, self.number(name)?), VolumeRequest::SetAccess { ports, to, by: None })
    }

    fn protect_volume(&self, name: &str, on: bool) -> Result<(), EngineError> {
        self.change((name, self.number(name)?), VolumeRequest::WriteProtect(on))
    }

    fn shards(&self) -> Result<Vec<ShardReport>, EngineError> {
        Ok(self.shards_in(&self.listings()?))
    }

    fn add_volume(&self, store: &Store, ways: &ServedNames) -> Result<(), EngineError> {
        let shards = self.running.shards();
        self.sweep();
        let mut catalog = self.catalog();
        let id = catalog.give().ok_or_else(no_number)?;
        let disks = self.add_disks(store)?;
        let give_up = |why| {
            disks.iter().flatten().for_each(|disk| self.running.remove_disk(*disk));
            why
        };
        let medium = Medium::of(store, &disks, shards, (&self.notes, id)).map_err(give_up)?;
        let records = (&*self.state, &catalog.renumber_ports(&store.volume.name, &self.frame()));
        let specs = medium.specs(store, id, shards, self.oui, records, &self.usage).map_err(give_up)?;
        let shared = specs.first().map(|spec| spec.shared.clone()).ok_or(EngineError::Stopped);
        let entry = CatalogVolume::of(store, medium, shared.map_err(give_up)?);
        if let Err(why) = self.tell(id, specs) {
            // Some shards may know it: all forget it.
            catalog.leaving.insert(id, entry);
            self.take_back(catalog, id, store);
            return Err(why);
        }
        catalog.volumes.insert(id, entry);
        let before = catalog.ways.clone();
        catalog.ways.extend(ways);
        let told = self.publish(&mut catalog);
        if told.is_err() {
            // Some shards may lead there. What led to it before it came stays, for when it comes again.
            catalog.ways = before;
            if let Some(entry) = catalog.volumes.remove(&id) {
                catalog.leaving.insert(id, entry);
            }
            self.take_back(catalog, id, store);
        }
        told
    }

    fn remove_volume(&self, name: &str, force: bool) -> Result<(), EngineError> {
        let mut catalog = self.catalog();
        if let Some((id, _)) = catalog.find(name) {
            let using = self.sessions()?.into_iter();
            let using = using.filter(|session| {
                session.target.as_ref().is_some_and(|target| catalog.ways.lead(target, name))
            });
            let sessions = using.count();
            if sessions > 0 && !force {
                return Err(EngineError::InUse { sessions });
            }
            catalog.ways.forget(name);
            if let Some(entry) = catalog.volumes.remove(&id) {
                catalog.leaving.insert(id, entry);
            }
        }
        // One that could not be served has what leads to it; the next one of that name is another.
        if catalog.leaver(name).is_none() {
            catalog.ways.forget(name);
        }
        // Also if this is not the first try: a shard may not have heard it.
        self.publish(&mut catalog)
    }

    fn drain_volume(&self, name: &str) -> Result<(), EngineError> {
        // Its disk may be waited for: nothing is locked meanwhile.
        let Some(id) = self.catalog().leaver(name) else { return Ok(()) };
        // Whatever comes of it: hosts are told, and nothing new begins. What counts is that all shards let it go.
        if let Err(why) = self.change((name, id), VolumeRequest::Remove) {
            tracing::warn!(%why, volume = name, "operations of a deleted volume do not complete");
        }
        self.part(id, ANSWER)
    }

    fn forget_past(&self, store: &Store) -> Result<(), EngineError> {
        self.records.remove(record_of(store), ANSWER)
    }

    fn set_ways(&self, ways: &ServedNames) -> Result<(), EngineError> {
        let mut catalog = self.catalog();
        let before = catalog.ways.clone();
        catalog.change_ways(ways.clone());
        self.publish(&mut catalog).inspect_err(|_| catalog.change_ways(before))
    }

    fn review(&self, plan: &Plan) -> Result<Vec<DisturbanceReport>, EngineError> {
        self.review_plan(plan)
    }

    fn prepare(&self, plan: &Plan, new: &[Store]) -> Result<PreparedPlan, EngineError> {
        self.prepare_plan(plan, new)
    }

    fn switch(&self, prepared: PreparedPlan, ways: &ServedNames) -> Result<(), EngineError> {
        self.switch_plan(prepared, ways)
    }

    fn end_session(&self, id: u64, shard: usize) -> Result<(), EngineError> {
        let (Ok(tsih), Ok(shard)) = (u16::try_from(id), u16::try_from(shard)) else { return Ok(()) };
        match self.running.post(ShardId(shard), Message::EndSession(iscsi::wire::Tsih::new(tsih))) {
            true => Ok(()),
            false => Err(EngineError::Stopped),
        }
    }

    fn resize_volume(&self, name: &str, bytes: u64) -> Result<(), EngineError> {
        let of = |(id, entry): (VolumeId, &CatalogVolume)| (id, entry.medium.clone());
        let (id, medium) = self.catalog().find(name).map(of).ok_or(EngineError::Lingers)?;
        let before = medium.geometry();
        let bytes_before = before.blocks * u64::from(before.logical);
        // As the medium will have it: direct I/O moves no part of a unit.
        let unit = u64::from(before.unit());
        let blocks = bytes / u64::from(before.logical) / unit * unit;
        if blocks == 0 {
            let why = format!("the size must be {} bytes at least", unit * u64::from(before.logical));
            return Err(EngineError::Unsupported(why));
        }
        if blocks < before.blocks {
            // Nobody may be promised blocks that are gone: first the promise, then the medium.
            self.change((name, id), VolumeRequest::Resize(volume::Geometry { blocks, ..before }))?;
            return medium.resize(bytes).map(drop);
        }
        let after = medium.resize(bytes)?;
        let home = shard::home_of(id, self.running.shards());
        match self.ask(home, Control::VolumeRequest(id, VolumeRequest::Resize(after)), CHANGE) {
            Ok(Report::Done) => Ok(()),
            // It was not begun, so nobody was told.
            Ok(Report::Refused(refusal)) if refusal != Refusal::NotFenced => {
                let _ = medium.resize(bytes_before);
                Err(EngineError::Unsupported(refusal::words(name, &refusal)))
            }
            // What hosts may have been told never shrinks by itself.
            Ok(Report::Refused(refusal)) => Err(EngineError::Unsettled(refusal::words(name, &refusal))),
            Ok(Report::NoVolume | Report::Listing(_)) => Err(EngineError::Lingers),
            Err(why) => Err(EngineError::Unsettled(why.to_string())),
        }
    }

    fn sync_failed(&self, name: &str) {
        if let Some((_, entry)) = self.catalog().find(name) {
            entry.medium.sync_failed();
        }
    }

    fn is_in_doubt(&self, name: &str) -> bool {
        let is =
            |(_, entry): (VolumeId, &CatalogVolume)| entry.shared.sync_failed() || entry.medium.is_in_doubt();
        self.catalog().find(name).is_some_and(is)
    }

    fn acknowledge(&self, store: &Store) -> Result<(), EngineError> {
        let name = store.volume.name.as_str();
        let of = |(_, entry): (VolumeId, &CatalogVolume)| (entry.medium.clone(), entry.shared.clone());
        let (medium, shared) = self.catalog().find(name).map(of).ok_or(EngineError::Lingers)?;
        // Counted before the sync: what fails from then on is another failure.
        let failures = medium.failures();
        let failed = |what: &str, why: std::io::Error| {
            EngineError::Unsupported(format!("{what}, so writes are still refused: {why}"))
        };
        // By the shards' own descriptors, so that none is told of it later what was told here.
        let mut files = store.parts().iter().filter_map(|part| part.file.as_ref());
        files.try_for_each(std::fs::File::sync_data).map_err(|why| failed("it cannot be synced yet", why))?;
        self.notes.forget(store).map_err(|why| failed("its record cannot be removed", why))?;
        medium.forgive(&failures);
        shared.forgive_sync();
        Ok(())
    }

    fn stop(&self, how: Stop) -> bool {
        let well = match how {
            Stop::Clean => self.stop_cleanly(),
            Stop::Now => {
                self.running.stop(Duration::ZERO);
                true
            }
        };
        let patience = if how == Stop::Now { HASTE } else { LINGER + HASTE };
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
