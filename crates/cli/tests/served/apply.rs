//! The configuration is changed while the daemon serves: who is disturbed, and who is not; all of it or nothing.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use iscsi::{initiator::LoginFailure, wire::LoginStatus};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    daemon::{Daemon, Place, volume, wait_until, worlds},
    host::{Host, Names},
    initiator::{HOST, Initiator, proof, wanted},
};

const A: &str = "iqn.2026-11.test:a";
const B: &str = "iqn.2026-11.test:b";

fn target(name: &str, volume: &str) -> String {
    format!("[[target]]\nname = \"{name}\"\nluns = [{{ lun = 0, volume = \"{volume}\" }}]\n")
}

fn host(name: &str, iqn: &str, rest: &str) -> String {
    format!("[[host]]\nname = \"{name}\"\niqn = [\"{iqn}\"]\naccess = [{{ target = \"*\" }}]\n{rest}\n")
}

fn code(daemon: &Daemon, line: &str) -> (Option<i32>, String) {
    let out = daemon.run(line);
    let said = [out.stdout, out.stderr].concat();
    (out.status.code(), String::from_utf8_lossy(&said).into_owned())
}

/// Applies a text, which must go well.
fn apply(place: &Place, daemon: &Daemon, text: &str) -> Value {
    let file = place.write("next.toml", text);
    daemon.ask_json(&format!("apply {file}"))
}

/// What the daemon serves, without what time changes.
fn served(daemon: &Daemon) -> Vec<Value> {
    let mut status = daemon.ask_json("status");
    status.as_object_mut().unwrap().remove("uptime_seconds");
    let mut all = vec![status];
    for line in ["volume list", "target list", "subsystem list", "host list"] {
        all.push(daemon.ask_json(line));
    }
    all
}

#[test]
fn a_volume_that_is_added_is_seen_by_who_is_logged_in_already() {
    let place = Place::new();
    let old = place.sandbox(&[]) + &volume("one", "ram:4M") + &target(A, "one");
    let daemon = place.serve(&old, &[]);
    let mut session = Initiator::ready(daemon.at, A);
    let mut discovery = Initiator::connect(daemon.at, wanted(HOST, None, None)).unwrap();
    assert!(!discovery.send_targets("All").contains(B));
    session.write(0, 0, &[1; 512]).unwrap().good();
    let new = old.clone() + &volume("two", "file:two.img,size=4M") + &target(B, "two");
    let file = place.write("next.toml", &new);
    let (exit, said) = code(&daemon, &format!("plan {file}"));
    assert_eq!(exit, Some(0), "{said}");
    assert!(said.contains("add volume two") && said.contains(&format!("add target {B}")), "{said}");
    assert!(!place.path("two.img").exists(), "a plan makes nothing");
    let report = apply(&place, &daemon, &new);
    assert_eq!((&report["applied"], report["disturbed"].as_array().unwrap().len()), (&Value::Bool(true), 0));
    assert!(discovery.send_targets("All").contains(B));
    let mut second = Initiator::ready(daemon.at, B);
    second.write(0, 0, &[2; 512]).unwrap().good();
    assert_eq!(session.read(0, 0, 1).unwrap().good(), [1; 512]);
    // Away again: its target is gone, its file stays, and its host is told.
    apply(&place, &daemon, &old);
    second.wait_gone();
    assert!(!discovery.send_targets("All").contains(B));
    assert_eq!(session.read(0, 0, 1).unwrap().good(), [1; 512]);
    // It comes back with its data and its name.
    apply(&place, &daemon, &new);
    assert_eq!(Initiator::ready(daemon.at, B).read(0, 0, 1).unwrap().good(), [2; 512]);
}

/// `plan` names the sessions that then end, in both protocols, and no other ends.
#[test]
fn the_sessions_of_a_host_that_is_removed_end_and_no_other() {
    let place = Place::new();
    let names = |id: u8| Names { nqn: format!("nqn.2026-11.test:{id}"), id: [id; 16], ..Names::of("one") };
    let nvme = |id: u8| {
        let subsystem = "access = [{ subsystem = \"*\" }]";
        format!("[[host]]\nname = \"n{id}\"\nnqn = [\"{}\"]\n{subsystem}\n", names(id).nqn)
    };
    let (first, second) = ("iqn.2026-11.test:first", "iqn.2026-11.test:second");
    let base = volume("one", "ram:4M") + &volume("two", "ram:4M") + &host("first", first, "") + &nvme(1);
    let daemon =
        place.serve(&(base.clone() + &host("second", second, "") + &nvme(2)), &["--nvme", "127.0.0.1:0"]);
    let one = "iqn.2026-11.io.blockwire:two";
    let connect = |name| {
        let mut session = Initiator::connect(daemon.at, wanted(name, Some(one), None)).unwrap();
        session.settle(0);
        session
    };
    let (mut stays, mut goes) = (connect(first), connect(second));
    let mut stays_too = Host::ready(daemon.nvme.unwrap(), &names(1));
    let mut goes_too = Host::ready(daemon.nvme.unwrap(), &names(2));
    let file = place.write("next.toml", &base);
    let (exit, said) = code(&daemon, &format!("plan {file}"));
    assert_eq!(exit, Some(3), "{said}");
    assert!(said.contains("remove host second") && said.contains("(host second)"), "{said}");
    let plan: Value = serde_json::from_slice(&daemon.run(&format!("plan {file} --json")).stdout).unwrap();
    let report = apply(&place, &daemon, &base);
    assert_eq!(plan["disturbed"], report["disturbed"], "what was planned is what was done");
    let hosts: Vec<&str> =
        plan["disturbed"].as_array().unwrap().iter().map(|one| one["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["second", "n2"]);
    assert!(goes.wait_told().is_ok(), "it is asked to log out");
    drop(goes);
    let write = crate::host::Sqe::new(1, 1).cdw(10, 0);
    assert!(goes_too.io.command(write, crate::host::Data::Out(&[1; 512])).is_err());
    let left = || daemon.ask_json("session list").as_array().unwrap().len();
    wait_until(10, || daemon.ask("session list"), || left() == 2);
    stays.write(0, 0, &[3; 512]).unwrap().good();
    assert_eq!(stays.read(0, 0, 1).unwrap().good(), [3; 512]);
    stays_too.write(0, &[4; 512]).good();
    assert_eq!(stays_too.read(0).good(), [4; 512]);
    assert!(Initiator::connect(daemon.at, wanted(second, Some(one), None)).is_err());
}

#[test]
fn a_secret_that_has_changed_counts_from_the_next_login_on() {
    let place = Place::new();
    let config = |secret: &str| {
        let chap = format!("chap = {{ user = \"alice\", secret = \"{secret}\" }}");
        volume("one", "ram:4M") + &target(A, "one") + &host("first", HOST, &chap)
    };
    let (old, new) = ("first of secrets", "another of them!");
    let daemon = place.serve(&config(old), &[]);
    let login = |secret| Initiator::connect(daemon.at, wanted(HOST, Some(A), proof("alice", secret, None)));
    let mut session = login(old).unwrap();
    session.settle(0);
    let file = place.write("next.toml", &config(new));
    let (exit, said) = code(&daemon, &format!("plan {file}"));
    assert_eq!(exit, Some(0), "{said}");
    assert!(said.contains("change host first: chap") && !said.contains(old) && !said.contains(new), "{said}");
    apply(&place, &daemon, &config(new));
    session.write(0, 0, &[5; 512]).unwrap().good();
    // Its other logins would be the same session again.
    session.log_out().unwrap();
    let denied = LoginFailure::Refused(LoginStatus::AUTHENTICATION_FAILURE);
    assert_eq!(login(old).err(), Some(denied));
    assert!(login(new).is_ok());
    let log = daemon.log();
    assert!(!log.contains(old) && !log.contains(new), "{log}");
}

/// Ten applies, each of which adds or removes volumes, targets and hosts, beside a session that writes and reads.
#[test]
fn a_session_that_nothing_is_changed_of_goes_on_through_ten_applies() {
    for world in worlds() {
        let place = Place::new();
        let base = volume("one", "ram:4M") + &target(A, "one").replace("luns", "open = true\nluns");
        let more = base.clone()
            + &volume("two", "ram:4M")
            + &target(B, "two")
            + &host("other", "iqn.2026-11.test:other", "")
            + "[limits]\nlogin_timeout = 20\n";
        let daemon = place.serve(&base, &["--io", world]);
        let mut session = Initiator::ready(daemon.at, A);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let load = scope.spawn(|| {
                let mut rounds = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let (lba, byte) = (rounds % 64, rounds as u8);
                    session.write(0, lba, &[byte; 512]).unwrap().good();
                    assert_eq!(session.read(0, lba, 1).unwrap().good(), [byte; 512]);
                    rounds += 1;
                }
                rounds
            });
            for round in 0..10 {
                let report = apply(&place, &daemon, if round % 2 == 0 { &more } else { &base });
                assert!(report["disturbed"].as_array().unwrap().is_empty(), "{report}");
                assert!(!report["changes"].as_array().unwrap().is_empty());
            }
            stop.store(true, Ordering::Relaxed);
            assert!(load.join().unwrap() > 10);
        });
        assert_eq!(daemon.ask_json("session list").as_array().unwrap().len(), 1);
    }
}

#[test]
fn a_configuration_that_cannot_be_applied_changes_nothing() {
    let place = Place::new();
    let old = place.sandbox(&[]) + &volume("one", "ram:4M") + &target(A, "one");
    let daemon = place.serve(&old, &[]);
    let mut session = Initiator::ready(daemon.at, A);
    let before = served(&daemon);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let portal = format!("[[portal]]\nprotocol = \"iscsi\"\naddress = \"{}\"\n", taken.local_addr().unwrap());
    fs::write(place.path("short.img"), [0; 100]).unwrap();
    let good = volume("made", "file:made.img,size=4M");
    for (what, text, want) in [
        ("a syntax error", old.clone() + "[[volume", "next.toml:"),
        ("an unknown key", old.clone() + "[limits]\nsessons = 3\n", "did you mean \"sessions\"?"),
        ("an unknown volume", old.clone() + &target(B, "none"), "there is no volume \"none\""),
        (
            "a volume that cannot be opened",
            old.clone() + &good + &volume("bad", "file:short.img"),
            "nothing was changed",
        ),
        ("a device that is not there", old.clone() + &volume("bad", "/dev/none"), "nothing was changed"),
        ("an address in use", old.clone() + &good + &portal, "cannot listen on"),
        (
            "what needs a restart",
            old.replace("ram:4M", "ram:4M,block=4096"),
            "volume one (block): needs a restart",
        ),
        ("memory", old.clone() + "[limits]\nmemory = \"64M\"\n", "[limits] (memory): needs a restart"),
    ] {
        let file = place.write("next.toml", &text);
        let (exit, said) = code(&daemon, &format!("apply {file}"));
        assert!(exit != Some(0) && said.contains(want), "{what}: {exit:?} {said}");
        assert_eq!(served(&daemon), before, "{what}");
        assert!(!place.path("made.img").exists(), "{what}: a file was made and stays");
        assert!(!place.path("state").join("configuration").exists(), "{what}");
    }
    let (exit, said) = code(&daemon, "apply /nowhere/none.toml");
    assert!(exit != Some(0) && said.contains("/nowhere/none.toml"), "{said}");
    let (exit, said) = code(&daemon, "rollback");
    assert!(exit != Some(0) && said.contains("nothing to roll back to"), "{said}");
    session.write(0, 0, &[1; 512]).unwrap().good();
    assert_eq!(session.read(0, 0, 1).unwrap().good(), [1; 512]);
}

fn portal(protocol: &str, address: SocketAddr, tag: u16) -> String {
    format!("[[portal]]\nprotocol = \"{protocol}\"\naddress = \"{address}\"\ntag = {tag}\n")
}

/// An address that nobody has.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn a_portal_that_is_added_is_reached_and_one_that_is_removed_is_closed() {
    for world in worlds() {
        let place = Place::new();
        let places: Vec<(SocketAddr, SocketAddr)> = (0..3).map(|_| (free(), free())).collect();
        let ports: Vec<SocketAddr> = places.iter().flat_map(|(iscsi, nvme)| [*iscsi, *nvme]).collect();
        let plain = place.sandbox(&ports) + &volume("one", "ram:4M");
        let daemon = place.serve(&plain, &["--io", world]);
        let one = "iqn.2026-11.io.blockwire:one";
        let mut session = Initiator::ready(daemon.at, one);
        for (iscsi, nvme) in places {
            let more = plain.clone() + &portal("iscsi", iscsi, 2) + &portal("nvme", nvme, 3);
            let report = apply(&place, &daemon, &more);
            assert!(report["disturbed"].as_array().unwrap().is_empty(), "{report}");
            let listeners = daemon.ask_json("status")["listeners"].as_array().unwrap().len();
            assert_eq!(listeners, 3);
            let mut wanted = wanted("iqn.2026-11.test:second", Some(one), None);
            wanted.isid = iscsi::wire::Isid::random([1, 2, 3], 9);
            let mut second = Initiator::connect(iscsi, wanted).unwrap();
            second.settle(0);
            second.write(0, 7, &[9; 512]).unwrap().good();
            let mut third = Host::ready(nvme, &Names::of("one"));
            assert_eq!(third.read(7).good(), [9; 512]);
            let file = place.write("next.toml", &plain);
            let (exit, said) = code(&daemon, &format!("plan {file}"));
            assert_eq!(exit, Some(3), "{said}");
            assert!(said.contains("the portal that it came by is removed"), "{said}");
            let report = apply(&place, &daemon, &plain);
            assert_eq!(report["disturbed"].as_array().unwrap().len(), 2, "{report}");
            let closed = |address| TcpStream::connect(address).is_err();
            wait_until(5, || "it still listens".to_owned(), || closed(iscsi) && closed(nvme));
            drop((second, third));
            wait_until(
                10,
                || daemon.ask("session list"),
                || daemon.ask_json("session list").as_array().unwrap().len() == 1,
            );
            session.write(0, 0, &[1; 512]).unwrap().good();
        }
        assert_eq!(session.read(0, 7, 1).unwrap().good(), [9; 512]);
    }
}

/// A portal with another tag: its connections end and come again under it. With other options none does.
#[test]
fn a_portal_takes_another_tag_and_other_options() {
    for world in worlds() {
        let place = Place::new();
        let own = free();
        let of = |tag, rest: &str| volume("one", "ram:4M") + &portal("iscsi", own, tag) + rest;
        let daemon = place.serve(&of(1, ""), &["--io", world]);
        let one = "iqn.2026-11.io.blockwire:one";
        let group = |at| {
            let mut discovery = Initiator::connect(at, wanted(HOST, None, None)).unwrap();
            discovery.send_targets("All")
        };
        let mut session = Initiator::ready(daemon.at, one);
        for (tag, rest) in [(1, "keepalive = 30\ndscp = 8\n"), (1, ""), (7, "keepalive = 60\n"), (2, "")] {
            let before = daemon.ask_json("status")["listeners"].clone();
            let report = apply(&place, &daemon, &of(tag, rest));
            let is_other = before[0]["tag"] != tag;
            assert_eq!(report["disturbed"].as_array().unwrap().len(), usize::from(is_other), "{report}");
            if is_other {
                session.wait_gone();
                wait_until(
                    10,
                    || daemon.ask("session list"),
                    || daemon.ask_json("session list").as_array().unwrap().is_empty(),
                );
                session = Initiator::ready(own, one);
            }
            assert!(group(own).contains(&format!("TargetAddress={own},{tag}\0")), "{:?}", group(own));
            session.write(0, 3, &[tag as u8; 512]).unwrap().good();
            assert_eq!(session.read(0, 3, 1).unwrap().good(), [tag as u8; 512]);
        }
    }
}

fn names(daemon: &Daemon) -> Vec<String> {
    let volumes = daemon.ask_json("volume list");
    volumes.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_was_applied_is_rolled_back_outlives_a_restart_and_yields_to_an_edit() {
    let place = Place::new();
    let (old, new) = (volume("one", "ram:4M"), volume("one", "ram:4M") + &volume("two", "ram:4M"));
    let mut daemon = place.serve(&old, &[]);
    daemon.ask("volume create own=ram:1M");
    apply(&place, &daemon, &new);
    assert_eq!(names(&daemon), ["one", "own", "two"]);
    daemon.ask("rollback");
    assert_eq!(names(&daemon), ["one", "own"]);
    daemon.ask("rollback");
    assert_eq!(names(&daemon), ["one", "own", "two"]);
    let again = |daemon: &mut Daemon, config: &str| {
        daemon.ask("stop");
        daemon.ended(Duration::from_secs(5));
        *daemon = place.serve(config, &[]);
    };
    again(&mut daemon, &old);
    assert_eq!(names(&daemon), ["one", "two", "own"], "the file has not changed since");
    daemon.log_with("the configuration that was applied last");
    // The file again, by name and by signal.
    daemon.ask("apply");
    assert_eq!(names(&daemon), ["one", "own"]);
    place.write("blockwire.toml", &(old.clone() + &volume("three", "ram:4M")));
    daemon.signal(Signal::HUP);
    wait_until(10, || daemon.log(), || names(&daemon) == ["one", "own", "three"]);
    place.write("blockwire.toml", "[[volume");
    daemon.signal(Signal::HUP);
    daemon.log_with("SIGHUP: the configuration was not applied");
    assert_eq!(names(&daemon), ["one", "own", "three"]);
    again(&mut daemon, &(old.clone() + &volume("four", "ram:4M")));
    assert_eq!(names(&daemon), ["one", "four", "own"], "who has edited the file means it");
    daemon.ask("rollback");
    assert_eq!(names(&daemon), ["one", "own", "three"]);
    again(&mut daemon, &(old.clone() + &volume("five", "ram:4M")));
    daemon.log_with("the files were changed since another configuration was applied");
    assert_eq!(names(&daemon), ["one", "five", "own"]);
}

#[test]
fn volumes_grow_and_failed_ones_are_mended_by_an_apply() {
    let place = Place::new();
    let config = |size: &str, file: &str| {
        volume("one", &format!("file:one.img,size={size}")) + &target(A, "one") + &volume("away", file)
    };
    let daemon = place.serve(&config("4M", "file:missing/away.img"), &[]);
    assert_eq!(daemon.run("status").status.code(), Some(1), "one volume has failed");
    let mut session = Initiator::ready(daemon.at, A);
    assert_eq!(session.blocks(0), 8192);
    let report = apply(&place, &daemon, &config("8M", "ram:1M"));
    assert!(report["disturbed"].as_array().unwrap().is_empty(), "{report}");
    // CAPACITY DATA HAS CHANGED comes first.
    session.settle(0);
    assert_eq!(session.blocks(0), 16384);
    daemon.ask("status");
    let report = apply(&place, &daemon, &config("6M", "ram:1M"));
    assert!(report.to_string().contains("it keeps its size of 8 MiB"), "{report}");
}

/// Killed at any moment of an apply, the daemon that is started then serves all of the old configuration or all of the
/// new one.
#[test]
fn a_daemon_that_is_killed_while_it_applies_serves_all_of_one_configuration() {
    let place = Place::new();
    let of = |name: &str, secret: &str| {
        let file = format!("file:{name}.img,size=1M");
        let chap = format!("chap = {{ user = \"alice\", secret = \"{secret}\" }}");
        volume(name, &file) + &target(&format!("iqn.2026-11.test:{name}"), name) + &host(name, HOST, &chap)
    };
    let (old, new) = (of("old", "the old secret, long"), of("new", "the new secret, long"));
    let (mut seen, mut delay) = ([0; 2], Duration::from_millis(10));
    for _ in 0..14 {
        let daemon = place.serve(&old, &[]);
        let was_new = names(&daemon) == ["new"];
        let file = place.write("next.toml", if was_new { &old } else { &new });
        thread::scope(|scope| {
            scope.spawn(|| daemon.run(&format!("apply {file}")));
            thread::sleep(delay);
            daemon.signal(Signal::KILL);
        });
        daemon.kill();
        let daemon = place.serve(&old, &[]);
        let volumes = names(&daemon);
        let is_new = volumes == ["new"];
        let (name, secret) =
            if is_new { ("new", "the new secret, long") } else { ("old", "the old secret, long") };
        assert_eq!(volumes, [name]);
        let targets = daemon.ask_json("target list");
        assert_eq!(targets.as_array().unwrap().len(), 1);
        assert_eq!(targets[0]["name"], format!("iqn.2026-11.test:{name}"));
        assert_eq!(daemon.ask_json("host list")[0]["name"], name);
        let login = wanted(HOST, Some(&format!("iqn.2026-11.test:{name}")), proof("alice", secret, None));
        assert!(Initiator::connect(daemon.at, login).is_ok());
        daemon.kill();
        // The next one is killed nearer to the moment that decides.
        let is_done = was_new != is_new;
        seen[usize::from(is_done)] += 1;
        delay = if is_done { delay.mul_f64(0.75) } else { delay.mul_f64(1.25) };
    }
    assert!(seen[0] > 0 && seen[1] > 0, "before and after the commit: {seen:?}");
}
