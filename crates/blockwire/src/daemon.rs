//! The running daemon as the control plane sees it: what is served, and the requests that change it.
//!
//! Invariant: a change is recorded in the state directory before it is reported as done, and undone
//! in the engine if it cannot be recorded.

mod targets;
mod truth;

pub use targets::Again;
pub use truth::STATES;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    attached::held::{self, Attachments},
    chiscsi::report::LineReport,
    config::check,
    control::{Answer, AttachRequest, Code, Refused, Request, server::Service},
    engine::{Engine, EngineError, Stop},
    exit::{Exit, Failure},
    name::VolumeName,
    plan::{Origin, Plan, Protocol, Target, Volume, Ways},
    report::{
        AttachmentReport, ConnectionReport, ExportReport, LunReport, PortalReport, SessionReport,
        StatusReport, TargetReport, VolumeReport,
    },
    size,
    spec::{self, Source},
    state::{StateDir, identity::Identities, volumes},
    store::Store,
    suggest,
};

/// How long users of a device that is to go are waited for.
const DETACH: Duration = Duration::from_secs(30);

/// The daemon.
pub struct Daemon {
    engine: Arc<dyn Engine>,
    /// The plan as it was at start; volumes and targets that came later are in `served`.
    plan: Plan,
    state: Arc<StateDir>,
    served: Mutex<Served>,
    stopping: Arc<Ending>,
    started: Instant,
    attachments: Arc<Attachments>,
    /// Where the control socket is.
    control: PathBuf,
    /// Reads the files of the targets again, if they can be read while the daemon runs.
    again: Option<Again>,
}

/// What is served now.
struct Served {
    stores: Vec<Store>,
    ways: Ways,
    /// Targets that were stopped.
    stopped: Vec<Target>,
    identities: Identities,
    /// What became of the lines of foreign files.
    lines: Vec<LineReport>,
}

/// Where requests to end are left for the main thread.
#[derive(Debug, Default)]
pub struct Ending {
    asked: Mutex<Option<Stop>>,
    changed: Condvar,
}

impl Ending {
    /// Asks for an end; a hasty one overrides a clean one.
    pub fn ask(&self, how: Stop) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if *asked != Some(Stop::Now) {
            *asked = Some(how);
        }
        self.changed.notify_all();
    }

    /// Waits until an end is asked for.
    pub fn wait(&self) -> Stop {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(how) = *asked {
                return how;
            }
            asked = self.changed.wait(asked).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until a hasty end is asked for, or `done` says that none is needed any more.
    pub fn wait_for_haste(&self, done: impl Fn() -> bool) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        while *asked != Some(Stop::Now) {
            if done() {
                return false;
            }
            let waited = self.changed.wait_timeout(asked, Duration::from_millis(20));
            asked = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Daemon {
    /// The daemon around an engine that serves `plan` with `stores`.
    pub fn new(
        engine: Arc<dyn Engine>,
        plan: Plan,
        stores: Vec<Store>,
        identities: Identities,
        state: Arc<StateDir>,
        stopping: Arc<Ending>,
        control: PathBuf,
    ) -> Self {
        let (stopped, lines) = (Vec::new(), Vec::new());
        let served = Mutex::new(Served { stores, ways: plan.ways.clone(), stopped, identities, lines });
        let (attachments, started) = (Arc::default(), Instant::now());
        Daemon { engine, plan, state, served, stopping, started, attachments, control, again: None }
    }

    /// With what became of the lines of foreign files, and how they are read again.
    #[must_use]
    pub fn of_files(self, lines: Vec<LineReport>, again: Option<Again>) -> Self {
        self.served().lines = lines;
        Daemon { again, ..self }
    }

    /// The remote volumes that it holds as local block devices.
    pub fn attachments(&self) -> Arc<Attachments> {
        self.attachments.clone()
    }

    /// Its control socket.
    pub fn control(&self) -> &Path {
        &self.control
    }

    fn attach(&self, request: AttachRequest) -> Result<AttachmentReport, Refused> {
        let wish = held::wish(request, &self.control).map_err(|why| Refused::new(Code::Invalid, why))?;
        self.attachments.attach(wish).map_err(not_attached)
    }

    fn detach(&self, way: &str, now: bool) -> Result<Answer, Refused> {
        match self.attachments.detach(way, now, DETACH) {
            Some(ended) => ended.map(|()| Answer::Detached { way: way.to_owned() }).map_err(not_attached),
            None => Err(Refused::new(Code::NotFound, format!("the daemon holds nothing that is {way}"))),
        }
    }

    /// One change at a time; a panic in another one leaves a state that was valid before it.
    fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn create(&self, name: &str, spec: &str) -> Result<VolumeReport, Refused> {
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
        let mut served = self.served();
        if served.stores.iter().any(|store| store.volume.name == volume.name) {
            return Err(Refused::new(
                Code::Conflict,
                format!("there is already a volume \"{}\"", volume.name),
            ));
        }
        let ways = self.default_ways(&volume);
        served.free_to_use(&ways)?;
        let Served { stores, identities, .. } = &mut *served;
        let store =
            Store::open(&volume, identities, stores.iter()).map_err(|why| Refused::new(Code::Failed, why))?;
        if let Err(why) = served.identities.save(&self.state) {
            store.discard();
            return Err(Refused::new(Code::Failed, why));
        }
        if let Err(why) = self.engine.add_volume(&store, &ways) {
            store.discard();
            return Err(refused(&why));
        }
        let name = volume.name.clone();
        let recorded = served.stores.iter().map(|store| &store.volume).chain([&volume]);
        if let Err(why) = volumes::save(&self.state, recorded) {
            // What cannot be remembered must not be served: it would be gone after a restart.
            let _ = self.engine.remove_volume(name.as_str(), true);
            store.discard();
            return Err(Refused::new(Code::Failed, why));
        }
        served.stores.push(store);
        served.ways.extend(&ways);
        tracing::info!(volume = %name, "volume created");
        served.volume(name.as_str())
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

    fn delete(&self, name: &str, force: bool) -> Result<VolumeReport, Refused> {
        let mut served = self.served();
        let report = served.volume(name)?;
        self.engine.remove_volume(name, force).map_err(|why| refused(&why))?;
        // No shard has it any more; what hosts were told is written is made stable before its file is let go.
        let named = served.stores.iter_mut().find(|store| store.volume.name.as_str() == name);
        let synced = named.map_or(Ok(()), Store::sync);
        served.stores.retain(|store| store.volume.name.as_str() != name);
        served.ways.forget(name);
        let mut stopped = Ways { targets: std::mem::take(&mut served.stopped), ..Ways::default() };
        stopped.forget(name);
        served.stopped = stopped.targets;
        tracing::info!(volume = name, "volume deleted");
        volumes::save(&self.state, served.stores.iter().map(|store| &store.volume)).map_err(|why| {
            let message = format!("no longer served, but it will come back at the next start: {why}");
            Refused::new(Code::Failed, message)
        })?;
        synced.map_err(|why| {
            let message =
                format!("no longer served, but what was written last may be lost: cannot sync: {why}");
            Refused::new(Code::Failed, message)
        })?;
        Ok(report)
    }

    fn resize(&self, name: &str, bytes: u64, shrink: bool) -> Result<VolumeReport, Refused> {
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
        if bytes >= before {
            let grown = store.set_len(bytes);
            if store.in_doubt {
                self.engine.sync_failed(name);
            }
            grown.map_err(failed)?;
            if let Err(why) = self.engine.resize_volume(name, bytes) {
                let _ = store.set_len(before);
                return Err(refused(&why));
            }
        } else {
            self.engine.resize_volume(name, bytes).map_err(|why| refused(&why))?;
            let shrunk = store.set_len(bytes);
            if store.in_doubt {
                self.engine.sync_failed(name);
            }
            if let Err(why) = shrunk {
                let _ = self.engine.resize_volume(name, before);
                return Err(failed(why));
            }
        }
        store.volume.spec.size = Some(bytes);
        tracing::info!(volume = name, bytes, "volume resized");
        volumes::save(&self.state, served.stores.iter().map(|store| &store.volume))
            .map_err(|why| Refused::new(Code::Failed, format!("resized, but not recorded: {why}")))?;
        served.volume(name)
    }

    fn targets(&self) -> Result<Vec<TargetReport>, Refused> {
        let sessions = self.engine.sessions().map_err(|why| refused(&why))?;
        let listeners = self.engine.listeners();
        let served = self.served();
        let running = served.ways.targets.iter().map(|target| (target, false));
        let all = running.chain(served.stopped.iter().map(|target| (target, true)));
        let report =
            |(target, stopped)| TargetReport { stopped, ..self.target(target, &sessions, &listeners) };
        Ok(all.map(report).collect())
    }

    fn target(
        &self,
        target: &Target,
        sessions: &[SessionReport],
        listeners: &[crate::report::ListenerReport],
    ) -> TargetReport {
        let through = listeners.iter().enumerate().filter(|(at, listener)| {
            listener.protocol == Protocol::Iscsi.as_str()
                && target.portals.contains(&listener.tag)
                && target.listeners.as_ref().is_none_or(|own| own.contains(at))
        });
        let granted =
            self.plan.hosts.iter().filter(|host| host.speaks_iscsi() && host.grant(&target.name).is_some());
        TargetReport {
            name: target.name.clone(),
            alias: target.alias.clone(),
            portals: through.map(|(_, l)| PortalReport { address: l.address, tag: l.tag }).collect(),
            luns: target
                .luns
                .iter()
                .map(|lun| LunReport {
                    lun: lun.lun,
                    volume: lun.volume.to_string(),
                    read_only: lun.read_only,
                })
                .collect(),
            open: target.open,
            hosts: granted.map(|host| host.name.clone()).collect(),
            redirect: target.redirect.as_ref().map(|redirect| redirect.address),
            sessions: sessions.iter().filter(|session| session.target.as_ref() == Some(&target.name)).count(),
            stopped: false,
        }
    }

    fn target_named(&self, name: &str) -> Result<TargetReport, Refused> {
        named("target", name, self.targets()?, |target| &target.name)
    }

    fn connection(&self, id: u64) -> Result<ConnectionReport, Refused> {
        let all = self.engine.connections().map_err(|why| refused(&why))?;
        let found = all.into_iter().find(|connection| connection.id == id);
        found.ok_or_else(|| Refused::new(Code::NotFound, format!("there is no connection {id}")))
    }

    fn status(&self) -> Result<StatusReport, Refused> {
        let failed = |why: EngineError| refused(&why);
        let shards = self.engine.shards().map_err(failed)?;
        let sessions = self.engine.sessions().map_err(failed)?.len();
        let connections = self.engine.connections().map_err(failed)?.len();
        let served = self.served();
        Ok(StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            node: self.plan.node.as_ref().map(VolumeName::to_string),
            io: shards.first().map_or_else(|| self.plan.io.as_str().to_owned(), |shard| shard.io.clone()),
            listeners: self.engine.listeners(),
            volumes: served.stores.len(),
            targets: served.ways.targets.len(),
            subsystems: served.ways.subsystems.len(),
            sessions,
            connections,
            attachments: self.attachments.count(),
            shards: shards.len(),
            state: self.state.path().to_string_lossy().into_owned(),
        })
    }
}

impl Service for Daemon {
    fn answer(&self, request: Request) -> Result<Answer, Refused> {
        let failed = |why: EngineError| refused(&why);
        Ok(match request {
            Request::VolumeList => Answer::Volumes(self.volumes()?),
            Request::VolumeShow { name } => Answer::Volume(self.volume_shown(&name)?),
            Request::VolumeProtect { name, on } => Answer::Volume(self.protect(&name, on)?),
            Request::SubsystemList => Answer::Subsystems(self.subsystems()?),
            Request::SubsystemShow { name } => Answer::Subsystem(self.subsystem_named(&name)?),
            Request::HostList => Answer::Hosts(self.hosts()?),
            Request::HostShow { name } => Answer::Host(self.host(&name)?),
            Request::ReservationList => Answer::Reservations(self.reservations()?),
            Request::ReservationShow { name } => Answer::Reservation(self.reservation(&name)?),
            Request::PathList { name } => Answer::Paths(self.paths(name.as_deref())?),
            Request::PathSet { name, port, group, state } => {
                Answer::Paths(self.set_paths(&name, port, group, &state)?)
            }
            Request::VolumeCreate { name, spec } => Answer::Volume(self.create(&name, &spec)?),
            Request::VolumeDelete { name, force } => Answer::Deleted(self.delete(&name, force)?),
            Request::VolumeResize { name, size_bytes, shrink } => {
                Answer::Volume(self.resize(&name, size_bytes, shrink)?)
            }
            Request::TargetList => Answer::Targets(self.targets()?),
            Request::TargetShow { name } => Answer::Target(self.target_named(&name)?),
            Request::TargetStart { names } => Answer::Switched(self.start_targets(names.as_deref())?),
            Request::TargetStop { names } => Answer::Switched(self.stop_targets(&names)?),
            Request::TargetSettings { names } => Answer::Settings(self.settings(&names)?),
            Request::FileLines => Answer::Lines(self.served().lines.clone()),
            Request::SessionEnd { id } => {
                self.end_session(id)?;
                Answer::SessionEnded { id }
            }
            Request::SessionList => Answer::Sessions(self.engine.sessions().map_err(failed)?),
            Request::ConnectionList => Answer::Connections(self.engine.connections().map_err(failed)?),
            Request::ConnectionShow { id } => Answer::Connection(self.connection(id)?),
            Request::ShardList => Answer::Shards(self.engine.shards().map_err(failed)?),
            Request::Attach(request) => Answer::Attached(self.attach(request)?),
            Request::Detach { way, now } => self.detach(&way, now)?,
            Request::Status => Answer::Status(self.status()?),
            Request::Stop { .. } => Answer::Stopping { pid: std::process::id() },
        })
    }

    fn replied(&self, request: &Request, done: bool) {
        // Only now, so that the reply is on its way before the process may end.
        if let (Request::Stop { now }, true) = (request, done) {
            self.stopping.ask(if *now { Stop::Now } else { Stop::Clean });
        }
    }
}

impl Served {
    /// Refuses names that something else has.
    fn free_to_use(&self, ways: &Ways) -> Result<(), Refused> {
        let taken = |what: &str, name: &str| {
            Err(Refused::new(Code::Conflict, format!("there is already a {what} \"{name}\"")))
        };
        for target in &ways.targets {
            if self.ways.targets.iter().chain(&self.stopped).any(|other| other.name == target.name) {
                return taken("target", &target.name);
            }
        }
        for subsystem in &ways.subsystems {
            if self.ways.subsystems.iter().any(|other| other.nqn == subsystem.nqn) {
                return taken("subsystem", &subsystem.nqn);
            }
        }
        Ok(())
    }

    fn volumes(&self) -> Vec<VolumeReport> {
        self.stores.iter().map(|store| self.report(store)).collect()
    }

    fn volume(&self, name: &str) -> Result<VolumeReport, Refused> {
        let found = self.stores.iter().find(|store| store.volume.name.as_str() == name);
        let names = self.stores.iter().map(|store| store.volume.name.as_str());
        found.map(|store| self.report(store)).ok_or_else(|| unknown("volume", name, names))
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
            size_bytes: store.bytes,
            block_bytes: spec.block,
            physical_bytes: store.physical,
            read_only: spec.read_only,
            write_cache: spec.cache,
            direct: spec.direct,
            thin: spec.thin,
            removable: spec.removable,
            uuid: store.uuid,
            created: volume.origin == Origin::Created,
            exports: exports.collect(),
            namespaces: self.namespaces_of(&volume.name),
            standing: None,
        }
    }
}

/// The one of that name, or the only one whose name ends in it.
fn named<T>(what: &str, name: &str, all: Vec<T>, of: impl Fn(&T) -> &str) -> Result<T, Refused> {
    let short = format!(":{name}");
    let exact = all.iter().position(|one| of(one) == name);
    let mut ending = (0..all.len()).filter(|at| of(&all[*at]).ends_with(&short));
    let at = match (exact, ending.next(), ending.next()) {
        (Some(at), ..) | (None, Some(at), None) => at,
        (None, Some(_), Some(_)) => {
            return Err(Refused::new(Code::Invalid, format!("several {what}s end in \"{short}\"")));
        }
        (None, None, _) => return Err(unknown(what, name, all.iter().map(of))),
    };
    all.into_iter().nth(at).ok_or_else(|| Refused::new(Code::NotFound, name))
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Refused {
    let hint =
        suggest::nearest(name, known).map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
    Refused::new(Code::NotFound, format!("there is no {what} \"{name}\"{hint}"))
}

fn not_attached(why: Failure) -> Refused {
    let code = match why.exit {
        Exit::Usage => Code::Invalid,
        Exit::NothingFound => Code::NotFound,
        Exit::RequestTimeout => Code::TimedOut,
        Exit::Exists => Code::Attached,
        Exit::ConnectTimeout => Code::Unreachable,
        Exit::NotAuthenticated => Code::Unproven,
        // The last three end evaluations, which no daemon runs.
        Exit::Success | Exit::Failure | Exit::HungUp | Exit::Interrupted | Exit::Terminated => Code::Failed,
    };
    Refused::new(code, why.message)
}

fn refused(why: &EngineError) -> Refused {
    let code = match why {
        EngineError::Listen { .. } | EngineError::Start(_) => Code::Failed,
        EngineError::InUse { .. } | EngineError::Lingers => Code::Conflict,
        EngineError::Unsupported(_) => Code::Invalid,
        EngineError::TimedOut => Code::TimedOut,
        EngineError::Stopped => Code::Unavailable,
    };
    Refused::new(code, why)
}

#[cfg(test)]
#[path = "daemon_tests.rs"]
mod tests;
