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
mod contract;
mod index;
mod inlet;
mod ops;
mod outbox;
mod place;
mod tag;
mod timers;

pub use alarms::Timers;
pub use buf::{Cx, Entropy, Errno, Payload, Time};
pub use contract::{Close, Connection, Host, HostEvent, Link, Target, TargetEvent};
pub use index::TagIndex;
pub use inlet::Inlet;
pub use ops::{Direct, Piece, Received, RecvOp, SendOp};
pub use outbox::{Batch, COPY_MAX, HEAD_MAX, Outbox};
pub use place::Place;
pub use tag::{Slab, Tag};
pub use timers::earliest;
