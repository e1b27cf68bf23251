//! Volumes that come, go and are tried again while the daemon runs.
//!
//! Invariants: anyone who is refused has changed nothing; what hosts may have been told (a volume, a size) does not go
//! away by itself; and one volume that cannot be served keeps no other from being served.

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
    store::{OpenedStore, ProbeNeeds, ProbeResult, Store, StoreError},
};
use config::{
    check,
    name::VolumeName,
    plan::{Origin, Protocol, ServedNames, Volume},
    spec::{self, Source},
};
use control::{
    Code, Refused,
    report::{ExportReport, FailureReport, VolumeReport},
};

/// Why a volume takes no writes after a failed sync.
const IN_DOUBT: &str = "a sync has failed: recent writes may be lost, and writes are refused; check the disk, \
                        then acknowledge with `volume retry`";

/// A volume that should be served and cannot be.
#[derive(Clone, Debug)]
pub struct FailedVolume {
    /// As it is recorded; one of the configuration as it would be.
    pub recorded: VolumeRecord,
    /// The volume, if what is recorded can be read.
    pub volume: Option<Volume>,
    /// Why it is not served.
    pub why: String,
    /// It is on another machine, which is asked for it until it comes.
    pub is_sought: bool,
}

impl FailedVolume {
    /// A volume that could not be opened.
    pub fn of(volume: &Volume, why: impl ToString) -> Self {
        let (recorded, volume) = (volume.into(), Some(volume.clone()));
        FailedVolume { recorded, volume, why: why.to_string(), is_sought: false }
    }

    /// A volume of another machine that does not give it now.
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
        // As the next start will judge it.
        if let Some(why) = check::forbidden(&self.plan, &ways) {
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
        // What is created has no past, whatever had its name.
        known.forget(&volume.name);
        let opened = OpenedStore::created(&volume, &known, others.iter(), probed);
        let opened = opened.map_err(|why| Refused::new(Code::Failed, why))?;
        let mut identities = self.lock_changes_at_last();
        let before = identities.clone();
        let begun = match is_free() {
            Ok(()) => self.begin(&volume, &ways, opened, &mut identities).inspect_err(|_| {
                // What is created next by this name is another, and nothing was ever served from this place.
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

    /// Serves a new volume. If it is not to be, what is still to be undone comes with the reason.
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

    /// Writes down what must be known of a new volume before a host finds it.
    fn prepare(&self, volume: &Volume, store: &Store, identities: &mut Identities) -> Result<(), Refused> {
        identities.save(&self.state).map_err(|why| Refused::new(Code::Failed, why))?;
        // Reservations, bad blocks and protection are of what a disk held that had this identity before.
        if store.is_blank() {
            self.engine.forget_past(store).map_err(|why| refused(&why))?;
        }
        // A volume that hosts have found comes back after a restart.
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
        // Its files are closed before they are opened again, and nobody waits for that.
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

    /// What other machines are to be asked for a volume that they did not give, if it is still to be served.
    pub(super) fn probe_absent(&self, name: &str) -> Option<ProbeNeeds> {
        let (identities, served) = (self.lock_changes_at_last(), self.served());
        let one = served.unserved.iter().find(|one| one.recorded.name == name && one.is_sought)?;
        Some(ProbeNeeds::of(one.volume.as_ref()?, &identities))
    }

    /// Serves a volume that other machines did not give before, if they do now.
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

    /// Takes up a volume that could not be served; one that has come meanwhile is none of these any more.
    fn serve_again(&self, name: &str, probed: ProbeResult) -> Result<(), Refused> {
        let found = self.served().unserved.iter().find(|one| one.recorded.name == name).cloned();
        let Some(one) = found else { return Ok(()) };
        let Some(volume) = one.volume else { return Err(Refused::new(Code::Failed, one.why)) };
        let (known, others) = self.snapshot()?;
        let opened = OpenedStore::as_before(&volume, &known, others.iter(), probed);
        let is_for_the_operator = opened.as_ref().is_err_and(StoreError::is_for_the_operator);
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
        // What leads to it was never taken away.
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

    /// Lets go a volume that was taken back while shards were still busy with it, if they are not any more. Gives what
    /// is to be closed.
    fn let_go(&self, name: &str) -> Result<Vec<Store>, Refused> {
        let turn = self.lock_changes()?;
        if !self.served().leaving.iter().any(|store| store.volume.name.as_str() == name) {
            return Ok(Vec::new());
        }
        self.engine.remove_volume(name, true).map_err(|why| refused(&why))?;
        // What leads to it stays, for when it is served.
        let ways = self.served().ways.clone();
        self.engine.set_ways(&ways).map_err(|why| refused(&why))?;
        drop(turn);
        self.engine.drain_volume(name).map_err(|why| refused(&why))?;
        let mut served = self.served();
        Ok(served.leaving.extract_if(.., |store| store.volume.name.as_str() == name).collect())
    }

    /// The operator takes note of a failed sync: what was written may be lost, and hosts may write again.
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

    /// A volume that is served, with descriptors of its own.
    pub(super) fn twin(&self, name: &str) -> Result<Option<Store>, Refused> {
        let twin = self.served().store(name).map(|store| store.twin()).transpose();
        twin.map_err(|why| Refused::new(Code::Failed, format!("no second descriptor of its file: {why}")))
    }

    /// Has it known which volume was opened.
    fn give_identity(&self, opened: OpenedStore, identities: &mut Identities) -> Result<Store, StartRefusal> {
        let others = self.served().open();
        let identified = opened.with_identity(identities, others.iter());
        identified.map_err(|refused| {
            let (why, opened) = *refused;
            StartRefusal::with(Refused::new(Code::Failed, why), opened.into_store())
        })
    }

    /// Undoes what opening a volume made that is not served, and closes it. Its disk is waited for: who has the turn
    /// does not come here.
    fn undo(&self, StartRefusal { why, store }: StartRefusal) -> Refused {
        let removed = store.as_ref().map(|store| store.undo()).unwrap_or_default();
        if !removed.is_empty() {
            let mut identities = self.lock_changes_at_last();
            removed.iter().for_each(|(key, path)| identities.unmade(key, path));
            identities.save_unmade(&self.state);
        }
        // Only now: what is made next may have its numbers.
        drop(store);
        why
    }

    /// Parts with what was opened and which the engine did not take. Where shards may know of it, it stays open, and
    /// its file is nobody else's, until they have let it go.
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

    /// What the engine holds against a volume.
    pub(super) fn with_doubt(&self, report: VolumeReport) -> VolumeReport {
        let doubt = || self.engine.is_in_doubt(&report.name).then(|| IN_DOUBT.to_owned());
        VolumeReport { failed: report.failed.clone().or_else(doubt), ..report }
    }

    /// Writes down which volumes come back, and this one. Only who has the turn does.
    pub(super) fn record(&self, new: Option<&Volume>) -> Result<(), Refused> {
        let (volumes, unserved) = {
            let served = self.served();
            let volumes: Vec<Volume> = served.stores.iter().map(|store| store.volume.clone()).collect();
            (volumes, served.recorded())
        };
        volumes::save(&self.state, volumes.iter().chain(new), unserved.iter())
            .map_err(|why| Refused::new(Code::Failed, why))
    }

    /// What leads to a volume that no configuration names.
    fn default_ways(&self, volume: &Volume) -> ServedNames {
        let (node, open) = (self.plan.node.as_ref(), self.plan.hosts.is_empty());
        let tags = |protocol| check::tags_of(self.plan.portals.iter(), protocol);
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
        // Of one that could not be served it has what leads there.
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
        // Only now: one that comes back at the next start is held against what was known of it.
        let forgotten = recorded.and_then(|()| {
            if let Ok(name) = VolumeName::parse(name) {
                identities.forget(&name);
            }
            identities.save(&self.state).map_err(failed)
        });
        drop(identities);
        // What is in flight ends, and what hosts were told is written is made stable, before its file is let go. Nobody
        // waits for that but who asked.
        let gone = self.engine.drain_volume(name).map_err(|why| refused(&why));
        let synced = gone.and_then(|()| self.close(name));
        // Who deletes a volume has seen that a sync of it has failed.
        forgotten.and_then(|()| notes::forget(&self.state, &files).map_err(failed))?;
        synced.map(|()| report)
    }

    /// Closes the files of a volume that is out of the shards; until that is done they are nobody else's.
    fn close(&self, name: &str) -> Result<(), Refused> {
        let is_it = |store: &mut Store| store.volume.name.as_str() == name;
        let mut parted: Vec<Store> = {
            let mut served = self.served();
            let parted: Vec<Store> = served.leaving.extract_if(.., is_it).collect();
            served.leaving.extend(parted.iter().map(Store::outline));
            parted
        };
        // Memory that is let go comes back to nobody: nor does what was recorded of it.
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

/// Why a volume is not served after all, and what is to be undone of it if no shard knows it.
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

/// What was not taken by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartKind {
    /// A volume that was to be created: it is none.
    Created,
    /// One that is recorded or configured, and stays to be served.
    Again,
}

/// Whether the engine has told no host of what it refused.
pub(super) fn was_not_begun(why: &EngineError) -> bool {
    match why {
        EngineError::Listen { .. } | EngineError::Start(_) | EngineError::InUse { .. } => true,
        EngineError::Unsupported(_) | EngineError::Record(_) => true,
        EngineError::Unsettled(_) | EngineError::Lingers => false,
        EngineError::TimedOut | EngineError::Stopped => false,
    }
}

impl Served {
    /// What is open, without its files: those that are served and those that leave.
    pub(super) fn open(&self) -> Vec<Store> {
        self.stores.iter().chain(&self.leaving).map(Store::outline).collect()
    }

    /// The volume of that name, if it is served.
    pub(super) fn store(&mut self, name: &str) -> Option<&mut Store> {
        self.stores.iter_mut().find(|store| store.volume.name.as_str() == name)
    }

    /// Takes away a volume that no host reaches any more, and all that leads to it. It is shown as one that leaves,
    /// and its name and files are nobody else's, until its files are closed. Gives which of its files notes may be of.
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

    /// Refuses a name that a volume has, whatever has become of it.
    fn free_for(&self, name: &str) -> Result<(), Refused> {
        match self.volume(name) {
            Ok(_) => Err(Refused::new(Code::Conflict, format!("there is already a volume \"{name}\""))),
            Err(_) => Ok(()),
        }
    }

    /// What is recorded of volumes that are not served and shall come back.
    fn recorded(&self) -> Vec<VolumeRecord> {
        let created = self.unserved.iter().filter(|one| one.is_created());
        created.map(|one| one.recorded.clone()).collect()
    }

    pub(super) fn volumes(&self) -> Vec<VolumeReport> {
        let served = self.stores.iter().map(|store| self.report(store));
        let leaving = self.leaving.iter().map(|store| self.leaver(store));
        served.chain(self.unserved.iter().map(|one| self.failed(one))).chain(leaving).collect()
    }

    /// The volumes that are not served as they should be, and why.
    pub(super) fn failures(volumes: Vec<VolumeReport>) -> Vec<FailureReport> {
        let failed = volumes.into_iter();
        failed.filter_map(|one| Some(FailureReport { volume: one.name, why: one.failed? })).collect()
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

    /// A volume that is known only by what was asked for.
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

    fn report(&self, store: &Store) -> VolumeReport {
        let (volume, spec) = (&store.volume, &store.volume.spec);
        let exports = self.ways.targets.iter().flat_map(|target| {
            let luns = target.luns.iter().filter(|lun| lun.volume == volume.name);
            luns.map(|lun| ExportReport {
                target: target.name.clone(),
                lun: lun.lun,
                read_only: lun.read_only,
            })
        });
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
            exports: exports.collect(),
            namespaces: self.namespaces_of(&volume.name),
            ..VolumeReport::default()
        }
    }
}
