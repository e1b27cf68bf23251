//! `[[placement]]`: values typed, references not yet resolved.

use std::net::SocketAddr;

use super::super::{diagnostic::Located, reader::TableReader};
use crate::{
    network::Network,
    plan::{CoreChoice, Protocol},
};

/// A core's number has so much room.
const CORE_MAX: u64 = 4095;

/// What a rule cannot choose in this version, and what to do instead.
const UNSUPPORTED_KEYS: [(&str, &str); 4] = [
    ("polling", "a core polls for all its connections, as long as its load makes polling worthwhile"),
    (
        "digest",
        "they are settled per target (`negotiation`) and per portal (`header_digest`, `data_digest`), over \
         NVMe/TCP before the host has identified itself",
    ),
    ("tx", "everything is sent by copying"),
    ("rx", "everything is received by copying"),
];

/// A `[[placement]]` whose references are not resolved.
#[derive(Debug)]
pub struct PlacementDraft {
    /// `protocol`.
    pub protocol: Option<Protocol>,
    /// `portal`.
    pub portal: Option<Located<SocketAddr>>,
    /// `sources`.
    pub sources: Vec<Network>,
    /// `host`.
    pub host: Option<Located<String>>,
    /// `volume`.
    pub volume: Option<Located<String>>,
    /// What else must hold: nothing, in the configuration's own words.
    pub when: shard::Condition,
    /// One core by its place among all; none, likewise.
    pub nth: Option<u16>,
    /// `cores`.
    pub cores: Vec<Located<u64>>,
    /// `bind`.
    pub bind: CoreChoice,
}

/// Reads a `[[placement]]`.
pub fn read_placement(table: &TableReader<'_>) -> PlacementDraft {
    for (key, why) in UNSUPPORTED_KEYS {
        if let Some(value) = table.as_spec_value(key) {
            let message = format!("{key} in [[placement]] cannot be chosen per connection: {why}");
            table.file.sink.note_error(&value.at, message);
        }
    }
    if !table.has_key("cores") && !table.has_key("bind") {
        table.file.sink.note_error(&table.place(), "[[placement]] needs \"cores\" or \"bind\"".to_owned());
    }
    let cores = table.numbers("cores", 0..=CORE_MAX).unwrap_or_default();
    if table.has_key("cores") && cores.is_empty() {
        table.file.sink.note_error(&table.place(), "cores in [[placement]] names no core".to_owned());
    }
    PlacementDraft {
        protocol: table.keyword("protocol", &Protocol::WORDS).map(|word| word.value),
        portal: table.parsed("portal", str::parse),
        sources: table
            .parsed_list("sources", str::parse)
            .unwrap_or_default()
            .into_iter()
            .map(|one| one.value)
            .collect(),
        host: table.text("host"),
        volume: table.text("volume"),
        when: shard::Condition::Always,
        nth: None,
        cores,
        bind: table.keyword("bind", &CoreChoice::WORDS).map(|word| word.value).unwrap_or_default(),
    }
}
