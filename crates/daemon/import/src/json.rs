//! JSON with the line of each value.

use jsonc_parser::{
    CollectOptions, CommentCollectionStrategy, ParseOptions,
    ast::{ObjectPropName, Value},
    common::Ranged,
    parse_to_ast,
};

use crate::source::SourceError;

/// A value and its line.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its line, from 1.
    pub line: usize,
    /// What it is.
    pub kind: Kind,
}

/// What a value is.
#[derive(Clone, Debug)]
pub enum Kind {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as it is written.
    Number(String),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// An object: keys, each once, and their values.
    Object(Vec<(String, Node)>),
}

/// A document and the name of its file.
#[derive(Debug)]
pub struct Document {
    /// The file.
    pub file: String,
    /// What it holds.
    pub root: Node,
}

/// Strict JSON: the parser is told to take nothing else.
const STRICT: ParseOptions = ParseOptions {
    allow_comments: false,
    allow_loose_object_property_names: false,
    allow_trailing_commas: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Reads a text.
pub fn parse(file: &str, text: &str) -> Result<Document, SourceError> {
    let collect = CollectOptions { comments: CommentCollectionStrategy::Off, tokens: false };
    let parsed = parse_to_ast(text, &collect, &STRICT)
        .map_err(|why| SourceError::at(file, why.line_display(), format!("is not JSON: {}", why.kind())))?;
    let value = parsed.value.ok_or_else(|| SourceError::at(file, 1, "is not JSON: it is empty"))?;
    let lines = Lines { file, starts: starts(text) };
    Ok(Document { file: file.to_owned(), root: lines.node(&value)? })
}

/// At which byte each line begins.
fn starts(text: &str) -> Vec<usize> {
    let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect()
}

struct Lines<'a> {
    file: &'a str,
    starts: Vec<usize>,
}

impl Lines<'_> {
    fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|start| *start <= at)
    }

    /// The nesting is bounded by the parser.
    fn node(&self, value: &Value<'_>) -> Result<Node, SourceError> {
        let line = self.line(value.range().start);
        let kind = match value {
            Value::NullKeyword(_) => Kind::Null,
            Value::BooleanLit(lit) => Kind::Bool(lit.value),
            Value::NumberLit(lit) => Kind::Number(lit.value.to_owned()),
            Value::StringLit(lit) => Kind::Text(lit.value.to_string()),
            Value::Array(array) => {
                Kind::List(array.elements.iter().map(|value| self.node(value)).collect::<Result<_, _>>()?)
            }
            Value::Object(object) => {
                let mut entries: Vec<(String, Node)> = Vec::new();
                let mut seen = std::collections::HashSet::new();
                for property in &object.properties {
                    let key = match &property.name {
                        ObjectPropName::String(lit) => lit.value.to_string(),
                        ObjectPropName::Word(lit) => lit.value.to_owned(),
                    };
                    let line = self.line(property.range.start);
                    if !seen.insert(key.clone()) {
                        let why = format!("the key \"{}\" stands twice", crate::note::shown(&key));
                        return Err(SourceError::at(self.file, line, why));
                    }
                    let mut node = self.node(&property.value)?;
                    node.line = line;
                    entries.push((key, node));
                }
                Kind::Object(entries)
            }
        };
        Ok(Node { line, kind })
    }
}
