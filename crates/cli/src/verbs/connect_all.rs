//! `blockwire connect-all`: the daemon attaches what is kept as nodes, as `iscsiadm --loginall=automatic` and `nvme
//! connect-all` do.
//!
//! Invariant: a node that fails keeps no other from being attached, and is named.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use nodes::{NodeConnection, Nodes};
use process::exit::{Exit, Failure};

use super::node::NodesDir;
use super::{json_text, print};
use reports::ConnectedNodeReport;

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

/// Attaches what is to be attached.
pub fn connect_all(args: &ConnectAllArgs) -> Result<Exit, Failure> {
    let nodes = match (Nodes::find(args.dir.given())?, args.names.first()) {
        (Some(nodes), _) => nodes,
        (None, Some(name)) => return Nodes::find_for(args.dir.given(), name).map(|_| Exit::Success),
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
    let (mut told, mut text, mut exit) = (Vec::new(), String::new(), Exit::Success);
    for (name, node) in chosen {
        let became = node.and_then(|node| nodes::connect(args.control.as_deref(), &node));
        let (state, ways, shown, why) = match became {
            Ok(NodeConnection::Attached { ways, shown }) => ("attached", ways, shown, None),
            Ok(NodeConnection::AlreadyAttached(ways)) => {
                ("already-attached", ways.clone(), ways.join(" "), None)
            }
            Err(failure) => {
                exit = Exit::Failure;
                ("failed", Vec::new(), failure.message.clone(), Some(failure.message))
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
