//! Addresses of listeners and networks of access lists.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

/// Port of an iSCSI target (IANA "iscsi-target").
pub const ISCSI_PORT: u16 = 3260;

/// Port of an NVMe/TCP subsystem (IANA "nvme").
pub const NVME_PORT: u16 = 4420;

/// Port of an NVMe/TCP discovery controller (IANA "nvme-disc").
pub const NVME_DISCOVERY_PORT: u16 = 8009;

/// Port of a gateway for the others of its group.
pub const GATEWAY_PORT: u16 = 3262;

/// Port of metrics over HTTP.
pub const HTTP_PORT: u16 = 9810;

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError(String);

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AddressError {}

/// An iSCSI listener's address: as [`parse_address`], with the port 3260 unless given.
pub fn listen_address(text: &str) -> Result<SocketAddr, AddressError> {
    parse_address(text, ISCSI_PORT)
}

/// An NVMe/TCP listener's address: as [`parse_address`], with the port 4420 unless given.
pub fn parse_nvme_address(text: &str) -> Result<SocketAddr, AddressError> {
    parse_address(text, NVME_PORT)
}

/// A discovery controller's address: as [`parse_address`], with the port 8009 unless given.
pub fn parse_discovery_address(text: &str) -> Result<SocketAddr, AddressError> {
    parse_address(text, NVME_DISCOVERY_PORT)
}

/// The address of metrics over HTTP: as [`parse_address`], with the port 9810 unless given.
pub fn parse_http_address(text: &str) -> Result<SocketAddr, AddressError> {
    parse_address(text, HTTP_PORT)
}

/// An address with its port: `IP`, `IP:PORT`, `[IPv6]`, `[IPv6]:PORT`; without a port it is `usual`, 0
/// lets the kernel choose.
pub fn parse_address(text: &str, usual: u16) -> Result<SocketAddr, AddressError> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, usual));
    }
    Err(AddressError(format!(
        "\"{text}\" is not an address; write IP or IP:PORT, for example 192.0.2.10:{usual} or [::1]:{usual}"
    )))
}

/// Whether strangers cannot reach a listener on this address.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Whether two listeners cannot both be bound, wildcard addresses included.
pub fn addresses_conflict(a: SocketAddr, b: SocketAddr) -> bool {
    if a.port() == 0 || a.port() != b.port() {
        return false;
    }
    let same_family = a.is_ipv4() == b.is_ipv4();
    a.ip() == b.ip() || (same_family && (a.ip().is_unspecified() || b.ip().is_unspecified()))
}

/// A network in CIDR form; host bits are zero. IPv4-mapped IPv6 addresses count as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Whether `ip` lies in the network.
    pub fn contains(&self, ip: IpAddr) -> bool {
        mask_address(ip.to_canonical(), self.prefix) == Some(self.address)
            && ip.to_canonical().is_ipv4() == self.address.is_ipv4()
    }

    /// The network's address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The number of leading bits that must agree.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }
}

/// The first `prefix` bits of an address; `None` when it has fewer.
fn mask_address(ip: IpAddr, prefix: u8) -> Option<IpAddr> {
    let bits = u32::from(prefix);
    match ip {
        IpAddr::V4(ip) if prefix <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            Some(Ipv4Addr::from_bits(ip.to_bits() & mask).into())
        }
        IpAddr::V6(ip) if prefix <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            Some(Ipv6Addr::from_bits(ip.to_bits() & mask).into())
        }
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

impl FromStr for Network {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let malformed = || {
            AddressError(format!(
                "\"{text}\" is not a network; write an address or CIDR, for example 192.0.2.0/24 or 2001:db8::/32"
            ))
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| malformed())?;
        let whole = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) if prefix.bytes().all(|b| b.is_ascii_digit()) => {
                prefix.parse().map_err(|_| malformed())?
            }
            Some(_) => return Err(malformed()),
            None => whole,
        };
        let masked = mask_address(address, prefix).ok_or_else(malformed)?;
        if masked != address {
            return Err(AddressError(format!(
                "\"{text}\" has bits set beyond its prefix; did you mean {masked}/{prefix}?"
            )));
        }
        Ok(Network { address, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_addresses() {
        for (text, want) in [
            ("127.0.0.1", "127.0.0.1:3260"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("::1", "[::1]:3260"),
            ("[::1]", "[::1]:3260"),
            ("[::]:860", "[::]:860"),
        ] {
            assert_eq!(listen_address(text).unwrap().to_string(), want, "{text}");
        }
        for text in ["", "localhost", "1.2.3", "1.2.3.4:", "1.2.3.4:99999", "[::1", ":3260"] {
            assert!(listen_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn collisions_know_wildcards_and_port_zero() {
        let address = |text: &str| listen_address(text).unwrap();
        for (a, b, want) in [
            ("127.0.0.1", "127.0.0.1:3260", true),
            ("0.0.0.0", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1:1", "10.0.0.1:2", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("::", "10.0.0.1", false),
        ] {
            assert_eq!(addresses_conflict(address(a), address(b)), want, "{a} {b}");
        }
    }

    #[test]
    fn networks() {
        let network = |text: &str| text.parse::<Network>();
        let ten = network("10.0.0.0/8").unwrap();
        assert!(ten.contains("10.255.0.1".parse().unwrap()));
        assert!(ten.contains("::ffff:10.1.2.3".parse().unwrap()));
        assert!(!ten.contains("11.0.0.1".parse().unwrap()));
        assert!(!ten.contains("::1".parse().unwrap()));
        let all = network("0.0.0.0/0").unwrap();
        assert!(all.contains("1.2.3.4".parse().unwrap()) && !all.contains("::1".parse().unwrap()));
        assert!(network("::/0").unwrap().contains("2001:db8::1".parse().unwrap()));
        assert_eq!(network("192.0.2.7").unwrap().to_string(), "192.0.2.7/32");
        for text in ["", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/+8", "10.0.0/8", "::/129", "x/8"] {
            assert!(network(text).is_err(), "{text}");
        }
        assert_eq!(
            network("10.0.0.1/8").unwrap_err().to_string(),
            "\"10.0.0.1/8\" has bits set beyond its prefix; did you mean 10.0.0.0/8?"
        );
    }
}
