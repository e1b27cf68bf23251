//! `blockwire discover` and `blockwire doctor`: what a target offers, and where a connection fails.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use client::trace::{Speaker, TraceEvent};

use super::{json_text, json_value, print};
use control::secret_url::SecretUrl;
use process::exit::{Exit, Failure};
use reports::{DiscoveryEventReport, DiscoveryReport, ExaminationReport, target_url};

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

/// Asks what there is.
pub fn discover(args: &DiscoverArgs) -> Result<Exit, Failure> {
    let discovered = match &args.url {
        Some(url) if args.watch => return watch(args, url),
        Some(url) => client::discover_targets(url)?,
        None => mdns::discover_announced(&mdns::browse()?),
    };
    let mut text = String::new();
    if args.json {
        text = json_text(&DiscoveryReport::of(&discovered));
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
        print(&json_text(&ExaminationReport::of(&examined)))?;
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
