//! NVMe discovery services on the local network (NVMe TP8009, RFC 6763): those that announce themselves, what they offer,
//! and the daemon's own announcement ([`Announcer`]).
//!
//! Invariant: any machine of the network can answer, so a bounded number is looked at, for a bounded time, and what one
//! of them says wrongly is a problem of that one only.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

mod announcing;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use client::{DiscoveredTarget, DiscoveryResult};
use mdns_sd::{ResolvedService, ServiceDaemon, ServiceEvent};
use process::exit::{Exit, Failure};

pub use announcing::Announcer;

/// What they announce themselves as.
const SERVICE_TYPE: &str = "_nvme-disc._tcp.local.";
/// How long answers are waited for. Who is asked answers within a second (RFC 6762 §6); a second question is sent in time.
const BROWSE_TIME: Duration = Duration::from_secs(3);
/// Machines that are looked at; what others announce is not bounded.
const SERVICES_MAX: usize = 256;

/// A discovery service that has announced itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedService {
    /// The name of the announcement.
    pub name: String,
    /// For `discover`: one for each address.
    pub urls: Vec<String>,
}

/// The discovery services on the networks of this machine; it takes three seconds.
///
/// # Errors
/// mDNS cannot be spoken here.
pub fn browse() -> Result<Vec<AnnouncedService>, Failure> {
    let failed = |why: mdns_sd::Error| Failure::new(Exit::Failure, format!("mDNS: {why}"));
    let daemon = ServiceDaemon::new().map_err(failed)?;
    let events = daemon.browse(SERVICE_TYPE).map_err(failed)?;
    let mut found = BTreeMap::new();
    let until = Instant::now() + BROWSE_TIME;
    while let Ok(event) = events.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if let ServiceEvent::ServiceResolved(service) = event
            && (found.len() < SERVICES_MAX || found.contains_key(service.get_fullname()))
            && let Some(urls) = service_urls(&service)
        {
            // More addresses may have become known.
            found.insert(service.get_fullname().to_owned(), urls);
        }
    }
    if let Ok(ended) = daemon.shutdown() {
        let _ = ended.recv_timeout(Duration::from_secs(1));
    }
    let service = |(full, urls): (String, Vec<String>)| {
        let name =
            full.strip_suffix(SERVICE_TYPE).map_or(&*full, |name| name.trim_end_matches('.')).to_owned();
        AnnouncedService { name, urls }
    };
    Ok(found.into_iter().map(service).collect())
}

/// Asks each service by the first of its addresses that answers. What none of them says is a problem of that one only.
pub fn discover_announced(services: &[AnnouncedService]) -> DiscoveryResult {
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

/// Where it is to be asked, by each address; `None`: not over TCP, or nowhere. By whatever name it announces (`nqn`), it
/// answers to the well-known one too.
fn service_urls(service: &ResolvedService) -> Option<Vec<String>> {
    let transport = service.get_property_val_str("p").unwrap_or("tcp");
    let addresses = service.get_addresses().iter().map(mdns_sd::ScopedIp::to_ip_addr);
    urls(transport, service.get_port(), addresses)
}

fn urls(transport: &str, port: u16, addresses: impl Iterator<Item = IpAddr>) -> Option<Vec<String>> {
    if transport != "tcp" || port == 0 {
        return None;
    }
    // A link-local address says nothing without its interface, and there is another one as a rule.
    let is_usable = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_unspecified() && !address.is_multicast(),
        IpAddr::V6(address) => {
            !address.is_unicast_link_local() && !address.is_unspecified() && !address.is_multicast()
        }
    };
    let mut places: Vec<SocketAddr> =
        addresses.filter(is_usable).map(|address| SocketAddr::new(address, port)).collect();
    places.sort_unstable();
    places.dedup();
    let urls: Vec<String> = places.iter().map(|place| format!("nvme+tcp://{place}")).collect();
    (!urls.is_empty()).then_some(urls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_asked_at_each_of_its_addresses() {
        let all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let places = all(&["192.0.2.7", "fe80::1", "2001:db8::7", "192.0.2.7", "0.0.0.0", "224.0.0.1"]);
        let found = urls("tcp", 8009, places.iter().copied()).unwrap();
        assert_eq!(found, ["nvme+tcp://192.0.2.7:8009", "nvme+tcp://[2001:db8::7]:8009"]);
        assert_eq!(urls("rdma", 8009, places.iter().copied()), None);
        assert_eq!(urls("tcp", 0, places.iter().copied()), None);
        assert_eq!(urls("tcp", 8009, all(&["fe80::1"]).into_iter()), None);
    }
}
