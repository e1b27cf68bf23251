//! Hosts that are blocked, by the operator and by the configuration: their sessions end, and they may not connect.

use iscsi::{initiator::LoginFailure, wire::LoginStatus};

use crate::{
    daemon::{Daemon, Place, volume, wait_until},
    host::{Ended, Host, INVALID_HOST, Names, Queue, Sqe},
    initiator::{HOST, Initiator, wanted},
};

const DISK: &str = "iqn.2026-11.io.blockwire:disk";
const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
const OTHER: &str = "iqn.2026-11.test:other";

fn names(id: u8) -> Names {
    Names { nqn: format!("nqn.2026-11.test:Host{id}"), id: [id; 16], ..Names::of("disk") }
}

/// How a login and a discovery session of an initiator go.
fn logins(daemon: &Daemon, name: &str) -> [Option<LoginFailure>; 2] {
    [Some(DISK), None].map(|target| Initiator::connect(daemon.at, wanted(name, target, None)).err())
}

/// How Connects to the subsystem and to discovery go: the status, 0 if it is let in.
fn connects(daemon: &Daemon, names: &Names) -> [u16; 2] {
    let discovery = Names { subsystem: DISCOVERY.to_owned(), ..names.clone() };
    [names, &discovery].map(|names| Queue::connect(daemon.nvme.unwrap(), names, 0, 0xffff).err().unwrap_or(0))
}

fn assert_let_in(daemon: &Daemon, iqn: &str, nvme: u8) {
    assert_eq!((logins(daemon, iqn), connects(daemon, &names(nvme))), ([None, None], [0, 0]));
}

fn assert_blocked(daemon: &Daemon, iqn: &str, nvme: u8) {
    let refused = || Some(LoginFailure::Refused(LoginStatus::AUTHORIZATION_FAILURE));
    assert_eq!(logins(daemon, iqn), [refused(), refused()]);
    assert_eq!(connects(daemon, &names(nvme)), [INVALID_HOST; 2]);
}

fn is_gone(host: &mut Host) -> bool {
    host.io.command(Sqe::new(2, 1), crate::host::Data::In(512)).is_err()
}

#[test]
fn a_blocked_host_is_cut_off_over_both_protocols_and_after_a_restart_until_it_is_unblocked() {
    let place = Place::new();
    // A redirect must not tell it where to go instead.
    let moved = "[[target]]\nname = \"iqn.2026-11.test:moved\"\nredirect = { to = \"192.0.2.9\" }\n";
    let text = volume("disk", "file:disk.img,size=4M") + moved;
    let daemon = place.serve(&text, &["--nvme", "127.0.0.1:0"]);
    let mut iscsi = Initiator::ready(daemon.at, DISK);
    let mut lookup = Initiator::connect(daemon.at, wanted(HOST, None, None)).unwrap();
    let mut goes = Host::ready(daemon.nvme.unwrap(), &names(1));
    let mut stays = Host::ready(daemon.nvme.unwrap(), &names(2));
    let ptpl_on = 1 << 31 | 1 << 30;
    let good = |ended: Ended| assert_eq!(ended.status, 0);
    good(goes.reserve(0x0d, ptpl_on, [0, 77]));
    good(goes.reserve(0x11, 1 << 8, [77, 0]));
    assert!(daemon.ask("status").starts_with("all is well"), "{}", daemon.ask("status"));

    // NQNs are compared exactly, iSCSI names without regard to case.
    let nqn = &names(1).nqn;
    daemon.ask(&format!("host block {}", nqn.to_lowercase()));
    daemon.ask(&format!("host unblock {}", nqn.to_lowercase()));
    let ended = daemon.ask_json(&format!("host block {nqn}"));
    assert_eq!(ended["sessions"].as_array().unwrap().len(), 1, "{ended}");
    let said = daemon.ask(&format!("host block {}", HOST.to_uppercase()));
    assert!(said.contains(&format!("{HOST} is blocked")), "{said}");
    assert!(is_gone(&mut goes) && !is_gone(&mut stays));
    assert!(iscsi.wait_gone());
    assert!(lookup.wait_gone());
    assert_blocked(&daemon, HOST, 1);
    let to = Initiator::connect(daemon.at, wanted(HOST, Some("iqn.2026-11.test:moved"), None)).err();
    assert_eq!(to, Some(LoginFailure::Refused(LoginStatus::AUTHORIZATION_FAILURE)));
    assert_let_in(&daemon, OTHER, 2);

    // It is said first, and what it has reserved is still its own.
    let status = daemon.run("status");
    let line = String::from_utf8_lossy(&status.stdout).lines().next().unwrap().to_owned();
    assert!(line.contains("blocked host") && status.status.code() == Some(1), "{line}");
    let listed = daemon.ask("host list");
    assert!(listed.contains(nqn) && listed.contains(HOST), "{listed}");
    let reservation = daemon.ask_json("reservation show disk");
    assert_eq!(reservation["registrants"].as_array().unwrap().len(), 1, "{reservation}");
    let conflict = stays.write(0, &[1; 512]).status;
    assert_eq!(conflict, crate::host::RESERVATION_CONFLICT);
    daemon.log_with("the host is blocked");

    // An apply leaves it as it is, and so does a restart.
    let file = place.write("next.toml", &(text.clone() + &volume("two", "ram:1M")));
    daemon.ask(&format!("apply {file}"));
    assert_blocked(&daemon, HOST, 1);
    daemon.kill();
    let daemon = place.serve(&text, &["--nvme", "127.0.0.1:0"]);
    assert_blocked(&daemon, HOST, 1);
    daemon.ask(&format!("host unblock {nqn}"));
    daemon.ask(&format!("host unblock {HOST}"));
    assert_let_in(&daemon, HOST, 1);
    assert!(daemon.ask("status").starts_with("all is well"));
    let out = daemon.run(&format!("host unblock {nqn}"));
    assert!(String::from_utf8_lossy(&out.stderr).contains("is not blocked"));
    let out = daemon.run("host block nobody");
    assert_eq!(out.status.code(), Some(21), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_configuration_blocks_a_host_and_plan_says_whose_sessions_end() {
    let place = Place::new();
    let host = |rest: &str| {
        let names = format!("iqn = [\"{HOST}\"]\nnqn = [\"{}\"]\nboth = true", names(1).nqn);
        let access = "access = [{ target = \"*\" }, { subsystem = \"*\" }]";
        let other =
            format!("[[host]]\nname = \"other\"\niqn = [\"{OTHER}\"]\nnqn = [\"{}\"]\n", self::names(2).nqn);
        let other = other + "both = true\naccess = [{ target = \"*\" }, { subsystem = \"*\" }]\n";
        volume("disk", "ram:4M") + &format!("[[host]]\nname = \"db\"\n{names}\n{access}\n{rest}\n{other}")
    };
    let daemon = place.serve(&host(""), &["--nvme", "127.0.0.1:0"]);
    let mut iscsi = Initiator::ready(daemon.at, DISK);
    let mut goes = Host::ready(daemon.nvme.unwrap(), &names(1));
    let mut stays = Host::ready(daemon.nvme.unwrap(), &names(2));
    let file = place.write("next.toml", &host("blocked = true"));
    let out = daemon.run(&format!("plan {file}"));
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("change host db: blocked") && said.contains("its host is blocked"), "{said}");
    daemon.ask(&format!("apply {file}"));
    assert!(iscsi.wait_gone());
    wait_until(30, || daemon.ask("session list"), || is_gone(&mut goes));
    assert!(!is_gone(&mut stays));
    assert_blocked(&daemon, HOST, 1);
    assert_let_in(&daemon, OTHER, 2);
    let out = daemon.run("host unblock db");
    let why = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && why.contains("blocked = true"), "{why}");
    let shown = daemon.ask("host show db");
    assert!(shown.contains("blocked") && daemon.log().contains("blocked"), "{shown}");

    // By the verb too: then both have to let it in.
    daemon.ask("host block db");
    let file = place.write("next.toml", &host(""));
    daemon.ask(&format!("apply {file}"));
    assert_blocked(&daemon, HOST, 1);
    daemon.ask("host unblock db");
    assert_let_in(&daemon, HOST, 1);
}
