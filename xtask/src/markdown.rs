//! The Markdown pages of the tree, and their prose: code blocks are blanked, lines keep their numbers.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A page, with the numbers of its lines as in the file.
pub struct Page {
    /// Relative to the root of the tree.
    pub file: PathBuf,
    /// The text without what stands between fences.
    pub prose: String,
}

/// All Markdown files that git knows or would add.
pub fn pages(root: &Path) -> Result<Vec<Page>, String> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"])
        .output()
        .map_err(|error| format!("git ls-files: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let mut pages = Vec::new();
    for name in String::from_utf8_lossy(&output.stdout).split('\0').filter(|name| !name.is_empty()) {
        // A file that was deleted and not committed yet is in the index still.
        let Ok(text) = std::fs::read_to_string(root.join(name)) else { continue };
        pages.push(Page { file: PathBuf::from(name), prose: prose(&text) });
    }
    Ok(pages)
}

/// `text` with its fenced blocks blanked, line by line.
pub fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut prose = String::with_capacity(text.len());
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        if !is_fence && !is_code {
            prose.push_str(line);
        }
        is_code ^= is_fence;
        prose.push('\n');
    }
    prose
}

/// The anchors of a page's headings, as hosted Git services and mdBook make them.
pub fn anchors(prose: &str) -> Vec<String> {
    let headings = prose.lines().filter_map(|line| line.strip_prefix('#'));
    let mut anchors: Vec<String> = Vec::new();
    for heading in headings {
        let text = heading.trim_start_matches('#');
        let Some(text) = text.strip_prefix(' ') else { continue };
        let anchor = anchor(text);
        let same = anchors.iter().filter(|other| **other == anchor).count();
        anchors.push(if same == 0 { anchor } else { format!("{anchor}-{same}") });
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let mut anchor = String::new();
    for letter in heading.trim().chars().flat_map(char::to_lowercase) {
        match letter {
            ' ' => anchor.push('-'),
            letter if letter.is_alphanumeric() || letter == '-' || letter == '_' => anchor.push(letter),
            _ => {}
        }
    }
    anchor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_no_prose() {
        assert_eq!(prose("a\n```sh\n# b\n```\nc\n"), "a\n\n\n\nc\n");
    }

    #[test]
    fn headings_become_anchors() {
        let page = "# Try it\n## `copy`: what is done?\n## Try it\n#no heading\n";
        assert_eq!(anchors(page), ["try-it", "copy-what-is-done", "try-it-1"]);
    }
}
