//! The daemon's own sandbox, seen from outside, in both worlds.

use std::fs;

use crate::daemon::{Daemon, Place, volume, worlds};
use crate::host::{Host, Names};

/// What the kernel says of each thread of it.
fn of_threads(daemon: &Daemon, key: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let status = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("status")).unwrap_or_default();
    let threads = threads.map(|thread| status(thread.unwrap())).filter(|status| !status.is_empty());
    let line = |status: String| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_owned();
    threads.map(|status| line(status).trim_matches([':', '\t', ' ']).to_owned()).collect()
}

fn refusal(daemon: &Daemon, line: &str) -> String {
    let out = daemon.run(line);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "{line}: {said}");
    said
}

/// Whether the kernel has it: then files are restricted.
fn has_landlock(daemon: &Daemon) -> bool {
    let has = daemon.ask_json("status")["sandbox"]["landlock_abi"].is_u64();
    assert!(has || daemon.log().contains("no landlock"), "{}", daemon.log());
    has
}

#[test]
fn a_daemon_serves_in_its_sandbox_and_opens_nothing_else() {
    for world in worlds() {
        let (place, elsewhere) = (Place::new(), Place::new());
        let config = volume("one", "file:one.img,size=4M");
        let daemon = place.serve(&config, &["--io", world, "--nvme", "127.0.0.1:0"]);
        let mut host = Host::ready(daemon.nvme.unwrap(), &Names::of("one"));
        host.write(3, &[7; 512]).good();
        assert_eq!(host.read(3).good(), [7; 512]);
        let (filters, privileges) = (of_threads(&daemon, "Seccomp:"), of_threads(&daemon, "NoNewPrivs:"));
        assert!(filters.len() > 3 && filters.iter().all(|mode| mode == "2"), "{world}: {filters:?}");
        assert!(privileges.iter().all(|set| set == "1"), "{world}: {privileges:?}");
        let status = daemon.ask_json("status");
        assert_eq!((&status["io"], &status["sandbox"]["seccomp"]), (&world.into(), &true.into()));
        assert!(daemon.ask("status").contains("system calls (seccomp)"));
        daemon.ask(&format!("volume create near=file:{},size=1M", place.path("near.img").display()));
        if !has_landlock(&daemon) {
            continue;
        }
        let far = elsewhere.path("far.img");
        let said = refusal(&daemon, &format!("volume create far=file:{},size=1M", far.display()));
        assert!(said.contains("far.img") && said.contains("`paths` in [sandbox]"), "{said}");
        let next = config.clone() + &volume("far", &format!("file:{},size=1M", far.display()));
        let said = refusal(&daemon, &format!("apply {}", place.write("next.toml", &next)));
        assert!(said.contains("nothing was changed") && said.contains("`paths` in [sandbox]"), "{said}");
        let key = elsewhere.write("web.key", "DHHC-1:00:none:");
        let next = config.clone() + &format!("[auth]\ndhchap_key_file = \"{key}\"\n");
        let said = refusal(&daemon, &format!("apply {}", place.write("next.toml", &next)));
        assert!(said.contains("web.key") && said.contains("`paths` in [sandbox]"), "{said}");
        assert!(!far.exists());
        assert_eq!(host.read(3).good(), [7; 512]);
        drop((host, daemon));
        // Named at the start, it is had.
        let daemon = place.serve(&(elsewhere.sandbox(&[]) + &config), &["--io", world]);
        daemon.ask(&format!("volume create far=file:{},size=1M", far.display()));
        assert!(far.exists());
        let next = elsewhere.sandbox(&[]).replace("paths", "#paths") + &config;
        let said = refusal(&daemon, &format!("apply {}", place.write("next.toml", &next)));
        assert!(said.contains("[sandbox]") && said.contains("needs a restart"), "{said}");
    }
}

/// A file system that is mounted late, or a directory that is made late, is had all the same.
#[test]
fn a_volume_whose_directory_comes_later_is_retried_in_the_sandbox() {
    let place = Place::new();
    let config = volume("one", "ram:1M") + &volume("late", "file:mounted/late.img,size=1M");
    let daemon = place.serve(&config, &[]);
    assert!(refusal(&daemon, "volume retry late").contains("late.img"));
    fs::create_dir(place.path("mounted")).unwrap();
    daemon.ask("volume retry late");
    assert!(place.path("mounted/late.img").exists());
}

/// librados asks the system for more than the daemon does, and ends the process where it does not get it. Without its
/// library the volume is shown as failed for that.
#[test]
fn an_image_of_a_cluster_that_is_silent_does_not_end_a_daemon_in_its_sandbox() {
    let place = Place::new();
    let cluster = "[global]\nmon host = 127.0.0.1:1\nauth_client_required = none\n";
    let conf = place.write("ceph.conf", cluster);
    let config = volume("one", "ram:1M") + &volume("image", &format!("rbd:pool/image,conf={conf}"));
    let daemon = place.serve(&config, &[]);
    let failed = daemon.ask_json("volume list");
    assert!(of_threads(&daemon, "Seccomp:").iter().all(|mode| mode == "2"));
    let shown = daemon.run("volume show image --json");
    let why = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(why.contains("failed") && failed.as_array().is_some_and(|all| all.len() == 2), "{why}");
    assert_eq!(daemon.ask_json("volume show one")["size_bytes"], 1 << 20);
}

#[test]
fn a_daemon_without_a_sandbox_says_what_turns_it_on_and_opens_any_file() {
    let (place, elsewhere) = (Place::new(), Place::new());
    let daemon = place.serve(&("[sandbox]\n".to_owned() + &volume("one", "ram:1M")), &["--no-sandbox"]);
    assert!(of_threads(&daemon, "Seccomp:").contains(&"0".to_owned()));
    assert!(daemon.ask("status").contains("off; [sandbox] in the configuration"), "{}", daemon.ask("status"));
    let file = elsewhere.path("far.img");
    daemon.ask(&format!("volume create far=file:{},size=1M", file.display()));
}
