//! A running ublk device.

use std::io;
use std::time::Duration;

use buf::Time;
use volume::Geometry;

use super::driver::{Command, Driver};
use super::queue::SlotEvent;
use super::wire::{self, Descriptor, op};
use super::{IO_MAX, RANGE_MAX, Ready as Called, Server, block_path};
use crate::disk::Disk;
use crate::event_loop::{self, EventHandler, StopMode};
use crate::requests::{Ended, Parts, Request, RequestKind, Requests};
use crate::vectors::Vectors;
use crate::wait::{EventKey, Ready, Stop, Waiter, now};

const QUEUE: EventKey = EventKey(0);
const CONTROL: EventKey = EventKey(1);
const USE_CHECKED: EventKey = EventKey(2);
const SECTOR: u64 = 512;
const RANGE_MAX_BYTES: u64 = RANGE_MAX as u64 * SECTOR;
/// Interval of the check whether a device that is to stop is still in use.
const LOOK: Duration = Duration::from_millis(200);

pub(super) struct UblkHandler<'a, D> {
    server: &'a Server,
    ready: Option<Called<'a>>,
    /// The device was reported as ready.
    told: bool,
    driver: D,
    requests: Requests<u16>,
    geometry: Geometry,
    vectors: Vectors,
    watched: bool,
    /// The control command that is out.
    command: Option<Command>,
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

impl<'a, D: Driver> UblkHandler<'a, D> {
    pub(super) fn new(server: &'a Server, driver: D, disk: &dyn Disk, ready: Called<'a>) -> Self {
        let requests = Requests::new(disk, driver.depth(), server.statistics.clone());
        UblkHandler {
            server,
            ready: Some(ready),
            told: false,
            driver,
            requests,
            geometry: disk.geometry(),
            vectors: Vectors::default(),
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

    fn begin(&mut self, command: Command) -> io::Result<()> {
        self.driver.begin(command)?;
        self.command = Some(command);
        Ok(())
    }

    /// Reports the device as ready, once.
    fn tell(&mut self) -> io::Result<()> {
        if let Some(ready) = self.ready.take() {
            ready(&block_path(self.server.info.device))?;
            self.told = true;
        }
        Ok(())
    }

    /// Serves until the end. If it fails and the device may be recovered, all its operations have completed.
    pub(super) fn run(&mut self, disk: &mut dyn Disk, stop: &Stop) -> io::Result<()> {
        let result = event_loop::run(self, disk, stop);
        if result.is_err() && !self.is_done_with() {
            event_loop::drain(&mut self.requests, disk, stop);
        }
        result
    }

    /// Whether the device was stopped, or never became ready: then it is not to be recovered.
    pub(super) fn is_done_with(&self) -> bool {
        self.stop_sent || self.stop == Some(StopMode::Now) || !self.told
    }

    fn handle_control(&mut self) -> io::Result<()> {
        let Some(result) = self.driver.poll_command() else { return Ok(()) };
        match self.command.take() {
            Some(Command::Start) => {
                result?;
                self.tell()?;
            }
            // Nothing is lost but the new size: the old one still holds.
            Some(Command::Resize(_)) | None => {}
            Some(Command::Stop) => result?,
        }
        Ok(())
    }

    /// Starts a request, or parks it.
    fn take(&mut self, disk: &mut dyn Disk, tag: u16, descriptor: Descriptor) {
        let (ask, at, len) = match understood(&descriptor) {
            Ok(asked) => asked,
            Err(errno) => return self.commit(tag, -errno),
        };
        let mut data = Parts::new();
        // A request that will be refused needs no memory: `start` makes the same check.
        if matches!(ask, RequestKind::Write { .. }) && self.requests.judge(disk, ask, at, len).is_ok() {
            let Some(memory) = self.requests.memory(disk, at, len) else {
                return self.parked.push((tag, descriptor));
            };
            data = memory;
            self.vectors.clear();
            self.requests.slices(&mut data, at, 0, len, |slice| self.vectors.push_mut(slice));
            // SAFETY: the vectors were made above, of memory that `data` alone owns and that nobody
            // touches before the call returns.
            if unsafe { self.driver.read_data(tag, &mut self.vectors) }.is_err() {
                return self.commit(tag, -libc::EIO);
            }
        }
        let request = Request { data, ..Request::new(tag, ask, at, len) };
        if self.requests.start(disk, request).is_err() {
            self.parked.push((tag, descriptor));
        }
    }

    fn commit(&mut self, tag: u16, result: i32) {
        self.driver.commit(tag, result);
        self.committed = true;
    }

    /// Stops the device when it has no users. Another thread checks that, because the check may wait for this thread.
    fn go_on_stopping(&mut self) -> io::Result<()> {
        let Some(how) = self.stop else { return Ok(()) };
        if self.stop_sent || self.command.is_some() {
            return Ok(());
        }
        if how == StopMode::Now || self.driver.poll_unused() == Some(true) {
            self.stop_sent = true;
            return self.begin(Command::Stop);
        }
        if now() >= self.look_at {
            self.look_at = now() + LOOK;
            self.driver.check_use();
        }
        Ok(())
    }
}

/// What a request asks of which bytes.
///
/// # Errors
/// The error number that it is answered with.
fn understood(descriptor: &Descriptor) -> Result<(RequestKind, u64, u64), i32> {
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
    let at = sector.checked_mul(SECTOR).ok_or(libc::EIO)?;
    let len = u64::from(sectors) * SECTOR;
    // The kernel stays within the limits that it was told. A larger request would wait for memory forever.
    let most = if matches!(ask, RequestKind::Read | RequestKind::Write { .. }) {
        IO_MAX.into()
    } else {
        RANGE_MAX_BYTES
    };
    if len > most { Err(libc::EIO) } else { Ok((ask, at, len)) }
}

impl<D: Driver> EventHandler for UblkHandler<'_, D> {
    type Token = u16;

    fn requests(&mut self) -> &mut Requests<u16> {
        &mut self.requests
    }

    fn handle_ready(&mut self, disk: &mut dyn Disk, _waiter: &Waiter, ready: Ready) -> io::Result<()> {
        if ready.key == USE_CHECKED {
            // `advance` asks what was found.
            return Ok(());
        }
        if ready.key == CONTROL {
            return self.handle_control();
        }
        while let Some(event) = self.driver.poll() {
            match event? {
                SlotEvent::Request(tag, descriptor) => self.take(disk, tag, descriptor),
                SlotEvent::Aborted => self.aborted += 1,
            }
        }
        Ok(())
    }

    fn handle_ended(&mut self, ended: Ended<u16>) -> io::Result<()> {
        let result = match ended.result {
            Err(trouble) => -trouble.errno(),
            Ok(()) if ended.ask == RequestKind::Read => {
                match self.driver.write_data(ended.token, &ended.data, &mut self.vectors) {
                    Ok(()) => ended.len as i32,
                    Err(_) => -libc::EIO,
                }
            }
            // cannot fail, here and above: no request is longer than RANGE_MAX_BYTES, 1 GiB.
            Ok(()) => ended.len as i32,
        };
        self.commit(ended.token, result);
        Ok(())
    }

    fn handle_change(&mut self, disk: &mut dyn Disk) -> io::Result<()> {
        self.geometry = disk.geometry();
        self.resize_wanted = self.server.features & wire::flag::UPDATE_SIZE != 0;
        Ok(())
    }

    fn advance(&mut self, disk: &mut dyn Disk, waiter: &Waiter) -> io::Result<bool> {
        if !self.watched {
            self.watched = true;
            let [queue, control, looked] = self.driver.events();
            waiter.add(queue, QUEUE, true, false)?;
            waiter.add(control, CONTROL, true, false)?;
            waiter.add(looked, USE_CHECKED, true, false)?;
            // The driver resends the requests of the previous server as soon as it may.
            if self.server.recovers {
                self.tell()?;
            }
            self.begin(Command::Start)?;
        }
        let before = self.requests.in_flight();
        for (tag, descriptor) in std::mem::take(&mut self.parked) {
            self.take(disk, tag, descriptor);
        }
        if self.command.is_none() && std::mem::take(&mut self.resize_wanted) {
            self.begin(Command::Resize(self.geometry.bytes() / SECTOR))?;
        }
        self.go_on_stopping()?;
        if std::mem::take(&mut self.committed) || self.is_unsent {
            self.driver.submit()?;
        }
        self.is_unsent = self.driver.is_unsent();
        Ok(self.requests.in_flight() > before)
    }

    fn poll_timeout(&self) -> Option<Time> {
        let looks = self.stop == Some(StopMode::WhenDone) && !self.stop_sent;
        looks.then_some(self.look_at)
    }

    fn is_short(&self) -> bool {
        !self.parked.is_empty() || self.is_unsent
    }

    fn stop(&mut self, _waiter: &Waiter, how: StopMode) -> bool {
        self.stop = Some(how);
        how == StopMode::WhenDone
    }

    fn is_over(&self) -> bool {
        self.aborted == self.driver.depth() && self.command.is_none()
    }
}

#[cfg(test)]
mod tests;
