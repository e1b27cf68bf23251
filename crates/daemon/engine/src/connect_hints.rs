//! Commands for users to paste, printed once the listeners are open.

use std::{fmt::Write, net::SocketAddr};

use config::plan::{Plan, Protocol};
use control::report::ListenerReport;
use shard::TlsMode;

/// The commands for the first target and the first subsystem that can be used, one line each.
pub fn connect_commands(plan: &Plan, listeners: &[ListenerReport]) -> String {
    let mut out = String::new();
    push_iscsi_commands(plan, listeners, &mut out);
    let over_iscsi = !out.is_empty();
    push_nvme_commands(plan, listeners, &mut out);
    if over_iscsi && out.contains("nvme connect") {
        let _ = writeln!(
            out,
            "use one protocol per machine: no multipath combines an iSCSI and an NVMe path to one disk"
        );
    }
    out
}

/// The first listener of a protocol in one of these portal groups, and the address to dial.
fn first_listener(listeners: &[ListenerReport], protocol: Protocol, tags: &[u16]) -> Option<SocketAddr> {
    let fits =
        |listener: &&ListenerReport| listener.protocol == protocol.as_str() && tags.contains(&listener.tag);
    Some(listeners.iter().find(fits)?.address)
}

fn push_iscsi_commands(plan: &Plan, listeners: &[ListenerReport], out: &mut String) {
    let usable = plan.ways.targets.iter().filter(|target| target.redirect.is_none());
    let mut reached = usable.filter_map(|target| {
        let own = |(at, _): &(usize, _)| target.listeners.as_ref().is_none_or(|own| own.contains(at));
        let listeners: Vec<ListenerReport> =
            listeners.iter().enumerate().filter(own).map(|(_, listener)| listener.clone()).collect();
        let portal = dial_address(first_listener(&listeners, Protocol::Iscsi, &target.portals)?);
        Some((target, target.luns.first()?.lun, portal))
    });
    let Some((target, lun, portal)) = reached.next() else { return };
    let (name, more) = (&target.name, reached.count());
    let secret = !plan.auth.shared_credentials(target).is_empty()
        || plan.hosts.iter().any(|host| !host.chap.is_empty());
    let user = if secret { "USER%PASSWORD@" } else { "" };
    let url = format!("iscsi://{user}{portal}/{name}/{lun}");
    let _ = writeln!(out, "connect to {name} over iSCSI:");
    let _ = writeln!(out, "  Linux    iscsiadm -m discovery -t sendtargets -p {portal}");
    if secret {
        for (key, value) in [("authmethod", "CHAP"), ("username", "USER"), ("password", "PASSWORD")] {
            let _ = writeln!(
                out,
                "           iscsiadm -m node -T {name} -p {portal} -o update -n node.session.auth.{key} -v {value}"
            );
        }
    }
    let _ = writeln!(out, "           iscsiadm -m node -T {name} -p {portal} --login");
    let _ = writeln!(out, "  QEMU     qemu-img info {url}");
    let _ = writeln!(out, "           qemu-system-x86_64 -drive file={url},format=raw,if=virtio");
    let _ = writeln!(out, "  libiscsi iscsi-inq {url}");
    // A password on a command line is seen by everybody.
    let (user, secret) = if secret { ("USER@", "'?secret_file=FILE'") } else { ("", "") };
    let _ = writeln!(out, "  here     blockwire info iscsi://{user}{portal}/{name}/{lun}{secret}");
    if more > 0 {
        let _ = writeln!(out, "  and {more} more: blockwire target list");
    }
}

fn push_nvme_commands(plan: &Plan, listeners: &[ListenerReport], out: &mut String) {
    let mut reached = plan.ways.subsystems.iter().filter_map(|subsystem| {
        Some((subsystem, first_listener(listeners, Protocol::Nvme, &subsystem.portals)?))
    });
    let Some((subsystem, address)) = reached.next() else { return };
    let (nqn, more) = (&subsystem.nqn, reached.count());
    let discovery = listeners.iter().find(|one| one.protocol == Protocol::NvmeDiscovery.as_str());
    let discovery = nvme_address_options(discovery.map_or(address, |one| one.address));
    let secret = plan.auth.dhchap.is_some() || plan.hosts.iter().any(|host| host.dhchap.is_some());
    let mut key = if secret { " --dhchap-secret=DHHC-1:...".to_owned() } else { String::new() };
    let offers = |portal: &&config::plan::Portal| {
        portal.protocol == Protocol::Nvme && subsystem.portals.contains(&portal.tag)
    };
    let tls = subsystem.tls == TlsMode::Require
        || plan.portals.iter().filter(offers).any(|portal| portal.tls == TlsMode::Require);
    // Where no host has a key for TLS, their secrets generate one.
    let generates =
        tls && plan.auth.tls_key.is_none() && plan.hosts.iter().all(|host| host.tls_key.is_none());
    if tls {
        key.push_str(if generates { " --concat" } else { " --tls" });
    }
    let _ = writeln!(out, "connect to {nqn} over NVMe/TCP:");
    let _ = writeln!(out, "  Linux    modprobe nvme-tcp");
    let _ = writeln!(out, "           nvme discover -t tcp {discovery}");
    let _ = writeln!(out, "           nvme connect -t tcp {} -n {nqn}{key}", nvme_address_options(address));
    let _ = writeln!(
        out,
        "  QEMU     connect as above, then: qemu-system-x86_64 -drive file=/dev/nvme0n1,format=raw,if=virtio"
    );
    let file = match (tls, secret) {
        (false, false) => "",
        (false, true) => "'?secret_file=FILE'",
        (true, false) => "'?host_nqn=NQN&tls_key_file=KEY'",
        (true, true) if generates => "'?host_nqn=NQN&secret_file=FILE&concat=yes'",
        (true, true) => "'?host_nqn=NQN&tls_key_file=KEY&secret_file=FILE'",
    };
    let nsid = subsystem.namespaces.first().map_or(1, |namespace| namespace.nsid);
    let _ =
        writeln!(out, "  here     blockwire info nvme+tcp://{}/{nqn}/{nsid}{file}", dial_address(address));
    if more > 0 {
        let _ = writeln!(out, "  and {more} more: blockwire subsystem list");
    }
}

/// The options of nvme-cli for an address.
fn nvme_address_options(address: SocketAddr) -> String {
    let host = match address.ip() {
        ip if ip.is_unspecified() => "ADDRESS-OF-THIS-MACHINE".to_owned(),
        ip => ip.to_string(),
    };
    format!("-a {host} -s {}", address.port())
}

/// The address that an initiator dials to reach a listener: a wildcard stands for this machine.
fn dial_address(address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        return format!("ADDRESS-OF-THIS-MACHINE:{}", address.port());
    }
    address.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{
        check,
        diagnostic::{Sink, SourceText},
        draft::Draft,
    };

    fn plan(text: &str) -> Plan {
        let (sink, mut draft) = (Sink::default(), Draft::default());
        config::read_text(&SourceText::new("t", text.to_owned()), "/".as_ref(), false, &sink, &mut draft);
        let options = check::CommandLineOptions { allow_anonymous: true, ..Default::default() };
        let plan = check::resolve_draft(draft, &options, &sink);
        sink.into_result(plan).unwrap().0
    }

    fn listener(address: &str) -> Vec<ListenerReport> {
        let address = address.parse().unwrap();
        let speaks =
            |protocol: Protocol| ListenerReport { protocol: protocol.as_str().into(), address, tag: 1 };
        vec![speaks(Protocol::Iscsi), speaks(Protocol::Nvme)]
    }

    const BASE: &str = "[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n[[portal]]\nprotocol = \"iscsi\"\naddress = \"0.0.0.0:0\"\n";

    #[test]
    fn commands_can_be_pasted() {
        let shown = connect_commands(&plan(BASE), &listener("127.0.0.1:43121"));
        for line in [
            "iscsiadm -m discovery -t sendtargets -p 127.0.0.1:43121\n",
            "iscsiadm -m node -T iqn.2026-11.io.blockwire:a -p 127.0.0.1:43121 --login\n",
            "qemu-img info iscsi://127.0.0.1:43121/iqn.2026-11.io.blockwire:a/0\n",
            "iscsi-inq iscsi://127.0.0.1:43121/iqn.2026-11.io.blockwire:a/0\n",
        ] {
            assert!(shown.contains(line), "{line}{shown}");
        }
        assert!(
            connect_commands(&plan(BASE), &listener("0.0.0.0:3260"))
                .contains("-p ADDRESS-OF-THIS-MACHINE:3260")
        );
        assert!(connect_commands(&plan(BASE), &listener("[::1]:3260")).contains("iscsi://[::1]:3260/iqn"));
    }

    #[test]
    fn a_subsystem_is_found_and_one_protocol_is_advised() {
        let text = format!("{BASE}[[portal]]\nprotocol = \"nvme\"\naddress = \"127.0.0.1\"\n");
        let shown = connect_commands(&plan(&text), &listener("127.0.0.1:43121"));
        for line in [
            "nvme discover -t tcp -a 127.0.0.1 -s 43121\n",
            "nvme connect -t tcp -a 127.0.0.1 -s 43121 -n nqn.2026-11.io.blockwire:a\n",
            "use one protocol per machine",
        ] {
            assert!(shown.contains(line), "{line}{shown}");
        }
        assert!(
            connect_commands(&plan(&text), &listener("[::]:4420"))
                .contains("-a ADDRESS-OF-THIS-MACHINE -s 4420")
        );
        assert!(
            !connect_commands(&plan(BASE), &listener("127.0.0.1:1")).contains("nvme"),
            "there is no subsystem"
        );
    }

    #[test]
    fn secrets_are_named_and_never_shown() {
        let text = format!("{BASE}[auth]\nchap = {{user = \"alice\", secret = \"wonderland-12\"}}\n");
        let shown = connect_commands(&plan(&text), &listener("127.0.0.1:1"));
        assert!(shown.contains("USER%PASSWORD@") && !shown.contains("wonderland"), "{shown}");
    }
}
