//! Volumes that come, go, change their size and are tried again while the daemon runs.
//!
//! Invariants: anyone who is refused has changed nothing; what hosts may have been told (a volume, a size) does not go
//! away by itself; and one volume that cannot be served keeps no other from being served.

use super::{Daemon, Served, absent::Arrival, refused, unknown};
use crate::{
    config::check,
    control::{Code, Refused},
    dataplane::notes,
    engine::EngineError,
    name::VolumeName,
    plan::{Origin, Protocol, Volume, Ways},
    report::{ExportReport, FailureReport, VolumeReport},
    size,
    spec::{self, Source},
    state::{
        StateDir, StateError,
        volumes::{self, Recorded},
    },
    store::{Scout, Scouted, Store, StoreError},
};

/// Why a volume takes no writes of which a sync has failed.
const IN_DOUBT: &str = "a sync has failed, so what was written last may be lost, and nothing more is written; look at \
                        the disk, then acknowledge it by `volume retry`";

/// A volume that should be served and cannot be.
#[derive(Clone, Debug)]
pub struct Unserved {
    /// As it is recorded; one of the configuration as it would be.
    pub recorded: Recorded,
    /// The volume, if what is recorded can be read.
    pub volume: Option<Volume>,
    /// Why it is not served.
    pub why: String,
    /// It is on another machine, which is asked for it until it comes.
    pub is_sought: bool,
}

impl Unserved {
    /// A volume that could not be opened.
    pub fn of(volume: &Volume, why: impl ToString) -> Self {
        let (recorded, volume) = (volume.into(), Some(volume.clone()));
        Unserved { recorded, volume, why: why.to_string(), is_sought: false }
    }

    /// A volume of another machine that does not give it now.
    pub fn absent(volume: &Volume, why: impl ToString) -> Self {
        Unserved { is_sought: true, ..Unserved::of(volume, why) }
    }

    fn is_created(&self) -> bool {
        self.volume.as_ref().is_none_or(|volume| volume.origin == Origin::Created)
    }
}

impl Daemon {
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
            let message =
                format!("volume \"{}\" would be reached by default, and may not be: {why}", volume.name);
            return Err(invalid(&message));
        }
        let is_free =
            |served: &Served| served.free_for(volume.name.as_str()).and_then(|()| served.free_to_use(&ways));
        is_free(&self.served())?;
        // Nothing is locked while other machines are asked.
        let scouted = Scout::of_new(&volume).look();
        let mut served = self.served();
        is_free(&served)?;
        // What is created has no past, whatever had its name.
        served.identities.forget(&volume.name);
        let store = served.create(&volume, scouted).map_err(|why| Refused::new(Code::Failed, why))?;
        if let Err(why) = served.identities.save(&self.state) {
            served.discard(store, &self.state);
            return Err(Refused::new(Code::Failed, why));
        }
        // Reservations, bad blocks and protection are of what a disk held that had this identity before.
        if store.is_blank()
            && let Err(why) = self.engine.forget_past(&store)
        {
            served.discard(store, &self.state);
            return Err(refused(&why));
        }
        // First the record: a volume that hosts have found comes back after a restart.
        let unserved = served.recorded();
        let stores = served.stores.iter().map(|store| &store.volume);
        if let Err(why) = volumes::save(&self.state, stores.chain([&volume]), unserved.iter()) {
            served.discard(store, &self.state);
            return Err(Refused::new(Code::Failed, why));
        }
        if let Err(why) = self.engine.add_volume(&store, &ways) {
            if let Err(why) = self.record(&served) {
                tracing::error!(why = why.message, volume = %volume.name, "what was refused stays recorded");
            }
            return Err(served.give_up(store, (&why, Unserving::Created), &self.state));
        }
        let name = volume.name.clone();
        served.stores.push(store);
        served.ways.extend(&ways);
        tracing::info!(volume = %name, "volume created");
        served.volume(name.as_str())
    }

    /// Serves a volume that could not be served before.
    pub(super) fn retry(&self, name: &str) -> Result<VolumeReport, Refused> {
        let scout = {
            let mut served = self.served();
            served.volume(name)?;
            if !served.unserved.iter().any(|one| one.recorded.name == name) {
                return self.acknowledge(&mut served, name);
            }
            self.let_go(&mut served, name)?;
            let Some(one) = served.unserved.iter().find(|one| one.recorded.name == name) else {
                return Err(Refused::new(Code::Conflict, format!("volume \"{name}\" has not failed")));
            };
            let Some(volume) = &one.volume else { return Err(Refused::new(Code::Failed, &one.why)) };
            Scout::of(volume, &served.identities)
        };
        // Nothing is locked while other machines are asked.
        let scouted = scout.look();
        let mut served = self.served();
        self.serve_again(&mut served, name, scouted)?;
        served.volume(name)
    }

    /// What other machines are to be asked for a volume that they did not give, if it is still to be served.
    pub(super) fn scout_absent(&self, name: &str) -> Option<Scout> {
        let served = self.served();
        let one = served.unserved.iter().find(|one| one.recorded.name == name && one.is_sought)?;
        Some(Scout::of(one.volume.as_ref()?, &served.identities))
    }

    /// Serves a volume that other machines did not give before, if they do now.
    pub(super) fn arrive(&self, name: &str, scouted: Scouted) -> Arrival {
        let mut served = self.served();
        let reason = |served: &Served| {
            let one = served.unserved.iter().find(|one| one.recorded.name == name && one.is_sought);
            one.map(|one| one.why.clone())
        };
        let Some(before) = reason(&served) else { return Arrival::Settled };
        if self.let_go(&mut served, name).is_err() {
            return Arrival::NotYet;
        }
        let Err(why) = self.serve_again(&mut served, name, scouted) else { return Arrival::Settled };
        if before != why.message {
            tracing::warn!(volume = name, why = why.message, "a volume cannot be served yet");
        }
        if reason(&served).is_some() { Arrival::NotYet } else { Arrival::Settled }
    }

    /// Takes up a volume that could not be served; one that has come meanwhile is none of these any more.
    fn serve_again(&self, served: &mut Served, name: &str, scouted: Scouted) -> Result<(), Refused> {
        let Some(at) = served.unserved.iter().position(|one| one.recorded.name == name) else {
            return Ok(());
        };
        let Some(volume) = served.unserved[at].volume.clone() else {
            return Err(Refused::new(Code::Failed, &served.unserved[at].why));
        };
        let opened = served.open(&volume, scouted);
        if opened.as_ref().is_err_and(StoreError::is_for_the_operator) {
            served.unserved[at].is_sought = false;
        }
        let opened = opened.map_err(|why| Refused::new(Code::Failed, why)).and_then(|store| {
            if let Err(why) = served.identities.save(&self.state) {
                served.discard(store, &self.state);
                return Err(Refused::new(Code::Failed, why));
            }
            // What leads to it was never taken away.
            match self.engine.add_volume(&store, &Ways::default()) {
                Ok(()) => Ok(store),
                Err(why) => Err(served.give_up(store, (&why, Unserving::Again), &self.state)),
            }
        });
        let store = opened.inspect_err(|why| served.unserved[at].why.clone_from(&why.message))?;
        served.unserved.remove(at);
        served.stores.push(store);
        tracing::info!(volume = name, "a volume that had failed is served");
        Ok(())
    }

    /// Lets go the files of a volume that was taken back while shards were still busy with it, if they are not
    /// any more.
    fn let_go(&self, served: &mut Served, name: &str) -> Result<(), Refused> {
        if !served.leaving.iter().any(|store| store.volume.name.as_str() == name) {
            return Ok(());
        }
        self.engine.remove_volume(name, true).map_err(|why| refused(&why))?;
        served.leaving.retain(|store| store.volume.name.as_str() != name);
        // What leads to it stays, for when it is served.
        self.engine.set_ways(&served.ways).map_err(|why| refused(&why))
    }

    /// The operator takes note of a failed sync: what was written may be lost, and hosts may write again.
    fn acknowledge(&self, served: &mut Served, name: &str) -> Result<VolumeReport, Refused> {
        let store = served.stores.iter_mut().find(|store| store.volume.name.as_str() == name);
        let Some(store) = store.filter(|_| self.engine.is_in_doubt(name)) else {
            return Err(Refused::new(Code::Conflict, format!("volume \"{name}\" has not failed")));
        };
        self.engine.acknowledge(store).map_err(|why| Refused::new(Code::Failed, why))?;
        store.forgive();
        tracing::warn!(volume = name, "the operator has acknowledged that what was written may be lost");
        served.volume(name)
    }

    /// What the engine holds against a volume.
    pub(super) fn with_doubt(&self, report: VolumeReport) -> VolumeReport {
        let doubt = || self.engine.is_in_doubt(&report.name).then(|| IN_DOUBT.to_owned());
        VolumeReport { failed: report.failed.clone().or_else(doubt), ..report }
    }

    /// Writes down which volumes come back.
    fn record(&self, served: &Served) -> Result<(), Refused> {
        let unserved = served.recorded();
        volumes::save(&self.state, served.stores.iter().map(|store| &store.volume), unserved.iter())
            .map_err(|why| Refused::new(Code::Failed, why))
    }

    /// What leads to a volume that no configuration names.
    fn default_ways(&self, volume: &Volume) -> Ways {
        let (node, open) = (self.plan.node.as_ref(), self.plan.hosts.is_empty());
        let tags = |protocol| check::tags_of(self.plan.portals.iter(), protocol);
        let mut ways = Ways::default();
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
        let mut served = self.served();
        let report = served.volume(name)?;
        // Of one that could not be served it has what leads there.
        let gone = self.engine.remove_volume(name, force);
        let mut synced = Ok(());
        let parted = served.stores.iter().chain(&served.leaving);
        let files: Vec<_> =
            parted.filter(|one| one.volume.name.as_str() == name).flat_map(notes::files).collect();
        match &gone {
            // No shard has it any more; what hosts were told is written is made stable before its file is let go.
            Ok(()) => {
                let Served { stores, leaving, .. } = &mut *served;
                let named =
                    stores.iter_mut().chain(leaving.iter_mut()).find(|one| one.volume.name.as_str() == name);
                synced = named.map_or(Ok(()), Store::sync);
                leaving.retain(|store| store.volume.name.as_str() != name);
            }
            // No host reaches it, and it is not to come back; its files are open until its operations end.
            Err(EngineError::Lingers) => {
                let left = served.stores.extract_if(.., |store| store.volume.name.as_str() == name);
                let left: Vec<Store> = left.collect();
                served.leaving.extend(left);
            }
            Err(why) => return Err(refused(why)),
        }
        // Memory that is let go comes back to nobody: nor does what was recorded of it.
        let memory = |one: &&Store| {
            one.volume.name.as_str() == name && matches!(one.volume.spec.source, Source::Ram | Source::Null)
        };
        if let (Ok(()), Some(store)) = (&gone, served.stores.iter().find(memory))
            && let Err(why) = self.engine.forget_past(store)
        {
            tracing::warn!(%why, volume = name, "what was recorded of a deleted volume is still there");
        }
        served.unserved.retain(|one| one.recorded.name != name);
        served.stores.retain(|store| store.volume.name.as_str() != name);
        served.ways.forget(name);
        let mut stopped = Ways { targets: std::mem::take(&mut served.stopped), ..Ways::default() };
        stopped.forget(name);
        served.stopped = stopped.targets;
        tracing::info!(volume = name, "volume deleted");
        self.record(&served).map_err(|why| {
            let message =
                format!("no longer served, but it will come back at the next start: {}", why.message);
            Refused::new(Code::Failed, message)
        })?;
        // Only now: one that comes back at the next start is held against what was known of it. Who deletes a volume
        // has seen that a sync of it has failed.
        let forgotten = served.forget(name, &self.state).and(notes::forget(&self.state, &files));
        gone.map_err(|why| refused(&why))?;
        forgotten.map_err(|why| {
            Refused::new(Code::Failed, format!("no longer served, but what was known of it still is: {why}"))
        })?;
        synced.map_err(|why| {
            let message =
                format!("no longer served, but what was written last may be lost: cannot sync: {why}");
            Refused::new(Code::Failed, message)
        })?;
        Ok(report)
    }

    /// Changes the size of a volume's file. The engine is told of a sync that fails in this, and of none before.
    fn set_len(&self, store: &mut Store, bytes: u64) -> std::io::Result<()> {
        let before = std::mem::take(&mut store.in_doubt);
        let done = store.set_len(bytes);
        if store.in_doubt {
            self.engine.sync_failed(store.volume.name.as_str());
        }
        store.in_doubt |= before;
        done
    }

    pub(super) fn resize(&self, name: &str, bytes: u64, shrink: bool) -> Result<VolumeReport, Refused> {
        let mut served = self.served();
        served.volume(name)?;
        let Some(store) = served.stores.iter_mut().find(|store| store.volume.name.as_str() == name) else {
            return Err(Refused::new(Code::NotFound, name));
        };
        let before = store.bytes;
        if bytes == 0 || !bytes.is_multiple_of(u64::from(store.volume.spec.block)) {
            let why = format!("the size must be a multiple of the block, {} bytes", store.volume.spec.block);
            return Err(Refused::new(Code::Invalid, why));
        }
        if matches!(store.volume.spec.source, Source::Remote(_)) {
            let why = "the volume is resized on the machine that has it; its hosts here see it at once";
            return Err(Refused::new(Code::Invalid, why));
        }
        if matches!(store.volume.spec.source, Source::Stripe(_)) {
            let why = "a stripe has the size of its legs: it follows volumes of other machines at once, files and \
                       devices when it is opened";
            return Err(Refused::new(Code::Invalid, why));
        }
        if matches!(store.volume.spec.source, Source::Device(_)) {
            return Err(Refused::new(Code::Invalid, "a device has the size that it has"));
        }
        if store.volume.spec.read_only {
            return Err(Refused::new(Code::Invalid, "the volume is write-protected"));
        }
        if bytes < before && !shrink {
            let why = format!(
                "it has {}; to make it smaller, and lose what lies beyond, use --shrink",
                size::human(before)
            );
            return Err(Refused::new(Code::Conflict, why));
        }
        let failed =
            |why: std::io::Error| Refused::new(Code::Failed, format!("cannot change the file: {why}"));
        // Growing: first the file, then the initiators. Shrinking: the other way round, so that
        // nobody is promised blocks that are not there.
        let mut unsettled = None;
        let file_len = store.file_len().map_err(failed)?;
        if bytes >= before {
            self.set_len(store, bytes).map_err(failed)?;
            match self.engine.resize_volume(name, bytes) {
                Ok(()) => {}
                Err(why) if was_not_begun(&why) => {
                    store.undo_growth(before, file_len);
                    return Err(refused(&why));
                }
                // Hosts may know the new size already, and write there: the file keeps it.
                Err(why) => unsettled = Some(format!("not every host may have been told: {why}")),
            }
        } else {
            self.engine.resize_volume(name, bytes).map_err(|why| refused(&why))?;
            if let Err(why) = self.set_len(store, bytes) {
                let is_cut = store.file_len().is_ok_and(|len| len.is_some_and(|len| len < before));
                if !is_cut {
                    let _ = self.engine.resize_volume(name, before);
                    return Err(failed(why));
                }
                // What was cut off is gone, and nobody is promised it again.
                store.bytes = bytes;
                unsettled = Some(format!("its file cannot be made stable: {why}"));
            }
        }
        store.volume.spec.size = Some(bytes);
        tracing::info!(volume = name, bytes, "volume resized");
        self.record(&served).map_err(|why| {
            Refused::new(Code::Failed, format!("resized, but not recorded: {}", why.message))
        })?;
        if let Some(why) = unsettled {
            let message = format!("its size is {} now, but {why}", size::human(bytes));
            return Err(Refused::new(Code::Failed, message));
        }
        served.volume(name)
    }
}

/// What was not taken by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unserving {
    /// A volume that was to be created: it is none.
    Created,
    /// One that is recorded or configured, and stays to be served.
    Again,
}

/// Whether the engine has told no host of what it refused.
fn was_not_begun(why: &EngineError) -> bool {
    match why {
        EngineError::Listen { .. } | EngineError::Start(_) | EngineError::InUse { .. } => true,
        EngineError::Unsupported(_) | EngineError::Record(_) => true,
        EngineError::Unsettled(_) | EngineError::Lingers => false,
        EngineError::TimedOut | EngineError::Stopped => false,
    }
}

impl Served {
    /// Opens a volume beside the others.
    fn open(&mut self, volume: &Volume, scouted: Scouted) -> Result<Store, StoreError> {
        let Served { stores, leaving, identities, .. } = self;
        let others = stores.iter().chain(leaving.iter());
        Store::open_scouted(volume, identities, others, scouted)
    }

    /// Undoes what opening it made.
    fn discard(&mut self, store: Store, state: &StateDir) {
        store.discard(&mut self.identities);
        self.identities.save_unmade(state);
    }

    /// Parts with what was opened and which the engine did not take. Where shards may know of it, it stays open, and
    /// its file is nobody else's, until they have let it go.
    fn give_up(&mut self, store: Store, (why, what): (&EngineError, Unserving), state: &StateDir) -> Refused {
        if was_not_begun(why) {
            self.discard(store, state);
            return refused(why);
        }
        let name = &store.volume.name;
        let message = match what {
            Unserving::Created => format!(
                "{why}; it is not served and not recorded, but shards may be busy with it still, so its file stays \
                 open: `blockwire volume delete {name}` lets it go, `volume list` shows it until then"
            ),
            Unserving::Again => format!(
                "{why}; it is not served, but shards may be busy with it still, so its file stays open: `blockwire \
                 volume retry {name}` serves it when they are not"
            ),
        };
        self.leaving.push(store);
        Refused { message, ..refused(why) }
    }

    /// The same, of one that is new.
    fn create(&mut self, volume: &Volume, scouted: Scouted) -> Result<Store, StoreError> {
        let Served { stores, leaving, identities, .. } = self;
        let others = stores.iter().chain(leaving.iter());
        Store::create(volume, identities, others, scouted)
    }

    /// Forgets what was known of a volume by its name; one that comes by that name is another.
    fn forget(&mut self, name: &str, state: &StateDir) -> Result<(), StateError> {
        if let Ok(name) = VolumeName::parse(name) {
            self.identities.forget(&name);
        }
        self.identities.save(state)
    }

    /// Refuses a name that a volume has, whatever has become of it.
    fn free_for(&self, name: &str) -> Result<(), Refused> {
        match self.volume(name) {
            Ok(_) => Err(Refused::new(Code::Conflict, format!("there is already a volume \"{name}\""))),
            Err(_) => Ok(()),
        }
    }

    /// What is recorded of volumes that are not served and shall come back.
    fn recorded(&self) -> Vec<Recorded> {
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

    /// A volume of which nothing is known but what was asked for.
    fn failed(&self, one: &Unserved) -> VolumeReport {
        let spec = one.volume.as_ref().map(|volume| &volume.spec);
        let is = |flag: fn(&spec::Spec) -> bool| spec.is_some_and(flag);
        VolumeReport {
            name: one.recorded.name.clone(),
            kind: spec.map_or("unknown", |spec| spec.source.kind()).to_owned(),
            path: spec.and_then(|spec| spec.source.place()),
            size_bytes: None,
            block_bytes: None,
            physical_bytes: None,
            read_only: is(|spec| spec.read_only),
            write_cache: is(|spec| spec.cache),
            direct: is(|spec| spec.direct),
            thin: is(|spec| spec.thin),
            removable: is(|spec| spec.removable),
            uuid: spec.and_then(|spec| spec.uuid),
            created: one.is_created(),
            failed: Some(one.why.clone()),
            exports: Vec::new(),
            namespaces: Vec::new(),
            standing: None,
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
            failed: None,
            exports: exports.collect(),
            namespaces: self.namespaces_of(&volume.name),
            standing: None,
        }
    }
}
