//! The contract between a protocol connection and the world that moves its bytes, without I/O.
//!
//! A connection never lends memory and never owns a socket. It hands out a [`RecvOp`] ("fill this")
//! and a [`SendOp`] ("write this") by value, and gets each back when the kernel has let go of it.
//! `poll_*` gives, `handle_*` takes; nothing blocks and nothing calls back. After any `handle_*`
//! the caller drains `poll_event`, calls `resume`, and asks `poll_recv` and `poll_send` again.
//!
//! Time, memory and randomness come by [`Cx`] and by nothing else, so the same connection runs in
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

mod alarms;
mod answer_times;
mod contract;
mod index;
mod ops;
mod place;
mod receive_buffer;
mod tag;
mod timers;
mod transmit_queue;

pub use alarms::Timers;
pub use answer_times::{AnswerRun, AnswerTimes};
pub use buf::{Cx, Entropy, Errno, Payload, Time};
pub use contract::{Close, Connection, Host, HostEvent, Link, Target, TargetEvent};
pub use index::TagIndex;
pub use ops::{DirectBuffer, Received, RecvOp, SendOp, SendPiece};
pub use place::Place;
pub use receive_buffer::ReceiveBuffer;
pub use tag::{Slab, Tag};
pub use timers::earliest;
pub use transmit_queue::{COPY_MAX, HEAD_MAX, SendOpBuilder, TransmitQueue};
