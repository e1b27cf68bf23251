//! A volume as a local block device.
//!
//! A front (NBD, FUSE, ublk, vhost-user) takes requests from the local system and gives them to a
//! [`Disk`]; it knows neither protocols nor where the volume is. Invariant: every request that a front
//! took is answered exactly once, also when the disk goes away.

mod disk;
pub mod fuse;
mod loop_device;
pub mod nbd;
mod requests;
mod socket;
mod statistics;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod test_disk;
mod trouble;
mod turn;
pub mod ublk;
mod vectors;
pub mod vhost;
mod wait;

pub use disk::{Disk, REQUEST_MAX};
pub use statistics::{Snapshot, Statistics};
pub use trouble::Trouble;
pub use wait::Stop;

// So that the tests' disk finds this crate under one name, within and without.
#[cfg(test)]
extern crate self as blockwire_attach;
