//! A JSON Schema of what each verb prints with `--json`.
//!
//! It is made from the types that are printed, so it cannot say anything else. `docs/blockwire.schema.json` is this
//! schema; a test holds the two together, and another holds what the verbs print to it.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use control::report;

/// The schema: `verbs` names each verb's, `$defs` has the types.
pub fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut verbs = Map::new();
    add_daemon_verbs(&mut verbs, &mut generator);
    add_initiator_verbs(&mut verbs, &mut generator);
    add::<report::FailureReport>(&mut verbs, &mut generator, &["failure"]);
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
    add::<diagnosis::FlightReport>(verbs, generator, &["flight-recorder"]);
    add::<diagnosis::DiagnosisReport>(verbs, generator, &["doctor (no URL)"]);
    add::<report::BackupReport>(verbs, generator, &["backup"]);
    add::<report::RestoreReport>(verbs, generator, &["restore"]);
    add::<report::UpgradeReport>(verbs, generator, &["upgrade"]);
    add::<report::StoppingReport>(verbs, generator, &["stop"]);
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
