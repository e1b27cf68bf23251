//! `blockwire eval` in scripts: its output, its files, and its exit codes.

mod compare;
mod disk;
mod docs;
mod ending;
mod exchange;
mod plan;
mod report;
mod sample;
mod systems;

use std::path::Path;
use std::process::{Command, Output};

use eval::record::Record;

/// Runs the binary in a directory.
fn blockwire(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blockwire"))
        .args(arguments)
        .env("HOME", directory)
        .current_dir(directory)
        .output()
        .unwrap()
}

/// Standard output, standard error, exit code.
fn said(out: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&out.stdout), text(&out.stderr), out.status.code())
}

fn write(directory: &Path, name: &str, record: &Record) {
    let path = directory.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, serde_json::to_string(record).unwrap()).unwrap();
}
