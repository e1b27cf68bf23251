//! The running daemon as the control plane sees it: what is served, and the requests that change it.
//!
//! Invariant: a change is recorded in the state directory before it is reported as done, and undone
//! in the engine if it cannot be recorded.

pub mod absent_volumes;
mod access;
mod announcing;
mod backup;
mod blocked_hosts;
mod configuration;
mod exports_by_volume;
pub mod gateways;
pub mod images;
mod limits;
mod locks;
mod observation;
mod resize;
mod sessions;
mod snapshot;
mod targets;
mod upgrade;
mod volume_reports;
mod volumes;

pub use configuration::{Configuration, PlanBuilder};
pub use targets::PlanReader;
pub use upgrade::ProcessParts;
pub use volumes::FailedVolume;

use limits::RateChange;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock},
    time::{Duration, Instant, SystemTime},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    Engine, EngineError, StopMode,
    state::{StateDir, identity::Identities},
    store::Store,
};
use config::plan::{ExportPlan, Plan, Protocol, Target};
use control::{
    Answer, AttachRequest, RefusalCode, Request, RequestRefusal,
    report::{
        AttachmentReport, ConnectionReport, LunReport, PortalReport, SandboxReport, SessionReport,
        StatusReport, TargetReport, line::LineReport,
    },
    server::ControlService,
};
use metrics::ObservationSource;
use multipath::suggest;
use process::exit::{Exit, Failure};
use recovery::attachments::{self, Attachments};

/// How long a detach waits for users of the device.
const DETACH_TIMEOUT: Duration = Duration::from_secs(30);

/// The daemon.
pub struct Daemon {
    volumes: VolumeRegistry,
    stopping: Arc<StopSignal>,
    started: Instant,
    started_unix_seconds: u64,
    attachments: Arc<Attachments>,
    /// Where the control socket is.
    control: PathBuf,
    /// Reads the files of the targets again, if they can be read while the daemon runs.
    again: Option<PlanReader>,
    /// What the process has restricted itself to.
    sandbox: SandboxReport,
    /// What can be applied while the daemon runs, and what is in force.
    configuration: Option<Mutex<Configuration>>,
    /// What another process needs of this one, if it is the daemon's own.
    process: Option<ProcessParts>,
}

/// What is served, and all changes to it: volumes are created, resized, retried and deleted here.
struct VolumeRegistry {
    engine: Arc<dyn Engine>,
    /// The plan as it was at start, or applied last; volumes and targets that came later are in `lock_served`.
    plan: RwLock<Arc<Plan>>,
    state: Arc<StateDir>,
    served: Mutex<ServedState>,
    /// What is known of files and of remote volumes. It is locked while what is served is changed.
    identities: Mutex<Identities>,
    /// Volumes that are being changed, and how; a change may wait for a disk.
    held: Mutex<locks::LockedNames>,
    announcements: announcing::Announcements,
}

/// What is served now.
struct ServedState {
    stores: Vec<Store>,
    /// Volumes that should be served and cannot be.
    unserved: Vec<FailedVolume>,
    /// Deleted volumes with operations or a sync in flight: their files stay open until those complete.
    leaving: Vec<Store>,
    ways: ExportPlan,
    /// Targets that were stopped.
    stopped: Vec<Target>,
    /// How the lines of foreign files were treated.
    lines: Vec<LineReport>,
}

/// Requests to stop, for the main thread; and to read the configuration again, for the thread that does.
#[derive(Debug, Default)]
pub struct StopSignal {
    asked: Mutex<Option<StopMode>>,
    /// The process that has taken over: it is the one to be stopped.
    successor: OnceLock<u32>,
    changed: Condvar,
    /// Whether the configuration is to be read again.
    reload: Mutex<bool>,
    reload_changed: Condvar,
}

impl StopSignal {
    /// Requests a stop; an immediate one overrides a clean one.
    pub fn request_stop(&self, how: StopMode) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(successor) = self.successor.get() {
            // Here nothing may be stopped: listeners and connections are the other's, too.
            if let Some(pid) = Pid::from_raw(*successor as i32) {
                let _ = kill_process(pid, Signal::TERM);
            }
            return;
        }
        if *asked != Some(StopMode::Now) {
            *asked = Some(how);
        }
        self.changed.notify_all();
        drop(asked);
        // Who waits for a reload waits no more.
        let _reload = self.reload.lock().unwrap_or_else(PoisonError::into_inner);
        self.reload_changed.notify_all();
    }

    /// Lets another process serve by `commit`, if none has requested a stop: from then on who asks for one asks that
    /// process. `None`: a stop was requested.
    pub fn pass_on<E>(
        &self,
        successor: u32,
        commit: impl FnOnce() -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.is_some() {
            return None;
        }
        let done = commit();
        if done.is_ok() {
            // It is done once: the process ends then.
            let _ = self.successor.set(successor);
        }
        Some(done)
    }

    /// Whether another process serves.
    pub fn has_passed_on(&self) -> bool {
        self.successor.get().is_some()
    }

    /// Requests that the configuration is read again and applied. Requests that come meanwhile are one.
    pub fn ask_reload(&self) {
        *self.reload.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.reload_changed.notify_all();
    }

    /// Waits until a reload is requested. False: a stop is.
    pub fn wait_for_reload(&self) -> bool {
        let mut reload = self.reload.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.asked.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
                return false;
            }
            if std::mem::take(&mut *reload) {
                return true;
            }
            reload = self.reload_changed.wait(reload).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until a stop is requested.
    pub fn wait(&self) -> StopMode {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(how) = *asked {
                return how;
            }
            asked = self.changed.wait(asked).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until an immediate stop is requested, or `done` says that none is needed any more.
    pub fn wait_for_immediate_stop(&self, done: impl Fn() -> bool) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        while *asked != Some(StopMode::Now) {
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
        stopping: Arc<StopSignal>,
        control: PathBuf,
    ) -> Self {
        let (ways, lines) = (plan.ways.clone(), Vec::new());
        let (unserved, leaving, stopped) = (Vec::new(), Vec::new(), Vec::new());
        let served = Mutex::new(ServedState { stores, unserved, leaving, ways, stopped, lines });
        let (identities, held) = (Mutex::new(identities), Mutex::default());
        let announcements = announcing::Announcements::default();
        let plan = RwLock::new(Arc::new(plan));
        let volumes = VolumeRegistry { engine, plan, state, served, identities, held, announcements };
        let (attachments, started) = (Arc::default(), Instant::now());
        // A clock that is set before 1970 says nothing.
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let started_unix_seconds = since_1970.map_or(0, |since| since.as_secs());
        let (again, configuration, sandbox) = (None, None, SandboxReport::default());
        Daemon {
            volumes,
            stopping,
            started,
            started_unix_seconds,
            attachments,
            control,
            again,
            configuration,
            sandbox,
            process: None,
        }
    }

    /// With the treatment of the lines of foreign files, and how to read these files again.
    #[must_use]
    pub fn with_files(self, lines: Vec<LineReport>, again: Option<PlanReader>) -> Self {
        self.volumes.lock_served().lines = lines;
        Daemon { again, ..self }
    }

    /// With a configuration that can be changed while the daemon runs.
    #[must_use]
    pub fn configured(self, configuration: Configuration) -> Self {
        Daemon { configuration: Some(Mutex::new(configuration)), ..self }
    }

    /// With what the process has restricted itself to.
    #[must_use]
    pub fn sandboxed(self, sandbox: SandboxReport) -> Self {
        Daemon { sandbox, ..self }
    }

    /// With what another process needs of this one.
    #[must_use]
    pub fn in_process(self, process: ProcessParts) -> Self {
        Daemon { process: Some(process), ..self }
    }

    /// With volumes that should be served and cannot be.
    #[must_use]
    pub fn with_unserved(self, unserved: Vec<FailedVolume>) -> Self {
        self.volumes.lock_served().unserved = unserved;
        self
    }

    /// The remote volumes that it holds as local block devices.
    pub fn attachments(&self) -> Arc<Attachments> {
        self.attachments.clone()
    }

    /// Its control socket.
    pub fn control_socket(&self) -> &Path {
        &self.control
    }

    fn attach_remote_volume(&self, request: AttachRequest) -> Result<AttachmentReport, RequestRefusal> {
        // It takes mounts, devices, and processes that outlive the daemon.
        if self.sandbox.landlock_abi.is_some() || self.sandbox.seccomp {
            let why = "the daemon is in its sandbox and can hold no attachment: attach without --daemon, or set \
                       `enabled = false` in [sandbox] (or leave out --sandbox) and restart the daemon";
            return Err(RequestRefusal::new(RefusalCode::Failed, why));
        }
        let options = attachments::options_from_request(request, &self.control)
            .map_err(|why| RequestRefusal::new(RefusalCode::Invalid, why))?;
        self.attachments.attach(options).map_err(refusal_from_failure)
    }

    fn detach_remote_volume(&self, way: &str, now: bool) -> Result<Answer, RequestRefusal> {
        match self.attachments.detach(way, now, DETACH_TIMEOUT) {
            Some(ended) => {
                ended.map(|()| Answer::Detached { way: way.to_owned() }).map_err(refusal_from_failure)
            }
            None => Err(RequestRefusal::new(
                RefusalCode::NotFound,
                format!("the daemon holds nothing that is {way}"),
            )),
        }
    }

    fn target_reports(&self) -> Result<Vec<TargetReport>, RequestRefusal> {
        let sessions = self.volumes.engine.sessions().map_err(|why| refusal_from_engine_error(&why))?;
        let listeners = self.volumes.engine.listeners();
        let served = self.volumes.lock_served();
        let running = served.ways.targets.iter().map(|target| (target, false));
        let all = running.chain(served.stopped.iter().map(|target| (target, true)));
        let report =
            |(target, stopped)| TargetReport { stopped, ..self.target_report(target, &sessions, &listeners) };
        Ok(all.map(report).collect())
    }

    fn target_report(
        &self,
        target: &Target,
        sessions: &[SessionReport],
        listeners: &[control::report::ListenerReport],
    ) -> TargetReport {
        let through = listeners.iter().enumerate().filter(|(at, listener)| {
            listener.protocol == Protocol::Iscsi.as_str()
                && target.portals.contains(&listener.tag)
                && target.listeners.as_ref().is_none_or(|own| own.contains(at))
        });
        let plan = self.volumes.plan();
        let granted = plan
            .hosts
            .iter()
            .filter(|host| host.may_use_iscsi() && host.target_grant(&target.name).is_some());
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

    fn target_report_by_name(&self, name: &str) -> Result<TargetReport, RequestRefusal> {
        find_by_name("target", name, self.target_reports()?, |target| &target.name)
    }

    fn connection_report(&self, id: u64, latency: bool) -> Result<ConnectionReport, RequestRefusal> {
        let all = self.volumes.engine.connections().map_err(|why| refusal_from_engine_error(&why))?;
        let found = all.into_iter().find(|connection| connection.id == id);
        let mut found = found.ok_or_else(|| {
            RequestRefusal::new(RefusalCode::NotFound, format!("there is no connection {id}"))
        })?;
        if latency {
            found.latency = Some(
                self.volumes.engine.connection_latency(id).map_err(|why| refusal_from_engine_error(&why))?,
            );
        }
        Ok(found)
    }

    fn status_report(&self) -> Result<StatusReport, RequestRefusal> {
        Ok(self.observe()?.status)
    }
}

impl ControlService for Daemon {
    fn handle_request(&self, request: Request) -> Result<Answer, RequestRefusal> {
        let failed = |why: EngineError| refusal_from_engine_error(&why);
        Ok(match request {
            Request::VolumeList => Answer::Volumes(self.volume_reports()?),
            Request::VolumeShow { name, latency } => Answer::Volume(self.volume_report(&name, latency)?),
            Request::VolumeProtect { name, on } => Answer::Volume(self.set_write_protection(&name, on)?),
            Request::VolumeLimit { name, iops_limit, iops_burst, bandwidth_limit, bandwidth_burst } => {
                let iops = RateChange { limit: iops_limit, burst: iops_burst };
                let bandwidth = RateChange { limit: bandwidth_limit, burst: bandwidth_burst };
                Answer::Volume(self.limit_volume(&name, (iops, bandwidth))?)
            }
            Request::SubsystemList => Answer::Subsystems(self.subsystem_reports()?),
            Request::SubsystemShow { name } => Answer::Subsystem(self.subsystem_report_by_name(&name)?),
            Request::HostList => Answer::Hosts(self.host_reports()?),
            Request::HostShow { name } => Answer::Host(self.host_report(&name)?),
            Request::HostBlock { name } => Answer::HostBlocked(self.block_host(&name)?),
            Request::HostUnblock { name } => Answer::HostBlocked(self.unblock_host(&name)?),
            Request::GatewayList => Answer::Gateways(Box::new(self.gateway_report()?)),
            Request::GatewayDrain { off } => Answer::Gateways(Box::new(self.drain_gateway(off)?)),
            Request::GatewayFence { gateway } => Answer::Gateways(Box::new(self.fence_gateway(&gateway)?)),
            Request::ReservationList => Answer::Reservations(self.reservation_reports()?),
            Request::ReservationShow { name } => Answer::Reservation(self.reservation_report(&name)?),
            Request::PathList { name } => Answer::Paths(self.path_reports(name.as_deref())?),
            Request::PathSet { name, port, group, state, preferred } => {
                Answer::Paths(self.set_path_states(&name, (port, group), state.as_deref(), preferred)?)
            }
            Request::VolumeCreate { name, spec } => Answer::Volume(self.volumes.create(&name, &spec)?),
            Request::VolumeDelete { name, force } => Answer::Deleted(self.volumes.delete(&name, force)?),
            Request::VolumeRetry { name } => Answer::Volume(self.volumes.retry(&name)?),
            Request::VolumeResize { name, size_bytes, shrink } => {
                Answer::Volume(self.volumes.resize(&name, size_bytes, shrink)?)
            }
            Request::VolumeSnapshot { name, file } => {
                Answer::Snapshot(self.volumes.snapshot_volume(&name, &file)?)
            }
            Request::VolumeClone { name, clone, file } => {
                Answer::Volume(self.volumes.clone_volume(&name, &clone, &file)?)
            }
            Request::TargetList => Answer::Targets(self.target_reports()?),
            Request::TargetShow { name } => Answer::Target(self.target_report_by_name(&name)?),
            Request::TargetStart { names } => Answer::Switched(self.start_targets(names.as_deref())?),
            Request::TargetStop { names } => Answer::Switched(self.stop_targets(&names)?),
            Request::TargetSettings { names } => Answer::Settings(self.target_settings(&names)?),
            Request::FileLines => Answer::Lines(self.volumes.lock_served().lines.clone()),
            Request::SessionEnd { id } => {
                self.end_session(id)?;
                Answer::SessionEnded { id }
            }
            Request::SessionKill(which) => Answer::SessionsKilled(self.kill_sessions(&which)?),
            Request::SessionList => Answer::Sessions(self.volumes.engine.sessions().map_err(failed)?),
            Request::ConnectionList => {
                Answer::Connections(self.volumes.engine.connections().map_err(failed)?)
            }
            Request::ConnectionShow { id, latency } => {
                Answer::Connection(self.connection_report(id, latency)?)
            }
            Request::Observe => Answer::Observation(Box::new(self.observe()?)),
            Request::ShardList => Answer::Shards(self.volumes.engine.shards().map_err(failed)?),
            Request::Attach(request) => Answer::Attached(self.attach_remote_volume(request)?),
            Request::Detach { way, now } => self.detach_remote_volume(&way, now)?,
            Request::Plan { file } => Answer::Plan(Box::new(self.plan_file(file.as_deref())?)),
            Request::Apply { file } => Answer::Plan(Box::new(self.apply_file(file.as_deref())?)),
            Request::Rollback => Answer::Plan(Box::new(self.rollback()?)),
            Request::Backup => Answer::Backup(self.backup()?),
            Request::Upgrade { binary, within_ms } => {
                Answer::Upgraded(self.upgrade(binary, Duration::from_millis(within_ms))?)
            }
            Request::Status => Answer::Status(self.status_report()?),
            Request::Stop { .. } => Answer::Stopping { pid: std::process::id() },
        })
    }

    fn reply_written(&self, request: &Request, done: bool) {
        // Only now, so that the reply is sent before the process may exit.
        if let (Request::Stop { now }, true) = (request, done) {
            self.stopping.request_stop(if *now { StopMode::Now } else { StopMode::Clean });
        }
        if let Request::Upgrade { .. } = request
            && self.stopping.has_passed_on()
        {
            // Another process serves. Nothing is closed in order here: sockets and files are its as well. If it has
            // ended, systemd starts the daemon again.
            process::log::flush();
            let exit = if done { Exit::Success } else { Exit::Failure };
            std::process::exit(exit as i32);
        }
    }
}

impl ServedState {
    /// Refuses names that are in use.
    fn refuse_used_names(&self, ways: &ExportPlan) -> Result<(), RequestRefusal> {
        let taken = |what: &str, name: &str| {
            Err(RequestRefusal::new(RefusalCode::Conflict, format!("there is already a {what} \"{name}\"")))
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
}

/// The one of that name, or the only one whose name ends in it.
fn find_by_name<T>(
    what: &str,
    name: &str,
    all: Vec<T>,
    of: impl Fn(&T) -> &str,
) -> Result<T, RequestRefusal> {
    let short = format!(":{name}");
    let exact = all.iter().position(|one| of(one) == name);
    let ending = all.iter().enumerate().filter(|(_, one)| of(one).ends_with(&short));
    let mut ending = ending.map(|(at, _)| at);
    let at = match (exact, ending.next(), ending.next()) {
        (Some(at), ..) | (None, Some(at), None) => at,
        (None, Some(_), Some(_)) => {
            return Err(RequestRefusal::new(
                RefusalCode::Invalid,
                format!("several {what}s end in \"{short}\""),
            ));
        }
        (None, None, _) => return Err(unknown_name(what, name, all.iter().map(of))),
    };
    all.into_iter().nth(at).ok_or_else(|| RequestRefusal::new(RefusalCode::NotFound, name))
}

fn unknown_name<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> RequestRefusal {
    let hint = suggest::nearest_word(name, known)
        .map(|near| format!("; did you mean \"{near}\"?"))
        .unwrap_or_default();
    RequestRefusal::new(RefusalCode::NotFound, format!("there is no {what} \"{name}\"{hint}"))
}

fn refusal_from_failure(why: Failure) -> RequestRefusal {
    let code = match why.exit {
        Exit::Usage => RefusalCode::Invalid,
        Exit::NothingFound => RefusalCode::NotFound,
        Exit::RequestTimeout => RefusalCode::TimedOut,
        Exit::Exists => RefusalCode::Attached,
        Exit::ConnectTimeout => RefusalCode::Unreachable,
        Exit::NotAuthenticated => RefusalCode::Unproven,
        // The last three end evaluations, which no daemon runs.
        Exit::Success
        | Exit::Failure
        | Exit::Disturbs
        | Exit::HungUp
        | Exit::Interrupted
        | Exit::Terminated => RefusalCode::Failed,
    };
    RequestRefusal::new(code, why.message)
}

fn refusal_from_engine_error(why: &EngineError) -> RequestRefusal {
    let code = match why {
        EngineError::Listen { .. } | EngineError::Start(_) => RefusalCode::Failed,
        EngineError::Record(_) | EngineError::Unsettled(_) => RefusalCode::Failed,
        EngineError::InUse { .. } | EngineError::Lingers => RefusalCode::Conflict,
        EngineError::Unsupported(_) => RefusalCode::Invalid,
        EngineError::TimedOut => RefusalCode::TimedOut,
        EngineError::Stopped => RefusalCode::Unavailable,
    };
    RequestRefusal::new(code, why)
}

#[cfg(test)]
mod tests;
