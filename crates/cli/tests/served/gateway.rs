//! A daemon that serves the volume of another: over either protocol from either.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use ::client::{Initiator, IoChoice, Settings};
use rustix::process::Signal;

use crate::daemon::{Daemon, Place, volume, wait_until, worlds};
use crate::verbs::{good, urls};

pub fn ours(world: &str) -> Initiator {
    let io = if world == "uring" { IoChoice::Uring } else { IoChoice::Epoll };
    Initiator::new(Settings { io, ..Settings::default() }).unwrap()
}

/// Bytes that do not repeat within any length, so that pieces of them that change places are noticed.
pub fn bytes(len: usize, seed: usize) -> Vec<u8> {
    let mut state = 2 * seed as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn gateway(source: &str) -> String {
    volume("near", source)
}

/// A daemon with a file of so many bytes.
pub fn far(world: &str, size: &str) -> (Place, Daemon) {
    let place = Place::new();
    let config = volume("far", &format!("file:far.img,size={size}"));
    let daemon = place.serve(&config, &["--nvme", "127.0.0.1:0", "--io", world]);
    (place, daemon)
}

#[test]
fn either_protocol_is_served_over_either() {
    for world in worlds() {
        let (_there, far) = far(world, "32M");
        for back in 0..2 {
            let place = Place::new();
            let source = urls(&far, "far")[back].clone();
            let near = place.serve(&gateway(&source), &["--nvme", "127.0.0.1:0", "--io", world]);
            let (shown, uuid) = (near.ask_json("volume show near"), far.ask_json("volume show far"));
            assert_eq!((&shown["kind"], &shown["path"]), (&"remote".into(), &source.as_str().into()));
            assert_eq!(shown["uuid"], uuid["uuid"], "it is one volume");
            for front in 0..2 {
                let mut initiator = ours(world);
                let through = initiator.open(&urls(&near, "near")[front]).unwrap();
                let direct = initiator.open(&urls(&far, "far")[1 - back]).unwrap();
                assert_eq!(initiator.geometry(through).unwrap().capacity_bytes(), 32 << 20);
                let (written, mut read) = (bytes(5 << 20, 7 + front + 2 * back), vec![0; 5 << 20]);
                initiator.write_at(through, 1 << 20, &written).unwrap();
                initiator.flush(through).unwrap();
                initiator.read_at(direct, 1 << 20, &mut read).unwrap();
                assert!(read == written, "{world}: from {front} to {back}, other bytes came to the far end");
                let back_again = bytes(5 << 20, 11 + front);
                initiator.write_at(direct, 2 << 20, &back_again).unwrap();
                initiator.read_at(through, 2 << 20, &mut read).unwrap();
                assert!(read == back_again, "{world}: from {back} to {front}, other bytes came back");
                initiator.close(through).unwrap();
                initiator.close(direct).unwrap();
            }
            good(&["verify", &urls(&near, "near")[1 - back], &source]);
        }
    }
}

#[test]
fn the_far_ends_size_passes_through() {
    let (_there, far) = far("epoll", "32M");
    for back in 0..2 {
        let place = Place::new();
        let near = place.serve(&gateway(&urls(&far, "far")[back]), &["--nvme", "127.0.0.1:0"]);
        let refused = near.run("volume resize near 1G");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("on the machine that owns it"));
        let mut initiator = ours("epoll");
        let volumes = urls(&near, "near").map(|url| initiator.open(&url).unwrap());
        let size = (48 + 16 * back as u64) << 20;
        far.ask(&format!("volume resize far {size}"));
        let begun = Instant::now();
        while volumes.iter().any(|volume| initiator.geometry(*volume).unwrap().capacity_bytes() != size) {
            let sizes = volumes.map(|volume| initiator.geometry(volume).unwrap().capacity_bytes());
            assert!(begun.elapsed() < Duration::from_secs(20), "over {back}: {sizes:?}, not {size}");
            // Any I/O lets a target tell what has changed.
            volumes.iter().for_each(|volume| initiator.read_at(*volume, 0, &mut [0; 512]).unwrap());
            initiator.turn(Some(Duration::from_millis(50)));
        }
        for volume in volumes {
            initiator.write_at(volume, size - 4096, &[7; 4096]).unwrap();
        }
        assert_eq!(near.ask_json("volume show near")["size_bytes"], size);
        assert_eq!(near.ask_json("volume list")[0]["size_bytes"], size);
    }
}

#[test]
fn the_far_ends_protection_passes_through() {
    let (_there, far) = far("epoll", "32M");
    for back in 0..2 {
        let place = Place::new();
        let near = place.serve(&gateway(&urls(&far, "far")[back]), &["--nvme", "127.0.0.1:0"]);
        let mut initiator = ours("epoll");
        let volumes = urls(&near, "near").map(|url| initiator.open(&url).unwrap());
        for on in [true, false] {
            far.ask(&format!("volume set far --read-only {}", if on { "on" } else { "off" }));
            let begun = Instant::now();
            while volumes.iter().any(|volume| initiator.is_read_only(*volume) != on) {
                assert!(begun.elapsed() < Duration::from_secs(20), "over {back}: not {on}");
                volumes.iter().for_each(|volume| initiator.read_at(*volume, 0, &mut [0; 512]).unwrap());
                initiator.turn(Some(Duration::from_millis(50)));
            }
            let shown = near.ask_json("volume show near");
            assert_eq!(
                (&shown["read_only"], &shown["standing"]["write_protected"]),
                (&on.into(), &false.into())
            );
            assert!(volumes.iter().all(|volume| initiator.write_at(*volume, 0, &[1; 512]).is_err() == on));
        }
    }
}

#[test]
fn a_gateway_proves_itself_and_asks_for_proof() {
    let (ours_at_far, theirs) = ("a secret of ours", "a secret of theirs");
    let there = Place::new();
    for file in ["far.key", "controller.key"] {
        let mut key = Command::new(env!("CARGO_BIN_EXE_blockwire"));
        assert!(key.args(["host", "key"]).arg(there.path(file)).status().unwrap().success());
    }
    let config = format!(
        "[[volume]]\nname = \"far\"\nsource = \"ram:8M\"\n[auth]\ndhchap_key_file = \"far.key\"\n\
         dhchap_controller_key_file = \"controller.key\"\n\
         chap = {{ user = \"gate\", secret = \"{ours_at_far}\", mutual_user = \"rack\", \
         mutual_secret = \"{theirs}\" }}\n"
    );
    let far = there.serve(&config, &["--nvme", "127.0.0.1:0"]);
    let place = Place::new();
    let (ours_file, theirs_file) = (place.write("ours", ours_at_far), place.write("theirs", theirs));
    let [iscsi, nvme] = urls(&far, "far");
    let named = iscsi.replace("://", "://gate@");
    let mutual = format!("{named}?secret_file={ours_file}&mutual_user=rack&mutual_secret_file={theirs_file}");
    let dhchap = format!("{nvme}?secret_file={}", there.path("far.key").display());
    let [both, swapped_keys] = ["controller.key", "far.key"]
        .map(|file| format!("{dhchap}&mutual_secret_file={}", there.path(file).display()));
    for source in [&mutual, &dhchap, &both, &format!("{mutual},{both}")] {
        let place = Place::new();
        let near = place.serve(&gateway(source), &["--nvme", "127.0.0.1:0"]);
        let mut initiator = ours("epoll");
        let [one, other] = urls(&near, "near").map(|url| initiator.open(&url).unwrap());
        initiator.write_at(one, 4096, &[5; 4096]).unwrap();
        let mut read = [0; 4096];
        initiator.read_at(other, 4096, &mut read).unwrap();
        assert_eq!(read, [5; 4096]);
        // Each shard of the gateway comes by itself; some may still be on their way.
        let seen = || far.ask("connection list");
        wait_until(20, seen, || {
            let seen = far.ask_json("connection list");
            let seen = seen.as_array().unwrap();
            !seen.is_empty() && seen.iter().all(|one| one["algorithm"].is_string())
        });
        for secret in [ours_at_far, theirs] {
            assert!(!near.log().contains(secret) && !near.ask("volume show near --json").contains(secret));
        }
    }
    let wrong = place.write("wrong", "another secret than ours");
    let swapped = format!("{named}?secret_file={ours_file}&mutual_user=rack&mutual_secret_file={wrong}");
    for source in [format!("{named}?secret_file={wrong}"), swapped, swapped_keys] {
        let said = absent(&format!("a={source}")).2;
        assert!(!said.contains("another secret") && !said.contains("DHHC-1"), "{said}");
    }
    far.log_with("the host refused the controller: compare its controller key");
}

/// A daemon with this volume, named `a`, which it does not serve, and another that it serves; and what its log
/// says.
fn absent(volume: &str) -> (Place, Daemon, String) {
    let place = Place::new();
    let more =
        ["--volume", volume, "--volume", "disk=ram:8M", "--iscsi", "127.0.0.1:0", "--nvme", "127.0.0.1:0"];
    let begun = Instant::now();
    let near = place.serve_as(&more, &[]);
    assert!(begun.elapsed() < Duration::from_secs(12), "it waited for {volume}: {:?}", begun.elapsed());
    let shown = near.run("volume show a");
    assert!(!shown.status.success() && near.log().contains("volume=a"), "{volume}: {}", near.log());
    let mut initiator = ours("epoll");
    for url in urls(&near, "disk") {
        let disk = initiator.open(&url).unwrap();
        initiator.write_at(disk, 0, &[1; 512]).unwrap();
    }
    let log = near.log();
    (place, near, log)
}

/// Once a daemon serves its volume `a`.
fn arrives(near: &Daemon) {
    wait_until(30, || near.log(), || near.run("volume show a").status.success());
    let mut initiator = ours("epoll");
    for url in urls(near, "a") {
        let disk = initiator.open(&url).unwrap();
        initiator.write_at(disk, 0, &[1; 512]).unwrap();
    }
}

#[test]
fn a_far_machine_that_says_nothing_holds_up_no_other_volume_and_is_served_when_it_answers() {
    // It takes connections and says nothing; then it is closed; then the far daemon is there.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    let (_place, near, _) = absent(&format!("a=iscsi://{at}/iqn.2026-11.io.blockwire:far/0"));
    let said = near.run("volume show a");
    assert!(String::from_utf8_lossy(&said.stdout).contains("has not responded"), "{said:?}");
    drop(silent);
    let there = Place::new();
    let _far = there.serve_as(&["--volume", "far=ram:8M", "--iscsi", &at.to_string()], &[]);
    arrives(&near);
}

#[test]
fn a_far_machine_that_is_down_holds_up_no_other_volume_and_is_served_when_it_is_up() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let far = "nqn.2026-11.io.blockwire:far/1";
    let (_place, near, said) = absent(&format!("a=nvme+tcp://{closed}/{far}"));
    assert!(said.contains(&closed.to_string()), "{said}");
    let there = Place::new();
    let at = closed.to_string();
    let _far = there.serve_as(&["--volume", "far=ram:8M", "--iscsi", "127.0.0.1:0", "--nvme", &at], &[]);
    arrives(&near);
}

#[test]
fn a_far_end_that_comes_back_is_served_again() {
    for back in 0..2 {
        let (there, far) = far("epoll", "32M");
        let place = Place::new();
        let source = urls(&far, "far")[back].clone();
        let near = place.serve(&gateway(&source), &["--nvme", "127.0.0.1:0"]);
        let mut initiator = ours("epoll");
        let volumes = urls(&near, "near").map(|url| initiator.open(&url).unwrap());
        initiator.write_at(volumes[0], 0, &[3; 4096]).unwrap();
        initiator.flush(volumes[0]).unwrap();
        let (iscsi, nvme) = (far.at.to_string(), far.nvme.unwrap().to_string());
        far.kill();
        let config = volume("far", "file:far.img");
        let again = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(1));
            let far = there.serve_on(&config, &["--iscsi", &iscsi, "--nvme", &nvme], &[]);
            (there, far)
        });
        // What hosts ask for meanwhile waits, and goes well when it is back.
        for volume in volumes {
            let mut read = [0; 4096];
            initiator.read_at(volume, 0, &mut read).unwrap();
            assert_eq!(read, [3; 4096], "over {back}");
            initiator.write_at(volume, 8192, &[4; 4096]).unwrap();
        }
        let (_there, far) = again.join().unwrap();
        let direct = initiator.open(&urls(&far, "far")[1 - back]).unwrap();
        let mut read = [0; 4096];
        initiator.read_at(direct, 8192, &mut read).unwrap();
        assert_eq!(read, [4; 4096], "over {back}");
        drop(near);
    }
}

#[test]
fn a_far_end_that_is_gone_is_an_error_in_time() {
    for back in 0..2 {
        let (_there, far) = far("epoll", "32M");
        let place = Place::new();
        let source = format!("{}?queue_timeout=1s", urls(&far, "far")[back]);
        let near = place.serve(&gateway(&source), &["--nvme", "127.0.0.1:0"]);
        let mut initiator = ours("epoll");
        let volumes =
            urls(&near, "near").map(|url| initiator.open(&format!("{url}?queue_timeout=2s")).unwrap());
        initiator.write_at(volumes[0], 0, &[1; 4096]).unwrap();
        far.kill();
        for volume in volumes {
            let begun = Instant::now();
            let why = initiator.read_at(volume, 0, &mut [0; 4096]).unwrap_err();
            assert!(begun.elapsed() < Duration::from_secs(15), "{:?}: {why}", begun.elapsed());
        }
    }
}

/// What was written and not flushed may be lost with the far end, and only that holds up the stop.
#[test]
fn a_stop_without_the_far_end_fails_only_for_what_may_be_lost() {
    for back in 0..2 {
        for (writes, flushes) in [(false, false), (true, true), (true, false)] {
            let (_there, far) = far("epoll", "32M");
            let place = Place::new();
            let source = format!("{}?queue_timeout=2s", urls(&far, "far")[back]);
            let mut near = place.serve(&gateway(&source), &["--nvme", "127.0.0.1:0"]);
            let mut initiator = ours("epoll");
            let volume = initiator.open(&urls(&near, "near")[1 - back]).unwrap();
            if writes {
                initiator.write_at(volume, 0, &[1; 4096]).unwrap();
            }
            if flushes {
                initiator.flush(volume).unwrap();
            }
            initiator.read_at(volume, 0, &mut [0; 4096]).unwrap();
            initiator.close(volume).unwrap();
            far.kill();
            let begun = Instant::now();
            near.signal(Signal::TERM);
            let lost = writes && !flushes;
            let code = near.ended(Duration::from_secs(20));
            let (log, case) = (near.log(), format!("over {back}, writes {writes}, flushes {flushes}"));
            assert_eq!(code, Some(i32::from(lost)), "{case}: {log}");
            assert!(lost || begun.elapsed() < Duration::from_secs(6), "{case}: {:?}: {log}", begun.elapsed());
            let named = log.lines().any(|line| line.contains("not flushed") && line.contains("near"));
            assert_eq!(named, lost, "{case}: {log}");
        }
    }
}

#[test]
fn what_cannot_be_opened_is_said_at_the_start() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (_, _, said) = absent(&format!("a=iscsi://{closed}/iqn.2026-11.io.blockwire:far/0"));
    assert!(said.contains(&closed.to_string()) && said.contains("is the target running"), "{said}");
    let (_there, far) = far("epoll", "32M");
    let [_, nvme] = urls(&far, "far");
    let (_, _, said) = absent(&format!("a={}", nvme.replace(":far/1", ":far/7")));
    assert!(said.contains(&far.nvme.unwrap().to_string()), "{said}");
    // What is wrong on this side ends the start.
    let wrong = format!("a={nvme}?secret_file=/nowhere/at/all");
    let begun = Instant::now();
    let (code, said) = Place::new().refused(&["--iscsi", "127.0.0.1:0", "--volume", &wrong]);
    assert!(code != Some(0) && begun.elapsed() < Duration::from_secs(20), "{code:?}: {said}");
    assert!(said.contains("/nowhere/at/all"), "{said}");
}

/// Volumes that are made while the daemon runs are there again after a restart.
#[test]
fn a_created_volume_is_recorded_without_secrets() {
    let (_there, far) = far("epoll", "32M");
    let [iscsi, _] = urls(&far, "far");
    let place = Place::new();
    let near = place.serve(&place.sandbox(&[far.at]), &["--nvme", "127.0.0.1:0"]);
    let with = iscsi.replace("://", "://user%hunter2@");
    let out = near.run(&format!("volume create near={with}"));
    assert!(
        !out.status.success() && String::from_utf8_lossy(&out.stderr).contains("must not hold a password")
    );
    near.ask(&format!("volume create near={iscsi},ro"));
    assert_eq!(near.ask_json("volume show near")["read_only"], true);
    drop(near);
    let near = place.serve("", &["--nvme", "127.0.0.1:0"]);
    assert_eq!(near.ask_json("volume show near")["path"], iscsi.as_str());
    let mut initiator = ours("epoll");
    let volume = initiator.open(&urls(&near, "near")[1]).unwrap();
    assert!(initiator.write_at(volume, 0, &[0; 512]).is_err(), "write-protected");
}

/// The far end lost its volumes and made new ones of the same names while the gateway was down.
#[test]
fn a_far_volume_that_was_replaced_while_the_gateway_was_down_is_not_served_in_its_place() {
    let there = Place::new();
    let files = |which: &str| -> String {
        ["one", "two"].map(|name| volume(name, &format!("file:{which}-{name}.img,size=8M"))).concat()
    };
    let far = there.serve(&files("old"), &["--nvme", "127.0.0.1:0"]);
    let uuids = |far: &Daemon| {
        ["one", "two"]
            .map(|name| far.ask_json(&format!("volume show {name}"))["uuid"].as_str().unwrap().to_owned())
    };
    let (old, iscsi, nvme) = (uuids(&far), far.at.to_string(), far.nvme.unwrap().to_string());
    let (one, two) = (urls(&far, "one")[0].clone(), urls(&far, "two")[1].clone());
    let place = Place::new();
    let config = volume("named", &one) + &volume("other", "ram:1M");
    let near = place.serve(&config, &["--nvme", "127.0.0.1:0"]);
    near.ask(&format!("volume create made={two}"));
    near.kill();
    // The same volumes are served again.
    let near = place.serve(&config, &["--nvme", "127.0.0.1:0"]);
    assert_eq!(near.ask_json("volume show named")["uuid"], old[0].as_str());
    assert_eq!(near.ask_json("volume show made")["uuid"], old[1].as_str());
    near.kill();
    far.kill();
    let far = there.serve_on(&files("new"), &["--iscsi", &iscsi, "--nvme", &nvme], &[]);
    let new = uuids(&far);
    let near = place.serve(&config, &["--nvme", "127.0.0.1:0"]);
    let mut initiator = ours("epoll");
    for (at, name) in ["named", "made"].into_iter().enumerate() {
        let out = near.run(&format!("volume show {name}"));
        let said = [out.stdout, out.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains(&old[at]) && said.contains(&new[at]), "{name}: {said}");
        assert!(said.contains(&format!("volume delete {name}")), "{name}: {said}");
        for url in urls(&near, name) {
            assert!(initiator.open(&url).is_err(), "{url} leads to another volume than before");
        }
    }
    let other = initiator.open(&urls(&near, "other")[1]).unwrap();
    initiator.write_at(other, 0, &[1; 4096]).unwrap();
    // The operator says that the new ones are meant.
    near.ask("volume delete named");
    near.ask("volume delete made");
    near.ask(&format!("volume create made={two}"));
    near.kill();
    let near = place.serve(&config, &["--nvme", "127.0.0.1:0"]);
    assert_eq!(near.ask_json("volume show named")["uuid"], new[0].as_str());
    assert_eq!(near.ask_json("volume show made")["uuid"], new[1].as_str());
}

/// What comes next by that name may be another, and it would be refused, or end sessions that are not its own.
#[test]
fn a_far_volume_whose_creation_failed_late_is_not_remembered_by_its_name() {
    let (_there, far) = far("epoll", "32M");
    let place = Place::new();
    let near =
        place.serve(&(place.sandbox(&[far.at]) + &volume("own", "ram:1M")), &["--nvme", "127.0.0.1:0"]);
    let state = place.path("state");
    let known = |name: &str| {
        let text = |record| std::fs::read_to_string(state.join(record)).unwrap_or_default();
        ["elsewhere", "nexuses"].map(|record| text(record).contains(name))
    };
    let create = |name: &str| near.run(&format!("volume create {name}={}", urls(&far, "far")[0]));
    // It cannot be recorded, so it is not served.
    std::fs::create_dir(state.join("volumes.new")).unwrap();
    let late = create("late");
    let why = String::from_utf8_lossy(&late.stderr);
    assert!(!late.status.success() && why.contains("volumes: Is a directory"), "{why}");
    assert_eq!(known("late"), [false, false]);
    std::fs::remove_dir(state.join("volumes.new")).unwrap();
    let well = create("well");
    assert!(well.status.success(), "{}", String::from_utf8_lossy(&well.stderr));
    assert_eq!((known("well"), known("late")), ([true, true], [false, false]));
}
