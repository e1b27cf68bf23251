//! Nodes of all targets or subsystems that a machine offers.

use std::collections::BTreeMap;
use std::path::Path;

use client::{DiscoveredTarget, Protocol, Url};
use process::exit::{Exit, Failure};

use crate::node::{Node, NodeSettings, check_url};
use crate::store::Nodes;

/// What a discovery came to.
#[derive(Debug)]
pub struct DiscoveredNodes {
    /// What became of each target or subsystem, by its name.
    pub nodes: Vec<(String, AddedNode)>,
    /// What could not be asked, or understood.
    pub problems: Vec<String>,
}

/// What became of a target or subsystem that is offered.
#[derive(Debug)]
pub enum AddedNode {
    /// It is a new node.
    Added,
    /// There was a node of its name, which stays as it is.
    Kept,
    /// Why it is no node.
    Failed(Failure),
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

/// Adds nodes for all that is offered at a portal or discovery service: logical unit 0 or namespace 1 of each, by all
/// portals that are told, with the options of this URL.
///
/// # Errors
/// The URL holds a password; nothing is offered; there is no directory for nodes.
pub fn discover(
    text: &str,
    settings: &NodeSettings,
    given: Option<&Path>,
) -> Result<DiscoveredNodes, Failure> {
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
    let store = Nodes::create(given)?;
    let mut nodes = Vec::new();
    for (name, urls) in discovered_urls(text, &url, &discovered.targets) {
        let mut node = Node::new(urls);
        node.apply(settings)?;
        // What a target calls itself is looked at as anything of foreign origin.
        let added = check_url(&node.url)
            .map_err(|why| Failure::failed(format!("a target's URL: {why}")))
            .and_then(|()| store.write(&name, &node, true));
        let became = match added {
            Ok(()) => AddedNode::Added,
            Err(why) if why.exit == Exit::Exists => AddedNode::Kept,
            Err(why) => AddedNode::Failed(why),
        };
        nodes.push((name, became));
    }
    Ok(DiscoveredNodes { nodes, problems: discovered.problems })
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
