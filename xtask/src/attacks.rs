//! Every known attack has a test: `docs/attacks.md` names the tests of each row, and they exist.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;

use crate::Report;

/// Rows that concern a target: 1 to 53 of iSCSI, up to 77 of NVMe/TCP; then those of an iSCSI initiator,
/// of an NVMe host, and of a gateway of a group.
const ROWS: [RangeInclusive<u32>; 1] = [1..=116];
const PAGE: &str = "docs/attacks.md";

/// Compares the page with the tests of the tree.
pub fn check(root: &Path) -> Result<Report, String> {
    let page = std::fs::read_to_string(root.join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let mut sources = String::new();
    collect(&root.join("crates"), &mut sources)?;
    let findings = compare(&page, &functions(&sources));
    let summary = format!("{} rows of {PAGE}", ROWS.into_iter().flatten().count());
    Ok(Report { findings, notes: vec![], summary })
}

fn collect(folder: &Path, sources: &mut String) -> Result<(), String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.is_dir() {
            collect(&path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push_str(&std::fs::read_to_string(&path).map_err(|error| error.to_string())?);
        }
    }
    Ok(())
}

/// The names of all functions that are tests.
fn functions(sources: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut is_test = false;
    for line in sources.lines().map(str::trim) {
        if line == "#[test]" {
            is_test = true;
        } else if let Some(name) = line.strip_prefix("fn ").and_then(|rest| rest.split(['(', '<']).next()) {
            // A property test's `fn` follows its own `#[test]` too.
            if std::mem::take(&mut is_test) {
                names.insert(name);
            }
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            is_test = false;
        }
    }
    names
}

/// The rows that a test's name claims: `attack_13_and_14_reflection` claims two.
fn claimed(name: &str) -> Vec<u32> {
    let Some(rest) = name.strip_prefix("attack_") else { return vec![] };
    let mut rows = Vec::new();
    let mut words = rest.split('_');
    while let Some(row) = words.next().and_then(|word| word.parse().ok()) {
        rows.push(row);
        if words.next() != Some("and") {
            break;
        }
    }
    rows
}

fn compare(page: &str, tests: &BTreeSet<&str>) -> Vec<String> {
    let mut rows: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    let mut findings = Vec::new();
    for line in page.lines() {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let Some(row) = cells.next().and_then(|cell| cell.parse::<u32>().ok()) else { continue };
        let named = cells.next_back().unwrap_or_default();
        let names = named.split(',').map(|name| name.trim().trim_matches('`'));
        if rows.insert(row, names.filter(|name| !name.is_empty()).collect()).is_some() {
            findings.push(format!("row {row} stands twice"));
        }
    }
    for row in ROWS.into_iter().flatten() {
        let names = rows.get(&row).cloned().unwrap_or_default();
        if !names.iter().any(|name| claimed(name).contains(&row)) {
            findings.push(format!("row {row} has no test of its own"));
        }
        findings.extend(
            names
                .iter()
                .filter(|name| !tests.contains(*name))
                .map(|name| format!("row {row}: no test {name}")),
        );
    }
    for test in tests {
        for row in claimed(test).into_iter().filter(|row| ROWS.iter().any(|rows| rows.contains(row))) {
            if !rows.get(&row).is_some_and(|names| names.contains(test)) {
                findings.push(format!("{test} is not named in row {row}"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_test() {
        let report = check(&crate::workspace_root()).unwrap();
        assert_eq!(report.findings, Vec::<String>::new());
    }

    #[test]
    fn what_is_missing_is_found() {
        let sources =
            "#[test]\nfn attack_01_and_02_both() {\n}\nfn attack_03_no_test() {}\n#[test]\nfn other() {}";
        let tests = functions(sources);
        assert_eq!(tests, BTreeSet::from(["attack_01_and_02_both", "other"]));
        assert_eq!(claimed("attack_01_and_02_both"), [1, 2]);
        let page = "| 1 | a | b | `attack_01_and_02_both` |\n| 3 | a | b | `attack_03_no_test`, `other` |\n";
        let findings = compare(page, &tests);
        assert!(findings.contains(&"row 2 has no test of its own".to_owned()));
        assert!(findings.contains(&"row 3: no test attack_03_no_test".to_owned()));
        assert!(findings.contains(&"attack_01_and_02_both is not named in row 2".to_owned()));
        assert!(!findings.iter().any(|finding| finding.contains("row 1 ")));
    }
}
