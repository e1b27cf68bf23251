//! One volume over both protocols, and the verbs for it.

use iscsi::{
    chap::{Algorithm, ChapAccount, Secret},
    initiator::Credentials,
};
use serde_json::Value;

use crate::{
    daemon::{Daemon, Place, worlds},
    host::{ANA_INACCESSIBLE, Host, INVALID_HOST, Names, Queue, RESERVATION_CONFLICT, WRITE_PROTECTED},
    initiator::{Data, HOST, Initiator, wanted},
};

const DISK: &str = "[[volume]]\nname = \"disk\"\nsource = \"ram:8M\"\n";
const TARGET: &str = "iqn.2026-11.io.blockwire:disk";
const BOTH: [&str; 2] = ["--nvme", "127.0.0.1:0"];

fn both(daemon: &Daemon) -> (Initiator, Host) {
    (Initiator::ready(daemon.at, TARGET), Host::ready(daemon.nvme.unwrap(), &Names::of("disk")))
}

/// Takes unit attentions, and then does the command.
fn settled(session: &mut Initiator, cdb: &[u8]) -> (u8, Option<(u8, u8, u8)>) {
    loop {
        let ended = session.command(0, cdb, Data::None).unwrap();
        if ended.sense.is_none_or(|sense| sense.0 != 6) {
            return (ended.status, ended.sense);
        }
    }
}

#[test]
fn both_protocols_stand_side_by_side() {
    for world in worlds() {
        let place = Place::new();
        let daemon = place.serve(DISK, &[&BOTH[..], &["--io", world]].concat());
        let (mut session, mut host) = both(&daemon);
        session.write(0, 5, &[0x5a; 512]).unwrap().good();
        assert_eq!(host.read(5).good(), [0x5a; 512]);
        host.write(6, &[0xa5; 512]).good();
        assert_eq!(session.read(0, 6, 1).unwrap().good(), [0xa5; 512]);

        let subsystems = daemon.ask_json("subsystem list");
        assert_eq!(subsystems[0]["nqn"], "nqn.2026-11.io.blockwire:disk");
        assert_eq!((&subsystems[0]["controllers"], &subsystems[0]["open"]), (&1.into(), &true.into()));
        let shown = daemon.ask("subsystem show disk");
        assert!(shown.contains("nqn.2026-11.io.blockwire:disk") && shown.contains("disk"), "{shown}");
        assert_eq!(daemon.run("subsystem show other").status.code(), Some(21));

        let list = daemon.ask_json("connection list");
        let list: Vec<&Value> = list.as_array().unwrap().iter().collect();
        let of = |protocol: &str| list.iter().filter(|one| one["protocol"] == protocol).count();
        assert_eq!((of("iscsi"), of("nvme")), (1, 2), "{list:#?}");
        for one in &list {
            let (received, sent) = (one["received_bytes"].as_u64(), one["sent_bytes"].as_u64());
            let io = one["queue"].is_null() || one["cid"] == 1;
            assert!(received.unwrap() > if io { 512 } else { 72 }, "{one:#?}");
            assert!(sent.unwrap() > if io { 512 } else { 24 }, "{one:#?}");
            let card = daemon.ask(&format!("connection show {}", one["id"]));
            let known = if one["protocol"] == "nvme" { "in capsule" } else { "bursts" };
            assert!(card.contains(known) && card.contains("received"), "{card}");
        }
        let io = list.iter().find(|one| one["queue"].is_object() && one["cid"] == 1).unwrap();
        assert_eq!((&io["queue"]["reads"], &io["queue"]["written_bytes"]), (&1.into(), &512.into()));
        let sessions = daemon.ask_json("session list");
        let controller = sessions.as_array().unwrap().iter().find(|one| one["protocol"] == "nvme").unwrap();
        assert_eq!(controller["hostid"], "07070707-0707-0707-0707-070707070707");
        assert_eq!(controller["connections"], 2);
    }
}

#[test]
fn a_volume_becomes_read_only_and_writable_again_over_both() {
    let place = Place::new();
    let daemon = place.serve(DISK, &BOTH);
    let (mut session, mut host) = both(&daemon);
    let protected =
        |daemon: &Daemon| daemon.ask_json("volume show disk")["standing"]["write_protected"].clone();
    assert_eq!(protected(&daemon), false);
    daemon.ask("volume set disk --read-only on");
    assert_eq!(protected(&daemon), true);
    assert_eq!(host.write(1, &[1; 512]).status, WRITE_PROTECTED);
    settled(&mut session, &[0; 6]);
    let denied = session.write(0, 1, &[1; 512]).unwrap();
    assert_eq!((denied.status, denied.sense.map(|sense| (sense.0, sense.1))), (2, Some((7, 0x27))));
    assert_eq!(host.read(1).good(), [0; 512], "reads go on");
    daemon.ask("volume set disk --read-only off");
    assert_eq!(protected(&daemon), false);
    host.write(1, &[2; 512]).good();
    settled(&mut session, &[0; 6]);
    session.write(0, 2, &[3; 512]).unwrap().good();
    assert_eq!(daemon.run("volume set other --read-only on").status.code(), Some(21));
}

#[test]
fn a_path_is_closed_and_opened_over_both() {
    let place = Place::new();
    let daemon = place.serve(DISK, &BOTH);
    let (mut session, mut host) = both(&daemon);
    let states = |daemon: &Daemon| {
        let list = daemon.ask_json("path list disk");
        let one = |path: &Value| (path["protocol"].clone(), path["state"].clone());
        list.as_array().unwrap().iter().map(one).collect::<Vec<_>>()
    };
    let all = |state: &str| vec![("iscsi".into(), state.into()), ("nvme".into(), state.into())];
    assert_eq!(states(&daemon), all("optimized"));
    daemon.ask("path set disk --state inaccessible");
    assert_eq!(states(&daemon), all("inaccessible"));
    assert_eq!(host.read(0).status, ANA_INACCESSIBLE);
    assert_eq!(settled(&mut session, &[0; 6]), (2, Some((2, 4, 12))));
    let ports = daemon.ask_json("path list disk");
    let nvme = ports.as_array().unwrap().iter().find(|path| path["protocol"] == "nvme").unwrap();
    daemon.ask(&format!("path set disk --port {} --state optimized", nvme["port"]));
    host.read(0).good();
    assert_eq!(settled(&mut session, &[0; 6]), (2, Some((2, 4, 12))), "the other port stays closed");
    // Standby serves no blocks, but reservations; over NVMe it is inaccessible.
    daemon.ask("path set disk --state standby");
    assert_eq!(states(&daemon), all("standby"));
    assert_eq!(host.read(0).status, ANA_INACCESSIBLE);
    assert_eq!(settled(&mut session, &[0; 6]), (2, Some((2, 4, 11))));
    let keys = session.command(0, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0], Data::In(8)).unwrap();
    assert_eq!(keys.status, 0, "PERSISTENT RESERVE IN: {keys:?}");
    daemon.ask("path set disk --state optimized");
    assert_eq!(settled(&mut session, &[0; 6]), (0, None));
    let preferred = |daemon: &Daemon| {
        let list = daemon.ask_json("path list disk");
        list.as_array().unwrap().iter().map(|path| path["preferred"] == true).collect::<Vec<_>>()
    };
    daemon.ask(&format!("path set disk --port {} --preferred on", nvme["port"]));
    assert_eq!(preferred(&daemon), [false, true]);
    assert_eq!(states(&daemon), all("optimized"));
    assert_eq!(daemon.run("path set disk --state closed").status.code(), Some(2));
    assert_eq!(daemon.run("path set disk --port 99 --state optimized").status.code(), Some(21));
}

/// A file, since a RAM volume is another one at each start.
#[test]
fn path_states_and_protection_outlast_the_daemon() {
    let place = Place::new();
    let config = "[[volume]]\nname = \"disk\"\nsource = \"file:disk.img,size=1M\"\n";
    let daemon = place.serve(config, &BOTH);
    let ports = daemon.ask_json("path list disk");
    let of = |protocol: &str| {
        let path = ports.as_array().unwrap().iter().find(|path| path["protocol"] == protocol).unwrap();
        path["port"].clone()
    };
    daemon.ask(&format!("path set disk --port {} --state inaccessible --preferred on", of("iscsi")));
    daemon.ask("volume set disk --read-only on");
    daemon.kill();
    let daemon = place.serve(config, &BOTH);
    let mut session = Initiator::connect(daemon.at, wanted(HOST, Some(TARGET), None)).unwrap();
    let mut host = Host::ready(daemon.nvme.unwrap(), &Names::of("disk"));
    assert_eq!(settled(&mut session, &[0; 6]), (2, Some((2, 4, 12))));
    assert_eq!(host.read(1).good(), [0; 512]);
    assert_eq!(host.write(1, &[1; 512]).status, WRITE_PROTECTED);
    assert_eq!(daemon.ask_json("volume show disk")["standing"]["write_protected"], true);
    let kept = daemon.ask_json("path list disk");
    let preferred = kept.as_array().unwrap().iter().filter(|path| path["preferred"] == true);
    assert_eq!(preferred.map(|path| path["protocol"].clone()).collect::<Vec<_>>(), ["iscsi"]);
    daemon.ask("path set disk --state optimized");
    daemon.ask("volume set disk --read-only off");
    daemon.kill();
    let daemon = place.serve(config, &BOTH);
    let (mut session, mut host) = both(&daemon);
    assert_eq!(settled(&mut session, &[0; 6]), (0, None));
    host.write(1, &[1; 512]).good();
}

#[test]
fn a_reservation_of_one_protocol_binds_the_other_and_is_shown() {
    let place = Place::new();
    let daemon = place.serve(DISK, &BOTH);
    let (mut session, mut host) = both(&daemon);
    assert_eq!(daemon.ask_json("reservation show disk")["kind"], Value::Null);
    host.reserve(0x0d, 0, [0, 0xabc]).good();
    host.reserve(0x11, 1 << 8, [0xabc, 0]).good();
    let shown = daemon.ask_json("reservation show disk");
    assert_eq!(
        (&shown["kind"], &shown["holder"]),
        (&"write-exclusive".into(), &"nqn.2026-11.test:host".into())
    );
    let one = &shown["registrants"][0];
    assert_eq!((&one["protocol"], &one["holder"]), (&"nvme".into(), &true.into()));
    assert_eq!(one["key"], "0x0000000000000abc");
    assert_eq!(one["hostid"], "07070707-0707-0707-0707-070707070707");
    assert!(daemon.ask("reservation list").contains("write-exclusive"));
    settled(&mut session, &[0; 6]);
    assert_eq!(session.write(0, 0, &[1; 512]).unwrap().status, 0x18);

    // The initiator registers and preempts; then the host is out.
    let mut register = [0; 24];
    register[8..16].copy_from_slice(&0x99_u64.to_be_bytes());
    session.command(0, &[0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0], Data::Out(&register)).unwrap().good();
    let mut preempt = [0; 24];
    preempt[..8].copy_from_slice(&0x99_u64.to_be_bytes());
    preempt[8..16].copy_from_slice(&0xabc_u64.to_be_bytes());
    session.command(0, &[0x5f, 4, 3, 0, 0, 0, 0, 0, 24, 0], Data::Out(&preempt)).unwrap().good();
    assert_eq!(host.write(0, &[1; 512]).status, RESERVATION_CONFLICT);
    let shown = daemon.ask_json("reservation show disk");
    assert_eq!(
        (&shown["kind"], &shown["registrants"][0]["protocol"]),
        (&"exclusive-access".into(), &"iscsi".into())
    );
    assert_eq!(shown["registrants"].as_array().unwrap().len(), 1);
}

#[test]
fn a_host_is_known_by_its_name_and_identifier() {
    let place = Place::new();
    let config = format!(
        "{DISK}[[host]]\nname = \"web\"\nnqn = [\"nqn.2026-11.test:host\"]\n\
         hostid = \"07070707-0707-0707-0707-070707070707\"\n\
         access = [{{subsystem = \"nqn.2026-11.io.blockwire:disk\"}}]\n"
    );
    let daemon = place.serve(&config, &BOTH);
    let (at, names) = (daemon.nvme.unwrap(), Names::of("disk"));
    let refused = |names: &Names| Queue::connect(at, names, 0, 0xffff).err();
    assert_eq!(
        refused(&Names { nqn: "nqn.2026-11.test:other".to_owned(), ..names.clone() }),
        Some(INVALID_HOST)
    );
    assert_eq!(refused(&Names { id: [8; 16], ..names.clone() }), Some(INVALID_HOST));
    let mut host = Host::ready(at, &names);
    host.write(0, &[1; 512]).good();
    let shown = daemon.ask_json("host show web");
    assert_eq!(
        (&shown["sessions"], &shown["hostid"]),
        (&1.into(), &"07070707-0707-0707-0707-070707070707".into())
    );
    assert!(daemon.ask("host list").contains("web"));
    assert_eq!(daemon.run("host show db").status.code(), Some(21));
    host.reserve(0x0d, 0, [0, 0xabc]).good();
    assert_eq!(daemon.ask_json("reservation show disk")["registrants"][0]["host"], "web");
    assert!(daemon.log().contains("nqn.2026-11.test:other"), "{}", daemon.log());
}

#[test]
fn a_drawn_secret_is_asked_for() {
    let place = Place::new();
    let path = place.path("web.key");
    let draw = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_blockwire"));
        command.args(["host", "key", "--hash", "sha384"]).arg(&path).output().unwrap()
    };
    let drawn = draw();
    assert!(drawn.status.success() && drawn.stdout.is_empty() && drawn.stderr.is_empty(), "{drawn:?}");
    let again = draw();
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("web.key exists"), "{again:?}");
    let daemon = place.serve(&format!("{DISK}[auth]\ndhchap_key_file = \"web.key\"\n"), &BOTH);
    let mut admin = Queue::connect(daemon.nvme.unwrap(), &Names::of("disk"), 0, 0xffff).unwrap();
    assert_ne!(admin.connected & 0x0002_0000, 0, "authentication in band is asked for");
    let set = crate::host::Sqe::new(0x7f, 0).cdw(11, 0x14).cdw(12, 0x0046_0001);
    let early = admin.command(set, crate::host::Data::None).unwrap();
    assert_eq!(early.status, 0x191, "nothing goes before authentication");
    let secret = std::fs::read_to_string(&path).unwrap();
    assert!(!daemon.log().contains(&secret[10..30]));
    // A host that wants a proof of the controller, which has no key for one.
    let at = path.display();
    let url = format!("nvme+tcp://{}/nqn.2026-11.io.blockwire:disk/1?secret_file={at}", daemon.nvme.unwrap());
    crate::verbs::good(&["info", &url]);
    crate::verbs::fails(&["info", &format!("{url}&mutual_secret_file={at}")], 24, "");
    let said =
        daemon.log_with("no key is configured for that: set dhchap_controller_key_file in its [[host]]");
    assert!(said.contains("subsystem=nqn.2026-11.io.blockwire:disk"), "{said}");
}

#[test]
fn a_connection_says_how_its_initiator_proved_itself() {
    let place = Place::new();
    let secret = "initiator secret";
    let config = format!("{DISK}[auth]\nchap = {{user = \"alice\", secret = \"{secret}\"}}\n");
    let daemon = place.serve(&config, &[]);
    for (algorithm, known) in [(Algorithm::SHA256, "sha256"), (Algorithm::MD5, "md5")] {
        let ours = ChapAccount { name: "alice".to_owned(), secret: Secret::new(secret.as_bytes().to_vec()) };
        let proof = Credentials { ours, target: None, algorithms: vec![algorithm] };
        let session = Initiator::connect(daemon.at, wanted(HOST, Some(TARGET), Some(proof))).unwrap();
        let list = daemon.connections(1);
        assert_eq!((&list[0]["user"], &list[0]["algorithm"]), (&"alice".into(), &known.into()));
        let card = daemon.ask(&format!("connection show {}", list[0]["id"]));
        assert!(card.contains(&format!("alice, by CHAP with {known}")), "{card}");
        session.log_out().unwrap();
    }
}

#[test]
fn sessions_of_both_protocols_are_killed_and_their_hosts_come_again() {
    for world in worlds() {
        let place = Place::new();
        let daemon = place.serve(DISK, &[&BOTH[..], &["--io", world]].concat());
        let (mut session, mut host) = both(&daemon);
        let id = |protocol: &str| {
            let list = daemon.ask_json("session list");
            let found = list.as_array().unwrap().iter().find(|one| one["protocol"] == protocol).cloned();
            found.map(|one| one["id"].to_string())
        };
        // RESERVE(6) holds as long as the nexus.
        assert_eq!(settled(&mut session, &[0x16, 0, 0, 0, 0, 0]).0, 0);
        assert_eq!(host.write(1, &[1; 512]).status, RESERVATION_CONFLICT);

        let ended = daemon.ask_json(&format!("session kill {}", id("iscsi").unwrap()));
        assert_eq!((&ended[0]["initiator"], ended.as_array().unwrap().len()), (&HOST.into(), 1));
        assert_eq!(id("iscsi"), None, "when it is reported it has ended");
        assert!(session.write(0, 2, &[2; 512]).is_err());
        host.write(1, &[1; 512]).good();

        let name = daemon.ask_json("session list")[0]["initiator"].as_str().unwrap().to_owned();
        let said = daemon.ask(&format!("session kill --initiator {name}"));
        assert!(said.contains(&name) && said.contains("has ended"), "{said}");
        assert_eq!(id("nvme"), None);
        let write = crate::host::Sqe::new(1, 1).cdw(10, 3);
        assert!(host.io.command(write, crate::host::Data::Out(&[3; 512])).is_err());

        for line in ["session kill 7", "session kill 65999", "session kill --initiator iqn.2026-11.x:nobody"]
        {
            assert_eq!(daemon.run(line).status.code(), Some(21), "{line}");
        }
        assert_eq!(daemon.run("session kill").status.code(), Some(2), "it says which");
        let (mut session, mut host) = both(&daemon);
        assert_eq!(session.read(0, 1, 1).unwrap().good(), [1; 512]);
        assert_eq!((host.read(2).good(), host.read(3).good()), (vec![0; 512], vec![0; 512]));
    }
}

/// What was answered as written before the session was killed is there.
#[test]
fn a_session_that_is_killed_while_it_writes_was_told_nothing_that_is_not_so() {
    let place = Place::new();
    let daemon = place.serve(DISK, &BOTH);
    let (mut session, mut host) = both(&daemon);
    let begun = std::sync::Barrier::new(3);
    let block = |at: u32| [(at % 251 + 1) as u8; 512];
    let (by_session, by_host) = std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            begun.wait();
            (0..4000)
                .take_while(|at| {
                    session.write(0, u64::from(*at), &block(*at)).is_ok_and(|ended| ended.status == 0)
                })
                .count() as u32
        });
        let second = scope.spawn(|| {
            begun.wait();
            (8000..12_000_u32)
                .take_while(|at| {
                    let write = crate::host::Sqe::new(1, 1).cdw(10, *at);
                    let ended = host.io.command(write, crate::host::Data::Out(&block(*at)));
                    ended.is_ok_and(|ended| ended.status == 0)
                })
                .count() as u32
        });
        begun.wait();
        std::thread::sleep(std::time::Duration::from_millis(30));
        let list = daemon.ask_json("session list");
        for one in list.as_array().unwrap() {
            daemon.ask(&format!("session kill {}", one["id"]));
        }
        (first.join().unwrap(), second.join().unwrap())
    });
    let mut host = Host::ready(daemon.nvme.unwrap(), &Names::of("disk"));
    for at in (0..by_session).chain(8000..8000 + by_host) {
        assert_eq!(host.read(at).good(), block(at), "block {at} of {by_session} and {by_host}");
    }
}
