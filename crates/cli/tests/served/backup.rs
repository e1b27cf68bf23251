//! The state directory in one file, and back: what hosts know of a volume comes along, and nothing is changed by a
//! restore that is refused.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use serde_json::Value;

use crate::{
    daemon::{Daemon, Place, volume},
    host::{ANA_INACCESSIBLE, Host, Names, WRITE_PROTECTED},
    initiator::{Data, HOST, Initiator, wanted},
};

const TARGET: &str = "iqn.2026-11.io.blockwire:disk";
const BOTH: [&str; 2] = ["--nvme", "127.0.0.1:0"];
const SECRET: &str = "secret of a backup";

fn configuration(place: &Place) -> String {
    let disk = place.path("disk.img");
    place.sandbox(&[])
        + &volume("disk", &format!("file:{},size=1M", disk.display()))
        + &format!("[auth]\ndiscovery = {{ user = \"alice\", secret = \"{SECRET}\" }}\n")
}

/// Runs a verb that asks no daemon; gives its exit code and all that it said.
fn run(words: &[&str], home: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blockwire"));
    let out = command.args(words).env("HOME", home).current_dir(home).output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
}

fn register(daemon: &Daemon) {
    let mut host = Host::ready(daemon.nvme.unwrap(), &Names::of("disk"));
    host.reserve(0x0d, 0, [0, 0xabc]).good();
    let mut session = Initiator::ready(daemon.at, TARGET);
    let mut keys = [0; 24];
    keys[8..16].copy_from_slice(&0x99_u64.to_be_bytes());
    // With APTPL: it outlasts the daemon.
    keys[20] = 1;
    session.command(0, &[0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0], Data::Out(&keys)).unwrap().good();
}

/// What hosts would notice if it were different.
fn seen(daemon: &Daemon) -> Vec<Value> {
    let mut reservation = daemon.ask_json("reservation show disk");
    assert_eq!(reservation["registrants"].as_array().unwrap().len(), 2, "{reservation:#}");
    let volume = daemon.ask_json("volume show disk");
    // It counts from 0 after each start.
    reservation.as_object_mut().unwrap().remove("generation");
    let mut paths = daemon.ask_json("path list disk");
    for path in paths.as_array_mut().unwrap() {
        path.as_object_mut().unwrap().remove("addresses");
    }
    vec![
        reservation,
        paths,
        volume["uuid"].clone(),
        volume["standing"]["write_protected"].clone(),
        daemon.ask_json("volume list").as_array().unwrap().len().into(),
    ]
}

#[test]
fn a_backup_under_a_running_daemon_is_the_same_daemon_in_another_directory() {
    let place = Place::new();
    let daemon = place.serve(&configuration(&place), &BOTH);
    register(&daemon);
    daemon.ask(&format!("volume create later=file:{},size=1M", place.path("later.img").display()));
    let ports = daemon.ask_json("path list disk");
    let nvme = ports.as_array().unwrap().iter().find(|path| path["protocol"] == "nvme").unwrap();
    daemon.ask(&format!("path set disk --port {} --state inaccessible", nvme["port"]));
    daemon.ask("volume set disk --read-only on");
    let before = seen(&daemon);
    let file = place.path("b.tar");
    let said = daemon.ask(&format!("backup {}", file.display()));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(said.contains("configuration/blockwire.toml") && !said.contains(SECRET), "{said}");
    assert!(
        said.contains("blocks of volume disk (file:") && said.contains("blocks of volume later"),
        "{said}"
    );
    assert!(daemon.log_with("verb=backup").contains("done"), "who took the secrets is noted");
    // What comes later is not in it.
    daemon.ask("path set disk --state optimized");
    daemon.kill();

    let other = Place::new();
    let state = other.path("state");
    let (code, said) =
        run(&["restore", &file.to_string_lossy(), "--state", &state.to_string_lossy()], &other.path("."));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("never start the daemon of the backup again"), "{said}");
    let unpacked =
        Command::new("tar").arg("-xf").arg(&file).arg("configuration").current_dir(other.path(".")).status();
    assert!(unpacked.unwrap().success());
    let text = fs::read_to_string(other.path("configuration/blockwire.toml")).unwrap();
    assert_eq!(text, configuration(&place));
    let daemon = other.serve(&text, &BOTH);
    assert_eq!(seen(&daemon), before);
    let mut host = Host::ready(daemon.nvme.unwrap(), &Names::of("disk"));
    assert_eq!(host.read(0).status, ANA_INACCESSIBLE, "the path is as it was");
    let mut session = Initiator::connect(daemon.at, wanted(HOST, Some(TARGET), None)).unwrap();
    session.settle(0);
    // PERSISTENT RESERVE IN, READ KEYS.
    let keys = session.command(0, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0], Data::In(64)).unwrap().good();
    assert_eq!(keys[7], 16, "two keys: {keys:?}");
    assert_eq!(session.read(0, 0, 1).unwrap().good(), [0; 512]);
    let denied = session.write(0, 1, &[1; 512]).unwrap();
    assert_eq!(denied.sense.map(|sense| (sense.0, sense.1)), Some((7, 0x27)), "protected as it was");
    daemon.ask("path set disk --state optimized");
    assert_eq!(host.write(1, &[1; 512]).status, WRITE_PROTECTED);
}

#[test]
fn without_a_daemon_the_directory_is_read_and_says_the_same() {
    let place = Place::new();
    let daemon = place.serve(&configuration(&place), &BOTH);
    register(&daemon);
    let before = seen(&daemon);
    daemon.kill();
    let path = |name: &str| place.path(name).to_string_lossy().into_owned();
    let (file, state, config) = (path("b.tar"), path("state"), path("blockwire.toml"));
    let words = ["backup", &file, "--state", &state, "--json"];
    let words = [&words[..], &["--config", &config]].concat();
    let (code, said) = run(&words, &place.path("."));
    let report: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{code:?}: {said}"));
    assert_eq!(report["secrets"], serde_json::json!(["configuration/blockwire.toml"]));
    // In place of what is there, which is kept.
    fs::remove_file(place.path("state/identities")).unwrap();
    let words = ["restore", &file, "--state", &state, "--replace", "--json"];
    let (code, said) = run(&words, &place.path("."));
    let report: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{code:?}: {said}"));
    let kept = report["replaced"].as_str().unwrap_or_else(|| panic!("{report:#}"));
    assert!(fs::read_dir(kept).unwrap().count() > 0);
    let daemon = place.serve(&configuration(&place), &BOTH);
    assert_eq!(seen(&daemon), before);
    daemon.kill();
    // A copy of its file is another disk, unless it is given the identity.
    fs::copy(place.path("disk.img"), place.path("copy.img")).unwrap();
    let uuid = format!("size=1M\"\nuuid = {}\n#", before[2]);
    let copied = configuration(&place).replace("disk.img", "copy.img").replacen("size=1M", &uuid, 1);
    assert_eq!(seen(&place.serve(&copied, &BOTH)), before);
}

#[test]
fn what_cannot_be_backed_up_or_restored_is_refused_and_nothing_is_changed() {
    let place = Place::new();
    let daemon = place.serve(&configuration(&place), &BOTH);
    let (file, state) = (place.path("b.tar"), place.path("state"));
    let (file, state) = (file.to_string_lossy().into_owned(), state.to_string_lossy().into_owned());
    let home = place.path(".");
    daemon.ask(&format!("backup {file}"));
    let again = daemon.run(&format!("backup {file}"));
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists"), "{again:?}");
    let refused = |words: &[&str], why: &str| {
        let (code, said) = run(words, &home);
        assert!(code == Some(1) && said.contains(why), "{words:?}: {code:?}: {said}");
    };
    let held = fs::read_dir(&state).unwrap().count();
    for replace in [&["--replace"][..], &[]] {
        refused(&[&["restore", &file, "--state", &state], replace].concat(), "in use by another daemon");
    }
    refused(&["backup", "c.tar", "--state", &state], "no daemon answers at");
    refused(&["backup", "c.tar", "--state", "nowhere"], "there is no state directory nowhere");
    assert_eq!(fs::read_dir(&state).unwrap().count(), held);
    daemon.kill();
    refused(&["restore", &file, "--state", &state], "is not empty");
    let whole = fs::read(&file).unwrap();
    let damaged = place.path("damaged.tar").to_string_lossy().into_owned();
    let mut changed = whole.clone();
    let at = whole.windows(SECRET.len()).position(|text| text == SECRET.as_bytes()).unwrap();
    changed[at] ^= 1;
    for (bytes, why) in [
        (&changed[..], "the checksum of configuration/blockwire.toml is wrong"),
        (&whole[..whole.len() / 2], "damaged"),
        (b"", "it has no manifest.json"),
    ] {
        fs::write(&damaged, bytes).unwrap();
        refused(&["restore", &damaged, "--state", "new"], why);
        assert!(!place.path("new").exists(), "nothing was made");
    }
    refused(&["restore", "absent.tar", "--state", "new"], "cannot read absent.tar");
    fs::write(place.path("state/identities"), "not what was written").unwrap();
    refused(&["backup", "c.tar", "--state", &state], "identities is damaged");
    assert!(!place.path("c.tar").exists());
}
