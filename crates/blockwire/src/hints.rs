//! Ready-to-paste commands for the people who connect, printed once the listeners are open.

use std::{fmt::Write, net::SocketAddr};

use crate::{plan::Plan, report::ListenerReport};

/// The commands for the first target that initiators can use, one line each.
pub fn connect(plan: &Plan, listeners: &[ListenerReport]) -> String {
    let mut out = String::new();
    let usable = plan.targets.iter().filter(|target| target.redirect.is_none() && !target.luns.is_empty());
    let mut reached = usable.filter_map(|target| {
        let listener = listeners.iter().find(|listener| target.portals.contains(&listener.tag))?;
        Some((target, dialled(listener.address)))
    });
    let Some((target, portal)) = reached.next() else { return out };
    let (name, lun) = (&target.name, target.luns[0].lun);
    let more = reached.count();
    let secret = !plan.auth.chap.is_empty() || plan.hosts.iter().any(|host| !host.chap.is_empty());
    let user = if secret { "USER%PASSWORD@" } else { "" };
    let url = format!("iscsi://{user}{portal}/{name}/{lun}");
    let _ = writeln!(out, "connect to {name}:");
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
    if more > 0 {
        let _ = writeln!(out, "  and {more} more: blockwire target list");
    }
    out
}

/// The address that an initiator dials to reach a listener: a wildcard stands for this machine.
fn dialled(address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        return format!("ADDRESS-OF-THIS-MACHINE:{}", address.port());
    }
    address.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, check, diagnostic::Sink, diagnostic::Text, draft::Draft};

    fn plan(text: &str) -> Plan {
        let (sink, mut draft) = (Sink::default(), Draft::default());
        config::read_text(&Text::new("t", text.to_owned()), "/".as_ref(), false, &sink, &mut draft);
        let options = check::Options { allow_anonymous: true, ..Default::default() };
        let plan = check::check(draft, &options, &sink);
        sink.finish(plan).unwrap().0
    }

    fn listener(address: &str) -> Vec<ListenerReport> {
        vec![ListenerReport { protocol: "iscsi".into(), address: address.parse().unwrap(), tag: 1 }]
    }

    const BASE: &str = "[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n[[portal]]\nprotocol = \"iscsi\"\naddress = \"0.0.0.0:0\"\n";

    #[test]
    fn commands_can_be_pasted() {
        let shown = connect(&plan(BASE), &listener("127.0.0.1:43121"));
        for line in [
            "iscsiadm -m discovery -t sendtargets -p 127.0.0.1:43121\n",
            "iscsiadm -m node -T iqn.2026-11.io.blockwire:a -p 127.0.0.1:43121 --login\n",
            "qemu-img info iscsi://127.0.0.1:43121/iqn.2026-11.io.blockwire:a/0\n",
            "iscsi-inq iscsi://127.0.0.1:43121/iqn.2026-11.io.blockwire:a/0\n",
        ] {
            assert!(shown.contains(line), "{line}{shown}");
        }
        assert!(connect(&plan(BASE), &listener("0.0.0.0:3260")).contains("-p ADDRESS-OF-THIS-MACHINE:3260"));
        assert!(connect(&plan(BASE), &listener("[::1]:3260")).contains("iscsi://[::1]:3260/iqn"));
    }

    #[test]
    fn secrets_are_named_and_never_shown() {
        let text = format!("{BASE}[auth]\nchap = {{user = \"alice\", secret = \"wonderland-12\"}}\n");
        let shown = connect(&plan(&text), &listener("127.0.0.1:1"));
        assert!(shown.contains("USER%PASSWORD@") && !shown.contains("wonderland"), "{shown}");
    }
}
