//! Every place in the code that a page names, as `folder/crate/src/file.rs:function`, exists.
//!
//! Paths are relative to `crates/`, or to the root of the tree.

use std::path::Path;

use crate::Report;
use crate::markdown;

/// Looks up each `file.rs:function` that stands in backticks on a page.
pub fn check(root: &Path) -> Result<Report, String> {
    let mut findings = Vec::new();
    let mut count = 0;
    for page in markdown::pages(root)? {
        for (index, line) in page.prose.lines().enumerate() {
            for (file, function) in places(line) {
                count += 1;
                if let Some(problem) = problem(root, file, function) {
                    findings.push(format!("{}:{}: {problem}", page.file.display(), index + 1));
                }
            }
        }
    }
    Ok(Report { findings, notes: vec![], summary: format!("{count} places in the code") })
}

/// What stands in backticks and has the form `FILE.rs:NAME`.
fn places(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.split('`').skip(1).step_by(2).filter_map(|code| {
        let (file, function) = code.split_once(".rs:")?;
        let file = &code[..file.len() + ".rs".len()];
        let is_name = |name: &str| {
            !name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || "_:".contains(letter))
        };
        (is_name(function) && !file.contains(' ')).then_some((file, function))
    })
}

fn problem(root: &Path, file: &str, function: &str) -> Option<String> {
    let paths = [root.join("crates").join(file), root.join(file)];
    let Some(source) = paths.iter().find_map(|path| std::fs::read_to_string(path).ok()) else {
        return Some(format!("there is no {file}"));
    };
    let name = function.rsplit("::").next().unwrap_or(function);
    (!defines(&source, name)).then(|| format!("{file} has no `{name}`"))
}

/// Whether `source` defines a function, or a type, trait, constant or macro, of that name.
fn defines(source: &str, name: &str) -> bool {
    let kinds = ["fn ", "struct ", "enum ", "trait ", "const ", "macro_rules! ", "type ", "static "];
    kinds.iter().any(|kind| {
        source.match_indices(&format!("{kind}{name}")).any(|(at, found)| {
            let next = source.get(at + found.len()..).and_then(|rest| rest.chars().next());
            !next.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_that_a_page_names_is_there() {
        let report = check(&crate::workspace_root()).unwrap();
        assert_eq!(report.findings, Vec::<String>::new());
    }

    #[test]
    fn places_stand_in_backticks() {
        let line = "`a/b.rs:run` then `c.rs:Shard::turn`, not d.rs:x nor `e.rs` nor `f.rs:12 x`";
        assert_eq!(places(line).collect::<Vec<_>>(), [("a/b.rs", "run"), ("c.rs", "Shard::turn")]);
    }

    #[test]
    fn what_is_missing_is_found() {
        let root = crate::workspace_root();
        assert_eq!(problem(&root, "xtask/src/guide.rs", "problem"), None);
        assert!(problem(&root, "xtask/src/guide.rs", "no_such_function").is_some());
        assert!(problem(&root, "xtask/src/no_such_file.rs", "check").is_some());
        assert!(!defines("fn turning() {}", "turn"));
        assert!(defines("fn turn<T>() {}", "turn"));
    }
}
