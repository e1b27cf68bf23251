//! Volumes that are created, deleted and retried while the daemon runs.
//!
//! Invariants: a refused request has changed nothing; what hosts may know (a volume, a size) does not disappear by
//! itself; and one volume that cannot be served does not affect others.

use uuid::Uuid;

use super::{Served, Volumes, absent::Arrival, refused, unknown};
use crate::{
    EngineError,
    dataplane::notes,
    state::{
        StateError,
        identity::Identities,
        volumes::{self, VolumeRecord},
    },
    store::{OpenedStore, ProbeNeeds, ProbeResult, Store, VolumeOpenError},
};
use config::{
    check,
    name::VolumeName,
    plan::{Origin, Protocol, ServedNames, Volume},
    spec::{self, Source},
};
use control::{
    Code, Refused,
    report::{ExportReport, VolumeReport},
};

/// Why a volume takes no writes after a failed sync.
pub(super) const IN_DOUBT: &str = "a sync has failed: recent writes may be lost, and writes are refused; check the disk, \
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
    pub fn of(volume: &Volume, why: impl ToString) -> Self {
        let (recorded, volume) = (volume.into(), Some(volume.clone()));
        FailedVolume { recorded, volume, why: why.to_string(), is_sought: false }
    }

    /// A remote volume that is not available now.
    pub fn absent(volume: &Volume, why: impl ToString) -> Self {
        FailedVolume { is_sought: true, ..FailedVolume::of(volume, why) }
    }

    fn is_created(&self) -> bool {
        self.volume.as_ref().is_none_or(|volume| volume.origin == Origin::Created)
    }
}

impl Volumes {
    pub(super) fn create(&self, name: &str, spec: &str) -> Result<VolumeReport, Refused> {
        let invalid = |why: &dyn std::fmt::Display| Refused::new(Code::Invalid, why);
        let name = VolumeName::parse(name).map_err(|why| invalid(&why))?;
        let spec = spec::parse(spec).map_err(|why| invalid(&why))?;
        if spec.source.has_relative_file() {
            return Err(invalid(&"the path of a file must be absolute"));
        }
        if spec.source.has_relative_secret() {
            return Err(invalid(&"the path of a secret's file must be absolute"));
        }
        let volume = Volume { name, spec, origin: Origin::Created };
        let ways = self.default_ways(&volume);
        // The next start applies the same check.
        if let Some(why) = check::forbidden(&self.plan(), &ways) {
            let message = format!("volume \"{}\" would be exported by default, but: {why}", volume.name);
            return Err(invalid(&message));
        }
        let name = volume.name.as_str();
        let _held = self.lock_name(name, "created")?;
        let is_free = || {
            let served = self.served();
            served.free_for(name).and_then(|()| served.free_to_use(&ways))
        };
        is_free()?;
        let probed = ProbeNeeds::of_new(&volume).look();
        let (mut known, others) = self.snapshot()?;
        // A new volume has no past, even if its name was used before.
        known.forget(&volume.name);
        let opened = OpenedStore::created(&volume, &known, others.iter(), probed);
        let opened = opened.map_err(|why| Refused::new(Code::Failed, why))?;
        let mut identities = self.lock_changes_at_last();
        let before = identities.clone();
        let begun = match is_free() {
            Ok(()) => self.begin(&volume, &ways, opened, &mut identities).inspect_err(|_| {
                // A later volume of this name is a different one, and nothing was served from this file.
                identities.restore_places(before);
                identities.forget(&volume.name);
                identities.save_unmade(&self.state);
            }),
            Err(why) => Err(StartRefusal::with(why, opened.into_store())),
        };
        drop(identities);
        begun.map_err(|unbegun| self.undo(unbegun))?;
        tracing::info!(volume = name, "volume created");
        self.served().volume(name)
    }

    /// Serves a new volume. A refusal carries what is still to be undone.
    fn begin(
        &self,
        volume: &Volume,
        ways: &ServedNames,
        opened: OpenedStore,
        identities: &mut Identities,
    ) -> Result<(), StartRefusal> {
        identities.forget(&volume.name);
        let store = self.give_identity(opened, identities)?;
        if let Err(why) = self.prepare(volume, &store, identities) {
            return Err(StartRefusal::with(why, store));
        }
        if let Err(why) = self.engine.add_volume(&store, ways) {
            if let Err(why) = self.record(None) {
                tracing::error!(why = why.message, volume = %volume.name, "a refused volume stays recorded");
            }
            return Err(self.give_up(store, (&why, StartKind::Created)));
        }
        let mut served = self.served();
        served.stores.push(store);
        served.ways.extend(ways);
        Ok(())
    }

    /// Records what must be known of a new volume before hosts can see it.
    fn prepare(&self, volume: &Volume, store: &Store, identities: &mut Identities) -> Result<(), Refused> {
        identities.save(&self.state).map_err(|why| Refused::new(Code::Failed, why))?;
        // Old reservations, bad blocks and protection belong to the former contents of this identity.
        if store.is_blank() {
            self.engine.forget_past(store).map_err(|why| refused(&why))?;
        }
        // A volume that hosts can see comes back after a restart.
        self.record(Some(volume))
    }

    /// Serves a volume that could not be served before.
    pub(super) fn retry(&self, name: &str) -> Result<VolumeReport, Refused> {
        let _held = self.lock_name(name, "tried again")?;
        let is_served = {
            let served = self.served();
            served.volume(name)?;
            !served.unserved.iter().any(|one| one.recorded.name == name)
        };
        if is_served {
            return self.acknowledge(name);
        }
        // Close its files before they are opened again, without holding a lock.
        let closed = self.let_go(name)?;
        drop(closed);
        let probe = {
            let (identities, served) = (self.lock_changes()?, self.served());
            let Some(one) = served.unserved.iter().find(|one| one.recorded.name == name) else {
                return Err(Refused::new(Code::Conflict, format!("volume \"{name}\" has not failed")));
            };
            let Some(volume) = &one.volume else { return Err(Refused::new(Code::Failed, &one.why)) };
            ProbeNeeds::of(volume, &identities)
        };
        self.serve_again(name, probe.look())?;
        self.served().volume(name)
    }

    /// The probe of a remote volume that was not available, if it is still to be served.
    pub(super) fn probe_absent(&self, name: &str) -> Option<ProbeNeeds> {
        let (identities, served) = (self.lock_changes_at_last(), self.served());
        let one = served.unserved.iter().find(|one| one.recorded.name == name && one.is_sought)?;
        Some(ProbeNeeds::of(one.volume.as_ref()?, &identities))
    }

    /// Serves a remote volume that was not available before, if the probe found it.
    pub(super) fn arrive(&self, name: &str, probed: ProbeResult) -> Arrival {
        let reason = || {
            let served = self.served();
            let one = served.unserved.iter().find(|one| one.recorded.name == name && one.is_sought);
            one.map(|one| one.why.clone())
        };
        let Some(before) = reason() else { return Arrival::Settled };
        let Ok(_held) = self.lock_name(name, "tried again") else { return Arrival::NotYet };
        let Ok(closed) = self.let_go(name) else { return Arrival::NotYet };
        drop(closed);
        let Err(why) = self.serve_again(name, probed) else { return Arrival::Settled };
        if before != why.message {
            tracing::warn!(volume = name, why = why.message, "a volume cannot be served yet");
        }
        if reason().is_some() { Arrival::NotYet } else { Arrival::Settled }
    }

    /// Tries to serve a failed volume; does nothing if it is served by now.
    fn serve_again(&self, name: &str, probed: ProbeResult) -> Result<(), Refused> {
        let found = self.served().unserved.iter().find(|one| one.recorded.name == name).cloned();
        let Some(one) = found else { return Ok(()) };
        let Some(volume) = one.volume else { return Err(Refused::new(Code::Failed, one.why)) };
        let (known, others) = self.snapshot()?;
        let opened = OpenedStore::as_before(&volume, &known, others.iter(), probed);
        let is_for_the_operator = opened.as_ref().is_err_and(VolumeOpenError::is_for_the_operator);
        let mut identities = self.lock_changes_at_last();
        let begun = opened
            .map_err(|why| StartRefusal::of(Refused::new(Code::Failed, why)))
            .and_then(|opened| self.begin_again(opened, &mut identities));
        let mut served = self.served();
        if let Err(StartRefusal { why, .. }) = &begun {
            for one in served.unserved.iter_mut().filter(|one| one.recorded.name == name) {
                one.why.clone_from(&why.message);
                one.is_sought &= !is_for_the_operator;
            }
        }
        drop((served, identities));
        begun.map_err(|unbegun| self.undo(unbegun))
    }

    /// Serves a volume that could not be served before.
    fn begin_again(&self, opened: OpenedStore, identities: &mut Identities) -> Result<(), StartRefusal> {
        let store = self.give_identity(opened, identities)?;
        if let Err(why) = identities.save(&self.state) {
            return Err(StartRefusal::with(Refused::new(Code::Failed, why), store));
        }
        // Its targets and subsystems were never removed.
        if let Err(why) = self.engine.add_volume(&store, &ServedNames::default()) {
            return Err(self.give_up(store, (&why, StartKind::Again)));
        }
        let mut served = self.served();
        let name = &store.volume.name;
        served.unserved.retain(|one| one.recorded.name != name.as_str());
        tracing::info!(volume = %name, "a volume that had failed is served again");
        served.stores.push(store);
        Ok(())
    }

    /// Releases a volume that was removed while shards were still using it, once they are not. Returns what is to be
    /// closed.
    fn let_go(&self, name: &str) -> Result<Vec<Store>, Refused> {
        let turn = self.lock_changes()?;
        if !self.served().leaving.iter().any(|store| store.volume.name.as_str() == name) {
            return Ok(Vec::new());
        }
        self.engine.remove_volume(name, true).map_err(|why| refused(&why))?;
        // Its targets and subsystems stay, for when it is served.
        let ways = self.served().ways.clone();
        self.engine.set_ways(&ways).map_err(|why| refused(&why))?;
        drop(turn);
        self.engine.drain_volume(name).map_err(|why| refused(&why))?;
        let mut served = self.served();
        Ok(served.leaving.extract_if(.., |store| store.volume.name.as_str() == name).collect())
    }

    /// The operator acknowledges a failed sync: recent writes may be lost, and hosts may write again.
    fn acknowledge(&self, name: &str) -> Result<VolumeReport, Refused> {
        let twin = self.twin(name)?.filter(|_| self.engine.is_in_doubt(name));
        let Some(twin) = twin else {
            return Err(Refused::new(Code::Conflict, format!("volume \"{name}\" has not failed")));
        };
        self.engine.acknowledge(&twin).map_err(|why| Refused::new(Code::Failed, why))?;
        drop(twin);
        let mut served = self.served();
        served.store(name).into_iter().for_each(Store::forgive);
        tracing::warn!(volume = name, "the operator has acknowledged that recent writes may be lost");
        served.volume(name)
    }

    /// A copy of a served volume, with its own descriptors.
    pub(super) fn twin(&self, name: &str) -> Result<Option<Store>, Refused> {
        let twin = self.served().store(name).map(|store| store.twin()).transpose();
        twin.map_err(|why| Refused::new(Code::Failed, format!("no second descriptor of its file: {why}")))
    }

    /// Determines the identity of an opened volume.
    fn give_identity(&self, opened: OpenedStore, identities: &mut Identities) -> Result<Store, StartRefusal> {
        let others = self.served().open();
        let identified = opened.with_identity(identities, others.iter());
        identified.map_err(|refused| {
            let (why, opened) = *refused;
            StartRefusal::with(Refused::new(Code::Failed, why), opened.into_store())
        })
    }

    /// Undoes what opening an unserved volume created, and closes it. This waits for its disk, so the caller must not hold
    /// the change lock.
    fn undo(&self, StartRefusal { why, store }: StartRefusal) -> Refused {
        let removed = store.as_ref().map(|store| store.undo()).unwrap_or_default();
        if !removed.is_empty() {
            let mut identities = self.lock_changes_at_last();
            removed.iter().for_each(|(key, path)| identities.unmade(key, path));
            identities.save_unmade(&self.state);
        }
        // Only now: a new file may get its device and inode numbers.
        drop(store);
        why
    }

    /// Gives up an opened volume that the engine refused. If shards may know of it, it stays open, and its file is not
    /// used otherwise, until they have released it.
    fn give_up(&self, store: Store, (why, what): (&EngineError, StartKind)) -> StartRefusal {
        if was_not_begun(why) {
            return StartRefusal::with(refused(why), store);
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
        self.served().leaving.push(store);
        StartRefusal::of(Refused { message, ..refused(why) })
    }

    /// Adds the failure that the engine reports for a volume.
    pub(super) fn with_doubt(&self, report: VolumeReport) -> VolumeReport {
        let doubt = || self.engine.is_in_doubt(&report.name).then(|| IN_DOUBT.to_owned());
        VolumeReport { failed: report.failed.clone().or_else(doubt), ..report }
    }

    /// Records which volumes come back at the next start, and this one. The caller holds the change lock.
    pub(super) fn record(&self, new: Option<&Volume>) -> Result<(), Refused> {
        let (volumes, unserved) = {
            let served = self.served();
            let volumes: Vec<Volume> = served.stores.iter().map(|store| store.volume.clone()).collect();
            (volumes, served.recorded())
        };
        volumes::save(&self.state, volumes.iter().chain(new), unserved.iter())
            .map_err(|why| Refused::new(Code::Failed, why))
    }

    /// The default target and subsystem of a volume.
    fn default_ways(&self, volume: &Volume) -> ServedNames {
        let plan = self.plan();
        let (node, open) = (plan.node.as_ref(), plan.hosts.is_empty());
        let tags = |protocol| check::tags_of(plan.portals.iter(), protocol);
        let mut ways = ServedNames::default();
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

    pub(super) fn delete(&self, name: &str, force: bool) -> Result<VolumeReport, Refused> {
        let _held = self.lock_name(name, "deleted")?;
        let mut identities = self.lock_changes()?;
        let report = self.served().volume(name)?;
        // Of a failed volume the engine has the targets and subsystems.
        self.engine.remove_volume(name, force).map_err(|why| refused(&why))?;
        let files = self.served().part_with(name);
        tracing::info!(volume = name, "volume deleted");
        let recorded = self.record(None).map_err(|why| {
            let message =
                format!("no longer served, but it will come back at the next start: {}", why.message);
            Refused::new(Code::Failed, message)
        });
        let failed = |why: StateError| {
            let message = format!("no longer served, but its records could not be removed: {why}");
            Refused::new(Code::Failed, message)
        };
        // Only now: a volume that comes back at the next start is compared with what was known of it.
        let forgotten = recorded.and_then(|()| {
            if let Ok(name) = VolumeName::parse(name) {
                identities.forget(&name);
            }
            identities.save(&self.state).map_err(failed)
        });
        drop(identities);
        // Operations in flight complete and acknowledged writes are synced before its file is closed. Only this request
        // waits for that.
        let gone = self.engine.drain_volume(name).map_err(|why| refused(&why));
        let synced = gone.and_then(|()| self.close(name));
        // By deleting a volume the operator acknowledges a failed sync.
        forgotten.and_then(|()| notes::forget(&self.state, &files).map_err(failed))?;
        synced.map(|()| report)
    }

    /// Closes the files of a volume that no shard uses; until then no other volume may use them.
    pub(super) fn close(&self, name: &str) -> Result<(), Refused> {
        let is_it = |store: &mut Store| store.volume.name.as_str() == name;
        let mut parted: Vec<Store> = {
            let mut served = self.served();
            let parted: Vec<Store> = served.leaving.extract_if(.., is_it).collect();
            served.leaving.extend(parted.iter().map(Store::outline));
            parted
        };
        // Freed memory is lost, and so are its records.
        let is_memory = |store: &&Store| matches!(store.volume.spec.source, Source::Ram | Source::Null);
        for store in parted.iter().filter(is_memory) {
            if let Err(why) = self.engine.forget_past(store) {
                tracing::warn!(%why, volume = name, "records of a deleted volume could not be removed");
            }
        }
        let synced = parted.iter_mut().map(Store::sync).fold(Ok(()), std::io::Result::and);
        drop(parted);
        self.served().leaving.retain(|store| store.volume.name.as_str() != name);
        synced.map_err(|why| {
            let message = format!("no longer served, but recent writes may be lost: cannot sync: {why}");
            Refused::new(Code::Failed, message)
        })
    }
}

/// Why a volume is not served after all, and what to undo if no shard knows it.
struct StartRefusal {
    why: Refused,
    store: Option<Box<Store>>,
}

impl StartRefusal {
    fn of(why: Refused) -> Self {
        StartRefusal { why, store: None }
    }

    fn with(why: Refused, store: Store) -> Self {
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
pub(super) fn was_not_begun(why: &EngineError) -> bool {
    match why {
        EngineError::Listen { .. } | EngineError::Start(_) | EngineError::InUse { .. } => true,
        EngineError::Unsupported(_) | EngineError::Record(_) => true,
        EngineError::Unsettled(_) | EngineError::Lingers => false,
        EngineError::TimedOut | EngineError::Stopped => false,
    }
}

impl Served {
    /// All open volumes, without their files: those that are served and those that leave.
    pub(super) fn open(&self) -> Vec<Store> {
        self.stores.iter().chain(&self.leaving).map(Store::outline).collect()
    }

    /// The volume of that name, if it is served.
    pub(super) fn store(&mut self, name: &str) -> Option<&mut Store> {
        self.stores.iter_mut().find(|store| store.volume.name.as_str() == name)
    }

    /// Removes a volume that no host can reach any more, with its targets and subsystems. It is shown as leaving, and keeps
    /// its name and files, until the files are closed. Returns the files that may have records of failed syncs.
    fn part_with(&mut self, name: &str) -> Vec<Uuid> {
        let is_it = |store: &mut Store| store.volume.name.as_str() == name;
        let parted: Vec<Store> = self.stores.extract_if(.., is_it).collect();
        self.leaving.extend(parted);
        let gone = self.leaving.iter().filter(|store| store.volume.name.as_str() == name);
        let files = gone.flat_map(notes::files).collect();
        self.unserved.retain(|one| one.recorded.name != name);
        self.ways.forget(name);
        let mut stopped =
            ServedNames { targets: std::mem::take(&mut self.stopped), ..ServedNames::default() };
        stopped.forget(name);
        self.stopped = stopped.targets;
        files
    }

    /// Refuses a name in use by any volume, served or not.
    fn free_for(&self, name: &str) -> Result<(), Refused> {
        match self.volume(name) {
            Ok(_) => Err(Refused::new(Code::Conflict, format!("there is already a volume \"{name}\""))),
            Err(_) => Ok(()),
        }
    }

    /// Records of volumes that are not served and come back at the next start.
    fn recorded(&self) -> Vec<VolumeRecord> {
        let created = self.unserved.iter().filter(|one| one.is_created());
        created.map(|one| one.recorded.clone()).collect()
    }

    pub(super) fn volumes(&self) -> Vec<VolumeReport> {
        let served = self.stores.iter().map(|store| self.report(store));
        let leaving = self.leaving.iter().map(|store| self.leaver(store));
        served.chain(self.unserved.iter().map(|one| self.failed(one))).chain(leaving).collect()
    }

    pub(super) fn volume(&self, name: &str) -> Result<VolumeReport, Refused> {
        let all = self.volumes();
        let found = all.iter().find(|report| report.name == name).cloned();
        found.ok_or_else(|| unknown("volume", name, all.iter().map(|report| report.name.as_str())))
    }

    fn leaver(&self, store: &Store) -> VolumeReport {
        let failed = Some(format!("deleted: {}", EngineError::Lingers));
        VolumeReport { failed, ..self.report(store) }
    }

    /// The report of a volume that could not be opened.
    fn failed(&self, one: &FailedVolume) -> VolumeReport {
        let spec = one.volume.as_ref().map(|volume| &volume.spec);
        let is = |flag: fn(&spec::Spec) -> bool| spec.is_some_and(flag);
        VolumeReport {
            name: one.recorded.name.clone(),
            kind: spec.map_or("unknown", |spec| spec.source.kind()).to_owned(),
            path: spec.and_then(|spec| spec.source.place()),
            read_only: is(|spec| spec.read_only),
            write_cache: is(|spec| spec.cache),
            direct: is(|spec| spec.direct),
            thin: is(|spec| spec.thin),
            removable: is(|spec| spec.removable),
            uuid: spec.and_then(|spec| spec.uuid),
            created: one.is_created(),
            failed: Some(one.why.clone()),
            ..VolumeReport::default()
        }
    }

    /// All volumes, without what leads to them.
    pub(super) fn outlines(&self) -> Vec<VolumeReport> {
        let leaver = |store| {
            let failed = Some(format!("deleted: {}", EngineError::Lingers));
            VolumeReport { failed, ..outline(store) }
        };
        let served = self.stores.iter().map(outline);
        let leaving = self.leaving.iter().map(leaver);
        served.chain(self.unserved.iter().map(|one| self.failed(one))).chain(leaving).collect()
    }

    fn report(&self, store: &Store) -> VolumeReport {
        let volume = &store.volume;
        let exports = self.ways.targets.iter().flat_map(|target| {
            let luns = target.luns.iter().filter(|lun| lun.volume == volume.name);
            luns.map(|lun| ExportReport {
                target: target.name.clone(),
                lun: lun.lun,
                read_only: lun.read_only,
            })
        });
        VolumeReport {
            exports: exports.collect(),
            namespaces: self.namespaces_of(&volume.name),
            ..outline(store)
        }
    }
}

/// The report of an open volume, without what leads to it.
fn outline(store: &Store) -> VolumeReport {
    let (volume, spec) = (&store.volume, &store.volume.spec);
    VolumeReport {
        name: volume.name.to_string(),
        kind: spec.source.kind().to_owned(),
        path: spec.source.place(),
        size_bytes: Some(store.bytes),
        block_bytes: Some(spec.block),
        physical_bytes: Some(store.physical),
        read_only: spec.read_only,
        write_cache: spec.cache,
        direct: spec.direct,
        thin: spec.thin,
        removable: spec.removable,
        uuid: Some(store.uuid),
        created: volume.origin == Origin::Created,
        ..VolumeReport::default()
    }
}
