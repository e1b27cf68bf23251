//! The flight recorder: what a daemon did is there after it was killed, and `doctor` tells of it.

use std::{fs, os::unix::fs::FileExt};

use serde_json::Value;

use crate::{
    daemon::{Daemon, Place, a_core, volume, wait_until},
    host::{Host, INVALID_HOST, Names, Queue},
    initiator::{Initiator, wanted},
    json_schema::Schema,
};

const DISK: &str = "iqn.2026-11.io.blockwire:disk";

fn serve(place: &Place) -> Daemon {
    place.serve(&volume("disk", "ram:4M"), &["--nvme", "127.0.0.1:0", "--cores", &a_core()])
}

fn report(daemon: &Daemon, line: &str) -> Value {
    let out = daemon.run(&format!("{line} --json"));
    serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&out.stderr)))
}

/// The events of a kind.
fn events<'a>(report: &'a Value, kind: &str) -> Vec<&'a Value> {
    report["events"].as_array().unwrap().iter().filter(|event| event["event"] == kind).collect()
}

#[test]
fn what_a_daemon_did_is_there_after_it_was_killed() {
    let place = Place::new();
    let schema = Schema::read();
    let daemon = serve(&place);
    let session = Initiator::ready(daemon.at, DISK);
    let refused = Initiator::connect(
        daemon.at,
        wanted("iqn.2026-11.test:x\u{e9}", Some("iqn.2026-11.test:none"), None),
    );
    assert!(refused.is_err());
    let bad = Names { nqn: "nqn.2026-11.test:Bad".to_owned(), ..Names::of("disk") };
    daemon.ask("host block nqn.2026-11.test:Bad");
    assert_eq!(Queue::connect(daemon.nvme.unwrap(), &bad, 0, 0xffff).err(), Some(INVALID_HOST));
    daemon.ask("host unblock nqn.2026-11.test:Bad");
    let host = Host::ready(daemon.nvme.unwrap(), &Names::of("disk"));
    daemon.ask("path set disk --state non-optimized");
    let doctor = report(&daemon, "doctor");
    schema.check("doctor (no URL)", &doctor);
    drop((session, host));

    let running = report(&daemon, "flight-recorder");
    schema.check("flight-recorder", &running);
    assert_eq!(running["shards"][0]["ending"], "none");
    let pid = daemon.pid();
    daemon.kill();

    let daemon = serve(&place);
    let killed = report(&daemon, "flight-recorder --run=1 --last=0");
    schema.check("flight-recorder", &killed);
    assert_eq!(
        (&killed["shards"][0]["pid"], killed["unreadable"].as_array().map(Vec::len)),
        (&pid.into(), Some(0))
    );
    assert_eq!(events(&killed, "start").len(), 1, "{killed:#}");
    let login = events(&killed, "login");
    assert!(login.iter().any(|event| event["target"] == DISK), "{killed:#}");
    let refused = events(&killed, "login-refused");
    assert!(
        refused.iter().any(|event| event["cause"] == "no-target" && event["peer"].is_string()),
        "{killed:#}"
    );
    let blocked = events(&killed, "connect-refused");
    assert!(blocked.iter().any(|event| event["host"] == "nqn.2026-11.test:Bad"), "{killed:#}");
    assert!(!events(&killed, "connect").is_empty(), "{killed:#}");
    let changes = events(&killed, "volume-change");
    assert!(changes.iter().any(|event| event["cause"] == "path set to non-optimized"), "{killed:#}");
    let times: Vec<&str> =
        killed["events"].as_array().unwrap().iter().filter_map(|one| one["time"].as_str()).collect();
    assert!(times.is_sorted(), "{times:?}");

    let doctor = report(&daemon, "doctor");
    let said = doctor["findings"].to_string();
    assert!(said.contains(&format!("process {pid}")) && said.contains("without a stop"), "{doctor:#}");
    assert_eq!(doctor["healthy"], true, "a daemon that was started again serves: {doctor:#}");
    let text = daemon.ask("flight-recorder --run=1");
    assert!(text.contains(" login ") && text.contains(&format!("target={DISK}")), "{text}");
}

#[test]
fn a_daemon_that_stopped_in_order_is_nothing_to_tell_of() {
    let place = Place::new();
    let daemon = serve(&place);
    daemon.ask("stop");
    let stopped = report(&daemon, "flight-recorder");
    assert_eq!(stopped["shards"][0]["ending"], "in-order");
    assert_eq!(events(&stopped, "stop").len(), 1, "{stopped:#}");
    let out = daemon.run("doctor --json");
    assert_eq!(out.status.code(), Some(1), "no daemon answers");
    let doctor: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(!doctor["findings"].to_string().contains("without a stop"), "{doctor:#}");
    assert_eq!(doctor["findings"][0]["subject"], "daemon");
}

#[test]
fn recordings_that_are_damaged_are_named_and_the_rest_is_read() {
    let place = Place::new();
    let daemon = serve(&place);
    drop(Initiator::ready(daemon.at, DISK));
    // Its end is an event of its own.
    let gone = || daemon.ask_json("session list").as_array().unwrap().is_empty();
    wait_until(10, || daemon.ask("session list"), gone);
    daemon.ask("stop");
    let directory = place.path("control.flight");
    let file = fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    // The second event: the first one has one slot.
    let recording = fs::OpenOptions::new().write(true).open(&file).unwrap();
    recording.write_at(b"\xff", 4096 + 32 + 9).unwrap();
    let out = daemon.run("flight-recorder --json");
    assert_eq!(out.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["shards"][0]["damaged_slots"], 1, "{report:#}");
    assert!(!events(&report, "login").is_empty(), "{report:#}");
    for (bytes, said) in [(&b"not at all"[..], "not a flight recording"), (b"BWFLIGHT\x01\0\0\0", "bytes")] {
        fs::write(&file, bytes).unwrap();
        let out = daemon.run("flight-recorder");
        let why = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(1) && why.contains(said), "{why}");
        assert!(why.contains(file.to_str().unwrap()), "{why}");
    }
    fs::remove_dir_all(directory).unwrap();
    assert_eq!(daemon.run("flight-recorder").status.code(), Some(21));
}
