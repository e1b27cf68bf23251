//! `[[placement]]`: what is accepted, and what is refused where.

use super::{
    check::CommandLineOptions,
    tests::{errors, load},
};
use crate::plan::{ConnectionPlacement, CoreChoice};

const BASE: &str = r#"[[volume]]
name = "a"
source = "ram:1M"
[[portal]]
protocol = "iscsi"
address = "127.0.0.1"
[[portal]]
protocol = "nvme"
address = "127.0.0.1"
[[host]]
name = "web"
iqn = ["iqn.2026-11.test:web"]
sources = ["10.0.0.0/8"]
access = [{ target = "*" }]
[[placement]]
"#;

fn rule(text: &str) -> ConnectionPlacement {
    let options = CommandLineOptions { cores: vec![0, 2, 5], ..CommandLineOptions::default() };
    let (plan, _) = load(&format!("{BASE}{text}"), &options).unwrap();
    plan.placement.into_iter().next().unwrap()
}

#[test]
fn rules_are_resolved() {
    let all = rule("protocol = \"iscsi\"\nhost = \"web\"\nvolume = \"a\"\ncores = [5, 0]");
    assert_eq!((all.portals, &*all.cores, all.bind), (Some(vec![0]), &[5, 0][..], CoreChoice::Balanced));
    assert_eq!(all.peers, Some(vec!["iqn.2026-11.test:web".to_owned()]));
    assert_eq!((all.sources.len(), all.volume.unwrap().as_str()), (1, "a"));
    assert_eq!(
        (rule("bind = \"queue\"").bind, rule("bind = \"cpu\"").bind),
        (CoreChoice::Queue, CoreChoice::Cpu)
    );
    let one = rule("portal = \"127.0.0.1:4420\"\nbind = \"random\"");
    assert_eq!((one.portals, one.cores.len(), one.bind), (Some(vec![1]), 0, CoreChoice::Random));
    assert_eq!(rule("host = \"web\"\nsources = []\ncores = [0]").sources.len(), 1);
}

#[test]
fn what_cannot_be_applied_is_refused_with_its_place() {
    for (rest, want) in [
        ("host = \"web\"", "15:1: [[placement]] needs \"cores\" or \"bind\""),
        ("cores = []", "15:1: cores in [[placement]] names no core"),
        ("cores = [1]\nhost = \"wep\"", "17:8: there is no host \"wep\"; did you mean \"web\"?"),
        ("cores = [1]\nvolume = \"b\"", "17:10: there is no volume \"b\"; known: a"),
        ("cores = [9999]", "16:10: cores in [[placement]] must be from 0 to 4095"),
        ("core = [1]", "16:1: unknown key \"core\" in [[placement]]; did you mean \"cores\"?"),
        (
            "cores = [1]\ndigest = \"crc32c\"",
            "17:10: digest in [[placement]] cannot be chosen per connection",
        ),
        ("bind = \"nic\"", "16:8: bind in [[placement]]"),
        (
            "cores = [1]\npolling = \"50us\"",
            "17:11: polling in [[placement]] cannot be chosen per connection",
        ),
        ("cores = [1]\ntx = \"zerocopy\"", "17:6: tx in [[placement]] cannot be chosen per connection"),
        ("cores = [1]\nportal = \"127.0.0.1:1\"", "17:10: portal 127.0.0.1:1 in [[placement]] is none of"),
    ] {
        let got = errors(&format!("{BASE}{rest}\n"));
        let want = format!("blockwire.toml:{want}");
        assert!(got.iter().any(|line| line.starts_with(&want)), "{rest}\n got {got:#?}\nwant {want:?}");
    }
    let options = CommandLineOptions { cores: vec![0, 2], ..CommandLineOptions::default() };
    let wrong = load(&format!("{BASE}cores = [1]"), &options).unwrap_err();
    assert_eq!(wrong, ["blockwire.toml:16:10: core 1 in [[placement]] is not one of --cores [0, 2]"]);
}
