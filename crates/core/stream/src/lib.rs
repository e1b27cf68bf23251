//! The contract between a protocol connection and the world that moves its bytes, without I/O.
//!
//! A connection never lends memory and never owns a socket. It hands out a [`RecvOp`] ("fill this")
//! and a [`SendOp`] ("write this") by value, and gets each back when the kernel has released it.
//! `poll_*` returns, `handle_*` takes; nothing blocks and nothing calls back. After any `handle_*`
//! the caller drains `poll_event`, calls `resume`, and asks `poll_recv` and `poll_send` again.
//!
//! Time, memory and randomness come from [`Cx`] only, so the same connection runs in
//! production, in deterministic simulation and under a fuzzer.

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

mod connection;
mod earliest_time;
mod io_ops;
mod payload_buffer;
mod receive_buffer;
mod response_times;
pub mod snapshot;
mod tag;
mod tag_index;
mod timer_queue;
mod transmit_queue;
mod unsent_bytes;

pub use buf::{Cx, Entropy, Errno, Payload, Time};
pub use connection::{
    Connection, ConnectionClose, HostConnection, HostEvent, LinkNumber, TargetConnection, TargetEvent,
};
pub use earliest_time::earliest;
pub use io_ops::{DirectBuffer, Received, RecvOp, SendOp, SendPiece};
pub use payload_buffer::PayloadBuffer;
pub use receive_buffer::ReceiveBuffer;
pub use response_times::{LabelledResponses, ResponseTimes};
pub use tag::{Slab, Tag};
pub use tag_index::TagIndex;
pub use timer_queue::TimerQueue;
pub use transmit_queue::{COPIED_PAYLOAD_MAX, HEAD_MAX, NoBatchMemory, SendOpBuilder, TransmitQueue};
