//! Reads settings out of an object of JSON and notes what becomes of each.
//!
//! Invariant: when a section ends, each of its keys has a note: one that was read is applied unless something
//! else was said, and one that nobody asked for is an error.

use std::cell::RefCell;

use crate::{
    json::{JsonKind, JsonNode},
    note::{Note, NoteOutcome, printable_value},
};

/// What a key means whose value decides nothing.
#[derive(Clone, Copy, Debug)]
pub enum IgnoredMeaning {
    /// Nothing here, and nothing is lost.
    NotApplicable(&'static str),
    /// Something else has the same effect.
    Emulated(&'static str),
    /// It can have this value only; another one is an error, for this reason.
    Only(&'static str, &'static str),
}

/// An object that is being read.
#[derive(Debug)]
pub struct ObjectSection<'a> {
    file: &'a str,
    /// Its line.
    pub line: usize,
    entries: &'a [(String, JsonNode)],
    states: RefCell<Vec<KeyState>>,
    notes: RefCell<Vec<Note>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyState {
    Unread,
    Read,
    Noted,
}

impl<'a> ObjectSection<'a> {
    /// Opens `node`, which is `what`. If it is no object, that is noted.
    pub fn open(file: &'a str, node: &'a JsonNode, what: &str) -> Self {
        let (entries, wrong): (&[_], _) = match &node.kind {
            JsonKind::Object(entries) => (entries, false),
            _ => (&[], true),
        };
        let section = ObjectSection {
            file,
            line: node.line,
            entries,
            states: RefCell::new(vec![KeyState::Unread; entries.len()]),
            notes: RefCell::default(),
        };
        if wrong {
            section.push_note(node.line, what.to_owned(), NoteOutcome::Error, "must be an object in { }");
        }
        section
    }

    fn find(&self, key: &str) -> Option<(usize, &'a JsonNode)> {
        let at = self.entries.iter().position(|(name, _)| name == key)?;
        self.entries.get(at).map(|(_, node)| (at, node))
    }

    fn mark_key(&self, at: usize, state: KeyState) {
        if let Some(slot) = self.states.borrow_mut().get_mut(at) {
            *slot = (*slot).max_of(state);
        }
    }

    fn push_note(&self, line: usize, setting: String, outcome: NoteOutcome, why: &str) {
        let note = Note { file: self.file.to_owned(), line, setting, outcome, why: why.to_owned() };
        self.notes.borrow_mut().push(note);
    }

    /// Whether the key is there and not `null`.
    pub fn has_key(&self, key: &str) -> bool {
        self.find(key).is_some_and(|(_, node)| !matches!(node.kind, JsonKind::Null))
    }

    /// Notes what becomes of a key, if it is there.
    pub fn note_key(&self, key: &str, outcome: NoteOutcome, why: &str) {
        if let Some((at, node)) = self.find(key) {
            self.mark_key(at, KeyState::Noted);
            let value = if is_secret(key) { "...".to_owned() } else { value_text(node) };
            self.push_note(node.line, format!("{} = {value}", printable_value(key)), outcome, why);
        }
    }

    /// Notes something that is wrong with a key, or with the whole section if it is not there.
    pub fn note_error(&self, key: &str, why: &str) {
        match self.find(key) {
            Some(_) => self.note_key(key, NoteOutcome::Error, why),
            None => self.push_note(self.line, printable_value(key), NoteOutcome::Error, why),
        }
    }

    /// A text that is not empty.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        let (at, node) = self.find(key)?;
        self.mark_key(at, KeyState::Read);
        match &node.kind {
            JsonKind::Null => None,
            JsonKind::Text(text) | JsonKind::Number(text) => {
                Some(text.as_str()).filter(|text| !text.is_empty())
            }
            _ => {
                self.note_key(key, NoteOutcome::Error, "must be a text");
                None
            }
        }
    }

    /// A whole number, or a text that holds one.
    pub fn number(&self, key: &str) -> Option<u64> {
        let (at, node) = self.find(key)?;
        self.mark_key(at, KeyState::Read);
        let number = match &node.kind {
            JsonKind::Null => return None,
            JsonKind::Number(text) | JsonKind::Text(text) => text.trim().parse().ok(),
            JsonKind::Bool(on) => Some(u64::from(*on)),
            _ => None,
        };
        if number.is_none() {
            self.note_key(key, NoteOutcome::Error, "must be a whole number from 0 to 18446744073709551615");
        }
        number
    }

    /// Yes or no, in any of the forms that these files have.
    pub fn flag(&self, key: &str) -> Option<bool> {
        let (at, node) = self.find(key)?;
        self.mark_key(at, KeyState::Read);
        let on = match &node.kind {
            JsonKind::Null => return None,
            JsonKind::Bool(on) => Some(*on),
            JsonKind::Number(text) | JsonKind::Text(text) => crate::model::parse_flag(text),
            _ => None,
        };
        if on.is_none() {
            self.note_key(key, NoteOutcome::Error, "must be true or false");
        }
        on
    }

    /// The elements of a list.
    pub fn list(&self, key: &str) -> &'a [JsonNode] {
        let Some((at, node)) = self.find(key) else { return &[] };
        self.mark_key(at, KeyState::Noted);
        match &node.kind {
            JsonKind::List(list) => list,
            JsonKind::Null => &[],
            _ => {
                self.note_key(key, NoteOutcome::Error, "must be a list in [ ]");
                &[]
            }
        }
    }

    /// An object.
    pub fn section(&self, key: &str) -> Option<ObjectSection<'a>> {
        let (at, node) = self.find(key)?;
        self.mark_key(at, KeyState::Noted);
        (!matches!(node.kind, JsonKind::Null)).then(|| ObjectSection::open(self.file, node, key))
    }

    /// Objects of a list.
    pub fn sections(&self, key: &str) -> Vec<ObjectSection<'a>> {
        self.list(key).iter().map(|node| ObjectSection::open(self.file, node, key)).collect()
    }

    /// Notes what becomes of keys whose values decide nothing.
    pub fn note_known_keys(&self, keys: &[(&str, IgnoredMeaning)]) {
        for (key, meaning) in keys {
            let Some((_, node)) = self.find(key) else { continue };
            match meaning {
                IgnoredMeaning::NotApplicable(why) => self.note_key(key, NoteOutcome::NotApplicable, why),
                IgnoredMeaning::Emulated(why) => self.note_key(key, NoteOutcome::Emulated, why),
                IgnoredMeaning::Only(only, _)
                    if value_text(node) == *only || is_same_flag(&value_text(node), only) =>
                {
                    self.note_key(key, NoteOutcome::Applied, "");
                }
                IgnoredMeaning::Only(_, why) => self.note_key(key, NoteOutcome::Error, why),
            }
        }
    }

    /// The notes, also on keys of which nothing was said.
    pub fn finish(self) -> Vec<Note> {
        let states = self.states.borrow().clone();
        for ((key, _), state) in self.entries.iter().zip(states) {
            match state {
                KeyState::Noted => {}
                KeyState::Read => self.note_key(key, NoteOutcome::Applied, ""),
                KeyState::Unread => self.note_key(key, NoteOutcome::Error, "this setting is not known here"),
            }
        }
        let mut notes = self.notes.into_inner();
        notes.sort_by_key(|note| note.line);
        notes
    }

    /// The notes as those of what is left out as a whole, for this reason.
    pub fn into_omitted_notes(self, what: &str, outcome: NoteOutcome, why: &str) -> Vec<Note> {
        let setting = what.to_owned();
        vec![Note { file: self.file.to_owned(), line: self.line, setting, outcome, why: why.to_owned() }]
    }
}

impl KeyState {
    fn max_of(self, other: KeyState) -> KeyState {
        if self == KeyState::Noted { self } else { other }
    }
}

/// Whether a key holds a secret.
fn is_secret(key: &str) -> bool {
    ["password", "secret", "dhchap_key", "dhchap_ctrl_key", "psk"].iter().any(|word| key.contains(word))
}

fn is_same_flag(value: &str, only: &str) -> bool {
    crate::model::parse_flag(only).is_some()
        && crate::model::parse_flag(value) == crate::model::parse_flag(only)
}

/// A value as a note shows it.
fn value_text(node: &JsonNode) -> String {
    match &node.kind {
        JsonKind::Null => "null".to_owned(),
        JsonKind::Bool(on) => on.to_string(),
        JsonKind::Number(text) | JsonKind::Text(text) => printable_value(text),
        JsonKind::List(list) => format!("[{} elements]", list.len()),
        JsonKind::Object(entries) => format!("{{{} settings}}", entries.len()),
    }
}
