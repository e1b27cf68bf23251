//! Announces an NVMe discovery service by mDNS, as avahi-daemon does with `contrib/avahi/blockwire.service`, until it is
//! ended: the other side of `tests/mdns.sh`. `announce_discovery NAME ADDRESS PORT`

use mdns_sd::{ServiceDaemon, ServiceInfo};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, address, port] = &words[..] else { return Err("NAME ADDRESS PORT".into()) };
    let properties = [("p", "tcp"), ("nqn", "nqn.2014-08.org.nvmexpress.discovery")];
    let service = ServiceInfo::new(
        "_nvme-disc._tcp.local.",
        name,
        &format!("{name}.local."),
        address.as_str(),
        port.parse()?,
        &properties[..],
    )?;
    let daemon = ServiceDaemon::new()?;
    daemon.register(service)?;
    loop {
        std::thread::park();
    }
}
