//! Where hosts reach the gateways of a group: each leaves its portals in the members object, and the others name them in
//! discovery.

use std::{net::SocketAddr, sync::Arc};

use serde::{Deserialize, Serialize};
use shard::OtherGateway;
use volume::PortId;

use config::plan::{GroupSettings, Plan, Protocol};

/// A portal of a gateway, as the members object has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayPortal {
    /// The word of its protocol.
    protocol: String,
    /// Where hosts connect to.
    address: SocketAddr,
    /// Its portal group.
    tag: u16,
}

/// The portals of this gateway as text. One that listens everywhere is told with the address that other gateways connect
/// to; one whose port the system chooses is not told.
pub fn describe(plan: &Plan, settings: &GroupSettings) -> Arc<str> {
    let portals = plan.portals.iter().filter(|portal| portal.address.port() != 0);
    let portals = portals.filter(|portal| portal.protocol != Protocol::NvmeDiscovery).map(|portal| {
        let mut address = portal.address;
        if address.ip().is_unspecified() {
            address.set_ip(settings.address.ip());
        }
        let protocol = portal.protocol.as_str().to_owned();
        GatewayPortal { protocol, address, tag: portal.tag }
    });
    let text = serde_json::to_string(&portals.collect::<Vec<_>>()).unwrap_or_default();
    // A gateway with more is found by its own discovery only.
    if text.len() > group::PORTALS_MAX { "[]".into() } else { text.into() }
}

/// An iSCSI portal of another gateway whose tag is one of these, from what it has left.
pub fn shared_tag(own: &[u16], text: &str) -> Option<(SocketAddr, u16)> {
    let portals = serde_json::from_str::<Vec<GatewayPortal>>(text).unwrap_or_default();
    let is_shared =
        |portal: &&GatewayPortal| portal.protocol == Protocol::Iscsi.as_str() && own.contains(&portal.tag);
    portals.iter().find(is_shared).map(|portal| (portal.address, portal.tag))
}

/// The portals of another gateway, from what it has left; `number` knows its ports. What is not understood is left out.
pub fn read<E>(text: &str, number: impl Fn(&str) -> Result<PortId, E>) -> Result<OtherGateway, E> {
    let mut gateway = OtherGateway::default();
    for portal in serde_json::from_str::<Vec<GatewayPortal>>(text).unwrap_or_default() {
        match Protocol::WORDS.iter().find(|(word, _)| *word == portal.protocol) {
            Some((_, Protocol::Iscsi)) => gateway.portals.push((portal.address, portal.tag)),
            Some((word, Protocol::Nvme)) => {
                let port = number(&format!("{word} {}", portal.tag))?;
                gateway.nvme_portals.push((portal.address, port));
            }
            Some((_, Protocol::NvmeDiscovery)) | None => {}
        }
    }
    Ok(gateway)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::example_plan;

    #[test]
    fn what_a_gateway_leaves_others_read() {
        let mut plan = example_plan();
        plan.portals.truncate(2);
        plan.portals[0].address = "0.0.0.0:3260".parse().unwrap();
        plan.portals[1].address = "192.0.2.7:0".parse().unwrap();
        let settings = GroupSettings {
            name: "g".parse().unwrap(),
            pool: "rbd".to_owned(),
            namespace: None,
            conf: None,
            user: None,
            gateway: None,
            listen: "0.0.0.0:3262".parse().unwrap(),
            address: "192.0.2.1:3262".parse().unwrap(),
        };
        let number = |port: &str| Ok::<_, ()>(PortId(port.len() as u16));
        let read = |text: &str| read(text, number).unwrap();
        let gateway = read(&describe(&plan, &settings));
        let iscsi = ("192.0.2.1:3260".parse().unwrap(), plan.portals[0].tag);
        assert_eq!(gateway, OtherGateway { portals: vec![iscsi], nvme_portals: vec![] });
        let left = describe(&plan, &settings);
        assert_eq!(shared_tag(&[9, iscsi.1], &left), Some(iscsi));
        assert_eq!((shared_tag(&[9], &left), shared_tag(&[iscsi.1], "")), (None, None));
        let text = r#"[{"protocol":"nvme","address":"192.0.2.1:4420","tag":7},{"protocol":"new","address":"[::]:1","tag":1}]"#;
        assert_eq!(read(text).nvme_portals, [("192.0.2.1:4420".parse().unwrap(), PortId(6))]);
        assert_eq!((read(""), read("[{}]")), (OtherGateway::default(), OtherGateway::default()));
    }
}
