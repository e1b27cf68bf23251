//! The simulated world: the same endpoints that ship, on a virtual network, disk and clock.
//!
//! A [`World`] runs any number of shards in one thread. One seed decides everything that depends on time and
//! chance in the real world: when bytes arrive and in how many pieces, when a write is accepted and when its
//! memory comes back, how disk operations are reordered, shortened or fail, when a message crosses from shard
//! to shard. So the same seed gives the same run, and a failing seed is a test.
//!
//! Every pool of a world marks unfilled memory ([`buf::poison`]), and every disk write and every send is
//! searched for the mark: a run in which such memory leaves its shard panics.
//!
//! [`linearizability`] checks whether the clients' results are possible.
//!
//! The other end of each connection is a [`Peer`], controlled by the test (bytes in, bytes out), or another
//! shard, if one dials where another listens ([`World::add_listener`]).
//!
//! Faults: the network never loses or reorders bytes of a connection (TCP does not), but splits, delays,
//! stalls and resets them. Disks delay, reorder, shorten and fail operations as [`DiskFaults`] says, and lose
//! unsynced data when the power fails. Shards stop, have late timers and have no room for links as
//! [`ShardFaults`] says.

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

mod config;
mod connection;
mod disk;
pub mod linearizability;
mod network;
mod rng;
mod schedule;
mod shards;
mod unfilled_check;
mod world;

pub use config::{Config, ConnectionFaults, ShardFaults};
pub use connection::{Peer, PeerEnd};
pub use disk::{CrashBounds, Disk, DiskFaults};
pub use network::Reachability;
pub use rng::SimRng;
pub use unfilled_check::UNFILLED_PANIC;
pub use world::World;
