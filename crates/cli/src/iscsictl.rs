//! `blockwire iscsictl`: the options of Chelsio's tool of that name, on a running daemon.
//!
//! The options are those of iscsictl(8) of July 2013. An unsupported one is a usage error that names a
//! replacement; none is accepted without effect.

use std::path::PathBuf;

use clap::Args;

use crate::{daemon_args::DaemonArgs, output};
use control::{
    Answer, Request, client,
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
    #[arg(short = 'D', value_name = "HANDLE", group = "action", value_parser = parse_session_handle)]
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

fn parse_session_handle(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    u64::from_str_radix(digits, 16)
        .map_err(|_| "a session's handle is a hexadecimal number, as -r shows it".to_owned())
}

/// The targets that are meant.
#[derive(Debug, PartialEq, Eq)]
enum SelectedTargets {
    /// None was named.
    Nothing,
    /// `target=ALL`
    All,
    /// These.
    Named(Vec<String>),
}

fn select_targets(words: &[String]) -> Result<SelectedTargets, Failure> {
    let mut names = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let list = match word.strip_prefix("target=") {
            Some(list) => list,
            // `target=A, B`: the shell has cut it.
            None if at > 0 && words[at - 1].ends_with(',') => word,
            None => {
                return Err(Failure::usage(format!("expected target=NAME or target=ALL, not \"{word}\"")));
            }
        };
        names.extend(list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned));
    }
    if names.iter().any(|name| name == "ALL") {
        return match names.len() {
            1 => Ok(SelectedTargets::All),
            _ => Err(Failure::usage("target=ALL means all targets; no other name may be given")),
        };
    }
    if names.is_empty() && !words.is_empty() {
        return Err(Failure::usage("target= needs a name, or ALL"));
    }
    Ok(if names.is_empty() { SelectedTargets::Nothing } else { SelectedTargets::Named(names) })
}

/// Does what the options say, and gives what is to be printed.
pub fn run(args: &IscsictlArgs, paths: &DefaultPaths) -> Result<String, Failure> {
    refuse_unsupported(args)?;
    if args.version {
        return Ok(format!("blockwire {}\n", env!("CARGO_PKG_VERSION")));
    }
    let meant = select_targets(&args.words)?;
    if args.key.is_some() && !(args.config || args.sessions) {
        return Err(Failure::usage("-k goes with -c or -r"));
    }
    if let (Some(_), false) = (&args.file, args.start) {
        return Err(Failure::usage("-f goes with -S"));
    }
    let socket = args.daemon.control.as_deref().unwrap_or(&paths.control);
    let ask = |request| client::send_request(socket, request);
    if args.start {
        return start_targets(args, meant, &ask);
    }
    let request = match (args.stop, args.drop, meant) {
        (true, _, SelectedTargets::Nothing) => {
            return Err(Failure::usage("-s needs target=NAME or target=ALL"));
        }
        (true, _, SelectedTargets::All) => Request::TargetStop { names: Vec::new() },
        (true, _, SelectedTargets::Named(names)) => Request::TargetStop { names },
        (false, Some(id), SelectedTargets::Nothing) => Request::SessionEnd { id },
        (false, Some(_), _) => return Err(Failure::usage("-D takes a session's handle and nothing else")),
        (false, None, meant) if args.config => return show_settings(args, meant, &ask),
        (false, None, meant) if args.sessions => return show_sessions(args, meant, &ask),
        (false, None, SelectedTargets::Nothing) => return show_line_report(args, &ask),
        (false, None, _) => {
            return Err(Failure::usage("what should be done with it? Use -S, -s, -c or -r; see -h"));
        }
    };
    render_answer(args, &ask(request)?)
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

type ControlCall<'a> = dyn Fn(Request) -> Result<Answer, Failure> + 'a;

fn render_answer(args: &IscsictlArgs, answer: &Answer) -> Result<String, Failure> {
    Ok(if args.daemon.json {
        output::answer_json(answer)
    } else {
        output::answer_text(answer, output::Terminal::NONE).as_str().to_owned()
    })
}

fn start_targets(
    args: &IscsictlArgs,
    meant: SelectedTargets,
    ask: &ControlCall<'_>,
) -> Result<String, Failure> {
    if let Some(file) = &args.file {
        let Answer::Lines(lines) = ask(Request::FileLines)? else { return Err(unexpected_answer()) };
        let real = |path: &std::path::Path| std::fs::canonicalize(path).ok();
        let is_it = lines.iter().any(|line| {
            let known = std::path::Path::new(&line.file);
            known == file.as_path() || (real(known).is_some() && real(known) == real(file))
        });
        if !is_it {
            let why = format!(
                "the daemon was not started with {}; start another one: blockwire serve --chiscsi {}",
                file.display(),
                file.display()
            );
            return Err(Failure::usage(why));
        }
    }
    let names = match meant {
        SelectedTargets::Nothing => None,
        SelectedTargets::All => Some(Vec::new()),
        SelectedTargets::Named(names) => Some(names),
    };
    render_answer(args, &ask(Request::TargetStart { names })?)
}

fn show_settings(
    args: &IscsictlArgs,
    meant: SelectedTargets,
    ask: &ControlCall<'_>,
) -> Result<String, Failure> {
    let (names, is_brief) = match meant {
        SelectedTargets::Nothing | SelectedTargets::All => (Vec::new(), true),
        SelectedTargets::Named(names) => (names, false),
    };
    let Answer::Settings(mut all) = ask(Request::TargetSettings { names })? else {
        return Err(unexpected_answer());
    };
    if let Some(key) = &args.key {
        for one in &mut all {
            let known: Vec<String> = one.settings.iter().map(|setting| setting.key.clone()).collect();
            one.settings.retain(|setting| setting.key == *key);
            if one.settings.is_empty() {
                let hint = multipath::suggest::unknown_word_hint(key, known.iter().map(String::as_str));
                return Err(Failure::usage(format!("{} is set to no \"{key}\"{hint}", one.target)));
            }
        }
    } else if is_brief && !args.daemon.json {
        all.iter_mut().for_each(hide_settings_details);
    }
    render_answer(args, &Answer::Settings(all))
}

/// What is shown of each of all targets.
fn hide_settings_details(one: &mut TargetSettingsReport) {
    one.settings.retain(|setting| {
        ["TargetName", "TargetAlias", "PortalGroup", "TargetDevice"].contains(&setting.key.as_str())
    });
}

fn show_sessions(
    args: &IscsictlArgs,
    meant: SelectedTargets,
    ask: &ControlCall<'_>,
) -> Result<String, Failure> {
    let SelectedTargets::Named(names) = meant else {
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
    // Whether there is such a target at all is the daemon's to say.
    ask(Request::TargetSettings { names: names.clone() })?;
    let Answer::Sessions(mut all) = ask(Request::SessionList)? else { return Err(unexpected_answer()) };
    all.retain(|one| {
        one.target.as_ref() == Some(name) && initiator.is_none_or(|initiator| one.initiator == initiator)
    });
    if args.daemon.json {
        return render_answer(args, &Answer::Sessions(all));
    }
    Ok(session_lines(name, &all))
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

fn show_line_report(args: &IscsictlArgs, ask: &ControlCall<'_>) -> Result<String, Failure> {
    let Answer::Lines(mut lines) = ask(Request::FileLines)? else { return Err(unexpected_answer()) };
    if lines.is_empty() {
        let why = "the daemon was started with no --chiscsi and no --policy; `blockwire target list` shows its targets";
        return Err(Failure::new(process::exit::Exit::NothingFound, why));
    }
    if args.globals {
        lines.retain(|line| line.block == "global");
    }
    if args.daemon.json {
        return render_answer(args, &Answer::Lines(lines));
    }
    Ok(if lines.is_empty() { "no global settings\n".to_owned() } else { line::format_lines(&lines) })
}

fn unexpected_answer() -> Failure {
    Failure::failed("unexpected answer from the daemon; is it a different version?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<SelectedTargets, String> {
        select_targets(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
            .map_err(|why| why.to_string())
    }

    #[test]
    fn targets_are_named_as_the_manual_has_it() {
        let named = |names: &[&str]| {
            Ok(SelectedTargets::Named(names.iter().map(|name| (*name).to_owned()).collect()))
        };
        assert_eq!(of(&[]), Ok(SelectedTargets::Nothing));
        assert_eq!(of(&["target=ALL"]), Ok(SelectedTargets::All));
        assert_eq!(of(&["target=a,b"]), named(&["a", "b"]));
        assert_eq!(of(&["target=a,", "b"]), named(&["a", "b"]));
        assert_eq!(of(&["target=a", "target=b"]), named(&["a", "b"]));
        assert!(of(&["all"]).unwrap_err().contains("target=NAME"));
        assert!(of(&["target="]).unwrap_err().contains("needs a name"));
        assert!(of(&["target=ALL,a"]).unwrap_err().contains("no other name"));
        assert!(of(&["target=a", "b"]).is_err(), "without a comma it is another word");
    }

    #[test]
    fn handles_are_hexadecimal() {
        assert_eq!(
            (parse_session_handle("0x1f"), parse_session_handle("1F"), parse_session_handle("0X2")),
            (Ok(31), Ok(31), Ok(2))
        );
        assert!(
            parse_session_handle("x").is_err()
                && parse_session_handle("").is_err()
                && parse_session_handle("-1").is_err()
        );
    }
}
