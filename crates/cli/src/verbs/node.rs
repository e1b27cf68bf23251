//! `blockwire node`: volumes to attach, as open-iscsi keeps node records: listed, changed, and discovered.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use client::{DiscoveredTarget, Protocol, Url};
use control::secret_url::SecretUrl;
use process::exit::{Exit, Failure};

use super::node_store::{
    Node, Nodes, check_name, check_url, nodes_or_unknown, parse_timeout_text, parse_via_name,
};
use super::{json_text, print};
use crate::output::{self, Terminal};
use crate::reports::ListedNodeReport;

const NODE_HELP: &str = "\
A node is a volume to attach: its URL, and how. Each is a file NAME.json of mode 0600 in nodes.d beside the configuration \
(/etc/blockwire/nodes.d for root). A file holds no password: the URL names files or variables with secrets \
(secret_file=, secret_env=, tls_key_file=).

Examples:
  blockwire node discover iscsi://10.0.0.1
  blockwire node discover 'nvme+tcp://10.0.0.1?secret_file=/etc/key' --autostart
  blockwire node add db iscsi://10.0.0.1/iqn.2026-11.x:db/0 --via ublk
  blockwire node set db --autostart no
  blockwire connect-all";

/// `node`
#[derive(Debug, Args)]
#[command(after_help = NODE_HELP)]
pub struct NodeArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: NodeVerb,
}

/// Where nodes are.
#[derive(Debug, Args)]
pub struct NodesDir {
    /// The directory of the nodes, if not at the default path
    #[arg(long, value_name = "DIRECTORY")]
    pub nodes: Option<PathBuf>,
}

/// How a node is attached; what is not given stays as it is, or at its default.
#[derive(Debug, Args)]
pub struct NodeSettings {
    /// Whether `connect-all` attaches it
    #[arg(long, value_name = "yes|no", num_args = 0..=1, default_missing_value = "yes", value_parser = parse_yes_no)]
    pub autostart: Option<bool>,
    /// The method, as `attach --via` has it
    #[arg(long, value_name = "WAY", value_parser = parse_via_name)]
    pub via: Option<String>,
    /// The directory, socket or device to create, as `attach --at` has it
    #[arg(long, value_name = "PATH")]
    pub at: Option<PathBuf>,
    /// How long I/O waits if the holder is killed, as `attach --timeout` has it
    #[arg(long, value_name = "TIME", value_parser = parse_timeout_text)]
    pub timeout: Option<String>,
}

/// Verbs of `node`.
#[derive(Debug, Subcommand)]
pub enum NodeVerb {
    /// List the nodes
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Which nodes.
        #[command(flatten)]
        dir: NodesDir,
    },
    /// Show one node
    Show {
        /// The node
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Which nodes.
        #[command(flatten)]
        dir: NodesDir,
    },
    /// Add a volume
    Add {
        /// The node
        name: String,
        /// The volume; several URLs joined by commas are its paths
        url: SecretUrl,
        /// How.
        #[command(flatten)]
        settings: NodeSettings,
        /// Which nodes.
        #[command(flatten)]
        dir: NodesDir,
    },
    /// Change how a node is attached, from the next time on
    Set {
        /// The node
        name: String,
        /// The volume
        #[arg(long)]
        url: Option<SecretUrl>,
        /// How.
        #[command(flatten)]
        settings: NodeSettings,
        /// Which nodes.
        #[command(flatten)]
        dir: NodesDir,
    },
    /// Remove a node; what is attached stays attached
    Remove {
        /// The node
        name: String,
        /// Which nodes.
        #[command(flatten)]
        dir: NodesDir,
    },
    /// Add all targets or subsystems that a machine offers: logical unit 0 or namespace 1 of each, by all portals that
    /// are told, with the options of this URL. The name of a node is that of the target. Nodes that are there stay as
    /// they are
    Discover {
        /// A portal or discovery service: iscsi://HOST or nvme+tcp://HOST
        url: SecretUrl,
        /// How.
        #[command(flatten)]
        settings: NodeSettings,
        /// Which nodes.
        #[command(flatten)]
        dir: NodesDir,
    },
}

fn parse_yes_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("yes or no".to_owned()),
    }
}

/// Does it.
pub fn run_node_verb(args: &NodeArgs) -> Result<Exit, Failure> {
    match &args.verb {
        NodeVerb::List { json, dir } => list(dir, *json),
        NodeVerb::Show { name, json, dir } => {
            let node = nodes_or_unknown(dir, name)?.read(name)?;
            let text = match json {
                true => json_text(&node.report(name)),
                false => node_card(&node),
            };
            print(&text).map(|()| Exit::Success)
        }
        NodeVerb::Add { name, url, settings, dir } => {
            check_name(name)?;
            check_url(url).map_err(|why| Failure::usage(format!("the URL of \"{name}\": {why}")))?;
            let mut node = Node::new(url.to_string());
            node.apply(settings)?;
            Nodes::create(dir)?.write(name, &node, true).map(|()| Exit::Success)
        }
        NodeVerb::Set { name, url, settings, dir } => {
            let nodes = nodes_or_unknown(dir, name)?;
            let mut node = nodes.read(name)?;
            if let Some(url) = url {
                check_url(url).map_err(|why| Failure::usage(format!("the URL of \"{name}\": {why}")))?;
                node.url = url.to_string();
            }
            node.apply(settings)?;
            nodes.write(name, &node, false).map(|()| Exit::Success)
        }
        NodeVerb::Remove { name, dir } => nodes_or_unknown(dir, name)?.remove(name).map(|()| Exit::Success),
        NodeVerb::Discover { url, settings, dir } => discover(url, settings, dir),
    }
}

fn node_card(node: &Node) -> String {
    let mut text = String::new();
    let at = node.at.as_ref().map_or("-".to_owned(), |at| at.display().to_string());
    for (name, value) in [
        ("url", node.url.as_str()),
        ("autostart", if node.autostart { "yes" } else { "no" }),
        ("via", node.via.as_deref().unwrap_or("-")),
        ("at", &at),
        ("timeout", &node.timeout),
    ] {
        let _ = writeln!(text, "{name:<10} {value}");
    }
    text
}

/// All nodes. One that cannot be read is shown with the reason, and is a failure.
fn list(dir: &NodesDir, json: bool) -> Result<Exit, Failure> {
    let mut all = Vec::new();
    if let Some(nodes) = Nodes::find(dir)? {
        for name in nodes.names()? {
            let node = nodes.read(&name);
            all.push((name, node));
        }
    }
    let exit = if all.iter().any(|(_, node)| node.is_err()) { Exit::Failure } else { Exit::Success };
    if json {
        let report = |(name, node): (String, Result<Node, Failure>)| match node {
            Ok(node) => ListedNodeReport::Known(node.report(&name)),
            Err(why) => ListedNodeReport::Unknown { name, why: why.message },
        };
        print(&json_text(&all.into_iter().map(report).collect::<Vec<_>>()))?;
        return Ok(exit);
    }
    let rows = all.into_iter().map(|(name, node)| match node {
        Ok(node) => {
            let autostart = if node.autostart { "yes" } else { "no" };
            [name, autostart.to_owned(), node.via.unwrap_or_else(|| "-".to_owned()), node.url]
        }
        Err(why) => [name, "?".to_owned(), "?".to_owned(), format!("not read: {why}")],
    });
    let head = ["NODE", "AUTOSTART", "VIA", "VOLUME"];
    print(output::render_table(Terminal::of_stdout(), head, rows.collect(), "there is no node").as_str())?;
    Ok(exit)
}

/// The URLs of what was found, by name: its portals are paths of one volume.
fn discovered_urls(text: &str, url: &Url, found: &[DiscoveredTarget]) -> BTreeMap<String, String> {
    let query = text.split_once('?').map_or(String::new(), |(_, query)| format!("?{query}"));
    let user = url.user.as_ref().map_or(String::new(), |_| {
        let rest = text.split_once("://").map_or("", |(_, rest)| rest);
        rest.split_once('@').map_or(String::new(), |(user, _)| format!("{user}@"))
    });
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for one in found {
        let path = match one.protocol {
            Protocol::Iscsi => format!("iscsi://{user}{}/{}/0{query}", one.address, one.name),
            Protocol::Nvme => format!("nvme+tcp://{}/{}/1{query}", one.address, one.name),
        };
        let paths = all.entry(one.name.clone()).or_default();
        if !paths.split(',').any(|known| known == path) {
            *paths = if paths.is_empty() { path } else { format!("{paths},{path}") };
        }
    }
    all
}

fn discover(text: &SecretUrl, settings: &NodeSettings, dir: &NodesDir) -> Result<Exit, Failure> {
    let url = Url::parse(text).map_err(Failure::usage)?;
    if url.user.as_ref().is_some_and(|user| user.secret.is_some()) {
        let why = "the URL holds a password, which a node must not: write it to a file of mode 0600, and add \
                   ?secret_file=FILE";
        return Err(Failure::usage(why));
    }
    let discovered = client::discover_targets(text)?;
    if discovered.targets.is_empty() {
        return Err(Failure::new(Exit::NothingFound, format!("nothing is offered to this host at {url}")));
    }
    let nodes = Nodes::create(dir)?;
    let (mut said, mut exit) = (String::new(), Exit::Success);
    for (name, urls) in discovered_urls(text, &url, &discovered.targets) {
        let mut node = Node::new(urls);
        node.apply(settings)?;
        // What a target calls itself is looked at as anything of foreign origin.
        let added = check_url(&node.url)
            .map_err(|why| Failure::failed(format!("a target's URL: {why}")))
            .and_then(|()| nodes.write(&name, &node, true));
        let _ = match added {
            Ok(()) => writeln!(said, "added {name}"),
            Err(why) if why.exit == Exit::Exists => writeln!(said, "kept {name}"),
            Err(why) => {
                exit = Exit::Failure;
                writeln!(said, "not added: {}", process::printable::escape_line(&why.message))
            }
        };
    }
    for problem in &discovered.problems {
        let _ = writeln!(said, "note: {}", process::printable::escape_line(problem));
    }
    print(&said)?;
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_of_one_target_are_paths_of_one_node() {
        let found = |protocol, name: &str, address: &str| DiscoveredTarget {
            protocol,
            name: name.to_owned(),
            address: address.to_owned(),
            tag: 1,
            tls: false,
        };
        let text = "iscsi://me@h?secret_file=/s&host_iface=eth0";
        let all = [
            found(Protocol::Iscsi, "iqn.2026-11.x:a", "10.0.0.1:3260"),
            found(Protocol::Iscsi, "iqn.2026-11.x:b", "10.0.0.1:3260"),
            found(Protocol::Iscsi, "iqn.2026-11.x:a", "10.0.1.1:3260"),
            found(Protocol::Iscsi, "iqn.2026-11.x:a", "10.0.0.1:3260"),
        ];
        let urls = discovered_urls(text, &Url::parse(text).unwrap(), &all);
        let options = "?secret_file=/s&host_iface=eth0";
        let path =
            |address: &str, name: &str| format!("iscsi://me@{address}:3260/iqn.2026-11.x:{name}/0{options}");
        assert_eq!(urls["iqn.2026-11.x:a"], format!("{},{}", path("10.0.0.1", "a"), path("10.0.1.1", "a")));
        assert_eq!(urls["iqn.2026-11.x:b"], path("10.0.0.1", "b"));
        assert!(urls.values().all(|url| check_url(url).is_ok()));
    }
}
