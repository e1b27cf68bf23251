//! `blockwire iscsictl`: the options of Chelsio's tool of that name, on a running daemon.
//!
//! The options are those of iscsictl(8) of July 2013. An unsupported one is a usage error that names a
//! replacement; none is accepted without effect.

use std::path::PathBuf;

use clap::Args;

use crate::{daemon_args::DaemonArgs, output};
use chiscsi_config::iscsictl::{self, ControlledDaemon, SelectedTargets};
use control::{
    Answer,
    report::{SessionReport, TargetSettingsReport, line},
};
use process::{exit::Failure, paths::DefaultPaths};

/// What stands behind the options in help.
pub const HELP: &str = "\
Without an option it shows how each line of the daemon's files was treated.

  -S target=ALL          start all targets of the file, and read it again for
                         those that run
  -S target=NAME         this one; several, or joined by commas
  -S                     read the file again for running targets, and start none
  -s target=NAME|ALL     stop: its initiators are asked to log out, and none
                         can log in
  -c [target=NAME|ALL]   show settings of targets; all those of a named one, or
                         only -k KEY
  -r target=NAME         show its sessions; with -k initiator=NAME only those of
                         one initiator
  -D HANDLE              end a session: its handle in hexadecimal, as -r shows
                         it
  -g                     show how the global settings were treated

The daemon is started by `blockwire serve --chiscsi FILE`; it has read FILE and serves all targets of it.
Sessions keep what they have negotiated. Addresses, devices, access lists and the policy cannot be changed while \
it runs.

Examples:
  blockwire iscsictl -S target=ALL
  blockwire iscsictl -c target=iqn.2004-05.com.chelsio.target0 -k HeaderDigest
  blockwire iscsictl -s target=iqn.2004-05.com.chelsio.target0";

/// The options.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("action").multiple(false))]
pub struct IscsictlArgs {
    /// Start targets, or read the file again
    #[arg(short = 'S', group = "action")]
    pub start: bool,
    /// Stop targets
    #[arg(short = 's', group = "action")]
    pub stop: bool,
    /// Show the settings of targets
    #[arg(short = 'c', group = "action")]
    pub config: bool,
    /// Show the sessions of a target
    #[arg(short = 'r', group = "action")]
    pub sessions: bool,
    /// End a session
    #[arg(short = 'D', value_name = "HANDLE", group = "action", value_parser = iscsictl::parse_session_handle)]
    pub drop: Option<u64>,
    /// Show how the global settings were treated
    #[arg(short = 'g', group = "action")]
    pub globals: bool,
    /// Not implemented: flush cached data
    #[arg(short = 'F', group = "action", hide = true)]
    pub flush: bool,
    /// Not implemented: change global settings
    #[arg(short = 'G', group = "action", hide = true)]
    pub set: bool,
    /// Not implemented: overwrite the file
    #[arg(short = 'W', group = "action", hide = true)]
    pub write: bool,
    /// Show the version
    #[arg(short = 'v', group = "action")]
    pub version: bool,
    /// The file; it must be the one that the daemon was started with
    #[arg(short = 'f', value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// A key to show, or initiator=NAME
    #[arg(short = 'k', value_name = "KEY[=VALUE]")]
    pub key: Option<String>,
    /// target=NAME[,NAME...] or target=ALL
    #[arg(value_name = "target=NAME|ALL")]
    pub words: Vec<String>,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: DaemonArgs,
}

/// Does what the options say, and gives what is to be printed.
pub fn run(args: &IscsictlArgs, paths: &DefaultPaths) -> Result<String, Failure> {
    refuse_unsupported(args)?;
    if args.version {
        return Ok(format!("blockwire {}\n", env!("CARGO_PKG_VERSION")));
    }
    let targets = iscsictl::select_targets(&args.words)?;
    if args.key.is_some() && !(args.config || args.sessions) {
        return Err(Failure::usage("-k goes with -c or -r"));
    }
    if let (Some(_), false) = (&args.file, args.start) {
        return Err(Failure::usage("-f goes with -S"));
    }
    let daemon = ControlledDaemon(args.daemon.control.as_deref().unwrap_or(&paths.control));
    if args.start {
        return answer_text(args, &daemon.start_targets(targets, args.file.as_deref())?);
    }
    if args.stop {
        return answer_text(args, &daemon.stop_targets(targets)?);
    }
    match (args.drop, targets) {
        (Some(id), SelectedTargets::Nothing) => answer_text(args, &daemon.end_session(id)?),
        (Some(_), _) => Err(Failure::usage("-D takes a session's handle and nothing else")),
        (None, targets) if args.config => show_settings(args, targets, daemon),
        (None, targets) if args.sessions => show_sessions(args, targets, daemon),
        (None, SelectedTargets::Nothing) => show_line_report(args, daemon),
        (None, _) => Err(Failure::usage("what should be done with it? Use -S, -s, -c or -r; see -h")),
    }
}

fn refuse_unsupported(args: &IscsictlArgs) -> Result<(), Failure> {
    let why = if args.flush {
        "-F is not implemented: initiators flush themselves (SYNCHRONIZE CACHE); with SYNC on a TargetDevice \
         there is never anything to flush"
    } else if args.set {
        "-G is not implemented: change the file and restart the daemon"
    } else if args.write {
        "-W is not implemented: the file is never written; `blockwire iscsictl -c target=NAME` shows the current \
         settings"
    } else {
        return Ok(());
    };
    Err(Failure::usage(why))
}

fn answer_text(args: &IscsictlArgs, answer: &Answer) -> Result<String, Failure> {
    Ok(if args.daemon.json {
        output::answer_json(answer)
    } else {
        output::answer_text(answer, output::Terminal::NONE).as_str().to_owned()
    })
}

fn show_settings(
    args: &IscsictlArgs,
    targets: SelectedTargets,
    daemon: ControlledDaemon<'_>,
) -> Result<String, Failure> {
    let is_brief = args.key.is_none() && !matches!(targets, SelectedTargets::Named(_));
    let mut answer = daemon.target_settings(targets, args.key.as_deref())?;
    if let Answer::Settings(all) = &mut answer
        && is_brief
        && !args.daemon.json
    {
        all.iter_mut().for_each(hide_settings_details);
    }
    answer_text(args, &answer)
}

/// What is shown of each of all targets.
fn hide_settings_details(one: &mut TargetSettingsReport) {
    one.settings.retain(|setting| {
        ["TargetName", "TargetAlias", "PortalGroup", "TargetDevice"].contains(&setting.key.as_str())
    });
}

fn show_sessions(
    args: &IscsictlArgs,
    targets: SelectedTargets,
    daemon: ControlledDaemon<'_>,
) -> Result<String, Failure> {
    let SelectedTargets::Named(names) = targets else {
        return Err(Failure::usage("-r needs the name of one target: target=NAME"));
    };
    let [name] = &names[..] else { return Err(Failure::usage("-r takes one target")) };
    let initiator = match args.key.as_deref().map(|key| (key, key.strip_prefix("initiator="))) {
        None => None,
        Some((_, Some(initiator))) => Some(initiator),
        Some((key, None)) => {
            return Err(Failure::usage(format!("-r takes -k initiator=NAME, not \"{key}\"")));
        }
    };
    let answer = daemon.target_sessions(name, initiator)?;
    match &answer {
        Answer::Sessions(all) if !args.daemon.json => Ok(session_lines(name, all)),
        _ => answer_text(args, &answer),
    }
}

fn session_lines(target: &str, all: &[SessionReport]) -> String {
    if all.is_empty() {
        return format!("{target} has no sessions\n");
    }
    let line = |one: &SessionReport| {
        let isid = one.isid.as_deref().unwrap_or("-");
        let user = one.user.as_deref().unwrap_or("-");
        format!(
            "\tHANDLE={:#06x} Initiator={} ISID={isid} Connections={} CHAP={user} Reads={} Writes={}\n",
            one.id, one.initiator, one.connections, one.reads, one.writes
        )
    };
    format!("{target}\n{}", all.iter().map(line).collect::<String>())
}

fn show_line_report(args: &IscsictlArgs, daemon: ControlledDaemon<'_>) -> Result<String, Failure> {
    let answer = daemon.file_lines(args.globals)?;
    match &answer {
        Answer::Lines(lines) if !args.daemon.json && lines.is_empty() => {
            Ok("no global settings\n".to_owned())
        }
        Answer::Lines(lines) if !args.daemon.json => Ok(line::format_lines(lines)),
        _ => answer_text(args, &answer),
    }
}
