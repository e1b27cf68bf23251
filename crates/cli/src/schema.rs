//! A JSON Schema of what each verb prints with `--json`.
//!
//! It is made from the types that are printed, so it cannot say anything else. `docs/blockwire.schema.json` is this
//! schema; a test holds the two together, and another holds what the verbs print to it.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{doctor, flight_recorder, reports};
use control::report;

/// The schema: `verbs` names each verb's, `$defs` has the types.
pub fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut verbs = Map::new();
    add_daemon_verbs(&mut verbs, &mut generator);
    add_initiator_verbs(&mut verbs, &mut generator);
    add::<reports::FailureReport>(&mut verbs, &mut generator, &["failure"]);
    let types: Map<String, Value> = generator.take_definitions(true).into_iter().collect();
    let mut whole = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What blockwire prints with --json",
        "description": "verbs: the schema of each verb's output; failure is on standard error, everything else on \
                        standard output.",
        "verbs": verbs,
        "$defs": types,
    });
    use_words_of_json(&mut whole);
    whole
}

/// Descriptions are those of the types: what Rust calls `None` is `null` here.
fn use_words_of_json(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if let Some(Value::String(text)) = object.get_mut("description") {
                *text = text
                    .replace("`None`", "`null`")
                    .replace("[`ProblemReport::KINDS`]", "the kinds in docs/watching.md");
            }
            object.values_mut().for_each(use_words_of_json);
        }
        Value::Array(list) => list.iter_mut().for_each(use_words_of_json),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn add<T: JsonSchema>(verbs: &mut Map<String, Value>, generator: &mut SchemaGenerator, names: &[&str]) {
    for name in names {
        verbs.insert((*name).to_owned(), generator.subschema_for::<T>().to_value());
    }
}

fn add_daemon_verbs(verbs: &mut Map<String, Value>, generator: &mut SchemaGenerator) {
    add::<Vec<report::VolumeReport>>(verbs, generator, &["volume list"]);
    let volume = [
        "volume show",
        "volume create",
        "volume clone",
        "volume delete",
        "volume retry",
        "volume set",
        "volume resize",
    ];
    add::<report::VolumeReport>(verbs, generator, &volume);
    add::<report::SnapshotReport>(verbs, generator, &["volume snapshot"]);
    add::<Vec<report::TargetReport>>(verbs, generator, &["target list"]);
    add::<report::TargetReport>(verbs, generator, &["target show"]);
    add::<Vec<report::SubsystemReport>>(verbs, generator, &["subsystem list"]);
    add::<report::SubsystemReport>(verbs, generator, &["subsystem show"]);
    add::<Vec<report::HostReport>>(verbs, generator, &["host list"]);
    add::<report::HostReport>(verbs, generator, &["host show"]);
    add::<report::HostBlockReport>(verbs, generator, &["host block", "host unblock"]);
    add::<report::GatewayGroupReport>(verbs, generator, &["gateway list", "gateway drain", "gateway fence"]);
    add::<Vec<report::ReservationReport>>(verbs, generator, &["reservation list"]);
    add::<report::ReservationReport>(verbs, generator, &["reservation show"]);
    add::<Vec<report::VolumePathReport>>(verbs, generator, &["path list", "path set"]);
    add::<Vec<report::SessionReport>>(verbs, generator, &["session list", "session kill"]);
    add::<Vec<report::ConnectionReport>>(verbs, generator, &["connection list"]);
    add::<report::ConnectionReport>(verbs, generator, &["connection show"]);
    add::<Vec<report::ShardReport>>(verbs, generator, &["shard list"]);
    add::<report::plan::PlanReport>(verbs, generator, &["plan", "apply", "rollback"]);
    add::<report::StatusReport>(verbs, generator, &["status"]);
    add::<flight_recorder::FlightReport>(verbs, generator, &["flight-recorder"]);
    add::<doctor::DiagnosisReport>(verbs, generator, &["doctor (no URL)"]);
    add::<reports::BackupReport>(verbs, generator, &["backup"]);
    add::<reports::RestoreReport>(verbs, generator, &["restore"]);
    add::<reports::StoppingReport>(verbs, generator, &["stop"]);
    add::<report::AttachmentReport>(verbs, generator, &["attach --daemon"]);
}

fn add_initiator_verbs(verbs: &mut Map<String, Value>, generator: &mut SchemaGenerator) {
    add::<reports::RemoteVolumeReport>(verbs, generator, &["info"]);
    add::<reports::RemoteReservationReport>(verbs, generator, &["reserve"]);
    add::<reports::DiscoveryReport>(verbs, generator, &["discover"]);
    add::<reports::DiscoveryEventReport>(verbs, generator, &["discover --watch"]);
    add::<reports::ExaminationReport>(verbs, generator, &["doctor"]);
    add::<reports::MovedReport>(verbs, generator, &["read", "write"]);
    add::<reports::CopyReport>(verbs, generator, &["copy"]);
    add::<reports::ComparisonReport>(verbs, generator, &["verify"]);
    add::<Vec<reports::AttachedReport>>(verbs, generator, &["attach --list"]);
    add::<reports::DetachedReport>(verbs, generator, &["detach"]);
    add::<Vec<reports::ListedNodeReport>>(verbs, generator, &["node list"]);
    add::<reports::NodeReport>(verbs, generator, &["node show"]);
    add::<Vec<reports::ConnectedNodeReport>>(verbs, generator, &["connect-all"]);
    add::<reports::ScsiAnswerReport>(verbs, generator, &["scsi"]);
    add::<reports::NvmeAnswerReport>(verbs, generator, &["nvme admin-passthru", "nvme io-passthru"]);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

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
    const OWN_FORM: [&str; 8] = [
        "bench",
        "eval list",
        "eval run",
        "eval compare",
        "eval plan",
        "eval bare",
        "eval stream",
        "iscsictl",
    ];

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
            all.iter()
                .all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'))
        );
    }
}
