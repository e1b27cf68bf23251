//! Licences of all dependencies, against a short list; and crates present twice.
//!
//! `cargo deny` does this too and knows advisories, but takes minutes to compile. This check costs one `cargo
//! metadata`, so it runs on every change. `deny.toml` holds the same list.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Report;
use crate::metadata::{self, Package};

const ALLOWED: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "0BSD",
    "Unicode-3.0",
    "Unlicense",
    "CC0-1.0",
];

/// Checks every package of the dependency graph.
pub fn check(root: &Path) -> Result<Report, String> {
    let packages = metadata::load(root)?;
    let findings = packages.iter().filter_map(finding).collect();
    let notes = duplicates(&packages);
    Ok(Report { findings, notes, summary: format!("{} packages", packages.len()) })
}

fn finding(package: &Package) -> Option<String> {
    let name = format!("{} {}", package.name, package.version);
    match &package.license {
        None => Some(format!("{name} names no licence")),
        Some(expression) if !is_allowed(expression) => {
            Some(format!("{name} is under {expression}, which is not on the list"))
        }
        Some(_) => None,
    }
}

/// Whether an SPDX expression can be met from the list: one side of an OR, both of an AND.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    alternatives(&expression).iter().any(|alternative| {
        alternative
            .split(" AND ")
            .map(|part| part.trim().trim_matches(['(', ')']).trim())
            .all(|part| ALLOWED.contains(&part) || (part.contains(" OR ") && is_allowed(part)))
    })
}

/// The sides of an OR outside parentheses.
fn alternatives(expression: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let mut start = 0;
    let mut parts = Vec::new();
    for (index, character) in expression.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ' ' if depth == 0 && expression[index..].starts_with(" OR ") => {
                parts.push(&expression[start..index]);
                start = index + 4;
            }
            _ => {}
        }
    }
    parts.push(&expression[start.min(expression.len())..]);
    parts
}

fn duplicates(packages: &[Package]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(&package.version);
    }
    versions
        .into_iter()
        .filter(|(_, versions)| versions.len() > 1)
        .map(|(name, versions)| format!("{name} is there {} times: {}", versions.len(), versions.join(", ")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        for allowed in [
            "MIT",
            "MIT OR Apache-2.0",
            "GPL-2.0 OR MIT",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
        ] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for refused in ["GPL-3.0", "MIT AND GPL-2.0", "(GPL-2.0 OR AGPL-3.0) AND MIT", ""] {
            assert!(!is_allowed(refused), "{refused}");
        }
    }

    #[test]
    fn a_package_without_licence_and_one_present_twice_are_told() {
        let json = br#"{"workspace_members":[],"packages":[
            {"id":"a","name":"a","version":"1.0.0","manifest_path":"/a/Cargo.toml"},
            {"id":"b","name":"b","version":"1.0.0","license":"MIT","manifest_path":"/b/Cargo.toml"},
            {"id":"c","name":"b","version":"2.0.0","license":"MIT","manifest_path":"/c/Cargo.toml"}]}"#;
        let packages = metadata::parse(json).unwrap();
        assert_eq!(packages.iter().filter_map(finding).count(), 1);
        assert_eq!(duplicates(&packages), ["b is there 2 times: 1.0.0, 2.0.0"]);
    }
}
