//! What the shards of a daemon recorded, of one that runs or of one that has ended, as types.

use std::{
    fmt::Write as _,
    path::PathBuf,
    time::{Duration, UNIX_EPOCH},
};

use flight_recorder::{Ending, EventKind, RecordedEvent, TextField};
use schemars::JsonSchema;
use serde::Serialize;

use engine::flight_files::FlightRun;
use process::{log::format_utc_micros, printable};

/// `flight-recorder`
#[derive(Debug, Serialize, JsonSchema)]
pub struct FlightReport {
    /// Each shard that was read.
    pub shards: Vec<ShardRecordReport>,
    /// Files that could not be read.
    pub unreadable: Vec<UnreadableRecordReport>,
    /// The events of all shards, in the order of time.
    pub events: Vec<FlightEventReport>,
}

/// The recorder of a shard.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ShardRecordReport {
    /// Number of the shard.
    pub shard: u32,
    /// Process number of the daemon.
    pub pid: u64,
    /// Its version.
    pub version: String,
    /// Its start: RFC 3339, UTC.
    pub started: String,
    /// `none`: it runs, or ended without a word; `in-order`; `panic`.
    pub ending: &'static str,
    /// Of a panic: its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub panic: Option<String>,
    /// Slots of 32 bytes that are damaged, and were left out.
    pub damaged_slots: usize,
}

/// A file that could not be read.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UnreadableRecordReport {
    /// The file.
    pub file: String,
    /// Why.
    pub why: String,
}

/// An event.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FlightEventReport {
    /// When: RFC 3339, UTC. The machine's clock at the start of the daemon, and monotonic since then.
    pub time: String,
    /// On which shard.
    pub shard: u32,
    /// What, such as `login-refused`.
    pub event: &'static str,
    /// Address and port of the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The initiator or host; of a refusal, as it calls itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The target or subsystem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Why, or which action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Of an operation: how long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// Of a controller: its CNTLID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cntlid: Option<u64>,
    /// Of task management: the LUN field, 8 bytes in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lun: Option<String>,
    /// Of a path to another machine: which, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<u64>,
    /// Of events that were not recorded: how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

impl FlightEventReport {
    fn of(shard: u32, event: &RecordedEvent) -> Self {
        let text = |field| event.text(field).filter(|text| !text.is_empty()).map(ToOwned::to_owned);
        let number =
            |kinds: &[EventKind]| event.kind.is_ok_and(|kind| kinds.contains(&kind)).then_some(event.number);
        use EventKind::{
            Connect, ControllerEnded, OperationFailed, RemotePathDown, RemotePathUp, SlowOperation,
            Suppressed, TaskManagement,
        };
        FlightEventReport {
            time: format_utc_micros(UNIX_EPOCH + Duration::from_nanos(event.unix_ns)),
            shard,
            event: event.name(),
            peer: event.peer.map(|peer| peer.to_string()),
            volume: text(TextField::Volume),
            host: text(TextField::Host),
            target: text(TextField::Target),
            cause: text(TextField::Cause),
            duration_ns: number(&[OperationFailed, SlowOperation]),
            cntlid: number(&[Connect, ControllerEnded]),
            lun: number(&[TaskManagement]).map(|lun| format!("{lun:016x}")),
            path: number(&[RemotePathDown, RemotePathUp]),
            count: number(&[Suppressed]),
        }
    }

    /// In a line.
    pub fn line(&self) -> String {
        let mut line = format!("{} shard {} {}", self.time, self.shard, self.event);
        let mut say = |name: &str, value: Option<&str>| {
            let Some(value) = value.filter(|value| !value.is_empty()) else { return };
            let _ = match value.contains([' ', '"', '=']) {
                true => write!(line, " {name}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")),
                false => write!(line, " {name}={value}"),
            };
        };
        say("peer", self.peer.as_deref());
        say("volume", self.volume.as_deref());
        say("host", self.host.as_deref());
        say("target", self.target.as_deref());
        say("cause", self.cause.as_deref());
        say("took", self.duration_ns.map(|ns| format!("{:.3}s", ns as f64 / 1e9)).as_deref());
        say("cntlid", self.cntlid.map(|number| number.to_string()).as_deref());
        say("lun", self.lun.as_deref());
        say("path", self.path.map(|number| number.to_string()).as_deref());
        say("count", self.count.map(|number| number.to_string()).as_deref());
        printable::escape_line(&line).into_owned()
    }
}

impl FlightReport {
    /// Of a start; of its events the latest `last`, if that is not 0.
    pub fn of(run: &FlightRun, last: usize) -> Self {
        let shard = |one: &flight_recorder::Recording| ShardRecordReport {
            shard: one.shard,
            pid: one.pid,
            version: one.version.clone(),
            started: format_utc_micros(UNIX_EPOCH + Duration::from_nanos(one.started_unix_ns)),
            ending: match &one.ending {
                Ending::None => "none",
                Ending::InOrder => "in-order",
                Ending::Panic(_) => "panic",
            },
            panic: match &one.ending {
                Ending::Panic(text) => Some(text.clone()),
                Ending::None | Ending::InOrder => None,
            },
            damaged_slots: one.damaged,
        };
        let mut events: Vec<(u32, &RecordedEvent)> =
            run.recordings.iter().flat_map(|one| one.events.iter().map(|event| (one.shard, event))).collect();
        events.sort_by_key(|(_, event)| event.unix_ns);
        let skipped = if last == 0 { 0 } else { events.len().saturating_sub(last) };
        let unreadable = |(path, why): &(PathBuf, String)| UnreadableRecordReport {
            file: path.display().to_string(),
            why: why.clone(),
        };
        FlightReport {
            shards: run.recordings.iter().map(shard).collect(),
            unreadable: run.unreadable.iter().map(unreadable).collect(),
            events: events
                .iter()
                .skip(skipped)
                .map(|(shard, event)| FlightEventReport::of(*shard, event))
                .collect(),
        }
    }
}
