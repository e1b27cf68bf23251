//! Volumes that are created, deleted and retried while the daemon runs.
//!
//! Invariants: a refused request has changed nothing; what hosts may know (a volume, a size) does not disappear by
//! itself; and one volume that cannot be served does not affect others.

use uuid::Uuid;

use super::{ServedState, VolumeRegistry, absent_volumes::ArrivalOutcome, refusal_from_engine_error};
use crate::{
    EngineError,
    dataplane::sync_failures,
    state::{
        StateError,
        identity::Identities,
        volumes::{self, VolumeRecord},
    },
    store::{OpenedStore, ProbeNeeds, ProbeResult, StorageInUse, Store, VolumeOpenError},
};
use config::{
    check,
    name::VolumeName,
    plan::{ExportPlan, Protocol, Volume, VolumeOrigin},
    spec::{self, VolumeSource},
};
use control::{RefusalCode, RequestRefusal, report::VolumeReport};
use process::log::area;

/// Why a volume takes no writes after a failed sync.
pub(super) const SYNC_FAILED_REASON: &str = "a sync has failed: recent writes may be lost, and writes are refused; check the disk, \
                        then acknowledge with `volume retry`";

/// A volume that should be served and cannot be.
#[derive(Clone, Debug)]
pub struct FailedVolume {
    /// Its record; for a configured volume as it would be.
    pub recorded: VolumeRecord,
    /// The volume, if its record can be read.
    pub volume: Option<Volume>,
    /// Why it is not served.
    pub why: String,
    /// It is on another machine, and is probed until it is available.
    pub is_sought: bool,
}

impl FailedVolume {
    /// A volume that could not be opened.
    pub fn open_failed(volume: &Volume, why: impl ToString) -> Self {
        let (recorded, volume) = (volume.into(), Some(volume.clone()));
        FailedVolume { recorded, volume, why: why.to_string(), is_sought: false }
    }

    /// A remote volume that is not available now.
    pub fn remote_absent(volume: &Volume, why: impl ToString) -> Self {
        FailedVolume { is_sought: true, ..FailedVolume::open_failed(volume, why) }
    }

    pub(super) fn is_created(&self) -> bool {
        self.volume.as_ref().is_none_or(|volume| volume.origin == VolumeOrigin::Created)
    }
}

impl VolumeRegistry {
    pub(super) fn create(&self, name: &str, spec: &str) -> Result<VolumeReport, RequestRefusal> {
        let invalid = |why: &dyn std::fmt::Display| RequestRefusal::new(RefusalCode::Invalid, why);
        let name = VolumeName::parse(name).map_err(|why| invalid(&why))?;
        let spec = spec::parse(spec).map_err(|why| invalid(&why))?;
        if spec.source.has_relative_file() {
            return Err(invalid(&"the path of a file must be absolute"));
        }
        if let Some(secret) = spec.source.relative_secret_file() {
            return Err(invalid(&secret));
        }
        let volume = Volume { name, spec, origin: VolumeOrigin::Created };
        let ways = self.default_exports(&volume);
        // The next start applies the same check.
        if let Some(why) = check::export_conflict(&self.plan(), &ways) {
            let message = format!("volume \"{}\" would be exported by default, but: {why}", volume.name);
            return Err(invalid(&message));
        }
        let name = volume.name.as_str();
        let _held = self.lock_name(name, "created")?;
        let is_free = || {
            let served = self.lock_served();
            served.refuse_used_name(name).and_then(|()| served.refuse_used_names(&ways))
        };
        is_free()?;
        let probed = ProbeNeeds::for_new(&volume).run();
        let (mut known, others) = self.snapshot()?;
        // A new volume has no past, even if its name was used before.
        known.forget_volume(&volume.name);
        let opened = OpenedStore::open_or_create(&volume, &known, &others, probed);
        let opened = opened.map_err(|why| RequestRefusal::new(RefusalCode::Failed, why))?;
        let mut identities = self.lock_changes_unbounded();
        let before = identities.clone();
        let begun = match is_free() {
            Ok(()) => self.serve_new_volume(&volume, &ways, opened, &mut identities).inspect_err(|_| {
                // A later volume of this name is a different one, and nothing was served from this file.
                identities.restore_files(before);
                identities.forget_volume(&volume.name);
                identities.save_after_undo(&self.state);
            }),
            Err(why) => Err(StartRefusal::with(why, opened.into_store())),
        };
        drop(identities);
        begun.map_err(|unbegun| self.undo_open(unbegun))?;
        tracing::info!(target: area::VOLUME, volume = name, "volume created");
        self.lock_served().changed_volume_report(name)
    }

    /// Serves a new volume. A refusal carries what is still to be undone.
    fn serve_new_volume(
        &self,
        volume: &Volume,
        ways: &ExportPlan,
        opened: OpenedStore,
        identities: &mut Identities,
    ) -> Result<(), StartRefusal> {
        identities.forget_volume(&volume.name);
        let store = self.assign_identity(opened, identities)?;
        if let Err(why) = self.record_new_volume(volume, &store, identities) {
            return Err(StartRefusal::with(why, store));
        }
        if let Err(why) = self.engine.add_volume(&store, ways) {
            if let Err(why) = self.record_volumes(None) {
                tracing::error!(target: area::VOLUME, why = why.message, volume = %volume.name, "a refused volume stays recorded");
            }
            return Err(self.abandon_store(store, (&why, StartKind::Created)));
        }
        let mut served = self.lock_served();
        served.stores.push(store);
        served.ways.extend(ways);
        Ok(())
    }

    /// Records what must be known of a new volume before hosts can see it.
    fn record_new_volume(
        &self,
        volume: &Volume,
        store: &Store,
        identities: &mut Identities,
    ) -> Result<(), RequestRefusal> {
        identities.save(&self.state).map_err(|why| RequestRefusal::new(RefusalCode::Failed, why))?;
        // Old reservations, bad blocks and protection belong to the former contents of this identity.
        if store.is_new() {
            self.engine.discard_old_records(store).map_err(|why| refusal_from_engine_error(&why))?;
        }
        // A volume that hosts can see comes back after a restart.
        self.record_volumes(Some(volume))
    }

    /// Serves a volume that could not be served before.
    pub(super) fn retry(&self, name: &str) -> Result<VolumeReport, RequestRefusal> {
        let _held = self.lock_name(name, "tried again")?;
        let is_served = {
            let served = self.lock_served();
            served.volume_report(name)?;
            !served.unserved.iter().any(|one| one.recorded.name == name)
        };
        if is_served {
            return self.acknowledge_sync_failure(name);
        }
        // Close its files before they are opened again, without holding a lock.
        let closed = self.release_removed(name)?;
        drop(closed);
        let probe = {
            let (identities, served) = (self.lock_changes()?, self.lock_served());
            let Some(one) = served.unserved.iter().find(|one| one.recorded.name == name) else {
                return Err(RequestRefusal::new(
                    RefusalCode::Conflict,
                    format!("volume \"{name}\" has not failed"),
                ));
            };
            let Some(volume) = &one.volume else {
                return Err(RequestRefusal::new(RefusalCode::Failed, &one.why));
            };
            ProbeNeeds::for_known(volume, &identities)
        };
        self.retry_failed(name, probe.run())?;
        self.lock_served().volume_report(name)
    }

    /// The probe of a remote volume that was not available, if it is still to be served.
    pub(super) fn probe_absent(&self, name: &str) -> Option<ProbeNeeds> {
        let (identities, served) = (self.lock_changes_unbounded(), self.lock_served());
        let one = served.unserved.iter().find(|one| one.recorded.name == name && one.is_sought)?;
        Some(ProbeNeeds::for_known(one.volume.as_ref()?, &identities))
    }

    /// Serves a remote volume that was not available before, if the probe found it.
    pub(super) fn serve_arrived(&self, name: &str, probed: ProbeResult) -> ArrivalOutcome {
        let reason = || {
            let served = self.lock_served();
            let one = served.unserved.iter().find(|one| one.recorded.name == name && one.is_sought);
            one.map(|one| one.why.clone())
        };
        let Some(before) = reason() else { return ArrivalOutcome::Settled };
        let Ok(_held) = self.lock_name(name, "tried again") else { return ArrivalOutcome::NotYet };
        let Ok(closed) = self.release_removed(name) else { return ArrivalOutcome::NotYet };
        drop(closed);
        let Err(why) = self.retry_failed(name, probed) else { return ArrivalOutcome::Settled };
        if before != why.message {
            tracing::warn!(target: area::VOLUME, volume = name, why = why.message, "a volume cannot be served yet");
        }
        if reason().is_some() { ArrivalOutcome::NotYet } else { ArrivalOutcome::Settled }
    }

    /// Tries to serve a failed volume; does nothing if it is served by now.
    fn retry_failed(&self, name: &str, probed: ProbeResult) -> Result<(), RequestRefusal> {
        let found = self.lock_served().unserved.iter().find(|one| one.recorded.name == name).cloned();
        let Some(one) = found else { return Ok(()) };
        let Some(volume) = one.volume else { return Err(RequestRefusal::new(RefusalCode::Failed, one.why)) };
        let (known, others) = self.snapshot()?;
        let opened = OpenedStore::reopen(&volume, &known, &others, probed);
        let is_for_the_operator = opened.as_ref().is_err_and(VolumeOpenError::needs_operator);
        let mut identities = self.lock_changes_unbounded();
        let begun = opened
            .map_err(|why| StartRefusal::of(RequestRefusal::new(RefusalCode::Failed, why)))
            .and_then(|opened| self.restart_serving(opened, &mut identities));
        let mut served = self.lock_served();
        if let Err(StartRefusal { why, .. }) = &begun {
            for one in served.unserved.iter_mut().filter(|one| one.recorded.name == name) {
                one.why.clone_from(&why.message);
                one.is_sought &= !is_for_the_operator;
            }
        }
        drop((served, identities));
        begun.map_err(|unbegun| self.undo_open(unbegun))
    }

    /// Serves a volume that could not be served before.
    fn restart_serving(&self, opened: OpenedStore, identities: &mut Identities) -> Result<(), StartRefusal> {
        let store = self.assign_identity(opened, identities)?;
        if let Err(why) = identities.save(&self.state) {
            return Err(StartRefusal::with(RequestRefusal::new(RefusalCode::Failed, why), store));
        }
        // Its targets and subsystems were never removed.
        if let Err(why) = self.engine.add_volume(&store, &ExportPlan::default()) {
            return Err(self.abandon_store(store, (&why, StartKind::Again)));
        }
        let mut served = self.lock_served();
        let name = &store.volume.name;
        served.unserved.retain(|one| one.recorded.name != name.as_str());
        tracing::info!(target: area::VOLUME, volume = %name, "a volume that had failed is served again");
        served.stores.push(store);
        Ok(())
    }

    /// Releases a volume that was removed while shards were still using it, once they are not. Returns what is to be
    /// closed.
    fn release_removed(&self, name: &str) -> Result<Vec<Store>, RequestRefusal> {
        self.drain_removed(name)?;
        let is_it = |store: &mut Store| store.volume.name.as_str() == name;
        Ok(self.lock_served().leaving.extract_if(.., is_it).collect())
    }

    /// Waits until no shard uses a volume that was removed, if there is one.
    pub(super) fn drain_removed(&self, name: &str) -> Result<(), RequestRefusal> {
        let turn = self.lock_changes()?;
        if !self.lock_served().leaving.iter().any(|store| store.volume.name.as_str() == name) {
            return Ok(());
        }
        self.engine.remove_volume(name, true).map_err(|why| refusal_from_engine_error(&why))?;
        // Its targets and subsystems stay, for when it is served.
        let ways = self.lock_served().ways.clone();
        self.engine.set_exports(&ways).map_err(|why| refusal_from_engine_error(&why))?;
        drop(turn);
        self.engine.drain_volume(name).map_err(|why| refusal_from_engine_error(&why))
    }

    /// The operator acknowledges a failed sync: recent writes may be lost, and hosts may write again.
    fn acknowledge_sync_failure(&self, name: &str) -> Result<VolumeReport, RequestRefusal> {
        let twin = self.duplicate_store(name)?.filter(|_| self.engine.has_sync_failure(name));
        let Some(twin) = twin else {
            return Err(RequestRefusal::new(
                RefusalCode::Conflict,
                format!("volume \"{name}\" has not failed"),
            ));
        };
        self.engine
            .acknowledge_sync_failure(&twin)
            .map_err(|why| RequestRefusal::new(RefusalCode::Failed, why))?;
        drop(twin);
        let mut served = self.lock_served();
        served.store_mut(name).into_iter().for_each(Store::acknowledge_sync_failure);
        tracing::warn!(target: area::VOLUME, volume = name, "the operator has acknowledged that recent writes may be lost");
        served.volume_report(name)
    }

    /// A copy of a served volume, with its own descriptors.
    pub(super) fn duplicate_store(&self, name: &str) -> Result<Option<Store>, RequestRefusal> {
        let twin = self.lock_served().store_mut(name).map(|store| store.duplicate()).transpose();
        twin.map_err(|why| {
            RequestRefusal::new(RefusalCode::Failed, format!("no second descriptor of its file: {why}"))
        })
    }

    /// Determines the identity of an opened volume.
    fn assign_identity(
        &self,
        opened: OpenedStore,
        identities: &mut Identities,
    ) -> Result<Store, StartRefusal> {
        let others = self.lock_served().open_stores();
        let identified = opened.assign_identity(identities, &others);
        identified.map_err(|refused| {
            let (why, opened) = *refused;
            StartRefusal::with(RequestRefusal::new(RefusalCode::Failed, why), opened.into_store())
        })
    }

    /// Undoes what opening an unserved volume created, and closes it. This waits for its disk, so the caller must not hold
    /// the change lock.
    fn undo_open(&self, StartRefusal { why, store }: StartRefusal) -> RequestRefusal {
        let removed = store.as_ref().map(|store| store.undo_file_creation()).unwrap_or_default();
        if !removed.is_empty() {
            let mut identities = self.lock_changes_unbounded();
            removed.iter().for_each(|(key, path)| identities.remove_created(key, path));
            identities.save_after_undo(&self.state);
        }
        // Only now: a new file may get its device and inode numbers.
        drop(store);
        why
    }

    /// Gives up an opened volume that the engine refused. If shards may know of it, it stays open, and its file is not
    /// used otherwise, until they have released it.
    fn abandon_store(&self, store: Store, (why, what): (&EngineError, StartKind)) -> StartRefusal {
        if is_unseen_by_hosts(why) {
            return StartRefusal::with(refusal_from_engine_error(why), store);
        }
        let name = &store.volume.name;
        let message = match what {
            StartKind::Created => format!(
                "{why}; it is not served and not recorded, but some cores may still be using it, so its file stays \
                 open: `blockwire volume delete {name}` closes it, `volume list` shows it until then"
            ),
            StartKind::Again => format!(
                "{why}; it is not served, but some cores may still be using it, so its file stays open: \
                 `blockwire volume retry {name}` serves it once they do not"
            ),
        };
        self.lock_served().leaving.push(store);
        StartRefusal::of(RequestRefusal { message, ..refusal_from_engine_error(why) })
    }

    /// Adds the failure that the engine reports for a volume.
    pub(super) fn with_sync_failure(&self, report: VolumeReport) -> VolumeReport {
        let doubt = || self.engine.has_sync_failure(&report.name).then(|| SYNC_FAILED_REASON.to_owned());
        VolumeReport { failed: report.failed.clone().or_else(doubt), ..report }
    }

    /// Records which volumes come back at the next start, and this one. The caller holds the change lock.
    pub(super) fn record_volumes(&self, new: Option<&Volume>) -> Result<(), RequestRefusal> {
        let (volumes, unserved) = {
            let served = self.lock_served();
            let volumes: Vec<Volume> = served.stores.iter().map(|store| store.volume.clone()).collect();
            (volumes, served.unserved_records())
        };
        volumes::save_volumes(&self.state, volumes.iter().chain(new), unserved.iter())
            .map_err(|why| RequestRefusal::new(RefusalCode::Failed, why))
    }

    /// The default target and subsystem of a volume.
    fn default_exports(&self, volume: &Volume) -> ExportPlan {
        let plan = self.plan();
        let (node, open) = (plan.node.as_ref(), plan.hosts.is_empty());
        let tags = |protocol| check::portal_tags(plan.portals.iter(), protocol);
        let mut ways = ExportPlan::default();
        let iscsi = tags(Protocol::Iscsi);
        if !iscsi.is_empty() {
            ways.targets.push(check::default_target(node, volume, &iscsi, open));
        }
        let nvme = tags(Protocol::Nvme);
        if !nvme.is_empty() {
            ways.subsystems.push(check::default_subsystem(node, volume, &nvme, open));
        }
        ways
    }

    pub(super) fn delete(&self, name: &str, force: bool) -> Result<VolumeReport, RequestRefusal> {
        let _held = self.lock_name(name, "deleted")?;
        let mut identities = self.lock_changes()?;
        let report = self.lock_served().volume_report(name)?;
        // Of a failed volume the engine has the targets and subsystems.
        self.engine.remove_volume(name, force).map_err(|why| refusal_from_engine_error(&why))?;
        let files = self.lock_served().mark_leaving(name);
        tracing::info!(target: area::VOLUME, volume = name, "volume deleted");
        let recorded = self.record_volumes(None).map_err(|why| {
            let message =
                format!("no longer served, but it will come back at the next start: {}", why.message);
            RequestRefusal::new(RefusalCode::Failed, message)
        });
        let failed = |why: StateError| {
            let message = format!("no longer served, but its records could not be removed: {why}");
            RequestRefusal::new(RefusalCode::Failed, message)
        };
        // Only now: a volume that comes back at the next start is compared with what was known of it.
        let forgotten = recorded.and_then(|()| {
            if let Ok(name) = VolumeName::parse(name) {
                identities.forget_volume(&name);
            }
            identities.save(&self.state).map_err(failed)
        });
        drop(identities);
        // Operations in flight complete and acknowledged writes are synced before its file is closed. Only this request
        // waits for that.
        let gone = self.engine.drain_volume(name).map_err(|why| refusal_from_engine_error(&why));
        let synced = gone.and_then(|()| self.close_files(name));
        // By deleting a volume the operator acknowledges a failed sync.
        forgotten.and_then(|()| sync_failures::remove_notes(&self.state, &files).map_err(failed))?;
        synced.map(|()| report)
    }

    /// Closes the files of a volume that no shard uses; until then no other volume may use them.
    pub(super) fn close_files(&self, name: &str) -> Result<(), RequestRefusal> {
        let is_it = |store: &mut Store| store.volume.name.as_str() == name;
        let mut parted: Vec<Store> = {
            let mut served = self.lock_served();
            let parted: Vec<Store> = served.leaving.extract_if(.., is_it).collect();
            served.leaving.extend(parted.iter().map(Store::without_files));
            parted
        };
        // Freed memory is lost, and so are its records.
        let is_memory =
            |store: &&Store| matches!(store.volume.spec.source, VolumeSource::Ram | VolumeSource::Null);
        for store in parted.iter().filter(is_memory) {
            if let Err(why) = self.engine.discard_old_records(store) {
                tracing::warn!(target: area::VOLUME, %why, volume = name, "records of a deleted volume could not be removed");
            }
        }
        let synced = parted.iter_mut().map(Store::sync).fold(Ok(()), std::io::Result::and);
        drop(parted);
        self.lock_served().leaving.retain(|store| store.volume.name.as_str() != name);
        synced.map_err(|why| {
            let message = format!("no longer served, but recent writes may be lost: cannot sync: {why}");
            RequestRefusal::new(RefusalCode::Failed, message)
        })
    }
}

/// Why a volume is not served after all, and what to undo if no shard knows it.
struct StartRefusal {
    why: RequestRefusal,
    store: Option<Box<Store>>,
}

impl StartRefusal {
    fn of(why: RequestRefusal) -> Self {
        StartRefusal { why, store: None }
    }

    fn with(why: RequestRefusal, store: Store) -> Self {
        StartRefusal { why, store: Some(Box::new(store)) }
    }
}

/// What the engine refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartKind {
    /// A new volume: it does not exist then.
    Created,
    /// A recorded or configured volume, which is still to be served.
    Again,
}

/// Whether no host can have seen what the engine refused.
pub(super) fn is_unseen_by_hosts(why: &EngineError) -> bool {
    match why {
        EngineError::Listen { .. } | EngineError::Start(_) | EngineError::InUse { .. } => true,
        EngineError::Unsupported(_) | EngineError::Record(_) => true,
        EngineError::Unsettled(_) | EngineError::Lingers => false,
        EngineError::TimedOut | EngineError::Stopped => false,
    }
}

impl ServedState {
    /// What all open volumes stand on: those that are served and those that leave.
    pub(super) fn open_stores(&self) -> StorageInUse {
        StorageInUse::of(self.stores.iter().chain(&self.leaving))
    }

    /// The volume of that name, if it is served.
    pub(super) fn store(&self, name: &str) -> Option<&Store> {
        self.stores.iter().find(|store| store.volume.name.as_str() == name)
    }

    /// The same, to be changed.
    pub(super) fn store_mut(&mut self, name: &str) -> Option<&mut Store> {
        self.stores.iter_mut().find(|store| store.volume.name.as_str() == name)
    }

    /// Removes a volume that no host can reach any more, with its targets and subsystems. It is shown as leaving, and keeps
    /// its name and files, until the files are closed. Returns the files that may have records of failed syncs.
    fn mark_leaving(&mut self, name: &str) -> Vec<Uuid> {
        let is_it = |store: &mut Store| store.volume.name.as_str() == name;
        let parted: Vec<Store> = self.stores.extract_if(.., is_it).collect();
        self.leaving.extend(parted);
        let gone = self.leaving.iter().filter(|store| store.volume.name.as_str() == name);
        let files = gone.flat_map(sync_failures::file_uuids).collect();
        self.unserved.retain(|one| one.recorded.name != name);
        self.ways.remove_volume(name);
        let mut stopped = ExportPlan { targets: std::mem::take(&mut self.stopped), ..ExportPlan::default() };
        stopped.remove_volume(name);
        self.stopped = stopped.targets;
        files
    }

    /// Refuses a name in use by any volume, served or not.
    pub(super) fn refuse_used_name(&self, name: &str) -> Result<(), RequestRefusal> {
        match self.volume_report(name) {
            Ok(_) => Err(RequestRefusal::new(
                RefusalCode::Conflict,
                format!("there is already a volume \"{name}\""),
            )),
            Err(_) => Ok(()),
        }
    }

    /// Records of volumes that are not served and come back at the next start.
    fn unserved_records(&self) -> Vec<VolumeRecord> {
        let created = self.unserved.iter().filter(|one| one.is_created());
        created.map(|one| one.recorded.clone()).collect()
    }
}
