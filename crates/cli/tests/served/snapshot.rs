//! Snapshots and clones. Where the file system of temporary files cannot share blocks, they are refused, and that is what
//! is tested: `tests/snapshot.sh` runs this on an XFS and a btrfs of its own.

use std::{fs, path::Path, thread};

use crate::{
    daemon::{Daemon, Place, volume},
    host::{self, Host, Names, Sqe},
    initiator::{Data, Initiator},
};

const DISK: &str = "iqn.2026-11.io.blockwire:disk";
const BLOCK: usize = 512;
/// Where each host writes, in blocks; far apart, in parts of their own.
const PLACES: [u64; 2] = [3, 2 * 2048 + 5];

fn number(bytes: &[u8], lba: u64) -> u64 {
    let at = lba as usize * BLOCK;
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn serve(place: &Place) -> Daemon {
    place.serve(&volume("disk", "file:disk.img,size=4M"), &["--nvme", "127.0.0.1:0"])
}

/// Writes a number by iSCSI; when that is answered, the same number by NVMe/TCP elsewhere; and so on.
fn write_in_turn(iscsi: &mut Initiator, nvme: &mut Host, numbers: std::ops::Range<u64>) {
    let mut block = [0; BLOCK];
    for number in numbers {
        block[..8].copy_from_slice(&number.to_le_bytes());
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (0x8a, 1);
        cdb[2..10].copy_from_slice(&PLACES[0].to_be_bytes());
        iscsi.command(0, &cdb, Data::Out(&block)).unwrap().good();
        let write = Sqe::new(1, 1).cdw(10, PLACES[1] as u32);
        nvme.io.command(write, host::Data::Out(&block)).unwrap().good();
    }
}

fn shares_blocks(place: &Place, daemon: &Daemon) -> bool {
    let out = daemon.run(&format!("volume snapshot disk {}", place.path("first.img").display()));
    let why = String::from_utf8_lossy(&out.stderr).into_owned();
    if out.status.success() {
        return true;
    }
    assert!(why.contains("cannot share blocks") && why.contains("blockwire copy"), "{why}");
    assert!(!place.path("first.img").exists(), "what is refused leaves no file");
    assert!(std::env::var_os("BLOCKWIRE_REFLINK").is_none(), "this file system should: {why}");
    false
}

#[test]
fn a_snapshot_is_of_one_moment_over_both_protocols() {
    let place = Place::new();
    let daemon = serve(&place);
    if !shares_blocks(&place, &daemon) {
        return;
    }
    let mut iscsi = Initiator::ready(daemon.at, DISK);
    let mut nvme = Host::ready(daemon.nvme.unwrap(), &Names::of("disk"));
    let writer = thread::spawn(move || {
        for round in 0..40 {
            write_in_turn(&mut iscsi, &mut nvme, round * 100 + 1..round * 100 + 101);
        }
    });
    let mut before = 0;
    for at in 0.. {
        let file = place.path(&format!("snapshot{at}.img"));
        daemon.ask(&format!("volume snapshot disk {}", file.display()));
        let bytes = fs::read(&file).unwrap();
        assert_eq!(bytes.len(), 4 << 20);
        let [first, second] = PLACES.map(|lba| number(&bytes, lba));
        // The second write begins when the first is answered: it is never there without it.
        assert!(first == second || first == second + 1, "{first} by iSCSI, {second} by NVMe");
        assert!(second >= before, "{second} after {before}");
        before = second;
        fs::remove_file(file).unwrap();
        if writer.is_finished() {
            break;
        }
    }
    writer.join().unwrap();
    daemon.ask(&format!("volume snapshot disk {}", place.path("last.img").display()));
    assert_eq!(PLACES.map(|lba| number(&fs::read(place.path("last.img")).unwrap(), lba)), [4000, 4000]);
}

#[test]
fn a_clone_is_a_volume_of_its_own_that_comes_back() {
    let place = Place::new();
    let daemon = serve(&place);
    if !shares_blocks(&place, &daemon) {
        return;
    }
    let mut iscsi = Initiator::ready(daemon.at, DISK);
    let mut nvme = Host::ready(daemon.nvme.unwrap(), &Names::of("disk"));
    write_in_turn(&mut iscsi, &mut nvme, 1..8);
    let file = place.path("twin.img");
    let twin = daemon.ask_json(&format!("volume clone disk twin {}", file.display()));
    let disk = daemon.ask_json("volume show disk");
    assert_eq!((&twin["name"], &twin["size_bytes"]), (&"twin".into(), &(4 << 20).into()));
    assert_ne!(twin["uuid"], disk["uuid"], "hosts take two of one identity for one disk");
    // What is written to one is not in the other.
    write_in_turn(&mut iscsi, &mut nvme, 8..10);
    let mut other = Host::ready(daemon.nvme.unwrap(), &Names::of("twin"));
    let read = |host: &mut Host, lba: u64| {
        let read = Sqe::new(2, 1).cdw(10, lba as u32);
        number(&host.io.command(read, host::Data::In(BLOCK as u32)).unwrap().good(), 0)
    };
    assert_eq!((read(&mut other, PLACES[0]), read(&mut nvme, PLACES[0])), (7, 9));
    assert_exists_alone(&daemon, &file);
    drop((iscsi, nvme, other));
    daemon.ask("stop");
    let daemon = serve(&place);
    assert_eq!(daemon.ask_json("volume show twin")["uuid"], twin["uuid"]);
}

/// What is there is never overwritten, and a name that is taken costs no file.
fn assert_exists_alone(daemon: &Daemon, file: &Path) {
    let before = fs::read(file).unwrap();
    for line in [
        format!("volume snapshot disk {}", file.display()),
        format!("volume clone disk more {}", file.display()),
    ] {
        let out = daemon.run(&line);
        assert!(String::from_utf8_lossy(&out.stderr).contains("exists"), "{line}");
    }
    let more = file.with_file_name("more.img");
    assert!(!daemon.run(&format!("volume clone disk twin {}", more.display())).status.success());
    assert!(!more.exists() && fs::read(file).unwrap() == before);
}
