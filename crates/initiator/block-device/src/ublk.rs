//! A block device `/dev/ublkbN` through the kernel's ublk driver (Linux 6.5 and later): no copy between
//! processes, no network, and a device that outlives its server.
//!
//! Requests arrive through io_uring. Data is copied once, between the request's pages and memory that the
//! volume takes (UBLK_F_USER_COPY).
//!
//! # Recovery
//! When the server is killed the device stays. Its users wait until [`Server::recover`] serves the device, by
//! its number, in another process; operations in flight are then issued again. Only that or [`delete_device`] ends
//! their wait; a caller that wants a time limit calls `delete` when it has passed.
//!
//! # The end
//! [`ServerStop`] ends when the device is no longer mounted or open exclusively. A second request removes the
//! device at once, and users get errors.
//!
//! # Protection
//! The kernel is told once whether the device is writable. Its writes are checked against the current state:
//! writes to a volume that has been protected meanwhile fail (EROFS). A device that was protected when it was
//! created stays so until it is attached again.
//!
//! # Sizes
//! The driver is told of a new size if it supports that (UBLK_F_UPDATE_SIZE, Linux 6.16). On older kernels
//! the device keeps its size until it is attached again.

mod control;
mod driver;
mod handler;
mod queue;
mod wire;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use control::ControlChannel;
use driver::KernelUblkDriver;
use wire::{DeviceInfo, Parameters};

use crate::disk::Disk;
use crate::event_waiter::ServerStop;
use crate::statistics::Statistics;

const SECTOR_LEN: u32 = 512;
/// Sectors that one discard, or write of zeroes, may name: 1 GiB.
const RANGE_SECTORS_MAX: u32 = 1 << 21;
/// The longest request, in bytes.
const REQUEST_LEN_MAX: u32 = 1 << 20;
/// How long a killed server's device may take to notice.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(10);

/// How to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The device's number; `None`: the first that is free.
    pub number: Option<u32>,
    /// Requests at work at a time, 1 to 4,096.
    pub depth: u16,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { number: None, depth: 128 }
    }
}

/// A device that is to be served.
#[derive(Debug)]
pub struct Server {
    info: DeviceInfo,
    features: u64,
    /// Whether the device was there before.
    recovers: bool,
    statistics: Arc<Statistics>,
    device: OwnedDevice,
}

/// A device that goes with this value, unless it is to stay.
#[derive(Debug)]
struct OwnedDevice {
    number: u32,
    stays: bool,
    delete: fn(u32) -> io::Result<()>,
}

impl OwnedDevice {
    fn delete_now(mut self) -> io::Result<()> {
        self.stays = true;
        (self.delete)(self.number)
    }
}

impl Drop for OwnedDevice {
    fn drop(&mut self) {
        if !self.stays {
            // Nobody is left to hear of it.
            let _ = (self.delete)(self.number);
        }
    }
}

/// Called once, with the device's name, when it can be used; what it says ends the server.
pub type ReadyCallback<'a> = &'a mut dyn FnMut(&Path) -> io::Result<()>;

/// Whether this kernel has the driver, and we may use it.
///
/// # Errors
/// What is in the way.
pub fn check_available() -> io::Result<()> {
    crate::device_node::check_openable(
        control::CONTROL_PATH,
        "load the module ublk_drv, if this kernel has it",
    )?;
    let features = ControlChannel::open()?.driver_features()?;
    let needed = wire::flag::USER_COPY | wire::flag::USER_RECOVERY | wire::flag::CMD_IOCTL_ENCODE;
    if features & needed != needed {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "ublk lacks UBLK_F_USER_COPY: Linux 6.5 has it",
        ));
    }
    Ok(())
}

/// The device's name.
fn device_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{number}"))
}

/// Takes a device away, whether or not it is used or served.
///
/// # Errors
/// What the driver says; `NotFound` if there is none of this number.
pub fn delete_device(number: u32) -> io::Result<()> {
    let mut control = ControlChannel::open()?;
    match control.device_info(number) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            return Err(io::ErrorKind::NotFound.into());
        }
        Err(error) => return Err(error),
        Ok(info) if info.state != wire::STATE_DEAD => {
            control.run_command(wire::STOP_DEV, number, &[], 0)?;
        }
        Ok(_) => {}
    }
    control.run_command(wire::DEL_DEV, number, &[], 0).map(drop)
}

/// Takes a device away that a killed process left, and nobody serves.
///
/// # Errors
/// `ResourceBusy` if the driver has not seen yet that its server is gone; `AddrInUse` if it was, or is, another
/// process's; as [`delete_device`].
pub fn delete_abandoned(number: u32, process: u32) -> io::Result<()> {
    let info = ControlChannel::open()?.device_info(number)?;
    if is_served_by_other(&info, process) {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "the device belongs to another process"));
    }
    if info.state != wire::STATE_QUIESCED {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the device has a server"));
    }
    delete_device(number)
}

/// Takes a device away that was this process's, unless somebody else has its number by now.
fn delete_own_device(number: u32) -> io::Result<()> {
    match ControlChannel::open()?.device_info(number) {
        // Ours is gone.
        Ok(info) if is_served_by_other(&info, std::process::id()) => Ok(()),
        // `delete` says what it is.
        Ok(_) | Err(_) => delete_device(number),
    }
}

/// Whether the driver knows another process as a device's server. What it has forgotten is 0 or negative.
fn is_served_by_other(info: &DeviceInfo, process: u32) -> bool {
    info.server > 0 && i32::try_from(process) != Ok(info.server)
}

impl Server {
    /// Makes a device; it can be used when [`Server::run`] serves it.
    ///
    /// # Errors
    /// What the system says: no /dev/ublk-control (no driver, or `modprobe ublk_drv`), no leave
    /// (CAP_SYS_ADMIN), a number that is taken.
    pub fn new(settings: Settings, disk: &dyn Disk) -> io::Result<Server> {
        let mut control = ControlChannel::open()?;
        let features = control.driver_features()?;
        let geometry = disk.geometry();
        let io_bytes_max = geometry.max_io.min(REQUEST_LEN_MAX) / 4096 * 4096;
        let info = control.add_device(DeviceInfo {
            queues: 1,
            depth: settings.depth.clamp(1, wire::QUEUE_DEPTH_MAX),
            io_bytes_max: io_bytes_max.max(4096),
            device: settings.number.unwrap_or(u32::MAX),
            flags: wire::flag::USER_COPY
                | wire::flag::CMD_IOCTL_ENCODE
                | wire::flag::USER_RECOVERY
                | wire::flag::USER_RECOVERY_REISSUE
                | (features & wire::flag::UPDATE_SIZE),
            ..DeviceInfo::default()
        })?;
        // From here on it is there, and 64 of them are all that a machine has.
        let device = OwnedDevice { number: info.device, stays: false, delete: delete_own_device };
        control.set_parameters(info.device, device_parameters(disk, &info))?;
        Ok(Server { info, features, recovers: false, statistics: Arc::default(), device })
    }

    /// Takes over a device whose server is gone.
    ///
    /// # Errors
    /// What the driver says; `ResourceBusy` if its server is still there, `InvalidInput` if it is of
    /// another size than the disk.
    pub fn recover(number: u32, disk: &dyn Disk) -> io::Result<Server> {
        let mut control = ControlChannel::open()?;
        let features = control.driver_features()?;
        let begin = std::time::Instant::now();
        let info = loop {
            let info = control.device_info(number)?;
            if info.state == wire::STATE_QUIESCED {
                break info;
            }
            if begin.elapsed() > QUIESCE_TIMEOUT {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the device has a server"));
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let sectors = std::fs::read_to_string(format!("/sys/block/ublkb{number}/size"))?;
        if sectors.trim().parse() != Ok(disk.geometry().capacity_bytes() / u64::from(SECTOR_LEN)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the device has another size"));
        }
        control.run_command(wire::START_USER_RECOVERY, number, &[], 0)?;
        let device = OwnedDevice { number, stays: true, delete: delete_own_device };
        Ok(Server { info, features, recovers: true, statistics: Arc::default(), device })
    }

    /// The device's number: the N of `/dev/ublkbN`.
    pub fn device_number(&self) -> u32 {
        self.info.device
    }

    /// Counters, which go on while the server runs.
    pub fn io_counters(&self) -> Arc<Statistics> {
        self.statistics.clone()
    }

    /// Serves `disk` until `stop` is asked and all users are gone (or it is asked twice), or somebody
    /// stops the device. `ready` is called once, with the device's name, when it can be used; of one that is
    /// recovered before anything that waits there is taken, so that who is told can see to what is to be done if
    /// this process dies, too. The device is then taken away; but one that was recovered stays as it is, for the
    /// next to recover, if `ready` fails or anything before it.
    ///
    /// # Errors
    /// What `ready` says. Of the disk, when it is gone: all that was out has been answered with an error, and the
    /// device is taken away. Of the driver or the system: a device that is in use stays, and its users wait until
    /// it is recovered ([`Server::recover`]) or taken away ([`delete_abandoned`]): who called this sees to that. Nothing that
    /// was submitted to the disk is out any more then, unless `stop` was asked.
    pub fn run(self, disk: &mut dyn Disk, stop: &ServerStop, ready: ReadyCallback<'_>) -> io::Result<()> {
        let mut settled = !self.recovers;
        let mut tell = |device: &Path| {
            ready(device)?;
            settled = true;
            Ok(())
        };
        let driver = KernelUblkDriver::new(&self.info, self.recovers)?;
        let (result, is_done_with) = {
            let mut handler = handler::UblkHandler::new(&self, driver, disk, &mut tell);
            let result = handler.run_to_end(disk, stop);
            (result, handler.is_unrecoverable())
        };
        let mut device = self.device;
        if !settled || (result.is_err() && !is_done_with) {
            device.stays = true;
            return result;
        }
        // The character device is closed, which deleting waits for.
        let deleted = device.delete_now();
        result.and(deleted)
    }
}

fn device_parameters(disk: &dyn Disk, info: &DeviceInfo) -> Parameters {
    let geometry = disk.geometry();
    // Whatever the far side says, a physical block has at least one logical block.
    let physical = geometry.physical.min(4096).max(geometry.logical).max(SECTOR_LEN);
    let read_only = if disk.is_read_only() { wire::ATTRIBUTE_READ_ONLY } else { 0 };
    Parameters {
        len: size_of::<Parameters>() as u32,
        kinds: wire::PARAMETERS_BASIC | wire::PARAMETERS_DISCARD,
        attributes: wire::ATTRIBUTE_VOLATILE_CACHE | wire::ATTRIBUTE_FUA | read_only,
        logical_shift: geometry.logical.max(SECTOR_LEN).ilog2() as u8,
        physical_shift: physical.ilog2() as u8,
        optimal_shift: physical.ilog2() as u8,
        minimum_shift: physical.ilog2() as u8,
        sectors_max: info.io_bytes_max / SECTOR_LEN,
        sectors: geometry.capacity_bytes() / u64::from(SECTOR_LEN),
        discard_alignment: 0,
        discard_granularity: physical,
        discard_sectors_max: RANGE_SECTORS_MAX,
        write_zeroes_sectors_max: RANGE_SECTORS_MAX,
        discard_segments_max: 1,
        ..Parameters::default()
    }
}
