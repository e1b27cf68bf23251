//! The command line as an operator meets it: on a terminal of 80 columns, and when something is wrong.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use crate::daemon::{Daemon, Place, volume};
use crate::verbs::{fails, good, served, urls};

/// What a command line shows on a terminal so wide, by `script` of util-linux.
fn on_terminal(columns: usize, daemon: &Daemon, line: &str, environment: &[(&str, &str)]) -> String {
    let blockwire = env!("CARGO_BIN_EXE_blockwire");
    let control = daemon.control.display();
    let line = format!("stty rows 24 cols {columns}; {blockwire} {line} --control {control}");
    let mut script = Command::new("script");
    script
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::null())
        .env("TERM", "xterm")
        .env_remove("NO_COLOR");
    script.envs(environment.iter().copied());
    let out = script.output().unwrap();
    String::from_utf8_lossy(&out.stdout).replace('\r', "")
}

/// A load that ends with its test.
struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn without_colour(text: &str) -> String {
    ["\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m"]
        .iter()
        .fold(text.to_owned(), |text, code| text.replace(code, ""))
}

#[test]
fn tables_fit_80_columns_and_colour_says_what_does_not_work() {
    let place = Place::new();
    let names = ["a-database-of-production", "scratch"];
    let config: String = names.iter().map(|name| volume(name, "ram:1M")).collect();
    let daemon = place.serve(&config, &["--nvme", "127.0.0.1:0"]);
    let at = daemon.at;
    let url = format!("iscsi://{at}/iqn.2026-11.io.blockwire:{}/0", names[0]);
    good(&["reserve", &url, "register", "--key", "1"]);
    daemon.ask("path set scratch --state inaccessible");
    let nvme = urls(&daemon, names[0])[1].clone();
    let _load = Load(
        Command::new(env!("CARGO_BIN_EXE_blockwire"))
            .args(["bench", &nvme, "--runtime=60", "--rate_iops=10"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    daemon.connections(2);
    let lists = "volume list, target list, subsystem list, session list, connection list, shard list, path list, \
        reservation list, reservation show a-database-of-production, volume show a-database-of-production, status";
    for line in lists.split(", ") {
        let shown = on_terminal(80, &daemon, line, &[]);
        let plain = without_colour(&shown);
        assert!(plain.lines().all(|line| line.chars().count() <= 80), "{line}:\n{plain}");
        assert!(plain.lines().count() >= 2 && !plain.contains('\x1b'), "{line}:\n{plain}");
        let piped = daemon.run(line).stdout;
        assert!(!piped.is_empty() && !piped.contains(&b'\x1b'), "{line}");
    }
    let shown = on_terminal(80, &daemon, "path list", &[]);
    assert!(shown.contains("\x1b[31minaccessible\x1b[0m"), "{shown:?}");
    for quiet in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let shown = on_terminal(80, &daemon, "path list", &[quiet]);
        assert!(!shown.contains('\x1b') && shown.contains("inaccessible"), "{quiet:?}: {shown:?}");
    }
    // Without a terminal each row is a line, which names its target too.
    let piped = daemon.ask("path list");
    assert!(piped.lines().any(|line| line.contains("inaccessible") && line.contains(":scratch")), "{piped}");
}

#[test]
fn bench_says_on_a_terminal_how_far_it_is() {
    let (_place, daemon) = served();
    let line = format!(
        "-qec '{} bench {} --runtime=2' /dev/null",
        env!("CARGO_BIN_EXE_blockwire"),
        urls(&daemon, "a")[0]
    );
    let out = Command::new("sh").args(["-c", &format!("script {line} </dev/null")]).output().unwrap();
    let shown = String::from_utf8_lossy(&out.stdout);
    assert!(shown.contains(" of 2 s: ") && shown.contains(" IOPS, "), "{shown:?}");
    assert!(shown.contains("bench: ") && shown.contains(" I/Os in "), "{shown:?}");
}

#[test]
fn another_protocols_port_is_said_to_be_that() {
    let (_place, daemon) = served();
    let [iscsi, nvme] = urls(&daemon, "a");
    let (at, nvme_at) = (daemon.at.to_string(), daemon.nvme.unwrap().to_string());
    fails(&["info", &iscsi.replace(&at, &nvme_at)], 1, "this port may speak another protocol");
    fails(&["info", &nvme.replace(&nvme_at, &at)], 1, "is it an NVMe/TCP port?");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = iscsi.replace(&at, &silent.local_addr().unwrap().to_string());
    fails(&["info", &format!("{url}?open_timeout=500ms")], 33, "on this port speaks iSCSI");
}

#[test]
fn a_refusal_says_by_whose_fault_and_what_to_do() {
    let place = Place::new();
    let secret = place.write("secret", "a secret of 16 b");
    let config =
        volume("a", "ram:1M") + "[auth]\nchap = [{ user = \"joe\", secret = \"a secret of 16 b\" }]\n";
    let daemon = place.serve(&config, &[]);
    let at = daemon.at;
    let url = |user: &str, name: &str, rest: &str| {
        format!("iscsi://{user}{at}/iqn.2026-11.io.blockwire:{name}/0{rest}")
    };
    let with_secret = format!("?secret_file={secret}");
    fails(&["info", &url("", "a", "")], 24, "this side gave no user; give a CHAP user name");
    fails(&["info", &url("joe@", "a", "")], 2, "add ?secret_file=FILE or ?secret_env=NAME");
    fails(
        &["info", &url("eve@", "a", &with_secret)],
        24,
        "authentication failure (0201h); compare the CHAP user name",
    );
    fails(&["info", &url("joe@", "b", &with_secret)], 21, "it has no such target (0203h)");
    good(&["info", &url("joe@", "a", &with_secret)]);
}

#[test]
fn a_reservation_that_forbids_is_not_said_to_be_anothers() {
    let (_place, daemon) = served();
    let url = &urls(&daemon, "a")[0];
    good(&["reserve", url, "register", "--key", "1"]);
    good(&["reserve", url, "reserve", "--key", "1", "--type", "exclusive-access-all"]);
    let other = format!("{url}?initiator=iqn.2026-11.test:other");
    fails(&["read", &other, "--length", "512"], 1, "neither holds it nor is registered");
}

#[test]
fn memory_that_is_not_there_is_warned_of_when_a_volume_is_created() {
    let (_place, daemon) = served();
    let out = daemon.run("volume create big=ram:2T --json");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("warning: RAM volumes may grow to"), "{said}");
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(told["warnings"].as_array().map(Vec::len), Some(1), "{told}");
    let out = daemon.run("volume create small=ram:1M");
    assert!(String::from_utf8_lossy(&out.stderr).contains("warning"), "the sum is still too large");
    daemon.ask("volume delete big");
    let out = daemon.run("volume create less=ram:1M");
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_port_that_is_taken_is_said_to_be_and_how_to_see_by_whom() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let (exit, said) = place.refused(&["--volume", "x=ram:1M", "--iscsi", &at.to_string()]);
    assert_eq!(exit, Some(1), "{said}");
    assert!(said.contains("another program uses the port") && said.contains("ss -ltnp"), "{said}");
}
