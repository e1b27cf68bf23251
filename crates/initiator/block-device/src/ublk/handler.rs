//! A running ublk device.

use std::io;
use std::time::Duration;

use buf::Time;
use volume::Geometry;

use super::driver::{DriverCommand, UblkDriver};
use super::queue::SlotEvent;
use super::wire::{self, Descriptor, op};
use super::{RANGE_SECTORS_MAX, REQUEST_LEN_MAX, ReadyCallback as Called, Server, device_path};
use crate::disk::Disk;
use crate::event_loop::{self, EventHandler, StopMode};
use crate::event_waiter::{EpollWaiter, EventKey, ReadyEvent, ServerStop, monotonic_now};
use crate::io_vectors::IoVectors;
use crate::requests::{EndedRequest, Request, RequestKind, RequestTable, WriteMemory};

const QUEUE_KEY: EventKey = EventKey(0);
const CONTROL_KEY: EventKey = EventKey(1);
const USE_CHECK_KEY: EventKey = EventKey(2);
const SECTOR_LEN: u64 = 512;
const RANGE_MAX_BYTES: u64 = RANGE_SECTORS_MAX as u64 * SECTOR_LEN;
/// Interval of the check whether a device that is to stop is still in use.
const USE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

pub(super) struct UblkHandler<'a, D> {
    server: &'a Server,
    ready: Option<Called<'a>>,
    /// The device was reported as ready.
    told: bool,
    driver: D,
    requests: RequestTable<u16>,
    geometry: Geometry,
    vectors: IoVectors,
    watched: bool,
    /// The control command that is out.
    command: Option<DriverCommand>,
    resize_wanted: bool,
    /// Requests without room or memory.
    parked: Vec<(u16, Descriptor)>,
    /// Slots that the driver has aborted.
    aborted: u16,
    stop: Option<StopMode>,
    stop_sent: bool,
    look_at: Time,
    committed: bool,
    /// The driver is to be called again.
    is_unsent: bool,
}

impl<'a, D: UblkDriver> UblkHandler<'a, D> {
    pub(super) fn new(server: &'a Server, driver: D, disk: &dyn Disk, ready: Called<'a>) -> Self {
        let requests = RequestTable::new(disk, driver.queue_depth(), server.statistics.clone());
        UblkHandler {
            server,
            ready: Some(ready),
            told: false,
            driver,
            requests,
            geometry: disk.geometry(),
            vectors: IoVectors::default(),
            watched: false,
            command: None,
            resize_wanted: false,
            parked: Vec::new(),
            aborted: 0,
            stop: None,
            stop_sent: false,
            look_at: Time(0),
            committed: false,
            is_unsent: false,
        }
    }

    fn start_command(&mut self, command: DriverCommand) -> io::Result<()> {
        self.driver.start_command(command)?;
        self.command = Some(command);
        Ok(())
    }

    /// Reports the device as ready, once.
    fn report_ready(&mut self) -> io::Result<()> {
        if let Some(ready) = self.ready.take() {
            ready(&device_path(self.server.info.device))?;
            self.told = true;
        }
        Ok(())
    }

    /// Serves until the end. If it fails and the device may be recovered, all its operations have completed.
    pub(super) fn run_to_end(&mut self, disk: &mut dyn Disk, stop: &ServerStop) -> io::Result<()> {
        let result = event_loop::run_event_loop(self, disk, stop);
        if result.is_err() && !self.is_unrecoverable() {
            event_loop::drain_operations(&mut self.requests, disk, stop);
        }
        result
    }

    /// Whether the device was stopped, or never became ready: then it is not to be recovered.
    pub(super) fn is_unrecoverable(&self) -> bool {
        self.stop_sent || self.stop == Some(StopMode::Now) || !self.told
    }

    fn handle_command_ended(&mut self) -> io::Result<()> {
        let Some(result) = self.driver.poll_command() else { return Ok(()) };
        match self.command.take() {
            Some(DriverCommand::Start) => {
                result?;
                self.report_ready()?;
            }
            // Nothing is lost but the new size: the old one still holds.
            Some(DriverCommand::Resize(_)) | None => {}
            Some(DriverCommand::Stop) => result?,
        }
        Ok(())
    }

    /// Starts a request, or parks it.
    fn start_or_park(&mut self, disk: &mut dyn Disk, tag: u16, descriptor: Descriptor) {
        let (ask, at, len) = match parse_descriptor(&descriptor) {
            Ok(asked) => asked,
            Err(errno) => return self.commit_result(tag, -errno),
        };
        let mut data = WriteMemory::new();
        // A request that will be refused needs no memory: `submit_request` makes the same check.
        if matches!(ask, RequestKind::Write { .. }) && self.requests.check_request(disk, ask, at, len).is_ok()
        {
            let Some(memory) = self.requests.alloc_write_memory(disk, at, len) else {
                return self.parked.push((tag, descriptor));
            };
            data = memory;
            self.vectors.clear();
            self.requests.for_each_slice(&mut data, at, 0, len, |slice| self.vectors.push_buffer(slice));
            // SAFETY: the vectors were made above, of memory that `data` alone owns and that nobody
            // touches before the call returns.
            if unsafe { self.driver.copy_write_data(tag, &mut self.vectors) }.is_err() {
                return self.commit_result(tag, -libc::EIO);
            }
        }
        let request = Request { data, ..Request::new(tag, ask, at, len) };
        if self.requests.submit_request(disk, request).is_err() {
            self.parked.push((tag, descriptor));
        }
    }

    fn commit_result(&mut self, tag: u16, result: i32) {
        self.driver.commit_result(tag, result);
        self.committed = true;
    }

    /// Stops the device when it has no users. Another thread checks that, because the check may wait for this thread.
    fn advance_stop(&mut self) -> io::Result<()> {
        let Some(how) = self.stop else { return Ok(()) };
        if self.stop_sent || self.command.is_some() {
            return Ok(());
        }
        if how == StopMode::Now || self.driver.poll_use_check() == Some(true) {
            self.stop_sent = true;
            return self.start_command(DriverCommand::Stop);
        }
        if monotonic_now() >= self.look_at {
            self.look_at = monotonic_now() + USE_CHECK_INTERVAL;
            self.driver.start_use_check();
        }
        Ok(())
    }
}

/// What a request asks of which bytes.
///
/// # Errors
/// The error number that it is answered with.
fn parse_descriptor(descriptor: &Descriptor) -> Result<(RequestKind, u64, u64), i32> {
    let Descriptor { op_flags, sectors, sector, .. } = *descriptor;
    let stable = op_flags & wire::IO_FUA != 0;
    let ask = match op_flags as u8 {
        op::READ => RequestKind::Read,
        op::WRITE => RequestKind::Write { stable },
        op::FLUSH => RequestKind::Flush,
        op::DISCARD => RequestKind::Unmap { stable },
        op::WRITE_ZEROES => RequestKind::Zero { unmap: op_flags & wire::IO_NOUNMAP == 0, stable },
        _ => return Err(libc::EOPNOTSUPP),
    };
    // A flush has no position: the driver sends an invalid sector number.
    if ask == RequestKind::Flush {
        return Ok((ask, 0, 0));
    }
    let at = sector.checked_mul(SECTOR_LEN).ok_or(libc::EIO)?;
    let len = u64::from(sectors) * SECTOR_LEN;
    // The kernel stays within the limits that it was told. A larger request would wait for memory forever.
    let most = if matches!(ask, RequestKind::Read | RequestKind::Write { .. }) {
        REQUEST_LEN_MAX.into()
    } else {
        RANGE_MAX_BYTES
    };
    if len > most { Err(libc::EIO) } else { Ok((ask, at, len)) }
}

impl<D: UblkDriver> EventHandler for UblkHandler<'_, D> {
    type Token = u16;

    fn requests(&mut self) -> &mut RequestTable<u16> {
        &mut self.requests
    }

    fn handle_ready(
        &mut self,
        disk: &mut dyn Disk,
        _waiter: &EpollWaiter,
        ready: ReadyEvent,
    ) -> io::Result<()> {
        if ready.key == USE_CHECK_KEY {
            // `advance` asks what was found.
            return Ok(());
        }
        if ready.key == CONTROL_KEY {
            return self.handle_command_ended();
        }
        while let Some(event) = self.driver.poll_slot_event() {
            match event? {
                SlotEvent::Request(tag, descriptor) => self.start_or_park(disk, tag, descriptor),
                SlotEvent::Aborted => self.aborted += 1,
            }
        }
        Ok(())
    }

    fn handle_request_ended(&mut self, ended: EndedRequest<u16>) -> io::Result<()> {
        let result = match ended.result {
            Err(trouble) => -trouble.errno(),
            Ok(()) if ended.ask == RequestKind::Read => {
                match self.driver.copy_read_data(ended.token, &ended.data, &mut self.vectors) {
                    Ok(()) => ended.len as i32,
                    Err(_) => -libc::EIO,
                }
            }
            // cannot fail, here and above: no request is longer than RANGE_MAX_BYTES, 1 GiB.
            Ok(()) => ended.len as i32,
        };
        self.commit_result(ended.token, result);
        Ok(())
    }

    fn handle_geometry_change(&mut self, disk: &mut dyn Disk) -> io::Result<()> {
        self.geometry = disk.geometry();
        self.resize_wanted = self.server.features & wire::flag::UPDATE_SIZE != 0;
        Ok(())
    }

    fn advance(&mut self, disk: &mut dyn Disk, waiter: &EpollWaiter) -> io::Result<bool> {
        if !self.watched {
            self.watched = true;
            let [queue, control, looked] = self.driver.event_fds();
            waiter.add_fd(queue, QUEUE_KEY, true, false)?;
            waiter.add_fd(control, CONTROL_KEY, true, false)?;
            waiter.add_fd(looked, USE_CHECK_KEY, true, false)?;
            // The driver resends the requests of the previous server as soon as it may.
            if self.server.recovers {
                self.report_ready()?;
            }
            self.start_command(DriverCommand::Start)?;
        }
        let before = self.requests.in_flight();
        for (tag, descriptor) in std::mem::take(&mut self.parked) {
            self.start_or_park(disk, tag, descriptor);
        }
        if self.command.is_none() && std::mem::take(&mut self.resize_wanted) {
            self.start_command(DriverCommand::Resize(self.geometry.capacity_bytes() / SECTOR_LEN))?;
        }
        self.advance_stop()?;
        if std::mem::take(&mut self.committed) || self.is_unsent {
            self.driver.submit_pending()?;
        }
        self.is_unsent = self.driver.has_unsubmitted();
        Ok(self.requests.in_flight() > before)
    }

    fn poll_timeout(&self) -> Option<Time> {
        let looks = self.stop == Some(StopMode::WhenDone) && !self.stop_sent;
        looks.then_some(self.look_at)
    }

    fn waits_for_memory(&self) -> bool {
        !self.parked.is_empty() || self.is_unsent
    }

    fn start_stop(&mut self, _waiter: &EpollWaiter, how: StopMode) -> bool {
        self.stop = Some(how);
        how == StopMode::WhenDone
    }

    fn is_finished(&self) -> bool {
        self.aborted == self.driver.queue_depth() && self.command.is_none()
    }
}

#[cfg(test)]
mod tests;
