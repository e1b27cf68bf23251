//! The text formats: lines of words, and blocks of lines. `scst.conf` and `ctl.conf` put blocks in braces,
//! `targets.conf` puts them between `<name>` and `</name>`.
//!
//! Invariant: the nesting of blocks and of included files is bounded.

use crate::{
    note::{Note, NoteOutcome, printable_value},
    source::{IncludedFiles, SourceError},
};

/// Deepest nesting of blocks, or of files that include each other.
const NESTING_DEPTH_MAX: usize = 16;

/// A line, with the block behind it if it has one.
#[derive(Clone, Debug)]
pub struct Statement {
    /// The file.
    pub file: String,
    /// Its line, from 1.
    pub line: usize,
    /// Its words, without quotes; at least one.
    pub words: Vec<String>,
    /// The block.
    pub body: Option<Vec<Statement>>,
}

impl Statement {
    /// Its first word.
    pub fn first_word(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// Another word, from 1 on; empty if there is none.
    pub fn word_at(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }

    /// The words behind the first.
    pub fn remaining_words(&self) -> &[String] {
        self.words.get(1..).unwrap_or_default()
    }

    /// The statements of its block.
    pub fn block_statements(&self) -> &[Statement] {
        self.body.as_deref().unwrap_or_default()
    }

    /// A note on it; of words that hold secrets only the first two are shown.
    pub fn to_note(&self, outcome: NoteOutcome, why: impl Into<String>) -> Note {
        const SECRET_KEYS: [&str; 10] = [
            "incominguser",
            "outgoinguser",
            "incomingdiscoveryuser",
            "outgoingdiscoveryuser",
            "chap",
            "chap-mutual",
            "IncomingUser",
            "IncomingUser1",
            "OutgoingUser",
            "dhchap",
        ];
        let hides = SECRET_KEYS.iter().any(|key| self.first_word().eq_ignore_ascii_case(key));
        let words = if hides { self.words.get(..2).unwrap_or_default() } else { &self.words };
        let mut setting = printable_value(&words.join(" "));
        if hides {
            setting.push_str(" ...");
        }
        Note { file: self.file.clone(), line: self.line, setting, outcome, why: why.into() }
    }
}

/// A token of a line.
enum Token {
    Word(String),
    Open,
    Close,
}

/// Cuts a line into words; quotes protect blanks, and `#` begins a comment.
fn tokenize_line(file: &str, number: usize, line: &str, braces: bool) -> Result<Vec<Token>, SourceError> {
    let mut tokens = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    let end = |word: &mut Option<String>, tokens: &mut Vec<Token>| {
        if let Some(word) = word.take() {
            tokens.push(Token::Word(word));
        }
    };
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some('"') => break,
                        Some('\\') => word.extend(chars.next()),
                        Some(c) => word.push(c),
                        None => return Err(SourceError::at(file, number, "a quote is not closed")),
                    }
                }
            }
            '#' if word.is_none() => break,
            '{' | '}' if braces => {
                end(&mut word, &mut tokens);
                tokens.push(if c == '{' { Token::Open } else { Token::Close });
            }
            ';' if braces => end(&mut word, &mut tokens),
            c if c.is_whitespace() => end(&mut word, &mut tokens),
            c => word.get_or_insert_default().push(c),
        }
    }
    end(&mut word, &mut tokens);
    Ok(tokens)
}

/// Reads a format whose blocks stand in braces.
pub fn parse_braced(file: &str, text: &str) -> Result<Vec<Statement>, SourceError> {
    let mut open: Vec<Statement> = Vec::new();
    let mut done: Vec<Statement> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let mut current: Vec<String> = Vec::new();
        let statement = |words: &mut Vec<String>| Statement {
            file: file.to_owned(),
            line: number,
            words: std::mem::take(words),
            body: None,
        };
        for token in tokenize_line(file, number, line, true)? {
            match token {
                Token::Word(word) => current.push(word),
                Token::Open => {
                    let mut block = match current.is_empty() {
                        false => statement(&mut current),
                        // The brace may stand on a line of its own.
                        true => innermost_block(&mut open, &mut done)
                            .pop()
                            .filter(|last| last.body.is_none())
                            .ok_or_else(|| {
                                SourceError::at(file, number, "a block without a name before its {")
                            })?,
                    };
                    block.body = Some(Vec::new());
                    if open.len() >= NESTING_DEPTH_MAX {
                        let why = format!("blocks are nested more than {NESTING_DEPTH_MAX} deep");
                        return Err(SourceError::at(file, number, why));
                    }
                    open.push(block);
                }
                Token::Close => {
                    if !current.is_empty() {
                        let last = statement(&mut current);
                        innermost_block(&mut open, &mut done).push(last);
                    }
                    let block =
                        open.pop().ok_or_else(|| SourceError::at(file, number, "a } without its {"))?;
                    innermost_block(&mut open, &mut done).push(block);
                }
            }
        }
        if !current.is_empty() {
            let last = statement(&mut current);
            innermost_block(&mut open, &mut done).push(last);
        }
    }
    match open.pop() {
        Some(block) => Err(SourceError::at(file, block.line, "this { is not closed")),
        None => Ok(done),
    }
}

/// The statements of the innermost block.
fn innermost_block<'a>(open: &'a mut [Statement], done: &'a mut Vec<Statement>) -> &'a mut Vec<Statement> {
    match open.last_mut() {
        Some(block) => block.body.get_or_insert_default(),
        None => done,
    }
}

/// Reads `targets.conf` and what it includes.
pub fn parse_angled(
    file: &str,
    text: &str,
    files: &mut IncludedFiles<'_>,
) -> Result<Vec<Statement>, SourceError> {
    let mut done = Vec::new();
    parse_angled_into(file, text, files, 0, &mut done)?;
    Ok(done)
}

fn parse_angled_into(
    file: &str,
    text: &str,
    files: &mut IncludedFiles<'_>,
    depth: usize,
    done: &mut Vec<Statement>,
) -> Result<(), SourceError> {
    let mut open: Vec<Statement> = Vec::new();
    for (number, line) in join_continued_lines(text) {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("</") {
            let name = name.trim_end_matches('>').trim();
            let block = open.pop().filter(|block| block.first_word() == name).ok_or_else(|| {
                SourceError::at(file, number, format!("</{}> closes nothing", printable_value(name)))
            })?;
            innermost_block(&mut open, done).push(block);
            continue;
        }
        let inner = line.strip_prefix('<').and_then(|line| line.trim_end().strip_suffix('>'));
        let tokens = tokenize_line(file, number, inner.unwrap_or(line), false)?;
        let words: Vec<String> = tokens
            .into_iter()
            .filter_map(|token| if let Token::Word(word) = token { Some(word) } else { None })
            .collect();
        let Some(first) = words.first() else { continue };
        if inner.is_none() && first.eq_ignore_ascii_case("include") {
            let pattern = words.get(1).map_or("", String::as_str);
            if depth + 1 >= NESTING_DEPTH_MAX {
                let why = format!(
                    "files include each other more than {NESTING_DEPTH_MAX} deep; does one include itself?"
                );
                return Err(SourceError::at(file, number, why));
            }
            for (name, text) in files.find_pattern(file, number, pattern)? {
                parse_angled_into(&name, &text, files, depth + 1, innermost_block(&mut open, done))?;
            }
            continue;
        }
        let body = inner.map(|_| Vec::new());
        let statement = Statement { file: file.to_owned(), line: number, words, body };
        if inner.is_none() {
            innermost_block(&mut open, done).push(statement);
        } else if open.len() >= NESTING_DEPTH_MAX {
            return Err(SourceError::at(
                file,
                number,
                format!("blocks are nested more than {NESTING_DEPTH_MAX} deep"),
            ));
        } else {
            open.push(statement);
        }
    }
    match open.pop() {
        Some(block) => Err(SourceError::at(
            file,
            block.line,
            format!("<{}> is not closed", printable_value(block.first_word())),
        )),
        None => Ok(()),
    }
}

/// Lines with their numbers; one that ends with a backslash goes on in the next.
fn join_continued_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (line, number) in text.lines().zip(1..) {
        let (line, more) = match line.strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        match lines.last_mut().filter(|_| goes_on) {
            Some((_, last)) => last.push_str(line),
            None => lines.push((number, line.to_owned())),
        }
        goes_on = more;
    }
    lines
}
