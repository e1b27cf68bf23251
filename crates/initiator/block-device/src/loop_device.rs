//! A loop device over a file (linux/loop.h).
//!
//! All calls here may wait for the file's own server: never call them on the thread that serves it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

const LOOP_SET_CAPACITY: libc::c_ulong = 0x4c07;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_PARTSCAN: u32 = 8;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Of all loop devices (Documentation/admin-guide/devices.txt).
const LOOP_MAJOR: u32 = 7;

/// How often another process may be faster at taking the device that was free.
const ACQUIRE_TRIES: usize = 16;

/// struct loop_info64.
#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// struct loop_config.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo64>() == 232 && size_of::<LoopConfig>() == 304);

/// A device that goes when nobody has it open any more, neither this value nor anybody else.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    device: OwnedFd,
    path: PathBuf,
}

impl LoopDevice {
    /// A device over all of `backing`, with direct I/O, so that nothing is cached twice. The kernel shows `file` as
    /// its name.
    pub(crate) fn new(backing: &File, file: &Path, block: u32, read_only: bool) -> io::Result<LoopDevice> {
        let control = rustix::fs::open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        for _ in 0..ACQUIRE_TRIES {
            // SAFETY: this call takes no argument.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
            let device = rustix::fs::open(&path, access | OFlags::CLOEXEC, Mode::empty())?;
            if !is_loop_number(&device, number)? {
                let why = format!("{} is not the loop device of that number", path.display());
                return Err(io::Error::other(why));
            }
            match configure_loop(&device, backing, block, read_only, file) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                other => return other.map(|()| LoopDevice { device, path }),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// A device that was made before, by its descriptor.
    pub(crate) fn from_inherited(device: OwnedFd) -> io::Result<LoopDevice> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", device.as_raw_fd()))?;
        Ok(LoopDevice { device, path })
    }

    /// It, for another holder.
    pub(crate) fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.device.try_clone()
    }

    /// Its name, `/dev/loopN`.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the file's size again.
    pub(crate) fn refresh_capacity(&self) -> io::Result<()> {
        // SAFETY: this call takes no argument.
        match unsafe { libc::ioctl(self.device.as_raw_fd(), LOOP_SET_CAPACITY, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Whether it is the loop device that the kernel calls by this number, whatever its name says.
fn is_loop_number(device: &OwnedFd, number: libc::c_int) -> io::Result<bool> {
    let facts = rustix::fs::fstat(device)?;
    let is_block = rustix::fs::FileType::from_raw_mode(facts.st_mode) == rustix::fs::FileType::BlockDevice;
    let (major, minor) = (rustix::fs::major(facts.st_rdev), rustix::fs::minor(facts.st_rdev));
    let known = std::fs::read_to_string(format!("/sys/block/loop{number}/dev"));
    let is_known = known.map_or(major == LOOP_MAJOR, |known| known.trim() == format!("{major}:{minor}"));
    Ok(is_block && is_known)
}

fn configure_loop(device: &OwnedFd, file: &File, block: u32, read_only: bool, name: &Path) -> io::Result<()> {
    let mut file_name = [0; 64];
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(name.as_os_str());
    let len = bytes.len().min(file_name.len() - 1);
    file_name[..len].copy_from_slice(&bytes[..len]);
    let read_only = if read_only { LO_FLAGS_READ_ONLY } else { 0 };
    let config = LoopConfig {
        fd: file.as_raw_fd() as u32,
        block_size: block,
        info: LoopInfo64 {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_DIRECT_IO | LO_FLAGS_AUTOCLEAR | LO_FLAGS_PARTSCAN | read_only,
            file_name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: the kernel reads one loop_config from the address, which is that of a live value.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &config) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
