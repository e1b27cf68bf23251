//! The simulated world: the same endpoints that ship, on a virtual network, disk and clock.
//!
//! A [`World`] runs any number of shards in one thread. Everything that time and chance decide in the
//! real world is decided here by one seed: when bytes arrive and in how many pieces, when a write
//! is taken and when its memory comes back, how disk operations overtake each other, fall short or
//! fail, when a message crosses from shard to shard. So a run is its seed: the same seed gives the
//! same run, and a failing seed is a test.
//!
//! Every pool of a world shows what nobody has filled ([`buf::poison`]), and every write of a disk and every
//! send on a wire is looked through for it: a run in which such memory leaves its shard panics.
//!
//! [`linear`] says whether what clients saw can have happened.
//!
//! The other end of each connection is a [`Peer`]: bytes in, bytes out, in the hands of the test; or
//! another shard, where one dials what another listens on ([`World::listen`]).
//!
//! Fault budget: the network never loses or reorders bytes of a connection (TCP does not), but
//! splits, delays, stalls and resets them; disks delay, reorder, cut short and fail operations as
//! [`DiskFaults`] says, and forget what was not synced when the power fails; shards stand still, hear timers late
//! and have no room for links as [`ShardFaults`] says.

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
mod disk;
mod filled;
pub mod linear;
mod net;
mod network;
mod rng;
mod schedule;
mod shards;
mod world;

pub use config::{Config, LineFaults, ShardFaults};
pub use disk::{Disk, DiskFaults};
pub use filled::UNFILLED;
pub use net::{Peer, PeerEnd};
pub use network::Reach;
pub use rng::SimRng;
pub use world::World;
