//! `blockwire serve`: from arguments to a running engine, and to its end.
//!
//! Order: read and check everything; lock the state directory; open the volumes; bind the control socket;
//! start the engine; print `ready`. If one of these fails, files of volumes that this start created are
//! removed again, unless they hold data by now. Directories, and records of volumes that were found, stay.

pub mod args;

use std::{
    collections::HashMap,
    io::Write,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::{
    Engine, EngineError, Start, Stop,
    daemon::{
        Configuration, Daemon, FailedVolume, PlanBuilder, PlanReader, StopSignal,
        absent::{RemoteProbes, RepeatedProbe},
    },
    descriptors, hints, memory,
    state::{
        StateDir, StateError,
        configuration::{self, AppliedConfiguration},
        identity::Identities,
        volumes::{self, VolumeRecord},
    },
    store::{ProbeNeeds, ProbeResult, Store},
};
use config::{
    ConfigFiles,
    check::{self, Options},
    diagnostic::{Diagnostic, Located, Place, Sink},
    draft::Draft,
    name::VolumeName,
    network,
    plan::{Origin, Plan, Portal, Protocol, TcpOptions, Volume},
    spec::{self, Source},
};
use control::{
    report::line::{self, LineReport},
    server::{Service, Socket},
};
use metrics::{Listener, Observe};
use process::{
    exit::{Exit, Failure},
    log,
    paths::DefaultPaths,
};
use recovery::held::Attachments;

use self::args::ServeArgs;

/// Starts a data path.
pub type StartEngine = fn(Start<'_>) -> Result<Arc<dyn Engine>, EngineError>;

/// For how many sessions there should be files where the configuration does not say.
const SESSIONS_USUAL: u16 = 1000;
/// How long the start waits for machines that say nothing; what they have is served when they answer.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// What is served when nothing is named.
const DEMO: (&str, &str) = ("demo", "ram:256M");

/// Serves until `ending` is asked for. Writes the `listening` lines and `ready` to `out`.
pub fn serve(
    args: &ServeArgs,
    paths: &DefaultPaths,
    start: StartEngine,
    ending: &Arc<StopSignal>,
    out: Box<dyn Write + Send>,
) -> Result<Exit, Failure> {
    let Configured { state, files, draft, lines, warnings: early } = configured(args, paths)?;
    let sink = Sink::default();
    let (created, mut unserved) = recorded(volumes::load(&state).map_err(Failure::failed)?);
    let plan = planned(draft, args, created, &sink);
    let (plan, warnings) = sink.finish(plan).map_err(|errors| usage(&errors))?;
    for warning in early.iter().chain(&warnings) {
        tracing::warn!("{warning}");
    }
    if let Some(warning) = memory::shortage(&plan) {
        tracing::warn!("{warning}");
    }
    descriptors::raise(plan.limits.sessions.unwrap_or(SESSIONS_USUAL).into());
    let state = Arc::new(state);
    let mut identities = Identities::load(&state).map_err(Failure::failed)?;
    let http = plan.http.map(bind_http).transpose()?;
    let socket = Socket::bind(args.control.as_deref().unwrap_or(&paths.control))?;
    let (mut stores, repeated) = open_all(&plan, &mut identities, &state, &mut unserved)?;
    let engine = match start(Start { plan: &plan, volumes: &stores, state: state.clone() }) {
        Ok(engine) => engine,
        Err(why) => {
            discard(stores, &mut identities, &state);
            return Err(Failure::failed(why));
        }
    };
    for (name, why) in engine.unserved() {
        for store in stores.extract_if(.., |store| store.volume.name == name) {
            unserved.push(FailedVolume::of(&store.volume, &why));
        }
    }
    for one in &unserved {
        tracing::error!(
            volume = one.recorded.name,
            why = one.why,
            "a volume cannot be served; the others are"
        );
    }
    tell_passing(&stores);
    let listeners = engine.listeners();
    let hint = hints::connect(&plan, &listeners);
    log::say(&line::text(&lines));
    // Notes of attachments name the socket to other processes, whose directories are not ours.
    let control = std::path::absolute(socket.path()).map_err(Failure::failed)?;
    // Held to the end, so that anyone who waits for it finds the socket gone too.
    let held = state.clone();
    let daemon = Daemon::new(engine.clone(), plan, stores, identities, state, ending.clone(), control);
    let daemon = daemon.without(unserved).of_files(lines, args.chiscsi.is_some().then(|| again(args)));
    let daemon = match args.chiscsi {
        Some(_) => daemon,
        None => daemon.configured(Configuration {
            file: config_file(args, paths),
            current: files,
            build: plan_builder(args),
        }),
    };
    let attachments = daemon.attachments();
    // They may be of volumes that are served here, which they are by now.
    attachments.resume(daemon.control());
    let daemon = Arc::new(daemon);
    if let Some(repeated) = repeated {
        repeated.begin(&daemon).map_err(no_thread)?;
    }
    if let Some(http) = &http {
        let source: Arc<dyn Observe> = daemon.clone();
        http.serve(&source).map_err(no_thread)?;
        tracing::info!(address = %http.address(), "metrics");
    }
    reload_when_asked(&daemon, ending).map_err(no_thread)?;
    let daemon: Arc<dyn Service> = daemon;
    socket.serve(&daemon).map_err(no_thread)?;
    announce(&hint, &listeners, http.as_ref(), &socket, out);
    Ok(end(&engine, &attachments, ending, &held))
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
fn configured(args: &ServeArgs, paths: &DefaultPaths) -> Result<Configured, Failure> {
    let mut sink = Sink::default();
    let file = config_file(args, paths);
    let mut files = file.map(|path| ConfigFiles::read(&path, &sink)).unwrap_or_default();
    let (mut draft, mut lines) = read(args, &files, &sink);
    let place = args.state.as_deref().unwrap_or(&paths.state);
    let may_be_replaced = args.chiscsi.is_none() && place.join(configuration::RECORD).exists();
    let mut warnings = Vec::new();
    if !may_be_replaced {
        (sink, warnings) = stop_at_errors(sink)?;
    }
    let waits = |why: &StateError| tracing::info!(%why, "waiting for another daemon to stop");
    let state = StateDir::open_in_turn(place, waits).map_err(Failure::failed)?;
    let applied = if may_be_replaced { AppliedConfiguration::load(&state) } else { Ok(None) };
    if let Some(applied) = applied.map_err(Failure::failed)? {
        let written = files.clone().absolute();
        if applied.current == written {
            // It was applied, and is what the files say.
        } else if applied.served == written {
            tracing::warn!(
                "the configuration that was applied last (`blockwire apply` or `rollback`) is served, not the files, \
                 which have not changed since; `blockwire apply` without a file serves the files again"
            );
            files = applied.current;
            sink = Sink::default();
            (draft, lines) = read(args, &files, &sink);
        } else if applied.current != applied.served {
            tracing::warn!(
                "the files were changed since another configuration was applied: the files are served; `blockwire \
                 rollback` serves what was applied"
            );
        }
    }
    let ((), more) = sink.finish(()).map_err(|errors| usage(&errors))?;
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
fn plan_builder(args: &ServeArgs) -> PlanBuilder {
    let args = args.clone();
    Box::new(move |files, created| {
        let sink = Sink::default();
        let (draft, _) = read(&args, files, &sink);
        let (sink, mut warnings) =
            sink.finish(()).map(|((), warnings)| (Sink::default(), warnings)).map_err(said)?;
        // Who has written a file has said what is to be served, even if it names nothing.
        let config = files.0.first().map(|file| file.path.clone()).or_else(|| args.config.clone());
        let plan = planned(draft, &ServeArgs { config, ..args.clone() }, created, &sink);
        let (plan, more) = sink.finish(plan).map_err(said)?;
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

/// Checks the file of `--check` as a start would, and says what it comes to, and what there is to warn of. Volumes that
/// were created at run time are not looked at, and nothing is opened.
///
/// # Errors
/// All that is wrong with it, as usage errors.
pub fn check(args: &ServeArgs, paths: &DefaultPaths) -> Result<(String, Vec<String>), Failure> {
    let args = ServeArgs { config: args.check.clone().or_else(|| args.config.clone()), ..args.clone() };
    let sink = Sink::default();
    let files = config_file(&args, paths).map(|path| ConfigFiles::read(&path, &sink)).unwrap_or_default();
    let (draft, _) = read(&args, &files, &sink);
    let (sink, mut warnings) = stop_at_errors(sink)?;
    let plan = planned(draft, &args, Vec::new(), &sink);
    let (plan, more) = sink.finish(plan).map_err(|errors| usage(&errors))?;
    warnings.extend(more);
    let mut warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    warnings.extend(memory::shortage(&plan));
    let file = args.config.as_deref().unwrap_or(&paths.config);
    Ok((format!("{}: no errors: {}", file.display(), summary(&plan)), warnings))
}

/// What a plan has, in numbers.
fn summary(plan: &Plan) -> String {
    let count = |number: usize, one: &str| format!("{number} {one}{}", if number == 1 { "" } else { "s" });
    [
        count(plan.volumes.len(), "volume"),
        count(plan.ways.targets.len(), "target"),
        count(plan.ways.subsystems.len(), "subsystem"),
        count(plan.portals.len(), "portal"),
        count(plan.hosts.len(), "host"),
    ]
    .join(", ")
}

/// The plan that a draft comes to beside volumes that were created at run time.
fn planned(mut draft: Draft, args: &ServeArgs, created: Vec<Volume>, sink: &Sink) -> Plan {
    complete(&mut draft, args, created);
    let options = Options {
        allow_anonymous: args.allow_anonymous,
        cores: args.cores.clone().unwrap_or_default().0,
        io: args.io,
    };
    check::check(draft, &options, sink)
}

/// How the files are read again while the daemon runs.
fn again(args: &ServeArgs) -> PlanReader {
    let args = args.clone();
    Box::new(move |created| {
        let sink = Sink::default();
        let (draft, lines) = read(&args, &ConfigFiles::default(), &sink);
        if !sink.is_clean() {
            return Err(sink.finish(()).err().map(said).unwrap_or_default());
        }
        let plan = planned(draft, &args, created, &sink);
        sink.finish((plan, lines)).map(|(read, _)| read).map_err(said)
    })
}

/// The configuration file, or a foreign one, then the command line; and what became of foreign lines.
fn read(args: &ServeArgs, files: &ConfigFiles, sink: &Sink) -> (Draft, Vec<LineReport>) {
    let mut lines = Vec::new();
    let mut draft = files.draft(sink);
    if let Some(path) = &args.chiscsi {
        lines = chiscsi_config::read_file(path, sink, &mut draft);
    }
    if let Some(path) = &args.policy {
        lines.extend(chiscsi_config::read_policy(path, sink, &mut draft));
    }
    let said = |option: &str| Place::whole(&format!("command line: {option}"));
    for volume in &args.volumes {
        let at = said(&format!("--volume {}", volume.name));
        if volume.left_out_thin {
            sink.warn(&at, spec::THIN_IGNORED);
        }
        let mut spec = volume.spec.clone();
        // Other directories may be current when a file is opened again.
        spec.source.each_file(&mut |path| {
            *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
        });
        draft
            .volumes
            .push(Located::new(Volume { name: volume.name.clone(), spec, origin: Origin::Configured }, at));
    }
    for (option, addresses, protocol) in [
        ("--iscsi", &args.iscsi, Protocol::Iscsi),
        ("--nvme", &args.nvme, Protocol::Nvme),
        ("--nvme-discovery", &args.nvme_discovery, Protocol::NvmeDiscovery),
    ] {
        for address in addresses {
            let at = said(&format!("{option} {address}"));
            draft.portals.push(Located::new(portal(protocol, *address), at));
        }
    }
    if let Some(node) = &args.node {
        // The command line is nearer to the person than the file.
        draft.node = Some(Located::new(node.clone(), said("--node")));
    }
    if let Some(http) = args.http {
        draft.http = Some(Located::new(http, said("--http")));
    }
    (draft, lines)
}

/// Adds the volumes that were created at run time, and what is served when nothing was named.
fn complete(draft: &mut Draft, args: &ServeArgs, created: Vec<Volume>) {
    let nothing_named = draft.volumes.is_empty() && draft.targets.is_empty() && args.config.is_none();
    for volume in created {
        let at = Place::whole(&format!("created at run time: volume {}", volume.name));
        draft.volumes.push(Located::new(volume, at));
    }
    let (name, text) = DEMO;
    let taken = draft.volumes.iter().any(|volume| volume.value.name.as_str() == name);
    if nothing_named
        && !taken
        && let (Ok(name), Ok(spec)) = (VolumeName::parse(name), spec::parse(text))
    {
        let volume = Volume { name, spec, origin: Origin::Configured };
        draft.volumes.push(Located::new(volume, Place::whole("default")));
    }
    if draft.portals.is_empty() {
        for (protocol, port) in [
            (Protocol::Iscsi, network::ISCSI_PORT),
            (Protocol::Nvme, network::NVME_PORT),
            (Protocol::NvmeDiscovery, network::NVME_DISCOVERY_PORT),
        ] {
            let address = (std::net::Ipv4Addr::LOCALHOST, port).into();
            draft.portals.push(Located::new(portal(protocol, address), Place::whole("default")));
        }
    }
}

/// A portal that was given as an address and nothing more.
fn portal(protocol: Protocol, address: std::net::SocketAddr) -> Portal {
    let (digests, tls, tcp) = ((true, true), shard::TlsMode::Off, TcpOptions::default());
    Portal { protocol, address, tag: 1, digests, tls, tcp }
}

/// Stops at errors of the files themselves, before the state directory is touched; else gives a new sink
/// and what was warned of.
fn stop_at_errors(sink: Sink) -> Result<(Sink, Vec<Diagnostic>), Failure> {
    let ((), warnings) = sink.finish(()).map_err(|errors| usage(&errors))?;
    Ok((Sink::default(), warnings))
}

fn usage(errors: &[Diagnostic]) -> Failure {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Failure::usage(lines.join("\n"))
}

/// The volumes that were created at run time, and those of whose record nothing can be made.
fn recorded(all: Vec<VolumeRecord>) -> (Vec<Volume>, Vec<FailedVolume>) {
    let (mut created, mut unserved) = (Vec::new(), Vec::new());
    for recorded in all {
        match recorded.read() {
            Ok(volume) => created.push(volume),
            Err(why) => unserved.push(FailedVolume { recorded, volume: None, why, is_sought: false }),
        }
    }
    (created, unserved)
}

/// Binds the address of metrics: an address that cannot be had ends the start.
fn bind_http(address: std::net::SocketAddr) -> Result<Listener, Failure> {
    Listener::bind(address)
        .map_err(|why| Failure::failed(format!("cannot listen on {address} for metrics (http): {why}")))
}

fn no_thread(why: std::io::Error) -> Failure {
    Failure::failed(format!("cannot start a thread: {why}"))
}

/// Has the volumes of other machines looked at, all at once. Gives what was found in time, and who looks for the
/// rest.
fn look_around(
    plan: &Plan,
    identities: &Identities,
) -> Result<(HashMap<VolumeName, ProbeResult>, Option<RemoteProbes>), Failure> {
    let scouts = plan.volumes.iter().map(|volume| (volume.name.clone(), ProbeNeeds::of(volume, identities)));
    let asked: Vec<_> = scouts.filter(|(_, probe)| probe.asks()).collect();
    let (count, mut found) = (asked.len(), HashMap::new());
    if count == 0 {
        return Ok((found, None));
    }
    let probes = RemoteProbes::start(count).map_err(no_thread)?;
    asked.into_iter().for_each(|(volume, probe)| probes.send(volume, probe));
    let until = Instant::now() + SILENCE_MAX;
    while found.len() < count {
        let Some((volume, probed)) = probes.take(until) else { break };
        found.insert(volume, probed);
    }
    Ok((found, Some(probes)))
}

/// Opens every volume that can be opened. One that is away (its file system is not mounted, its disk is not there, its
/// machine does not answer), or that was created at run time, is shown as failed. If the configuration of one is wrong
/// the start ends, and files that were made are removed again.
fn open_all(
    plan: &Plan,
    identities: &mut Identities,
    state: &StateDir,
    unserved: &mut Vec<FailedVolume>,
) -> Result<(Vec<Store>, Option<RepeatedProbe>), Failure> {
    let mut stores: Vec<Store> = Vec::new();
    let mut failures: Vec<String> = Vec::new();
    let (mut found, probes) = look_around(plan, identities)?;
    let (mut out, mut absent) = (0, Vec::new());
    for volume in &plan.volumes {
        let probe = ProbeNeeds::of(volume, identities);
        let probed = match found.remove(&volume.name) {
            Some(probed) => probed,
            None if !probe.asks() => probe.look(),
            None => {
                out += 1;
                unserved.push(FailedVolume::absent(
                    volume,
                    "its machine has not responded yet; it will be retried",
                ));
                continue;
            }
        };
        match (Store::open_scouted(volume, identities, stores.iter(), probed), volume.origin) {
            (Ok(store), _) => stores.push(store),
            (Err(why), _) if why.is_absent() => {
                absent.push(volume.name.clone());
                unserved.push(FailedVolume::absent(volume, why));
            }
            (Err(why), Origin::Configured) if why.is_misconfiguration() => failures.push(why.to_string()),
            (Err(why), _) => unserved.push(FailedVolume::of(volume, why)),
        }
    }
    if !failures.is_empty() {
        // Nothing of them is recorded yet.
        stores.into_iter().for_each(|store| store.discard(identities));
        return Err(Failure::failed(failures.join("\n")));
    }
    if let Err(why) = identities.save(state) {
        discard(stores, identities, state);
        return Err(Failure::failed(why));
    }
    Ok((stores, probes.map(|probes| RepeatedProbe::of(probes, out, absent))))
}

/// Tells of volumes that hosts will not know again at the next start.
fn tell_passing(stores: &[Store]) {
    let is_passing = |store: &&Store| {
        let spec = &store.volume.spec;
        matches!(spec.source, Source::Ram | Source::Null) && spec.uuid.is_none()
    };
    let names: Vec<&str> = stores.iter().filter(is_passing).map(|store| store.volume.name.as_str()).collect();
    if !names.is_empty() {
        tracing::info!(
            volumes = names.join(" "),
            "a RAM volume without uuid=: hosts see a new disk at each start, without its earlier reservations, \
             whose records stay in the state directory"
        );
    }
}

/// Undoes what opening volumes made and recorded, when none is served after all.
fn discard(stores: Vec<Store>, identities: &mut Identities, state: &StateDir) {
    stores.into_iter().for_each(|store| store.discard(identities));
    identities.save_unmade(state);
}

/// Tells people (stderr), scripts (stdout) and systemd that it serves.
fn announce(
    hint: &str,
    listeners: &[control::report::ListenerReport],
    http: Option<&Listener>,
    socket: &Socket,
    out: Box<dyn Write + Send>,
) {
    log::say(hint);
    tracing::info!(control = %socket.path().display(), "serving");
    let mut text: String = listeners
        .iter()
        .map(|listener| format!("listening {} {}\n", listener.protocol, listener.address))
        .collect();
    if let Some(http) = http {
        text.push_str(&format!("listening http {}\n", http.address()));
    }
    text.push_str("ready\n");
    notify(&[sd_notify::NotifyState::Ready]);
    let mut out = out;
    // A script that has closed our stdout wants no more of it, but still wants the daemon. One that does not read it
    // must not keep us from hearing that we are to stop.
    let tell = move || drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    if let Err(why) = thread::Builder::new().name("stdout".to_owned()).spawn(tell) {
        tracing::warn!(%why, "cannot write to stdout that the daemon is ready");
    }
}

/// Waits for the end and goes through it: cleanly, or at once when asked twice. It succeeds if all that was written
/// is safe.
fn end(
    engine: &Arc<dyn Engine>,
    attachments: &Arc<Attachments>,
    ending: &StopSignal,
    state: &StateDir,
) -> Exit {
    let how = ending.wait();
    state.say_stopping();
    notify(&[sd_notify::NotifyState::Stopping]);
    tracing::info!(how = if how == Stop::Now { "at once" } else { "in order" }, "stopping");
    if how == Stop::Now {
        engine.stop(Stop::Now);
        return Exit::Success;
    }
    let (stopping, attachments) = (engine.clone(), attachments.clone());
    let stop = move || {
        // They may be of volumes that are served here.
        attachments.end();
        stopping.stop(Stop::Clean)
    };
    let Ok(clean) = thread::Builder::new().name("stop".to_owned()).spawn(stop) else {
        engine.stop(Stop::Now);
        return Exit::Failure;
    };
    if ending.wait_for_haste(|| clean.is_finished()) {
        tracing::warn!("stopping immediately: commands in flight are lost");
        engine.stop(Stop::Now);
        return Exit::Failure;
    }
    match clean.join() {
        Ok(true) => Exit::Success,
        Ok(false) | Err(_) => Exit::Failure,
    }
}

/// Without systemd there is nobody to tell, which is no mistake.
fn notify(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(why) = sd_notify::notify(state) {
        tracing::warn!(%why, "cannot notify systemd");
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
