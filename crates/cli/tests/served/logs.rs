//! The log as operators and programs read it: its forms, its filter, who was refused and why, who changed what.

use std::path::Path;

use serde_json::Value;

use crate::{
    daemon::{Daemon, Place, volume},
    verbs::{fails, good},
};

const SECRET: &str = "a secret of 16 b";

fn guarded(place: &Place, arguments: &[&str]) -> Daemon {
    let config =
        volume("a", "ram:1M") + &format!("[auth]\nchap = [{{ user = \"joe\", secret = \"{SECRET}\" }}]\n");
    place.serve(&config, &[&["--nvme", "127.0.0.1:0"], arguments].concat())
}

/// All lines, each a JSON object.
fn objects(log: &str) -> Vec<Value> {
    log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"))).collect()
}

#[test]
fn each_refusal_names_who_wanted_what_and_why() {
    let place = Place::new();
    let daemon = guarded(&place, &["--log-format", "json"]);
    let wrong = place.write("wrong", "another secret!!");
    let at = daemon.at;
    let target = "iqn.2026-11.io.blockwire:a";
    let mine = "initiator=iqn.2026-11.test:host";
    fails(&["info", &format!("iscsi://eve@{at}/{target}/0?secret_file={wrong}&{mine}")], 24, "0201h");
    fails(&["info", &format!("iscsi://{at}/{target}/0?{mine}")], 24, "gave no user");
    let nvme = daemon.nvme.unwrap();
    let host = "nqn.2026-11.test:host";
    let missing = "nqn.2026-11.io.blockwire:none";
    fails(&["info", &format!("nvme+tcp://{nvme}/{missing}/1?host_nqn={host}")], 21, "none");
    daemon.log_with("connect refused");
    let log = daemon.log();
    assert!(!log.contains(SECRET) && !log.contains("another secret"), "{log}");
    let events = objects(&log);
    let about = |message: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["message"] == message).collect()
    };
    let failed = about("login failed");
    assert!(failed.len() >= 2, "{log}");
    for event in &failed {
        assert_eq!((&event["level"], &event["area"]), (&"warn".into(), &"iscsi".into()), "{event}");
        assert_eq!(
            (&event["initiator"], &event["target"]),
            (&"iqn.2026-11.test:host".into(), &target.into())
        );
        assert!(event["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{event}");
        let time = event["time"].as_str().unwrap();
        assert!(time.len() == "2026-11-21T00:00:00.123456Z".len() && time.ends_with('Z'), "{event}");
    }
    let named = failed.iter().find(|event| event["user"] == "eve").unwrap();
    assert!(named["cause"].as_str().unwrap().contains("did not authenticate"), "{named}");
    let unnamed = failed.iter().find(|event| event["user"].is_null()).unwrap();
    assert!(unnamed["cause"].as_str().unwrap().contains("gave no CHAP user"), "{unnamed}");
    let refused = about("connect refused");
    assert_eq!((&refused[0]["host"], &refused[0]["subsystem"]), (&host.into(), &missing.into()), "{log}");
    assert!(refused[0]["cause"].as_str().unwrap().contains("no such subsystem"), "{log}");
}

#[test]
fn what_is_changed_is_audited_with_who_and_old_and_new() {
    let place = Place::new();
    let daemon = guarded(&place, &["--log-format", "json"]);
    daemon.ask("volume resize a 2M");
    daemon.ask("volume set a --read-only on");
    daemon.ask("path set a --state inaccessible");
    daemon.ask("volume create b=ram:1M");
    daemon.ask("volume delete b");
    assert!(!daemon.run("volume delete none").status.success());
    daemon.ask("volume list");
    let events = objects(&daemon.log_with("\"object\":\"none\""));
    let audited: Vec<&Value> = events.iter().filter(|event| event["area"] == "audit").collect();
    let uid = rustix::process::geteuid().as_raw();
    let all: Vec<(&str, &str, &str)> = audited
        .iter()
        .map(|event| {
            assert_eq!(event["uid"], uid, "{event}");
            assert!(event["pid"].as_u64().unwrap() > 1, "{event}");
            let text = |name: &str| event[name].as_str().unwrap_or_default();
            (text("verb"), text("before"), text("after"))
        })
        .collect();
    assert_eq!(
        all,
        [
            ("volume resize", "1048576 bytes", "ram 2097152 bytes"),
            ("volume set", "read-only off", "read-only on"),
            ("path set", "port 1 optimized, port 2 optimized", "inaccessible"),
            ("volume create", "-", "ram 1048576 bytes"),
            ("volume delete", "ram 1048576 bytes", "-"),
            ("volume delete", "-", ""),
        ]
    );
    let last = audited[audited.len() - 1];
    assert_eq!(last["message"], "refused");
    assert!(last["cause"].as_str().unwrap().contains("no volume \"none\""), "{last}");
}

#[test]
fn the_filter_is_by_level_and_area_and_a_slip_is_refused() {
    let place = Place::new();
    let config = place.write("blockwire.toml", &volume("a", "ram:1M"));
    let arguments = ["--config", &config, "--iscsi", "127.0.0.1:0"];
    let daemon = place.serve_as(&arguments, &[("BLOCKWIRE_LOG", Path::new("error,audit=info,iscsi=debug"))]);
    good(&["discover", &format!("iscsi://{}", daemon.at)]);
    daemon.ask("volume create b=ram:1M");
    let log = daemon.log_with("audit: done");
    let log =
        if log.contains("discovery ended") { log } else { daemon.log_with("DEBUG iscsi: discovery ended") };
    assert!(!log.contains("volume: volume created") && !log.contains("serve: serving"), "{log}");
    daemon.kill();
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_blockwire"))
        .args(["serve", "--volume", "a=ram:1M", "--iscsi", "127.0.0.1:0", "--state"])
        .arg(place.path("other"))
        .env("BLOCKWIRE_LOG", "iscs=debug")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(
        said.contains("BLOCKWIRE_LOG: \"iscs=debug\" names no area") && said.contains("iscsi, nvme"),
        "{said}"
    );
    assert!(place.refused(&["--log-format", "xml"]).1.contains("text, json and journald"));
}

#[test]
fn a_flood_of_strangers_is_bounded_in_the_log() {
    let place = Place::new();
    let daemon = guarded(&place, &[]);
    for _ in 0..200 {
        use std::io::{Read, Write};
        let mut stranger = std::net::TcpStream::connect(daemon.at).unwrap();
        stranger.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        stranger.write_all(&[0x55; 48]).unwrap();
        let _ = stranger.read(&mut [0; 1]);
    }
    let log = daemon.log_with("login failed");
    let written = log.lines().filter(|line| line.contains("login failed")).count();
    // Two windows may meet.
    assert!((1..=40).contains(&written), "{written} lines for 200 strangers");
}
