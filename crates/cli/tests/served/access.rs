//! Which hosts are admitted or redirected, and the log of it.

use std::{net::TcpStream, time::Duration};

use iscsi::{
    initiator::LoginFailure,
    wire::{Cid, LoginStatus},
};

use crate::{
    daemon::{Place, a_core, worlds},
    initiator::{Data, HOST, Initiator, proof, wanted},
};

const DISK: &str = "iqn.2026-11.test:disk";

/// A target with one disk; `target` are more of its keys, `rest` what stands beside it.
fn one_disk(target: &str, rest: &str) -> String {
    format!(
        r#"
[[volume]]
name = "disk"
source = "ram:1M"
[[target]]
name = "{DISK}"
luns = [{{ lun = 0, volume = "disk" }}]
{target}
{rest}
"#
    )
}

const SECRETS: [&str; 5] =
    ["initiator secret", "the target's secret", "another secret", "discovery secret", "a wrong secret!!"];

fn guarded() -> String {
    let [own, mutual, other, discovery, _] = SECRETS;
    let rest = format!(
        r#"
[[host]]
name = "host"
iqn = ["{HOST}"]
access = [{{ target = "{DISK}" }}]
chap = {{ user = "alice", secret = "{own}", mutual_user = "rack", mutual_secret = "{mutual}" }}
[[host]]
name = "other"
iqn = ["iqn.2026-11.test:other"]
access = [{{ target = "{DISK}" }}]
chap = {{ user = "bob", secret = "{other}" }}
[auth]
discovery = {{ user = "dora", secret = "{discovery}" }}
[limits]
sessions = 2
login_timeout = 1
"#
    );
    one_disk("", &rest)
}

#[test]
fn passwords_open_what_they_are_for_and_nothing_else() {
    let place = Place::new();
    let daemon = place.serve(&guarded(), &[]);
    let [own, mutual, other, discovery, wrong] = SECRETS;
    let disk = |name: &str, credentials| {
        Initiator::connect(daemon.at, wanted(name, Some(DISK), credentials)).map(|session| session.log_out())
    };
    disk(HOST, proof("alice", own, None)).unwrap().unwrap();
    disk(HOST, proof("alice", own, Some(("rack", mutual)))).unwrap().unwrap();
    disk("iqn.2026-11.test:other", proof("bob", other, None)).unwrap().unwrap();
    let denied = Err(LoginFailure::Refused(LoginStatus::AUTHENTICATION_FAILURE));
    let failed = |name: &str, credentials| disk(name, credentials).map(drop);
    assert_eq!(failed(HOST, proof("alice", wrong, None)), denied);
    assert_eq!(failed(HOST, proof("nobody", wrong, None)), denied, "an unknown user sees the same");
    assert_eq!(failed(HOST, proof("bob", other, None)), denied, "that is another host's account");
    assert_eq!(failed(HOST, None), Err(LoginFailure::CredentialsMissing), "a password is due");
    let lookup = |credentials| Initiator::connect(daemon.at, wanted(HOST, None, credentials));
    assert!(lookup(proof("alice", own, None)).is_err(), "disks and discovery have their own accounts");
    // The target proves itself with another secret than expected.
    assert!(matches!(
        failed(HOST, proof("alice", own, Some(("rack", wrong)))),
        Err(LoginFailure::Authentication)
    ));
    let mut session = lookup(proof("dora", discovery, None)).unwrap();
    let text = session.send_targets("All");
    assert!(text.starts_with(&format!("TargetName={DISK}\0TargetAddress=127.0.0.1:")), "{text:?}");
    session.log_out().unwrap();
    let log = daemon.log();
    assert!(log.contains("login failed") && log.contains("did not authenticate"), "{log}");
    assert!(SECRETS.iter().all(|secret| !log.contains(secret)), "{log}");
}

#[test]
fn attack_15_a_source_of_wrong_passwords_waits() {
    let place = Place::new();
    let daemon = place.serve(&guarded(), &["--cores", &a_core()]);
    let guess = || Initiator::connect(daemon.at, wanted(HOST, Some(DISK), proof("alice", SECRETS[4], None)));
    let mut answers = Vec::new();
    for _ in 0..10 {
        match guess() {
            Err(LoginFailure::Refused(status)) => answers.push(status),
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("a wrong password is right"),
        }
    }
    assert_eq!(answers[..6], [LoginStatus::AUTHENTICATION_FAILURE; 6]);
    assert!(answers[6..].contains(&LoginStatus::SERVICE_UNAVAILABLE), "{answers:?}");
    // The right one is put off as well, but not for long.
    let tries = (0..100).find(|_| {
        let right = wanted(HOST, Some(DISK), proof("alice", SECRETS[0], None));
        match Initiator::connect(daemon.at, right) {
            Ok(_) => true,
            Err(LoginFailure::Refused(LoginStatus::SERVICE_UNAVAILABLE)) => {
                std::thread::sleep(Duration::from_millis(50));
                false
            }
            Err(other) => panic!("{other:?}"),
        }
    });
    assert!(tries.is_some());
}

#[test]
fn sessions_are_counted_and_silence_is_cut_off() {
    let place = Place::new();
    let daemon = place.serve(&one_disk("", "[limits]\nsessions = 2\nlogin_timeout = 1"), &[]);
    let session = |name: &str| Initiator::connect(daemon.at, wanted(name, Some(DISK), None));
    let first = session("iqn.2026-11.test:1").unwrap();
    let _second = session("iqn.2026-11.test:2").unwrap();
    let full = LoginFailure::Refused(LoginStatus::OUT_OF_RESOURCES);
    assert_eq!(session("iqn.2026-11.test:3").err(), Some(full.clone()));
    first.log_out().unwrap();
    // The place is free when the session has ended, which is a moment after the answer.
    let again = (0..100).find(|_| {
        std::thread::sleep(Duration::from_millis(10));
        session("iqn.2026-11.test:3").is_ok()
    });
    assert!(again.is_some());
    let mut silent = TcpStream::connect(daemon.at).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut byte = [0];
    assert_eq!(std::io::Read::read(&mut silent, &mut byte).unwrap(), 0, "closed without a word");
}

#[test]
fn targets_that_moved_say_where() {
    let place = Place::new();
    let config = "[[volume]]\nname = \"disk\"\nsource = \"ram:1M\"\n\
         [[target]]\nname = \"iqn.2026-11.test:now\"\nredirect = { to = \"192.0.2.9:3261\" }\n\
         [[target]]\nname = \"iqn.2026-11.test:good\"\nredirect = { to = \"192.0.2.9\", permanent = true }\n";
    let daemon = place.serve(config, &[]);
    for (target, status, to) in [
        ("iqn.2026-11.test:now", LoginStatus::MOVED_TEMPORARILY, "192.0.2.9:3261"),
        ("iqn.2026-11.test:good", LoginStatus::MOVED_PERMANENTLY, "192.0.2.9:3260"),
    ] {
        match Initiator::connect(daemon.at, wanted(HOST, Some(target), None)).err() {
            Some(LoginFailure::Moved(said, address)) => {
                assert_eq!((said, address.without_portal_group_tag().to_string()), (status, to.to_owned()));
            }
            other => panic!("{other:?}"),
        }
    }
    let nowhere = Initiator::connect(daemon.at, wanted(HOST, Some("iqn.2026-11.test:none"), None)).err();
    assert_eq!(nowhere, Some(LoginFailure::Refused(LoginStatus::TARGET_NOT_FOUND)));
}

#[test]
fn who_may_only_read_is_told_so() {
    let place = Place::new();
    let config = format!(
        r#"
[[volume]]
name = "disk"
source = "ram:1M"
[[volume]]
name = "shelf"
source = "ram:1M"
[[volume]]
name = "sealed"
source = "ram:1M,ro=true"
[[target]]
name = "{DISK}"
luns = [
  {{ lun = 0, volume = "disk" }},
  {{ lun = 1, volume = "shelf", ro = true }},
  {{ lun = 2, volume = "sealed" }},
]
[[host]]
name = "reader"
iqn = ["iqn.2026-11.test:reader"]
access = [{{ target = "*", mode = "ro" }}]
[[host]]
name = "writer"
iqn = ["{HOST}"]
access = [{{ target = "*" }}]
"#
    );
    let daemon = place.serve(&config, &["--allow-anonymous"]);
    let mut writer = Initiator::ready(daemon.at, DISK);
    let reader = wanted("iqn.2026-11.test:reader", Some(DISK), None);
    let mut reader = Initiator::connect(daemon.at, reader).unwrap();
    reader.settle(0);
    writer.settle(1);
    writer.settle(2);
    let block = [0x5a; 512];
    writer.write(0, 3, &block).unwrap().good();
    assert_eq!(reader.read(0, 3, 1).unwrap().good(), block);
    let protected = |ended: crate::initiator::Ended| (ended.status, ended.sense.map(|s| (s.0, s.1)));
    assert_eq!(protected(reader.write(0, 3, &block).unwrap()), (2, Some((7, 0x27))));
    assert_eq!(protected(writer.write(1, 3, &block).unwrap()), (2, Some((7, 0x27))));
    assert_eq!(protected(writer.write(2, 3, &block).unwrap()), (2, Some((7, 0x27))));
    // WP of MODE SENSE(6) tells it beforehand.
    let wp = |session: &mut Initiator, lun| {
        let data = session.command(lun, &[0x1a, 8, 0x3f, 0, 255, 0], Data::In(255)).unwrap().good();
        data[2] & 0x80 != 0
    };
    assert_eq!([0, 1, 2].map(|lun| wp(&mut writer, lun)), [false, true, true]);
    assert!(wp(&mut reader, 0));
}

/// libiscsi reads no list in pieces: it must come at once if the initiator takes so much at once.
#[test]
fn a_thousand_targets_are_listed_in_one_piece() {
    let place = Place::new();
    let volume = |at| format!("[[volume]]\nname = \"v{at}\"\nsource = \"null:1M\"\n");
    let config: String = (0..1000).map(volume).collect();
    let daemon = place.serve(&config, &[]);
    let mut session = Initiator::connect(daemon.at, wanted(HOST, None, None)).unwrap();
    let text = session.send_targets("All");
    assert!(text.len() > 64 << 10, "longer than any usual segment");
    let names: Vec<&str> = text.split('\0').filter_map(|pair| pair.strip_prefix("TargetName=")).collect();
    assert_eq!(names.len(), 1000);
    assert_eq!(names[999], "iqn.2026-11.io.blockwire:v999");
    let one = session.send_targets(names[500]);
    assert_eq!(one, format!("TargetName={}\0TargetAddress={},1\0", names[500], daemon.at));
    session.log_out().unwrap();
    // A normal session learns of its own target only.
    let mut session = Initiator::connect(daemon.at, wanted(HOST, Some(names[7]), None)).unwrap();
    let own = format!("TargetName={}\0TargetAddress={},1\0", names[7], daemon.at);
    assert_eq!(session.send_targets(""), own);
    assert_eq!(session.send_targets(names[7]), own);
    assert_eq!(session.send_targets(names[8]), "");
    assert_eq!(session.send_targets("All"), "SendTargets=Reject\0");
}

#[test]
fn attack_17_a_session_is_joined_only_by_its_like() {
    let place = Place::new();
    let rest = format!(
        r#"
[[host]]
name = "host"
iqn = ["{HOST}"]
sources = ["127.0.0.0/8"]
access = [{{ target = "{DISK}" }}]
chap = [{{ user = "alice", secret = "{}" }}, {{ user = "bob", secret = "{}" }}]
"#,
        SECRETS[0], SECRETS[2]
    );
    let daemon = place.serve(&one_disk("max_connections = 2", &rest), &[]);
    let as_user = |user, secret| wanted(HOST, Some(DISK), proof(user, secret, None));
    let mut first = Initiator::connect(daemon.at, as_user("alice", SECRETS[0])).unwrap();
    let join = |user, secret, cid| {
        let mut more = as_user(user, secret);
        (more.tsih, more.cid, more.cmd_sn) = (first.logged.tsih, Cid::new(cid), first.logged.cmd_sn);
        Initiator::connect(daemon.at, more)
    };
    let thief = join("bob", SECRETS[2], 1).err();
    assert_eq!(thief, Some(LoginFailure::Refused(LoginStatus::SESSION_DOES_NOT_EXIST)));
    let usurper = Initiator::connect(daemon.at, as_user("bob", SECRETS[2])).err();
    assert_eq!(usurper, Some(LoginFailure::Refused(LoginStatus::AUTHORIZATION_FAILURE)));
    let second = join("alice", SECRETS[0], 1).unwrap();
    let third = join("alice", SECRETS[0], 2).err();
    assert_eq!(third, Some(LoginFailure::Refused(LoginStatus::TOO_MANY_CONNECTIONS)));
    let sessions = daemon.ask("session list");
    assert!(sessions.contains(" alice ") && sessions.contains(" host "), "{sessions}");
    let id = u64::from(first.logged.tsih.value()) << 16 | 1;
    let card = daemon.ask(&format!("connection show {id}"));
    for line in ["user       alice", "host       host", "unasked    data with the command\n"] {
        assert!(card.contains(line), "{card}");
    }
    assert!(card.contains("allowed    2 connections, 8 commands"), "{card}");
    assert_eq!(daemon.ask("connection list").lines().count(), 3, "a head and two connections");
    first.settle(0);
    drop(second);
    first.read(0, 0, 1).unwrap().good();
}

#[test]
fn portal_groups_lead_to_their_targets() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: there is no IPv6 here");
        return;
    }
    let place = Place::new();
    let rest = r#"
[[volume]]
name = "both"
source = "ram:1M"
[[portal]]
protocol = "iscsi"
address = "127.0.0.1:0"
[[portal]]
protocol = "iscsi"
address = "[::1]:0"
tag = 2
"#;
    let config = one_disk("portals = [2]", rest);
    let daemon = place.serve_on(&config, &[], &[]);
    let [four, six] = daemon.addresses[..] else { panic!("two portals: {:?}", daemon.addresses) };
    let mut session = Initiator::connect(six, wanted(HOST, None, None)).unwrap();
    let both = "iqn.2026-11.io.blockwire:both";
    assert_eq!(
        session.send_targets("All"),
        format!(
            "TargetName={DISK}\0TargetAddress={six},2\0TargetName={both}\0TargetAddress={four},1\0\
             TargetAddress={six},2\0"
        )
    );
    let by = |at, target| Initiator::connect(at, wanted(HOST, Some(target), None)).map(|s| s.logged);
    assert_eq!(by(six, DISK).unwrap().portal_group_tag, Some(2));
    assert_eq!(by(four, both).unwrap().portal_group_tag, Some(1));
    assert_eq!(by(six, both).unwrap().portal_group_tag, Some(2));
    assert_eq!(by(four, DISK).err(), Some(LoginFailure::Refused(LoginStatus::TARGET_NOT_FOUND)));
}

/// A listener takes one family: who comes by the other is not told of it.
#[test]
fn portals_on_all_addresses_are_named_by_the_one_that_was_asked() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: there is no IPv6 here");
        return;
    }
    let place = Place::new();
    let portal =
        |address, tag| format!("[[portal]]\nprotocol = \"iscsi\"\naddress = \"{address}\"\ntag = {tag}\n");
    let config = one_disk("", &(portal("0.0.0.0:0", 1) + &portal("[::]:0", 2)));
    let daemon = place.serve_on(&config, &["--allow-anonymous"], &[]);
    let [four, six] = daemon.addresses[..] else { panic!("two portals: {:?}", daemon.addresses) };
    for (host, port, tag) in [("127.0.0.1", four.port(), 1), ("[::1]", six.port(), 2)] {
        let at = format!("{host}:{port}");
        let mut session = Initiator::connect(at.parse().unwrap(), wanted(HOST, None, None)).unwrap();
        let one = format!("TargetName={DISK}\0TargetAddress={at},{tag}\0");
        assert_eq!(session.send_targets("All"), one);
        session.log_out().unwrap();
    }
}

/// Neither who is silent nor who is refused and stays keeps a descriptor of ours beyond a bound.
#[test]
fn attack_01_strangers_do_not_use_up_the_descriptors() {
    // Both ends of 900 connections, beside what other tests have open.
    engine::descriptors::raise_limit(1, 0);
    let place = Place::new();
    for world in worlds() {
        let config = one_disk("", "[limits]\nlogin_timeout = 600");
        let daemon = place.serve(&config, &["--cores", &a_core(), "--io", world]);
        let at_rest = daemon.descriptors();
        let mut silent = Vec::new();
        for at in 0..900 {
            let mut stream = TcpStream::connect(daemon.at).unwrap();
            if at % 2 == 0 {
                // What is no login is closed at its first header.
                std::io::Write::write_all(&mut stream, &[0x16; 48]).unwrap();
            }
            silent.push(stream);
        }
        Initiator::ready(daemon.at, DISK).log_out().unwrap();
        let held = daemon.descriptors() - at_rest;
        assert!(held < 800, "{world}: {held} descriptors for 900 strangers");
    }
}

#[test]
fn attack_01_silent_strangers_do_not_keep_others_out() {
    let place = Place::new();
    let config = one_disk("", "[limits]\nlogin_timeout = 600");
    let daemon = place.serve(&config, &["--cores", &a_core()]);
    let mut silent: Vec<TcpStream> = (0..700).map(|_| TcpStream::connect(daemon.at).unwrap()).collect();
    Initiator::ready(daemon.at, DISK).log_out().unwrap();
    // The oldest had to go; the youngest may still log in.
    let patience = Some(Duration::from_secs(10));
    silent[0].set_read_timeout(patience).unwrap();
    assert!(matches!(std::io::Read::read(&mut silent[0], &mut [0]), Ok(0) | Err(_)));
    let last = silent.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let kind = std::io::Read::read(last, &mut [0]).map_err(|why| why.kind());
    assert_eq!(kind, Err(std::io::ErrorKind::WouldBlock), "it is open");
}
