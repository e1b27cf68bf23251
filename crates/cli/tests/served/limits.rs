//! Limits of IOPS and bandwidth, as the counters of a daemon under load show them.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    daemon::{Daemon, Place, volume, worlds},
    verbs::{good, json, urls},
};

const BOTH: [&str; 2] = ["--nvme", "127.0.0.1:0"];

fn standing(daemon: &Daemon) -> Value {
    daemon.ask_json("volume show a")["standing"].clone()
}

/// What has been read, in operations and bytes, and between which moments that was.
fn reads(daemon: &Daemon) -> ([u64; 2], Instant, Instant) {
    let before = Instant::now();
    let standing = standing(daemon);
    let count = |key: &str| standing[key].as_u64().unwrap();
    ([count("reads"), count("read_bytes")], before, Instant::now())
}

/// Reads over both protocols, and looks at the counters meanwhile: in no span of time do they grow by more than
/// `per_second` and `burst` allow. Gives by how much they grew a second.
fn held_to(daemon: &Daemon, which: usize, (per_second, burst): (u64, u64)) -> f64 {
    let both = urls(daemon, "a");
    let load = thread::spawn(move || {
        let words = ["--rw=randread", "--bs=4k", "--iodepth=16", "--runtime=3", "--time_based"];
        good(&[&["bench", &both[0], &both[1]][..], &words].concat());
    });
    let mut seen = vec![reads(daemon)];
    while !load.is_finished() {
        thread::sleep(Duration::from_millis(200));
        seen.push(reads(daemon));
    }
    load.join().unwrap();
    for (at, (first, from, _)) in seen.iter().enumerate() {
        for (last, _, to) in &seen[at + 1..] {
            let allowed = per_second as f64 * to.duration_since(*from).as_secs_f64() + burst as f64;
            let got = last[which] - first[which];
            assert!(got as f64 <= allowed + 1.0, "{got} where {allowed} are allowed");
        }
    }
    let all = reads(daemon).0[which] - seen[0].0[which];
    all as f64 / 3.0
}

#[test]
fn a_volume_under_the_load_of_both_protocols_is_held_to_its_limits_which_change_while_it_is_served() {
    for world in worlds() {
        let place = Place::new();
        let text = "[[volume]]\nname = \"a\"\nsource = \"ram:16M\"\niops_limit = 400\niops_burst = 20\n";
        let daemon = place.serve(text, &[&BOTH[..], &["--io", world]].concat());
        let got = held_to(&daemon, 0, (400, 20));
        assert!(got >= 400.0 * 0.8, "{world}: {got} a second");
        let limits = standing(&daemon)["limits"].clone();
        assert_eq!((&limits["iops_limit"], &limits["iops_burst"]), (&400.into(), &20.into()));
        assert!(limits["throttled"].as_u64().unwrap() > 100, "{limits}");
        assert!(daemon.ask("volume show a").contains("400 IOPS (burst 20)"));

        // Bytes instead of operations.
        let out = daemon.run("volume set a --iops-limit none --bandwidth-limit 4M");
        assert!(
            out.status.success() && String::from_utf8_lossy(&out.stderr).contains("until the daemon exits")
        );
        daemon.log_with("iops_limit none, bandwidth_limit 4194304");
        let got = held_to(&daemon, 1, (4 << 20, (4 << 20) / 10));
        assert!(got >= (4 << 20) as f64 * 0.8, "{world}: {got} bytes a second");
        daemon.ask("volume set a --bandwidth-limit none");
        assert_eq!(standing(&daemon)["limits"], Value::Null);
        let free =
            json(&["bench", &urls(&daemon, "a")[1], "--json", "--rw=randread", "--bs=4k", "--runtime=500ms"]);
        assert!(free["jobs"][0]["read"]["ios"].as_u64().unwrap() > 400, "{free}");
    }
}

#[test]
fn a_host_has_one_limit_over_both_protocols() {
    let place = Place::new();
    let host = |limit: &str| {
        let access = "access = [{ target = \"*\" }, { subsystem = \"*\" }]\nboth = true";
        let host = format!("[[host]]\nname = \"here\"\nsources = [\"127.0.0.0/8\"]\n{access}\n{limit}\n");
        volume("a", "ram:16M") + &host
    };
    let daemon = place.serve(&host("iops_limit = 300"), &BOTH);
    let got = held_to(&daemon, 0, (300, 30));
    assert!(got >= 300.0 * 0.8, "{got} a second");
    assert!(daemon.ask("host show here").contains("300 IOPS (burst 30)"));
    // Another limit disturbs no connection.
    let file = place.write("next.toml", &host("iops_limit = 600\niops_burst = 10"));
    let out = daemon.run(&format!("plan {file}"));
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.code() == Some(0) && said.contains("iops_limit"), "{said}");
    daemon.ask(&format!("apply {file}"));
    let got = held_to(&daemon, 0, (600, 10));
    assert!(got >= 300.0, "{got} a second");
}

#[test]
fn an_apply_changes_the_limits_of_a_volume_and_leaves_those_that_the_operator_set() {
    let place = Place::new();
    let text = |keys: &str| format!("[[volume]]\nname = \"a\"\nsource = \"ram:16M\"\n{keys}\n");
    let daemon = place.serve(&text("iops_limit = 100"), &BOTH);
    let limit = || standing(&daemon)["limits"]["iops_limit"].clone();
    let apply = |text: &str| {
        let file = place.write("next.toml", text);
        let out = daemon.run(&format!("plan {file}"));
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stdout));
        daemon.ask(&format!("apply {file}"));
    };
    apply(&text("iops_limit = 200"));
    assert_eq!(limit(), 200);
    daemon.ask("volume set a --iops-limit 50");
    apply(&(text("iops_limit = 200") + &volume("b", "ram:1M")));
    assert_eq!(limit(), 50, "nothing was said of it");
    apply(&text(""));
    assert_eq!(standing(&daemon)["limits"], Value::Null);
    // One that is created has what its SPEC says.
    daemon.ask("volume create c=ram:1M,iops_limit=70,bandwidth_limit=1M");
    let created = daemon.ask_json("volume show c")["standing"]["limits"].clone();
    assert_eq!((&created["iops_limit"], &created["bandwidth_limit_bytes"]), (&70.into(), &(1 << 20).into()));
    for (line, said) in [
        ("volume set a --iops-burst 5", "without iops_limit"),
        ("volume set a --iops-limit 0", "from 1"),
        ("volume set a --iops-limit 5 --read-only on", "cannot be used with"),
        ("volume set a", "required"),
        ("volume set nothing --iops-limit 5", "no volume \"nothing\""),
        ("volume create d=ram:1M,iops_burst=7", "without iops_limit"),
    ] {
        let out = daemon.run(line);
        let complained = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && complained.contains(said), "{line}: {complained}");
    }
    assert_eq!(standing(&daemon)["limits"], Value::Null);
}
