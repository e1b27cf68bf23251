//! Plain technical English: unusual words, and sentences that are too long.
//!
//! Words are searched in pages, and in comments of items and strings of Rust files. Reports of evaluations
//! are excluded, because they are records. Sentences are counted on the two pages that everyone reads first.

use std::path::Path;

/// Words, and what is usual.
const WORDS: &[(&str, &str)] = &[
    ("anew", "again"),
    ("whence", "from where"),
    ("whoever", "any host, whatever program"),
    ("nobody need", "is not needed"),
    ("in vain", "without success, idle"),
    ("so that nobody", "so that no host"),
    ("lest", "so that ... not"),
    ("whither", "where to"),
];
/// In pages and messages only.
const WORDS_OF_PAGES: &[(&str, &str)] = &[("of which", "whose, where, two sentences")];

/// Pages whose sentences are counted.
const FIRST_PAGES: &[&str] = &["README.md", "ARCHITECTURE.md"];
/// The words of their longest sentence.
const SENTENCE_MAX: usize = 35;

/// Everything that is found in one file.
pub fn findings(file: &Path, text: &str) -> Vec<String> {
    let name = file.to_string_lossy();
    let is_page = name.ends_with(".md") && !name.starts_with("docs/eval/");
    let is_source = name.ends_with(".rs") && !name.starts_with("xtask/");
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|_| is_page || is_source) {
        let (said, message) = if is_page { (line, line) } else { said(line) };
        let common = WORDS.iter().filter(|(word, _)| contains(said, word));
        let of_pages = WORDS_OF_PAGES.iter().filter(|(word, _)| contains(message, word));
        for (word, usual) in common.chain(of_pages) {
            findings.push(format!("{name}:{}: \"{word}\"; say: {usual}", index + 1));
        }
    }
    if FIRST_PAGES.contains(&&*name) {
        for (line, words) in long_sentences(text) {
            findings.push(format!("{name}:{line}: a sentence of {words} words; {SENTENCE_MAX} at most"));
        }
    }
    findings
}

/// What a line of source says to people: all of it, and what of that is a message.
fn said(line: &str) -> (&str, &str) {
    let code = line.trim_start();
    if code.starts_with("///") || code.starts_with("//!") {
        return (code, "");
    }
    let message = code.find('"').map_or("", |at| &code[at..]);
    (message, message)
}

/// Whether `text` has this word, or these words, whole.
fn contains(text: &str, word: &str) -> bool {
    let text = text.to_lowercase();
    let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        !is_letter(text[..at].chars().next_back()) && !is_letter(text[at + word.len()..].chars().next())
    })
}

/// The line and length of each sentence that is too long. Cells of tables and points of lists are sentences of
/// their own; what stands in fences is none.
fn long_sentences(text: &str) -> Vec<(usize, usize)> {
    let (mut found, mut fenced) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let sentences =
                line.split('|').flat_map(|cell| cell.split(". ").flat_map(|part| part.split("? ")));
            let words = sentences.map(|sentence| sentence.split_whitespace().count());
            found.extend(words.filter(|words| *words > SENTENCE_MAX).map(|words| (index + 1, words)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> usize {
        findings(Path::new(file), text).len()
    }

    #[test]
    fn words_that_have_a_usual_one_are_found_where_people_read() {
        assert_eq!(found("docs/a.md", "It starts Anew.\nThe volume of which two paths are left.\n"), 2);
        assert_eq!(found("docs/a.md", "A renewed molest is fine.\n"), 0);
        assert_eq!(found("docs/eval/x/report.md", "in vain\n"), 0, "a record");
        assert_eq!(found("a.rs", "    /// Whence.\n    let whence = 1; // whence\n"), 1);
        assert_eq!(found("a.rs", "    say(\"one of which is away\");\n    /// Of which class.\n"), 1);
    }

    #[test]
    fn long_sentences_of_the_first_pages_are_found() {
        let long = format!("{}end.\n", "word ".repeat(SENTENCE_MAX));
        assert_eq!((found("README.md", &long), found("docs/a.md", &long)), (1, 0));
        assert_eq!(found("README.md", &format!("```\n{long}```\n")), 0, "a command");
        assert_eq!(found("README.md", &"A sentence of five words. ".repeat(9)), 0);
    }
}
