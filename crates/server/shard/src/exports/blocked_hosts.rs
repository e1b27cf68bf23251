//! Hosts that may not connect, whatever the rules say.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::Network;

/// Initiators and NVMe hosts whose logins and Connects are refused, and who discover nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockedHosts {
    names: HashSet<Arc<str>>,
    sources: Vec<Network>,
}

impl BlockedHosts {
    /// Those of these names (iSCSI names normalised, NQNs as they are), and all that come from these networks.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>, sources: Vec<Network>) -> Self {
        BlockedHosts { names: names.into_iter().map(Into::into).collect(), sources }
    }

    /// Whether a host of this name that comes from an address is blocked.
    pub fn contains(&self, name: &str, source: IpAddr) -> bool {
        self.names.contains(name) || self.sources.iter().any(|network| network.contains(source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_blocked_by_name_from_anywhere_and_by_network_whatever_its_name() {
        let network = Network { address: "192.0.2.0".parse().unwrap(), prefix: 24 };
        let blocked = BlockedHosts::new(["iqn.2026-11.test:a"], vec![network]);
        let is_blocked = |name: &str, from: &str| blocked.contains(name, from.parse().unwrap());
        assert!(is_blocked("iqn.2026-11.test:a", "198.51.100.1"));
        assert!(is_blocked("nqn.2026-11.test:b", "192.0.2.7"));
        assert!(!is_blocked("iqn.2026-11.test:ab", "198.51.100.1"));
        assert!(!BlockedHosts::default().contains("", "192.0.2.7".parse().unwrap()));
    }
}
