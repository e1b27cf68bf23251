//! `blockwire node`: volumes to attach, as open-iscsi keeps node records: listed, changed, and discovered.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use control::secret_url::SecretUrl;
use nodes::{AddedNode, Node, Nodes, check_name, check_url, parse_timeout_text, parse_via_name};
use process::exit::{Exit, Failure};
use process::printable;
use recovery::record::to_millis;

use super::{json_text, print};
use crate::output::{self, Terminal};
use reports::{ListedNodeReport, NodeReport};

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

impl NodesDir {
    /// The one that is named.
    pub fn given(&self) -> Option<&Path> {
        self.nodes.as_deref()
    }
}

/// How a node is attached; what is not given stays as it is, or at its default.
#[derive(Debug, Args)]
pub struct NodeSettingArgs {
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

impl NodeSettingArgs {
    fn settings(&self) -> nodes::NodeSettings {
        let NodeSettingArgs { autostart, via, at, timeout } = self;
        nodes::NodeSettings {
            autostart: *autostart,
            via: via.clone(),
            at: at.clone(),
            timeout: timeout.clone(),
        }
    }
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
        settings: NodeSettingArgs,
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
        settings: NodeSettingArgs,
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
        settings: NodeSettingArgs,
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
            let node = Nodes::find_for(dir.given(), name)?.read(name)?;
            let text = match json {
                true => json_text(&node_report(&node, name)),
                false => node_card(&node),
            };
            print(&text).map(|()| Exit::Success)
        }
        NodeVerb::Add { name, url, settings, dir } => {
            check_name(name)?;
            check_url(url).map_err(|why| Failure::usage(format!("the URL of \"{name}\": {why}")))?;
            let mut node = Node::new(url.to_string());
            node.apply(&settings.settings())?;
            Nodes::create(dir.given())?.write(name, &node, true).map(|()| Exit::Success)
        }
        NodeVerb::Set { name, url, settings, dir } => {
            let nodes = Nodes::find_for(dir.given(), name)?;
            let mut node = nodes.read(name)?;
            if let Some(url) = url {
                check_url(url).map_err(|why| Failure::usage(format!("the URL of \"{name}\": {why}")))?;
                node.url = url.to_string();
            }
            node.apply(&settings.settings())?;
            nodes.write(name, &node, false).map(|()| Exit::Success)
        }
        NodeVerb::Remove { name, dir } => {
            Nodes::find_for(dir.given(), name)?.remove(name).map(|()| Exit::Success)
        }
        NodeVerb::Discover { url, settings, dir } => discover(url, settings, dir),
    }
}

fn node_report(node: &Node, name: &str) -> NodeReport {
    NodeReport {
        name: name.to_owned(),
        url: node.url.clone(),
        autostart: node.autostart,
        via: node.via.clone(),
        at: node.at.as_ref().map(|at| at.display().to_string()),
        timeout_ms: to_millis(node.recovery_timeout()),
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
    if let Some(nodes) = Nodes::find(dir.given())? {
        for name in nodes.names()? {
            let node = nodes.read(&name);
            all.push((name, node));
        }
    }
    let exit = if all.iter().any(|(_, node)| node.is_err()) { Exit::Failure } else { Exit::Success };
    if json {
        let report = |(name, node): (String, Result<Node, Failure>)| match node {
            Ok(node) => ListedNodeReport::Known(node_report(&node, &name)),
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

fn discover(url: &SecretUrl, settings: &NodeSettingArgs, dir: &NodesDir) -> Result<Exit, Failure> {
    let found = nodes::discover(url, &settings.settings(), dir.given())?;
    let (mut said, mut exit) = (String::new(), Exit::Success);
    for (name, became) in &found.nodes {
        let _ = match became {
            AddedNode::Added => writeln!(said, "added {name}"),
            AddedNode::Kept => writeln!(said, "kept {name}"),
            AddedNode::Failed(why) => {
                exit = Exit::Failure;
                writeln!(said, "not added: {}", printable::escape_line(&why.message))
            }
        };
    }
    for problem in &found.problems {
        let _ = writeln!(said, "note: {}", printable::escape_line(problem));
    }
    print(&said)?;
    Ok(exit)
}
