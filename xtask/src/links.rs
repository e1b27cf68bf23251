//! Every link within the tree is valid: the file exists, and so does the heading.

use std::path::{Component, Path, PathBuf};

use crate::Report;
use crate::markdown::{self, Page};

/// Compares the links of all Markdown pages with the tree. Links to other places are not followed.
pub fn check(root: &Path) -> Result<Report, String> {
    let pages = markdown::pages(root)?;
    let mut findings = Vec::new();
    let mut count = 0;
    for page in &pages {
        for (line, link) in links(&page.prose) {
            if is_elsewhere(link) {
                continue;
            }
            count += 1;
            if let Some(problem) = problem(root, &pages, page, link) {
                findings.push(format!("{}:{line}: {link}: {problem}", page.file.display()));
            }
        }
    }
    Ok(Report { findings, notes: vec![], summary: format!("{count} links on {} pages", pages.len()) })
}

/// The targets of `[text](target)` and of `![text](target)`, with the number of their line.
fn links(prose: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (index, line) in prose.lines().enumerate() {
        let mut rest = line;
        while let Some((_, behind)) = rest.split_once("](") {
            let Some((target, behind)) = behind.split_once(')') else { break };
            // A title may follow the target.
            links.push((index + 1, target.split(' ').next().unwrap_or(target)));
            rest = behind;
        }
    }
    links
}

fn is_elsewhere(link: &str) -> bool {
    link.contains("://") || link.starts_with("mailto:")
}

fn problem(root: &Path, pages: &[Page], from: &Page, link: &str) -> Option<String> {
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
    let folder = from.file.parent().unwrap_or(Path::new(""));
    let file = if path.is_empty() { from.file.clone() } else { normal(&folder.join(path))? };
    if !root.join(&file).exists() {
        return Some(format!("there is no {}", file.display()));
    }
    let heading = heading?;
    let page = pages.iter().find(|page| page.file == file)?;
    let is_there = markdown::anchors(&page.prose).iter().any(|anchor| anchor == heading);
    (!is_there).then(|| format!("{} has no such heading", file.display()))
}

/// The path without `.` and `..`; nothing if it leads out of the tree, where nothing can be looked up.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::CurDir => {}
            Component::ParentDir if normal.pop() => {}
            _ => return None,
        }
    }
    Some(normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_of_this_tree_leads_somewhere() {
        let report = check(&crate::workspace_root()).unwrap();
        assert_eq!(report.findings, Vec::<String>::new());
    }

    #[test]
    fn what_is_missing_is_found() {
        let root = crate::workspace_root();
        let page =
            |file: &str, prose: &str| Page { file: PathBuf::from(file), prose: markdown::prose(prose) };
        let pages = [page("README.md", "# Here\n"), page("docs/a.md", "")];
        let problem = |link| problem(&root, &pages, &pages[1], link);
        assert_eq!(problem("../README.md"), None);
        assert_eq!(problem("../README.md#here"), None);
        assert!(problem("../README.md#there").is_some_and(|text| text.contains("no such heading")));
        assert!(problem("no-such-page.md").is_some_and(|text| text.contains("there is no")));
    }

    #[test]
    fn links_are_found_with_their_lines() {
        let prose = "a [b](c.md) and ![d](e.svg \"f\")\n\n[g](#h)\n";
        assert_eq!(links(prose), [(1, "c.md"), (1, "e.svg"), (3, "#h")]);
    }
}
