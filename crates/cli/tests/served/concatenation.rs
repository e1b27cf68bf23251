//! Secure channel concatenation: a host's DH-HMAC-CHAP secret generates the key that its TLS goes by.

use std::fs;

use crate::{
    daemon::{Daemon, Place, worlds},
    tls::{NQN, SUBSYSTEM, config_with_keys},
    verbs::{fails, good, json},
};

/// A volume at an address that allows TLS, for a host with a secret and no key of TLS, and a subsystem that uses TLS
/// like this.
fn config(tls: &str, more: &str) -> String {
    let keys = "dhchap_key_file = \"host.key\"\ndhchap_controller_key_file = \"controller.key\"";
    let subsystem = format!(
        "[[subsystem]]\nnqn = \"{SUBSYSTEM}\"\nnamespaces = [{{ volume = \"a\" }}]\ntls = \"{tls}\"\n{more}"
    );
    config_with_keys("allow", keys, &subsystem)
}

fn place() -> Place {
    let place = Place::new();
    for name in ["host.key", "controller.key", "other.key"] {
        good(&["key", "generate", place.path(name).to_str().unwrap()]);
    }
    place
}

fn url(place: &Place, daemon: &Daemon, key: &str, more: &str) -> String {
    let (at, key) = (daemon.nvme.unwrap(), place.path(key));
    format!("nvme+tcp://{at}/{SUBSYSTEM}/1?host_nqn={NQN}&secret_file={}{more}", key.display())
}

/// Bytes written over one URL are read over another.
fn carries(place: &Place, to: &str, from: &str) {
    let (file, read) = (place.path("bytes"), place.path("read"));
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at ^ (at >> 9)) as u8).collect();
    fs::write(&file, &bytes).unwrap();
    good(&["copy", "--force", file.to_str().unwrap(), to]);
    good(&["read", from, "--length", "3000000", "--output", read.to_str().unwrap(), "--force"]);
    assert!(fs::read(&read).unwrap() == bytes);
}

#[test]
fn a_secret_generates_the_key_that_queues_come_by() {
    for world in worlds() {
        let place = place();
        let daemon = place.serve(&config("require", ""), &["--io", world]);
        let concat = url(&place, &daemon, "host.key", "&concat=yes&queues=2");
        let mutual = format!("{concat}&mutual_secret_file={}", place.path("controller.key").display());
        carries(&place, &concat, &mutual);
        // Without TLS it is let in to generate a key, and for nothing else.
        fails(&["info", &url(&place, &daemon, "host.key", "")], 1, "concat=yes");
        fails(&["info", &url(&place, &daemon, "other.key", "&concat=yes")], 24, "");
        let swapped = format!("{concat}&mutual_secret_file={}", place.path("other.key").display());
        fails(&["info", &swapped], 24, "");
        daemon.log_with("the host refused the controller");
        let keys: Vec<String> =
            ["host.key", "controller.key"].map(|name| fs::read_to_string(place.path(name)).unwrap()).to_vec();
        assert!(keys.iter().all(|key| !daemon.log().contains(&key[10..30])));
    }
}

#[test]
fn connections_show_their_tls() {
    let place = place();
    let daemon = place.serve(&config("require", ""), &["--io", worlds()[0]]);
    let mut initiator = crate::gateway::ours("epoll");
    let volume = initiator.open(&url(&place, &daemon, "host.key", "&concat=yes&queues=2")).unwrap();
    let list = daemon.connections(3);
    for connection in &list {
        let tls = &connection["tls"];
        assert_eq!((&tls["version"], &tls["suite"]), (&"1.3".into(), &"TLS_AES_128_GCM_SHA256".into()));
        let identity = tls["identity"].as_str().unwrap();
        assert!(identity.starts_with(&format!("NVMe1G01 {NQN} {SUBSYSTEM} ")), "{identity}");
        let card = daemon.ask(&format!("connection show {}", connection["id"]));
        assert!(card.contains("1.3, TLS_AES_128_GCM_SHA256") && card.contains(identity), "{card}");
    }
    initiator.close(volume).unwrap();
}

#[test]
fn several_cores_know_a_generated_key() {
    let cores = match crate::daemon::cores().as_slice() {
        [] | [_] => return,
        [one, two, ..] => format!("{one},{two}"),
    };
    let place = place();
    let daemon = place.serve(&config("allow", ""), &["--io", worlds()[0], "--cores", &cores]);
    let concat = url(&place, &daemon, "host.key", "&concat=yes&queues=4");
    for _ in 0..4 {
        carries(&place, &concat, &concat);
    }
    // Where TLS is allowed, who authenticates may do without.
    carries(&place, &concat, &url(&place, &daemon, "host.key", ""));
}

#[test]
fn discovery_comes_by_a_generated_key_too() {
    let place = place();
    let auth = "[auth]\ndhchap_discovery = true";
    let daemon = place.serve(&config("require", auth), &["--io", worlds()[0]]);
    let at = daemon.nvme.unwrap();
    let key = place.path("host.key");
    let asked = format!("nvme+tcp://{at}?host_nqn={NQN}&secret_file={}&concat=yes", key.display());
    let found = json(&["discover", "--json", &asked]).to_string();
    assert!(found.contains(SUBSYSTEM) && found.contains(r#""tls":true"#), "{found}");
}

#[test]
fn generated_keys_are_found_after_an_apply() {
    let place = place();
    let config = config("require", "");
    let daemon = place.serve(&config, &["--io", worlds()[0]]);
    let concat = url(&place, &daemon, "host.key", "&concat=yes&queues=2");
    carries(&place, &concat, &concat);
    let more = format!("{config}\n[[volume]]\nname = \"b\"\nsource = \"ram:4M\"\n");
    daemon.ask_json(&format!("apply {}", place.write("more.toml", &more)));
    carries(&place, &concat, &concat);
    let changed = more.replace("\"host.key\"", "\"other.key\"");
    daemon.ask_json(&format!("apply {}", place.write("changed.toml", &changed)));
    fails(&["info", &concat], 24, "");
    let concat = url(&place, &daemon, "other.key", "&concat=yes&queues=2");
    carries(&place, &concat, &concat);
}

/// The key says a name and no rule, so the host proves by TLS again which of the rules of its name is for it.
#[test]
fn a_name_with_several_secrets_authenticates_by_tls_too() {
    let place = place();
    let id = "6f2d0b4c-0f5e-4b7a-9d3e-2a1b3c4d5e6f";
    let second = format!(
        "[[host]]\nname = \"second\"\nnqn = [\"{NQN}\"]\ndhchap_key_file = \"other.key\"\naccess = [{{ subsystem = \"*\" }}]\n"
    );
    let config =
        config("require", &second).replace("name = \"host\"", &format!("name = \"host\"\nhostid = \"{id}\""));
    let daemon = place.serve(&config, &["--io", worlds()[0]]);
    let first = url(&place, &daemon, "host.key", &format!("&concat=yes&queues=2&host_id={id}"));
    let second = url(&place, &daemon, "other.key", "&concat=yes&queues=2");
    carries(&place, &first, &second);
    fails(&["info", &first.replace("host.key", "other.key")], 24, "");
    fails(&["info", &second.replace("other.key", "host.key")], 24, "");
}

#[test]
fn where_a_key_cannot_be_generated_it_is_said() {
    let place = place();
    let config = config("off", "");
    let daemon = place.serve(&config, &["--io", worlds()[0]]);
    let concat = url(&place, &daemon, "host.key", "&concat=yes");
    fails(&["info", &concat], 24, "it must allow TLS at this address");
    fails(&["info", &format!("{concat}&tls_key_file=/x")], 2, "give one");
    drop(daemon);
    let file = place.write("required.toml", &config.replace("tls = \"allow\"", "tls = \"require\""));
    fails(&["serve", "--check", &file], 2, "begin without TLS, so they need \"allow\" here");
}
