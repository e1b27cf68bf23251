//! The network between target and initiators: loopback, or virtual interfaces between namespaces.
//!
//! Each initiator machine is a namespace with its own interface to the target's. Invariant: everything that a
//! [`Link`] made is removed when it is dropped, and it touches nothing else.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;

use eval::preset::{NetworkNamespaceError, Wire};

use crate::Failure;
use crate::created_resources::CreatedResource;
use crate::place::CommandLocation;
use crate::run_directory::RunDirectory;

/// A link.
#[derive(Debug)]
pub struct Link {
    wire: Wire,
    target: CommandLocation,
    initiators: Vec<CommandLocation>,
    made: Vec<String>,
    scratch: Option<Arc<RunDirectory>>,
    /// The target's addresses: one for each initiator machine, or one for all.
    addresses: Vec<String>,
}

/// Machines that an experiment runs on, reached by ssh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteMachines {
    /// The target's; `None`: this one.
    pub target: Option<CommandLocation>,
    /// The target's address, as initiators reach it.
    pub address: String,
    /// The initiators'; at least one.
    pub initiators: Vec<CommandLocation>,
}

/// Most initiator machines of one link: each has a subnet of its own.
const HOSTS_MAX: u32 = 200;

impl Link {
    /// Makes a link to so many initiator machines (at least 1, at most 200).
    ///
    /// # Errors
    /// If namespaces cannot be made: what to do about it.
    pub fn create(wire: Wire, hosts: u32) -> Result<Link, Failure> {
        let mut link = Link {
            wire,
            target: CommandLocation::Here,
            initiators: Vec::new(),
            made: Vec::new(),
            scratch: None,
            addresses: Vec::new(),
        };
        let mtu = match wire {
            Wire::Loopback => {
                link.initiators = vec![CommandLocation::Here; hosts as usize];
                link.addresses.push("127.0.0.1".to_owned());
                return Ok(link);
            }
            Wire::Veth { mtu } | Wire::Limited { mtu, .. } | Wire::Congested { mtu, .. } => mtu,
        };
        if hosts > HOSTS_MAX {
            return Err(Failure::new(format!(
                "{hosts} initiator machines were requested; at most {HOSTS_MAX} are possible"
            )));
        }
        let scratch = RunDirectory::current()?;
        link.scratch = Some(Arc::clone(&scratch));
        let own = scratch.next_number();
        let name = |end: &str| scratch.unique_name("bw-", &format!("-{own}{end}"));
        link.target = link.namespace_place(name("t"))?;
        for host in 0..hosts {
            let there = link.namespace_place(name(&format!("i{host}")))?;
            let (CommandLocation::Namespace(target), CommandLocation::Namespace(initiator)) =
                (&link.target, &there)
            else {
                return Err(Failure::new("a namespace was expected"));
            };
            let (near, far) = (format!("bwt{host}"), "bwi".to_owned());
            let mtu = mtu.to_string();
            run_ip(&[
                "link", "add", &near, "mtu", &mtu, "netns", target, "type", "veth", "peer", "name", &far,
                "mtu", &mtu, "netns", initiator,
            ])?;
            bring_up(target, &near, &format!("{}/24", Link::subnet(host, 1)))?;
            bring_up(initiator, &far, &format!("{}/24", Link::subnet(host, 2)))?;
            if let Wire::Limited { limit, .. } | Wire::Congested { limit, .. } = wire {
                limit_rate(target, &near, limit)?;
                limit_rate(initiator, &far, limit)?;
            }
            link.initiators.push(there);
            link.addresses.push(Link::subnet(host, 1));
        }
        Ok(link)
    }

    /// The network that is there between machines.
    pub fn over_network(machines: &RemoteMachines) -> Link {
        Link {
            wire: Wire::Loopback,
            target: machines.target.clone().unwrap_or(CommandLocation::Here),
            initiators: machines.initiators.clone(),
            made: Vec::new(),
            scratch: None,
            addresses: vec![to_numeric_address(&machines.address)],
        }
    }

    fn namespace_place(&mut self, name: String) -> Result<CommandLocation, Failure> {
        if let Some(scratch) = &self.scratch {
            scratch.note_resource(&CreatedResource::Namespace(name.clone()))?;
        }
        run_ip(&["netns", "add", &name])?;
        self.made.push(name.clone());
        run_ip(&["-n", &name, "link", "set", "lo", "up"])?;
        Ok(CommandLocation::Namespace(name))
    }

    fn subnet(host: u32, end: u32) -> String {
        format!("10.77.{host}.{end}")
    }

    /// What it is.
    pub fn wire(&self) -> Wire {
        self.wire
    }

    /// Where the target runs.
    pub fn target_place(&self) -> &CommandLocation {
        &self.target
    }

    /// Where initiators run.
    pub fn initiator_places(&self) -> &[CommandLocation] {
        &self.initiators
    }

    /// One of them.
    pub(crate) fn initiator_place(&self, host: usize) -> Result<&CommandLocation, Failure> {
        let missing = || Failure::new(format!("the link has no initiator machine {}", host + 1));
        self.initiators.get(host).ok_or_else(missing)
    }

    /// The address that a target listens on, so that every initiator reaches it.
    ///
    /// In a namespace of ours all addresses are the experiment's. Between machines others may reach the rest.
    pub fn listen_address(&self) -> &str {
        match self.addresses.first() {
            Some(address) if self.wire == Wire::Loopback => address,
            _ => "0.0.0.0",
        }
    }

    /// The addresses at which initiators reach it: what a target that must be told each listens on.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The target's address, as this initiator machine reaches it.
    pub fn address(&self, host: usize) -> String {
        // One for each machine, or one for all.
        self.addresses.get(host).or(self.addresses.last()).cloned().unwrap_or_default()
    }

    /// This initiator machine's address, as the target reaches it.
    pub(crate) fn initiator_address(&self, host: usize) -> String {
        match self.wire {
            Wire::Loopback => "127.0.0.1".to_owned(),
            _ => Link::subnet(u32::try_from(host).unwrap_or(0), 2),
        }
    }

    /// Bytes of the largest packet.
    pub fn mtu(&self) -> u32 {
        match self.wire {
            Wire::Loopback => 65_536,
            Wire::Veth { mtu } | Wire::Limited { mtu, .. } | Wire::Congested { mtu, .. } => mtu,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in self.made.drain(..) {
            let _ = run_ip(&["netns", "del", &name]);
        }
    }
}

/// An address in numbers, as targets listen on it; a name that is not known here stays as it is.
fn to_numeric_address(address: &str) -> String {
    if address.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        return address.to_owned();
    }
    let found = (address, 0).to_socket_addrs().ok().and_then(|mut found| found.next());
    match found.map(|found| found.ip()) {
        Some(IpAddr::V6(found)) => format!("[{found}]"),
        Some(IpAddr::V4(found)) => found.to_string(),
        None => address.to_owned(),
    }
}

/// Whether namespaces can be made here; else why not and what to do.
///
/// # Errors
/// Why not.
pub fn check_namespaces() -> Result<(), NetworkNamespaceError> {
    if !CommandLocation::Here.has_program("ip") {
        return Err(NetworkNamespaceError::NoIp);
    }
    let tried = Link::create(Wire::Veth { mtu: 1500 }, 1);
    tried.map(drop).map_err(|why| NetworkNamespaceError::Refused(why.to_string()))
}

fn run_ip(words: &[&str]) -> Result<String, Failure> {
    CommandLocation::Here.run(&[&["ip"], words].concat())
}

fn bring_up(namespace: &str, interface: &str, address: &str) -> Result<(), Failure> {
    run_ip(&["-n", namespace, "addr", "add", address, "dev", interface])?;
    run_ip(&["-n", namespace, "link", "set", interface, "up"]).map(drop)
}

/// A token bucket: bursts of 64 KiB at least (one large segment), 20 ms of queue.
fn limit_rate(namespace: &str, interface: &str, bits: u64) -> Result<(), Failure> {
    let rate = format!("{bits}bit");
    let burst = (bits / 8 / 1000).max(65_536 * 2).to_string();
    let words = [
        "tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", "tbf", "rate", &rate, "burst",
        &burst, "latency", "20ms",
    ];
    CommandLocation::Here.run(&words).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_needs_nothing() {
        let link = Link::create(Wire::Loopback, 3).unwrap();
        assert_eq!(
            (link.listen_address(), link.address(2).as_str(), link.mtu()),
            ("127.0.0.1", "127.0.0.1", 65_536)
        );
        assert_eq!((link.initiator_places().len(), link.addresses().len()), (3, 1));
    }

    /// Where namespaces can be made: hosts reach the target each by its own interface, with the MTU that
    /// was asked for, and nothing stays.
    #[test]
    fn hosts_reach_the_target_and_nothing_stays() {
        if let Err(why) = check_namespaces() {
            assert!(!rustix::process::geteuid().is_root(), "root can make namespaces: {why}");
            return;
        }
        let link = Link::create(Wire::Congested { mtu: 9000, limit: 1_000_000_000 }, 2).unwrap();
        for host in 0..2 {
            let route =
                link.initiator_places()[host].run(&["ip", "route", "get", &link.address(host)]).unwrap();
            assert!(route.contains("dev bwi"), "{route}");
            let shown = link.initiator_places()[host].run(&["ip", "link", "show", "bwi"]).unwrap();
            assert!(shown.contains("mtu 9000") && shown.contains("qdisc tbf"), "{shown}");
        }
        assert_eq!(link.addresses(), [link.address(0), link.address(1)]);
        let names = link.made.clone();
        drop(link);
        let left = run_ip(&["netns", "list"]).unwrap();
        assert!(names.iter().all(|name| !left.contains(name)), "{left}");
    }
}
