//! `blockwire serve`: from arguments to a running engine, and to its end.
//!
//! Order: read and check everything; lock the state directory; open the volumes; bind the control socket;
//! start the engine; print `ready`. If one of these fails, files of volumes that this start created are
//! removed again, unless they hold data by now. Directories, and records of volumes that were found, stay.

pub mod args;
pub mod check;
mod ending;
mod resolve;
mod sandboxing;
mod taking_over;

use std::{
    collections::HashMap,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::{
    Engine, EngineError, EngineParams, connect_hints,
    daemon::{
        Configuration, Daemon, FailedVolume, PlanBuilder, PlanReader, StopSignal,
        absent_volumes::{RemoteProbes, RepeatedProbe},
        gateways, images,
    },
    dataplane::reactor_settings,
    descriptors,
    flight_files::FlightFiles,
    memory,
    state::{
        StateDir, StateError,
        configuration::{self, AppliedConfiguration},
        identity::Identities,
        volumes::{self, VolumeRecord},
    },
    store::{ProbeNeeds, ProbeResult, StorageInUse, Store, handed, open_files_ahead, volumes_of_one_name},
    upgrade::Predecessor,
};
use config::{
    ConfigFiles,
    diagnostic::{Diagnostic, Sink},
    draft::Draft,
    name::VolumeName,
    plan::{Plan, Volume, VolumeOrigin},
    spec::VolumeSource,
};
use control::{
    readers::ReaderGroup,
    report::{
        SandboxReport,
        line::{self, LineReport},
    },
    server::{ControlService, ControlSocket},
};
use metrics::{MetricsListener, ObservationSource};
use process::{
    exit::{Exit, Failure},
    log,
    paths::DefaultPaths,
};
use recovery::attachments;

use self::{
    args::ServeArgs,
    resolve::{names_file, read_configuration, resolve_plan},
};
use process::log::area;

/// Starts a data path.
pub type StartEngine = fn(EngineParams<'_>) -> Result<Arc<dyn Engine>, EngineError>;

/// What a start does to the process, and what moves its data.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Starts the data path.
    pub start: StartEngine,
    /// Restricts the process, for good: [`sandbox::enforce`], if the process is the daemon's own.
    pub enforce: fn(&sandbox::Policy) -> sandbox::Report,
}

/// For how many sessions there should be files where the configuration does not say.
const SESSIONS_DEFAULT: u16 = 1000;
/// How long the start waits for machines that say nothing; what they have is served when they answer.
const REMOTE_PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// How many volumes one line of the log names.
const NAMES_TOLD_MAX: usize = 16;
/// How long closing images of Ceph may take.
const IMAGES_CLOSE: Duration = Duration::from_secs(5);
/// Serves until `ending` is asked for. Writes the `listening` lines and `ready` to `out`.
pub fn serve(
    args: &ServeArgs,
    paths: &DefaultPaths,
    launch: &Launch,
    ending: &Arc<StopSignal>,
    out: Box<dyn Write + Send>,
) -> Result<Exit, Failure> {
    let predecessor = Predecessor::from_environment()
        .map_err(|why| Failure::failed(format!("cannot take over from the daemon that serves: {why}")))?;
    let ended = run(args, paths, launch, ending, (predecessor.as_ref(), out));
    if let (Some(predecessor), Err(failure)) = (&predecessor, &ended) {
        predecessor.refuse(&failure.to_string());
    }
    // However it has ended: an image that stays locked is refused at the next start.
    let has_closed = rbd::close_all(IMAGES_CLOSE);
    if !has_closed {
        tracing::error!(
            target: area::SERVE,
            "an image of Ceph could not be closed because the cluster does not answer: it stays locked, and the next \
             start needs break_lock=on"
        );
    }
    if !has_closed || rbd::is_opening() {
        let exit = ended.unwrap_or_else(|failure| {
            log::write_failure(&failure.to_string());
            failure.exit
        });
        log::flush();
        rbd::exit_at_once(exit as u8);
    }
    ended
}

fn run(
    args: &ServeArgs,
    paths: &DefaultPaths,
    launch: &Launch,
    ending: &Arc<StopSignal>,
    (predecessor, out): (Option<&Predecessor>, Box<dyn Write + Send>),
) -> Result<Exit, Failure> {
    let Configured { state, files, draft, lines, warnings: early } = configured(args, paths, predecessor)?;
    if let Some(predecessor) = predecessor {
        handed::set_handed_files(predecessor.take_files());
    }
    let sink = Sink::default();
    let (created, mut unserved) = restore_recorded(volumes::load_volumes(&state).map_err(Failure::failed)?);
    let plan = resolve_plan(draft, args, names_file(args, paths, &files), created, &sink);
    let (plan, warnings) = sink.into_result(plan).map_err(|errors| usage_failure(&errors))?;
    if predecessor.is_some() && plan.group.is_some() {
        let why = "[group] is in the configuration now: a daemon joins a gateway group when it starts, not by an upgrade";
        return Err(Failure::failed(why));
    }
    for warning in early.iter().chain(&warnings) {
        tracing::warn!(target: area::SERVE, "{warning}");
    }
    if let Some(warning) = memory::memory_warning(&plan) {
        tracing::warn!(target: area::SERVE, "{warning}");
    }
    let sessions = plan.limits.sessions.unwrap_or(SESSIONS_DEFAULT);
    descriptors::raise_limit(sessions.into(), descriptors::volume_file_count(&plan));
    let state = Arc::new(state);
    let mut identities = Identities::load(&state).map_err(Failure::failed)?;
    let http = plan.http.map(|address| taking_over::bind_http(address, predecessor)).transpose()?;
    let readers = plan.control_group.as_deref().map(ReaderGroup::find).transpose()?;
    let place = args.control.as_deref().unwrap_or(&paths.control);
    let mut socket = taking_over::open_control_socket(place, readers, predecessor)?;
    // Notes of attachments name the socket to other processes, whose directories are not ours.
    let control = std::path::absolute(socket.path()).map_err(Failure::failed)?;
    let serving = predecessor.and_then(Predecessor::flight_start);
    let flight = FlightFiles::create_or_warn(&control, reactor_settings::shard_count(&plan), serving);
    // Now: behind the commit of a process that takes over nothing is to fail.
    let parts = taking_over::process_parts(&socket, http.as_ref(), &flight)
        .inspect_err(|_| flight.discard())
        .map_err(Failure::failed)?;
    let sandbox = enter_sandbox(&plan, (args, paths), (&state, &control, &files), launch);
    let (mut stores, repeated) =
        open_volumes(&plan, &mut identities, &state, &mut unserved).inspect_err(|_| flight.discard())?;
    if predecessor.is_some() {
        handed::close_handed_files();
    }
    let params = EngineParams {
        plan: &plan,
        volumes: &stores,
        state: state.clone(),
        flight: flight.clone(),
        stopping: ending.clone(),
        predecessor,
    };
    let engine = match (launch.start)(params) {
        Ok(engine) => engine,
        // All that is there is the other's, and it serves on.
        Err(why) if predecessor.is_some() => {
            flight.discard();
            let unopened = unserved.iter().take(NAMES_TOLD_MAX).map(|one| format!("; {}", one.why));
            return Err(Failure::failed(format!("{why}{}", unopened.collect::<String>())));
        }
        Err(why) => {
            flight.discard();
            discard_stores(stores, &mut identities, &state);
            return Err(Failure::failed(why));
        }
    };
    if predecessor.is_some() {
        state.note_serving();
        socket.take_over();
    }
    for (name, why) in engine.unserved_volumes() {
        for store in stores.extract_if(.., |store| store.volume.name == name) {
            unserved.push(FailedVolume::open_failed(&store.volume, &why));
        }
    }
    for one in &unserved {
        tracing::error!(
            target: area::SERVE,
            volume = one.recorded.name,
            why = one.why,
            "a volume cannot be served; the others are"
        );
    }
    warn_of_transient_identity(&stores);
    warn_of_shared_names(&stores, plan.oui);
    let listeners = engine.listeners();
    let hint = connect_hints::connect_commands(&plan, &listeners);
    log::write_hint(&line::format_lines(&lines));
    // Held to the end, so that anyone who waits for it finds the socket gone too.
    let held = state.clone();
    let daemon = Daemon::new(engine.clone(), plan, stores, identities, state, ending.clone(), control);
    let daemon = daemon
        .sandboxed(sandbox)
        .with_unserved(unserved)
        .with_files(lines, args.chiscsi.is_some().then(|| plan_reader(args)))
        .in_process(parts);
    let daemon = match args.chiscsi {
        Some(_) => daemon,
        None => daemon.configured(Configuration {
            file: config_file(args, paths),
            current: files,
            build: plan_builder(args, paths),
        }),
    };
    let attachments = daemon.attachments();
    // They may be of volumes that are served here, which they are by now.
    attachments.resume_all(daemon.control_socket());
    let daemon = Arc::new(daemon);
    images::follow(&daemon).map_err(thread_failure)?;
    gateways::follow(&daemon).map_err(thread_failure)?;
    if let Some(repeated) = repeated {
        repeated.spawn(&daemon).map_err(thread_failure)?;
    }
    if let Some(http) = &http {
        let source: Arc<dyn ObservationSource> = daemon.clone();
        http.serve(&source).map_err(thread_failure)?;
        tracing::info!(target: area::SERVE, address = %http.bound_address(), "metrics");
    }
    reload_when_asked(&daemon, ending).map_err(thread_failure)?;
    daemon.announce_services();
    let daemon: Arc<dyn ControlService> = daemon;
    socket.serve(&daemon).map_err(thread_failure)?;
    announce_ready(&hint, &listeners, http.as_ref(), &socket, out);
    let exit = ending::wait_and_stop(&engine, &attachments, ending, &held);
    flight.note_end();
    Ok(exit)
}

/// Restricts this process to what the plan needs, if that is wanted. Threads that run already have no file of
/// this daemon.
fn enter_sandbox(
    plan: &Plan,
    (args, paths): (&ServeArgs, &DefaultPaths),
    (state, control, files): (&StateDir, &Path, &ConfigFiles),
    launch: &Launch,
) -> SandboxReport {
    let off = |why: &str| SandboxReport { lacks: vec![why.to_owned()], ..SandboxReport::default() };
    if !plan.sandbox.is_enabled {
        return off("[sandbox] in the configuration, or --sandbox, turns it on");
    }
    // To go on with them takes mounts, devices and processes.
    if attachments::has_waiting_attachments(control) {
        let why = "the previous daemon left attachments to go on with";
        tracing::warn!(target: area::SERVE, why, "no sandbox, though the configuration asks for one");
        return off(why);
    }
    let foreign = [&args.chiscsi, &args.policy].into_iter().flatten();
    let read_again = foreign.cloned().chain(config_file(args, paths)).collect();
    let places =
        sandboxing::OwnPlaces { state: state.path(), usual_state: &paths.state, control, read_again, files };
    sandboxing::log_report(&(launch.enforce)(&sandboxing::policy_for(plan, &places)))
}

/// What is read before anything is opened.
struct Configured {
    state: StateDir,
    files: ConfigFiles,
    draft: Draft,
    lines: Vec<LineReport>,
    warnings: Vec<Diagnostic>,
}

/// Reads the files, or what was applied since they were written, and takes the state directory. Errors of the files end
/// this before the state directory is touched, unless it holds what is to be read instead.
fn configured(
    args: &ServeArgs,
    paths: &DefaultPaths,
    predecessor: Option<&Predecessor>,
) -> Result<Configured, Failure> {
    let mut sink = Sink::default();
    let file = config_file(args, paths);
    let mut files = file.map(|path| ConfigFiles::read(&path, &sink)).unwrap_or_default();
    let (mut draft, mut lines) = read_configuration(args, &files, &sink);
    let place = args.state.as_deref().unwrap_or(&paths.state);
    let may_be_replaced = args.chiscsi.is_none() && place.join(configuration::RECORD).exists();
    let mut warnings = Vec::new();
    if !may_be_replaced {
        (sink, warnings) = fail_on_errors(sink)?;
    }
    let waits =
        |why: &StateError| tracing::info!(target: area::SERVE, %why, "waiting for another daemon to stop");
    let state = match predecessor {
        Some(predecessor) => {
            let lock = predecessor.take_state_lock();
            let missing = || Failure::failed("the daemon that hands over has no lock of its state directory");
            StateDir::adopt(place, lock.ok_or_else(missing)?)
        }
        None => StateDir::open_when_free(place, waits),
    };
    let state = state.map_err(Failure::failed)?;
    let applied = if may_be_replaced { AppliedConfiguration::load(&state) } else { Ok(None) };
    if let Some(applied) = applied.map_err(Failure::failed)? {
        let written = files.clone().absolute();
        if applied.current == written {
            // It was applied, and is what the files say.
        } else if applied.served == written {
            tracing::warn!(
                target: area::SERVE,
                "the configuration that was applied last (`blockwire apply` or `rollback`) is served, not the files, \
                 which have not changed since; `blockwire apply` without a file serves the files again"
            );
            files = applied.current;
            sink = Sink::default();
            (draft, lines) = read_configuration(args, &files, &sink);
        } else if applied.current != applied.served {
            tracing::warn!(
                target: area::SERVE,
                "the files were changed since another configuration was applied: the files are served; `blockwire \
                 rollback` serves what was applied"
            );
        }
    }
    let ((), more) = sink.into_result(()).map_err(|errors| usage_failure(&errors))?;
    warnings.extend(more);
    Ok(Configured { state, files, draft, lines, warnings })
}

/// The configuration file, if there is one.
fn config_file(args: &ServeArgs, paths: &DefaultPaths) -> Option<PathBuf> {
    let default = || paths.config.exists().then(|| paths.config.clone());
    let file = args.config.clone().or_else(default).filter(|_| args.chiscsi.is_none())?;
    Some(std::path::absolute(&file).unwrap_or(file))
}

/// Makes plans of other files while the daemon runs.
fn plan_builder(args: &ServeArgs, paths: &DefaultPaths) -> PlanBuilder {
    let (args, paths) = (args.clone(), paths.clone());
    Box::new(move |files, created| {
        let sink = Sink::default();
        let (draft, _) = read_configuration(&args, files, &sink);
        let (sink, mut warnings) =
            sink.into_result(()).map(|((), warnings)| (Sink::default(), warnings)).map_err(said)?;
        let plan = resolve_plan(draft, &args, names_file(&args, &paths, files), created, &sink);
        let (plan, more) = sink.into_result(plan).map_err(said)?;
        warnings.extend(more);
        Ok((plan, warnings))
    })
}

fn said(errors: Vec<Diagnostic>) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Applies the files again whenever that is asked for (SIGHUP), until the daemon stops.
fn reload_when_asked(daemon: &Arc<Daemon>, ending: &Arc<StopSignal>) -> std::io::Result<()> {
    let (daemon, ending) = (Arc::downgrade(daemon), ending.clone());
    let attend = move || {
        while ending.wait_for_reload() {
            let Some(daemon) = daemon.upgrade() else { return };
            daemon.reload();
        }
    };
    thread::Builder::new().name("reload".to_owned()).spawn(attend).map(drop)
}

/// How the files are read again while the daemon runs.
fn plan_reader(args: &ServeArgs) -> PlanReader {
    let args = args.clone();
    Box::new(move |created| {
        let sink = Sink::default();
        let (draft, lines) = read_configuration(&args, &ConfigFiles::default(), &sink);
        if !sink.is_clean() {
            return Err(sink.into_result(()).err().map(said).unwrap_or_default());
        }
        let plan = resolve_plan(draft, &args, args.config.is_some(), created, &sink);
        sink.into_result((plan, lines)).map(|(read, _)| read).map_err(said)
    })
}

/// Stops at errors of the files themselves, before the state directory is touched; else gives a new sink
/// and what was warned of.
fn fail_on_errors(sink: Sink) -> Result<(Sink, Vec<Diagnostic>), Failure> {
    let ((), warnings) = sink.into_result(()).map_err(|errors| usage_failure(&errors))?;
    Ok((Sink::default(), warnings))
}

fn usage_failure(errors: &[Diagnostic]) -> Failure {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Failure::usage(lines.join("\n"))
}

/// The volumes that were created at run time, and those of whose record nothing can be made.
fn restore_recorded(all: Vec<VolumeRecord>) -> (Vec<Volume>, Vec<FailedVolume>) {
    let (mut created, mut unserved) = (Vec::new(), Vec::new());
    for recorded in all {
        match recorded.to_volume() {
            Ok(volume) => created.push(volume),
            Err(why) => unserved.push(FailedVolume { recorded, volume: None, why, is_sought: false }),
        }
    }
    (created, unserved)
}

fn thread_failure(why: std::io::Error) -> Failure {
    Failure::failed(format!("cannot start a thread: {why}"))
}

/// Has the volumes of other machines looked at, all at once. Gives what was found in time, and who looks for the
/// rest.
fn probe_remotes(
    plan: &Plan,
    identities: &Identities,
) -> Result<(HashMap<VolumeName, ProbeResult>, Option<RemoteProbes>), Failure> {
    let scouts =
        plan.volumes.iter().map(|volume| (volume.name.clone(), ProbeNeeds::for_known(volume, identities)));
    let asked: Vec<_> = scouts.filter(|(_, probe)| probe.needs_probe()).collect();
    let (count, mut found) = (asked.len(), HashMap::new());
    if count == 0 {
        return Ok((found, None));
    }
    let probes = RemoteProbes::start(count).map_err(thread_failure)?;
    asked.into_iter().for_each(|(volume, probe)| probes.queue_probe(volume, probe));
    let until = Instant::now() + REMOTE_PROBE_TIMEOUT;
    while found.len() < count {
        let Some((volume, probed)) = probes.next_result(until) else { break };
        found.insert(volume, probed);
    }
    Ok((found, Some(probes)))
}

/// Opens every volume that can be opened; one that cannot is shown as failed, and keeps no other from being served. If
/// none is served and the configuration of one is wrong, the start ends.
fn open_volumes(
    plan: &Plan,
    identities: &mut Identities,
    state: &StateDir,
    unserved: &mut Vec<FailedVolume>,
) -> Result<(Vec<Store>, Option<RepeatedProbe>), Failure> {
    let (mut stores, mut in_use) = (Vec::new(), StorageInUse::default());
    let mut wrong: Vec<String> = Vec::new();
    let (mut found, probes) = probe_remotes(plan, identities)?;
    let (mut out, mut absent) = (0, Vec::new());
    // Each image of a silent cluster would be waited for.
    let mut silent_clusters: Vec<Option<PathBuf>> = Vec::new();
    let mut opened = open_files_ahead(&plan.volumes, identities, &in_use);
    for volume in &plan.volumes {
        let cluster = match &volume.spec.source {
            VolumeSource::Rbd(image) => Some(&image.conf),
            _ => None,
        };
        if cluster.is_some_and(|conf| silent_clusters.contains(conf)) {
            absent.push(volume.name.clone());
            unserved.push(FailedVolume::remote_absent(
                volume,
                "the cluster of its image does not answer; it will be retried",
            ));
            continue;
        }
        let probe = ProbeNeeds::for_known(volume, identities);
        let probed = match found.remove(&volume.name) {
            Some(probed) => probed,
            None if !probe.needs_probe() => probe.run(),
            None => {
                out += 1;
                unserved.push(FailedVolume::remote_absent(
                    volume,
                    "its machine has not responded yet; it will be retried",
                ));
                continue;
            }
        };
        let opened = match opened.remove(&volume.name) {
            Some(opened) => Store::identify(opened, identities, &in_use),
            None => Store::open_probed(volume, identities, &in_use, probed),
        };
        match (opened, volume.origin) {
            (Ok(store), _) => {
                in_use.add(&store);
                stores.push(store);
            }
            (Err(why), _) if why.is_remote_absent() => {
                silent_clusters.extend(cluster.cloned());
                absent.push(volume.name.clone());
                unserved.push(FailedVolume::remote_absent(volume, why));
            }
            (Err(why), origin) => {
                if origin == VolumeOrigin::Configured && why.is_misconfiguration() {
                    wrong.push(why.to_string());
                }
                unserved.push(FailedVolume::open_failed(volume, why));
            }
        }
    }
    if stores.is_empty() && unserved.len() == wrong.len() && !wrong.is_empty() {
        return Err(Failure::failed(wrong.join("\n")));
    }
    if let Err(why) = identities.save(state) {
        discard_stores(stores, identities, state);
        return Err(Failure::failed(why));
    }
    let probes = match probes {
        None if !absent.is_empty() => Some(RemoteProbes::start(absent.len()).map_err(thread_failure)?),
        probes => probes,
    };
    Ok((stores, probes.map(|probes| RepeatedProbe::of(probes, out, absent))))
}

/// Tells of volumes that hosts will not know again at the next start.
fn warn_of_transient_identity(stores: &[Store]) {
    let is_passing = |store: &&Store| {
        let spec = &store.volume.spec;
        matches!(spec.source, VolumeSource::Ram | VolumeSource::Null) && spec.uuid.is_none()
    };
    let mut names = stores.iter().filter(is_passing).map(|store| store.volume.name.as_str());
    let named: Vec<&str> = names.by_ref().take(NAMES_TOLD_MAX).collect();
    if !named.is_empty() {
        let more = match names.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        tracing::info!(
            target: area::SERVE,
            volumes = format!("{}{more}", named.join(" ")),
            "a RAM volume without uuid=: hosts see a new disk at each start, without its earlier reservations, \
             whose records stay in the state directory"
        );
    }
}

/// Tells of volumes that hosts take for one disk.
fn warn_of_shared_names(stores: &[Store], oui: Option<[u8; 3]>) {
    let named = stores.iter().map(|store| (store.volume.name.as_str(), &store.uuid));
    for (first, second) in volumes_of_one_name(named, oui).into_iter().take(NAMES_TOLD_MAX) {
        tracing::warn!(
            target: area::SERVE,
            volume = second,
            other = first,
            "the UUIDs of these volumes give both the same NAA name: a host that sees both over iSCSI with multipath takes \
             them for one disk and mixes up their data; give one of them a random uuid="
        );
    }
}

/// Undoes what opening volumes made and recorded, when none is served after all.
fn discard_stores(stores: Vec<Store>, identities: &mut Identities, state: &StateDir) {
    stores.into_iter().for_each(|store| store.discard(identities));
    identities.save_after_undo(state);
}

/// Tells people (stderr), scripts (stdout) and systemd that it serves.
fn announce_ready(
    hint: &str,
    listeners: &[control::report::ListenerReport],
    http: Option<&MetricsListener>,
    socket: &ControlSocket,
    out: Box<dyn Write + Send>,
) {
    log::write_hint(hint);
    tracing::info!(target: area::SERVE, control = %socket.path().display(), "serving");
    let mut text: String = listeners
        .iter()
        .map(|listener| format!("listening {} {}\n", listener.protocol, listener.address))
        .collect();
    if let Some(http) = http {
        text.push_str(&format!("listening http {}\n", http.bound_address()));
    }
    text.push_str("ready\n");
    ending::notify_systemd(&[sd_notify::NotifyState::Ready]);
    let mut out = out;
    // A script that has closed our stdout wants no more of it, but still wants the daemon. One that does not read it
    // must not keep us from hearing that we are to stop.
    let tell = move || drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    if let Err(why) = thread::Builder::new().name("stdout".to_owned()).spawn(tell) {
        tracing::warn!(target: area::SERVE, %why, "cannot write to stdout that the daemon is ready");
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
