//! Another configuration while the daemon runs: `plan`, `apply` and `rollback`.
//!
//! Order of an apply: the files are read and checked; what cannot change while the daemon runs is refused by name; new
//! volumes are opened and new portals bound; the configuration is recorded; the shards switch; what is no longer served
//! is closed. Until the shards have switched, a failure undoes all of it and nothing that is served has changed. If the
//! daemon is killed, the record says what the next start serves: the old configuration or the new one.
//!
//! Invariant: hosts are served by one configuration, the one that is recorded.

mod changes;

use std::path::{Path, PathBuf};

use shard::RateLimits;

use self::changes::{RESTART, colliding, growing, growth_report, limited, note_volume, refusal, report};
use super::{
    Daemon, VolumeRegistry, locks::NameLock, refusal_from_engine_error, volumes::is_unseen_by_hosts,
};
use crate::{
    descriptors, memory,
    state::{StateError, configuration::AppliedConfiguration},
    store::{OpenedStore, ProbeNeeds, Store, open_files_ahead},
};
use config::{
    ConfigFiles,
    diagnostic::{Diagnostic, Sink},
    difference::{Action, Item},
    plan::{ExportPlan, Plan, Volume, VolumeOrigin},
};
use control::{RefusalCode, RequestRefusal, report::plan::PlanReport};
use process::log::area;

/// Makes the plan of files together with what the command line says and the volumes that were created at run time; with
/// its warnings.
pub type PlanBuilder =
    Box<dyn Fn(&ConfigFiles, Vec<Volume>) -> Result<(Plan, Vec<Diagnostic>), String> + Send + Sync>;

/// What the daemon was started with, and what is in force.
pub struct Configuration {
    /// The file of `serve`; `None`: it has none.
    pub file: Option<PathBuf>,
    /// What is in force.
    pub current: ConfigFiles,
    /// Makes plans.
    pub build: PlanBuilder,
}

/// A plan that was checked, and what it comes to.
struct Reviewed {
    /// What is served.
    old: Plan,
    plan: Plan,
    report: PlanReport,
    /// Volumes that are to be opened.
    opening: Vec<Volume>,
    /// Volumes that are served no more.
    closing: Vec<String>,
    /// Volumes that grow, and to how many bytes.
    growing: Vec<(String, u64)>,
    /// Volumes with other limits than before.
    limited: Vec<(String, RateLimits)>,
    /// Nothing changes but volumes that grow, as an earlier apply could not have them.
    only_grows: bool,
}

impl Daemon {
    /// What a configuration would change.
    pub(super) fn plan_file(&self, file: Option<&Path>) -> Result<PlanReport, RequestRefusal> {
        let configuration = self.configuration()?;
        let (files, file) = configuration.read(file)?;
        Ok(PlanReport { file: Some(file), ..self.volumes.review(&files, &configuration.build)?.report })
    }

    /// Serves by a configuration from now on.
    pub(super) fn apply_file(&self, file: Option<&Path>) -> Result<PlanReport, RequestRefusal> {
        let mut configuration = self.configuration()?;
        let (files, name) = configuration.read(file)?;
        // Read once: what is applied is what is recorded.
        let served = if file.is_some() { configuration.read_served()? } else { files.clone() };
        let file = name;
        let report = self.volumes.apply(&mut configuration, files, served)?;
        tracing::info!(
            target: area::CONFIG,
            file,
            changes = report.changes.len(),
            disturbed = report.disturbed.len(),
            "configuration applied"
        );
        Ok(PlanReport { file: Some(file), ..report })
    }

    /// Serves by the configuration before the last apply.
    pub(super) fn rollback(&self) -> Result<PlanReport, RequestRefusal> {
        let mut configuration = self.configuration()?;
        let applied = AppliedConfiguration::load(&self.volumes.state).map_err(failed)?;
        let Some(applied) = applied else {
            let why = "there is nothing to roll back to: no configuration was applied";
            return Err(RequestRefusal::new(RefusalCode::NotFound, why));
        };
        // After an edit of the file and a start, what was applied is not in force.
        let is_in_force = applied.current == configuration.current.clone().absolute();
        let back = if is_in_force { applied.previous } else { applied.current };
        let served = configuration.read_served()?;
        let report = self.volumes.apply(&mut configuration, back, served)?;
        tracing::info!(
            target: area::CONFIG,
            changes = report.changes.len(),
            disturbed = report.disturbed.len(),
            "configuration rolled back"
        );
        Ok(report)
    }

    /// Applies the file of `serve` on SIGHUP, and logs what came of it.
    pub fn reload(&self) {
        match self.apply_file(None) {
            Ok(report) => {
                report.warnings.iter().for_each(|warning| tracing::warn!(target: area::CONFIG, "{warning}"))
            }
            Err(why) => {
                tracing::error!(target: area::CONFIG, why = why.message, "SIGHUP: the configuration was not applied")
            }
        }
    }

    /// The configuration, locked: one is changed or looked at at a time.
    pub(super) fn configuration(&self) -> Result<std::sync::MutexGuard<'_, Configuration>, RequestRefusal> {
        let Some(configuration) = &self.configuration else {
            let why = "the daemon serves files of another format (--chiscsi): use `blockwire iscsictl`";
            return Err(RequestRefusal::new(RefusalCode::Invalid, why));
        };
        match configuration.try_lock() {
            Ok(locked) => Ok(locked),
            Err(std::sync::TryLockError::Poisoned(locked)) => Ok(locked.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => {
                let why = "another configuration is being applied or looked at; try again";
                Err(RequestRefusal::new(RefusalCode::Conflict, why))
            }
        }
    }
}

impl Configuration {
    /// Reads a file, or that of `serve`; gives its name too.
    fn read(&self, file: Option<&Path>) -> Result<(ConfigFiles, String), RequestRefusal> {
        let Some(path) = file.or(self.file.as_deref()) else {
            let why = "the daemon was started without a configuration file: name one";
            return Err(RequestRefusal::new(RefusalCode::Invalid, why));
        };
        let sink = Sink::default();
        let files = ConfigFiles::read(path, &sink);
        match sink.into_result(files) {
            Ok((files, _)) => Ok((files, path.display().to_string())),
            Err(errors) => Err(RequestRefusal::new(RefusalCode::Invalid, lines(&errors))),
        }
    }

    /// What stands in the files of `serve`: the next start compares it with what stands there then.
    fn read_served(&self) -> Result<ConfigFiles, RequestRefusal> {
        if self.file.is_none() {
            return Ok(ConfigFiles::default());
        }
        self.read(None).map(|(files, _)| files).map_err(|why| {
            let message = format!(
                "nothing was changed: the next start needs the files that `serve` was started with: {}",
                why.message
            );
            RequestRefusal { message, ..why }
        })
    }
}

fn lines(errors: &[Diagnostic]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn failed(why: StateError) -> RequestRefusal {
    RequestRefusal::new(RefusalCode::Failed, why)
}

impl VolumeRegistry {
    /// The plan that is served: what was configured, without what was deleted since, and what was created since.
    pub(super) fn served_plan(&self) -> Plan {
        let (plan, served) = (self.plan(), self.lock_served());
        let unserved = served.unserved.iter().filter_map(|one| one.volume.as_ref());
        let there: Vec<&Volume> = served.stores.iter().map(|store| &store.volume).chain(unserved).collect();
        // Of what was configured the text counts, not what became of the volume's size since.
        let configured = plan.volumes.iter().filter(|one| {
            one.origin == VolumeOrigin::Configured && there.iter().any(|other| other.name == one.name)
        });
        let created = there.iter().copied().filter(|one| one.origin == VolumeOrigin::Created);
        let volumes = configured.chain(created).cloned().collect();
        let mut ways = served.ways.clone();
        ways.targets.extend_from_slice(&served.stopped);
        Plan { volumes, ways, ..(*plan).clone() }
    }

    /// What files come to.
    fn review(&self, files: &ConfigFiles, build: &PlanBuilder) -> Result<Reviewed, RequestRefusal> {
        let old = self.served_plan();
        let created = old.volumes.iter().filter(|one| one.origin == VolumeOrigin::Created).cloned().collect();
        let (plan, warnings) =
            build(files, created).map_err(|why| RequestRefusal::new(RefusalCode::Invalid, why))?;
        let difference = old.difference(&plan);
        let (mut opening, mut refused_changes) = (Vec::new(), Vec::new());
        opening.extend(difference.volumes.added.iter().map(|(_, volume)| volume.clone()));
        let mut changes = Vec::new();
        for change in difference.changes() {
            let mut report = report(&change);
            if change.item == Item::Volume {
                let served = self.lock_served();
                let new = plan.volumes.iter().find(|volume| volume.name.as_str() == change.name);
                let is_failed = served.unserved.iter().any(|one| one.recorded.name == change.name);
                note_volume(&change, new, &served, is_failed, &mut report);
                if let (Action::Change, true, Some(new)) = (change.action, is_failed, new) {
                    opening.push(new.clone());
                }
            }
            if report.effect == RESTART {
                refused_changes.push(refusal(&report));
            }
            changes.push(report);
        }
        refused_changes.extend(colliding(&old, &plan));
        let growing = growing(&plan, &self.lock_served());
        let only_grows = changes.is_empty();
        for (name, bytes) in &growing {
            if !changes.iter().any(|one| one.item == Item::Volume.as_str() && one.name == *name) {
                changes.push(growth_report(name, *bytes));
            }
        }
        let limited = limited(&old, &plan);
        let closing = difference.volumes.removed.iter().map(|(name, _)| name.clone()).collect();
        let disturbed = self.engine.review(&plan).map_err(|why| refusal_from_engine_error(&why))?;
        let mut warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        warnings.extend(memory::memory_warning(&plan));
        let report =
            PlanReport { file: None, applied: false, changes, disturbed, refused: refused_changes, warnings };
        Ok(Reviewed { old, plan, report, opening, closing, growing, limited, only_grows })
    }

    /// Serves by other files, all of them or nothing; `served` is what stands in the files of `serve`.
    fn apply(
        &self,
        configuration: &mut Configuration,
        files: ConfigFiles,
        served: ConfigFiles,
    ) -> Result<PlanReport, RequestRefusal> {
        let reviewed = self.review(&files, &configuration.build)?;
        if !reviewed.report.refused.is_empty() {
            let why = format!(
                "nothing was changed, because a part cannot change while the daemon runs; restart it with this file, \
                 or leave that part out:\n{}",
                reviewed.report.refused.join("\n")
            );
            return Err(RequestRefusal::new(RefusalCode::Conflict, why));
        }
        let files = files.absolute();
        let current = configuration.current.clone().absolute();
        if files == current && reviewed.only_grows {
            self.grow(&reviewed)?;
            return Ok(PlanReport { applied: true, ..reviewed.report });
        }
        let changing = reviewed.opening.iter().map(|volume| volume.name.as_str());
        let changing = changing.chain(reviewed.closing.iter().map(String::as_str));
        let _held: Vec<NameLock<'_>> =
            changing.map(|name| self.lock_name(name, "applied")).collect::<Result<_, _>>()?;
        self.free_names(&reviewed.opening)?;
        let opened = self.open_new(&reviewed.opening)?;
        let record =
            AppliedConfiguration { served: served.absolute(), current: files.clone(), previous: current };
        self.switch(&reviewed, opened, &record)?;
        configuration.current = files;
        // What is removed is closed whether or not another volume can grow.
        let (grown, closed) = (self.grow(&reviewed), self.close_old(&reviewed.closing));
        join(join(grown, closed), self.limit_changed(&reviewed))?;
        Ok(PlanReport { applied: true, ..reviewed.report })
    }

    /// Sees to it that the names of new volumes are free, now that no other request takes them: since the review one may
    /// have been served, and one that was removed before may not be closed yet.
    pub(super) fn free_names(&self, volumes: &[Volume]) -> Result<(), RequestRefusal> {
        for name in volumes.iter().map(|volume| volume.name.as_str()) {
            if self.lock_served().store_mut(name).is_some() {
                let why = format!("nothing was changed: volume \"{name}\" is served meanwhile; try again");
                return Err(RequestRefusal::new(RefusalCode::Conflict, why));
            }
            self.drain_removed(name).and_then(|()| self.close_files(name)).map_err(|why| {
                let message = format!(
                    "nothing was changed: the volume \"{name}\" of before is not closed: {}",
                    why.message
                );
                RequestRefusal { message, ..why }
            })?;
        }
        Ok(())
    }

    /// Opens new volumes; nothing is locked but their names, since disks and other machines may take their time.
    fn open_new(&self, volumes: &[Volume]) -> Result<Vec<OpenedStore>, RequestRefusal> {
        let (known, mut others) = self.snapshot()?;
        let mut ahead = open_files_ahead(volumes, &known, &others);
        let mut opened: Vec<OpenedStore> = Vec::new();
        for volume in volumes {
            let open = || {
                let probed = ProbeNeeds::for_known(volume, &known).run();
                OpenedStore::reopen(volume, &known, &others, probed)
            };
            match ahead.remove(&volume.name).map_or_else(open, Ok) {
                Ok(store) => {
                    others.add(store.store());
                    opened.push(store);
                }
                Err(why) => {
                    let why = RequestRefusal::new(RefusalCode::Failed, format!("nothing was changed: {why}"));
                    opened.extend(ahead.into_values());
                    return Err(self.undo_all(why, opened.into_iter().map(OpenedStore::into_store).collect()));
                }
            }
        }
        Ok(opened)
    }

    /// Undoes what opening volumes made.
    fn undo_all(&self, why: RequestRefusal, stores: Vec<Store>) -> RequestRefusal {
        let made: Vec<_> = stores.iter().flat_map(Store::undo_file_creation).collect();
        if !made.is_empty() {
            let mut identities = self.lock_changes_unbounded();
            made.iter().for_each(|(key, path)| identities.remove_created(key, path));
            identities.save_after_undo(&self.state);
        }
        drop(stores);
        why
    }

    /// Records the configuration and has the shards switch to it. After an error all is as it was.
    fn switch(
        &self,
        reviewed: &Reviewed,
        opened: Vec<OpenedStore>,
        record: &AppliedConfiguration,
    ) -> Result<(), RequestRefusal> {
        let mut identities = self.lock_changes_unbounded();
        let before = identities.clone();
        let now = self.served_plan();
        let is_same = now.volumes == reviewed.old.volumes && now.ways == reviewed.old.ways;
        let (mut stores, mut done) = (Vec::new(), Ok(()));
        if !is_same {
            let why = "nothing was changed: volumes or targets were changed meanwhile; try again";
            done = Err(RequestRefusal::new(RefusalCode::Conflict, why));
        }
        let mut others = self.lock_served().open_stores();
        for one in opened {
            if done.is_err() {
                stores.push(one.into_store());
                continue;
            }
            match one.assign_identity(&mut identities, &others) {
                Ok(store) => {
                    others.add(&store);
                    stores.push(store);
                }
                Err(clash) => {
                    let (why, one) = *clash;
                    stores.push(one.into_store());
                    done =
                        Err(RequestRefusal::new(RefusalCode::Failed, format!("nothing was changed: {why}")));
                }
            }
        }
        let done =
            done.and_then(|()| identities.save(&self.state).map_err(failed)).map_err(|why| (why, Vec::new()));
        let Err((why, known)) = done.and_then(|()| self.commit(reviewed, &stores, record)) else {
            self.adopt(reviewed, stores);
            return Ok(());
        };
        identities.restore_files(before);
        identities.save_after_undo(&self.state);
        drop(identities);
        // Some shards may still know these: their files stay open, as after a delete.
        self.lock_served()
            .leaving
            .extend(stores.extract_if(.., |store| known.contains(&store.volume.name.to_string())));
        Err(self.undo_all(why, stores))
    }

    /// The commit: from the record on, a start serves the new configuration. A failure gives the new volumes that shards
    /// may still know.
    fn commit(
        &self,
        reviewed: &Reviewed,
        stores: &[Store],
        record: &AppliedConfiguration,
    ) -> Result<(), (RequestRefusal, Vec<String>)> {
        let unchanged = |why: RequestRefusal| {
            (RequestRefusal { message: format!("nothing was changed: {}", why.message), ..why }, Vec::new())
        };
        let prepared = self.engine.prepare(&reviewed.plan, stores);
        let prepared = prepared.map_err(|why| unchanged(refusal_from_engine_error(&why)))?;
        let before = AppliedConfiguration::load(&self.state).map_err(|why| unchanged(failed(why)))?;
        record.save(&self.state).map_err(|why| unchanged(failed(why)))?;
        let (mut added, mut done) = (Vec::new(), Ok(()));
        for store in stores {
            match self.engine.add_volume(store, &ExportPlan::default()) {
                Ok(()) => added.push(store.volume.name.to_string()),
                Err(why) => {
                    if !is_unseen_by_hosts(&why) {
                        added.push(store.volume.name.to_string());
                    }
                    done = Err(why);
                    break;
                }
            }
        }
        let ways = self.running(&reviewed.plan.ways);
        let Err(why) = done.and_then(|()| self.engine.switch(prepared, &ways)) else { return Ok(()) };
        added.retain(|name| {
            let gone = self.engine.remove_volume(name, true).and_then(|()| self.engine.drain_volume(name));
            gone.is_err()
        });
        let ways = self.lock_served().ways.clone();
        let back = self.engine.set_exports(&ways).map_err(|why| why.to_string());
        let back = back
            .and(AppliedConfiguration::restore(before.as_ref(), &self.state).map_err(|why| why.to_string()));
        if let Err(why) = back {
            tracing::error!(
                target: area::CONFIG,
                why,
                "a configuration that was refused may be in effect in part, or at the next start"
            );
        }
        Err((unchanged(refusal_from_engine_error(&why)).0, added))
    }

    /// What leads to volumes without the targets that are stopped.
    fn running(&self, ways: &ExportPlan) -> ExportPlan {
        let served = self.lock_served();
        let mut ways = ways.clone();
        ways.targets.retain(|target| !served.stopped.iter().any(|stopped| stopped.name == target.name));
        ways
    }

    /// Takes over what the shards have switched to.
    fn adopt(&self, reviewed: &Reviewed, stores: Vec<Store>) {
        if let Some(sessions) = reviewed.plan.limits.sessions {
            descriptors::raise_limit(sessions.into(), descriptors::volume_file_count(&reviewed.plan));
        }
        let ways = self.running(&reviewed.plan.ways);
        let mut served = self.lock_served();
        let is_stopped = |name: &String| !ways.targets.iter().any(|target| target.name == *name);
        let targets = reviewed.plan.ways.targets.iter();
        served.stopped = targets.filter(|target| is_stopped(&target.name)).cloned().collect();
        served
            .unserved
            .retain(|one| !stores.iter().any(|store| store.volume.name.as_str() == one.recorded.name));
        served.ways = ways;
        served.stores.extend(stores);
        drop(served);
        self.replace_plan(reviewed.plan.clone());
        self.announce_services();
    }

    /// Lets volumes grow; what has switched stays switched if one cannot. The next apply tries that one again.
    fn grow(&self, reviewed: &Reviewed) -> Result<(), RequestRefusal> {
        let mut done = Ok(());
        for (name, bytes) in &reviewed.growing {
            let grown = self.resize(name, *bytes, false).map(drop).map_err(|why| {
                let message = format!(
                    "applied, but volume \"{name}\" could not grow: {}; `blockwire apply` tries it again",
                    why.message
                );
                RequestRefusal { message, ..why }
            });
            done = join(done, grown);
        }
        done
    }

    /// Limits volumes as the configuration has it from now on.
    fn limit_changed(&self, reviewed: &Reviewed) -> Result<(), RequestRefusal> {
        let mut done = Ok(());
        for (name, limits) in &reviewed.limited {
            let limited = self.set_limits(name, *limits).map_err(|why| {
                let message =
                    format!("applied, but volume \"{name}\" keeps its earlier limits: {}", why.message);
                RequestRefusal { message, ..why }
            });
            done = join(done, limited);
        }
        done
    }

    /// Closes volumes that nothing leads to any more. What is known of them stays: they may come back.
    fn close_old(&self, names: &[String]) -> Result<(), RequestRefusal> {
        let mut done = Ok(());
        for name in names {
            let removed = {
                let _turn = self.lock_changes_unbounded();
                let removed = self.engine.remove_volume(name, true);
                let mut served = self.lock_served();
                served.unserved.retain(|one| one.recorded.name != *name);
                let served = &mut *served;
                let is_it = |store: &mut Store| store.volume.name.as_str() == name;
                served.leaving.extend(served.stores.extract_if(.., is_it));
                removed
            };
            let gone = removed
                .and_then(|()| self.engine.drain_volume(name))
                .map_err(|why| refusal_from_engine_error(&why));
            if let Err(why) = gone.and_then(|()| self.close_files(name)) {
                let message = format!("applied, but volume \"{name}\" is not closed: {}", why.message);
                done = join(done, Err(RequestRefusal { message, ..why }));
            }
        }
        done
    }
}

/// The failures of two steps, both of which were taken.
fn join(one: Result<(), RequestRefusal>, other: Result<(), RequestRefusal>) -> Result<(), RequestRefusal> {
    match (one, other) {
        (Err(one), Err(other)) => {
            Err(RequestRefusal { message: format!("{}\n{}", one.message, other.message), ..one })
        }
        (one, other) => one.and(other),
    }
}
