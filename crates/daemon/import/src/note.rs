//! What became of a setting.

use std::fmt;

/// What became of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteOutcome {
    /// It holds as it stands.
    Applied,
    /// Something else is done to the same end; the note says what.
    Emulated,
    /// There is nothing here that it could be said to, and nothing is lost.
    NotApplicable,
    /// It could not be carried over.
    Error,
}

impl NoteOutcome {
    /// Its word, as notes begin with.
    pub fn as_str(self) -> &'static str {
        match self {
            NoteOutcome::Applied => "applied",
            NoteOutcome::Emulated => "emulated",
            NoteOutcome::NotApplicable => "not applicable",
            NoteOutcome::Error => "ERROR",
        }
    }
}

/// A note on a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The file.
    pub file: String,
    /// Its line, from 1.
    pub line: usize,
    /// The setting, without a secret.
    pub setting: String,
    /// What became of it.
    pub outcome: NoteOutcome,
    /// How, or why not; may be empty.
    pub why: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.setting, self.outcome.as_str())?;
        if self.why.is_empty() { Ok(()) } else { write!(f, ": {}", self.why) }
    }
}

/// Most characters of a value that a note shows.
const SHOWN_CHARS_MAX: usize = 80;

/// A value of foreign origin as a note may show it: one line, without control characters, not endless.
pub fn printable_value(text: &str) -> String {
    let plain = |c: char| if c.is_control() { '?' } else { c };
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).map(plain).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}
