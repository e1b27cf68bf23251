//! Who this machine is to targets.
//!
//! The names that the system's own initiators use are taken where there are any, so that access lists fit;
//! else they follow from the machine's identity, the same at each start. Invariant: two machines do not get
//! the same name, and one gets the same each time.

use std::fs;

use host::Who;
use nvme::{HostId, Nqn};
use sha2::{Digest, Sha256};

/// Whether a nexus outlives the process that has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// A nexus of this process alone: several may use one target side by side.
    #[default]
    Passing,
    /// The same nexus each time, as reservations over iSCSI need it. Two processes that have it at once end
    /// each other's sessions.
    Lasting,
    /// The nexus of a process that is gone, by the qualifier that [`Initiator::who`](crate::Initiator::who)
    /// gave there (`isid`): an iSCSI target ends the old session, with all that it still had in work, before
    /// the new one begins (RFC 7143 §6.3.5).
    Inherited([u8; 3]),
}

/// Who we are. `entropy` is new for each process.
pub(crate) fn who(standing: Standing, entropy: [u8; 3]) -> Who {
    let machine = machine();
    let uuid = uuid_of(&machine);
    let initiator = initiator_name(&fs::read_to_string("/etc/iscsi/initiatorname.iscsi").unwrap_or_default());
    let initiator = initiator.unwrap_or_else(|| format!("iqn.2026-11.io.blockwire:host.{}", hex(&uuid[..6])));
    let host = line("/etc/nvme/hostnqn").and_then(|text| Nqn::parse(&text).ok());
    let nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{}", hyphenated(&uuid));
    let host = host.unwrap_or_else(|| Nqn::parse(&nqn).expect("a name of a UUID is a name"));
    let host_id = line("/etc/nvme/hostid").and_then(|text| parse_uuid(&text)).unwrap_or(uuid);
    let host_id = HostId::new(host_id).expect("its version makes it differ from zero");
    let lasting = Sha256::digest([b"isid".as_slice(), &uuid].concat());
    let isid = match standing {
        Standing::Passing => entropy,
        Standing::Lasting => [lasting[0], lasting[1], lasting[2]],
        Standing::Inherited(isid) => isid,
    };
    Who { initiator, host, host_id, isid }
}

fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// The name in open-iscsi's file.
fn initiator_name(text: &str) -> Option<String> {
    let named = text.lines().find_map(|line| line.trim().strip_prefix("InitiatorName="))?;
    iscsi::name::IscsiName::parse(named.trim()).ok().map(|name| name.as_str().to_owned())
}

/// What is this machine's alone. Containers share a kernel, but not this.
fn machine() -> Vec<u8> {
    let id = line("/etc/machine-id").or_else(|| line("/var/lib/dbus/machine-id"));
    let node = rustix::system::uname().nodename().to_bytes().to_vec();
    [id.unwrap_or_default().into_bytes(), node].concat()
}

/// A UUID of version 8 (RFC 9562 §5.8), so that the machine's own id is not shown to everybody.
fn uuid_of(machine: &[u8]) -> [u8; 16] {
    let digest = Sha256::digest([b"io.blockwire.host".as_slice(), machine].concat());
    let mut uuid: [u8; 16] = std::array::from_fn(|at| digest[at]);
    uuid[6] = uuid[6] & 0x0F | 0x80;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hyphenated(uuid: &[u8; 16]) -> String {
    [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]].map(hex).join("-")
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> =
        text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    (digits.len() == 32).then(|| bytes.try_into().ok()).flatten().filter(|uuid| *uuid != [0; 16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_keeps_its_names() {
        let (one, two) = (who(Standing::Lasting, [1, 2, 3]), who(Standing::Lasting, [4, 5, 6]));
        assert_eq!((&one.initiator, one.host_id, one.isid), (&two.initiator, two.host_id, two.isid));
        assert_eq!(who(Standing::Passing, [4, 5, 6]).isid, [4, 5, 6]);
        assert_eq!(who(Standing::Inherited([7, 8, 9]), [4, 5, 6]).isid, [7, 8, 9]);
    }

    #[test]
    fn other_machines_have_others() {
        let uuid = uuid_of(b"one");
        assert_ne!(uuid, uuid_of(b"two"));
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (8, 2));
        assert_eq!(parse_uuid(&hyphenated(&uuid)), Some(uuid));
        assert_eq!(parse_uuid("00000000-0000-0000-0000-000000000000"), None);
        assert_eq!(parse_uuid("xyz"), None);
    }

    #[test]
    fn the_systems_own_name_is_taken() {
        let text = "## comment\nInitiatorName=iqn.1993-08.org.debian:01:abc\n";
        assert_eq!(initiator_name(text).as_deref(), Some("iqn.1993-08.org.debian:01:abc"));
        assert_eq!(initiator_name("InitiatorName=nonsense"), None);
    }
}
