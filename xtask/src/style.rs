//! Cheap marks of unfinished or unportable work, over all files that git knows.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Report;

/// A file longer than this asks to be cut; it is told, not refused.
const LONG_FILE: usize = 600;
/// A file longer than this is refused.
const TOO_LONG_FILE: usize = 900;

/// Checks all tracked and new files of the work tree.
pub fn check(root: &Path) -> Result<Report, String> {
    let machine = machine_paths(root);
    let mut findings = Vec::new();
    let mut notes = Vec::new();
    let mut lengths = Vec::new();
    for file in tracked_files(root)? {
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else { continue };
        findings.extend(path_findings(&file, &text, &machine));
        if file.extension().is_some_and(|extension| extension == "rs") {
            findings.extend(mark_findings(&file, &text));
            let lines = text.lines().count();
            lengths.push(lines);
            if lines > TOO_LONG_FILE {
                findings.push(format!("{}: {lines} lines", file.display()));
            } else if lines > LONG_FILE {
                notes.push(format!("{}: {lines} lines", file.display()));
            }
        }
    }
    lengths.sort_unstable();
    let median = lengths.get(lengths.len() / 2).copied().unwrap_or(0);
    let summary = format!("{} source files, {median} lines in the median", lengths.len());
    Ok(Report { findings, notes, summary })
}

/// Paths that only the machine at hand has: the work tree's own and a home directory's.
fn machine_paths(root: &Path) -> Vec<String> {
    let home = std::env::var("HOME").unwrap_or_default();
    [root.display().to_string(), home]
        .into_iter()
        .filter(|path| path.len() > 4 && path != "/root")
        .map(|path| format!("{}/", path.trim_end_matches('/')))
        .collect()
}

fn tracked_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .map_err(|error| format!("git ls-files: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let names = String::from_utf8_lossy(&output.stdout);
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect())
}

fn path_findings(file: &Path, text: &str, machine: &[String]) -> Vec<String> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for path in machine.iter().filter(|path| line.contains(path.as_str())) {
            findings.push(format!("{}:{}: names {path}", file.display(), index + 1));
        }
    }
    findings
}

fn mark_findings(file: &Path, text: &str) -> Vec<String> {
    // Spelled in halves, so that this file does not find itself.
    let marks = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("dbg", "!("),
        concat!("#[ig", "nore"),
        concat!("// TO", "DO"),
        concat!("// FIX", "ME"),
        concat!("// X", "XX"),
    ];
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for mark in marks.iter().filter(|mark| line.contains(**mark)) {
            findings.push(format!("{}:{}: {mark}", file.display(), index + 1));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found() {
        let text = format!("fn f() {{\n    {}\"later\");\n}}\n", concat!("todo", "!("));
        assert_eq!(mark_findings(Path::new("a.rs"), &text).len(), 1);
        assert!(mark_findings(Path::new("a.rs"), "fn f() {}\n").is_empty());
    }

    #[test]
    fn machine_paths_are_found() {
        let machine = machine_paths(Path::new("/srv/build/tree"));
        let found = path_findings(Path::new("a.md"), "see /srv/build/tree/x\n", &machine);
        assert_eq!(found, ["a.md:1: names /srv/build/tree/"]);
        assert!(path_findings(Path::new("a.md"), "see /srv/other\n", &machine).is_empty());
    }
}
