//! The disks are full: that of a volume's file, and that of the state directory. Hosts get a defined status, what was
//! there stays, and when there is room again everything goes on, without a restart.
//!
//! Only root can mount disks so small; for other users these tests pass at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::daemon::{Daemon, Place, worlds};
use crate::host::{self, Host, Names, Sqe};
use crate::initiator::{Data, Initiator};

const TARGET: &str = "iqn.2026-11.io.blockwire:disk";
const BOTH: [&str; 2] = ["--nvme", "127.0.0.1:0"];
/// DATA PROTECT, SPACE ALLOCATION FAILED WRITE PROTECT.
const NO_SPACE: (u8, Option<(u8, u8, u8)>) = (2, Some((7, 0x27, 7)));
/// Capacity Exceeded.
const CAPACITY_EXCEEDED: u16 = 0x81;

/// A small disk; unmounted in the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// One of 1 MiB. `None`: only root may mount.
    fn at(directory: PathBuf) -> Option<SmallDisk> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: mounting a small disk takes root");
            return None;
        }
        fs::create_dir(&directory).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs"];
        let mounted = Command::new("mount").args(options).arg(&directory).status().unwrap();
        assert!(mounted.success(), "a small disk cannot be mounted: {mounted}");
        Some(SmallDisk(directory))
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Takes all that is left.
    fn fill(&self) {
        use std::io::Write;
        let mut file = fs::File::create(self.filler()).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn make_room(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn both(daemon: &Daemon) -> (Initiator, Host) {
    (Initiator::ready(daemon.at, TARGET), Host::ready(daemon.nvme.unwrap(), &Names::of("disk")))
}

fn config(file: &Path) -> String {
    format!("[[volume]]\nname = \"disk\"\nsource = \"file:{},size=4M\"\n", file.display())
}

/// Takes unit attentions, and then does the command.
fn settled(session: &mut Initiator, cdb: &[u8], list: &[u8]) -> (u8, Option<(u8, u8, u8)>) {
    loop {
        let ended = session.command(0, cdb, Data::Out(list)).unwrap();
        if ended.sense.is_none_or(|sense| sense.0 != 6) {
            return (ended.status, ended.sense);
        }
    }
}

#[test]
fn a_volume_whose_disk_is_full_takes_writes_again_when_there_is_room() {
    for world in worlds() {
        let place = Place::new();
        let Some(disk) = SmallDisk::at(place.path("small")) else { return };
        let config = config(&disk.0.join("disk.img"));
        let daemon = place.serve(&config, &[&BOTH[..], &["--io", world]].concat());
        let (mut session, mut host) = both(&daemon);
        session.write(0, 0, &[7; 4096]).unwrap().good();
        disk.fill();
        let refused = session.write(0, 2048, &[8; 4096]).unwrap();
        assert_eq!((refused.status, refused.sense), NO_SPACE, "{world}");
        assert_eq!(host.write(3000, &[8; 512]).status & 0x7ff, CAPACITY_EXCEEDED, "{world}");
        // What has its place already can be written over, read and flushed.
        session.write(0, 0, &[9; 4096]).unwrap().good();
        assert_eq!(host.read(0).good(), [9; 512]);
        session.flush(0).unwrap().good();
        host.io.command(Sqe::new(0, 1), host::Data::None).unwrap().good();
        disk.make_room();
        session.write(0, 2048, &[8; 4096]).unwrap().good();
        host.write(3000, &[8; 512]).good();
        assert_eq!(host.read(2048).good(), [8; 512]);
        assert_eq!(session.read(0, 3000, 1).unwrap().good(), [8; 512]);
        assert_eq!(session.read(0, 0, 8).unwrap().good(), [9; 4096], "{world}: what was there stays");
    }
}

#[test]
fn what_cannot_be_recorded_is_refused_and_taken_when_there_is_room() {
    let place = Place::new();
    let Some(disk) = SmallDisk::at(place.path("state")) else { return };
    let config = config(&place.path("disk.img"));
    let daemon = place.serve(&config, &BOTH);
    let (mut session, mut host) = both(&daemon);
    // REGISTER AND IGNORE EXISTING KEY of a key that persists; Reservation Register with CPTPL.
    let cdb = [0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0];
    let list = |key: u8| {
        let mut list = [0; 24];
        (list[15], list[20]) = (key, 1);
        list
    };
    assert_eq!(settled(&mut session, &cdb, &list(1)), (0, None));
    disk.fill();
    let (status, sense) = settled(&mut session, &cdb, &list(2));
    assert!(status == 2 && sense.is_some(), "a key was taken that cannot be recorded: {status} {sense:?}");
    let register = 3 << 30;
    assert_ne!(host.reserve(0x0d, register, [0, 3]).status, 0);
    assert!(!daemon.run("path set disk --state inaccessible").status.success());
    session.read(0, 0, 1).unwrap().good();
    let keys = |session: &mut Initiator| {
        let ended = session.command(0, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0], Data::In(255)).unwrap();
        ended.good()[8..].chunks(8).map(|key| key[7]).collect::<Vec<u8>>()
    };
    assert_eq!(keys(&mut session), [1], "what was refused is in effect");
    disk.make_room();
    assert_eq!(settled(&mut session, &cdb, &list(2)), (0, None));
    host.reserve(0x0d, register, [0, 3]).good();
    daemon.ask("path set disk --state non-optimized");
    daemon.kill();
    let daemon = place.serve(&config, &BOTH);
    let (mut session, _) = both(&daemon);
    assert_eq!(keys(&mut session), [2, 3], "what was taken is there after a start");
}
