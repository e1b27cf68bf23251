//! The driver's control device: commands by io_uring, one at a time.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use zerocopy::{FromBytes, IntoBytes};

use super::queue::is_out_of_memory;
use super::wire::{self, Control, DeviceInfo, Parameters};

pub(super) const CONTROL_PATH: &str = "/dev/ublk-control";

/// A channel to the driver.
pub(super) struct ControlChannel {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    /// What the command that is out reads or writes.
    memory: Box<[u8; 64]>,
    is_out: bool,
}

impl ControlChannel {
    pub(super) fn open() -> io::Result<ControlChannel> {
        let file = File::options().read(true).write(true).open(CONTROL_PATH)?;
        let ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(4)?;
        Ok(ControlChannel { file, ring, memory: Box::new([0; 64]), is_out: false })
    }

    /// Readable when the command that was begun has ended.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring keeps its descriptor open as long as it lives, and this borrows the ring.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// Begins a command. One may be out at a time.
    pub(super) fn start_command(
        &mut self,
        command: u32,
        device: u32,
        bytes: &[u8],
        data: u64,
    ) -> io::Result<()> {
        // cannot fail: who begins a command holds the channel alone, or has seen the end of the last one; and
        // the longest of them are those of 64 bytes.
        assert!(!self.is_out && bytes.len() <= self.memory.len(), "one command at a time");
        self.memory[..bytes.len()].copy_from_slice(bytes);
        let address = if bytes.is_empty() { 0 } else { self.memory.as_mut_ptr() as u64 };
        let control =
            Control { device, queue: u16::MAX, len: bytes.len() as u16, address, data, reserved: 0 };
        let mut words = [0; 80];
        words[..size_of::<Control>()].copy_from_slice(control.as_bytes());
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), command).cmd(words).build();
        // SAFETY: what the entry names, `memory` and the file, lives in this value; dropping it with a
        // command out leaves the memory to the kernel (see `drop`).
        unsafe { self.ring.submission().push(&entry) }.expect("a ring of four has room for one");
        self.is_out = true;
        self.submit_command()
    }

    /// Hands the command over, if it was not yet: the system may have had no memory for it.
    pub(super) fn submit_command(&mut self) -> io::Result<()> {
        match self.has_unsubmitted().then(|| self.ring.submit()) {
            Some(Err(error)) if !is_out_of_memory(&error) && error.kind() != io::ErrorKind::Interrupted => {
                Err(error)
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn has_unsubmitted(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// How the command ended that is out, if it has.
    pub(super) fn poll_command(&mut self) -> Option<io::Result<()>> {
        let result = self.ring.completion().next()?.result();
        self.is_out = false;
        Some(if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) })
    }

    /// Carries a command out; gives what the driver wrote.
    pub(super) fn run_command(
        &mut self,
        command: u32,
        device: u32,
        bytes: &[u8],
        data: u64,
    ) -> io::Result<[u8; 64]> {
        self.start_command(command, device, bytes, data)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if is_out_of_memory(&error) => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    continue;
                }
                Err(error) => return Err(error),
            }
            if let Some(result) = self.poll_command() {
                return result.map(|()| *self.memory);
            }
        }
    }

    pub(super) fn device_info(&mut self, device: u32) -> io::Result<DeviceInfo> {
        let bytes = self.run_command(wire::GET_DEV_INFO, device, DeviceInfo::default().as_bytes(), 0)?;
        Ok(DeviceInfo::read_from_bytes(&bytes).expect("as long as it is"))
    }

    pub(super) fn driver_features(&mut self) -> io::Result<u64> {
        let bytes = self.run_command(wire::GET_FEATURES, 0, &[0; 8], 0)?;
        Ok(u64::read_from_prefix(&bytes).map_or(0, |(features, _)| features))
    }

    pub(super) fn add_device(&mut self, info: DeviceInfo) -> io::Result<DeviceInfo> {
        let bytes = self.run_command(wire::ADD_DEV, info.device, info.as_bytes(), 0)?;
        Ok(DeviceInfo::read_from_bytes(&bytes).expect("as long as it is"))
    }

    pub(super) fn set_parameters(&mut self, device: u32, parameters: Parameters) -> io::Result<()> {
        self.run_command(wire::SET_PARAMS, device, parameters.as_bytes(), 0).map(drop)
    }
}

impl Drop for ControlChannel {
    fn drop(&mut self) {
        if self.is_out {
            // The kernel may still write there; a command that never ended is rare.
            std::mem::forget(std::mem::replace(&mut self.memory, Box::new([0; 64])));
        }
    }
}
