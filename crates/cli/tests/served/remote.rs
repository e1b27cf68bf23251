//! The initiator library against the daemon, over both protocols, in both worlds.

use std::time::{Duration, Instant};

use ::client::{ErrorKind, PathState, ReservationOp};
use volume::reservation::{Action, Key, RegistrationRequest, ReservationType};

use crate::daemon::{Place, volume, worlds};
use crate::gateway::{bytes, ours};
use crate::verbs::urls;

const CONFIG: &str = "[[volume]]\nname = \"v\"\nsource = \"ram:64M\"\n";

#[test]
fn what_is_written_over_one_protocol_is_read_over_the_other() {
    for world in worlds() {
        let place = Place::new();
        let daemon = place.serve(CONFIG, &["--nvme", "127.0.0.1:0", "--io", world]);
        let [iscsi, nvme] = urls(&daemon, "v");
        let mut initiator = ours(world);
        let one = initiator.open(&iscsi).unwrap();
        let two = initiator.open(&nvme).unwrap();
        for (from, to, seed) in [(one, two, 1), (two, one, 2)] {
            assert_eq!(initiator.geometry(from).unwrap().capacity_bytes(), 64 << 20);
            // Longer than any command, and than all memory that is taken at once.
            let bytes = bytes(9 << 20, seed);
            initiator.write_at(from, 1 << 20, &bytes).unwrap();
            initiator.flush(from).unwrap();
            let mut read = vec![0; bytes.len()];
            initiator.read_at(to, 1 << 20, &mut read).unwrap();
            assert!(read == bytes, "{world}: other bytes came back");
            initiator.write_zeroes(from, 1 << 20, 4 << 20).unwrap();
            initiator.read_at(to, 1 << 20, &mut read).unwrap();
            assert!(read[..4 << 20].iter().all(|byte| *byte == 0) && read[4 << 20..] == bytes[4 << 20..]);
        }
        let uuid = initiator.info(one).unwrap().uuid;
        assert!(uuid.is_some() && uuid == initiator.info(two).unwrap().uuid, "one volume, one name");
        initiator.close(one).unwrap();
        initiator.close(two).unwrap();
    }
}

#[test]
fn two_protocols_are_two_paths_of_one_volume() {
    let place = Place::new();
    let daemon = place.serve(CONFIG, &["--nvme", "127.0.0.1:0"]);
    let mut initiator = ours("epoll");
    let volume = initiator.open(&urls(&daemon, "v").join(",")).unwrap();
    let begun = Instant::now();
    while initiator.paths(volume).iter().any(|path| path.state != PathState::Up) {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", initiator.paths(volume));
        initiator.turn(Some(Duration::from_millis(100)));
    }
    let bytes = bytes(4 << 20, 3);
    initiator.write_at(volume, 0, &bytes).unwrap();
    let mut read = vec![0; bytes.len()];
    initiator.read_at(volume, 0, &mut read).unwrap();
    assert!(read == bytes);
    let counts: Vec<u64> = initiator.paths(volume).iter().map(|path| path.counts.done).collect();
    assert!(counts.iter().all(|done| *done > 0), "both carried something: {counts:?}");
    initiator.close(volume).unwrap();
}

#[test]
fn reservations_have_the_same_words_over_both() {
    let place = Place::new();
    let daemon = place.serve(CONFIG, &["--nvme", "127.0.0.1:0"]);
    for url in urls(&daemon, "v") {
        let mut initiator = ours("epoll");
        let volume = initiator.open(&url).unwrap();
        let key = Key(0x1234);
        let act = |action| ReservationOp::Change(action);
        let register = RegistrationRequest::new(Some(Key(0)), key);
        initiator
            .run_reservation_op(volume, act(Action::Register(register.clone())))
            .unwrap_or_else(|why| panic!("{url}: {why}"));
        initiator
            .run_reservation_op(
                volume,
                act(Action::Reserve { key: Some(key), kind: ReservationType::WriteExclusive }),
            )
            .unwrap();
        let report = initiator.run_reservation_op(volume, ReservationOp::Report).unwrap().unwrap();
        assert_eq!(
            (report.held, report.registrations.len()),
            (Some(ReservationType::WriteExclusive), 1),
            "{url}"
        );
        assert!(report.registrations[0].holds);
        initiator.run_reservation_op(volume, act(Action::Clear { key: Some(key) })).unwrap();
        initiator.close(volume).unwrap();
    }
}

#[test]
fn what_cannot_be_opened_says_why() {
    let place = Place::new();
    let daemon = place.serve(CONFIG, &["--nvme", "127.0.0.1:0"]);
    let mut initiator = ours("epoll");
    let [iscsi, nvme] = urls(&daemon, "v");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = initiator.open(&format!("iscsi://{closed}/iqn.2026-11.io.blockwire:v/0")).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unreachable, "{refused}");
    assert!(refused.message.contains("is the target running"), "{refused}");
    for url in [iscsi.replace(":v/", ":w/"), nvme.replace(":v/", ":w/"), nvme.replace("/1", "/7")] {
        let why = initiator.open(&url).unwrap_err();
        assert!(!why.message.is_empty() && why.kind != ErrorKind::Usage, "{url}: {why}");
    }
    assert_eq!(initiator.open("iscsi://h/nonsense").unwrap_err().kind, ErrorKind::Usage);
    assert_eq!(initiator.open(&iscsi.replace("/0", "")).unwrap_err().kind, ErrorKind::Usage);
    let volume = initiator.open(&nvme).unwrap();
    let beyond = initiator.read_at(volume, 64 << 20, &mut [0; 512]).unwrap_err();
    assert!(beyond.message.contains("beyond"), "{beyond}");
    assert!(initiator.read_at(volume, 5, &mut [0; 512]).unwrap_err().message.contains("multiples"));
}

/// The target goes away in the middle and comes back: who writes waits, and sees no error.
#[test]
fn a_target_that_is_started_again_is_waited_for() {
    for at in 0..2 {
        let place = Place::new();
        let config = volume("v", "file:disk.img,size=16M");
        let daemon = place.serve(&config, &["--nvme", "127.0.0.1:0"]);
        let url = urls(&daemon, "v")[at].clone();
        let (iscsi, nvme) = (daemon.at.to_string(), daemon.nvme.unwrap().to_string());
        let mut initiator = ours("epoll");
        let volume = initiator.open(&url).unwrap();
        let bytes = bytes(1 << 20, 5);
        initiator.write_at(volume, 0, &bytes).unwrap();
        daemon.kill();
        let again = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(500));
            let daemon = place.serve_on(&config, &["--iscsi", &iscsi, "--nvme", &nvme], &[]);
            (place, daemon)
        });
        // Waits for the path, and for the fence of whatever was lost.
        initiator.write_at(volume, 1 << 20, &bytes).unwrap_or_else(|why| panic!("{url}: {why}"));
        let mut read = vec![0; 2 << 20];
        initiator.read_at(volume, 0, &mut read).unwrap();
        assert!(read[..1 << 20] == bytes && read[1 << 20..] == bytes, "{url}");
        drop(again.join().unwrap());
    }
}
