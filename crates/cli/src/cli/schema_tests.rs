//! The JSON Schema is that of the documentation, names every verb, and keeps to one vocabulary.

use std::path::Path;

use clap::CommandFactory;
use serde_json::Value;

use super::Cli;
use crate::schema::schema;

/// With BLESS=1 it is written again.
#[test]
fn the_schema_in_the_documentation_is_this_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/blockwire.schema.json");
    let now = format!("{:#}\n", schema());
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(
        written == now,
        "docs/blockwire.schema.json is old: BLESS=1 cargo test -p blockwire --lib schema"
    );
}

/// Verbs of evaluations have forms of their own: records with a version, and fio's words.
const OWN_FORM: [&str; 8] =
    ["bench", "eval list", "eval run", "eval compare", "eval plan", "eval bare", "eval stream", "iscsictl"];

#[test]
fn every_verb_that_prints_json_has_a_schema() {
    fn collect(command: &clap::Command, name: &str, all: &mut Vec<String>) {
        if command.get_arguments().any(|argument| argument.get_long() == Some("json")) {
            all.push(name.to_owned());
        }
        for verb in command.get_subcommands() {
            collect(verb, format!("{name} {}", verb.get_name()).trim(), all);
        }
    }
    let mut all = Vec::new();
    collect(&Cli::command(), "", &mut all);
    let schema = schema();
    let verbs = schema["verbs"].as_object().unwrap();
    let missing: Vec<&String> = all
        .iter()
        .filter(|name| !OWN_FORM.contains(&name.as_str()))
        .filter(|name| !verbs.keys().any(|verb| verb == *name || verb.starts_with(&format!("{name} --"))))
        .collect();
    assert!(all.len() > 30 && missing.is_empty(), "{missing:?}");
}

/// Quantities say their unit; what has none is a count or an identifier.
#[test]
fn one_vocabulary() {
    fn names(value: &Value, all: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                if let Some(Value::Object(properties)) = object.get("properties") {
                    all.extend(properties.keys().cloned());
                }
                object.values().for_each(|value| names(value, all));
            }
            Value::Array(list) => list.iter().for_each(|value| names(value, all)),
            _ => {}
        }
    }
    let mut all = Vec::new();
    names(&schema(), &mut all);
    let other_words = [
        "bytes",
        "size",
        "block",
        "physical",
        "trouble",
        "troubles",
        "who",
        "holds",
        "timeout",
        "transferred",
        "nvme-tcp",
    ];
    let found: Vec<&String> = all.iter().filter(|name| other_words.contains(&name.as_str())).collect();
    assert!(found.is_empty(), "{found:?}");
    assert!(
        all.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'))
    );
}
