//! The NVMe/TCP part of the configuration: what is refused, and the plan made of the rest.

use std::os::unix::fs::PermissionsExt;

use super::{tests::*, *};
use crate::{
    check::CommandLineOptions,
    plan::{ControllerGrants, Protocol},
};

/// A document with one sound volume and a portal of each protocol, before `rest`; `rest` begins in
/// line 10.
fn with(rest: &str) -> String {
    format!(
        "[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n[[portal]]\nprotocol = \"iscsi\"\naddress = \"127.0.0.1\"\n\
         [[portal]]\nprotocol = \"nvme\"\naddress = \"127.0.0.1\"\n{rest}"
    )
}

const SUBSYSTEM: &str = "[[subsystem]]\nnqn = \"nqn.2026-11.io:s\"\nnamespaces = [{volume = \"a\"}]\n";
const NQN: &str = "nqn = [\"nqn.2026-11.io:h\"]\n";

#[test]
fn a_namespace_gets_no_number_that_hosts_are_not_told_of() {
    let list = |rest: &str| {
        let volume = "[[volume]]\nname = \"b\"\nsource = \"ram:1M\"\n";
        let names = format!("namespaces = [{{volume = \"a\", nsid = 1024}}, {{volume = \"b\"{rest}}}]\n");
        with(&format!("{volume}[[subsystem]]\nnqn = \"nqn.2026-11.io:s\"\n{names}"))
    };
    let refused = errors(&list(""));
    let told = |line: &String| line.contains("the next nsid would be above 1024");
    assert!(refused.len() == 1 && refused.iter().all(told), "{refused:?}");
    assert!(load(&list(", nsid = 3"), &CommandLineOptions::default()).is_ok());
}

/// Linux does without path states where their log is longer than one transfer.
#[test]
fn no_subsystem_has_more_namespaces_than_its_hosts_can_read_the_states_of() {
    let many = |count: u32, transfer: &str| {
        let volumes: String =
            (1..=count).map(|n| format!("[[volume]]\nname = \"v{n}\"\nsource = \"null:1M\"\n")).collect();
        let list: Vec<_> = (1..=count).map(|n| format!("{{volume = \"v{n}\"}}")).collect();
        let list = list.join(", ");
        with(&format!(
            "{volumes}[[subsystem]]\nnqn = \"nqn.2026-11.io:s\"\nmax_transfer = \"{transfer}\"\nnamespaces = [{list}]\n"
        ))
    };
    let refused = errors(&many(1021, "8K"));
    let told = |line: &String| line.contains("has 1021 namespaces") && line.contains("use 16K or more");
    assert!(refused.len() == 1 && refused.iter().all(told), "{refused:?}");
    for (count, transfer) in [(1020, "8K"), (1024, "16K")] {
        assert!(load(&many(count, transfer), &CommandLineOptions::default()).is_ok(), "{count} {transfer}");
    }
}

#[test]
fn one_mistake_one_line() {
    let mut wrong = Vec::new();
    for (rest, want) in [
        (
            format!("{SUBSYSTEM}queue = 5"),
            "blockwire.toml:13:1: unknown key \"queue\" in [[subsystem]]; did you mean \"queues\"?",
        ),
        (
            "[[subsystem]]\nnqn = \"nqn.2026-11.io:s\"".into(),
            "blockwire.toml:11:7: subsystem \"nqn.2026-11.io:s\" has no namespaces",
        ),
        (
            "[[subsystem]]\nnqn = \"s\"\nnamespaces = []".into(),
            "blockwire.toml:11:7: nqn in [[subsystem]]: \"s\" is not an NVMe qualified name: it begins with nqn.",
        ),
        (
            "[[subsystem]]\nnqn = \"nqn.2026-11.io:s\"\nnamespaces = [{volume = \"b\"}]".into(),
            "blockwire.toml:12:25: there is no volume \"b\"; known: a",
        ),
        (
            "[[subsystem]]\nnqn = \"nqn.2026-11.io:s\"\nnamespaces = [{volume = \"a\", nsid = 0}]".into(),
            "blockwire.toml:12:37: nsid in namespaces of [[subsystem]] must be from 1 to 1024",
        ),
        (
            "[[subsystem]]\nnqn = \"nqn.2026-11.io:s\"\nnamespaces = [{volume = \"a\"}, {volume = \"a\"}]"
                .into(),
            "blockwire.toml:12:41: volume \"a\" appears twice in subsystem \"nqn.2026-11.io:s\"",
        ),
        (
            format!("{SUBSYSTEM}in_capsule = 100"),
            "blockwire.toml:13:14: in_capsule in [[subsystem]] must be a multiple of 16",
        ),
        (
            format!("{SUBSYSTEM}max_transfer = \"12K\""),
            "blockwire.toml:13:16: max_transfer in [[subsystem]] must be a power of two",
        ),
        (
            format!("{SUBSYSTEM}max_transfer = \"4K\""),
            "blockwire.toml:13:16: max_transfer in [[subsystem]] must be from 8192 to 1048576 bytes",
        ),
        (
            format!("{SUBSYSTEM}queue_depth = 1"),
            "blockwire.toml:13:15: queue_depth in [[subsystem]] must be from 2 to 1024",
        ),
        (
            format!("{SUBSYSTEM}portals = [9]"),
            "blockwire.toml:13:12: there is no portal with tag 9; known: 1",
        ),
        (format!("{SUBSYSTEM}hosts = [\"h\"]"), "blockwire.toml:13:10: there is no host \"h\"; known: "),
        (
            format!(
                "{SUBSYSTEM}[[subsystem]]\nnqn = \"nqn.2026-11.io:t\"\nnamespaces = [{{volume = \"a\", ana_group = 2}}]"
            ),
            "blockwire.toml:14:7: volume \"a\" is in ANA group 2 here and in 1 elsewhere; it can be in one only",
        ),
        (
            format!(
                "{SUBSYSTEM}[[host]]\nname = \"h\"\n{NQN}access = [{{subsystem = \"nqn.2026-11.io:t\"}}]"
            ),
            "blockwire.toml:16:24: there is no subsystem \"nqn.2026-11.io:t\"; did you mean \"nqn.2026-11.io:s\"?",
        ),
        (
            format!("{SUBSYSTEM}[[host]]\nname = \"h\"\n{NQN}access = [{{subsystem = \"*\", luns = [1]}}]"),
            "blockwire.toml:16:11: \"luns\" in access of [[host]] needs \"target\" beside it",
        ),
        (
            format!("[[host]]\nname = \"h\"\n{NQN}"),
            "blockwire.toml:11:8: host \"h\" needs the key \"access\", or a subsystem that names it",
        ),
        (
            format!(
                "[[host]]\nname = \"h\"\n{NQN}hostid = \"00000000-0000-0000-0000-000000000000\"\naccess = [{{subsystem = \"*\"}}]"
            ),
            "blockwire.toml:13:10: hostid in [[host]]: a Host Identifier must not be zero",
        ),
        (
            "[[referral]]\naddress = \"0.0.0.0\"".into(),
            "blockwire.toml:11:11: address in [[referral]]: a host cannot connect to 0.0.0.0:8009",
        ),
        (
            "[[portal]]\nprotocol = \"iscsi\"\naddress = \"[::1]\"\ndata_digest = \"off\"".into(),
            "blockwire.toml:13:15: data_digest in [[portal]] applies to NVMe/TCP; for iSCSI set it in [[target]]",
        ),
    ] {
        let got = errors(&with(&rest));
        if !got.iter().any(|line| line.starts_with(want)) || got.len() > 2 {
            wrong.push(format!("{rest}\n got {got:#?}\nwant {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        errors("oui = \"12345\"\n")[0],
        "blockwire.toml:1:7: oui in the top level: \"12345\" is not six hexadecimal digits such as \"0011aa\""
    );
}

#[test]
fn a_host_meets_a_volume_over_one_protocol_unless_it_says_both() {
    let host = |names: &str, rest: &str| {
        with(&format!(
            "[[host]]\nname = \"h\"\n{names}access = [{{target = \"*\"}}, {{subsystem = \"*\"}}]\n{rest}"
        ))
    };
    // That it is the only host is told too, and no matter here.
    let told = |mut warnings: Vec<String>| {
        warnings.retain(|warning| !warning.contains("is the only [[host]]"));
        warnings
    };
    let two = format!("iqn = [\"iqn.2026-11.io:h\"]\n{NQN}");
    let got = errors(&host(&two, ""));
    assert!(got.len() == 1 && got[0].contains("multipath combines the two"), "{got:#?}");
    let (plan, warnings) = load(&host(&two, "both = true"), &CommandLineOptions::default()).unwrap();
    assert!(plan.hosts[0].both && told(warnings).is_empty());
    // One machine cannot be told from two by its network, so that is a warning.
    let (_, warnings) =
        load(&host("sources = [\"127.0.0.0/8\"]\n", ""), &CommandLineOptions::default()).unwrap();
    let warnings = told(warnings);
    assert!(warnings.len() == 1 && warnings[0].contains("set both = true"), "{warnings:#?}");
    // Names of one protocol let it in by that one.
    let (plan, warnings) = load(&host(NQN, ""), &CommandLineOptions::default()).unwrap();
    assert!(told(warnings).is_empty() && plan.hosts[0].may_use_nvme() && !plan.hosts[0].may_use_iscsi());
}

#[test]
fn a_volume_that_is_named_somewhere_has_no_default_ways() {
    let (plan, _) = load(&with(SUBSYSTEM), &CommandLineOptions::default()).unwrap();
    assert!(plan.ways.targets.is_empty(), "who said where it is to be found has said where not");
    assert_eq!(plan.ways.subsystems.len(), 1);
    let subsystem = &plan.ways.subsystems[0];
    assert!(subsystem.open && subsystem.grants == ControllerGrants::default());
    assert_eq!(subsystem.serial.as_ref().map(String::len), Some(20));
    let (plan, _) = load(&with(""), &CommandLineOptions::default()).unwrap();
    assert_eq!(plan.ways.targets[0].name, "iqn.2026-11.io.blockwire:a");
    assert_eq!(plan.ways.subsystems[0].nqn, "nqn.2026-11.io.blockwire:a");
    assert_eq!(plan.portals[1].address.port(), 4420);
    assert_eq!(plan.portals[1].protocol, Protocol::Nvme);
}

#[test]
fn a_subsystem_is_not_open_to_strangers_unless_said() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    let public = |rest: &str| {
        with(rest).replace("\"nvme\"\naddress = \"127.0.0.1\"", "\"nvme\"\naddress = \"0.0.0.0\"")
    };
    let named = |rest: &str| format!("node = \"n\"\n{}", public(rest));
    let run = |text: &str| load_in(directory.path(), text, &CommandLineOptions::default(), false);
    let got = run(&named("")).unwrap_err();
    assert!(
        got.len() == 1 && got[0].contains("subsystem \"nqn.2026-11.io.blockwire:n:a\" requires no"),
        "{got:#?}"
    );
    let options = CommandLineOptions { allow_anonymous: true, ..CommandLineOptions::default() };
    load(&named(""), &options).expect("allowed when said");
    let (_, warnings) = load(&public(""), &options).unwrap();
    assert!(warnings[0].contains("no node name is set"), "{warnings:#?}");

    let keyed = named("[auth]\ndhchap_key_file = \"key\"");
    let write = |mode: u32, content: &str| {
        fs::write(&file, content).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    };
    let key = "DHHC-1:01:W3ij9Bv30F62wM2g61PP8Iv81nc+HbMS4QezUcHVkJHBfS4a:\n";
    write(0o600, key);
    let (plan, _) = run(&keyed).unwrap();
    let shown = plan.auth.dhchap.as_ref().unwrap().to_text();
    assert_eq!(shown.as_str(), key.trim_end());
    assert!(!format!("{plan:?}").contains("W3ij9Bv3"), "secrets are in no Debug");
    write(0o640, key);
    let got = run(&keyed).unwrap_err();
    let want = "blockwire.toml:12:19: dhchap_key_file \"key\" has mode 0640: others can use it; chmod 600 it";
    assert!(got.iter().any(|line| line == want), "{got:#?}");
    write(0o600, "DHHC-1:01:secret-that-is-none:");
    let got = run(&keyed).unwrap_err();
    assert!(got.concat().contains("DHHC-1:hh:BASE64") && !got.concat().contains("secret-that"), "{got:#?}");
}

#[test]
fn proofs_and_bounds_of_nvme_hosts() {
    use std::time::Duration;

    use nvme::auth::{DhGroup, DhchapPolicy, Hash};
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    fs::write(&file, "DHHC-1:01:W3ij9Bv30F62wM2g61PP8Iv81nc+HbMS4QezUcHVkJHBfS4a:\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let run = |text: &str| load_in(directory.path(), &with(text), &CommandLineOptions::default(), false);
    let (plan, _) = run("").unwrap();
    assert_eq!(plan.auth.proofs, DhchapPolicy::default());
    assert!(!plan.auth.dhchap_discovery && plan.auth.dhchap_discovery_key.is_none());
    assert_eq!((plan.limits.keep_alive_max, plan.limits.discovery_per_source), (None, 128));
    let (plan, _) =
        run("[auth]\ndhchap_hashes = [\"sha256\", \"sha512\"]\ndhchap_groups = [\"ffdhe2048\", \"null\"]\n\
         dhchap_discovery = true\ndhchap_discovery_key_file = \"key\"\n\
         [limits]\nkeep_alive_min = 5\nkeep_alive_max = 60\ndiscovery_per_source = 9\n")
        .unwrap();
    let groups = vec![DhGroup::Ffdhe2048, DhGroup::Null];
    assert_eq!(plan.auth.proofs, DhchapPolicy { hashes: vec![Hash::Sha256, Hash::Sha512], groups });
    assert!(plan.auth.dhchap_discovery && plan.auth.dhchap_discovery_key.is_some());
    assert_eq!(plan.limits.keep_alive_min, Duration::from_secs(5));
    let bounds = (plan.limits.keep_alive_max, plan.limits.discovery_per_source);
    assert_eq!(bounds, (Some(Duration::from_secs(60)), 9));
    for (text, want) in [
        ("[auth]\ndhchap_hashes = []", "dhchap_hashes in [auth] must not be empty"),
        ("[auth]\ndhchap_groups = [\"null\", \"null\"]", "dhchap_groups in [auth] names it twice"),
        ("[auth]\ndhchap_hashes = [\"md5\"]", "md5"),
        ("[auth]\ndhchap_discovery = true", "requires authentication, but no host has a secret"),
        ("[auth]\ndhchap_discovery_key_file = \"key\"", "has no effect without dhchap_discovery = true"),
        ("[limits]\nkeep_alive_min = 9\nkeep_alive_max = 8", "is less than keep_alive_min"),
        ("[limits]\ndiscovery_per_source = 0", "discovery_per_source"),
    ] {
        let got = run(text).unwrap_err();
        assert!(got.iter().any(|line| line.contains(want)), "{text}: {got:#?}");
    }
}

#[test]
fn a_controller_has_a_key_of_its_own_and_only_where_the_host_has_one() {
    const HOST: &str = "DHHC-1:01:W3ij9Bv30F62wM2g61PP8Iv81nc+HbMS4QezUcHVkJHBfS4a:\n";
    const CONTROLLER: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:\n";
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str, mode: u32| {
        let file = directory.path().join(name);
        fs::write(&file, content).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    };
    write("host", HOST, 0o600);
    write("controller", CONTROLLER, 0o600);
    write("open", CONTROLLER, 0o644);
    let host =
        "[[host]]\nname = \"h\"\nnqn = [\"nqn.2014-08.org.example:h\"]\naccess = [{ subsystem = \"*\" }]\n";
    let run = |text: &str| load_in(directory.path(), &with(text), &CommandLineOptions::default(), false);
    let (own, all) = ("dhchap_key_file = \"host\"\n", "[auth]\ndhchap_key_file = \"host\"\n");
    let key = "dhchap_controller_key_file = \"controller\"\n";
    for text in [format!("{host}{own}{key}"), format!("{host}{key}{all}")] {
        let (plan, _) = run(&text).unwrap();
        let controller = plan.hosts[0].dhchap_controller.as_ref().unwrap();
        assert_eq!(controller.to_text().as_str(), CONTROLLER.trim_end());
    }
    let (plan, _) = run(&format!("{all}{key}")).unwrap();
    assert!(plan.auth.dhchap_controller.is_some());
    let same = key.replace("\"controller\"", "\"host\"");
    let other = host.replace("\"h\"", "\"i\"").replace("example:h", "example:i")
        + "dhchap_key_file = \"controller\"\n";
    for (text, want) in [
        (format!("{host}{key}"), "of host \"h\" has no effect without dhchap_key_file"),
        (format!("[auth]\n{key}"), "in [auth] has no effect: no host has a dhchap_key_file"),
        (format!("{host}{own}{same}"), "host \"h\" and its controllers have the same DH-HMAC-CHAP secret"),
        (format!("{all}{same}"), "in [auth] holds the secret of hosts"),
        (
            format!("{host}{own}{key}{other}"),
            "of host \"h\" holds the secret of another host or of discovery",
        ),
        (format!("{host}{own}{other}[auth]\n{key}"), "in [auth] holds the secret of hosts"),
        (format!("{host}{own}{}", key.replace("\"controller\"", "\"open\"")), "has mode 0644"),
    ] {
        let got = run(&text).unwrap_err();
        assert!(got.iter().any(|line| line.contains(want)), "{text}: {got:#?}");
        assert!(!got.concat().contains("ia6z"), "{got:#?}");
    }
}
