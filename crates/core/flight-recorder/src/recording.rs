//! Reads what was recorded. The bytes may be anything: what is no recording is refused, and slots that no recorder wrote
//! are counted and left out.

use std::fmt;
use std::net::SocketAddr;

use buf::crc32c::crc32c;

use crate::event::{EVENT_SLOTS_MAX, EventKind, SLOT_BYTES, Slot, SlotContent, TextField, decode_slot};
use crate::recorder::{
    COUNTS_AT, ENDED_BY_PANIC, ENDED_IN_ORDER, ENDING_AT, FILE_BYTES, FIXED_LEN, HEADER_LEN, LAYOUT_VERSION,
    MAGIC, PANIC_AT, PANIC_BYTES_MAX, RING_SLOTS, ring_begin,
};

/// Bytes that are read again behind the rest: see [`Recording::parse`].
pub const HEADER_BYTES: usize = HEADER_LEN;

/// The events of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// Number of the shard.
    pub shard: u32,
    /// Number of the process.
    pub pid: u64,
    /// The start, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Version of the program.
    pub version: String,
    /// Whether and how it has ended.
    pub ending: Ending,
    /// In the order of time.
    pub events: Vec<RecordedEvent>,
    /// Slots that are damaged.
    pub damaged: usize,
}

/// How the process of a recording has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It runs, or was killed, or the machine failed.
    None,
    /// In order.
    InOrder,
    /// By a panic, of this text.
    Panic(String),
}

/// An event that was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedEvent {
    /// When, nanoseconds since 1970 by the machine's clock at the start.
    pub unix_ns: u64,
    /// What; or the number of a kind that this version does not know.
    pub kind: Result<EventKind, u8>,
    /// Whose connection.
    pub peer: Option<SocketAddr>,
    /// Its number.
    pub number: u64,
    /// Its texts; what is not UTF-8 is replaced.
    pub texts: Vec<(TextField, String)>,
}

impl RecordedEvent {
    /// The name of its kind.
    pub fn name(&self) -> &'static str {
        self.kind.map_or("unknown", EventKind::name)
    }

    /// One of its texts.
    pub fn text(&self, field: TextField) -> Option<&str> {
        self.texts.iter().find(|(of, _)| *of == field).map(|(_, text)| text.as_str())
    }
}

/// Why bytes are no recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingError {
    /// They have another length.
    Length(usize),
    /// They do not begin as a recording does.
    Foreign,
    /// They have a layout of another version.
    Version(u32),
    /// Their header is damaged.
    Header,
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordingError::Length(len) => {
                write!(
                    f,
                    "it has {len} bytes, and a flight recording has {FILE_BYTES}: it was cut, or is another file"
                )
            }
            RecordingError::Foreign => f.write_str("it is not a flight recording"),
            RecordingError::Version(version) => {
                write!(
                    f,
                    "it was written by another version of Blockwire (layout {version}): read it with that version"
                )
            }
            RecordingError::Header => f.write_str("its header is damaged"),
        }
    }
}

impl std::error::Error for RecordingError {}

/// An event, and its texts as far as they have been read.
type OpenEvent = (RecordedEvent, Vec<(TextField, Vec<u8>)>);

impl Recording {
    /// Reads a recording. `header_after`: the first [`HEADER_BYTES`] bytes as they were read behind all the others; of a
    /// process that still writes, what it has overwritten meanwhile is left out.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn parse(bytes: &[u8], header_after: &[u8]) -> Result<Recording, RecordingError> {
        if !bytes.starts_with(MAGIC) {
            return Err(RecordingError::Foreign);
        }
        let version = u32_at(bytes, 8);
        if version != LAYOUT_VERSION {
            return Err(RecordingError::Version(version));
        }
        if bytes.len() != FILE_BYTES {
            return Err(RecordingError::Length(bytes.len()));
        }
        let fixed = bytes.get(..FIXED_LEN).unwrap_or_default();
        if crc32c(fixed) != u32_at(bytes, FIXED_LEN) {
            return Err(RecordingError::Header);
        }
        let (started_unix_ns, started) = (u64_at(bytes, 24), u64_at(bytes, 32));
        let program = bytes.get(40..FIXED_LEN).unwrap_or_default();
        let mut recording = Recording {
            shard: u32_at(bytes, 12),
            pid: u64_at(bytes, 16),
            started_unix_ns,
            version: String::from_utf8_lossy(program).trim_end_matches('\0').to_owned(),
            ending: ending_of(bytes),
            events: Vec::new(),
            damaged: 0,
        };
        for (ring, slots) in RING_SLOTS.into_iter().enumerate() {
            let at = COUNTS_AT + 8 * ring;
            let (end, newest) = (u64_at(bytes, at), u64_at(header_after, at));
            let ring = bytes.get(ring_begin(ring)..).unwrap_or_default();
            recording.read_ring(ring, slots as u64, (end, newest.max(end)));
        }
        for event in &mut recording.events {
            event.unix_ns = started_unix_ns.wrapping_add(event.unix_ns.wrapping_sub(started));
        }
        recording.events.sort_by_key(|event| event.unix_ns);
        Ok(recording)
    }

    /// Reads a ring, of which the slots up to `end` were whole when they were read, and up to `newest` were written by
    /// the time that all had been read.
    fn read_ring(&mut self, ring: &[u8], slots: u64, (end, newest): (u64, u64)) {
        // What is being written may have taken the oldest slots already.
        let begin = match newest.checked_sub(slots) {
            Some(lost) => lost.saturating_add(EVENT_SLOTS_MAX as u64),
            None => 0,
        };
        let mut current = None;
        let mut at = begin;
        // A count that is damaged leads round the ring once at most.
        while at < end && at - begin < slots {
            let offset = (at % slots) as usize * SLOT_BYTES;
            at += 1;
            let Some(slot) = ring.get(offset..).and_then(|rest| rest.first_chunk::<SLOT_BYTES>()) else {
                break;
            };
            self.read_slot(slot, &mut current);
        }
        self.events.extend(current.map(finish));
    }

    fn read_slot(&mut self, slot: &Slot, current: &mut Option<OpenEvent>) {
        match decode_slot(slot) {
            SlotContent::Head { code, time, peer, number } => {
                self.events.extend(current.take().map(finish));
                let kind = EventKind::of_code(code).ok_or(code);
                *current = Some((
                    RecordedEvent { unix_ns: time, kind, peer, number, texts: Vec::new() },
                    Vec::new(),
                ));
            }
            SlotContent::Text { field, bytes } => {
                // The head of the oldest event may be lost; a text of a kind of its own is from a later version.
                let (Some((_, texts)), Some(field)) = (current, field) else { return };
                match texts.iter_mut().find(|(of, _)| *of == field) {
                    Some((_, text)) => text.extend_from_slice(bytes),
                    None => texts.push((field, bytes.to_vec())),
                }
            }
            SlotContent::Empty | SlotContent::Damaged => {
                self.events.extend(current.take().map(finish));
                self.damaged += 1;
            }
        }
    }
}

fn finish((event, texts): OpenEvent) -> RecordedEvent {
    let text = |(field, bytes): (TextField, Vec<u8>)| (field, String::from_utf8_lossy(&bytes).into_owned());
    RecordedEvent { texts: texts.into_iter().map(text).collect(), ..event }
}

fn ending_of(bytes: &[u8]) -> Ending {
    match bytes.get(ENDING_AT).copied() {
        Some(ENDED_IN_ORDER) => Ending::InOrder,
        Some(ENDED_BY_PANIC) => {
            let len = (u32_at(bytes, PANIC_AT) as usize).min(PANIC_BYTES_MAX);
            let text = bytes.get(PANIC_AT + 4..).and_then(|rest| rest.get(..len)).unwrap_or_default();
            Ending::Panic(String::from_utf8_lossy(text).into_owned())
        }
        _ => Ending::None,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests;
