//! Reads typed values out of one TOML table, with the place of each.
//!
//! Invariant: a key that the section's schema does not name is refused when the reader is made, and only keys
//! of the schema can be read.

use std::{ops::RangeInclusive, path::Path};

use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue},
};

use super::{
    diagnostic::{Located, Place, Sink, SourceText},
    schema::Section,
};
use crate::size;
use multipath::suggest;

/// The file being read: its text, its directory and where complaints go.
#[derive(Clone, Copy)]
pub struct FileContext<'a> {
    /// The text, for places.
    pub text: &'a SourceText,
    /// The file's directory, where relative paths start.
    pub directory: &'a Path,
    /// Others than owner and group may read the file, so it must hold no secret.
    pub world_readable: bool,
    /// Where complaints go.
    pub sink: &'a Sink,
}

/// A table of the file.
#[derive(Clone, Copy)]
pub struct TableReader<'a> {
    /// The file.
    pub file: FileContext<'a>,
    section: &'static Section,
    table: &'a DeTable<'a>,
    at: usize,
}

impl<'a> TableReader<'a> {
    /// Opens a table and complains about every key that `section` does not know.
    pub fn new(file: FileContext<'a>, section: &'static Section, table: &'a DeTable<'a>, at: usize) -> Self {
        for (key, _) in table.iter() {
            let name: &str = key.get_ref();
            if !section.names().any(|known| known == name) {
                let hint = suggest::unknown_word_hint(name, section.names());
                let place = file.text.place_of_span(key.span());
                file.sink.note_error(&place, format!("unknown key \"{name}\" in {}{hint}", section.title));
            }
        }
        TableReader { file, section, table, at }
    }

    /// Where the table begins.
    pub fn place(&self) -> Place {
        self.file.text.place_of_span(self.at..self.at)
    }

    fn entry(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        assert!(self.section.names().any(|known| known == key), "{key} is missing in the schema");
        self.table.get(key)
    }

    fn place_of(&self, value: &Spanned<DeValue<'_>>) -> Place {
        self.file.text.place_of_span(value.span())
    }

    /// Complains about the value of `key`.
    fn note_invalid_value<T>(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        why: impl std::fmt::Display,
    ) -> Option<T> {
        self.file.sink.note_error(&self.place_of(value), format!("{key} in {} {why}", self.section.title));
        None
    }

    /// Complains that `value` is not of the type wanted.
    fn note_type_mismatch<T>(&self, key: &str, value: &Spanned<DeValue<'_>>, want: &str) -> Option<T> {
        self.note_invalid_value(key, value, format!("must be {want}, not {}", type_name(value.get_ref())))
    }

    /// The value, or a complaint that it is missing.
    pub fn require<T>(&self, key: &str, value: Option<T>) -> Option<T> {
        if value.is_none() && self.entry(key).is_none() {
            let title = self.section.title;
            self.file.sink.note_error(&self.place(), format!("{title} needs the key \"{key}\""));
        }
        value
    }

    /// Whether the key is written.
    pub fn has_key(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// A text.
    pub fn text(&self, key: &str) -> Option<Located<String>> {
        let value = self.entry(key)?;
        self.expect_text(key, value)
    }

    fn expect_text(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Option<Located<String>> {
        match value.get_ref() {
            DeValue::String(text) => Some(Located::new(text.to_string(), self.place_of(value))),
            _ => self.note_type_mismatch(key, value, "a text in quotes"),
        }
    }

    /// A text that `parse` turns into something.
    pub fn parsed<T, E: std::fmt::Display>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<Located<T>> {
        let text = self.text(key)?;
        self.convert_text(key, text, parse)
    }

    fn convert_text<T, E: std::fmt::Display>(
        &self,
        key: &str,
        text: Located<String>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<Located<T>> {
        match parse(&text.value) {
            Ok(value) => Some(Located::new(value, text.at)),
            Err(why) => {
                self.file.sink.note_error(&text.at, format!("{key} in {}: {why}", self.section.title));
                None
            }
        }
    }

    /// One of a few words.
    pub fn keyword<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Option<Located<T>> {
        let text = self.text(key)?;
        self.match_keyword(key, text, words)
    }

    fn match_keyword<T: Copy>(
        &self,
        key: &str,
        text: Located<String>,
        words: &[(&str, T)],
    ) -> Option<Located<T>> {
        self.convert_text(key, text, |text| {
            let found = words.iter().find(|(word, _)| *word == text);
            let hint = || suggest::unknown_word_hint(text, words.iter().map(|(word, _)| *word));
            found.map(|(_, value)| *value).ok_or_else(|| format!("unknown value \"{text}\"{}", hint()))
        })
    }

    /// A list of words, none twice.
    pub fn keywords<T: Copy + PartialEq>(&self, key: &str, words: &[(&str, T)]) -> Option<Located<Vec<T>>> {
        let mut values: Vec<T> = Vec::new();
        let (array, at) = self.array(key)?;
        if array.is_empty() {
            self.file.sink.note_error(&at, format!("{key} in {} must not be empty", self.section.title));
        }
        for element in array {
            let Some(text) = self.expect_text(key, element) else { continue };
            let Some(word) = self.match_keyword(key, text, words) else { continue };
            if values.contains(&word.value) {
                self.file
                    .sink
                    .note_error(&word.at, format!("{key} in {} names it twice", self.section.title));
            }
            values.push(word.value);
        }
        Some(Located::new(values, at))
    }

    /// A list of texts, each turned by `parse`.
    pub fn parsed_list<T, E: std::fmt::Display>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<Vec<Located<T>>> {
        let (array, _) = self.array(key)?;
        let texts = array.iter().filter_map(|element| self.expect_text(key, element));
        Some(texts.filter_map(|text| self.convert_text(key, text, &parse)).collect())
    }

    /// A list of whole numbers.
    pub fn numbers(&self, key: &str, range: RangeInclusive<u64>) -> Option<Vec<Located<u64>>> {
        let (array, _) = self.array(key)?;
        Some(array.iter().filter_map(|element| self.expect_number(key, element, range.clone())).collect())
    }

    /// `true` or `false`.
    pub fn boolean(&self, key: &str) -> Option<Located<bool>> {
        let value = self.entry(key)?;
        match value.get_ref() {
            DeValue::Boolean(on) => Some(Located::new(*on, self.place_of(value))),
            _ => self.note_type_mismatch(key, value, "true or false"),
        }
    }

    /// A whole number.
    pub fn number(&self, key: &str, range: RangeInclusive<u64>) -> Option<Located<u64>> {
        let value = self.entry(key)?;
        self.expect_number(key, value, range)
    }

    fn expect_number(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        range: RangeInclusive<u64>,
    ) -> Option<Located<u64>> {
        let DeValue::Integer(number) = value.get_ref() else {
            return self.note_type_mismatch(key, value, "a whole number");
        };
        match u64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) if range.contains(&number) => Some(Located::new(number, self.place_of(value))),
            _ => self.note_invalid_value(
                key,
                value,
                format!("must be from {} to {}", range.start(), range.end()),
            ),
        }
    }

    /// A size: a number of bytes or a text such as `"64K"`.
    pub fn size(&self, key: &str, range: RangeInclusive<u64>) -> Option<Located<u64>> {
        let value = self.entry(key)?;
        let bytes = match value.get_ref() {
            DeValue::Integer(_) => return self.expect_number(key, value, range),
            DeValue::String(text) => match size::parse(text) {
                Ok(bytes) => bytes,
                Err(why) => return self.note_invalid_value(key, value, format!("is no size: {why}")),
            },
            _ => return self.note_type_mismatch(key, value, "a size such as 65536 or \"64K\""),
        };
        if range.contains(&bytes) {
            Some(Located::new(bytes, self.place_of(value)))
        } else {
            self.note_invalid_value(
                key,
                value,
                format!("must be from {} to {} bytes", range.start(), range.end()),
            )
        }
    }

    /// A value of any simple type as it would be written in a SPEC: `true` is `on`.
    pub fn as_spec_value(&self, key: &str) -> Option<Located<String>> {
        let value = self.entry(key)?;
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Boolean(on) => if *on { "on" } else { "off" }.to_owned(),
            DeValue::Integer(number) => match u64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => number.to_string(),
                Err(_) => return self.note_invalid_value(key, value, "must not be negative"),
            },
            _ => return self.note_type_mismatch(key, value, "a text, a number or true or false"),
        };
        Some(Located::new(text, self.place_of(value)))
    }

    fn array(&self, key: &str) -> Option<(&'a DeArray<'a>, Place)> {
        let value = self.entry(key)?;
        match value.get_ref() {
            DeValue::Array(array) => Some((array, self.place_of(value))),
            _ => self.note_type_mismatch(key, value, "a list in [ ]"),
        }
    }

    /// A table.
    pub fn table(&self, key: &str, section: &'static Section) -> Option<TableReader<'a>> {
        let value = self.entry(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(TableReader::new(self.file, section, table, value.span().start)),
            DeValue::Array(_) => self.note_invalid_value(key, value, format!("stands once, as [{key}]")),
            _ => self.note_type_mismatch(key, value, "a table"),
        }
    }

    /// A list of tables.
    pub fn tables(&self, key: &str, section: &'static Section) -> Vec<TableReader<'a>> {
        let Some(value) = self.entry(key) else { return Vec::new() };
        match value.get_ref() {
            DeValue::Array(array) => {
                array.iter().filter_map(|element| self.table_element(key, section, element)).collect()
            }
            DeValue::Table(_) if section.title.starts_with("[[") => {
                self.note_invalid_value::<()>(key, value, format!("is a list of tables: write [[{key}]]"));
                Vec::new()
            }
            _ => {
                self.note_type_mismatch::<()>(key, value, "a list of tables");
                Vec::new()
            }
        }
    }

    /// One table or a list of tables.
    pub fn one_or_more_tables(&self, key: &str, section: &'static Section) -> Vec<TableReader<'a>> {
        match self.entry(key).map(Spanned::get_ref) {
            Some(DeValue::Table(_)) => self.table(key, section).into_iter().collect(),
            _ => self.tables(key, section),
        }
    }

    fn table_element(
        &self,
        key: &str,
        section: &'static Section,
        value: &'a Spanned<DeValue<'a>>,
    ) -> Option<TableReader<'a>> {
        match value.get_ref() {
            DeValue::Table(table) => Some(TableReader::new(self.file, section, table, value.span().start)),
            _ => self.note_type_mismatch(key, value, "a list of tables"),
        }
    }
}

fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
