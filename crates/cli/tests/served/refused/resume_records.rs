//! Records of copies that were interrupted: one that does not fit is refused, and none destroys what is not its own.

use std::fs;
use std::path::Path;

use super::{MIB, Stage, pattern};
use crate::verbs::{good, json, urls};

/// As `copy --resume` names a file: by what tells it from a later one of the same inode.
pub fn identity(path: &Path) -> String {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    use std::os::unix::fs::MetadataExt;
    let meta = fs::metadata(path).unwrap();
    let more = statx(CWD, path, AtFlags::empty(), StatxFlags::BTIME).unwrap();
    let born = match StatxFlags::from_bits_retain(more.stx_mask).contains(StatxFlags::BTIME) {
        true => format!("{}.{:09}", more.stx_btime.tv_sec, more.stx_btime.tv_nsec),
        false => "-".to_owned(),
    };
    format!("file {}:{} of {born}", meta.dev(), meta.ino())
}

#[test]
fn a_copy_whose_record_does_not_fit_changes_nothing() {
    let mut stage = Stage::new();
    let uuid = json(&["info", &urls(&stage.daemon, "b")[0], "--json"])["uuid"].as_str().unwrap().to_owned();
    let put = |name: &str, from: &str, to: &str, bytes: usize, done: usize| {
        let record = serde_json::json!({ "from": from, "to": to, "bytes": bytes, "done": done });
        fs::write(stage.work.join(name), record.to_string()).unwrap();
    };
    let (source, other) = (identity(&stage.work.join("source.img")), identity(&stage.work.join("other.img")));
    put("foreign", "x", &uuid, MIB, 512);
    put("longer", &source, &uuid, 2 * MIB, 512);
    put("beyond", &source, &uuid, MIB, 2 * MIB);
    put("ragged", &source, &uuid, MIB, 100);
    // The volume's identity is right, and what was copied is not there: it is another one, or was emptied.
    put("emptied", &source, &uuid, MIB, MIB / 2);
    put("resized", &source, &other, MIB, MIB / 2);
    put("removed", &source, "file 1:2 of 3.4", MIB, MIB / 2);
    stage.refuses(&[
        ("copy source.img iscsi:b --resume notes.txt", 2, "is not a resume record of a copy"),
        ("copy source.img other.img --resume source.img", 2, "is not a resume record of a copy"),
        ("copy source.img other.img --resume other.img", 2, "is not a resume record of a copy"),
        ("copy source.img ./new.img --resume new.img", 2, "is the source or the destination"),
        ("copy iscsi:a empty.img --resume dir", 2, "is not a resume record of a copy"),
        ("copy iscsi:a other.img --resume absent/record", 2, "no such directory"),
        ("copy source.img iscsi:b --resume foreign", 2, "belongs to another copy"),
        ("copy source.img iscsi:b --resume longer", 2, "belongs to another copy"),
        ("copy source.img iscsi:b --resume beyond", 2, "belongs to another copy"),
        ("copy source.img iscsi:b --resume ragged", 2, "belongs to another copy"),
        ("copy source.img iscsi:b --resume emptied", 2, "does not contain what"),
        ("copy source.img nvme:b --resume emptied", 2, "does not contain what"),
        ("copy source.img other.img --resume resized", 2, "does not contain what"),
        ("copy source.img ./new.img --resume removed", 2, "belongs to another copy"),
        ("copy source.img empty.img --resume removed", 2, "belongs to another copy"),
    ]);
}

/// A record is written beside its place, under no name that a user's file may have.
#[test]
fn a_record_does_not_destroy_the_files_beside_it() {
    let stage = Stage::new();
    let url = &urls(&stage.daemon, "a")[0];
    let at = |name: &str| stage.work.join(name).to_str().unwrap().to_owned();
    fs::copy(at("source.img"), at("db.new")).unwrap();
    good(&["copy", &at("db.new"), url, "--resume", &at("db.copy"), "--verify"]);
    assert!(fs::read(at("db.new")).unwrap() == pattern(MIB, 1));
    good(&["copy", url, &at("db.new"), "--resume", &at("db.copy"), "--verify"]);
    assert!(fs::read(at("db.new")).unwrap()[..MIB] == pattern(MIB, 1));
    assert!(!Path::new(&at("db.copy")).exists());
    let left = fs::read_dir(&stage.work).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with(".blockwire")));
}

/// Nothing of the destination is taken to be zero that was not made so by this run.
#[test]
fn a_copy_that_goes_on_writes_zeroes_over_what_stood_there() {
    let stage = Stage::new();
    let (from, to) = (stage.work.join("half.img"), stage.work.join("back.img"));
    let mut bytes = pattern(2 * MIB, 1);
    bytes[MIB..].fill(0);
    fs::write(&from, &bytes).unwrap();
    bytes[MIB..].fill(0xFF);
    fs::write(&to, &bytes).unwrap();
    let record = serde_json::json!({
        "from": identity(&from), "to": identity(&to), "bytes": 2 * MIB, "done": MIB,
    });
    fs::write(stage.work.join("record"), record.to_string()).unwrap();
    let out = stage.run("copy half.img back.img --resume record");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
}
