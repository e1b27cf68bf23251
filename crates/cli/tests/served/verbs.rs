//! The initiator's verbs, as users type them, against the daemon.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::daemon::{Daemon, Place};

pub fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blockwire")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

pub fn good(arguments: &[&str]) -> Vec<u8> {
    let out = run(arguments);
    assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

pub fn json(arguments: &[&str]) -> Value {
    serde_json::from_slice(&good(arguments)).unwrap()
}

pub fn fails(arguments: &[&str], exit: i32, word: &str) {
    let out = run(arguments);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(exit), "{arguments:?}: {said}");
    assert!(said.contains(word), "{arguments:?}: {said}");
}

pub fn urls(daemon: &Daemon, volume: &str) -> [String; 2] {
    let (iscsi, nvme) = (daemon.at, daemon.nvme.unwrap());
    [
        format!("iscsi://{iscsi}/iqn.2026-11.io.blockwire:{volume}/0"),
        format!("nvme+tcp://{nvme}/nqn.2026-11.io.blockwire:{volume}/1"),
    ]
}

pub const CONFIG: &str =
    "[[volume]]\nname = \"a\"\nsource = \"ram:24M\"\n[[volume]]\nname = \"b\"\nsource = \"ram:24M\"\n";

pub fn served() -> (Place, Daemon) {
    let place = Place::new();
    let daemon = place.serve(CONFIG, &["--nvme", "127.0.0.1:0"]);
    (place, daemon)
}

/// Data with holes and zeroes in it, and an odd end.
fn image(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 20 << 20];
    for (at, byte) in bytes.iter_mut().enumerate() {
        let is_data = (at >> 20) % 3 != 1;
        *byte = if is_data { (at ^ (at >> 9)) as u8 } else { 0 };
    }
    bytes.extend_from_slice(b"the end of it");
    fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn info_says_the_same_over_both_protocols() {
    let (_place, daemon) = served();
    let [iscsi, nvme] = urls(&daemon, "a").map(|url| json(&["info", &url, "--json"]));
    for key in ["uuid", "size_bytes", "block_bytes", "read_only"] {
        assert!(!iscsi[key].is_null(), "{iscsi}");
        assert_eq!(iscsi[key], nvme[key], "{key}");
    }
    assert_eq!(iscsi["size_bytes"], 24 << 20);
    assert_eq!(
        (&iscsi["paths"][0]["protocol"], &nvme["paths"][0]["protocol"]),
        (&"iscsi".into(), &"nvme".into())
    );
    let card = String::from_utf8(good(&["info", &urls(&daemon, "a").join(",")])).unwrap();
    assert!(card.contains("24 MiB") && card.matches("\npath ").count() == 2, "{card}");
}

/// Ends a process that this test began.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_offered_is_watched() {
    use std::io::BufRead;
    let (place, daemon) = served();
    let url = format!("nvme+tcp://{}", daemon.nvme.unwrap());
    let mut watch = Command::new(env!("CARGO_BIN_EXE_blockwire"))
        .args(["discover", &url, "--watch"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(watch.stdout.take().unwrap()).lines();
    let _ended = Ended(watch);
    let mut line = || lines.next().unwrap().unwrap();
    let offered = |name: &str| format!("{url}/nqn.2026-11.io.blockwire:{name}/1");
    assert_eq!([line(), line()], ["a", "b"].map(|name| format!("+ {}", offered(name))));
    let control = format!("--control={}", place.path("control").display());
    good(&["volume", "create", "c=ram:1M", &control]);
    assert_eq!(line(), format!("+ {}", offered("c")));
    good(&["volume", "delete", "c", &control]);
    assert_eq!(line(), format!("- {}", offered("c")));
    fails(&["discover", &format!("iscsi://{}", daemon.at), "--watch"], 2, "no events of discovery");
}

#[test]
fn bytes_go_by_pipes_and_files() {
    let (place, daemon) = served();
    for url in urls(&daemon, "a") {
        let mut child = Command::new(env!("CARGO_BIN_EXE_blockwire"))
            .args(["write", &url, "--offset", "1M"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        // Less than a block at its end: the rest of the block stays as it was.
        child.stdin.take().unwrap().write_all(&[7; 5000]).unwrap();
        assert!(child.wait().unwrap().success());
        let read = good(&["read", &url, "--offset", "1M", "--length", "5120"]);
        assert_eq!((read.len(), &read[..5000], &read[5000..]), (5120, &[7; 5000][..], &[0; 120][..]));
        // As much as was written, though it ends within a block.
        assert_eq!(good(&["read", &url, "--offset", "1M", "--length", "5000"]), [7; 5000]);
        let file = place.path("whole");
        let told = json(&["read", &url, "--output", file.to_str().unwrap(), "--json"]);
        assert_eq!((&told["offset_bytes"], &told["moved_bytes"]), (&0.into(), &(24 << 20).into()));
        assert_eq!(fs::metadata(&file).unwrap().len(), 24 << 20);
        let told = json(&["write", &url, "--input", file.to_str().unwrap(), "--length", "2M", "--json"]);
        assert_eq!(told["moved_bytes"], 2 << 20);
        fails(&["read", &url, "--json"], 2, "--output");
        fails(&["read", &url, "--offset", "24M", "--length", "512"], 2, "beyond its end");
    }
}

#[test]
fn a_volume_is_copied_between_files_and_both_protocols() {
    let (place, daemon) = served();
    let (source, back) = (place.path("source"), place.path("back"));
    let bytes = image(&source);
    let (source, back) = (source.to_str().unwrap(), back.to_str().unwrap());
    let [iscsi, _] = urls(&daemon, "a");
    let [_, nvme] = urls(&daemon, "b");
    // What was there must be gone, where the source has zeroes too.
    good(&["write", &iscsi, "--input", "/dev/urandom", "--length", "24M"]);
    let told = json(&["copy", source, &iscsi, "--verify", "--json"]);
    assert!(told["zeroed_bytes"].as_u64().unwrap() >= 6 << 20, "{told}");
    good(&["copy", &iscsi, &nvme, "--quiet"]);
    good(&["verify", &iscsi, &nvme]);
    good(&["copy", &nvme, back, "--no-sparse"]);
    assert!(fs::read(back).unwrap()[..bytes.len()] == bytes, "other bytes came back");
    good(&["write", &nvme, "--input", source, "--offset", "512", "--length", "512"]);
    fails(&["verify", &iscsi, &nvme], 1, "differs");
    fails(&["copy", &iscsi, &urls(&daemon, "a")[1]], 2, "same volume");
    fails(&["copy", "/no/such/file", &iscsi], 1, "/no/such/file");
}

/// A volume of blocks of 512 bytes need not end where a block of 4096 does.
#[test]
fn the_end_of_a_volume_within_a_larger_block_is_copied() {
    let place = Place::new();
    let config = "[[volume]]\nname = \"small\"\nsource = \"ram:1539584\"\n[[volume]]\nname = \"large\"\n\
        source = \"ram:2M,block=4096\"\n";
    let daemon = place.serve(config, &["--nvme", "127.0.0.1:0"]);
    let bytes: Vec<u8> = (0..1_539_584_usize).map(|at| (at ^ (at >> 9)) as u8 | 1).collect();
    let (file, back) = (place.path("file"), place.path("back"));
    fs::write(&file, &bytes).unwrap();
    let (file, back) = (file.to_str().unwrap(), back.to_str().unwrap());
    for (small, large) in urls(&daemon, "small").iter().zip(urls(&daemon, "large")) {
        good(&["write", small, "--input", file]);
        assert!(good(&["read", small]) == bytes);
        for more in [&["--verify"][..], &["--verify", "--no-sparse"]] {
            good(&["write", &large, "--input", "/dev/urandom", "--length", "2M"]);
            good(&[&["copy", small, &large][..], more].concat());
            let copied = good(&["read", &large]);
            assert!(copied[..bytes.len()] == bytes && copied[bytes.len()..1_540_096].iter().all(|b| *b == 0));
            good(&["copy", small, back, "--verify"]);
            assert!(fs::read(back).unwrap() == bytes);
        }
        good(&["verify", small, file]);
        good(&["write", &large, "--input", file, "--offset", "4096"]);
        assert!(good(&["read", &large, "--offset", "4096", "--length", "1539584"]) == bytes);
        fails(&["copy", &large, small], 2, "make it larger");
    }
}

#[test]
fn a_copy_that_was_ended_goes_on() {
    let (place, daemon) = served();
    let (source, journal) = (place.path("source"), place.path("journal"));
    let bytes = image(&source);
    let [iscsi, _] = urls(&daemon, "a");
    let (source, journal) = (source.to_str().unwrap(), journal.to_str().unwrap());
    // As it was left by one that ended in the middle: the first half is there, the second is not.
    let uuid = json(&["info", &iscsi, "--json"])["uuid"].as_str().unwrap().to_owned();
    good(&["write", &iscsi, "--input", source, "--length", "8M"]);
    let from = crate::refused::identity(Path::new(source));
    let state = serde_json::json!({ "from": from, "to": uuid, "bytes": bytes.len(), "done": 8 << 20 });
    fs::write(journal, state.to_string()).unwrap();
    let told = json(&["copy", source, &iscsi, "--resume", journal, "--verify", "--json"]);
    let moved = told["written_bytes"].as_u64().unwrap() + told["zeroed_bytes"].as_u64().unwrap();
    assert!(moved <= 13 << 20, "it began again: {told}");
    assert!(!Path::new(journal).exists());
    let other = serde_json::json!({ "from": "x", "to": uuid, "bytes": 1, "done": 0 });
    fs::write(journal, other.to_string()).unwrap();
    fails(&["copy", source, &iscsi, "--resume", journal], 2, "another copy");
}

#[test]
fn this_machine_is_one_registrant_over_several_calls() {
    let (_place, daemon) = served();
    for url in urls(&daemon, "a") {
        let report = |words: &[&str]| json(&[&["reserve", &url], words, &["--json"]].concat());
        report(&["register", "--key", "0xabc1"]);
        let held = report(&["reserve", "--key", "0xabc1", "--type", "write-exclusive"]);
        assert_eq!(
            (&held["kind"], &held["registrants"][0]["holder"]),
            (&"write-exclusive".into(), &true.into())
        );
        assert_eq!(held["registrants"][0]["key"], "0x000000000000abc1");
        fails(&["reserve", &url, "release", "--key", "0xdead", "--type", "write-exclusive"], 1, "reserv");
        report(&["release", "--key", "0xabc1", "--type", "write-exclusive"]);
        let after = report(&["unregister", "--key", "0xabc1"]);
        assert_eq!(after["registrants"], serde_json::json!([]));
        fails(&["reserve", &url, "reserve", "--key", "1"], 2, "--type");
    }
}

#[test]
fn load_is_put_on_and_measured() {
    let (place, daemon) = served();
    let both = urls(&daemon, "a");
    let told = json(&["bench", &both[0], &both[1], "--json", "--size=1m", "--rw=randrw"]);
    let job = &told["jobs"][0];
    assert!(
        job["read"]["ios"].as_u64().unwrap() > 10 && job["write"]["ios"].as_u64().unwrap() > 10,
        "{told}"
    );
    assert_eq!(job["errors"], 0);
    // As the usage line has it.
    let told = json(&["bench", &both[0], "--json", "--", "--rw=read", "--runtime=100ms"]);
    assert!(told["jobs"][0]["read"]["ios"].as_u64().unwrap() > 0, "{told}");
    for url in &both {
        let words =
            ["--rw=randwrite", "--bs=8k", "--size=8m", "--iodepth=16", "--numjobs=1", "--verify=crc32c"];
        let told = json(&[&["bench", url, "--json", "--threads", "1"][..], &words].concat());
        assert_eq!(
            (&told["jobs"][0]["write"]["ios"], &told["jobs"][0]["errors"]),
            (&1024.into(), &0.into()),
            "{told}"
        );
    }
    let job = "[global]\niodepth=4\nruntime=200ms\ntime_based\n[r]\nrw=randread\nfilename=/dev/sdb\n[w]\nstonewall\nrw=write\n\
        filename=/dev/sdb\n";
    fs::write(place.path("job.fio"), job).unwrap();
    let file = place.path("job.fio");
    let map = format!("/dev/sdb={}", both[1]);
    let text = String::from_utf8(good(&["bench", "--job", file.to_str().unwrap(), "--map", &map])).unwrap();
    assert!(text.starts_with("r: ") && text.contains("\nw: ") && text.contains(" I/Os in "), "{text}");
    fails(&["bench", &both[0], "--rw=sideways"], 2, "sideways");
    fails(&["bench", &both[0], "--iodeth=4"], 2, "did you mean \"iodepth\"");
}

/// Sessions of one process with one target do not end each other, and what happens is told while it does.
#[test]
fn many_sessions_share_a_load() {
    let (_place, daemon) = served();
    for url in &urls(&daemon, "a") {
        let words =
            ["--sessions", "5", "--events", "--json", "--numjobs=5", "--iodepth=1", "--runtime=600ms"];
        let out = run(&[&["bench", url.as_str()][..], &words].concat());
        let events = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{events}");
        let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert!(told["jobs"][0]["read"]["ios"].as_u64().unwrap() > 10, "{told}");
        let kinds: Vec<serde_json::Value> =
            events.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        assert_eq!((&kinds[0]["event"], &kinds[kinds.len() - 1]["event"]), (&"begin".into(), &"end".into()));
        assert!(kinds.iter().any(|event| event["ios"].as_u64() > Some(0)), "{events}");
    }
    let told = json(&["bench", "local:4m", "--json", "--runtime=100ms", "--rw=randrw"]);
    assert_eq!(told["jobs"][0]["errors"], 0);
    assert!(told["jobs"][0]["read"]["ios"].as_u64().unwrap() > 100, "{told}");
}

/// The smallest experiment gives a record and reports, and leaves nothing behind.
#[test]
fn an_experiment_ends_with_its_report() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("run");
    let words = ["eval", "run", "quick", "--scale", "0.1", "--out", dir.to_str().unwrap(), "--json"];
    let record: serde_json::Value = serde_json::from_slice(&good(&words)).unwrap();
    let points = record["points"].as_array().unwrap();
    let of_bare = points.iter().filter(|point| point["target"] == "bare").count();
    assert_eq!((points.len(), of_bare), (6, 2), "two directions over two protocols, and bare: {record}");
    for point in points {
        assert_eq!(point["runs"].as_array().unwrap().len(), 3);
        assert!(point["runs"][0]["target"]["process"][0].is_number(), "{point}");
    }
    let written = fs::read_to_string(dir.join("record.json")).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&written).unwrap()["preset"], "quick");
    for name in ["report.html", "report.md", "report.csv"] {
        assert!(fs::metadata(dir.join(name)).unwrap().len() > 500, "{name}");
    }
    fails(&["eval", "run", "quik"], 2, "did you mean \"quick\"");
    let secret =
        ["eval", "run", "quick", "--url", "iscsi://me%hidden@127.0.0.1/iqn.2026-11.io.blockwire:a/0"];
    fails(&secret, 2, "secret_file");
    let out = run(&secret);
    assert!(!String::from_utf8_lossy(&out.stderr).contains("hidden"));
    fails(&["eval", "run", "quick", "--out", dir.to_str().unwrap()], 2, "--force");
    assert_eq!(
        fs::read_to_string(dir.join("record.json")).unwrap(),
        written,
        "a refused run changes nothing"
    );
    let (other, force) = (place.path().join("other"), "--force");
    let elsewhere = [
        "eval",
        "run",
        "unified-wire",
        "--target-address",
        "127.0.0.1",
        "--out",
        dir.to_str().unwrap(),
        force,
    ];
    fails(&elsewhere, 1, "this machine alone");
    fails(&["eval", "run", "quick", "--target", "nobody", "--out", other.to_str().unwrap()], 1, "blockwire");
}

#[test]
fn what_is_offered_is_found_and_each_step_is_told() {
    let (_place, daemon) = served();
    for (place, url) in [
        (format!("iscsi://{}", daemon.at), &urls(&daemon, "b")[0]),
        (format!("nvme+tcp://{}", daemon.nvme.unwrap()), &urls(&daemon, "b")[1]),
    ] {
        let told = json(&["discover", &place, "--json"]);
        let found: Vec<&str> =
            told["found"].as_array().unwrap().iter().filter_map(|one| one["url"].as_str()).collect();
        assert!(found.contains(&url.as_str()) && found.len() == 2, "{told}");
        let story = String::from_utf8(good(&["doctor", url])).unwrap();
        assert!(story.contains("healthy: ") && story.contains("target says"), "{story}");
        // Each step has its heading, whether or not it begins with a word of its own.
        let steps = if url.starts_with("iscsi") {
            ["SecurityNegotiation  (", "LoginOperationalNegotiation  (", "INQUIRY"]
        } else {
            ["ICReq  (", "Connect  (", "Identify"]
        };
        assert!(steps.iter().all(|step| story.contains(&format!("\n{step}"))), "{story}");
        let steps = json(&["doctor", url, "--json"]);
        assert_eq!(steps["healthy"], true);
        let wrong = url.replace(":b/", ":nobody/");
        let out = run(&["doctor", &wrong]);
        let story = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(!out.status.success() && story.contains("FAILED"), "{wrong}: {story}");
    }
    // Another protocol's port.
    let wrong = urls(&daemon, "b")[1].replace(&daemon.nvme.unwrap().to_string(), &daemon.at.to_string());
    fails(&["doctor", &wrong], 1, "is it an NVMe/TCP port?");
}

/// A volume that no path serves is not healthy, and its size is not zero.
#[test]
fn what_no_path_serves_is_neither_healthy_nor_known() {
    let (_place, daemon) = served();
    daemon.ask("path set a --state inaccessible");
    let both = urls(&daemon, "a");
    std::thread::scope(|scope| {
        for url in &both {
            scope.spawn(move || {
                let begun = std::time::Instant::now();
                for verb in ["info", "doctor"] {
                    let out = run(&[verb, url]);
                    let (told, why) =
                        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
                    assert!(!out.status.success(), "{verb} {url}: {told}{why}");
                    assert!(why.contains("inaccessible"), "{verb} {url}: {why}");
                    assert!(
                        !told.contains("healthy: ") && !told.contains("(0 bytes)"),
                        "{verb} {url}: {told}"
                    );
                    let out = run(&[verb, url, "--json"]);
                    assert!(!out.status.success(), "{verb} {url} --json");
                    let told = serde_json::from_slice::<Value>(&out.stdout).unwrap_or_default();
                    assert!(told["healthy"] != true && told["size_bytes"] != 0, "{told}");
                }
                assert!(begun.elapsed() < std::time::Duration::from_secs(90), "it was silent for long");
            });
        }
    });
    daemon.ask("path set a --state optimized");
    for url in &both {
        let story = String::from_utf8(good(&["doctor", url])).unwrap();
        assert!(story.contains("\nREAD ") && story.contains("healthy: "), "{story}");
        good(&["info", url]);
    }
}

#[test]
fn exit_codes_say_what_went_wrong() {
    let (_place, daemon) = served();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    fails(&["info", &format!("iscsi://{closed}/iqn.2026-11.io.blockwire:a/0")], 8, "is the target running");
    fails(&["info", "iscsi://h"], 2, "iscsi://");
    fails(&["info", "/dev/sda"], 2, "://");
    let [iscsi, nvme] = urls(&daemon, "a");
    // No such target, unit, subsystem or namespace: nothing is found.
    for wrong in [iscsi.replace(":a/", ":zzz/"), nvme.replace(":a/", ":zzz/")] {
        fails(&["info", &wrong], 21, "zzz");
        fails(&["doctor", &wrong], 21, "");
    }
    fails(&["info", &iscsi.replace(":a/0", ":a/9")], 21, "logical unit");
    fails(&["info", &nvme.replace(":a/1", ":a/9")], 21, "Identify");
    // Somebody takes the connection and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("{}", silent.local_addr().unwrap());
    for url in
        [iscsi.replace(&daemon.at.to_string(), &at), nvme.replace(&daemon.nvme.unwrap().to_string(), &at)]
    {
        let url = format!("{url}?connect_timeout=500ms&open_timeout=1s");
        fails(&["info", &url], 33, "");
        fails(&["doctor", &url], 33, "");
    }
}
