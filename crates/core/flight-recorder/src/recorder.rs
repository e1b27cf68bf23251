//! Writes events into a region.
//!
//! The region is a header of a page, the ring of what happens to those who were let in, and the ring of strangers.
//!
//! | bytes of the header | |
//! |---|---|
//! | 0-7 | `BWFLIGHT` |
//! | 8-11, 12-15 | version of the layout; shard |
//! | 16-23 | process number |
//! | 24-31, 32-39 | the start: nanoseconds since 1970, and of the shard's clock |
//! | 40-71 | version of the program, filled up with zeroes |
//! | 72-75 | CRC32C of the bytes before |
//! | 80-87, 88-95 | slots ever written to each ring |
//! | 96 | how it ended: 0 not yet, 1 in order, 2 by a panic |
//! | 100-103, 104-1127 | of a panic: bytes of its text, and the text |
//!
//! Slots are written before their count: what a reader counts is whole, unless it has been overwritten since.

use std::sync::Arc;

use buf::{Region, Time, crc32c::crc32c};

use crate::event::{Event, EventKind, SLOT_BYTES, TextField};

/// Version of the layout.
pub(crate) const LAYOUT_VERSION: u32 = 1;
pub(crate) const MAGIC: &[u8; 8] = b"BWFLIGHT";
/// Bytes of the header: a page.
pub(crate) const HEADER_LEN: usize = 4096;
/// Slots of each ring: thousands of events of those who were let in, fewer of strangers.
pub(crate) const RING_SLOTS: [usize; 2] = [16384, 4096];
/// Bytes of the file of a shard.
pub const FILE_BYTES: usize = HEADER_LEN + (RING_SLOTS[0] + RING_SLOTS[1]) * SLOT_BYTES;
/// How many events of a kind are recorded in a second. The others are counted ([`EventKind::Suppressed`]).
pub const EVENTS_PER_SECOND_MAX: u32 = 100;

pub(crate) const FIXED_LEN: usize = 72;
pub(crate) const COUNTS_AT: usize = 80;
pub(crate) const ENDING_AT: usize = 96;
pub(crate) const PANIC_AT: usize = 100;
pub(crate) const PANIC_BYTES_MAX: usize = 1024;
pub(crate) const ENDED_IN_ORDER: u8 = 1;
pub(crate) const ENDED_BY_PANIC: u8 = 2;

const SECOND_NS: u64 = 1_000_000_000;

/// Whose events they are, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Number of the shard.
    pub shard: u32,
    /// Number of the process.
    pub pid: u64,
    /// The start, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// The same moment by the clock of the shards.
    pub started: Time,
    /// Version of the program; at most 32 bytes are kept.
    pub version: String,
}

/// Records the events of a shard.
#[derive(Debug)]
pub struct FlightRecorder {
    region: Arc<Region>,
    written: [u64; 2],
    quotas: [Quota; EventKind::ALL.len() + 1],
}

/// How many events of a kind there were in the current second.
#[derive(Clone, Copy, Debug, Default)]
struct Quota {
    since: u64,
    recorded: u32,
    suppressed: u64,
}

impl FlightRecorder {
    /// Of a region that holds zeroes.
    ///
    /// # Panics
    /// If the region has less than [`FILE_BYTES`].
    pub fn new(region: Arc<Region>, origin: &Origin) -> Self {
        assert!(region.len() >= FILE_BYTES, "a recorder has room for its rings");
        let mut fixed = [0; FIXED_LEN];
        let mut version = origin.version.clone().into_bytes();
        version.resize(FIXED_LEN - 40, 0);
        let fields: [&[u8]; 7] = [
            MAGIC,
            &LAYOUT_VERSION.to_le_bytes(),
            &origin.shard.to_le_bytes(),
            &origin.pid.to_le_bytes(),
            &origin.started_unix_ns.to_le_bytes(),
            &origin.started.0.to_le_bytes(),
            &version,
        ];
        fixed.iter_mut().zip(fields.into_iter().flatten()).for_each(|(into, byte)| *into = *byte);
        region.write(0, &fixed);
        region.write(FIXED_LEN, &crc32c(&fixed).to_le_bytes());
        FlightRecorder { region, written: [0; 2], quotas: [Quota::default(); EventKind::ALL.len() + 1] }
    }

    /// Records an event, unless there were too many of its kind in this second.
    pub fn record(&mut self, now: Time, event: &Event<'_>) {
        let Some(quota) = self.quotas.get_mut(event.kind as usize) else { return };
        if now.0.saturating_sub(quota.since) >= SECOND_NS {
            let suppressed = std::mem::take(&mut quota.suppressed);
            (quota.since, quota.recorded) = (now.0, 0);
            if suppressed > 0 {
                let remark = Event::new(EventKind::Suppressed).with_number(suppressed);
                let ring = ring_of(event.kind);
                self.write(now, &remark.with_text(TextField::Cause, event.kind.name()), ring);
            }
        }
        let Some(quota) = self.quotas.get_mut(event.kind as usize) else { return };
        if quota.recorded == EVENTS_PER_SECOND_MAX {
            quota.suppressed += 1;
            return;
        }
        quota.recorded += 1;
        self.write(now, event, ring_of(event.kind));
    }

    fn write(&mut self, now: Time, event: &Event<'_>, ring: usize) {
        let (Some(written), Some(slots)) = (self.written.get_mut(ring), RING_SLOTS.get(ring)) else { return };
        let begin = ring_begin(ring);
        event.encode(now, |slot| {
            let at = (*written % *slots as u64) as usize;
            self.region.write(begin + at * SLOT_BYTES, slot);
            *written += 1;
        });
        self.region.write(COUNTS_AT + 8 * ring, &written.to_le_bytes());
    }
}

fn ring_of(kind: EventKind) -> usize {
    usize::from(kind.is_from_strangers())
}

/// Where a ring begins.
pub(crate) fn ring_begin(ring: usize) -> usize {
    HEADER_LEN + RING_SLOTS.iter().take(ring).sum::<usize>() * SLOT_BYTES
}

/// Notes in a region of [`FlightRecorder`] that the process ends in order.
pub fn note_end(region: &Region) {
    region.write(ENDING_AT, &[ENDED_IN_ORDER]);
}

/// Notes that the process ends by a panic, of which the first 1,024 bytes of text are kept.
pub fn note_panic(region: &Region, text: &str) {
    let text = text.as_bytes().get(..text.len().min(PANIC_BYTES_MAX)).unwrap_or_default();
    region.write(PANIC_AT + 4, text);
    region.write(PANIC_AT, &(text.len() as u32).to_le_bytes());
    region.write(ENDING_AT, &[ENDED_BY_PANIC]);
}
