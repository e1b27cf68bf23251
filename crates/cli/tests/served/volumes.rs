//! Volumes that change, and volumes of every kind.

use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use crate::{
    daemon::{Place, volume, worlds},
    initiator::{Data, HOST, Initiator, wanted},
    refused::Loop,
};

fn target(volume: &str) -> String {
    format!("iqn.2026-11.io.blockwire:{volume}")
}

/// What is kept of one volume (reservations and the like) is damaged: that volume is not served, since hosts rely on
/// it, and all others are. Moved away, it keeps nobody out any more.
#[test]
fn a_damaged_record_of_one_volume_keeps_no_other_from_being_served() {
    let place = Place::new();
    let config = volume("fine", "ram:8M") + &volume("hurt", "file:disk.img,size=8M");
    let mut daemon = place.serve(&config, &[]);
    let uuid = daemon.ask_json("volume show hurt")["uuid"].as_str().unwrap().to_owned();
    daemon.ask("stop");
    assert_eq!(daemon.ended(Duration::from_secs(1)), Some(0), "stop waits for the end");
    let record = place.path("state").join(format!("{uuid}.reservations"));
    fs::write(&record, "not what was written").unwrap();

    let mut daemon = place.serve(&config, &[]);
    let mut session = Initiator::ready(daemon.at, &target("fine"));
    session.write(0, 0, &[7; 512]).unwrap().good();
    assert!(Initiator::connect(daemon.at, wanted(HOST, Some(&target("hurt")), None)).is_err());
    for (line, code) in [("volume show fine", 0), ("volume show hurt", 1), ("status", 1), ("volume list", 0)]
    {
        let out = daemon.run(line);
        let said = String::from_utf8_lossy(&out.stdout);
        assert_eq!(out.status.code(), Some(code), "{line}: {said}");
        assert_eq!(said.contains("is damaged"), line != "volume show fine", "{line}: {said}");
    }
    assert_eq!(daemon.run("volume retry hurt").status.code(), Some(1));
    fs::remove_file(&record).unwrap();
    assert_eq!(daemon.ask_json("volume retry hurt")["uuid"], uuid);
    daemon.ask("status");
    Initiator::ready(daemon.at, &target("hurt")).write(0, 0, &[8; 512]).unwrap().good();
    daemon.ask("stop");
    assert_eq!(daemon.ended(Duration::from_secs(1)), Some(0));
}

/// A volume that cannot be served is away, not unknown: hosts are to come again, and find it at its place. Deleted, it
/// is not to be mistaken for the next one of its name.
#[test]
fn a_volume_that_is_away_is_not_ready_for_now() {
    let place = Place::new();
    let (file, aside) = (place.path("disk.img"), place.path("aside.img"));
    let volumes = volume("first", "file:disk.img,size=8M") + &volume("second", "ram:4M");
    let config = volumes
        + "[[target]]\nname = \"iqn.2026-11.test:both\"\nluns = [{ lun = 0, volume = \"first\" }, { lun = 1, volume = \"second\" }]\n\
         [[target]]\nname = \"iqn.2026-11.test:one\"\nluns = [{ lun = 3, volume = \"first\" }]\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.test:one\"\nnamespaces = [{ nsid = 2, volume = \"first\" }]\n";
    place.serve(&config, &["--nvme", "127.0.0.1:0"]).kill();
    fs::rename(&file, &aside).unwrap();
    let daemon = place.serve(&config, &["--nvme", "127.0.0.1:0"]);
    let why = Initiator::connect(daemon.at, wanted(HOST, Some("iqn.2026-11.test:one"), None)).err().unwrap();
    assert!(
        format!("{why:?}").contains("Refused(ServiceUnavailable)") || why.to_string().contains("0301"),
        "{why:?}: {why}"
    );
    let url = format!(
        "nvme+tcp://{}/nqn.2026-11.test:one/2?connect_timeout=5s&open_timeout=1s",
        daemon.nvme.unwrap()
    );
    let info = || Command::new(crate::attached::BLOCKWIRE).args(["info", &url]).output().unwrap();
    let out = info();
    assert!(String::from_utf8_lossy(&out.stderr).contains("try again later"), "refused for good: {out:?}");
    let both = || Initiator::connect(daemon.at, wanted(HOST, Some("iqn.2026-11.test:both"), None)).unwrap();
    let mut session = both();
    session.settle(1);
    assert_eq!(session.blocks(1), 8192, "the others are where they were");
    let sense = session.command(0, &[0; 6], Data::None).unwrap().sense.map(|sense| sense.1);
    assert_eq!(sense, Some(0x04), "this one is there, and not ready");
    drop(session);
    fs::rename(&aside, &file).unwrap();
    daemon.ask("volume retry first");
    assert_eq!(Initiator::ready(daemon.at, "iqn.2026-11.test:both").blocks(0), 16384);
    let out = info();
    assert!(out.status.success(), "{out:?}");
    daemon.kill();

    fs::rename(&file, &aside).unwrap();
    let daemon = place.serve(&config, &["--nvme", "127.0.0.1:0"]);
    daemon.ask("volume delete first");
    daemon.ask("volume create first=ram:1M");
    let why = Initiator::connect(daemon.at, wanted(HOST, Some("iqn.2026-11.test:one"), None)).err().unwrap();
    assert!(!why.to_string().contains("0301"), "{why}");
    let mut session =
        Initiator::connect(daemon.at, wanted(HOST, Some("iqn.2026-11.test:both"), None)).unwrap();
    assert_eq!(
        session.command(0, &[0; 6], Data::None).unwrap().sense.map(|sense| sense.1),
        Some(0x25),
        "another volume"
    );
    assert_eq!(Initiator::ready(daemon.at, &target("first")).blocks(0), 2048);
}

/// What a sync has lost is lost, who is killed: hosts are told so until the operator has acknowledged it.
#[test]
fn a_failed_sync_outlives_the_daemon_until_it_is_acknowledged() {
    let place = Place::new();
    let config = volume("disk", "file:disk.img,size=8M");
    let daemon = place.serve(&config, &[]);
    let uuid = daemon.ask_json("volume show disk")["uuid"].as_str().unwrap().to_owned();
    assert_eq!(daemon.run("volume retry disk").status.code(), Some(1), "it has not failed");
    daemon.kill();
    // As the daemon has written it, or half of it.
    fs::write(place.path("state").join(format!("{uuid}.sync-failed")), "blockwire-st").unwrap();
    for _ in 0..2 {
        let daemon = place.serve(&config, &[]);
        let mut session = Initiator::ready(daemon.at, &target("disk"));
        let flush = session.command(0, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], Data::None).unwrap();
        assert_eq!((flush.status, flush.sense.map(|sense| sense.0)), (2, Some(3)), "{flush:?}");
        assert_eq!(session.write(0, 0, &[8; 512]).unwrap().status, 2);
        session.read(0, 0, 1).unwrap().good();
        for line in ["volume show disk", "status"] {
            let out = daemon.run(line);
            assert!(String::from_utf8_lossy(&out.stdout).contains("a sync has failed"), "{line}: {out:?}");
            assert_eq!(out.status.code(), Some(1), "{line}");
        }
        daemon.kill();
    }
    let daemon = place.serve(&config, &[]);
    daemon.ask("volume retry disk");
    daemon.ask("volume show disk");
    Initiator::ready(daemon.at, &target("disk")).write(0, 0, &[8; 512]).unwrap().good();
    daemon.kill();
    let daemon = place.serve(&config, &[]);
    daemon.ask("volume show disk");
    Initiator::ready(daemon.at, &target("disk")).write(0, 0, &[8; 512]).unwrap().good();
}

#[test]
fn a_resize_under_load_is_told_and_takes_effect() {
    for world in worlds() {
        let place = Place::new();
        let config = volume("memory", "ram:8M") + &volume("file", "file:disk.img,size=8M");
        let daemon = place.serve(&config, &["--io", world]);
        for volume in ["memory", "file"] {
            let (at, stop) = (daemon.at, AtomicBool::new(false));
            thread::scope(|scope| {
                for load in 0..2 {
                    let stop = &stop;
                    scope.spawn(move || {
                        let name = format!("{HOST}{load}");
                        let mut session =
                            Initiator::connect(at, wanted(&name, Some(&target(volume)), None)).unwrap();
                        session.settle(0);
                        while !stop.load(Ordering::Relaxed) {
                            let ended = session.write(0, load * 1024, &[load as u8; 65536]).unwrap();
                            // Unit attentions come between writes, nothing else does.
                            assert!(ended.status == 0 || ended.sense.is_some_and(|s| s.0 == 6), "{ended:?}");
                        }
                    });
                }
                let mut session = Initiator::ready(at, &target(volume));
                for (size, blocks) in [("16M", 32768), ("12M", 24576), ("64M", 131072)] {
                    daemon.ask(&format!("volume resize {volume} {size} --shrink"));
                    let told = session.command(0, &[0; 6], Data::None).unwrap();
                    assert_eq!((told.status, told.sense), (2, Some((6, 0x2a, 9))), "{world} {volume} {size}");
                    assert_eq!(session.blocks(0), blocks);
                    let last = [0xee; 512];
                    session.write(0, blocks - 1, &last).unwrap().good();
                    assert_eq!(session.read(0, blocks - 1, 1).unwrap().good(), last);
                    let beyond = session.read(0, blocks, 1).unwrap();
                    assert_eq!((beyond.status, beyond.sense), (2, Some((5, 0x21, 0))));
                    thread::sleep(Duration::from_millis(20));
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        assert_eq!(fs::metadata(place.path("disk.img")).unwrap().len(), 64 << 20);
    }
}

#[test]
fn what_cannot_be_is_refused_and_leaves_no_trace() {
    let place = Place::new();
    let daemon = place.serve(&volume("disk", "ram:1M"), &[]);
    for line in [
        "volume create huge=ram:8388607T",
        "volume create huge=ram:200T",
        "volume create lost=file:/nonexistent/disk.img,size=1M",
        "volume resize disk 200T",
        "volume resize disk 8388607T",
        "volume resize disk 1000",
    ] {
        let out = daemon.run(line);
        let why = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(matches!(out.status.code(), Some(1 | 2)), "{line}: {why}");
        assert!(why.starts_with("blockwire: ") && !why.contains("panick"), "{line}: {why}");
    }
    assert!(!daemon.log().contains("panick"), "{}", daemon.log());
    let list = daemon.ask("volume list");
    assert!(!list.contains("huge") && !list.contains("lost"), "{list}");
    daemon.ask("volume create huge=ram:1M");
    let mut session = Initiator::ready(daemon.at, &target("huge"));
    assert_eq!(session.blocks(0), 2048);
    assert_eq!(Initiator::ready(daemon.at, &target("disk")).blocks(0), 2048);
}

#[test]
fn a_null_volume_resizes_or_says_why_not() {
    let place = Place::new();
    let daemon = place.serve(&volume("void", "null:1M"), &[]);
    let out = daemon.run("volume resize void 2M");
    let blocks = Initiator::ready(daemon.at, &target("void")).blocks(0);
    if out.status.success() {
        assert_eq!(blocks, 4096);
    } else {
        assert!(String::from_utf8_lossy(&out.stderr).contains("null"), "{out:?}");
        assert_eq!(blocks, 2048);
    }
}

#[test]
fn a_block_device_is_served() {
    for (world, direct) in worlds().into_iter().flat_map(|world| [(world, false), (world, true)]) {
        let place = Place::new();
        let file = place.path("backing.img");
        fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
        let Some(device) = Loop::over(&file) else {
            eprintln!("skipped: there are no loop devices here");
            return;
        };
        let config = volume("disk", &device.0) + &format!("direct = {direct}\nthin = true\n");
        let mut daemon = place.serve(&config, &["--io", world]);
        let mut session = Initiator::ready(daemon.at, &target("disk"));
        assert_eq!(session.blocks(0), 32768);
        let data: Vec<u8> = (0..1u32 << 20).map(|at| (at / 512) as u8 | 1).collect();
        session.write(0, 2048, &data).unwrap().good();
        assert_eq!(session.read(0, 2048, 2048).unwrap().good(), data);
        session.flush(0).unwrap().good();
        assert_eq!(fs::read(&file).unwrap()[1 << 20..2 << 20], data, "{world} direct={direct}");
        // UNMAP of 1024 blocks from 2048 on: they read as zeros, their neighbours stay.
        let mut list = [0; 24];
        (list[1], list[3]) = (22, 16);
        list[8..16].copy_from_slice(&2048u64.to_be_bytes());
        list[16..20].copy_from_slice(&1024u32.to_be_bytes());
        let cdb = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
        session.command(0, &cdb, Data::Out(&list)).unwrap().good();
        let after = session.read(0, 2048, 2048).unwrap().good();
        assert!(after[..512 << 10].iter().all(|byte| *byte == 0), "{world} direct={direct}");
        assert_eq!(after[512 << 10..], data[512 << 10..]);
        session.log_out().unwrap();
        let resize = daemon.run("volume resize disk 32M");
        assert!(String::from_utf8_lossy(&resize.stderr).contains("the size of a device"), "{resize:?}");
        daemon.signal(rustix::process::Signal::TERM);
        assert_eq!(daemon.ended(Duration::from_secs(10)), Some(0));
    }
}

/// Direct I/O moves whole units of the file system; a size may end within one.
#[test]
fn a_shrink_promises_no_block_that_direct_io_cannot_move() {
    let place = Place::new();
    let volume = format!("disk=file:{},size=8M,direct", place.path("disk.img").display());
    let daemon = place.serve_as(&["--volume", &volume, "--iscsi", "127.0.0.1:0"], &[]);
    let mut session = Initiator::ready(daemon.at, "iqn.2026-11.io.blockwire:disk");
    for (size, least) in [(4 << 20, 4 << 20), ((2 << 20) + 512, 2 << 20)] {
        daemon.ask(&format!("volume resize disk {size} --shrink"));
        session.settle(0);
        let blocks = session.blocks(0);
        assert!((least..=size).contains(&(blocks * 512)), "{blocks} blocks of {size} bytes");
        session.read(0, blocks - 1, 1).unwrap().good();
    }
    daemon.run("volume resize disk 512 --shrink");
    session.settle(0);
    assert!(session.blocks(0) > 0, "something is left of it");
}

/// What hosts and operators made of a disk (reservations, bad blocks, protection) is not of the next one of its
/// identity, which holds nothing of it.
#[test]
fn a_new_volume_has_nothing_of_an_earlier_one_of_its_identity() {
    let place = Place::new();
    let daemon = place.serve(&place.sandbox(&[]), &[]);
    let records = || {
        let names = fs::read_dir(place.path("state")).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().contains("reservations")).count()
    };
    let file = place.path("new.img");
    let uuid = "uuid=6ba7b810-9dad-11d1-80b4-00c04fd430c8";
    for (spec, left) in
        [(format!("ram:1M,{uuid}"), 0), (format!("file:{},size=1M,{uuid}", file.display()), 1)]
    {
        for _ in 0..2 {
            daemon.ask(&format!("volume create r={spec}"));
            let mut session = Initiator::ready(daemon.at, &target("r"));
            session.write(0, 0, &[7; 512]).unwrap().good();
            drop(session);
            daemon.ask("volume set r --read-only on");
            assert_eq!(records(), 1, "{spec}");
            daemon.ask("volume delete r --force");
            assert_eq!(records(), left, "{spec}");
            let _ = fs::remove_file(&file);
        }
    }
}
