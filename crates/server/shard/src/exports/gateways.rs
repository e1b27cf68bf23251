//! The other gateways of a group, as discovery tells of them: targets and subsystems that lead to volumes of the group are
//! at all of them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use volume::{PortId, VolumeId};

use super::{Exports, SubsystemExport, TargetExport};

/// What a gateway of a group exports with the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupExports {
    /// The group's volumes.
    pub volumes: BTreeSet<VolumeId>,
    /// The other gateways that take part now.
    pub gateways: Vec<OtherGateway>,
}

/// Where hosts reach another gateway. No address is unspecified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherGateway {
    /// Its iSCSI portals, each with its portal group tag, which no other gateway's portals have.
    pub portals: Vec<(SocketAddr, u16)>,
    /// Its NVMe/TCP portals for subsystems, each with its port.
    pub nvme_portals: Vec<(SocketAddr, PortId)>,
}

impl Exports {
    /// The iSCSI portals of other gateways by which a target is reached.
    pub(super) fn portals_elsewhere(&self, target: &TargetExport) -> impl Iterator<Item = (SocketAddr, u16)> {
        let leads = |group: &&GroupExports| target.luns.iter().any(|lun| group.volumes.contains(&lun.volume));
        let gateways = self.group.iter().filter(leads).flat_map(|group| &group.gateways);
        gateways.flat_map(|gateway| gateway.portals.iter().copied())
    }

    /// The NVMe/TCP portals of other gateways by which a subsystem is reached.
    pub(super) fn nvme_portals_elsewhere(
        &self,
        subsystem: &SubsystemExport,
    ) -> impl Iterator<Item = (SocketAddr, PortId)> {
        let leads = |group: &&GroupExports| {
            subsystem.namespaces.iter().any(|namespace| group.volumes.contains(&namespace.volume))
        };
        let gateways = self.group.iter().filter(leads).flat_map(|group| &group.gateways);
        gateways.flat_map(|gateway| gateway.nvme_portals.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use nvme::fabrics::ConnectNames;
    use nvme::{HostId, Nqn};
    use nvme_server::discovery::EntryKind;

    use endpoint::{AcceptedSocket, ListenerId};

    use super::*;
    use crate::exports::{NvmePortal, Portal};

    const TARGET: &str = "iqn.2026-11.test:disk";
    const SUBSYSTEM: &str = "nqn.2026-11.test:disk";

    fn exports(volumes: &[u64]) -> Exports {
        let address = "10.0.0.1:3260".parse().unwrap();
        let other = OtherGateway {
            portals: vec![("10.0.0.2:3260".parse().unwrap(), 12)],
            nvme_portals: vec![("10.0.0.2:4420".parse().unwrap(), PortId(22))],
        };
        let mut exports = Exports {
            portals: vec![Portal { listener: ListenerId(0), address, group: 11, port: PortId(1) }],
            targets: vec![TargetExport::open_to_all(TARGET, &[VolumeId(0)])],
            group: Some(GroupExports {
                volumes: volumes.iter().copied().map(VolumeId).collect(),
                gateways: vec![other],
            }),
            ..Exports::default()
        };
        exports.nvme.portals =
            vec![NvmePortal::new(ListenerId(1), "10.0.0.1:4420".parse().unwrap(), PortId(21))];
        exports.nvme.subsystems = vec![SubsystemExport::open_to_all(SUBSYSTEM, "7", &[VolumeId(0)])];
        exports
    }

    fn accepted(listener: u16) -> AcceptedSocket {
        AcceptedSocket {
            listener: ListenerId(listener),
            local: "10.0.0.1:3260".parse().unwrap(),
            peer: "10.0.0.9:999".parse().unwrap(),
            cpu: None,
        }
    }

    fn send_targets(exports: &Exports) -> String {
        let text = exports.send_targets_text("iqn.2026-11.test:host", &accepted(0), None);
        String::from_utf8(text.into_vec()).unwrap().replace('\0', " ")
    }

    fn nvme_addresses(exports: &Exports) -> Vec<String> {
        let names = ConnectNames {
            host_id: HostId::new([1; 16]).unwrap(),
            cntlid: 0xffff,
            subsystem: Nqn::discovery_service(),
            host: Nqn::parse("nqn.2026-11.test:host").unwrap(),
        };
        let entries = exports.discovery_entries(&names, &accepted(1)).entries;
        let nvm = entries.iter().filter(|entry| entry.kind == EntryKind::Nvm);
        nvm.map(|entry| format!("{} {}", entry.address, entry.port.0)).collect()
    }

    #[test]
    fn discovery_tells_of_all_gateways_that_serve_a_volume() {
        let shared = exports(&[0]);
        let address = |at: &str| format!("TargetAddress={at} ");
        let own = format!("TargetName={TARGET} {}", address("10.0.0.1:3260,11"));
        assert_eq!(send_targets(&shared), format!("{own}{}", address("10.0.0.2:3260,12")));
        assert_eq!(nvme_addresses(&shared), ["10.0.0.1:4420 21", "10.0.0.2:4420 22"]);
        let alone = exports(&[1]);
        assert_eq!(send_targets(&alone), own, "its volume is of no group");
        assert_eq!(nvme_addresses(&alone), ["10.0.0.1:4420 21"]);
    }
}
