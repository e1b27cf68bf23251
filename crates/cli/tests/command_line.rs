//! The binary in scripts: its output, and its exit codes.

use std::process::{Command, Output};

fn blockwire(line: &str) -> Output {
    let home = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_blockwire"))
        .args(line.split_whitespace())
        .env("HOME", home.path())
        .env_remove("NOTIFY_SOCKET")
        .current_dir(home.path())
        .output()
        .unwrap()
}

fn check(line: &str, code: i32, stdout: &str, stderr: &str) {
    let out = blockwire(line);
    let (said, complained) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(code), "{line}\n{said}\n{complained}");
    assert!(said.contains(stdout), "{line}: stdout {said}");
    assert!(complained.contains(stderr), "{line}: stderr {complained}");
    if code != 0 {
        assert!(said.is_empty(), "{line}: failures belong on stderr: {said}");
    }
}

#[test]
fn help_and_version() {
    check("--version", 0, "blockwire ", "");
    check("--help", 0, "Examples:", "");
    check("serve --help", 0, "KIND:ARGUMENT[,key=value]...", "");
    check("volume create --help", 0, "blockwire volume create scratch=ram:4G", "");
    let help = blockwire("serve --help");
    let help = String::from_utf8_lossy(&help.stdout);
    let options = "--config --volume --iscsi --control --state --node --cores --io --allow-anonymous";
    for option in options.split(' ') {
        assert!(help.contains(option), "{option}");
    }
}

#[test]
fn wrong_usage_is_exit_2_and_says_what_was_meant() {
    check("", 2, "", "Usage:");
    check("volum list", 2, "", "unknown verb \"volum\"; did you mean \"volume\"?");
    check("volume lst", 2, "", "list");
    check("serve --volum a=ram:1M", 2, "", "--volume");
    check("serve --volume a=rma:1M", 2, "", "did you mean \"ram\"?");
    check("serve --volume a=ram:1M,blok=512", 2, "", "unknown key \"blok\"; did you mean \"block\"?");
    check("serve --volume ram:1M", 2, "", "write NAME=SPEC");
    check("serve --iscsi localhost", 2, "", "is not an address");
    check("serve --http localhost", 2, "", "is not an address");
    check("top --interval 0", 2, "", "is not a number from 0.5 to 3600");
    check("serve --io magic", 2, "", "auto, uring, epoll");
    check("volume resize a 5Q", 2, "", "is not a size");
    check("connection show x", 2, "", "invalid");
    check("upgrade --within 5q", 2, "", "expected a time");
}

#[test]
fn a_source_that_names_nothing_is_a_usage_error() {
    check("serve --volume a=rbd:p", 2, "", "does not name an image");
}

#[test]
fn without_a_daemon_every_verb_says_where_it_looked() {
    let verbs = "status, top --once, stop, volume list, connection list --json, session list, target list, shard list, \
        subsystem list, host list, reservation list, path list, plan, apply x.toml, rollback, upgrade";
    for verb in verbs.split(", ") {
        check(
            &format!("{verb} --control none.sock"),
            1,
            "",
            "no daemon answers at none.sock; start one with `blockwire serve`",
        );
    }
}

/// Who asks for JSON gets failures as JSON: on stderr, one object on one line.
#[test]
fn failures_are_json_where_json_is_asked_for() {
    let lines = [
        ("volume list --json --control none.sock", 1, "failure", "daemon"),
        ("status --json --control none.sock", 1, "failure", "daemon"),
        (
            "attach --daemon --json --control none.sock iscsi://127.0.0.1/iqn.2026-11.x:y/0",
            1,
            "failure",
            "daemon",
        ),
        ("volume list --json --colour", 2, "usage", "caller"),
        ("info --json iscsi://h", 2, "usage", "caller"),
        ("discover --json iscsi://127.0.0.1:1", 8, "connect-timeout", "peer"),
        ("doctor --json /dev/null", 2, "usage", "caller"),
        ("read --json nvme+tcp://127.0.0.1:1/nqn.2026-11.x:y/1 --output out", 8, "connect-timeout", "peer"),
        ("copy --json none out", 1, "failure", "unknown"),
        ("bench --json iscsi://127.0.0.1:1/iqn.2026-11.x:y/0 --iodeth=4", 2, "usage", "caller"),
        ("eval compare --json none none", 1, "failure", "unknown"),
    ];
    for (line, exit, code, fault) in lines {
        let out = blockwire(line);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(exit), "{line}: {said}");
        let value: serde_json::Value =
            serde_json::from_str(&said).unwrap_or_else(|why| panic!("{line}: {why}: {said}"));
        let error = &value["error"];
        assert_eq!((&error["code"], &error["fault"]), (&code.into(), &fault.into()), "{line}: {said}");
        assert_eq!(error["exit_code"], exit, "{line}: {said}");
        let texts = ["message", "next"].map(|name| error[name].as_str().unwrap_or_default());
        assert!(texts.iter().all(|text| !text.is_empty()), "{line}: {said}");
    }
}

#[test]
fn experiments_are_listed_with_their_papers_figures() {
    check("eval list", 0, "High Performance iSCSI at 100GbE", "");
    check("eval list nvme-tcp-latency", 0, "130.61 us          remote latency, read, kernel, NIC to NIC", "");
    check("eval list --slips", 0, "demartek.target-oltp-effectiveness", "");
    check("eval list quik", 2, "", "there is no preset \"quik\"; did you mean \"quick\"?");
    let all = blockwire("eval list --json");
    let all = String::from_utf8(all.stdout).unwrap();
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    let vdbench = all.as_array().unwrap().iter().find(|one| one["id"] == "demartek-vdbench").unwrap();
    assert_eq!(vdbench["paper"]["by"], "Demartek");
    let figures = vdbench["figures"].as_array().unwrap();
    let write = figures.iter().find(|one| one["id"] == "demartek.target-write-effectiveness").unwrap();
    assert_eq!(write["printed"], "+185 %");
    assert!(
        write["slip"]
            .as_str()
            .unwrap()
            .contains("+43 % (IOPS, 4K write, offloaded over software target) over"),
        "{write}"
    );
}

#[test]
fn configuration_errors_are_exit_2_with_their_place() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("blockwire.toml");
    std::fs::write(&path, "[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n[[target]]\nname = \"iqn.2026-11.io:a\"\nluns2 = []\n").unwrap();
    let want = format!("{}:6:1: unknown key \"luns2\" in [[target]]; did you mean \"luns\"?", path.display());
    check(&format!("serve --config {} --state s --control c", path.display()), 2, "", &want);
}

#[test]
fn completions_and_man_pages_come_from_the_same_command_line() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        check(&format!("completions {shell}"), 0, "blockwire", "");
    }
    let root = tempfile::tempdir().unwrap();
    check(&format!("man {}/man", root.path().display()), 0, "", "");
    let page = std::fs::read_to_string(root.path().join("man/blockwire-serve.1")).unwrap();
    assert!(page.contains("allow\\-anonymous") && page.contains("ram:SIZE"), "{page}");
    for name in ["blockwire.1", "blockwire-volume-create.1", "blockwire-status.1"] {
        assert!(root.path().join("man").join(name).exists(), "{name}");
    }
}
