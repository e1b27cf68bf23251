//! A ublk device at work.

use std::io;
use std::time::Duration;

use buf::Time;
use rustix::fs::{Mode, OFlags};
use volume::Geometry;

use super::control::Channel;
use super::queue::{Came, Queue};
use super::wire::{self, Descriptor, op};
use super::{Front, IO_MAX, RANGE_MAX, Ready as Called, block_path};
use crate::disk::Disk;
use crate::requests::{Ask, Ended, Parts, Request, Requests};
use crate::turn::{Face, Leave};
use crate::vectors::Vectors;
use crate::wait::{Key, Ready, Waiter, now};

const QUEUE: Key = Key(0);
const CONTROL: Key = Key(1);
const SECTOR: u64 = 512;
const RANGE_MAX_BYTES: u64 = RANGE_MAX as u64 * SECTOR;
/// How often a device that is to stop is asked whether it is still used.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Start,
    Stop,
    Resize,
}

pub(super) struct Server<'a> {
    front: &'a Front,
    ready: Option<Called<'a>>,
    control: Channel,
    queue: Queue,
    requests: Requests<u16>,
    geometry: Geometry,
    vectors: Vectors,
    watched: bool,
    /// The control command that is out.
    command: Option<Command>,
    resize_wanted: bool,
    /// Requests without room or memory.
    parked: Vec<(u16, Descriptor)>,
    /// Slots that the driver has taken back.
    aborted: u16,
    stop: Option<Leave>,
    stop_sent: bool,
    look_at: Time,
    committed: bool,
}

impl<'a> Server<'a> {
    pub(super) fn new(
        front: &'a Front,
        control: Channel,
        queue: Queue,
        disk: &dyn Disk,
        ready: Called<'a>,
    ) -> Self {
        let requests = Requests::new(disk, queue.depth(), front.statistics.clone());
        Server {
            front,
            ready: Some(ready),
            control,
            queue,
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
        }
    }

    fn begin(&mut self, command: Command) -> io::Result<()> {
        let device = self.front.info.device;
        let server = u64::from(std::process::id());
        match command {
            Command::Start if self.front.recovers => {
                self.control.begin(wire::END_USER_RECOVERY, device, &[], server)?;
            }
            Command::Start => self.control.begin(wire::START_DEV, device, &[], server)?,
            Command::Stop => self.control.begin(wire::STOP_DEV, device, &[], 0)?,
            Command::Resize => {
                self.control.begin(wire::UPDATE_SIZE, device, &[], self.geometry.bytes() / SECTOR)?;
            }
        }
        self.command = Some(command);
        Ok(())
    }

    fn handle_control(&mut self) -> io::Result<()> {
        let Some(result) = self.control.poll() else { return Ok(()) };
        match self.command.take() {
            Some(Command::Start) => {
                result?;
                if let Some(ready) = self.ready.take() {
                    ready(&block_path(self.front.info.device))?;
                }
            }
            // Nothing is lost but the new size: the old one still holds.
            Some(Command::Resize) | None => {}
            Some(Command::Stop) => result?,
        }
        Ok(())
    }

    /// Starts a request, or parks it.
    fn take(&mut self, disk: &mut dyn Disk, tag: u16, descriptor: Descriptor) {
        let Descriptor { op_flags, sectors, sector, .. } = descriptor;
        let stable = op_flags & wire::IO_FUA != 0;
        let ask = match op_flags as u8 {
            op::READ => Ask::Read,
            op::WRITE => Ask::Write { stable },
            op::FLUSH => Ask::Flush,
            op::DISCARD => Ask::Unmap { stable },
            op::WRITE_ZEROES => Ask::Zero { unmap: op_flags & wire::IO_NOUNMAP == 0, stable },
            _ => return self.commit(tag, -libc::EOPNOTSUPP),
        };
        // Of a flush the place means nothing: the driver sends the number that no sector has.
        let place = if ask == Ask::Flush { Some(0) } else { sector.checked_mul(SECTOR) };
        let Some(at) = place else { return self.commit(tag, -libc::EIO) };
        let len = if ask == Ask::Flush { 0 } else { u64::from(sectors) * SECTOR };
        let mut data = Parts::new();
        // The kernel asks for no more than it was told; what nobody can have memory for would wait for ever.
        let most = if matches!(ask, Ask::Read | Ask::Write { .. }) { IO_MAX.into() } else { RANGE_MAX_BYTES };
        if len > most {
            return self.commit(tag, -libc::EIO);
        }
        // What is refused anyhow needs no memory: `start` refuses it by the same facts.
        if matches!(ask, Ask::Write { .. }) && self.requests.judge(disk, ask, at, len).is_ok() {
            let Some(memory) = self.requests.memory(disk, at, len) else {
                return self.parked.push((tag, descriptor));
            };
            data = memory;
            self.vectors.clear();
            self.requests.slices(&mut data, at, 0, len, |slice| self.vectors.push_mut(slice));
            // SAFETY: the vectors were made above, of memory that `data` alone owns and that nobody
            // touches before the call returns.
            if unsafe { self.queue.read_data(tag, &mut self.vectors) }.is_err() {
                return self.commit(tag, -libc::EIO);
            }
        }
        let request = Request { data, ..Request::new(tag, ask, at, len) };
        if self.requests.start(disk, request).is_err() {
            self.parked.push((tag, descriptor));
        }
    }

    fn commit(&mut self, tag: u16, result: i32) {
        self.queue.commit(tag, result);
        self.committed = true;
    }

    /// Whether nobody has the device mounted, or open for itself alone. Who has it open otherwise cannot
    /// be told.
    fn is_unused(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let path = block_path(self.front.info.device);
        !matches!(rustix::fs::open(path, flags, Mode::empty()), Err(rustix::io::Errno::BUSY))
    }

    fn go_on_stopping(&mut self) -> io::Result<()> {
        let Some(how) = self.stop else { return Ok(()) };
        if self.stop_sent || self.command.is_some() || (how == Leave::WhenDone && now() < self.look_at) {
            return Ok(());
        }
        self.look_at = now() + LOOK;
        if how == Leave::Now || self.is_unused() {
            self.stop_sent = true;
            self.begin(Command::Stop)?;
        }
        Ok(())
    }
}

impl Face for Server<'_> {
    type Token = u16;

    fn requests(&mut self) -> &mut Requests<u16> {
        &mut self.requests
    }

    fn handle_ready(&mut self, disk: &mut dyn Disk, _waiter: &Waiter, ready: Ready) -> io::Result<()> {
        if ready.key == CONTROL {
            return self.handle_control();
        }
        while let Some(came) = self.queue.poll() {
            match came? {
                Came::Request(tag, descriptor) => self.take(disk, tag, descriptor),
                Came::Aborted => self.aborted += 1,
            }
        }
        Ok(())
    }

    fn handle_ended(&mut self, ended: Ended<u16>) -> io::Result<()> {
        let result = match ended.result {
            Err(trouble) => -trouble.errno(),
            Ok(()) if ended.ask == Ask::Read => {
                match self.queue.write_data(ended.token, &ended.data, &mut self.vectors) {
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
        self.resize_wanted = self.front.features & wire::flag::UPDATE_SIZE != 0;
        Ok(())
    }

    fn settle(&mut self, disk: &mut dyn Disk, waiter: &Waiter) -> io::Result<bool> {
        if !self.watched {
            self.watched = true;
            waiter.add(self.queue.event(), QUEUE, true, false)?;
            waiter.add(self.control.event(), CONTROL, true, false)?;
            self.begin(Command::Start)?;
        }
        let before = self.requests.in_flight();
        for (tag, descriptor) in std::mem::take(&mut self.parked) {
            self.take(disk, tag, descriptor);
        }
        if self.command.is_none() && std::mem::take(&mut self.resize_wanted) {
            self.begin(Command::Resize)?;
        }
        self.go_on_stopping()?;
        if std::mem::take(&mut self.committed) {
            self.queue.submit()?;
        }
        Ok(self.requests.in_flight() > before)
    }

    fn poll_timeout(&self) -> Option<Time> {
        let looks = self.stop == Some(Leave::WhenDone) && !self.stop_sent;
        looks.then_some(self.look_at)
    }

    fn stop(&mut self, _waiter: &Waiter, how: Leave) -> bool {
        self.stop = Some(how);
        how == Leave::WhenDone
    }

    fn is_over(&self) -> bool {
        self.aborted == self.queue.depth() && self.command.is_none()
    }
}
