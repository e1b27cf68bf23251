//! Runs one command line: the only place that combines the terminal, signals and exit codes.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use clap::{
    CommandFactory, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    iterator::Signals,
};

use crate::{
    backup,
    cli::{
        Cli, ConnectionVerb, GatewayVerb, HostVerb, ListVerb, OnOff, PathVerb, ReservationVerb, SessionVerb,
        StopArgs, SubsystemVerb, TargetVerb, Verb, VolumeLimitArgs, VolumeVerb,
    },
    daemon_args::DaemonArgs,
    flight_recorder, import, iscsictl,
    key::{self, KeyKind},
    output::{self, Terminal},
    top, verbs,
};
use control::{Answer, Request, SessionSelector, client, secret_url::redact_url_passwords};
use engine::{
    StopMode,
    daemon::StopSignal,
    flight_files,
    serve::{Launch, StartEngine, args::ServeArgs, check::check_configuration, serve},
};
use multipath::suggest;
use process::{
    exit::{Exit, Failure},
    log::{self, LogFilter, LogSettings},
    paths::DefaultPaths,
    printable,
};

/// Does what `args` say and gives the exit code; `start` starts the data path for `serve`.
pub fn run(args: impl IntoIterator<Item = OsString>, start: StartEngine) -> Exit {
    // A write beyond the limit of a file's size (RLIMIT_FSIZE) is an error of that file (EFBIG), and no reason to end
    // the process, which is what the signal does that nobody handles. Without a handler all is as it was.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let words = verbs::reorder_words(args.into_iter().collect());
    // Who wants JSON reads failures as JSON too, also that of a command line that cannot be parsed.
    let wants_json = words.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(mut why) => {
            name_known_verbs(&mut why, &words);
            let exit = match why.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Success,
                _ => Exit::Usage,
            };
            // What was typed is shown again, but for a password in it.
            let said = why.render().to_string();
            let safe = redact_url_passwords(&said);
            if wants_json && exit == Exit::Usage {
                log::write_stderr(&output::failure_json(&Failure::usage(safe.trim_end())));
            } else if safe == said {
                let _ = why.print();
            } else {
                let _ = io::stderr().write_all(safe.as_bytes());
            }
            return exit;
        }
    };
    let exit = run_verb(cli.verb, start).unwrap_or_else(|failure| {
        match wants_json {
            true => log::write_stderr(&output::failure_json(&failure)),
            false => log::write_failure(&failure.to_string()),
        }
        failure.exit
    });
    log::flush();
    exit
}

fn run_verb(verb: Verb, start: StartEngine) -> Result<Exit, Failure> {
    let paths = DefaultPaths::of_process();
    let (daemon, request) = match verb {
        Verb::Serve(args) if args.check.is_some() => {
            let checked = check_configuration(&args, &paths)?;
            checked.warnings.iter().for_each(|warning| {
                log::write_stderr(&format!("warning: {}\n", printable::escape_lines(warning)))
            });
            return Ok(print_stdout(format!("{}\n", checked.summary).as_bytes()));
        }
        Verb::Serve(args) => return run_serve(&args, &paths, start),
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "blockwire", &mut script);
            return Ok(print_stdout(&script));
        }
        Verb::Man { directory } => return write_man_pages(&directory),
        Verb::Host(HostVerb::Key { hash, file }) => {
            key::generate_key(KeyKind::Dhchap, hash, &file)?;
            return Ok(Exit::Success);
        }
        Verb::Key(verb) => return Ok(print_stdout(key::run_key_verb(&verb)?.as_bytes())),
        Verb::Import(args) => return import::run(&args),
        Verb::Remote(verb) => return verbs::run_remote_verb(&verb),
        Verb::Other(words) => return Err(unknown_verb(&words)),
        Verb::Top(args) => return top::run(&args, &paths),
        Verb::FlightRecorder(args) => return flight_recorder::run(&args, &paths),
        Verb::Plan(args) => (args.daemon, Request::Plan { file: absolute(args.file)? }),
        Verb::Apply(args) => (args.daemon, Request::Apply { file: absolute(args.file)? }),
        Verb::Rollback(daemon) => (daemon, Request::Rollback),
        Verb::Backup(args) => return Ok(print_stdout(backup::back_up(&args, &paths)?.as_bytes())),
        Verb::Restore(args) => return Ok(print_stdout(backup::restore(&args)?.as_bytes())),
        Verb::Status(daemon) => (daemon, Request::Status),
        Verb::Iscsictl(args) => {
            return Ok(print_stdout(printable::escape_lines(&iscsictl::run(&args, &paths)?).as_bytes()));
        }
        Verb::Upgrade(args) => {
            let within_ms = u64::try_from(args.within.as_millis()).unwrap_or(u64::MAX);
            (args.daemon, Request::Upgrade { binary: absolute(args.binary)?, within_ms })
        }
        Verb::Stop(args) if !args.no_wait => return stop_daemon(&args, &paths),
        Verb::Stop(args) => (args.daemon, Request::Stop { now: args.now }),
        Verb::Volume(verb) => volume_request(verb)?,
        Verb::Target(TargetVerb::List(daemon)) => (daemon, Request::TargetList),
        Verb::Target(TargetVerb::Show { name, daemon }) => (daemon, Request::TargetShow { name }),
        Verb::Subsystem(SubsystemVerb::List(daemon)) => (daemon, Request::SubsystemList),
        Verb::Subsystem(SubsystemVerb::Show { name, daemon }) => (daemon, Request::SubsystemShow { name }),
        Verb::Host(HostVerb::List(daemon)) => (daemon, Request::HostList),
        Verb::Host(HostVerb::Show { name, daemon }) => (daemon, Request::HostShow { name }),
        Verb::Host(HostVerb::Block(args)) => (args.daemon, Request::HostBlock { name: args.name }),
        Verb::Host(HostVerb::Unblock(args)) => (args.daemon, Request::HostUnblock { name: args.name }),
        Verb::Gateway(GatewayVerb::List(daemon)) => (daemon, Request::GatewayList),
        Verb::Gateway(GatewayVerb::Drain { off, daemon }) => (daemon, Request::GatewayDrain { off }),
        Verb::Gateway(GatewayVerb::Fence { gateway, daemon }) => (daemon, Request::GatewayFence { gateway }),
        Verb::Reservation(verb) => reservation_request(verb),
        Verb::Path(verb) => path_request(verb),
        Verb::Session(SessionVerb::List(daemon)) => (daemon, Request::SessionList),
        Verb::Session(SessionVerb::Kill(args)) => {
            let which = match (args.id, args.initiator, args.host) {
                (Some(id), ..) => SessionSelector::Id(id),
                (None, Some(name), _) => SessionSelector::Initiator(name),
                (None, None, Some(name)) => SessionSelector::Host(name),
                (None, None, None) => return Err(Failure::usage("session kill: which session?")),
            };
            (args.daemon, Request::SessionKill(which))
        }
        Verb::Connection(ConnectionVerb::List(daemon)) => (daemon, Request::ConnectionList),
        Verb::Connection(ConnectionVerb::Show { id, latency, daemon }) => {
            (daemon, Request::ConnectionShow { id, latency })
        }
        Verb::Shard(ListVerb::List(daemon)) => (daemon, Request::ShardList),
    };
    ask_daemon(&daemon, &paths, request)
}

/// The daemon has a current directory of its own: ours is meant.
fn absolute(file: Option<PathBuf>) -> Result<Option<PathBuf>, Failure> {
    file.map(absolute_path).transpose()
}

fn absolute_path(file: PathBuf) -> Result<PathBuf, Failure> {
    std::path::absolute(&file).map_err(|why| Failure::failed(format!("{}: {why}", file.display())))
}

fn reservation_request(verb: ReservationVerb) -> (DaemonArgs, Request) {
    match verb {
        ReservationVerb::List(daemon) => (daemon, Request::ReservationList),
        ReservationVerb::Show { volume, daemon } => (daemon, Request::ReservationShow { name: volume }),
    }
}

fn path_request(verb: PathVerb) -> (DaemonArgs, Request) {
    match verb {
        PathVerb::List { volume, daemon } => (daemon, Request::PathList { name: volume }),
        PathVerb::Set { volume, port, group, state, preferred, daemon } => {
            let preferred = preferred.map(|on| on == OnOff::On);
            (daemon, Request::PathSet { name: volume, port, group, state, preferred })
        }
    }
}

fn volume_request(verb: VolumeVerb) -> Result<(DaemonArgs, Request), Failure> {
    Ok(match verb {
        VolumeVerb::List(daemon) => (daemon, Request::VolumeList),
        VolumeVerb::Show { name, latency, daemon } => (daemon, Request::VolumeShow { name, latency }),
        VolumeVerb::Create { volume, daemon } => {
            let mut spec = volume.spec;
            let mut failed = None;
            // The daemon has a current directory of its own: ours is meant.
            spec.source.for_each_file(&mut |path| match std::path::absolute(&*path) {
                Ok(absolute) => *path = absolute,
                Err(why) => failed = Some(Failure::failed(format!("{}: {why}", path.display()))),
            });
            if let Some(why) = failed {
                return Err(why);
            }
            (daemon, Request::VolumeCreate { name: volume.name.to_string(), spec: spec.to_string() })
        }
        VolumeVerb::Delete { name, force, daemon } => (daemon, Request::VolumeDelete { name, force }),
        VolumeVerb::Retry { name, daemon } => (daemon, Request::VolumeRetry { name }),
        VolumeVerb::Set { name, read_only: Some(read_only), daemon, .. } => {
            (daemon, Request::VolumeProtect { name, on: read_only == OnOff::On })
        }
        VolumeVerb::Set { name, read_only: None, limits, daemon } => {
            let VolumeLimitArgs { iops_limit, iops_burst, bandwidth_limit, bandwidth_burst } = limits;
            (daemon, Request::VolumeLimit { name, iops_limit, iops_burst, bandwidth_limit, bandwidth_burst })
        }
        VolumeVerb::Snapshot { name, file, daemon } => {
            (daemon, Request::VolumeSnapshot { name, file: absolute_path(file)? })
        }
        VolumeVerb::Clone { name, clone, file, daemon } => {
            (daemon, Request::VolumeClone { name, clone, file: absolute_path(file)? })
        }
        VolumeVerb::Resize { name, size, shrink, daemon } => {
            (daemon, Request::VolumeResize { name, size_bytes: size, shrink })
        }
    })
}

fn ask_daemon(daemon: &DaemonArgs, paths: &DefaultPaths, request: Request) -> Result<Exit, Failure> {
    let socket = daemon.control.as_deref().unwrap_or(&paths.control);
    // What a restart forgets is told, but not a value that is the default anyway.
    let passes = match request {
        Request::VolumeProtect { on: true, .. } => Some("ro = true"),
        Request::VolumeLimit { .. } => Some("them"),
        _ => None,
    };
    let answer = client::send_request(socket, request)?;
    let text = if daemon.json { output::answer_json(&answer) } else { displayed(&answer) };
    if let Answer::Volume(volume) = &answer {
        for warning in &volume.warnings {
            log::write_stderr(&format!("warning: {}\n", printable::escape_lines(warning)));
        }
    }
    if let Some(what) = passes {
        let how = format!("in effect until the daemon exits; to keep it, set {what} in its [[volume]]");
        log::write_stderr(&format!("warning: {how}\n"));
    }
    Ok(match print_stdout(text.as_bytes()) {
        Exit::Success => answer_exit(&answer),
        other => other,
    })
}

fn displayed(answer: &Answer) -> String {
    output::answer_text(answer, Terminal::of_stdout()).as_str().to_owned()
}

/// How long the end of a daemon is waited for: more than a clean stop takes.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

fn stop_daemon(args: &StopArgs, paths: &DefaultPaths) -> Result<Exit, Failure> {
    let socket = args.daemon.control.as_deref().unwrap_or(&paths.control);
    let mut printed = Exit::Success;
    client::stop_daemon(socket, args.now, STOP_TIMEOUT, |answer| {
        let text = if args.daemon.json { output::answer_json(answer) } else { displayed(answer) };
        printed = print_stdout(text.as_bytes());
    })?;
    Ok(printed)
}

/// What an answer means for the caller: what is not as it should be is a failure.
fn answer_exit(answer: &Answer) -> Exit {
    match answer {
        Answer::Volume(volume) if volume.failed.is_some() => Exit::Failure,
        Answer::Gateways(report) if report.drained == Some(false) => Exit::Failure,
        Answer::Status(status) if !status.problems.is_empty() => Exit::Failure,
        Answer::Plan(plan) if !plan.refused.is_empty() => Exit::Failure,
        Answer::Plan(plan) if !plan.applied && !plan.disturbed.is_empty() => Exit::Disturbs,
        _ => Exit::Success,
    }
}

/// Writes to stdout. A reader that has gone away (`| head`) is no failure.
fn print_stdout(bytes: &[u8]) -> Exit {
    match io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()) {
        Ok(()) => Exit::Success,
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => Exit::Success,
        Err(_) => Exit::Failure,
    }
}

fn run_serve(args: &ServeArgs, paths: &DefaultPaths, start: StartEngine) -> Result<Exit, Failure> {
    let failed = |why: io::Error| Failure::failed(format!("cannot log: {why}"));
    let settings = LogSettings { format: args.log_format.unwrap_or_default(), filter: log_filter()? };
    log::install_logger(settings).map_err(failed)?;
    flight_files::note_panics();
    let ending = Arc::new(StopSignal::default());
    handle_signals(&ending)?;
    serve(args, paths, &Launch { start, enforce: sandbox::enforce }, &ending, Box::new(io::stdout()))
}

/// What BLOCKWIRE_LOG says.
fn log_filter() -> Result<LogFilter, Failure> {
    let Some(text) = std::env::var_os(log::FILTER_VARIABLE) else { return Ok(LogFilter::default()) };
    let wrong = |why: &dyn std::fmt::Display| Failure::usage(format!("{}: {why}", log::FILTER_VARIABLE));
    text.to_string_lossy().parse().map_err(|why| wrong(&why))
}

/// What signals come to.
#[derive(Debug, Default)]
struct SignalState {
    /// When a clean end was asked for first.
    asked: Option<Instant>,
}

impl SignalState {
    /// What a signal asks for. SIGTERM asks for a clean end however often it comes: supervisors send it more than
    /// once. Who presses Ctrl-C again when a clean end has begun means it. SIGHUP ends nothing: it applies the
    /// configuration again.
    fn handle_signal(&mut self, signal: i32, now: Instant) -> Option<StopMode> {
        if signal == SIGHUP {
            return None;
        }
        let asked = *self.asked.get_or_insert(now);
        let insists = signal == SIGINT && now.saturating_duration_since(asked) >= SECOND_SIGINT_DELAY_MIN;
        Some(if insists { StopMode::Now } else { StopMode::Clean })
    }
}

/// How long after the first signal SIGINT means that a clean end is not waited for: a terminal and what wraps the
/// daemon may both pass one Ctrl-C on.
const SECOND_SIGINT_DELAY_MIN: Duration = Duration::from_secs(1);

fn handle_signals(ending: &Arc<StopSignal>) -> Result<(), Failure> {
    let failed = |why: io::Error| Failure::failed(format!("cannot watch signals: {why}"));
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    let ending = ending.clone();
    let watch = move || {
        sandbox::deny_files_to_this_thread();
        let mut heed = SignalState::default();
        for signal in signals.forever() {
            match heed.handle_signal(signal, Instant::now()) {
                Some(how) => ending.request_stop(how),
                None => ending.ask_reload(),
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(watch).map_err(failed)?;
    Ok(())
}

fn write_man_pages(directory: &Path) -> Result<Exit, Failure> {
    crate::man::write_pages(Cli::command(), directory).map_err(|why| {
        Failure::failed(format!("cannot write man pages to {}: {why}", directory.display()))
    })?;
    Ok(Exit::Success)
}

/// Verbs that end, overwrite or take something away: none is proposed for one that was written wrongly.
const DESTRUCTIVE_VERBS: [&str; 10] =
    ["stop", "write", "copy", "detach", "scsi", "nvme", "delete", "kill", "block", "restore"];

/// The verbs below another (`volume delet`) are judged by clap, which knows no danger. Where none is proposed, all that
/// there are stand instead.
fn name_known_verbs(why: &mut clap::Error, words: &[OsString]) {
    if why.kind() != ErrorKind::InvalidSubcommand {
        return;
    }
    let is_destructive = |word: &str| DESTRUCTIVE_VERBS.contains(&word);
    let names_none_safe = match why.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::String(word)) => is_destructive(word),
        Some(ContextValue::Strings(words)) => words.iter().any(|word| is_destructive(word)),
        None => true,
        Some(_) => false,
    };
    if !names_none_safe {
        return;
    }
    why.remove(ContextKind::SuggestedSubcommand);
    let command = Cli::command();
    let verb = words.iter().skip(1).map_while(|word| word.to_str());
    let above = verb.scan(&command, |above, word| {
        *above = above.find_subcommand(word)?;
        Some(*above)
    });
    let above = above.last().unwrap_or(&command);
    let known = above.get_subcommands().filter(|verb| !verb.is_hide_set());
    let known: Vec<&str> = known.map(clap::Command::get_name).collect();
    let known = format!("known: {}", known.join(", "));
    why.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![known.into()]));
}

fn unknown_verb(words: &[OsString]) -> Failure {
    let word = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let command = Cli::command();
    let verbs: Vec<&str> =
        command.get_subcommands().filter(|verb| !verb.is_hide_set()).map(|v| v.get_name()).collect();
    // Where the nearest destroys, another that is less near is unlikely to be meant.
    let nearest = suggest::nearest_word(&word, verbs.iter().copied());
    let hint = match nearest.filter(|verb| !DESTRUCTIVE_VERBS.contains(verb)) {
        Some(verb) => format!("; did you mean \"{verb}\"?"),
        None => format!("; known: {}", verbs.join(", ")),
    };
    Failure::usage(format!("unknown verb \"{word}\"{hint}\nSee `blockwire --help`."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hangup_ends_nothing_and_a_second_sigterm_skips_nothing() {
        let (mut heed, now) = (SignalState::default(), Instant::now());
        let later = now + SECOND_SIGINT_DELAY_MIN;
        assert_eq!(heed.handle_signal(SIGHUP, now), None);
        assert_eq!(heed.handle_signal(SIGTERM, now), Some(StopMode::Clean));
        assert_eq!(heed.handle_signal(SIGTERM, now), Some(StopMode::Clean), "both at once");
        assert_eq!(heed.handle_signal(SIGTERM, later), Some(StopMode::Clean));
        assert_eq!(heed.handle_signal(SIGHUP, later), None);
        assert_eq!(heed.handle_signal(SIGINT, now), Some(StopMode::Clean), "with the first signal");
        assert_eq!(heed.handle_signal(SIGINT, later), Some(StopMode::Now), "who presses it again means it");
        assert_eq!(SignalState::default().handle_signal(SIGINT, later), Some(StopMode::Clean));
    }

    #[test]
    fn no_verb_that_destroys_is_proposed() {
        for word in ["stp", "wrte", "cpy", "detch", "detatch"] {
            let said = unknown_verb(&[word.into()]).message;
            assert!(!said.contains("did you mean") && said.contains("known: serve"), "{said}");
        }
        for (line, known) in [
            ("volume delet", Some("known: list, show, create, delete")),
            ("volume dlete", Some("known: list, show, create, delete")),
            ("session kll", Some("known: list, kill")),
            ("nvme xyz", Some("known: admin-passthru, io-passthru")),
            ("volume creat", None),
        ] {
            let words: Vec<OsString> =
                std::iter::once("blockwire").chain(line.split(' ')).map(OsString::from).collect();
            let mut why = Cli::try_parse_from(&words).unwrap_err();
            name_known_verbs(&mut why, &words);
            let said = why.render().to_string();
            assert_eq!(said.contains("similar subcommand"), known.is_none(), "{line}: {said}");
            assert!(known.is_none_or(|known| said.contains(known)), "{line}: {said}");
            assert_eq!(said.contains("known:"), known.is_some(), "{line}: {said}");
        }
        assert!(unknown_verb(&["satus".into()]).message.contains("did you mean \"status\""));
    }
}
