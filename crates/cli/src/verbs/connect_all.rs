//! `blockwire connect-all`: the daemon attaches what is kept as nodes, as `iscsiadm --loginall=automatic` and `nvme
//! connect-all` do.
//!
//! Invariant: a node that fails keeps no other from being attached, and is named.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use control::secret_url::SecretUrl;
use control::{Answer, AttachRequest, Request, client};
use process::exit::{Exit, Failure};
use recovery::list::AttachState;
use recovery::record::to_millis;

use super::attach::{control_socket, record_dirs};
use super::node::NodesDir;
use super::node_store::{Node, Nodes, nodes_or_unknown};
use super::{json_text, print};
use crate::reports::ConnectedNodeReport;

/// `connect-all`
#[derive(Debug, Args)]
#[command(
    after_help = "It has the running daemon attach each volume, as `attach --daemon` does, and goes on after a \
failure. What is attached already counts as done. The shipped unit blockwire-connect-all.service runs it after \
blockwire.service.

Exit codes: 0 all are attached, 1 some are not, 21 there is nothing to attach."
)]
pub struct ConnectAllArgs {
    /// Only these nodes, also without autostart [default: all with autostart]
    pub names: Vec<String>,
    /// Which nodes.
    #[command(flatten)]
    pub dir: NodesDir,
    /// The daemon's control socket, if not at the default path
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What became of a node.
enum Connected {
    /// What users open, and the same as people read it.
    Attached {
        ways: Vec<String>,
        shown: String,
    },
    Already(Vec<String>),
    Failed(String),
}

/// Attaches what is to be attached.
pub fn connect_all(args: &ConnectAllArgs) -> Result<Exit, Failure> {
    let nodes = match (Nodes::find(&args.dir)?, args.names.first()) {
        (Some(nodes), _) => nodes,
        (None, Some(name)) => return nodes_or_unknown(&args.dir, name).map(|_| Exit::Success),
        (None, None) => return Err(Failure::new(Exit::NothingFound, "there is no node")),
    };
    let mut chosen = Vec::new();
    if args.names.is_empty() {
        for name in nodes.names()? {
            match nodes.read(&name) {
                Ok(node) if !node.autostart => {}
                other => chosen.push((name, other)),
            }
        }
    } else {
        // A name that is written wrongly changes nothing.
        for name in &args.names {
            chosen.push((name.clone(), Ok(nodes.read(name)?)));
        }
    }
    if chosen.is_empty() {
        let why = "no node has autostart: `blockwire node set NAME --autostart` marks one";
        return Err(Failure::new(Exit::NothingFound, why));
    }
    let control = control_socket(args.control.as_deref());
    let (mut told, mut text, mut exit) = (Vec::new(), String::new(), Exit::Success);
    for (name, node) in chosen {
        let became = match node {
            Ok(node) => connect(&control, args.control.as_deref(), &node)
                .unwrap_or_else(|why| Connected::Failed(why.message)),
            Err(why) => Connected::Failed(why.message),
        };
        let (state, ways, shown, why) = match became {
            Connected::Attached { ways, shown } => ("attached", ways, shown, None),
            Connected::Already(ways) => ("already-attached", ways.clone(), ways.join(" "), None),
            Connected::Failed(why) => {
                exit = Exit::Failure;
                ("failed", Vec::new(), why.clone(), Some(why))
            }
        };
        let shown = process::printable::escape_line(&shown);
        let separator = if shown.is_empty() { "" } else { ": " };
        let _ = writeln!(text, "{name}: {}{separator}{shown}", state.replace('-', " "));
        told.push(ConnectedNodeReport { name, state, ways, why });
    }
    print(&if args.json { json_text(&told) } else { text })?;
    Ok(exit)
}

fn connect(socket: &Path, control: Option<&Path>, node: &Node) -> Result<Connected, Failure> {
    let shown = node.shown_url();
    let found = recovery::find_all(&record_dirs(control))?;
    let of_node = found.iter().filter(|found| found.record.url == shown);
    let mut of_node = of_node.filter(|found| node.at.as_deref().is_none_or(|at| found.matches_name(at)));
    // One whose holder was killed goes on; its users wait.
    let (recover, at) = match of_node.next() {
        Some(found) if found.state == AttachState::Serving => {
            return Ok(Connected::Already(found.record.ways.clone()));
        }
        Some(found) => (true, found.record.ways.first().map(PathBuf::from)),
        None => (false, node.at.clone()),
    };
    let request = AttachRequest {
        url: SecretUrl::from(node.url.as_str()),
        via: node.via.clone(),
        at,
        recover,
        force: false,
        timeout_ms: to_millis(node.recovery_timeout()),
    };
    match client::send_request(socket, Request::Attach(request))? {
        Answer::Attached(attached) => {
            Ok(Connected::Attached { ways: attached.ways, shown: attached.lines.join(" ") })
        }
        _ => Err(Failure::failed("unexpected answer from the daemon; is it a different version?")),
    }
}
