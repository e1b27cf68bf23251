//! `node` and `connect-all`: volumes that are kept in files, and attached by the daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::daemon::Place;
use crate::json_schema::Schema;
use crate::verbs::{CONFIG, fails, good, json, urls};

fn run(words: &[&str]) -> std::process::Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_blockwire")).args(words).output().unwrap()
}

fn text(words: &[&str]) -> String {
    String::from_utf8(good(words)).unwrap()
}

#[test]
fn nodes_are_added_shown_changed_and_removed() {
    let place = Place::new();
    let dir = place.path("nodes.d");
    let nodes = format!("--nodes={}", dir.display());
    let url = "iscsi://10.0.0.1/iqn.2026-11.io.blockwire:db/0?commands=8";
    assert!(text(&["node", "list", &nodes]).contains("there is no node"));
    good(&["node", "add", "db", url, "--autostart", "--via", "nbd", "--timeout", "5m", &nodes]);
    let file = dir.join("db.json");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    fails(&["node", "add", "db", url, &nodes], 15, "node set");
    let shown = json(&["node", "show", "db", "--json", &nodes]);
    assert_eq!(
        (&shown["url"], &shown["autostart"], &shown["timeout_ms"]),
        (&url.into(), &true.into(), &300_000.into())
    );
    good(&["node", "set", "db", "--autostart", "no", "--at", "/run/db.sock", &nodes]);
    Schema::read().check("node show", &shown);
    let listed = json(&["node", "list", "--json", &nodes]);
    Schema::read().check("node list", &listed);
    assert_eq!(
        (&listed[0]["name"], &listed[0]["autostart"], &listed[0]["at"], &listed[0]["via"]),
        (&"db".into(), &false.into(), &"/run/db.sock".into(), &"nbd".into())
    );
    // A secret is never written down, and what is wrong changes nothing.
    let before = fs::read(&file).unwrap();
    let secret = "iscsi://me%open5esame@10.0.0.1/iqn.2026-11.io.blockwire:db/0";
    fails(&["node", "add", "b", secret, &nodes], 2, "secret_file");
    fails(&["node", "set", "db", "--url", secret, &nodes], 2, "secret_file");
    fails(&["node", "discover", "iscsi://me%open5esame@127.0.0.1:1", &nodes], 2, "secret_file");
    fails(&["node", "set", "db", "--timeout", "25h", &nodes], 2, "timeout");
    fails(&["node", "add", "../x", url, &nodes], 2, "no name of a node");
    fails(&["node", "add", "x", "disk.img", &nodes], 2, "URL");
    let relative = "iscsi://me@10.0.0.1/iqn.2026-11.io.blockwire:db/0?secret_file=key";
    fails(&["node", "add", "x", relative, &nodes], 2, "absolute path");
    fails(&["node", "show", "dc", &nodes], 21, "there is no node \"dc\"");
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    // A file that others can write is not believed; one that says nonsense is shown with the reason.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    fails(&["node", "show", "db", &nodes], 1, "not trusted");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, "{\"url\": \"x\"}").unwrap();
    fails(&["node", "show", "db", &nodes], 1, "db.json");
    let out = run(&["node", "list", "--json", &nodes]);
    let listed: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((out.status.code(), &listed[0]["name"]), (Some(1), &"db".into()), "{listed}");
    assert!(listed[0]["why"].as_str().unwrap().contains("db.json"), "{listed}");
    Schema::read().check("node list", &listed);
    good(&["node", "remove", "db", &nodes]);
    fails(&["node", "remove", "db", &nodes], 21, "no node");
    fails(&["connect-all", &nodes], 21, "no node has autostart");
}

fn detach(control: &Path, name: &str) {
    good(&["detach", name, "--now", "--control", control.to_str().unwrap()]);
}

#[test]
fn what_is_discovered_is_attached_by_the_daemon() {
    let place = Place::new();
    let daemon = place.serve(CONFIG, &["--nvme", "127.0.0.1:0", "--no-sandbox"]);
    let control = place.path("control");
    let nodes = format!("--nodes={}", place.path("nodes.d").display());
    let control_option = format!("--control={}", control.display());
    let (iscsi, nvme) = (daemon.at, daemon.nvme.unwrap());
    let said = text(&["node", "discover", &format!("iscsi://{iscsi}?commands=16"), "--via", "nbd", &nodes]);
    assert_eq!(said.matches("added iqn.2026-11.io.blockwire:").count(), 2, "{said}");
    let name = "iqn.2026-11.io.blockwire:a";
    let shown = json(&["node", "show", name, "--json", &nodes]);
    assert_eq!(shown["url"], format!("iscsi://{iscsi}/{name}/0?commands=16"));
    // Again: what is there stays as it is.
    good(&["node", "set", name, "--autostart", &nodes]);
    let said = text(&["node", "discover", &format!("iscsi://{iscsi}"), &nodes]);
    assert_eq!(said.matches("kept ").count(), 2, "{said}");
    let said = text(&["node", "discover", &format!("nvme+tcp://{nvme}"), &nodes]);
    assert_eq!(said.matches("added nqn.2026-11.io.blockwire:").count(), 2, "{said}");
    // One with autostart, one that cannot be reached, one that is named.
    let connected = json(&["connect-all", "--json", &control_option, &nodes]);
    assert_eq!(connected.as_array().unwrap().len(), 1, "{connected}");
    assert_eq!((&connected[0]["name"], &connected[0]["state"]), (&name.into(), &"attached".into()));
    let again = json(&["connect-all", "--json", &control_option, &nodes]);
    assert_eq!((&again[0]["state"], &again[0]["ways"]), (&"already-attached".into(), &connected[0]["ways"]));
    assert!(again[0]["ways"][0].is_string(), "{again}");
    Schema::read().check("connect-all", &connected);
    Schema::read().check("connect-all", &again);
    let dead = "iscsi://127.0.0.1:1/iqn.2026-11.io.blockwire:none/0?connect_timeout=1s&queue_timeout=1s";
    good(&["node", "add", "dead", dead, "--autostart", "--via", "nbd", &nodes]);
    let out = run(&["connect-all", "--json", &control_option, &nodes]);
    let tried: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (out.status.code(), &tried[0]["name"], tried[0]["why"].is_string()),
        (Some(1), &"dead".into(), true)
    );
    assert_eq!(tried[1].get("why"), None, "{tried}");
    Schema::read().check("connect-all", &tried);
    let out = run(&["connect-all", &control_option, &nodes]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("{name}: already attached")) && said.contains("dead: failed: "), "{said}");
    let socket = place.path("b.sock");
    let [url, _] = urls(&daemon, "b");
    good(&["node", "add", "b", &url, "--via", "nbd", "--at", socket.to_str().unwrap(), &nodes]);
    let said = text(&["connect-all", "b", &control_option, &nodes]);
    assert!(said.starts_with("b: attached") && socket.exists(), "{said}");
    fails(&["connect-all", "b", "c", &control_option, &nodes], 21, "no node \"c\"");
    let listed = json(&["attach", "--list", "--json", &control_option]);
    let ways: Vec<String> = listed
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["url"].as_str().unwrap().contains(&iscsi.to_string()))
        .map(|one| one["ways"][0].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ways.len(), 2, "{listed}");
    ways.iter().for_each(|way| detach(&control, way));
}
