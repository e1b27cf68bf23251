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
pub struct JsonNode {
    /// Its line, from 1.
    pub line: usize,
    /// What it is.
    pub kind: JsonKind,
}

/// What a value is.
#[derive(Clone, Debug)]
pub enum JsonKind {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as it is written.
    Number(String),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<JsonNode>),
    /// An object: keys, each once, and their values.
    Object(Vec<(String, JsonNode)>),
}

/// A document and the name of its file.
#[derive(Debug)]
pub struct Document {
    /// The file.
    pub file: String,
    /// What it holds.
    pub root: JsonNode,
}

/// Strict JSON: the parser is told to take nothing else.
const STRICT_OPTIONS: ParseOptions = ParseOptions {
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
    let parsed = parse_to_ast(text, &collect, &STRICT_OPTIONS)
        .map_err(|why| SourceError::at(file, why.line_display(), format!("is not JSON: {}", why.kind())))?;
    let value = parsed.value.ok_or_else(|| SourceError::at(file, 1, "is not JSON: it is empty"))?;
    let lines = LineIndex { file, starts: line_starts(text) };
    Ok(Document { file: file.to_owned(), root: lines.convert_node(&value)? })
}

/// At which byte each line begins.
fn line_starts(text: &str) -> Vec<usize> {
    let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect()
}

struct LineIndex<'a> {
    file: &'a str,
    starts: Vec<usize>,
}

impl LineIndex<'_> {
    fn line_number(&self, at: usize) -> usize {
        self.starts.partition_point(|start| *start <= at)
    }

    /// The nesting is bounded by the parser.
    fn convert_node(&self, value: &Value<'_>) -> Result<JsonNode, SourceError> {
        let line = self.line_number(value.range().start);
        let kind = match value {
            Value::NullKeyword(_) => JsonKind::Null,
            Value::BooleanLit(lit) => JsonKind::Bool(lit.value),
            Value::NumberLit(lit) => JsonKind::Number(lit.value.to_owned()),
            Value::StringLit(lit) => JsonKind::Text(lit.value.to_string()),
            Value::Array(array) => JsonKind::List(
                array.elements.iter().map(|value| self.convert_node(value)).collect::<Result<_, _>>()?,
            ),
            Value::Object(object) => {
                let mut entries: Vec<(String, JsonNode)> = Vec::new();
                let mut seen = std::collections::HashSet::new();
                for property in &object.properties {
                    let key = match &property.name {
                        ObjectPropName::String(lit) => lit.value.to_string(),
                        ObjectPropName::Word(lit) => lit.value.to_owned(),
                    };
                    let line = self.line_number(property.range.start);
                    if !seen.insert(key.clone()) {
                        let why = format!("the key \"{}\" stands twice", crate::note::printable_value(&key));
                        return Err(SourceError::at(self.file, line, why));
                    }
                    let mut node = self.convert_node(&property.value)?;
                    node.line = line;
                    entries.push((key, node));
                }
                JsonKind::Object(entries)
            }
        };
        Ok(JsonNode { line, kind })
    }
}
