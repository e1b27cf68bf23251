//! Reads settings out of an object of JSON and notes what becomes of each.
//!
//! Invariant: when a section ends, each of its keys has a note: one that was read is applied unless something
//! else was said, and one that nobody asked for is an error.

use std::cell::RefCell;

use crate::{
    json::{Kind, Node},
    note::{Note, Outcome, shown},
};

/// What a key means whose value decides nothing.
#[derive(Clone, Copy, Debug)]
pub enum Meaning {
    /// Nothing here, and nothing is lost.
    NotApplicable(&'static str),
    /// Something else has the same effect.
    Emulated(&'static str),
    /// It can have this value only; another one is an error, for this reason.
    Only(&'static str, &'static str),
}

/// An object that is being read.
#[derive(Debug)]
pub struct Section<'a> {
    file: &'a str,
    /// Its line.
    pub line: usize,
    entries: &'a [(String, Node)],
    states: RefCell<Vec<State>>,
    notes: RefCell<Vec<Note>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unread,
    Read,
    Noted,
}

impl<'a> Section<'a> {
    /// Opens `node`, which is `what`. If it is no object, that is noted.
    pub fn open(file: &'a str, node: &'a Node, what: &str) -> Self {
        let (entries, wrong): (&[_], _) = match &node.kind {
            Kind::Object(entries) => (entries, false),
            _ => (&[], true),
        };
        let section = Section {
            file,
            line: node.line,
            entries,
            states: RefCell::new(vec![State::Unread; entries.len()]),
            notes: RefCell::default(),
        };
        if wrong {
            section.say(node.line, what.to_owned(), Outcome::Error, "must be an object in { }");
        }
        section
    }

    fn find(&self, key: &str) -> Option<(usize, &'a Node)> {
        let at = self.entries.iter().position(|(name, _)| name == key)?;
        self.entries.get(at).map(|(_, node)| (at, node))
    }

    fn mark(&self, at: usize, state: State) {
        if let Some(slot) = self.states.borrow_mut().get_mut(at) {
            *slot = (*slot).max_of(state);
        }
    }

    fn say(&self, line: usize, setting: String, outcome: Outcome, why: &str) {
        let note = Note { file: self.file.to_owned(), line, setting, outcome, why: why.to_owned() };
        self.notes.borrow_mut().push(note);
    }

    /// Whether the key is there and not `null`.
    pub fn has(&self, key: &str) -> bool {
        self.find(key).is_some_and(|(_, node)| !matches!(node.kind, Kind::Null))
    }

    /// Notes what becomes of a key, if it is there.
    pub fn note(&self, key: &str, outcome: Outcome, why: &str) {
        if let Some((at, node)) = self.find(key) {
            self.mark(at, State::Noted);
            let value = if is_secret(key) { "...".to_owned() } else { value(node) };
            self.say(node.line, format!("{} = {value}", shown(key)), outcome, why);
        }
    }

    /// Notes something that is wrong with a key, or with the whole section if it is not there.
    pub fn error(&self, key: &str, why: &str) {
        match self.find(key) {
            Some(_) => self.note(key, Outcome::Error, why),
            None => self.say(self.line, shown(key), Outcome::Error, why),
        }
    }

    /// A text that is not empty.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        let (at, node) = self.find(key)?;
        self.mark(at, State::Read);
        match &node.kind {
            Kind::Null => None,
            Kind::Text(text) | Kind::Number(text) => Some(text.as_str()).filter(|text| !text.is_empty()),
            _ => {
                self.note(key, Outcome::Error, "must be a text");
                None
            }
        }
    }

    /// A whole number, or a text that holds one.
    pub fn number(&self, key: &str) -> Option<u64> {
        let (at, node) = self.find(key)?;
        self.mark(at, State::Read);
        let number = match &node.kind {
            Kind::Null => return None,
            Kind::Number(text) | Kind::Text(text) => text.trim().parse().ok(),
            Kind::Bool(on) => Some(u64::from(*on)),
            _ => None,
        };
        if number.is_none() {
            self.note(key, Outcome::Error, "must be a whole number from 0 to 18446744073709551615");
        }
        number
    }

    /// Yes or no, in any of the forms that these files have.
    pub fn flag(&self, key: &str) -> Option<bool> {
        let (at, node) = self.find(key)?;
        self.mark(at, State::Read);
        let on = match &node.kind {
            Kind::Null => return None,
            Kind::Bool(on) => Some(*on),
            Kind::Number(text) | Kind::Text(text) => crate::model::flag(text),
            _ => None,
        };
        if on.is_none() {
            self.note(key, Outcome::Error, "must be true or false");
        }
        on
    }

    /// The elements of a list.
    pub fn list(&self, key: &str) -> &'a [Node] {
        let Some((at, node)) = self.find(key) else { return &[] };
        self.mark(at, State::Noted);
        match &node.kind {
            Kind::List(list) => list,
            Kind::Null => &[],
            _ => {
                self.note(key, Outcome::Error, "must be a list in [ ]");
                &[]
            }
        }
    }

    /// An object.
    pub fn section(&self, key: &str) -> Option<Section<'a>> {
        let (at, node) = self.find(key)?;
        self.mark(at, State::Noted);
        (!matches!(node.kind, Kind::Null)).then(|| Section::open(self.file, node, key))
    }

    /// Objects of a list.
    pub fn sections(&self, key: &str) -> Vec<Section<'a>> {
        self.list(key).iter().map(|node| Section::open(self.file, node, key)).collect()
    }

    /// Notes what becomes of keys whose values decide nothing.
    pub fn known(&self, keys: &[(&str, Meaning)]) {
        for (key, meaning) in keys {
            let Some((_, node)) = self.find(key) else { continue };
            match meaning {
                Meaning::NotApplicable(why) => self.note(key, Outcome::NotApplicable, why),
                Meaning::Emulated(why) => self.note(key, Outcome::Emulated, why),
                Meaning::Only(only, _) if value(node) == *only || same_flag(&value(node), only) => {
                    self.note(key, Outcome::Applied, "");
                }
                Meaning::Only(_, why) => self.note(key, Outcome::Error, why),
            }
        }
    }

    /// The notes, also on keys of which nothing was said.
    pub fn finish(self) -> Vec<Note> {
        let states = self.states.borrow().clone();
        for ((key, _), state) in self.entries.iter().zip(states) {
            match state {
                State::Noted => {}
                State::Read => self.note(key, Outcome::Applied, ""),
                State::Unread => self.note(key, Outcome::Error, "this setting is not known here"),
            }
        }
        let mut notes = self.notes.into_inner();
        notes.sort_by_key(|note| note.line);
        notes
    }

    /// The notes as those of what is left out as a whole, for this reason.
    pub fn leave_out(self, what: &str, outcome: Outcome, why: &str) -> Vec<Note> {
        let setting = what.to_owned();
        vec![Note { file: self.file.to_owned(), line: self.line, setting, outcome, why: why.to_owned() }]
    }
}

impl State {
    fn max_of(self, other: State) -> State {
        if self == State::Noted { self } else { other }
    }
}

/// Whether a key holds a secret.
fn is_secret(key: &str) -> bool {
    ["password", "secret", "dhchap_key", "dhchap_ctrl_key", "psk"].iter().any(|word| key.contains(word))
}

fn same_flag(value: &str, only: &str) -> bool {
    crate::model::flag(only).is_some() && crate::model::flag(value) == crate::model::flag(only)
}

/// A value as a note shows it.
fn value(node: &Node) -> String {
    match &node.kind {
        Kind::Null => "null".to_owned(),
        Kind::Bool(on) => on.to_string(),
        Kind::Number(text) | Kind::Text(text) => shown(text),
        Kind::List(list) => format!("[{} elements]", list.len()),
        Kind::Object(entries) => format!("{{{} settings}}", entries.len()),
    }
}
