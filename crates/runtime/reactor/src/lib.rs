//! The real world: a thread per core, each with a pool, an endpoint and a driver that moves data with
//! io_uring, or with epoll where the kernel forbids io_uring. Both behave alike.
//!
//! One turn of a shard: take completions, read the clock, hand each completion to the endpoint, let
//! [`endpoint::pump`] start what the endpoint wants, wait for more. A shard without work polls memory for a
//! short, adapted time before it sleeps in the kernel (`busy_poll`). Then it uses no processor time until a
//! completion, a message or a timer wakes it.
//!
//! Balance: listener *k* is served by shard *k mod n*, which hands each accepted socket to the shard with the
//! fewest links, possibly itself. So a core that happens to be awake takes no more than its share, and
//! placement is the same in both worlds.
//!
//! [`Reactor`] starts such shards on their own threads; the caller's thread drives an [`InlineReactor`].
//!
//! Invariant: operations held by the kernel (or by a blocking thread) are in a flight slot of their shard and
//! come back to the endpoint exactly once; a shard ends only when nothing is in flight.

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

mod active_links;
mod blocking;
mod busy_poll;
mod clock;
mod config;
mod counters;
#[cfg(test)]
mod denied_syscalls;
mod disk;
mod endpoint_event;
mod epoll;
mod event_loop;
mod inline_reactor;
mod library;
mod mailbox;
mod reactor_threads;
mod recv_memory;
mod send_buffer_size;
mod slot_table;
mod socket;
mod uring;
mod world;
mod world_state;

pub use config::{Config, IoChoice, IoKind, ListenConfig, TcpKeepAlive, TcpOptions};
pub use counters::ShardStats;
pub use inline_reactor::{InlineReactor, SendableReactor};
pub use library::{CallEnd, DiskSource, LibraryCall, LibraryDisk};
pub use reactor_threads::{BoundListener, Reactor, ReactorHandle, ShardPanicked, SpawnError};
