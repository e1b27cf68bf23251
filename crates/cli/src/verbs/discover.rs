//! `blockwire discover` and `blockwire doctor`: what a target offers, and where a connection fails.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use client::trace::{Speaker, TraceEvent, TraceLine};
use client::{DiscoveredTarget, DiscoveryResult, Protocol};

use super::mdns::AnnouncedService;
use super::{json_text, json_value, print};
use control::secret_url::SecretUrl;
use process::exit::{Exit, Failure};
use reports::{
    DiscoveryEventReport, DiscoveryReport, ExaminationEvent, ExaminationReport, ExaminationStep, FoundTarget,
    protocol_word,
};

/// `discover`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  blockwire discover iscsi://10.0.0.1
  blockwire discover nvme+tcp://10.0.0.1:8009
  blockwire discover nvme+tcp://10.0.0.1 --watch
  blockwire discover --mdns

With --watch it prints a line for each subsystem and port, `+ URL` for one that is offered and `- URL` for one that is \
offered no more, until it is ended. The discovery controller says when something has changed; a lost connection is made \
again. With --json each line is an object.

With --mdns the networks of this machine are asked, for three seconds, who announces an NVMe discovery service \
(_nvme-disc._tcp, NVMe TP8009), and each of them what it offers. Any machine of the network can answer.")]
pub struct DiscoverArgs {
    /// A portal or discovery service: iscsi://HOST or nvme+tcp://HOST
    #[arg(required_unless_present = "mdns")]
    pub url: Option<SecretUrl>,
    /// Ask all NVMe discovery services that announce themselves by mDNS on the local networks
    #[arg(long, conflicts_with_all = ["url", "watch"])]
    pub mdns: bool,
    /// Stay, and print what comes and goes; NVMe/TCP only
    #[arg(long)]
    pub watch: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The volume of another machine, by one path; without one this machine and its daemon are examined
    pub url: Option<SecretUrl>,
    /// Control socket of the daemon [default: /run/blockwire/control.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "url")]
    pub control: Option<PathBuf>,
    /// State directory of the daemon [default: /var/lib/blockwire]
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    pub state: Option<PathBuf>,
    /// Configuration file of the daemon [default: /etc/blockwire/blockwire.toml, if it exists]
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    pub config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What to type next: a URL without unit, since discovery names none.
fn target_url(found: &DiscoveredTarget) -> String {
    let scheme = if found.protocol == Protocol::Iscsi { "iscsi" } else { "nvme+tcp" };
    let unit = if found.protocol == Protocol::Iscsi { 0 } else { 1 };
    format!("{scheme}://{}/{}/{unit}", found.address, found.name)
}

/// Asks what there is.
pub fn discover(args: &DiscoverArgs) -> Result<Exit, Failure> {
    let discovered = match &args.url {
        Some(url) if args.watch => return watch(args, url),
        Some(url) => client::discover_targets(url)?,
        None => discover_announced(&super::mdns::browse()?),
    };
    let mut text = String::new();
    if args.json {
        let found = |one: &DiscoveredTarget| FoundTarget {
            protocol: protocol_word(one.protocol),
            name: one.name.clone(),
            address: one.address.clone(),
            tag: one.tag,
            tls: one.tls,
            url: target_url(one),
        };
        let found = discovered.targets.iter().map(found).collect();
        text = json_text(&DiscoveryReport { found, problems: discovered.problems.clone() });
    } else {
        for one in &discovered.targets {
            let tls = if one.tls {
                "  (requires TLS: add tls_key_file, or secret_file and concat=yes)"
            } else {
                ""
            };
            let _ = writeln!(text, "{}{tls}", target_url(one));
        }
        for problem in &discovered.problems {
            let _ = writeln!(text, "note: {problem}");
        }
    }
    print(&text)?;
    if discovered.targets.is_empty() {
        // Without the password that may stand in what was typed.
        let url = args.url.as_ref().and_then(|url| client::Url::parse(url).ok());
        let place = url.map_or_else(String::new, |url| format!(" at {url}"));
        return Err(Failure::new(Exit::NothingFound, format!("nothing is offered to this host{place}")));
    }
    Ok(Exit::Success)
}

/// Asks each service by the first of its addresses that answers. What none of them says is a problem of that one only.
fn discover_announced(services: &[AnnouncedService]) -> DiscoveryResult {
    let mut all = DiscoveryResult::default();
    for service in services {
        let mut last = None;
        let answer = service.urls.iter().find_map(|url| match client::discover_targets(url) {
            Ok(found) => Some(found),
            Err(why) => {
                last = Some(why);
                None
            }
        });
        match answer {
            Some(found) => {
                let new = found.targets.into_iter().filter(|one| !all.targets.contains(one));
                let new: Vec<DiscoveredTarget> = new.collect();
                all.targets.extend(new);
                all.problems.extend(found.problems);
            }
            None => all.problems.extend(last.map(|why| format!("{}: {why}", service.name))),
        }
    }
    all
}

/// Shows what comes and goes.
fn watch(args: &DiscoverArgs, url: &SecretUrl) -> Result<Exit, Failure> {
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut failure = None;
    client::watch_discovery(url, |found| {
        let now: BTreeSet<String> = found.targets.iter().map(target_url).collect();
        let (gone, new) = (known.difference(&now), now.difference(&known));
        let changes = gone.map(|url| ("-", url)).chain(new.map(|url| ("+", url)));
        let lines: String = changes
            .map(|(sign, url)| match args.json {
                true => {
                    let event = if sign == "+" { "added" } else { "removed" };
                    format!("{}\n", json_value(&DiscoveryEventReport { event, url: url.clone() }))
                }
                false => format!("{sign} {url}\n"),
            })
            .collect();
        known = now;
        match print(&lines) {
            Ok(()) => ControlFlow::Continue(()),
            Err(why) => {
                failure = Some(why);
                ControlFlow::Break(())
            }
        }
    })?;
    failure.map_or(Ok(Exit::Success), Err)
}

/// Brings a path up and shows each step.
pub fn doctor(args: &DoctorArgs, url: &SecretUrl) -> Result<Exit, Failure> {
    let examined = client::examine_path(url)?;
    if args.json {
        let step = |line: &TraceLine| ExaminationStep {
            connection: line.connection,
            stage: line.stage.to_string(),
            event: match &line.event {
                TraceEvent::Begins => ExaminationEvent::Begins,
                TraceEvent::Ends => ExaminationEvent::Ends,
                TraceEvent::Field { by, name, value } => ExaminationEvent::Field {
                    by: if *by == Speaker::Us { "us" } else { "target" },
                    name: name.to_string(),
                    value: value.clone(),
                },
                TraceEvent::Fails { why, advice } => {
                    ExaminationEvent::Fails { why: why.clone(), next: advice.to_string() }
                }
            },
        };
        let why = examined.outcome.as_ref().err().map(|why| why.message.clone());
        let steps = examined.lines.iter().map(step).collect();
        print(&json_text(&ExaminationReport { steps, healthy: why.is_none(), why }))?;
    } else {
        print(&steps_text(&examined))?;
    }
    examined.outcome.map(|_| Exit::Success).map_err(Into::into)
}

fn steps_text(examined: &client::PathExamination) -> String {
    let mut text = String::new();
    let mut last = None;
    for line in &examined.lines {
        let at = (line.connection, line.stage);
        // Of several connections and of stages that begin without a word each line is told where it belongs.
        if line.event == TraceEvent::Begins || last != Some(at) {
            let _ = writeln!(text, "{}  (connection {})", line.stage, line.connection);
        }
        last = Some(at);
        let _ = match &line.event {
            TraceEvent::Begins => Ok(()),
            TraceEvent::Ends => writeln!(text, "  done"),
            TraceEvent::Field { by: Speaker::Us, name, value } => {
                writeln!(text, "  we say      {name} = {value}")
            }
            TraceEvent::Field { by: Speaker::Target, name, value } => {
                writeln!(text, "  target says {name} = {value}")
            }
            TraceEvent::Fails { why, advice } if advice.is_empty() => writeln!(text, "  FAILED: {why}"),
            TraceEvent::Fails { why, advice } => writeln!(text, "  FAILED: {why}\n  what to do: {advice}"),
        };
    }
    if let Ok(info) = &examined.outcome
        && let Some(geometry) = info.geometry
    {
        let _ = writeln!(text, "healthy: {} ({} bytes)", info.product, geometry.capacity_bytes());
    }
    text
}
