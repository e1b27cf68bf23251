//! The server against a simulated driver.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buf::Sg;
use rustix::event::{EventfdFlags, eventfd};
use testkit::seeds::seed_range;
use volume::RamDisk;

use super::*;
use crate::event_waiter::ServerStop;
use crate::test_disk::{Behaviour, Mutator, RamVolume};
use crate::ublk::OwnedDevice;
use crate::ublk::driver::UseCheck;
use crate::ublk::wire::DeviceInfo;

const DEPTH: u16 = 8;

/// What the kernel has said and heard.
#[derive(Default)]
struct DriverLog {
    to_come: VecDeque<io::Result<SlotEvent>>,
    commands: Vec<DriverCommand>,
    ended: VecDeque<io::Result<()>>,
    /// Results by slot, in order.
    results: Vec<(u16, i32)>,
    /// Slots that are with the server.
    out: Vec<u16>,
    /// How often the system has no memory for what is handed over.
    unsent_for: u32,
    /// What comes when somebody looks.
    behind_look: VecDeque<io::Result<SlotEvent>>,
}

type LookAt = Box<dyn Fn() -> Box<dyn FnOnce() -> bool + Send>>;

struct FakeDriver {
    heard: Rc<RefCell<DriverLog>>,
    /// Always readable: the queue and the commands are looked at in each round.
    ready: [OwnedFd; 2],
    look: UseCheck,
    looks: LookAt,
    flushed: Arc<AtomicBool>,
    /// Asked when nothing is out any more.
    stop: Option<ServerStop>,
}

impl FakeDriver {
    fn new(heard: &Rc<RefCell<DriverLog>>, looks: LookAt, flushed: &Arc<AtomicBool>) -> FakeDriver {
        let ready = [(); 2].map(|()| eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let (look, flushed) = (UseCheck::new().unwrap(), flushed.clone());
        FakeDriver { heard: heard.clone(), ready, look, looks, flushed, stop: None }
    }
}

impl UblkDriver for FakeDriver {
    fn queue_depth(&self) -> u16 {
        DEPTH
    }

    fn event_fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.ready[0].as_fd(), self.ready[1].as_fd(), self.look.event_fd()]
    }

    fn poll_slot_event(&mut self) -> Option<io::Result<SlotEvent>> {
        let mut heard = self.heard.borrow_mut();
        let event = heard.to_come.pop_front()?;
        if let Ok(SlotEvent::Request(tag, _)) = event {
            assert!(!heard.out.contains(&tag), "slot {tag} has a request already");
            heard.out.push(tag);
        }
        Some(event)
    }

    fn commit_result(&mut self, tag: u16, result: i32) {
        let mut heard = self.heard.borrow_mut();
        let place = heard.out.iter().position(|out| *out == tag).expect("a slot is answered once");
        heard.out.swap_remove(place);
        heard.results.push((tag, result));
        self.flushed.store(true, Ordering::Release);
        if let Some(stop) = self.stop.as_ref().filter(|_| heard.out.is_empty() && heard.to_come.is_empty()) {
            stop.request_stop();
        }
    }

    fn submit_pending(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn has_unsubmitted(&mut self) -> bool {
        let mut heard = self.heard.borrow_mut();
        heard.unsent_for = heard.unsent_for.saturating_sub(1);
        heard.unsent_for > 0
    }

    unsafe fn copy_write_data(&self, _tag: u16, _vectors: &mut IoVectors) -> io::Result<()> {
        Ok(())
    }

    fn copy_read_data(&self, _tag: u16, data: &Sg, _vectors: &mut IoVectors) -> io::Result<()> {
        let mut bytes = vec![1; data.len()];
        data.copy_to(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0), "it was never written");
        Ok(())
    }

    fn start_command(&mut self, command: DriverCommand) -> io::Result<()> {
        let mut heard = self.heard.borrow_mut();
        heard.commands.push(command);
        heard.ended.push_back(Ok(()));
        if command == DriverCommand::Stop {
            heard.to_come.extend((0..DEPTH).map(|_| Ok(SlotEvent::Aborted)));
        }
        Ok(())
    }

    fn poll_command(&mut self) -> Option<io::Result<()>> {
        self.heard.borrow_mut().ended.pop_front()
    }

    fn start_use_check(&mut self) {
        let mut heard = self.heard.borrow_mut();
        let behind = std::mem::take(&mut heard.behind_look);
        heard.to_come.extend(behind);
        drop(heard);
        self.look.start_check((self.looks)());
    }

    fn poll_use_check(&mut self) -> Option<bool> {
        self.look.poll_is_unused()
    }
}

fn server() -> Server {
    let info = DeviceInfo { depth: DEPTH, ..DeviceInfo::default() };
    let device = OwnedDevice { number: 0, stays: true, delete: |_| Ok(()) };
    Server { info, features: 0, recovers: false, statistics: Arc::default(), device }
}

fn disk() -> RamVolume {
    RamVolume::new(Arc::new(RamDisk::new(2048, 2048, 512, 4096)), Behaviour::default())
}

fn request(op_flags: u32, sector: u64, sectors: u32) -> Descriptor {
    Descriptor { op_flags, sectors, sector, address: 0 }
}

/// To open the device may read its partitions, and to close it may write what is cached: both by the very thread
/// that would wait.
#[test]
fn a_polite_stop_never_waits_for_a_look_at_the_device() {
    let heard = Rc::new(RefCell::new(DriverLog::default()));
    let flushed = Arc::new(AtomicBool::new(false));
    let its_flushed = flushed.clone();
    let looks: LookAt = Box::new(move || {
        let flushed = its_flushed.clone();
        Box::new(move || {
            let until = std::time::Instant::now() + Duration::from_secs(5);
            while !flushed.load(Ordering::Acquire) && std::time::Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            flushed.load(Ordering::Acquire)
        })
    });
    let (server, mut disk, stop) = (server(), disk(), ServerStop::new().unwrap());
    let flush = request(op::FLUSH.into(), u64::MAX, 0);
    heard.borrow_mut().behind_look.push_back(Ok(SlotEvent::Request(3, flush)));
    let mut ready = |_: &std::path::Path| {
        stop.request_stop();
        Ok(())
    };
    let mut handler = UblkHandler::new(&server, FakeDriver::new(&heard, looks, &flushed), &disk, &mut ready);
    let begun = std::time::Instant::now();
    handler.run_to_end(&mut disk, &stop).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(4), "it waited for what only itself could do");
    assert!(handler.is_unrecoverable());
    assert_eq!(heard.borrow().results, [(3, 0)]);
    assert_eq!(heard.borrow().commands, [DriverCommand::Start, DriverCommand::Stop]);
}

#[test]
fn an_error_of_the_driver_does_not_take_a_device_in_use_away() {
    for (is_used, is_left) in [(true, true), (false, false)] {
        let heard = Rc::new(RefCell::new(DriverLog::default()));
        let (server, mut disk, stop) = (server(), disk(), ServerStop::new().unwrap());
        let its_heard = heard.clone();
        let mut ready = move |_: &std::path::Path| {
            its_heard.borrow_mut().to_come.push_back(Err(io::Error::from_raw_os_error(libc::EIO)));
            if is_used { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
        };
        let driver = FakeDriver::new(&heard, Box::new(|| Box::new(|| false)), &Arc::default());
        let mut handler = UblkHandler::new(&server, driver, &disk, &mut ready);
        assert!(handler.run_to_end(&mut disk, &stop).is_err());
        assert_eq!(!handler.is_unrecoverable(), is_left);
    }
}

/// The next server of the same disk is asked all of it again, and names its operations alike.
#[test]
fn a_driver_that_fails_leaves_nothing_of_its_front_at_the_disk() {
    let heard = Rc::new(RefCell::new(DriverLog::default()));
    let mood = Behaviour { shuffle: Some(1), ..Behaviour::default() };
    let (stuck, taken) = (mood.stuck.clone(), mood.taken.clone());
    stuck.store(true, Ordering::Relaxed);
    let mut disk = RamVolume::new(Arc::new(RamDisk::new(2048, 2048, 512, 4096)), mood);
    let (server, stop) = (server(), ServerStop::new().unwrap());
    let its_heard = heard.clone();
    let mut ready = move |_: &std::path::Path| {
        let mut heard = its_heard.borrow_mut();
        for tag in 0..DEPTH {
            heard.to_come.push_back(Ok(SlotEvent::Request(tag, request(op::WRITE.into(), tag.into(), 8))));
        }
        heard.to_come.push_back(Err(io::Error::from_raw_os_error(libc::EIO)));
        Ok(())
    };
    let driver = FakeDriver::new(&heard, Box::new(|| Box::new(|| false)), &Arc::default());
    let mut handler = UblkHandler::new(&server, driver, &disk, &mut ready);
    let freed = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        stuck.store(false, Ordering::Relaxed);
    });
    assert!(handler.run_to_end(&mut disk, &stop).is_err() && !handler.is_unrecoverable());
    freed.join().unwrap();
    assert!(taken.load(Ordering::Relaxed) > 0);
    assert_eq!((handler.requests.in_flight(), disk.out()), (0, 0));
}

/// Whatever a driver asks: each slot is answered once, nothing is read that was never written, and what is asked
/// behind it is served.
#[test]
fn descriptors_of_hostile_seeds_are_each_answered_once() {
    for seed in seed_range(100) {
        let heard = Rc::new(RefCell::new(DriverLog::default()));
        let mut noise = Mutator::new(seed);
        let mood = Behaviour { shuffle: Some(seed), never_lends: seed % 2 == 0, ..Behaviour::default() };
        let mut disk = RamVolume::new(Arc::new(RamDisk::new(2048, 2048, 512, 4096)), mood);
        let (server, stop) = (server(), ServerStop::new().unwrap());
        let mut draw = |n: u64| noise.draw(n);
        let mut asked = 0;
        for tag in 0..DEPTH - 1 {
            // No writes: what is read is to be what was never written.
            let kind = [0, 2, 3, 5, draw(256), draw(256)][draw(6) as usize] as u32;
            let kind = if kind == u32::from(op::WRITE) { 2 } else { kind };
            let flags = if draw(2) == 0 { 0 } else { draw(1 << 24) as u32 };
            let sector = [draw(2048), 2048, draw(u64::MAX), u64::MAX, u64::MAX / 512][draw(5) as usize];
            let sectors = [draw(9), draw(4096), draw(1 << 32), u64::from(u32::MAX)][draw(4) as usize];
            let descriptor = request(kind | flags << 8, sector, sectors as u32);
            heard.borrow_mut().to_come.push_back(Ok(SlotEvent::Request(tag, descriptor)));
            asked += 1;
        }
        let honest = request(op::READ.into(), 5, 8);
        heard.borrow_mut().to_come.push_back(Ok(SlotEvent::Request(DEPTH - 1, honest)));
        let mut ready = |_: &std::path::Path| Ok(());
        let mut driver = FakeDriver::new(&heard, Box::new(|| Box::new(|| true)), &Arc::default());
        driver.stop = Some(stop.clone());
        let mut handler = UblkHandler::new(&server, driver, &disk, &mut ready);
        handler.run_to_end(&mut disk, &stop).unwrap();
        let heard = heard.borrow();
        assert_eq!((heard.results.len(), heard.out.len()), (asked + 1, 0), "seed {seed}");
        assert!(heard.results.contains(&(DEPTH - 1, 4096)), "seed {seed}: {:?}", heard.results);
    }
}

/// What it takes it issues to the volume, and the next who recovers must know of it.
#[test]
fn nothing_of_a_recovered_device_is_taken_before_it_is_known_who_serves_it() {
    for fails in [true, false] {
        let heard = Rc::new(RefCell::new(DriverLog::default()));
        let (server, mut disk, stop) =
            (Server { recovers: true, ..server() }, disk(), ServerStop::new().unwrap());
        heard.borrow_mut().to_come.push_back(Ok(SlotEvent::Request(0, request(op::FLUSH.into(), 0, 0))));
        let its_heard = heard.clone();
        let mut ready = |_: &std::path::Path| {
            assert!(its_heard.borrow().commands.is_empty(), "the driver was told to go on");
            if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        };
        let mut driver = FakeDriver::new(&heard, Box::new(|| Box::new(|| true)), &Arc::default());
        driver.stop = Some(stop.clone());
        let mut handler = UblkHandler::new(&server, driver, &disk, &mut ready);
        let ran = handler.run_to_end(&mut disk, &stop);
        assert_eq!(ran.is_err(), fails);
        assert_eq!(heard.borrow().results.len(), usize::from(!fails));
        assert_eq!(heard.borrow().commands.first(), (!fails).then_some(&DriverCommand::Start));
    }
}

#[test]
fn a_device_that_another_process_serves_by_now_is_not_deleted() {
    let served_by = |server| DeviceInfo { server, ..DeviceInfo::default() };
    for (server, is_of_another) in [(7, false), (8, true), (0, false), (-1, false)] {
        assert_eq!(crate::ublk::is_served_by_other(&served_by(server), 7), is_of_another, "{server}");
    }
}

/// A machine has only so many.
#[test]
fn a_device_that_never_came_to_be_served_is_deleted() {
    use std::sync::atomic::AtomicU32;
    static DELETED: AtomicU32 = AtomicU32::new(0);
    let delete = |number| {
        DELETED.fetch_add(number, Ordering::Relaxed);
        Ok(())
    };
    drop(Server { device: OwnedDevice { number: 1, stays: false, delete }, ..server() });
    assert_eq!(DELETED.load(Ordering::Relaxed), 1);
    drop(Server { device: OwnedDevice { number: 10, stays: true, delete }, ..server() });
    OwnedDevice { number: 100, stays: false, delete }.delete_now().unwrap();
    assert_eq!(DELETED.load(Ordering::Relaxed), 101, "once, and not what is to stay");
}

#[test]
fn what_the_system_has_no_memory_for_is_handed_over_again() {
    let heard = Rc::new(RefCell::new(DriverLog { unsent_for: 4, ..DriverLog::default() }));
    let (server, mut disk, stop) = (server(), disk(), ServerStop::new().unwrap());
    heard.borrow_mut().to_come.push_back(Ok(SlotEvent::Request(3, request(op::FLUSH.into(), 0, 0))));
    let mut ready = |_: &std::path::Path| Ok(());
    let mut driver = FakeDriver::new(&heard, Box::new(|| Box::new(|| true)), &Arc::default());
    driver.stop = Some(stop.clone());
    let mut handler = UblkHandler::new(&server, driver, &disk, &mut ready);
    handler.run_to_end(&mut disk, &stop).unwrap();
    assert!(!handler.waits_for_memory());
    assert_eq!((heard.borrow().unsent_for, heard.borrow().results.len()), (0, 1));
    // It is no error of the ring, while others are.
    use crate::ublk::queue::is_out_of_memory;
    for (number, waits) in
        [(libc::EAGAIN, true), (libc::EBUSY, true), (libc::ENOMEM, true), (libc::EIO, false)]
    {
        assert_eq!(is_out_of_memory(&io::Error::from_raw_os_error(number)), waits);
    }
}
