//! Disks of this machine, attached volumes and loop devices: what the system uses is not overwritten.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

use super::{MIB, Stage, pattern};
use crate::verbs::{json, urls};

/// A loop device over a file, as far as this machine has them; it goes away in the end.
pub struct Loop(pub String);

impl Loop {
    pub fn over(file: &Path) -> Option<Loop> {
        let out = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        out.status.success().then(|| Loop(String::from_utf8_lossy(&out.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// What the system uses as a disk is not overwritten without a word, and what lies on the other end never is.
#[test]
fn what_this_machine_uses_is_not_overwritten() {
    let mut stage = Stage::new();
    let Some(disk) = Loop::over(&stage.work.join("other.img")) else {
        eprintln!("this machine has no loop devices for us");
        return;
    };
    let (to_file, to_disk) = ("copy iscsi:a other.img", format!("copy iscsi:a {}", disk.0));
    let (onto, under) = (format!("copy {} other.img --force", disk.0), format!("copy other.img {}", disk.0));
    let read = format!("read iscsi:a -o {}", disk.0);
    // As one who mounts it has it.
    let excl = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let user = fs::OpenOptions::new().read(true).custom_flags(excl).open(&disk.0).unwrap();
    stage.refuses(&[
        (to_file, 2, "the loop device"),
        ("read iscsi:a -o other.img", 2, "the loop device"),
        ("bench file:other.img --rw=write --runtime=1", 2, "the loop device"),
        (&to_disk, 2, "is in use by this system"),
        (&read, 2, "is in use by this system"),
        (&onto, 2, "stored on the other"),
        (&under, 2, "stored on the other"),
    ]);
    drop(user);
    let out = stage.run(&to_disk);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(fs::read(stage.work.join("other.img")).unwrap() == pattern(2 * MIB, 5));
    let out = stage.run("copy iscsi:b other.img --force");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// A disk of this machine that is a volume is not written by that volume's name either.
#[test]
fn what_is_attached_here_is_not_written_by_its_url() {
    let mut stage = Stage::new();
    let uuid = json(&["info", &urls(&stage.daemon, "a")[0], "--json"])["uuid"].as_str().unwrap().to_owned();
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let started = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().to_owned();
    let note = serde_json::json!({
        "pid": std::process::id(), "started": started.parse::<u64>().unwrap(), "url": "iscsi://elsewhere",
        "via": "ublk", "ways": ["/dev/ublkb77"], "uuid": uuid,
    });
    let notes = stage.place.path("run/attached");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&notes).unwrap();
    fs::write(notes.join("1.json"), note.to_string()).unwrap();
    stage.refuses(&[
        ("copy source.img iscsi:a", 2, "attached here (/dev/ublkb77)"),
        ("write iscsi:a -i source.img", 2, "attached here (/dev/ublkb77)"),
        ("write nvme:a -i source.img", 2, "attached here (/dev/ublkb77)"),
        ("bench nvme:a --rw=write --runtime=1", 2, "attached here (/dev/ublkb77)"),
        ("bench iscsi:a --rw=randrw --runtime=1 --threads 2", 2, "attached here (/dev/ublkb77)"),
    ]);
    for line in ["write iscsi:a -i source.img --force", "bench nvme:a --rw=read --size=1M"] {
        let out = stage.run(line);
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    }
}
