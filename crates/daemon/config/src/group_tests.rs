//! `[group]`: what is refused, where; and what it makes of volumes.

use crate::check::CommandLineOptions;
use crate::spec::VolumeSource;
use crate::tests::{errors, load};

const GROUP: &str = "[group]\nname = \"g\"\npool = \"rbd\"\nlisten = \"192.0.2.1\"\n";

fn with(source: &str, group: &str) -> String {
    format!(
        "[[volume]]\nname = \"a\"\nsource = \"{source}\"\n[[portal]]\nprotocol = \"iscsi\"\naddress = \"127.0.0.1\"\n{group}"
    )
}

#[test]
fn a_group_has_its_defaults_and_images_are_its_own() {
    let text = with("rbd:rbd/a", &format!("{GROUP}conf = \"c.conf\"\nuser = \"client.bw\"\n"));
    let (plan, _) = load(&text, &CommandLineOptions::default()).unwrap();
    let group = plan.group.unwrap();
    assert_eq!((group.name.to_string(), group.pool.as_str(), group.namespace), ("g".to_owned(), "rbd", None));
    assert_eq!((group.listen, group.address), ("192.0.2.1:3262".parse().unwrap(), group.listen));
    assert_eq!(group.conf.as_deref(), Some(std::path::Path::new("/etc/blockwire/c.conf")));
    let VolumeSource::Rbd(image) = &plan.volumes[0].spec.source else { panic!("{:?}", plan.volumes) };
    assert!(image.in_group && image.conf == group.conf && image.user.as_deref() == Some("bw"));
    // Without it, and of other volumes, all is as before.
    let (plan, _) = load(&with("rbd:rbd/a", ""), &CommandLineOptions::default()).unwrap();
    let VolumeSource::Rbd(image) = &plan.volumes[0].spec.source else { panic!("{:?}", plan.volumes) };
    assert!(plan.group.is_none() && !image.in_group && image.conf.is_none());
    assert!(load(&with("ram:1M", GROUP), &CommandLineOptions::default()).unwrap().0.group.is_some());
}

#[test]
fn a_group_that_cannot_be_is_refused_by_name() {
    for (source, group, want) in [
        ("ram:1M", "[group]\nname = \"g\"\npool = \"rbd\"\n", "[group] needs the key \"listen\""),
        ("ram:1M", "[group]\nname = \"a.b\"\npool = \"rbd\"\nlisten = \"192.0.2.1\"\n", "not '.'"),
        (
            "ram:1M",
            "[group]\nname = \"g\"\npool = \"a/b/c\"\nlisten = \"192.0.2.1\"\n",
            "not POOL or POOL/NAMESPACE",
        ),
        (
            "ram:1M",
            "[group]\nname = \"g\"\npool = \"rbd\"\nlisten = \"0.0.0.0\"\n",
            "other gateways cannot connect",
        ),
        (
            "ram:1M",
            "[group]\nname = \"g\"\npool = \"rbd\"\nlisten = \"192.0.2.1:0\"\n",
            "other gateways cannot connect",
        ),
        (
            "ram:1M",
            "[group]\nname = \"g\"\npool = \"rbd\"\nlisen = \"192.0.2.1\"\n",
            "did you mean \"listen\"?",
        ),
        ("rbd:rbd/a,break_lock=on", GROUP, "break_lock has no place in a [group]"),
        ("rbd:rbd/a,ro", GROUP, "cannot serve an image with ro"),
        ("rbd:rbd/a,conf=/other", GROUP, "have the conf and user of [group]"),
        ("rbd:rbd/a,user=other", GROUP, "have the conf and user of [group]"),
        ("stripe:ram:1M+rbd:rbd/a", GROUP, "a stripe on images"),
    ] {
        let found = errors(&with(source, group));
        assert!(found.iter().any(|one| one.contains(want)), "{source} {group}: {found:?}");
    }
}
