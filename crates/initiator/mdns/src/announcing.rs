//! What this machine announces: the discovery services of its daemon.
//!
//! The crate `mdns-sd` speaks, on a thread of its own and by sockets that it shares with other programs (port 5353), so
//! an avahi-daemon may run beside it. Announcements are made again when addresses of the machine change.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mdns_sd::{IfKind, ServiceDaemon, ServiceInfo};

use crate::SERVICE_TYPE;

/// How long the end of an announcement is waited for: it is one packet to each network.
const WITHDRAWAL_TIME: Duration = Duration::from_secs(1);
/// Of the name of the machine as much is used, so that the rest of a label has room.
const MACHINE_LEN_MAX: usize = 32;

/// Announcements of this machine's NVMe discovery services. They are withdrawn when it is dropped.
pub struct Announcer {
    responder: ServiceDaemon,
    machine: String,
    /// What is announced, by port: its addresses, and its name.
    announced: BTreeMap<u16, (Vec<IpAddr>, String)>,
}

impl std::fmt::Debug for Announcer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Announcer").field("announced", &self.announced).finish_non_exhaustive()
    }
}

impl Announcer {
    /// One for the machine of this name. It announces nothing yet.
    ///
    /// # Errors
    /// In words: mDNS cannot be spoken here.
    pub fn new(machine: &str) -> Result<Announcer, String> {
        let responder = ServiceDaemon::new().map_err(|why| why.to_string())?;
        Ok(Announcer { responder, machine: machine_label(machine), announced: BTreeMap::new() })
    }

    /// Announces the services at these addresses and no others: those that were announced before and are not among them
    /// are withdrawn. The unspecified address stands for all addresses of its family.
    ///
    /// # Errors
    /// In words; the others are announced.
    pub fn announce(&mut self, services: &[SocketAddr]) -> Result<(), String> {
        let wanted = addresses_by_port(services);
        let (stays, gone): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.announced)
            .into_iter()
            .partition(|(port, (known, _))| wanted.get(port) == Some(known));
        gone.values().for_each(|(_, name)| self.withdraw(name));
        self.announced = stays;
        let mut failed = None;
        for (port, addresses) in wanted {
            if self.announced.contains_key(&port) {
                continue;
            }
            match self.announce_service(port, &addresses) {
                Ok(name) => drop(self.announced.insert(port, (addresses, name))),
                Err(why) => failed = Some(why.to_string()),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn announce_service(&self, port: u16, addresses: &[IpAddr]) -> Result<String, mdns_sd::Error> {
        let instance = format!("blockwire on {} port {port}", self.machine);
        // A name of its own: the machine's own name and addresses may be another program's to announce.
        let host = format!("blockwire-{}-{port}.local.", self.machine);
        let properties = [("p", "tcp"), ("nqn", "nqn.2014-08.org.nvmexpress.discovery")];
        let listed: Vec<IpAddr> =
            addresses.iter().copied().filter(|address| !address.is_unspecified()).collect();
        let mut service =
            ServiceInfo::new(SERVICE_TYPE, &instance, &host, &listed[..], port, &properties[..])?;
        let any = addresses.iter().filter(|address| address.is_unspecified());
        let families: Vec<IfKind> =
            any.map(|address| if address.is_ipv4() { IfKind::IPv4 } else { IfKind::IPv6 }).collect();
        if !families.is_empty() {
            service = service.enable_addr_auto();
            service.set_interfaces(families);
        }
        let name = service.get_fullname().to_owned();
        self.responder.register(service)?;
        Ok(name)
    }

    fn withdraw(&self, name: &str) {
        if let Ok(ended) = self.responder.unregister(name) {
            let _ = ended.recv_timeout(WITHDRAWAL_TIME);
        }
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.announced.values().for_each(|(_, name)| self.withdraw(name));
        if let Ok(ended) = self.responder.shutdown() {
            let _ = ended.recv_timeout(WITHDRAWAL_TIME);
        }
    }
}

/// The addresses of each port, ascending.
fn addresses_by_port(services: &[SocketAddr]) -> BTreeMap<u16, Vec<IpAddr>> {
    let mut ports: BTreeMap<u16, Vec<IpAddr>> = BTreeMap::new();
    for service in services {
        let addresses = ports.entry(service.port()).or_default();
        addresses.push(service.ip());
        addresses.sort_unstable();
        addresses.dedup();
    }
    ports
}

/// The first label of a machine's name, with what a host name may have (RFC 952).
fn machine_label(name: &str) -> String {
    let first = name.split('.').next().unwrap_or_default();
    let letters = first.chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '-');
    let label: String = letters.take(MACHINE_LEN_MAX).collect();
    if label.is_empty() { "localhost".to_owned() } else { label }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_told_by_port_with_all_their_addresses() {
        let services: Vec<SocketAddr> =
            ["192.0.2.7:8009", "[2001:db8::7]:8009", "192.0.2.7:4420", "192.0.2.6:8009", "192.0.2.7:8009"]
                .map(|text| text.parse().unwrap())
                .into();
        let all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let expected = BTreeMap::from([
            (4420, all(&["192.0.2.7"])),
            (8009, all(&["192.0.2.6", "192.0.2.7", "2001:db8::7"])),
        ]);
        assert_eq!(addresses_by_port(&services), expected);
    }

    /// The longest label of a name (RFC 1035 §2.3.4), in bytes.
    const LABEL_LEN_MAX: usize = 63;

    #[test]
    fn names_of_machines_fit_a_label() {
        assert_eq!(machine_label("storage-1.example.com"), "storage-1");
        assert_eq!(machine_label("sto\u{e4}rage _1"), "storage1");
        assert_eq!(machine_label(""), "localhost");
        let longest = machine_label(&"x".repeat(200));
        assert!(format!("blockwire on {longest} port 65535").len() <= LABEL_LEN_MAX);
    }
}
