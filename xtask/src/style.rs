//! Signs of unfinished or unportable work, in all files of the repository; and words and sentences that make
//! a text hard to read.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Report, plain};

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
        findings.extend(plain::findings(&file, &text));
        if file.extension().is_some_and(|extension| extension == "rs") {
            findings.extend(mark_findings(&file, &text));
            findings.extend(log_findings(&file, &text));
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

/// Calls of the log that would show a Rust value as `Debug` prints it: anyone who reads a log is told in words.
fn log_findings(file: &Path, text: &str) -> Vec<String> {
    // Spelled in halves, so that this file does not find itself.
    let macros =
        ["error!(", "warn!(", "info!(", "debug!(", "trace!("].map(|name| format!("{}{name}", "tracing::"));
    let mut findings = Vec::new();
    for name in &macros {
        for (at, _) in text.match_indices(name.as_str()) {
            let call = arguments(&text[at + name.len()..]);
            let fields = call.split('"').step_by(2).any(|code| {
                let code: String = code.split_whitespace().collect();
                code.starts_with('?') || code.contains(",?") || code.contains("=?")
            });
            let strings = call.split('"').skip(1).step_by(2).any(|said| said.contains(concat!(":", "?}")));
            if fields || strings {
                let line = text[..at].lines().count().max(1);
                findings.push(format!("{}:{line}: logs a Debug form; say it in words", file.display()));
            }
        }
    }
    findings
}

/// The text up to the parenthesis that closes a call.
fn arguments(text: &str) -> &str {
    let (mut depth, mut quoted, mut escaped) = (1usize, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return &text[..at];
                }
            }
            _ => {}
        }
    }
    text
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
    fn debug_forms_in_the_log_are_found() {
        let log = |arguments: &str| format!("fn f() {{\n    {}warn!({arguments});\n}}\n", "tracing::");
        let found = |arguments: &str| !log_findings(Path::new("a.rs"), &log(arguments)).is_empty();
        for wrong in [
            "?cause, \"no\"",
            "%peer, ?cause, \"no\"",
            "%peer,\n        cause = ?why,\n        \"no\"",
            concat!("\"no: {cause:", "?}\""),
            concat!("\"no (really): {:", "?}\", (why)"),
        ] {
            assert!(found(wrong), "{wrong}");
        }
        for right in ["%cause, \"no\"", "\"what now, ?cause\"", "cause = f(why)?, \"no\"", "\"no\""] {
            assert!(!found(right), "{right}");
        }
    }

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
