//! A volume as a local block device.
//!
//! A server (NBD, FUSE, ublk, vhost-user) takes requests from the local system and passes them to a
//! [`Disk`]; it does not know where the volume is. Invariant: every request that a server has taken is answered
//! exactly once, even if the disk is lost.
//!
//! All servers are used alike: `Server::new` creates the device or socket, or reports why it cannot;
//! `Server::run` serves a disk on the calling thread until a [`ServerStop`] is requested, from any thread or from a
//! signal handler; `Server::statistics` are counters that any thread may read meanwhile. One server serves
//! one disk. [`choose_best_interface`] chooses a server.
//!
//! ```no_run
//! use attach::{Disk, ServerStop, DeviceInterface, choose_best_interface, fuse, nbd, ublk};
//! # extern crate blockwire_block_device as attach;
//!
//! fn attach(disk: &mut dyn Disk, stop: &ServerStop) -> std::io::Result<()> {
//!     let choice = choose_best_interface();
//!     eprintln!("{choice}"); // for example: fuse; not ublk: /dev/ublk-control does not exist: ...
//!     match choice.via {
//!         DeviceInterface::Ublk => {
//!             let server = ublk::Server::new(ublk::Settings::default(), disk)?;
//!             server.run(disk, stop, &mut |device| {
//!                 println!("{}", device.display());
//!                 Ok(())
//!             })
//!         }
//!         DeviceInterface::Fuse => {
//!             let mut server = fuse::Server::new(fuse::Settings::new("/run/user/1000/volume"))?;
//!             server.run(disk, stop, &mut |place| {
//!                 println!("{}", place.device.unwrap_or(place.file).display());
//!                 Ok(())
//!             })
//!         }
//!         DeviceInterface::Nbd | DeviceInterface::VhostUser => {
//!             let mut server = nbd::Server::new(nbd::Settings::new("/run/user/1000/volume.sock"))?;
//!             println!("{}", server.url());
//!             server.run(disk, stop)
//!         }
//!     }
//! }
//! ```

mod device_node;
mod disk;
mod error_disk;
mod event_loop;
mod event_waiter;
pub mod fuse;
mod interface_choice;
mod io_vectors;
mod loop_device;
pub mod nbd;
mod request_error;
mod requests;
mod socket;
mod statistics;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod test_disk;
pub mod ublk;
pub mod vhost;
mod wire;

pub use disk::{Disk, REQUEST_LEN_MAX};
pub use error_disk::ErrorDisk;
pub use event_waiter::ServerStop;
pub use interface_choice::{DeviceInterface, InterfaceChoice, choose_best_interface};
pub use request_error::RequestError;
pub use statistics::{Statistics, StatisticsSnapshot};

// So that the tests' disk finds this crate under one name, within and without.
#[cfg(test)]
extern crate self as blockwire_block_device;
