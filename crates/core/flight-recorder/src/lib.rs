//! The latest events of a shard, in rings of fixed size that lie in a region of memory: logins, refusals, ends of
//! connections, reservations, fences, failed and slow operations.
//!
//! If the region is a file that is mapped, its contents are there after the process was killed. An event is recorded
//! by a few stores: without a lock, a system call or an allocation. So it is also written by what runs when the shard
//! is about to fail.
//!
//! - [`event`]: what an event is, and how it lies in slots of 32 bytes.
//! - [`recorder`]: writes events. One per shard.
//! - [`recording`]: reads what was recorded, from bytes that anybody may have changed.
//!
//! Invariants: what strangers can cause at will has a ring of its own, so that they cannot push the rest out; of each
//! kind at most [`EVENTS_PER_SECOND_MAX`](recorder::EVENTS_PER_SECOND_MAX) are recorded in a second, and the others are
//! counted. No secret is recorded: texts are names of hosts, targets and volumes, and causes.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

pub mod event;
pub mod recorder;
pub mod recording;

pub use event::{Event, EventKind, TextField};
pub use recorder::{FILE_BYTES, FlightRecorder, Origin, note_end, note_panic};
pub use recording::{Ending, HEADER_BYTES, RecordedEvent, Recording, RecordingError};
