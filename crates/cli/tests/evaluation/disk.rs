//! `blockwire bench` on a local disk.

use std::path::Path;

use super::{blockwire, said};

/// What is written past the page cache is there, and comes back.
#[test]
fn a_file_is_written_and_verified() {
    // Not in memory: file systems there may know no O_DIRECT.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("disk");
    std::fs::File::create(&file).unwrap().set_len(4 << 20).unwrap();
    let url = format!("file:{}", file.display());
    let words = ["--rw=randwrite", "--bs=16k", "--iodepth=8", "--size=4m", "--verify=crc32c", "--json"];
    let out = blockwire(dir.path(), &[&["bench", &url], &words[..]].concat());
    let (json, why, code) = said(&out);
    assert_eq!(code, Some(0), "{why}");
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["jobs"][0]["write"]["bytes"], 4 << 20);
    let bytes = std::fs::read(&file).unwrap();
    assert!(bytes.chunks(512).all(|block| block.iter().any(|byte| *byte != 0)), "every block was written");
}

/// One command drives disks of here or volumes of elsewhere, and says so before it does anything.
#[test]
fn disks_and_remote_volumes_are_not_mixed() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("disk");
    std::fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
    let url = format!("file:{}", file.display());
    let mixed = ["bench", &url, "iscsi://127.0.0.1:9/iqn.2026-11.io.blockwire:none/0", "--rw=read"];
    let (_, why, code) = said(&blockwire(dir.path(), &mixed));
    assert_eq!(code, Some(2), "{why}");
    assert!(why.contains("two commands"), "{why}");
    let missing = format!("file:{}", Path::new("/nonexistent/disk").display());
    let (_, why, code) = said(&blockwire(dir.path(), &["bench", &missing, "--rw=read"]));
    assert!(code == Some(1) && why.contains("/nonexistent/disk"), "{why}");
}
