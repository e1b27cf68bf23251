//! Checks that run in CI, in addition to cargo and clippy.
//!
//! `cargo run -p xtask -- CHECK [ARG]...`; each check prints only a summary line if all is well, and every
//! finding otherwise. Exit codes: 0 success, 1 findings, 2 usage.
#![forbid(unsafe_code)]

mod attacks;
mod capture;
mod guide;
mod layers;
mod libiscsi;
mod licences;
mod links;
mod markdown;
mod metadata;
mod plain;
mod style;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo run -p xtask -- CHECK

  layers      dependency table, unsafe code and ambient authority, crate by crate; --table prints the
              table for ARCHITECTURE.md
  licences    licences of all dependencies against the allow-list; duplicate versions
  attacks     every row of docs/attacks.md has its tests, and every such test its row
  links       every link within the tree leads to a file, and to a heading of it
  guide       every `file.rs:function` that a page names exists
  style       unfinished marks, paths of the building machine, long files
  libiscsi    --list FILE --expected FILE [--update] KIND=LOG...
              results of the libiscsi test tool, united over the kinds of logical unit
  capture     --pcap FILE --port PORT
              every TCP payload byte of a capture belongs to an iSCSI PDU that tshark dissects
";

/// What a check found: a line per finding, and one line that sums up.
struct Report {
    findings: Vec<String>,
    notes: Vec<String>,
    summary: String,
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(check) = args.next() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let rest: Vec<String> = args.collect();
    let root = workspace_root();
    let report = match check.as_str() {
        "layers" if rest == ["--table"] => layers::print_table(&root),
        "layers" => layers::check(&root),
        "licences" => licences::check(&root),
        "attacks" => attacks::check(&root),
        "links" => links::check(&root),
        "guide" => guide::check(&root),
        "style" => style::check(&root),
        "libiscsi" => libiscsi::check(&rest),
        "capture" => capture::check(&rest),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match report {
        Ok(report) => finish(&check, &report),
        Err(problem) => {
            eprintln!("xtask {check}: {problem}");
            ExitCode::from(2)
        }
    }
}

fn finish(check: &str, report: &Report) -> ExitCode {
    for note in &report.notes {
        println!("{check}: {note}");
    }
    for finding in &report.findings {
        eprintln!("{check}: {finding}");
    }
    println!("{check}: {}", report.summary);
    if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The directory that holds the workspace's `Cargo.toml`.
fn workspace_root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(PathBuf::from).unwrap_or(here)
}
