//! A volume as a local block device.
//!
//! A front (NBD, FUSE, ublk, vhost-user) takes requests from the local system and gives them to a
//! [`Disk`]; it knows neither protocols nor where the volume is. Invariant: every request that a front
//! took is answered exactly once, also when the disk goes away.

mod disk;

pub use disk::Disk;
