//! Volumes that change, and volumes of every kind.

use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use crate::{
    daemon::{Place, worlds},
    initiator::{Data, HOST, Initiator, wanted},
};

fn target(volume: &str) -> String {
    format!("iqn.2026-11.io.blockwire:{volume}")
}

/// What is kept of one volume (reservations and the like) is damaged: that volume is not served, since hosts rely on
/// it, and all others are. Moved away, it keeps nobody out any more.
#[test]
fn a_damaged_record_of_one_volume_keeps_no_other_from_being_served() {
    let place = Place::new();
    let config = format!(
        "[[volume]]\nname = \"fine\"\nsource = \"ram:8M\"\n\
         [[volume]]\nname = \"hurt\"\nsource = \"file:{}\"\nsize = \"8M\"\n",
        place.path("disk.img").display()
    );
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

#[test]
fn a_resize_under_load_is_told_and_takes_effect() {
    for world in worlds() {
        let place = Place::new();
        let config = format!(
            "[[volume]]\nname = \"memory\"\nsource = \"ram:8M\"\n\
             [[volume]]\nname = \"file\"\nsource = \"file:{}\"\nsize = \"8M\"\n",
            place.path("disk.img").display()
        );
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
    let daemon = place.serve("[[volume]]\nname = \"disk\"\nsource = \"ram:1M\"\n", &[]);
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
    let daemon = place.serve("[[volume]]\nname = \"void\"\nsource = \"null:1M\"\n", &[]);
    let out = daemon.run("volume resize void 2M");
    let blocks = Initiator::ready(daemon.at, &target("void")).blocks(0);
    if out.status.success() {
        assert_eq!(blocks, 4096);
    } else {
        assert!(String::from_utf8_lossy(&out.stderr).contains("null"), "{out:?}");
        assert_eq!(blocks, 2048);
    }
}

/// A loop device over a file; detached when dropped.
struct Loop(String);

impl Loop {
    fn over(file: &std::path::Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/loop-control").exists() {
            return None;
        }
        let out = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        out.status.success().then(|| Loop(String::from_utf8_lossy(&out.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
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
        let config = format!(
            "[[volume]]\nname = \"disk\"\nsource = \"{}\"\ndirect = {direct}\nthin = true\n",
            device.0
        );
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
        assert!(String::from_utf8_lossy(&resize.stderr).contains("a device has the size"), "{resize:?}");
        daemon.signal(rustix::process::Signal::TERM);
        assert_eq!(daemon.ended(Duration::from_secs(10)), Some(0));
    }
}
